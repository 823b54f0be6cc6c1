//! `cargo xtask`: everything a contributor runs.
//!
//! Begin with `steps`: what `cargo xtask test` consists of, each step with its command. `tidy` (with
//! `imports`, `documents`, `diagram`) reads the sources; `sim`, `mutate`, `fuzz` and `soak` look for defects;
//! `vm` boots guests with the kernel's MD; `net` is a laboratory of network namespaces; `golden` makes the
//! images that tests compare with.
#![forbid(unsafe_code)]

mod apps;
mod axis;
mod bars;
mod bench;
mod cargo;
mod commits;
mod cost;
mod deb;
mod defects;
mod diagram;
mod documents;
mod figures;
mod fuzz;
mod golden;
mod imports;
mod mounts;
mod mutate;
mod nbd;
mod neon;
mod net;
mod origin;
mod packages;
mod pattern;
mod random;
mod sim;
mod soak;
mod steps;
mod tidy;
mod vm;
mod web;
mod workers;
mod writer;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Everything a contributor to Pinstripe runs.
#[derive(Parser)]
#[command(name = "cargo xtask")]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Run every check: format, lints, style, unit tests, the VM.
    Test(steps::Test),
    /// Check the limits of the house style that a program can check.
    Tidy,
    /// Try the arrays against Debian's kernel and mdadm in QEMU.
    Vm {
        /// Run only the scenarios whose name contains this.
        #[arg(long)]
        only: Option<String>,
        /// Leave out those that CI has no time for.
        #[arg(long, conflicts_with = "only")]
        sample: bool,
        /// Begin no scenario that might not end within so many seconds from now; say which were left out.
        #[arg(long, value_name = "SECONDS")]
        within: Option<u64>,
        /// Show the scenarios and what each one tries.
        #[arg(long)]
        list: bool,
        /// Keep the members' images of scenarios that passed, too.
        #[arg(long)]
        keep: bool,
        /// Scenarios at a time. A boot waits about as long as it computes.
        #[arg(long, default_value_t = 2)]
        jobs: usize,
        /// Measure beside MD, instead of any scenario: `cargo xtask bench vm`, which has options.
        #[arg(long, conflicts_with_all = ["only", "sample", "list", "keep"])]
        bench: bool,
        #[command(flatten)]
        debian: vm::debian::Debian,
    },
    /// Measure ours beside MD and others, and write docs/results/performance.md.
    Bench(bench::Bench),
    /// Measure the papers' figures on ours, and write docs/results/papers/.
    Figures(figures::Figures),
    /// Run seeds of the swarm simulation of the engine.
    Sim(sim::Sim),
    /// Show that the simulation's oracle finds every deliberate defect of the engine.
    Mutants(sim::Mutants),
    /// Sample defects that were not planned, and look which of them tests and swarm find.
    Mutate(mutate::Mutate),
    /// Run the fuzz targets for a while.
    Fuzz(fuzz::Fuzz),
    /// Kill servers and machines under load, over and over, and look for a byte that is lost.
    #[command(subcommand)]
    Soak(soak::Soak),
    /// Try and measure arrays over NVMe/TCP on a network of this machine's own namespaces (as root).
    Net(net::Net),
    /// Kill the server under PostgreSQL, RocksDB and SQLite, and have each judge what is left (as root).
    Apps(apps::Apps),
    /// Count the instructions of requests in the engine, and compare with those on record.
    Cost(cost::Cost),
    /// Make the Debian package under target/debian, and check it.
    Deb(deb::Deb),
    /// Try the daemon's page in a headless Chromium, and take pictures of it.
    Web(web::Web),
    /// Test the NEON parity kernels under qemu-user, if Rust's library for AArch64 is installed.
    Neon,
    /// Make the golden images that the original set lacks, with mdadm in the VM.
    Golden {
        /// Where to put images and `manifest-extra.json`.
        #[arg(default_value = "crates/md/tests/golden")]
        directory: PathBuf,
    },
    /// Write or verify the test pattern on a file or device (the VM's guest uses this).
    #[command(subcommand)]
    Pattern(PatternTask),
}

#[derive(Subcommand)]
enum PatternTask {
    /// Write runs of blocks, each `FIRST:END=GENERATION`, in 4 KiB blocks.
    Write {
        /// A file or block device.
        path: PathBuf,
        /// What to write, in this order.
        runs: Vec<pattern::Run>,
    },
    /// Verify the first BLOCKS blocks: later runs override earlier ones, the rest is zero.
    Verify {
        /// A file or block device.
        path: PathBuf,
        /// How many 4 KiB blocks it has.
        blocks: u64,
        /// What is expected.
        runs: Vec<pattern::Run>,
    },
}

fn main() -> ExitCode {
    match run(Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    match task {
        Task::Deb(deb) => deb::run(root, &deb),
        Task::Test(test) => steps::run(root, &test),
        Task::Figures(figures) => figures::run(root, &figures, net::write_pages),
        Task::Fuzz(fuzz) => fuzz::run(root, &fuzz),
        Task::Soak(soak) => soak::run(root, &soak),
        Task::Sim(sim) => sim::run(root, &sim),
        Task::Mutants(mutants) => sim::mutants(root, &mutants),
        Task::Mutate(mutate) => mutate::run(root, &mutate),
        Task::Net(net) => net::run(root, &net),
        Task::Apps(apps) => apps::run(root, &apps),
        Task::Cost(cost) => cost::run(root, &cost),
        Task::Neon => neon::run(root),
        Task::Web(web) => web::run(root, &web),
        Task::Tidy => tidy::run(root),
        Task::Vm { list: true, .. } => {
            vm::list();
            Ok(())
        }
        Task::Vm { debian, .. } if debian.is_meant() => vm::debian::run(root, &debian),
        Task::Vm { bench: true, .. } => bench::in_vm(root, root, &bench::Plan::default()),
        Task::Bench(bench) => bench::run(root, &bench),
        Task::Vm { only, sample, within, keep, jobs, .. } => {
            let end = within.map(|seconds| Instant::now() + Duration::from_secs(seconds));
            vm::run(root, only.as_deref(), sample, end, keep, jobs)
        }
        Task::Golden { directory } => golden::make(root, &root.join(directory)),
        Task::Pattern(PatternTask::Write { path, runs }) => {
            pattern::write(&mut pattern::open(&path, true)?, &runs)
        }
        Task::Pattern(PatternTask::Verify { path, blocks, runs }) => {
            pattern::verify(&mut pattern::open(&path, false)?, blocks, &runs)
        }
    }
}
