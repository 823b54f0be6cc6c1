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

use pinstripe_engine::options::{OffloadMode, ReducerChoice};
use pinstripe_md::level::{Layout, Level, ParityLayout};
use pinstripe_nvme::controller::Pipeline;

use super::{
    Consistency, Setup,
    net::{NetSetup, SPARES},
};
use crate::{Rng, SimStreamConfig};

/// Most members, so that a run stays small.
const MEMBERS_MAX: usize = 6;
/// How long the array gives a member: longer than the client gives a server, so that the association ends
/// first.
const MEMBER_NS: u64 = 16_000_000_000;

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
