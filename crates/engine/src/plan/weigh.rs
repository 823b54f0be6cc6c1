//! What decides between read-modify-write and reconstruct-write: the bytes that they read, or what reading
//! them costs.

use std::cmp::Ordering;

use super::{Ahead, Facts, Price, WritePolicy};
use crate::geometry::MemberSlot;

/// What the parity kernels cost, in nanoseconds for each KiB that they read: 25 GB/s, a core's share of
/// memory.
pub const COMPUTE_NS_PER_KIB: u64 = 40;

/// How much a candidate weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Weight {
    /// Bytes that it reads.
    pub(super) bytes: u64,
    /// What the policy wants to be small, the first number before the second.
    order: (u64, u64),
    /// Whether a member that it reads moves a head. There a write of what has just been read waits for a
    /// revolution.
    is_seeking: bool,
}

impl Weight {
    /// Of a candidate that reads so many bytes of these members, from this byte of the chunk on, and has the
    /// kernels read `sources` bytes. `members` are those of the array.
    ///
    /// The price is how long the reads take when they run side by side, plus how long they keep members busy
    /// for others. With `t(m) = latency + bytes * time per byte` for every member that is read, and `b(m)`
    /// what of it the member can serve nothing else (of flash, the transfer alone), it is
    /// `max t(m) + sum b(m) * w(m) + compute`. The first term is what this write waits for. The second is
    /// what others wait for. Of flash `w(m)` is `requests under way at m + 1 / members`: where a member has a
    /// queue, everything behind it; and a share of the array's time, which decides where members are alike
    /// and have nothing to do. Of a member that moves a head it is `requests under way at m / 2 + 1`: it
    /// sorts what waits, and what its cache has taken keeps it busy although nothing is under way
    /// (docs/results/papers/raid4s.md). Writes are the same for every candidate, so they aren't in it. It is
    /// counted in 1/1024 ns and multiplied by twice the number of members, so that there is no rounding.
    pub(super) fn of(
        policy: WritePolicy,
        members: usize,
        reads: impl Iterator<Item = (MemberSlot, u32, u64)>,
        sources: u64,
        facts: &impl Facts,
    ) -> Self {
        let twice = 2 * members as u64;
        let (mut bytes, mut longest, mut busy, mut is_seeking) = (0, 0, 0_u64, false);
        for (slot, start, length) in reads.filter(|(_, _, length)| *length > 0) {
            bytes += length;
            if policy == WritePolicy::Cost {
                let Price { latency_ns, ns_per_kib, moves_head } = facts.price(slot);
                let Ahead { requests, goes_on } = facts.ahead(slot, start);
                let way = if moves_head && goes_on { 0 } else { u64::from(latency_ns) * 1024 };
                let transfer = length * u64::from(ns_per_kib);
                let time = if moves_head { way + transfer } else { transfer };
                let requests = u64::from(requests);
                let waiting =
                    if moves_head { requests * members as u64 + twice } else { requests * twice + 2 };
                longest = longest.max(way + transfer);
                busy = busy.saturating_add(time.saturating_mul(waiting));
                is_seeking |= moves_head;
            }
        }
        // 2^24 bytes at 2^32 ns per KiB are 2^56, and there are at most 63 members.
        let alone = (longest + sources * COMPUTE_NS_PER_KIB) * twice;
        let price = alone.saturating_add(busy);
        let order = match policy {
            WritePolicy::Cost => (if facts.shares_link() { bytes } else { 0 }, price),
            _ => (bytes, 0),
        };
        Self { bytes, order, is_seeking }
    }

    /// Which of two goes first.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        self.order.cmp(&other.order)
    }

    /// Whether a plan that reconstructs, of this weight, is better than another. Ties go as in
    /// [`Self::beats`].
    pub(super) fn replaces(&self, other: &Self) -> bool {
        match self.compare(other) {
            Ordering::Equal => self.is_seeking,
            order => order.is_lt(),
        }
    }

    /// Whether a read-modify-write of this weight is better than a reconstruct-write of the other; both write
    /// `length` bytes of each column.
    pub(super) fn beats(&self, reconstruct: &Self, policy: WritePolicy, length: u64) -> bool {
        match policy {
            WritePolicy::AlwaysRmw => true,
            WritePolicy::ModThreshold => self.bytes <= reconstruct.bytes + length,
            WritePolicy::MinReads => self.compare(reconstruct).is_lt(),
            // What it writes it has read before: half as many ranges of memory are touched.
            WritePolicy::Cost => match self.compare(reconstruct) {
                Ordering::Equal => !self.is_seeking,
                order => order.is_lt(),
            },
        }
    }
}
