//! `bench --through`: the same clients, whose requests go to the export of a server instead of into the
//! engine.
//!
//! The array is the server's. What is checked here is that every acknowledged write is read back; parity is
//! the matter of whatever started the server.

use std::{
    fmt,
    io::{self, ErrorKind},
    sync::Arc,
};

use hdrhistogram::Histogram;
use pinstripe_runtime::{
    DeviceSource,
    uring::{self, Context, OpenFile, OpenOptions, RuntimeConfig, blocking},
};
use serde::Serialize;

use crate::{
    arguments::{BenchArgs, Pattern},
    destination::Source,
    export::Export,
    fill::{SPAN_BYTES, fill},
    fits, histogram,
    ledger::Region,
    nbd::NbdSource,
    progress::{Phase, Tell},
    report::{Latency, by, fmt_not_sent, row},
    run::{BenchError, FILLER, check_numbers, end_workers, engine_slice, nanoseconds, on_all, start_workers},
    verify::read_back_all,
    vhost_user::VhostUserSource,
    worker::{SliceOutcome, Worker},
};

/// The outcome of a load on an export, all of which was read back and found right.
#[derive(Clone, Debug, Serialize)]
pub struct ThroughReport {
    /// The export.
    pub through: String,
    /// Where requests went.
    pub pattern: Pattern,
    /// Bytes of a request.
    pub size_bytes: u64,
    /// Percentage of reads.
    pub reads_percent: u8,
    /// Requests at a time.
    pub depth: usize,
    /// Threads that put the load.
    pub threads: usize,
    /// Requests that were acknowledged.
    pub operations: u64,
    /// How long it took.
    pub seconds: f64,
    /// Requests per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Requests that were due by --rate and not sent: about so many.
    pub not_sent: u64,
    /// From the request to its acknowledgement.
    pub latency_ns: Latency,
    /// CPU time of the threads that put the load, for each request; not the server's.
    pub client_cpu_ns_per_operation: f64,
    /// Written units that were read back.
    pub units_verified: u64,
}

/// Puts a load on an export, and reads back what was written there. What it held before is lost.
pub fn run_through(
    arguments: &BenchArgs,
    export: &Export,
    may_overwrite: bool,
    tell: &Tell,
) -> Result<ThroughReport, BenchError> {
    check_numbers(arguments)?;
    check(arguments, may_overwrite)?;
    let (arguments, export, tell) = (arguments.clone(), export.clone(), Arc::clone(tell));
    let config = RuntimeConfig::unpinned(arguments.shards);
    uring::run(&config, move |context| async move { measure(&arguments, &export, &context, &tell).await })?
}

fn check(arguments: &BenchArgs, may_overwrite: bool) -> Result<(), BenchError> {
    if arguments.limit || !arguments.lost.is_empty() || arguments.rebuild.is_some() || arguments.attended {
        return Err(BenchError::Arguments(
            "--through doesn't go with --limit, --lost, --rebuild or --attended",
        ));
    }
    if (arguments.reads < 100 || arguments.fill) && !may_overwrite {
        return Err(BenchError::ForceExport);
    }
    Ok(())
}

/// The export, and its size. Requests have at most `longest` bytes.
pub(crate) async fn open(
    arguments: &BenchArgs,
    export: &Export,
    writes: bool,
    longest: u64,
) -> Result<(Arc<dyn DeviceSource>, u64), BenchError> {
    let unusable = |error| BenchError::Unusable { export: export.to_string(), error };
    let read_only = || io::Error::from(ErrorKind::ReadOnlyFilesystem);
    match export.clone() {
        Export::Path(path) => {
            let options = OpenOptions { read_only: !writes, ..OpenOptions::default() };
            let file = blocking(move || OpenFile::open(path, &options)).await?;
            let size = file.info().size;
            Ok((file.source(), size))
        }
        Export::Nbd(address) => {
            let source = Arc::new(NbdSource::new(address));
            let asked = Arc::clone(&source);
            let found = blocking(move || match asked.look() {
                Ok(found) if writes && found.is_read_only() => Err(read_only()),
                looked => looked,
            });
            Ok((source, found.await.map_err(unusable)?.size))
        }
        Export::VhostUser(path) => {
            // One for each thread, and one to fill and to read back by.
            let (queues, depth) = (arguments.shards + 1, arguments.depth);
            let data_bytes = longest.max(SPAN_BYTES);
            let connected = blocking(move || VhostUserSource::connect(&path, queues, depth, data_bytes));
            let source = connected.await.map_err(unusable)?;
            if writes && source.is_read_only() {
                return Err(unusable(read_only()));
            }
            let size = source.size();
            Ok((Arc::new(source), size))
        }
    }
}

async fn measure(
    arguments: &BenchArgs,
    export: &Export,
    context: &Context,
    tell: &Tell,
) -> Result<ThroughReport, BenchError> {
    let writes = arguments.reads < 100 || arguments.fill;
    let (source, size) = open(arguments, export, writes, arguments.size).await?;
    let source = Source::Export(source);
    fits::export(arguments, size)?;
    let clients = arguments.depth as u64;
    let region = Arc::new(Region::new(0, size, arguments.size, clients, arguments.pattern));
    let destination = source.open().map_err(BenchError::Attach)?;
    if arguments.fill {
        tell(Phase::Filling);
        fill(&destination, &region, FILLER).await?;
    }
    let regions = [region];
    start_workers(arguments, context, &source, &regions, &[]).await?;
    let measured = slices(arguments, context, tell).await;
    let latency = end_workers(context).await;
    let outcome = measured?;
    tell(Phase::Checking);
    let verified = read_back_all(&destination, &regions, false).await?;
    histogram::keep(arguments, &latency)?;
    Ok(ThroughReport::new(arguments, export, outcome, &latency, verified.units))
}

async fn slices(arguments: &BenchArgs, context: &Context, tell: &Tell) -> Result<SliceOutcome, BenchError> {
    let wanted_ns = nanoseconds(arguments.seconds);
    tell(Phase::WarmingUp);
    engine_slice(context, nanoseconds(arguments.warm_up)).await?;
    on_all(context, |_| || async { Worker::current().forget_latency() }).await;
    tell(Phase::Measuring);
    engine_slice(context, wanted_ns).await
}

impl ThroughReport {
    fn new(
        arguments: &BenchArgs,
        export: &Export,
        outcome: SliceOutcome,
        latency: &Histogram<u64>,
        units_verified: u64,
    ) -> Self {
        let (seconds, iops) = outcome.rate();
        Self {
            through: export.to_string(),
            pattern: arguments.pattern,
            size_bytes: arguments.size,
            reads_percent: arguments.reads,
            depth: arguments.depth,
            threads: arguments.shards,
            operations: outcome.operations,
            seconds,
            iops,
            bytes_per_second: iops * by(arguments.size, 1),
            not_sent: outcome.not_sent,
            latency_ns: Latency::of(latency),
            client_cpu_ns_per_operation: by(outcome.cpu_ns, outcome.operations),
            units_verified,
        }
    }

    /// As JSON, over several lines.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|_| unreachable!("keys are texts"))
    }
}

impl fmt::Display for ThroughReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        row(f, "through", format_args!("{}, {} thread(s)", self.through, self.threads))?;
        let (pattern, size) = (self.pattern.name(), self.size_bytes);
        row(
            f,
            "load",
            format_args!("{pattern}, {size} bytes, {}% reads, depth {}", self.reads_percent, self.depth),
        )?;
        self.latency_ns.fmt_load(f, self.iops, self.bytes_per_second)?;
        fmt_not_sent(f, self.not_sent)?;
        row(f, "client CPU per request", format_args!("{:.2} us", self.client_cpu_ns_per_operation / 1e3))?;
        row(f, "checked", format_args!("{} units read back", self.units_verified))
    }
}
