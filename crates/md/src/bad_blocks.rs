//! The bad-block log: ranges of a member that can't be read (docs/formats.md section 6).
//!
//! Addresses are absolute sectors of the device: they include `data_offset`. On disk an entry is one 64-bit
//! word, 54 bits of start and 10 bits of length, at most 512, and all ones end the list. In memory the ranges
//! are sorted and merged, whatever their length; encoding cuts them into entries again.

use std::ops::Range;

use thiserror::Error;

use crate::units::{SECTOR_BYTES, SectorCount};

/// The most units an entry covers.
const ENTRY_UNITS_MAX: u64 = 512;
const ENTRY_BYTES: usize = 8;
const END: u64 = u64::MAX;
/// Starts have 54 bits.
const START_MAX: u64 = (1 << 54) - 1;

/// The ranges of one member that can't be read: absolute sectors, sorted, disjoint, merged.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct BadBlocks {
    ranges: Vec<Range<u64>>,
    shift: u8,
}

/// Why a log can't be read or written.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BadBlocksError {
    /// An entry of no length: damage.
    #[error("entry {index} of the bad-block log is damaged: {word:#018x}")]
    Entry {
        /// Which entry.
        index: usize,
        /// Its word.
        word: u64,
    },
    /// A unit that no device has.
    #[error("the bad-block log counts in units of 2^{0} sectors, which is not supported")]
    Shift(u8),
    /// The log is full: the member must be failed rather than a bad block forgotten.
    #[error("the bad-block log has room for {capacity} entries, but {needed} are needed")]
    Full {
        /// Entries there is room for.
        capacity: usize,
        /// Entries needed.
        needed: usize,
    },
    /// A range that the log's words can't hold.
    #[error("the range {0:?} is beyond what a bad-block log can record")]
    OutOfRange(Range<u64>),
}

impl BadBlocks {
    /// An empty log that counts in units of `1 << shift` sectors.
    pub fn new(shift: u8) -> Result<Self, BadBlocksError> {
        // A unit is at most a chunk in practice; nine is already 256 KiB.
        if shift > 9 { Err(BadBlocksError::Shift(shift)) } else { Ok(Self { ranges: Vec::new(), shift }) }
    }

    /// Reads a log's bytes. `shift` stands in the superblock. Entries may come in any order and overlap.
    pub fn decode(bytes: &[u8], shift: u8) -> Result<Self, BadBlocksError> {
        let mut log = Self::new(shift)?;
        for (index, word) in bytes.chunks_exact(ENTRY_BYTES).enumerate() {
            let word = word.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
            if word == END {
                break;
            }
            let (start, length) = (word >> 10, word & 0x3ff);
            if length == 0 || length > ENTRY_UNITS_MAX {
                return Err(BadBlocksError::Entry { index, word });
            }
            // 54 bits and a shift of at most 9 stay below 2^63, so the end doesn't overflow.
            log.add(start << shift..(start + length) << shift);
        }
        Ok(log)
    }

    /// The bytes of a log of `size`, with the list's end and all ones behind it.
    pub fn encode(&self, size: SectorCount) -> Result<Vec<u8>, BadBlocksError> {
        let byte_count =
            usize::try_from(size.0.saturating_mul(SECTOR_BYTES)).unwrap_or(usize::MAX).min(1 << 16);
        let entries = self.entries()?;
        let capacity = byte_count / ENTRY_BYTES;
        if entries.len() > capacity {
            return Err(BadBlocksError::Full { capacity, needed: entries.len() });
        }
        let mut bytes: Vec<u8> = entries.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.resize(byte_count, 0xff);
        Ok(bytes)
    }

    /// The log counts in units of `1 << shift` sectors.
    pub fn shift(&self) -> u8 {
        self.shift
    }

    /// Whether nothing is listed.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges, sorted and disjoint.
    pub fn ranges(&self) -> &[Range<u64>] {
        &self.ranges
    }

    /// The first listed sectors within `sectors`, or `None` if all of it can be read.
    pub fn first_overlap(&self, sectors: Range<u64>) -> Option<Range<u64>> {
        if sectors.is_empty() {
            return None;
        }
        let next = self.ranges.partition_point(|r| r.end <= sectors.start);
        let range = self.ranges.get(next).filter(|r| r.start < sectors.end)?;
        Some(range.start.max(sectors.start)..range.end.min(sectors.end))
    }

    /// How many of `sectors` are listed.
    pub fn count_within(&self, sectors: Range<u64>) -> u64 {
        let next = self.ranges.partition_point(|range| range.end <= sectors.start);
        let within = self.ranges[next..].iter().take_while(|range| range.start < sectors.end);
        within.map(|range| range.end.min(sectors.end) - range.start.max(sectors.start)).sum()
    }

    /// Lists `sectors`, rounded outwards to the log's unit.
    pub fn insert(&mut self, sectors: Range<u64>) -> Result<(), BadBlocksError> {
        if sectors.is_empty() {
            return Ok(());
        }
        let unit = 1 << self.shift;
        let rounded =
            sectors.start / unit * unit..sectors.end.checked_next_multiple_of(unit).unwrap_or(u64::MAX);
        if (rounded.end - 1) >> self.shift > START_MAX {
            return Err(BadBlocksError::OutOfRange(sectors));
        }
        self.add(rounded);
        Ok(())
    }

    /// Takes `sectors` off the list, after they were written. Units that `sectors` covers only in part stay.
    pub fn remove(&mut self, sectors: Range<u64>) {
        let unit = 1 << self.shift;
        let start = sectors.start.checked_next_multiple_of(unit).unwrap_or(u64::MAX);
        let gone = start..sectors.end / unit * unit;
        if gone.is_empty() {
            return;
        }
        let cut = |range: &Range<u64>| {
            [range.start..range.end.min(gone.start), range.start.max(gone.end)..range.end]
                .into_iter()
                .filter(|rest| !rest.is_empty())
        };
        self.ranges = self.ranges.iter().flat_map(cut).collect();
    }

    /// Adds a non-empty range of whole units, merging it with all that it touches.
    fn add(&mut self, mut range: Range<u64>) {
        let first = self.ranges.partition_point(|r| r.end < range.start);
        let last = self.ranges.partition_point(|r| r.start <= range.end);
        if let Some(touched) = self.ranges.get(first..last).filter(|t| !t.is_empty()) {
            range.start = range.start.min(touched[0].start);
            range.end = range.end.max(touched[touched.len() - 1].end);
        }
        self.ranges.splice(first..last, [range]);
    }

    fn entries(&self) -> Result<Vec<u64>, BadBlocksError> {
        let mut entries = Vec::new();
        for range in &self.ranges {
            let (mut start, end) = (range.start >> self.shift, range.end >> self.shift);
            while start < end {
                let length = (end - start).min(ENTRY_UNITS_MAX);
                if start > START_MAX {
                    return Err(BadBlocksError::OutOfRange(range.clone()));
                }
                entries.push(start << 10 | length);
                start += length;
            }
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: SectorCount = SectorCount(8);

    #[test]
    fn an_empty_log_is_all_ones() {
        let bytes = BadBlocks::new(0).unwrap().encode(SIZE).unwrap();
        assert_eq!(bytes, [0xff; 4096]);
        assert!(BadBlocks::decode(&bytes, 0).unwrap().is_empty());
    }

    #[test]
    fn ranges_longer_than_an_entry_are_cut_and_merged_again() {
        let mut log = BadBlocks::new(0).unwrap();
        log.insert(5000..6300).unwrap();
        let bytes = log.encode(SIZE).unwrap();
        assert_eq!(bytes[..8], ((5000u64 << 10) + 512).to_le_bytes());
        assert_eq!(bytes[16..24], (((5000u64 + 1024) << 10) + 276).to_le_bytes());
        assert_eq!(bytes[24..32], [0xff; 8]);
        assert_eq!(BadBlocks::decode(&bytes, 0).unwrap(), log);
    }

    #[test]
    fn listed_sectors_are_counted_within_any_range() {
        let mut log = BadBlocks::new(0).unwrap();
        for sectors in [10..20, 30..31, 40..50] {
            log.insert(sectors).unwrap();
        }
        for (sectors, count) in
            [(0..u64::MAX, 21), (0..10, 0), (12..15, 3), (19..41, 3), (45..45, 0), (50..60, 0)]
        {
            assert_eq!(log.count_within(sectors.clone()), count, "{sectors:?}");
        }
    }

    #[test]
    fn a_unit_is_listed_whole_and_removed_whole() {
        let mut log = BadBlocks::new(3).unwrap();
        log.insert(9..10).unwrap();
        assert_eq!(log.first_overlap(0..100), Some(8..16));
        log.remove(8..12);
        assert_eq!(
            log.first_overlap(0..100),
            Some(8..16),
            "the half of a unit that wasn't written is still bad"
        );
        log.remove(8..16);
        assert!(log.is_empty());
    }

    #[test]
    fn a_full_log_says_so_rather_than_forget() {
        let mut log = BadBlocks::new(0).unwrap();
        for index in 0..513 {
            log.insert(index * 2..index * 2 + 1).unwrap();
        }
        assert_eq!(log.encode(SIZE), Err(BadBlocksError::Full { capacity: 512, needed: 513 }));
        log.remove(0..1);
        assert_eq!(BadBlocks::decode(&log.encode(SIZE).unwrap(), 0).unwrap(), log);
    }

    #[test]
    fn damage_and_impossible_units_are_errors() {
        assert!(matches!(BadBlocks::decode(&[0; 8], 0), Err(BadBlocksError::Entry { index: 0, .. })));
        let too_long = ((1u64 << 10) + 513).to_le_bytes();
        assert!(matches!(BadBlocks::decode(&too_long, 0), Err(BadBlocksError::Entry { .. })));
        assert_eq!(BadBlocks::decode(&[], 200), Err(BadBlocksError::Shift(200)));
        let last = ((START_MAX << 10) + 512).to_le_bytes();
        assert!(!BadBlocks::decode(&last, 9).unwrap().is_empty(), "the highest address doesn't overflow");
        let mut log = BadBlocks::new(0).unwrap();
        assert!(matches!(log.insert(u64::MAX - 1..u64::MAX), Err(BadBlocksError::OutOfRange(_))));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        /// Against a plain set of sectors.
        #[test]
        fn the_log_lists_exactly_what_was_inserted_and_not_removed(
            steps in prop::collection::vec((any::<bool>(), 0u64..600, 1u64..700), 0..30),
            probe in (0u64..1300, 0u64..40),
        ) {
            let mut log = BadBlocks::new(0).unwrap();
            let mut plain = [false; 1300];
            for (insert, start, length) in steps {
                let sectors = start..start + length;
                plain[usize::try_from(start).unwrap()..][..usize::try_from(length).unwrap()].fill(insert);
                if insert { log.insert(sectors).unwrap() } else { log.remove(sectors) }
            }
            for (sector, bad) in (0u64..).zip(plain) {
                prop_assert_eq!(log.first_overlap(sector..sector + 1).is_some(), bad, "sector {}", sector);
            }
            let expected = (probe.0..probe.0 + probe.1).find(|s| plain.get(usize::try_from(*s).unwrap()) == Some(&true));
            prop_assert_eq!(log.first_overlap(probe.0..probe.0 + probe.1).map(|r| r.start), expected);
            prop_assert!(log.ranges().windows(2).all(|w| w[0].end < w[1].start), "sorted, and nothing left to merge");
            if let Ok(bytes) = log.encode(SIZE) {
                prop_assert_eq!(BadBlocks::decode(&bytes, 0).unwrap(), log);
            }
        }
    }

    /// Words of a log: nearly right ones, close together so that they touch, or at the highest addresses; the
    /// end; any.
    fn word() -> impl Strategy<Value = u64> {
        let entry = |(start, length): (u64, u64)| start << 10 | length;
        prop_oneof![
            8 => (0u64..3000, 0u64..=514).prop_map(entry),
            2 => (START_MAX - 600..=START_MAX, 1u64..=512).prop_map(entry),
            1 => Just(END),
            1 => any::<u64>(),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn any_bytes_are_an_error_or_a_log_that_lists_every_entry_and_can_be_written_back(
            words in prop::collection::vec(word(), 0..24),
            torn in prop::collection::vec(any::<u8>(), 0..ENTRY_BYTES),
            shift in prop_oneof![4 => 0u8..=9, 1 => any::<u8>()],
        ) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).chain(torn).collect();
            let listed = || words.iter().take_while(|word| **word != END);
            let is_entry = |word: &u64| (1..=ENTRY_UNITS_MAX).contains(&(word & 0x3ff));
            let decoded = BadBlocks::decode(&bytes, shift);
            prop_assert_eq!(decoded.is_ok(), shift <= 9 && listed().all(is_entry));
            let Ok(log) = decoded else { return Ok(()) };
            for word in listed() {
                let entry = (word >> 10) << shift..((word >> 10) + (word & 0x3ff)) << shift;
                prop_assert_eq!(log.first_overlap(entry.clone()), Some(entry));
            }
            match log.encode(SIZE) {
                Ok(bytes) => prop_assert_eq!(BadBlocks::decode(&bytes, shift).unwrap(), log),
                // Entries that merge at the very top, where no device has sectors, can't be cut again.
                Err(error) => {
                    let is_at_top = log.ranges().last().is_some_and(|r| r.end >> shift > START_MAX);
                    prop_assert!(is_at_top && matches!(error, BadBlocksError::OutOfRange(_)), "{}", error);
                }
            }
        }
    }
}
