//! What all front ends have in common, and what they serve. No RAID, no protocol.
//!
//! A front end is a protocol by which clients reach block storage: NBD in `pinstripe-export`, NVMe/TCP in
//! `pinstripe-nvme`. It asks a [`BlockService`] and knows nothing of what is behind it: an array, or one
//! device of a server.
//!
//! Begin with [`service`]. The rest bounds what a client can cost:
//!
//! * [`budget`]: memory for requests and answers, of one connection and of all.
//! * [`outgoing`]: the order and the memory of what a connection sends.
//! * [`roster`]: how many connections there are, and which of them goes when there are too many.
//! * [`first_of`]: waiting for the first of two.
//! * [`locks`]: what keeps the bytes beside a write of less than a block.
//! * [`pieces`]: where a long discard may be ended.
//! * [`rate`]: so many requests and bytes in a second.
//! * [`wake`]: waiting for a condition within one shard.
//! * [`mutants`]: defects that tests switch on.
#![forbid(unsafe_code)]

pub mod budget;
pub mod first_of;
pub mod locks;
pub mod mutants;
pub mod outgoing;
pub mod pieces;
pub mod rate;
pub mod roster;
pub mod service;
pub mod wake;

pub use service::{BlockService, Client, ServiceError};
