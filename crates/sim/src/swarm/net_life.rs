//! Lives of arrays with members over the network: the shipped initiator, the shipped target with the offload
//! extension, and simulated connections between them. [`super`] says what a life is; here is what else there
//! is. The nodes and their connections are in [`net`](super::net).
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

use std::{collections::BTreeSet, rc::Rc};

use pinstripe_engine::{
    array::Array,
    options::{ArrayOptions, OffloadMode, ReducerChoice},
};
use pinstripe_md::level::{Layout, Level, ParityLayout};
use pinstripe_nvme::{controller::Pipeline, initiator::Presence};
use pinstripe_runtime::shard;

use super::{
    Consistency, Setup, Swarm, Verdict,
    client::UserState,
    life::STEPS_MAX,
    net::{self, Net, NetSetup, Presences, Reach, SPARES},
};
use crate::{Rng, SimStreamConfig, checks::survey};

/// Most members, so that a run stays small.
const MEMBERS_MAX: usize = 6;
/// How long the array gives a member: longer than the client gives a server, so that the association ends
/// first.
const MEMBER_NS: u64 = 16_000_000_000;
/// How often the client looks whether a server is lost.
const LOOK_NS: u64 = 1_000_000_000;
/// Longer than any server holds an operation that is abandoned.
const SETTLED_NS: u64 = 15_000_000_000;

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

/// Shards of the world: of two clients, of all servers, and one for the time of accidents.
pub(super) fn shards(setup: &Setup) -> usize {
    2 * setup.shards + setup.members + SPARES + 1
}

/// Tells the array when a server is lost, as `pinstripe serve` does.
async fn watch(array: Array, presences: Presences, shop: Rc<UserState>) {
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
            let _ = array.lose(&net::name(number)).await;
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
        net.reach(number)
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
        let presences = net.presences().borrow();
        self.is_down(number) || presences.get(&number).is_some_and(Presence::is_lost)
    }

    /// A life begins.
    pub(crate) fn begin_net_life(&mut self) {
        let Some(net) = &mut self.net else { return };
        net.takes_over = false;
        let (home, presences) = (net.home(), Rc::clone(net.presences()));
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
            self.world.block_on(control, "settle", STEPS_MAX, pause)?;
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
        Ok(world.run_until(STEPS_MAX, |_| stops.iter().all(|over| over.get()))?)
    }

    /// All that the run has on shards is let go of.
    pub(crate) fn bury_net(&mut self) {
        self.bury_stale();
        if let Some(net) = self.net.take() {
            net.bury(&self.world);
        }
    }
}
