//! What decides between read-modify-write and reconstruct-write: the bytes that they read, or what reading
//! them costs.

use std::cmp::Ordering;

use super::{Facts, Price, WritePolicy};
use crate::geometry::MemberSlot;

/// What the parity kernels cost, in nanoseconds for each KiB that they read: 25 GB/s, a core's share of
/// memory.
pub const COMPUTE_NS_PER_KIB: u64 = 40;

/// A member whose reads have this latency or more moves a head. On such a one a write of what has just been
/// read waits for a revolution.
const MOVES_A_HEAD_NS: u32 = 1_000_000;

/// How much a candidate weighs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Weight {
    /// Bytes that it reads.
    pub(super) bytes: u64,
    /// What the policy wants to be small, the first number before the second.
    order: (u64, u64),
    /// The longest latency of the members that it reads.
    latency_ns: u32,
}

impl Weight {
    /// Of a candidate that reads so many bytes of these members, and has the kernels read `sources` bytes.
    /// `members` are those of the array.
    ///
    /// The price is how long the reads take when they run side by side, plus their share of the array's time.
    /// With `t(m) = latency + bytes * time per byte` for every member that is read, it is `max t(m) +
    /// sum t(m) / members + compute`. The first term is what this write waits for; the second is what others
    /// wait for, and decides where members are alike. Writes are the same for every candidate, so they aren't
    /// in it. It is counted in 1/1024 ns and multiplied by the number of members, so that there is no
    /// rounding. A `u64` is enough: 63 members of 2^24 bytes at 2^32 ns per KiB stay below 2^62, and 64 times
    /// one of them is as much again.
    pub(super) fn of(
        policy: WritePolicy,
        members: usize,
        reads: impl Iterator<Item = (MemberSlot, u64)>,
        sources: u64,
        facts: &impl Facts,
    ) -> Self {
        let (mut bytes, mut longest, mut sum, mut latency_ns) = (0, 0, 0, 0);
        for (slot, length) in reads.filter(|(_, length)| *length > 0) {
            bytes += length;
            if policy == WritePolicy::Cost {
                let Price { latency_ns: latency, ns_per_kib } = facts.price(slot);
                let time = u64::from(latency) * 1024 + length * u64::from(ns_per_kib);
                longest = longest.max(time);
                sum += time;
                latency_ns = latency_ns.max(latency);
            }
        }
        let price = (longest + sources * COMPUTE_NS_PER_KIB) * members as u64 + sum;
        let order = match policy {
            WritePolicy::Cost => (if facts.shares_link() { bytes } else { 0 }, price),
            _ => (bytes, 0),
        };
        Self { bytes, order, latency_ns }
    }

    /// Which of two goes first.
    pub(super) fn compare(&self, other: &Self) -> Ordering {
        self.order.cmp(&other.order)
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
                Ordering::Equal => self.latency_ns < MOVES_A_HEAD_NS,
                order => order.is_lt(),
            },
        }
    }
}
