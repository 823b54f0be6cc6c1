//! The back end of vhost-user: a block device for a virtual machine, over a unix socket and shared memory.
//!
//! The references are "Vhost-user Protocol" of QEMU's documentation and "Virtual I/O Device (VIRTIO) Version
//! 1.2", sections 2.7 (split virtqueues) and 5.2 (block device).
//!
//! ```text
//!   socket ──> wire ──> Session ─── start, stop ───> a queue on its shard
//!   kick ──> Ring::next ──> Chain ──> Limits::request ──> the block service ──> Ring::complete ──> call
//! ```
//!
//! * [`wire`]: the messages of the monitor, QEMU say, which is the *front end* of this protocol.
//! * [`config`]: features, and the space in which a device describes itself.
//! * [`ring`]: a split ring in the machine's memory; [`GuestMemory`] is what it asks of that.
//! * [`inflight`]: which requests are under way, in memory that outlives this server.
//! * [`request`]: what a request may be.
//! * [`front_end`], [`driver`]: the monitor's messages and its machine's side of a ring, for `bench` and
//!   tests.
//! * `queue`: one ring on one shard. `session`: one connection of a monitor; see [`serve`].
//!
//! Nothing that a machine or its monitor says is trusted. A machine may change any byte at any moment: what
//! is checked is a copy, and the copy is used. So the bytes of a write are those that parity is made of.

pub mod config;
pub mod driver;
pub mod front_end;
pub mod inflight;
pub mod request;
pub mod ring;
pub mod wire;

mod fuzz;
mod memory;
mod queue;
mod session;

pub use fuzz::fuzz_vhost_user;
pub use memory::GuestMemory;
pub use session::{Backend, Ended, serve};

/// Queues that a device can have.
pub const QUEUES_MAX: u16 = 64;
/// Descriptors of a ring at most, of which each request takes one or more.
pub const RING_SIZE_MAX: u16 = 1024;
/// Descriptors of one request at most: twice as many as [`config`] tells drivers to use.
pub const CHAIN_MAX: u16 = 256;
