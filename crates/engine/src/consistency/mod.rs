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
//! 1. [`replay`](crate::replay), once, after assembly has decided which members are current and before
//!    anything else is read or written. What it has made good is not dirty any more, and dirty and degraded
//!    is no reason to refuse.
//! 2. The [controller](crate::controller)'s `open_log`, before the superblocks say *dirty* for the first
//!    time: the log holds nothing from before.
//! 3. [`Log::write_ahead`], in every stripe write, when parity is known and before any member changes. It
//!    answers with a guard that is dropped when every member has answered: from then on the log may forget
//!    the write. A log that may forget only durable writes has all writes of the batch forced to the medium
//!    ([`Log::forces_writes`], C4).
//! 4. At a stop that has flushed every member: the controller's `close_journal` before the superblocks say
//!    *clean*, for they tell if it is lost, and its `empty_log` after.
//!
//! What it sees of the array meanwhile is a [`LogView`]; how the kinds differ is in their [`Traits`].
//!
//! A member that joins gets an empty log before its superblock names it ([`Log::prepare`]).

pub(crate) mod double_parity_log;
pub(crate) mod journal;
pub(crate) mod ppl;
mod queue;
mod traits;
mod view;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use pinstripe_md::{
    ppl::ENTRIES_MAX,
    superblock::{Role, Superblock},
};
use pinstripe_runtime::{Device, DeviceError, Signal};

use self::journal::Journal;
use crate::{
    geometry::{MemberSlot, StripeId},
    members::LogArea,
    mutants::{Mutant, active},
    stripe::{image::Extent, parity_cache::PAGE_BYTES},
};
pub use double_parity_log::DoubleParityLog;
pub use ppl::Ppl;
pub(crate) use traits::{Batches, Traits};
pub(crate) use view::{Batch, LogDevice, LogError, LogView, Precedence};

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

/// Keeps writers from logging before the log has begun on every member.
#[derive(Default)]
pub(crate) struct LogGate {
    is_open: AtomicBool,
    opened: Signal,
}

impl LogGate {
    pub(crate) fn is_open(&self) -> bool {
        self.is_open.load(Ordering::SeqCst)
    }

    pub(crate) fn open(&self) {
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

impl Log {
    /// Whether there is none: then nothing of this module is in the way of a write.
    pub(crate) fn is_none(&self) -> bool {
        matches!(self, Self::None)
    }

    /// What kind of log it is.
    pub(crate) fn traits(&self) -> &'static Traits {
        match self {
            Self::None => &Traits::NONE,
            Self::Ppl(_) => &Traits::PPL,
            Self::Journal(_) => &Traits::JOURNAL,
            Self::DoubleParity(_) => &Traits::DOUBLE_PARITY,
        }
    }

    /// Whether superblocks need not say *dirty* while writes are under way. A log that is lost doesn't keep
    /// them clean any more (C18).
    pub(crate) fn keeps_clean(&self) -> bool {
        self.traits().keeps_clean && !self.is_lost()
    }

    /// Whether the log is lost: then the superblocks say dirty until a resync.
    pub(crate) fn is_lost(&self) -> bool {
        match self {
            Self::None | Self::Ppl(_) | Self::DoubleParity(_) => false,
            Self::Journal(journal) => journal.failure().is_some(),
        }
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
        self.traits().forces_writes && !active(Mutant::LogWithoutForcing)
    }

    /// Whether what a batch of so many parts has to say fits the log, wherever in the stripe they lie. Else
    /// it is to be cut.
    pub(crate) fn has_room_for(&self, view: &dyn LogView, stripe: StripeId, parts: usize) -> bool {
        match self {
            // What a partial parity log can take, rows tell; a journal takes any stripe.
            Self::None | Self::Ppl(_) | Self::Journal(_) => true,
            Self::DoubleParity(log) => log.has_room_for(view, stripe, parts),
        }
    }

    /// Makes the batch known to the log, durably.
    pub(crate) async fn write_ahead(&self, batch: &Batch<'_>) -> Result<Logged, LogError> {
        match self {
            Self::None => Ok(Logged::Nothing),
            Self::Journal(journal) => journal.write_ahead(batch).await.map(Logged::Journal),
            Self::Ppl(log) => log.write_ahead(batch).await,
            Self::DoubleParity(log) => log.write_ahead(batch).await,
        }
    }

    /// Makes known that parity of these rows of a stripe (from and to, in bytes within the chunk) is made
    /// from all of their data, otherwise than by a batch. What is written must be flushed before the answer
    /// is dropped.
    pub(crate) async fn write_rows(
        &self,
        view: &dyn LogView,
        stripe: StripeId,
        rows: &[(u32, u32)],
    ) -> Result<Logged, LogError> {
        match self {
            // No stripe is written so past a journal: see `Batches::WholePages`.
            Self::None | Self::Journal(_) => Ok(Logged::Nothing),
            // That it is made once more for others does no harm.
            Self::Ppl(log) => log.write_whole(view, stripe).await,
            Self::DoubleParity(log) => log.write_rows(view, stripe, rows).await,
        }
    }

    /// Whether superblocks that say *dirty* must keep MD from assembling the array, and say that the log
    /// makes it good. Not before it has begun.
    pub(crate) fn keeps_md_out(&self) -> bool {
        self.traits().keeps_md_out && self.has_begun()
    }

    /// Whether it counts already. Until then a replay doesn't look at it, and it begins empty.
    pub(crate) fn has_begun(&self) -> bool {
        match self {
            Self::None | Self::Journal(_) => true,
            Self::Ppl(log) => log.gate().is_open(),
            Self::DoubleParity(log) => log.gate().is_open(),
        }
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

/// Whether a log may make a dirty array safe to start with members missing (C19): replay then decides.
pub(crate) fn is_logged(freshest: &Superblock) -> bool {
    freshest.member.ppl.is_some() || freshest.array.needs_double_parity_log
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
