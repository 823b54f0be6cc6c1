//! Nodes of lives over the network: two clients with the shipped initiator, servers with the shipped target
//! and its offload extension, and simulated connections between them. What becomes of them is up to a life
//! ([`net_life`](super::net_life)), of which nothing is known here.

mod network;
mod server;

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    rc::Rc,
    sync::Arc,
};

use pinstripe_nvme::{
    controller::Pipeline,
    initiator::{Address, Initiator, Options, Presence},
};
use pinstripe_runtime::{DeviceSource, shard};

use self::{
    network::{Dialler, Port},
    server::Server,
};
use crate::{SimDisk, SimStreamConfig, World};

pub(super) use self::network::{Network, Node, Wire};

/// Disks besides the members, each with a server, that may join.
pub(super) const SPARES: usize = 2;
/// How long the client gives a server for a command: longer than servers wait for each other.
pub(super) const COMMAND_NS: u64 = 13_000_000_000;
/// Times that a server is tried, with a second between.
const TRIES: usize = 12;

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
    /// Hosts attach at once, servers stand still, requests come late on every connection
    /// ([`rival`](super::rival), [`wild`](super::wild)).
    pub wild: bool,
}

/// The name of a disk: where it is reached.
pub(super) fn name(number: usize) -> String {
    server::address(number).to_string()
}

pub(super) type Presences = Rc<RefCell<BTreeMap<usize, Presence>>>;

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
    pub(super) network: Rc<Network>,
    /// By disk.
    pub(super) servers: Vec<Server>,
    client_shards: usize,
    clients: [Client; 2],
    /// Processes of clients so far.
    processes: u64,
    /// See [`NetSetup::hasty`].
    pub(super) hasty: bool,
    /// Until when a server stands still.
    pub(super) standing_until: u64,
    /// The client that serves the array.
    pub(super) client: usize,
    /// The next assembly takes the array over.
    pub(super) takes_over: bool,
    /// When servers that are down are started again.
    pub(super) revivals: Vec<(u64, usize)>,
    /// Servers that lost what their disks' caches held, and that the array has not taken back since.
    pub(super) emptied: BTreeSet<usize>,
    /// By server: how often something was done to it.
    blows: Rc<RefCell<Vec<u64>>>,
}

impl Net {
    /// For the disks that there are and those that may come.
    pub(super) fn new(world: &mut World, members: usize, client_shards: usize, net: &NetSetup) -> Self {
        let servers = members + SPARES;
        let (wiring, rng) = (world.wiring(7), world.rng(8));
        let network = Network::new(wiring, client_shards, net.link.clone(), rng);
        let server = |number| {
            let port = Port::new(2 * client_shards + number, 2 + number);
            Server::new(number, port, net.pipeline, &network)
        };
        Self {
            servers: (0..servers).map(server).collect(),
            network,
            client_shards,
            clients: [0, 1].map(|number| Client::new(number, 1, world.shards(), net.hasty)),
            processes: 1,
            hasty: net.hasty,
            standing_until: 0,
            client: 0,
            takes_over: false,
            revivals: Vec::new(),
            emptied: BTreeSet::new(),
            blows: Rc::new(RefCell::new(vec![0; servers])),
        }
    }

    pub(super) fn shards_of(&self, client: usize) -> Range<usize> {
        client * self.client_shards..(client + 1) * self.client_shards
    }

    /// A client is started anew: as another process of its host.
    pub(super) fn renew(&mut self, number: usize, world: &World) {
        self.processes += 1;
        self.clients[number] = Client::new(number, self.processes, world.shards(), self.hasty);
    }

    /// The shard where accidents have their time.
    pub(super) fn control(&self) -> usize {
        2 * self.client_shards + self.servers.len()
    }

    pub(super) fn home(&self) -> usize {
        self.shards_of(self.client).start
    }

    pub(super) fn is_up(&self, number: usize) -> bool {
        self.servers[number].is_up()
    }

    /// Whether another disk may come.
    pub(super) fn has_room(&self, disks: usize) -> bool {
        disks < self.servers.len()
    }

    /// How the client that serves the array reaches a disk.
    pub(super) fn reach(&self, number: usize) -> Reach {
        let client = &self.clients[self.client];
        Reach::Server(Remote {
            number,
            initiator: Arc::clone(&client.initiator),
            presences: Rc::clone(&client.presences),
            address: server::address(number),
            blows: Rc::clone(&self.blows),
            known: self.blows.borrow()[number],
        })
    }

    /// Which servers the client that serves the array has lost since it opened them.
    pub(super) fn presences(&self) -> &Presences {
        &self.clients[self.client].presences
    }

    /// How many servers say that they are this client's.
    pub(super) fn owned_by(&self, client: usize) -> usize {
        let owner = self.clients[client].owner;
        self.servers.iter().filter(|server| server.is_owned_by(&owner)).count()
    }

    /// By server: operations that it holds.
    pub(super) fn operations_held(&self) -> Vec<u64> {
        self.servers.iter().map(|server| server.statistics().held).collect()
    }

    /// Something is done to a server.
    pub(super) fn strike(&self, server: usize) {
        self.blows.borrow_mut()[server] += 1;
    }

    /// All of it is let go of; what runs in `world` too.
    pub(super) fn bury(&self, world: &World) {
        self.servers.iter().for_each(|server| server.forget(world));
        self.network.forget();
        network::close();
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
