//! The end of a life in peace: everything is healed, rebuilt, read, compared and stopped, and nothing is
//! left.

use pinstripe_engine::{array::Array, membership::snapshot::Snapshot};

use super::{Swarm, Testbed, Verdict, front::Front, hosts::STEPS_MAX, lies, owner, takeover, vast, wide};
use crate::{
    Fault,
    checks::{Damage, check_parity},
};

/// Brings the array to rest, and checks it there.
pub(super) fn rest(swarm: &mut Swarm) -> Result<(), Verdict> {
    swarm.wait_for_users()?;
    if let Some(front) = swarm.bed.service.front() {
        front.begin_to_close(&mut swarm.bed.rng);
        swarm.wait(|bed| bed.service.front().is_none_or(Front::is_closed))?;
        swarm.bed.service.drop_front(&swarm.bed.hosts);
    }
    if swarm.bed.rng.chance(1, 2) {
        read_all(swarm)?;
    }
    heal(&mut swarm.bed);
    swarm.bed.hosts.await_servers()?;
    takeover::await_end(swarm)?;
    let shared = swarm.bed.service.shared();
    loop {
        make_whole(swarm)?;
        swarm.wait(|_| shared.admission.writers() == 0 && shared.stripes.is_idle())?;
        read_all(swarm)?;
        // A request that failed before its disk was healed may have been the last to be noticed.
        if shared.snapshot().is_complete() && !shared.has_failures() {
            break;
        }
    }
    if let Some(geometry) = swarm.bed.setup.geometry() {
        scrub(&mut swarm.bed)?;
        swarm.wait(|_| shared.stripes.is_idle())?;
        let bed = &swarm.bed;
        let survey = bed.hosts.survey()?;
        let stripes = vast::stripes_in_use(&bed.setup, &bed.hosts.disks, &geometry);
        let members = survey.members(&bed.hosts.disks)?;
        check_parity(&geometry, &members, stripes.into_iter(), "the array is whole and at rest")?;
        lies::lie(swarm, &geometry)?;
    }
    drop(shared);
    swarm.bed.hosts.settle()?;
    stop(swarm)
}

/// A user reads everything, and is waited for.
pub(super) fn read_all(swarm: &mut Swarm) -> Result<(), Verdict> {
    swarm.bed.spawn_read_all();
    swarm.wait_for_users()
}

fn heal(bed: &mut Testbed) {
    for disk in &bed.hosts.disks {
        if bed.setup.plans_faults() {
            disk.fault(&Fault::Calm);
        }
        disk.fault(&Fault::Heal);
        disk.fault(&Fault::Release);
    }
    bed.hosts.heal_net();
}

/// Rebuilds until every slot is held by a whole member and every region is in sync.
fn make_whole(swarm: &mut Swarm) -> Result<(), Verdict> {
    let limit = swarm.bed.hosts.world.steps() + STEPS_MAX;
    loop {
        if swarm.bed.hosts.world.steps() > limit {
            return Err(swarm.stuck());
        }
        let bed = &mut swarm.bed;
        let array = bed.service.array();
        let snapshot = bed.snapshot();
        if let Some(slot) = unreachable_slot(bed, &snapshot) {
            let failed = bed.hosts.block_on("fail", async move { array.fail(slot).await })?;
            if let Err(error) = failed {
                // It may have been noticed meanwhile.
                let now = bed.snapshot();
                if now.seats[slot].member().map(|m| m.id) == snapshot.seats[slot].member().map(|m| m.id) {
                    return Err(Verdict::Refused(format!("fail: {error}")));
                }
            }
        } else if owner::is_spare_coming(bed) {
            // The array puts the spare in without a command.
            swarm.wait(|bed| !owner::is_spare_coming(bed))?;
        } else if has_empty_slot(&snapshot) {
            owner::add(bed);
            swarm.wait_for_users()?;
            if swarm.bed.setup.net.is_some() || swarm.bed.setup.is_vast() {
                swarm.idle_on(64)?;
            }
        } else {
            bed.faults.heal();
            wait_for_rebuild(swarm, &array)?;
            if is_whole(&array.shared().snapshot()) {
                let bed = &mut swarm.bed;
                let Some(slot) = wide::listed_slot(bed) else { return Ok(()) };
                let failed = bed.hosts.block_on("fail", async move { array.fail(slot).await })?;
                failed.map_err(|error| Verdict::Refused(format!("fail: {error}")))?;
            }
        }
    }
}

/// A slot that is held by a disk out of reach.
fn unreachable_slot(bed: &Testbed, snapshot: &Snapshot) -> Option<usize> {
    let is_gone = |name: &str| {
        let number = bed.hosts.find(name);
        number.is_some_and(|number| bed.hosts.disks[number].is_gone() || bed.hosts.is_lost(number))
    };
    snapshot.seats.iter().position(|seat| seat.member().is_some_and(|member| is_gone(&member.name)))
}

/// Waits until the array is whole, or has lost a member only now because its server died unnoticed.
fn wait_for_rebuild(swarm: &mut Swarm, array: &Array) -> Result<(), Verdict> {
    swarm.wait(|_| {
        let snapshot = array.shared().snapshot();
        is_whole(&snapshot) || has_empty_slot(&snapshot)
    })
}

fn is_whole(snapshot: &Snapshot) -> bool {
    snapshot.is_complete() && snapshot.replacements.is_empty() && snapshot.intent.resync_count() == 0
}

fn has_empty_slot(snapshot: &Snapshot) -> bool {
    snapshot.seats.iter().any(|seat| seat.member().is_none())
}

fn scrub(bed: &mut Testbed) -> Result<(), Verdict> {
    let report = vast::check_in_use(bed)?;
    if report.mismatched_sectors == 0 && report.unreadable_stripes == 0 {
        return Ok(());
    }
    Err(Verdict::Scrub(format!("{report:?} on an array at rest")))
}

fn stop(swarm: &mut Swarm) -> Result<(), Verdict> {
    let bed = &mut swarm.bed;
    let array = bed.service.array();
    bed.service.users.closing.set(true);
    let stopped = bed.hosts.block_on("stop", async move { array.stop().await })?;
    stopped.map_err(|error| Verdict::Refused(format!("stop: {error}")))?;
    bed.service.end(&bed.hosts);
    takeover::provoke(swarm)?;
    let bed = &mut swarm.bed;
    bed.hosts.stop_servers()?;
    bed.hosts.world.run_until_idle(STEPS_MAX)?;
    let report = bed.hosts.world.leak_report();
    if !report.is_clean() {
        return Err(Verdict::Leak(report.to_string()));
    }
    bed.hosts.start_servers();
    check_stopped(bed)?;
    bed.doubts.settle();
    bed.summary.rests += 1;
    vast::end_if_listed(bed)
}

/// All members are current, and the superblocks say that every stripe is in sync, which it is.
fn check_stopped(bed: &Testbed) -> Result<(), Verdict> {
    let Some(geometry) = bed.setup.geometry() else { return Ok(()) };
    let survey = bed.hosts.survey()?;
    let (whole, members) = (survey.whole(), survey.seats.len());
    if whole != members || survey.is_dirty() {
        let dirty = survey.freshest.array.resync_offset;
        let words = format!("after a stop {whole} of {members} members are current, and it is {dirty:?}");
        return Err(Damage::Members(words).into());
    }
    survey.check_headers(&bed.hosts.disks)?;
    let stripes = vast::stripes_in_use(&bed.setup, &bed.hosts.disks, &geometry);
    survey.check_stripes_covered(&bed.hosts.disks, &geometry, stripes.into_iter())?;
    Ok(())
}
