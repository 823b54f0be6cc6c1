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
//! They are summed up by one of the servers that are left (`io/remote/reduce.rs`, [`coefficients`],
//! [`reducer`]), under the stripe's claim like any reconstruction. If that fails, for whatever reason, the
//! client reads and decodes as it would without servers.
//!
//! # Membership
//!
//! Which members take part is in the membership snapshot ([`Attached`]). A new membership has none:
//! the controller (`controller/attach.rs`) makes the table of peers known to the servers and publishes them.
//! Until then the client does the work.

pub mod assign;
pub mod coefficients;
pub mod fence;
mod operations;
pub mod reducer;

use pinstripe_runtime::{
    Signal,
    atomics::{AtomicU64, Ordering},
    shard,
};

pub(crate) use self::operations::{Demand, Operations, Reservation};
use self::reducer::Reducers;
use crate::{
    geometry::{MEMBERS_MAX, Set64},
    members::MemberId,
    membership::{attached::Attached, snapshot::View},
};

/// After a server refused to do its part, the client does the work itself for so long.
const PAUSE_NS: u64 = 10_000_000_000;

/// What the members' servers do for the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OffloadDetail {
    /// Under which they are attached.
    pub epoch: u64,
    /// Why the client does the work itself, if it does.
    pub plain: Option<String>,
}

/// What a member's server does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberOffload {
    /// Why it is a plain member; `None` if it takes part.
    pub plain: Option<String>,
    /// Operations that aren't over.
    pub outstanding: u32,
    /// Operations that it may have.
    pub operations_max: u32,
    /// Bytes per second that its link is free to receive; `None` if not known.
    pub free_bandwidth: Option<u64>,
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
