//! The clients of the store, which do what YCSB's core workloads do.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use hdrhistogram::Histogram;
use pinstripe_runtime::{Buffer, shard, uring::Context};

use super::store::Store;
use crate::{
    arguments::{BenchArgs, Mix, Pattern},
    destination::{Destination, Source},
    ledger::{self, Zipf},
    rng::Rng,
    run::{BenchError, on_all},
    worker::{SliceOutcome, Stopwatch, clients_of, end_all, histogram},
};

/// What a client does to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Read,
    Update,
    Insert,
    /// A read and then an update of the same object.
    ReadModifyWrite,
}

impl Mix {
    /// What is asked for of 100 operations besides reads.
    fn other(self) -> (u64, Operation) {
        match self {
            Self::A => (50, Operation::Update),
            Self::B => (5, Operation::Update),
            Self::C => (0, Operation::Update),
            Self::D => (5, Operation::Insert),
            Self::F => (50, Operation::ReadModifyWrite),
            Self::W => (100, Operation::Update),
        }
    }
}

/// What all clients share.
pub(super) struct Load {
    pub(super) store: Store,
    mix: Mix,
    pattern: Pattern,
    /// Objects before the measurement.
    loaded: u64,
    /// The key of the next new object.
    next: AtomicU64,
    zipf: Zipf,
    over: AtomicBool,
    seed: u64,
    inline: bool,
}

impl Load {
    pub(super) fn new(arguments: &BenchArgs, store: Store, loaded: u64, inline: bool) -> Self {
        Self {
            store,
            mix: arguments.mix,
            pattern: arguments.pattern,
            loaded,
            next: AtomicU64::new(0),
            zipf: Zipf::below(loaded),
            over: AtomicBool::new(false),
            seed: arguments.seed,
            inline,
        }
    }

    /// An object that is there.
    fn key(&self, rng: &mut Rng) -> u64 {
        if self.mix == Mix::D {
            // The newest ones most often.
            let newest = self.next.load(Ordering::Relaxed).max(self.loaded) - 1;
            let age =
                if self.pattern == Pattern::Zipf { self.zipf.rank(rng) } else { rng.below(self.loaded) };
            return newest - age;
        }
        match self.pattern {
            Pattern::Zipf => self.zipf.draw(rng),
            _ => rng.below(self.loaded),
        }
    }
}

/// What came of it.
pub(super) struct Done {
    pub(super) outcome: SliceOutcome,
    pub(super) reads: Histogram<u64>,
    /// Updates and inserts.
    pub(super) writes: Histogram<u64>,
    /// Reads with the update that follows.
    pub(super) read_modify_writes: Histogram<u64>,
}

impl Done {
    fn new() -> Self {
        Self {
            outcome: SliceOutcome::default(),
            reads: histogram(),
            writes: histogram(),
            read_modify_writes: histogram(),
        }
    }

    fn note(&mut self, operation: Operation, took_ns: u64) {
        self.outcome.operations += 1;
        let latency = match operation {
            Operation::Read => &mut self.reads,
            Operation::Update | Operation::Insert => &mut self.writes,
            Operation::ReadModifyWrite => &mut self.read_modify_writes,
        };
        latency.saturating_record(took_ns);
    }

    /// What another shard did at the same time.
    fn add(&mut self, other: Self) {
        self.outcome.add_beside(other.outcome);
        // Made with the same bounds.
        let _ = self.reads.add(other.reads);
        let _ = (self.writes.add(other.writes), self.read_modify_writes.add(other.read_modify_writes));
    }

    /// The latencies of all operations together.
    pub(super) fn all(&self) -> Histogram<u64> {
        let mut all = self.reads.clone();
        let _ = (all.add(&self.writes), all.add(&self.read_modify_writes));
        all
    }
}

/// How long clients work.
#[derive(Clone, Copy)]
pub(super) enum Until {
    /// All objects are there.
    Loaded,
    /// So many nanoseconds have gone.
    Elapsed(u64),
}

/// Has `depth` clients, spread over the shards, put and get.
pub(super) async fn work(
    load: &Arc<Load>,
    context: &Context,
    source: &Source,
    depth: usize,
    until: Until,
) -> Result<Done, BenchError> {
    let shards = context.shards().len();
    let results: Vec<Result<Done, BenchError>> = on_all(context, |shard| {
        let (load, source) = (Arc::clone(load), source.clone());
        let clients = clients_of(shard, depth, shards);
        move || async move {
            let watch = Stopwatch::start();
            let destination = source.open().map_err(BenchError::Attach)?;
            let here = Rc::new(Here {
                load,
                destination,
                done: RefCell::new(Done::new()),
                until,
                began: shard::now(),
            });
            let tasks: Vec<_> = clients
                .map(|number| shard::spawn_joined(Client::new(&here, number).work(Rc::clone(&here))))
                .collect();
            end_all(tasks).await?;
            let mut done = here.done.replace(Done::new());
            done.outcome = watch.stop(done.outcome.operations);
            Ok(done)
        }
    })
    .await;
    let mut all = Done::new();
    for result in results {
        all.add(result?);
    }
    Ok(all)
}

/// What the clients of a shard share.
struct Here {
    load: Arc<Load>,
    destination: Destination,
    done: RefCell<Done>,
    until: Until,
    began: u64,
}

/// One client: an operation at a time.
struct Client {
    rng: Rng,
    /// Filled with the client's body.
    buffer: Cell<Option<Buffer>>,
    number: u32,
}

impl Client {
    fn new(here: &Here, number: u32) -> Self {
        // Not the places of the run before. Under virtual time that of another seed may have begun at the
        // same moment.
        let seed = here.began ^ here.load.seed << 20 ^ u64::from(number) << 40;
        Self { rng: Rng::new(seed), buffer: Cell::new(None), number }
    }

    async fn work(mut self, here: Rc<Here>) -> Result<(), BenchError> {
        let load = &here.load;
        // An operation's time begins where the client's last one ended, also if the client then has to wait
        // for its turn.
        let mut free_since = here.began;
        while !load.over.load(Ordering::Relaxed) {
            let operation = match here.until {
                Until::Elapsed(limit) if free_since - here.began >= limit => break,
                Until::Elapsed(_) => {
                    let (share, other) = load.mix.other();
                    if self.rng.below(100) < share { other } else { Operation::Read }
                }
                Until::Loaded => Operation::Insert,
            };
            let key = match operation {
                Operation::Insert => load.next.fetch_add(1, Ordering::Relaxed),
                _ => load.key(&mut self.rng),
            };
            if matches!(here.until, Until::Loaded) && key >= load.loaded {
                load.next.store(load.loaded, Ordering::Relaxed);
                break;
            }
            if let Err(error) = self.carry_out(&here, operation, key).await {
                load.over.store(true, Ordering::Relaxed);
                return Err(error);
            }
            let ended = shard::now();
            here.done.borrow_mut().note(operation, ended - free_since);
            free_since = ended;
            if load.inline {
                shard::yield_now().await;
            }
        }
        Ok(())
    }

    async fn carry_out(&self, here: &Here, operation: Operation, key: u64) -> Result<(), BenchError> {
        if matches!(operation, Operation::Read | Operation::ReadModifyWrite) {
            self.read(here, key).await?;
        }
        if operation == Operation::Read {
            return Ok(());
        }
        let buffer = self.buffer.take().unwrap_or_else(|| {
            let mut buffer = shard::buffer(here.load.store.slot_bytes());
            ledger::fill(&mut buffer, self.number);
            buffer
        });
        self.buffer.set(here.load.store.put(&here.destination, key, buffer).await?);
        Ok(())
    }

    /// The newest object may not be there yet: the one before it is.
    async fn read(&self, here: &Here, mut key: u64) -> Result<(), BenchError> {
        let store = &here.load.store;
        while store.get(&here.destination, key, shard::buffer(store.slot_bytes())).await?.is_none() {
            if key < here.load.loaded {
                return Err(BenchError::WrongData(format!("object {key} has gone")));
            }
            key -= 1;
        }
        Ok(())
    }
}
