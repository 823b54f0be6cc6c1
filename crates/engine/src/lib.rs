//! The engine: an array in service on MD's on-disk format, with stripe writes that take no global lock.
//!
//! Begin with [`io::volume`] and follow a write: `io/write.rs` has its whole way. Then [`mod@array`], which
//! is what the owner of an array holds. `docs/architecture.md` tells the same in pictures.
//!
//! From the bottom up:
//!
//! - [`error`], [`options`], [`mutants`] (defects that tests switch on)
//! - [`geometry`]: which byte lies on which member; [`plan`]: what a stripe write reads and writes. Both are
//!   pure.
//! - [`members`]: devices under supervision; [`intent`]: the write-intent bitmap
//! - [`membership`]: which member holds which slot, and the task that alone changes it
//! - [`shared`]: what the shards of one array share
//! - [`io`]: users' requests; [`consistency`]: the logs that close the write hole; [`offload`]: work that the
//!   members' servers do
//! - [`maintenance`]: resync, rebuild, check and repair
//! - [`status`]: what is told about an array
//! - [`assembly`]: from devices to an array, old or new
//! - [`mod@array`]: all of it together
#![forbid(unsafe_code)]

pub mod array;
pub mod assembly;
pub mod consistency;
pub(crate) mod controller;
pub mod error;
pub mod events;
pub mod geometry;
pub mod intent;
pub mod io;
pub mod maintenance;
pub mod members;
pub mod membership;
pub mod mutants;
pub mod offload;
pub mod options;
pub mod plan;
pub(crate) mod replay;
pub mod shared;
pub mod statistics;
pub mod status;
pub mod stripe;
pub mod supervision;
mod turn;
mod units;
