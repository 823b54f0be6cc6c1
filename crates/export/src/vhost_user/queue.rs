//! One ring on one shard: takes requests, carries each out in a task of its own, and gives them back.
//!
//! A request's data is copied out of the machine's memory once, before the block service sees it, and what
//! was read is copied in when all of it is there. A copy that fails because the memory is gone ends the
//! session, and what it has copied goes nowhere.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use pinstripe_block::{
    BlockService, Client, ServiceError,
    budget::{Budget, Share},
    first_of::{First, first_of},
    wake::Wake,
};
use pinstripe_runtime::{
    Signal, shard,
    uring::{EventFile, event::Event, guest_memory::GuestMemory},
};
use thiserror::Error;

use super::{
    config::feature,
    inflight::{self, Tracker},
    request::{Failed, HEADER_BYTES, Limits, NAME_BYTES, Operation, RANGE_BYTES, Range},
    ring::{Broken, Chain, Layout, Ring},
};
use crate::pieces::{PIECE_BYTES, in_pieces, piece_end, with_memory};

/// Requests that are begun at a time, before others of the shard have a turn.
const BEGUN_AT_ONCE: usize = 64;
/// Requests of a queue that hold no memory for data: those that wait for it, and those without data. No more
/// are begun beside them, for their tasks and their lists of segments are counted nowhere.
const BARE_MAX: usize = 128;
/// Chains that are kept for the next requests, and the segments that one of them may have.
const SPARE_MAX: usize = 64;
const SPARE_SEGMENTS_MAX: usize = 256;
/// How long a machine may take to be told of answers. It takes no time unless its event is full.
const CALL_NANOSECONDS: u64 = 1_000_000_000;
/// How long requests that are noted nowhere are carried out after the session's end. For what waits for a
/// disk in the usual way that is enough; a ring full of long writes would take hours.
const LAST_NANOSECONDS: u64 = 2_000_000_000;

/// What a queue is started with.
pub(super) struct Start<S> {
    pub number: u16,
    pub layout: Layout,
    /// The first request to be taken, unless the tracker knows better.
    pub base: u16,
    pub features: u64,
    pub memory: Arc<GuestMemory>,
    /// Where requests under way are noted.
    pub inflight: Option<Noted>,
    pub kick: EventFile,
    pub call: Option<EventFile>,
    pub control: Arc<Control>,
    pub alarm: Arc<Alarm>,
    pub service: Arc<dyn Fn() -> S + Send + Sync>,
    pub budget: Arc<Budget>,
    pub name: [u8; NAME_BYTES],
}

/// The memory in which all queues note their requests. Its first byte has the address 0.
#[derive(Clone)]
pub(super) struct Noted {
    pub memory: Arc<GuestMemory>,
    pub queues: u16,
    pub ring_size: u16,
}

/// Why a queue can't be served.
#[derive(Debug, Error)]
enum QueueError {
    #[error(transparent)]
    Broken(#[from] Broken),
    #[error("an event can't be used: {0}")]
    Event(#[from] std::io::Error),
    #[error("the memory for requests under way has no room for this queue")]
    NoRoom,
}

/// Why a request isn't given back.
#[derive(Debug, Error)]
enum NotGiven {
    #[error(transparent)]
    Broken(#[from] Broken),
    /// The session ended before it was done. It stays noted, and the next server does all of it.
    #[error("left to the next server")]
    Left,
}

/// What a session tells a running queue, and what that comes to. Any shard may use it.
#[derive(Default)]
pub(super) struct Control {
    orders: Mutex<Orders>,
    changed: Signal,
}

#[derive(Default)]
struct Orders {
    stop: bool,
    /// Since when the session is over.
    over_since: Option<u64>,
    call: Option<NewCall>,
    /// The queue has stopped: the first request that it hasn't taken.
    came_to: Option<u16>,
}

/// Tell of answers by this from now on, or not at all.
struct NewCall(Option<EventFile>);

impl Control {
    fn change<T>(&self, work: impl FnOnce(&mut Orders) -> T) -> T {
        let value = work(&mut lock(&self.orders));
        self.changed.notify();
        value
    }

    /// Has the queue stop after what is under way.
    pub(super) fn stop(&self) {
        self.change(|orders| orders.stop = true);
    }

    /// The same at the session's end, for which nothing long is done to its end.
    pub(super) fn end(&self) {
        let now = shard::now();
        self.change(|orders| (orders.stop, orders.over_since) = (true, Some(now)));
    }

    fn is_over(&self) -> bool {
        lock(&self.orders).over_since.is_some()
    }

    fn is_long_over(&self) -> bool {
        let since = lock(&self.orders).over_since;
        since.is_some_and(|since| shard::now().saturating_sub(since) >= LAST_NANOSECONDS)
    }

    /// Whether a request that waits, such as for a limit, is no longer begun.
    fn is_given_up(&self, is_noted: bool) -> bool {
        self.is_over() && (is_noted || self.is_long_over())
    }

    pub(super) fn call(&self, event: Option<EventFile>) {
        self.change(|orders| orders.call = Some(NewCall(event)));
    }

    /// Waits until it has stopped.
    pub(super) async fn stopped(&self) -> u16 {
        self.changed.wait_for(|| lock(&self.orders).came_to).await
    }

    async fn news(&self) {
        self.changed
            .wait_until(|| {
                let orders = lock(&self.orders);
                orders.stop || orders.call.is_some()
            })
            .await;
    }
}

/// The first reason for which a session must end. Any shard may use it.
#[derive(Default)]
pub(super) struct Alarm {
    why: Mutex<Option<String>>,
    raised: Signal,
}

impl Alarm {
    fn raise(&self, why: String) {
        lock(&self.why).get_or_insert(why);
        self.raised.notify();
    }

    pub(super) async fn raised(&self) -> String {
        self.raised.wait_for(|| lock(&self.why).clone()).await
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves a queue on this shard until it is told to stop, and then finishes what is under way.
pub(super) async fn run<S: BlockService>(start: Start<S>) {
    let (number, base) = (start.number, start.base);
    let (control, alarm) = (Arc::clone(&start.control), Arc::clone(&start.alarm));
    let raise = |error: QueueError| alarm.raise(format!("queue {number}: {error}"));
    let came_to = match Queue::open(start) {
        Ok((queue, kick, left)) => {
            let queue = Rc::new(queue);
            queue.work(&kick, left).await.unwrap_or_else(raise);
            queue.progress.wait_for(|| (queue.count.get() == 0).then_some(())).await;
            queue.ring.borrow().next_available()
        }
        Err(error) => {
            raise(error);
            base
        }
    };
    control.change(|orders| orders.came_to = Some(came_to));
}

struct Queue<S> {
    number: u16,
    service: S,
    limits: Limits,
    /// A driver that doesn't flush wants each write to be durable.
    fua: bool,
    name: [u8; NAME_BYTES],
    memory: Arc<GuestMemory>,
    ring: RefCell<Ring>,
    noted: Option<(Arc<GuestMemory>, RefCell<Tracker>)>,
    share: Share,
    control: Arc<Control>,
    alarm: Arc<Alarm>,
    call: RefCell<Option<Rc<Event>>>,
    is_calling: Cell<bool>,
    call_again: Cell<bool>,
    /// Which requests are under way, by their heads.
    under_way: RefCell<Vec<bool>>,
    count: Cell<usize>,
    /// Of these, those that hold memory for data.
    holding: Cell<usize>,
    /// The queue's own task waits here for requests to end, or to get memory.
    progress: Wake,
    spare: RefCell<Vec<Chain>>,
}

impl<S: BlockService> Queue<S> {
    /// With its kick, and the requests that a dead server has left.
    fn open(start: Start<S>) -> Result<(Self, Event, Vec<u16>), QueueError> {
        let Start { layout, features, memory, .. } = start;
        let has = |feature: u64| features & feature != 0;
        let (indirect, events) = (has(feature::INDIRECT), has(feature::EVENT_INDEX));
        let mut ring = Ring::new(layout, &*memory, start.base, indirect, events)?;
        let (mut noted, mut left) = (None, Vec::new());
        if let Some(Noted { memory: shared, queues, ring_size }) = start.inflight {
            if start.number >= queues || layout.size > ring_size {
                return Err(QueueError::NoRoom);
            }
            let (tracker, heads) = Tracker::open(&*shared, start.number, ring_size, ring.used())?;
            // What was taken is either given back or still noted.
            let taken = ring.used().wrapping_add(u16::try_from(heads.len()).unwrap_or(u16::MAX));
            ring = Ring::new(layout, &*memory, taken, indirect, events)?;
            (noted, left) = (Some((shared, RefCell::new(tracker))), heads);
        }
        let call = start.call.map(Event::attach);
        let client = {
            let (control, is_noted) = (Arc::clone(&start.control), noted.is_some());
            Client::new(move || control.is_given_up(is_noted))
        };
        let service = (start.service)().for_client(client);
        let queue = Self {
            number: start.number,
            limits: Limits::new(&service),
            service,
            fua: !has(feature::FLUSH),
            name: start.name,
            memory,
            ring: RefCell::new(ring),
            noted,
            share: Share::new(start.budget),
            control: start.control,
            alarm: start.alarm,
            call: RefCell::new(call.map(Rc::new)),
            is_calling: Cell::new(false),
            call_again: Cell::new(false),
            under_way: RefCell::new(vec![false; layout.size.into()]),
            count: Cell::new(0),
            holding: Cell::new(0),
            progress: Wake::default(),
            spare: RefCell::default(),
        };
        Ok((queue, Event::attach(start.kick), left))
    }

    async fn work(self: &Rc<Self>, kick: &Event, left: Vec<u16>) -> Result<(), QueueError> {
        for head in left {
            let mut chain = Chain::default();
            self.ring.borrow().walk(&*self.memory, head, &mut chain)?;
            self.begin(chain)?;
        }
        // Answers that a server before this one gave may not have been told.
        self.call().await;
        loop {
            let (stop, call) = {
                let mut orders = lock(&self.control.orders);
                (orders.stop, orders.call.take())
            };
            if stop {
                return Ok(());
            }
            if let Some(NewCall(call)) = call {
                self.call.replace(call.map(|event| Rc::new(Event::attach(event))));
                // What was told by the one before may have been missed.
                self.call().await;
            }
            self.take_some()?;
            // A machine that asks without end has no more than its turn.
            shard::yield_now().await;
            if self.is_full() {
                let room = self.progress.wait_for(|| (!self.is_full()).then_some(()));
                first_of(self.control.news(), room).await;
                continue;
            }
            if self.ring.borrow_mut().ask_for_kick(&*self.memory)? {
                continue;
            }
            if let First::Other(kicked) = first_of(self.control.news(), kick.wait()).await {
                kicked?;
            }
        }
    }

    /// Begins what is available, a few requests at a time.
    fn take_some(self: &Rc<Self>) -> Result<(), Broken> {
        for _ in 0..BEGUN_AT_ONCE {
            if self.is_full() {
                return Ok(());
            }
            let mut chain = self.spare.borrow_mut().pop().unwrap_or_default();
            if !self.ring.borrow_mut().next(&*self.memory, &mut chain)? {
                self.keep(chain);
                return Ok(());
            }
            if self.under_way.borrow()[usize::from(chain.head)] {
                return Err(Broken::Head(chain.head));
            }
            if let Some((memory, tracker)) = &self.noted {
                tracker.borrow_mut().take(&**memory, chain.head)?;
            }
            self.begin(chain)?;
        }
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.count.get() - self.holding.get() >= BARE_MAX
    }

    /// Keeps a chain's memory for a next request, but not more than usual ones need.
    fn keep(&self, chain: Chain) {
        let mut spare = self.spare.borrow_mut();
        if spare.len() < SPARE_MAX && chain.segments_max() <= SPARE_SEGMENTS_MAX {
            spare.push(chain);
        }
    }

    fn begin(self: &Rc<Self>, chain: Chain) -> Result<(), Broken> {
        let mut under_way = self.under_way.borrow_mut();
        let entry = under_way.get_mut(usize::from(chain.head)).ok_or(Broken::Descriptor(chain.head))?;
        *entry = true;
        self.count.set(self.count.get() + 1);
        let queue = Rc::clone(self);
        shard::spawn(async move { queue.serve(chain).await });
        Ok(())
    }

    /// The life of a request.
    async fn serve(self: Rc<Self>, chain: Chain) {
        let given = match self.answer(&chain).await {
            Ok(written) => self.give_back(chain.head, written),
            Err(NotGiven::Left) => Ok(false),
            Err(NotGiven::Broken(broken)) => Err(broken),
        };
        self.under_way.borrow_mut()[usize::from(chain.head)] = false;
        self.keep(chain);
        match given {
            Ok(true) => self.call().await,
            Ok(false) => {}
            Err(broken) => self.alarm.raise(format!("queue {}: {broken}", self.number)),
        }
        self.count.set(self.count.get() - 1);
        self.progress.wake();
    }

    /// Carries a request out and puts its status behind what it gives. How many bytes were written.
    async fn answer(&self, chain: &Chain) -> Result<u32, NotGiven> {
        let room = chain.writable_bytes().checked_sub(1).ok_or(Broken::Request)?;
        let given = chain.readable_bytes().checked_sub(HEADER_BYTES as u64).ok_or(Broken::Request)?;
        let mut header = [0; HEADER_BYTES];
        chain.read(&*self.memory, 0, &mut header)?;
        let outcome = match self.limits.request(&header, given, room) {
            Ok(operation) => self.carry_out(chain, operation, given, room).await?,
            Err(failed) => Err(failed),
        };
        let status = outcome.map_or_else(Failed::status, |_| 0);
        chain.write(&*self.memory, room, &[status])?;
        Ok(u32::try_from(outcome.unwrap_or(0) + 1).unwrap_or(u32::MAX))
    }

    /// Bytes that the machine was given.
    async fn carry_out(
        &self,
        chain: &Chain,
        operation: Operation,
        given: u64,
        room: u64,
    ) -> Result<Result<u64, Failed>, NotGiven> {
        Ok(match operation {
            Operation::Read(range) => self.read(chain, range).await?.map(|()| range.length),
            Operation::Write(range) => self.write(chain, range).await?.map(|()| 0),
            Operation::Flush => self.service.flush().await.map(|()| 0).map_err(Failed::from),
            Operation::Name => {
                let length = NAME_BYTES.min(usize::try_from(room).unwrap_or(usize::MAX));
                chain.write(&*self.memory, 0, &self.name[..length])?;
                Ok(length as u64)
            }
            Operation::Discard => self.ranges(chain, given, false).await?.map(|()| 0),
            Operation::WriteZeroes => self.ranges(chain, given, true).await?.map(|()| 0),
        })
    }

    /// Where a piece of data that begins at `at` ends.
    fn data_end(&self, at: u64, stop: u64) -> u64 {
        let stripe = self.service.stripe_bytes();
        let granularity = if stripe <= PIECE_BYTES { stripe } else { self.service.block_size().into() };
        piece_end(at, stop, granularity)
    }

    /// Whether a request that isn't done yet is for the next server, which finds it noted.
    fn is_left(&self) -> bool {
        self.noted.is_some() && self.control.is_over()
    }

    /// What becomes of a read or write of which no further piece shall be done: it is left, or fails.
    fn cut_off(&self) -> Option<Result<Result<(), ServiceError>, NotGiven>> {
        if self.is_left() {
            return Some(Err(NotGiven::Left));
        }
        self.control.is_long_over().then_some(Ok(Err(ServiceError::Stopping)))
    }

    /// What becomes of a request that has failed: what was given up at the session's end is left.
    fn failed(&self, error: ServiceError) -> Result<Result<(), Failed>, NotGiven> {
        if self.is_left() { Err(NotGiven::Left) } else { Ok(Err(error.into())) }
    }

    /// Does `work` on so many bytes when there is memory for them.
    async fn with_memory<T>(&self, bytes: u64, work: impl AsyncFnOnce() -> T) -> T {
        let counted = async move || {
            self.holding.set(self.holding.get() + 1);
            self.progress.wake();
            let value = work().await;
            self.holding.set(self.holding.get() - 1);
            value
        };
        with_memory(&self.share, size(bytes), counted).await
    }

    async fn read(&self, chain: &Chain, range: Range) -> Result<Result<(), Failed>, NotGiven> {
        let (mut at, stop) = (range.offset, range.offset + range.length);
        while at < stop {
            let end = self.data_end(at, stop);
            let piece = self.with_memory(end - at, async || {
                if let Some(cut_off) = self.cut_off() {
                    return cut_off;
                }
                let (read, buffer) = self.service.read(at, shard::buffer(size(end - at))).await;
                Ok(match read {
                    Ok(()) => Ok(chain.write(&*self.memory, at - range.offset, &buffer)?),
                    Err(error) => Err(error),
                })
            });
            if let Err(error) = piece.await? {
                return self.failed(error);
            }
            at = end;
        }
        Ok(Ok(()))
    }

    async fn write(&self, chain: &Chain, range: Range) -> Result<Result<(), Failed>, NotGiven> {
        let (mut at, stop) = (range.offset, range.offset + range.length);
        while at < stop {
            let end = self.data_end(at, stop);
            let piece = self.with_memory(end - at, async || {
                if let Some(cut_off) = self.cut_off() {
                    return cut_off;
                }
                let mut buffer = shard::buffer(size(end - at));
                chain.read(&*self.memory, HEADER_BYTES as u64 + at - range.offset, &mut buffer)?;
                Ok(self.service.write(at, buffer.freeze(), self.fua).await)
            });
            if let Err(error) = piece.await? {
                return self.failed(error);
            }
            at = end;
        }
        Ok(Ok(()))
    }

    /// A discard, or a zeroing if `zeroes`. Its ranges are checked before any is done. At the session's end
    /// it ends, too: it fails, or is left.
    async fn ranges(&self, chain: &Chain, given: u64, zeroes: bool) -> Result<Result<(), Failed>, NotGiven> {
        let mut data = vec![0; size(given)];
        debug_assert!(data.len().is_multiple_of(RANGE_BYTES));
        chain.read(&*self.memory, HEADER_BYTES as u64, &mut data)?;
        let ranges = match self.limits.ranges(&data, zeroes) {
            Ok(ranges) => ranges,
            Err(failed) => return Ok(Err(failed)),
        };
        let granularity = self.service.discard_granularity();
        for Range { offset, length, may_punch } in ranges {
            let is_over = || self.control.is_over();
            let done = in_pieces(offset, length, granularity, is_over, async |at, length| {
                if zeroes {
                    self.service.write_zeroes(at, length, self.fua, may_punch).await
                } else {
                    self.service.discard(at, length, self.fua).await
                }
            });
            match done.await {
                Ok(()) => {}
                Err(error) => return self.failed(error),
            }
        }
        Ok(Ok(()))
    }

    /// Whether the machine wants to be told.
    fn give_back(&self, head: u16, written: u32) -> Result<bool, Broken> {
        let mut ring = self.ring.borrow_mut();
        let tracker = self.noted.as_ref().map(|(memory, tracker)| (&**memory, tracker.borrow()));
        let noted = tracker.as_ref().map(|(memory, tracker)| (*memory, &**tracker));
        inflight::give_back(&mut ring, &*self.memory, noted, head, written)?;
        ring.wants_call(&*self.memory)
    }

    /// Tells the machine of answers. One such message at a time is enough.
    async fn call(&self) {
        self.call_again.set(true);
        if self.is_calling.replace(true) {
            return;
        }
        while self.call_again.take() {
            let event = self.call.borrow().clone();
            if let Some(event) = event {
                shard::timeout(CALL_NANOSECONDS, event.signal()).await;
            }
        }
        self.is_calling.set(false);
    }
}

/// Of what is bounded by a piece's length.
fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or_else(|_| unreachable!("pieces are short"))
}
