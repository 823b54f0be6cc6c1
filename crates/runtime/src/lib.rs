//! The ground that Pinstripe stands on: a small deterministic executor (one *shard* per thread), pooled
//! aligned buffers, and the two seams to the world, [`Device`] and [`Stream`].
//!
//! Nothing above this crate names a thread, a clock or a system call. A task runs on one shard from spawn to
//! end; it gets time, memory and new tasks from [`shard`]. Production drives shards with io_uring, the
//! simulator with a seed; both run the same tasks.
//!
//! ```text
//!   task ── Device::read/write ──> Submission (a future)         completions, timers and wakes come from
//!     │                                │                         the driver of the shard: io_uring,
//!     └──── shard::spawn/sleep ────> Shard <── Mailbox <── wakes from other shards      or the simulator
//! ```
//!
//! Begin with [`shard`], which is what a task sees, and [`executor`], which is what a driver sees. Then:
//!
//! - [`device`], [`stream`], [`offload`]: the seams; [`completion`]: requests that are under way; [`buffer`]:
//!   their memory; [`memory`]: a device of memory
//! - [`signal`], [`mailbox`]: how a task learns that it may go on; [`atomics`]: what the model checker swaps
//! - `uring`: the driver of production, with sockets, files and devices over io_uring
//! - `trust`: which files and sockets other users could exchange

pub mod atomics;
pub mod buffer;
mod cache_lines;
pub mod completion;
pub mod device;
pub mod executor;
pub mod flushes;
pub mod mailbox;
pub mod memory;
pub mod mutants;
pub mod offload;
pub mod shard;
pub mod signal;
pub mod stream;
mod timers;
#[cfg(unix)]
pub mod trust;
#[cfg(target_os = "linux")]
pub mod uring;
pub mod watch;

pub use buffer::{Buffer, Pool, Slice, block_bytes};
pub use completion::{Completion, Outcome, Submission, SubmissionSet};
pub use device::{Device, DeviceError, DeviceErrorKind, DeviceInfo, DeviceSource, ZeroedReads};
pub use executor::{Shard, ShardConfig, ShardGone, ShardHandle};
pub use flushes::{FlushTicket, Flushes};
pub use memory::{Memory, MemoryDevice, MemorySource};
pub use offload::{Attachment, Offload, OffloadLimits, OperationId, Reducer, Reducers, Ticket};
pub use signal::Signal;
pub use stream::Stream;
pub use watch::{Observer, OverdueAction, RequestInfo, Watch};
