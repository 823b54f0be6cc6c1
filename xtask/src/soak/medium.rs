//! A disk in memory that forgets at a power cut what was not flushed.
//!
//! Beside the bytes that a read sees it keeps what is durable, and for each sector the versions written
//! since. NBD's rules: a flush makes durable what was answered before the flush came; a forced write (FUA)
//! makes itself durable. What was not answered yet is not promised to either.
//!
//! At a power cut each sector that isn't durable becomes, by the dice, any of its versions or what it was
//! before: so writes are lost, torn at 512 bytes, and survive in another order than they came in.

use std::collections::{BTreeMap, BTreeSet};

use crate::random::Random;

/// Bytes of a sector, the unit that is written whole or not.
pub const SECTOR: usize = 512;

/// What a sector was made by one write.
#[derive(Clone)]
struct Version {
    write: u64,
    bytes: [u8; SECTOR],
}

/// What the medium did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Writes, forced ones included.
    pub writes: u64,
    /// Forced writes.
    pub forced: u64,
    /// Flushes.
    pub flushes: u64,
    /// Sectors that were not durable at a power cut.
    pub sectors_at_stake: u64,
    /// Of these, those that are not what they were last written to.
    pub sectors_lost: u64,
}

/// See the module. Offsets and lengths are bytes, multiples of [`SECTOR`], within the disk.
pub struct Medium {
    /// What a read sees.
    current: Vec<u8>,
    durable: Vec<u8>,
    /// Versions newer than the durable one by sector, oldest first.
    pending: BTreeMap<usize, Vec<Version>>,
    next_write: u64,
    unanswered: BTreeSet<u64>,
    /// The defect that the control run looks for: flushes and forced writes are answered, and nothing is
    /// done.
    pub ignores_flushes: bool,
    counters: Counters,
}

impl Medium {
    /// A disk that holds these bytes, all durable.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self {
            durable: bytes.clone(),
            current: bytes,
            pending: BTreeMap::new(),
            next_write: 0,
            unanswered: BTreeSet::new(),
            ignores_flushes: false,
            counters: Counters::default(),
        }
    }

    /// Its bytes.
    pub fn size(&self) -> usize {
        self.current.len()
    }

    /// What it holds now.
    pub fn bytes(&self) -> &[u8] {
        &self.current
    }

    /// Replaces everything, durably; the counters go on.
    pub fn load(&mut self, bytes: Vec<u8>) {
        let (ignores_flushes, counters) = (self.ignores_flushes, self.counters);
        *self = Self { ignores_flushes, counters, ..Self::new(bytes) };
    }

    /// What it did.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Fills `out` from `offset`.
    pub fn read(&self, offset: usize, out: &mut [u8]) {
        out.copy_from_slice(&self.current[offset..offset + out.len()]);
    }

    /// Begins a write, which reads see at once; gives its number for [`Medium::answer_write`].
    pub fn write(&mut self, offset: usize, data: &[u8]) -> u64 {
        let write = self.next_write;
        self.next_write += 1;
        self.counters.writes += 1;
        self.unanswered.insert(write);
        self.current[offset..offset + data.len()].copy_from_slice(data);
        for (sector, part) in (offset / SECTOR..).zip(data.chunks_exact(SECTOR)) {
            let mut bytes = [0; SECTOR];
            bytes.copy_from_slice(part);
            self.pending.entry(sector).or_default().push(Version { write, bytes });
        }
        write
    }

    /// The write is about to be answered; a forced one becomes durable.
    pub fn answer_write(&mut self, write: u64, offset: usize, length: usize, forced: bool) {
        self.unanswered.remove(&write);
        if forced {
            self.counters.forced += 1;
            if !self.ignores_flushes {
                self.make_durable(offset / SECTOR..(offset + length) / SECTOR, |version| version == write);
            }
        }
    }

    /// A flush came: gives the writes that it covers, for [`Medium::answer_flush`].
    pub fn flush(&mut self) -> BTreeSet<u64> {
        self.counters.flushes += 1;
        let mut covered: BTreeSet<u64> =
            self.pending.values().flatten().map(|version| version.write).collect();
        covered.retain(|write| !self.unanswered.contains(write));
        covered
    }

    /// The flush is about to be answered: what it covers becomes durable.
    pub fn answer_flush(&mut self, covered: &BTreeSet<u64>) {
        if !self.ignores_flushes {
            self.make_durable(0..self.size() / SECTOR, |write| covered.contains(&write));
        }
    }

    /// In these sectors the newest version that is `covered` becomes durable, and older ones are forgotten.
    fn make_durable(&mut self, sectors: std::ops::Range<usize>, covered: impl Fn(u64) -> bool) {
        let mut emptied = Vec::new();
        for (sector, versions) in self.pending.range_mut(sectors) {
            if let Some(newest) = versions.iter().rposition(|version| covered(version.write)) {
                let start = sector * SECTOR;
                self.durable[start..start + SECTOR].copy_from_slice(&versions[newest].bytes);
                versions.drain(..=newest);
                if versions.is_empty() {
                    emptied.push(*sector);
                }
            }
        }
        for sector in emptied {
            self.pending.remove(&sector);
        }
    }

    /// The power fails: what is not durable survives by the dice.
    pub fn cut_power(&mut self, random: &mut Random) {
        // Some disks lose nearly all of it, some nearly nothing: uniform dice alone would never leave a whole
        // write.
        let kept_percent = [0, 10, 50, 90, 100][random.index(5)];
        let whole_writes = random.percent(50);
        let mut fates: BTreeMap<u64, bool> = BTreeMap::new();
        for (sector, versions) in std::mem::take(&mut self.pending) {
            let start = sector * SECTOR;
            let survivor = versions.iter().rfind(|version| {
                let torn = !whole_writes || random.percent(3);
                if torn {
                    return random.percent(kept_percent);
                }
                *fates.entry(version.write).or_insert_with(|| random.percent(kept_percent))
            });
            if let Some(version) = survivor {
                self.durable[start..start + SECTOR].copy_from_slice(&version.bytes);
            }
            self.counters.sectors_at_stake += 1;
            let is_lost = self.durable[start..start + SECTOR] != self.current[start..start + SECTOR];
            self.counters.sectors_lost += u64::from(is_lost);
        }
        self.current.copy_from_slice(&self.durable);
        self.unanswered.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(medium: &mut Medium, offset: usize, byte: u8, forced: bool) {
        let data = [byte; SECTOR * 4];
        let write = medium.write(offset, &data);
        medium.answer_write(write, offset, data.len(), forced);
    }

    fn flushed(medium: &mut Medium) {
        let covered = medium.flush();
        medium.answer_flush(&covered);
    }

    /// What sector 2 may be after a cut, over many cuts of the same history.
    fn outcomes(history: impl Fn(&mut Medium)) -> BTreeSet<u8> {
        let mut seen = BTreeSet::new();
        for seed in 0..200 {
            let mut medium = Medium::new(vec![0; SECTOR * 8]);
            history(&mut medium);
            medium.cut_power(&mut Random::new(seed));
            let sector = &medium.bytes()[SECTOR * 2..SECTOR * 3];
            assert!(sector.iter().all(|byte| *byte == sector[0]), "torn within a sector");
            seen.insert(sector[0]);
        }
        seen
    }

    #[test]
    fn what_was_flushed_or_forced_survives_and_the_rest_may_not() {
        assert_eq!(outcomes(|m| written(m, 0, 1, false)), [0, 1].into());
        assert_eq!(outcomes(|m| written(m, 0, 1, true)), [1].into());
        let flushed_once = |m: &mut Medium| {
            written(m, 0, 1, false);
            flushed(m);
        };
        assert_eq!(outcomes(flushed_once), [1].into());
        let written_twice_more = |m: &mut Medium| {
            flushed_once(m);
            written(m, SECTOR, 2, false);
            written(m, SECTOR, 3, false);
        };
        assert_eq!(outcomes(written_twice_more), [1, 2, 3].into());
    }

    #[test]
    fn a_flush_covers_only_what_was_answered_before_it_came() {
        let unanswered = |m: &mut Medium| {
            m.write(0, &[1; SECTOR * 4]);
            flushed(m);
        };
        assert_eq!(outcomes(unanswered), [0, 1].into());
        let answered_too_late = |m: &mut Medium| {
            let covered = m.flush();
            written(m, 0, 1, false);
            m.answer_flush(&covered);
        };
        assert_eq!(outcomes(answered_too_late), [0, 1].into());
    }

    #[test]
    fn writes_are_torn_between_sectors_but_reads_see_the_last() {
        let mut torn = false;
        for seed in 0..100 {
            let mut medium = Medium::new(vec![0; SECTOR * 8]);
            written(&mut medium, 0, 7, false);
            let mut seen = [0; SECTOR * 4];
            medium.read(0, &mut seen);
            assert_eq!(seen, [7; SECTOR * 4]);
            medium.cut_power(&mut Random::new(seed));
            let written = &medium.bytes()[..SECTOR * 4];
            torn |= written.contains(&0) && written.contains(&7);
        }
        assert!(torn);
    }
}
