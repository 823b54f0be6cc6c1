//! RAID4S-modthresh: RAID4 of disks with an SSD for the parity, by the way parity is updated, beside RAID5 of
//! disks and RAID5 of SSDs ("RAID5S").

mod compared;
mod page;
mod variants;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

use super::chart::{Chart, Series};
use super::paper::{ROUNDS_MIN, Verdict, Wanted};
use super::{Measurement, measure_all, twice};
use crate::bench::Spread;
use crate::origin::{self, Origin};

/// Bytes of a member. The paper's have 12.25 GB; the model's seeks in so much are 0.3 ms longer. A disk's
/// cache has few of its places.
const MEMBER: &str = "64M";

/// Members and level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Array {
    Raid4s,
    Raid5,
    Raid5s,
}

const ARRAYS: [Array; 3] = [Array::Raid4s, Array::Raid5, Array::Raid5s];

impl Array {
    fn name(self) -> &'static str {
        match self {
            Self::Raid4s => "RAID4S",
            Self::Raid5 => "RAID5",
            Self::Raid5s => "RAID5S",
        }
    }

    /// What bench is told of it.
    fn arguments(self) -> Vec<String> {
        let (level, drives) = match self {
            Self::Raid4s => ("4", ["7200rpm", "7200rpm", "7200rpm", "7200rpm", "x25-e"]),
            Self::Raid5 => ("5", ["7200rpm"; 5]),
            Self::Raid5s => ("5", ["x25-e"; 5]),
        };
        let devices =
            drives.iter().flat_map(|drive| ["--device".to_owned(), format!("model:{drive}:{MEMBER}")]);
        ["--level".to_owned(), level.to_owned()].into_iter().chain(devices).collect()
    }
}

/// `--policy`, in the order of the tables.
const POLICIES: [&str; 4] = ["min-reads", "mod-threshold", "always-rmw", "cost"];

/// What is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Point {
    array: Array,
    policy: &'static str,
    kib: u32,
}

impl Point {
    /// What bench is told.
    fn arguments(self, seed: u64) -> Vec<String> {
        let Self { policy, kib, .. } = self;
        // More than a thousand requests.
        let (warm_up, seconds) = if self.array == Array::Raid5s { ("0.3", "0.7") } else { ("3", "7") };
        let rest = format!(
            "--chunk 64K --depth 10 --pattern random --size {kib}K --policy {policy} --cache 0 --bitmap none \
             --warm-up {warm_up} --seconds {seconds} --seed {seed}"
        );
        let mut arguments = self.array.arguments();
        arguments.extend(rest.split_whitespace().map(str::to_owned));
        arguments
    }
}

/// All that was measured: one for each seed.
type Found = BTreeMap<Point, Vec<Measurement>>;

/// The figures' sizes: block-unaligned ones, and powers of two.
fn unaligned() -> impl Iterator<Item = u32> {
    (40..=256).step_by(4)
}

fn powers() -> impl Iterator<Item = u32> {
    (2..=8).map(|power| 1 << power)
}

/// All of them, in order.
fn sizes() -> impl Iterator<Item = u32> {
    let all: BTreeSet<u32> = unaligned().chain(powers()).collect();
    all.into_iter()
}

/// What was measured, and where.
pub struct Kept {
    found: Found,
    variants: Vec<variants::Found>,
    seeds: Vec<u64>,
    origin: Origin,
}

/// Measures all.
pub fn measure(root: &Path, pinstripe: &Path, short: bool) -> Result<Kept> {
    let seeds: Vec<u64> = if short { vec![1, 2] } else { vec![1, 2, 3] };
    let mut sizes: Vec<u32> = sizes().collect();
    if short {
        sizes.retain(|kib| [64, 96, 128].contains(kib));
    }
    let points: Vec<Point> = ARRAYS
        .into_iter()
        .flat_map(|array| POLICIES.map(|policy| (array, policy)))
        .flat_map(|(array, policy)| sizes.iter().map(move |&kib| Point { array, policy, kib }))
        .collect();
    let commands: Vec<Vec<String>> =
        points.iter().flat_map(|point| seeds.iter().map(|&seed| point.arguments(seed))).collect();
    let mut measured = measure_all(pinstripe, &commands)?.into_iter();
    let found = points.iter().map(|&point| (point, measured.by_ref().take(seeds.len()).collect())).collect();
    let variants = variants::measure(pinstripe, &seeds, short)?;
    Ok(Kept { found, variants, seeds, origin: Origin::now(root)? })
}

/// Writes page, table and pictures below `folder`.
pub fn write(folder: &Path, kept: &Kept) -> Result<()> {
    let write = |name: &str, text: String| {
        std::fs::write(folder.join(name), text).with_context(|| format!("write {name}"))
    };
    let beside = folder.join("raid4s");
    std::fs::create_dir_all(&beside).with_context(|| format!("make {}", beside.display()))?;
    write("raid4s/raid4s.csv", csv(&kept.found, &kept.seeds))?;
    write("raid4s/variants.csv", variants::csv(&kept.variants))?;
    origin::save(&kept.origin, &beside.join("origin.json"))?;
    for figure in page::FIGURES {
        write(&format!("raid4s/{}.svg", figure.name), figure.svg(&kept.found)?)?;
    }
    write("raid4s.md", page::page(kept))
}

/// What [`write`] has kept.
pub fn load(folder: &Path) -> Result<Kept> {
    let beside = folder.join("raid4s");
    let origin = origin::load(&beside.join("origin.json"))?.context("nothing was measured yet")?;
    let (mut found, mut seeds) = (Found::new(), Vec::new());
    let text = std::fs::read_to_string(beside.join("raid4s.csv")).context("raid4s.csv")?;
    for line in text.lines().skip(1) {
        let (point, seed, measurement) = parse(line).with_context(|| format!("raid4s.csv: {line}"))?;
        found.entry(point).or_default().push(measurement);
        if !seeds.contains(&seed) {
            seeds.push(seed);
        }
    }
    let variants = variants::load(&beside.join("variants.csv"))?;
    Ok(Kept { found, variants, seeds, origin })
}

/// The bars of two runs.
pub fn compare(ours: &Kept, other: &Kept) -> twice::Compared {
    let (mut count, mut apart) = (twice::Count::default(), Vec::new());
    for &point in ours.found.keys() {
        let (Some(our), Some(other)) = (throughput(&ours.found, point), throughput(&other.found, point))
        else {
            continue;
        };
        if !count.add(our, other) {
            let Point { array, policy, kib } = point;
            apart.push(format!("{}, {policy}, {kib} KiB: {our:?} and {other:?}", array.name()));
        }
    }
    (BTreeMap::from([(("virtual device".to_owned(), "mb_per_second"), count)]), apart)
}

/// The seeds that are on record.
pub fn points(ours: &Kept, record: &Kept) -> Vec<twice::Point> {
    let pairs = |(point, seeds): (&Point, &Vec<Measurement>)| {
        let Point { array, policy, kib } = *point;
        let records = record.found.get(point).cloned().unwrap_or_default();
        let pair = move |(seed, (our, record)): (usize, (Measurement, Measurement))| {
            let name = format!("{}, {policy}, {kib} KiB, seed {}", array.name(), seed + 1);
            (name, our.bytes_per_second / 1e6, record.bytes_per_second / 1e6)
        };
        seeds.clone().into_iter().zip(records).enumerate().map(pair).collect::<Vec<_>>()
    };
    ours.found.iter().flat_map(pairs).collect()
}

/// A line of the table.
fn parse(line: &str) -> Option<(Point, u64, Measurement)> {
    let [_, array, policy, kib, seed, rate, reads, writes, p99] =
        line.split(',').collect::<Vec<_>>().try_into().ok()?;
    let point = Point {
        array: ARRAYS.into_iter().find(|each| each.name() == array)?,
        policy: POLICIES.into_iter().find(|each| *each == policy)?,
        kib: kib.parse().ok()?,
    };
    let number = |text: &str| text.parse::<f64>().ok();
    let measurement = Measurement {
        bytes_per_second: number(rate)?,
        member_reads: number(reads)?,
        member_writes: number(writes)?,
        p99_ns: number(p99)?,
    };
    Some((point, seed.parse().ok()?, measurement))
}

fn csv(found: &Found, seeds: &[u64]) -> String {
    let mut text = "series,array,policy,kib,seed,bytes_per_second,member_reads_per_write,\
                    member_writes_per_write,p99_ns\n"
        .to_owned();
    for (point, measurements) in found {
        for (seed, each) in seeds.iter().zip(measurements) {
            let _ = writeln!(
                text,
                "virtual device,{},{},{},{seed},{:.0},{:.3},{:.3},{:.0}",
                point.array.name(),
                point.policy,
                point.kib,
                each.bytes_per_second,
                each.member_reads,
                each.member_writes,
                each.p99_ns
            );
        }
    }
    text
}

/// Throughput of a point in MB/s, over its seeds.
fn throughput(found: &Found, point: Point) -> Option<Spread> {
    Spread::of(found.get(&point)?.iter().map(|each| each.bytes_per_second / 1e6))
}

/// One policy's throughput by another's on the same array, seed by seed.
fn ratio(found: &Found, point: Point, base: &'static str) -> Option<Spread> {
    Spread::of(ratios(found, point, Point { policy: base, ..point })?.into_iter())
}

/// One point's throughput by another's, seed by seed.
fn ratios(found: &Found, point: Point, base: Point) -> Option<Vec<f64>> {
    let (ours, others) = (found.get(&point)?, found.get(&base)?);
    Some(ours.iter().zip(others).map(|(our, other)| our.bytes_per_second / other.bytes_per_second).collect())
}

/// What the ratios of seeds tell.
fn told(wanted: Wanted, seeds: &[f64]) -> Verdict {
    match Spread::of(seeds.iter().copied()) {
        Some(spread) if seeds.len() >= ROUNDS_MIN as usize => wanted.verdict(spread),
        _ => Verdict::NotTold,
    }
}

/// One line of a figure.
struct Arm {
    name: &'static str,
    array: Array,
    policy: &'static str,
}

/// A figure of the paper.
struct Figure {
    name: &'static str,
    title: &'static str,
    /// What the paper shows.
    paper: &'static str,
    /// First and last size.
    kib: (u32, u32),
    powers: bool,
    arms: &'static [Arm],
    /// Whether throughputs are shown by those of min-reads.
    normalized: bool,
    /// Whether the axis of sizes is logarithmic.
    logarithmic: bool,
}

impl Figure {
    fn svg(&self, found: &Found) -> Result<String> {
        let sizes = || -> Box<dyn Iterator<Item = u32>> {
            if self.powers { Box::new(powers()) } else { Box::new(unaligned()) }
        };
        let line = |arm: &Arm| {
            let value = |kib: u32| {
                let point = Point { array: arm.array, policy: arm.policy, kib };
                let spread =
                    if self.normalized { ratio(found, point, "min-reads") } else { throughput(found, point) };
                spread.map(|spread| (kib, spread))
            };
            let inside = sizes().filter(|kib| (self.kib.0..=self.kib.1).contains(kib));
            Series {
                name: format!("{} (virtual device)", arm.name),
                points: inside.filter_map(value).collect(),
            }
        };
        let series: Vec<Series> = self.arms.iter().map(line).collect();
        let quantity = if self.normalized { "throughput by RAID4S's" } else { "MB/s" };
        let across = "size of a write, KiB";
        let (logarithmic, rises_by_powers) = (self.logarithmic, false);
        Chart { title: self.title, across, quantity, logarithmic, rises_by_powers, series: &series }.svg()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Every policy has 10 MB/s at every size and in every array, and always-rmw twice as much.
    pub(super) fn found() -> Found {
        let point = |array, policy, kib| Point { array, policy, kib };
        let each = |policy| Measurement {
            bytes_per_second: if policy == "always-rmw" { 2e7 } else { 1e7 },
            member_reads: 2.0,
            member_writes: 2.0,
            p99_ns: 1e6,
        };
        let sizes: Vec<u32> = unaligned().chain(powers()).collect();
        let points = ARRAYS.into_iter().flat_map(|array| POLICIES.map(|policy| (array, policy)));
        let all = points.flat_map(|(array, policy)| sizes.iter().map(move |&kib| (array, policy, kib)));
        all.map(|(array, policy, kib)| (point(array, policy, kib), vec![each(policy); 3])).collect()
    }

    #[test]
    fn every_figure_is_drawn_with_all_its_lines() {
        let found = found();
        for figure in page::FIGURES {
            let svg = figure.svg(&found).unwrap();
            for arm in figure.arms {
                assert!(svg.contains(arm.name), "{}: {}", figure.name, arm.name);
            }
            assert!(svg.contains("virtual device"));
        }
    }

    #[test]
    fn the_table_has_a_line_for_each_seed() {
        let found = found();
        let text = csv(&found, &[7, 8, 9]);
        assert_eq!(text.lines().count(), 1 + 3 * found.len());
        assert!(text.contains("virtual device,RAID4S,always-rmw,96,8,20000000,"), "{text}");
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let folder = std::env::temp_dir().join(format!("figures-{}", std::process::id()));
        let origin = Origin {
            commit: "abc123".to_owned(),
            date: "2026-01-02".to_owned(),
            load: "0".to_owned(),
            machine: "2 CPUs".to_owned(),
        };
        let kept = Kept { found: found(), variants: variants::tests::found(), seeds: vec![7, 8, 9], origin };
        write(&folder, &kept).unwrap();
        let loaded = load(&folder).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!((loaded.seeds, loaded.found.len()), (vec![7, 8, 9], kept.found.len()));
        assert_eq!(csv(&loaded.found, &[7, 8, 9]), csv(&kept.found, &[7, 8, 9]));
        assert_eq!((loaded.origin.commit.as_str(), loaded.variants), ("abc123", kept.variants));
    }

    #[test]
    fn commands_are_those_of_the_paper() {
        let words = Point { array: Array::Raid4s, policy: "cost", kib: 96 }.arguments(3).join(" ");
        for part in
            ["--level 4", "--device model:x25-e:64M --chunk 64K --depth 10", "--size 96K --policy cost"]
        {
            assert!(words.contains(part), "{words}");
        }
        assert_eq!(words.matches("model:7200rpm:64M").count(), 4);
        assert_eq!((unaligned().count(), powers().next(), powers().last()), (55, Some(4), Some(256)));
    }
}
