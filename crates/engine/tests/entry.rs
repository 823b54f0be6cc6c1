//! The door to the members: what enters under a membership and is held up there does no harm to the next one (C27).
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod arrays;

use std::sync::Arc;

use arrays::{
    STEPS, options,
    scene::{Scene, wish},
};
use pinstripe_engine::{array::Added, maintenance::SyncAction, volume::Volume};
use pinstripe_md::{
    identity::Uuid,
    level::Level,
    placement::{InitialSync, NewBitmap},
};
use pinstripe_runtime::shard;

const STRIPE: u64 = 48 << 10;
const MILLISECOND: u64 = 1_000_000;

/// Every stripe is full of bytes, no bit is set, and the second member has gone.
fn degraded(seed: u64) -> Scene {
    let bitmap = NewBitmap::Internal { chunk_bytes: Some(65536) };
    let wish = wish(Level::Raid5, 4, 16 << 10, bitmap, InitialSync::AssumeClean);
    let mut scene = Scene::with_options(seed, wish, 2, options());
    let volume = scene.volume();
    scene.run(async move {
        for at in (0..volume.size()).step_by(usize::try_from(STRIPE).unwrap()) {
            let mut data = shard::buffer(usize::try_from(STRIPE).unwrap());
            data.fill(0xaa);
            volume.write(at, data.freeze(), false).await.unwrap();
        }
    });
    let array = scene.array.clone();
    let is_swept = |_: &_| array.detail().bitmap.unwrap().bits_set == 0;
    scene.world.run_until(STEPS, is_swept).unwrap();
    let array = scene.array.clone();
    scene.run(async move { array.fail(1).await }).unwrap();
    scene
}

/// A check that is under way when the membership changes: its task looks at once at what is to be done next.
fn check_slowly(scene: &mut Scene) {
    let array = scene.array.clone();
    scene.run(async move {
        let mut speed = array.sync_speed();
        (speed.min_kib, speed.max_kib) = (16, 16);
        array.set_sync_speed(speed).unwrap();
        let checked = array.clone();
        shard::spawn(async move { drop(checked.check().await) });
        shard::sleep(100 * MILLISECOND).await;
        assert!(array.progress().is_some_and(|progress| progress.action == SyncAction::Check));
    });
}

/// A stripe is zeroed, and its thread is off its CPU for a second as soon as the zeroes have entered. Meanwhile the member that was
/// missing comes back by bitmap.
fn zeroes_are_held_up_while_a_member_comes_back(seed: u64) {
    let mut scene = degraded(seed);
    check_slowly(&mut scene);
    let replans = scene.array.detail().statistics.replans;
    let stripe = 12 * STRIPE;
    scene.world.interrupt_next(1, 1000 * MILLISECOND);
    let shared = Arc::clone(scene.array.shared());
    scene.world.spawn(1, "zeroes", async move {
        Volume::new(shared).write_zeroes(stripe, STRIPE, false).await.unwrap();
    });
    let shared = Arc::clone(scene.array.shared());
    scene.world.run_until(STEPS, |_| shared.admission.writers() == 1).unwrap();

    let (array, source) = (scene.array.clone(), scene.disks[1].source());
    let (recovers, added) = scene.run(async move {
        let owner = array.clone();
        let added = shard::spawn_joined(async move { owner.add(source, Uuid([0x55; 16])).await });
        shard::sleep(500 * MILLISECOND).await;
        let recovers = array.progress().is_some_and(|progress| progress.action == SyncAction::Recovery);
        let mut speed = array.sync_speed();
        speed.max_kib = 1 << 20;
        array.set_sync_speed(speed).unwrap();
        (recovers, added.join().await)
    });
    assert!(matches!(added, Ok(Added::Bitmap { slot: 1 })), "{added:?}");
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();

    let volume = scene.volume();
    let length = usize::try_from(STRIPE).unwrap();
    let (read, bytes) = scene.run(async move { volume.read(stripe, shard::buffer(length)).await });
    read.unwrap();
    let stale = bytes.iter().filter(|byte| **byte != 0).count();
    drop(bytes);
    assert_eq!(stale, 0, "bytes of the zeroed stripe read as before");
    assert_eq!(scene.check(), 0, "sectors don't match");
    assert!(
        !recovers,
        "the recovery has read its bits while writers of the earlier membership were under way"
    );
    assert!(
        scene.array.detail().statistics.replans > replans,
        "the zeroes were written under the earlier membership"
    );
}

#[test]
fn zeroes_of_an_earlier_membership_do_no_harm_to_who_comes_back_by_bitmap() {
    (0..4).for_each(zeroes_are_held_up_while_a_member_comes_back);
}

#[cfg(feature = "mutants")]
#[test]
fn an_earlier_membership_that_is_trusted_is_found() {
    use pinstripe_engine::mutants::Mutant;
    for mutant in [Mutant::LookLeftOut, Mutant::BitsReadUndrained, Mutant::EarlierMembershipTrusted] {
        let found = arrays::defects::find(mutant, 4, zeroes_are_held_up_while_a_member_comes_back);
        assert!(found.is_some(), "{mutant:?}");
    }
}
