//! Which member holds which slot: the value that requests work with, the task that alone changes it, and the
//! commands of administrators.
//!
//! Begin with [`snapshot`], then [`control`].

pub mod admission;
pub(crate) mod commands;
pub(crate) mod control;
pub(crate) mod seating;
pub mod snapshot;
pub mod superblocks;
