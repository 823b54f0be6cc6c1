//! The seam to peers: connected bytes.

use std::net::IpAddr;

use crate::{Buffer, Slice, Submission};

/// A connection. One receive and one send may be under way at a time each.
pub trait Stream {
    /// Receives at least one byte into the front of `buffer`; the outcome's count says how many, 0 means that
    /// the peer has closed.
    fn receive(&self, buffer: Buffer) -> Submission;
    /// Sends some of `data` from its front; the outcome's count says how many, at least one.
    fn send(&self, data: Slice) -> Submission;
    /// Has `receive`, a receive of this stream that is under way, complete soon: with the bytes that have
    /// come, or with an error and none lost. The connection stays. Without effect on a stream that can't.
    fn interrupt(&self, receive: &Submission) {
        let _ = receive;
    }
    /// Ends the connection both ways: requests under way complete, with an error or with what they have.
    fn shutdown(&self);
    /// Whether the peer has ended what it sends, or is gone, although there may be bytes of it that were not
    /// received yet. False on a stream that can't tell. Cheap enough to be asked for every request: a task
    /// that has noted just now that its work has come, by [`note_arrival`](crate::shard::note_arrival), is
    /// told how it was then. All others are told how it is at this moment.
    fn has_hung_up(&self) -> bool {
        false
    }
    /// The machine at the other end, if it is known: what one of them can take is bounded.
    fn peer(&self) -> Option<IpAddr> {
        None
    }
}
