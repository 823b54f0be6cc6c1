//! The server's side of FUSE: a [`BlockService`](pinstripe_block::BlockService) as one plain file.
//!
//! The reference is fuse(4) and `include/uapi/linux/fuse.h` of Linux, revisions 7.31 and newer.
//!
//! ```text
//!   /dev/fuse ──> Message::parse ──> Request ──> Description (what needs no I/O) ──────> reply
//!                                       └──────> File (bytes, by the block service) ──> reply
//! ```
//!
//! The file system is the file alone: its root is no directory, so there are no names. The kernel keeps
//! nothing of the file's bytes (`FOPEN_DIRECT_IO`), so all front ends of an array see the same.
//!
//! * [`wire`]: structures of requests and answers.
//! * [`Message`]: bytes to a checked [`Request`].
//! * [`Description`]: what the kernel is told about the file.
//! * [`Session`]: takes requests on one shard and answers them, until the file system goes or is given up.

pub mod wire;

mod description;
mod file;
mod request;
mod session;
#[cfg(test)]
mod tests;

pub use description::Description;
pub use request::{Fill, Message, PAYLOAD_BYTES_MAX, Request, fuzz_fuse};
pub use session::{Channel, Ended, OpenFiles, Session};
