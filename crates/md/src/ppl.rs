//! The partial parity log of RAID5 (docs/formats.md section 8): for each stripe write, the XOR of the data
//! that it did not write, on the member that holds the stripe's parity, durable before data and parity
//! change. After a crash the log and the chunks that were written give the parity anew. So a lost chunk that
//! was not written is not made of a mixture.
//!
//! A record is a header of 4096 bytes and behind it the partial parity of its entries. Records follow each
//! other through the area, and begin at its start again when one doesn't fit. Only the newest counts: just
//! one may be in flight per member. Which it is, shows the walk from the start of the area, as long as
//! headers are whole and generations don't fall.

use thiserror::Error;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::crc32c;
use crate::identity::Uuid;
use crate::units::{SECTOR_BYTES, Sector};

/// Bytes of a record's header.
pub const HEADER_BYTES: usize = 4096;
/// The most entries of a record.
pub const ENTRIES_MAX: usize = 148;

const CHECKSUM_AT: std::ops::Range<usize> = 532..536;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    reserved: [u8; 512],
    signature: U32,
    pad: U32,
    generation: U64,
    entries_count: U32,
    checksum: U32,
    entries: [RawEntry; ENTRIES_MAX],
    tail: [u8; 8],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    data_sector: U64,
    pp_size: U32,
    data_size: U32,
    parity_disk: U32,
    checksum: U32,
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);
const _: () = assert!(size_of::<RawEntry>() == 24);
const _: () = assert!(std::mem::offset_of!(RawHeader, signature) == 512);
const _: () = assert!(std::mem::offset_of!(RawHeader, generation) == 520);
const _: () = assert!(std::mem::offset_of!(RawHeader, checksum) == CHECKSUM_AT.start);
const _: () = assert!(std::mem::offset_of!(RawHeader, entries) == 536);

/// What one entry of a record covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PplEntry {
    /// The first sector written, in the array's address space.
    pub data_sector: Sector,
    /// Bytes of partial parity; 0 where the whole stripe was written.
    pub parity_bytes: u32,
    /// Bytes of data written, from `data_sector` on.
    pub data_bytes: u32,
    /// The slot of the member that holds the stripe's parity.
    pub parity_slot: u32,
    /// CRC-32C of the partial parity.
    pub checksum: u32,
}

impl PplEntry {
    /// Whether this is the partial parity that the entry was written with. If not, the entry is skipped.
    pub fn matches(&self, partial_parity: &[u8]) -> bool {
        u32::try_from(partial_parity.len()) == Ok(self.parity_bytes)
            && (self.parity_bytes == 0 || crc32c(partial_parity) == self.checksum)
    }
}

/// A record's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PplHeader {
    /// Which array it belongs to: [`signature`].
    pub signature: u32,
    /// Rises from record to record.
    pub generation: u64,
    /// What the record covers; empty in a log that was emptied.
    pub entries: Vec<PplEntry>,
}

/// Why bytes are no record of this array.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PplError {
    /// Fewer bytes than a header has.
    #[error("a log record needs 4096 bytes, but only {0} could be read")]
    Truncated(usize),
    /// The checksum doesn't match: never written, or torn.
    #[error("the log record's checksum is {stored:08x}, but its bytes give {computed:08x}")]
    Checksum {
        /// The checksum on disk.
        stored: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// Another array's record.
    #[error("the log record belongs to another array (signature {0:08x})")]
    Signature(u32),
    /// More entries than fit.
    #[error("the log record claims {0} entries, more than fit")]
    TooManyEntries(u32),
    /// An entry that no writer makes.
    #[error("entry {0} of the log record isn't made of whole sectors")]
    Entry(usize),
    /// What is to be written doesn't fit a record.
    #[error("{0} entries don't fit one log record")]
    DoesNotFit(usize),
}

/// The signature in the records of an array.
pub fn signature(set_uuid: Uuid) -> u32 {
    crc32c(&set_uuid.0)
}

impl PplHeader {
    /// The header of an emptied log.
    pub fn empty(set_uuid: Uuid, generation: u64) -> Self {
        Self { signature: signature(set_uuid), generation, entries: Vec::new() }
    }

    /// Reads the header at the beginning of `bytes`. `signature` is the array's.
    pub fn decode(bytes: &[u8], signature: u32) -> Result<Self, PplError> {
        let (raw, _) = RawHeader::read_from_prefix(bytes).map_err(|_| PplError::Truncated(bytes.len()))?;
        let (stored, computed) = (raw.checksum.get(), header_checksum(&bytes[..HEADER_BYTES]));
        if stored != computed {
            return Err(PplError::Checksum { stored, computed });
        }
        if raw.signature.get() != signature {
            return Err(PplError::Signature(raw.signature.get()));
        }
        let count = usize::try_from(raw.entries_count.get()).unwrap_or(usize::MAX);
        let entries =
            raw.entries.get(..count).ok_or_else(|| PplError::TooManyEntries(raw.entries_count.get()))?;
        let entries = entries.iter().enumerate().map(decode_entry).collect::<Result<_, _>>()?;
        Ok(Self { signature, generation: raw.generation.get(), entries })
    }

    /// The 4096 bytes on disk.
    pub fn encode(&self) -> Result<Vec<u8>, PplError> {
        if self.entries.len() > ENTRIES_MAX {
            return Err(PplError::DoesNotFit(self.entries.len()));
        }
        let mut raw: RawHeader = zerocopy::FromZeros::new_zeroed();
        raw.reserved = [0xff; 512];
        raw.signature.set(self.signature);
        raw.generation.set(self.generation);
        raw.entries_count.set(u32::try_from(self.entries.len()).unwrap_or(u32::MAX));
        for (raw, entry) in raw.entries.iter_mut().zip(&self.entries) {
            raw.data_sector.set(entry.data_sector.0);
            raw.pp_size.set(entry.parity_bytes);
            raw.data_size.set(entry.data_bytes);
            raw.parity_disk.set(entry.parity_slot);
            raw.checksum.set(entry.checksum);
        }
        raw.checksum.set(header_checksum(raw.as_bytes()));
        Ok(raw.as_bytes().to_vec())
    }

    /// Bytes of the whole record: header and partial parity.
    pub fn record_bytes(&self) -> u64 {
        HEADER_BYTES as u64 + self.entries.iter().map(|e| u64::from(e.parity_bytes)).sum::<u64>()
    }
}

/// A new record: header and partial parity, as they go to disk in one write. Each entry comes with its
/// partial parity; lengths and checksums are filled in.
pub fn encode_record(
    set_uuid: Uuid,
    generation: u64,
    parts: &[(PplEntry, &[u8])],
) -> Result<Vec<u8>, PplError> {
    let entry = |(index, (entry, parity)): (usize, &(PplEntry, &[u8]))| {
        let parity_bytes = u32::try_from(parity.len()).map_err(|_| PplError::Entry(index))?;
        let checksum = if parity.is_empty() { 0 } else { crc32c(parity) };
        let entry = PplEntry { parity_bytes, checksum, ..*entry };
        if entry.is_of_whole_sectors() { Ok(entry) } else { Err(PplError::Entry(index)) }
    };
    let entries = parts.iter().enumerate().map(entry).collect::<Result<_, _>>()?;
    let mut bytes = PplHeader { signature: signature(set_uuid), generation, entries }.encode()?;
    for (_, parity) in parts {
        bytes.extend_from_slice(parity);
    }
    Ok(bytes)
}

/// A record found in an area.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundRecord {
    /// Byte offset of its header in the area.
    pub offset: usize,
    /// Its header.
    pub header: PplHeader,
}

impl FoundRecord {
    /// Each entry with its partial parity, or `None` for it where the area ends before it or the checksum
    /// doesn't match: such an entry is skipped in recovery, for its stripe was not yet written.
    pub fn parts<'a>(&'a self, area: &'a [u8]) -> impl Iterator<Item = (PplEntry, Option<&'a [u8]>)> {
        let mut at = self.offset.saturating_add(HEADER_BYTES);
        self.header.entries.iter().map(move |entry| {
            let end = at.saturating_add(usize::try_from(entry.parity_bytes).unwrap_or(usize::MAX));
            let parity = area.get(at..end).filter(|parity| entry.matches(parity));
            at = end;
            (*entry, parity)
        })
    }
}

/// All records of an area in the order of writing, the newest last. `multiple` tells whether records follow
/// each other, or each overwrites the last.
pub fn records(area: &[u8], set_uuid: Uuid, multiple: bool) -> Vec<FoundRecord> {
    let signature = signature(set_uuid);
    let mut found: Vec<FoundRecord> = Vec::new();
    let mut offset = 0;
    while let Some(Ok(header)) = area.get(offset..).map(|rest| PplHeader::decode(rest, signature)) {
        if found.last().is_some_and(|last| last.header.generation > header.generation) {
            break;
        }
        let length = usize::try_from(header.record_bytes()).unwrap_or(usize::MAX);
        found.push(FoundRecord { offset, header });
        if !multiple {
            break;
        }
        offset = offset.saturating_add(length);
    }
    found
}

/// The newest record of an area, or `None` in one that was never written.
pub fn newest_record(area: &[u8], set_uuid: Uuid, multiple: bool) -> Option<FoundRecord> {
    records(area, set_uuid, multiple).pop()
}

impl PplEntry {
    /// Fills in what depends on the partial parity: its length and checksum.
    pub fn seal(&mut self, partial_parity: &[u8]) {
        self.parity_bytes = u32::try_from(partial_parity.len()).unwrap_or(u32::MAX);
        self.checksum = crc32c(partial_parity);
    }

    fn is_of_whole_sectors(&self) -> bool {
        [self.parity_bytes, self.data_bytes].iter().all(|bytes| u64::from(*bytes) % SECTOR_BYTES == 0)
    }
}

fn decode_entry((index, raw): (usize, &RawEntry)) -> Result<PplEntry, PplError> {
    let entry = PplEntry {
        data_sector: Sector(raw.data_sector.get()),
        parity_bytes: raw.pp_size.get(),
        data_bytes: raw.data_size.get(),
        parity_slot: raw.parity_disk.get(),
        checksum: raw.checksum.get(),
    };
    if entry.is_of_whole_sectors() { Ok(entry) } else { Err(PplError::Entry(index)) }
}

/// The checksum over a header, taking its own field as zero.
fn header_checksum(bytes: &[u8]) -> u32 {
    let mut header = bytes.to_vec();
    header[CHECKSUM_AT].fill(0);
    crc32c(&header)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UUID: Uuid = Uuid([6; 16]);

    fn entry(sector: u64) -> PplEntry {
        PplEntry {
            data_sector: Sector(sector),
            parity_bytes: 0,
            data_bytes: 4096,
            parity_slot: 2,
            checksum: 0,
        }
    }

    fn area(records: &[(u64, usize)]) -> Vec<u8> {
        let parity = vec![0x5a; 8192];
        let mut area = vec![0; 1 << 20];
        let mut at = 0;
        for (generation, pages) in records {
            let record =
                encode_record(UUID, *generation, &[(entry(*generation), &parity[..pages * 4096])]).unwrap();
            area[at..at + record.len()].copy_from_slice(&record);
            at += record.len();
        }
        area
    }

    #[test]
    fn the_newest_record_is_the_last_before_the_generation_falls() {
        let area = area(&[(7, 1), (8, 0), (9, 2), (5, 1), (6, 1)]);
        let newest = newest_record(&area, UUID, true).unwrap();
        assert_eq!((newest.header.generation, newest.offset), (9, 3 * 4096));
        let parts: Vec<_> = newest.parts(&area).collect();
        assert_eq!((parts.len(), parts[0].1.map(<[u8]>::len)), (1, Some(8192)));
        assert_eq!(newest_record(&area, UUID, false).unwrap().header.generation, 7);
    }

    #[test]
    fn a_torn_record_ends_the_walk_and_torn_parity_skips_its_entry() {
        let mut area = area(&[(7, 1), (8, 1)]);
        area[4096 + 5] ^= 1;
        let first = &records(&area, UUID, true)[0];
        assert_eq!(first.parts(&area).next().unwrap().1, None);
        area[8192 + 600] ^= 1;
        assert_eq!(newest_record(&area, UUID, true).unwrap().header.generation, 7);
        assert_eq!(newest_record(&area, Uuid([1; 16]), true), None, "another array's log is not ours");
    }

    #[test]
    fn an_emptied_log_has_a_record_without_entries() {
        let bytes = PplHeader::empty(UUID, 3).encode().unwrap();
        assert_eq!(bytes[..512], [0xff; 512]);
        assert!(PplHeader::decode(&bytes, signature(UUID)).unwrap().entries.is_empty());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let parts = vec![(entry(0), &[][..]); ENTRIES_MAX + 1];
        assert_eq!(encode_record(UUID, 1, &parts), Err(PplError::DoesNotFit(149)));
        assert!(encode_record(UUID, 1, &parts[1..]).is_ok());
        assert_eq!(encode_record(UUID, 1, &[(entry(0), &[0; 100])]), Err(PplError::Entry(0)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Damage with a right checksum, and cut anywhere: no panic.
        #[test]
        fn no_forged_area_panics(
            changes in prop::collection::vec((512usize..600, any::<u8>()), 1..6),
            cut in 0usize..40_000,
        ) {
            let mut area = area(&[(7, 1), (8, 2)]);
            for (at, byte) in changes {
                area[at] = byte;
            }
            let sum = header_checksum(&area[..HEADER_BYTES]);
            area[CHECKSUM_AT].copy_from_slice(&sum.to_le_bytes());
            area.truncate(cut);
            for record in records(&area, UUID, true) {
                record.parts(&area).for_each(drop);
                prop_assert_eq!(
                    PplHeader::decode(&record.header.encode().unwrap(), signature(UUID)).unwrap(),
                    record.header
                );
            }
        }
    }
}
