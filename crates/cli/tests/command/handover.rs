//! What becomes of an array whose server is to be another program, where not all is well.

use std::{
    fs,
    io::{BufRead, BufReader, Write},
    os::unix::net::UnixStream,
    process::{Child, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::{Value, json};

use crate::{
    fuse::may_mount,
    nbd::{Client, header, pattern},
    tls::Authority,
    upgrade::{control, ends_well, program, talk, version},
    world::{MEMBER_BYTES, PATIENCE, Server, World, wait_until},
};

const SECRET: &str = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:";
const PINSTRIPE: &str = env!("CARGO_BIN_EXE_pinstripe");

/// An upgrade that is refused before anything happens: the same run serves on.
fn refused(world: &World, words: &[&str]) {
    let before = version(world);
    let words = [words, &["nothing was changed"]].concat();
    world.run(&["upgrade", "data"]).refused(1, &words);
    assert_eq!(version(world), before);
}

fn begin_upgrade(world: &World, program: &str) -> Child {
    let mut command = world.command(&["upgrade", "data", "--program", program]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until the server leaves its clients to the next program.
fn until_it_leaves(world: &World) {
    let begun = Instant::now();
    // It takes no connections any more, so it doesn't answer new ones.
    loop {
        let mut stream = UnixStream::connect(world.path("pinstripe/data.sock")).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        stream.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"version\"}\n").unwrap();
        if BufReader::new(stream).read_line(&mut String::new()).is_err() {
            return;
        }
        assert!(begun.elapsed() < PATIENCE);
        thread::sleep(Duration::from_millis(10));
    }
}

/// A client that has asked for more than it takes, for which the server waits a minute: until the client
/// goes.
fn greedy(server: &Server) -> Client {
    let mut client = Client::connect(&server.nbd());
    client.say(&header(0, 0, 1 << 20).repeat(32));
    // The first ones have been taken when another connection has been answered.
    Client::connect(&server.nbd()).flush();
    client
}

#[test]
fn an_array_without_its_journal_serves_on() {
    let world = World::new();
    let members = world.members(3);
    let journal = world.file("log", MEMBER_BYTES);
    let create = ["--level", "5", "--name", "data", "--assume-clean", "--write-journal", journal.as_str()];
    world.create(&create, &members).ok();
    let server = world.serve(&[], &[members, vec![journal]].concat());
    let mut client = Client::connect(&server.nbd());
    assert_eq!(client.write(0, &pattern(1, 1 << 20)), 0);
    // With it, it is taken over as it works now.
    world.run(&["grow", "data", "--journal-mode", "write-back"]).ok();
    world.run(&["upgrade", "data"]).ok();
    assert_eq!(world.run(&["detail", "data", "--json"]).ok().json()["journal"]["mode"], "write-back");
    assert!(client.read(0, 1 << 20) == pattern(1, 1 << 20));
    world.run(&["fail", "data", "journal"]).ok();
    refused(&world, &["lost its journal", "--force"]);
    assert!(client.read(0, 1 << 20) == pattern(1, 1 << 20));
}

#[test]
fn an_array_that_no_start_would_take_serves_on() {
    // A log isn't in use before all is in sync.
    for policy in ["bitmap", "ppl"] {
        let world = World::new();
        let members = world.members(3);
        world.create(&["--level", "5", "--name", "data", "--consistency-policy", policy], &members).ok();
        let server = world.serve(&["--sync-speed-min", "1", "--sync-speed-max", "1"], &members);
        let mut client = Client::connect(&server.nbd());
        assert_eq!(client.write(0, &pattern(1, 1 << 20)), 0);
        world.run(&["fail", "data", "0"]).ok();
        refused(&world, &["a member is missing", "a start would be refused"]);
        assert!(client.read(0, 1 << 20) == pattern(1, 1 << 20));
    }
}

#[test]
fn what_is_only_read_by_force_is_read_on() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&[], &members);
    assert_eq!(Client::connect(&server.nbd()).write(0, &pattern(1, 1 << 20)), 0);
    let mut client = Client::connect(&server.nbd());
    for block in 0..64 {
        assert_eq!(client.write(block << 16, &pattern(1, 4096)), 0);
    }
    server.kill(&world, &members);
    let two = &members[..2];
    world.serve_refused(&[], two).refused(1, &["not stopped cleanly"]);
    let server = world.serve(&["--force", "--read-only"], two);
    let mut client = Client::connect(&server.nbd());
    let before = client.read(0, 1 << 20);
    world.run(&["upgrade", "data"]).ok();
    assert!(client.read(0, 1 << 20) == before);
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(server.ended(), 0);
}

/// A program that spoils superblocks of members before it takes over.
fn spoiling(world: &World, members: &[&str]) -> String {
    let spoil =
        |member: &&str| format!("dd if=/dev/zero of={member} bs=4096 seek=1 count=1 conv=notrunc 2>dd");
    let spoils: Vec<String> = members.iter().map(spoil).collect();
    program(world, "spoiling", &format!("{}; exec $PINSTRIPE \"$@\"", spoils.join("; ")))
}

#[test]
fn a_member_that_goes_meanwhile_is_left_out_by_the_program_that_goes_on() {
    let world = World::new();
    let server = world.serve(&[], &world.raid5(3));
    let mut client = Client::connect(&server.nbd());
    assert_eq!(client.write(0, &pattern(1, 1 << 20)), 0);
    let words = ["could not take over", "member2", "superblock", "goes on"];
    world.run(&["upgrade", "data", "--program", &spoiling(&world, &["member2"])]).refused(1, &words);
    assert!(client.read(0, 1 << 20) == pattern(1, 1 << 20));
    assert_eq!(world.run(&["detail", "data", "--json"]).ok().json()["degraded"], true);
    world.run(&["upgrade", "data"]).ok();
    assert!(client.read(0, 1 << 20) == pattern(1, 1 << 20));
    world.run(&["add", "--wait", "--force", "data", "member2"]).ok();
    ends_well(&world, server);
}

#[test]
fn where_neither_program_can_go_on_the_process_ends_and_says_so() {
    let world = World::new();
    let server = world.serve(&[], &world.raid5(3));
    let program = spoiling(&world, &["member1", "member2"]);
    world.run(&["upgrade", "data", "--program", &program]).refused(1, &[]);
    assert_eq!(server.ended(), 1);
}

#[test]
fn files_that_a_start_would_read_are_tried_first() {
    let world = World::new();
    let members = world.raid5(3);
    Authority::new().put(&world, "tls");
    let hosts = world.path("hosts");
    let line = format!("nqn.2014-08.org.example:host {SECRET}\n");
    fs::write(&hosts, line).unwrap();
    fs::set_permissions(&hosts, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let options = ["--tls-certificates", "tls", "--nvme-tcp", "127.0.0.1:0", "--dhchap-hosts", "hosts"];
    let server = world.serve(&options, &members);
    let mut client = Client::connect(&server.nbd());
    let key = fs::read(world.path("tls/server-key.pem")).unwrap();
    fs::write(world.path("tls/server-key.pem"), "none").unwrap();
    refused(&world, &["TLS", "server-key.pem"]);
    fs::write(world.path("tls/server-key.pem"), key).unwrap();
    fs::rename(world.path("hosts"), world.path("others")).unwrap();
    refused(&world, &["hosts"]);
    fs::rename(world.path("others"), world.path("hosts")).unwrap();
    world.run(&["upgrade", "data"]).ok();
    client.flush();
    ends_well(&world, server);
}

#[test]
fn a_socket_whose_file_was_removed_goes_over_and_keeps_its_clients() {
    let world = World::new();
    let server = world.serve(&["--nbd", "unix:here.nbd"], &world.raid5(3));
    let mut client = Client::connect(&server.nbd());
    fs::remove_file(world.path("here.nbd")).unwrap();
    fs::write(world.path("here.nbd"), "another's").unwrap();
    assert_eq!(world.run(&["upgrade", "data", "--json"]).ok().json()["connections"], 1);
    assert_eq!(client.write(0, &pattern(1, 4096)), 0);
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(server.ended(), 0);
    assert_eq!(fs::read_to_string(world.path("here.nbd")).unwrap(), "another's");
}

#[test]
fn what_is_added_while_clients_are_left_is_part_of_the_array() {
    let world = World::new();
    let server = world.serve(&[], &world.raid5(3));
    let spare = world.file("spare", MEMBER_BYTES);
    let client = greedy(&server);
    let mut direct = control(&world);
    let upgrade = begin_upgrade(&world, PINSTRIPE);
    until_it_leaves(&world);
    let path = world.path(&spare).display().to_string();
    direct.call::<Value>("add", json!({ "device": path, "force": false })).unwrap();
    direct.call::<Value>("sync", json!({ "speed_max_kib": 54_321 })).unwrap();
    drop(client);
    assert!(upgrade.wait_with_output().unwrap().status.success());
    let detail = world.run(&["detail", "data", "--json"]).ok().json();
    assert!(detail["spares"][0].as_str().unwrap().ends_with("spare"), "{detail}");
    assert_eq!(detail["sync_speed_max_kib"], 54_321);
    world.run(&["serve", &spare]).refused(1, &["held by another process"]);
    ends_well(&world, server);
}

#[test]
fn an_order_to_end_that_comes_while_clients_are_left_is_obeyed() {
    let world = World::new();
    let server = world.serve(&[], &world.raid5(3));
    let client = greedy(&server);
    let mut upgrade = begin_upgrade(&world, PINSTRIPE);
    until_it_leaves(&world);
    server.signal("TERM");
    drop(client);
    let socket = server.nbd();
    assert_eq!(server.ended(), 0);
    upgrade.wait().unwrap();
    assert!(!socket.exists() && !world.path("pinstripe/data.sock").exists(), "sockets are left behind");
}

#[test]
fn requests_that_a_limit_holds_back_are_answered_before_their_client_is_left() {
    let world = World::new();
    let server = world.serve(&[], &world.raid5(3));
    let mut client = Client::connect(&server.nbd());
    world.run(&["limit", "data", "--iops", "1", "--burst", "0"]).ok();
    client.say(&header(0, 0, 512).repeat(100));
    Client::connect(&server.nbd()).flush();
    let begun = Instant::now();
    world.run(&["upgrade", "data"]).ok();
    assert!(begun.elapsed() < Duration::from_secs(80), "they would have waited for 100 s");
    world.run(&["limit", "data", "--iops", "0"]).ok();
    (0..100).for_each(|_| assert_eq!(client.answer_of_read(512).len(), 512));
    ends_well(&world, server);
}

#[test]
fn calls_that_come_behind_the_one_for_an_upgrade_are_answered_by_the_next_program() {
    let world = World::new();
    let server = world.serve(&[], &world.raid5(3));
    let mut stream = UnixStream::connect(world.path("pinstripe/data.sock")).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let call = |id: u64, method: &str, parameters: Value| {
        json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": parameters }).to_string() + "\n"
    };
    let both = call(1, "upgrade", json!({ "program": PINSTRIPE })) + &call(2, "version", Value::Null);
    stream.write_all(both.as_bytes()).unwrap();
    let answers: Vec<Value> = BufReader::new(stream)
        .lines()
        .take(2)
        .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
        .collect();
    assert!(answers[0]["id"] == 1 && answers[0]["result"]["pause_ms"].is_u64(), "{answers:?}");
    assert!(answers[1]["id"] == 2 && answers[1]["result"]["pid"].is_u64(), "{answers:?}");
    ends_well(&world, server);
}

#[test]
fn calls_behind_an_upgrade_for_which_no_descriptor_is_left_are_answered() {
    let world = World::new();
    let server = world.serve(&["--shards", "1"], &world.raid5(3));
    let (number, _) = version(&world);
    let process = Pid::from_raw(i32::try_from(number).unwrap()).unwrap();
    let both = json!({ "jsonrpc": "2.0", "id": 1, "method": "upgrade", "params": { "program": PINSTRIPE } })
        .to_string()
        + "\n{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"version\"}\n";
    let mut refusals = Vec::new();
    // One more each time, so that whatever needs one lacks it once.
    for further in 0.. {
        let mut stream = UnixStream::connect(world.path("pinstripe/data.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        let mut answer = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
        // It has the connection when it answers.
        stream.write_all(b"{\"jsonrpc\":\"2.0\",\"id\":0,\"method\":\"version\"}\n").unwrap();
        answer();
        let open = fs::read_dir(format!("/proc/{number}/fd")).unwrap().count() as u64;
        let before = limit_files(process, Some(open + further));
        stream.write_all(both.as_bytes()).unwrap();
        let answers = [answer(), answer()];
        limit_files(process, before);
        assert!(answers[0]["id"] == 1 && answers[1]["id"] == 2, "{answers:?}");
        assert!(answers[1]["result"]["pid"].is_u64(), "{answers:?}");
        match answers[0]["error"]["message"].as_str() {
            Some(message) => refusals.push(message.to_owned()),
            None => break,
        }
    }
    assert!(refusals.iter().any(|why| why.contains("can't be handed on")), "{refusals:?}");
    ends_well(&world, server);
}

/// How many files a process may open; sets that.
fn limit_files(process: Pid, current: Option<u64>) -> Option<u64> {
    let limit = Rlimit { current, ..getrlimit(Resource::Nofile) };
    prlimit(Some(process), Resource::Nofile, limit).unwrap().current
}

#[test]
fn a_stop_that_waits_for_clients_while_another_program_takes_over_is_told_so() {
    let world = World::new();
    let server = world.serve(&["--shards", "1"], &world.raid5(3));
    let client = Client::connect(&server.nbd());
    let stop = world.command(&["stop", "data"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    thread::sleep(Duration::from_millis(300));
    world.run(&["upgrade", "data"]).ok();
    let stopped = stop.unwrap().wait_with_output().unwrap();
    let said = String::from_utf8(stopped.stderr).unwrap();
    // The latter if the other program takes its time.
    assert!(said.contains("takes this one's place just now") || said.contains("is in use by"), "{said}");
    drop(client);
    ends_well(&world, server);
}

#[test]
fn a_check_under_way_tells_how_far_it_came() {
    let world = World::new();
    let server = world.serve(&["--sync-speed-min", "1", "--sync-speed-max", "1"], &world.raid5(3));
    let mut check = world.command(&["check", "data", "--json"]);
    let check = check.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let begun = Instant::now();
    while world.run(&["detail", "data", "--json"]).ok().json()["sync"].is_null() {
        assert!(begun.elapsed() < PATIENCE);
    }
    world.run(&["upgrade", "data"]).ok();
    let output = check.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let result: Value = serde_json::from_str(&told).unwrap_or_default();
    assert_eq!(result["complete"], false, "{told} {}", String::from_utf8_lossy(&output.stderr));
    world.run(&["sync", "data", "--speed-max", "2000000"]).ok();
    ends_well(&world, server);
}

#[test]
fn one_refusal_among_all_servers_is_the_exit_status() {
    let world = World::new();
    let server = world.serve(&[], &world.raid5(3));
    let create = ["--create", "--level", "5", "--name", "memory", "--chunk", "16K"];
    let memory = world.serve(&create, &vec!["mem:16M".to_owned(); 3]);
    let ran = world.run(&["upgrade", "--all"]);
    assert_eq!(ran.status, 1);
    assert!(ran.out.contains("has taken the place") && ran.out.contains("memory"), "{}", ran.out);
    let ran = world.run(&["upgrade", "--all", "--json"]);
    let told = serde_json::from_str::<Value>(&ran.out).unwrap();
    let errors = told.as_array().unwrap().iter().filter(|one| one["error"].is_string()).count();
    assert_eq!((ran.status, errors), (1, 1), "{told}");
    world.run(&["stop", "memory"]).ok();
    assert_eq!(memory.ended(), 0);
    ends_well(&world, server);
}

#[test]
fn a_mounted_file_is_no_client_that_goes_over() {
    if !may_mount() {
        return;
    }
    let world = World::new();
    let server = world.serve(&["--fuse", "disk"], &world.raid5(3));
    let before = version(&world);
    world.run(&["upgrade", "data"]).refused(1, &["FUSE"]);
    assert_eq!(version(&world), before);
    ends_well(&world, server);
}

/// An array with a file of another server as its second member, which hangs while that server is stopped.
struct Hanging {
    world: World,
    server: Server,
    store: Server,
    /// The member.
    disk: String,
    _store: World,
}

impl Hanging {
    /// Parity is being made, so there are requests.
    fn new() -> Self {
        let other = World::new();
        let store = other.serve(&["--shards", "1", "--fuse", "disk"], &other.raid5(3));
        let disk = other.path("disk").display().to_string();
        let world = World::new();
        let mut members = world.members(3);
        members[1].clone_from(&disk);
        world.create(&["--level", "5", "--name", "data"], &members).ok();
        let speed = ["--sync-speed-min", "1", "--sync-speed-max", "50"];
        let server =
            world.serve(&[&["--shards", "2", "--member-timeout", "2"], &speed[..]].concat(), &members);
        Self { world, server, store, disk, _store: other }
    }

    /// The server names the member, and ends when that lets it. Nothing serves the array then.
    fn ends(mut self, upgrade: Child, why: &str) {
        let said = self.server.says("requests to", PATIENCE);
        self.store.signal("CONT");
        let said = said.expect("it became another program, or was to and could not");
        for word in [why, &self.disk, "are not over", "not served any more"] {
            assert!(said.contains(word), "'{word}' is missing in: {said}");
        }
        assert_eq!(self.server.ended_within(PATIENCE), Some(1));
        assert!(!upgrade.wait_with_output().unwrap().status.success());
    }
}

/// C16: their requests, which only this process's claim would keep apart from those of the next program.
#[test]
fn a_member_that_hangs_while_clients_are_left_ends_the_process_and_no_other_program_begins() {
    if !may_mount() {
        return;
    }
    let hanging = Hanging::new();
    let client = greedy(&hanging.server);
    let upgrade = begin_upgrade(&hanging.world, PINSTRIPE);
    // Before that it looks at its members, and would wait for them.
    let says = |line: &Value| line["message"].as_str().is_some_and(|words| words.contains("is to take over"));
    wait_until("the server begins", || hanging.server.later.lock().unwrap().iter().any(says));
    hanging.store.signal("STOP");
    drop(client);
    hanging.ends(upgrade, "no other program can take over");
}

/// A program that waits for ever in its start, behind the assembly: for a file that it reads.
fn stuck(world: &World) -> String {
    let uuid = world.run(&["detail", "data", "--json"]).ok().json()["uuid"].as_str().unwrap().to_owned();
    let file = format!("state/joined/{}.json", uuid.replace(':', ""));
    // The next one finds none again.
    let waits = format!(
        "mkdir -p state/joined; mkfifo {file}; (sleep 15; rm {file}) >/dev/null 2>&1 & exec $PINSTRIPE \"$@\""
    );
    program(world, "stuck", &waits)
}

#[test]
fn a_program_that_comes_no_further_behind_the_assembly_stops_the_array_and_goes_back() {
    let world = World::new();
    let server = world.serve(&["--shards", "2"], &world.raid5(3));
    let mut client = Client::connect(&server.nbd());
    assert_eq!(client.write(0, &pattern(1, 1 << 20)), 0);
    let words = ["could not take over", "does not serve after 30 s", "goes on"];
    world.run(&["upgrade", "data", "--program", &stuck(&world)]).refused(1, &words);
    assert!(client.read(0, 1 << 20) == pattern(1, 1 << 20));
    assert_eq!(client.write(0, &pattern(2, 1 << 20)), 0);
    world.run(&["upgrade", "data"]).ok();
    assert!(client.read(0, 1 << 20) == pattern(2, 1 << 20));
    ends_well(&world, server);
}

/// The same as above, of what the program that was to take over has begun itself.
#[test]
fn a_member_that_hangs_under_a_program_that_comes_no_further_ends_the_process() {
    if !may_mount() {
        return;
    }
    let hanging = Hanging::new();
    let upgrade = begin_upgrade(&hanging.world, &stuck(&hanging.world));
    thread::sleep(Duration::from_secs(10));
    hanging.store.signal("STOP");
    hanging.ends(upgrade, "does not serve after 30 s");
}

#[test]
fn hosts_of_nvme_tcp_see_nothing_of_a_change_of_programs() {
    let world = World::new();
    let server = world.serve(&["--shards", "2", "--nvme-tcp", "127.0.0.1:0"], &world.raid5(3));
    let mut members = vec![server.ready["nvme"].as_str().unwrap().to_owned()];
    members.extend(["other0", "other1"].map(|name| world.file(name, 2 * MEMBER_BYTES)));
    world.create(&["--level", "5", "--name", "upper", "--assume-clean"], &members).ok();
    let upper = world.serve(&["--shards", "2"], &members);
    let end = Arc::new(AtomicBool::new(false));
    let talkers: Vec<_> = (0..3u64)
        .map(|number| {
            let (client, end) = (Client::connect(&upper.nbd()), Arc::clone(&end));
            thread::spawn(move || talk(client, number << 20, &end))
        })
        .collect();
    let slow = program(&world, "slow", "sleep 0.3; exec $PINSTRIPE \"$@\"");
    for program in [PINSTRIPE, &slow, PINSTRIPE, &slow, PINSTRIPE] {
        let result = world.run(&["upgrade", "data", "--program", program, "--json"]).ok().json();
        // The admin queue, and one of each shard.
        assert_eq!(result["connections"], 3, "{result}");
    }
    end.store(true, Ordering::Relaxed);
    for talker in talkers {
        assert!(talker.join().unwrap() > 0);
    }
    let detail = world.run(&["detail", "upper", "--json"]).ok().json();
    assert_eq!((&detail["degraded"], &detail["failed"]), (&false.into(), &json!([])), "{detail}");
    assert_eq!(world.run(&["check", "upper"]).ok().status, 0);
    world.run(&["stop", "upper"]).ok();
    assert_eq!(upper.ended(), 0);
    ends_well(&world, server);
}

/// Of what is left to a program, every form has what it takes to go back.
#[test]
fn what_a_program_can_not_read_it_leaves_to_the_one_before() {
    let world = World::new();
    let will = world.path("will");
    let run = |failed: Value| {
        let text = json!({
            "format": 3, "program": 8, "words": ["serve", "disk"], "failed": failed, "rest": {"unknown": [1]},
        });
        fs::write(&will, text.to_string()).unwrap();
        let script =
            format!("exec 7<>{} 8</bin/echo; exec {PINSTRIPE} serve --succession=7 disk", will.display());
        let output = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (status, output, told) = run(Value::Null);
    assert_eq!((status, output.as_str()), (Some(0), "serve --succession=7 disk\n"), "{told}");
    assert!(told.contains("can't be read: missing field") && told.contains("goes on"), "{told}");
    // It is the one before that reads this now, and so it must be able to.
    let left: Value = serde_json::from_slice(&fs::read(&will).unwrap()).unwrap();
    assert!(
        left["failed"].as_str().unwrap().contains("can't be read") && left["rest"]["unknown"] == json!([1])
    );
    let (status, output, told) = run(json!("it was a tree"));
    assert_eq!((status, output.as_str()), (Some(1), ""), "{told}");
    assert!(told.contains("it was a tree") && told.contains("not served any more"), "{told}");
}
