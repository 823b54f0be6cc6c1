//! Stops under load: lives that end with a stop while users and owner are at work, and a member fails
//! meanwhile. The stop ends, and so does every request, whatever is answered. Then the machine dies.
//!
//! A run of this kind ([`super::FIRST_SEED_OF_STOPS`]) has the atlas besides.

use std::{cell::Cell, rc::Rc};

use pinstripe_md::{level::Level, superblock::MetadataVersion};

use super::{Consistency, Setup, Swarm, Testbed, Verdict, client::Habits};
use crate::{Fault, Rng};

/// Shapes a run for them: most have a log, in which writes wait for each other.
pub(super) fn shape(rng: &mut Rng, setup: &mut Setup) {
    setup.stops = true;
    setup.clients = setup.clients.max(6);
    let log = match setup.level {
        Level::Raid5 => Consistency::Ppl,
        Level::Raid6 => Consistency::DoubleParityLog,
        _ => return,
    };
    if setup.consistency.settles_by_parity() && setup.version != MetadataVersion::V1_0 && rng.chance(3, 4) {
        setup.consistency = log;
    }
}

/// Users of such a run are in a hurry.
pub(super) fn hurry(setup: &Setup, habits: &mut Habits) {
    if setup.stops {
        (habits.pause_ns, habits.reads) = (0, habits.reads.min(2));
    }
}

/// Whether this life ends so.
pub(super) fn is_due(bed: &mut Testbed) -> bool {
    bed.setup.stops && bed.rng.chance(2, 3)
}

/// Stops the array, and waits until that is over for everything that uses it.
pub(super) fn stop(swarm: &mut Swarm) -> Result<(), Verdict> {
    let bed = &mut swarm.bed;
    let doomed = if bed.rng.chance(7, 8) { bed.doom_victim() } else { None };
    if let Some((_, disk)) = doomed
        && bed.rng.chance(3, 4)
    {
        // What it was asked for holds up what others wait for.
        let steps = 1 << bed.rng.below(10);
        bed.hosts.disks[disk].fault(&Fault::Hang);
        swarm.idle_on(steps)?;
    }
    let bed = &mut swarm.bed;
    let array = bed.service.begin_stop();
    let is_over = Rc::new(Cell::new(false));
    let ended = Rc::clone(&is_over);
    bed.hosts.spawn("stop", async move {
        let _ = array.stop().await;
        ended.set(true);
    });
    if let Some((_, disk)) = doomed {
        let steps = 1 << bed.rng.below(8);
        swarm.idle_on(steps)?;
        swarm.bed.hosts.disks[disk].fault(&Fault::Gone);
    }
    swarm.wait(|bed| is_over.get() && bed.service.users.is_idle())
}
