//! `pinstripe assemble`: a server, in the background, for each array that is wanted and isn't served.
//!
//! ```text
//!   wanted     from the configuration and a scan to the arrays that are meant, and what is to become of each
//!   start      a `serve` as a process of its own, until it answers: of its unit where systemd has one
//!   foreground this process becomes the `serve`
//! ```
//!
//! Nothing is written here. The server locks the members, and refuses what is not an array, or is one that
//! another process has. Two that assemble at once start one server: they take turns by a lock for each array,
//! and look again.

mod foreground;
mod start;
mod wanted;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use pinstripe_config::Configuration;
use pinstripe_control::text::printable;
use serde_json::{Value, json};

pub use foreground::forget;
pub use start::{Started, how, lock};
pub use wanted::{State, Wanted, allows, of_one, searched, wanted, watched};

use start::{start, start_unit};

use crate::{
    ask_daemon,
    command_line::{AssembleArguments, StartArguments, Which},
    configuration,
    failure::Failure,
    output,
    progress::spinner,
    scan::{LIMIT, LIMIT_AGAIN, shown},
    systemd,
};

/// How often late members are looked for.
const LOOK: Duration = Duration::from_millis(500);
const NOTHING_CONFIGURED: &str =
    "no array is configured to be started: `pinstripe examine --scan` prints entries for what is found\n";

/// What became of an array.
pub enum Outcome {
    /// It is served now.
    Started(Box<Started>),
    /// It was served already, by the server with this control socket.
    Served(PathBuf),
    /// The words of the command that would serve it, and the unit that would run it.
    WouldStart { words: Vec<String>, unit: Option<String> },
    /// Why it isn't served.
    NotStarted(String),
}

/// An array, and what became of it.
pub struct Report {
    pub label: String,
    pub uuid: Option<String>,
    pub missing: Vec<usize>,
    pub outcome: Outcome,
}

impl Report {
    pub fn new(wanted: &Wanted, outcome: Outcome) -> Self {
        Self {
            label: wanted.label.clone(),
            uuid: wanted.uuid().map(|uuid| uuid.to_string()),
            missing: wanted.found.as_ref().map(crate::scan::FoundArray::missing).unwrap_or_default(),
            outcome,
        }
    }

    pub fn failed(&self) -> bool {
        matches!(self.outcome, Outcome::NotStarted(_))
    }

    pub fn value(&self) -> Value {
        let mut value = match &self.outcome {
            Outcome::Started(started) => started.value(),
            Outcome::Served(control) => json!({ "state": "served", "control": shown(control) }),
            Outcome::WouldStart { words, unit } => {
                json!({ "state": "would-start", "command": words, "unit": unit })
            }
            Outcome::NotStarted(why) => json!({ "state": "not-started", "error": why }),
        };
        value["array"] = self.label.clone().into();
        value["uuid"] = self.uuid.clone().into();
        value["missing_slots"] = self.missing.clone().into();
        value
    }

    pub fn in_words(&self) -> String {
        let label = printable(&self.label);
        match &self.outcome {
            Outcome::Started(started) => format!("{label}: started: {}\n", started.in_words()),
            Outcome::Served(control) => {
                format!(
                    "{label}: is served already; control socket {}\n",
                    printable(&control.display().to_string())
                )
            }
            Outcome::WouldStart { words, unit } => {
                let by = unit.as_ref().map(|unit| format!("{unit}: ")).unwrap_or_default();
                format!("{label}: would start: {by}{}\n", printable(&words.join(" ")))
            }
            Outcome::NotStarted(_) => String::new(),
        }
    }
}

pub fn run(arguments: &AssembleArguments) -> Result<(), Failure> {
    let loaded = configuration::load(arguments.start.configuration.config.as_deref());
    if arguments.foreground {
        let limit = Duration::from_secs(arguments.start.timeout.into());
        return Err(match loaded {
            Ok(configuration) => foreground::run(&configuration, &arguments.which, limit),
            Err(problems) => {
                let main = arguments.start.configuration.config.as_deref();
                foreground::run_despite(main, &arguments.which, problems.into(), limit)
            }
        });
    }
    let (configuration, way) = (loaded?, Way { run: arguments.run, ..Way::of(&arguments.start) });
    way.prepare();
    let reports = assemble(&configuration, &arguments.which, way)?;
    if reports.iter().any(|report| matches!(report.outcome, Outcome::Started(_))) {
        // A daemon follows it from now on, and needn't find it by itself.
        ask_daemon::have_it_look();
    }
    if arguments.start.json {
        output::print_json(&reports.iter().map(Report::value).collect::<Vec<_>>())?;
    } else if reports.is_empty() {
        output::print(NOTHING_CONFIGURED)?;
    } else {
        output::print(&reports.iter().map(Report::in_words).collect::<String>())?;
    }
    for report in &reports {
        if let Outcome::NotStarted(why) = &report.outcome {
            let text = format!("pinstripe: {} was not started: {why}", report.label);
            output::remark(&pinstripe_control::text::printable_lines(&text));
        }
    }
    if reports.iter().any(Report::failed) { Err(Failure::said()) } else { Ok(()) }
}

/// How arrays are started.
#[derive(Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct Way {
    /// Time that a server has until it answers.
    pub timeout: Duration,
    pub dry_run: bool,
    pub quiet: bool,
    /// Whether systemd starts the servers of arrays that have a unit.
    pub by_units: bool,
    /// Whether members that are late are done without, this once.
    pub run: bool,
}

impl Way {
    pub fn of(arguments: &StartArguments) -> Self {
        let timeout = Duration::from_secs(arguments.timeout.into());
        let by_units = systemd::has_units(arguments.configuration.config.as_deref());
        Self { timeout, dry_run: arguments.dry_run, quiet: arguments.json, by_units, run: false }
    }

    /// Before units are started: the configuration may be newer than they are.
    pub fn prepare(self) {
        if self.by_units && !self.dry_run {
            systemd::reload(None);
        }
    }

    /// The unit that is to serve this array.
    pub fn unit(self, wanted: &Wanted) -> Option<&str> {
        wanted.unit.as_deref().filter(|_| self.by_units)
    }
}

/// Starts what is wanted. Members that are late are waited for where the configuration says so, for all
/// arrays at a time. A unit waits for them by itself. It begins at once, or they would be waited for twice.
fn assemble(configuration: &Configuration, which: &Which, way: Way) -> Result<Vec<Report>, Failure> {
    let begun = Instant::now();
    let line = spinner(way.quiet);
    let report = |wanted: &Wanted, state: State| {
        line.set_message(format!("starting {}", printable(&wanted.label)));
        Report::new(wanted, settle(wanted, state, way))
    };
    let (mut done, mut units, mut reports) = (BTreeSet::new(), Vec::new(), Vec::new());
    let mut enough_since = BTreeMap::new();
    loop {
        // What is named and has no entry must be found at the first look.
        let look = if which.scan && !configuration.scan.all && !way.dry_run { LIMIT_AGAIN } else { LIMIT };
        let (all, remarks) = wanted(configuration, which, look)?;
        let mut waiting = Vec::new();
        let left: Vec<Wanted> = all.into_iter().filter(|wanted| !done.contains(&wanted.key())).collect();
        for wanted in left {
            let state = wanted.state();
            // A disk that is slow to answer may have what is missing, and the others don't wait for it.
            let slow = if wanted.may_be_late() { LIMIT } else { Duration::ZERO };
            let asked = wanted.patience().filter(|_| !way.run);
            let patience = asked.unwrap_or_default().max(slow);
            // A member that could be done without is waited for from when the others are there.
            let since = if let State::Late { enough: true, .. } = state {
                *enough_since.entry(wanted.key()).or_insert_with(Instant::now)
            } else {
                enough_since.remove(&wanted.key());
                begun
            };
            if let State::Late { enough, .. } = state
                && since.elapsed() < patience
                && !way.dry_run
            {
                if let Some(unit) = way.unit(&wanted).filter(|_| enough) {
                    systemd::begin_start(unit);
                    done.insert(wanted.key());
                    units.push((wanted, state));
                } else {
                    waiting.push(wanted.label);
                }
                continue;
            }
            done.insert(wanted.key());
            reports.push(report(&wanted, state));
        }
        if waiting.is_empty() {
            reports.extend(units.into_iter().map(|(wanted, state)| report(&wanted, state)));
            for remark in remarks {
                output::remark(&format!("pinstripe: {}", printable(&remark)));
            }
            line.finish_and_clear();
            return Ok(reports);
        }
        line.set_message(format!("waiting for members of {}", printable(&waiting.join(", "))));
        thread::sleep(LOOK);
    }
}

/// Does what is to be done with an array, now that it isn't waited for any more.
pub fn settle(wanted: &Wanted, state: State, way: Way) -> Outcome {
    let run = way.run || matches!(state, State::Late { .. });
    match state {
        State::Served(control) => Outcome::Served(control),
        State::Hopeless(why) => Outcome::NotStarted(why),
        State::Late { why, enough } if !enough || (wanted.patience().is_none() && !way.run) => {
            Outcome::NotStarted(why)
        }
        State::Ready | State::Perhaps(_) | State::Late { .. } => {
            if way.dry_run {
                return would_start(wanted, run, way);
            }
            let started = match way.unit(wanted) {
                Some(unit) if way.run => foreground::once(unit, || start_unit(wanted, unit, way.timeout)),
                Some(unit) => start_unit(wanted, unit, way.timeout),
                None => start(wanted, &wanted.serve_words(run), way.timeout),
            };
            match started {
                Ok(outcome) => outcome,
                Err(failure) => Outcome::NotStarted(failure.sentence().to_owned()),
            }
        }
    }
}

/// What would serve it. `run`: members were waited for in vain.
pub fn would_start(wanted: &Wanted, run: bool, way: Way) -> Outcome {
    Outcome::WouldStart { words: wanted.serve_words(run), unit: way.unit(wanted).map(str::to_owned) }
}
