//! To which users the sockets of clients are open.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::{
    configured::{Configured, SCAN, two_of_one_name},
    nbd::Client,
    world::{World, without_privileges},
};

fn mode(world: &World, name: &str) -> u32 {
    world.path(name).metadata().unwrap().permissions().mode() & 0o7777
}

#[test]
fn sockets_of_clients_are_open_as_far_as_is_asked_for_and_the_control_socket_never() {
    let world = World::new();
    let members = world.raid5(3);
    let own = world.path("member0").metadata().unwrap().gid();
    let group = own.to_string();
    let paths = ["--nbd", "unix:data.nbd", "--vhost-user", "data.vhost"];
    for (options, expected) in [
        (vec![], 0o600),
        (vec!["--socket-mode", "0666"], 0o666),
        (vec!["--socket-group", &group], 0o660),
        (vec!["--socket-group", &group, "--socket-mode", "600"], 0o600),
    ] {
        let server = world.serve(&[&paths[..], &options].concat(), &members);
        for round in 0..2 {
            assert_eq!(mode(&world, "data.nbd"), expected, "{options:?}, {round}");
            assert_eq!(mode(&world, "data.vhost"), expected, "{options:?}, {round}");
            assert_eq!(world.path("data.nbd").metadata().unwrap().gid(), own);
            assert_eq!(mode(&world, "pinstripe/data.sock"), 0o600, "{options:?}, {round}");
            Client::connect(&server.nbd());
            world.run(&["upgrade", "data"]).ok();
        }
        world.run(&["stop", "data", "--force"]).ok();
        assert_eq!(server.ended(), 0);
    }
}

#[test]
fn an_owner_that_can_not_be_given_and_a_folder_that_stays_closed_are_said() {
    let world = World::new();
    let members = world.raid5(3);
    for (option, value) in [
        ("--socket-mode", "060"),
        ("--socket-mode", "0999"),
        ("--socket-group", "no such"),
        ("--socket-owner", "-"),
    ] {
        world.serve_refused(&[&format!("{option}={value}")], &members).refused(64, &[option]);
    }
    let server = world.serve(&["--socket-mode", "0666"], &members);
    let (status, said) = server.end();
    assert_eq!(status, 0);
    assert!(said.contains("only its owner may enter"), "{said}");

    world.give_away();
    let mut command = world.command(&["serve", "--nbd", "unix:data.nbd", "--socket-owner", "0"]);
    let output = without_privileges(command.args(&members)).output().unwrap();
    crate::world::Ran::of(&output).refused(1, &["data.nbd", "owner", "not permitted"]);
    assert!(!world.path("data.nbd").exists(), "the socket is left behind");
}

/// As units have it (`config units`): no capability but the one to give files away.
#[test]
fn a_server_that_may_only_give_sockets_away_replaces_one_that_a_killed_server_has_given_away() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("DID NOT RUN: only root gives files away");
        return;
    }
    let world = World::new();
    let members = world.raid5(3);
    let options = ["--nbd", "unix:data.nbd", "--socket-owner", "65534", "--socket-mode", "0600"];
    let start = || world.serve_with_chown_alone(&options, &members);
    for _ in 0..2 {
        let server = start();
        let file = world.path("data.nbd").metadata().unwrap();
        assert_eq!((mode(&world, "data.nbd"), file.uid()), (0o600, 65534));
        Client::connect(&server.nbd());
        // Dropped, the server is killed: the file of its socket stays.
    }
    let server = start();
    let others = World::new();
    let path = world.path("data.nbd").display().to_string();
    let members = others.raid5(3);
    let arguments = ["--nbd", &format!("unix:{path}"), "--socket-owner", "65534"];
    others.serve_refused(&arguments, &members).refused(1, &["data.nbd", "in use"]);
    assert_eq!(world.path("data.nbd").metadata().unwrap().uid(), 65534);
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(server.ended(), 0);
    assert!(!world.path("data.nbd").exists());
}

#[test]
fn a_socket_for_clients_is_taken_for_no_control_socket_whatever_it_is_called() {
    let world = World::new();
    let members = world.raid5(3);
    let options = ["--nbd", "unix:pinstripe/log.sock", "--vhost-user", "pinstripe/disk.sock"];
    let server = world.serve(&options, &members);
    let begun = std::time::Instant::now();
    let listed = world.run(&["list", "--json"]).ok().json();
    assert!(begun.elapsed() < std::time::Duration::from_secs(4), "{:?}", begun.elapsed());
    assert_eq!((listed.as_array().unwrap().len(), &listed[0]["name"]), (1, &"data".into()), "{listed}");
    world.run(&["stop", "--all"]).ok();
    assert_eq!(server.ended(), 0);
}

/// A server that is killed leaves its link, which leads to its socket whichever array has that by then.
#[test]
fn a_uuid_never_means_another_array_that_has_taken_the_name() {
    let configured = Configured::new(SCAN);
    let uuids = two_of_one_name(&configured);
    // The lower one has the name.
    let first = usize::from(uuids[0] > uuids[1]);
    let [gone, other] = [first, 1 - first].map(|index| uuids[index].as_str());
    let link = configured.world.path(&format!("pinstripe/{}.link", gone.replace(':', "")));
    configured.run(&["assemble", "--uuid", gone]).ok();
    let socket = std::fs::read_link(&link).unwrap();
    configured.kill_server("data");
    crate::world::wait_until("it is gone", || configured.run(&["list"]).out == "no array is served\n");
    let members = (0..3).map(|number| format!("member{}", 3 * (1 - first) + number));
    let server = configured.world.serve(&["--shards", "1"], &members.collect::<Vec<_>>());
    assert_eq!(configured.run(&["detail", other, "--json"]).ok().json()["uuid"], other);
    assert!(!link.is_symlink(), "its successor takes it away");
    // One of an earlier version leaves it.
    std::os::unix::fs::symlink(&socket, &link).unwrap();
    for command in [&["detail"][..], &["stop", "--force"], &["fail", "member3"]] {
        let words = [&command[..1], &[gone], &command[1..]].concat();
        configured.run(&words).refused(1, &["is not being served"]);
    }
    assert_eq!(configured.run(&["detail", other, "--json"]).ok().json()["degraded"], false);
    configured.run(&["stop", other]).ok();
    assert_eq!(server.ended(), 0);
}
