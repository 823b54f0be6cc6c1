//! Each model alone against the figures that it was fitted to.
#![expect(clippy::cast_precision_loss, reason = "rates need no 53 bits")]

use std::collections::BinaryHeap;

use super::*;
use crate::rng::Rng;

const KIB: u64 = 1 << 10;
const GIGABYTE: u64 = 1_000_000_000;

fn drive(name: &str) -> Drive {
    Drive::new(Model::named(name).unwrap(), 0)
}

/// A drive with its clock: requests one after the other.
struct Alone {
    drive: Drive,
    submitted: u64,
}

impl Alone {
    fn new(drive: Drive) -> Self {
        Self { drive, submitted: 0 }
    }

    /// When the request ends; other requests may be under way, and none comes meanwhile.
    fn end_of(&mut self, now: u64, operation: Operation, offset: u64, length: u64) -> u64 {
        while self.drive.next_turn().is_some_and(|turn| turn <= now) {
            self.drive.turn();
        }
        self.submitted += 1;
        let request = Request { number: self.submitted, operation, offset, length };
        let mut known = self.drive.submit(now, request);
        loop {
            if let Some(end) = known {
                return end;
            }
            let endings = self.drive.turn();
            assert!(!endings.is_empty() || self.drive.next_turn().is_some(), "{request:?} never ends");
            known = endings.iter().find(|ending| ending.number == self.submitted).map(|ending| ending.at);
        }
    }

    /// When nothing is left to do.
    fn rest(&mut self) -> u64 {
        let mut last = 0;
        while let Some(turn) = self.drive.next_turn() {
            last = turn;
            self.drive.turn();
        }
        match &self.drive.state {
            State::Head(_) => last,
            State::Channels(state) => state.busy_until(),
        }
    }
}

/// How a closed loop goes over a drive.
#[derive(Clone, Copy)]
struct Load {
    operation: Operation,
    depth: usize,
    length: u64,
    random: bool,
    count: u64,
    /// Bytes from the drive's first on.
    within: u64,
}

const SEQUENTIAL: Load = Load {
    operation: Operation::Read,
    depth: 32,
    length: 128 * KIB,
    random: false,
    count: 20_000,
    within: 640 * GIGABYTE,
};
const RANDOM: Load = Load { depth: 256, length: 4 * KIB, random: true, count: 40_000, ..SEQUENTIAL };

/// Requests per second of a closed loop from `now` on.
fn rate_from(drive: &mut Drive, load: &Load, now: u64) -> f64 {
    let (mut rng, mut ends, mut under_way) = (Rng::new(1), BinaryHeap::new(), 0);
    let (mut number, mut at) = (0, now);
    while number < load.count || under_way > 0 {
        while under_way < load.depth && number < load.count {
            let place = if load.random { rng.below(load.within / load.length) } else { number };
            let offset = place * load.length;
            let request = Request { number, operation: load.operation, offset, length: load.length };
            ends.extend(drive.submit(at, request).map(std::cmp::Reverse));
            (number, under_way) = (number + 1, under_way + 1);
        }
        let end = ends.peek().map(|&std::cmp::Reverse(end)| end);
        match (drive.next_turn(), end) {
            (Some(turn), end) if end.is_none_or(|end| turn <= end) => {
                at = at.max(turn);
                ends.extend(drive.turn().into_iter().map(|ending| std::cmp::Reverse(ending.at)));
            }
            (_, Some(end)) => {
                assert!(end >= at, "{end} is before {at}");
                (at, under_way) = (end, under_way - 1);
                ends.pop();
            }
            (_, None) => panic!("{under_way} requests never end"),
        }
    }
    load.count as f64 * 1e9 / (at - now) as f64
}

fn rate(name: &str, load: &Load) -> f64 {
    rate_from(&mut drive(name), load, 0)
}

/// Of random requests of 4 KiB on a disk.
fn disk_rate(name: &str, operation: Operation, depth: usize, within: u64) -> f64 {
    rate(name, &Load { operation, depth, within, count: 5_000, ..RANDOM })
}

/// Of flash.
fn busy_until(drive: &Drive) -> u64 {
    Alone::new(drive.clone()).rest()
}

fn assert_near(name: &str, what: &str, found: f64, published: f64) {
    let error = (found / published - 1.0).abs();
    assert!(error < 0.05, "{name}, {what}: {found:.0} and not {published:.0}");
}

#[test]
fn sequential_bandwidths_are_those_that_are_published() {
    let published = [
        ("7200rpm", 106.0, 106.0),
        ("7200rpm-write-through", 106.0, 106.0),
        ("7200rpm-in-order", 106.0, 106.0),
        ("x25-e", 250.0, 170.0),
        ("860-pro", 510.0, 500.0),
        ("970-pro", 3200.0, 2200.0),
        ("980-pro", 6900.0, 5000.0),
        ("optane-pm", 6600.0, 2300.0),
    ];
    for (name, read, write) in published {
        for (operation, megabytes) in [(Operation::Read, read), (Operation::Write, write)] {
            let load = Load { operation, ..SEQUENTIAL };
            assert_near(name, "MB/s", rate(name, &load) * load.length as f64 / 1e6, megabytes);
        }
    }
}

#[test]
fn random_requests_come_as_often_as_is_published() {
    let published = [
        // 0.3 ms, a seek, half a revolution; whatever waits, where the drive doesn't sort.
        ("7200rpm-write-through", 1, 1e3 / (0.3 + 8.9 + 4.17), 1e3 / (0.3 + 9.7 + 4.17)),
        ("7200rpm-in-order", 1, 1e3 / (0.3 + 8.9 + 4.17), 1e3 / (0.3 + 9.7 + 4.17)),
        ("7200rpm-in-order", 32, 1e3 / (0.3 + 8.9 + 4.17), 1e3 / (0.3 + 9.7 + 4.17)),
        ("x25-e", 1, 13_333.0, 11_764.0),
        ("x25-e", 32, 35_000.0, 14_000.0),
        ("860-pro", 1, 11_000.0, 43_000.0),
        ("860-pro", 32, 100_000.0, 90_000.0),
        ("970-pro", 1, 15_000.0, 55_000.0),
        ("970-pro", 128, 370_000.0, 500_000.0),
        ("980-pro", 1, 22_000.0, 60_000.0),
        ("980-pro", 512, 1_000_000.0, 1_000_000.0),
        // 305 ns and 4 KiB at 6.6 GB/s; 100 ns and 4 KiB at 2.3 GB/s.
        ("optane-pm", 1, 1e9 / 925.0, 1e9 / 1880.0),
    ];
    for (name, depth, reads, writes) in published {
        for (operation, published) in [(Operation::Read, reads), (Operation::Write, writes)] {
            let load = Load { operation, depth, ..RANDOM };
            assert_near(name, &format!("requests/s at depth {depth}"), rate(name, &load), published);
        }
    }
}

/// CrystalDiskMark over 1 GB of three disks: random requests of 4 KiB a second. [`DISK_7200`](super::models)
/// names the sources.
const PUBLISHED: [[f64; 4]; 3] =
    [[79.7, 232.3, 273.8, 239.3], [95.0, 209.5, 286.2, 336.5], [100.3, 305.7, 354.5, 357.2]];

#[test]
fn a_queue_makes_random_reads_of_a_disk_as_much_faster_as_is_published() {
    let gains = PUBLISHED.map(|[alone, queued, ..]| queued / alone);
    let published = gains.into_iter().fold(f64::MAX, f64::min)..gains.into_iter().fold(0.0, f64::max);
    let reads = |name, depth| disk_rate(name, Operation::Read, depth, GIGABYTE);
    let gain = reads("7200rpm", 32) / reads("7200rpm", 1);
    assert!(published.contains(&gain), "{gain:.2} and not {published:?}");
    let in_order = reads("7200rpm-in-order", 32) / reads("7200rpm-in-order", 1);
    assert!((in_order - 1.0).abs() < 0.01, "{in_order}");
    // Each of more requests is nearer than each of fewer.
    let rates = [1, 2, 4, 8, 16, 32].map(|depth| reads("7200rpm", depth));
    assert!(rates.is_sorted(), "{rates:?}");
    // The drive sees no more.
    let beyond = reads("7200rpm", 128) / reads("7200rpm", 32);
    assert!(beyond < 1.05, "{beyond}");
}

#[test]
fn a_write_cache_makes_as_many_random_writes_at_any_depth_as_are_published() {
    let all = PUBLISHED.map(|[_, _, alone, queued]| [alone, queued]).concat();
    let published = all.iter().copied().fold(f64::MAX, f64::min)..all.iter().copied().fold(0.0, f64::max);
    let writes = |name, depth| disk_rate(name, Operation::Write, depth, GIGABYTE);
    for depth in [1, 32] {
        let rate = writes("7200rpm", depth);
        assert!(published.contains(&rate), "depth {depth}: {rate:.0} and not {published:?}");
    }
    let gain = writes("7200rpm", 1) / writes("7200rpm-write-through", 1);
    assert!(gain > 1.5, "{gain}");
}

#[test]
fn a_cached_write_is_read_from_the_cache_and_written_after_reads() {
    let mut disk = Alone::new(drive("7200rpm"));
    // The head goes to the first at once; the second waits in the cache.
    disk.end_of(0, Operation::Write, GIGABYTE, 4 * KIB);
    let written = disk.end_of(0, Operation::Write, 4 * GIGABYTE, 64 * KIB);
    assert!(written < 600_000, "{written}");
    let again = disk.end_of(written, Operation::Read, 4 * GIGABYTE + 8 * KIB, 4 * KIB) - written;
    assert!(again < 400_000, "{again}");
    // A read overtakes it, so that the flush ends after both.
    let read = disk.end_of(written, Operation::Read, 8 * GIGABYTE, 4 * KIB);
    let flushed = disk.end_of(written, Operation::Flush, 0, 0);
    assert!(flushed > read, "{flushed} {read}");
    // What is written through waits for the head.
    let through = disk.end_of(flushed, Operation::WriteFua, GIGABYTE, 4 * KIB) - flushed;
    assert!(through > 2_800_000, "{through}");
}

#[test]
fn a_full_cache_takes_a_write_when_another_is_on_the_platter() {
    let mut disk = Alone::new(drive("7200rpm"));
    let ends: Vec<u64> =
        (1..=40).map(|number| disk.end_of(0, Operation::Write, number * GIGABYTE, 4 * KIB)).collect();
    assert!(ends[..32].iter().all(|&end| end < 400_000), "{ends:?}");
    assert!(ends[32..].is_sorted() && ends[32] > 2_800_000, "{ends:?}");
    let rest = disk.rest();
    assert!(rest > ends[39] && disk.drive.next_turn().is_none());
    assert_eq!(disk.end_of(rest, Operation::Flush, 0, 0), rest + 300_000);
}

#[test]
fn a_longer_request_never_ends_earlier_on_an_idle_drive() {
    let mut rng = Rng::new(2);
    for name in NAMES {
        let mut used = Alone::new(drive(name));
        used.end_of(0, Operation::Write, 1 << 30, 64 * KIB);
        for _ in 0..2000 {
            let operation = rng.pick(&[Operation::Read, Operation::Write, Operation::WriteFua]);
            let (now, offset) = (SECOND_NS + rng.below(SECOND_NS), rng.below(1 << 30) * 512);
            let short = rng.below(2048) * 512;
            let long = short + rng.below(2048) * 512;
            let [short, long] = [short, long]
                .map(|length| Alone::new(used.drive.clone()).end_of(now, operation, offset, length));
            assert!(now < long && short <= long, "{name}: {short} {long}");
        }
    }
}

#[test]
fn random_writes_are_slow_when_the_spare_area_is_used_up_until_the_drive_had_time() {
    let writes = Load { operation: Operation::Write, depth: 32, ..RANDOM };
    for (name, fresh, used_up) in [("x25-e", 14_000.0, 3_300.0), ("980-pro", 1_000_000.0, 400_000.0)] {
        let mut drive = drive(name);
        assert_near(name, "fresh", rate_from(&mut drive, &Load { depth: 512, ..writes }, 0), fresh);
        let fill = Load { operation: Operation::Write, length: 1 << 20, count: 60_000, ..SEQUENTIAL };
        rate_from(&mut drive, &fill, 10 * SECOND_NS);
        let now = busy_until(&drive);
        assert_near(name, "used up", rate_from(&mut drive, &Load { depth: 512, ..writes }, now), used_up);
        // A stream goes on as the bandwidth allows.
        let now = busy_until(&drive);
        let stream = Load { operation: Operation::Write, ..SEQUENTIAL };
        let bandwidth = rate_from(&mut drive, &stream, now) * stream.length as f64 / 1e6;
        assert_near(name, "stream", bandwidth, if name == "x25-e" { 170.0 } else { 2600.0 });
        let rested = busy_until(&drive) + 300 * SECOND_NS;
        assert_near(name, "rested", rate_from(&mut drive, &Load { depth: 512, ..writes }, rested), fresh);
    }
}

#[test]
fn a_disk_goes_on_without_positioning_and_waits_a_revolution_to_write_what_it_has_read() {
    let revolution = 60 * SECOND_NS / 7200;
    let transfer = 64 * KIB * SECOND_NS / 106_000_000;
    let mut disk = Alone::new(Drive::new(Model::named("7200rpm-write-through").unwrap(), 12345));
    let read = disk.end_of(0, Operation::Read, 1 << 20, 64 * KIB);
    let next = disk.end_of(read, Operation::Read, (1 << 20) + 64 * KIB, 64 * KIB);
    assert_eq!(next - read, transfer);
    let written = disk.end_of(next, Operation::Write, (1 << 20) + 64 * KIB, 64 * KIB);
    // Angles are rounded to nanoseconds.
    assert!((written - next).abs_diff(revolution) <= 2, "{}", written - next);
}

#[test]
fn a_seek_takes_longer_the_farther_it_goes_and_what_is_published_on_average() {
    let Mechanism::Head(head) = Model::named("7200rpm").unwrap().mechanism else { panic!("a disk") };
    assert_eq!(Seek::through(2_000_000, 8_900_000, 21_000_000), head.seek);
    let over = |share: u64| {
        let mut disk = Alone::new(drive("7200rpm"));
        disk.end_of(0, Operation::Read, 0, 512);
        let offset = head.capacity / 100 * share / 512 * 512;
        // The wait for the angle is less than a revolution.
        disk.end_of(SECOND_NS, Operation::Read, offset, 512) - SECOND_NS
    };
    assert!(over(0) < head.revolution_ns + 400_000);
    assert!(over(99) > 20_000_000 && over(99) < 22_000_000 + head.revolution_ns);
}

#[test]
fn a_flush_waits_for_what_is_under_way_where_there_is_a_cache() {
    let mut flash = Alone::new(drive("860-pro"));
    let written = flash.end_of(0, Operation::Write, 0, 1 << 20);
    assert_eq!(flash.end_of(0, Operation::Flush, 0, 0), written + 500_000);
    assert_eq!(flash.end_of(written, Operation::Flush, 0, 0), written + 500_000);
    let mut disk = Alone::new(drive("7200rpm-write-through"));
    disk.end_of(0, Operation::Write, 0, 1 << 20);
    assert_eq!(disk.end_of(5, Operation::Flush, 0, 0), 5);
}

#[test]
fn every_name_is_a_model_and_no_other_is() {
    for name in NAMES {
        assert_eq!(Model::named(name).unwrap().name, name);
    }
    assert_eq!(Model::named("990-pro"), None);
}

#[test]
fn a_disk_moves_a_head_flash_does_not_and_what_was_measured_does_not_tell() {
    for name in NAMES {
        assert_eq!(Model::named(name).unwrap().moves_head(), Some(name.starts_with("7200rpm")), "{name}");
    }
    let speed = Speed::measured(4 * KIB, 8_000_000, 100, 100_000_000);
    assert_eq!(Model::measured(speed, speed, None, 1, false).moves_head(), None);
}

#[test]
fn a_drive_that_was_written_for_long_is_slow_from_the_first_random_write_on() {
    let load = Load { operation: Operation::Write, ..RANDOM };
    let fresh = rate_from(&mut drive("x25-e"), &load, 0);
    let used_up = rate_from(&mut drive("x25-e").used_up(), &load, 0);
    assert_near("x25-e", "fresh", fresh, 14_000.0);
    assert_near("x25-e", "used up", used_up, 3_300.0);
}

#[test]
fn a_measured_model_is_as_fast_as_what_was_measured() {
    let read = Speed::measured(4 * KIB, 200_000, 20_000, 400_000_000);
    let write = Speed::measured(4 * KIB, 100_000, 10_000, 300_000_000);
    let model = Model::measured(read, write, Some(2_000_000), 32, false);
    let of = |load: &Load| rate_from(&mut Drive::new(model, 0), load, 0);
    assert_near("measured", "reads one by one", of(&Load { depth: 1, ..RANDOM }), 5_000.0);
    assert_near("measured", "reads", of(&RANDOM), 20_000.0);
    assert_near("measured", "bandwidth", of(&SEQUENTIAL) * (128 * KIB) as f64, 4e8);
    let writes = Load { operation: Operation::Write, ..RANDOM };
    assert_near("measured", "writes", of(&writes), 10_000.0);
    assert_eq!(Alone::new(Drive::new(model, 0)).end_of(0, Operation::Flush, 0, 0), 2_000_000);
}

#[test]
fn reads_dont_wait_for_writes_where_each_has_bandwidth_of_its_own() {
    let speed = Speed::measured(4 * KIB, 1_000_000, 1_000, 400_000_000);
    for (duplex, expected) in [(false, 2_000_000), (true, 1_000_000)] {
        let mut drive = Alone::new(Drive::new(Model::measured(speed, speed, None, 32, duplex), 0));
        assert_eq!(drive.end_of(0, Operation::Write, 0, 4 * KIB), 1_000_000);
        assert_eq!(drive.end_of(0, Operation::Read, 0, 4 * KIB), expected);
    }
}
