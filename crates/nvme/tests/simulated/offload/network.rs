//! Wires, each laid when its host or server dials: from hosts to servers, and between servers.

use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::rc::Rc;

use pinstripe_nvme::initiator::{Address, Connecting, Connector};
use pinstripe_runtime::{Signal, Stream, shard};
use pinstripe_sim::{Rng, SimStream, SimStreamConfig, World};

thread_local! {
    static NETWORK: RefCell<Option<Rc<Network>>> = const { RefCell::new(None) };
}

type Answer = Rc<RefCell<Option<Option<Rc<SimStream>>>>>;

struct Call {
    from: usize,
    to: String,
    answer: Answer,
}

/// A connection.
pub struct Wire {
    /// The shard that dialled.
    pub from: usize,
    /// The server.
    pub to: usize,
    pub near: Rc<SimStream>,
    pub far: Rc<SimStream>,
    pub over: Cell<bool>,
}

impl Wire {
    /// Nothing that is sent this way or that way arrives, until it goes on.
    pub fn hold(&self, there: bool, back: bool) {
        self.near.hold(there);
        self.far.hold(back);
    }
}

pub struct Network {
    calls: RefCell<Vec<Call>>,
    wires: RefCell<Vec<Rc<Wire>>>,
    changed: Signal,
    config: SimStreamConfig,
}

impl Network {
    pub fn new(rng: &mut Rng) -> Rc<Self> {
        let config = SimStreamConfig {
            window: rng.pick(&[16_384, 65_536, 4 << 20]),
            fragment_max: rng.pick(&[1400, 16_384, 1 << 20]),
            delay_ns_max: rng.pick(&[0, 20_000, 500_000]),
        };
        let (calls, wires) = (RefCell::default(), RefCell::default());
        let network = Rc::new(Self { calls, wires, changed: Signal::default(), config });
        NETWORK.set(Some(Rc::clone(&network)));
        network
    }

    /// Answers the calls. `server` gives the number and shard of a server that is there.
    pub fn connect<F: Future<Output = ()> + 'static>(
        &self,
        world: &mut World,
        server: &mut dyn FnMut(&str) -> Option<(usize, usize)>,
        serve: impl Fn((usize, usize), Rc<SimStream>) -> F,
    ) -> bool {
        let calls = self.calls.take();
        let any = !calls.is_empty();
        for call in calls {
            let stream = server(&call.to).map(|(to, shard)| {
                let (near, far) = world.add_stream((call.from, shard), self.config.clone());
                let (from, over) = (call.from, Cell::new(false));
                let wire = Rc::new(Wire { from, to, near: Rc::clone(&near), far: Rc::clone(&far), over });
                self.wires.borrow_mut().push(Rc::clone(&wire));
                let session = serve((to, shard), far);
                world.spawn(shard, "session", async move {
                    session.await;
                    wire.over.set(true);
                });
                near
            });
            *call.answer.borrow_mut() = Some(stream);
        }
        if any {
            self.changed.notify();
        }
        any
    }

    /// Connections that aren't over.
    pub fn live(&self, which: impl Fn(&Wire) -> bool) -> Vec<Rc<Wire>> {
        self.wires.borrow_mut().retain(|wire| !wire.over.get());
        self.wires.borrow().iter().filter(|wire| which(wire)).cloned().collect()
    }

    /// What was held goes on.
    pub fn release(&self) {
        for wire in self.wires.borrow().iter() {
            wire.hold(false, false);
        }
    }

    /// All hosts and servers have lost power.
    pub fn forget(&self) {
        self.wires.take();
        self.calls.take();
    }
}

/// Forgets the network of this thread.
pub fn close() {
    NETWORK.set(None);
}

pub struct Dialler;

impl Connector for Dialler {
    fn connect(&self, address: &Address) -> Connecting {
        let to = address.host.clone();
        Box::pin(async move {
            let network = NETWORK.with_borrow(Clone::clone).ok_or(ErrorKind::NetworkUnreachable)?;
            let answer = Answer::default();
            let call = Call { from: shard::index(), to, answer: Rc::clone(&answer) };
            network.calls.borrow_mut().push(call);
            let stream = network.changed.wait_for(|| answer.borrow_mut().take()).await;
            let stream: Rc<dyn Stream> = stream.ok_or(ErrorKind::ConnectionRefused)?;
            Ok(stream)
        })
    }
}
