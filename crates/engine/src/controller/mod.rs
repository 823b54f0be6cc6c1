//! The array's controller.

pub(crate) mod attach;
pub(crate) mod journal;
pub(crate) mod logs;
pub(crate) mod policy;
