//! Members that hang, are slow, busy or full of bad sectors: every operation ends, and nothing acknowledged is lost.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod arrays;

use std::sync::Arc;

use arrays::{
    STEPS, options,
    scene::{Scene, superblock_on, wish, write},
};
use pinstripe_engine::{
    array::{Array, CommandError},
    assembly::AssembleError,
    detail::Detail,
    error::IoError,
    options::ArrayOptions,
};
use pinstripe_md::{
    identity::Uuid,
    level::{Layout, Level, Raid0Layout},
    placement::{InitialSync, NewBitmap},
    superblock::Role,
};
use pinstripe_runtime::{DeviceErrorKind, shard};
use pinstripe_sim::{Fault, Trigger};

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
    scene.run(async move { array.add(source, Uuid([0x55; 16])).await })
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
        assert!(scene.world.now() - hung_at < took + SECOND, "nobody waits for it any more");
        scene.read_all();

        let now = detail(&scene);
        assert_eq!(now.failed[0].error.error.kind, DeviceErrorKind::TimedOut);
        assert!(now.failed[0].late_requests > 0 && now.failed[0].statistics.timed_out > 0);
        assert!(now.advice.unwrap().contains("still has"));
        let refused = add(&mut scene, 1).unwrap_err();
        assert!(matches!(refused, CommandError::RequestsUnderWay { .. }), "{refused}");

        // The late writes land on a member that nobody reads.
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
fn a_member_that_is_slow_is_told_of_and_kept() {
    let mut scene = raid5(1);
    fill(&mut scene);
    scene.disks[2].fault(&Fault::Hang);
    let release = scene.world.now() + 20 * SECOND;
    scene.disks[2].plan(Trigger::AtTime(release), Fault::Release);
    let (volume, ledger) = (scene.volume(), std::rc::Rc::clone(&scene.ledger));
    let done = std::rc::Rc::new(std::cell::Cell::new(false));
    let told = std::rc::Rc::clone(&done);
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
    scene.read_all();
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
    assert_eq!(detail(&scene).failed[0].slot, 0, "C5");
    // Busy for longer than it is borne with.
    let mut scene = raid5(6);
    fill(&mut scene);
    scene.disks[1].fault(&Fault::RefuseRequests(1000));
    scene.write(0, STRIPE_SECTORS, false).unwrap();
    assert_eq!(detail(&scene).failed[0].error.error.kind, DeviceErrorKind::Busy);
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

#[test]
fn level_0_answers_with_an_error_and_asks_nothing_more_until_late_writes_are_over() {
    let mut wish = wish(Level::Raid5, 3, 16 << 10, NewBitmap::None, InitialSync::AssumeClean);
    (wish.level, wish.layout) = (Level::Raid0, Layout::Raid0(Raid0Layout::Unspecified));
    let mut scene = Scene::new(9, wish, 1);
    scene.write(0, 96, false).unwrap();
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
fn shards_agree_that_a_member_is_given_up() {
    // The members of a shard that has nothing under way refuse too.
    let mut scene = raid5(10);
    fill(&mut scene);
    scene.disks[1].fault(&Fault::Hang);
    scene.write(0, STRIPE_SECTORS, false).unwrap();
    let shared = Arc::clone(scene.array.shared());
    let read = async move {
        let volume = pinstripe_engine::volume::Volume::new(shared);
        volume.read(0, shard::buffer(48 << 10)).await.0
    };
    let now = scene.world.now();
    scene.world.block_on(1, "read", STEPS, read).unwrap().unwrap();
    assert!(scene.world.now() - now < SECOND);
}
