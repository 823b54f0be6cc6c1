//! Members on NVMe/TCP servers that go and come back.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{
    nbd::{Client, pattern},
    world::{MEMBER_BYTES, Server, World},
};

const NQN: &str = "nqn.2026-01.com.example:members";

fn target(world: &World, address: &str, devices: &[String]) -> Server {
    world.target(&["--listen", address, "--nqn", NQN, "--shards", "1"], devices)
}

/// Where a target listens.
fn address(target: &Server) -> String {
    target.ready["address"].as_str().unwrap().to_owned()
}

fn detail(world: &World) -> Value {
    world.run(&["detail", "data", "--json"]).ok().json()
}

/// Waits until the array's state is as wanted; that state.
fn await_detail(world: &World, wanted: impl Fn(&Value) -> bool) -> Value {
    let begun = Instant::now();
    loop {
        let now = detail(world);
        if wanted(&now) {
            return now;
        }
        assert!(begun.elapsed() < Duration::from_mins(1), "{now}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The events of a server with this name, in words.
fn told(server: &Server, name: &str) -> Vec<String> {
    let lines = server.later.lock().unwrap();
    let named = lines.iter().filter(|line| line["event"] == name);
    named.map(|line| line["message"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_member_whose_server_was_killed_comes_back_by_itself() {
    let world = World::new();
    let mut members = world.raid5(4);
    let remote = members[2].clone();
    let store = target(&world, "127.0.0.1:0", std::slice::from_ref(&remote));
    let address = address(&store);
    members[2] = store.ready["namespaces"][0].as_str().unwrap().to_owned();
    let server = world.serve(&["--shards", "2"], &members);
    let mut client = Client::connect(&server.nbd());
    assert_eq!(client.write(0, &pattern(1, 2 << 20)), 0);

    drop(store);
    // Its loss is noticed, and the array goes on without it.
    assert_eq!(client.write(1 << 20, &pattern(2, 1 << 20)), 0);
    assert!(client.read(0, 1 << 20) == pattern(1, 2 << 20)[..1 << 20]);
    let lost = await_detail(&world, |now| now["failed"][0]["reconnecting"]["tries"].as_u64() > Some(0));
    assert_eq!((&lost["degraded"], &lost["members"][2]["state"]), (&true.into(), &"missing".into()));
    let text = world.run(&["detail", "data"]).ok().out;
    assert!(
        text.contains("put in again when its server is back") && text.contains("can't connect"),
        "{text}"
    );

    let store = target(&world, &address, std::slice::from_ref(&remote));
    await_detail(&world, |now| now["degraded"] == false && now["failed"].as_array().unwrap().is_empty());
    // Lines come a moment after what they tell of.
    let begun = Instant::now();
    while told(&server, "SpareActive").is_empty() && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let back = told(&server, "MemberBack");
    assert!(back.len() == 1 && back[0].contains("what it missed"), "{back:?}");
    // The line comes after the state that it tells of.
    let begun = std::time::Instant::now();
    while told(&server, "SpareActive").is_empty() && begun.elapsed().as_secs() < 20 {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(told(&server, "SpareActive").len(), 1);
    world.run(&["check", "data"]).ok();
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(server.ended(), 0);
    store.signal("TERM");
    assert_eq!(store.ended(), 0);

    // What is on it is right: without another one it is needed for everything.
    let rest = [members[0].clone(), remote, members[3].clone()];
    let server = world.serve(&["--read-only"], &rest);
    let mut client = Client::connect(&server.nbd());
    assert!(client.read(0, 1 << 20) == pattern(1, 2 << 20)[..1 << 20]);
    assert!(client.read(1 << 20, 1 << 20) == pattern(2, 1 << 20));
}

#[test]
fn another_namespace_or_a_member_that_was_failed_on_purpose_does_not_come_back_by_itself() {
    let world = World::new();
    let mut members = world.raid5(4);
    let remote = members[1].clone();
    let store = target(&world, "127.0.0.1:0", std::slice::from_ref(&remote));
    let address = address(&store);
    members[1] = store.ready["namespaces"][0].as_str().unwrap().to_owned();
    let server = world.serve(&["--shards", "1"], &members);
    let mut client = Client::connect(&server.nbd());
    assert_eq!(client.write(0, &pattern(1, 1 << 20)), 0);

    world.run(&["fail", "data", "1"]).ok();
    assert!(detail(&world)["failed"][0]["reconnecting"].is_null(), "{}", detail(&world));
    world.run(&["add", "data", &members[1], "--wait"]).ok();

    // No request comes to the array meanwhile.
    drop(store);
    await_detail(&world, |now| !now["failed"][0]["reconnecting"].is_null());
    let other = world.file("other", MEMBER_BYTES);
    let _store = target(&world, &address, std::slice::from_ref(&other));
    let refused = await_detail(&world, |now| now["failed"][0]["reconnecting"]["given_up"] == true);
    assert!(refused["spares"].as_array().unwrap().is_empty(), "{refused}");
    let words = told(&server, "NotTakenBack");
    assert!(words.len() == 1 && words[0].contains("another namespace"), "{words:?}");
    assert!(std::fs::read(world.path(&other)).unwrap().iter().all(|byte| *byte == 0), "it was written");
    world.run(&["add", "data", &members[1], "--wait"]).ok();
    assert_eq!(detail(&world)["degraded"], false);
}

#[test]
fn an_empty_slot_is_filled_from_the_pool_with_a_namespace_that_fits_and_holds_nothing() {
    let world = World::new();
    let members = world.raid5(3);
    let occupied = world.file("occupied", MEMBER_BYTES);
    world.poke(&occupied, 4096, b"bytes of no known format");
    let small = world.file("small", 2 << 20);
    let fits = world.file("fits", MEMBER_BYTES + (1 << 20));
    let names = [occupied.clone(), small.clone(), fits];
    let before = world.hashes(&[occupied.clone(), small.clone()]);
    let store = target(&world, "127.0.0.1:0", &names);
    let pool = address(&store);
    let server = world.serve(&["--shards", "2", "--spare-pool", &pool, "--spare-pool-delay", "1"], &members);
    let mut client = Client::connect(&server.nbd());
    let data = pattern(3, 2 << 20);
    assert_eq!(client.write(0, &data), 0);
    world.run(&["fail", "data", "1"]).ok();
    let whole = await_detail(&world, |now| now["degraded"] == false);
    assert_eq!(whole["members"][1]["device"], store.ready["namespaces"][2], "{whole}");
    assert_eq!(told(&server, "MoveSpare").len(), 1);
    assert_eq!(world.hashes(&[occupied, small]), before, "what does not fit was written");
    world.run(&["check", "data"]).ok();
    assert!(client.read(0, data.len()) == data);
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(server.ended(), 0);
}

/// What the host and the controller prove to have.
const SECRETS: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR: DHHC-1:00:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOeXryU:";

fn secrets_file(world: &World, name: &str, text: &str, mode: u32) -> String {
    use std::os::unix::fs::PermissionsExt;
    let path = world.path(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    name.to_owned()
}

#[test]
fn members_the_pool_and_discovery_need_the_secrets_of_servers_that_ask_for_them() {
    let world = World::new();
    let devices = world.members(4);
    secrets_file(&world, "keys", &format!("* {SECRETS} group=ffdhe2048 hash=sha384\n"), 0o600);
    let listen = ["--listen", "127.0.0.1:0", "--nqn", NQN, "--shards", "1", "--dhchap-hosts", "keys"];
    let store = world.target(&listen, &devices);
    let namespaces = store.ready["namespaces"].as_array().unwrap();
    let mut members: Vec<String> = namespaces.iter().map(|uri| uri.as_str().unwrap().to_owned()).collect();
    members.pop();
    let pool = address(&store);
    let shape = ["--level", "5", "--name", "data", "--assume-clean"];
    let before = world.hashes(&devices);
    world.create(&shape, &members).refused(1, &["no secret for it is known", "--dhchap-secrets"]);
    world.run(&["discover", &pool]).refused(1, &["no secret for it is known"]);
    assert!(before == world.hashes(&devices), "something was written");
    let with = ["--dhchap-secrets", "keys"];
    world.create(&[&shape[..], &with].concat(), &members).ok();
    let offered = world.run(&["discover", &pool, "--json", "--dhchap-secrets", "keys"]).ok().json();
    assert_eq!(offered["subsystems"][0]["nqn"], NQN);
    world.run(&["examine", &members[0]]).refused(1, &["no secret for it is known"]);
    world.run(&["examine", "--dhchap-secrets", "keys", &members[0]]).ok();

    let options = ["--shards", "2", "--spare-pool", &pool, "--spare-pool-delay", "1"];
    let server = world.serve(&[&options[..], &with].concat(), &members);
    let mut client = Client::connect(&server.nbd());
    let data = pattern(3, 2 << 20);
    assert_eq!(client.write(0, &data), 0);
    world.run(&["fail", "data", "1"]).ok();
    let whole = await_detail(&world, |now| now["degraded"] == false);
    assert_eq!(whole["members"][1]["device"], namespaces[3], "{whole}");
    assert!(client.read(0, data.len()) == data);
    world.run(&["check", "data"]).ok();
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(server.ended(), 0);
    store.signal("TERM");
    assert_eq!(store.ended(), 0);
    for device in &devices {
        let bytes = std::fs::read(world.path(device)).unwrap();
        assert!(!bytes.windows(6).any(|window| window == b"DHHC-1"), "a secret is on {device}");
    }
}

#[test]
fn an_address_that_others_reach_needs_authentication_and_a_file_that_they_cannot_read() {
    let world = World::new();
    let device = world.file("device", MEMBER_BYTES);
    let target = |more: &[&str]| {
        let all = [&["target", "--listen", "0.0.0.0:0", "--nqn", NQN], more, &[device.as_str()]].concat();
        world.run(&all)
    };
    target(&[]).refused(64, &["--dhchap-hosts", "--allow-unauthenticated"]);
    secrets_file(&world, "open", &format!("* {SECRETS}\n"), 0o644);
    target(&["--dhchap-hosts", "open"]).refused(1, &["can be read by other users", "chmod 600"]);
    secrets_file(&world, "torn", &format!("* {SECRETS} more\n"), 0o600);
    target(&["--dhchap-hosts", "torn"]).refused(1, &["torn, line 1", "too many words"]);
    secrets_file(&world, "empty", "# no line\n", 0o600);
    target(&["--dhchap-hosts", "empty"]).refused(1, &["has no line for any peer"]);
    target(&["--dhchap-hosts", "missing"]).refused(1, &["can't read the secrets in missing"]);
    let members = world.raid5(3);
    let options = ["--nvme-tcp", "127.0.0.1:0", "--dhchap-hosts", "empty"];
    world.serve_refused(&options, &members).refused(1, &["has no line for any peer"]);
}
