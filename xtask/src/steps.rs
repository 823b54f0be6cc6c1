//! `cargo xtask test`: every check, in order, within one budget of time.
//!
//! Each step is a process of its own. Its whole output goes to `target/xtask/STEP.log`; on the terminal stand
//! its name, its duration, its runners' own closing lines, and what they said of tests that failed. Later
//! steps still run. What takes longer than CI has runs there as a fixed sample; `--all` runs it whole, and
//! prints a table for the record.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use clap::Args;

/// For all steps together, on two cores.
const BUDGET: Duration = Duration::from_mins(58);
/// Lines that are shown of a failed step's log if it doesn't say what failed, and at most of each failure.
const TAIL_LINES: usize = 60;

/// Which steps run, and how much of each.
#[derive(Args)]
pub struct Test {
    /// Only these steps [default: all]
    #[arg(value_name = "STEP")]
    steps: Vec<String>,
    /// What a change needs before a commit: minutes, once everything is built
    #[arg(long, conflicts_with = "all")]
    quick: bool,
    /// Long runs whole and not as samples, without a limit of time: many hours
    #[arg(long)]
    all: bool,
    /// Show the steps, and run none
    #[arg(long)]
    list: bool,
}

/// A step: its name and what it runs. `cargo` and `xtask` as the first word mean this cargo and this very
/// program; words `NAME=VALUE` before it are its environment; `LEFT` is what is left of the budget, in
/// seconds.
struct Step {
    name: &'static str,
    /// What it finds out.
    about: &'static str,
    /// What CI runs; nothing where its hour has no room for it.
    usual: Option<&'static str>,
    /// What `--quick` runs, if anything.
    quick: Option<&'static str>,
    /// What `--all` runs, where CI runs only a sample or nothing.
    whole: Option<&'static str>,
    /// How much of the budget has to be left for it; with less it is left out, and that is said.
    needs: Duration,
}

impl Step {
    const fn new(name: &'static str, about: &'static str, usual: &'static str) -> Self {
        Self { name, about, usual: Some(usual), quick: None, whole: None, needs: Duration::ZERO }
    }

    /// A step that runs only with `--all` and where it is asked for.
    const fn seldom(name: &'static str, about: &'static str, whole: &'static str) -> Self {
        Self { name, about, usual: None, quick: None, whole: Some(whole), needs: Duration::ZERO }
    }

    /// `--quick` runs this.
    const fn quick(mut self, command: &'static str) -> Self {
        self.quick = Some(command);
        self
    }

    /// `--all` runs this instead.
    const fn whole(mut self, command: &'static str) -> Self {
        self.whole = Some(command);
        self
    }

    /// It runs only if so much of the budget is left.
    const fn needs(mut self, minutes: u64) -> Self {
        self.needs = Duration::from_secs(60 * minutes);
        self
    }

    /// What is run of it.
    fn command(&self, test: &Test) -> Option<&'static str> {
        match (test.quick, test.all) {
            (true, _) => self.quick,
            (_, true) => self.whole.or(self.usual),
            _ if test.steps.is_empty() => self.usual,
            _ => self.usual.or(self.whole),
        }
    }
}

// To be checked, what is linked to ISA-L doesn't need it.
const CLIPPY: &str = "cargo clippy --workspace --all-targets --features pinstripe-bench/isal -- -D warnings";
const UNIT: &str = "cargo test --workspace --no-fail-fast";
// With the planned defects, all of which are off but in the tests that look for them: so all is built once.
// `--quick` builds it as users get it, as do soak and vm. Most of the time tests wait for processes and
// time-outs.
const UNIT_DEFECTS: &str = "RUST_TEST_THREADS=8 cargo test --workspace --no-fail-fast --features pinstripe-sim/mutants,pinstripe-bench/mutants";
const SHUTTLE: &str = "cargo test -p pinstripe-models --features shuttle";

/// What steps behind the unit tests need. It is built while those leave the CPUs idle.
const RELEASE: &[&str] = &["build", "--release", "--quiet", "-p", "pinstripe"];

// Its tests with a database need Debian's RocksDB; those without are its library's.
const YCSB: &str = "cargo test --manifest-path apps/ycsb/Cargo.toml --lib";

const STEPS: &[Step] = &[
    Step::new("fmt", "format", "cargo fmt --all --check").quick("cargo fmt --all --check"),
    Step::new("clippy", "lints", CLIPPY).quick(CLIPPY),
    Step::new("tidy", "the house style, the documents' links, the drawing of the crates", "xtask tidy")
        .quick("xtask tidy"),
    Step::new("unit", "the tests of all crates, and of planned defects", UNIT_DEFECTS).quick(UNIT),
    Step::new("ycsb", "the generator of YCSB's workloads, which is no part of the workspace", YCSB)
        .quick(YCSB),
    Step::new("shuttle", "orders of threads in the runtime and the engine", SHUTTLE),
    Step::new("neon", "parity kernels of AArch64 under qemu-user", "xtask neon"),
    Step::new("sim", "whole lives of arrays on simulated disks", "xtask sim")
        .quick("xtask sim --seeds 60")
        .whole("xtask sim --states --seeds 4000"),
    Step::new("soak", "servers that are killed under load", "xtask soak kill --rounds 4")
        .whole("xtask soak kill --rounds 500"),
    Step::new("cost", "instructions of requests in the engine", "xtask cost"),
    Step::new(
        "figures",
        "the papers' figures, a few points, beside those on record",
        "xtask figures --short --out target/xtask/figures",
    ),
    Step::new("deb", "the Debian package, with its units, manual pages and completions", "xtask deb"),
    // Chromium would have to be installed each time, with 440 MB of packages.
    Step::seldom("web", "the daemon's page in a headless Chromium", "xtask web"),
    // PostgreSQL and RocksDB would have to be installed each time, and three rounds take five minutes.
    Step::seldom("apps", "databases under servers that are killed", "xtask apps --unless-unprivileged"),
    Step::new("net", "NVMe/TCP over network namespaces", "xtask net --unless-unprivileged"),
    // What comes now is left out on a slow machine, whole or in part, and named: the machines of CI differ in
    // speed by two.
    Step::new("mutants", "planned defects against the simulator", "xtask mutants").needs(13),
    Step::new(
        "mutate",
        "defects that were not planned, a fixed sample of md's",
        "xtask mutate --only crates/md --sample 30 --lives 0 --atlas 0 --net 0 --suites md/golden",
    )
    .whole("xtask mutate --sample 420")
    .needs(3),
    Step::new("fuzz", "everything that parses bytes from outside", "xtask fuzz --seconds 4")
        .whole("xtask fuzz --seconds 3600")
        .needs(5),
    Step::new(
        "debian",
        "the package on a Debian with systemd",
        "xtask vm --debian --short --unless-unprivileged",
    )
    .whole("xtask vm --debian --unless-unprivileged")
    .needs(11),
    // Last, for it fills what is left of the budget: a step behind it would run by luck.
    Step::new("vm", "the kernel and mdadm in QEMU", "xtask vm --sample --within LEFT")
        .whole("xtask vm")
        .needs(1),
];

/// Runs the steps; fails if one failed.
pub fn run(root: &Path, test: &Test) -> Result<()> {
    let steps = chosen(test)?;
    if test.list {
        for (step, command) in steps {
            println!("{:15} {}\n{:15} {command}", step.name, step.about, "");
        }
        return Ok(());
    }
    // Unit tests need some of them, too.
    crate::packages::ensure()?;
    let tools = crate::packages::promtool(root)?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths(tools.into_iter().chain(std::env::split_paths(&path)))?;
    let logs = root.join("target/xtask");
    fs::create_dir_all(&logs)?;
    let start = Instant::now();
    let (mut failed, mut left_out, mut record) = (Vec::new(), 0, String::new());
    let mut release = None;
    for (step, command) in &steps {
        println!("--- {}", step.name);
        if *command == UNIT_DEFECTS && test.steps.is_empty() {
            release = Some(Aside::begin(root, RELEASE)?);
        }
        let began = Instant::now();
        let log = logs.join(format!("{}.log", step.name));
        let left = if test.all { Duration::MAX } else { BUDGET.saturating_sub(start.elapsed()) };
        if left < step.needs {
            println!(
                "    left out: it may take {} minutes, and {} of {} are left; alone: cargo xtask test {}",
                step.needs.as_secs() / 60,
                left.as_secs() / 60,
                BUDGET.as_secs() / 60,
                step.name
            );
            left_out += 1;
            continue;
        }
        let computed = computed_seconds()?;
        let result = run_step(root, command, &path, &log, left);
        print_log(&log, result.is_err());
        let seconds = began.elapsed().as_secs_f64();
        let busy = (computed_seconds()? - computed) / seconds;
        let _ = writeln!(record, "| `{command}` | {} | {seconds:.0} |", ending(&log, result.is_ok()));
        match result {
            Ok(()) => println!("    {} ok in {seconds:.1} s, {busy:.1} CPUs busy", step.name),
            Err(error) => {
                println!("    {} FAILED after {seconds:.1} s: {error:#}", step.name);
                failed.push(step.name);
            }
        }
    }
    drop(release);
    println!("{:.0} s in all", start.elapsed().as_secs_f64());
    if test.all {
        println!("for docs/results/reliability.md:\n\n| run | ended | seconds |\n|---|---|---|\n{record}");
    }
    let passed = steps.len() - failed.len() - left_out;
    println!("{passed} passed, {} failed, {left_out} left out", failed.len());
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// A cargo that works beside the steps, with what they leave of the CPUs. Whatever needs its result waits for
/// its lock of the folder, and says what is wrong.
struct Aside(Child);

impl Aside {
    fn begin(root: &Path, arguments: &[&str]) -> Result<Self> {
        let mut run = Command::new("setpriv");
        crate::cargo::forget_this_package(&mut run);
        run.args(["--pdeathsig", "TERM", "--", "nice", "-n", "19"]).arg(crate::cargo::path()).args(arguments);
        run.current_dir(root).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Ok(Self(run.spawn().context("run setpriv and nice (util-linux, coreutils)")?))
    }
}

impl Drop for Aside {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Seconds of CPU that ended children of this process have had, with theirs.
fn computed_seconds() -> Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat").context("/proc/self/stat")?;
    // proc_pid_stat(5): cutime and cstime, the fields 16 and 17, in ticks; the name, field 2, may have
    // blanks.
    let behind_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split(' ');
    let ticks = behind_name.skip(13).take(2).filter_map(|field| field.parse::<u64>().ok()).sum::<u64>();
    Ok(Duration::from_millis(1000 * ticks / rustix::param::clock_ticks_per_second()).as_secs_f64())
}

/// The steps that were asked for, each with its command.
fn chosen(test: &Test) -> Result<Vec<(&'static Step, &'static str)>> {
    for name in &test.steps {
        if !STEPS.iter().any(|step| step.name == name) {
            bail!("there is no step {name}; `cargo xtask test --list` shows them");
        }
    }
    let is_wanted = |step: &&Step| test.steps.is_empty() || test.steps.iter().any(|name| name == step.name);
    Ok(STEPS.iter().filter(is_wanted).filter_map(|step| Some((step, step.command(test)?))).collect())
}

fn read(log: &Path) -> String {
    fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// What the last closing line of a log says.
fn ending(log: &Path, ok: bool) -> String {
    let text = read(log);
    let last = text.lines().rev().find(|line| is_closing_line(line));
    last.unwrap_or(if ok { "ok" } else { "failed" }).to_owned()
}

fn run_step(root: &Path, command: &str, path: &OsStr, log: &Path, left: Duration) -> Result<()> {
    if left.is_zero() {
        bail!("the budget of {} minutes is used up", BUDGET.as_secs() / 60);
    }
    let mut words = command.split_whitespace().peekable();
    let variables: Vec<(&str, &str)> =
        std::iter::from_fn(|| words.next_if(|word| word.contains('='))?.split_once('=')).collect();
    let program = match words.next().unwrap_or_default() {
        "cargo" => crate::cargo::path(),
        _ => std::env::current_exe()?,
    };
    let output = File::create(log)?;
    // timeout ends the whole group of processes; setpriv ends timeout if we are killed ourselves.
    let mut run = Command::new("setpriv");
    crate::cargo::forget_this_package(&mut run);
    let status = run
        .args(["--pdeathsig", "TERM", "--", "timeout", "--kill-after=10"])
        // To timeout, 0 is no limit.
        .arg(if left == Duration::MAX { 0 } else { left.as_secs().max(1) }.to_string())
        .arg(program)
        .args(words.map(|word| if word == "LEFT" { left.as_secs().to_string() } else { word.to_owned() }))
        .envs(variables)
        .env("PATH", path)
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

fn print_log(log: &Path, failed: bool) {
    let text = read(log);
    let lines: Vec<&str> = text.lines().collect();
    let failures = if failed { failures(&lines) } else { Vec::new() };
    if failed && failures.is_empty() {
        for line in &lines[lines.len().saturating_sub(TAIL_LINES)..] {
            println!("    {line}");
        }
        return;
    }
    for line in failures.iter().chain(lines.iter().filter(|line| is_closing_line(line))) {
        println!("    {line}");
    }
}

/// What a log says of that which failed: cargo test's sections of tests, errors of compilers, scenarios of
/// ours. The end of the log alone is the end of the runner that happened to be last.
fn failures<'a>(lines: &[&'a str]) -> Vec<&'a str> {
    let mut shown = Vec::new();
    let mut left = 0;
    for line in lines {
        let of_ours = line.contains(" FAILED ") && !line.starts_with("test result:");
        if *line == "failures:" || line.starts_with("error") || of_ours {
            left = TAIL_LINES;
        } else if is_closing_line(line) || line.starts_with("test ") || line.contains(" ok ") {
            left = 0;
        }
        if left > 0 {
            shown.push(*line);
            left -= 1;
        }
    }
    shown
}

/// The lines in which a runner sums up: cargo test's (those of empty suites left out), and our own.
fn is_closing_line(line: &str) -> bool {
    let cargo_test = line.starts_with("test result:") && !line.contains(" 0 passed; 0 failed");
    let ours = line.starts_with("tidy:")
        || line.starts_with("neon:")
        || line.starts_with("net:")
        || line.starts_with("debian:")
        || line.starts_with("deb:")
        || line.starts_with("left out, no time: ")
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
    fn what_failed_is_shown_wherever_the_log_has_it() {
        let log = "test one ... ok\ntest two ... FAILED\n\nfailures:\n\n---- two stdout ----\nwrong byte\n\n\
            test result: FAILED. 1 passed; 1 failed\nRunning more\ntest three ... ok\ntest result: ok. 1 passed; 0 failed\n\
            error: 1 target failed:\n    `-p two`\n";
        let shown = failures(&log.lines().collect::<Vec<_>>()).join("|");
        assert_eq!(shown, "failures:||---- two stdout ----|wrong byte||error: 1 target failed:|    `-p two`");
        let log = "ext4    ok   1.0 s\nhang    FAILED   2.0 s: no disk\nthe guest said:\nublk    ok   3.0 s\n1 passed, 1 failed";
        let shown = failures(&log.lines().collect::<Vec<_>>()).join("|");
        assert_eq!(shown, "hang    FAILED   2.0 s: no disk|the guest said:");
        assert!(failures(&["building", "killed"]).is_empty());
    }

    #[test]
    fn a_step_that_fails_is_reported_with_its_log() {
        let log = std::env::temp_dir().join(format!("step-{}.log", std::process::id()));
        let error = run_step(
            Path::new("."),
            "cargo no-such-subcommand",
            &std::env::var_os("PATH").unwrap_or_default(),
            &log,
            Duration::from_mins(1),
        )
        .unwrap_err();
        assert!(error.to_string().contains("whole log"), "{error}");
        assert!(fs::read_to_string(&log).unwrap().contains("no-such-subcommand"));
        fs::remove_file(log).unwrap();
    }

    #[test]
    fn a_step_is_told_what_is_left_of_the_budget() {
        let log = std::env::temp_dir().join(format!("left-{}.log", std::process::id()));
        let path = std::env::var_os("PATH").unwrap_or_default();
        run_step(Path::new("."), "cargo LEFT", &path, &log, Duration::from_secs(77)).unwrap_err();
        assert!(read(&log).contains("`77`"), "{}", read(&log));
        fs::remove_file(log).unwrap();
    }

    #[test]
    fn steps_are_chosen_by_name_and_by_how_much_of_them_is_wanted() {
        let test = |steps: &[&str], quick, all| Test {
            steps: steps.iter().map(|&name| name.to_owned()).collect(),
            quick,
            all,
            list: false,
        };
        let sim = |quick, all| chosen(&test(&["sim"], quick, all)).unwrap()[0].1;
        assert_eq!(sim(false, false), "xtask sim");
        assert_ne!(sim(true, false), sim(false, true));
        assert!(chosen(&test(&["vm"], true, false)).unwrap().is_empty());
        assert_eq!(chosen(&test(&[], false, true)).unwrap().len(), STEPS.len());
        assert!(chosen(&test(&["no-such-step"], false, false)).is_err());
    }

    #[test]
    fn what_needs_packages_is_tried_by_a_whole_run_and_where_it_is_asked_for() {
        for (name, command) in [("web", "xtask web"), ("apps", "xtask apps --unless-unprivileged")] {
            let steps = |names: &[&str], all| {
                let steps = names.iter().map(|&name| name.to_owned()).collect();
                let chosen = chosen(&Test { steps, quick: false, all, list: false }).unwrap();
                chosen.iter().filter(|(step, tried)| step.name == name && *tried == command).count()
            };
            assert_eq!((steps(&[], true), steps(&[name], false), steps(&[], false)), (1, 1, 0), "{name}");
        }
    }

    #[test]
    fn what_fills_the_budget_comes_last_and_the_package_is_checked_before_it() {
        let commands: Vec<&str> = STEPS.iter().filter_map(|step| step.usual).collect();
        let fills = |command: &&str| command.split(' ').any(|word| word == "LEFT");
        assert_eq!(commands.iter().position(fills), Some(commands.len() - 1), "{commands:?}");
        assert!(commands.contains(&"xtask deb"), "{commands:?}");
    }

    #[test]
    fn a_step_does_not_outlive_the_budget() {
        let error = run_step(Path::new("."), "cargo", OsStr::new(""), Path::new("/dev/null"), Duration::ZERO)
            .unwrap_err();
        assert!(error.to_string().contains("budget"), "{error}");
    }
}
