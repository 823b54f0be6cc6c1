//! The engine in the simulated world, from outside: one program, so that it is linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod ablation;
mod apart;
mod arrays;
mod behaviour;
mod believed;
mod bitmaps;
mod checkpoints;
mod economy;
#[cfg(feature = "mutants")]
mod fault_mutants;
mod faults;
mod forced;
mod golden;
mod in_place;
mod journal;
mod journal_crash;
mod layouts;
mod listed;
mod log_crashes;
mod log_limits;
mod logs;
mod maintenance;
mod majority;
mod membership;
mod memory;
mod offload;
#[cfg(feature = "mutants")]
mod offload_mutants;
mod ppl;
mod races;
mod replacement;
mod traps;
