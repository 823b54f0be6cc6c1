//! Workers with one list of what is to be done, as MD's: a stripe write goes over the list to a worker, most
//! likely on another CPU, and its answer comes back.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crossbeam_utils::CachePadded;
use pinstripe_runtime::{Signal, shard};

use super::{
    Metered, SAMPLE_EVERY,
    meter::{HandOffMeter, LockMeter, clock_ns, is_timed},
};
use crate::ablation::gate::metered_lock;

/// A worker takes as much at a time as MD's (`MAX_STRIPE_BATCH`).
const BATCH: usize = 8;

/// See the module. `W` is work, `A` its answer.
pub(crate) struct Pool<W, A> {
    list: Mutex<List<W, A>>,
    /// By shard: something came.
    came: Box<[Signal]>,
    meters: Box<[CachePadded<Meters>]>,
    clock_ns: u64,
}

#[derive(Default)]
struct Meters {
    list: LockMeter,
    hand_off: HandOffMeter,
}

struct List<W, A> {
    tasks: VecDeque<Task<W, A>>,
    closed: bool,
}

/// Work that is to be done, or is under way.
pub(crate) struct Task<W, A> {
    pub(crate) work: W,
    ticket: Ticket<A>,
}

/// What goes back with the answer.
pub(crate) struct Ticket<A> {
    reply: Arc<Reply<A>>,
    handed_at: Option<u64>,
}

struct Reply<A> {
    answer: Mutex<Option<Answered<A>>>,
    came: Signal,
}

struct Answered<A> {
    answer: A,
    /// When the worker began, and when it had the answer, if that is timed.
    times: Option<(u64, u64)>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<W, A> Pool<W, A> {
    /// For so many shards, each with a worker. On a shard, for its clock.
    pub(crate) fn new(shards: usize) -> Self {
        Self {
            list: Mutex::new(List { tasks: VecDeque::new(), closed: false }),
            came: (0..shards).map(|_| Signal::default()).collect(),
            meters: (0..shards).map(|_| CachePadded::default()).collect(),
            clock_ns: clock_ns(),
        }
    }

    /// Does something with the list, under its lock.
    fn with_list<T>(&self, shard: usize, act: impl FnOnce(&mut List<W, A>) -> T) -> T {
        let meter = &self.meters[shard].list;
        let mut list = metered_lock(&self.list, meter);
        let since = is_timed(meter.entered.value()).then(shard::now);
        meter.entered.add(1);
        let value = act(&mut list);
        drop(list);
        if let Some(since) = since {
            meter.inside_ns.add((shard::now() - since).saturating_sub(self.clock_ns) * SAMPLE_EVERY);
        }
        value
    }

    /// Has a worker do it. `None` if there are no workers any more.
    pub(crate) async fn hand_off(&self, shard: usize, work: W) -> Option<A> {
        let meter = &self.meters[shard].hand_off;
        let count = meter.handed.value();
        meter.handed.add(1);
        let reply = Arc::new(Reply { answer: Mutex::new(None), came: Signal::default() });
        let handed_at = is_timed(count).then(shard::now);
        let task = Task { work, ticket: Ticket { reply: Arc::clone(&reply), handed_at } };
        let is_closed = self.with_list(shard, |list| {
            if !list.closed {
                list.tasks.push_back(task);
            }
            list.closed
        });
        if is_closed {
            return None;
        }
        self.came[self.next_worker(shard, count)].notify();
        let answered = reply.came.wait_for(|| locked(&reply.answer).take()).await;
        if let (Some(handed_at), Some((began, ended))) = (handed_at, answered.times) {
            let now = shard::now();
            meter.timed.add(1);
            // Clocks of two CPUs may differ a little.
            meter.there_ns.add(began.saturating_sub(handed_at));
            meter.back_ns.add(now.saturating_sub(ended));
            meter.whole_ns.add(now - handed_at);
        }
        Some(answered.answer)
    }

    /// All others in turn; itself only if it is alone.
    fn next_worker(&self, shard: usize, count: u64) -> usize {
        let others = (self.came.len() as u64 - 1).max(1);
        let step = 1 + usize::try_from(count % others).unwrap_or(0);
        (shard + step) % self.came.len()
    }

    /// What the worker on `shard` is to do next. Waits for it; empty when there is no more.
    pub(crate) async fn take(&self, shard: usize) -> Vec<Task<W, A>> {
        let look = || {
            self.with_list(shard, |list| {
                let count = list.tasks.len().min(BATCH);
                let tasks: Vec<_> = list.tasks.drain(..count).collect();
                (!tasks.is_empty() || list.closed).then_some(tasks)
            })
        };
        self.came[shard].wait_for(look).await
    }

    /// Workers end when the list is empty, and nothing new is taken.
    pub(crate) fn close(&self) {
        locked(&self.list).closed = true;
        self.came.iter().for_each(Signal::notify);
    }

    /// Adds what it cost so far.
    pub(crate) fn add_to(&self, sum: &mut Metered) {
        for meters in &self.meters {
            meters.list.add_to(&mut sum.list);
            let (from, to) = (&meters.hand_off, &mut sum.hand_off);
            to.handed += from.handed.value();
            to.timed += from.timed.value();
            to.there_ns += from.there_ns.value();
            to.back_ns += from.back_ns.value();
            to.whole_ns += from.whole_ns.value();
        }
    }
}

impl<W, A> Task<W, A> {
    /// Begins: the work, and what its answer goes to.
    pub(crate) fn begin(self) -> (W, Begun<A>) {
        let began = self.ticket.handed_at.map(|_| shard::now());
        (self.work, Begun { ticket: self.ticket, began })
    }
}

/// Work under way.
pub(crate) struct Begun<A> {
    ticket: Ticket<A>,
    began: Option<u64>,
}

impl<A> Begun<A> {
    /// Gives the answer back.
    pub(crate) fn end(self, answer: A) {
        let times = self.began.map(|began| (began, shard::now()));
        let reply = self.ticket.reply;
        *locked(&reply.answer) = Some(Answered { answer, times });
        reply.came.notify();
    }
}
