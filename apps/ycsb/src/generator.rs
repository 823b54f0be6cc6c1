//! What YCSB's core workloads ask for (Cooper and others, "Benchmarking Cloud Serving Systems with YCSB",
//! SoCC 2010, table 2), and by which law.
//!
//! Records are numbered in the order in which they are inserted. A record's key is a scattered form of its
//! number, so that what is popular by its number lies anywhere among the keys.

use clap::ValueEnum;

/// Most records of a scan.
const SCAN_MAX: u64 = 100;

/// A small generator (splitmix64): the same seed gives the same run.
pub struct Random(u64);

impl Random {
    /// Seeds that are near give runs that are not.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(scatter(seed))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        scatter(self.0)
    }

    /// Uniform between 0 and 1, without 1.
    pub fn uniform(&mut self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "53 bits are all that is wanted")]
        let uniform = (self.bits() >> 11) as f64 / (1_u64 << 53) as f64;
        uniform
    }

    /// Uniform below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        let product = u128::from(self.bits()) * u128::from(bound);
        u64::try_from(product >> 64).unwrap_or(0)
    }
}

/// Gives each number another one (the finalizer of splitmix64, which has an inverse).
#[must_use]
pub fn scatter(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    word = (word ^ word >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    word ^ word >> 31
}

/// Ranks below a bound, rank r with a probability that goes with 1 / (r + 1)^0.99: the method of Gray and
/// others, "Quickly Generating Billion-Record Synthetic Databases" (SIGMOD 1994), with YCSB's constant.
pub struct Zipf {
    bound: u64,
    zeta: f64,
    eta: f64,
}

impl Zipf {
    const THETA: f64 = 0.99;

    /// Ranks below `bound`, which is at least 1.
    #[must_use]
    pub fn below(bound: u64) -> Self {
        let zeta = zeta(bound);
        let eta = (1.0 - (2.0 / real(bound)).powf(1.0 - Self::THETA)) / (1.0 - zeta_of_two() / zeta);
        Self { bound, zeta, eta }
    }

    /// A rank, from 0.
    pub fn rank(&self, random: &mut Random) -> u64 {
        let uniform = random.uniform();
        let mass = uniform * self.zeta;
        if mass < 1.0 || self.bound < 3 {
            return if mass < 1.0 { 0 } else { 1.min(self.bound - 1) };
        }
        if mass < zeta_of_two() {
            return 1;
        }
        let place = (self.eta * uniform - self.eta + 1.0).powf(1.0 / (1.0 - Self::THETA));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "between 0 and the bound"
        )]
        let rank = (real(self.bound) * place) as u64;
        rank.min(self.bound - 1)
    }
}

fn zeta(bound: u64) -> f64 {
    (1..=bound).map(|rank| real(rank).powf(-Zipf::THETA)).sum()
}

fn zeta_of_two() -> f64 {
    1.0 + 0.5_f64.powf(Zipf::THETA)
}

#[expect(clippy::cast_precision_loss, reason = "records are fewer than 2^53")]
fn real(number: u64) -> f64 {
    number as f64
}

/// The core workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Workload {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads.
    C,
    /// 95 % reads, of the newest most often, 5 % inserts.
    D,
    /// 95 % scans, 5 % inserts.
    E,
    /// Half reads, half reads with an update of what was read.
    F,
}

/// What is done to records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Of one record.
    Read,
    /// All of one record is written again.
    Update,
    /// A new record.
    Insert,
    /// So many records in the order of keys.
    Scan(u64),
    /// A read, then an update of the same record.
    ReadModifyWrite,
}

/// Draws operations and records.
pub struct Generator {
    workload: Workload,
    zipf: Zipf,
}

impl Generator {
    /// Of a database with so many records.
    #[must_use]
    pub fn new(workload: Workload, loaded: u64) -> Self {
        Self { workload, zipf: Zipf::below(loaded) }
    }

    /// The next operation.
    pub fn operation(&self, random: &mut Random) -> Operation {
        let percent = random.below(100);
        match self.workload {
            Workload::A if percent < 50 => Operation::Update,
            Workload::B if percent < 5 => Operation::Update,
            Workload::F if percent < 50 => Operation::ReadModifyWrite,
            Workload::D | Workload::E if percent < 5 => Operation::Insert,
            Workload::E => Operation::Scan(1 + random.below(SCAN_MAX)),
            _ => Operation::Read,
        }
    }

    /// The number of a record that there is, with `newest` the last one.
    pub fn record(&self, newest: u64, random: &mut Random) -> u64 {
        let rank = self.zipf.rank(random);
        if self.workload == Workload::D { newest - rank } else { rank }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u32 = 400_000;

    /// Pearson's statistic of counts beside shares.
    fn chi_square(counts: &[u32], shares: &[f64]) -> f64 {
        let term = |(count, share): (&u32, &f64)| {
            let expected = share * f64::from(DRAWS);
            (f64::from(*count) - expected).powi(2) / expected
        };
        counts.iter().zip(shares).map(term).sum()
    }

    #[test]
    fn the_mixes_are_those_of_the_paper() {
        let shares = |workload| {
            let (generator, mut random) = (Generator::new(workload, 1000), Random::new(7));
            let mut counts = [0_u32; 5];
            for _ in 0..DRAWS {
                counts[match generator.operation(&mut random) {
                    Operation::Read => 0,
                    Operation::Update => 1,
                    Operation::Insert => 2,
                    Operation::Scan(length) => {
                        assert!((1..=SCAN_MAX).contains(&length));
                        3
                    }
                    Operation::ReadModifyWrite => 4,
                }] += 1;
            }
            counts.map(|count| f64::from(count) / f64::from(DRAWS))
        };
        for (workload, expected) in [
            (Workload::A, [0.5, 0.5, 0.0, 0.0, 0.0]),
            (Workload::B, [0.95, 0.05, 0.0, 0.0, 0.0]),
            (Workload::C, [1.0, 0.0, 0.0, 0.0, 0.0]),
            (Workload::D, [0.95, 0.0, 0.05, 0.0, 0.0]),
            (Workload::E, [0.0, 0.0, 0.05, 0.95, 0.0]),
            (Workload::F, [0.5, 0.0, 0.0, 0.0, 0.5]),
        ] {
            let found = shares(workload);
            let is_near = found.iter().zip(expected).all(|(found, share)| (found - share).abs() < 0.004);
            assert!(is_near, "{workload:?}: {found:?}");
        }
    }

    #[test]
    fn ranks_follow_zipfs_law() {
        const BOUND: u64 = 10_000;
        let (zipf, mut random) = (Zipf::below(BOUND), Random::new(3));
        // Ranks below 1, below 2, and from there on those of each quadrupling.
        let edges = [0, 1, 2, 8, 32, 128, 512, 2048, BOUND];
        let mut counts = [0_u32; 8];
        for _ in 0..DRAWS {
            let rank = zipf.rank(&mut random);
            assert!(rank < BOUND);
            counts[edges.iter().filter(|edge| **edge <= rank).count() - 1] += 1;
        }
        let share = |from: u64, to: u64| (zeta(to) - zeta(from)) / zeta(BOUND);
        let shares: Vec<f64> = edges.windows(2).map(|pair| share(pair[0], pair[1])).collect();
        for (count, share) in counts.iter().zip(&shares) {
            // Gray's method is exact for the first two ranks and near for the others.
            let found = f64::from(*count) / f64::from(DRAWS);
            assert!((found / share - 1.0).abs() < 0.12, "{counts:?}, {shares:?}");
        }
        assert!(chi_square(&counts[..2], &shares[..2]) < 14.0, "{counts:?}, {shares:?}");
    }

    #[test]
    fn a_few_records_are_enough_for_a_law() {
        for bound in 1..5 {
            let (zipf, mut random) = (Zipf::below(bound), Random::new(bound));
            let mut counts = [0_u32; 5];
            for _ in 0..DRAWS / 10 {
                counts[usize::try_from(zipf.rank(&mut random)).unwrap()] += 1;
            }
            let there = usize::try_from(bound).unwrap();
            assert!(counts[there..].iter().all(|count| *count == 0) && counts[0] >= counts[there - 1]);
        }
    }

    #[test]
    fn uniform_numbers_are_uniform() {
        let (mut random, mut counts) = (Random::new(11), [0_u32; 100]);
        for _ in 0..DRAWS {
            counts[usize::try_from(random.below(100)).unwrap()] += 1;
        }
        // 99 degrees of freedom: 149 is passed by one run in a thousand, and this run is always the same.
        assert!(chi_square(&counts, &[0.01; 100]) < 149.0);
    }

    #[test]
    fn latest_reads_what_was_inserted_last() {
        let (generator, mut random) = (Generator::new(Workload::D, 1000), Random::new(5));
        let near = (0..DRAWS).filter(|_| generator.record(1999, &mut random) > 1989).count();
        let share = f64::from(u32::try_from(near).unwrap()) / f64::from(DRAWS);
        assert!((share / (zeta(10) / zeta(1000)) - 1.0).abs() < 0.06, "{share}");
    }

    #[test]
    fn what_is_popular_lies_anywhere_among_the_keys() {
        let mut keys: Vec<u64> = (0..1000).map(scatter).collect();
        let popular: Vec<u64> = keys[..8].to_vec();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), 1000, "two records have one key");
        let mut places: Vec<usize> = popular.iter().map(|key| keys.binary_search(key).unwrap()).collect();
        places.sort_unstable();
        assert!(places.windows(2).all(|pair| pair[1] - pair[0] > 1), "{places:?}");
    }
}
