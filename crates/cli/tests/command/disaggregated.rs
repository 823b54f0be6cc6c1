//! Arrays on servers that compute: the demo, and what happens when servers or the client go.

use crate::{
    nbd::{Client, pattern},
    world::{Port, Server, World},
};

#[test]
fn the_disaggregated_demo_plays_to_its_end_and_leaves_nothing_behind() {
    let world = World::new();
    let folder = world.path("demo");
    std::fs::create_dir(&folder).unwrap();
    let arguments = ["demo", "--disaggregated", "--size", "8M", "--folder", folder.to_str().unwrap()];
    let said = world.run(&arguments).ok().out;
    for words in ["all of which offload", "members are lost", "whole again", "store3 is killed", "to client"]
    {
        assert!(said.contains(words), "'{words}' is missing in: {said}");
    }
    assert_eq!(said.matches("parity matches everywhere").count(), 2, "{said}");
    assert_eq!(said.matches("    slot ").count(), 2, "two spares have taken slots: {said}");
    assert!(said.contains("All well"), "{said}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "the demo left files behind");
}

/// Two servers with two members each of a RAID6 called `data`; what their members are called.
fn two_servers(world: &World) -> (Vec<Server>, Vec<String>) {
    two_servers_at(world, ["127.0.0.1:0", "127.0.0.1:0"])
}

fn two_servers_at(world: &World, addresses: [&str; 2]) -> (Vec<Server>, Vec<String>) {
    let files = world.members(4);
    let stores: Vec<Server> = ["alpha", "beta"]
        .iter()
        .zip(addresses)
        .zip(files.chunks(2))
        .map(|((name, address), files)| store(world, name, address, files))
        .collect();
    let members: Vec<String> = stores.iter().flat_map(namespaces).collect();
    world.create(&["--level", "6", "--name", "data", "--assume-clean"], &members).ok();
    (stores, members)
}

fn store(world: &World, name: &str, address: &str, files: &[String]) -> Server {
    let (nqn, state) = (format!("nqn.2026-01.com.example:{name}"), format!("state-{name}"));
    let state = ["--state", &state, "--state-create"];
    world.target(&[&["--listen", address, "--nqn", &nqn, "--shards", "1"][..], &state].concat(), files)
}

fn namespaces(store: &Server) -> Vec<String> {
    let names = store.ready["namespaces"].as_array().unwrap();
    names.iter().map(|name| name.as_str().unwrap().to_owned()).collect()
}

#[test]
fn another_program_takes_the_place_of_the_client_of_the_servers() {
    let world = World::new();
    let (_stores, members) = two_servers(&world);
    let server = world.serve(&["--shards", "1"], &members);
    let mut client = Client::connect(&server.nbd());
    let data = pattern(1, 1 << 20);
    assert_eq!(client.write(0, &data), 0);
    for round in 2..4 {
        assert_eq!(world.run(&["upgrade", "data", "--json"]).ok().json()["connections"], 1);
        assert!(client.read(0, data.len()) == data);
        assert_eq!(client.write(round << 20, &pattern(round, 64 << 10)), 0);
        let detail = world.run(&["detail", "data", "--json"]).ok().json();
        assert_eq!((&detail["degraded"], &detail["failed"]), (&false.into(), &serde_json::json!([])));
    }
    world.run(&["check", "data"]).ok();
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(server.ended(), 0);
}

#[test]
fn after_all_servers_were_away_nothing_is_written_down_and_the_array_is_served_again() {
    let world = World::new();
    let ports = [Port::new(), Port::new()];
    let addresses = ports.each_ref().map(|port| port.address.to_string());
    let (stores, members) = two_servers_at(&world, addresses.each_ref().map(String::as_str));
    let server = world.serve(&["--shards", "1"], &members);
    let mut client = Client::connect(&server.nbd());
    let data = pattern(1, 1 << 20);
    assert_eq!(client.write(0, &data), 0);
    client.flush();
    drop(stores);
    assert_ne!(client.write(0, &pattern(2, 1 << 20)), 0, "no server is left for it");
    let failed = world.run(&["detail", "data", "--json"]).ok().json();
    assert_eq!(failed["state"], "failed", "{failed}");
    let advice = failed["advice"].as_str().unwrap();
    for words in ["bring their servers back", "stop the array", "assemble it again"] {
        assert!(advice.contains(words), "{advice}");
    }

    // Its end is told, but not for ever.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let told = server.later.lock().unwrap().len();
    assert!(told < 50, "{told} lines");

    // The servers come back; the array doesn't go on by itself.
    let _stores: Vec<Server> = ["alpha", "beta"]
        .iter()
        .zip(&addresses)
        .enumerate()
        .map(|(index, (name, address))| {
            let files = [format!("member{}", 2 * index), format!("member{}", 2 * index + 1)];
            store(&world, name, address, &files)
        })
        .collect();
    world.run(&["stop", "data", "--force"]);
    assert_ne!(server.ended(), 0, "it was no good end");
    let server = world.serve(&["--shards", "1"], &members);
    let whole = world.run(&["detail", "data", "--json"]).ok().json();
    assert_eq!((&whole["degraded"], &whole["failed"]), (&false.into(), &serde_json::json!([])), "{whole}");
    let mut client = Client::connect(&server.nbd());
    let read = client.read(0, data.len());
    let other = pattern(2, 1 << 20);
    // What was flushed, but for what was written meanwhile and never acknowledged.
    let torn = (0..read.len()).step_by(512).all(|at| {
        let sector = at..at + 512;
        read[sector.clone()] == data[sector.clone()] || read[sector.clone()] == other[sector]
    });
    assert!(torn, "a sector is neither old nor new");
    assert_eq!(client.write(0, &data), 0);
    world.run(&["check", "data"]).ok();
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(server.ended(), 0);
}

#[test]
fn a_second_process_is_refused_until_the_first_has_gone_or_is_taken_over() {
    let world = World::new();
    let (_stores, members) = two_servers(&world);
    let first = world.serve(&["--shards", "1"], &members);
    let mut client = Client::connect(&first.nbd());
    assert_eq!(client.write(0, &pattern(1, 1 << 20)), 0);

    let beside = ["--control", "other.sock", "--nbd", "unix:other.nbd"];
    world.serve_refused(&beside, &members).refused(1, &["another process of this one", "--takeover"]);
    let create = world.create(&["--level", "6", "--name", "new", "--force"], &members);
    create.refused(1, &["another process of this one", "Stop the array there first"]);
    assert_eq!(client.write(0, &pattern(2, 1 << 20)), 0, "the first one goes on");

    // Killed, it leaves nothing that would be in the way.
    drop(first);
    let second = world.serve(&[&beside[..], &["--shards", "1"]].concat(), &members);
    let mut client = Client::connect(&second.nbd());
    assert!(client.read(0, 1 << 20) == pattern(2, 1 << 20));
    assert_eq!(client.write(0, &pattern(3, 1 << 20)), 0);

    let third = world.serve(&["--takeover", "--shards", "1"], &members);
    assert_ne!(client.write(0, &pattern(4, 1 << 20)), 0, "a host that was taken over writes no more");
    let mut client = Client::connect(&third.nbd());
    assert!(client.read(0, 1 << 20) == pattern(3, 1 << 20));
    world.run(&["check", "data"]).ok();
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(third.ended(), 0);
}

/// Stock targets know nothing of hosts, and so is ours without the offload protocol.
#[test]
fn a_takeover_from_a_server_that_can_not_fence_is_refused_and_needs_force() {
    let world = World::new();
    let files = world.members(4);
    let fencing = store(&world, "alpha", "127.0.0.1:0", &files[..2]);
    let beta = ["--listen", "127.0.0.1:0", "--nqn", "nqn.2026-01.com.example:beta", "--shards", "1"];
    let plain = world.target(&[&beta[..], &["--offload", "off"]].concat(), &files[2..]);
    let members: Vec<String> = [&fencing, &plain].into_iter().flat_map(namespaces).collect();
    world.create(&["--level", "6", "--name", "data", "--assume-clean"], &members).ok();
    let refused = ["keeps no other host from writing", &members[2], &members[3], "nothing was changed"];
    world.serve_refused(&["--takeover"], &members).refused(1, &refused);
    let server = world.serve(&["--takeover", "--force", "--shards", "1"], &members);
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(server.ended(), 0);
}
