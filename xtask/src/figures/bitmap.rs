//! What the bitmap costs the CPU: instructions of a write with and without one, as `cargo xtask cost` has
//! them on record.
//!
//! Throughput of memory says less than 2 % apart; instructions are the same in every run. CI holds the record
//! to what the program takes now.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;

use crate::cost;

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

/// Of what is on record.
pub fn load(root: &Path) -> Result<String> {
    Ok(section(&cost::read_record(root)?))
}

fn section(counts: &Counts) -> String {
    let mut text = "## The bitmap on the real CPU\n\nInstructions of one write over devices that do nothing, by callgrind: those that \
                    [cost.json](../../../crates/bench/cost.json) has on record. CI counts again, and fails where a case is 5 % off. \
                    Wanted is at most 2 % more with the bitmap.\n\n\
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
    fn what_is_on_record_has_all_cases() {
        let text = load(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()).unwrap();
        assert!(!text.contains("not counted"), "{text}");
    }

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
