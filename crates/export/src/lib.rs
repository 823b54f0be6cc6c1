//! NBD: the Network Block Device protocol, over any [`BlockService`](pinstripe_block::BlockService).
//!
//! The protocol is split in two. The *core* turns bytes into requests and results into bytes; it does no
//! I/O, has no clock and can be driven by a test, a fuzzer or the simulator. The *session* runs the core over
//! a connected stream and a service, on one shard.
//!
//! Begin with [`nbd`]: the way of a request goes from `nbd/session.rs` to `nbd/transmission.rs` and back by
//! `nbd/link.rs`.
#![forbid(unsafe_code)]

pub mod nbd;
