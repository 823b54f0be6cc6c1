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

use pinstripe_md::units::SECTOR_BYTES;
use pinstripe_runtime::{DeviceError, DeviceErrorKind, atomics::AtomicBool};

use crate::{
    error::{IoError, MemberError, Operation},
    geometry::{Set64, StripeId},
    io::parity::ParityVolume,
    members::{Member, bad_blocks::Listing},
    membership::snapshot::View,
    mutants::{Mutant, active},
    shared::Shared,
    units::{to_u32, to_usize},
};

impl ParityVolume {
    /// Whether sectors that the member of a place refuses can be listed instead of dropping the member. Not
    /// of the target of a replacement: the member that it replaces has them, and goes when the target is
    /// whole. Nor of a member that has lost a flush: this error may be that of a forced write's flush, and
    /// then other sectors are lost.
    pub(crate) fn can_list(&self, view: &View, place: usize, error: DeviceError) -> bool {
        let is_target = place >= view.snapshot.seats.len() && !active(Mutant::TargetListed);
        let has_lost = view.member(place).is_some_and(|(member, _)| member.health.has_lost_flush());
        error.kind == DeviceErrorKind::Media && !is_target && !has_lost && self.has_list(view, place)
    }

    /// Whether the member of a place has a log that can be written.
    pub(crate) fn has_list(&self, view: &View, place: usize) -> bool {
        let has_place = |(member, _): (&Arc<Member>, _)| member.bad_blocks.place().is_some();
        view.member(place).is_some_and(has_place) && !self.shared.options.read_only
    }

    /// Whether the log of the member of a place has room for a range (in bytes, relative to the data) now.
    pub(crate) fn has_room_in_list(&self, view: &View, place: usize, (offset, length): (u64, u64)) -> bool {
        let takes = |(member, _): (&Arc<Member>, _)| {
            let (lists, sectors) = (&member.bad_blocks, sectors(member.data_offset + offset, length));
            lists.place().is_some_and(|log| lists.table().insert(sectors, log.size).is_ok())
        };
        self.has_list(view, place) && view.member(place).is_some_and(takes)
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
        self.report_bad(member, slot, (offset, length), error, None)
    }

    /// The same. With `is_refused`, which then tells of it, the member stays where its log has no room.
    fn report_bad(
        &self,
        member: &Member,
        slot: usize,
        (offset, length): (u64, u64),
        error: DeviceError,
        is_refused: Option<Arc<AtomicBool>>,
    ) -> Listing {
        let at = member.data_offset + offset;
        let error = MemberError {
            role: slot.into(),
            name: member.name.clone(),
            operation: Operation::Write,
            offset: at,
            error,
        };
        let reports = &self.shared.bad_reports;
        let ticket = reports.push(member.id, sectors(at, length), Some(error), is_refused.clone());
        self.shared.controller_wake.notify();
        Listing { ticket, member: member.id, offset, length, is_refused }
    }

    /// Waits until what was to be listed is, durably, or its member is out: then it is false. An error if a
    /// row can't be made now: then the data that was written there is lost.
    pub(crate) async fn listed(&self, listing: &Listing) -> Result<bool, IoError> {
        let shared: &Shared = &self.shared;
        let reports = &shared.bad_reports;
        shared.until(|| reports.is_settled(listing.ticket)).await?;
        if self.lost_by(listing).is_some() {
            // What the same write has made good elsewhere in the row may not have been taken off the lists.
            let latest = reports.latest();
            shared.until(|| reports.is_settled(latest)).await?;
            if let Some(error) = self.lost_by(listing) {
                return Err(error);
            }
        }
        Ok(self.members.view().snapshot.slot_of(listing.member).is_some())
    }

    /// Whether what was to be written where it is listed now can't be made of the others.
    fn lost_by(&self, listing: &Listing) -> Option<IoError> {
        let view = self.members.view();
        let geometry = &self.geometry;
        let (stripe, _) = geometry.stripe_of_member_offset(listing.offset);
        let slot = view.snapshot.slot_of(listing.member);
        if slot.is_some_and(|slot| self.is_irreplaceable(&view, stripe, slot)) {
            return Some(IoError::Unreadable { stripe: stripe.0, missing: 1 });
        }
        let start = to_u32(to_usize(listing.offset - geometry.member_offset(stripe)));
        let rows = (start, start + to_u32(to_usize(listing.length)));
        let missing = self.lost_slots(&view, stripe, rows).len();
        (missing > 0).then_some(IoError::Unreadable { stripe: stripe.0, missing })
    }

    /// The rows of this range (in bytes, relative to the data) can't be made for the member of a place: they
    /// are listed in its log, durably. False if that has no room for them, and the member, which has refused
    /// nothing, stays. An error if it is out. For a rebuild, under the stripe's claim.
    pub(crate) async fn record_lost(
        &self,
        view: &View,
        place: usize,
        range: (u64, u64),
    ) -> Result<bool, IoError> {
        let listing = self.list_if_room(view, place, range).ok_or(IoError::Stopping)?;
        let listed = self.recorded(view, place, std::slice::from_ref(&listing)).await;
        if listed || listing.is_refused() { Ok(listed) } else { Err(IoError::Stopping) }
    }

    /// Has rows listed as bad that can't be made for the member of a place, if its log has room for them when
    /// it is their turn: other tasks list what they have found meanwhile.
    pub(crate) fn list_if_room(&self, view: &View, place: usize, range: (u64, u64)) -> Option<Listing> {
        let (member, _) = view.member(place)?;
        let error = DeviceError::of(DeviceErrorKind::Media);
        Some(self.report_bad(member, view.slot_at(place), range, error, Some(Arc::default())))
    }

    /// Waits until all of it is listed in the log of a place's member. False if there is no room for it, or
    /// the member is out by then. That more is lost than can be made is what rebuild and scrub record.
    pub(crate) async fn recorded(&self, view: &View, place: usize, listings: &[Listing]) -> bool {
        let mut listed = true;
        for listing in listings {
            listed &= matches!(self.listed(listing).await, Ok(_) | Err(IoError::Unreadable { .. }));
            listed &= !listing.is_refused();
        }
        let Some((member, _)) = view.member(place) else { return false };
        listed && self.members.view().snapshot.slot_of(member.id) == Some(view.slot_at(place))
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

    /// Parts of a stripe's data were written, by column and bytes of the chunk. Where more of their rows is
    /// listed than parity makes good, what is acknowledged couldn't be read before it is off the lists. An
    /// error if it stays there: a list may be full.
    pub(crate) async fn taken_off_lists(
        &self,
        stripe: StripeId,
        parts: impl Iterator<Item = (usize, u32, u32)> + Clone,
    ) -> Result<(), IoError> {
        let map = self.geometry.slots(stripe);
        let is_lost = || {
            let (view, mut parts) = (self.members.view(), parts.clone());
            parts.any(|(column, start, end)| {
                let slot = map.data_slot(column).index();
                let (at, length) = (self.geometry.member_offset(stripe) + u64::from(start), end - start);
                self.lost_slots(&view, stripe, (start, end)).contains(slot)
                    || view.snapshot.is_bad(slot, at, length.into())
                        && self.is_irreplaceable(&view, stripe, slot)
            })
        };
        let reports = &self.shared.bad_reports;
        let latest = reports.latest();
        if !is_lost() {
            return Ok(());
        }
        self.shared.until(|| reports.is_settled(latest)).await?;
        if is_lost() {
            return Err(IoError::Unreadable { stripe: stripe.0, missing: self.geometry.redundancy() + 1 });
        }
        Ok(())
    }

    /// The slots of members that don't have all of some rows of a stripe, where parity doesn't make good what
    /// they lack.
    pub(crate) fn lost_slots(&self, view: &View, stripe: StripeId, (start, end): (u32, u32)) -> Set64 {
        let (base, grain) = (self.geometry.member_offset(stripe), self.geometry.logical_block());
        let (mut lost, mut from) = (Set64::EMPTY, start);
        while from < end {
            let to = view.uniform(base, (from, end), grain);
            let missing = view.unreadable(base + u64::from(from), (to - from).into());
            if missing.len() > self.geometry.redundancy() {
                lost = lost.or(missing);
            }
            from = to;
        }
        lost
    }

    fn note_good(&self, view: &View, place: usize, offset: u64, length: u64, is_target: bool) {
        if !is_target && !view.snapshot.is_bad(place, offset, length) {
            return;
        }
        let Some((member, _)) = view.member(place) else { return };
        let sectors = sectors(member.data_offset + offset, length);
        if !is_target || member.bad_blocks.table().blocks().first_overlap(sectors.clone()).is_some() {
            self.shared.bad_reports.push(member.id, sectors, None, None);
            self.shared.controller_wake.notify();
        }
    }
}

fn sectors(offset: u64, length: u64) -> Range<u64> {
    offset / SECTOR_BYTES..(offset + length).div_ceil(SECTOR_BYTES)
}
