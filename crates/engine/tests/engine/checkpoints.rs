//! How far a resync or rebuild is, as the superblocks say it: what a crash or a clean stop leaves isn't done
//! again.

use std::rc::Rc;

use crate::arrays::{
    STEPS, options,
    scene::{DATA_SECTOR, Scene, superblock_on, wish, write},
};
use pinstripe_engine::{
    geometry::StripeId,
    options::{ArrayOptions, SyncSpeed},
};
use pinstripe_md::{
    level::Level,
    placement::{InitialSync, NewBitmap},
    superblock::ResyncOffset,
    units::Sector,
};
use pinstripe_runtime::shard;
use pinstripe_sim::{Fault, Rng, Schedule, World, WorldConfig};

const CHUNK: u64 = 16 << 10;
const SECOND: u64 = 1_000_000_000;
/// Of each member.
const CHUNKS: u64 = (2048 - DATA_SECTOR) * 512 / CHUNK;

/// An array with maintenance at one stripe a second.
fn slow(seed: u64, initial: InitialSync) -> Scene {
    slow_in_legs(seed, initial, 4)
}

/// The same, in legs of so many stripes.
fn slow_in_legs(seed: u64, initial: InitialSync, checkpoint_stripes: u64) -> Scene {
    let kib = CHUNK / 1024;
    let options = ArrayOptions {
        sync_speed: SyncSpeed { min_kib: kib, max_kib: kib },
        maintenance_depth: 4,
        checkpoint_stripes,
        ..options()
    };
    let schedule = Schedule { ticks: 0, pauses: 0, ..Schedule::drawn(&mut Rng::new(seed)) };
    let world = World::new(WorldConfig { schedule: Some(schedule), ..WorldConfig::new(seed, 1) });
    Scene::in_world(world, &wish(Level::Raid5, 4, CHUNK, NewBitmap::None, initial), options)
}

fn sleep(scene: &mut Scene, seconds: u64) {
    scene.run(async move { shard::sleep(seconds * SECOND).await });
}

/// Makes parity wrong, as if it had never been computed.
fn spoil_parity(scene: &Scene) {
    let geometry = scene.geometry();
    for stripe in (0..geometry.stripes()).map(StripeId) {
        let disk = geometry.slots(stripe).p_slot().index();
        scene.disks[disk].poke(DATA_SECTOR * 512 + geometry.member_offset(stripe), &[0x5a; 512]);
    }
}

fn resync_offset(scene: &Scene) -> Option<u64> {
    let offsets: Vec<ResyncOffset> =
        (0..scene.disks.len()).map(|disk| scene.superblock(disk).array.resync_offset).collect();
    assert!(offsets.iter().all(|offset| *offset == offsets[0]), "{offsets:?}");
    match offsets[0] {
        ResyncOffset::Clean => None,
        ResyncOffset::DirtyFrom(sector) => Some(sector.0 * 512 / CHUNK),
    }
}

fn settle(scene: &mut Scene) {
    let array = scene.array.clone();
    let settled = |_: &World| {
        let detail = array.detail();
        detail.regions_to_resync == 0 && detail.missing == 0
    };
    scene.world.run_until(STEPS, settled).unwrap();
}

fn crash(scene: &mut Scene) {
    scene.world.crash();
    scene.ledger.borrow_mut().crash();
    scene.reassemble();
}

#[test]
fn the_first_resync_is_recorded_every_ten_seconds_and_goes_on_from_there() {
    for (seed, writes) in [(40, false), (41, true)] {
        let mut scene = slow(seed, InitialSync::Resync);
        spoil_parity(&scene);
        sleep(&mut scene, 4);
        assert_eq!(resync_offset(&scene), Some(0));
        if writes {
            // Once it is idle again, all is as if nothing had been.
            scene.write(8, 400, true).unwrap();
        }
        sleep(&mut scene, 21);
        let recorded = resync_offset(&scene).unwrap();
        assert!((14..=25).contains(&recorded), "{recorded} stripes after 25 seconds");
        crash(&mut scene);
        let before = scene.disks[0].counters().bytes_read;
        sleep(&mut scene, 2);
        assert!(scene.array.progress().unwrap().total <= CHUNKS - recorded);
        settle(&mut scene);
        let read = (scene.disks[0].counters().bytes_read - before) / CHUNK;
        assert!(
            read <= CHUNKS - recorded + 1,
            "{read} chunks are read, of {CHUNKS}, {recorded} of which were done"
        );
        assert_eq!(scene.check(), 0);
        scene.stop();
        assert_eq!(resync_offset(&scene), None);
    }
}

/// Power fails when nothing was written for a while.
#[test]
fn a_rebuild_goes_on_after_a_crash_from_where_it_was_recorded() {
    let mut scene = slow(57, InitialSync::AssumeClean);
    scene.write(0, 4000, true).unwrap();
    let spare = scene.fail_and_add(2);
    scene.disks[2] = spare.clone();
    sleep(&mut scene, 25);
    let recorded = scene.superblock(2).member.recovery_offset.unwrap().0 * 512 / CHUNK;
    assert!((14..=25).contains(&recorded), "{recorded} stripes after 25 seconds");
    crash(&mut scene);
    let before = spare.counters().bytes_written;
    settle(&mut scene);
    let written = (spare.counters().bytes_written - before) / CHUNK;
    // And some superblocks.
    assert!(
        (CHUNKS - recorded..=CHUNKS - recorded + 4).contains(&written),
        "{written} chunks, from {recorded} on"
    );
    assert_eq!(scene.check(), 0);
    scene.read_all();
}

/// It counts in pages, and not in our chunks.
#[test]
fn the_place_that_a_kernel_has_recorded_is_gone_on_from() {
    let mut scene = slow(56, InitialSync::Resync);
    spoil_parity(&scene);
    sleep(&mut scene, 25);
    let recorded = resync_offset(&scene).unwrap();
    scene.stop();
    let place = recorded * CHUNK / 512 - 24;
    for disk in 0..4 {
        let mut superblock = scene.superblock(disk);
        superblock.array.resync_offset = ResyncOffset::DirtyFrom(Sector(place));
        scene.disks[disk].poke(4096, &superblock.encode(512).unwrap());
    }
    scene.reassemble();
    let before = scene.disks[0].counters().bytes_read;
    settle(&mut scene);
    let read = (scene.disks[0].counters().bytes_read - before) / CHUNK;
    assert!((CHUNKS - recorded..=CHUNKS - recorded + 2).contains(&read), "{read} chunks, from {recorded} on");
    assert_eq!(scene.check(), 0);
}

#[test]
fn a_resync_under_writers_says_that_everything_may_be_dirty() {
    let mut scene = slow(42, InitialSync::Resync);
    spoil_parity(&scene);
    sleep(&mut scene, 30);
    assert_ne!(resync_offset(&scene), Some(0));
    let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
    scene.world.spawn(0, "writer", async move {
        for sector in (0..).map(|i| i * 37 % 5000) {
            let _ = write(&volume, &ledger, sector, 8, false).await;
            shard::sleep(SECOND / 20).await;
        }
    });
    sleep(&mut scene, 1);
    assert_eq!(resync_offset(&scene), Some(0));
    sleep(&mut scene, 12);
    assert_eq!(resync_offset(&scene), Some(0), "a checkpoint is none while rows may be torn");
    crash(&mut scene);
    settle(&mut scene);
    assert_eq!(scene.check(), 0);
    scene.read_all();
}

#[test]
fn a_clean_stop_records_how_far_a_resync_and_a_rebuild_are() {
    for seed in 43..48 {
        let mut scene = slow(seed, InitialSync::Resync);
        spoil_parity(&scene);
        sleep(&mut scene, 7);
        scene.stop();
        let recorded = resync_offset(&scene).unwrap();
        assert!((2..=8).contains(&recorded), "{recorded} stripes after 7 seconds");
        scene.reassemble();
        settle(&mut scene);
        assert_eq!(scene.check(), 0);
    }
    for seed in 50..55 {
        let mut scene = slow(seed, InitialSync::AssumeClean);
        scene.write(0, 3 * CHUNKS * CHUNK / 512, false).unwrap();
        let spare = scene.fail_and_add(2);
        sleep(&mut scene, 7);
        scene.stop();
        scene.disks[2] = spare.clone();
        let recorded = superblock_on(&spare).member.recovery_offset.unwrap().0 * 512 / CHUNK;
        assert!((2..=8).contains(&recorded), "{recorded} stripes after 7 seconds");
        scene.reassemble();
        let before = spare.counters().bytes_written;
        settle(&mut scene);
        let written = (spare.counters().bytes_written - before) / CHUNK;
        assert!(
            written <= CHUNKS - recorded + 1,
            "{written} chunks, of {CHUNKS}, {recorded} of which were done"
        );
        assert_eq!(scene.check(), 0);
        scene.read_all();
    }
}

/// In the first leg, when nothing is recorded of a leg that met errors: a stripe of which two members have a
/// sector that can't be read was left out.
#[test]
fn a_clean_stop_does_not_record_a_resync_that_has_left_something_out() {
    let mut scene = slow_in_legs(49, InitialSync::Resync, 256);
    spoil_parity(&scene);
    let (disks, at) = (scene.disks.clone(), DATA_SECTOR * 512 + 2 * CHUNK + 512);
    let map = scene.geometry().slots(StripeId(2));
    for column in [0, 1] {
        disks[map.data_slot(column).index()].fault(&Fault::UnreadableRange(at..at + 512));
    }
    sleep(&mut scene, 7);
    assert!(scene.array.progress().unwrap().errors > 0);
    scene.stop();
    for disk in &disks {
        disk.fault(&Fault::Heal);
    }
    scene.reassemble();
    settle(&mut scene);
    assert_eq!(scene.check(), 0);
}

/// In a leg before the last one.
#[test]
fn a_resync_of_which_one_leg_has_left_something_out_is_not_over() {
    let mut scene = slow(48, InitialSync::Resync);
    spoil_parity(&scene);
    let (disks, at) = (scene.disks.clone(), DATA_SECTOR * 512 + 2 * CHUNK + 512);
    let map = scene.geometry().slots(StripeId(2));
    for column in [0, 1] {
        disks[map.data_slot(column).index()].fault(&Fault::UnreadableRange(at..at + 512));
    }
    sleep(&mut scene, CHUNKS + 20);
    assert_eq!(scene.array.detail().regions_to_resync, 1);
    for disk in &disks {
        disk.fault(&Fault::Heal);
    }
    settle(&mut scene);
    assert_eq!(scene.check(), 0);
}

/// A stop in the middle of a rebuild or a resync, and then power fails: mismatches after the next start.
fn mismatched_after_a_stop(seed: u64) -> u64 {
    let initial = if seed.is_multiple_of(2) { InitialSync::Resync } else { InitialSync::AssumeClean };
    let wish = wish(Level::Raid5, 4, CHUNK, NewBitmap::None, initial);
    let options = ArrayOptions { maintenance_depth: 6, ..options() };
    let mut scene = Scene::with_options(seed, wish, 1, options);
    let mut rng = scene.world.rng(7);
    if initial == InitialSync::Resync {
        spoil_parity(&scene);
    } else {
        scene.write(0, 3 * CHUNKS * CHUNK / 512, true).unwrap();
        scene.disks[2] = scene.fail_and_add(2);
    }
    let _ = scene.world.run_until(rng.below(3000), |_| false);
    scene.stop();
    crash(&mut scene);
    settle(&mut scene);
    scene.check()
}

#[test]
fn what_is_under_way_at_a_clean_stop_is_done_again() {
    for seed in 60..100 {
        assert_eq!(mismatched_after_a_stop(seed), 0, "seed {seed}");
    }
}

#[cfg(feature = "mutants")]
#[test]
fn a_stop_that_records_what_is_under_way_is_found() {
    use pinstripe_engine::mutants::{Mutant, activate};
    activate(Some(Mutant::PlaceIgnoresBegun));
    let found = (60..200).find(|&seed| mismatched_after_a_stop(seed) > 0);
    activate(None);
    assert_eq!(mismatched_after_a_stop(found.unwrap()), 0);
}
