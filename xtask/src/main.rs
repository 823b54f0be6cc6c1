//! `cargo xtask`: everything a contributor runs.

fn main() {}
