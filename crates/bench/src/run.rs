//! The run: setup, warm-up, slices, check, report.

use std::{io, ops::Range, path::PathBuf, pin::pin, sync::Arc};

use hdrhistogram::Histogram;
use pinstripe_block::first_of::{First, first_of};
use pinstripe_control::size::ByteSize;
use pinstripe_engine::{
    ablation::Metered,
    array::{Array, CommandError},
    assembly::{AssembleError, create::CreateError},
    geometry::Geometry,
    maintenance::SyncError,
    statistics::Statistics,
};
use pinstripe_md::level::{BadLayout, Level};
use pinstripe_runtime::{
    DeviceError, Memory, shard,
    uring::{self, Context, OpenError, RunError, RuntimeConfig},
};
use thiserror::Error;

use crate::{
    ablate,
    arguments::{BenchArgs, DEPTH, Pattern},
    attendance::{Stage, announce},
    destination::{Destination, RequestError, Source},
    fill::fill,
    fits, histogram,
    ledger::{FILLED, Region},
    loss,
    progress::{Phase, Tell},
    report::{Rebuild, Report},
    setup::{Setup, set_up},
    trace::TraceError,
    verify::{read_back_all, verify},
    virtual_time,
    worker::{self, LoopConfig, SliceOutcome, Worker, WorkerConfig, clients_of},
};

/// With `--limit`: how long the engine works before the loop does, and the other way round.
const SLICE_NS: u64 = 100_000_000;
/// Beside a rebuild: longer than any, some 36 years.
const UNTIL_IT_IS_ENDED_NS: u64 = 1 << 60;
/// The writer that fills the array; clients are counted from 0.
pub(crate) const FILLER: u32 = u32::MAX;
/// The largest request.
const SIZE_MAX: u64 = 32 << 20;
/// A sequential stream needs room before it meets its own tail.
pub(crate) const UNITS_PER_CLIENT_MIN: usize = 4;

/// Why a run came to nothing, or to something wrong.
#[derive(Debug, Error)]
pub enum BenchError {
    /// A trace that can't be replayed.
    #[error("{0}")]
    Trace(#[from] TraceError),
    /// A file that tells of no probe.
    #[error("{0}")]
    Probe(String),
    /// A number that makes no sense.
    #[error("{0}")]
    Arguments(&'static str),
    /// A level that is not served.
    #[error("{0} can't be measured: 0, 4, 5 and 6 can")]
    Level(Level),
    /// No such layout.
    #[error("{0}")]
    Layout(#[from] BadLayout),
    /// A name of a namespace that makes no sense.
    #[error("{0}")]
    Address(#[from] pinstripe_nvme::initiator::BadAddress),
    /// A file of secrets that can't be used.
    #[error("{0}")]
    Secrets(#[from] pinstripe_nvme::auth::KeyFileProblem),
    /// A server's namespace that can't be used.
    #[error("{0}")]
    Remote(#[from] pinstripe_nvme::initiator::InitiatorError),
    /// Memory beside files.
    #[error("members are either one mem:SIZE for all or one path for each, or models for all")]
    MixedDevices,
    /// What is not measured under virtual time.
    #[error("models of drives, and the virtual time that they need, don't go with {0}")]
    NotVirtual(&'static str),
    /// A server's members.
    #[error("only the bench itself paces its members: model:NAME:PATH doesn't go with --through")]
    NotPaced,
    /// The world of the models can't go on: our own mistake.
    #[error("{0}: a bug of Pinstripe")]
    Stuck(String),
    /// Numbers that contradict each other.
    #[error("--members {members} contradicts the {devices} devices that were given")]
    MemberCount {
        /// As asked for.
        members: usize,
        /// As given.
        devices: usize,
    },
    /// The devices would be overwritten.
    #[error(
        "the devices would be overwritten from end to end; nothing was changed: use --force if that is wanted"
    )]
    Force,
    /// The export would be overwritten.
    #[error(
        "the export would be overwritten from end to end; nothing was changed: use --force if that is wanted"
    )]
    ForceExport,
    /// A server's export that can't be used.
    #[error("{export} can't be used: {error}")]
    Unusable {
        /// As it was given.
        export: String,
        /// Why.
        error: io::Error,
    },
    /// The file of the latencies.
    #[error("{path} can't be written: {error}", path = path.display())]
    Histogram {
        /// As it was given.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// `--limit` needs memory.
    #[error("--limit needs memory members, and a size that divides the chunk or is whole stripes")]
    LimitShape,
    /// `--limit` compares plain loads.
    #[error(
        "--limit doesn't go with --fill, --rebuild, --rate or --attended, and with --lost only for one member and \
         --reads 100"
    )]
    LimitStaged,
    /// The observer gave no answer.
    #[error("--attended: no line came on standard input that lets the run go on: {0}")]
    Attendance(io::Error),
    /// A member can't be failed or added.
    #[error("{0}")]
    Membership(#[from] CommandError),
    /// A rebuild ended without success.
    #[error("the member of slot {0} was lost again while it was rebuilt")]
    NotRebuilt(usize),
    /// The array is not waited for any longer.
    #[error("the array can't be brought in sync: {0}")]
    NotInSync(String),
    /// Too little room for the clients.
    #[error("the array is too small for {depth} requests of {size} bytes at a time")]
    TooSmall {
        /// Requests at a time.
        depth: usize,
        /// Bytes of each.
        size: u64,
    },
    /// Too little memory for the ledger.
    #[error(
        "the account of what was written last to each place of --size bytes takes {needed} of memory, and {available} are \
         free: nothing was changed. Take a larger --size, or smaller devices"
    )]
    Ledger {
        /// For all places.
        needed: ByteSize,
        /// Of this machine.
        available: ByteSize,
    },
    /// More objects than the array has room for.
    #[error(
        "--objects: the array has room for {most} objects of {size} bytes, and for one at least there must be"
    )]
    Objects {
        /// As many fit.
        most: usize,
        /// Bytes of each.
        size: u64,
    },
    /// Inserts have filled the store.
    #[error(
        "inserts have filled the {0} slots of the store: take a larger array, or fewer --seconds or --objects"
    )]
    StoreFull(usize),
    /// No random numbers.
    #[error("can't read /dev/urandom: {0}")]
    Random(io::Error),
    /// The shards did not start.
    #[error("{0}")]
    Run(#[from] RunError),
    /// A member can't be opened.
    #[error("{0}")]
    Open(#[from] OpenError),
    /// A member can't be used.
    #[error("a member can't be attached: {0}")]
    Attach(DeviceError),
    /// The array can't be made.
    #[error("{0}")]
    Create(#[from] CreateError),
    /// The array can't be assembled.
    #[error("{0}")]
    Assemble(#[from] AssembleError),
    /// A request failed.
    #[error("a request failed: {0}")]
    Io(#[from] RequestError),
    /// The loop left its memory: our own mistake.
    #[error("the straight-line loop failed: {0}")]
    StraightLine(DeviceError),
    /// The scrub could not run.
    #[error("the scrub failed: {0}")]
    Scrub(#[from] SyncError),
    /// Parity doesn't match data.
    #[error(
        "the scrub found {sectors} sectors whose parity does not match and {unreadable} stripes that can't be read: \
         a bug of Pinstripe"
    )]
    Mismatch {
        /// As MD's mismatch_cnt.
        sectors: u64,
        /// Stripes.
        unreadable: u64,
    },
    /// The same, where nothing but the user's word said that it matched before.
    #[error(
        "the scrub found {sectors} sectors whose parity does not match: --assume-clean states that the devices held nothing but zeroes. \
         Without it, parity is made from what they hold"
    )]
    NotClean {
        /// As MD's mismatch_cnt.
        sectors: u64,
    },
    /// What was read back is not what was acknowledged.
    #[error("wrong data: {0}: a bug of Pinstripe")]
    WrongData(String),
}

/// Makes the array, measures it, checks it. What was on given devices is lost.
pub fn run(arguments: &BenchArgs) -> Result<Report, BenchError> {
    let silent: Tell = Arc::new(|_| {});
    run_and_tell(arguments, &silent)
}

/// As [`run`], and tells how far it is.
pub fn run_and_tell(arguments: &BenchArgs, tell: &Tell) -> Result<Report, BenchError> {
    check_numbers(arguments)?;
    let arguments = ablate::settle(arguments)?;
    if arguments.is_virtual() {
        return virtual_time::run(&arguments, tell);
    }
    let tell = Arc::clone(tell);
    let config = RuntimeConfig::unpinned(arguments.shards);
    uring::run(&config, move |context| async move {
        tell(Phase::Preparing);
        let setup = set_up(&arguments, &context, fits::load).await?;
        Box::pin(measure(&arguments, &context, &setup, &tell)).await
    })?
}

/// What is wrong whatever the array is, found out before anything is written.
pub(crate) fn check_numbers(arguments: &BenchArgs) -> Result<(), BenchError> {
    let wrong = |words| Err(BenchError::Arguments(words));
    if arguments.shards == 0 || arguments.depth < arguments.shards {
        return wrong("--shards must be at least 1 and at most --depth");
    }
    if !(0.0..=1e6).contains(&arguments.seconds) {
        return wrong("--seconds must be from 0 to a million");
    }
    if !(0.0..=1e6).contains(&arguments.warm_up) {
        return wrong("--warm-up must be from 0 to a million");
    }
    if arguments.rate.is_some_and(|rate| rate == 0) {
        return wrong("--rate must be at least one byte per second");
    }
    if arguments.pattern == Pattern::Lost
        && (arguments.lost.is_empty()
            || arguments.reads < 100
            || !arguments.chunk.is_multiple_of(arguments.size))
    {
        return wrong("--pattern lost needs --lost, --reads 100, and a size that divides the chunk");
    }
    if arguments.used_up && !arguments.has_models() {
        return wrong("--used-up is about models of drives: no member is one");
    }
    // The loop reconstructs what one lost member held, and writes to no array that lacks any.
    let reconstructs = arguments.lost.len() == 1 && arguments.reads == 100;
    if arguments.limit && (arguments.is_staged() || !arguments.lost.is_empty() && !reconstructs) {
        return Err(BenchError::LimitStaged);
    }
    if arguments.rebuild.is_some() && arguments.rate.is_none() && names_a_load(arguments) {
        return wrong(
            "--rebuild has a load beside it only with --rate: without one, --reads, --pattern, --depth and --histogram \
             have no meaning",
        );
    }
    histogram::can_be_kept(arguments)?;
    if arguments.size == 0 || !arguments.size.is_multiple_of(512) || arguments.size > SIZE_MAX {
        return wrong("--size must be a multiple of 512 bytes, at most 32M");
    }
    Ok(())
}

/// Whether anything is asked for that is of a load alone.
fn names_a_load(arguments: &BenchArgs) -> bool {
    // There must be as many as shards.
    let depth = DEPTH.max(arguments.shards);
    arguments.reads > 0
        || arguments.pattern != Pattern::Random
        || arguments.depth != depth
        || arguments.histogram.is_some()
}

/// What was counted.
pub(crate) struct Measured {
    pub(crate) engine: SliceOutcome,
    pub(crate) straight: SliceOutcome,
    /// By pair of slices: the engine's rate by the loop's.
    pub(crate) ratios: Vec<f64>,
    pub(crate) statistics: Statistics,
    /// With `--ablate`.
    pub(crate) metered: Option<Metered>,
    pub(crate) latency: Histogram<u64>,
    /// With `--rebuild`. The rest is of the load beside it, if there is one.
    pub(crate) recovery: Option<Rebuild>,
}

/// Measures and checks the array of `setup`, and stops it.
pub(crate) async fn measure(
    arguments: &BenchArgs,
    context: &Context,
    setup: &Setup,
    tell: &Tell,
) -> Result<Report, BenchError> {
    let regions = regions(arguments, &setup.array.shared().geometry);
    let destination = Destination::Engine(setup.array.volume().clone());
    if arguments.fill {
        tell(Phase::Filling);
        fill(&destination, &regions[0], FILLER).await?;
    }
    loss::lose(&setup.array, &arguments.lost).await?;
    let measured = match arguments.rebuild {
        Some(slot) => measure_rebuild(arguments, context, setup, slot, &regions, tell).await?,
        None => measure_load(arguments, context, setup, &regions, tell).await?,
    };
    histogram::keep(arguments, &measured.latency)?;
    tell(Phase::Checking);
    let zeroed = setup.zeroed;
    if !arguments.lost.is_empty() {
        // What the others say of the missing members' data, before those are made from it.
        read_back_all(&destination, &regions, zeroed).await?;
        loss::bring_back(setup, &arguments.lost).await?;
    }
    let verified = verify(&setup.array, arguments, &regions, zeroed).await?;
    setup.array.stop().await.map_err(RequestError::from)?;
    Ok(Report::new(arguments, setup.names(), &measured, verified))
}

/// Puts a load on the array.
async fn measure_load(
    arguments: &BenchArgs,
    context: &Context,
    setup: &Setup,
    regions: &[Arc<Region>],
    tell: &Tell,
) -> Result<Measured, BenchError> {
    let source = Source::Engine(Arc::clone(setup.array.shared()));
    start_workers(arguments, context, &source, regions, &setup.memories).await?;
    let measured = run_slices(arguments, context, &setup.array, tell).await;
    let latency = end_workers(context).await;
    Ok(Measured { latency, ..measured? })
}

/// Ends all workers; the latencies of their requests.
pub(crate) async fn end_workers(context: &Context) -> Histogram<u64> {
    let mut all = worker::histogram();
    for latency in on_all(context, |_| || async { Worker::end() }).await.into_iter().flatten() {
        // Made with the same bounds.
        let _ = all.add(latency);
    }
    all
}

/// Loses a member and has it rebuilt, with `--rate` beside a load.
async fn measure_rebuild(
    arguments: &BenchArgs,
    context: &Context,
    setup: &Setup,
    slot: usize,
    regions: &[Arc<Region>],
    tell: &Tell,
) -> Result<Measured, BenchError> {
    loss::lose(&setup.array, &[slot]).await?;
    loss::erase(&setup.sources[slot]).await?;
    if arguments.rate.is_some() {
        let source = Source::Engine(Arc::clone(setup.array.shared()));
        start_workers(arguments, context, &source, regions, &setup.memories).await?;
    }
    let measured = run_rebuild(arguments, context, setup, slot, tell).await;
    let latency = end_workers(context).await;
    Ok(Measured { latency, ..measured? })
}

async fn run_rebuild(
    arguments: &BenchArgs,
    context: &Context,
    setup: &Setup,
    slot: usize,
    tell: &Tell,
) -> Result<Measured, BenchError> {
    announce(arguments.attended, Stage::Ready).await?;
    let has_load = arguments.rate.is_some();
    if has_load {
        tell(Phase::WarmingUp);
        engine_slice(context, nanoseconds(arguments.warm_up)).await?;
        on_all(context, |_| || async { Worker::current().forget_latency() }).await;
    }
    announce(arguments.attended, Stage::Begins).await?;
    tell(Phase::Measuring);
    let before = setup.array.detail().statistics;
    let lost: Vec<usize> = arguments.lost.iter().copied().chain([slot]).collect();
    let rebuild = loss::rebuild(setup, slot, &lost);
    let (recovery, engine) = if has_load {
        beside_load(context, rebuild).await?
    } else {
        (rebuild.await?, SliceOutcome::default())
    };
    let statistics = setup.array.detail().statistics.since(&before);
    announce(arguments.attended, Stage::Ended).await?;
    Ok(Measured {
        engine,
        straight: SliceOutcome::default(),
        ratios: Vec::new(),
        statistics,
        metered: None,
        latency: worker::histogram(),
        recovery: Some(recovery),
    })
}

/// Has the workers put their load for as long as `rebuild` takes.
async fn beside_load(
    context: &Context,
    rebuild: impl Future<Output = Result<Rebuild, BenchError>>,
) -> Result<(Rebuild, SliceOutcome), BenchError> {
    let mut load = pin!(engine_slice(context, UNTIL_IT_IS_ENDED_NS));
    let rebuilt = match first_of(&mut load, rebuild).await {
        First::One(ended) => return Err(ended.err().unwrap_or_else(|| unreachable!("it isn't ended yet"))),
        First::Other(rebuilt) => rebuilt,
    };
    on_all(context, |_| || async { Worker::current().end_slice() }).await;
    let engine = load.await?;
    Ok((rebuilt?, engine))
}

/// The engine's part of the array, and with `--limit` one for each shard's loop: the bytes, and how many
/// clients write there.
pub(crate) fn parts(arguments: &BenchArgs, geometry: &Geometry) -> Vec<(Range<u64>, u64)> {
    let stripe_bytes = geometry.stripe_bytes();
    let (depth, shards) = (arguments.depth as u64, arguments.shards as u64);
    let stripes = geometry.array_bytes() / stripe_bytes;
    let part = |from: u64, to: u64, clients| (from * stripe_bytes..to * stripe_bytes, clients);
    if !arguments.limit {
        return vec![part(0, stripes, depth)];
    }
    let (half, share) = (stripes / 2, stripes / 2 / shards);
    let loops = (0..shards).map(|shard| part(half + shard * share, half + (shard + 1) * share, 1));
    std::iter::once(part(0, half, depth)).chain(loops).collect()
}

/// Of each part.
fn regions(arguments: &BenchArgs, geometry: &Geometry) -> Vec<Arc<Region>> {
    let region = |(bytes, clients): (Range<u64>, u64)| {
        let mut region = Region::new(bytes.start, bytes.end, arguments.size, clients, arguments.pattern);
        if let Some(geometry) = geometry.parity().filter(|_| arguments.pattern == Pattern::Lost) {
            region.read_lost(|offset| {
                let (stripe, within) = geometry.locate(offset);
                let (column, _) = geometry.column_of(within);
                arguments.lost.contains(&geometry.slots(stripe).data_slot(column).index())
            });
        }
        Arc::new(region)
    };
    parts(arguments, geometry).into_iter().map(region).collect()
}

/// The clients, in the first region, and with memories a loop in a region for each shard.
pub(crate) async fn start_workers(
    arguments: &BenchArgs,
    context: &Context,
    source: &Source,
    regions: &[Arc<Region>],
    memories: &[Arc<Memory>],
) -> Result<(), BenchError> {
    let (depth, shards) = (arguments.depth, arguments.shards);
    let started = on_all(context, |shard| {
        let clients = clients_of(shard, depth, shards);
        let interval_ns = arguments.rate.map(|rate| interval_ns(arguments, rate, clients.len()));
        let writers = u32::try_from(depth).unwrap_or(u32::MAX);
        let straight_line = match (source, regions.get(shard + 1)) {
            (Source::Engine(shared), Some(region)) => Some(LoopConfig {
                shared: Arc::clone(shared),
                memories: memories.to_vec(),
                region: Arc::clone(region),
                writer: writers + clients.start,
            }),
            _ => None,
        };
        let config = WorkerConfig {
            source: source.clone(),
            region: Arc::clone(&regions[0]),
            clients,
            reads: arguments.reads,
            seed: arguments.seed,
            writes_before: if arguments.fill { FILLED } else { 0 },
            interval_ns,
            straight_line,
            inline: !memories.is_empty(),
        };
        move || async move { Worker::start(config) }
    });
    started.await.into_iter().collect::<Result<(), _>>().map_err(BenchError::Attach)
}

async fn run_slices(
    arguments: &BenchArgs,
    context: &Context,
    array: &Array,
    tell: &Tell,
) -> Result<Measured, BenchError> {
    let wanted_ns = nanoseconds(arguments.seconds);
    let warm_up_ns = nanoseconds(arguments.warm_up);
    announce(arguments.attended, Stage::Ready).await?;
    tell(Phase::WarmingUp);
    engine_slice(context, warm_up_ns).await?;
    straight_slice(context, warm_up_ns).await?;
    announce(arguments.attended, Stage::Begins).await?;
    tell(Phase::Measuring);
    on_all(context, |_| || async { Worker::current().forget_latency() }).await;
    let (before, metered) = (array.detail().statistics, array.shared().metered());
    let mut measured = Measured {
        engine: SliceOutcome::default(),
        straight: SliceOutcome::default(),
        ratios: Vec::new(),
        statistics: before,
        metered: None,
        latency: worker::histogram(),
        recovery: None,
    };
    let slice_ns = if arguments.limit { SLICE_NS } else { wanted_ns };
    let mut done_ns = 0;
    while done_ns < wanted_ns {
        let engine = engine_slice(context, slice_ns).await?;
        add(&mut measured.engine, engine);
        done_ns += slice_ns;
        if arguments.limit {
            let straight = straight_slice(context, slice_ns).await?;
            add(&mut measured.straight, straight);
            done_ns += slice_ns;
            measured.ratios.push(rate(engine) / rate(straight));
        }
    }
    measured.statistics = array.detail().statistics.since(&before);
    measured.metered = metered.and_then(|before| Some(array.shared().metered()?.since(&before)));
    announce(arguments.attended, Stage::Ended).await?;
    Ok(measured)
}

/// Nanoseconds between two requests of a shard that has so many of the clients, on average, so that all
/// shards together ask for `rate` bytes a second.
#[expect(clippy::cast_precision_loss, reason = "an average needs no 53 bits")]
fn interval_ns(arguments: &BenchArgs, rate: u64, clients: usize) -> f64 {
    arguments.size as f64 * 1e9 / rate as f64 * arguments.depth as f64 / clients as f64
}

pub(crate) async fn engine_slice(context: &Context, nanoseconds: u64) -> Result<SliceOutcome, BenchError> {
    let outcomes = on_all(context, |_| move || Worker::current().engine_slice(nanoseconds)).await;
    let failed = |error| match error {
        RequestError::Wrong(words) => BenchError::WrongData(words),
        error => BenchError::Io(error),
    };
    merge(outcomes.into_iter().map(|outcome| outcome.map_err(failed)))
}

async fn straight_slice(context: &Context, nanoseconds: u64) -> Result<SliceOutcome, BenchError> {
    let outcomes =
        on_all(context, |_| move || async move { Worker::current().straight_slice(nanoseconds) }).await;
    merge(outcomes.into_iter().map(|outcome| outcome.map_err(BenchError::StraightLine)))
}

/// What several shards did at the same time.
fn merge(
    outcomes: impl Iterator<Item = Result<SliceOutcome, BenchError>>,
) -> Result<SliceOutcome, BenchError> {
    let mut sum = SliceOutcome::default();
    for outcome in outcomes {
        sum.add_beside(outcome?);
    }
    Ok(sum)
}

/// What was done one after the other.
fn add(sum: &mut SliceOutcome, slice: SliceOutcome) {
    sum.operations += slice.operations;
    sum.cpu_ns += slice.cpu_ns;
    sum.kernel_entries += slice.kernel_entries;
    sum.wall_ns += slice.wall_ns;
    sum.not_sent += slice.not_sent;
}

/// Requests per CPU time: over memory that is all the time there is, and others' work on the machine isn't in
/// it.
#[expect(clippy::cast_precision_loss, reason = "a ratio needs no 53 bits")]
fn rate(slice: SliceOutcome) -> f64 {
    slice.operations as f64 / slice.cpu_ns.max(1) as f64
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be 0 to a million")]
pub(crate) fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9) as u64
}

/// Has every shard do something at the same time.
pub(crate) async fn on_all<M, F, T>(context: &Context, make: impl Fn(usize) -> M) -> Vec<T>
where
    M: FnOnce() -> F + Send + 'static,
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    let calls: Vec<_> = context
        .shards()
        .iter()
        .enumerate()
        .map(|(index, shard)| {
            let (shard, work) = (shard.clone(), make(index));
            shard::spawn_joined(async move {
                shard.call(work).await.expect("every shard lives as long as the run")
            })
        })
        .collect();
    let mut values = Vec::new();
    for call in calls {
        values.push(call.join().await);
    }
    values
}
