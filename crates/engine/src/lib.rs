//! The engine: stripe writes without a global lock, correct on MD's on-disk format.
#![forbid(unsafe_code)]

pub mod admission;
pub mod geometry;
pub mod intent;
pub mod parity_cache;
pub mod plan;
pub mod stripe_table;
