//! One shard's part of a run: its clients and its loop, kept from slice to slice.

use std::{cell::RefCell, collections::BTreeMap, ops::Range, rc::Rc, sync::Arc};

use hdrhistogram::Histogram;
use pinstripe_engine::shared::Shared;
use pinstripe_runtime::{
    DeviceError, Memory,
    shard::{self, JoinHandle},
    uring,
};
use rustix::time::{ClockId, clock_gettime};

use crate::{
    client::{Arrivals, Client, Slice},
    destination::{Destination, RequestError, Source},
    ledger::{Acknowledged, Region},
    report::by,
    straight_line::StraightLine,
};

/// Over memory a client looks at the clock once in so many requests.
pub(crate) const CLOCK_EVERY: u64 = 16;
/// In the seed of what times of arrival are drawn from: not what a client draws.
const ARRIVALS: u64 = 1 << 60;
/// The longest latency that is told from longer ones: 100 s.
const LATENCY_NS_MAX: u64 = 100_000_000_000;

thread_local! {
    /// By shard: under virtual time one thread has all of them.
    static WORKERS: RefCell<BTreeMap<usize, Rc<Worker>>> = const { RefCell::new(BTreeMap::new()) };
}

/// Of latencies in nanoseconds, empty.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_max(LATENCY_NS_MAX, 3).expect("the bounds are constants that fit")
}

/// What a worker is made of.
#[derive(Clone)]
pub(crate) struct WorkerConfig {
    pub(crate) source: Source,
    pub(crate) region: Arc<Region>,
    /// The numbers of its clients.
    pub(crate) clients: Range<u32>,
    pub(crate) reads: u8,
    /// What the clients draw from.
    pub(crate) seed: u64,
    /// Writes that went before, of every unit.
    pub(crate) writes_before: u32,
    /// Nanoseconds between two requests of the shard, on average, if they come at a rate.
    pub(crate) interval_ns: Option<f64>,
    pub(crate) straight_line: Option<LoopConfig>,
    /// Members answer inline: clients have to take turns by themselves, and the clock is dear.
    pub(crate) inline: bool,
}

/// What the straight-line loop is made of.
#[derive(Clone)]
pub(crate) struct LoopConfig {
    pub(crate) shared: Arc<Shared>,
    /// The members'.
    pub(crate) memories: Vec<Arc<Memory>>,
    pub(crate) region: Arc<Region>,
    /// The number of its first writer.
    pub(crate) writer: u32,
}

/// What a slice came to.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SliceOutcome {
    pub(crate) operations: u64,
    pub(crate) wall_ns: u64,
    /// CPU time of the shard's thread.
    pub(crate) cpu_ns: u64,
    /// How often that entered the kernel for its requests.
    pub(crate) kernel_entries: u64,
    /// Requests that were due and did not begin, if they come at a rate.
    pub(crate) not_sent: u64,
}

/// Of `depth` clients, those of a shard.
pub(crate) fn clients_of(shard: usize, depth: usize, shards: usize) -> Range<u32> {
    let first = |shard: usize| u32::try_from(depth * shard / shards).unwrap_or(u32::MAX);
    first(shard)..first(shard + 1)
}

/// Waits for all of them. Returns the first error in their order.
pub(crate) async fn end_all<E: 'static>(tasks: Vec<JoinHandle<Result<(), E>>>) -> Result<(), E> {
    let mut result = Ok(());
    for task in tasks {
        result = result.and(task.join().await);
    }
    result
}

impl SliceOutcome {
    /// With what another shard did at the same time.
    pub(crate) fn add_beside(&mut self, other: Self) {
        self.operations += other.operations;
        self.cpu_ns += other.cpu_ns;
        self.kernel_entries += other.kernel_entries;
        self.not_sent += other.not_sent;
        self.wall_ns = self.wall_ns.max(other.wall_ns);
    }

    /// Seconds, and requests per second.
    pub(crate) fn rate(&self) -> (f64, f64) {
        let seconds = by(self.wall_ns, 1_000_000_000);
        (seconds, if seconds > 0.0 { by(self.operations, 1) / seconds } else { 0.0 })
    }
}

pub(crate) struct Worker {
    pub(crate) destination: Destination,
    pub(crate) region: Arc<Region>,
    pub(crate) reads: u64,
    /// A request is timed when its number, counted from its client's, has none of these bits.
    pub(crate) clock_mask: u64,
    pub(crate) inline: bool,
    /// If requests come at a rate.
    pub(crate) arrivals: Option<RefCell<Arrivals>>,
    pub(crate) latency: RefCell<Histogram<u64>>,
    pub(crate) acknowledged: RefCell<Acknowledged>,
    clients: RefCell<Vec<Client>>,
    /// What clients work in now.
    slice: RefCell<Option<Rc<Slice>>>,
    straight_line: RefCell<Option<StraightLine>>,
}

impl Worker {
    /// Makes this shard's worker.
    pub(crate) fn start(config: WorkerConfig) -> Result<(), DeviceError> {
        let (first, count) = (config.clients.start, config.clients.end - config.clients.start);
        let client =
            |number| Client::new(number, config.seed, config.region.unit_bytes, config.writes_before);
        let clients = config.clients.map(client).collect();
        let straight_line = config.straight_line.map(|LoopConfig { shared, memories, region, writer }| {
            let snapshot = shared.snapshot();
            let starts = snapshot.seats.iter().map(|seat| seat.member().map_or(0, |m| m.data_offset));
            let lost = snapshot.seats.iter().position(|seat| seat.member().is_none());
            let members = memories.into_iter().zip(starts).collect();
            let geometry = shared.geometry.clone();
            StraightLine::new(geometry, members, lost, region, config.reads, (writer, count))
        });
        let worker = Self {
            clients: RefCell::new(clients),
            slice: RefCell::default(),
            straight_line: RefCell::new(straight_line),
            destination: config.source.open()?,
            region: config.region,
            reads: config.reads.into(),
            arrivals: config.interval_ns.map(|interval_ns| {
                Arrivals::new(interval_ns, ARRIVALS | u64::from(first) << 20 | config.seed).into()
            }),
            clock_mask: if config.inline && config.interval_ns.is_none() { CLOCK_EVERY - 1 } else { 0 },
            inline: config.inline,
            latency: RefCell::new(histogram()),
            acknowledged: RefCell::new(Acknowledged::new()),
        };
        WORKERS.with(|workers| workers.borrow_mut().insert(shard::index(), Rc::new(worker)));
        Ok(())
    }

    /// This shard's worker.
    pub(crate) fn current() -> Rc<Self> {
        WORKERS
            .with(|workers| workers.borrow().get(&shard::index()).cloned())
            .expect("the worker was started on this shard")
    }

    /// Ends this shard's worker. Returns the latencies in nanoseconds.
    pub(crate) fn end() -> Option<Histogram<u64>> {
        let worker = WORKERS.with(|workers| workers.borrow_mut().remove(&shard::index()))?;
        let latency = worker.latency.borrow().clone();
        Some(latency)
    }

    /// Has every client work through the engine for `nanoseconds`.
    pub(crate) async fn engine_slice(self: Rc<Self>, nanoseconds: u64) -> Result<SliceOutcome, RequestError> {
        let watch = Stopwatch::start();
        let slice = Rc::new(Slice::of(nanoseconds));
        self.slice.replace(Some(Rc::clone(&slice)));
        if let Some(arrivals) = &self.arrivals {
            arrivals.borrow_mut().begin(shard::now());
        }
        let clients = self.clients.take();
        let tasks: Vec<_> = clients
            .into_iter()
            .map(|client| shard::spawn_joined(client.work(Rc::clone(&self), Rc::clone(&slice))))
            .collect();
        for task in tasks {
            let client = task.join().await;
            self.clients.borrow_mut().push(client);
        }
        self.region.enter(&mut self.acknowledged.borrow_mut());
        slice.result()?;
        let not_sent = slice.not_sent(self.arrivals.as_ref());
        Ok(SliceOutcome { not_sent, ..watch.stop(slice.operations()) })
    }

    /// Ends what clients work in: they end what is under way, and come back.
    pub(crate) fn end_slice(&self) {
        if let Some(slice) = &*self.slice.borrow() {
            slice.end();
        }
    }

    /// Runs the loop for `nanoseconds`.
    pub(crate) fn straight_slice(&self, nanoseconds: u64) -> Result<SliceOutcome, DeviceError> {
        self.straight_line
            .borrow_mut()
            .as_mut()
            .map_or(Ok(SliceOutcome::default()), |straight| straight.run(nanoseconds))
    }

    /// Forgets the latencies of the warm-up.
    pub(crate) fn forget_latency(&self) {
        self.latency.borrow_mut().reset();
    }
}

/// Wall and CPU time of one thread, and its entries into the kernel.
pub(crate) struct Stopwatch {
    wall: u64,
    cpu: u64,
    entries: u64,
}

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Self { wall: shard::now(), cpu: thread_cpu_ns(), entries: kernel_entries() }
    }

    pub(crate) fn stop(&self, operations: u64) -> SliceOutcome {
        let (wall_ns, cpu_ns) = (shard::now() - self.wall, thread_cpu_ns() - self.cpu);
        let kernel_entries = kernel_entries() - self.entries;
        SliceOutcome { operations, wall_ns, cpu_ns, kernel_entries, not_sent: 0 }
    }
}

/// None under virtual time.
fn kernel_entries() -> u64 {
    uring::kernel_entries().unwrap_or(0)
}

fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap_or(0)
}
