//! The store of objects: every workload of it, few objects asked for by many clients, what can't be.

use std::{fs::File, sync::Arc};

use pinstripe_bench::{
    BenchArgs, BenchError, DeviceSpec, Export, Latency, Mix, ObjectsReport, Pattern, run_objects,
    run_objects_through,
};
use pinstripe_md::level::Level;

fn arguments(objects: usize) -> BenchArgs {
    BenchArgs {
        devices: vec![DeviceSpec::Memory(12 << 20)],
        chunk: 16 << 10,
        cache: 1 << 20,
        size: 32 << 10,
        depth: 16,
        seconds: 0.2,
        warm_up: 0.05,
        objects: Some(objects),
        ..BenchArgs::defaults()
    }
}

fn measure(arguments: &BenchArgs) -> Result<ObjectsReport, BenchError> {
    run_objects(arguments, &(Arc::new(|_| {}) as _))
}

#[test]
fn every_workload_of_the_store_is_done_and_read_back() {
    for mix in [Mix::A, Mix::B, Mix::C, Mix::D, Mix::F, Mix::W] {
        for (level, shards, pattern) in [(Level::Raid5, 2, Pattern::Random), (Level::Raid6, 1, Pattern::Zipf)]
        {
            // Inserts end with the time, not with the room.
            let devices = vec![DeviceSpec::Memory(if mix == Mix::D { 256 << 20 } else { 12 << 20 })];
            let report = measure(&BenchArgs { mix, level, shards, pattern, devices, ..arguments(100) });
            let report = report.unwrap_or_else(|error| panic!("{mix:?}, {level}: {error}"));
            let reads = report.read_latency_ns.samples;
            let (writes, both) =
                (report.write_latency_ns.samples, report.read_modify_write_latency_ns.samples);
            assert_eq!(reads + writes + both, report.operations);
            assert!(report.operations > 100, "{report}");
            // Nothing of the load before, nor of the warm-up.
            let counters = &report.array.as_ref().unwrap().counters;
            assert_eq!(counters["write_bytes"], (writes + both) * report.size_bytes, "{report}");
            let share = writes * 100 / report.operations;
            match mix {
                Mix::A => assert!((40..60).contains(&share) && both == 0, "{report}"),
                Mix::B | Mix::D => assert!((1..10).contains(&share) && both == 0, "{report}"),
                Mix::C => assert!(writes + both == 0, "{report}"),
                Mix::W => assert!(reads + both == 0, "{report}"),
                Mix::F => assert!(writes == 0 && both > reads / 2 && reads > both / 2, "{report}"),
            }
            // Those of the warm-up are among them.
            let inserted = if mix == Mix::D { writes } else { 0 };
            assert!(report.checked.objects >= 100 + inserted, "{report}");
            assert!((mix == Mix::D) == (report.checked.objects > 100), "{report}");
            assert!(report.checked.stripes > 0 && report.checked.mismatched_sectors == 0);
        }
    }
}

/// Puts of one object overlap with gets and with other puts, on devices that take time.
#[test]
fn many_clients_of_few_objects_see_no_object_half_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("export");
    File::create(&path).unwrap().set_len(8 << 20).unwrap();
    for shards in [1, 2] {
        let arguments = BenchArgs { size: 256 << 10, shards, mix: Mix::F, ..arguments(3) };
        let export = Export::Path(path.clone());
        let refused = run_objects_through(&arguments, &export, false, &(Arc::new(|_| {}) as _));
        assert!(matches!(refused, Err(BenchError::ForceExport)));
        let report = run_objects_through(&arguments, &export, true, &(Arc::new(|_| {}) as _)).unwrap();
        assert!(report.operations > 20 && report.checked.objects == 3, "{report}");
    }
}

/// A device keeps what the run before has left there.
#[test]
fn objects_of_the_store_before_are_none_of_this_one() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("export");
    File::create(&path).unwrap().set_len(8 << 20).unwrap();
    for objects in [100, 3] {
        let export = Export::Path(path.clone());
        let report =
            run_objects_through(&arguments(objects), &export, true, &(Arc::new(|_| {}) as _)).unwrap();
        assert_eq!(report.checked.objects, objects as u64);
    }
}

#[test]
fn objects_are_read_while_a_member_is_missing() {
    let report = measure(&BenchArgs { lost: vec![2], ..arguments(200) }).unwrap();
    assert_eq!(report.checked.objects, 200);
    assert!(
        report.checked.stripes > 0 && report.to_json().contains("\"lost\": [\n      2\n    ]"),
        "{report}"
    );
}

#[test]
fn what_the_store_has_no_room_for_is_told() {
    let refused = |arguments: BenchArgs| measure(&arguments).unwrap_err().to_string();
    assert!(refused(arguments(100_000)).contains("the array has room for "));
    assert!(refused(BenchArgs { pattern: Pattern::Sequential, ..arguments(10) }).contains("random or zipf"));
    assert!(refused(BenchArgs { size: 4608, ..arguments(10) }).contains("a multiple of 4096"));
    let full =
        BenchArgs { mix: Mix::D, seconds: 60.0, devices: vec![DeviceSpec::Memory(2 << 20)], ..arguments(10) };
    assert!(refused(full).contains("inserts have filled the "));
}

/// See the same test of patterns.
#[test]
fn as_many_operations_are_under_way_as_there_are_clients() {
    for (mix, shards) in [(Mix::A, 1), (Mix::A, 2), (Mix::C, 1)] {
        let report = measure(&BenchArgs { mix, shards, ..arguments(100) }).unwrap();
        let of = |latency: Latency| latency.mean * f64::from(u32::try_from(latency.samples).unwrap());
        let under_way = (of(report.read_latency_ns) + of(report.write_latency_ns)) / 1e9 / report.seconds;
        assert!((12.0..20.0).contains(&under_way), "{mix:?}, {shards} shards: {under_way}: {report}");
    }
}

#[test]
fn a_store_over_models_takes_their_time_and_is_the_same_again() {
    let of = |model: &str, seed| {
        let devices = vec![format!("model:{model}:16M").parse().unwrap()];
        let (seconds, warm_up) = (0.02, 0.0);
        let store =
            BenchArgs { devices, members: Some(4), seed, shards: 2, seconds, warm_up, ..arguments(100) };
        let report = measure(&store).unwrap();
        assert!(report.checked.objects == 100 && report.checked.stripes > 0, "{report}");
        assert_eq!(report.cpu_ns_per_operation, None);
        assert!(report.to_string().contains("nothing but the drives"), "{report}");
        (report.to_json(), report.operations_per_second)
    };
    assert_eq!(of("980-pro", 1), of("980-pro", 1));
    assert_ne!(of("980-pro", 1), of("980-pro", 2));
    assert!(of("980-pro", 1).1 > 3.0 * of("860-pro", 1).1);
    let wish = BenchArgs { devices: vec!["model:980-pro:16M".parse().unwrap()], ..arguments(100) };
    let through = run_objects_through(&wish, &Export::Path("export".into()), true, &(Arc::new(|_| {}) as _));
    assert!(matches!(through, Err(BenchError::NotVirtual(_))));
}
