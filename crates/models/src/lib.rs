//! Model checks of what threads share: the tests of this crate, by `cargo test -p pinstripe-models --features
//! shuttle`.
//!
//! They are a crate of their own because shuttle's atomics have all below them built anew, and the tests of
//! the engine would have the simulator built with them.
#![forbid(unsafe_code)]
