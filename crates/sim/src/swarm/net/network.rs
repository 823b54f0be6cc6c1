//! Wires between two clients and the servers, which are laid when a node dials, and what is wrong with them.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet, VecDeque},
    io::ErrorKind,
    rc::Rc,
};

use pinstripe_nvme::initiator::{Address, Connecting, Connector};
use pinstripe_runtime::{Signal, Stream, shard};

use crate::{Rng, SimStream, SimStreamConfig, Wiring};

thread_local! {
    /// A connector may cross threads, a world may not.
    static NETWORK: RefCell<Option<Rc<Network>>> = const { RefCell::new(None) };
}

/// A client or a server.
pub(crate) type Node = usize;

/// A connection.
pub(crate) struct Wire {
    /// The node that dialled, and the one that it dialled.
    pub(crate) nodes: (Node, Node),
    pub(crate) near: Rc<SimStream>,
    far: Rc<SimStream>,
    over: Cell<bool>,
}

impl Wire {
    /// Whether it is between these two.
    fn joins(&self, pair: (Node, Node)) -> bool {
        ordered(self.nodes) == ordered(pair)
    }

    pub(crate) fn hold(&self, held: bool) {
        self.near.hold(held);
        self.far.hold(held);
    }
}

fn ordered((a, b): (Node, Node)) -> (Node, Node) {
    (a.min(b), a.max(b))
}

/// Where a server listens.
#[derive(Default)]
pub(crate) struct Port {
    pub(crate) shard: usize,
    pub(crate) node: Node,
    inbox: RefCell<VecDeque<Rc<Wire>>>,
    open: Cell<bool>,
    changed: Signal,
}

impl Port {
    /// On this shard, closed.
    pub(crate) fn new(shard: usize, node: Node) -> Rc<Self> {
        Rc::new(Self { shard, node, ..Self::default() })
    }

    /// The next connection; `None` when it is closed.
    pub(crate) async fn accept(&self) -> Option<(Rc<SimStream>, Rc<Wire>)> {
        let wire = self
            .changed
            .wait_for(|| {
                let next = self.inbox.borrow_mut().pop_front();
                (next.is_some() || !self.open.get()).then_some(next)
            })
            .await?;
        Some((Rc::clone(&wire.far), wire))
    }

    pub(crate) fn set_open(&self, open: bool) {
        self.open.set(open);
        self.inbox.take();
        self.changed.notify();
    }
}

/// See the module.
pub(crate) struct Network {
    wiring: Wiring,
    ports: RefCell<BTreeMap<String, Rc<Port>>>,
    wires: RefCell<Vec<Rc<Wire>>>,
    parted: RefCell<BTreeSet<(Node, Node)>>,
    /// Bytes per second between two, where that is little.
    slow: RefCell<BTreeMap<(Node, Node), u64>>,
    /// Shards of each client; those of the servers follow, one each.
    client_shards: usize,
    config: SimStreamConfig,
    rng: RefCell<Rng>,
    changed: Signal,
}

impl Network {
    /// Of this thread, until the next one.
    pub(crate) fn new(wiring: Wiring, client_shards: usize, config: SimStreamConfig, rng: Rng) -> Rc<Self> {
        let network = Rc::new(Self {
            wiring,
            ports: RefCell::default(),
            wires: RefCell::default(),
            parted: RefCell::default(),
            slow: RefCell::default(),
            client_shards,
            config,
            rng: RefCell::new(rng),
            changed: Signal::default(),
        });
        NETWORK.set(Some(Rc::clone(&network)));
        network
    }

    /// A server is to be reached by this name.
    pub(crate) fn publish(&self, name: String, port: &Rc<Port>) {
        self.ports.borrow_mut().insert(name, Rc::clone(port));
    }

    fn node_of(&self, shard: usize) -> Node {
        let clients = 2 * self.client_shards;
        if shard < clients { shard / self.client_shards } else { 2 + shard - clients }
    }

    /// Connections that aren't over.
    pub(crate) fn live(&self, which: impl Fn(&Wire) -> bool) -> Vec<Rc<Wire>> {
        self.wires.borrow_mut().retain(|wire| !wire.over.get());
        self.wires.borrow().iter().filter(|wire| which(wire)).cloned().collect()
    }

    /// Connections between two.
    pub(crate) fn between(&self, pair: (Node, Node)) -> Vec<Rc<Wire>> {
        self.live(|wire| wire.joins(pair))
    }

    /// These two don't hear each other any more.
    pub(crate) fn part(&self, pair: (Node, Node)) {
        self.parted.borrow_mut().insert(ordered(pair));
        self.between(pair).iter().for_each(|wire| wire.hold(true));
    }

    /// They do again; what was on its way goes on.
    pub(crate) fn rejoin(&self, pair: (Node, Node)) {
        if self.parted.borrow_mut().remove(&ordered(pair)) {
            self.between(pair).iter().for_each(|wire| wire.hold(false));
            self.changed.notify();
        }
    }

    /// All nodes hear each other.
    pub(crate) fn rejoin_all(&self) {
        let parted = self.parted.borrow().clone();
        for pair in parted {
            self.rejoin(pair);
        }
    }

    /// Between these two little goes through from now on; 0 for as much as there is.
    pub(crate) fn throttle(&self, pair: (Node, Node), bytes_per_second: u64) {
        self.slow.borrow_mut().insert(ordered(pair), bytes_per_second);
        self.between(pair).iter().for_each(|wire| wire.near.throttle(bytes_per_second));
    }

    /// All nodes have lost power.
    pub(crate) fn forget(&self) {
        self.wires.take();
        self.parted.take();
    }

    async fn connect(&self, to: &str) -> Result<Rc<dyn Stream>, ErrorKind> {
        let port = self.ports.borrow().get(to).cloned().ok_or(ErrorKind::HostUnreachable)?;
        let here = shard::index();
        let nodes = (self.node_of(here), port.node);
        // Connections come up one sooner than the other.
        let way = self.rng.borrow_mut().below(self.config.delay_ns_max + 1);
        shard::sleep(way).await;
        self.changed.wait_until(|| !self.parted.borrow().contains(&ordered(nodes))).await;
        if !port.open.get() {
            return Err(ErrorKind::ConnectionRefused);
        }
        let (near, far) = self.wiring.lay((here, port.shard), self.config.clone());
        near.throttle(self.slow.borrow().get(&ordered(nodes)).copied().unwrap_or(0));
        let wire = Rc::new(Wire { nodes, near: Rc::clone(&near), far, over: Cell::new(false) });
        self.wires.borrow_mut().push(Rc::clone(&wire));
        port.inbox.borrow_mut().push_back(wire);
        port.changed.notify();
        Ok(near)
    }
}

impl Wire {
    /// The server has done with it.
    pub(crate) fn end(&self) {
        self.over.set(true);
    }
}

/// Forgets the network of this thread.
pub(crate) fn close() {
    NETWORK.set(None);
}

/// Dials in the network of the thread.
pub(crate) struct Dialler;

impl Connector for Dialler {
    fn connect(&self, address: &Address) -> Connecting {
        let to = address.host.clone();
        Box::pin(async move {
            let network = NETWORK.with_borrow(Clone::clone).ok_or(ErrorKind::NetworkUnreachable)?;
            Ok(network.connect(&to).await?)
        })
    }
}
