//! The engine: stripe writes without a global lock, correct on MD's on-disk format.
#![forbid(unsafe_code)]

pub mod admission;
mod advice;
pub mod array;
pub mod assembly;
pub mod consistency;
mod control;
pub mod cost;
pub mod create;
pub mod decode;
pub mod detail;
pub mod error;
pub mod events;
mod fan_out;
mod flush;
pub mod geometry;
pub mod image;
pub mod intent;
mod intent_writer;
pub mod maintenance;
pub mod members;
mod membership;
pub mod mutants;
pub mod options;
pub mod parity_cache;
pub mod plan;
mod read;
pub mod records;
mod row;
mod seating;
pub mod shared;
pub mod snapshot;
pub mod statistics;
pub mod stripe_table;
mod striped;
pub mod volume;
mod write;
