//! Network Block Device: a fixed newstyle server.
//!
//! The reference is `doc/proto.md` of the NetworkBlockDevice/nbd project; section names in comments are its
//! own.
//!
//! ```text
//!   bytes in ──> Handshake ──(Negotiated)──> Transmission ──> Request ──> the block service
//!   bytes out <──┘   options                  headers   └──> Reply (what needs no service: refusals, hints)
//!                                             Replies    <── results, in any order
//! ```
//!
//! * [`wire`]: numbers and layouts of the protocol.
//! * [`ExportInfo`]: what a client is told about an export; checked when it is made.
//! * [`Handshake`]: option haggling. Ends in a [`Negotiated`] connection, or closed.
//! * [`Transmission`]: request headers become checked [`Request`]s; refused ones become replies at once.
//! * [`Replies`]: the bytes of an answer, into a fixed array.
//!
//! On top of it, with I/O: [`Server`] holds the exports of a shard and runs a session for each connection.
//!
//! What holds throughout: no byte from the client is asserted, each is checked; the client can make the
//! server hold at most [`OPTION_BYTES_MAX`] during haggling and one header afterwards (payloads are the
//! session's business, and it bounds them); the transmission phase allocates nothing; a request that leaves
//! this module lies within the export, is aligned to its blocks, and is not empty.

pub mod wire;

mod fuzz;
mod handshake;
mod info;
mod link;
mod options;
mod reply;
mod server;
mod session;
mod transmission;

pub use fuzz::fuzz_nbd;
pub use handshake::{Handshake, HandshakeEnd, HandshakeStep, Negotiated, OPTION_BYTES_MAX, Tls};
pub use info::{ExportInfo, ExportInfoError};
pub use reply::{Replies, Reply};
pub use server::{Export, Left, Security, Server, ServerError, SessionEnd};
pub use transmission::{Operation, Request, Transmission, TransmissionEvent, TransmissionStep};

use thiserror::Error;

/// Why the server hangs up: the client broke a rule after which the byte stream can't be understood or
/// trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Violation {
    /// The client set flags in its greeting that the server never offered.
    #[error("the client's greeting has unknown flags {0:#010x}")]
    ClientFlags(u32),
    /// An option doesn't begin with the option magic.
    #[error("an option begins with {0:#018x}, not with the option magic")]
    OptionMagic(u64),
    /// A client that didn't choose fixed newstyle sent an option other than EXPORT_NAME.
    #[error("option {0} from a client that does not speak fixed newstyle")]
    OptionNotFixed(u32),
    /// An option announces more data than is worth skipping.
    #[error("option {option} announces {length} bytes")]
    OptionLength {
        /// The option's number.
        option: u32,
        /// The announced bytes.
        length: u32,
    },
    /// More options than any client needs.
    #[error("the client sent more than {0} options")]
    OptionCount(u32),
    /// EXPORT_NAME asked for an export that isn't there; that option knows no error reply.
    #[error("the client asked by EXPORT_NAME for an export that does not exist")]
    ExportUnknown,
    /// EXPORT_NAME while the server stops; that option knows no error reply.
    #[error("the server is stopping")]
    Stopping,
    /// EXPORT_NAME without TLS, which the server requires; that option knows no error reply.
    #[error("the client asked by EXPORT_NAME for an export without TLS, which is required")]
    TlsRequired,
    /// The client went on after STARTTLS before it was answered, or something between the two did.
    #[error("{0} bytes came behind STARTTLS, before TLS had begun")]
    BehindStartTls(usize),
    /// A request doesn't begin with the request magic.
    #[error("a request begins with {0:#010x}, not with the request magic")]
    RequestMagic(u32),
    /// A write announces more payload than is worth skipping.
    #[error("a write announces {0} bytes of payload")]
    WriteLength(u32),
}
