//! What is run against a mutant: each test of the crates and each seed of the swarm is one run, a process of
//! its own.
//!
//! First every run goes once without a mutant: it must pass, its time is its cost, and it writes down which
//! mutants it asked about. A mutant then meets only the runs that reach it, the cheapest first, until one
//! fails. A process that takes far longer than it did, by its own time or by the clock, or far more memory,
//! has failed too.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::copy::Program;

/// Memory that a run may map.
const MEMORY_BYTES: u64 = 12 << 30;

/// A test or a seed.
#[derive(Clone, Debug)]
pub struct Run {
    /// For people: `engine/flush a_failed_flush_...` or `seed 12`.
    pub name: String,
    program: PathBuf,
    arguments: Vec<String>,
    folder: PathBuf,
}

/// How often each kind of the swarm's lives is run.
#[derive(Clone, Copy, Debug)]
pub struct Seeds {
    /// Ordinary lives.
    pub ordinary: u64,
    /// Lives with members that come back, are replaced and hang.
    pub atlas: u64,
    /// Lives over the network.
    pub net: u64,
}

/// The first of a kind of lives; see `crates/sim/src/swarm/mod.rs`.
const FIRST_OF_ATLAS: u64 = 2_000_000;
const FIRST_OF_NET: u64 = 4_000_000;

/// What a run costs and which mutants it reaches.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Baseline {
    /// Seconds; `None` if it failed without a mutant.
    pub seconds: Option<f64>,
    /// Numbers of mutants.
    pub reached: Vec<u32>,
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It passed.
    Passed,
    /// It failed or panicked.
    Failed,
    /// It took too long.
    Hung,
}

/// All runs of the programs: the crates' own unit tests, what the suites have, and the seeds.
pub fn all(copy: &Path, programs: &[Program], suites: &[String], seeds: Seeds) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for program in programs {
        let folder = copy.join("crates").join(&program.package);
        if program.name == "swarm" && !program.is_test {
            let ordinary = 0..seeds.ordinary;
            let atlas = FIRST_OF_ATLAS..FIRST_OF_ATLAS + seeds.atlas;
            let net = FIRST_OF_NET..FIRST_OF_NET + seeds.net;
            runs.extend(ordinary.chain(atlas).chain(net).map(|seed| {
                Run {
                    name: format!("seed {seed}"),
                    program: program.path.clone(),
                    arguments: ["run", "--seeds", "1", "--twice-every", "0", "--from", &seed.to_string()]
                        .map(str::to_owned)
                        .to_vec(),
                    folder: folder.clone(),
                }
            }));
        } else if program.is_test {
            let name = if program.of_library { "lib" } else { &program.name };
            let name = format!("{}/{name}", program.package);
            let list = Command::new(&program.path)
                .args(["--list", "--format", "terse"])
                .current_dir(&folder)
                .output()
                .with_context(|| format!("list the tests of {}", program.path.display()))?;
            let list = String::from_utf8_lossy(&list.stdout).into_owned();
            let tests = list.lines().filter_map(|line| line.strip_suffix(": test"));
            let wanted = tests.filter(|test| program.of_library || has(suites, &name, test));
            runs.extend(wanted.map(|test| Run {
                name: format!("{name} {test}"),
                program: program.path.clone(),
                arguments: vec![test.to_owned(), "--exact".to_owned(), "--test-threads=1".to_owned()],
                folder: folder.clone(),
            }));
        }
    }
    if runs.is_empty() {
        bail!("no test and no seed was found");
    }
    Ok(runs)
}

/// Whether one of the suites has this test of a program.
fn has(suites: &[String], program: &str, test: &str) -> bool {
    suites.iter().any(|suite| match suite.split_once("::") {
        Some((of, module)) => {
            of == program && test.strip_prefix(module).is_some_and(|rest| rest.starts_with("::"))
        }
        None => suite == program,
    })
}

impl Run {
    /// Runs it within these limits.
    pub fn go(&self, environment: (&str, &str), cpu: Duration, clock: Duration) -> Result<End> {
        // A process that doesn't end is ended by the kernel (its own time) or by timeout (the clock).
        let status = Command::new("setpriv")
            .args(["--pdeathsig", "TERM", "--", "timeout", "--kill-after=1"])
            .args([&clock.as_secs().max(1).to_string(), "prlimit", "--core=0"])
            .arg(format!("--cpu={}", cpu.as_secs().max(1)))
            .arg(format!("--as={MEMORY_BYTES}"))
            .arg("--")
            .arg(&self.program)
            .args(&self.arguments)
            .env(environment.0, environment.1)
            .current_dir(&self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .context("run setpriv, timeout and prlimit (coreutils, util-linux)")?;
        Ok(match status.code() {
            Some(0) => End::Passed,
            Some(124 | 137 | 152) | None => End::Hung,
            Some(_) => End::Failed,
        })
    }

    /// Runs it with this mutant, far longer than it takes without.
    pub fn with_mutant(&self, number: u32, usual: f64) -> Result<End> {
        let usual = Duration::from_secs_f64(usual);
        self.go(
            ("MUTATION", &number.to_string()),
            usual * 8 + Duration::from_secs(3),
            usual * 40 + Duration::from_secs(40),
        )
    }

    fn baseline(&self, record: &Path, longest: Duration) -> Result<Baseline> {
        if record.exists() {
            fs::remove_file(record)?;
        }
        let began = Instant::now();
        let end = self.go(("MUTATION_REACHED", &record.to_string_lossy()), longest, longest * 10)?;
        let seconds = (end == End::Passed).then(|| began.elapsed().as_secs_f64());
        let bytes = fs::read(record).unwrap_or_default();
        let numbers =
            bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        Ok(Baseline { seconds, reached: numbers.collect() })
    }
}

/// Runs all once without a mutant.
pub fn baselines(
    runs: &[Run],
    folder: &Path,
    jobs: usize,
    longest: Duration,
) -> Result<BTreeMap<String, Baseline>> {
    let found = Mutex::new(BTreeMap::new());
    in_parallel(jobs, runs, |job, run| {
        let baseline = run.baseline(&folder.join(format!("reached-{job}")), longest)?;
        if let Ok(mut found) = found.lock() {
            found.insert(run.name.clone(), baseline);
        }
        Ok(())
    })?;
    found.into_inner().map_err(|_| anyhow::anyhow!("a thread panicked"))
}

/// Does something with each item, in so many threads; the first error ends it.
pub fn in_parallel<T: Sync>(
    jobs: usize,
    items: &[T],
    act: impl Fn(usize, &T) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let worker = |job: usize| -> Result<()> {
        while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            act(job, item)?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let worker = &worker;
        let threads: Vec<_> = (0..jobs).map(|job| scope.spawn(move || worker(job))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Run {
        let arguments = vec!["-c".to_owned(), script.to_owned()];
        Run { name: script.to_owned(), program: "sh".into(), arguments, folder: ".".into() }
    }

    #[test]
    fn a_suite_is_a_program_or_a_module_of_one() {
        let suites = ["md/golden", "engine/engine::logs"].map(str::to_owned);
        assert!(has(&suites, "md/golden", "reads_every_image"));
        assert!(has(&suites, "engine/engine", "logs::a_log_goes"));
        assert!(!has(&suites, "engine/engine", "logs_of_others::a_log_goes"));
        assert!(!has(&suites, "engine/engine", "faults::a_member_hangs"));
        assert!(!has(&suites, "md/logs", "logs::a_log_goes"));
    }

    #[test]
    fn a_run_passes_fails_or_hangs() {
        let go = |script: &str, most: u64| {
            shell(script).go(("MUTATION", "7"), Duration::from_secs(1), Duration::from_secs(most)).unwrap()
        };
        assert_eq!(go("test $MUTATION = 7", 60), End::Passed);
        assert_eq!(go("exit 1", 60), End::Failed);
        assert_eq!(go("while :; do :; done", 60), End::Hung);
        assert_eq!(go("sleep 60", 2), End::Hung);
    }
}
