//! Servers under a service manager: what it is told (sd_notify), and what the package's units, rules and
//! completions ask of the command.

use std::{
    fs,
    os::unix::net::UnixDatagram,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{
    configured::{Configured, DATA, SCAN},
    nbd::{Client, pattern},
    world::{Ran, World},
};

const LIMIT: Duration = Duration::from_secs(30);

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
            assert!(ended.is_none() && begun.elapsed() < LIMIT, "never {wanted}: {told:?}, {ended:?}");
        }
    }

    fn signal(&self, name: &str) {
        signal(self.child.id(), name);
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
    let begun = Instant::now();
    for _ in 0..8 {
        unit.wait("WATCHDOG=1");
    }
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "a sign of life in each quarter of the watchdog's time"
    );
    let list = configured.run(&["list", "--json"]).ok().json();
    assert_eq!(list[0]["name"], "data", "{list}");

    // A member is lost: the manager's status says so.
    configured.run(&["fail", "data", "1"]).ok();
    unit.wait("degraded: 1 of 3 members missing");

    // Another program takes the server's place, in the process that the manager knows.
    configured.run(&["upgrade", "data"]).ok();
    let told = unit.wait("READY=1").concat();
    assert!(!told.contains("STOPPING") && !told.contains("EXTEND_TIMEOUT"), "{told}");
    unit.wait("WATCHDOG=1");

    let words = ["data is served already by process ", &unit.child.id().to_string(), "`pinstripe stop "];
    let second = configured.foreground(&manager).output().unwrap();
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(words.iter().all(|word| said.contains(word)), "{said}");

    unit.signal("TERM");
    let last = unit.wait("STOPPING=1");
    assert!(last.last().unwrap().contains("EXTEND_TIMEOUT_USEC=60000000"), "{last:?}");
    assert_eq!(unit.child.wait().unwrap().code(), Some(0));
    let examined = world.run(&["examine", "--json", &members[0]]).ok().json();
    assert!(examined.to_string().contains("\"clean\":true"), "{examined}");
}

#[test]
fn a_server_that_died_is_started_as_it_was_while_the_configuration_has_an_error() {
    let configured = Configured::new(DATA);
    let (world, manager) = (&configured.world, Manager::new(&configured.world));
    world.raid5(3);
    let broken = || configured.write("conf.d/other.toml", "x = ");
    broken();
    let first = configured.foreground(&manager).output().unwrap();
    assert_eq!(first.status.code(), Some(1), "it was never started");
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
    configured.run(&["assemble", "--scan", "--foreground"]).refused(64, &["--scan"]);
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
    let mut signs = 0;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        signs += usize::from(manager.next().is_some_and(|told| told.contains("WATCHDOG=1")));
    }
    assert!(!written.is_finished(), "the member answered, and this shows nothing");
    store.signal("CONT");
    assert!(signs > 10, "{signs} signs of life in five times the watchdog's time");
    assert_eq!(written.join().unwrap(), 0);
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
fn a_stop_can_wait_for_clients_to_leave_and_takes_a_uuid_as_units_do() {
    let configured = Configured::new(DATA);
    let world = &configured.world;
    world.raid5(3);
    let started = configured.run(&["assemble", "--name", "data", "--json"]).ok().json();
    let uuid = started[0]["uuid"].as_str().unwrap().to_owned();
    let client = Client::connect(&world.path("pinstripe/data.nbd"));
    configured.run(&["stop", &uuid]).refused(1, &["the array is in use"]);
    let stop = {
        let mut command = world.command(&["stop", "--wait", "30", &uuid]);
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
