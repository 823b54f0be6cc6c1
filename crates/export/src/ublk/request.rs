//! From a descriptor to a checked request.

use pinstripe_block::BlockService;
use pinstripe_runtime::uring::ublk::{DESCRIPTOR_BYTES, REQUEST_BYTES_MAX};
use zerocopy::FromBytes;

use super::wire::{Descriptor, flag, operation};
use crate::errno;

/// The unit of descriptors, whatever the logical block is.
pub(super) const SECTOR_BYTES: u32 = 512;
/// Bytes of one request at most, unless a stripe is longer.
const USUAL_BYTES_MAX: u64 = 4 << 20;

/// What a device's requests must keep to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    size_bytes: u64,
    block_size: u32,
    read_only: bool,
    /// Bytes that a read or a write may have.
    pub request_bytes_max: u32,
}

/// Bytes of the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Bytes, at least one block.
    pub length: u64,
}

/// What a request wants. Ranges lie within the device and are aligned to its block size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Read.
    Read {
        /// Of so many bytes, at most [`Limits::request_bytes_max`].
        length: usize,
    },
    /// Write.
    Write {
        /// Of so many bytes, at most [`Limits::request_bytes_max`].
        length: usize,
    },
    /// Make every write that was answered before durable.
    Flush,
    /// The range isn't needed any more.
    Discard,
    /// The range must read as zero.
    WriteZeroes {
        /// Its space may be freed.
        may_punch: bool,
    },
}

/// A checked request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// What.
    pub operation: Operation,
    /// Where; of no meaning for a flush.
    pub range: Range,
    /// Durable before it is answered.
    pub fua: bool,
}

/// A request that isn't carried out, with its error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused(pub i32);

impl Limits {
    /// Those of a device of `service`: a whole stripe is one request, if the driver can carry it.
    pub fn new(service: &impl BlockService) -> Self {
        let wanted = service.stripe_bytes().next_power_of_two().max(USUAL_BYTES_MAX);
        Self {
            size_bytes: service.size_bytes(),
            block_size: service.block_size(),
            read_only: service.read_only(),
            request_bytes_max: u32::try_from(wanted).unwrap_or(REQUEST_BYTES_MAX).min(REQUEST_BYTES_MAX),
        }
    }

    /// Checks what the driver hands over. It keeps to the device's parameters, so a refusal is a fault of the
    /// driver or of ours.
    pub fn request(&self, descriptor: &[u8; DESCRIPTOR_BYTES]) -> Result<Request, Refused> {
        let Ok(descriptor) = Descriptor::read_from_bytes(descriptor) else {
            return Err(Refused(errno::INVALID));
        };
        let [code, ..] = descriptor.operation.to_le_bytes();
        let fua = descriptor.operation & flag::FUA != 0;
        let length = u64::from(descriptor.sectors) * u64::from(SECTOR_BYTES);
        let operation = match code {
            operation::READ => Operation::Read { length: self.payload(length)? },
            operation::WRITE => Operation::Write { length: self.payload(length)? },
            operation::FLUSH => Operation::Flush,
            operation::DISCARD => Operation::Discard,
            operation::WRITE_ZEROES => {
                Operation::WriteZeroes { may_punch: descriptor.operation & flag::NO_UNMAP == 0 }
            }
            _ => return Err(Refused(errno::NOT_SUPPORTED)),
        };
        if operation == Operation::Flush {
            return Ok(Request { operation, range: Range { offset: 0, length: 0 }, fua: false });
        }
        if self.read_only && !matches!(operation, Operation::Read { .. }) {
            return Err(Refused(errno::READ_ONLY));
        }
        let offset = descriptor.start.checked_mul(SECTOR_BYTES.into()).ok_or(Refused(errno::INVALID))?;
        let range = Range { offset, length };
        self.check(range)?;
        Ok(Request { operation, range, fua })
    }

    fn payload(&self, length: u64) -> Result<usize, Refused> {
        let fits = length <= self.request_bytes_max.into();
        usize::try_from(length).ok().filter(|_| fits).ok_or(Refused(errno::INVALID))
    }

    fn check(&self, range: Range) -> Result<(), Refused> {
        let block = u64::from(self.block_size);
        let aligned = range.offset.is_multiple_of(block) && range.length.is_multiple_of(block);
        let end = range.offset.checked_add(range.length);
        let inside = end.is_some_and(|end| end <= self.size_bytes);
        if aligned && inside && range.length > 0 { Ok(()) } else { Err(Refused(errno::INVALID)) }
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;
    use crate::ublk::queue::tests::Memory;

    const MIB: u64 = 1 << 20;

    fn limits(read_only: bool) -> Limits {
        Limits::new(&Memory { read_only, block: 4096, ..Memory::new(8 * MIB) })
    }

    fn ask(limits: &Limits, operation: u32, start: u64, sectors: u32) -> Result<Request, Refused> {
        let descriptor = Descriptor { operation, sectors, start, address: 0 };
        let mut bytes = [0; DESCRIPTOR_BYTES];
        bytes.copy_from_slice(descriptor.as_bytes());
        limits.request(&bytes)
    }

    #[test]
    fn every_operation_of_the_driver_becomes_a_request() {
        let limits = limits(false);
        let range = Range { offset: 4096, length: 8192 };
        let kinds = [
            (0, Operation::Read { length: 8192 }, false),
            (1, Operation::Write { length: 8192 }, false),
            (1 | 1 << 13, Operation::Write { length: 8192 }, true),
            (3, Operation::Discard, false),
            (5, Operation::WriteZeroes { may_punch: true }, false),
            (5 | 1 << 15, Operation::WriteZeroes { may_punch: false }, false),
            // Hints that change nothing: failfast, metadata, swap.
            (1 | 1 << 8 | 1 << 11 | 1 << 16, Operation::Write { length: 8192 }, false),
        ];
        for (code, operation, fua) in kinds {
            assert_eq!(ask(&limits, code, 8, 16), Ok(Request { operation, range, fua }), "{code:#x}");
        }
        assert_eq!(ask(&limits, 2, 0, 0).map(|request| request.operation), Ok(Operation::Flush));
        for unknown in [4, 6, 13, 255] {
            assert_eq!(ask(&limits, unknown, 8, 16), Err(Refused(95)), "{unknown}");
        }
    }

    #[test]
    fn what_is_outside_unaligned_empty_or_too_long_is_refused() {
        let limits = limits(false);
        let sectors = 8 * MIB / 512;
        assert!(ask(&limits, 0, sectors - 8, 8).is_ok());
        let bad =
            [(sectors, 8), (sectors - 8, 16), (u64::MAX, 8), (u64::MAX / 512 + 1, 8), (1, 8), (8, 1), (8, 0)];
        for (start, count) in bad {
            for code in [0, 1, 3, 5] {
                assert_eq!(ask(&limits, code, start, count), Err(Refused(22)), "{code} {start} {count}");
            }
        }
        assert_eq!(ask(&limits, 1, 0, limits.request_bytes_max / 512 + 8), Err(Refused(22)));
        assert!(ask(&limits, 3, 0, u32::try_from(sectors).unwrap()).is_ok(), "a discard has no data");
    }

    #[test]
    fn a_read_only_device_is_read_and_flushed_only() {
        let limits = limits(true);
        assert!(ask(&limits, 0, 0, 8).is_ok() && ask(&limits, 2, 0, 0).is_ok());
        for code in [1, 3, 5] {
            assert_eq!(ask(&limits, code, 0, 8), Err(Refused(30)));
        }
    }

    #[test]
    fn a_whole_stripe_is_one_request_as_far_as_the_driver_goes() {
        let of = |stripe| Limits::new(&Memory { stripe, ..Memory::new(1 << 40) }).request_bytes_max;
        assert_eq!(of(192 << 10), 4 << 20);
        assert_eq!(of(12 << 20), 16 << 20);
        assert_eq!(of(1 << 30), 32 << 20);
    }
}
