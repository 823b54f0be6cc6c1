//! From a request's header to a checked operation (VIRTIO 5.2.6). No I/O.

use pinstripe_block::{BlockService, ServiceError};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::config::{DISCARD_BYTES_MAX, DISCARD_RANGES_MAX, SECTOR_BYTES, ZERO_BYTES_MAX, ZERO_RANGES_MAX};

/// Bytes of a request's header.
pub const HEADER_BYTES: usize = size_of::<Header>();
/// Bytes of a range of a discard or a zeroing.
pub const RANGE_BYTES: usize = size_of::<RawRange>();
/// Bytes that a device's name may have.
pub const NAME_BYTES: usize = 20;
/// Bytes of a read or write at most: more than any driver asks for at a time. A stop waits for what is under
/// way, and a chain may name one place of the machine's memory many times.
const TRANSFER_BYTES_MAX: u64 = 64 << 20;
/// Of a zeroing: its space may be freed.
const UNMAP: u32 = 1;

/// Kinds of requests (`VIRTIO_BLK_T_`).
pub mod kind {
    /// Read.
    pub const IN: u32 = 0;
    /// Write.
    pub const OUT: u32 = 1;
    /// Make durable what was written.
    pub const FLUSH: u32 = 4;
    /// The device's name.
    pub const NAME: u32 = 8;
    /// Ranges that aren't needed any more.
    pub const DISCARD: u32 = 11;
    /// Ranges that must read as zero.
    pub const WRITE_ZEROES: u32 = 13;
}

/// The header of a request, as a driver writes it.
pub fn header(kind: u32, sector: u64) -> [u8; HEADER_BYTES] {
    zerocopy::transmute!(Header { kind: kind.to_le(), reserved: 0, sector: sector.to_le() })
}

/// What begins a request; little-endian.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    kind: u32,
    reserved: u32,
    sector: u64,
}

/// A range of a discard or a zeroing; little-endian.
#[derive(Clone, Copy, FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RawRange {
    sector: u64,
    sectors: u32,
    flags: u32,
}

const _: () = assert!(size_of::<Header>() == 16 && size_of::<RawRange>() == 16);

/// How a request ended, if not well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failed {
    /// It couldn't be done (`VIRTIO_BLK_S_IOERR`).
    Io,
    /// We don't do such things (`VIRTIO_BLK_S_UNSUPP`).
    Unsupported,
}

impl Failed {
    /// The byte that says so. A success is 0.
    pub fn status(self) -> u8 {
        match self {
            Self::Io => 1,
            Self::Unsupported => 2,
        }
    }
}

impl From<ServiceError> for Failed {
    fn from(_: ServiceError) -> Self {
        Self::Io
    }
}

/// Bytes of the device: inside, in whole blocks, not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Of a zeroing: its space may be freed.
    pub may_punch: bool,
}

/// What a request wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Read.
    Read(Range),
    /// Write.
    Write(Range),
    /// Make every write that was answered before durable.
    Flush,
    /// The device's name.
    Name,
    /// Ranges that aren't needed any more; they are in the request's data.
    Discard,
    /// Ranges that must read as zero; they are in the request's data.
    WriteZeroes,
}

/// What a device's requests must keep to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    size_bytes: u64,
    block_size: u64,
    read_only: bool,
}

impl Limits {
    /// Those of a device of `service`.
    pub fn new(service: &impl BlockService) -> Self {
        Self {
            size_bytes: service.size_bytes(),
            block_size: service.block_size().into(),
            read_only: service.read_only(),
        }
    }

    /// Checks a request with `given` bytes of data for us and room for `taken` bytes of ours, header and
    /// status not counted.
    pub fn request(&self, header: &[u8; HEADER_BYTES], given: u64, taken: u64) -> Result<Operation, Failed> {
        let header: Header = zerocopy::transmute!(*header);
        let sector = u64::from_le(header.sector);
        Ok(match u32::from_le(header.kind) {
            kind::IN => Operation::Read(self.transfer(sector, taken)?),
            kind::OUT => {
                self.check_writable()?;
                Operation::Write(self.transfer(sector, given)?)
            }
            kind::FLUSH => Operation::Flush,
            kind::NAME => Operation::Name,
            kind::DISCARD => {
                self.check_ranges(given, DISCARD_RANGES_MAX)?;
                Operation::Discard
            }
            kind::WRITE_ZEROES => {
                self.check_ranges(given, ZERO_RANGES_MAX)?;
                Operation::WriteZeroes
            }
            _ => return Err(Failed::Unsupported),
        })
    }

    fn check_writable(&self) -> Result<(), Failed> {
        if self.read_only { Err(Failed::Io) } else { Ok(()) }
    }

    fn check_ranges(&self, given: u64, count_max: u32) -> Result<(), Failed> {
        let is_whole = given > 0 && given.is_multiple_of(RANGE_BYTES as u64);
        let is_few = given / RANGE_BYTES as u64 <= count_max.into();
        if is_whole && is_few { self.check_writable() } else { Err(Failed::Io) }
    }

    /// The ranges in the data of a discard, or of a zeroing if `zeroes`.
    pub fn ranges(&self, data: &[u8], zeroes: bool) -> Result<Vec<Range>, Failed> {
        let range = |bytes: &[u8]| {
            let raw = RawRange::read_from_bytes(bytes).map_err(|_| Failed::Io)?;
            let flags = u32::from_le(raw.flags);
            if flags & !(if zeroes { UNMAP } else { 0 }) != 0 {
                return Err(Failed::Unsupported);
            }
            let length = u64::from(u32::from_le(raw.sectors)) * u64::from(SECTOR_BYTES);
            // Drivers are told so. A stop waits for what is under way.
            if length > u64::from(if zeroes { ZERO_BYTES_MAX } else { DISCARD_BYTES_MAX }) {
                return Err(Failed::Io);
            }
            self.range(u64::from_le(raw.sector), length, flags & UNMAP != 0)
        };
        data.chunks(RANGE_BYTES).map(range).collect()
    }

    fn transfer(&self, sector: u64, length: u64) -> Result<Range, Failed> {
        if length > TRANSFER_BYTES_MAX { Err(Failed::Io) } else { self.range(sector, length, false) }
    }

    fn range(&self, sector: u64, length: u64, may_punch: bool) -> Result<Range, Failed> {
        let offset = sector.checked_mul(SECTOR_BYTES.into()).ok_or(Failed::Io)?;
        let is_aligned = offset.is_multiple_of(self.block_size) && length.is_multiple_of(self.block_size);
        let is_inside = offset.checked_add(length).is_some_and(|end| end <= self.size_bytes);
        let is_good = is_aligned && is_inside && length > 0;
        if is_good { Ok(Range { offset, length, may_punch }) } else { Err(Failed::Io) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ublk::tests::Memory;

    fn limits(read_only: bool) -> Limits {
        Limits::new(&Memory { read_only, block: 4096, ..Memory::new(8 << 20) })
    }

    fn header(kind: u32, sector: u64) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&kind.to_le_bytes());
        bytes[8..].copy_from_slice(&sector.to_le_bytes());
        bytes
    }

    fn ranges(sector: u64, sectors: u32, flags: u32, zeroes: bool) -> Result<Vec<Range>, Failed> {
        let raw = [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat();
        limits(false).ranges(&raw, zeroes)
    }

    #[test]
    fn what_would_keep_a_stop_waiting_for_long_is_refused() {
        let long = |kind, bytes| {
            let all = Limits { size_bytes: 1 << 50, ..limits(false) };
            all.request(
                &header(kind, 0),
                if kind == 1 { bytes } else { 0 },
                if kind == 0 { bytes } else { 0 },
            )
        };
        for kind in [0, 1] {
            assert!(long(kind, 64 << 20).is_ok());
            assert_eq!(long(kind, (64 << 20) + 4096), Err(Failed::Io));
        }
        let sectors = |bytes: u32| bytes / SECTOR_BYTES;
        let all = Limits { size_bytes: 1 << 50, ..limits(false) };
        let ask = |sectors: u32, zeroes| {
            let raw = [&0_u64.to_le_bytes()[..], &sectors.to_le_bytes(), &0_u32.to_le_bytes()].concat();
            all.ranges(&raw, zeroes)
        };
        assert!(ask(sectors(ZERO_BYTES_MAX), true).is_ok() && ask(sectors(DISCARD_BYTES_MAX), false).is_ok());
        assert_eq!(ask(sectors(ZERO_BYTES_MAX) + 8, true), Err(Failed::Io));
        assert_eq!(ask(sectors(DISCARD_BYTES_MAX) + 8, false), Err(Failed::Io));
    }

    #[test]
    fn every_kind_becomes_an_operation_and_others_are_unsupported() {
        let range = Range { offset: 4096, length: 8192, may_punch: false };
        let ask = |kind, given, taken| limits(false).request(&header(kind, 8), given, taken);
        assert_eq!(ask(0, 0, 8192), Ok(Operation::Read(range)));
        assert_eq!(ask(1, 8192, 0), Ok(Operation::Write(range)));
        assert_eq!(ask(4, 0, 0), Ok(Operation::Flush));
        assert_eq!(ask(8, 0, 20), Ok(Operation::Name));
        assert_eq!(ask(11, 32, 0), Ok(Operation::Discard));
        assert_eq!(ask(11, 256, 0), Ok(Operation::Discard));
        assert_eq!(ask(13, 16, 0), Ok(Operation::WriteZeroes));
        for unknown in [2, 3, 5, 14, 16, u32::MAX] {
            assert_eq!(ask(unknown, 0, 0), Err(Failed::Unsupported), "{unknown}");
        }
    }

    #[test]
    fn what_is_outside_unaligned_or_empty_is_an_error() {
        let end = (8 << 20) / 512;
        for (sector, length) in [
            (0, 0),
            (0, 512),
            (1, 4096),
            (end, 4096),
            (end - 8, 8192),
            (u64::MAX, 4096),
            (0, u64::MAX - 4095),
        ] {
            assert_eq!(
                limits(false).request(&header(0, sector), 0, length),
                Err(Failed::Io),
                "{sector} {length}"
            );
            assert_eq!(
                limits(false).request(&header(1, sector), length, 0),
                Err(Failed::Io),
                "{sector} {length}"
            );
        }
        assert!(limits(false).request(&header(1, end - 8), 4096, 0).is_ok());
        for given in [0, 15, 17, 16 * 17] {
            assert_eq!(limits(false).request(&header(11, 0), given, 0), Err(Failed::Io), "{given}");
        }
        assert_eq!(limits(false).request(&header(13, 0), 32, 0), Err(Failed::Io), "several ranges");
        assert_eq!(ranges(end, 8, 0, false), Err(Failed::Io));
        assert_eq!(ranges(0, 0, 0, false), Err(Failed::Io));
    }

    #[test]
    fn only_a_zeroing_may_say_that_its_space_may_be_freed() {
        let range = |may_punch| Ok(vec![Range { offset: 4096, length: 4096, may_punch }]);
        assert_eq!(ranges(8, 8, 0, false), range(false));
        assert_eq!(ranges(8, 8, 1, true), range(true));
        assert_eq!(ranges(8, 8, 1, false), Err(Failed::Unsupported));
        assert_eq!(ranges(8, 8, 2, true), Err(Failed::Unsupported));
    }

    #[test]
    fn a_read_only_device_is_read_and_flushed_only() {
        let ask = |kind, given, taken| limits(true).request(&header(kind, 0), given, taken);
        assert!(ask(0, 0, 4096).is_ok() && ask(4, 0, 0).is_ok());
        for (kind, given) in [(1, 4096), (11, 16), (13, 16)] {
            assert_eq!(ask(kind, given, 0), Err(Failed::Io));
        }
    }
}
