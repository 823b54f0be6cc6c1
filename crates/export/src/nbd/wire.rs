//! Numbers and layouts of the NBD protocol. All integers on the wire are big-endian.

use core::mem::size_of;

use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First word of the server's greeting, `NBDMAGIC`.
pub const GREETING_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// Second word of the greeting, and first of each option: `IHAVEOPT`.
pub const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// First word of each reply to an option.
pub const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// First word of each request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// First word of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// First word of a chunk of a structured reply.
pub const CHUNK_MAGIC: u32 = 0x668e_33ef;

/// Largest payload of a READ or WRITE, in bytes; announced as the maximum block size.
pub const PAYLOAD_BYTES_MAX: u32 = 32 << 20;
/// Longest string (export name, description, message) that the protocol allows, in bytes.
pub const STRING_BYTES_MAX: usize = 4096;
/// Zero bytes after the reply to EXPORT_NAME, unless both sides agreed to leave them out.
pub const EXPORT_NAME_ZEROES: usize = 124;
/// The one metadata context that is defined by the protocol itself.
pub const CONTEXT_ALLOCATION: &str = "base:allocation";
/// Our identifier of [`CONTEXT_ALLOCATION`]; clients treat it as opaque.
pub const CONTEXT_ALLOCATION_ID: u32 = 1;

/// Handshake flags, sent by the server.
pub mod handshake_flag {
    /// Options other than EXPORT_NAME get replies.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// The zeroes after EXPORT_NAME's reply can be left out.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Transmission flags: what an export can do.
pub mod transmission_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is understood.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The FUA command flag is understood.
    pub const SEND_FUA: u16 = 1 << 3;
    /// TRIM is understood.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES and NO_HOLE are understood.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The DF command flag is understood; only with structured replies.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers the writes completed on all.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// CACHE is understood.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// FAST_ZERO is understood.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Options of the handshake.
pub mod option {
    /// Choose an export, without any reply on failure.
    pub const EXPORT_NAME: u32 = 1;
    /// Leave.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Begin TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and enter the transmission phase.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Kinds of replies to options.
pub mod option_reply {
    /// Success, or the end of a list.
    pub const ACK: u32 = 1;
    /// An export's name and description.
    pub const SERVER: u32 = 2;
    /// A fact about an export.
    pub const INFO: u32 = 3;
    /// A metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// The option isn't known here.
    pub const ERR_UNSUP: u32 = (1 << 31) + 1;
    /// The option's data is malformed, or the option isn't allowed now.
    pub const ERR_INVALID: u32 = (1 << 31) + 3;
    /// The option needs TLS.
    pub const ERR_TLS_REQD: u32 = (1 << 31) + 5;
    /// There is no such export.
    pub const ERR_UNKNOWN: u32 = (1 << 31) + 6;
    /// The server is stopping.
    pub const ERR_SHUTDOWN: u32 = (1 << 31) + 7;
    /// The option's data is too long.
    pub const ERR_TOO_BIG: u32 = (1 << 31) + 9;
}

/// Facts about an export, in replies to INFO and GO.
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// Canonical name.
    pub const NAME: u16 = 1;
    /// Description for people.
    pub const DESCRIPTION: u16 = 2;
    /// Minimum, preferred and maximum block size.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Commands of the transmission phase.
pub mod command {
    /// Read bytes.
    pub const READ: u16 = 0;
    /// Write bytes; the payload follows the header.
    pub const WRITE: u16 = 1;
    /// Leave; there is no reply.
    pub const DISC: u16 = 2;
    /// Make all completed writes durable.
    pub const FLUSH: u16 = 3;
    /// Forget bytes.
    pub const TRIM: u16 = 4;
    /// A hint that bytes will be read.
    pub const CACHE: u16 = 5;
    /// Write zeroes, without payload.
    pub const WRITE_ZEROES: u16 = 6;
    /// Ask for metadata.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Flags of commands.
pub mod command_flag {
    /// Durable before the reply; allowed with every command.
    pub const FUA: u16 = 1 << 0;
    /// WRITE_ZEROES must not make a hole.
    pub const NO_HOLE: u16 = 1 << 1;
    /// READ must be answered by at most one content chunk.
    pub const DF: u16 = 1 << 2;
    /// BLOCK_STATUS must be answered by one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// WRITE_ZEROES must fail at once if it wouldn't be faster than a write.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Kinds of chunks in a structured reply.
pub mod chunk {
    /// No content; ends a reply.
    pub const NONE: u16 = 0;
    /// An offset and the bytes there.
    pub const OFFSET_DATA: u16 = 1;
    /// A context identifier and extents.
    pub const BLOCK_STATUS: u16 = 5;
    /// An error and a message.
    pub const ERROR: u16 = (1 << 15) + 1;
    /// Flag: this is the reply's last chunk.
    pub const FLAG_DONE: u16 = 1 << 0;
}

/// Error numbers of the transmission phase. They are the protocol's own and do not follow the host's `errno`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum ErrorCode {
    /// Operation not permitted: a write to a read-only export.
    Permission = 1,
    /// Input/output error.
    Io = 5,
    /// Out of memory.
    Memory = 12,
    /// Invalid argument.
    Invalid = 22,
    /// No space left: a write past the end.
    Space = 28,
    /// Too large to be answered in one chunk (only as reply to a READ with DF).
    Overflow = 75,
    /// Not supported (only as reply to a WRITE_ZEROES with FAST_ZERO).
    Unsupported = 95,
    /// The server is stopping.
    Shutdown = 108,
}

impl ErrorCode {
    /// The number on the wire.
    pub const fn number(self) -> u32 {
        self as u32
    }
}

/// The server's first bytes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct Greeting {
    /// [`GREETING_MAGIC`]
    pub magic: U64,
    /// [`OPTION_MAGIC`]
    pub option_magic: U64,
    /// [`handshake_flag`]
    pub flags: U16,
}

/// Header of an option; `length` bytes follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OptionHeader {
    /// [`OPTION_MAGIC`]
    pub magic: U64,
    /// [`option`]
    pub option: U32,
    /// Bytes that follow.
    pub length: U32,
}

/// Header of a reply to an option; `length` bytes follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OptionReplyHeader {
    /// [`OPTION_REPLY_MAGIC`]
    pub magic: U64,
    /// The option that is answered.
    pub option: U32,
    /// [`option_reply`]
    pub kind: U32,
    /// Bytes that follow.
    pub length: U32,
}

/// Header of a request; a WRITE's payload follows.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct RequestHeader {
    /// [`REQUEST_MAGIC`]
    pub magic: U32,
    /// [`command_flag`]
    pub flags: U16,
    /// [`command`]
    pub command: U16,
    /// The client's name for the request, repeated in the reply.
    pub cookie: U64,
    /// First byte of the range.
    pub offset: U64,
    /// Bytes of the range.
    pub length: U32,
}

/// A simple reply; a READ's data follows.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SimpleReplyHeader {
    /// [`SIMPLE_REPLY_MAGIC`]
    pub magic: U32,
    /// 0 or an [`ErrorCode`].
    pub error: U32,
    /// The request's cookie.
    pub cookie: U64,
}

/// Header of a chunk of a structured reply; `length` bytes follow.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ChunkHeader {
    /// [`CHUNK_MAGIC`]
    pub magic: U32,
    /// [`chunk::FLAG_DONE`]
    pub flags: U16,
    /// [`chunk`]
    pub kind: U16,
    /// The request's cookie.
    pub cookie: U64,
    /// Bytes that follow.
    pub length: U32,
}

const _: () = assert!(size_of::<Greeting>() == 18);
const _: () = assert!(size_of::<OptionHeader>() == 16);
const _: () = assert!(size_of::<OptionReplyHeader>() == 20);
const _: () = assert!(size_of::<RequestHeader>() == 28);
const _: () = assert!(size_of::<SimpleReplyHeader>() == 16);
const _: () = assert!(size_of::<ChunkHeader>() == 20);
