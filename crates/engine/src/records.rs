//! The home shard's books: what the next superblocks will say, which devices there are, the bitmap as it is on disk.

use std::{
    rc::Rc,
    sync::{Arc, Mutex},
};

use pinstripe_md::{
    bad_block_table::BadBlockTable,
    bitmap::BitmapImage,
    identity::Timestamp,
    superblock::{ArrayRecord, MemberRecord, ResyncOffset, Role, Superblock},
    units::{MemberSlot, SECTOR_BYTES, Sector},
};
use pinstripe_runtime::{Device, DeviceSource};

use crate::{
    assembly::Found,
    bad_blocks::MemberBadBlocks,
    consistency::LogArea,
    error::MemberError,
    mutants::{Mutant, active},
    snapshot::{Member, MemberId},
    volume::Unattached,
};

/// What became of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// Has everything.
    InSync,
    /// Is being rebuilt.
    Recovering,
    /// Was dropped.
    Failed(MemberError),
}

/// One device that was ever attached.
pub(crate) struct MemberBook {
    pub(crate) member: Arc<Member>,
    pub(crate) device: Rc<dyn Device>,
    pub(crate) superblock: Superblock,
    pub(crate) slot: usize,
    pub(crate) state: MemberState,
}

/// See the module.
pub(crate) struct Records {
    /// The freshest record; every superblock gets it.
    pub(crate) array: ArrayRecord,
    /// By [`MemberId`].
    pub(crate) members: Vec<MemberBook>,
    pub(crate) bitmap: Option<BitmapImage>,
    /// Not all members have the freshest record: a crash came between. They get it as it is before there is another, or
    /// a second such crash would leave them two events behind, which is stale.
    pub(crate) uneven: bool,
    /// The journal device, if there is one.
    pub(crate) journal: Option<JournalBook>,
}

/// The journal device: it has no slot.
pub(crate) struct JournalBook {
    pub(crate) device: Rc<dyn Device>,
    /// What its next superblock will say,
    pub(crate) superblock: Superblock,
    /// and what the one on the device says.
    pub(crate) written: Superblock,
}

impl Records {
    /// Books of what assembly found.
    pub(crate) fn new(array: ArrayRecord, seats: Vec<Option<Found>>, bitmap: Option<BitmapImage>) -> Self {
        let mut records = Self { array, members: Vec::new(), bitmap, uneven: false, journal: None };
        for (slot, found) in seats.into_iter().enumerate() {
            if let Some(Found { source, device, superblock, bad_blocks }) = found {
                let state = if superblock.member.recovery_offset.is_some() {
                    MemberState::Recovering
                } else {
                    MemberState::InSync
                };
                records.enter(source, device, superblock, bad_blocks, slot, state);
            }
        }
        let current = records.array.events;
        records.uneven = !active(Mutant::UnevenNotLevelled)
            && records.members.iter().any(|book| book.superblock.array.events != current);
        records
    }

    /// A device that was left out (not given, out of date, a replacement that isn't served) misses everything that is
    /// written from now on. The next superblocks call it faulty, whatever the table said: one event behind counts as
    /// current, and by that it would be taken back with old data (C2).
    fn disown_absent(&mut self) {
        let here: Vec<usize> =
            self.active().map(|book| usize::from(book.superblock.member.dev_number.0)).collect();
        for (number, role) in self.array.roles.iter_mut().enumerate() {
            if matches!(role, Role::Slot(_)) && !here.contains(&number) {
                *role = Role::Faulty;
            }
        }
    }

    /// Enters a device.
    pub(crate) fn enter(
        &mut self,
        source: Arc<dyn DeviceSource>,
        device: Rc<dyn Device>,
        superblock: Superblock,
        bad_blocks: impl Into<BadBlockTable>,
        slot: usize,
        state: MemberState,
    ) -> Arc<Member> {
        let member = Arc::new(Member {
            id: MemberId(self.members.len()),
            name: device.info().name.clone(),
            source: Mutex::new(Some(source)),
            data_offset: superblock.member.data_offset.0 * SECTOR_BYTES,
            bad_blocks: MemberBadBlocks::new(bad_blocks.into(), &superblock, &*device),
            cost: crate::cost::MemberCost::default(),
            log_area: Mutex::new(LogArea::of(&superblock)),
            health: crate::members::Health::default(),
        });
        self.members.push(MemberBook { member: Arc::clone(&member), device, superblock, slot, state });
        member
    }

    pub(crate) fn book(&mut self, id: MemberId) -> &mut MemberBook {
        &mut self.members[id.0]
    }

    /// Devices that are written to, in order.
    pub(crate) fn active(&self) -> impl Iterator<Item = &MemberBook> {
        self.members.iter().filter(|book| !matches!(book.state, MemberState::Failed(_)))
    }

    /// Sets a device's entry in the roles table.
    pub(crate) fn set_role(&mut self, id: MemberId, role: Role) {
        let number = usize::from(self.members[id.0].superblock.member.dev_number.0);
        if let Some(entry) = self.array.roles.get_mut(number) {
            *entry = role;
        }
    }

    /// Drops a device: the others will say that it is faulty; its own superblock stays as it is.
    pub(crate) fn fail(&mut self, id: MemberId, error: MemberError) {
        self.set_role(id, Role::Faulty);
        let book = self.book(id);
        book.member.release();
        book.device = Rc::new(Unattached::new(&error.name, error.error));
        book.state = MemberState::Failed(error);
    }

    /// A device became whole.
    pub(crate) fn recovered(&mut self, id: MemberId) {
        let book = self.book(id);
        book.state = MemberState::InSync;
        book.superblock.member.recovery_offset = None;
    }

    /// Everything below `offset` bytes of a recovering device is valid.
    pub(crate) fn checkpoint(&mut self, id: MemberId, offset: u64) {
        let member: &mut MemberRecord = &mut self.book(id).superblock.member;
        if member.recovery_offset.is_some() {
            member.recovery_offset = Some(Sector(offset / SECTOR_BYTES));
        }
    }

    /// No recovering device has anything valid.
    pub(crate) fn recover_anew(&mut self) {
        for book in &mut self.members {
            if let Some(offset) = &mut book.superblock.member.recovery_offset {
                *offset = Sector(0);
            }
        }
    }

    /// Makes the record of the next update: one event more (C9), and what the bitmap's header has to say with it.
    pub(crate) fn advance(&mut self, now: u64, dirty_from: Option<u64>, complete: bool) {
        if !active(Mutant::AbsentNotDisowned) {
            self.disown_absent();
        }
        self.array.events += u64::from(!active(Mutant::EventsStandStill));
        self.array.updated = Timestamp::new(now, 0);
        self.array.resync_offset = dirty_from
            .map_or(ResyncOffset::Clean, |bytes| ResyncOffset::DirtyFrom(Sector(bytes / SECTOR_BYTES)));
        self.distribute(complete);
    }

    /// Whether the next superblocks say that only the double-parity log makes the array clean: if they name one at all.
    pub(crate) fn need_log(&mut self, needed: bool) {
        let named = self.active().all(|book| book.superblock.member.double_parity_log.is_some());
        self.array.needs_double_parity_log = needed && named;
    }

    /// Gives every member the record as it is.
    pub(crate) fn distribute(&mut self, complete: bool) {
        let events = self.array.events;
        if let Some(bitmap) = &mut self.bitmap {
            let cleared = if complete { events } else { bitmap.header().events_cleared };
            bitmap.set_events(events, cleared);
        }
        for book in &mut self.members {
            if !matches!(book.state, MemberState::Failed(_)) {
                book.superblock.array = self.array.clone();
            }
        }
        if let Some(journal) = &mut self.journal {
            journal.superblock.array = self.array.clone();
        }
    }

    /// Gives a device a seat.
    pub(crate) fn seat(&mut self, id: MemberId, slot: usize) {
        let slot = MemberSlot(u16::try_from(slot).unwrap_or(u16::MAX));
        self.set_role(id, Role::Slot(slot));
    }
}
