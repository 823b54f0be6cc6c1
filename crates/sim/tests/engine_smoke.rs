//! The engine in the simulated world, one fixed scene per test: the first thing to look at when the swarm is
//! red.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{cell::RefCell, rc::Rc, sync::Arc};

use pinstripe_engine::{
    array::{Added, Array},
    assembly::create::create,
    io::volume::Volume,
    options::ArrayOptions,
};
use pinstripe_md::{
    identity::{SetName, Timestamp, Uuid},
    level::{Layout, Level, ParityLayout},
    placement::{InitialSync, NewArray, NewBitmap, NewDevice},
    superblock::MetadataVersion,
    units::{Sector, SectorCount},
};
use pinstripe_runtime::{DeviceSource, shard};
use pinstripe_sim::{Fault, Ledger, Rng, SimDisk, SimDiskConfig, World, WorldConfig};

const MEMBER_BYTES: u64 = 1 << 20;
const STEPS: u64 = 3_000_000;

fn wish(level: Level, members: u8, chunk: u64, bitmap: NewBitmap, initial: InitialSync) -> NewArray {
    let layout = if level == Level::Raid4 {
        Layout::None
    } else {
        Layout::Parity(ParityLayout::from_name(level, "left-symmetric").unwrap())
    };
    NewArray {
        set_uuid: Uuid([7; 16]),
        name: SetName::from_bytes([b'x'; 32]),
        created: Timestamp::new(1, 0),
        level,
        layout,
        chunk: SectorCount(chunk / 512),
        version: MetadataVersion::V1_2,
        bitmap,
        initial,
        size: None,
        data_offset: Some(Sector(256)),
        logical_block_bytes: 512,
        members: (0..members)
            .map(|i| NewDevice { sectors: MEMBER_BYTES / 512, uuid: Uuid([i + 1; 16]) })
            .collect(),
        spares: vec![],
    }
}

struct Scene {
    world: World,
    disks: Vec<SimDisk>,
    array: Array,
    ledger: Rc<RefCell<Ledger>>,
}

fn options() -> ArrayOptions {
    ArrayOptions { wall_clock: || 1, parity_cache_bytes: 256 << 10, ..ArrayOptions::default() }
}

fn assemble(world: &mut World, disks: &[SimDisk], options: ArrayOptions) -> Array {
    let sources: Vec<Arc<dyn DeviceSource>> = disks.iter().map(SimDisk::source).collect();
    let shards = (0..world.shards()).map(|i| world.shard(i).handle()).collect();
    world
        .block_on(0, "assemble", STEPS, async move { Array::assemble(sources, options, shards).await })
        .unwrap()
        .unwrap()
}

fn scene(seed: u64, wish: NewArray, shards: usize) -> Scene {
    let mut world = World::new(WorldConfig::new(seed, shards));
    let disks: Vec<SimDisk> = (0..wish.members.len())
        .map(|i| world.add_disk(SimDiskConfig::new(&format!("disk{i}"), MEMBER_BYTES)))
        .collect();
    let devices: Vec<SimDisk> = disks.clone();
    world
        .block_on(0, "create", STEPS, async move {
            let devices: Vec<_> = devices.iter().map(SimDisk::attach).collect();
            create(&wish, &devices).await
        })
        .unwrap()
        .unwrap();
    let array = assemble(&mut world, &disks, options());
    let ledger = Rc::new(RefCell::new(Ledger::new(array.volume().size() / 512)));
    Scene { world, disks, array, ledger }
}

/// Random reads, writes and flushes on one shard.
async fn client(
    volume: Volume,
    ledger: Rc<RefCell<Ledger>>,
    mut rng: Rng,
    operations: u64,
    sectors_max: u64,
) {
    let sectors = volume.size() / 512;
    for _ in 0..operations {
        let length = 1 + rng.below(sectors_max);
        let at = rng.below(sectors - length);
        match rng.below(10) {
            0 => {
                let id = ledger.borrow_mut().begin_flush();
                let result = volume.flush().await;
                ledger.borrow_mut().complete_flush(id, result.is_ok());
            }
            1..=3 => {
                let id = ledger.borrow_mut().begin_read(at..at + length);
                let (result, buffer) =
                    volume.read(at * 512, shard::buffer(usize::try_from(length).unwrap() * 512)).await;
                result.unwrap();
                ledger.borrow_mut().check_read(id, &buffer).unwrap();
            }
            _ => {
                let mut data = shard::buffer(usize::try_from(length).unwrap() * 512);
                let fua = rng.below(8) == 0;
                let id = ledger.borrow_mut().begin_write(at, &mut data, fua);
                let result = volume.write(at * 512, data.freeze(), fua).await;
                ledger.borrow_mut().complete_write(id, result.is_ok());
                result.unwrap();
            }
        }
    }
}

impl Scene {
    fn load(&mut self, clients: u64, operations: u64) {
        let done = Rc::new(RefCell::new(0));
        for number in 0..clients {
            let (shared, ledger, done) =
                (Arc::clone(self.array.shared()), Rc::clone(&self.ledger), Rc::clone(&done));
            let rng = self.world.rng(number);
            let shard = usize::try_from(number).unwrap() % self.world.shards();
            self.world.spawn(shard, "client", async move {
                client(Volume::new(shared), ledger, rng, operations, 200).await;
                *done.borrow_mut() += 1;
            });
        }
        self.world.run_until(STEPS, |_| *done.borrow() == clients).unwrap();
    }

    fn read_all(&mut self) {
        let (volume, ledger) = (self.array.volume().clone(), Rc::clone(&self.ledger));
        self.world
            .block_on(0, "read all", STEPS, async move {
                let sectors = volume.size() / 512;
                for at in (0..sectors).step_by(64) {
                    let length = 64.min(sectors - at);
                    let id = ledger.borrow_mut().begin_read(at..at + length);
                    let (result, buffer) =
                        volume.read(at * 512, shard::buffer(usize::try_from(length).unwrap() * 512)).await;
                    result.unwrap();
                    ledger.borrow_mut().check_read(id, &buffer).unwrap();
                }
            })
            .unwrap();
    }

    /// Reads every sector that was ever written.
    fn read_written(&mut self) {
        let (volume, ledger) = (self.array.volume().clone(), Rc::clone(&self.ledger));
        let sectors: Vec<u64> = ledger.borrow().written().collect();
        self.world
            .block_on(0, "read written", STEPS, async move {
                for at in sectors {
                    let id = ledger.borrow_mut().begin_read(at..at + 1);
                    let (result, buffer) = volume.read(at * 512, shard::buffer(512)).await;
                    result.unwrap();
                    ledger.borrow_mut().check_read(id, &buffer).unwrap();
                }
            })
            .unwrap();
    }

    fn check(&mut self) -> u64 {
        let array = self.array.clone();
        let report =
            self.world.block_on(0, "check", STEPS, async move { array.check().await }).unwrap().unwrap();
        assert_eq!(report.unreadable_stripes, 0);
        report.mismatched_sectors
    }

    fn stop(&mut self) {
        let array = self.array.clone();
        self.world.block_on(0, "stop", STEPS, async move { array.stop().await }).unwrap().unwrap();
    }

    fn reassemble(&mut self) {
        self.array = assemble(&mut self.world, &self.disks, options());
    }
}

const BITMAP: NewBitmap = NewBitmap::Internal { chunk_bytes: Some(65536) };

#[test]
fn healthy_arrays_hold_what_was_written_and_their_parity_matches() {
    for (seed, level, members) in [(1, Level::Raid5, 4), (2, Level::Raid6, 5), (3, Level::Raid4, 3)] {
        let mut scene = scene(seed, wish(level, members, 16 << 10, BITMAP, InitialSync::AssumeClean), 2);
        scene.load(6, 60);
        scene.read_all();
        assert_eq!(scene.check(), 0, "{level}");
        scene.stop();
        scene.reassemble();
        scene.read_all();
    }
}

#[test]
fn a_new_array_is_resynced_in_the_background_while_it_is_written() {
    let mut scene = scene(11, wish(Level::Raid6, 6, 4 << 10, NewBitmap::None, InitialSync::Resync), 2);
    scene.load(4, 40);
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().regions_to_resync == 0).unwrap();
    scene.read_all();
    assert_eq!(scene.check(), 0);
}

#[test]
fn a_member_may_go_under_load_and_another_takes_its_place() {
    for seed in 20..24 {
        let mut scene = scene(seed, wish(Level::Raid5, 4, 16 << 10, BITMAP, InitialSync::AssumeClean), 2);
        scene.load(4, 20);
        scene.disks[1].fault(&Fault::Gone);
        scene.load(4, 40);
        assert_eq!(scene.array.detail().missing, 1);
        scene.read_all();
        let spare = scene.world.add_disk(SimDiskConfig::new("spare", MEMBER_BYTES));
        scene.disks[1] = spare.clone();
        let array = scene.array.clone();
        let slot = scene
            .world
            .block_on(0, "add", STEPS, async move { array.add(spare.source(), Uuid([99; 16])).await })
            .unwrap()
            .unwrap();
        assert_eq!(slot, Added::Full { slot: 1 });
        scene.load(4, 40);
        let array = scene.array.clone();
        scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();
        scene.read_all();
        assert_eq!(scene.check(), 0);
        scene.stop();
        scene.reassemble();
        assert_eq!(scene.array.detail().missing, 0);
        scene.read_all();
    }
}

#[test]
fn a_crash_in_the_middle_of_writes_loses_nothing_that_was_promised() {
    for seed in 40..48 {
        let mut scene = scene(seed, wish(Level::Raid5, 4, 16 << 10, BITMAP, InitialSync::AssumeClean), 2);
        scene.load(4, 10);
        for number in 0..6 {
            let (shared, ledger) = (Arc::clone(scene.array.shared()), Rc::clone(&scene.ledger));
            let rng = scene.world.rng(100 + number);
            scene.world.spawn(usize::try_from(number).unwrap() % 2, "client", async move {
                client(Volume::new(shared), ledger, rng, 1000, 60).await;
            });
        }
        let steps = 200 + seed * 37;
        let _ = scene.world.run_until(steps, |_| false);
        scene.world.crash();
        scene.ledger.borrow_mut().crash();
        scene.reassemble();
        scene.read_all();
        scene.load(3, 20);
        let array = scene.array.clone();
        scene.world.run_until(STEPS, |_| array.detail().regions_to_resync == 0).unwrap();
        scene.read_all();
        assert_eq!(scene.check(), 0, "seed {seed}");
    }
}

#[test]
fn a_member_may_go_before_the_first_resync_and_what_was_written_since_is_kept() {
    for seed in 60..64 {
        let mut scene = scene(seed, wish(Level::Raid5, 4, 16 << 10, NewBitmap::None, InitialSync::Resync), 2);
        scene.load(4, 20);
        scene.disks[2].fault(&Fault::Gone);
        scene.load(4, 30);
        assert_eq!(scene.array.detail().missing, 1);
        scene.read_written();
    }
}
