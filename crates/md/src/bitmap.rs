//! The write-intent bitmap: one bit per chunk of every member's data, set before the chunk changes
//! (docs/formats.md section 7).
//!
//! The file on disk is a header of 256 bytes and then the bits, lowest first. It is read and written in pages
//! of 4 KiB; bit 0 lies in page 0 behind the header. A set bit means "may be out of sync", also in a clean
//! array: bits are cleared lazily, so a set one proves nothing. Bits behind the last one are meaningless
//! (mdadm writes ones there, the kernel zeros) and are never looked at.

use std::ops::Range;

use thiserror::Error;
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::identity::Uuid;
use crate::units::{SECTOR_BYTES, Sector, SectorCount};

/// Bytes of the header; the bits begin behind it.
pub const HEADER_BYTES: usize = 256;
/// Bytes of a page, the unit of bitmap writes.
pub const PAGE_BYTES: usize = 4096;
/// The longest bitmap that is taken into memory: just below 128 MiB, the largest piece that is read at once.
/// mdadm makes none that is longer than 1 MiB.
const BITMAP_BYTES_MAX: u64 = 127 << 20;

const MAGIC: u32 = 0x6d74_6962;
const VERSION_HOST_ENDIAN: u32 = 3;
const VERSION: u32 = 4;
const VERSION_CLUSTERED: u32 = 5;
const VERSION_LOCKLESS: u32 = 6;
const WRITE_BEHIND_MAX: u32 = 16383;
const STATE_STALE: u32 = 1 << 1;
const STATE_WRITE_ERROR: u32 = 1 << 2;
const STATE_HOST_ENDIAN: u32 = 1 << 15;

#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawHeader {
    magic: U32,
    version: U32,
    uuid: [u8; 16],
    events: U64,
    events_cleared: U64,
    sync_size: U64,
    state: U32,
    chunksize: U32,
    daemon_sleep: U32,
    write_behind: U32,
    sectors_reserved: U32,
    nodes: U32,
    cluster_name: [u8; 64],
    pad: [u8; 120],
}

const _: () = assert!(size_of::<RawHeader>() == HEADER_BYTES);
const _: () = assert!(std::mem::offset_of!(RawHeader, events) == 24);
const _: () = assert!(std::mem::offset_of!(RawHeader, sync_size) == 40);
const _: () = assert!(std::mem::offset_of!(RawHeader, chunksize) == 52);
const _: () = assert!(std::mem::offset_of!(RawHeader, nodes) == 68);
const _: () = assert!(std::mem::offset_of!(RawHeader, cluster_name) == 72);

/// The bitmap's header: what the bits cover, and which superblocks they go with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BitmapHeader {
    /// The array's identity.
    pub set_uuid: Uuid,
    /// The events of the superblocks it was last written with.
    pub events: u64,
    /// The events since when bits may have been cleared: a member that is older can't be caught up by bitmap.
    pub events_cleared: u64,
    /// What the bits cover: sectors of one member (of the array for RAID10).
    pub sync_size: SectorCount,
    /// The bits can't be trusted: take all as set.
    pub stale: bool,
    /// A write of the bitmap failed once.
    pub write_error: bool,
    /// Bytes that one bit covers: a power of two, at least 512.
    pub chunk_bytes: u32,
    /// Seconds between two sweeps that clear bits.
    pub daemon_sleep_seconds: u32,
    /// RAID1: how many writes may lag behind on write-mostly members.
    pub write_behind: u32,
    /// Sectors set aside for the bitmap, 0 if that was not recorded.
    pub sectors_reserved: u32,
    /// State bits beyond those above, and unnamed bytes, as read.
    residue: Residue,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Residue {
    state: u32,
    nodes: u32,
    cluster_name: [u8; 64],
    pad: [u8; 120],
}

/// Why bytes could not be read as a bitmap.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BitmapError {
    /// No magic number: the superblock announces a bitmap, but there is none.
    #[error("no bitmap here, although the superblock announces one")]
    NoMagic,
    /// The bytes end before the bitmap does.
    #[error("the bitmap needs {needed} bytes, but only {present} could be read")]
    Truncated {
        /// Bytes needed.
        needed: u64,
        /// Bytes given.
        present: usize,
    },
    /// A version that we don't read.
    #[error(transparent)]
    Unsupported(#[from] UnsupportedBitmap),
    /// A field has a value that no bitmap has.
    #[error("the bitmap's header is damaged: {field} is {value}")]
    Field {
        /// Which field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// More bits than any array needs.
    #[error("the bitmap claims {0} bits, more than is sensible for any array")]
    TooLarge(u64),
    /// No bytes were to be had.
    #[error("the medium failed where the bitmap lies")]
    Medium,
}

/// A bitmap of another kind than ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum UnsupportedBitmap {
    /// Version 3, or the state bit that says the same.
    #[error(
        "the bitmap is in the byte order of the host that wrote it (version 3), which it doesn't record: remove it with mdadm --grow --bitmap=none and add it again"
    )]
    HostEndian,
    /// Version 5.
    #[error("the bitmap belongs to a cluster (version 5): other hosts may be writing to the array")]
    Clustered,
    /// Version 6.
    #[error(
        "the bitmap is of the lockless kind (version 6, from Linux 6.18 on), whose bits mean something else: it is not supported yet"
    )]
    Lockless,
    /// Any other version.
    #[error("the bitmap's version {0} is not known")]
    Version(u32),
}

impl BitmapHeader {
    /// A header for a new bitmap. `chunk_bytes` must be a power of two of at least 512.
    pub fn new(set_uuid: Uuid, sync_size: SectorCount, chunk_bytes: u32) -> Result<Self, BitmapError> {
        let header = Self {
            set_uuid,
            events: 0,
            events_cleared: 0,
            sync_size,
            stale: false,
            write_error: false,
            chunk_bytes,
            daemon_sleep_seconds: 5,
            write_behind: 0,
            sectors_reserved: 0,
            residue: Residue { state: 0, nodes: 0, cluster_name: [0; 64], pad: [0; 120] },
        };
        header.check()?;
        Ok(header)
    }

    /// Reads the header at the beginning of `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, BitmapError> {
        let truncated = || BitmapError::Truncated { needed: HEADER_BYTES as u64, present: bytes.len() };
        if bytes.get(..4).is_some_and(|magic| magic != MAGIC.to_le_bytes()) {
            return Err(BitmapError::NoMagic);
        }
        let (raw, _) = RawHeader::read_from_prefix(bytes).map_err(|_| truncated())?;
        let state = raw.state.get();
        match raw.version.get() {
            VERSION if state & STATE_HOST_ENDIAN == 0 => {}
            VERSION | VERSION_HOST_ENDIAN => return Err(UnsupportedBitmap::HostEndian.into()),
            VERSION_CLUSTERED => return Err(UnsupportedBitmap::Clustered.into()),
            VERSION_LOCKLESS => return Err(UnsupportedBitmap::Lockless.into()),
            other => return Err(UnsupportedBitmap::Version(other).into()),
        }
        let header = Self {
            set_uuid: Uuid(raw.uuid),
            events: raw.events.get(),
            events_cleared: raw.events_cleared.get(),
            sync_size: SectorCount(raw.sync_size.get()),
            stale: state & STATE_STALE != 0,
            write_error: state & STATE_WRITE_ERROR != 0,
            chunk_bytes: raw.chunksize.get(),
            daemon_sleep_seconds: raw.daemon_sleep.get(),
            write_behind: raw.write_behind.get(),
            sectors_reserved: raw.sectors_reserved.get(),
            residue: Residue {
                state: state & !(STATE_STALE | STATE_WRITE_ERROR),
                nodes: raw.nodes.get(),
                cluster_name: raw.cluster_name,
                pad: raw.pad,
            },
        };
        header.check()?;
        Ok(header)
    }

    /// The 256 bytes on disk.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let flag = |on, bit| if on { bit } else { 0 };
        let raw = RawHeader {
            magic: MAGIC.into(),
            version: VERSION.into(),
            uuid: self.set_uuid.0,
            events: self.events.into(),
            events_cleared: self.events_cleared.into(),
            sync_size: self.sync_size.0.into(),
            state: (self.residue.state
                | flag(self.stale, STATE_STALE)
                | flag(self.write_error, STATE_WRITE_ERROR))
            .into(),
            chunksize: self.chunk_bytes.into(),
            daemon_sleep: self.daemon_sleep_seconds.into(),
            write_behind: self.write_behind.into(),
            sectors_reserved: self.sectors_reserved.into(),
            nodes: self.residue.nodes.into(),
            cluster_name: self.residue.cluster_name,
            pad: self.residue.pad,
        };
        zerocopy::transmute!(raw)
    }

    /// What the kernel refuses in a header.
    fn check(&self) -> Result<(), BitmapError> {
        let field = |field, value: u32| Err(BitmapError::Field { field, value: u64::from(value) });
        if !self.chunk_bytes.is_power_of_two() || u64::from(self.chunk_bytes) < SECTOR_BYTES {
            return field("chunksize", self.chunk_bytes);
        }
        // The kernel keeps the interval in jiffies and refuses 0 and what overflows them.
        if self.daemon_sleep_seconds == 0 || self.daemon_sleep_seconds > 1 << 20 {
            return field("daemon_sleep", self.daemon_sleep_seconds);
        }
        if self.write_behind > WRITE_BEHIND_MAX {
            return field("write_behind", self.write_behind);
        }
        Ok(())
    }

    /// Whether the bits go with superblocks of these events. If not, all bits count as set.
    pub fn is_valid_for(&self, superblock_events: u64) -> bool {
        !self.stale && self.events >= superblock_events
    }

    /// Sectors that one bit covers.
    pub fn chunk(&self) -> SectorCount {
        SectorCount(u64::from(self.chunk_bytes) / SECTOR_BYTES)
    }

    /// The number of bits.
    pub fn bit_count(&self) -> u64 {
        self.sync_size.0.div_ceil(self.chunk().0)
    }

    /// Bytes of header and bits, without padding.
    pub fn byte_count(&self) -> u64 {
        HEADER_BYTES as u64 + self.bit_count().div_ceil(8)
    }

    /// The same, if they are few enough to keep.
    pub fn memory_bytes(&self) -> Result<usize, BitmapError> {
        let too_large = || BitmapError::TooLarge(self.bit_count());
        if self.byte_count() > BITMAP_BYTES_MAX {
            return Err(too_large());
        }
        usize::try_from(self.byte_count()).map_err(|_| too_large())
    }

    /// Sectors of the bitmap in whole pages of 4 KiB.
    pub fn sectors(&self) -> SectorCount {
        SectorCount(self.byte_count().next_multiple_of(PAGE_BYTES as u64) / SECTOR_BYTES)
    }

    /// The bit that covers a member-relative sector.
    pub fn bit_of(&self, sector: Sector) -> u64 {
        sector.0 / self.chunk().0
    }

    /// The member-relative sectors that a bit covers; the last bit ends at `sync_size`.
    pub fn sectors_of(&self, bit: u64) -> Range<u64> {
        let start = bit.saturating_mul(self.chunk().0).min(self.sync_size.0);
        start..start.saturating_add(self.chunk().0).min(self.sync_size.0)
    }
}

/// Where a bit lies on disk: in which page, at which byte of it, under which mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BitPosition {
    /// The page of 4 KiB, counted from the header.
    pub page: usize,
    /// The byte in the page.
    pub byte: usize,
    /// The bit in the byte.
    pub mask: u8,
}

/// The position of a bit, or `None` if it lies beyond what this machine can address.
pub fn bit_position(bit: u64) -> Option<BitPosition> {
    let byte = usize::try_from(bit / 8).ok()?.checked_add(HEADER_BYTES)?;
    Some(BitPosition { page: byte / PAGE_BYTES, byte: byte % PAGE_BYTES, mask: 1 << (bit % 8) })
}

/// How a new bitmap begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fill {
    /// No bit set: everything is in sync.
    Clean,
    /// Every bit set: nothing is known to be in sync.
    Dirty,
}

/// A whole bitmap in memory, as it stands on disk: header and bits, in whole pages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BitmapImage {
    header: BitmapHeader,
    /// Whole pages; the header's place in page 0 is kept up to date.
    bytes: Vec<u8>,
}

impl BitmapImage {
    /// A new bitmap.
    pub fn new(header: BitmapHeader, fill: Fill) -> Result<Self, BitmapError> {
        header.check()?;
        let byte_count = header.memory_bytes()?;
        let mut bytes = vec![0; byte_count.next_multiple_of(PAGE_BYTES)];
        bytes[..HEADER_BYTES].copy_from_slice(&header.encode());
        let mut image = Self { header, bytes };
        if fill == Fill::Dirty {
            let whole_bytes = (byte_count - HEADER_BYTES).saturating_sub(1);
            image.bytes[HEADER_BYTES..][..whole_bytes].fill(0xff);
            image.set_range(whole_bytes as u64 * 8..image.header.bit_count());
        }
        Ok(image)
    }

    /// Reads header and bits from `bytes`, which must reach to the last bit.
    pub fn decode(bytes: &[u8]) -> Result<Self, BitmapError> {
        let header = BitmapHeader::decode(bytes)?;
        let needed = header.memory_bytes()?;
        let padded = needed.next_multiple_of(PAGE_BYTES);
        if bytes.len() < needed {
            return Err(BitmapError::Truncated { needed: needed as u64, present: bytes.len() });
        }
        let mut bytes = bytes[..padded.min(bytes.len())].to_vec();
        bytes.resize(padded, 0);
        Ok(Self { header, bytes })
    }

    /// The header.
    pub fn header(&self) -> &BitmapHeader {
        &self.header
    }

    /// Records new events, and from when on bits were cleared.
    pub fn set_events(&mut self, events: u64, events_cleared: u64) {
        self.header.events = events;
        self.header.events_cleared = events_cleared;
        self.bytes[..HEADER_BYTES].copy_from_slice(&self.header.encode());
    }

    /// Records whether the bits can't be trusted. Only once all that isn't in sync has its bit may it be
    /// `false`.
    pub fn set_stale(&mut self, stale: bool) {
        self.header.stale = stale;
        self.bytes[..HEADER_BYTES].copy_from_slice(&self.header.encode());
    }

    /// The whole bitmap as it goes to disk.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// How many pages it has.
    pub fn page_count(&self) -> usize {
        self.bytes.len() / PAGE_BYTES
    }

    /// One page as it goes to disk, or `None` behind the last.
    pub fn page(&self, page: usize) -> Option<&[u8]> {
        self.bytes.chunks_exact(PAGE_BYTES).nth(page)
    }

    /// Whether a bit is set. Bits behind the last one are not.
    pub fn is_set(&self, bit: u64) -> bool {
        self.locate(bit).is_some_and(|(at, mask)| self.bytes[at] & mask != 0)
    }

    /// Sets a bit; returns whether it was clear. Bits behind the last one stay as they are.
    pub fn set(&mut self, bit: u64) -> bool {
        let Some((at, mask)) = self.locate(bit) else { return false };
        let was_clear = self.bytes[at] & mask == 0;
        self.bytes[at] |= mask;
        was_clear
    }

    /// Clears a bit; returns whether it was set. Bits behind the last one stay as they are.
    pub fn clear(&mut self, bit: u64) -> bool {
        let Some((at, mask)) = self.locate(bit) else { return false };
        let was_set = self.bytes[at] & mask != 0;
        self.bytes[at] &= !mask;
        was_set
    }

    /// Sets all bits of a range, as far as they exist.
    pub fn set_range(&mut self, bits: Range<u64>) {
        for bit in bits.start..bits.end.min(self.header.bit_count()) {
            self.set(bit);
        }
    }

    /// Sets every bit that is set in `other`. Both must cover the same; `false` (and nothing done) if not.
    #[must_use]
    pub fn merge(&mut self, other: &Self) -> bool {
        if self.header.bit_count() != other.header.bit_count()
            || self.header.chunk_bytes != other.header.chunk_bytes
        {
            return false;
        }
        for (mine, theirs) in self.bytes.iter_mut().zip(&other.bytes).skip(HEADER_BYTES) {
            *mine |= theirs;
        }
        true
    }

    /// The pages in which `other` has other bits, whatever its header says.
    pub fn pages_unlike(&self, other: &Self) -> impl Iterator<Item = usize> {
        (0..self.page_count()).filter(|page| self.bits_in(*page) != other.bits_in(*page))
    }

    /// A page without the header.
    fn bits_in(&self, page: usize) -> Option<&[u8]> {
        self.bytes.get((page * PAGE_BYTES).max(HEADER_BYTES)..(page + 1) * PAGE_BYTES)
    }

    /// The set bits in ascending order, without those behind the last.
    pub fn set_bits(&self) -> impl Iterator<Item = u64> {
        let last = self.header.bit_count();
        (0u64..)
            .step_by(8)
            .zip(&self.bytes[HEADER_BYTES..])
            .filter(|(_, byte)| **byte != 0)
            .flat_map(|(first, byte)| {
                (0..8).filter(move |bit| byte >> bit & 1 == 1).map(move |bit| first + bit)
            })
            .take_while(move |bit| *bit < last)
    }

    fn locate(&self, bit: u64) -> Option<(usize, u8)> {
        let position = bit_position(bit).filter(|_| bit < self.header.bit_count())?;
        Some((position.page * PAGE_BYTES + position.byte, position.mask))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(sectors: u64, chunk_bytes: u32) -> BitmapHeader {
        BitmapHeader::new(Uuid([7; 16]), SectorCount(sectors), chunk_bytes).unwrap()
    }

    #[test]
    fn bits_lie_behind_the_header_lowest_first() {
        assert_eq!(bit_position(0), Some(BitPosition { page: 0, byte: 256, mask: 1 }));
        assert_eq!(bit_position(9), Some(BitPosition { page: 0, byte: 257, mask: 2 }));
        let first_of_page_1 = (PAGE_BYTES - HEADER_BYTES) as u64 * 8;
        assert_eq!(bit_position(first_of_page_1), Some(BitPosition { page: 1, byte: 0, mask: 1 }));
    }

    #[test]
    fn the_last_bit_covers_what_is_left_of_the_member() {
        let header = header(22528, 65536);
        assert_eq!(header.bit_count(), 176);
        assert_eq!(header.sectors_of(175), 22400..22528);
    }

    #[test]
    fn the_last_bit_ends_where_the_member_does() {
        let header = header(1000, 65536);
        assert_eq!((header.bit_count(), header.sectors_of(7)), (8, 896..1000));
        assert_eq!(header.sectors_of(8), 1000..1000);
    }

    #[test]
    fn lazy_bits_behind_the_last_are_never_seen() {
        let mut bytes = BitmapImage::new(header(1000, 65536), Fill::Clean).unwrap().as_bytes().to_vec();
        bytes[HEADER_BYTES..].fill(0xff);
        let image = BitmapImage::decode(&bytes).unwrap();
        assert_eq!(image.set_bits().collect::<Vec<_>>(), (0..8).collect::<Vec<_>>());
        assert!(!image.is_set(8));
        assert_eq!(image.as_bytes(), bytes);
    }

    #[test]
    fn a_bitmap_read_up_to_its_last_bit_is_written_in_whole_pages() {
        for (sectors, pages) in [(1000, 1), (30720 * 128, 1), (30721 * 128, 2)] {
            let whole = BitmapImage::new(header(sectors, 65536), Fill::Dirty).unwrap();
            let needed = usize::try_from(whole.header().byte_count()).unwrap();
            let image = BitmapImage::decode(&whole.as_bytes()[..needed]).unwrap();
            assert_eq!((image.page_count(), image.as_bytes()), (pages, whole.as_bytes()), "{sectors}");
            assert_eq!(image.page(pages - 1), whole.page(pages - 1));
            let cut = BitmapImage::decode(&whole.as_bytes()[..needed - 1]);
            assert!(matches!(cut, Err(BitmapError::Truncated { .. })), "{sectors}");
        }
    }

    #[test]
    fn a_dirty_bitmap_has_every_bit_and_no_other() {
        for sectors in [1, 128, 129, 1000, 22528, 1 << 22] {
            let image = BitmapImage::new(header(sectors, 65536), Fill::Dirty).unwrap();
            assert!(image.set_bits().eq(0..image.header().bit_count()), "{sectors}");
            let ones: u32 = image.as_bytes()[HEADER_BYTES..].iter().map(|b| b.count_ones()).sum();
            assert_eq!(u64::from(ones), image.header().bit_count());
        }
    }

    #[test]
    fn pages_with_other_bits_are_told_and_headers_make_no_difference() {
        let one = BitmapImage::new(header(1 << 23, 65536), Fill::Clean).unwrap();
        let mut other = one.clone();
        other.set_events(7, 3);
        assert_eq!((one.page_count(), one.pages_unlike(&other).count()), (3, 0));
        assert!(other.set(0) && other.set(65535));
        assert_eq!(one.pages_unlike(&other).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(other.pages_unlike(&one).collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn a_set_bit_is_found_and_cleared_again() {
        let mut image = BitmapImage::new(header(1 << 30, 65536), Fill::Clean).unwrap();
        for bit in [0, 7, 8, 30719, 30720, (1 << 23) - 1] {
            assert!(image.set(bit) && !image.set(bit) && image.is_set(bit));
        }
        assert_eq!(image.set_bits().count(), 6);
        assert!(!image.set(1 << 23), "there is no such bit");
        assert!(image.clear(30720) && !image.clear(30720));
        assert_eq!(BitmapImage::decode(image.as_bytes()).unwrap(), image);
    }

    #[test]
    fn other_kinds_of_bitmap_are_refused_with_their_reason() {
        let good = header(1000, 65536).encode();
        let refusal = |version: u8| {
            let mut bytes = good;
            bytes[4] = version;
            BitmapHeader::decode(&bytes).unwrap_err()
        };
        assert_eq!(refusal(3), UnsupportedBitmap::HostEndian.into());
        assert_eq!(refusal(5), UnsupportedBitmap::Clustered.into());
        assert_eq!(refusal(6), UnsupportedBitmap::Lockless.into());
        assert_eq!(refusal(9), UnsupportedBitmap::Version(9).into());
    }

    #[test]
    fn a_header_that_claims_an_absurd_size_allocates_nothing() {
        let absurd = header(u64::MAX, 512);
        assert!(matches!(BitmapImage::decode(&absurd.encode()), Err(BitmapError::TooLarge(_))));
        assert!(matches!(BitmapImage::new(absurd, Fill::Dirty), Err(BitmapError::TooLarge(_))));
        let bits = header(1 << 29, 512);
        assert!(matches!(BitmapImage::decode(&bits.encode()), Err(BitmapError::Truncated { .. })));
    }

    #[test]
    fn the_largest_bitmap_that_is_kept_is_just_as_long_as_the_limit() {
        let bits = (BITMAP_BYTES_MAX - HEADER_BYTES as u64) * 8;
        let decode = |sectors| BitmapImage::decode(&header(sectors, 512).encode());
        let needed = BITMAP_BYTES_MAX;
        assert_eq!(decode(bits), Err(BitmapError::Truncated { needed, present: HEADER_BYTES }));
        assert_eq!(decode(bits + 1), Err(BitmapError::TooLarge(bits + 1)));
    }

    #[test]
    fn a_bitmap_older_than_the_superblock_is_not_valid() {
        let mut image = BitmapImage::new(header(1000, 65536), Fill::Clean).unwrap();
        image.set_events(20, 18);
        assert!(image.header().is_valid_for(20) && image.header().is_valid_for(19));
        assert!(!image.header().is_valid_for(21));
        let stale = BitmapHeader { stale: true, ..image.header().clone() };
        assert!(!stale.is_valid_for(20));
        assert_eq!(BitmapHeader::decode(image.as_bytes()).unwrap().events_cleared, 18);
    }

    #[test]
    fn merging_keeps_the_bits_of_both() {
        let mut one = BitmapImage::new(header(22528, 65536), Fill::Clean).unwrap();
        let mut other = one.clone();
        one.set(3);
        other.set(170);
        assert!(one.merge(&other));
        assert_eq!(one.set_bits().collect::<Vec<_>>(), [3, 170]);
        assert!(!one.merge(&BitmapImage::new(header(22528, 131_072), Fill::Clean).unwrap()));
    }
}
