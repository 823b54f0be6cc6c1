//! Check, repair, pause and stop, and the monitor, as a user calls them.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    process::{Child, Stdio},
    sync::mpsc::{Receiver, channel},
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use crate::{
    nbd::{Client, pattern},
    world::{MEMBER_BYTES, PATIENCE, World, wait_until},
};

/// Where the data of members begins, in bytes.
fn data_offset(world: &World, member: &str) -> u64 {
    let examined = world.run(&["examine", "--json", member]).ok().json();
    examined[0]["member"]["device"]["data_sector"].as_u64().unwrap() * 512
}

#[test]
fn locate_names_and_corrects_the_member_that_lies() {
    let world = World::new();
    let members = world.members(5);
    world.create(&["--level", "6", "--name", "data", "--assume-clean"], &members).ok();
    let server = world.serve(&["--shards", "1"], &members);
    let data = pattern(1, 2 << 20);
    assert_eq!(Client::connect(&server.nbd()).write(0, &data), 0);
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
    let before = world.hashes(&members);
    let at = data_offset(&world, "member2") + 5 * 512;
    world.poke("member2", at, b"this is not what was written");

    let server = world.serve(&["--shards", "1"], &members);
    assert_eq!(world.run(&["check", "data"]).status, 1);
    let repaired = world.run(&["repair", "data", "--locate", "--json"]).ok().json();
    assert_eq!(repaired["mismatched_sectors"], 8);
    assert_eq!((&repaired["corrected_sectors"], &repaired["unexplained_sectors"]), (&1.into(), &0.into()));
    let place = &repaired["corrected"][0];
    assert_eq!((&place["device"], &place["sectors"]), (&"member2".into(), &1.into()));
    assert_eq!(place["sector"], at / 512);
    let text = world.run(&["check", "data"]).ok().out;
    assert!(text.contains("matches everywhere"), "{text}");
    assert!(Client::connect(&server.nbd()).read(0, data.len()) == data);
    world.run(&["stop", "data"]).ok();
    server.ended();
    // The superblocks have changed; the data has not.
    let data_of =
        |name: &String| fs::read(world.path(name)).unwrap().split_off(usize::try_from(at).unwrap() - 2560);
    assert_eq!(before.len(), members.len());
    assert!(data_of(&members[2])[2560..][..28] != b"this is not what was written"[..]);
}

#[test]
fn a_repair_of_a_range_leaves_the_rest() {
    let world = World::new();
    let members = world.members(3);
    world.create(&["--level", "5", "--name", "data", "--assume-clean", "--chunk", "64K"], &members).ok();
    let start = data_offset(&world, "member0");
    for stripe in [1, 4] {
        world.poke("member0", start + stripe * 65536, b"not what parity says");
    }
    let _server = world.serve(&["--shards", "1"], &members);
    let checked = world.run(&["check", "data", "--json", "--from", "512", "--to", "640"]);
    assert_eq!(
        (checked.json()["stripes"].as_u64(), checked.json()["mismatched_sectors"].as_u64()),
        (Some(1), Some(8))
    );
    let text = world.run(&["repair", "data", "--to", "256"]).ok().out;
    assert!(text.contains("2 stripes") && text.contains("made from data"), "{text}");
    assert_eq!(world.run(&["check", "data", "--json"]).json()["mismatched_sectors"], 8);
    world.run(&["repair", "data"]).ok();
    world.run(&["check", "data"]).ok();
    world.run(&["repair", "data", "--locate"]).refused(1, &["level 6", "without --locate"]);
    world.run(&["check", "data", "--from", "10", "--to", "10"]).refused(1, &["no sectors 10 to 10"]);
    world.run(&["repair", "data", "--to", "99999999"]).refused(1, &["a member has"]);
}

#[test]
fn a_check_is_paused_resumed_and_stopped_and_its_speed_is_set() {
    let world = World::new();
    let create = ["--create", "--level", "5", "--name", "fast", "--assume-clean", "--shards", "1"];
    let limits = ["--sync-speed-min", "100", "--sync-speed-max", "1000"];
    let server = world.serve(&[&create[..], &limits[..]].concat(), &vec!["mem:64M".to_owned(); 3]);
    world.run(&["sync", "fast", "stop"]).refused(1, &["no check and no repair"]);
    let check = world
        .command(&["check", "fast", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let detail = || world.run(&["detail", "fast", "--json"]).ok().json();
    while detail()["sync"].is_null() {
        std::thread::sleep(Duration::from_millis(10));
    }
    let paused = world.run(&["sync", "fast", "pause", "--json"]).ok().json();
    assert_eq!((&paused["paused"], &paused["speed_max_kib"]), (&true.into(), &1000.into()));
    // What was under way is done still.
    wait_until("at rest", || {
        let done = detail()["sync"]["done"].clone();
        std::thread::sleep(Duration::from_millis(300));
        detail()["sync"]["done"] == done
    });
    assert_eq!(detail()["sync"]["paused"], true);
    assert!(world.run(&["detail", "fast"]).ok().out.contains("paused"));
    world.run(&["sync", "fast", "resume", "--speed-max", "2000"]).ok();
    while detail()["sync"]["speed_kib"].as_u64().unwrap() == 0 {
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(detail()["sync"]["finish_seconds"].as_u64().is_some());
    for action in [&["stop"][..], &[]] {
        let refused = [&["sync", "fast", "--speed-max", "10"], action].concat();
        world.run(&refused).refused(1, &["can't be 10 KiB per second", "the lower one is 100: lower that"]);
    }
    assert!(detail()["sync"].is_object(), "a call that is refused stops nothing");
    world.run(&["sync", "fast", "stop"]).ok();
    let output = check.wait_with_output().unwrap();
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &result["complete"]), (Some(1), &false.into()));
    assert!(detail()["sync"].is_null());
    // It isn't said to have ended, and what it found is said to be what it found until there.
    let place = format!(
        "check was stopped before sector {} of each member's data, mismatches found until there: 0",
        result["next_sector"]
    );
    let told = || server.later.lock().unwrap().clone();
    let begun = std::time::Instant::now();
    while !told().iter().any(|line| line["event"] == "RebuildFinished") && begun.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
    let told = told();
    let finished: Vec<&Value> = told.iter().filter(|line| line["event"] == "RebuildFinished").collect();
    assert!(finished.len() == 1 && finished[0]["message"] == place.as_str(), "{told:?}");
}

/// A monitor and its lines; killed at the end.
struct Monitor {
    child: Child,
    lines: Receiver<Value>,
}

impl Monitor {
    fn new(world: &World, arguments: &[&str]) -> Self {
        let mut command = world.command(&["monitor", "--json"]);
        let mut child = command.args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                let _ = send.send(serde_json::from_str(&line).unwrap());
            }
        });
        Self { child, lines }
    }

    /// The next event, which must be this one.
    #[track_caller]
    fn next(&self, event: &str) -> Value {
        let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{event} does not come"));
        assert_eq!(line["event"], event, "{line}");
        line
    }

    /// Everything up to this event.
    #[track_caller]
    fn until(&self, event: &str) -> Vec<String> {
        let mut seen = Vec::new();
        while seen.last().is_none_or(|last| last != event) {
            let line = self.lines.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{event} after {seen:?}"));
            seen.push(line["event"].as_str().unwrap().to_owned());
        }
        seen
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_monitor_runs_a_program_for_every_event_in_order_over_two_servers() {
    let world = World::new();
    let members = world.raid5(3);
    let spare = world.file("spare", MEMBER_BYTES);
    let script = world.program("told", "#!/bin/sh\necho \"$@\" >> told.txt\n");
    let monitor = Monitor::new(&world, &["data", "--program", &script]);
    assert_eq!(monitor.next("DeviceDisappeared")["alarming"], true);
    let server = world.serve(&["--shards", "1"], &members);
    monitor.next("NewArray");
    world.run(&["fail", "data", "1"]).ok();
    let failed = monitor.next("Fail");
    assert_eq!((&failed["device"], &failed["array"]), (&"member1".into(), &"data".into()));
    world.run(&["add", "data", &spare, "--wait"]).ok();
    let seen = monitor.until("RebuildFinished");
    assert_eq!(seen[0], "RebuildStarted");
    assert!(seen.contains(&"Rebuild20".to_owned()) && seen.contains(&"SpareActive".to_owned()), "{seen:?}");
    world.run(&["check", "data"]).ok();
    monitor.until("RebuildFinished");
    world.run(&["stop", "data"]).ok();
    let said: Vec<Value> = server.later.lock().unwrap().clone();
    assert!(said.iter().any(|line| line["event"] == "Fail" && line["device"] == "member1"), "{said:?}");
    assert_eq!(server.ended(), 0);
    monitor.next("DeviceDisappeared");

    let server = world.serve(&["--shards", "1", "--run"], &[members[0].clone(), members[2].clone()]);
    assert!(server.said.iter().any(|line| line["event"] == "DegradedArray"), "{:?}", server.said);
    monitor.next("NewArray");
    monitor.next("DegradedArray");
    // The program is run after the line was printed.
    let told = || fs::read_to_string(world.path("told.txt")).unwrap();
    wait_until("the last one is told", || told().ends_with("DegradedArray data\n"));
    let told = told();
    let told: Vec<&str> = told.lines().collect();
    assert_eq!(told[..3], ["DeviceDisappeared data", "NewArray data", "Fail data member1"]);
    assert_eq!(told.last(), Some(&"DegradedArray data"));
}

/// As of `| grep -m1`: the shell waits for all of the pipeline.
#[test]
fn what_goes_on_by_itself_ends_when_nothing_reads_it_any_more() {
    let world = World::new();
    let members = world.raid5(3);
    fs::create_dir_all(world.path("state")).unwrap();
    let history = world.path("state/events.jsonl");
    let happens = || {
        let told = json!({ "time": 5, "array": "data", "event": "Fail", "alarming": true, "message": "m" });
        let mut file = fs::File::options().append(true).create(true).open(&history).unwrap();
        writeln!(file, "{told}").unwrap();
    };
    happens();
    let one_line = |arguments: &[&str]| {
        let mut child = world.command(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.ends_with('\n'), "{arguments:?}: {line}");
        child
    };
    let mut children = [one_line(&["monitor", "data"]), one_line(&["events", "--follow"])];
    happens();
    let _server = world.serve(&["--shards", "1"], &members);
    let begun = Instant::now();
    let ended = children.each_mut().map(|child| {
        while begun.elapsed() < PATIENCE && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(50));
        }
        let _ = child.kill();
        child.wait().unwrap()
    });
    assert!(ended.iter().all(std::process::ExitStatus::success), "{ended:?}");
}

#[test]
fn the_monitor_tells_of_no_loss_when_another_program_takes_the_servers_place() {
    let world = World::new();
    let server = world.serve(&[], &world.raid5(3));
    // It says that it has seen the first server.
    let monitor = Monitor::new(&world, &["data", "--spares", "1"]);
    monitor.next("SparesMissing");
    for slot in [0, 2] {
        world.run(&["upgrade", "data"]).ok();
        assert_eq!(monitor.next("NewArray")["alarming"], false);
        if slot == 2 {
            world.run(&["fail", "data", "2"]).ok();
            assert_eq!(monitor.next("Fail")["alarming"], true);
        }
    }
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
    monitor.next("DeviceDisappeared");
}

#[test]
fn a_monitor_that_looks_once_reports_what_is_wrong_and_ends() {
    let world = World::new();
    let members = world.raid5(3);
    let nothing = world.run(&["monitor", "--oneshot", "data"]).ok();
    assert!(
        nothing.out.contains("DeviceDisappeared data: ") && nothing.out.contains("not being served"),
        "{}",
        nothing.out
    );
    let _server = world.serve(&["--shards", "1"], &members);
    assert_eq!(world.run(&["monitor", "--oneshot", "data"]).ok().out, "");
    let spares = world.run(&["monitor", "--oneshot", "data", "--spares", "1", "--json"]).ok();
    assert_eq!(spares.json()["event"], "SparesMissing");
    world.run(&["fail", "data", "2"]).ok();
    let degraded = world.run(&["monitor", "--oneshot", "data"]).ok().out;
    assert!(degraded.contains("DegradedArray data: ") && degraded.contains("slot 2"), "{degraded}");
}
