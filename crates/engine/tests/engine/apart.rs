//! Members that were served apart: one half of an array of level 6, and then the other half. What the one has
//! written, the other doesn't know, and events count both lives.

use std::{cell::Cell, rc::Rc};

use crate::{
    arrays::{
        STEPS, assemble, options,
        scene::{Scene, wish},
    },
    membership::Life,
};
use pinstripe_engine::{
    array::{Added, Array},
    options::ArrayOptions,
};
use pinstripe_md::{
    identity::Uuid,
    level::Level,
    placement::{InitialSync, NewBitmap},
};
use pinstripe_runtime::shard;
use pinstripe_sim::Fault;

/// Where a life apart writes, and seldom anything else does.
const APART: u64 = 1200;
const SECTORS: u64 = 24;

/// Written whole, with no bit set any more, and stopped.
fn array(seed: u64) -> Scene {
    let bitmap = NewBitmap::Internal { chunk_bytes: Some(32 << 10) };
    let wish = wish(Level::Raid6, 4, 4096, bitmap, InitialSync::AssumeClean);
    let options = ArrayOptions { sweep_ns: Some(10_000_000), ..options() };
    let mut scene = Scene::with_options(seed, wish, 2, options);
    let sectors = scene.volume().size() / 512;
    scene.write(0, sectors, true).unwrap();
    until(&mut scene, |array| array.detail().bitmap.unwrap().bits_set == 0);
    scene.stop();
    scene
}

/// Starts it of these disks only, although others are members.
fn start_with(scene: &mut Scene, disks: [usize; 2]) {
    let sources = disks.map(|disk| scene.disks[disk].source()).to_vec();
    scene.array = assemble(&mut scene.world, sources, scene.options.clone()).unwrap();
}

fn until(scene: &mut Scene, is_so: impl Fn(&Array) -> bool) {
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| is_so(&array)).unwrap();
}

/// A write of which the ledger knows nothing: it belongs to another life of the array.
fn write_apart(scene: &mut Scene) {
    let volume = scene.volume();
    scene.run(async move {
        let mut data = shard::buffer(usize::try_from(SECTORS).unwrap() * 512);
        data.fill(0x5a);
        volume.write(APART * 512, data.freeze(), true).await.unwrap();
    });
}

/// It is written and clean again, until so many events are counted.
fn pass_events(scene: &mut Scene, events: u64, write: impl Fn(&mut Scene)) {
    while scene.array.detail().events < events {
        write(scene);
        until(scene, |array| array.detail().state == "clean");
    }
}

/// The first half writes, and is gone. The other half is served without it, until it has more events.
fn served_apart(seed: u64, first: impl Fn(&mut Scene)) -> Scene {
    let mut scene = array(seed);
    start_with(&mut scene, [0, 1]);
    first(&mut scene);
    scene.stop();
    let events = scene.superblock(0).array.events;
    start_with(&mut scene, [2, 3]);
    // One more would leave it to doubt at a start which half is the array.
    pass_events(&mut scene, events + 2, |scene| scene.write(96, 8, true).unwrap());
    scene
}

/// A member of the first half is added. Everything is right then, whatever it wrote.
fn comes_back(scene: &mut Scene, disk: usize) -> Added {
    let (array, source) = (scene.array.clone(), scene.disks[disk].source());
    let identity = Uuid([90; 16]);
    let added = scene.run(async move { array.add(source, identity).await }).unwrap();
    until(scene, |array| array.detail().slots[disk].state == "in-sync");
    // All data of a row that has parity only among the others is read of it.
    scene.read_all();
    added
}

/// Neither half has cleared a bit since.
fn back_from_a_life_apart(seed: u64) {
    let mut scene = served_apart(seed, write_apart);
    for slot in [0, 1] {
        assert_eq!(comes_back(&mut scene, slot), Added::Bitmap { slot });
    }
    scene.proof();
}

/// Two other devices take the slots that are empty, and all bits are cleared.
fn is_made_whole(scene: &mut Scene, slots: [usize; 2]) {
    for slot in slots {
        let other = scene.disk();
        assert_eq!(scene.add(&other).unwrap(), Added::Full { slot });
    }
    scene.settle();
}

/// The first half was made whole, and has cleared the bits of what it wrote.
fn back_from_a_whole_life_apart(seed: u64) {
    let mut scene = served_apart(seed, |scene| {
        is_made_whole(scene, [2, 3]);
        write_apart(scene);
        until(scene, |array| array.detail().bitmap.unwrap().bits_set == 0);
    });
    assert_eq!(comes_back(&mut scene, 0), Added::Full { slot: 0 });
}

/// The other half was made whole, and has cleared the bits of what it wrote, when it had fewer events than
/// the first: these don't tell that the first one lacks it.
fn back_to_a_life_that_was_whole(seed: u64) {
    const EVENTS: u64 = 100;
    let mut scene = array(seed);
    start_with(&mut scene, [0, 1]);
    pass_events(&mut scene, EVENTS, write_apart);
    scene.stop();
    let events = scene.superblock(0).array.events;
    start_with(&mut scene, [2, 3]);
    is_made_whole(&mut scene, [0, 1]);
    scene.write(300, 200, true).unwrap();
    until(&mut scene, |array| array.detail().bitmap.unwrap().bits_set == 0);
    scene.fail(0);
    assert!(scene.array.detail().events < EVENTS);
    pass_events(&mut scene, events, |scene| scene.write(96, 8, true).unwrap());
    assert_eq!(comes_back(&mut scene, 0), Added::Full { slot: 0 });
}

#[test]
fn a_member_that_was_served_apart_comes_back_with_what_it_wrote_then_as_missed() {
    for seed in 0..3 {
        back_from_a_life_apart(seed);
        back_from_a_whole_life_apart(seed);
        back_to_a_life_that_was_whole(seed);
    }
}

/// A bitmap on it that can't be read, or is another one's, tells nothing.
#[test]
fn a_member_whose_own_bitmap_is_damaged_does_not_come_back_by_bitmap() {
    for (seed, is_readable) in [(4, true), (5, false)] {
        let mut scene = served_apart(seed, write_apart);
        let at = scene.superblock(0).bitmap_sector().unwrap().0 * 512;
        if is_readable {
            scene.disks[0].poke(at, &[0xa5; 512]);
        } else {
            scene.disks[0].fault(&Fault::UnreadableRange(at..at + 512));
        }
        assert_eq!(comes_back(&mut scene, 0), Added::Full { slot: 0 });
        assert_eq!(comes_back(&mut scene, 1), Added::Bitmap { slot: 1 });
        scene.proof();
    }
}

/// Power fails while it is caught up: the bits of what it wrote apart are on all members by then.
#[test]
fn a_crash_while_a_member_comes_back_from_a_life_apart_forgets_nothing() {
    for seed in 0..24 {
        let mut scene = served_apart(seed, write_apart);
        let (array, back) = (scene.array.clone(), scene.disks[0].source());
        scene.world.spawn(0, "add", async move {
            let _ = array.add(back, Uuid([90; 16])).await;
        });
        let _ = scene.world.run_until(seed * 40, |_| false);
        scene.crash();
        let sources = [0, 2, 3].map(|disk: usize| scene.disks[disk].source()).to_vec();
        let forced = ArrayOptions { force: true, ..scene.options.clone() };
        scene.array = assemble(&mut scene.world, sources, forced).unwrap();
        if scene.array.detail().slots[0].state == "missing" {
            comes_back(&mut scene, 0);
        }
        until(&mut scene, |array| array.detail().slots[0].state == "in-sync");
        scene.read_all();
    }
}

/// No member takes the bits of what it wrote apart: the array fails, and what has asked for it hears so.
#[test]
fn a_member_comes_back_from_a_life_apart_as_all_others_go() {
    let mut failed = 0;
    for steps in 0..240 {
        let mut scene = served_apart(steps, write_apart);
        let (array, back) = (scene.array.clone(), scene.disks[0].source());
        let answer = Rc::new(Cell::new(None));
        let told = Rc::clone(&answer);
        scene.world.spawn(0, "add", async move {
            told.set(Some(array.add(back, Uuid([90; 16])).await.is_ok()));
        });
        let _ = scene.world.run_until(steps, |_| answer.get().is_some());
        scene.disks[2..4].iter().for_each(|disk| disk.fault(&Fault::Gone));
        scene
            .world
            .run_until(STEPS, |_| answer.get().is_some())
            .unwrap_or_else(|error| panic!("{steps}: {error:?}"));
        failed += u64::from(answer.get() == Some(false));
        let array = scene.array.clone();
        let _ = scene.run(async move { array.stop().await });
    }
    assert!(failed > 6, "{failed} were not taken in");
}

#[cfg(feature = "mutants")]
#[test]
fn defects_in_how_a_member_comes_back_from_a_life_apart_are_found() {
    use crate::arrays::defects::find;
    use pinstripe_engine::mutants::Mutant;
    assert!(find(Mutant::ReaddForgetsOwnBits, 3, back_from_a_life_apart).is_some());
    for scene in [back_from_a_whole_life_apart as fn(u64), back_to_a_life_that_was_whole] {
        assert!(find(Mutant::ReaddIgnoresOwnClearing, 3, scene).is_some());
    }
}
