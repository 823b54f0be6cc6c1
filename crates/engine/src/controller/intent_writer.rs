//! The bitmap on the members: bits set before data changes, cleared lazily.

use std::{rc::Rc, sync::Arc};

use pinstripe_md::bitmap::bit_position;
use pinstripe_runtime::shard;

use crate::{
    controller::{ArrayController, superblocks::MemberState},
    intent::IntentTable,
    mutants::{Mutant, active},
    shared::Failure,
};

impl ArrayController {
    /// Writes requested bits: one group commit serves all requests made before it began (C7).
    pub(crate) async fn write_intent(self: Rc<Self>) {
        loop {
            // Not the snapshot's: writers under an old table are still to be served when there is a new one.
            let intent = Arc::clone(&self.served.borrow());
            let replaced = || !Arc::ptr_eq(&intent, &self.served.borrow());
            intent.wanted.wait_until(|| intent.has_requests() || replaced() || self.stopped.get()).await;
            if self.stopped.get() {
                return;
            }
            if intent.has_requests() {
                self.commit(&intent).await;
            }
        }
    }

    async fn commit(&self, intent: &IntentTable) {
        let mut lock = self.pages.take().await;
        let mut regions = intent.take_requests();
        let pages = self.change_bits(&regions, true);
        loop {
            let generation = self.shared().snapshot().generation;
            let failures = self.write_bitmap_pages(&pages).await;
            let is_taken = pages.is_empty() || self.is_taken_but_for(&failures);
            drop(lock);
            // A member that could not take the bit is dropped; on load all current members' bits count.
            self.report_failures(failures);
            if is_taken || active(Mutant::BitOnNoMember) {
                break;
            }
            // No write may rely on these bits. Without all these members the array fails, and what waits for
            // the bits gives way.
            let shared = self.shared();
            if shared.until(|| shared.has_moved(generation)).await.is_err() {
                return;
            }
            lock = self.pages.take().await;
        }
        let late = active(Mutant::CommitServesLatecomers).then(|| intent.take_requests());
        regions.extend(late.into_iter().flatten());
        intent.set(&regions);
    }

    /// Whether a member that has everything is not among those that have failed to take what was written to
    /// all. One is enough: without it a dirty array is degraded besides, and does not start.
    fn is_taken_but_for(&self, failures: &[Failure]) -> bool {
        let superblocks = self.superblocks.borrow();
        let has_failed = |id| failures.iter().any(|failure| failure.member == id);
        let mut whole =
            superblocks.membership.active().filter(|(_, record)| record.state == MemberState::InSync);
        whole.any(|(id, _)| !has_failed(id))
    }

    /// Sets or clears bits in the image and returns the pages that changed.
    fn change_bits(&self, regions: &[usize], set: bool) -> Vec<usize> {
        let mut superblocks = self.superblocks.borrow_mut();
        let Some(bitmap) = &mut superblocks.bitmap else { return Vec::new() };
        let mut pages = Vec::new();
        for &region in regions {
            let changed = if set { bitmap.set(region as u64) } else { bitmap.clear(region as u64) };
            if changed && let Some(place) = bit_position(region as u64) {
                pages.push(place.page);
            }
        }
        pages.sort_unstable();
        pages.dedup();
        pages.retain(|page| *page == 0 || !active(Mutant::FirstPageOnly));
        pages
    }

    fn report_failures(&self, failures: Vec<Failure>) {
        for failure in failures {
            self.shared().report(failure.member, failure.error);
        }
    }

    /// Clears the bits of regions that were idle for two sweeps, after a flush of every member (C4); never
    /// while degraded (C8), nor before the bitmap's headers and the superblocks say of this membership that
    /// bits may be cleared (C9): what was written while a member was rebuilt is on all members, and only its
    /// bits tell that a former member lacks it.
    pub(crate) async fn sweep(self: Rc<Self>, interval_ns: u64) {
        while shard::timeout(interval_ns, self.work.wait_until(|| self.stopped.get())).await.is_none() {
            let snapshot = self.shared().snapshot();
            // While writers under another table are left, which are not counted in this one, nothing is idle.
            let settled = self.serves(&snapshot.intent) && !self.bits_frozen.get();
            if self.shared().has_failed()
                || !snapshot.is_complete()
                || !snapshot.intent.is_persistent()
                || !settled
                || !self.is_clearing_recorded()
            {
                continue;
            }
            self.sweep_once(&snapshot.intent).await;
        }
    }

    /// Whether all members know that bits may be cleared under this membership.
    fn is_clearing_recorded(&self) -> bool {
        let is_recorded = self.shared().is_recorded() && self.superblocks.borrow().may_clear();
        is_recorded || active(Mutant::SweepBeforeRecorded)
    }

    /// Whether every writer works under `intent`, and under no other table.
    fn serves(&self, intent: &Arc<IntentTable>) -> bool {
        Arc::ptr_eq(intent, &self.served.borrow()) && Arc::ptr_eq(intent, &self.shared().snapshot().intent)
    }

    pub(crate) async fn sweep_once(&self, intent: &Arc<IntentTable>) {
        let early = active(Mutant::BitClearedEarly);
        let all_set = || (0..intent.len()).filter(|&region| intent.is_set(region)).collect();
        let mut candidates: Vec<usize> = if early { all_set() } else { intent.sweep_candidates() };
        if candidates.is_empty() {
            return;
        }
        let view = self.volume.base().members.view();
        let flushes = !early && !active(Mutant::SweepWithoutFlush);
        if flushes && !self.volume.base().flush_or_report(&view).await.is_empty() {
            return;
        }
        candidates.retain(|&region| early || intent.try_clear(region));
        let lock = self.pages.take().await;
        if self.bits_frozen.get() || !self.serves(intent) {
            // The bitmap is being replaced: these regions may be no regions of what is there now.
            intent.set(&candidates);
            return;
        }
        let pages = self.change_bits(&candidates, false);
        let failures = self.write_bitmap_pages(&pages).await;
        drop(lock);
        self.report_failures(failures);
        // Clear even if a member could not write it: the next write sets the bit on all that are left.
        intent.cleared(&candidates);
    }
}
