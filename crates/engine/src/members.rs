//! Members under supervision: every request to a member goes through here.
//!
//! *Slow is not dead.* A request that takes longer than a first limit makes its member `slow`, which is told
//! and nothing else. At a second limit the member is given up: the waits for all its requests end with an
//! error, on every shard, and the controller takes it out of the membership like any member that failed. So
//! whatever a device does, an operation of the array ends. If the array would fail without it, it is asked
//! again first, for as long once more (C29).
//!
//! A time-out ends the wait, never the request (C16; decision 14 has the argument):
//!
//! - The memory of the request stays with the shard's slot until the completion comes. Such a request is
//!   *late*.
//! - While any request is late, the member refuses new ones. So nothing that is written to it afterwards can
//!   be overtaken by what was written before. A member that is out of the membership refuses for good, and
//!   its device is not taken back before its last late request is over.
//! - A stripe is released when the members that count have answered: a late write changes only a member that
//!   nothing reads.
//!
//! A read or write that the device had no resources for is tried again a few times; a flush never is (C5).

pub(crate) mod bounded;
pub(crate) mod loss;
mod offload;

use std::{
    rc::{Rc, Weak},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use crossbeam_utils::CachePadded;
use pinstripe_runtime::{
    Buffer, Completion, Device, DeviceError, DeviceErrorKind, DeviceInfo, Observer, Offload, OverdueAction,
    RequestInfo, Signal, Slice, Submission, Watch,
    atomics::{AtomicBool, AtomicU64, Ordering},
    completion::Payload,
    shard,
};

use crate::{
    array::{ArrayController, CommandError},
    error::{MemberError, Operation},
    io::volume::{ShardVolume, give_up_everywhere},
    membership::{
        model::MemberState,
        snapshot::{Member, MemberId, Snapshot, View},
        superblocks::Known,
    },
    mutants::{Mutant, active},
    shared::{Failure, Shared},
    status::statistics::Counter,
};

/// How often a request is tried again that a device was too busy for.
const RETRIES: u32 = 6;
/// How long the first of these waits; each next one twice as long.
const RETRY_NS: u64 = 1_000_000;
/// A member that the array can't do without has so many times the limit.
const LAST_STRAW_LIMITS: u64 = 2;
/// A stop waits for members that may take their time only so long.
const STOP_LIMIT_NS: u64 = 30_000_000_000;

const READ: u8 = 0;
const WRITE: u8 = 1;
const FLUSH: u8 = 2;
const ZERO: u8 = 3;
/// A command to a server that computes. It is never tried again by itself: what it names may be over by then.
const COMMAND: u8 = 4;
/// A command to a member's server that may have to wait for other servers.
const FIRST_PHASE: u8 = 5;
/// Such a command has at least so long: a server tells after 5 s that it can't reach another one, and gives
/// up waiting for others after 10 s (docs/offload-protocol.md, section 8). A member that is dropped sooner
/// would pay for another one's silence.
const FIRST_PHASE_NS: u64 = 12_000_000_000;

macro_rules! member_counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What one shard asked of a member.
        #[derive(Default)]
        struct MemberCounters {
            $($name: Counter,)*
        }

        /// What was asked of a member, and what became of it, over all shards.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct MemberStatistics {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl MemberStatistics {
            fn add(&mut self, counters: &MemberCounters) {
                $(self.$name += counters.$name.value();)*
            }

            /// Names and values, in a fixed order.
            pub fn fields(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)*].into_iter()
            }
        }
    };
}

member_counters! {
    /// Reads.
    reads,
    /// Writes, zeroing and discards included.
    writes,
    /// Flushes.
    flushes,
    /// Reads that failed.
    read_errors,
    /// Writes and flushes that failed.
    write_errors,
    /// Failed reads after which the sectors were written anew from the other members.
    corrected_reads,
    /// Requests that were tried again because the device had no resources for them.
    retries,
    /// Times that it was slow to answer.
    slow,
    /// Requests that were given up because the member did not answer.
    timed_out,
    /// Commands to a server that computes.
    commands,
    /// Bytes sent to a server that computes.
    sent_bytes,
    /// Bytes received from a server that computes.
    received_bytes,
}

/// How a member does. Part of [`Member`]; all shards see it.
#[derive(Default)]
pub struct Health {
    /// Requests that were given up and are not over.
    late: AtomicU64,
    /// It is out of the membership, for good.
    out: AtomicBool,
    /// Shards that wait for it longer than they should.
    slow: AtomicU64,
    /// Flushes of all shards.
    pub(crate) flushes: Flushes,
    /// Corrected reads that count, and when the last was.
    corrected: Mutex<(u32, u64)>,
    /// By shard's handle.
    counters: Mutex<Vec<Arc<CachePadded<MemberCounters>>>>,
}

impl Health {
    /// Whether nothing may be asked of it (C16).
    fn refuses(&self) -> bool {
        if active(Mutant::LateMemberAsked) {
            return false;
        }
        self.out.load(Ordering::Relaxed) || self.late.load(Ordering::Relaxed) > 0
    }

    /// Requests that were given up and are not over: its device may still do what they asked for.
    pub fn late_requests(&self) -> u64 {
        self.late.load(Ordering::SeqCst)
    }

    /// Whether a request has been under way for longer than usual.
    pub fn is_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed) > 0
    }

    /// What was asked of it.
    pub fn statistics(&self) -> MemberStatistics {
        let mut sum = MemberStatistics::default();
        for counters in self.counters.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            sum.add(counters);
        }
        sum
    }

    /// Counts a corrected read as MD does: what was counted halves for every hour since the last one.
    fn count_corrected(&self, now_ns: u64) -> u32 {
        const HOUR_NS: u64 = 3_600_000_000_000;
        let mut corrected = self.corrected.lock().unwrap_or_else(PoisonError::into_inner);
        let hours = u32::try_from(now_ns.saturating_sub(corrected.1) / HOUR_NS).unwrap_or(u32::MAX);
        let before = corrected.0.checked_shr(hours).unwrap_or(0);
        *corrected = (before.saturating_add(1), now_ns);
        corrected.0
    }

    /// From now on it is out of the membership and refuses everything.
    pub(crate) fn put_out(&self) {
        self.out.store(true, Ordering::SeqCst);
    }

    fn enter_counters(&self) -> Arc<CachePadded<MemberCounters>> {
        let counters = Arc::<CachePadded<MemberCounters>>::default();
        self.counters.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(&counters));
        counters
    }
}

/// A member's flushes, by all shards. A device that has lost writes tells it once (C5); but they may be what
/// other flushes wait for too, those under way and those that come before the member is out. So a flush isn't
/// answered before all are over that began before it was, by ticket: a count of those that have ended is met
/// by later ones (C33).
#[derive(Default)]
pub(crate) struct Flushes {
    state: Mutex<FlushState>,
    changed: Signal,
}

#[derive(Default)]
struct FlushState {
    /// The latest ticket.
    begun: u64,
    /// The tickets of those that aren't over.
    under_way: Vec<u64>,
    /// How many have failed, and how the last did.
    failed: u64,
    error: Option<DeviceError>,
}

impl FlushState {
    /// Whether every flush is over that had a ticket when `begun` was the latest one.
    fn are_over(&self, begun: u64) -> bool {
        if active(Mutant::FlushesCounted) {
            return self.begun - self.under_way.len() as u64 >= begun;
        }
        self.under_way.iter().all(|&ticket| ticket > begun)
    }
}

/// A flush of a member that is under way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FlushTicket {
    number: u64,
    /// How many had failed before.
    pub(crate) failed_before: u64,
}

impl Flushes {
    /// A flush is about to be asked for.
    pub(crate) fn begin(&self) -> FlushTicket {
        let mut state = self.state();
        state.begun += 1;
        let number = state.begun;
        state.under_way.push(number);
        FlushTicket { number, failed_before: state.failed }
    }

    /// It is over.
    pub(crate) fn end(&self, ticket: FlushTicket, error: Option<DeviceError>) {
        let mut state = self.state();
        state.under_way.retain(|&number| number != ticket.number);
        if error.is_some() {
            state.failed += 1;
            state.error = error;
        }
        drop(state);
        self.changed.notify();
    }

    /// Waits for all that are under way now, and says how one failed since so many had.
    pub(crate) async fn failed_since(&self, before: u64) -> Option<DeviceError> {
        let begun = self.state().begun;
        self.changed.wait_until(|| self.state().are_over(begun)).await;
        let state = self.state();
        if state.failed > before { state.error } else { None }
    }

    fn state(&self) -> MutexGuard<'_, FlushState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A member's device as a shard uses it. See the module.
pub(crate) struct Supervised {
    device: Rc<dyn Device>,
    core: Rc<Core>,
    watch: Watch,
    /// Its server computes, and the bytes on the way to it count.
    computes: bool,
}

/// What outlives the handle, as long as requests are under way.
struct Core {
    member: Arc<Member>,
    shared: Arc<Shared>,
    /// Not held: a device that was let go of is closed when its last request is over.
    device: Weak<dyn Device>,
    counters: Arc<CachePadded<MemberCounters>>,
    is_slow: std::cell::Cell<bool>,
}

impl Supervised {
    pub(crate) fn new(device: Rc<dyn Device>, member: &Arc<Member>, shared: &Arc<Shared>) -> Rc<Self> {
        let core = Rc::new(Core {
            member: Arc::clone(member),
            shared: Arc::clone(shared),
            device: Rc::downgrade(&device),
            counters: member.health.enter_counters(),
            is_slow: false.into(),
        });
        let watch = Watch::new(Rc::clone(&core) as Rc<dyn Observer>, first_look(shared));
        let computes = device.offload().is_some();
        Rc::new(Self { device, core, watch, computes })
    }

    /// Ends the waits for all requests under way.
    pub(crate) fn give_up(&self, kind: DeviceErrorKind) {
        self.watch.give_up(kind);
    }

    /// The limits have changed.
    pub(crate) fn look_again(&self) {
        self.watch.look_from(first_look(&self.core.shared));
    }

    fn refused(&self) -> Option<DeviceError> {
        let refuses = self.core.member.health.refuses();
        refuses.then(|| DeviceError::of(DeviceErrorKind::TimedOut))
    }

    fn watched(&self, submission: Submission, about: RequestInfo) -> Submission {
        if submission.is_pending() {
            self.watch.add(&submission, about);
        } else if let Some(error) = submission.error() {
            self.core.failed(about, error);
        }
        submission
    }
}

fn first_look(shared: &Shared) -> u64 {
    let (slow, limit) = (shared.options.slow_member_ns, shared.member_limit_ns());
    if limit == 0 { slow } else { slow.min(limit) }
}

impl Device for Supervised {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn is_remote(&self) -> bool {
        self.device.is_remote()
    }

    fn read(&self, offset: u64, buffer: Buffer) -> Submission {
        if let Some(error) = self.refused() {
            return Submission::done(Err(error), Some(buffer));
        }
        self.core.counters.reads.add(1);
        if self.computes {
            self.core.counters.received_bytes.add(buffer.len() as u64);
        }
        let about = RequestInfo { kind: READ, offset, read_bytes: buffer.len(), fua: false };
        self.watched(self.device.read(offset, buffer), about)
    }

    fn write(&self, offset: u64, data: Slice, fua: bool) -> Submission {
        if let Some(error) = self.refused() {
            return Submission::done(Err(error), None);
        }
        self.core.counters.writes.add(1);
        if self.computes {
            self.core.counters.sent_bytes.add(data.len() as u64);
        }
        let about = RequestInfo { kind: WRITE, offset, read_bytes: 0, fua };
        self.watched(self.device.write(offset, data, fua), about)
    }

    fn flush(&self) -> Submission {
        if let Some(error) = self.refused() {
            return Submission::done(Err(error), None);
        }
        self.core.counters.flushes.add(1);
        self.watched(self.device.flush(), RequestInfo { kind: FLUSH, ..RequestInfo::default() })
    }

    fn discard(&self, offset: u64, length: u64) -> Submission {
        if let Some(error) = self.refused() {
            return Submission::done(Err(error), None);
        }
        self.core.counters.writes.add(1);
        self.watched(
            self.device.discard(offset, length),
            RequestInfo { kind: ZERO, offset, ..RequestInfo::default() },
        )
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Submission {
        if let Some(error) = self.refused() {
            return Submission::done(Err(error), None);
        }
        self.core.counters.writes.add(1);
        let about = RequestInfo { kind: ZERO, offset, ..RequestInfo::default() };
        self.watched(self.device.write_zeroes(offset, length), about)
    }

    fn offload(&self) -> Option<&dyn Offload> {
        self.computes.then_some(self as &dyn Offload)
    }
}

impl Core {
    /// The member has had its time: it is reported, to be dropped, and no task waits for it any more.
    fn time_out(&self, about: RequestInfo) {
        let shared = &self.shared;
        if shared.geometry.has_parity()
            && let Some(slot) = shared.snapshot().slot_of(self.member.id)
        {
            let operation = match about.kind {
                READ => Operation::Read,
                FLUSH => Operation::Flush,
                _ => Operation::Write,
            };
            let error = DeviceError::of(DeviceErrorKind::TimedOut);
            let (name, offset) = (self.member.name.clone(), about.offset);
            shared.report(self.member.id, MemberError { slot, name, operation, offset, error });
        }
        give_up_everywhere(shared, self.member.id, DeviceErrorKind::TimedOut);
    }

    /// Whether it is too early to give the member up, because the array would fail without it (C29): what
    /// makes several members silent at a time may be this machine's own trouble, or the network's, and pass.
    fn is_last_straw(&self, age_ns: u64, limit: u64) -> bool {
        let shared = &self.shared;
        shared.geometry.has_parity()
            && age_ns < limit.saturating_mul(LAST_STRAW_LIMITS)
            && !shared.has_failed()
            && !shared.can_spare(self.member.id)
            && !active(Mutant::LastStrawDropped)
    }

    fn set_slow(&self, slow: bool) {
        if self.is_slow.replace(slow) == slow {
            return;
        }
        if slow {
            self.counters.slow.add(1);
            self.member.health.slow.fetch_add(1, Ordering::Relaxed);
        } else {
            self.member.health.slow.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Observer for Core {
    fn overdue(&self, about: RequestInfo, age_ns: u64) -> OverdueAction {
        let limit = self.shared.member_limit_ns();
        let limit = if active(Mutant::SlowMemberDropped) { first_look(&self.shared) } else { limit };
        // Without a limit no member is dropped.
        let mut limit =
            if about.kind == FIRST_PHASE && limit > 0 { limit.max(FIRST_PHASE_NS) } else { limit };
        if limit > 0 && age_ns >= limit {
            if !self.is_last_straw(age_ns, limit) {
                self.time_out(about);
                return OverdueAction::GiveUp(DeviceErrorKind::TimedOut);
            }
            limit = limit.saturating_mul(LAST_STRAW_LIMITS);
        }
        self.set_slow(age_ns >= self.shared.options.slow_member_ns);
        OverdueAction::WaitUntil(if limit == 0 { u64::MAX } else { limit })
    }

    fn given_up(&self, count: usize, kind: DeviceErrorKind) {
        self.set_slow(false);
        if kind == DeviceErrorKind::TimedOut {
            self.counters.timed_out.add(count as u64);
        }
        self.member.health.late.fetch_add(count as u64, Ordering::SeqCst);
    }

    fn caught_up(&self) {
        self.set_slow(false);
    }

    fn failed(&self, about: RequestInfo, error: DeviceError) {
        // What a device can't do, or its server won't, is no error of its own.
        if matches!(error.kind, DeviceErrorKind::Unsupported | DeviceErrorKind::Refused) {
            return;
        }
        let counters = &self.counters;
        if about.kind == READ { &counters.read_errors } else { &counters.write_errors }.add(1);
        let is_lost = match error.kind {
            DeviceErrorKind::Gone => true,
            DeviceErrorKind::Fenced => false,
            _ => about.kind == FLUSH,
        };
        if is_lost && !active(Mutant::LossToldLate) {
            self.shared.note_leaving(self.member.id);
        }
    }

    fn settled(&self) {
        self.member.health.late.fetch_sub(1, Ordering::SeqCst);
    }

    fn retry(&self, completion: Completion, about: RequestInfo, mut payload: Payload) {
        if matches!(about.kind, COMMAND | FIRST_PHASE) {
            completion.with_payload(|place| *place = payload);
            completion.finish(Err(DeviceError::of(DeviceErrorKind::Busy)));
            return;
        }
        // Held until the request is over: a handle may be replaced by another one meanwhile.
        let (device, member) = (self.device.upgrade(), Arc::clone(&self.member));
        let counters = Arc::clone(&self.counters);
        shard::spawn(async move {
            let mut result = Err(DeviceError::of(DeviceErrorKind::Busy));
            for attempt in 0..RETRIES {
                shard::sleep(RETRY_NS << attempt).await;
                // The wait may be over by now, and another task may hold the stripe: then nothing may be sent
                // any more.
                let Some(device) = device.as_deref().filter(|_| !member.health.refuses()) else { break };
                counters.retries.add(1);
                (result, payload) = once_more(device, about, payload).await;
                if !matches!(result, Err(error) if error.kind == DeviceErrorKind::Busy) {
                    break;
                }
            }
            completion.with_payload(|place| *place = payload);
            completion.finish(result);
        });
    }
}

async fn once_more(
    device: &dyn Device,
    about: RequestInfo,
    payload: Payload,
) -> (Result<usize, DeviceError>, Payload) {
    match payload {
        Payload::Buffer(buffer) => {
            let outcome = device.read(about.offset, buffer).await;
            (outcome.result, outcome.buffer.map_or(Payload::None, Payload::Buffer))
        }
        Payload::Slice(data) => {
            let outcome = device.write(about.offset, data.clone(), about.fua).await;
            (outcome.result, Payload::Slice(data))
        }
        Payload::None => (Err(DeviceError::of(DeviceErrorKind::Busy)), Payload::None),
    }
}

impl ShardVolume {
    /// Sectors of a member (at an offset in bytes, relative to its data) could not be read, and are written
    /// anew. A member that has too many of these is dropped, if the array can do without it.
    pub(crate) fn corrected(&self, view: &View, slot: usize, offset: u64) {
        self.counters().corrected_reads.add(1);
        let Some((member, _)) = view.member(slot) else { return };
        self.device(member).core.counters.corrected_reads.add(1);
        let count = member.health.count_corrected(shard::now());
        if count <= self.shared.options.max_read_errors || active(Mutant::CorrectedReadsUnlimited) {
            return;
        }
        // Whether the array can do without it, the controller decides, behind all that was reported before
        // (`spare_the_needed`).
        let error = DeviceError::of(DeviceErrorKind::TooManyErrors);
        self.report(view, slot, Operation::Read, member.data_offset + offset, error);
    }
}

/// A member that only had too many errors, each of them mended, stays if the array can't do without it, or
/// could not if those that hang are lost.
pub(crate) fn spare_the_needed(shared: &Shared, snapshot: &Snapshot, leaving: &mut Vec<Failure>) {
    let is_tired = |failure: &Failure| failure.error.error.kind == DeviceErrorKind::TooManyErrors;
    loop {
        let goes = |member: &Member| {
            shared.is_ailing(member) || leaving.iter().any(|failure| failure.member == member.id)
        };
        if snapshot.can_do_without(shared.geometry.redundancy(), goes) {
            return;
        }
        let Some(place) = leaving.iter().position(is_tired) else { return };
        leaving.remove(place);
    }
}

impl ArrayController {
    /// Superblocks go through the home shard's supervised handles. To be called after every change of the
    /// membership, and when a device has joined: one that holds no slot gets superblocks, and must not hold
    /// the controller for ever either.
    pub(crate) fn supervise_members(&self) {
        let view = self.volume.inner.view();
        let mut superblocks = self.superblocks.borrow_mut();
        for slot in 0..view.devices.len() {
            if let Some((member, device)) = view.member(slot) {
                let handle = &mut superblocks.membership.device_mut(member.id).handle;
                handle.device = Rc::clone(device);
                handle.waiting = None;
            }
        }
        let waits =
            |record: &&mut Known| record.state == MemberState::Spare && record.handle.waiting.is_none();
        for record in superblocks.membership.devices.iter_mut().filter(waits) {
            let handle = &mut record.handle;
            if active(Mutant::SpareUnsupervised) {
                handle.device = handle.member.attach().unwrap_or_else(|_| Rc::clone(&handle.device));
                continue;
            }
            let device = self.volume.inner.supervised(&handle.member);
            handle.device = Rc::clone(&device) as Rc<dyn Device>;
            handle.waiting = Some(device);
        }
    }

    /// Nothing waits any more for a device that is about to leave the array.
    pub(crate) fn put_out(&self, member: MemberId) {
        let waiting = {
            let superblocks = self.superblocks.borrow();
            let handle = superblocks.handle(member);
            handle.member.health.put_out();
            handle.waiting.clone()
        };
        if let Some(device) = waiting {
            device.give_up(DeviceErrorKind::Removed);
        }
        give_up_everywhere(self.shared(), member, DeviceErrorKind::Removed);
    }

    /// C16: a device that still has requests of an earlier membership may not join. It is known by the name
    /// under which it was a member, or by what its superblock says (`is_it`).
    pub(crate) fn refuse_late(
        &self,
        name: &str,
        is_it: impl Fn(&pinstripe_md::superblock::Superblock) -> bool,
    ) -> Result<(), CommandError> {
        let superblocks = self.superblocks.borrow();
        let devices = superblocks.membership.devices.iter();
        let same = devices.filter(|record| record.name == name || is_it(&record.superblock));
        let known: u64 = same.map(|record| record.handle.member.health.late_requests()).sum();
        let late = known + self.joining.late_requests(name);
        if late == 0 || active(Mutant::LateMemberAdded) {
            Ok(())
        } else {
            Err(CommandError::RequestsUnderWay { name: name.to_owned(), late })
        }
    }

    /// Whether a device of this name may still do what it was asked for in vain.
    pub(crate) fn is_late(&self, name: &str) -> bool {
        let superblocks = self.superblocks.borrow();
        let journal = superblocks.journal.iter().map(|journal| &journal.member);
        let devices = superblocks.membership.devices.iter();
        let mut members = devices.map(|record| &record.handle.member).chain(journal);
        members.any(|member| member.name == name && member.health.late_requests() > 0)
    }

    /// From now on no member may take for ever, for the array is to end.
    pub(crate) fn bound_waits(&self) {
        let shared = self.shared();
        if shared.member_limit_ns() == 0 {
            shared.set_member_limit_ns(STOP_LIMIT_NS);
            crate::io::volume::look_again_everywhere(shared);
            let superblocks = self.superblocks.borrow();
            let devices = superblocks.membership.devices.iter();
            let waiting = devices.filter_map(|record| record.handle.waiting.as_ref());
            for device in superblocks.journal.iter().map(|journal| &journal.device).chain(waiting) {
                device.look_again();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Waker},
    };

    use super::*;

    #[test]
    fn a_flush_is_answered_when_all_that_began_before_it_ended_are_over_whatever_ends_later() {
        let (flushes, error) = (Flushes::default(), DeviceError::of(DeviceErrorKind::Media));
        let mut cx = Context::from_waker(Waker::noop());
        let oldest = flushes.begin();
        let ours = flushes.begin();
        flushes.end(ours, None);
        let mut answer = pin!(flushes.failed_since(0));
        assert!(answer.as_mut().poll(&mut cx).is_pending(), "an older one is under way");
        for _ in 0..3 {
            let later = flushes.begin();
            flushes.end(later, None);
            assert!(answer.as_mut().poll(&mut cx).is_pending(), "it still is");
        }
        let latest = flushes.begin();
        flushes.end(oldest, Some(error));
        let told = answer.as_mut().poll(&mut cx);
        assert_eq!(told, std::task::Poll::Ready(Some(error)), "one that began later is not waited for");
        flushes.end(latest, None);
    }
}
