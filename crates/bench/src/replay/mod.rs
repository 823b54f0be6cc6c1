//! `bench --trace` and `bench --synthetic`: a trace's requests instead of a pattern's.
//!
//! Requests are taken in the trace's order, at full speed or when they are due. None is made larger than the
//! device's blocks demand; what lies beyond the device is folded into it.
//!
//! Every sector that is written carries its place and the number of its request. A trace writes one place by
//! several requests at a time, so more than one may be what is left there: a request's bytes, unless another
//! request that was taken only after it was acknowledged wrote the place, too ([`check`]).

mod check;
mod clients;
mod report;

use std::sync::Arc;

use pinstripe_runtime::uring::{self, Context, RuntimeConfig, blocking};

use self::check::read_back;
pub(crate) use self::clients::Replay;
use crate::{
    ablate,
    arguments::BenchArgs,
    destination::{Destination, Source},
    export::Export,
    fits, histogram, loss,
    progress::{Phase, Tell},
    run::{BenchError, check_numbers},
    setup::{Setup, set_up},
    through,
    trace::{Synthetic, Trace, TraceError},
    verify::check_and_stop,
    virtual_time,
};

pub use report::{Checked, ReplayedOn, TraceReport};

/// Where a trace is replayed.
enum Place {
    Array,
    Export { export: Export, may_overwrite: bool },
}

/// What is replayed.
enum Requests {
    OfFile(Trace),
    /// Made when the size of the device is known.
    Made(Synthetic),
}

/// Makes an array, replays the trace of `arguments` on it, and checks it. What was on given devices is lost.
pub fn run_trace(arguments: &BenchArgs, tell: &Tell) -> Result<TraceReport, BenchError> {
    run(arguments, Place::Array, tell)
}

/// Replays the trace of `arguments` on an export, and reads back what was written there.
pub fn run_trace_through(
    arguments: &BenchArgs,
    export: &Export,
    may_overwrite: bool,
    tell: &Tell,
) -> Result<TraceReport, BenchError> {
    run(arguments, Place::Export { export: export.clone(), may_overwrite }, tell)
}

fn run(arguments: &BenchArgs, place: Place, tell: &Tell) -> Result<TraceReport, BenchError> {
    check_numbers(arguments)?;
    let (arguments, tell) = (ablate::settle(arguments)?, Arc::clone(tell));
    tell(Phase::Preparing);
    let requests = Requests::of(&arguments)?;
    if arguments.is_virtual() {
        return match place {
            Place::Array => virtual_time::on_array(
                &arguments,
                fits::members,
                move |arguments, context, setup| async move {
                    on_array(&arguments, requests, &context, &setup, &tell).await
                },
            ),
            Place::Export { .. } => Err(BenchError::NotVirtual("--through")),
        };
    }
    let config = RuntimeConfig::unpinned(arguments.shards);
    uring::run(&config, move |context| async move {
        match place {
            Place::Array => {
                let setup = set_up(&arguments, &context, fits::members).await?;
                on_array(&arguments, requests, &context, &setup, &tell).await
            }
            Place::Export { may_overwrite: false, .. } if requests.writes() => Err(BenchError::ForceExport),
            Place::Export { export, .. } => on_export(&arguments, requests, &export, &context, &tell).await,
        }
    })?
}

/// Whether the trace can be replayed.
pub(crate) fn check(arguments: &BenchArgs) -> Result<(), BenchError> {
    Requests::of(arguments).map(drop)
}

impl Requests {
    fn of(arguments: &BenchArgs) -> Result<Self, BenchError> {
        if let Some(synthetic) = arguments.synthetic() {
            return Ok(Self::Made(synthetic));
        }
        let path = arguments.trace.clone().unwrap_or_default();
        let trace = Trace::read(&path)?;
        if arguments.trace_time && !trace.is_timed {
            return Err(TraceError::NoTimes(path).into());
        }
        Ok(Self::OfFile(trace))
    }

    /// Whether any writes.
    fn writes(&self) -> bool {
        match self {
            Self::OfFile(trace) => trace.writes(),
            Self::Made(_) => true,
        }
    }

    /// Bytes of the longest one.
    fn longest(&self) -> u64 {
        let longest = match self {
            Self::OfFile(trace) => trace.longest(),
            Self::Made(synthetic) => synthetic.longest(),
        };
        longest.into()
    }

    /// For a device of `size` bytes.
    async fn on(self, size: u64, is_virtual: bool) -> Trace {
        match self {
            Self::OfFile(trace) => trace,
            // No virtual time goes on meanwhile.
            Self::Made(synthetic) if is_virtual => synthetic.trace(size),
            Self::Made(synthetic) => blocking(move || synthetic.trace(size)).await,
        }
    }
}

async fn on_array(
    arguments: &BenchArgs,
    requests: Requests,
    context: &Context,
    setup: &Setup,
    tell: &Tell,
) -> Result<TraceReport, BenchError> {
    let shared = setup.array.shared();
    let (size, block) = (shared.geometry.array_bytes(), shared.geometry.logical_block());
    let source = Source::Engine(Arc::clone(shared));
    let trace = requests.on(size, arguments.is_virtual()).await;
    let mut report = TraceReport::new(arguments, &trace);
    loss::lose(&setup.array, &arguments.lost).await?;
    let (before, metered) = (setup.array.detail().statistics, shared.metered());
    let replay = Arc::new(Replay::new(trace, arguments.trace_time, size, block));
    let inline = !setup.memories.is_empty();
    let replayed = clients::replay(&replay, context, &source, arguments.depth, inline, tell).await?;
    report.replayed(arguments, &replay, &replayed);
    report.array(arguments, setup.names(), &setup.array.detail().statistics.since(&before));
    report.metered(arguments, metered.and_then(|before| Some(shared.metered()?.since(&before))), &replayed);
    histogram::keep(arguments, &replayed.all())?;
    tell(Phase::Checking);
    // Devices may have held anything, whatever --assume-clean says of them.
    let destination = Destination::Engine(setup.array.volume().clone());
    let read_back = async || read_back(&replay, &destination, setup.zeroed).await;
    let (sectors, scrubbed) = check_and_stop(setup, arguments, setup.zeroed, read_back).await?;
    report.checked.sectors = sectors;
    (report.checked.stripes, report.checked.mismatched_sectors) =
        (scrubbed.stripes, scrubbed.mismatched_sectors);
    Ok(report)
}

async fn on_export(
    arguments: &BenchArgs,
    requests: Requests,
    export: &Export,
    context: &Context,
    tell: &Tell,
) -> Result<TraceReport, BenchError> {
    let longest = requests.longest();
    let (source, size) = through::open(arguments, export, requests.writes(), longest).await?;
    let source = Source::Export(source);
    let destination = source.open().map_err(BenchError::Attach)?;
    if size < destination.block().into() {
        return Err(BenchError::TooSmall { depth: arguments.depth, size: longest });
    }
    let trace = requests.on(size, false).await;
    let mut report = TraceReport::new(arguments, &trace);
    let replay = Arc::new(Replay::new(trace, arguments.trace_time, size, destination.block()));
    let replayed = clients::replay(&replay, context, &source, arguments.depth, false, tell).await?;
    report.replayed(arguments, &replay, &replayed);
    report.through = Some(export.to_string());
    histogram::keep(arguments, &replayed.all())?;
    tell(Phase::Checking);
    report.checked.sectors = read_back(&replay, &destination, false).await?;
    Ok(report)
}
