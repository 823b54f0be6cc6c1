//! Ways to use any [`BlockService`](pinstripe_block::BlockService) as a disk: NBD, the Network Block Device
//! protocol, ublk, Linux's driver for block devices in user space, FUSE, its driver for file systems in user
//! space, by which it is a file, and vhost-user, for virtual machines.
//!
//! Each is split in two. The *core* turns bytes into requests and results into bytes; it does no I/O, has no
//! clock and can be driven by a test, a fuzzer or the simulator. Above it, with I/O on one shard: a *session*
//! of [`nbd`] runs the core over a connected stream, a *queue* of [`ublk`] over the kernel's descriptors, a
//! session of [`fuse`] over a connection to the kernel, a queue of [`vhost_user`] over a machine's memory.
//!
//! Begin with [`nbd`]: the way of a request goes from `nbd/session.rs` to `nbd/transmission.rs` and back by
//! `nbd/link.rs`. [`ublk`] is `ublk/queue.rs` and `ublk/request.rs`, [`fuse`] is `fuse/session.rs` and
//! `fuse/request.rs`.
#![forbid(unsafe_code)]

mod errno;
pub mod fuse;
pub mod nbd;
mod pieces;
pub mod tls;
pub mod ublk;
pub mod vhost_user;
