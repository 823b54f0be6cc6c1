//! What a device says of itself: features, and the configuration space (VIRTIO 5.2.4).

use pinstripe_block::BlockService;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{QUEUES_MAX, wire::ConfigPart};

/// Bytes of the configuration space, which reads as zero where we have nothing.
pub const CONFIG_BYTES: usize = 256;
/// The unit of sectors, whatever the logical block is.
pub const SECTOR_BYTES: u32 = 512;
/// Ranges of one discard.
pub const DISCARD_RANGES_MAX: u32 = 16;
/// Ranges of one zeroing, which may have to write zeroes: a monitor that takes a queue back waits for all.
pub const ZERO_RANGES_MAX: u32 = 1;
/// Segments that a driver should give a request: those that a ring of 128, QEMU's usual one, has room for.
const SEGMENTS_MAX: u32 = 126;
/// Bytes of one discard at most.
pub(super) const DISCARD_BYTES_MAX: u32 = 1 << 31;
/// Bytes of one zeroing at most. A caller may wait for it.
pub(super) const ZERO_BYTES_MAX: u32 = 1 << 30;

/// Features of a device.
pub mod feature {
    /// How many segments a request may have (`VIRTIO_BLK_F_SEG_MAX`).
    pub const SEGMENTS_MAX: u64 = 1 << 2;
    /// It can't be written (`VIRTIO_BLK_F_RO`).
    pub const READ_ONLY: u64 = 1 << 5;
    /// It has a logical block (`VIRTIO_BLK_F_BLK_SIZE`).
    pub const BLOCK_SIZE: u64 = 1 << 6;
    /// Writes are durable after a flush; a driver that doesn't use it wants each write durable
    /// (`VIRTIO_BLK_F_FLUSH`).
    pub const FLUSH: u64 = 1 << 9;
    /// It tells of chunk and stripe (`VIRTIO_BLK_F_TOPOLOGY`).
    pub const TOPOLOGY: u64 = 1 << 10;
    /// Several queues (`VIRTIO_BLK_F_MQ`).
    pub const MULTIQUEUE: u64 = 1 << 12;
    /// Discards (`VIRTIO_BLK_F_DISCARD`).
    pub const DISCARD: u64 = 1 << 13;
    /// Zeroings (`VIRTIO_BLK_F_WRITE_ZEROES`).
    pub const WRITE_ZEROES: u64 = 1 << 14;
    /// A descriptor may name a table of further ones (`VIRTIO_F_INDIRECT_DESC`).
    pub const INDIRECT: u64 = 1 << 28;
    /// Each side says from which entry on it wants to be told (`VIRTIO_F_EVENT_IDX`).
    pub const EVENT_INDEX: u64 = 1 << 29;
    /// The protocol has features of its own (`VHOST_USER_F_PROTOCOL_FEATURES`).
    pub const PROTOCOL: u64 = 1 << 30;
    /// Not a legacy device (`VIRTIO_F_VERSION_1`).
    pub const VERSION_1: u64 = 1 << 32;
}

/// The features of a device of `service`.
pub fn features(service: &impl BlockService) -> u64 {
    let kind =
        if service.read_only() { feature::READ_ONLY } else { feature::DISCARD | feature::WRITE_ZEROES };
    kind | feature::SEGMENTS_MAX
        | feature::BLOCK_SIZE
        | feature::FLUSH
        | feature::TOPOLOGY
        | feature::MULTIQUEUE
        | feature::INDIRECT
        | feature::EVENT_INDEX
        | feature::PROTOCOL
        | feature::VERSION_1
}

/// `struct virtio_blk_config`, whose numbers are little-endian.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Config {
    sectors: u64,
    segment_bytes_max: u32,
    segments_max: u32,
    geometry: u32,
    block_bytes: u32,
    physical_exponent: u8,
    alignment: u8,
    minimum_blocks: u16,
    optimal_blocks: u32,
    write_back: u8,
    unused: u8,
    queues: u16,
    discard_sectors_max: u32,
    discard_ranges_max: u32,
    discard_alignment: u32,
    zero_sectors_max: u32,
    zero_ranges_max: u32,
    zero_may_unmap: u8,
    unused_at_the_end: [u8; 7],
}

const _: () = assert!(size_of::<Config>() == 64 && std::mem::offset_of!(Config, discard_sectors_max) == 36);

/// Bytes of the space's front, in which all of [`Described`] is.
pub const DESCRIBED_BYTES: u32 = 36;

/// What a front end must know of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Described {
    /// Its size.
    pub size_bytes: u64,
    /// Its logical block, if [`feature::BLOCK_SIZE`] is used.
    pub block_bytes: u32,
}

impl Described {
    /// From the front of the space. `None` if it is too short, or the size can't be.
    pub fn parse(space: &[u8]) -> Option<Self> {
        let mut whole = [0; size_of::<Config>()];
        let front = space.get(..DESCRIBED_BYTES as usize)?;
        whole[..front.len()].copy_from_slice(front);
        let config: Config = zerocopy::transmute!(whole);
        let size_bytes = u64::from_le(config.sectors).checked_mul(SECTOR_BYTES.into())?;
        Some(Self { size_bytes, block_bytes: u32::from_le(config.block_bytes) })
    }
}

/// The configuration space of a device of `service`. The smallest request that is worth it is a chunk, the
/// best one a stripe, so that mkfs lays file systems out by themselves.
fn config(service: &impl BlockService) -> [u8; CONFIG_BYTES] {
    let block = service.block_size();
    let chunk_blocks = service.chunk_bytes() / block;
    let granularity = service.discard_granularity().next_power_of_two() / u64::from(SECTOR_BYTES);
    let config = Config {
        sectors: (service.size_bytes() / u64::from(SECTOR_BYTES)).to_le(),
        segments_max: SEGMENTS_MAX.to_le(),
        block_bytes: block.to_le(),
        // The field is short: of a larger chunk it says the largest power of two.
        minimum_blocks: u16::try_from(chunk_blocks).unwrap_or(1 << 15).to_le(),
        optimal_blocks: u32::try_from(service.stripe_bytes() / u64::from(block)).unwrap_or(0).to_le(),
        write_back: 1,
        queues: QUEUES_MAX.to_le(),
        discard_sectors_max: (DISCARD_BYTES_MAX / SECTOR_BYTES).to_le(),
        discard_ranges_max: DISCARD_RANGES_MAX.to_le(),
        discard_alignment: u32::try_from(granularity).unwrap_or(block / SECTOR_BYTES).to_le(),
        zero_sectors_max: (ZERO_BYTES_MAX / SECTOR_BYTES).to_le(),
        zero_ranges_max: ZERO_RANGES_MAX.to_le(),
        zero_may_unmap: 1,
        ..Config::default()
    };
    let mut space = [0; CONFIG_BYTES];
    space[..size_of::<Config>()].copy_from_slice(config.as_bytes());
    space
}

/// The answer to a question for a part of the configuration, which was checked.
pub fn answer(service: &impl BlockService, part: ConfigPart) -> Vec<u8> {
    let from = |number: u32| usize::try_from(number).unwrap_or(CONFIG_BYTES).min(CONFIG_BYTES);
    let space = config(service);
    let bytes = &space[from(part.offset)..from(part.offset.saturating_add(part.size))];
    [part.as_bytes(), bytes].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ublk::tests::Memory;

    fn of(chunk: u32, columns: u64) -> Config {
        let service = Memory { chunk, stripe: u64::from(chunk) * columns, ..Memory::new(1 << 30) };
        Config::read_from_prefix(&config(&service)).unwrap().0
    }

    #[test]
    fn the_machine_is_told_size_block_chunk_and_stripe() {
        let made = of(64 << 10, 3);
        assert_eq!((made.sectors, made.block_bytes), (2 << 20, 512));
        assert_eq!((made.minimum_blocks, made.optimal_blocks), (128, 384));
        assert_eq!(made.discard_alignment, 512, "a power of two that holds a stripe");
        assert_eq!(of(64 << 20, 2).minimum_blocks, 1 << 15);
    }

    #[test]
    fn a_front_end_reads_what_the_device_says() {
        let space = config(&Memory::new(1 << 30));
        let described = Described { size_bytes: 1 << 30, block_bytes: 512 };
        assert_eq!(Described::parse(&space), Some(described));
        assert_eq!(Described::parse(&space[..36]), Some(described));
        assert_eq!(Described::parse(&space[..35]), None);
        assert_eq!(Described::parse(&[0xff; 36]), None, "no size");
    }

    #[test]
    fn fields_are_where_the_specification_has_them() {
        let space = config(&Memory::new(1 << 30));
        assert_eq!(space[..8], (2_u64 << 20).to_le_bytes());
        assert_eq!(space[12..16], SEGMENTS_MAX.to_le_bytes());
        assert_eq!(space[20..24], 512_u32.to_le_bytes());
        assert_eq!((space[32], &space[34..36]), (1, &64_u16.to_le_bytes()[..]));
        assert_eq!(space[40..44], DISCARD_RANGES_MAX.to_le_bytes());
        assert_eq!(space[52..56], ZERO_RANGES_MAX.to_le_bytes());
        assert_eq!((space[56], space[57]), (1, 0));
        assert!(space[60..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_part_of_it_is_answered_with_its_place() {
        let service = Memory::new(1 << 30);
        let answered = answer(&service, ConfigPart { offset: 20, size: 4, flags: 1 });
        assert_eq!(answered, [20, 0, 0, 0, 4, 0, 0, 0, 1, 0, 0, 0, 0, 2, 0, 0]);
        let whole = answer(&service, ConfigPart { offset: 0, size: 256, flags: 0 });
        assert_eq!(whole.len(), 12 + 256);
    }

    #[test]
    fn a_read_only_array_is_a_read_only_device() {
        let of = |read_only| features(&Memory { read_only, ..Memory::new(1 << 30) });
        assert_eq!(of(true) & (feature::READ_ONLY | feature::DISCARD), feature::READ_ONLY);
        assert_eq!(of(false) & (feature::READ_ONLY | feature::DISCARD), feature::DISCARD);
    }
}
