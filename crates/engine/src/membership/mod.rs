//! Which member holds which slot: the value that requests work with, the task that alone changes it, and the
//! commands of administrators.
//!
//! Begin with [`model`] and [`transition`], which are pure: what a membership is, and what an event makes of
//! it. [`snapshot`] is what requests work with; [`control`] is the task that brings events about.

pub mod admission;
pub(crate) mod attached;
pub(crate) mod commands;
pub(crate) mod control;
pub(crate) mod handles;
mod loss;
pub(crate) mod model;
pub(crate) mod seating;
pub mod snapshot;
pub mod superblocks;
pub(crate) mod transition;
pub(crate) mod update;
