//! What the shards of one array share. Small, and each part lock-free or locked only for moments; all else is
//! shard-local.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crossbeam_utils::CachePadded;
use pinstripe_runtime::{
    DeviceErrorKind, ShardHandle, Signal,
    atomics::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use crate::{
    ablation::{Gates, Metered, Pool, Workers},
    consistency::journal::Journal,
    error::{IoError, MemberError},
    geometry::{Geometry, StripeId},
    latency::LatencyCounters,
    members::{Member, MemberId, bad_blocks::Reports},
    membership::{
        admission::Admission,
        snapshot::{Seat, Snapshot},
    },
    mutants::{Mutant, active},
    options::ArrayOptions,
    statistics::Counters,
    stripe::{image::Piece, parity_cache::ParityCache, table::StripeTable},
};

/// What a batch answers.
pub type Answer = Result<(), IoError>;

/// See the module.
pub struct Shared {
    /// The shape of the array.
    pub geometry: Geometry,
    /// How it behaves.
    pub options: ArrayOptions,
    /// Which task writes which stripe.
    pub stripes: StripeTable<Piece, Answer>,
    /// Whether writes are let in at all.
    pub admission: Admission,
    /// Parity written lately.
    pub cache: ParityCache,
    /// For the controller: a member failed, the gate is wanted, a command came.
    pub controller_wake: Signal,
    /// Which stripes were written lately, to tell sequential streams.
    pub recent: CachePadded<RecentStripes>,
    /// All shards that serve the array; the first is its home.
    pub shards: Vec<ShardHandle>,
    /// By shard.
    pub counters: Box<[CachePadded<Counters>]>,
    /// How long clients waited, by shard.
    pub latencies: Box<[CachePadded<LatencyCounters>]>,
    current: Mutex<Arc<Snapshot>>,
    /// The generation up to which the superblocks on disk know the membership.
    durable: AtomicU64,
    durable_changed: Signal,
    failures: Mutex<Vec<Failure>>,
    /// Members that are out or about to be, for a failure of their own. Numbers of members are never used
    /// again.
    leaving: Mutex<Vec<MemberId>>,
    /// For the controller: sectors that turned bad or good.
    pub(crate) bad_reports: Reports,
    /// Too many members failed (C3), or the superblocks can't be written.
    failed: AtomicBool,
    /// The controller has ended: nothing is recorded any more.
    ended: AtomicBool,
    /// Another host has taken the array over (C28).
    fenced: AtomicBool,
    /// How long a member may take for a request; 0 for ever.
    member_limit_ns: AtomicU64,
    /// What the members' servers do.
    pub(crate) offload: crate::offload::Common,
    /// Locks of older designs, for measurement only.
    pub(crate) gates: Option<Arc<Gates>>,
    /// Workers of older designs, for measurement only.
    pub(crate) pool: Option<Pool<(StripeId, Piece), Answer>>,
}

/// How far the stripes written lately were written, on whatever shard: what tells a sequential stream. By the
/// low bits of the stripe's number. A wrong answer costs a short wait or a pre-read, nothing else.
pub struct RecentStripes {
    /// stripe << 24 | blocks of 512 bytes
    written: [AtomicU64; 64],
    /// Goes up when gathering filled a stripe, down when it waited in vain.
    gather_credit: AtomicU32,
    tries: AtomicU32,
}

/// The most luck that can be had.
const GATHER_CREDIT_MAX: u32 = 8;
/// Without luck, one stripe in so many is gathered, to see whether luck is back.
const TRY_EVERY: u32 = 16;
const BLOCKS_MAX: u64 = (1 << 24) - 1;

impl Default for RecentStripes {
    fn default() -> Self {
        Self {
            written: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            gather_credit: AtomicU32::new(GATHER_CREDIT_MAX),
            tries: AtomicU32::new(0),
        }
    }
}

impl RecentStripes {
    fn at(&self, stripe: u64) -> &AtomicU64 {
        &self.written[usize::from(stripe.to_le_bytes()[0]) % self.written.len()]
    }

    /// Blocks of `stripe` that were written lately.
    fn blocks(&self, stripe: u64) -> u64 {
        let word = self.at(stripe).load(Ordering::Relaxed);
        if word >> 24 == stripe { word & BLOCKS_MAX } else { 0 }
    }

    /// Notes a write of `bytes` to `stripe`.
    pub fn note(&self, stripe: u64, bytes: u64) {
        let blocks = (self.blocks(stripe) + bytes / 512).min(BLOCKS_MAX);
        self.at(stripe).store(stripe << 24 | blocks, Ordering::Relaxed);
    }

    /// Whether `stripe`, of `stripe_bytes`, seems to be next in a sequential stream: most of its predecessor
    /// was written lately, and gathering has been of use.
    pub fn is_next(&self, stripe: u64, stripe_bytes: u64) -> bool {
        if stripe == 0 || self.blocks(stripe - 1) * 512 * 2 < stripe_bytes {
            return false;
        }
        self.gather_credit.load(Ordering::Relaxed) > 0
            || self.tries.fetch_add(1, Ordering::Relaxed).is_multiple_of(TRY_EVERY)
    }

    /// Notes whether gathering filled a stripe.
    pub fn learn(&self, filled: bool) {
        let gather_credit = self.gather_credit.load(Ordering::Relaxed);
        let gather_credit =
            if filled { GATHER_CREDIT_MAX.min(gather_credit + 2) } else { gather_credit.saturating_sub(1) };
        self.gather_credit.store(gather_credit, Ordering::Relaxed);
    }
}

/// A member that failed and shall be dropped.
pub struct Failure {
    /// Which.
    pub member: MemberId,
    /// Why.
    pub error: MemberError,
}

/// Whether a member may have failed: something asked of it takes long, or never came.
fn hangs(member: &Member) -> bool {
    let hangs = member.health.is_slow() || member.health.late_requests() > 0;
    hangs && !active(Mutant::SilentMemberCounted)
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// An array at the generation of `snapshot`, with the gate closed.
    pub fn new(
        geometry: Geometry,
        options: ArrayOptions,
        snapshot: Snapshot,
        shards: Vec<ShardHandle>,
    ) -> Self {
        let count = shards.len();
        let (slots, waiters) = (options.stripe_slots, options.waiters_per_shard);
        let ablation = options.ablation;
        let on = shards.iter().map(ShardHandle::index).max().map_or(1, |last| last + 1);
        let gates = ablation.map(|ablation| Arc::new(Gates::new(ablation, on, snapshot.intent.len())));
        if let Some(gates) = &gates {
            snapshot.intent.put_behind(gates);
        }
        let pooled = ablation.is_some_and(|ablation| ablation.workers == Workers::Pool);
        Self {
            geometry,
            stripes: StripeTable::new(slots, count, waiters.max(1)),
            admission: Admission::new(count, snapshot.generation),
            cache: ParityCache::new(options.parity_cache_bytes),
            member_limit_ns: AtomicU64::new(options.member_timeout_ns),
            options,
            controller_wake: Signal::default(),
            recent: CachePadded::default(),
            shards,
            counters: (0..count).map(|_| CachePadded::default()).collect(),
            latencies: (0..count).map(|_| CachePadded::default()).collect(),
            durable: AtomicU64::new(snapshot.generation),
            durable_changed: Signal::default(),
            current: Mutex::new(Arc::new(snapshot)),
            failures: Mutex::default(),
            leaving: Mutex::default(),
            bad_reports: Reports::default(),
            failed: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            fenced: AtomicBool::new(false),
            offload: crate::offload::Common::default(),
            gates,
            pool: pooled.then(|| Pool::new(count)),
        }
    }

    /// What the ways of older designs cost so far, or ours, if that is metered.
    pub fn metered(&self) -> Option<Metered> {
        let mut sum = self.gates.as_ref()?.metered();
        self.pool.iter().for_each(|pool| pool.add_to(&mut sum));
        Some(sum)
    }

    /// The membership now.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        Arc::clone(&locked(&self.current))
    }

    /// Makes `snapshot`, of the next generation, the current one. Its generation isn't durable yet.
    pub fn publish(&self, snapshot: Snapshot) {
        let generation = snapshot.generation;
        if let Some(gates) = &self.gates {
            snapshot.intent.put_behind(gates);
        }
        let old = std::mem::replace(&mut *locked(&self.current), Arc::new(snapshot));
        assert_eq!(generation, old.generation + 1, "C1: every membership has a generation of its own");
        self.admission.publish(generation);
        // Tasks that wait under the old one give way.
        old.log.wake();
        self.offload.changed.notify();
        self.durable_changed.notify();
    }

    /// Whether the membership is another than that of `generation`, or the array has failed: tasks that wait
    /// under it give way.
    pub fn has_moved(&self, generation: u64) -> bool {
        self.admission.generation() != generation || self.has_failed()
    }

    /// Waits until it is so.
    pub(crate) async fn moved(&self, generation: u64) {
        self.given_way(|| self.has_moved(generation)).await;
    }

    /// Waits until a task sees that it is to give way, which comes with another membership or the array's
    /// failure.
    pub(crate) async fn given_way(&self, is_over: impl Fn() -> bool) {
        self.durable_changed.wait_until(is_over).await;
    }

    /// The superblocks on disk know the membership of `generation`.
    pub fn set_durable(&self, generation: u64) {
        assert!(
            generation <= self.admission.generation(),
            "C2: no membership is durable before it is published"
        );
        self.durable.store(generation, Ordering::SeqCst);
        self.durable_changed.notify();
    }

    /// Waits until the superblocks on disk know the membership of `generation` (C2).
    pub async fn durable(&self, generation: u64) -> Result<(), IoError> {
        let is_durable = || self.durable.load(Ordering::SeqCst) >= generation;
        if is_durable() && !self.has_failed() { Ok(()) } else { self.until(is_durable).await }
    }

    /// Waits until the controller has brought that about. It may end before, or the array fail.
    pub(crate) async fn until(&self, is_so: impl Fn() -> bool) -> Result<(), IoError> {
        let is_over = || self.has_failed() || self.has_ended();
        self.durable_changed.wait_until(|| is_so() || is_over()).await;
        self.check()?;
        if is_so() { Ok(()) } else { Err(IoError::Stopping) }
    }

    /// The controller ends: what waits for it is told so.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::SeqCst);
        self.pool.iter().for_each(Pool::close);
        self.durable_changed.notify();
        self.snapshot().log.wake();
    }

    /// Whether the controller has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::SeqCst)
    }

    /// The controller has dealt with the bad blocks that were reported up to this ticket.
    pub(crate) fn settle_bad(&self, ticket: u64) {
        self.bad_reports.settle(ticket);
        if !active(Mutant::BadSettledSilently) {
            self.durable_changed.notify();
        }
    }

    /// Whether the superblocks on disk know the current membership.
    pub fn is_recorded(&self) -> bool {
        self.durable.load(Ordering::SeqCst) >= self.admission.generation()
    }

    /// Waits until the superblocks on disk know the membership of `generation`. False if it is another
    /// before, or the array has failed.
    pub async fn recorded(&self, generation: u64) -> bool {
        let is_durable = || self.durable.load(Ordering::SeqCst) >= generation;
        self.durable_changed.wait_until(|| is_durable() || self.has_moved(generation)).await;
        is_durable() && !self.has_moved(generation)
    }

    /// Has `member` dropped, soon.
    pub fn report(&self, member: MemberId, error: MemberError) {
        // A member that only had too many errors may be kept.
        if error.error.kind != DeviceErrorKind::TooManyErrors {
            self.note_leaving(member);
        }
        locked(&self.failures).push(Failure { member, error });
        self.controller_wake.notify();
    }

    /// A member has failed in a way that costs it its place. It is reported when all requests that went out
    /// with the failed one are over, and others may take long.
    pub(crate) fn note_leaving(&self, member: MemberId) {
        let mut leaving = locked(&self.leaving);
        if !leaving.contains(&member) {
            leaving.push(member);
        }
    }

    /// Whether a member is out, or about to be.
    pub(crate) fn is_leaving(&self, member: MemberId) -> bool {
        locked(&self.leaving).contains(&member)
    }

    /// Whether the array can do without `member` too, besides all that have been reported. If so it counts as
    /// reported from now on, so that two shards that ask for two members at a time don't both hear yes.
    pub(crate) fn can_spare(&self, member: MemberId) -> bool {
        let mut leaving = locked(&self.leaving);
        let goes = |other: &Member| other.id == member || leaving.contains(&other.id);
        let snapshot = self.snapshot();
        let is_it = |seat: &Seat| seat.member().is_some_and(|own| own.id == member);
        // One that is yet to be whole takes nothing with it.
        let is_needed = snapshot.seats.iter().any(|seat| seat.is_whole() && is_it(seat));
        let can = !is_needed || snapshot.can_do_without(self.redundancy_left(&snapshot), goes);
        if can {
            leaving.push(member);
        }
        can
    }

    /// As [`Shared::can_lose`], and if so it counts as reported from now on.
    pub(crate) fn can_give_up(&self, member: MemberId, snapshot: &Snapshot) -> bool {
        let mut leaving = locked(&self.leaving);
        let can = self.can_lose_beside(member, snapshot, &leaving);
        if can && !leaving.contains(&member) {
            leaving.push(member);
        }
        can
    }

    /// Whether the array can do without `member`, and without all that ail.
    pub(crate) fn can_lose(&self, member: MemberId, snapshot: &Snapshot) -> bool {
        self.can_lose_beside(member, snapshot, &locked(&self.leaving))
    }

    fn can_lose_beside(&self, member: MemberId, snapshot: &Snapshot, leaving: &[MemberId]) -> bool {
        let goes = |other: &Member| other.id == member || hangs(other) || leaving.contains(&other.id);
        snapshot.can_do_without(self.redundancy_left(snapshot), goes)
    }

    /// How many members may be taken out that work. Where a crash may have torn rows nothing is reconstructed
    /// (C10), so a member that went before the resync would take all its bytes of these regions with it.
    pub(crate) fn redundancy_left(&self, snapshot: &Snapshot) -> usize {
        if snapshot.intent.has_torn() { 0 } else { self.geometry.redundancy() }
    }

    /// Whether a member is lost or may be: what hangs may have failed. Nothing but a failure of its own costs
    /// another one its place if the array could then not do without this one (C31).
    pub(crate) fn is_ailing(&self, member: &Member) -> bool {
        hangs(member) || self.is_leaving(member.id)
    }

    /// A member that only had too many errors, each of them mended, stays if the array can't do without it,
    /// or could not if those that hang are lost.
    pub(crate) fn spare_the_needed(&self, snapshot: &Snapshot, leaving: &mut Vec<Failure>) {
        let redundancy = self.redundancy_left(snapshot);
        let is_tired = |failure: &Failure| failure.error.error.kind == DeviceErrorKind::TooManyErrors;
        loop {
            let goes = |member: &Member| {
                self.is_ailing(member) || leaving.iter().any(|failure| failure.member == member.id)
            };
            if snapshot.can_do_without(redundancy, goes) {
                return;
            }
            let Some(place) = leaving.iter().position(is_tired) else { return };
            leaving.remove(place);
        }
    }

    /// Waits until `member` is out of the membership, durably; an error if the array can't do without it.
    pub async fn dropped(&self, member: MemberId) -> Result<(), IoError> {
        let is_out = || {
            let snapshot = self.snapshot();
            snapshot.slot_of(member).is_none() && self.durable.load(Ordering::SeqCst) >= snapshot.generation
        };
        self.until(is_out).await
    }

    /// The members that were reported since the last call.
    pub fn take_failures(&self) -> Vec<Failure> {
        std::mem::take(&mut *locked(&self.failures))
    }

    /// Whether members were reported.
    pub fn has_failures(&self) -> bool {
        !locked(&self.failures).is_empty()
    }

    /// Waits until nothing is cached in the journal any more. False if something can't be written out, or
    /// isn't any more: the array has stopped.
    pub(crate) async fn drained(&self, journal: &Journal) -> bool {
        journal.drained(|| self.has_failed() || self.has_ended()).await
    }

    /// Nothing is acknowledged any more (C3).
    pub fn fail(&self) {
        self.failed.store(true, Ordering::SeqCst);
        self.admission.halt();
        self.durable_changed.notify();
        self.snapshot().log.wake();
        self.offload.changed.notify();
    }

    /// Another host has taken the array over: nothing more is acknowledged, nor read, for this host's view of
    /// the members is old (C28).
    pub fn fence(&self) {
        self.fenced.store(true, Ordering::SeqCst);
        self.fail();
    }

    /// Whether [`Shared::fence`] was called.
    pub fn is_fenced(&self) -> bool {
        self.fenced.load(Ordering::SeqCst)
    }

    /// What requests are answered once the array has failed.
    pub fn failure(&self) -> IoError {
        if self.is_fenced() { IoError::TakenOver } else { IoError::Failed }
    }

    /// Why no request is let in.
    pub(crate) fn refusal(&self) -> IoError {
        if self.has_failed() { self.failure() } else { IoError::Stopping }
    }

    /// That, if the array has failed.
    pub(crate) fn check(&self) -> Result<(), IoError> {
        if self.has_failed() { Err(self.failure()) } else { Ok(()) }
    }

    /// How long a member may take for a request, in nanoseconds; 0 for ever.
    pub fn member_limit_ns(&self) -> u64 {
        self.member_limit_ns.load(Ordering::Relaxed)
    }

    /// Changes that limit. Requests that wait already don't notice: see `bound_waits` in `members`.
    pub(crate) fn set_member_limit_ns(&self, limit: u64) {
        self.member_limit_ns.store(limit, Ordering::Relaxed);
    }

    /// Whether [`Shared::fail`] was called.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::SeqCst)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRIPE: u64 = 320 << 10;

    #[test]
    fn a_stripe_is_next_when_most_of_its_predecessor_was_written() {
        let recent = RecentStripes::default();
        recent.note(7, 64 << 10);
        assert!(!recent.is_next(8, STRIPE), "a fifth is not a stream");
        (0..2).for_each(|_| recent.note(7, 64 << 10));
        assert!(recent.is_next(8, STRIPE));
        assert!(!recent.is_next(7, STRIPE) && !recent.is_next(9, STRIPE) && !recent.is_next(0, STRIPE));
        recent.note(7 + 64, 4096);
        assert!(!recent.is_next(8, STRIPE), "another stripe has taken its place");
    }

    #[test]
    fn gathering_in_vain_stops_and_is_tried_again_now_and_then() {
        let recent = RecentStripes::default();
        recent.note(7, STRIPE);
        (0..GATHER_CREDIT_MAX).for_each(|_| recent.learn(false));
        let tried = (0..160).filter(|_| recent.is_next(8, STRIPE)).count();
        assert_eq!(tried, 10);
        recent.learn(true);
        assert!((0..160).all(|_| recent.is_next(8, STRIPE)));
    }
}
