//! What happens to clients, servers and the network while the array is served.

use std::rc::Rc;

use pinstripe_runtime::shard;

use super::{
    Swarm,
    net::{COMMAND_NS, Node, Wire},
};
use crate::Event;

/// A break too short for a node to have to notice.
const BLINK_NS: u64 = 300_000_000;
/// How late at most comes what an association carried that the client has lost: before the server gives it
/// up.
const LATE_NS: u64 = 5_000_000_000;
/// How long a server has for what came late.
const WORK_NS: u64 = 100_000_000;
/// Longer than a client bears.
const LONG_NS: u64 = 2 * COMMAND_NS;

impl Swarm {
    /// One event, or none.
    pub(crate) fn net_event(&mut self) {
        let Some(setup) = self.setup.net.clone() else { return };
        if !self.rng.chance(setup.liveliness, 8) {
            return;
        }
        if setup.wild && self.rng.chance(1, 2) {
            return self.wild_event();
        }
        match self.rng.below(16) {
            0 | 1 if self.setup.failures => self.server_dies(),
            2 if self.setup.failures => self.client_is_cut_off(),
            3 if self.setup.failures => self.association_is_reset(),
            4 | 5 => self.peers_are_reset(),
            6..=8 => self.peers_are_parted(),
            9 => self.client_blinks(),
            10..=12 => self.give_back(),
            13 => self.begin_replacement(),
            _ => {}
        }
    }

    pub(super) fn note(&self, what: &'static str, server: usize) {
        self.world.trace().record(Event::Note { what, value: server as u64 });
    }

    fn some_server(&mut self) -> usize {
        self.rng.index(self.disks.len())
    }

    /// A server dies, with what its disk's cache holds.
    fn server_dies(&mut self) {
        let Some((_, disk)) = self.victim() else { return };
        if self.is_down(disk) {
            return;
        }
        self.summary.failures += 1;
        self.summary.servers_lost += 1;
        self.doomed.insert(disk);
        let silent = self.rng.chance(1, 4);
        self.note("server dies", disk);
        self.kill_server(disk, silent);
        let after = self.rng.pick(&[1_000_000, 50_000_000, 3_000_000_000]);
        let at = self.world.now() + self.rng.below(after);
        if let Some(net) = self.net.as_mut().filter(|_| self.rng.chance(3, 4)) {
            net.revivals.push((at, disk));
        }
    }

    fn kill_server(&mut self, number: usize, silent: bool) {
        let Some(net) = &mut self.net else { return };
        net.strike(number);
        net.emptied.insert(number);
        let server = &net.servers[number];
        server.forget(&self.world);
        let shard = server.port.shard;
        let disk = std::slice::from_ref(&self.disks[number]);
        self.world.end_shards(&(shard..shard + 1), disk, true, silent);
    }

    /// A server loses the client, which is one member less.
    fn association_is_reset(&mut self) {
        let Some((_, disk)) = self.victim() else { return };
        self.summary.links_cut += 1;
        self.doom(disk);
        let Some(net) = &self.net else { return };
        self.note("association is reset", disk);
        let mut wires = net.network.between((net.client, 2 + disk));
        if wires.is_empty() {
            return;
        }
        let reset = wires.remove(self.rng.index(wires.len()));
        if net.hasty && self.rng.chance(1, 2) {
            // What the other connections carry arrives when the client has long been there again over new
            // ones.
            self.hold(wires, false);
        }
        reset.near.reset();
    }

    /// A member is to lose its server, or the client is to think so.
    pub(super) fn doom(&mut self, disk: usize) {
        self.summary.failures += 1;
        self.doomed.insert(disk);
        if let Some(net) = &self.net {
            net.strike(disk);
        }
    }

    /// What connections carry arrives late; with `ends` they are reset when the server has had time for it.
    pub(super) fn hold(&mut self, wires: Vec<Rc<Wire>>, ends: bool) {
        let Some(net) = &self.net else { return };
        let (control, time) = (net.control(), self.rng.below(LATE_NS));
        for wire in &wires {
            wire.hold(true);
        }
        self.world.spawn(control, "late", async move {
            shard::sleep(time).await;
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

    /// Client and server don't hear each other for longer than they wait.
    fn client_is_cut_off(&mut self) {
        let Some((_, disk)) = self.victim() else { return };
        self.summary.partitions += 1;
        self.doom(disk);
        let Some(net) = &self.net else { return };
        let pair = (net.client, 2 + disk);
        self.note("client is cut off from", disk);
        self.part(pair, LONG_NS);
    }

    /// The same, too short for a node to have to notice.
    fn client_blinks(&mut self) {
        let server = self.some_server();
        let Some(net) = &self.net else { return };
        let pair = (net.client, 2 + server);
        self.summary.partitions += 1;
        let time = self.rng.below(BLINK_NS);
        self.part(pair, time);
    }

    fn two_servers(&mut self) -> Option<(Node, Node)> {
        let (one, other) = (self.some_server(), self.some_server());
        (one != other).then_some((2 + one, 2 + other))
    }

    fn peers_are_reset(&mut self) {
        let Some(pair) = self.two_servers() else { return };
        let Some(net) = &self.net else { return };
        self.summary.links_cut += 1;
        net.network.between(pair).iter().for_each(|wire| wire.near.reset());
    }

    fn peers_are_parted(&mut self) {
        let Some(pair) = self.two_servers() else { return };
        self.summary.partitions += 1;
        let time = self.rng.pick(&[1_000_000, 100_000_000, LONG_NS]);
        let time = 1 + self.rng.below(time);
        self.part(pair, time);
    }

    /// Two don't hear each other for so long.
    pub(super) fn part(&mut self, pair: (Node, Node), nanoseconds: u64) {
        let Some(net) = &self.net else { return };
        let (network, control) = (Rc::clone(&net.network), net.control());
        network.part(pair);
        self.world.spawn(control, "partition", async move {
            shard::sleep(nanoseconds).await;
            network.rejoin(pair);
        });
    }

    /// Between some little goes through in this life.
    pub(super) fn draw_bandwidth(&mut self) {
        let nodes = 2 + self.disks.len();
        for pair in (0..nodes).flat_map(|one| (one + 1..nodes).map(move |other| (one, other))) {
            let rate = if self.rng.chance(1, 6) { self.rng.range(4_000_000..40_000_000) } else { 0 };
            let Some(net) = &self.net else { return };
            net.network.throttle(pair, rate);
        }
    }
}
