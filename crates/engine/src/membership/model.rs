//! The membership as a value: what each device is to the array, and what its next superblock says.
//!
//! Nothing here waits, reads or writes. `D` is what the array in service has of a device; nothing here looks
//! at it, and tests have none. [`transition`](super::transition) says how an event changes a membership.

use pinstripe_md::{
    identity::{Timestamp, Uuid},
    superblock::{ArrayRecord, MemberRecord, ResyncOffset, Role, Superblock},
    units::{DeviceNumber, SECTOR_BYTES, Sector},
};

use crate::{
    error::MemberError,
    membership::snapshot::MemberId,
    mutants::{Mutant, active},
};

/// What became of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// Has everything.
    InSync,
    /// Is being rebuilt.
    Recovering,
    /// Is to take the place of another, which is being copied to it.
    Replacing,
    /// Waits for a slot to become empty.
    Spare,
    /// Was dropped.
    Failed(MemberError),
    /// Was taken out of the array.
    Removed,
}

/// One device that was ever attached.
#[derive(Clone)]
pub(crate) struct DeviceRecord<D> {
    /// Name for messages.
    pub(crate) name: String,
    /// What its next superblock will say; of one that holds no slot any more, what its last one said.
    pub(crate) superblock: Superblock,
    /// None of a spare. A failed device keeps the slot that it had.
    pub(crate) slot: Option<usize>,
    pub(crate) state: MemberState,
    /// Between its recovery offset and this byte only what regions with set bits hold is still to be
    /// recovered.
    pub(crate) valid_but_for_bits: u64,
    /// What the array has of it.
    pub(crate) handle: D,
}

/// See the module.
#[derive(Clone)]
pub(crate) struct Membership<D> {
    /// The freshest record; every superblock gets it.
    pub(crate) array: ArrayRecord,
    /// By [`MemberId`].
    pub(crate) devices: Vec<DeviceRecord<D>>,
    /// Not all members have the freshest record: a crash came between. They get it as it is before there is
    /// another, or a second such crash would leave them two events behind, which is stale.
    pub(crate) events_differ: bool,
    /// Nothing was written since the array was assembled. A device that isn't here may be one event ahead of
    /// those that are, for one superblock goes first, alone. So the first update is followed by another
    /// before anything else is done: then no absent device has as many events.
    pub(crate) is_new: bool,
}

/// What holds a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holders {
    /// Its member.
    pub(crate) member: Option<MemberId>,
    /// Whether that has everything.
    pub(crate) is_whole: bool,
    /// The device that is to replace the member.
    pub(crate) target: Option<MemberId>,
}

impl<D> DeviceRecord<D> {
    /// Whether the array writes to it: superblocks at least.
    pub(crate) fn is_active(&self) -> bool {
        !matches!(self.state, MemberState::Failed(_) | MemberState::Removed)
    }

    /// Whether it holds a slot, or is about to take one over.
    pub(crate) fn is_seated(&self) -> bool {
        self.is_active() && self.state != MemberState::Spare
    }

    fn number(&self) -> usize {
        self.superblock.member.dev_number.0.into()
    }
}

impl<D> Membership<D> {
    /// Of an array of which no device is known yet.
    pub(crate) fn new(array: ArrayRecord) -> Self {
        let is_new = !active(Mutant::RevenantAccepted);
        Self { array, devices: Vec::new(), events_differ: false, is_new }
    }

    /// The identity that the next device gets.
    pub(crate) fn next_id(&self) -> MemberId {
        MemberId(self.devices.len())
    }

    pub(crate) fn device(&self, id: MemberId) -> &DeviceRecord<D> {
        &self.devices[id.0]
    }

    pub(crate) fn device_mut(&mut self, id: MemberId) -> &mut DeviceRecord<D> {
        &mut self.devices[id.0]
    }

    /// All devices that were ever attached.
    pub(crate) fn devices(&self) -> impl DoubleEndedIterator<Item = (MemberId, &DeviceRecord<D>)> {
        self.devices.iter().enumerate().map(|(number, record)| (MemberId(number), record))
    }

    /// Devices that get superblocks, in order.
    pub(crate) fn active(&self) -> impl Iterator<Item = (MemberId, &DeviceRecord<D>)> {
        self.devices().filter(|(_, record)| record.is_active())
    }

    /// The numbers that devices have in the roles table.
    pub(crate) fn numbers_in_use(&self) -> Vec<DeviceNumber> {
        self.active().map(|(_, record)| record.superblock.member.dev_number).collect()
    }

    /// The records of a device by its identity, if it is still known.
    pub(crate) fn find(&self, device: Uuid) -> impl Iterator<Item = &DeviceRecord<D>> {
        self.devices.iter().filter(move |record| {
            record.state != MemberState::Removed && record.superblock.member.device_uuid == device
        })
    }

    /// How many slots the array has.
    pub(crate) fn slots(&self) -> usize {
        self.array.raid_disks as usize
    }

    /// What holds each slot.
    pub(crate) fn holders(&self) -> Vec<Holders> {
        let mut slots = vec![Holders::default(); self.slots()];
        for (id, record) in self.active() {
            let Some(slot) = record.slot.and_then(|slot| slots.get_mut(slot)) else { continue };
            if record.state == MemberState::Replacing {
                slot.target = Some(id);
            } else {
                (slot.member, slot.is_whole) = (Some(id), record.state == MemberState::InSync);
            }
        }
        slots
    }

    /// By slot: from which byte on the member that holds it has yet to be rebuilt, without a bitmap that says
    /// what of it is there.
    pub(crate) fn unbuilt(&self) -> Vec<Option<u64>> {
        let mut from = vec![None; self.slots()];
        for (_, record) in self.active().filter(|(_, record)| record.state == MemberState::Recovering) {
            let member = &record.superblock.member;
            let Some(place) = record.slot.and_then(|slot| from.get_mut(slot)) else { continue };
            if !member.recovery_by_bitmap {
                let offset = member.recovery_offset.map_or(0, |sector| sector.0 * SECTOR_BYTES);
                *place = Some(offset.max(record.valid_but_for_bits));
            }
        }
        from
    }

    /// In which order the superblocks of an update are written: one alone, then all others. So a crash can't
    /// tear all of them. A spare need not know of the log, so it never is the one that is ahead alone.
    pub(crate) fn update_order(&self) -> Vec<Vec<MemberId>> {
        let (seated, spares): (Vec<_>, Vec<_>) = self.active().partition(|(_, record)| record.is_seated());
        let first = seated.first().or(spares.first()).map(|(id, _)| *id);
        let others = self.active().map(|(id, _)| id).filter(|id| Some(*id) != first).collect();
        vec![first.into_iter().collect(), others]
    }

    /// Whether all devices must be brought level before one superblock may go first, alone.
    pub(crate) fn needs_equal_events(&self) -> bool {
        self.events_differ || self.is_new
    }

    /// Whether a device of the array isn't here, and the superblocks don't say so yet.
    pub(crate) fn misses_a_member(&self) -> bool {
        let here: Vec<usize> = self.active().map(|(_, record)| record.number()).collect();
        let mut roles = self.array.roles.iter().enumerate();
        roles.any(|(number, role)| matches!(role, Role::Slot(_)) && !here.contains(&number))
    }

    /// A device that was replaced, or left out (not given, or out of date), misses everything that is written
    /// from now on. The next superblocks call it faulty, whatever the table said: one event behind counts as
    /// current, and by that it would be taken back with old data (C2). An update later it is two behind, and
    /// its number is free, as after `remove`.
    fn disown_absent(&mut self) {
        let here: Vec<usize> = self.active().map(|(_, record)| record.number()).collect();
        let known = self.devices.iter().filter(|record| record.state != MemberState::Removed);
        let known: Vec<usize> = known.map(DeviceRecord::number).collect();
        let kept = |number: usize| active(Mutant::FormerNotFaulty) && known.contains(&number);
        for (number, role) in self.array.roles.iter_mut().enumerate() {
            match role {
                Role::Slot(_) if kept(number) => {}
                Role::Slot(_) if !here.contains(&number) => *role = Role::Faulty,
                Role::Faulty if !known.contains(&number) => *role = Role::Spare,
                _ => {}
            }
        }
    }

    /// Sets a device's entry in the roles table.
    pub(crate) fn set_role(&mut self, id: MemberId, role: Role) {
        let number = self.device(id).number();
        if let Some(entry) = self.array.roles.get_mut(number) {
            *entry = role;
        }
    }

    /// The bitmap goes, or gets other regions: a device that was being recovered by its bits is recovered
    /// whole.
    pub(crate) fn forget_bits(&mut self) {
        for record in &mut self.devices {
            record.superblock.member.recovery_by_bitmap = false;
            record.valid_but_for_bits = 0;
        }
    }

    /// Everything below `offset` bytes of a recovering device is valid.
    pub(crate) fn checkpoint(&mut self, id: MemberId, offset: u64) {
        let member: &mut MemberRecord = &mut self.device_mut(id).superblock.member;
        if member.recovery_offset.is_some() {
            member.recovery_offset = Some(Sector(offset / SECTOR_BYTES));
        }
    }

    /// No recovering device has anything valid.
    pub(crate) fn recover_anew(&mut self) {
        for record in &mut self.devices {
            let member = &mut record.superblock.member;
            if record.state == MemberState::Recovering && member.recovery_offset.is_some() {
                // No superblock says that the array is clean before the device's says this.
                self.events_differ |= member.recovery_offset != Some(Sector(0));
                (member.recovery_offset, member.recovery_by_bitmap) = (Some(Sector(0)), false);
            }
        }
    }

    /// After a crash a member and the target of its replacement may hold different bytes where it was being
    /// written, from byte `dirty` of the members on at the earliest, and with a bitmap (`by_bits`) only where
    /// bits are set. What was copied there is no copy any more. True if that concerns a target; then the
    /// superblocks must say so before anything else.
    pub(crate) fn distrust_copies(&mut self, dirty: u64, by_bits: bool) -> bool {
        let mut any = false;
        for record in self.devices.iter_mut().filter(|record| record.state == MemberState::Replacing) {
            if let Some(offset) = &mut record.superblock.member.recovery_offset
                && offset.0 * SECTOR_BYTES > dirty
                && !active(Mutant::ReplacementTrusted)
            {
                record.valid_but_for_bits = if by_bits { offset.0 * SECTOR_BYTES } else { 0 };
                *offset = Sector(dirty / SECTOR_BYTES);
                any = true;
            }
        }
        // A log may have made the array clean. No superblock says so before the target's says this.
        self.events_differ |= any;
        any
    }

    /// Makes the record of the next update of all superblocks. It is the one that some have already, if a
    /// crash came between. With `needs_log` only the array's log makes a dirty array clean.
    pub(crate) fn begin_update(&mut self, now: u64, dirty_from: Option<Sector>, needs_log: bool) {
        if self.events_differ {
            self.distribute();
        } else {
            self.need_log(needs_log);
            self.advance(now, dirty_from);
        }
    }

    /// An update was written, to all members or to all but those that failed. True if the superblocks say
    /// what is to be known of the membership; otherwise another update follows.
    pub(crate) fn end_update(&mut self, is_everywhere: bool) -> bool {
        // All superblocks are level now, but for those of members that failed. The record without these
        // members gets another event: of one event there must not be two records.
        let was_level = !std::mem::take(&mut self.events_differ);
        is_everywhere && was_level && !std::mem::take(&mut self.is_new)
    }

    /// Makes the record that one device gets before all others. They are behind until the next update.
    pub(crate) fn announce(&mut self, now: u64, dirty_from: Option<Sector>) {
        self.advance(now, dirty_from);
        self.events_differ = true;
    }

    /// One event more (C9).
    fn advance(&mut self, now: u64, dirty_from: Option<Sector>) {
        if !active(Mutant::AbsentNotDisowned) {
            self.disown_absent();
        }
        self.array.events += u64::from(!active(Mutant::EventsStandStill));
        self.array.updated = Timestamp::of_own_update(now);
        self.array.resync_offset = dirty_from.map_or(ResyncOffset::Clean, ResyncOffset::DirtyFrom);
        self.distribute();
    }

    /// Whether the next superblocks say that only the double-parity log makes the array clean: if they name
    /// one at all. A spare that has no room for it doesn't log, and is not asked.
    fn need_log(&mut self, needed: bool) {
        let names = |record: &DeviceRecord<D>| record.superblock.member.double_parity_log.is_some();
        let named = self.active().all(|(_, record)| !record.is_seated() || names(record));
        self.array.needs_double_parity_log = needed && named;
    }

    /// Gives every member the record as it is.
    pub(crate) fn distribute(&mut self) {
        for record in self.devices.iter_mut().filter(|record| record.is_active()) {
            record.superblock.array = self.array.clone();
            // A superblock that needs the log must name its place. So a spare that has no log says that it
            // needs none.
            record.superblock.array.needs_double_parity_log &=
                record.is_seated() || record.superblock.member.double_parity_log.is_some();
        }
    }
}
