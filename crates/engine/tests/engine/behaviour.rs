//! What the engine does under load, faults, crashes and changes of its bitmap, in the simulated world.

use std::{
    cell::{Cell, RefCell},
    ops::Range,
    pin::pin,
    rc::Rc,
    sync::Arc,
};

use crate::arrays::{
    self, STEPS, options,
    scene::{DATA_SECTOR, Scene, client, clients, lay_out, plain_disks, spawn, superblock_on, wish, write},
};
use pinstripe_block::{
    BlockService, Client,
    locks::Locks,
    rate::{RateLimit, Rates},
};
use pinstripe_engine::{
    array::CommandError,
    assembly::{AssembleError, create::create_placed},
    error::IoError,
    geometry::StripeId,
    io::service::VolumeService,
    latency::{ClientOperation, Latencies, bounds_ns},
    options::ArrayOptions,
    plan::WritePolicy,
    shared::Shared,
    statistics::Statistics,
};
use pinstripe_md::{
    level::{Layout, Level, Raid0Layout},
    placement::{InitialSync, NewBitmap, NewLog},
    superblock::Role,
    units::MemberSlot,
};
use pinstripe_runtime::{DeviceSource, Memory, MemorySource, shard};
use pinstripe_sim::{Fault, SimDisk, SimDiskConfig, World, WorldConfig};

const REGION: u64 = 64 << 10;
const BITMAP: NewBitmap = NewBitmap::Internal { chunk_bytes: Some(65536) };
const DATA: u64 = DATA_SECTOR * 512;

fn raid5(seed: u64, shards: usize) -> Scene {
    Scene::new(seed, wish(Level::Raid5, 4, 16 << 10, BITMAP, InitialSync::AssumeClean), shards)
}

fn statistics(shared: &Shared) -> Statistics {
    Statistics::sum(shared.counters.iter().map(|counters| &**counters))
}

/// The disk with an array sector's data, and where on it.
fn place(scene: &Scene, sector: u64) -> (usize, Range<u64>) {
    let geometry = scene.geometry();
    let piece = geometry.pieces(sector * 512, 512).unwrap().next().unwrap();
    let at = DATA + geometry.member_offset(piece.stripe) + u64::from(piece.chunk_offset);
    (geometry.slots(piece.stripe).data_slot(piece.column).index(), at..at + 512)
}

/// Every write is in one batch: it began it or joined it. What comes after the freeze waits for the next.
#[test]
fn writes_of_a_hot_stripe_join_and_the_window_closes_once() {
    for seed in 1..4 {
        let mut scene = raid5(seed, 2);
        let done = spawn(&mut scene, 32, |_, volume, ledger, mut rng| async move {
            for _ in 0..12 {
                let at = 96 + rng.below(90);
                write(&volume, &ledger, at, 1 + rng.below(6), false).await.unwrap();
            }
        });
        scene.world.run_until(STEPS, |_| *done.borrow() == 32).unwrap();
        let statistics = statistics(scene.array.shared());
        assert_eq!(statistics.writes, 32 * 12);
        assert!(statistics.joins > 32, "{} joins", statistics.joins);
        assert!(statistics.joined_late > 0, "some join while the owner reads");
        assert_eq!(statistics.batches + statistics.joins, statistics.writes, "each in one batch");
        assert!(statistics.joined_late <= statistics.batches + statistics.replans);
        scene.read_all();
        assert_eq!(scene.check(), 0);
    }
}

/// A waiter waits for the writes that came before it and no others: with 32 writers, for 32 batches at most.
#[test]
fn no_write_starves_at_a_hot_slot() {
    // Enough stripes that the first and another share a slot of the table.
    let mut wish = wish(Level::Raid5, 3, 4 << 10, NewBitmap::None, InitialSync::AssumeClean);
    wish.members.iter_mut().for_each(|member| member.sectors = 256 + 17_000 * 8);
    let mut scene = Scene::new(5, wish, 2);
    let worst = Rc::new(RefCell::new(0));
    let seen = Rc::clone(&worst);
    let done = spawn(&mut scene, 32, move |number, volume, ledger, mut rng| {
        let seen = Rc::clone(&seen);
        async move {
            // A third of them write the colliding stripe, which never joins the other.
            let stripe = if number % 3 == 0 { 1 << 14 } else { 0 };
            for _ in 0..15 {
                let before = statistics(volume.shared()).batches;
                write(&volume, &ledger, stripe * 16 + rng.below(12), 1 + rng.below(4), false).await.unwrap();
                let waited = statistics(volume.shared()).batches - before;
                let mut seen = seen.borrow_mut();
                *seen = waited.max(*seen);
            }
        }
    });
    scene.world.run_until(STEPS, |_| *done.borrow() == 32).unwrap();
    assert!(*worst.borrow() <= 33, "a write waited for {} batches", worst.borrow());
    assert!(*worst.borrow() > 1, "no write waited: the test tests nothing");
}

/// Long writes over small stripes: beyond a limit they go stripe by stripe, whatever clients send, and every
/// byte is right.
#[test]
fn long_writes_of_many_clients_have_few_tasks() {
    const WRITERS: u64 = 64;
    let wish = wish(Level::Raid5, 3, 4 << 10, NewBitmap::None, InitialSync::AssumeClean);
    let mut scene = Scene::new(6, wish, 1);
    let sectors = scene.volume().size() / 512;
    assert!(sectors / 16 * WRITERS > 8192, "so many stripes would have tasks at a time");
    let done = Rc::new(RefCell::new(0));
    for writer in 0..WRITERS {
        // One shard's clients share its volume, with other borders each.
        let (volume, ledger, done) = (scene.volume(), Rc::clone(&scene.ledger), Rc::clone(&done));
        scene.world.spawn(0, "client", async move {
            write(&volume, &ledger, writer, sectors - 2 * writer, false).await.unwrap();
            *done.borrow_mut() += 1;
        });
    }
    let mut tasks = 0;
    let all_done = |world: &World| {
        tasks = world.shard(0).tasks_alive().max(tasks);
        *done.borrow() == WRITERS
    };
    scene.world.run_until(STEPS, all_done).unwrap();
    assert!((4096..4500).contains(&tasks), "{tasks} tasks at a time");
    scene.is_right_and_stays_so();
}

/// Parity that was just written is at hand, of each row by itself, however many were written together.
#[test]
fn a_row_that_is_written_again_is_read_without_its_parity() {
    const ROW: u64 = 8;
    for (level, members, parities) in [(Level::Raid5, 4, 1), (Level::Raid6, 5, 2)] {
        let options = ArrayOptions { policy: WritePolicy::AlwaysRmw, ..options() };
        let wish = wish(level, members, 16 << 10, BITMAP, InitialSync::AssumeClean);
        let mut scene = Scene::with_options(11, wish, 1, options);
        let mut rows_read = |first_row: u64, rows: u64| {
            let before = statistics(scene.array.shared());
            scene.write(first_row * ROW, rows * ROW, false).unwrap();
            statistics(scene.array.shared()).since(&before).pre_read_bytes / 4096
        };
        assert_eq!((rows_read(0, 1), rows_read(0, 1)), (1 + parities, 1));
        // One run of several rows.
        assert_eq!(rows_read(1, 2), 2 * (1 + parities));
        assert_eq!((rows_read(1, 1), rows_read(2, 1)), (1, 1));
        // The last row of one chunk and the first of the next: two runs. The parity of the first row is
        // known.
        assert_eq!(rows_read(3, 2), 1 + parities + 1);
        assert_eq!((rows_read(3, 1), rows_read(4, 1), rows_read(0, 4)), (1, 1, 4));
        scene.read_all();
        assert_eq!(scene.check(), 0);
    }
}

#[test]
fn a_read_error_is_served_from_the_others_and_rewritten() {
    let mut scene = raid5(7, 1);
    scene.write(0, 512, false).unwrap();
    for sector in [3, 40, 100, 200] {
        let (disk, bytes) = place(&scene, sector);
        scene.disks[disk].fault(&Fault::UnreadableRange(bytes));
    }
    scene.read_all();
    let healed = statistics(scene.array.shared());
    assert_eq!((healed.corrected_reads, healed.reconstructed_reads), (4, 4));
    scene.read_all();
    assert_eq!(statistics(scene.array.shared()).reconstructed_reads, 4, "the rewritten sectors read again");
    assert_eq!(scene.array.detail().missing, 0);
    assert_eq!(scene.check(), 0);
}

/// Two members can't read different rows of one stripe: nothing is lost, for readers or for the scrub that
/// heals.
#[test]
fn read_errors_of_two_members_in_different_rows_lose_nothing() {
    for scrub in [false, true] {
        let mut scene = raid5(7, 1);
        scene.write(0, 512, false).unwrap();
        // Rows of eight sectors; chunks of 32: row 0 of column 0, row 1 of column 1, row 3 of column 2.
        for sector in [3, 32 + 9, 64 + 30] {
            let (disk, bytes) = place(&scene, sector);
            scene.disks[disk].fault(&Fault::UnreadableRange(bytes));
        }
        if scrub {
            assert_eq!(scene.check(), 0);
        }
        scene.read_all();
        let healed = statistics(scene.array.shared());
        assert_eq!(healed.corrected_reads, 3);
        assert_eq!(healed.reconstructed_reads, if scrub { 0 } else { 3 });
        assert_eq!(scene.array.detail().missing, 0);
    }
}

/// A write that needs what two members can't read, in different rows, heals them and is done.
#[test]
fn a_write_over_read_errors_of_two_members_in_different_rows_is_done() {
    let mut scene = raid5(7, 1);
    scene.write(0, 512, false).unwrap();
    for sector in [3, 32 + 9] {
        let (disk, bytes) = place(&scene, sector);
        scene.disks[disk].fault(&Fault::UnreadableRange(bytes));
    }
    scene.write(1, 15, false).unwrap();
    assert_eq!(scene.array.detail().missing, 0);
    scene.read_all();
    assert_eq!(scene.check(), 0);
    // Two in one row are lost, and the write that needs them says so.
    for sector in [96 + 3, 96 + 32 + 4] {
        let (disk, bytes) = place(&scene, sector);
        scene.disks[disk].fault(&Fault::UnreadableRange(bytes));
    }
    let volume = scene.volume();
    let refused =
        scene.run(async move { volume.write((96 + 1) * 512, shard::zeroed(512 * 4).freeze(), false).await });
    assert!(matches!(refused, Err(IoError::Unreadable { .. })), "{refused:?}");
}

/// A rebuild of RAID6 has one parity to spare, and needs it in different places.
#[test]
fn a_rebuild_goes_on_over_read_errors_in_different_rows() {
    let mut scene = Scene::new(7, wish(Level::Raid6, 5, 16 << 10, BITMAP, InitialSync::AssumeClean), 1);
    scene.write(0, 512, false).unwrap();
    for (disk, row) in [(0, 0), (1, 1), (3, 3)] {
        let at = DATA + row * 4096;
        scene.disks[disk].fault(&Fault::UnreadableRange(at..at + 512));
    }
    scene.disks[2].fault(&Fault::Gone);
    scene.write(600, 8, false).unwrap();
    scene.disks[2] = scene.world.add_disk(pinstripe_sim::SimDiskConfig::new("spare", 1 << 20));
    let (array, spare) = (scene.array.clone(), scene.disks[2].source());
    scene.run(async move { array.add(spare, pinstripe_md::identity::Uuid([99; 16])).await }).unwrap();
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();
    scene.read_all();
    assert_eq!(scene.check(), 0);
}

#[test]
fn a_write_error_fails_the_member_before_the_write_is_acknowledged() {
    let mut scene = raid5(8, 2);
    clients(&mut scene, 2, 10, 40);
    let (disk, bytes) = place(&scene, 50);
    let before = scene.superblock(disk);
    // Nor can it be listed as bad.
    let log = before.bad_block_log_sector().unwrap().0 * 512;
    scene.disks[disk].fault(&Fault::UnwritableRange(log..log + 4096));
    scene.disks[disk].fault(&Fault::UnwritableRange(bytes));
    scene.write(48, 8, false).unwrap();
    // The write is acknowledged: the durable superblocks must know already (C2).
    for other in (0..4).filter(|other| *other != disk) {
        let superblock = scene.superblock(other);
        assert_eq!(superblock.array.roles[disk], Role::Faulty);
        assert!(superblock.array.events > before.array.events);
    }
    assert_eq!(scene.array.detail().missing, 1);
    assert_eq!(scene.array.detail().failed[0].slot, Some(disk));
    assert!(scene.superblock(disk).array.events <= before.array.events + 1, "its own is left alone");
    scene.read_all();
    clients(&mut scene, 4, 20, 100);
    scene.read_all();
    scene.stop();
    // A whole disk again, but what it holds is old.
    scene.disks[disk].fault(&Fault::Heal);
    scene.reassemble();
    assert_eq!(scene.array.detail().slots[disk].state, "missing");
    scene.read_all();
}

#[test]
fn past_redundancy_writes_fail_reads_go_on_and_nothing_is_written_down() {
    let mut scene = raid5(9, 2);
    scene.write(0, 1024, true).unwrap();
    scene.disks[0].fault(&Fault::Gone);
    scene.write(8, 8, false).unwrap();
    assert_eq!(scene.superblock(3).array.roles[0], Role::Faulty);
    let events = scene.superblock(3).array.events;
    scene.disks[1].fault(&Fault::Gone);
    // Writes that need the lost member; the first may just find out.
    for stripe in 0..4 {
        assert_eq!(scene.write(stripe * 96, 96, false), Err(IoError::Failed));
    }
    let flushes = |scene: &Scene| [2, 3].map(|disk: usize| scene.disks[disk].counters().flushes);
    let before = flushes(&scene);
    assert_eq!(scene.flush(), Err(IoError::Failed));
    assert_eq!(
        flushes(&scene),
        before,
        "members that are left aren't asked, and so can't keep the answer waiting"
    );
    assert_eq!(scene.array.detail().state, "failed");
    let (mut answered, mut lost) = (0, 0);
    for sector in (384..1024).step_by(8) {
        let (disk, _) = place(&scene, sector);
        let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
        let id = ledger.borrow_mut().begin_read(sector..sector + 1);
        let (result, buffer) = scene.run(async move { volume.read(sector * 512, shard::buffer(512)).await });
        if disk >= 2 {
            result.unwrap();
            ledger.borrow_mut().check_read(id, &buffer).unwrap();
            answered += 1;
        } else {
            assert!(result.is_err(), "sector {sector} is on a lost disk");
            ledger.borrow_mut().abandon_read(id);
            lost += 1;
        }
    }
    assert!(answered > 20 && lost > 20);
    // C3: an outage of a controller must not make everything faulty.
    for disk in [2, 3] {
        let superblock = scene.superblock(disk);
        assert_eq!(superblock.array.roles[1], Role::Slot(MemberSlot(1)));
        assert_eq!(superblock.array.events, events);
        assert!(superblock.array.is_dirty());
    }
    // When the outage is over the array is what it was: dirty and degraded.
    scene.world.kill();
    scene.ledger.borrow_mut().kill();
    scene.disks[0].fault(&Fault::Return);
    scene.disks[1].fault(&Fault::Return);
    let sources: Vec<_> = scene.disks.iter().map(pinstripe_sim::SimDisk::source).collect();
    let refused = arrays::assemble(&mut scene.world, sources, options()).err().unwrap();
    assert!(matches!(refused, AssembleError::DirtyDegraded { missing: 1 }), "{refused}");
    scene.options = ArrayOptions { force: true, ..options() };
    scene.reassemble();
    assert_eq!(scene.array.detail().slots[0].state, "missing");
    let volume = scene.volume();
    let (result, _) = scene.run(async move { volume.read(384 * 512, shard::buffer(640 * 512)).await });
    result.unwrap();
}

#[test]
fn the_bitmap_is_swapped_under_64_writers() {
    for (seed, crash) in [(11, false), (12, true), (13, true)] {
        let mut scene = raid5(seed, 2);
        let done = spawn(&mut scene, 64, |_, volume, ledger, rng| client(volume, ledger, rng, 25, 40));
        let array = scene.array.clone();
        let swapped = Rc::new(RefCell::new(0));
        let count = Rc::clone(&swapped);
        scene.world.spawn(0, "swap", async move {
            for region in [8 << 10, 128 << 10, 4 << 10] {
                array.remove_bitmap().await.unwrap();
                *count.borrow_mut() += 1;
                array.add_bitmap(region).await.unwrap();
                *count.borrow_mut() += 1;
            }
        });
        let end = if crash { 3 + seed % 2 } else { 6 };
        scene.world.run_until(STEPS, |_| *swapped.borrow() >= end).unwrap();
        assert!(*done.borrow() < 64, "the writers were through before the last swap");
        if crash {
            scene.world.crash();
            scene.ledger.borrow_mut().crash();
            scene.reassemble();
        } else {
            scene.world.run_until(STEPS, |_| *done.borrow() == 64).unwrap();
            assert_eq!(scene.array.detail().bitmap.unwrap().chunk_bytes, 4 << 10);
        }
        let array = scene.array.clone();
        scene.world.run_until(STEPS, |_| array.detail().regions_to_resync == 0).unwrap();
        scene.read_all();
        assert_eq!(scene.check(), 0, "seed {seed}");
        scene.stop();
        for disk in 0..4 {
            assert_eq!(scene.bitmap(disk).is_some(), scene.superblock(disk).array.bitmap_offset.is_some());
            scene.superblock(disk).check(512).unwrap();
        }
        scene.reassemble();
        scene.read_all();
    }
}

/// Its flush may take so long that its bitmap is gone behind it, and another one, of other regions, is there.
#[test]
fn a_sweep_clears_no_bit_of_the_bitmap_that_has_taken_the_place_of_its_own() {
    const MILLISECOND: u64 = 1_000_000;
    for seed in 0..4 {
        let options = ArrayOptions {
            sweep_ns: Some(200 * MILLISECOND),
            safe_mode_delay_ns: 10_000 * MILLISECOND,
            ..options()
        };
        let wish = wish(Level::Raid5, 4, 16 << 10, BITMAP, InitialSync::AssumeClean);
        let mut scene = Scene::with_options(seed, wish, 1, options);
        scene.write(0, 8, false).unwrap();
        let slow = scene.disks[2].clone();
        slow.fault(&Fault::SlowBy(800));
        let before = slow.counters().flushes;
        scene.world.run_until(STEPS, |_| slow.counters().flushes > before).unwrap();
        slow.fault(&Fault::SlowBy(1));
        let (array, until) = (scene.array.clone(), scene.world.now() + 150 * MILLISECOND);
        scene.run(async move {
            array.remove_bitmap().await.unwrap();
            array.add_bitmap(128 << 10).await.unwrap();
        });
        assert!(scene.world.now() < until - 100 * MILLISECOND, "the flush is over before: seed {seed}");
        scene.world.run_until(STEPS, |world| world.now() >= until).unwrap();
        for disk in 0..4 {
            assert_eq!(scene.bitmap(disk).unwrap().set_bits().count(), 7, "seed {seed}: it began all set");
        }
    }
}

/// After a crash in the middle of making an array, no superblock names a bitmap that isn't there.
#[test]
fn an_array_that_is_being_made_has_its_bitmaps_before_the_first_superblock() {
    for seed in 0..4 {
        let mut world = World::new(WorldConfig::new(seed, 1));
        let wish = wish(Level::Raid5, 4, 16 << 10, BITMAP, InitialSync::AssumeClean);
        let disks = plain_disks(&mut world, wish.members.iter().map(|member| member.sectors));
        let placed = wish.place().unwrap();
        let place = placed.superblocks[0].bitmap_sector().unwrap().0 * 512;
        let devices = disks.clone();
        world.spawn(0, "create", async move {
            let devices: Vec<_> = devices.iter().map(SimDisk::attach).collect();
            create_placed(placed, &devices).await.unwrap();
        });
        let is_there = |disk: &&SimDisk| disk.peek_durable(4096, 4) != [0; 4];
        let has_bitmap = |disk: &&SimDisk| disk.peek_durable(place, 4) != [0; 4];
        let whole = |_: &World| {
            let (superblocks, bitmaps) =
                (disks.iter().filter(is_there).count(), disks.iter().filter(has_bitmap).count());
            assert!(superblocks == 0 || bitmaps == 4, "{superblocks} superblocks and {bitmaps} bitmaps");
            superblocks == 4
        };
        world.run_until(STEPS, whole).unwrap();
    }
}

/// What `detail` shows of members is what their devices were asked for.
#[test]
fn what_members_are_asked_for_is_counted() {
    let mut scene = raid5(20, 2);
    let told = |scene: &Scene| -> Vec<[u64; 3]> {
        let slots = scene.array.detail().slots;
        slots.iter().map(|slot| slot.statistics).map(|of| [of.reads, of.writes, of.flushes]).collect()
    };
    let asked = |scene: &Scene| -> Vec<[u64; 3]> {
        let counted = scene.disks.iter().map(SimDisk::counters);
        counted.map(|of| [of.reads, of.writes, of.flushes]).collect()
    };
    let start = asked(&scene);
    clients(&mut scene, 4, 30, 60);
    scene.read_all();
    scene.flush().unwrap();
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().state == "clean").unwrap();
    let since: Vec<[u64; 3]> = (asked(&scene).iter().zip(&start))
        .map(|(now, before)| std::array::from_fn(|i| now[i] - before[i]))
        .collect();
    assert_eq!(told(&scene), since);
    assert!(since.iter().flatten().all(|&count| count > 0), "{since:?}");
    // Of reads, none is the array's own business.
    let sum = statistics(scene.array.shared());
    assert_eq!(sum.member_reads, since.iter().map(|of| of[0]).sum::<u64>());
}

/// A plan goes by what reads of the members take, those of users too.
#[test]
fn what_reads_cost_is_measured_by_the_reads_of_users() {
    let mut scene = raid5(21, 1);
    let volume = scene.volume();
    scene.run(async move {
        for at in 0..1000 {
            volume.read(at * 7 % 600 * 4096, shard::buffer(4096)).await.0.unwrap();
        }
    });
    let slots = scene.array.detail().slots;
    let latencies: Vec<u64> = slots.iter().map(|slot| slot.read_latency_ns.into()).collect();
    assert!(latencies.iter().all(|latency| (10_000..1_000_000).contains(latency)), "{latencies:?}");
}

/// A crash with one dirty region: that one is read and no other.
#[test]
fn an_unclean_start_resyncs_just_the_dirty_regions() {
    let mut scene = raid5(14, 1);
    clients(&mut scene, 2, 20, 100);
    scene.stop();
    scene.reassemble();
    // Let the lazy bits go, so that only the coming write is marked.
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().bitmap.unwrap().bits_set == 0).unwrap();
    let geometry = scene.geometry();
    let sector = geometry.array_offset(StripeId(3 * REGION / (16 << 10)), 0) / 512;
    scene.write(sector, 8, true).unwrap();
    assert_eq!(scene.bitmap(2).unwrap().set_bits().collect::<Vec<_>>(), [3]);
    scene.world.crash();
    scene.ledger.borrow_mut().crash();
    scene.reassemble();
    let detail = scene.array.detail();
    assert_eq!(detail.regions_to_resync, 1);
    let parts: Vec<_> = (0..14).map(|region| usize::from(region == 3)).collect();
    assert_eq!(detail.regions_to_resync_by_part, parts);
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().regions_to_resync == 0).unwrap();
    let read = statistics(scene.array.shared()).member_read_bytes;
    assert_eq!(read, 4 * REGION, "each member's part of the region, once");
    scene.read_all();
    assert_eq!(scene.check(), 0);
}

#[test]
fn an_unclean_start_without_a_bitmap_resyncs_everything() {
    let wish = wish(Level::Raid5, 4, 16 << 10, NewBitmap::None, InitialSync::AssumeClean);
    let mut scene = Scene::new(15, wish, 1);
    scene.write(0, 8, true).unwrap();
    scene.world.crash();
    scene.ledger.borrow_mut().crash();
    scene.reassemble();
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().regions_to_resync == 0).unwrap();
    let geometry = scene.geometry();
    let everything = geometry.member_bytes() * 4;
    assert_eq!(statistics(scene.array.shared()).member_read_bytes, everything);
    assert_eq!(scene.check(), 0);
}

/// A crash may leave a bit on one member only, whichever that is: the region is resynced (C8).
#[test]
fn after_an_unclean_start_the_bits_of_every_member_count() {
    for alone in 0..4 {
        let mut scene = raid5(17, 1);
        scene.write(0, 8, true).unwrap();
        let geometry = scene.geometry();
        scene.world.crash();
        scene.ledger.borrow_mut().crash();
        // Of another region nothing got further than that bit and the parity of one row.
        let stripe = StripeId(21);
        let parity = &scene.disks[geometry.slots(stripe).p_slot().index()];
        parity.poke(DATA + geometry.member_offset(stripe), &[0x5a; 512]);
        let mut bits = scene.bitmap(alone).unwrap();
        bits.set(geometry.member_offset(stripe) / REGION);
        let sector = scene.superblock(alone).bitmap_sector().unwrap();
        scene.disks[alone].poke(sector.0 * 512, bits.as_bytes());
        scene.reassemble();
        let array = scene.array.clone();
        scene.world.run_until(STEPS, |_| array.detail().regions_to_resync == 0).unwrap();
        assert_eq!(scene.check(), 0, "the bit of member {alone}");
    }
}

/// It may be a member: an array that starts without it must not take the error for another kind of disk.
#[test]
fn a_superblock_that_can_not_be_read_is_an_error_and_not_an_empty_disk() {
    let mut scene = raid5(18, 1);
    scene.stop();
    scene.disks[2].fault(&Fault::UnreadableRange(4096..8192));
    let sources = scene.disks.iter().map(pinstripe_sim::SimDisk::source).collect();
    let error = arrays::assemble(&mut scene.world, sources, options()).err().unwrap();
    assert!(matches!(error, AssembleError::Device { .. }), "{error}");
}

#[test]
fn a_change_of_an_array_that_was_stopped_is_answered() {
    let mut scene = raid5(19, 1);
    scene.stop();
    let array = scene.array.clone();
    let error = scene.run(async move { array.remove_bitmap().await }).unwrap_err();
    assert!(matches!(error, CommandError::Io(IoError::Stopping)), "{error}");
}

#[test]
fn superblocks_are_dirty_before_the_first_write_and_clean_after_a_while() {
    let mut scene = raid5(16, 2);
    let disks = scene.disks.clone();
    let written = move || disks.iter().any(|disk| disk.peek(DATA, 32 << 10).iter().any(|byte| *byte != 0));
    assert!((0..4).all(|disk| !scene.superblock(disk).array.is_dirty()), "assembly alone writes nothing");
    let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
    scene.world.spawn(1, "write", async move {
        let volume = pinstripe_engine::io::volume::Volume::new(std::sync::Arc::clone(volume.shared()));
        write(&volume, &ledger, 0, 16, false).await.unwrap();
    });
    scene.world.run_until(STEPS, |_| written()).unwrap();
    for disk in 0..4 {
        assert!(scene.superblock(disk).array.is_dirty(), "data has changed, and disk {disk} says clean");
        assert_eq!(scene.bitmap(disk).unwrap().set_bits().collect::<Vec<_>>(), [0], "C7: intent first");
    }
    let now = scene.world.now();
    let disks = scene.disks.clone();
    let clean = |_: &World| disks.iter().all(|disk| !superblock_on(disk).array.is_dirty());
    scene.world.run_until(STEPS, clean).unwrap();
    assert!(scene.world.now() - now >= 200_000_000, "not before it is idle");
    scene.world.run_until(STEPS, |_| disks.iter().all(|disk| disk.unflushed_sectors() == 0)).unwrap();
    let events = scene.superblock(0).array.events;
    let later = scene.world.now() + 2_000_000_000;
    scene.world.run_until(STEPS, |world| world.now() >= later).unwrap();
    assert_eq!(scene.superblock(0).array.events, events, "an idle array is left alone");
    scene.read_all();
}

#[test]
fn what_was_flushed_or_forced_survives_a_crash() {
    for seed in 30..42 {
        let mut scene = raid5(seed, 2);
        clients(&mut scene, 4, 12, 60);
        scene.write(10, 100, true).unwrap();
        scene.write(300, 40, false).unwrap();
        scene.flush().unwrap();
        scene.write(320, 40, false).unwrap();
        let _running = spawn(&mut scene, 4, |_, volume, ledger, rng| client(volume, ledger, rng, 1000, 60));
        let _ = scene.world.run_until(seed * 20, |_| false);
        scene.world.crash();
        scene.ledger.borrow_mut().crash();
        scene.reassemble();
        scene.read_all();
        let array = scene.array.clone();
        scene.world.run_until(STEPS, |_| array.detail().regions_to_resync == 0).unwrap();
        assert_eq!(scene.check(), 0, "seed {seed}");
        scene.read_all();
    }
}

/// Hits of the parity cache when one row is written twice.
fn hits_of_a_row_written_twice(world: &mut World, sources: Vec<Arc<dyn DeviceSource>>) -> u64 {
    let wish = wish(Level::Raid5, 4, 16 << 10, NewBitmap::None, InitialSync::AssumeClean);
    let devices = sources.clone();
    let created = async move {
        let devices: Vec<_> = devices.iter().map(|source| source.attach().unwrap()).collect();
        create_placed(wish.place_with(NewLog::None).unwrap(), &devices).await.map(|_| ())
    };
    world.block_on(0, "create", STEPS, created).unwrap().unwrap();
    let array = arrays::assemble(world, sources, options()).unwrap();
    let volume = array.volume().clone();
    let writes = async move {
        for _ in 0..2 {
            volume.write(0, shard::zeroed(4096).freeze(), false).await.unwrap();
        }
    };
    world.block_on(0, "writes", STEPS, writes).unwrap();
    array.detail().statistics.cache_hits
}

#[test]
fn parity_is_kept_of_members_on_devices_and_of_none_in_memory() {
    let mut world = World::new(WorldConfig::new(1, 1));
    let disks = plain_disks(&mut world, [2048; 4]);
    let sources = disks.iter().map(SimDisk::source).collect();
    assert_eq!(hits_of_a_row_written_twice(&mut world, sources), 1);

    let mut world = World::new(WorldConfig::new(1, 1));
    let source = |number| {
        let memory = Memory::new(2048 * 512).unwrap();
        Arc::new(MemorySource { name: format!("memory{number}"), memory, logical_block: 512 })
            as Arc<dyn DeviceSource>
    };
    let sources = (0..4).map(source).collect();
    assert_eq!(hits_of_a_row_written_twice(&mut world, sources), 0);
}

/// Where a front end writes parts of blocks, whole blocks wait for it, and only there.
#[test]
fn a_service_with_locks_writes_nothing_where_a_part_is_being_written() {
    let mut scene = raid5(1, 1);
    let done = spawn(&mut scene, 1, |_, volume, _, _| {
        let locks: Arc<Locks> = Arc::default();
        let service = VolumeService::new(volume, |_| ()).with_locks(Arc::clone(&locks));
        async move {
            let data = || shard::buffer(4096).freeze();
            let held = locks.alone(0, 100).await;
            service.write(1 << 20, data(), false).await.unwrap();
            let waits = |service: VolumeService, which: u32| async move {
                match which {
                    0 => service.write(0, data(), false).await,
                    1 => service.write_zeroes(0, 4096, false, false).await,
                    _ => service.discard(0, service.discard_granularity(), false).await,
                }
            };
            for which in 0..3 {
                let waited = shard::timeout(1_000_000_000, waits(service.clone(), which)).await;
                assert!(waited.is_none(), "{which}");
            }
            drop(held);
            for which in 0..3 {
                let mut under_way = pin!(waits(service.clone(), which));
                assert!(shard::timeout(1000, under_way.as_mut()).await.is_none(), "{which} ends at once");
                assert!(
                    shard::timeout(1000, locks.alone(0, 100)).await.is_none(),
                    "{which} is not waited for"
                );
                under_way.await.unwrap();
                drop(locks.alone(0, 100).await);
            }
        }
    });
    scene.world.run_until(STEPS, |_| *done.borrow() == 1).unwrap();
}

/// Each way to the array takes its turn, and a flush takes none.
#[test]
fn a_service_with_a_limit_lets_each_request_wait_for_its_turn() {
    const SECOND: u64 = 1_000_000_000;
    let mut scene = raid5(1, 1);
    let done = spawn(&mut scene, 1, |_, volume, _, _| {
        let rates = |requests, bytes| Rates { requests, bytes, burst: 0 };
        let limit = Arc::new(RateLimit::new(rates(1, 0)));
        let service = VolumeService::new(volume, |_| ()).with_limit(Arc::clone(&limit));
        let act = async |service: &VolumeService, which: u32| {
            let data = shard::zeroed(4096);
            match which {
                0 => service.write(0, data.freeze(), false).await,
                1 => service.write_zeroes(0, 4096, false, false).await,
                2 => service.discard(0, service.discard_granularity(), false).await,
                3 => service.read(0, data).await.0,
                _ => service.flush().await,
            }
        };
        async move {
            act(&service, 0).await.unwrap();
            for which in 0..5 {
                let asked = shard::now();
                act(&service, which).await.unwrap();
                let waited = shard::now() - asked > SECOND / 2;
                assert_eq!(waited, which < 4, "{which} at a request per second");
            }
            for (which, waits) in [(0, true), (1, true), (2, false), (3, true), (4, false)] {
                limit.set(rates(0, 4096));
                act(&service, which).await.unwrap();
                let asked = shard::now();
                act(&service, which).await.unwrap();
                assert_eq!(shard::now() - asked > SECOND / 2, waits, "{which} at a block per second");
            }
            // What waits for an hour goes when there is no limit any more, or a higher one.
            for higher in [Rates::default(), rates(1000, 0)] {
                limit.set(rates(0, 1));
                act(&service, 0).await.unwrap();
                let mut waiting = pin!(act(&service, 0));
                assert!(shard::timeout(10 * SECOND, waiting.as_mut()).await.is_none());
                assert_eq!(limit.waiting(), 1);
                limit.set(higher);
                shard::timeout(SECOND, waiting).await.expect("it still waits").unwrap();
                assert_eq!(limit.waiting(), 0);
            }
        }
    });
    scene.world.run_until(STEPS * 10, |_| *done.borrow() == 1).unwrap();
}

/// A change of the limit lets what came later go first: perhaps what the client has sent again elsewhere.
#[test]
fn a_change_that_waits_for_a_limit_is_not_begun_when_its_client_has_hung_up() {
    let mut scene = raid5(1, 1);
    let done = spawn(&mut scene, 1, |_, volume, _, _| {
        let limit = Arc::new(RateLimit::default());
        let has_hung_up = Rc::new(Cell::new(false));
        let service = VolumeService::new(volume.clone(), |_| ()).with_limit(Arc::clone(&limit)).for_client({
            let has_hung_up = Rc::clone(&has_hung_up);
            Client::new(move || has_hung_up.get())
        });
        async move {
            let stripe = usize::try_from(service.discard_granularity()).unwrap();
            let filled = |byte| {
                let mut data = shard::buffer(stripe);
                data.fill(byte);
                data.freeze()
            };
            for which in 0..8 {
                has_hung_up.set(false);
                limit.set(Rates::default());
                service.write(0, filled(1), false).await.unwrap();
                limit.set(Rates { requests: 1, bytes: 0, burst: 0 });
                service.flush().await.unwrap();
                service.read(0, shard::buffer(4096)).await.0.unwrap();
                let hangs_up = which < 4;
                has_hung_up.set(hangs_up);
                let length = stripe as u64;
                let result = match which % 4 {
                    0 => service.write(0, filled(2), false).await,
                    1 => service.write_zeroes(0, length, false, false).await,
                    2 => service.write_zeroes(0, length, false, true).await,
                    _ => service.discard(0, length, false).await,
                };
                assert_eq!(result.is_err(), hangs_up, "{which}");
                let read = volume.read(0, shard::buffer(stripe)).await.1;
                assert_eq!(read.iter().all(|byte| *byte == 1), hangs_up, "{which}");
            }
        }
    });
    scene.world.run_until(STEPS * 10, |_| *done.borrow() == 1).unwrap();
}

/// As of a client that zeroes its whole disk, with many commands in flight.
#[test]
fn the_zeroings_of_a_client_take_no_time_of_minutes_and_none_when_it_has_hung_up() {
    const SECOND: u64 = 1_000_000_000;
    const ZEROINGS: usize = 128;
    let mut scene = raid5(1, 1);
    let done = spawn(&mut scene, 1, |_, volume, _, _| async move {
        let limit = Arc::new(RateLimit::new(Rates { requests: 0, bytes: 32 << 20, burst: 0 }));
        let service = VolumeService::new(volume, |_| ()).with_limit(Arc::clone(&limit));
        let (has_hung_up, ended) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(0)));
        let zeroes = service.clone().for_client({
            let has_hung_up = Rc::clone(&has_hung_up);
            Client::new(move || has_hung_up.get())
        });
        let length = zeroes.size_bytes();
        assert!(length * ZEROINGS as u64 > 8 * (32 << 20), "eight seconds of them");
        for _ in 0..ZEROINGS {
            let (zeroes, ended) = (zeroes.clone(), Rc::clone(&ended));
            shard::spawn(async move {
                let _ = zeroes.write_zeroes(0, length, false, true).await;
                ended.set(ended.get() + 1);
            });
        }
        shard::sleep(SECOND / 10).await;
        let asked = shard::now();
        service.read(0, shard::buffer(4096)).await.0.unwrap();
        let waited = shard::now() - asked;
        assert!(waited < 2 * SECOND, "another client has waited for {waited} ns");
        has_hung_up.set(true);
        shard::sleep(SECOND / 2).await;
        assert_eq!(ended.get(), ZEROINGS, "what it has asked for is given up");
        let asked = shard::now();
        service.read(0, shard::buffer(4096)).await.0.unwrap();
        assert!(shard::now() - asked < 2 * SECOND);
    });
    scene.world.run_until(STEPS * 10, |_| *done.borrow() == 1).unwrap();
}

/// Those that begin while it waits are none of its.
#[test]
fn a_flush_beside_many_others_takes_no_longer_than_two() {
    const FLUSH_NS: u64 = 1_000_000;
    const FLUSHES: u64 = 200;
    let mut world = World::new(WorldConfig::new(1, 1));
    let wish = wish(Level::Raid5, 4, 16 << 10, NewBitmap::None, InitialSync::AssumeClean);
    let disk = |member: usize| SimDiskConfig {
        latency_ns_min: FLUSH_NS,
        latency_ns_max: FLUSH_NS,
        latency_tail: 0,
        ..SimDiskConfig::new(&format!("disk{member}"), 1 << 20)
    };
    let disks: Vec<SimDisk> = (0..wish.members.len()).map(disk).map(|disk| world.add_disk(disk)).collect();
    lay_out(&mut world, wish.place_with(NewLog::None).unwrap(), &disks).unwrap();
    let members = disks.len();
    let mut scene = Scene::over(world, disks, members, options());
    let (volume, longest) = (scene.volume(), Rc::new(Cell::new(0)));
    let told = Rc::clone(&longest);
    scene.run(async move {
        // As of clients that flush without a pause, each when it comes.
        let flushes = (0..FLUSHES).map(|number| {
            let (volume, longest) = (volume.clone(), Rc::clone(&told));
            shard::spawn_joined(async move {
                shard::sleep(number * FLUSH_NS / 8).await;
                let asked = shard::now();
                volume.flush().await.unwrap();
                longest.set(longest.get().max(shard::now() - asked));
            })
        });
        for flush in flushes.collect::<Vec<_>>() {
            flush.join().await;
        }
    });
    assert!((FLUSH_NS..FLUSH_NS * 5 / 2).contains(&longest.get()), "{} ns", longest.get());
}

/// Each step of a change takes a place of its own among the changes of its stripe.
#[test]
fn no_further_step_of_a_long_change_is_begun_when_its_client_has_hung_up() {
    for which in 0..6 {
        let mut scene = raid5(1, 1);
        let size = scene.volume().size();
        let (hangs_up, has_hung_up, answer) =
            (which < 3, Rc::new(Cell::new(false)), Rc::new(RefCell::new(None)));
        let volume = scene.volume();
        scene.run(async move {
            let mut data = shard::buffer(usize::try_from(size).unwrap());
            data.fill(1);
            volume.write(0, data.freeze(), false).await.unwrap();
        });
        let volume = {
            let has_hung_up = Rc::clone(&has_hung_up);
            scene.volume().for_client(Client::new(move || has_hung_up.get()))
        };
        let told = Rc::clone(&answer);
        scene.disks[1].fault(&Fault::Hang);
        scene.world.spawn(0, "client", async move {
            *told.borrow_mut() = Some(match which % 3 {
                0 => volume.discard(0, size).await,
                1 => volume.write_zeroes(0, size, false).await,
                _ => volume.write_zero_bytes(0, size, false).await,
            });
        });
        scene.run(async { shard::sleep(1_000_000_000).await });
        has_hung_up.set(hangs_up);
        scene.disks[1].fault(&Fault::Release);
        scene.world.run_until(STEPS, |_| answer.borrow().is_some()).unwrap();
        assert_eq!(answer.take(), Some(if hangs_up { Err(IoError::Abandoned) } else { Ok(()) }), "{which}");
        let volume = scene.volume();
        let read =
            scene.run(async move { volume.read(0, shard::buffer(usize::try_from(size).unwrap())).await.1 });
        assert_eq!(read[0], 0, "the first step was begun before, {which}");
        assert_eq!(*read.last().unwrap(), u8::from(hangs_up), "{which}");
    }
}

#[test]
fn a_write_of_level_0_is_not_begun_when_its_client_has_hung_up() {
    let mut wish = wish(Level::Raid5, 3, 16 << 10, NewBitmap::None, InitialSync::AssumeClean);
    (wish.level, wish.layout) = (Level::Raid0, Layout::Raid0(Raid0Layout::Unspecified));
    let mut scene = Scene::new(1, wish, 1);
    for hangs_up in [true, false] {
        let volume = scene.volume().for_client(Client::new(move || hangs_up));
        let (answer, read) = scene.run(async move {
            let mut data = shard::buffer(4096);
            data.fill(1);
            let answer = volume.write(0, data.freeze(), false).await;
            (answer, volume.read(0, shard::buffer(4096)).await.1)
        });
        assert_eq!(answer, if hangs_up { Err(IoError::Abandoned) } else { Ok(()) });
        assert!(read.iter().all(|byte| *byte == u8::from(!hangs_up)));
    }
}

/// What the client has sent again by another shard may have passed what waits here.
#[test]
fn a_write_that_waits_for_a_writer_of_parts_is_not_begun_when_its_client_has_hung_up() {
    for hangs_up in [true, false] {
        let mut scene = raid5(1, 1);
        let done = spawn(&mut scene, 1, move |_, volume, _, _| async move {
            let locks = Arc::new(Locks::default());
            let has_hung_up = Rc::new(Cell::new(false));
            let service =
                VolumeService::new(volume.clone(), |_| ()).with_locks(Arc::clone(&locks)).for_client({
                    let has_hung_up = Rc::clone(&has_hung_up);
                    Client::new(move || has_hung_up.get())
                });
            let merge = locks.alone(0, 1).await;
            let mut data = shard::buffer(4096);
            data.fill(1);
            let mut writing = pin!(service.write(0, data.freeze(), false));
            assert!(shard::timeout(1_000_000_000, writing.as_mut()).await.is_none());
            has_hung_up.set(hangs_up);
            drop(merge);
            assert_eq!(writing.await.is_err(), hangs_up);
            let read = volume.read(0, shard::buffer(4096)).await.1;
            assert!(read.iter().all(|byte| *byte == u8::from(!hangs_up)));
        });
        scene.world.run_until(STEPS, |_| *done.borrow() == 1).unwrap();
    }
}

/// By its own clock: each operation counts once, with all that its client waited for, the limit included.
#[test]
fn a_service_counts_how_long_each_client_operation_took() {
    const QUARTER: u64 = 250_000_000;
    let mut scene = raid5(1, 1);
    let done = spawn(&mut scene, 1, |_, volume, _, _| {
        let shared = Arc::clone(volume.shared());
        let now = move || Latencies::sum(shared.latencies.iter().map(|counters| &**counters));
        let limit = Arc::new(RateLimit::default());
        let service = VolumeService::new(volume, |_| ()).with_limit(Arc::clone(&limit));
        let act = async |service: &VolumeService, operation: ClientOperation, at: u64| {
            let (data, stripe) = (shard::zeroed(4096), service.discard_granularity());
            match operation {
                ClientOperation::Read => service.read(at, data).await.0,
                ClientOperation::Write => service.write(at, data.freeze(), true).await,
                ClientOperation::Flush => service.flush().await,
                ClientOperation::Discard => service.discard(at, stripe, true).await,
                ClientOperation::WriteZeroes => service.write_zeroes(at, stripe, true, true).await,
            }
        };
        async move {
            for operation in ClientOperation::ALL {
                limit.set(Rates { requests: 4, bytes: 0, burst: 0 });
                act(&service, operation, 0).await.unwrap();
                let (before, asked) = (now(), shard::now());
                act(&service, operation, 0).await.unwrap();
                let (took, after) = (shard::now() - asked, now());
                let limited = operation != ClientOperation::Flush;
                assert!(!limited || took.abs_diff(QUARTER) < QUARTER / 20, "{operation:?} took {took} ns");
                for other in ClientOperation::ALL {
                    let mut expected = *before.of(other);
                    if other == operation {
                        let bucket = bounds_ns().iter().position(|bound| took <= *bound).unwrap();
                        assert!(!limited || bucket == 18, "{operation:?}: 0.25 s in bucket {bucket}");
                        expected.buckets[bucket] += 1;
                        expected.sum_ns += took;
                    }
                    assert_eq!(*after.of(other), expected, "{other:?} after {operation:?}");
                }
            }
            // What fails was waited for as well.
            limit.set(Rates::default());
            let before = now().of(ClientOperation::Read).buckets.iter().sum::<u64>();
            act(&service, ClientOperation::Read, service.size_bytes()).await.unwrap_err();
            assert_eq!(now().of(ClientOperation::Read).buckets.iter().sum::<u64>(), before + 1);
        }
    });
    scene.world.run_until(STEPS * 10, |_| *done.borrow() == 1).unwrap();
}
