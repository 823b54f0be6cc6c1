//! Replay: what a log from before the start says is brought to the members.
//!
//! Once, after assembly has decided which members are current and before anything else is read or written.
//! What it has made good is not dirty any more, and dirty and degraded is no reason to refuse. A journal is
//! replayed through the array itself ([`journal`]), as soon as there is one.

mod area;
mod double_parity;
pub(crate) mod journal;
mod members;
mod ppl;

use std::sync::Arc;

use pinstripe_md::{
    superblock::{ResyncOffset, Support},
    units::Sector,
};

use self::members::Members;
use crate::{
    assembly::{AssembleError, Assembled, OldLog},
    consistency::{DoubleParityLog, Log, Ppl, is_logged},
    mutants::{Mutant, active},
    options::ArrayOptions,
};

/// A partial parity log counts where every member names it. A crash in the middle of its coming or going
/// leaves some that do and some that don't; it says nothing then, and none of them keeps its place: else it
/// would be in the way of a bitmap.
fn give_up_torn_log(assembled: &mut Assembled) {
    let seated = &mut assembled.seated;
    let members =
        || seated.seats.iter().flatten().chain(seated.replacements.iter().map(|(_, target)| target));
    if members().all(|found| found.superblock.member.ppl.is_some()) {
        return;
    }
    assembled.freshest.member.ppl = None;
    let targets = seated.replacements.iter_mut().map(|(_, target)| target);
    for found in seated.seats.iter_mut().flatten().chain(targets).chain(&mut seated.spares) {
        found.superblock.member.ppl = None;
    }
}

/// Replays the log that assembly found, and leaves it for the array to use in `assembled.log`.
pub(crate) async fn replay(assembled: &mut Assembled, options: &ArrayOptions) -> Result<(), AssembleError> {
    let was_logged = is_logged(&assembled.freshest);
    if !active(Mutant::TornLogBelieved) {
        give_up_torn_log(assembled);
    }
    let Some(members) = Members::of(assembled) else { return Ok(()) };
    let freshest = &assembled.freshest;
    let dirty = freshest.array.is_dirty();
    let writable = !options.read_only && freshest.support() == Support::Full;
    let missing = (0..assembled.geometry.members()).filter(|&slot| !assembled.is_whole(slot)).count();
    let (mut covers, mut is_in_use, mut unreadable) = (false, false, None);
    if dirty && writable && is_logged(freshest) {
        if freshest.member.ppl.is_some() {
            let replayed = ppl::replay(&members).await?;
            // Of rows that a resync has not come to the log says nothing, where it was a stop that cut that
            // short. (MD's rule, too.)
            covers = replayed.covers && freshest.array.resync_offset == ResyncOffset::DirtyFrom(Sector(0));
            (is_in_use, unreadable) = (replayed.in_use, replayed.unreadable);
        } else {
            unreadable = double_parity::replay(&members).await?;
            covers = unreadable.is_none();
        }
        members.flush().await?;
    }
    let log = if freshest.member.ppl.is_some() {
        Log::Ppl(Arc::new(Ppl::new(freshest.array.set_uuid, 1)))
    } else if double_parity::is_carried(&members, freshest.array.needs_double_parity_log).await? {
        let block = assembled.geometry.logical_block();
        let log = DoubleParityLog::new(freshest.array.set_uuid, block.into());
        Log::DoubleParity(Arc::new(log))
    } else {
        Log::None
    };
    let (refused, all_listed) = members.refused();
    // A resync makes the rows right of what can't be listed.
    covers &= all_listed;
    if covers {
        (assembled.dirty_from, assembled.forced) = (None, false);
    } else if was_logged && dirty && missing > 0 && !options.force {
        return Err(match unreadable {
            Some(name) => {
                let bears = missing < assembled.geometry.redundancy();
                AssembleError::LogUnreadable { name, missing, bears }
            }
            None => AssembleError::DirtyDegraded { missing },
        });
    }
    if matches!(log, Log::None) {
        // What only looked like a log's place is none.
        for found in assembled.seated.seats.iter_mut().flatten() {
            found.superblock.member.double_parity_log = None;
        }
    }
    assembled.log = log;
    assembled.refused = refused;
    assembled.old_log = match (covers, is_in_use) {
        (true, _) => OldLog::Replayed,
        (false, true) => OldLog::InUse,
        (false, false) => OldLog::Silent,
    };
    Ok(())
}
