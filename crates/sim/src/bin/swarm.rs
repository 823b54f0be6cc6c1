//! Runs seeds of the swarm, with and without deliberate defects: `cargo xtask sim` and `cargo xtask mutants` call it.
#![forbid(unsafe_code)]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    time::Instant,
};

use clap::Parser;
use pinstripe_engine::mutants::Mutant;
use pinstripe_sim::swarm::{self, Failure, KILLERS, Summary};

/// The swarm simulation of the engine.
#[derive(Parser)]
enum Task {
    /// Run seeds.
    Run(Run),
    /// Show that every deliberate defect is found.
    Mutants(Mutants),
}

#[derive(clap::Args)]
struct Run {
    /// How many seeds.
    #[arg(long, default_value_t = 600)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// One of so many seeds is run twice and must go the same way; 0 for none.
    #[arg(long, default_value_t = 8)]
    twice_every: u64,
    /// Keep this many of the last events, and print them if the seed fails.
    #[arg(long, default_value_t = 0)]
    log: usize,
    /// Turn this defect on.
    #[arg(long)]
    mutant: Option<String>,
    /// Print a line for every seed.
    #[arg(long)]
    verbose: bool,
}

#[derive(clap::Args)]
struct Mutants {
    /// Look for seeds anew, this many per defect, and print the table.
    #[arg(long)]
    search: Option<u64>,
    /// Only the defects whose name contains this.
    #[arg(long)]
    only: Option<String>,
}

fn main() -> ExitCode {
    let green = match Task::parse() {
        Task::Run(run) => run_seeds(&run),
        Task::Mutants(mutants) => try_mutants(&mutants),
    };
    if green { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What a seed came to; `None` after a panic.
fn outcome(run: impl FnOnce() -> Result<Summary, Box<Failure>>) -> Option<Result<Summary, Box<Failure>>> {
    catch_unwind(AssertUnwindSafe(run)).ok()
}

fn run_seeds(run: &Run) -> bool {
    let started = Instant::now();
    let (mut total, mut failing) = (Summary::default(), Vec::new());
    let mutant = Mutant::ALL.iter().copied().find(|mutant| Some(format!("{mutant:?}")) == run.mutant);
    for seed in run.from..run.from + run.seeds {
        let twice = run.log == 0 && mutant.is_none() && run.twice_every > 0 && seed % run.twice_every == 0;
        let result =
            outcome(|| if twice { swarm::run_twice(seed) } else { swarm::run_logged(seed, mutant, run.log) });
        match result {
            Some(Ok(summary)) => {
                if run.verbose {
                    println!("seed {seed}: {summary:?}");
                }
                total.add(&summary);
                continue;
            }
            Some(Err(failure)) => println!("{failure}\n{}", failure.log),
            None => println!("seed {seed}: panic"),
        }
        failing.push(seed);
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("{total:?}");
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let rate = run.seeds as f64 / seconds;
    let (passed, failed) = (run.seeds - failing.len() as u64, failing.len());
    println!("sim: {passed} passed, {failed} failed in {seconds:.1} s, {rate:.1} seeds/s");
    if let Some(first) = failing.first() {
        println!("failing seeds: {failing:?}");
        println!("one again, with its last events: cargo xtask sim --seeds 1 --from {first} --log 2000");
    }
    failing.is_empty()
}

/// Whether the oracle finds wrong bytes on `seed` with the defect, and nothing without it; and what it says.
fn kills(seed: u64, mutant: Mutant) -> Option<String> {
    let failure = outcome(|| swarm::run(seed, Some(mutant)))?.err().filter(|f| f.verdict.is_wrong())?;
    outcome(|| swarm::run(seed, None))?.ok()?;
    let words = failure.verdict.to_string();
    Some(words.lines().next().unwrap_or_default().to_owned())
}

/// Seeds that are tried if the known one does not do.
const OTHER_SEEDS: u64 = 500;

fn try_mutants(arguments: &Mutants) -> bool {
    // What a defect makes the engine's assertions say is no news.
    std::panic::set_hook(Box::new(|_| {}));
    let wanted = |mutant: &&Mutant| {
        !Mutant::OF_LOGS.contains(mutant)
            && arguments.only.as_ref().is_none_or(|only| format!("{mutant:?}").contains(only))
    };
    let (mut killed, mut survivors) = (0, Vec::new());
    for &mutant in Mutant::ALL.iter().filter(wanted) {
        let known = KILLERS.iter().filter(|(name, _)| *name == mutant).map(|(_, seed)| *seed);
        // A known seed first; if a change of the engine has made it another run, some others.
        let others = 0..arguments.search.unwrap_or(OTHER_SEEDS);
        let seeds: Vec<u64> = match arguments.search {
            Some(_) => others.collect(),
            None => known.chain(others).collect(),
        };
        match seeds.into_iter().find_map(|seed| kills(seed, mutant).map(|words| (seed, words))) {
            Some((seed, words)) => {
                killed += 1;
                println!("    (Mutant::{mutant:?}, {seed}), // {words}");
            }
            None => survivors.push(mutant),
        }
    }
    println!("mutants: {killed} passed, {} failed", survivors.len());
    if !survivors.is_empty() {
        println!("not found by the oracle: {survivors:?}");
        println!(
            "look for other seeds with cargo xtask mutants --search 2000, and put them into crates/sim/src/swarm/killers.rs"
        );
    }
    survivors.is_empty()
}
