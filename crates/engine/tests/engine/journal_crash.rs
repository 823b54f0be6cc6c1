//! Our own journal in the simulated world: crashes at any step, members lost with them, a journal that runs
//! full or fails.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use crate::arrays::{
    STEPS, assemble, options,
    scene::{Scene, clients, drawn_disks, lay_out, list_as_bad, spawn, superblock_on, wish, write},
};
use crate::membership::Life;
use pinstripe_engine::{
    array::{Array, CommandError},
    assembly::{AssembleError, JournalProblem, create::CreateError},
    error::IoError,
    geometry::{MemberSlot, StripeId},
    maintenance::{ScrubAction, ScrubRequest},
    options::{ArrayOptions, JournalMode},
    plan::WritePolicy,
    status::detail::Detail,
};
use pinstripe_md::{
    identity::Uuid,
    level::Level,
    placement::{InitialSync, NewArray, NewBitmap, NewDevice, NewLog, journal::add_journal},
    superblock::{ResyncOffset, Role},
    units::{Sector, SectorCount},
};
use pinstripe_runtime::{DeviceErrorKind, DeviceSource, shard};
use pinstripe_sim::{Fault, Rng, SimDisk, Trigger, World, WorldConfig};

const CHUNK: u64 = 16 << 10;

/// An array with a journal on the last disk.
fn scene(
    seed: u64,
    level: Level,
    members: u8,
    initial: InitialSync,
    journal_sectors: u64,
    shards: usize,
) -> Scene {
    let options = ArrayOptions { gather_ns: 0, ..options() };
    try_scene(seed, level, members, initial, journal_sectors, shards, options).unwrap()
}

fn try_scene(
    seed: u64,
    level: Level,
    members: u8,
    initial: InitialSync,
    journal_sectors: u64,
    shards: usize,
    options: ArrayOptions,
) -> Result<Scene, CreateError> {
    let mut world = World::new(WorldConfig::new(seed, shards));
    let wish = wish(level, members, CHUNK, NewBitmap::None, initial);
    let sizes = wish.members.iter().map(|member| member.sectors).chain([journal_sectors]);
    let disks = drawn_disks(&mut world, sizes);
    let mut placed = wish.place().unwrap();
    add_journal(&mut placed, NewDevice { sectors: journal_sectors, uuid: Uuid([0x4a; 16]) }, 512).unwrap();
    lay_out(&mut world, placed, &disks)?;
    let devices = disks.len();
    Ok(Scene::over(world, disks, devices, options))
}

/// The machine loses power and comes back with `disks`.
fn crash(scene: &mut Scene, disks: &[usize]) -> Result<(), AssembleError> {
    power_loss(scene);
    let sources: Vec<Arc<dyn DeviceSource>> = disks.iter().map(|&i| scene.disks[i].source()).collect();
    scene.array = assemble(&mut scene.world, sources, scene.options.clone())?;
    Ok(())
}

fn power_loss(scene: &mut Scene) {
    scene.world.crash();
    scene.ledger.borrow_mut().crash();
}

/// Some of the members, as many missing as the level bears at most, and the journal.
fn survivors(rng: &mut Rng, members: usize, redundancy: u64) -> Vec<usize> {
    let mut disks: Vec<usize> = (0..members).collect();
    rng.shuffle(&mut disks);
    disks.truncate(members - usize::try_from(rng.below(redundancy + 1)).unwrap());
    disks.push(members);
    disks
}

/// Random writes that never end.
fn writers(scene: &mut Scene, count: u64) {
    spawn(scene, count, move |_, volume, ledger, mut rng| async move {
        let sectors = volume.size() / 512;
        loop {
            // Most of them where others write too.
            let reach = if rng.chance(3, 4) { 96 } else { sectors };
            let longest = rng.pick(&[1, 8, 40, 128]).min(reach - 1);
            let length = 1 + rng.below(longest);
            let at = rng.below(reach - length);
            if rng.below(12) == 0 {
                let id = ledger.borrow_mut().begin_flush();
                let result = volume.flush().await;
                ledger.borrow_mut().complete_flush(id, result.is_ok());
            } else if write(&volume, &ledger, at, length, rng.below(6) == 0).await.is_err() {
                return;
            }
        }
    });
}

/// A crash at any step, within recovery too, and members lost with it: what was acknowledged and durable is
/// there, and what was not being written has not changed.
#[test]
fn no_crash_loses_a_byte_even_if_members_are_lost_with_it() {
    (0..100).for_each(|seed| crashes(seed, JournalMode::WriteThrough));
}

/// The same where a write is acknowledged from the journal.
#[test]
fn no_crash_loses_a_byte_of_a_journal_that_writes_back() {
    (0..150).for_each(|seed| crashes(seed, JournalMode::WriteBack));
}

fn crashes(seed: u64, journal_mode: JournalMode) {
    let (level, members) = [(Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid4, 3), (Level::Raid5, 3)]
        [usize::try_from(seed % 4).unwrap()];
    let redundancy = if level == Level::Raid6 { 2 } else { 1 };
    // With the smaller one there is always a write that waits for room; the larger has some for the cache.
    let blocks = if journal_mode == JournalMode::WriteBack && !seed.is_multiple_of(3) { 400 } else { 90 };
    // Few slots: stripes get in each other's way.
    let stripe_slots = if seed.is_multiple_of(5) { 2 } else { 1 << 10 };
    let options = ArrayOptions { gather_ns: 0, journal_mode, stripe_slots, ..options() };
    let shards = 1 + usize::try_from(seed % 2).unwrap();
    let mut scene =
        try_scene(seed, level, members, InitialSync::AssumeClean, 256 + 8 * blocks, shards, options).unwrap();
    let mut rng = scene.world.rng(5);
    let members = usize::from(members);
    for _ in 0..=rng.below(2) {
        writers(&mut scene, 4);
        let steps = 1 << rng.below(13);
        let _ = scene.world.run_until(steps + rng.below(steps), |_| false);
        while rng.chance(1, 2) {
            // In the middle of the recovery, or just after it.
            power_loss(&mut scene);
            let sources: Vec<Arc<dyn DeviceSource>> = scene.disks.iter().map(SimDisk::source).collect();
            let shards = (0..scene.world.shards()).map(|i| scene.world.shard(i).handle()).collect();
            let options = scene.options.clone();
            scene.world.spawn(0, "assemble", async move {
                let _ = pinstripe_engine::array::Array::assemble(sources, options, shards).await;
            });
            let _ = scene.world.run_until(1 << rng.below(9), |_| false);
        }
        let all: Vec<usize> = (0..=members).collect();
        crash(&mut scene, &all).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        scene.read_all();
        assert_eq!(scene.check(), 0, "seed {seed}");
    }
    writers(&mut scene, 4);
    let _ = scene.world.run_until(1 << rng.below(13), |_| false);
    let left = survivors(&mut rng, members, redundancy);
    crash(&mut scene, &left).unwrap_or_else(|e| panic!("seed {seed} with {left:?}: {e}"));
    scene.read_all();
    clients(&mut scene, 3, 20, 40);
    scene.read_all();
    if left.len() == members + 1 {
        assert_eq!(scene.check(), 0, "seed {seed}");
    }
    scene.stop();
}

/// Many times what the ring holds goes through it, by more writers than it has room for.
#[test]
fn a_journal_that_runs_full_makes_writers_wait_and_goes_on() {
    for seed in 0..6 {
        let mut scene = scene(seed, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 640, 2);
        let done = spawn(&mut scene, 24, |number, volume, ledger, _| async move {
            for round in 0..30 {
                let at = (number * 31 + round * 96) % 1300;
                write(&volume, &ledger, at, 96, false).await.unwrap();
            }
        });
        scene.world.run_until(STEPS, |_| *done.borrow() == 24).unwrap();
        let journal = scene.array.detail().journal.unwrap();
        assert!(!journal.failed && journal.used_bytes < journal.size_bytes);
        // 96 sectors are a stripe: with parity and meta blocks some 17 blocks.
        assert!(scene.disks[4].counters().bytes_written > 5 * journal.size_bytes);
        scene.is_right_and_stays_so();
    }
}

/// A batch of several meta blocks is logged, the first of which are durable long before the last, and just
/// then the log's beginning is given up. Power fails while the batch is on its way to the members.
#[test]
fn the_log_is_kept_from_the_first_meta_block_of_a_batch_that_is_being_logged() {
    const CHUNK: u64 = 512 << 10;
    const STRIPE: u64 = 3 * CHUNK / 512;
    for seed in 0..48 {
        let mut world = World::new(WorldConfig::new(seed, 1));
        let mut wish = wish(Level::Raid5, 4, CHUNK, NewBitmap::None, InitialSync::AssumeClean);
        wish.members.iter_mut().for_each(|member| member.sectors = 256 + 3 * CHUNK / 512);
        // A stripe and its parity are 512 pages.
        let journal_sectors = 256 + 8 * 1200;
        let sizes = wish.members.iter().map(|member| member.sectors).chain([journal_sectors]);
        let disks = drawn_disks(&mut world, sizes);
        let mut placed = wish.place().unwrap();
        add_journal(&mut placed, NewDevice { sectors: journal_sectors, uuid: Uuid([0x4a; 16]) }, 512)
            .unwrap();
        lay_out(&mut world, placed, &disks).unwrap();
        let options = ArrayOptions { gather_ns: 0, ..options() };
        let mut scene = Scene::over(world, disks, 5, options);
        spawn(&mut scene, 3, |number, volume, ledger, _| async move {
            while write(&volume, &ledger, number * STRIPE, STRIPE, false).await.is_ok() {}
        });
        let mut rng = scene.world.rng(5);
        for _ in 0..=rng.below(3) {
            let tail = || superblock_on(&scene.disks[4]).member.journal_tail;
            let before = tail();
            scene.world.run_until(STEPS, |_| tail() != before).unwrap();
        }
        let _ = scene.world.run_until(rng.below(200), |_| false);
        crash(&mut scene, &[0, 1, 2, 3, 4]).unwrap();
        scene.read_all();
        assert_eq!(scene.check(), 0, "seed {seed}");
    }
}

#[test]
fn the_journal_is_reclaimed_when_half_of_it_is_used_and_not_when_a_writer_waits() {
    let mut scene = scene(2, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 8 * 100, 1);
    for round in 0..20 {
        scene.write(round * 96, 96, false).unwrap();
        scene.run(async { shard::sleep(100_000_000).await });
        let journal = scene.array.detail().journal.unwrap();
        assert!(journal.used_bytes <= journal.size_bytes / 2, "round {round}: {}", journal.used_bytes);
    }
}

/// Room can only be had by flushing, and the member that can't flush can only be dropped when no writer waits
/// for room.
#[test]
fn a_member_that_fails_its_flush_while_writers_wait_for_room_is_dropped() {
    for seed in 0..12 {
        let mut scene = scene(seed, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 640, 2);
        scene.disks[1].fault(&Fault::FailFlushes(1));
        let done = spawn(&mut scene, 24, |number, volume, ledger, _| async move {
            for round in 0..20 {
                let at = (number * 31 + round * 96) % 1300;
                write(&volume, &ledger, at, 96, false).await.unwrap();
            }
        });
        scene.world.run_until(STEPS, |_| *done.borrow() == 24).unwrap();
        assert_eq!(scene.array.detail().missing, 1);
        scene.read_all();
        // What it has missed is recorded: after a crash it is not taken back.
        let disks: Vec<usize> = (0..5).collect();
        crash(&mut scene, &disks).unwrap();
        assert_eq!(scene.array.detail().missing, 1);
        scene.read_all();
    }
}

/// A parity member is missing when rows are written, and a data member is lost with the crash (level 6).
#[test]
fn rows_written_without_a_parity_member_survive_the_loss_of_a_data_member() {
    for seed in 0..60 {
        let mut scene = scene(seed, Level::Raid6, 5, InitialSync::AssumeClean, 256 + 720, 1);
        let mut rng = scene.world.rng(6);
        let first = usize::try_from(rng.below(5)).unwrap();
        let array = scene.array.clone();
        let failed = scene.run(async move { array.fail(first).await.is_ok() });
        assert!(failed);
        writers(&mut scene, 4);
        let _ = scene.world.run_until(1 << rng.below(12), |_| false);
        let second = (first + 1 + usize::try_from(rng.below(4)).unwrap()) % 5;
        let left: Vec<usize> = (0..6).filter(|&disk| disk != second && disk != first).collect();
        crash(&mut scene, &left).unwrap();
        scene.read_all();
    }
}

/// C18: the array is read-only, dirty on the members, and no write waits for ever; without the journal it is
/// refused, and forced it is resynced.
#[test]
fn a_lost_journal_device_leaves_a_dirty_read_only_array() {
    for seed in 0..12 {
        let mut scene = scene(seed, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 720, 2);
        clients(&mut scene, 4, 10, 60);
        let disk = scene.disks[4].clone();
        let refused = Rc::new(RefCell::new(0));
        let count = Rc::clone(&refused);
        let done = spawn(&mut scene, 6, move |_, volume, ledger, mut rng| {
            let count = Rc::clone(&count);
            async move {
                loop {
                    match write(&volume, &ledger, rng.below(1000), 1 + rng.below(60), false).await {
                        Ok(()) => {}
                        Err(IoError::JournalLost) => break *count.borrow_mut() += 1,
                        Err(other) => panic!("{other}"),
                    }
                }
            }
        });
        let _ = scene.world.run_until(200 + seed * 40, |_| false);
        disk.fault(&Fault::Gone);
        scene.world.run_until(STEPS, |_| *done.borrow() == 6).unwrap();
        assert_eq!(*refused.borrow(), 6);
        assert_eq!(scene.array.detail().state, "read-only");
        scene.read_all();
        if seed % 2 == 0 {
            scene.stop();
        }
        for member in 0..4 {
            let superblock = superblock_on(&scene.disks[member]);
            assert!(superblock.array.journal && superblock.array.resync_offset != ResyncOffset::Clean);
            assert!(!superblock.array.roles.contains(&Role::Journal));
        }
        disk.fault(&Fault::Return);
        let without = [0, 1, 2, 3];
        for disks in [&without[..], &[0, 1, 2, 3, 4]] {
            let error = crash(&mut scene, disks).unwrap_err();
            assert!(matches!(error, AssembleError::JournalMissing), "{error}");
        }
        scene.options.force = true;
        crash(&mut scene, &without).unwrap();
        assert!(scene.array.is_journal_left_out() && scene.array.detail().journal.is_none());
        scene.read_all();
        clients(&mut scene, 4, 10, 60);
        let array = scene.array.clone();
        scene.world.run_until(STEPS, |_| array.detail().regions_to_resync == 0).unwrap();
        drop(array);
        assert_eq!(scene.check(), 0);
        scene.stop();
        assert!(!superblock_on(&scene.disks[0]).array.journal);
        scene.options.force = false;
        let sources = scene.disks[..4].iter().map(SimDisk::source).collect();
        scene.array = assemble(&mut scene.world, sources, scene.options.clone()).unwrap();
        assert!(!scene.array.is_journal_left_out());
    }
}

#[test]
fn forced_a_damaged_journal_is_left_out() {
    let mut scene = scene(3, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 720, 1);
    clients(&mut scene, 4, 10, 60);
    scene.stop();
    let superblock = superblock_on(&scene.disks[4]);
    let tail = superblock.member.data_offset.0 + superblock.member.journal_tail.unwrap().0;
    scene.disks[4].poke(tail * 512, &[0; 4096]);
    let all: Vec<usize> = (0..5).collect();
    let error = crash(&mut scene, &all).unwrap_err();
    assert!(matches!(error, AssembleError::Journal { problem: JournalProblem::Damaged(_), .. }), "{error}");
    scene.options.force = true;
    crash(&mut scene, &all).unwrap();
    assert!(scene.array.is_journal_left_out());
    scene.read_all();
}

/// A block that may have been acknowledged can't be read: a person decides.
#[test]
fn a_journal_with_a_block_that_can_not_be_read_is_left_out_only_when_that_is_forced() {
    let mut scene = scene(5, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 720, 1);
    scene.write(0, 8, true).unwrap();
    let ring = superblock_on(&scene.disks[4]).member;
    let start = ring.data_offset.0 * 512;
    // All but the superblock: what is unreadable is behind the tail, too.
    scene.disks[4].fault(&Fault::UnreadableRange(start..start + ring.data_size.0 * 512));
    let all: Vec<usize> = (0..5).collect();
    let error = crash(&mut scene, &all).unwrap_err();
    let AssembleError::Journal { problem: JournalProblem::Read(read), .. } = &error else {
        panic!("{error}")
    };
    assert_eq!(read.kind, DeviceErrorKind::Media);
    assert!(error.to_string().contains("With --force"), "{error}");
    scene.options.force = true;
    crash(&mut scene, &all).unwrap();
    assert!(scene.array.is_journal_left_out());
}

#[test]
fn a_journal_smaller_than_a_stripe_is_refused() {
    let refused =
        try_scene(1, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 256, 1, options()).err().unwrap();
    assert!(matches!(refused, CreateError::JournalTooSmall { .. }), "{refused}");
}

/// As another program may leave it, which changed what the superblock says.
#[test]
fn a_journal_that_is_smaller_than_a_stripe_by_now_is_refused_at_the_start() {
    for (blocks, is_enough) in [(37, false), (38, true)] {
        let mut scene = scene(1, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 720, 1);
        scene.stop();
        let mut superblock = superblock_on(&scene.disks[4]);
        superblock.member.data_size = SectorCount(8 * blocks);
        scene.disks[4].poke(4096, &superblock.encode(512).unwrap());
        let started = crash(&mut scene, &[0, 1, 2, 3, 4]);
        let is_refused = |error: &AssembleError| {
            matches!(
                error,
                AssembleError::Journal { problem: JournalProblem::TooSmall { needed: 38, blocks: 37 }, .. }
            )
        };
        assert_eq!(started.is_ok(), is_enough);
        assert!(started.err().as_ref().is_none_or(is_refused));
    }
}

/// With a journal the superblocks stay clean under writes, and a crash needs no resync; before the first
/// resync is over they say where parity isn't known to match.
#[test]
fn an_array_with_a_journal_is_clean_as_soon_as_it_is_in_sync() {
    let mut scene = scene(4, Level::Raid5, 4, InitialSync::Resync, 256 + 720, 1);
    scene.write(0, 8, true).unwrap();
    assert_ne!(superblock_on(&scene.disks[0]).array.resync_offset, ResyncOffset::Clean);
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().regions_to_resync == 0).unwrap();
    drop(array);
    scene.stop();
    scene.reassemble();
    scene.write(8, 8, true).unwrap();
    assert_eq!(superblock_on(&scene.disks[0]).array.resync_offset, ResyncOffset::Clean);
    let all: Vec<usize> = (0..5).collect();
    crash(&mut scene, &all).unwrap();
    assert_eq!(scene.array.detail().regions_to_resync, 0);
    scene.read_all();
    assert_eq!(scene.check(), 0);
}

/// Zeroes and discards go through the log, or not at all: what was zeroed past it would come back with a
/// replay.
#[test]
fn zeroes_survive_a_crash() {
    for seed in 0..20 {
        let mut scene = scene(seed, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 720, 1);
        scene.write(0, 400, false).unwrap();
        let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
        scene.run(async move {
            let id = ledger.borrow_mut().begin_zeroes(0..192, false);
            let result = volume.write_zeroes(0, 192 * 512, false).await;
            ledger.borrow_mut().complete_write(id, result.is_ok());
            volume.discard(192 * 512, 96 * 512).await.unwrap();
        });
        scene.flush().unwrap();
        let all: Vec<usize> = (0..5).collect();
        crash(&mut scene, &all).unwrap();
        scene.read_all();
        assert_eq!(scene.check(), 0);
    }
}

const SECOND: u64 = 1_000_000_000;

/// Writers that go on until the journal is lost or the array is stopped. Returns how many have heard of it.
fn writers_until_lost(scene: &mut Scene, count: u64) -> Rc<RefCell<u64>> {
    let refused = Rc::new(RefCell::new(0));
    let told = Rc::clone(&refused);
    spawn(scene, count, move |_, volume, ledger, mut rng| {
        let told = Rc::clone(&told);
        async move {
            loop {
                match write(&volume, &ledger, rng.below(1000), 1 + rng.below(60), false).await {
                    Ok(()) => {}
                    Err(IoError::JournalLost | IoError::Stopping) => break *told.borrow_mut() += 1,
                    Err(other) => panic!("{other}"),
                }
            }
        }
    });
    refused
}

/// The superblocks of the members say that the journal is gone, and that parity can't be trusted.
fn says_lost(disks: &[SimDisk]) -> bool {
    disks.iter().take(4).all(|disk| {
        let array = superblock_on(disk).array;
        array.journal && array.resync_offset != ResyncOffset::Clean && !array.roles.contains(&Role::Journal)
    })
}

/// C18, by a device that doesn't answer: within the time that a member has, too, every operation has ended.
#[test]
fn a_journal_device_that_hangs_is_given_up_and_the_array_is_read_only() {
    for seed in 0..12 {
        let mut scene = scene(seed, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 720, 2);
        clients(&mut scene, 4, 10, 60);
        let refused = writers_until_lost(&mut scene, 6);
        let _ = scene.world.run_until(200 + seed * 40, |_| false);
        scene.disks[4].fault(&Fault::Hang);
        let hung_at = scene.world.now();
        let (array, journal) = (scene.array.clone(), |detail: &Detail| detail.journal.clone().unwrap());
        scene.world.run_until(STEPS, |_| journal(&array.detail()).slow).unwrap();
        scene.world.run_until(STEPS, |_| *refused.borrow() == 6).unwrap();
        let took = scene.world.now() - hung_at;
        // The oldest request was under way already.
        assert!((29 * SECOND..50 * SECOND).contains(&took), "it took {took} ns");
        let disks = scene.disks.clone();
        scene.world.run_until(STEPS, |_| says_lost(&disks)).unwrap();
        let detail = array.detail();
        assert!(journal(&detail).failed && detail.state == "read-only");
        assert!(detail.advice.unwrap().contains("--force"));
        assert!(array.last_errors().last().unwrap().to_string().starts_with("the journal (disk4) failed"));
        drop(array);
        scene.read_all();
        scene.flush().unwrap();
        assert_eq!(scene.write(0, 8, false), Err(IoError::JournalLost));
        scene.stop();
        // What was late lands on a device that the members no longer call the journal.
        scene.disks[4].fault(&Fault::Release);
        let all: Vec<usize> = (0..5).collect();
        let error = crash(&mut scene, &all).unwrap_err();
        assert!(matches!(error, AssembleError::JournalMissing), "{error}");
        scene.options.force = true;
        crash(&mut scene, &[0, 1, 2, 3]).unwrap();
        scene.read_all();
    }
}

#[test]
fn a_stop_ends_although_the_journal_hangs_and_may_take_for_ever() {
    for seed in 0..6 {
        let patient = ArrayOptions { gather_ns: 0, member_timeout_ns: 0, ..options() };
        let mut scene =
            try_scene(seed, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 720, 1, patient).unwrap();
        clients(&mut scene, 4, 10, 60);
        if seed % 2 == 0 {
            // Some writes wait for the journal when it is given up.
            writers_until_lost(&mut scene, 2);
            let _ = scene.world.run_until(100, |_| false);
        }
        scene.disks[4].fault(&Fault::Hang);
        let hung_at = scene.world.now();
        scene.stop();
        assert!(scene.world.now() - hung_at < 100 * SECOND);
        assert!(says_lost(&scene.disks), "seed {seed}");
    }
}

#[test]
fn a_stop_ends_although_a_member_hangs_that_the_journal_is_to_be_drained_to() {
    for seed in 0..4 {
        let patient = ArrayOptions {
            gather_ns: 0,
            member_timeout_ns: 0,
            journal_mode: JournalMode::WriteBack,
            ..options()
        };
        let mut scene =
            try_scene(seed, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 8 * 400, 1, patient).unwrap();
        clients(&mut scene, 4, 10, 60);
        scene.disks[1].fault(&Fault::Hang);
        let hung_at = scene.world.now();
        let array = scene.array.clone();
        let _ = scene.run(async move { array.stop().await });
        assert!(scene.world.now() - hung_at < 100 * SECOND, "seed {seed}");
        scene.disks[1].fault(&Fault::Release);
        crash(&mut scene, &[0, 1, 2, 3, 4]).unwrap();
        scene.read_all();
    }
}

/// The array fails as the superblocks are to say that the journal is lost. They never will.
#[test]
fn a_stop_ends_although_the_array_has_failed_with_its_journal() {
    for seed in 0..6 {
        let mut scene = scene(seed, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 720, 2);
        clients(&mut scene, 4, 10, 60);
        scene.fail(1);
        scene.disks[4].fault(&Fault::Gone);
        scene.disks[2].fault(&Fault::FailFlushes(1));
        assert!(scene.write(0, 96, false).is_err());
        let array = scene.array.clone();
        scene.world.run_until(STEPS, |_| array.detail().state == "failed").unwrap();
        scene.disks[4].fault(&Fault::Return);
        assert!(scene.run(async move { array.stop().await }).is_err());
    }
}

/// The same where all are silent; then they are there again. What they were asked for is answered at once
/// since, and the home shard must not ask for ever.
#[test]
fn reads_are_answered_after_an_array_has_failed_with_its_journal() {
    for seed in 0..6 {
        let mut scene = scene(seed, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 720, 1);
        clients(&mut scene, 4, 10, 60);
        scene.disks.iter().for_each(|disk| disk.fault(&Fault::Hang));
        assert!(scene.write(0, 96, false).is_err());
        let array = scene.array.clone();
        scene.world.run_until(STEPS, |_| array.detail().state == "failed").unwrap();
        scene.disks.iter().for_each(|disk| disk.fault(&Fault::Release));
        scene.run(async { shard::sleep(SECOND).await });
        let volume = scene.volume();
        let _ = scene.run(async move { volume.read(0, shard::buffer(4096)).await.0 });
        assert!(scene.run(async move { array.stop().await }).is_err());
    }
}

/// Whether assembly ends with an error if disk `which` hangs, or is gone, after so many of its steps.
fn assembly_fails(scene: &mut Scene, which: usize, fault: &Fault, steps: u64) -> Option<AssembleError> {
    assembly_meets(scene, which, fault, steps, || false)
}

/// The same, or as soon as it is time.
fn assembly_meets(
    scene: &mut Scene,
    which: usize,
    fault: &Fault,
    steps: u64,
    mut is_time: impl FnMut() -> bool,
) -> Option<AssembleError> {
    let sources: Vec<Arc<dyn DeviceSource>> = scene.disks.iter().map(SimDisk::source).collect();
    let shards = (0..scene.world.shards()).map(|i| scene.world.shard(i).handle()).collect();
    let (options, answer) = (scene.options.clone(), Rc::new(RefCell::new(None)));
    let told = Rc::clone(&answer);
    scene.world.spawn(0, "assemble", async move {
        let array = pinstripe_engine::array::Array::assemble(sources, options, shards).await;
        *told.borrow_mut() = Some(array.err());
    });
    let _ = scene.world.run_until(steps, |_| is_time() || answer.borrow().is_some());
    scene.disks[which].fault(fault);
    scene.world.run_until(STEPS, |_| answer.borrow().is_some()).unwrap();
    answer.take().unwrap()
}

/// The journal, or a member, hangs or goes while the journal is replayed: that is an error which names it,
/// and the next replay brings everything.
#[test]
fn a_replay_in_which_a_device_hangs_or_fails_ends_with_an_error_and_can_be_repeated() {
    let mut named = 0;
    for seed in 0..40 {
        let mut scene = scene(seed, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 720, 1);
        writers(&mut scene, 4);
        let _ = scene.world.run_until(2000, |_| false);
        power_loss(&mut scene);
        let mut rng = scene.world.rng(9);
        let which = if rng.chance(2, 3) { 4 } else { usize::try_from(rng.below(4)).unwrap() };
        let hangs = rng.chance(1, 2);
        let (fault, end) = if hangs { (Fault::Hang, Fault::Release) } else { (Fault::Gone, Fault::Return) };
        let steps = 10 + rng.below(150);
        if let Some(error) = assembly_fails(&mut scene, which, &fault, steps) {
            assert!(error.to_string().contains(&format!("disk{which}")), "{error}");
            named += 1;
            // A start without the journal may follow, and write: nothing of this one may land after that
            // (C16).
            let report = format!("{:?}", scene.world.run_until(1, |_| false));
            for other in (0..4).filter(|other| *other != which) {
                let quiet = format!("disk {other} (disk{other}): 0 requests pending");
                assert!(report.contains(&quiet), "seed {seed}: {report}");
            }
        }
        scene.disks[which].fault(&end);
        let all: Vec<usize> = (0..5).collect();
        crash(&mut scene, &all).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        scene.read_all();
        if scene.array.detail().missing == 0 {
            assert_eq!(scene.check(), 0, "seed {seed}");
        }
    }
    assert!(named > 10, "{named} of the replays were cut short");
}

/// A start from an array's crash in which the journal is gone from one of its requests on. `None` if it never
/// comes to that request.
fn starts_while_the_journal_goes(request: u64, force: bool) -> Option<Result<bool, AssembleError>> {
    let requests = |disk: &SimDisk| {
        let counters = disk.counters();
        counters.reads + counters.writes + counters.flushes
    };
    let mut scene = scene(7, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 720, 1);
    for sector in [0, 96, 200] {
        scene.write(sector, 8, true).unwrap();
    }
    power_loss(&mut scene);
    scene.options.force = force;
    let disk = scene.disks[4].clone();
    let last = requests(&disk) + request;
    disk.plan(Trigger::AtRequest(last), Fault::Gone);
    let sources: Vec<Arc<dyn DeviceSource>> = scene.disks.iter().map(SimDisk::source).collect();
    let started = assemble(&mut scene.world, sources, scene.options.clone());
    let is_through = started.is_ok() && requests(&disk) <= last;
    let outcome = started.map(|array| array.is_journal_left_out());
    if outcome.is_err() {
        disk.fault(&Fault::Return);
        scene.options.force = false;
        crash(&mut scene, &[0, 1, 2, 3, 4]).unwrap();
        scene.read_all();
    }
    (!is_through).then_some(outcome)
}

/// What was forced may be another thing, and the next start may replay all of it.
#[test]
fn a_forced_start_gives_up_no_journal_that_is_gone_in_its_replay() {
    let is_of_replay = |error: &AssembleError| {
        matches!(error, AssembleError::Journal { problem: JournalProblem::Read(_), .. })
    };
    let mut met = 0;
    for request in 0.. {
        match starts_while_the_journal_goes(request, false) {
            None => break,
            Some(Err(error)) if is_of_replay(&error) => met += 1,
            Some(_) => continue,
        }
        let forced = starts_while_the_journal_goes(request, true).unwrap();
        assert!(forced.as_ref().is_err_and(is_of_replay), "request {request}: {forced:?}");
    }
    assert!(met > 3, "{met}");
}

/// A device hangs in the start of an array with logs on its members. They are replayed before any device is
/// a member.
#[test]
fn a_member_that_hangs_in_the_replay_of_its_log_is_an_error_and_the_replay_can_be_repeated() {
    let mut named = 0;
    for seed in 0..24 {
        let (level, members, log) = if seed % 2 == 0 {
            (Level::Raid5, 4, NewLog::Ppl)
        } else {
            (Level::Raid6, 5, NewLog::DoubleParity)
        };
        let mut scene = logged_scene(seed, level, members, log);
        writers(&mut scene, 4);
        let _ = scene.world.run_until(3000, |_| false);
        power_loss(&mut scene);
        let mut rng = scene.world.rng(9);
        let which = usize::try_from(rng.below(members.into())).unwrap();
        let steps = 4 * u64::from(members) + rng.below(60);
        let error = assembly_fails(&mut scene, which, &Fault::Hang, steps);
        if let Some(AssembleError::Device { name, error }) = error {
            assert_eq!((name, error.kind), (format!("disk{which}"), DeviceErrorKind::TimedOut));
            named += 1;
        }
        scene.disks[which].fault(&Fault::Release);
        let all: Vec<usize> = (0..members.into()).collect();
        crash(&mut scene, &all).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        scene.read_all();
    }
    assert!(named > 6, "{named} of the replays were cut short");
}

/// C4: what a replay has brought to the members is flushed on each of them, before superblocks say that it is
/// there.
#[test]
fn a_replay_that_can_not_be_flushed_is_an_error_whichever_member_it_is() {
    for (level, members, log) in [(Level::Raid5, 4, NewLog::Ppl), (Level::Raid6, 5, NewLog::DoubleParity)] {
        for which in 0..usize::from(members) {
            let mut scene = logged_scene(7, level, members, log);
            writers(&mut scene, 4);
            let _ = scene.world.run_until(3000, |_| false);
            power_loss(&mut scene);
            let disk = scene.disks[which].clone();
            let (before, mut reads) = (disk.counters().flushes, None);
            // Assembly flushes what it reads, and goes on to read the logs: the next flush is that of the
            // replay.
            let is_time = move || {
                let now = disk.counters();
                now.flushes > before && now.reads > *reads.get_or_insert(now.reads)
            };
            let error = assembly_meets(&mut scene, which, &Fault::FailFlushes(1), STEPS, is_time);
            let Some(AssembleError::Device { name, .. }) = error else {
                panic!("{level}, {which}: {error:?}")
            };
            assert_eq!(name, format!("disk{which}"));
            crash(&mut scene, &(0..members.into()).collect::<Vec<_>>()).unwrap();
            scene.read_all();
        }
    }
}

fn logged_scene(seed: u64, level: Level, members: u8, log: NewLog) -> Scene {
    let world = World::new(WorldConfig::new(seed, 1));
    let wish = NewArray {
        members: (0..members).map(|i| NewDevice { sectors: 8192, uuid: Uuid([i + 1; 16]) }).collect(),
        data_offset: Some(Sector(4096)),
        ..wish(level, members, CHUNK, NewBitmap::None, InitialSync::AssumeClean)
    };
    Scene::with_log(world, &wish, log, ArrayOptions { gather_ns: 0, ..options() })
}

/// A log that is replayed without a member, where parity's member refuses a sector: what the lost member had
/// of that row is lost, and no other bytes are made of it.
#[test]
fn parity_that_is_refused_in_a_replay_is_listed_before_anything_is_made_of_it() {
    let mut listed = 0;
    for seed in 0..60 {
        let mut scene = logged_scene(seed, Level::Raid5, 4, NewLog::Ppl);
        (0..3).for_each(|column| scene.write(column * CHUNK / 512, 8, false).unwrap());
        scene.stop();
        scene.reassemble();
        spawn(&mut scene, 1, |_, volume, ledger, _| async move {
            while write(&volume, &ledger, 0, 8, false).await.is_ok() {}
        });
        let _ = scene.world.run_until(60 + 3 * seed, |_| false);
        power_loss(&mut scene);
        let map = scene.geometry().slots(StripeId(0));
        let refused = page(&scene, map.p_slot(), 0).start + 512;
        scene.disks[map.p_slot().index()].fault(&Fault::UnwritableRange(refused..refused + 512));
        let lost = map.data_slot(2).index();
        crash(&mut scene, &(0..4).filter(|disk| *disk != lost).collect::<Vec<_>>()).unwrap();
        listed += u64::from(bad_sectors(&scene) > 0);
        let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
        scene.run(async move {
            for sector in 2 * CHUNK / 512..2 * CHUNK / 512 + 8 {
                let id = ledger.borrow_mut().begin_read(sector..sector + 1);
                match volume.read(sector * 512, shard::buffer(512)).await {
                    (Ok(()), buffer) => ledger.borrow_mut().check_read(id, &buffer).unwrap(),
                    (Err(error), _) => {
                        assert!(matches!(error, IoError::Unreadable { .. }) && sector % 8 == 1, "{error}");
                        ledger.borrow_mut().abandon_read(id);
                    }
                }
            }
        });
    }
    assert!(listed > 10, "{listed}");
}

/// mdadm takes one that is ahead for a stray one, and starts the array without it if it is forced.
#[test]
fn the_journals_superblock_is_never_ahead_of_all_members() {
    for seed in 0..4 {
        let mut scene = scene(seed, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 720, 1);
        clients(&mut scene, 4, 10, 60);
        let before = superblock_on(&scene.disks[4]).array.events;
        let array = scene.array.clone();
        let done = spawn(&mut scene, 1, move |_, _, _, _| {
            let array = array.clone();
            async move { assert!(array.fail(2).await.is_ok()) }
        });
        let disks = scene.disks.clone();
        let events = |disk: usize| superblock_on(&disks[disk]).array.events;
        let is_done = || {
            assert!((0..4).any(|member| events(member) >= events(4)), "seed {seed}");
            *done.borrow() == 1
        };
        scene.world.run_until(STEPS, |_| is_done()).unwrap();
        assert!(events(4) > before);
    }
}

/// A power cut amid a kernel's update may leave it one behind at a start. Two behind it is stale.
#[test]
fn a_journal_that_is_one_event_behind_at_a_start_falls_back_no_further() {
    let mut scene = scene(5, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 720, 1);
    clients(&mut scene, 4, 10, 60);
    scene.stop();
    let mut behind = superblock_on(&scene.disks[4]);
    behind.array.events -= 1;
    scene.disks[4].poke(4096, &behind.encode(512).unwrap());

    let sources: Vec<Arc<dyn DeviceSource>> = scene.disks.iter().map(SimDisk::source).collect();
    let shards = (0..scene.world.shards()).map(|i| scene.world.shard(i).handle()).collect();
    let (options, done) = (scene.options.clone(), Rc::new(RefCell::new(false)));
    let is_done = Rc::clone(&done);
    scene.world.spawn(0, "assemble", async move {
        let array = Array::assemble(sources, options, shards).await.unwrap();
        array.fail(2).await.unwrap();
        *is_done.borrow_mut() = true;
        std::future::pending::<()>().await;
        drop(array);
    });
    let disks = scene.disks.clone();
    let events = |disk: usize| superblock_on(&disks[disk]).array.events;
    let is_over = || {
        assert!((0..4).all(|member| events(member) <= events(4) + 1), "two events behind");
        *done.borrow()
    };
    scene.world.run_until(STEPS, |_| is_over()).unwrap();
    crash(&mut scene, &[0, 1, 2, 3, 4]).unwrap();
    assert!(scene.array.detail().journal.is_some());
    scene.read_all();
}

/// Before anything is done without it: what that is, the journal doesn't know.
#[test]
fn a_start_without_the_journal_says_so_before_it_is_over() {
    let mut scene = scene(3, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 720, 1);
    clients(&mut scene, 4, 10, 60);
    scene.options.force = true;
    crash(&mut scene, &[0, 1, 2, 3]).unwrap();
    for member in 0..4 {
        let superblock = superblock_on(&scene.disks[member]);
        assert!(!superblock.array.journal && superblock.array.resync_offset != ResyncOffset::Clean);
    }
    scene.options.force = false;
    crash(&mut scene, &[0, 1, 2, 3, 4]).unwrap();
    assert!(scene.array.detail().journal.is_none());
    scene.read_all();
}

/// The journal goes under writers, and is there again after a crash: what it holds is old by then.
fn comes_back_stale(seed: u64) {
    let mut scene = scene(seed, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 720, 1);
    clients(&mut scene, 4, 10, 60);
    scene.disks[4].fault(&Fault::Gone);
    for at in (0..400).step_by(40) {
        let _ = scene.write(at, 40, false);
    }
    scene.flush().unwrap();
    scene.disks[4].fault(&Fault::Return);
    let all: Vec<usize> = (0..5).collect();
    match crash(&mut scene, &all) {
        Ok(()) => scene.read_all(),
        Err(AssembleError::JournalMissing) => {}
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_journal_that_comes_back_after_it_was_lost_is_not_replayed() {
    (0..6).for_each(comes_back_stale);
}

/// An array with a journal that writes back, with room for `blocks` and `cache_bytes` of memory.
fn write_back_scene(seed: u64, blocks: u64, cache_bytes: usize, stripe_slots: usize) -> Scene {
    write_back_scene_of(seed, Level::Raid5, 4, blocks, cache_bytes, stripe_slots)
}

fn write_back_scene_of(
    seed: u64,
    level: Level,
    members: u8,
    blocks: u64,
    cache_bytes: usize,
    stripe_slots: usize,
) -> Scene {
    let options = ArrayOptions {
        gather_ns: 0,
        journal_mode: JournalMode::WriteBack,
        journal_cache_bytes: cache_bytes,
        stripe_slots,
        ..options()
    };
    let shards = 1 + usize::try_from(seed % 2).unwrap();
    try_scene(seed, level, members, InitialSync::AssumeClean, 256 + 8 * blocks, shards, options).unwrap()
}

fn low(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

fn cached(scene: &Scene) -> u64 {
    scene.array.detail().journal.unwrap().cached_bytes
}

fn set_mode(scene: &mut Scene, mode: JournalMode) -> Result<(), CommandError> {
    let array = scene.array.clone();
    scene.run(async move { array.set_journal_mode(mode).await })
}

/// What only the journal has is read, is left alone by a check, and is on the members after a stop.
#[test]
fn what_is_acknowledged_from_the_journal_is_read_and_is_on_the_members_after_a_stop() {
    for seed in 0..8 {
        let mut scene = write_back_scene(seed, 600, 1 << 20, 1 << 10);
        let before: Vec<u64> = (0..4).map(|disk| scene.disks[disk].counters().bytes_written).collect();
        for at in [0, 3, 40, 41, 200, 640, 700] {
            scene.write(at, 1 + at % 11, false).unwrap();
        }
        let after: Vec<u64> = (0..4).map(|disk| scene.disks[disk].counters().bytes_written).collect();
        assert!(cached(&scene) > 0);
        let written: u64 = after.iter().zip(&before).map(|(a, b)| a - b).sum();
        assert!(written < 20 * 4096, "{written} bytes went to the members");
        scene.flush().unwrap();
        scene.read_all();
        assert_eq!(scene.check(), 0);
        scene.read_all();
        scene.stop();
        assert_eq!(scene.disks[4].info().size % 512, 0);
        scene.options.journal_mode = JournalMode::WriteThrough;
        scene.reassemble();
        assert_eq!(cached(&scene), 0);
        scene.read_all();
        assert_eq!(scene.check(), 0);
    }
}

/// Memory and log are bounded, however much is written, and no write waits for ever.
#[test]
fn a_cache_that_is_full_is_written_through() {
    for (seed, blocks, cache_bytes, slots) in
        [(0, 90, 1 << 20, 2), (1, 400, 64 << 10, 2), (2, 400, 64 << 10, 1 << 10), (3, 90, 1 << 20, 1)]
    {
        let mut scene = write_back_scene(seed, blocks, cache_bytes, slots);
        let done = spawn(&mut scene, 24, |number, volume, ledger, mut rng| async move {
            for round in 0..30 {
                let at = (number * 31 + round * 96) % 1300;
                write(&volume, &ledger, at, rng.pick(&[1, 8, 96]), false).await.unwrap();
            }
        });
        let array = scene.array.clone();
        let most = RefCell::new(0);
        let journal = || array.detail().journal.unwrap();
        scene
            .world
            .run_until(STEPS, |_| {
                let now = journal();
                assert!(now.used_bytes < now.size_bytes);
                let mut most = most.borrow_mut();
                *most = now.cached_bytes.max(*most);
                *done.borrow() == 24
            })
            .unwrap();
        assert!((1..=cache_bytes as u64).contains(&most.borrow()), "{most:?}");
        drop(array);
        scene.is_right_and_stays_so();
    }
}

/// Where room must come from the cache, it is written out whatever claims the batches hold that wait for it.
#[test]
fn batches_that_wait_for_room_do_not_keep_the_cache_from_being_written_out() {
    for seed in 0..24 {
        let level = [Level::Raid6, Level::Raid5][low(seed % 2)];
        let mut scene = write_back_scene_of(seed, level, 5, 120, 1 << 20, 1 << 10);
        let done = spawn(&mut scene, 4, |number, volume, ledger, mut rng| async move {
            for _ in 0..60 {
                write(&volume, &ledger, 300 * number + rng.below(250), 8, false).await.unwrap();
            }
        });
        scene.world.run_until(STEPS, |_| *done.borrow() == 4).unwrap();
        scene.is_right_and_stays_so();
    }
}

/// Sectors are listed meanwhile, by the stripes that are written out and by others, and so batches are
/// planned anew: they keep the room that is set aside for them.
#[test]
fn batches_that_are_written_out_while_sectors_are_listed_keep_their_room() {
    for seed in 0..24 {
        let level = [Level::Raid6, Level::Raid5][low(seed % 2)];
        let mut scene = write_back_scene_of(seed, level, 5, 120, 1 << 20, 1 << 10);
        let disk = &scene.disks[1];
        let data = superblock_on(disk).member.data_offset.0 * 512;
        for row in (0..80).step_by(3) {
            let at = data + row * 4096 + 512;
            disk.fault(&Fault::UnwritableRange(at..at + 512));
        }
        let done = spawn(&mut scene, 6, |number, volume, ledger, mut rng| async move {
            for _ in 0..60 {
                write(&volume, &ledger, 200 * number + rng.below(190), 8, false).await.unwrap();
            }
        });
        scene.world.run_until(STEPS, |_| *done.borrow() == 6).unwrap();
        assert!(scene.array.detail().slots[1].bad_sectors > 5);
        scene.is_right_and_stays_so();
    }
}

/// Long before it would, for want of anything to do: a full stripe doesn't fit what is left for the cache.
#[test]
fn a_write_that_finds_no_room_has_the_cache_written_out() {
    let mut scene = write_back_scene(0, 40, 1 << 20, 1 << 10);
    scene.write(200, 8, false).unwrap();
    assert_eq!(cached(&scene), 4096);
    scene.write(0, 96, false).unwrap();
    scene.run(async { shard::sleep(100_000_000).await });
    assert_eq!(cached(&scene), 0);
    scene.read_all();
    assert_eq!(scene.check(), 0);
}

#[test]
fn what_is_cached_goes_to_the_members_when_nothing_comes_any_more() {
    let mut scene = write_back_scene(1, 600, 1 << 20, 1 << 10);
    scene.write(5, 90, false).unwrap();
    assert!(cached(&scene) > 0);
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().journal.unwrap().cached_bytes == 0).unwrap();
    drop(array);
    scene.read_all();
    assert_eq!(scene.check(), 0);
}

/// MD's rule: an array that isn't whole is written through.
#[test]
fn an_array_that_loses_a_member_writes_out_and_falls_back_to_write_through() {
    for seed in 0..12 {
        let mut scene = write_back_scene(seed, 400, 1 << 20, 1 << 10);
        writers(&mut scene, 4);
        let _ = scene.world.run_until(300 + seed * 100, |_| false);
        let array = scene.array.clone();
        scene.run(async move { array.fail(1).await }).unwrap();
        let array = scene.array.clone();
        let through = Some(JournalMode::WriteThrough);
        let fallen_back =
            || array.journal_mode() == through && array.detail().journal.unwrap().cached_bytes == 0;
        scene.world.run_until(STEPS, |_| fallen_back()).unwrap();
        drop(array);
        assert!(set_mode(&mut scene, JournalMode::WriteBack).is_err());
        scene.read_all();
        let all: Vec<usize> = (0..5).collect();
        crash(&mut scene, &all).unwrap();
        assert_eq!(scene.array.journal_mode(), Some(JournalMode::WriteThrough));
        scene.read_all();
    }
}

/// Live, under writers, to and fro.
#[test]
fn the_mode_is_switched_under_writers_and_write_through_has_nothing_cached() {
    for seed in 0..8 {
        let mut scene = write_back_scene(seed, 400, 1 << 20, 1 << 10);
        writers(&mut scene, 4);
        for _ in 0..3 {
            let _ = scene.world.run_until(400, |_| false);
            set_mode(&mut scene, JournalMode::WriteThrough).unwrap();
            assert_eq!(cached(&scene), 0);
            let _ = scene.world.run_until(200, |_| false);
            assert_eq!(cached(&scene), 0);
            set_mode(&mut scene, JournalMode::WriteBack).unwrap();
        }
        let _ = scene.world.run_until(400, |_| false);
        let all: Vec<usize> = (0..5).collect();
        crash(&mut scene, &all).unwrap();
        scene.read_all();
        assert_eq!(scene.check(), 0);
    }
}

/// The mode is switched back just as the array stops: too late, for what is cached then might have no room to
/// be written out in.
#[test]
fn what_is_cached_while_the_array_stops_keeps_nothing_from_ending() {
    for seed in 0..160 {
        let mut scene = write_back_scene(2 * seed, 400, 1 << 20, 1 << 10);
        scene.write(0, 9, false).unwrap();
        let (array, volume, ledger) = (scene.array.clone(), scene.volume(), Rc::clone(&scene.ledger));
        scene.world.spawn(0, "switch", async move {
            // The drain of the stop comes first.
            while array.journal_mode() == Some(JournalMode::WriteBack) {
                shard::sleep(1000).await;
            }
            shard::sleep(seed * 5_000).await;
            let _ = array.set_journal_mode(JournalMode::WriteBack).await;
            let _ = write(&volume, &ledger, 400, 9, false).await;
        });
        scene.stop();
        assert_eq!(cached(&scene), 0);
        let array = scene.array.clone();
        assert_eq!(scene.run(async move { array.stop().await }), Err(IoError::Stopping));
        let _ = set_mode(&mut scene, JournalMode::WriteThrough);
        scene.reassemble();
        scene.read_all();
        assert_eq!(scene.check(), 0, "seed {seed}");
    }
}

/// C18: what is in memory is written out before the array is read-only for good.
#[test]
fn what_is_cached_when_the_journal_is_lost_is_written_out() {
    for seed in 0..12 {
        let mut scene = write_back_scene(seed, 400, 1 << 20, 1 << 10);
        clients(&mut scene, 4, 10, 60);
        for at in [0, 9, 100, 333, 700] {
            scene.write(at, 9, false).unwrap();
        }
        assert!(cached(&scene) > 0);
        scene.disks[4].fault(&if seed % 2 == 0 { Fault::Gone } else { Fault::Hang });
        scene.read_all();
        let mut heard = scene.write(0, 4, false);
        if heard.is_ok() {
            heard = scene.write(0, 4, false);
        }
        assert_eq!(heard, Err(IoError::JournalLost));
        scene.flush().unwrap();
        assert_eq!(cached(&scene), 0);
        let disks = scene.disks.clone();
        scene.world.run_until(STEPS, |_| says_lost(&disks)).unwrap();
        scene.read_all();
        scene.options.force = true;
        scene.options.journal_mode = JournalMode::WriteThrough;
        crash(&mut scene, &[0, 1, 2, 3]).unwrap();
        scene.read_all();
    }
}

/// A client was told by the log alone that its bytes are durable; then the journal goes, by a command or by
/// itself.
fn a_journal_goes_and_power_fails(seed: u64) {
    let mut scene = write_back_scene(seed, 400, 1 << 20, 1 << 10);
    for at in [0, 9, 100, 333, 700] {
        scene.write(at, 9, true).unwrap();
    }
    scene.flush().unwrap();
    if seed.is_multiple_of(2) {
        let array = scene.array.clone();
        scene.run(async move { array.fail_journal().await }).unwrap();
    } else {
        set_mode(&mut scene, JournalMode::WriteThrough).unwrap();
        scene.disks[4].fault(&Fault::Gone);
        let _ = scene.write(900, 4, false);
        let disks = scene.disks.clone();
        scene.world.run_until(STEPS, |_| says_lost(&disks)).unwrap();
    }
    scene.options.force = true;
    scene.options.journal_mode = JournalMode::WriteThrough;
    crash(&mut scene, &[0, 1, 2, 3]).unwrap();
    scene.read_all();
}

#[test]
fn a_journal_that_goes_leaves_what_was_durable_by_it() {
    (0..24).for_each(a_journal_goes_and_power_fails);
}

/// A member can't flush as the journal goes, and has lost what it was to make durable: the superblocks that
/// call the journal lost must not call it current.
#[test]
fn a_member_that_can_not_flush_goes_with_the_journal() {
    for seed in 0..24 {
        let mut scene = write_back_scene(seed, 400, 1 << 20, 1 << 10);
        for at in [0, 9, 100, 333, 700] {
            scene.write(at, 9, true).unwrap();
        }
        set_mode(&mut scene, JournalMode::WriteThrough).unwrap();
        let (disks, which) = (scene.disks.clone(), low(seed % 4));
        disks[which].fault(&Fault::FailFlushes(1));
        let array = scene.array.clone();
        scene.world.spawn(0, "fail", async move {
            let _ = array.fail_journal().await;
        });
        let others = [&disks[..which], &disks[which + 1..4]].concat();
        scene.world.run_until(STEPS, |_| says_lost(&others)).unwrap();
        scene.options.force = true;
        scene.options.journal_mode = JournalMode::WriteThrough;
        crash(&mut scene, &[0, 1, 2, 3]).unwrap();
        scene.read_all();
    }
}

/// A member can't flush as the array stops. Until the superblocks say that it is out, the log alone has what
/// it has lost.
#[test]
fn a_stop_keeps_the_log_until_it_is_recorded_that_a_member_could_not_flush() {
    for steps in 0..160 {
        let mut scene = write_back_scene(steps, 400, 1 << 20, 1 << 10);
        for at in [0, 9, 100, 333, 700] {
            scene.write(at, 9, true).unwrap();
        }
        set_mode(&mut scene, JournalMode::WriteThrough).unwrap();
        let (disk, flushes) =
            (scene.disks[low(steps % 4)].clone(), scene.disks[low(steps % 4)].counters().flushes);
        disk.fault(&Fault::FailFlushes(1));
        let array = scene.array.clone();
        scene.world.spawn(0, "stop", async move {
            let _ = array.stop().await;
        });
        scene.world.run_until(STEPS, |_| disk.counters().flushes > flushes).unwrap();
        let _ = scene.world.run_until(1 + steps, |_| false);
        disk.fault(&Fault::Heal);
        crash(&mut scene, &(0..5).collect::<Vec<_>>()).unwrap_or_else(|error| panic!("{steps}: {error}"));
        scene.read_all();
    }
}

/// What is written out when the superblocks say already that the journal is lost is flushed without a client.
#[test]
fn what_a_lost_journal_had_made_durable_is_flushed_when_it_is_written_out() {
    for seed in 0..12 {
        let mut scene = write_back_scene(seed, 400, 1 << 20, 1 << 10);
        for at in [0, 9, 100, 333, 700] {
            scene.write(at, 9, true).unwrap();
        }
        assert!(cached(&scene) > 0);
        scene.disks[4].fault(&Fault::Gone);
        let heard = (0..2).map(|_| scene.write(900, 4, false)).find(Result::is_err);
        assert_eq!(heard, Some(Err(IoError::JournalLost)));
        let array = scene.array.clone();
        scene.world.run_until(STEPS, |_| array.detail().journal.unwrap().cached_bytes == 0).unwrap();
        drop(array);
        scene.run(async { shard::sleep(100_000_000).await });
        scene.options.force = true;
        scene.options.journal_mode = JournalMode::WriteThrough;
        crash(&mut scene, &[0, 1, 2, 3]).unwrap();
        scene.read_all();
    }
}

/// A flush must not say of what was only in the journal that it is durable.
#[test]
fn a_flush_says_that_the_journal_is_lost_while_something_can_not_be_written_out() {
    for seed in 0..4 {
        let mut scene = write_back_scene(seed, 400, 1 << 20, 1 << 10);
        scene.write(9, 9, false).unwrap();
        assert!(cached(&scene) > 0);
        // The member of what is cached is out, and its row's parity can't be computed without another page.
        let slots = scene.geometry().slots(StripeId(0));
        let disk = &scene.disks[slots.data_slot(1).index()];
        let data = superblock_on(disk).member.data_offset.0 * 512;
        disk.fault(&Fault::UnreadableRange(data..data + (64 << 10)));
        let array = scene.array.clone();
        scene.run(async move { array.fail(slots.data_slot(0).index()).await }).unwrap();
        scene.disks[4].fault(&Fault::Gone);
        let heard = (0..2).map(|_| scene.write(700, 4, false)).find(Result::is_err);
        assert_eq!(heard, Some(Err(IoError::JournalLost)));
        assert_eq!(scene.flush(), Err(IoError::JournalLost), "seed {seed}");
        assert!(cached(&scene) > 0);
    }
}

/// In the first row of the array the first page is only in the journal, and the second page and the parity
/// can't be read any more: no parity of it can be computed.
fn a_row_that_can_not_be_computed(seed: u64) -> Scene {
    let level = [Level::Raid5, Level::Raid5, Level::Raid6, Level::Raid4, Level::Raid6][low(seed % 5)];
    let mut scene = write_back_scene_of(seed, level, 5, 120, 1 << 20, 1 << 10);
    scene.write(0, 8, false).unwrap();
    assert_eq!(cached(&scene), 4096);
    let slots = scene.geometry().slots(StripeId(0));
    let lost = [Some(slots.data_slot(1)), Some(slots.p_slot()), slots.q_slot()];
    for slot in lost.into_iter().flatten() {
        let disk = &scene.disks[slot.index()];
        let data = superblock_on(disk).member.data_offset.0 * 512;
        disk.fault(&Fault::UnreadableRange(data..data + 4096));
    }
    scene
}

/// Only what can't be read is lost: what was acknowledged is there, the lost page is an error and no other
/// bytes, and a write of the whole row makes it good.
fn only_the_unreadable_page_is_lost(scene: &mut Scene) {
    let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
    let lost = scene.run(async move {
        let id = ledger.borrow_mut().begin_read(0..8);
        let (read, buffer) = volume.read(0, shard::buffer(4096)).await;
        read.unwrap();
        ledger.borrow_mut().check_read(id, &buffer).unwrap();
        volume.read(CHUNK, shard::buffer(4096)).await.0
    });
    assert!(matches!(lost, Err(IoError::Unreadable { .. })), "{lost:?}");
    set_mode(scene, JournalMode::WriteThrough).unwrap();
    scene.write(0, u64::from(scene.geometry().stripe_bytes()) / 512, false).unwrap();
    scene.read_all();
    assert_eq!(scene.check(), 0);
}

/// It gets its place on the members without parity, and so neither holds up the log nor the stop.
#[test]
fn a_row_that_can_not_be_computed_is_written_out_without_parity() {
    for seed in 0..24 {
        let mut scene = a_row_that_can_not_be_computed(seed);
        let behind = u64::from(scene.geometry().stripe_bytes()) / 512;
        let done = spawn(&mut scene, 4, move |number, volume, ledger, mut rng| async move {
            for _ in 0..60 {
                write(&volume, &ledger, behind + 300 * number + rng.below(250), 8, false).await.unwrap();
            }
        });
        scene.world.run_until(STEPS, |_| *done.borrow() == 4).unwrap();
        let array = scene.array.clone();
        scene.world.run_until(STEPS, |_| array.detail().journal.unwrap().cached_bytes == 0).unwrap();
        drop(array);
        if seed % 2 == 0 {
            let all: Vec<usize> = (0..6).collect();
            crash(&mut scene, &all).unwrap();
        }
        only_the_unreadable_page_is_lost(&mut scene);
        scene.stop();
        scene.reassemble();
        scene.read_all();
    }
}

/// The same after a crash, when the log is all that has the page.
#[test]
fn a_row_that_can_not_be_computed_is_replayed_without_parity() {
    for seed in 0..24 {
        let mut scene = a_row_that_can_not_be_computed(seed);
        let all: Vec<usize> = (0..6).collect();
        crash(&mut scene, &all).unwrap();
        assert_eq!(bad_sectors(&scene), 8 * u64::try_from(scene.geometry().redundancy()).unwrap());
        // And once more: what was listed is known to the next start.
        crash(&mut scene, &all).unwrap();
        only_the_unreadable_page_is_lost(&mut scene);
        scene.stop();
        scene.reassemble();
        scene.read_all();
    }
}

fn bad_sectors(scene: &Scene) -> u64 {
    scene.array.detail().slots.iter().map(|slot| slot.bad_sectors).sum()
}

/// The bytes of a disk that are a page of the first chunk.
fn page(scene: &Scene, slot: MemberSlot, row: u64) -> std::ops::Range<u64> {
    let data = superblock_on(&scene.disks[slot.index()]).member.data_offset.0 * 512 + row * 4096;
    data..data + 4096
}

fn list_page(scene: &Scene, slot: MemberSlot) {
    let sectors = page(scene, slot, 0);
    list_as_bad(&scene.disks[slot.index()], sectors.start / 512..sectors.end / 512);
}

/// So it is where a spare took the place of the page's member, and could not be given the row.
#[test]
fn a_page_is_read_from_a_place_that_was_listed_before_the_replay() {
    for seed in [0, 1, 2] {
        let mut scene = a_row_that_can_not_be_computed(seed);
        let slot = scene.geometry().slots(StripeId(0)).data_slot(0);
        power_loss(&mut scene);
        list_page(&scene, slot);
        scene.reassemble();
        assert_eq!(scene.array.detail().slots[slot.index()].bad_sectors, 0);
        only_the_unreadable_page_is_lost(&mut scene);
    }
}

/// The log has parity of a row, and data that came later without. P is listed, and stays so.
#[test]
fn parity_before_later_data_takes_no_sector_off_a_list() {
    for seed in 0..4 {
        let mut scene = write_back_scene(seed, 400, 1 << 20, 1 << 10);
        let p = scene.geometry().slots(StripeId(0)).p_slot();
        set_mode(&mut scene, JournalMode::WriteThrough).unwrap();
        scene.write(64, 8, false).unwrap();
        set_mode(&mut scene, JournalMode::WriteBack).unwrap();
        scene.write(0, 8, false).unwrap();
        assert_eq!(cached(&scene), 4096);
        power_loss(&mut scene);
        list_page(&scene, p);
        scene.reassemble();
        assert_eq!(scene.array.detail().slots[p.index()].bad_sectors, 8);
        scene.read_all();
        assert_eq!(scene.check(), 0);
    }
}

/// A member that is only away may be back: nothing is given up for want of it, and the array starts.
#[test]
fn a_replay_of_an_array_that_is_not_whole_gives_up_no_parity() {
    for seed in [0, 1, 3] {
        let mut scene = a_row_that_can_not_be_computed(seed);
        let slots = scene.geometry().slots(StripeId(0));
        scene.disks[slots.p_slot().index()].fault(&Fault::Heal);
        let away = slots.data_slot(0).index();
        let others: Vec<usize> = (0..6).filter(|disk| *disk != away).collect();
        let behind = u64::from(scene.geometry().stripe_bytes()) / 512;
        for _ in 0..2 {
            scene.write(behind, 8, false).unwrap();
            crash(&mut scene, &others).unwrap();
            assert_eq!((cached(&scene), bad_sectors(&scene)), (4096, 0));
            reads(&mut scene, 0);
            reads(&mut scene, behind);
        }
        scene.disks[slots.data_slot(1).index()].fault(&Fault::Heal);
        if seed == 3 {
            crash(&mut scene, &others).unwrap();
        } else {
            scene.add(&scene.disks[away].clone()).unwrap();
            scene.settle();
        }
        assert!(set_mode(&mut scene, JournalMode::WriteThrough).is_ok());
        assert_eq!((cached(&scene), bad_sectors(&scene)), (0, 0));
        scene.read_all();
        if seed != 3 {
            assert_eq!(scene.check(), 0);
        }
    }
}

/// The 4 KiB at a sector can be read, and are right.
fn reads(scene: &mut Scene, sector: u64) {
    let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
    scene.run(async move {
        let id = ledger.borrow_mut().begin_read(sector..sector + 8);
        let (read, buffer) = volume.read(sector * 512, shard::buffer(4096)).await;
        read.unwrap();
        ledger.borrow_mut().check_read(id, &buffer).unwrap();
    });
}

fn refuse_page(scene: &Scene, slot: MemberSlot) {
    let refused = page(scene, slot, 0);
    scene.disks[slot.index()].fault(&Fault::UnwritableRange(refused));
}

/// A start must not count what a member refuses as written where nothing else has it. `stops` or crashes
/// before. Only the journal has the first page then, and it goes on to have it; healed, the members take it.
fn stays_over_starts(scene: &mut Scene, disks: &[usize], stops: bool) {
    for _ in 0..3 {
        // Another row is loose, and is logged anew.
        let behind = u64::from(scene.geometry().stripe_bytes()) / 512;
        scene.write(behind, 8, false).unwrap();
        if stops {
            scene.stop();
        }
        crash(scene, disks).unwrap();
        assert_eq!(cached(scene), 4096);
        reads(scene, 0);
        reads(scene, behind);
        scene.run(async { shard::sleep(3_000_000_000).await });
        assert_eq!(cached(scene), 4096);
    }
}

/// The first stripe is written whole, and nothing of it is left for the journal to keep.
fn is_good_when_it_is_written_whole(scene: &mut Scene) {
    let stripe = u64::from(scene.geometry().stripe_bytes()) / 512;
    scene.write(0, stripe, false).unwrap();
    assert!(set_mode(scene, JournalMode::WriteThrough).is_ok());
    assert_eq!(cached(scene), 0);
    scene.is_right_and_stays_so();
}

#[test]
fn a_page_that_its_member_refuses_as_well_outlives_starts() {
    for seed in 0..20 {
        let mut scene = a_row_that_can_not_be_computed(seed);
        let slot = scene.geometry().slots(StripeId(0)).data_slot(0);
        refuse_page(&scene, slot);
        if seed % 3 > 0 {
            scene.run(async { shard::sleep(3_000_000_000).await });
        }
        let all: Vec<usize> = (0..6).collect();
        stays_over_starts(&mut scene, &all, seed % 2 == 0);
        scene.disks.iter().for_each(|disk| disk.fault(&Fault::Heal));
        if seed % 4 == 0 {
            // It takes all of the page but for one sector.
            let refused = page(&scene, slot, 0).start;
            scene.disks[slot.index()].fault(&Fault::UnwritableRange(refused..refused + 512));
            crash(&mut scene, &all).unwrap();
            let listed = scene.array.detail().slots[slot.index()].bad_sectors;
            assert_eq!((cached(&scene), listed), (4096, 1));
            scene.disks.iter().for_each(|disk| disk.fault(&Fault::Heal));
        }
        if seed % 4 < 2 {
            crash(&mut scene, &all).unwrap();
        }
        is_good_when_it_is_written_whole(&mut scene);
    }
}

/// One member that failed, and one sector that another refuses.
#[test]
fn a_page_that_a_degraded_array_can_not_place_outlives_starts() {
    for seed in 0..20 {
        let level = [Level::Raid5, Level::Raid4][low(seed % 2)];
        let mut scene = write_back_scene_of(seed, level, 4, 120, 1 << 20, 1 << 10);
        scene.write(0, 8, false).unwrap();
        let map = scene.geometry().slots(StripeId(0));
        refuse_page(&scene, map.data_slot(0));
        let lost = if seed % 4 < 2 { map.p_slot() } else { map.data_slot(1) };
        scene.fail(lost.index());
        scene.run(async { shard::sleep(3_000_000_000).await });
        assert_eq!(cached(&scene), 4096);
        let left: Vec<usize> = (0..5).filter(|disk| *disk != lost.index()).collect();
        stays_over_starts(&mut scene, &left, seed % 3 == 0);
        scene.disks.iter().for_each(|disk| disk.fault(&Fault::Heal));
        crash(&mut scene, &left).unwrap();
        reads(&mut scene, 0);
        if lost != map.p_slot() {
            // The lost member's chunk can't be made without the page's old bytes.
            assert_eq!(cached(&scene), 4096);
            let stripe = u64::from(scene.geometry().stripe_bytes()) / 512;
            scene.write(0, stripe, false).unwrap();
        }
        assert!(set_mode(&mut scene, JournalMode::WriteThrough).is_ok());
        assert_eq!((cached(&scene), bad_sectors(&scene)), (0, 0));
        scene.read_all();
    }
}

/// A row that is whole in the log, of which data was logged without parity later, for parity was out, and is
/// rebuilt since: the older parity doesn't go back over it, or what a lost member had would be made of it.
#[test]
fn a_rebuild_leaves_no_older_parity_in_the_log() {
    for seed in 0..24 {
        let level = [Level::Raid5, Level::Raid4][low(seed % 2)];
        let mut scene = scene(seed, level, 4, InitialSync::AssumeClean, 256 + 8 * 400, 1);
        let map = scene.geometry().slots(StripeId(0));
        (0..3).for_each(|column| scene.write(column * CHUNK / 512, 8, false).unwrap());
        scene.stop();
        scene.reassemble();
        scene.write(0, 8, false).unwrap();
        scene.fail(map.p_slot().index());
        scene.write(CHUNK / 512, 8, false).unwrap();
        let spare = scene.disk();
        scene.add(&spare).unwrap();
        scene.settle();
        scene.flush().unwrap();
        power_loss(&mut scene);
        let lost = [map.p_slot(), map.data_slot([2, 0][low(seed / 2 % 2)])].map(MemberSlot::index);
        let here = (0..scene.disks.len()).filter(|disk| !lost.contains(disk));
        let sources: Vec<Arc<dyn DeviceSource>> = here.map(|disk| scene.disks[disk].source()).collect();
        scene.array = assemble(&mut scene.world, sources, scene.options.clone()).unwrap();
        scene.read_all();
    }
}

/// A device that is to replace a member fails while the log is given up for it: the member is not taken for
/// the one that is to be made.
#[test]
fn a_rebuild_whose_target_has_failed_before_it_begins_makes_nothing() {
    let mut failed = 0;
    for seed in 0..24 {
        let mut scene = scene(seed, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 8 * 400, 1);
        let stripe = u64::from(scene.geometry().stripe_bytes()) / 512;
        (0..4).for_each(|number| scene.write(number * stripe, stripe, false).unwrap());
        let map = scene.geometry().slots(StripeId(0));
        let (replaced, other) = (map.data_slot(0), map.data_slot(1));
        scene.disks[other.index()].fault(&Fault::UnreadableRange(page(&scene, other, 0)));
        let spare = scene.disk();
        let (array, source) = (scene.array.clone(), spare.source());
        scene.world.spawn(0, "replace", async move {
            let _ = array.replace(replaced.index(), Some(source), Uuid([77; 16])).await;
        });
        let is_seated = |_: &World| {
            let superblock = pinstripe_sim::checks::superblock(&spare);
            superblock.is_some_and(|superblock| superblock.member.replacement)
        };
        scene.world.run_until(STEPS, is_seated).unwrap();
        let _ = scene.world.run_until(1 + 4 * seed, |_| false);
        spare.fault(&Fault::FailFlushes(1));
        scene.settle();
        failed += u64::from(scene.array.detail().slots[replaced.index()].device.as_deref() != Some("disk5"));
        assert_eq!(bad_sectors(&scene), 0, "seed {seed}");
        scene.read_all();
    }
    assert!(failed > 12, "{failed} devices failed");
}

/// A log that is full of data without parity, for parity was out, and a crash as soon as its member is to be
/// rebuilt: the rebuild makes it, and the log needs no room for it.
#[test]
fn a_log_without_parity_is_replayed_while_parity_is_rebuilt() {
    for seed in 0..24 {
        let mut scene = scene(seed, Level::Raid4, 4, InitialSync::AssumeClean, 256 + 8 * 100, 1);
        let slot = scene.geometry().slots(StripeId(0)).p_slot();
        scene.fail(slot.index());
        // Chunks in stripes of their own: with parity it would be nearly twice as long.
        for stripe in 0..9 {
            scene.write(stripe * 3 * CHUNK / 512, CHUNK / 512, false).unwrap();
        }
        let spare = scene.disk();
        let (array, source) = (scene.array.clone(), spare.source());
        scene.world.spawn(0, "add", async move {
            let _ = array.add(source, Uuid([77; 16])).await;
        });
        let is_seated = |_: &World| {
            let superblock = pinstripe_sim::checks::superblock(&spare);
            superblock.is_some_and(|superblock| matches!(superblock.own_role(), Role::Slot(_)))
        };
        scene.world.run_until(STEPS, is_seated).unwrap();
        let _ = scene.world.run_until(1 + 40 * seed, |_| false);
        power_loss(&mut scene);
        let here = (0..scene.disks.len()).filter(|disk| *disk != slot.index());
        let sources: Vec<Arc<dyn DeviceSource>> = here.map(|disk| scene.disks[disk].source()).collect();
        scene.array = assemble(&mut scene.world, sources, scene.options.clone()).unwrap();
        scene.settle();
        scene.read_all();
        assert_eq!(scene.check(), 0);
    }
}

/// Parity that is listed, in a row that is whole in the log, and then a data member that is lost.
#[test]
fn a_row_that_is_whole_in_the_log_needs_no_member_that_is_lost() {
    for seed in 0..12 {
        let mut scene = scene(seed, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 8 * 400, 1);
        let map = scene.geometry().slots(StripeId(0));
        refuse_page(&scene, map.p_slot());
        scene.write(0, 8, false).unwrap();
        assert_eq!(bad_sectors(&scene), 8);
        let heals = seed % 2 == 0;
        if heals {
            scene.disks[map.p_slot().index()].fault(&Fault::Heal);
        }
        let lost = map.data_slot(0).index();
        let left: Vec<usize> = (0..5).filter(|disk| *disk != lost).collect();
        crash(&mut scene, &left).unwrap();
        reads(&mut scene, 0);
        assert_eq!((cached(&scene), bad_sectors(&scene)), if heals { (0, 0) } else { (4096, 8) });
        crash(&mut scene, &left).unwrap();
        reads(&mut scene, 0);
        scene.disks.iter().for_each(|disk| disk.fault(&Fault::Heal));
        scene.add(&scene.disks[lost].clone()).unwrap();
        scene.settle();
        assert_eq!((cached(&scene), bad_sectors(&scene)), (0, 0), "{heals}");
        scene.is_right_and_stays_so();
    }
}

/// A row without a place can be made when all of it that can't be read is in the log. Two such rows don't
/// take turns for ever.
#[test]
fn a_replay_of_two_rows_without_a_place_ends() {
    for seed in 0..8 {
        let mut scene = write_back_scene_of(seed, Level::Raid5, 4, 200, 1 << 20, 1 << 10);
        let map = scene.geometry().slots(StripeId(0));
        let refused = page(&scene, map.data_slot(0), 0).start..page(&scene, map.data_slot(0), 1).end;
        scene.disks[map.data_slot(0).index()].fault(&Fault::UnwritableRange(refused));
        let pages = |row: u64| [row * 8, CHUNK / 512 + row * 8];
        for at in pages(0) {
            scene.write(at, 8, false).unwrap();
        }
        scene.run(async { shard::sleep(3_000_000_000).await });
        assert_eq!((cached(&scene), bad_sectors(&scene)), (0, 8));
        for at in pages(1) {
            scene.write(at, 8, false).unwrap();
        }
        let away = map.data_slot(1).index();
        crash(&mut scene, &(0..5).filter(|disk| *disk != away).collect::<Vec<_>>()).unwrap();
        for at in pages(0) {
            reads(&mut scene, at);
        }
        for at in pages(1) {
            reads(&mut scene, at);
        }
    }
}

/// A sector that a member refuses for the first time in a replay is listed, as in a write.
#[test]
fn a_page_that_is_refused_in_the_replay_is_listed() {
    for seed in 0..20 {
        let mut scene = scene(seed, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 8 * 400, 1);
        scene.write(0, 8, false).unwrap();
        power_loss(&mut scene);
        let slot = scene.geometry().slots(StripeId(0)).data_slot(0);
        refuse_page(&scene, slot);
        if seed > 0 {
            let _ = assembly_fails(&mut scene, 3, &Fault::Gone, 10 + 8 * seed);
            scene.disks[3].fault(&Fault::Return);
        }
        crash(&mut scene, &[0, 1, 2, 3, 4]).unwrap();
        reads(&mut scene, 0);
        let detail = scene.array.detail();
        assert!(detail.missing > 0 || bad_sectors(&scene) == 8, "seed {seed}");
        if detail.missing == 0 {
            scene.is_right_and_stays_so();
        }
    }
}

/// A page goes where it was listed, or still can't, and other rows are logged anew: the tail moves when the
/// list is right.
#[test]
fn lists_are_right_before_the_tail_moves() {
    let mut cut = 0;
    for steps in (10..260).step_by(2) {
        let mut scene = a_row_that_can_not_be_computed(steps % 2);
        let slot = scene.geometry().slots(StripeId(0)).data_slot(0);
        refuse_page(&scene, slot);
        scene.run(async { shard::sleep(3_000_000_000).await });
        assert_eq!(cached(&scene), 4096);
        let behind = u64::from(scene.geometry().stripe_bytes()) / 512;
        scene.write(behind, 8, false).unwrap();
        power_loss(&mut scene);
        if steps % 3 != 0 {
            scene.disks[slot.index()].fault(&Fault::Heal);
        }
        cut += u64::from(assembly_fails(&mut scene, 5, &Fault::Gone, steps).is_some());
        scene.disks[5].fault(&Fault::Return);
        crash(&mut scene, &(0..6).collect::<Vec<_>>()).unwrap();
        reads(&mut scene, 0);
        reads(&mut scene, behind);
    }
    assert!(cut > 20, "{cut} of the starts were cut short");
}

/// What a member refuses in the replay costs it its place where it can't be listed, as it does in service: a
/// member without a list, and the target of a replacement.
#[test]
fn what_can_not_list_a_sector_is_dropped_in_the_replay() {
    for seed in 0..16 {
        let mut scene = scene(seed, Level::Raid5, 4, InitialSync::AssumeClean, 256 + 8 * 400, 1);
        let map = scene.geometry().slots(StripeId(0));
        let slot = map.data_slot(low(seed / 2 % 3)).index();
        let is_replaced = seed % 2 == 0;
        if is_replaced {
            (0..8).for_each(|stripe| scene.write(stripe * 96, 96, false).unwrap());
            let spare = scene.disk();
            let (array, source) = (scene.array.clone(), spare.source());
            scene.world.spawn(0, "replace", async move {
                let _ = array.replace(slot, Some(source), Uuid([77; 16])).await;
            });
            let is_seated = |_: &World| {
                let superblock = pinstripe_sim::checks::superblock(&spare);
                superblock.is_some_and(|superblock| superblock.member.replacement)
            };
            scene.world.run_until(STEPS, is_seated).unwrap();
        }
        scene.write(0, 96, false).unwrap();
        power_loss(&mut scene);
        let refuses = if is_replaced { scene.disks.len() - 1 } else { slot };
        if !is_replaced {
            let mut superblock = superblock_on(&scene.disks[slot]);
            superblock.member.bad_block_log = None;
            scene.disks[slot].poke(4096, &superblock.encode(512).unwrap());
        }
        let data = superblock_on(&scene.disks[refuses]).member.data_offset.0 * 512;
        scene.disks[refuses].fault(&Fault::UnwritableRange(data..data + 512));
        let all: Vec<usize> = (0..scene.disks.len()).collect();
        crash(&mut scene, &all).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let detail = scene.array.detail();
        assert_eq!(detail.missing, usize::from(!is_replaced), "seed {seed}");
        scene.read_all();
        scene.stop();
    }
}

/// What no 4 KiB can be made of, sectors can: each of two members lacks another.
#[test]
fn a_row_is_made_sector_by_sector() {
    for seed in 0..8 {
        let level = [Level::Raid5, Level::Raid4][low(seed % 2)];
        let mut scene = write_back_scene_of(seed, level, 5, 120, 1 << 20, 1 << 10);
        clients(&mut scene, 2, 40, 40);
        scene.stop();
        let map = scene.geometry().slots(StripeId(0));
        for (slot, sector) in [(map.data_slot(1), 3), (map.data_slot(0), 5)] {
            let at = page(&scene, slot, 0).start / 512 + sector;
            list_as_bad(&scene.disks[slot.index()], [at]);
        }
        scene.reassemble();
        scene.write(0, 8, false).unwrap();
        if seed % 4 < 2 {
            scene.run(async { shard::sleep(3_000_000_000).await });
        } else {
            crash(&mut scene, &(0..6).collect::<Vec<_>>()).unwrap();
            assert_eq!(bad_sectors(&scene), 1);
        }
        scene.read_all();
        assert_eq!(scene.check(), 0);
    }
}

/// However small the ring is, what can't be written out leaves room for whole stripes.
#[test]
fn pages_without_a_place_leave_room_for_the_largest_batch() {
    for seed in 0..16 {
        // A stripe of 4 chunks is 16 pages with parity, and at most 2 meta blocks.
        let blocks = 36 + 2 + 4 * (seed % 8);
        let mut scene = write_back_scene(seed, blocks, 1 << 20, 1 << 10);
        let stripe = u64::from(scene.geometry().stripe_bytes()) / 512;
        for number in 0..6 {
            let map = scene.geometry().slots(StripeId(number));
            let page = |slot| page(&scene, slot, number * CHUNK / 4096);
            for slot in [map.data_slot(1), map.p_slot()] {
                scene.disks[slot.index()].fault(&Fault::UnreadableRange(page(slot)));
            }
            let refused = page(map.data_slot(0));
            scene.disks[map.data_slot(0).index()].fault(&Fault::UnwritableRange(refused));
            let _ = scene.write(stripe * number, 8, false);
        }
        assert!(cached(&scene) > 0);
        let done = spawn(&mut scene, 4, move |number, volume, ledger, _| async move {
            for round in 0..20 {
                write(&volume, &ledger, stripe * (8 + 4 * number + round % 4), stripe, false).await.unwrap();
            }
        });
        scene.world.run_until(STEPS, |_| *done.borrow() == 4).unwrap();
    }
}

/// What a replay keeps has asked for no room: were it set aside for all of it, as for what comes in service,
/// no other write would get any.
#[test]
fn pages_that_a_replay_has_kept_leave_room_for_the_largest_batch() {
    const KEPT: u64 = 20;
    for seed in 0..8 {
        // All are in the log, below the half of it that is given up.
        let journal_sectors = 256 + 8 * (144 + 4 * seed);
        let mut scene = scene(seed, Level::Raid4, 4, InitialSync::AssumeClean, journal_sectors, 1);
        let stripe = u64::from(scene.geometry().stripe_bytes()) / 512;
        let map = scene.geometry().slots(StripeId(0));
        (0..KEPT).for_each(|number| scene.write(stripe * number, 8, true).unwrap());
        for number in 0..KEPT {
            let refused = page(&scene, map.data_slot(0), number * CHUNK / 4096);
            scene.disks[map.data_slot(0).index()].fault(&Fault::UnwritableRange(refused));
        }
        let left: Vec<usize> = (0..5).filter(|disk| *disk != map.data_slot(1).index()).collect();
        crash(&mut scene, &left).unwrap();
        assert_eq!(cached(&scene), 4096 * KEPT);
        let done = spawn(&mut scene, 4, move |number, volume, ledger, _| async move {
            for round in 0..20 {
                write(&volume, &ledger, stripe * (24 + 4 * number + round % 4), stripe, false).await.unwrap();
            }
        });
        scene.world.run_until(STEPS, |_| *done.borrow() == 4).unwrap();
        (0..KEPT).for_each(|number| reads(&mut scene, stripe * number));
    }
}

/// A page without a place goes along with a write that makes its row whole. That write goes in parts, and the
/// next part may wait for room: the page isn't logged again behind the part that has newer bytes of it.
#[test]
fn a_page_that_went_along_with_a_write_is_not_logged_again() {
    const STUCK: u64 = 6;
    let mut through = 0;
    for seed in 0..40 {
        let mut scene = write_back_scene(seed, 80 + 4 * (seed % 8), 1 << 20, 1 << 10);
        let stripe = u64::from(scene.geometry().stripe_bytes()) / 512;
        for number in 0..STUCK {
            let map = scene.geometry().slots(StripeId(number));
            let page = |slot| page(&scene, slot, number * CHUNK / 4096);
            for slot in [map.data_slot(1), map.p_slot()] {
                scene.disks[slot.index()].fault(&Fault::UnreadableRange(page(slot)));
            }
            let refused = page(map.data_slot(0));
            scene.disks[map.data_slot(0).index()].fault(&Fault::UnwritableRange(refused));
            let _ = scene.write(stripe * number, 8, false);
        }
        scene.run(async { shard::sleep(3_000_000_000).await });
        assert!(cached(&scene) > 0);
        // It is refused, for not all can be written out; what comes next is written through all the same.
        set_mode(&mut scene, JournalMode::WriteThrough).unwrap_err();
        spawn(&mut scene, 3, move |number, volume, ledger, _| async move {
            for round in 0.. {
                if write(&volume, &ledger, stripe * (8 + 4 * number + round % 4), stripe, false)
                    .await
                    .is_err()
                {
                    return;
                }
            }
        });
        for number in 0..STUCK {
            through += u64::from(scene.write(stripe * number, CHUNK / 512 + 8, true).is_ok());
        }
        let all: Vec<usize> = (0..scene.disks.len()).collect();
        crash(&mut scene, &all).unwrap();
        (0..STUCK).for_each(|number| reads(&mut scene, stripe * number));
    }
    assert!(through > 100, "{through} writes");
}

/// Of several such pages each is in the journal until the part that it goes along with is written: that may
/// fail behind another one.
#[test]
fn a_page_that_goes_along_with_a_write_is_kept_until_its_own_part_is_written() {
    for seed in 0..8 {
        let mut scene = write_back_scene(seed, 400, 1 << 20, 1 << 10);
        let map = scene.geometry().slots(StripeId(0));
        for row in [0, 2] {
            for slot in [map.data_slot(1), map.p_slot()] {
                scene.disks[slot.index()].fault(&Fault::UnreadableRange(page(&scene, slot, row)));
            }
            let refused = page(&scene, map.data_slot(0), row);
            scene.disks[map.data_slot(0).index()].fault(&Fault::UnwritableRange(refused));
            scene.write(8 * row, 8, false).unwrap();
        }
        scene.run(async { shard::sleep(3_000_000_000).await });
        assert_eq!(cached(&scene), 8192);
        set_mode(&mut scene, JournalMode::WriteThrough).unwrap_err();
        let other = map.data_slot(2);
        scene.disks[other.index()].fault(&Fault::UnreadableRange(page(&scene, other, 2)));
        let written = scene.write(0, 2 * CHUNK / 512, true);
        assert!(matches!(written, Err(IoError::Unreadable { .. })), "{written:?}");
        assert_eq!(cached(&scene), 4096);
        reads(&mut scene, 0);
        reads(&mut scene, 16);
    }
}

/// Readers that hand a claim on to each other don't keep the log from being given up.
#[test]
fn readers_of_a_missing_chunk_do_not_hold_up_the_log() {
    for seed in 0..6 {
        let mut scene = write_back_scene(seed, 90, 1 << 20, 1 << 10);
        scene.write(0, 8, false).unwrap();
        let map = scene.geometry().slots(StripeId(0));
        for _ in 0..3 {
            spawn(&mut scene, 1, |_, volume, _, _| async move {
                loop {
                    volume.read(CHUNK, shard::buffer(4096)).await.0.unwrap();
                    shard::sleep(100).await;
                }
            });
        }
        scene.fail(map.data_slot(1).index());
        let done = spawn(&mut scene, 3, move |number, volume, ledger, mut rng| async move {
            for _ in 0..60 {
                let at = 96 + 200 * number + rng.below(100);
                write(&volume, &ledger, at, rng.pick(&[8, 96]), false).await.unwrap();
            }
        });
        let array = scene.array.clone();
        let is_out = || array.detail().journal.unwrap().cached_bytes == 0;
        scene.world.run_until(STEPS, |_| *done.borrow() == 3 && is_out()).unwrap();
    }
}

/// What is acknowledged stays where it is read from until a member has it.
#[test]
fn a_page_that_its_member_refuses_as_well_stays_in_the_journal() {
    for seed in 0..10 {
        let mut scene = a_row_that_can_not_be_computed(seed);
        let slot = scene.geometry().slots(StripeId(0)).data_slot(0);
        let refused = page(&scene, slot, 0);
        scene.disks[slot.index()].fault(&Fault::UnwritableRange(refused));
        let behind = u64::from(scene.geometry().stripe_bytes()) / 512;
        for round in 0..200 {
            scene.write(behind + round % 64 * 8, 8, false).unwrap();
        }
        scene.run(async { shard::sleep(3_000_000_000).await });
        assert_eq!(cached(&scene), 4096);
        scene.flush().unwrap();
        scene.disks.iter().for_each(|disk| disk.fault(&Fault::Heal));
        scene.read_all();
        is_good_when_it_is_written_whole(&mut scene);
    }
}

/// A page of a member that is out, in a row that can't be computed, is only in the journal. Neither the log
/// nor writes of other stripes that have the same claim wait for it; and written anew as a whole the row is
/// good.
#[test]
fn a_page_without_a_place_holds_up_nothing() {
    for seed in 0..10 {
        let slots = [1, 2, 1 << 10][low(seed % 3)];
        let mut scene = write_back_scene_of(seed, Level::Raid5, 4, 90, 1 << 20, slots);
        scene.write(0, 8, false).unwrap();
        let map = scene.geometry().slots(StripeId(0));
        let unreadable = page(&scene, map.data_slot(1), 0);
        scene.disks[map.data_slot(1).index()].fault(&Fault::UnreadableRange(unreadable));
        let array = scene.array.clone();
        scene.run(async move { array.fail(map.data_slot(0).index()).await }).unwrap();
        let done = spawn(&mut scene, 6, move |number, volume, ledger, mut rng| async move {
            for _ in 0..60 {
                let at = 96 + 200 * number + rng.below(100);
                write(&volume, &ledger, at, rng.pick(&[8, 96]), false).await.unwrap();
            }
        });
        scene.world.run_until(STEPS, |_| *done.borrow() == 6).unwrap();
        assert_eq!(cached(&scene), 4096);
        // Another row of its stripe, and of the same one what can't be without it.
        scene.write(40, 8, false).unwrap();
        assert!(matches!(scene.write(64, 4, false), Err(IoError::Unreadable { .. })));
        assert_eq!(cached(&scene), 4096);
        if seed % 2 == 0 {
            // It comes while another row of the stripe is written.
            let done = spawn(&mut scene, 2, |number, volume, ledger, _| async move {
                let (at, sectors) = [(40, 8), (0, 96)][low(number)];
                write(&volume, &ledger, at, sectors, false).await.unwrap();
            });
            scene.world.run_until(STEPS, |_| *done.borrow() == 2).unwrap();
            assert_eq!(cached(&scene), 0);
            scene.read_all();
        }
        scene.stop();
    }
}

/// The member of a page that is to be written without parity goes in the middle of that: no client hears that
/// the array stops.
#[test]
fn a_page_loses_its_member_while_the_parity_of_its_row_is_listed() {
    for steps in 0..200 {
        let mut scene = a_row_that_can_not_be_computed(steps);
        let slot = scene.geometry().slots(StripeId(0)).data_slot(0).index();
        // What follows goes through the journal, and takes along what is cached of its stripe.
        let array = scene.array.clone();
        scene.world.spawn(0, "mode", async move {
            let _ = array.set_journal_mode(JournalMode::WriteThrough).await;
        });
        let heard = Rc::new(RefCell::new(None));
        let (volume, ledger, told) = (scene.volume(), Rc::clone(&scene.ledger), Rc::clone(&heard));
        scene.world.spawn(0, "write", async move {
            let written = write(&volume, &ledger, 40, 8, false).await;
            *told.borrow_mut() = Some(written);
        });
        let is_listed =
            |disk: &SimDisk| superblock_on(disk).member.bad_block_log.is_some_and(|log| log.in_use);
        let disks = scene.disks.clone();
        let _ =
            scene.world.run_until(STEPS, |_| disks[..5].iter().any(is_listed) || heard.borrow().is_some());
        let _ = scene.world.run_until(1 + steps % 40, |_| false);
        let array = scene.array.clone();
        scene.world.spawn(0, "fail", async move {
            let _ = array.fail(slot).await;
        });
        scene.world.run_until(STEPS, |_| heard.borrow().is_some()).unwrap();
        let heard = heard.borrow().clone().unwrap();
        assert!(matches!(heard, Ok(()) | Err(IoError::Unreadable { .. })), "{steps}: {heard:?}");
    }
}

/// Parity is given up for a page only where its member can say so: one with a full list would be dropped.
#[test]
fn a_page_stays_in_the_journal_where_the_list_of_its_parity_is_full() {
    let mut scene = write_back_scene(0, 400, 1 << 20, 1 << 10);
    scene.stop();
    let map = scene.geometry().slots(StripeId(0));
    // Every other sector, far from the row.
    let first = page(&scene, map.p_slot(), 40).start / 512;
    list_as_bad(&scene.disks[map.p_slot().index()], (0..512).map(|entry| first + 2 * entry));
    scene.reassemble();
    scene.write(0, 8, false).unwrap();
    for slot in [map.data_slot(1), map.p_slot()] {
        scene.disks[slot.index()].fault(&Fault::UnreadableRange(page(&scene, slot, 0)));
    }
    let kept = set_mode(&mut scene, JournalMode::WriteThrough).unwrap_err();
    assert!(kept.to_string().contains("something stays in the journal alone"), "{kept}");
    assert_eq!((cached(&scene), scene.array.detail().missing), (4096, 0));
    reads(&mut scene, 0);
    scene.stop();
}

/// A page is refused by its member, with parity that is refused as well, while others take all the room that
/// is not set aside. It must not wait for room that it holds itself.
#[test]
fn a_page_that_is_refused_again_and_again_does_not_wait_for_its_own_room() {
    for seed in 0..12 {
        let mut scene = write_back_scene(seed, 40 + 2 * (seed % 6), 4096, 1 << 10);
        scene.write(0, 8, false).unwrap();
        assert_eq!(cached(&scene), 4096);
        let map = scene.geometry().slots(StripeId(0));
        for slot in [map.data_slot(0), map.p_slot()] {
            let refused = page(&scene, slot, 0);
            scene.disks[slot.index()].fault(&Fault::UnwritableRange(refused));
        }
        let done = spawn(&mut scene, 12, |number, volume, ledger, mut rng| async move {
            for _ in 0..40 {
                let at = 96 * (1 + number) + rng.below(80);
                write(&volume, &ledger, at, 8, false).await.unwrap();
            }
        });
        scene.world.run_until(STEPS, |_| *done.borrow() == 12).unwrap();
        reads(&mut scene, 0);
        scene.stop();
    }
}

/// The page that is written needn't be read: with it the row's parity can be made.
#[test]
fn parity_that_can_be_computed_is_not_given_up() {
    let mut scene = a_row_that_can_not_be_computed(0);
    let slots = scene.geometry().slots(StripeId(0));
    scene.write(8, 8, false).unwrap();
    for slot in [slots.data_slot(0), slots.p_slot()] {
        let unreadable = page(&scene, slot, 1);
        scene.disks[slot.index()].fault(&Fault::UnreadableRange(unreadable));
    }
    set_mode(&mut scene, JournalMode::WriteThrough).unwrap();
    assert_eq!((cached(&scene), bad_sectors(&scene)), (0, 8));
    only_the_unreadable_page_is_lost(&mut scene);
}

/// Without a log of bad blocks there is no way to tell that a row has no parity.
#[test]
fn nothing_is_acknowledged_from_the_journal_where_a_member_can_not_list_bad_blocks() {
    let mut scene = write_back_scene(0, 400, 1 << 20, 1 << 10);
    scene.stop();
    let mut superblock = superblock_on(&scene.disks[2]);
    superblock.member.bad_block_log = None;
    scene.disks[2].poke(4096, &superblock.encode(512).unwrap());
    scene.reassemble();
    assert_eq!(scene.array.journal_mode(), Some(JournalMode::WriteThrough));
    assert!(matches!(set_mode(&mut scene, JournalMode::WriteBack), Err(CommandError::Policy(_))));
    scene.write(0, 8, false).unwrap();
    assert_eq!(cached(&scene), 0);
    scene.read_all();
}

/// P is wrong, a write of its row goes on from it and is in the journal, and then it is put right. What a
/// check finds after a crash.
fn wrong_after_a_repair(seed: u64, level: Level, action: ScrubAction, mode: JournalMode) -> u64 {
    const STRIPE: StripeId = StripeId(1);
    let options = ArrayOptions { gather_ns: 0, policy: WritePolicy::AlwaysRmw, ..options() };
    let shards = 1 + usize::try_from(seed % 2).unwrap();
    let members = 7;
    let mut scene =
        try_scene(seed, level, members, InitialSync::AssumeClean, 256 + 8 * 600, shards, options).unwrap();
    let geometry = scene.geometry();
    let stripe_sectors = u64::from(geometry.stripe_bytes()) / 512;
    for stripe in 0..4 {
        scene.write(stripe * stripe_sectors, stripe_sectors, false).unwrap();
    }
    scene.stop();
    let p = geometry.slots(STRIPE).p_slot().index();
    let data = superblock_on(&scene.disks[p]).member.data_offset.0 * 512;
    scene.disks[p].poke(data + geometry.member_offset(STRIPE), &[0x5a; 512]);
    scene.options.journal_mode = mode;
    scene.reassemble();
    // In the row, and in another of its stripe.
    for at in [0, 40] {
        scene.write(stripe_sectors + at, 1 + seed % 8, true).unwrap();
    }
    assert_eq!(cached(&scene) > 0, mode == JournalMode::WriteBack);
    let (array, request) = (scene.array.clone(), ScrubRequest { action, ..ScrubRequest::default() });
    let report = scene.run(async move { array.scrub(request).await }).unwrap();
    let corrected = u64::from(action == ScrubAction::Locate);
    assert_eq!((report.mismatched_sectors, report.corrected_sectors), (8, corrected));
    scene.write(3 * stripe_sectors, 8, true).unwrap();
    crash(&mut scene, &(0..=usize::from(members)).collect::<Vec<_>>()).unwrap();
    let wrong = scene.check();
    scene.read_all();
    wrong
}

#[test]
fn a_journal_does_not_bring_back_the_parity_that_was_put_right() {
    for seed in 0..8 {
        for mode in [JournalMode::WriteThrough, JournalMode::WriteBack] {
            assert_eq!(wrong_after_a_repair(seed, Level::Raid5, ScrubAction::Repair, mode), 0, "seed {seed}");
            assert_eq!(wrong_after_a_repair(seed, Level::Raid6, ScrubAction::Repair, mode), 0, "seed {seed}");
            assert_eq!(wrong_after_a_repair(seed, Level::Raid6, ScrubAction::Locate, mode), 0, "seed {seed}");
        }
    }
}

/// Each of the journal's deliberate defects is found: by a byte that is wrong, or by parity that doesn't
/// match.
#[cfg(feature = "mutants")]
#[test]
fn every_defect_of_the_journal_is_found() {
    use crate::arrays::defects::find;
    use pinstripe_engine::mutants::Mutant;
    let through = |seed| crashes(seed, JournalMode::WriteThrough);
    let back = |seed| crashes(seed, JournalMode::WriteBack);
    let repaired = |seed| {
        let wrong = wrong_after_a_repair(seed, Level::Raid5, ScrubAction::Repair, JournalMode::WriteThrough);
        assert_eq!(wrong, 0);
    };
    let scenes: [(Mutant, &dyn Fn(u64)); 12] = [
        (Mutant::TailBeforeFlush, &through),
        (Mutant::JournalAfterMembers, &through),
        (Mutant::JournalWithoutParity, &through),
        (Mutant::ReplayStopsEarly, &through),
        (Mutant::JournalChecksumIgnored, &through),
        (Mutant::JournalLossIgnored, &comes_back_stale),
        (Mutant::RepairPastJournal, &repaired),
        (Mutant::AcknowledgedFromMemory, &back),
        (Mutant::CachedLeftBehind, &back),
        (Mutant::CacheNotRead, &back),
        (Mutant::TailPassesCached, &back),
        (Mutant::JournalLeftUnflushed, &a_journal_goes_and_power_fails),
    ];
    for (mutant, scene) in scenes {
        let found = find(mutant, 400, scene);
        println!("{mutant:?}: seed {}", found.unwrap_or_else(|| panic!("{mutant:?} survives")));
    }
}
