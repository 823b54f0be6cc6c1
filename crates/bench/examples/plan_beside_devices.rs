//! Plans beside what real devices do:
//! `cargo run -p pinstripe-bench --example plan_beside_devices -- DEVICE...`
//!
//! The first device is probed, for a model of all of them. Then, for each of several loads, a plan is made
//! and the same array is measured three times: throughput, latency, and what members write for each byte. At
//! last the rebuild of a member is. It fails if a plan is off. **The devices are overwritten.**
//! docs/results/papers/plan.md has what came of it.
#![allow(clippy::unwrap_used, reason = "an experiment stops at the first surprise")]
#![expect(clippy::cast_precision_loss, reason = "a small count")]

use std::{env, fmt, fs, sync::Arc};

use clap::Parser;
use pinstripe_bench::{BenchArgs, Interval, PlanArgs, Report, Tell};

#[derive(Parser)]
struct Bench {
    #[command(flatten)]
    arguments: BenchArgs,
}

#[derive(Parser)]
struct Plan {
    #[command(flatten)]
    arguments: PlanArgs,
}

/// Of the array and the load, with the same words for both.
const LOADS: [&str; 8] = [
    "--level 5 --chunk 16K --size 4K --reads 0 --depth 32",
    "--level 5 --chunk 16K --size 4K --reads 70 --depth 32",
    "--level 5 --chunk 16K --size 4K --reads 100 --depth 32",
    "--level 5 --chunk 16K --size 4K --reads 0 --depth 1",
    "--level 5 --chunk 16K --size 64K --reads 0 --depth 8 --pattern sequential",
    "--level 5 --chunk 16K --size 64K --reads 100 --depth 8 --pattern sequential",
    "--level 6 --chunk 16K --size 4K --reads 0 --depth 32",
    "--level 6 --chunk 16K --size 48K --reads 0 --depth 8 --pattern sequential",
];
/// Of arrays a member of which is rebuilt.
const REBUILDS: [&str; 2] = ["--level 5 --chunk 16K --size 4K", "--level 6 --chunk 16K --size 4K"];
const REPETITIONS: u64 = 3;
/// The plan of this one is off where a throttle gives devices their rates in slices: the page says how.
const OFF: &str = LOADS[3];

fn bench(line: &str) -> BenchArgs {
    Bench::try_parse_from(["bench"].into_iter().chain(line.split_whitespace())).unwrap().arguments
}

/// Mean, least and most.
struct Span([f64; 3]);

impl Span {
    fn of(reports: &[Report], value: impl Fn(&Report) -> f64) -> Self {
        let values = || reports.iter().map(&value);
        let mean = values().sum::<f64>() / reports.len() as f64;
        Self([mean, values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max)])
    }

    fn planned(interval: Interval, unit: f64) -> Self {
        Self([interval.mean, interval.min, interval.max].map(|value| value * unit))
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [mean, least, most] = self.0;
        let digits = if mean < 100.0 { 2 } else { 0 };
        write!(f, "{mean:.digits$} ({least:.digits$} to {most:.digits$})")
    }
}

/// A line of the table; what is off by more than 15 % and beyond both spans stands out, and is false unless
/// it is known.
fn row(load: &str, quantity: &str, planned: &Span, measured: &Span) -> bool {
    let ratio = planned.0[0] / measured.0[0];
    let apart = planned.0[2] < measured.0[1] || measured.0[2] < planned.0[1];
    let off = apart && (ratio - 1.0).abs() > 0.15;
    let mark = if off { "**" } else { "" };
    println!("| `{load}` | {quantity} | {planned} | {measured} | {mark}{ratio:.2}{mark} |");
    !off || load == OFF
}

fn main() {
    let devices: Vec<String> = env::args().skip(1).collect();
    let silent: Tell = Arc::new(|_| {});
    let probe =
        pinstripe_bench::probe(&bench("--probe x --probe-writes --force --seconds 2"), devices[0].as_ref())
            .unwrap();
    print!("{probe}");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("probe.json");
    fs::write(&path, probe.to_json()).unwrap();
    let members = format!(" --device {}", devices.join(" --device "));
    let plan = |load: &str| {
        let count = devices.len();
        let line =
            format!("plan {load} --device {} --members {count} --requests 5000 --seeds 3", path.display());
        let arguments = Plan::try_parse_from(line.split_whitespace()).unwrap().arguments;
        pinstripe_bench::plan(&arguments, &silent).unwrap()
    };
    let measured = |load: &str| -> Vec<Report> {
        let run = |seed| {
            let line = format!("{load}{members} --force --seconds 4 --warm-up 1 --seed {seed}");
            pinstripe_bench::run(&bench(&line)).unwrap()
        };
        (1..=REPETITIONS).map(run).collect()
    };
    let mut fits = true;
    println!("\n| load | | planned | measured | planned by measured |\n|---|---|---:|---:|---:|");
    for load in LOADS {
        let (planned, reports) = (plan(load).load, measured(load));
        let of = |value: fn(&Report) -> f64| Span::of(&reports, value);
        fits &= row(load, "requests/s", &Span::planned(planned.iops, 1.0), &of(|report| report.iops));
        fits &= row(
            load,
            "latency, mean, ms",
            &Span::planned(planned.latency_ns_mean, 1e-6),
            &of(|report| report.latency_ns.mean * 1e-6),
        );
        if let Some(amplification) = planned.write_amplification {
            fits &= row(
                load,
                "bytes written by members for each",
                &Span::planned(amplification, 1.0),
                &of(|report| report.per_write.member_write_bytes / report.settings.size_bytes as f64),
            );
        }
    }
    for load in REBUILDS {
        let (rebuild, reports) = (plan(load).rebuild.unwrap(), measured(&format!("{load} --rebuild 1")));
        let planned = Span([rebuild.seconds; 3]);
        let found = Span::of(&reports, |report| report.recovery.unwrap().seconds);
        fits &= row(load, "rebuild, s", &planned, &found);
    }
    assert!(fits, "a plan is off by more than 15 %, and beyond both spans");
}
