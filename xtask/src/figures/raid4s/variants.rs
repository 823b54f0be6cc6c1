//! What RAID4S-modthresh gains, by what its disks do with requests that wait, and by how many there are.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use super::super::{Measurement, measure_all};
use super::{Array, Point};
use crate::bench::Spread;

/// Disks and a load.
struct Variant {
    name: &'static str,
    /// In a table.
    words: &'static str,
    disk: &'static str,
    depth: u32,
}

const VARIANTS: [Variant; 5] = [
    Variant { name: "as-shipped", words: "disks as shipped, depth 10", disk: "7200rpm", depth: 10 },
    Variant {
        name: "write-through",
        words: "their write cache off",
        disk: "7200rpm-write-through",
        depth: 10,
    },
    Variant { name: "in-order", words: "and no sorting of what waits", disk: "7200rpm-in-order", depth: 10 },
    Variant { name: "depth-1", words: "disks as shipped, depth 1", disk: "7200rpm", depth: 1 },
    Variant { name: "depth-32", words: "disks as shipped, depth 32", disk: "7200rpm", depth: 32 },
];

/// Sizes in KiB.
const SIZES: [u32; 5] = [68, 80, 96, 112, 128];
/// MD's choice, and the paper's.
const POLICIES: [&str; 2] = ["min-reads", "mod-threshold"];

/// A throughput in bytes per second.
#[derive(Clone, Debug, PartialEq)]
pub struct Found {
    variant: String,
    policy: String,
    kib: u32,
    seed: u64,
    rate: f64,
}

/// All variants' points.
pub fn measure(pinstripe: &Path, seeds: &[u64], short: bool) -> Result<Vec<Found>> {
    let sizes: &[u32] = if short { &[96] } else { &SIZES };
    let (mut points, mut commands) = (Vec::new(), Vec::new());
    for variant in &VARIANTS {
        for policy in POLICIES {
            for (&kib, &seed) in sizes.iter().flat_map(|kib| seeds.iter().map(move |seed| (kib, seed))) {
                let point = Point { array: Array::Raid4s, policy, kib };
                let change = |word: String| match word.as_str() {
                    "10" => variant.depth.to_string(),
                    _ => word.replace("model:7200rpm:", &format!("model:{}:", variant.disk)),
                };
                commands.push(point.arguments(seed).into_iter().map(change).collect());
                points.push((variant.name, policy, kib, seed));
            }
        }
    }
    let found = measure_all(pinstripe, &commands)?.into_iter().zip(points);
    let kept = |(measured, (variant, policy, kib, seed)): (Measurement, (&str, &str, u32, u64))| Found {
        variant: variant.to_owned(),
        policy: policy.to_owned(),
        kib,
        seed,
        rate: measured.bytes_per_second,
    };
    Ok(found.map(kept).collect())
}

/// As CSV.
pub fn csv(found: &[Found]) -> String {
    let mut text = "series,variant,policy,kib,seed,bytes_per_second\n".to_owned();
    for Found { variant, policy, kib, seed, rate } in found {
        let _ = writeln!(text, "virtual device,{variant},{policy},{kib},{seed},{rate:.0}");
    }
    text
}

/// What [`csv`] has kept in this file.
pub fn load(file: &Path) -> Result<Vec<Found>> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    text.lines().skip(1).map(|line| parse(line).with_context(|| line.to_owned())).collect()
}

fn parse(line: &str) -> Option<Found> {
    let [_, variant, policy, kib, seed, rate] = line.split(',').collect::<Vec<_>>().try_into().ok()?;
    Some(Found {
        variant: variant.to_owned(),
        policy: policy.to_owned(),
        kib: kib.parse().ok()?,
        seed: seed.parse().ok()?,
        rate: rate.parse().ok()?,
    })
}

/// The gains, a line a variant.
pub fn table(found: &[Found]) -> String {
    let sizes = || SIZES.iter().filter(|size| found.iter().any(|found| found.kib == **size));
    let mut text = "## What the disks' order of work changes\n\nRAID4S-modthresh's throughput by RAID4S's, and RAID4S's own. \
                    Members have as many bytes in all lines.\n\n| |"
        .to_owned();
    for kib in sizes() {
        let _ = write!(text, " {kib} KiB |");
    }
    text.push_str(" median | RAID4S at 96 KiB, MB/s | seeds |\n|---|");
    text.push_str(&"---:|".repeat(sizes().count() + 3));
    text.push('\n');
    for variant in &VARIANTS {
        let rate = |policy: &str, kib: u32, seed: u64| {
            let is_it = |found: &&Found| {
                (found.variant.as_str(), found.policy.as_str(), found.kib, found.seed)
                    == (variant.name, policy, kib, seed)
            };
            found.iter().find(is_it).map(|found| found.rate)
        };
        let seeds = |kib: u32| {
            found
                .iter()
                .filter(move |found| {
                    found.variant == variant.name && found.policy == POLICIES[0] && found.kib == kib
                })
                .map(|found| found.seed)
        };
        let gain = |kib: u32| {
            let one = |seed| Some(rate(POLICIES[1], kib, seed)? / rate(POLICIES[0], kib, seed)?);
            Spread::of(seeds(kib).filter_map(one))
        };
        let two =
            |spread: Option<Spread>| spread.map_or("-".to_owned(), |spread| format!("{:.2}", spread.median));
        let _ = write!(text, "| {} |", variant.words);
        for &kib in sizes() {
            let _ = write!(text, " {} |", two(gain(kib)));
        }
        let all = Spread::of(sizes().filter_map(|&kib| gain(kib)).map(|gain| gain.median));
        let own = Spread::of(seeds(96).filter_map(|seed| rate(POLICIES[0], 96, seed)).map(|rate| rate / 1e6));
        let own = own.map_or("-".to_owned(), |own| format!("{:.1}", own.median));
        let _ = writeln!(text, " {} | {own} | {} |", two(all), seeds(96).count());
    }
    text + "\n"
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// RAID4S has 10 MB/s everywhere, RAID4S-modthresh 12.
    pub fn found() -> Vec<Found> {
        let mut found = Vec::new();
        for variant in &VARIANTS {
            for (policy, rate) in POLICIES.into_iter().zip([1e7, 1.2e7]) {
                for (kib, seed) in SIZES.into_iter().flat_map(|kib| [(kib, 1), (kib, 2)]) {
                    let (variant, policy) = (variant.name.to_owned(), policy.to_owned());
                    found.push(Found { variant, policy, kib, seed, rate });
                }
            }
        }
        found
    }

    #[test]
    fn every_variant_has_its_gains_and_is_read_again() {
        let found = found();
        let text = table(&found);
        for variant in &VARIANTS {
            let line = format!("| {} | 1.20 | 1.20 | 1.20 | 1.20 | 1.20 | 1.20 | 10.0 | 2 |", variant.words);
            assert!(text.contains(&line), "{text}");
        }
        let again: Vec<Found> = csv(&found).lines().skip(1).filter_map(parse).collect();
        assert_eq!(again, found);
    }
}
