//! Scenes of members that come back and members that are replaced: what the swarm doesn't draw.

use std::sync::Arc;

use pinstripe_engine::{
    array::{Added, Array},
    options::ArrayOptions,
};
use pinstripe_md::{identity::Uuid, level::Level, placement::NewBitmap, superblock::Role};
use pinstripe_runtime::shard;

use super::Verdict;
use crate::{
    Fault, SimDiskConfig, checks,
    scene::{STEPS, Scene},
};

/// In the first stripe, and in a late one: a block of the second member's chunk.
const EARLY: u64 = 16 << 10;
const LATE: u64 = 52 * (48 << 10) + (16 << 10);
const STRIPE: u64 = 4 * (48 << 10);

#[expect(clippy::needless_pass_by_value, reason = "it is given to `map_err`")]
fn refused(error: impl ToString) -> Verdict {
    Verdict::Refused(error.to_string())
}

fn expect(what: &str, holds: bool) -> Result<(), Verdict> {
    if holds { Ok(()) } else { Err(Verdict::Scene(what.to_owned())) }
}

fn raid5(seed: u64) -> Result<Scene, Verdict> {
    Scene::new(seed, Level::Raid5, NewBitmap::Internal { chunk_bytes: Some(65536) })
}

/// Copies stripe by stripe, and records each.
fn in_small_steps(scene: &mut Scene) {
    let slow = ArrayOptions {
        checkpoint_stripes: 1,
        checkpoint_ns: 0,
        maintenance_depth: 1,
        ..scene.options.clone()
    };
    scene.options = slow;
}

fn start(scene: &mut Scene, disks: &[usize]) -> Result<Array, Verdict> {
    scene.start(disks, false)?.map_err(refused)
}

/// Begins to replace the second member by a new disk, the fifth.
fn replace(scene: &mut Scene, array: &Array) -> Result<(), Verdict> {
    let disk = scene.world.add_disk(SimDiskConfig::new("target", 1 << 20));
    scene.disks.push(disk.clone());
    let owner = array.clone();
    let replaced = async move { owner.replace(1, Some(disk.source()), Uuid([200; 16])).await };
    scene.world.block_on(0, "replace", STEPS, replaced)?.map(|_| ()).map_err(refused)
}

/// Waits until every slot's member has everything and none is being replaced.
fn settle(scene: &mut Scene, array: &Array) -> Result<(), Verdict> {
    let array = array.clone();
    let settled = move |_: &crate::World| {
        let detail = array.detail();
        detail.missing == 0
            && detail.regions_to_resync == 0
            && detail.slots.iter().all(|slot| slot.replacement.is_none())
    };
    Ok(scene.world.run_until(STEPS, settled)?)
}

/// Waits until the superblock of the fifth disk calls this much of it valid, in sectors.
fn copied(scene: &mut Scene, sectors: u64) -> Result<(), Verdict> {
    let target = scene.disks[4].clone();
    let far = move |_: &crate::World| {
        let offset = checks::superblock(&target).and_then(|superblock| superblock.member.recovery_offset);
        offset.is_some_and(|offset| offset.0 >= sectors)
    };
    Ok(scene.world.run_until(STEPS, far)?)
}

fn sector(scene: &mut Scene, array: &Array, offset: u64) -> Result<u8, Verdict> {
    let volume = array.volume().clone();
    let read = async move { volume.read(offset, shard::buffer(512)).await };
    let (result, buffer) = scene.world.block_on(0, "read", STEPS, read)?;
    result.map(|()| buffer[0]).map_err(refused)
}

/// Adds a disk that was a member.
fn bring_back(scene: &mut Scene, array: &Array, disk: usize) -> Result<Added, Verdict> {
    let (owner, source) = (array.clone(), scene.disks[disk].source());
    let added = async move { owner.add(source, Uuid([201; 16])).await };
    let added = scene.world.block_on(0, "add", STEPS, added)?.map_err(refused)?;
    settle(scene, array)?;
    Ok(added)
}

/// C1: what is behind the copy's watermark gets every write too.
pub fn a_write_during_a_replacement_reaches_its_target() -> Result<(), Verdict> {
    let mut scene = raid5(1)?;
    in_small_steps(&mut scene);
    let array = start(&mut scene, &[0, 1, 2, 3])?;
    scene.write(&array, EARLY, 1)?;
    replace(&mut scene, &array)?;
    copied(&mut scene, 64)?;
    scene.write(&array, EARLY, 2)?;
    settle(&mut scene, &array)?;
    let byte = scene.read(&array, EARLY)?;
    scene.stop(array)?;
    expect("a write that the copy was past is not on the device that took the slot", byte == 2)
}

/// C1: the target of a replacement isn't read before it is whole.
pub fn a_replacement_is_not_read_before_it_is_whole() -> Result<(), Verdict> {
    let mut scene = raid5(2)?;
    in_small_steps(&mut scene);
    let array = start(&mut scene, &[0, 1, 2, 3])?;
    scene.write(&array, LATE, 9)?;
    replace(&mut scene, &array)?;
    let byte = scene.read(&array, LATE)?;
    scene.stop(array)?;
    expect("a sector that was not copied yet was read from the target", byte == 9)
}

/// C4: a replacement takes the slot only when its copy is durable.
pub fn a_replacement_takes_the_slot_with_all_that_was_copied() -> Result<(), Verdict> {
    let mut scene = raid5(3)?;
    let array = start(&mut scene, &[0, 1, 2, 3])?;
    for stripe in 0..8 {
        scene.write(&array, EARLY + stripe * STRIPE, 5)?;
    }
    scene.stop(array)?;
    let array = start(&mut scene, &[0, 1, 2, 3])?;
    replace(&mut scene, &array)?;
    settle(&mut scene, &array)?;
    scene.crash(array);
    let array = start(&mut scene, &[0, 4, 2, 3])?;
    for stripe in 0..8 {
        let byte = scene.read(&array, EARLY + stripe * STRIPE)?;
        expect("what was copied has not outlived the crash", byte == 5)?;
    }
    scene.stop(array)
}

/// After a crash a member and its copy may differ where it was being written: what was read of the one must
/// be in the other.
pub fn a_sector_does_not_change_when_a_replacement_ends_after_a_crash() -> Result<(), Verdict> {
    for seed in 0..60 {
        let mut scene = raid5(seed)?;
        in_small_steps(&mut scene);
        let array = start(&mut scene, &[0, 1, 2, 3])?;
        scene.write(&array, EARLY, 1)?;
        replace(&mut scene, &array)?;
        copied(&mut scene, 64)?;
        let volume = array.volume().clone();
        scene.world.spawn(0, "write", async move {
            let mut data = shard::buffer(4096);
            data.fill(2);
            let _ = volume.write(EARLY, data.freeze(), false).await;
        });
        let _ = scene.world.run_until(4 * seed, |_| false);
        scene.crash(array);
        let array = start(&mut scene, &[0, 1, 2, 3, 4])?;
        let before: Vec<u8> =
            (0..8).map(|n| sector(&mut scene, &array, EARLY + n * 512)).collect::<Result<_, _>>()?;
        settle(&mut scene, &array)?;
        let after: Vec<u8> =
            (0..8).map(|n| sector(&mut scene, &array, EARLY + n * 512)).collect::<Result<_, _>>()?;
        scene.stop(array)?;
        expect(
            "sectors that were not written have changed, when the replacement took the slot",
            before == after,
        )?;
    }
    Ok(())
}

/// A member that comes back by bitmap gets all that it missed.
pub fn a_member_that_comes_back_gets_every_region_that_was_dirtied() -> Result<(), Verdict> {
    let mut scene = raid5(5)?;
    let array = start(&mut scene, &[0, 1, 2, 3])?;
    scene.write(&array, EARLY, 1)?;
    scene.write(&array, LATE, 1)?;
    scene.clear_bits(&array)?;
    scene.fail(&array, 1)?;
    scene.write(&array, EARLY, 2)?;
    scene.write(&array, LATE, 2)?;
    let added = bring_back(&mut scene, &array, 1)?;
    expect("it does not come back by bitmap", added == Added::Bitmap { slot: 1 })?;
    let bytes = (scene.read(&array, EARLY)?, scene.read(&array, LATE)?);
    scene.stop(array)?;
    expect("it lacks what was written while it was away", bytes == (2, 2))
}

/// C24: a server that was started anew has lost what its cache held. No bit of that was cleared, so the
/// member comes back by bitmap, even if the request that failed was a flush.
pub fn a_member_whose_cache_was_lost_gets_back_what_it_held() -> Result<(), Verdict> {
    for seed in 400..408 {
        let mut scene = raid5(seed)?;
        let array = start(&mut scene, &[0, 1, 2, 3])?;
        let volume = array.volume().clone();
        let written = async move {
            let mut data = shard::buffer(4096);
            data.fill(1);
            volume.write(EARLY, data.freeze(), false).await
        };
        scene.world.block_on(0, "write", STEPS, written)?.map_err(refused)?;
        if seed % 2 == 0 {
            scene.clear_bits(&array)?;
        }
        scene.disks[1].fault(&Fault::Gone);
        let volume = array.volume().clone();
        scene.world.block_on(0, "flush", STEPS, async move { volume.flush().await })?.map_err(refused)?;
        scene.world.end_shards(&(0..0), &scene.disks[1..2], true, false);
        scene.disks[1].fault(&Fault::Return);
        let added = bring_back(&mut scene, &array, 1)?;
        expect("it does not come back by bitmap", added == Added::Bitmap { slot: 1 })?;
        let byte = scene.read(&array, EARLY)?;
        scene.stop(array)?;
        expect("it lacks what its cache had held", byte == 1)?;
    }
    Ok(())
}

/// C9: a member that went before bits were cleared can't come back by the bits that are left.
pub fn a_member_does_not_come_back_by_bits_that_were_cleared_since() -> Result<(), Verdict> {
    let mut scene = raid5(6)?;
    let array = start(&mut scene, &[0, 1, 2, 3])?;
    scene.write(&array, EARLY, 1)?;
    // Else its own bit would have it copied.
    scene.clear_bits(&array)?;
    scene.fail(&array, 1)?;
    scene.write(&array, EARLY, 2)?;
    scene.add(&array)?;
    scene.clear_bits(&array)?;
    scene.fail(&array, 1)?;
    bring_back(&mut scene, &array, 1)?;
    let byte = scene.read(&array, EARLY)?;
    scene.stop(array)?;
    expect("it lacks what was written before the bits were cleared", byte == 2)
}

/// C9: a rebuild ends, its bits go, and before or after that it is on record that they did. The device that
/// has lost its slot to the rebuilt one finds out.
pub fn a_member_does_not_come_back_by_bits_that_a_rebuild_cleared() -> Result<(), Verdict> {
    for seed in 500..504 {
        let mut scene = raid5(seed)?;
        let array = start(&mut scene, &[0, 1, 2, 3])?;
        scene.write(&array, EARLY, 1)?;
        scene.clear_bits(&array)?;
        scene.fail(&array, 1)?;
        scene.write(&array, EARLY, 2)?;
        let disk = scene.world.add_disk(SimDiskConfig::new("disk4", 1 << 20));
        scene.disks.push(disk.clone());
        let owner = array.clone();
        scene.spawn("add", async move {
            let _ = owner.add(disk.source(), Uuid([201; 16])).await;
        });
        let others = [0, 2, 3].map(|disk| scene.disks[disk].clone());
        let is_clear = |disk: &crate::SimDisk| {
            let sector = checks::superblock(disk).and_then(|superblock| superblock.bitmap_sector());
            sector.is_some_and(|sector| disk.peek(sector.0 * 512, 512)[256..].iter().all(|byte| *byte == 0))
        };
        scene.world.run_until(STEPS, |_| others.iter().all(is_clear))?;
        scene.crash(array);
        let array = scene.start(&[0, 2, 3], true)?.map_err(refused)?;
        bring_back(&mut scene, &array, 1)?;
        let byte = scene.read(&array, EARLY)?;
        scene.crash(array);
        expect("it lacks what was written before the bits were cleared", byte == 2)?;
    }
    Ok(())
}

/// A device that was still being rebuilt when it went has holes that no bit tells of.
pub fn a_member_that_was_half_rebuilt_does_not_come_back_by_its_bits() -> Result<(), Verdict> {
    let mut scene = raid5(8)?;
    let array = start(&mut scene, &[0, 1, 2, 3])?;
    scene.write(&array, EARLY, 1)?;
    scene.write(&array, LATE, 1)?;
    scene.clear_bits(&array)?;
    array.pause_sync(true);
    scene.fail(&array, 1)?;
    let disk = scene.world.add_disk(SimDiskConfig::new("disk4", 1 << 20));
    scene.disks.push(disk.clone());
    for identity in [201, 202] {
        let (owner, source) = (array.clone(), disk.source());
        let added = async move { owner.add(source, Uuid([identity; 16])).await };
        scene.world.block_on(0, "add", STEPS, added)?.map_err(refused)?;
        if identity == 201 {
            scene.fail(&array, 1)?;
        }
    }
    array.pause_sync(false);
    settle(&mut scene, &array)?;
    let bytes = (scene.read(&array, EARLY)?, scene.read(&array, LATE)?);
    scene.stop(array)?;
    expect("it lacks what was never copied to it", bytes == (1, 1))
}

/// When a replacement takes the slot, its own superblock is the first to say so, and says that the former
/// member is out.
pub fn a_crash_as_a_replacement_takes_the_slot_leaves_one_holder() -> Result<(), Verdict> {
    for seed in 9..15 {
        let mut scene = raid5(seed)?;
        let array = start(&mut scene, &[0, 1, 2, 3])?;
        scene.write(&array, EARLY, 1)?;
        replace(&mut scene, &array)?;
        let target = scene.disks[4].clone();
        let has_taken = move |_: &crate::World| {
            checks::superblock(&target).is_some_and(|superblock| {
                matches!(superblock.own_role(), Role::Slot(_)) && !superblock.member.replacement
            })
        };
        scene.world.run_until(STEPS, has_taken)?;
        scene.crash(array);
        let started = scene.start(&[0, 1, 2, 3, 4], false)?;
        expect("two devices hold one slot", started.is_ok())?;
        let array = started.map_err(refused)?;
        let byte = scene.read(&array, EARLY)?;
        scene.stop(array)?;
        expect("what was copied is not there", byte == 1)?;
    }
    Ok(())
}

/// C5: what a member lost with a flush that a rebuild asked for is not made good by the next flush, a user's.
pub fn a_flush_that_failed_a_rebuild_costs_the_member_its_place() -> Result<(), Verdict> {
    for seed in 0..12 {
        let mut scene = Scene::new(300 + seed, Level::Raid6, NewBitmap::None)?;
        in_small_steps(&mut scene);
        let array = start(&mut scene, &[0, 1, 2, 3])?;
        scene.write(&array, EARLY, 0x11)?;
        scene.fail(&array, 2)?;
        let disk = scene.world.add_disk(SimDiskConfig::new("new", 1 << 20));
        scene.disks.push(disk.clone());
        let owner = array.clone();
        scene.spawn("add", async move {
            let _ = owner.add(disk.source(), Uuid([201; 16])).await;
        });
        let shared = Arc::clone(array.shared());
        scene.world.run_until(STEPS, |_| !shared.snapshot().recovering.is_empty())?;
        let volume = array.volume().clone();
        let written = async move {
            let mut data = shard::buffer(4096);
            data.fill(0x22);
            volume.write(0, data.freeze(), false).await
        };
        scene.world.block_on(0, "write", STEPS, written)?.map_err(refused)?;
        // The first stripe has its first chunk on the second disk, behind Q.
        scene.disks[1].fault(&Fault::FailFlushes(1));
        scene.world.run_until(STEPS, |_| shared.snapshot().recovering.is_empty())?;
        let volume = array.volume().clone();
        scene.world.block_on(0, "flush", STEPS, async move { volume.flush().await })?.map_err(refused)?;
        scene.crash(array);
        let array = scene.start(&[0, 1, 3, 4], true)?.map_err(refused)?;
        let byte = scene.read(&array, 0)?;
        scene.crash(array);
        expect("what was flushed is gone with a flush that had failed before", byte == 0x22)?;
    }
    Ok(())
}
