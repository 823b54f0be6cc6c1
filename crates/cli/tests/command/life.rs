//! The life of arrays: made, served, degraded, rebuilt, checked, stopped.

use std::{
    process::Stdio,
    time::{Duration, Instant},
};

use pinstripe_md::superblock::MetadataVersion;
use serde_json::Value;

use crate::{
    configured::superblock,
    nbd::{Client, pattern},
    world::{MEMBER_BYTES, MIB, World, wait_until},
};

fn examine(world: &World, members: &[String]) -> Vec<Value> {
    let members = members.iter().map(String::as_str);
    let ran = world.run(&["examine", "--json"].into_iter().chain(members).collect::<Vec<_>>()).ok();
    ran.json().as_array().unwrap().clone()
}

#[track_caller]
fn assert_clean(world: &World, members: &[String]) {
    for report in examine(world, members) {
        assert_eq!(report["member"]["array"]["clean"], true, "{report}");
    }
}

#[test]
fn an_array_survives_the_loss_of_a_member_and_takes_a_spare() {
    let world = World::new();
    let mut members = world.raid5(4);
    let spare = world.file("spare", MEMBER_BYTES);
    let server = world.serve(&["--shards", "2"], &members);
    let data = pattern(1, 3 * 1024 * 1024);
    let mut client = Client::connect(&server.nbd());
    assert_eq!(client.size_bytes, server.size_bytes());
    assert_eq!(client.write(4096, &data), 0);

    world.run(&["fail", "data", "1"]).ok();
    let detail = world.run(&["detail", "data", "--json"]).ok().json();
    assert_eq!((&detail["degraded"], &detail["members"][1]["state"]), (&true.into(), &"missing".into()));
    assert_eq!(detail["failed"][0]["error"], "slot 1 (member1) was taken out by command");
    assert!(client.read(4096, data.len()) == data, "read while degraded");
    let more = pattern(2, 1024 * 1024);
    assert_eq!(client.write(5 * MIB, &more), 0);
    world.run(&["fail", "data", "0"]).refused(1, &["slot 0 is needed"]);

    world.run(&["add", "data", &spare, "--wait"]).ok();
    let text = world.run(&["detail", "data"]).ok().out;
    let is_whole = text.contains("in-sync") || text.contains("resyncing");
    assert!(is_whole && !text.contains("degraded"), "{text}");
    let checked = world.run(&["check", "data", "--json"]).ok().json();
    assert_eq!(checked["mismatched_sectors"], 0);
    assert!(checked["stripes"].as_u64().unwrap() > 0);
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(server.ended(), 0);

    members[1] = spare;
    assert_clean(&world, &members);
    let server = world.serve(&["--read-only"], &members);
    let mut client = Client::connect(&server.nbd());
    assert!(client.read(4096, data.len()) == data && client.read(5 * MIB, more.len()) == more);
}

#[test]
fn every_level_and_metadata_version_is_made_served_and_checked() {
    let shapes: [(&[&str], usize); 7] = [
        (&["--level", "0"], 3),
        (&["--level", "4", "--chunk", "4K"], 3),
        (&["--level", "5", "--layout", "right-asymmetric", "--metadata", "1.0"], 3),
        (&["--level", "5", "--chunk", "1M", "--bitmap", "none"], 3),
        (&["--level", "6", "--metadata", "1.1", "--bitmap-chunk", "1M"], 4),
        (&["--level", "6", "--layout", "ddf-N-continue", "--assume-clean"], 5),
        (&["--level", "5", "--size", "4M"], 4),
    ];
    for (options, count) in shapes {
        let world = World::new();
        let members = world.members(count);
        let options: Vec<&str> = options.iter().copied().chain(["--name", "data"]).collect();
        let made = world
            .create(&options.iter().copied().chain(["--json"]).collect::<Vec<_>>(), &members)
            .ok()
            .json();
        let server = world.serve(&["--shards", "1"], &members);
        assert_eq!(made["size_bytes"], server.size_bytes(), "{options:?}");
        let data = pattern(3, 700 * 1024);
        let mut client = Client::connect(&server.nbd());
        assert_eq!(client.write(12288, &data), 0);
        assert!(client.read(12288, data.len()) == data, "{options:?}");
        client.flush();
        let checked = world.run(&["check", "data"]);
        if options[1] == "0" {
            checked.refused(1, &["level 0"]);
        } else {
            checked.ok();
        }
        server.signal("TERM");
        assert_eq!(server.ended(), 0, "{options:?}");
        assert_clean(&world, &members);
    }
}

/// `mdadm --grow` hands a time of whole seconds back to the kernel, which refuses another one than it has.
#[test]
fn the_time_of_creation_is_in_whole_seconds() {
    let world = World::new();
    let members = world.raid5(3);
    for member in &members {
        assert_eq!(superblock(&world, member, MetadataVersion::V1_2).array.created.microseconds(), 0);
    }
}

#[test]
fn level_4_has_its_parity_on_the_device_that_was_named() {
    let world = World::new();
    let members = world.members(3);
    let made = world.create(&["--level", "4", "--parity", "member0", "--json"], &members).ok().json();
    let devices: Vec<&str> =
        made["members"].as_array().unwrap().iter().map(|m| m["device"].as_str().unwrap()).collect();
    assert_eq!(devices, ["member1", "member2", "member0"]);
    let server = world.serve(&["--shards", "1"], &members);
    Client::connect(&server.nbd()).write(0, &pattern(1, 4096));
    world.run(&["stop", server.ready["name"].as_str().unwrap()]).ok();
    assert_eq!(server.ended(), 0);
    let hold = |name: &str| {
        let bytes = std::fs::read(world.path(name)).unwrap();
        bytes.windows(4096).step_by(4096).any(|page| page == pattern(1, 4096))
    };
    assert!(hold("member1") && hold("member0") && !hold("member2"), "data, its parity, and nothing");
}

#[test]
fn a_check_counts_mismatches_and_ends_with_status_1() {
    let world = World::new();
    let members = world.members(3);
    world.create(&["--level", "5", "--name", "data", "--assume-clean"], &members).ok();
    let data_sector = examine(&world, &members)[0]["member"]["device"]["data_sector"].as_u64().unwrap();
    world.poke("member0", data_sector * 512 + 65536, b"not what parity says");
    let server = world.serve(&["--shards", "1"], &members);
    let ran = world.run(&["check", "data", "--json"]);
    assert_eq!(ran.status, 1, "{}", ran.error);
    assert_eq!(ran.json()["mismatched_sectors"], 8);
    assert_eq!(world.run(&["check", "data"]).status, 1);
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
}

#[test]
fn both_signals_end_a_server_cleanly_and_at_once_the_next_one_can_start() {
    let world = World::new();
    let members = world.raid5(3);
    for signal in ["TERM", "INT"] {
        let server = world.serve(&[], &members);
        let mut client = Client::connect(&server.nbd());
        assert_eq!(client.write(0, &pattern(1, 65536)), 0);
        server.signal(signal);
        assert_eq!(server.ended(), 0);
        assert_clean(&world, &members);
    }
    let server = world.serve(&[], &members);
    world.run(&["stop", "data"]).ok();
    let again = world.serve(&[], &members);
    assert_eq!(server.ended(), 0);
    assert!(again.size_bytes() > 0);
}

#[test]
fn a_killed_server_leaves_an_array_that_is_resynced_by_the_next() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&["--shards", "1"], &members);
    let data = pattern(9, 65536);
    let mut client = Client::connect(&server.nbd());
    assert_eq!(client.write(0, &data), 0);
    client.flush();
    server.kill(&world, &members);
    assert_eq!(examine(&world, &members)[0]["member"]["array"]["clean"], false);
    // Its sockets are still there, and dead.
    let server = world.serve(&["--shards", "1"], &members);
    assert!(Client::connect(&server.nbd()).read(0, data.len()) == data);
    world.run(&["check", "data"]).ok();
    world.run(&["stop", "data"]).ok();
    assert_clean(&world, &members);
}

#[test]
fn many_clients_on_several_shards_see_each_others_writes() {
    const CLIENTS: u64 = 6;
    let world = World::new();
    let members = world.raid5(4);
    let server = world.serve(&["--shards", "3"], &members);
    let socket = server.nbd();
    // Their requests touch the same stripes, each at its own place.
    let place = |client: u64, round: u64| (round * CLIENTS + client) * 8192;
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let socket = &socket;
            scope.spawn(move || {
                let mut nbd = Client::connect(socket);
                for round in 0..40 {
                    assert_eq!(nbd.write(place(client, round), &pattern(client, 8192)), 0);
                }
            });
        }
    });
    let mut nbd = Client::connect(&socket);
    for (client, round) in (0..CLIENTS).flat_map(|client| (0..40).map(move |round| (client, round))) {
        assert!(
            nbd.read(place(client, round), 8192) == pattern(client, 8192),
            "client {client}, round {round}"
        );
    }
    world.run(&["check", "data"]).ok();
}

#[test]
fn the_end_of_a_server_ends_a_check_that_is_under_way() {
    let world = World::new();
    let create = ["--create", "--level", "5", "--name", "fast", "--assume-clean", "--shards", "1"];
    let server = world.serve(&create, &vec!["mem:512M".to_owned(); 3]);
    let mut check = world.command(&["check", "fast"]).stderr(Stdio::null()).spawn().unwrap();
    while world.run(&["detail", "fast", "--json"]).ok().json()["sync"].is_null() {
        if check.try_wait().unwrap().is_some() {
            // It was too quick to be met.
            break;
        }
    }
    world.run(&["stop", "fast"]).ok();
    assert_eq!(server.ended(), 0);
    check.wait().unwrap();
}

#[test]
fn a_dirty_array_without_a_member_needs_force() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&["--shards", "1"], &members);
    assert_eq!(Client::connect(&server.nbd()).write(0, &pattern(9, 4096)), 0);
    server.kill(&world, &members);
    let before = world.hashes(&members);
    world.serve_refused(&[], &members[1..]).refused(1, &["was not stopped cleanly", "--force"]);
    assert_eq!(world.hashes(&members), before);
    let server = world.serve(&["--shards", "1", "--force"], &members[1..]);
    assert_eq!(server.ready["degraded"], true);
}

#[test]
fn an_array_of_memory_is_made_served_and_gone() {
    let world = World::new();
    let create = ["--create", "--level", "6", "--chunk", "16K", "--name", "fast", "--nbd", "tcp:127.0.0.1:0"];
    let server = world.serve(&create, &vec!["mem:4M".to_owned(); 5]);
    assert!(server.ready["nbd"][0].as_str().unwrap().starts_with("nbd://127.0.0.1:"));
    world.run(&["fail", "fast", "0"]).ok();
    world.run(&["add", "fast", "mem:4M", "--wait"]).ok();
    world.run(&["check", "fast"]).ok();
    world.run(&["stop", "fast"]).ok();
    assert_eq!(server.ended(), 0);
}

#[test]
fn each_policy_chooses_how_parity_is_updated_as_its_name_says() {
    // Read-modify-writes and reconstruct-writes. Of three data chunks one is written, for which either reads
    // two chunks, and then two, for which read-modify-write reads three and reconstruct-write one.
    let policies: [(&str, &[(u64, u64)]); 4] = [
        ("always-rmw", &[(2, 0)]),
        ("mod-threshold", &[(1, 1)]),
        ("min-reads", &[(0, 2)]),
        // Where members are alike it is as the last. Measured prices may decide a tie, but make up for no
        // more.
        ("cost", &[(0, 2), (1, 1)]),
    ];
    for (policy, expected) in policies {
        let world = World::new();
        let create = [
            "--create",
            "--level",
            "5",
            "--chunk",
            "4K",
            "--name",
            "fast",
            "--assume-clean",
            "--shards",
            "1",
        ];
        let options = [&create[..], &["--cache", "0", "--policy", policy]].concat();
        let server = world.serve(&options, &vec!["mem:4M".to_owned(); 4]);
        let mut client = Client::connect(&server.nbd());
        assert_eq!(client.write(0, &pattern(1, 4096)), 0);
        assert_eq!(client.write(3 * 4096, &pattern(2, 2 * 4096)), 0);
        let detail = world.run(&["detail", "fast", "--json"]).ok().json();
        let counter = |name: &str| detail["statistics"][name].as_u64().unwrap();
        let runs = (counter("rmw_runs"), counter("rcw_runs"));
        assert!(expected.contains(&runs), "{policy}: {runs:?}");
    }
}

#[test]
fn a_read_only_server_changes_nothing_on_the_members() {
    let world = World::new();
    let members = world.raid5(3);
    let before = world.hashes(&members);
    let server = world.serve(&["--read-only"], &members);
    let mut client = Client::connect(&server.nbd());
    assert_ne!(client.flags & 2, 0, "the client is told");
    assert_ne!(client.write(0, &[1; 4096]), 0);
    client.read(0, 65536);
    world.run(&["fail", "data", "0"]).refused(1, &["read-only"]);
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(server.ended(), 0);
    assert_eq!(world.hashes(&members), before);
}

#[test]
fn manual_and_completions_know_every_command() {
    let world = World::new();
    let page = world.run(&["man"]).ok().out;
    let completions = world.run(&["completions", "bash"]).ok().out;
    for command in ["create", "examine", "serve", "detail", "fail", "add", "check", "stop", "demo"] {
        assert!(page.contains(command), "{command}");
    }
    assert!(completions.contains("pinstripe"), "{completions}");
    world.run(&["man", "--folder", "pages"]).ok();
    assert!(world.path("pages/pinstripe-create.1").exists() && world.path("pages/pinstripe.1").exists());
    let stop = world.run(&["man", "stop"]).ok().out;
    for words in ["pinstripe\\-stop", ".SH EXAMPLES", ".SH FILES", "SEE ALSO", "\\-\\-force data"] {
        assert!(stop.contains(words), "{words}: {stop}");
    }
    world.run(&["man", "start"]).refused(64, &["pinstripe-start"]);
}

#[test]
fn signals_that_order_nothing_leave_the_array_served() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&["--shards", "2"], &members);
    for signal in ["HUP", "USR1", "USR2", "ALRM"] {
        server.signal(signal);
    }
    assert_eq!(Client::connect(&server.nbd()).write(0, &pattern(1, 65536)), 0);
    world.run(&["detail", "data"]).ok();
    server.signal("TERM");
    assert_eq!(server.ended(), 0);
    assert_clean(&world, &members);
}

#[test]
fn a_start_that_waits_is_ended_by_sigterm() {
    let world = World::new();
    // A server that is reached and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = silent.local_addr().unwrap();
    let member = format!("nvme-tcp://{address}/nqn.2026-01.com.example:silent?nsid=1");
    let control = ["--shards", "1", "--control", "early.sock"];
    for signal in ["TERM", "INT"] {
        let mut serve = world.command(&["serve"]);
        let mut child = serve.args(control).arg(&member).stderr(Stdio::null()).spawn().unwrap();
        let _connection = silent.accept().unwrap();
        let kill = [&format!("-{signal}"), &child.id().to_string()];
        assert!(std::process::Command::new("kill").args(kill).status().unwrap().success());
        // If it waited for the server, that would fail in the end, and the status be another one.
        wait_until("ended", || child.try_wait().unwrap().is_some());
        assert_eq!(child.wait().unwrap().code(), Some(0), "{signal}");
    }
}

/// C29: time in which the server stood still is no time that its members took.
#[test]
fn a_server_that_was_stopped_for_longer_than_members_may_take_keeps_them_all() {
    let world = World::new();
    let members = world.raid5(4);
    // Disks of a busy machine may take a second themselves.
    let server = world.serve(&["--shards", "2", "--member-timeout", "6"], &members);
    let writers: Vec<_> = (0..4)
        .map(|number| {
            let mut client = Client::connect(&server.nbd());
            std::thread::spawn(move || {
                let data = pattern(number, 64 << 10);
                let begun = Instant::now();
                let mut writes = 0;
                while begun.elapsed() < Duration::from_millis(9300) {
                    assert_eq!(client.write((writes % 16 * 4 + number) << 16, &data), 0);
                    writes += 1;
                }
            })
        })
        .collect();
    std::thread::sleep(Duration::from_millis(200));
    server.signal("STOP");
    std::thread::sleep(Duration::from_millis(8800));
    server.signal("CONT");
    for writer in writers {
        writer.join().expect("a write failed");
    }
    let detail = world.run(&["detail", "data", "--json"]).ok().json();
    assert_eq!(detail["degraded"], false, "{detail}");
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
}

#[test]
fn an_array_is_found_by_its_name_with_its_host_and_not_with_another_ones() {
    let world = World::new();
    let members = world.members(3);
    world.create(&["--level", "5", "--name", "here:x", "--assume-clean"], &members).ok();
    let server = world.serve(&[], &members);
    for name in ["x", "here:x"] {
        assert_eq!(world.run(&["detail", name, "--json"]).ok().json()["full_name"], "here:x", "{name}");
    }
    for name in ["there:x", ":x", "here:y", "here:"] {
        world.run(&["detail", name]).refused(1, &["not being served"]);
        world.run(&["stop", name]).refused(1, &["not being served"]);
    }
    world.run(&["stop", "here:x"]).ok();
    assert_eq!(server.ended(), 0);
}
