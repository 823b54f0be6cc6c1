//! What closes the write hole, where the user asked for it: the logs that go before a stripe write.
//!
//! A crash in the middle of a stripe write leaves data and parity of different ages. A later resync makes
//! parity match again, but if a member is lost first, its chunks are made of that mixture: sectors that were
//! not written change. A log holds, before anything of the row changes, what recovery needs to make parity
//! match what is on the members.
//!
//! The log is a part of the membership snapshot, like the intent table: a policy is changed on a live array
//! by publishing another snapshot, and no write waits for a lock. What a log is asked, in the order of a
//! session:
//!
//! 1. [`replay`], once, after assembly has decided which members are current and before anything else is read
//!    or written. What it has made good is not dirty any more, and dirty and degraded is no reason to refuse.
//! 2. [`Log::open`], before the superblocks say *dirty* for the first time: the log holds nothing from
//!    before.
//! 3. [`Log::write_ahead`], in every stripe write, when parity is known and before any member changes. It
//!    answers with a guard that is dropped when every member has answered: from then on the log may forget
//!    the write. A log that may forget only durable writes has all writes of the batch forced to the medium
//!    ([`Log::forces_writes`], C4).
//! 4. [`Log::close`], after a stop has flushed every member and before the superblocks say *clean*.
//!
//! A member that joins gets an empty log before its superblock names it ([`Log::prepare`]).

mod area;
mod change;
mod double_parity_log;
mod double_parity_replay;
mod members;
mod ppl;
mod ppl_replay;
mod queue;

pub(crate) mod journal;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use pinstripe_md::{
    double_parity_log::{ANCHOR_BYTES, Identity},
    ppl::ENTRIES_MAX,
    superblock::{ResyncOffset, Role, Superblock, Support},
    units::Sector,
};
use pinstripe_runtime::{Device, DeviceError, Signal, Slice};

use self::journal::Journal;
use crate::{
    array::ArrayController,
    assembly::{AssembleError, Assembled, read_bytes},
    error::{IoError, MemberError, Operation},
    geometry::{MemberSlot, StripeId},
    io::volume::ShardVolume,
    members::{LogArea, MemberId},
    membership::{
        snapshot::{Change, View},
        superblocks::DeviceHandle,
    },
    mutants::{Mutant, active},
    options::ArrayOptions,
    plan::Plan,
    shared::Failure,
    stripe::{
        image::{Extent, Image},
        parity_cache::PAGE_BYTES,
    },
};
pub(crate) use change::LogChange;
pub use change::Policy;
pub use double_parity_log::DoubleParityLog;
use members::Members;
pub use ppl::Ppl;

/// The log of an array, if it has one. Cheap to clone; lives in the membership snapshot.
#[derive(Clone, Default)]
pub enum Log {
    /// None: bitmap or resync.
    #[default]
    None,
    /// MD's partial parity log.
    Ppl(Arc<Ppl>),
    /// A journal device; see [`journal`].
    Journal(Arc<Journal>),
    /// The double-parity log of RAID6.
    DoubleParity(Arc<DoubleParityLog>),
}

/// What came of a log from before the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OldLog {
    /// There is none, or it says nothing.
    Silent,
    /// It was replayed: parity matches, and the superblocks are to say so.
    Replayed,
    /// It says something, and that doesn't make the array good.
    InUse,
}

/// Keeps writers from logging before the log has begun on every member.
#[derive(Default)]
struct LogGate {
    is_open: AtomicBool,
    opened: Signal,
}

impl LogGate {
    fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    fn open(&self) {
        self.is_open.store(true, Ordering::SeqCst);
        self.opened.notify();
    }

    /// Waits until it is open. False if `moved` says first that the membership is another, or the array has
    /// failed: the change may have to come before the gate opens.
    async fn pass(&self, moved: impl Fn() -> bool) -> bool {
        self.opened.wait_until(|| self.is_open() || moved()).await;
        self.is_open()
    }

    fn wake(&self) {
        self.opened.notify();
    }
}

/// What a log is shown of a stripe write: all that is known before the first member changes.
pub(crate) struct Batch<'a> {
    pub(crate) volume: &'a ShardVolume,
    pub(crate) view: &'a View,
    pub(crate) stripe: StripeId,
    /// What is written. Final.
    pub(crate) image: &'a Image,
    /// Its runs: in each the same columns are written.
    pub(crate) plan: &'a Plan,
    /// New P and Q by run of the plan, as far as they will be written.
    pub(crate) parity: &'a [[Option<Slice>; 2]],
    /// It has been acknowledged from a journal, and is written out now.
    pub(crate) written_out: bool,
}

/// The log knows the batch, durably. Dropped when every member has answered.
#[must_use = "the log forgets the batch when this is dropped"]
pub(crate) enum Logged {
    /// There is no log, or it has nothing to say about this batch.
    Nothing,
    /// It is in the partial parity log.
    #[expect(dead_code, reason = "it is kept to be dropped")]
    Ppl(ppl::LogGuard),
    /// It is in the journal.
    #[expect(dead_code, reason = "it is kept to be dropped")]
    Journal(journal::LogGuard),
    /// It is in the double-parity log.
    #[expect(dead_code, reason = "it is kept to be dropped")]
    DoubleParity(double_parity_log::LogGuard),
}

/// Why a batch could not be logged. No member has changed.
pub(crate) enum LogError {
    /// This member failed, and is reported: plan anew when it is out.
    Member(MemberId),
    /// The membership changed meanwhile: plan anew.
    Moved,
    /// It can't be written at all.
    Fatal(IoError),
}

impl Log {
    /// Whether there is none: then nothing of this module is in the way of a write.
    pub(crate) fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// MD's word for the policy, or ours where MD has none. `None` if that is for the bitmap to say.
    pub(crate) fn policy(&self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Ppl(_) => Some("ppl"),
            Self::DoubleParity(_) => Some("double-parity-log"),
            Self::Journal(_) => Some("journal"),
        }
    }

    /// Whether superblocks need not say *dirty* while writes are under way, because no crash leaves a row
    /// that replay doesn't put right. A journal that failed doesn't do that any more (C18).
    pub(crate) fn keeps_clean(&self) -> bool {
        match self {
            Self::None | Self::Ppl(_) | Self::DoubleParity(_) => false,
            Self::Journal(journal) => journal.failure().is_none(),
        }
    }

    /// Whether the log is lost: then the superblocks say dirty until a resync.
    pub(crate) fn is_lost(&self) -> bool {
        match self {
            Self::None | Self::Ppl(_) | Self::DoubleParity(_) => false,
            Self::Journal(journal) => journal.failure().is_some(),
        }
    }

    /// Whether a batch must be made of whole pages of 4 KiB, and every stripe written through the log.
    pub(crate) fn takes_whole_pages(&self) -> bool {
        matches!(self, Self::Journal(_))
    }

    /// The membership has changed or the array has failed: every task that waits for the log looks again.
    pub(crate) fn wake(&self) {
        match self {
            Self::None => {}
            Self::Ppl(log) => log.wake(),
            Self::DoubleParity(log) => log.wake(),
            Self::Journal(journal) => journal.wake(),
        }
    }

    /// Whether the batch's writes to members must be durable when they complete.
    pub(crate) fn forces_writes(&self) -> bool {
        match self {
            Self::None | Self::Journal(_) => false,
            Self::Ppl(_) | Self::DoubleParity(_) => !active(Mutant::LogWithoutForcing),
        }
    }

    /// Whether a batch must be whole rows of [`PAGE_BYTES`] with the same consecutive columns in each.
    pub(crate) fn takes_rows(&self) -> bool {
        matches!(self, Self::Ppl(_))
    }

    /// Whether what a batch of so many parts has to say fits the log, wherever in the stripe they lie. Else
    /// it is to be cut.
    pub(crate) fn has_room_for(
        &self,
        volume: &ShardVolume,
        view: &View,
        stripe: StripeId,
        parts: usize,
    ) -> bool {
        match self {
            // What a partial parity log can take, rows tell; a journal takes any stripe.
            Self::None | Self::Ppl(_) | Self::Journal(_) => true,
            Self::DoubleParity(log) => log.has_room_for(volume, view, stripe, parts),
        }
    }

    /// Makes the batch known to the log, durably.
    pub(crate) async fn write_ahead(&self, batch: &Batch<'_>) -> Result<Logged, LogError> {
        match self {
            Self::None => Ok(Logged::Nothing),
            Self::Journal(journal) => {
                // Where the only parity is out, the row is logged without: back again, it would be of older
                // data.
                recorded(batch.volume, batch.view).await?;
                journal.write_ahead(batch).await.map(Logged::Journal)
            }
            Self::Ppl(log) => {
                recorded(batch.volume, batch.view).await?;
                log.write_ahead(batch).await
            }
            Self::DoubleParity(log) => {
                recorded(batch.volume, batch.view).await?;
                log.write_ahead(batch).await
            }
        }
    }

    /// Makes known that parity of these rows of a stripe (from and to, in bytes within the chunk) is made
    /// from all of their data, otherwise than by a batch. What is written must be flushed before the answer
    /// is dropped.
    pub(crate) async fn write_rows(
        &self,
        volume: &ShardVolume,
        view: &View,
        stripe: StripeId,
        rows: &[(u32, u32)],
    ) -> Result<Logged, LogError> {
        match self {
            // No stripe is written so past a journal: see `takes_whole_pages`.
            Self::None | Self::Journal(_) => Ok(Logged::Nothing),
            Self::Ppl(log) => {
                recorded(volume, view).await?;
                // That it is made once more for others does no harm.
                log.write_whole(volume, view, stripe).await
            }
            Self::DoubleParity(log) => {
                recorded(volume, view).await?;
                log.write_rows(volume, view, stripe, rows).await
            }
        }
    }

    /// The same for all rows of a stripe.
    pub(crate) async fn write_whole(
        &self,
        volume: &ShardVolume,
        view: &View,
        stripe: StripeId,
    ) -> Result<Logged, LogError> {
        self.write_rows(volume, view, stripe, &[(0, volume.parity_geometry().chunk_bytes())]).await
    }

    /// Begins the log on every member, unless that was done. No write is logged before. Returns the failures.
    pub(crate) async fn open(&self, controller: &ArrayController) -> Vec<Failure> {
        match self {
            Self::Ppl(log) if !log.gate().is_open() => {
                let work = async |device: &dyn Device, area, slot| log.begin(device, area, slot, true).await;
                let failures = on_every_member(controller, work).await;
                log.gate().open();
                failures
            }
            Self::DoubleParity(log) if !log.gate().is_open() => {
                let events = controller.superblocks.borrow().membership.array.events;
                let newest = newest_incarnation(controller).await;
                let newest = if active(Mutant::IncarnationFromEvents) { 0 } else { newest };
                log.set_incarnation(newest.max(events) + 1);
                let work = async |device: &dyn Device, area, _| log.begin(device, area).await;
                let failures = on_every_member(controller, work).await;
                log.gate().open();
                failures
            }
            // A journal is emptied by its replay.
            Self::None | Self::Ppl(_) | Self::DoubleParity(_) | Self::Journal(_) => Vec::new(),
        }
    }

    /// Ends the log at a stop, so that the next start replays nothing. No write is under way, and every
    /// member was flushed (C4). Returns the failures.
    pub(crate) async fn close(&self, controller: &ArrayController) -> Vec<Failure> {
        match self {
            // With clean superblocks a double-parity log is not replayed, whatever it holds.
            Self::None | Self::DoubleParity(_) => Vec::new(),
            Self::Ppl(log) => {
                on_every_member(controller, async |device, area, _| log.empty(device, area).await).await
            }
            Self::Journal(journal) => {
                controller.close_journal(journal).await;
                Vec::new()
            }
        }
    }

    /// Whether superblocks that say *dirty* must keep MD from assembling the array, and say that the log
    /// makes it good. Not before it has begun.
    pub(crate) fn keeps_md_out(&self) -> bool {
        matches!(self, Self::DoubleParity(log) if log.gate().is_open())
    }

    /// Readies the log of a device that joins. Its superblock isn't on it yet.
    pub(crate) async fn prepare(
        &self,
        superblock: &Superblock,
        device: &dyn Device,
    ) -> Result<(), DeviceError> {
        let Some(area) = LogArea::of(superblock) else { return Ok(()) };
        match self {
            // It waits for the initial sync.
            Self::None | Self::Journal(_) => make_empty(superblock, device).await,
            // If all other members go, this one alone must say that the log is in use.
            Self::Ppl(log) => log.begin(device, area, slot_of(superblock), log.gate().is_open()).await,
            Self::DoubleParity(log) => {
                ppl::zero(device, area).await?;
                log.begin(device, area).await
            }
        }
    }
}

fn slot_of(superblock: &Superblock) -> MemberSlot {
    match superblock.own_role() {
        Role::Slot(slot) => MemberSlot::at(slot.0.into()),
        _ => MemberSlot(0),
    }
}

/// The highest incarnation of a double-parity log that any member has: the next must be another, or records
/// from before would be taken for its own. The superblocks' events alone don't tell, where a crash came
/// before they were written.
async fn newest_incarnation(controller: &ArrayController) -> u64 {
    let set_uuid = controller.superblocks.borrow().membership.array.set_uuid;
    let newest = std::cell::Cell::new(0);
    let look = async |device: &dyn Device, area: LogArea, _| {
        let anchor = read_bytes(device, area.offset, ANCHOR_BYTES as u64).await.ok();
        let found = anchor.and_then(|anchor| Identity::of_anchor(&anchor, set_uuid));
        newest.set(newest.get().max(found.map_or(0, |identity| identity.incarnation)));
        // A member that can't be read is no failure here: the write that begins its log decides.
        Ok(())
    };
    on_every_member(controller, look).await;
    newest.get()
}

/// Makes the log of a new member one that was never used.
pub(crate) async fn make_empty(superblock: &Superblock, device: &dyn Device) -> Result<(), DeviceError> {
    let Some(area) = LogArea::of(superblock) else { return Ok(()) };
    let set_uuid = superblock.array.set_uuid;
    if superblock.member.ppl.is_some() {
        Ppl::new(set_uuid, 0).begin(device, area, MemberSlot(0), false).await
    } else {
        ppl::zero(device, area).await?;
        DoubleParityLog::new(set_uuid, 512).begin(device, area).await
    }
}

impl ShardVolume {
    /// Makes known that parity of these rows of a stripe is made from its data. Kept until that is done.
    pub(crate) async fn log_rows(
        &self,
        view: &View,
        stripe: StripeId,
        rows: &[(u32, u32)],
    ) -> Result<Logged, IoError> {
        match Box::pin(view.snapshot.log.write_rows(self, view, stripe, rows)).await {
            Ok(logged) => Ok(logged),
            Err(LogError::Fatal(error)) => Err(error),
            // It is reported: the walk begins anew without it.
            Err(LogError::Member(_) | LogError::Moved) => Err(IoError::Stopping),
        }
    }
}

/// What is written without a member is not in that member's log, and a log on the others says nothing of its
/// parity. So nothing is, before the superblocks know that it is out: a crash that leaves them calling it
/// current would find rows that don't match, and a log that says that all do.
async fn recorded(volume: &ShardVolume, view: &View) -> Result<(), LogError> {
    let recorded = active(Mutant::LogBeforeRecord) || volume.shared.recorded(view.snapshot.generation).await;
    if recorded { Ok(()) } else { Err(LogError::Moved) }
}

/// Does something to the log on every member with a slot. Returns the failures.
async fn on_every_member(
    controller: &ArrayController,
    work: impl AsyncFn(&dyn Device, LogArea, MemberSlot) -> Result<(), DeviceError>,
) -> Vec<Failure> {
    let members: Vec<_> = {
        let superblocks = controller.superblocks.borrow();
        let seated = superblocks.seated();
        seated.map(|(_, record)| (record.slot, record.handle.clone())).collect()
    };
    let mut failures = Vec::new();
    for (slot, DeviceHandle { member, device, .. }) in members {
        let Some(area) = member.log_area() else { continue };
        let low = MemberSlot::at(slot);
        if let Err(error) = work(&*device, area, low).await {
            let (name, offset, operation) = (member.name.clone(), area.offset, Operation::Metadata);
            failures.push(Failure {
                member: member.id,
                error: MemberError { slot, name, operation, offset, error },
            });
        }
    }
    failures
}

/// Whether a log may make a dirty array safe to start with members missing (C19): [`replay`] then decides.
pub(crate) fn is_logged(freshest: &Superblock) -> bool {
    freshest.member.ppl.is_some() || freshest.array.needs_double_parity_log
}

/// A partial parity log counts where every member names it. A crash in the middle of its coming or going
/// leaves some that do and some that don't; it says nothing then, and none of them keeps its place: else it
/// would be in the way of a bitmap.
fn give_up_torn_log(assembled: &mut Assembled) {
    let seated = &mut assembled.seated;
    let members = || seated.seats.iter().flatten().chain(seated.targets.iter().map(|(_, target)| target));
    if members().all(|found| found.superblock.member.ppl.is_some()) {
        return;
    }
    assembled.freshest.member.ppl = None;
    let targets = seated.targets.iter_mut().map(|(_, target)| target);
    for found in seated.seats.iter_mut().flatten().chain(targets).chain(&mut seated.spares) {
        found.superblock.member.ppl = None;
    }
}

/// Replays the log that assembly found, and leaves it for the array to use in `assembled.log`.
pub(crate) async fn replay(assembled: &mut Assembled, options: &ArrayOptions) -> Result<(), AssembleError> {
    let was_logged = is_logged(&assembled.freshest);
    if !active(Mutant::TornLogBelieved) {
        give_up_torn_log(assembled);
    }
    let Some(members) = Members::of(assembled) else { return Ok(()) };
    let freshest = &assembled.freshest;
    let dirty = freshest.array.is_dirty();
    let writable = !options.read_only && freshest.support() == Support::Full;
    let missing = (0..assembled.geometry.members()).filter(|&slot| !assembled.is_whole(slot)).count();
    let (mut covers, mut is_in_use, mut unreadable) = (false, false, None);
    if dirty && writable && is_logged(freshest) {
        if freshest.member.ppl.is_some() {
            let replayed = ppl_replay::replay(&members).await?;
            // Of rows that a resync has not come to the log says nothing, where it was a stop that cut that
            // short. (MD's rule, too.)
            covers = replayed.covers && freshest.array.resync_offset == ResyncOffset::DirtyFrom(Sector(0));
            (is_in_use, unreadable) = (replayed.in_use, replayed.unreadable);
        } else {
            unreadable = double_parity_replay::replay(&members).await?;
            covers = unreadable.is_none();
        }
        members.flush().await?;
    }
    let log = if freshest.member.ppl.is_some() {
        Log::Ppl(Arc::new(Ppl::new(freshest.array.set_uuid, 1)))
    } else if double_parity_replay::is_carried(&members, freshest.array.needs_double_parity_log).await? {
        let block = assembled.geometry.logical_block();
        let log = DoubleParityLog::new(freshest.array.set_uuid, block.into());
        Log::DoubleParity(Arc::new(log))
    } else {
        Log::None
    };
    if covers {
        (assembled.dirty_from, assembled.forced) = (None, false);
    } else if was_logged && dirty && missing > 0 && !options.force {
        return Err(match unreadable {
            Some(name) => {
                let bears = missing < assembled.geometry.redundancy();
                AssembleError::LogUnreadable { name, missing, bears }
            }
            None => AssembleError::DirtyDegraded { missing },
        });
    }
    if matches!(log, Log::None) {
        // What only looked like a log's place is none.
        for found in assembled.seated.seats.iter_mut().flatten() {
            found.superblock.member.double_parity_log = None;
        }
    }
    assembled.log = log;
    assembled.old_log = match (covers, is_in_use) {
        (true, _) => OldLog::Replayed,
        (false, true) => OldLog::InUse,
        (false, false) => OldLog::Silent,
    };
    Ok(())
}

impl ArrayController {
    /// Whether the array's log isn't in use yet.
    pub(crate) fn awaits_log(&self) -> bool {
        !self.wanted_log.borrow().is_none() && self.shared().snapshot().log.is_none()
    }

    /// Takes up the array's log once parity matches everywhere: before, a log that says so would be believed
    /// (C17).
    ///
    /// From then on a crash finds a log that says that parity matches but for what it has. So what was
    /// written before it is flushed, and every member that missed any of it is out, on disk too, before the
    /// log begins (C4).
    pub(crate) async fn adopt_log(&self) -> Vec<Failure> {
        let shared = self.shared();
        let old = shared.snapshot();
        let log = self.wanted_log.borrow().clone();
        let in_sync = old.intent.resync_count() == 0;
        if log.is_none() || !old.log.is_none() || !in_sync {
            return Vec::new();
        }
        // Writers under this snapshot wait for the log to open. It opens when no other writers are left.
        self.publish(Change::Log(log.clone())).await;
        while !active(Mutant::LogBeginsUnflushed) && !shared.has_failed() {
            if shared.has_failures() {
                self.drop_failed().await;
            } else if !shared.bad_reports.is_empty() {
                self.keep_bad_blocks().await;
            } else {
                let view = self.volume.inner.view();
                if self.volume.inner.flush_or_report(&view).await.is_empty() {
                    break;
                }
            }
        }
        // Past redundancy nothing is written any more: no log begins.
        if shared.has_failed() { Vec::new() } else { log.open(self).await }
    }
}

/// What keeps an image from being one entry for each of its runs.
pub(crate) fn takes_several_entries(extents: &[Extent]) -> bool {
    let row = |at: u32| at / PAGE_BYTES * PAGE_BYTES;
    let rounded = |extent: &Extent| (row(extent.start), row(extent.end() - 1) + PAGE_BYTES);
    let meet = |a: (u32, u32), b: (u32, u32)| a.0.max(b.0) < a.1.min(b.1);
    let ragged_rows = |extent: &Extent| {
        let (start, end) = rounded(extent);
        [
            (extent.start != start).then_some((start, start + PAGE_BYTES)),
            (extent.end() != end).then_some((end - PAGE_BYTES, end)),
        ]
    };
    let collide = |a: &Extent, b: &Extent| {
        let (rows_a, rows_b) = (rounded(a), rounded(b));
        if a.column == b.column || !meet(rows_a, rows_b) {
            return false;
        }
        // Between two columns of a row all others must be written too.
        let (start, end) = (rows_a.0.max(rows_b.0), rows_a.1.min(rows_b.1));
        let apart = a.column + 1 < b.column
            && (a.column + 1..b.column)
                .any(|c| !extents.iter().any(|e| e.column == c && e.start <= start && end <= e.end()));
        apart || ragged_rows(a).into_iter().flatten().any(|rows| meet(rows, rows_b))
    };
    extents.len() > ENTRIES_MAX / 2 || extents.iter().any(|a| extents.iter().any(|b| collide(a, b)))
}

/// Rows that are written in part: column, and first byte of the row within the chunk. In order, without
/// repetition.
pub(crate) fn ragged_rows(extents: &[Extent]) -> impl Iterator<Item = (usize, u32)> {
    let mut last = None;
    extents
        .iter()
        .flat_map(|extent| {
            let (first, final_row) = (extent.start / PAGE_BYTES, (extent.end() - 1) / PAGE_BYTES);
            let head = (!extent.start.is_multiple_of(PAGE_BYTES)).then_some(first);
            let tail = (!extent.end().is_multiple_of(PAGE_BYTES)).then_some(final_row);
            [head, tail.filter(|row| head != Some(*row))]
                .map(|row| row.map(|row| (extent.column, row * PAGE_BYTES)))
        })
        .flatten()
        .filter(move |row| last.replace(*row) != Some(*row))
}
