//! Which hosts may connect over NVMe/TCP, changed while the server runs.

use crate::{
    nvme::{NQN, SECRETS, TLS_KEY, exported, own_nqn, secrets_file, uris},
    world::{MEMBER_BYTES, PATIENCE, Server, World, wait_until},
};

/// How hosts prove which they are.
struct Kind {
    /// The option that names the server's file.
    hosts: &'static str,
    /// The one that names the host's.
    servers: &'static str,
    /// What stands behind the NQN in both.
    key: &'static str,
}

const DHCHAP: Kind = Kind { hosts: "--dhchap-hosts", servers: "--dhchap-secrets", key: SECRETS };
const TLS: Kind = Kind { hosts: "--nvme-tls-hosts", servers: "--nvme-tls-secrets", key: TLS_KEY };

/// A server lets hosts in as its file says at the time. It starts with options, and what it serves has a URI.
fn follows_its_file(
    kind: &Kind,
    world: &World,
    start: impl Fn(&[&str]) -> Server,
    uri: impl Fn(&Server) -> String,
) {
    secrets_file(world, "servers", &format!("* {TLS_KEY}\n"), 0o600);
    let host = own_nqn(world, &world.file("device", MEMBER_BYTES));
    secrets_file(world, "known", &format!("* {}\n", kind.key), 0o600);
    let line = |nqn: &str| format!("{nqn} {}\n", kind.key);
    let (stranger, line) = (line("nqn.2026-01.com.example:x"), line(&host));
    let write = |text: &str| drop(secrets_file(world, "hosts", text, 0o600));
    write(&stranger);
    let mut server = start(&[kind.hosts, "hosts"]);
    let uri = uri(&server);
    let address = uri.strip_prefix("nvme-tcp://").unwrap().split('/').next().unwrap().to_owned();
    let is_let_in = || world.run(&["discover", &address, kind.servers, "known"]).status == 0;
    assert!(!is_let_in());
    write(&format!("{stranger}{line}"));
    wait_until("let in", is_let_in);

    let members = [world.file("outer0", MEMBER_BYTES), world.file("outer1", MEMBER_BYTES), uri];
    let shape = ["--level", "5", "--name", "outer", "--assume-clean", kind.servers, "known"];
    world.create(&shape, &members).ok();
    let array = world.serve(&["--shards", "1", kind.servers, "known"], &members);
    let is_degraded = || world.run(&["detail", "outer", "--json"]).ok().json()["degraded"] == true;
    write(&format!("{stranger}{host} torn\n"));
    let said = server.says("until that is mended", PATIENCE).unwrap();
    assert!(said.contains("hosts, line 2"), "{said}");
    assert!(is_let_in() && !is_degraded());

    write(&stranger);
    wait_until("cut off", is_degraded);
    assert!(!is_let_in());
    write(&line);
    wait_until("let in again", is_let_in);
    drop((array, server));
}

fn target_follows_its_file(kind: &Kind) {
    let world = World::new();
    let device = world.file("remote", MEMBER_BYTES);
    let options = ["--listen", "127.0.0.1:0", "--nqn", NQN, "--shards", "2"];
    let start = |more: &[&str]| world.target(&[&options[..], more].concat(), std::slice::from_ref(&device));
    follows_its_file(kind, &world, start, |server| uris(server).remove(0));
}

fn array_follows_its_file(kind: &Kind) {
    let world = World::new();
    let members = world.raid5(3);
    let options = ["--nqn", NQN, "--nvme-tcp", "127.0.0.1:0", "--shards", "2"];
    let start = |more: &[&str]| world.serve(&[&options[..], more].concat(), &members);
    follows_its_file(kind, &world, start, exported);
}

#[test]
fn a_target_lets_hosts_in_whose_secrets_are_in_its_file_and_cuts_off_those_that_go() {
    target_follows_its_file(&DHCHAP);
}

#[test]
fn a_target_lets_hosts_in_whose_keys_of_tls_are_in_its_file_and_cuts_off_those_that_go() {
    target_follows_its_file(&TLS);
}

#[test]
fn an_array_lets_hosts_in_whose_secrets_are_in_its_file_and_cuts_off_those_that_go() {
    array_follows_its_file(&DHCHAP);
}

#[test]
fn an_array_lets_hosts_in_whose_keys_of_tls_are_in_its_file_and_cuts_off_those_that_go() {
    array_follows_its_file(&TLS);
}
