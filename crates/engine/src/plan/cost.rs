//! What a member's requests cost, measured: a latency and a time per byte, for reads and for writes.
//!
//! Small requests move the latency, large ones the time per byte, or the latency if they were shorter than
//! that or much longer; each is a moving average (1/8 of every new sample). Only one in [`SAMPLE_EVERY`]
//! requests is timed, so that a memory device isn't slowed down by the clock.

use std::cell::Cell;

use pinstripe_runtime::atomics::{AtomicU32, Ordering};

use crate::{geometry::MEMBERS_MAX, plan::Price};

/// One request in so many is timed. Odd, because reads and writes of a load often take turns.
pub const SAMPLE_EVERY: u32 = 31;
/// Requests up to this many bytes measure the latency.
const SMALL: u64 = 16 << 10;

/// What is faster than any drive is memory, and differences between its measurements are noise.
const NOISE: Price = Price { latency_ns: 5_000, ns_per_kib: 100, moves_head: false };
/// A sample counts as at most so many averages.
const OUTLIER: u32 = 3;
/// Nothing that serves members transfers more slowly, 50 MB/s: what a large request takes longer is latency.
/// Of a disk that gets large requests only, every byte would seem dear otherwise, and a small read cheap.
const TRANSFER_NS_PER_KIB_MAX: u64 = 20_000;

/// A member with reads of this latency or more moves a head, unless its device says that it doesn't. What a
/// kernel says to the contrary counts less: it takes a virtual machine's disk for one that rotates, whatever
/// is behind it.
const MOVES_HEAD_NS: u32 = 1_000_000;

/// What is assumed of a member that moves a head, 100 MB/s: how long it seeks and how long its queue is
/// varies by more than a transfer takes, so its averages say nothing of that.
const DISK_NS_PER_KIB: u32 = 10_000;

/// What reads cost, by slot, as plans see it: in ascending order, members of which each costs less than
/// twice the one before it count as alike, and as the cheapest of them; one that was not measured counts as
/// the cheapest of all. Else the noise of measurements would decide between plans of which one reads twice as
/// much: averages of like disks under load lie apart by more than a factor of two, but not with nothing
/// between.
///
/// Returns the price of the dearest.
pub(crate) fn read_prices<'m>(
    members: impl Iterator<Item = Option<Measured<'m>>> + Clone,
    prices: &[Cell<Price>],
) -> Price {
    let costs = members.clone().flatten().map(|member| member.cost);
    let latencies = Classes::of(costs.clone(), |price| price.latency_ns);
    let per_kibs = Classes::of(costs, |price| price.ns_per_kib);
    let mut dearest = Price::default();
    for (price, member) in prices.iter().zip(members) {
        let cost = member.map(|member| member.cost);
        let latency_ns = latencies.class(cost);
        let is_flash = member.is_some_and(|member| member.moves_head == Some(false));
        let moves_head = latency_ns >= MOVES_HEAD_NS && !is_flash;
        let ns_per_kib = if moves_head { DISK_NS_PER_KIB } else { per_kibs.class(cost) };
        dearest.latency_ns = dearest.latency_ns.max(latency_ns);
        dearest.ns_per_kib = dearest.ns_per_kib.max(ns_per_kib);
        dearest.moves_head |= moves_head;
        price.set(Price { latency_ns, ns_per_kib, moves_head });
    }
    dearest
}

/// What is known of a member's reads.
#[derive(Clone, Copy)]
pub(crate) struct Measured<'m> {
    pub(crate) cost: &'m MemberCost,
    /// What its device says ([`DeviceInfo::moves_head`](pinstripe_runtime::DeviceInfo::moves_head)).
    pub(crate) moves_head: Option<bool>,
}

/// A part of members' prices, in classes of what is alike.
struct Classes {
    part: fn(Price) -> u32,
    /// What was measured, ascending.
    values: [u32; MEMBERS_MAX],
    count: usize,
}

impl Classes {
    fn of<'m>(members: impl Iterator<Item = &'m MemberCost>, part: fn(Price) -> u32) -> Self {
        let mut classes = Self { part, values: [0; MEMBERS_MAX], count: 0 };
        for member in members {
            if let Some(value) = classes.value(member) {
                classes.values[classes.count] = value;
                classes.count += 1;
            }
        }
        classes.values[..classes.count].sort_unstable();
        classes
    }

    /// `None` if nothing was measured. Of a member whose reads were all large and quick, the latency is
    /// unknown and small; of one whose reads were all small, the bandwidth.
    fn value(&self, member: &MemberCost) -> Option<u32> {
        member.reads.is_measured().then(|| (self.part)(member.read()).max((self.part)(NOISE)))
    }

    /// The cheapest member's average of those that are like this one.
    fn class(&self, member: Option<&MemberCost>) -> u32 {
        let sorted = &self.values[..self.count];
        let Some(&least) = sorted.first() else { return (self.part)(UNKNOWN) };
        let value = member.and_then(|member| self.value(member)).unwrap_or(least);
        let (mut class, mut last) = (least, least);
        // Other shards may have changed it meanwhile: then it counts as what was measured below it.
        for &next in sorted.iter().take_while(|&&next| next <= value) {
            if next / 2 >= last {
                class = next;
            }
            last = next;
        }
        class
    }
}

/// Latency and bandwidth of one direction. Nanoseconds, and nanoseconds per KiB.
#[derive(Default)]
struct Direction {
    latency: AtomicU32,
    per_kib: AtomicU32,
}

/// What is assumed of a member that was not measured yet: a fast drive.
pub(crate) const UNKNOWN: Price = Price { latency_ns: 20_000, ns_per_kib: 400, moves_head: false };

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
    fn is_measured(&self) -> bool {
        [&self.latency, &self.per_kib].iter().any(|average| average.load(Ordering::Relaxed) > 0)
    }

    fn price(&self) -> Price {
        let or = |value: u32, unknown| if value == 0 { unknown } else { value };
        Price {
            latency_ns: or(self.latency.load(Ordering::Relaxed), UNKNOWN.latency_ns),
            ns_per_kib: or(self.per_kib.load(Ordering::Relaxed), UNKNOWN.ns_per_kib),
            moves_head: false,
        }
    }

    fn record(&self, bytes: u64, elapsed_ns: u64) {
        let (average, sample) = if bytes <= SMALL {
            (&self.latency, elapsed_ns)
        } else {
            let latency = self.latency.load(Ordering::Relaxed).into();
            let transfer = elapsed_ns.saturating_sub(latency);
            let transfer_max = bytes.saturating_mul(TRANSFER_NS_PER_KIB_MAX) / 1024;
            if elapsed_ns < latency {
                (&self.latency, elapsed_ns)
            } else if transfer > transfer_max {
                (&self.latency, elapsed_ns - transfer_max)
            } else {
                (&self.per_kib, transfer.saturating_mul(1024) / bytes)
            }
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
        assert_eq!(cost.read(), Price { latency_ns: 100_000, ns_per_kib: 500, moves_head: false });
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
        assert_eq!(cost.read(), Price { latency_ns: u32::MAX, ..UNKNOWN });
    }

    /// Members of which each has answered small reads in so long; none if that is 0.
    fn members(latencies: &[u64]) -> Vec<MemberCost> {
        let member = |&ns: &u64| {
            let cost = MemberCost::default();
            if ns > 0 {
                cost.record_read(4096, ns);
            }
            cost
        };
        latencies.iter().map(member).collect()
    }

    /// Of members that don't tell whether they move a head.
    fn untold<'m>(
        seats: impl Iterator<Item = Option<&'m MemberCost>> + Clone,
    ) -> impl Iterator<Item = Option<Measured<'m>>> + Clone {
        seats.map(|cost| Some(Measured { cost: cost?, moves_head: None }))
    }

    fn latency_classes(seats: &[Option<&MemberCost>]) -> (Vec<u32>, Price) {
        let prices = vec![Cell::<Price>::default(); seats.len()];
        let dearest = read_prices(untold(seats.iter().copied()), &prices);
        (prices.iter().map(|price| price.get().latency_ns).collect(), dearest)
    }

    #[test]
    fn a_class_ends_where_the_next_member_costs_twice_as_much() {
        let members = members(&[10_000, 19_000, 40_000, 79_000, 158_000, 0]);
        let mut seats: Vec<_> = members.iter().map(Some).collect();
        seats.insert(2, None);
        let (classes, dearest) = latency_classes(&seats);
        assert_eq!(classes, [10_000, 10_000, 10_000, 40_000, 40_000, 158_000, 10_000]);
        assert_eq!(dearest, Price { latency_ns: 158_000, ..UNKNOWN });
    }

    #[test]
    fn like_disks_under_load_are_alike_though_the_slowest_seems_thrice_as_slow() {
        let members = members(&[17_000_000, 31_000_000, 51_000_000, 24_000_000, 40_000_000]);
        let seats: Vec<_> = members.iter().map(Some).collect();
        assert_eq!(latency_classes(&seats).0, [17_000_000; 5]);
        // One that is much slower is not.
        (0..100).for_each(|_| members[3].record_read(4096, 200_000_000));
        let (classes, dearest) = latency_classes(&seats);
        assert!(classes[3] > 150_000_000 && dearest.latency_ns == classes[3], "{classes:?}");
        assert_eq!([classes[0], classes[1], classes[2], classes[4]], [17_000_000; 4]);
    }

    #[test]
    fn of_disks_no_average_says_how_fast_they_transfer() {
        let disks = members(&[30_000_000, 30_000_000, 100_000]);
        for disk in &disks[1..] {
            (0..20).for_each(|_| disk.record_read(64 << 10, 31_000_000));
            disk.record_read(64 << 10, 110_000);
        }
        let prices: [Cell<Price>; 3] = std::array::from_fn(|_| Cell::default());
        read_prices(untold(disks.iter().map(Some)), &prices);
        assert_eq!(prices[0].get(), prices[1].get());
        assert_eq!(prices[0].get().ns_per_kib, DISK_NS_PER_KIB);
    }

    #[test]
    fn a_slow_member_moves_a_head_unless_it_says_no_and_a_fast_one_never_does() {
        let members = members(&[30_000_000, 30_000_000, 30_000_000, 100_000, 100_000]);
        let told = [Some(false), Some(true), None, Some(true), None];
        let seats = members.iter().zip(told).map(|(cost, moves_head)| Some(Measured { cost, moves_head }));
        let prices: [Cell<Price>; 5] = std::array::from_fn(|_| Cell::default());
        assert!(read_prices(seats, &prices).moves_head);
        let found = prices.each_ref().map(|price| (price.get().moves_head, price.get().ns_per_kib));
        let [flash, disk] = [(false, UNKNOWN.ns_per_kib), (true, DISK_NS_PER_KIB)];
        assert_eq!(found, [flash, disk, disk, flash, flash]);
    }

    #[test]
    fn what_is_faster_than_any_drive_is_alike() {
        let members = members(&[900, 4_000, 9_000, 90_000]);
        let seats: Vec<_> = members.iter().map(Some).collect();
        assert_eq!(latency_classes(&seats).0, [5_000, 5_000, 5_000, 90_000]);
        assert_eq!(latency_classes(&[None, Some(&MemberCost::default())]).0, [UNKNOWN.latency_ns; 2]);
    }

    #[test]
    fn disks_beside_flash_are_alike_though_their_averages_differ() {
        let cost = |ns| {
            let cost = MemberCost::default();
            cost.record_read(4096, ns);
            cost
        };
        // A power of two of the flash drive's average lies between those of the disks.
        let members = [cost(100_000), cost(12_000_000), cost(13_500_000), cost(11_000_000)];
        let prices: [Cell<Price>; 4] = std::array::from_fn(|_| Cell::default());
        read_prices(untold(members.iter().map(Some)), &prices);
        let latencies = prices.each_ref().map(|price| price.get().latency_ns);
        assert_eq!(latencies, [100_000, 11_000_000, 11_000_000, 11_000_000]);
    }

    #[test]
    fn a_member_that_was_slow_for_large_reads_is_not_like_those_that_were_quick() {
        let cost = |ns| {
            let cost = MemberCost::default();
            cost.record_read(64 << 10, ns);
            cost
        };
        // The slow one has a latency, and no bandwidth; the others the other way round.
        let members = [cost(60_000), cost(90_000), cost(2_000_000), MemberCost::default()];
        let prices: [Cell<Price>; 4] = std::array::from_fn(|_| Cell::default());
        read_prices(untold(members.iter().map(Some)), &prices);
        let cheapest = prices[0].get();
        assert_eq!(prices[3].get().latency_ns, cheapest.latency_ns);
        assert!(prices[1].get().ns_per_kib < 4 * cheapest.ns_per_kib, "{:?}", prices[1].get());
        assert!(prices[2].get().latency_ns > 10 * cheapest.latency_ns, "{:?}", prices[2].get());
    }

    #[test]
    fn what_a_large_request_takes_longer_than_any_transfer_is_latency() {
        let cost = MemberCost::default();
        for _ in 0..100 {
            cost.record_read(64 << 10, 10_000_000);
        }
        let most = 64 * u32::try_from(TRANSFER_NS_PER_KIB_MAX).unwrap();
        assert!(cost.read().latency_ns.abs_diff(10_000_000 - most) < 100_000, "{:?}", cost.read());
        // Shorter ones bring it down again.
        (0..100).for_each(|_| cost.record_read(64 << 10, 1_000_000));
        assert!(cost.read().latency_ns < 1_100_000, "{:?}", cost.read());
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
