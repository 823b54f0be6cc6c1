//! The engine: an array in service on MD's on-disk format, with stripe writes that take no global lock.
//!
//! Begin with [`io::volume`] and follow a write: `io/write.rs` has its whole way. Then `controller`, the task
//! that alone changes an array, and [`mod@array`], which is what the owner of an array holds.
//! `docs/architecture.md` tells the same in pictures.
//!
//! From the bottom up; a module uses those above it in this list, and no other (`cargo xtask tidy` checks
//! it):
//!
//! - `units`, `parts`, `turn`, [`mutants`] (defects that tests switch on)
//! - [`geometry`]: which byte lies on which member
//! - [`error`]: what can go wrong with a request
//! - [`stripe`]: what shards keep of the stripes that they write
//! - [`plan`]: what a stripe write reads and writes; pure
//! - [`events`], [`statistics`], [`latency`]
//! - [`ablation`]: locks and workers of older designs, for measurement
//! - [`options`]
//! - [`intent`]: the write-intent table
//! - [`members`]: the devices of an array, as all shards know them
//! - [`consistency`]: the logs that close the write hole
//! - [`membership`]: which member holds which slot, as values
//! - [`offload`]: work that the members' servers do
//! - [`shared`]: what the shards of one array share
//! - [`supervision`]: requests to members, watched
//! - [`io`]: users' requests
//! - [`assembly`]: from devices to an array, old or new
//! - `replay`: what a log from before the start says is brought to the members
//! - `controller`: what the home shard has of an array, and the task that alone changes it
//! - [`maintenance`]: resync, rebuild, check and repair
//! - [`mod@array`]: what the owner of an array holds
//! - [`status`]: what is told about an array
#![forbid(unsafe_code)]

pub mod ablation;
pub mod array;
pub mod assembly;
pub mod consistency;
mod controller;
pub mod error;
pub mod events;
pub mod geometry;
pub mod intent;
pub mod io;
pub mod latency;
pub mod maintenance;
pub mod members;
pub mod membership;
pub mod mutants;
pub mod offload;
pub mod options;
mod parts;
pub mod plan;
mod replay;
pub mod shared;
pub mod statistics;
pub mod status;
pub mod stripe;
pub mod supervision;
mod turn;
mod units;
