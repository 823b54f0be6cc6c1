//! An array is assembled, or refused: a life's beginning.
//!
//! Before that, assemblies may be cut off, and members may be absent. One thing is legal besides success: a
//! dirty and degraded array is refused (C19), and goes on by force, or not at all.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use pinstripe_engine::{
    array::Array, assembly::AssembleError, offload::fence::FenceError, options::ArrayOptions,
};
use pinstripe_runtime::{DeviceError, DeviceErrorKind, DeviceSource};

use super::{
    Swarm, Testbed, UserState, Verdict, atlas, crash, hosts::STEPS_MAX, journal_loss, net::Reach, rival,
    rough, takeover, wide,
};
use crate::SECTOR;

/// What becomes of an assembly.
pub(super) type Outcome = Result<Array, AssembleError>;

/// Where it will be.
pub(super) type Awaited = Rc<RefCell<Option<Outcome>>>;

/// Assembles the array. False if it was refused, legally, and the run ends here.
pub(super) fn assemble(swarm: &mut Swarm) -> Result<bool, Verdict> {
    swarm.bed.service.start();
    wide::lose_bits(&mut swarm.bed)?;
    rough::doom_listing(&mut swarm.bed)?;
    atlas::leave_some_out(&mut swarm.bed)?;
    die_in_assemblies(swarm)?;
    let mut tripped = rough::trip(&mut swarm.bed)?;
    let (mut force, mut has_rival) = (false, rival::is_drawn(&mut swarm.bed));
    // Which slots had a member when the start had to be forced.
    let mut forced: Option<Vec<bool>> = None;
    loop {
        let is_disowned = journal_loss::is_forbidden(&swarm.bed);
        note_lost(&mut swarm.bed)?;
        let outcome = outcome(swarm, force, std::mem::take(&mut has_rival))?;
        let bed = &mut swarm.bed;
        match outcome {
            Ok(array) => {
                bed.settle_cut_off();
                begin_life(bed, array);
                if let Some(fault) = tripped {
                    fault.settle(bed);
                }
                if let Some(here) = forced.filter(|_| bed.is_contended()) {
                    // Now that what the old client had under way is cut off: a start that is refused gives up
                    // what it has taken, so that one has gone on.
                    bed.doubt_half_written(&here);
                }
                journal_loss::started(bed, is_disowned, force)?;
                return Ok(true);
            }
            // It may be repeated, and then goes without the disk if that is gone.
            Err(_) if tripped.take().is_some_and(|fault| fault.has_happened(bed)) => {}
            Err(AssembleError::JournalMissing) if !force && journal_loss::may_be_missing(bed)? => {
                bed.summary.forced += 1;
                force = true;
            }
            Err(AssembleError::Fence(error)) if !force && is_too_few(&error) => {
                // C23: it may go on with all members; or by force, where a user knows that no other host has
                // an array with the rest.
                bed.summary.refusals += 1;
                forced = takeover::is_hopeless(bed)?;
                force = forced.is_some();
            }
            Err(AssembleError::DirtyDegraded { missing }) => {
                forced = bear_dirty_and_degraded(bed, missing)?;
                force = forced.is_some();
                if !force {
                    return Ok(false);
                }
            }
            // All members that the level needs are there, and it is known which these are.
            Err(error) if bed.setup.net.is_some() => {
                return Err(Verdict::Scene(format!("assembly is refused: {error}")));
            }
            Err(error) => return Err(Verdict::Refused(format!("assembly: {error}"))),
        }
    }
}

fn is_too_few(error: &FenceError) -> bool {
    match error {
        FenceError::TooFew { .. } => true,
        FenceError::Partly { cause, .. } => is_too_few(cause),
        _ => false,
    }
}

/// Notes which slots and sectors the log may have to make do without, if there is one on the members.
fn note_lost(bed: &mut Testbed) -> Result<(), Verdict> {
    if bed.setup.consistency.bears_degraded_start() {
        let survey = bed.hosts.survey()?;
        bed.doubts.note_lost(&survey);
        if let Some(geometry) = bed.setup.geometry() {
            bed.doubts.note_listed(&geometry, &survey.members(&bed.hosts.disks)?);
        }
    }
    Ok(())
}

/// Assemblies that are cut off.
fn die_in_assemblies(swarm: &mut Swarm) -> Result<(), Verdict> {
    let bed = &mut swarm.bed;
    let more = if bed.setup.atlas.is_some() { bed.rng.pick(&[0, 0, 1, 2]) } else { 0 };
    for _ in 0..more + bed.rng.pick(&[0, 0, 0, 1, 2]) {
        // The machine dies in the middle of the assembly, or just after it, when resync has begun.
        let bed = &mut swarm.bed;
        note_lost(bed)?;
        start(bed, false);
        // With a network there is more to be done.
        let longest = if bed.setup.net.is_some() || bed.setup.rough.is_some() { 14 } else { 11 };
        let steps = 1 << bed.rng.below(longest);
        swarm.idle_on(steps)?;
        let bed = &mut swarm.bed;
        let power = bed.setup.net.is_none() || bed.rng.chance(1, 2);
        crash::crash(bed, power)?;
    }
    Ok(())
}

/// Starts an assembly by the client that is to serve the array.
pub(super) fn start(bed: &mut Testbed, force: bool) -> Awaited {
    let hosts = &bed.hosts;
    let mut ways: Vec<Reach> = hosts.present().map(|(number, _)| hosts.reach(number)).collect();
    bed.rng.shuffle(&mut ways);
    let options = ArrayOptions { force, takeover: hosts.takes_over(), ..bed.setup.options.clone() };
    let shards = hosts.home_shards().map(|index| hosts.world.shard(index).handle()).collect();
    let slot = Awaited::default();
    let there = Rc::clone(&slot);
    bed.hosts.spawn("assemble", async move {
        let outcome = match sources_of(ways).await {
            Ok(sources) => Array::assemble(sources, options, shards).await,
            Err(error) => Err(error),
        };
        *there.borrow_mut() = Some(outcome);
    });
    slot
}

/// What the array is given; the first that can't be had says why.
async fn sources_of(ways: Vec<Reach>) -> Result<Vec<Arc<dyn DeviceSource>>, AssembleError> {
    let mut sources = Vec::with_capacity(ways.len());
    for way in ways {
        let source = way.source().await;
        sources.push(
            source.map_err(|name| AssembleError::Device {
                name,
                error: DeviceError::of(DeviceErrorKind::Gone),
            })?,
        );
    }
    Ok(sources)
}

/// Has the array assembled, and by another host at the same time if there is a rival. What came of it for the
/// host that goes on.
fn outcome(swarm: &mut Swarm, force: bool, has_rival: bool) -> Result<Outcome, Verdict> {
    let ours = start(&mut swarm.bed, force);
    let theirs = has_rival.then(|| rival::start(&mut swarm.bed));
    let is_over = |awaited: &Awaited| awaited.borrow().is_some();
    for _ in 0..STEPS_MAX {
        if is_over(&ours) && theirs.iter().all(is_over) {
            break;
        }
        swarm.must_step()?;
    }
    let Some(ours) = ours.take() else { return Err(swarm.stuck()) };
    let Some(theirs) = theirs else { return Ok(ours) };
    let Some(theirs) = theirs.take() else { return Err(swarm.stuck()) };
    rival::settle(&mut swarm.bed, ours, theirs)
}

fn begin_life(bed: &mut Testbed, array: Array) {
    if bed.summary.assemblies == 0 && bed.setup.geometry().is_none() {
        bed.service.users = UserState::new(array.volume().size() / SECTOR);
    }
    bed.summary.assemblies += 1;
    bed.faults.begin_life();
    bed.service.begin(array);
    bed.hosts.begin_life(bed.service.array(), Rc::clone(&bed.service.users), &mut bed.rng);
    takeover::retire(bed);
}

/// An assembly was refused because the array is dirty and degraded. Which slots have a member, if it is to be
/// forced.
fn bear_dirty_and_degraded(bed: &mut Testbed, missing: usize) -> Result<Option<Vec<bool>>, Verdict> {
    takeover::suspect(bed);
    let survey = bed.hosts.survey()?;
    if !survey.is_dirty() || survey.whole() == survey.seats.len() {
        if bed.is_contended() {
            // The old client goes on, and has changed it since.
            return Ok(None);
        }
        let words = format!("refused as dirty with {missing} missing, which it is not");
        return Err(Verdict::Refused(words));
    }
    if bed.has_log() {
        return Err(Verdict::Refused(format!(
            "refused as dirty with {missing} missing, in spite of its log"
        )));
    }
    bed.summary.refusals += 1;
    if bed.rng.chance(1, 4) {
        return Ok(None);
    }
    bed.forced_start(&survey).map(Some)
}
