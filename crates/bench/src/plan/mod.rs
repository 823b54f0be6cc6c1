//! `pinstripe plan`: how fast an array of such drives would be, and how safe.
//!
//! ```text
//!   arguments ─┬─> load: the engine over models of drives, once for each seed ─┬─> report
//!              ├─> rebuild: the engine rebuilds a small member of each model ──┤
//!              └─> durability: published formulas, with the rebuild's time ────┘
//! ```
//!
//! Nothing of the engine is modelled: `load` runs it over arrays of the wanted size under virtual time
//! ([`virtual_time`](crate::virtual_time)). What is left out is what virtual time leaves out: the CPU.
//!
//! A load's contents are zeroes, which a model's medium doesn't keep, so that drives of terabytes need no
//! memory. That data comes out right is what `bench` and the simulator check; here nothing is read back.

mod arguments;
mod durability;
mod load;
mod rebuild;
mod report;

use std::{path::Path, rc::Rc};

use crate::{
    arguments::{BenchArgs, Pattern},
    progress::{Phase, Tell},
    run::{BenchError, check_numbers},
    trace::{Trace, TraceError},
};

pub use arguments::{PlanArgs, PlanDevice};
pub use durability::{Assumptions, Durability};
pub use rebuild::RebuildTime;
pub use report::{Interval, LoadForecast, PlanReport, PlanSettings};

/// Predicts what `arguments` ask for.
pub fn plan(arguments: &PlanArgs, tell: &Tell) -> Result<PlanReport, BenchError> {
    let members = arguments.devices.iter().map(PlanDevice::member).collect::<Result<Vec<_>, _>>()?;
    let (devices, assumed): (Vec<_>, Vec<_>) = members.into_iter().unzip();
    let assumed = assumed.into_iter().flatten().next();
    let mut bench = arguments.bench(devices);
    check(arguments, &bench)?;
    let trace = arguments.trace.as_deref().map(|path| read(path, arguments.trace_time)).transpose()?;
    let mut samples = Vec::new();
    for seed in 1..=arguments.seeds {
        tell(Phase::Replaying {
            done: usize::try_from(seed - 1).unwrap_or(0),
            requests: usize::try_from(arguments.seeds).unwrap_or(0),
        });
        bench.seed = seed;
        samples.push(load::run(arguments, &bench, trace.as_ref().map(Rc::clone))?);
    }
    tell(Phase::Measuring);
    let member_bytes = samples.first().map_or(0, |sample| sample.member_bytes);
    let rebuild = rebuild::time(&BenchArgs { seed: 1, ..bench.clone() }, member_bytes)?;
    let durability = Durability::of(
        bench.level.parity_count(),
        bench.devices.len(),
        member_bytes,
        rebuild.as_ref().map(|rebuild| rebuild.seconds),
        arguments.assumptions(),
    );
    Ok(PlanReport::new(arguments, assumed, &bench, &samples, (rebuild, durability)))
}

fn check(arguments: &PlanArgs, bench: &BenchArgs) -> Result<(), BenchError> {
    check_numbers(bench)?;
    let devices = arguments.devices.len();
    if let Some(members) = arguments.members.map(usize::from)
        && devices > 1
        && members != devices
    {
        return Err(BenchError::MemberCount { members, devices });
    }
    if !matches!(bench.pattern, Pattern::Random | Pattern::Sequential) {
        return Err(BenchError::Arguments("--pattern: a plan is made for random and sequential"));
    }
    let lost = |slot: &usize| arguments.lost.iter().filter(|other| *other == slot).count();
    if arguments.lost.len() > usize::from(bench.level.parity_count())
        || arguments.lost.iter().any(|slot| *slot >= bench.devices.len() || lost(slot) > 1)
    {
        return Err(BenchError::Arguments(
            "--lost: slots of the array, each once, and no more than there are parities",
        ));
    }
    let assumptions = arguments.assumptions();
    if !assumptions.make_sense() {
        return Err(BenchError::Arguments(
            "--afr and --latent-errors must be from 0 to less than 100 percent, --uber from 0 to less than 1, and times more \
             than 0 (--replace-after: at least 0)",
        ));
    }
    Ok(())
}

/// The trace, for every seed.
fn read(path: &Path, is_timed: bool) -> Result<Rc<Trace>, BenchError> {
    let trace = Trace::read(path)?;
    if is_timed && !trace.is_timed {
        return Err(TraceError::NoTimes(path.to_owned()).into());
    }
    Ok(Rc::new(trace))
}
