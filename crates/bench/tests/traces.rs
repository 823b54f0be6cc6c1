//! Traces that are replayed on arrays and exports, and what is refused.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{fmt::Write as _, fs, path::Path, sync::Arc};

use clap::ValueEnum;
use pinstripe_bench::{
    BenchArgs, BenchError, BitmapChoice, DeviceSpec, Export, Format, Latency, PolicyChoice, TraceError,
    TraceReport, Workload, run_trace, run_trace_through,
};
use pinstripe_md::level::Level;

fn arguments(trace: &Path) -> BenchArgs {
    BenchArgs {
        devices: vec![DeviceSpec::Memory(12 << 20)],
        chunk: 16 << 10,
        cache: 1 << 20,
        trace: Some(trace.to_owned()),
        ..BenchArgs::defaults()
    }
}

fn replay(arguments: &BenchArgs) -> Result<TraceReport, BenchError> {
    run_trace(arguments, &(Arc::new(|_| {}) as _))
}

/// Many requests on few places, of any length and with any beginning.
fn crowded(requests: u64) -> String {
    let (mut text, mut word) = (String::new(), 1_u64);
    let mut draw = |bound: u64| {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (word >> 33) % bound
    };
    for _ in 0..requests {
        let kind = if draw(10) < 3 { 'R' } else { 'W' };
        let (offset, length) = (draw(1 << 20), draw(40_000) + 1);
        let (offset, length) =
            if draw(4) > 0 { (offset / 512 * 512, length / 512 * 512 + 512) } else { (offset, length) };
        let _ = writeln!(text, "{kind}\t{offset}\t{length}");
    }
    text
}

#[test]
fn a_crowded_trace_is_replayed_on_every_level_and_read_back() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    fs::write(&trace, crowded(5000)).unwrap();
    for level in [Level::Raid0, Level::Raid4, Level::Raid5, Level::Raid6] {
        for shards in [1, 2] {
            let report = replay(&BenchArgs { level, shards, ..arguments(&trace) });
            let report = report.unwrap_or_else(|error| panic!("{level}, {shards} shards: {error}"));
            assert_eq!(report.reads + report.writes, 5000, "{level}");
            assert!(report.widened > 500 && report.folded == 0 && report.skipped == 0, "{report}");
            assert!(report.checked.sectors > 1000, "{report}");
            assert_eq!(report.checked.stripes > 0, level.has_parity());
            let array = report.array.as_ref().unwrap();
            // Blocks are widened to; nothing else is.
            assert_eq!(array.counters["writes"].as_u64().unwrap(), report.writes);
            assert_eq!(array.counters["write_bytes"].as_u64().unwrap(), report.written_bytes);
        }
    }
}

#[test]
fn a_trace_is_replayed_without_a_member_and_after_it_has_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    fs::write(&trace, crowded(2000)).unwrap();
    let report = replay(&BenchArgs { lost: vec![2], ..arguments(&trace) }).unwrap();
    assert!(report.checked.sectors > 1000 && report.checked.stripes > 0, "{report}");
    assert!(report.to_string().contains("slots [2]"), "{report}");
}

#[test]
fn what_lies_beyond_the_array_is_folded_and_flushes_are_carried_out() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let far = 1_u64 << 50;
    let text = format!(
        "fio version 3 iolog\n0 f write {far} 4096\n9 f sync\n10 f write 0 512\n20 f read {far} 4096\n"
    );
    fs::write(&trace, text).unwrap();
    let report = replay(&arguments(&trace)).unwrap();
    assert_eq!((report.reads, report.writes, report.flushes, report.folded), (1, 2, 1, 2), "{report}");
    let sectors = report.checked.sectors;
    assert!(sectors == 9 || sectors == 8, "{report}");
    assert_eq!(report.array.unwrap().counters["flushes"].as_u64().unwrap(), 1);
}

#[test]
fn in_trace_time_requests_wait_until_they_are_due() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let mut text = "fio version 3 iolog\n".to_owned();
    for number in 0..8 {
        let _ = writeln!(text, "{} f write {} 4096", number * 400_000, number * 4096);
    }
    fs::write(&trace, text).unwrap();
    let swift = replay(&arguments(&trace)).unwrap();
    assert!(swift.seconds < 2.0, "{swift}");
    let timed = replay(&BenchArgs { trace_time: true, shards: 2, ..arguments(&trace) }).unwrap();
    assert!(timed.seconds >= 2.8, "{timed}");
    assert!(timed.write_latency_ns.p50 < 200_000_000, "from when it was due: {timed}");

    let plain = folder.path().join("plain");
    fs::write(&plain, "W\t0\t512\n").unwrap();
    let refused = replay(&BenchArgs { trace_time: true, ..arguments(&plain) });
    assert!(matches!(refused, Err(BenchError::Trace(TraceError::NoTimes(_)))), "{refused:?}");
    let missing = replay(&arguments(&folder.path().join("nowhere")));
    assert!(matches!(missing, Err(BenchError::Trace(TraceError::Read { .. }))), "{missing:?}");
}

#[test]
fn an_export_is_overwritten_only_by_force() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let export: Export = path("export").display().to_string().parse().unwrap();
    fs::File::create(path("export")).unwrap().set_len(4 << 20).unwrap();
    fs::write(path("reads"), "R\t0\t512\nR\t4194304\t8192\n").unwrap();
    fs::write(path("writes"), crowded(500)).unwrap();
    let run = |trace: &str, force| {
        run_trace_through(&arguments(&path(trace)), &export, force, &(Arc::new(|_| {}) as _))
    };
    assert_eq!(run("reads", false).unwrap().reads, 2);
    assert!(matches!(run("writes", false), Err(BenchError::ForceExport)));
    assert!(fs::read(path("export")).unwrap().iter().all(|&byte| byte == 0));
    let report = run("writes", true).unwrap();
    assert!(report.through.is_some() && report.checked.sectors > 100, "{report}");
    // The end of a file that isn't whole blocks is left alone, and one without a block is refused.
    for (size, is_enough) in [((300 << 10) + 100, true), (100, false)] {
        fs::File::create(path("export")).unwrap().set_len(size).unwrap();
        let run = run("writes", true);
        assert_eq!(run.is_ok(), is_enough, "{size}: {run:?}");
    }
}

#[test]
fn every_synthetic_workload_is_replayed_as_a_trace_is_and_says_what_it_is() {
    for workload in Workload::value_variants() {
        let wish = BenchArgs {
            trace: None,
            synthetic: Some(*workload),
            requests: 3000,
            shards: 2,
            chunk: 8 << 10,
            ..arguments(Path::new(""))
        };
        let report = replay(&wish).unwrap_or_else(|error| panic!("{workload:?}: {error}"));
        assert_eq!(
            (report.reads + report.writes, report.flushes, report.format),
            (3000, 0, Format::Synthetic)
        );
        assert_eq!((report.widened, report.folded, report.skipped), (0, 0, 0), "{report}");
        assert!(report.checked.sectors > 1000 && report.checked.stripes > 0, "{report}");
        let made = report.synthetic.unwrap();
        assert_eq!((made.requests, made.seed, made.workload), (3000, 1, *workload));
        let (words, json) = (report.to_string(), report.to_json());
        assert!(
            words.contains("(synthetic)") && words.contains("Table 4") && words.contains("not published"),
            "{words}"
        );
        assert!(json.contains("\"format\": \"synthetic\"") && json.contains("\"chosen\""), "{json}");
        assert_eq!(words.contains("million writes sequential"), *workload == Workload::Prxy0, "{words}");
    }
}

#[test]
fn a_synthetic_workload_goes_through_an_export_by_force() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("export");
    fs::File::create(&path).unwrap().set_len(8 << 20).unwrap();
    let export: Export = path.display().to_string().parse().unwrap();
    let wish =
        BenchArgs { trace: None, synthetic: Some(Workload::Fileserver), requests: 500, ..arguments(&path) };
    let run = |force| run_trace_through(&wish, &export, force, &(Arc::new(|_| {}) as _));
    assert!(matches!(run(false), Err(BenchError::ForceExport)));
    let report = run(true).unwrap();
    assert!(report.reads + report.writes == 500 && report.checked.sectors > 1000, "{report}");
}

/// See the same test of patterns.
#[test]
fn as_many_requests_of_a_trace_are_under_way_as_there_are_clients() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    fs::write(&trace, crowded(20_000)).unwrap();
    for shards in [1, 2] {
        let report = replay(&BenchArgs { shards, depth: 24, ..arguments(&trace) }).unwrap();
        let of = |latency: Latency| latency.mean * f64::from(u32::try_from(latency.samples).unwrap());
        let under_way = (of(report.read_latency_ns) + of(report.write_latency_ns)) / 1e9 / report.seconds;
        assert!((18.0..30.0).contains(&under_way), "{shards} shards: {under_way}: {report}");
    }
}

fn models(trace: &Path) -> BenchArgs {
    BenchArgs {
        devices: vec!["model:980-pro:16M".parse().unwrap()],
        members: Some(4),
        cache: 0,
        bitmap: BitmapChoice::None,
        ..arguments(trace)
    }
}

#[test]
fn a_trace_over_models_takes_their_time_and_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let text: String = (0..2000).fold(String::new(), |mut text, number: u64| {
        let _ = writeln!(text, "W\t{}\t4096", number * 7919 % 8000 * 4096);
        text
    });
    fs::write(&trace, text).unwrap();
    let report = replay(&BenchArgs { depth: 1, policy: PolicyChoice::AlwaysRmw, ..models(&trace) }).unwrap();
    // Old data and old parity at once, then the new ones at once: 22,000 reads and 60,000 writes a second.
    let microseconds = 1e6 / 22_000.0 + 1e6 / 60_000.0;
    let found = report.write_latency_ns.mean / 1e3;
    assert!((found / microseconds - 1.0).abs() < 0.05, "{found} and not {microseconds}");
    assert!(report.checked.sectors == 2000 * 8 && report.checked.stripes > 0, "{report}");
    assert_eq!(
        (report.cpu_ns_per_operation, report.array.as_ref().unwrap().series),
        (None, "virtual device")
    );
    assert!(report.to_string().contains("nothing but the drives"), "{report}");

    let timed = folder.path().join("timed");
    fs::write(&timed, "fio version 3 iolog\n0 f write 0 4096\n3600000000 f write 4096 4096\n").unwrap();
    let report = replay(&BenchArgs { trace_time: true, lost: vec![2], ..models(&timed) }).unwrap();
    assert!((3600.0..3601.0).contains(&report.seconds), "an hour of it: {report}");
    let through =
        run_trace_through(&models(&trace), &Export::Path("export".into()), true, &(Arc::new(|_| {}) as _));
    assert!(matches!(through, Err(BenchError::NotVirtual(_))), "{through:?}");
}

#[test]
fn a_synthetic_trace_over_models_is_the_same_again_by_the_same_seed() {
    let of = |seed| {
        let wish = BenchArgs {
            trace: None,
            synthetic: Some(Workload::Prxy0),
            requests: 1000,
            seed,
            shards: 2,
            ablate: Some("straid".parse().unwrap()),
            cache: BenchArgs::defaults().cache,
            ..models(Path::new(""))
        };
        let report = replay(&wish).unwrap();
        assert!(report.checked.sectors > 1000 && report.ablation.is_none(), "{report}");
        report.to_json()
    };
    assert_eq!(of(1), of(1));
    assert_ne!(of(1), of(2));
}

#[test]
fn flash_that_is_used_up_replays_slower() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    fs::write(&trace, crowded(2000)).unwrap();
    let seconds = |used_up| {
        let devices = vec!["model:x25-e:16M".parse().unwrap()];
        replay(&BenchArgs { devices, used_up, ..models(&trace) }).unwrap().seconds
    };
    assert!(seconds(true) > 1.5 * seconds(false), "{} and {}", seconds(true), seconds(false));
    let memory = replay(&BenchArgs { used_up: true, ..arguments(&trace) });
    assert!(matches!(memory, Err(BenchError::Arguments(_))), "{memory:?}");
}
