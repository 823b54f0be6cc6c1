//! Another version of the program takes a server's place.

use std::{
    fs::{self, OpenOptions},
    net::TcpStream,
    os::unix::{fs::OpenOptionsExt, process::ExitStatusExt},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::fs::FlockOperation;
use serde_json::Value;

use crate::{
    nbd::{Client, header, pattern},
    world::{LoopDevice, PATIENCE, Server, World, wait_until},
};

const RELAXED: Ordering = Ordering::Relaxed;

/// A program that says that it can take over, and then does this. `$PINSTRIPE` is the real one. (Other shells
/// no longer hold back the signals that the server does.)
pub fn program(world: &World, name: &str, then: &str) -> String {
    let pinstripe = env!("CARGO_BIN_EXE_pinstripe");
    let text = format!(
        "#!/bin/bash\nPINSTRIPE={pinstripe}\n[ \"$2\" != --succession=ask ] || exec $PINSTRIPE \"$@\"\n{then}\n"
    );
    world.program(name, &text)
}

/// One that takes its time.
fn slow(world: &World) -> String {
    program(world, "slow", "sleep 0.4; exec $PINSTRIPE \"$@\"")
}

pub fn version(world: &World) -> (u64, String) {
    let mut client = control(world);
    let version: pinstripe_control::Version = client.call("version", Value::Null).unwrap();
    (version.pid.into(), version.instance)
}

pub fn control(world: &World) -> pinstripe_control::client::Client {
    pinstripe_control::client::Client::connect(&world.path("pinstripe/data.sock").to_string_lossy()).unwrap()
}

/// Writes and reads until it is told to end; how often.
pub fn talk(mut client: Client, first: u64, end: &AtomicBool) -> u64 {
    let mut rounds = 0;
    while !end.load(RELAXED) {
        for block in 0..16 {
            let bytes = pattern(rounds << 8 | block, 12 << 10);
            assert_eq!(client.write(first + block * (16 << 10), &bytes), 0);
            assert!(client.read(first + block * (16 << 10), bytes.len()) == bytes, "other bytes came back");
        }
        rounds += 1;
    }
    rounds
}

pub fn ends_well(world: &World, server: Server) {
    assert_eq!(world.run(&["check", "data"]).ok().status, 0);
    let socket = server.nbd();
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(server.ended(), 0);
    assert!(!socket.exists() && !world.path("pinstripe/data.sock").exists(), "sockets are left behind");
}

#[test]
fn clients_see_nothing_of_a_change_of_programs() {
    let world = World::new();
    let members = world.raid5(3);
    let options = ["--shards", "2", "--nbd", "unix:data.nbd", "--nbd", "tcp:127.0.0.1:0"];
    let server = world.serve(&options, &members);
    let limits = ["--iops", "100000", "--burst", "3"];
    world.run(&[&["limit", "data"], &limits[..]].concat()).ok();
    world.run(&["sync", "data", "--speed-max", "77777"]).ok();
    let before = world.run(&["detail", "data", "--json"]).ok().json();
    let (pid, instance) = version(&world);

    let end = Arc::new(AtomicBool::new(false));
    let socket = server.nbd();
    let talkers: Vec<_> = (0..3u64)
        .map(|number| {
            let (client, end) = (Client::connect(&socket), Arc::clone(&end));
            thread::spawn(move || talk(client, number << 20, &end))
        })
        .collect();
    let mut idle = Client::connect(&socket);
    for program in [env!("CARGO_BIN_EXE_pinstripe").to_owned(), slow(&world), slow(&world)] {
        let result = world.run(&["upgrade", "data", "--program", &program, "--json"]).ok().json();
        assert_eq!((&result["array"], &result["connections"]), (&"data".into(), &4.into()), "{result}");
        assert_eq!(result["from"], result["to"]);
        assert!(result["pause_ms"].as_u64().unwrap() < 60_000, "{result}");
        assert_eq!(idle.write(4 << 20, &pattern(1, 4096)), 0);
    }
    assert!(idle.read(4 << 20, 4096) == pattern(1, 4096));
    assert!(Client::connect(&socket).read(4 << 20, 4096) == pattern(1, 4096), "it listens still");
    end.store(true, RELAXED);
    for talker in talkers {
        assert!(talker.join().unwrap() > 0);
    }

    let (now_pid, now_instance) = version(&world);
    assert_eq!(now_pid, pid, "it is the same process");
    assert_ne!(now_instance, instance);
    let after = world.run(&["detail", "data", "--json"]).ok().json();
    for key in ["addresses", "sync_speed_max_kib", "members", "uuid", "limit"] {
        let (before, after) = (&before[key], &after[key]);
        let of = |value: &Value| match key {
            "members" => value.as_array().unwrap().iter().map(|member| member["device"].clone()).collect(),
            _ => value.clone(),
        };
        assert_eq!(of(before), of(after), "{key}");
    }
    let mut uris = after["nbd"].as_array().unwrap().iter();
    let port = uris.find_map(|uri| uri.as_str()?.strip_prefix("nbd://")?.strip_suffix("/data"));
    TcpStream::connect(port.unwrap()).unwrap();
    ends_well(&world, server);
}

const CLIENTS: usize = 100;

#[test]
fn a_request_that_has_come_in_part_goes_over_with_its_connection() {
    let world = World::new();
    let server = world.serve(&["--shards", "2"], &world.raid5(3));
    let bytes = pattern(3, 64 << 10);
    assert_eq!(Client::connect(&server.nbd()).write(0, &bytes), 0);
    let header = header(0, 0, bytes.len());
    let begun = |number: usize| [0, 1, 13, 27][number % 4];
    let mut clients: Vec<Client> = (0..CLIENTS)
        .map(|number| {
            let mut client = Client::connect(&server.nbd());
            client.say(&header[..begun(number)]);
            client
        })
        .collect();
    for _ in 0..2 {
        let result = world.run(&["upgrade", "data", "--json"]).ok().json();
        assert_eq!(result["connections"], CLIENTS);
    }
    for (number, client) in clients.iter_mut().enumerate() {
        client.say(&header[begun(number)..]);
        assert!(client.answer_of_read(bytes.len()) == bytes);
        assert!(client.read(0, 4096) == bytes[..4096]);
    }
    drop(clients);
    ends_well(&world, server);
}

#[test]
fn a_program_that_can_not_take_over_disturbs_nothing() {
    let world = World::new();
    let server = world.serve(&[], &world.raid5(3));
    let mut client = Client::connect(&server.nbd());
    let (_, instance) = version(&world);
    let refused = |program: &str, words: &[&str]| {
        world.run(&["upgrade", "data", "--program", program]).refused(1, words);
    };
    refused("/bin/true", &["/bin/true can't take over", "no version of pinstripe", "nothing was changed"]);
    refused("/bin/false", &["exit status: 1", "nothing was changed"]);
    refused("/nonexistent", &["No such file", "nothing was changed"]);
    fs::write(world.path("text"), "hello").unwrap();
    refused("text", &["denied", "nothing was changed"]);
    fs::rename(world.path("member0"), world.path("away")).unwrap();
    refused(env!("CARGO_BIN_EXE_pinstripe"), &["member0", "another one or nothing", "nothing was changed"]);
    world.file("member0", crate::world::MEMBER_BYTES);
    refused(env!("CARGO_BIN_EXE_pinstripe"), &["member0", "nothing was changed"]);
    fs::rename(world.path("away"), world.path("member0")).unwrap();
    let mut direct = control(&world);
    let parameters = serde_json::json!({ "program": "true" });
    let error = direct.call::<Value>("upgrade", parameters).unwrap_err();
    assert!(error.to_string().contains("absolute"), "{error}");
    assert_eq!(version(&world).1, instance, "it is the same run");
    assert_eq!(client.write(0, &pattern(1, 4096)), 0);
    ends_well(&world, server);
}

#[test]
fn the_program_before_goes_on_if_the_other_one_can_not_serve() {
    let world = World::new();
    let server = world.serve(&[], &world.raid5(3));
    let mut client = Client::connect(&server.nbd());
    assert_eq!(client.write(0, &pattern(9, 64 << 10)), 0);
    let nowhere = "shift; exec $PINSTRIPE serve --vhost-user nowhere/socket \"$@\"";
    let text = format!("#!/bin/sh\nrm $0\nexec {} \"$@\"\n", env!("CARGO_BIN_EXE_pinstripe"));
    let vanishing = world.program("vanishing", &text);
    let programs = [
        (program(&world, "nowhere", nowhere), "nowhere/socket"),
        (vanishing, "isn't the file any more that was asked"),
    ];
    for (round, (program, why)) in programs.iter().enumerate() {
        let (pid, instance) = version(&world);
        let words = ["could not take over", why, "goes on"];
        world.run(&["upgrade", "data", "--program", program]).refused(1, &words);
        let (now_pid, now_instance) = version(&world);
        assert!(now_pid == pid && now_instance != instance, "it is the same process, in another run");
        let at = (round as u64 + 1) << 20;
        assert_eq!(client.write(at, &pattern(round as u64, 64 << 10)), 0);
        assert!(client.read(at, 64 << 10) == pattern(round as u64, 64 << 10));
        assert!(client.read(0, 64 << 10) == pattern(9, 64 << 10));
    }
    let result = world.run(&["upgrade", "data", "--json"]).ok().json();
    assert_eq!(result["connections"], 1);
    assert_eq!(client.write(0, &pattern(1, 4096)), 0);
    ends_well(&world, server);
}

#[test]
fn a_program_that_hangs_after_the_question_is_ended_and_frees_the_array() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&[], &members);
    // Held back or ignored, the limit would end nothing.
    let hangs =
        program(&world, "hangs", "grep -E '^Sig(Blk|Ign)' /proc/$$/status > signals; exec sleep 1000");
    let begun = Instant::now();
    world
        .run(&["upgrade", "data", "--program", &hangs])
        .refused(1, &["data", "did not serve", "60 s", "pinstripe list"]);
    assert!(begun.elapsed() > Duration::from_secs(50), "ours may take so long on a busy machine");
    assert!(begun.elapsed() < Duration::from_mins(1) + PATIENCE, "{:?}", begun.elapsed());
    assert_eq!(server.ended(), -1, "by a signal");
    let signals = fs::read_to_string(world.path("signals")).unwrap();
    for line in signals.lines() {
        let set = u64::from_str_radix(line.split_whitespace().nth(1).unwrap(), 16).unwrap();
        assert_eq!(set & 1 << 13, 0, "SIGALRM: {signals}");
    }
    // As a service manager does.
    let server = world.serve(&[], &members);
    ends_well(&world, server);
}

#[test]
fn a_server_that_has_taken_over_lives_on_and_takes_no_harm_from_a_stray_alarm() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&["--shards", "2"], &members);
    for _ in 0..2 {
        server.signal("ALRM");
        world.run(&["upgrade", "data"]).ok();
    }
    server.signal("ALRM");
    thread::sleep(Duration::from_secs(65));
    server.signal("ALRM");
    let mut client = Client::connect(&server.nbd());
    assert_eq!(client.write(0, &pattern(1, 4096)), 0);
    drop(client);
    ends_well(&world, server);
}

/// How often another process got a member, while the array was handed over.
fn thefts(world: &World, steal: impl Fn() -> bool + Send + 'static) -> u64 {
    let end = Arc::new(AtomicBool::new(false));
    let (tries, thefts) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let thief = {
        let (end, tries, thefts) = (Arc::clone(&end), Arc::clone(&tries), Arc::clone(&thefts));
        thread::spawn(move || {
            while !end.load(RELAXED) {
                tries.fetch_add(1, RELAXED);
                thefts.fetch_add(u64::from(steal()), RELAXED);
                thread::sleep(Duration::from_micros(300));
            }
        })
    };
    // Where the machine is busy, the thief gets on as slowly as all else does.
    let begun = Instant::now();
    while tries.load(RELAXED) <= 100 {
        assert!(begun.elapsed() < PATIENCE, "{tries:?} tries");
        for program in [slow(world), env!("CARGO_BIN_EXE_pinstripe").to_owned()] {
            world.run(&["upgrade", "data", "--program", &program]).ok();
        }
    }
    end.store(true, RELAXED);
    thief.join().unwrap();
    thefts.load(RELAXED)
}

#[test]
fn members_stay_locked_through_a_change() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&[], &members);
    let path = world.path(&members[0]);
    let steal = move || {
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
    };
    let stolen = steal.clone();
    assert_eq!(thefts(&world, steal), 0);
    world.run(&["serve", &members[0], &members[1], &members[2]]).refused(1, &["held by another process"]);
    world.run(&["fail", "data", "0"]).ok();
    world.run(&["remove", "data", &members[0]]).ok();
    wait_until("free, as what was taken out is", stolen);
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);

    let world = World::new();
    let files = world.members(3);
    let Some(loops) = files.iter().map(|file| LoopDevice::new(&world, file, &[])).collect::<Option<Vec<_>>>()
    else {
        return;
    };
    let members: Vec<String> = loops.iter().map(|device| device.path.clone()).collect();
    world.create(&["--level", "5", "--name", "data", "--assume-clean"], &members).ok();
    let server = world.serve(&[], &members);
    let path = PathBuf::from(&members[1]);
    let steal = move || OpenOptions::new().read(true).custom_flags(libc_excl()).open(&path).is_ok();
    assert_eq!(thefts(&world, steal), 0);
    ends_well(&world, server);
}

/// Of a block device: that nothing else has it so.
fn libc_excl() -> i32 {
    i32::try_from(rustix::fs::OFlags::EXCL.bits()).unwrap()
}

#[test]
fn the_array_is_taken_over_as_it_is_and_not_as_it_was_started() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&[], &members);
    let mut client = Client::connect(&server.nbd());
    assert_eq!(client.write(0, &pattern(5, 256 << 10)), 0);
    let spare = world.file("spare", crate::world::MEMBER_BYTES);
    let shards = world.run(&["detail", "data", "--json"]).ok().json()["shards"].clone();
    world.run(&["fail", "data", "1"]).ok();
    world.run(&["sync", "data", "--speed-min", "4321", "--speed-max", "54321"]).ok();
    world.run(&["sync", "data", "pause"]).ok();
    world.run(&["upgrade", "data"]).ok();
    let detail = world.run(&["detail", "data", "--json"]).ok().json();
    assert_eq!(detail["shards"], shards, "it may run where the one before might");
    assert_eq!(detail["degraded"], true, "what was taken out stays out");
    let speeds = (&detail["sync_speed_min_kib"], &detail["sync_speed_max_kib"]);
    assert_eq!((speeds, &detail["sync_paused"]), ((&4321.into(), &54321.into()), &true.into()));
    world.run(&["sync", "data", "resume"]).ok();
    world.run(&["add", "--wait", "data", &spare]).ok();
    world.run(&["upgrade", "data"]).ok();
    let detail = world.run(&["detail", "data", "--json"]).ok().json();
    assert_eq!(detail["degraded"], false, "{detail}");
    assert!(detail["members"][1]["device"].as_str().unwrap().ends_with("spare"));
    assert!(client.read(0, 256 << 10) == pattern(5, 256 << 10));
    ends_well(&world, server);
}

#[test]
fn what_can_not_be_handed_over_is_refused() {
    let world = World::new();
    let create = ["--create", "--level", "5", "--name", "data", "--chunk", "16K"];
    let server = world.serve(&create, &vec!["mem:16M".to_owned(); 3]);
    world.run(&["upgrade", "data"]).refused(1, &["memory"]);
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
    world.run(&["upgrade", "data"]).refused(1, &["data"]);
    assert_eq!(world.run(&["upgrade", "--all"]).ok().out, "no array is served\n");
    world.run(&["serve", "--succession", "7", "x"]).refused(64, &["server's own use"]);
}

#[test]
fn clients_of_an_array_that_fails_as_it_stops_do_not_go_over() {
    let world = World::new();
    let files = world.raid5(3);
    let nqn = ["--nqn", "nqn.2026-01.com.example:members"];
    let store =
        world.target(&[&["--listen", "127.0.0.1:0", "--shards", "1"], &nqn[..]].concat(), &files[1..]);
    let namespaces = store.ready["namespaces"].as_array().unwrap().iter();
    let members: Vec<String> = namespaces.map(|name| name.as_str().unwrap().to_owned()).collect();
    let server = world.serve(&["--shards", "1", "--vhost-user", "disk"], &[&files[..1], &members].concat());
    let mut client = Client::connect(&server.nbd());
    assert_eq!(client.write(0, &pattern(1, 64 << 10)), 0);
    // It is waited for, a second.
    let mut begun = Client::connect(&server.nbd());
    begun.say(&header(1, 0, 64 << 10));
    let waits = program(&world, "waits", "touch begun; while [ ! -e go ]; do sleep 0.1; done");
    let mut upgrade = world.command(&["upgrade", "data", "--program", &waits]).spawn().unwrap();
    wait_until("asked", || server.told("note", 1).iter().any(|words| words.contains("is to take over")));
    drop(store);
    wait_until("handed over", || world.path("begun").exists());
    let warnings = server.told("warning", 1).concat();
    assert!(warnings.contains("no client goes over"), "{warnings}");
    assert!(!warnings.contains("virtual machine"), "there was none: {warnings}");
    assert!(client.is_ended(), "a flush by the next program would tell it that all is well");
    drop(server);
    upgrade.wait().unwrap();
}

#[test]
fn of_several_that_ask_at_once_none_is_told_that_the_program_has_crashed() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&[], &members);
    let asked: Vec<_> = thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(|| world.run(&["upgrade", "data"]))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert!(asked.iter().any(|ran| ran.status == 0));
    for ran in asked.iter().filter(|ran| ran.status != 0) {
        let known =
            ["another program takes this one's place just now", "another `pinstripe upgrade` was first"];
        assert!(known.iter().any(|words| ran.error.contains(words)), "{}", ran.error);
    }
    assert!(Client::connect(&server.nbd()).read(0, 4096).len() == 4096);
    ends_well(&world, server);
}

#[test]
fn an_order_to_end_that_comes_meanwhile_is_obeyed() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&[], &members);
    let mut client = Client::connect(&server.nbd());
    assert_eq!(client.write(0, &pattern(1, 4096)), 0);
    let then = "$PINSTRIPE examine --json member0 >examined; touch begun; sleep 1; exec $PINSTRIPE \"$@\"";
    let slow = program(&world, "slow", then);
    let mut upgrade = world.command(&["upgrade", "data", "--program", &slow]).spawn().unwrap();
    wait_until("begun", || world.path("begun").exists());
    let examined = fs::read_to_string(world.path("examined")).unwrap();
    assert!(examined.contains("\"clean\": true"), "between the two, the array isn't clean: {examined}");
    server.signal("TERM");
    assert_eq!(server.ended(), 0);
    assert!(upgrade.wait().unwrap().signal().is_none());
    let left = ["data.sock", "data.nbd"].map(|name| world.path("pinstripe").join(name).exists());
    assert_eq!(left, [false; 2], "sockets are left behind");
    let server = world.serve(&[], &members);
    assert!(Client::connect(&server.nbd()).read(0, 4096) == pattern(1, 4096));
    ends_well(&world, server);
}

#[test]
fn a_server_whose_program_was_replaced_says_so_until_it_has_the_new_one() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&["--shards", "1"], &members);
    // By a process of its own: a child that another test starts would have the file open for writing.
    let install = || {
        let script = "cp \"$0\" own.new && mv own.new own";
        let mut install = std::process::Command::new("sh");
        install.args(["-c", script, env!("CARGO_BIN_EXE_pinstripe")]).current_dir(world.path(""));
        assert!(install.status().unwrap().success());
    };
    let own = world.path("own").display().to_string();
    let upgrade = || world.run(&["upgrade", "data", "--program", &own]).ok();
    let is_told = || {
        let detail = world.run(&["detail", "data", "--json"]).ok().json();
        let list = world.run(&["list", "--json"]).ok().json();
        assert_eq!(detail["pinstripe"], env!("CARGO_PKG_VERSION"));
        assert_eq!(detail["program_replaced"], list[0]["program_replaced"]);
        let words = world.run(&["list"]).ok().out + &world.run(&["detail", "data"]).ok().out;
        assert_eq!(
            words.matches("replaced since").count(),
            if detail["program_replaced"] == true { 2 } else { 0 }
        );
        detail["program_replaced"] == true
    };
    install();
    upgrade();
    assert!(!is_told());
    install();
    assert!(is_told());
    upgrade();
    assert!(!is_told());
    ends_well(&world, server);
}
