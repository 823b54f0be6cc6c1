//! Servers and daemons that don't answer: every command says so, and ends.

use std::{
    thread,
    time::{Duration, Instant},
};

use crate::{configured::Configured, nbd::Client, world::World};

/// The limit of an answer, and much time for the rest on a busy machine.
const LIMIT: Duration = Duration::from_mins(2);

#[test]
fn no_command_waits_for_ever_for_a_server_that_hangs() {
    let world = World::new();
    let members = world.raid5(3);
    world.file("spare", crate::world::MEMBER_BYTES);
    let server = world.serve(&[], &members);
    server.signal("STOP");
    let commands: [&[&str]; 14] = [
        &["detail", "data"],
        &["limit", "data"],
        &["sync", "data"],
        &["stop", "data"],
        &["stop", "data", "--wait", "5"],
        &["upgrade", "data"],
        &["check", "data"],
        &["repair", "data"],
        &["fail", "data", "0"],
        &["add", "data", "spare"],
        &["remove", "data", "0"],
        &["replace", "data", "0"],
        &["grow", "data", "--bitmap", "none"],
        &["record", "data", "trace"],
    ];
    thread::scope(|scope| {
        for command in commands {
            let world = &world;
            scope.spawn(move || {
                let begun = Instant::now();
                let ran = world.run(command).refused(1, &["data does not answer", "see its log"]);
                assert!(begun.elapsed() < LIMIT, "{command:?} took {:?}", begun.elapsed());
                assert!(
                    ran.error.contains("no answer yet"),
                    "{command:?} says nothing meanwhile: {}",
                    ran.error
                );
            });
        }
        scope.spawn(|| {
            let told = world.run(&["monitor", "--oneshot", "data"]).ok().out;
            assert!(told.contains("ServerSilent data: ") && !told.contains("Disappeared"), "{told}");
        });
    });
    server.signal("CONT");
    // What was asked for by then is done: it isn't known what.
}

#[test]
fn long_work_says_what_it_waits_for_and_ends_if_the_server_hangs_meanwhile() {
    let world = World::new();
    let server = world.serve(&[], &world.raid5(3));
    let client = Client::connect(&server.nbd());
    let waited = world.run(&["stop", "data", "--wait", "10"]);
    waited.refused(1, &["waiting for clients to leave", "is in use by", "nothing was stopped"]);
    drop(client);

    world.run(&["sync", "data", "--speed-min", "1", "--speed-max", "50"]).ok();
    thread::scope(|scope| {
        let begun = Instant::now();
        let check = scope.spawn(|| world.run(&["check", "data"]));
        thread::sleep(Duration::from_secs(8));
        assert!(!check.is_finished(), "it was to be slow");
        server.signal("STOP");
        let words =
            ["waiting for the server of data", "`pinstripe detail` shows how far", "data does not answer"];
        check.join().unwrap().refused(1, &words);
        assert!(begun.elapsed() < LIMIT * 2, "{:?}", begun.elapsed());
    });
}

#[test]
fn a_daemon_that_hangs_is_said_to() {
    let configured = Configured::new("");
    let mut daemon = configured.world.command(&["daemon"]);
    daemon.env("PINSTRIPE_CONFIG", configured.world.path("pinstripe.toml"));
    let mut daemon = daemon.stdout(std::process::Stdio::null()).spawn().unwrap();
    let begun = Instant::now();
    while configured.run(&["status"]).status != 0 {
        assert!(begun.elapsed() < LIMIT);
        thread::sleep(Duration::from_millis(50));
    }
    let pid = rustix::process::Pid::from_child(&daemon);
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    let begun = Instant::now();
    configured.run(&["status"]).refused(1, &["no answer yet", "the daemon does not answer", "see its log"]);
    let took = begun.elapsed();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    assert!(took < LIMIT, "{took:?}");
}
