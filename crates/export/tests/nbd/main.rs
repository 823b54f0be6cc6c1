//! The NBD server, seen by a client that speaks in bytes.
#![allow(clippy::unwrap_used, reason = "the helpers of a test may fail as the test itself")]

mod client;
mod fragments;
mod handshake;
mod leaving;
mod session;
mod tls;
mod transmission;
mod volume;
mod world;
