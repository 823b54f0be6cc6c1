//! Our own journal in the simulated world: crashes at any step, members lost with them, a journal that runs full or fails.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod arrays;

use std::{cell::RefCell, rc::Rc, sync::Arc};

use arrays::{
    STEPS, assemble, options,
    scene::{Scene, client, clients, spawn, superblock_on, wish, write},
};
use pinstripe_engine::{
    assembly::{AssembleError, JournalProblem},
    create::{CreateError, create_placed},
    error::IoError,
    options::ArrayOptions,
};
use pinstripe_md::{
    identity::Uuid,
    level::Level,
    placement::{InitialSync, NewBitmap, NewDevice, journal::add_journal},
    superblock::{ResyncOffset, Role},
};
use pinstripe_runtime::{Device, DeviceSource, ZeroedReads, shard};
use pinstripe_sim::{Fault, Ledger, Rng, SimDisk, SimDiskConfig, World, WorldConfig};

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
    let mut rng = world.rng(77);
    let disks: Vec<SimDisk> = (0..)
        .zip(sizes)
        .map(|(i, sectors)| {
            let config = SimDiskConfig::drawn(&mut rng, &format!("disk{i}"), sectors * 512);
            world.add_disk(SimDiskConfig { volatile_cache: true, ..config })
        })
        .collect();
    let mut placed = wish.place().unwrap();
    add_journal(&mut placed, NewDevice { sectors: journal_sectors, uuid: Uuid([0x4a; 16]) }, 512).unwrap();
    let devices = disks.clone();
    world
        .block_on(0, "create", STEPS, async move {
            let devices: Vec<_> = devices.iter().map(SimDisk::attach).collect();
            create_placed(placed, &devices).await
        })
        .unwrap()?;
    let sources = disks.iter().map(SimDisk::source).collect();
    let array = assemble(&mut world, sources, options.clone()).unwrap();
    let ledger = Rc::new(RefCell::new(Ledger::new(array.volume().size() / 512)));
    Ok(Scene { world, disks, array, ledger, options })
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

/// A crash at any step, within recovery too, and members lost with it: what was acknowledged and durable is there, and
/// what nobody wrote has not changed.
#[test]
fn no_crash_loses_a_byte_even_if_members_are_lost_with_it() {
    for seed in 0..160 {
        let (level, members) = [(Level::Raid5, 4), (Level::Raid6, 5), (Level::Raid4, 3), (Level::Raid5, 3)]
            [usize::try_from(seed % 4).unwrap()];
        let redundancy = if level == Level::Raid6 { 2 } else { 1 };
        let mut scene = scene(
            seed,
            level,
            members,
            InitialSync::AssumeClean,
            256 + 2400,
            1 + usize::try_from(seed % 2).unwrap(),
        );
        let mut rng = scene.world.rng(5);
        let members = usize::from(members);
        for _ in 0..1 + rng.below(2) {
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
}
