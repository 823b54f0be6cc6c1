//! Resync: parity is made to match data where it is unknown, after an unclean stop or because it was never
//! computed.

//!
//! What is recorded of an unfinished resync, so that it isn't done again: with a bitmap, its bits. Without
//! one, the superblocks' `resync_offset`, as MD has it, every ten seconds and at a clean stop. MD's rule,
//! too, is that an array that is being written says 0. And so does one that was not stopped cleanly, until
//! its resync is over: a start that finds another offset takes it that no row is torn.

use std::{ops::Range, rc::Rc};

use pinstripe_runtime::shard;

use super::rebuild::LEG_NS_MIN;
use crate::{
    controller::control::Command,
    error::IoError,
    events::SyncAction,
    geometry::{MemberSlot, Set64, StripeId},
    intent::IntentTable,
    io::{parity::ParityVolume, row::RowRange},
    maintenance::{Maintenance, Walk},
    membership::snapshot::Snapshot,
    mutants::{Mutant, active},
};

/// A walk was ended before it was through.
struct Aborted;

impl Maintenance {
    /// Resyncs every region that needs it. True if none is left.
    pub(super) async fn resync(self: &Rc<Self>) -> bool {
        let geometry = &self.volume.geometry;
        let chunk = u64::from(geometry.chunk_bytes());
        let snapshot = self.controller.shared().snapshot();
        let intent = &snapshot.intent;
        let regions: Vec<usize> = self.regions_to_resync(&snapshot).collect();
        let stripes_of = |region: usize| {
            let end = ((region as u64 + 1) * intent.region_bytes()).min(geometry.member_bytes());
            let end = end.div_ceil(chunk).min(geometry.stripes());
            (intent.left_of(region) / chunk).min(end)..end
        };
        self.begin(
            SyncAction::Resync,
            0,
            regions.iter().map(|&r| stripes_of(r).end - stripes_of(r).start).sum(),
        );
        let mut whole = true;
        let mut recorded = shard::now();
        for region in regions {
            self.with_errors.set(false);
            let is_done = active(Mutant::ResyncMarkForgotten)
                || self.resync_region(intent, stripes_of(region), &mut recorded).await.is_ok();
            if !is_done {
                return false;
            }
            if self.with_errors.get() {
                whole = false;
            } else {
                intent.resynced(region);
            }
            if self.controller.shared().has_failed() {
                // A write that the failure has cut off may have marked it meanwhile.
                intent.set_needs_resync(region, true);
                return false;
            }
        }
        self.resync_in_vain.set(!whole);
        // What was not dirty for writers is clean now: the superblocks may say so.
        if whole && (self.is_idle() || self.controller.awaits_log()) {
            whole = self.controller.command(|reply| Command::Refresh { reply }).await.is_ok();
        }
        whole
    }

    /// The regions that can be resynced now. Without a member too, as long as a parity is left that may say
    /// otherwise than the one of which that member's chunk is made: what is made of both would be wrong on
    /// every member that is lost next. But of torn rows no chunk is made at all (C10).
    pub(super) fn regions_to_resync(&self, snapshot: &Snapshot) -> impl Iterator<Item = usize> {
        let (intent, missing) = (&snapshot.intent, snapshot.missing.len());
        let regions = if missing < self.volume.geometry.redundancy() { intent.len() } else { 0 };
        (0..regions).filter(move |&region| {
            intent.needs_resync(region..=region) && (missing == 0 || !intent.is_torn(region..=region))
        })
    }

    /// Whether the superblocks say how far a resync is, and not that writes are under way.
    fn is_idle(&self) -> bool {
        !self.controller.shared().admission.is_open() && !self.controller.dirty.get()
    }

    /// Walks a region, in steps if what is done can be recorded.
    async fn resync_region(
        self: &Rc<Self>,
        intent: &IntentTable,
        stripes: Range<u64>,
        recorded: &mut u64,
    ) -> Result<(), Aborted> {
        let chunk = u64::from(self.volume.geometry.chunk_bytes());
        let options = &self.controller.shared().options;
        let (checkpoint_ns, step) = (options.checkpoint_ns, options.checkpoint_stripes.max(1));
        let mut next = stripes.start;
        loop {
            let now = shard::now();
            let (to, due) = if is_recorded(intent) {
                let due = (*recorded + checkpoint_ns.max(LEG_NS_MIN)).max(now + LEG_NS_MIN);
                (stripes.end.min(next.saturating_add(step)), due)
            } else {
                (stripes.end, u64::MAX)
            };
            let walk = self.walk(SyncAction::Resync, None, next..to, due).await;
            if walk.aborted.get() {
                return Err(Aborted);
            }
            next = walk.end.get();
            let is_over = next >= stripes.end;
            if !is_over && shard::now() - *recorded < checkpoint_ns && walk.errors.get() == 0 {
                continue;
            }
            // C4: parity must be on the members before anything may say that it matches.
            let flushed = active(Mutant::ResyncWithoutFlush) || self.flush_walked().await;
            if walk.errors.get() > 0 || !flushed {
                self.with_errors.set(true);
            }
            if is_over {
                return Ok(());
            }
            *recorded = shard::now();
            if !self.with_errors.get() && self.controller.shared().snapshot().membership == walk.membership {
                note_resynced(intent, next * chunk);
                if self.is_idle()
                    && self.controller.command(|reply| Command::Refresh { reply }).await.is_err()
                {
                    return Err(Aborted);
                }
            }
        }
    }
}

impl ParityVolume {
    /// Puts down which sectors of torn rows can't be read, when a second try has failed too: they are listed
    /// in the logs of their members, and those of parity too, for of that the lost ones must not be made. So
    /// all other rows of the region have their redundancy again; else it would be torn for ever. False if
    /// not all of it can be listed. Under the stripe's claim.
    pub(super) async fn give_up_rows(
        &self,
        walk: &Walk,
        stripe: StripeId,
        (from, to): (u32, u32),
        row: &mut RowRange,
    ) -> Result<bool, IoError> {
        let geometry = &self.geometry;
        let (base, block, map) =
            (geometry.member_offset(stripe), geometry.logical_block(), geometry.slots(stripe));
        for start in (from..to).step_by(block as usize) {
            let view = self.view_along(walk)?;
            let end = (start + block).min(to);
            let range = (base + u64::from(start), u64::from(end - start));
            match self.compare_rows(&view, stripe, (start, end), walk.correction, row).await {
                Err(IoError::Unreadable { .. }) => {}
                compared => {
                    compared?;
                    continue;
                }
            }
            let parity: Set64 = map.parity_slots().map(MemberSlot::index).collect();
            let slots = row.unreadable.or(view.unreadable(range.0, range.1)).or(parity);
            let intent = &view.snapshot.intent;
            // A member that fails now, or is away, may have them all the same.
            let is_certain = view.snapshot.is_complete()
                && intent.is_torn(intent.regions(range.0, range.1))
                && self.is_latest(&view)
                && !self.shared.has_failures()
                && !self.shared.has_failed();
            let may_list = |slot: usize| {
                self.has_room_in_list(&view, slot, range)
                    && view.replacement_place(slot).is_none()
                    && view.member(slot).is_some_and(|(member, _)| !self.shared.is_ailing(member))
            };
            if !is_certain || !slots.iter().all(may_list) {
                return Ok(false);
            }
            self.shared.cache.remove_rows(stripe.0, start, end);
            for slot in slots {
                let Some(listing) = self.list_if_room(&view, slot, range) else { return Ok(false) };
                if !self.recorded(&view, slot, &[listing]).await {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// Parity matches up to this byte of the members.
pub(super) fn note_resynced(intent: &IntentTable, to: u64) {
    if is_recorded(intent) {
        intent.resynced_to(to);
    }
}

/// Whether the superblocks may say how far a resync of these regions is.
fn is_recorded(intent: &IntentTable) -> bool {
    !intent.is_persistent() && !intent.is_torn(0..=intent.len() - 1)
}
