//! `cargo xtask figures`: the papers' figures again, measured on ours, as docs/results/papers/.
//!
//! What is bound by drives is measured over models of them under virtual time: then a point is the same on
//! every machine, and takes a second. Points are measured side by side, each by a process of its own. What is
//! bound by the CPU, as locks are, is measured over members in memory, one run at a time, in turns.
//!
//! ```text
//!   raid4s      policies over models of drives
//!   straid      a paper of experiment x figures ─┐
//!   scalaraid   another one, and the bitmap ─────┴> paper ─> page, table, pictures
//! ```
//!
//! dRAID's are measured by `cargo xtask net`, with tables, comparisons and pictures of the same form.

mod bitmap;
pub mod chart;
mod drives;
pub mod experiment;
pub mod paper;
pub mod quantity;
mod raid4s;
mod scalaraid;
mod straid;
mod twice;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};

use self::experiment::Rows;

/// Where pages, tables and pictures lie.
const FOLDER: &str = "docs/results/papers";

/// What measures the fourth paper's.
const DRAID: &str =
    "dRAID's figures are measured by `cargo xtask net --figures`, --objects and --rocksdb, as root";

/// Rounds, unless the user says how many.
const ROUNDS: u32 = 3;

/// What to do.
#[derive(Args)]
pub struct Figures {
    /// Only this paper's
    #[arg(long, value_enum, value_name = "PAPER")]
    only: Option<Which>,
    /// A few points, to see that it works; with --out, because the pages would be wrong
    #[arg(long, requires = "out")]
    short: bool,
    /// Rounds of StRAID's and ScalaRAID's points [default: 3]
    #[arg(long, value_name = "N", conflicts_with_all = ["short", "page"], value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: Option<u32>,
    /// Measure only this of the paper again, as its table calls it, and keep the rest (may be repeated)
    #[arg(long, value_name = "EXPERIMENT", requires = "only", conflicts_with_all = ["short", "page"])]
    experiment: Vec<String>,
    /// Measure nothing: write pages and pictures again from the tables
    #[arg(long, conflicts_with = "short")]
    page: bool,
    /// Measure nothing: say at how many points the tables' bars overlap those of another run, in this folder,
    /// and fail if these are few
    #[arg(long, value_name = "DIR", conflicts_with_all = ["short", "page", "rounds", "experiment"])]
    beside: Option<PathBuf>,
    /// Write below this folder instead of into the documents
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// A paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Which {
    Raid4s,
    Straid,
    Scalaraid,
    /// Only its pages (--page)
    Draid,
}

/// Measures, and writes the pages. `draid` writes those of dRAID again, from the tables in a folder.
pub fn run(root: &Path, figures: &Figures, draid: fn(&Path) -> Result<()>) -> Result<()> {
    ensure!(
        figures.experiment.is_empty() || figures.only != Some(Which::Raid4s),
        "RAID4S is measured as a whole"
    );
    ensure!(figures.page || figures.only != Some(Which::Draid), "{DRAID}; --page writes its pages again");
    let folder = figures.out.clone().unwrap_or_else(|| root.join(FOLDER));
    let is_wanted = |which| figures.only.is_none_or(|only| only == which);
    if let Some(other) = &figures.beside {
        return compare(&folder, other, is_wanted);
    }
    if figures.page {
        write_again(root, &folder, &folder, is_wanted)?;
        return if is_wanted(Which::Draid) { draid(&folder) } else { Ok(()) };
    }
    let pinstripe = crate::cargo::build(
        root,
        &["build", "--release", "-p", "pinstripe", "--bin", "pinstripe"],
        "pinstripe",
    )?;
    // A short run is told by there being no rounds.
    let rounds = (!figures.short).then(|| figures.rounds.unwrap_or(ROUNDS));
    let measure = |paper: &paper::Paper, again: &[String]| match rounds {
        Some(rounds) if !again.is_empty() => {
            paper.measure_again(root, &pinstripe, rounds, again, paper.load(&folder)?)
        }
        _ => {
            let kept = paper.measure(root, &pinstripe, rounds)?;
            // What is there is kept beside it.
            let before = paper.load(&folder).map_or_else(|_| Rows::default(), |old| old.rows);
            Ok(paper::Kept { before, ..kept })
        }
    };
    if is_wanted(Which::Straid) {
        straid::PAPER.write(&folder, &measure(&straid::PAPER, &figures.experiment)?, "")?;
    }
    if is_wanted(Which::Scalaraid) {
        let is_all = figures.experiment.is_empty();
        let again: Vec<String> =
            figures.experiment.iter().filter(|name| *name != drives::NAME).cloned().collect();
        let kept = if is_all || !again.is_empty() {
            measure(&scalaraid::PAPER, &again)?
        } else {
            scalaraid::PAPER.load(&folder)?
        };
        // Plans take long; what was measured is kept all the same.
        scalaraid::PAPER.write(&folder, &kept, &more(root, &folder)?)?;
        if is_all || again.len() < figures.experiment.len() {
            drives::measure(root, &pinstripe, &folder, figures.short)?;
        }
        scalaraid::PAPER.write(&folder, &kept, &more(root, &folder)?)?;
    }
    if is_wanted(Which::Raid4s) {
        raid4s::write(&folder, &raid4s::measure(root, &pinstripe, figures.short)?)?;
    }
    if figures.only.is_none() {
        println!("{DRAID}");
    }
    if figures.short { is_on_record(&folder, &root.join(FOLDER), is_wanted) } else { Ok(()) }
}

/// Fails where virtual devices are not as fast as the documents have them: seeds are the same on every
/// machine.
fn is_on_record(folder: &Path, record: &Path, is_wanted: impl Fn(Which) -> bool) -> Result<()> {
    let all = for_each(
        is_wanted,
        |paper| Ok(twice::points(&paper.load(folder)?.rows, &paper.load(record)?.rows)),
        || Ok(raid4s::points(&raid4s::load(folder)?, &raid4s::load(record)?)),
    )?;
    for (paper, points) in &all {
        println!("{paper}: {} seeds beside those on record", points.len());
    }
    all.iter().try_for_each(|(paper, points)| twice::unchanged(points).context(*paper))
}

/// Says how far two runs agree, and fails where they don't.
fn compare(folder: &Path, other: &Path, is_wanted: impl Fn(Which) -> bool) -> Result<()> {
    let all = for_each(
        is_wanted,
        |paper| Ok(twice::compare(&paper.load(folder)?.rows, &paper.load(other)?.rows)),
        || Ok(raid4s::compare(&raid4s::load(folder)?, &raid4s::load(other)?)),
    )?;
    for (paper, found) in &all {
        tell(paper, found);
    }
    all.iter().try_for_each(|(paper, found)| twice::agree(found).context(*paper))
}

/// What comes of each paper that is wanted.
fn for_each<T>(
    is_wanted: impl Fn(Which) -> bool,
    of_paper: impl Fn(&paper::Paper) -> Result<T>,
    of_raid4s: impl Fn() -> Result<T>,
) -> Result<Vec<(&'static str, T)>> {
    let mut all = Vec::new();
    for (which, paper) in [(Which::Straid, &straid::PAPER), (Which::Scalaraid, &scalaraid::PAPER)] {
        if is_wanted(which) {
            all.push((paper.name, of_paper(paper)?));
        }
    }
    if is_wanted(Which::Raid4s) {
        all.push(("raid4s", of_raid4s()?));
    }
    Ok(all)
}

/// Writes pages and pictures from the tables below `from`.
fn write_again(root: &Path, from: &Path, to: &Path, is_wanted: impl Fn(Which) -> bool) -> Result<()> {
    if is_wanted(Which::Raid4s) {
        raid4s::write(to, &raid4s::load(from)?)?;
    }
    if is_wanted(Which::Straid) {
        straid::PAPER.write(to, &straid::PAPER.load(from)?, "")?;
    }
    if is_wanted(Which::Scalaraid) {
        scalaraid::PAPER.write(to, &scalaraid::PAPER.load(from)?, &more(root, from)?)?;
    }
    Ok(())
}

/// What ScalaRAID's page has of the bitmap.
fn more(root: &Path, folder: &Path) -> Result<String> {
    Ok(bitmap::load(root)? + &drives::load(folder)?)
}

/// What came of a comparison of two runs.
fn tell(paper: &str, (counts, apart): &twice::Compared) {
    println!("{paper}: points with bars that overlap");
    for ((series, quantity), count) in counts {
        println!("  {series:16} {quantity:28} {count}");
    }
    for point in apart {
        println!("  apart: {point}");
    }
}

/// Of this machine.
fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// What one `pinstripe bench` says, of what is used here.
#[derive(Clone, Debug)]
struct Measurement {
    bytes_per_second: f64,
    member_reads: f64,
    member_writes: f64,
    p99_ns: f64,
}

/// Runs them all, as many at a time as there are CPUs.
fn measure_all(pinstripe: &Path, commands: &[Vec<String>]) -> Result<Vec<Measurement>> {
    let next = AtomicUsize::new(0);
    let found: Mutex<Vec<Option<Result<Measurement>>>> = Mutex::new(commands.iter().map(|_| None).collect());
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(arguments) = commands.get(index) else { break };
            let measured = measure(pinstripe, arguments);
            found.lock().unwrap_or_else(std::sync::PoisonError::into_inner)[index] = Some(measured);
            if index.is_multiple_of(100) {
                eprintln!("{index} of {} points", commands.len());
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..cpus() {
            scope.spawn(work);
        }
    });
    let found = found.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    found.into_iter().map(|each| each.context("a point was not measured")?).collect()
}

/// One point.
fn measure(pinstripe: &Path, arguments: &[String]) -> Result<Measurement> {
    parse(&report(pinstripe, arguments)?).with_context(|| format!("pinstripe bench {}", arguments.join(" ")))
}

/// One run. The bench scrubs the array and reads back what it has written, and fails if anything is wrong.
fn report(pinstripe: &Path, arguments: &[String]) -> Result<serde_json::Value> {
    let output = Command::new(pinstripe)
        .args(["bench", "--json"])
        .args(arguments)
        .output()
        .with_context(|| format!("run {}", pinstripe.display()))?;
    if !output.status.success() {
        bail!("pinstripe bench {}: {}", arguments.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).with_context(|| format!("pinstripe bench {}", arguments.join(" ")))
}

fn parse(report: &serde_json::Value) -> Result<Measurement> {
    let number = |pointer: &str| {
        report.pointer(pointer).and_then(serde_json::Value::as_f64).with_context(|| format!("no {pointer}"))
    };
    if report.pointer("/settings/series").and_then(serde_json::Value::as_str) != Some("virtual device") {
        bail!("not of a virtual device");
    }
    Ok(Measurement {
        bytes_per_second: number("/bytes_per_second")?,
        member_reads: number("/per_write/member_reads")?,
        member_writes: number("/per_write/member_writes")?,
        p99_ns: number("/latency_ns/p99")?,
    })
}

/// A command in lines that a page has room for.
fn command(arguments: &[String]) -> String {
    let (mut text, mut column) = ("pinstripe bench".to_owned(), 15);
    for option in arguments.chunk_by(|_, next| !next.starts_with("--")) {
        let option = option.join(" ");
        if column + option.len() > 100 {
            text.push_str(" \\\n   ");
            column = 3;
        }
        column += 1 + option.len();
        text.push(' ');
        text.push_str(&option);
    }
    text
}

#[cfg(test)]
pub mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The files of these papers here, by name.
    pub fn files(folder: &Path, papers: &[&str]) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for paper in papers {
            let page = folder.join(format!("{paper}.md"));
            let beside = std::fs::read_dir(folder.join(paper)).unwrap().map(|entry| entry.unwrap().path());
            for path in beside.chain([page]) {
                let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                files.insert(name, std::fs::read(&path).unwrap());
            }
        }
        files
    }

    #[test]
    fn pages_and_pictures_are_those_of_their_tables() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let again = std::env::temp_dir().join(format!("figures-again-{}", std::process::id()));
        write_again(root, &root.join(FOLDER), &again, |_| true).unwrap();
        let papers = ["raid4s", "straid", "scalaraid"];
        let (kept, mut again_files) = (files(&root.join(FOLDER), &papers), files(&again, &papers));
        std::fs::remove_dir_all(&again).unwrap();
        // It is measured apart, and written by no page.
        again_files.insert(drives::FILE.to_owned(), kept[drives::FILE].clone());
        let differs = |name: &&String| kept.get(*name) != again_files.get(*name);
        let wrong: Vec<&String> = kept.keys().chain(again_files.keys()).filter(differs).collect();
        assert!(wrong.is_empty(), "cargo xtask figures --page would change {wrong:?}");
    }

    #[test]
    fn a_report_is_taken_only_if_it_is_of_a_virtual_device() {
        let report = |series: &str| {
            serde_json::json!({
                "settings": {"series": series}, "bytes_per_second": 5.0, "latency_ns": {"p99": 7},
                "per_write": {"member_reads": 2.0, "member_writes": 3.0}
            })
        };
        let taken = parse(&report("virtual device")).unwrap();
        assert!((taken.bytes_per_second - 5.0).abs() < 1e-9 && (taken.p99_ns - 7.0).abs() < 1e-9);
        assert!(parse(&report("real CPU")).is_err());
    }
}
