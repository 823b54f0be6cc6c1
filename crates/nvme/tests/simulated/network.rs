//! The wires between hosts and servers. All are laid before the world runs, for a stream can't be made from
//! inside it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::rc::Rc;

use pinstripe_nvme::initiator::{Address, Connecting, Connector};
use pinstripe_runtime::{Signal, Stream, shard};
use pinstripe_sim::{Rng, SimStream, SimStreamConfig, World};

/// Shards of the host; those of the server follow.
pub const HOST_SHARDS: usize = 2;
/// Shards of the server.
pub const SERVER_SHARDS: usize = 2;
/// Wires of each shard of the host.
const WIRES: usize = 20;

thread_local! {
    static NETWORK: RefCell<Option<Rc<Network>>> = const { RefCell::new(None) };
}

/// A connection that was or will be.
pub struct Wire {
    pub host: Rc<SimStream>,
    pub server: Rc<SimStream>,
    server_shard: usize,
    dialled: Cell<bool>,
    over: Cell<bool>,
}

impl Wire {
    /// Nothing that either end sends, or one of them, arrives any more.
    pub fn hold(&self, from_host: bool, from_server: bool) {
        self.host.hold(from_host);
        self.server.hold(from_server);
    }

    /// What was held goes on.
    pub fn release(&self) {
        self.hold(false, false);
    }
}

pub struct Network {
    spare: Vec<RefCell<VecDeque<Rc<Wire>>>>,
    wires: Vec<Rc<Wire>>,
    closing: Cell<bool>,
    changed: Signal,
}

impl Network {
    /// Lays the wires. A connector of this thread finds them until the next network is laid.
    pub fn lay(world: &mut World, rng: &mut Rng) -> Rc<Self> {
        let config = SimStreamConfig {
            window: rng.pick(&[4096, 65536, 4 << 20]),
            fragment_max: rng.pick(&[1400, 16384, 1 << 20]),
            delay_ns_max: rng.pick(&[0, 20_000, 500_000]),
        };
        let mut wires = Vec::new();
        let lay = |host: usize| {
            let lay = |_| {
                let server_shard = HOST_SHARDS + rng.index(SERVER_SHARDS);
                let (host, server) = world.add_stream((host, server_shard), config.clone());
                let (dialled, over) = (Cell::new(false), Cell::new(false));
                let wire = Rc::new(Wire { host, server, server_shard, dialled, over });
                wires.push(Rc::clone(&wire));
                wire
            };
            RefCell::new((0..WIRES).map(lay).collect())
        };
        let spare = (0..HOST_SHARDS).map(lay).collect();
        let network = Rc::new(Self { spare, wires, closing: Cell::new(false), changed: Signal::default() });
        NETWORK.set(Some(Rc::clone(&network)));
        network
    }

    /// Has every wire served once it is dialled, by what `serve` gives for the shard.
    pub fn serve<F: Future<Output = ()> + 'static>(
        self: &Rc<Self>,
        world: &mut World,
        serve: impl Fn(usize, Rc<SimStream>) -> F,
    ) {
        for wire in &self.wires {
            let session = serve(wire.server_shard, Rc::clone(&wire.server));
            let (network, wire) = (Rc::clone(self), Rc::clone(wire));
            world.spawn(wire.server_shard, "session", async move {
                network.changed.wait_until(|| wire.dialled.get() || network.closing.get()).await;
                if wire.dialled.get() {
                    session.await;
                }
                wire.over.set(true);
            });
        }
    }

    /// Wires that were dialled and have a session that isn't over.
    pub fn live(&self) -> Vec<Rc<Wire>> {
        self.wires.iter().filter(|wire| wire.dialled.get() && !wire.over.get()).cloned().collect()
    }

    /// No wire will be dialled any more.
    pub fn close(&self) {
        for wire in &self.wires {
            wire.release();
        }
        self.closing.set(true);
        self.changed.notify();
        NETWORK.set(None);
    }
}

/// Dials the next wire of its shard.
pub struct Wires;

impl Connector for Wires {
    fn connect(&self, _: &Address) -> Connecting {
        Box::pin(async {
            let network = NETWORK.with_borrow(Clone::clone).ok_or(ErrorKind::NetworkUnreachable)?;
            let wire = network.spare[shard::index()].borrow_mut().pop_front();
            let wire = wire.ok_or(ErrorKind::ConnectionRefused)?;
            wire.dialled.set(true);
            network.changed.notify();
            let stream: Rc<dyn Stream> = Rc::clone(&wire.host) as Rc<dyn Stream>;
            Ok(stream)
        })
    }
}
