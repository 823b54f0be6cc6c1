//! Parity computed by the members' servers: the engine's half of `docs/offload-protocol.md`, over the seam
//! [`Offload`](pinstripe_runtime::Offload).
//!
//! # Writes
//!
//! A stripe write with runs that need old bytes is given to the servers, one operation for each run. It is
//! the same stripe write up to the freeze (claim, batch, plan, intent), but for the pre-read, which is left
//! out. Then, instead of encoding and writing:
//!
//! 1. *First phase*: every participant gets its part of the work ([`assign`]). Nothing stored changes.
//! 2. When all have succeeded and the membership is still the same, every participant that holds something is
//!    told to commit.
//!
//! A first phase that fails has no effect: the operations are resolved at every participant that answers, and
//! the batch is planned again for a client that does the work itself. A commit that fails is a failed write
//! of that member (C2). In both cases the stripe stays claimed until every command was answered or its member
//! is out of the membership (C16).
//!
//! Batches with a run that must be recovered first, rows with bad blocks or a replacement, arrays with a log
//! (which would have to see old bytes) are left to the client. What needs no old bytes (full stripes) the
//! client writes together with the commits.
//!
//! # Lost bytes
//!
//! They are summed up by one of the servers that are left ([`reduce`], [`coefficients`], [`reducer`]), under
//! the stripe's claim like any reconstruction. If that fails, for whatever reason, the client reads and
//! decodes as it would without servers.
//!
//! # Membership
//!
//! Which members take part is in the membership snapshot ([`Attached`]). A new membership has none;
//! [`attach`] makes the table of peers known to the servers and publishes them. Until then the client does
//! the work.

pub mod assign;
mod attach;
pub mod coefficients;
mod exchange;
pub mod fence;
mod operations;
mod reduce;
pub mod reducer;

use std::sync::Arc;

use pinstripe_runtime::{
    DeviceError, Signal,
    atomics::{AtomicU64, Ordering},
    shard,
};

use self::reducer::Reducers;
pub(crate) use self::{
    attach::Attaching,
    exchange::{Requests, Sent, Step, resolve},
    operations::{Demand, Operations, Reservation},
    reduce::Lost,
};
use crate::{
    geometry::{MEMBERS_MAX, Set64},
    members::MemberId,
    membership::snapshot::{Snapshot, View},
};

/// After a server refused to do its part, the client does the work itself for so long.
const PAUSE_NS: u64 = 10_000_000_000;

/// Why a member is a plain one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It isn't: its server takes part.
    Offload,
    /// Its server doesn't offer it.
    NotOffered,
    /// A member of the array is being replaced.
    Replacement,
    /// Its server refused to be attached.
    Refused(DeviceError),
}

/// Which members take part under a membership. Part of the [`Snapshot`].
#[derive(Clone, Debug)]
pub struct Attached {
    /// Slots of the members that take part.
    pub slots: Set64,
    /// The epoch under which they are attached.
    pub epoch: u64,
    /// Most bytes of a range.
    pub range_bytes: u32,
    /// By slot: operations that a member may have.
    pub limits: Vec<u32>,
    /// By slot.
    pub standing: Vec<Standing>,
}

/// What the shards share.
#[derive(Default)]
pub(crate) struct Common {
    pub(crate) operations: Operations,
    /// The membership has changed: the servers are to know.
    pub(crate) changed: Signal,
    paused_until: AtomicU64,
    /// The slot plus one of the first member that refused its part; 0 if none did.
    refuser: AtomicU64,
    pub(crate) reducers: Reducers,
}

impl Common {
    /// Whether the client does the work itself for now.
    pub(crate) fn is_paused(&self) -> bool {
        let until = self.paused_until.load(Ordering::Relaxed);
        if until == 0 || until > shard::now() {
            return until != 0;
        }
        self.paused_until.store(0, Ordering::Relaxed);
        false
    }

    /// The member because of which the client did the work itself when a request last asked: its slot. It is
    /// the member that refused first, for others refuse what was dropped because of that.
    pub(crate) fn paused_for(&self) -> Option<usize> {
        let is_paused = self.paused_until.load(Ordering::Relaxed) != 0;
        let refuser = self.refuser.load(Ordering::Relaxed).checked_sub(1).filter(|_| is_paused)?;
        usize::try_from(refuser).ok()
    }

    /// A member's server is the first to refuse its part of an operation.
    pub(crate) fn note_refuser(&self, slot: usize) {
        self.refuser.store(slot as u64 + 1, Ordering::Relaxed);
    }

    /// The servers have been told of a new membership: what was refused under the one before need not be any
    /// more.
    pub(crate) fn resume(&self) {
        self.paused_until.store(0, Ordering::Relaxed);
    }

    /// A server refused to do its part.
    pub(crate) fn pause(&self) {
        self.paused_until.store(shard::now() + PAUSE_NS, Ordering::Relaxed);
    }

    /// Room for operations, as soon as there is some within `wait_ns`. `participants` gives the slots that
    /// take part in each.
    pub(crate) async fn reserve(
        &self,
        view: &View,
        attached: &Attached,
        participants: impl Iterator<Item = Set64>,
        wait_ns: u64,
    ) -> Option<Reservation<'_>> {
        let (mut counts, mut operations) = ([0u32; MEMBERS_MAX], 0);
        for slots in participants {
            operations += 1;
            slots.iter().for_each(|slot| counts[slot] += 1);
        }
        let named = (0..attached.limits.len()).filter(|&slot| counts[slot] > 0);
        let demand = |slot: usize| {
            let (member, _) = view.member(slot)?;
            Some(Demand { member: member.id, operations: counts[slot], limit: attached.limits[slot] })
        };
        self.operations.reserve(operations, named.map(demand).collect::<Option<_>>()?, wait_ns).await
    }

    /// Operations of a member that aren't over.
    pub(crate) fn outstanding(&self, member: MemberId) -> u32 {
        self.operations.outstanding(member)
    }
}

/// The members that take part now; `None` if there are none.
pub(crate) fn attached(snapshot: &Snapshot) -> Option<&Arc<Attached>> {
    snapshot.offload.as_ref().filter(|attached| !attached.slots.is_empty())
}
