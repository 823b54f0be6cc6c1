//! What a run is made of, part by part, and what may be done to it without breaking more than the level can
//! bear.
//!
//! Events act on a testbed, and no time passes meanwhile. Lives have time pass ([`super::Swarm`]).

use std::{collections::BTreeSet, sync::Arc};

use pinstripe_engine::{
    array::Array,
    membership::{
        MemberState,
        snapshot::{Seat, Snapshot},
    },
};

use super::{
    Setup, Summary, Verdict,
    doubts::Doubts,
    hosts::Hosts,
    injected_faults::{InjectedFaults, Standing},
    service::Service,
    takeover::Stale,
};
use crate::{Rng, Trigger, checks::Survey, rng::index};

/// See the module.
pub(crate) struct Testbed {
    pub(super) setup: Setup,
    /// What lives and events are drawn from.
    pub(super) rng: Rng,
    pub(super) hosts: Hosts,
    pub(super) service: Service,
    pub(super) faults: InjectedFaults,
    pub(super) doubts: Doubts,
    /// The client that the array was taken from, until it is gone.
    pub(super) stale: Option<Stale>,
    /// The journal device was lost, and the array has not started since.
    pub(super) journal_lost: bool,
    /// This life ends in peace.
    pub(super) ends_in_peace: bool,
    pub(super) summary: Summary,
}

impl Testbed {
    /// With nothing done to it yet.
    pub(super) fn new(setup: Setup, rng: Rng, hosts: Hosts, service: Service, doubts: Doubts) -> Self {
        Self {
            setup,
            rng,
            hosts,
            service,
            faults: InjectedFaults::default(),
            doubts,
            stale: None,
            journal_lost: false,
            ends_in_peace: false,
            summary: Summary::default(),
        }
    }

    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        self.service.snapshot()
    }

    /// Has the owner do something while the users go on.
    pub(super) fn command<F>(&mut self, name: &'static str, act: impl FnOnce(Array) -> F)
    where
        F: Future<Output = Result<(), String>> + 'static,
    {
        self.service.command(&mut self.hosts, name, act);
    }

    pub(super) fn spawn_clients(&mut self) {
        self.service.spawn_clients(&self.setup, &mut self.hosts, &mut self.rng);
    }

    pub(super) fn spawn_read_all(&mut self) {
        self.service.spawn_read_all(&self.setup, &mut self.hosts, &mut self.rng);
    }

    /// Whether another client goes on with an array that it hasn't any more.
    pub(super) fn is_contended(&self) -> bool {
        self.stale.is_some()
    }

    /// Whether a log certainly makes up for what a crash has torn. (No start has been forced, and none of the
    /// log can't be read.)
    pub(super) fn has_log(&self) -> bool {
        let is_steady = !self.setup.policy_changes && !self.doubts.is_unsynced() && !self.journal_lost;
        let is_first = self.summary.forced == 0 && !self.is_contended();
        self.setup.logs() && is_steady && is_first
    }

    /// The number of the disk in a slot.
    pub(super) fn disk_in(&self, slot: usize) -> Option<usize> {
        self.hosts.find(&self.snapshot().seats[slot].member()?.name)
    }

    /// Any disk.
    pub(super) fn some_disk(&mut self) -> usize {
        self.rng.index(self.hosts.disks.len())
    }

    /// A new disk, which may hold anything. Its number.
    pub(super) fn new_disk(&mut self) -> usize {
        let number = self.hosts.add_disk(self.setup.disk(self.hosts.disks.len()));
        if self.rng.chance(1, 2) {
            for range in self.setup.places() {
                let mut bytes = vec![0; index(range.end - range.start)];
                self.rng.fill(&mut bytes);
                self.hosts.disks[number].poke(range.start, &bytes);
            }
        }
        self.hosts.start_server(number);
        number
    }

    /// Slots that can't be relied on: empty, being rebuilt, or held by a disk with a lethal fault, now or as
    /// soon as such a disk takes one over.
    pub(super) fn broken(&self) -> usize {
        let snapshot = self.snapshot();
        let doomed: Vec<(usize, &str)> =
            self.faults.doomed().iter().map(|&disk| (disk, &*self.hosts.disks[disk].info().name)).collect();
        // The target of a replacement may take the slot over at any moment.
        let holds = |seat: &Seat, name: &str| {
            seat.member().into_iter().chain(seat.target()).any(|member| member.name == name)
        };
        let is_broken = |seat: &&Seat| !seat.is_whole() || doomed.iter().any(|(_, name)| holds(seat, name));
        let may_come = |&&(disk, name): &&(usize, &str)| {
            !snapshot.seats.iter().any(|seat| holds(seat, name))
                && (self.faults.is_joining(disk)
                    || matches!(self.standing(disk), Some((_, MemberState::Spare))))
        };
        snapshot.seats.iter().filter(is_broken).count() + doomed.iter().filter(may_come).count()
    }

    /// Whether another whole member may go: the level bears it, and no row is torn.
    pub(super) fn bears_another(&self) -> bool {
        !self.service.is_torn() && self.broken() < self.setup.redundancy()
    }

    /// A slot with a member that may be lost now, and its disk.
    pub(super) fn victim(&mut self) -> Option<(usize, usize)> {
        let snapshot = self.snapshot();
        let slot = self.rng.index(snapshot.seats.len());
        let disk = self.disk_in(slot).filter(|disk| !self.faults.is_joining(*disk))?;
        if snapshot.seats[slot].is_whole() && !self.faults.is_doomed(disk) {
            // A member that has just become whole may not be so yet in the superblocks, which a crash would
            // go by.
            if !self.service.array().shared().is_recorded() || !self.bears_another() {
                return None;
            }
            self.lose_member();
        }
        Some((slot, disk))
    }

    /// A whole member is about to be lost.
    pub(super) fn lose_member(&self) {
        self.doubts.lose_member(&mut self.service.users.ledger.borrow_mut());
    }

    /// The rows of these sectors may be half written after a crash.
    pub(super) fn suspect(&mut self, unsettled: &BTreeSet<u64>) {
        self.doubts.suspect(self.setup.geometry().as_ref(), unsettled);
    }

    /// The array has started, with what that makes of writes that were cut off.
    pub(super) fn settle_cut_off(&mut self) {
        let mut ledger = self.service.users.ledger.borrow_mut();
        self.doubts.started(self.setup.geometry().as_ref(), &mut ledger);
    }

    /// An array is about to be started by force. Which slots have a member.
    pub(super) fn forced_start(&mut self, survey: &Survey) -> Result<Vec<bool>, Verdict> {
        self.summary.forced += 1;
        let here: Vec<bool> = survey.members(&self.hosts.disks)?.iter().map(Option::is_some).collect();
        self.doubt_half_written(&here);
        Ok(here)
    }

    /// Nothing is promised of half-written rows, but for what members have that are `here`.
    pub(super) fn doubt_half_written(&self, here: &[bool]) {
        let mut ledger = self.service.users.ledger.borrow_mut();
        self.doubts.forced(self.setup.geometry().as_ref(), here, &mut ledger);
    }

    /// A member that may be lost now is to fail. Its slot and its disk.
    pub(super) fn doom_victim(&mut self) -> Option<(usize, usize)> {
        let (slot, disk) = self.victim()?;
        self.doom(disk);
        Some((slot, disk))
    }

    /// A disk is to fail.
    pub(super) fn doom(&mut self, disk: usize) {
        self.summary.failures += 1;
        self.faults.doom(disk);
    }

    /// One of the next requests to a disk.
    pub(super) fn drawn_request(&mut self, disk: usize, within: u64) -> Trigger {
        let taken = self.hosts.disks[disk].counters();
        Trigger::AtRequest(taken.reads + taken.writes + taken.flushes + self.rng.below(within))
    }

    /// As which member, and in which state, the engine has a disk.
    pub(super) fn standing(&self, disk: usize) -> Standing {
        let name = &self.hosts.disks[disk].info().name;
        let of = self.service.array().members().into_iter().rev().find(|(_, member, ..)| member == name);
        of.map(|(id, _, _, state)| (id, state))
    }

    /// Looks at what the disks are by now. A disk that came back as another member has left its faults
    /// behind; a disk that was dropped without a reason is an error.
    pub(super) fn take_stock(&mut self) {
        if self.service.served().is_none() {
            return;
        }
        let standings: Vec<Standing> = (0..self.hosts.disks.len()).map(|disk| self.standing(disk)).collect();
        for disk in self.faults.take_stock(&standings) {
            self.hosts.given_back(disk);
        }
        // Torn rows of a lost member can't be made: a device that is to take its place may be dropped for
        // them.
        let excuses = self.service.users.bears_refusals.get();
        if let Some(error) = self.faults.unexcused(&standings).filter(|_| !excuses) {
            self.service.users.accuse(Verdict::Dropped(format!("{error}, and nothing was done to it")));
        }
    }

    /// Lets go of everything in the right order, whatever state the run is in.
    pub(super) fn bury(mut self) {
        self.service.end(&self.hosts);
        self.bury_stale();
        self.hosts.bury();
    }

    /// The old client is gone.
    pub(super) fn bury_stale(&mut self) {
        if let Some(stale) = self.stale.take() {
            self.hosts.end_process(stale.client, stale);
        }
    }
}
