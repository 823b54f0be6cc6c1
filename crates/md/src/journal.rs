//! The journal of RAID4, 5 and 6 (docs/formats.md section 9): a ring on a device of its own, in which data
//! and parity stand before they go to the members.
//!
//! The ring begins at the journal member's `data_offset` and is `data_size` long, in whole blocks of 4 KiB. A
//! meta block says what the blocks behind it are and gives a checksum for each; behind them comes the next
//! meta block. The superblock's `journal_tail` says where the oldest one is that may still be needed. From
//! there the log goes on as long as meta blocks are whole and their sequence numbers rise by one.
//!
//! The tail block of a journal that was stopped cleanly usually still describes a stripe that long is on the
//! members. So "the journal is empty" means: all that a walk finds, the members hold already.
//!
//! Checksums are the bare CRC-32C register ([`crc32c_register`]), seeded with the array's identity.

use thiserror::Error;
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checksum::crc32c_register;
use crate::identity::Uuid;
use crate::units::{Sector, SectorCount};

/// Bytes of a block, meta or page.
pub const BLOCK_BYTES: usize = 4096;
/// Sectors of a block.
pub const BLOCK_SECTORS: u64 = 8;

const MAGIC: u32 = 0x6433_c509;
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 32;
const CHECKSUM_AT: std::ops::Range<usize> = 4..8;
const TYPE_DATA: u16 = 0;
const TYPE_PARITY: u16 = 1;
const TYPE_FLUSH: u16 = 2;
const FLAG_DISCARD: u16 = 1;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawMeta {
    magic: U32,
    checksum: U32,
    version: u8,
    pad: [u8; 3],
    meta_size: U32,
    seq: U64,
    position: U64,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawPayload {
    kind: U16,
    flags: U16,
    size: U32,
}

const _: () = assert!(size_of::<RawMeta>() == HEADER_BYTES);
const _: () = assert!(std::mem::offset_of!(RawMeta, checksum) == CHECKSUM_AT.start);
const _: () = assert!(std::mem::offset_of!(RawMeta, meta_size) == 12);
const _: () = assert!(std::mem::offset_of!(RawMeta, seq) == 16);
const _: () = assert!(std::mem::offset_of!(RawMeta, position) == 24);
const _: () = assert!(size_of::<RawPayload>() == 8);

/// The checksums' start for one array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Seed(u32);

impl Seed {
    /// The seed of an array.
    pub fn new(set_uuid: Uuid) -> Self {
        Self(crc32c_register(!0, &set_uuid.0))
    }

    /// The checksum of a page.
    pub fn checksum(self, page: &[u8]) -> u32 {
        crc32c_register(self.0, page)
    }
}

/// What a meta block says about the blocks behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// A page of data.
    Data {
        /// The array sector it belongs to.
        location: Sector,
        /// A checksum per page of 4 KiB.
        checksums: Vec<u32>,
        /// The data was discarded.
        discard: bool,
    },
    /// The parity of a stripe: P, or P and Q.
    Parity {
        /// The member sector of the stripe.
        location: Sector,
        /// A checksum per page of 4 KiB.
        checksums: Vec<u32>,
        /// The stripe was discarded.
        discard: bool,
    },
    /// Stripes with their data on the members: their earlier data in the log is void.
    Flush {
        /// The stripes, by member sector.
        stripes: Vec<Sector>,
    },
}

impl Payload {
    /// The checksums of the pages that follow the meta block for this payload.
    pub fn page_checksums(&self) -> &[u32] {
        match self {
            Self::Data { checksums, .. } | Self::Parity { checksums, .. } => checksums,
            Self::Flush { .. } => &[],
        }
    }

    fn encoded_bytes(&self) -> usize {
        match self {
            Self::Data { checksums, .. } | Self::Parity { checksums, .. } => 16 + 4 * checksums.len(),
            Self::Flush { stripes } => 8 + 8 * stripes.len(),
        }
    }
}

/// A meta block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaBlock {
    /// Rises by one from meta block to meta block.
    pub seq: u64,
    /// Where it lies in the ring.
    pub position: Sector,
    /// What it describes.
    pub payloads: Vec<Payload>,
}

/// Why bytes are no meta block of this journal.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum JournalError {
    /// Fewer bytes than a block has.
    #[error("a journal block needs 4096 bytes, but only {0} could be read")]
    Truncated(usize),
    /// No meta block.
    #[error("no journal block here")]
    NoMagic,
    /// A version that we don't know.
    #[error("the journal's version {0} is not known")]
    Version(u8),
    /// The checksum doesn't match: torn, or another array's.
    #[error("the journal block's checksum is {stored:08x}, but its bytes give {computed:08x}")]
    Checksum {
        /// The checksum on disk.
        stored: u32,
        /// The checksum of the bytes.
        computed: u32,
    },
    /// Whole, but with a length or payload that can't be.
    #[error("the journal block is damaged at byte {0}")]
    Malformed(usize),
    /// What is to be written doesn't fit a block.
    #[error("the payloads need {0} bytes, more than a journal block has")]
    DoesNotFit(usize),
}

impl MetaBlock {
    /// Reads the meta block at the beginning of `bytes`.
    pub fn decode(bytes: &[u8], seed: Seed) -> Result<Self, JournalError> {
        let block = bytes.get(..BLOCK_BYTES).ok_or(JournalError::Truncated(bytes.len()))?;
        let (raw, _) = RawMeta::read_from_prefix(block).map_err(|_| JournalError::Truncated(bytes.len()))?;
        if raw.magic.get() != MAGIC {
            return Err(JournalError::NoMagic);
        }
        if raw.version != VERSION {
            return Err(JournalError::Version(raw.version));
        }
        let (stored, computed) = (raw.checksum.get(), block_checksum(block, seed));
        if stored != computed {
            return Err(JournalError::Checksum { stored, computed });
        }
        let end = usize::try_from(raw.meta_size.get()).unwrap_or(usize::MAX);
        let used =
            block.get(..end).filter(|used| used.len() >= HEADER_BYTES).ok_or(JournalError::Malformed(12))?;
        let mut payloads = Vec::new();
        let mut rest = &used[HEADER_BYTES..];
        while !rest.is_empty() {
            let (payload, behind) = decode_payload(rest).ok_or(JournalError::Malformed(end - rest.len()))?;
            payloads.push(payload);
            rest = behind;
        }
        Ok(Self { seq: raw.seq.get(), position: Sector(raw.position.get()), payloads })
    }

    /// The 4096 bytes on disk.
    pub fn encode(&self, seed: Seed) -> Result<Vec<u8>, JournalError> {
        let needed = HEADER_BYTES + self.payloads.iter().map(Payload::encoded_bytes).sum::<usize>();
        let mut block = vec![0; BLOCK_BYTES];
        let mut writer = MetaWriter::new(&mut block).ok_or(JournalError::DoesNotFit(needed))?;
        for payload in &self.payloads {
            if !writer.add(payload) {
                return Err(JournalError::DoesNotFit(needed));
            }
        }
        writer.finish(seed, self.seq, self.position);
        Ok(block)
    }

    /// How many pages follow.
    pub fn page_count(&self) -> u64 {
        self.payloads.iter().map(|payload| payload.page_checksums().len() as u64).sum()
    }
}

fn decode_payload(bytes: &[u8]) -> Option<(Payload, &[u8])> {
    let (raw, rest) = RawPayload::read_from_prefix(bytes).ok()?;
    let size = usize::try_from(raw.size.get()).ok()?;
    let discard = raw.flags.get() & FLAG_DISCARD != 0;
    match raw.kind.get() {
        kind @ (TYPE_DATA | TYPE_PARITY) => {
            let (location, rest) = U64::read_from_prefix(rest).ok()?;
            let pages = size / 8;
            // Data is one page, parity one or two (P, or P and Q).
            if size % 8 != 0 || pages == 0 || pages > if kind == TYPE_DATA { 1 } else { 2 } {
                return None;
            }
            let (sums, rest) = rest.split_at_checked(4 * pages)?;
            let checksums =
                sums.chunks_exact(4).map(|s| u32::from_le_bytes([s[0], s[1], s[2], s[3]])).collect();
            let location = Sector(location.get());
            Some(match kind {
                TYPE_DATA => (Payload::Data { location, checksums, discard }, rest),
                _ => (Payload::Parity { location, checksums, discard }, rest),
            })
        }
        TYPE_FLUSH if size % 8 == 0 => {
            let (stripes, rest) = rest.split_at_checked(size)?;
            let sector = |s: &[u8]| U64::read_from_bytes(s).ok().map(|s| Sector(s.get()));
            Some((
                Payload::Flush { stripes: stripes.chunks_exact(8).map(sector).collect::<Option<_>>()? },
                rest,
            ))
        }
        _ => None,
    }
}

/// Writes a meta block piece by piece into memory that is at hand. What doesn't fit is refused and leaves the
/// block as it was.
#[derive(Debug)]
pub struct MetaWriter<'b> {
    block: &'b mut [u8],
    used: usize,
}

/// Bytes that a payload of so many pages takes in a meta block.
pub const fn payload_bytes(pages: usize) -> usize {
    16 + 4 * pages
}

impl<'b> MetaWriter<'b> {
    /// An empty meta block in the first 4096 bytes of `block`; `None` if it has fewer.
    pub fn new(block: &'b mut [u8]) -> Option<Self> {
        let block = block.get_mut(..BLOCK_BYTES)?;
        block.fill(0);
        Some(Self { block, used: HEADER_BYTES })
    }

    /// Bytes that are left for payloads.
    pub fn room(&self) -> usize {
        BLOCK_BYTES - self.used
    }

    /// A page of data that belongs to the array sector `location`. False if it doesn't fit.
    pub fn data(&mut self, location: Sector, checksum: u32) -> bool {
        self.pages((TYPE_DATA, false), location, &[checksum])
    }

    /// The parity of the row at the member sector `location`: a checksum for P, or for P and Q. False if it
    /// doesn't fit.
    pub fn parity(&mut self, location: Sector, checksums: &[u32]) -> bool {
        self.pages((TYPE_PARITY, false), location, checksums)
    }

    /// Any payload. False if it doesn't fit.
    pub fn add(&mut self, payload: &Payload) -> bool {
        match payload {
            Payload::Data { location, checksums, discard } => {
                self.pages((TYPE_DATA, *discard), *location, checksums)
            }
            Payload::Parity { location, checksums, discard } => {
                self.pages((TYPE_PARITY, *discard), *location, checksums)
            }
            Payload::Flush { stripes } => {
                let Some(size) = u32::try_from(8 * stripes.len()).ok() else { return false };
                self.put(8 + 8 * stripes.len(), (TYPE_FLUSH, false, size), |rest| {
                    for (place, stripe) in rest.chunks_exact_mut(8).zip(stripes) {
                        place.copy_from_slice(&stripe.0.to_le_bytes());
                    }
                })
            }
        }
    }

    fn pages(&mut self, (kind, discard): (u16, bool), location: Sector, checksums: &[u32]) -> bool {
        let Some(size) = u32::try_from(8 * checksums.len()).ok() else { return false };
        self.put(payload_bytes(checksums.len()), (kind, discard, size), |rest| {
            let (place, sums) = rest.split_at_mut(8);
            place.copy_from_slice(&location.0.to_le_bytes());
            for (place, sum) in sums.chunks_exact_mut(4).zip(checksums) {
                place.copy_from_slice(&sum.to_le_bytes());
            }
        })
    }

    fn put(
        &mut self,
        bytes: usize,
        (kind, discard, size): (u16, bool, u32),
        fill: impl FnOnce(&mut [u8]),
    ) -> bool {
        if bytes > self.room() {
            return false;
        }
        let flags = if discard { FLAG_DISCARD } else { 0 };
        let (head, rest) = self.block[self.used..self.used + bytes].split_at_mut(size_of::<RawPayload>());
        head.copy_from_slice(
            RawPayload { kind: kind.into(), flags: flags.into(), size: size.into() }.as_bytes(),
        );
        fill(rest);
        self.used += bytes;
        true
    }

    /// Gives the block its place in the log and its checksum.
    #[expect(clippy::cast_possible_truncation, reason = "at most 4096")]
    pub fn finish(self, seed: Seed, seq: u64, position: Sector) {
        let raw = RawMeta {
            magic: MAGIC.into(),
            checksum: 0.into(),
            version: VERSION,
            pad: [0; 3],
            meta_size: (self.used as u32).into(),
            seq: seq.into(),
            position: position.0.into(),
        };
        self.block[..HEADER_BYTES].copy_from_slice(raw.as_bytes());
        let checksum = seed.checksum(self.block);
        self.block[CHECKSUM_AT].copy_from_slice(&checksum.to_le_bytes());
    }
}

/// The checksum over a meta block, taking its own field as zero.
fn block_checksum(block: &[u8], seed: Seed) -> u32 {
    let mut block = block.to_vec();
    block[CHECKSUM_AT].fill(0);
    seed.checksum(&block)
}

/// The way through a journal from its tail. It does no I/O: the caller reads the block at
/// [`position`](Self::position) and shows it to [`step`](Self::step), until the log ends.
#[derive(Debug, Clone)]
pub struct JournalWalk {
    seed: Seed,
    ring: SectorCount,
    position: Sector,
    seq: Option<u64>,
    walked: u64,
}

/// A meta block on the way, with the place and checksum of each page it describes, payload by payload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JournalEntry {
    /// The meta block.
    pub meta: MetaBlock,
    /// Where the pages lie in the ring, and the checksum each must have. An entry with a page that doesn't
    /// match was not completely written: the log ends before it.
    pub pages: Vec<(Sector, u32)>,
}

impl JournalWalk {
    /// A walk from `tail` (the journal member's `journal_tail`) through a ring of `data_size`. `None` if the
    /// tail isn't a block of the ring.
    pub fn new(set_uuid: Uuid, data_size: SectorCount, tail: Sector) -> Option<Self> {
        let ring = data_size.round_down(SectorCount(BLOCK_SECTORS));
        let in_ring = tail.0 < ring.0 && tail.0.is_multiple_of(BLOCK_SECTORS);
        in_ring.then(|| Self { seed: Seed::new(set_uuid), ring, position: tail, seq: None, walked: 0 })
    }

    /// The ring sector of the next block to read, relative to the journal member's `data_offset`.
    pub fn position(&self) -> Sector {
        self.position
    }

    /// The seed of the pages' checksums.
    pub fn seed(&self) -> Seed {
        self.seed
    }

    /// Takes the block at [`position`](Self::position). `None` when it isn't the log's next meta block, and
    /// so the log has ended.
    pub fn step(&mut self, block: &[u8]) -> Option<JournalEntry> {
        let meta = MetaBlock::decode(block, self.seed).ok()?;
        if meta.position != self.position || self.seq.is_some_and(|seq| meta.seq != seq.wrapping_add(1)) {
            return None;
        }
        // Once around the ring, the log would run into its own tail.
        self.walked += (1 + meta.page_count()) * BLOCK_SECTORS;
        if self.walked > self.ring.0 {
            return None;
        }
        self.seq = Some(meta.seq);
        self.advance();
        let checksums = meta.payloads.iter().flat_map(|payload| payload.page_checksums().iter().copied());
        let mut pages = Vec::new();
        for checksum in checksums {
            pages.push((self.position, checksum));
            self.advance();
        }
        Some(JournalEntry { meta, pages })
    }

    fn advance(&mut self) {
        let next = self.position.0 + BLOCK_SECTORS;
        self.position = Sector(if next >= self.ring.0 { 0 } else { next });
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const UUID: Uuid = Uuid([6; 16]);

    fn sample(seq: u64, position: u64) -> MetaBlock {
        let seed = Seed::new(UUID);
        let checksums = vec![seed.checksum(&[1; BLOCK_BYTES])];
        MetaBlock {
            seq,
            position: Sector(position),
            payloads: vec![
                Payload::Data { location: Sector(5112), checksums: checksums.clone(), discard: false },
                Payload::Parity {
                    location: Sector(1720),
                    checksums: [&checksums[..], &[7]].concat(),
                    discard: true,
                },
                Payload::Flush { stripes: vec![Sector(8), Sector(16)] },
            ],
        }
    }

    #[test]
    fn a_meta_block_reads_back_what_was_written() {
        let seed = Seed::new(UUID);
        let block = sample(9, 64).encode(seed).unwrap();
        assert_eq!(MetaBlock::decode(&block, seed), Ok(sample(9, 64)));
        let other = MetaBlock::decode(&block, Seed::new(Uuid([1; 16])));
        assert!(matches!(other, Err(JournalError::Checksum { .. })), "another array's journal is not ours");
    }

    /// Each block has room for what its payload says, so that nothing but the size is wrong.
    #[test]
    fn a_payload_of_no_whole_number_of_pages_or_too_many_is_malformed() {
        let seed = Seed::new(UUID);
        let decode = |kind: u16, size: usize| {
            let checksums = vec![7; size / 8];
            let (location, discard) = (Sector(8), false);
            let payload = match kind {
                TYPE_DATA => Payload::Data { location, checksums, discard },
                TYPE_PARITY => Payload::Parity { location, checksums, discard },
                _ => Payload::Flush { stripes: vec![location; size.div_ceil(8)] },
            };
            let payloads = vec![payload];
            let mut block = MetaBlock { seq: 9, position: Sector(64), payloads }.encode(seed).unwrap();
            block[HEADER_BYTES + 4..HEADER_BYTES + 8]
                .copy_from_slice(&u32::try_from(size).unwrap().to_le_bytes());
            block[HEADER_BYTES..HEADER_BYTES + 2].copy_from_slice(&kind.to_le_bytes());
            let sum = block_checksum(&block, seed);
            block[CHECKSUM_AT].copy_from_slice(&sum.to_le_bytes());
            MetaBlock::decode(&block, seed).map(|meta| meta.payloads.len())
        };
        for (kind, size) in
            [(TYPE_DATA, 8), (TYPE_PARITY, 8), (TYPE_PARITY, 16), (TYPE_FLUSH, 0), (TYPE_FLUSH, 24)]
        {
            assert_eq!(decode(kind, size), Ok(1), "kind {kind}, size {size}");
        }
        let data = [0, 4, 9, 12, 16].map(|size| (TYPE_DATA, size));
        let parity = [0, 4, 12, 20, 24].map(|size| (TYPE_PARITY, size));
        let others = [(TYPE_FLUSH, 4), (TYPE_FLUSH, 12), (3, 8), (u16::MAX, 8)];
        for (kind, size) in data.into_iter().chain(parity).chain(others) {
            let refused = Err(JournalError::Malformed(HEADER_BYTES));
            assert_eq!(decode(kind, size), refused, "kind {kind}, size {size}");
        }
    }

    #[test]
    fn the_walk_wraps_and_ends_where_the_sequence_breaks() {
        let seed = Seed::new(UUID);
        // Four blocks each: at 64, 96, 0 (after the wrap at 128), and a leftover of an earlier round at 32.
        let mut ring = vec![0; 128 * 512];
        for (seq, position) in [(20, 64), (21, 96), (22, 0), (7, 32)] {
            let at = usize::try_from(position).unwrap() * 512;
            ring[at..at + BLOCK_BYTES].copy_from_slice(&sample(seq, position).encode(seed).unwrap());
        }
        let mut walk = JournalWalk::new(UUID, SectorCount(130), Sector(64)).unwrap();
        let mut found = Vec::new();
        while let Some(entry) = walk.step(&ring[usize::try_from(walk.position().0).unwrap() * 512..]) {
            assert_eq!(entry.pages.len(), 3);
            assert_eq!(entry.pages[0].0.0, entry.meta.position.0 + 8);
            found.push(entry.meta.seq);
        }
        assert_eq!(found, [20, 21, 22]);
    }

    #[test]
    fn a_walk_never_goes_around_twice() {
        let block = MetaBlock { seq: 0, position: Sector(0), payloads: vec![] };
        let mut walk = JournalWalk::new(UUID, SectorCount(16), Sector(0)).unwrap();
        let mut steps = 0;
        for seq in 0..10 {
            let block = MetaBlock { seq, position: walk.position(), ..block.clone() };
            steps += usize::from(walk.step(&block.encode(walk.seed()).unwrap()).is_some());
        }
        assert_eq!(steps, 2);
    }

    #[test]
    fn a_tail_outside_the_ring_is_refused() {
        for tail in [4, 128, 136, u64::MAX] {
            assert!(JournalWalk::new(UUID, SectorCount(130), Sector(tail)).is_none(), "{tail}");
        }
        assert!(JournalWalk::new(UUID, SectorCount(7), Sector(0)).is_none());
    }

    #[test]
    fn payloads_that_do_not_fit_are_refused() {
        let stripes = vec![Sector(0); 507];
        let block = |count: usize| MetaBlock {
            seq: 0,
            position: Sector(0),
            payloads: vec![Payload::Flush { stripes: stripes[..count].to_vec() }],
        };
        assert!(block(507).encode(Seed::new(UUID)).is_ok());
        let more = MetaBlock { payloads: [block(507).payloads, block(1).payloads].concat(), ..block(0) };
        assert_eq!(more.encode(Seed::new(UUID)), Err(JournalError::DoesNotFit(4112)));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// Damage with a right checksum: no panic, and what is accepted reads back.
        #[test]
        fn no_forged_meta_block_panics(
            changes in prop::collection::vec((8usize..120, any::<u8>()), 1..6),
            cut in prop::option::of(0usize..BLOCK_BYTES),
        ) {
            let seed = Seed::new(UUID);
            let mut block = sample(9, 64).encode(seed).unwrap();
            for (at, byte) in changes {
                block[at] = byte;
            }
            let sum = block_checksum(&block, seed);
            block[CHECKSUM_AT].copy_from_slice(&sum.to_le_bytes());
            block.truncate(cut.unwrap_or(BLOCK_BYTES));
            if let Ok(meta) = MetaBlock::decode(&block, seed) {
                prop_assert_eq!(MetaBlock::decode(&meta.encode(seed).unwrap(), seed).unwrap(), meta.clone());
                let mut walk = JournalWalk::new(UUID, SectorCount(4096), Sector(64)).unwrap();
                walk.step(&block);
            }
        }
    }
}
