//! Structures that the driver and its server exchange, in the machine's byte order, and their numbers.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Features, and properties of a device (`UBLK_F_`).
pub mod feature {
    /// A device outlives its server (`USER_RECOVERY`).
    pub const RECOVERY: u64 = 1 << 3;
    /// Requests that a dead server left are issued again to the next one (`USER_RECOVERY_REISSUE`).
    pub const REISSUE: u64 = 1 << 4;
    /// Commands are numbered as ioctl(2) does (`CMD_IOCTL_ENCODE`).
    pub const ENCODED: u64 = 1 << 6;
    /// The server copies data in and out of requests itself (`USER_COPY`).
    pub const USER_COPY: u64 = 1 << 7;
}

/// States of a device (`UBLK_S_DEV_`).
pub mod state {
    /// There is no block device.
    pub const DEAD: u16 = 0;
    /// It is served.
    pub const LIVE: u16 = 1;
    /// Its server has died; requests wait for another one.
    pub const QUIESCED: u16 = 2;
}

/// `struct ublksrv_ctrl_dev_info`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct DeviceInfo {
    /// Hardware queues.
    pub queues: u16,
    /// Tags of each.
    pub depth: u16,
    /// See [`state`].
    pub state: u16,
    /// Zero.
    pub reserved_16: u16,
    /// Bytes of one request at most.
    pub request_bytes_max: u32,
    /// The device's number; all ones to have one chosen.
    pub device: u32,
    /// Process that serves it.
    pub server: i32,
    /// Zero.
    pub reserved_32: u32,
    /// See [`feature`].
    pub features: u64,
    /// The server's own; the driver keeps it. See [`super::mark`].
    pub mark: u64,
    /// The user that made it.
    pub owner: u32,
    /// And the group.
    pub group: u32,
    /// Zero.
    pub reserved: [u64; 2],
}

/// Attributes of a device (`UBLK_ATTR_`).
pub mod attribute {
    /// It takes no writes.
    pub const READ_ONLY: u32 = 1 << 0;
    /// Writes may be lost until a flush.
    pub const VOLATILE_CACHE: u32 = 1 << 2;
    /// Single writes can be forced to the medium.
    pub const FUA: u32 = 1 << 3;
}

/// Kinds of [`Parameters`] (`UBLK_PARAM_TYPE_`).
pub mod kind {
    /// The basic ones.
    pub const BASIC: u32 = 1 << 0;
    /// Those of discard and of writing zeroes.
    pub const DISCARD: u32 = 1 << 1;
}

/// The bytes of [`Parameters`] that are ours.
pub const PARAMETER_BYTES: u32 = 60;

/// `struct ublk_params`, as far as `ublk_param_discard`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Parameters {
    /// [`PARAMETER_BYTES`].
    pub length: u32,
    /// See [`kind`].
    pub kinds: u32,
    /// See [`attribute`].
    pub attributes: u32,
    /// Logical block, as a power of two.
    pub logical_block_shift: u8,
    /// Physical block, likewise.
    pub physical_block_shift: u8,
    /// What requests are best a multiple of, likewise.
    pub optimal_shift: u8,
    /// The smallest request that is worth it, likewise.
    pub minimum_shift: u8,
    /// Sectors of one request at most.
    pub sectors_max: u32,
    /// Sectors whose multiples no request may cross; 0 for none.
    pub boundary_sectors: u32,
    /// The device's size.
    pub device_sectors: u64,
    /// For memory; 0.
    pub virtual_boundary: u64,
    /// Where the first range that can be discarded begins.
    pub discard_alignment: u32,
    /// Bytes of a range that can be discarded.
    pub discard_granularity: u32,
    /// Sectors of one discard at most.
    pub discard_sectors_max: u32,
    /// Sectors that are zeroed at once at most.
    pub zero_sectors_max: u32,
    /// Ranges of one discard: 1.
    pub discard_segments_max: u16,
    /// Zero.
    pub reserved_16: u16,
    /// Belongs to the next kind of parameters.
    pub beyond: u32,
}

/// What a request is to do (`UBLK_IO_OP_`): the lowest byte of [`Descriptor::operation`].
pub mod operation {
    /// Read.
    pub const READ: u8 = 0;
    /// Write.
    pub const WRITE: u8 = 1;
    /// Flush the volatile cache.
    pub const FLUSH: u8 = 2;
    /// Discard.
    pub const DISCARD: u8 = 3;
    /// Write zeroes.
    pub const WRITE_ZEROES: u8 = 5;
}

/// Flags of [`Descriptor::operation`] (`UBLK_IO_F_`).
pub mod flag {
    /// Durable before it is answered.
    pub const FUA: u32 = 1 << 13;
    /// Zeroes must take space.
    pub const NO_UNMAP: u32 = 1 << 15;
}

/// `struct ublksrv_io_desc`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Descriptor {
    /// See [`operation`] and [`flag`].
    pub operation: u32,
    /// Sectors.
    pub sectors: u32,
    /// The first of them.
    pub start: u64,
    /// Zero, with user copy.
    pub address: u64,
}

const _: () = {
    assert!(size_of::<DeviceInfo>() == 64);
    assert!(std::mem::offset_of!(DeviceInfo, features) == 24);
    assert!(std::mem::offset_of!(DeviceInfo, owner) == 40);
    assert!(size_of::<Parameters>() == PARAMETER_BYTES as usize + 4);
    assert!(std::mem::offset_of!(Parameters, device_sectors) == 24);
    assert!(std::mem::offset_of!(Parameters, discard_alignment) == 40);
    assert!(size_of::<Descriptor>() == 24);
};
