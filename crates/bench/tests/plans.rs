//! Plans: the engine over models of drives, several times, and what comes of it.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::Arc;

use clap::Parser;
use pinstripe_bench::{BenchArgs, BenchError, PlanArgs, PlanReport, Tell};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    plan: PlanArgs,
}

#[derive(Parser)]
struct Bench {
    #[command(flatten)]
    bench: BenchArgs,
}

fn parse(line: &str) -> Result<PlanArgs, clap::Error> {
    Command::try_parse_from(std::iter::once("plan").chain(line.split_whitespace())).map(|c| c.plan)
}

fn planned(line: &str) -> Result<PlanReport, BenchError> {
    let silent: Tell = Arc::new(|_| {});
    pinstripe_bench::plan(&parse(line).unwrap(), &silent)
}

fn plan(line: &str) -> PlanReport {
    planned(line).unwrap()
}

fn assert_near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 0.05, "{found} and not {expected}");
}

#[test]
fn drives_of_a_terabyte_are_planned_as_they_are() {
    let report = plan(
        "--device model:980-pro:1T --members 4 --level 5 --depth 1 --policy always-rmw --bitmap none --requests 400 --seeds 2",
    );
    // Old data and old parity at once, then the new ones at once: 22,000 reads and 60,000 writes a second.
    let microseconds = 1e6 / 22_000.0 + 1e6 / 60_000.0;
    assert_near(report.load.latency_ns_mean.mean / 1e3, microseconds);
    assert_near(report.load.iops.mean, 1e6 / microseconds);
    assert_near(report.load.write_amplification.unwrap().mean, 2.0);
    assert_near(report.load.member_writes_per_write.unwrap().mean, 2.0);
    assert_near(report.load.member_reads_per_request.mean, 2.0);
    assert_eq!(report.load.requests, 800);
    assert!(report.settings.member_bytes > (1 << 40) - (1 << 30), "{}", report.settings.member_bytes);
    let rebuild = report.rebuild.unwrap();
    assert!(
        rebuild.scaled && rebuild.bytes_per_second > 5e8 && rebuild.bytes_per_second < 7e9,
        "{rebuild:?}"
    );
    assert_near(rebuild.seconds * rebuild.bytes_per_second, 2.0_f64.powi(40));
}

#[test]
fn intervals_span_the_repetitions_which_are_the_same_again() {
    let line = "--device model:7200rpm:64M --members 4 --requests 300 --seeds 3 --reads 50";
    let report = plan(line);
    let iops = report.load.iops;
    assert!(iops.min < iops.mean && iops.mean < iops.max, "{iops:?}");
    assert_eq!(report.to_json(), plan(line).to_json());
    let one = plan("--device model:7200rpm:64M --members 4 --requests 300 --seeds 1 --reads 50").load.iops;
    assert_eq!(one.min.to_bits(), one.max.to_bits());
    assert!(!report.rebuild.unwrap().scaled, "a small member is rebuilt as it is");
}

#[test]
fn a_far_head_is_slower_than_a_near_one() {
    let of = |size: &str| {
        plan(&format!(
            "--device model:7200rpm:{size} --members 3 --requests 300 --seeds 1 --depth 1 --reads 100"
        ))
        .load
        .iops
        .mean
    };
    assert!(of("64M") > 1.3 * of("500G"), "{} and {}", of("64M"), of("500G"));
}

#[test]
fn flash_that_is_used_up_writes_slower() {
    let of = |more: &str| {
        let line = "--device model:x25-e:8G --members 4 --requests 1000 --seeds 1 --cache 0 --bitmap none";
        plan(&format!("{line} {more}")).load.iops.mean
    };
    assert!(of("") > 1.5 * of("--used-up"), "{} and {}", of(""), of("--used-up"));
}

#[test]
fn whole_stripes_are_written_without_reads_and_one_after_the_other() {
    let report = plan(
        "--device model:860-pro:1G --members 5 --chunk 16K --size 64K --pattern sequential --bitmap none --requests 500 --seeds 1",
    );
    assert_near(report.load.write_amplification.unwrap().mean, 1.25);
    assert!(report.load.member_reads_per_request.mean < 0.05, "{:?}", report.load);
    // Four members' worth of data at once.
    assert_near(report.load.bytes_per_second.mean, 4.0 * 5e8);
}

#[test]
fn a_plan_without_members_is_what_a_bench_without_them_measures() {
    let members =
        "--device model:x25-e:64M --device model:x25-e:64M --device model:x25-e:64M --device model:x25-e:64M";
    for (array, reads_per_request) in [
        // Of four members' chunks one is read from the three others.
        ("--level 5 --reads 100 --lost 1", (3.0 + 3.0) / 4.0),
        // Two in four, of which each is read from the two others.
        ("--level 6 --reads 100 --lost 0,2", (2.0 + 4.0) / 4.0),
        ("--level 5 --reads 0 --lost 3", f64::NAN),
    ] {
        let line = format!("{array} {members} --chunk 16K --depth 8 --cache 0 --bitmap none");
        let planned = plan(&format!("{line} --requests 4000 --seeds 2"));
        let words = format!("bench {line} --warm-up 0.2 --seconds 1");
        let measured =
            pinstripe_bench::run(&Bench::try_parse_from(words.split_whitespace()).unwrap().bench).unwrap();
        assert_near(planned.load.iops.mean, measured.iops);
        assert_near(planned.load.latency_ns_mean.mean, measured.latency_ns.mean);
        if reads_per_request.is_finite() {
            assert_near(planned.load.member_reads_per_request.mean, reads_per_request);
        } else {
            let writes = planned.load.member_writes_per_write.unwrap().mean;
            assert!((1.4..1.6).contains(&writes), "half of all writes find a member missing: {writes}");
        }
        assert!(planned.to_string().contains("lost"), "{planned}");
    }
    // The second of two is rebuilt while the first is missing still.
    let rebuilt = |lost: &str| {
        let line = format!("--level 6 {members} --requests 200 --seeds 1 {lost}");
        plan(&line).rebuild.unwrap().seconds
    };
    assert!(rebuilt("--lost 0,2") >= rebuilt("") * 0.99, "{} and {}", rebuilt("--lost 0,2"), rebuilt(""));
}

#[test]
fn a_trace_is_replayed_at_its_times() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trace.csv");
    let line = |n: u64| format!("{},h,0,Write,{},4096,0\n", n * 100_000, n * 1_048_576);
    let lines = (0..100).map(line).collect::<Vec<_>>().concat();
    std::fs::write(&path, lines).unwrap();
    let line = format!("--device model:980-pro:1G --members 4 --seeds 1 --trace {}", path.display());
    let (fast, timed) = (plan(&line), plan(&format!("{line} --trace-time")));
    assert_eq!((fast.load.requests, timed.load.requests), (100, 100));
    // One every 10 ms.
    assert_near(timed.load.iops.mean, 100.0 / 0.99);
    assert!(fast.load.iops.mean > 10.0 * timed.load.iops.mean);
    let made = plan("--device model:980-pro:1G --members 4 --seeds 1 --synthetic prxy_0 --requests 500");
    assert_eq!(made.load.requests, 500);
}

#[test]
fn what_makes_no_sense_is_refused() {
    for bad in [
        "",
        "--device mem:1G",
        "--device model:x:1G",
        "--device model:980-pro:1G --reads 101",
        "--device model:980-pro:1G --seeds 0",
        "--device model:980-pro:1G --trace-time",
    ] {
        assert!(parse(bad).is_err(), "{bad}");
    }
    for bad in [
        "--pattern zipf",
        "--afr 100",
        "--uber 1",
        "--scrub-every 0",
        "--scrub-every NaN",
        "--replace-after -1",
        "--size 5",
        "--level 1",
        "--members 2 --level 6",
        "--layout none",
        "--level 5 --lost 0,1",
        "--level 6 --lost 1,1",
        "--level 5 --lost 6",
        "--level 0 --lost 0",
    ] {
        let line = format!("--device model:980-pro:1G {bad}");
        assert!(parse(&line).is_err() || planned(&line).is_err(), "{bad}");
    }
    for none in ["none.json", "none.json:4G"] {
        assert!(matches!(planned(&format!("--device {none}")), Err(BenchError::Probe(_))));
    }
    let three = "--device model:980-pro:1G --device model:x25-e:1G --device model:x25-e:1G --members 4";
    assert!(matches!(planned(three), Err(BenchError::MemberCount { members: 4, devices: 3 })));
}

#[test]
fn words_name_every_assumption() {
    let words = plan("--device model:980-pro:1G --members 4 --seeds 1 --requests 200").to_string();
    for wanted in
        ["requests/s", "99.9%", "write amplification", "rebuild", "AFR 1.57%", "UBER 1e-15", "SIGMOD 1988"]
    {
        assert!(words.contains(wanted), "{wanted}: {words}");
    }
    let striped =
        plan("--device model:980-pro:1G --members 4 --seeds 1 --requests 200 --level 0 --reads 100");
    assert!(striped.rebuild.is_none() && striped.load.write_amplification.is_none());
    assert!(striped.durability.loss_per_year_with_scrubs > 0.05);
}

#[test]
fn requests_at_a_rate_come_at_it_and_wait_from_when_they_are_due() {
    let line = "--device model:7200rpm:64M --members 4 --reads 100 --requests 2000 --seeds 1 --depth 64";
    let of = |rate: &str| plan(&format!("{line} --rate {rate}")).load;
    let few = of("200K");
    assert_near(few.iops.mean, 50.0);
    assert!(few.latency_ns_mean.mean < 20e6, "{few:?}");
    // More than the disks can: all clients are busy when a request is due.
    let many = of("40M");
    assert!(many.latency_ns_mean.mean > 20.0 * few.latency_ns_mean.mean, "{many:?}");
    assert!(parse(&format!("{line} --rate 1M --synthetic prxy_0")).is_err());
}

/// A bit stands for 64 MiB: on a large drive nearly every write of a slow load is the first of its region.
#[test]
fn a_bitmap_costs_a_write_where_regions_become_idle() {
    let of = |size: &str, bitmap: &str| {
        let line = "--members 3 --depth 1 --requests 400 --seeds 1";
        plan(&format!("--device model:7200rpm:{size} --bitmap {bitmap} {line}")).load
    };
    let (with, without) = (of("500G", "internal"), of("500G", "none"));
    let pages = |load: &pinstripe_bench::LoadForecast| load.bitmap_writes_per_write.unwrap().mean;
    // A page on each member.
    assert!((2.5..3.5).contains(&pages(&with)) && pages(&without) == 0.0, "{with:?}");
    assert!(with.latency_ns_mean.mean > 1.1 * without.latency_ns_mean.mean, "{with:?} and {without:?}");
    assert!(pages(&of("64M", "internal")) < 0.05, "a small one has one region, of which the bit stays");
}
