//! Reclaim: the log's beginning is given up when what it describes is on the members, durably.
//!
//! In this order, and in no other (C4): look from where on the log is needed; wait until the superblocks know
//! of every member that has failed a write (C2); flush every member; move the tail, in the journal device's
//! superblock, to where the look has found it. What was written after the look is kept until the next time.

use std::{rc::Rc, sync::Arc};

use pinstripe_runtime::{Device, DeviceError, DeviceErrorKind, shard};

use crate::{
    consistency::journal::{Journal, write_superblock},
    controller::ArrayController,
    error::IoError,
    mutants::{Mutant, active},
    shared::Shared,
};

/// How long to wait before another look at members that have failed and are not out yet.
const RETRY_NS: u64 = 1_000_000;

impl ArrayController {
    /// Gives up the log's beginning whenever room is short.
    pub(crate) async fn reclaim_journal(self: Rc<Self>, journal: Arc<Journal>) {
        let over = || self.stopped.get() || self.shared().has_failed() || journal.failure().is_some();
        loop {
            journal.reclaim.wait_until(|| over() || journal.wants_reclaim()).await;
            if over() {
                return;
            }
            if self.reclaim_once(&journal).await.is_err() && !over() {
                shard::sleep(RETRY_NS).await;
            }
        }
    }

    /// One round; see the module. An error if it is to be done again, or the array has failed.
    pub(crate) async fn reclaim_once(&self, journal: &Arc<Journal>) -> Result<(), IoError> {
        let from = journal.needed_from();
        let shared = self.shared();
        if shared.has_failures() {
            return Err(IoError::Failed);
        }
        let view = self.volume.base().members.view();
        shared.durable(view.snapshot.generation).await?;
        let unflushed = active(Mutant::TailBeforeFlush);
        if !unflushed && !self.volume.base().flush_or_report(&view).await.is_empty() {
            return Err(IoError::Failed);
        }
        self.move_tail(journal, from).await
    }

    /// Records that the log begins at `from`.
    pub(crate) async fn move_tail(&self, journal: &Arc<Journal>, from: u64) -> Result<(), IoError> {
        let place = journal.sector_of(from);
        let written = {
            let _superblocks = self.pages.take().await;
            let ready = {
                let mut superblocks = self.superblocks.borrow_mut();
                superblocks.journal.as_mut().map(|journal| {
                    journal.superblock.member.journal_tail = Some(place);
                    journal.written.member.journal_tail = Some(place);
                    (Rc::clone(&journal.device), journal.written.clone())
                })
            };
            match ready {
                Some((device, superblock)) => write_superblock(&*device, &superblock).await,
                None => Err(DeviceError::of(DeviceErrorKind::Gone)),
            }
        };
        if let Err(error) = written {
            self.drop_journal(journal, error);
            return Err(IoError::JournalLost);
        }
        journal.tail_moved(from);
        Ok(())
    }

    /// The journal device of this shard.
    pub(crate) fn journal_device(&self) -> Result<Rc<dyn Device>, DeviceError> {
        let superblocks = self.superblocks.borrow();
        let gone = DeviceError::of(DeviceErrorKind::Gone);
        let journal = superblocks.journal.as_ref();
        journal.map(|journal| Rc::clone(&journal.device) as Rc<dyn Device>).ok_or(gone)
    }

    /// The journal device failed (C18). The controller records it, but of one that another host has fenced:
    /// that host has the array, and the device is well (C28).
    pub(crate) fn drop_journal(&self, journal: &Journal, error: DeviceError) {
        if error.kind == DeviceErrorKind::Fenced {
            self.fail_array(&[journal.lost(error)], Shared::fence);
        }
        journal.fail(error);
        self.shared().controller_wake.notify();
    }
}
