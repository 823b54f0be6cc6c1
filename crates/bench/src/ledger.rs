//! What must be on the array: the version of the last acknowledged write of every unit.
//!
//! A *unit* is the range of one request: `size` bytes at a multiple of `size` from the start of a region.
//! Every sector of a unit begins with its own offset, the version and the writer's number; the rest is the
//! writer's body, which never changes. So a sector that went elsewhere, is of another time, or is torn shows.
//!
//! No two writes of one unit are under way at a time: random clients own disjoint units, and a sequential
//! stream comes round to a unit only after all others. So the last acknowledged version is what must be read.
//! A thread that is off its CPU for a whole round of the stream is *overtaken*: the next write of its unit
//! began before its own was acknowledged. Either may be what stays, and both are right there. That holds for
//! the unit's last write alone: a write that was acknowledged before the last one began is never right.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use crate::{arguments::Pattern, rng::Rng};

/// Bytes that carry a mark of their own.
const SECTOR: usize = 512;
/// Bytes of a mark.
pub(crate) const MARK: usize = 16;

/// A part of the array that is written by clients of one kind.
pub(crate) struct Region {
    /// First byte in the array.
    pub(crate) start: u64,
    /// Bytes of a unit.
    pub(crate) unit_bytes: u64,
    /// By unit: the version that was acknowledged last, 0 if there is none.
    versions: Box<[AtomicU32]>,
    /// How many clients write here.
    clients: u64,
    pattern: Pattern,
    /// The next write of the sequential stream.
    stream: AtomicU64,
    /// Writes that were overtaken, by unit: their versions, and the latest version of the unit that had begun
    /// when each of them was acknowledged.
    overtaken: Mutex<BTreeMap<usize, BTreeMap<u32, u32>>>,
    /// The next read of the sequential stream.
    read_stream: AtomicU64,
    /// The units that are read, if not all.
    lost: Vec<u64>,
    /// Draws a client's unit by Zipf's law.
    zipf: Zipf,
}

/// The version of what [`Region::fill`] writes.
pub(crate) const FILLED: u32 = 1;

/// One write to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    unit: usize,
    /// In the array.
    pub(crate) offset: u64,
    version: u32,
}

/// What a read must find.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expected {
    offset: u64,
    /// That had been acknowledged when it began.
    version: u32,
    pattern: Pattern,
}

impl Expected {
    /// What is wrong with a unit that was read while others may have written it: in each sector stand its
    /// place and no older version. Bodies aren't looked at: of a write that is under way memory has any part.
    pub(crate) fn check(&self, bytes: &[u8]) -> Result<(), String> {
        for (sector, at) in bytes.chunks_exact(SECTOR).zip((self.offset..).step_by(SECTOR)) {
            let (found, version, _) = identity(sector);
            if found != at {
                return Err(format!("a read of the sector at byte {at} found that of byte {found}"));
            }
            // A stream may be overtaken by itself.
            if version < self.version && self.pattern != Pattern::Sequential {
                let last = self.version;
                return Err(format!(
                    "a read of the sector at byte {at} found version {version}, {last} was acknowledged"
                ));
            }
        }
        Ok(())
    }
}

/// Writes that were acknowledged on one shard and not entered yet. A store to a cold table for each write
/// would be paid for by the next locked instruction, which the engine has and the straight-line loop has not.
pub(crate) struct Acknowledged(Vec<Target>);

impl Acknowledged {
    const ROOM: usize = 512;

    pub(crate) fn new() -> Self {
        Self(Vec::with_capacity(Self::ROOM))
    }

    /// Notes that `target` of `region`, always the same, was acknowledged.
    pub(crate) fn note(&mut self, region: &Region, target: Target) {
        if self.0.len() == Self::ROOM {
            region.enter(self);
        }
        if region.pattern == Pattern::Sequential {
            region.look_for_overtaken(target);
        }
        self.0.push(target);
    }
}

impl Region {
    /// The units that fit into `start..end`, for `clients` clients.
    pub(crate) fn new(start: u64, end: u64, unit_bytes: u64, clients: u64, pattern: Pattern) -> Self {
        let units = Self::units_of(end - start, unit_bytes, clients);
        let versions = (0..units).map(|_| AtomicU32::new(0)).collect();
        let (stream, read_stream) = (AtomicU64::new(0), AtomicU64::new(0));
        let (lost, zipf) = (Vec::new(), Zipf::below(units / clients));
        let overtaken = Mutex::new(BTreeMap::new());
        Self { start, unit_bytes, versions, clients, pattern, stream, overtaken, read_stream, lost, zipf }
    }

    /// How many units of `unit_bytes` there are in so many bytes: each client has as many as any other.
    pub(crate) fn units_of(bytes: u64, unit_bytes: u64, clients: u64) -> u64 {
        bytes / unit_bytes / clients * clients
    }

    /// Bytes of memory for each unit, at most.
    pub(crate) fn bytes_per_unit(pattern: Pattern) -> u64 {
        let listed = if pattern == Pattern::Lost { size_of::<u64>() } else { 0 };
        (size_of::<AtomicU32>() + listed) as u64
    }

    /// Has [`Pattern::Lost`] read the units for which `is_lost` holds; it gets a unit's offset in the array.
    pub(crate) fn read_lost(&mut self, is_lost: impl Fn(u64) -> bool) {
        let units = (0..self.versions.len()).filter(|&unit| is_lost(self.offset(unit)));
        self.lost = units.map(|unit| unit as u64).collect();
    }

    /// Makes `units`, which lie side by side in `buffer` and in the array, what `writer` writes first of all.
    pub(crate) fn fill(&self, units: std::ops::Range<usize>, buffer: &mut [u8], writer: u32) {
        let unit_bytes = usize::try_from(self.unit_bytes).unwrap_or(usize::MAX);
        for (unit, bytes) in units.zip(buffer.chunks_exact_mut(unit_bytes)) {
            stamp(bytes, Target { unit, offset: self.offset(unit), version: FILLED }, writer);
        }
    }

    /// Enters that every unit holds what [`Region::fill`] made.
    pub(crate) fn enter_filled(&self) {
        self.versions.iter().for_each(|version| version.store(FILLED, Ordering::Relaxed));
        // The stream's first round was this one.
        self.stream.store(self.versions.len() as u64, Ordering::Relaxed);
    }

    /// How many units there are.
    pub(crate) fn units(&self) -> usize {
        self.versions.len()
    }

    /// Where `client` writes next. `count` are its writes so far.
    pub(crate) fn next_write(&self, client: u64, count: &mut u32, rng: &mut Rng) -> Target {
        let units = self.versions.len() as u64;
        let (unit, version) = match self.pattern {
            Pattern::Random | Pattern::Lost | Pattern::Zipf => {
                *count = count.wrapping_add(1).max(1);
                let unit = match self.pattern {
                    Pattern::Zipf => self.zipf_unit(client, rng),
                    _ => rng.below(units / self.clients) * self.clients + client,
                };
                (unit, *count)
            }
            Pattern::Sequential => {
                let position = self.stream.fetch_add(1, Ordering::SeqCst);
                (position % units, low(position / units).wrapping_add(1).max(1))
            }
        };
        Target { unit: index(unit), offset: self.start + unit * self.unit_bytes, version }
    }

    /// What a read of the unit at `offset` must find that begins now: nothing is known of a unit that was
    /// never written.
    pub(crate) fn expected(&self, offset: u64) -> Option<Expected> {
        let version = self.version(index((offset - self.start) / self.unit_bytes));
        (version > 0).then_some(Expected { offset, version, pattern: self.pattern })
    }

    /// Where a client reads next.
    pub(crate) fn next_read(&self, rng: &mut Rng) -> u64 {
        let units = self.versions.len() as u64;
        let unit = match self.pattern {
            Pattern::Random => rng.below(units),
            Pattern::Zipf => {
                let client = rng.below(self.clients);
                self.zipf_unit(client, rng)
            }
            Pattern::Lost => self.lost[index(rng.below(self.lost.len() as u64))],
            Pattern::Sequential => self.read_stream.fetch_add(1, Ordering::Relaxed) % units,
        };
        self.start + unit * self.unit_bytes
    }

    /// A unit of `client` by Zipf's law. What is hottest of one client lies apart from what is of another.
    fn zipf_unit(&self, client: u64, rng: &mut Rng) -> u64 {
        let own = (self.zipf.draw(rng) + client * Zipf::APART) % self.zipf.bound;
        own * self.clients + client
    }

    /// Enters what was acknowledged.
    pub(crate) fn enter(&self, acknowledged: &mut Acknowledged) {
        for target in acknowledged.0.drain(..) {
            let version = &self.versions[target.unit];
            match self.pattern {
                // Only one client writes the unit.
                Pattern::Random | Pattern::Lost | Pattern::Zipf => {
                    version.store(target.version, Ordering::Relaxed);
                }
                // A shard may enter an earlier round after another has entered a later one.
                Pattern::Sequential => {
                    version.fetch_max(target.version, Ordering::Relaxed);
                }
            }
        }
    }

    /// Enters that `target`, just acknowledged, was overtaken by the stream, if it was.
    fn look_for_overtaken(&self, target: Target) {
        let (units, unit) = (self.versions.len() as u64, target.unit as u64);
        // At least that of the target itself has begun.
        let begun = self.stream.load(Ordering::SeqCst).saturating_sub(unit).div_ceil(units);
        let latest = low(begun);
        if latest > target.version {
            let mut overtaken = self.overtaken.lock().unwrap_or_else(PoisonError::into_inner);
            overtaken.entry(target.unit).or_default().insert(target.version, latest);
        }
    }

    /// The version that unit `unit` must have, 0 if it was never written.
    pub(crate) fn version(&self, unit: usize) -> u32 {
        self.versions[unit].load(Ordering::Relaxed)
    }

    /// The versions that unit `unit` may have: the last one, and those of writes that weren't acknowledged
    /// when that began.
    pub(crate) fn versions(&self, unit: usize) -> Vec<u32> {
        let last = self.version(unit);
        let overtaken = self.overtaken.lock().unwrap_or_else(PoisonError::into_inner);
        let beside = overtaken.get(&unit).into_iter().flatten();
        let beside = beside.filter(|&(&version, &latest)| version != last && latest >= last);
        std::iter::once(last).chain(beside.map(|(version, _)| *version)).collect()
    }

    /// The array offset of unit `unit`.
    pub(crate) fn offset(&self, unit: usize) -> u64 {
        self.start + unit as u64 * self.unit_bytes
    }
}

/// The body of everything that writer `writer` writes.
pub(crate) fn fill(buffer: &mut [u8], writer: u32) {
    let mut rng = Rng::new(u64::from(writer) + 1);
    for word in buffer.chunks_mut(8) {
        word.copy_from_slice(&rng.next().to_le_bytes()[..word.len()]);
    }
}

/// Marks a filled buffer as the content of `target`.
pub(crate) fn stamp(buffer: &mut [u8], target: Target, writer: u32) {
    mark(buffer, target.offset, target.version, writer);
}

/// Marks each sector of a filled buffer that is written at `offset`.
pub(crate) fn mark(buffer: &mut [u8], mut offset: u64, version: u32, writer: u32) {
    let identity = u64::from(version) << 32 | u64::from(writer);
    for sector in buffer.chunks_exact_mut(SECTOR) {
        sector[..8].copy_from_slice(&offset.to_le_bytes());
        sector[8..MARK].copy_from_slice(&identity.to_le_bytes());
        offset += SECTOR as u64;
    }
}

/// What a sector's mark says: its place, the version and the writer.
pub(crate) fn identity(sector: &[u8]) -> (u64, u32, u32) {
    let word = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&sector[at..at + 8]);
        u64::from_le_bytes(word)
    };
    (word(0), low(word(8) >> 32), low(word(8)))
}

/// What is wrong with the first wrong sector of a unit that was read back.
pub(crate) fn check(bytes: &[u8], offset: u64, versions: &[u32], bodies: &mut Bodies) -> Result<(), String> {
    for (number, sector) in bytes.chunks_exact(SECTOR).enumerate() {
        let expected = offset + (number * SECTOR) as u64;
        let (found, of, writer) = identity(sector);
        if found != expected {
            return Err(format!(
                "the sector at byte {expected} has the content of the sector at byte {found}"
            ));
        }
        if !versions.contains(&of) {
            let last = versions.iter().max().copied().unwrap_or(0);
            return Err(format!(
                "sector at byte {expected} is of version {of}, the last acknowledged is {last}"
            ));
        }
        let at = number * SECTOR;
        if sector[MARK..] != bodies.of(writer, bytes.len())[at + MARK..at + SECTOR] {
            return Err(format!("sector at byte {expected} has its mark and another's body"));
        }
    }
    Ok(())
}

/// The bodies of the writers, made when first asked for.
#[derive(Default)]
pub(crate) struct Bodies(std::collections::BTreeMap<u32, Vec<u8>>);

impl Bodies {
    pub(crate) fn of(&mut self, writer: u32, length: usize) -> &[u8] {
        self.0.entry(writer).or_insert_with(|| {
            let mut body = vec![0; length];
            fill(&mut body, writer);
            body
        })
    }
}

/// Numbers below a bound, the one of rank r with a probability that goes with 1 / r^0.99, YCSB's exponent (of
/// the first ranks less, because ranks are drawn as continuous). The ranks are scattered, so that what is
/// asked for often doesn't lie side by side.
pub(crate) struct Zipf {
    bound: u64,
    /// The distribution's mass, as the integral over continuous ranks has it.
    mass: f64,
}

impl Zipf {
    /// One minus the exponent.
    const ROOT: f64 = 0.01;
    /// A prime beyond every bound: a multiple of it, by the bound, takes each place once.
    const SCATTER: u64 = 4_294_967_291;
    /// A prime near the golden section of 2^32: the first multiples of it, by any bound, lie far apart.
    const APART: u64 = 2_654_435_761;

    pub(crate) fn below(bound: u64) -> Self {
        #[expect(clippy::cast_precision_loss, reason = "units are fewer than 2^53")]
        let mass = ((bound + 1) as f64).powf(Self::ROOT) - 1.0;
        Self { bound, mass }
    }

    /// A rank, from 0.
    pub(crate) fn rank(&self, rng: &mut Rng) -> u64 {
        let rank = (rng.uniform() * self.mass + 1.0).powf(1.0 / Self::ROOT);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a rank is 1 or more")]
        let rank = (rank as u64 - 1).min(self.bound - 1);
        rank
    }

    pub(crate) fn draw(&self, rng: &mut Rng) -> u64 {
        let place = u128::from(self.rank(rng)) * u128::from(Self::SCATTER) % u128::from(self.bound);
        u64::try_from(place).unwrap_or_else(|_| unreachable!("it is below the bound"))
    }
}

fn low(word: u64) -> u32 {
    #[expect(clippy::cast_possible_truncation, reason = "the low half is wanted")]
    let low = word as u32;
    low
}

fn index(unit: u64) -> usize {
    usize::try_from(unit).unwrap_or_else(|_| unreachable!("units are indices of a table in memory"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: usize = 4096;

    #[test]
    fn random_clients_own_disjoint_units_inside_their_region() {
        let region = Region::new(1 << 20, 2 << 20, UNIT as u64, 3, Pattern::Random);
        let mut rng = Rng::new(1);
        for client in 0..3 {
            let mut count = 0;
            for _ in 0..1000 {
                let target = region.next_write(client, &mut count, &mut rng);
                assert_eq!(target.unit as u64 % 3, client);
                assert!(target.offset >= 1 << 20 && target.offset + UNIT as u64 <= 2 << 20);
            }
            assert_eq!(count, 1000);
        }
    }

    #[test]
    fn by_zipfs_law_few_units_get_most_requests_and_every_unit_some() {
        const UNITS: u64 = 300;
        const DRAWS: u64 = 300_000;
        let region = Region::new(0, UNITS * UNIT as u64, UNIT as u64, 3, Pattern::Zipf);
        let (mut rng, mut counts) = (Rng::new(1), [0, 0, 0]);
        let (mut written, mut read) = (vec![0_u64; 300], vec![0_u64; 300]);
        for number in 0..DRAWS {
            let client = number % 3;
            let unit = region.next_write(client, &mut counts[index(client)], &mut rng).unit;
            assert_eq!(unit as u64 % 3, client);
            written[unit] += 1;
            read[index(region.next_read(&mut rng) / UNIT as u64)] += 1;
        }
        for mut of in [written, read] {
            // The hottest three are each client's own.
            of.sort_unstable_by(|a, b| b.cmp(a));
            assert!(of[299] > 0, "a unit is never asked for");
            let sum = |units: usize| of[..units].iter().sum::<u64>() * 100 / DRAWS;
            assert!((10..25).contains(&sum(3)) && (45..65).contains(&sum(30)), "{} {}", sum(3), sum(30));
        }
    }

    #[test]
    fn by_zipfs_law_the_hottest_units_of_all_clients_lie_apart() {
        const CLIENTS: u64 = 32;
        let region = Region::new(0, CLIENTS * 500 * UNIT as u64, UNIT as u64, CLIENTS, Pattern::Zipf);
        let (mut rng, mut counts) = (Rng::new(1), [0; 32]);
        let mut written = vec![0_u64; region.units()];
        for number in 0..CLIENTS * 2000 {
            let client = number % CLIENTS;
            written[region.next_write(client, &mut counts[index(client)], &mut rng).unit] += 1;
        }
        let mut hottest: Vec<usize> = (0..written.len()).collect();
        hottest.sort_unstable_by_key(|&unit| std::cmp::Reverse(written[unit]));
        let chunks: std::collections::BTreeSet<usize> =
            hottest[..32].iter().map(|unit| (unit * UNIT) >> 16).collect();
        assert!(chunks.len() > 24, "32 hot units in {} chunks of 64 KiB", chunks.len());
    }

    #[test]
    fn a_stream_takes_unit_after_unit_and_begins_again_with_the_next_version() {
        let region = Region::new(0, 4 * UNIT as u64, UNIT as u64, 2, Pattern::Sequential);
        let mut rng = Rng::new(1);
        let mut next = || region.next_write(0, &mut 0, &mut rng);
        let first: Vec<u64> = (0..4).map(|_| next().offset).collect();
        assert_eq!(first, [0, 4096, 8192, 12288]);
        assert_eq!(next(), Target { unit: 0, offset: 0, version: 2 });
    }

    #[test]
    fn what_was_filled_is_told_from_what_was_written_later() {
        let region = Region::new(0, 4 * UNIT as u64, UNIT as u64, 2, Pattern::Sequential);
        let mut bytes = vec![0; 2 * UNIT];
        bytes.chunks_exact_mut(UNIT).for_each(|unit| fill(unit, 9));
        region.fill(2..4, &mut bytes, 9);
        region.enter_filled();
        assert!((0..4).all(|unit| region.version(unit) == FILLED));
        let second = &bytes[UNIT..];
        assert_eq!(check(second, 3 * UNIT as u64, &[FILLED], &mut Bodies::default()), Ok(()));
        let mut rng = Rng::new(1);
        assert_eq!(region.next_write(0, &mut 0, &mut rng), Target { unit: 0, offset: 0, version: 2 });
        let reads: Vec<u64> = (0..5).map(|_| region.next_read(&mut rng)).collect();
        assert_eq!(reads, [0, 4096, 8192, 12288, 0], "reads have a stream of their own");
    }

    #[test]
    fn what_is_entered_late_does_not_hide_what_was_written_later() {
        let region = Region::new(0, 4 * UNIT as u64, UNIT as u64, 2, Pattern::Sequential);
        let (mut here, mut there) = (Acknowledged::new(), Acknowledged::new());
        let target = |version| Target { unit: 1, offset: UNIT as u64, version };
        here.note(&region, target(1));
        there.note(&region, target(2));
        region.enter(&mut there);
        region.enter(&mut here);
        assert_eq!(region.version(1), 2);
    }

    #[test]
    fn a_write_that_the_stream_has_overtaken_may_be_what_stays() {
        let region = Region::new(0, 4 * UNIT as u64, UNIT as u64, 2, Pattern::Sequential);
        let (mut acknowledged, mut rng) = (Acknowledged::new(), Rng::new(1));
        let mut next = || region.next_write(0, &mut 0, &mut rng);
        let slow = next();
        for _ in 0..5 {
            acknowledged.note(&region, next());
        }
        acknowledged.note(&region, slow);
        region.enter(&mut acknowledged);
        assert_eq!(region.versions(0), [2, 1], "both were under way at once");
        assert_eq!(region.versions(1), [2], "the write before was acknowledged in time");
        assert_eq!(region.versions(2), [1]);
    }

    #[test]
    fn what_was_acknowledged_before_the_last_write_began_is_never_right() {
        let region = Region::new(0, 4 * UNIT as u64, UNIT as u64, 2, Pattern::Sequential);
        let (mut acknowledged, mut rng) = (Acknowledged::new(), Rng::new(1));
        let mut next = || region.next_write(0, &mut 0, &mut rng);
        let round: Vec<Target> = (0..12).map(|_| next()).collect();
        let [first, second, third] = [round[0], round[4], round[8]];
        // All three of the first unit are under way at once.
        acknowledged.note(&region, second);
        acknowledged.note(&region, first);
        acknowledged.note(&region, third);
        region.enter(&mut acknowledged);
        assert_eq!(region.versions(0), [3, 1, 2]);
        let (mut late, fourth) = (Acknowledged::new(), next());
        late.note(&region, fourth);
        region.enter(&mut late);
        assert_eq!(region.versions(0), [4], "it stands although older ones were overtaken once");
    }

    #[test]
    fn a_read_under_load_finds_its_own_place_and_nothing_old() {
        let region = Region::new(UNIT as u64, 9 * UNIT as u64, UNIT as u64, 2, Pattern::Random);
        assert!(region.expected(3 * UNIT as u64).is_none(), "it was never written");
        let mut acknowledged = Acknowledged::new();
        let offset = 3 * UNIT as u64;
        acknowledged.note(&region, Target { unit: 2, offset, version: 7 });
        region.enter(&mut acknowledged);
        let verdict = |place: u64, version| {
            let mut bytes = vec![0; UNIT];
            mark(&mut bytes[UNIT / 2..], place + UNIT as u64 / 2, version, 1);
            mark(&mut bytes[..UNIT / 2], offset, 8, 1);
            region.expected(offset).unwrap().check(&bytes)
        };
        assert_eq!((verdict(offset, 7), verdict(offset, 9)), (Ok(()), Ok(())));
        assert!(verdict(offset, 6).unwrap_err().contains("7 was acknowledged"));
        assert!(verdict(offset + 512, 8).unwrap_err().contains("found that of byte"));
    }

    #[test]
    fn a_sector_that_is_old_elsewhere_or_torn_is_found() {
        let target = Target { unit: 5, offset: 5 * UNIT as u64, version: 7 };
        let mut bytes = vec![0; UNIT];
        fill(&mut bytes, 3);
        stamp(&mut bytes, target, 3);
        let verdict = |bytes: &[u8]| check(bytes, target.offset, &[7], &mut Bodies::default());
        assert_eq!(verdict(&bytes), Ok(()));
        assert!(
            check(&bytes, target.offset, &[8], &mut Bodies::default()).unwrap_err().contains("version 7")
        );
        assert!(
            check(&bytes, 0, &[7], &mut Bodies::default())
                .unwrap_err()
                .contains("has the content of the sector at")
        );
        for at in [2048, 2048 + 9, 2048 + 100, UNIT - 1] {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x40;
            assert!(verdict(&wrong).is_err(), "byte {at}");
        }
    }
}
