//! File systems without room: what was kept stays, arrays are served, and what waits is kept when there is
//! room again.

use std::{
    fs::{self, File},
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command},
    thread,
    time::Duration,
};

use serde_json::{Value, json};

use crate::{
    configured::{Configured, DATA, SCAN},
    daemon::Daemon,
    nbd::{Client, header, pattern},
    world::{MEMBER_BYTES, World, wait_until},
};

/// Bytes of a page, which is what such a file system gives.
const PAGE: usize = 4096;
const NO_SPACE: &str = "No space left on device";

/// A small file system, which goes with this. See [`mount`].
struct Small(PathBuf);

/// Mounts one of this size; none where that can't be.
fn mount(path: PathBuf, size: &str) -> Option<Small> {
    if !rustix::process::geteuid().is_root() {
        eprintln!("DID NOT RUN: only root mounts file systems");
        return None;
    }
    fs::create_dir_all(&path).unwrap();
    let options = format!("mode=700,{size}");
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "small"]).arg(&path).status();
    assert!(mounted.unwrap().success());
    Some(Small(path))
}

impl Small {
    /// Takes all room that there is.
    fn fill(&self) {
        let mut ballast = File::create(self.0.join("ballast")).unwrap();
        let full = std::iter::repeat_with(|| ballast.write_all(&[0; 64])).find_map(Result::err);
        assert_eq!(full.unwrap().kind(), std::io::ErrorKind::StorageFull);
    }

    fn make_room(&self) {
        fs::remove_file(self.0.join("ballast")).unwrap();
    }

    fn resize(&self, size: &str) {
        let options = format!("remount,mode=700,{size}");
        assert!(Command::new("mount").args(["-o", &options]).arg(&self.0).status().unwrap().success());
    }

    /// Names of all files.
    fn names(&self) -> Vec<String> {
        let names = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).collect()
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

/// A process that doesn't outlive the test.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A line of the history that leaves so many bytes of its last page.
fn old_event(left: usize) -> String {
    let line = |message: &str| {
        let told =
            json!({ "time": 5, "array": "data", "event": "Old", "alarming": false, "message": message });
        format!("{told}\n")
    };
    line(&"m".repeat(PAGE - line("").len() - left))
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("torn: {line}"))).collect()
}

#[test]
fn a_daemon_without_room_for_its_state_serves_tells_and_keeps_what_waited_when_there_is_room() {
    let text = format!("[alerts]\nprogram = '@/bin/alert'\n{DATA}check-every = '30d'\n");
    let configured = Configured::new(&text);
    let Some(state) = mount(configured.world.path("state"), "size=64k") else { return };
    configured.world.raid5(3);
    configured.program("bin/alert", "#!/bin/sh\necho \"$1 $2 $3\" >>@/told\n");
    let told = || fs::read_to_string(configured.world.path("told")).unwrap_or_default();
    // A part of the next event finds room.
    let (history, old) = (state.0.join("events.jsonl"), old_event(10));
    fs::write(&history, &old).unwrap();
    let book = state.0.join("alerts.json");
    fs::write(&book, "{\"open\":[],\"unsent\":[]}").unwrap();
    state.fill();

    // The folder for temporary files is often on the same file system.
    let daemon = Daemon::start_with(&configured, &[], &[("TMPDIR", state.0.to_str().unwrap())]);
    daemon.wait_for("data", "serving");
    daemon.says("its check failed: how far the check is can't be kept: No space left on device");
    configured.run(&["fail", "data", "member1"]).ok();
    assert_eq!(Client::connect(&configured.world.path("pinstripe/data.nbd")).write(0, &pattern(1, 65536)), 0);
    daemon.wait("it is told", |_| told() == "raised Degraded data\n");
    let unkept = |status: &Value, what: &str| {
        let said = format!("{what} can't be kept in {}: {NO_SPACE}", state.0.display());
        status["remarks"].as_array().unwrap().iter().any(|one| one.as_str().unwrap().starts_with(&said))
    };
    daemon.wait("both are said", |status| unkept(status, "events") && unkept(status, "alerts"));
    assert_eq!(daemon.log().matches("events can't be kept").count(), 1, "once");
    assert_eq!(fs::read_to_string(&history).unwrap(), old, "what was kept stays, and nothing else");
    assert_eq!(fs::read_to_string(&book).unwrap(), "{\"open\":[],\"unsent\":[]}");

    state.make_room();
    daemon.wait("all is kept", |status| !unkept(status, "events") && !unkept(status, "alerts"));
    let events = lines(&history);
    let has = |event: &str| events.iter().any(|one| one["event"] == event);
    assert!(["Old", "Started", "Fail", "Degraded"].into_iter().all(has), "{events:?}");
    assert!(fs::read_to_string(&book).unwrap().contains("Degraded"));
    let mut names = state.names();
    names.sort();
    assert_eq!(names, ["alerts.json", "events.jsonl", "state.lock"], "no attempt has left anything");
    // The next one knows, and tells nothing twice.
    drop(daemon);
    let daemon = Daemon::start(&configured, &[]);
    daemon.wait("it is asked", |status| status["alerts"][0]["alert"] == "Degraded");
    configured.run(&["add", "data", "member1", "--wait"]).ok();
    daemon.wait("it is over", |_| told() == "raised Degraded data\ncleared Degraded data\n");
    drop(daemon);
    configured.run(&["stop", "data"]).ok();
}

#[test]
fn a_server_without_room_for_its_log_serves_and_says_later_how_much_is_missing() {
    let world = World::new();
    let Some(small) = mount(world.path("small"), "size=64k") else { return };
    let members = world.raid5(3);
    // A part of the next line finds room.
    let (log, old) = (small.0.join("log"), "o".repeat(PAGE - 11) + "\n");
    fs::write(&log, &old).unwrap();
    small.fill();
    let mut serve = world.command(&["serve", "--shards", "1"]);
    serve.args(&members).stderr(File::options().append(true).open(&log).unwrap());
    let mut server = Killed(serve.spawn().unwrap());
    wait_until("served", || world.run(&["detail", "data"]).status == 0);
    assert_eq!(Client::connect(&world.path("pinstripe/data.nbd")).write(0, &pattern(1, 65536)), 0);
    world.run(&["fail", "data", "1"]).ok();
    thread::sleep(Duration::from_millis(500));
    let now = fs::read_to_string(&log).unwrap();
    assert!(now.starts_with(&old) && now.len() <= PAGE, "{now}");

    small.make_room();
    world.run(&["add", "data", "member1", "--wait"]).ok();
    world.run(&["stop", "data"]).ok();
    assert!(server.0.wait().unwrap().success());
    let text = fs::read_to_string(&log).unwrap();
    let later: Vec<&str> = text.strip_prefix(&old).unwrap().lines().collect();
    let said = format!("entries of the log could not be written: {NO_SPACE}");
    assert!(later[1].starts_with("pinstripe: ") && later[1].contains(&said), "{later:?}");
    assert!(later[2..].iter().all(|line| line.starts_with("pinstripe: ")), "{later:?}");
    assert!(later.iter().any(|line| line.contains("was added in slot 1")), "{later:?}");
}

/// What can't be told is no reason to fail.
#[test]
fn a_command_whose_standard_error_has_no_room_does_what_it_is_told_and_ends_as_it_would() {
    let configured = Configured::new(&format!("[alerts]\nprogram = '/nowhere'\n{DATA}"));
    let run = |arguments: &[&str]| {
        let mut command = configured.world.command(arguments);
        command.env("PINSTRIPE_CONFIG", configured.world.path("pinstripe.toml"));
        command.stderr(File::options().write(true).open("/dev/full").unwrap()).status().unwrap().code()
    };
    assert_eq!(run(&["config", "check"]), Some(0), "a warning");
    assert_eq!(run(&["detail", "nothing"]), Some(1), "an error");
}

#[test]
fn without_room_for_sockets_nothing_is_started_and_that_is_said_until_there_is_room() {
    let configured = Configured::new(DATA);
    let Some(sockets) = mount(configured.world.path("pinstripe"), "size=64k,nr_inodes=1") else { return };
    configured.world.raid5(3);
    configured.run(&["daemon"]).refused(1, &["can't lock", "daemon.lock", NO_SPACE]);
    // Enough for the daemon, and not for a server.
    sockets.resize("size=64k,nr_inodes=4");
    let daemon = Daemon::start(&configured, &[]);
    let status = daemon.wait("it is said", |status| status["arrays"][0]["state"] == "failed");
    assert!(status["arrays"][0]["why"].as_str().unwrap().contains(NO_SPACE), "{status}");
    daemon.says("data: was not started: ");
    sockets.resize("size=64k,nr_inodes=100");
    daemon.wait_for("data", "serving");
    configured.run(&["stop", "data"]).ok();
    drop(daemon);
}

#[test]
fn without_room_for_the_configuration_an_import_changes_nothing() {
    let configured = Configured::new(SCAN);
    configured.world.raid5(3);
    let Some(folder) = mount(configured.world.path("conf.d"), "size=16k") else { return };
    let Some(mdadm) = mount(configured.world.path("mdadm"), "size=16k") else { return };
    let conf = mdadm.0.join("mdadm.conf");
    fs::write(&conf, "MAILADDR root\n").unwrap();
    for (full, other) in [(&folder, &mdadm), (&mdadm, &folder)] {
        full.fill();
        let import = ["import", "data", "--mdadm-conf", "mdadm/mdadm.conf"];
        configured.run(&import).refused(1, &["can't write", NO_SPACE]);
        assert_eq!(fs::read_to_string(&conf).unwrap(), "MAILADDR root\n");
        assert!(!folder.names().iter().chain(&mdadm.names()).any(|name| {
            name.contains("imported") || !["ballast", "mdadm.conf"].contains(&name.as_str())
        }));
        assert!(!other.names().contains(&"ballast".to_owned()));
        full.make_room();
    }
    configured.run(&["import", "data", "--mdadm-conf", "mdadm/mdadm.conf"]).ok();
    configured.run(&["stop", "data"]).ok();
}

/// Of this length is a write below, at this place of the array for each number.
const LENGTH: usize = 64 << 10;

fn place(number: u64) -> u64 {
    number * LENGTH as u64
}

/// Writes it; the error number.
fn write(client: &mut Client, number: u64) -> u32 {
    client.write(place(number), &pattern(number, LENGTH))
}

/// Whether this write can be read, and then it is right.
fn tells(nbd: &Path, number: u64) -> bool {
    let mut client = Client::connect(nbd);
    client.say(&header(0, place(number), LENGTH));
    if client.answer() != 0 {
        return false;
    }
    assert!(client.rest(LENGTH) == pattern(number, LENGTH), "{number} is wrong");
    true
}

#[test]
fn a_member_on_a_full_file_system_is_dropped_with_advice_and_added_again_when_there_is_room() {
    let world = World::new();
    let Some(small) = mount(world.path("small"), "size=64m") else { return };
    let members: Vec<String> =
        ["member0", "small/member1", "member2"].map(|name| world.file(name, MEMBER_BYTES)).into();
    world.create(&["--level", "5", "--name", "data", "--assume-clean"], &members).ok();
    let server = world.serve(&[], &members);
    let mut client = Client::connect(&server.nbd());
    (0..8).for_each(|number| assert_eq!(write(&mut client, number), 0));
    client.flush();
    small.fill();
    (8..40).for_each(|number| assert_eq!(write(&mut client, number), 0, "the array does without it"));
    client.flush();
    let detail = world.run(&["detail", "data", "--json"]).ok().json();
    let advice = detail["advice"].as_str().unwrap();
    assert!(advice.contains("member1 had no space left behind it: make room there"), "{advice}");
    assert_eq!((&detail["degraded"], &detail["state"]), (&true.into(), &"active".into()), "{detail}");

    small.make_room();
    world.run(&["add", "data", "small/member1", "--wait"]).ok();
    assert!((0..40).all(|number| tells(&server.nbd(), number)));
    world.run(&["check", "data"]).ok();
    assert_eq!(server.end().0, 0);
    let server = world.serve(&[], &members);
    assert!((0..40).all(|number| tells(&server.nbd(), number)));
    assert_eq!(world.run(&["detail", "data", "--json"]).ok().json()["degraded"], false);
    assert_eq!(server.end().0, 0);
}

const JOURNAL: &str = "--write-journal";

/// One member runs out of room before the others, so that the array lacks it when it fails.
#[test]
fn an_array_whose_members_share_a_full_file_system_fails_with_advice_and_keeps_what_was_flushed() {
    // Whether the start needs --force: without a log, rows that were being written while a member was missing
    // can't be told from others; and a journal that has failed is to be left out.
    let kinds: [(&[&str], bool); 4] = [
        (&["--level", "5", "--consistency-policy", "ppl"], false),
        (&["--level", "6"], false),
        (&["--level", "5"], true),
        (&["--level", "5", JOURNAL, "small/journal"], true),
    ];
    for (kind, forced) in kinds {
        let world = World::new();
        let Some(small) = mount(world.path("small"), "size=40m") else { return };
        let mut members: Vec<String> =
            (0..4).map(|slot| world.file(&format!("small/member{slot}"), MEMBER_BYTES)).collect();
        let journal = world.file("small/journal", MEMBER_BYTES);
        let shape = ["--chunk", "64K", "--name", "data", "--assume-clean"];
        world.create(&[kind, &shape].concat(), &members).ok();
        let has_journal = kind.contains(&JOURNAL);
        members.extend(has_journal.then_some(journal));
        let server = world.serve(&[], &members);
        let mut client = Client::connect(&server.nbd());
        (0..8).for_each(|number| assert_eq!(write(&mut client, number), 0));
        client.flush();
        small.fill();
        let blocks = server.size_bytes() / LENGTH as u64;
        let refused = (8..blocks).find(|number| write(&mut client, *number) != 0).expect("all found room");
        let detail = world.run(&["detail", "data", "--json"]).ok().json();
        let advice = detail["advice"].as_str().unwrap();
        let is_missing = detail["members"].to_string().contains("\"missing\"");
        if has_journal {
            assert!(
                detail["state"] == "read-only" && advice.contains("the journal device failed"),
                "{detail}"
            );
        } else {
            assert_eq!(detail["state"], "failed", "{detail}");
            assert!(advice.contains("make room for") && advice.contains("thin volume"), "{advice}");
        }
        assert_eq!(advice.contains("--force"), forced || is_missing, "{kind:?}: {advice}");
        let told = (0..8).filter(|number| tells(&server.nbd(), *number)).count();
        assert!(told >= 4, "{kind:?}: only {told} can be read");

        small.make_room();
        drop(client);
        world.run(&["stop", "data", "--force"]);
        drop(server);
        if forced {
            world.serve_refused(&[], &members).refused(1, &["--force", "nothing was changed"]);
        }
        let server = world.serve(if forced { &["--force"] } else { &[] }, &members);
        assert!((0..refused).all(|number| tells(&server.nbd(), number)), "{kind:?}");
        let mut client = Client::connect(&server.nbd());
        (8..blocks).for_each(|number| assert_eq!(write(&mut client, number), 0));
        client.flush();
        world.run(&["check", "data"]).ok();
        assert!((0..blocks).all(|number| tells(&server.nbd(), number)), "{kind:?}");
        drop(client);
        assert_eq!(server.end().0, 0);
    }
}
