//! One client: a task that reads and writes one request after the other through the engine, or an export.
//!
//! Its buffer goes into the write as a slice and comes back when the write is acknowledged; nothing is
//! copied.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use pinstripe_runtime::{Buffer, shard};

use crate::{
    destination::RequestError,
    ledger::{fill, stamp},
    rng::Rng,
    worker::Worker,
};

/// One read in so many is looked at.
const CHECK_EVERY: u64 = 16;
/// How often a client that waits for its next request looks whether the slice is over.
const LOOK_NS: u64 = 10_000_000;

/// How long clients work, and what came of it.
pub(crate) struct Slice {
    began: u64,
    deadline: Cell<u64>,
    over: Cell<bool>,
    operations: Cell<u64>,
    error: RefCell<Option<RequestError>>,
}

impl Slice {
    /// From now on, for so long.
    pub(crate) fn of(nanoseconds: u64) -> Self {
        let began = shard::now();
        Self {
            began,
            deadline: Cell::new(began + nanoseconds),
            over: Cell::new(false),
            operations: Cell::new(0),
            error: RefCell::default(),
        }
    }

    /// Ends it now.
    pub(crate) fn end(&self) {
        self.deadline.set(self.deadline.get().min(shard::now()));
        self.over.set(true);
    }

    pub(crate) fn result(&self) -> Result<(), RequestError> {
        self.error.take().map_or(Ok(()), Err)
    }

    pub(crate) fn operations(&self) -> u64 {
        self.operations.get()
    }

    /// How many requests were due and did not begin.
    pub(crate) fn not_sent(&self, arrivals: Option<&RefCell<Arrivals>>) -> u64 {
        arrivals.map_or(0, |arrivals| arrivals.borrow().left(self.deadline.get()))
    }

    fn fail(&self, error: RequestError) {
        self.error.borrow_mut().get_or_insert(error);
        self.over.set(true);
    }
}

/// A client between two slices.
pub(crate) struct Client {
    number: u32,
    /// Filled with the client's body.
    buffer: Option<Buffer>,
    length: usize,
    rng: Rng,
    writes: u32,
    operations: u64,
}

/// Requests that come at random times, whether any client is free then or not: the next one that is takes the
/// next request.
pub(crate) struct Arrivals {
    /// Between two of them, on average.
    interval_ns: f64,
    /// When the one that was taken last is due.
    due: f64,
    rng: Rng,
}

impl Arrivals {
    pub(crate) fn new(interval_ns: f64, seed: u64) -> Self {
        Self { interval_ns, due: 0.0, rng: Rng::new(seed) }
    }

    /// The first one comes after `now`.
    pub(crate) fn begin(&mut self, now: u64) {
        self.due = nanoseconds(now);
    }

    /// When the next one is due.
    fn take(&mut self) -> u64 {
        self.due += self.rng.pause(self.interval_ns);
        whole(self.due)
    }

    /// How many have not been taken that are due before `deadline`: about so many.
    fn left(&self, deadline: u64) -> u64 {
        whole(((nanoseconds(deadline) - self.due) / self.interval_ns).max(0.0))
    }
}

impl Client {
    /// `writes` have gone before, which the versions of its own come after.
    pub(crate) fn new(number: u32, seed: u64, unit_bytes: u64, writes: u32) -> Self {
        let length = usize::try_from(unit_bytes).unwrap_or(usize::MAX);
        let rng = Rng::new(u64::from(number) << 20 | seed);
        Self { number, buffer: None, length, rng, writes, operations: 0 }
    }

    /// Works until the slice is over, and comes back.
    ///
    /// Where requests end at once a client waits for its turn. Then the time of its next request has begun:
    /// so many requests are under way as there are clients, as where members take time.
    pub(crate) async fn work(mut self, worker: Rc<Worker>, slice: Rc<Slice>) -> Self {
        let before = self.operations;
        let mut free_since = slice.began;
        while !slice.over.get() {
            let timed = self.is_timed(&worker);
            let started = match &worker.arrivals {
                Some(arrivals) => until_due(arrivals, &slice).await,
                None if timed && worker.inline => free_since,
                None if timed => shard::now(),
                None => 0,
            };
            if started >= slice.deadline.get() {
                slice.over.set(true);
                break;
            }
            let reads = worker.reads > 0 && self.rng.below(100) < worker.reads;
            let result = if reads { self.read(&worker).await } else { self.write(&worker).await };
            if let Err(error) = result {
                slice.fail(error);
                break;
            }
            self.operations += 1;
            if timed {
                worker.latency.borrow_mut().saturating_record(shard::now() - started);
            }
            if worker.inline {
                if self.is_timed(&worker) {
                    free_since = shard::now();
                }
                shard::yield_now().await;
            }
        }
        slice.operations.set(slice.operations.get() + self.operations - before);
        self
    }

    /// Whether the next request is timed. Clients take turns: some of each round are, so that a moment in
    /// which the thread was taken off its CPU counts for as much as it took.
    fn is_timed(&self, worker: &Worker) -> bool {
        (self.operations + u64::from(self.number)) & worker.clock_mask == 0
    }

    async fn read(&mut self, worker: &Worker) -> Result<(), RequestError> {
        let offset = worker.region.next_read(&mut self.rng);
        let is_checked = self.operations.is_multiple_of(CHECK_EVERY);
        let expected = is_checked.then(|| worker.region.expected(offset)).flatten();
        let (result, bytes) = worker.destination.read(offset, shard::buffer(self.length)).await;
        result?;
        expected.map_or(Ok(()), |expected| expected.check(&bytes)).map_err(RequestError::Wrong)
    }

    async fn write(&mut self, worker: &Worker) -> Result<(), RequestError> {
        let target = worker.region.next_write(self.number.into(), &mut self.writes, &mut self.rng);
        let mut buffer = self.buffer.take().unwrap_or_else(|| {
            let mut buffer = shard::buffer(self.length);
            fill(&mut buffer, self.number);
            buffer
        });
        stamp(&mut buffer, target, self.number);
        let data = buffer.freeze();
        worker.destination.write(target.offset, data.clone()).await?;
        worker.acknowledged.borrow_mut().note(&worker.region, target);
        // A joined write may leave a handle with its batch for a moment; then the next one takes another
        // buffer.
        self.buffer = data.try_into_buffer().ok();
        Ok(())
    }
}

/// Waits until the next request is due; that is when its time begins, even if all clients were busy then.
/// What has not begun by the deadline doesn't begin at all.
async fn until_due(arrivals: &RefCell<Arrivals>, slice: &Slice) -> u64 {
    if shard::now() >= slice.deadline.get() {
        return slice.deadline.get();
    }
    let due = arrivals.borrow_mut().take().min(slice.deadline.get());
    loop {
        shard::sleep(due.saturating_sub(shard::now()).min(LOOK_NS)).await;
        if slice.over.get() {
            return slice.deadline.get();
        }
        if shard::now() >= due {
            return due;
        }
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time or count of a run")]
fn whole(value: f64) -> u64 {
    value as u64
}

/// Exact up to 104 days.
#[expect(clippy::cast_precision_loss, reason = "so much is exact")]
fn nanoseconds(time: u64) -> f64 {
    time as f64
}
