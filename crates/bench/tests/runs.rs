//! Short runs: every level, verified; what is refused; a sequential stream over memory.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "rates and counts of short runs"
)]

use std::os::unix::fs::FileExt;

use pinstripe_bench::{
    BenchArgs, BenchError, DeviceSpec, Pattern, Phase, Report, probe, run, run_objects, run_through,
};
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
fn reads_without_a_member_are_measured_beside_straight_reconstruction() {
    let lost = BenchArgs { lost: vec![2], reads: 100, limit: true, seconds: 0.2, ..arguments() };
    for (level, pattern) in [(Level::Raid5, Pattern::Lost), (Level::Raid6, Pattern::Random)] {
        let report = run(&BenchArgs { level, pattern, ..lost.clone() }).unwrap();
        let limit = report.limit.unwrap();
        assert!(limit.ratio > 0.0 && limit.loop_ns > 0.0, "{level}: {limit:?}");
        assert!(report.counters["reconstructed_reads"].as_u64() > Some(0), "{level}");
    }
    for wrong in
        [BenchArgs { reads: 99, ..lost.clone() }, BenchArgs { level: Level::Raid6, lost: vec![0, 1], ..lost }]
    {
        assert!(matches!(run(&wrong), Err(BenchError::LimitStaged)));
    }
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
        // Five of six chunks are data: no write makes less of it than this.
        let least = counter(&report, "write_bytes") as f64 * 6.0 / 5.0;
        let written = counter(&report, "member_write_bytes") as f64 / least;
        assert!(
            written <= 1.03,
            "{shards} shards: members wrote {written} of the least that there is to write"
        );
    }
}

#[test]
fn files_are_overwritten_only_by_force() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..4).map(|i| folder.path().join(format!("member{i}"))).collect();
    for path in &paths {
        std::fs::File::create(path).unwrap().set_len(6 << 20).unwrap();
    }
    let devices = paths.iter().cloned().map(DeviceSpec::Path).collect();
    let wish = BenchArgs { devices, ..arguments() };
    assert!(matches!(run(&wish), Err(BenchError::Force)));
    assert!(std::fs::read(&paths[0]).unwrap().iter().all(|&byte| byte == 0));
    let report = run(&BenchArgs { force: true, ..wish.clone() }).unwrap();
    assert!(report.verified.units > 0 && report.verified.stripes > 0);
    let entries = report.kernel_entries_per_operation.unwrap();
    // A write of one unit reads two members and writes two, of which several may be submitted together.
    assert!(entries > 0.1, "{entries} entries into the kernel for a request");
    let count = run(&BenchArgs { force: true, members: Some(5), ..wish });
    assert!(matches!(count, Err(BenchError::MemberCount { members: 5, devices: 4 })));
}

#[test]
fn a_device_is_probed_with_writes_only_by_force() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("device");
    let held = vec![7; 64 << 20];
    std::fs::write(&path, &held).unwrap();
    let wish = BenchArgs { probe_writes: true, seconds: 0.01, ..arguments() };
    assert!(matches!(probe(&wish, &path), Err(BenchError::Force)));
    assert!(std::fs::read(&path).unwrap() == held, "what the device held was overwritten");
    assert!(probe(&BenchArgs { force: true, ..wish }, &path).unwrap().writes.is_some());
    assert!(std::fs::read(&path).unwrap() != held);
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

#[test]
fn members_that_were_lost_are_rebuilt_before_the_check() {
    for (level, lost) in [(Level::Raid5, vec![1]), (Level::Raid6, vec![0, 4])] {
        let wish = BenchArgs { level, lost: lost.clone(), fill: true, reads: 50, ..arguments() };
        let report = run(&wish).unwrap();
        assert_eq!(report.settings.lost, lost);
        assert!(counter(&report, "reconstructed_reads") > 0, "{level}: no read needed the missing members");
        assert!(report.verified.stripes > 0 && report.verified.units > 0);
    }
    let alone = BenchArgs { lost: vec![1], fill: true, reads: 100, pattern: Pattern::Lost, ..arguments() };
    let report = run(&alone).unwrap();
    assert!(counter(&report, "reads") > 0);
    assert!(
        counter(&report, "reconstructed_reads") >= counter(&report, "reads"),
        "some were of other members"
    );
    for wrong in [BenchArgs { lost: Vec::new(), ..alone.clone() }, BenchArgs { reads: 50, ..alone }] {
        assert!(matches!(run(&wrong), Err(BenchError::Arguments(_))));
    }
    let too_many = run(&BenchArgs { lost: vec![0, 1], ..arguments() });
    assert!(matches!(too_many, Err(BenchError::Membership(_))));
    assert!(matches!(run(&BenchArgs { lost: vec![6], ..arguments() }), Err(BenchError::Membership(_))));
}

#[test]
fn a_rebuild_makes_all_of_the_member() {
    let wish = BenchArgs { rebuild: Some(2), fill: true, level: Level::Raid6, ..arguments() };
    let report = run(&wish).unwrap();
    let recovery = report.recovery.unwrap();
    assert!(recovery.seconds > 0.0 && recovery.member_bytes > 8 << 20, "{recovery:?}");
    assert!(counter(&report, "member_write_bytes") >= recovery.member_bytes);
    assert!(report.verified.units > 0 && report.to_string().contains("rebuild"));
}

#[test]
fn a_load_beside_a_rebuild_is_measured_for_as_long_as_that_takes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("latencies");
    let rate = Some(2 << 20);
    let load = BenchArgs {
        devices: vec!["model:x25-e:64M".parse().unwrap()],
        pattern: Pattern::Zipf,
        reads: 50,
        rate,
        depth: 8,
        ..drives()
    };
    let beside = BenchArgs { rebuild: Some(2), histogram: Some(file.clone()), ..load.clone() };
    let report = run(&beside).unwrap();
    let recovery = report.recovery.unwrap();
    let excess = report.seconds - recovery.seconds;
    assert!(recovery.seconds > 0.1 && (0.0..0.05).contains(&excess), "{recovery:?}, {} s", report.seconds);
    let ratio = report.bytes_per_second / f64::from(2 << 20);
    assert!((0.8..1.2).contains(&ratio), "{ratio} of the rate");
    assert_eq!(report.latency_ns.samples, report.operations);
    assert!(counter(&report, "reads") > 0 && counter(&report, "writes") > 0);
    let text = report.to_string();
    assert!(text.contains("rebuild") && text.contains("99%"), "{text}");
    assert!(std::fs::read_to_string(file).unwrap().contains(&format!("{}]", report.operations)));
    // The load waits for it.
    let healthy = run(&load).unwrap();
    assert!(report.latency_ns.mean > healthy.latency_ns.mean, "{report} and {healthy}");
    // Alone it is over sooner.
    let alone =
        BenchArgs { rate: None, reads: 0, pattern: Pattern::Random, depth: 32, histogram: None, ..beside };
    assert!(run(&alone).unwrap().recovery.unwrap().seconds < recovery.seconds);
    let (histogram, pattern) = (Some(folder.path().join("none")), Pattern::Zipf);
    for wrong in [
        BenchArgs { reads: 50, ..alone.clone() },
        BenchArgs { pattern, ..alone.clone() },
        BenchArgs { depth: 8, ..alone.clone() },
        BenchArgs { histogram, ..alone },
    ] {
        let error = run(&wrong).unwrap_err();
        assert!(error.to_string().contains("--rate"), "{error}");
    }
}

#[test]
fn a_rate_is_kept_however_many_clients_there_are() {
    // In a drive's own time, in which no other program of this machine has a part.
    let drives = || BenchArgs {
        devices: vec!["model:980-pro:16M".parse().unwrap()],
        members: Some(4),
        cache: 0,
        ..arguments()
    };
    for depth in [2, 32] {
        let rate = Some(4 << 20);
        let report = run(&BenchArgs { rate, depth, seconds: 1.0, reads: 50, ..drives() }).unwrap();
        let ratio = report.bytes_per_second / f64::from(4 << 20);
        assert!((0.9..1.1).contains(&ratio), "{ratio} of the rate with {depth} clients");
        assert!(report.latency_ns.p50 < 5_000_000, "waiting for the next request is no latency");
    }
    let both = run(&BenchArgs { rate: Some(1 << 20), limit: true, ..arguments() });
    assert!(matches!(both, Err(BenchError::LimitStaged)));
}

/// Drives in their own time.
fn drives() -> BenchArgs {
    BenchArgs {
        devices: vec!["model:980-pro:16M".parse().unwrap()],
        members: Some(4),
        cache: 0,
        reads: 100,
        ..arguments()
    }
}

#[test]
fn a_rate_that_is_too_high_ends_in_time_and_what_was_not_sent_is_counted() {
    let most = run(&BenchArgs { depth: 64, ..drives() }).unwrap();
    assert!(most.not_sent == 0 && !most.to_string().contains("not sent"), "{most}");
    for depth in [4, 64] {
        let most = run(&BenchArgs { depth, ..drives() }).unwrap();
        let rate = Some(most.bytes_per_second as u64 * 10);
        let report = run(&BenchArgs { rate, depth, seconds: 0.1, ..drives() }).unwrap();
        assert!((0.1..0.11).contains(&report.seconds), "{} s", report.seconds);
        assert!((0.9..1.1).contains(&(report.iops / most.iops)), "{} and {}", report.iops, most.iops);
        let left = report.not_sent as f64 / report.operations as f64;
        assert!((8.5..9.5).contains(&left), "{left} times as many were not sent");
        assert!(report.to_string().contains("not sent"), "{report}");
    }
}

#[test]
fn a_request_that_is_due_is_sent_by_any_client_that_is_free() {
    // Some two requests are under way at a time.
    let latency = |depth| {
        let rate = Some(4096 * 40_000);
        run(&BenchArgs { rate, depth, seconds: 0.5, ..drives() }).unwrap().latency_ns.mean
    };
    let ratio = latency(8) / latency(128);
    assert!((0.97..1.03).contains(&ratio), "of 8 clients a request takes {ratio} of what it takes of 128");
}

#[test]
fn a_warm_up_is_as_long_as_it_shall_be() {
    let stream = BenchArgs { pattern: Pattern::Sequential, reads: 0, depth: 1, ..drives() };
    let report = run(&BenchArgs { warm_up: 0.1, seconds: 0.02, ..stream }).unwrap();
    let written = report.verified.units as f64 / report.operations as f64;
    assert!((5.0..7.0).contains(&written), "{written} times as much was written as was measured");
}

#[test]
fn a_read_that_finds_something_else_ends_the_run_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("export");
    std::fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
    let export = path.display().to_string().parse().unwrap();
    let filled = std::sync::Arc::new(std::sync::Barrier::new(2));
    let began = std::sync::Arc::clone(&filled);
    let change = std::thread::spawn(move || {
        began.wait();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(&vec![7; 16 << 20], 0).unwrap();
    });
    let tell = move |phase| {
        if matches!(phase, Phase::Measuring) {
            filled.wait();
        }
    };
    let started = std::time::Instant::now();
    let reads = BenchArgs { reads: 100, fill: true, warm_up: 0.0, seconds: 60.0, ..arguments() };
    let outcome = run_through(&reads, &export, true, &(std::sync::Arc::new(tell) as _));
    change.join().unwrap();
    assert!(matches!(outcome, Err(BenchError::WrongData(_))), "{outcome:?}");
    assert!(started.elapsed().as_secs() < 30, "it was found when all was over");
}

/// Whether an error is the right one.
type Refused = fn(&BenchError) -> bool;

#[test]
fn what_does_not_fit_is_found_out_while_the_devices_are_as_they_were() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..4).map(|slot| folder.path().join(format!("member{slot}"))).collect();
    for path in &paths {
        std::fs::write(path, vec![7; 6 << 20]).unwrap();
    }
    let devices = paths.iter().cloned().map(DeviceSpec::Path).collect();
    let wish = BenchArgs { devices, force: true, ..arguments() };
    let histogram = Some(folder.path().join("nowhere/file"));
    let wrong: [(BenchArgs, Refused); 9] = [
        (BenchArgs { depth: 2000, ..wish.clone() }, |error| matches!(error, BenchError::TooSmall { .. })),
        (BenchArgs { size: 16 << 20, ..wish.clone() }, |error| matches!(error, BenchError::TooSmall { .. })),
        (BenchArgs { limit: true, ..wish.clone() }, |error| matches!(error, BenchError::LimitShape)),
        (BenchArgs { lost: vec![9], ..wish.clone() }, |error| matches!(error, BenchError::Membership(_))),
        (BenchArgs { lost: vec![0, 1], ..wish.clone() }, |error| matches!(error, BenchError::Membership(_))),
        (BenchArgs { rebuild: Some(9), ..wish.clone() }, |error| matches!(error, BenchError::Membership(_))),
        (
            BenchArgs {
                level: Level::Raid4,
                lost: vec![3],
                pattern: Pattern::Lost,
                reads: 100,
                ..wish.clone()
            },
            |error| matches!(error, BenchError::Arguments(_)),
        ),
        (BenchArgs { histogram, ..wish.clone() }, |error| matches!(error, BenchError::Histogram { .. })),
        (BenchArgs { level: Level::Raid0, rebuild: Some(1), ..wish.clone() }, |error| {
            matches!(error, BenchError::Membership(_))
        }),
    ];
    let untouched = || paths.iter().all(|path| std::fs::read(path).unwrap().iter().all(|&byte| byte == 7));
    for (number, (wrong, is_refused)) in wrong.iter().enumerate() {
        let error = run(wrong).unwrap_err();
        assert!(is_refused(&error), "{number}: {error}");
        assert!(untouched(), "{number}: {error}, and a device was overwritten");
    }
    let objects = BenchArgs { objects: Some(1 << 20), ..wish };
    let error = run_objects(&objects, &(std::sync::Arc::new(|_| {}) as _)).unwrap_err();
    assert!(matches!(error, BenchError::Objects { .. }) && untouched(), "{error}");
}

#[test]
fn a_filled_array_is_checked_from_end_to_end() {
    for size in [4096, 80 << 10, 384 << 10] {
        let report = run(&BenchArgs { fill: true, size, depth: 2, seconds: 0.1, ..arguments() }).unwrap();
        let most_of_it = 5 * (11 << 20) / 100 * 98;
        assert!(report.verified.units * size > most_of_it, "{} units of {size}", report.verified.units);
    }
}

#[test]
fn devices_that_held_something_are_no_bug_of_ours() {
    let folder = tempfile::tempdir().unwrap();
    for (level, assume_clean) in [(Level::Raid5, false), (Level::Raid5, true), (Level::Raid0, true)] {
        let paths: Vec<_> = (0..3).map(|slot| folder.path().join(format!("member{slot}"))).collect();
        for (slot, path) in (0u8..).zip(&paths) {
            let bytes: Vec<u8> =
                (0u32..4 << 20).map(|at| at.wrapping_mul(at).to_be_bytes()[1] ^ slot).collect();
            std::fs::write(path, bytes).unwrap();
        }
        let devices = paths.into_iter().map(DeviceSpec::Path).collect();
        // Short: rows that are written are made right, and some must stay as they were.
        let brief = BenchArgs { seconds: 0.01, warm_up: 0.0, ..arguments() };
        let wish = BenchArgs { level, devices, assume_clean, force: true, ..brief.clone() };
        match run(&wish) {
            // Parity was believed to match.
            Err(error @ BenchError::NotClean { .. }) if level == Level::Raid5 && assume_clean => {
                assert!(error.to_string().contains("--assume-clean"), "{error}");
            }
            Ok(report) => assert!(!(assume_clean && level == Level::Raid5), "{report}"),
            Err(error) => panic!("{level}, --assume-clean {assume_clean}: {error}"),
        }
    }
}
