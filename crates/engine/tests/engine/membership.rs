//! Which devices belong to an array, and what the disks say of it: spares, members that come back,
//! replacements.

use std::{cell::Cell, rc::Rc};

use crate::arrays::{
    self, STEPS, assemble, options,
    scene::{DATA_SECTOR, Scene, clients, lay_out, list_as_bad, superblock_on, wish, write},
};
use pinstripe_engine::{
    array::{Added, CommandError, Removed},
    assembly::AssembleError,
    error::IoError,
    membership::MemberState,
    options::ArrayOptions,
};
use pinstripe_md::{
    bitmap::BitmapImage,
    identity::{Timestamp, Uuid},
    level::Level,
    placement::{InitialSync, NewArray, NewBitmap, NewDevice, NewLog, place_spare},
    superblock::{ResyncOffset, Role},
    units::{MemberSlot, Sector},
};
use pinstripe_sim::{Fault, SimDisk, SimDiskConfig, World, WorldConfig};

const CHUNK: u64 = 4096;
const REGION: u32 = 32 << 10;
const SWEEP_NS: u64 = 10_000_000;
/// How many times as long a write takes that is to outlast some sweeps.
const SLOW: u64 = 10_000;

fn array(seed: u64, level: Level, members: u8, options: ArrayOptions) -> Scene {
    let bitmap = NewBitmap::Internal { chunk_bytes: Some(REGION) };
    Scene::with_options(seed, wish(level, members, CHUNK, bitmap, InitialSync::AssumeClean), 2, options)
}

fn raid5(seed: u64) -> Scene {
    array(seed, Level::Raid5, 4, options())
}

/// A slow copy, with a checkpoint at every step.
fn in_small_steps() -> ArrayOptions {
    ArrayOptions { checkpoint_stripes: 16, checkpoint_ns: 0, maintenance_depth: 1, ..options() }
}

#[test]
fn a_start_that_leaves_a_member_behind_must_be_meant() {
    let mut scene = raid5(70);
    scene.write(0, 64, false).unwrap();
    scene.stop();
    let strict = ArrayOptions { newly_degraded: false, ..options() };
    let without = |scene: &Scene, slot: usize| {
        let others = scene.disks.iter().enumerate().filter(|(other, _)| *other != slot);
        others.map(|(_, disk)| disk.source()).collect::<Vec<_>>()
    };
    let sources = without(&scene, 2);
    let refused = assemble(&mut scene.world, sources.clone(), strict.clone()).err().unwrap();
    assert!(matches!(&refused, AssembleError::NewlyDegraded { slots, .. } if *slots == [2]), "{refused}");
    assert!(refused.to_string().starts_with("slot 2 of the array is missing"), "{refused}");
    // Nothing is left behind where nothing is written.
    let read_only = ArrayOptions { read_only: true, ..strict.clone() };
    assemble(&mut scene.world, sources.clone(), read_only).unwrap();
    scene.array = assemble(&mut scene.world, sources.clone(), options()).unwrap();
    scene.write(0, 64, false).unwrap();
    scene.stop();
    // The record says so now; but not of another one.
    scene.array = assemble(&mut scene.world, sources, strict.clone()).unwrap();
    scene.read_all();
    scene.stop();
    let all = scene.disks.iter().map(SimDisk::source).collect();
    scene.array = assemble(&mut scene.world, all, strict).unwrap();
    assert_eq!(scene.array.detail().missing, 1);
    scene.read_all();
}

/// What is newer is told by events. Each clock is behind that of the start before.
#[test]
fn a_clock_that_is_set_back_makes_no_member_newer_and_keeps_no_array_from_its_clients() {
    let mut scene = raid5(71);
    let clocks: [fn() -> u64; 4] = [|| u64::MAX, || 4_000_000_000, || 100, || 0];
    for (start, wall_clock) in clocks.into_iter().enumerate() {
        scene.stop();
        scene.options.wall_clock = wall_clock;
        scene.reassemble();
        scene.write(64 * start as u64, 64, false).unwrap();
        if start == 1 {
            // Its superblock stays the one with the latest time.
            let array = scene.array.clone();
            scene.run(async move { array.fail(3).await }).unwrap();
        }
        clients(&mut scene, 4, 20, 32);
        scene.read_all();
        assert_eq!(scene.array.detail().missing, usize::from(start >= 1), "{start}");
        let last = scene.array.events(0).last().map(|event| event.time);
        assert_eq!(last.unwrap_or(wall_clock()), wall_clock());
    }
    assert!(scene.superblock(3).array.updated > scene.superblock(0).array.updated);
    assert!(scene.superblock(3).array.events < scene.superblock(0).array.events);
    let again = scene.disks[3].source();
    let array = scene.array.clone();
    scene.run(async move { array.add(again, Uuid([9; 16])).await }).unwrap();
    scene.settle();
    scene.is_right_and_stays_so();
    assert_eq!(scene.array.detail().missing, 0);
}

#[test]
fn a_device_with_larger_blocks_can_not_join() {
    let mut scene = raid5(40);
    let config = SimDiskConfig { logical_block: 4096, ..SimDiskConfig::new("large", 2048 * 512) };
    let disk = scene.world.add_disk(config);
    let added = scene.add(&disk);
    assert!(matches!(added, Err(CommandError::LogicalBlock { block: 4096, array: 512, .. })), "{added:?}");
    scene.fail(1);
    assert!(scene.add(&disk).is_err(), "nor when a slot is empty");
    assert_eq!(scene.array.detail().missing, 1);
    scene.read_all();
}

pub trait Life {
    fn disk(&mut self) -> SimDisk;
    fn fail(&mut self, slot: usize);
    fn add(&mut self, disk: &SimDisk) -> Result<Added, CommandError>;
    fn replace(&mut self, slot: usize, with: Option<&SimDisk>) -> Result<String, CommandError>;
    fn remove(&mut self, which: Removed) -> Result<String, CommandError>;
    fn settle(&mut self);
    fn crash(&mut self);
    fn proof(&mut self);
}

impl Life for Scene {
    fn disk(&mut self) -> SimDisk {
        let number = self.disks.len();
        let disk = self.world.add_disk(SimDiskConfig::new(&format!("disk{number}"), 2048 * 512));
        disk.poke(0, &vec![0xee; 2048 * 512]);
        self.disks.push(disk.clone());
        disk
    }

    fn fail(&mut self, slot: usize) {
        let array = self.array.clone();
        self.run(async move { array.fail(slot).await }).unwrap();
    }

    fn add(&mut self, disk: &SimDisk) -> Result<Added, CommandError> {
        let (array, source) = (self.array.clone(), disk.source());
        let identity = Uuid([100 + u8::try_from(self.disks.len()).unwrap(); 16]);
        self.run(async move { array.add(source, identity).await })
    }

    fn replace(&mut self, slot: usize, with: Option<&SimDisk>) -> Result<String, CommandError> {
        let (array, with) = (self.array.clone(), with.map(SimDisk::source));
        self.run(async move { array.replace(slot, with, Uuid([200; 16])).await })
    }

    fn remove(&mut self, which: Removed) -> Result<String, CommandError> {
        let array = self.array.clone();
        self.run(async move { array.remove(&which).await })
    }

    fn settle(&mut self) {
        let array = self.array.clone();
        let settled = |_: &_| {
            let detail = array.detail();
            detail.missing == 0
                && detail.regions_to_resync == 0
                && detail.slots.iter().all(|slot| slot.replacement.is_none())
        };
        self.world.run_until(STEPS, settled).unwrap();
    }

    fn crash(&mut self) {
        {
            let _entered = self.world.enter(0);
            self.array = self.array.clone();
        }
        self.world.crash();
        self.ledger.borrow_mut().crash();
    }

    /// Everything is what it may be, with each member missing in turn too.
    fn proof(&mut self) {
        self.settle();
        self.read_all();
        assert_eq!(self.check(), 0);
        self.stop();
        let slots = self.array.detail().slots.len();
        let here: Vec<SimDisk> = (0..slots).map(|slot| holder(self, slot)).collect();
        for lost in 0..slots {
            let left = here.iter().enumerate().filter(|(slot, _)| *slot != lost);
            let sources = left.map(|(_, disk)| disk.source()).collect();
            let options = ArrayOptions { read_only: true, ..self.options.clone() };
            self.array = arrays::assemble(&mut self.world, sources, options).unwrap();
            self.read_all();
        }
    }
}

/// The disk that holds a slot by the freshest superblock.
fn holder(scene: &Scene, slot: usize) -> SimDisk {
    let superblocks: Vec<_> = scene.disks.iter().map(pinstripe_sim::checks::superblock).collect();
    let freshest = superblocks.iter().flatten().max_by_key(|s| s.array.events).unwrap();
    let wanted = Role::Slot(MemberSlot(u16::try_from(slot).unwrap()));
    let holds = |at: &usize| {
        superblocks[*at].as_ref().is_some_and(|s| {
            s.role_in(&freshest.array) == wanted && s.array.events + 1 >= freshest.array.events
        })
    };
    scene.disks[(0..superblocks.len()).find(holds).unwrap()].clone()
}

fn role_of(scene: &Scene, disk: &SimDisk) -> Role {
    let superblocks = scene.disks.iter().filter_map(pinstripe_sim::checks::superblock);
    let freshest = superblocks.max_by_key(|superblock| superblock.array.events).unwrap();
    superblock_on(disk).role_in(&freshest.array)
}

#[test]
fn a_device_that_is_not_needed_waits_as_a_spare_and_takes_over_when_a_member_fails() {
    let mut scene = raid5(1);
    let spare = scene.disk();
    assert_eq!(scene.add(&spare).unwrap(), Added::Spare);
    assert_eq!(scene.array.detail().spares, ["disk4"]);
    assert_eq!(role_of(&scene, &spare), Role::Spare);
    assert_eq!(superblock_on(&spare).array.events, scene.superblock(0).array.events);
    assert!(matches!(scene.add(&spare), Err(CommandError::AlreadyMember(_))));
    clients(&mut scene, 4, 20, 32);
    scene.disks[1].fault(&Fault::Gone);
    clients(&mut scene, 4, 40, 32);
    scene.settle();
    let detail = scene.array.detail();
    assert_eq!(detail.slots[1].device.as_deref(), Some("disk4"));
    assert_eq!((detail.spares.len(), detail.failed.len()), (0, 1));
    assert_eq!(role_of(&scene, &scene.disks[1].clone()), Role::Faulty);
    scene.proof();
}

#[test]
fn a_spare_is_found_at_assembly_and_takes_over_there() {
    let mut scene = raid5(2);
    let spare = scene.disk();
    scene.add(&spare).unwrap();
    clients(&mut scene, 2, 20, 32);
    scene.stop();
    let without: Vec<_> =
        scene.disks.iter().enumerate().filter(|(i, _)| *i != 2).map(|(_, d)| d.source()).collect();
    scene.array = arrays::assemble(&mut scene.world, without, options()).unwrap();
    scene.settle();
    assert_eq!(scene.array.detail().slots[2].device.as_deref(), Some("disk4"));
    scene.proof();
}

/// Its role and events are all that it says: it may be one that was late, and one that was removed.
#[test]
fn a_spare_that_missed_a_start_is_told_of_and_not_taken() {
    let mut scene = raid5(17);
    let spare = scene.disk();
    scene.add(&spare).unwrap();
    scene.stop();
    let without: Vec<_> = scene.disks[..4].iter().map(SimDisk::source).collect();
    scene.array = arrays::assemble(&mut scene.world, without, options()).unwrap();
    scene.write(0, 64, false).unwrap();
    scene.stop();
    scene.reassemble();
    assert_eq!(scene.array.detail().spares, [""; 0]);
    let stale: Vec<_> = scene.array.stale_members().iter().map(|one| (&*one.name, one.spare)).collect();
    assert_eq!(stale, [("disk4", true)]);
    assert_eq!(scene.add(&spare).unwrap(), Added::Spare);
}

/// As the kernel leaves it where the controller of all members has died: it goes on to write the spare's
/// superblock, by which members are faulty.
#[test]
fn a_spare_with_more_events_than_the_members_makes_none_of_them_stale() {
    let mut scene = raid5(71);
    let spare = scene.disk();
    assert_eq!(scene.add(&spare).unwrap(), Added::Spare);
    clients(&mut scene, 2, 20, 32);
    scene.stop();
    let mut alone = superblock_on(&spare);
    alone.array.events += 2;
    (alone.array.roles[1], alone.array.roles[2]) = (Role::Faulty, Role::Faulty);
    spare.poke(4096, &alone.encode(512).unwrap());
    scene.reassemble();
    let detail = scene.array.detail();
    assert_eq!((detail.missing, detail.spares), (0, vec!["disk4".to_owned()]));
    scene.write(0, 64, true).unwrap();
    assert_eq!(superblock_on(&spare).array.events, scene.superblock(0).array.events);
    scene.proof();
}

/// `mdadm --assemble --force` gives the members of slots 2 and 3 the others' events and enters them in one
/// superblock, and the kernel writes none before it stops the array. A crash in our first update leaves the
/// first superblock one event ahead.
#[test]
fn what_mdadm_has_forced_together_is_one_array_whichever_superblock_is_found_first() {
    let mut scene = raid5(72);
    clients(&mut scene, 2, 20, 32);
    scene.stop();
    let mut without = scene.superblock(1);
    (without.array.roles[2], without.array.roles[3]) = (Role::Faulty, Role::Faulty);
    scene.disks[1].poke(4096, &without.encode(512).unwrap());
    let taken_back = scene.superblock(0);
    for (ahead, order) in [(0, [0, 1, 2, 3]), (0, [0, 2, 3, 1]), (1, [0, 1, 2, 3])] {
        let mut first = taken_back.clone();
        first.array.events += ahead;
        scene.disks[0].poke(4096, &first.encode(512).unwrap());
        let sources = order.map(|disk: usize| scene.disks[disk].source()).to_vec();
        let read_only = ArrayOptions { read_only: true, ..options() };
        scene.array = arrays::assemble(&mut scene.world, sources, read_only).unwrap();
        assert_eq!(scene.array.detail().missing, 0, "{ahead}, {order:?}");
    }
    scene.reassemble();
    scene.proof();
}

/// The member of slot 0 fell out while the array was written to, and that of slot 3 later. What the first one
/// still says of the array names more members than what the others say of it.
#[test]
fn what_was_forced_into_an_array_says_nothing_of_it() {
    let mut scene = raid5(73);
    clients(&mut scene, 2, 20, 32);
    scene.stop();
    let [mut taken_back, mut chosen, mut other] = [0, 1, 2].map(|disk| scene.superblock(disk));
    taken_back.array.resync_offset = ResyncOffset::DirtyFrom(Sector(0));
    taken_back.array.updated = Timestamp::default();
    chosen.array.roles[3] = Role::Faulty;
    (other.array.roles[0], other.array.roles[3]) = (Role::Faulty, Role::Faulty);
    for (disk, superblock) in [taken_back, chosen, other].iter().enumerate() {
        scene.disks[disk].poke(4096, &superblock.encode(512).unwrap());
    }
    let sources = scene.disks[..3].iter().map(SimDisk::source).collect();
    scene.array = arrays::assemble(&mut scene.world, sources, options()).unwrap();
    assert_eq!(scene.array.detail().missing, 1);
    scene.read_all();
}

/// As mdadm adds it. Clients would find no partition table that they wrote in blocks of 512 bytes.
#[test]
fn a_spare_with_larger_blocks_is_told_of_and_changes_nothing_of_the_array() {
    let mut scene = raid5(18);
    scene.write(0, 64, false).unwrap();
    scene.stop();
    let config = SimDiskConfig { logical_block: 4096, ..SimDiskConfig::new("disk4", 2048 * 512) };
    let spare = scene.world.add_disk(config);
    let device = NewDevice { sectors: 2048, uuid: Uuid([0x44; 16]) };
    let superblock = place_spare(&scene.superblock(0), device, &[], 512).unwrap();
    spare.poke(4096, &superblock.encode(512).unwrap());
    scene.disks.push(spare);
    scene.reassemble();
    let detail = scene.array.detail();
    assert_eq!((detail.logical_block, detail.spares.len()), (512, 0));
    assert_eq!(detail.unusable_spares[0].device, "disk4");
    assert!(detail.unusable_spares[0].reason.contains("4096 bytes"), "{:?}", detail.unusable_spares);
    assert!(detail.advice.unwrap().contains("the spare disk4 can take no slot"));
    scene.fail(1);
    scene.write(0, 64, true).unwrap();
    assert_eq!(scene.array.detail().missing, 1);
    scene.read_all();
}

/// Nothing was written to it, nor asked of it.
#[test]
fn a_member_that_is_told_to_be_gone_is_said_to_be() {
    let mut scene = raid5(42);
    scene.disks[1].fault(&Fault::Gone);
    let array = scene.array.clone();
    let dropped = scene.run(async move { array.drop_gone("disk1").await });
    assert_eq!(dropped, Ok(true));
    let failed = scene.array.detail().failed;
    assert_eq!(failed[0].error.to_string(), "slot 1 (disk1) failed: the device is gone");
}

/// As another tool may lay it out. It has not refused the bitmap, which it is not asked to take.
#[test]
fn a_spare_without_room_for_the_bitmap_is_told_of_and_stays_one() {
    // The bitmap is longer than a sector.
    let (sectors, bitmap) = (24576, NewBitmap::Internal { chunk_bytes: Some(4096) });
    let mut wish = wish(Level::Raid5, 4, CHUNK, bitmap, InitialSync::AssumeClean);
    wish.members.iter_mut().for_each(|member| member.sectors = sectors);
    let mut scene = Scene::with_options(41, wish, 1, options());
    scene.stop();
    let spare = scene.world.add_disk(SimDiskConfig::new("disk4", sectors * 512));
    let device = NewDevice { sectors, uuid: Uuid([0x44; 16]) };
    let mut superblock = place_spare(&scene.superblock(0), device, &[], 512).unwrap();
    let behind = superblock.array.bitmap_offset.unwrap() + 1;
    superblock.member.bad_block_log.as_mut().unwrap().offset = behind;
    spare.poke(4096, &superblock.encode(512).unwrap());
    scene.disks.push(spare);
    scene.reassemble();
    scene.fail(1);
    scene.write(0, 64, false).unwrap();
    let detail = scene.array.detail();
    assert_eq!((detail.missing, detail.failed.len(), detail.unusable_spares.len()), (1, 1, 1));
    assert!(detail.unusable_spares[0].reason.contains("bitmap"), "{:?}", detail.unusable_spares);
}

#[test]
fn the_block_of_an_array_is_kept_without_the_member_that_it_came_from() {
    let mut world = World::new(WorldConfig::new(19, 2));
    let disk = |slot: usize| SimDiskConfig {
        logical_block: if slot == 0 { 4096 } else { 512 },
        ..SimDiskConfig::new(&format!("disk{slot}"), 2048 * 512)
    };
    let disks: Vec<SimDisk> = (0..3).map(|slot| world.add_disk(disk(slot))).collect();
    let bitmap = NewBitmap::Internal { chunk_bytes: Some(REGION) };
    let wish = NewArray {
        logical_block_bytes: 4096,
        ..wish(Level::Raid5, 3, CHUNK, bitmap, InitialSync::AssumeClean)
    };
    lay_out(&mut world, wish.place_with(NewLog::None).unwrap(), &disks).unwrap();
    let mut scene = Scene::over(world, disks, 3, options());
    assert_eq!(scene.array.detail().logical_block, 4096);
    scene.fail(0);
    scene.stop();
    let left: Vec<_> = scene.disks[1..].iter().map(SimDisk::source).collect();
    scene.array = arrays::assemble(&mut scene.world, left.clone(), options()).unwrap();
    assert_eq!(scene.array.detail().logical_block, 512);
    let back = scene.disks[0].clone();
    let refused = scene.add(&back).unwrap_err();
    assert!(matches!(refused, CommandError::LogicalBlock { .. }), "{refused}");
    assert!(refused.to_string().contains("--logical-block 4096"), "{refused}");
    scene.stop();
    let kept = ArrayOptions { logical_block_min: 4096, ..options() };
    scene.array = arrays::assemble(&mut scene.world, left, kept).unwrap();
    assert_eq!(scene.array.detail().logical_block, 4096);
    assert_eq!(scene.add(&back).unwrap(), Added::Bitmap { slot: 0 });
    scene.settle();
    scene.read_all();
}

/// The one that is not taken would say that it has a slot, and would have nothing of it.
#[test]
fn a_spare_and_its_copy_are_not_chosen_between() {
    let mut scene = raid5(14);
    let (spare, copy) = (scene.disk(), scene.disk());
    scene.add(&spare).unwrap();
    scene.stop();
    copy.poke(0, &spare.peek(0, 2048 * 512));
    let all = scene.disks.iter().map(SimDisk::source).collect();
    let refused = assemble(&mut scene.world, all, options()).err().unwrap();
    assert!(matches!(refused, AssembleError::Duplicate { .. }), "{refused}");
}

#[test]
fn a_spare_that_can_not_be_used_keeps_no_array_from_its_clients() {
    let strict = ArrayOptions { newly_degraded: false, ..options() };
    let spoils: [fn(&SimDisk); 2] = [
        |spare| spare.fault(&Fault::FailFlushes(1)),
        |spare| {
            list_as_bad(spare, [DATA_SECTOR]);
            spare.poke(superblock_on(spare).bad_block_log_sector().unwrap().0 * 512, &[0; 512]);
        },
    ];
    for (seed, spoil) in (15..).zip(spoils) {
        let mut scene = array(seed, Level::Raid5, 4, strict.clone());
        let spare = scene.disk();
        scene.add(&spare).unwrap();
        clients(&mut scene, 2, 20, 32);
        scene.stop();
        spoil(&spare);
        scene.reassemble();
        let detail = scene.array.detail();
        assert_eq!((detail.missing, detail.spares.len()), (0, 0));
        assert!(scene.array.left_out()[0].starts_with("disk4: "), "{:?}", scene.array.left_out());
        clients(&mut scene, 2, 20, 32);
        scene.read_all();
    }
}

#[test]
fn a_read_only_array_leaves_its_spare_alone() {
    let mut scene = raid5(13);
    let spare = scene.disk();
    scene.add(&spare).unwrap();
    clients(&mut scene, 2, 20, 32);
    scene.stop();
    let written = |scene: &Scene| scene.disks.iter().map(|disk| disk.counters().writes).collect::<Vec<_>>();
    let before = written(&scene);
    let without: Vec<_> = [0, 1, 3, 4].map(|disk: usize| scene.disks[disk].source()).to_vec();
    let read_only = ArrayOptions { read_only: true, ..options() };
    scene.array = arrays::assemble(&mut scene.world, without, read_only).unwrap();
    scene.read_all();
    let detail = scene.array.detail();
    assert_eq!((detail.slots[2].state, detail.spares), ("missing", vec!["disk4".to_owned()]));
    assert_eq!(written(&scene), before);
}

/// A written array that has gone on a little without the member of slot 2, and its disk.
fn raid5_that_lost_a_member() -> (Scene, SimDisk) {
    let mut scene = raid5(3);
    clients(&mut scene, 4, 40, 32);
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().bitmap.unwrap().bits_set == 0).unwrap();
    scene.fail(2);
    for sector in [0, 700, 701, 1400] {
        scene.write(sector, 3, false).unwrap();
    }
    let back = scene.disks[2].clone();
    (scene, back)
}

#[test]
fn a_member_that_comes_back_gets_only_what_was_dirtied_since() {
    let (mut scene, back) = raid5_that_lost_a_member();
    let before = back.counters().bytes_written;
    assert_eq!(scene.add(&back).unwrap(), Added::Bitmap { slot: 2 });
    assert!(superblock_on(&back).member.recovery_by_bitmap, "MD's RECOVERY_BITMAP");
    scene.settle();
    let written = back.counters().bytes_written - before;
    assert!(written < 5 * u64::from(REGION), "{written} bytes of {}", 2048 * 512);
    assert_eq!(scene.array.detail().failed.len(), 0);
    scene.proof();
    assert!(!superblock_on(&back).member.recovery_by_bitmap);
}

/// Nothing has counted on it meanwhile, so all that it lacks is where bits are set.
#[test]
fn a_member_that_goes_again_while_it_is_recovered_by_the_bitmap_comes_back_by_it() {
    let (mut scene, back) = raid5_that_lost_a_member();
    scene.array.pause_sync(true);
    let before = back.counters().bytes_written;
    for sector in [300, 900] {
        assert_eq!(scene.add(&back).unwrap(), Added::Bitmap { slot: 2 });
        back.fault(&Fault::Gone);
        scene.write(sector, 3, false).unwrap();
        assert_eq!(scene.array.detail().missing, 1);
        back.fault(&Fault::Return);
    }
    assert_eq!(scene.add(&back).unwrap(), Added::Bitmap { slot: 2 });
    scene.array.pause_sync(false);
    scene.settle();
    let written = back.counters().bytes_written - before;
    assert!(written < 8 * u64::from(REGION), "{written} bytes of {}", 2048 * 512);
    scene.proof();
}

/// The bitmap is taken away while a member is being recovered by it. Power fails when one superblock says so.
#[test]
fn a_member_that_was_being_recovered_by_a_bitmap_that_is_gone_is_recovered_whole() {
    let (mut scene, back) = raid5_that_lost_a_member();
    scene.array.pause_sync(true);
    assert_eq!(scene.add(&back).unwrap(), Added::Bitmap { slot: 2 });
    scene.stop();
    for disk in [0, 1, 3] {
        let mut superblock = superblock_on(&scene.disks[disk]);
        superblock.array.bitmap_offset = None;
        superblock.array.events += u64::from(disk == 0);
        scene.disks[disk].poke(4096, &superblock.encode(512).unwrap());
    }
    scene.reassemble();
    scene.settle();
    scene.proof();
    assert!(!superblock_on(&back).member.recovery_by_bitmap);
}

/// Nothing is written, and no bit is set any more.
fn until_idle(scene: &mut Scene) {
    let array = scene.array.clone();
    let is_idle = || {
        let detail = array.detail();
        detail.state == "clean" && detail.bitmap.unwrap().bits_set == 0
    };
    scene.world.run_until(STEPS, |_| is_idle()).unwrap();
}

#[test]
fn a_member_that_went_while_the_array_was_idle_comes_back_by_the_bitmap() {
    let mut scene = raid5(16);
    clients(&mut scene, 4, 40, 32);
    until_idle(&mut scene);
    let back = scene.disks[2].clone();
    let events = superblock_on(&back).array.events;
    back.fault(&Fault::Gone);
    scene.write(700, 3, false).unwrap();
    back.fault(&Fault::Return);
    assert_eq!(superblock_on(&back).array.events, events, "it did not get the update that the write needed");
    assert_eq!(scene.add(&back).unwrap(), Added::Bitmap { slot: 2 });
    scene.settle();
    scene.proof();
}

/// Its bitmap gets the header of the update in which it hung, which says that bits may be cleared.
#[test]
fn a_member_that_hung_when_an_idle_array_was_written_comes_back_by_the_bitmap() {
    let mut scene = raid5(18);
    clients(&mut scene, 4, 40, 32);
    until_idle(&mut scene);
    let back = scene.disks[2].clone();
    back.fault(&Fault::Hang);
    scene.write(700, 3, false).unwrap();
    assert_eq!(scene.array.detail().missing, 1);
    back.fault(&Fault::Release);
    scene.run(async { pinstripe_runtime::shard::sleep(1_000_000_000).await });
    assert!(scene.bitmap(2).unwrap().header().events > superblock_on(&back).array.events);
    assert_eq!(scene.add(&back).unwrap(), Added::Bitmap { slot: 2 });
    scene.settle();
    scene.proof();
}

/// The kernel gives a disk that was pulled the first name that is free, which may have been another one's.
#[test]
fn a_member_that_comes_back_under_the_name_of_another_leaves_that_one_awaited() {
    let mut scene = array(19, Level::Raid6, 5, options());
    clients(&mut scene, 4, 40, 32);
    for slot in [1, 2] {
        scene.fail(slot);
    }
    scene.write(700, 3, false).unwrap();
    let pulled = scene.disks[2].clone();
    let awaited = scene.disks[1].clone();
    let back = scene.world.add_disk(SimDiskConfig::new("disk1", 2048 * 512));
    assert_eq!(back.info().name, awaited.info().name);
    back.poke(0, &pulled.peek(0, 2048 * 512));
    scene.disks[2] = back.clone();
    assert_eq!(scene.add(&back).unwrap(), Added::Bitmap { slot: 2 });
    let failed: Vec<Uuid> = scene.array.detail().failed.iter().map(|failed| failed.identity).collect();
    assert_eq!(failed, [superblock_on(&awaited).member.device_uuid], "which member is missing is forgotten");
    assert_eq!(scene.add(&awaited).unwrap(), Added::Bitmap { slot: 1 });
    scene.proof();
}

/// A member is lost, and a spare takes its slot and is being rebuilt. A write meanwhile is on all that are
/// there, so only its bit tells that the former member lacks it. Gives the former member and the spare.
fn rebuilt_with_a_write_meanwhile(seed: u64, level: Level, members: u8) -> (Scene, SimDisk, SimDisk) {
    let options = ArrayOptions { sweep_ns: Some(SWEEP_NS), ..in_small_steps() };
    let mut scene = array(seed, level, members, options);
    clients(&mut scene, 4, 40, 32);
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().bitmap.unwrap().bits_set == 0).unwrap();
    let former = scene.disks[2].clone();
    former.fault(&Fault::Gone);
    scene.write(0, 24, false).unwrap();
    let spare = scene.disk();
    assert_eq!(scene.add(&spare).unwrap(), Added::Full { slot: 2 });
    scene.write(1440, 24, false).unwrap();
    (scene, former, spare)
}

/// The update that says that the spare is whole takes some sweeps, and fails at the spare.
fn the_update_after_a_rebuild_is_lost(seed: u64) {
    let (mut scene, former, spare) = rebuilt_with_a_write_meanwhile(seed, Level::Raid5, 4);
    let (array, first) = (scene.array.clone(), scene.disks[0].clone());
    scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();
    let asked = first.counters().writes;
    first.fault(&Fault::SlowBy(SLOW));
    scene.world.run_until(STEPS, |_| first.counters().writes > asked).unwrap();
    first.fault(&Fault::SlowBy(1));
    spare.fault(&Fault::UnwritableRange(4096..8192));
    scene.world.run_until(STEPS, |_| array.detail().failed.len() == 2).unwrap();
    former.fault(&Fault::Return);
    scene.add(&former).unwrap();
    scene.settle();
    scene.proof();
}

/// A write that began before the spare was whole keeps that update waiting for some sweeps; power fails then,
/// and the spare is lost.
fn the_update_after_a_rebuild_does_not_begin(seed: u64) {
    let (mut scene, former, spare) = rebuilt_with_a_write_meanwhile(seed, Level::Raid6, 5);
    let is_late = |_: &_| superblock_on(&spare).member.recovery_offset.is_some_and(|at| at.0 > 1600);
    scene.world.run_until(STEPS, is_late).unwrap();
    let slow = scene.disks[1].clone();
    let asked = slow.counters().writes;
    slow.fault(&Fault::SlowBy(SLOW));
    let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
    scene.world.spawn(0, "write", async move {
        // Slot 2 has only parity there: nothing that a forced start would have to make of a torn row.
        let _ = write(&volume, &ledger, 48, 24, false).await;
    });
    scene.world.run_until(STEPS, |_| slow.counters().writes > asked).unwrap();
    slow.fault(&Fault::SlowBy(1));
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();
    let until = scene.world.now() + 5 * SWEEP_NS;
    scene.world.run_until(STEPS, |world| world.now() > until).unwrap();
    assert!(superblock_on(&spare).member.recovery_offset.is_some(), "the update has begun");
    drop(array);
    scene.crash();
    let here = [0, 1, 3, 4].map(|disk: usize| scene.disks[disk].source()).to_vec();
    let forced = ArrayOptions { force: true, ..scene.options.clone() };
    scene.array = assemble(&mut scene.world, here, forced).unwrap();
    former.fault(&Fault::Return);
    scene.add(&former).unwrap();
    scene.settle();
    scene.proof();
}

#[test]
fn no_bit_is_cleared_before_the_superblocks_say_that_a_rebuilt_member_is_whole() {
    for seed in 0..4 {
        the_update_after_a_rebuild_is_lost(seed);
        the_update_after_a_rebuild_does_not_begin(seed);
    }
}

#[cfg(feature = "mutants")]
#[test]
fn a_sweep_before_the_superblocks_are_written_is_found() {
    use pinstripe_engine::mutants::Mutant;
    let mutant = Mutant::SweepBeforeRecorded;
    assert!(arrays::defects::find(mutant, 4, the_update_after_a_rebuild_is_lost).is_some());
    assert!(arrays::defects::find(mutant, 4, the_update_after_a_rebuild_does_not_begin).is_some());
}

#[test]
fn a_device_whose_content_counts_no_more_takes_its_former_slot() {
    let mut scene = array(17, Level::Raid6, 5, options());
    clients(&mut scene, 4, 40, 32);
    scene.fail(1);
    scene.fail(2);
    let blanked = scene.disks[2].clone();
    blanked.poke(4096, &[0; 4096]);
    assert_eq!(scene.add(&blanked).unwrap(), Added::Full { slot: 2 });
    // So the other one is still known, and comes back to its own.
    assert_eq!(scene.array.detail().failed.iter().map(|failed| failed.slot).collect::<Vec<_>>(), [Some(1)]);
    let back = scene.disks[1].clone();
    assert_eq!(scene.add(&back).unwrap(), Added::Bitmap { slot: 1 });
    scene.settle();
    scene.proof();
}

#[test]
fn a_member_comes_back_by_bitmap_after_a_restart_too_but_not_when_bits_were_cleared_since() {
    let mut scene = raid5(4);
    clients(&mut scene, 2, 20, 32);
    scene.fail(0);
    scene.write(96, 8, true).unwrap();
    scene.stop();
    let left: Vec<_> = scene.disks[1..].iter().map(SimDisk::source).collect();
    scene.array = arrays::assemble(&mut scene.world, left, options()).unwrap();
    scene.write(960, 8, true).unwrap();
    let back = scene.disks[0].clone();
    assert_eq!(scene.add(&back).unwrap(), Added::Bitmap { slot: 0 });
    scene.settle();
    // Another takes its place; the bits are cleared; then it comes back once more.
    scene.fail(0);
    scene.write(480, 8, true).unwrap();
    let other = scene.disk();
    assert_eq!(scene.add(&other).unwrap(), Added::Full { slot: 0 });
    scene.settle();
    scene.fail(0);
    scene.write(1480, 8, true).unwrap();
    assert_eq!(scene.add(&back).unwrap(), Added::Full { slot: 0 });
    scene.settle();
    scene.proof();
}

/// A kernel has served the array without a member, and what was written has no bits: they were cleared while
/// another one was made whole, or a part of it, which is gone as well. It has not said that it cleared any.
#[test]
fn a_member_does_not_come_back_by_bits_that_a_kernel_may_have_cleared() {
    // Two updates are the fewest: the member is faulty, and another one begins to be made whole.
    for updates in [2, 5] {
        let mut scene = raid5(4);
        clients(&mut scene, 2, 20, 32);
        scene.fail(0);
        clients(&mut scene, 2, 20, 32);
        scene.stop();
        let last = scene.superblock(0).array.events;
        for disk in &scene.disks[1..] {
            let mut superblock = superblock_on(disk);
            superblock.array.events = last + updates;
            superblock.array.updated = Timestamp::new(1, 0);
            let at = superblock.bitmap_sector().unwrap().0 * 512;
            let mut image = BitmapImage::decode(&disk.peek(at, 4096)).unwrap();
            for bit in 0..image.header().bit_count() {
                image.clear(bit);
            }
            image.set_events(superblock.array.events, image.header().events_cleared);
            disk.poke(at, image.as_bytes());
            disk.poke(4096, &superblock.encode(512).unwrap());
        }
        // And so it stays, whatever updates it next.
        for _ in 0..2 {
            let left: Vec<_> = scene.disks[1..].iter().map(SimDisk::source).collect();
            scene.array = arrays::assemble(&mut scene.world, left, options()).unwrap();
            scene.write(96, 8, true).unwrap();
            scene.stop();
        }
        let left: Vec<_> = scene.disks[1..].iter().map(SimDisk::source).collect();
        scene.array = arrays::assemble(&mut scene.world, left, options()).unwrap();
        let back = scene.disks[0].clone();
        assert_eq!(scene.add(&back).unwrap(), Added::Full { slot: 0 }, "{updates}");
        scene.proof();
    }
}

/// A kernel asks nothing but that when the member is to come back.
#[test]
fn a_bitmap_that_is_added_says_that_it_does_not_tell_what_a_member_missed_before() {
    let wish = wish(Level::Raid5, 4, CHUNK, NewBitmap::None, InitialSync::AssumeClean);
    let mut scene = Scene::with_options(4, wish, 1, options());
    scene.write(96, 8, true).unwrap();
    scene.fail(0);
    let array = scene.array.clone();
    scene.run(async move { array.add_bitmap(REGION).await }).unwrap();
    scene.write(960, 8, true).unwrap();
    scene.stop();
    let missed = scene.superblock(0).array.events;
    assert!((1..4).all(|disk| scene.bitmap(disk).unwrap().header().events_cleared > missed));
}

#[test]
fn a_member_that_lost_a_flush_comes_back_by_bitmap_with_all_that_the_flush_covered() {
    let mut scene = raid5(5);
    scene.write(0, 64, false).unwrap();
    scene.disks[1].fault(&Fault::FailFlushes(1));
    scene.flush().unwrap();
    assert_eq!(scene.array.detail().missing, 1);
    comes_back_whole(&mut scene, options());
}

/// The member in slot 1, which lost a flush, is added by bitmap. Then nothing is lost.
fn comes_back_whole(scene: &mut Scene, options: ArrayOptions) {
    let back = scene.disks[1].clone();
    assert_eq!(scene.add(&back).unwrap(), Added::Bitmap { slot: 1 });
    scene.settle();
    scene.flush().unwrap();
    // What the lost flush was to make durable only power loss shows.
    scene.crash();
    let sources = scene.disks.iter().map(SimDisk::source).collect();
    scene.array = arrays::assemble(&mut scene.world, sources, options).unwrap();
    scene.proof();
}

/// The same of the flush that goes before bits are cleared.
#[test]
fn a_member_that_lost_the_flush_of_a_sweep_comes_back_with_all_that_it_covered() {
    for seed in 0..4 {
        let options = ArrayOptions { sweep_ns: Some(SWEEP_NS), ..options() };
        let mut scene = array(seed, Level::Raid5, 4, options.clone());
        scene.write(0, 64, false).unwrap();
        scene.disks[1].fault(&Fault::FailFlushes(1));
        let served = scene.array.clone();
        scene.world.run_until(STEPS, |_| served.detail().missing == 1).unwrap();
        assert!(
            scene.array.detail().bitmap.unwrap().bits_set > 0,
            "what the flush covered has lost its bits"
        );
        comes_back_whole(&mut scene, options);
    }
}

#[test]
fn a_device_that_is_ahead_of_the_array_is_refused() {
    let mut scene = raid5(6);
    scene.fail(3);
    let ahead = scene.disks[3].clone();
    let mut superblock = superblock_on(&ahead);
    superblock.array.events += 100;
    ahead.poke(4096, &superblock.encode(512).unwrap());
    let refused = scene.add(&ahead);
    assert!(matches!(refused, Err(CommandError::Ahead { .. })), "{refused:?}");
}

#[test]
fn what_is_in_use_is_not_removed_and_what_is_removed_is_forgotten() {
    let mut scene = raid5(7);
    let spare = scene.disk();
    scene.add(&spare).unwrap();
    let in_use = scene.remove(Removed::Slot(1));
    assert!(matches!(in_use, Err(CommandError::InUse { slot: 1, .. })), "{in_use:?}");
    assert!(matches!(scene.remove(Removed::Slot(9)), Err(CommandError::NoSuchDevice(_))));
    assert_eq!(scene.remove(Removed::Device("disk4".to_owned())).unwrap(), "disk4");
    assert_eq!(scene.array.detail().spares.len(), 0);
    scene.fail(1);
    assert_eq!(role_of(&scene, &scene.disks[1].clone()), Role::Faulty);
    assert_eq!(scene.remove(Removed::Slot(1)).unwrap(), "disk1");
    assert_eq!(role_of(&scene, &scene.disks[1].clone()), Role::Spare, "as the kernel writes it");
    assert_eq!(scene.array.detail().failed.len(), 0);
    scene.add(&spare).unwrap();
    scene.proof();
}

#[test]
fn a_replaced_member_stays_in_use_until_the_copy_is_whole() {
    let mut scene = array(8, Level::Raid5, 4, in_small_steps());
    clients(&mut scene, 2, 30, 32);
    let target = scene.disk();
    assert_eq!(scene.replace(1, Some(&target)).unwrap(), "disk4");
    let superblock = superblock_on(&target);
    assert!(superblock.member.replacement && superblock.member.recovery_offset.is_some());
    assert_eq!(superblock.own_role(), Role::Slot(MemberSlot(1)));
    assert_eq!(role_of(&scene, &scene.disks[1].clone()), Role::Slot(MemberSlot(1)));
    let detail = scene.array.detail();
    assert_eq!((detail.missing, detail.slots[1].device.as_deref()), (0, Some("disk1")));
    assert_eq!(detail.slots[1].replacement.as_deref(), Some("disk4"));
    let again = scene.replace(1, None);
    assert!(matches!(again, Err(CommandError::NotReplaceable { slot: 1, .. })), "{again:?}");
    clients(&mut scene, 4, 40, 32);
    scene.settle();
    let detail = scene.array.detail();
    assert_eq!(detail.slots[1].device.as_deref(), Some("disk4"));
    assert!(detail.failed[0].error.to_string().contains("was replaced"));
    assert_eq!(role_of(&scene, &scene.disks[1].clone()), Role::Faulty);
    assert_eq!(scene.remove(Removed::Slot(1)).unwrap(), "disk1");
    scene.proof();
}

/// It was looked up, and the device that was to take its place took a while to open.
#[test]
fn a_replacement_of_a_member_that_has_left_its_slot_is_refused_and_no_device_is_touched() {
    let mut scene = raid5(13);
    let id_in = |scene: &Scene, slot: usize| scene.array.shared().snapshot().seats[slot].member().unwrap().id;
    let (was, spare, with) = (id_in(&scene, 1), scene.disk(), scene.disk());
    scene.replace(1, Some(&spare)).unwrap();
    scene.settle();
    let before = with.peek(0, 2048 * 512);
    let replace = |scene: &mut Scene, member, with: Option<&SimDisk>| {
        let (array, with) = (scene.array.clone(), with.map(SimDisk::source));
        scene.run(async move { array.replace_over((1, Some(member)), with, Uuid([201; 16]), &[]).await })
    };
    for device in [Some(&with), None] {
        let refused = replace(&mut scene, was, device);
        assert!(matches!(refused, Err(CommandError::NotReplaceable { slot: 1, .. })), "{refused:?}");
        assert!(refused.unwrap_err().to_string().contains("another one by now"));
    }
    assert_eq!(with.peek(0, 2048 * 512), before);
    let now = id_in(&scene, 1);
    assert_eq!(replace(&mut scene, now, Some(&with)).unwrap(), "disk5");
    scene.settle();
    scene.proof();
}

#[test]
fn a_replacement_while_another_slot_is_empty_is_refused_and_the_device_is_left_as_it_was() {
    let mut scene = raid5(12);
    scene.fail(3);
    let target = scene.disk();
    target.poke(0, &vec![0xa5; 64 << 10]);
    let before = target.peek(0, 2048 * 512);
    let refused = scene.replace(1, Some(&target));
    assert!(matches!(refused, Err(CommandError::OtherSlotEmpty { slot: 1, empty: 3 })), "{refused:?}");
    assert_eq!(target.peek(0, 2048 * 512), before);
    assert_eq!(scene.array.detail().missing, 1);
    // As the message says.
    let other = scene.disk();
    assert_eq!(scene.add(&other).unwrap(), Added::Full { slot: 3 });
    scene.replace(1, Some(&target)).unwrap();
    scene.settle();
    assert_eq!(scene.array.detail().slots[1].device.as_deref(), Some("disk4"));
    scene.proof();
}

/// C3. The update in which the array fails has left the lost members one event behind. A superblock that
/// goes first would leave them two behind, which is stale, and the array could not start when they are back.
#[test]
fn a_replacement_in_an_array_that_has_failed_writes_nothing_down() {
    let mut scene = raid5(61);
    let spare = scene.disk();
    assert_eq!(scene.add(&spare).unwrap(), Added::Spare);
    // Both are missed at once, by the update that makes the clean array dirty.
    scene.disks[0].fault(&Fault::Gone);
    scene.disks[1].fault(&Fault::Gone);
    assert_eq!(scene.write(0, 64, false), Err(IoError::Failed));
    let (behind, before) = (scene.superblock(0).array.events, superblock_on(&spare).array.events);
    assert_eq!(before, behind + 1);
    assert!(matches!(scene.replace(2, None), Err(CommandError::Io(IoError::Failed))));
    assert_eq!(superblock_on(&spare).array.events, before);
}

#[test]
fn a_replacement_copies_and_reconstructs_only_what_can_not_be_read() {
    let mut scene = raid5(9);
    clients(&mut scene, 2, 30, 32);
    scene.flush().unwrap();
    let bad = DATA_SECTOR * 512 + 40_960;
    scene.disks[1].fault(&Fault::UnreadableRange(bad..bad + 1024));
    let spare = scene.disk();
    scene.add(&spare).unwrap();
    let read =
        |scene: &Scene| -> u64 { [0, 2, 3].iter().map(|&d| scene.disks[d].counters().bytes_read).sum() };
    let before = read(&scene);
    assert_eq!(scene.replace(1, None).unwrap(), "disk4");
    scene.settle();
    assert!(read(&scene) - before <= 6 * CHUNK, "only one stripe is read from the others");
    scene.proof();
}

#[test]
fn a_replacement_whose_member_fails_goes_on_as_a_recovery_from_its_watermark() {
    let mut scene = array(10, Level::Raid5, 4, in_small_steps());
    clients(&mut scene, 2, 30, 32);
    let target = scene.disk();
    scene.replace(2, Some(&target)).unwrap();
    let (array, watch) = (scene.array.clone(), target.clone());
    let far = |_: &_| superblock_on(&watch).member.recovery_offset.is_some_and(|offset| offset.0 > 800);
    scene.world.run_until(STEPS, far).unwrap();
    assert!(array.detail().slots[2].replacement.is_some());
    scene.disks[2].fault(&Fault::Gone);
    let before = scene.disks[0].counters().bytes_read;
    clients(&mut scene, 1, 3, 8);
    scene.settle();
    assert!(scene.disks[0].counters().bytes_read - before < 1400 * 512, "not from the beginning");
    assert_eq!(scene.array.detail().slots[2].device.as_deref(), Some("disk4"));
    scene.proof();
}

/// Its read from the former member is ended by the change. The new one is not to be avoided for that: without
/// it nothing can make up for the slot that is missing.
#[test]
fn a_write_that_reads_a_member_as_it_is_replaced_beside_a_missing_one_succeeds() {
    let mut scene = array(14, Level::Raid5, 4, in_small_steps());
    clients(&mut scene, 2, 30, 32);
    let target = scene.disk();
    scene.replace(0, Some(&target)).unwrap();
    scene.fail(2);
    let is_late = |_: &_| superblock_on(&target).member.recovery_offset.is_some_and(|at| at.0 > 1600);
    scene.world.run_until(STEPS, is_late).unwrap();
    scene.array.pause_sync(true);
    // What is under way ends, and the array is dirty: all that the former member is asked for next is a read.
    scene.run(async { pinstripe_runtime::shard::sleep(1_000_000_000).await });
    scene.write(0, CHUNK / 512, false).unwrap();

    let former = scene.disks[0].clone();
    let asked = former.counters().reads;
    former.fault(&Fault::SlowBy(10 * SLOW));
    // The controller's volume: it lets go of the former member while the change waits for this write.
    let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
    let done = Rc::new(Cell::new(false));
    let is_done = Rc::clone(&done);
    scene.world.spawn(0, "write", async move {
        write(&volume, &ledger, 0, CHUNK / 512, false).await.unwrap();
        is_done.set(true);
    });
    scene.world.run_until(STEPS, |_| former.counters().reads > asked).unwrap();
    former.fault(&Fault::SlowBy(1));
    assert_eq!(scene.array.detail().slots[0].device.as_deref(), Some("disk0"));
    scene.array.pause_sync(false);
    scene.world.run_until(STEPS, |_| done.get()).unwrap();
    assert_eq!(scene.array.detail().slots[0].device.as_deref(), Some("disk4"), "the read was not held back");

    scene.read_all();
    let other = scene.disk();
    assert_eq!(scene.add(&other).unwrap(), Added::Full { slot: 2 });
    scene.proof();
}

#[test]
fn a_replacement_whose_target_fails_leaves_the_member_where_it_is() {
    let mut scene = array(11, Level::Raid6, 5, in_small_steps());
    clients(&mut scene, 2, 30, 32);
    let target = scene.disk();
    scene.replace(2, Some(&target)).unwrap();
    target.fault(&Fault::Gone);
    clients(&mut scene, 2, 30, 32);
    scene.settle();
    let detail = scene.array.detail();
    assert_eq!(detail.slots[2].device.as_deref(), Some("disk2"));
    assert_eq!(detail.failed.len(), 1);
    scene.proof();
}

#[test]
fn a_crash_at_any_step_of_a_replacement_leaves_a_complete_array() {
    for seed in 0..48_u64 {
        let mut scene = array(100 + seed, Level::Raid5, 4, in_small_steps());
        clients(&mut scene, 2, 20, 32);
        let target = scene.disk();
        let (array, source) = (scene.array.clone(), target.source());
        scene.world.spawn(0, "replace", async move {
            let _ = array.replace(1, Some(source), Uuid([200; 16])).await;
        });
        let volume = scene.volume();
        let ledger = Rc::clone(&scene.ledger);
        scene.world.spawn(0, "writer", async move {
            for at in 0..400 {
                let _ = arrays::scene::write(&volume, &ledger, at * 37 % 5000, 5, at % 7 == 0).await;
            }
        });
        let _ = scene.world.run_until(seed * 67, |_| false);
        scene.crash();
        let disks: Vec<SimDisk> = scene.disks.clone();
        let found = |disk: &&SimDisk| pinstripe_sim::checks::superblock(*disk).is_some();
        let sources = disks.iter().filter(found).map(SimDisk::source).collect();
        scene.array = arrays::assemble(&mut scene.world, sources, in_small_steps()).unwrap();
        assert_eq!(scene.array.detail().missing, 0, "seed {seed}");
        scene.read_all();
        clients(&mut scene, 2, 10, 32);
        scene.proof();
    }
}

/// A spare is removed at about the time at which it takes the slot of a member that fails. Whether it was
/// refused because it has.
fn a_spare_goes_and_is_needed(seed: u64) -> bool {
    let mut scene = raid5(200 + seed);
    scene.write(0, 64, true).unwrap();
    let spare = scene.disk();
    scene.add(&spare).unwrap();
    scene.disks[1].fault(&Fault::Gone);
    let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
    scene.world.spawn(0, "writer", async move {
        arrays::scene::write(&volume, &ledger, 0, 200, true).await.unwrap();
    });
    let _ = scene.world.run_until(seed * 3, |_| false);
    let removed = scene.remove(Removed::Device("disk4".to_owned()));
    let is_late = match removed {
        Ok(_) | Err(CommandError::InUse { .. }) => false,
        Err(CommandError::Io(IoError::MembershipChanged)) => true,
        other => panic!("seed {seed}: {other:?}"),
    };
    clients(&mut scene, 1, 5, 32);
    let snapshot = scene.array.shared().snapshot();
    if let Some(member) = snapshot.seats[1].member() {
        let members = scene.array.members();
        let state = &members.iter().find(|(id, ..)| *id == member.id).unwrap().3;
        assert_ne!(*state, MemberState::Removed, "seed {seed}: what holds a slot is a member");
    } else {
        scene.add(&spare).unwrap();
    }
    scene.proof();
    is_late
}

#[test]
fn a_spare_that_takes_a_slot_while_it_is_being_removed_stays() {
    let late = (0..160).filter(|&seed| a_spare_goes_and_is_needed(seed)).count();
    assert!(late > 0, "in no run the spare was looked up before it took the slot, and not after");
}

#[cfg(feature = "mutants")]
#[test]
fn a_spare_that_is_removed_from_its_slot_is_found() {
    use pinstripe_engine::mutants::Mutant;
    let scene = |seed| _ = a_spare_goes_and_is_needed(seed);
    assert!(arrays::defects::find(Mutant::SeatedSpareRemoved, 160, scene).is_some());
}
