//! The `pinstripe` binary as its users run it, over files in a temporary folder.

#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

mod bench;
mod configured;
mod control;
mod daemon;
mod demo;
mod devices;
mod disaggregated;
mod exchange;
mod fuse;
mod handover;
mod hosts;
mod https;
mod life;
mod limit;
mod log;
mod maintenance;
mod membership;
mod memory;
mod nbd;
mod nvme;
mod occupied;
mod parity_kernel;
mod record;
mod refusals;
mod room;
mod silent;
mod sockets;
mod supervised;
mod tls;
mod top;
mod units;
mod upgrade;
mod web;
mod world;
