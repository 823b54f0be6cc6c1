//! Submission and completion entries, opcodes, data descriptors.

use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::status::Status;

/// Admin commands.
pub mod admin {
    /// Get Log Page.
    pub const GET_LOG_PAGE: u8 = 0x02;
    /// Identify.
    pub const IDENTIFY: u8 = 0x06;
    /// Abort.
    pub const ABORT: u8 = 0x08;
    /// Set Features.
    pub const SET_FEATURES: u8 = 0x09;
    /// Get Features.
    pub const GET_FEATURES: u8 = 0x0a;
    /// Asynchronous Event Request.
    pub const ASYNC_EVENT: u8 = 0x0c;
    /// Keep Alive.
    pub const KEEP_ALIVE: u8 = 0x18;
}

/// Commands of the NVM command set. 0x80 to 0xff are vendors' own.
pub mod nvm {
    /// Flush.
    pub const FLUSH: u8 = 0x00;
    /// Write.
    pub const WRITE: u8 = 0x01;
    /// Read.
    pub const READ: u8 = 0x02;
    /// Compare.
    pub const COMPARE: u8 = 0x05;
    /// Write Zeroes.
    pub const WRITE_ZEROES: u8 = 0x08;
    /// Dataset Management.
    pub const DATASET_MANAGEMENT: u8 = 0x09;
    /// Reservation Register.
    pub const RESERVATION_REGISTER: u8 = 0x0d;
    /// Reservation Report.
    pub const RESERVATION_REPORT: u8 = 0x0e;
    /// Reservation Acquire.
    pub const RESERVATION_ACQUIRE: u8 = 0x11;
    /// Reservation Release.
    pub const RESERVATION_RELEASE: u8 = 0x15;
}

/// The opcode of all Fabrics commands, and their types.
pub mod fabrics {
    /// The opcode.
    pub const OPCODE: u8 = 0x7f;
    /// Property Set.
    pub const PROPERTY_SET: u8 = 0x00;
    /// Connect.
    pub const CONNECT: u8 = 0x01;
    /// Property Get.
    pub const PROPERTY_GET: u8 = 0x04;
    /// Authentication Send.
    pub const AUTHENTICATION_SEND: u8 = 0x05;
    /// Authentication Receive.
    pub const AUTHENTICATION_RECEIVE: u8 = 0x06;
    /// Disconnect.
    pub const DISCONNECT: u8 = 0x08;
}

/// Names all namespaces.
pub const NAMESPACE_ALL: u32 = 0xffff_ffff;
/// Flags: the data pointer is an SGL descriptor for the data.
const PSDT_SGL: u8 = 0x40;
const PSDT_MASK: u8 = 0xc0;

/// A submission queue entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Command {
    /// What to do.
    pub opcode: u8,
    /// Fused operation (bits 0 and 1), kind of data pointer (6 and 7).
    pub flags: u8,
    /// The host's name for it, to be repeated in the completion.
    pub id: U16,
    /// The namespace; of a Fabrics command, its type in the first byte.
    pub namespace: U32,
    /// Dwords 2 and 3.
    pub reserved: [u8; 8],
    /// Address of metadata.
    pub metadata: U64,
    /// Where the data is.
    pub sgl: Sgl,
    /// Dwords 10 to 15.
    pub dwords: [U32; 6],
}

impl Command {
    /// A command without data.
    pub fn new(opcode: u8, namespace: u32) -> Self {
        let mut command = Self::new_zeroed();
        command.opcode = opcode;
        command.flags = PSDT_SGL;
        command.namespace = namespace.into();
        command.sgl = Sgl::transport(0);
        command
    }

    /// A Fabrics command of `kind`.
    pub fn fabrics(kind: u8) -> Self {
        Self::new(fabrics::OPCODE, u32::from(kind))
    }

    /// The type of a Fabrics command.
    pub fn fabrics_kind(&self) -> u8 {
        self.namespace.as_bytes()[0]
    }

    /// Dword `number`, from 10 to 15.
    ///
    /// # Panics
    /// For other numbers.
    pub fn dword(&self, number: usize) -> u32 {
        self.dwords[number - 10].get()
    }

    /// Sets dword `number`, from 10 to 15.
    ///
    /// # Panics
    /// For other numbers.
    #[must_use]
    pub fn with_dword(mut self, number: usize, value: u32) -> Self {
        self.dwords[number - 10] = value.into();
        self
    }

    /// Dwords 10 and 11: the first block of a read, write or compare.
    pub fn start_block(&self) -> u64 {
        u64::from(self.dword(10)) | u64::from(self.dword(11)) << 32
    }

    /// Dword 12: the number of blocks of a read, write or compare.
    pub fn block_count(&self) -> u64 {
        u64::from(self.dword(12) & 0xffff) + 1
    }

    /// Sets the range of a read, write, compare or write zeroes; `count` is from 1 to 65536.
    #[must_use]
    pub fn with_blocks(self, start: u64, count: u32) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
        let (low, high) = (start as u32, (start >> 32) as u32);
        self.with_dword(10, low).with_dword(11, high).with_dword(12, count.wrapping_sub(1) & 0xffff)
    }

    /// Dword 12, bit 30: durable at completion.
    pub fn force_unit_access(&self) -> bool {
        self.dword(12) & FORCE_UNIT_ACCESS != 0
    }

    /// How the data travels, as the descriptor says.
    pub fn data(&self) -> Result<DataPlace, Status> {
        if self.flags & PSDT_MASK != PSDT_SGL || self.flags & !PSDT_MASK != 0 {
            return Err(Status::INVALID_FIELD);
        }
        self.sgl.place()
    }
}

/// Bit of dword 12.
pub const FORCE_UNIT_ACCESS: u32 = 1 << 30;
/// Bit of dword 12 of Write Zeroes: the blocks may be deallocated.
pub const DEALLOCATE: u32 = 1 << 25;
/// Bit of dword 11 of Dataset Management: the blocks may be deallocated.
pub const DATASET_DEALLOCATE: u32 = 1 << 2;

/// An SGL descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Sgl {
    /// For data in the capsule: where in it.
    pub address: U64,
    /// Bytes.
    pub length: U32,
    /// Zero.
    pub reserved: [u8; 3],
    /// Type (bits 4 to 7) and subtype.
    pub kind: u8,
}

/// Data Block with an offset: data in the capsule.
const SGL_IN_CAPSULE: u8 = 0x01;
/// Transport Data Block: data in PDUs of their own.
const SGL_TRANSPORT: u8 = 0x5a;

/// Where a command's data is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataPlace {
    /// Behind the command, so many bytes.
    Capsule(u32),
    /// In PDUs of its own, so many bytes; none at all perhaps.
    Transport(u32),
}

impl DataPlace {
    /// Bytes of data.
    pub fn length(self) -> u32 {
        match self {
            Self::Capsule(length) | Self::Transport(length) => length,
        }
    }
}

impl Sgl {
    /// Data in the capsule.
    pub fn capsule(length: u32) -> Self {
        Self { address: 0.into(), length: length.into(), reserved: [0; 3], kind: SGL_IN_CAPSULE }
    }

    /// Data in PDUs of its own.
    pub fn transport(length: u32) -> Self {
        Self { kind: SGL_TRANSPORT, ..Self::capsule(length) }
    }

    fn place(&self) -> Result<DataPlace, Status> {
        match self.kind {
            SGL_IN_CAPSULE if self.address.get() != 0 => Err(Status::SGL_OFFSET_INVALID),
            SGL_IN_CAPSULE => Ok(DataPlace::Capsule(self.length.get())),
            SGL_TRANSPORT => Ok(DataPlace::Transport(self.length.get())),
            _ => Err(Status::SGL_TYPE_INVALID),
        }
    }
}

/// A completion queue entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Completion {
    /// Dwords 0 and 1: the result.
    pub result: U64,
    /// Entries of the submission queue that were taken, modulo its size.
    pub queue_head: U16,
    /// The submission queue; unused over fabrics.
    pub queue_id: U16,
    /// The command's identifier.
    pub command_id: U16,
    /// A [`Status`], shifted left by one.
    pub status: U16,
}

impl Completion {
    /// A completion of the command `id`.
    pub fn new(id: u16, status: Status, result: u64) -> Self {
        Self {
            result: result.into(),
            queue_head: 0.into(),
            queue_id: 0.into(),
            command_id: id.into(),
            status: (status.0 << 1).into(),
        }
    }

    /// What became of the command.
    pub fn status(&self) -> Status {
        Status(self.status.get() >> 1)
    }

    /// Dword 0 of the result.
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    pub fn result_dword(&self) -> u32 {
        self.result.get() as u32
    }
}

/// One range of Dataset Management.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct DatasetRange {
    /// Hints.
    pub attributes: U32,
    /// Blocks.
    pub blocks: U32,
    /// The first block.
    pub start: U64,
}

/// Most ranges of one Dataset Management command.
pub const DATASET_RANGES_MAX: usize = 256;

const _: () = assert!(size_of::<Command>() == 64);
const _: () = assert!(size_of::<Completion>() == 16);
const _: () = assert!(size_of::<DatasetRange>() == 16);
