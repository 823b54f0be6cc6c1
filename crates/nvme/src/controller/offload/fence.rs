//! Which controllers may change a namespace: epochs and attachments (section 3). No I/O.
//!
//! What has ended stays out (C28). A controller that was attached, and that another owner's epoch or its own
//! owner's newer controller has ended, is refused until it attaches anew: also when the epoch was given up
//! meanwhile, for its host has planned what it sends before the other one wrote. And an owner from which the
//! namespace was taken can't attach again, whatever epoch it names: its view is as old. Unless nothing has
//! changed meanwhile: the taker has given the namespace back, as a start does that another server refuses.

use std::sync::Arc;

use super::super::reservation::HostId;
use super::peers::PeerMember;
use super::{Ended, EpochRecord};
use crate::mutants::{Mutant, active};
use crate::wire::offload::{Attach, EPOCH_STEP_MAX};
use crate::wire::status::Status;

/// The owner that attaches: a process of the host if Attach says which one, else the host. Instances are
/// random, so that no two processes have the same.
pub(crate) fn owner(host: HostId, instance: [u8; 16]) -> HostId {
    let instance = if active(Mutant::ProcessesTakenForOne) { [0; 16] } else { instance };
    std::array::from_fn(|index| host[index] ^ instance[index])
}

/// A controller that is attached, and its host.
struct Attached {
    controller: u16,
    host: HostId,
}

/// What an Attach comes to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// It is attached.
    Now,
    /// The record must be stored, and what old attachments do be over, before [`Fence::grant`].
    Raises,
    /// The same without a record: what the owner's other controllers do must be over.
    Ends,
}

/// What became of the record of an Attach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It is stored, or needs not be.
    Stored,
    /// It isn't: the former one is.
    Unchanged,
    /// Either may be found after a crash.
    Unknown,
}

/// Whether a controller may change a namespace.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Admits {
    Now,
    /// An Attach changes the record: when that is done, it is known.
    Soon,
    Never,
}

/// The members of an array, by place.
#[derive(Default, Clone)]
pub(crate) struct Table {
    pub places: Vec<Option<Arc<PeerMember>>>,
    /// Where the namespace itself is.
    pub own: Option<u8>,
}

/// What an Attach changes at once, as it was.
struct Before {
    record: Option<EpochRecord>,
    stored: bool,
    displaced: Option<HostId>,
    peers: Vec<u16>,
    former_peers: Vec<u16>,
    generation: u64,
    alone: Option<u64>,
    table: Table,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Fence {
    record: Option<EpochRecord>,
    /// The record is stored.
    stored: bool,
    /// From which owner the epoch was taken, until something is changed under it.
    displaced: Option<HostId>,
    hosts: Vec<Attached>,
    /// While an Attach changes the record: the owner's other controllers, which stay,
    staying: Vec<Attached>,
    /// those that it ends,
    ending: Vec<Attached>,
    /// and what was before, should it not be stored.
    before: Option<Before>,
    /// Controllers of other servers, of the current epoch.
    peers: Vec<u16>,
    /// Those of earlier ones: parts of theirs may still be on the way.
    former_peers: Vec<u16>,
    /// Controllers that were attached and were ended, until they attach anew.
    ended: Vec<u16>,
    generation: u64,
    /// That of the last Attach *alone* of the epoch.
    alone: Option<u64>,
    table: Table,
    /// An Attach or Detach changes the record.
    pub changing: bool,
}

impl Fence {
    /// With what was stored.
    pub fn new(record: Option<&EpochRecord>) -> Self {
        Self { record: record.copied(), stored: true, ..Self::default() }
    }

    pub fn record(&self) -> Option<&EpochRecord> {
        self.record.as_ref()
    }

    /// The record that holds, and whether a host is attached under it. While an Attach changes it, that is
    /// the former one: should the new one not be stored, nothing has changed.
    pub fn settled(&self) -> (Option<&EpochRecord>, bool) {
        match &self.before {
            Some(before) => (before.record.as_ref(), !(self.staying.is_empty() && self.ending.is_empty())),
            None => (self.record(), self.has_host()),
        }
    }

    /// Whether only attached controllers may change the namespace.
    pub fn is_up(&self) -> bool {
        self.record.as_ref().is_some_and(|record| !record.given_up)
    }

    /// Whether some controller may not change the namespace.
    pub fn refuses_some(&self) -> bool {
        self.is_up() || !self.ended.is_empty()
    }

    /// Whether a controller was attached and was ended.
    pub fn has_ended(&self, controller: u16) -> bool {
        self.ended.contains(&controller)
    }

    pub fn has_host(&self) -> bool {
        !self.hosts.is_empty()
    }

    /// Whether a controller may change the namespace. It does so then.
    pub fn admits(&mut self, controller: u16) -> Admits {
        let admits = self.may_change(controller);
        if admits == Admits::Now {
            self.displaced = None;
        }
        admits
    }

    fn may_change(&self, controller: u16) -> Admits {
        let unfenced = active(Mutant::PlainWritesUnfenced);
        if self.has_ended(controller) && (self.is_up() || !active(Mutant::FencedReadmitted)) && !unfenced {
            return Admits::Never;
        }
        if !self.is_up() || self.is_attached(controller) || unfenced {
            Admits::Now
        } else if self.is_waiting(controller) {
            Admits::Soon
        } else {
            Admits::Never
        }
    }

    fn is_attached(&self, controller: u16) -> bool {
        self.hosts.iter().any(|attached| attached.controller == controller)
    }

    /// Whether a controller is attached by the record that holds while an Attach changes it.
    fn is_waiting(&self, controller: u16) -> bool {
        self.staying.iter().chain(&self.ending).any(|attached| attached.controller == controller)
    }

    /// Whether a controller may give commands of operations, by the record that holds. What changes the
    /// namespace then waits until an Attach that is under way is over.
    pub fn check_settled(&self, controller: u16) -> Result<(), Status> {
        if self.is_waiting(controller) { Ok(()) } else { self.check_host(controller) }
    }

    /// Whether a controller may begin operations.
    pub fn check_host(&self, controller: u16) -> Result<(), Status> {
        match self.is_attached(controller) {
            true => Ok(()),
            false if self.has_ended(controller) => Err(Status::FENCED),
            false if self.is_up() && self.has_host() => Err(Status::FENCED),
            false => Err(Status::NOT_ATTACHED),
        }
    }

    /// Whether a controller may bring Peers.
    pub fn check_peer(&self, controller: u16) -> Result<(), Status> {
        match self.peers.contains(&controller) && self.has_host() {
            true => Ok(()),
            false if self.is_up() && self.has_host() => Err(Status::FENCED),
            false => Err(Status::NOT_ATTACHED),
        }
    }

    /// The same for this server's own parts.
    pub fn check_own(&self, array: [u8; 16], epoch: u64) -> Result<(), Status> {
        let same = self.record.as_ref().is_some_and(|record| (record.array, record.epoch) == (array, epoch));
        if same && self.has_host() { Ok(()) } else { Err(Status::FENCED) }
    }

    /// The array and epoch of the attachment.
    pub fn identity(&self) -> Option<([u8; 16], u64)> {
        self.record.as_ref().map(|record| (record.array, record.epoch))
    }

    /// The members.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Attach of another server.
    pub fn attach_peer(&mut self, attach: &Attach, controller: u16) -> Result<(), Status> {
        let Some(record) = self.record.as_ref().filter(|record| !record.given_up && self.has_host()) else {
            return Err(Status::NOT_ATTACHED);
        };
        if attach.epoch < record.epoch {
            return Err(Status::FENCED);
        }
        if (attach.array, attach.epoch) != (record.array, record.epoch) {
            return Err(Status::NOT_ATTACHED);
        }
        if self.former_peers.contains(&controller) {
            return Err(Status::FENCED);
        }
        if !self.peers.contains(&controller) {
            self.peers.push(controller);
        }
        Ok(())
    }

    /// Attach of a host. If it raises the epoch, what others want to change waits from now on, and is refused
    /// once the record is stored.
    pub fn attach(
        &mut self,
        attach: &Attach,
        controller: u16,
        host: HostId,
        table: Table,
    ) -> Result<Grant, Status> {
        let grant = self.decide(attach, controller, host)?;
        if grant != Grant::Now {
            self.before = Some(self.now());
        }
        if grant == Grant::Raises {
            self.raise(attach, host);
            self.end_peers();
            self.alone = None;
        }
        if grant != Grant::Now {
            let alone = attach.alone && !active(Mutant::AloneIgnored);
            self.end_hosts(controller, host, alone);
            self.changing = true;
        }
        (self.generation, self.table) = (attach.generation, table);
        if attach.alone {
            self.alone = Some(attach.generation);
        }
        if grant == Grant::Now {
            self.add(controller, host);
        }
        Ok(grant)
    }

    fn now(&self) -> Before {
        Before {
            record: self.record,
            stored: self.stored,
            displaced: self.displaced,
            peers: self.peers.clone(),
            former_peers: self.former_peers.clone(),
            generation: self.generation,
            alone: self.alone,
            table: self.table.clone(),
        }
    }

    /// What an Attach comes to, or why it is refused.
    fn decide(&self, attach: &Attach, controller: u16, host: HostId) -> Result<Grant, Status> {
        let known = self.record.as_ref().map_or(0, |record| record.epoch);
        if attach.epoch.saturating_sub(known) > EPOCH_STEP_MAX {
            return Err(Status::INVALID_FIELD);
        }
        let Some(record) = &self.record else { return Ok(Grant::Raises) };
        let is_ended = record.ended.contains(&host) && !active(Mutant::EndedOwnerAttaches);
        // A host that knew this epoch before it was given up may not know what came after it.
        if is_ended || attach.epoch < record.epoch || (record.given_up && attach.epoch == record.epoch) {
            return Err(Status::FENCED);
        }
        if record.given_up {
            return Ok(Grant::Raises);
        }
        if attach.epoch > record.epoch {
            let others = self.hosts.iter().any(|attached| attached.host != host);
            return if others && !attach.takeover { Err(Status::ATTACHED) } else { Ok(Grant::Raises) };
        }
        // Two hosts that chose the same number: the first one has it.
        if record.owner != host {
            return Err(Status::FENCED);
        }
        // An Attach that was sent before one *alone*, on another connection, must not bring back what that
        // one has ended (C28).
        let is_late =
            !self.is_attached(controller) && self.alone.is_some_and(|last| attach.generation <= last);
        if record.array != attach.array || attach.generation < self.generation || is_late {
            return Err(Status::INVALID_FIELD);
        }
        Ok(match (self.stored, attach.alone) {
            (false, _) => Grant::Raises,
            // Also if no other controller is attached: what one began that has gone since may still be
            // carried out.
            (true, true) => Grant::Ends,
            (true, false) => Grant::Now,
        })
    }

    fn raise(&mut self, attach: &Attach, host: HostId) {
        let mut ended = self.record.map_or_else(Ended::default, |record| record.ended);
        // A host that says no instance is the same after it was started anew, and must be able to come back.
        let taken =
            self.record.filter(|former| !former.given_up && former.owner != host && former.has_instance);
        if self.record.is_none_or(|former| former.owner != host) {
            self.displaced = taken.map(|former| former.owner);
        }
        if let Some(former) = taken {
            ended.push(former.owner);
        }
        self.record = Some(EpochRecord {
            array: attach.array,
            epoch: attach.epoch,
            owner: host,
            has_instance: attach.instance != [0; 16],
            given_up: false,
            ended,
        });
        self.stored = false;
    }

    /// Ends the controllers that are attached when the record is stored, but for those of `host`; with
    /// `alone` but for `controller` only.
    fn end_hosts(&mut self, controller: u16, host: HostId, alone: bool) {
        let stays =
            |attached: &Attached| attached.controller == controller || (attached.host == host && !alone);
        let hosts = if active(Mutant::OldHostKept) { Vec::new() } else { std::mem::take(&mut self.hosts) };
        (self.staying, self.ending) = hosts.into_iter().partition(stays);
    }

    fn add(&mut self, controller: u16, host: HostId) {
        self.ended.retain(|ended| *ended != controller);
        if !self.is_attached(controller) {
            self.hosts.push(Attached { controller, host });
        }
    }

    /// The end of an Attach that was not granted at once: what others began is over, and the record is
    /// stored, or can't be. If the former one is what a crash would leave, all is as it was: what was
    /// attached goes on.
    pub fn grant(&mut self, controller: u16, host: HostId, outcome: Outcome) {
        (self.stored, self.changing) = (outcome == Outcome::Stored, false);
        self.hosts.append(&mut self.staying);
        let (ending, before) = (std::mem::take(&mut self.ending), self.before.take());
        match before {
            Some(before) if outcome == Outcome::Unchanged => {
                self.hosts.extend(ending);
                (self.record, self.stored) = (before.record, before.stored);
                self.displaced = before.displaced;
                (self.peers, self.former_peers) = (before.peers, before.former_peers);
                (self.generation, self.alone, self.table) = (before.generation, before.alone, before.table);
            }
            _ => self.ended.extend(ending.into_iter().map(|attached| attached.controller)),
        }
        if outcome == Outcome::Stored {
            self.add(controller, host);
        }
    }

    fn end_peers(&mut self) {
        let ended = std::mem::take(&mut self.peers);
        if !active(Mutant::PeersOutliveEpoch) {
            self.former_peers.extend(ended);
        }
    }

    /// A controller is detached. Whether a host was.
    pub fn detach(&mut self, controller: u16) -> bool {
        let was_attached = self.is_attached(controller) || self.is_waiting(controller);
        for hosts in [&mut self.hosts, &mut self.staying, &mut self.ending] {
            hosts.retain(|attached| attached.controller != controller);
        }
        // Its number may be given to another one.
        let before = self.before.iter_mut().flat_map(|before| [&mut before.peers, &mut before.former_peers]);
        for controllers in before.chain([&mut self.peers, &mut self.former_peers, &mut self.ended]) {
            controllers.retain(|known| *known != controller);
        }
        was_attached
    }

    /// The epoch is to be given up, and no controller is attached any more. The record that is to be stored
    /// before [`Fence::given_up`].
    pub fn give_up(&mut self) -> Option<EpochRecord> {
        self.hosts.clear();
        self.end_peers();
        self.changing = true;
        self.given_back()
    }

    fn given_back(&self) -> Option<EpochRecord> {
        let mut record = EpochRecord { given_up: true, ..self.record? };
        if let Some(displaced) = self.displaced {
            record.ended.remove(&displaced);
        }
        Some(record)
    }

    /// It is stored that the epoch is given up, or can't be.
    pub fn given_up(&mut self, outcome: Outcome) {
        self.changing = false;
        match outcome {
            Outcome::Stored => {
                self.record = self.given_back();
                (self.stored, self.displaced) = (true, None);
            }
            Outcome::Unchanged => {}
            // A crash may leave that it was: the next Attach stores that it was not.
            Outcome::Unknown => self.stored = false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: HostId = [1; 16];
    const B: HostId = [2; 16];

    fn attach(epoch: u64) -> Attach {
        let (array, incarnation) = ([7; 16], [0; 16]);
        let (peer, takeover) = (false, false);
        let (alone, instance) = (false, [9; 16]);
        Attach {
            array,
            epoch,
            generation: 3,
            peer,
            takeover,
            alone,
            incarnation,
            instance,
            peers: Vec::new(),
        }
    }

    impl Fence {
        fn allows(&mut self, controller: u16) -> bool {
            self.admits(controller) == Admits::Now
        }
    }

    fn attached(fence: &mut Fence, epoch: u64, controller: u16, host: HostId) {
        assert_eq!(fence.attach(&attach(epoch), controller, host, Table::default()), Ok(Grant::Raises));
        assert!(!fence.allows(controller), "before the record is stored");
        fence.grant(controller, host, Outcome::Stored);
        assert!(fence.allows(controller));
    }

    #[test]
    fn a_host_that_is_not_attached_under_the_epoch_may_change_nothing() {
        let mut fence = Fence::default();
        assert!(fence.allows(1) && fence.allows(2));
        attached(&mut fence, 5, 1, A);
        assert!(!fence.allows(2));
        assert_eq!(fence.check_host(2), Err(Status::FENCED));
        fence.detach(1);
        assert!(!fence.allows(1) && !fence.allows(2), "the epoch was not given up");
        assert_eq!(fence.check_host(1), Err(Status::NOT_ATTACHED));
    }

    #[test]
    fn a_higher_epoch_takes_over_only_if_it_is_meant() {
        let mut fence = Fence::default();
        attached(&mut fence, 5, 1, A);
        assert_eq!(fence.attach(&attach(4), 2, B, Table::default()), Err(Status::FENCED));
        assert_eq!(
            fence.attach(&attach(5), 2, B, Table::default()),
            Err(Status::FENCED),
            "two hosts, one number"
        );
        assert_eq!(fence.attach(&attach(6), 2, B, Table::default()), Err(Status::ATTACHED));
        let takeover = Attach { takeover: true, ..attach(6) };
        assert_eq!(fence.attach(&takeover, 2, B, Table::default()), Ok(Grant::Raises));
        assert!(!fence.allows(1));
        fence.grant(2, B, Outcome::Stored);
        assert!(fence.allows(2) && !fence.allows(1));
        assert_eq!(fence.attach(&attach(5), 1, A, Table::default()), Err(Status::FENCED));
    }

    #[test]
    fn two_processes_of_a_host_are_two_and_one_that_comes_back_is_the_same() {
        let (first, second) = (owner(A, [8; 16]), owner(A, [9; 16]));
        let mut fence = Fence::default();
        attached(&mut fence, 5, 1, first);
        assert_eq!(fence.attach(&attach(5), 2, second, Table::default()), Err(Status::FENCED));
        assert_eq!(fence.attach(&attach(6), 2, second, Table::default()), Err(Status::ATTACHED));
        assert_eq!(fence.attach(&attach(5), 3, first, Table::default()), Ok(Grant::Now));
        // When its last connection has ended, another process attaches without a takeover.
        assert!(fence.detach(1) && fence.detach(3));
        attached(&mut fence, 6, 2, second);
    }

    #[test]
    fn the_same_host_comes_back_under_the_same_epoch_and_an_older_table_is_refused() {
        let mut fence = Fence::default();
        attached(&mut fence, 5, 1, A);
        fence.detach(1);
        assert_eq!(fence.attach(&attach(5), 9, A, Table::default()), Ok(Grant::Now));
        assert!(fence.allows(9));
        let older = Attach { generation: 2, ..attach(5) };
        assert_eq!(fence.attach(&older, 9, A, Table::default()), Err(Status::INVALID_FIELD));
    }

    #[test]
    fn what_could_not_be_stored_is_stored_by_the_next_attach() {
        for outcome in [Outcome::Unchanged, Outcome::Unknown] {
            let mut fence = Fence::default();
            assert_eq!(fence.attach(&attach(5), 1, A, Table::default()), Ok(Grant::Raises));
            fence.grant(1, A, outcome);
            assert_eq!(fence.allows(1), outcome == Outcome::Unchanged, "it is as if it had never attached");
            attached(&mut fence, 5, 1, A);
        }
    }

    #[test]
    fn a_takeover_that_can_not_be_stored_has_changed_nothing() {
        let takeover = Attach { takeover: true, ..attach(6) };
        let begun = || {
            let mut fence = Fence::default();
            attached(&mut fence, 5, 1, A);
            assert_eq!(fence.attach_peer(&attach(5), 7), Ok(()));
            assert_eq!(fence.attach(&takeover, 2, B, Table::default()), Ok(Grant::Raises));
            let admits = [1, 2, 3].map(|controller| fence.admits(controller));
            assert_eq!(admits, [Admits::Soon, Admits::Never, Admits::Never], "it isn't known yet");
            fence
        };
        let mut fence = begun();
        fence.grant(2, B, Outcome::Unchanged);
        assert!(
            fence.allows(1) && !fence.allows(2) && fence.check_host(1).is_ok() && fence.check_peer(7).is_ok()
        );
        assert_eq!(fence.identity(), Some(([7; 16], 5)));
        assert_eq!(fence.attach(&attach(5), 1, A, Table::default()), Ok(Grant::Now), "A was not ended");
        taken_over(&mut fence, 6, 2, B);
        assert!(fence.allows(2) && !fence.allows(1));

        let mut fence = begun();
        fence.grant(2, B, Outcome::Unknown);
        assert!(!fence.allows(1) && !fence.allows(2), "a crash may leave either record");
        assert_eq!(fence.attach(&attach(5), 1, A, Table::default()), Err(Status::FENCED));

        // What ends meanwhile doesn't come back.
        let mut fence = begun();
        assert!(fence.detach(1), "what it has prepared goes, too");
        fence.detach(7);
        fence.grant(2, B, Outcome::Unchanged);
        assert!(!fence.allows(1) && fence.check_peer(7).is_err());
    }

    #[test]
    fn a_takeover_that_can_not_be_stored_leaves_the_table_of_members_and_its_generation() {
        let own = |place| Table { own: Some(place), ..Table::default() };
        let mut fence = Fence::default();
        attached(&mut fence, 5, 1, A);
        assert_eq!(fence.attach(&attach(5), 1, A, own(2)), Ok(Grant::Now));
        let takeover = Attach { takeover: true, generation: 9, ..attach(6) };
        assert_eq!(fence.attach(&takeover, 2, B, own(4)), Ok(Grant::Raises));
        fence.grant(2, B, Outcome::Unchanged);
        assert_eq!(fence.table().own, Some(2));
        assert_eq!(fence.attach(&attach(5), 1, A, own(2)), Ok(Grant::Now));
    }

    #[test]
    fn a_takeover_that_can_not_be_stored_leaves_which_owner_may_come_again() {
        let mut fence = Fence::default();
        attached(&mut fence, 5, 1, A);
        taken_over(&mut fence, 6, 2, B);
        let takeover = Attach { takeover: true, ..attach(7) };
        assert_eq!(fence.attach(&takeover, 3, [3; 16], Table::default()), Ok(Grant::Raises));
        fence.grant(3, [3; 16], Outcome::Unchanged);
        fence.give_up();
        fence.given_up(Outcome::Stored);
        assert_eq!(fence.attach(&attach(8), 9, A, Table::default()), Ok(Grant::Raises));
    }

    /// A crash may leave that the epoch was given up: then the host's next Attach of it would be refused.
    #[test]
    fn a_giving_up_that_may_be_stored_is_overwritten_by_the_next_attach() {
        for (outcome, grant) in [(Outcome::Unknown, Grant::Raises), (Outcome::Unchanged, Grant::Now)] {
            let mut fence = Fence::default();
            attached(&mut fence, 5, 1, A);
            fence.give_up();
            fence.given_up(outcome);
            assert_eq!(fence.attach(&attach(5), 1, A, Table::default()), Ok(grant));
        }
    }

    #[test]
    fn an_owner_that_can_not_raise_its_epoch_keeps_its_controllers() {
        for outcome in [Outcome::Unchanged, Outcome::Unknown] {
            let mut fence = Fence::default();
            attached(&mut fence, 5, 1, A);
            assert_eq!(fence.attach(&attach(5), 2, A, Table::default()), Ok(Grant::Now));
            assert_eq!(fence.attach(&attach(6), 2, A, Table::default()), Ok(Grant::Raises));
            fence.grant(2, A, outcome);
            assert!(fence.allows(1) && fence.allows(2) && !fence.allows(3));
        }
    }

    #[test]
    fn after_giving_up_every_host_may_write_and_an_older_one_may_not_attach() {
        let mut fence = Fence::default();
        attached(&mut fence, 5, 1, A);
        let record = fence.give_up().unwrap();
        assert!(record.given_up && !fence.allows(2), "not before it is stored");
        fence.given_up(Outcome::Stored);
        assert!(fence.allows(2));
        for epoch in [4, 5] {
            assert_eq!(fence.attach(&attach(epoch), 2, B, Table::default()), Err(Status::FENCED));
        }
        attached(&mut fence, 6, 2, B);
        fence.give_up();
        fence.given_up(Outcome::Stored);
        attached(&mut fence, 7, 1, A);
        assert!(!fence.record().unwrap().ended.contains(&B), "it left by itself, and may come again");
    }

    fn taken_over(fence: &mut Fence, epoch: u64, controller: u16, host: HostId) {
        let takeover = Attach { takeover: true, ..attach(epoch) };
        assert_eq!(fence.attach(&takeover, controller, host, Table::default()), Ok(Grant::Raises));
        fence.grant(controller, host, Outcome::Stored);
    }

    #[test]
    fn what_a_takeover_has_ended_stays_out_when_the_successor_leaves() {
        let mut fence = Fence::default();
        attached(&mut fence, 5, 1, A);
        taken_over(&mut fence, 6, 2, B);
        assert!(fence.allows(2), "it writes");
        fence.give_up();
        fence.given_up(Outcome::Stored);
        assert!(!fence.is_up() && fence.refuses_some());
        assert!(!fence.allows(1) && fence.allows(2) && fence.allows(3));
        assert_eq!(fence.check_host(1), Err(Status::FENCED));
        // A fresh controller of the same host, whatever epoch it names; and after a restart of the server.
        let mut restarted = Fence::new(fence.record());
        for fence in [&mut fence, &mut restarted] {
            for epoch in [5, 6, 7, 1 << 20] {
                let takeover = Attach { takeover: true, ..attach(epoch) };
                assert_eq!(fence.attach(&takeover, 9, A, Table::default()), Err(Status::FENCED));
            }
        }
        attached(&mut fence, 7, 4, [3; 16]);
        assert_eq!(fence.attach(&attach(8), 9, A, Table::default()), Err(Status::FENCED));
        // Its number is given to another one.
        fence.detach(1);
        taken_over(&mut fence, 8, 1, [4; 16]);
        assert!(fence.allows(1));
    }

    #[test]
    fn an_owner_comes_again_if_nothing_was_changed_before_its_successor_gave_up() {
        let again = |fence: &mut Fence, epoch| fence.attach(&attach(epoch), 9, A, Table::default());
        let mut fence = Fence::default();
        attached(&mut fence, 5, 1, A);
        taken_over(&mut fence, 6, 2, B);
        taken_over(&mut fence, 7, 2, B);
        assert_eq!(again(&mut fence, 8), Err(Status::FENCED), "it is another host's");
        let record = fence.give_up().unwrap();
        assert!(record.given_up && !record.ended.contains(&A));
        fence.given_up(Outcome::Unchanged);
        assert_eq!(again(&mut fence, 8), Err(Status::FENCED), "it was not given up");
        fence.give_up();
        fence.given_up(Outcome::Stored);
        assert_eq!(fence.record(), Some(&record));
        assert!(!fence.allows(1), "what the controller has sent may be older than what its host knows now");
        assert_eq!(again(&mut fence, 7), Err(Status::FENCED));
        assert_eq!(again(&mut fence, 8), Ok(Grant::Raises));
        fence.grant(9, A, Outcome::Stored);
        // From two owners that were ended the latter one alone may come again.
        taken_over(&mut fence, 9, 2, B);
        taken_over(&mut fence, 10, 3, [3; 16]);
        fence.give_up();
        fence.given_up(Outcome::Stored);
        let ended = fence.record().unwrap().ended;
        assert!(ended.contains(&A) && !ended.contains(&B));
    }

    #[test]
    fn of_owners_that_were_ended_the_latest_are_remembered_and_hosts_without_instance_are_none() {
        let mut fence = Fence::default();
        let host = |number: u64| -> HostId { std::array::from_fn(|index| number.to_le_bytes()[index % 8]) };
        attached(&mut fence, 1, 1, host(1));
        for number in 2..100 {
            taken_over(&mut fence, number, 1, host(number));
        }
        let ended = fence.record().unwrap().ended;
        assert!(ended.contains(&host(98)) && ended.contains(&host(90)) && !ended.contains(&host(50)));
        let silent = Attach { takeover: true, instance: [0; 16], ..attach(100) };
        assert_eq!(fence.attach(&silent, 1, A, Table::default()), Ok(Grant::Raises));
        fence.grant(1, A, Outcome::Stored);
        taken_over(&mut fence, 101, 2, B);
        assert!(!fence.record().unwrap().ended.contains(&A));
        assert_eq!(fence.attach(&Attach { epoch: 102, ..silent }, 1, A, Table::default()), Ok(Grant::Raises));
    }

    #[test]
    fn an_attach_alone_ends_the_hosts_other_controllers_when_they_are_done() {
        let mut fence = Fence::default();
        attached(&mut fence, 5, 1, A);
        let alone = Attach { alone: true, ..attach(5) };
        assert_eq!(fence.attach(&alone, 2, A, Table::default()), Ok(Grant::Ends));
        assert_eq!((fence.admits(1), fence.admits(2)), (Admits::Soon, Admits::Never), "it drains");
        fence.grant(2, A, Outcome::Stored);
        assert!(fence.allows(2) && !fence.allows(1));
        assert_eq!(fence.check_host(1), Err(Status::FENCED));
        // An Attach of before that comes late names an older table.
        let late = Attach { generation: 2, ..alone.clone() };
        assert_eq!(fence.attach(&late, 1, A, Table::default()), Err(Status::INVALID_FIELD));
        // One that is attached waits while it makes itself alone.
        assert_eq!(fence.attach(&alone, 2, A, Table::default()), Ok(Grant::Ends));
        assert_eq!(fence.admits(2), Admits::Soon);
        fence.grant(2, A, Outcome::Stored);
        assert!(fence.allows(2));
    }

    /// What stands behind it on its connection would be carried out after what the newer one has begun.
    #[test]
    fn an_attach_that_was_sent_before_one_that_is_alone_brings_nothing_back() {
        let alone = |generation| Attach { alone: true, generation, ..attach(5) };
        let plain = |generation| Attach { generation, ..attach(5) };
        let mut fence = Fence::default();
        attached(&mut fence, 5, 1, A);
        assert_eq!(fence.attach(&alone(4), 2, A, Table::default()), Ok(Grant::Ends));
        fence.grant(2, A, Outcome::Stored);
        for (late, controller) in [(alone(4), 1), (plain(4), 1), (alone(4), 3), (plain(4), 3)] {
            let refused = fence.attach(&late, controller, A, Table::default());
            assert_eq!(refused, Err(Status::INVALID_FIELD));
        }
        assert!(fence.allows(2) && !fence.allows(1) && !fence.allows(3));
        assert_eq!(fence.attach(&plain(4), 2, A, Table::default()), Ok(Grant::Now), "it is attached");
        assert_eq!(fence.attach(&plain(5), 3, A, Table::default()), Ok(Grant::Now));
        // Under the next epoch all begins anew.
        attached(&mut fence, 6, 2, A);
        assert_eq!(fence.attach(&attach(6), 4, A, Table::default()), Ok(Grant::Now));
    }

    #[test]
    fn an_epoch_rises_by_bounded_steps() {
        let mut fence = Fence::default();
        let first = attach(EPOCH_STEP_MAX + 1);
        assert_eq!(fence.attach(&first, 1, A, Table::default()), Err(Status::INVALID_FIELD));
        attached(&mut fence, EPOCH_STEP_MAX, 1, A);
        let far = attach(2 * EPOCH_STEP_MAX + 1);
        assert_eq!(fence.attach(&far, 1, A, Table::default()), Err(Status::INVALID_FIELD));
        assert_eq!(fence.record().unwrap().epoch, EPOCH_STEP_MAX, "nothing has changed");
        attached(&mut fence, 2 * EPOCH_STEP_MAX, 1, A);
    }

    #[test]
    fn peers_come_under_the_epoch_of_a_host_that_is_attached() {
        let mut fence = Fence::default();
        let peer = |epoch| Attach { peer: true, ..attach(epoch) };
        assert_eq!(fence.attach_peer(&peer(5), 8), Err(Status::NOT_ATTACHED));
        attached(&mut fence, 5, 1, A);
        assert_eq!(fence.attach_peer(&peer(4), 8), Err(Status::FENCED));
        assert_eq!(fence.attach_peer(&peer(6), 8), Err(Status::NOT_ATTACHED));
        assert_eq!(fence.attach_peer(&peer(5), 8), Ok(()));
        assert_eq!(fence.check_peer(8), Ok(()));
        assert_eq!(fence.check_host(8), Err(Status::FENCED), "it may do nothing else");
        attached(&mut fence, 6, 2, A);
        assert_eq!(fence.check_peer(8), Err(Status::FENCED));
    }

    #[test]
    fn a_controller_with_peers_of_an_earlier_epoch_brings_none_of_a_later_one() {
        let mut fence = Fence::default();
        let peer = |epoch| Attach { peer: true, ..attach(epoch) };
        attached(&mut fence, 5, 1, A);
        assert_eq!(fence.attach_peer(&peer(5), 8), Ok(()));
        fence.detach(1);
        attached(&mut fence, 6, 2, B);
        assert_eq!(
            fence.attach_peer(&peer(6), 8),
            Err(Status::FENCED),
            "what it sent before may come after this"
        );
        assert_eq!(fence.attach_peer(&peer(6), 9), Ok(()));
        fence.give_up();
        fence.given_up(Outcome::Stored);
        attached(&mut fence, 7, 3, [3; 16]);
        assert_eq!(fence.attach_peer(&peer(7), 9), Err(Status::FENCED), "it brought some of the one before");
        // The number of a controller that has ended may be given to another one.
        fence.detach(8);
        assert_eq!(fence.attach_peer(&peer(7), 8), Ok(()));
    }

    #[test]
    fn a_host_that_raises_its_own_epoch_keeps_its_other_controllers_waiting_meanwhile() {
        let mut fence = Fence::default();
        attached(&mut fence, 5, 1, A);
        assert_eq!(fence.attach(&attach(5), 2, A, Table::default()), Ok(Grant::Now));
        assert_eq!(fence.attach(&attach(6), 2, A, Table::default()), Ok(Grant::Raises));
        assert_eq!((fence.admits(1), fence.admits(3)), (Admits::Soon, Admits::Never));
        fence.grant(2, A, Outcome::Stored);
        assert!(fence.allows(1) && fence.allows(2));
        let takeover = Attach { takeover: true, ..attach(7) };
        assert_eq!(fence.attach(&takeover, 4, B, Table::default()), Ok(Grant::Raises));
        assert_eq!((fence.admits(1), fence.admits(2)), (Admits::Soon, Admits::Soon));
        fence.grant(4, B, Outcome::Stored);
        assert!(fence.allows(4) && !fence.allows(1));
    }

    /// It was sent before the one that is alone, and has come only after a takeover that changed nothing.
    #[test]
    fn a_takeover_that_can_not_be_stored_leaves_which_attach_comes_too_late() {
        let mut fence = Fence::default();
        attached(&mut fence, 5, 1, A);
        let alone = Attach { alone: true, generation: 4, ..attach(5) };
        assert_eq!(fence.attach(&alone, 2, A, Table::default()), Ok(Grant::Ends));
        fence.grant(2, A, Outcome::Stored);
        for alone in [false, true] {
            let takeover = Attach { takeover: true, alone, generation: 0, ..attach(6) };
            assert_eq!(fence.attach(&takeover, 3, B, Table::default()), Ok(Grant::Raises));
            fence.grant(3, B, Outcome::Unchanged);
            let late = Attach { generation: 4, ..attach(5) };
            assert_eq!(fence.attach(&late, 1, A, Table::default()), Err(Status::INVALID_FIELD));
        }
        assert!(fence.allows(2) && !fence.allows(1));
    }
}
