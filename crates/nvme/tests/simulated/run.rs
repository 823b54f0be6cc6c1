//! One run: a server, a host that comes back again and again, and what befalls them.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use pinstripe_block::budget::{BUDGET_BYTES, Budget};
use pinstripe_nvme::controller::{DeviceService, NamespaceConfig, Subsystem, SubsystemConfig, Target};
use pinstripe_nvme::initiator::{Address, Initiator, InitiatorError, NvmeSource, Options};
use pinstripe_runtime::{DeviceSource, Stream, shard};
use pinstripe_sim::{Fault, Rng, SECTOR, SimDisk, SimDiskConfig, World, WorldConfig};

use crate::foreign::{self, Store};
use crate::intruder::{self, HOST, HOST_ID};
use crate::network::{HOST_SHARDS, Network, SERVER_SHARDS, Wire, Wires};
use crate::users::{SECTORS, UserState, read, user};

const NQN: &str = "nqn.2026-01.com.example:simulated";
/// Associations of a run, but for the last, which nothing befalls.
const LIVES: usize = 4;
/// A disk hangs no longer than this while nothing else befalls an association.
const HANG_NS: u64 = 10_000_000_000;
/// Steps that something may take. A stall shows earlier, as a deadlock.
const STEPS: u64 = 3_000_000;
/// Steps of a life among which a blow falls.
const BLOW_STEPS: u64 = 4_000;
/// Times that the host tries to come back, with a second between.
const TRIES: usize = 60;

/// Which server serves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Server {
    Ours,
    /// See [`foreign`].
    Foreign,
}

/// What may befall the connections, or the server's device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Blow {
    /// A connection is reset.
    Reset,
    /// The server's side of a connection closes, as when its process dies.
    Close,
    /// What one end of a connection sends, or both, doesn't arrive.
    Silence,
    /// The same of all connections.
    Partition,
    /// Nothing arrives at the server any more, and one connection closes at the host.
    PartitionAndClose,
    /// The device hangs.
    Hang,
    /// The device hangs, and a connection is reset.
    HangAndReset,
    /// Bits turn over on the way.
    Damage,
}

impl Blow {
    const ALL: &[Self] = &[
        Self::Reset,
        Self::Close,
        Self::Silence,
        Self::Partition,
        Self::PartitionAndClose,
        Self::Hang,
        Self::HangAndReset,
        Self::Damage,
    ];
}

struct Run {
    world: World,
    rng: Rng,
    disk: SimDisk,
    shop: Rc<UserState>,
    address: Address,
    server: Server,
    /// Host and server authenticate, and an intruder tries to get in.
    secured: bool,
    /// Memory that connections may have the server hold.
    budget_bytes: usize,
    store: Rc<Store>,
    /// Half of all blows are of this kind.
    favourite: Blow,
    /// Users do small things only.
    small: bool,
    machines: Machines,
    /// Wires that hold back what an earlier life sent.
    held: Vec<Rc<Wire>>,
}

/// What a loss of power takes along.
struct Machines {
    network: Rc<Network>,
    initiator: Arc<Initiator>,
    targets: Vec<Target<DeviceService>>,
    /// Memory of all connections of the server.
    budget: Arc<Budget>,
}

/// Runs a seed; what is wrong, in words.
pub fn run(seed: u64, server: Server) -> Result<(), String> {
    let mut world = World::new(WorldConfig::new(seed, HOST_SHARDS + SERVER_SHARDS));
    let mut rng = world.rng(1);
    let zeroed =
        SimDiskConfig { discard_zeroes: true, ..SimDiskConfig::drawn(&mut rng, "disk", SECTORS * SECTOR) };
    let disk = world.add_disk(zeroed);
    let favourite = rng.pick(Blow::ALL);
    let digests = match favourite {
        Blow::Damage => "&hdgst=1&ddgst=1",
        _ => rng.pick(&["", "&hdgst=1", "&ddgst=1", "&hdgst=1&ddgst=1"]),
    };
    let store = Store::new();
    let secured = server == Server::Ours && seed % 4 == 1;
    // Two in five are so small that requests wait for each other's memory.
    let budget_bytes = match seed % 5 {
        3 => 256 << 10,
        4 => 8 << 20,
        _ => BUDGET_BYTES,
    };
    let machines = Machines::start(&mut world, &mut rng, &disk, server, &store, (secured, budget_bytes));
    let mut run = Run {
        world,
        disk,
        shop: UserState::new(),
        address: format!("nvme-tcp://server:4420/{NQN}?nsid=1{digests}").parse().unwrap(),
        server,
        secured,
        budget_bytes,
        store,
        favourite,
        small: rng.chance(1, 3),
        rng,
        machines,
        held: Vec::new(),
    };
    for _ in 0..LIVES {
        run.life(true)?;
        if server == Server::Ours && run.rng.chance(1, 6) {
            run.power_fails();
        }
    }
    run.life(false)?;
    run.end()
}

impl Machines {
    fn start(
        world: &mut World,
        rng: &mut Rng,
        disk: &SimDisk,
        server: Server,
        store: &Rc<Store>,
        (secured, budget_bytes): (bool, usize),
    ) -> Self {
        let network = Network::lay(world, rng);
        let config = SubsystemConfig {
            nqn: NQN.to_owned(),
            serial: "0123456789abcdef".to_owned(),
            namespaces: vec![NamespaceConfig {
                uuid: [7; 16],
                size_bytes: SECTORS * SECTOR,
                block_size: 512,
                preferred_block: 4096,
                read_only: false,
            }],
            queues_max: 4,
            addresses: Vec::new(),
        };
        let keys = secured.then(|| intruder::keys(rng));
        let subsystem = Subsystem::with(config, keys, None).unwrap();
        let budget = Arc::new(Budget::new(budget_bytes));
        let target = |shard| {
            let _entered = world.enter(shard);
            let services = vec![DeviceService::new(disk.attach(), false)];
            Target::with_budget(Arc::clone(&subsystem), services, Arc::clone(&budget))
        };
        let targets: Vec<_> = (HOST_SHARDS..HOST_SHARDS + SERVER_SHARDS).map(target).collect();
        let seeds = RefCell::new(rng.fork(3));
        match server {
            Server::Ours => network.serve(world, |shard, stream| {
                let target = targets[shard - HOST_SHARDS].clone();
                async move {
                    target.serve(stream).await;
                }
            }),
            Server::Foreign => network.serve(world, |_, stream| {
                foreign::serve(stream, Rc::clone(store), seeds.borrow_mut().fork(1))
            }),
        }
        let queues = u16::try_from(HOST_SHARDS).unwrap();
        let authentication = secured.then(|| Arc::new(intruder::keys(rng)));
        let options = Options { authentication, ..Options::new(HOST.to_owned(), HOST_ID, queues) };
        Self { network, initiator: Initiator::new(options, Arc::new(Wires)), targets, budget }
    }
}

impl Run {
    fn verdict(&self) -> Result<(), String> {
        let violations = self.shop.violations.borrow();
        if violations.is_empty() { Ok(()) } else { Err(violations.join("\n")) }
    }

    fn steps(&mut self, count: u64) {
        for _ in 0..count {
            self.world.step();
        }
    }

    /// An association, its users, and a blow.
    fn life(&mut self, dangerous: bool) -> Result<(), String> {
        let old = std::mem::take(&mut self.held);
        let source = self.open(dangerous)?;
        self.shop.settle();
        let users = 2 + self.rng.index(5);
        self.shop.users.set(users + usize::from(self.secured));
        if self.secured {
            let (shop, address, rng) = (Rc::clone(&self.shop), self.address.clone(), self.rng.fork(11));
            self.world.spawn(self.rng.index(HOST_SHARDS), "intruder", async move {
                if let Some(words) = intruder::intrude(address, rng).await {
                    shop.complain(words);
                }
                shop.users.set(shop.users.get() - 1);
            });
        }
        for _ in 0..users {
            let user = user(Rc::clone(&self.shop), Arc::clone(&source), self.rng.fork(9), self.small);
            self.world.spawn(self.rng.index(HOST_SHARDS), "user", user);
        }
        let released_first = self.rng.chance(1, 2);
        // Commands wait for what earlier associations write: too long, if the disk hangs for so long.
        let within = if dangerous { u64::MAX } else { HANG_NS };
        if released_first {
            self.release_old(&old, within);
        }
        if dangerous {
            let before = self.rng.below(BLOW_STEPS);
            self.steps(before);
            self.strike();
        }
        if !released_first {
            self.release_old(&old, within);
        }
        let shop = Rc::clone(&self.shop);
        self.world.run_until(STEPS, |_| shop.users.get() == 0).map_err(|stuck| stuck.to_string())?;
        if !dangerous {
            let (shop, device) = (Rc::clone(&self.shop), Arc::clone(&source));
            let read_all = async move {
                let Ok(device) = device.attach() else { return false };
                read(&shop, &*device, 0..SECTORS).await
            };
            let whole =
                self.world.block_on(0, "read all", STEPS, read_all).map_err(|stuck| stuck.to_string())?;
            if !whole {
                return Err("the association was lost although nothing befell it".to_owned());
            }
        }
        drop(source);
        self.verdict()
    }

    /// What was held when this life began goes on, within so many nanoseconds.
    fn release_old(&mut self, old: &[Rc<Wire>], within: u64) {
        let most = self.rng.pick(&[10, 100, 1_000]);
        let before = self.rng.below(most);
        let end = self.world.now().saturating_add(within);
        for _ in 0..before {
            if self.world.now() >= end {
                break;
            }
            self.world.step();
        }
        for wire in old {
            wire.release();
        }
        self.disk.fault(&Fault::Release);
    }

    /// The host comes back.
    fn open(&mut self, dangerous: bool) -> Result<Arc<NvmeSource>, String> {
        type Opened = Rc<RefCell<Option<Result<Arc<NvmeSource>, InitiatorError>>>>;
        let mut blow = dangerous && self.rng.chance(1, 4);
        let mut last = String::new();
        for _ in 0..TRIES {
            let opened = Opened::default();
            let (there, address) = (Rc::clone(&opened), self.address.clone());
            let initiator = Arc::clone(&self.machines.initiator);
            self.world.spawn(0, "open", async move {
                let source = initiator.open(&address).await;
                *there.borrow_mut() = Some(source);
            });
            if std::mem::take(&mut blow) {
                let before = self.rng.below(BLOW_STEPS / 4);
                self.steps(before);
                self.strike();
            }
            self.world
                .run_until(STEPS, |_| opened.borrow().is_some())
                .map_err(|stuck| format!("opening: {stuck}"))?;
            match opened.take() {
                Some(Ok(source)) => return Ok(source),
                Some(Err(error)) => last = error.to_string(),
                None => {}
            }
            self.disk.fault(&Fault::Release);
            let pause = async { shard::sleep(1_000_000_000).await };
            self.world.block_on(0, "pause", STEPS, pause).map_err(|stuck| stuck.to_string())?;
        }
        Err(format!("the host can't come back: {last}"))
    }

    /// Something befalls the connections, or the server's device.
    fn strike(&mut self) {
        let wires = self.machines.network.live();
        if wires.is_empty() {
            return;
        }
        let one = Rc::clone(&wires[self.rng.index(wires.len())]);
        let blow = if self.rng.chance(1, 2) { self.favourite } else { self.rng.pick(Blow::ALL) };
        match blow {
            Blow::Reset => one.host.reset(),
            Blow::Close => one.server.shutdown(),
            Blow::Silence => self.hold_some_way(&[one]),
            Blow::Partition => self.hold_some_way(&wires),
            Blow::PartitionAndClose => {
                self.hold(&wires, true, false);
                let before = self.rng.below(300);
                self.steps(before);
                one.server.shutdown();
            }
            Blow::Hang => self.disk.fault(&Fault::Hang),
            Blow::HangAndReset => {
                self.disk.fault(&Fault::Hang);
                one.host.reset();
            }
            Blow::Damage => self.damage(&wires),
        }
    }

    fn hold_some_way(&mut self, wires: &[Rc<Wire>]) {
        let way = self.rng.below(3);
        self.hold(wires, way != 0, way != 1);
    }

    fn hold(&mut self, wires: &[Rc<Wire>], from_host: bool, from_server: bool) {
        for wire in wires {
            wire.hold(from_host, from_server);
            self.held.push(Rc::clone(wire));
        }
    }

    /// Bits turn over, where there are digests to find it.
    fn damage(&mut self, wires: &[Rc<Wire>]) {
        /// Bytes of ICReq and ICResp, which have no digest.
        const GREETING: u64 = 128;
        if !(self.address.header_digests && self.address.data_digests) {
            return;
        }
        for wire in wires {
            for end in [&wire.host, &wire.server] {
                let mut position = end.bytes_sent().max(GREETING);
                for _ in 0..self.rng.below(4) {
                    position += self.rng.below(if self.small { 2_000 } else { 20_000 });
                    end.damage(position);
                }
            }
        }
    }

    /// Host and server lose power.
    fn power_fails(&mut self) {
        let before = self.rng.below(BLOW_STEPS);
        self.steps(before);
        self.world.crash();
        self.shop.settle();
        self.shop.ledger.borrow_mut().crash();
        self.disk.fault(&Fault::Release);
        self.held.clear();
        self.machines = Machines::start(
            &mut self.world,
            &mut self.rng,
            &self.disk,
            self.server,
            &self.store,
            (self.secured, self.budget_bytes),
        );
    }

    /// All ends, and nothing is left.
    fn end(mut self) -> Result<(), String> {
        self.machines.network.close();
        for (index, target) in self.machines.targets.iter().enumerate() {
            let target = target.clone();
            self.world.spawn(HOST_SHARDS + index, "stop", async move { target.stop().await });
        }
        let budget = Arc::clone(&self.machines.budget);
        drop(self.machines);
        self.world.run_until_idle(STEPS).map_err(|stuck| stuck.to_string())?;
        if budget.held() > 0 {
            return Err(format!("{} bytes of the server's budget never came back", budget.held()));
        }
        let left = self.world.leak_report();
        if left.is_clean() { Ok(()) } else { Err(format!("{left}\n{}", self.world.report())) }
    }
}
