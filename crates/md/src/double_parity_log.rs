//! The double-parity log: what MD has no answer to, the write hole of RAID6 without a journal device. The
//! format is Pinstripe's own; docs/formats.md argues each crash.
//!
//! As the partial parity log does for P, it holds for each run of rows of a stripe write what the *unwritten*
//! columns contribute to P and to Q: the one on the member that has the stripe's P, the other on the member
//! that has its Q, both durable before data or parity change. Rows are counted in sectors, and any set of
//! columns can be named.
//!
//! ```text
//! area:    | anchor, 4096 bytes | records, around and around                        |
//! record:  | header 64 | entry 64 | entry 64 | ... to a whole block | payloads, in order, to a whole block |
//! ```
//!
//! The anchor names the array and the *incarnation* of the log, which changes whenever the log begins anew; a
//! record's checksum is seeded with both, so that nothing from before, and no data that was written into the
//! array, is taken for a record. A writer's blocks are those of the member with the longest, which may be
//! lost when the log is read: what blocks a record was made with, its own length tells. Records are found at
//! any sector of the area. The writer keeps [`gap_bytes`] behind the end of its newest record free of
//! anything that is needed, so a record that tears can only tear what was dead ([`Found::live`]).

use thiserror::Error;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::crc32c;
use crate::identity::Uuid;

/// Bytes of the anchor at the beginning of the area.
pub const ANCHOR_BYTES: usize = 4096;
/// Bytes of a record's header before its entries.
pub const HEADER_BYTES: usize = 64;
/// Bytes of an entry.
pub const ENTRY_BYTES: usize = 64;
/// The most entries of a record.
pub const ENTRIES_MAX: usize = 128;
/// The shortest area that can be used.
pub const AREA_BYTES_MIN: u64 = 16 << 10;

const ANCHOR_MAGIC: [u8; 8] = *b"PSTRIPDL";
const RECORD_MAGIC: [u8; 8] = *b"PSTRIPDR";
const VERSION: u32 = 1;
const SECTOR: u32 = 512;
/// How long logical blocks may be; the shortest first.
const BLOCKS: [u64; 4] = [512, 1024, 2048, 4096];

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawAnchor {
    magic: [u8; 8],
    version: U32,
    checksum: U32,
    set_uuid: [u8; 16],
    incarnation: U64,
    reserved: [u8; 24],
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: [u8; 8],
    checksum: U32,
    entries: U32,
    sequence: U64,
    record_bytes: U32,
    reserved: [u8; 36],
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    batch: U64,
    stripe: U64,
    written: U64,
    start: U32,
    length: U32,
    payload_bytes: U32,
    payload_checksum: U32,
    parity: u8,
    copies: u8,
    reserved: [u8; 22],
}

const _: () = assert!(size_of::<RawAnchor>() == 64);
const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);
const _: () = assert!(size_of::<RawEntry>() == ENTRY_BYTES);
const _: () = assert!(std::mem::offset_of!(RawHeader, checksum) == CHECKSUM_AT.start);

const CHECKSUM_AT: std::ops::Range<usize> = 8..12;

/// Which parity a copy of an entry is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Parity {
    /// P: the payload is the XOR of the columns that are not written.
    P,
    /// Q: the payload is the sum of the columns that are not written, each times its coefficient.
    Q,
}

impl Parity {
    /// Its bit in [`Entry::copies`].
    pub const fn bit(self) -> u8 {
        match self {
            Self::P => 1,
            Self::Q => 2,
        }
    }
}

/// What one stripe write changes in a range of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Rises from stripe write to stripe write of the array: of two entries for a row the higher one counts.
    pub batch: u64,
    /// Which stripe.
    pub stripe: u64,
    /// The columns that are written, bit by bit.
    pub written: u64,
    /// First byte of the rows within the chunk.
    pub start: u32,
    /// Bytes of each column.
    pub length: u32,
    /// Which parity this copy is for.
    pub parity: Parity,
    /// For which parities there are copies: [`Parity::bit`]. A parity on a missing member has none.
    pub copies: u8,
    /// Bytes of payload: `length`, or 0 where every column is written.
    pub payload_bytes: u32,
    /// CRC-32C of the payload.
    pub payload_checksum: u32,
}

impl Entry {
    /// Fills in what depends on the payload.
    pub fn seal(&mut self, payload: &[u8]) {
        self.payload_bytes = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        self.payload_checksum = crc32c(payload);
    }

    fn to_raw(self) -> RawEntry {
        RawEntry {
            batch: self.batch.into(),
            stripe: self.stripe.into(),
            written: self.written.into(),
            start: self.start.into(),
            length: self.length.into(),
            payload_bytes: self.payload_bytes.into(),
            payload_checksum: self.payload_checksum.into(),
            parity: self.parity.bit(),
            copies: self.copies,
            reserved: [0; 22],
        }
    }

    /// `None` for what no writer makes.
    fn from_raw(raw: &RawEntry) -> Option<Self> {
        let parity = match raw.parity {
            1 => Parity::P,
            2 => Parity::Q,
            _ => return None,
        };
        let entry = Self {
            batch: raw.batch.get(),
            stripe: raw.stripe.get(),
            written: raw.written.get(),
            start: raw.start.get(),
            length: raw.length.get(),
            parity,
            copies: raw.copies,
            payload_bytes: raw.payload_bytes.get(),
            payload_checksum: raw.payload_checksum.get(),
        };
        let sectors = |bytes: u32| bytes.is_multiple_of(SECTOR);
        let sane = entry.length > 0
            && sectors(entry.start)
            && sectors(entry.length)
            && entry.start.checked_add(entry.length).is_some()
            && (entry.payload_bytes == 0 || entry.payload_bytes == entry.length)
            && entry.written != 0
            && entry.copies & !3 == 0
            && entry.copies & parity.bit() != 0
            && raw.reserved == [0; 22];
        sane.then_some(entry)
    }
}

/// Why a record can't be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum RecordError {
    /// Too many entries, or too long.
    #[error("{0} entries don't fit one record of the double-parity log")]
    DoesNotFit(usize),
}

/// Which log: array and incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    /// The array.
    pub set_uuid: Uuid,
    /// Which beginning of its log.
    pub incarnation: u64,
}

impl Identity {
    /// The anchor's bytes.
    pub fn anchor(self) -> [u8; ANCHOR_BYTES] {
        let mut raw = RawAnchor {
            magic: ANCHOR_MAGIC,
            version: VERSION.into(),
            checksum: 0.into(),
            set_uuid: self.set_uuid.0,
            incarnation: self.incarnation.into(),
            reserved: [0; 24],
        };
        raw.checksum = crc32c(raw.as_bytes()).into();
        let mut bytes = [0; ANCHOR_BYTES];
        bytes[..size_of::<RawAnchor>()].copy_from_slice(raw.as_bytes());
        bytes
    }

    /// The log that begins with these bytes, if one of this array does.
    pub fn of_anchor(bytes: &[u8], set_uuid: Uuid) -> Option<Self> {
        let (mut raw, _) = RawAnchor::read_from_prefix(bytes).ok()?;
        let stored = raw.checksum.get();
        raw.checksum = 0.into();
        let sound = raw.magic == ANCHOR_MAGIC
            && raw.version.get() == VERSION
            && stored == crc32c(raw.as_bytes())
            && raw.set_uuid == set_uuid.0
            && raw.reserved == [0; 24];
        sound.then_some(Self { set_uuid, incarnation: raw.incarnation.get() })
    }

    /// The checksum over a header with its entries, taking its own field as zero.
    fn checksum(self, header: &[u8]) -> u32 {
        let mut bytes = self.set_uuid.0.to_vec();
        bytes.extend(self.incarnation.to_le_bytes());
        let at = bytes.len();
        bytes.extend(header);
        bytes[at + CHECKSUM_AT.start..at + CHECKSUM_AT.end].fill(0);
        crc32c(&bytes)
    }

    /// The header of a record with `entries`, padded to whole blocks; `record_bytes` is the whole record's
    /// length.
    pub fn encode_header(
        self,
        sequence: u64,
        entries: &[Entry],
        record_bytes: u64,
        block_bytes: u64,
    ) -> Result<Vec<u8>, RecordError> {
        let too_many = RecordError::DoesNotFit(entries.len());
        let mut raw = RawHeader {
            magic: RECORD_MAGIC,
            checksum: 0.into(),
            entries: u32::try_from(entries.len()).map_err(|_| too_many)?.into(),
            sequence: sequence.into(),
            record_bytes: u32::try_from(record_bytes).map_err(|_| too_many)?.into(),
            reserved: [0; 36],
        };
        if entries.len() > ENTRIES_MAX {
            return Err(too_many);
        }
        let mut bytes = raw.as_bytes().to_vec();
        bytes.extend(entries.iter().flat_map(|entry| entry.to_raw().as_bytes().to_vec()));
        raw.checksum = self.checksum(&bytes).into();
        bytes[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
        let length = usize::try_from(header_bytes(entries.len(), block_bytes)).map_err(|_| too_many)?;
        bytes.resize(length, 0);
        Ok(bytes)
    }

    /// The record at the beginning of `bytes`, if there is one of this log.
    fn decode_record(self, bytes: &[u8], offset: u64) -> Option<Record> {
        let (raw, rest) = RawHeader::read_from_prefix(bytes).ok()?;
        let count = usize::try_from(raw.entries.get()).ok().filter(|count| *count <= ENTRIES_MAX)?;
        if raw.magic != RECORD_MAGIC || raw.reserved != [0; 36] {
            return None;
        }
        let entries = rest.get(..count * ENTRY_BYTES)?;
        if self.checksum(&bytes[..HEADER_BYTES + count * ENTRY_BYTES]) != raw.checksum.get() {
            return None;
        }
        let decode = |raw: &[u8]| Entry::from_raw(&RawEntry::read_from_bytes(raw).ok()?);
        let entries: Vec<Entry> = entries.chunks_exact(ENTRY_BYTES).map(decode).collect::<Option<_>>()?;
        let length = u64::from(raw.record_bytes.get());
        // Longer blocks make neither header nor payloads shorter: two kinds with the same sum have the same
        // header.
        let block = BLOCKS.into_iter().find(|block| record_bytes(&entries, *block) == length)?;
        let mut at = usize::try_from(header_bytes(count, block)).ok()?;
        let mut found = Vec::with_capacity(count);
        for entry in entries {
            let end = at.checked_add(usize::try_from(entry.payload_bytes).ok()?)?;
            let payload = bytes.get(at..end).filter(|payload| crc32c(payload) == entry.payload_checksum);
            found.push((entry, payload.map(<[u8]>::to_vec)));
            at = end;
        }
        Some(Record {
            offset,
            end: offset.saturating_add(length),
            sequence: raw.sequence.get(),
            entries: found,
        })
    }
}

/// Bytes of a record's header with so many entries.
pub fn header_bytes(entries: usize, block_bytes: u64) -> u64 {
    (HEADER_BYTES as u64 + (ENTRY_BYTES * entries) as u64).next_multiple_of(block_bytes.max(1))
}

/// Bytes of a whole record.
fn record_bytes<'e>(entries: impl IntoIterator<Item = &'e Entry>, block_bytes: u64) -> u64 {
    let (mut count, mut payloads) = (0, 0);
    for entry in entries {
        (count, payloads) = (count + 1, payloads + u64::from(entry.payload_bytes));
    }
    header_bytes(count, block_bytes) + payloads.next_multiple_of(block_bytes.max(1))
}

/// How much behind the newest record of an area holds nothing that is needed; also the length of the longest
/// record.
pub fn gap_bytes(area_bytes: u64, block_bytes: u64) -> u64 {
    let block = block_bytes.max(1);
    area_bytes.saturating_sub(ANCHOR_BYTES as u64) / 8 / block * block
}

/// A record as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Where it lies in the area.
    pub offset: u64,
    /// Where it ends.
    pub end: u64,
    /// Rises from record to record of the array.
    pub sequence: u64,
    /// Each entry with its payload, or `None` where that isn't whole: then its stripe write had not begun.
    pub entries: Vec<(Entry, Option<Vec<u8>>)>,
}

impl Record {
    /// Whether a writer with such blocks could have made it there.
    fn is_made_of(&self, block_bytes: u64) -> bool {
        let entries = self.entries.iter().map(|(entry, _)| entry);
        self.offset.is_multiple_of(block_bytes)
            && record_bytes(entries, block_bytes) == self.end.saturating_sub(self.offset)
    }
}

/// What an area holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Which log.
    pub identity: Identity,
    /// Every record that is to be believed, oldest first: those in the gap behind the newest are left out,
    /// and those that were written before a record that is not there any more.
    pub live: Vec<Record>,
}

/// Looks through an area. `None` if no log of this array begins there. `block_bytes` are the array's blocks
/// now; the writer's may have been others.
pub fn find(area: &[u8], set_uuid: Uuid, block_bytes: u64) -> Option<Found> {
    let identity = Identity::of_anchor(area, set_uuid)?;
    let length = area.len() as u64;
    let starts = (ANCHOR_BYTES..area.len()).step_by(SECTOR as usize);
    let mut records: Vec<Record> =
        starts.filter_map(|at| identity.decode_record(&area[at..], at as u64)).collect();
    records.sort_by_key(|record| record.sequence);
    if let Some(end) = records.last().map(|newest| newest.end) {
        // One writer made them all. Hardly ever more than one kind of blocks explains every one of them.
        let explains = |block: &u64| records.iter().all(|record| record.is_made_of(*block));
        let mut likely = std::iter::once(block_bytes).chain(BLOCKS.into_iter().rev());
        let gap = gap_bytes(length, likely.find(explains).unwrap_or(block_bytes));
        records.drain(..first_of_the_latest_round(&records));
        let wrapped = end.saturating_add(gap) > length;
        let in_gap = |at: u64| {
            (end..end.saturating_add(gap)).contains(&at) || wrapped && at < ANCHOR_BYTES as u64 + gap
        };
        let newest = records.len() - 1;
        let mut index = 0;
        records.retain(|record| {
            index += 1;
            index - 1 == newest || !in_gap(record.offset)
        });
    }
    Some(Found { identity, live: records })
}

/// Which of the records, oldest first, is the first of those that follow each other around the area without a
/// break. At the area's end a record may be left over from a round before, because the next one did not fit
/// there: what came after it is overwritten, so of its rows it says what may no longer be so.
fn first_of_the_latest_round(records: &[Record]) -> usize {
    let Some(newest) = records.last() else { return 0 };
    let (mut above, mut wrapped) = (newest.offset, false);
    for (index, record) in records.iter().enumerate().rev().skip(1) {
        if record.offset >= above {
            if wrapped {
                return index + 1;
            }
            wrapped = true;
        }
        if wrapped && record.offset < newest.end {
            return index + 1;
        }
        above = record.offset;
    }
    0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const IDENTITY: Identity = Identity { set_uuid: Uuid([6; 16]), incarnation: 9 };

    fn entry(batch: u64, payload: &[u8]) -> Entry {
        let mut entry = Entry {
            batch,
            stripe: 5,
            written: 0b10,
            start: 1024,
            length: 1024,
            parity: Parity::Q,
            copies: 3,
            payload_bytes: 0,
            payload_checksum: 0,
        };
        entry.seal(payload);
        entry
    }

    fn put(area: &mut [u8], at: usize, sequence: u64, payloads: &[Vec<u8>]) -> usize {
        put_blocks(area, at, sequence, payloads, 512)
    }

    fn put_blocks(area: &mut [u8], at: usize, sequence: u64, payloads: &[Vec<u8>], block: u64) -> usize {
        let entries: Vec<Entry> = payloads.iter().map(|payload| entry(sequence, payload)).collect();
        let head = usize::try_from(header_bytes(entries.len(), block)).unwrap();
        let bytes: usize = payloads.iter().map(Vec::len).sum();
        let length = record_bytes(&entries, block);
        let header = IDENTITY.encode_header(sequence, &entries, length, block).unwrap();
        area[at..at + head].copy_from_slice(&header);
        area[at + head..at + head + bytes].copy_from_slice(&payloads.concat());
        at + usize::try_from(length).unwrap()
    }

    fn area() -> Vec<u8> {
        let mut area = vec![0; 64 << 10];
        area[..ANCHOR_BYTES].copy_from_slice(&IDENTITY.anchor());
        area
    }

    #[test]
    fn records_are_found_wherever_they_lie() {
        let mut area = area();
        let at = put(&mut area, 4096, 1, &[vec![1; 1024], vec![]]);
        put(&mut area, at, 2, &[vec![2; 1024]]);
        let found = find(&area, IDENTITY.set_uuid, 512).unwrap();
        assert_eq!(found.identity, IDENTITY);
        let payloads: Vec<_> =
            found.live.iter().flat_map(|r| r.entries.iter().map(|(_, p)| p.clone().unwrap())).collect();
        assert_eq!(payloads, [vec![1; 1024], vec![], vec![2; 1024]]);
        area[at + 600] ^= 1;
        assert_eq!(find(&area, IDENTITY.set_uuid, 512).unwrap().live[1].entries[0].1, None, "torn payload");
        area[at + 70] ^= 1;
        assert_eq!(find(&area, IDENTITY.set_uuid, 512).unwrap().live.len(), 1, "torn header");
    }

    /// The checksum says only that the bytes are those that were written.
    #[test]
    fn an_entry_that_no_writer_makes_voids_its_record_whatever_the_checksum_says() {
        const NEWEST: usize = 4096;
        let alone = |change: &dyn Fn(&mut RawEntry)| {
            let mut area = area();
            put(&mut area, NEWEST, 1, &[vec![1; 1024]]);
            let (header, rest) = area[NEWEST..].split_at_mut(HEADER_BYTES);
            change(RawEntry::mut_from_bytes(&mut rest[..ENTRY_BYTES]).unwrap());
            let sum = IDENTITY.checksum(&[header, &rest[..ENTRY_BYTES]].concat());
            header[CHECKSUM_AT].copy_from_slice(&sum.to_le_bytes());
            find(&area, IDENTITY.set_uuid, 512).unwrap().live.len() == 1
        };
        let good: [&dyn Fn(&mut RawEntry); 5] = [
            &|_| {},
            &|entry| entry.copies = Parity::Q.bit(),
            &|entry| (entry.parity, entry.copies) = (Parity::P.bit(), Parity::P.bit()),
            &|entry| entry.parity = Parity::P.bit(),
            &|entry| entry.start.set(u32::MAX - 511 - 1024),
        ];
        for (number, change) in good.into_iter().enumerate() {
            assert!(alone(change), "{number}");
        }
        let bad: [&dyn Fn(&mut RawEntry); 14] = [
            &|entry| entry.copies = Parity::P.bit(),
            &|entry| (entry.parity, entry.copies) = (Parity::P.bit(), Parity::Q.bit()),
            &|entry| entry.copies = 0,
            &|entry| entry.copies = 7,
            &|entry| entry.parity = 0,
            &|entry| entry.parity = 3,
            &|entry| entry.written.set(0),
            &|entry| entry.length.set(0),
            &|entry| entry.length.set(1023),
            &|entry| entry.length.set(512),
            &|entry| entry.start.set(1),
            &|entry| entry.start.set(u32::MAX - 511),
            &|entry| entry.payload_bytes.set(512),
            &|entry| entry.reserved[21] = 1,
        ];
        for (number, change) in bad.into_iter().enumerate() {
            assert!(!alone(change), "{number}");
        }
    }

    /// Seven entries fill a header of 512 bytes. The lengths are counted by hand here: writer and reader
    /// share a function.
    #[test]
    fn a_header_of_many_entries_counts_for_the_records_length() {
        let cases =
            [(7, 512, 512 + 7168), (8, 512, 1024 + 8192), (24, 1024, 2048 + 24576), (9, 4096, 4096 + 12288)];
        for (entries, block, length) in cases {
            let payloads: Vec<Vec<u8>> = (1..=entries).map(|byte| vec![byte; 1024]).collect();
            let mut area = area();
            let end = put_blocks(&mut area, 4096, 1, &payloads, block);
            assert_eq!(end, 4096 + length, "{entries} entries");
            let found = find(&area, IDENTITY.set_uuid, block).unwrap();
            assert_eq!(found.live[0].end, end as u64, "{entries} entries");
            let read: Vec<_> =
                found.live[0].entries.iter().map(|(_, payload)| payload.clone().unwrap()).collect();
            assert_eq!(read, payloads);
        }
    }

    /// Blocks of 4096 bytes: headers are longer, and the gap is shorter.
    #[test]
    fn a_record_is_read_whatever_blocks_there_are_now() {
        let mut area = area();
        let gap = usize::try_from(gap_bytes(area.len() as u64, 4096)).unwrap();
        assert!(gap < usize::try_from(gap_bytes(area.len() as u64, 512)).unwrap());
        let newest = put_blocks(&mut area, 4096, 2, &[vec![2; 1024]], 4096);
        assert_eq!(newest, 12288);
        put_blocks(&mut area, newest + gap, 1, &[vec![1; 1024]], 4096);
        for block in [512, 1024, 4096] {
            let found = find(&area, IDENTITY.set_uuid, block).unwrap();
            let first = |record: &Record| record.entries[0].1.as_ref().map(|payload| payload[0]);
            let payloads: Vec<_> = found.live.iter().map(first).collect();
            assert_eq!(payloads, [Some(1), Some(2)], "with blocks of {block} now");
        }
    }

    /// A record of 56 entries without payload is as long with blocks of 512 bytes as with such of 4096.
    #[test]
    fn which_blocks_there_were_is_told_by_all_records_not_only_by_the_newest() {
        let mut area = area();
        let gap = usize::try_from(gap_bytes(area.len() as u64, 4096)).unwrap();
        let newest = put_blocks(&mut area, 4096, 2, &vec![vec![]; 56], 4096);
        assert_eq!(newest, 8192);
        put_blocks(&mut area, newest + gap, 1, &[vec![1; 1024]], 4096);
        let found = find(&area, IDENTITY.set_uuid, 512).unwrap();
        let sequences: Vec<u64> = found.live.iter().map(|record| record.sequence).collect();
        assert_eq!(sequences, [1, 2], "the first lies behind the gap that its writer kept");
    }

    #[test]
    fn another_array_or_incarnation_is_not_accepted() {
        let mut area = area();
        put(&mut area, 4096, 1, &[vec![1; 1024]]);
        assert_eq!(find(&area, Uuid([1; 16]), 512), None);
        area[..ANCHOR_BYTES].copy_from_slice(&Identity { incarnation: 10, ..IDENTITY }.anchor());
        assert!(find(&area, IDENTITY.set_uuid, 512).unwrap().live.is_empty());
    }

    #[test]
    fn what_lies_right_behind_the_newest_record_is_dead() {
        let mut area = area();
        let second = put(&mut area, 4096, 1, &[vec![1; 1024]]);
        let third = put(&mut area, second, 2, &[vec![1; 1024]]);
        put(&mut area, third + 8192, 3, &[vec![1; 1024]]);
        let sequences = |area: &[u8]| -> Vec<u64> {
            find(area, IDENTITY.set_uuid, 512).unwrap().live.iter().map(|record| record.sequence).collect()
        };
        assert_eq!(sequences(&area), [1, 2, 3]);
        put(&mut area, 4096, 4, &[vec![4; 1024]]);
        assert_eq!(sequences(&area), [3, 4], "the second lies where the next would be written");
    }

    #[test]
    fn what_an_earlier_round_left_at_the_end_is_dead() {
        let mut area = area();
        let end = area.len();
        // First round: up to the end. Second: its last record doesn't fit there. Third: what followed the
        // first is gone.
        put(&mut area, end - 2048, 1, &[vec![1; 1024]]);
        put(&mut area, 4096, 2, &[vec![2; 1024]]);
        put(&mut area, end - 9216, 3, &[vec![3; 1024]]);
        let sequences = |area: &[u8]| -> Vec<u64> {
            find(area, IDENTITY.set_uuid, 512).unwrap().live.iter().map(|record| record.sequence).collect()
        };
        assert_eq!(sequences(&area), [2, 3], "the first is in the gap now");
        put(&mut area, 4096, 4, &[vec![4; 1024]]);
        assert_eq!(sequences(&area), [3, 4], "the second, which came after the first, was overwritten");
        let at = put(&mut area, 4096, 2, &[vec![2; 1024]]);
        put(&mut area, at, 2, &[vec![2; 1024]]);
        area[end - 9216..end - 2048].fill(0);
        assert_eq!(sequences(&area), [1, 2, 2], "it counts while all that followed it is there");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        /// Damage, with a right checksum or not, and cut anywhere: no panic.
        #[test]
        fn no_forged_area_panics(
            changes in prop::collection::vec((4096usize..4400, any::<u8>()), 1..8),
            mended: bool,
            cut in 0usize..20_000,
        ) {
            let mut area = area();
            put(&mut area, 4096, 1, &[vec![1; 1024], vec![2; 1024]]);
            for (at, byte) in changes {
                area[at] = byte;
            }
            if mended {
                let sum = IDENTITY.checksum(&area[4096..4096 + HEADER_BYTES + 2 * ENTRY_BYTES]);
                area[4096 + 8..4096 + 12].copy_from_slice(&sum.to_le_bytes());
            }
            area.truncate(cut);
            if let Some(found) = find(&area, IDENTITY.set_uuid, 512) {
                for record in found.live {
                    let entries: Vec<Entry> = record.entries.iter().map(|(entry, _)| *entry).collect();
                    let length = record.end - record.offset;
                    let bytes = IDENTITY.encode_header(record.sequence, &entries, length, 512).unwrap();
                    let at = usize::try_from(record.offset).unwrap();
                    let whole = HEADER_BYTES + entries.len() * ENTRY_BYTES;
                    prop_assert_eq!(&bytes[..whole], &area[at..at + whole]);
                }
            }
        }
    }
}
