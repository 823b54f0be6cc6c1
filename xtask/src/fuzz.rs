//! `cargo xtask fuzz`: runs every fuzz target for a while, on the compiler that is there.
//!
//! The targets are built the way cargo-fuzz builds them, without needing it: coverage instrumentation and the address
//! sanitizer by compiler flags, which `RUSTC_BOOTSTRAP` unlocks on a stable compiler.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

const TARGET: &str = "x86_64-unknown-linux-gnu";
const FLAGS: &str = "--cfg fuzzing -Zsanitizer=address -Cdebug-assertions -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Ccodegen-units=1";

/// Runs each target for `seconds`, or only `only`; fails on the first finding.
pub fn run(root: &Path, only: Option<&str>, seconds: u64) -> Result<()> {
    let binaries = build(root)?;
    let names: Vec<String> =
        targets(root)?.into_iter().filter(|name| only.is_none_or(|o| o == name)).collect();
    ensure!(!names.is_empty(), "there is no fuzz target of that name");
    for name in &names {
        let corpus = root.join("fuzz/corpus").join(name);
        fs::create_dir_all(&corpus)?;
        let mut command = Command::new(binaries.join(name));
        command.arg(&corpus);
        let seeds = root.join("fuzz/seeds").join(name);
        if seeds.exists() {
            command.arg(seeds);
        }
        command.arg(format!("-max_total_time={seconds}")).arg("-print_final_stats=1");
        command.arg(format!("-artifact_prefix={}/", artifacts(root, name)?.display()));
        let output = command.output().with_context(|| format!("run {name}"))?;
        let log = String::from_utf8_lossy(&output.stderr);
        let runs = log.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
        if !output.status.success() {
            bail!("{name} found something:\n{log}");
        }
        println!("fuzz {name}: {} runs in {seconds} s, nothing found", runs.map_or("?", str::trim));
    }
    println!("{} passed, 0 failed", names.len());
    Ok(())
}

fn artifacts(root: &Path, name: &str) -> Result<PathBuf> {
    let folder = root.join("fuzz/artifacts").join(name);
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// The targets' names: a file each.
fn targets(root: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root.join("fuzz/fuzz_targets"))? {
        if let Some(name) = entry?.path().file_stem() {
            names.push(name.to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn build(root: &Path) -> Result<PathBuf> {
    let target = root.join("fuzz/target");
    let status = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["build", "--release", "--locked", "--bins", "--target", TARGET, "--manifest-path"])
        .arg(root.join("fuzz/Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .env("RUSTFLAGS", FLAGS)
        .env("RUSTC_BOOTSTRAP", "1")
        .status()?;
    ensure!(status.success(), "the fuzz targets don't build");
    Ok(target.join(TARGET).join("release"))
}
