//! Scenes in which the swarm has found defects of the engine, by name. A seed's run changes with whatever the engine does
//! and the swarm draws, so the scenes that can be told in a few lines are told; the rest are the seeds themselves.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{cell::RefCell, rc::Rc, sync::Arc};

use pinstripe_engine::{array::Array, assembly::AssembleError, create::create, options::ArrayOptions};
use pinstripe_md::{
    identity::{SetName, Timestamp, Uuid},
    level::{Layout, Level, ParityLayout},
    placement::{InitialSync, NewArray, NewBitmap, NewDevice},
    superblock::MetadataVersion,
    units::{Sector, SectorCount},
};
use pinstripe_runtime::{DeviceSource, shard};
use pinstripe_sim::{Fault, SimDisk, SimDiskConfig, World, WorldConfig, checks, swarm};

const MEMBER_BYTES: u64 = 1 << 20;
const STEPS: u64 = 1_000_000;

struct Scene {
    world: World,
    disks: Vec<SimDisk>,
}

impl Scene {
    /// A new RAID5 on four disks.
    fn new(seed: u64, bitmap: NewBitmap) -> Self {
        let mut world = World::new(WorldConfig::new(seed, 1));
        let disks: Vec<SimDisk> =
            (0..4).map(|i| world.add_disk(SimDiskConfig::new(&format!("disk{i}"), MEMBER_BYTES))).collect();
        let member = |i: u8| NewDevice { sectors: MEMBER_BYTES / 512, uuid: Uuid([i + 1; 16]) };
        let wish = NewArray {
            set_uuid: Uuid([7; 16]),
            name: SetName::from_bytes([b'x'; 32]),
            created: Timestamp::new(1, 0),
            level: Level::Raid5,
            layout: Layout::Parity(ParityLayout::from_name(Level::Raid5, "left-symmetric").unwrap()),
            chunk: SectorCount(32),
            version: MetadataVersion::V1_2,
            bitmap,
            initial: InitialSync::AssumeClean,
            size: None,
            data_offset: Some(Sector(256)),
            logical_block_bytes: 512,
            members: (0..4).map(member).collect(),
            spares: vec![],
        };
        let attached = disks.clone();
        let made = world.block_on(0, "create", STEPS, async move {
            let devices: Vec<_> = attached.iter().map(SimDisk::attach).collect();
            create(&wish, &devices).await
        });
        made.unwrap().unwrap();
        Self { world, disks }
    }

    fn start(&mut self, disks: &[usize], force: bool) -> Result<Array, AssembleError> {
        let sources: Vec<Arc<dyn DeviceSource>> = disks.iter().map(|&i| self.disks[i].source()).collect();
        let shards = vec![self.world.shard(0).handle()];
        let options = ArrayOptions {
            wall_clock: || 1,
            force,
            // The superblocks are left alone between events of the test.
            safe_mode_delay_ns: 3_600_000_000_000,
            ..ArrayOptions::default()
        };
        let assembly = async move { Array::assemble(sources, options, shards).await };
        self.world.block_on(0, "assemble", STEPS, assembly).unwrap()
    }

    fn write(&mut self, array: &Array, offset: u64, byte: u8) {
        let volume = array.volume().clone();
        let written = self.world.block_on(0, "write", STEPS, async move {
            let mut data = shard::buffer(4096);
            data.fill(byte);
            volume.write(offset, data.freeze(), true).await
        });
        written.unwrap().unwrap();
    }

    fn read(&mut self, array: &Array, offset: u64) -> u8 {
        let volume = array.volume().clone();
        let read = async move { volume.read(offset, shard::buffer(4096)).await };
        let (result, buffer) = self.world.block_on(0, "read", STEPS, read).unwrap();
        result.unwrap();
        assert!(buffer.iter().all(|byte| *byte == buffer[0]));
        buffer[0]
    }

    fn crash(&mut self, array: Array) {
        {
            let _entered = self.world.enter(0);
            drop(array);
        }
        self.world.crash();
    }

    fn events(&self) -> Vec<u64> {
        self.disks.iter().map(|disk| checks::superblock(disk).unwrap().array.events).collect()
    }
}

#[test]
fn a_device_that_was_absent_for_a_single_update_is_stale_when_it_comes_back() {
    let mut scene = Scene::new(1, NewBitmap::None);
    // Disk 1 holds the second chunk of the first stripe.
    let array = scene.start(&[0, 2, 3], false).unwrap();
    scene.write(&array, 16 << 10, 0xaa);
    scene.crash(array);
    let events = scene.events();
    assert_eq!(events[0], events[1] + 1, "one update: by its events alone the device would be current");
    let refused = scene.start(&[0, 1, 2, 3], false).map(|_| ());
    assert!(matches!(refused, Err(AssembleError::DirtyDegraded { missing: 1 })), "{refused:?}");
    let array = scene.start(&[0, 1, 2, 3], true).unwrap();
    assert_eq!(array.stale_members().len(), 1);
    assert_eq!(scene.read(&array, 16 << 10), 0xaa, "what was acknowledged without the device");
}

#[test]
fn members_that_two_torn_updates_left_behind_are_still_current() {
    let mut scene = Scene::new(2, NewBitmap::None);
    for _ in 0..4 {
        // Each life dies when one member alone has the next superblock.
        let array = scene.start(&[0, 1, 2, 3], false).unwrap();
        let before = scene.events();
        let volume = array.volume().clone();
        scene.world.spawn(0, "write", async move {
            let _ = volume.write(0, shard::zeroed(4096).freeze(), true).await;
        });
        let disks = scene.disks.clone();
        let torn = move |_: &World| {
            let events: Vec<u64> =
                disks.iter().map(|disk| checks::superblock(disk).unwrap().array.events).collect();
            events.iter().max() > before.iter().max()
        };
        scene.world.run_until(STEPS, torn).unwrap();
        scene.crash(array);
        let events = scene.events();
        assert!(events.iter().max().unwrap() - events.iter().min().unwrap() <= 1, "{events:?}");
    }
    let array = scene.start(&[0, 1, 2, 3], false).unwrap();
    assert!(array.stale_members().is_empty());
}

#[test]
fn two_spares_that_come_at_once_do_not_take_the_same_slot() {
    let mut scene = Scene::new(3, NewBitmap::Internal { chunk_bytes: Some(65536) });
    let array = scene.start(&[0, 1, 2], false).unwrap();
    let added: Rc<RefCell<Vec<bool>>> = Rc::default();
    for number in 4..6 {
        let disk = scene.world.add_disk(SimDiskConfig::new("spare", MEMBER_BYTES));
        let (array, added) = (array.clone(), Rc::clone(&added));
        scene.world.spawn(0, "add", async move {
            let outcome = array.add(disk.source(), Uuid([number; 16])).await;
            added.borrow_mut().push(outcome.is_ok());
        });
    }
    scene.world.run_until(STEPS, |_| added.borrow().len() == 2).unwrap();
    assert_eq!(*added.borrow(), [true, false]);
}

#[test]
fn a_bitmap_that_goes_covers_every_row_until_no_superblock_names_it() {
    for steps in (0..600).step_by(20) {
        let mut scene = Scene::new(steps, NewBitmap::Internal { chunk_bytes: Some(4096) });
        let array = scene.start(&[0, 1, 2, 3], false).unwrap();
        scene.write(&array, 0, 1);
        let owner = array.clone();
        scene.world.spawn(0, "remove", async move {
            let _ = owner.remove_bitmap().await;
        });
        for client in 0..4 {
            let volume = array.volume().clone();
            scene.world.spawn(0, "client", async move {
                for at in 0..40 {
                    let _ = volume.write((at * 7 + client) * 4096, shard::zeroed(4096).freeze(), false).await;
                }
            });
        }
        let _ = scene.world.run_until(steps, |_| false);
        let pinstripe_engine::geometry::Geometry::Parity(geometry) = &array.shared().geometry else {
            unreachable!("level 5")
        };
        let geometry = *geometry;
        scene.crash(array);
        let survey = checks::survey(scene.disks.iter().enumerate()).unwrap();
        survey.check_covered(&scene.disks, &geometry).unwrap();
    }
}

#[test]
fn a_resync_cut_short_by_a_second_crash_keeps_torn_rows_torn() {
    let mut scene = Scene::new(5, NewBitmap::None);
    let array = scene.start(&[0, 1, 2, 3], false).unwrap();
    scene.write(&array, 0, 1);
    scene.crash(array);
    let array = scene.start(&[0, 1, 2, 3], false).unwrap();
    let torn = |array: &Array| {
        let intent = &array.shared().snapshot().intent;
        intent.is_torn(0..=intent.len() - 1)
    };
    assert!(torn(&array), "the crash may have torn rows");
    let owner = array.clone();
    // A clean end before the resync has got anywhere.
    scene.world.block_on(0, "stop", STEPS, async move { owner.stop().await }).unwrap().unwrap();
    scene.crash(array);
    let array = scene.start(&[0, 1, 2, 3], false).unwrap();
    let synced = array.detail().regions_to_resync == 0;
    assert!(synced || torn(&array), "neither the stop nor the second crash has mended them");
}

/// The seeds on which defects were found, as they are drawn now.
#[test]
fn seeds_that_once_found_a_defect_pass() {
    for seed in
        [4, 6, 20, 41, 42, 44, 45, 69, 105, 129, 145, 165, 268, 544, 550, 5264, 5373, 5411, 5636, 6182]
    {
        if let Err(failure) = swarm::run(seed, None) {
            panic!("{failure}");
        }
    }
}

#[test]
fn a_member_that_is_gone_for_good_does_not_take_the_array_with_it() {
    let mut scene = Scene::new(7, NewBitmap::Internal { chunk_bytes: Some(65536) });
    let array = scene.start(&[0, 1, 2, 3], false).unwrap();
    scene.write(&array, 0, 3);
    let owner = array.clone();
    let check = Rc::new(RefCell::new(None));
    let there = Rc::clone(&check);
    scene.world.spawn(0, "check", async move {
        let report = owner.check().await;
        *there.borrow_mut() = Some(report);
    });
    let _ = scene.world.run_until(60, |_| false);
    scene.disks[2].fault(&Fault::Gone);
    scene.world.run_until(STEPS, |_| check.borrow().is_some()).unwrap();
    let report = check.borrow_mut().take().unwrap();
    assert_eq!(report.unwrap().mismatched_sectors, 0, "the scrub begins again without the member");
    assert_eq!(scene.read(&array, 0), 3);
}
