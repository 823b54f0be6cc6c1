//! The home shard's books: what the next superblocks will say, which devices there are, the bitmap as it is
//! on disk.

use std::{
    rc::Rc,
    sync::{Arc, Mutex},
};

use pinstripe_md::{
    bad_block_table::BadBlockTable,
    bitmap::BitmapImage,
    identity::{Timestamp, Uuid},
    superblock::{ArrayRecord, MemberRecord, ResyncOffset, Role, Superblock},
    units::{MemberSlot, SECTOR_BYTES, Sector},
};
use pinstripe_runtime::{Device, DeviceError, DeviceErrorKind, DeviceSource};

use crate::{
    assembly::{Found, Seated},
    consistency::LogArea,
    error::{MemberError, NO_SLOT},
    io::{bad_blocks::MemberBadBlocks, volume::Unattached},
    members::Supervised,
    membership::snapshot::{Member, MemberId, Seat},
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

/// How a device comes to a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seating {
    /// All of it is rebuilt.
    Full,
    /// It was a member: only what was dirtied since is rebuilt.
    Bitmap,
    /// It takes the place of a member that stays in use until the copy is whole.
    Replacement,
}

/// One device that was ever attached.
pub(crate) struct MemberBook {
    pub(crate) member: Arc<Member>,
    pub(crate) device: Rc<dyn Device>,
    /// The same while it holds no slot: the view of the members has no handle to it then.
    pub(crate) waiting: Option<Rc<Supervised>>,
    pub(crate) superblock: Superblock,
    /// [`NO_SLOT`] for a spare.
    pub(crate) slot: usize,
    pub(crate) state: MemberState,
    /// Between its recovery offset and this byte only what regions with set bits hold is still to be
    /// recovered.
    pub(crate) valid_but_for_bits: u64,
}

impl MemberBook {
    /// Whether the array writes to it: superblocks at least.
    pub(crate) fn is_active(&self) -> bool {
        !matches!(self.state, MemberState::Failed(_) | MemberState::Removed)
    }

    /// Whether it holds a slot, or is about to take one over.
    pub(crate) fn is_seated(&self) -> bool {
        self.is_active() && self.state != MemberState::Spare
    }
}

/// A device that joins.
pub(crate) struct Newcomer {
    /// Its identity before it got a new one.
    pub(crate) formerly: Option<Uuid>,
    pub(crate) source: Arc<dyn DeviceSource>,
    pub(crate) device: Rc<dyn Device>,
    pub(crate) superblock: Superblock,
    pub(crate) bad_blocks: BadBlockTable,
}

impl From<Found> for Newcomer {
    fn from(found: Found) -> Self {
        let Found { source, device, superblock, bad_blocks } = found;
        Self { formerly: None, source, device, superblock, bad_blocks }
    }
}

/// See the module.
pub(crate) struct Superblocks {
    /// The freshest record; every superblock gets it.
    pub(crate) array: ArrayRecord,
    /// By [`MemberId`].
    pub(crate) members: Vec<MemberBook>,
    pub(crate) bitmap: Option<BitmapImage>,
    /// Not all members have the freshest record: a crash came between. They get it as it is before there is
    /// another, or a second such crash would leave them two events behind, which is stale.
    pub(crate) events_differ: bool,
    /// The journal device, if there is one.
    pub(crate) journal: Option<JournalBook>,
    /// Nothing was written since the array was assembled. A device that isn't here may be one event ahead of
    /// those that are, for one superblock goes first, alone. So the first update is followed by another
    /// before anything else is done: then no absent device has as many events.
    pub(crate) is_new: bool,
}

/// The journal device: it has no slot.
pub(crate) struct JournalBook {
    /// Supervised: whatever it does, a task that waits for it gets an answer.
    pub(crate) device: Rc<Supervised>,
    /// How it does.
    pub(crate) member: Arc<Member>,
    /// What its next superblock will say,
    pub(crate) superblock: Superblock,
    /// and what the one on the device says.
    pub(crate) written: Superblock,
}

impl Superblocks {
    /// Books of what assembly found.
    pub(crate) fn new(array: ArrayRecord, found: Seated, bitmap: Option<BitmapImage>) -> Self {
        let mut superblocks = Self {
            array,
            members: Vec::new(),
            bitmap,
            events_differ: false,
            journal: None,
            is_new: !active(Mutant::RevenantAccepted),
        };
        let Seated { seats, targets, spares, .. } = found;
        for (slot, found) in seats.into_iter().enumerate() {
            if let Some(found) = found {
                let recovering = found.superblock.member.recovery_offset.is_some();
                let state = if recovering { MemberState::Recovering } else { MemberState::InSync };
                superblocks.enter(found.into(), slot, state);
            }
        }
        for (slot, target) in targets {
            superblocks.enter(target.into(), slot, MemberState::Replacing);
        }
        for spare in spares {
            superblocks.enter(spare.into(), NO_SLOT, MemberState::Spare);
        }
        let current = superblocks.array.events;
        superblocks.events_differ = !active(Mutant::UnevenNotLevelled)
            && superblocks.members.iter().any(|book| book.superblock.array.events != current);
        superblocks
    }

    /// Whether a device of the array isn't here, and the superblocks don't say so yet.
    pub(crate) fn misses_a_member(&self) -> bool {
        let number = |book: &MemberBook| usize::from(book.superblock.member.dev_number.0);
        let here: Vec<usize> = self.active().map(number).collect();
        let mut roles = self.array.roles.iter().enumerate();
        roles.any(|(number, role)| matches!(role, Role::Slot(_)) && !here.contains(&number))
    }

    /// A device that was left out (not given, or out of date) misses everything that is written from now on.
    /// The next superblocks call it faulty, whatever the table said: one event behind counts as current, and
    /// by that it would be taken back with old data (C2). An update later it is two behind, and its number is
    /// free, as after `remove`.
    fn disown_absent(&mut self) {
        let number = |book: &MemberBook| usize::from(book.superblock.member.dev_number.0);
        let here: Vec<usize> = self.active().map(number).collect();
        let known = self.members.iter().filter(|book| book.state != MemberState::Removed);
        let known: Vec<usize> = known.map(number).collect();
        for (number, role) in self.array.roles.iter_mut().enumerate() {
            match role {
                Role::Slot(_) if !here.contains(&number) => *role = Role::Faulty,
                Role::Faulty if !known.contains(&number) => *role = Role::Spare,
                _ => {}
            }
        }
    }

    /// Enters a device.
    pub(crate) fn enter(&mut self, newcomer: Newcomer, slot: usize, state: MemberState) -> Arc<Member> {
        let Newcomer { source, device, superblock, bad_blocks, .. } = newcomer;
        let member = Arc::new(Member {
            id: MemberId(self.members.len()),
            name: device.info().name.clone(),
            source: Mutex::new(Some(source)),
            data_offset: superblock.member.data_offset.0 * SECTOR_BYTES,
            bad_blocks: MemberBadBlocks::new(bad_blocks, &superblock, &*device),
            cost: crate::plan::cost::MemberCost::default(),
            log_area: Mutex::new(LogArea::of(&superblock)),
            health: crate::members::Health::default(),
        });
        let book = Arc::clone(&member);
        self.members.push(MemberBook {
            member: book,
            device,
            waiting: None,
            superblock,
            slot,
            state,
            valid_but_for_bits: 0,
        });
        member
    }

    pub(crate) fn book(&mut self, id: MemberId) -> &mut MemberBook {
        &mut self.members[id.0]
    }

    /// Devices that get superblocks, in order.
    pub(crate) fn active(&self) -> impl Iterator<Item = &MemberBook> {
        self.members.iter().filter(|book| book.is_active())
    }

    /// Whether all devices must be brought level before one superblock may go first, alone.
    pub(crate) fn needs_equal_events(&self) -> bool {
        self.events_differ || self.is_new
    }

    /// The books of a device by its identity, if it is still known.
    pub(crate) fn find(&self, device: Uuid) -> impl Iterator<Item = &MemberBook> {
        self.members.iter().filter(move |book| {
            book.state != MemberState::Removed && book.superblock.member.device_uuid == device
        })
    }

    /// The membership that the books describe, of an array of so many slots.
    pub(crate) fn seats(&self, slots: usize) -> Vec<Seat> {
        let mut seats: Vec<Seat> = (0..slots).map(|_| Seat::Empty).collect();
        for book in &self.members {
            let Some(seat) = seats.get_mut(book.slot) else { continue };
            let member = Arc::clone(&book.member);
            *seat = match (&book.state, &*seat) {
                (MemberState::Recovering, _) => Seat::Recovering(member),
                (MemberState::Replacing, Seat::InSync(old)) => {
                    Seat::Replacing { member: Arc::clone(old), target: member }
                }
                (MemberState::InSync, _) => Seat::InSync(member),
                _ => continue,
            };
        }
        seats
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
        book.waiting = None;
        book.state = MemberState::Failed(error);
    }

    /// Takes a device out of the array. Its number becomes free, unless another device has it too.
    pub(crate) fn remove(&mut self, id: MemberId) {
        let number = self.members[id.0].superblock.member.dev_number;
        let shared =
            self.active().any(|book| book.member.id != id && book.superblock.member.dev_number == number);
        if !shared {
            self.set_role(id, Role::Spare);
        }
        let book = self.book(id);
        book.member.release();
        let error = DeviceError::of(DeviceErrorKind::Removed);
        book.device = Rc::new(Unattached::new(&book.member.name, error));
        book.waiting = None;
        book.state = MemberState::Removed;
    }

    /// A device takes a slot, or is to take it over from its member: nothing of it is valid yet, or, by
    /// bitmap, all but what the set bits cover.
    pub(crate) fn seat(&mut self, id: MemberId, slot: usize, how: Seating) {
        let number = MemberSlot(u16::try_from(slot).unwrap_or(u16::MAX));
        self.set_role(id, Role::Slot(number));
        let replaces = how == Seating::Replacement;
        let book = self.book(id);
        book.slot = slot;
        book.state = if replaces { MemberState::Replacing } else { MemberState::Recovering };
        let member = &mut book.superblock.member;
        member.recovery_offset = Some(Sector(0)).filter(|_| !active(Mutant::SpareCalledInSync));
        member.recovery_by_bitmap = how == Seating::Bitmap;
        member.replacement = replaces;
    }

    /// A device became whole.
    pub(crate) fn recovered(&mut self, id: MemberId) {
        let book = self.book(id);
        book.state = MemberState::InSync;
        let member = &mut book.superblock.member;
        (member.recovery_offset, member.recovery_by_bitmap, member.replacement) = (None, false, false);
    }

    /// The member that a device was to replace is gone: it goes on as one that is being rebuilt.
    pub(crate) fn promote(&mut self, id: MemberId) {
        let book = self.book(id);
        book.state = MemberState::Recovering;
        book.superblock.member.replacement = false;
    }

    /// The bitmap goes, or gets other regions: a device that was being recovered by its bits is recovered
    /// whole.
    pub(crate) fn forget_bits(&mut self) {
        for book in &mut self.members {
            book.superblock.member.recovery_by_bitmap = false;
            book.valid_but_for_bits = 0;
        }
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
            let member = &mut book.superblock.member;
            if book.state == MemberState::Recovering && member.recovery_offset.is_some() {
                (member.recovery_offset, member.recovery_by_bitmap) = (Some(Sector(0)), false);
            }
        }
    }

    /// After a crash a member and the target of its replacement may hold different bytes where it was being
    /// written, from byte `dirty` of the members on at the earliest, and with a bitmap only where bits are
    /// set. What was copied there is no copy any more. True if that concerns a target; then the superblocks
    /// must say so before anything else.
    pub(crate) fn distrust_copies(&mut self, dirty: u64) -> bool {
        let by_bits = self.bitmap.is_some();
        let mut any = false;
        for book in self.members.iter_mut().filter(|book| book.state == MemberState::Replacing) {
            if let Some(offset) = &mut book.superblock.member.recovery_offset
                && offset.0 * SECTOR_BYTES > dirty
                && !active(Mutant::ReplacementTrusted)
            {
                book.valid_but_for_bits = if by_bits { offset.0 * SECTOR_BYTES } else { 0 };
                *offset = Sector(dirty / SECTOR_BYTES);
                any = true;
            }
        }
        // A log may have made the array clean. No superblock says so before the target's says this.
        self.events_differ |= any;
        any
    }

    /// Makes the record of the next update: one event more (C9), and what the bitmap's header has to say with
    /// it.
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

    /// Whether the next superblocks say that only the double-parity log makes the array clean: if they name
    /// one at all. A spare that has no room for it doesn't log, and is not asked.
    pub(crate) fn need_log(&mut self, needed: bool) {
        let names = |book: &MemberBook| book.superblock.member.double_parity_log.is_some();
        let named = self.active().all(|book| !book.is_seated() || names(book));
        self.array.needs_double_parity_log = needed && named;
    }

    /// Gives every member the record as it is; with `clears` bits may be cleared from it on (events_cleared).
    pub(crate) fn distribute(&mut self, clears: bool) {
        let events = self.array.events;
        if let Some(bitmap) = &mut self.bitmap {
            let counts = clears && !active(Mutant::ClearingNotCounted);
            let cleared = if counts { events } else { bitmap.header().events_cleared };
            bitmap.set_events(events, cleared);
        }
        for book in self.members.iter_mut().filter(|book| book.is_active()) {
            book.superblock.array = self.array.clone();
            // A superblock that needs the log must name its place. So a spare that has no log says that it
            // needs none.
            book.superblock.array.needs_double_parity_log &=
                book.is_seated() || book.superblock.member.double_parity_log.is_some();
        }
        if let Some(journal) = &mut self.journal {
            journal.superblock.array = self.array.clone();
        }
    }
}
