//! The superblock's bytes (docs/formats.md section 2), its feature bits and its checksum.

use zerocopy::byteorder::little_endian::{I32, U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub(super) const MAGIC: u32 = 0xa92b_4efc;
pub(super) const MAJOR_VERSION: u32 = 1;
/// Bytes before the roles table.
pub(super) const FIXED_BYTES: usize = 256;
/// Where `sb_csum` stands.
const CHECKSUM_AT: usize = 216;

pub(super) mod feature {
    pub const BITMAP_OFFSET: u32 = 0x1;
    pub const RECOVERY_OFFSET: u32 = 0x2;
    pub const RESHAPE_ACTIVE: u32 = 0x4;
    pub const BAD_BLOCKS: u32 = 0x8;
    pub const REPLACEMENT: u32 = 0x10;
    pub const RESHAPE_BACKWARDS: u32 = 0x20;
    pub const NEW_OFFSET: u32 = 0x40;
    pub const RECOVERY_BITMAP: u32 = 0x80;
    pub const CLUSTERED: u32 = 0x100;
    pub const JOURNAL: u32 = 0x200;
    pub const PPL: u32 = 0x400;
    pub const MULTIPLE_PPLS: u32 = 0x800;
    pub const RAID0_LAYOUT: u32 = 0x1000;
    /// Ours: the double-parity log is needed. MD knows no such bit, and refuses to assemble.
    pub const DOUBLE_PARITY_LOG: u32 = 0x8000_0000;
    pub const KNOWN: u32 = 0x1fff | DOUBLE_PARITY_LOG;
}

/// `mdp_superblock_1` up to the roles table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(super) struct RawSuperblock {
    pub magic: U32,
    pub major_version: U32,
    pub feature_map: U32,
    pub pad0: U32,
    pub set_uuid: [u8; 16],
    pub set_name: [u8; 32],
    pub ctime: U64,
    pub level: I32,
    pub layout: U32,
    pub size: U64,
    pub chunksize: U32,
    pub raid_disks: U32,
    /// The bitmap's offset (i32), or the PPL's offset (i16) and size (u16).
    pub bitmap_or_ppl: [u8; 4],
    pub new_level: I32,
    pub reshape_position: U64,
    pub delta_disks: I32,
    pub new_layout: U32,
    pub new_chunk: U32,
    pub new_offset: I32,
    pub data_offset: U64,
    pub data_size: U64,
    pub super_offset: U64,
    /// The recovery offset, or a journal member's tail.
    pub recovery_or_tail: U64,
    pub dev_number: U32,
    pub cnt_corrected_read: U32,
    pub device_uuid: [u8; 16],
    pub devflags: u8,
    pub bblog_shift: u8,
    pub bblog_size: U16,
    pub bblog_offset: I32,
    pub utime: U64,
    pub events: U64,
    pub resync_offset: U64,
    pub sb_csum: U32,
    pub max_dev: U32,
    pub logical_block_size: U32,
    pub pad3: [u8; 28],
}

macro_rules! at {
    ($($field:ident $offset:literal),* $(,)?) => {
        $(const _: () = assert!(std::mem::offset_of!(RawSuperblock, $field) == $offset);)*
    };
}

const _: () = assert!(size_of::<RawSuperblock>() == FIXED_BYTES);
at!(
    feature_map 8, pad0 12, set_uuid 16, set_name 32, ctime 64, level 72, layout 76, size 80, chunksize 88,
    raid_disks 92, bitmap_or_ppl 96, new_level 100, reshape_position 104, delta_disks 112, new_layout 116,
    new_chunk 120, new_offset 124, data_offset 128, data_size 136, super_offset 144, recovery_or_tail 152,
    dev_number 160, cnt_corrected_read 164, device_uuid 168, devflags 184, bblog_shift 185, bblog_size 186,
    bblog_offset 188, utime 192, events 200, resync_offset 208, sb_csum 216, max_dev 220,
    logical_block_size 224, pad3 228,
);

impl RawSuperblock {
    pub fn zeroed() -> Self {
        zerocopy::FromZeros::new_zeroed()
    }
}

/// Bytes that the checksum covers with `max_dev` roles.
pub(super) fn covered_bytes(max_dev: usize) -> usize {
    FIXED_BYTES + 2 * max_dev
}

/// The checksum over `bytes` (fixed part and roles), taking `sb_csum` as zero: the sum of all 32-bit words,
/// and of a last 16-bit one, folded to 32 bits once.
pub(super) fn checksum(bytes: &[u8]) -> u32 {
    let mut words = bytes.chunks_exact(4);
    let mut sum: u64 = 0;
    for (index, word) in words.by_ref().enumerate() {
        if index != CHECKSUM_AT / 4 {
            sum += u64::from(u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        }
    }
    if let [low, high] = words.remainder() {
        sum += u64::from(u16::from_le_bytes([*low, *high]));
    }
    let [a, b, c, d, e, f, g, h] = sum.to_le_bytes();
    u32::from_le_bytes([a, b, c, d]).wrapping_add(u32::from_le_bytes([e, f, g, h]))
}
