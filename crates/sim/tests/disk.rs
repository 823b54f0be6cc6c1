//! What a simulated disk promises and what it does not: one test for each.
#![allow(clippy::unwrap_used, reason = "a test may stop at whatever it did not expect")]

use std::{cell::RefCell, collections::BTreeSet, rc::Rc};

use pinstripe_runtime::{Device, DeviceErrorKind, ZeroedReads, shard};
use pinstripe_sim::{
    Drive, Fault, Model, Operation, Schedule, SimDisk, SimDiskConfig, Trigger, World, WorldConfig,
    drive::Request,
};

const KIB: u64 = 1024;

fn world_with(seed: u64, config: SimDiskConfig) -> (World, SimDisk) {
    let mut world = World::new(WorldConfig { log_events_max: 40, ..WorldConfig::new(seed, 2) });
    let disk = world.add_disk(config);
    (world, disk)
}

fn world(seed: u64) -> (World, SimDisk) {
    world_with(seed, SimDiskConfig::new("disk", 64 * KIB))
}

fn on<T: 'static>(
    world: &mut World,
    disk: &SimDisk,
    client: impl AsyncFnOnce(Rc<dyn Device>) -> T + 'static,
) -> T {
    let disk = disk.clone();
    world.block_on(0, "client", 100_000, async move { client(disk.attach()).await }).unwrap()
}

async fn write(
    device: &dyn Device,
    offset: u64,
    length: usize,
    value: u8,
    fua: bool,
) -> Result<usize, DeviceErrorKind> {
    let mut data = shard::buffer(length);
    data.fill(value);
    device.write(offset, data.freeze(), fua).await.result.map_err(|error| error.kind)
}

async fn read(device: &dyn Device, offset: u64, length: usize) -> Result<Vec<u8>, DeviceErrorKind> {
    let outcome = device.read(offset, shard::buffer(length)).await;
    let buffer = outcome.buffer.expect("a read always brings its buffer back");
    outcome.result.map(|_| buffer.to_vec()).map_err(|error| error.kind)
}

/// First bytes of each of the first `sectors` sectors.
fn heads(disk: &SimDisk, sectors: usize) -> Vec<u8> {
    disk.peek(0, sectors * 512).chunks(512).map(|sector| sector[0]).collect()
}

#[test]
fn reads_see_what_was_written() {
    for seed in 0..20 {
        let (mut world, disk) = world(seed);
        let read = on(&mut world, &disk, async |device| {
            write(&*device, 512, 5 * 4096, 7, false).await.unwrap();
            read(&*device, 0, 6 * 4096).await.unwrap()
        });
        let expected: Vec<u8> =
            (0..6 * 4096).map(|at| if (512..512 + 5 * 4096).contains(&at) { 7 } else { 0 }).collect();
        assert_eq!(read, expected);
        assert!(world.leak_report().is_clean(), "{}", world.leak_report());
    }
}

#[test]
fn a_power_loss_leaves_unflushed_writes_whole_torn_or_not_at_all() {
    let mut seen = BTreeSet::new();
    for seed in 0..60 {
        let (mut world, disk) = world(seed);
        on(&mut world, &disk, async |device| write(&*device, 0, 4 * 512, 1, false).await.unwrap());
        assert_eq!(heads(&disk, 4), [1; 4]);
        world.crash();
        seen.insert(heads(&disk, 4));
        assert_eq!(disk.peek(0, 2048), disk.peek_durable(0, 2048));
    }
    assert!(seen.contains(&vec![0; 4]) && seen.contains(&vec![1; 4]) && seen.len() > 4, "{seen:?}");
}

#[test]
fn a_flush_makes_durable_what_was_completed_before_it() {
    for seed in 0..60 {
        let (mut world, disk) = world(seed);
        on(&mut world, &disk, async |device| {
            write(&*device, 0, 2048, 1, false).await.unwrap();
            device.flush().await.result.unwrap();
        });
        assert_eq!(disk.unflushed_sectors(), 0);
        world.crash();
        assert_eq!(heads(&disk, 4), [1; 4]);
    }
}

#[test]
fn a_flush_does_not_cover_a_write_that_was_in_flight_when_it_came() {
    let mut lost = 0;
    for seed in 0..60 {
        let (mut world, disk) = world(seed);
        on(&mut world, &disk, async |device| {
            let data = shard::zeroed(512);
            let mut data = data;
            data.fill(1);
            let write = device.write(0, data.freeze(), false);
            let flush = device.flush();
            write.await.result.unwrap();
            flush.await.result.unwrap();
        });
        world.crash();
        lost += usize::from(heads(&disk, 1) == [0]);
    }
    assert!(lost > 5, "{lost}");
}

#[test]
fn a_forced_write_is_durable_when_it_completes() {
    for seed in 0..60 {
        let (mut world, disk) = world(seed);
        on(&mut world, &disk, async |device| {
            write(&*device, 0, 2048, 1, false).await.unwrap();
            write(&*device, 512, 1024, 2, true).await.unwrap();
        });
        world.crash();
        assert_eq!(heads(&disk, 4)[1..3], [2; 2]);
    }
}

#[test]
fn without_a_volatile_cache_completed_writes_are_durable() {
    for seed in 0..40 {
        let config = SimDiskConfig { volatile_cache: false, ..SimDiskConfig::new("disk", 64 * KIB) };
        let (mut world, disk) = world_with(seed, config);
        on(&mut world, &disk, async |device| write(&*device, 0, 2048, 1, false).await.unwrap());
        world.crash();
        assert_eq!(heads(&disk, 4), [1; 4]);
    }
}

#[test]
fn the_death_of_the_process_loses_no_completed_write() {
    for seed in 0..40 {
        let (mut world, disk) = world(seed);
        on(&mut world, &disk, async |device| write(&*device, 0, 2048, 1, false).await.unwrap());
        world.kill();
        assert_eq!(heads(&disk, 4), [1; 4]);
    }
}

#[test]
fn a_write_in_flight_at_a_crash_happens_whole_torn_or_not_at_all() {
    for volatile_cache in [false, true] {
        let mut seen = BTreeSet::new();
        for seed in 0..100 {
            let config = SimDiskConfig { volatile_cache, ..SimDiskConfig::new("disk", 64 * KIB) };
            let (mut world, disk) = world_with(seed, config);
            let attached = disk.clone();
            world.spawn(0, "cut off", async move {
                write(&*attached.attach(), 0, 2048, 1, false).await.unwrap();
            });
            world.run_until(100, |_| disk.counters().writes == 1).unwrap();
            world.crash();
            assert!(world.leak_report().is_clean(), "{}", world.leak_report());
            seen.insert(heads(&disk, 4));
        }
        assert!(seen.contains(&vec![0; 4]) && seen.contains(&vec![1; 4]) && seen.len() > 3, "{seen:?}");
    }
}

#[test]
fn a_crash_does_not_tear_below_the_tear_unit() {
    for seed in 0..100 {
        let config =
            SimDiskConfig { logical_block: 4096, tear_bytes: 4096, ..SimDiskConfig::new("disk", 64 * KIB) };
        let (mut world, disk) = world_with(seed, config);
        on(&mut world, &disk, async |device| {
            for value in 1..4 {
                write(&*device, 0, 16384, value, false).await.unwrap();
            }
        });
        world.crash();
        for block in heads(&disk, 32).chunks(8) {
            assert!(block.iter().all(|&value| value == block[0]), "{block:?}");
        }
    }
}

#[test]
fn overlapping_writes_in_flight_land_in_any_order_and_mix_by_sectors() {
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let (mut world, disk) = world(seed);
        on(&mut world, &disk, async |device| {
            let data = [1, 2].map(|value| {
                let mut data = shard::buffer(2048);
                data.fill(value);
                data.freeze()
            });
            let [a, b] = data.map(|data| device.write(0, data, false));
            a.await.result.unwrap();
            b.await.result.unwrap();
        });
        seen.insert(heads(&disk, 4));
    }
    assert!(seen.contains(&vec![1; 4]) && seen.contains(&vec![2; 4]) && seen.len() > 2, "{seen:?}");
    assert!(seen.iter().flatten().all(|&value| value != 0), "{seen:?}");
}

#[test]
fn requests_complete_in_any_order() {
    let mut orders = BTreeSet::new();
    for seed in 0..60 {
        let (mut world, disk) = world(seed);
        let order = Rc::new(RefCell::new(Vec::new()));
        for number in 0..3_u64 {
            let (disk, order) = (disk.clone(), Rc::clone(&order));
            world.spawn(0, "reader", async move {
                read(&*disk.attach(), number * 4096, 4096).await.unwrap();
                order.borrow_mut().push(number);
            });
        }
        world.run_until(10_000, |_| order.borrow().len() == 3).unwrap();
        orders.insert(order.take());
    }
    assert_eq!(orders.len(), 6);
}

#[test]
fn a_latent_error_is_healed_by_a_write_and_only_there() {
    let (mut world, disk) = world(1);
    disk.poke(0, &[5; 4096]);
    disk.fault(&Fault::UnreadableRange(1024..2048));
    on(&mut world, &disk, async |device| {
        assert_eq!(read(&*device, 0, 4096).await, Err(DeviceErrorKind::Media));
        assert_eq!(read(&*device, 0, 1024).await, Ok(vec![5; 1024]));
        write(&*device, 1024, 512, 6, false).await.unwrap();
        assert_eq!(read(&*device, 1024, 512).await, Ok(vec![6; 512]));
        assert_eq!(read(&*device, 1536, 512).await, Err(DeviceErrorKind::Media));
    });
}

#[test]
fn a_failed_read_brings_back_a_buffer_that_looks_like_no_answer() {
    let (mut world, disk) = world(1);
    disk.poke(0, &[5; 512]);
    disk.fault(&Fault::UnreadableRange(0..512));
    on(&mut world, &disk, async |device| {
        let outcome = device.read(0, shard::zeroed(512)).await;
        let buffer = outcome.buffer.unwrap();
        assert!(buffer[..] != [0; 512] && buffer[..] != [5; 512]);
    });
}

#[test]
fn writes_to_an_unwritable_range_fail_until_it_is_healed() {
    let (mut world, disk) = world(1);
    disk.fault(&Fault::UnwritableRange(0..512));
    let again = disk.clone();
    on(&mut world, &disk, async move |device| {
        assert_eq!(write(&*device, 0, 1024, 1, false).await, Err(DeviceErrorKind::Media));
        assert_eq!(write(&*device, 512, 512, 1, false).await, Ok(512));
        again.fault(&Fault::Heal);
        assert_eq!(write(&*device, 0, 1024, 1, false).await, Ok(1024));
    });
}

#[test]
fn a_flush_after_a_failed_one_does_not_make_good_what_that_lost() {
    let mut lost = 0;
    for seed in 0..60 {
        let (mut world, disk) = world(seed);
        disk.fault(&Fault::FailFlushes(1));
        on(&mut world, &disk, async |device| {
            write(&*device, 0, 512, 1, false).await.unwrap();
            assert_eq!(device.flush().await.result.unwrap_err().kind, DeviceErrorKind::Media);
            assert!(device.flush().await.result.is_ok());
        });
        world.crash();
        lost += usize::from(heads(&disk, 1) == [0]);
    }
    assert!(lost > 5, "{lost}");
}

#[test]
fn a_forced_write_that_fails_by_its_flush_loses_what_is_in_the_cache_and_that_is_told_once() {
    let (mut lost, mut kept) = ([0; 2], 0);
    for seed in 0..60 {
        let config = SimDiskConfig { forces_by_flush: true, ..SimDiskConfig::new("disk", 64 * KIB) };
        let (mut world, disk) = world_with(seed, config);
        assert!(disk.info().forces_by_flush);
        disk.fault(&Fault::FailFlushes(1));
        on(&mut world, &disk, async |device| {
            write(&*device, 0, 512, 1, false).await.unwrap();
            assert_eq!(write(&*device, 512, 512, 2, true).await, Err(DeviceErrorKind::Media));
            write(&*device, 1024, 512, 3, true).await.unwrap();
            assert!(device.flush().await.result.is_ok());
        });
        world.crash();
        let heads = heads(&disk, 3);
        lost[0] += usize::from(heads[0] == 0);
        lost[1] += usize::from(heads[1] == 0);
        kept += usize::from(heads[2] == 3);
    }
    assert!(lost[0] > 5 && lost[1] > 5, "{lost:?}");
    assert_eq!(kept, 60, "what is forced later is durable");
}

#[test]
fn when_a_device_goes_pending_and_later_requests_fail() {
    for seed in 0..20 {
        let (mut world, disk) = world(seed);
        let there = disk.clone();
        on(&mut world, &disk, async move |device| {
            let pending = device.read(0, shard::buffer(512));
            there.fault(&Fault::Gone);
            let outcome = pending.await;
            assert_eq!(outcome.result.unwrap_err().kind, DeviceErrorKind::Gone);
            assert!(outcome.buffer.is_some());
            assert_eq!(write(&*device, 0, 512, 1, true).await, Err(DeviceErrorKind::Gone));
            assert_eq!(device.flush().await.result.unwrap_err().kind, DeviceErrorKind::Gone);
            there.fault(&Fault::Return);
            assert_eq!(read(&*device, 0, 512).await, Ok(vec![0; 512]));
        });
    }
}

#[test]
fn a_hung_disk_completes_nothing_and_its_late_writes_land_on_release() {
    let (mut world, disk) = world(1);
    let there = disk.clone();
    on(&mut world, &disk, async move |device| {
        there.fault(&Fault::Hang);
        let late = write(&*device, 0, 512, 1, false);
        assert!(shard::timeout(10_000_000_000, late).await.is_none(), "the wait ends, not the request");
        assert_eq!(there.peek(0, 512), [0; 512]);
        there.fault(&Fault::Release);
        assert_eq!(read(&*device, 512, 512).await, Ok(vec![0; 512]));
        shard::sleep(10_000_000).await;
        assert_eq!(there.peek(0, 512), [1; 512]);
    });
    assert!(world.leak_report().is_clean(), "{}", world.leak_report());
}

#[test]
fn planned_faults_happen_at_their_request_and_at_their_time() {
    let (mut world, disk) = world(1);
    disk.plan(Trigger::AtRequest(1), Fault::RefuseRequests(1));
    disk.plan(Trigger::AtTime(2_000_000_000), Fault::Gone);
    on(&mut world, &disk, async |device| {
        assert_eq!(write(&*device, 0, 512, 1, false).await, Ok(512));
        assert_eq!(write(&*device, 0, 512, 1, false).await, Err(DeviceErrorKind::Busy));
        assert_eq!(write(&*device, 0, 512, 1, false).await, Ok(512));
        shard::sleep(2_000_000_000).await;
        assert_eq!(write(&*device, 0, 512, 1, false).await, Err(DeviceErrorKind::Gone));
    });
}

#[test]
fn a_plan_releases_a_hung_disk_though_nothing_else_happens() {
    let (mut world, disk) = world(1);
    disk.fault(&Fault::Hang);
    disk.plan(Trigger::AtTime(5_000_000_000), Fault::Release);
    let result = on(&mut world, &disk, async |device| write(&*device, 0, 512, 1, false).await);
    assert_eq!(result, Ok(512));
    assert!(world.now() >= 5_000_000_000);
}

#[test]
fn a_slow_disk_is_slow() {
    let (mut world, disk) = world(1);
    disk.fault(&Fault::SlowBy(1000));
    on(&mut world, &disk, async |device| read(&*device, 0, 512).await.unwrap());
    assert!(world.now() >= 10_000_000);
}

#[test]
fn discarded_sectors_hold_anything_unless_the_disk_says_zero() {
    for discard_zeroes in [false, true] {
        let mut seen = BTreeSet::new();
        for seed in 0..40 {
            let config = SimDiskConfig { discard_zeroes, ..SimDiskConfig::new("disk", 64 * KIB) };
            let (mut world, disk) = world_with(seed, config);
            disk.poke(0, &[5; 1024]);
            on(&mut world, &disk, async |device| device.discard(0, 512).await.result.unwrap());
            let head = disk.peek(0, 1024);
            assert_eq!(head[512..], [5; 512]);
            seen.insert(match head[..512] {
                ref all if all == [0; 512] => "zero",
                ref all if all == [5; 512] => "old",
                _ => "noise",
            });
        }
        assert_eq!(seen.len(), if discard_zeroes { 1 } else { 3 }, "{seen:?}");
    }
}

#[test]
fn requests_that_do_not_fit_are_refused() {
    let config = SimDiskConfig {
        logical_block: 4096,
        zeroes: ZeroedReads::Unsupported,
        discards: false,
        ..SimDiskConfig::new("disk", 64 * KIB)
    };
    let (mut world, disk) = world_with(1, config);
    on(&mut world, &disk, async |device| {
        assert_eq!(read(&*device, 512, 4096).await, Err(DeviceErrorKind::Invalid));
        assert_eq!(read(&*device, 64 * KIB, 4096).await, Err(DeviceErrorKind::Invalid));
        assert_eq!(write(&*device, 0, 512, 1, false).await, Err(DeviceErrorKind::Invalid));
        assert_eq!(read(&*device, u64::MAX - 4095, 4096).await, Err(DeviceErrorKind::Invalid));
        let kind = |result: Result<usize, pinstripe_runtime::DeviceError>| result.unwrap_err().kind;
        assert_eq!(kind(device.write_zeroes(0, 4096).await.result), DeviceErrorKind::Unsupported);
        assert_eq!(kind(device.discard(0, 4096).await.result), DeviceErrorKind::Unsupported);
    });
}

#[test]
fn inline_completions_do_the_same() {
    let config = SimDiskConfig { inline: 1024, ..SimDiskConfig::new("disk", 64 * KIB) };
    let (mut world, disk) = world_with(1, config);
    on(&mut world, &disk, async |device| {
        write(&*device, 0, 4096, 3, true).await.unwrap();
        assert_eq!(read(&*device, 0, 4096).await, Ok(vec![3; 4096]));
        device.write_zeroes(0, 512).await.result.unwrap();
        device.flush().await.result.unwrap();
        assert_eq!(read(&*device, 0, 512).await, Ok(vec![0; 512]));
    });
    assert_eq!(world.now(), 0, "nothing took any time");
    assert_eq!(disk.unflushed_sectors(), 0);
}

#[test]
fn a_modelled_disk_ends_each_request_when_its_drive_says() {
    let mut model = Drive::new(Model::named("7200rpm-write-through").unwrap(), 123);
    let drive = model.clone();
    let wanted = Request { number: 0, operation: Operation::Write, offset: 16 * KIB, length: 4096 };
    let written = model.submit(0, wanted).unwrap();
    let wanted = Request { number: 1, operation: Operation::Read, offset: 8 * KIB, length: 8192 };
    // The drive gets it as its head becomes free.
    assert_eq!(model.submit(written, wanted), None);
    let read_again = model.turn()[0].at;
    // No time passes but for the disk.
    let schedule = Some(Schedule::orderly());
    let mut world = World::new(WorldConfig { schedule, ..WorldConfig::new(1, 1) });
    let disk = world.add_disk(SimDiskConfig::modelled("disk", 64 * KIB, drive));
    let ends = on(&mut world, &disk, async |device| {
        write(&*device, 16 * KIB, 4096, 3, false).await.unwrap();
        let written = shard::now();
        read(&*device, 8 * KIB, 8192).await.unwrap();
        (written, shard::now())
    });
    assert_eq!(ends, (written, read_again));
    assert_eq!(disk.unflushed_sectors(), 0, "there is no cache");
}

#[test]
fn a_modelled_disk_reads_what_its_head_passes_first_and_not_what_came_first() {
    let ends = |name: &str| {
        let schedule = Some(Schedule::orderly());
        let mut world = World::new(WorldConfig { schedule, ..WorldConfig::new(1, 1) });
        let drive = Drive::new(Model::named(name).unwrap(), 0);
        let disk = world.add_disk(SimDiskConfig::modelled("disk", 1 << 30, drive));
        on(&mut world, &disk, async |device| {
            // The head is at 0; then a far request waits, and one right behind the first.
            let [first, far, near] =
                [0, 512 << 20, 4 * KIB].map(|offset| device.read(offset, shard::buffer(4096)));
            first.await.result.unwrap();
            let started = shard::now();
            near.await.result.unwrap();
            let near = shard::now() - started;
            far.await.result.unwrap();
            (near, shard::now() - started)
        })
    };
    let (near, all) = ends("7200rpm");
    assert!(near < 100_000 && all > 2_000_000, "{near} {all}");
    let (near, all) = ends("7200rpm-in-order");
    assert!(near > 2_000_000 && all == near, "{near} {all}");
}

#[test]
fn a_write_of_a_modelled_disk_ends_in_its_cache_and_a_flush_waits_for_the_head() {
    let schedule = Some(Schedule::orderly());
    let mut world = World::new(WorldConfig { schedule, ..WorldConfig::new(1, 1) });
    let drive = Drive::new(Model::named("7200rpm").unwrap(), 0);
    let disk = world.add_disk(SimDiskConfig::modelled("disk", 1 << 30, drive));
    assert!(disk.info().volatile_cache);
    let [written, flushed] = on(&mut world, &disk, async |device| {
        for number in 0..8 {
            write(&*device, number * 100 * 1024 * KIB, 4096, 3, false).await.unwrap();
        }
        let written = shard::now();
        device.flush().await.result.unwrap();
        [written, shard::now()]
    });
    assert!(written < 8 * 400_000, "{written}");
    assert!(flushed > 15_000_000, "eight seeks: {flushed}");
}

#[test]
fn every_shard_attaches_through_the_source_and_gets_its_own_completions() {
    let (mut world, disk) = world(4);
    for index in 0..2 {
        let source = disk.source();
        let bytes = world.block_on(index, "client", 10_000, async move {
            let device = source.attach().unwrap();
            write(&*device, 0, 512, 9, false).await.unwrap();
            read(&*device, 0, 512).await.unwrap()
        });
        assert_eq!(bytes.unwrap(), [9; 512]);
    }
    let source = disk.source();
    drop((world, disk));
    let error = source.attach().err().unwrap();
    assert_eq!(error.kind, DeviceErrorKind::Gone, "the world is no more");
}
