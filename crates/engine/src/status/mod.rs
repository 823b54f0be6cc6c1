//! What is told about an array in service: its state, its events, its counters, and advice.

pub(crate) mod advice;
pub mod detail;
