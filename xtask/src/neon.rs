//! The parity kernels of `AArch64`, tested under qemu-user: NEON has no other place here.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Statically linked by Rust's own linker, so that nothing of another architecture must be installed.
const TARGET: &str = "aarch64-unknown-linux-musl";

/// Runs the kernels' tests.
pub fn run(root: &Path) -> Result<()> {
    if !has_target()? {
        // Where there is no rustup, or it can't download, there is nothing to try them with.
        let _ = Command::new("rustup").args(["target", "add", TARGET]).status();
    }
    if !has_target()? {
        println!("neon: NOT TRIED: Rust's library for {TARGET} is missing (rustup target add {TARGET})");
        return Ok(());
    }
    crate::packages::ensure()?;
    let status = crate::cargo::command()
        .args(["test", "-p", "pinstripe-parity", "--target", TARGET])
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER", "rust-lld")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_RUNNER", "qemu-aarch64")
        .current_dir(root)
        .status()?;
    if !status.success() {
        bail!("the parity kernels fail under qemu-aarch64");
    }
    Ok(())
}

fn has_target() -> Result<bool> {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let output = Command::new(rustc)
        .args(["--print", "target-libdir", "--target", TARGET])
        .output()
        .context("run rustc")?;
    let folder = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    Ok(output.status.success() && Path::new(&folder).exists())
}
