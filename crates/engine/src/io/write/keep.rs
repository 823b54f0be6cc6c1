//! What the parity cache has of the rows that a stripe write changes.

use super::{context::WriteContext, stripe_write::StripeWrite};
use crate::{
    geometry::StripeId,
    io::parity::ParityVolume,
    membership::snapshot::Snapshot,
    mutants::{Mutant, active},
    plan::{Method, Run},
    stripe::parity_cache::{Key, PAGE_BYTES, Parity},
};

/// Parity of runs up to this many bytes is worth keeping.
const CACHED_RUN_MAX: u32 = 4 * PAGE_BYTES;

impl ParityVolume {
    /// Before parity of a run is written, the cache must not have it any more (C13). What read-modify-write
    /// needed was taken out when it was planned, or was not there.
    pub(super) fn forget_parity(&self, stripe: StripeId, run: &Run) {
        if run.method != Method::Rmw && !active(Mutant::StaleParityCache) {
            self.shared.cache.remove_rows(stripe.0, run.start, run.end);
        }
    }
}

impl StripeWrite<'_> {
    /// After success the cache may have the rows that were written whole.
    pub(super) fn keep_parity(&mut self, snapshot: &Snapshot) {
        let (volume, stripe) = (self.volume, self.stripe);
        let WriteContext { plan, parity, missed, .. } = &mut *self.context;
        if !volume.members.keeps_parity.get() || !missed.is_empty() {
            return;
        }
        for (run, parity) in plan.runs().iter().zip(parity) {
            if run.length() > CACHED_RUN_MAX || active(Mutant::StaleParityCache) && run.method == Method::Full
            {
                continue;
            }
            for (bytes, parity) in parity.iter_mut().zip([Parity::P, Parity::Q]) {
                let Some(bytes) = bytes.take() else { continue };
                let rows = run.start.div_ceil(PAGE_BYTES)..run.end / PAGE_BYTES;
                let key = |row| Key { stripe: stripe.0, row, parity, generation: cache_generation(snapshot) };
                if run.length() == PAGE_BYTES && rows.len() == 1 {
                    volume.shared.cache.insert(key(rows.start), bytes);
                    continue;
                }
                for row in rows {
                    let part = bytes.slice((row * PAGE_BYTES - run.start) as usize, PAGE_BYTES as usize);
                    volume.shared.cache.insert(key(row), part);
                }
            }
        }
    }
}

/// The generation in the keys of cached parity (C13).
pub(super) fn cache_generation(snapshot: &Snapshot) -> u64 {
    if active(Mutant::CacheIgnoresGeneration) { 1 } else { snapshot.generation }
}
