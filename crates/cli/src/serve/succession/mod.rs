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
//!   never      requests to members are still under way: then the process ends, too
//! ```
//!
//! The process stays the same one, for its service manager too. What goes over is told in a file of memory
//! ([`will`]). What may be refused is refused before anything is disturbed ([`Candidate`], [`fitness`]): a
//! program that goes back has nothing but the same devices, files and sockets to start with.
//!
//! What keeps a next server away until the last request of a dead one is over is the claim on the member,
//! which the request keeps. A next program in the same process inherits that claim, so it must not begin
//! before the last request is over ([`closed`], C16): the request could land behind its writes.

mod candidate;
pub mod fitness;
mod settings;
mod will;

use std::os::fd::OwnedFd;

use pinstripe_export::nbd::Left;
use pinstripe_nvme::controller::LeftQueue;
use pinstripe_runtime::{ShardHandle, shard};
use serde_json::Value;

use super::closing;
use crate::{failure::Failure, log};

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

/// Time that an array gets to stop which a start has left under way.
const STOP_NANOSECONDS: u64 = 10_000_000_000;
/// Time that requests to members get to end before the process becomes another program. With the times above
/// it is shorter than a program's life.
const CLOSE_NANOSECONDS: u64 = 8_000_000_000;

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

/// Stops what a start has left under way, not for ever.
pub async fn stopped_in_time(stop: impl Future<Output = ()>) {
    // What goes on is seen by the members that are open still.
    let _ = shard::timeout(STOP_NANOSECONDS, stop).await;
}

/// Waits until every member is closed, and with it the last request to one is over; not for ever. If one is
/// open still, the process must not become another program, but end. `why` it was to become one.
pub async fn closed(shards: &[ShardHandle], why: &str) -> Result<(), Failure> {
    let open = closing::closed(shards, CLOSE_NANOSECONDS).await;
    if open.is_empty() { Ok(()) } else { Err(ends(why, &open)) }
}

/// Says at once why the process ends: its end may take as long as the device that hangs.
fn ends(why: &str, members: &[String]) -> Failure {
    let words = format!(
        "{why}, and the array is not served any more: requests to {} are not over, and could land behind what another program \
         writes; this process ends, to be started anew",
        members.join(", ")
    );
    if !log::fail(&words) {
        return Failure::new(words);
    }
    log::flush();
    Failure::said()
}
