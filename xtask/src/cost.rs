//! `cargo xtask cost`: instructions of one request in the engine, by callgrind, beside those on record.
//!
//! Instructions are the same on every machine, and don't depend on what else it does. Callgrind sees the AVX2
//! kernels: Valgrind knows no AVX-512.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};
use clap::Args;

/// How much a request may cost more or less than on record, in thousandths. One that costs much less may do
/// less than it should.
const CHANGE_MAX: u64 = 50;
/// What is on record.
const RECORD: &str = "crates/bench/cost.json";

/// What to do with the counts.
#[derive(Args)]
pub struct Cost {
    /// Only cases whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Put the counts on record
    #[arg(long)]
    accept: bool,
}

/// The program of which the instructions are counted.
fn frame(root: &Path) -> Result<std::path::PathBuf> {
    let arguments = ["build", "--release", "-p", "pinstripe-bench", "--example", "frame"];
    crate::cargo::build(root, &arguments, "frame")
}

/// Counts, and compares with the record. Fails if a case costs too much more or less, or isn't on record, or
/// if what is on record is no case.
pub fn run(root: &Path, cost: &Cost) -> Result<()> {
    crate::packages::ensure()?;
    let frame = frame(root)?;
    let mut record = read_record(root)?;
    let (mut passed, mut failed) = (0, 0);
    println!("{:26} {:>12} {:>12}", "instructions of a request", "on record", "now");
    let cases = cases(&frame)?;
    let gone = gone(&record, &cases);
    if cost.accept {
        record.retain(|case, _| !gone.contains(case));
    } else if !gone.is_empty() {
        bail!("{RECORD} has what is no case of the program any more: {}", gone.join(", "));
    }
    for (case, count) in chosen(cases, cost.only.as_deref())? {
        let now = instructions(&frame, &case, count)?;
        let before = record.get(&case).copied();
        let change = before.map(|before| change(before, now));
        let words = match change {
            None => "not on record".to_owned(),
            Some(change) => {
                let (sign, change) = (if change < 0 { "-" } else { "+" }, change.unsigned_abs());
                format!("{sign}{}.{} %", change / 10, change % 10)
            }
        };
        println!("{case:26} {:>12} {now:>12} {words}", before.map_or("-".to_owned(), |n| n.to_string()));
        if cost.accept || change.is_some_and(|change| change.unsigned_abs() <= CHANGE_MAX) {
            passed += 1;
        } else {
            failed += 1;
        }
        if cost.accept {
            record.insert(case, now);
        }
    }
    if cost.accept {
        let text = serde_json::to_string_pretty(&record)? + "\n";
        std::fs::write(root.join(RECORD), text).context(RECORD)?;
        println!("ScalaRAID's page shows some of them: cargo xtask figures --only scalaraid --page");
    }
    println!("cost: {passed} passed, {failed} failed");
    if failed > 0 {
        bail!(
            "requests cost over {} % more or fewer instructions than in {RECORD}, or aren't there; if that is \
             wanted, run `cargo xtask cost --accept` and say in the commit why",
            CHANGE_MAX / 10
        );
    }
    Ok(())
}

/// Instructions by case.
pub fn read_record(root: &Path) -> Result<BTreeMap<String, u64>> {
    let text = std::fs::read(root.join(RECORD)).unwrap_or_else(|_| b"{}".to_vec());
    serde_json::from_slice(&text).context(RECORD)
}

/// The cases, each with the requests that are enough.
fn cases(frame: &Path) -> Result<Vec<(String, u64)>> {
    let listed = Command::new(frame).output().with_context(|| frame.display().to_string())?;
    if !listed.status.success() {
        bail!("{} doesn't list its cases: {}", frame.display(), String::from_utf8_lossy(&listed.stderr));
    }
    let text = String::from_utf8(listed.stdout)?;
    let case = |line: &str| {
        let (name, count) = line.split_once(' ')?;
        Some((name.to_owned(), count.parse().ok()?))
    };
    Ok(text.lines().filter_map(case).collect())
}

/// Those with `only` in their name. There must be some.
fn chosen(mut cases: Vec<(String, u64)>, only: Option<&str>) -> Result<Vec<(String, u64)>> {
    cases.retain(|(case, _)| only.is_none_or(|only| case.contains(only)));
    if cases.is_empty() {
        bail!("no case has {} in its name", only.unwrap_or("anything"));
    }
    Ok(cases)
}

/// What is on record and no case.
fn gone(record: &BTreeMap<String, u64>, cases: &[(String, u64)]) -> Vec<String> {
    let is_case = |name: &String| cases.iter().any(|(case, _)| case == name);
    record.keys().filter(|name| !is_case(name)).cloned().collect()
}

/// How much more `now` is than `before`, in thousandths.
fn change(before: u64, now: u64) -> i64 {
    (now * 1000 / before.max(1)).cast_signed() - 1000
}

/// Of one request: two runs, of which one has twice as many, so that what comes before and after cancels out.
fn instructions(frame: &Path, case: &str, count: u64) -> Result<u64> {
    let [once, twice] = std::thread::scope(|scope| {
        let runs = [count, 2 * count].map(|count| scope.spawn(move || counted(frame, case, count)));
        runs.map(|run| run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    });
    let (once, twice) = (once?, twice?);
    match twice.checked_sub(once) {
        Some(more) if more >= count => Ok(more / count),
        _ => bail!(
            "{case}: {count} requests take {once} instructions, twice as many take {twice}: it does nothing"
        ),
    }
}

/// Of a whole run.
fn counted(frame: &Path, case: &str, count: u64) -> Result<u64> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(frame)
        .args([case, &count.to_string()])
        .output()
        .context("run valgrind")?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    match collected(&text) {
        Some(instructions) if output.status.success() => Ok(instructions),
        _ => bail!("{case} fails under callgrind: {text}"),
    }
}

/// What callgrind says that it has counted.
fn collected(text: &str) -> Option<u64> {
    text.lines().find_map(|line| line.split_once("Collected : ")?.1.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_read_from_what_callgrind_says() {
        let text =
            "==7== Callgrind, a call-graph\n==7== Events    : Ir\n==7== Collected : 132231616\n==7== \n";
        assert_eq!(collected(text), Some(132_231_616));
        assert_eq!(collected("==7== Illegal instruction"), None);
    }

    #[test]
    fn a_case_that_does_nothing_any_more_or_is_not_there_does_not_pass() {
        assert_eq!((change(1000, 1050), change(1000, 949), change(1000, 0)), (50, -51, -1000));
        let cases = || vec![("write".to_owned(), 10), ("read".to_owned(), 10)];
        assert_eq!(chosen(cases(), Some("rea")).unwrap(), [("read".to_owned(), 10)]);
        assert_eq!(chosen(cases(), None).unwrap(), cases());
        assert!(chosen(cases(), Some("raed")).is_err() && chosen(Vec::new(), None).is_err());
        let record = BTreeMap::from([("read".to_owned(), 7), ("flush".to_owned(), 7)]);
        assert_eq!(gone(&record, &cases()), ["flush"]);
    }

    /// The table of what comes on top of `raid5-write-4k`.
    #[test]
    fn the_page_of_the_engine_says_what_is_on_record() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let record = read_record(root).unwrap();
        let page = std::fs::read_to_string(root.join("docs/results/engine.md")).unwrap();
        let of = |suffix: &str| record[&format!("raid5-write-4k{suffix}")].cast_signed();
        let mut rows = 0;
        for line in page.lines().filter(|line| line.starts_with("| ")) {
            let Some((suffix, rest)) = line.split_once("(`").and_then(|(_, rest)| rest.split_once("`) | "))
            else {
                continue;
            };
            let said: i64 = rest.split(' ').next().unwrap().replace(',', "").parse().unwrap();
            let now = of(suffix) - of("");
            assert!((said - now).abs() <= (now.abs() / 10).max(30), "{suffix}: {said} is said, it is {now}");
            rows += 1;
        }
        assert_eq!(rows, 5);
    }

    #[test]
    fn every_case_of_the_record_is_a_count() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let record = read_record(root).unwrap();
        assert!(!record.is_empty() && record.values().all(|&count| count > 0), "{record:?}");
    }
}
