//! `cargo xtask mutate`: defects that were not planned, a sample of all that a few operators make, against
//! tests and swarm.
//!
//! A mutant that had to be built alone would cost minutes. So all mutants of a sample are woven into one copy
//! of the workspace ([`schemata`]), each behind a question that the environment answers
//! ([`switch.rs`](switch.rs)); the copy is built once ([`copy`]), and each test and each seed of the swarm is
//! a process that is told which mutant is on ([`runs`]).
//!
//! A mutant that no run kills is a gap of the tests, or changes nothing that matters. Which of the two is
//! written down, with the reason, in `docs/results/mutation-accepted.json`; there a mutant is named by its
//! file, its function, its operator and its text, so that the name outlives other edits. A survivor that
//! isn't in that list fails the run.

mod copy;
mod operators;
mod report;
mod runs;
mod schemata;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;

use crate::random::Random;
use copy::Copy;
use operators::{Candidate, candidates};
use report::{Outcome, Report, Verdict};
use runs::{Baseline, End, Run, Seeds};

/// Suites that say much for their time. Those that try the deliberate defects aren't among them.
const SUITES: &[&str] = &[
    "engine/engine::behaviour",
    "engine/engine::economy",
    "engine/engine::faults",
    "engine/engine::journal",
    "engine/engine::journal_crash",
    "engine/engine::listed",
    "engine/engine::log_crashes",
    "engine/engine::log_limits",
    "engine/engine::logs",
    "engine/engine::maintenance",
    "engine/engine::membership",
    "engine/engine::offload",
    "engine/engine::ppl",
    "engine/engine::replacement",
    "export/nbd",
    "md/golden",
    "nvme/sessions",
    "nvme/simulated",
];

/// Samples defects of engine, md, nvme and export, and looks which of them tests and swarm find.
#[derive(Args)]
pub struct Mutate {
    /// The sample's seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many mutants.
    #[arg(long, default_value_t = 100)]
    sample: usize,
    /// Only files whose path contains one of these.
    #[arg(long)]
    only: Vec<String>,
    /// Show the sample with the keys that the list of explained survivors has, and run nothing.
    #[arg(long)]
    list: bool,
    /// Only the mutant of this number, with each run that it meets.
    #[arg(long)]
    mutant: Option<u32>,
    /// Try all anew, and not only what survived or wasn't tried.
    #[arg(long)]
    anew: bool,
    /// The suites of tests besides the crates' own unit tests, as `CRATE/PROGRAM` or `CRATE/PROGRAM::MODULE`.
    #[arg(long, value_delimiter = ',', default_values_t = SUITES.iter().map(|suite| (*suite).to_owned()))]
    suites: Vec<String>,
    /// Processes at the same time.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Seeds of ordinary lives.
    #[arg(long, default_value_t = 40)]
    lives: u64,
    /// Seeds of lives with members that come back.
    #[arg(long, default_value_t = 20)]
    atlas: u64,
    /// Seeds of lives over the network.
    #[arg(long, default_value_t = 20)]
    net: u64,
    /// Runs that take longer than this, in seconds, are left out.
    #[arg(long, default_value_t = 10)]
    longest: u64,
    /// Seconds of runs for one mutant, after which it has survived.
    #[arg(long, default_value_t = 60)]
    patience: u64,
}

/// A mutant of the sample.
#[derive(Clone, Debug)]
pub struct Mutant {
    number: u32,
    file: String,
    /// What it is called in the lists.
    key: String,
    /// Its line of the source.
    line_text: String,
    candidate: Candidate,
    compiles: bool,
}

/// Samples, builds, runs, and reports; fails if a mutant survives without an explanation.
pub fn run(root: &Path, arguments: &Mutate) -> Result<()> {
    let mut mutants = sample(everything(root, &arguments.only)?, arguments.seed, arguments.sample);
    if arguments.list {
        for mutant in &mutants {
            println!("{}\n    {}", mutant.words(), mutant.key);
        }
        return Ok(());
    }
    let folder = root.join("target/mutate");
    fs::create_dir_all(&folder)?;
    let copy = Copy::new(root, &arguments.suites)?;
    let seeds = Seeds { ordinary: arguments.lives, atlas: arguments.atlas, net: arguments.net };
    let swarm = seeds.ordinary + seeds.atlas + seeds.net > 0;
    let programs = copy.build(&mut mutants, swarm)?;
    let runs = runs::all(&folder.join("copy"), &programs, &arguments.suites, seeds)?;
    println!("{} mutants are built, {} runs are tried without one", mutants.len(), runs.len());
    let longest = Duration::from_secs(arguments.longest);
    let baselines = runs::baselines(&runs, &folder, arguments.jobs, longest)?;
    for (name, _) in baselines.iter().filter(|(_, baseline)| baseline.seconds.is_none()) {
        println!("left out, it fails or takes long without a mutant: {name}");
    }
    let trial = Trial::new(&runs, &baselines, arguments);
    if let Some(number) = arguments.mutant {
        return trial.show(mutants.iter().find(|mutant| mutant.number == number));
    }
    let report = Report::load(&folder.join("report.json"), arguments.anew);
    let report = trial.run(&mutants, report, arguments.jobs)?;
    report.finish(root, &mutants)
}

impl Mutant {
    fn words(&self) -> String {
        let Self { number, file, candidate, line_text, .. } = self;
        let Candidate { line, operator, function, .. } = candidate;
        format!("{number} {file}:{line} {function}: {operator}: {line_text}")
    }
}

/// All mutants of the crates.
fn everything(root: &Path, only: &[String]) -> Result<Vec<Mutant>> {
    let mut mutants = Vec::new();
    for file in copy::sources(root)? {
        let name = file.rsplit('/').next().unwrap_or_default();
        let other = ["tests.rs", "mutants.rs", "fuzz.rs"].contains(&name) || file.contains("/tests/");
        let wanted = only.is_empty() || only.iter().any(|only| file.contains(only.as_str()));
        if other || !wanted {
            continue;
        }
        let source = fs::read_to_string(root.join(&file))?;
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        for candidate in candidates(&source).with_context(|| file.clone())? {
            let key = key(&file, &source, &candidate);
            let again = seen.entry(key.clone()).or_default();
            *again += 1;
            let key = if *again == 1 { key } else { format!("{key} #{again}") };
            let line_text = source.lines().nth(candidate.line - 1).unwrap_or_default().trim().to_owned();
            mutants.push(Mutant { number: 0, file: file.clone(), key, line_text, candidate, compiles: true });
        }
    }
    Ok(mutants)
}

/// File, function, operator, and what is changed, its white space aside.
fn key(file: &str, source: &str, candidate: &Candidate) -> String {
    let text: Vec<&str> = source[candidate.range.clone()].split_whitespace().collect();
    let line = source.lines().nth(candidate.line - 1).unwrap_or_default().trim();
    let text = format!("{} in {line}", text.join(" "));
    format!("{file} {} {} {:016x}", candidate.function, candidate.operator, hash(&text))
}

/// FNV-1a.
fn hash(text: &str) -> u64 {
    let add = |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, add)
}

/// So many of them, none of which crosses another; the numbers begin at 1. Each mutant draws its place by its
/// name, so an edit elsewhere leaves the sample nearly as it was.
fn sample(mut all: Vec<Mutant>, seed: u64, count: usize) -> Vec<Mutant> {
    all.sort_by_cached_key(|mutant| Random::new(hash(&mutant.key) ^ seed).number());
    let mut chosen: Vec<Mutant> = Vec::new();
    for mutant in all {
        let crossing = |other: &Mutant| {
            other.file == mutant.file && schemata::cross(&other.candidate.range, &mutant.candidate.range)
        };
        if chosen.len() < count && !chosen.iter().any(crossing) {
            chosen.push(mutant);
        }
    }
    chosen.sort_by(|one, other| (&one.file, one.candidate.line).cmp(&(&other.file, other.candidate.line)));
    for (number, mutant) in (1..).zip(&mut chosen) {
        mutant.number = number;
    }
    chosen
}

/// The runs, in the order in which they are tried.
struct Trial<'a> {
    runs: Vec<(&'a Run, f64, BTreeSet<u32>)>,
    patience: f64,
    /// How many mutants each run has killed: what kills often is asked sooner.
    kills: Mutex<BTreeMap<String, u32>>,
}

impl<'a> Trial<'a> {
    fn new(runs: &'a [Run], baselines: &BTreeMap<String, Baseline>, arguments: &Mutate) -> Self {
        let known = runs.iter().filter_map(|run| {
            let baseline = baselines.get(&run.name)?;
            Some((run, baseline.seconds?, baseline.reached.iter().copied().collect()))
        });
        let mut runs: Vec<_> = known.collect();
        runs.sort_by(|one, other| one.1.total_cmp(&other.1));
        #[expect(clippy::cast_precision_loss, reason = "seconds")]
        let patience = arguments.patience as f64;
        Self { runs, patience, kills: Mutex::default() }
    }

    fn run(&self, mutants: &[Mutant], report: Report, jobs: usize) -> Result<Report> {
        let open: Vec<&Mutant> = mutants.iter().filter(|mutant| !report.is_killed(&mutant.key)).collect();
        let report = Mutex::new(report);
        runs::in_parallel(jobs, &open, |_, mutant| {
            let verdict = self.verdict(mutant)?;
            if verdict.is_survival() {
                println!("{}: {}", verdict.words(), mutant.words());
            }
            let mut report = report.lock().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
            report.note(Outcome::new(mutant, verdict))
        })?;
        report.into_inner().map_err(|_| anyhow::anyhow!("a thread panicked"))
    }

    fn verdict(&self, mutant: &Mutant) -> Result<Verdict> {
        if !mutant.compiles {
            return Ok(Verdict::DoesNotCompile);
        }
        let mut reaching: Vec<_> =
            self.runs.iter().filter(|(_, _, reached)| reached.contains(&mutant.number)).collect();
        if reaching.is_empty() {
            return Ok(Verdict::NotReached);
        }
        if let Ok(kills) = self.kills.lock() {
            let price = |run: &Run, seconds: f64| {
                (seconds + 0.02) / f64::from(1 + kills.get(&run.name).copied().unwrap_or(0))
            };
            reaching.sort_by(|one, other| price(one.0, one.1).total_cmp(&price(other.0, other.1)));
        }
        let (mut spent, mut tried) = (0.0, 0);
        for (run, seconds, _) in reaching {
            let end = run.with_mutant(mutant.number, *seconds)?;
            if end != End::Passed {
                if let Ok(mut kills) = self.kills.lock() {
                    *kills.entry(run.name.clone()).or_default() += 1;
                }
                return Ok(Verdict::Killed { by: run.name.clone(), hung: end == End::Hung });
            }
            tried += 1;
            spent += seconds;
            if spent > self.patience {
                break;
            }
        }
        Ok(Verdict::Survived { tried })
    }

    fn show(&self, mutant: Option<&Mutant>) -> Result<()> {
        let Some(mutant) = mutant else { bail!("the sample has no mutant of that number") };
        println!("{}\n{}", mutant.words(), mutant.key);
        for (run, seconds, reached) in &self.runs {
            if reached.contains(&mutant.number) {
                println!("{:?} {:.1} s {}", run.with_mutant(mutant.number, *seconds)?, seconds, run.name);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(source: &str) -> Vec<Mutant> {
        let found = candidates(source).unwrap().into_iter();
        found
            .map(|candidate| Mutant {
                number: 0,
                file: "a.rs".to_owned(),
                key: key("a.rs", source, &candidate),
                line_text: String::new(),
                candidate,
                compiles: true,
            })
            .collect()
    }

    #[test]
    fn a_sample_is_the_same_each_time_and_nothing_in_it_crosses() {
        let all = of("fn f() { a(); b(); c(); d(); if e < 1 { f(); g(); h(); } }");
        let keys = |mutants: &[Mutant]| mutants.iter().map(|one| one.key.clone()).collect::<Vec<_>>();
        let sampled = sample(all.clone(), 3, 10);
        assert_eq!(keys(&sampled), keys(&sample(all.clone(), 3, 10)));
        assert_ne!(keys(&sampled), keys(&sample(all.clone(), 4, 10)));
        let whole = sample(all, 3, usize::MAX);
        for (one, other) in whole.iter().flat_map(|one| whole.iter().map(move |other| (one, other))) {
            assert!(!schemata::cross(&one.candidate.range, &other.candidate.range));
        }
    }

    #[test]
    fn a_key_outlives_lines_that_are_put_before_it() {
        let (short, long) = ("fn f() {\n    a(1);\n}", "// More.\nfn g() {}\nfn f() {\n    a(1);\n}");
        assert_eq!(of(short)[0].key, of(long)[0].key);
        assert_ne!(of(short)[0].key, of("fn f() {\n    a(2);\n}")[0].key);
    }

    #[test]
    fn all_that_the_crates_offer_parses_when_it_is_woven() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let all = everything(root, &[]).unwrap();
        assert!(all.len() > 2000, "{}", all.len());
        let mutants = sample(all, 1, 600);
        for file in mutants.iter().map(|mutant| mutant.file.clone()).collect::<BTreeSet<_>>() {
            let source = fs::read_to_string(root.join(&file)).unwrap();
            let own = mutants.iter().filter(|mutant| mutant.file == file);
            let numbered: Vec<_> = own
                .map(|mutant| schemata::Numbered {
                    number: mutant.number,
                    candidate: mutant.candidate.clone(),
                })
                .collect();
            assert!(syn::parse_file(&schemata::weave(&source, &numbered).text).is_ok(), "{file}");
        }
    }
}
