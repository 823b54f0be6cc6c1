//! `cargo xtask sim` and `cargo xtask mutants`: the swarm simulation of the engine, and the proof that its
//! oracle sees.

use std::path::Path;

use anyhow::{Result, bail};
use clap::Args;

/// Runs seeds of the swarm: each is a whole array's life on simulated disks, checked byte by byte, and goes
/// the same way when it is run again.
#[derive(Args)]
pub struct Sim {
    /// How many seeds.
    #[arg(long, default_value_t = SEEDS)]
    seeds: u64,
    /// The first one.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Print this many of the last events of a seed that fails.
    #[arg(long, default_value_t = 0)]
    log: u64,
    /// Also look at crashes that could have happened, closely, and count the distinct states in which they
    /// came: for long runs. (A run of the usual seeds looks now and then, and fails below its floor.)
    #[arg(long)]
    states: bool,
    /// Threads.
    #[arg(long, default_value_t = 2)]
    jobs: u64,
}

/// Fewer distinct row states than this in the usual run mean that the swarm has become blind somewhere.
const FLOOR: u64 = 36_000;
/// The usual run: the seeds from 0 on.
const SEEDS: u64 = 400;
/// And so many of those in which members come back, are replaced and hang.
const ATLAS: u64 = 200;
/// And so many in which shards are interrupted and users and owner meet in narrow places.
const RACES: u64 = 80;
/// And so many with members over the network.
const NET: u64 = 100;
/// And so many of the wider lives.
const WIDE: u64 = 60;
/// And so many with members that are far larger than what is written of them.
const VAST: u64 = 40;
/// And so many over the network in which hosts meet, servers stand still and requests come late.
const WILD_NET: u64 = 30;
/// And so many with every flag of NBD and lists of bad blocks that outlive crashes.
const MARKS: u64 = 30;
/// And so many in which faults meet.
const ROUGH: u64 = 80;
/// And so many that end with stops under load.
const STOPS: u64 = 40;

/// Tries the swarm's oracle on deliberate defects of the engine: each must be found.
#[derive(Args)]
pub struct Mutants {
    /// Look for the seeds anew, this many per defect, and print the table for
    /// `crates/sim/src/swarm/killers.rs`.
    #[arg(long)]
    search: Option<u64>,
    /// Only the defects whose name contains this.
    #[arg(long)]
    only: Option<String>,
}

/// Runs the seeds; fails if one does.
pub fn run(root: &Path, sim: &Sim) -> Result<()> {
    let usual = sim.seeds >= SEEDS && sim.from == 0;
    // Close looks take most of the time of a long run; the usual one looks at one moment of a thousand steps.
    let (gap, losses, every) = if sim.states { (60, 4, 500) } else { (1000, 3, 100) };
    let numbers = [
        ("--seeds", sim.seeds),
        ("--from", sim.from),
        ("--log", sim.log),
        ("--jobs", sim.jobs),
        ("--gap", gap),
        ("--losses", losses),
        ("--assemble-every", every),
        ("--atlas", if usual { ATLAS * sim.seeds / SEEDS } else { 0 }),
        ("--races", if usual { RACES * sim.seeds / SEEDS } else { 0 }),
        ("--net", if usual { NET * sim.seeds / SEEDS } else { 0 }),
        ("--wide", if usual { WIDE * sim.seeds / SEEDS } else { 0 }),
        ("--vast", if usual { VAST * sim.seeds / SEEDS } else { 0 }),
        ("--wild-net", if usual { WILD_NET * sim.seeds / SEEDS } else { 0 }),
        ("--marks", if usual { MARKS * sim.seeds / SEEDS } else { 0 }),
        ("--rough", if usual { ROUGH * sim.seeds / SEEDS } else { 0 }),
        ("--stops", if usual { STOPS * sim.seeds / SEEDS } else { 0 }),
        ("--floor", if usual { FLOOR } else { 0 }),
    ];
    let numbers = numbers.map(|(name, number)| format!("{name}={number}"));
    swarm(root, "run", numbers.into_iter().chain(["--states".to_owned()]).collect())
}

/// Tries the mutants; fails if one survives.
pub fn mutants(root: &Path, mutants: &Mutants) -> Result<()> {
    let search = mutants.search.map(|seeds| format!("--search={seeds}"));
    let only = mutants.only.as_ref().map(|only| format!("--only={only}"));
    swarm(root, "mutants", search.into_iter().chain(only).collect())
}

/// Starts the simulator's program: with all assertions, and a panic is a verdict on the seed, not the end.
fn swarm(root: &Path, task: &str, arguments: Vec<String>) -> Result<()> {
    // A test of its crate, and so with the features that all are tested with: what they have built is used.
    let features = ["--workspace", "--features", "pinstripe-sim/mutants"];
    let build = [&["test", "--no-run", "--test", "scenarios"], &features[..]].concat();
    let program = crate::cargo::build(root, &build, "swarm")?;
    let status = std::process::Command::new(program).arg(task).args(arguments).current_dir(root).status()?;
    if !status.success() {
        bail!("the swarm found something: {status}");
    }
    Ok(())
}
