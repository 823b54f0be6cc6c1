//! Memory that a server may take, under clients that want more.

use std::{
    io::Write,
    net::Ipv4Addr,
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::{
    nbd::{Client, header, pattern},
    tls::{Authority, connect_from},
    world::{PATIENCE, Server, World},
};

const MIB: u64 = 1 << 20;
const CLIENTS: usize = 1000;

fn array(world: &World) -> Vec<String> {
    let members: Vec<String> = (0..6).map(|slot| world.file(&format!("member{slot}"), 64 * MIB)).collect();
    world.create(&["--level", "6", "--name", "data", "--assume-clean"], &members).ok();
    members
}

/// A value in bytes of a file of the server's in /proc.
fn told(server: &Server, file: &str, key: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{}/{file}", server.ready["pid"])).unwrap();
    text.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim().to_owned()
}

/// The most memory that it ever had.
fn most(server: &Server) -> u64 {
    let kib = told(server, "status", "VmHWM:");
    kib.strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
}

/// Waits until it takes no more, of which it isn't tired before it has taken `least`; says how much that is.
fn at_last(server: &Server, least: u64) -> u64 {
    let (begun, mut last, mut same) = (Instant::now(), 0, 0);
    // A busy machine may let it stand still for a moment.
    while begun.elapsed() < PATIENCE && (same < 5 || last <= least) {
        thread::sleep(Duration::from_millis(300));
        let now = most(server);
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    last
}

/// Has this process open as many files as it may.
fn open_many() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
}

fn clients(server: &Server) -> Vec<Client> {
    open_many();
    (0..CLIENTS).map(|_| Client::connect(&server.nbd())).collect()
}

/// Of a client that asks for 64 MiB.
fn requests() -> Vec<u8> {
    header(0, 0, 512 << 10).repeat(128)
}

/// Has them ask for it, and reads nothing of it.
fn ask(clients: &mut [Client]) {
    for client in clients {
        client.say(&requests());
    }
}

#[test]
fn a_thousand_clients_that_read_nothing_get_no_more_memory_than_there_may_be() {
    let world = World::new();
    let members = array(&world);
    let server = world.serve(&["--shards", "4", "--memory-max", "400M"], &members);
    let files = told(&server, "limits", "Max open files");
    let (soft, hard) = files.split_once(' ').unwrap();
    assert_eq!(Some(soft), hard.split_whitespace().next(), "it opens fewer files than it may");
    let mut greedy = clients(&server);
    ask(&mut greedy);
    let taken = at_last(&server, 150 * MIB);
    assert!(taken <= 400 * MIB, "{} MiB are taken", taken / MIB);
    assert!(taken > 150 * MIB, "it is hardly asked for anything: {} MiB", taken / MIB);
    // One that takes its answers is served all the same.
    let mut other = Client::connect(&server.nbd());
    assert_eq!(other.write(MIB, &pattern(1, 4096)), 0);
    assert!(other.read(MIB, 4096) == pattern(1, 4096));
    drop(greedy);
    assert_eq!(server.end().0, 0);

    let server = world.serve(&["--shards", "4"], &members);
    ask(&mut clients(&server));
    let taken = at_last(&server, 400 * MIB);
    assert!(taken > 400 * MIB, "they don't ask for more than is allowed above: {} MiB", taken / MIB);
}

/// Their connections take twice as much.
#[test]
fn a_thousand_clients_of_tls_that_read_nothing_get_no_more_memory_than_there_may_be() {
    let world = World::new();
    let members = array(&world);
    let authority = Authority::new();
    authority.put(&world, "tls");
    let options = ["--shards", "4", "--cache", "0", "--tls-certificates", "tls", "--nbd", "tcp:127.0.0.1:0"];
    let with = |max| [&options[..], &["--memory-max", max]].concat();
    let refused = world.run(&[&["serve"][..], &with("447M"), &[&members[0]]].concat());
    refused.refused(64, &["--memory-max 447 MiB", "with TLS", "448 MiB is needed"]);
    let server = world.serve(&with("448M"), &members);
    open_many();
    let config = authority.client("client.example");
    // As many as a shard lets in of one address.
    let client = |number: usize| {
        let own = Ipv4Addr::new(127, 0, 0, u8::try_from(1 + number / 500).unwrap());
        connect_from(own, &server, config.clone()).expect("it is let in").1
    };
    let mut greedy: Vec<_> = (0..CLIENTS).map(client).collect();
    for client in &mut greedy {
        client.write_all(&requests()).unwrap();
    }
    let taken = at_last(&server, 150 * MIB);
    assert!(taken <= 448 * MIB, "{} MiB are taken", taken / MIB);
    assert!(taken > 150 * MIB, "it is hardly asked for anything: {} MiB", taken / MIB);
    eprintln!("{} MiB are taken", taken / MIB);
    drop(greedy);
    assert_eq!(server.end().0, 0);
}

#[test]
fn writes_of_many_clients_take_no_more_memory_than_there_may_be() {
    let world = World::new();
    let members = array(&world);
    for (length, requests) in [(4 << 10, 32), (160 << 10, 3)] {
        let server = world.serve(&["--shards", "4", "--memory-max", "400M"], &members);
        let mut clients = clients(&server);
        let blocks = clients[0].size_bytes / length as u64;
        let data = pattern(9, length);
        for (number, client) in clients.iter_mut().enumerate() {
            for request in 0..requests {
                let block = (number * 7919 + request * 104_729) as u64 % blocks;
                client.say(&[&header(1, block * length as u64, length), &data[..]].concat());
            }
        }
        for client in &mut clients {
            (0..requests).for_each(|_| assert_eq!(client.answer(), 0));
        }
        let taken = most(&server);
        assert!(taken <= 400 * MIB, "{} MiB are taken", taken / MIB);
        drop(clients);
        assert_eq!(world.run(&["check", "data"]).ok().status, 0);
        assert_eq!(server.end().0, 0);
    }
}

#[test]
fn too_little_memory_is_refused_with_what_is_needed() {
    let world = World::new();
    let refused = world.serve_refused(&["--memory-max", "100M"], &array(&world));
    refused.refused(64, &["--memory-max 100 MiB", "232 MiB is needed", "--cache"]);
}
