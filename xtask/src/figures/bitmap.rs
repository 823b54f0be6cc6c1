//! What the bitmap costs the CPU: instructions of a write with and without one, by callgrind.
//!
//! Throughput of memory says less than 2 % apart; instructions are the same in every run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use crate::{cost, origin};

/// Instructions by case.
type Counts = BTreeMap<String, u64>;

/// The cases of `frame`: each has one more with [`WITHOUT`] at its end.
const CASES: [(&str, &str); 3] = [
    ("raid5-write-4k", "4 KiB"),
    ("raid5-write-64k", "64 KiB"),
    ("raid5-write-stripe", "full stripe, 320 KiB"),
];
const WITHOUT: &str = "-no-bitmap";
/// More than so much is too much.
const PERCENT_MAX: u64 = 2;

/// Counts, and keeps it below `folder`. A short run counts the first case alone.
pub fn measure(root: &Path, folder: &Path, is_short: bool) -> Result<()> {
    let cases = &CASES[..if is_short { 1 } else { CASES.len() }];
    let names = cases.iter().flat_map(|(case, _)| [(*case).to_owned(), format!("{case}{WITHOUT}")]);
    let counts = cost::count(root, &names.collect::<Vec<_>>())?;
    let beside = folder.join("scalaraid");
    std::fs::create_dir_all(&beside).with_context(|| format!("make {}", beside.display()))?;
    origin::save(&counts, &beside.join("instructions.json"))
}

/// What was kept.
pub fn load(folder: &Path) -> Result<String> {
    let counts: Option<Counts> = origin::load(&folder.join("scalaraid").join("instructions.json"))?;
    Ok(section(&counts.unwrap_or_default()))
}

fn section(counts: &Counts) -> String {
    let mut text = "## The bitmap on the real CPU\n\nInstructions of one write over devices that do nothing, by callgrind \
                    (`cargo xtask cost`); wanted is at most 2 % more with the bitmap.\n\n\
                    | random writes, RAID5 5+1 | without | with | more, % | kept |\n|---|---:|---:|---:|---|\n"
        .to_owned();
    for (case, words) in CASES {
        let Some((with, without)) = counts.get(case).zip(counts.get(&format!("{case}{WITHOUT}"))) else {
            let _ = writeln!(text, "| {words} | not counted | | | |");
            continue;
        };
        let more = by(*with, *without) - 1.0;
        let kept = if with * 100 <= without * (100 + PERCENT_MAX) { "yes" } else { "**no**" };
        let _ = writeln!(text, "| {words} | {without} | {with} | {:.1} | {kept} |", more * 100.0);
    }
    text + "\n"
}

#[expect(clippy::cast_precision_loss, reason = "a ratio needs no 53 bits")]
fn by(a: u64, b: u64) -> f64 {
    a as f64 / b as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_two_percent_is_too_much() {
        let counts = |with, without| {
            let case = CASES[0].0;
            section(&Counts::from([(case.to_owned(), with), (format!("{case}{WITHOUT}"), without)]))
        };
        assert!(counts(1020, 1000).contains("| 1000 | 1020 | 2.0 | yes |"), "{}", counts(1020, 1000));
        assert!(counts(1030, 1000).contains("| 3.0 | **no** |"));
        assert!(counts(1030, 1000).contains("| 64 KiB | not counted |"));
    }
}
