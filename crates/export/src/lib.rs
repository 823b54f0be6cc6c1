//! Front ends: the protocols by which clients reach a Pinstripe array.
//!
//! Each protocol is split in two. The *core* turns bytes into requests and results into bytes; it does no
//! I/O, has no clock and can be driven by a test, a fuzzer or the simulator. The *session* runs the core over
//! a connected stream and a [`BlockService`], on one shard.
//!
//! * [`service`]: what a front end asks of an array; [`VolumeService`] is the array's own.
//! * [`nbd`]: the Network Block Device protocol.
//! * [`outgoing`]: the order and the memory of what a connection sends, whatever the protocol.
#![forbid(unsafe_code)]

pub mod budget;
pub mod mutants;
pub mod nbd;
pub mod outgoing;
pub mod roster;
pub mod service;

mod volume;
mod wake;

pub use service::{BlockService, ServiceError};
pub use volume::VolumeService;
