//! Writes that wait for memory, beside others that have it.

use std::{cell::Cell, rc::Rc, sync::Arc};

use pinstripe_engine::{
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
