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
//!
//! *Forced writes that are made of a write and a flush* are flushes of the member, too: an error may be that
//! of the flush, and what other writes had left in the cache be lost. So it is kept, for every flush under
//! way and to come, and for every forced write, which may have had its own data in that cache.

pub(crate) mod bounded;
mod offload;
pub(crate) mod shard_members;

use std::{
    rc::{Rc, Weak},
    sync::Arc,
};

use crossbeam_utils::CachePadded;
use pinstripe_runtime::{
    Buffer, Completion, Device, DeviceError, DeviceErrorKind, DeviceInfo, FlushTicket, Observer, Offload,
    OverdueAction, RequestInfo, Slice, Submission, Watch, completion::Payload, memory::InPlace, shard,
};

use crate::{
    error::{MemberError, Operation},
    members::{Member, health::MemberCounters},
    mutants::{Mutant, active},
    plan::Ahead,
    shared::Shared,
    supervision::shard_members::give_up_everywhere,
};

/// How often a request is tried again that a device was too busy for.
const RETRIES: u32 = 6;
/// How long the first of these waits; each next one twice as long.
const RETRY_NS: u64 = 1_000_000;
/// A member that the array can't do without has so many times the limit.
const LAST_STRAW_LIMITS: u64 = 2;

const READ: u8 = 0;
const WRITE: u8 = 1;
const FLUSH: u8 = 2;
const ZERO: u8 = 3;
/// A command to a server that computes. It is never tried again by itself: what it names may be over by then.
const COMMAND: u8 = 4;
/// A command to a member's server that may have to wait for other servers.
const FIRST_PHASE: u8 = 5;
/// A command to write what a server has prepared. A member whose server doesn't do that lacks it, whatever
/// the reason.
const COMMIT: u8 = 6;
/// Such a command has at least so long: a server tells after 5 s that it can't reach another one, and gives
/// up waiting for others after 10 s (docs/offload-protocol.md, section 8). A member that is dropped sooner
/// would pay for another one's silence.
const FIRST_PHASE_NS: u64 = 12_000_000_000;

/// A member's device as a shard uses it. See the module.
pub(crate) struct Supervised {
    device: Rc<dyn Device>,
    core: Rc<Core>,
    watch: Watch,
    /// Where the last request ends, if it is a read; else 0.
    read_to: std::cell::Cell<u64>,
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
        Rc::new(Self { device, core, watch, read_to: 0.into(), computes })
    }

    /// Ends the waits for all requests under way.
    pub(crate) fn give_up(&self, kind: DeviceErrorKind) {
        self.watch.give_up(kind);
    }

    /// Sectors of it were written anew after a read that failed.
    pub(crate) fn note_corrected(&self) {
        self.core.counters.corrected_reads.add(1);
    }

    /// The limits have changed.
    pub(crate) fn look_again(&self) {
        self.watch.look_from(first_look(&self.core.shared));
    }

    /// What a read from `offset` on finds here, of this shard's requests.
    pub(crate) fn ahead(&self, offset: u64) -> Ahead {
        Ahead { requests: self.watch.count(), goes_on: self.read_to.get() == offset }
    }

    fn refused(&self) -> Option<DeviceError> {
        let refuses = self.core.member.health.refuses();
        refuses.then(|| DeviceError::of(DeviceErrorKind::TimedOut))
    }

    /// Notes that a write of so many bytes goes to the device.
    fn count_write(&self, bytes: usize) {
        self.core.counters.writes.add(1);
        self.core.counters.write_bytes.add(bytes as u64);
        self.read_to.set(0);
        if self.computes {
            self.core.counters.sent_bytes.add(bytes as u64);
        }
    }

    fn submit_write(
        &self,
        offset: u64,
        data: Slice,
        fua: bool,
        submit: impl FnOnce(&dyn Device, Slice) -> Submission,
    ) -> Submission {
        if let Some(error) = self.refused() {
            return Submission::done(Err(error), None);
        }
        self.count_write(data.len());
        let about = RequestInfo { kind: WRITE, offset, read_bytes: 0, fua };
        if is_flush(&*self.device, fua) {
            let payload = Payload::Slice(data.clone());
            self.flushing(about, payload, || submit(&*self.device, data))
        } else {
            self.watched(submit(&*self.device, data), about)
        }
    }

    /// Submits a forced write that is one of the member's flushes; `payload` is there to try it again.
    fn flushing(
        &self,
        about: RequestInfo,
        payload: Payload,
        submit: impl FnOnce() -> Submission,
    ) -> Submission {
        let member = Arc::clone(&self.core.member);
        let ticket = member.health.flushes.begin();
        let write = submit();
        let (submission, completion) = Submission::pending(payload);
        shard::spawn(async move { completion.finish(ended_flush(&member, ticket, write).await) });
        self.watched(submission, about)
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

/// Whether a forced write to a device is one of its flushes.
fn is_flush(device: &dyn Device, fua: bool) -> bool {
    fua && device.info().forces_by_flush
}

/// How a forced write ends that is one of its member's flushes. As a flush, it has failed if another one has
/// that was under way when it ended.
async fn ended_flush(member: &Member, ticket: FlushTicket, write: Submission) -> Result<usize, DeviceError> {
    let result = write.await.result;
    let may_be_loss = |error: &DeviceError| error.kind.may_be_loss() && !active(Mutant::FailedForceForgotten);
    let flushes = &member.health.flushes;
    flushes.end(ticket, result.err().filter(may_be_loss));
    let bytes = result?;
    match flushes.failure().await.filter(|_| !active(Mutant::ForcedPastLoss)) {
        None => Ok(bytes),
        Some(error) if error.kind.may_be_loss() => Err(error),
        // Of a flush any error may be a loss. Of a write this one would say that trying again may help.
        Some(error) => Err(DeviceError { kind: DeviceErrorKind::Media, ..error }),
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
        self.core.counters.read_bytes.add(buffer.len() as u64);
        if self.computes {
            self.core.counters.received_bytes.add(buffer.len() as u64);
        }
        self.read_to.set(offset + buffer.len() as u64);
        let about = RequestInfo { kind: READ, offset, read_bytes: buffer.len(), fua: false };
        self.watched(self.device.read(offset, buffer), about)
    }

    fn write(&self, offset: u64, data: Slice, fua: bool) -> Submission {
        self.submit_write(offset, data, fua, |device, data| device.write(offset, data, fua))
    }

    fn write_streaming(&self, offset: u64, data: Slice, fua: bool) -> Submission {
        self.submit_write(offset, data, fua, |device, data| device.write_streaming(offset, data, fua))
    }

    fn in_place(&self, offset: u64, length: usize) -> Option<InPlace<'_>> {
        if self.core.member.health.refuses() {
            return None;
        }
        let range = self.device.in_place(offset, length)?;
        let counters = &self.core.counters;
        counters.reads.add(1);
        counters.read_bytes.add(length as u64);
        counters.writes.add(1);
        counters.write_bytes.add(length as u64);
        Some(range)
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
            shared.report(self.member.id, MemberError { role: slot.into(), name, operation, offset, error });
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
        }
        self.member.health.set_slow(slow);
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
        self.member.health.add_late(count);
        self.member.health.flushes.give_up(DeviceError::of(kind));
    }

    fn caught_up(&self) {
        self.set_slow(false);
    }

    fn failed(&self, about: RequestInfo, error: DeviceError) {
        // What a device can't do, or its server won't, is no error of its own.
        let is_own = !matches!(error.kind, DeviceErrorKind::Unsupported | DeviceErrorKind::Refused);
        let counters = &self.counters;
        if is_own {
            if about.kind == READ { &counters.read_errors } else { &counters.write_errors }.add(1);
        }
        let is_lost = match error.kind {
            DeviceErrorKind::Gone => true,
            DeviceErrorKind::Fenced => false,
            DeviceErrorKind::Media if matches!(about.kind, WRITE | COMMIT) => {
                self.member.bad_blocks.place().is_none() || self.member.health.has_lost_flush()
            }
            _ => about.kind == COMMIT || is_own && matches!(about.kind, WRITE | FLUSH),
        };
        if is_lost && !active(Mutant::LossToldLate) {
            self.shared.note_leaving(self.member.id);
        }
    }

    fn settled(&self) {
        self.member.health.end_late();
    }

    fn retry(&self, completion: Completion, about: RequestInfo, mut payload: Payload) {
        if matches!(about.kind, COMMAND | FIRST_PHASE | COMMIT) {
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
                (result, payload) = once_more(device, &member, about, payload).await;
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
    member: &Member,
    about: RequestInfo,
    payload: Payload,
) -> (Result<usize, DeviceError>, Payload) {
    match payload {
        Payload::Buffer(buffer) => {
            let outcome = device.read(about.offset, buffer).await;
            (outcome.result, outcome.buffer.map_or(Payload::None, Payload::Buffer))
        }
        Payload::Slice(data) => {
            let ticket = is_flush(device, about.fua).then(|| member.health.flushes.begin());
            let write = device.write(about.offset, data.clone(), about.fua);
            let result = match ticket {
                Some(ticket) => ended_flush(member, ticket, write).await,
                None => write.await.result,
            };
            (result, Payload::Slice(data))
        }
        Payload::None => (Err(DeviceError::of(DeviceErrorKind::Busy)), Payload::None),
    }
}
