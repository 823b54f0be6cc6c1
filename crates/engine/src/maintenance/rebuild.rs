//! Rebuild: a member that is recovering, or the target of a replacement, gets what it is to hold.
//!
//! A recovering member's chunks are made from the others. A replacement's are copied from the member that is
//! still there, and made from the others only where that can't be read. Either goes on from the recovery
//! offset of its superblock, and leaves out what the device is known to hold: where a member came back by
//! bitmap, every region with a clean bit.
//!
//! Of rows that a crash may have torn nothing is made (C10). They are what their own members have, parity
//! that the resync will make. So a member that comes back by bitmap keeps them: without it no write of its
//! data there has been carried out, and what was acknowledged before was forced to its medium. A device that
//! has nothing of them takes no slot before they are resynced, and of a replacement's source it gets what
//! that can read.

use std::{ops::Range, rc::Rc};

use pinstripe_runtime::{DeviceError, DeviceErrorKind, shard};

use super::Walk;
use crate::{
    controller::control::Command,
    error::{IoError, Operation},
    events::SyncAction,
    geometry::{MemberSlot, Role, Set64, StripeId},
    io::{
        heal::in_single_rows,
        parity::ParityVolume,
        remote::reduce::Lost,
        row::{RowRange, Want},
    },
    maintenance::Maintenance,
    members::MemberId,
    membership::snapshot::{Snapshot, View},
    mutants::{Mutant, active, in_32_bits},
    stripe::parity_cache::PAGE_BYTES,
};

/// Legs that are cut for a checkpoint take at least this long: at the end of each the workers wait for the
/// last one.
pub(super) const LEG_NS_MIN: u64 = 1_000_000_000;

impl Maintenance {
    /// Rebuilds a device from where its superblock says. True if it is whole now.
    pub(super) async fn recover(self: &Rc<Self>, slot: usize, member: MemberId) -> bool {
        let geometry = &self.volume.geometry;
        let (chunk, stripes) = (u64::from(geometry.chunk_bytes()), geometry.stripes());
        // C27: a write under an earlier membership may be about to set a bit that this device needs.
        if !active(Mutant::BitsReadUndrained) && !active(Mutant::EarlierMembershipTrusted) {
            self.controller.shared().admission.drained().await;
        }
        // A walk begins with the membership of that moment. Without its target it would make the chunks of
        // the slot's own member anew.
        let holds_place = || self.controller.shared().snapshot().slot_of(member) == Some(slot);
        if let Some(journal) = self.controller.journal() {
            // While the only parity's member was out, rows were logged and written without parity. The log
            // may still have older parity of them: put back over what is rebuilt, it would make other bytes
            // of a member that is lost then.
            let shared = self.controller.shared();
            let over = || self.controller.stopped.get() || shared.has_failed() || !holds_place();
            journal.give_up(over).await;
            if over() {
                return false;
            }
        }
        let todo = self.left_to_recover(&self.controller.shared().snapshot(), member);
        let left: u64 = todo.iter().map(|range| range.end - range.start).sum();
        self.begin(SyncAction::Rebuild, stripes - left, stripes);
        let checkpoint_ns = self.controller.shared().options.checkpoint_ns;
        let mut recorded = shard::now();
        for range in todo {
            let mut next = range.start;
            let range = range.start..range.end - u64::from(active(Mutant::RebuildEndsEarly));
            while next < range.end {
                if !holds_place() {
                    return false;
                }
                let step =
                    next..range.end.min(next + self.controller.shared().options.checkpoint_stripes.max(1));
                let due = (recorded + checkpoint_ns.max(LEG_NS_MIN)).max(shard::now() + LEG_NS_MIN);
                let walk = self.walk(SyncAction::Rebuild, Some((slot, member)), step, due).await;
                if walk.aborted.get() || walk.errors.get() > 0 {
                    return self.report_target(slot, member, &walk);
                }
                next = walk.end.get();
                if next < stripes && shard::now() - recorded >= checkpoint_ns {
                    recorded = shard::now();
                    if !self.record_recovery(member, next * chunk).await {
                        return false;
                    }
                }
            }
        }
        self.controller.command(|reply| Command::Recovered { member, reply }).await.is_ok()
    }

    /// Whether a member that is being rebuilt has all that set bits don't cover.
    pub(super) fn came_back(&self, member: MemberId) -> bool {
        let superblocks = self.controller.superblocks.borrow();
        let record = &superblocks.membership.device(member).superblock.member;
        // The bitmap may have gone in an update that the device's superblock missed: then all is missing.
        record.recovery_by_bitmap && self.controller.shared().snapshot().intent.is_persistent()
    }

    /// The stripes that a device lacks, ascending. What is between them is valid.
    fn left_to_recover(&self, snapshot: &Snapshot, member: MemberId) -> Vec<Range<u64>> {
        let geometry = &self.volume.geometry;
        let (chunk, stripes) = (u64::from(geometry.chunk_bytes()), geometry.stripes());
        let (from, by_bits_to) = {
            let superblocks = self.controller.superblocks.borrow();
            let device = superblocks.membership.device(member);
            let record = &device.superblock.member;
            let from = record.recovery_offset.map_or(0, |sector| sector.0 * 512);
            let whole = self.came_back(member).then_some(geometry.member_bytes());
            (from, whole.unwrap_or(device.valid_but_for_bits))
        };
        let first_whole = (from.max(by_bits_to) / chunk).min(stripes);
        let mut todo: Vec<Range<u64>> = Vec::new();
        let intent = &snapshot.intent;
        let mut skips = active(Mutant::ReaddSkipsRegion);
        for region in (0..intent.len()).filter(|&region| intent.is_set(region)) {
            let start = in_32_bits(Mutant::RegionPlaceWraps, region as u64 * intent.region_bytes());
            let end = start + intent.region_bytes();
            let range = (start.max(from) / chunk)..end.div_ceil(chunk).min(first_whole);
            if range.is_empty() || std::mem::take(&mut skips) {
                continue;
            }
            match todo.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => todo.push(range),
            }
        }
        match todo.last_mut() {
            Some(last) if last.end >= first_whole => last.end = stripes,
            _ if first_whole < stripes => todo.push(first_whole..stripes),
            _ => {}
        }
        todo
    }

    /// A rebuild that can't read its sources can't go on; the target must not be taken for whole. It is
    /// dropped, for nothing that it has done, and no other spare is tried: it would end in the same way. Not
    /// if a source has failed: then another membership follows, or the array has failed, and not its target.
    fn report_target(&self, slot: usize, member: MemberId, walk: &Walk) -> bool {
        let has_failed = self.shall_end(walk) || self.controller.shared().has_failures();
        if !walk.aborted.get() && !has_failed {
            let view = self.volume.members.view();
            let unreadable = DeviceError::of(DeviceErrorKind::Media);
            if view.snapshot.slot_of(member) == Some(slot) {
                self.controller.spares_rest.set(true);
                let place = view.replacement_place(slot).unwrap_or(slot);
                self.volume.members.report(&view, place, Operation::Rebuild, 0, unreadable);
            }
        }
        false
    }

    /// Everything below `offset` is on the target: flushed, then recorded (C4).
    async fn record_recovery(&self, member: MemberId, offset: u64) -> bool {
        if !(active(Mutant::CheckpointWithoutFlush) || self.flush_walked().await) {
            return false;
        }
        self.controller.command(|reply| Command::Checkpoint { member, offset, reply }).await.is_ok()
    }
}

impl ParityVolume {
    /// Writes rows of the target's chunk of a stripe: copied from the member that it replaces, or made from
    /// all others.
    pub(super) async fn rebuild_rows(
        &self,
        view: &View,
        stripe: StripeId,
        (from, to): (u32, u32),
        slot: usize,
        row: &mut RowRange,
    ) -> Result<(), IoError> {
        let geometry = &self.geometry;
        let offset = geometry.member_offset(stripe) + u64::from(from);
        let target = view.replacement_place(slot);
        if let Some(target) = target
            && let Some(bytes) = self.read_replaced(view, slot, offset, to - from).await?
        {
            return self.write_place(view, target, offset, (bytes, false)).await;
        }
        if target.is_some() && to - from > PAGE_BYTES && !active(Mutant::ReplacedByChunk) {
            // Only rows that it can't read are made from the others, and written to it too.
            return Err(IoError::Unreadable { stripe: stripe.0, missing: 1 });
        }
        let map = geometry.slots(stripe);
        let member = MemberSlot::at(slot);
        if target.is_none() && self.may_reduce(view) {
            let lost = Lost { stripe, slot: member, from };
            let (is_read, bytes) = self.read_lost(view, lost, shard::buffer((to - from) as usize)).await;
            if is_read {
                return self.write_slot(view, slot, offset, (bytes.freeze(), false)).await;
            }
        }
        let role = map.role(member);
        let columns = match role {
            Role::Data(column) => Set64::only(column),
            Role::P | Role::Q => Set64::below(map.columns()),
        };
        let want = Want { columns, parity: false, avoid: Set64::only(slot) };
        let place = target.unwrap_or(slot);
        match self.read_row(view, stripe, (from, to), want, row).await {
            // The target can't get this block, and says so in its log: all others are made. Where it has no
            // log, or that is full, it is dropped, and no other spare is tried (decision 7). The target of a
            // replacement gets no less by that than the member has that it replaces.
            Err(error @ IoError::Unreadable { .. })
                if to - from <= geometry.logical_block()
                    && self.has_list(view, place)
                    && (self.is_row_lost(view, stripe, from) || target.is_some() && self.is_latest(view)) =>
            {
                let listed = self.record_lost(view, place, (offset, (to - from).into())).await?;
                return if listed { Ok(()) } else { Err(error) };
            }
            read => read?,
        }
        in_single_rows(stripe, (from, to), row)?;
        self.heal(view, stripe, (from, to), row).await?;
        let bytes = match role {
            Role::Data(column) => row.data[column].clone().ok_or(IoError::Failed)?,
            Role::P => self.parity_of(map, row, to - from, true, false).0.ok_or(IoError::Failed)?,
            Role::Q => self.parity_of(map, row, to - from, false, true).1.ok_or(IoError::Failed)?,
        };
        // Where the member that is to be replaced could not be read, it is mended too (C14).
        self.write_slot(view, slot, offset, (bytes, false)).await
    }

    /// A range of the member that is being replaced; nothing if the medium can't deliver it.
    async fn read_replaced(
        &self,
        view: &View,
        slot: usize,
        offset: u64,
        length: u32,
    ) -> Result<Option<pinstripe_runtime::Slice>, IoError> {
        if view.readable(slot, offset, length.into()).is_none() {
            return Ok(None);
        }
        let buffer = shard::buffer(length as usize);
        let Some(submission) = self.submit_read(view, slot, offset, buffer) else { return Ok(None) };
        let outcome = submission.await;
        match (outcome.result, outcome.buffer) {
            (Ok(_), Some(buffer)) => Ok(Some(buffer.freeze())),
            (Err(error), _) if error.kind != DeviceErrorKind::Media => {
                self.members.report_data(view, slot, Operation::Read, offset, error);
                Err(IoError::Stopping)
            }
            _ => Ok(None),
        }
    }
}
