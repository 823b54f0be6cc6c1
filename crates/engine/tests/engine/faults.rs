//! Members that hang, are slow, busy or full of bad sectors: every operation ends, and nothing acknowledged
//! is lost.

use std::{cell::Cell, rc::Rc, sync::Arc};

use crate::arrays::{
    self, STEPS, options,
    scene::{DATA_SECTOR, Scene, list_as_bad, superblock_on, wish, write},
};
use pinstripe_engine::{
    array::{Added, Array, CommandError},
    assembly::AssembleError,
    error::{IoError, MemberError, Operation},
    io::volume::Volume,
    options::ArrayOptions,
    status::detail::Detail,
};
use pinstripe_md::{
    bad_blocks::BadBlocks,
    identity::Uuid,
    level::{Layout, Level, Raid0Layout},
    placement::{InitialSync, NewBitmap},
    superblock::Role,
};
use pinstripe_runtime::{DeviceError, DeviceErrorKind, shard};
use pinstripe_sim::{Fault, SimDiskConfig, Trigger};

const BITMAP: NewBitmap = NewBitmap::Internal { chunk_bytes: Some(65536) };
const SECOND: u64 = 1_000_000_000;
/// Of a stripe of three data chunks of 16 KiB.
const STRIPE_SECTORS: u64 = 96;

fn raid5(seed: u64) -> Scene {
    raid5_with(seed, options())
}

fn raid5_with(seed: u64, options: ArrayOptions) -> Scene {
    let wish = wish(Level::Raid5, 4, 16 << 10, BITMAP, InitialSync::AssumeClean);
    Scene::with_options(seed, wish, 2, options)
}

fn fill(scene: &mut Scene) {
    for stripe in 0..8 {
        scene.write(stripe * STRIPE_SECTORS, STRIPE_SECTORS, false).unwrap();
    }
    scene.flush().unwrap();
}

fn detail(scene: &Scene) -> Detail {
    scene.array.detail()
}

/// The role that a disk has in the table of another.
fn role_on(scene: &Scene, disk: usize, of: usize) -> Role {
    let superblock = superblock_on(&scene.disks[disk]);
    superblock.array.roles[of]
}

fn add(scene: &mut Scene, disk: usize) -> Result<usize, CommandError> {
    let (array, source) = (scene.array.clone(), scene.disks[disk].source());
    let added = scene.run(async move { array.add(source, Uuid([0x55; 16])).await })?;
    match added {
        Added::Full { slot } | Added::Bitmap { slot } => Ok(slot),
        Added::Spare => panic!("a slot is empty"),
    }
}

fn wait_for(scene: &mut Scene, condition: impl Fn(&Detail) -> bool) {
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| condition(&array.detail())).unwrap();
}

#[test]
fn a_member_that_hangs_is_dropped_and_comes_back_only_when_its_requests_are_over() {
    for seed in 0..4 {
        let mut scene = raid5(seed);
        fill(&mut scene);
        scene.disks[1].fault(&Fault::Hang);
        let hung_at = scene.world.now();
        scene.write(0, STRIPE_SECTORS, false).unwrap();
        let took = scene.world.now() - hung_at;
        assert!((30 * SECOND..50 * SECOND).contains(&took), "it took {took} ns");
        // C2: what was acknowledged without it is on record.
        assert!([0, 2, 3].iter().all(|&disk| role_on(&scene, disk, 1) == Role::Faulty));
        scene.write(STRIPE_SECTORS + 5, 3, false).unwrap();
        scene.flush().unwrap();
        assert!(scene.world.now() - hung_at < took + SECOND, "no request waits for it any more");
        scene.read_all();

        let now = detail(&scene);
        assert_eq!(now.failed[0].error.error.kind, DeviceErrorKind::TimedOut);
        assert!(now.failed[0].late_requests > 0 && now.failed[0].statistics.timed_out > 0);
        assert!(now.advice.unwrap().contains("still has"));
        let refused = add(&mut scene, 1).unwrap_err();
        assert!(matches!(refused, CommandError::RequestsUnderWay { .. }), "{refused}");

        // The late writes land on a member that nothing reads.
        scene.disks[1].fault(&Fault::Release);
        wait_for(&mut scene, |detail| detail.failed[0].late_requests == 0);
        scene.read_all();
        assert_eq!(add(&mut scene, 1).unwrap(), 1);
        wait_for(&mut scene, |detail| detail.missing == 0);
        assert_eq!(scene.check(), 0);
        scene.read_all();
        scene.stop();
        assert!(scene.world.leak_report().requests_in_flight.iter().all(|&count| count == 0));
    }
}

#[test]
fn zeroes_that_a_member_missed_are_answered_when_the_superblocks_say_so() {
    for seed in 0..4 {
        let mut scene = raid5(seed);
        fill(&mut scene);
        scene.disks[1].fault(&Fault::Gone);
        let volume = scene.volume();
        scene.run(async move { volume.write_zeroes(0, STRIPE_SECTORS * 512, false).await }).unwrap();
        assert!([0, 2, 3].iter().all(|&disk| role_on(&scene, disk, 1) == Role::Faulty), "C2, seed {seed}");
    }
}

#[test]
fn a_member_that_is_slow_is_told_of_and_kept() {
    let mut scene = raid5(1);
    fill(&mut scene);
    scene.disks[2].fault(&Fault::Hang);
    let release = scene.world.now() + 20 * SECOND;
    scene.disks[2].plan(Trigger::AtTime(release), Fault::Release);
    let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
    let done = Rc::new(Cell::new(false));
    let told = Rc::clone(&done);
    scene.world.spawn(0, "write", async move {
        write(&volume, &ledger, 0, STRIPE_SECTORS, false).await.unwrap();
        told.set(true);
    });
    wait_for(&mut scene, |detail| detail.slots[2].slow);
    assert!(detail(&scene).advice.unwrap().contains("slow to answer"));
    scene.world.run_until(STEPS, |_| done.get()).unwrap();
    let now = detail(&scene);
    assert!(!now.slots[2].slow && now.slots[2].statistics.slow == 1 && now.missing == 0);
    assert_eq!(now.slots[2].statistics.timed_out, 0);
    scene.read_all();
    assert_eq!(scene.check(), 0);
}

#[test]
fn a_flush_and_a_read_of_a_member_that_hangs_end() {
    for seed in 0..4 {
        let mut scene = raid5(seed);
        fill(&mut scene);
        scene.disks[0].fault(&Fault::Hang);
        if seed % 2 == 0 {
            scene.flush().unwrap();
        }
        scene.read_all();
        assert_eq!(detail(&scene).failed.len(), 1);
    }
}

#[test]
fn when_too_many_members_hang_every_operation_ends_with_an_error() {
    for seed in 0..4 {
        let mut scene = raid5(seed);
        fill(&mut scene);
        let roles = role_on(&scene, 3, 2);
        scene.disks[1].fault(&Fault::Hang);
        scene.disks[2].fault(&Fault::Hang);
        let failed = scene.write(0, STRIPE_SECTORS, false);
        assert_eq!(failed, Err(IoError::Failed));
        assert_eq!(scene.write(500, 8, false), Err(IoError::Failed));
        assert_eq!(scene.flush(), Err(IoError::Failed));
        // C3: at most the first of them was written down.
        let now = [1, 2].map(|disk| role_on(&scene, 3, disk));
        assert!(now.contains(&roles) || now.contains(&Role::Slot(pinstripe_md::units::MemberSlot(1))));
        let array = scene.array.clone();
        assert!(scene.run(async move { array.stop().await }).is_err());
    }
}

#[test]
fn after_a_failure_beyond_redundancy_members_that_answer_again_are_read() {
    let mut scene = raid5(7);
    fill(&mut scene);
    for disk in 0..4 {
        scene.disks[disk].fault(&Fault::Hang);
    }
    assert_eq!(scene.write(0, STRIPE_SECTORS, false), Err(IoError::Failed));
    let volume = scene.volume();
    let refused = scene.run(async move { volume.read(0, shard::buffer(4096)).await.0 });
    assert!(refused.is_err());
    for disk in 0..4 {
        scene.disks[disk].fault(&Fault::Release);
    }
    wait_for(&mut scene, |detail| detail.slots.iter().all(|slot| slot.late_requests == 0));
    assert_eq!(detail(&scene).missing, 1, "the member that was given up before the array failed");
    let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
    let refused = scene.run(async move {
        let mut refused = Vec::new();
        for at in (0..volume.size() / 512).step_by(32) {
            let id = ledger.borrow_mut().begin_read(at..at + 32);
            match volume.read(at * 512, shard::buffer(32 * 512)).await {
                (Ok(()), buffer) => ledger.borrow_mut().check_read(id, &buffer).unwrap(),
                (Err(error), _) => refused.push((at, error)),
            }
        }
        refused
    });
    // Of the missing member only what can't have been half written: not the stripes of the bitmap's region in
    // which a write was cut off.
    assert_eq!(refused.len(), 3, "{refused:?}");
    for (at, error) in refused {
        assert!(at < 4 * STRIPE_SECTORS && matches!(error, IoError::Unreadable { .. }), "{at}: {error}");
    }
}

#[test]
fn an_outage_of_all_members_that_is_shorter_than_the_last_may_take_does_not_fail_the_array() {
    for seed in 0..4 {
        let mut scene = raid5(seed);
        fill(&mut scene);
        arrays::scene::silence(&mut scene, 45);
        scene.write(0, STRIPE_SECTORS, false).unwrap();
        assert!(
            detail(&scene).missing <= 1,
            "one was given up before it was known that the others are silent too"
        );
        scene.flush().unwrap();
        scene.read_all();
        assert_eq!(scene.check(), 0);
        scene.stop();
    }
}

#[test]
fn a_member_that_is_silent_beside_one_that_is_lost_is_the_last_that_the_array_can_lose() {
    for seed in 0..4 {
        let mut scene = raid5(seed);
        fill(&mut scene);
        assert!(
            arrays::scene::write_to_one_lost_and_one_silent(&mut scene),
            "the lost one was not known to be"
        );
        let slots: Vec<_> = detail(&scene).slots.iter().map(|slot| slot.state).collect();
        assert_eq!(slots, ["missing", "in-sync", "in-sync", "in-sync"]);
        scene.read_all();
    }
}

#[test]
fn a_process_that_was_stopped_has_waited_for_nothing() {
    for seed in 0..4 {
        let mut scene = raid5(seed);
        fill(&mut scene);
        // The kernel's workers for files belong to the process, and are stopped with it.
        arrays::scene::silence(&mut scene, 300);
        assert!(arrays::scene::write_in_a_stall(&mut scene, 300));
        let now = detail(&scene);
        assert!(now.missing == 0 && now.slots.iter().all(|slot| slot.statistics.timed_out == 0));
        scene.read_all();
        scene.stop();
    }
}

#[test]
fn a_hanging_member_can_be_failed_at_once_and_a_stop_ends_although_members_may_take_for_ever() {
    let patient = ArrayOptions { member_timeout_ns: 0, ..options() };
    let mut scene = raid5_with(3, patient.clone());
    fill(&mut scene);
    scene.disks[3].fault(&Fault::Hang);
    let (array, now) = (scene.array.clone(), scene.world.now());
    scene.run(async move { array.fail(3).await }).unwrap();
    assert!(scene.world.now() - now < SECOND);
    scene.write(0, STRIPE_SECTORS, false).unwrap();

    let mut scene = raid5_with(4, patient);
    fill(&mut scene);
    scene.disks[3].fault(&Fault::Hang);
    let volume = scene.volume();
    scene.world.spawn(0, "write", async move {
        let _ = volume.write(0, shard::zeroed(48 << 10).freeze(), false).await;
    });
    let later = scene.world.now() + 3600 * SECOND;
    scene.run(async move { shard::sleep(later).await });
    assert!(detail(&scene).slots[3].slow && detail(&scene).missing == 0, "it is waited for");
    scene.stop();
    assert!(scene.world.now() < later + later + 100 * SECOND);
}

#[test]
fn a_request_that_finds_the_device_busy_is_tried_again_but_a_flush_is_not() {
    let mut scene = raid5(5);
    fill(&mut scene);
    scene.disks[1].fault(&Fault::RefuseRequests(3));
    scene.write(0, STRIPE_SECTORS, false).unwrap();
    scene.disks[2].fault(&Fault::RefuseRequests(2));
    scene.read_all();
    let now = detail(&scene);
    assert_eq!((now.missing, now.slots[1].statistics.retries, now.slots[2].statistics.retries), (0, 3, 2));
    scene.disks[0].fault(&Fault::RefuseRequests(1));
    scene.flush().unwrap();
    assert_eq!(detail(&scene).failed[0].slot, Some(0), "C5");
    // Busy for longer than it is borne with.
    let mut scene = raid5(6);
    fill(&mut scene);
    scene.disks[1].fault(&Fault::RefuseRequests(1000));
    scene.write(0, STRIPE_SECTORS, false).unwrap();
    assert_eq!(detail(&scene).failed[0].error.error.kind, DeviceErrorKind::Busy);
}

/// Its wait is over then, and what is written next to the same place must not be overtaken (C16).
#[test]
fn what_found_the_device_busy_is_not_tried_again_when_its_member_is_out() {
    let mut scene = raid5(7);
    fill(&mut scene);
    scene.disks[1].fault(&Fault::RefuseRequests(5));
    let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
    scene.world.spawn(0, "write", async move {
        write(&volume, &ledger, 0, STRIPE_SECTORS, false).await.unwrap();
    });
    // The next try is 8 ms later.
    wait_for(&mut scene, |detail| detail.slots[1].statistics.retries == 3);
    let array = scene.array.clone();
    scene.run(async move { array.fail(1).await }).unwrap();
    scene.disks[1].fault(&Fault::Heal);
    let before = scene.disks[1].counters().bytes_written;
    scene.run(async { shard::sleep(SECOND).await });
    assert_eq!(scene.disks[1].counters().bytes_written, before);
    scene.read_all();
}

/// A device that caches keeps what was tried again only if that was forced, too.
#[test]
fn a_forced_write_that_finds_the_device_busy_outlives_a_crash() {
    for seed in 0..8 {
        let mut scene = raid5(seed);
        fill(&mut scene);
        scene.disks[1].fault(&Fault::RefuseRequests(1));
        scene.write(0, STRIPE_SECTORS, true).unwrap();
        assert_eq!(detail(&scene).slots[1].statistics.retries, 1);
        crash(&mut scene);
        scene.read_all();
    }
}

#[test]
fn a_device_that_hangs_at_assembly_is_an_error_and_one_that_is_to_join_too() {
    let mut scene = raid5(8);
    fill(&mut scene);
    scene.stop();
    scene.disks[2].fault(&Fault::Hang);
    let sources = scene.disks.iter().map(pinstripe_sim::SimDisk::source).collect();
    let shards = vec![scene.world.shard(0).handle()];
    let options = scene.options.clone();
    let refused = scene.run(async move { Array::assemble(sources, options, shards).await.map(|_| ()) });
    assert!(
        matches!(&refused, Err(AssembleError::Device { name, error }) if name == "disk2" && error.kind == DeviceErrorKind::TimedOut),
        "{refused:?}"
    );
    let sources = [0, 1, 3].map(|disk: usize| scene.disks[disk].source()).to_vec();
    let array = arrays::assemble(&mut scene.world, sources, scene.options.clone()).unwrap();
    scene.array = array;
    let silent = add(&mut scene, 2).unwrap_err();
    assert!(matches!(silent, CommandError::Device { .. }), "{silent}");
    scene.write(0, STRIPE_SECTORS, false).unwrap();
}

/// A device falls silent at one of its requests after another, while it is added. Whatever it was asked for
/// then, the command ends, says which device it is, and everything else goes on.
#[test]
fn a_device_that_falls_silent_while_it_is_added_is_told_by_its_name_and_holds_nothing() {
    for slot_is_empty in [false, true] {
        let mut told = Vec::new();
        for request in 0.. {
            let mut scene = raid5(11);
            fill(&mut scene);
            let array = scene.array.clone();
            if slot_is_empty {
                scene.run(async move { array.fail(1).await }).unwrap();
            }
            let disk = scene.world.add_disk(SimDiskConfig::new("spare", 2048 * 512));
            disk.plan(Trigger::AtRequest(request), Fault::Hang);
            let (array, began) = (scene.array.clone(), scene.world.now());
            let source = disk.source();
            let added = scene.run(async move { array.add(source, Uuid([0x55; 16])).await });
            assert!(scene.world.now() - began < 50 * SECOND);
            let Err(error) = added else { break };
            assert!(error.to_string().contains("spare"), "{error}");
            told.push(matches!(error, CommandError::NotTakenIn(_)));
            if let CommandError::NotTakenIn(error) = error {
                assert_eq!(error.error.kind, DeviceErrorKind::TimedOut);
                let now = detail(&scene);
                assert!(now.spares.is_empty() && now.failed.iter().any(|failed| failed.error == error));
            }
            // It may still do what it was asked for (C16).
            let (array, source) = (scene.array.clone(), disk.source());
            let again = scene.run(async move { array.add(source, Uuid([0x55; 16])).await }).unwrap_err();
            assert!(matches!(again, CommandError::RequestsUnderWay { .. }), "{again}");
            let now = scene.world.now();
            scene.write(0, STRIPE_SECTORS, false).unwrap();
            let array = scene.array.clone();
            scene.run(async move { array.remove_bitmap().await }).unwrap();
            assert!(scene.world.now() - now < SECOND, "it is waited for");
            disk.fault(&Fault::Release);
            scene.run(async { shard::sleep(SECOND).await });
            let (array, source) = (scene.array.clone(), disk.source());
            scene.run(async move { array.add(source, Uuid([0x55; 16])).await }).unwrap();
            wait_for(&mut scene, |detail| detail.missing == 0);
            assert_eq!(scene.check(), 0);
            scene.read_all();
        }
        assert!(told.contains(&true) && told.contains(&false), "{told:?}");
    }
}

#[test]
fn a_spare_that_falls_silent_is_left_out_and_a_stop_waits_for_it_no_longer_than_for_a_member() {
    for (limit, at_stop) in [(options().member_timeout_ns, false), (0, true)] {
        let mut scene = raid5_with(12, ArrayOptions { member_timeout_ns: limit, ..options() });
        fill(&mut scene);
        let disk = scene.world.add_disk(SimDiskConfig::new("spare", 2048 * 512));
        let (array, source) = (scene.array.clone(), disk.source());
        scene.run(async move { array.add(source, Uuid([0x55; 16])).await }).unwrap();
        disk.fault(&Fault::Hang);
        let began = scene.world.now();
        if at_stop {
            scene.stop();
        } else {
            let array = scene.array.clone();
            scene.run(async move { array.fail(1).await }).unwrap();
            assert_eq!(detail(&scene).failed.len(), 2);
            scene.write(0, STRIPE_SECTORS, false).unwrap();
            scene.read_all();
        }
        assert!(scene.world.now() - began < 100 * SECOND);
    }
}

/// Of three members, with something written.
fn level_0() -> Scene {
    let mut wish = wish(Level::Raid5, 3, 16 << 10, NewBitmap::None, InitialSync::AssumeClean);
    (wish.level, wish.layout) = (Level::Raid0, Layout::Raid0(Raid0Layout::Unspecified));
    let mut scene = Scene::new(9, wish, 1);
    scene.write(0, 96, false).unwrap();
    scene
}

#[test]
fn level_0_answers_with_an_error_and_asks_nothing_more_until_late_writes_are_over() {
    let mut scene = level_0();
    scene.disks[0].fault(&Fault::Hang);
    let timed_out = |result: Result<(), IoError>| matches!(result, Err(IoError::Member(error)) if error.error.kind == DeviceErrorKind::TimedOut);
    assert!(timed_out(scene.write(0, 8, false)));
    let now = scene.world.now();
    assert!(timed_out(scene.write(0, 8, false)), "C16: it could be overtaken by the late one");
    assert!(scene.world.now() - now < SECOND);
    assert!(detail(&scene).advice.unwrap().contains("does not answer"));
    scene.disks[0].fault(&Fault::Release);
    wait_for(&mut scene, |detail| detail.slots[0].late_requests == 0);
    scene.write(0, 8, false).unwrap();
    scene.read_all();
}

#[test]
fn level_0_has_no_flush_succeed_after_one_that_failed() {
    // The member tells lost writes once, and they may be another client's (C5).
    let mut scene = level_0();
    let lost =
        |scene: &Scene| -> Vec<bool> { detail(scene).slots.iter().map(|slot| slot.lost_flush).collect() };
    assert!(!lost(&scene).contains(&true));
    scene.disks[1].fault(&Fault::FailFlushes(1));
    for _ in 0..3 {
        assert!(matches!(scene.flush(), Err(IoError::Member(_))));
    }
    // Another program, which knows of no flush, must not go on with these clients.
    assert!(lost(&scene)[1] && !lost(&scene)[0]);
    scene.stop();
    assert!(lost(&scene)[1], "after the stop as well");
    scene.reassemble();
    scene.flush().unwrap();
}

/// A stripe is written of which one member says nothing, and another one is out of it for good. The answer.
fn write_beside_a_silent_and_a_failing_one(scene: &mut Scene) -> Rc<Cell<Option<bool>>> {
    fill(scene);
    scene.disks[0].fault(&Fault::Hang);
    scene.disks[1].fault(&Fault::RefuseRequests(1000));
    let (volume, ledger, written) = (scene.volume(), Rc::clone(&scene.ledger), Rc::new(Cell::new(None)));
    let answer = Rc::clone(&written);
    scene.world.spawn(0, "write", async move {
        let result = write(&volume, &ledger, 0, STRIPE_SECTORS, false).await;
        answer.set(Some(result.is_ok()));
    });
    written
}

#[test]
fn a_silent_member_is_needed_while_a_write_to_another_one_has_failed() {
    let mut scene = raid5(11);
    let written = write_beside_a_silent_and_a_failing_one(&mut scene);
    scene.run(async { shard::sleep(6 * SECOND).await });
    let array = scene.array.clone();
    let failed = scene.run(async move { array.fail(0).await });
    assert!(matches!(failed, Err(CommandError::SlotNeeded(0))), "{failed:?}");
    scene.disks[0].fault(&Fault::Release);
    scene.world.run_until(STEPS, |_| written.get().is_some()).unwrap();
    assert_eq!(written.get(), Some(true));
    assert_eq!(detail(&scene).missing, 1);
    scene.read_all();

    // Nor is it given up before twice the time.
    let mut scene = raid5(12);
    let written = write_beside_a_silent_and_a_failing_one(&mut scene);
    scene.disks[0].plan(Trigger::AtTime(scene.world.now() + 40 * SECOND), Fault::Release);
    scene.world.run_until(STEPS, |_| written.get().is_some()).unwrap();
    assert_eq!(written.get(), Some(true));
    scene.read_all();
}

#[test]
fn a_device_that_is_busy_as_zeroes_are_written_keeps_its_place() {
    let mut scene = raid5(13);
    fill(&mut scene);
    for busy in [&[1][..], &[0, 1, 2]] {
        for &disk in busy {
            scene.disks[disk].fault(&Fault::RefuseRequests(1));
        }
        let volume = scene.volume();
        let length = STRIPE_SECTORS * 512;
        scene.run(async move { volume.write_zeroes(0, length, false).await }).unwrap();
        assert_eq!(detail(&scene).missing, 0);
    }
    assert_eq!(scene.check(), 0);
}

#[test]
fn shards_agree_that_a_member_is_given_up() {
    // The members of a shard that has nothing under way refuse too.
    let mut scene = raid5(10);
    fill(&mut scene);
    scene.disks[1].fault(&Fault::Hang);
    scene.write(0, STRIPE_SECTORS, false).unwrap();
    let shared = Arc::clone(scene.array.shared());
    let read = async move {
        let volume = pinstripe_engine::io::volume::Volume::new(shared);
        volume.read(0, shard::buffer(48 << 10)).await.0
    };
    let now = scene.world.now();
    scene.world.block_on(1, "read", STEPS, read).unwrap().unwrap();
    assert!(scene.world.now() - now < SECOND);
}

/// Where an array sector's data lies: the disk, and the bytes there.
fn place(scene: &Scene, sector: u64) -> (usize, std::ops::Range<u64>) {
    let geometry = scene.geometry();
    let piece = geometry.pieces(sector * 512, 512).unwrap().next().unwrap();
    let at = DATA_SECTOR * 512 + geometry.member_offset(piece.stripe) + u64::from(piece.chunk_offset);
    (geometry.slots(piece.stripe).data_slot(piece.column).index(), at..at + 512)
}

/// What the log on a disk lists, in absolute sectors; nothing if the superblock doesn't name it.
fn log_on(scene: &Scene, disk: usize) -> Vec<std::ops::Range<u64>> {
    let superblock = scene.superblock(disk);
    let log = superblock.member.bad_block_log.unwrap();
    if !log.in_use {
        return Vec::new();
    }
    let bytes = scene.disks[disk].peek(superblock.bad_block_log_sector().unwrap().0 * 512, 4096);
    BadBlocks::decode(&bytes, log.shift).unwrap().ranges().to_vec()
}

/// Power fails while the array is idle: what is reconstructed from parity is not what a crash has torn.
fn crash_idle(scene: &mut Scene) {
    scene.run(async { shard::sleep(2 * SECOND).await });
    assert_eq!(detail(scene).state, "clean");
    crash(scene);
}

fn crash(scene: &mut Scene) {
    scene.world.crash();
    scene.ledger.borrow_mut().crash();
    scene.reassemble();
}

#[test]
fn detail_tells_in_which_parts_bad_sectors_and_dirty_regions_are() {
    let mut scene = raid5(1);
    fill(&mut scene);
    wait_for(&mut scene, |detail| detail.bitmap.as_ref().unwrap().bits_set == 0);
    let sector = 40 * STRIPE_SECTORS;
    let (disk, bytes) = place(&scene, sector);
    scene.disks[disk].fault(&Fault::UnwritableRange(bytes.start..bytes.start + 8 * 512));
    scene.write(sector, 8, true).unwrap();
    let detail = detail(&scene);
    // A region has four stripes, and each is a part: there are fewer than 64.
    let parts: Vec<_> = (0..14).map(|region| usize::from(region == 10)).collect();
    assert_eq!(detail.bitmap.unwrap().bits_set_by_part, parts);
    assert_eq!(detail.regions_to_resync_by_part, [0; 14]);
    // The 1792 sectors of data are 64 parts of 28, and the stripe begins at sector 1280.
    let parts: Vec<_> = (0..64).map(|part| if part == 45 { 8 } else { 0 }).collect();
    for (slot, of) in detail.slots.iter().enumerate() {
        assert_eq!(of.bad_sectors_by_part, if slot == disk { &parts[..] } else { &[] }, "slot {slot}");
    }
}

#[test]
fn a_sector_that_a_member_refuses_is_listed_before_the_acknowledgement_and_freed_by_a_later_write() {
    for seed in 0..8 {
        let mut scene = raid5(seed);
        fill(&mut scene);
        let (disk, bytes) = place(&scene, 40);
        scene.disks[disk].fault(&Fault::UnwritableRange(bytes.clone()));
        scene.write(38, 8, true).unwrap();
        let listed = log_on(&scene, disk);
        assert!(listed.len() == 1 && listed[0].contains(&(bytes.start / 512)), "{listed:?}");
        assert_eq!((detail(&scene).missing, detail(&scene).slots[disk].bad_sectors), (0, 1));
        assert!(detail(&scene).advice.unwrap().contains("replace it soon"));
        scene.read_all();
        crash_idle(&mut scene);
        scene.read_all();
        assert_eq!(scene.check(), 0);

        scene.disks[disk].fault(&Fault::Heal);
        scene.write(38, 8, false).unwrap();
        wait_for(&mut scene, |detail| detail.slots[disk].bad_sectors == 0);
        assert!(log_on(&scene, disk).is_empty());
        crash(&mut scene);
        scene.read_all();
        assert_eq!(detail(&scene).missing, 0);
    }
}

/// An entry that is cut in two gets its second half elsewhere in the log first.
#[test]
fn what_stays_listed_is_durable_elsewhere_before_its_entry_is_shortened() {
    for seed in 0..8 {
        let mut scene = raid5(seed);
        fill(&mut scene);
        let (disk, bytes) = place(&scene, 40);
        scene.stop();
        let middle = bytes.start / 512;
        // A sector of the log has room for 64 entries.
        let others = (0..64).map(|other| middle + 100 + 2 * other);
        list_as_bad(&scene.disks[disk], (middle - 1..middle + 2).chain(others));
        scene.reassemble();
        let (log, on_disk) =
            (scene.superblock(disk).bad_block_log_sector().unwrap().0 * 512, scene.disks[disk].clone());
        let before = on_disk.peek(log, 1024);
        let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
        scene.world.spawn(0, "write", async move {
            write(&volume, &ledger, 40, 1, false).await.unwrap();
        });
        scene.world.run_until(STEPS, |_| on_disk.peek(log, 512) != before[..512]).unwrap();
        assert_ne!(on_disk.peek_durable(log + 512, 512), before[512..], "seed {seed}");
        wait_for(&mut scene, |detail| detail.slots[disk].bad_sectors == 66);
        scene.read_all();
    }
}

#[test]
fn a_sector_that_can_be_neither_read_nor_rewritten_is_listed() {
    let mut scene = raid5(21);
    fill(&mut scene);
    let (disk, bytes) = place(&scene, 100);
    scene.disks[disk].fault(&Fault::UnreadableRange(bytes.clone()));
    scene.disks[disk].fault(&Fault::UnwritableRange(bytes.clone()));
    scene.read_all();
    assert_eq!(detail(&scene).missing, 0);
    assert!(!log_on(&scene, disk).is_empty());
    let before = detail(&scene).slots[disk].statistics;
    assert_eq!(before.corrected_reads, 0, "it is listed, and not corrected");
    scene.read_all();
    assert_eq!(detail(&scene).slots[disk].statistics.read_errors, before.read_errors, "it is not read again");
}

/// More of them than may be corrected of a member.
#[test]
fn sectors_that_a_check_can_neither_read_nor_rewrite_are_listed_and_not_corrected() {
    let mut scene = raid5(21);
    fill(&mut scene);
    let rows = u64::from(scene.options.max_read_errors) + 4;
    for row in 0..rows {
        let at = DATA_SECTOR * 512 + row * 4096 + 512;
        scene.disks[1].fault(&Fault::UnreadableRange(at..at + 512));
        scene.disks[1].fault(&Fault::UnwritableRange(at..at + 512));
    }
    assert_eq!(scene.check(), 0);
    let detail = detail(&scene);
    assert_eq!((detail.missing, detail.slots[1].bad_sectors), (0, rows));
    assert_eq!(detail.slots[1].statistics.corrected_reads, 0);
    scene.read_all();
}

#[test]
fn a_log_that_is_full_or_can_not_be_written_costs_the_member_its_place() {
    let mut scene = raid5(22);
    fill(&mut scene);
    let (disk, bytes) = place(&scene, 40);
    let log = scene.superblock(disk).bad_block_log_sector().unwrap().0 * 512;
    scene.disks[disk].fault(&Fault::UnwritableRange(log..log + 4096));
    scene.disks[disk].fault(&Fault::UnwritableRange(bytes));
    scene.write(40, 1, true).unwrap();
    assert_eq!(detail(&scene).failed[0].slot, Some(disk));
    scene.read_all();

    let mut scene = raid5(23);
    fill(&mut scene);
    scene.disks[2].fault(&Fault::UnwritableRange(DATA_SECTOR * 512..scene.disks[2].info().size));
    // Every other sector, so that no two share an entry of the 512.
    for sector in (0..).step_by(2) {
        if place(&scene, sector).0 == 2 {
            scene.write(sector, 1, false).unwrap();
        }
        if detail(&scene).missing > 0 {
            break;
        }
    }
    assert_eq!(detail(&scene).failed[0].slot, Some(2));
    scene.read_all();
}

#[test]
fn a_write_that_leaves_a_row_unreadable_is_not_acknowledged_and_the_array_goes_on() {
    let mut scene = raid5(24);
    fill(&mut scene);
    let (disk, bytes) = place(&scene, 40);
    let other = (0..4).find(|other| *other != disk).unwrap();
    let array = scene.array.clone();
    scene.run(async move { array.fail(other).await }).unwrap();
    scene.disks[disk].fault(&Fault::UnwritableRange(bytes));
    let refused = scene.write(40, 1, false);
    assert!(matches!(refused, Err(IoError::Unreadable { .. })), "{refused:?}");
    scene.write(400, 8, false).unwrap();
    let volume = scene.volume();
    let read = scene.run(async move { volume.read(40 * 512, shard::buffer(512)).await.0 });
    assert!(matches!(read, Err(IoError::Unreadable { .. })), "an error, never a wrong byte: {read:?}");
    // The rows beside it are what they were, the lost member's chunks too.
    for sector in
        (0..4 * STRIPE_SECTORS).step_by(8).filter(|sector| *sector > STRIPE_SECTORS || sector % 32 != 8)
    {
        let volume = scene.volume();
        let read = scene.run(async move { volume.read(sector * 512, shard::buffer(4096)).await.0 });
        assert_eq!(read, Ok(()), "sector {sector}");
    }
}

#[test]
fn a_rebuild_lists_the_blocks_that_it_can_not_make_and_makes_all_others() {
    for seed in 30..34 {
        let mut scene = raid5(seed);
        fill(&mut scene);
        let array = scene.array.clone();
        scene.run(async move { array.fail(1).await }).unwrap();
        let (disk, bytes) = [100, 200, 300]
            .into_iter()
            .map(|sector| place(&scene, sector))
            .find(|(disk, _)| *disk != 1)
            .unwrap();
        scene.disks[disk].fault(&Fault::UnreadableRange(bytes.clone()));
        assert_eq!(add(&mut scene, 1).unwrap(), 1);
        wait_for(&mut scene, |detail| detail.missing == 0);
        let block = bytes.start / 512..bytes.end / 512;
        assert_eq!(log_on(&scene, 1), [block]);
        // The source is still there: a read fails only if it needs that sector.
        let volume = scene.volume();
        let sectors = volume.size() / 512;
        let errors = scene.run(async move {
            let mut errors = 0;
            for at in (0..sectors).step_by(8) {
                errors += u64::from(volume.read(at * 512, shard::buffer(4096)).await.0.is_err());
            }
            errors
        });
        assert!((1..=2).contains(&errors), "{errors}");
        assert!(detail(&scene).missing == 0 && !detail(&scene).slots[1].slow);
    }
}

#[test]
fn a_member_with_too_many_corrected_reads_is_dropped_and_what_was_long_ago_counts_less() {
    let correct = |scene: &mut Scene, count: u64, first: u64| {
        for number in first..first + count {
            let at = DATA_SECTOR * 512 + number * (16 << 10);
            scene.disks[1].fault(&Fault::UnreadableRange(at..at + 512));
        }
        scene.read_all();
        assert_eq!(scene.check(), 0);
    };
    let mut scene = raid5(40);
    fill(&mut scene);
    correct(&mut scene, 20, 0);
    assert_eq!(detail(&scene).missing, 0);
    assert_eq!(detail(&scene).slots[1].statistics.corrected_reads, 20);
    correct(&mut scene, 1, 30);
    wait_for(&mut scene, |detail| detail.missing == 1);
    let now = detail(&scene);
    assert_eq!(now.failed[0].error.error.kind, DeviceErrorKind::TooManyErrors);
    assert!(now.advice.unwrap().contains("too many read errors"));

    let mut scene = raid5(41);
    fill(&mut scene);
    correct(&mut scene, 20, 0);
    scene.run(async { shard::sleep(3600 * SECOND).await });
    correct(&mut scene, 10, 30);
    assert_eq!(detail(&scene).missing, 0, "20 have become 10");
    // Level 5 can't do without a second one.
    let array = scene.array.clone();
    scene.run(async move { array.fail(3).await }).unwrap();
    assert_eq!(detail(&scene).missing, 1);
}

#[test]
fn a_worn_out_member_stays_while_another_one_does_not_answer() {
    (0..4).for_each(arrays::failures::worn_out_beside_a_silent_one);
}

/// Nothing is reconstructed where a crash may have torn rows: a member that went would take what it holds
/// there with it, however long ago that was flushed.
#[test]
fn no_member_that_works_is_taken_out_while_a_crash_may_have_torn_rows() {
    let mut scene = raid5(30);
    fill(&mut scene);
    scene.write(40, 8, true).unwrap();
    crash(&mut scene);
    let (array, id) = (scene.array.clone(), scene.array.members()[1].0);
    assert!(array.detail().regions_to_resync > 0);
    let refused = scene.run(async move {
        let error = MemberError {
            role: 1.into(),
            name: "disk1".to_owned(),
            operation: Operation::Read,
            offset: 0,
            error: DeviceError::of(DeviceErrorKind::TooManyErrors),
        };
        array.shared().report(id, error);
        array.fail(1).await
    });
    assert!(matches!(refused, Err(CommandError::SlotNeeded(1))), "{refused:?}");
    assert_eq!(detail(&scene).missing, 0);
    scene.read_all();
    wait_for(&mut scene, |detail| detail.regions_to_resync == 0);
    let array = scene.array.clone();
    scene.run(async move { array.fail(1).await }).unwrap();
    scene.read_all();
}

#[test]
fn a_member_that_has_failed_is_not_spared_for_having_been_worn_out_before() {
    let mut scene = raid5(29);
    fill(&mut scene);
    let array = scene.array.clone();
    scene.run(async move { array.fail(3).await }).unwrap();
    let id = scene.array.members()[1].0;
    let error = |kind| MemberError {
        role: 1.into(),
        name: "disk1".to_owned(),
        operation: Operation::Write,
        offset: 0,
        error: DeviceError::of(kind),
    };
    // Errors of a member that is needed: one alone, then two before the controller has looked.
    let array = scene.array.clone();
    scene.run(async move { array.shared().report(id, error(DeviceErrorKind::TooManyErrors)) });
    scene.run(async { shard::sleep(SECOND).await });
    assert!(!scene.array.shared().has_failed());
    let array = scene.array.clone();
    scene.run(async move {
        array.shared().report(id, error(DeviceErrorKind::TooManyErrors));
        array.shared().report(id, error(DeviceErrorKind::Gone));
    });
    scene.run(async { shard::sleep(SECOND).await });
    assert!(scene.array.shared().has_failed());
}

/// All members are out of reach for the moment in which a bit is to be written to them, and back when what
/// the bit is for is written. Power fails, the array starts again, and resyncs what it knows of: does parity
/// match everywhere? Not if the write is acknowledged.
pub fn bits_on_no_member(seed: u64) -> bool {
    let mut scene = raid5(seed);
    scene.write(0, STRIPE_SECTORS, false).unwrap();
    for disk in &scene.disks {
        let taken = disk.counters();
        let next = taken.reads + taken.writes + taken.flushes;
        disk.plan(Trigger::AtRequest(next), Fault::Gone);
        disk.plan(Trigger::AtRequest(next + 1), Fault::Return);
    }
    let (shared, ledger) = (Arc::clone(scene.array.shared()), Rc::clone(&scene.ledger));
    let answer = Rc::new(Cell::new(None));
    let told = Rc::clone(&answer);
    scene.world.spawn(1, "write", async move {
        let written = write(&Volume::new(shared), &ledger, 20 * STRIPE_SECTORS, STRIPE_SECTORS, false).await;
        told.set(Some(written.is_ok()));
    });
    scene.world.run_until(STEPS, |_| answer.get().is_some()).unwrap();
    if answer.get() == Some(true) {
        return false;
    }
    scene.world.crash();
    scene.ledger.borrow_mut().crash();
    for disk in &scene.disks {
        disk.fault(&Fault::Calm);
        disk.fault(&Fault::Return);
    }
    scene.reassemble();
    wait_for(&mut scene, |detail| detail.regions_to_resync == 0);
    scene.read_all();
    scene.check() == 0
}

#[test]
fn nothing_is_written_for_which_no_member_has_the_bit() {
    assert!((0..12).all(bits_on_no_member));
}

#[test]
fn what_waits_for_a_bit_that_no_member_takes_ends_beside_a_change_of_the_membership() {
    for seed in 0..40 {
        let mut scene = raid5(seed);
        fill(&mut scene);
        let mut rng = scene.world.rng(1);
        for disk in &scene.disks {
            let bitmap = superblock_on(disk).bitmap_sector().unwrap().0 * 512;
            disk.fault(&Fault::UnwritableRange(bitmap..bitmap + 4096));
        }
        let (shared, ledger) = (Arc::clone(scene.array.shared()), Rc::clone(&scene.ledger));
        let (array, delays) = (scene.array.clone(), [rng.below(200_000), rng.below(200_000)]);
        let ended = Rc::new(Cell::new(0));
        let [write_ended, fail_ended] = [Rc::clone(&ended), Rc::clone(&ended)];
        scene.world.spawn(1, "write", async move {
            shard::sleep(delays[0]).await;
            let volume = Volume::new(shared);
            let written = write(&volume, &ledger, 20 * STRIPE_SECTORS, STRIPE_SECTORS, false).await;
            assert!(written.is_err(), "seed {seed}");
            write_ended.set(write_ended.get() + 1);
        });
        scene.world.spawn(0, "fail", async move {
            shard::sleep(delays[1]).await;
            let _ = array.fail(2).await;
            fail_ended.set(fail_ended.get() + 1);
        });
        scene.world.run_until(STEPS, |_| ended.get() == 2).unwrap();
    }
}
