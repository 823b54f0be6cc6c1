//! What else may happen over the network: a client loses all that it has with a server while requests are on
//! their way, which arrive when it has long been there again; and a server's process stands still, and goes
//! on as if nothing had been.

use pinstripe_runtime::shard;

use super::{COMMAND_NS, Swarm, network::Node};

/// How late at most comes what was on its way: before the server gives the association up.
const LATE_NS: u64 = 5_000_000_000;
/// How long a server has for what came late.
const WORK_NS: u64 = 100_000_000;
/// Shorter than anything that waits for a server bears.
const SHORT_NS: u64 = 500_000_000;

impl Swarm {
    /// One event of this kind.
    pub(super) fn wild_event(&mut self) {
        match self.rng.below(8) {
            0..=2 if self.setup.failures => self.client_loses_server(),
            3..=5 if self.setup.failures => self.server_stands_still(),
            6 => self.server_pauses(),
            7 => self.give_back(),
            _ => {}
        }
    }

    /// A client loses every connection with a server, which hears nothing of that, and gets late what had
    /// been sent.
    fn client_loses_server(&mut self) {
        let Some((_, disk)) = self.victim() else { return };
        self.summary.failures += 1;
        self.summary.links_cut += 1;
        self.doomed.insert(disk);
        let Some(net) = &self.net else { return };
        net.strike(disk);
        self.note("client loses server", disk);
        let pair: (Node, Node) = (net.client, 2 + disk);
        let (wires, control) = (net.network.between(pair), net.control());
        let time = self.rng.below(LATE_NS);
        for wire in &wires {
            wire.near.lose();
            wire.hold(true);
        }
        self.world.spawn(control, "late", async move {
            shard::sleep(time).await;
            for wire in &wires {
                wire.hold(false);
            }
            shard::sleep(WORK_NS).await;
            for wire in &wires {
                wire.near.reset();
            }
        });
    }

    /// A server's process stands still for longer than the client waits, and goes on.
    fn server_stands_still(&mut self) {
        let Some((_, disk)) = self.victim() else { return };
        if self.is_down(disk) {
            return;
        }
        self.summary.failures += 1;
        self.doomed.insert(disk);
        if let Some(net) = &self.net {
            net.strike(disk);
        }
        let time = COMMAND_NS / 2 + self.rng.below(3 * COMMAND_NS);
        self.stall_server(disk, time);
    }

    /// The same, for less than anything waits.
    fn server_pauses(&mut self) {
        let disk = self.rng.index(self.disks.len());
        let time = self.rng.below(SHORT_NS);
        self.stall_server(disk, time);
    }

    fn stall_server(&mut self, disk: usize, nanoseconds: u64) {
        self.note("server stands still", disk);
        let until = self.world.now() + nanoseconds;
        let Some(net) = &mut self.net else { return };
        self.summary.stalls += 1;
        net.standing_until = until.max(net.standing_until);
        let shard = net.servers[disk].port.shard;
        self.world.stall(shard..shard + 1, nanoseconds);
    }
}
