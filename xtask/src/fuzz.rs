//! `cargo xtask fuzz`: runs every fuzz target for a while, on the compiler that is there.
//!
//! The targets are built the way cargo-fuzz builds them, without needing it: coverage instrumentation and the
//! address sanitizer by compiler flags, which `RUSTC_BOOTSTRAP` unlocks on a stable compiler.
//!
//! A target begins with `fuzz/seeds/TARGET` (by hand and from the golden images) and `fuzz/corpus/TARGET`
//! (what earlier runs found, as few files as reach the same code). What it finds now goes to
//! `fuzz/target/corpus/TARGET`, beside the repository; `--minimise` takes of it into the corpus what is new.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::json;

use crate::workers;

const TARGET: &str = "x86_64-unknown-linux-gnu";
const FLAGS: &str = "--cfg fuzzing -Zsanitizer=address -Cdebug-assertions -Cpasses=sancov-module \
    -Cllvm-args=-sanitizer-coverage-level=4 -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares \
    -Ccodegen-units=1";
/// Longest input: longer ones find nothing here and make the corpus fat.
const INPUT_BYTES_MAX: &str = "-max_len=8192";

/// Runs the fuzz targets for a while.
#[derive(Args)]
pub struct Fuzz {
    /// Only this target.
    target: Option<String>,
    /// Seconds for each.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// Targets at a time: each uses one processor.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Afterwards reduce what was found to the few inputs that reach it, and keep them in `fuzz/corpus`.
    #[arg(long)]
    minimise: bool,
    /// Print a JSON line for each target.
    #[arg(long)]
    json: bool,
}

/// Runs the targets, so many at a time; fails if one found something.
pub fn run(root: &Path, fuzz: &Fuzz) -> Result<()> {
    let binaries = build(root)?;
    let mut names = targets(root)?;
    names.retain(|name| fuzz.target.as_ref().is_none_or(|only| only == name));
    ensure!(!names.is_empty(), "there is no fuzz target of that name");
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
            let target = Target::new(root, name, binaries.join(name))?;
            let figures = target.run(fuzz.seconds)?;
            if fuzz.json {
                println!("{}", figures.json(name));
            } else {
                println!("fuzz {name}: {}, nothing found", figures.words());
            }
            if fuzz.minimise {
                target.minimise()?;
            }
        }
        Ok(())
    };
    workers::run(fuzz.jobs.clamp(1, names.len()), work)?;
    println!("{} passed, 0 failed", names.len());
    Ok(())
}

/// A target and where its inputs are.
struct Target {
    name: String,
    binary: PathBuf,
    seeds: PathBuf,
    corpus: PathBuf,
    found: PathBuf,
    artifacts: PathBuf,
}

/// What a run came to.
struct Figures {
    runs: u64,
    seconds: f64,
    cpu_seconds: f64,
    edges: u64,
}

impl Target {
    fn new(root: &Path, name: &str, binary: PathBuf) -> Result<Self> {
        let folder = |part: &str| -> Result<PathBuf> {
            let folder = root.join("fuzz").join(part).join(name);
            fs::create_dir_all(&folder)?;
            Ok(folder)
        };
        Ok(Self {
            name: name.to_owned(),
            binary,
            seeds: folder("seeds")?,
            corpus: folder("corpus")?,
            found: folder("target/corpus")?,
            artifacts: folder("artifacts")?,
        })
    }

    fn run(&self, seconds: u64) -> Result<Figures> {
        let start = Instant::now();
        // The shell's `times` tells the CPU time of what it ran.
        let mut command = Command::new("sh");
        command.args(["-c", "\"$0\" \"$@\"; status=$?; times >&2; exit $status"]).arg(&self.binary);
        command.args([&self.found, &self.corpus, &self.seeds]);
        command.arg(format!("-max_total_time={seconds}")).args(["-print_final_stats=1", INPUT_BYTES_MAX]);
        command.arg(format!("-artifact_prefix={}/", self.artifacts.display()));
        let output = command.output().with_context(|| format!("run {}", self.name))?;
        let log = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() {
            bail!("{} found something:\n{log}", self.name);
        }
        let runs = log.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
        let edges = log.lines().rev().find_map(|line| line.split_once(" cov: ")?.1.split(' ').next());
        Ok(Figures {
            runs: runs
                .and_then(|runs| runs.trim().parse().ok())
                .context("the fuzzer printed no number of runs")?,
            seconds: start.elapsed().as_secs_f64(),
            cpu_seconds: log.lines().last().map_or(0.0, cpu_seconds),
            edges: edges.and_then(|edges| edges.parse().ok()).unwrap_or(0),
        })
    }

    /// Replaces the corpus by the smallest set of inputs that reaches all that corpus and findings reach and
    /// the seeds don't.
    fn minimise(&self) -> Result<()> {
        let fresh = self.corpus.with_extension("new");
        let _ = fs::remove_dir_all(&fresh);
        fs::create_dir_all(&fresh)?;
        let mut command = Command::new(&self.binary);
        command.args(["-merge=1", INPUT_BYTES_MAX]).args([&fresh, &self.seeds, &self.corpus, &self.found]);
        let output = command.output()?;
        ensure!(
            output.status.success(),
            "{}: the merge fails: {}",
            self.name,
            String::from_utf8_lossy(&output.stderr)
        );
        for entry in fs::read_dir(&self.seeds)? {
            // Seeds come along under the name of their sum; once is enough.
            let seed = fs::read(entry?.path())?;
            for entry in fs::read_dir(&fresh)? {
                let path = entry?.path();
                if fs::read(&path)? == seed {
                    fs::remove_file(path)?;
                }
            }
        }
        fs::remove_dir_all(&self.corpus)?;
        Ok(fs::rename(&fresh, &self.corpus)?)
    }
}

impl Figures {
    fn words(&self) -> String {
        format!(
            "{} runs in {:.0} s ({:.0} s of CPU), {} edges",
            self.runs, self.seconds, self.cpu_seconds, self.edges
        )
    }

    fn json(&self, name: &str) -> serde_json::Value {
        json!({
            "target": name, "runs": self.runs, "seconds": self.seconds, "cpu_seconds": self.cpu_seconds,
            "edges": self.edges,
        })
    }
}

/// User and system time together, from a line of `times`: `1m2.5s 0m0.25s`.
fn cpu_seconds(line: &str) -> f64 {
    let seconds = |time: &str| {
        let (minutes, seconds) = time.trim_end_matches('s').split_once('m')?;
        Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
    };
    line.split_whitespace().filter_map(seconds).sum()
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
    let status = crate::cargo::command()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shells_times_add_up() {
        assert!((cpu_seconds("1m2.5s 0m0.25s") - 62.75).abs() < 1e-9);
        assert!(cpu_seconds("nothing of the kind").abs() < 1e-9);
    }
}
