//! The offload extension, server half (`docs/offload-protocol.md`): this server works out parts of parity,
//! passes them to others and sums up theirs.
//!
//! ```text
//!   command ──> carry ──┬─> Fence: may this controller?          (of each namespace, behind one lock that is
//!                       ├─> Table: what is known of the operation  never held across an await)
//!                       ├─> BlockService: old bytes; what is committed
//!                       └─> Peers ──> other servers ──> their Table
//! ```
//!
//! * [`fence`], [`table`], [`sum`]: states without I/O. All shards share them.
//! * [`carry`](super::carry): commands of operations. Nothing that is stored changes before Commit.
//! * [`attach`](super::attach): Attach, Detach, Query.
//! * [`peers`]: associations with other servers.
//! * [`meter`]: what the link can take.
//! * [`store`]: epochs in files.
//!
//! **Memory.** An operation takes a slot, and a namespace has so many: [`Server::slots`] operations of
//! [`RANGE_BYTES_MAX`], of which each holds the new bytes or a sum, and while it is prepared the old bytes
//! and up to two parts as well. A task may outlive its operation, for a disk that hangs or a host that takes
//! no answers: so of tasks there are as many at most as slots. The connection's own limit covers what is
//! being received and what waits to be sent, and is never held while an operation waits for others: so
//! operations can't wait for each other's memory. A part that another server doesn't answer outlives its
//! operation: a connection with a few of these is ended.

pub(super) mod counters;
pub(super) mod fence;
mod meter;
pub(super) mod peers;
mod store;
pub(super) mod sum;
pub(super) mod table;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use pinstripe_runtime::Signal;

pub use counters::OffloadStatistics;
pub use store::EpochFiles;

use super::limits::COMMANDS_MAX;
use super::reservation::HostId;
use crate::initiator::{Connector, Options};
use crate::lock::lock;
use crate::mutants::{Mutant, active};
use crate::uuid::uuid_of;
use crate::wire::offload::{Announcement, Attach, MINOR, PeerAddress, admin, feature, opcode};
use crate::wire::status::Status;
use counters::Counters;
use fence::{Admits, Fence, Outcome, Table as Members};
use meter::Meter;
use peers::{At, Digests, PeerMember, Peers};
use table::Table;

/// Most bytes of a range.
pub const RANGE_BYTES_MAX: u32 = 512 << 10;
/// Most operations that a host may have outstanding on a namespace.
const SLOTS_MAX: u32 = 64;
/// First-phase commands under way on a queue. They wait for other servers, and must not fill it: commands
/// that others wait for must get through.
pub(super) const FIRST_PHASE_MAX: u16 = COMMANDS_MAX * 3 / 4;
/// Owners that were ended, of which a namespace knows.
const ENDED_MAX: usize = 16;

/// How the stages of commands follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Pipeline {
    /// Receive, read, compute, forward and write overlap.
    #[default]
    Overlapped,
    /// One after the other, one command after the other: to measure what the overlap is good for.
    Serial,
}

/// What is durable of a namespace's attachments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EpochRecord {
    /// The array.
    pub array: [u8; 16],
    /// The highest epoch.
    pub epoch: u64,
    /// Identifier of the host that set it, by XOR with its instance if it said one.
    pub owner: [u8; 16],
    /// It said which instance it is: one that was started anew is another owner.
    pub has_instance: bool,
    /// The epoch was given up: plain writes need no attachment.
    pub given_up: bool,
    /// Former owners that may not come again.
    pub ended: Ended,
}

/// Owners from which a namespace was taken, the latest last (C28).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Ended {
    owners: [[u8; 16]; ENDED_MAX],
    count: usize,
}

impl Ended {
    /// So many owners at most are remembered, the latest.
    pub const MAX: usize = ENDED_MAX;

    /// All of them.
    pub fn owners(&self) -> &[[u8; 16]] {
        &self.owners[..self.count]
    }

    /// Whether it is one of them.
    pub fn contains(&self, owner: &[u8; 16]) -> bool {
        self.owners().contains(owner)
    }

    /// One less.
    pub fn remove(&mut self, owner: &[u8; 16]) {
        let others: Vec<[u8; 16]> = self.owners().iter().filter(|other| *other != owner).copied().collect();
        *self = Self::default();
        for other in others {
            self.push(other);
        }
    }

    /// One more. If there are too many, the oldest is forgotten: it would have to have slept through as many
    /// takeovers.
    pub fn push(&mut self, owner: [u8; 16]) {
        if self.contains(&owner) {
            return;
        }
        if self.count == ENDED_MAX {
            self.owners.rotate_left(1);
            self.count -= 1;
        }
        self.owners[self.count] = owner;
        self.count += 1;
    }
}

/// Storing in the making.
pub type Storing = Pin<Box<dyn Future<Output = Result<(), NotStored>>>>;

/// Why a record could not be stored, and what is there instead.
#[derive(Debug)]
pub struct NotStored {
    /// Why.
    pub error: io::Error,
    /// The former record is what a crash leaves. Without, it may be either.
    pub is_unchanged: bool,
}

impl From<io::Error> for NotStored {
    /// Of what fails before anything is changed.
    fn from(error: io::Error) -> Self {
        Self { error, is_unchanged: true }
    }
}

/// Where epochs outlive the server (C22). Namespaces are named by their UUIDs.
pub trait EpochStore: Send + Sync {
    /// What was stored last; may block.
    fn load(&self, namespace: &[u8; 16]) -> io::Result<Option<EpochRecord>>;
    /// Stores it, durably when the future is done.
    fn store(&self, namespace: &[u8; 16], record: &EpochRecord) -> Storing;
}

/// How a target offloads.
pub struct OffloadConfig {
    /// See [`Pipeline`].
    pub pipeline: Pipeline,
    /// New whenever the server may have lost state or cached writes: random, at each start.
    pub incarnation: [u8; 16],
    /// Without one, epochs live as long as the target, and durable fencing isn't announced.
    pub epochs: Option<Arc<dyn EpochStore>>,
    /// How other servers are reached.
    pub connector: Arc<dyn Connector>,
    /// This server's names towards the others: see [`OffloadConfig::peer_options`]. What authenticates it to
    /// them goes in here.
    pub peers: Options,
}

impl OffloadConfig {
    /// How a server of this name appears to others, with so many shards.
    pub fn peer_options(nqn: &str, shards: u16) -> Options {
        Options::new(nqn.to_owned(), uuid_of(&[b"pinstripe target", nqn.as_bytes()]), shards)
    }
}

/// A namespace, and which controllers may change it.
pub(super) struct Guarded {
    pub number: u32,
    uuid: [u8; 16],
    /// Admitted changes that aren't over.
    changes: AtomicUsize,
    /// Whether some controller may not change it. Looked at without the lock.
    guarded: AtomicBool,
    state: Mutex<GuardedState>,
    pub changed: Signal,
}

/// What is known of a namespace's attachments and operations.
pub(super) struct GuardedState {
    pub fence: Fence,
    pub table: Table,
    /// First-phase commands that are under way, also of operations that were dropped.
    pub under_way: u32,
    /// The host that attached it last, by its identifier, and has not given it up.
    pub owner: Option<HostId>,
}

impl GuardedState {
    /// With what was stored.
    pub fn new(record: Option<&EpochRecord>, slots: u32) -> Self {
        Self { fence: Fence::new(record), table: Table::new(slots), under_way: 0, owner: None }
    }

    /// A controller is detached, without giving the epoch up.
    pub fn leave(&mut self, controller: u16) {
        if !self.fence.detach(controller) || active(Mutant::OperationsOutliveController) {
            return;
        }
        // Without an attached host nothing waits for the parts from other servers: then all that are not
        // committed go.
        let (_, has_host) = self.fence.settled();
        self.table.drop_uncommitted(has_host.then_some(controller));
    }
}

impl Guarded {
    fn new(number: u32, uuid: [u8; 16], state: GuardedState) -> Self {
        Self {
            number,
            uuid,
            changes: AtomicUsize::new(0),
            guarded: AtomicBool::new(state.fence.refuses_some()),
            state: Mutex::new(state),
            changed: Signal::default(),
        }
    }

    pub fn with<T>(&self, work: impl FnOnce(&mut GuardedState) -> T) -> T {
        let mut state = lock(&self.state);
        let value = work(&mut state);
        self.guarded.store(state.fence.refuses_some(), Ordering::SeqCst);
        value
    }

    /// Counts a change, and only then looks. An Attach that raises the epoch looks at the count after
    /// raising: so one of them sees the other (C22).
    fn counted<T>(self: &Arc<Self>, look: impl FnOnce(&Self) -> T) -> (Change, T) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        let change = Change(Arc::clone(self));
        let seen = look(self);
        (change, seen)
    }

    /// Lets a controller change the namespace until the guard goes, or not.
    pub async fn admit(self: &Arc<Self>, controller: u16) -> Option<Change> {
        loop {
            let (change, is_guarded) = self.counted(|guarded| guarded.guarded.load(Ordering::SeqCst));
            if !is_guarded {
                return Some(change);
            }
            match self.with(|state| state.fence.admits(controller)) {
                Admits::Now => return Some(change),
                Admits::Never => return None,
                Admits::Soon => drop(change),
            }
            self.changed
                .wait_until(|| self.with(|state| state.fence.admits(controller) != Admits::Soon))
                .await;
        }
    }

    /// Waits until no change is being carried out. New ones must be refused already.
    pub async fn drain(&self) {
        self.changed.wait_until(|| self.changes.load(Ordering::SeqCst) == 0).await;
    }
}

/// See [`Guarded::admit`].
pub(super) struct Change(Arc<Guarded>);

impl Drop for Change {
    fn drop(&mut self) {
        if self.0.changes.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.changed.notify();
        }
    }
}

/// Has commands take turns when the pipeline is serial.
#[derive(Default)]
pub(super) struct Turns {
    taken: AtomicBool,
    changed: Signal,
}

pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    pub async fn take(&self) -> Turn<'_> {
        self.changed.wait_until(|| !self.taken.swap(true, Ordering::SeqCst)).await;
        Turn(self)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::SeqCst);
        self.0.changed.notify();
    }
}

/// What all shards share.
pub(super) struct Server {
    nqn: String,
    pub pipeline: Pipeline,
    pub incarnation: [u8; 16],
    epochs: Option<Arc<dyn EpochStore>>,
    namespaces: Vec<Arc<Guarded>>,
    pub peers: Peers,
    pub counters: Counters,
    /// Of data that hosts and other servers send.
    pub meter: Meter,
    pub turns: Turns,
}

impl Server {
    /// Of namespaces with these UUIDs.
    pub fn new(nqn: &str, uuids: &[[u8; 16]], config: OffloadConfig) -> io::Result<Self> {
        let slots = Self::slots(uuids.len());
        let guarded = |(index, uuid): (usize, &[u8; 16])| {
            let record = match &config.epochs {
                Some(epochs) => epochs.load(uuid)?,
                None => None,
            };
            let state = GuardedState::new(record.as_ref(), slots);
            let number = u32::try_from(index + 1).unwrap_or(u32::MAX);
            Ok(Arc::new(Guarded::new(number, *uuid, state)))
        };
        let namespaces = uuids.iter().enumerate().map(guarded).collect::<io::Result<_>>()?;
        Ok(Self {
            nqn: nqn.to_owned(),
            pipeline: config.pipeline,
            incarnation: config.incarnation,
            epochs: config.epochs,
            namespaces,
            peers: Peers::new(config.connector, config.peers),
            counters: Counters::default(),
            meter: Meter::default(),
            turns: Turns::default(),
        })
    }

    /// So few that first-phase commands of all namespaces are no more than a queue takes of them. With more
    /// namespaces than that, one that is too many is refused.
    fn slots(namespaces: usize) -> u32 {
        let share = usize::from(FIRST_PHASE_MAX) / namespaces.max(1);
        u32::try_from(share).unwrap_or(SLOTS_MAX).clamp(1, SLOTS_MAX)
    }

    pub fn announcement(&self) -> Announcement {
        let fencing = if self.epochs.is_some() { feature::FENCING } else { 0 };
        Announcement {
            minor: MINOR,
            features: feature::PARTIAL_WRITES | feature::RECONSTRUCTION | fencing,
            slots: Self::slots(self.namespaces.len()),
            range_bytes: RANGE_BYTES_MAX,
            incarnation: self.incarnation,
        }
    }

    /// A shard serves.
    pub fn settle(&self) {
        self.peers.settle();
    }

    /// The target stops: other servers aren't needed any more.
    pub fn close(&self) {
        self.peers.close();
    }

    pub fn namespace(&self, number: u32) -> Option<&Arc<Guarded>> {
        self.namespaces.get(usize::try_from(number).ok()?.checked_sub(1)?)
    }

    /// A controller is over: so are its attachments, and what it didn't commit.
    pub fn controller_ended(&self, controller: u16) {
        for guarded in &self.namespaces {
            guarded.with(|state| state.leave(controller));
        }
    }

    /// Drops what wasn't prepared in time.
    pub fn sweep(&self, now: u64) {
        for guarded in &self.namespaces {
            guarded.with(|state| state.table.sweep(now));
        }
    }

    /// Stores a namespace's record, if there is a store.
    pub async fn store(&self, guarded: &Guarded, record: &EpochRecord) -> Outcome {
        let stored = match &self.epochs {
            Some(epochs) if !active(Mutant::EpochNotDurable) => epochs.store(&guarded.uuid, record).await,
            _ => Ok(()),
        };
        match stored {
            Ok(()) => Outcome::Stored,
            Err(NotStored { is_unchanged: true, .. }) => Outcome::Unchanged,
            Err(NotStored { is_unchanged: false, .. }) => Outcome::Unknown,
        }
    }

    /// Where the members are that an Attach names; the namespace itself at most once. Their servers are asked
    /// for the digests that the host has asked for: parts that come damaged are written as parity.
    pub fn members(&self, guarded: &Guarded, attach: &Attach, digests: Digests) -> Result<Members, Status> {
        let mut members = Members::default();
        for (index, address) in attach.peers.iter().enumerate() {
            let Some(address) = address else {
                members.places.push(None);
                continue;
            };
            let place = self.place(address, digests).ok_or(Status::BUSY)?;
            if matches!(place.at, At::Here) && place.namespace == guarded.number {
                let again = members.own.replace(u8::try_from(index).unwrap_or(u8::MAX));
                if again.is_some() {
                    return Err(Status::INVALID_FIELD);
                }
            }
            members.places.push(Some(Arc::new(place)));
        }
        Ok(members)
    }

    fn place(&self, address: &PeerAddress, digests: Digests) -> Option<PeerMember> {
        let is_here = address.nqn == self.nqn;
        let at = if is_here { At::Here } else { At::There(self.peers.server(address, digests)?) };
        Some(PeerMember { namespace: address.namespace, at })
    }

    pub fn statistics(&self) -> OffloadStatistics {
        let mut statistics = self.counters.read();
        for guarded in &self.namespaces {
            let (held, dropped) = guarded.with(|state| (state.table.held(), state.table.dropped));
            statistics.held += u64::from(held);
            statistics.dropped += dropped;
        }
        statistics
    }
}

/// Whether a command of an I/O queue is the extension's.
pub(super) fn is_operation(code: u8) -> bool {
    opcode::ALL.contains(&code)
}

/// Whether an admin command is.
pub(super) fn is_admin(code: u8) -> bool {
    matches!(code, admin::ATTACH | admin::DETACH | admin::QUERY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Waker};

    /// C22: else it would land after the next host's Attach was answered.
    #[test]
    fn an_epoch_that_rises_while_a_change_looks_whether_it_may_be_waits_for_it() {
        let guarded = Arc::new(Guarded::new(1, [1; 16], GuardedState::new(None, 1)));
        let attach = Attach {
            array: [7; 16],
            epoch: 1,
            generation: 0,
            peer: false,
            takeover: false,
            alone: false,
            incarnation: [0; 16],
            instance: [9; 16],
            peers: Vec::new(),
        };
        let (change, ()) = guarded.counted(|guarded| {
            let raised = guarded.with(|state| state.fence.attach(&attach, 2, [2; 16], Members::default()));
            assert_eq!(raised, Ok(fence::Grant::Raises));
            assert!(now(guarded.drain()).is_none());
        });
        drop(change);
        assert!(now(guarded.drain()).is_some());
        assert!(now(guarded.admit(1)).is_some_and(|change| change.is_none()), "it is refused");
    }

    fn now<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            std::task::Poll::Ready(value) => Some(value),
            std::task::Poll::Pending => None,
        }
    }
}
