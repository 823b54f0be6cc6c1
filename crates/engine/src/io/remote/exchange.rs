//! Commands to several servers, and what becomes of them.
//!
//! If one of the commands of a first phase fails, the operation is resolved at every participant at once: a
//! server that waits for a part that will never come would else hold it, and the stripe, for seconds.

use pinstripe_runtime::{DeviceError, DeviceErrorKind, SubmissionSet, Ticket};

use crate::{
    error::Operation,
    geometry::Set64,
    io::parity::ParityVolume,
    members::MemberId,
    membership::snapshot::View,
    mutants::{Mutant, active},
};

/// A command of a first phase, or the end of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Does a part of the work.
    Prepare {
        /// The member of the server.
        slot: usize,
    },
    /// Brings what a read wants.
    Deliver {
        slot: usize,
        /// The reader's own number for it.
        number: usize,
    },
    /// Drops the operation.
    Resolve { slot: usize },
}

impl Step {
    fn slot(self) -> usize {
        match self {
            Self::Prepare { slot } | Self::Deliver { slot, .. } | Self::Resolve { slot } => slot,
        }
    }
}

/// An operation that was sent, and the slots of all that take part.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) ticket: Ticket,
    pub(crate) participants: Set64,
}

/// What a first phase that failed comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failed {
    /// A member that was reported and must be out before its stripe is released (C16).
    pub(crate) member: Option<MemberId>,
    /// A server would not do it: the next one will not either, for now.
    pub(crate) refused: bool,
}

impl ParityVolume {
    /// Waits until every command is answered. If one fails, all operations are resolved everywhere; false
    /// then.
    pub(crate) async fn prepared(
        &self,
        view: &View,
        sent: &[Sent],
        requests: &mut SubmissionSet<Step>,
    ) -> bool {
        let mut failed = false;
        while !active(Mutant::OffloadCommitsEarly) && requests.failure().await {
            if !std::mem::replace(&mut failed, true) {
                let refused = |result: Result<usize, DeviceError>| {
                    result.is_err_and(|error| error.kind == DeviceErrorKind::Refused)
                };
                if let Some((step, _)) = requests.answered().find(|&(_, result)| refused(result)) {
                    self.shared.offload.note_refuser(step.slot());
                }
                resolve(view, sent, requests);
            }
        }
        !failed
    }

    /// Looks at a first phase that failed and was resolved. Reports members that don't answer, and a member
    /// that says that it has written what was never committed.
    pub(crate) fn judge(&self, view: &View, outcomes: &[(Step, Result<usize, DeviceError>)]) -> Failed {
        let mut judged = Failed { member: None, refused: false };
        for (step, result) in outcomes {
            let error = match (step, result) {
                (_, Err(error)) if error.kind == DeviceErrorKind::Refused => {
                    judged.refused = true;
                    continue;
                }
                (Step::Resolve { .. }, Err(error)) => *error,
                (_, Err(error)) if is_lost(error.kind) => *error,
                (Step::Resolve { .. }, Ok(0)) => continue,
                (Step::Resolve { .. }, Ok(_)) => DeviceError::of(DeviceErrorKind::Other),
                _ => continue,
            };
            judged.member =
                self.members.report(view, step.slot(), Operation::Write, 0, error).or(judged.member);
        }
        judged
    }
}

/// Has every participant drop operations that aren't committed.
pub(crate) fn resolve(view: &View, sent: &[Sent], requests: &mut SubmissionSet<Step>) {
    let sent = if active(Mutant::OffloadUnresolved) { &[] } else { sent };
    for Sent { ticket, participants } in sent {
        for slot in *participants {
            let server = view.member(slot).and_then(|(_, device)| device.offload());
            // A member that has left the membership is out already.
            if let Some(server) = server {
                requests.push(Step::Resolve { slot }, server.resolve(*ticket));
            }
        }
    }
}

/// Whether nothing more is to be expected of a member that said so.
fn is_lost(kind: DeviceErrorKind) -> bool {
    matches!(kind, DeviceErrorKind::Gone | DeviceErrorKind::TimedOut | DeviceErrorKind::Removed)
}
