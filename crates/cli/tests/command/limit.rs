//! Limits of what clients may ask for, as a user sets them.

use std::{
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use crate::{
    nbd::{Client, pattern},
    world::{World, wait_until},
};

fn array(world: &World) -> Vec<String> {
    let members = world.members(3);
    world.create(&["--level", "5", "--name", "data", "--assume-clean"], &members).ok();
    members
}

#[test]
fn clients_together_get_no_more_than_the_limit() {
    let world = World::new();
    let members = array(&world);
    let limits = ["--limit-iops", "100", "--limit-bandwidth", "1M", "--limit-burst", "0"];
    let server = world.serve(&[&["--shards", "2"], &limits[..]].concat(), &members);
    let text = world.run(&["detail", "data"]).ok().out;
    assert!(text.contains("at most 100 requests and 1 MiB per second, nothing saved up"), "{text}");

    let begun = Instant::now();
    let clients: Vec<_> = (0..2u8)
        .map(|number| {
            let address = server.nbd();
            thread::spawn(move || {
                let mut client = Client::connect(&address);
                for block in 0..20 {
                    assert_eq!(client.write(u64::from(number) << 20 | block << 12, &pattern(7, 4096)), 0);
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    let (took, least) = (begun.elapsed(), Duration::from_millis(390));
    assert!(took >= least, "40 requests at 100 a second took {took:?}");
    let mut client = Client::connect(&server.nbd());
    let begun = Instant::now();
    assert_eq!(client.write(0, &pattern(3, 1 << 20)), 0);
    assert!(client.read(0, 1 << 20) == pattern(3, 1 << 20));
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(990), "two MiB at one a second took {took:?}");

    let changed = world.run(&["limit", "data", "--iops", "0", "--bandwidth", "0"]).ok().out;
    assert_eq!(changed, "no limit\n");
    assert!(!world.run(&["detail", "data"]).ok().out.contains("limit"));
    let shown = world.run(&["limit", "data", "--bandwidth", "64K", "--burst", "3", "--json"]).ok().json();
    assert_eq!((&shown["iops"], &shown["bytes_per_second"]), (&0.into(), &65536.into()));
    assert_eq!(world.run(&["limit", "data", "--json"]).ok().json(), shown);
}

#[test]
fn what_waits_for_its_turn_does_not_hold_up_the_end() {
    let world = World::new();
    let members = array(&world);
    let server = world.serve(&["--limit-bandwidth", "1", "--limit-burst", "0"], &members);
    let address = server.nbd();
    let writer = thread::spawn(move || {
        let mut client = Client::connect(&address);
        (client.write(0, &pattern(1, 4096)), client.write(4096, &pattern(2, 4096)))
    });
    wait_until("one waits", || world.run(&["limit", "data", "--json"]).ok().json()["waiting"] != 0);
    let begun = Instant::now();
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(server.ended(), 0);
    assert!(begun.elapsed() < Duration::from_mins(5), "it would have waited for an hour");
    assert_eq!(writer.join().unwrap(), (0, 0), "both were done");

    let server = world.serve(&[], &members);
    let read = Client::connect(&server.nbd()).read(0, 8192);
    assert!(read == [pattern(1, 4096), pattern(2, 4096)].concat());
}

#[test]
fn what_waits_for_a_virtual_machine_does_not_hold_up_the_end_either() {
    let world = World::new();
    let members = array(&world);
    let server = world.serve(&["--vhost-user", "disk", "--limit-iops", "1", "--limit-burst", "0"], &members);
    let export = format!("vhost-user:{}", world.path("disk").display());
    let load = ["bench", "--through", &export, "--reads", "100", "--depth", "200", "--seconds", "600"];
    let mut load = world.command(&load).stderr(Stdio::null()).spawn().unwrap();
    let waiting = || world.run(&["limit", "data", "--json"]).ok().json()["waiting"].as_u64().unwrap();
    wait_until("many wait", || waiting() > 150);
    let begun = Instant::now();
    server.signal("TERM");
    assert_eq!(server.ended(), 0);
    assert!(begun.elapsed() < Duration::from_mins(1), "it would have waited for minutes");
    load.kill().unwrap();
    load.wait().unwrap();
}

#[test]
fn limits_of_nothing_are_refused() {
    let world = World::new();
    let members = array(&world);
    for limit in ["--limit-iops=0", "--limit-bandwidth=0", "--limit-burst=4000", "--limit-bandwidth=1X"] {
        world.serve_refused(&[limit], &members).refused(64, &[]);
    }
}
