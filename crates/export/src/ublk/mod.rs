//! The server's side of the kernel's ublk driver.
//!
//! The reference is `Documentation/block/ublk.rst` and `include/uapi/linux/ublk_cmd.h` of Linux.
//!
//! ```text
//!   descriptor ──> Limits::request ──> Request ──> the block service ──> result, bytes or an error number
//! ```
//!
//! * [`wire`]: structures of the control commands and of requests.
//! * [`Limits`]: what a request may be; [`Limits::request`] turns a descriptor into a checked [`Request`].
//! * [`parameters`]: what the kernel is told about the device.
//! * [`serve_tag`]: fetches the requests of one tag and answers them, until the device is stopped.
//! * [`Spread`]: which shard carries a request out.

pub mod wire;

mod parameters;
mod queue;
mod request;
mod spread;

pub use parameters::{mark, parameters};
pub use queue::{Ended, Leave, RequestData, RequestQueue, Worker, serve_tag};
pub use request::{Limits, Operation, Range, Refused, Request};
pub use spread::{Helped, Loads, Spread};

#[cfg(test)]
pub(crate) use queue::tests;
