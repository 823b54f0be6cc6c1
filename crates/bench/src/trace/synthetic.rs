//! Workloads of our own making, after what is published of six traces.
//!
//! The numbers are those of StRAID (Wang et al., USENIX ATC 2022), Table 4: how many writes and reads there
//! are, and how long they are on average. Of `prxy_0` section 5.4 says two things more: 8.02 million of the
//! writes are sequential, and 0.51 million have 40 KB or more. (It calls these 9.5 %, which 0.51 of 12.14
//! million are not. The counts are taken, because those of the sequential writes agree with their share.)
//!
//! Nothing else is published, so the rest is chosen here: how sizes are distributed, where requests go, in
//! which order reads and writes come. Such a trace is no substitute for the one after which it is called.
//!
//! Table 4's KB and GB are powers of two: counts times means give its volumes only then, to half a percent.

use clap::ValueEnum;
use serde::Serialize;

use super::{Action, Format, Request, Trace};
use crate::rng::Rng;

const SECTOR: u64 = 512;
/// Sectors of a KiB.
const SECTORS: f64 = 2.0;
/// Random places are multiples of a usual file system's block.
const BLOCK: u64 = 4096;
/// Sectors of the large writes of `prxy_0`: more of them than this is published as "or larger".
const LARGE: u32 = 80;

/// A trace of Table 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
pub enum Workload {
    /// Alibaba's, of Pangu.
    #[serde(rename = "pangu-a")]
    PanguA,
    /// Alibaba's, of Pangu.
    #[serde(rename = "pangu-b")]
    PanguB,
    /// Of MSR Cambridge.
    #[value(name = "prxy_0")]
    #[serde(rename = "prxy_0")]
    Prxy0,
    /// Of MSR Cambridge.
    #[value(name = "prn_0")]
    #[serde(rename = "prn_0")]
    Prn0,
    /// Of Filebench.
    #[serde(rename = "varmail")]
    Varmail,
    /// Of Filebench.
    #[serde(rename = "fileserver")]
    Fileserver,
}

/// What is published of a trace, counts in millions.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Published {
    /// Writes.
    pub writes_millions: f64,
    /// Their mean size.
    pub write_kib: f64,
    /// Reads.
    pub reads_millions: f64,
    /// Their mean size.
    pub read_kib: f64,
    /// Writes that are sequential, if that is published.
    pub sequential_writes_millions: Option<f64>,
    /// Writes of 40 KiB or more, if that is published.
    pub large_writes_millions: Option<f64>,
}

/// A trace that is made.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Synthetic {
    /// After which one.
    pub workload: Workload,
    /// How many requests.
    pub requests: u32,
    /// The same seed makes the same requests.
    pub seed: u64,
    /// The requests, as a part of the published count.
    pub percent_of_published: f64,
    /// Where the numbers are from.
    pub source: &'static str,
    /// The numbers.
    pub published: Published,
    /// What is not published, and how it is here.
    pub chosen: &'static str,
}

impl Workload {
    /// As the paper calls it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::PanguA => "Pangu-A",
            Self::PanguB => "Pangu-B",
            Self::Prxy0 => "prxy_0",
            Self::Prn0 => "prn_0",
            Self::Varmail => "varmail",
            Self::Fileserver => "fileserver",
        }
    }

    /// The numbers of Table 4.
    fn published(self) -> Published {
        let (writes_millions, write_kib, reads_millions, read_kib) = match self {
            Self::PanguA => (1.89, 63.21, 0.24, 17.99),
            Self::PanguB => (2.44, 35.08, 0.30, 65.24),
            Self::Prxy0 => (12.14, 4.65, 0.38, 8.33),
            Self::Prn0 => (4.98, 9.67, 0.60, 22.84),
            Self::Varmail => (3.39, 12.13, 0.05, 114.05),
            Self::Fileserver => (1.19, 87.56, 0.47, 95.49),
        };
        let of_prxy_0 = |millions| (self == Self::Prxy0).then_some(millions);
        Published {
            writes_millions,
            write_kib,
            reads_millions,
            read_kib,
            sequential_writes_millions: of_prxy_0(8.02),
            large_writes_millions: of_prxy_0(0.51),
        }
    }

    fn chosen(self) -> &'static str {
        match self {
            Self::Prxy0 => {
                "sizes (large writes 40 KiB, others geometric in sectors), places (uniform over the device in steps of 4 KiB; \
                 a sequential write begins where the write before ended), order (shuffled), times (none)"
            }
            _ => {
                "sizes (geometric in sectors), places (uniform over the device in steps of 4 KiB, none sequential), order \
                 (shuffled), times (none)"
            }
        }
    }
}

impl Published {
    fn requests_millions(&self) -> f64 {
        self.writes_millions + self.reads_millions
    }
}

impl Synthetic {
    /// So many requests after one of the traces.
    pub(crate) fn new(workload: Workload, requests: u32, seed: u64) -> Self {
        let published = workload.published();
        Self {
            workload,
            requests,
            seed,
            percent_of_published: f64::from(requests) / (published.requests_millions() * 1e4),
            source: "StRAID (USENIX ATC 2022), Table 4",
            published,
            chosen: workload.chosen(),
        }
    }

    /// The requests, on a device of `size` bytes. Sizes and kinds are the same on any device.
    pub(crate) fn trace(&self, size: u64) -> Trace {
        let Published { writes_millions, reads_millions, .. } = self.published;
        let mut rng = Rng::new(self.seed);
        let mut reads = Share::new(self.requests, reads_millions, self.published.requests_millions());
        let writes = self.requests - reads.hits;
        let mut sequential =
            Share::new(writes, self.published.sequential_writes_millions.unwrap_or(0.0), writes_millions);
        let large = self.published.large_writes_millions.unwrap_or(0.0);
        let mut is_large = Share::new(writes, large, writes_millions);
        let (read, write) = (self.published.read_kib * SECTORS, self.published.write_kib * SECTORS);
        // The mean of the others, so that all writes have the published one.
        let share = large / writes_millions;
        let write = (write - share * f64::from(LARGE)) / (1.0 - share);
        let mut end = 0;
        let mut draw = |_| {
            let (action, sectors, follows) = if reads.draw(&mut rng) {
                (Action::Read, geometric(&mut rng, read), false)
            } else {
                let follows = sequential.draw(&mut rng);
                let is_large = is_large.draw(&mut rng);
                // Drawn in any case, so that a seed's draws don't depend on what came of the last one.
                let sectors = geometric(&mut rng, write);
                (Action::Write, if is_large { LARGE.into() } else { sectors }, follows)
            };
            let length = sectors * SECTOR;
            let random = rng.below(size.saturating_sub(length) / BLOCK + 1) * BLOCK;
            let offset = if follows && end + length <= size { end } else { random };
            if action == Action::Write {
                end = offset + length;
            }
            Request { at_ns: 0, offset, length: u32::try_from(length).unwrap_or(u32::MAX), action }
        };
        let requests = (0..self.requests).map(&mut draw).collect();
        Trace { format: Format::Synthetic, requests, is_timed: false, skipped: 0 }
    }

    /// Bytes of the longest request.
    pub(crate) fn longest(&self) -> u32 {
        self.trace(0).longest()
    }
}

/// 1 or more, with this mean. Of all such distributions this one presumes least: it has the largest entropy.
fn geometric(rng: &mut Rng, mean: f64) -> u64 {
    let rest = (1.0 - rng.uniform()).ln() / (-mean.recip()).ln_1p();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is 0 or more, and 37 means at most"
    )]
    let rest = rest as u64;
    1 + rest
}

/// Things of which some are drawn: in any order, but exactly so many.
struct Share {
    left: u32,
    hits: u32,
}

impl Share {
    /// `part` of `whole`, for `count` things.
    fn new(count: u32, part: f64, whole: f64) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "no more than the count")]
        let hits = (f64::from(count) * part / whole).round() as u32;
        Self { left: count, hits }
    }

    fn draw(&mut self, rng: &mut Rng) -> bool {
        let is_hit = rng.below(self.left.into()) < self.hits.into();
        self.left -= 1;
        self.hits -= u32::from(is_hit);
        is_hit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 5 << 30;

    fn trace(workload: Workload, requests: u32) -> Trace {
        Synthetic::new(workload, requests, 1).trace(SIZE)
    }

    /// Whether a value is the other one, give or take so many percent of it.
    fn is_about(value: f64, other: f64, percent: f64) -> bool {
        (value - other).abs() <= other * percent / 100.0
    }

    /// How many requests there are of a kind, and the KiB of one on average.
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    fn of(trace: &Trace, action: Action) -> (f64, f64) {
        let lengths = trace.requests.iter().filter(|request| request.action == action);
        let (count, bytes) =
            lengths.fold((0_u64, 0), |(count, bytes), r| (count + 1, bytes + u64::from(r.length)));
        (count as f64, bytes as f64 / count as f64 / 1024.0)
    }

    #[test]
    fn counts_and_means_are_those_of_the_tables_volumes_in_powers_of_two() {
        let volumes =
            [(113.24, 4.06), (81.32, 18.61), (53.80, 3.05), (45.97, 13.12), (39.20, 5.38), (99.45, 42.37)];
        for (workload, (written, read)) in Workload::value_variants().iter().zip(volumes) {
            let published = workload.published();
            let check = |millions: f64, kib: f64, gib: f64| {
                // A count is rounded to 10,000. The table is half a percent off for Pangu-A even so.
                let (least, most) = ((millions - 0.005) * kib * 0.995, (millions + 0.005) * kib * 1.005);
                let volume = gib * 1.048_576;
                assert!((least..=most).contains(&volume), "{workload:?}: {least} {volume} {most}");
            };
            check(published.writes_millions, published.write_kib, written);
            check(published.reads_millions, published.read_kib, read);
        }
    }

    #[test]
    fn a_large_sample_has_the_published_read_share_and_mean_sizes_in_whole_sectors() {
        for workload in Workload::value_variants() {
            let (trace, published) = (trace(*workload, 2_000_000), workload.published());
            assert_eq!(
                (trace.format, trace.requests.len(), trace.is_timed),
                (Format::Synthetic, 2_000_000, false)
            );
            assert!(
                trace.requests.iter().all(|request| request.length > 0 && request.length.is_multiple_of(512))
            );
            let inside = |r: &Request| r.offset.is_multiple_of(512) && r.offset + u64::from(r.length) <= SIZE;
            assert!(trace.requests.iter().all(inside), "{workload:?}");
            let ((reads, read_kib), (_, write_kib)) = (of(&trace, Action::Read), of(&trace, Action::Write));
            let share = published.reads_millions / published.requests_millions();
            assert!(is_about(reads / 2e6, share, 0.01), "{workload:?}: {reads}");
            assert!(is_about(read_kib, published.read_kib, 1.0), "{workload:?}: {read_kib} KiB read");
            assert!(is_about(write_kib, published.write_kib, 1.0), "{workload:?}: {write_kib} KiB written");
            // The first half has reads as often as the second.
            let half = trace.requests[..1_000_000].iter().filter(|r| r.action == Action::Read).count();
            assert!(
                is_about(f64::from(u32::try_from(half).unwrap()), reads / 2.0, 2.0),
                "{workload:?}: {half}"
            );
        }
    }

    /// The share of writes that begin where the one before ended.
    #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^53")]
    fn sequential(trace: &Trace) -> f64 {
        let writes: Vec<_> = trace.requests.iter().filter(|r| r.action == Action::Write).collect();
        let follows = writes.windows(2).filter(|w| w[0].offset + u64::from(w[0].length) == w[1].offset);
        follows.count() as f64 / writes.len() as f64
    }

    #[test]
    fn of_prxy_0_the_sequential_and_the_large_writes_are_as_many_as_published() {
        let made = trace(Workload::Prxy0, 1_000_000);
        let share = sequential(&made);
        assert!(is_about(share, 0.66, 1.0), "{share}");
        let (writes, _) = of(&made, Action::Write);
        let is_large =
            |r: &&Request| r.action == Action::Write && u64::from(r.length) >= u64::from(LARGE) * SECTOR;
        let large = f64::from(u32::try_from(made.requests.iter().filter(is_large).count()).unwrap());
        assert!(is_about(large / writes, 0.51 / 12.14, 1.0), "{large} of {writes}");
        for workload in Workload::value_variants().iter().filter(|other| **other != Workload::Prxy0) {
            let share = sequential(&trace(*workload, 100_000));
            assert!(share < 0.001, "{workload:?}: {share}");
        }
    }

    #[test]
    fn a_seed_makes_the_same_requests_and_another_one_others() {
        let made = |seed, size| Synthetic::new(Workload::PanguA, 1000, seed).trace(size).requests;
        assert_eq!(made(7, SIZE), made(7, SIZE));
        assert_ne!(made(7, SIZE), made(8, SIZE));
        let kinds = |requests: Vec<Request>| -> Vec<_> {
            requests.into_iter().map(|request| (request.action, request.length)).collect()
        };
        assert_eq!(kinds(made(7, SIZE)), kinds(made(7, 1 << 20)), "only places depend on the device");
        assert_eq!(Synthetic::new(Workload::PanguA, 1, 7).trace(0).requests.len(), 1);
    }
}
