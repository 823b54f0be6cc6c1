//! Scenes in which the swarm has found defects of the engine, by name. A seed's run changes with whatever the
//! engine does and the swarm draws, so the scenes that can be told in a few lines are told; the rest are the
//! seeds themselves.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{cell::RefCell, rc::Rc};

use pinstripe_engine::{array::Array, geometry::Geometry};
use pinstripe_md::{identity::Uuid, level::Level, placement::NewBitmap};
use pinstripe_runtime::shard;
use pinstripe_sim::{
    Fault, SimDiskConfig, checks,
    scene::{STEPS, Scene},
    swarm,
};

fn raid5(seed: u64, bitmap: NewBitmap) -> Scene {
    Scene::new(seed, Level::Raid5, bitmap).unwrap()
}

fn started(scene: &mut Scene, disks: &[usize]) -> Array {
    scene.start(disks, false).unwrap().unwrap()
}

/// The scenes that have a defect to find; they stand in `swarm/scenarios.rs`.
#[test]
fn scenes_that_find_a_defect_pass_without_it() {
    for (mutant, scene) in swarm::SCENARIOS {
        if let Err(verdict) = scene() {
            panic!("{mutant:?}: {verdict}");
        }
    }
}

/// And find it where it is.
#[cfg(feature = "mutants")]
#[test]
fn scenes_find_the_defects_of_membership() {
    for (mutant, scene) in swarm::SCENARIOS.iter().skip(4) {
        pinstripe_engine::mutants::activate(Some(*mutant));
        let found = std::panic::catch_unwind(scene);
        pinstripe_engine::mutants::activate(None);
        assert!(matches!(found, Ok(Err(_))), "{mutant:?} is not found by a verdict");
    }
}

#[test]
fn two_spares_that_come_at_once_do_not_take_the_same_slot() {
    let mut scene = raid5(3, NewBitmap::Internal { chunk_bytes: Some(65536) });
    let array = started(&mut scene, &[0, 1, 2]);
    let added: Rc<RefCell<Vec<Option<usize>>>> = Rc::default();
    for number in 4..6 {
        let disk = scene.world.add_disk(SimDiskConfig::new("spare", 1 << 20));
        let (array, added) = (array.clone(), Rc::clone(&added));
        scene.world.spawn(0, "add", async move {
            let outcome = array.add(disk.source(), Uuid([number; 16])).await;
            added.borrow_mut().push(outcome.unwrap().slot());
        });
    }
    scene.world.run_until(STEPS, |_| added.borrow().len() == 2).unwrap();
    assert_eq!(*added.borrow(), [Some(3), None], "the second waits for its turn");
}

#[test]
fn a_bitmap_that_goes_covers_every_row_until_no_superblock_names_it() {
    for steps in (0..600).step_by(20) {
        let mut scene = raid5(steps, NewBitmap::Internal { chunk_bytes: Some(4096) });
        let array = started(&mut scene, &[0, 1, 2, 3]);
        scene.write(&array, 0, 1).unwrap();
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
        let Geometry::Parity(geometry) = &array.shared().geometry else { unreachable!("level 5") };
        let geometry = *geometry;
        scene.crash(array);
        let survey = checks::survey(scene.disks.iter().enumerate()).unwrap();
        survey.check_covered(&scene.disks, &geometry).unwrap();
    }
}

#[test]
fn a_resync_cut_short_by_a_second_crash_keeps_torn_rows_torn() {
    let mut scene = raid5(5, NewBitmap::None);
    let array = started(&mut scene, &[0, 1, 2, 3]);
    scene.write(&array, 0, 1).unwrap();
    scene.crash(array);
    let array = started(&mut scene, &[0, 1, 2, 3]);
    let torn = |array: &Array| {
        let intent = &array.shared().snapshot().intent;
        intent.is_torn(0..=intent.len() - 1)
    };
    assert!(torn(&array), "the crash may have torn rows");
    let owner = array.clone();
    // A clean end before the resync has got anywhere.
    scene.world.block_on(0, "stop", STEPS, async move { owner.stop().await }).unwrap().unwrap();
    scene.crash(array);
    let array = started(&mut scene, &[0, 1, 2, 3]);
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
    let mut scene = raid5(7, NewBitmap::Internal { chunk_bytes: Some(65536) });
    let array = started(&mut scene, &[0, 1, 2, 3]);
    scene.write(&array, 0, 3).unwrap();
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
    assert_eq!(scene.read(&array, 0).unwrap(), 3);
}
