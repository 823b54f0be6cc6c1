//! Servers under a service manager: what it is told (sd_notify), and what the package's units, rules and
//! completions ask of the command.

use std::{
    fs,
    io::Read,
    os::unix::net::UnixDatagram,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    configured::{Configured, DATA, SCAN},
    fuse::may_mount,
    nbd::{Client, pattern},
    world::{MEMBER_BYTES, PATIENCE, Port, Ran, World, wait_until},
};

/// The service manager's end.
struct Manager {
    socket: UnixDatagram,
    path: std::path::PathBuf,
}

impl Manager {
    fn new(world: &World) -> Self {
        let path = world.path("notify");
        let _ = fs::remove_file(&path);
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        Self { socket, path }
    }

    /// Starts a command under it, with a watchdog of 400 ms.
    fn start(&self, mut command: Command) -> Unit<'_> {
        command.env("NOTIFY_SOCKET", &self.path).env("WATCHDOG_USEC", "400000");
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        Unit { child, manager: self }
    }

    /// Takes what has come.
    fn forget(&self) {
        self.socket.set_nonblocking(true).unwrap();
        while self.next().is_some() {}
        self.socket.set_nonblocking(false).unwrap();
    }

    /// The next message, if one comes soon.
    fn next(&self) -> Option<String> {
        let mut buffer = [0; 4096];
        let length = self.socket.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..length]).into_owned())
    }
}

/// What runs under it; killed if the test ends before that.
struct Unit<'a> {
    child: Child,
    manager: &'a Manager,
}

impl Unit<'_> {
    /// Waits until it has told this; all that it has told until then.
    #[track_caller]
    fn wait(&mut self, wanted: &str) -> Vec<String> {
        let (begun, mut told) = (Instant::now(), Vec::new());
        loop {
            told.extend(self.manager.next());
            if told.last().is_some_and(|told| told.contains(wanted)) {
                return told;
            }
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none() && begun.elapsed() < PATIENCE, "never {wanted}: {told:?}, {ended:?}");
        }
    }

    fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Waits until it has ended by itself with exit status 1; what it has said. A server would not end.
    #[track_caller]
    fn refused(self) -> String {
        self.refused_with(1)
    }

    /// The same with another status.
    #[track_caller]
    fn refused_with(mut self, status: i32) -> String {
        wait_until("refused", || self.child.try_wait().unwrap().is_some());
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(status), "{said}");
        said
    }
}

fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
    assert!(sent.unwrap().success());
}

impl Drop for Unit<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Configured {
    fn foreground(&self, manager: &Manager) -> Command {
        let mut command = self.world.command(&["assemble", "--foreground", "--name", "data"]);
        command.env("PINSTRIPE_CONFIG", self.world.path("pinstripe.toml"));
        command.env_remove("CREDENTIALS_DIRECTORY").env("NOTIFY_SOCKET", &manager.path);
        command
    }
}

#[test]
fn in_the_foreground_the_process_becomes_the_server_and_tells_its_manager_of_its_life() {
    let configured = Configured::new(DATA);
    let (world, manager) = (&configured.world, Manager::new(&configured.world));
    let members = world.raid5(3);
    let mut unit = manager.start(configured.foreground(&manager));
    let until_ready = unit.wait("READY=1");
    assert!(!until_ready.concat().contains("WATCHDOG=1"), "{until_ready:?}");
    // A sign of life in each quarter of the watchdog's time, for as long as the machine lets it.
    let tried = Instant::now();
    loop {
        manager.forget();
        let begun = Instant::now();
        (0..8).for_each(|_| drop(unit.wait("WATCHDOG=1")));
        if begun.elapsed() < Duration::from_millis(1600) {
            break;
        }
        assert!(tried.elapsed() < PATIENCE, "{:?} for eight signs of life", begun.elapsed());
    }
    let list = configured.run(&["list", "--json"]).ok().json();
    assert_eq!(list[0]["name"], "data", "{list}");

    // A member is lost: the manager's status says so.
    configured.run(&["fail", "data", "1"]).ok();
    unit.wait("degraded: 1 of 3 members missing");

    // Another program takes the server's place, in the process that the manager knows.
    configured.run(&["upgrade", "data"]).ok();
    let told = unit.wait("READY=1").concat();
    assert!(!told.contains("STOPPING") && !told.contains("EXTEND_TIMEOUT_USEC=60000000"), "{told}");
    // The unit's end waits for it as long as the watchdog does, and the watchdog no longer than it would.
    let signs = unit.wait("WATCHDOG=1");
    assert!(signs.last().unwrap().contains("EXTEND_TIMEOUT_USEC=400000"), "{signs:?}");

    let words = ["data is served already by process ", &unit.child.id().to_string(), "`pinstripe stop "];
    // The unit takes this one for nothing that another try would change.
    let said = manager.start(configured.foreground(&manager)).refused_with(69);
    assert!(words.iter().all(|word| said.contains(word)), "{said}");

    unit.signal("TERM");
    let last = unit.wait("STOPPING=1");
    assert!(last.last().unwrap().contains("EXTEND_TIMEOUT_USEC=60000000"), "{last:?}");
    assert_eq!(unit.child.wait().unwrap().code(), Some(0));
    let examined = world.run(&["examine", "--json", &members[0]]).ok().json();
    assert!(examined.to_string().contains("\"clean\":true"), "{examined}");
}

#[test]
fn a_target_tells_its_manager_of_its_life() {
    let world = World::new();
    let (members, manager) = (world.raid5(3), Manager::new(&world));
    let mut command =
        world.command(&["target", "--listen", "127.0.0.1:0", "--nqn", "nqn.2026-01.com.example:told"]);
    command.args(&members[..1]);
    let mut unit = manager.start(command);
    let until_ready = unit.wait("READY=1");
    assert!(!until_ready.concat().contains("WATCHDOG=1"), "{until_ready:?}");
    for _ in 0..3 {
        unit.wait("WATCHDOG=1");
    }
    unit.signal("TERM");
    unit.wait("STOPPING=1");
    assert!(unit.child.wait().unwrap().success());
}

#[test]
fn a_target_tells_its_manager_which_namespaces_are_missing() {
    let world = World::new();
    let (members, manager) = (world.raid5(3), Manager::new(&world));
    let options = ["target", "--listen", "127.0.0.1:0", "--nqn", "nqn.2026-01.com.example:told"];
    let mut command = world.command(&options);
    command.args(["--allow-missing", members[0].as_str(), "nowhere"]);
    let mut unit = manager.start(command);
    unit.wait("STATUS=1 of 2 namespaces, hosts: 0; missing: 2");
    unit.signal("TERM");
    unit.wait("STATUS=stopping");
    assert!(unit.child.wait().unwrap().success());
}

#[test]
fn a_server_that_died_is_started_as_it_was_while_the_configuration_has_an_error() {
    let configured = Configured::new(DATA);
    let (world, manager) = (&configured.world, Manager::new(&configured.world));
    world.raid5(3);
    let broken = || configured.write("conf.d/other.toml", "x = ");
    broken();
    // It was never started.
    manager.start(configured.foreground(&manager)).refused();
    fs::remove_file(world.path("conf.d/other.toml")).unwrap();

    let mut unit = manager.start(configured.foreground(&manager));
    unit.wait("READY=1");
    unit.signal("KILL");
    unit.child.wait().unwrap();
    broken();
    let mut unit = manager.start(configured.foreground(&manager));
    unit.wait("READY=1");
    assert_eq!(configured.run(&["list", "--json"]).ok().json()[0]["name"], "data");
    unit.signal("TERM");
    assert_eq!(unit.child.wait().unwrap().code(), Some(0));

    // What was given back to mdadm isn't started like this.
    fs::remove_file(world.path("conf.d/other.toml")).unwrap();
    configured.write("pinstripe.toml", SCAN);
    configured.write("mdadm.conf", "");
    let last = world.path("pinstripe/data.last");
    assert!(last.exists());
    // The unit of an array whose name is no unit's asks by the UUID.
    let list = configured.run(&["examine", "--scan", "--json"]).ok().json();
    let uuid = list["arrays"][0]["uuid"].as_str().unwrap();
    let by_uuid = world.path(&format!("pinstripe/{uuid}.last"));
    fs::copy(&last, &by_uuid).unwrap();
    configured.run(&["release", "--mdadm-conf", "mdadm.conf", "data", "--force"]).ok();
    assert!(!last.exists() && !by_uuid.exists());
    let said = manager.start(configured.foreground(&manager)).refused();
    assert!(said.contains("data has no [[array]]"), "{said}");
}

/// Its clients would write what they mean for the one into the other: its socket is the same.
#[test]
fn a_server_that_died_is_not_started_of_another_array_that_has_its_members_names_by_now() {
    let configured = Configured::new(DATA);
    let (world, manager) = (&configured.world, Manager::new(&configured.world));
    let members = world.members(6);
    for (name, members) in [("data", &members[..3]), ("other", &members[3..])] {
        world.create(&["--level", "5", "--name", name, "--assume-clean"], members).ok();
    }
    let mut unit = manager.start(configured.foreground(&manager));
    unit.wait("READY=1");
    unit.signal("KILL");
    unit.child.wait().unwrap();
    configured.write("conf.d/other.toml", "x = ");
    let swap = || {
        for (one, other) in members[..3].iter().zip(&members[3..]) {
            fs::rename(world.path(one), world.path("between")).unwrap();
            fs::rename(world.path(other), world.path(one)).unwrap();
            fs::rename(world.path("between"), world.path(other)).unwrap();
        }
    };
    swap();
    let before = world.hashes(&members);
    let said = manager.start(configured.foreground(&manager)).refused();
    assert!(said.contains("belongs to array other") && said.contains("was asked for"), "{said}");
    assert_eq!(world.hashes(&members), before);
    swap();
    let mut unit = manager.start(configured.foreground(&manager));
    unit.wait("READY=1");
}

#[test]
fn in_the_foreground_members_that_are_late_are_waited_for_and_the_manager_is_told() {
    let configured = Configured::new(DATA);
    let (world, manager) = (&configured.world, Manager::new(&configured.world));
    let members = world.raid5(3);
    let away = |slot: usize| world.path(&format!("away{slot}"));
    for slot in [1, 2] {
        fs::rename(world.path(&members[slot]), away(slot)).unwrap();
    }
    let mut unit = manager.start(configured.foreground(&manager));
    let told = unit.wait("too few members are here");
    assert!(told.last().unwrap().contains("EXTEND_TIMEOUT_USEC="), "{told:?}");
    fs::rename(away(1), world.path(&members[1])).unwrap();
    // Without `run-after`, nothing may be left out.
    unit.wait("slot 2 is missing");
    fs::rename(away(2), world.path(&members[2])).unwrap();
    unit.wait("READY=1");
    drop(unit);

    fs::rename(world.path(&members[2]), away(2)).unwrap();
    let mut impatient = configured.foreground(&manager);
    let ran = impatient.args(["--timeout", "1"]).output().unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(
        ran.status.code() == Some(1) && said.contains("data was not started: slot 2 is missing"),
        "{said}"
    );
    // A person has it go on, as `assemble --run` does: once.
    let mut unit = manager.start(configured.foreground(&manager));
    unit.wait("slot 2 is missing");
    configured.write("pinstripe/data.run", "");
    unit.wait("READY=1");
    assert!(!world.path("pinstripe/data.run").exists());
    drop(unit);
    configured.run(&["assemble", "--scan", "--foreground"]).refused(64, &["--scan"]);
}

/// After a power cut a machine may be up before its storage servers are.
#[test]
fn under_a_manager_servers_that_are_away_are_waited_for() {
    const NQN: &str = "nqn.2026-01.com.example:late";
    let configured = Configured::new(SCAN);
    let (world, manager) = (&configured.world, Manager::new(&configured.world));
    let members = world.raid5(4);
    let port = Port::new();
    let address = port.address.to_string();
    let remote = |number: u32| format!("'nvme-tcp://{address}/{NQN}?nsid={number}'");
    let entry = |local: &str, more: &str| {
        let servers = format!("{}, {}", remote(1), remote(2));
        let text = format!("[[array]]\nname = 'data'\nshards = 1\nmembers = ['{local}', {servers}]\n{more}");
        configured.write("pinstripe.toml", &text);
    };
    let words = ["--listen", &address, "--nqn", NQN, "--shards", "1"];
    // Too few would be there without them, so `run-after` doesn't count yet.
    for more in ["", "run-after = 1\n"] {
        entry("@/member[01]", more);
        let mut unit = manager.start(configured.foreground(&manager));
        unit.wait("STATUS=waits: ");
        std::thread::sleep(Duration::from_secs(3));
        let store = world.target(&words, &members[2..]);
        unit.wait("READY=1");
        assert_eq!(configured.run(&["list", "--json"]).ok().json()[0]["degraded"], false, "{more}");
        unit.signal("TERM");
        assert_eq!(unit.child.wait().unwrap().code(), Some(0));
        drop(store);
    }
}

#[test]
fn a_server_whose_member_does_not_answer_lives() {
    let world = World::new();
    let mut members = world.raid5(3);
    let store = world.target(
        &["--listen", "127.0.0.1:0", "--nqn", "nqn.2026-01.com.example:slow", "--shards", "1"],
        &[members[1].clone()],
    );
    members[1] = store.ready["namespaces"][0].as_str().unwrap().to_owned();
    let manager = Manager::new(&world);
    let mut command = world.command(&["serve", "--shards", "2", "--cache", "0"]);
    command.args(&members);
    let mut unit = manager.start(command);
    unit.wait("READY=1");
    let mut client = Client::connect(&world.path("pinstripe/data.nbd"));
    store.signal("STOP");
    let written = std::thread::spawn(move || client.write(0, &pattern(1, 1 << 20)));
    manager.forget();
    // As many as belong into five times the watchdog's time.
    (0..20).for_each(|_| drop(unit.wait("WATCHDOG=1")));
    assert!(!written.is_finished(), "the member answered, and this shows nothing");
    store.signal("CONT");
    assert_eq!(written.join().unwrap(), 0);
}

/// These servers know of no hosts.
#[test]
fn a_start_that_waits_for_the_writes_of_a_dead_server_says_so() {
    let world = World::new();
    let files: Vec<String> = (0..3).map(|slot| world.file(&format!("member{slot}"), MEMBER_BYTES)).collect();
    world.create(&["--level", "5", "--name", "data"], &files).ok();
    let nqn = "nqn.2026-01.com.example:members";
    let words = ["--listen", "127.0.0.1:0", "--nqn", nqn, "--shards", "1", "--offload", "off"];
    let store = world.target(&words, &files);
    let members = store.ready["namespaces"].as_array().unwrap().iter().map(|name| name.as_str().unwrap());
    let manager = Manager::new(&world);
    let mut command = world.command(&["serve", "--shards", "1"]);
    command.args(members);
    let mut unit = manager.start(command);
    let told = unit.wait("READY=1");
    let words = "these are used 11 s later";
    assert!(told.iter().any(|told| told.starts_with("STATUS=") && told.contains(words)), "{told:?}");
    unit.signal("TERM");
    let mut said = String::new();
    unit.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains(words), "{said}");
}

#[test]
fn udevs_rules_learn_which_array_a_device_is_of_and_the_generator_which_units_there_are() {
    let configured = Configured::new(DATA);
    let world = &configured.world;
    let members = world.raid5(3);
    let uuid = world.run(&["examine", "--json", &members[0]]).ok().json().to_string();
    let said = configured.run(&["incremental", "--export", &members[0]]).ok().out;
    let (array, unit) = said.split_once('\n').unwrap();
    assert!(uuid.contains(array.strip_prefix("PINSTRIPE_ARRAY=").unwrap()), "{said}");
    assert_eq!(unit, "PINSTRIPE_UNIT=pinstripe@data.service\n");
    assert_eq!(configured.run(&["list"]).ok().out, "no array is served\n");

    configured.run(&["config", "units", "units"]).ok();
    let wanted = world.path("units/pinstripe.target.wants/pinstripe@data.service");
    assert!(fs::read_link(wanted).unwrap().ends_with("pinstripe@.service"));
    let more = fs::read_to_string(world.path("units/pinstripe@data.service.d/50-pinstripe.conf")).unwrap();
    assert!(more.contains("pinstripe.toml:5\n[Unit]\n"), "{more}");

    configured.write("pinstripe.toml", &DATA.replace("name = 'data'", "name = 'data'\nauto = false"));
    let said = configured.run(&["incremental", "--export", &members[0]]).ok().out;
    assert!(said.starts_with("PINSTRIPE_ARRAY=") && !said.contains("UNIT"), "{said}");
    // A disk's links come after the rules: that its members are named by links must not leave it to mdadm.
    configured.write("pinstripe.toml", &format!("{DATA}members = ['@/by-id/*']\n"));
    assert_eq!(
        configured.run(&["incremental", "--export", &members[0]]).ok().out,
        format!("{array}\n{unit}")
    );
    configured.write("pinstripe.toml", &DATA.replace("'data'", "'other'"));
    assert_eq!(configured.run(&["incremental", "--export", &members[0]]).ok().out, "");
}

/// The command in a process with a watchdog of its own, as systemd says it: `WATCHDOG_PID`.
fn watched(plain: &Command) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", "export WATCHDOG_PID=$$; exec \"$@\"", "sh"]);
    command.arg(plain.get_program()).args(plain.get_args());
    if let Some(folder) = plain.get_current_dir() {
        command.current_dir(folder);
    }
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// What has joined by `add`, or from the pool, no entry names.
#[test]
fn an_array_with_a_member_that_has_joined_on_a_server_is_stopped_before_the_network() {
    let uuid = "6d41c174:a77e88e8:3d543c04:9a78354b";
    let configured = Configured::new(&format!("[[array]]\nname = 'data'\nuuid = '{uuid}'\n"));
    let more = |folder: &str| {
        configured.run(&["config", "units", folder]).ok();
        let file = format!("{folder}/pinstripe@data.service.d/50-pinstripe.conf");
        fs::read_to_string(configured.world.path(&file)).unwrap()
    };
    let network = "After=network-online.target";
    assert!(!more("before").contains(network));
    let device = "nvme-tcp://192.0.2.1:4420/nqn.2026-01.com.example:a?nsid=1";
    let joined = serde_json::json!([{ "device": device, "lasting_name": null, "slot": 1 }]).to_string();
    configured.write(&format!("state/joined/{}.json", uuid.replace(':', "")), &joined);
    assert!(more("after").contains(network));
}

#[test]
fn the_devices_of_a_target_are_not_mdadms() {
    let configured = Configured::new(SCAN);
    let world = &configured.world;
    let members = world.raid5(3);
    let told = |device: &str, links: &str| {
        configured.run_with(("DEVLINKS", links), &["incremental", "--export", device])
    };
    let is_left = |device: &str, links: &str| told(device, links).ok().out.is_empty();
    let target = |device: &str, more: &str| {
        let text = format!(
            "{SCAN}[[target]]\nname = 'store'\nlisten = '127.0.0.1:4420'\nnqn = 'nqn.2026-01.com.example:store'\n\
            devices = ['{device}']\n{more}"
        );
        configured.write("pinstripe.toml", &text);
    };
    assert!(is_left(&members[0], ""), "a member of an array of mdadm's, perhaps");
    let uuid = configured.run(&["examine", "--scan", "--json"]).ok().json()["arrays"][0]["uuid"].clone();
    // An error in its entry doesn't make it mdadm's.
    for more in ["", "shard = 2\n"] {
        target("@/member0", more);
        let said = told(&members[0], "").ok().out;
        assert_eq!(said, format!("PINSTRIPE_ARRAY={}\n", uuid.as_str().unwrap()), "and it has no unit");
        assert!(is_left(&members[1], ""), "another one's");
    }
    // As at a boot, before udev has made the links.
    target("/dev/disk/by-id/x-1", "");
    assert!(!is_left(&members[0], "/dev/disk/by-path/y /dev/disk/by-id/x-1"));
    assert!(is_left(&members[0], "/dev/disk/by-id/x-12") && is_left(&members[0], ""));
    // mdadm knows more kinds of members.
    target("@/other", "");
    assert_eq!(told(&world.file("other", 8 << 20), "").ok().out, "PINSTRIPE_ARRAY=unknown\n");
}

/// A thread that waits for such a disk can't be ended.
#[test]
fn a_disk_that_hangs_holds_up_no_array_that_it_is_none_of() {
    if !may_mount() {
        return;
    }
    let other = World::new();
    let hangs = other.serve(&["--shards", "1", "--fuse", "disk"], &other.raid5(3));
    let disk = other.path("disk").display().to_string();
    let configured = Configured::new(&DATA.replace("'@/member*'", &format!("'@/member*', '{disk}'")));
    let (world, manager) = (&configured.world, Manager::new(&configured.world));
    world.raid5(3);
    hangs.signal("STOP");
    let begun = Instant::now();
    let mut unit = manager.start(watched(&configured.foreground(&manager)));
    let until = |words: &str| {
        let mut told = String::new();
        while !told.contains(words) && begun.elapsed() < PATIENCE {
            told += &manager.next().unwrap_or_default();
        }
        told
    };
    let told = until("READY=1");
    assert!(told.contains("MAINPID=") && told.contains("READY=1"), "{told}");
    let took = begun.elapsed();
    // As often as its watchdog wants it, and not as without one: every ten seconds.
    let ready = Instant::now();
    (0..4).for_each(|_| drop(until("WATCHDOG=1")));
    assert!(ready.elapsed() < Duration::from_secs(15), "the manager would end it: {:?}", ready.elapsed());
    let list = configured.run(&["list", "--json"]).ok().json();
    hangs.signal("CONT");
    assert_eq!(list[0]["name"], "data", "{list}");
    assert!(took < Duration::from_secs(15), "{took:?}");
    assert_eq!(unit.child.wait().unwrap().code(), Some(0));
    configured.run(&["stop", "data"]).ok();

    // Nor others that are assembled with it.
    hangs.signal("STOP");
    let begun = Instant::now();
    let (scan, took) = std::thread::scope(|scope| {
        let scan = scope.spawn(|| configured.run(&["assemble", "--scan", "--json"]));
        while configured.run(&["list", "--json"]).ok().json()[0]["name"] != "data"
            && begun.elapsed() < PATIENCE
        {
            std::thread::sleep(Duration::from_millis(200));
        }
        let took = begun.elapsed();
        hangs.signal("CONT");
        (scan.join().unwrap(), took)
    });
    assert_eq!(scan.ok().json()[0]["state"], "started");
    assert!(took < Duration::from_secs(15), "{took:?}");
    other.run(&["stop", "data", "--force"]).ok();
}

#[test]
fn an_error_in_one_entry_keeps_no_other_array_from_being_served_at_a_boot() {
    let configured = Configured::new(&format!("{DATA}[[array]]\nname = 'other'\nshard = 2\n"));
    let (world, manager) = (&configured.world, Manager::new(&configured.world));
    let members = world.raid5(3);
    let at_boot = |name: &str| {
        world.path(&format!("units/pinstripe.target.wants/pinstripe@{name}.service")).is_symlink()
    };
    configured.run(&["config", "units", "units"]).refused(1, &["toml:9: unknown key \"shard\""]);
    assert!(at_boot("data") && !at_boot("other"));
    let export = || configured.run(&["incremental", "--export", &members[0]]).ok().out;
    let right = export();
    assert!(right.ends_with("\nPINSTRIPE_UNIT=pinstripe@data.service\n"), "{right}");
    let mut unit = manager.start(configured.foreground(&manager));
    unit.wait("READY=1");
    unit.signal("TERM");
    assert_eq!(unit.child.wait().unwrap().code(), Some(0));

    // Its own entry: nothing starts it, and it isn't mdadm's.
    fs::remove_dir_all(world.path("units")).unwrap();
    fs::remove_file(world.path("pinstripe/data.last")).unwrap();
    configured.write("pinstripe.toml", &format!("{DATA}shard = 2\n[[array]]\nname = 'other'\n"));
    configured.run(&["config", "units", "units"]).refused(1, &["toml:7: unknown key \"shard\""]);
    assert!(!at_boot("data") && at_boot("other"));
    assert_eq!(format!("{}PINSTRIPE_UNIT=pinstripe@data.service\n", export()), right);
    let said = manager.start(configured.foreground(&manager)).refused();
    assert!(said.contains("unknown key"), "{said}");

    // What holds for all arrays is no entry's, and what can't be read may be.
    fs::remove_dir_all(world.path("units")).unwrap();
    for wrong in ["[defaults]\nshard = 1\n[[array]]\nname = 'data'\n", "[[array]]\nname = 'data'\nx = \n"] {
        configured.write("pinstripe.toml", wrong);
        configured.run(&["config", "units", "units"]).refused(1, &["pinstripe.toml:"]);
        assert!(!at_boot("data"));
    }
}

/// What bash would complete after these words.
fn completed(configured: &Configured, words: &[&str]) -> Vec<String> {
    let mut command = configured.world.command(&[]);
    command.arg("--").arg("pinstripe").args(words);
    command.env("PINSTRIPE_COMPLETE", "bash").env("_CLAP_COMPLETE_INDEX", words.len().to_string());
    command.env("_CLAP_IFS", "\n").env("PINSTRIPE_CONFIG", configured.world.path("pinstripe.toml"));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn shells_complete_the_names_of_arrays_that_are_served_and_of_those_that_are_configured() {
    let text = DATA.to_owned() + "[[array]]\nname = 'home'\n";
    let configured = Configured::new(&text);
    configured.world.raid5(3);
    let has = |words: &[&str], name: &str| completed(&configured, words).iter().any(|word| word == name);
    assert!(!has(&["detail", ""], "data"), "it isn't served");
    assert!(has(&["assemble", "--name", ""], "data") && has(&["assemble", "--name", "h"], "home"));
    configured.run(&["assemble", "--name", "data"]).ok();
    assert!(has(&["detail", ""], "data") && has(&["stop", "d"], "data") && has(&["monitor", ""], "data"));
    assert!(!has(&["detail", ""], "home") && !has(&["detail", "x"], "data"));
    assert!(has(&["det"], "detail") && has(&["detail", "--t"], "--test"));
    for (shell, word) in [("bash", "complete "), ("zsh", "#compdef pinstripe"), ("fish", "complete ")] {
        let script = configured.run(&["completions", shell]).ok().out;
        assert!(script.contains(word) && script.contains("PINSTRIPE_COMPLETE"), "{script}");
    }
}

#[test]
fn a_stop_can_wait_for_clients_to_leave_and_commands_take_a_uuid_as_units_do() {
    let configured = Configured::new(DATA);
    let world = &configured.world;
    world.raid5(3);
    let started = configured.run(&["assemble", "--name", "data", "--json"]).ok().json();
    let uuid = started[0]["uuid"].as_str().unwrap().to_owned();
    // As MD writes it, and as udev and units have it.
    for form in [uuid.clone(), uuid.replace(':', "-").to_uppercase(), uuid.replace(':', "")] {
        assert_eq!(configured.run(&["detail", &form, "--json"]).ok().json()["name"], "data");
    }
    configured.run(&["detail", &uuid[1..]]).refused(1, &["is not being served"]);
    let client = Client::connect(&world.path("pinstripe/data.nbd"));
    configured.run(&["stop", &uuid]).refused(1, &["the array is in use"]);
    let stop = {
        let mut command = world.command(&["stop", "--wait", "60", &uuid]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(configured.run(&["list", "--json"]).ok().json().as_array().map(Vec::len), Some(1), "it waits");
    drop(client);
    Ran::of(&stop.wait_with_output().unwrap()).ok();
    assert_eq!(configured.run(&["list", "--json"]).ok().json(), Value::Array(Vec::new()));
    // What has a UUID for a name is assembled by it, too.
    configured.run(&["assemble", "--name", &uuid]).ok();
}
