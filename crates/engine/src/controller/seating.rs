//! How devices come to slots: a spare takes over, a member comes back, a device that was rebuilt or copied to
//! is whole.
//!
//! The controller alone does this, one step after the other. [`transition`](crate::membership::transition)
//! says what comes of each step.

use std::{ops::RangeInclusive, pin::pin, sync::Arc};

use futures_util::future::select;
use pinstripe_md::{
    bitmap::BitmapImage,
    superblock::{MemberRecord, Role},
    units::SECTOR_BYTES,
};

use crate::{
    controller::{
        ArrayController,
        error::CommandError,
        superblocks::{Known, Newcomer},
        update::written_part,
    },
    error::IoError,
    events::EventKind,
    geometry::Set64,
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
#[derive(Clone, Debug)]
pub(crate) struct Former {
    pub(crate) slot: usize,
    pub(crate) events: u64,
    /// The slots that had a device then, by that superblock.
    pub(crate) knew: Set64,
    /// Whether it was being caught up by bitmap when it went.
    pub(crate) was_recovering: bool,
    /// The bitmap on it.
    pub(crate) bitmap: BitmapImage,
}

impl ArrayController {
    /// Takes a device in. One that comes back to its slot goes on from what it has, if the slot is empty and
    /// bits still tell; any other is a spare, and takes an empty slot at once: its former one if it can, so
    /// that another member that is away finds its own one empty.
    pub(crate) async fn enter(
        &self,
        newcomer: Newcomer,
        comes_back: Option<Former>,
    ) -> Result<(), CommandError> {
        let seats = &self.shared().snapshot().seats;
        // Since this was looked at before, a spare may have been the slot's member, or others have gone that
        // vouched for it.
        let fits = |former: &Former| {
            matches!(seats.get(former.slot), Some(Seat::Empty)) && self.can_come_back(former)
        };
        let holds_torn =
            |former: &Former| self.holds_torn(former.slot, &newcomer.superblock.member, former.events);
        if comes_back.as_ref().is_some_and(|former| !fits(former) && holds_torn(former)) {
            return Err(CommandError::HoldsTorn(newcomer.device.info().name.clone()));
        }
        let former = comes_back.filter(fits);
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
        let joined = self.superblocks.borrow().after(Event::Join { device, formerly });
        let transition = joined.map_err(IoError::from)?;
        self.adopt(transition.membership).await;
        self.supervise_members();
        if let Some(Former { slot, bitmap, .. }) = former {
            self.shared().check()?;
            if !active(Mutant::ReaddForgetsOwnBits) {
                self.miss_what_it_wrote(&bitmap).await?;
            }
            return Ok(self.enact(Event::Seat { spare, slot, how: JoinKind::Bitmap }).await?);
        }
        self.update_superblocks().await?;
        self.take_over(&former_slots).await;
        Ok(())
    }

    /// Whether bits tell of all that a former member has otherwise than the array: those that were set here
    /// since it went, and those on it. It may have been served apart meanwhile, without those that are
    /// members now: then its events count that life, and rows that it wrote there have their bits on it
    /// alone.
    pub(crate) fn can_come_back(&self, former: &Former) -> bool {
        let superblocks = self.superblocks.borrow();
        let Some(bitmap) = &superblocks.bitmap else { return false };
        let (ours, theirs) = (bitmap.header().events_cleared, former.bitmap.header().events_cleared);
        // C9, here: what went later has seen that bits could be cleared. Where a kernel has said nothing of
        // that since the bitmap was made, it may have cleared some nevertheless, behind a recovery. Not of an
        // array that was never updated.
        let is_told = ours > 0 || former.events == 0;
        let kept_here = former.events >= ours && is_told;
        // And there: no array that isn't complete clears any. That it knows of an earlier clearing only is
        // ambiguous: a kernel says so late, or the events are of a life apart, in which members were missing.
        let seats = &self.shared().snapshot().seats;
        let may_know_less = theirs < ours && former.knew.len() == seats.len();
        // It went in an update that its superblock hasn't got, and that was taken back: none was cleared by
        // it.
        let in_an_update = theirs > former.events && ours == former.events;
        let kept_there = theirs == ours || may_know_less || in_an_update;
        // By bits alone no life apart is told from what the array did before it went. Where that matters, it
        // must have been with as many of the members as an array needs: those have been here all the time.
        let whole: Set64 = (0..seats.len()).filter(|&slot| seats[slot].is_whole()).collect();
        let was_here = former.knew.and(whole).len() + self.shared().geometry.redundancy() >= seats.len();
        let intent = &self.shared().snapshot().intent;
        let (torn, was_recovering) = (intent.has_torn(), former.was_recovering);
        let is_one_life = (was_here || !torn && !was_recovering) && (intent.keeps_torn() || !torn);
        let is_kept = kept_here && (kept_there || active(Mutant::ReaddIgnoresOwnClearing)) && is_one_life;
        is_kept || active(Mutant::ReaddIgnoresEvents)
    }

    /// Rows that a former member may have written without the array count as written by the array without it.
    /// Their bits are on all members before it has the array's bitmap.
    async fn miss_what_it_wrote(&self, bitmap: &BitmapImage) -> Result<(), IoError> {
        let intent = Arc::clone(&self.shared().snapshot().intent);
        let mut runs: Vec<RangeInclusive<usize>> = Vec::new();
        let regions = bitmap.set_bits().filter_map(|bit| usize::try_from(bit).ok());
        for region in regions.take_while(|region| *region < intent.len()) {
            match runs.last_mut() {
                Some(run) if *run.end() + 1 == region => *run = *run.start()..=region,
                _ => runs.push(region..=region),
            }
        }
        let mark = |run: RangeInclusive<usize>| {
            let mark = intent.mark(run.clone(), 0);
            // While a member lacks something, none is cleared.
            intent.set_missed(run);
            // All are asked for, so that they are written together.
            intent.is_durable(&mark);
            mark
        };
        let marks: Vec<_> = runs.into_iter().map(mark).collect();
        let durable = async {
            for mark in &marks {
                intent.durable(mark).await;
            }
        };
        // Where no member takes them, the array fails.
        let failed = self.shared().until(|| false);
        self.settling(async { drop(select(pin!(durable), pin!(failed)).await) }).await;
        self.shared().check()
    }

    /// Whether data of rows that a crash may have torn is on no member that is here: the one that has it is
    /// away. It can't be made of the others (C10).
    pub(crate) fn misses_torn_data(&self) -> bool {
        (0..self.shared().snapshot().seats.len()).any(|slot| self.lacks_torn(slot))
    }

    /// Whether a slot lacks some of that: it is empty, or what is in it is being rebuilt, and has not come so
    /// far.
    fn lacks_torn(&self, slot: usize) -> bool {
        let snapshot = self.shared().snapshot();
        let built_to = match snapshot.seats.get(slot) {
            Some(Seat::Empty) => 0,
            Some(Seat::Recovering(member)) => {
                built_to(&self.superblocks.borrow().membership.device(member.id).superblock.member)
            }
            _ => return false,
        };
        snapshot.intent.has_torn_in(built_to..u64::MAX) && self.shared().geometry.holds_data(slot)
    }

    /// Whether a device, which was in a slot when the array had so many events, may have what the slot lacks
    /// of that. Not if it was itself being rebuilt and has none of it, nor if another one has had all of the
    /// slot since.
    pub(crate) fn holds_torn(&self, slot: usize, member: &MemberRecord, events: u64) -> bool {
        let superblocks = self.superblocks.borrow();
        let had_all = |record: &&Known| {
            // One that failed as it was to take the slot has the number, but its superblock never said so.
            matches!(record.superblock.own_role(), Role::Slot(own) if usize::from(own.0) == slot)
                && record.slot == Some(slot)
                && built_to(&record.superblock.member) == u64::MAX
        };
        let mut holders = superblocks.membership.devices.iter().filter(had_all);
        let is_it = |record: &Known| record.superblock.member.device_uuid == member.device_uuid;
        let was_followed = |record: &Known| !is_it(record) && record.superblock.array.events > events;
        // A bitmap that was removed while the device was caught up by it has left it with all that it had.
        let has_some =
            self.shared().snapshot().intent.has_torn_in(0..built_to(member)) || holders.clone().any(is_it);
        has_some && self.lacks_torn(slot) && !holders.any(was_followed)
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
        // C10: it could not get what rows that may be torn have in a slot, which the member that is away
        // still has. Parity can be made of them.
        (!self.misses_torn_data()).then_some((spare, slot))
    }

    /// Whether a device waits for a slot, and can take one.
    pub(crate) fn fits(&self, record: &Known) -> bool {
        record.state == MemberState::Spare && self.spare_hindrance(record).is_none()
    }

    /// Why a spare can take no slot: one that mdadm has added, or that was added before the array changed.
    pub(crate) fn spare_hindrance(&self, record: &Known) -> Option<String> {
        let used = record.superblock.array.component_sectors();
        let has = record.superblock.member.data_size;
        let (block, ours) =
            (record.handle.device.info().logical_block, self.shared().geometry.logical_block());
        if has < used {
            Some(format!("it has {has} for data, and the array uses {used} of each member"))
        } else if !self.has_room_for_log(record) {
            Some("it has less room for the array's log than the members".to_owned())
        } else if !self.has_room_for_bitmap(record) {
            Some("it has no room for the array's bitmap".to_owned())
        } else if block > ours && !active(Mutant::LargerBlocksJoin) {
            // C20
            Some(format!("its logical block has {block} bytes, and the array's has {ours}"))
        } else {
            None
        }
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

    /// Whether a device could be given the bitmap. Another tool may have laid it out otherwise.
    fn has_room_for_bitmap(&self, record: &Known) -> bool {
        let (superblocks, device) = (self.superblocks.borrow(), &*record.handle.device);
        // A bitmap that comes or goes isn't named by all superblocks.
        let named = superblocks.bitmap.as_ref().filter(|_| record.superblock.bitmap_sector().is_some());
        named.is_none_or(|bitmap| written_part(bitmap, &record.superblock, device).is_some())
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

/// Up to which byte of its data a device has all that its slot held when it was last written: what is rebuilt
/// by bits has everything else.
fn built_to(member: &MemberRecord) -> u64 {
    let offset = member.recovery_offset.filter(|_| !member.recovery_by_bitmap);
    offset.map_or(u64::MAX, |sector| sector.0.saturating_mul(SECTOR_BYTES))
}
