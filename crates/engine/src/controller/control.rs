//! The controller: one task on the home shard that alone changes membership and superblocks.
//!
//! It is driven by state, not by messages: it looks at what is wanted (members reported as failed, writers at
//! the gate, commands) and does the most urgent thing whole, then looks again. So superblock updates are
//! serial and nothing that was asked for can be lost between two messages (C2).

use std::{cell::Cell, pin::pin, rc::Rc, sync::Arc};

use futures_util::future::{Either, select};
use pinstripe_md::bitmap::BitmapImage;
use pinstripe_runtime::{DeviceError, DeviceErrorKind, shard};

use crate::{
    controller::{
        ArrayController,
        error::CommandError,
        policy::PolicyStep,
        seating::Former,
        superblocks::{DeviceHandle, Newcomer},
        update::failure,
    },
    error::{IoError, MemberError, Operation},
    events::EventKind,
    members::MemberId,
    membership::{
        admission::Admission,
        model::Membership,
        snapshot::Change,
        transition::{Event, JoinKind, Transition},
    },
    mutants::{Mutant, active},
    shared::{Failure, Shared},
    supervision::shard_members::adopt_everywhere,
};

/// What the controller is asked to do. The answer comes through the reply.
pub(crate) enum Command {
    /// Enters a device with a superblock made for it: as a member that comes back to its slot, or as a spare.
    Enter { newcomer: Box<Newcomer>, comes_back: Option<Box<Former>>, reply: Reply<CommandError> },
    /// Has a spare take the place of a slot's member, once the copy is whole.
    Replace { slot: usize, spare: MemberId, reply: Reply },
    /// Takes out the member of a slot, as if it had failed.
    Fail { slot: usize, member: MemberId, reply: Reply<CommandError> },
    /// Takes out the journal device, as if it had failed.
    FailJournal { reply: Reply<CommandError> },
    /// Takes a device that holds no slot out of the array.
    Remove { member: MemberId, reply: Reply },
    /// A recovering member, or the target of a replacement, has everything.
    Recovered { member: MemberId, reply: Reply },
    /// Notes how far a recovery is.
    Checkpoint { member: MemberId, offset: u64, reply: Reply },
    /// Writes the superblocks anew: a resync is over.
    Refresh { reply: Reply },
    /// Changes what keeps the array consistent over a crash: what was goes, and what is to be comes. Nothing
    /// else that is asked for comes in between, an end of the array least of all.
    Policy { steps: Vec<PolicyStep>, reply: Reply },
    /// The members' servers know the membership of a generation.
    Offload { generation: u64, attached: Arc<crate::membership::attached::Attached>, reply: Reply },
    /// Writes clean superblocks and ends. When no write comes any more, and before the flush that goes before
    /// those superblocks, `keep_place` notes how far maintenance has come.
    Stop { keep_place: Box<dyn FnOnce()>, reply: Reply },
}

/// What happens to the bitmap on disk with a new table.
pub(crate) enum IntentChange {
    Remove,
    Add { offset: i32, image: Box<BitmapImage> },
}

/// Where a command's answer goes. A command that is let go of without one is answered: the array is stopping.
pub(crate) struct Reply<E: From<IoError> = IoError>(Option<Rc<ReplyState<E>>>);

struct ReplyState<E> {
    answer: Cell<Option<Result<(), E>>>,
    ready: pinstripe_runtime::Signal,
}

impl<E: From<IoError>> Reply<E> {
    /// Where an answer goes, and the answer.
    pub(crate) fn expected() -> (Self, impl Future<Output = Result<(), E>>) {
        let state =
            Rc::new(ReplyState { answer: Cell::new(None), ready: pinstripe_runtime::Signal::default() });
        let reply = Self(Some(Rc::clone(&state)));
        (reply, async move { state.ready.wait_for(|| state.answer.take()).await })
    }

    fn send(mut self, answer: Result<(), E>) {
        self.answer(answer);
    }

    fn answer(&mut self, answer: Result<(), E>) {
        if let Some(state) = self.0.take() {
            state.answer.set(Some(answer));
            state.ready.notify();
        }
    }

    /// Whether anything waits for the answer.
    fn is_awaited(&self) -> bool {
        self.0.as_ref().is_some_and(|state| Rc::strong_count(state) > 1)
    }
}

impl<E: From<IoError>> Drop for Reply<E> {
    fn drop(&mut self) {
        if !active(Mutant::StopForgetsCommands) {
            self.answer(Err(IoError::Stopping.into()));
        }
    }
}

impl ArrayController {
    /// The controller's life.
    pub(crate) async fn control(self: Rc<Self>) {
        let shared = Arc::clone(self.shared());
        let mut entered = 0;
        loop {
            if self.is_offered() {
                self.take_up_offload();
            }
            self.watch_ownership();
            let work = shared.controller_wake.wait_until(|| self.has_work());
            let idle = if shared.admission.is_open() {
                shard::timeout(shared.options.safe_mode_delay_ns, work).await.is_none()
            } else {
                work.await;
                false
            };
            if self.has_reports() {
                self.settle_reports().await;
            } else if wants_dirty(&shared.admission) {
                self.make_dirty().await;
            } else if self.spare_wanted(&[]).is_some() {
                self.take_over(&[]).await;
            } else if let Some(command) = self.take_command() {
                if self.execute(command).await {
                    return;
                }
            } else if idle {
                let now = shared.admission.entered();
                if std::mem::replace(&mut entered, now) == now {
                    self.make_clean().await;
                }
            }
        }
    }

    fn has_work(&self) -> bool {
        let admission = &self.shared().admission;
        let spare_wanted = || self.spare_wanted(&[]).is_some();
        self.has_reports() || wants_dirty(admission) || self.has_commands() || spare_wanted()
    }

    /// Whether a shard has reported a member that failed, a lost journal, or bad blocks.
    fn has_reports(&self) -> bool {
        let shared = self.shared();
        // An array that has failed writes down nothing more, and a lost journal would stay unrecorded.
        let has_lost_journal = self.has_lost_journal() && !shared.has_failed();
        shared.has_failures() || has_lost_journal || !shared.bad_reports.is_empty()
    }

    /// Deals with what was reported, what is most urgent first.
    async fn settle_reports(&self) {
        if self.shared().has_failures() {
            self.drop_reported().await;
        } else if self.has_lost_journal() {
            self.record_journal_loss().await;
        } else {
            self.keep_bad_blocks().await;
        }
    }

    /// Lets no more writers in, and waits until the last one has left. What they report is dealt with
    /// meanwhile: a writer inside may wait in the log for another one, and that one for its member to be
    /// dropped.
    async fn end_writers(&self) {
        let shared = self.shared();
        loop {
            let ended = shared.admission.close_for_good();
            if active(Mutant::StopSettlesLate) {
                ended.await;
            } else {
                self.settling(ended).await;
            }
            // What left last may have reported something.
            if self.has_reports() && !shared.has_failed() {
                self.settle_reports().await;
            } else if shared.admission.writers() == 0 {
                return;
            }
        }
    }

    /// Waits for what others do, and deals meanwhile with what is reported: they may wait for a member to be
    /// dropped.
    pub(super) async fn settling(&self, others: impl Future<Output = ()>) {
        let shared = self.shared();
        let mut others = pin!(others);
        loop {
            let has_reports = || self.has_reports() && !shared.has_failed();
            let reported = pin!(shared.controller_wake.wait_until(has_reports));
            match select(others.as_mut(), reported).await {
                Either::Left(_) => return,
                Either::Right(_) => self.settle_reports().await,
            }
        }
    }

    /// Runs a command. True if it was the last.
    async fn execute(&self, command: Command) -> bool {
        match command {
            Command::Enter { newcomer, comes_back, reply } => {
                reply.send(self.enter(*newcomer, comes_back.map(|former| *former)).await);
            }
            Command::Replace { slot, spare, reply } => {
                let how = JoinKind::Replacement;
                reply.send(self.enact(Event::Seat { spare, slot, how }).await);
            }
            Command::Fail { slot, member, reply } => {
                if reply.is_awaited() {
                    reply.send(self.drop_by_command(slot, member).await);
                }
            }
            Command::FailJournal { reply } => reply.send(self.drop_journal_by_command().await),
            Command::Remove { member, reply } => reply.send(self.enact(Event::Remove(member)).await),
            Command::Recovered { member, reply } => reply.send(self.recovered(member).await),
            Command::Checkpoint { member, offset, reply } => {
                self.superblocks.borrow_mut().membership.checkpoint(member, offset);
                reply.send(self.update_superblocks().await);
            }
            Command::Refresh { reply } => {
                self.take_up_log().await;
                reply.send(self.update_superblocks().await);
            }
            Command::Policy { steps, reply } => reply.send(self.change_policy(steps).await),
            Command::Offload { generation, attached, reply } => {
                reply.send(self.adopt_attached(generation, attached).await);
            }
            Command::Stop { keep_place, reply } => {
                self.refuse_commands();
                self.end_writers().await;
                self.stopped.set(true);
                keep_place();
                let stopped = self.write_clean().await;
                self.shared().end();
                reply.send(stopped);
                return true;
            }
        }
        false
    }

    /// Brings an event about: first the superblock that goes first, then the membership for all shards, then
    /// all superblocks.
    pub(crate) async fn enact(&self, event: Event<DeviceHandle>) -> Result<(), IoError> {
        // C3: of an array that has failed not even the superblock that goes first is written. It would be
        // ahead of what the lost members have.
        self.shared().check()?;
        let mut transition = self.superblocks.borrow().after(event.clone())?;
        if transition.first.is_some() && self.superblocks.borrow().membership.needs_equal_events() {
            self.update_superblocks().await?;
            transition = self.superblocks.borrow().after(event)?;
        }
        let next = match transition.first {
            None => transition.membership,
            Some(first) => self.introduce(first, transition.membership).await?,
        };
        self.adopt(next).await;
        self.update_superblocks().await
    }

    /// Makes a membership the array's, on all shards if slots are held otherwise by it.
    pub(super) async fn adopt(&self, next: Membership<DeviceHandle>) {
        let moves = self.superblocks.borrow_mut().adopt(next);
        if moves {
            let seats = self.superblocks.borrow().seats();
            self.publish(Change::Seats(seats)).await;
        }
    }

    /// Publishes what requests work with from now on, and waits until every write is over that began with
    /// what was there before (C1). Nothing else publishes. Returns the new generation.
    pub(crate) async fn publish(&self, change: Change) -> u64 {
        let shared = self.shared();
        let next = shared.snapshot().next(change);
        let generation = next.generation;
        shared.publish(next);
        self.supervise_members();
        shared.admission.drained().await;
        adopt_everywhere(shared);
        self.work.notify();
        generation
    }

    /// Takes out a member that a person wants out, if the array can do without it. That is decided behind all
    /// failures that were reported and all commands that came before: neither two commands at once nor one
    /// beside a failure take the array past redundancy (C31).
    async fn drop_by_command(&self, slot: usize, id: MemberId) -> Result<(), CommandError> {
        self.drop_all_reported().await?;
        let snapshot = self.shared().snapshot();
        let Some(seat) = snapshot.seats.get(slot).filter(|seat| seat.member().is_some_and(|m| m.id == id))
        else {
            // It has failed meanwhile, and the superblocks say so.
            return Ok(());
        };
        let is_needed = seat.is_whole() && !self.shared().can_lose(id, &snapshot);
        if is_needed && !active(Mutant::NeededTakenOut) {
            return Err(CommandError::SlotNeeded(slot));
        }
        let name = seat.member().map(|member| member.name.clone()).unwrap_or_default();
        let error = DeviceError::of(DeviceErrorKind::Removed);
        if self.drop_members(vec![failure(slot, id, &name, Operation::Metadata, 0, error)]).await {
            self.update_superblocks().await?;
            self.clear_missed();
        }
        Ok(self.shared().check()?)
    }

    /// Takes the reported members out until none is left; an error if the array has failed.
    pub(crate) async fn drop_all_reported(&self) -> Result<(), IoError> {
        while self.shared().has_failures() && !self.shared().has_failed() {
            self.drop_reported().await;
        }
        self.shared().check()
    }

    /// Takes the reported members out of the membership and records that.
    pub(crate) async fn drop_reported(&self) {
        if self.drop_members(self.shared().take_failures()).await {
            // An error means that the array has failed. Every task that waits checks `has_failed`.
            if self.update_superblocks().await.is_ok() {
                // If only the target of a replacement went, no member misses anything.
                self.clear_missed();
            }
        }
    }

    /// Drops members, in memory. False if nothing is to be recorded: they were out already, or too many are.
    pub(crate) async fn drop_members(&self, failures: Vec<Failure>) -> bool {
        let mut leaving: Vec<Failure> = Vec::new();
        for failure in failures {
            // The journal has no slot, and is reported only when it is fenced.
            let is_journal = failure.member == MemberId::JOURNAL;
            if !is_journal && !self.superblocks.borrow().membership.device(failure.member).is_active() {
                continue;
            }
            match leaving.iter_mut().find(|known| known.member == failure.member) {
                None => leaving.push(failure),
                // A member with too many errors may stay where it is needed. A failed member may not.
                Some(known) if known.error.error.kind == DeviceErrorKind::TooManyErrors => *known = failure,
                Some(_) => {}
            }
        }
        let fenced = leaving.iter().find(|failure| failure.error.error.kind == DeviceErrorKind::Fenced);
        if let Some(fenced) = fenced {
            // Another host has taken the array over (C22). The members are well, and nothing is to be written
            // down.
            self.fail_array(std::slice::from_ref(&fenced.error), Shared::fence);
            return false;
        }
        let snapshot = self.shared().snapshot();
        self.shared().spare_the_needed(&snapshot, &mut leaving);
        if leaving.is_empty() {
            return false;
        }
        let failures = leaving.iter().map(|failure| (failure.member, failure.error.clone())).collect();
        let transition = self.superblocks.borrow().after(Event::Fail(failures));
        let Ok(Transition { membership, .. }) = transition else {
            let errors: Vec<MemberError> = leaving.into_iter().map(|failure| failure.error).collect();
            self.fail_array(&errors, Shared::fail);
            return false;
        };
        for failure in &leaving {
            self.note(&failure.error);
            self.end_requests(failure.member);
            self.events.add(EventKind::Fail(failure.error.clone()));
        }
        self.adopt(membership).await;
        true
    }

    /// Nothing is acknowledged any more. That is told once, whatever else fails then.
    pub(super) fn fail_array(&self, errors: &[MemberError], fail: fn(&Shared)) {
        for error in errors {
            self.note(error);
        }
        if let Some(first) = errors.first().filter(|_| !self.shared().has_failed()) {
            self.events.add(EventKind::ArrayFailed(first.clone()));
        }
        fail(self.shared());
        self.work.notify();
    }

    /// Opens the gate: dirty superblocks first.
    async fn make_dirty(&self) {
        self.dirty.set(true);
        self.take_up_log().await;
        // Before the superblocks say that the log counts, it holds nothing; nor does one that doesn't count
        // yet.
        if self.forget_old_log().await.is_err() || !self.begin_log().await {
            return;
        }
        active(Mutant::GateOpenBeforeDirty).then(|| self.shared().admission.open());
        if active(Mutant::NeverDirty) || self.update_superblocks().await.is_ok() {
            self.shared().admission.take_wanted();
            self.shared().admission.open();
        }
    }

    /// Takes up the log that the array was waiting for, if it can be. A failure past redundancy shows at the
    /// next update.
    async fn take_up_log(&self) {
        let failures = self.adopt_log().await;
        self.drop_members(failures).await;
    }

    /// Has the log begin, empty. False if that failed past redundancy.
    async fn begin_log(&self) -> bool {
        let log = self.shared().snapshot().log.clone();
        if log.is_none() {
            return true;
        }
        let failures = self.open_log(&log).await;
        failures.is_empty() || self.drop_members(failures).await || !self.shared().has_failed()
    }

    /// Closes the gate, if no writer is inside, and marks the superblocks clean.
    async fn make_clean(&self) {
        shard::interruption().await;
        let admission = &self.shared().admission;
        if !admission.try_close() {
            return;
        }
        // A writer may have come and left since this was last looked at. What it has reported, it reported
        // before it left: superblocks that said clean now would call a member current that lacks the write,
        // and no crash would find the row that doesn't match (C2).
        if self.has_reports() && !active(Mutant::CleanPastReports) {
            // They still say dirty.
            return admission.open();
        }
        // A failure is in the books already; the array just stays dirty.
        let _ = self.write_clean().await;
    }

    /// Flushes every member, and drops those that can't: what these have missed isn't durable there, but the
    /// others have it all. The superblocks are yet to say so. The error is that the array has failed.
    pub(super) async fn flush_or_drop(&self) -> Result<(), IoError> {
        loop {
            let view = self.volume.base().members.view();
            let failed = self.volume.base().flush_members(&view).await;
            if failed.is_empty() {
                return Ok(());
            }
            let failures = failed.into_iter().filter_map(|(slot, error)| {
                let (member, _) = view.member(slot)?;
                Some(failure(slot, member.id, &member.name, Operation::Flush, 0, error))
            });
            if !self.drop_members(failures.collect()).await {
                return Err(self.shared().failure());
            }
        }
    }

    /// Clean superblocks, after a flush of every member that covers all writes (C4). The gate is closed.
    async fn write_clean(&self) -> Result<(), IoError> {
        let shared = self.shared();
        if self.is_static() {
            return Ok(());
        }
        shared.check()?;
        if !active(Mutant::CleanWithoutFlush) {
            self.flush_or_drop().await?;
        }
        let stops = self.stopped.get();
        if let Some(journal) = self.journal().filter(|_| stops) {
            // What a member lacks that is out only the log brings back, until the superblocks say that it is
            // out (C2).
            if !shared.is_recorded() {
                self.update_superblocks().await?;
            }
            // The superblocks tell if it is lost.
            self.close_journal(&journal).await;
        }
        self.dirty.set(false);
        self.update_superblocks().await?;
        if stops {
            // Not before: a crash would find dirty superblocks and nothing that covers it. Under clean ones
            // no log is replayed, so what can't be emptied does no harm.
            self.empty_log(&shared.snapshot().log).await;
        }
        Ok(())
    }

    /// Replaces the intent table and the bitmap on disk, in an order that is safe at every step: writers set
    /// bits in a bitmap that goes until the superblocks don't name it any more; a new one begins all set, and
    /// is on the members before the superblocks name it.
    pub(super) async fn swap_intent(
        &self,
        intent: Arc<crate::intent::IntentTable>,
        change: IntentChange,
    ) -> Result<(), IoError> {
        let old = self.shared().snapshot();
        let publish = || async {
            let now = self.shared().snapshot();
            if !active(Mutant::IntentSwapForgetsMarks) {
                intent.inherit(&now.intent);
            }
            if !now.is_complete() {
                intent.set_missed(0..=intent.len() - 1);
            }
            self.publish(Change::Intent(Arc::clone(&intent))).await;
            self.served.replace(Arc::clone(&intent));
            old.intent.wanted.notify();
        };
        match change {
            IntentChange::Remove => {
                // Every bit is set, and stays, until no superblock names the bitmap: whatever a crash leaves,
                // it covers all.
                self.bits_frozen.set(true);
                let failures = self.set_every_bit().await;
                if !failures.is_empty() && !self.drop_members(failures).await {
                    return Err(IoError::Failed);
                }
                self.superblocks.borrow_mut().membership.array.bitmap_offset = None;
                self.superblocks.borrow_mut().membership.forget_bits();
                self.update_superblocks().await?;
                {
                    let mut superblocks = self.superblocks.borrow_mut();
                    superblocks.bitmap = None;
                    superblocks.outdated_bitmaps.clear();
                }
                publish().await;
                self.bits_frozen.set(false);
                self.update_superblocks().await
            }
            IntentChange::Add { offset, mut image } => {
                {
                    let mut superblocks = self.superblocks.borrow_mut();
                    // C9: of what was written before, no bit tells a member that is away.
                    let events = superblocks.membership.array.events;
                    image.set_events(events, events);
                    superblocks.bitmap = Some(*image);
                    let membership = &mut superblocks.membership;
                    membership.array.bitmap_offset = Some(offset);
                    membership.distribute();
                }
                let count = self.superblocks.borrow().bitmap.as_ref().map_or(0, BitmapImage::page_count);
                let pages: Vec<usize> = (0..count).collect();
                let failures = {
                    let _pages = self.pages.take().await;
                    self.write_bitmap_pages(&pages).await
                };
                if !failures.is_empty() && !self.drop_members(failures).await {
                    return Err(IoError::Failed);
                }
                self.update_superblocks().await?;
                publish().await;
                self.update_superblocks().await
            }
        }
    }
}

/// Whether writers wait at a closed gate.
fn wants_dirty(admission: &Admission) -> bool {
    admission.is_wanted() && !admission.is_open() && !admission.is_halted()
}
