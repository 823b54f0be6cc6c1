//! Races: what is right by itself meets something else that is, in the narrowest places.
//!
//! A run of this kind ([`super::FIRST_SEED_WITH_RACES`]) has the atlas, and besides
//!
//! - shards are taken off their CPU in the middle of a poll, where a task says that it matters
//!   ([`Interruptions`]);
//! - regions are as small as a page, mostly smaller than a chunk, so that a bit which isn't read in time is
//!   missed;
//! - users zero whole stripes and flush often, many at a time, while members go and come back by bitmap, with
//!   a scrub under way;
//! - the owner takes out more members at once than the level bears: only so many may go (C31).

use std::rc::Rc;

use pinstripe_engine::array::CommandError;
use pinstripe_runtime::ZeroedReads;

use super::{Consistency, Setup, Testbed, Verdict, client, owner};
use crate::{Interruptions, Rng};

/// How much of what there is.
#[derive(Clone, Debug)]
pub struct Races {
    /// Of 8 events that are wanted, how many happen.
    liveliness: u64,
    /// How shards are interrupted.
    pub(crate) interruptions: Interruptions,
}

impl Races {
    /// Draws them, and shapes the run for them.
    pub fn drawn(rng: &mut Rng, setup: &mut Setup) -> Self {
        setup.shards = setup.shards.max(2);
        setup.clients = setup.clients.max(3);
        if rng.chance(3, 4) {
            setup.disk.zeroes = ZeroedReads::Zero;
        }
        let by_parity = setup.level.parity_count() > 0 && setup.consistency.settles_by_parity();
        if by_parity && rng.chance(7, 8) {
            setup.consistency = Consistency::Bitmap(rng.pick(&[4096, 4096, 8192]));
            setup.policy_changes &= rng.chance(1, 4);
            // A bit that is set already hides that another one was not.
            setup.options.sweep_ns = Some(setup.disk.latency_ns_max.max(200_000));
        }
        Self { liveliness: rng.pick(&[2, 4, 8]), interruptions: Interruptions::drawn(rng) }
    }

    /// Makes a user one that zeroes whole stripes, or flushes often.
    pub(super) fn shape(rng: &mut Rng, habits: &mut client::Habits, (stripe, sectors): (u64, u64)) {
        if rng.chance(1, 2) {
            habits.range = 0..sectors;
            (habits.unit, habits.units_max) = (stripe, rng.pick(&[1, 2]));
            habits.zeroes = rng.pick(&[2, 6]);
            habits.discards = rng.pick(&[0, 2]);
        }
        habits.flushes = rng.pick(&[1, 2, 5]);
    }
}

/// One event of this kind, or none.
pub(super) fn event(bed: &mut Testbed) {
    let Some(races) = bed.setup.races.clone() else { return };
    if bed.setup.level.parity_count() == 0 || !bed.rng.chance(races.liveliness, 8) {
        return;
    }
    match bed.rng.below(8) {
        0 => owner::bounce(bed),
        1 | 2 => {
            owner::scrub(bed);
            owner::bounce(bed);
        }
        3 => owner::give_back(bed),
        4 if bed.setup.failures => fail_too_many(bed),
        _ => {}
    }
}

/// One member more than may go is taken out by hand, all at once.
fn fail_too_many(bed: &mut Testbed) {
    // The engine doesn't know yet that a doomed disk is about to fail.
    if !bed.faults.doomed().is_empty() {
        return;
    }
    let most = bed.setup.redundancy();
    let Some((slot, disk)) = bed.victim() else { return };
    let snapshot = bed.snapshot();
    let mut leaving = vec![(slot, disk)];
    for slot in 0..snapshot.seats.len() {
        let disk = bed.disk_in(slot).filter(|disk| !bed.faults.is_joining(*disk));
        if let Some(disk) = disk.filter(|disk| *disk != leaving[0].1 && snapshot.seats[slot].is_whole()) {
            leaving.push((slot, disk));
        }
    }
    leaving.truncate(most.saturating_sub(bed.broken()) + 1);
    bed.lose_member();
    for &(slot, disk) in &leaving {
        bed.doom(disk);
        let (users, spared) = (Rc::clone(&bed.service.users), bed.faults.spared());
        // It may stay: until that is known, no fault is planned for it.
        let joining = bed.faults.joining(disk);
        bed.command("fail", move |array| async move {
            let failed = array.fail(slot).await;
            if array.shared().has_failed() && !users.closing.get() {
                users.accuse(Verdict::Scene("commands took the array past redundancy".to_owned()));
            }
            match failed {
                Err(CommandError::SlotNeeded(_)) => _ = spared.borrow_mut().insert(disk),
                Ok(()) | Err(CommandError::SlotEmpty(_)) => {}
                Err(error) => return Err(error.to_string()),
            }
            drop(joining);
            Ok(())
        });
    }
}
