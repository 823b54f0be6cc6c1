//! What the home shard has of the members: the membership with a handle for each device, the bitmap as it is
//! on disk, and the journal device.

use std::{
    collections::BTreeSet,
    rc::Rc,
    sync::{Arc, Mutex},
};

use pinstripe_md::{
    bad_block_table::BadBlockTable,
    bitmap::BitmapImage,
    identity::Uuid,
    superblock::{ArrayRecord, Superblock},
    units::{SECTOR_BYTES, Sector},
};
use pinstripe_runtime::{Device, DeviceError, DeviceErrorKind, DeviceSource};

pub use crate::membership::model::MemberState;
use crate::{
    assembly::{Found, FoundMembers, MergedBitmap},
    members::{LogArea, Member, MemberBadBlocks, MemberId},
    membership::{
        model::{DeviceRecord, Membership},
        snapshot::Seat,
        transition::{Event, Refusal, Transition},
    },
    mutants::{Mutant, active},
    supervision::{Supervised, shard_members::Unattached},
};

/// What the home shard has of a device.
#[derive(Clone)]
pub(crate) struct DeviceHandle {
    pub(crate) member: Arc<Member>,
    pub(crate) device: Rc<dyn Device>,
    /// The same while it holds no slot: the view of the members has no handle to it then.
    pub(crate) waiting: Option<Rc<Supervised>>,
}

/// A device with its handle.
pub(crate) type Known = DeviceRecord<DeviceHandle>;

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
    pub(crate) membership: Membership<DeviceHandle>,
    /// What it becomes once one superblock, which goes first, is on its device.
    next: Option<Membership<DeviceHandle>>,
    pub(crate) bitmap: Option<BitmapImage>,
    /// Pages of the bitmap that some members have otherwise. Nothing but an update writes them: a bit that is
    /// set here is taken to be set on all members.
    pub(crate) pages_unlike: BTreeSet<usize>,
    /// Devices of which the bitmap wasn't believed at the start.
    pub(crate) outdated_bitmaps: Vec<String>,
    /// The journal device, if there is one.
    pub(crate) journal: Option<JournalDevice>,
}

/// The journal device: it has no slot.
pub(crate) struct JournalDevice {
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
    /// Of what assembly found.
    pub(crate) fn new(array: ArrayRecord, found: FoundMembers, merged: Option<MergedBitmap>) -> Self {
        let record = |found, id, slot, state| Newcomer::from(found).record(id, slot, state);
        let (events, updated) = (array.events, array.updated);
        let membership = assembled(array, found, record);
        let mut own = Self {
            membership,
            next: None,
            bitmap: None,
            pages_unlike: BTreeSet::new(),
            outdated_bitmaps: Vec::new(),
            journal: None,
        };
        if let Some(MergedBitmap { image, pages_unlike, outdated }) = merged {
            (own.bitmap, own.pages_unlike, own.outdated_bitmaps) = (Some(image), pages_unlike, outdated);
        }
        // C9: a kernel clears bits behind a rebuild, and may say so only when something is written after it.
        // What it has not said counts as said, but of a member that went in its last update.
        if let Some(bitmap) = &mut own.bitmap
            && !updated.is_of_own_update()
        {
            let (header, told) = (bitmap.header().clone(), events.saturating_sub(1));
            bitmap.set_events(header.events, header.events_cleared.max(told));
        }
        own
    }

    /// All members have the bitmap as it is in memory, so its bits may be believed.
    pub(crate) fn bitmaps_are_alike(&mut self) {
        self.pages_unlike.clear();
        if let Some(bitmap) = &mut self.bitmap {
            bitmap.set_stale(false);
        }
    }

    /// What comes of an event.
    pub(crate) fn after(&self, event: Event<DeviceHandle>) -> Result<Transition<DeviceHandle>, Refusal> {
        self.membership.after(event)
    }

    /// From now on `next` is about to come: a device that takes a slot in it gets every bit that is set.
    pub(crate) fn expect(&mut self, next: Membership<DeviceHandle>) {
        self.next = Some(next);
    }

    /// The record of a device as it is about to be.
    pub(crate) fn expected(&self, id: MemberId) -> &Known {
        self.next.as_ref().unwrap_or(&self.membership).device(id)
    }

    /// What was about to come.
    pub(crate) fn take_expected(&mut self) -> Option<Membership<DeviceHandle>> {
        self.next.take()
    }

    /// Makes `next` the membership. What it lets go of is let go of. True if slots are held otherwise.
    pub(crate) fn adopt(&mut self, next: Membership<DeviceHandle>) -> bool {
        let before = std::mem::replace(&mut self.membership, next);
        for (id, record) in before.active() {
            let now = self.membership.device_mut(id);
            let error = match &now.state {
                MemberState::Failed(error) => error.error,
                MemberState::Removed => DeviceError::of(DeviceErrorKind::Removed),
                _ => continue,
            };
            record.handle.member.release();
            now.handle.device = Rc::new(Unattached::new(&record.name, error));
            now.handle.waiting = None;
        }
        before.holders() != self.membership.holders()
    }

    /// Devices with a slot, and one that is about to get one: they get the bitmap.
    pub(crate) fn seated(&self) -> impl Iterator<Item = (MemberId, &Known)> {
        self.membership.active().filter_map(|(id, record)| {
            let next = self.next.as_ref().map(|next| next.device(id));
            std::iter::once(record).chain(next).find(|record| record.is_seated()).map(|record| (id, record))
        })
    }

    /// The handle of a device.
    pub(crate) fn handle(&self, id: MemberId) -> &DeviceHandle {
        &self.membership.device(id).handle
    }

    /// The membership for the shards.
    pub(crate) fn seats(&self) -> Vec<Seat> {
        let member = |id: MemberId| Arc::clone(&self.handle(id).member);
        let seats = self.membership.holders().into_iter().map(|slot| match (slot.member, slot.target) {
            (None, _) => Seat::Empty,
            (Some(id), None) if slot.is_whole => Seat::InSync(member(id)),
            (Some(id), Some(target)) if slot.is_whole => {
                Seat::Replacing { member: member(id), target: member(target) }
            }
            (Some(id), _) => Seat::Recovering(member(id)),
        });
        seats.collect()
    }

    /// After a crash that left writes from byte `dirty` of the members on half done: see
    /// [`Membership::distrust_copies`].
    pub(crate) fn distrust_copies(&mut self, dirty: u64) -> bool {
        self.membership.distrust_copies(dirty, self.bitmap.is_some())
    }

    /// Makes the record of the next update, and what the bitmap's header and the journal have to say with it;
    /// of a `complete` array bits may be cleared once all members have it. Returns what `events_cleared` goes
    /// back to if not all of them get it: until then no sweep begins that relies on it.
    pub(crate) fn begin_update(
        &mut self,
        now: u64,
        dirty_from: Option<Sector>,
        needs_log: bool,
        complete: bool,
    ) -> Option<u64> {
        let before = self.bitmap.as_ref().map(|bitmap| bitmap.header().events_cleared);
        let clears = complete && !self.membership.events_differ;
        self.membership.begin_update(now, dirty_from, needs_log);
        self.follow(clears);
        before
    }

    /// Not all members have got an update. Otherwise one that was lost while the array was idle would have
    /// too old a superblock to come back by the bitmap.
    pub(crate) fn clearing_from(&mut self, events: u64) {
        if let Some(bitmap) = &mut self.bitmap {
            bitmap.set_events(bitmap.header().events, events);
        }
    }

    /// Whether the last update has said that bits may be cleared (C9). It is for the caller to know that all
    /// members have it. A kernel may not have said so since its last update.
    pub(crate) fn may_clear(&self) -> bool {
        let events = self.membership.array.events;
        self.bitmap.as_ref().is_some_and(|bitmap| bitmap.header().events_cleared >= events)
    }

    /// Makes the record of what is about to come, which one device gets first.
    pub(crate) fn announce(&mut self, now: u64, dirty_from: Option<Sector>, complete: bool) {
        for membership in std::iter::once(&mut self.membership).chain(&mut self.next) {
            membership.announce(now, dirty_from);
        }
        self.follow(complete);
    }

    /// The bitmap and the journal go with the record; with `clears` bits may be cleared (events_cleared).
    fn follow(&mut self, clears: bool) {
        let events = self.membership.array.events;
        if let Some(bitmap) = &mut self.bitmap {
            let counts = clears && !active(Mutant::ClearingNotCounted);
            let cleared = if counts { events } else { bitmap.header().events_cleared };
            bitmap.set_events(events, cleared);
        }
        if let Some(journal) = &mut self.journal {
            journal.superblock.array = self.membership.array.clone();
        }
    }
}

/// The membership that assembly found. `record` makes each device's record.
pub(crate) fn assembled<D>(
    array: ArrayRecord,
    found: FoundMembers,
    record: impl Fn(Found, MemberId, Option<usize>, MemberState) -> DeviceRecord<D>,
) -> Membership<D> {
    let mut membership = Membership::new(array);
    let FoundMembers { seats, replacements, spares, .. } = found;
    let seats = seats.into_iter().enumerate().filter_map(|(slot, found)| {
        let found = found?;
        let recovering = found.superblock.member.recovery_offset.is_some();
        let state = if recovering { MemberState::Recovering } else { MemberState::InSync };
        Some((Some(slot), found, state))
    });
    let replacements =
        replacements.into_iter().map(|(slot, target)| (Some(slot), target, MemberState::Replacing));
    let spares = spares.into_iter().map(|spare| (None, spare, MemberState::Spare));
    for (slot, found, state) in seats.chain(replacements).chain(spares) {
        let id = membership.next_id();
        membership.devices.push(record(found, id, slot, state));
    }
    let current = membership.array.events;
    membership.events_differ = !active(Mutant::UnevenNotLevelled)
        && membership.devices.iter().any(|record| record.superblock.array.events != current);
    membership
}

impl Newcomer {
    /// The record of the device, as the one with this identity.
    pub(crate) fn record(self, id: MemberId, slot: Option<usize>, state: MemberState) -> Known {
        let Self { source, device, superblock, bad_blocks, .. } = self;
        let name = device.info().name.clone();
        let member = Arc::new(Member {
            id,
            name: name.clone(),
            source: Mutex::new(Some(source)),
            data_offset: superblock.member.data_offset.0 * SECTOR_BYTES,
            bad_blocks: MemberBadBlocks::new(bad_blocks, &superblock, &*device),
            cost: crate::plan::cost::MemberCost::default(),
            log_area: Mutex::new(LogArea::of(&superblock)),
            health: crate::members::Health::default(),
        });
        let handle = DeviceHandle { member, device, waiting: None };
        DeviceRecord { name, superblock, slot, state, valid_but_for_bits: 0, handle }
    }
}
