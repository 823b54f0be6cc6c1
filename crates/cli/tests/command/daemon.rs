//! `pinstripe daemon`: arrays are served, and again when their servers die, and not when a person stops them.

use std::{
    fs,
    os::unix::fs::DirEntryExt,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    configured::{ALL, Configured, DATA, SCAN},
    nbd::{Client, header, pattern},
    world::{LoopDevice, MEMBER_BYTES, PATIENCE, Port, Server, wait_until},
};

/// A daemon of a configuration; killed if the test ends without stopping it.
pub struct Daemon<'a> {
    configured: &'a Configured,
    child: Child,
    /// Bytes of the log that those before have written.
    before: usize,
}

impl<'a> Daemon<'a> {
    pub fn start(configured: &'a Configured, options: &[&str]) -> Self {
        Self::start_with(configured, options, &[])
    }

    /// With these variables in its environment.
    pub fn start_with(configured: &'a Configured, options: &[&str], variables: &[(&str, &str)]) -> Self {
        let mut command = configured.world.command(&["daemon"]);
        command.args(options).env("PINSTRIPE_CONFIG", configured.world.path("pinstripe.toml"));
        command.env_remove("CREDENTIALS_DIRECTORY").envs(variables.iter().copied());
        command.env("PINSTRIPE_STATE_DIR", configured.world.path("state"));
        let path = format!("{}:{}", configured.world.path("bin").display(), std::env::var("PATH").unwrap());
        command.env("PATH", path);
        let log = fs::File::options().append(true).create(true).open(configured.world.path("daemon.log"));
        let log = log.unwrap();
        let before = usize::try_from(log.metadata().unwrap().len()).unwrap();
        command.stdout(Stdio::null()).stderr(log);
        let daemon = Self { configured, child: command.spawn().unwrap(), before };
        daemon.wait("it answers", |_| true);
        daemon
    }

    pub fn status(&self) -> Option<Value> {
        let ran = self.configured.run(&["status", "--json"]);
        serde_json::from_str(&ran.out).ok()
    }

    /// Waits until its status is so, and gives it.
    pub fn wait(&self, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let status = self.status();
            if let Some(status) = status.as_ref().filter(|status| is_so(status)) {
                return status.clone();
            }
            let log = || fs::read_to_string(self.configured.world.path("daemon.log")).unwrap_or_default();
            assert!(begun.elapsed() < PATIENCE, "never {what}: {status:?}\n{}", log());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until the array is in a state.
    pub fn wait_for(&self, array: &str, state: &str) -> Value {
        let status = self.wait(&format!("{array} is {state}"), |status| of(status, array)["state"] == state);
        of(&status, array).clone()
    }

    pub fn signal(&self, name: &str) {
        let id = self.child.id().to_string();
        let sent = std::process::Command::new("kill").args([&format!("-{name}"), &id]).status();
        assert!(sent.unwrap().success());
    }

    pub fn ended(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.configured.world.path("daemon.log")).unwrap()
    }

    /// Waits until it has said this, and gives what follows where it said it last. Its log is written by a
    /// thread of its own: what it tells of may have been done for a while. What a daemon before it has said,
    /// such as its port, isn't this one's.
    pub fn says(&self, words: &str) -> String {
        let begun = Instant::now();
        loop {
            let log = self.log();
            if let Some((_, rest)) = log[self.before..].rsplit_once(words) {
                return rest.to_owned();
            }
            assert!(begun.elapsed() < PATIENCE, "never said {words}: {log}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Daemon<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn of<'a>(status: &'a Value, array: &str) -> &'a Value {
    let all = status["arrays"].as_array().unwrap();
    all.iter().find(|entry| entry["array"] == array).unwrap_or(&Value::Null)
}

/// Sends a signal, as `kill` takes it, to a process.
pub fn signal(process: u64, signal: &str) {
    let done = std::process::Command::new("kill").args([signal, &process.to_string()]).status();
    assert!(done.unwrap().success());
}

impl Configured {
    pub fn pid(&self, array: &str) -> u64 {
        self.version(array)["pid"].as_u64().unwrap()
    }

    fn version(&self, array: &str) -> Value {
        use std::io::{BufRead, BufReader, Write};
        let socket = self.world.path(&format!("pinstripe/{array}.sock"));
        let mut stream = std::os::unix::net::UnixStream::connect(socket).unwrap();
        stream.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"version\"}\n").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        serde_json::from_str::<Value>(&line).unwrap()["result"].clone()
    }

    pub fn kill_server(&self, array: &str) {
        signal(self.pid(array), "-KILL");
    }

    fn nbd(&self, array: &str) -> Client {
        Client::connect(&self.world.path(&format!("pinstripe/{array}.nbd")))
    }
}

#[test]
fn the_daemon_can_die_and_no_client_notices_and_the_next_one_finds_the_servers() {
    let configured = Configured::new(DATA);
    configured.world.raid5(3);
    let daemon = Daemon::start(&configured, &[]);
    let served = daemon.wait_for("data", "serving");
    assert!(served["control"].as_str().unwrap().ends_with("data.sock"), "{served}");
    // Another one says so, and changes nothing: neither the first one's socket nor what it keeps.
    let kept = || {
        let folders = ["pinstripe", "state"].map(|folder| configured.world.path(folder));
        let entries = folders.iter().flat_map(|folder| fs::read_dir(folder).unwrap().flatten());
        let mut all: Vec<_> = entries.map(|entry| (entry.path(), entry.ino())).collect();
        all.sort();
        (all, fs::read(configured.world.path("state/events.jsonl")).unwrap())
    };
    daemon.wait("its start is kept", |_| configured.world.path("state/events.jsonl").exists());
    let (before, first) =
        (kept(), format!("a daemon runs already, as process {}, and has ", daemon.child.id()));
    let state = configured.world.path("state").display().to_string();
    let second = configured.run_with(("PINSTRIPE_STATE_DIR", &state), &["daemon", "--stop-arrays"]);
    second.refused(1, &[&first, "daemon.lock locked", "nothing was done"]);
    assert_eq!(kept(), before);

    let (mut client, pid) = (configured.nbd("data"), configured.pid("data"));
    let data = pattern(1, 64 << 10);
    assert_eq!(client.write(0, &data), 0);
    daemon.signal("KILL");
    assert_eq!(daemon.ended(), None);
    assert_eq!(client.write(64 << 10, &data), 0, "its server goes on");
    configured.run(&["status"]).refused(1, &["no daemon runs", "daemon.socket"]);

    let daemon = Daemon::start(&configured, &[]);
    daemon.wait_for("data", "serving");
    assert_eq!(configured.pid("data"), pid, "it is the same server");
    assert_eq!(client.read(64 << 10, 64 << 10), data);
    // What isn't its child it sees die, too.
    configured.kill_server("data");
    daemon.wait("it is served anew", |status| {
        of(status, "data")["state"] == "serving" && of(status, "data")["failures"] == 1
    });
    assert_ne!(configured.pid("data"), pid);
    assert_eq!(configured.nbd("data").read(0, 64 << 10), data);
    daemon.signal("TERM");
    assert_eq!(daemon.ended(), Some(0));
    let text = configured.run(&["list"]).ok().out;
    assert!(text.contains("data: raid5"), "{text}");
}

#[test]
fn a_server_that_is_killed_is_started_again_with_what_it_had_flushed() {
    let configured = Configured::new(DATA);
    configured.world.raid5(3);
    let daemon = Daemon::start(&configured, &[]);
    daemon.wait_for("data", "serving");
    let data = pattern(2, 256 << 10);
    let mut client = configured.nbd("data");
    assert_eq!(client.write(4096, &data), 0);
    client.flush();
    configured.kill_server("data");
    let again = daemon.wait("it is served anew", |status| {
        of(status, "data")["state"] == "serving" && of(status, "data")["failures"] == 1
    });
    assert_eq!(of(&again, "data")["why"], Value::Null);
    assert_eq!(configured.nbd("data").read(4096, 256 << 10), data);
    daemon.says("data: its server was ended by signal 9");
}

#[test]
fn what_a_person_stops_stays_stopped_until_a_person_starts_it() {
    let configured = Configured::new(DATA);
    configured.world.raid5(3);
    let daemon = Daemon::start(&configured, &[]);
    daemon.wait_for("data", "serving");
    configured.run(&["stop", "data"]).ok();
    daemon.wait_for("data", "stopped");
    // A look, whatever it is for, starts it as little as the daemon's clock.
    let handed = configured.run(&["incremental", "member0"]).ok().out;
    assert!(handed.contains("the daemon looks at it"), "{handed}");
    configured.run(&["reload"]).ok();
    thread::sleep(Duration::from_secs(2));
    assert_eq!(of(&daemon.status().unwrap(), "data")["state"], "stopped");
    let text = configured.run(&["status"]).ok().out;
    assert!(text.contains("data: stopped for "), "{text}");

    configured.run(&["assemble", "--name", "data"]).ok();
    let begun = Instant::now();
    daemon.wait_for("data", "serving");
    // It looks again only a minute after the last time.
    assert!(begun.elapsed() < Duration::from_secs(30), "assemble tells the daemon");
    configured.kill_server("data");
    daemon.wait("it is kept served again", |status| of(status, "data")["failures"] == 1);
    daemon.wait_for("data", "serving");
}

#[test]
fn late_members_are_waited_for_and_done_without_when_the_configuration_says_so() {
    let configured = Configured::new(&DATA.replace("shards = 1", "shards = 1\nrun-after = 4"));
    configured.world.raid5(3);
    let away = configured.world.path("away");
    fs::create_dir(&away).unwrap();
    let move_away = |slot: usize| {
        fs::rename(configured.world.path(&format!("member{slot}")), away.join(slot.to_string())).unwrap();
    };
    move_away(1);
    move_away(2);
    let daemon = Daemon::start(&configured, &[]);
    let waits = daemon.wait("it was looked for", |status| {
        of(status, "data")["why"].as_str().is_some_and(|why| why.contains("too few members"))
    });
    assert_eq!(of(&waits, "data")["state"], "waiting", "{waits}");
    thread::sleep(Duration::from_secs(4));
    fs::rename(away.join("1"), configured.world.path("member1")).unwrap();
    configured.run(&["incremental", "member1"]).ok();
    daemon.wait_for("data", "serving");
    let detail = configured.run(&["detail", "data", "--json"]).ok().json();
    assert_eq!(detail["degraded"], true, "{detail}");
}

#[test]
fn an_array_that_cannot_be_started_is_tried_again_and_keeps_no_other_from_its_clients() {
    let two = format!("{DATA}[[array]]\nname = 'bad'\nfuse = '@/nowhere/file'\n");
    let configured = Configured::new(&two);
    configured.world.raid5(3);
    for slot in 0..3 {
        let name = format!("member{slot}");
        fs::rename(configured.world.path(&name), configured.world.path(&format!("member-of-data{slot}")))
            .unwrap();
    }
    let members = configured.world.members(3);
    configured.world.create(&["--level", "5", "--name", "bad", "--assume-clean"], &members).ok();
    let daemon = Daemon::start(&configured, &[]);
    daemon.wait_for("data", "serving");
    // Between two tries. Those that are seldom seen in between are followed by longer pauses.
    let status = daemon.wait("it has failed twice", |status| {
        of(status, "bad")["failures"].as_u64() >= Some(2) && of(status, "bad")["state"] == "failed"
    });
    let bad = of(&status, "bad");
    assert!(bad["why"].as_str().unwrap().contains("nowhere"), "{bad}");
    // When the reason is gone it is served.
    fs::create_dir(configured.world.path("nowhere")).unwrap();
    configured.write("pinstripe.toml", &two.replace("fuse = '@/nowhere/file'\n", ""));
    let said = configured.run(&["reload"]).ok().out;
    assert!(said.contains("bad: `fuse` is now"), "{said}");
    daemon.wait_for("bad", "serving");
}

#[test]
fn a_new_configuration_counts_where_it_can_and_a_wrong_one_changes_nothing() {
    let configured = Configured::new(SCAN);
    configured.world.raid5(3);
    let daemon = Daemon::start(&configured, &[]);
    let text = configured.run(&["status"]).ok().out;
    assert_eq!(text, "no array is configured to be started\n");

    configured.write("pinstripe.toml", DATA);
    let said = configured.run(&["reload"]).ok().out;
    assert!(said.contains("data: is started when its members are here"), "{said}");
    daemon.wait_for("data", "serving");
    let pid = configured.pid("data");

    configured.write(
        "pinstripe.toml",
        &format!("{DATA}sync-speed-max = 50000\nsync-speed-min = 20000\ncache = '8M'\n"),
    );
    let reloaded = configured.run(&["reload", "--json"]).ok().json();
    let changes = reloaded["changes"].as_array().unwrap();
    let effect = |what: &str| {
        let is_it = |change: &&Value| change["what"].as_str().unwrap().contains(what);
        changes.iter().find(is_it).map(|change| change["effect"].clone()).unwrap_or_default()
    };
    assert_eq!(
        (effect("sync-speed-max"), effect("`cache`")),
        ("live".into(), "restart".into()),
        "{reloaded}"
    );
    let detail = configured.run(&["detail", "data", "--json"]).ok().json();
    assert_eq!(
        (&detail["sync_speed_min_kib"], &detail["sync_speed_max_kib"]),
        (&20000.into(), &50000.into())
    );

    let other = configured.world.path("pinstripe.toml").display().to_string();
    configured.run(&["reload", "--config", &other]).refused(1, &["a daemon runs", "--config"]);
    configured.run(&["reload", "--config", &other, "data"]).ok();

    configured.write("pinstripe.toml", &format!("{DATA}shard = 1\n"));
    configured
        .run(&["reload"])
        .refused(1, &["the configuration was not changed", "pinstripe.toml:7", "shard"]);
    let status = daemon.status().unwrap();
    assert!(status["configuration_error"].as_str().unwrap().contains("shard"), "{status}");
    assert_eq!(of(&status, "data")["state"], "serving");

    configured.write("pinstripe.toml", SCAN);
    daemon.signal("HUP");
    daemon.wait("it is forgotten", |status| status["arrays"] == Value::Array(Vec::new()));
    assert_eq!(daemon.status().unwrap()["configuration_error"], Value::Null);
    assert_eq!(configured.pid("data"), pid, "its server goes on");
}

/// What has no entry is known by its members alone, and these can be away for a while.
#[test]
fn with_all_arrays_meant_one_that_comes_is_served_and_one_that_goes_is_not_forgotten() {
    let configured = Configured::new(&format!("{ALL}check-every = '30d'\n"));
    let daemon = Daemon::start(&configured, &[]);
    daemon.wait("it has looked", |status| status["looking_seconds"].is_null());
    configured.world.raid5(3);
    let handed = configured.run(&["incremental", "member0"]).ok().out;
    assert!(handed.contains("the daemon looks at it"), "{handed}");
    daemon.wait_for("data", "serving");
    daemon.wait("its parity is checked", |status| of(status, "data")["checked"].is_u64());
    configured.run(&["fail", "data", "member1"]).ok();
    daemon.wait("it is told", |status| status["alerts"][0]["alert"] == "Degraded");
    configured.run(&["stop", "data"]).ok();
    daemon.wait_for("data", "stopped");

    let away = configured.world.path("away");
    fs::create_dir(&away).unwrap();
    let go = |from: &std::path::Path, to: &std::path::Path| {
        for name in ["member0", "member1", "member2"] {
            fs::rename(from.join(name), to.join(name)).unwrap();
        }
    };
    let here = configured.world.path("");
    go(&here, &away);
    // A look that finds another one, and not this one.
    let others: Vec<String> =
        (3..6).map(|number| configured.world.file(&format!("member{number}"), MEMBER_BYTES)).collect();
    configured.world.create(&["--level", "5", "--name", "other", "--assume-clean"], &others).ok();
    configured.run(&["incremental", "member3"]).ok();
    let status = daemon.wait("the other one is served", |status| of(status, "other")["state"] == "serving");
    assert_eq!(of(&status, "data")["state"], "stopped", "{status}");
    assert_eq!(status["alerts"][0]["alert"], "Degraded", "{status}");
    go(&away, &here);
    configured.run(&["incremental", "member0"]).ok();
    thread::sleep(Duration::from_secs(2));
    assert_eq!(of(&daemon.status().unwrap(), "data")["state"], "stopped", "a person starts it");

    // A daemon that begins before the members are there doesn't say that all is well with them.
    daemon.signal("TERM");
    assert_eq!(daemon.ended(), Some(0));
    go(&here, &away);
    let daemon = Daemon::start(&configured, &[]);
    let status = daemon.wait("it has looked", |status| of(status, "other")["state"] == "serving");
    assert_eq!(status["alerts"][0]["alert"], "Degraded", "{status}");
    configured.run(&["reload"]).ok();
    daemon.wait("it is known no more", |status| status["alerts"] == Value::Array(Vec::new()));
}

/// It is the same array, with the same server.
#[test]
fn an_array_that_gets_an_entry_is_kept_once() {
    let configured = Configured::new(ALL);
    configured.world.raid5(3);
    let daemon = Daemon::start(&configured, &[]);
    let served = daemon.wait_for("data", "serving");
    let uuid = served["uuid"].as_str().unwrap();
    configured.write("pinstripe.toml", &format!("{ALL}[[array]]\nname = 'data'\nuuid = '{uuid}'\n"));
    configured.run(&["reload"]).ok();
    daemon.says("the configuration was read again");
    configured.run(&["incremental", "member0"]).ok();
    thread::sleep(Duration::from_secs(2));
    configured.run(&["fail", "data", "member1"]).ok();
    let status = daemon.wait("it is told", |status| status["alerts"][0].is_object());
    assert_eq!(status["arrays"].as_array().unwrap().len(), 1, "{status}");
    assert_eq!(status["alerts"].as_array().unwrap().len(), 1, "{status}");
    assert_eq!(of(&status, "data")["events"]["Fail"], 1, "{status}");
    // Its end is heard.
    configured.kill_server("data");
    daemon.wait("it is served anew", |status| {
        of(status, "data")["state"] == "serving" && of(status, "data")["failures"] == 1
    });
}

#[test]
fn an_entry_that_is_edited_tells_nothing_again() {
    let configured = Configured::new(DATA);
    configured.world.raid5(3);
    let daemon = Daemon::start(&configured, &[]);
    let uuid = daemon.wait_for("data", "serving")["uuid"].as_str().unwrap().to_owned();
    let state = configured.world.path("state").display().to_string();
    let told = |event: &str| {
        let ran = configured.world.run_with(("PINSTRIPE_STATE_DIR", &state), &["events"]);
        ran.out.lines().filter(|line| line.contains(event)).count()
    };
    configured.run(&["fail", "data", "member1"]).ok();
    daemon.wait("it is told", |status| status["alerts"][0].is_object() && told("data: Fail: ") == 1);
    configured.write("pinstripe.toml", &format!("{DATA}uuid = '{uuid}'\n"));
    configured.run(&["reload"]).ok();
    daemon.wait_for("data", "serving");
    configured.run(&["remove", "data", "member1"]).ok();
    configured.run(&["add", "data", "member1", "--force"]).ok();
    daemon.wait("what comes next is told", |_| told("data: RebuildFinished: ") == 1);
    assert_eq!((told("data: Fail: "), told("data: Degraded: ")), (1, 1));
}

#[test]
fn an_entry_that_is_wrong_at_the_start_is_left_out_and_told_and_keeps_no_other_array_from_being_served() {
    let alerts = "[alerts]\nprogram = '@/bin/alert'\n[metrics]\nlisten = '127.0.0.1:0'\n";
    let text = |more: &str| format!("{alerts}{DATA}[[array]]\nname = 'other'\n{more}");
    let configured = Configured::new(&text("shard = 1\n"));
    configured.world.raid5(3);
    configured.program("bin/alert", "#!/bin/sh\necho \"$1 $2 $3\" >>@/told\n");
    let told = || fs::read_to_string(configured.world.path("told")).unwrap_or_default();
    let daemon = Daemon::start(&configured, &[]);
    daemon.wait_for("data", "serving");
    daemon.wait("it is told", |_| told() == "raised Misconfigured other\n");
    let status = daemon.status().unwrap();
    assert_eq!(status["arrays"].as_array().unwrap().len(), 1, "{status}");
    assert!(status["configuration_error"].as_str().unwrap().contains("unknown key \"shard\""), "{status}");
    daemon.says("the configuration has an error: ");
    let address = daemon.says("metrics on http://").split('/').next().unwrap().to_owned();
    assert_eq!(get(&address, "GET /readyz"), (503, "other: its entry is wrong\n".to_owned()));
    let text_of = configured.run(&["status"]).ok().out;
    assert!(
        text_of.contains("alert: other: its entry (") && text_of.contains("pinstripe.toml:"),
        "{text_of}"
    );
    // A new configuration counts as a whole or not at all.
    configured.write("pinstripe.toml", &text("shard = 1\n").replace("name = 'data'", "name = 'gone'"));
    configured.run(&["reload"]).refused(1, &["the configuration was not changed", "shard"]);
    assert_eq!(of(&daemon.status().unwrap(), "data")["state"], "serving");
    // What was told is told once, whichever daemon there is.
    configured.write("pinstripe.toml", &text("shard = 1\n"));
    daemon.signal("TERM");
    assert_eq!(daemon.ended(), Some(0));
    let daemon = Daemon::start(&configured, &[]);
    daemon.wait("the alert stands", |status| status["alerts"][0]["alert"] == "Misconfigured");
    configured.write("pinstripe.toml", &text("shards = 1\n"));
    let said = configured.run(&["reload"]).ok().out;
    assert!(said.contains("other: is started when its members are here"), "{said}");
    let both = "raised Misconfigured other\ncleared Misconfigured other\n";
    daemon.wait("it is over", |_| told() == both);
    let status = daemon.status().unwrap();
    assert_eq!(
        (&status["configuration_error"], &of(&status, "other")["state"]),
        (&Value::Null, &"waiting".into())
    );
    drop(daemon);
    // What the daemon itself goes by is no matter of one entry.
    configured.write("pinstripe.toml", &format!("[web]\nlisten = '0.0.0.0:0'\n{DATA}shard = 1\n"));
    configured.run(&["daemon"]).refused(1, &["shard", "without TLS"]);
    configured.write("pinstripe.toml", &format!("[daemon]\nlog-level = 'x'\n{DATA}shard = 1\n"));
    configured.run(&["daemon"]).refused(1, &["shard", "log-level"]);
    configured.run(&["stop", "data"]).ok();
}

#[test]
fn an_array_that_only_a_person_starts_is_seen_to_while_it_is_served() {
    let configured = Configured::new(&format!("{DATA}auto = false\n"));
    configured.world.raid5(3);
    let daemon = Daemon::start(&configured, &[]);
    assert!(daemon.status().unwrap()["arrays"].as_array().unwrap().is_empty(), "nothing starts it");
    configured.run(&["assemble", "--name", "data"]).ok();
    daemon.wait_for("data", "serving");
    configured.run(&["fail", "data", "member1"]).ok();
    let is_told = |status: &Value| status["alerts"][0]["alert"] == "Degraded";
    daemon.wait("it is told", is_told);
    configured.kill_server("data");
    let status = daemon.wait("it is seen", |status| of(status, "data")["state"] == "waiting");
    assert!(of(&status, "data")["why"].as_str().unwrap().contains("only a person starts it"), "{status}");
    assert!(is_told(&status), "it is no better: {status}");
    configured.run(&["assemble", "--name", "data"]).ok();
    daemon.wait_for("data", "serving");
    configured.run(&["stop", "data"]).ok();
    configured.run(&["reload"]).ok();
    let nothing =
        |status: &Value| ["arrays", "alerts"].iter().all(|all| status[all] == Value::Array(Vec::new()));
    daemon.wait("it is forgotten", nothing);
    assert_eq!(configured.run(&["list"]).ok().out, "no array is served\n");
}

#[test]
fn in_a_container_the_arrays_are_stopped_with_the_daemon() {
    let configured = Configured::new(DATA);
    configured.world.raid5(3);
    let daemon = Daemon::start(&configured, &["--stop-arrays"]);
    daemon.wait_for("data", "serving");
    let mut client = configured.nbd("data");
    assert_eq!(client.write(0, &pattern(3, 4096)), 0);
    daemon.signal("TERM");
    assert_eq!(daemon.ended(), Some(0), "clients keep no container from ending");
    assert_eq!(configured.run(&["list"]).ok().out, "no array is served\n");
    let examined = configured.run(&["examine", "member0"]).ok().out;
    assert!(examined.contains("clean"), "{examined}");
}

/// Each would tell the other's alerts to be over.
#[test]
fn two_daemons_with_folders_of_their_own_for_sockets_do_not_share_their_state() {
    let configured = Configured::new(DATA);
    let daemon = Daemon::start(&configured, &[]);
    let state = configured.world.path("state").display().to_string();
    let other = configured.world.path("other");
    fs::create_dir(&other).unwrap();
    let mut command = configured.world.command(&["daemon"]);
    command.env("PINSTRIPE_CONFIG", configured.world.path("pinstripe.toml"));
    command.env("PINSTRIPE_STATE_DIR", &state).env("PINSTRIPE_RUNTIME_DIR", &other);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() >= PATIENCE {
            child.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(50));
    }
    let ran = crate::world::Ran::of(&child.wait_with_output().unwrap());
    ran.refused(1, &["state/state.lock locked", "PINSTRIPE_STATE_DIR", "nothing was done"]);
    daemon.status().unwrap();
}

#[test]
fn an_array_without_a_spare_gets_one_of_its_group() {
    let configured = Configured::new(&format!(
        "{SCAN}spare-group = 'shelf'\n[[array]]\nname = 'data'\nmembers = ['@/member[0-2]']\n\
         [[array]]\nname = 'other'\nmembers = ['@/member[3-6]']\n"
    ));
    let members: Vec<String> =
        (0..7).map(|number| configured.world.file(&format!("member{number}"), MEMBER_BYTES)).collect();
    let create = |name: &str, members: &[String]| {
        configured.world.create(&["--level", "5", "--name", name, "--assume-clean"], members).ok();
    };
    create("data", &members[..3]);
    create("other", &members[3..6]);
    let daemon = Daemon::start(&configured, &[]);
    daemon.wait_for("data", "serving");
    daemon.wait_for("other", "serving");
    configured.run(&["add", "other", "member6"]).ok();
    let data = pattern(4, 128 << 10);
    assert_eq!(configured.nbd("data").write(0, &data), 0);
    let begun = Instant::now();
    configured.run(&["fail", "data", "member1"]).ok();
    let rebuilt = || {
        let detail = configured.run(&["detail", "data", "--json"]).ok().json();
        let slot = &detail["members"][1];
        slot["state"] == "in-sync"
            && slot["device"].as_str().is_some_and(|device| device.ends_with("member6"))
    };
    while !rebuilt() {
        assert!(begun.elapsed() < PATIENCE, "{}", daemon.log());
        thread::sleep(Duration::from_millis(200));
    }
    assert!(begun.elapsed() > Duration::from_secs(9), "a member may come back");
    daemon.says("member6, a spare of other");
    daemon.says("other: has given its spare");
    assert_eq!(configured.nbd("data").read(0, 128 << 10), data);
    configured.run(&["check", "data"]).ok();
    drop(daemon);

    // It is found at the next start, though the entry of the array names others.
    for array in ["data", "other"] {
        configured.run(&["stop", array]).ok();
    }
    for started in configured.run(&["assemble", "--scan", "--json"]).ok().json().as_array().unwrap() {
        assert_eq!(
            (&started["state"], &started["degraded"]),
            (&"started".into(), &false.into()),
            "{started}"
        );
    }
    assert!(rebuilt());
    assert_eq!(configured.nbd("data").read(0, 128 << 10), data);
}

#[test]
fn parity_is_checked_when_the_configuration_says_so_and_what_was_found_outlives_the_daemon() {
    let hour: u32 = {
        let out = std::process::Command::new("date").arg("+%H").output().unwrap().stdout;
        String::from_utf8(out).unwrap().trim().parse().unwrap()
    };
    let closed = format!("check-window = '{:02}:00-{:02}:00'\n", (hour + 3) % 24, (hour + 4) % 24);
    let every = DATA.replace("shards = 1\n", "shards = 1\ncheck-every = '30d'\n");
    let configured = Configured::new(&format!("{every}{closed}"));
    configured.world.raid5(3);
    let daemon = Daemon::start(&configured, &[]);
    daemon.wait_for("data", "serving");
    // Parity of the last stripes, behind the data of the array's superblocks.
    configured.world.poke("member0", MEMBER_BYTES - (64 << 10), &pattern(5, 4096));
    thread::sleep(Duration::from_secs(2));
    assert_eq!(of(&daemon.status().unwrap(), "data")["checked"], Value::Null, "its window is closed");

    configured.write("pinstripe.toml", &every);
    configured.run(&["reload"]).ok();
    let status = daemon.wait("it is checked", |status| of(status, "data")["checked"].is_u64());
    assert_eq!(of(&status, "data")["checked_mismatched_sectors"], 8, "{status}");
    daemon.says("data: its check is complete: 8 sectors");
    let first = of(&status, "data")["checked"].clone();
    daemon.signal("TERM");
    assert_eq!(daemon.ended(), Some(0));

    let daemon = Daemon::start(&configured, &[]);
    daemon.wait_for("data", "serving");
    thread::sleep(Duration::from_secs(2));
    assert_eq!(of(&daemon.status().unwrap(), "data")["checked"], first, "it isn't due again");
    assert_eq!(daemon.log().matches("its check is complete").count(), 1);
    daemon.signal("TERM");
    assert_eq!(daemon.ended(), Some(0));

    // A check that isn't over goes on where it was: what is wrong before that was found before.
    let examined = configured.run(&["examine", "member0", "--json"]).ok().out;
    let (_, number) = examined.split_once("\"data_sectors\": ").unwrap();
    let sectors: u64 = number.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
    configured.world.poke("member1", MEMBER_BYTES - sectors * 512, &pattern(6, 4096));
    let record = fs::read_dir(configured.world.path("state")).unwrap().flatten().map(|entry| entry.path());
    let record =
        record.into_iter().find(|path| path.extension().is_some_and(|kind| kind == "check")).unwrap();
    let mut kept: Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    (kept["open"], kept["next_sector"], kept["mismatched_sectors"]) =
        (true.into(), (sectors / 2).into(), 16.into());
    fs::write(&record, kept.to_string()).unwrap();
    let daemon = Daemon::start(&configured, &[]);
    let status =
        daemon.wait("the rest is checked", |status| of(status, "data")["checked_mismatched_sectors"] == 24);
    assert_eq!(of(&status, "data")["state"], "serving", "{status}");
}

/// What a person does about a mismatch counts at once, and not when the next check is due.
#[test]
fn an_alert_of_parity_is_over_when_a_repair_has_made_it_match_and_begins_with_a_check_by_hand() {
    let every = DATA.replace("shards = 1\n", "shards = 1\ncheck-every = '30d'\n");
    let configured = Configured::new(&every);
    configured.world.raid5(3);
    configured.world.poke("member0", MEMBER_BYTES - (64 << 10), &pattern(5, 4096));
    let daemon = Daemon::start(&configured, &[]);
    let is_told = |status: &Value| {
        status["alerts"].as_array().unwrap().iter().any(|alert| alert["alert"] == "Mismatch")
    };
    daemon.wait("it is told", is_told);
    // What compares a part says nothing of the rest.
    assert_eq!(configured.run(&["check", "data", "--to", "8"]).status, 0);
    thread::sleep(Duration::from_secs(6));
    assert!(is_told(&daemon.status().unwrap()));
    configured.run(&["repair", "data"]).ok();
    let status = daemon.wait("it is over", |status| !is_told(status));
    assert_eq!(of(&status, "data")["checked_mismatched_sectors"], 0, "{status}");
    daemon.signal("TERM");
    assert_eq!(daemon.ended(), Some(0));
    configured.run(&["stop", "data"]).ok();

    configured.world.poke("member1", MEMBER_BYTES - (64 << 10), &pattern(6, 4096));
    let daemon = Daemon::start(&configured, &[]);
    daemon.wait_for("data", "serving");
    thread::sleep(Duration::from_secs(1));
    assert!(!is_told(&daemon.status().unwrap()), "it outlives the daemon, and isn't due again");
    assert_eq!(configured.run(&["check", "data"]).status, 1);
    daemon.wait("it is told again", is_told);
}

#[test]
fn a_member_whose_disk_says_that_it_fails_is_replaced_by_a_spare() {
    let configured = Configured::new("");
    let made: Vec<Option<LoopDevice>> = configured
        .world
        .members(4)
        .iter()
        .map(|file| LoopDevice::new(&configured.world, file, &[]))
        .collect();
    let Some(devices) = made.into_iter().collect::<Option<Vec<LoopDevice>>>() else { return };
    let paths: Vec<String> = devices.iter().map(|device| device.path.clone()).collect();
    configured.world.create(&["--level", "5", "--name", "data", "--assume-clean"], &paths[..3]).ok();
    let list = paths.iter().map(|path| format!("'{path}'")).collect::<Vec<_>>().join(", ");
    configured.write(
        "pinstripe.toml",
        &format!("[scan]\ndevices = [{list}]\n[[array]]\nname = 'data'\nshards = 1\nhealth = 'replace'\n"),
    );
    // A smartctl that knows of one bad disk.
    let bad = format!(
        "#!/bin/sh\nfor last; do :; done\necho $last >>@/asked\n[ $last = {} ] && p=false || p=true\n",
        paths[1]
    );
    let says = "echo '{\"smart_status\":{\"passed\":'$p'},\"temperature\":{\"current\":40}}'\n";
    configured.program("bin/smartctl", &(bad + says));
    let served = configured.world.serve(&["--shards", "1"], &paths[..3]);
    configured.run(&["add", "data", &paths[3]]).ok();

    let daemon = Daemon::start(&configured, &[]);
    let status = daemon.wait("its disks were asked", |status| of(status, "data")["disks"][3].is_object());
    assert_eq!(of(&status, "data")["disks"][0]["temperature_celsius"], 40, "{status}");
    assert_eq!(of(&status, "data")["disks"][0]["failing"], Value::Array(Vec::new()), "{status}");
    let begun = Instant::now();
    loop {
        let detail = configured.run(&["detail", "data", "--json"]).ok().json();
        if detail["members"][1]["device"] == paths[3].as_str() {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{detail}\n{}", daemon.log());
        thread::sleep(Duration::from_millis(100));
    }
    daemon.says(&format!(
        "{} is failing (its own judgement is that it fails), and is being replaced by {}",
        paths[1], paths[3]
    ));
    // What is done every half second would have been done.
    thread::sleep(Duration::from_millis(1500));
    let asked = fs::read_to_string(configured.world.path("asked")).unwrap();
    assert_eq!(asked.lines().count(), 4, "each disk is asked once in an hour: {asked}");
    drop(daemon);
    configured.run(&["stop", "data"]).ok();
    assert_eq!(served.ended(), 0);
}

#[test]
fn an_alert_is_sent_once_when_it_begins_and_once_when_it_is_over() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let (sender, posts) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = sender.send(post(&mut stream.unwrap()));
        }
    });
    let alerts = format!("[alerts]\nprogram = '@/bin/alert'\nwebhook = 'http://{address}/hook'\n");
    let configured = Configured::new(&format!("{alerts}{DATA}"));
    configured.world.raid5(3);
    configured.program("bin/alert", "#!/bin/sh\necho \"$1 $2 $3\" >>@/told\n");
    let told = || fs::read_to_string(configured.world.path("told")).unwrap_or_default();
    let daemon = Daemon::start(&configured, &[]);
    daemon.wait_for("data", "serving");
    configured.run(&["fail", "data", "member1"]).ok();
    let status = daemon.wait("it is told", |status| status["alerts"][0].is_object());
    assert_eq!(status["alerts"][0]["alert"], "Degraded", "{status}");
    let raised = posts.recv_timeout(PATIENCE).unwrap();
    assert_eq!(
        (&raised["alert"], &raised["state"], &raised["array"]),
        (&"Degraded".into(), &"raised".into(), &"data".into())
    );
    let text = configured.run(&["status"]).ok().out;
    assert!(text.contains("alert: data: the array is degraded: slot 1"), "{text}");

    // Another daemon knows that it was told; one that dies before that is kept may tell it twice. What is
    // still to be sent is kept with it.
    let book = || fs::read_to_string(configured.world.path("state/alerts.json")).unwrap_or_default();
    daemon.wait("it is kept", |_| book().contains("Degraded") && book().contains("\"unsent\":[]"));
    daemon.signal("KILL");
    daemon.ended();
    let daemon = Daemon::start(&configured, &[]);
    daemon.wait_for("data", "serving");
    thread::sleep(Duration::from_secs(6));
    configured.run(&["remove", "data", "member1"]).ok();
    configured.run(&["add", "data", "member1", "--force"]).ok();
    daemon.wait("it is over", |status| status["alerts"] == Value::Array(Vec::new()));
    let cleared = posts.recv_timeout(PATIENCE).unwrap();
    assert_eq!((&cleared["alert"], &cleared["state"]), (&"Degraded".into(), &"cleared".into()));
    // The end waits for the program, and not without end.
    daemon.wait("the program has told it", |_| told().contains("cleared"));
    daemon.signal("TERM");
    daemon.ended();
    assert_eq!(told(), "raised Degraded data\ncleared Degraded data\n");

    let state = configured.world.path("state").display().to_string();
    let history = |options: &[&str]| {
        let ran =
            configured.world.run_with(("PINSTRIPE_STATE_DIR", &state), &[&["events"], options].concat());
        ran.ok().out
    };
    let all = history(&[]);
    let order =
        ["data: Started: ", "! data: Fail: ", "! data: Degraded: ", "data: DegradedCleared: is over: "];
    let places: Vec<usize> =
        order.iter().map(|words| all.find(words).unwrap_or_else(|| panic!("{words}: {all}"))).collect();
    assert!(places.is_sorted(), "{all}");
    assert!(!history(&["--alarming"]).contains("Started"));
    let line = history(&["data", "--json", "--since", "1h"]);
    assert!(serde_json::from_str::<Value>(line.lines().next().unwrap()).unwrap()["time"].is_u64(), "{line}");
    let events = |array: &str| configured.world.run_with(("PINSTRIPE_STATE_DIR", &state), &["events", array]);
    events("other").refused(1, &["other: no array of this name has a history", "the history is of data"]);
    // One that is there has had no event yet.
    let none = configured.world.path("none").display().to_string();
    fs::create_dir_all(&none).unwrap();
    fs::write(configured.world.path("none/events.jsonl"), "").unwrap();
    let events = |array: &str| configured.world.run_with(("PINSTRIPE_STATE_DIR", &none), &["events", array]);
    assert_eq!(events("data").ok().out, "");
    configured.run(&["stop", "data"]).ok();
    events("data").refused(1, &["the history is of no array yet"]);
}

#[test]
fn events_says_nothing_where_nothing_has_happened_and_that_no_daemon_runs_where_none_does() {
    let configured = Configured::new(DATA);
    let events = || {
        let state = configured.world.path("state").display().to_string();
        configured.run_with(("PINSTRIPE_STATE_DIR", &state), &["events"])
    };
    events().refused(1, &["there is no history in", "`pinstripe daemon` keeps it"]);
    let _daemon = Daemon::start(&configured, &["--no-start"]);
    assert_eq!(events().ok().out, "");
}

/// As the package's units have it: each connection to a socket is the standard input and output of a process.
#[test]
fn a_daemon_has_programs_run_by_what_listens_on_a_socket() {
    let configured = Configured::new(&format!("[alerts]\nprogram = '@/bin/alert'\n{DATA}"));
    configured.world.raid5(3);
    configured.program("bin/alert", "#!/bin/sh\necho \"$1 $2 $3 by $BY\" >>@/told\n");
    let socket = configured.world.path("alert.sock");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let daemon = Daemon::start(&configured, &["--alerts-by", socket.to_str().unwrap()]);
    daemon.wait_for("data", "serving");
    configured.run(&["fail", "data", "member1"]).ok();
    let stream = listener.accept().unwrap().0;
    let mut sender = configured.world.command(&["daemon", "--send-alert"]);
    sender.env("PINSTRIPE_CONFIG", configured.world.path("pinstripe.toml")).env("BY", "another");
    let output = std::os::fd::OwnedFd::from(stream.try_clone().unwrap());
    sender.stdin(std::os::fd::OwnedFd::from(stream)).stdout(output);
    // It keeps the ends of the connection.
    let mut child = sender.spawn().unwrap();
    drop(sender);
    assert!(child.wait().unwrap().success());
    let told = || fs::read_to_string(configured.world.path("told")).unwrap_or_default();
    assert_eq!(told(), "raised Degraded data by another\n");
    let book = || fs::read_to_string(configured.world.path("state/alerts.json")).unwrap_or_default();
    daemon.wait("it is settled", |_| book().contains("Degraded") && book().contains("\"unsent\":[]"));
    drop(daemon);
    configured.run(&["stop", "data"]).ok();
    let nothing = configured.world.run(&["daemon", "--send-alert"]);
    nothing.refused(1, &["standard input is no alert of a daemon's"]);
}

#[test]
fn a_test_alert_goes_by_each_way_that_is_configured_and_what_fails_is_said() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let webhook = format!("webhook = 'http://{}/hook'\n", listener.local_addr().unwrap());
    // What is wrong elsewhere keeps no alert back.
    let configured =
        Configured::new(&format!("[alerts]\nprogram = '@/bin/alert'\n{webhook}[[array]]\nshard = 2\n"));
    configured.program("bin/alert", "#!/bin/sh\necho \"$1 $2 $3 $4.\" >>@/told\ncat >>@/told\n");
    let hook = thread::spawn(move || post(&mut listener.accept().unwrap().0));
    let said = configured.run(&["daemon", "--test-alert"]).ok().out;
    assert!(said.contains("bin/alert\n") && said.contains("sent by the webhook of 127.0.0.1"), "{said}");
    let told = fs::read_to_string(configured.world.path("told")).unwrap();
    assert!(told.starts_with("raised Test test .\n") && told.contains("nothing is wrong"), "{told}");
    let posted = hook.join().unwrap();
    assert_eq!((&posted["alert"], &posted["array"]), (&"Test".into(), &"test".into()), "{posted}");

    // The other way is tried all the same.
    configured.program("bin/alert", "#!/bin/sh\necho mailbox full >&2\nexit 3\n");
    configured.run(&["daemon", "--test-alert"]).refused(1, &["mailbox full", "webhook", "could not be sent"]);
    let by = ["daemon", "--test-alert", "--alerts-by", "nowhere.sock"];
    configured.run(&by).refused(1, &["nowhere.sock", "webhook"]);
    configured.write("pinstripe.toml", DATA);
    configured.run(&["daemon", "--test-alert"]).refused(1, &["no program, mail or webhook"]);
}

#[test]
fn an_alert_that_could_not_be_sent_is_sent_by_the_next_daemon() {
    // Nothing listens there for now.
    let port = Port::new();
    let address = port.address;
    let configured = Configured::new(&format!("[alerts]\nwebhook = 'http://{address}/hook'\n{DATA}"));
    configured.world.raid5(3);
    let daemon = Daemon::start(&configured, &[]);
    daemon.wait_for("data", "serving");
    configured.run(&["fail", "data", "member1"]).ok();
    daemon.says("an alert could not be sent by the webhook of");
    daemon.signal("TERM");
    assert_eq!(daemon.ended(), Some(0));

    let listener = port.listen();
    let (sender, posts) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = sender.send(post(&mut stream.unwrap()));
        }
    });
    let daemon = Daemon::start(&configured, &[]);
    let raised = posts.recv_timeout(PATIENCE).unwrap_or_else(|error| panic!("{error}: {}", daemon.log()));
    assert_eq!((&raised["alert"], &raised["state"]), (&"Degraded".into(), &"raised".into()));
    drop(daemon);
    configured.run(&["stop", "data"]).ok();
}

#[test]
fn an_alert_of_an_array_that_is_configured_no_more_is_over() {
    let alerts = "[alerts]\nprogram = '@/bin/alert'\n";
    let configured = Configured::new(&format!("{alerts}{DATA}"));
    configured.world.raid5(3);
    configured.program("bin/alert", "#!/bin/sh\necho \"$1 $2 $3\" >>@/told\n");
    let daemon = Daemon::start(&configured, &[]);
    daemon.wait_for("data", "serving");
    configured.run(&["fail", "data", "member1"]).ok();
    daemon.wait("it is told", |status| status["alerts"][0].is_object());
    configured.write("pinstripe.toml", &format!("{alerts}{SCAN}"));
    configured.run(&["reload"]).ok();
    let told = || fs::read_to_string(configured.world.path("told")).unwrap_or_default();
    daemon.wait("it is over", |_| told() == "raised Degraded data\ncleared Degraded data\n");
    let book = || fs::read_to_string(configured.world.path("state/alerts.json"));
    daemon.wait("it is kept", |_| book().is_ok_and(|book| !book.contains("Degraded")));
    drop(daemon);
    configured.run(&["stop", "data"]).ok();
}

/// The body of a request, which is answered.
fn post(stream: &mut std::net::TcpStream) -> Value {
    use std::io::{BufRead, BufReader, Read, Write};
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    stream.write_all(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n").unwrap();
    serde_json::from_slice(&body).unwrap()
}

#[test]
fn what_is_known_is_there_for_prometheus_and_nothing_else_is() {
    let configured = Configured::new(&format!("[metrics]\nlisten = '127.0.0.1:0'\n{DATA}"));
    configured.world.raid5(3);
    let daemon = Daemon::start(&configured, &[]);
    daemon.wait_for("data", "serving");
    let address = daemon.says("metrics on http://").split('/').next().unwrap().to_owned();
    assert_eq!(get(&address, "GET /healthz"), (200, "ok\n".to_owned()));
    assert_eq!(get(&address, "GET /readyz"), (200, "ok\n".to_owned()));
    let begun = Instant::now();
    let text = loop {
        let (status, text) = get(&address, "GET /metrics");
        assert_eq!(status, 200);
        if text.contains("pinstripe_array_degraded{array=\"data\"} 0") {
            break text;
        }
        assert!(begun.elapsed() < PATIENCE, "{text}");
        thread::sleep(Duration::from_millis(200));
    };
    promtool(&["check", "metrics"], &text);
    let dist = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/prometheus");
    promtool(&["check", "rules", &format!("{dist}/pinstripe.rules.yml")], "");
    promtool(&["test", "rules", &format!("{dist}/pinstripe.test.yml")], "");
    let expressions = configured.world.path("dashboard.yml");
    fs::write(&expressions, rules_of_dashboard()).unwrap();
    promtool(&["check", "rules", &expressions.display().to_string()], "");
    assert!(text.contains("pinstripe_member_in_sync{array=\"data\",slot=\"2\",device=\""), "{text}");
    assert_eq!(get(&address, "POST /metrics").0, 405);
    assert_eq!(get(&address, "GET /").0, 404);
    // A page of another site has the browser ask so, by the name of that site.
    assert_eq!(get_as(&address, "GET /metrics", "rebound.example").0, 403);
    assert_eq!(get_as(&address, "GET /metrics", "localhost").0, 200);
    // One that says nothing keeps none of the others waiting.
    let silent: Vec<_> = (0..8).map(|_| std::net::TcpStream::connect(&address).unwrap()).collect();
    assert_eq!(get(&address, "GET /healthz").0, 200);
    drop(silent);

    fs::rename(configured.world.path("member0"), configured.world.path("away")).unwrap();
    fs::rename(configured.world.path("member1"), configured.world.path("gone")).unwrap();
    configured.kill_server("data");
    daemon.wait_for("data", "waiting");
    assert_eq!(get(&address, "GET /readyz"), (503, "data: waiting\n".to_owned()));
    configured.write("pinstripe.toml", DATA);
    configured.run(&["reload"]).ok();
    daemon.wait("it listens no more", |_| std::net::TcpStream::connect(&address).is_err());
}

/// What the dashboard asks for, as rules, so that Prometheus says whether it understands it.
fn rules_of_dashboard() -> String {
    let text = include_str!("../../../../dist/grafana/pinstripe.json");
    let dashboard: Value = serde_json::from_str(text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    let expressions = targets.map(|target| target["expr"].as_str().unwrap());
    // Grafana puts these in.
    let filled = expressions.map(|text| text.replace("$__rate_interval", "1m").replace('$', ""));
    let rules = filled
        .enumerate()
        .map(|(number, text)| format!("  - record: r{number}\n    expr: {}\n", Value::from(text)));
    let rules: Vec<String> = rules.collect();
    assert!(rules.len() > 30);
    format!("groups:\n- name: dashboard\n  rules:\n{}", rules.concat())
}

/// What a client does raises the counts of that kind of operation, at the right times, and of no other.
#[test]
fn what_clients_wait_for_is_there_for_prometheus() {
    const WRITES: u64 = 7;
    let text = format!("[metrics]\nlisten = '127.0.0.1:0'\n{DATA}limit-iops = 10\nlimit-burst = 0\n");
    let configured = Configured::new(&text);
    configured.world.raid5(3);
    let daemon = Daemon::start(&configured, &[]);
    let control = daemon.wait_for("data", "serving")["control"].as_str().unwrap().to_owned();
    let address = daemon.says("metrics on http://").split('/').next().unwrap().to_owned();
    let detail = || configured.run(&["detail", &control, "--json"]).ok().json();
    let uri = detail()["nbd"][0].as_str().unwrap().to_owned();
    let mut client = Client::connect(std::path::Path::new(uri.split_once("socket=").unwrap().1));
    // All at once: each waits for those before it, and none for this test, which may be slow.
    let data = pattern(7, 4096);
    let writes: Vec<u8> =
        (0..WRITES).flat_map(|block| [header(1, block << 12, data.len()), data.clone()].concat()).collect();
    client.say(&writes);
    (0..WRITES).for_each(|_| assert_eq!(client.answer(), 0));
    let family = "pinstripe_array_operation_duration_seconds";
    let value = |text: &str, sample: &str| -> f64 {
        let labels = format!("{family}_{sample}");
        let line = text.lines().find_map(|line| line.strip_prefix(&labels));
        line.unwrap_or_else(|| panic!("{labels} is missing in {text}")).trim().parse().unwrap()
    };
    let begun = Instant::now();
    let text = loop {
        let (_, text) = get(&address, "GET /metrics");
        if text.contains(&format!("{family}_count{{array=\"data\",operation=\"write\"}} {WRITES}\n")) {
            break text;
        }
        assert!(begun.elapsed() < PATIENCE, "{text}");
        thread::sleep(Duration::from_millis(200));
    };
    promtool(&["check", "metrics"], &text);
    let write = "{array=\"data\",operation=\"write\"";
    let bucket = |bound| value(&text, &format!("bucket{write},le=\"{bound}\"}}"));
    assert!((bucket("+Inf") - 7.0).abs() < 0.1 && bucket("16.777216") > 6.9, "{text}");
    // Each waits a tenth of a second more than the one before. It is timed from when it has come.
    assert!(bucket("0.032768") < 3.1, "those behind the first ones waited: {text}");
    let sum = value(&text, &format!("sum{write}}}"));
    assert!((0.55..60.0).contains(&sum), "{sum}");
    for other in ["read", "flush", "discard", "write_zeroes"] {
        let count = value(&text, &format!("count{{array=\"data\",operation=\"{other}\"}}"));
        assert!(count.abs() < 0.1, "{other}: {count}");
    }
    let words = configured.run(&["detail", &control]).ok().out;
    assert!(words.contains("write latency") && words.contains(", of 7\n"), "{words}");
    assert!(!words.contains("read latency"), "{words}");
}

/// Runs Prometheus' own checker, of the package prometheus.
fn promtool(arguments: &[&str], input: &str) {
    use std::io::Write;
    let mut promtool = std::process::Command::new("promtool");
    promtool.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child =
        promtool.spawn().expect("promtool, of the package prometheus; cargo xtask test unpacks it");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && !said.contains("use base unit"), "{arguments:?}: {said}");
}

/// Status and body of an answer.
fn get(address: &str, request: &str) -> (u16, String) {
    get_as(address, request, address)
}

/// The same of what is called otherwise.
fn get_as(address: &str, request: &str, host: &str) -> (u16, String) {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    stream.write_all(format!("{request} HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// An upgrade starts the daemon anew.
#[test]
fn what_a_person_has_stopped_is_stopped_for_the_next_daemon_too_where_something_else_starts_it() {
    let configured = Configured::new(DATA);
    let members = configured.world.raid5(3);
    let daemon = Daemon::start(&configured, &["--no-start"]);
    let served = configured.world.serve(&["--shards", "1"], &members);
    daemon.wait_for("data", "serving");
    configured.run(&["stop", "data"]).ok();
    daemon.wait_for("data", "stopped");
    served.ended();
    daemon.signal("TERM");
    daemon.ended();
    let daemon = Daemon::start(&configured, &["--no-start"]);
    daemon.wait("it has looked", |status| !status["arrays"].as_array().unwrap().is_empty());
    assert_eq!(of(&daemon.status().unwrap(), "data")["state"], "stopped");
    let served = configured.world.serve(&["--shards", "1"], &members);
    daemon.wait_for("data", "serving");
    daemon.signal("TERM");
    daemon.ended();
    served.signal("KILL");
    served.ended();
    let daemon = Daemon::start(&configured, &["--no-start"]);
    daemon.wait_for("data", "waiting");
}

/// `systemctl restart` ends a server as a person's `stop` does.
#[test]
fn an_array_whose_restart_has_failed_is_not_one_that_a_person_has_stopped() {
    let configured = Configured::new(DATA);
    let members = configured.world.raid5(3);
    configured.program("bin/systemctl", "#!/bin/sh\necho >>@/asked\ncat @/unit\n");
    let unit = |state: &str| configured.write("unit", &format!("SubState=x\nActiveState={state}\n"));
    let is_served = |daemon: &Daemon| {
        unit("active");
        let served = configured.world.serve(&["--shards", "1"], &members);
        configured.run(&["reload"]).ok();
        daemon.wait_for("data", "serving");
        served
    };
    let is_stopped = |daemon: &Daemon, served: Server| {
        unit("inactive");
        configured.run(&["stop", "data"]).ok();
        served.ended();
        daemon.wait_for("data", "stopped");
    };
    let daemon = Daemon::start(&configured, &["--no-start"]);
    let served = is_served(&daemon);
    is_stopped(&daemon, served);
    // It has failed beside this server, before a person has stopped that.
    unit("failed\nInactiveExitTimestampMonotonic=1");
    for _ in 0..2 {
        let _ = fs::remove_file(configured.world.path("asked"));
        configured.run(&["reload"]).ok();
        wait_until("asked", || configured.world.path("asked").exists());
    }
    assert_eq!(of(&daemon.status().unwrap(), "data")["state"], "stopped");
    unit("failed");
    configured.run(&["reload"]).ok();
    daemon.wait_for("data", "waiting");
    let served = is_served(&daemon);
    is_stopped(&daemon, served);
    daemon.signal("TERM");
    daemon.ended();
    // The next one knows that it was stopped, and asks once more.
    unit("activating");
    let daemon = Daemon::start(&configured, &["--no-start"]);
    daemon.wait_for("data", "waiting");
}

/// systemd is slow to answer where a machine is busy, such as in an upgrade.
#[test]
fn the_daemon_is_alive_while_it_asks_systemd_for_the_units_of_several_arrays() {
    const ARRAYS: usize = 3;
    let entry = |number: usize| {
        format!("[[array]]\nname = 'data{number}'\nmembers = ['@/member{number}-[0-2]']\nshards = 1\n")
    };
    let configured = Configured::new(&format!("{SCAN}{}", (0..ARRAYS).map(entry).collect::<String>()));
    let world = &configured.world;
    let daemon = Daemon::start(&configured, &["--no-start"]);
    for number in 0..ARRAYS {
        let name = format!("data{number}");
        let file = |slot| world.file(&format!("member{number}-{slot}"), MEMBER_BYTES);
        let members: Vec<String> = (0..3).map(file).collect();
        world.create(&["--level", "5", "--name", &name, "--assume-clean"], &members).ok();
        let served = world.serve(&["--shards", "1"], &members);
        daemon.wait_for(&name, "serving");
        configured.run(&["stop", &name]).ok();
        served.ended();
        daemon.wait_for(&name, "stopped");
    }
    drop(daemon);
    configured.program("bin/systemctl", "#!/bin/sh\necho >>@/asked\nsleep 2\n");
    let notify = world.path("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&notify).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let notify = notify.display().to_string();
    let asked = world.path("asked");
    let signs = thread::spawn(move || {
        // From the first sign on: a program takes its time to start.
        let (mut last, mut longest, mut more) = (None::<Instant>, Duration::ZERO, 3);
        while more > 0 {
            let mut told = [0; 4096];
            let length = socket.recv(&mut told).unwrap();
            if String::from_utf8_lossy(&told[..length]).contains("WATCHDOG=1") {
                longest = longest.max(last.replace(Instant::now()).map_or(Duration::ZERO, |at| at.elapsed()));
                let has_asked = fs::read_to_string(&asked).is_ok_and(|asked| asked.len() >= ARRAYS);
                more -= i32::from(has_asked);
            }
        }
        longest
    });
    let variables = [("NOTIFY_SOCKET", notify.as_str()), ("WATCHDOG_USEC", "60000000")];
    let daemon = Daemon::start_with(&configured, &["--no-start"], &variables);
    let longest = signs.join().unwrap();
    assert!(longest < Duration::from_secs(5), "{longest:?}");
    let status = daemon.status().unwrap();
    assert!(
        (0..ARRAYS).all(|number| of(&status, &format!("data{number}"))["state"] == "stopped"),
        "{status}"
    );
}

#[test]
fn what_something_else_starts_is_watched_and_not_started() {
    let configured = Configured::new(SCAN);
    let members = configured.world.raid5(3);
    let daemon = Daemon::start(&configured, &["--no-start"]);
    configured.write("pinstripe.toml", DATA);
    let said = configured.run(&["reload"]).ok().out;
    assert!(said.contains("daemon-reload`, then `systemctl start pinstripe@data.service`"), "{said}");
    assert!(!said.contains("is started"), "{said}");
    let waits = daemon.wait_for("data", "waiting");
    assert_eq!(waits["why"], "is for the service manager to start");
    let would = configured.run(&["incremental", "member0", "--json"]).ok().json();
    assert_eq!(would["state"], "started", "no daemon would: {would}");
    configured.run(&["stop", "data"]).ok();
    let served = configured.world.serve(&["--shards", "1"], &members);
    daemon.wait_for("data", "serving");
    served.signal("KILL");
    served.ended();
    daemon.wait("it waits again", |status| {
        of(status, "data")["failures"] == 1 && of(status, "data")["state"] == "waiting"
    });
    assert_eq!(configured.run(&["list"]).ok().out, "no array is served\n");
}
