//! Arrays of servers that compute, in the simulated world: partial writes and reconstructions by two hosts,
//! while connections are cut and held up, servers die at any step and come back, and hosts lose power or are
//! replaced.
//!
//! A row that was committed holds what was written, P and Q included. A row with a failed first phase has not
//! changed, whatever comes late. At the end no operation takes a slot.

mod array;
mod network;
mod probes;
mod servers;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use pinstripe_nvme::controller::Pipeline;
use pinstripe_nvme::initiator::{Address, Initiator, InitiatorError, NvmeSource, Options};
use pinstripe_runtime::{Attachment, DeviceError, DeviceErrorKind, DeviceSource, shard};
use pinstripe_sim::{Fault, Rng, SECTOR, SimDisk, SimDiskConfig, World, WorldConfig};

use array::{Array, Member, ROWS};
use network::{Dialler, Network};
use servers::{Server, nqn};

/// Hosts, each with a shard; servers follow.
const HOSTS: usize = 2;
const STEPS: u64 = 4_000_000;
/// Steps of a life among which a blow falls.
const BLOW_STEPS: u64 = 12_000;
const LIVES: usize = 3;
const USERS: usize = 4;
/// Times that a host tries to come back, with a second between.
const TRIES: usize = 60;
const UUID: [u8; 16] = [0xa5; 16];

/// What may befall them.
#[derive(Clone, Copy)]
enum Blow {
    /// A host's connection is reset.
    HostReset,
    /// Connections between servers are reset.
    PeerReset,
    /// What servers send each other is late.
    PeersHeld,
    /// A host and some server don't hear each other.
    HostHeld,
    /// A server dies.
    Death,
    /// A server's disk hangs.
    Hang,
    /// All hosts and servers lose power.
    Power,
}

impl Blow {
    const ALL: &[Self] = &[
        Self::HostReset,
        Self::PeerReset,
        Self::PeersHeld,
        Self::HostHeld,
        Self::Death,
        Self::Hang,
        Self::Power,
    ];
}

/// The members as a host has them.
type Sources = Vec<Option<Arc<NvmeSource>>>;

pub struct Run {
    world: World,
    rng: Rng,
    network: Rc<Network>,
    servers: Vec<Rc<Server>>,
    /// By member: server, namespace, disk.
    places: Vec<(usize, u32, SimDisk)>,
    hosts: Vec<Arc<Initiator>>,
    /// By host: which process it is now. One that was taken over from must be started anew.
    instances: [u8; HOSTS],
    array: Rc<Array>,
    pipeline: Pipeline,
    epoch: u64,
    generation: u64,
    /// Host that is attached, or was last.
    host: usize,
}

/// One of a host's processes.
fn process(number: usize, queues: usize, instance: u8) -> Arc<Initiator> {
    let name = format!("nqn.2026-01.com.example:host{number}");
    let id = [u8::try_from(number).unwrap() + 0x50; 16];
    let options = Options::new(name, id, u16::try_from(queues).unwrap());
    // Not such that two hosts come to the same with theirs.
    let mut bytes = [instance; 16];
    bytes[0] = u8::try_from(number).unwrap() + 1;
    Initiator::new(Options { instance: bytes, ..options }, Arc::new(Dialler))
}

/// Runs a seed; what is wrong, in words.
pub fn run(seed: u64) -> Result<(), String> {
    let mut run = Run::new(seed);
    for life in 0..LIVES {
        run.life(life > 0)?;
    }
    run.array.calm.set(true);
    run.calm_life()?;
    run.check_pipeline()?;
    run.probes()?;
    run.end()
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut setting = Rng::new(seed ^ 0x0ff1_0ad0);
        let (data, parities) = (1 + setting.index(3), 1 + setting.index(2));
        let chunk = setting.pick(&[4096, 16_384, 65_536]);
        let members = data + parities;
        let mut lost = Vec::new();
        for _ in 0..setting.index(parities + 1) {
            let member = setting.index(members);
            if !lost.contains(&member) && members - lost.len() > 2 {
                lost.push(member);
            }
        }
        // Sometimes two members are on one server.
        let count = if setting.chance(1, 3) && members > 2 { members - 1 } else { members };
        // Of each server.
        let shards = setting.pick(&[1, 2]);
        let mut world = World::new(WorldConfig::new(seed, HOSTS + count * shards));
        let mut rng = world.rng(1);
        let array = Array::new(&mut rng, data, parities, chunk, lost);
        let network = Network::new(&mut rng);
        let disks: Vec<SimDisk> = (0..members)
            .map(|member| {
                let bytes = (ROWS * chunk) as u64;
                let config = SimDiskConfig {
                    volatile_cache: false,
                    ..SimDiskConfig::drawn(&mut rng, &format!("disk{member}"), bytes)
                };
                world.add_disk(config)
            })
            .collect();
        let pipeline = if setting.chance(1, 4) { Pipeline::Serial } else { Pipeline::Overlapped };
        let servers: Vec<Rc<Server>> = (0..count)
            .map(|number| {
                let theirs = (number..members).step_by(count).map(|member| disks[member].clone()).collect();
                let first = HOSTS + number * shards;
                Server::new(number, first..first + shards, theirs, pipeline)
            })
            .collect();
        let places = disks
            .iter()
            .enumerate()
            .map(|(member, disk)| (member % count, u32::try_from(member / count).unwrap() + 1, disk.clone()))
            .collect();
        for server in &servers {
            server.start(&world);
        }
        let hosts = (0..HOSTS).map(|number| process(number, HOSTS + count * shards, 1)).collect();
        let run = Self {
            world,
            rng,
            network,
            servers,
            places,
            hosts,
            instances: [1; HOSTS],
            array,
            pipeline,
            epoch: 1,
            generation: 0,
            host: 0,
        };
        for (member, offset, bytes, _) in run.array.contents() {
            run.places[member].2.poke(offset, &bytes);
        }
        run
    }

    /// One thing happens. False if nothing can.
    fn step(&mut self) -> bool {
        let (servers, rng) = (&self.servers, &mut self.rng);
        let mut find = |name: &str| {
            let server = servers.iter().find(|server| format!("server{}", server.number) == name)?;
            let shard = rng.range(server.shards.start as u64..server.shards.end as u64);
            server.is_up().then_some((server.number, usize::try_from(shard).unwrap()))
        };
        let laid = self.network.connect(&mut self.world, &mut find, |(number, shard), stream| {
            let target = servers[number].target(shard);
            async move {
                if let Some(target) = target {
                    target.serve(stream).await;
                }
            }
        });
        self.world.step() || laid
    }

    fn run_until(&mut self, what: &str, condition: impl Fn() -> bool) -> Result<(), String> {
        for _ in 0..STEPS {
            if condition() {
                return Ok(());
            }
            if !self.step() {
                return Err(format!("{what}: nothing happens any more\n{}", self.world.report()));
            }
        }
        Err(format!("{what}: it takes too long\n{}", self.world.report()))
    }

    fn steps(&mut self, count: u64) {
        for _ in 0..count {
            self.step();
        }
    }

    /// Runs a task of a host to its end.
    fn ask<T: 'static>(
        &mut self,
        shard: usize,
        what: &str,
        task: impl Future<Output = T> + 'static,
    ) -> Result<T, String> {
        let value = Rc::new(RefCell::new(None));
        let there = Rc::clone(&value);
        self.world.spawn(shard, what, async move {
            let given = task.await;
            *there.borrow_mut() = Some(given);
        });
        self.run_until(what, || value.borrow().is_some())?;
        Ok(value.take().unwrap())
    }

    fn pause(&mut self, nanoseconds: u64) -> Result<(), String> {
        self.ask(0, "pause", async move { shard::sleep(nanoseconds).await })
    }

    fn verdict(&self) -> Result<(), String> {
        let violations = self.array.violations.borrow();
        if violations.is_empty() { Ok(()) } else { Err(violations.join("\n")) }
    }

    fn address(&self, member: usize) -> Address {
        let (server, namespace, _) = &self.places[member];
        format!("nvme-tcp://server{server}:4420/{}?nsid={namespace}", nqn(*server)).parse().unwrap()
    }

    fn mend(&mut self) {
        self.network.release();
        for (_, _, disk) in &self.places {
            disk.fault(&Fault::Release);
        }
        for server in &self.servers {
            if !server.is_up() {
                server.start(&self.world);
            }
        }
    }

    /// A host opens the members and attaches them; it comes back until it succeeds.
    fn open(&mut self, takeover: bool) -> Result<Sources, String> {
        let mut last = String::new();
        for _ in 0..TRIES {
            self.generation += 1;
            self.servers.iter().for_each(|server| server.set_unreliable(true));
            let opened = self.try_open(takeover);
            self.servers.iter().for_each(|server| server.set_unreliable(false));
            match opened? {
                Ok(sources) => return Ok(sources),
                Err(words) => last = words,
            }
            self.mend();
            self.pause(1_000_000_000)?;
        }
        Err(format!("host {} can't come back: {last}", self.host))
    }

    fn attachment(&self, takeover: bool) -> Attachment {
        let peers = (0..self.array.members())
            .map(|member| (!self.array.lost.contains(&member)).then(|| self.address(member).to_string()));
        let (epoch, generation) = (self.epoch, self.generation);
        Attachment { array: UUID, epoch, generation, peers: peers.collect(), takeover, alone: true }
    }

    fn try_open(&mut self, takeover: bool) -> Result<Result<Sources, String>, String> {
        let initiator = Arc::clone(&self.hosts[self.host]);
        let attachment = self.attachment(takeover);
        let members: Vec<Option<Address>> = (0..self.array.members())
            .map(|member| (!self.array.lost.contains(&member)).then(|| self.address(member)))
            .collect();
        self.ask(self.host, "open", async move {
            let mut sources = Vec::new();
            for address in members {
                let Some(address) = address else {
                    sources.push(None);
                    continue;
                };
                let source =
                    initiator.open(&address).await.map_err(|error: InitiatorError| error.to_string())?;
                let device = source.attach().map_err(|error: DeviceError| error.to_string())?;
                let attached = device.offload().ok_or("nothing is announced")?.attach(&attachment).await;
                attached.result.map_err(|error| format!("Attach: {error}"))?;
                sources.push(Some(source));
            }
            Ok(sources)
        })
    }

    /// The devices on the host's shard.
    fn members(&self, sources: &Sources) -> Rc<Vec<Option<Member>>> {
        let _entered = self.world.enter(self.host);
        Rc::new(
            sources.iter().map(|source| source.as_ref().and_then(|source| source.attach().ok())).collect(),
        )
    }

    fn start_users(&mut self, sources: &Sources, count: usize) -> Rc<Cell<usize>> {
        let members = self.members(sources);
        let left = Rc::new(Cell::new(USERS));
        for _ in 0..USERS {
            let user = array::user(Rc::clone(&self.array), Rc::clone(&members), self.rng.fork(9), count);
            let there = Rc::clone(&left);
            self.world.spawn(self.host, "user", async move {
                user.await;
                there.set(there.get() - 1);
            });
        }
        let _entered = self.world.enter(self.host);
        drop(members);
        left
    }

    /// A host works, and something befalls it.
    fn life(&mut self, may_change: bool) -> Result<(), String> {
        let mut takeover = false;
        if may_change && self.rng.chance(1, 3) {
            takeover = true;
            self.change_host();
            self.epoch += 1;
        } else if self.rng.chance(1, 3) {
            self.epoch += 1;
        }
        let sources = self.open(takeover)?;
        self.array.settle();
        let left = self.start_users(&sources, 12);
        let blows = 1 + self.rng.index(3);
        let mut powerless = false;
        for _ in 0..blows {
            let before = self.rng.below(BLOW_STEPS);
            self.steps(before);
            powerless |= self.strike();
            if powerless {
                break;
            }
        }
        if !powerless {
            let before = self.rng.below(BLOW_STEPS);
            self.steps(before);
            self.mend();
            self.run_until("users", || left.get() == 0)?;
        }
        self.drop_on_host(sources);
        self.verdict()
    }

    /// The other host goes on, as another process than before.
    fn change_host(&mut self) {
        self.host = 1 - self.host;
        self.instances[self.host] += 1;
        let anew = process(self.host, self.world.shards(), self.instances[self.host]);
        let before = std::mem::replace(&mut self.hosts[self.host], anew);
        self.drop_on_host(before);
    }

    fn drop_on_host<T>(&self, what: T) {
        let _entered = self.world.enter(self.host);
        drop(what);
    }

    /// Whether the hosts have lost power.
    fn strike(&mut self) -> bool {
        let blow = self.rng.pick(Blow::ALL);
        let host = self.host;
        let of_host = self.network.live(|wire| wire.from == host);
        let of_peers = self.network.live(|wire| wire.from >= HOSTS);
        let server = Rc::clone(&self.servers[self.rng.index(self.servers.len())]);
        match blow {
            Blow::HostReset => {
                if let Some(wire) = of_host.get(self.rng.index(of_host.len().max(1))) {
                    wire.near.reset();
                }
            }
            Blow::PeerReset => {
                for wire in of_peers.iter().filter(|_| self.rng.chance(1, 2)) {
                    wire.near.reset();
                }
            }
            Blow::PeersHeld => {
                let way = self.rng.below(3);
                for wire in of_peers.iter().filter(|_| self.rng.chance(1, 2)) {
                    wire.hold(way != 0, way != 1);
                }
                let after = self.rng.below(BLOW_STEPS);
                self.steps(after);
                if self.rng.chance(1, 2) {
                    for wire in &of_peers {
                        wire.near.reset();
                    }
                }
                self.network.release();
            }
            Blow::HostHeld => {
                let way = self.rng.below(3);
                for wire in of_host.iter().filter(|wire| wire.to == server.number) {
                    wire.hold(way != 0, way != 1);
                }
            }
            Blow::Death => {
                server.stop(&mut self.world);
                let after = self.rng.below(BLOW_STEPS / 4);
                self.steps(after);
            }
            Blow::Hang => {
                let disk = &server.disks[0];
                disk.fault(&Fault::Hang);
                let after = self.rng.below(BLOW_STEPS);
                self.steps(after);
                if self.rng.chance(1, 2) {
                    self.places.iter().for_each(|(_, _, disk)| disk.fault(&Fault::Release));
                }
            }
            Blow::Power => {
                self.power_fails();
                return true;
            }
        }
        false
    }

    fn power_fails(&mut self) {
        for server in &self.servers {
            server.forget(&self.world);
        }
        self.network.forget();
        self.world.crash();
        let shards = self.world.shards();
        self.hosts = (0..HOSTS).map(|number| process(number, shards, self.instances[number])).collect();
        self.mend();
    }

    /// No blow falls: everything succeeds, and what is stored is right.
    fn calm_life(&mut self) -> Result<(), String> {
        self.mend();
        self.array.calm.set(false);
        self.epoch += 1;
        let sources = self.open(true)?;
        self.array.settle();
        self.array.calm.set(true);
        let before = self.array.committed.get();
        while !self.array.all_certain() || self.array.committed.get() < before + 10 {
            let left = self.start_users(&sources, 10);
            self.run_until("users", || left.get() == 0)?;
            self.verdict()?;
            if self.array.committed.get() == before {
                return Err("nothing is ever committed".to_owned());
            }
        }
        self.check_disks()?;
        self.check_slots(&sources)?;
        self.drop_on_host(sources);
        Ok(())
    }

    /// A serial server does one thing at a time, but for what comes from others; and only then.
    fn check_pipeline(&self) -> Result<(), String> {
        let all: Vec<_> = self.servers.iter().map(|server| server.statistics()).collect();
        if std::env::var_os("PINSTRIPE_SHOW").is_some() {
            println!(
                "{} + {}, {} servers: {} committed, {} reduced, {:?}",
                self.array.data,
                self.array.parities,
                self.servers.len(),
                self.array.committed.get(),
                self.array.reduced.get(),
                all[0]
            );
        }
        if all.iter().all(|statistics| statistics.stages_overlapped == 0)
            && self.pipeline == Pipeline::Overlapped
        {
            return Err("nothing overlaps".to_owned());
        }
        Ok(())
    }

    fn check_disks(&self) -> Result<(), String> {
        for (member, offset, expected, words) in self.array.contents() {
            let found = self.places[member].2.peek(offset, expected.len());
            if let Some(at) = found.iter().zip(&expected).position(|(found, expected)| found != expected) {
                return Err(format!("{words}: wrong at byte {at}, sector {}", at as u64 / SECTOR));
            }
        }
        Ok(())
    }

    /// No operation is left at any member.
    fn check_slots(&mut self, sources: &Sources) -> Result<(), String> {
        for source in sources.iter().flatten() {
            let source = Arc::clone(source);
            let query = self.ask(self.host, "query", async move { source.query().await })?;
            let query = query.map_err(|error| error.to_string())?;
            if query.held != 0 || !query.attached || query.epoch != self.epoch {
                return Err(format!("when all is done a server says {query:?}, epoch {}", self.epoch));
            }
        }
        Ok(())
    }

    /// All ends, and nothing is left.
    fn end(mut self) -> Result<(), String> {
        let stops: Vec<_> = self.servers.iter().map(|server| server.stop(&mut self.world)).collect();
        self.run_until("stopping", || stops.iter().all(|over| over.get()))?;
        self.network.forget();
        network::close();
        for server in &self.servers {
            server.forget(&self.world);
        }
        drop(std::mem::take(&mut self.hosts));
        self.world.run_until_idle(STEPS).map_err(|stuck| stuck.to_string())?;
        self.verdict()?;
        let left = self.world.leak_report();
        if left.is_clean() { Ok(()) } else { Err(format!("{left}\n{}", self.world.report())) }
    }
}

/// Of a request that must be refused for this reason.
fn expect_error<T: std::fmt::Debug>(
    what: &str,
    result: Result<T, DeviceError>,
    kinds: &[DeviceErrorKind],
) -> Result<(), String> {
    match result {
        Err(error) if kinds.contains(&error.kind) => Ok(()),
        other => Err(format!("{what}: {other:?}")),
    }
}
