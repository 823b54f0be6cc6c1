//! The load of one seed: the engine over models of drives, with requests of a shape or a trace.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use hdrhistogram::Histogram;
use pinstripe_engine::{io::volume::Volume, statistics::Statistics};
use pinstripe_runtime::{Slice, shard};

use super::arguments::PlanArgs;
use crate::{
    arguments::{BenchArgs, Pattern},
    destination::RequestError,
    fits, loss,
    replay::Replay,
    report::by,
    rng::Rng,
    run::{BenchError, UNITS_PER_CLIENT_MIN},
    setup::Setup,
    trace::{Action, Request, Trace},
    virtual_time,
    worker::{end_all, histogram},
};

/// Requests before those that are counted, for each of those.
const WARM_UP_PER_REQUEST: u64 = 2;
/// No longer than this: what the engine does at leisure, as to clear bits, it does within seconds.
const WARM_UP_NS_MAX: u64 = 10_000_000_000;

/// What came of one seed.
pub(super) struct Sample {
    pub(super) requests: u64,
    pub(super) bytes: u64,
    pub(super) elapsed_ns: u64,
    pub(super) latency: Histogram<u64>,
    pub(super) counts: Statistics,
    /// Bytes of a member that the array uses.
    pub(super) member_bytes: u64,
    /// Bytes of the array.
    pub(super) array_bytes: u64,
}

/// Runs the load with the seed of `bench`.
pub(super) fn run(
    arguments: &PlanArgs,
    bench: &BenchArgs,
    trace: Option<Rc<Trace>>,
) -> Result<Sample, BenchError> {
    let arguments = arguments.clone();
    virtual_time::on_array(bench, fits::members, move |bench, _, setup| async move {
        let sample = measure(&arguments, &bench, trace, &setup).await?;
        setup.array.stop().await.map_err(RequestError::from)?;
        Ok(sample)
    })
}

async fn measure(
    arguments: &PlanArgs,
    bench: &BenchArgs,
    trace: Option<Rc<Trace>>,
    setup: &Setup,
) -> Result<Sample, BenchError> {
    let geometry = &setup.array.shared().geometry;
    let (size, block) = (geometry.array_bytes(), geometry.logical_block());
    let made = arguments.synthetic(bench.seed).map(|made| Rc::new(made.trace(size)));
    let feed = match trace.or(made) {
        Some(trace) => Feed::Trace(Replay::new((*trace).clone(), arguments.trace_time, size, block)),
        None => Feed::Shape(Shape::new(bench, size)?),
    };
    loss::lose(&setup.array, &bench.lost).await?;
    let load = Rc::new(Load::new(arguments, feed, setup));
    let tasks = (0..bench.depth).map(|_| shard::spawn_joined(client(Rc::clone(&load)))).collect();
    end_all(tasks).await?;
    let meter = &load.meter;
    // A trace ends with its last request.
    meter.end(&load.volume);
    Ok(Sample {
        requests: meter.requests.get(),
        bytes: meter.bytes.get(),
        elapsed_ns: meter.ended.get().map_or(0, |ended| ended - meter.began.get()),
        latency: meter.latency.borrow().clone(),
        counts: meter.counts.get(),
        member_bytes: member_bytes(setup),
        array_bytes: size,
    })
}

/// A level without parity takes all of the shortest member.
fn member_bytes(setup: &Setup) -> u64 {
    let members = u64::try_from(setup.sources.len()).unwrap_or(1).max(1);
    match setup.member_bytes() {
        0 => setup.array.shared().geometry.array_bytes() / members,
        bytes => bytes,
    }
}

/// Where requests come from.
enum Feed {
    Shape(Shape),
    Trace(Replay),
}

/// Requests of one size.
struct Shape {
    pattern: Pattern,
    length: u32,
    reads: u64,
    units: u64,
    next: Cell<u64>,
    /// Nanoseconds between two requests, on average, if they come at a rate.
    interval_ns: Option<f64>,
    /// When the next one is due, in nanoseconds from the begin.
    due: Cell<f64>,
    rng: RefCell<Rng>,
}

impl Shape {
    fn new(bench: &BenchArgs, array_bytes: u64) -> Result<Self, BenchError> {
        let units = array_bytes / bench.size;
        let clients = u64::try_from(bench.depth * UNITS_PER_CLIENT_MIN).unwrap_or(u64::MAX);
        if units < clients {
            return Err(BenchError::TooSmall { depth: bench.depth, size: bench.size });
        }
        Ok(Self {
            pattern: bench.pattern,
            length: u32::try_from(bench.size).unwrap_or(u32::MAX),
            reads: bench.reads.into(),
            units,
            next: Cell::new(0),
            interval_ns: bench.rate.map(|rate| by(bench.size, rate) * 1e9),
            due: Cell::new(0.0),
            rng: RefCell::new(Rng::new(bench.seed)),
        })
    }

    fn take(&self) -> Request {
        let rng = &mut *self.rng.borrow_mut();
        let unit = match self.pattern {
            Pattern::Sequential => self.next.replace((self.next.get() + 1) % self.units),
            _ => rng.below(self.units),
        };
        let action = if rng.below(100) < self.reads { Action::Read } else { Action::Write };
        self.due.set(self.due.get() + self.interval_ns.map_or(0.0, |interval| rng.pause(interval)));
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time of days at most")]
        let at_ns = self.due.get() as u64;
        Request { at_ns, offset: unit * u64::from(self.length), length: self.length, action }
    }
}

impl Feed {
    /// The next request, until there are no more.
    fn take(&self) -> Option<Request> {
        match self {
            Self::Shape(shape) => Some(shape.take()),
            Self::Trace(replay) => replay.take().map(|(_, request)| request),
        }
    }

    /// When a request is due, if it doesn't come as soon as it can.
    fn due_ns(&self, request: &Request) -> Option<u64> {
        let is_paced = match self {
            Self::Shape(shape) => shape.interval_ns.is_some(),
            Self::Trace(replay) => replay.is_paced,
        };
        is_paced.then_some(request.at_ns)
    }
}

/// What clients share.
struct Load {
    feed: Feed,
    /// When the time of requests that come when they are due began.
    began: u64,
    volume: Volume,
    /// What is written.
    zeroes: Slice,
    meter: Meter,
}

impl Load {
    fn new(arguments: &PlanArgs, feed: Feed, setup: &Setup) -> Self {
        let (longest, warm_up, wanted) = match &feed {
            Feed::Shape(shape) => {
                let wanted = u64::from(arguments.requests);
                (usize::try_from(shape.length).unwrap_or(0), wanted * WARM_UP_PER_REQUEST, wanted)
            }
            Feed::Trace(replay) => (replay.longest(), 0, u64::MAX),
        };
        Self {
            feed,
            began: shard::now(),
            volume: setup.array.volume().clone(),
            zeroes: shard::zeroed(longest).freeze(),
            meter: Meter::new(setup.array.volume(), warm_up, wanted),
        }
    }

    async fn carry_out(&self, request: &Request) -> Result<(), RequestError> {
        let length = usize::try_from(request.length).unwrap_or(usize::MAX);
        Ok(match request.action {
            Action::Read => self.volume.read(request.offset, shard::buffer(length)).await.0,
            Action::Write => self.volume.write(request.offset, self.zeroes.slice(0, length), false).await,
            Action::Flush => self.volume.flush().await,
        }?)
    }
}

async fn client(load: Rc<Load>) -> Result<(), RequestError> {
    while load.meter.ended.get().is_none()
        && let Some(request) = load.feed.take()
    {
        let mut started = shard::now();
        if let Some(due_ns) = load.feed.due_ns(&request) {
            // Its time begins when it is due, also where all clients were busy then.
            let due = load.began.saturating_add(due_ns);
            shard::sleep(due.saturating_sub(started)).await;
            started = due;
        }
        load.carry_out(&request).await?;
        load.meter.note(&load, &request, started);
    }
    Ok(())
}

/// Counts what is done between the warm-up and the end.
struct Meter {
    /// When the warm-up ends at the latest.
    warm_until: u64,
    /// Requests that the warm-up still lacks.
    warm_up: Cell<u64>,
    wanted: u64,
    requests: Cell<u64>,
    bytes: Cell<u64>,
    began: Cell<u64>,
    ended: Cell<Option<u64>>,
    /// What the engine had counted at the begin; what it has counted since, at the end.
    counts: Cell<Statistics>,
    latency: RefCell<Histogram<u64>>,
}

impl Meter {
    fn new(volume: &Volume, warm_up: u64, wanted: u64) -> Self {
        let now = shard::now();
        Self {
            warm_until: now + WARM_UP_NS_MAX,
            warm_up: Cell::new(warm_up),
            wanted,
            requests: Cell::new(0),
            bytes: Cell::new(0),
            began: Cell::new(now),
            ended: Cell::new(None),
            counts: Cell::new(counts(volume)),
            latency: RefCell::new(histogram()),
        }
    }

    fn note(&self, load: &Load, request: &Request, started: u64) {
        let now = shard::now();
        if self.ended.get().is_some() {
            return;
        }
        if self.warm_up.get() > 0 {
            self.warm_up.set(if now < self.warm_until { self.warm_up.get() - 1 } else { 0 });
            self.began.set(now);
            self.counts.set(counts(&load.volume));
            return;
        }
        self.requests.set(self.requests.get() + 1);
        self.bytes.set(self.bytes.get() + u64::from(request.length));
        self.latency.borrow_mut().saturating_record(now.saturating_sub(started));
        if self.requests.get() == self.wanted {
            self.end(&load.volume);
        }
    }

    fn end(&self, volume: &Volume) {
        if self.ended.get().is_none() {
            self.ended.set(Some(shard::now()));
            self.counts.set(counts(volume).since(&self.counts.get()));
        }
    }
}

fn counts(volume: &Volume) -> Statistics {
    Statistics::sum(volume.shared().counters.iter().map(|counters| &**counters))
}
