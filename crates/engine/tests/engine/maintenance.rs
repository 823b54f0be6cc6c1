//! Check, repair and the pace of maintenance, in the simulated world and its virtual time.
#![allow(clippy::cast_possible_truncation, reason = "offsets in arrays of some hundred KiB")]

use std::{cell::RefCell, rc::Rc};

use crate::arrays::{
    STEPS, options,
    scene::{DATA_SECTOR, Scene, spawn, superblock_on, wish, write},
};
use pinstripe_engine::{
    events::{EventKind, SyncAction},
    geometry::StripeId,
    maintenance::{CheckReport, ScrubAction, ScrubRequest, SyncError},
    options::{ArrayOptions, SyncSpeed},
};
use pinstripe_md::{
    level::Level,
    placement::{InitialSync, NewBitmap},
};
use pinstripe_runtime::shard;
use pinstripe_sim::{Fault, Rng, Schedule, World, WorldConfig};

const BITMAP: NewBitmap = NewBitmap::Internal { chunk_bytes: Some(65536) };
const DATA: u64 = DATA_SECTOR * 512;
const CHUNK: u64 = 16 << 10;
const SECOND: u64 = 1_000_000_000;

fn scene(seed: u64, level: Level, members: u8) -> Scene {
    scene_with(seed, level, members, options())
}

fn scene_with(seed: u64, level: Level, members: u8, options: ArrayOptions) -> Scene {
    Scene::with_options(seed, wish(level, members, CHUNK, BITMAP, InitialSync::AssumeClean), 1, options)
}

/// A world in which time passes only where a task waits, for tests that measure it.
fn punctual(seed: u64, wish: &pinstripe_md::placement::NewArray, options: ArrayOptions) -> Scene {
    let drawn = Schedule::drawn(&mut Rng::new(seed));
    let schedule = Schedule { ticks: 0, pauses: 0, ..drawn };
    let world = World::new(WorldConfig { schedule: Some(schedule), ..WorldConfig::new(seed, 1) });
    Scene::in_world(world, wish, options)
}

fn write_all(scene: &mut Scene) {
    let sectors = scene.volume().size() / 512;
    for at in (0..sectors).step_by(128) {
        scene.write(at, 128.min(sectors - at), false).unwrap();
    }
}

fn scrub(scene: &mut Scene, request: ScrubRequest) -> CheckReport {
    let array = scene.array.clone();
    scene.run(async move { array.scrub(request).await }).unwrap()
}

fn whole(action: ScrubAction) -> ScrubRequest {
    ScrubRequest { action, from: 0, to: None }
}

/// Changes bytes of a member behind the array's back: from a byte of its data on.
fn damage(scene: &Scene, disk: usize, at: u64, bytes: usize) {
    let mut old = scene.disks[disk].peek(DATA + at, 512);
    old.iter_mut().take(bytes).enumerate().for_each(|(i, byte)| *byte ^= (i % 251) as u8 | 1);
    scene.disks[disk].poke(DATA + at, &old);
}

fn contents(scene: &Scene) -> Vec<Vec<u8>> {
    scene.disks.iter().map(|disk| disk.peek(DATA, 768 << 10)).collect()
}

#[test]
fn a_repair_makes_parity_from_data_and_a_check_leaves_it() {
    for (level, members) in [(Level::Raid5, 4), (Level::Raid6, 5)] {
        let mut scene = scene(1, level, members);
        write_all(&mut scene);
        let stripe = StripeId(3);
        let (map, at) = (scene.geometry().slots(stripe), scene.geometry().member_offset(stripe));
        let before = contents(&scene);
        damage(&scene, map.p_slot().index(), at + 5120, 300);
        damage(&scene, map.data_slot(0).index(), at + 12288, 1);
        let data_damaged = scene.disks[map.data_slot(0).index()].peek(DATA + at, CHUNK as usize);
        let check = scrub(&mut scene, whole(ScrubAction::Check));
        assert_eq!((check.mismatched_sectors, check.complete), (16, true));
        assert_eq!(scene.check(), 16, "a check changes nothing");
        assert_eq!(scrub(&mut scene, whole(ScrubAction::Repair)).mismatched_sectors, 16, "what was found");
        assert_eq!(scene.check(), 0);
        let after = contents(&scene);
        assert_eq!(
            after[map.p_slot().index()][at as usize + 5120..][..300],
            before[map.p_slot().index()][at as usize + 5120..][..300]
        );
        assert_eq!(scene.disks[map.data_slot(0).index()].peek(DATA + at, CHUNK as usize), data_damaged);
    }
}

#[test]
fn a_range_is_done_in_whole_chunks_and_nothing_else_is_read() {
    let mut scene = scene(2, Level::Raid5, 4);
    write_all(&mut scene);
    let sectors_of_chunk = CHUNK / 512;
    for stripe in [2, 3, 4, 5] {
        let map = scene.geometry().slots(StripeId(stripe));
        damage(&scene, map.p_slot().index(), stripe * CHUNK, 9);
    }
    let request = |from, to| ScrubRequest { action: ScrubAction::Check, from, to };
    let report = scrub(&mut scene, request(3 * sectors_of_chunk + 1, Some(4 * sectors_of_chunk + 1)));
    assert_eq!((report.stripes, report.mismatched_sectors), (2, 16));
    let report = scrub(&mut scene, request(5 * sectors_of_chunk, None));
    assert_eq!((report.stripes, report.mismatched_sectors), (scene.geometry().stripes() - 5, 8));
    let sectors = scene.geometry().member_bytes() / 512;
    for (from, to) in [(4, Some(4)), (8, Some(4)), (0, Some(sectors + 1)), (sectors, None)] {
        let array = scene.array.clone();
        let refused = scene.run(async move { array.scrub(request(from, to)).await });
        assert!(matches!(refused, Err(SyncError::Range { .. })), "{from} {to:?}: {refused:?}");
    }
}

/// In every row another member, data or parity, has bad bytes; locate finds each, and nothing else changes.
#[test]
fn locate_puts_right_the_one_chunk_that_is_wrong_wherever_it_is() {
    for layout in 0..3 {
        let mut wish = wish(Level::Raid6, 5, CHUNK, BITMAP, InitialSync::AssumeClean);
        let name = ["left-symmetric", "ddf-N-continue", "left-symmetric-6"][layout];
        let parity = pinstripe_md::level::ParityLayout::from_name(Level::Raid6, name).unwrap();
        wish.layout = pinstripe_md::level::Layout::Parity(parity);
        let mut scene = Scene::new(3, wish, 1);
        write_all(&mut scene);
        let before = contents(&scene);
        let stripes = scene.geometry().stripes();
        let mut sectors = 0;
        for stripe in 0..stripes {
            let disk = (stripe % 5) as usize;
            damage(&scene, disk, stripe * CHUNK + 4096 * (stripe % 4), 1 + (stripe as usize * 37) % 512);
            // Another member in another sector of the same row.
            damage(&scene, (disk + 2) % 5, stripe * CHUNK + 4096 * (stripe % 4) + 1024, 100);
            sectors += 2;
        }
        let flushes = |scene: &Scene| scene.disks.iter().map(|disk| disk.counters().flushes).sum::<u64>();
        let flushed = flushes(&scene);
        let report = scrub(&mut scene, whole(ScrubAction::Locate));
        assert!(flushes(&scene) - flushed < 20, "without a log nothing of it needs a flush");
        assert_eq!(report.mismatched_sectors, stripes * 8, "{name}");
        assert_eq!((report.corrected_sectors, report.unexplained_sectors), (sectors, 0), "{name}");
        assert!(contents(&scene) == before, "{name}: everything is as it was");
        assert_eq!(scene.check(), 0);
        let place = report.corrected.iter().find(|place| place.slot == 0).unwrap();
        assert_eq!((place.sector, place.sectors, place.device.as_str()), (DATA_SECTOR, 1, "disk0"));
        scene.read_all();
    }
}

#[test]
fn locate_leaves_what_no_single_chunk_explains() {
    let mut scene = scene(4, Level::Raid6, 5);
    write_all(&mut scene);
    for stripe in [1, 2, 3] {
        let map = scene.geometry().slots(StripeId(stripe));
        let (a, b) = match stripe {
            1 => (map.data_slot(0), map.data_slot(1)),
            2 => (map.data_slot(2), map.p_slot()),
            _ => (map.p_slot(), map.q_slot().unwrap()),
        };
        damage(&scene, a.index(), stripe * CHUNK, 100);
        damage(&scene, b.index(), stripe * CHUNK, 60);
    }
    let before = contents(&scene);
    let report = scrub(&mut scene, whole(ScrubAction::Locate));
    assert_eq!((report.mismatched_sectors, report.corrected_sectors, report.unexplained_sectors), (24, 0, 3));
    assert!(contents(&scene) == before, "nothing was touched");
}

/// With a chunk missing or unreadable there is one equation too few to tell which chunk is wrong.
#[test]
fn locate_judges_no_row_of_which_a_chunk_was_made_from_the_others() {
    let mut scene = scene(5, Level::Raid6, 5);
    write_all(&mut scene);
    let map = scene.geometry().slots(StripeId(2));
    let at = 2 * CHUNK;
    damage(&scene, map.data_slot(0).index(), at, 64);
    let unreadable = map.data_slot(1).index();
    scene.disks[unreadable].fault(&Fault::UnreadableRange(DATA + at..DATA + at + 512));
    let report = scrub(&mut scene, whole(ScrubAction::Locate));
    assert_eq!((report.corrected_sectors, report.unexplained_sectors), (0, 1));
    let array = scene.array.clone();
    scene.run(async move { array.fail(4).await }).unwrap();
    let before = contents(&scene);
    damage(&scene, 0, 9 * CHUNK, 64);
    scrub(&mut scene, whole(ScrubAction::Locate));
    damage(&scene, 0, 9 * CHUNK, 64);
    assert!(contents(&scene) == before);
}

#[test]
fn locate_is_refused_where_there_is_one_parity_and_repair_where_nothing_may_change() {
    let mut five = scene(6, Level::Raid5, 4);
    let array = five.array.clone();
    let refused = five.run(async move { array.scrub(whole(ScrubAction::Locate)).await });
    assert!(matches!(refused, Err(SyncError::OneParity)));
    five.stop();
    five.options.read_only = true;
    five.reassemble();
    let array = five.array.clone();
    let refused = five.run(async move { array.scrub(whole(ScrubAction::Repair)).await });
    assert!(matches!(refused, Err(SyncError::Command(_))), "{refused:?}");
}

/// One member can't read a sector, another has silently wrong bytes in another row of the stripe: the first
/// one's good bytes there must not be made anew from the damage.
#[test]
fn a_read_error_is_corrected_in_its_row_only() {
    let mut scene = scene(7, Level::Raid6, 5);
    write_all(&mut scene);
    let map = scene.geometry().slots(StripeId(4));
    let (reader, liar) = (map.data_slot(0).index(), map.data_slot(1).index());
    let before = contents(&scene);
    scene.disks[reader].fault(&Fault::UnreadableRange(DATA + 4 * CHUNK..DATA + 4 * CHUNK + 512));
    damage(&scene, liar, 4 * CHUNK + 8192, 64);
    scrub(&mut scene, whole(ScrubAction::Check));
    assert!(scene.disks[reader].peek(DATA, 768 << 10) == before[reader]);
    let report = scrub(&mut scene, whole(ScrubAction::Locate));
    assert_eq!(report.corrected_sectors, 1);
    assert!(contents(&scene) == before);
}

/// A RAID6 rebuild that meets a read error on a source makes both chunks, and the source is readable again.
#[test]
fn a_rebuild_that_meets_a_read_error_corrects_it() {
    let mut scene = scene(8, Level::Raid6, 5);
    write_all(&mut scene);
    let array = scene.array.clone();
    scene.run(async move { array.fail(1).await }).unwrap();
    for stripe in [3, 7, 12, 20] {
        // A chunk that the rebuild reads: of data, and not the one that it makes.
        let map = scene.geometry().slots(StripeId(stripe));
        let disk = (0..3).map(|column| map.data_slot(column).index()).find(|slot| *slot != 1).unwrap();
        scene.disks[disk].fault(&Fault::UnreadableRange(DATA + stripe * CHUNK..DATA + stripe * CHUNK + 1024));
    }
    let spare = scene.world.add_disk(pinstripe_sim::SimDiskConfig::new("spare", 2048 * 512));
    let (array, source) = (scene.array.clone(), spare.source());
    scene.run(async move { array.add(source, pinstripe_md::identity::Uuid([9; 16])).await }).unwrap();
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();
    let statistics = scene.array.detail().statistics;
    assert_eq!(statistics.corrected_reads, 4, "each in its row");
    assert_eq!(scene.check(), 0);
    scene.read_all();
    assert_eq!(scene.array.detail().statistics.reconstructed_reads, 0, "all sectors can be read again");
}

/// A repair that makes parity anew must not leave the old one in the cache, where the next small write finds
/// it.
#[test]
fn what_is_written_after_a_repair_matches_the_parity_that_it_made() {
    let mut scene = scene(9, Level::Raid5, 4);
    write_all(&mut scene);
    // The rows' parity is in the cache from here on.
    scene.write(0, 8, false).unwrap();
    let geometry = scene.geometry();
    let map = geometry.slots(StripeId(0));
    damage(&scene, map.data_slot(1).index(), 0, 200);
    assert_eq!(scrub(&mut scene, whole(ScrubAction::Repair)).mismatched_sectors, 8);
    let volume = scene.volume();
    scene.run(async move { volume.write(0, shard::zeroed(4096).freeze(), false).await }).unwrap();
    assert_eq!(scene.check(), 0);
}

/// A resync has met sectors that can't be made from the others.
fn resynced_in_vain(seed: u64) -> Scene {
    let initial = InitialSync::Resync;
    let mut scene = Scene::new(seed, wish(Level::Raid5, 4, CHUNK, BITMAP, initial), 1);
    for disk in [0, 1] {
        scene.disks[disk].fault(&Fault::UnreadableRange(DATA + 5 * CHUNK..DATA + 5 * CHUNK + 512));
    }
    let array = scene.array.clone();
    let settled = move |_: &World| array.detail().regions_to_resync == 1 && array.progress().is_none();
    scene.world.run_until(STEPS, settled).unwrap();
    scene
}

#[test]
fn a_resync_that_met_sectors_which_can_not_be_read_is_tried_again_and_ends_when_they_can() {
    let mut scene = resynced_in_vain(17);
    for disk in [0, 1] {
        scene.disks[disk].fault(&Fault::Heal);
    }
    let array = scene.array.clone();
    scene.world.run_until(500_000, |_| array.detail().regions_to_resync == 0).unwrap();
    assert_eq!(scene.check(), 0);
}

/// Such a resync is tried again and again; a check that is asked for is done all the same.
#[test]
fn a_check_does_not_wait_for_a_resync_that_cannot_end() {
    let mut scene = resynced_in_vain(16);
    let before = scene.world.now();
    let report = scrub(&mut scene, whole(ScrubAction::Check));
    assert_eq!((report.unreadable_stripes, report.complete), (1, true));
    assert!(scene.world.now() - before < 5 * SECOND, "it did not wait for the next try");
}

fn start_scrub(
    scene: &mut Scene,
    action: ScrubAction,
) -> Rc<RefCell<Option<Result<CheckReport, SyncError>>>> {
    let result = Rc::new(RefCell::new(None));
    let (array, there) = (scene.array.clone(), Rc::clone(&result));
    scene.world.spawn(0, "scrub", async move {
        let outcome = array.scrub(whole(action)).await;
        *there.borrow_mut() = Some(outcome);
    });
    result
}

fn done(scene: &Scene) -> u64 {
    scene.array.progress().map_or(0, |progress| progress.done)
}

/// Lets virtual time pass.
fn pass(scene: &mut Scene, nanoseconds: u64) {
    scene.run(async move { shard::sleep(nanoseconds).await });
}

fn slow(min_kib: u64, max_kib: u64) -> ArrayOptions {
    ArrayOptions { sync_speed: SyncSpeed { min_kib, max_kib }, ..options() }
}

#[test]
fn a_check_is_paused_goes_on_where_it_was_and_is_stopped() {
    let mut scene = scene_with(10, Level::Raid5, 4, slow(1, 160));
    write_all(&mut scene);
    damage(&scene, scene.geometry().slots(StripeId(0)).p_slot().index(), 0, 1);
    let result = start_scrub(&mut scene, ScrubAction::Check);
    pass(&mut scene, SECOND);
    let before = done(&scene);
    assert!((5..=20).contains(&before), "{before}");
    scene.array.pause_sync(true);
    pass(&mut scene, 60 * SECOND);
    let paused = scene.array.progress().unwrap();
    assert!(paused.paused && paused.done <= before + 1, "{paused:?}");
    scene.write(0, 64, false).unwrap();
    scene.array.pause_sync(false);
    pass(&mut scene, SECOND);
    assert!(done(&scene) >= paused.done + 5 && done(&scene) < scene.geometry().stripes());
    scene.array.stop_scrubs().unwrap();
    scene.world.run_until(STEPS, |_| result.borrow().is_some()).unwrap();
    let report = result.take().unwrap().unwrap();
    assert!(!report.complete && report.stripes >= 10, "{report:?}");
    assert!(matches!(scene.array.stop_scrubs(), Err(SyncError::NothingToStop)));
    // One that waits behind a pause can be stopped too.
    scene.array.pause_sync(true);
    let result = start_scrub(&mut scene, ScrubAction::Check);
    pass(&mut scene, SECOND);
    scene.array.stop_scrubs().unwrap();
    scene.world.run_until(STEPS, |_| result.borrow().is_some()).unwrap();
    assert_eq!(result.take().unwrap().unwrap().stripes, 0);
    scene.stop();
}

#[test]
fn a_recovery_is_paused_and_not_stopped_and_the_array_can_be_stopped_meanwhile() {
    let mut scene = scene_with(11, Level::Raid5, 4, slow(1, 160));
    write_all(&mut scene);
    scene.fail_and_add(2);
    pass(&mut scene, SECOND);
    assert!(matches!(scene.array.stop_scrubs(), Err(SyncError::Needed(SyncAction::Rebuild))));
    scene.array.pause_sync(true);
    pass(&mut scene, 30 * SECOND);
    let before = done(&scene);
    pass(&mut scene, 30 * SECOND);
    assert_eq!((done(&scene), scene.array.detail().missing), (before, 1));
    scene.read_all();
    scene.array.pause_sync(false);
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();
    scene.array.pause_sync(true);
    scene.stop();
}

#[test]
fn a_rebuild_records_every_ten_seconds_how_far_it_is_however_slow_it_is() {
    // A stripe a second; all of them are less than a step.
    let mut scene = scene_with(13, Level::Raid5, 4, slow(1, 16));
    write_all(&mut scene);
    let spare = scene.fail_and_add(2);
    let stripes = scene.geometry().stripes();
    assert!(stripes > 35 && stripes < options().checkpoint_stripes, "{stripes}");
    for second in 0..35 {
        pass(&mut scene, SECOND);
        let recorded = superblock_on(&spare).member.recovery_offset.unwrap().0 / (CHUNK / 512);
        assert!(recorded + 12 >= done(&scene), "{recorded} of {} after {second} s", done(&scene));
        assert!(recorded <= done(&scene), "{recorded} of {} after {second} s", done(&scene));
    }
    assert!(done(&scene) >= 20, "{}", done(&scene));
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();
    scene.read_all();
    scene.stop();
}

#[test]
fn a_check_makes_room_for_a_recovery_and_then_goes_on() {
    let mut scene = scene_with(12, Level::Raid6, 5, slow(1, 1600));
    write_all(&mut scene);
    let stripes = scene.geometry().stripes();
    for stripe in 0..stripes {
        damage(&scene, scene.geometry().slots(StripeId(stripe)).p_slot().index(), stripe * CHUNK, 3);
    }
    let result = start_scrub(&mut scene, ScrubAction::Repair);
    pass(&mut scene, SECOND / 10);
    let before = done(&scene);
    assert!(before > 2 && before < stripes);
    let array = scene.array.clone();
    scene.run(async move { array.fail(3).await }).unwrap();
    let spare = scene.world.add_disk(pinstripe_sim::SimDiskConfig::new("spare", 2048 * 512));
    let (array, source) = (scene.array.clone(), spare.source());
    scene.run(async move { array.add(source, pinstripe_md::identity::Uuid([9; 16])).await }).unwrap();
    pass(&mut scene, SECOND / 10);
    assert_eq!(scene.array.progress().unwrap().action, SyncAction::Rebuild);
    scene.world.run_until(STEPS, |_| result.borrow().is_some()).unwrap();
    let report = result.take().unwrap().unwrap();
    assert_eq!((report.stripes, report.complete), (stripes, true), "each once");
    assert!(report.mismatched_sectors <= stripes * 8, "and counted once: {report:?}");
}

#[test]
fn a_check_that_goes_on_after_a_recovery_has_counted_what_it_could_not_read_before() {
    let mut scene = scene_with(12, Level::Raid5, 4, slow(1, 1600));
    write_all(&mut scene);
    for disk in [0, 1] {
        scene.disks[disk].fault(&Fault::UnreadableRange(DATA..DATA + 512));
    }
    let result = start_scrub(&mut scene, ScrubAction::Check);
    pass(&mut scene, SECOND / 10);
    assert_eq!(scene.array.progress().unwrap().errors, 1);
    for disk in [0, 1] {
        scene.disks[disk].fault(&Fault::Heal);
    }
    scene.fail_and_add(3);
    let array = scene.array.clone();
    let goes_on = |_: &World| {
        array.detail().missing == 0 && array.progress().is_some_and(|it| it.action == SyncAction::Check)
    };
    scene.world.run_until(STEPS, goes_on).unwrap();
    assert_eq!(scene.array.progress().unwrap().errors, 1);
    scene.world.run_until(STEPS, |_| result.borrow().is_some()).unwrap();
    assert_eq!(result.take().unwrap().unwrap().unreadable_stripes, 1);
}

#[test]
fn the_limits_hold_in_virtual_time_and_can_be_changed_while_it_runs() {
    let wish = wish(Level::Raid5, 4, CHUNK, BITMAP, InitialSync::AssumeClean);
    let mut scene = punctual(13, &wish, slow(1, 320));
    write_all(&mut scene);
    let result = start_scrub(&mut scene, ScrubAction::Check);
    pass(&mut scene, SECOND);
    // 320 KiB a second are 20 chunks of 16 KiB.
    assert!((19..=22).contains(&done(&scene)), "{}", done(&scene));
    let progress = scene.array.progress().unwrap();
    assert!((300 << 10..=340 << 10).contains(&progress.speed), "{progress:?}");
    let left = (progress.total - progress.done) / 20;
    assert!((left.saturating_sub(1)..=left + 1).contains(&progress.finish_seconds.unwrap()), "{progress:?}");
    scene.array.set_sync_speed(SyncSpeed { min_kib: 1, max_kib: 1 << 30 }).unwrap();
    pass(&mut scene, SECOND);
    assert!(result.borrow().is_some(), "with the new limit it is through at once");
    scene.array.set_sync_speed(SyncSpeed { min_kib: 1, max_kib: 1 }).unwrap();
    for (min_kib, max_kib) in [(0, 1), (2, 1)] {
        let refused = scene.array.set_sync_speed(SyncSpeed { min_kib, max_kib });
        assert!(matches!(refused, Err(SyncError::Speed { .. })));
    }
}

/// Users' I/O that never stops: between the limits maintenance yields to it, and below the lower one it
/// doesn't.
#[test]
fn maintenance_yields_to_users_but_not_below_its_lower_limit() {
    let stripes_beside_users = |min_kib| {
        let mut wish = wish(Level::Raid5, 4, CHUNK, BITMAP, InitialSync::AssumeClean);
        wish.members.iter_mut().for_each(|member| member.sectors = 256 + 4096 * 32);
        let mut scene = punctual(14, &wish, slow(min_kib, 1 << 30));
        let over = Rc::new(RefCell::new(false));
        let seen = Rc::clone(&over);
        spawn(&mut scene, 4, move |_, volume, ledger, mut rng: Rng| {
            let over = Rc::clone(&seen);
            async move {
                // Where the walk doesn't come by: only the members are shared.
                let last = volume.size() / 512 - 8;
                while !*over.borrow() {
                    write(&volume, &ledger, last - rng.below(1000), 8, false).await.unwrap();
                }
            }
        });
        pass(&mut scene, SECOND / 50);
        start_scrub(&mut scene, ScrubAction::Check);
        pass(&mut scene, SECOND / 10);
        *over.borrow_mut() = true;
        let beside = done(&scene);
        pass(&mut scene, SECOND * 6 / 100);
        let before = done(&scene);
        pass(&mut scene, SECOND / 100);
        (beside, done(&scene) - before)
    };
    let (yielding, alone) = stripes_beside_users(1);
    assert!(yielding > 20 && yielding < alone * 10 / 20, "{yielding} in ten times the time of {alone}");
    let (held, _) = stripes_beside_users(128 << 10);
    // 128 MiB a second are 819 chunks in a tenth of a second.
    assert!((700..1100).contains(&held) && yielding < held / 2, "{yielding} {held}");
}

#[test]
fn events_tell_what_happened_in_order_and_a_reader_waits_for_the_next() {
    let mut scene = scene(15, Level::Raid5, 4);
    write_all(&mut scene);
    damage(&scene, scene.geometry().slots(StripeId(0)).p_slot().index(), 0, 1);
    assert_eq!(scene.check(), 8);
    let (array, seen) = (scene.array.clone(), Rc::new(RefCell::new(0)));
    let last = scene.array.events(0).last().unwrap().number;
    let there = Rc::clone(&seen);
    scene.world.spawn(0, "reader", async move {
        array.event_after(last).await;
        *there.borrow_mut() = array.events(last).len();
    });
    pass(&mut scene, SECOND);
    assert_eq!(*seen.borrow(), 0);
    scene.disks[1].fault(&Fault::Gone);
    scene.write(0, 128, false).unwrap();
    pass(&mut scene, SECOND);
    assert_eq!(*seen.borrow(), 1);
    let names: Vec<String> = scene.array.events(0).iter().map(|event| event.kind.name()).collect();
    assert_eq!(
        names,
        [
            "RebuildStarted",
            "MismatchFound",
            "Rebuild20",
            "Rebuild40",
            "Rebuild60",
            "Rebuild80",
            "RebuildFinished",
            "Fail"
        ]
    );
    let finished = &scene.array.events(6)[0].kind;
    assert!(matches!(finished, EventKind::RebuildFinished { whole: true, mismatched: Some(8), .. }));
    scene.stop();
    scene.disks[1].fault(&Fault::Return);
    scene.disks[1].fault(&Fault::Heal);
    scene.reassemble();
    let first = &scene.array.events(0)[0];
    assert_eq!(first.kind, EventKind::DegradedArray { slots: vec![1] });
    assert_eq!(first.number, 1);
}
