//! Arrays whose members are memory, where the engine changes one column's data and parity where they lie.

use std::{
    cell::RefCell,
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use pinstripe_engine::{
    assembly::create::create_with,
    geometry::{MemberSlot, StripeId},
    options::{ArrayOptions, SyncSpeed},
    plan::WritePolicy,
    statistics::Statistics,
};
use pinstripe_md::{
    bad_blocks::BadBlocks,
    identity::Uuid,
    level::Level,
    placement::{InitialSync, NewBitmap, NewLog},
    superblock::Role,
    units::SectorCount,
};
use pinstripe_runtime::{
    Buffer, Device, DeviceError, DeviceInfo, DeviceSource, Memory, MemoryDevice, MemorySource, Slice,
    Submission, completion::Payload, memory::InPlace, shard,
};
use pinstripe_sim::{Ledger, World, WorldConfig};

use crate::arrays::{
    self, STEPS, options,
    scene::{DATA_SECTOR, Scene, client, spawn, wish, write},
    superblock_of,
};

const CHUNK: u64 = 16 << 10;
const BITMAP: NewBitmap = NewBitmap::Internal { chunk_bytes: Some(64 << 10) };
const BYTES: usize = 1 << 20;

struct Memories {
    scene: Scene,
    memories: Vec<Arc<Memory>>,
}

fn source(name: &str, memory: &Arc<Memory>) -> Arc<dyn DeviceSource> {
    Arc::new(MemorySource { name: name.to_owned(), memory: Arc::clone(memory), logical_block: 512 })
}

fn sources(memories: &[Arc<Memory>]) -> Vec<Arc<dyn DeviceSource>> {
    let named = |(number, memory)| source(&format!("member{number}"), memory);
    memories.iter().enumerate().map(named).collect()
}

impl Memories {
    fn new(seed: u64, level: Level, initial: InitialSync, options: ArrayOptions) -> Self {
        Self::with_log(seed, level, initial, NewLog::None, options)
    }

    fn with_log(seed: u64, level: Level, initial: InitialSync, log: NewLog, options: ArrayOptions) -> Self {
        let bitmap = if log == NewLog::None { BITMAP } else { NewBitmap::None };
        Self::with_bitmap(seed, level, initial, (bitmap, log), options)
    }

    fn with_bitmap(
        seed: u64,
        level: Level,
        initial: InitialSync,
        (bitmap, log): (NewBitmap, NewLog),
        options: ArrayOptions,
    ) -> Self {
        let members = 3 + u8::from(level == Level::Raid6) + seed.to_le_bytes()[0] % 3;
        let mut world = World::new(WorldConfig::new(seed, 2));
        let memories: Vec<_> = (0..members).map(|_| Memory::new(BYTES).unwrap()).collect();
        if initial == InitialSync::Resync {
            let fill = |(number, memory): (usize, &Arc<Memory>)| {
                memory.copy_in(0, &vec![number.to_le_bytes()[0] * 37 + 1; BYTES]).unwrap();
            };
            memories.iter().enumerate().for_each(fill);
        }
        let (wish, devices) = (wish(level, members, CHUNK, bitmap, initial), sources(&memories));
        let created = world.block_on(0, "create", STEPS, async move {
            let devices: Vec<_> = devices.iter().map(|source| source.attach().unwrap()).collect();
            create_with(&wish, log, &devices).await.map(|_| ())
        });
        created.unwrap().unwrap();
        let array = arrays::assemble(&mut world, sources(&memories), options.clone()).unwrap();
        let ledger = Rc::new(RefCell::new(Ledger::new(array.volume().size() / 512)));
        Self { scene: Scene { world, disks: vec![], array, ledger, options }, memories }
    }

    fn reassemble(&mut self) {
        let Scene { world, options, .. } = &mut self.scene;
        self.scene.array = arrays::assemble(world, sources(&self.memories), options.clone()).unwrap();
    }

    fn statistics(&self) -> Statistics {
        Statistics::sum(self.scene.array.shared().counters.iter().map(|counters| &**counters))
    }

    /// Whether data and P of a stripe's row of 512 bytes cancel each other out.
    fn row_matches(&self, stripe: StripeId, from: u64) -> bool {
        let at = DATA_SECTOR * 512 + self.scene.geometry().member_offset(stripe) + from;
        let mut sum = [0_u8; 512];
        for memory in &self.memories {
            let mut bytes = [0; 512];
            memory.copy_out(at, &mut bytes).unwrap();
            sum.iter_mut().zip(bytes).for_each(|(sum, byte)| *sum ^= byte);
        }
        sum == [0; 512]
    }

    /// Every byte is right, with any one member left out, and parity is.
    fn assert_right(mut self) {
        let array = self.scene.array.clone();
        self.scene.world.run_until(STEPS, |_| array.detail().regions_to_resync == 0).unwrap();
        self.scene.read_all();
        assert_eq!(self.scene.check(), 0);
        let slots = self.scene.geometry().slots(StripeId(0)).columns() + 1;
        for slot in (0..slots).take(2) {
            let array = self.scene.array.clone();
            let rebuilt = self.scene.run(async move {
                array.fail(slot).await.unwrap();
                array.add(source("another", &Memory::new(BYTES).unwrap()), Uuid([99; 16])).await
            });
            self.scene.read_all();
            rebuilt.unwrap();
            let array = self.scene.array.clone();
            self.scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();
        }
        self.scene.read_all();
        assert_eq!(self.scene.check(), 0);
    }
}

/// Most writes are small, several are to the same stripe at a time, and some fill stripes.
fn writers(scene: &mut Scene, count: u64, operations: u64) -> Rc<RefCell<u64>> {
    spawn(scene, count, move |number, volume, ledger, mut rng| async move {
        if number % 3 == 0 {
            let sectors_max = if number == 0 { 300 } else { 12 };
            return client(volume, ledger, rng, operations, sectors_max).await;
        }
        for _ in 0..operations {
            let at = rng.below(160);
            write(&volume, &ledger, at, 1 + rng.below(8), rng.below(8) == 0).await.unwrap();
        }
    })
}

fn writes_are_right(seed: u64) {
    for level in [Level::Raid4, Level::Raid5, Level::Raid6] {
        let mut memories = Memories::new(seed, level, InitialSync::AssumeClean, options());
        let done = writers(&mut memories.scene, 12, 40);
        memories.scene.world.run_until(STEPS, |_| *done.borrow() == 12).unwrap();
        let statistics = memories.statistics();
        assert!(statistics.rmw_runs * 8 > statistics.batches, "{statistics:?}");
        memories.assert_right();
    }
}

#[test]
fn columns_that_are_changed_in_place_are_right() {
    (0..12).for_each(writes_are_right);
}

/// Members are missing, as many as the level can do without, while writers are at work.
fn writes_without_members_are_right(seed: u64) {
    for (level, lost) in [(Level::Raid4, 1), (Level::Raid5, 1), (Level::Raid6, 1), (Level::Raid6, 2)] {
        let mut memories = Memories::new(seed, level, InitialSync::AssumeClean, options());
        let slots = memories.memories.len();
        let first = usize::try_from(seed).unwrap() % slots;
        let missing: Vec<usize> = (0..lost).map(|number| (first + number) % slots).collect();
        let array = memories.scene.array.clone();
        let goes = missing.clone();
        memories.scene.run(async move {
            for slot in goes {
                array.fail(slot).await.unwrap();
            }
        });
        let done = writers(&mut memories.scene, 12, 40);
        memories.scene.world.run_until(STEPS, |_| *done.borrow() == 12).unwrap();
        // What the missing ones held is made of the others.
        memories.scene.read_all();
        let array = memories.scene.array.clone();
        memories.scene.run(async move {
            for slot in missing {
                let other = source(&format!("another{slot}"), &Memory::new(BYTES).unwrap());
                array.add(other, Uuid([90 + slot.to_le_bytes()[0]; 16])).await.unwrap();
            }
        });
        let array = memories.scene.array.clone();
        memories.scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();
        memories.assert_right();
    }
}

#[test]
fn columns_that_are_changed_in_place_beside_missing_members_are_right() {
    (0..12).for_each(writes_without_members_are_right);
}

/// While writers are at work, a member is dropped and another one is built, or one is replaced.
fn changes_of_members_are_right(seed: u64) {
    let level = if seed.is_multiple_of(2) { Level::Raid5 } else { Level::Raid6 };
    let mut memories = Memories::new(seed, level, InitialSync::AssumeClean, options());
    let done = writers(&mut memories.scene, 12, 120);
    let array = memories.scene.array.clone();
    let ended = Rc::new(RefCell::new(false));
    let end = Rc::clone(&ended);
    memories.scene.world.spawn(0, "change", async move {
        for slot in 0..2 {
            let other = source("another", &Memory::new(BYTES).unwrap());
            if seed % 4 < 2 {
                array.replace(slot, Some(other), Uuid([98; 16])).await.unwrap();
                while array.detail().slots[slot].replacement.is_some() {
                    shard::sleep(1_000_000).await;
                }
            } else {
                array.fail(slot).await.unwrap();
                array.add(other, Uuid([99; 16])).await.unwrap();
                while array.detail().missing > 0 {
                    shard::sleep(1_000_000).await;
                }
            }
        }
        *end.borrow_mut() = true;
    });
    memories.scene.world.run_until(STEPS, |_| *done.borrow() == 12 && *ended.borrow()).unwrap();
    memories.assert_right();
}

#[test]
fn nothing_is_changed_in_place_while_members_change() {
    (0..16).for_each(changes_of_members_are_right);
}

/// The process dies at work; its members' memory stays.
fn crashes_are_survived(seed: u64) {
    let mut memories = Memories::new(seed, Level::Raid5, InitialSync::AssumeClean, options());
    for round in 0..3 {
        let done = writers(&mut memories.scene, 9, 1000);
        let start = memories.statistics().batches;
        let shared = Arc::clone(memories.scene.array.shared());
        let enough = |_: &World| {
            let sum = Statistics::sum(shared.counters.iter().map(|counters| &**counters));
            sum.batches - start > 100 + 31 * (seed + round)
        };
        memories.scene.world.run_until(STEPS, enough).unwrap();
        assert!(*done.borrow() < 9, "the writers were through before the crash");
        drop(shared);
        memories.scene.world.crash();
        memories.scene.ledger.borrow_mut().crash();
        memories.reassemble();
        assert!(memories.scene.array.detail().regions_to_resync > 0);
    }
    memories.assert_right();
}

#[test]
fn a_crash_of_the_process_leaves_intent_for_what_was_being_changed() {
    (0..8).for_each(crashes_are_survived);
}

/// Parity that was never made can't be changed: it is made of the row's data (C10).
fn rows_out_of_sync_are_encoded_whole(seed: u64) {
    let slow = SyncSpeed { min_kib: 1, max_kib: 1 };
    let options = ArrayOptions { sync_speed: slow, ..options() };
    let mut memories = Memories::new(3 * seed, Level::Raid5, InitialSync::Resync, options);
    let last = memories.scene.geometry().stripes() - 1;
    let sector = memories.scene.geometry().array_offset(StripeId(last), 4096) / 512;
    assert!(!memories.row_matches(StripeId(last), 4096));
    memories.scene.write(sector, 1, false).unwrap();
    assert!(memories.row_matches(StripeId(last), 4096));
    assert!(!memories.row_matches(StripeId(last), 4096 + 512), "the resync has come this far");
}

#[test]
fn a_row_that_is_out_of_sync_is_not_changed_in_place() {
    (0..2).for_each(rows_out_of_sync_are_encoded_whole);
}

/// What devices were asked for: writes, those past the caches, changes in place.
type Asked = Arc<[AtomicU64; 3]>;

/// Counts what it is asked for, and has nothing changed in place.
struct Recorder(Rc<MemoryDevice>, Asked);

impl Device for Recorder {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }
    fn read(&self, offset: u64, buffer: Buffer) -> Submission {
        self.0.read(offset, buffer)
    }
    fn write(&self, offset: u64, data: Slice, fua: bool) -> Submission {
        self.1[0].fetch_add(1, Ordering::Relaxed);
        self.0.write(offset, data, fua)
    }
    fn write_streaming(&self, offset: u64, data: Slice, fua: bool) -> Submission {
        self.1[1].fetch_add(1, Ordering::Relaxed);
        self.0.write_streaming(offset, data, fua)
    }
    fn in_place(&self, _: u64, _: usize) -> Option<InPlace<'_>> {
        self.1[2].fetch_add(1, Ordering::Relaxed);
        None
    }
    fn flush(&self) -> Submission {
        self.0.flush()
    }
    fn discard(&self, offset: u64, length: u64) -> Submission {
        self.0.discard(offset, length)
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> Submission {
        self.0.write_zeroes(offset, length)
    }
}

struct Recorded(Arc<Memory>, Asked);

impl DeviceSource for Recorded {
    fn attach(&self) -> Result<Rc<dyn Device>, DeviceError> {
        Ok(Rc::new(Recorder(MemoryDevice::new("recorded", Arc::clone(&self.0), 512), Arc::clone(&self.1))))
    }
    fn name(&self) -> String {
        "recorded".to_owned()
    }
}

/// The array over devices that count.
struct Counted {
    memories: Memories,
    asked: Asked,
}

impl Counted {
    fn new(mut memories: Memories, options: ArrayOptions) -> Self {
        memories.scene.stop();
        let asked: Asked = Arc::default();
        let recorded = memories.memories.iter().map(|memory| -> Arc<dyn DeviceSource> {
            Arc::new(Recorded(Arc::clone(memory), Arc::clone(&asked)))
        });
        let recorded = recorded.collect();
        memories.scene.array = arrays::assemble(&mut memories.scene.world, recorded, options).unwrap();
        // The superblocks are dirty and the bits set before anything is counted.
        memories.scene.write(0, 1, false).unwrap();
        Self { memories, asked }
    }

    /// What a write of so many sectors asks the members for.
    fn asked_by(&mut self, sectors: u64) -> [u64; 3] {
        let now = |asked: &Asked| asked.each_ref().map(|count| count.load(Ordering::Relaxed));
        let before = now(&self.asked);
        self.memories.scene.write(0, sectors, false).unwrap();
        let after = now(&self.asked);
        [0, 1, 2].map(|kind| after[kind] - before[kind])
    }
}

fn raid5(log: NewLog) -> Memories {
    Memories::with_log(1, Level::Raid5, InitialSync::AssumeClean, log, options())
}

#[test]
fn what_nothing_was_read_of_is_written_past_the_caches() {
    let mut counted = Counted::new(raid5(NewLog::None), options());
    let members = counted.memories.memories.len() as u64;
    assert_eq!(counted.asked_by((members - 1) * CHUNK / 512), [0, members, 0]);
    assert_eq!(counted.asked_by(1), [2, 0, 1]);
}

/// What comes between an array and its members.
#[derive(Default)]
struct Between {
    /// Metadata is not written as long as this is so,
    holds: AtomicBool,
    /// and from when on this device's superblock says that it is a whole member.
    holds_behind: Mutex<Option<Arc<Memory>>>,
    /// The process ends before the store of the member with this number.
    without: AtomicUsize,
    /// Ranges that were changed in place.
    changed: AtomicU64,
}

impl Between {
    fn new() -> Arc<Self> {
        Arc::new(Self { without: usize::MAX.into(), ..Self::default() })
    }

    fn holds(&self) -> bool {
        let behind = self.holds_behind.lock().unwrap();
        let is_whole = |memory: &Arc<Memory>| {
            let superblock = superblock_of(memory);
            superblock.member.recovery_offset.is_none() && superblock.own_role() != Role::Spare
        };
        self.holds.load(Ordering::Relaxed) || behind.as_ref().is_some_and(is_whole)
    }

    fn release(&self) {
        self.holds.store(false, Ordering::Relaxed);
        *self.holds_behind.lock().unwrap() = None;
    }

    fn changed(&self) -> u64 {
        self.changed.load(Ordering::Relaxed)
    }

    /// The array's members, with this between.
    fn sources(self: &Arc<Self>, memories: &[Arc<Memory>]) -> Vec<Arc<dyn DeviceSource>> {
        let source = |(number, memory): (usize, &Arc<Memory>)| -> Arc<dyn DeviceSource> {
            let (memory, between) = (Arc::clone(memory), Arc::clone(self));
            Arc::new(Reached { number, memory, lost: Memory::new(BYTES).unwrap(), between })
        };
        memories.iter().enumerate().map(source).collect()
    }
}

/// A member behind it.
#[derive(Clone)]
struct Reached {
    number: usize,
    memory: Arc<Memory>,
    /// Gets what is not stored.
    lost: Arc<Memory>,
    between: Arc<Between>,
}

struct ReachedDevice(Rc<MemoryDevice>, Reached);

impl DeviceSource for Reached {
    fn attach(&self) -> Result<Rc<dyn Device>, DeviceError> {
        let device = MemoryDevice::new(&self.name(), Arc::clone(&self.memory), 512);
        Ok(Rc::new(ReachedDevice(device, self.clone())))
    }
    fn name(&self) -> String {
        format!("member{}", self.number)
    }
}

impl Device for ReachedDevice {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }
    fn read(&self, offset: u64, buffer: Buffer) -> Submission {
        self.0.read(offset, buffer)
    }
    fn write(&self, offset: u64, data: Slice, fua: bool) -> Submission {
        let (device, between) = (Rc::clone(&self.0), Arc::clone(&self.1.between));
        if offset >= DATA_SECTOR * 512 || !between.holds() {
            return device.write(offset, data, fua);
        }
        let (submission, completion) = Submission::pending(Payload::Slice(data.clone()));
        shard::spawn(async move {
            while between.holds() {
                shard::sleep(1_000_000).await;
            }
            completion.finish(device.write(offset, data, fua).await.result);
        });
        submission
    }
    fn in_place(&self, offset: u64, length: usize) -> Option<InPlace<'_>> {
        let Reached { number, memory, lost, between } = &self.1;
        between.changed.fetch_add(1, Ordering::Relaxed);
        if between.without.load(Ordering::Relaxed) != *number {
            return self.0.in_place(offset, length);
        }
        let mut bytes = vec![0; length];
        memory.copy_out(offset, &mut bytes).unwrap();
        lost.copy_in(offset, &bytes).unwrap();
        lost.in_place(offset, length)
    }
    fn flush(&self) -> Submission {
        self.0.flush()
    }
    fn discard(&self, offset: u64, length: u64) -> Submission {
        self.0.discard(offset, length)
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> Submission {
        self.0.write_zeroes(offset, length)
    }
}

/// An array with that between, in which something far from its end was written.
fn reached(level: Level) -> (Memories, Arc<Between>) {
    let mut memories = Memories::new(1, level, InitialSync::AssumeClean, options());
    memories.scene.stop();
    let between = Between::new();
    let sources = between.sources(&memories.memories);
    memories.scene.array = arrays::assemble(&mut memories.scene.world, sources, options()).unwrap();
    memories.scene.write(0, 1, false).unwrap();
    (memories, between)
}

/// The first sector of the last stripe, and the slots of its data and parity.
fn last(scene: &Scene) -> (u64, Vec<usize>) {
    let geometry = scene.geometry();
    let stripe = StripeId(geometry.stripes() - 1);
    let map = geometry.slots(stripe);
    let slots = [map.data_slot(0), map.p_slot()].into_iter().chain(map.q_slot());
    (geometry.array_offset(stripe, 0) / 512, slots.map(MemberSlot::index).collect())
}

/// One of the members has not got its part.
#[test]
fn a_change_in_place_that_the_process_did_not_end_is_resynced() {
    for level in [Level::Raid5, Level::Raid6] {
        for number in 0..if level == Level::Raid6 { 3 } else { 2 } {
            let (mut memories, between) = reached(level);
            let (sector, slots) = last(&memories.scene);
            between.without.store(slots[number], Ordering::Relaxed);
            let before = between.changed();
            memories.scene.write(sector, 1, false).unwrap();
            assert_eq!(between.changed() - before, slots.len() as u64, "{level:?}");
            memories.scene.world.crash();
            memories.scene.ledger.borrow_mut().crash();
            memories.reassemble();
            memories.assert_right();
        }
    }
}

/// Another member is missing, and no sweep may take the bit that tells it what it has missed (C8).
#[test]
fn what_is_changed_in_place_beside_a_missing_member_is_marked_as_missed() {
    let (mut memories, between) = reached(Level::Raid5);
    let (sector, slots) = last(&memories.scene);
    let missing = (0..memories.memories.len()).find(|slot| !slots.contains(slot)).unwrap();
    let array = memories.scene.array.clone();
    memories.scene.run(async move { array.fail(missing).await }).unwrap();
    let before = between.changed();
    memories.scene.write(sector, 1, false).unwrap();
    assert_eq!(between.changed() - before, 2, "it is no change in place");
    let geometry = memories.scene.geometry();
    let offset = geometry.member_offset(StripeId(geometry.stripes() - 1));
    let intent = Arc::clone(&memories.scene.array.shared().snapshot().intent);
    let region = *intent.regions(offset, 512).start();
    assert!(intent.is_set(region));
    // Behind the first it counts as untouched.
    intent.sweep_candidates();
    assert!(!intent.sweep_candidates().contains(&region));
}

#[test]
fn a_change_in_place_has_the_bits_of_all_regions_that_it_touches() {
    let bitmap = NewBitmap::Internal { chunk_bytes: Some(4096) };
    let (level, initial) = (Level::Raid5, InitialSync::AssumeClean);
    let mut memories = Memories::with_bitmap(1, level, initial, (bitmap, NewLog::None), options());
    let stripe = u64::from(memories.scene.geometry().stripe_bytes()) / 512;
    for number in 0..16 {
        memories.scene.write(number * stripe + 4, 8, false).unwrap();
    }
    let detail = memories.scene.array.detail();
    assert_eq!(detail.bitmap.unwrap().bits_set, 32);
    memories.assert_right();
}

/// Begins writes of the first sectors of the last stripe, and gives how many have been answered.
fn begin(scene: &mut Scene) -> Rc<RefCell<u64>> {
    let (sector, _) = last(scene);
    spawn(scene, 1, move |_, volume, ledger, _| async move {
        write(&volume, &ledger, sector, 1, false).await.unwrap();
    })
}

#[test]
fn nothing_is_changed_in_place_before_its_intent_is_durable() {
    let (mut memories, between) = reached(Level::Raid5);
    between.holds.store(true, Ordering::Relaxed);
    let before = between.changed();
    let answered = begin(&mut memories.scene);
    memories.scene.run(async { shard::sleep(1_000_000_000).await });
    assert_eq!((between.changed() - before, *answered.borrow()), (0, 0));
    between.release();
    memories.scene.world.run_until(STEPS, |_| *answered.borrow() == 1).unwrap();
    assert_eq!(between.changed() - before, 2, "it is no change in place");
}

/// The others still call the member current that was replaced, and that has not got it (C2).
#[test]
fn no_change_in_place_is_acknowledged_before_superblocks_name_the_member_that_has_it() {
    let (mut memories, between) = reached(Level::Raid5);
    let (sector, slots) = last(&memories.scene);
    let (array, target) = (memories.scene.array.clone(), Memory::new(BYTES).unwrap());
    array.pause_sync(true);
    let with = source("target", &target);
    let slot = slots[0];
    memories.scene.run(async move { array.replace(slot, Some(with), Uuid([98; 16])).await }).unwrap();
    // Its bit is there.
    memories.scene.write(sector, 1, false).unwrap();
    *between.holds_behind.lock().unwrap() = Some(Arc::clone(&target));
    let array = memories.scene.array.clone();
    array.pause_sync(false);
    memories.scene.world.run_until(STEPS, |_| array.detail().slots[slot].replacement.is_none()).unwrap();
    let before = between.changed();
    let answered = begin(&mut memories.scene);
    memories.scene.run(async { shard::sleep(1_000_000_000).await });
    assert_eq!((between.changed() - before, *answered.borrow()), (1, 0), "parity's member is asked alone");
    between.release();
    memories.scene.world.run_until(STEPS, |_| *answered.borrow() == 1).unwrap();
}

/// Lists a sector of a member as bad, far from what is written here.
fn list_a_sector(memory: &Memory) {
    let mut superblock = superblock_of(memory);
    let log = superblock.member.bad_block_log.as_mut().unwrap();
    log.in_use = true;
    let (mut list, size) = (BadBlocks::new(log.shift).unwrap(), SectorCount(log.size.into()));
    list.insert(DATA_SECTOR + 1000..DATA_SECTOR + 1001).unwrap();
    let place = superblock.bad_block_log_sector().unwrap().0 * 512;
    memory.copy_in(place, &list.encode(size).unwrap()).unwrap();
    memory.copy_in(superblock.member.super_offset.0 * 512, &superblock.encode(512).unwrap()).unwrap();
}

#[test]
fn only_where_all_is_plain_is_a_column_changed_in_place() {
    let asked = |memories: Memories, options: ArrayOptions| Counted::new(memories, options).asked_by(1)[2];
    assert_eq!(asked(raid5(NewLog::None), options()), 1);
    let rmw = ArrayOptions { policy: WritePolicy::AlwaysRmw, ..options() };
    assert_eq!(asked(raid5(NewLog::None), rmw), 0, "another policy");
    assert_eq!(asked(raid5(NewLog::Ppl), options()), 0, "a log");
    let mut listed = raid5(NewLog::None);
    listed.scene.stop();
    list_a_sector(&listed.memories[0]);
    listed.reassemble();
    assert_eq!(asked(listed, options()), 0, "a sector that is listed as bad");
    // Of a degraded array a column that is there is, with the parity that is there.
    let slots = raid5(NewLog::None).scene.geometry().slots(StripeId(0));
    let columns = slots.columns();
    for (slot, ranges) in [(slots.data_slot(0), 0), (slots.data_slot(columns - 1), 1), (slots.p_slot(), 1)] {
        let mut degraded = Counted::new(raid5(NewLog::None), options());
        let array = degraded.memories.scene.array.clone();
        degraded.memories.scene.run(async move { array.fail(slot.index()).await }).unwrap();
        assert_eq!(degraded.asked_by(1)[2], ranges, "{slot:?} is missing");
    }
}

#[cfg(feature = "mutants")]
#[test]
fn defects_of_changes_in_place_are_found() {
    use pinstripe_engine::mutants::Mutant;
    let stories: [(Mutant, fn(u64)); 2] = [
        (Mutant::InPlaceOutOfSync, rows_out_of_sync_are_encoded_whole),
        (Mutant::InPlaceUnasked, changes_of_members_are_right),
    ];
    for (mutant, story) in stories {
        assert!(arrays::defects::find(mutant, 16, story).is_some(), "{mutant:?} lives");
    }
    assert_eq!(stories.map(|(mutant, _)| mutant).as_slice(), Mutant::OF_PLACE);
}
