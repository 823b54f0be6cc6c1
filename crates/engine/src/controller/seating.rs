//! How devices come to slots: a spare takes over, a member comes back, a device that was rebuilt or copied to
//! is whole.
//!
//! The controller alone does this, one step after the other. [`transition`](crate::membership::transition)
//! says what comes of each step.

use std::sync::Arc;

use crate::{
    controller::{
        ArrayController,
        superblocks::{Known, Newcomer},
    },
    error::IoError,
    events::EventKind,
    members::MemberId,
    membership::{
        model::MemberState,
        snapshot::Seat,
        transition::{Event, JoinKind},
    },
    mutants::{Mutant, active, early},
};

/// A member that was: its slot, and the last event that its superblock knew then. By now that has the
/// array's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Former {
    pub(crate) slot: usize,
    pub(crate) events: u64,
}

impl ArrayController {
    /// Takes a device in. One that comes back to its slot goes on from what it has, if the slot is empty and
    /// bits still tell; any other is a spare, and takes an empty slot at once: its former one if it can, so
    /// that another member that is away finds its own one empty.
    pub(crate) async fn enter(&self, newcomer: Newcomer, comes_back: Option<Former>) -> Result<(), IoError> {
        let seats = &self.shared().snapshot().seats;
        // A spare may have been the slot's member since this was looked at before.
        let fits = |former: &Former| {
            matches!(seats.get(former.slot), Some(Seat::Empty)) && self.can_come_back(former.events)
        };
        let slot = comes_back.filter(fits).map(|former| former.slot);
        let device = newcomer.formerly.unwrap_or(newcomer.superblock.member.device_uuid);
        let name = newcomer.device.info().name.clone();
        let (formerly, former_slots): (Vec<MemberId>, Vec<Option<usize>>) = {
            let superblocks = self.superblocks.borrow();
            let failed = |is_it: &dyn Fn(&Known) -> bool| {
                let devices = superblocks.membership.devices();
                let failed =
                    devices.filter(|(_, it)| matches!(it.state, MemberState::Failed(_)) && is_it(it));
                failed.map(|(id, record)| (id, record.slot)).collect::<Vec<_>>()
            };
            let mut found = failed(&|record| record.superblock.member.device_uuid == device);
            if found.is_empty() {
                // One that was blanked meanwhile is known by its name only. What says which member it was may
                // have got the name of another one that is awaited.
                found = failed(&|record| record.name == name);
            }
            found.into_iter().unzip()
        };
        self.spares_rest.set(false);
        let spare = self.superblocks.borrow().membership.next_id();
        let device = Box::new(newcomer.record(spare, None, MemberState::Spare));
        let transition = self.superblocks.borrow().after(Event::Join { device, formerly })?;
        self.adopt(transition.membership).await;
        self.supervise_members();
        if let Some(slot) = slot {
            return self.enact(Event::Seat { spare, slot, how: JoinKind::Bitmap }).await;
        }
        self.update_superblocks().await?;
        self.take_over(&former_slots).await;
        Ok(())
    }

    /// Whether every bit that was set since the event `events` is still set (C9).
    pub(crate) fn can_come_back(&self, events: u64) -> bool {
        let superblocks = self.superblocks.borrow();
        let cleared = superblocks.bitmap.as_ref().map(|bitmap| bitmap.header().events_cleared);
        let ignored = active(Mutant::ReaddIgnoresEvents);
        cleared.is_some_and(|cleared| events >= cleared || ignored)
    }

    /// The spare that is to take a slot now, and the slot: one of `first` if one of those is empty.
    pub(crate) fn spare_wanted(&self, first: &[Option<usize>]) -> Option<(MemberId, usize)> {
        if self.is_static() || self.shared().has_failed() || self.stopped.get() || self.spares_rest.get() {
            return None;
        }
        let snapshot = self.shared().snapshot();
        let is_empty = |slot: &usize| matches!(snapshot.seats.get(*slot), Some(Seat::Empty));
        let slot = first.iter().flatten().copied().chain(0..snapshot.seats.len()).find(is_empty)?;
        let superblocks = self.superblocks.borrow();
        let (spare, _) = superblocks.membership.devices().find(|(_, record)| self.fits(record))?;
        Some((spare, slot))
    }

    /// Whether a device waits for a slot, and can take one.
    pub(crate) fn fits(&self, record: &Known) -> bool {
        let array = &record.superblock.array;
        record.state == MemberState::Spare
            && record.superblock.member.data_size >= array.component_sectors()
            && self.has_room_for_log(record)
            // C20
            && (record.handle.device.info().logical_block <= self.shared().geometry.logical_block()
                || active(Mutant::LargerBlocksJoin))
    }

    /// Whether a device has as much room for the array's log as any that logs now: each log is written by
    /// itself, and they differ where data begins at different places. A device that mdadm added to an array
    /// with a double-parity log has none.
    fn has_room_for_log(&self, record: &Known) -> bool {
        let length = |record: &Known| record.handle.member.log_area().map_or(0, |area| area.length);
        let superblocks = self.superblocks.borrow();
        let needed = superblocks.seated().map(|(_, record)| length(record)).min();
        self.wanted_log.borrow().is_none() || needed.is_none_or(|needed| length(record) >= needed)
    }

    /// Spares take the empty slots, `first` before the others.
    pub(crate) async fn take_over(&self, first: &[Option<usize>]) {
        while let Some((spare, slot)) = self.spare_wanted(first) {
            // One that can't be written is no spare any more, and the next one is tried; where the array has
            // failed, none is wanted.
            let how = if active(Mutant::SpareTakenForFormer) { JoinKind::Bitmap } else { JoinKind::Full };
            let refused = self.enact(Event::Seat { spare, slot, how }).await.is_err();
            if refused && self.spare_wanted(first) == Some((spare, slot)) {
                // Nothing has changed by that, and nothing would by trying again at once.
                self.spares_rest.set(true);
            }
        }
    }

    /// A member is whole: it is flushed, recorded, and read from now on (C4).
    pub(crate) async fn recovered(&self, id: MemberId) -> Result<(), IoError> {
        let replaces = self.superblocks.borrow().membership.device(id).state == MemberState::Replacing;
        let unflushed = if replaces {
            active(Mutant::ReplacementWithoutFlush)
        } else {
            active(Mutant::RecoveryWithoutFlush)
        };
        let view = self.volume.base().members.view();
        if !unflushed {
            self.volume.base().flush_or_report(&view).await;
            // It is recorded before any other that failed by now is dropped: the array may need it then.
            if self.shared().is_leaving(id) {
                self.drop_reported().await;
            }
        }
        let clear = async || {
            let intent = Arc::clone(&self.shared().snapshot().intent);
            intent.recovered();
            // What was touched is cleared by the second.
            self.sweep_once(&intent).await;
            self.sweep_once(&intent).await;
        };
        early(Mutant::BitsClearedBeforeRecorded, clear).await;
        self.enact(Event::Rebuilt(id)).await?;
        let (slot, device) = {
            let superblocks = self.superblocks.borrow();
            let record = superblocks.membership.device(id);
            (record.slot, record.name.clone())
        };
        if let Some(slot) = slot {
            self.events.add(EventKind::SpareActive { slot, device });
        }
        self.clear_missed();
        Ok(())
    }

    /// Where every member has everything, no region is marked as missed any more. While a replacement is
    /// under way the marks stay: some may say what is to be copied again.
    pub(crate) fn clear_missed(&self) {
        let snapshot = self.shared().snapshot();
        if snapshot.is_complete() && snapshot.replacements.is_empty() {
            snapshot.intent.recovered();
        }
    }
}
