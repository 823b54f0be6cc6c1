//! `pinstripe assemble`: a server, in the background, for each array that is wanted and isn't served.
//!
//! ```text
//!   wanted     from the configuration and a scan to the arrays that are meant, and what is to become of each
//!   start      a `serve` as a process of its own, until it answers
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
    collections::BTreeSet,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use pinstripe_config::Configuration;
use pinstripe_control::text::printable;
use serde_json::{Value, json};

pub use foreground::forget;
pub use start::{Started, how, lock};
pub use wanted::{State, Wanted, allows, of_entry, searched, wanted};

use start::start;

use crate::{
    ask_daemon,
    command_line::{AssembleArguments, StartArguments, Which},
    configuration,
    failure::Failure,
    output,
    progress::spinner,
    scan::shown,
};

/// How often late members are looked for.
const LOOK: Duration = Duration::from_millis(500);

/// What became of an array.
pub enum Outcome {
    /// It is served now.
    Started(Box<Started>),
    /// It was served already, by the server with this control socket.
    Served(PathBuf),
    /// The words of the command that would serve it.
    WouldStart(Vec<String>),
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
            Outcome::WouldStart(command) => json!({ "state": "would-start", "command": command }),
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
            Outcome::WouldStart(command) => {
                format!("{label}: would start: {}\n", printable(&command.join(" ")))
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
            Err(failure) => foreground::run_as_last(&arguments.which, failure.into()),
        });
    }
    let configuration = loaded?;
    let reports = assemble(&configuration, &arguments.which, Way::of(&arguments.start))?;
    if reports.iter().any(|report| matches!(report.outcome, Outcome::Started(_))) {
        // A daemon follows it from now on, and needn't find it by itself.
        ask_daemon::have_it_look();
    }
    if arguments.start.json {
        output::print_json(&reports.iter().map(Report::value).collect::<Vec<_>>())?;
    } else if reports.is_empty() {
        output::print("no array is configured to be started\n")?;
    } else {
        output::print(&reports.iter().map(Report::in_words).collect::<String>())?;
    }
    for report in &reports {
        if let Outcome::NotStarted(why) = &report.outcome {
            let text = format!("pinstripe: {} was not started: {why}", report.label);
            eprintln!("{}", pinstripe_control::text::printable_lines(&text));
        }
    }
    if reports.iter().any(Report::failed) { Err(Failure::said()) } else { Ok(()) }
}

/// How arrays are started.
#[derive(Clone, Copy)]
pub struct Way {
    /// Time that a server has until it answers.
    pub timeout: Duration,
    pub dry_run: bool,
    pub quiet: bool,
}

impl Way {
    pub fn of(arguments: &StartArguments) -> Self {
        let timeout = Duration::from_secs(arguments.timeout.into());
        Self { timeout, dry_run: arguments.dry_run, quiet: arguments.json }
    }
}

/// Starts what is wanted. Members that are late are waited for where the configuration says so, for all
/// arrays at a time.
fn assemble(configuration: &Configuration, which: &Which, way: Way) -> Result<Vec<Report>, Failure> {
    let begun = Instant::now();
    let line = spinner(way.quiet);
    let (mut done, mut reports) = (BTreeSet::new(), Vec::new());
    loop {
        let (all, remarks) = wanted(configuration, which)?;
        let mut waiting = Vec::new();
        let left: Vec<Wanted> = all.into_iter().filter(|wanted| !done.contains(&wanted.key())).collect();
        for wanted in left {
            let state = wanted.state();
            let patience = wanted.patience().unwrap_or_default();
            if matches!(state, State::Late { .. }) && begun.elapsed() < patience && !way.dry_run {
                waiting.push(wanted.label);
                continue;
            }
            done.insert(wanted.key());
            line.set_message(format!("starting {}", printable(&wanted.label)));
            let outcome = settle(&wanted, state, way);
            reports.push(Report::new(&wanted, outcome));
        }
        if waiting.is_empty() {
            for remark in remarks {
                eprintln!("pinstripe: {}", printable(&remark));
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
    let waited_in_vain = matches!(state, State::Late { .. });
    match state {
        State::Served(control) => Outcome::Served(control),
        State::Hopeless(why) => Outcome::NotStarted(why),
        State::Late { why, enough } if !enough || wanted.patience().is_none() => Outcome::NotStarted(why),
        State::Ready | State::Late { .. } => {
            let words = wanted.serve_words(waited_in_vain);
            if way.dry_run {
                return Outcome::WouldStart(words);
            }
            match start(wanted, &words, way.timeout) {
                Ok(outcome) => outcome,
                Err(failure) => Outcome::NotStarted(failure.sentence().to_owned()),
            }
        }
    }
}
