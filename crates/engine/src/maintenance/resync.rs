//! Resync: parity is made to match data where an unclean stop, or nobody yet, left it unknown.

use std::rc::Rc;

use super::SyncAction;
use crate::{
    array::Home,
    control::Command,
    mutants::{Mutant, active},
};

impl Home {
    /// Resyncs every region that needs it. True if none is left.
    pub(super) async fn resync(self: &Rc<Self>) -> bool {
        let geometry = self.volume.inner.parity_geometry();
        let chunk = u64::from(geometry.chunk_bytes());
        let snapshot = self.shared().snapshot();
        let intent = &snapshot.intent;
        let regions: Vec<usize> =
            (0..intent.len()).filter(|&region| intent.needs_resync(region..=region)).collect();
        let stripes_of = |region: usize| {
            let start = region as u64 * intent.region_bytes();
            let end = (start + intent.region_bytes()).min(geometry.member_bytes());
            start / chunk..end.div_ceil(chunk).min(geometry.stripes())
        };
        self.begin(
            SyncAction::Resync,
            0,
            regions.iter().map(|&r| stripes_of(r).end - stripes_of(r).start).sum(),
        );
        let mut whole = true;
        for region in regions {
            if active(Mutant::ResyncMarkForgotten) {
                intent.resynced(region);
                continue;
            }
            let walk = self.walk(SyncAction::Resync, None, stripes_of(region), u64::MAX).await;
            if walk.aborted.get() {
                return false;
            }
            // C4: parity must be on the members before anything may say that it matches.
            let flushed = active(Mutant::ResyncWithoutFlush) || self.flush_walked().await;
            if walk.errors.get() > 0 || !flushed {
                whole = false;
                continue;
            }
            intent.resynced(region);
        }
        self.upkeep.resync_in_vain.set(!whole);
        // What was not dirty for writers is clean now: the superblocks may say so.
        let refreshes = !self.shared().admission.is_open() && !self.dirty.get() || self.awaits_log();
        if whole && refreshes {
            whole = self.command(|reply| Command::Refresh { reply }).await.is_ok();
        }
        whole
    }
}
