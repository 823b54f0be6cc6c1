//! pinstripe-engine
#![forbid(unsafe_code)]

pub mod geometry;
