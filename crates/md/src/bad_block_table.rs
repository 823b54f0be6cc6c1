//! The bad-block log as it is on a member, and how it changes step by step.
//!
//! A crash may tear the write of a log at any sector. So an entry that is to stay must be in whatever mixture
//! of old and new sectors a crash can leave. Sorting or closing gaps in one write would break that: an entry
//! that moves from one sector into another may be in neither. A change is therefore a short series of images,
//! each to be durable before the next:
//!
//! - listing more: entries grow in place, or new ones are appended;
//! - taking off: first what is left of entries that are cut in two is appended; then entries shrink in place,
//!   and the last ones are copied to the places of those that go; then the end moves forward.
//!
//! Entries may come in any order, for us and for MD.

use std::ops::Range;

use crate::{
    bad_blocks::{BadBlocks, BadBlocksError},
    units::{SECTOR_BYTES, SectorCount},
};

/// The most units an entry covers.
const ENTRY_UNITS_MAX: u64 = 512;
const ENTRY_BYTES: usize = 8;

/// See the module.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct BadBlockTable {
    blocks: BadBlocks,
    /// Start and length, in units, in the order on disk.
    entries: Vec<(u64, u64)>,
}

/// How a table on disk becomes another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadBlockChange {
    /// What the log is afterwards.
    pub table: BadBlockTable,
    /// The log's bytes, step by step: each must be durable before the next is written. None if nothing
    /// changes.
    pub images: Vec<Vec<u8>>,
}

impl From<BadBlocks> for BadBlockTable {
    /// A table in an order on disk that is not known, or one that is not on disk yet.
    fn from(blocks: BadBlocks) -> Self {
        let shift = blocks.shift();
        let ranges = blocks.ranges().to_vec();
        let mut table = Self { blocks, entries: Vec::new() };
        for range in ranges {
            table.append(range.start >> shift..range.end >> shift);
        }
        table
    }
}

impl BadBlockTable {
    /// Reads a log's bytes.
    pub fn decode(bytes: &[u8], shift: u8) -> Result<Self, BadBlocksError> {
        let blocks = BadBlocks::decode(bytes, shift)?;
        // What can't be an entry was refused just now.
        let words = bytes
            .chunks_exact(ENTRY_BYTES)
            .map(|word| word.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)));
        let entries = words.take_while(|word| *word != u64::MAX).map(|word| (word >> 10, word & 0x3ff));
        Ok(Self { blocks, entries: entries.collect() })
    }

    /// The listed sectors.
    pub fn blocks(&self) -> &BadBlocks {
        &self.blocks
    }

    /// Lists `sectors`, rounded outwards to the log's unit, in a log of `size`.
    pub fn insert(&self, sectors: Range<u64>, size: SectorCount) -> Result<BadBlockChange, BadBlocksError> {
        let mut table = self.clone();
        table.blocks.insert(sectors.clone())?;
        let shift = self.blocks.shift();
        let units = sectors.start >> shift..sectors.end.div_ceil(1 << shift);
        for missing in self.unlisted(units) {
            table.append(missing);
        }
        let images = if table == *self { Vec::new() } else { vec![table.image(size)?] };
        Ok(BadBlockChange { table, images })
    }

    /// Takes `sectors` off the list, after they were written. Units that they cover only in part stay.
    pub fn remove(&self, sectors: Range<u64>, size: SectorCount) -> Result<BadBlockChange, BadBlocksError> {
        let shift = self.blocks.shift();
        let gone = sectors.start.div_ceil(1 << shift)..sectors.end >> shift;
        let mut table = self.clone();
        table.blocks.remove(sectors);
        if table.blocks == self.blocks {
            return Ok(BadBlockChange { table: self.clone(), images: Vec::new() });
        }
        let mut images = Vec::new();
        let mut kept = vec![true; table.entries.len()];
        let mut shrunk = table.entries.clone();
        for index in 0..self.entries.len() {
            let (start, length) = self.entries[index];
            let end = start + length;
            if end <= gone.start || gone.end <= start {
                continue;
            }
            match (start < gone.start, gone.end < end) {
                (false, false) => kept[index] = false,
                (true, false) => shrunk[index] = (start, gone.start - start),
                (false, true) => shrunk[index] = (gone.end, end - gone.end),
                (true, true) => {
                    shrunk[index] = (start, gone.start - start);
                    table.entries.push((gone.end, end - gone.end));
                }
            }
        }
        if table.entries.len() > self.entries.len() {
            images.push(table.image(size)?);
            shrunk.extend_from_slice(&table.entries[self.entries.len()..]);
            kept.resize(shrunk.len(), true);
        }
        let length = fill_gaps(&mut shrunk, &kept);
        table.entries = shrunk;
        images.push(table.image(size)?);
        if length < table.entries.len() {
            table.entries.truncate(length);
            images.push(table.image(size)?);
        }
        Ok(BadBlockChange { table, images })
    }

    /// The parts of `units` that no entry covers.
    fn unlisted(&self, units: Range<u64>) -> Vec<Range<u64>> {
        let mut missing = vec![units];
        for &(start, length) in &self.entries {
            let end = start + length;
            let cut = |range: Range<u64>| {
                [range.start..range.end.min(start), range.start.max(end)..range.end]
                    .into_iter()
                    .filter(|rest| !rest.is_empty())
            };
            missing = missing.into_iter().flat_map(cut).collect();
        }
        missing
    }

    /// Adds units that no entry covers: a neighbour grows, if it can, and the rest are new entries.
    fn append(&mut self, units: Range<u64>) {
        let mut start = units.start;
        while start < units.end {
            let grown =
                self.entries.iter_mut().find(|(s, length)| s + *length == start && *length < ENTRY_UNITS_MAX);
            let room = grown.as_ref().map_or(ENTRY_UNITS_MAX, |(_, length)| ENTRY_UNITS_MAX - length);
            let length = room.min(units.end - start);
            match grown {
                Some(entry) => entry.1 += length,
                None => self.entries.push((start, length)),
            }
            start += length;
        }
    }

    /// The log's bytes.
    fn image(&self, size: SectorCount) -> Result<Vec<u8>, BadBlocksError> {
        let bytes = usize::try_from(size.0.saturating_mul(SECTOR_BYTES)).unwrap_or(usize::MAX).min(1 << 16);
        let capacity = bytes / ENTRY_BYTES;
        if self.entries.len() > capacity {
            return Err(BadBlocksError::Full { capacity, needed: self.entries.len() });
        }
        let words = self.entries.iter().map(|(start, length)| start << 10 | length);
        let mut image: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        image.resize(bytes, 0xff);
        Ok(image)
    }
}

/// Copies entries from behind the new end into the gaps before it. Returns the new length.
fn fill_gaps(entries: &mut [(u64, u64)], kept: &[bool]) -> usize {
    let length = kept.iter().filter(|kept| **kept).count();
    let mut movers = (length..entries.len()).filter(|&index| kept[index]);
    for gap in (0..length).filter(|&index| !kept[index]) {
        if let Some(mover) = movers.next() {
            entries[gap] = entries[mover];
        }
    }
    length
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: SectorCount = SectorCount(8);

    fn listed(bytes: &[u8], shift: u8) -> Vec<bool> {
        let blocks = BadBlocks::decode(bytes, shift).unwrap();
        (0..3000).map(|sector| blocks.first_overlap(sector..sector + 1).is_some()).collect()
    }

    fn covers(found: &[bool], wanted: &[bool]) -> bool {
        found.iter().zip(wanted).all(|(found, wanted)| *found || !*wanted)
    }

    #[test]
    fn neighbours_share_an_entry_and_the_log_of_the_kernel_is_read_in_any_order() {
        let mut table = BadBlockTable::default();
        for row in 0..64 {
            table = table.insert(row * 8..row * 8 + 8, SIZE).unwrap().table;
        }
        assert_eq!(table.entries, [(0, 512)]);
        table = table.insert(512..520, SIZE).unwrap().table;
        assert_eq!(table.entries, [(0, 512), (512, 8)]);
        let image = table.image(SIZE).unwrap();
        assert_eq!(BadBlockTable::decode(&image, 0).unwrap(), table);
        assert!(table.insert(100..200, SIZE).unwrap().images.is_empty(), "it is listed already");
    }

    #[test]
    fn a_full_log_says_so_and_a_cut_that_needs_room_too() {
        let mut table = BadBlockTable::default();
        for index in 0..512 {
            table = table.insert(index * 10..index * 10 + 5, SIZE).unwrap().table;
        }
        let full = Err(BadBlocksError::Full { capacity: 512, needed: 513 });
        assert_eq!(
            table.insert(5005..5006, SIZE).map(|change| change.table.entries.len()),
            Ok(512),
            "it grows"
        );
        assert_eq!(table.insert(9000..9001, SIZE), full);
        assert_eq!(table.remove(2..3, SIZE), full);
        assert!(table.remove(0..5, SIZE).is_ok());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(96))]

        /// Every mixture of the sectors of two successive images lists at least what both ends of the
        /// change list. In persistent memory it is a mixture of words. A unit is listed whole, and is off the
        /// list when all of it was written.
        #[test]
        fn whatever_a_crash_leaves_of_a_change_lists_what_is_to_stay(
            steps in prop::collection::vec((0_u8..3, 0_u64..2900, 1_u64..60), 80..200),
            torn in prop::collection::vec(any::<bool>(), 512),
            grain in prop::sample::select(vec![512_usize, 64, 8]),
            shift in prop::sample::select(vec![0_u8, 0, 1, 3]),
        ) {
            let unit = 1 << shift;
            let mut table = BadBlockTable::from(BadBlocks::new(shift).unwrap());
            let mut plain = vec![false; 3000];
            let mut before = table.image(SIZE).unwrap();
            for (kind, start, length) in steps {
                let sectors = start..start + length;
                let change = if kind > 0 { table.insert(sectors.clone(), SIZE) } else { table.remove(sectors.clone(), SIZE) };
                let Ok(change) = change else { continue };
                let old = plain.clone();
                let (start, end) = (usize::try_from(start).unwrap(), usize::try_from(start + length).unwrap());
                if kind > 0 {
                    plain[start / unit * unit..end.next_multiple_of(unit)].fill(true);
                } else {
                    let (first, last) = (start.next_multiple_of(unit), end / unit * unit);
                    plain[first..last.max(first)].fill(false);
                }
                let both: Vec<bool> = old.iter().zip(&plain).map(|(old, new)| *old && *new).collect();
                for image in &change.images {
                    let mixture: Vec<u8> = (0..4096)
                        .map(|byte| if torn[byte / grain] { image[byte] } else { before[byte] })
                        .collect();
                    prop_assert!(covers(&listed(&mixture, shift), &both));
                    before.clone_from(image);
                }
                table = change.table;
                prop_assert_eq!(&listed(&before, shift), &plain);
                prop_assert_eq!(&BadBlockTable::decode(&before, shift).unwrap(), &table);
            }
        }
    }
}
