//! Two hosts attach the members at the same time, each to take the array over (C23).
//!
//! Either may get it, or one after the other. But not none: when both had what a start needs, one of them has
//! the array. If both think so, the servers say which is right, and the other one is like any from which the
//! array was taken.

use pinstripe_engine::{assembly::AssembleError, offload::fence::FenceError};
use pinstripe_runtime::DeviceErrorKind;

use super::{
    Testbed, Verdict,
    assembly::{self, Awaited, Outcome},
    takeover::Stale,
};

/// Whether the other host is to attach at the same time as the next one that does. Then either takes
/// over.
pub(super) fn is_drawn(bed: &mut Testbed) -> bool {
    let is_wild = bed.setup.net.as_ref().is_some_and(|net| net.wild);
    let may_meet = is_wild && bed.stale.is_none() && bed.summary.assemblies > 0;
    let is_drawn = may_meet && bed.rng.chance(1, 2);
    if is_drawn {
        bed.hosts.take_over_next();
    }
    is_drawn
}

/// The other host attaches, too.
pub(super) fn start(bed: &mut Testbed) -> Awaited {
    bed.summary.takeovers += 1;
    bed.hosts.exchange_clients();
    let outcome = assembly::start(bed, false);
    bed.hosts.exchange_clients();
    outcome
}

/// Both are done. What came of the assembly of the host that goes on.
pub(super) fn settle(bed: &mut Testbed, ours: Outcome, theirs: Outcome) -> Result<Outcome, Verdict> {
    let (client, other) = (bed.hosts.client(), 1 - bed.hosts.client());
    match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => {
            let swap = bed.hosts.owned_by(other) > bed.hosts.owned_by(client);
            let (winner, loser) = if swap { (theirs, ours) } else { (ours, theirs) };
            if swap {
                bed.hosts.exchange_clients();
            }
            let users = bed.service.users.succeed();
            bed.stale = Some(Stale::of(Some(loser), users, if swap { client } else { other }));
            Ok(Ok(winner))
        }
        (Ok(ours), Err(_)) => {
            bed.hosts.end_process(other, ());
            Ok(Ok(ours))
        }
        (Err(_), Ok(theirs)) => {
            bed.hosts.exchange_clients();
            bed.hosts.end_process(client, ());
            Ok(Ok(theirs))
        }
        (Err(ours), Err(theirs)) => {
            if was_taken(&ours) && was_taken(&theirs) {
                return Err(Verdict::Scene(format!(
                    "of two hosts that take over at once neither gets the array: {ours}; {theirs}"
                )));
            }
            // One had it, and could not start it. The other one may have been fenced, and a process that
            // was stays so (C28).
            let taken = was_taken(&ours);
            bed.hosts.end_process(other, ());
            bed.hosts.end_process(client, ());
            Ok(Err(if taken { theirs } else { ours }))
        }
    }
}

/// Whether an assembly failed because another host was there.
fn was_taken(error: &AssembleError) -> bool {
    match error {
        AssembleError::Fence(FenceError::Partly { cause, .. }) => {
            matches!(**cause, FenceError::InUse { .. })
        }
        AssembleError::Fence(FenceError::InUse { .. }) => true,
        AssembleError::Device { error, .. } | AssembleError::Flush { error, .. } => {
            error.kind == DeviceErrorKind::Fenced
        }
        _ => false,
    }
}
