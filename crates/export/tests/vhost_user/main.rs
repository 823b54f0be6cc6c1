//! vhost-user from the monitor's side: a hand-written one, with rings in a file in memory, against our back
//! end on real shards.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod device;
mod ending;
mod flipping;
mod hostile;
mod monitor;
mod server;
