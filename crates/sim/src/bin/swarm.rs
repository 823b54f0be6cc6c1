//! Runs seeds of the swarm, with and without deliberate defects: `cargo xtask sim` and `cargo xtask mutants`
//! call it.
#![forbid(unsafe_code)]

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    process::ExitCode,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use clap::Parser;
use pinstripe_engine::mutants::Mutant;
use pinstripe_sim::swarm::{
    self, Defect, Depth, EXPLORERS, EXPORT_KILLERS, EXPORT_SCENARIOS, Failure, KILLERS, NET_KILLERS,
    NVME_KILLERS, RUNTIME_KILLERS, SCENARIOS, States, Summary, Verdict,
};

/// The swarm simulation of the engine.
#[derive(Parser)]
enum Task {
    /// Run seeds.
    Run(Run),
    /// Run the scenarios, without a defect.
    Scenarios,
    /// Show that every deliberate defect is found.
    Mutants(Mutants),
}

#[derive(clap::Args)]
struct Run {
    /// How many seeds.
    #[arg(long, default_value_t = 600)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// And so many of those in which members come back, are replaced and hang.
    #[arg(long, default_value_t = 0)]
    atlas: u64,
    /// And so many of those in which shards are interrupted and users and owner meet in narrow places.
    #[arg(long, default_value_t = 0)]
    races: u64,
    /// And so many of those whose members are reached over the network.
    #[arg(long, default_value_t = 0)]
    net: u64,
    /// And so many of the wider lives.
    #[arg(long, default_value_t = 0)]
    wide: u64,
    /// And so many of those whose members are far larger than what is written of them.
    #[arg(long, default_value_t = 0)]
    vast: u64,
    /// And so many of those over the network in which hosts meet, servers stand still and requests come late.
    #[arg(long, default_value_t = 0)]
    wild_net: u64,
    /// And so many of those with every flag of NBD and lists of bad blocks that outlive crashes.
    #[arg(long, default_value_t = 0)]
    marks: u64,
    /// And so many of those in which faults meet.
    #[arg(long, default_value_t = 0)]
    rough: u64,
    /// And so many of those that end with stops under load.
    #[arg(long, default_value_t = 0)]
    stops: u64,
    /// One of so many seeds is run twice and must go the same way; 0 for none.
    #[arg(long, default_value_t = 1)]
    twice_every: u64,
    /// Keep this many of the last events, and print them if the seed fails.
    #[arg(long, default_value_t = 0)]
    log: usize,
    /// Turn this defect on.
    #[arg(long)]
    mutant: Option<String>,
    /// Print a line for every seed.
    #[arg(long)]
    verbose: bool,
    /// Also look at crashes that could have happened, and count their states.
    #[arg(long)]
    states: bool,
    /// Mean number of steps between two moments that are looked at.
    #[arg(long, default_value_t = 60)]
    gap: u64,
    /// Power losses that are drawn at each.
    #[arg(long, default_value_t = 4)]
    losses: u64,
    /// Of so many images one is given to an engine, which must come to rest on it; 0 for none.
    #[arg(long, default_value_t = 500)]
    assemble_every: u64,
    /// Threads.
    #[arg(long, default_value_t = 1)]
    jobs: u16,
    /// Fail if fewer distinct row states were seen.
    #[arg(long, default_value_t = 0)]
    floor: usize,
}

impl Run {
    /// Seeds of all kinds.
    fn count(&self) -> u64 {
        self.seeds().iter().map(|(_, count)| count).sum()
    }

    /// The first seed of each kind, and how many of it.
    fn seeds(&self) -> [(u64, u64); 10] {
        [
            (self.from, self.seeds),
            (swarm::FIRST_SEED_WITH_ATLAS, self.atlas),
            (swarm::FIRST_SEED_OF_NET, self.net),
            (swarm::FIRST_SEED_WITH_RACES, self.races),
            (swarm::FIRST_SEED_OF_WIDE, self.wide),
            (swarm::FIRST_SEED_OF_VAST, self.vast),
            (swarm::FIRST_SEED_OF_WILD_NET, self.wild_net),
            (swarm::FIRST_SEED_OF_MARKS, self.marks),
            (swarm::FIRST_SEED_OF_STOPS, self.stops),
            (swarm::FIRST_SEED_OF_ROUGH, self.rough),
        ]
    }
}

#[derive(clap::Args)]
struct Mutants {
    /// Look for seeds anew, this many per defect, and print the table.
    #[arg(long)]
    search: Option<u64>,
    /// Only the defects whose name contains this.
    #[arg(long)]
    only: Option<String>,
}

fn main() -> ExitCode {
    let green = match Task::parse() {
        Task::Run(run) => run_seeds(&run),
        Task::Scenarios => run_scenarios(),
        Task::Mutants(mutants) => try_mutants(&mutants),
    };
    if green { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// What a run came to; `None` after a panic.
fn attempt<T>(run: impl FnOnce() -> Result<T, Box<Failure>>) -> Option<Result<T, Box<Failure>>> {
    catch_unwind(AssertUnwindSafe(run)).ok()
}

/// What a number of seeds came to.
#[derive(Default)]
struct Harvest {
    total: Summary,
    /// Of those with members that are far larger than what is written of them.
    vast: Summary,
    states: States,
    failing: Vec<u64>,
}

/// Runs every `jobs`th seed, beginning with the `job`th.
fn run_share(run: &Run, job: u16) -> Harvest {
    let mutant = Defect::all().find(|defect| Some(defect.name()) == run.mutant);
    let depth = Depth { gap: run.gap.max(1), losses: run.losses.max(1), assemble_every: run.assemble_every };
    let depth = run.states.then_some(depth);
    let mut harvest = Harvest::default();
    let seeds = run.seeds().into_iter().flat_map(|(first, count)| first..first + count);
    for seed in seeds.skip(usize::from(job)).step_by(usize::from(run.jobs.max(1))) {
        let twice = run.log == 0 && mutant.is_none() && run.twice_every > 0 && seed % run.twice_every == 0;
        let result = attempt(|| {
            let (summary, states) = swarm::run_explored(seed, mutant, run.log, depth)?;
            if twice {
                swarm::compare(seed, &summary)?;
            }
            Ok((summary, states))
        });
        match result {
            Some(Ok((summary, states))) => {
                if run.verbose {
                    println!("seed {seed}: {summary:?}");
                }
                harvest.total.add(&summary);
                if (swarm::FIRST_SEED_OF_VAST..swarm::FIRST_SEED_OF_VAST + run.vast).contains(&seed) {
                    harvest.vast.add(&summary);
                }
                harvest.states.add(states);
                continue;
            }
            Some(Err(failure)) => println!("{failure}\n{}", failure.log),
            None => println!("seed {seed}: panic"),
        }
        harvest.failing.push(seed);
    }
    harvest
}

fn run_seeds(run: &Run) -> bool {
    let started = Instant::now();
    let mut all = Harvest::default();
    // A world lives on one thread, so each thread has worlds of its own.
    std::thread::scope(|scope| {
        let jobs = (0..run.jobs.max(1)).map(|job| scope.spawn(move || run_share(run, job)));
        let jobs: Vec<_> = jobs.collect();
        for job in jobs {
            let Ok(harvest) = job.join() else { unreachable!("a panic in a run is caught there") };
            all.total.add(&harvest.total);
            all.vast.add(&harvest.vast);
            all.states.add(harvest.states);
            all.failing.extend(harvest.failing);
        }
    });
    let Harvest { total, vast, states, mut failing } = all;
    failing.sort_unstable();
    let seconds = started.elapsed().as_secs_f64();
    println!("{total:?}");
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let rate = run.count() as f64 / seconds;
    let (passed, failed) = (run.count() - failing.len() as u64, failing.len());
    println!("sim: {passed} passed, {failed} failed in {seconds:.1} s, {rate:.1} seeds/s");
    if let Some(first) = failing.first() {
        println!("failing seeds: {failing:?}");
        println!("one again, with its last events: cargo xtask sim --seeds 1 --from {first} --log 2000");
    }
    if run.states {
        println!(
            "states: {} distinct row states, {} distinct crash states, of {} sets of crash images, {} of them assembled",
            states.rows(),
            states.whole(),
            states.images,
            states.assembled
        );
    }
    let enough = states.rows() >= run.floor;
    if !enough {
        println!("sim: 1 failed: fewer than {} distinct row states", run.floor);
    }
    // A run in which a rebuild would take too long is green, so too many of these hide that members don't
    // come back by their bitmaps.
    let are_vast_over = run.floor == 0 || run.vast == 0 || vast.abandoned * 2 <= run.vast && vast.readds > 0;
    if !are_vast_over {
        let (abandoned, readds) = (vast.abandoned, vast.readds);
        println!(
            "sim: 1 failed: of {} vast runs {abandoned} were abandoned, with {readds} re-adds",
            run.vast
        );
    }
    failing.is_empty() && enough && are_vast_over
}

fn run_scenarios() -> bool {
    let mut green = true;
    let engine = SCENARIOS.iter().map(|(mutant, scenario)| (Defect::Engine(*mutant), *scenario));
    let exports = EXPORT_SCENARIOS.iter().map(|(mutant, scenario)| (Defect::Export(*mutant), *scenario));
    for (defect, scenario) in engine.chain(exports) {
        if let Some(Ok(())) = attempt(|| swarm::run_scenario(scenario, None)) {
            continue;
        }
        let failure = attempt(|| swarm::run_scenario(scenario, None)).and_then(Result::err);
        println!(
            "scenario of {}: {}",
            defect.name(),
            failure.map_or("panic".to_owned(), |failure| failure.to_string())
        );
        green = false;
    }
    green
}

/// How the oracle is asked.
#[derive(Clone, Copy)]
enum Killer {
    /// A run of this seed.
    Seed(u64),
    /// A run of this seed, with looks at the crashes that could have happened.
    Explorer(u64),
    /// A scenario.
    Scenario(fn() -> Result<(), Verdict>),
}

/// How closely a run is looked at that shall find a defect.
const CLOSE: Depth = Depth { gap: 30, losses: 4, assemble_every: 40 };

impl Killer {
    fn run(self, defect: Option<Defect>) -> Result<(), Box<Failure>> {
        match self {
            Self::Seed(seed) => swarm::run(seed, defect).map(|_| ()),
            Self::Explorer(seed) => swarm::run_explored(seed, defect, 0, Some(CLOSE)).map(|_| ()),
            Self::Scenario(scenario) => swarm::run_scenario(scenario, defect),
        }
    }

    /// Whether the oracle sees the defect, and nothing without it; and what it says.
    fn kills(self, defect: Defect) -> Option<String> {
        let failure = attempt(|| self.run(Some(defect)))?.err().filter(|f| f.verdict.is_wrong())?;
        attempt(|| self.run(None))?.ok()?;
        let words = failure.verdict.to_string();
        Some(words.lines().next().unwrap_or_default().to_owned())
    }

    fn entry(self, defect: Defect) -> String {
        let name = defect.name();
        match self {
            Self::Seed(seed) => format!("(Mutant::{name}, {seed}),"),
            Self::Explorer(seed) => format!("explored: (Mutant::{name}, {seed}),"),
            Self::Scenario(_) => format!("scenario: {name},"),
        }
    }
}

/// Threads that try defects.
const JOBS: usize = 2;
/// Seeds that are tried if the known one does not do.
const OTHER_SEEDS: u64 = 500;
/// Of so many of them one is also explored, which takes longer.
const EXPLORED_SHARE: u64 = 12;

/// Whether only lives over the network can show it.
fn is_of_net(defect: Defect) -> bool {
    match defect {
        Defect::Engine(mutant) => {
            Mutant::OF_OFFLOAD.contains(&mutant) || Mutant::OF_NETWORK.contains(&mutant)
        }
        Defect::Nvme(_) => true,
        Defect::Export(_) | Defect::Runtime(_) => false,
    }
}

/// Whether a seed is known that shows it: what else is of the network, its crate's own tests show.
fn is_known_over_net(defect: Defect) -> bool {
    match defect {
        Defect::Engine(mutant) => NET_KILLERS.iter().any(|(name, _)| *name == mutant),
        Defect::Nvme(mutant) => NVME_KILLERS.iter().any(|(name, _)| *name == mutant),
        Defect::Export(_) | Defect::Runtime(_) => false,
    }
}

/// The runs to try a defect on: the known seed first; if a change of the engine has made it another run, some
/// others.
fn killers(defect: Defect, search: Option<u64>) -> Vec<Killer> {
    let mut known = Vec::new();
    match defect {
        Defect::Engine(mutant) => {
            known.extend(
                SCENARIOS.iter().filter(|(name, _)| *name == mutant).map(|(_, s)| Killer::Scenario(*s)),
            );
            known.extend(KILLERS.iter().filter(|(name, _)| *name == mutant).map(|(_, s)| Killer::Seed(*s)));
            let explored = EXPLORERS.iter().filter(|(name, _)| *name == mutant);
            known.extend(explored.map(|(_, s)| Killer::Explorer(*s)));
            let over_net = NET_KILLERS.iter().filter(|(name, _)| *name == mutant);
            known.extend(over_net.map(|(_, s)| Killer::Seed(*s)));
        }
        Defect::Nvme(mutant) => {
            let of = NVME_KILLERS.iter().filter(|(name, _)| *name == mutant);
            known.extend(of.map(|(_, s)| Killer::Seed(*s)));
        }
        Defect::Export(mutant) => {
            let scenarios = EXPORT_SCENARIOS.iter().filter(|(name, _)| *name == mutant);
            known.extend(scenarios.map(|(_, scenario)| Killer::Scenario(*scenario)));
            let of = EXPORT_KILLERS.iter().filter(|(name, _)| *name == mutant);
            known.extend(of.map(|(_, s)| Killer::Seed(*s)));
        }
        Defect::Runtime(mutant) => {
            let of = RUNTIME_KILLERS.iter().filter(|(name, _)| *name == mutant);
            known.extend(of.map(|(_, s)| Killer::Seed(*s)));
        }
    }
    let seeds = search.unwrap_or(OTHER_SEEDS);
    if is_of_net(defect) {
        let (net, wild) = (swarm::FIRST_SEED_OF_NET, swarm::FIRST_SEED_OF_WILD_NET);
        let others = (net..net + seeds).chain(wild..wild + seeds / 2);
        return known.into_iter().chain(others.map(Killer::Seed)).collect();
    }
    // Close looks find more than many plain runs, and take longer.
    let (first, explored) = (seeds.min(60), seeds / EXPLORED_SHARE);
    let others = (0..first).map(Killer::Seed).chain((0..explored).map(Killer::Explorer));
    let atlas = swarm::FIRST_SEED_WITH_ATLAS;
    let others = others.chain((atlas..atlas + seeds / 2).map(Killer::Seed));
    let races = swarm::FIRST_SEED_WITH_RACES;
    let others = others.chain((races..races + seeds / 2).map(Killer::Seed));
    let others = others.chain((first..seeds).map(Killer::Seed));
    let (vast, marks) = (swarm::FIRST_SEED_OF_VAST, swarm::FIRST_SEED_OF_MARKS);
    let stops = swarm::FIRST_SEED_OF_STOPS;
    let others = others.chain((stops..stops + seeds / 4).map(Killer::Seed));
    let others = others.chain((vast..vast + seeds / 2).chain(marks..marks + seeds / 4).map(Killer::Seed));
    let rough = swarm::FIRST_SEED_OF_ROUGH;
    let others = others.chain((rough..rough + seeds / 4).map(Killer::Seed));
    let scenario = |killer: &Killer| search.is_none() || matches!(killer, Killer::Scenario(_));
    known.into_iter().filter(scenario).chain(others).collect()
}

fn try_mutants(arguments: &Mutants) -> bool {
    // What a defect makes the engine's assertions say is no news.
    std::panic::set_hook(Box::new(|_| {}));
    let of_tests = [
        Mutant::OF_LOGS,
        Mutant::OF_FAULTS,
        Mutant::OF_JOURNAL,
        Mutant::OF_REPLACEMENT,
        Mutant::OF_LIFE,
        Mutant::OF_PLACE,
    ]
    .concat();
    let elsewhere = |defect: &Defect| match defect {
        Defect::Engine(mutant) => {
            of_tests.contains(mutant) && !KILLERS.iter().any(|(name, _)| name == mutant)
        }
        Defect::Export(mutant) => pinstripe_block::mutants::Mutant::OF_SESSIONS.contains(mutant),
        Defect::Nvme(_) | Defect::Runtime(_) => false,
    };
    let wanted = |defect: &Defect| {
        let over_net = is_of_net(*defect) && arguments.search.is_none() && !is_known_over_net(*defect);
        !elsewhere(defect)
            && !over_net
            && arguments.only.as_ref().is_none_or(|only| defect.name().contains(only))
    };
    let defects: Vec<Defect> = Defect::all().filter(wanted).collect();
    let next = AtomicUsize::new(0);
    let survivors = Mutex::new(Vec::new());
    // A world and the defect that is on belong to one thread, so two threads don't disturb each other.
    std::thread::scope(|scope| {
        for _ in 0..JOBS {
            scope.spawn(|| {
                while let Some(&defect) = defects.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut killers = killers(defect, arguments.search).into_iter();
                    match killers.find_map(|killer| killer.kills(defect).map(|words| (killer, words))) {
                        Some((killer, words)) => println!("    {} // {words}", killer.entry(defect)),
                        None => survivors.lock().unwrap_or_else(PoisonError::into_inner).push(defect),
                    }
                }
            });
        }
    });
    let survivors = survivors.into_inner().unwrap_or_else(PoisonError::into_inner);
    let killed = defects.len() - survivors.len();
    println!("mutants: {killed} passed, {} failed", survivors.len());
    if !survivors.is_empty() {
        println!("not found by the oracle: {survivors:?}");
        println!(
            "look for other seeds with cargo xtask mutants --search 2000, and put them into crates/sim/src/swarm/killers.rs"
        );
    }
    survivors.is_empty()
}
