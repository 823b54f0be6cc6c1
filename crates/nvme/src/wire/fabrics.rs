//! Connect, and the controller's properties.

use zerocopy::byteorder::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Data of the Connect command.
#[derive(Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    /// Names the host across its associations.
    pub host_id: [u8; 16],
    /// The controller; [`CONTROLLER_ANY`] to have one made.
    pub controller: U16,
    /// Zero.
    pub reserved: [u8; 238],
    /// NQN of the subsystem, zero-terminated.
    pub subsystem: [u8; 256],
    /// NQN of the host, zero-terminated.
    pub host: [u8; 256],
    /// Zero.
    pub reserved_end: [u8; 256],
}

const _: () = assert!(size_of::<ConnectData>() == 1024);

/// The dynamic controller model: the subsystem chooses.
pub const CONTROLLER_ANY: u16 = 0xffff;

impl ConnectData {
    /// For a queue of `controller`.
    pub fn new(host_id: [u8; 16], controller: u16, subsystem: &str, host: &str) -> Self {
        let mut data = Self::new_zeroed();
        data.host_id = host_id;
        data.controller = controller.into();
        super::put_text(&mut data.subsystem, subsystem, 0);
        super::put_text(&mut data.host, host, 0);
        data
    }
}

/// Offsets in [`ConnectData`] and in the command, for the answer to wrong parameters.
pub mod connect_field {
    /// Host identifier, in the data.
    pub const HOST_ID: u64 = 1 << 16;
    /// Controller, in the data.
    pub const CONTROLLER: u64 = 1 << 16 | 16;
    /// Subsystem NQN, in the data.
    pub const SUBSYSTEM: u64 = 1 << 16 | 256;
    /// Host NQN, in the data.
    pub const HOST: u64 = 1 << 16 | 512;
    /// Queue, in the command.
    pub const QUEUE: u64 = 42;
    /// Queue size, in the command.
    pub const SIZE: u64 = 44;
}

/// Bit of a Connect command's attributes: no flow control of the submission queue.
pub const NO_FLOW_CONTROL: u8 = 1 << 2;

/// Offsets of the controller's properties.
pub mod property {
    /// Controller Capabilities, 8 bytes.
    pub const CAP: u32 = 0x00;
    /// Version, 4 bytes.
    pub const VS: u32 = 0x08;
    /// Controller Configuration, 4 bytes.
    pub const CC: u32 = 0x14;
    /// Controller Status, 4 bytes.
    pub const CSTS: u32 = 0x1c;
}

/// Bits of the properties.
pub mod bits {
    /// CC: enabled.
    pub const CC_ENABLE: u32 = 1;
    /// CC: where the shutdown notification lies.
    pub const CC_SHUTDOWN: u32 = 3 << 14;
    /// CC: entries of 64 bytes (submission) and 16 bytes (completion).
    pub const CC_ENTRY_SIZES: u32 = 6 << 16 | 4 << 20;
    /// CSTS: ready.
    pub const CSTS_READY: u32 = 1;
    /// CSTS: fatal.
    pub const CSTS_FATAL: u32 = 1 << 1;
    /// CSTS: the shutdown is complete.
    pub const CSTS_SHUTDOWN_COMPLETE: u32 = 2 << 2;
    /// CAP: contiguous queues are required.
    pub const CAP_CONTIGUOUS: u64 = 1 << 16;
    /// CAP: the NVM command set.
    pub const CAP_NVM: u64 = 1 << 37;
}

/// Version 1.4 of the base specification, as the VS property has it.
pub const VERSION: u32 = 0x0001_0400;
