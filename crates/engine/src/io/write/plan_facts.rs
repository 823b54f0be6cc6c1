//! What the planner asks of a stripe that is being written.

use pinstripe_runtime::Slice;

use super::keep::cache_generation;
use crate::{
    geometry::{MemberSlot, StripeId},
    io::parity::ParityVolume,
    membership::snapshot::View,
    plan::{Ahead, Facts, Price},
    stripe::parity_cache::{Key, Parity},
};

/// What the planner asks: prices of members, and what the parity cache has.
pub(super) struct PlanFacts<'a> {
    pub(super) volume: &'a ParityVolume,
    pub(super) view: &'a View,
    pub(super) stripe: StripeId,
    pub(super) rows: &'a mut Vec<(Parity, u32, Slice)>,
    /// Pretends that members are alike. A stripe write that is timed does: else a member that was dear once
    /// would never be read again, and stay so. As dear as the dearest: to read more of disks than needed
    /// costs them a seek, and to read more of flash costs it little.
    pub(super) explores: bool,
}

impl Facts for PlanFacts<'_> {
    fn price(&self, slot: MemberSlot) -> Price {
        let members = &self.volume.members;
        if self.explores { members.price_if_alike.get() } else { members.read_prices[slot.index()].get() }
    }

    fn ahead(&self, slot: MemberSlot, start: u32) -> Ahead {
        let Some((member, _)) = self.view.member(slot.index()).filter(|_| !self.explores) else {
            return Ahead::default();
        };
        let offset = self.volume.geometry.member_offset(self.stripe) + u64::from(start);
        self.volume.members.ahead(member, member.data_offset + offset)
    }

    fn shares_link(&self) -> bool {
        self.view.shares_link
    }

    fn is_cached(&mut self, parity: Parity, row: u32) -> bool {
        if self.rows.iter().any(|(p, r, _)| (*p, *r) == (parity, row)) {
            return true;
        }
        let key =
            Key { stripe: self.stripe.0, row, parity, generation: cache_generation(&self.view.snapshot) };
        // Taken out: whatever the plan, this parity is about to be written (C13).
        let cache = &self.volume.shared.cache;
        let found = cache.take(&key);
        if found.is_none() && cache.is_enabled() {
            self.volume.counters().cache_misses.add(1);
        }
        found.map(|bytes| self.rows.push((parity, row, bytes))).is_some()
    }
}
