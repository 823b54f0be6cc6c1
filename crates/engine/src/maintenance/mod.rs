//! Resync, rebuild, check and repair: a walk over stripes, each under its claim, beside the users' I/O.
//!
//! One task on the home shard looks at what is to do and does one thing at a time: a recovering member is
//! rebuilt; the array is resynced where its regions need it; then scrubs that were asked for. Whenever the
//! membership changes, the walk ends and the task looks again. Several stripes are under way at a time, so
//! that the members are busy.
//!
//! Between two stripes a worker holds nothing. There it waits while maintenance is paused (MD: `frozen`), and
//! for its turn by the limits and beside users ([`pace`]).

mod locate;
mod pace;
mod rebuild;
mod requests;
mod resync;
mod scrub;

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    ops::Range,
    rc::Rc,
};

use pinstripe_md::units::SECTOR_BYTES;
use pinstripe_runtime::{Signal, shard};

pub use self::scrub::{CheckReport, Located, ScrubAction, ScrubRequest, SyncError};
use self::{
    pace::{Meter, Pace},
    scrub::{Correction, Findings, Scrub},
};
use crate::{
    controller::ArrayController,
    error::IoError,
    events::{EventKind, SyncAction},
    geometry::StripeId,
    io::{parity::ParityVolume, row::RowRange},
    members::MemberId,
    membership::snapshot::View,
    mutants::{Mutant, active},
    shared::Answer,
    stripe::parity_cache::PAGE_BYTES,
    turn::Turn,
};

/// How long to wait before a resync that met errors is tried again.
const RETRY_NS: u64 = 10_000_000_000;
/// The longest wait between two looks at what has changed while a walk is held up.
const LOOK_NS: u64 = 50_000_000;
/// Percent between two events of progress, as mdadm has them.
const PERCENT_STEP: u64 = 20;
/// What stripes under way may take, but for one.
const MEMORY_BYTES: usize = 32 << 20;

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncProgress {
    /// What is being done.
    pub action: SyncAction,
    /// Stripes done.
    pub done: u64,
    /// Stripes to do.
    pub total: u64,
    /// When it began, by the shard's clock.
    pub started_ns: u64,
    /// Sectors of rows that did not match, so far.
    pub mismatched_sectors: u64,
    /// Stripes that could not be read whole.
    pub errors: u64,
    /// Stripes with rows that could not be compared, as in a scrub's report.
    pub uncompared_stripes: u64,
    /// It stands still until it is resumed (MD: `frozen`).
    pub paused: bool,
    /// Bytes of each member per second, lately; 0 if that isn't known yet.
    pub speed: u64,
    /// Seconds that are left at this speed.
    pub finish_seconds: Option<u64>,
    meter: Meter,
}

impl SyncProgress {
    /// Notes that `done` stripes of `chunk` bytes are done now.
    fn note(&mut self, now: u64, chunk: u64) {
        let per_second = self.meter.note(now, self.done);
        self.speed = per_second * chunk;
        self.finish_seconds = self.total.saturating_sub(self.done).checked_div(per_second);
    }

    fn percent(&self) -> u64 {
        self.done.saturating_mul(100).checked_div(self.total).unwrap_or(0)
    }
}

/// The maintenance task, and what callers share with it.
pub(crate) struct Maintenance {
    controller: Rc<ArrayController>,
    volume: Rc<ParityVolume>,
    /// Scrubs that were asked for, the one under way first.
    scrubs: RefCell<VecDeque<Rc<Scrub>>>,
    /// Nothing begins and nothing goes on.
    frozen: Cell<bool>,
    pace: RefCell<Pace>,
    /// The right to ask whether one may go on: the other workers wait behind it.
    asking: Turn,
    /// Something ended for which a worker may be waiting with its turn.
    paced: Signal,
    pub(crate) sync: RefCell<Option<SyncProgress>>,
    /// The walk under way, or the last one.
    walk: RefCell<Option<Rc<Walk>>>,
    /// The members are being flushed after a part of it. A member that fails the flush has lost what no later
    /// flush brings back (C5).
    flushing: Cell<bool>,
    /// A part of the region that is being resynced could not be.
    with_errors: Cell<bool>,
    /// What was left unfinished last; it goes on without another event.
    unfinished: Cell<Option<SyncAction>>,
    /// The last thing that was done is a resync that met sectors which it can't read.
    resync_in_vain: Cell<bool>,
    /// The same of what was done before the job under way.
    gives_up: Cell<bool>,
}

impl Maintenance {
    /// For the array of this controller, on its home shard. `None` if its level keeps nothing in sync.
    pub(crate) fn new(controller: Rc<ArrayController>) -> Option<Rc<Self>> {
        let volume = Rc::clone(controller.volume.parity()?);
        let speed = controller.shared().options.sync_speed;
        Some(Rc::new(Self {
            controller,
            volume,
            scrubs: RefCell::default(),
            frozen: Cell::new(false),
            pace: RefCell::new(Pace::new(speed)),
            asking: Turn::default(),
            paced: Signal::default(),
            sync: RefCell::default(),
            walk: RefCell::default(),
            flushing: Cell::new(false),
            with_errors: Cell::new(false),
            unfinished: Cell::new(None),
            resync_in_vain: Cell::new(false),
            gives_up: Cell::new(false),
        }))
    }
}

/// What one walk shares among its workers.
struct Walk {
    action: SyncAction,
    target: Option<(usize, MemberId)>,
    /// The target is a member that came back by bitmap: of torn rows it has its own data, and the resync
    /// makes its parity.
    keeps_torn: bool,
    /// Sectors of torn rows that can't be read again are given up.
    gives_up: bool,
    membership: u64,
    correction: Correction,
    scrub: Option<Rc<Scrub>>,
    next: Cell<u64>,
    end: Cell<u64>,
    /// When it ends behind the stripes that are begun, however many are left.
    due_ns: u64,
    /// Stripes before `next` that were begun and not done.
    undone: RefCell<Vec<u64>>,
    /// Those that are under way.
    begun: RefCell<Vec<u64>>,
    findings: RefCell<Findings>,
    errors: Cell<u64>,
    aborted: Cell<bool>,
}

impl Walk {
    fn is_through(&self) -> bool {
        self.next.get() >= self.end.get() && self.undone.borrow().is_empty()
    }

    /// Whether no further stripe is to begin. A rebuild can't go on behind its first error: its target, which
    /// lacks something that it can't list, is to go.
    fn is_over(&self) -> bool {
        let is_in_vain = self.target.is_some() && self.errors.get() > 0;
        self.aborted.get() || self.is_through() || is_in_vain
    }

    /// The next stripe to do; [`Walk::ended`] when that is over.
    fn take(&self) -> Option<u64> {
        let undone = self.undone.borrow_mut().pop();
        let stripe = undone.unwrap_or(self.next.get());
        if undone.is_none() {
            if stripe >= self.end.get() {
                return None;
            }
            self.next.set(stripe + 1);
        }
        self.begun.borrow_mut().push(stripe);
        Some(stripe)
    }

    /// A stripe isn't under way any more: it is done, or was given back.
    fn ended(&self, stripe: u64) {
        self.begun.borrow_mut().retain(|&begun| begun != stripe);
    }

    /// The first stripe that isn't done. Meaningless after errors.
    fn place(&self) -> u64 {
        let (begun, undone) = (self.begun.borrow(), self.undone.borrow());
        let begun = begun.iter().filter(|_| !active(Mutant::PlaceIgnoresBegun));
        begun.chain(undone.iter()).copied().fold(self.next.get(), u64::min)
    }

    /// It ends here, with this stripe not done.
    fn give_back(&self, stripe: u64) {
        if !active(Mutant::UndoneForgotten) {
            self.undone.borrow_mut().push(stripe);
        }
        self.aborted.set(true);
    }
}

enum Job {
    Recover(usize, MemberId),
    Replace(usize, MemberId),
    Resync,
    Scrub(Rc<Scrub>),
    Stop,
}

impl Job {
    fn is(&self, action: Option<SyncAction>) -> bool {
        match self {
            Self::Recover(..) | Self::Replace(..) => action == Some(SyncAction::Rebuild),
            Self::Resync => action == Some(SyncAction::Resync),
            Self::Scrub(scrub) => action == Some(scrub.action()),
            Self::Stop => false,
        }
    }
}

impl Maintenance {
    /// The maintenance task's life.
    pub(crate) async fn run(self: Rc<Self>) {
        loop {
            if matches!(self.controller.work.wait_for(|| self.job()).await, Job::Recover(..)) {
                self.controller.until_attached().await;
            }
            // Behind that wait it may be another.
            let Some(job) = self.job() else { continue };
            let generation = self.controller.shared().snapshot().generation;
            if !job.is(self.unfinished.get()) {
                self.unfinished.set(None);
            }
            self.gives_up.set(self.resync_in_vain.replace(false));
            let mut stopped_at = None;
            let whole = match job {
                Job::Stop => return,
                Job::Recover(slot, member) | Job::Replace(slot, member) => self.recover(slot, member).await,
                Job::Resync => self.resync().await,
                Job::Scrub(scrub) => {
                    let is_over = self.scrub(&scrub).await;
                    stopped_at = scrub.stopped_at().filter(|_| is_over);
                    is_over
                }
            };
            self.end(whole, stopped_at);
            if !whole && !self.controller.stopped.get() {
                // Something was in the way. If it was the membership, the next look sees it; if sectors, not
                // too soon.
                let changed = || {
                    self.controller.stopped.get()
                        || self.controller.shared().snapshot().generation != generation
                        || self.resync_in_vain.get() && self.has_scrubs()
                };
                shard::timeout(RETRY_NS, self.controller.work.wait_until(changed)).await;
            }
        }
    }

    fn job(&self) -> Option<Job> {
        if self.controller.stopped.get() {
            return Some(Job::Stop);
        }
        let shared = self.controller.shared();
        if shared.has_failed() || self.frozen.get() {
            return None;
        }
        let snapshot = shared.snapshot();
        if !self.controller.is_static() {
            if let Some(slot) = snapshot.recovering.iter().next()
                && let Some(member) = snapshot.seats[slot].member()
            {
                return Some(Job::Recover(slot, member.id));
            }
            // Sectors that a resync can't read don't keep a scrub waiting: it is the one to find more of
            // them. Nor do they keep their member from being replaced.
            let vain = self.resync_in_vain.get();
            let resync = self.regions_to_resync(&snapshot).next().is_some();
            if let Some((slot, target)) = snapshot.replacements.first()
                && (!resync || vain)
            {
                return Some(Job::Replace(*slot, target.id));
            }
            if resync && !(vain && self.has_scrubs()) {
                return Some(Job::Resync);
            }
        }
        self.scrubs.borrow().front().cloned().map(Job::Scrub)
    }

    fn has_scrubs(&self) -> bool {
        !self.scrubs.borrow().is_empty()
    }

    fn begin(&self, action: SyncAction, done: u64, total: u64) {
        let progress = SyncProgress {
            action,
            done,
            total,
            started_ns: shard::now(),
            mismatched_sectors: 0,
            errors: 0,
            uncompared_stripes: 0,
            paused: false,
            speed: 0,
            finish_seconds: None,
            meter: Meter::default(),
        };
        *self.sync.borrow_mut() = Some(progress);
        if self.unfinished.get() != Some(action) {
            self.controller.events.add(EventKind::RebuildStarted { action });
        }
    }

    /// `stopped_at`: where a scrub was, if it isn't to go on.
    fn end(&self, whole: bool, stopped_at: Option<u64>) {
        let Some(progress) = self.sync.take() else { return };
        let action = progress.action;
        if whole || self.unfinished.get() != Some(action) {
            let mismatched = action.is_scrub().then_some(progress.mismatched_sectors);
            self.controller.events.add(EventKind::RebuildFinished { action, whole, mismatched, stopped_at });
        }
        self.unfinished.set((!whole).then_some(action));
    }

    /// Walks `stripes` with several workers: all of them, errors counted or not, unless it is aborted, or due
    /// to end, or has an error and a target.
    async fn walk(
        self: &Rc<Self>,
        action: SyncAction,
        target: Option<(usize, MemberId)>,
        stripes: Range<u64>,
        due_ns: u64,
    ) -> Rc<Walk> {
        let correction = if action == SyncAction::Resync { Correction::Parity } else { Correction::Nothing };
        self.walk_along(Walk {
            action,
            target,
            keeps_torn: target.is_some_and(|(_, member)| self.came_back(member)),
            gives_up: action == SyncAction::Resync && self.gives_up.get(),
            membership: self.controller.shared().snapshot().membership,
            correction,
            scrub: None,
            next: Cell::new(stripes.start),
            end: Cell::new(stripes.end),
            due_ns,
            undone: RefCell::default(),
            begun: RefCell::default(),
            findings: RefCell::default(),
            errors: Cell::new(0),
            aborted: Cell::new(false),
        })
        .await
    }

    async fn walk_along(self: &Rc<Self>, walk: Walk) -> Rc<Walk> {
        let walk = Rc::new(walk);
        self.walk.replace(Some(Rc::clone(&walk)));
        let all = crate::io::fan_out::FanOut::new();
        let geometry = &self.volume.geometry;
        let stripe_bytes = geometry.members() * geometry.chunk_bytes() as usize;
        for _ in 0..stripes_at_a_time(self.controller.shared().options.maintenance_depth, stripe_bytes) {
            let (controller, walk, branch) = (Rc::clone(self), Rc::clone(&walk), all.branch());
            shard::spawn(async move {
                controller.work_along(&walk).await;
                branch.finish(Ok(()));
            });
        }
        // The workers' results are in the walk.
        let _: Answer = all.wait().await;
        walk
    }

    async fn work_along(&self, walk: &Walk) {
        let volume = &self.volume;
        let mut row = volume.rows.take();
        while self.may_go_on(walk).await {
            let Some(stripe) = walk.take() else { break };
            let began = shard::now();
            let result = volume.sync_stripe(walk, StripeId(stripe), &mut row).await;
            let now = shard::now();
            self.pace.borrow_mut().ended(now, now - began);
            self.paced.notify();
            match result {
                Ok(findings) => self.note_stripe(walk, now, findings, 0),
                Err(IoError::Unreadable { .. }) => self.note_stripe(walk, now, Findings::default(), 1),
                Err(_) => walk.give_back(stripe),
            }
            walk.ended(stripe);
            shard::yield_now().await;
        }
        row.clear(0);
        volume.rows.give(row);
    }

    /// A stripe is done.
    fn note_stripe(&self, walk: &Walk, now: u64, findings: Findings, errors: u64) {
        let first = findings.mismatched > 0 && walk.findings.borrow().mismatched == 0;
        walk.errors.set(walk.errors.get() + errors);
        if let Some(progress) = &mut *self.sync.borrow_mut() {
            let before = progress.percent() / PERCENT_STEP;
            progress.done += 1;
            progress.errors += errors;
            progress.uncompared_stripes += findings.uncompared_stripes;
            progress.mismatched_sectors += findings.mismatched;
            progress.note(now, self.volume.geometry.chunk_bytes().into());
            let percent = progress.percent() / PERCENT_STEP;
            if percent > before && progress.done < progress.total {
                self.controller
                    .events
                    .add(EventKind::RebuildProgress { action: walk.action, percent: percent * PERCENT_STEP });
            }
            if first && walk.action.is_scrub() && progress.mismatched_sectors == findings.mismatched {
                self.controller.events.add(EventKind::MismatchFound { action: walk.action });
            }
        }
        walk.findings.borrow_mut().add(findings);
    }

    /// Waits until the next stripe may begin. False if the walk is over.
    async fn may_go_on(&self, walk: &Walk) -> bool {
        let maintenance_state = self;
        let _asking = maintenance_state.asking.take().await;
        let chunk = self.volume.geometry.chunk_bytes();
        loop {
            if walk.is_over() {
                return false;
            }
            if self.shall_end(walk) {
                walk.aborted.set(true);
                return false;
            }
            if shard::now() >= walk.due_ns && walk.undone.borrow().is_empty() {
                walk.end.set(walk.next.get());
                return false;
            }
            if maintenance_state.frozen.get() {
                self.controller
                    .work
                    .wait_until(|| !maintenance_state.frozen.get() || self.shall_end(walk))
                    .await;
                continue;
            }
            let wait =
                maintenance_state.pace.borrow_mut().ask(shard::now(), self.user_requests(), chunk.into());
            let Some(wait) = wait else { return true };
            let limits = maintenance_state.pace.borrow().changes();
            let other = || maintenance_state.pace.borrow().changes() != limits || self.shall_end(walk);
            shard::timeout(wait.min(LOOK_NS), maintenance_state.paced.wait_until(other)).await;
        }
    }

    /// Notes how far a rebuild or resync has come, for the superblocks of a clean stop. They are written
    /// after a flush that begins behind this (C4). What is under way meanwhile is done again.
    pub(crate) fn keep_place(&self) {
        let walk = self.walk.borrow();
        let Some(walk) = walk.as_ref().filter(|walk| walk.errors.get() == 0) else { return };
        if self.flushing.get() {
            return;
        }
        let offset = walk.place() * u64::from(self.volume.geometry.chunk_bytes());
        let snapshot = self.controller.shared().snapshot();
        match (walk.action, walk.target) {
            (SyncAction::Rebuild, Some((_, member))) => {
                let mut superblocks = self.controller.superblocks.borrow_mut();
                let membership = &mut superblocks.membership;
                let recorded = membership.device(member).superblock.member.recovery_offset;
                if recorded.is_some_and(|sector| sector.0 * SECTOR_BYTES < offset) {
                    membership.checkpoint(member, offset);
                }
            }
            // Another intent table knows nothing of this walk's regions.
            (SyncAction::Resync, _) if snapshot.membership == walk.membership && !self.with_errors.get() => {
                resync::note_resynced(&snapshot.intent, offset);
            }
            _ => {}
        }
    }

    /// Flushes every member after a walk. A member that can't is dropped: what it has lost, no later flush
    /// brings back (C5).
    async fn flush_walked(&self) -> bool {
        let view = self.volume.members.view();
        self.flushing.set(true);
        let is_flushed = if active(Mutant::WalkForgetsFailedFlush) {
            self.volume.flush_members(&view).await.is_empty()
        } else {
            self.volume.flush_or_report(&view).await.is_empty()
        };
        self.flushing.set(false);
        is_flushed
    }

    /// Whether a walk has to end although it isn't through.
    fn shall_end(&self, walk: &Walk) -> bool {
        self.controller.stopped.get()
            || self.controller.shared().has_failed()
            || self.controller.shared().snapshot().membership != walk.membership
            || walk.scrub.as_ref().is_some_and(|scrub| scrub.is_cancelled())
    }

    /// How many requests users made since the assembly.
    fn user_requests(&self) -> u64 {
        let counters = self.controller.shared().counters.iter();
        counters.map(|shard| shard.reads.value() + shard.writes.value()).sum()
    }
}

impl ParityVolume {
    /// Does one stripe of a walk, under its claim.
    async fn sync_stripe(
        &self,
        walk: &Walk,
        stripe: StripeId,
        row: &mut RowRange,
    ) -> Result<Findings, IoError> {
        let _claim = if active(Mutant::SyncWithoutClaim) && walk.action != SyncAction::Check {
            None
        } else {
            Some(self.claim_alone(stripe).await)
        };
        if walk.scrub.is_some() && walk.correction != Correction::Nothing {
            // What is written anew would else be newer in the journal.
            self.write_out_claimed(stripe).await?;
        }
        self.sync_chunk(walk, stripe, row).await
    }

    /// What the walk's membership has now: what was listed before, of this stripe or another one, has changed
    /// it.
    fn view_along(&self, walk: &Walk) -> Result<Rc<View>, IoError> {
        let view = self.members.view();
        if view.snapshot.membership == walk.membership { Ok(view) } else { Err(IoError::Stopping) }
    }

    /// Does a stripe whole or, where several members can't read sectors of it, row by row. It goes apart
    /// where blocks are listed as bad: parity that can't be read there is to be compared elsewhere, and what
    /// is made of it there isn't to be elsewhere.
    async fn sync_chunk(
        &self,
        walk: &Walk,
        stripe: StripeId,
        row: &mut RowRange,
    ) -> Result<Findings, IoError> {
        let geometry = &self.geometry;
        let (base, chunk, block) =
            (geometry.member_offset(stripe), geometry.chunk_bytes(), geometry.logical_block());
        let view = self.view_along(walk)?;
        if view.uniform(base, (0, chunk), block) == chunk {
            let whole = self.sync_rows(&view, walk, stripe, (0, chunk), row).await;
            let Err(IoError::Unreadable { .. }) = whole else { return whole };
        }
        // Sectors that several members can't read are lost only where they are in one row; the other rows are
        // done. Of a row that can't be rebuilt each block may be read, or be made of other members.
        let (mut findings, mut result) = (Findings::default(), Ok(()));
        let (mut from, mut in_blocks_to) = (0, 0);
        while from < chunk {
            let view = self.view_along(walk)?;
            let in_blocks = from < in_blocks_to;
            let end = if in_blocks { from + block } else { (from / PAGE_BYTES + 1) * PAGE_BYTES };
            let to = view.uniform(base, (from, end), block);
            match self.sync_rows(&view, walk, stripe, (from, to), row).await {
                Ok(more) => findings.add(more),
                Err(IoError::Unreadable { .. }) if walk.target.is_some() && to - from > block => {
                    in_blocks_to = to;
                    continue;
                }
                Err(error @ IoError::Unreadable { .. }) => {
                    if !(walk.gives_up && self.give_up_rows(walk, stripe, (from, to), row).await?) {
                        // What one membership can't read, the next may be able to (C1).
                        if !self.is_latest(&view) {
                            continue;
                        }
                        if walk.target.is_some() {
                            // The sectors beside it, for which a drive may take seconds, are of no use.
                            return Err(error);
                        }
                        result = Err(error);
                    }
                }
                Err(error) => return Err(error),
            }
            from = to;
        }
        findings.uncompared_stripes = findings.uncompared_stripes.min(1);
        result.map(|()| findings)
    }

    async fn sync_rows(
        &self,
        view: &View,
        walk: &Walk,
        stripe: StripeId,
        rows: (u32, u32),
        row: &mut RowRange,
    ) -> Result<Findings, IoError> {
        let (intent, offset) = (&view.snapshot.intent, self.geometry.member_offset(stripe));
        let mut regions = intent.regions(offset + u64::from(rows.0), (rows.1 - rows.0).into());
        if walk.keeps_torn && regions.all(|region| intent.is_torn(region..=region)) {
            return Ok(Findings::default());
        }
        match walk.target {
            Some((slot, _)) => {
                self.rebuild_rows(view, stripe, rows, slot, row).await.map(|()| Findings::default())
            }
            None => self.compare_rows(view, stripe, rows, walk.correction, row).await,
        }
    }
}

/// How many stripes are under way at a time, where so many are wanted. What they take is beside what clients'
/// requests may.
fn stripes_at_a_time(wanted: usize, stripe_bytes: usize) -> usize {
    wanted.min(MEMORY_BYTES / stripe_bytes).max(1)
}

#[cfg(test)]
mod tests {
    use super::stripes_at_a_time;

    #[test]
    fn large_stripes_are_fewer_at_a_time() {
        assert_eq!(stripes_at_a_time(8, 6 * (512 << 10)), 8);
        assert_eq!(stripes_at_a_time(8, 10 << 20), 3);
        assert_eq!(stripes_at_a_time(8, 64 << 20), 1);
        assert_eq!(stripes_at_a_time(0, 4096), 1);
    }
}
