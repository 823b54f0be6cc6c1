//! A swarm: each seed is a run of the whole engine on simulated disks, with its own array, users and
//! accidents.
//!
//! ```text
//!   draw ─> create ─> ┌ assemble ─> users, failures, rebuilds, checks, bitmap changes ─┬─> crash or kill ─> look at the disks ┐
//!                     └────────────────────────────────────────────────────────────────│──────────────────────────────────────┘
//!                                                        in peace: heal, rebuild, read all, check parity, stop, look at the disks
//! ```
//!
//! Accidents stay within what the level can bear (the fault atlas is the sum of [`Swarm::broken`] and the
//! latent errors, which are healed before the next member goes), so whatever goes wrong is a bug. One thing
//! is legal besides success: a dirty and degraded array is refused (C19). Then the run ends there, or goes on
//! by force; then nothing is promised of lost sectors in rows that were being written, and only of those.

mod atlas;
mod client;
mod crash_states;
mod doubts;
mod draw;
mod events;
mod forced_scenes;
mod front;
mod journal_loss;
mod killers;
mod lies;
mod life;
mod marks;
mod membership;
mod nbd;
mod net;
mod net_events;
mod net_life;
mod races;
mod repair_scenes;
mod rival;
mod scenes;
mod takeover;
mod vast;
mod wide;
mod wild;

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use pinstripe_engine::{array::Array, mutants::Mutant};

pub use crash_states::{Depth, States};
pub use draw::{Consistency, Setup};
pub use forced_scenes::EXPORT_SCENES;
pub use front::NbdSetup;
pub use killers::{EXPLORERS, EXPORT_KILLERS, KILLERS, NET_KILLERS, NVME_KILLERS, RUNTIME_KILLERS};
pub use net::NetSetup;
pub use races::Races;
pub use scenes::SCENES;

pub use crate::verdict::Verdict;

use crate::{Rng, SimDisk, World, WorldConfig, swarm::client::UserState};
use crash_states::{Explorer, Phase};

/// A rule that is broken on purpose, and in which crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// In the engine.
    Engine(Mutant),
    /// In the exports.
    Export(pinstripe_block::mutants::Mutant),
    /// In NVMe/TCP.
    Nvme(pinstripe_nvme::mutants::Mutant),
    /// In the runtime.
    Runtime(pinstripe_runtime::mutants::Mutant),
}

impl Defect {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        let exports = pinstripe_block::mutants::Mutant::ALL.iter().copied().map(Self::Export);
        let nvme = pinstripe_nvme::mutants::Mutant::ALL.iter().copied().map(Self::Nvme);
        // The other one is in the driver of real rings, which its crate's tests try.
        let runtime = [Self::Runtime(pinstripe_runtime::mutants::Mutant::StallCharged)];
        Mutant::ALL.iter().copied().map(Self::Engine).chain(exports).chain(nvme).chain(runtime)
    }

    /// Its name.
    pub fn name(self) -> String {
        match self {
            Self::Engine(mutant) => format!("{mutant:?}"),
            Self::Export(mutant) => format!("export {mutant:?}"),
            Self::Nvme(mutant) => format!("nvme {mutant:?}"),
            Self::Runtime(mutant) => format!("runtime {mutant:?}"),
        }
    }
}

/// Millions of seeds are kinds of lives. In every other two of them, from here on, members also come back,
/// are replaced, hang and vanish at bad moments ([`atlas`]): other runs than before, so the seeds below keep
/// their meaning.
pub const FIRST_SEED_WITH_ATLAS: u64 = 2_000_000;
/// In the million from here on shards are interrupted, regions are small, and users and owner meet in narrow
/// places ([`races`]), besides the atlas.
pub const FIRST_SEED_WITH_RACES: u64 = 3_000_000;
/// In the million from here on members are reached over the network ([`net_life`]).
pub const FIRST_SEED_OF_NET: u64 = 4_000_000;

/// In the million from here on lives are wider ([`wide`]).
pub const FIRST_SEED_OF_WIDE: u64 = 8_000_000;

/// In the million from here on members are far larger than what is written of them ([`vast`]).
pub const FIRST_SEED_OF_VAST: u64 = 9_000_000;

/// In the million from here on members are reached over the network, hosts attach at the same time, servers
/// stand still, and requests come late on every connection.
pub const FIRST_SEED_OF_WILD_NET: u64 = 12_000_000;

/// In the million from here on users use every flag of NBD, and lists of bad blocks outlive crashes
/// ([`marks`]).
pub const FIRST_SEED_OF_MARKS: u64 = 13_000_000;

/// What a run was.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// Hash of all events.
    pub trace: u64,
    /// Steps of the world.
    pub steps: u64,
    /// Requests of users.
    pub requests: u64,
    /// How often the machine or the process died.
    pub crashes: u64,
    /// How often the array was assembled.
    pub assemblies: u64,
    /// Members that were made to fail.
    pub failures: u64,
    /// How often more went than the level bears.
    pub outages: u64,
    /// Spares that were put in.
    pub spares: u64,
    /// Members that were given back after they had been out.
    pub returns: u64,
    /// Of these, how many went on by the bitmap.
    pub readds: u64,
    /// Replacements that were begun.
    pub replacements: u64,
    /// Members that hung for longer than they may.
    pub hangs: u64,
    /// Members that were slow for a while, far slower than is usual.
    pub slow: u64,
    /// How often a process or one of its shards stood still.
    pub stalls: u64,
    /// Journal devices that were lost.
    pub journals_lost: u64,
    /// Writes that went to a wrong place.
    pub lies: u64,
    /// How often a second client took the array over.
    pub takeovers: u64,
    /// Servers that died alone.
    pub servers_lost: u64,
    /// Connections, or all between two servers, that were reset.
    pub links_cut: u64,
    /// How often two didn't hear each other for a while.
    pub partitions: u64,
    /// How often the array was refused, legally.
    pub refusals: u64,
    /// How often it was then forced.
    pub forced: u64,
    /// How often it came to rest, whole, and was found right.
    pub rests: u64,
}

impl Summary {
    /// Adds another run's counts; the trace of both is one hash.
    pub fn add(&mut self, other: &Self) {
        self.trace = self.trace.rotate_left(1) ^ other.trace;
        self.steps += other.steps;
        self.requests += other.requests;
        self.crashes += other.crashes;
        self.assemblies += other.assemblies;
        self.failures += other.failures;
        self.outages += other.outages;
        self.spares += other.spares;
        self.returns += other.returns;
        self.readds += other.readds;
        self.replacements += other.replacements;
        self.hangs += other.hangs;
        self.slow += other.slow;
        self.stalls += other.stalls;
        self.journals_lost += other.journals_lost;
        self.lies += other.lies;
        self.takeovers += other.takeovers;
        self.servers_lost += other.servers_lost;
        self.links_cut += other.links_cut;
        self.partitions += other.partitions;
        self.refusals += other.refusals;
        self.forced += other.forced;
        self.rests += other.rests;
    }
}

/// A run that the oracle rejects.
#[derive(Debug, thiserror::Error)]
#[error("seed {seed}: {verdict}\n{setup}\n{summary:?}")]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// Why.
    pub verdict: Verdict,
    /// What the run was made of.
    pub setup: String,
    /// How far it had come.
    pub summary: Summary,
    /// The last events, if they were kept.
    pub log: String,
}

/// One run in progress.
pub(crate) struct Swarm {
    pub(crate) setup: Setup,
    pub(crate) rng: Rng,
    pub(crate) world: World,
    pub(crate) disks: Vec<SimDisk>,
    /// Disks that were given a fault for which the engine shall drop them.
    pub(crate) doomed: BTreeSet<usize>,
    /// Disks that went in an outage and will be back.
    pub(crate) outage: BTreeSet<usize>,
    /// Disks that have been members.
    pub(crate) initiated: BTreeSet<usize>,
    /// What was done to which disk in this life.
    pub(crate) afflicted: atlas::InjectedFaults,
    pub(crate) array: Option<Array>,
    pub(crate) shop: Rc<UserState>,
    /// Sector rows, as stripe and sector in the chunk, that a crash may have left half written.
    pub(crate) suspects: BTreeSet<(u64, u64)>,
    /// Sectors of writes that crashes have cut off since the array last started.
    pub(crate) cut_off: BTreeSet<u64>,
    /// Slots that had no whole member when a dirty array was started since then, and whether a member was
    /// being rebuilt there.
    pub(crate) lost_at_start: BTreeMap<usize, bool>,
    /// Parity of rows without a write is unknown.
    pub(crate) unsynced: bool,
    /// This life ends in peace.
    pub(crate) ends_in_peace: bool,
    /// The journal device was lost, and the array has not started since.
    pub(crate) journal_lost: bool,
    pub(crate) summary: Summary,
    pub(crate) phase: Phase,
    /// Servers and connections, if users come over NBD.
    pub(crate) front: Option<front::Front>,
    /// Clients, servers and network, if members are reached over it.
    pub(crate) net: Option<net::Net>,
    /// The client that the array was taken from, until it is gone.
    pub(crate) stale: Option<takeover::Stale>,
    /// Looks at crashes that could have happened.
    pub(crate) explorer: Option<Explorer>,
}

/// Runs a seed, with `mutant` turned on if there is one (which needs the feature `mutants`), keeping the last
/// `log_events_max` events in words for a failure.
pub fn run_logged(seed: u64, mutant: Option<Defect>, log_events_max: usize) -> Result<Summary, Box<Failure>> {
    run_explored(seed, mutant, log_events_max, None).map(|(summary, _)| summary)
}

/// The same; with `depth` it also looks at crashes that could have happened, and says what states they were
/// in.
pub fn run_explored(
    seed: u64,
    mutant: Option<Defect>,
    log_events_max: usize,
    depth: Option<Depth>,
) -> Result<(Summary, States), Box<Failure>> {
    activate(mutant);
    let mut rng = Rng::new(seed);
    let (setup, lives) = drawn(seed, &mut rng);
    let shards = if setup.net.is_some() { net_life::shards(&setup) } else { setup.shards };
    let mut config = WorldConfig::new(seed, shards);
    config.log_events_max = log_events_max;
    config.interruptions = setup.races.as_ref().map(|races| races.interruptions);
    let mut world = World::new(config);
    let disks = (0..setup.disks()).map(|number| world.add_disk(setup.disk(number))).collect();
    let net = setup.net.as_ref().map(|net| net::Net::new(&mut world, setup.members, setup.shards, net));
    // Its looks are at one process with its disks.
    let depth = depth.filter(|_| net.is_none());
    let mut swarm = Swarm {
        rng: lives,
        world,
        disks,
        doomed: BTreeSet::new(),
        outage: BTreeSet::new(),
        initiated: (0..setup.disks()).collect(),
        afflicted: atlas::InjectedFaults::default(),
        array: None,
        shop: UserState::new(0),
        suspects: BTreeSet::new(),
        cut_off: BTreeSet::new(),
        lost_at_start: BTreeMap::new(),
        unsynced: setup.resync,
        ends_in_peace: false,
        journal_lost: false,
        summary: Summary::default(),
        phase: Phase::Starting,
        front: None,
        net,
        stale: None,
        explorer: depth.map(|depth| Explorer::new(seed, depth)),
        setup,
    };
    let result = swarm.run();
    swarm.summary.requests = swarm.shop.requests.get();
    swarm.summary.readds = swarm.shop.readds.get();
    swarm.summary.steps = swarm.world.steps();
    swarm.summary.trace = swarm.world.trace().hash();
    let mut log = swarm.array.as_ref().map_or(String::new(), |array| format!("{:?}\n", array.detail()));
    log.push_str(&swarm.world.trace().log());
    let summary = swarm.summary.clone();
    let setup = format!("{:?}\n{:?}", swarm.setup, swarm.world.schedule());
    let states = swarm.explorer.take().map_or(States::default(), |explorer| explorer.states);
    swarm.bury();
    activate(None);
    match result {
        Ok(()) => Ok((summary, states)),
        Err(verdict) => Err(Box::new(Failure { seed, verdict, setup, summary, log })),
    }
}

/// What a seed is about, and the stream that its life is drawn from.
fn drawn(seed: u64, rng: &mut Rng) -> (Setup, Rng) {
    let mut setup = Setup::drawn(&mut rng.fork(1)).with_log(&mut Rng::new(seed).fork(3));
    let lives = rng.fork(2);
    let kind = |first: u64| seed / 1_000_000 == first / 1_000_000;
    if seed / FIRST_SEED_WITH_ATLAS % 2 == 1 {
        setup.atlas = Some(atlas::Habits::drawn(&mut rng.fork(3), &mut setup.options, &setup.disk));
    }
    if kind(FIRST_SEED_WITH_RACES) {
        setup.races = Some(Races::drawn(&mut rng.fork(5), &mut setup));
    }
    if kind(FIRST_SEED_OF_NET) {
        setup.net = Some(NetSetup::drawn(&mut rng.fork(4), &mut setup));
    }
    if kind(FIRST_SEED_OF_WIDE) {
        setup.wide = Some(wide::Habits::drawn(&mut rng.fork(5), &mut setup));
    }
    if kind(FIRST_SEED_OF_WILD_NET) {
        let net = NetSetup::drawn(&mut rng.fork(4), &mut setup);
        setup.net = Some(NetSetup { wild: true, hasty: net.hasty || !seed.is_multiple_of(4), ..net });
    }
    if kind(FIRST_SEED_OF_MARKS) {
        setup.marks = Some(marks::Habits::drawn(&mut rng.fork(5), &mut setup));
    }
    if kind(FIRST_SEED_OF_VAST) {
        setup.vast = Some(vast::Habits::drawn(&mut rng.fork(5), &mut setup));
    }
    (setup, lives)
}

/// Runs a seed.
pub fn run(seed: u64, mutant: Option<Defect>) -> Result<Summary, Box<Failure>> {
    run_logged(seed, mutant, 0)
}

/// Runs a seed twice: it must go the same way.
pub fn run_twice(seed: u64) -> Result<Summary, Box<Failure>> {
    let first = run(seed, None)?;
    compare(seed, &first)?;
    Ok(first)
}

/// Runs a seed again: it must go the way of the `first` run, whether that was explored or not.
pub fn compare(seed: u64, first: &Summary) -> Result<(), Box<Failure>> {
    let second = run(seed, None)?;
    if *first == second {
        return Ok(());
    }
    let verdict = Verdict::TraceDiffers { first: first.trace, second: second.trace };
    Err(Box::new(Failure { seed, verdict, setup: String::new(), summary: second, log: String::new() }))
}

/// Runs a scene, with `mutant` turned on if there is one.
pub fn run_scene(scene: fn() -> Result<(), Verdict>, mutant: Option<Defect>) -> Result<(), Box<Failure>> {
    activate(mutant);
    let result = scene();
    activate(None);
    let failure = |verdict| Failure {
        seed: 0,
        verdict,
        setup: "a scene".to_owned(),
        summary: Summary::default(),
        log: String::new(),
    };
    result.map_err(|verdict| Box::new(failure(verdict)))
}

#[cfg(feature = "mutants")]
fn activate(mutant: Option<Defect>) {
    pinstripe_engine::mutants::activate(None);
    pinstripe_block::mutants::activate(None);
    pinstripe_nvme::mutants::activate(None);
    pinstripe_runtime::mutants::activate(None);
    match mutant {
        Some(Defect::Engine(mutant)) => pinstripe_engine::mutants::activate(Some(mutant)),
        Some(Defect::Export(mutant)) => pinstripe_block::mutants::activate(Some(mutant)),
        Some(Defect::Nvme(mutant)) => pinstripe_nvme::mutants::activate(Some(mutant)),
        Some(Defect::Runtime(mutant)) => pinstripe_runtime::mutants::activate(Some(mutant)),
        None => {}
    }
}

#[cfg(not(feature = "mutants"))]
fn activate(mutant: Option<Defect>) {
    assert!(mutant.is_none(), "mutants are compiled in with the feature `mutants` only");
}
