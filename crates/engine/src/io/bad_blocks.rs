//! The bad-block log, kept on write (md-format.md section 6).
//!
//! Where a member can't take a sector, MD lists the sector as bad instead of dropping the member, if the
//! array has logs. So do we: for writes, for the rewriting of sectors that could not be read, and for rows
//! that a rebuild can't make. Such a sector is never read; what it should hold is made from the others.
//!
//! The controller alone changes logs, one report after the other, in the order in which they were made:
//!
//! - *Bad*: the entry is durable on the member, and every shard has stopped reading the sector, before the
//!   write that failed is acknowledged. The first entry of a log needs a superblock that says that the log
//!   counts. A log that is full or can't be written costs the member its place.
//! - *Good* again, after a write that succeeded: the member is flushed first, because the entry is what
//!   stands between a read and the old content (C4). No request waits for this; until it is done the sector
//!   is made from the others.
//!
//! A crash in between leaves an entry too many or a write that was never acknowledged. How a log changes on
//! disk without losing an entry to a torn write is in [`pinstripe_md::bad_block_table`].

use std::{ops::Range, sync::Arc};

use pinstripe_md::{bad_block_table::BadBlockChange, units::SECTOR_BYTES};
use pinstripe_runtime::{DeviceError, DeviceErrorKind, shard};

use crate::{
    array::ArrayController,
    error::{IoError, MemberError, Operation},
    io::volume::ShardVolume,
    members::{
        Member,
        bad_blocks::{Listing, Report},
    },
    membership::{
        model::MemberState,
        snapshot::{Change, View},
        superblocks::DeviceHandle,
    },
    mutants::{Mutant, active},
    shared::{Failure, Shared},
};

impl ShardVolume {
    /// Whether sectors that a member refuses can be listed instead of dropping the member.
    pub(crate) fn can_list(&self, member: &Member, error: DeviceError) -> bool {
        error.kind == DeviceErrorKind::Media
            && member.bad_blocks.place().is_some()
            && !self.shared.options.read_only
            && self.shared.geometry.has_parity()
    }

    /// Has the range of a member (in bytes, relative to its data) listed as bad. To be followed by
    /// [`ShardVolume::listed`] before anything that rests on it is acknowledged.
    pub(crate) fn list_bad(
        &self,
        member: &Member,
        slot: usize,
        (offset, length): (u64, u64),
        error: DeviceError,
    ) -> Listing {
        let at = member.data_offset + offset;
        let error =
            MemberError { slot, name: member.name.clone(), operation: Operation::Write, offset: at, error };
        let ticket = self.shared.bad_reports.push(member.id, sectors(at, length), Some(error));
        self.shared.controller_wake.notify();
        Listing { ticket, offset, length }
    }

    /// Waits until what was to be listed is, durably, or its member is out. An error if too much of a row
    /// can't be read now: then the data that was written there is lost.
    pub(crate) async fn listed(&self, stripe: u64, listing: &Listing) -> Result<(), IoError> {
        let shared: &Shared = &self.shared;
        let reports = &shared.bad_reports;
        shared.until(|| reports.is_settled(listing.ticket)).await?;
        let missing = self.members.view().unreadable(listing.offset, listing.length).len();
        if missing > shared.geometry.redundancy() {
            return Err(IoError::Unreadable { stripe, missing });
        }
        Ok(())
    }

    /// The member's sectors in this range (in bytes, relative to its data) can't be made good: they are
    /// listed in its log, or, where it has none or the log is full, it is dropped. True if they are listed,
    /// durably. For rebuild and scrub, under the stripe's claim.
    pub(crate) async fn record_bad(
        &self,
        view: &View,
        place: usize,
        (offset, length): (u64, u64),
        error: DeviceError,
    ) -> bool {
        let Some((member, _)) = view.member(place) else { return false };
        if !self.can_list(member, error) {
            self.members.report(view, place, Operation::Write, member.data_offset + offset, error);
            return false;
        }
        let slot = view.slot_at(place);
        let listing = self.list_bad(member, slot, (offset, length), error);
        // That more is lost than can be made is what rebuild and scrub record.
        let listed = matches!(self.listed(0, &listing).await, Ok(()) | Err(IoError::Unreadable { .. }));
        listed && self.members.view().snapshot.slot_of(member.id) == Some(slot)
    }

    /// A write of this range succeeded: if some of it was listed as bad, it is good again.
    pub(crate) fn note_written(&self, view: &View, place: usize, offset: u64, length: u64) {
        // The target of a replacement is behind the slots; its log counts when it takes over.
        let is_target = place >= view.snapshot.seats.len();
        if !is_target && !view.snapshot.is_bad(place, offset, length) {
            return;
        }
        let Some((member, _)) = view.member(place) else { return };
        let sectors = sectors(member.data_offset + offset, length);
        if !is_target || member.bad_blocks.table().blocks().first_overlap(sectors.clone()).is_some() {
            self.shared.bad_reports.push(member.id, sectors, None);
            self.shared.controller_wake.notify();
        }
    }
}

fn sectors(offset: u64, length: u64) -> Range<u64> {
    offset / SECTOR_BYTES..(offset + length).div_ceil(SECTOR_BYTES)
}

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
            self.shared().settle_bad(ticket);
        }
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
            // A full log: the member goes rather than a bad block be forgotten.
            Some(error) => table.insert(sectors, place.size).map_err(|_| error.clone())?,
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
            move |error| MemberError { slot, name, operation, offset, error }
        };
        if report.bad.is_none() && !active(Mutant::BadBlockFreedEarly) {
            let flushes = &member.health.flushes;
            let ticket = flushes.begin();
            let result = device.flush().await.result;
            flushes.end(ticket, result.err());
            // Another flush may have been told what this one was to make durable (C33).
            let elsewhere = flushes.failed_since(0).await.filter(|_| !active(Mutant::BadBlockFreedPastLoss));
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
            log.is_some_and(|log| !std::mem::replace(&mut log.in_use, counts) && counts)
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
