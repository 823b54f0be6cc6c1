//! The array while it is served: the array, its users, and by which front end they come.

use std::{ops::Range, rc::Rc, sync::Arc};

use pinstripe_engine::{array::Array, io::volume::Volume, membership::snapshot::Snapshot, shared::Shared};

use super::{
    Setup, Verdict,
    client::{Habits, UserState, client, read_all},
    front::{Front, FrontEnd},
    hosts::Hosts,
    marks,
    races::Races,
    stops, vast, wide,
};
use crate::{Event, Rng, SECTOR, rng::index};

/// What the array is about, told without names.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Starting,
    Serving,
    Stopping,
}

/// See the module.
pub(crate) struct Service {
    array: Option<Array>,
    pub(super) users: Rc<UserState>,
    /// Servers and connections, if users come over NBD.
    front: Option<Front>,
    phase: Phase,
}

impl Service {
    /// No array yet, for these users.
    pub(super) fn new(users: Rc<UserState>) -> Self {
        Self { array: None, users, front: None, phase: Phase::Starting }
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase
    }

    /// The array, if it is served.
    pub(super) fn served(&self) -> Option<&Array> {
        self.array.as_ref()
    }

    /// The array of this life.
    pub(super) fn array(&self) -> Array {
        self.array.clone().unwrap_or_else(|| unreachable!("a life has an array"))
    }

    /// The array in words, if it is served.
    pub(super) fn detail(&self) -> String {
        self.array.as_ref().map_or_else(String::new, |array| format!("{:?}\n", array.detail()))
    }

    pub(super) fn shared(&self) -> Arc<Shared> {
        Arc::clone(self.array().shared())
    }

    pub(super) fn snapshot(&self) -> Arc<Snapshot> {
        self.array().shared().snapshot()
    }

    /// Whether parity may be wrong in rows that were written: then nothing may be lost.
    pub(super) fn is_torn(&self) -> bool {
        let snapshot = self.snapshot();
        snapshot.intent.is_torn(0..=snapshot.intent.len() - 1)
    }

    /// The array is being assembled.
    pub(super) fn start(&mut self) {
        self.phase = Phase::Starting;
    }

    /// The array has been assembled.
    pub(super) fn begin(&mut self, array: Array) {
        self.users.begin_life();
        self.phase = Phase::Serving;
        self.array = Some(array);
    }

    /// The array is being stopped: errors are no news.
    pub(super) fn begin_stop(&mut self) -> Array {
        self.users.closing.set(true);
        self.phase = Phase::Stopping;
        self.array()
    }

    /// Lets go of the array and its front end.
    pub(super) fn end(&mut self, hosts: &Hosts) {
        self.drop_front(hosts);
        let _entered = hosts.world.enter(hosts.home());
        self.array = None;
    }

    /// Another client's users come, to whatever array it will have. What this one had.
    pub(super) fn hand_over(&mut self) -> (Option<Array>, Rc<UserState>) {
        self.users.closing.set(true);
        let successor = self.users.succeed();
        (self.array.take(), std::mem::replace(&mut self.users, successor))
    }

    /// Has the owner do something while the users go on.
    pub(super) fn command<F>(&self, hosts: &mut Hosts, name: &'static str, act: impl FnOnce(Array) -> F)
    where
        F: Future<Output = Result<(), String>> + 'static,
    {
        let users = Rc::clone(&self.users);
        users.begin_task();
        let act = act(self.array());
        hosts.world.trace().record(Event::Note { what: name, value: 0 });
        hosts.spawn(name, async move {
            if let Err(error) = act.await
                && !users.closing.get()
                && !users.bears_refusals.get()
            {
                users.accuse(Verdict::Refused(format!("{name}: {error}")));
            }
            users.end_task();
        });
    }

    /// Starts the servers of the front end, if users come over one.
    pub(super) fn open_front(&mut self, setup: &Setup, hosts: &mut Hosts, rng: &mut Rng) {
        let Some(nbd) = &setup.nbd else { return };
        self.front = Some(Front::open(nbd, &mut hosts.world, rng, &self.shared(), &self.users));
    }

    pub(super) fn front(&self) -> Option<&Front> {
        self.front.as_ref()
    }

    pub(super) fn drop_front(&mut self, hosts: &Hosts) {
        let _entered = hosts.world.enter(hosts.home());
        self.front = None;
    }

    /// Users come, each with habits of its own.
    pub(super) fn spawn_clients(&self, setup: &Setup, hosts: &mut Hosts, rng: &mut Rng) {
        let array = self.array();
        let sectors = array.volume().size() / SECTOR;
        let geometry = setup.geometry();
        let is_ordered = geometry.is_some();
        let stripe = geometry.map_or(sectors / setup.stripes, |g| u64::from(g.stripe_bytes()) / SECTOR);
        let block = u64::from(setup.block) / SECTOR;
        let hot = rng.below(sectors / stripe) * stripe;
        for number in 0..setup.clients {
            let mut own = rng.fork(number);
            let mut habits = Habits::drawn(&mut own, sectors, stripe.max(8), block, hot, setup.requests);
            if setup.wide.is_some() {
                wide::widen(&mut habits, &mut own, sectors);
            }
            vast::place(setup, &mut habits, number, sectors);
            marks::shape(setup, &mut habits, &mut own, sectors);
            stops::hurry(setup, &mut habits);
            habits.ordered = is_ordered;
            if setup.races.is_some() && habits.ordered {
                Races::shape(&mut own, &mut habits, (stripe, sectors));
            }
            let (shared, users) = (Arc::clone(array.shared()), Rc::clone(&self.users));
            users.begin_task();
            let mut shard = hosts.home() + rng.index(setup.shards);
            let line = self.front.as_ref().map(|front| {
                let (there, connection) = &front.connections[index(number) % front.connections.len()];
                // The protocol promises no order of what is under way together.
                (shard, habits.ordered) = (*there, false);
                Rc::clone(connection)
            });
            hosts.world.spawn(shard, "client", async move {
                let front_end = line.map_or_else(|| FrontEnd::Direct(Volume::new(shared)), FrontEnd::Nbd);
                client(front_end, users, habits, own).await;
            });
        }
    }

    /// A user reads everything that may be read.
    pub(super) fn spawn_read_all(&self, setup: &Setup, hosts: &mut Hosts, rng: &mut Rng) {
        // The array itself stays on its home shard.
        let (shared, users) = (self.shared(), Rc::clone(&self.users));
        let sectors = self.array().volume().size() / SECTOR;
        let ranges: Vec<Range<u64>> = vast::sectors_in_use(setup, &hosts.disks, sectors);
        users.begin_task();
        let shard = hosts.home() + rng.index(setup.shards);
        hosts.world.spawn(shard, "read all", async move {
            read_all(FrontEnd::Direct(Volume::new(shared)), users, ranges).await;
        });
    }

    /// A client of the home shard does something while the others go on.
    pub(super) fn spawn_user<F>(
        &self,
        hosts: &mut Hosts,
        name: &'static str,
        act: impl FnOnce(FrontEnd, Rc<UserState>) -> F + 'static,
    ) where
        F: Future<Output = ()> + 'static,
    {
        let users = Rc::clone(&self.users);
        users.begin_task();
        let shared = self.shared();
        hosts.spawn(name, async move {
            act(FrontEnd::Direct(Volume::new(shared)), Rc::clone(&users)).await;
            users.end_task();
        });
    }
}
