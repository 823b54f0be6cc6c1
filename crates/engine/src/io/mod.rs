//! Users' requests on a shard: reads, writes, flushes and zeroes, from a [`Volume`](volume::Volume) to the
//! members.
//!
//! Begin with [`volume`], then [`write`](mod@write), whose module text has the whole way of a stripe write.

pub mod bad_blocks;
pub(crate) mod base;
pub(crate) mod entry;
pub(crate) mod fan_out;
pub(crate) mod flush;
pub(crate) mod heal;
pub(crate) mod logging;
pub(crate) mod missed;
pub(crate) mod parity;
pub(crate) mod read;
pub mod recorder;
pub(crate) mod remote;
pub(crate) mod room;
pub(crate) mod row;
pub mod service;
pub(crate) mod striped;
pub mod volume;
pub(crate) mod widen;
pub(crate) mod write;
