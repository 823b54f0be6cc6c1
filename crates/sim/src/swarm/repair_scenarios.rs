//! Scenes of silent damage and of read errors, and what check and repair make of them. The swarm has no
//! device that lies.

use pinstripe_engine::{
    array::Array,
    maintenance::{CheckReport, ScrubAction, ScrubRequest},
    options::SyncSpeed,
    plan::WritePolicy,
};
use pinstripe_md::{level::Level, placement::NewBitmap};
use pinstripe_runtime::shard;

use super::Verdict;
use crate::{
    Fault,
    scene::{STEPS, Scene},
};

/// Where data begins on the members of a scene.
const DATA: u64 = 256 * 512;
const CHUNK: u64 = 16 << 10;
const SECTOR: usize = 512;

fn expect(what: &str, holds: bool) -> Result<(), Verdict> {
    if holds { Ok(()) } else { Err(Verdict::Scene(what.to_owned())) }
}

/// A scene with its array in service, and something in every chunk of its first stripes.
fn filled(seed: u64, level: Level) -> Result<(Scene, Array), Verdict> {
    let mut scene = Scene::new(seed, level, NewBitmap::None)?;
    scene.options.policy = WritePolicy::AlwaysRmw;
    let array = scene.start(&[0, 1, 2, 3], false)?.map_err(|error| Verdict::Refused(error.to_string()))?;
    for block in 0..24 {
        scene.write(&array, block * 4096, 0x21 + u8::try_from(block).unwrap_or(0))?;
    }
    Ok((scene, array))
}

fn scrub(scene: &mut Scene, array: &Array, action: ScrubAction) -> Result<CheckReport, Verdict> {
    let owner = array.clone();
    let request = ScrubRequest { action, ..ScrubRequest::default() };
    let report = scene.world.block_on(0, "scrub", STEPS, async move { owner.scrub(request).await })?;
    report.map_err(|error| Verdict::Refused(format!("{action:?}: {error}")))
}

/// Changes bytes of a member, and no device will say so.
fn damage(scene: &Scene, disk: usize, at: u64, places: &[usize]) {
    let mut bytes = scene.disks[disk].peek(DATA + at, SECTOR);
    for &place in places {
        bytes[place] ^= 0x5a;
    }
    scene.disks[disk].poke(DATA + at, &bytes);
}

fn contents(scene: &Scene) -> Vec<Vec<u8>> {
    scene.disks.iter().map(|disk| disk.peek(DATA, 256 << 10)).collect()
}

/// C13: a repair that makes parity anew takes the old one out of the cache.
pub fn a_write_after_a_repair_uses_the_parity_that_it_made() -> Result<(), Verdict> {
    let (mut scene, array) = filled(20, Level::Raid5)?;
    // The first stripe of four members, left-symmetric: data in slots 0, 1, 2.
    scene.write(&array, 0, 0x91)?;
    damage(&scene, 1, 0, &[5, 6, 7]);
    scrub(&mut scene, &array, ScrubAction::Repair)?;
    scene.write(&array, 0, 0x92)?;
    scene.stop(array)?;
    scene.check_parity()
}

/// C14: sectors that a read found unreadable are rewritten before another request may write them.
pub fn a_read_repair_does_not_undo_a_write_that_comes_meanwhile() -> Result<(), Verdict> {
    for seed in 0..120 {
        let (mut scene, array) = filled(1000 + seed, Level::Raid5)?;
        scene.disks[1].fault(&Fault::UnreadableRange(DATA..DATA + 4096));
        let (reader, writer) = (array.volume().clone(), array.volume().clone());
        let read = scene.spawn("read", async move {
            let _ = reader.read(CHUNK, shard::buffer(4096)).await;
        });
        // A whole stripe, which needs no reads: it comes at any time of the repair.
        let written = scene.spawn("write", async move {
            shard::sleep(seed * 5_000).await;
            let mut data = shard::buffer(3 * (16 << 10));
            data.fill(0x99);
            let _ = writer.write(0, data.freeze(), true).await;
        });
        scene.world.run_until(STEPS, |_| *read.borrow() && *written.borrow())?;
        expect("a read repair put old bytes over new ones", scene.read(&array, CHUNK)? == 0x99)?;
        scene.stop(array)?;
        scene.check_parity()?;
    }
    Ok(())
}

/// Two wrong chunks are not one.
pub fn two_wrong_chunks_of_a_row_are_left_alone() -> Result<(), Verdict> {
    let (mut scene, array) = filled(21, Level::Raid6)?;
    // Any two members of the row: whichever of them the first differing byte accuses, the others do not
    // agree.
    for (stripe, pair) in [(0, [0, 1]), (1, [1, 2]), (2, [2, 3]), (3, [3, 0]), (4, [0, 2]), (5, [1, 3])] {
        damage(&scene, pair[0], stripe * CHUNK, &[0, 9]);
        damage(&scene, pair[1], stripe * CHUNK, &[1, 2, 3]);
    }
    let before = contents(&scene);
    let report = scrub(&mut scene, &array, ScrubAction::Locate)?;
    let untouched = contents(&scene) == before;
    scene.stop(array)?;
    expect("a row with two wrong chunks was changed", untouched)?;
    expect("a row with two wrong chunks counts as corrected", report.corrected_sectors == 0)
}

/// With a chunk that can't be read there is one equation too few to accuse another.
pub fn a_row_with_an_unreadable_chunk_accuses_no_member() -> Result<(), Verdict> {
    let (mut scene, array) = filled(22, Level::Raid6)?;
    for stripe in 0..4 {
        let (reader, liar) = ((stripe % 4) as usize, ((stripe + 1) % 4) as usize);
        let at = DATA + stripe * CHUNK;
        scene.disks[reader].fault(&Fault::UnreadableRange(at..at + 512));
        damage(&scene, liar, stripe * CHUNK, &[3, 4]);
    }
    let report = scrub(&mut scene, &array, ScrubAction::Locate)?;
    scene.stop(array)?;
    expect("a row with an unreadable chunk counts as corrected", report.corrected_sectors == 0)
}

/// What of a chunk can be read stays as it is, whatever is wrong elsewhere in the stripe.
pub fn a_read_error_heals_its_row_and_no_other() -> Result<(), Verdict> {
    let (mut scene, array) = filled(23, Level::Raid6)?;
    let before = contents(&scene);
    for stripe in 0..4 {
        let (reader, liar) = ((stripe % 4) as usize, ((stripe + 1) % 4) as usize);
        let at = DATA + stripe * CHUNK;
        scene.disks[reader].fault(&Fault::UnreadableRange(at..at + 512));
        damage(&scene, liar, stripe * CHUNK + 8192, &[3, 4]);
    }
    scrub(&mut scene, &array, ScrubAction::Check)?;
    scrub(&mut scene, &array, ScrubAction::Locate)?;
    let restored = contents(&scene) == before;
    scene.stop(array)?;
    expect("good bytes of a chunk with a read error were made anew from damage", restored)
}

/// C4: what a repair says that it made is on the medium.
pub fn a_repair_that_was_reported_outlives_a_crash() -> Result<(), Verdict> {
    for seed in 24..32 {
        let (mut scene, array) = filled(seed, Level::Raid5)?;
        for stripe in 0..16 {
            for disk in 0..4 {
                damage(&scene, disk, stripe * CHUNK, &[disk + 1]);
            }
        }
        scrub(&mut scene, &array, ScrubAction::Repair)?;
        scene.crash(array);
        scene.check_parity()?;
    }
    Ok(())
}

/// However low the limit is, what it holds up goes on.
pub fn a_check_that_is_held_to_a_low_speed_ends() -> Result<(), Verdict> {
    let (mut scene, array) = filled(33, Level::Raid5)?;
    let slow = array.set_sync_speed(SyncSpeed { min_kib: 1, max_kib: 1000 });
    slow.map_err(|error| Verdict::Refused(error.to_string()))?;
    let report = scrub(&mut scene, &array, ScrubAction::Check)?;
    scene.stop(array)?;
    expect("a check that is whole has a stripe left", report.complete)
}

/// A member goes at some moment of a repair: what was begun under the old membership is done under the new
/// one.
pub fn a_repair_that_makes_room_for_a_failure_leaves_no_stripe_out() -> Result<(), Verdict> {
    for steps in 0..40 {
        let (mut scene, array) = filled(34 + steps, Level::Raid6)?;
        for stripe in 0..48 {
            // P and Q of every stripe: whichever member goes, one of them may be left.
            for disk in 0..4 {
                damage(&scene, disk, stripe * CHUNK, &[disk + 1]);
            }
        }
        let owner = array.clone();
        let done = scene.spawn("repair", async move {
            let request = ScrubRequest { action: ScrubAction::Repair, ..ScrubRequest::default() };
            let _ = owner.scrub(request).await;
        });
        let _ = scene.world.run_until(40 + steps * 25, |_| *done.borrow());
        scene.disks[3].fault(&Fault::Gone);
        scene.world.run_until(STEPS, |_| *done.borrow())?;
        scene.stop(array)?;
        scene.disks.remove(3);
        scene.check_parity()?;
    }
    Ok(())
}
