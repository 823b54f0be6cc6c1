//! The machines of a run: the world with its disks and, if members are reached over the network, the clients
//! and servers there. An array is served by the home client: all shards of the world, or those of one of two
//! clients.
//!
//! What is here stops, dies, loses its way or comes back when it is told to. When that may happen is up to a
//! life and its events.

use std::{collections::BTreeSet, ops::Range, rc::Rc};

use pinstripe_engine::array::Array;
use pinstripe_nvme::initiator::Presence;
use pinstripe_runtime::shard;

use super::{
    Setup, Verdict,
    client::UserState,
    net::{self, Net, Node, Presences, Reach, Wire},
    net_life,
};
use crate::{
    CrashImage, Event, Fault, Rng, SimDisk, SimDiskConfig, World, WorldConfig,
    checks::{Damage, Survey, superblock, survey},
    world::Stuck,
};

/// Steps after which a run that should have come to rest counts as stuck.
pub(crate) const STEPS_MAX: u64 = 1_000_000;
/// How often the client looks whether a server is lost.
const LOOK_NS: u64 = 1_000_000_000;
/// Longer than any server holds an operation that is abandoned.
const SETTLED_NS: u64 = 15_000_000_000;
/// How long a server has for what came late.
const WORK_NS: u64 = 100_000_000;

/// See the module.
pub(crate) struct Hosts {
    pub(super) world: World,
    pub(super) disks: Vec<SimDisk>,
    /// Clients, servers and network, if members are reached over it.
    net: Option<Net>,
    /// Disks at the beginning, each with a superblock since.
    disks_created: usize,
    /// Shards of a client.
    client_shards: usize,
}

impl Hosts {
    /// What the setup says, in a world of this seed.
    pub(super) fn new(seed: u64, setup: &Setup, log_events_max: usize) -> Self {
        let shards = if setup.net.is_some() { net_life::shards(setup) } else { setup.shards };
        let mut config = WorldConfig::new(seed, shards);
        config.log_events_max = log_events_max;
        config.interruptions = setup.races.as_ref().map(|races| races.interruptions);
        let mut world = World::new(config);
        let disks = (0..setup.disks()).map(|number| world.add_disk(setup.disk(number))).collect();
        let net = setup.net.as_ref().map(|net| Net::new(&mut world, setup.members, setup.shards, net));
        Self { world, disks, net, disks_created: setup.disks(), client_shards: setup.shards }
    }

    /// The same disks with what a crash leaves of them, in a world of their own. Those that aren't `here` are
    /// gone.
    pub(super) fn after_crash(seed: u64, setup: &Setup, images: &[CrashImage<'_>], here: &[usize]) -> Self {
        let mut world = World::new(WorldConfig::new(seed, setup.shards));
        let load = |(number, image)| {
            let disk = world.add_disk(setup.disk(number));
            disk.load(image);
            if !here.contains(&number) {
                disk.fault(&Fault::Gone);
            }
            disk
        };
        let disks = images.iter().enumerate().map(load).collect();
        Self { world, disks, net: None, disks_created: setup.disks(), client_shards: setup.shards }
    }

    /// One step of the world. False if nothing will ever happen again.
    pub(super) fn step(&mut self) -> bool {
        let going = self.world.step();
        self.revive();
        going
    }

    /// The shards of the client that serves the array.
    pub(super) fn home_shards(&self) -> Range<usize> {
        let first = self.home();
        first..first + self.client_shards
    }

    /// The first shard of the client that serves the array.
    pub(super) fn home(&self) -> usize {
        self.net.as_ref().map_or(0, Net::home)
    }

    /// Starts a task at home.
    pub(super) fn spawn(&mut self, name: &str, future: impl Future<Output = ()> + 'static) {
        self.world.spawn(self.home(), name, future);
    }

    /// Runs the world until a task at home is done.
    pub(super) fn block_on<T: 'static>(
        &mut self,
        name: &str,
        future: impl Future<Output = T> + 'static,
    ) -> Result<T, Stuck> {
        self.world.block_on(self.home(), name, STEPS_MAX, future)
    }

    pub(super) fn note(&self, what: &'static str, value: usize) {
        self.world.trace().record(Event::Note { what, value: value as u64 });
    }

    /// The number of the disk of a name.
    pub(super) fn find(&self, name: &str) -> Option<usize> {
        self.disks.iter().position(|disk| disk.info().name == name)
    }

    /// Adds a disk, with no server yet. Its number.
    pub(super) fn add_disk(&mut self, config: SimDiskConfig) -> usize {
        let number = self.disks.len();
        let disk = self.world.add_disk(config);
        self.disks.push(disk);
        number
    }

    /// Disks that are there and have ever been given a superblock, and their numbers.
    pub(super) fn present(&self) -> impl Iterator<Item = (usize, &SimDisk)> {
        self.disks.iter().enumerate().filter(|(number, disk)| {
            !disk.is_gone()
                && !self.is_down(*number)
                && (*number < self.disks_created || superblock(*disk).is_some())
        })
    }

    /// What the superblocks of the disks say that are present.
    pub(super) fn survey(&self) -> Result<Survey, Damage> {
        survey(self.present())
    }

    /// The same of the disks at the beginning, whether their servers are up or not.
    fn survey_created(&self) -> Result<Survey, Damage> {
        let all = self.disks[..self.disks_created].iter().enumerate();
        survey(all.filter(|(_, disk)| !disk.is_gone()))
    }

    /// How the client that serves the array reaches a disk.
    pub(super) fn reach(&self, number: usize) -> Reach {
        let Some(net) = &self.net else { return Reach::Disk(self.disks[number].clone()) };
        net.reach(number)
    }

    /// A life begins: the array is served.
    pub(super) fn begin_life(&mut self, array: Array, users: Rc<UserState>, rng: &mut Rng) {
        let Some(net) = &mut self.net else { return };
        net.takes_over = false;
        let presences = Rc::clone(net.presences());
        self.spawn("watch", watch(array, presences, users));
        self.draw_bandwidth(rng);
    }

    /// Between some little goes through in this life.
    fn draw_bandwidth(&self, rng: &mut Rng) {
        let Some(net) = &self.net else { return };
        let nodes = 2 + self.disks.len();
        for pair in (0..nodes).flat_map(|one| (one + 1..nodes).map(move |other| (one, other))) {
            let rate = if rng.chance(1, 6) { rng.range(4_000_000..40_000_000) } else { 0 };
            net.network.throttle(pair, rate);
        }
    }

    /// The machine dies, or only the process. Over the network the clients die, with `power` the servers too.
    /// A server that was down before may stay down, but those that return.
    pub(super) fn crash(&mut self, power: bool, returns: impl Fn(usize) -> bool, rng: &mut Rng) {
        let Some(net) = &mut self.net else {
            return if power { self.world.crash() } else { self.world.kill() };
        };
        let down: Vec<usize> = (0..self.disks.len()).filter(|&number| !net.is_up(number)).collect();
        if power {
            net.servers.iter().for_each(|server| server.forget(&self.world));
            net.network.forget();
            self.world.crash();
        } else {
            self.world.end_shards(&net.shards_of(net.client), &[], false, false);
        }
        net.network.rejoin_all();
        net.emptied.clear();
        net.revivals.clear();
        for number in [0, 1] {
            net.renew(number, &self.world);
        }
        if rng.chance(1, 3) {
            // The other one goes on, which the servers may not yet be prepared for.
            (net.client, net.takes_over) = (1 - net.client, true);
        }
        for number in 0..self.disks.len() {
            if !down.contains(&number) || returns(number) || rng.chance(2, 3) {
                self.start_server(number);
            }
        }
    }

    /// All that is on shards is let go of.
    pub(super) fn bury(mut self) {
        if let Some(net) = self.net.take() {
            net.bury(&self.world);
        }
    }
}

/// Servers.
impl Hosts {
    /// Whether another disk may come.
    pub(super) fn has_room(&self) -> bool {
        self.net.as_ref().is_none_or(|net| net.has_room(self.disks.len()))
    }

    pub(super) fn start_server(&mut self, number: usize) {
        let Some(net) = &mut self.net else { return };
        net.revivals.retain(|(_, server)| *server != number);
        if !net.servers[number].is_up() {
            net.servers[number].start(&mut self.world, &self.disks[number]);
        }
    }

    /// Starts all servers that are down.
    pub(super) fn start_servers(&mut self) {
        (0..self.disks.len()).for_each(|number| self.start_server(number));
    }

    /// Starts the servers that are due.
    fn revive(&mut self) {
        let now = self.world.now();
        let Some(net) = &self.net else { return };
        let due: Vec<usize> =
            net.revivals.iter().filter(|(at, _)| *at <= now).map(|(_, server)| *server).collect();
        for server in due {
            self.start_server(server);
        }
    }

    /// A server that is down is started again at this time.
    pub(super) fn revive_at(&mut self, time: u64, server: usize) {
        if let Some(net) = &mut self.net {
            net.revivals.push((time, server));
        }
    }

    /// A server dies, with what its disk's cache holds.
    pub(super) fn kill_server(&mut self, number: usize, silent: bool) {
        let Some(net) = &mut self.net else { return };
        net.strike(number);
        net.emptied.insert(number);
        let server = &net.servers[number];
        server.forget(&self.world);
        let shard = server.port.shard;
        let disk = std::slice::from_ref(&self.disks[number]);
        self.world.end_shards(&(shard..shard + 1), disk, true, silent);
    }

    /// A server's process stands still for so long, and goes on as if nothing had been.
    pub(super) fn stall_server(&mut self, number: usize, nanoseconds: u64) {
        self.note("server stands still", number);
        let until = self.world.now() + nanoseconds;
        let Some(net) = &mut self.net else { return };
        net.standing_until = until.max(net.standing_until);
        let shard = net.servers[number].port.shard;
        self.world.stall(shard..shard + 1, nanoseconds);
    }

    /// Something is done to a server: the array may lose its disk for it.
    pub(super) fn strike(&self, server: usize) {
        if let Some(net) = &self.net {
            net.strike(server);
        }
    }

    /// The array has taken a disk as a new member.
    pub(super) fn given_back(&mut self, disk: usize) {
        if let Some(net) = &mut self.net {
            net.given_back(disk);
        }
    }

    /// Whether a disk can't be reached because its server is down.
    pub(super) fn is_down(&self, number: usize) -> bool {
        self.net.as_ref().is_some_and(|net| !net.is_up(number))
    }

    /// Whether the client knows that it has lost the server of a disk.
    pub(super) fn is_lost(&self, number: usize) -> bool {
        let Some(net) = &self.net else { return false };
        let presences = net.presences().borrow();
        self.is_down(number) || presences.get(&number).is_some_and(Presence::is_lost)
    }

    /// Whether a crash of the clients alone may cost what was acknowledged and not flushed: a server has lost
    /// its cache, and the superblocks still name its disk as a current member.
    pub(super) fn has_emptied_member(&self) -> bool {
        let Some(net) = self.net.as_ref().filter(|net| !net.emptied.is_empty()) else { return false };
        // With no disk there, nothing is promised either.
        let Ok(survey) = self.survey_created() else { return true };
        survey.seats.iter().flatten().any(|(number, _)| net.emptied.contains(number))
    }

    /// Waits until no server stands still any more. The array rightly loses one that does so at a stop.
    pub(super) fn await_servers(&mut self) -> Result<(), Verdict> {
        let Some(net) = &self.net else { return Ok(()) };
        let (control, until) = (net.control(), net.standing_until);
        let Some(left) = until.checked_sub(self.world.now()) else { return Ok(()) };
        let pause = async move { shard::sleep(left).await };
        Ok(self.world.block_on(control, "wait for servers", STEPS_MAX, pause)?)
    }

    /// No server holds an operation any more, soon.
    pub(super) fn settle(&mut self) -> Result<(), Verdict> {
        let Some(net) = &self.net else { return Ok(()) };
        let control = net.control();
        let until = self.world.now().max(net.standing_until) + SETTLED_NS;
        loop {
            let left = self.net.as_ref().map(Net::operations_held).unwrap_or_default();
            if left.iter().all(|held| *held == 0) {
                return Ok(());
            }
            if self.world.now() > until {
                return Err(Verdict::Leak(format!("servers hold {left:?} operations at rest")));
            }
            let pause = async { shard::sleep(500_000_000).await };
            self.world.block_on(control, "settle", STEPS_MAX, pause)?;
        }
    }

    /// After the array was stopped: no server of a member is attached any more, and the servers end in order.
    pub(super) fn stop_servers(&mut self) -> Result<(), Verdict> {
        let Some(net) = &self.net else { return Ok(()) };
        let present = (0..self.disks.len()).filter(|&number| net.servers[number].is_up());
        let held: Vec<usize> = present.filter(|&number| !net.servers[number].is_free()).collect();
        // A disk that is no member any more has no host that could give it up.
        let seats = self.survey_created()?.seats;
        if let Some(number) = held.iter().find(|held| seats.iter().flatten().any(|(seat, _)| seat == *held)) {
            return Err(Verdict::Leak(format!("after the stop server {number} is still attached")));
        }
        let Some(net) = &mut self.net else { return Ok(()) };
        for number in [0, 1] {
            net.renew(number, &self.world);
        }
        let world = &mut self.world;
        let stops: Vec<_> = net.servers.iter().map(|server| server.stop(world)).collect();
        Ok(world.run_until(STEPS_MAX, |_| stops.iter().all(|over| over.get()))?)
    }
}

/// Connections.
impl Hosts {
    /// Whether clients use a server at once again after they have lost it.
    pub(super) fn is_hasty(&self) -> bool {
        self.net.as_ref().is_some_and(|net| net.hasty)
    }

    /// The client that serves the array and a disk's server.
    pub(super) fn link_to(&self, disk: usize) -> (Node, Node) {
        (self.client(), server_node(disk))
    }

    /// Connections between two.
    pub(super) fn wires(&self, pair: (Node, Node)) -> Vec<Rc<Wire>> {
        self.net.as_ref().map_or_else(Vec::new, |net| net.network.between(pair))
    }

    /// What connections carry arrives late by so much; with `ends` they are reset when the server has had
    /// time for it.
    pub(super) fn hold(&mut self, wires: Vec<Rc<Wire>>, nanoseconds: u64, ends: bool) {
        let Some(net) = &self.net else { return };
        for wire in &wires {
            wire.hold(true);
        }
        self.world.spawn(net.control(), "late", async move {
            shard::sleep(nanoseconds).await;
            for wire in &wires {
                wire.hold(false);
            }
            if ends {
                shard::sleep(WORK_NS).await;
                for wire in &wires {
                    wire.near.reset();
                }
            }
        });
    }

    /// Two don't hear each other for so long.
    pub(super) fn part(&mut self, pair: (Node, Node), nanoseconds: u64) {
        let Some(net) = &self.net else { return };
        let network = Rc::clone(&net.network);
        network.part(pair);
        self.world.spawn(net.control(), "partition", async move {
            shard::sleep(nanoseconds).await;
            network.rejoin(pair);
        });
    }

    /// Nothing is wrong with the network any more.
    pub(super) fn heal_net(&mut self) {
        if let Some(net) = &self.net {
            net.network.rejoin_all();
            self.start_servers();
        }
    }
}

/// The two clients.
impl Hosts {
    /// The client that serves the array.
    pub(super) fn client(&self) -> usize {
        self.net.as_ref().map_or(0, |net| net.client)
    }

    pub(super) fn shards_of(&self, client: usize) -> Range<usize> {
        self.net.as_ref().map_or(0..self.client_shards, |net| net.shards_of(client))
    }

    /// Whether the next assembly is a takeover.
    pub(super) fn takes_over(&self) -> bool {
        self.net.as_ref().is_some_and(|net| net.takes_over)
    }

    /// The next assembly takes the array over.
    pub(super) fn take_over_next(&mut self) {
        if let Some(net) = &mut self.net {
            net.takes_over = true;
        }
    }

    /// The other client is the one that serves the array.
    pub(super) fn exchange_clients(&mut self) {
        if let Some(net) = &mut self.net {
            net.client = 1 - net.client;
        }
    }

    /// The other client is to take the array over, as a new process that hears every server.
    pub(super) fn hand_over(&mut self) {
        let Some(net) = &mut self.net else { return };
        let successor = 1 - net.client;
        (net.client, net.takes_over) = (successor, true);
        net.renew(successor, &self.world);
        for (number, disk) in self.disks.iter().enumerate() {
            // What the old client hasn't noticed yet isn't to meet the new one while rows are torn.
            disk.fault(&Fault::Heal);
            disk.fault(&Fault::Release);
            net.network.rejoin((successor, server_node(number)));
        }
    }

    /// How many servers say that they are this client's.
    pub(super) fn owned_by(&self, client: usize) -> usize {
        self.net.as_ref().map_or(0, |net| net.owned_by(client))
    }

    /// A client's process is over, and with it what the run holds of it.
    pub(super) fn end_process<T>(&mut self, client: usize, held: T) {
        let Some(net) = &mut self.net else { return };
        let shards = net.shards_of(client);
        {
            let _entered = self.world.enter(shards.start);
            drop(held);
        }
        self.world.end_shards(&shards, &[], false, false);
        net.renew(client, &self.world);
    }
}

/// The node of a disk's server.
pub(super) fn server_node(disk: usize) -> Node {
    2 + disk
}

/// Tells the array when a server is lost, as `pinstripe serve` does.
async fn watch(array: Array, presences: Presences, users: Rc<UserState>) {
    let mut told = BTreeSet::new();
    while !users.closing.get() {
        let lost: Vec<usize> = presences
            .borrow()
            .iter()
            .filter(|(number, presence)| presence.is_lost() && !told.contains(*number))
            .map(|(number, _)| *number)
            .collect();
        told.retain(|number| presences.borrow().get(number).is_some_and(Presence::is_lost));
        for number in lost {
            told.insert(number);
            // If the array can't do without it, it finds out by itself.
            let _ = array.drop_gone(&net::name(number)).await;
        }
        shard::sleep(LOOK_NS).await;
    }
}
