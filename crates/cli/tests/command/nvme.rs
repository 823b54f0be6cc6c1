//! Members on NVMe/TCP servers that go and come back.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    configured::Configured,
    nbd::{Client, pattern},
    world::{LoopDevice, MEMBER_BYTES, PATIENCE, Port, Server, World, wait_until},
};

pub const NQN: &str = "nqn.2026-01.com.example:members";

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
        assert!(begun.elapsed() < PATIENCE, "{now}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn a_member_whose_server_was_killed_comes_back_by_itself() {
    let world = World::new();
    let mut members = world.raid5(4);
    let remote = members[2].clone();
    let port = Port::new();
    let address = port.address.to_string();
    let store = target(&world, &address, std::slice::from_ref(&remote));
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
    let back = server.told("MemberBack", 1);
    assert!(back.len() == 1 && back[0].contains("what it missed"), "{back:?}");
    assert_eq!(server.told("SpareActive", 1).len(), 1);
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
fn a_member_that_is_still_away_keeps_no_other_member_of_its_server_out() {
    let world = World::new();
    let mut members = world.members(5);
    world.create(&["--level", "6", "--name", "data", "--assume-clean"], &members).ok();
    let remote = members[..2].to_vec();
    let port = Port::new();
    let address = port.address.to_string();
    let store = target(&world, &address, &remote);
    for (slot, member) in members[..2].iter_mut().enumerate() {
        store.ready["namespaces"][slot].as_str().unwrap().clone_into(member);
    }
    let server = world.serve(&["--shards", "2"], &members);
    let mut client = Client::connect(&server.nbd());
    assert_eq!(client.write(0, &pattern(1, 1 << 20)), 0);
    drop(store);
    assert_eq!(client.write(0, &pattern(2, 1 << 20)), 0);
    let lost = await_detail(&world, |now| now["failed"].as_array().unwrap().len() == 2);

    // The server is back without the disk of the member that is tried first.
    let first = lost["failed"][0]["device"].as_str().unwrap();
    let away = world.path(&remote[usize::from(first.ends_with("nsid=2"))]);
    std::fs::rename(&away, away.with_extension("away")).unwrap();
    let options = ["--listen", &address, "--nqn", NQN, "--shards", "1", "--allow-missing"];
    let store = world.target(&options, &remote);
    let now = await_detail(&world, |now| now["failed"].as_array().unwrap().len() == 1);
    assert_eq!(now["failed"][0]["device"].as_str(), Some(first), "{now}");
    assert!(now["failed"][0]["reconnecting"]["trouble"].as_str().unwrap().contains("no namespace"), "{now}");
    assert_eq!(server.told("MemberBack", 1).len(), 1);
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(server.ended(), 0);
    drop(store);
}

/// An array of files with its first two members on a target: also the target and the members' names.
fn with_two_on_a_target(world: &World, port: &Port) -> (Server, Vec<String>) {
    let mut members = world.raid5(4);
    let store = target(world, &port.address.to_string(), &members[..2]);
    for (slot, member) in members[..2].iter_mut().enumerate() {
        store.ready["namespaces"][slot].as_str().unwrap().clone_into(member);
    }
    (store, members)
}

#[test]
fn the_superblock_of_a_removed_member_is_erased_while_its_array_runs() {
    let (world, port) = (World::new(), Port::new());
    let (store, members) = with_two_on_a_target(&world, &port);
    let server = world.serve(&["--shards", "2"], &members);
    let erase = || world.run(&["zero-superblock", "--force", &members[1]]);
    erase().refused(1, &["is in use: a host has attached it"]);
    world.run(&["fail", "data", "1"]).ok();
    world.run(&["remove", "data", &members[1]]).ok();
    erase().ok();
    erase().refused(1, &["holds no MD superblock"]);
    let mut client = Client::connect(&server.nbd());
    assert_eq!(client.write(0, &pattern(1, 1 << 20)), 0);
    drop((client, server, store));
}

#[test]
fn the_superblock_of_a_member_is_erased_when_its_host_has_died() {
    let (world, port) = (World::new(), Port::new());
    let (store, members) = with_two_on_a_target(&world, &port);
    let server = world.serve(&["--shards", "2"], &members);
    server.signal("KILL");
    drop(server);
    let mut last = String::new();
    wait_until("erased", || {
        let ran = world.run(&["zero-superblock", "--force", &members[0]]);
        last = ran.error;
        // Until the target has seen that the host is gone.
        assert!(ran.status == 0 || last.contains("is in use"), "{last}");
        ran.status == 0
    });
    drop(store);
}

#[test]
fn a_member_whose_server_was_away_at_a_degraded_start_comes_back_by_itself() {
    let world = World::new();
    let mut members = world.raid5(4);
    let remote = members[2].clone();
    let port = Port::new();
    let address = port.address.to_string();
    members[2] = format!("nvme-tcp://{address}/{NQN}?nsid=1");
    let server = world.serve(&["--shards", "2", "--run-after", "1"], &members);
    assert_eq!(server.ready["degraded"], true);
    let mut client = Client::connect(&server.nbd());
    assert_eq!(client.write(0, &pattern(1, 2 << 20)), 0);
    let advice = detail(&world)["advice"].as_str().unwrap().to_owned();
    assert!(advice.contains("was away when the array was started"), "{advice}");

    let store = target(&world, &address, std::slice::from_ref(&remote));
    let now = await_detail(&world, |now| now["degraded"] == false);
    assert_eq!((&now["members"][2]["device"], &now["advice"]), (&members[2].as_str().into(), &Value::Null));
    let back = server.told("MemberBack", 1);
    assert!(back.len() == 1 && back[0].contains("what it missed"), "{back:?}");
    world.run(&["check", "data"]).ok();

    // What a person has taken out stays out, whether its server is there at the next start or not.
    world.run(&["fail", "data", "2"]).ok();
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(server.ended(), 0);
    drop(store);
    let server = world.serve(&["--shards", "1", "--run-after", "1"], &members);
    let _store = target(&world, &address, std::slice::from_ref(&remote));
    let words = server.told("NotTakenBack", 1);
    assert!(words[0].contains("had gone on without it"), "{words:?}");
    assert_eq!(detail(&world)["degraded"], true);
    world.run(&["add", "data", &members[2], "--wait"]).ok();
}

#[test]
fn another_namespace_or_a_member_that_was_failed_on_purpose_does_not_come_back_by_itself() {
    let world = World::new();
    let mut members = world.raid5(4);
    let remote = members[1].clone();
    let port = Port::new();
    let address = port.address.to_string();
    let store = target(&world, &address, std::slice::from_ref(&remote));
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
    let words = server.told("NotTakenBack", 1);
    assert!(words.len() == 1 && words[0].contains("another namespace"), "{words:?}");
    assert!(std::fs::read(world.path(&other)).unwrap().iter().all(|byte| *byte == 0), "it was written");
    world.run(&["add", "data", &members[1], "--wait"]).ok();
    assert_eq!(detail(&world)["degraded"], false);
}

#[test]
fn a_namespace_that_is_refused_leaves_its_name_to_the_lost_member() {
    let world = World::new();
    let mut members = world.raid5(4);
    let remote = members[1].clone();
    let port = Port::new();
    let address = port.address.to_string();
    let store = target(&world, &address, std::slice::from_ref(&remote));
    members[1] = store.ready["namespaces"][0].as_str().unwrap().to_owned();
    let server = world.serve(&["--shards", "1"], &members);
    drop(store);
    // The next try is half a minute later: it isn't to meet the other device.
    await_detail(&world, |now| now["failed"][0]["reconnecting"]["tries"].as_u64() > Some(4));
    let other = world.file("other", MEMBER_BYTES / 2);
    let store = target(&world, &address, std::slice::from_ref(&other));
    world.run(&["add", "data", &members[1]]).refused(1, &["sectors"]);
    drop(store);
    let _store = target(&world, &address, std::slice::from_ref(&remote));
    let back = await_detail(&world, |now| {
        now["failed"].as_array().unwrap().is_empty() || now["failed"][0]["reconnecting"]["given_up"] == true
    });
    assert!(back["failed"].as_array().unwrap().is_empty(), "{back}");
    assert!(server.told("NotTakenBack", 0).is_empty());
}

#[test]
fn members_and_the_array_itself_are_known_by_every_address() {
    let world = World::new();
    let mut members = world.raid5(3);
    let store = target(&world, "127.0.0.1:0", &members[1..2]);
    members[1] = store.ready["namespaces"][0].as_str().unwrap().to_owned();
    let server = world.serve(&["--shards", "1", "--nvme-tcp", "127.0.0.1:0"], &members);
    let (with_digests, by_name) =
        (format!("{}&hdgst=1", members[1]), members[1].replace("127.0.0.1", "localhost"));
    let own = server.ready["nvme"].as_str().unwrap();
    let refused = |words: &str| {
        for device in [&*with_digests, &by_name] {
            world.run(&["add", "data", device, "--force"]).refused(1, &[words]);
        }
        for device in [own, &own.replace("127.0.0.1", "localhost")] {
            world.run(&["add", "data", device, "--force"]).refused(1, &["is this array itself"]);
            let replace = ["replace", "data", "0", "--with", device, "--force"];
            world.run(&replace).refused(1, &["is this array itself"]);
        }
    };
    refused("is the member in slot 1 already");
    // It is one although its superblock can't be read.
    world.poke("member1", 4096, &[0; 4096]);
    refused("is the member in slot 1 already");
    if let Some(device) = LoopDevice::new(&world, "member0", &[]) {
        world.run(&["add", "data", &device.path]).refused(1, &["is the member in slot 0 already"]);
    }
    let twice = [&members[..], std::slice::from_ref(&with_digests)].concat();
    world.serve_refused(&[], &twice).refused(64, &["is given twice"]);
    world.run(&["fail", "data", &with_digests]).ok();
    assert_eq!(detail(&world)["members"][1]["state"], "missing");
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
    assert_eq!(server.told("MoveSpare", 1).len(), 1);
    assert_eq!(world.hashes(&[occupied, small]), before, "what does not fit was written");
    world.run(&["check", "data"]).ok();
    assert!(client.read(0, data.len()) == data);
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(server.ended(), 0);
}

/// Passes connections on to a target, and holds the first claim of a namespace (a reservation register) until
/// it is told to go on. It says when it has it.
fn hold_first_claim(listener: TcpListener, target: SocketAddr) -> (Receiver<()>, Sender<()>) {
    const COMMAND: u8 = 4;
    const RESERVATION_REGISTER: u8 = 0x0d;
    let ((say, said), (go, goes)) = (channel(), channel());
    let claims = Arc::new(Mutex::new(Some((say, goes))));
    // By messages of the protocol: the fifth to eighth byte of each say how long it is.
    let pass =
        |mut from: TcpStream, mut to: TcpStream, claims: &Mutex<Option<(Sender<()>, Receiver<()>)>>| {
            let mut head = [0; 9];
            while from.read_exact(&mut head).is_ok() {
                let length = u32::from_le_bytes(head[4..8].try_into().unwrap()) as usize;
                let mut rest = vec![0; length - head.len()];
                if from.read_exact(&mut rest).is_err() {
                    break;
                }
                let is_claim = (head[0], head[8]) == (COMMAND, RESERVATION_REGISTER);
                // The lock isn't held for longer: other claims pass meanwhile.
                let first = is_claim.then(|| claims.lock().unwrap().take()).flatten();
                if let Some((say, goes)) = first {
                    say.send(()).unwrap();
                    let _ = goes.recv();
                }
                if to.write_all(&[&head[..], &rest].concat()).is_err() {
                    break;
                }
            }
            let _ = to.shutdown(Shutdown::Both);
        };
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            let Ok(server) = TcpStream::connect(target) else { continue };
            let (mut back, mut answers) = (server.try_clone().unwrap(), client.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut back, &mut answers);
                let _ = answers.shutdown(Shutdown::Both);
            });
            let claims = Arc::clone(&claims);
            std::thread::spawn(move || pass(client, server, &claims));
        }
    });
    (said, go)
}

#[test]
fn a_blank_namespace_that_another_array_takes_meanwhile_is_not_taken_from_it() {
    let (world, port) = (World::new(), Port::new());
    let members = world.raid5(3);
    let others: Vec<String> = (0..3).map(|slot| world.file(&format!("other{slot}"), MEMBER_BYTES)).collect();
    world.create(&["--level", "5", "--name", "other", "--assume-clean"], &others).ok();
    let blank = world.file("blank", MEMBER_BYTES + (1 << 20));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let pool = listener.local_addr().unwrap().to_string();
    let (held, go) = hold_first_claim(listener, port.address);
    let listen = port.address.to_string();
    // A server that knows of hosts would refuse the second one.
    let options =
        ["--listen", &listen, "--announce", &pool, "--nqn", NQN, "--shards", "1", "--offload", "off"];
    let store = world.target(&options, &[blank]);
    let options = ["--shards", "1", "--spare-pool", &pool, "--spare-pool-delay", "1"];
    let (server, other) = (world.serve(&options, &members), world.serve(&options, &others));
    world.run(&["fail", "other", "1"]).ok();
    held.recv_timeout(PATIENCE).unwrap();
    world.run(&["fail", "data", "1"]).ok();
    assert_eq!(server.told("MoveSpare", 1).len(), 1);
    go.send(()).unwrap();
    let outcome = || {
        let later = other.later.lock().unwrap();
        let words = later.iter().filter_map(|line| line["message"].as_str());
        let mut words = words.filter(|words| words.contains("pool") || words.contains(&pool));
        words.next().map(str::to_owned)
    };
    wait_until("refused or taken", || outcome().is_some());
    let outcome = outcome().unwrap();
    assert!(outcome.contains("it is not empty"), "{outcome}");
    assert!(other.told("MoveSpare", 0).is_empty(), "it was taken from the other array");
    let whole = await_detail(&world, |now| now["degraded"] == false);
    assert!(whole["members"][1]["device"].as_str().unwrap().contains(&pool), "{whole}");
    world.run(&["check", "data"]).ok();
    drop((server, other, store));
}

#[test]
fn a_claim_that_the_pool_may_have_left_behind_is_given_up_at_the_next_start() {
    let (world, port) = (World::new(), Port::new());
    let mut members = world.raid5(3);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let passes = listener.local_addr().unwrap().to_string();
    let (heard, go) = hold_first_claim(listener, port.address);
    go.send(()).unwrap();
    let listen = port.address.to_string();
    let store = target(&world, &listen, &members[2..]);
    members[2] = store.ready["namespaces"][0].as_str().unwrap().replace(&listen, &passes);
    let server = world.serve(&["--shards", "1"], &members);
    heard.recv_timeout(PATIENCE).expect("nothing is said of a reservation");
    let mut client = Client::connect(&server.nbd());
    assert_eq!(client.write(0, &pattern(1, 1 << 20)), 0);
    assert_eq!(detail(&world)["degraded"], false);
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(server.ended(), 0);
}

#[test]
fn what_the_pool_gave_is_a_member_at_the_next_start_though_the_entry_does_not_name_it() {
    let configured = Configured::new("");
    let world = &configured.world;
    let members = world.raid5(3);
    let two = target(world, "127.0.0.1:0", &[members[0].clone(), members[2].clone()]);
    let port = Port::new();
    let one_address = port.address.to_string();
    let one = target(world, &one_address, &members[1..2]);
    let blank = world.file("blank", MEMBER_BYTES + (1 << 20));
    let pool_port = Port::new();
    let pool_address = pool_port.address.to_string();
    let pool = target(world, &pool_address, std::slice::from_ref(&blank));
    let named: Vec<Value> = [&two, &one]
        .iter()
        .flat_map(|target| target.ready["namespaces"].as_array().unwrap().clone())
        .collect();
    let (given, named) = (pool.ready["namespaces"][0].clone(), Value::from(named));
    configured.write(
        "pinstripe.toml",
        &format!(
            "[defaults]\nshards = 1\n[[array]]\nname = 'data'\nmembers = {named}\n\
             spare-pool = ['{pool_address}']\nspare-pool-delay = 1\n"
        ),
    );
    let assemble = || configured.run(&["assemble", "--name", "data", "--json"]);
    let started = || {
        let started = assemble().ok().json()[0].clone();
        assert_eq!(
            (&started["state"], &started["degraded"]),
            (&"started".into(), &false.into()),
            "{started}"
        );
        assert_eq!(detail(world)["members"][1]["device"], given);
        started["pid"].as_u64().unwrap()
    };
    let kill = |process: u64| {
        crate::daemon::signal(process, "-KILL");
        wait_until("gone", || !world.path(&format!("/proc/{process}")).exists());
    };
    let first = assemble().ok().json()[0]["pid"].as_u64().unwrap();
    let data = pattern(3, 2 << 20);
    assert_eq!(Client::connect(&world.path("pinstripe/data.nbd")).write(0, &data), 0);
    drop(one);
    await_detail(world, |now| now["members"][1]["device"] == given && now["degraded"] == false);
    kill(first);

    // With the lost server away, and back.
    kill(started());
    let _one = target(world, &one_address, &members[1..2]);
    kill(started());
    let server = started();
    world.run(&["check", "data"]).ok();
    assert!(Client::connect(&world.path("pinstripe/data.nbd")).read(0, data.len()) == data);
    kill(server);

    // Another device where it was is none.
    drop(pool);
    let other = world.file("other", MEMBER_BYTES + (1 << 20));
    let _pool = target(world, &pool_address, std::slice::from_ref(&other));
    assemble().refused(1, &["slot 1", "is missing"]);
    assert!(std::fs::read(world.path(&other)).unwrap().iter().all(|byte| *byte == 0), "it was written");
}

/// What the host and the controller prove to have.
pub const SECRETS: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR: DHHC-1:00:ZGVmZ2hpamtsbW5vcHFyc3R1dnd4eXp7fH1+f4CBgoOeXryU:";

pub fn secrets_file(world: &World, name: &str, text: &str, mode: u32) -> String {
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

/// Keys for TLS, as `nvme gen-tls-key` writes them.
pub const TLS_KEY: &str = "NVMeTLSkey-1:01:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwNf9LrZ:";
const OTHER_TLS_KEY: &str =
    "NVMeTLSkey-1:02:VRLbtnN9AQb2WXW3c9+wEf/DRLz0QuLdbYvEhwtdWwP/w0S89ELi3W2LxIcLXVsDn8kXZQ==:";

pub fn uris(store: &Server) -> Vec<String> {
    let namespaces = store.ready["namespaces"].as_array().unwrap();
    namespaces.iter().map(|uri| uri.as_str().unwrap().to_owned()).collect()
}

/// The address of an array that is served over NVMe/TCP.
pub fn exported(server: &Server) -> String {
    let addresses = server.ready["addresses"].as_array().unwrap();
    let uris = addresses.iter().map(|address| address["uri"].as_str().unwrap());
    uris.into_iter().find(|uri| uri.starts_with("nvme-tcp://")).unwrap().to_owned()
}

/// This host's NQN, as it says if a server knows no key of it.
pub fn own_nqn(world: &World, device: &str) -> String {
    secrets_file(world, "strangers", &format!("nqn.2026-01.com.example:host {TLS_KEY}\n"), 0o600);
    let options = ["--listen", "127.0.0.1:0", "--nqn", NQN, "--shards", "1", "--nvme-tls-hosts", "strangers"];
    let store = world.target(&options, &[device.to_owned()]);
    let refused = world
        .run(&["discover", &address(&store), "--nvme-tls-secrets", "servers"])
        .refused(1, &["perhaps it has another key, or none", "this host is nqn."]);
    let host = refused.error.split("this host is ").nth(1).unwrap();
    host.split_whitespace().next().unwrap().to_owned()
}

#[test]
fn members_and_servers_speak_tls_with_a_common_key_and_nothing_in_clear() {
    let world = World::new();
    let devices = world.members(4);
    secrets_file(&world, "servers", &format!("* {TLS_KEY}\n"), 0o600);
    secrets_file(&world, "others", &format!("* {OTHER_TLS_KEY}\n"), 0o600);
    let host = own_nqn(&world, &devices[0]);
    secrets_file(&world, "hosts", &format!("{host} {TLS_KEY}\n"), 0o600);
    let listen = ["--listen", "127.0.0.1:0", "--nqn", NQN, "--shards", "1"];
    let secured = [&listen[..], &["--nvme-tls-hosts", "hosts"]].concat();
    let store = world.target(&secured, &devices[..2]);
    // A host that has keys for all servers uses none without.
    let plain = world.target(&listen, &devices[2..]);
    let before = world.hashes(&devices);
    let create = |members: &[String], more: &[&str]| {
        let shape = ["--level", "5", "--name", "data", "--assume-clean"];
        world.create(&[&shape[..], more].concat(), members)
    };
    let all = [uris(&store), uris(&plain)].concat();
    create(&all, &["--nvme-tls-secrets", "servers"]).refused(1, &[&address(&plain)]);
    create(&all, &[]).refused(1, &[&address(&store)]);
    create(&all, &["--nvme-tls-secrets", "others"]).refused(1, &["TLS", &address(&store)]);
    assert!(before == world.hashes(&devices), "something was written");
    drop(plain);

    let second = world.target(&secured, &devices[2..]);
    let members = [uris(&store), uris(&second)].concat();
    let with = ["--nvme-tls-secrets", "servers"];
    create(&members, &with).ok();
    world.run(&["examine", &members[0]]).refused(1, &[&address(&store)]);
    world.run(&[&["examine"], &with[..], &[members[0].as_str()]].concat()).ok();
    let server = world.serve(&[&["--shards", "2"], &with[..]].concat(), &members);
    let mut client = Client::connect(&server.nbd());
    let data = pattern(7, 4 << 20);
    assert_eq!(client.write(0, &data), 0);
    assert!(client.read(0, data.len()) == data);
    world.run(&["check", "data"]).ok();
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(server.ended(), 0);
}

#[test]
fn an_array_is_served_by_tls_to_the_hosts_of_a_file_that_only_root_can_read() {
    let world = World::new();
    let members = world.raid5(3);
    let refused = |file: &str, words: &[&str]| {
        let by_tls = ["--nvme-tcp", "127.0.0.1:0", "--nvme-tls-hosts", file];
        world.serve_refused(&by_tls, &members).refused(1, words);
    };
    secrets_file(&world, "any", &format!("* {TLS_KEY}\n"), 0o600);
    refused("any", &["* can't stand for hosts"]);
    secrets_file(&world, "open", &format!("nqn.a {TLS_KEY}\n"), 0o640);
    refused("open", &["can be read by other users"]);
    secrets_file(&world, "torn", "nqn.a NVMeTLSkey-1:01:AAAA:\n", 0o600);
    refused("torn", &["torn, line 1", "32 bytes", "the form is NQN KEY"]);
    world.serve_refused(&["--nvme-tls-hosts", "any"], &members).refused(64, &["--nvme-tcp"]);

    secrets_file(&world, "servers", &format!("* {TLS_KEY}\n"), 0o600);
    let host = own_nqn(&world, &world.file("device", MEMBER_BYTES));
    secrets_file(&world, "hosts", &format!("{host} {TLS_KEY}\n"), 0o600);
    let options = ["--nqn", NQN, "--nvme-tcp", "127.0.0.1:0", "--nvme-tls-hosts", "hosts"];
    let server = world.serve(&options, &members);
    let uri = exported(&server);
    let address = uri.strip_prefix("nvme-tcp://").unwrap().split('/').next().unwrap();
    world.run(&["discover", address]).refused(1, &[address]);
    // Strangers that say nothing make room, the oldest first.
    let strangers: Vec<_> = (0..140).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
    let seen = world.run(&["discover", address, "--namespaces", "--json", "--nvme-tls-secrets", "servers"]);
    assert_eq!(seen.ok().json()["subsystems"][0]["nqn"], NQN);
    drop(strangers);
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
    // If they held up the end, that would last for as long as their handshakes may, which are five seconds.
    // On a busy machine it may last as long, but not each time.
    let held_up = || {
        let server = world.serve(&options, &members);
        let uri = exported(&server);
        let address = uri.strip_prefix("nvme-tcp://").unwrap().split('/').next().unwrap();
        let _strangers: Vec<_> = (0..20).map(|_| std::net::TcpStream::connect(address).unwrap()).collect();
        let begun = Instant::now();
        world.run(&["stop", "data"]).ok();
        assert_eq!(server.ended(), 0);
        begun.elapsed() > Duration::from_secs(4)
    };
    assert!(!(0..5).all(|_| held_up()), "strangers hold up the end");
}

#[test]
fn the_configuration_has_the_keys_of_tls_of_both_ends_and_they_reach_the_server() {
    let configured = Configured::new("");
    let world = &configured.world;
    secrets_file(world, "servers", &format!("* {TLS_KEY}\n"), 0o600);
    let host = own_nqn(world, &world.file("device", MEMBER_BYTES));
    secrets_file(world, "hosts", &format!("{host} {TLS_KEY}\n"), 0o600);
    let listen = ["--listen", "127.0.0.1:0", "--nqn", NQN, "--shards", "1", "--nvme-tls-hosts", "hosts"];
    let store = world.target(&listen, &[world.file("remote", MEMBER_BYTES)]);
    let with = ["--nvme-tls-secrets", "servers"];
    let members = [world.members(2), uris(&store)].concat();
    world.create(&[&["--level", "5", "--name", "data", "--assume-clean"], &with[..]].concat(), &members).ok();

    let text = format!(
        "[[array]]\nname = 'data'\nshards = 1\nnvme-tcp = '127.0.0.1:0'\nnvme-tls-hosts = '@/hosts'\n\
         nvme-tls-secrets = '@/servers'\nmembers = ['@/member*', '{}']\n",
        members[2]
    );
    configured.write("pinstripe.toml", &text);
    configured.run(&["config", "check"]).ok();
    let started = configured.run(&["assemble", "--name", "data", "--json"]).ok().json();
    assert_eq!(
        (&started[0]["state"], &started[0]["degraded"]),
        (&"started".into(), &false.into()),
        "{started}"
    );
    let addresses = detail(world)["addresses"].as_array().unwrap().clone();
    let uris = addresses.iter().map(|address| address["uri"].as_str().unwrap());
    let uri = uris.into_iter().find(|uri| uri.starts_with("nvme-tcp://")).unwrap();
    let address = uri.strip_prefix("nvme-tcp://").unwrap().split('/').next().unwrap();
    world.run(&["discover", address]).refused(1, &[address]);
    world.run(&["discover", address, "--nvme-tls-secrets", "servers"]).ok();
}

#[test]
fn hosts_that_speak_tls_keep_their_connections_through_an_upgrade() {
    let world = World::new();
    let members = world.raid5(3);
    secrets_file(&world, "servers", &format!("* {TLS_KEY}\n"), 0o600);
    let host = own_nqn(&world, &world.file("device", MEMBER_BYTES));
    secrets_file(&world, "hosts", &format!("{host} {TLS_KEY}\n"), 0o600);
    let options = ["--nqn", NQN, "--nvme-tcp", "127.0.0.1:0", "--nvme-tls-hosts", "hosts", "--shards", "2"];
    let inner = world.serve(&options, &members);
    let mut outer: Vec<String> = ["outer0", "outer1"].map(|name| world.file(name, MEMBER_BYTES)).into();
    outer.push(exported(&inner));
    let with = ["--nvme-tls-secrets", "servers"];
    world.create(&[&["--level", "5", "--name", "outer", "--assume-clean"], &with[..]].concat(), &outer).ok();
    let server = world.serve(&[&["--shards", "2"], &with[..]].concat(), &outer);
    let mut client = Client::connect(&server.nbd());
    for round in 0..3 {
        let data = pattern(round, 2 << 20);
        assert_eq!(client.write(0, &data), 0);
        let upgraded = world.run(&["upgrade", "data", "--json"]).ok().json();
        assert!(upgraded["connections"].as_u64().unwrap() >= 2, "{upgraded}");
        assert!(client.read(0, data.len()) == data);
    }
    let detail = world.run(&["detail", "outer", "--json"]).ok().json();
    assert_eq!(detail["degraded"], false, "{detail}");
    assert!(server.told("Fail", 0).is_empty() && server.told("DegradedArray", 0).is_empty());
    world.run(&["check", "outer"]).ok();

    // A file that the next program couldn't use is refused before anything is left.
    secrets_file(&world, "hosts", &format!("{host} {TLS_KEY}\n* {TLS_KEY}\n"), 0o600);
    world.run(&["upgrade", "data"]).refused(1, &["can't stand for hosts", "nothing was changed"]);
    assert_eq!(client.write(0, &pattern(9, 4096)), 0);
    world.run(&["stop", "outer", "--force"]).ok();
    assert_eq!(server.ended(), 0);
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(inner.ended(), 0);
}

#[test]
fn a_device_that_is_missing_leaves_its_number_free_and_the_others_are_served() {
    let world = World::new();
    let members = world.raid5(4);
    let nowhere = world.path("nowhere");
    let devices = [members[0].clone(), nowhere.display().to_string(), members[1].clone()];
    let options = ["--listen", "127.0.0.1:0", "--nqn", NQN, "--shards", "2"];
    let refused = |more: &[&str], devices: &[String]| {
        let mut words = vec!["target"];
        words.extend(options.iter().chain(more));
        words.extend(devices.iter().map(String::as_str));
        world.run(&words)
    };
    refused(&[], &devices).refused(1, &["nowhere"]);
    refused(&["--allow-missing"], &devices[1..2]).refused(1, &["no device can be served"]);

    let with = [&options[..], &["--allow-missing"]].concat();
    let store = world.target(&with, &devices);
    let (namespaces, address) = (&store.ready["namespaces"], address(&store));
    assert!(namespaces[1].is_null(), "{namespaces}");
    let found = world.run(&["discover", "--namespaces", &address]).ok().out;
    assert!(found.contains("nsid=1") && !found.contains("nsid=2") && found.contains("nsid=3"), "{found}");

    // What is there can be used, under the number that it always has.
    let third = namespaces[2].as_str().unwrap().to_owned();
    assert!(third.ends_with("nsid=3"), "{third}");
    let seen = world.run(&["examine", &third, "--json"]).ok().json();
    assert_eq!(seen[0]["member"]["device"]["slot"], 1, "{seen}");
}
