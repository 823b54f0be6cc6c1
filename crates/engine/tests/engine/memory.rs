//! Writes that wait for memory, beside others that have it.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use pinstripe_block::Client;
use pinstripe_engine::{
    error::IoError,
    geometry::StripeId,
    options::{ArrayOptions, WorkMemory},
};
use pinstripe_md::{
    identity::Uuid,
    level::Level,
    placement::{InitialSync, NewArray, NewBitmap, NewDevice, NewLog},
    units::Sector,
};
use pinstripe_runtime::shard;
use pinstripe_sim::{Fault, World, WorldConfig};

use crate::arrays::{
    STEPS, options,
    scene::{Scene, wish},
};

const CHUNK: u64 = 256 << 10;

/// A write waits for a slow member, and wants memory when that has answered. The membership changes
/// meanwhile, and a write of the next one has taken all memory, waits until the superblocks know that
/// membership, and so for the end of writes of the one before.
fn a_write_of_the_membership_before_wants_memory(memory: WorkMemory) {
    let wish = NewArray {
        data_offset: Some(Sector(8192)),
        members: (0..4).map(|i| NewDevice { sectors: 16384, uuid: Uuid([i + 1; 16]) }).collect(),
        ..wish(Level::Raid5, 4, CHUNK, NewBitmap::None, InitialSync::AssumeClean)
    };
    let options = ArrayOptions { memory, gather_ns: 0, safe_mode_delay_ns: 100_000_000_000, ..options() };
    let world = World::new(WorldConfig { arena_bytes: 16 << 20, ..WorldConfig::new(1, 1) });
    let mut scene = Scene::with_log(world, &wish, NewLog::Ppl, options);
    scene.write(0, 96, true).unwrap();
    let shared = Arc::clone(scene.array.shared());
    let (first, second) = (scene.geometry().slots(StripeId(0)), scene.geometry().slots(StripeId(1)));
    let slow = first.data_slot(0).index();
    // The second write's column and parity stay, and so does the slow member.
    let column = (0..3).find(|&column| second.data_slot(column).index() != slow).unwrap();
    let stays = [slow, second.p_slot().index(), second.data_slot(column).index()];
    let failed = (0..4).find(|slot| !stays.contains(slot)).unwrap();
    let ended = Rc::new(Cell::new(0));
    let write = |scene: &mut Scene, offset: u64, length: usize| {
        let (volume, ended) = (scene.volume(), Rc::clone(&ended));
        scene.world.spawn(0, "write", async move {
            volume.write(offset, shard::zeroed(length).freeze(), false).await.unwrap();
            ended.set(ended.get() + 1);
        });
    };
    scene.disks[slow].fault(&Fault::SlowBy(5_000));
    // The log takes whole pages: the rest of this one is read.
    write(&mut scene, 512, 512);
    let reads = scene.disks[slow].counters().reads;
    scene.world.run_until(STEPS, |_| scene.disks[slow].counters().reads > reads).unwrap();
    scene.disks[slow].fault(&Fault::SlowBy(1));
    let generation = shared.admission.generation();
    let (array, failing) = (scene.array.clone(), Rc::clone(&ended));
    scene.world.spawn(0, "fail", async move {
        array.fail(failed).await.unwrap();
        failing.set(failing.get() + 1);
    });
    scene.world.run_until(STEPS, |_| shared.admission.generation() > generation).unwrap();
    assert_eq!(ended.get(), 0, "the slow member has answered already");
    write(&mut scene, (3 + column as u64) * CHUNK, usize::try_from(CHUNK).unwrap());
    scene.world.run_until(STEPS, |_| ended.get() == 3).unwrap();
}

#[test]
fn a_write_that_waits_for_memory_gives_way_to_a_change_of_the_membership() {
    a_write_of_the_membership_before_wants_memory(WorkMemory { writes: 2, bytes: 1 });
    a_write_of_the_membership_before_wants_memory(ArrayOptions::default().memory);
}

/// Requests to members that two requests have under way, on handles of their own, when a member is lost and
/// none is answered for a while.
fn under_way(memory: WorkMemory, writes: bool) -> u64 {
    let options = ArrayOptions { memory, gather_ns: 0, ..options() };
    let wish = wish(Level::Raid5, 4, CHUNK, NewBitmap::None, InitialSync::AssumeClean);
    let mut scene = Scene::with_options(1, wish, 1, options);
    let geometry = scene.geometry();
    scene.write(0, geometry.array_bytes() / 512, true).unwrap();
    let lost = geometry.slots(StripeId(0)).data_slot(0).index();
    let array = scene.array.clone();
    scene.run(async move { array.fail(lost).await.unwrap() });
    let ended = Rc::new(Cell::new(0));
    let submitted = |scene: &Scene| scene.disks.iter().map(|disk| disk.counters().reads).sum::<u64>();
    scene.disks.iter().for_each(|disk| disk.fault(&Fault::SlowBy(5_000)));
    let before = submitted(&scene);
    let column_of = |stripe| (0..3).find(|&c| geometry.slots(StripeId(stripe)).data_slot(c).index() == lost);
    let places =
        (0..geometry.stripes()).filter_map(|stripe| Some((stripe * 3 + column_of(stripe)? as u64) * CHUNK));
    for place in places.take(2) {
        let (volume, ended) = (scene.volume(), Rc::clone(&ended));
        scene.world.spawn(0, "request", async move {
            if writes {
                volume.write(place, shard::zeroed(4096).freeze(), false).await.unwrap();
            } else {
                volume.read(place, shard::buffer(4096)).await.0.unwrap();
            }
            ended.set(ended.get() + 1);
        });
    }
    scene.run(async { shard::sleep(5_000_000).await });
    let reads = submitted(&scene) - before;
    assert_eq!(ended.get(), 0, "the members have answered already");
    scene.world.run_until(STEPS, |_| ended.get() == 2).unwrap();
    reads
}

#[test]
fn requests_that_need_others_bytes_wait_for_memory_whatever_handles_they_use() {
    let (plenty, little) = (ArrayOptions::default().memory, WorkMemory { writes: 8, bytes: 1 });
    for writes in [false, true] {
        let reads = under_way(little, writes);
        assert!(reads >= 2, "{reads}");
        assert_eq!(under_way(plenty, writes), 2 * reads);
    }
    assert_eq!(under_way(WorkMemory { writes: 1, ..plenty }, true), under_way(little, true));
}

/// Another shard has room of its own: there a client that has hung up may have written the same again, and
/// more since.
#[test]
fn a_write_that_waits_for_memory_is_not_begun_when_its_client_has_hung_up() {
    for (stripes, hangs_up) in [(1, true), (2, true), (2, false)] {
        let memory = WorkMemory { writes: 1, ..ArrayOptions::default().memory };
        let options = ArrayOptions { memory, gather_ns: 0, ..options() };
        let wish = wish(Level::Raid5, 4, CHUNK, NewBitmap::None, InitialSync::AssumeClean);
        let mut scene = Scene::with_options(1, wish, 1, options);
        let stripe = 3 * CHUNK;
        let (has_hung_up, ended) = (Rc::new(Cell::new(false)), Rc::new(RefCell::new(Vec::new())));
        scene.disks.iter().for_each(|disk| disk.fault(&Fault::SlowBy(5_000)));
        let waits = {
            let has_hung_up = Rc::clone(&has_hung_up);
            scene.volume().for_client(Client::new(move || has_hung_up.get()))
        };
        for (volume, place, length) in [(scene.volume(), 0, 4096), (waits, stripe, stripes * stripe)] {
            let ended = Rc::clone(&ended);
            scene.world.spawn(0, "write", async move {
                let mut data = shard::buffer(usize::try_from(length).unwrap());
                data.fill(1);
                let result = volume.write(place, data.freeze(), false).await;
                ended.borrow_mut().push(result);
            });
        }
        scene.run(async { shard::sleep(5_000_000).await });
        assert!(ended.borrow().is_empty(), "the members have answered already: {:?}", ended.borrow());
        has_hung_up.set(hangs_up);
        scene.world.run_until(STEPS, |_| ended.borrow().len() == 2).unwrap();
        let expected = if hangs_up { Err(IoError::Abandoned) } else { Ok(()) };
        assert_eq!(*ended.borrow(), [Ok(()), expected]);
        let volume = scene.volume();
        let read = scene.run(async move { volume.read(stripe, shard::buffer(1 << 20)).await.1 });
        assert!(read.iter().all(|byte| *byte == u8::from(!hangs_up)));
    }
}
