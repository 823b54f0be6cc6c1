//! What a member's requests cost, measured: a latency and a time per byte, for reads and for writes.
//!
//! Small requests move the latency, large ones the time per byte; each is a moving average (1/8 of every new
//! sample). Only one in [`SAMPLE_EVERY`] requests is timed, so that a memory device isn't slowed down by the
//! clock.

use std::cell::Cell;

use pinstripe_runtime::atomics::{AtomicU32, Ordering};

use crate::plan::Price;

/// One request in so many is timed. Odd, because reads and writes of a load often take turns.
pub const SAMPLE_EVERY: u32 = 31;
/// Requests up to this many bytes measure the latency.
const SMALL: u64 = 16 << 10;

/// What is faster than any drive is memory, and differences between its measurements are noise.
const NOISE: Price = Price { latency_ns: 5_000, ns_per_kib: 100 };
/// A sample counts as at most so many averages.
const OUTLIER: u32 = 3;

/// What reads cost, by slot, as plans see it: members within a factor of two of the cheapest count as alike,
/// those within four as twice as dear, and so on; one that was not measured counts as the cheapest. Else the
/// noise of measurements would decide between plans of which one reads twice as much.
pub(crate) fn read_prices<'m>(
    members: impl Iterator<Item = Option<&'m MemberCost>> + Clone,
    prices: &[Cell<Price>],
) {
    let least = |part: fn(&Direction) -> &AtomicU32, unknown: u32| {
        let values = members.clone().flatten().map(|member| part(&member.reads).load(Ordering::Relaxed));
        values.filter(|&value| value > 0).min().unwrap_or(unknown)
    };
    let latency = least(|reads| &reads.latency, UNKNOWN.latency_ns).max(NOISE.latency_ns);
    let per_kib = least(|reads| &reads.per_kib, UNKNOWN.ns_per_kib).max(NOISE.ns_per_kib);
    for (price, member) in prices.iter().zip(members) {
        let class = |average: &AtomicU32, least: u32| {
            let times = average.load(Ordering::Relaxed) / least;
            // At most the average itself.
            least * (1 << times.max(1).ilog2())
        };
        let reads = member.map(|member| &member.reads);
        price.set(Price {
            latency_ns: reads.map_or(latency, |reads| class(&reads.latency, latency)),
            ns_per_kib: reads.map_or(per_kib, |reads| class(&reads.per_kib, per_kib)),
        });
    }
}

/// Latency and bandwidth of one direction. Nanoseconds, and nanoseconds per KiB.
#[derive(Default)]
struct Direction {
    latency: AtomicU32,
    per_kib: AtomicU32,
}

/// What is assumed of a member that was not measured yet: a fast drive.
pub(crate) const UNKNOWN: Price = Price { latency_ns: 20_000, ns_per_kib: 400 };

/// Written by every shard without locks; a lost update is one sample lost.
#[derive(Default)]
pub struct MemberCost {
    reads: Direction,
    writes: Direction,
}

impl MemberCost {
    /// What a read costs.
    pub fn read(&self) -> Price {
        self.reads.price()
    }

    /// What a write costs.
    pub fn write(&self) -> Price {
        self.writes.price()
    }

    /// Latencies of a small read and of a small write in nanoseconds; 0 until one was measured.
    pub fn measured_ns(&self) -> [u32; 2] {
        [&self.reads, &self.writes].map(|direction| direction.latency.load(Ordering::Relaxed))
    }

    /// Adds a measured read.
    pub fn record_read(&self, bytes: u64, elapsed_ns: u64) {
        self.reads.record(bytes, elapsed_ns);
    }

    /// Adds a measured write.
    pub fn record_write(&self, bytes: u64, elapsed_ns: u64) {
        self.writes.record(bytes, elapsed_ns);
    }
}

impl Direction {
    fn price(&self) -> Price {
        let or = |value: u32, unknown| if value == 0 { unknown } else { value };
        Price {
            latency_ns: or(self.latency.load(Ordering::Relaxed), UNKNOWN.latency_ns),
            ns_per_kib: or(self.per_kib.load(Ordering::Relaxed), UNKNOWN.ns_per_kib),
        }
    }

    fn record(&self, bytes: u64, elapsed_ns: u64) {
        let (average, sample) = if bytes <= SMALL {
            (&self.latency, elapsed_ns)
        } else {
            let transfer = elapsed_ns.saturating_sub(self.latency.load(Ordering::Relaxed).into());
            (&self.per_kib, transfer.saturating_mul(1024) / bytes)
        };
        let sample = u32::try_from(sample).unwrap_or(u32::MAX).max(1);
        let old = average.load(Ordering::Relaxed);
        let new = if old == 0 {
            sample
        } else {
            // One request that was long under way, for whatever reason, says little about the next.
            let sample = sample.min(old.saturating_mul(OUTLIER));
            // Rounded up, so that small averages can grow.
            (old - old / 8).saturating_add(sample.div_ceil(8))
        };
        average.store(new, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_requests_move_the_latency_and_large_ones_the_bandwidth() {
        let cost = MemberCost::default();
        assert_eq!(cost.read(), UNKNOWN);
        cost.record_read(4096, 100_000);
        cost.record_read(1 << 20, 100_000 + 1024 * 500);
        assert_eq!(cost.read(), Price { latency_ns: 100_000, ns_per_kib: 500 });
        assert_eq!(cost.write(), UNKNOWN);
        for _ in 0..100 {
            cost.record_read(4096, 10_000);
        }
        assert!(cost.read().latency_ns < 11_000, "{:?}", cost.read());
    }

    #[test]
    fn requests_that_took_longer_than_can_be_told_are_the_longest() {
        let cost = MemberCost::default();
        for _ in 0..3 {
            cost.record_read(4096, u64::MAX);
            cost.record_read(1 << 20, u64::MAX);
        }
        assert_eq!(cost.read(), Price { latency_ns: u32::MAX, ns_per_kib: u32::MAX });
    }

    #[test]
    fn members_within_a_factor_of_two_are_alike() {
        let cost = |reads: &[u64]| {
            let cost = MemberCost::default();
            for &ns in reads {
                cost.record_read(4096, ns);
            }
            cost
        };
        let members = [cost(&[10_000]), cost(&[19_000]), cost(&[21_000]), cost(&[90_000]), cost(&[])];
        let prices: [Cell<Price>; 6] = std::array::from_fn(|_| Cell::default());
        let seats =
            [Some(0), Some(1), None, Some(2), Some(3), Some(4)].map(|seat| seat.map(|i: usize| &members[i]));
        read_prices(seats.into_iter(), &prices);
        let latencies = prices.each_ref().map(|price| price.get().latency_ns);
        assert_eq!(latencies, [10_000, 10_000, 10_000, 20_000, 80_000, 10_000]);
        assert!(prices.iter().all(|price| price.get().ns_per_kib == UNKNOWN.ns_per_kib));
    }

    #[test]
    fn one_long_request_moves_the_average_little_and_many_move_it_all_the_way() {
        let cost = MemberCost::default();
        cost.record_read(4096, 1000);
        cost.record_read(4096, 50_000_000);
        assert!(cost.read().latency_ns < 1500, "{:?}", cost.read());
        (0..60).for_each(|_| cost.record_read(4096, 100_000));
        assert!(cost.read().latency_ns > 90_000, "{:?}", cost.read());
    }
}
