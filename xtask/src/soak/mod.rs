//! `cargo xtask soak`: servers and machines that die under load, over and over.
//!
//! [`kill`] kills the server: what it had acknowledged must be there after the next start, whatever was
//! flushed. [`power`] kills a whole machine, and its disks forget what they had not flushed. Both keep their
//! arrays through all rounds, know from a seed what every block may hold ([`crate::writer`]), and look after
//! every death. `ublk` is a scenario of the VM with more kills.

mod arrays;
mod disks;
mod fio;
mod guest;
mod kill;
mod medium;
mod power;
mod summary;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::random::Random;
use crate::vm::{self, Lab};

/// What is killed.
#[derive(Subcommand)]
pub enum Soak {
    /// kill -9 of the server under its own writers and fio.
    Kill(Rounds),
    /// Sudden resets of a virtual machine that runs the server over disks which forget what was not flushed.
    Power(power::Power),
    /// kill -9 of the server under fio on its block device, which the next one takes over: scenario
    /// `ublk-recovery` of `xtask vm`, with more kills.
    Ublk {
        /// How many.
        #[arg(long, default_value_t = 50)]
        kills: u32,
    },
    /// The writers in the guest of `power`.
    #[command(hide = true)]
    Guest(guest::Guest),
}

/// How long, and from which seed.
#[derive(Args, Clone, Debug)]
pub struct Rounds {
    /// How many rounds; each has at least one death.
    #[arg(long, default_value_t = 20)]
    rounds: u64,
    /// Where the random numbers come from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only the arrays whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// Print the summary as JSON.
    #[arg(long)]
    json: bool,
    /// The server to try, instead of one built now.
    #[arg(long)]
    pinstripe: Option<PathBuf>,
}

impl Rounds {
    /// As many rounds from this seed.
    pub fn new(rounds: u64, seed: u64) -> Self {
        Self { rounds, seed, only: None, json: false, pinstripe: None }
    }

    /// A fresh folder for a soak of this name, and the command.
    fn lab(&self, root: &Path, name: &str) -> Result<Lab> {
        crate::packages::ensure()?;
        let mut lab = Lab::new(&root.join("target/vm"), &format!("soak-{name}-{}", self.seed))?;
        match &self.pinstripe {
            Some(command) => lab.pinstripe.clone_from(command),
            None => vm::build_command(root)?,
        }
        Ok(lab)
    }

    /// The random numbers of a round, whatever came before it.
    fn random(&self, round: u64) -> Random {
        Random::new(Random::new(self.seed).number().wrapping_add(round))
    }
}

/// Runs a soak; fails on the first thing that is wrong, and leaves everything as it is then.
pub fn run(root: &Path, soak: &Soak) -> Result<()> {
    match soak {
        Soak::Kill(rounds) => kill::run(root, rounds),
        Soak::Power(power) => power::run(root, power),
        Soak::Ublk { kills } => ublk(root, *kills),
        Soak::Guest(guest) => guest::run(guest),
    }
}

fn ublk(root: &Path, kills: u32) -> Result<()> {
    let lab = Rounds::new(kills.into(), 1).lab(root, "ublk")?;
    let under_way = vm::ublk::recovery_of(&lab, kills)?;
    println!("{kills} kills with {under_way} requests under way: every block verified");
    Ok(())
}

/// The power soak as a scenario of the VM.
pub fn power(lab: &Lab, rounds: u64) -> Result<()> {
    power::rounds(lab, &power::Power::new(rounds, 1))
}
