//! What the home shard does with the journal besides writing it: begin after a replay, keep its superblock, end, and lose it.

use std::{rc::Rc, sync::Arc};

use pinstripe_md::superblock::Role;
use pinstripe_runtime::{DeviceErrorKind, shard};

use super::{
    Journal, check_blocks,
    replay::{members_hold_everything, replay},
    write_superblock,
};
use crate::{
    array::Home,
    assembly::{AssembleError, Found, JournalProblem},
    consistency::Log,
    error::{MemberError, Operation},
    geometry::Geometry,
    records::JournalBook,
};

/// The log of an array with this journal, which is yet to be replayed.
pub(crate) fn log_of(journal: &Found, geometry: &Geometry) -> Result<Log, AssembleError> {
    if let Geometry::Parity(geometry) = geometry {
        let (chunk, members) = (u64::from(geometry.chunk_bytes()), geometry.members() as u64);
        check_blocks(chunk, members, &journal.superblock).map_err(|(blocks, needed)| {
            let name = journal.device.info().name.clone();
            AssembleError::Journal { name, problem: JournalProblem::TooSmall { needed, blocks } }
        })?;
    }
    Ok(Log::Journal(Arc::new(Journal::new(journal))))
}

impl Home {
    /// Replays the journal that assembly found, or, where nothing may be written, sees that there is nothing to replay. Then
    /// starts what works on it.
    pub(crate) async fn begin_journal(self: &Rc<Self>, mut found: Found) -> Result<(), AssembleError> {
        let Some(journal) = self.journal() else {
            return members_hold_everything(&self.volume, &mut found).await;
        };
        journal.resume(replay(&self.volume, &mut found).await?);
        let written = found.superblock.clone();
        self.records.borrow_mut().journal =
            Some(JournalBook { device: found.device, superblock: found.superblock, written });
        shard::spawn(Rc::clone(self).write_journal(Arc::clone(&journal)));
        shard::spawn(Rc::clone(self).reclaim_journal(journal));
        Ok(())
    }

    /// Writes the journal device's superblock as the books have it. The caller holds the lock of the superblocks.
    pub(crate) async fn write_journal_superblock(&self) {
        let ready = {
            let records = self.records.borrow();
            records.journal.as_ref().map(|book| (Rc::clone(&book.device), book.superblock.clone()))
        };
        let (Some(journal), Some((device, superblock))) = (self.journal(), ready) else { return };
        match write_superblock(&device, &superblock).await {
            Ok(()) => {
                if let Some(book) = &mut self.records.borrow_mut().journal {
                    book.written = superblock;
                }
            }
            Err(error) => self.lose_journal(&journal, error),
        }
    }

    /// The array stops, and every member was flushed: the log begins anew at its last meta block.
    pub(crate) async fn close_journal(&self, journal: &Arc<Journal>) {
        if journal.failure().is_none() {
            let last = journal.state().needed_from();
            // If that fails, the journal is lost, and the superblocks will say dirty.
            let _ = self.move_tail(journal, last).await;
        }
        journal.wake();
    }

    /// Whether the journal failed and the superblocks don't say so yet.
    pub(crate) fn has_lost_journal(&self) -> bool {
        self.journal().is_some_and(|journal| journal.is_loss_unrecorded())
    }

    /// The journal is lost (C18): the superblocks call its device faulty and the array dirty. Writes that are in the log
    /// already go on; no other is taken.
    pub(crate) async fn record_journal_loss(&self) {
        let Some(journal) = self.journal() else { return };
        journal.set_loss_recorded();
        let error = journal.failure().unwrap_or(pinstripe_runtime::DeviceError::of(DeviceErrorKind::Other));
        self.note(&MemberError {
            slot: self.shared().geometry.members(),
            name: journal.name().to_owned(),
            operation: Operation::Write,
            offset: 0,
            error,
        });
        self.dirty.set(true);
        {
            let mut records = self.records.borrow_mut();
            records.journal = None;
            for role in &mut records.array.roles {
                if *role == Role::Journal {
                    *role = Role::Faulty;
                }
            }
        }
        // If that fails, the array has failed, and says so.
        let _ = self.update_superblocks().await;
    }
}
