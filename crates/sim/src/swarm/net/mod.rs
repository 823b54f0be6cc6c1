//! Lives of arrays with members over the network: the shipped initiator, the shipped target with the offload
//! extension, and simulated connections between them. [`super`] says what a life is; here is what else there
//! is.
//!
//! ```text
//!   client 0 ┐            ┌ server 0 ── disk        each client and each server is a process: shards of its own that die alone
//!   client 1 ┼─ network ──┼ server 1 ── disk        (a server's with its disk's cache) and come back as another incarnation
//!            │            └ ...                     one client serves the array; it may die, or be taken over from while it
//!   control: time of what is to be mended           goes on, and is stale then: nothing it does may have an effect (C22)
//! ```
//!
//! Accidents: connections are reset, between servers at any time, between client and server as far as the
//! level bears the loss of a member; pairs of nodes don't hear each other for a while, or only little goes
//! through between them; servers die with what their disks' caches hold, with a reset or silently. What the
//! disks do is drawn as for any array.
//!
//! At rest no server holds an operation, and after the stop every member's epoch is given up.

mod events;
mod network;
mod rival;
mod server;
mod takeover;
mod wild;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    rc::Rc,
    sync::Arc,
};

use pinstripe_engine::{
    array::Array,
    offload::{OffloadMode, reducer::ReducerChoice},
    options::ArrayOptions,
};
use pinstripe_md::level::{Layout, Level, ParityLayout};
use pinstripe_nvme::{
    initiator::{Address, Initiator, Options, Presence},
    target::Pipeline,
};
use pinstripe_runtime::{DeviceSource, shard};

use self::{
    network::{Dialler, Network, Port},
    server::Server,
    takeover::Stale,
};
use super::{Consistency, Setup, Swarm, Verdict, client::Shop, life::PATIENCE};
use crate::{Rng, SimDisk, SimStreamConfig, World, checks::survey};

/// Disks besides the members, each with a server, that may join.
const SPARES: usize = 2;
/// Most members, so that a run stays small.
const MEMBERS_MAX: usize = 6;
/// How long the client gives a server for a command: longer than servers wait for each other.
const COMMAND_NS: u64 = 13_000_000_000;
/// How long the array gives a member: longer, so that the association ends first.
const MEMBER_NS: u64 = 16_000_000_000;
/// How often the client looks whether a server is lost.
const LOOK_NS: u64 = 1_000_000_000;
/// Times that a server is tried, with a second between.
const TRIES: usize = 12;
/// Longer than any server holds an operation that is abandoned.
const SETTLED_NS: u64 = 15_000_000_000;

/// What a run over the network is made of.
#[derive(Clone, Debug)]
pub struct NetSetup {
    /// How servers follow their stages.
    pub pipeline: Pipeline,
    /// What connections are like.
    pub link: SimStreamConfig,
    /// Of 8 events that are wanted, how many happen.
    pub liveliness: u64,
    /// Of 8 ends of lives, how many are takeovers.
    pub takeovers: u64,
    /// Clients use a server at once again when they have lost an association with it, and what that carries
    /// may come late.
    pub hasty: bool,
    /// Hosts attach at once, servers stand still, requests come late on every connection ([`rival`],
    /// [`wild`]).
    pub wild: bool,
}

impl NetSetup {
    /// A setup of its own habits, which makes the run's array one that can have it.
    pub fn drawn(rng: &mut Rng, setup: &mut Setup) -> Self {
        if setup.level.parity_count() == 0 {
            setup.level = Level::Raid6;
            setup.layout = Layout::Parity(rng.pick(&ParityLayout::all_of(Level::Raid6).collect::<Vec<_>>()));
            setup.members = setup.members.max(4);
        }
        setup.members = setup.members.min(MEMBERS_MAX);
        (setup.nbd, setup.journals) = (None, 0);
        // With a log on the members the client does all work, until the policy is another.
        let stays = matches!(
            setup.consistency,
            Consistency::Resync | Consistency::Ppl | Consistency::DoubleParityLog
        );
        if !stays || rng.chance(1, 2) {
            setup.consistency = Consistency::Bitmap(rng.pick(&[4096, 8192, 32768, 65536]));
        }
        setup.shards = setup.shards.min(2);
        setup.clients = 1 + setup.clients % 4;
        setup.requests = 6 + setup.requests / 2;
        setup.disk.inline = 0;
        let options = &mut setup.options;
        options.offload = if rng.chance(1, 8) { OffloadMode::Barrier } else { OffloadMode::On };
        options.reducer = rng.pick(&[ReducerChoice::Uniform, ReducerChoice::Bandwidth]);
        options.member_timeout_ns = MEMBER_NS;
        // What wakes an idle array so often costs more steps than all of its messages.
        options.sweep_ns = options.sweep_ns.map(|sweep| sweep.max(20_000_000));
        Self {
            pipeline: if rng.chance(1, 6) { Pipeline::Serial } else { Pipeline::Overlapped },
            link: SimStreamConfig {
                window: rng.pick(&[65536, 4 << 20]),
                fragment_max: rng.pick(&[16384, 1 << 20]),
                delay_ns_max: rng.pick(&[0, 20_000, 500_000, 5_000_000]),
            },
            liveliness: rng.pick(&[1, 3, 6]),
            takeovers: rng.pick(&[0, 3, 6]),
            hasty: rng.chance(1, 2),
            wild: false,
        }
    }
}

/// The name of a disk: where it is reached.
pub(super) fn name(number: usize) -> String {
    server::address(number).to_string()
}

/// Shards of the world: of two clients, of all servers, and one for the time of accidents.
pub(super) fn shards(setup: &Setup) -> usize {
    2 * setup.shards + setup.members + SPARES + 1
}

type Presences = Rc<RefCell<BTreeMap<usize, Presence>>>;

/// A client's end of the network.
struct Client {
    initiator: Arc<Initiator>,
    /// By disk: whether its server was lost since it was opened last.
    presences: Presences,
    /// The owner of an epoch that it has set, as servers know it.
    owner: [u8; 16],
}

impl Client {
    /// The `process`th one.
    fn new(number: usize, process: u64, queues: usize, hasty: bool) -> Self {
        let name = format!("nqn.2026-01.com.example:client{number}");
        let id = [0x50 + u8::try_from(number).unwrap_or(0); 16];
        let mut instance = [0; 16];
        instance[..8].copy_from_slice(&process.to_le_bytes());
        let options = Options {
            instance,
            connect_nanoseconds: COMMAND_NS,
            command_nanoseconds: COMMAND_NS,
            // Its Attach ends what it has under way on an older connection.
            repeats_harmlessly: hasty,
            ..Options::new(name, id, u16::try_from(queues).unwrap_or(u16::MAX))
        };
        let owner = std::array::from_fn(|at| id[at] ^ instance[at]);
        Self { initiator: Initiator::new(options, Arc::new(Dialler)), presences: Presences::default(), owner }
    }
}

/// See the module.
pub(crate) struct Net {
    network: Rc<Network>,
    /// By disk.
    servers: Vec<Server>,
    client_shards: usize,
    clients: [Client; 2],
    /// Processes of clients so far.
    processes: u64,
    /// See [`NetSetup::hasty`].
    hasty: bool,
    /// See [`NetSetup::wild`].
    wild: bool,
    /// Until when a server stands still.
    standing_until: u64,
    /// The client that serves the array.
    client: usize,
    /// The next assembly takes the array over.
    takes_over: bool,
    stale: Option<Stale>,
    /// When servers that are down are started again.
    revivals: Vec<(u64, usize)>,
    /// Servers that lost what their disks' caches held, and that the array has not taken back since.
    emptied: BTreeSet<usize>,
    /// By server: how often something was done to it.
    blows: Rc<RefCell<Vec<u64>>>,
}

impl Net {
    /// For the disks that there are and those that may come.
    pub(super) fn new(world: &mut World, setup: &Setup, net: &NetSetup) -> Self {
        let servers = setup.members + SPARES;
        let (wiring, rng) = (world.wiring(7), world.rng(8));
        let network = Network::new(wiring, setup.shards, net.link.clone(), rng);
        let server = |number| {
            let port = Port::new(2 * setup.shards + number, 2 + number);
            Server::new(number, port, net.pipeline, &network)
        };
        Self {
            servers: (0..servers).map(server).collect(),
            network,
            client_shards: setup.shards,
            clients: [0, 1].map(|number| Client::new(number, 1, world.shards(), net.hasty)),
            processes: 1,
            hasty: net.hasty,
            wild: net.wild,
            standing_until: 0,
            client: 0,
            takes_over: false,
            stale: None,
            revivals: Vec::new(),
            emptied: BTreeSet::new(),
            blows: Rc::new(RefCell::new(vec![0; servers])),
        }
    }

    fn shards_of(&self, client: usize) -> Range<usize> {
        client * self.client_shards..(client + 1) * self.client_shards
    }

    /// A client is started anew: as another process of its host.
    fn renew(&mut self, number: usize, world: &World) {
        self.processes += 1;
        self.clients[number] = Client::new(number, self.processes, world.shards(), self.hasty);
    }

    /// The shard where accidents have their time.
    fn control(&self) -> usize {
        2 * self.client_shards + self.servers.len()
    }

    pub(super) fn home(&self) -> usize {
        self.shards_of(self.client).start
    }

    /// Whether the next assembly is a takeover.
    pub(super) fn takes_over(&self) -> bool {
        self.takes_over
    }

    pub(super) fn is_up(&self, number: usize) -> bool {
        self.servers[number].is_up()
    }

    /// Whether another disk may come.
    pub(super) fn has_room(&self, disks: usize) -> bool {
        disks < self.servers.len()
    }

    fn strike(&self, server: usize) {
        self.blows.borrow_mut()[server] += 1;
    }

    /// The array has taken the server's disk as a new member: what its cache lost doesn't matter any more.
    pub(super) fn given_back(&mut self, server: usize) {
        self.emptied.remove(&server);
    }
}

/// How a disk is reached.
#[derive(Clone)]
pub(crate) enum Reach {
    /// It is here.
    Disk(SimDisk),
    /// By its server.
    Server(Remote),
}

/// A disk behind a server.
#[derive(Clone)]
pub(crate) struct Remote {
    number: usize,
    initiator: Arc<Initiator>,
    presences: Presences,
    address: Address,
    blows: Rc<RefCell<Vec<u64>>>,
    known: u64,
}

impl Reach {
    /// What the array is given.
    pub(crate) async fn source(&self) -> Result<Arc<dyn DeviceSource>, String> {
        let Self::Server(remote) = self else {
            let Self::Disk(disk) = self else { unreachable!("there are two kinds") };
            return Ok(disk.source());
        };
        let mut last = String::new();
        for _ in 0..TRIES {
            match remote.initiator.open(&remote.address).await {
                Ok(source) => {
                    remote.presences.borrow_mut().insert(remote.number, source.presence());
                    return Ok(source);
                }
                Err(error) => last = error.to_string(),
            }
            if self.is_troubled() {
                break;
            }
            shard::sleep(1_000_000_000).await;
        }
        Err(last)
    }

    /// Whether something was done to the way since this was asked for.
    pub(crate) fn is_troubled(&self) -> bool {
        match self {
            Self::Disk(_) => false,
            Self::Server(remote) => remote.blows.borrow()[remote.number] != remote.known,
        }
    }
}

/// Tells the array when a server is lost, as `pinstripe serve` does.
async fn watch(array: Array, presences: Presences, shop: Rc<Shop>) {
    let mut told = BTreeSet::new();
    while !shop.closing.get() {
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
            let _ = array.lose(&name(number)).await;
        }
        shard::sleep(LOOK_NS).await;
    }
}

impl Swarm {
    /// The first shard of the client that serves the array.
    pub(crate) fn home(&self) -> usize {
        self.net.as_ref().map_or(0, Net::home)
    }

    /// How the client that serves the array reaches a disk.
    pub(crate) fn reach(&self, number: usize) -> Reach {
        let Some(net) = &self.net else { return Reach::Disk(self.disks[number].clone()) };
        let client = &net.clients[net.client];
        Reach::Server(Remote {
            number,
            initiator: Arc::clone(&client.initiator),
            presences: Rc::clone(&client.presences),
            address: server::address(number),
            blows: Rc::clone(&net.blows),
            known: net.blows.borrow()[number],
        })
    }

    /// How the array is to be started.
    pub(crate) fn options(&self, force: bool) -> ArrayOptions {
        let takeover = self.net.as_ref().is_some_and(Net::takes_over);
        ArrayOptions { force, takeover, ..self.setup.options.clone() }
    }

    pub(crate) fn start_server(&mut self, number: usize) {
        let Some(net) = &mut self.net else { return };
        net.revivals.retain(|(_, server)| *server != number);
        if !net.servers[number].is_up() {
            net.servers[number].start(&mut self.world, &self.disks[number]);
        }
    }

    /// Starts all servers that are down.
    pub(crate) fn start_servers(&mut self) {
        (0..self.disks.len()).for_each(|number| self.start_server(number));
    }

    /// Starts the servers that are due.
    pub(crate) fn revive(&mut self) {
        let now = self.world.now();
        let Some(net) = &self.net else { return };
        let due: Vec<usize> =
            net.revivals.iter().filter(|(at, _)| *at <= now).map(|(_, server)| *server).collect();
        for server in due {
            self.start_server(server);
        }
    }

    /// Whether a disk can't be reached because its server is down.
    pub(crate) fn is_down(&self, number: usize) -> bool {
        self.net.as_ref().is_some_and(|net| !net.is_up(number))
    }

    /// Whether the client knows that it has lost the server of a disk.
    pub(crate) fn is_lost(&self, number: usize) -> bool {
        let Some(net) = &self.net else { return false };
        let presences = net.clients[net.client].presences.borrow();
        self.is_down(number) || presences.get(&number).is_some_and(Presence::is_lost)
    }

    /// A life begins.
    pub(crate) fn begin_net_life(&mut self) {
        let Some(net) = &mut self.net else { return };
        net.takes_over = false;
        let (home, presences) = (net.home(), Rc::clone(&net.clients[net.client].presences));
        let (array, shop) = (self.array(), Rc::clone(&self.shop));
        self.world.spawn(home, "watch", watch(array, presences, shop));
        self.draw_bandwidth();
        self.retire_stale();
    }

    /// Whether a crash of the clients alone may cost what was acknowledged and not flushed: a server has lost
    /// its cache, and the superblocks still name its disk as a current member.
    pub(crate) fn has_emptied_member(&self) -> bool {
        let Some(net) = self.net.as_ref().filter(|net| !net.emptied.is_empty()) else { return false };
        let all = self.initiated.iter().map(|&number| (number, &self.disks[number]));
        // With no disk there, nothing is promised either.
        let Ok(survey) = survey(all.filter(|(_, disk)| !disk.is_gone())) else { return true };
        survey.seats.iter().flatten().any(|(number, _)| net.emptied.contains(number))
    }

    /// The clients die, with `power` the servers too. A server that was down before may stay down.
    pub(crate) fn crash_net(&mut self, power: bool) {
        self.bury_stale();
        let Some(net) = &mut self.net else { return };
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
        if self.rng.chance(1, 3) {
            // The other one goes on, which the servers may not yet be prepared for.
            (net.client, net.takes_over) = (1 - net.client, true);
        }
        for number in 0..self.disks.len() {
            if !down.contains(&number) || self.outage.contains(&number) || self.rng.chance(2, 3) {
                self.start_server(number);
            }
        }
    }

    /// Nothing is wrong with the network any more.
    pub(crate) fn heal_net(&mut self) -> Result<(), Verdict> {
        let Some(net) = &self.net else { return Ok(()) };
        net.network.rejoin_all();
        self.start_servers();
        self.await_stale()
    }

    /// No server holds an operation any more, soon.
    pub(crate) fn settle_net(&mut self) -> Result<(), Verdict> {
        let Some(net) = &self.net else { return Ok(()) };
        let control = net.control();
        let until = self.world.now().max(net.standing_until) + SETTLED_NS;
        loop {
            let held = |net: &Net| -> Vec<u64> {
                net.servers.iter().map(|server| server.statistics().held).collect()
            };
            let left = self.net.as_ref().map(held).unwrap_or_default();
            if left.iter().all(|held| *held == 0) {
                return Ok(());
            }
            if self.world.now() > until {
                return Err(Verdict::Leak(format!("servers hold {left:?} operations at rest")));
            }
            let pause = async { shard::sleep(500_000_000).await };
            self.world.block_on(control, "settle", PATIENCE, pause)?;
        }
    }

    /// After the array was stopped: no server of a member is attached any more, and the servers end in order.
    pub(crate) fn stop_servers(&mut self) -> Result<(), Verdict> {
        let Some(net) = &mut self.net else { return Ok(()) };
        let present = (0..self.disks.len()).filter(|&number| net.servers[number].is_up());
        let held: Vec<usize> = present.filter(|&number| !net.servers[number].is_free()).collect();
        // A disk that is no member any more has no host that could give it up.
        let all = self.initiated.iter().map(|&number| (number, &self.disks[number]));
        let seats = survey(all.filter(|(_, disk)| !disk.is_gone()))?.seats;
        if let Some(number) = held.iter().find(|held| seats.iter().flatten().any(|(seat, _)| seat == *held)) {
            return Err(Verdict::Leak(format!("after the stop server {number} is still attached")));
        }
        for number in [0, 1] {
            net.renew(number, &self.world);
        }
        let world = &mut self.world;
        let stops: Vec<_> = net.servers.iter().map(|server| server.stop(world)).collect();
        Ok(world.run_until(PATIENCE, |_| stops.iter().all(|over| over.get()))?)
    }

    /// All that the run has on shards is let go of.
    pub(crate) fn bury_net(&mut self) {
        self.bury_stale();
        if let Some(net) = self.net.take() {
            net.servers.iter().for_each(|server| server.forget(&self.world));
            net.network.forget();
            network::close();
        }
    }
}
