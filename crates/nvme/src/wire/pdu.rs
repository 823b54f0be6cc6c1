//! The headers that TCP carries (TCP Transport Specification, "NVMe/TCP PDUs").
//!
//! Each PDU is a header of a fixed length for its type, then, if negotiated, the header's digest, then
//! padding up to the data offset, data, and the data's digest.

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::command::{Command, Completion};

/// PDU types.
pub mod kind {
    /// Initialize Connection Request, by the host.
    pub const IC_REQ: u8 = 0x00;
    /// Initialize Connection Response, by the controller.
    pub const IC_RESP: u8 = 0x01;
    /// The host ends the connection because of an error.
    pub const H2C_TERM_REQ: u8 = 0x02;
    /// The controller ends the connection because of an error.
    pub const C2H_TERM_REQ: u8 = 0x03;
    /// A command, with data perhaps.
    pub const CAPSULE_CMD: u8 = 0x04;
    /// A completion.
    pub const CAPSULE_RESP: u8 = 0x05;
    /// Data of the host, asked for by an R2T.
    pub const H2C_DATA: u8 = 0x06;
    /// Data of the controller.
    pub const C2H_DATA: u8 = 0x07;
    /// Ready to Transfer: the controller asks for data.
    pub const R2T: u8 = 0x09;
}

/// Flags of the common header.
pub mod flag {
    /// A header digest follows the header.
    pub const HDGST: u8 = 1 << 0;
    /// A data digest follows the data.
    pub const DDGST: u8 = 1 << 1;
    /// Data PDUs: the last one of this transfer.
    pub const LAST: u8 = 1 << 2;
    /// C2HData: the command succeeded and no completion follows.
    pub const SUCCESS: u8 = 1 << 3;
}

/// Why a connection is ended (Fatal Error Status).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum FatalError {
    /// A field of the header is invalid.
    InvalidHeader = 0x01,
    /// A PDU that has no place here.
    Sequence = 0x02,
    /// The header digest is wrong.
    HeaderDigest = 0x03,
    /// Data that was not asked for, or not in this place.
    DataOutOfRange = 0x04,
    /// More data than may be sent at a time.
    DataTransferLimit = 0x05,
    /// A parameter of the connection that can't be served.
    UnsupportedParameter = 0x06,
}

/// What every PDU begins with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CommonHeader {
    /// The type, of [`kind`].
    pub kind: u8,
    /// Of [`flag`].
    pub flags: u8,
    /// Bytes of the header without digest and padding.
    pub header_length: u8,
    /// Where the data begins; 0 without data.
    pub data_offset: u8,
    /// Bytes of the whole PDU.
    pub length: U32,
}

/// ICReq and ICResp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct InitializeConnection {
    /// The common header.
    pub common: CommonHeader,
    /// Version of the PDU format: 0.
    pub version: U16,
    /// What the sender of this wants its data aligned to, in dwords, less one.
    pub data_alignment: u8,
    /// Of [`digest`].
    pub digests: u8,
    /// ICReq: R2Ts of one command that may be outstanding, less one. ICResp: most bytes of data in one
    /// H2CData.
    pub limit: U32,
    /// Zero.
    pub reserved: [u8; 112],
}

/// Bits of [`InitializeConnection::digests`].
pub mod digest {
    /// Header digests.
    pub const HEADER: u8 = 1 << 0;
    /// Data digests.
    pub const DATA: u8 = 1 << 1;
}

/// H2CTermReq and C2HTermReq, without the copied header that follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Termination {
    /// The common header.
    pub common: CommonHeader,
    /// A [`FatalError`].
    pub status: U16,
    /// Which byte of the header, or which digest was wrong.
    pub information: U32,
    /// Zero.
    pub reserved: [u8; 10],
}

/// CapsuleCmd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct CommandCapsule {
    /// The common header.
    pub common: CommonHeader,
    /// The command.
    pub command: Command,
}

/// CapsuleResp.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ResponseCapsule {
    /// The common header.
    pub common: CommonHeader,
    /// The completion.
    pub completion: Completion,
}

/// H2CData, C2HData and R2T: they differ in the meaning of the tag only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Transfer {
    /// The common header.
    pub common: CommonHeader,
    /// The command's identifier.
    pub command_id: U16,
    /// H2CData and R2T: the controller's name for the transfer.
    pub tag: U16,
    /// Where the data lies within that of the command.
    pub offset: U32,
    /// Bytes of data.
    pub length: U32,
    /// Zero.
    pub reserved: U32,
}

const _: () = assert!(size_of::<CommonHeader>() == 8);
const _: () = assert!(size_of::<InitializeConnection>() == 128);
const _: () = assert!(size_of::<Termination>() == 24);
const _: () = assert!(size_of::<CommandCapsule>() == 72);
const _: () = assert!(size_of::<ResponseCapsule>() == 24);
const _: () = assert!(size_of::<Transfer>() == 24);

/// Bytes that a terminating PDU may copy of the header that was wrong.
pub const TERMINATION_COPY_MAX: usize = 128;
