//! Two hosts attach the members at the same time, each to take the array over (C23).
//!
//! Either may get it, or one after the other. But not none: when both had what a start needs, one of them has
//! the array. If both think so, the servers say which is right, and the other one is like any from which the
//! array was taken.

use std::{cell::RefCell, rc::Rc};

use pinstripe_engine::{array::Array, assembly::AssembleError, offload::fence::FenceError};
use pinstripe_runtime::DeviceErrorKind;

use super::{Swarm, Verdict, takeover::Stale};

/// What becomes of an assembly.
pub(crate) type Outcome = Result<Array, AssembleError>;

impl Swarm {
    /// Whether the other host is to attach at the same time as the next one that does. Then either takes
    /// over.
    pub(crate) fn draw_rivals(&mut self) -> bool {
        let Some(net) = self.net.as_mut().filter(|net| net.wild && self.stale.is_none()) else {
            return false;
        };
        let is_drawn = self.summary.assemblies > 0 && self.rng.chance(1, 2);
        net.takes_over |= is_drawn;
        is_drawn
    }

    /// The other host attaches, too.
    pub(crate) fn start_rival(&mut self) -> Rc<RefCell<Option<Outcome>>> {
        self.summary.takeovers += 1;
        self.exchange_clients();
        let outcome = self.start_assembly(false);
        self.exchange_clients();
        outcome
    }

    fn exchange_clients(&mut self) {
        if let Some(net) = &mut self.net {
            net.client = 1 - net.client;
        }
    }

    /// Both are done. What came of the assembly of the host that goes on.
    pub(crate) fn settle_rivals(&mut self, ours: Outcome, theirs: Outcome) -> Result<Outcome, Verdict> {
        let Some(net) = &self.net else { return Ok(ours) };
        let ours_number = net.client;
        match (ours, theirs) {
            (Ok(ours), Ok(theirs)) => {
                let swap = net.owned_by(1 - net.client) > net.owned_by(net.client);
                let (winner, loser) = if swap { (theirs, ours) } else { (ours, theirs) };
                if swap {
                    self.exchange_clients();
                }
                let shop = self.shop.succeed();
                self.stale = self.net.as_ref().map(|net| Stale::of(loser, shop, 1 - net.client));
                Ok(Ok(winner))
            }
            (Ok(ours), Err(_)) => {
                self.end_rival();
                Ok(Ok(ours))
            }
            (Err(_), Ok(theirs)) => {
                self.exchange_clients();
                self.end_rival();
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
                self.end_rival();
                self.end_process(ours_number);
                Ok(Err(if taken { theirs } else { ours }))
            }
        }
    }

    /// The process of the host that doesn't go on is over.
    fn end_rival(&mut self) {
        if let Some(client) = self.net.as_ref().map(|net| net.client) {
            self.end_process(1 - client);
        }
    }

    fn end_process(&mut self, client: usize) {
        let Some(net) = &mut self.net else { return };
        self.world.end_shards(&net.shards_of(client), &[], false, false);
        net.renew(client, &self.world);
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
