//! Runs seeds of the swarm: `cargo xtask sim` and `cargo xtask mutants` call it.
#![forbid(unsafe_code)]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    time::Instant,
};

use clap::Parser;
use pinstripe_sim::swarm::{self, Summary};

/// Runs seeds of the swarm.
#[derive(Parser)]
struct Arguments {
    /// How many seeds.
    #[arg(long, default_value_t = 300)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Every so many seeds are run twice and must go the same way.
    #[arg(long, default_value_t = 8)]
    twice_every: u64,
    /// Keep this many of the last events, and print them if the seed fails.
    #[arg(long, default_value_t = 0)]
    log: usize,
    /// Print a line for every seed.
    #[arg(long)]
    verbose: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let started = Instant::now();
    let (mut total, mut failing) = (Summary::default(), Vec::new());
    for seed in arguments.from..arguments.from + arguments.seeds {
        let run = || {
            if arguments.log == 0 && arguments.twice_every > 0 && seed % arguments.twice_every == 0 {
                swarm::run_twice(seed)
            } else {
                swarm::run_logged(seed, None, arguments.log)
            }
        };
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(Ok(summary)) => {
                if arguments.verbose {
                    println!("seed {seed}: {summary:?}");
                }
                total.add(&summary);
            }
            Ok(Err(failure)) => {
                println!("{failure}\n{}", failure.log);
                failing.push(seed);
            }
            Err(_) => {
                println!("seed {seed}: panic");
                failing.push(seed);
            }
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    println!("{total:?}");
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let rate = arguments.seeds as f64 / seconds;
    println!(
        "sim: {} passed, {} failed in {seconds:.1} s, {rate:.1} seeds/s",
        arguments.seeds - failing.len() as u64,
        failing.len()
    );
    if failing.is_empty() {
        return ExitCode::SUCCESS;
    }
    println!("failing seeds: {failing:?}");
    println!("again, with its last events: cargo xtask sim --seeds 1 --from {} --log 2000", failing[0]);
    ExitCode::FAILURE
}
