//! How devices come to slots: a spare takes over, a member comes back, a device replaces another.
//!
//! The controller alone does this, one step after the other. What they have in common is that the device's
//! own superblock goes to disk first, alone ([`ArrayController::announce`]), and all others follow. Until it
//! has, the device is what it was; a crash right behind it leaves that one superblock as the freshest, and it
//! alone knows what of the device is valid. The other way round a crash could leave superblocks that name the
//! device as the slot's member, and its own that does not say how little of it is valid.

use std::{rc::Rc, sync::Arc};

use pinstripe_md::{
    superblock::Role,
    units::{MemberSlot, SECTOR_BYTES},
};
use pinstripe_runtime::{DeviceError, DeviceErrorKind};

use crate::{
    array::ArrayController,
    error::{IoError, MemberError, NO_SLOT, Operation},
    membership::{
        control::{copy, failure},
        snapshot::{MemberId, Seat},
        superblocks::{MemberBook, MemberState, Newcomer, Seating},
    },
    mutants::{Mutant, active},
    shared::Failure,
    status::events::EventKind,
};

impl ArrayController {
    /// Takes a device in. One that comes back to its slot goes on from what it has, if the slot is empty and
    /// bits still tell; any other is a spare, and takes the first empty slot at once.
    pub(crate) async fn enter(&self, newcomer: Newcomer, comes_back: Option<usize>) -> Result<(), IoError> {
        let seats = &self.shared().snapshot().seats;
        let slot = comes_back.filter(|&slot| matches!(seats.get(slot), Some(Seat::Empty)));
        let slot = slot.filter(|_| self.can_come_back(newcomer.superblock.array.events));
        let device = newcomer.formerly.unwrap_or(newcomer.superblock.member.device_uuid);
        // One that was blanked meanwhile is known by its name only.
        let name = newcomer.device.info().name.clone();
        let former: Vec<MemberId> = {
            let superblocks = self.superblocks.borrow();
            let is_it = |book: &&MemberBook| {
                let known = book.superblock.member.device_uuid == device || book.member.name == name;
                known && matches!(book.state, MemberState::Failed(_))
            };
            superblocks.members.iter().filter(is_it).map(|book| book.member.id).collect()
        };
        for id in former {
            self.superblocks.borrow_mut().remove(id);
        }
        self.spares_rest.set(false);
        let id = self.superblocks.borrow_mut().enter(newcomer, NO_SLOT, MemberState::Spare).id;
        self.supervise_books();
        if let Some(slot) = slot {
            return self.seat(id, slot, Seating::Bitmap).await;
        }
        self.update_superblocks().await?;
        self.take_over().await;
        Ok(())
    }

    /// Whether every bit that was set since the event `events` is still set (C9).
    pub(crate) fn can_come_back(&self, events: u64) -> bool {
        let superblocks = self.superblocks.borrow();
        let cleared = superblocks.bitmap.as_ref().map(|bitmap| bitmap.header().events_cleared);
        let ignored = active(Mutant::ReaddIgnoresEvents);
        cleared.is_some_and(|cleared| events >= cleared || ignored)
    }

    /// The spare that is to take a slot now, and the slot.
    pub(crate) fn spare_wanted(&self) -> Option<(MemberId, usize)> {
        if self.is_static() || self.shared().has_failed() || self.stopped.get() || self.spares_rest.get() {
            return None;
        }
        let snapshot = self.shared().snapshot();
        let slot = snapshot.seats.iter().position(|seat| matches!(seat, Seat::Empty))?;
        let superblocks = self.superblocks.borrow();
        let spare = superblocks.members.iter().find(|book| self.fits(book))?;
        Some((spare.member.id, slot))
    }

    /// Whether a device waits for a slot, and can take one.
    pub(crate) fn fits(&self, book: &MemberBook) -> bool {
        let array = &book.superblock.array;
        book.state == MemberState::Spare
            && book.superblock.member.data_size >= array.component_sectors()
            && self.has_room_for_log(book)
            // C20
            && (book.device.info().logical_block <= self.shared().geometry.logical_block()
                || active(Mutant::LargerBlocksJoin))
    }

    /// Whether a device has as much room for the array's log as those that log now. One that mdadm added to
    /// an array with a double-parity log has none.
    fn has_room_for_log(&self, book: &MemberBook) -> bool {
        let length = |book: &MemberBook| book.member.log_area().map_or(0, |area| area.length);
        let superblocks = self.superblocks.borrow();
        let needed = superblocks.active().filter(|book| book.is_seated()).map(length).max();
        self.wanted_log.borrow().is_none() || needed.is_none_or(|needed| length(book) >= needed)
    }

    /// Spares take the empty slots.
    pub(crate) async fn take_over(&self) {
        while let Some((spare, slot)) = self.spare_wanted() {
            // One that can't be written is no spare any more, and the next one is tried; where the array has
            // failed, none is wanted.
            let how = if active(Mutant::SpareTakenForFormer) { Seating::Bitmap } else { Seating::Full };
            let _ = self.seat(spare, slot, how).await;
        }
    }

    /// A spare takes a slot: the bitmap first, then its superblock, then its seat, then all superblocks.
    pub(crate) async fn seat(&self, id: MemberId, slot: usize, how: Seating) -> Result<(), IoError> {
        if self.superblocks.borrow().needs_equal_events() {
            self.update_superblocks().await?;
        }
        let seat = self.shared().snapshot().seats[slot].clone();
        let spare = self.superblocks.borrow().members[id.0].state == MemberState::Spare;
        let next = {
            let target = Arc::clone(&self.superblocks.borrow().members[id.0].member);
            match seat {
                Seat::Empty if how != Seating::Replacement => Seat::Recovering(target),
                Seat::InSync(member) if how == Seating::Replacement => Seat::Replacing { member, target },
                // Meanwhile the member failed, or another device took the place.
                _ => return Err(IoError::MembershipChanged),
            }
        };
        if !spare {
            return Err(IoError::MembershipChanged);
        }
        self.superblocks.borrow_mut().seat(id, slot, how);
        if let Err(failed) = self.introduce(id).await {
            // No other superblock names it.
            self.note(&failed.error);
            self.put_out(id);
            self.events.add(EventKind::Fail(failed.error.clone()));
            self.superblocks.borrow_mut().fail(id, failed.error);
            self.update_superblocks().await?;
            return Err(IoError::MembershipChanged);
        }
        self.change(|seats| seats[slot] = next).await;
        self.update_superblocks().await
    }

    /// An empty log, the bitmap as it is, whole, and then the superblock, on a device that takes a slot. From
    /// the first page on it gets every bit that is set.
    async fn introduce(&self, id: MemberId) -> Result<(), Failure> {
        let (log, superblock, device) = {
            let superblocks = self.superblocks.borrow();
            let book = &superblocks.members[id.0];
            (self.shared().snapshot().log.clone(), book.superblock.clone(), Rc::clone(&book.device))
        };
        if let Err(error) = log.prepare(&superblock, &*device).await {
            let (slot, name) = (self.superblocks.borrow().members[id.0].slot, device.info().name.clone());
            return Err(failure(slot, id, &name, Operation::Metadata, 0, error));
        }
        {
            let _pages = self.lock_pages().await;
            let write = {
                let superblocks = self.superblocks.borrow();
                let book = &superblocks.members[id.0];
                let whole = superblocks.bitmap.as_ref().zip(book.superblock.bitmap_sector());
                whole.map(|(bitmap, sector)| {
                    let length = usize::try_from(bitmap.header().sectors().0 * SECTOR_BYTES);
                    let block = book.device.info().logical_block as usize;
                    let length = length.unwrap_or(usize::MAX).next_multiple_of(block);
                    let bytes = &bitmap.as_bytes()[..length.min(bitmap.as_bytes().len())];
                    let offset = sector.0 * SECTOR_BYTES;
                    let name = book.member.name.clone();
                    (book.slot, name, offset, book.device.write(offset, copy(bytes), true))
                })
            };
            if let Some((slot, name, offset, write)) = write {
                let written = write.await.result;
                written.map_err(|e| failure(slot, id, &name, Operation::Metadata, offset, e))?;
            }
        }
        self.announce(id).await
    }

    /// Writes the next superblock to one device, before all others. They are behind until the next update.
    async fn announce(&self, id: MemberId) -> Result<(), Failure> {
        let snapshot = self.shared().snapshot();
        let dirty_from = self.dirty_from(&snapshot);
        let now = (self.shared().options.wall_clock)();
        self.superblocks.borrow_mut().advance(now, dirty_from, snapshot.is_complete());
        self.superblocks.borrow_mut().events_differ = true;
        let _pages = self.lock_pages().await;
        // C9: the bitmap's header before the superblock. A member that can't write it is noticed at the
        // update that follows.
        let _ = self.write_bitmap_pages(&[0]).await;
        let (slot, name, offset, write) = {
            let superblocks = self.superblocks.borrow();
            let book = &superblocks.members[id.0];
            let offset = book.superblock.member.super_offset.0 * SECTOR_BYTES;
            let block = u64::from(book.device.info().logical_block);
            let write =
                book.superblock.encode(block).map(|bytes| book.device.write(offset, copy(&bytes), true));
            (book.slot, book.member.name.clone(), offset, write)
        };
        let result = match write {
            Ok(write) => write.await.result.map(|_| ()),
            // Our own output breaks a rule: it isn't written.
            Err(_) => Err(DeviceError::of(DeviceErrorKind::Invalid)),
        };
        result.map_err(|error| failure(slot, id, &name, Operation::Metadata, offset, error))
    }

    /// A member is whole: it is flushed, recorded, and read from now on (C4).
    pub(crate) async fn recovered(&self, id: MemberId) -> Result<(), IoError> {
        let replaces =
            |controller: &Self| controller.superblocks.borrow().members[id.0].state == MemberState::Replacing;
        let unflushed = if replaces(self) {
            active(Mutant::ReplacementWithoutFlush)
        } else {
            active(Mutant::RecoveryWithoutFlush)
        };
        let view = self.volume.inner.view();
        if !unflushed {
            self.volume.inner.flush_or_report(&view).await;
            if self.shared().has_failures() {
                self.drop_failed().await;
            }
        }
        if active(Mutant::BitsClearedBeforeRecorded) {
            let intent = Arc::clone(&self.shared().snapshot().intent);
            intent.recovered();
            // What was touched is cleared by the second.
            self.sweep_once(&intent).await;
            self.sweep_once(&intent).await;
        }
        let slot = self.shared().snapshot().slot_of(id).ok_or(IoError::Failed)?;
        let seat = self.shared().snapshot().seats[slot].clone();
        match seat {
            Seat::Recovering(member) => {
                self.superblocks.borrow_mut().recovered(id);
                self.change(|seats| seats[slot] = Seat::InSync(member)).await;
            }
            Seat::Replacing { member, target } if target.id == id => {
                self.switch(slot, member.id, id).await?;
                self.change(|seats| seats[slot] = Seat::InSync(target)).await;
            }
            _ => return Err(IoError::Failed),
        }
        self.update_superblocks().await?;
        let device = self.superblocks.borrow().members[id.0].member.name.clone();
        self.events.add(EventKind::SpareActive { slot, device });
        self.clear_missed();
        Ok(())
    }

    /// Where every member has everything, no region is marked as missed any more. While a replacement is
    /// under way the marks stay: some may say what is to be copied again.
    pub(crate) fn clear_missed(&self) {
        let snapshot = self.shared().snapshot();
        if snapshot.is_complete() && snapshot.targets.is_empty() {
            snapshot.intent.recovered();
        }
    }

    /// The target of a replacement takes the slot, and its former member is faulty, as MD has it. The
    /// target's superblock, which goes first, says both: before it the old member is the member, behind it
    /// the new one, and each has everything.
    async fn switch(&self, slot: usize, old: MemberId, new: MemberId) -> Result<(), IoError> {
        if self.superblocks.borrow().needs_equal_events() {
            self.update_superblocks().await?;
            if self.shared().snapshot().seats[slot].target().map(|target| target.id) != Some(new) {
                return Err(IoError::MembershipChanged);
            }
        }
        self.superblocks.borrow_mut().recovered(new);
        if !active(Mutant::FormerNotFaulty) {
            self.superblocks.borrow_mut().set_role(old, Role::Faulty);
        }
        if let Err(failed) = self.announce(new).await {
            // The old member stays.
            let role = Role::Slot(MemberSlot(u16::try_from(slot).unwrap_or(u16::MAX)));
            self.superblocks.borrow_mut().set_role(old, role);
            if self.drop_members(vec![failed]).await {
                self.update_superblocks().await?;
            }
            return Err(IoError::MembershipChanged);
        }
        let name = self.superblocks.borrow().members[old.0].member.name.clone();
        let error = DeviceError::of(DeviceErrorKind::Removed);
        let error = MemberError { slot, name, operation: Operation::Replacement, offset: 0, error };
        self.superblocks.borrow_mut().fail(old, error);
        Ok(())
    }
}
