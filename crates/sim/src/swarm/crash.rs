//! The end of a life by force: the machine or the process dies, while the array is served or being stopped,
//! or after an outage.

use super::{Consistency, Swarm, Testbed, Verdict, rough, vast};
use crate::{Fault, SECTOR, checks::Damage};

/// The machine dies (or only the process), and what is on the disks is looked at.
pub(super) fn crash(bed: &mut Testbed, power: bool) -> Result<(), Verdict> {
    bed.summary.crashes += 1;
    let loses = power || bed.hosts.has_emptied_member();
    let unsettled = bed.service.users.ledger.borrow().unsettled(loses);
    forget_resynced(bed);
    bed.suspect(&unsettled);
    bed.doubts.cut_off(unsettled);
    bed.service.end(&bed.hosts);
    bed.bury_stale();
    bed.hosts.crash(power, |disk| bed.faults.is_in_outage(disk), &mut bed.rng);
    bed.service.users.cut_off(loses);
    heal_after_crash(bed);
    rough::stay_rotten(bed)?;
    check_after_crash(bed)
}

/// Rows that an earlier crash has left half written are in sync where no bit is left: bits go after a flush
/// of what has made the rows match (C4, C8).
fn forget_resynced(bed: &mut Testbed) {
    if bed.service.served().is_none() || !bed.snapshot().intent.is_persistent() {
        return;
    }
    let (snapshot, chunk) = (bed.snapshot(), bed.setup.chunk);
    let intent = &snapshot.intent;
    bed.doubts.resynced(|stripe, row| {
        let mut regions = intent.regions(stripe * chunk + row * SECTOR, SECTOR);
        !regions.any(|region| intent.is_set(region) || intent.needs_resync(region..=region))
    });
}

/// After a crash the disks are well, but some that were gone stay away.
fn heal_after_crash(bed: &mut Testbed) {
    for (number, disk) in bed.hosts.disks.iter().enumerate() {
        if bed.setup.plans_faults() {
            disk.fault(&Fault::Calm);
        }
        disk.fault(&Fault::Heal);
        disk.fault(&Fault::Release);
        disk.fault(&Fault::SlowBy(1));
        if disk.is_gone() && (bed.faults.is_in_outage(number) || bed.rng.chance(2, 3)) {
            disk.fault(&Fault::Return);
        }
    }
    bed.faults.heal();
    bed.faults.end_outage();
}

/// Enough members are current, and what doesn't match is covered.
fn check_after_crash(bed: &Testbed) -> Result<(), Verdict> {
    let survey = bed.hosts.survey()?;
    let Some(geometry) = bed.setup.geometry() else { return Ok(()) };
    let (whole, members) = (survey.whole(), survey.seats.len());
    if whole + geometry.redundancy() < members {
        let words = format!("{whole} of {members} members are current: that is data loss");
        return Err(Damage::Members(words).into());
    }
    if bed.setup.consistency != Consistency::Journal && !survey.is_logged() {
        let stripes = vast::stripes_in_use(&bed.setup, &bed.hosts.disks, &geometry);
        survey.check_stripes_covered(&bed.hosts.disks, &geometry, stripes.into_iter())?;
    }
    Ok(())
}

/// A stop that may be cut off anywhere.
pub(super) fn begin_stop(swarm: &mut Swarm) -> Result<(), Verdict> {
    let array = swarm.bed.service.begin_stop();
    swarm.bed.hosts.spawn("stop", async move {
        let _ = array.stop().await;
    });
    let steps = 1 << swarm.bed.rng.below(12);
    swarm.idle_on(steps)
}

/// More disks go than the level bears, say with their controller. Nothing of that may be written down (C3).
pub(super) fn outage(swarm: &mut Swarm) -> Result<(), Verdict> {
    let leaving = begin_outage(&mut swarm.bed);
    for &number in &leaving {
        let bed = &mut swarm.bed;
        let fault = rough::outage(bed);
        bed.hosts.disks[number].fault(&fault);
        bed.faults.lose_in_outage([number]);
        let steps = if bed.rng.chance(3, 4) { 0 } else { 1 << bed.rng.below(9) };
        swarm.step_on(steps)?;
    }
    let steps = 1 << swarm.bed.rng.range(3..12);
    swarm.step_on(steps)?;
    if swarm.bed.setup.atlas.is_some() && leaving.len().is_multiple_of(2) {
        // Whatever has gone, every request ends, and so does a stop; how, is the array's affair.
        swarm.wait_for_users()?;
        let array = swarm.bed.service.array();
        let _ = swarm.bed.hosts.block_on("stop", async move { array.stop().await })?;
    }
    Ok(())
}

/// The disks that go in the outage, in their order.
fn begin_outage(bed: &mut Testbed) -> Vec<usize> {
    bed.summary.outages += 1;
    bed.service.users.closing.set(true);
    if bed.setup.is_vast() {
        // No other disk goes beside these.
        bed.hosts.disks.iter().for_each(|disk| disk.fault(&Fault::Calm));
    }
    bed.lose_member();
    // A journal is elsewhere: its loss is another story (C18).
    let journal = (bed.setup.consistency == Consistency::Journal).then_some(bed.setup.members);
    let is_gone = |number: &usize| bed.hosts.disks[*number].is_gone();
    let (gone, mut here): (Vec<usize>, Vec<usize>) = (0..bed.hosts.disks.len()).partition(is_gone);
    here.retain(|&number| Some(number) != journal);
    if bed.setup.atlas.is_some() || bed.setup.is_vast() {
        // The superblocks may not know yet that a disk is gone: all disks that are gone come back, too.
        bed.faults.lose_in_outage(gone);
    }
    bed.rng.shuffle(&mut here);
    let count = if bed.rng.chance(1, 2) { here.len() } else { 1 + bed.rng.index(here.len()) };
    here.truncate(count);
    here
}
