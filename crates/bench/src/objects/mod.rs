//! `bench --objects`: a store of objects on the volume, and YCSB's core workloads on it.
//!
//! ```text
//!   load: every object is put once ─> the mix, for --seconds ─> the store opened anew from its headers must be
//!   what was acknowledged, every object is read ─> scrub
//! ```
//!
//! The paper on dRAID measures such a store (its figures 20 and 21): 200,000 objects of 128 KiB, keys drawn
//! uniformly. Workload E scans, which a store by hash can't.

mod clients;
mod report;
mod store;

use std::sync::Arc;

use pinstripe_engine::geometry::Geometry;
use pinstripe_runtime::{
    shard,
    uring::{self, Context, RuntimeConfig},
};

use self::{
    clients::{Done, Load, Until, work},
    store::Store,
};
use crate::{
    arguments::{BenchArgs, Pattern},
    attendance::{Stage, announce},
    destination::{Destination, Source},
    export::Export,
    fits::members,
    histogram, loss,
    progress::{Phase, Tell},
    run::{BenchError, check_numbers, nanoseconds},
    setup::{Setup, set_up},
    through,
    verify::check_and_stop,
    virtual_time,
};

pub use report::ObjectsReport;

/// Of a hundred slots, so many may have objects: beyond that a key's slot is far from where its hash says.
const FULL_PERCENT: usize = 80;

/// Makes an array, has a store on it measured, and checks both. What was on given devices is lost.
pub fn run_objects(arguments: &BenchArgs, tell: &Tell) -> Result<ObjectsReport, BenchError> {
    check(arguments)?;
    let (arguments, tell) = (arguments.clone(), Arc::clone(tell));
    tell(Phase::Preparing);
    if arguments.is_virtual() {
        return virtual_time::on_array(&arguments, fits, move |arguments, context, setup| async move {
            on_array(&arguments, &context, &setup, &tell).await
        });
    }
    let config = RuntimeConfig::unpinned(arguments.shards);
    uring::run(&config, move |context| async move {
        let setup = set_up(&arguments, &context, fits).await?;
        on_array(&arguments, &context, &setup, &tell).await
    })?
}

/// Has a store measured on an export, and reads it back. What the export held before is lost.
pub fn run_objects_through(
    arguments: &BenchArgs,
    export: &Export,
    may_overwrite: bool,
    tell: &Tell,
) -> Result<ObjectsReport, BenchError> {
    check(arguments)?;
    if arguments.is_virtual() {
        return Err(BenchError::NotVirtual("--through"));
    }
    if !may_overwrite {
        return Err(BenchError::ForceExport);
    }
    let (arguments, export, tell) = (arguments.clone(), export.clone(), Arc::clone(tell));
    let config = RuntimeConfig::unpinned(arguments.shards);
    uring::run(&config, move |context| async move { on_export(&arguments, &export, &context, &tell).await })?
}

pub(crate) fn check(arguments: &BenchArgs) -> Result<(), BenchError> {
    check_numbers(arguments)?;
    match arguments.pattern {
        Pattern::Random | Pattern::Zipf => {}
        _ => return Err(BenchError::Arguments("--objects: --pattern is random or zipf")),
    }
    if !arguments.size.is_multiple_of(4096) {
        return Err(BenchError::Arguments("--objects: --size must be a multiple of 4096 bytes"));
    }
    Ok(())
}

async fn on_array(
    arguments: &BenchArgs,
    context: &Context,
    setup: &Setup,
    tell: &Tell,
) -> Result<ObjectsReport, BenchError> {
    let shared = setup.array.shared();
    let source = Source::Engine(Arc::clone(shared));
    let inline = !setup.memories.is_empty();
    let load = load(arguments, context, &source, (shared.geometry.array_bytes(), inline), tell).await?;
    loss::lose(&setup.array, &arguments.lost).await?;
    announce(arguments.attended, Stage::Ready).await?;
    warm_up(arguments, context, &source, &load, tell).await?;
    announce(arguments.attended, Stage::Begins).await?;
    let before = setup.array.detail().statistics;
    let done = measure(arguments, context, &source, &load, tell).await?;
    let counts = setup.array.detail().statistics.since(&before);
    announce(arguments.attended, Stage::Ended).await?;
    let mut report = ObjectsReport::new(arguments, &done);
    report.array(arguments, setup.names(), &counts);
    tell(Phase::Checking);
    let destination = Destination::Engine(setup.array.volume().clone());
    let read_back = async || read_back(&load.store, &destination).await;
    let (objects, scrubbed) = check_and_stop(setup, arguments, setup.zeroed, read_back).await?;
    report.checked.objects = objects;
    (report.checked.stripes, report.checked.mismatched_sectors) =
        (scrubbed.stripes, scrubbed.mismatched_sectors);
    Ok(report)
}

async fn on_export(
    arguments: &BenchArgs,
    export: &Export,
    context: &Context,
    tell: &Tell,
) -> Result<ObjectsReport, BenchError> {
    let (source, size) = through::open(arguments, export, true, arguments.size).await?;
    let source = Source::Export(source);
    let load = load(arguments, context, &source, (size, false), tell).await?;
    warm_up(arguments, context, &source, &load, tell).await?;
    let done = measure(arguments, context, &source, &load, tell).await?;
    let mut report = ObjectsReport::new(arguments, &done);
    report.through = Some(export.to_string());
    tell(Phase::Checking);
    let destination = source.open().map_err(BenchError::Attach)?;
    report.checked.objects = read_back(&load.store, &destination).await?;
    Ok(report)
}

/// Whether the store fits an array.
fn fits(arguments: &BenchArgs, geometry: &Geometry) -> Result<(), BenchError> {
    members(arguments, geometry)?;
    slots(arguments, geometry.array_bytes()).map(drop)
}

/// The slots of a store on so many bytes, and the objects that there shall be.
fn slots(arguments: &BenchArgs, bytes: u64) -> Result<(usize, usize), BenchError> {
    let slots = usize::try_from(bytes / arguments.size).unwrap_or(usize::MAX);
    let objects = arguments.objects.unwrap_or_default();
    let most = slots.saturating_mul(FULL_PERCENT) / 100;
    if !(1..=most).contains(&objects) {
        return Err(BenchError::Objects { most, size: arguments.size });
    }
    Ok((slots, objects))
}

/// Makes the store, and puts every object once.
async fn load(
    arguments: &BenchArgs,
    context: &Context,
    source: &Source,
    (bytes, inline): (u64, bool),
    tell: &Tell,
) -> Result<Arc<Load>, BenchError> {
    tell(Phase::Filling);
    let (slots, objects) = slots(arguments, bytes)?;
    // The slots of objects depend on it. Under virtual time the same seed gives the same run.
    let id = if arguments.is_virtual() { arguments.seed } else { loss::random_u64()? };
    let store = Store::new(id, slots, usize::try_from(arguments.size).unwrap_or(usize::MAX));
    let load = Arc::new(Load::new(arguments, store, objects as u64, inline));
    work(&load, context, source, arguments.depth, Until::Loaded).await?;
    Ok(load)
}

/// The same load, of which nothing is counted.
async fn warm_up(
    arguments: &BenchArgs,
    context: &Context,
    source: &Source,
    load: &Arc<Load>,
    tell: &Tell,
) -> Result<(), BenchError> {
    tell(Phase::WarmingUp);
    let until = Until::Elapsed(nanoseconds(arguments.warm_up));
    work(load, context, source, arguments.depth, until).await.map(drop)
}

async fn measure(
    arguments: &BenchArgs,
    context: &Context,
    source: &Source,
    load: &Arc<Load>,
    tell: &Tell,
) -> Result<Done, BenchError> {
    tell(Phase::Measuring);
    let until = Until::Elapsed(nanoseconds(arguments.seconds));
    let done = work(load, context, source, arguments.depth, until).await?;
    histogram::keep(arguments, &done.all())?;
    Ok(done)
}

/// Opens the store from what is on the volume and reads every object. Returns how many there are.
async fn read_back(store: &Store, destination: &Destination) -> Result<u64, BenchError> {
    let opened = store.opened_anew(destination).await?;
    let (acknowledged, found) = (store.objects(), opened.objects());
    if acknowledged != found {
        return Err(BenchError::WrongData(format!(
            "{acknowledged} objects were acknowledged, {found} are found"
        )));
    }
    let mut buffer = shard::buffer(store.slot_bytes());
    for (key, version) in store.acknowledged() {
        if opened.version(key) != Some(version) {
            return Err(BenchError::WrongData(format!(
                "object {key} is not of put {version}, the last acknowledged"
            )));
        }
        let Some(read) = opened.get(destination, key, buffer).await? else {
            return Err(BenchError::WrongData(format!("object {key} has gone")));
        };
        buffer = read;
    }
    Ok(acknowledged)
}
