//! A swarm: each seed is a run of the whole engine on simulated disks, with its own array, users and
//! accidents.
//!
//! ```text
//!   draw ─> create ─> ┌ assemble ─> users, failures, rebuilds, checks, bitmap changes ─┬─> crash or kill ─> look at the disks ┐
//!                     └────────────────────────────────────────────────────────────────│──────────────────────────────────────┘
//!                                                        in peace: heal, rebuild, read all, check parity, stop, look at the disks
//! ```
//!
//! Accidents stay within what the level can bear (the fault atlas is the sum of [`Testbed::broken`] and the
//! latent errors, which are healed before the next member goes), so whatever goes wrong is a bug. One thing
//! is legal besides success: a dirty and degraded array is refused (C19). Then the run ends there, or goes on
//! by force; then nothing is promised of lost sectors in rows that were being written, and only of those.
//!
//! A seed says what is drawn ([`seeds`]), and that is a [`Setup`]. The parts of a run are types of their own:
//!
//! | type | what it holds | what it does |
//! |---|---|---|
//! | [`Swarm`] | a testbed and an explorer | has time pass, and asks the oracle |
//! | [`Explorer`] | what was seen | looks at crashes that could have happened at this step |
//! | [`Testbed`] | the parts below, and the draws | says what may fail without breaking more than the level bears |
//! | [`Hosts`] | world, disks, clients, servers, network | stops, parts, ends and starts them; surveys the disks |
//! | [`Service`] | array, users, front end | has the users and the owner come |
//! | [`InjectedFaults`](injected_faults::InjectedFaults) | what was done to which disk | says which disk may be dropped, and which comes back |
//! | [`Doubts`] | sectors that crashes and losses left uncertain | tells the ledger when nothing is promised of them |
//! | [`Summary`] | counts | |
//!
//! What happens in a run are modules of functions. With a swarm they have time pass: a life ([`life`]) begins
//! with an [`assembly`], also against a [`rival`], and ends at [`rest`] (with [`lies`]), in a [`crash`], with
//! a [`takeover`], a [`journal_loss`], or a stop under load ([`stops`]). With a testbed they don't: events of
//! all lives ([`events`]), of some kinds of lives ([`atlas`], [`wide`], [`vast`], [`marks`], [`races`],
//! [`net_events`], [`wild`], [`rough`]), and what the [`owner`] does.

mod assembly;
mod atlas;
mod client;
mod crash;
mod crash_states;
mod defect;
mod doubts;
mod draw;
mod events;
mod forced_scenarios;
mod front;
mod hosts;
mod injected_faults;
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
mod owner;
mod races;
mod repair_scenarios;
mod rest;
mod rival;
mod rough;
mod scenarios;
mod seeds;
mod service;
mod stops;
mod summary;
mod takeover;
mod testbed;
mod vast;
mod wide;
mod wild;

pub use crash_states::{Depth, States};
pub use defect::Defect;
pub use draw::{Consistency, Setup};
pub use forced_scenarios::EXPORT_SCENARIOS;
pub use front::NbdSetup;
pub use killers::{EXPLORERS, EXPORT_KILLERS, KILLERS, NET_KILLERS, NVME_KILLERS, RUNTIME_KILLERS};
pub use net::NetSetup;
pub use races::Races;
pub use scenarios::SCENARIOS;
pub use seeds::{
    FIRST_SEED_OF_MARKS, FIRST_SEED_OF_NET, FIRST_SEED_OF_ROUGH, FIRST_SEED_OF_STOPS, FIRST_SEED_OF_VAST,
    FIRST_SEED_OF_WIDE, FIRST_SEED_OF_WILD_NET, FIRST_SEED_WITH_ATLAS, FIRST_SEED_WITH_RACES,
};
pub use summary::{Failure, Summary};

pub use crate::verdict::Verdict;

use crate::world::Stuck;
use client::UserState;
use crash_states::Explorer;
use defect::activate;
use doubts::Doubts;
use hosts::{Hosts, STEPS_MAX};
use service::Service;
use testbed::Testbed;

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
    let (setup, lives) = seeds::drawn(seed);
    // Its looks are at one process with its disks.
    let depth = depth.filter(|_| setup.net.is_none());
    let hosts = Hosts::new(seed, &setup, log_events_max);
    let (service, doubts) = (Service::new(UserState::new(0)), Doubts::new(setup.resync));
    let bed = Testbed::new(setup, lives, hosts, service, doubts);
    let mut swarm = Swarm::new(bed, depth.map(|depth| Explorer::new(seed, depth)));
    let result = swarm.run();
    let (outcome, states) = swarm.end(seed, result);
    activate(None);
    outcome.map(|summary| (summary, states))
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

/// Runs a scenario, with `mutant` turned on if there is one.
pub fn run_scenario(
    scenario: fn() -> Result<(), Verdict>,
    mutant: Option<Defect>,
) -> Result<(), Box<Failure>> {
    activate(mutant);
    let result = scenario();
    activate(None);
    let failure = |verdict| Failure {
        seed: 0,
        verdict,
        setup: "a scenario".to_owned(),
        summary: Summary::default(),
        log: String::new(),
    };
    result.map_err(|verdict| Box::new(failure(verdict)))
}

/// One run in progress: a testbed in which time passes.
pub(crate) struct Swarm {
    bed: Testbed,
    /// Looks at crashes that could have happened.
    explorer: Option<Explorer>,
}

impl Swarm {
    fn new(bed: Testbed, explorer: Option<Explorer>) -> Self {
        Self { bed, explorer }
    }

    /// The whole run.
    fn run(&mut self) -> Result<(), Verdict> {
        let result = life::run(self);
        self.sum_up(result)
    }

    /// What came of a life that is over: what users have seen counts, however it ended.
    fn sum_up(&mut self, result: Result<(), Verdict>) -> Result<(), Verdict> {
        match result {
            Ok(()) => {}
            Err(Verdict::Abandoned) => self.bed.summary.abandoned += 1,
            Err(verdict) => return Err(verdict),
        }
        self.bed.service.users.verdict()
    }

    /// The run of this seed is over. What came of it, and which states it was seen in.
    fn end(self, seed: u64, result: Result<(), Verdict>) -> (Result<Summary, Box<Failure>>, States) {
        let Self { bed, explorer } = self;
        let summary = Summary {
            requests: bed.service.users.requests.get(),
            readds: bed.service.users.readds.get(),
            steps: bed.hosts.world.steps(),
            trace: bed.hosts.world.trace().hash(),
            ..bed.summary.clone()
        };
        let outcome = result.map(|()| summary.clone()).map_err(|verdict| {
            let setup = format!("{:?}\n{:?}", bed.setup, bed.hosts.world.schedule());
            let log = format!("{}{}", bed.service.detail(), bed.hosts.world.trace().log());
            Box::new(Failure { seed, verdict, setup, summary, log })
        });
        bed.bury();
        (outcome, explorer.map_or_else(States::default, |explorer| explorer.states))
    }

    /// Does something of which no crash is looked at.
    fn without_explorer<T>(&mut self, act: impl FnOnce(&mut Self) -> T) -> T {
        let explorer = self.explorer.take();
        let done = act(self);
        self.explorer = explorer;
        done
    }

    /// One step, and a look at the crashes that could come after it. False if nothing will ever happen again.
    fn step(&mut self) -> Result<bool, Verdict> {
        let going = self.bed.hosts.step();
        if let Some(explorer) = &mut self.explorer {
            explorer.look_if_due(&self.bed)?;
        }
        Ok(going)
    }

    /// One step, which must be possible.
    fn must_step(&mut self) -> Result<(), Verdict> {
        if self.step()? { Ok(()) } else { Err(self.deadlock()) }
    }

    /// Lets up to `steps` happen, or fewer if all clients and commands are done.
    fn step_on(&mut self, steps: u64) -> Result<(), Verdict> {
        for _ in 0..steps {
            if self.bed.service.users.is_over() || self.bed.service.users.is_idle() {
                break;
            }
            self.must_step()?;
        }
        self.verdict()
    }

    /// Lets up to `steps` happen, whether a client waits or not.
    fn idle_on(&mut self, steps: u64) -> Result<(), Verdict> {
        for _ in 0..steps {
            if !self.step()? {
                break;
            }
        }
        Ok(())
    }

    /// Waits until `done`, which is asked now and then, or until the oracle has seen enough.
    fn wait(&mut self, mut done: impl FnMut(&Testbed) -> bool) -> Result<(), Verdict> {
        let limit = self.bed.hosts.world.steps() + STEPS_MAX;
        loop {
            self.verdict()?;
            if done(&self.bed) {
                return Ok(());
            }
            if self.bed.hosts.world.steps() > limit {
                return Err(self.stuck());
            }
            for _ in 0..64 {
                if !self.step()? {
                    return if done(&self.bed) { Ok(()) } else { Err(self.deadlock()) };
                }
            }
        }
    }

    /// Waits until all clients and commands are done.
    fn wait_for_users(&mut self) -> Result<(), Verdict> {
        self.wait(|bed| bed.service.users.is_idle())
    }

    /// What the oracle has seen so far.
    fn verdict(&self) -> Result<(), Verdict> {
        self.bed.service.users.verdict()?;
        if vast::is_endless(&self.bed) { Err(Verdict::Abandoned) } else { Ok(()) }
    }

    /// Nothing will ever happen again.
    fn deadlock(&self) -> Verdict {
        Stuck::Deadlock(self.bed.hosts.world.report()).into()
    }

    /// The run goes on and on.
    fn stuck(&self) -> Verdict {
        let report = format!("{}{}", self.bed.service.detail(), self.bed.hosts.world.report());
        Stuck::StepsUsedUp { steps: STEPS_MAX, report }.into()
    }
}
