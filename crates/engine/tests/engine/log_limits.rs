//! Logs at their limits: more than two meta blocks at once, a start without them, one that waits for a
//! resync, blocks of another length, and sectors that are listed as bad.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use crate::arrays::{
    STEPS, assemble, options,
    scene::{DATA_SECTOR, Scene, lay_out, list_as_bad, plain_disks, spawn, superblock_on, wish, write},
};
use pinstripe_engine::{
    geometry::{MemberSlot, StripeId},
    maintenance::{ScrubAction, ScrubRequest},
    options::ArrayOptions,
};
use pinstripe_md::{
    identity::Uuid,
    level::Level,
    placement::{InitialSync, NewArray, NewBitmap, NewDevice, NewLog, journal::add_journal},
    units::Sector,
};
use pinstripe_runtime::{DeviceSource, shard};
use pinstripe_sim::{Fault, SimDiskConfig, World, WorldConfig};

/// Power is lost, and the array is started from `disks`.
fn crash(scene: &mut Scene, disks: &[usize]) {
    scene.world.crash();
    scene.ledger.borrow_mut().crash();
    let sources: Vec<Arc<dyn DeviceSource>> = disks.iter().map(|&i| scene.disks[i].source()).collect();
    scene.array = assemble(&mut scene.world, sources, scene.options.clone()).unwrap();
}

/// Where a stripe's chunk begins on a disk.
fn place(scene: &Scene, slot: MemberSlot, stripe: StripeId) -> u64 {
    let data = superblock_on(&scene.disks[slot.index()]).member.data_offset.0 * 512;
    data + scene.geometry().member_offset(stripe)
}

/// A RAID5 of four members with a journal of so many blocks on the last disk.
fn journal_scene(seed: u64, chunk: u64, stripes: u64, blocks: u64) -> Scene {
    let mut world = World::new(WorldConfig { arena_bytes: 16 << 20, ..WorldConfig::new(seed, 1) });
    let sectors = DATA_SECTOR + stripes * chunk / 512;
    let wish = NewArray {
        members: (1..=4).map(|i| NewDevice { sectors, uuid: Uuid([i; 16]) }).collect(),
        ..wish(Level::Raid5, 4, chunk, NewBitmap::None, InitialSync::AssumeClean)
    };
    let journal = NewDevice { sectors: DATA_SECTOR + 8 * blocks, uuid: Uuid([0x4a; 16]) };
    let disks = plain_disks(&mut world, [sectors, sectors, sectors, sectors, journal.sectors]);
    let mut placed = wish.place().unwrap();
    add_journal(&mut placed, journal, 512).unwrap();
    lay_out(&mut world, placed, &disks).unwrap();
    Scene::over(world, disks, 5, ArrayOptions { gather_ns: 0, ..options() })
}

/// Full stripes of 512 pages, each of three meta blocks, in a ring that has hardly room for two of them.
#[test]
fn the_tail_does_not_pass_a_group_that_is_still_being_logged() {
    const CHUNK: u64 = 512 << 10;
    const STRIPE: u64 = 3 * CHUNK / 512;
    for seed in 0..60 {
        let mut scene = journal_scene(seed, CHUNK, 4, 1100);
        let mut rng = scene.world.rng(9);
        for number in 0..2 {
            let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
            let mut rng = scene.world.rng(number);
            scene.world.spawn(0, "writer", async move {
                loop {
                    shard::sleep(rng.below(500_000)).await;
                    if write(&volume, &ledger, number * STRIPE, STRIPE, false).await.is_err() {
                        return;
                    }
                }
            });
        }
        let _ = scene.world.run_until(50 + rng.below(400), |_| false);
        crash(&mut scene, &[0, 1, 2, 3, 4]);
        assert_eq!(scene.check(), 0, "seed {seed}");
        scene.read_all();
    }
}

/// One sector of each page of a member is listed as bad, and still refused.
#[test]
fn a_listed_sector_that_is_still_refused_does_not_keep_a_journal_from_its_replay() {
    for seed in 0..8 {
        let mut scene = journal_scene(seed, 16 << 10, 16, 400);
        for number in 0..4 {
            let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
            let mut rng = scene.world.rng(number);
            scene.world.spawn(0, "writer", async move {
                while write(&volume, &ledger, rng.below(700), 1 + rng.below(60), false).await.is_ok() {}
            });
        }
        let _ = scene.world.run_until(2000, |_| false);
        let disk = scene.disks[1].clone();
        scene.world.crash();
        scene.ledger.borrow_mut().crash();
        let bad = (0..256).step_by(8).map(|page| DATA_SECTOR + page + 3);
        list_as_bad(&disk, bad.clone());
        bad.for_each(|sector| disk.fault(&Fault::UnwritableRange(sector * 512..sector * 512 + 512)));
        scene.reassemble();
        assert_eq!(scene.array.detail().missing, 0, "seed {seed}");
        scene.read_all();
        assert_eq!(scene.check(), 0, "seed {seed}");
    }
}

/// The journal is lost with the crash. In a half-written row, a chunk that was not written can't be read.
#[test]
fn forced_without_its_journal_an_array_makes_nothing_of_torn_rows() {
    const CHUNK: u64 = 16 << 10;
    let mut scene = journal_scene(3, CHUNK, 16, 400);
    let sectors = scene.volume().size() / 512;
    for at in (0..sectors).step_by(96) {
        scene.write(at, 96, false).unwrap();
    }
    scene.stop();
    let map = scene.geometry().slots(StripeId(0));
    let [written, unwritten] = [0, 1].map(|column| map.data_slot(column));
    scene.disks[written.index()].poke(place(&scene, written, StripeId(0)), &[0xee; 4096]);
    let latent = place(&scene, unwritten, StripeId(0));
    scene.disks[unwritten.index()].fault(&Fault::UnreadableRange(latent..latent + 4096));
    scene.options.force = true;
    crash(&mut scene, &[0, 1, 2, 3]);
    let volume = scene.volume();
    let read = scene.run(async move { volume.read(CHUNK, shard::buffer(4096)).await.0 });
    assert!(read.is_err(), "it was made of data and parity of different ages");
}

/// A RAID6 with the double-parity log; the first disk has blocks of `block` bytes, the others of 512.
fn logged_scene(seed: u64, members: u8, chunk: u64, block: u32) -> Scene {
    logged_scene_with_data_at(4096, seed, members, chunk, block)
}

/// The same with what is before `data_sector` for superblock and log.
fn logged_scene_with_data_at(data_sector: u64, seed: u64, members: u8, chunk: u64, block: u32) -> Scene {
    let mut world = World::new(WorldConfig { arena_bytes: 16 << 20, ..WorldConfig::new(seed, 1) });
    let wish = NewArray {
        members: (1..=members).map(|i| NewDevice { sectors: 8192, uuid: Uuid([i; 16]) }).collect(),
        data_offset: Some(Sector(data_sector)),
        logical_block_bytes: block.into(),
        ..wish(Level::Raid6, members, chunk, NewBitmap::None, InitialSync::AssumeClean)
    };
    let disk = |i| SimDiskConfig {
        logical_block: if i == 0 { block } else { 512 },
        ..SimDiskConfig::new(&format!("disk{i}"), 8192 * 512)
    };
    let disks: Vec<_> = (0..members).map(|i| world.add_disk(disk(i))).collect();
    lay_out(&mut world, wish.place_with(NewLog::DoubleParity).unwrap(), &disks).unwrap();
    Scene::over(world, disks, members.into(), ArrayOptions { gather_ns: 0, ..options() })
}

/// The only member with long blocks is lost with a crash, and the next start finds short ones alone. Returns
/// how many blocks of 4 KiB read wrong then, of those that were not being written.
fn wrong_without_the_long_blocks(seed: u64) -> usize {
    const CHUNK: u64 = 16 << 10;
    let mut scene = logged_scene(seed, 5, CHUNK, 4096);
    let blocks = 3 * 16 * CHUNK / 4096;
    let pattern = |block: u64| [u8::try_from(block % 251).unwrap() | 1; 4096];
    let volume = scene.volume();
    scene.run(async move {
        for block in 0..blocks {
            let mut data = shard::buffer(4096);
            data.copy_from_slice(&pattern(block));
            volume.write(block * 4096, data.freeze(), false).await.unwrap();
        }
        volume.flush().await.unwrap();
    });
    for number in 0..6 {
        let (volume, mut rng) = (scene.volume(), scene.world.rng(number));
        scene.world.spawn(0, "writer", async move {
            loop {
                let mut data = shard::buffer(4096);
                rng.fill(&mut data);
                let block = rng.below(blocks / 5) * 5;
                if volume.write(block * 4096, data.freeze(), false).await.is_err() {
                    return;
                }
            }
        });
    }
    let steps = 200 + scene.world.rng(9).below(400);
    let _ = scene.world.run_until(steps, |_| false);
    crash(&mut scene, &[1, 2, 3, 4]);
    let volume = scene.volume();
    scene.run(async move {
        let mut wrong = 0;
        for block in (0..blocks).filter(|block| block % 5 != 0) {
            let (result, bytes) = volume.read(block * 4096, shard::buffer(4096)).await;
            wrong += usize::from(result.is_err() || bytes[..] != pattern(block));
        }
        wrong
    })
}

#[test]
fn a_log_is_replayed_without_the_member_whose_blocks_were_the_longest() {
    for seed in 0..20 {
        assert_eq!(wrong_without_the_long_blocks(seed), 0, "seed {seed}");
    }
}

/// P is damaged, a write of its row goes on from it, and then it is put right.
#[test]
fn a_log_does_not_bring_back_the_parity_that_was_put_right() {
    const CHUNK: u64 = 16 << 10;
    const STRIPE: StripeId = StripeId(1);
    let mut scene = logged_scene(5, 7, CHUNK, 512);
    let stripe_sectors = 5 * CHUNK / 512;
    for stripe in 0..4 {
        scene.write(stripe * stripe_sectors, stripe_sectors, false).unwrap();
    }
    scene.stop();
    let p = scene.geometry().slots(STRIPE).p_slot();
    scene.disks[p.index()].poke(place(&scene, p, STRIPE), &[0x5a; 512]);
    scene.reassemble();
    scene.write(stripe_sectors, 8, false).unwrap();
    let array = scene.array.clone();
    let locate = ScrubRequest { action: ScrubAction::Locate, ..ScrubRequest::default() };
    let report = scene.run(async move { array.scrub(locate).await }).unwrap();
    assert_eq!((report.corrected_sectors, report.unexplained_sectors), (1, 0));
    scene.write(3 * stripe_sectors, 8, false).unwrap();
    crash(&mut scene, &[0, 1, 2, 3, 4, 5, 6]);
    assert_eq!(scene.check(), 0);
    scene.read_all();
}

/// Right after a start no log has begun, and a repair doesn't wait for the write that has it begin.
#[test]
fn a_repair_before_the_first_write_ends_and_holds_up_no_write() {
    const CHUNK: u64 = 16 << 10;
    const STRIPE: StripeId = StripeId(1);
    for (level, log, action, is_written) in [
        (Level::Raid6, NewLog::DoubleParity, ScrubAction::Locate, false),
        (Level::Raid6, NewLog::DoubleParity, ScrubAction::Repair, true),
        (Level::Raid5, NewLog::Ppl, ScrubAction::Repair, false),
        (Level::Raid5, NewLog::Ppl, ScrubAction::Repair, true),
    ] {
        let wish = NewArray {
            members: (1..=7).map(|i| NewDevice { sectors: 8192, uuid: Uuid([i; 16]) }).collect(),
            data_offset: Some(Sector(4096)),
            ..wish(level, 7, CHUNK, NewBitmap::None, InitialSync::AssumeClean)
        };
        let mut scene = Scene::with_log(World::new(WorldConfig::new(5, 1)), &wish, log, options());
        let stripe_sectors = u64::from(scene.geometry().stripe_bytes()) / 512;
        for stripe in 0..4 {
            scene.write(stripe * stripe_sectors, stripe_sectors, false).unwrap();
        }
        scene.stop();
        let p = scene.geometry().slots(STRIPE).p_slot();
        scene.disks[p.index()].poke(place(&scene, p, STRIPE), &[0x5a; 512]);
        scene.reassemble();
        let (array, report) = (scene.array.clone(), Rc::new(RefCell::new(None)));
        let told = Rc::clone(&report);
        scene.world.spawn(0, "scrub", async move {
            *told.borrow_mut() = Some(array.scrub(ScrubRequest { action, ..ScrubRequest::default() }).await);
        });
        if is_written {
            scene.write(stripe_sectors, 8, false).unwrap();
        }
        scene.world.run_until(STEPS, |_| report.borrow().is_some()).unwrap();
        let found = report.take().unwrap().unwrap();
        assert!(found.mismatched_sectors > 0 && found.unexplained_sectors == 0, "{level}: {found:?}");
        crash(&mut scene, &[0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(scene.check(), 0);
        scene.read_all();
    }
}

/// One sector here and one there, so that each sector of the chunk is another run: twice as many as those of
/// one column.
#[test]
fn a_batch_that_the_log_has_no_room_for_is_written_in_parts() {
    const CHUNK: u64 = 32 << 10;
    const SECTORS: u64 = CHUNK / 512;
    for seed in 0..12 {
        // The log has room for every other sector of one column, and little more.
        let mut scene = logged_scene_with_data_at(208, seed, 5, CHUNK, 512);
        assert_eq!(scene.array.consistency_policy(), "double-parity-log");
        scene.write(0, 3 * SECTORS, false).unwrap();
        let done = spawn(&mut scene, SECTORS, |number, volume, ledger, _| async move {
            write(&volume, &ledger, number % 2 * SECTORS + number, 1, false).await.unwrap();
        });
        if seed % 4 == 0 {
            scene.world.run_until(STEPS, |_| *done.borrow() == SECTORS).unwrap();
            assert!(scene.array.detail().statistics.joins > SECTORS / 2);
            scene.read_all();
            crash(&mut scene, &[0, 2, 4]);
            scene.read_all();
        } else {
            let _ = scene.world.run_until(60 * seed, |_| false);
            crash(&mut scene, &[0, 1, 2, 3, 4]);
            assert_eq!(scene.array.detail().regions_to_resync, 0, "seed {seed}");
            assert_eq!(scene.check(), 0, "seed {seed}");
            scene.read_all();
        }
    }
}

const STRIPE_SECTORS: u64 = 5 * (16 << 10) / 512;

/// Of seven members and chunks of 16 KiB, all stripes of which are written.
fn written_scene() -> Scene {
    let mut scene = logged_scene(7, 7, 16 << 10, 512);
    for stripe in 0..64 {
        scene.write(stripe * STRIPE_SECTORS, STRIPE_SECTORS, false).unwrap();
    }
    scene
}

/// Begins a write; it may take as long as it likes.
fn begin(scene: &mut Scene, sector: u64, sectors: u64) {
    let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
    scene.world.spawn(0, "held up", async move {
        write(&volume, &ledger, sector, sectors, false).await.unwrap();
    });
}

/// How long a write takes, in nanoseconds.
fn time_of(scene: &mut Scene, sector: u64, sectors: u64) -> u64 {
    let begun = scene.world.now();
    scene.write(sector, sectors, false).unwrap();
    scene.world.now() - begun
}

fn pause(scene: &mut Scene) {
    scene.run(async { shard::sleep(5_000_000).await });
}

/// Two stripes with the same P and the same Q. The one that comes first waits for one of its data members.
#[test]
fn a_stripe_that_waits_for_a_member_keeps_no_other_out_of_the_log() {
    let mut scene = written_scene();
    let [first, second] = [0, 7].map(|stripe| scene.geometry().slots(StripeId(stripe)));
    assert_eq!((first.p_slot(), first.q_slot()), (second.p_slot(), second.q_slot()));
    let disk = scene.disks[first.data_slot(0).index()].clone();
    disk.fault(&Fault::Hang);
    begin(&mut scene, 0, STRIPE_SECTORS);
    pause(&mut scene);
    let took = time_of(&mut scene, 7 * STRIPE_SECTORS + 32, 8);
    disk.fault(&Fault::Release);
    pause(&mut scene);
    assert!(took < 100_000_000, "{took} ns");
}

/// Decision 17. Many writes are under way that may come, and wait for a member before they could.
#[test]
fn a_record_waits_for_others_no_longer_than_a_few_writes_take() {
    let mut scene = written_scene();
    let disk = scene.disks[3].clone();
    disk.fault(&Fault::Hang);
    let column_of = |scene: &Scene, stripe| {
        let map = scene.geometry().slots(StripeId(stripe));
        (0..5).find(|&column| map.data_slot(column).index() == 3).map(|column| column as u64)
    };
    for stripe in 1..50 {
        if let Some(column) = column_of(&scene, stripe) {
            begin(&mut scene, stripe * STRIPE_SECTORS + column * 32, 1);
        }
    }
    pause(&mut scene);
    let stripe = (50..60).find(|&stripe| column_of(&scene, stripe).is_some_and(|column| column > 0)).unwrap();
    let took = time_of(&mut scene, stripe * STRIPE_SECTORS, 1);
    disk.fault(&Fault::Release);
    pause(&mut scene);
    assert!(took < 100_000_000, "{took} ns");
}
