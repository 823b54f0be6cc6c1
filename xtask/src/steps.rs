//! `cargo xtask test`: every check, in order, within one budget of time.
//!
//! Each step is a process of its own. Its whole output goes to `target/xtask/STEP.log`; on the terminal stand its name,
//! its duration and its runners' own closing lines, and the end of the log if it failed. Later steps still run.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// For all steps together, on two cores.
const BUDGET: Duration = Duration::from_hours(1);
/// Lines of a failed step's log that are shown.
const TAIL_LINES: usize = 60;

/// A step: its name and what it runs. `cargo` and `xtask` as the program mean this cargo and this very program.
struct Step {
    name: &'static str,
    program: &'static str,
    arguments: &'static [&'static str],
}

const STEPS: &[Step] = &[
    Step { name: "fmt", program: "cargo", arguments: &["fmt", "--all", "--check"] },
    Step {
        name: "clippy",
        program: "cargo",
        arguments: &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"],
    },
    Step { name: "tidy", program: "xtask", arguments: &["tidy"] },
    Step { name: "unit", program: "cargo", arguments: &["test", "--workspace", "--no-fail-fast"] },
    Step {
        name: "shuttle",
        program: "cargo",
        arguments: &["test", "-p", "pinstripe-runtime", "--features", "shuttle", "--test", "shuttle"],
    },
    Step {
        name: "shuttle-engine",
        program: "cargo",
        arguments: &["test", "-p", "pinstripe-engine", "--features", "shuttle", "--test", "shuttle"],
    },
    Step { name: "neon", program: "xtask", arguments: &["neon"] },
    Step { name: "sim", program: "xtask", arguments: &["sim"] },
    Step { name: "mutants", program: "xtask", arguments: &["mutants"] },
    Step {
        name: "mutants-engine",
        program: "cargo",
        arguments: &[
            "test",
            "-p",
            "pinstripe-engine",
            "--features",
            "mutants",
            "--test",
            "fault_mutants",
            "--test",
            "log_crashes",
            "--test",
            "write_hole",
            "--test",
            "journal_crash",
            "--test",
            "replacement",
            "--test",
            "membership",
            "--test",
            "races",
            "--test",
            "checkpoints",
            "--test",
            "logs",
            "--test",
            "offload_mutants",
        ],
    },
    Step {
        name: "mutants-runtime",
        program: "cargo",
        arguments: &["test", "-p", "pinstripe-runtime", "--features", "mutants", "--lib", "--test", "stalls"],
    },
    Step {
        name: "mutants-export",
        program: "cargo",
        arguments: &[
            "test",
            "-p",
            "pinstripe-export",
            "--features",
            "mutants",
            "--test",
            "nbd",
            "session::every_defect",
        ],
    },
    Step {
        name: "mutants-nvme",
        program: "cargo",
        arguments: &["test", "-p", "pinstripe-nvme", "--features", "mutants", "--test", "simulated"],
    },
    Step { name: "fuzz", program: "xtask", arguments: &["fuzz", "--seconds", "8"] },
    Step { name: "soak", program: "xtask", arguments: &["soak", "kill", "--rounds", "7"] },
    Step { name: "net", program: "xtask", arguments: &["net", "--unless-unprivileged"] },
    Step { name: "vm", program: "xtask", arguments: &["vm"] },
];

/// Runs every step; fails if one failed.
pub fn run(root: &Path) -> Result<()> {
    // Unit tests need some of them, too.
    crate::packages::ensure()?;
    let logs = root.join("target/xtask");
    fs::create_dir_all(&logs)?;
    let start = Instant::now();
    let mut failed = Vec::new();
    for step in STEPS {
        println!("--- {}", step.name);
        let began = Instant::now();
        let log = logs.join(format!("{}.log", step.name));
        let left = BUDGET.saturating_sub(start.elapsed());
        let result = run_step(root, step, &log, left);
        print_log(&log, result.is_err());
        let seconds = began.elapsed().as_secs_f64();
        match result {
            Ok(()) => println!("    {} ok in {seconds:.1} s", step.name),
            Err(error) => {
                println!("    {} FAILED after {seconds:.1} s: {error:#}", step.name);
                failed.push(step.name);
            }
        }
    }
    println!("{:.0} s in all", start.elapsed().as_secs_f64());
    println!("{} passed, {} failed", STEPS.len() - failed.len(), failed.len());
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

fn run_step(root: &Path, step: &Step, log: &Path, left: Duration) -> Result<()> {
    if left.is_zero() {
        bail!("the budget of {} minutes is used up", BUDGET.as_secs() / 60);
    }
    let program = match step.program {
        "cargo" => PathBuf::from(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())),
        _ => std::env::current_exe()?,
    };
    let output = File::create(log)?;
    // timeout ends the whole group of processes; setpriv ends timeout if we are killed ourselves.
    let status = Command::new("setpriv")
        .args(["--pdeathsig", "TERM", "--", "timeout", "--kill-after=10"])
        .arg(left.as_secs().max(1).to_string())
        .arg(program)
        .args(step.arguments)
        .current_dir(root)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output)
        .status()
        .context("run setpriv and timeout (util-linux, coreutils)")?;
    match status.code() {
        Some(0) => Ok(()),
        Some(124 | 137) => bail!("the budget of {} minutes is used up", BUDGET.as_secs() / 60),
        _ => bail!("{status}; the whole log: {}", log.display()),
    }
}

fn print_log(log: &Path, whole_tail: bool) {
    let text = fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    if whole_tail {
        for line in &lines[lines.len().saturating_sub(TAIL_LINES)..] {
            println!("    {line}");
        }
    } else {
        for line in lines.iter().filter(|line| is_closing_line(line)) {
            println!("    {line}");
        }
    }
}

/// The lines in which a runner sums up: cargo test's (those of empty suites left out), and our own.
fn is_closing_line(line: &str) -> bool {
    let cargo_test = line.starts_with("test result:") && !line.contains(" 0 passed; 0 failed");
    let ours = line.starts_with("tidy:")
        || line.starts_with("neon:")
        || line.starts_with("net:")
        || (line.contains(" passed, ") && line.contains(" failed"));
    cargo_test || ours
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closing_lines_are_told_from_the_rest() {
        assert!(is_closing_line(
            "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"
        ));
        assert!(!is_closing_line(
            "test result: ok. 0 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"
        ));
        assert!(is_closing_line("7 passed, 0 failed"));
        assert!(!is_closing_line("test pattern::tests::a_block ... ok"));
    }

    #[test]
    fn a_step_that_fails_is_reported_with_its_log() {
        let log = std::env::temp_dir().join(format!("step-{}.log", std::process::id()));
        let step = Step { name: "bad", program: "cargo", arguments: &["no-such-subcommand"] };
        let error = run_step(Path::new("."), &step, &log, Duration::from_mins(1)).unwrap_err();
        assert!(error.to_string().contains("whole log"), "{error}");
        assert!(fs::read_to_string(&log).unwrap().contains("no-such-subcommand"));
        fs::remove_file(log).unwrap();
    }

    #[test]
    fn a_step_does_not_outlive_the_budget() {
        let step = Step { name: "late", program: "cargo", arguments: &[] };
        let error = run_step(Path::new("."), &step, Path::new("/dev/null"), Duration::ZERO).unwrap_err();
        assert!(error.to_string().contains("budget"), "{error}");
    }
}
