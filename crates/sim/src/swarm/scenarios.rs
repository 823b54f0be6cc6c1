//! Scenes that find a defect which the swarm's seeds meet too seldom.

use pinstripe_engine::{mutants::Mutant, plan::WritePolicy};
use pinstripe_md::{level::Level, placement::NewBitmap, superblock::Role};
use pinstripe_runtime::shard;

use super::{Verdict, membership, repair_scenarios};
use crate::{checks, scene::Scene};

/// A scene as a function.
pub type Scenario = fn() -> Result<(), Verdict>;

/// A defect, and the scene that finds it and passes without it.
pub const SCENARIOS: &[(Mutant, Scenario)] = &[
    (Mutant::AbsentNotDisowned, a_device_that_was_absent_for_a_single_write_is_disowned),
    (Mutant::UnevenNotLevelled, members_that_torn_updates_left_behind_are_still_current),
    (Mutant::CacheIgnoresGeneration, cached_parity_does_not_outlive_its_member),
    (Mutant::ZeroesBeforeIntent, a_crash_while_stripes_are_zeroed_leaves_them_covered),
    (Mutant::ReplacementNotWritten, membership::a_write_during_a_replacement_reaches_its_target),
    (Mutant::ReplacementRead, membership::a_replacement_is_not_read_before_it_is_whole),
    (Mutant::ReplacementWithoutFlush, membership::a_replacement_takes_the_slot_with_all_that_was_copied),
    (Mutant::ReplacementTrusted, membership::a_sector_does_not_change_when_a_replacement_ends_after_a_crash),
    (Mutant::ReaddSkipsRegion, membership::a_member_that_comes_back_gets_every_region_that_was_dirtied),
    (Mutant::ReaddIgnoresEvents, membership::a_member_does_not_come_back_by_bits_that_were_cleared_since),
    (Mutant::ClearingNotCounted, membership::a_member_does_not_come_back_by_bits_that_were_cleared_since),
    (
        Mutant::BitsClearedBeforeRecorded,
        membership::a_member_does_not_come_back_by_bits_that_a_rebuild_cleared,
    ),
    (Mutant::SweepWithoutFlush, membership::a_member_whose_cache_was_lost_gets_back_what_it_held),
    (Mutant::FormerNotFaulty, membership::a_crash_as_a_replacement_takes_the_slot_leaves_one_holder),
    (Mutant::HalfRecoveredReadded, membership::a_member_that_was_half_rebuilt_does_not_come_back_by_its_bits),
    (Mutant::WalkForgetsFailedFlush, membership::a_flush_that_failed_a_rebuild_costs_the_member_its_place),
    (Mutant::RepairOutsideClaim, repair_scenarios::a_read_repair_does_not_undo_a_write_that_comes_meanwhile),
    (Mutant::RepairLeavesCache, repair_scenarios::a_write_after_a_repair_uses_the_parity_that_it_made),
    (Mutant::LocateGuesses, repair_scenarios::two_wrong_chunks_of_a_row_are_left_alone),
    (Mutant::LocateDegraded, repair_scenarios::a_row_with_an_unreadable_chunk_accuses_no_member),
    (Mutant::HealsWholeChunk, repair_scenarios::a_read_error_heals_its_row_and_no_other),
    (Mutant::RepairNotForced, repair_scenarios::a_repair_that_was_reported_outlives_a_crash),
    (Mutant::PaceNeverLetsGo, repair_scenarios::a_check_that_is_held_to_a_low_speed_ends),
    (Mutant::UndoneForgotten, repair_scenarios::a_repair_that_makes_room_for_a_failure_leaves_no_stripe_out),
];

fn expect(what: &str, holds: bool) -> Result<(), Verdict> {
    if holds { Ok(()) } else { Err(Verdict::Scene(what.to_owned())) }
}

/// What was written without a device must be seen (C2): by its events, of which it has two less, and by what
/// the others say of it.
pub fn a_device_that_was_absent_for_a_single_write_is_disowned() -> Result<(), Verdict> {
    let mut scene = Scene::new(1, Level::Raid5, NewBitmap::None)?;
    // Disk 1 holds the second chunk of the first stripe.
    let array = scene.start(&[0, 2, 3], false)?.map_err(|error| Verdict::Refused(error.to_string()))?;
    scene.write(&array, 16 << 10, 0xaa)?;
    scene.crash(array);
    let events = scene.events();
    expect("by its events alone the device would be current", events[0] > events[1] + 1)?;
    let superblock = |disk: usize| checks::superblock(&scene.disks[disk]);
    let (by, device) =
        superblock(0).zip(superblock(1)).ok_or_else(|| Verdict::Scene("no superblocks".to_owned()))?;
    let role = device.role_in(&by.array);
    expect("the others call a device a member that missed a write", !matches!(role, Role::Slot(_)))?;
    let array = scene.start(&[0, 1, 2, 3], true)?.map_err(|error| Verdict::Refused(error.to_string()))?;
    let byte = scene.read(&array, 16 << 10)?;
    scene.crash(array);
    expect("what was acknowledged without the device is gone", byte == 0xaa)
}

/// Each life dies when one member alone has the next superblock. Which one is the seed's to say: it must be
/// the same one twice.
pub fn members_that_torn_updates_left_behind_are_still_current() -> Result<(), Verdict> {
    (0..8).try_for_each(members_that_torn_updates_left_behind)
}

fn members_that_torn_updates_left_behind(seed: u64) -> Result<(), Verdict> {
    let mut scene = Scene::new(seed, Level::Raid5, NewBitmap::None)?;
    for _ in 0..4 {
        let array = scene.start(&[0, 1, 2, 3], false)?.map_err(|error| Verdict::Scene(error.to_string()))?;
        scene.tear_superblocks(&array)?;
        scene.crash(array);
        let events = scene.events();
        let spread = events.iter().max().zip(events.iter().min()).map_or(0, |(max, min)| max - min);
        expect("two torn updates have left members two events behind", spread <= 1)?;
    }
    Ok(())
}

/// C13: parity that was cached before its member went is not that of the member that takes its place.
pub fn cached_parity_does_not_outlive_its_member() -> Result<(), Verdict> {
    let mut scene = Scene::new(3, Level::Raid6, NewBitmap::None)?;
    scene.options.policy = WritePolicy::AlwaysRmw;
    let array = scene.start(&[0, 1, 2, 3], false)?.map_err(|error| Verdict::Refused(error.to_string()))?;
    // The first stripe has P in slot 3 and Q in slot 0.
    scene.write(&array, 0, 1)?;
    scene.fail(&array, 3)?;
    // Only Q is modified.
    scene.write(&array, 0, 2)?;
    scene.add(&array)?;
    scene.write(&array, 0, 3)?;
    scene.stop(array)?;
    scene.disks.remove(3);
    scene.check_parity()
}

/// C7: zeroing changes data, so its bit comes first.
pub fn a_crash_while_stripes_are_zeroed_leaves_them_covered() -> Result<(), Verdict> {
    for steps in 0..400 {
        let mut scene = Scene::new(steps, Level::Raid5, NewBitmap::Internal { chunk_bytes: Some(4096) })?;
        let array =
            scene.start(&[0, 1, 2, 3], false)?.map_err(|error| Verdict::Refused(error.to_string()))?;
        // Every chunk of the stripe, so that half of it zeroed does not match the rest.
        for block in 0..12 {
            scene.write(&array, block * 4096, 0x11 + u8::try_from(block).unwrap_or(0))?;
        }
        // Cleared again: the bits that the writes have set would cover the zeroing too.
        scene.stop(array)?;
        let array =
            scene.start(&[0, 1, 2, 3], false)?.map_err(|error| Verdict::Refused(error.to_string()))?;
        scene.clear_bits(&array)?;
        let volume = array.volume().clone();
        scene.spawn("zero", async move {
            let _ = volume.write_zeroes(0, 48 << 10, false).await;
            shard::yield_now().await;
        });
        let _ = scene.world.run_until(steps, |_| false);
        scene.crash(array);
        scene.check_covered()?;
    }
    Ok(())
}
