//! An initiator: namespaces of any NVMe/TCP target as devices.
//!
//! ```text
//!   Initiator ── one Association per server and subsystem ── admin queue, keep-alive (on the shard that opened it)
//!      │                     │
//!   NvmeSource (a namespace) └── a queue per shard ── Device::read/write ──> commands ──> Stream
//! ```
//!
//! * [`Address`], written `nvme-tcp://HOST:PORT/NQN?nsid=N`.
//! * [`Initiator`]: the associations of a process; members on the same server share one.
//! * [`NvmeSource`]: a namespace, to be attached by every shard.
//!
//! **Loss.** An association lives once. When a connection of it breaks, a command takes longer than its
//! time-out (unless one namespace's disk may be the reason, and others are used too), or the peer breaks the
//! protocol, all its queues end, every command in flight and every later one fails with
//! [`Gone`](pinstripe_runtime::DeviceErrorKind::Gone), and the devices stay gone: a lost server is a lost
//! member. No command is repeated while its first copy might still be carried out (C25). The server's return
//! is a new association and a re-add. That waits until the server must have given up the old association,
//! because the keep-alive time has passed: so no old write can land behind a new one (C16).
//!
//! A namespace of which the server says that it has changed is lost alone, likewise for good.
//!
//! Only what the server itself says was not done is tried again on the same association.

mod address;
mod association;
mod authenticate;
mod connection;
mod device;
mod identity;
mod lanes;
mod notices;
pub(crate) mod offload;
mod queue;
mod request;
#[cfg(feature = "tls")]
mod secure;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::rc::Rc;

use pinstripe_runtime::Stream;

pub use address::{Address, BadAddress};
pub use association::{Initiator, Options};
#[cfg(target_os = "linux")]
pub use connection::TcpConnector;
pub use device::{NvmeSource, Presence};
#[cfg(feature = "tls")]
pub use secure::connector;

use crate::auth::AuthenticationError;
use crate::wire::pdu::FatalError;
use crate::wire::status::Status;

/// A connection in the making.
pub type Connecting = Pin<Box<dyn Future<Output = io::Result<Rc<dyn Stream>>>>>;

/// How to reach servers: sockets, or the simulator's streams.
pub trait Connector: Send + Sync {
    /// Connects the current shard to the server of `address`, for its subsystem.
    fn connect(&self, address: &Address) -> Connecting;
}

/// Why a namespace can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InitiatorError {
    /// No connection.
    #[error("can't connect to {server}: {reason}")]
    Connect {
        /// Host and port.
        server: String,
        /// What the system said.
        reason: String,
    },
    /// The server didn't answer in time.
    #[error("{server} does not answer")]
    Silent {
        /// Host and port.
        server: String,
    },
    /// The server closed the connection or broke the protocol.
    #[error("the connection to {server} has ended: {reason}")]
    Lost {
        /// Host and port.
        server: String,
        /// Why.
        reason: String,
    },
    /// The server refused a command.
    #[error("{server} refuses {what}: {status}")]
    Refused {
        /// Host and port.
        server: String,
        /// The command.
        what: &'static str,
        /// Its answer.
        status: Status,
    },
    /// This host could not prove its identity, or the server could not.
    #[error("{server} can't be used as {nqn}: {reason}")]
    Authentication {
        /// Host and port.
        server: String,
        /// The subsystem.
        nqn: String,
        /// Why.
        reason: AuthenticationError,
    },
    /// There is no such namespace.
    #[error("{server} has no namespace {namespace}; `pinstripe discover` or `nvme list` shows what is there")]
    NoNamespace {
        /// Host and port.
        server: String,
        /// Its number.
        namespace: u32,
    },
    /// Something that we can't use.
    #[error("{server} can't be used: {reason}")]
    Unusable {
        /// Host and port.
        server: String,
        /// Why.
        reason: &'static str,
    },
}

/// Why an association has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    Closed,
    Timeout,
    Protocol(FatalError),
    Terminated(u16),
    Dropped,
}

impl std::fmt::Display for Loss {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Closed => write!(f, "it was closed"),
            Self::Timeout => write!(f, "a command was not answered in time"),
            Self::Protocol(error) => write!(f, "the server broke the protocol ({error:?})"),
            Self::Terminated(status) => write!(f, "the server ended it (status {status})"),
            Self::Dropped => write!(f, "nothing uses it any more"),
        }
    }
}
