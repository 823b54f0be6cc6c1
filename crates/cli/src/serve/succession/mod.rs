//! A change of version that clients don't notice: another program takes this one's place in the same process.
//!
//! ```text
//!   upgrade    the other program is asked whether it can go on from here, before anything is disturbed
//!   the old    listening sockets are left, requests are finished, connections left between two of them, the
//!              array is stopped clean; then it becomes the other program by execve
//!   the new    has the sockets, the connections and the locks of the members, assembles the array, goes on,
//!              and answers the call that asked for it
//!   else       if the new one can't serve in time, it becomes the old program again, by the same way
//!   or         it hangs: then an alarm, which outlives execve, ends the process, and its manager starts anew
//! ```
//!
//! The process stays the same one, for its service manager too. What goes over is told in a file of memory
//! ([`will`]). What may be refused is refused before anything is disturbed ([`Candidate`], [`fitness`]): a
//! program that goes back has nothing but the same devices, files and sockets to start with.

mod candidate;
pub mod fitness;
mod settings;
mod will;

use std::os::fd::OwnedFd;

use pinstripe_export::nbd::Left;
use pinstripe_nvme::controller::LeftQueue;
use pinstripe_runtime::shard;
use serde_json::Value;

use crate::failure::Failure;

pub use candidate::{Candidate, answer};
pub use settings::Settings;
pub use will::{Caller, Estate, Inheritance, Means, Taken};

/// Of what goes over: another number is another content, which only programs that know it can take.
const FORMAT: u32 = 3;
/// Time that a program that was asked then has to serve the array.
const START_NANOSECONDS: u64 = 30_000_000_000;
/// Time that a program gets until the kernel ends it: what serves or goes back within the time above has
/// called that off, also on a busy machine.
const LIFE_SECONDS: u32 = 60;

/// The wish to be taken over. Nothing that it takes to hand over can fail any more.
pub struct Wish {
    pub candidate: Candidate,
    pub means: Means,
    /// The connection that asked for it, what has come on it behind the call, and the name of the call.
    pub caller: OwnedFd,
    pub received: Vec<u8>,
    pub call: Option<Value>,
    /// Listening sockets, in the order in which they were bound, by protocol.
    pub listeners: Vec<LeftListener>,
    /// What keeps the members locked.
    pub locks: Vec<OwnedFd>,
}

/// A listening socket that goes over.
pub struct LeftListener {
    pub protocol: String,
    pub socket: OwnedFd,
    /// Device and inode of a unix socket's file.
    pub file: Option<(u64, u64)>,
}

/// A connection that goes over.
pub struct Connected {
    pub socket: OwnedFd,
    /// The peer, as it is called.
    pub name: String,
    /// What was agreed on it; nothing of one that is still to be greeted.
    pub left: Option<Agreed>,
}

/// What was agreed on a connection, by its protocol.
pub enum Agreed {
    Nbd(Left),
    NvmeTcp(LeftQueue),
}

/// Waits for a start, not for ever.
pub async fn in_time<T>(start: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let late = || Failure::new(format!("it does not serve after {} s", START_NANOSECONDS / 1_000_000_000));
    shard::timeout(START_NANOSECONDS, start).await.unwrap_or_else(|| Err(late()))
}
