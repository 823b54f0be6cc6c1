//! Devices that have two names, change their names, or can't be written.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::{
        fs::{DirBuilderExt, MetadataExt},
        net::UnixListener,
    },
    path::Path,
    process::{Child, Command},
    sync::mpsc::{Receiver, channel},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    fuse::may_mount,
    nbd::{Client, header, pattern},
    world::{LoopDevice, MEMBER_BYTES, Server, World, wait_until},
};

const NQN: &str = "nqn.2026-01.com.example:store";

fn target(world: &World, options: &[&str], devices: &[String]) -> Server {
    let all = [&["--listen", "127.0.0.1:0", "--nqn", NQN, "--shards", "1"], options].concat();
    world.target(&all, devices)
}

fn namespaces(target: &Server) -> Vec<String> {
    let names = target.ready["namespaces"].as_array().unwrap();
    names.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

/// What a target says of its first namespace's fence.
fn fence(world: &World, target: &Server) -> Value {
    let address = target.ready["address"].as_str().unwrap();
    let found = world.run(&["discover", "--json", "--namespaces", address]).ok().json();
    found["subsystems"][0]["namespaces"][0]["offload"].clone()
}

#[test]
fn a_fence_goes_with_the_device_when_its_path_changes() {
    let world = World::new();
    let mut devices = world.members(3);
    let first = target(&world, &["--state", "state", "--state-create"], &devices[..1]);
    let mut members = namespaces(&first);
    members.extend_from_slice(&devices[1..]);
    world.create(&["--level", "5", "--name", "data", "--assume-clean"], &members).ok();
    let server = world.serve(&["--shards", "1"], &members);
    assert_eq!(Client::connect(&server.nbd()).write(0, &pattern(1, 1 << 20)), 0);
    let before = fence(&world, &first);
    assert_eq!((&before["attached"], &before["given_up"]), (&true.into(), &false.into()), "{before}");
    drop(first);
    drop(server);
    // As at the next boot.
    fs::rename(world.path(&devices[0]), world.path("renamed")).unwrap();
    devices[0] = "renamed".to_owned();
    let again = target(&world, &["--state", "state"], &devices[..1]);
    let after = fence(&world, &again);
    for what in ["array", "epoch", "given_up"] {
        assert_eq!(after[what], before[what], "{before} became {after}");
    }
    drop(again);
    // Another device under the name of before hasn't its state.
    let other = world.file("member0", MEMBER_BYTES);
    let refused = world.run(&["target", "--listen", "127.0.0.1:0", "--nqn", NQN, "--state", "state", &other]);
    refused.refused(1, &["has no state of", "member0", "--state-create"]);
}

#[test]
fn a_device_with_a_state_is_one_targets_for_as_long_as_that_serves_it() {
    let world = World::new();
    let device = world.file("device", MEMBER_BYTES);
    let serving = target(&world, &["--state", "state", "--state-create"], std::slice::from_ref(&device));
    let files = fs::read_dir(world.path("state")).unwrap().map(|entry| entry.unwrap().path());
    let file = files.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "device"));
    // As another target would, that has the device by another path.
    let file = fs::OpenOptions::new().read(true).write(true).open(file.unwrap()).unwrap();
    assert!(matches!(file.try_lock(), Err(fs::TryLockError::WouldBlock)));
    drop(serving);
    file.try_lock().unwrap();
}

#[test]
fn a_target_that_forgets_which_host_was_replaced_warns_of_it() {
    let world = World::new();
    let device = [world.file("device", MEMBER_BYTES)];
    let warns = |options: &[&str]| target(&world, options, &device).end().1.contains("without --state");
    assert!(warns(&[]));
    assert!(!warns(&["--state", "state", "--state-create"]));
    assert!(!warns(&["--offload", "off"]));
}

#[test]
fn a_state_directory_that_is_missing_is_not_made_unasked() {
    let world = World::new();
    let device = world.file("device", MEMBER_BYTES);
    let target = |more: &[&str]| {
        world.run(&[&["target", "--listen", "127.0.0.1:0", "--nqn", NQN], more, &[device.as_str()]].concat())
    };
    target(&["--state", "state"]).refused(1, &["state does not exist", "mounted", "--state-create"]);
    assert!(!world.path("state").exists());
    target(&["--state-create"]).refused(64, &["--state"]);
    // Arguments come first: nothing is made for a target that can't be.
    let bad = ["target", "--listen", "127.0.0.1:0", "--nqn", "x", "--state", "s", "--state-create", &device];
    world.run(&bad).refused(64, &["'x' is no NQN"]);
    assert!(!world.path("s").exists());
}

#[test]
fn files_and_loop_devices_over_them_are_never_served_twice() {
    let world = World::new();
    let members = world.raid5(3);
    let Some(device) = LoopDevice::new(&world, &members[0], &[]) else { return };
    let twice = [members.clone(), vec![device.path.clone()]].concat();
    let before = world.hashes(&members);
    world.create(&["--level", "5", "--force"], &twice).refused(64, &["member0", "are one device"]);
    world.serve_refused(&[], &twice).refused(64, &["member0", "are one device"]);
    world
        .run(&["target", "--listen", "127.0.0.1:0", "--nqn", NQN, &members[0], &device.path])
        .refused(64, &["one device"]);
    let by_device = [std::slice::from_ref(&device.path), &members[1..]].concat();
    let elsewhere = ["--control", "other.sock", "--nbd", "unix:other.nbd"];
    // The other members are held too; one that only the loop device could give away stands alone here.
    let store = target(&world, &[], &members[..1]);
    world.serve_refused(&elsewhere, &by_device).refused(1, &[&device.path, "held by another process"]);
    drop(store);
    let store = target(&world, &[], &by_device[..1]);
    world.serve_refused(&elsewhere, &members).refused(1, &["member0", "held by another process"]);
    drop(store);
    assert_eq!(world.hashes(&members), before);
}

#[test]
fn one_read_only_device_refuses_the_whole_array_before_anything_is_written() {
    let world = World::new();
    let mut devices = world.members(3);
    for member in &devices {
        world.poke(member, 0, b"XFSB");
    }
    let Some(device) = LoopDevice::new(&world, &devices[2], &["--read-only"]) else { return };
    let before = world.hashes(&devices);
    let mixed = [&devices[..2], std::slice::from_ref(&device.path)].concat();
    world.create(&["--level", "5", "--force"], &mixed).refused(1, &[&device.path, "is read-only"]);
    assert_eq!(world.hashes(&devices), before);
    drop(device);

    devices = world.members(3);
    world.create(&["--level", "5", "--name", "data", "--force"], &devices).ok();
    let device = LoopDevice::new(&world, &devices[2], &["--read-only"]).unwrap();
    let mixed = [&devices[..2], std::slice::from_ref(&device.path)].concat();
    let before = world.hashes(&devices);
    world.serve_refused(&[], &mixed).refused(1, &[&device.path, "is read-only"]);
    assert_eq!(world.hashes(&devices), before);
    drop(world.serve(&["--read-only"], &mixed));
    let spare = world.file("spare", MEMBER_BYTES);
    let spare = LoopDevice::new(&world, &spare, &["--read-only"]).unwrap();
    drop(device);
    let server = world.serve(&["--shards", "1"], &devices);
    world.run(&["add", "data", &spare.path]).refused(1, &[&spare.path, "is read-only"]);
    world.run(&["replace", "data", "1", "--with", &spare.path]).refused(1, &[&spare.path, "is read-only"]);
    drop(server);
}

#[test]
fn a_namespace_that_refuses_writes_refuses_the_array() {
    let world = World::new();
    let devices = world.members(3);
    let store = target(&world, &["--read-only"], &devices[2..]);
    let mixed = [devices[..2].to_vec(), namespaces(&store)].concat();
    let before = world.hashes(&devices);
    world.create(&["--level", "5", "--force"], &mixed).refused(1, &["nsid=1", "is read-only"]);
    world.run(&["examine", &mixed[2]]).ok();
    assert_eq!(world.hashes(&devices), before);
}

#[test]
fn a_bad_name_of_the_subsystem_is_refused_before_members_change() {
    let world = World::new();
    let members = world.members(3);
    // Not in sync: to serve it is to write.
    world.create(&["--level", "5", "--name", "data"], &members).ok();
    let before = world.hashes(&members);
    for nqn in ["x", "nqn.2014-08.org.nvmexpress.discovery"] {
        world
            .serve_refused(&["--nvme-tcp", "127.0.0.1:0", "--nqn", nqn], &members)
            .refused(64, &[nqn, "is no NQN"]);
        assert_eq!(world.hashes(&members), before);
    }
}

/// C21: what a server claims beside the file that the requests go to is let go when these are over, as that
/// file is. Here it is what is under a loop device; of NVMe by passthrough it is the block device.
#[test]
fn a_server_that_was_killed_keeps_all_its_claims_until_its_requests_are_over() {
    if !may_mount() {
        return;
    }
    let other = World::new();
    let store = other.serve(&["--shards", "1", "--fuse", "disk"], &other.raid5(3));
    let Some(device) = LoopDevice::new(&other, "disk", &[]) else { return };
    let is_locked = locked(&other.path("disk"));
    let world = World::new();
    let mut members = world.members(3);
    members[1].clone_from(&device.path);
    world.create(&["--level", "5", "--name", "data", "--assume-clean"], &members).ok();
    assert!(!is_locked());
    let mut server = world.serve(&["--shards", "1"], &members);
    assert!(is_locked());
    let mut client = Client::connect(&server.nbd());
    let stopped = Stopped::new(&store);
    // Nothing of it was read by now. (A flush would keep the process itself.)
    client.say(&header(0, 4 << 20, 1 << 20));
    thread::sleep(Duration::from_secs(1));
    server.signal("KILL");
    let ended = server.ended_within(Duration::from_secs(30));
    thread::sleep(Duration::from_secs(1));
    let is_kept = is_locked();
    drop(stopped);
    assert!(ended.is_some(), "the process waited for the device");
    assert!(is_kept, "a next server could begin");
    wait_until("the requests are over", || !is_locked());
}

/// The kernel keeps a process whose thread waits for a flush that hangs, with all that it has open. What has
/// nothing to do with that flush must not be kept.
#[test]
fn a_server_that_was_stopped_beside_a_flush_that_hangs_keeps_the_hanging_member_alone() {
    if !may_mount() {
        return;
    }
    let other = World::new();
    let store = other.serve(&["--shards", "1", "--fuse", "disk"], &other.raid5(3));
    let world = World::new();
    let mut members = world.members(3);
    members[1] = other.path("disk").to_str().unwrap().to_owned();
    world.create(&["--level", "5", "--name", "data", "--assume-clean"], &members).ok();
    let is_locked = locked(&other.path("disk"));
    let mut server = world.serve(&["--shards", "1", "--member-timeout", "1"], &members);
    let mut client = Client::connect(&server.nbd());
    assert_eq!(client.write(0, &pattern(1, 1 << 20)), 0);
    let stopped = Stopped::new(&store);
    client.flush();
    drop(client);
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended_within(Duration::from_secs(2)), None, "nothing hung");
    let says = |line: &serde_json::Value| {
        line.to_string().contains(&format!("requests to {} are not over", members[1]))
    };
    wait_until("it names what hangs", || server.later.lock().unwrap().iter().any(says));
    let next = world.serve(&["--shards", "1", "--run"], &[members[0].clone(), members[2].clone()]);
    assert!(Client::connect(&next.nbd()).read(0, 1 << 20) == pattern(1, 1 << 20));
    assert!(is_locked(), "what the flush goes to could be used");
    drop(stopped);
    assert!(server.ended_within(Duration::from_mins(1)).is_some());
}

/// An exec waits for all threads, and its failure would end the server.
#[test]
fn an_upgrade_is_refused_while_a_device_beside_the_array_hangs() {
    if !may_mount() {
        return;
    }
    let other = World::new();
    let store = other.serve(&["--shards", "1", "--fuse", "disk"], &other.raid5(3));
    let Some(device) = LoopDevice::new(&other, "disk", &[]) else { return };
    let world = World::new();
    let server = world.serve(&["--shards", "1"], &world.raid5(3));
    let mut client = Client::connect(&server.nbd());
    let stopped = Stopped::new(&store);
    let mut add = world.command(&["add", "data", &device.path]).spawn().unwrap();
    thread::sleep(Duration::from_secs(1));
    world.run(&["upgrade", "data"]).refused(1, &[&device.path, "does not answer", "nothing was changed"]);
    assert_eq!(client.write(0, &pattern(1, 4096)), 0);
    drop(stopped);
    add.wait().unwrap();
    world.run(&["upgrade", "data"]).ok();
    assert!(client.read(0, 4096) == pattern(1, 4096));
}

/// Also if the array has it no more: what it was asked for would keep the process, when all clients are gone.
#[test]
fn an_upgrade_is_refused_while_requests_to_a_member_that_was_removed_are_not_over() {
    if !may_mount() {
        return;
    }
    let other = World::new();
    let store = other.serve(&["--shards", "1", "--fuse", "disk"], &other.raid5(3));
    let world = World::new();
    let mut members = world.members(3);
    members[1] = other.path("disk").to_str().unwrap().to_owned();
    world.create(&["--level", "5", "--name", "data", "--assume-clean"], &members).ok();
    let server = world.serve(&["--shards", "1", "--member-timeout", "1"], &members);
    let mut client = Client::connect(&server.nbd());
    let stopped = Stopped::new(&store);
    assert_eq!(client.write(0, &pattern(1, 1 << 20)), 0);
    world.run(&["remove", "data", &members[1]]).ok();
    world.run(&["upgrade", "data"]).refused(1, &[&members[1], "does not answer", "nothing was changed"]);
    assert!(client.read(0, 1 << 20) == pattern(1, 1 << 20));
    drop(stopped);
    world.run(&["upgrade", "data"]).ok();
    assert!(client.read(0, 1 << 20) == pattern(1, 1 << 20));
}

/// Tells whether a file that is there is locked, also when its file system doesn't answer any more.
fn locked(path: &Path) -> impl Fn() -> bool + use<> {
    let metadata = fs::metadata(path).unwrap();
    let inode = format!(":{:02x}:{} ", rustix::fs::minor(metadata.dev()), metadata.ino());
    move || {
        let locks = fs::read_to_string("/proc/locks").unwrap();
        locks.lines().any(|lock| lock.contains("OFDLCK") && lock.contains(&inode))
    }
}

/// A server that stands still, until this goes.
struct Stopped<'a>(&'a Server);

impl<'a> Stopped<'a> {
    fn new(server: &'a Server) -> Self {
        server.signal("STOP");
        Self(server)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.signal("CONT");
    }
}

/// Answers in place of the server that has its array as this block device: only a machine with ublk has one.
/// Gives what was asked for, but for `detail` and `version`.
fn stand_in(world: &World, device: &str) -> Receiver<String> {
    let detail = json!({
        "name": "data", "uuid": "", "level": "raid5", "layout": "", "chunk_bytes": 65536, "logical_block_bytes": 512,
        "size_bytes": 0, "state": "active", "degraded": false, "events": 0, "members": [], "spares": [], "failed": [],
        "bitmap": null, "consistency_policy": "bitmap", "regions_to_resync": 0, "sync": null, "sync_paused": false,
        "sync_speed_min_kib": 0, "sync_speed_max_kib": 0, "errors": [], "advice": null, "nbd": [], "shards": 1, "statistics": {},
        "addresses": [{ "protocol": "ublk", "uri": device }],
    });
    stand_in_saying(world, detail)
}

/// The same, with this answer to `detail`.
fn stand_in_saying(world: &World, detail: Value) -> Receiver<String> {
    fs::DirBuilder::new().mode(0o700).recursive(true).create(world.path("pinstripe")).unwrap();
    let listener = UnixListener::bind(world.path("pinstripe/data.sock")).unwrap();
    let (sender, asked) = channel();
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let lines = BufReader::new(stream.try_clone().unwrap()).lines();
            for call in lines.map_while(Result::ok) {
                let call: Value = serde_json::from_str(&call).unwrap();
                let result = match call["method"].as_str().unwrap() {
                    "detail" => detail.clone(),
                    "version" => json!({ "protocol": 1, "pinstripe": "", "instance": "", "pid": 1 }),
                    other => {
                        let _ = sender.send(other.to_owned());
                        Value::Null
                    }
                };
                let answer = json!({ "jsonrpc": "2.0", "id": call["id"], "result": result });
                writeln!(stream, "{answer}").unwrap();
            }
        }
    });
    asked
}

/// A program with a file open, for so many seconds.
fn holder(path: &str, seconds: &str) -> Child {
    Command::new("sleep").arg(seconds).stdin(fs::File::open(path).unwrap()).spawn().unwrap()
}

#[test]
fn an_array_is_not_stopped_while_a_program_has_its_block_device_open() {
    let world = World::new();
    let file = world.file("disk", MEMBER_BYTES);
    let Some(device) = LoopDevice::new(&world, &file, &[]) else { return };
    let asked = stand_in(&world, &device.path);
    let mut long = holder(&device.path, "600");
    let words = format!("{} is open in sleep (process {})", device.path, long.id());
    let stop = |options: &[&str]| world.run(&[&["stop", "data"], options].concat());
    stop(&[]).refused(1, &[&words, "nothing was stopped"]);
    world.run(&["stop", "--all"]).refused(1, &[&words, "nothing was stopped"]);
    assert!(asked.try_recv().is_err());
    stop(&["--force"]).ok();
    assert_eq!(asked.try_recv().unwrap(), "stop");
    long.kill().unwrap();
    long.wait().unwrap();

    // One that closes it in time is waited for.
    for (seconds, options) in [(0.3, &[][..]), (5.0, &["--wait", "60"])] {
        let begun = Instant::now();
        let mut brief = holder(&device.path, &f64::to_string(&seconds));
        stop(options).ok();
        assert_eq!(asked.try_recv().unwrap(), "stop");
        assert!(begun.elapsed() >= Duration::from_secs_f64(seconds), "it was not waited for");
        brief.wait().unwrap();
    }
}

#[test]
fn all_are_stopped_where_an_array_lies_on_another_ones_block_device() {
    let world = World::new();
    let file = world.file("disk", MEMBER_BYTES);
    let Some(device) = LoopDevice::new(&world, &file, &[]) else { return };
    let asked = stand_in(&world, &device.path);
    let others = ["other0", "other1"].map(|name| world.file(name, MEMBER_BYTES));
    let members = [&[device.path.clone()][..], &others].concat();
    world.create(&["--level", "5", "--name", "upper", "--assume-clean"], &members).ok();
    let upper = world.serve(&["--shards", "1"], &members);
    world.run(&["stop", "data"]).refused(1, &["is open in pinstripe", "nothing was stopped"]);
    let stopped = world.run(&["stop", "--all"]).ok().out;
    let lines: Vec<&str> = stopped.lines().collect();
    assert!(lines[0].ends_with("upper.sock") && lines[1].ends_with("data.sock"), "{stopped}");
    assert_eq!(upper.ended(), 0);
    assert_eq!(asked.try_recv().unwrap(), "stop");
}

#[test]
fn an_array_of_which_nothing_can_be_known_is_stopped_by_force() {
    let world = World::new();
    let asked = stand_in_saying(&world, Value::Null);
    world.run(&["stop", "data"]).refused(1, &["an answer that can't be read"]);
    assert!(asked.try_recv().is_err());
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(asked.try_recv().unwrap(), "stop");
}
