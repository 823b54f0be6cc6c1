//! How an event changes the membership. Pure: [`Membership::after`] says what comes of it, and in which order
//! the superblocks are to be written; the controller carries that out.
//!
//! ```text
//!   event ──> after ──> first's superblock, alone ──> published ──> all superblocks
//!                       (seat, or a finished copy)     (C1)          (C2)
//! ```
//!
//! *Why one goes first.* A device that takes a slot says in its own superblock how little of it is valid, and
//! one that takes a slot over says that its former member is out. Until that is on the disk, the device is
//! what it was; a crash right behind it leaves that one superblock as the freshest. The other way round a
//! crash could leave superblocks that name the device as the slot's member, and its own that does not say how
//! little of it is valid.

use pinstripe_md::{
    superblock::Role,
    units::{MemberSlot, Sector},
};
use pinstripe_runtime::{DeviceError, DeviceErrorKind};

use super::model::{DeviceRecord, MemberState, Membership};
use crate::{
    error::{IoError, MemberError, Operation},
    members::MemberId,
    mutants::{Mutant, active},
};

/// How a device comes to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinKind {
    /// All of it is rebuilt.
    Full,
    /// It was a member: only what was dirtied since is rebuilt.
    Bitmap,
    /// It takes the place of a member that stays in use until the copy is whole.
    Replacement,
}

/// What happens to a membership.
#[derive(Clone)]
pub(crate) enum Event<D> {
    /// Devices failed, or are to go as if they had.
    Fail(Vec<(MemberId, MemberError)>),
    /// A device is taken in. It waits for a slot, and what it was before is forgotten.
    Join { device: Box<DeviceRecord<D>>, formerly: Vec<MemberId> },
    /// A spare takes a slot, or is to take it over.
    Seat { spare: MemberId, slot: usize, how: JoinKind },
    /// A device that was being rebuilt, or copied to, has everything.
    Rebuilt(MemberId),
    /// Nothing is to be known any more of a device that holds no slot.
    Remove(MemberId),
}

/// What comes of an event.
pub(crate) struct Transition<D> {
    pub(crate) membership: Membership<D>,
    /// The device whose superblock goes to the disk before anything else is done. If that fails, the
    /// membership stays as it was but for this device, which has failed.
    pub(crate) first: Option<MemberId>,
}

/// Why an event changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Too few members would be left (C3): nothing is written down. An outage of all must not make all
    /// faulty.
    BeyondRedundancy,
    /// The devices aren't any more what the event takes them for.
    Changed,
}

impl From<Refusal> for IoError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::BeyondRedundancy => Self::Failed,
            Refusal::Changed => Self::MembershipChanged,
        }
    }
}

impl<D: Clone> Membership<D> {
    /// The membership after an event. This is the only way from one to another.
    pub(crate) fn after(&self, event: Event<D>) -> Result<Transition<D>, Refusal> {
        let mut next = self.clone();
        let first = match event {
            Event::Fail(failures) => next.fail(failures)?,
            Event::Join { device, formerly } => next.join(*device, formerly),
            Event::Seat { spare, slot, how } => next.seat(spare, slot, how)?,
            Event::Rebuilt(id) => next.rebuilt(id)?,
            Event::Remove(id) => next.remove(id)?,
        };
        Ok(Transition { membership: next, first })
    }

    /// The others say that these devices are faulty; their own superblocks stay as they are. The target of a
    /// replacement goes on as the slot's member, which is being rebuilt.
    fn fail(&mut self, failures: Vec<(MemberId, MemberError)>) -> Result<Option<MemberId>, Refusal> {
        for (id, error) in failures {
            if !self.device(id).is_active() {
                continue;
            }
            self.set_role(id, Role::Faulty);
            let record = self.device_mut(id);
            record.slot = record.slot.or(error.role.slot());
            record.state = MemberState::Failed(error);
        }
        let holders = self.holders();
        let alone = holders.iter().filter(|slot| slot.member.is_none()).filter_map(|slot| slot.target);
        for target in alone {
            let record = self.device_mut(target);
            record.superblock.member.replacement = false;
            record.state = if active(Mutant::TargetPromotedWhole) {
                MemberState::InSync
            } else {
                MemberState::Recovering
            };
        }
        let missing = self.holders().iter().filter(|slot| !slot.is_whole).count();
        let redundancy = usize::from(self.array.level.parity_count());
        if missing > redundancy && !active(Mutant::BeyondRedundancyRecorded) {
            return Err(Refusal::BeyondRedundancy);
        }
        Ok(None)
    }

    fn join(&mut self, device: DeviceRecord<D>, formerly: Vec<MemberId>) -> Option<MemberId> {
        for id in formerly {
            self.forget(id);
        }
        self.devices.push(DeviceRecord { slot: None, state: MemberState::Spare, ..device });
        None
    }

    /// Nothing of the device is valid yet, or, by bitmap, all but what the set bits cover.
    fn seat(&mut self, spare: MemberId, slot: usize, how: JoinKind) -> Result<Option<MemberId>, Refusal> {
        let replaces = how == JoinKind::Replacement;
        let holders = self.holders().get(slot).copied().ok_or(Refusal::Changed)?;
        let is_free = if replaces { holders.is_whole } else { holders.member.is_none() };
        if !is_free || holders.target.is_some() || self.device(spare).state != MemberState::Spare {
            return Err(Refusal::Changed);
        }
        self.set_role(spare, in_slot(slot));
        let record = self.device_mut(spare);
        record.slot = Some(slot);
        record.state = if replaces { MemberState::Replacing } else { MemberState::Recovering };
        let member = &mut record.superblock.member;
        member.recovery_offset = Some(Sector(0)).filter(|_| !active(Mutant::SpareCalledInSync));
        member.recovery_by_bitmap = how == JoinKind::Bitmap;
        member.replacement = replaces;
        Ok(Some(spare))
    }

    /// The target of a replacement takes the slot, and its former member is faulty, as MD has it. The
    /// target's superblock, which goes first, says both: before it the old member is the member, behind it
    /// the new one, and each has everything.
    fn rebuilt(&mut self, id: MemberId) -> Result<Option<MemberId>, Refusal> {
        let replaces = match self.device(id).state {
            MemberState::Recovering => false,
            MemberState::Replacing => true,
            _ => return Err(Refusal::Changed),
        };
        let slot = self.device(id).slot.ok_or(Refusal::Changed)?;
        if replaces && let Some(former) = self.holders()[slot].member {
            let error = DeviceError::of(DeviceErrorKind::Removed);
            let record = self.device_mut(former);
            let (name, operation) = (record.name.clone(), Operation::Replacement);
            record.state =
                MemberState::Failed(MemberError { role: slot.into(), name, operation, offset: 0, error });
        }
        let record = self.device_mut(id);
        record.state = MemberState::InSync;
        let member = &mut record.superblock.member;
        (member.recovery_offset, member.recovery_by_bitmap, member.replacement) = (None, false, false);
        Ok(replaces.then_some(id))
    }

    fn remove(&mut self, id: MemberId) -> Result<Option<MemberId>, Refusal> {
        if self.device(id).is_seated() && !active(Mutant::SeatedSpareRemoved) {
            return Err(Refusal::Changed);
        }
        self.forget(id);
        Ok(None)
    }

    /// The device's number becomes free, unless another device has it too.
    fn forget(&mut self, id: MemberId) {
        let number = self.device(id).superblock.member.dev_number;
        let has_it = |(other, record): (MemberId, &DeviceRecord<D>)| {
            other != id && record.superblock.member.dev_number == number
        };
        if !self.active().any(has_it) {
            self.set_role(id, Role::Spare);
        }
        self.device_mut(id).state = MemberState::Removed;
    }
}

/// The role of a slot's member.
///
/// # Panics
///
/// If an array of MD's can't have such a slot.
fn in_slot(slot: usize) -> Role {
    Role::Slot(MemberSlot(u16::try_from(slot).expect("a slot of the array, of which there are fewer")))
}

#[cfg(test)]
mod tests;
