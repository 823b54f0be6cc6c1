//! Which member holds which slot, as values.
//!
//! Begin with [`model`] and [`transition`], which are pure: what a membership is, and what an event makes of
//! it. [`snapshot`] is what requests work with. The task that brings events about is the
//! [`controller`](crate::controller).

pub mod admission;
pub(crate) mod attached;
pub(crate) mod model;
pub mod snapshot;
pub(crate) mod transition;

pub use model::MemberState;
