//! `pinstripe bench --through`: a load by way of a server, and what is kept of its latencies.

use std::{fs, path::Path, process::Stdio};

use crate::{
    fuse::may_mount,
    world::{MIB, World, wait_until},
};

const LOAD: &[&str] = &["--seconds", "0.2", "--warm-up", "0", "--depth", "8", "--json"];

fn bench(options: &[&str]) -> Vec<String> {
    ["bench"].iter().chain(options).chain(LOAD).map(|word| (*word).to_owned()).collect()
}

fn words(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

#[test]
fn a_load_goes_through_a_server_of_its_own_and_is_read_back() {
    let world = World::new();
    // Small payloads are gathered, large ones are not.
    for (size, fill) in [("4K", true), ("96K", false)] {
        let memory =
            ["--through", "nbd", "--device", "mem:24M", "--chunk", "16K", "--size", size, "--reads", "30"];
        let more = ["--shards", "2", "--histogram", "latency.hgrm"];
        let options = [&memory[..], &more[..], if fill { &["--fill"] } else { &[] }].concat();
        let ran = world.run(&words(&bench(&options))).ok();
        let report = ran.json();
        assert!(
            report["operations"].as_u64().unwrap() > 0 && report["iops"].as_f64().unwrap() > 0.0,
            "{report}"
        );
        assert!(report["units_verified"].as_u64().unwrap() > 0, "{report}");
        assert!(report["through"].as_str().unwrap().starts_with("nbd+unix://"), "{report}");
        let samples = report["latency_ns"]["samples"].as_u64().unwrap();
        assert_eq!(samples, report["operations"].as_u64().unwrap(), "every request is timed");
        let histogram = fs::read_to_string(world.path("latency.hgrm")).unwrap();
        assert!(
            histogram.contains("Percentile") && histogram.contains(&format!("{samples}]")),
            "{histogram}"
        );
    }
}

#[test]
fn a_load_goes_through_a_file_that_is_mounted_for_it_and_gone_afterwards() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    let mut options =
        vec!["--through", "fuse", "--device", "mem:24M", "--chunk", "16K", "--reads", "30", "--shards", "2"];
    let folder = world.path("temporary").display().to_string();
    fs::create_dir(&folder).unwrap();
    let run = |options: &[&str]| world.run_with(("TMPDIR", &folder), &words(&bench(options)));
    let report = run(&options).ok().json();
    assert!(report["units_verified"].as_u64().unwrap() > 0, "{report}");
    let path = report["through"].as_str().unwrap();
    assert!(path.starts_with(&folder) && path.ends_with("/fuse"), "{report}");
    // A load that fails leaves nothing mounted either.
    options.extend(["--histogram", "nowhere/latency.hgrm"]);
    run(&options).refused(1, &["nowhere/latency.hgrm"]);
    assert!(!fs::read_to_string("/proc/self/mounts").unwrap().contains(&folder));
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
}

#[test]
fn a_load_goes_through_the_queues_of_a_virtual_machines_disk() {
    let world = World::new();
    // More requests at a time than the shortest ring has room for, and so many writes that indices wrap.
    for (size, more) in [
        ("4K", &["--fill", "--depth", "40", "--seconds", "2"][..]),
        ("96K", &["--depth", "8", "--seconds", "0.2"]),
    ] {
        let load =
            ["bench", "--through", "vhost-user", "--device", "mem:64M", "--chunk", "16K", "--size", size];
        let options = ["--reads", "30", "--shards", "2", "--warm-up", "0", "--json"];
        let report = world.run(&[&load[..], &options, more].concat()).ok().json();
        let path = report["through"].as_str().unwrap();
        assert!(path.starts_with("vhost-user:/") && path.ends_with("/vhost-user"), "{report}");
        assert!(report["units_verified"].as_u64().unwrap() > 0, "{report}");
        let samples = report["latency_ns"]["samples"].as_u64().unwrap();
        assert_eq!(samples, report["operations"].as_u64().unwrap(), "every request is timed");
    }
}

#[test]
fn a_virtual_machines_disk_that_is_there_is_overwritten_by_force_if_it_can_be() {
    let world = World::new();
    let members = world.raid5(4);
    let export = format!("vhost-user:{}", world.path("disk").display());
    let server = world.serve(&["--vhost-user", "disk"], &members);
    world.run(&words(&bench(&["--through", &export]))).refused(1, &["would be overwritten"]);
    world.run(&words(&bench(&["--through", &export, "--reads", "100"]))).ok();
    let report = world.run(&words(&bench(&["--through", &export, "--force"]))).ok().json();
    assert_eq!(report["through"], export);
    assert!(report["units_verified"].as_u64().unwrap() > 0, "{report}");
    drop(server);
    let _server = world.serve(&["--read-only", "--vhost-user", "disk"], &members);
    world.run(&words(&bench(&["--through", &export, "--force"]))).refused(1, &["can't be used", "read-only"]);
    world.run(&words(&bench(&["--through", &export, "--reads", "100"]))).ok();
}

#[test]
fn a_server_that_dies_under_a_load_ends_it() {
    let world = World::new();
    let members = world.raid5(4);
    let export = format!("vhost-user:{}", world.path("disk").display());
    let server = world.serve(&["--vhost-user", "disk"], &members);
    let options = ["bench", "--through", &export, "--force", "--seconds", "30"];
    let load = world.command(&options).stderr(Stdio::piped()).spawn().unwrap();
    wait_until("at work", || world.run(&["detail", "data"]).ok().out.contains("write latency"));
    server.signal("KILL");
    let ended = load.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(1) && told.contains("the device is gone"), "{ended:?}");
}

#[test]
fn files_of_a_server_of_its_own_are_overwritten_only_by_force() {
    let world = World::new();
    let devices: Vec<String> =
        (0..4).map(|n| world.path(&world.file(&format!("m{n}"), 24 * MIB)).display().to_string()).collect();
    let mut options = vec!["--through", "nbd", "--level", "6", "--chunk", "16K"];
    options.extend(devices.iter().flat_map(|device| ["--device", device]));
    world.run(&words(&bench(&options))).refused(1, &["would be overwritten"]);
    options.push("--force");
    // What can't be done is found out while the devices are as they were.
    for (wrong, words) in [
        (["--size", "100"], "multiple of 512"),
        (["--rate", "0"], "--rate"),
        (["--members", "5"], "contradicts the 4 devices"),
        (["--histogram", "nowhere/file"], "nowhere/file"),
    ] {
        let told = world.run(&self::words(&bench(&[&options[..], &wrong].concat())));
        told.refused(1, &[words]);
    }
    let replay = [&["bench"], &options[..], &["--trace", "nowhere"]].concat();
    world.run(&replay).refused(1, &["nowhere"]);
    for device in &devices {
        assert!(fs::read(device).unwrap().iter().all(|byte| *byte == 0), "{device} was overwritten");
    }
    let report = world.run(&words(&bench(&options))).ok().json();
    assert!(report["units_verified"].as_u64().unwrap() > 0, "{report}");
}

#[test]
fn a_load_goes_to_a_file_by_force_only_unless_it_only_reads() {
    let world = World::new();
    let path = world.path(&world.file("file", 16 * MIB)).display().to_string();
    world.run(&words(&bench(&["--through", &path]))).refused(1, &["would be overwritten"]);
    assert!(fs::read(&path).unwrap().iter().all(|byte| *byte == 0), "a refused load has written");
    world.run(&words(&bench(&["--through", &path, "--reads", "100"]))).ok();
    let report = world.run(&words(&bench(&["--through", &path, "--force"]))).ok().json();
    assert!(report["units_verified"].as_u64().unwrap() > 0, "{report}");
    assert!(fs::read(&path).unwrap().iter().any(|byte| *byte != 0));
}

#[test]
fn an_export_that_is_read_only_takes_reads() {
    let world = World::new();
    let members = world.raid5(4);
    let server = world.serve(&["--read-only"], &members);
    let uri = server.ready["nbd"][0].as_str().unwrap().to_owned();
    world.run(&words(&bench(&["--through", &uri, "--force"]))).refused(1, &["can't be used", "read-only"]);
    world.run(&words(&bench(&["--through", &uri, "--reads", "100"]))).ok();
}

#[test]
fn what_can_not_be_gone_through_is_refused_with_the_reason() {
    let world = World::new();
    world.run(&words(&bench(&["--through", "nbd", "--limit"]))).refused(64, &["--limit"]);
    world.run(&words(&bench(&["--through", "smb"]))).refused(64, &["smb", "nbd, ublk, fuse, vhost-user"]);
    let missing = "nbd+unix:///?socket=/nowhere/nbd";
    world
        .run(&words(&bench(&["--through", missing, "--force"])))
        .refused(1, &["/nowhere/nbd", "can't be used"]);
    if !Path::new("/dev/ublk-control").exists() {
        world
            .run(&words(&bench(&["--through", "ublk", "--device", "mem:12M"])))
            .refused(1, &["modprobe ublk_drv"]);
    }
}

#[test]
fn a_probed_device_is_what_a_plan_is_made_for() {
    let world = World::new();
    let file = world.path("device");
    fs::File::create(&file).unwrap().set_len(64 * MIB).unwrap();
    let probe = ["bench", "--probe", "device", "--probe-writes", "--seconds", "0.05", "--json"];
    world.run(&probe).refused(1, &["would be overwritten", "--force"]);
    let probed = world.run(&[&probe[..], &["--force"]].concat()).ok();
    assert!(probed.json()["writes"]["small"][0]["iops"].as_f64().unwrap() > 0.0);
    fs::write(world.path("probe.json"), probed.json().to_string()).unwrap();
    let plan =
        ["plan", "--device", "probe.json", "--members", "4", "--seeds", "1", "--requests", "100", "--json"];
    let planned = world.run(&plan).ok().json();
    assert!(planned["load"]["iops"]["mean"].as_f64().unwrap() > 0.0, "{planned}");
    // A device that may only be read is left as it is, and a plan says what it doesn't know.
    fs::write(&file, vec![7; usize::try_from(64 * MIB).unwrap()]).unwrap();
    let probed = world.run(&["bench", "--probe", "device", "--seconds", "0.05", "--json"]).ok().json();
    assert!(probed["writes"].is_null() && fs::read(&file).unwrap().iter().all(|byte| *byte == 7));
    fs::write(world.path("probe.json"), probed.to_string()).unwrap();
    let words = world.run(&plan[..plan.len() - 1]).ok();
    assert!(words.out.contains("not allowed to write"), "{}", words.out);
    for bad in [&["--device", "none.json"][..], &["--device", "model:980-pro:1G", "--afr", "100"], &[]] {
        world.run(&[&["plan"], bad].concat()).refused(64, &[]);
    }
}
