//! Runs over models of drives: what the drives allow, the same again with the same seed, checked like all
//! others.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use pinstripe_bench::{BenchArgs, BenchError, BitmapChoice, DeviceSpec, Pattern, PolicyChoice, Report, run};
use pinstripe_md::level::Level;

fn devices(specs: &[&str]) -> Vec<DeviceSpec> {
    specs.iter().map(|spec| spec.parse().unwrap()).collect()
}

fn arguments() -> BenchArgs {
    BenchArgs {
        devices: devices(&["model:980-pro:16M"]),
        members: Some(4),
        chunk: 16 << 10,
        seconds: 0.02,
        warm_up: 0.0,
        cache: 0,
        bitmap: BitmapChoice::None,
        ..BenchArgs::defaults()
    }
}

fn assert_near(found: f64, expected: f64) {
    assert!((found / expected - 1.0).abs() < 0.05, "{found} and not {expected}");
}

#[test]
fn reads_of_a_striped_array_are_as_fast_as_all_its_drives() {
    let reads = BenchArgs { level: Level::Raid0, reads: 100, depth: 512, ..arguments() };
    // A million reads a second each.
    assert_near(run(&reads).unwrap().iops, 4e6);
    let stream = BenchArgs { pattern: Pattern::Sequential, size: 64 << 10, depth: 64, ..reads };
    assert_near(run(&stream).unwrap().bytes_per_second, 4.0 * 6.9e9);
}

#[test]
fn a_small_write_takes_a_read_and_a_write_of_the_drive() {
    // The first write waits for superblocks.
    let warm = BenchArgs { warm_up: 0.01, ..arguments() };
    let report = run(&BenchArgs { depth: 1, policy: PolicyChoice::AlwaysRmw, ..warm }).unwrap();
    // Old data and old parity at once, then the new ones at once: 22,000 reads and 60,000 writes a second.
    let microseconds = 1e6 / 22_000.0 + 1e6 / 60_000.0;
    assert_near(report.latency_ns.mean / 1e3, microseconds);
    assert_near(report.iops, 1e6 / microseconds);
    assert_near(report.per_write.member_reads, 2.0);
    assert_near(report.per_write.member_writes, 2.0);
    assert!(report.verified.units > 0 && report.verified.stripes > 0);
}

#[test]
fn the_report_says_that_devices_are_virtual_and_nothing_of_the_cpu() {
    let report = run(&arguments()).unwrap();
    assert_eq!(report.settings.series, "virtual device");
    assert_eq!(report.settings.members, ["980-pro/0", "980-pro/1", "980-pro/2", "980-pro/3"]);
    assert!(
        report.cpu_ns_per_operation.is_none() && report.to_json().contains("\"cpu_ns_per_operation\": null")
    );
    assert!(report.kernel_entries_per_operation.is_none());
    let words = report.to_string();
    assert!(
        words.contains("virtual device") && !words.contains("CPU") && !words.contains("kernel entries"),
        "{words}"
    );
}

#[test]
fn the_same_seed_gives_the_same_report_and_another_seed_another_one() {
    for shards in [1, 3] {
        let of = |seed| {
            let disks = devices(&["model:7200rpm:16M"]);
            let slow = BenchArgs { devices: disks, shards, seed, seconds: 3.0, reads: 30, ..arguments() };
            run(&slow).unwrap().to_json()
        };
        assert_eq!(of(1), of(1), "{shards} shards");
        assert_ne!(of(1), of(2), "{shards} shards");
    }
}

#[test]
fn the_drive_of_the_parity_may_be_another_than_those_of_the_data() {
    let with_parity_on = |parity: &str| {
        let disk = "model:7200rpm-in-order:16M";
        let members = devices(&[disk, disk, disk, parity]);
        // Every write is to go by the parity.
        let array = BenchArgs { level: Level::Raid4, policy: PolicyChoice::AlwaysRmw, ..arguments() };
        run(&BenchArgs { members: None, devices: members, seconds: 10.0, ..array }).unwrap()
    };
    let [disk, flash] = ["model:7200rpm-in-order:16M", "model:x25-e:16M"].map(with_parity_on);
    assert!(flash.iops > 1.5 * disk.iops, "{} and {}", flash.iops, disk.iops);
    assert_eq!(flash.settings.members[3], "x25-e/3");
}

#[test]
fn the_cost_policy_has_more_than_others_where_writes_straddle_chunks_and_stripes() {
    // Of disks that serve in order, 160 KiB has some of them busier than others, and 192 KiB straddles
    // stripes every second time. Of such as sort, most sizes from 152 KiB on gain. Of flash, requests
    // that wait for each other seem dear.
    for (drive, size, seconds) in [
        ("model:7200rpm-in-order:32M", 160, 14.0),
        ("model:7200rpm-in-order:32M", 192, 14.0),
        ("model:7200rpm:64M", 216, 7.0),
        ("model:x25-e:32M", 100, 0.5),
    ] {
        // Seeds lie up to 3 % apart.
        let rate = |policy| -> f64 {
            let of_seed = |seed| {
                let load = BenchArgs { size: size << 10, chunk: 64 << 10, depth: 10, seed, ..arguments() };
                let array = BenchArgs { devices: devices(&[drive]), members: Some(5), policy, ..load };
                run(&BenchArgs { warm_up: seconds / 4.0, seconds, ..array }).unwrap().bytes_per_second
            };
            [5, 6, 7].map(of_seed).iter().sum()
        };
        let others = [PolicyChoice::MinReads, PolicyChoice::ModThreshold, PolicyChoice::AlwaysRmw].map(rate);
        let most = others.into_iter().fold(0.0, f64::max);
        let cost = rate(PolicyChoice::Cost);
        assert!(cost > 0.99 * most, "{drive}, {size} KiB: {cost} and {others:?}");
    }
}

#[test]
fn a_member_can_be_lost_and_rebuilt_under_virtual_time() {
    let rebuild = |report: Report| report.recovery.unwrap().seconds;
    let disks = BenchArgs { devices: devices(&["model:7200rpm:16M"]), ..arguments() };
    let slow = rebuild(run(&BenchArgs { rebuild: Some(1), ..disks }).unwrap());
    let fast = rebuild(run(&BenchArgs { rebuild: Some(1), ..arguments() }).unwrap());
    assert!(slow > 10.0 * fast, "{slow} and {fast}");
    assert!(run(&BenchArgs { lost: vec![2], ..arguments() }).unwrap().operations > 0);
}

#[test]
fn an_older_design_reads_as_its_cache_and_gathering_have_it() {
    let stream = BenchArgs {
        pattern: Pattern::Sequential,
        size: 16 << 10,
        cache: BenchArgs::defaults().cache,
        ..arguments()
    };
    let of = |arms: &str| run(&BenchArgs { ablate: Some(arms.parse().unwrap()), ..stream.clone() }).unwrap();
    let (md, straid) = (of("orig-raid"), of("straid"));
    assert!(md.ablation.is_none(), "locks take no virtual time");
    // MD's way waits for the rest of a stripe, StRAID's begins to read at once.
    assert!(md.pre_read_ratio < 0.1, "{}", md.pre_read_ratio);
    assert!(straid.pre_read_ratio > 2.0 * md.pre_read_ratio, "{}", straid.pre_read_ratio);
    assert_eq!(of("straid").to_json(), straid.to_json());
}

#[test]
fn what_virtual_time_cant_show_is_refused() {
    assert!(matches!(run(&BenchArgs { attended: true, ..arguments() }), Err(BenchError::NotVirtual(_))));
    assert!(matches!(run(&BenchArgs { limit: true, ..arguments() }), Err(BenchError::LimitShape)));
    let mixed = devices(&["model:980-pro:16M", "mem:16M", "model:980-pro:16M"]);
    assert!(matches!(
        run(&BenchArgs { devices: mixed, members: None, ..arguments() }),
        Err(BenchError::MixedDevices)
    ));
    let two = devices(&["model:980-pro:16M", "model:980-pro:16M"]);
    assert!(matches!(run(&BenchArgs { devices: two, ..arguments() }), Err(BenchError::MemberCount { .. })));
}

#[test]
fn files_under_a_model_are_as_slow_in_real_time_as_the_models_are_in_virtual_time() {
    let folder = tempfile::tempdir().unwrap();
    let file = |slot: u32| {
        let path = folder.path().join(format!("disk{slot}"));
        std::fs::File::create(&path).unwrap().set_len(16 << 20).unwrap();
        format!("model:7200rpm:{}", path.display())
    };
    let files: Vec<String> = (0..3).map(file).collect();
    let reads = BenchArgs {
        level: Level::Raid0,
        devices: devices(&["model:7200rpm:16M"; 3]),
        members: None,
        reads: 100,
        depth: 12,
        seconds: 3.0,
        ..arguments()
    };
    let virtually = run(&reads).unwrap();
    let files = devices(&files.iter().map(String::as_str).collect::<Vec<_>>());
    let really = run(&BenchArgs { devices: files, force: true, ..reads }).unwrap();
    assert_eq!(really.settings.series, "real CPU");
    assert!(really.settings.members.iter().all(|name| name.ends_with(" as 7200rpm")), "{really}");
    // A busy machine wakes a task late. None is woken early.
    let share = really.iops / virtually.iops;
    assert!((0.5..1.05).contains(&share), "{} of {} reads a second", really.iops, virtually.iops);
}
