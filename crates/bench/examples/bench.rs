//! `pinstripe bench` alone, for profilers: no other command is linked in.
#![allow(clippy::print_stdout, reason = "it is a program")]

use clap::Parser;
use pinstripe_bench::{BenchArgs, run};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    bench: BenchArgs,
}

fn main() {
    let Command { bench } = Command::parse();
    match run(&bench) {
        Ok(report) if bench.json => println!("{}", report.to_json()),
        Ok(report) => print!("{report}"),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}
