//! The array's controller.

pub(crate) mod journal;
pub(crate) mod logs;
pub(crate) mod policy;
