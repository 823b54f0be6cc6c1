//! The engine: stripe writes without a global lock, correct on MD's on-disk format.
#![forbid(unsafe_code)]

pub mod admission;
pub mod cost;
pub mod decode;
pub mod error;
mod fan_out;
mod flush;
pub mod geometry;
pub mod image;
pub mod intent;
pub mod mutants;
pub mod options;
pub mod parity_cache;
pub mod plan;
mod read;
mod row;
pub mod shared;
pub mod snapshot;
pub mod statistics;
pub mod stripe_table;
mod striped;
pub mod volume;
mod write;
