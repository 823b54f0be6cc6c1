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

use std::ops::Range;

use pinstripe_md::units::SECTOR_BYTES;
use pinstripe_runtime::{DeviceError, DeviceErrorKind};

use crate::{
    error::{IoError, MemberError, Operation},
    io::parity::ParityVolume,
    members::{Member, bad_blocks::Listing},
    membership::snapshot::View,
    shared::Shared,
};

impl ParityVolume {
    /// Whether sectors that a member refuses can be listed instead of dropping the member.
    pub(crate) fn can_list(&self, member: &Member, error: DeviceError) -> bool {
        error.kind == DeviceErrorKind::Media
            && member.bad_blocks.place().is_some()
            && !self.shared.options.read_only
    }

    /// Has the range of a member (in bytes, relative to its data) listed as bad. To be followed by
    /// [`ParityVolume::listed`] before anything that rests on it is acknowledged.
    pub(crate) fn list_bad(
        &self,
        member: &Member,
        slot: usize,
        (offset, length): (u64, u64),
        error: DeviceError,
    ) -> Listing {
        let at = member.data_offset + offset;
        let error = MemberError {
            role: slot.into(),
            name: member.name.clone(),
            operation: Operation::Write,
            offset: at,
            error,
        };
        let ticket = self.shared.bad_reports.push(member.id, sectors(at, length), Some(error));
        self.shared.controller_wake.notify();
        Listing { ticket, member: member.id, offset, length }
    }

    /// Waits until what was to be listed is, durably, or its member is out: then it is false. An error if too
    /// much of a row can't be read now: then the data that was written there is lost.
    pub(crate) async fn listed(&self, stripe: u64, listing: &Listing) -> Result<bool, IoError> {
        let shared: &Shared = &self.shared;
        let reports = &shared.bad_reports;
        shared.until(|| reports.is_settled(listing.ticket)).await?;
        let missing = self.members.view().unreadable(listing.offset, listing.length).len();
        if missing > shared.geometry.redundancy() {
            return Err(IoError::Unreadable { stripe, missing });
        }
        Ok(self.members.view().snapshot.slot_of(listing.member).is_some())
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
            self.members.report_data(view, place, Operation::Write, offset, error);
            return false;
        }
        let slot = view.slot_at(place);
        let listing = self.list_bad(member, slot, (offset, length), error);
        // That more is lost than can be made is what rebuild and scrub record.
        let listed = matches!(self.listed(0, &listing).await, Ok(_) | Err(IoError::Unreadable { .. }));
        listed && self.members.view().snapshot.slot_of(member.id) == Some(slot)
    }

    /// A write of this range succeeded: if some of it was listed as bad, it is good again.
    #[inline]
    pub(crate) fn note_written(&self, view: &View, place: usize, offset: u64, length: u64) {
        // The target of a replacement is behind the slots; its log counts when it takes over.
        let is_target = place >= view.snapshot.seats.len();
        if is_target || view.snapshot.with_bad_blocks.contains(place) {
            self.note_good(view, place, offset, length, is_target);
        }
    }

    fn note_good(&self, view: &View, place: usize, offset: u64, length: u64, is_target: bool) {
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
