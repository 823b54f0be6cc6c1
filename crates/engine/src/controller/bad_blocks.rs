//! The controller's part in the bad-block logs; see [`io::bad_blocks`](crate::io::bad_blocks).

use crate::{
    assembly::{AssembleError, Refused},
    controller::{ArrayController, superblocks::DeviceHandle},
    error::{MemberError, Operation},
    members::{Member, bad_blocks::Report},
    membership::{model::MemberState, snapshot::Change},
    mutants::{Mutant, active},
    shared::Failure,
};
use pinstripe_md::bad_block_table::BadBlockChange;
use pinstripe_runtime::{DeviceError, DeviceErrorKind, atomics::Ordering, shard};
use std::sync::Arc;

impl ArrayController {
    /// Deals with everything that was reported. The controller's.
    pub(crate) async fn keep_bad_blocks(&self) {
        while let Some(report) = self.shared().bad_reports.take() {
            let ticket = report.ticket;
            if let Err(error) = self.keep(&report).await {
                let failures = vec![Failure { member: report.member, error }];
                if self.drop_members(failures).await {
                    // An error means that the array has failed. Every task that waits checks `has_failed`.
                    let _ = self.update_superblocks().await;
                }
            }
            // What waits has been woken by the membership or the superblocks, and sees that it isn't over.
            shard::interruption().await;
            self.shared().settle_bad(ticket);
        }
    }

    /// Has members list what they refused as their logs were replayed, durably, before anything is read.
    /// Superblocks say dirty until all of it is listed, as they did: else a crash would find them clean, and
    /// parity that doesn't match where no list says so.
    pub(crate) async fn list_refused(&self, refused: Vec<Refused>) -> Result<(), AssembleError> {
        let Some(volume) = self.volume.parity().filter(|_| !refused.is_empty()) else { return Ok(()) };
        let view = volume.members.view();
        for Refused { slot, offset, length } in refused {
            let Some((member, _)) = view.member(slot) else { continue };
            volume.list_bad(member, slot, (offset, length), DeviceError::of(DeviceErrorKind::Media));
        }
        self.unlisted.set(true);
        self.keep_bad_blocks().await;
        self.unlisted.set(false);
        self.shared().check().map_err(|_| AssembleError::NoRecord)
    }

    /// Changes a member's log, on the member and for all shards. The error is what the member is to be
    /// dropped for.
    async fn keep(&self, report: &Report) -> Result<(), MemberError> {
        let (member, device, slot) = {
            let superblocks = self.superblocks.borrow();
            let record = superblocks.membership.device(report.member);
            if matches!(record.state, MemberState::Failed(_)) || self.shared().has_failed() {
                return Ok(());
            }
            let DeviceHandle { member, device, .. } = record.handle.clone();
            (member, device, record.slot)
        };
        let Some(place) = member.bad_blocks.place() else { return report.bad.clone().map_or(Ok(()), Err) };
        let table = member.bad_blocks.table();
        let sectors = report.sectors.clone();
        let change = match &report.bad {
            Some(error) => match (table.insert(sectors, place.size), &report.is_refused) {
                (Ok(change), _) => change,
                (Err(_), Some(is_refused)) => {
                    is_refused.store(true, Ordering::SeqCst);
                    return Ok(());
                }
                // A full log: the member goes rather than a bad block be forgotten.
                (Err(_), None) => return Err(error.clone()),
            },
            None => match table.remove(sectors, place.size) {
                Ok(change) => change,
                // No room to cut an entry in two: it stays.
                Err(_) => return Ok(()),
            },
        };
        if change.images.is_empty() {
            return Ok(());
        }
        let failed = |operation, offset| {
            let name = member.name.clone();
            move |error| MemberError { role: slot.into(), name, operation, offset, error }
        };
        if report.bad.is_none() && !active(Mutant::BadBlockFreedEarly) {
            let flushes = &member.health.flushes;
            let ticket = flushes.begin();
            let result = device.flush().await.result;
            flushes.end(ticket, result.err());
            // Another flush may have been told what this one was to make durable (C33).
            let elsewhere = flushes.failure().await.filter(|_| !active(Mutant::BadBlockFreedPastLoss));
            result.map(|_| ()).and(elsewhere.map_or(Ok(()), Err)).map_err(failed(Operation::Flush, 0))?;
        }
        let images = if active(Mutant::BadBlockForgotten) { &[][..] } else { &change.images[..] };
        for image in images {
            let mut bytes = shard::buffer(image.len());
            bytes.copy_from_slice(image);
            let written = device.write(place.offset, bytes.freeze(), true).await.result;
            written.map_err(failed(Operation::Metadata, place.offset))?;
        }
        self.publish_bad_blocks(&member, change).await;
        Ok(())
    }

    /// Has every shard heed a member's log as it is now. The membership stays.
    async fn publish_bad_blocks(&self, member: &Arc<Member>, change: BadBlockChange) {
        let shared = self.shared();
        let counts = !change.table.blocks().is_empty() && !active(Mutant::BadBlockForgotten);
        member.bad_blocks.set_table(change.table);
        let generation = self.publish(Change::BadBlocks).await;
        let begins = {
            let mut superblocks = self.superblocks.borrow_mut();
            let record = superblocks.membership.device_mut(member.id);
            let log = record.superblock.member.bad_block_log.as_mut();
            log.is_some_and(|log| log.set_in_use(counts))
        };
        if begins {
            // Without that flag the next start would not look at the log. The error is in `has_failed`.
            let _ = self.update_superblocks().await;
        } else {
            // The superblocks know this membership: it is the one before.
            shared.set_durable(generation);
        }
    }
}
