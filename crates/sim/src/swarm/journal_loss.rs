//! The journal device goes, for good or for a while (C18).
//!
//! That ends a life: what is under way is finished, the superblocks call the array dirty and its journal
//! lost, nothing more is written, everything can be read. Then the machine dies, or the array is stopped, and
//! the device is back or not. If the loss was written down, no start may take the journal for what it was: it
//! doesn't know what has been finished without it. So the array is refused, and then assembled by force,
//! without a journal from then on.
//!
//! The users of an array that writes back are let finish first, for what only the journal has is lost with it
//! if the machine dies before it is written out.

use std::rc::Rc;

use pinstripe_engine::{error::IoError, options::JournalMode};
use pinstripe_md::superblock::{ResyncOffset, Role};
use pinstripe_runtime::shard;

use super::{Consistency, Swarm, Testbed, Verdict, rest::read_all, rough};
use crate::Fault;

/// Writes that are tried until one must have been refused.
const TRIES: usize = 3;

/// Whether this life ends with the loss of the journal.
pub(super) fn is_due(bed: &mut Testbed) -> bool {
    bed.setup.atlas.is_some() && bed.setup.consistency == Consistency::Journal && bed.rng.chance(2, 3)
}

/// Takes the journal away, unless members have gone: then it would be one too many. True if the array was
/// stopped.
pub(super) fn lose(swarm: &mut Swarm) -> Result<bool, Verdict> {
    let bed = &mut swarm.bed;
    let array = bed.service.array();
    let snapshot = array.shared().snapshot();
    let is_whole = bed.broken() == 0 && snapshot.replacements.is_empty() && array.shared().is_recorded();
    if !is_whole || bed.service.is_torn() {
        return Ok(false);
    }
    bed.summary.journals_lost += 1;
    bed.journal_lost = true;
    bed.service.users.closing.set(true);
    // In rough lives the mode is changed in service.
    let writes_back = bed.setup.options.journal_mode == JournalMode::WriteBack || bed.setup.rough.is_some();
    if !rough::lose_journal(bed) {
        bed.hosts.disks[bed.setup.members].fault(&Fault::Gone);
    }
    if !writes_back && bed.rng.chance(1, 2) {
        // The machine dies with it.
        let steps = 1 << bed.rng.below(12);
        swarm.idle_on(steps)?;
        return Ok(false);
    }
    swarm.wait_for_users()?;
    write_in_vain(&mut swarm.bed)?;
    swarm.wait(is_disowned)?;
    swarm.bed.service.users.closing.set(false);
    read_all(swarm)?;
    swarm.bed.service.users.closing.set(true);
    if swarm.bed.rng.chance(1, 2) {
        return Ok(false);
    }
    let stopped = swarm.bed.hosts.block_on("stop", async move { array.stop().await })?;
    stopped.map_err(|error| Verdict::Refused(format!("stop without the journal: {error}")))?;
    Ok(true)
}

/// No write is acknowledged any more, and what was is flushed.
fn write_in_vain(bed: &mut Testbed) -> Result<(), Verdict> {
    for _ in 0..TRIES {
        let (volume, users) = (bed.service.array().volume().clone(), Rc::clone(&bed.service.users));
        let block = bed.setup.block as usize;
        let written = bed.hosts.block_on("write", async move {
            let mut data = shard::buffer(block);
            let id = users.ledger.borrow_mut().begin_write(0, &mut data, false);
            let written = volume.write(0, data.freeze(), false).await;
            users.ledger.borrow_mut().complete_write(id, written.is_ok());
            written
        })?;
        match written {
            Ok(()) => continue,
            Err(IoError::JournalLost) => {}
            Err(error) => return Err(Verdict::Refused(format!("write without the journal: {error}"))),
        }
        let (volume, users) = (bed.service.array().volume().clone(), Rc::clone(&bed.service.users));
        let flushed = bed.hosts.block_on("flush", async move {
            let id = users.ledger.borrow_mut().begin_flush();
            let flushed = volume.flush().await;
            users.ledger.borrow_mut().complete_flush(id, flushed.is_ok());
            flushed
        })?;
        return flushed.map_err(|error| Verdict::Refused(format!("flush without the journal: {error}")));
    }
    Err(Verdict::Scene("writes are acknowledged although the journal is lost (C18)".to_owned()))
}

/// Whether the members say that the journal is lost, and that the array is dirty.
fn is_disowned(bed: &Testbed) -> bool {
    bed.hosts.survey().is_ok_and(|survey| {
        survey.seats.iter().flatten().all(|(_, superblock)| {
            let array = &superblock.array;
            array.journal
                && array.resync_offset != ResyncOffset::Clean
                && !array.roles.contains(&Role::Journal)
        })
    })
}

/// The array was refused for want of its journal. Whether that is legal: then it is started without.
pub(super) fn may_be_missing(bed: &Testbed) -> Result<bool, Verdict> {
    let survey = bed.hosts.survey()?;
    let is_gone = bed.hosts.disks[bed.setup.members].is_gone();
    Ok(bed.journal_lost && (is_gone || !survey.freshest.array.roles.contains(&Role::Journal)))
}

/// The array has started after it lost its journal: without it, or with it if the members don't say that
/// it is lost.
pub(super) fn started(bed: &mut Testbed, was_disowned: bool, forced: bool) -> Result<(), Verdict> {
    if !std::mem::take(&mut bed.journal_lost) {
        return Ok(());
    }
    if forced {
        bed.setup.consistency = Consistency::Resync;
    } else if was_disowned {
        return Err(Verdict::Scene("a journal that was lost is replayed (C18)".to_owned()));
    }
    Ok(())
}

/// Whether no start may use the journal any more.
pub(super) fn is_forbidden(bed: &Testbed) -> bool {
    bed.journal_lost && is_disowned(bed)
}
