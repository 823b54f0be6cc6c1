//! The clients, which take a trace's requests in its order.

use std::{
    cell::{Cell, RefCell},
    ops::Range,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
};

use hdrhistogram::Histogram;
use pinstripe_runtime::{Buffer, shard, uring::Context};

use crate::{
    destination::{Destination, RequestError, Source},
    ledger,
    progress::{Phase, Tell},
    run::{BenchError, on_all},
    trace::{Action, Request, Trace},
    worker::{SliceOutcome, Stopwatch, clients_of, end_all, histogram},
};

/// Bytes that carry a mark of their own.
pub(super) const SECTOR: u64 = 512;
/// How often it is told how far the replay is.
const TELL_NS: u64 = 200_000_000;

/// What is replayed, and how far it is.
pub(crate) struct Replay {
    requests: Vec<Request>,
    /// How many have been taken.
    taken: AtomicUsize,
    /// By request: how many had been taken when it was acknowledged.
    acknowledged: Box<[AtomicU32]>,
    /// Whether requests come when they are due.
    pub(crate) is_paced: bool,
    /// Bytes of the longest request.
    longest: usize,
    /// Bytes of the device, in whole blocks.
    pub(super) size: u64,
    pub(super) fitted: Fitted,
}

/// Requests that aren't replayed as they stand in the trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fitted {
    /// Begin or end within a block.
    pub(super) widened: u64,
    /// Lie beyond the device.
    pub(super) folded: u64,
}

/// What shards have done.
pub(super) struct Replayed {
    pub(super) outcome: SliceOutcome,
    pub(super) reads: Histogram<u64>,
    pub(super) writes: Histogram<u64>,
    pub(super) flushes: u64,
    pub(super) read_bytes: u64,
    pub(super) written_bytes: u64,
}

/// A request, as a device of `size` bytes in blocks of `block` can carry it out.
fn fit(request: Request, size: u64, block: u64, fitted: &mut Fitted) -> Request {
    if request.action == Action::Flush {
        return request;
    }
    let (mut start, mut end) = (request.offset, request.offset + u64::from(request.length));
    if !(start.is_multiple_of(block) && end.is_multiple_of(block)) {
        fitted.widened += 1;
        (start, end) = (start - start % block, end.saturating_add(block - 1) / block * block);
    }
    let length = (end - start).min(size);
    if end > size {
        fitted.folded += 1;
        start %= size;
        // Not over its end.
        start = start.min(size - length);
    }
    Request { offset: start, length: u32::try_from(length).unwrap_or(u32::MAX), ..request }
}

impl Replay {
    /// Of a trace, on a device.
    pub(crate) fn new(trace: Trace, is_paced: bool, size: u64, block: u32) -> Self {
        let block = u64::from(block).max(SECTOR);
        let size = size / block * block;
        assert!(size > 0, "a device of less than a block is refused before");
        let mut fitted = Fitted::default();
        let requests: Vec<Request> =
            trace.requests.into_iter().map(|request| fit(request, size, block, &mut fitted)).collect();
        let longest = requests.iter().map(|request| request.length).max().unwrap_or(0);
        Self {
            acknowledged: requests.iter().map(|_| AtomicU32::new(0)).collect(),
            taken: AtomicUsize::new(0),
            is_paced,
            longest: usize::try_from(longest).unwrap_or(usize::MAX),
            requests,
            size,
            fitted,
        }
    }

    /// Bytes of the longest request.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// The next request, and its number, from 1.
    pub(crate) fn take(&self) -> Option<(u32, Request)> {
        let index = self.taken.fetch_add(1, Ordering::AcqRel);
        Some((number(index), *self.requests.get(index)?))
    }

    /// No more are taken.
    fn give_up(&self) {
        self.taken.fetch_max(self.requests.len(), Ordering::AcqRel);
    }

    /// Notes that a request was acknowledged: what is taken from now on comes after it.
    pub(super) fn acknowledge(&self, number: u32) {
        let taken = self.taken.load(Ordering::Acquire).min(self.requests.len());
        self.acknowledged[index(number)].store(u32::try_from(taken).unwrap_or(u32::MAX), Ordering::Relaxed);
    }

    /// Whether what `number` wrote may be left where `last` was the last one to be taken.
    pub(super) fn may_be_left(&self, number: u32, last: u32) -> bool {
        number == last || self.acknowledged[index(number)].load(Ordering::Relaxed) >= last
    }

    /// The writes, each with its number, in the order in which they were taken.
    pub(super) fn writes(&self) -> impl Iterator<Item = (u32, &Request)> {
        let numbered = self.requests.iter().enumerate().map(|(index, request)| (number(index), request));
        numbered.filter(|(_, request)| request.action == Action::Write)
    }

    /// The request of this number.
    pub(super) fn of(&self, number: u32) -> Option<&Request> {
        self.requests.get(usize::try_from(number).ok()?.checked_sub(1)?)
    }
}

/// Requests are counted from 1: a sector with the number 0 was never written.
fn number(index: usize) -> u32 {
    u32::try_from(index).map_or(u32::MAX, |index| index.saturating_add(1))
}

fn index(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX) - 1
}

/// Replays all of it, with `depth` requests at a time.
pub(super) async fn replay(
    replay: &Arc<Replay>,
    context: &Context,
    source: &Source,
    depth: usize,
    inline: bool,
    tell: &Tell,
) -> Result<Replayed, BenchError> {
    let over = Rc::new(Cell::new(false));
    let teller = shard::spawn_joined({
        let (replay, over, tell) = (Arc::clone(replay), Rc::clone(&over), Arc::clone(tell));
        async move {
            while !over.get() {
                let requests = replay.len();
                tell(Phase::Replaying { done: replay.taken.load(Ordering::Relaxed).min(requests), requests });
                shard::sleep(TELL_NS).await;
            }
        }
    });
    let shards = context.shards().len();
    let results = on_all(context, |shard| {
        let (replay, source) = (Arc::clone(replay), source.clone());
        let clients = clients_of(shard, depth, shards);
        move || async move { on_shard(replay, source, clients, inline).await }
    })
    .await;
    over.set(true);
    teller.join().await;
    let mut all = Replayed::new();
    for result in results {
        all.add(result?);
    }
    Ok(all)
}

async fn on_shard(
    replay: Arc<Replay>,
    source: Source,
    clients: Range<u32>,
    inline: bool,
) -> Result<Replayed, BenchError> {
    let watch = Stopwatch::start();
    let destination = source.open().map_err(BenchError::Attach)?;
    let here = Rc::new(Here {
        replay,
        destination,
        began: shard::now(),
        inline,
        done: RefCell::new(Replayed::new()),
    });
    let tasks: Vec<_> = clients.map(|client| shard::spawn_joined(work(Rc::clone(&here), client))).collect();
    end_all(tasks).await?;
    let mut done = here.done.replace(Replayed::new());
    done.outcome = watch.stop(done.outcome.operations);
    Ok(done)
}

/// What the clients of a shard share.
struct Here {
    replay: Arc<Replay>,
    destination: Destination,
    /// When the trace's time began.
    began: u64,
    /// Requests end at once: clients have to take turns by themselves.
    inline: bool,
    done: RefCell<Replayed>,
}

/// One client: takes requests until there are no more.
async fn work(here: Rc<Here>, client: u32) -> Result<(), RequestError> {
    let (replay, mut buffer) = (&here.replay, None);
    // At full speed a request's time begins where the client's last one ended, also if the client then has to
    // wait for its turn.
    let mut free_since = here.began;
    while let Some((number, request)) = replay.take() {
        let mut started = free_since;
        if replay.is_paced {
            // Its time begins when it is due, also where all clients were busy then.
            let due = here.began.saturating_add(request.at_ns);
            shard::sleep(due.saturating_sub(shard::now())).await;
            started = due;
        }
        let result = carry_out(&here, client, number, request, &mut buffer).await;
        if let Err(error) = result {
            replay.give_up();
            return Err(error);
        }
        free_since = shard::now();
        here.done.borrow_mut().note(request, free_since.saturating_sub(started));
        if here.inline {
            shard::yield_now().await;
        }
    }
    Ok(())
}

async fn carry_out(
    here: &Here,
    client: u32,
    number: u32,
    request: Request,
    kept: &mut Option<Buffer>,
) -> Result<(), RequestError> {
    let length = usize::try_from(request.length).unwrap_or(usize::MAX);
    match request.action {
        Action::Read => here.destination.read(request.offset, shard::buffer(length)).await.0,
        Action::Flush => here.destination.flush().await,
        Action::Write => {
            let mut buffer = kept.take().unwrap_or_else(|| {
                let mut buffer = shard::buffer(here.replay.longest);
                buffer.chunks_mut(sector_bytes()).for_each(|sector| ledger::fill(sector, client));
                buffer
            });
            ledger::mark(&mut buffer[..length], request.offset, number, client);
            let data = buffer.freeze();
            here.destination.write(request.offset, data.slice(0, length)).await?;
            here.replay.acknowledge(number);
            // A joined write may leave a handle with its batch for a moment.
            *kept = data.try_into_buffer().ok();
            Ok(())
        }
    }
}

pub(super) fn sector_bytes() -> usize {
    usize::try_from(SECTOR).unwrap_or(usize::MAX)
}

impl Replayed {
    fn new() -> Self {
        Self {
            outcome: SliceOutcome::default(),
            reads: histogram(),
            writes: histogram(),
            flushes: 0,
            read_bytes: 0,
            written_bytes: 0,
        }
    }

    fn note(&mut self, request: Request, took_ns: u64) {
        self.outcome.operations += 1;
        let length = u64::from(request.length);
        match request.action {
            Action::Read => {
                self.reads.saturating_record(took_ns);
                self.read_bytes += length;
            }
            Action::Write => {
                self.writes.saturating_record(took_ns);
                self.written_bytes += length;
            }
            Action::Flush => self.flushes += 1,
        }
    }

    /// What another shard did at the same time.
    fn add(&mut self, other: Self) {
        self.outcome.add_beside(other.outcome);
        // Made with the same bounds.
        let _ = (self.reads.add(other.reads), self.writes.add(other.writes));
        self.flushes += other.flushes;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_fitted_into_whole_blocks_of_the_device() {
        let place = |offset, length| {
            let mut fitted = Fitted::default();
            let request = Request { at_ns: 0, offset, length, action: Action::Write };
            let request = fit(request, 40960, 4096, &mut fitted);
            (request.offset, request.length, fitted.widened, fitted.folded)
        };
        assert_eq!(place(4096, 8192), (4096, 8192, 0, 0));
        assert_eq!(place(4097, 1), (4096, 4096, 1, 0));
        assert_eq!(place(4095, 2), (0, 8192, 1, 0));
        assert_eq!(place(36864, 4096), (36864, 4096, 0, 0));
        assert_eq!(place(36864, 8192), (32768, 8192, 0, 1), "not over the end");
        assert_eq!(place(10 * 40960 + 8192, 4096), (8192, 4096, 0, 1));
        assert_eq!(place(8192, 20 * 4096), (0, 40960, 0, 1), "longer than the device");
    }
}
