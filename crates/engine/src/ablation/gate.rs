//! Gates: locks that are taken where an older design takes them.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, TryLockError},
    task::Poll,
};

use crossbeam_utils::CachePadded;
use pinstripe_runtime::shard;

use super::{
    Ablation, IntentLocks, LockUnit, SAMPLE_EVERY, StripeLocks,
    meter::{LockMeter, Metered, WaitMeter, clock_ns, is_timed},
};
use crate::units::{to_u32, to_usize};

/// Counters of a region, where they are scattered: as many as an intent table has lanes.
pub(crate) const LANES: usize = 8;
/// MD's stripe heads are so high.
const PAGE_BYTES: u32 = 4096;

/// The gates of an array. See the module above.
pub(crate) struct Gates {
    pub(crate) ablation: Ablation,
    /// Close together, as in the older designs. None at all where there are no locks.
    stripes: Locks,
    intents: Locks,
    /// Written only when the counters' table is changed, which doesn't happen in a measurement.
    table: RwLock<()>,
    meters: Box<[CachePadded<Meters>]>,
    clock_ns: u64,
}

type Locks = Box<[Mutex<()>]>;

#[derive(Default)]
struct Meters {
    stripe: LockMeter,
    intent: LockMeter,
    stripe_waits: WaitMeter,
}

/// What locks are taken for: so many pages from the one of this number, one after the other. Or a stripe.
#[derive(Clone, Copy)]
pub(crate) struct Pages {
    first: u64,
    count: u32,
    /// The lock of the first page is that of all.
    is_one: bool,
}

impl Gates {
    /// For shards of numbers below `shards`, and so many regions. On a shard, for its clock.
    pub(crate) fn new(ablation: Ablation, shards: usize, regions: usize) -> Self {
        let locks = |count: usize| (0..count).map(|_| Mutex::new(())).collect();
        Self {
            stripes: locks(match ablation.stripe {
                StripeLocks::Direct => 0,
                StripeLocks::Hashed(count) => to_usize(count.next_power_of_two()),
                StripeLocks::Global => 1,
            }),
            intents: locks(match ablation.intent {
                IntentLocks::Lanes | IntentLocks::Atomic => 0,
                IntentLocks::RegionLock => regions.next_power_of_two(),
                IntentLocks::DBlocks => (regions * LANES).next_power_of_two(),
                IntentLocks::Lock => 1,
            }),
            table: RwLock::default(),
            meters: (0..shards).map(|_| CachePadded::default()).collect(),
            clock_ns: clock_ns(),
            ablation,
        }
    }

    /// What the change of `bytes` from `start` of a stripe takes locks for. `start` counts from the stripe's
    /// first data or from the chunk's.
    pub(crate) fn pages(&self, stripe: u64, chunk: u32, start: u32, bytes: u32) -> Pages {
        match self.ablation.unit {
            LockUnit::Stripe => Pages { first: stripe, count: 1, is_one: false },
            LockUnit::Page => {
                let rows = u64::from(chunk.div_ceil(PAGE_BYTES));
                let first = stripe * rows + u64::from(start % chunk / PAGE_BYTES);
                Pages { first, is_one: false, count: bytes.div_ceil(PAGE_BYTES).max(1) }
            }
        }
    }

    /// The stripe table's gate.
    pub(crate) fn stripe(&self, pages: Pages) -> Held<'_> {
        self.through(&self.stripes, &self.meters[shard::index()].stripe, pages)
    }

    /// Polls a claim, each time within the gate. What it waits for in between is measured.
    pub(crate) async fn claim<T>(&self, pages: Pages, mut claim: Pin<Box<impl Future<Output = T>>>) -> T {
        let mut since = None;
        poll_fn(|cx| {
            let held = self.stripe(pages);
            let polled = claim.as_mut().poll(cx);
            drop(held);
            let meter = &self.meters[shard::index()].stripe_waits;
            match (&polled, since) {
                (Poll::Pending, None) => since = Some(shard::now()),
                (Poll::Ready(_), Some(since)) => {
                    meter.waits.add(1);
                    meter.waited_ns.add(shard::now() - since);
                }
                _ => {}
            }
            polled
        })
        .await
    }

    /// The gate of the counter of a region's lane, for a write of `length` bytes of each member.
    pub(crate) fn intent(&self, region: usize, lane: usize, length: u32) -> IntentHeld<'_> {
        let is_scattered = self.ablation.intent == IntentLocks::DBlocks;
        let place = if is_scattered { region * LANES + lane } else { region };
        let passages = match self.ablation.unit {
            LockUnit::Stripe => 1,
            LockUnit::Page => length.div_ceil(PAGE_BYTES).max(1),
        };
        let table = is_scattered.then(|| self.table.read().unwrap_or_else(PoisonError::into_inner));
        // Each page has the same counter.
        let pages = Pages { first: place as u64, count: passages, is_one: true };
        (table, self.through(&self.intents, &self.meters[shard::index()].intent, pages))
    }

    /// Which of a region's counters a write of `stripe` on `shard` has.
    pub(crate) fn lane(&self, shard: usize, stripe: u64) -> u32 {
        let number = match self.ablation.intent {
            IntentLocks::Lanes => shard as u64,
            IntentLocks::DBlocks => stripe,
            IntentLocks::Atomic | IntentLocks::RegionLock | IntentLocks::Lock => 0,
        };
        to_u32(number % LANES as u64)
    }

    /// Takes and releases a lock for each page, and keeps the last one.
    fn through<'g>(&'g self, locks: &'g Locks, meter: &'g LockMeter, pages: Pages) -> Held<'g> {
        let lock = |page: u64| {
            let place = to_usize(page) & locks.len().wrapping_sub(1);
            Held::take(locks.get(place), meter, self)
        };
        let page = |nth: u32| pages.first + if pages.is_one { 0 } else { u64::from(nth) };
        // Where there are no locks there is nothing to repeat.
        if !locks.is_empty() {
            (0..pages.count - 1).for_each(|nth| drop(lock(page(nth))));
        }
        lock(page(pages.count - 1))
    }

    /// What it cost so far. The hand-off is the pool's to tell.
    pub(crate) fn metered(&self) -> Metered {
        let mut sum = Metered::default();
        for meters in &self.meters {
            meters.stripe.add_to(&mut sum.stripe);
            meters.intent.add_to(&mut sum.intent);
            sum.stripe_waits.waits += meters.stripe_waits.waits.value();
            sum.stripe_waits.waited_ns += meters.stripe_waits.waited_ns.value();
        }
        sum
    }
}

/// What is held while a counter is changed.
type IntentHeld<'g> = (Option<RwLockReadGuard<'g, ()>>, Held<'g>);

/// A gate that was entered. Dropping it leaves it.
#[must_use = "the gate is left at once"]
pub(crate) struct Held<'g> {
    #[expect(dead_code, reason = "it is kept to be dropped")]
    guard: Option<MutexGuard<'g, ()>>,
    meter: &'g LockMeter,
    gates: &'g Gates,
    /// When, if this one is timed.
    since: Option<u64>,
}

impl<'g> Held<'g> {
    fn take(lock: Option<&'g Mutex<()>>, meter: &'g LockMeter, gates: &'g Gates) -> Self {
        let guard = lock.map(|lock| metered_lock(lock, meter));
        let since = is_timed(meter.entered.value()).then(shard::now);
        meter.entered.add(1);
        if guard.is_some() && gates.ablation.hold_ns > 0 {
            hold(gates.ablation.hold_ns);
        }
        Self { guard, meter, gates, since }
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if let Some(since) = self.since {
            let inside = (shard::now() - since).saturating_sub(self.gates.clock_ns);
            self.meter.inside_ns.add(inside * SAMPLE_EVERY);
        }
    }
}

/// Takes a lock. If it has to be waited for, that is timed.
pub(super) fn metered_lock<'l, T>(lock: &'l Mutex<T>, meter: &LockMeter) -> MutexGuard<'l, T> {
    match lock.try_lock() {
        Ok(guard) => guard,
        Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
        Err(TryLockError::WouldBlock) => {
            let since = shard::now();
            let guard = lock.lock().unwrap_or_else(PoisonError::into_inner);
            meter.contended.add(1);
            meter.waited_ns.add(shard::now() - since);
            guard
        }
    }
}

/// Is busy for so long.
fn hold(nanoseconds: u64) {
    let since = shard::now();
    // A look at a real clock takes longer than a nanosecond. A virtual one stands still.
    for _ in 0..nanoseconds {
        if shard::now() - since >= nanoseconds {
            break;
        }
    }
}
