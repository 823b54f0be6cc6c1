//! Arrays by configuration: found, assembled, and completed by devices that appear.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    time::{Duration, Instant},
};

use pinstripe_md::{
    identity::Uuid,
    superblock::{MetadataVersion, Superblock},
};
use serde_json::Value;

use crate::{
    nbd::{Client, pattern},
    tls::Authority,
    world::{LoopDevice, MEMBER_BYTES, World, wait_until},
};

/// A world with a configuration whose scan finds the files `member*` and what else the globs say.
pub struct Configured {
    pub world: World,
}

impl Configured {
    pub fn new(text: &str) -> Self {
        let configured = Self { world: World::new() };
        configured.write("pinstripe.toml", text);
        configured
    }

    /// `@` in the text is the folder.
    pub fn write(&self, name: &str, text: &str) {
        let folder = self.world.path("").display().to_string();
        let path = self.world.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text.replace("@/", &folder)).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    }

    /// The same, of what can be run.
    pub fn program(&self, name: &str, text: &str) {
        let folder = self.world.path("").display().to_string();
        self.world.program(name, &text.replace("@/", &folder));
    }

    pub fn run(&self, arguments: &[&str]) -> crate::world::Ran {
        let path = self.world.path("pinstripe.toml").display().to_string();
        self.world.run_with(("PINSTRIPE_CONFIG", &path), arguments)
    }

    /// The same, with a variable in its environment.
    pub fn run_with(&self, (name, value): (&str, &str), arguments: &[&str]) -> crate::world::Ran {
        let mut command = self.world.command(arguments);
        command.env("PINSTRIPE_CONFIG", self.world.path("pinstripe.toml")).env(name, value);
        crate::world::Ran::of(&command.output().unwrap())
    }

    fn assemble(&self) -> Vec<Value> {
        let ran = self.run(&["assemble", "--scan", "--json"]).ok();
        ran.json().as_array().unwrap().clone()
    }
}

impl Drop for Configured {
    fn drop(&mut self) {
        // What was assembled is no child of the test.
        let arrays = self.world.run(&["list", "--json"]);
        for array in
            serde_json::from_str::<Value>(&arrays.out).unwrap_or_default().as_array().into_iter().flatten()
        {
            let _ = self.world.run(&["stop", array["control"].as_str().unwrap_or_default(), "--force"]);
        }
    }
}

pub const SCAN: &str = "[scan]\ndevices = ['@/member*']\n[defaults]\nshards = 1\n";
/// The same, with all arrays served that are found.
pub const ALL: &str = "[scan]\ndevices = ['@/member*']\nassemble = 'all'\n[defaults]\nshards = 1\n";
pub const DATA: &str = "[scan]\ndevices = ['@/member*']\n[defaults]\nshards = 1\n[[array]]\nname = 'data'\n";

/// The UUIDs of two arrays that are both called data.
pub fn two_of_one_name(configured: &Configured) -> [String; 2] {
    let members = configured.world.members(6);
    [&members[..3], &members[3..]].map(|members| {
        configured.world.create(&["--level", "5", "--name", "data", "--assume-clean"], members).ok();
        let examined = configured.run(&["examine", &members[0], "--json"]).ok().json();
        examined[0]["member"]["array"]["uuid"].as_str().unwrap_or_else(|| panic!("{examined}")).to_owned()
    })
}

#[test]
fn all_arrays_of_one_name_are_served_and_which_one_has_it_is_no_chance() {
    let configured = Configured::new(SCAN);
    let mut uuids = two_of_one_name(&configured);
    uuids.sort();
    let [low, high] = &uuids;
    let control = |uuid: &str| {
        let detail = configured.run(&["assemble", "--uuid", uuid, "--json"]).ok().json();
        let control = detail[0]["control"].as_str().unwrap_or_else(|| panic!("{detail}"));
        control.rsplit_once('/').unwrap().1.to_owned()
    };
    let called = format!("data_{}", high.split(':').next().unwrap());
    configured
        .write("pinstripe.toml", &format!("{SCAN}[[array]]\nuuid = '{high}'\n[[array]]\nuuid = '{low}'\n"));
    for first in [low, high] {
        control(first);
        let said = configured.run(&["assemble", "--scan"]).ok();
        assert!(first == high || said.error.contains("another array has this name"), "{}", said.error);
        assert_eq!(
            (control(low), control(high)),
            ("data.sock".to_owned(), format!("{called}.sock")),
            "{first}"
        );
        for name in ["data", &called] {
            configured.run(&["stop", name]).ok();
        }
    }
    // What is not to be started gives way.
    configured.write("pinstripe.toml", &format!("{SCAN}[[array]]\nuuid = '{high}'\n"));
    assert_eq!(control(high), "data.sock");
    // And what had it when its server was killed has it again.
    configured.write("pinstripe.toml", SCAN);
    configured.kill_server("data");
    wait_until("it is gone", || configured.run(&["list"]).out == "no array is served\n");
    assert_eq!((control(low), control(high)), (format!("data_{}.sock", &low[..8]), "data.sock".to_owned()));
}

/// Also where each entry says where its members are.
#[test]
fn entries_with_members_of_their_own_agree_on_which_array_has_the_name() {
    let configured = Configured::new(SCAN);
    let uuids = two_of_one_name(&configured);
    let high = uuids.iter().max().unwrap();
    let entry = |(index, uuid): (usize, &String)| {
        let first = 3 * index;
        let members: Vec<String> = (first..first + 3).map(|number| format!("'@/member{number}'")).collect();
        format!("[[array]]\nuuid = '{uuid}'\nname = 'data'\nmembers = [{}]\n", members.join(", "))
    };
    let entries: Vec<String> = uuids.iter().enumerate().map(entry).collect();
    configured.write("pinstripe.toml", &format!("[defaults]\nshards = 1\n{}", entries.concat()));
    let started = configured.assemble();
    let called = |array: &Value| array["control"].as_str().unwrap().rsplit_once('/').unwrap().1.to_owned();
    for (uuid, array) in uuids.iter().zip(&started) {
        let expected =
            if uuid == high { format!("data_{}.sock", &high[..8]) } else { "data.sock".to_owned() };
        assert_eq!((array["uuid"].as_str().unwrap(), called(array)), (uuid.as_str(), expected));
    }
    // And where a device that appears is what completes it.
    for name in ["data", &format!("data_{}", &high[..8])] {
        configured.run(&["stop", name]).ok();
    }
    let slot = if *high == uuids[0] { 0 } else { 3 };
    let ran = configured.run(&["incremental", &format!("member{slot}"), "--json"]).ok().json();
    assert_eq!(called(&ran), format!("data_{}.sock", &high[..8]), "{ran}");
}

/// Both would be `/dev/pinstripe/a_b`.
#[test]
fn arrays_of_names_that_udev_makes_one_are_told_apart_as_those_of_one_name() {
    let configured = Configured::new(&SCAN.replace("[defaults]", "assemble = 'all'\n[defaults]"));
    let members = configured.world.members(6);
    for (name, members) in [("a b", &members[..3]), ("a_b", &members[3..])] {
        configured.world.create(&["--level", "5", "--name", name, "--assume-clean"], members).ok();
    }
    let mut called: Vec<String> = configured
        .assemble()
        .iter()
        .map(|array| array["control"].as_str().unwrap().rsplit_once('/').unwrap().1.to_owned())
        .collect();
    called.sort_by_key(String::len);
    assert!(["a b.sock", "a_b.sock"].contains(&called[0].as_str()), "{called:?}");
    assert_eq!(called[1].len(), "a_b_01234567.sock".len(), "{called:?}");
}

#[test]
fn an_entry_that_says_a_name_is_meant_before_one_whose_array_has_it() {
    let configured = Configured::new(SCAN);
    let [one, other] = two_of_one_name(&configured);
    configured.write(
        "pinstripe.toml",
        &format!("{SCAN}[[array]]\nuuid = '{one}'\n[[array]]\nuuid = '{other}'\nname = 'data'\n"),
    );
    // As its unit does.
    let would = configured.run(&["assemble", "--name", "data", "--dry-run", "--json"]).ok().json();
    assert_eq!((&would[0]["uuid"], &would[0]["state"]), (&other.into(), &"would-start".into()), "{would}");
    assert_eq!(would.as_array().unwrap().len(), 1);
}

#[test]
fn the_server_of_another_hosts_array_of_one_name_is_not_taken_for_its_own() {
    let entries = "[[array]]\nname = 'one:data'\n[[array]]\nname = 'two:data'\n";
    let configured = Configured::new(&format!("{SCAN}{entries}"));
    let world = &configured.world;
    world.create(&["--level", "5", "--name", "two:data", "--assume-clean"], &world.members(3)).ok();
    let states = || {
        let all = configured.run(&["assemble", "--scan", "--json"]).json();
        [0, 1].map(|index| all[index]["state"].as_str().unwrap_or_else(|| panic!("{all}")).to_owned())
    };
    assert_eq!(states(), ["not-started", "started"]);
    assert_eq!(states(), ["not-started", "served"]);
}

#[test]
fn an_array_is_found_configured_assembled_used_and_stopped() {
    let configured = Configured::new(SCAN);
    let world = &configured.world;
    world.raid5(3);
    let found = configured.run(&["examine", "--scan"]).ok().out;
    assert!(found.contains("raid5, 3 of 3 members") && found.contains("name = \"data\""), "{found}");
    assert!(found.contains("\n# Then: pinstripe assemble --scan\n"), "{found}");
    configured.write("conf.d/found.toml", &found);
    let checked = configured.run(&["config", "check"]).ok().out;
    assert_eq!(checked, "OK: 1 array of 2 files\n");
    let again = configured.run(&["examine", "--scan"]).ok().out;
    assert!(
        again.contains("# Configured already: ") && again.lines().all(|line| line.starts_with('#')),
        "{again}"
    );

    let would = configured.run(&["assemble", "--scan", "--dry-run"]).ok().out;
    assert!(
        would.contains("data: would start: serve --shards=1 --joined --expect-uuid=")
            && would.contains("member2"),
        "{would}"
    );
    assert_eq!(configured.run(&["list"]).ok().out, "no array is served\n");

    let started = configured.assemble();
    assert_eq!(
        (started.len(), &started[0]["state"], &started[0]["degraded"]),
        (1, &"started".into(), &false.into())
    );
    let socket =
        started[0]["addresses"][0]["uri"].as_str().unwrap().split_once("socket=").unwrap().1.to_owned();
    let mut client = Client::connect(std::path::Path::new(&socket));
    let data = pattern(1, 1 << 20);
    assert_eq!(client.write(0, &data), 0);
    assert!(client.read(0, data.len()) == data);
    drop(client);
    let list = configured.run(&["list"]).ok().out;
    assert!(list.contains("data: raid5") && list.contains("3 members"), "{list}");
    let log = fs::read_to_string(started[0]["log"].as_str().unwrap()).unwrap();
    assert!(log.contains("ready: raid5 array data"), "{log}");
    // A session of its own: the end of the terminal is not its end.
    let stat = fs::read_to_string(format!("/proc/{}/stat", started[0]["pid"])).unwrap();
    let session = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(3).unwrap();
    assert_eq!(session, started[0]["pid"].to_string());

    let again = configured.assemble();
    assert_eq!((&again[0]["state"], &again[0]["control"]), (&"served".into(), &started[0]["control"]));
    let scanned = configured.run(&["examine", "--scan", "--json"]).ok().json();
    assert_eq!(scanned["arrays"][0]["control"], started[0]["control"]);
    configured.run(&["stop", "data"]).ok();
    assert_eq!(configured.assemble()[0]["state"], "started", "after the end, it is started anew");
}

#[test]
fn what_is_wrong_with_the_configuration_is_said_with_its_lines_and_nothing_is_started() {
    let configured = Configured::new("[[array]]\nname = 'data'\npolicy = 'fast'\nshard = 2\n");
    configured.world.raid5(3);
    configured.write(
        "conf.d/a.toml",
        "[[array]]\nname = 'b'\nnbd = ['tcp:here']\nshards = 0\nsync-speed-min = 5\nsync-speed-max = 4\n",
    );
    let checked =
        configured.run(&["config", "check"]).refused(1, &["pinstripe.toml:4: unknown key \"shard\""]);
    assert!(
        !checked.error.contains("invalid value"),
        "values are looked at when all keys are right: {}",
        checked.error
    );
    configured.write("pinstripe.toml", "[[array]]\nname = 'data'\npolicy = 'fast'\n");
    let words = [
        "pinstripe.toml:3: \"policy\": invalid value 'fast'",
        "a.toml:3: \"nbd\": ",
        "a.toml:4: \"shards\": ",
    ];
    configured.run(&["config", "check"]).refused(1, &words);
    configured.run(&["assemble", "--scan"]).refused(1, &words);
    let json = configured.run(&["config", "check", "--json"]);
    assert_eq!((json.status, json.json()["errors"].as_array().unwrap().len()), (1, 4), "{}", json.out);
    configured
        .run(&["config", "check", "/nowhere/x.toml"])
        .refused(1, &["/nowhere/x.toml: the configuration can't be read"]);
    configured.run(&["assemble"]).refused(64, &["--scan"]);
}

#[test]
fn what_can_not_work_is_wrong_and_what_is_not_there_yet_is_a_warning() {
    let check = |text: &str| {
        let configured = Configured::new(text);
        (configured.run(&["config", "check"]), configured.run(&["config", "check", "--json"]).json())
    };
    let two =
        |one: &str, other: &str| format!("[[array]]\nname = 'a'\n{one}\n[[array]]\nname = 'b'\n{other}\n");
    let nvme = |address: &str| format!("nvme-tcp = '{address}'\nallow-remote = true");
    let nbd = "nbd = ['tcp:127.0.0.1:10809']";
    let wrong = [
        ("[[array]]\nname = 'a'\nspare-pool = ['foo']\n".to_owned(), "foo"),
        (two(&nvme("127.0.0.1:4420"), &nvme("127.0.0.1:4420")), "127.0.0.1:4420"),
        (two(&nvme("127.0.0.1:4420"), &nvme("0.0.0.0:4420")), "4420"),
        (two(nbd, nbd), "127.0.0.1:10809"),
        (two(nbd, &nvme("127.0.0.1:10809")), "127.0.0.1:10809"),
        (two("nbd = ['unix:/run/x']", "vhost-user = '/run/x'"), "/run/x"),
        (two("fuse = '/srv/x'", "fuse = '/srv/x'"), "/srv/x"),
        (two("ublk = 3", "ublk = 3"), "/dev/ublkb3"),
        (
            "[web]\nlisten = '127.0.0.1:9661'\n[metrics]\nlisten = '127.0.0.1:9661'\n".to_owned(),
            "127.0.0.1:9661",
        ),
        (format!("[metrics]\nlisten = '127.0.0.1:10809'\n[[array]]\nname = 'a'\n{nbd}\n"), "127.0.0.1:10809"),
    ];
    for (text, word) in wrong {
        let (ran, json) = check(&text);
        let ran = ran.refused(1, &["pinstripe.toml:", word]);
        assert_eq!(json["errors"].as_array().unwrap().len(), 1, "{text}: {}", ran.error);
    }
    let nothing = two("nvme-tcp = '127.0.0.1:0'", "nvme-tcp = '127.0.0.1:0'");
    let apart = two(&nvme("127.0.0.1:4420"), &nvme("127.0.0.2:4420"));
    for right in
        [nothing, apart, two(nbd, "nbd = ['tcp:127.0.0.1:10810']"), two("ublk = true", "ublk = true")]
    {
        let (ran, json) = check(&right);
        let out = ran.ok().out;
        assert!(json["warnings"].as_array().unwrap().is_empty() && out.starts_with("OK: 2 arrays"), "{out}");
    }
    let missing = [
        ("[alerts]\nprogram = '/nowhere/tell'\n", "/nowhere/tell"),
        ("[[array]]\nname = 'a'\nlog = '/nowhere/log'\n", "/nowhere"),
        (
            "[[array]]\nname = 'a'\nnvme-tcp = '127.0.0.1:0'\ndhchap-hosts = '/nowhere/hosts'\n",
            "/nowhere/hosts",
        ),
        ("[defaults]\nnvme-tls-secrets = '/nowhere/keys'\n[[array]]\nname = 'a'\n", "/nowhere/keys"),
        (
            "[web]\nlisten = '127.0.0.1:9661'\ntls-certificates = '/nowhere/tls'\n[[array]]\nname = 'a'\n\
             nbd = ['tcp:127.0.0.1:0']\ntls-certificates = '/nowhere/tls'\n",
            "/nowhere/tls",
        ),
    ];
    for (text, word) in missing {
        let (ran, json) = check(text);
        let ran = ran.ok();
        assert!(
            ran.out.starts_with("OK: ") && ran.error.contains("warning: ") && ran.error.contains(word),
            "{text}: {}",
            ran.error
        );
        let warnings = json["warnings"].as_array().unwrap();
        assert!((1..=2).contains(&warnings.len()), "{warnings:?}");
        assert!(warnings.iter().all(|one| one["warning"].as_str().unwrap().contains(word)), "{warnings:?}");
    }
}

#[test]
fn certificates_that_can_not_be_used_are_warned_of() {
    let web = "[web]\nlisten = '127.0.0.1:9661'\ntls-certificates = '@/tls'\n";
    let text = format!(
        "{web}[[array]]\nname = 'a'\nnbd = ['tcp:127.0.0.1:0']\ntls-certificates = '@/tls'\n\
         [[array]]\nname = 'b'\nnbd = ['tcp:127.0.0.1:0']\ntls-certificates = '@/tls'\ntls-clients = 'any'\n"
    );
    let configured = Configured::new(&text);
    let world = &configured.world;
    let check = || configured.run(&["config", "check"]).ok().error;
    fs::create_dir(world.path("tls")).unwrap();
    let said = check();
    let (all, lines): (Vec<_>, _) = (said.lines().collect(), ["toml: ", "toml:7: ", "toml:11: "]);
    assert!(all.len() == 3 && lines.iter().all(|line| said.contains(line)), "{said}");
    let words = ["server-cert.pem can't be read", "a service manager that hands the files over"];
    assert!(all.iter().all(|line| words.iter().all(|word| line.contains(word))), "{said}");

    Authority::new().put(world, "tls");
    assert_eq!(check(), "");
    // Only clients that need a certificate need an authority.
    fs::remove_file(world.path("tls/ca-cert.pem")).unwrap();
    let said = check();
    assert!(said.lines().count() == 1 && said.contains("toml:7: \"tls-certificates\": "), "{said}");
    assert!(said.contains("ca-cert.pem can't be read") && !said.contains("service manager"), "{said}");
}

#[test]
fn a_configuration_that_others_can_write_is_refused() {
    let configured = Configured::new(DATA);
    fs::set_permissions(configured.world.path("pinstripe.toml"), fs::Permissions::from_mode(0o666)).unwrap();
    configured.run(&["assemble", "--scan"]).refused(1, &["can be written by other users", "chmod"]);
}

#[test]
fn a_person_has_an_array_started_without_a_member_that_is_late() {
    let configured = Configured::new(DATA);
    let world = &configured.world;
    let members = world.raid5(4);
    let away = |slot: usize| world.path(&format!("away{slot}"));
    for slot in [1, 3] {
        fs::rename(world.path(&members[slot]), away(slot)).unwrap();
    }
    let run = |options: &[&str]| {
        let name = ["assemble", "--name", "data", "--json"];
        configured.run(&[&name[..], options].concat())
    };
    run(&["--run"]).refused(1, &["too few members"]);
    fs::rename(away(3), world.path(&members[3])).unwrap();
    run(&[]).refused(1, &["slot 1 is missing", "`pinstripe assemble --run --name NAME`"]);
    configured.run(&["assemble", "--scan", "--run"]).refused(64, &["--scan"]);
    let started = run(&["--run"]).ok().json();
    assert_eq!((&started[0]["state"], &started[0]["degraded"]), (&"started".into(), &true.into()));
}

#[test]
fn an_array_that_lacks_members_is_not_started_unless_the_configuration_says_so() {
    let configured = Configured::new(DATA);
    let world = &configured.world;
    let members = world.raid5(4);
    fs::rename(world.path(&members[1]), world.path("away")).unwrap();
    configured
        .run(&["assemble", "--scan"])
        .refused(1, &["data was not started", "slot 1 is missing", "run-after"]);
    fs::rename(world.path(&members[3]), world.path("away3")).unwrap();
    let refused = configured.run(&["assemble", "--scan", "--json"]);
    assert_eq!(refused.status, 1);
    let value = &refused.json()[0];
    assert_eq!(
        (&value["state"], &value["missing_slots"]),
        (&"not-started".into(), &serde_json::json!([1, 3]))
    );
    assert!(value["error"].as_str().unwrap().contains("too few members"), "{value}");
    assert_eq!(configured.run(&["list"]).ok().out, "no array is served\n");

    configured.write("pinstripe.toml", &format!("{DATA}run-after = 2\n"));
    let begun = Instant::now();
    configured.run(&["assemble", "--scan"]).refused(1, &["too few members"]);
    assert!(begun.elapsed() >= Duration::from_secs(2), "members that are late are waited for");
    fs::rename(world.path("away3"), world.path(&members[3])).unwrap();
    let started = configured.assemble();
    assert_eq!((&started[0]["state"], &started[0]["degraded"]), (&"started".into(), &true.into()));

    // The device appears after all. Whether it is the member or a copy no program can tell.
    fs::rename(world.path("away"), world.path(&members[1])).unwrap();
    let device = world.path(&members[1]).display().to_string();
    let left = configured.run(&["incremental", "--json", &device]).ok().json();
    assert_eq!(left["state"], "left-alone");
    assert!(left["why"].as_str().unwrap().contains("pinstripe add"), "{left}");
    assert_eq!(configured.run(&["detail", "data", "--json"]).ok().json()["degraded"], true);
    configured.run(&["add", "data", &device]).ok();
}

#[test]
fn a_failed_member_that_something_else_holds_keeps_its_array_from_nothing() {
    let configured = Configured::new(DATA);
    let world = &configured.world;
    let members = world.raid5(3);
    let server = world.serve(&["--shards", "1"], &members);
    world.run(&["fail", "data", "1"]).ok();
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
    // Such as a copy to save what is on it, or a lock of a disk that refuses writes.
    let rescue = ["--listen", "127.0.0.1:0", "--nqn", "nqn.2026-11.test:rescue"];
    let rescue = world.target(&rescue, &members[1..2]);
    world.serve_refused(&[], &members).refused(1, &["member1", "held by another process"]);
    let started = configured.assemble();
    assert_eq!((&started[0]["state"], &started[0]["degraded"]), (&"started".into(), &true.into()));
    let log = fs::read_to_string(started[0]["log"].as_str().unwrap()).unwrap();
    assert!(log.contains("member1 is left out: the array has gone on without it"), "{log}");
    drop(rescue);
    configured.run(&["add", "data", &members[1]]).ok();
}

#[test]
fn a_spare_that_something_else_holds_keeps_its_array_from_nothing() {
    let configured = Configured::new(DATA);
    let world = &configured.world;
    let members = [world.raid5(3), vec![world.file("member3", MEMBER_BYTES)]].concat();
    let server = world.serve(&["--shards", "1"], &members[..3]);
    world.run(&["add", "data", &world.path("member3").display().to_string()]).ok();
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
    let other = ["--listen", "127.0.0.1:0", "--nqn", "nqn.2026-11.test:other"];
    let other = world.target(&other, &members[3..]);
    world.serve_refused(&[], &members).refused(1, &["member3", "held by another process"]);
    let started = configured.assemble();
    assert_eq!((&started[0]["state"], &started[0]["degraded"]), (&"started".into(), &false.into()));
    let log = fs::read_to_string(started[0]["log"].as_str().unwrap()).unwrap();
    assert!(log.contains("member3") && log.contains("the array is started without it"), "{log}");
    world.run(&["stop", "data"]).ok();
    drop(other);
    // A member isn't done without like this.
    let other = ["--listen", "127.0.0.1:0", "--nqn", "nqn.2026-11.test:other"];
    let _other = world.target(&other, &members[..1]);
    configured.run(&["assemble", "--scan"]).refused(1, &["member0", "held by another process"]);
}

#[test]
fn a_member_whose_bad_block_log_makes_no_sense_is_one_that_is_missing() {
    let configured = Configured::new(DATA);
    let world = &configured.world;
    let members = world.raid5(3);
    let mut superblock = superblock(world, &members[1], MetadataVersion::V1_2);
    world.poke(&members[1], superblock.bad_block_log_sector().unwrap().0 * 512, &[0; 8]);
    superblock.member.bad_block_log.as_mut().unwrap().in_use = true;
    world.poke(&members[1], 4096, &superblock.encode(512).unwrap());
    let words = ["member1: the bad-block log", "Without this device: slot 1", "--run"];
    world.serve_refused(&[], &members).refused(1, &words);
    let words = ["slot 1 is missing", "member1: its bad-block log can't be used"];
    configured.run(&["assemble", "--scan"]).refused(1, &words);
    configured.write("pinstripe.toml", &format!("{DATA}run-after = 1\n"));
    let started = configured.assemble().remove(0);
    assert_eq!((&started["state"], &started["degraded"]), (&"started".into(), &true.into()), "{started}");
}

/// What is left without the device is older than that, and would be served as it was then.
#[test]
fn a_member_whose_bad_block_log_makes_no_sense_tells_that_another_one_is_out_of_date() {
    let configured = Configured::new(&format!("{DATA}run-after = 1\n"));
    let world = &configured.world;
    let members = world.raid5(2);
    let server = world.serve(&["--shards", "1"], &members);
    world.run(&["fail", "data", "1"]).ok();
    assert_eq!(Client::connect(&server.nbd()).write(0, &pattern(1, 4096)), 0);
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
    let mut newest = superblock(world, &members[0], MetadataVersion::V1_2);
    newest.member.bad_block_log.as_mut().unwrap().in_use = true;
    world.poke(&members[0], newest.bad_block_log_sector().unwrap().0 * 512, &[0; 8]);
    world.poke(&members[0], 4096, &newest.encode(512).unwrap());
    let words = ["too few members are here", "member0: its bad-block log can't be used"];
    configured.run(&["assemble", "--scan"]).refused(1, &words);
    assert_eq!(configured.run(&["list"]).ok().out, "no array is served\n");
    // A copy of it, of which all can be read, is not in doubt.
    let copy = world.path("member2");
    fs::copy(world.path(&members[0]), &copy).unwrap();
    let mut sound = newest;
    sound.member.bad_block_log.as_mut().unwrap().in_use = false;
    world.poke("member2", 4096, &sound.encode(512).unwrap());
    let started = configured.assemble().remove(0);
    assert_eq!((&started["state"], &started["degraded"]), (&"started".into(), &true.into()), "{started}");
}

#[test]
fn a_copy_is_refused_also_when_it_was_used_by_itself() {
    let configured = Configured::new(DATA);
    let world = &configured.world;
    let members = world.raid5(3);
    let copies: Vec<String> = members.iter().map(|member| format!("{member}.copy")).collect();
    for (member, copy) in members.iter().zip(&copies) {
        fs::copy(world.path(member), world.path(copy)).unwrap();
    }
    for _ in 0..3 {
        let server = world.serve(&["--shards", "1"], &copies);
        world.run(&["fail", "data", "0"]).ok();
        world.run(&["remove", "data", "0"]).ok();
        world.run(&["add", "data", "--force", &copies[0]]).ok();
        world.run(&["stop", "data", "--force"]).ok();
        assert_eq!(server.ended(), 0);
    }
    configured.run(&["assemble", "--scan"]).refused(1, &["both say that they are the same member"]);
    assert_eq!(configured.run(&["list"]).ok().out, "no array is served\n");
}

/// The superblock that a member has at one of MD's places.
pub fn superblock(world: &World, member: &str, version: MetadataVersion) -> Superblock {
    let bytes = fs::read(world.path(member)).unwrap();
    let sectors = bytes.len() as u64 / 512;
    let place = version.super_offset(sectors).unwrap();
    Superblock::decode(&bytes[usize::try_from(place.0).unwrap() * 512..][..4096], place, sectors).unwrap()
}

/// With metadata 1.0 a client that writes at byte 4096 of the array writes where metadata 1.2 has its
/// superblock.
#[test]
fn what_a_client_writes_takes_no_member_away_and_gives_it_to_no_array() {
    let entries = "[[array]]\nname = 'own'\n[[array]]\nname = 'victim'\n";
    let configured = Configured::new(&format!("{SCAN}{entries}"));
    let world = &configured.world;
    let members = world.members(6);
    let own = ["--level", "5", "--name", "own", "--metadata", "1.0", "--assume-clean"];
    world.create(&own, &members[..3]).ok();
    world.create(&["--level", "5", "--name", "victim", "--assume-clean"], &members[3..]).ok();
    let victims = |member: &str, identity: Uuid| {
        let mut superblock = superblock(world, member, MetadataVersion::V1_2);
        superblock.array.set_uuid = identity;
        superblock.encode(512).unwrap()
    };
    let victim = superblock(world, &members[3], MetadataVersion::V1_2).array.set_uuid;
    let server = world.serve(&["--shards", "1"], &members[..3]);
    let forged = victims(&members[3], victim);
    assert_eq!(Client::connect(&server.nbd()).write(4096, &forged), 0);
    world.run(&["stop", "own"]).ok();
    assert_eq!(server.ended(), 0);
    assert_eq!(superblock(world, &members[0], MetadataVersion::V1_2).array.set_uuid, victim);
    let states: Vec<Value> = configured.assemble().iter().map(|array| array["state"].clone()).collect();
    assert_eq!(states, ["started", "started"]);
    for name in ["own", "victim"] {
        assert_eq!(configured.run(&["detail", name, "--json"]).ok().json()["degraded"], false);
        world.run(&["stop", name]).ok();
    }

    // On all members: nothing else tells than the UUID.
    let evil = Uuid([0x66; 16]);
    for (member, other) in members[..3].iter().zip(&members[3..]) {
        world.poke(member, 4096, &victims(other, evil));
    }
    let own = superblock(world, &members[0], MetadataVersion::V1_0).array.set_uuid.to_string();
    let before = world.hashes(&members);
    let words = ["member0 holds superblocks of", &own, &evil.to_string(), "--uuid"];
    world.serve_refused(&[], &members[..3]).refused(1, &words);
    configured.run(&["assemble", "--name", "own"]).refused(1, &words);
    assert_eq!(world.hashes(&members), before);
    let other = evil.to_string();
    let started = configured.run(&["assemble", "--uuid", &own, "--json"]).ok().json();
    assert_eq!((&started[0]["state"], &started[0]["uuid"]), (&"started".into(), &own.clone().into()));
    world.run(&["stop", "own"]).ok();
    configured.write("pinstripe.toml", &format!("{SCAN}[[array]]\nuuid = '{own}'\n"));
    assert_eq!(configured.assemble()[0]["state"], "started");
    world.run(&["stop", "own"]).ok();
    let server = world.serve(&["--shards", "1", "--uuid", &own], &members[..3]);
    assert_eq!(server.ready["uuid"], own);
    world.run(&["stop", "own"]).ok();
    // What both ask for is as unclear as before.
    let both = format!("{SCAN}[[array]]\nuuid = '{own}'\n[[array]]\nuuid = '{other}'\n");
    configured.write("pinstripe.toml", &both);
    let (unclear, before) = (["nothing tells which one is its own"], world.hashes(&members));
    configured.run(&["assemble", "--scan"]).refused(1, &unclear);
    // As the units of both ask, each for its own.
    for uuid in [&own, &other] {
        configured.run(&["assemble", "--name", uuid]).refused(1, &unclear);
        configured.run(&["assemble", "--foreground", "--name", uuid]).refused(1, &unclear);
    }
    assert_eq!(world.hashes(&members), before);
    assert_eq!(configured.run(&["assemble", "--uuid", &own, "--json"]).ok().json()[0]["state"], "started");
    world.run(&["stop", "own"]).ok();
}

#[test]
fn a_disk_and_its_part_with_different_superblocks_are_not_chosen_between() {
    let configured = Configured::new(DATA);
    let world = &configured.world;
    // An array of whole disks, and later another one of their partitions: both superblocks stand.
    let disks = world.raid5(3);
    let part = |disk: &String| LoopDevice::new(world, disk, &["--offset", "1048576"]);
    let Some(parts) = disks.iter().map(part).collect::<Option<Vec<_>>>() else { return };
    let paths: Vec<String> = parts.iter().map(|part| part.path.clone()).collect();
    world.run(&[&["create", "--level", "5", "--name", "later"], &words(&paths)[..]].concat()).ok();
    let quoted: Vec<String> = paths.iter().map(|path| format!("'{path}'")).collect();
    let scan = format!("[scan]\nassemble = 'all'\ndevices = ['@/member*', {}]\n", quoted.join(", "));
    configured.write("pinstripe.toml", &scan);
    let found = configured.run(&["examine", "--scan", "--json"]).ok().json();
    let obstacles: Vec<&Value> =
        found["arrays"].as_array().unwrap().iter().map(|array| &array["obstacle"]).collect();
    assert_eq!(obstacles.len(), 2, "{found}");
    assert!(
        obstacles.iter().all(|why| why.as_str().is_some_and(|why| why.contains("different superblocks"))),
        "{found}"
    );
    configured.run(&["assemble", "--scan"]).ok();
    assert_eq!(configured.run(&["list"]).ok().out, "no array is served\n");
    configured
        .run(&["assemble", "--name", "later"])
        .refused(1, &["different superblocks", "zero-superblock"]);
}

fn words(texts: &[String]) -> Vec<&str> {
    texts.iter().map(String::as_str).collect()
}

#[test]
fn what_an_entry_forbids_is_not_started_as_an_array_without_one() {
    let all = "[scan]\nassemble = 'all'\ndevices = ['@/member*']\n";
    let elsewhere = "[[array]]\nname = 'data'\nauto = false\nmembers = ['@/nowhere*']\n";
    let configured = Configured::new(&format!("{all}{elsewhere}"));
    configured.world.raid5(3);
    configured.run(&["assemble", "--scan"]).ok();
    assert_eq!(configured.run(&["list"]).ok().out, "no array is served\n");
    configured.write("pinstripe.toml", all);
    configured.run(&["assemble", "--scan"]).ok();
    assert!(configured.run(&["list"]).ok().out.contains("data"));
}

#[test]
fn a_device_that_could_not_be_read_may_be_the_missing_member() {
    let configured = Configured::new(DATA);
    let world = &configured.world;
    let members = world.raid5(3);
    // The magic number stands, and the checksum does not fit.
    world.poke(&members[1], 4096 + 100, &[0x55; 8]);
    configured.run(&["assemble", "--scan"]).refused(1, &["slot 1 is missing", "could not be read"]);
    assert_eq!(configured.run(&["list"]).ok().out, "no array is served\n");
    // Or it is never read again, and the array would wait for it for ever.
    configured.write("pinstripe.toml", &format!("{DATA}run-after = 1\n"));
    let started = configured.assemble().remove(0);
    assert_eq!((&started["state"], &started["degraded"]), (&"started".into(), &true.into()), "{started}");
}

#[test]
fn the_last_device_that_appears_starts_the_array() {
    let configured = Configured::new(DATA);
    let world = &configured.world;
    let members = world.raid5(3);
    let device = |slot: usize| world.path(&members[slot]).display().to_string();
    fs::rename(device(2), world.path("away")).unwrap();
    let waiting = configured.run(&["incremental", "--json", &device(0)]).ok().json();
    assert_eq!(waiting["state"], "waiting", "{waiting}");
    assert!(waiting["why"].as_str().unwrap().contains("slot 2 is missing"), "{waiting}");
    fs::rename(world.path("away"), device(2)).unwrap();
    let started = configured.run(&["incremental", "--json", &device(2)]).ok().json();
    assert_eq!((&started["state"], &started["degraded"]), (&"started".into(), &false.into()));
}

#[test]
fn programs_that_the_daemon_would_run_and_that_are_not_there_are_warned_of() {
    let text = "[alerts]\nwebhook = 'http://127.0.0.1:9/'\n[[array]]\nname = 'a'\nhealth = 'replace'\n";
    let configured = Configured::new(text);
    let path = configured.world.path("pinstripe.toml").display().to_string();
    let check =
        |folder: &str| configured.world.run_with(("PATH", folder), &["config", "check", &path]).ok().error;
    let said = check("/nowhere");
    assert!(said.contains("\"webhook\" of [alerts]: there is no curl in $PATH now: install curl"), "{said}");
    assert!(said.contains("pinstripe.toml:3: \"health\": there is no smartctl"), "{said}");
    for program in ["curl", "smartctl"] {
        configured.write(&format!("bin/{program}"), "");
    }
    assert_eq!(check(configured.world.path("bin").to_str().unwrap()), "");
}

#[test]
fn a_device_that_the_next_start_would_not_find_is_warned_of() {
    let configured = Configured::new(&format!("{DATA}members = ['@/member[0-2]']\n"));
    configured.world.raid5(3);
    assert_eq!(configured.assemble()[0]["state"], "started");
    for name in ["other", "member9"] {
        configured.world.file(name, MEMBER_BYTES);
    }
    let add = |name: &str| {
        let error = configured.run(&["add", "data", name]).ok().error;
        configured.run(&["remove", "data", name]).ok();
        error
    };
    for name in ["other", "member9"] {
        let said = add(name);
        let words =
            ["warning: \"members\" of the [[array]] in", "pinstripe.toml:5", "does not lead to", name];
        assert!(words.iter().all(|words| said.contains(words)), "{said}");
    }
    configured.write("pinstripe.toml", DATA);
    assert_eq!(add("member9"), "");
    assert!(add("other").contains("warning: \"devices\" of [scan] does not lead to"), "{}", add("other"));
    // One that the configuration says nothing of was started by hand.
    configured.write("pinstripe.toml", SCAN);
    assert_eq!(add("other"), "");
}

#[test]
fn what_has_joined_is_a_member_at_the_next_start_and_a_copy_of_it_or_another_device_is_none() {
    let configured = Configured::new(&format!("{DATA}members = ['@/member[0-2]']\n"));
    let world = &configured.world;
    world.raid5(3);
    let started = || {
        let started = configured.assemble().remove(0);
        assert_eq!(started["state"], "started", "{started}");
        started
    };
    let pid = started()["pid"].as_u64().unwrap();
    world.file("new", MEMBER_BYTES);
    configured.run(&["fail", "data", "member1"]).ok();
    let new = world.path("new").display().to_string();
    configured.run(&["add", "data", &new, "--wait"]).ok();
    crate::daemon::signal(pid, "-KILL");
    wait_until("gone", || !world.path(&format!("/proc/{pid}")).exists());

    let again = started();
    assert_eq!(again["degraded"], false, "{again}");
    let detail = configured.run(&["detail", "data", "--json"]).ok().json();
    assert_eq!(detail["members"][1]["device"], new, "{detail}");
    configured.run(&["check", "data"]).ok();
    configured.run(&["stop", "data"]).ok();

    // When it appears, the array is complete.
    fs::rename(&new, world.path("away")).unwrap();
    configured.run(&["assemble", "--scan"]).refused(1, &["slot 1 is missing"]);
    fs::rename(world.path("away"), &new).unwrap();
    let said = configured.run(&["incremental", &new]).ok().out;
    assert!(said.starts_with("data: started") && !said.contains("degraded"), "{said}");
    configured.run(&["stop", "data"]).ok();

    // Another copy of it that the configuration names is the one that counts.
    fs::copy(world.path("new"), world.path("copy")).unwrap();
    configured.write("pinstripe.toml", &format!("{DATA}members = ['@/member[02]', '@/copy']\n"));
    assert_eq!(started()["degraded"], false);
    let detail = configured.run(&["detail", "data", "--json"]).ok().json();
    assert!(detail["members"][1]["device"].as_str().unwrap().ends_with("/copy"), "{detail}");
    configured.run(&["stop", "data"]).ok();

    // What is another array's by now is left alone.
    configured.write("pinstripe.toml", &format!("{DATA}members = ['@/member[0-2]']\n"));
    let others = ["new".to_owned(), world.file("one", MEMBER_BYTES), world.file("two", MEMBER_BYTES)];
    world.create(&["--level", "5", "--name", "other", "--force"], &others).ok();
    let before = world.hashes(&["new".to_owned()]);
    let ran = configured.run(&["assemble", "--scan"]);
    ran.refused(1, &["slot 1 is missing"]);
    assert_eq!(world.hashes(&["new".to_owned()]), before);
}

#[test]
fn an_array_of_which_all_named_members_have_been_replaced_is_found_by_its_uuid() {
    let configured = Configured::new(SCAN);
    let world = &configured.world;
    world.raid5(3);
    let examined = configured.run(&["examine", "--scan", "--json"]).ok().json();
    let uuid = examined["arrays"][0]["uuid"].as_str().unwrap();
    let entry = format!("{SCAN}[[array]]\nuuid = '{uuid}'\nmembers = ['@/member[0-2]']\n");
    configured.write("pinstripe.toml", &entry);
    let is_whole = || {
        let started = configured.assemble().remove(0);
        assert_eq!(
            (&started["state"], &started["degraded"]),
            (&"started".into(), &false.into()),
            "{started}"
        );
    };
    is_whole();
    let replace = |slot: usize, with: &str| {
        configured.run(&["replace", "data", &slot.to_string(), "--with", with, "--wait"]).ok();
    };
    for slot in 0..3 {
        let new = world.path(&world.file(&format!("new{slot}"), MEMBER_BYTES)).display().to_string();
        replace(slot, &new);
    }
    configured.run(&["stop", "data"]).ok();
    (0..3).for_each(|slot| fs::remove_file(world.path(&format!("member{slot}"))).unwrap());
    is_whole();

    // On servers, too.
    let files: Vec<String> = (0..3).map(|slot| world.file(&format!("far{slot}"), MEMBER_BYTES)).collect();
    let words = ["--listen", "127.0.0.1:0", "--nqn", "nqn.2026-01.com.example:members", "--shards", "1"];
    let store = world.target(&words, &files);
    for slot in 0..3 {
        replace(slot, store.ready["namespaces"][slot].as_str().unwrap());
    }
    configured.run(&["stop", "data"]).ok();
    (0..3).for_each(|slot| fs::remove_file(world.path(&format!("new{slot}"))).unwrap());
    is_whole();
    configured.run(&["stop", "data"]).ok();
}

#[test]
fn what_is_removed_or_can_not_be_kept_is_not_looked_for() {
    let configured = Configured::new(&format!("{DATA}members = ['@/member[0-2]']\n"));
    let world = &configured.world;
    world.raid5(3);
    world.file("new", MEMBER_BYTES);
    let started = configured.assemble().remove(0);
    let kept = || fs::read_dir(world.path("state/joined")).map_or(0, Iterator::count);
    assert_eq!(kept(), 0);
    configured.run(&["add", "data", "new"]).ok();
    assert_eq!(kept(), 1);
    configured.run(&["remove", "data", "new"]).ok();
    wait_until("forgotten", || kept() == 0);
    fs::remove_dir(world.path("state/joined")).unwrap();
    fs::write(world.path("state/joined"), "").unwrap();
    configured.run(&["add", "data", "new"]).ok();
    let log = fs::read_to_string(started["log"].as_str().unwrap()).unwrap();
    assert!(log.contains("can't be kept in") && log.contains("name them in its [[array]]"), "{log}");
    let text = configured.run(&["detail", "data"]).ok().out;
    assert!(text.contains("\nwarning: which devices have joined the array can't be kept"), "{text}");
    fs::remove_file(world.path("state/joined")).unwrap();
    wait_until("kept after all", || !configured.run(&["detail", "data"]).ok().out.contains("warning: "));
}

#[test]
fn what_is_served_is_not_mdadms_even_where_it_is_not_configured() {
    let configured = Configured::new(SCAN);
    let world = &configured.world;
    let members = world.raid5(3);
    let device = world.path(&members[0]).display().to_string();
    let told = || configured.run(&["incremental", "--export", &device]).ok().out;
    assert_eq!(told(), "", "a member of an array of mdadm's, perhaps");
    configured.run(&["assemble", "--name", "data"]).ok();
    let uuid = configured.run(&["detail", "data", "--json"]).ok().json()["uuid"].clone();
    assert_eq!(told(), format!("PINSTRIPE_ARRAY={}\n", uuid.as_str().unwrap()), "and it has no unit");
    configured.run(&["stop", "data"]).ok();
    assert_eq!(told(), "");

    // A server that died has the members no more.
    configured.run(&["assemble", "--name", "data"]).ok();
    assert_ne!(told(), "");
    configured.kill_server("data");
    // Until the kernel has closed all that it had.
    wait_until("let go of", || told().is_empty());
}

#[test]
fn an_error_that_is_about_all_arrays_leaves_none_to_mdadm() {
    let configured = Configured::new(DATA);
    let world = &configured.world;
    let members = world.raid5(3);
    let device = world.path(&members[0]).display().to_string();
    let export = || configured.run(&["incremental", "--export", &device]);
    let told = export().ok().out;
    let (array, unit) = told.split_once('\n').unwrap();
    assert!(
        array.starts_with("PINSTRIPE_ARRAY=") && unit.starts_with("PINSTRIPE_UNIT=pinstripe@data"),
        "{told}"
    );
    configured.write("conf.d/defaults.toml", "[defaults]\nshard = 2\n");
    assert_eq!(export().ok().out, format!("{array}\n"), "it is ours, and nothing is started");
    // It may have this array's entry: what udev knew before counts.
    configured.write("pinstripe.toml", &DATA.replace("data", "other"));
    configured.write("conf.d/defaults.toml", "nonsense");
    export().refused(1, &["defaults.toml:1"]);
}

#[test]
fn what_is_not_configured_is_left_alone() {
    let configured = Configured::new(SCAN);
    let world = &configured.world;
    let members = world.raid5(3);
    let hashes = world.hashes(&members);
    let device = world.path(&members[0]).display().to_string();
    let left = configured.run(&["incremental", &device]).ok().out;
    assert!(left.contains("is not configured"), "{left}");
    let empty = world.path(&world.file("empty", MEMBER_BYTES)).display().to_string();
    let left = configured.run(&["incremental", &empty]).ok().out;
    assert!(left.contains("holds no member"), "{left}");
    let scan = configured.run(&["assemble", "--scan"]).ok().out;
    assert!(scan.starts_with("no array is configured to be started: `pinstripe examine --scan`"), "{scan}");

    configured.write("pinstripe.toml", &format!("{DATA}auto = false\n"));
    let scan = configured.run(&["assemble", "--scan"]).ok().out;
    assert!(scan.starts_with("no array is configured to be started: `pinstripe examine --scan`"), "{scan}");
    let left = configured.run(&["incremental", &device]).ok().out;
    assert!(left.contains("auto = false"), "{left}");
    configured.write("pinstripe.toml", &format!("{DATA}members = ['@/other*']\n"));
    let left = configured.run(&["incremental", &device]).ok().out;
    assert!(left.contains("elsewhere only"), "{left}");
    configured
        .run(&["assemble", "--scan"])
        .refused(1, &["no member of it was found", "other* matches nothing"]);
    assert_eq!(world.hashes(&members), hashes, "nothing was written");

    // By name or uuid it is asked for, and with `assemble = "all"` every one is.
    configured.write("pinstripe.toml", SCAN);
    configured.run(&["assemble", "--name", "other"]).refused(1, &["no array with the name other"]);
    assert!(configured.run(&["assemble", "--name", "data"]).ok().out.contains("data: started: raid5"));
    configured.run(&["stop", "data"]).ok();
    configured.write("pinstripe.toml", &SCAN.replace("[defaults]", "assemble = 'all'\n[defaults]"));
    assert_eq!(configured.assemble()[0]["state"], "started");
}

#[test]
fn one_device_by_two_paths_is_one_member_and_its_copy_is_refused() {
    let configured = Configured::new(DATA);
    let world = &configured.world;
    let members = world.raid5(3);
    std::os::unix::fs::symlink(world.path(&members[0]), world.path("member-link")).unwrap();
    fs::hard_link(world.path(&members[1]), world.path("member-hard")).unwrap();
    let scanned = configured.run(&["examine", "--scan", "--json"]).ok().json();
    let found = &scanned["arrays"][0];
    assert_eq!(
        (found["members"].as_array().unwrap().len(), &found["obstacle"]),
        (3, &Value::Null),
        "{found}"
    );
    assert_eq!(found["members"][0]["also"].as_array().unwrap().len(), 1, "{found}");
    assert_eq!(configured.assemble()[0]["state"], "started");
    configured.run(&["stop", "data"]).ok();

    fs::copy(world.path(&members[2]), world.path("member-copy")).unwrap();
    configured
        .run(&["assemble", "--scan"])
        .refused(1, &["member-copy", "member2", "both say that they are the same member"]);
    configured.write("pinstripe.toml", &format!("{DATA}members = ['@/member[0-2]']\n"));
    assert_eq!(configured.assemble()[0]["state"], "started");
}

#[test]
fn a_loop_device_and_its_file_are_one_member() {
    let configured = Configured::new(
        "[scan]\ndevices = ['@/member*', '/dev/loop*']\n[defaults]\nshards = 1\n[[array]]\nname = 'looped'\n",
    );
    let world = &configured.world;
    let members = world.members(3);
    world.create(&["--level", "5", "--name", "looped", "--metadata", "1.0", "--assume-clean"], &members).ok();
    let Some(_device) = LoopDevice::new(world, &members[0], &[]) else { return };
    let scanned = configured.run(&["examine", "--scan", "--json"]).ok().json();
    let arrays = scanned["arrays"].as_array().unwrap();
    let found = arrays.iter().find(|array| array["name"].as_str().unwrap().ends_with("looped")).unwrap();
    assert_eq!(found["members"].as_array().unwrap().len(), 3, "{found}");
    assert_eq!(configured.assemble()[0]["state"], "started");
}

#[test]
fn an_array_that_another_process_has_is_not_taken() {
    let configured = Configured::new(DATA);
    let world = &configured.world;
    let members = world.raid5(3);
    let other = world.path("elsewhere");
    fs::create_dir(&other).unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o700)).unwrap();
    // Its control socket is not one that we look at.
    let server =
        world.serve_with(("PINSTRIPE_RUNTIME_DIR", other.to_str().unwrap()), &["--shards", "1"], &members);
    let refused = configured.run(&["assemble", "--scan"]);
    refused.refused(
        1,
        &["data was not started: its server ended with status 1", "member0 is held by another process"],
    );
    drop(server);
}

#[test]
fn two_that_assemble_at_once_start_one_server() {
    let configured = Configured::new(DATA);
    configured.world.raid5(3);
    let states = std::thread::scope(|scope| {
        let both: Vec<_> =
            (0..2).map(|_| scope.spawn(|| configured.assemble()[0]["state"].clone())).collect();
        let mut states: Vec<String> =
            both.into_iter().map(|one| one.join().unwrap().as_str().unwrap().to_owned()).collect();
        states.sort();
        states
    });
    assert_eq!(states, ["served", "started"]);
}

#[test]
fn an_assembler_waits_for_its_turn_with_an_array() {
    let configured = Configured::new(DATA);
    let world = &configured.world;
    world.raid5(3);
    assert_eq!(configured.assemble()[0]["state"], "started");
    configured.run(&["stop", "data"]).ok();
    let turn = fs::File::open(lock_file(world).unwrap()).unwrap();
    turn.lock().unwrap();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| configured.assemble()[0]["state"].clone());
        std::thread::sleep(Duration::from_millis(500));
        assert!(!other.is_finished(), "it is another one's turn");
        assert_eq!(configured.run(&["list"]).ok().out, "no array is served\n");
        let hurried = configured.run(&["assemble", "--name", "data", "--timeout", "1"]);
        hurried.refused(1, &["another start of it is under way", "for 1 seconds"]);
        turn.unlock().unwrap();
        assert_eq!(other.join().unwrap(), "started");
    });
}

#[test]
fn members_on_servers_do_not_stand_for_those_of_this_machine() {
    let configured = Configured::new(SCAN);
    configured.world.raid5(3);
    let members =
        "[[array]]\nname = 'data'\nmembers = ['@/member0', 'nvme-tcp://127.0.0.1:9/nqn.a?nsid=1']\n";
    configured.write("pinstripe.toml", members);
    configured.run(&["assemble", "--scan"]).refused(1, &["1 more of its members on this machine"]);
    // With enough of them the server waits itself for those on servers. It is this process's turn meanwhile.
    let waits = "shards = 1\nrun-after = 3\n";
    configured.write("pinstripe.toml", &format!("{}{waits}", members.replace("member0", "member[01]")));
    std::thread::scope(|scope| {
        let assembled = scope.spawn(|| configured.assemble()[0].clone());
        let is_free = || {
            let file = lock_file(&configured.world);
            file.is_some_and(|file| fs::File::open(file).unwrap().try_lock().is_ok())
        };
        let has_begun = || lock_file(&configured.world).is_some();
        wait_until("its turn", || has_begun() && !is_free() || assembled.is_finished());
        wait_until("over", is_free);
        let list = configured.run(&["list"]).ok().out;
        assert!(list.contains("data: raid5"), "the lock is kept until the server answers: {list}");
        let assembled = assembled.join().unwrap();
        assert_eq!((&assembled["state"], &assembled["degraded"]), (&"started".into(), &true.into()));
    });
}

#[test]
fn an_array_with_members_on_servers_is_started_without_one_of_this_machine_that_it_has_lost() {
    let configured = Configured::new(SCAN);
    let world = &configured.world;
    let members = world.raid5(3);
    let words = ["--listen", "127.0.0.1:0", "--nqn", "nqn.2026-01.com.example:members", "--shards", "1"];
    let store = world.target(&words, &members[2..]);
    let remote = store.ready["namespaces"][0].as_str().unwrap().to_owned();
    let entry = format!("[[array]]\nname = 'data'\nmembers = ['@/member[01]', '{remote}']\nshards = 1\n");
    configured.write("pinstripe.toml", &entry);
    let degraded = || {
        let started = configured.assemble().remove(0);
        assert_eq!(started["state"], "started", "{started}");
        started["degraded"].as_bool().unwrap()
    };
    assert!(!degraded());
    configured.run(&["fail", "data", "member0"]).ok();
    configured.run(&["stop", "data"]).ok();
    // By its superblocks it has lost this one for good.
    fs::rename(world.path("member0"), world.path("away")).unwrap();
    assert!(degraded());
    fs::rename(world.path("away"), world.path("member0")).unwrap();
    configured.run(&["add", "data", world.path("member0").to_str().unwrap(), "--wait"]).ok();
    configured.run(&["stop", "data"]).ok();

    // And here it was a member the last time.
    fs::rename(world.path("member0"), world.path("away")).unwrap();
    configured
        .run(&["assemble", "--scan"])
        .refused(1, &["1 more of its members on this machine", "`run-after`"]);
    configured.write("pinstripe.toml", &format!("{entry}run-after = 1\n"));
    assert!(degraded());
    fs::rename(world.path("away"), world.path("member0")).unwrap();
    configured.run(&["add", "data", world.path("member0").to_str().unwrap(), "--wait"]).ok();

    // A server's that it has lost for good.
    configured.write("pinstripe.toml", &entry);
    configured.run(&["fail", "data", &remote]).ok();
    configured.run(&["stop", "data"]).ok();
    drop(store);
    assert!(degraded());
}

/// That of the array which was assembled.
fn lock_file(world: &World) -> Option<std::path::PathBuf> {
    let folder = fs::read_dir(world.path("pinstripe")).ok()?;
    let mut paths = folder.map(|entry| entry.unwrap().path());
    paths.find(|path| path.extension().is_some_and(|extension| extension == "lock"))
}

#[test]
fn two_entries_of_one_array_and_two_arrays_of_one_name_are_refused() {
    let configured = Configured::new(SCAN);
    let world = &configured.world;
    world.raid5(3);
    let uuid = configured.run(&["examine", "--scan", "--json"]).ok().json()["arrays"][0]["uuid"]
        .as_str()
        .unwrap()
        .to_owned();
    configured.write("pinstripe.toml", &format!("{DATA}[[array]]\nuuid = '{uuid}'\n"));
    configured
        .run(&["assemble", "--scan"])
        .refused(1, &["are of one array", "pinstripe.toml:5", "pinstripe.toml:7"]);
    // It is none of mdadm's for that.
    let told = configured.run(&["incremental", "--export", "member0"]).ok().out;
    assert_eq!(told, format!("PINSTRIPE_ARRAY={uuid}\n"));
    configured.run(&["incremental", "member0"]).refused(1, &["pinstripe.toml:5", "pinstripe.toml:7"]);
    let others: Vec<String> = (3..6).map(|slot| world.file(&format!("member{slot}"), MEMBER_BYTES)).collect();
    world.create(&["--level", "5", "--name", "data", "--assume-clean"], &others).ok();
    configured.write("pinstripe.toml", DATA);
    configured.run(&["assemble", "--scan"]).refused(1, &["both have this name", &uuid]);
    configured.write("pinstripe.toml", SCAN);
    configured.run(&["assemble", "--name", "data"]).refused(1, &["several arrays have the name data"]);
    assert!(configured.run(&["assemble", "--uuid", &uuid]).ok().out.contains("started"));
}

/// Gives a member's superblock (version 1.2) another array name, with its checksum.
fn rename(world: &World, member: &str, name: &[u8]) {
    const PLACE: usize = 4096;
    let bytes = fs::read(world.path(member)).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[PLACE + at..PLACE + at + 4].try_into().unwrap());
    let mut superblock = bytes[PLACE..PLACE + 256 + 2 * word(220) as usize].to_vec();
    superblock[32..64].fill(0);
    superblock[32..32 + name.len()].copy_from_slice(name);
    superblock[216..220].fill(0);
    let words =
        superblock.chunks_exact(4).map(|word| u64::from(u32::from_le_bytes(word.try_into().unwrap())));
    let sum: u64 = words.sum();
    let sum = u32::try_from(sum & 0xffff_ffff).unwrap().wrapping_add(u32::try_from(sum >> 32).unwrap());
    superblock[216..220].copy_from_slice(&sum.to_le_bytes());
    world.poke(member, PLACE as u64, &superblock);
}

#[test]
fn a_name_from_a_disk_steers_neither_terminal_nor_paths_nor_the_configuration() {
    let configured = Configured::new(SCAN);
    let world = &configured.world;
    let members = world.raid5(3);
    for member in &members {
        rename(world, member, b"../\x1b[2J\n[scan]\"x");
    }
    let found = configured.run(&["examine", "--scan"]).ok().out;
    assert!(!found.contains('\x1b') && found.lines().all(|line| !line.starts_with("[scan]")), "{found:?}");
    assert!(found.contains("Its name can't stand here"), "{found}");
    configured.write("conf.d/found.toml", &found);
    configured.run(&["config", "check"]).ok();
    let started = configured.run(&["assemble", "--scan"]).ok().out;
    assert!(started.contains("started: raid5") && !started.contains('\x1b'), "{started:?}");
    let folder = fs::read_dir(world.path("pinstripe")).unwrap();
    let names: Vec<String> = folder.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    let is_ours =
        |name: &String| name.split('.').next().unwrap().bytes().all(|byte| byte.is_ascii_hexdigit());
    assert!(names.len() >= 3 && names.iter().all(is_ours), "{names:?}");
}

#[test]
fn a_name_that_is_no_text_matches_no_glob_and_does_not_end_the_scan() {
    use std::os::unix::ffi::OsStrExt;
    let configured = Configured::new(DATA);
    let world = &configured.world;
    let members = world.raid5(3);
    let odd = world.path("").join(std::ffi::OsStr::from_bytes(b"member\xff"));
    fs::rename(world.path(&members[1]), odd).unwrap();
    configured.run(&["assemble", "--scan"]).refused(1, &["slot 1 is missing"]);
}

#[test]
fn without_a_daemon_reload_tells_the_servers_what_they_can_take() {
    let configured = Configured::new(DATA);
    configured.world.raid5(3);
    configured.assemble();
    let told = |key: &str| {
        let detail = configured.run(&["detail", "data", "--json"]).ok().json();
        detail[key].clone()
    };
    configured
        .write("pinstripe.toml", &format!("{DATA}sync-speed-max = 50000\nlimit-iops = 70\ncache = '8M'\n"));
    configured.run(&["reload", "other"]).refused(1, &["the configuration has no array other"]);
    assert_eq!(told("limit")["iops"], 0, "nothing is told before");
    let ran = configured.run(&["reload"]).ok();
    assert!(ran.out.contains("data: its clients' limits are as the configuration has them"), "{}", ran.out);
    assert!(ran.error.contains("all other options count from a server's next start on"), "{}", ran.error);
    assert_eq!((told("sync_speed_max_kib"), told("limit")["iops"].clone()), (50000.into(), 70.into()));
    // By name it is told anew, and what the entry has no more is gone.
    configured.write("pinstripe.toml", DATA);
    let reloaded = configured.run(&["reload", "data", "--json"]).ok().json();
    let effects: Vec<&Value> =
        reloaded["changes"].as_array().unwrap().iter().map(|change| &change["effect"]).collect();
    assert_eq!(effects, ["live", "live"], "{reloaded}");
    assert_eq!(told("limit")["iops"], 0);
    assert_ne!(told("sync_speed_max_kib"), 50000);
    // Arrays without a server are none of this.
    configured.run(&["stop", "data"]).ok();
    assert_eq!(configured.run(&["reload", "--json"]).ok().json()["changes"], serde_json::json!([]));
}

/// By it units and sockets are called, and `import` writes the name whole.
#[test]
fn a_reload_knows_an_array_by_its_name_without_the_host() {
    let text = DATA.replace("'data'", "'away:data'");
    let configured = Configured::new(&text);
    for member in &configured.world.raid5(3) {
        rename(&configured.world, member, b"away:data");
    }
    configured.assemble();
    configured.write("pinstripe.toml", &format!("{text}limit-iops = 70\n"));
    let said = configured.run(&["reload", "data"]).ok().out;
    assert!(said.contains("away:data: its clients' limits"), "{said}");
    assert_eq!(configured.run(&["detail", "data", "--json"]).ok().json()["limit"]["iops"], 70);
    configured.run(&["reload", "away"]).refused(1, &["the configuration has no array away"]);
}

#[test]
fn a_reload_tells_no_array_what_none_of_its_kind_takes() {
    let text = DATA.replace("shards = 1\n", "shards = 1\njournal-mode = 'write-back'\n");
    let configured = Configured::new(&text);
    let members = configured.world.members(2);
    configured.world.create(&["--level", "0", "--name", "data"], &members).ok();
    configured.assemble();
    let reloaded = configured.run(&["reload", "--json"]).ok().json();
    let changes = reloaded["changes"].as_array().unwrap();
    let told = |change: &Value| change["what"].as_str().unwrap().contains("limits");
    assert!(changes.len() == 1 && told(&changes[0]) && changes[0]["effect"] == "live", "{reloaded}");
}
