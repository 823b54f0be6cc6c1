//! `cargo xtask vm`: our arrays against Debian's kernel and the real mdadm, in QEMU without KVM.
//!
//! A scenario is a function that uses [`Lab`]: it makes member files on the host, lets our command work on them there,
//! boots a [`machine::Machine`] on the same files, and compares. Guest halves are the scripts in `xtask/vm/`.

pub mod cpio;
pub mod image;
pub mod machine;
mod mdadm;
pub mod members;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};

use self::image::Image;
use self::machine::{Machine, Outcome};

/// Something that is tried with the kernel.
struct Scenario {
    name: &'static str,
    about: &'static str,
    run: fn(&Lab) -> Result<()>,
}

const SCENARIOS: &[Scenario] = &[Scenario {
    name: "mdadm-alone",
    about: "the harness itself: mdadm's arrays written in the guest hold the pattern in a second boot, scrub clean",
    run: mdadm::alone,
}];

/// What a scenario works with.
pub struct Lab {
    image: Image,
    /// The scenario's own folder: member files, logs.
    pub directory: PathBuf,
    /// This program, which the guest uses to write and verify the pattern.
    pub xtask: PathBuf,
}

impl Lab {
    /// A fresh folder `name` in `base`, and the image from the cache there.
    pub fn new(base: &Path, name: &str) -> Result<Self> {
        let directory = base.join(name);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory)?;
        Ok(Self { image: image::prepare(base)?, directory, xtask: std::env::current_exe()? })
    }

    /// A sparse file of this many bytes in the scenario's folder.
    pub fn sparse_file(&self, name: &str, bytes: u64) -> Result<PathBuf> {
        let path = self.directory.join(name);
        File::create(&path)?.set_len(bytes)?;
        Ok(path)
    }

    /// Boots the machine on the cached image; logs go to the scenario's folder.
    pub fn boot(&self, machine: Machine) -> Result<Outcome> {
        machine.program("xtask", &self.xtask).run(&self.image, &self.directory)
    }
}

/// Prints the scenarios.
pub fn list() {
    for scenario in SCENARIOS {
        println!("{:24} {}", scenario.name, scenario.about);
    }
}

/// Runs the scenarios whose name contains `only`; ends with `N passed, N failed`.
pub fn run(root: &Path, only: Option<&str>, keep: bool) -> Result<()> {
    let chosen: Vec<&Scenario> =
        SCENARIOS.iter().filter(|scenario| only.is_none_or(|part| scenario.name.contains(part))).collect();
    if chosen.is_empty() {
        bail!("no scenario has {:?} in its name; `cargo xtask vm --list` shows them", only.unwrap_or(""));
    }
    crate::packages::ensure()?;
    let base = root.join("target/vm");
    let mut failed = Vec::new();
    for scenario in &chosen {
        let start = Instant::now();
        let result = run_one(&base, scenario, keep);
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(()) => println!("{:24} ok      {seconds:6.1} s", scenario.name),
            Err(error) => {
                println!("{:24} FAILED  {seconds:6.1} s: {error:#}", scenario.name);
                failed.push(scenario.name);
            }
        }
    }
    println!("{} passed, {} failed", chosen.len() - failed.len(), failed.len());
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn run_one(base: &Path, scenario: &Scenario, keep: bool) -> Result<()> {
    let lab = Lab::new(base, scenario.name)?;
    (scenario.run)(&lab)?;
    if !keep {
        for entry in fs::read_dir(&lab.directory).context("clean up")?.flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "img") {
                fs::remove_file(entry.path())?;
            }
        }
    }
    Ok(())
}
