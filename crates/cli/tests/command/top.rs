//! `pinstripe top`: what the arrays of a machine do.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use serde_json::Value;

use crate::{
    nbd::{Client, pattern},
    world::{MEMBER_BYTES, World},
};

/// A second array, called `other`.
fn other(world: &World) -> Vec<String> {
    let members: Vec<String> = (0..3).map(|slot| world.file(&format!("other{slot}"), MEMBER_BYTES)).collect();
    world.create(&["--level", "5", "--name", "other", "--assume-clean"], &members).ok();
    members
}

fn of<'a>(samples: &'a Value, array: &str) -> &'a Value {
    let samples = samples.as_array().unwrap();
    let is_of = |sample: &&Value| sample["control"].as_str().unwrap().ends_with(&format!("/{array}.sock"));
    samples.iter().find(is_of).unwrap()
}

#[test]
fn what_clients_do_is_shown_array_by_array() {
    let world = World::new();
    assert_eq!(world.run(&["top", "--once"]).ok().out, "no array is served\n");
    assert_eq!(world.run(&["top", "--json"]).ok().json(), serde_json::json!([]));
    let limits = ["--limit-iops", "50", "--limit-burst", "0"];
    let server = world.serve(&[&["--shards", "1"], &limits[..]].concat(), &world.raid5(3));
    let idle = world.serve(&["--shards", "1"], &other(&world));
    world.run(&["fail", "other", "2"]).ok();

    let is_over = AtomicBool::new(false);
    let (samples, text) = thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = Client::connect(&server.nbd());
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(client.write(0, &pattern(1, 8192)), 0);
            }
        });
        let json = world.run(&["top", "--json", "--interval", "2"]);
        let text = world.run(&["top", "--once", "--interval", "500ms"]);
        is_over.store(true, Ordering::Relaxed);
        (json.ok().json(), text.ok().out)
    });
    let data = of(&samples, "data");
    let rates = &data["rates"];
    let seconds = rates["seconds"].as_f64().unwrap();
    assert!((2.0..30.0).contains(&seconds), "{rates}");
    let write = &rates["operations"]["write"];
    let often = write["per_second"].as_f64().unwrap();
    assert!((1.0..51.0).contains(&often), "50 are let through in a second: {write}");
    let bytes = rates["write_bytes_per_second"].as_f64().unwrap();
    assert!((bytes / 8192.0 / often - 1.0).abs() < 0.1, "each has 8 KiB: {rates}");
    // One after the other, each waits for a fiftieth of a second.
    let (mean, p99) = (write["mean_ns"].as_u64().unwrap(), write["p99_ns"].as_u64().unwrap());
    assert!(mean > 10_000_000 && p99 >= 16_384_000, "{write}");
    assert_eq!(rates["operations"]["read"]["per_second"], 0.0);
    // And it has one under way all the time.
    let under_way = write["under_way"].as_f64().unwrap();
    assert!((0.5..1.5).contains(&under_way), "{write}");
    assert_eq!(data["limit"]["iops"], 50);
    assert_eq!(
        (&data["clients"][0]["protocol"], data["members"].as_array().unwrap().len()),
        (&"nbd".into(), 3)
    );
    let other = of(&samples, "other");
    assert_eq!((&other["degraded"], &other["members"][2]["state"]), (&true.into(), &"missing".into()));
    assert_eq!(other["rates"]["write_bytes_per_second"], 0);

    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].starts_with("ARRAY "), "{text}");
    assert!(
        lines[1].starts_with("data ") && lines[1].contains("[UUU]") && lines[1].contains("KiB/s"),
        "{text}"
    );
    assert!(lines[2].starts_with("other ") && lines[2].contains("[UU_]"), "{text}");
    assert!(text.contains("at most 50 requests per second, nothing saved up, "), "{text}");
    assert!(text.contains("CLIENTS (1 connections)") && text.contains("  2  missing"), "{text}");
    drop(idle);
}

#[test]
fn a_server_that_does_not_answer_hides_none_of_the_others() {
    let world = World::new();
    let server = world.serve(&["--shards", "1"], &world.raid5(3));
    let silent = world.serve(&["--shards", "1"], &other(&world));
    silent.signal("STOP");
    let samples = world.run(&["top", "--json", "--interval", "0.2"]).ok().json();
    let text = world.run(&["top", "--once", "--interval", "0.2"]).ok().out;
    silent.signal("CONT");
    assert!(
        of(&samples, "data")["rates"]["seconds"].as_f64().unwrap() < 5.0,
        "it waited for the other one: {samples}"
    );
    let error = of(&samples, "other")["error"].as_str().unwrap();
    assert!(error.contains("does not answer") && of(&samples, "other").get("name").is_none(), "{samples}");
    let row = text.lines().find(|line| line.starts_with("other")).unwrap();
    assert!(row.contains("no answer") && text.contains(error), "{text}");
    drop(server);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let world = World::new();
    world.run(&["top", "--interval", "0", "--once"]).refused(64, &["from 100ms to 1h"]);
    world.run(&["top"]).refused(64, &["no terminal", "--once", "--json"]);
}
