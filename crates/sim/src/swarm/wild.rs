//! What else may happen over the network: a client loses all that it has with a server while requests are on
//! their way, which arrive when it has long been there again; and a server's process stands still, and goes
//! on as if nothing had been.

use super::{Swarm, net::COMMAND_NS};

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
        self.summary.links_cut += 1;
        self.doom(disk);
        let Some(net) = &self.net else { return };
        self.note("client loses server", disk);
        let wires = net.network.between((net.client, 2 + disk));
        for wire in &wires {
            wire.near.lose();
        }
        self.hold(wires, true);
    }

    /// A server's process stands still for longer than the client waits, and goes on.
    fn server_stands_still(&mut self) {
        let Some((_, disk)) = self.victim() else { return };
        if self.is_down(disk) {
            return;
        }
        self.doom(disk);
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
