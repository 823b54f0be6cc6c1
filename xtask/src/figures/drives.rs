//! What the bitmap costs on arrays as large as they are: plans over models of drives of half a terabyte and
//! more, with and without one.
//!
//! A bit stands for 64 MiB of each member, and is cleared when its region was idle for 5 to 10 seconds. So a
//! small array has few regions and no bit is ever written under a load; what a bit costs shows only where
//! regions become idle. Plans have such arrays under virtual time, for as long as bits take to be cleared.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::origin::{self, Origin};
use crate::workers;

/// A load on an array.
struct Case {
    name: &'static str,
    words: &'static str,
    /// What plan is told, with requests for 30 s and more.
    options: &'static str,
}

const fn case(name: &'static str, words: &'static str, options: &'static str) -> Case {
    Case { name, words, options }
}

const CASES: [Case; 11] = [
    case("ssd-1", "980 Pro, depth 1", "--device model:980-pro:931G --depth 1 --requests 500000"),
    case("ssd-32", "980 Pro, depth 32", "--device model:980-pro:931G --depth 32 --requests 500000"),
    case(
        "ssd-10000",
        "980 Pro, 10,000 writes/s",
        "--device model:980-pro:931G --depth 64 --rate 40000K --requests 400000",
    ),
    case(
        "ssd-3000",
        "980 Pro, 3,000 writes/s",
        "--device model:980-pro:931G --depth 64 --rate 12000K --requests 120000",
    ),
    case(
        "ssd-1000",
        "980 Pro, 1,000 writes/s",
        "--device model:980-pro:931G --depth 64 --rate 4000K --requests 40000",
    ),
    case(
        "ssd-100",
        "980 Pro, 100 writes/s",
        "--device model:980-pro:931G --depth 64 --rate 400K --requests 4000",
    ),
    case(
        "ssd-stream",
        "980 Pro, a stream of 128 KiB, depth 1",
        "--device model:980-pro:931G --depth 1 --pattern sequential --size 128K --requests 200000",
    ),
    case("disk-1", "7,200 rpm, depth 1", "--device model:7200rpm:596G --depth 1 --requests 4000"),
    case("disk-32", "7,200 rpm, depth 32", "--device model:7200rpm:596G --depth 32 --requests 10000"),
    case(
        "disk-50",
        "7,200 rpm, 50 writes/s",
        "--device model:7200rpm:596G --depth 64 --rate 200K --requests 2000",
    ),
    case(
        "disk-stream",
        "7,200 rpm, a stream of 128 KiB, depth 1",
        "--device model:7200rpm:596G --depth 1 --pattern sequential --size 128K --requests 20000",
    ),
];

/// What all have in common: the paper's 2+1.
const OPTIONS: &str = "--json --level 5 --members 3 --size 4K";
/// As `--experiment` calls it.
pub const NAME: &str = "drives";
/// Repetitions.
const SEEDS: u32 = 3;
/// More than so much is too much.
const SHARE_MAX: f64 = 0.02;

/// Of one plan, the averages over its seeds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Forecast {
    writes_per_second: f64,
    mean_us: f64,
    p99_us: f64,
    /// Pages of the bitmap written to members for a write of clients.
    pages_per_write: f64,
}

/// Without a bitmap and with one.
type Pair = (Forecast, Forecast);

/// What was planned, and by which program.
#[derive(Serialize, Deserialize)]
struct Kept {
    #[serde(flatten)]
    origin: Origin,
    cases: BTreeMap<String, Pair>,
}

/// Plans all, and keeps it below `folder`. A short run plans the first case of disks alone.
pub fn measure(root: &Path, pinstripe: &Path, folder: &Path, is_short: bool) -> Result<()> {
    let chosen: Vec<&Case> = CASES.iter().filter(|case| !is_short || case.name == "disk-1").collect();
    let (next, done) = (Mutex::new(chosen.iter()), Mutex::new(BTreeMap::new()));
    let work = || -> Result<()> {
        loop {
            let case = next.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
            let Some(case) = case else { return Ok(()) };
            let pair = (plan(pinstripe, case, "none")?, plan(pinstripe, case, "internal")?);
            eprintln!("{}: {pair:?}", case.words);
            let mut done = done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            done.insert(case.name.to_owned(), pair);
        }
    };
    workers::run(super::cpus(), work)?;
    let cases = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    let kept = Kept { origin: Origin::now(root)?, cases };
    origin::save(&kept, &folder.join(FILE))
}

pub const FILE: &str = "scalaraid/drives.json";

/// What was kept.
pub fn load(folder: &Path) -> Result<String> {
    Ok(section(origin::load::<Kept>(&folder.join(FILE))?.as_ref()))
}

fn arguments(case: &Case, bitmap: &str) -> Vec<String> {
    // Later options stand for earlier ones.
    let line = format!("{OPTIONS} --seeds {SEEDS} --bitmap {bitmap} {}", case.options);
    let mut words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    if case.options.contains("--size")
        && let Some(at) = words.iter().position(|word| word == "--size")
    {
        words.drain(at..at + 2);
    }
    words
}

fn plan(pinstripe: &Path, case: &Case, bitmap: &str) -> Result<Forecast> {
    let arguments = arguments(case, bitmap);
    let output = Command::new(pinstripe)
        .arg("plan")
        .args(&arguments)
        .output()
        .with_context(|| format!("run {}", pinstripe.display()))?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "pinstripe plan {}: {}", arguments.join(" "), error.trim());
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let mean = |name: &str| {
        let value = report.pointer(&format!("/load/{name}/mean")).and_then(serde_json::Value::as_f64);
        value.with_context(|| format!("pinstripe plan says nothing of {name}"))
    };
    Ok(Forecast {
        writes_per_second: mean("iops")?,
        mean_us: mean("latency_ns_mean")? / 1e3,
        p99_us: mean("latency_ns_p99")? / 1e3,
        pages_per_write: mean("bitmap_writes_per_write")?,
    })
}

fn section(kept: Option<&Kept>) -> String {
    let mut text = "## The bitmap on drives of half a terabyte and more\n\nVirtual device: `pinstripe plan` of 2+1 over 980 Pro of 1 TB and \
                    disks of 640 GB, random writes of 4 KiB unless a row says otherwise, for 30 s and more of virtual time, three seeds. \
                    A bit stands for 64 MiB of each member and is cleared when its region was idle for 5 to 10 s. Pages are those that all \
                    members write together. Where writes come at a rate, throughput is that rate in both, and latency is what the bitmap \
                    costs. Wanted is at most 2 %.\n\n\
                    | load | pages of the bitmap a write | writes/s without | by the bitmap | mean latency without, us | by the bitmap | 99 % by the \
                    bitmap | kept |\n|---|---:|---:|---:|---:|---:|---:|---|\n"
        .to_owned();
    let Some(kept) = kept else { return text + "| not planned yet | | | | | | | |\n\n" };
    for Case { name, words, .. } in &CASES {
        let Some((without, with)) = kept.cases.get(*name) else {
            let _ = writeln!(text, "| {words} | not planned yet | | | | | | |");
            continue;
        };
        let (rate, mean) =
            (with.writes_per_second / without.writes_per_second, with.mean_us / without.mean_us);
        let is_kept = rate >= 1.0 - SHARE_MAX && mean <= 1.0 + SHARE_MAX;
        let _ = writeln!(
            text,
            "| {words} | {:.3} | {:.0} | {rate:.3} | {:.1} | {mean:.3} | {:.3} | {} |",
            with.pages_per_write,
            without.writes_per_second,
            without.mean_us,
            with.p99_us / without.p99_us,
            if is_kept { "yes" } else { "**no**" }
        );
    }
    let Origin { commit, date, .. } = &kept.origin;
    let _ = writeln!(text, "\nCommit {commit}, {date} UTC.\n");
    text + WORDS
}

const WORDS: &str = "So the target of 2 % is missed wherever regions become idle between writes. There are about 15,000 regions of 980 Pro and 9,500 of disks. \
                     A load of fewer random writes in 10 s than that finds most of its regions clean, so most of its writes wait until a bit is on all \
                     members, with FUA, before they begin. On disks that is a seek to the bitmap and one back. On the 980 Pro it is what the model has for a \
                     flush, 0.3 ms, which is an assumption; a drive with power-loss protection may have less. With more requests under way one page takes the bits \
                     of many. Linux MD writes bits before data as well; what that costs it wasn't measured here. Larger regions (`create --bitmap-chunk`) are \
                     set less often and take longer to resync; that wasn't measured either.\n\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_two_percent_of_throughput_or_latency_is_too_much() {
        let forecast = |writes_per_second, mean_us| Forecast {
            writes_per_second,
            mean_us,
            p99_us: 2.0 * mean_us,
            pages_per_write: 0.5,
        };
        let origin = Origin {
            commit: "abc".to_owned(),
            date: "2026-01-02".to_owned(),
            load: "0".to_owned(),
            machine: "2 CPUs".to_owned(),
        };
        let row = |with| {
            let cases = [("disk-1".to_owned(), (forecast(100.0, 10.0), with))].into();
            let kept = Kept { origin: origin.clone(), cases };
            let kept: Kept = serde_json::from_str(&serde_json::to_string(&kept).unwrap()).unwrap();
            let text = section(Some(&kept));
            text.lines().find(|line| line.starts_with("| 7,200 rpm")).unwrap().to_owned()
        };
        let found = row(forecast(99.0, 10.1));
        assert_eq!(found, "| 7,200 rpm, depth 1 | 0.500 | 100 | 0.990 | 10.0 | 1.010 | 1.010 | yes |");
        assert!(row(forecast(97.0, 10.1)).ends_with("| **no** |"));
        assert!(row(forecast(100.0, 10.3)).ends_with("| **no** |"));
        assert!(section(None).contains("not planned yet"));
    }

    #[test]
    fn every_case_names_one_size() {
        for case in &CASES {
            let words = arguments(case, "internal");
            assert_eq!(words.iter().filter(|word| *word == "--size").count(), 1, "{words:?}");
        }
    }
}
