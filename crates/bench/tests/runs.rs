//! Short runs: every level, verified; what is refused; a sequential stream over memory.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use pinstripe_bench::{BenchArgs, BenchError, DeviceSpec, Pattern, Report, run};
use pinstripe_md::level::Level;

fn arguments() -> BenchArgs {
    BenchArgs {
        devices: vec![DeviceSpec::Memory(12 << 20)],
        seconds: 0.1,
        chunk: 16 << 10,
        cache: 1 << 20,
        ..BenchArgs::defaults()
    }
}

fn counter(report: &Report, name: &str) -> u64 {
    report.counters[name].as_u64().unwrap()
}

#[test]
fn every_level_is_measured_and_found_right() {
    for level in [Level::Raid0, Level::Raid4, Level::Raid5, Level::Raid6] {
        let report = run(&BenchArgs { level, reads: 20, shards: 2, ..arguments() }).unwrap();
        assert!(report.operations > 0 && report.latency_ns.samples > 0, "{level}");
        assert!(report.verified.units > 0, "{level}");
        assert_eq!(report.verified.stripes > 0, level.has_parity());
        assert!(counter(&report, "reads") > 0 && counter(&report, "writes") > 0);
    }
}

#[test]
fn the_limit_is_measured_for_parts_of_chunks_and_whole_stripes() {
    for (level, size) in
        [(Level::Raid5, 4 << 10), (Level::Raid6, 16 << 10), (Level::Raid5, 80 << 10), (Level::Raid0, 4096)]
    {
        let report = run(&BenchArgs { level, size, limit: true, seconds: 0.2, ..arguments() }).unwrap();
        let limit = report.limit.unwrap();
        assert!(limit.ratio > 0.0 && limit.loop_ns > 0.0, "{level}: {limit:?}");
        assert_eq!(report.verified.mismatched_sectors, 0);
    }
    let odd = run(&BenchArgs { size: 24 << 10, limit: true, ..arguments() });
    assert!(matches!(odd, Err(BenchError::LimitShape)), "neither a part of a chunk nor whole stripes");
}

#[test]
fn a_sequential_stream_over_memory_is_hardly_read_before() {
    for shards in [1, 2] {
        let stream = BenchArgs {
            devices: vec![DeviceSpec::Memory(32 << 20)],
            chunk: 64 << 10,
            pattern: Pattern::Sequential,
            size: 64 << 10,
            depth: 64,
            shards,
            seconds: 0.5,
            ..arguments()
        };
        let report = run(&stream).unwrap();
        assert!(counter(&report, "joins") > counter(&report, "batches"), "{shards} shards");
        assert!(report.pre_read_ratio <= 0.02, "{shards} shards: {}", report.pre_read_ratio);
    }
}

#[test]
fn files_are_overwritten_only_by_force() {
    let folder = std::env::temp_dir().join(format!("pinstripe-bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let paths: Vec<_> = (0..4).map(|i| folder.join(format!("member{i}"))).collect();
    for path in &paths {
        std::fs::File::create(path).unwrap().set_len(6 << 20).unwrap();
    }
    let devices = paths.iter().cloned().map(DeviceSpec::Path).collect();
    let wish = BenchArgs { devices, ..arguments() };
    assert!(matches!(run(&wish), Err(BenchError::Force)));
    assert!(std::fs::read(&paths[0]).unwrap().iter().all(|&byte| byte == 0));
    let report = run(&BenchArgs { force: true, ..wish.clone() }).unwrap();
    assert!(report.verified.units > 0 && report.verified.stripes > 0);
    let count = run(&BenchArgs { force: true, members: Some(5), ..wish });
    assert!(matches!(count, Err(BenchError::MemberCount { members: 5, devices: 4 })));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_report_is_json_and_a_table() {
    let report = run(&BenchArgs { limit: true, seconds: 0.2, ..arguments() }).unwrap();
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert!(json["limit_ratio"].as_f64().unwrap() > 0.0);
    assert_eq!(json["settings"]["level"], 5);
    assert_eq!(json["verified"]["mismatched_sectors"], 0);
    let table = report.to_string();
    for word in ["throughput", "latency", "limit_ratio", "checked"] {
        assert!(table.contains(word), "{table}");
    }
}
