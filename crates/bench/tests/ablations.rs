//! Ways of older designs in place of ours: each is measured, metered, and found right.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::{fmt::Write as _, fs, sync::Arc};

use pinstripe_bench::{
    Ablate, AblationReport, BenchArgs, BenchError, DeviceSpec, LockShare, PolicyChoice, Report, TraceReport,
    run, run_trace,
};
use pinstripe_md::level::Level;

const ARMS: [&str; 15] = [
    "stripe=direct,intent=lanes",
    "stripe=hashed:128",
    "stripe=global",
    "intent=atomic",
    "intent=region-lock",
    "intent=d-blocks",
    "intent=lock",
    "worker=pool",
    "join=off,gather=off",
    "stripe=global,intent=lock,worker=pool,join=off,gather=off",
    "pinstripe",
    "straid",
    "scala-raid",
    "hemi-raid",
    "orig-raid",
];

fn arguments(arms: &str) -> BenchArgs {
    let ablate: Ablate = arms.parse().unwrap();
    BenchArgs {
        devices: vec![DeviceSpec::Memory(12 << 20)],
        chunk: 16 << 10,
        shards: 2,
        seconds: 0.1,
        ablate: Some(ablate),
        ..BenchArgs::defaults()
    }
}

fn measured(arguments: &BenchArgs) -> (Report, AblationReport) {
    let report = run(arguments).unwrap_or_else(|error| panic!("{:?}: {error}", arguments.ablate));
    let ablation = report.ablation.clone().unwrap();
    (report, ablation)
}

/// Writes and reads of any length on few stripes, so that they overlap.
fn crowded(requests: u64) -> String {
    let (mut text, mut word) = (String::new(), 7_u64);
    let mut draw = |bound: u64| {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (word >> 33) % bound
    };
    for _ in 0..requests {
        let kind = if draw(10) < 3 { 'R' } else { 'W' };
        let _ = writeln!(text, "{kind}\t{}\t{}", draw(2000) * 512, draw(200) * 512 + 512);
    }
    text
}

fn replayed(arguments: &BenchArgs) -> TraceReport {
    run_trace(arguments, &(Arc::new(|_| {}) as _))
        .unwrap_or_else(|error| panic!("{:?}: {error}", arguments.ablate))
}

#[test]
fn overlapping_writes_of_several_shards_are_right_in_every_arm() {
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    fs::write(&trace, crowded(3000)).unwrap();
    for arms in ARMS {
        for level in [Level::Raid5, Level::Raid6] {
            let report = replayed(&BenchArgs { level, trace: Some(trace.clone()), ..arguments(arms) });
            assert!(report.checked.sectors > 500 && report.checked.stripes > 0, "{arms}: {report}");
            let ablation = report.ablation.as_ref().unwrap();
            assert!(ablation.stripe_locks.entered > 0 && ablation.intent_locks.entered > 0, "{report}");
            assert_eq!(ablation.hand_off.is_some(), ablation.worker == "pool", "{report}");
            assert!(report.to_string().contains("intent counters"), "{report}");
            let joins = report.array.as_ref().unwrap().counters["joins"].as_u64().unwrap();
            assert!(ablation.join || joins == 0, "{arms}: {joins} joined");
        }
    }
}

#[test]
fn every_arm_is_measured_and_named() {
    for arms in ARMS {
        let (report, ablation) = measured(&BenchArgs { reads: 20, ..arguments(arms) });
        assert!(report.operations > 0 && report.verified.stripes > 0, "{arms}");
        let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
        assert_eq!(json["ablation"]["stripe"], ablation.stripe, "{arms}");
        let text = report.to_string();
        for word in ["arms", ablation.intent, ablation.worker, "stripe table", "busy stripes"] {
            assert!(text.contains(word), "{arms}: {text}");
        }
        assert_eq!(text.contains("hand-off"), ablation.worker == "pool", "{arms}: {text}");
    }
    let (report, _) = measured(&arguments("orig-raid"));
    assert_eq!((report.settings.cache_bytes, report.settings.policy), (0, PolicyChoice::MinReads));
}

/// Runs twice as long each time until it is so. Where other programs have the CPUs, the two threads meet at a
/// lock only when one is taken off its CPU, and what is timed now and then is a few moments in a short run.
fn run_until(arms: &str, is_so: impl Fn(&AblationReport) -> bool) -> (Report, AblationReport) {
    let mut seconds = 0.5;
    loop {
        let last = measured(&BenchArgs { seconds, ..arguments(arms) });
        if is_so(&last.1) || seconds > 20.0 {
            return last;
        }
        seconds *= 2.0;
    }
}

/// The meter sees that the threads wait for it.
fn is_waited_for(lock: &LockShare) -> bool {
    // Of two threads one is within nearly always.
    lock.wait_share > 0.2 && lock.contended > 20 && lock.inside_share > 0.2
}

/// The meter sees a lock for which threads wait, in the place where it is.
#[test]
fn threads_that_wait_for_a_lock_are_seen() {
    // For most of a write's time: a thread that is taken off its CPU then has the lock, and the other waits.
    for (arms, is_stripe) in [("stripe=global,hold=200000", true), ("intent=lock,hold=200000", false)] {
        let locks = |report: &AblationReport| {
            let both = (report.stripe_locks, report.intent_locks);
            if is_stripe { both } else { (both.1, both.0) }
        };
        let (report, ablation) = run_until(arms, |report| is_waited_for(&locks(report).0));
        let (held, other) = locks(&ablation);
        assert!(is_waited_for(&held), "{held:?}: {report}");
        assert!((ablation.lock_wait_share - held.wait_share).abs() < 1e-9, "{report}");
        assert!(other.contended == 0, "{report}");
    }
}

/// No thread waits for a lock in our own arm: there is none. What the places of locks take is little.
#[test]
fn our_own_way_waits_for_no_lock() {
    for arms in ["pinstripe", "straid"] {
        // A thread that is taken off its CPU in a place that is timed counts for many.
        let (report, ablation) = run_until(arms, |report| report.lock_inside_share < 0.5);
        let locks = [ablation.stripe_locks, ablation.intent_locks];
        assert!(locks.iter().all(|lock| lock.entered >= report.operations), "{report}");
        assert!(locks.iter().all(|lock| lock.contended == 0), "{report}");
        assert!(ablation.lock_wait_share == 0.0 && ablation.lock_inside_share < 0.5, "{report}");
    }
}

#[test]
fn files_are_measured_too() {
    let folder = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..4).map(|i| folder.path().join(format!("member{i}"))).collect();
    for path in &paths {
        fs::File::create(path).unwrap().set_len(6 << 20).unwrap();
    }
    let devices = paths.into_iter().map(DeviceSpec::Path).collect();
    let (report, ablation) = measured(&BenchArgs { devices, force: true, ..arguments("orig-raid") });
    assert!(report.verified.units > 0 && ablation.hand_off.unwrap().handed > 0);
}

#[test]
fn what_contradicts_itself_is_refused() {
    for wrong in [
        BenchArgs { level: Level::Raid0, ..arguments("straid") },
        BenchArgs { cache: 1 << 20, ..arguments("orig-raid") },
        BenchArgs { cache: 1 << 20, ..arguments("cache=2M") },
    ] {
        assert!(matches!(run(&wrong), Err(BenchError::Arguments(_))), "{wrong:?}");
    }
}

/// By Little's law the mean time of requests by their rate is how many are under way. Over memory requests
/// end at once and clients wait for their turns, or for a worker: both are part of that time.
#[test]
fn as_many_requests_are_under_way_as_there_are_clients() {
    for arms in ["pinstripe", "straid", "orig-raid"] {
        for (shards, reads) in [(1, 0), (2, 0), (2, 100)] {
            let arguments = BenchArgs { shards, reads, depth: 64, seconds: 0.0, ..arguments(arms) };
            // A thread that is taken off its CPU counts for much in a short run.
            let under_way = |seconds| {
                let (report, _) = measured(&BenchArgs { seconds, ..arguments.clone() });
                report.latency_ns.mean / 1e9 * report.iops
            };
            let is_all = |seconds| (48.0..80.0).contains(&under_way(seconds));
            assert!([0.3, 1.0, 3.0, 9.0].into_iter().any(is_all), "{arms}, {shards} shards, {reads} % reads");
        }
    }
}
