//! What the kernel is told about the device.

use pinstripe_block::BlockService;

use super::{
    request::{Limits, SECTOR_BYTES},
    wire::{PARAMETER_BYTES, Parameters, attribute, kind},
};

/// Bytes of one discard at most: as many as a request of the block layer can have. The kernel cuts longer
/// ones, and not at stripes that are no power of two; so few cuts are best.
const DISCARD_BYTES_MAX: u64 = 1 << 31;
/// Bytes of one zeroing at most. A caller may wait for it.
const ZERO_BYTES_MAX: u64 = 1 << 30;
/// The largest size whose shift the kernel can use.
const SHIFT_MAX: u32 = 31;

/// What a device of `service` is.
///
/// The smallest request that is worth it is a chunk, the best one a stripe, as MD has it, so that mkfs lays
/// file systems out by themselves. The driver knows powers of two only: of another stripe it is told the
/// chunk, and as granularity of discards, as MD does, the next power of two.
pub fn parameters(service: &impl BlockService) -> Parameters {
    let limits = Limits::new(service);
    let (chunk, stripe) = (u64::from(service.chunk_bytes()), service.stripe_bytes());
    let optimal = if stripe.is_power_of_two() { stripe } else { chunk };
    let granularity = service.discard_granularity().next_power_of_two();
    let read_only = if service.read_only() { attribute::READ_ONLY } else { 0 };
    let block_shift = shift(service.block_size().into());
    Parameters {
        length: PARAMETER_BYTES,
        kinds: kind::BASIC | kind::DISCARD,
        attributes: attribute::VOLATILE_CACHE | attribute::FUA | read_only,
        logical_block_shift: block_shift,
        physical_block_shift: block_shift,
        optimal_shift: shift(optimal),
        minimum_shift: shift(chunk),
        sectors_max: limits.request_bytes_max / SECTOR_BYTES,
        device_sectors: service.size_bytes() / u64::from(SECTOR_BYTES),
        discard_granularity: u32::try_from(granularity).unwrap_or(1 << SHIFT_MAX),
        discard_sectors_max: sectors(DISCARD_BYTES_MAX),
        zero_sectors_max: sectors(ZERO_BYTES_MAX),
        discard_segments_max: 1,
        ..Parameters::default()
    }
}

/// Of a power of two; of another number that of the next one below.
fn shift(bytes: u64) -> u8 {
    let shift = bytes.checked_ilog2().unwrap_or(0).min(SHIFT_MAX);
    u8::try_from(shift).unwrap_or_else(|_| unreachable!("at most {SHIFT_MAX}"))
}

fn sectors(bytes: u64) -> u32 {
    u32::try_from(bytes / u64::from(SECTOR_BYTES)).unwrap_or(u32::MAX)
}

/// The number by which a device says whose it is: of the array with this uuid. Two arrays have the same one
/// by a chance of 2^-64. Never 0, which devices of other programs have.
pub fn mark(uuid: [u8; 16]) -> u64 {
    let both = u128::from_be_bytes(uuid);
    let [high, low] = [both >> 64, both & u128::from(u64::MAX)];
    u64::try_from(high ^ low).unwrap_or_else(|_| unreachable!("both have 64 bits")).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ublk::queue::tests::Memory;

    fn of(chunk: u32, columns: u64) -> Parameters {
        parameters(&Memory { chunk, stripe: u64::from(chunk) * columns, ..Memory::new(1 << 30) })
    }

    #[test]
    fn the_kernel_is_told_chunk_and_stripe() {
        let made = of(64 << 10, 4);
        assert_eq!((made.minimum_shift, made.optimal_shift), (16, 18));
        assert_eq!((made.logical_block_shift, made.physical_block_shift), (9, 9));
        assert_eq!((made.device_sectors, made.discard_granularity), (2 << 20, 256 << 10));
        assert_eq!(made.attributes, attribute::VOLATILE_CACHE | attribute::FUA);
    }

    #[test]
    fn of_a_stripe_that_is_no_power_of_two_it_is_told_the_chunk() {
        let made = of(64 << 10, 3);
        assert_eq!((made.minimum_shift, made.optimal_shift), (16, 16));
        assert_eq!(made.discard_granularity, 256 << 10);
    }

    #[test]
    fn the_driver_takes_what_it_is_told_of_any_shape() {
        for chunk in [4 << 10, 512 << 10, 16 << 20] {
            for columns in [1, 2, 3, 16, 62] {
                let made = of(chunk, columns);
                assert!(made.discard_granularity.is_power_of_two(), "{made:?}");
                assert!((9..=12).contains(&made.logical_block_shift), "{made:?}");
                assert!(made.sectors_max <= (1 << 25) / 512 && made.sectors_max >= 2048, "{made:?}");
                assert!(made.minimum_shift <= made.optimal_shift, "{made:?}");
                assert_eq!(made.discard_segments_max, 1);
            }
        }
    }

    #[test]
    fn a_read_only_array_is_a_read_only_device() {
        let made = parameters(&Memory { read_only: true, ..Memory::new(1 << 20) });
        assert!(made.attributes & attribute::READ_ONLY != 0);
    }

    #[test]
    fn a_mark_tells_arrays_apart_and_is_never_zero() {
        assert_eq!(mark([7; 16]), 1);
        let mut one = [0; 16];
        one[15] = 2;
        let mut other = [0; 16];
        other[3] = 2;
        assert!(mark(one) != mark(other) && mark(one) == 2);
    }
}
