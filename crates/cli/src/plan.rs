//! `pinstripe plan`: what an array would do.

use std::sync::Arc;

use pinstripe_bench::{BenchError, Phase, PlanArgs, Tell};

use crate::{failure::Failure, output, progress};

/// Predicts, and prints what came of it.
pub fn run(arguments: &PlanArgs) -> Result<(), Failure> {
    let line = progress::spinner(false);
    let tell: Tell = {
        let line = line.clone();
        Arc::new(move |phase| match phase {
            Phase::Replaying { done, requests } => {
                line.set_message(format!("the load: repetition {} of {requests}", done + 1));
            }
            _ => line.set_message("the rebuild"),
        })
    };
    let planned = pinstripe_bench::plan(arguments, &tell);
    line.finish_and_clear();
    let report = planned.map_err(failure)?;
    output::print(&if arguments.json { report.to_json() + "\n" } else { report.to_string() })
}

/// A plan rests on nothing but its arguments: unless the fault is ours, it is theirs.
fn failure(error: BenchError) -> Failure {
    match error {
        BenchError::Arguments(_)
        | BenchError::Probe(_)
        | BenchError::Level(_)
        | BenchError::Layout(_)
        | BenchError::MemberCount { .. }
        | BenchError::TooSmall { .. }
        | BenchError::Trace(_)
        | BenchError::Create(_) => Failure::usage(error.to_string()),
        _ => error.into(),
    }
}
