//! `import` and `release`, as far as they go without the kernel's md: the virtual machine has that.

use std::{fs, path::Path, process::Command};

use pinstripe_md::superblock::{MetadataVersion, Superblock};

use crate::{
    configured::{Configured, SCAN, superblock, two_of_one_name},
    daemon::signal,
    nbd::{Client, pattern},
    world::wait_until,
};

/// A configuration that scans, an array that nothing has, and mdadm's configuration, which names it.
fn world() -> (Configured, String, String) {
    let configured = Configured::new(SCAN);
    configured.world.raid5(3);
    let examined = configured.run(&["examine", "--scan", "--json"]).ok().json();
    let uuid = examined["arrays"][0]["uuid"].as_str().unwrap().to_owned();
    let conf = format!(
        "MAILADDR root\nARRAY /dev/md/data level=raid5\n\tUUID={uuid}\nARRAY <ignore> UUID=0:0:0:0\n"
    );
    configured.write("mdadm.conf", &conf);
    (configured, uuid, conf)
}

impl Configured {
    fn mdadm_conf(&self) -> String {
        fs::read_to_string(self.world.path("mdadm.conf")).unwrap()
    }

    fn import(&self, options: &[&str]) -> crate::world::Ran {
        self.run(&[&["import", "--mdadm-conf", "mdadm.conf"], options].concat())
    }

    fn release(&self, options: &[&str]) -> crate::world::Ran {
        self.run(&[&["release", "--mdadm-conf", "mdadm.conf"], options].concat())
    }

    fn entry(&self, uuid: &str) -> std::path::PathBuf {
        self.world.path(&format!("conf.d/imported-{}.toml", uuid.replace(':', "")))
    }
}

#[test]
fn an_array_goes_from_mdadm_to_us_and_back_and_nothing_of_it_is_left() {
    let (configured, uuid, conf) = world();
    let members: Vec<String> = (0..3).map(|slot| format!("member{slot}")).collect();
    let before = configured.world.hashes(&members);
    let would = configured.import(&["data", "--dry-run"]).ok().out;
    assert!(would.contains("would be changed: mdadm.conf") && would.contains("imported-"), "{would}");
    assert_eq!((configured.mdadm_conf(), configured.world.hashes(&members)), (conf.clone(), before));
    assert!(!configured.entry(&uuid).exists());

    let done = configured.import(&["./member1", "--json"]).ok().json();
    assert_eq!(done["server"]["state"], "started", "{done}");
    // Between two of them both have it: a crash there leaves no array that nothing starts.
    let in_order = |files: &serde_json::Value, order: [&str; 2]| {
        let named = |(file, name): (&serde_json::Value, &&str)| file.as_str().unwrap().contains(*name);
        let files = files.as_array().unwrap();
        assert!(files.len() == 2 && files.iter().zip(&order).all(named), "{files:?}");
    };
    in_order(&done["files"], ["imported-", "mdadm.conf"]);
    let silenced = format!("#pinstripe# ARRAY /dev/md/data level=raid5\n#pinstripe# \tUUID={uuid}\n");
    let now = configured.mdadm_conf();
    assert!(now.contains(&silenced) && now.ends_with(&format!("ARRAY <ignore> UUID={uuid}\n")), "{now}");
    assert_eq!(configured.run(&["config", "check"]).ok().out, "OK: 1 array of 2 files\n");
    configured.import(&["data"]).refused(1, &["is served already", "data.sock"]);

    let mut client = Client::connect(&configured.world.path("pinstripe/data.nbd"));
    assert_eq!(client.write(0, &pattern(1, 65536)), 0);
    configured.release(&["data"]).refused(1, &["is in use by"]);
    assert_eq!(configured.mdadm_conf(), now, "what is refused changes nothing");
    assert!(configured.entry(&uuid).exists());
    drop(client);
    let planned = configured.release(&[&uuid, "--dry-run", "--json"]).ok().json();
    in_order(&planned["files"], ["mdadm.conf", "imported-"]);
    assert!(planned["remarks"].is_array(), "{planned}");
    // As a start by its unit leaves them, by which the next one would go though its entry is gone.
    let last = ["data", &uuid].map(|asked| configured.world.path(&format!("pinstripe/{asked}.last")));
    for path in &last {
        fs::write(path, "[]").unwrap();
    }
    let released = configured.release(&[&uuid]).ok().out;
    assert!(released.contains("mdadm --assemble /dev/md/data"), "{released}");
    assert!(last.iter().all(|path| !path.exists()));
    assert_eq!(configured.mdadm_conf(), conf);
    assert!(!configured.entry(&uuid).exists());
    assert_eq!(configured.run(&["list"]).ok().out, "no array is served\n");
    let scan = configured.run(&["assemble", "--scan"]).ok().out;
    assert!(scan.starts_with("no array is configured to be started: `pinstripe examine --scan`"), "{scan}");
}

#[test]
fn what_is_in_doubt_is_not_imported_and_nothing_is_changed() {
    let (configured, uuid, conf) = world();
    configured.import(&["nothing"]).refused(1, &["no array was found by nothing"]);
    let nowhere = ["import", "data", "--mdadm-conf", "none/mdadm.conf"];
    configured.run(&nowhere).refused(1, &["none is no folder", "--mdadm-conf"]);
    assert!(!configured.world.path("none").exists() && !configured.entry(&uuid).exists());
    let doubtful = format!("{conf}ARRAY /dev/md/data\n");
    configured.write("mdadm.conf", &doubtful);
    configured.import(&["data"]).refused(1, &["mdadm.conf", "line 5", "UUID"]);
    assert_eq!(configured.mdadm_conf(), doubtful);
    configured.write("mdadm.conf", &conf);

    // A later step that fails takes the earlier ones back.
    std::os::unix::fs::symlink("nowhere/at-all", configured.world.path("conf.d")).unwrap();
    configured.import(&["data"]).refused(1, &["can't write", "conf.d/imported-"]);
    fs::remove_file(configured.world.path("conf.d")).unwrap();
    assert_eq!(configured.mdadm_conf(), conf);
    assert!(!configured.entry(&uuid).exists());

    fs::remove_file(configured.world.path("member0")).unwrap();
    fs::remove_file(configured.world.path("member1")).unwrap();
    configured.import(&["data"]).refused(1, &["too few of its members are here"]);
    assert_eq!(configured.mdadm_conf(), conf);
}

#[test]
fn what_a_person_configured_is_for_a_person_to_take_away() {
    let (configured, uuid, _) = world();
    let own = format!("{SCAN}[[array]]\nuuid = '{uuid}'\n");
    configured.write("pinstripe.toml", &own);
    configured.import(&["data"]).ok();
    assert!(!configured.entry(&uuid).exists(), "it has an entry");
    configured.release(&["data"]).refused(1, &["pinstripe.toml:5", "take that [[array]] away"]);
    assert!(configured.run(&["list"]).ok().out.contains("data"), "its server goes on");
    configured.write("pinstripe.toml", &format!("{own}auto = false\n"));
    configured.release(&["data"]).refused(1, &["auto = false"]);
    configured.write("pinstripe.toml", SCAN);
    configured.release(&["data"]).ok();
    configured.write("pinstripe.toml", &format!("{own}auto = false\n"));
    configured.import(&["data"]).refused(1, &["pinstripe.toml:5", "auto = false"]);
}

#[test]
fn what_would_not_be_served_is_not_taken_from_the_kernel() {
    let (configured, uuid, conf) = world();
    let refused = |words: &[&str], options: &[&str]| {
        configured.import(&[&[&*uuid], options].concat()).refused(1, words);
        assert_eq!(configured.mdadm_conf(), conf);
        assert!(!configured.entry(&uuid).exists());
    };
    // An entry of two arrays, one that finds no member, two of one array, and one for no boot.
    let others: Vec<String> =
        ["member6", "member7", "member8"].map(|name| configured.world.file(name, 8 << 20)).into();
    configured.world.create(&["--level=5", "--name=data"], &others).ok();
    configured.write("pinstripe.toml", &format!("{SCAN}[[array]]\nname = 'data'\n"));
    refused(&["both have this name: give the uuid in", "pinstripe.toml:5"], &["--no-start"]);
    for other in others {
        fs::remove_file(configured.world.path(&other)).unwrap();
    }
    configured
        .write("pinstripe.toml", &format!("{SCAN}[[array]]\nname = 'data'\nmembers = ['/dev/nothing*']\n"));
    refused(&["no member of it was found"], &["--no-start"]);
    let two = format!("{SCAN}[[array]]\nname = 'data'\n[[array]]\nuuid = '{uuid}'\n");
    configured.write("pinstripe.toml", &two);
    refused(&["pinstripe.toml:5 and ", "pinstripe.toml:7 are of one array"], &[]);
    configured.write("pinstripe.toml", &format!("{SCAN}auto = false\n"));
    refused(&["auto = false"], &[]);

    // A port that another program has, and certificates that are none.
    let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = other.local_addr().unwrap();
    let entry = format!("{SCAN}[[array]]\nuuid = '{uuid}'\nnbd = ['tcp:{address}']\n");
    configured.write("pinstripe.toml", &entry);
    refused(&["its server could not begin", &format!("can't listen on {address}")], &[]);
    refused(&["can't listen on"], &["--dry-run"]);
    drop(other);
    configured.write("pinstripe.toml", &format!("{entry}tls-certificates = '@/tls'\n"));
    refused(&["its server could not begin", "TLS: "], &[]);
    configured.write("tls/server-key.pem", "no key");
    refused(&["its server could not begin", "TLS: "], &[]);

    // One that lacks a member is only imported to be started by hand.
    configured.write("pinstripe.toml", SCAN);
    fs::remove_file(configured.world.path("member0")).unwrap();
    refused(&["slot 0 is missing", "run-after", "import --no-start"], &[]);
    refused(&["slot 0 is missing"], &["--dry-run"]);
    configured.import(&["data", "--no-start"]).ok();
    assert!(configured.entry(&uuid).exists());
}

#[test]
fn what_is_done_for_an_array_of_mdadms_and_would_not_be_is_told() {
    let (configured, ..) = world();
    let would = configured.import(&["data", "--dry-run"]).ok().out;
    for words in ["`run-after`", "no daemon runs", "`check-every`", "[alerts]"] {
        assert!(would.contains(words), "{words}: {would}");
    }
    configured.write(
        "pinstripe.toml",
        &format!("{SCAN}run-after = 30\ncheck-every = '30d'\n[alerts]\nmail = 'root'\n"),
    );
    let would = configured.import(&["data", "--dry-run", "--json"]).ok().json();
    let remarks: Vec<&str> =
        would["remarks"].as_array().unwrap().iter().filter_map(serde_json::Value::as_str).collect();
    let told = remarks.iter().find(|remark| remark.contains("no daemon runs")).unwrap();
    assert!(!told.contains("check-every") && !told.contains("[alerts]"), "{told}");
    assert!(!remarks.iter().any(|remark| remark.contains("run-after")), "{remarks:?}");
}

#[test]
fn a_bitmap_that_no_start_would_take_is_found_before_the_kernel_lets_the_array_go() {
    let (configured, uuid, conf) = world();
    let members: Vec<String> = (0..3).map(|slot| format!("member{slot}")).collect();
    let examine =
        |member: &str| configured.run(&["examine", member, "--json"]).ok().json()[0]["member"].clone();
    let at = examine("member0")["bitmap"]["sector"].as_u64().unwrap() * 512;
    let sound: Vec<Vec<u8>> =
        members.iter().map(|member| fs::read(configured.world.path(member)).unwrap()).collect();
    let mend = || {
        for (member, sound) in members.iter().zip(&sound) {
            fs::write(configured.world.path(member), sound).unwrap();
        }
    };
    let all: &[usize] = &[0, 1, 2];
    let damages: [(&[usize], u64, &[u8], &str); 6] = [
        (all, 4, &[6], "lockless"),
        (&[2], 4, &[5], "belongs to a cluster"),
        (all, 0, &[0], "no bitmap here"),
        (all, 8, &[0x11], "not this array's"),
        (all, 41, &[0x11], "not this array's"),
        (all, 56, &[0], "daemon_sleep is 0"),
    ];
    for (damaged, offset, bytes, words) in damages {
        for &member in damaged {
            configured.world.poke(&members[member], at + offset, bytes);
        }
        let before = configured.world.hashes(&members);
        let device = members[damaged[0]].as_str();
        configured.import(&["data", "--dry-run"]).refused(1, &["data can't be imported", device, words]);
        configured.import(&["data"]).refused(1, &["data can't be imported", device, words]);
        assert_eq!((configured.mdadm_conf(), configured.world.hashes(&members)), (conf.clone(), before));
        assert!(!configured.entry(&uuid).exists());
        let scanned = configured.run(&["examine", "--scan"]).ok().out;
        assert!(scanned.contains("# Not to be served: ") && scanned.contains(words), "{scanned}");
        let examined = configured.run(&["examine", device]).ok().out;
        assert!(examined.contains("can't be used: ") && examined.contains(words), "{examined}");
        assert!(examined.lines().any(|line| line.contains("can be served") && line.contains("no: ")));
        let examined = examine(device);
        assert_eq!(examined["support"], "refused", "{examined}");
        for told in [&examined["support_reason"], &examined["bitmap"]["error"]] {
            assert!(told.as_str().unwrap().contains(words), "{examined}");
        }
        // What is refused is what a start refuses.
        configured.world.serve_refused(&[], &members).refused(1, &[device, words]);
        mend();
    }
    // Beside sound ones a start does without.
    for (offset, bytes) in [(0, &[0_u8][..]), (8, &[0x11]), (56, &[0]), (52, &512_u32.to_le_bytes())] {
        configured.world.poke(&members[1], at + offset, bytes);
        configured.import(&["data", "--dry-run"]).ok();
        let scanned = configured.run(&["examine", "--scan"]).ok().out;
        assert!(!scanned.contains("# Not to be served: "), "{scanned}");
        mend();
    }
    // Bits that can't be trusted are no fault: all count as set.
    configured.world.poke("member0", at + 48, &[2]);
    for member in ["member0", "member1"] {
        let examined = examine(member);
        assert_eq!(examined["support"], "full", "{examined}");
        assert_eq!(examined["bitmap"]["stale"], member == "member0", "{examined}");
    }
    let done = configured.import(&["data", "--json"]).ok().json();
    assert_eq!(done["server"]["state"], "started", "{done}");
    let detail = configured.run(&["detail", "data"]).ok().out;
    let told = |line: &str| {
        line.contains("out of date or damaged at the start on") && line.contains("member0, so all")
    };
    assert!(detail.lines().any(told), "{detail}");
}

/// MD takes it.
#[test]
fn what_a_start_refuses_is_found_before_the_kernel_lets_the_array_go() {
    let configured = Configured::new(SCAN);
    let world = &configured.world;
    let members = world.members(3);
    let journal = world.file("member3", 32 << 20);
    world.create(&["--level", "5", "--name", "data", "--write-journal", &journal], &members).ok();
    configured.write("mdadm.conf", "");
    let all = [&members[..], std::slice::from_ref(&journal)].concat();
    let sound: Vec<Vec<u8>> = all.iter().map(|name| fs::read(world.path(name)).unwrap()).collect();
    let refused = |words: &[&str]| {
        configured.import(&["data", "--dry-run"]).refused(1, &[&["data can't be imported"], words].concat());
        for (name, sound) in all.iter().zip(&sound) {
            fs::write(world.path(name), sound).unwrap();
        }
    };
    let change = |names: &[String], change: &dyn Fn(&mut Superblock)| {
        for name in names {
            let mut changed = superblock(world, name, MetadataVersion::V1_2);
            change(&mut changed);
            world.poke(name, 4096, &changed.encode(512).unwrap());
        }
    };
    configured.import(&["data", "--dry-run"]).ok();
    change(&all[3..], &|journal| journal.member.data_size.0 = 256);
    refused(&["member3: the journal can't be replayed: it has 32 blocks of 4 KiB", "use a larger device"]);
    change(&members, &|member| member.array.events += 2);
    refused(&["its journal is missing"]);
    change(&all, &|member| member.array.raid_disks = 65);
    let examined = configured.run(&["examine", "member0"]).ok().out;
    let told = |line: &str| line.contains("can be served") && line.contains("no: ") && line.contains("64");
    assert!(examined.lines().any(told), "{examined}");
    refused(&["the array's geometry can't be served", "64"]);
}

#[test]
fn what_a_person_has_added_to_an_entry_is_kept() {
    let (configured, uuid, _) = world();
    configured.import(&["data"]).ok();
    let entry = configured.entry(&uuid);
    let text = fs::read_to_string(&entry).unwrap() + "run-after = 5\n";
    fs::write(&entry, &text).unwrap();
    configured.release(&["data"]).ok();
    assert!(!entry.exists());
    assert_eq!(fs::read_to_string(entry.with_extension("toml.released")).unwrap(), text);
    // What the first release has kept stays.
    configured.import(&["data", "--no-start"]).ok();
    let later = text.replace('5', "7");
    fs::write(&entry, &later).unwrap();
    configured.release(&["data"]).ok();
    assert_eq!(fs::read_to_string(entry.with_extension("toml.released")).unwrap(), text);
    assert_eq!(fs::read_to_string(entry.with_extension("toml.released.2")).unwrap(), later);

    // Also what is as `import` writes it, of another array.
    configured.import(&["data", "--no-start"]).ok();
    let other = "[[array]]\nuuid = \"00000000:00000000:00000000:00000001\"\nname = \"other\"\n";
    let two = fs::read_to_string(&entry).unwrap() + other;
    fs::write(&entry, &two).unwrap();
    configured.release(&["data"]).ok();
    assert_eq!(fs::read_to_string(entry.with_extension("toml.released.3")).unwrap(), two);
    fs::write(&entry, other).unwrap();
    configured.import(&["data"]).refused(1, &["imported-", "holds more"]);

    fs::write(&entry, "[defaults]\nread-only = true\n").unwrap();
    configured.import(&["data"]).refused(1, &["imported-", "holds more"]);
    fs::remove_file(&entry).unwrap();
    configured.import(&["data"]).ok();
}

#[test]
fn what_lies_in_the_current_folder_is_not_taken_for_the_array_of_this_name() {
    let (configured, _, _) = world();
    configured.import(&["data"]).ok();
    let member = fs::read(configured.world.path("member0")).unwrap();
    fs::write(configured.world.path("scratch"), member).unwrap();
    configured.release(&["scratch", "--force"]).refused(1, &["no array was found by scratch", "(with a /)"]);
    let _listener = std::os::unix::net::UnixListener::bind(configured.world.path("other")).unwrap();
    configured.run(&["stop", "other"]).refused(1, &["the array other is not being served"]);
    assert!(configured.run(&["list"]).ok().out.contains("data"));
}

#[test]
fn an_array_that_is_resynced_is_not_stopped_to_be_refused_then() {
    let (configured, uuid, _) = world();
    configured.import(&["data", "--no-start"]).ok();
    let entry = configured.entry(&uuid);
    let text = fs::read_to_string(&entry).unwrap();
    fs::write(&entry, format!("{text}sync-speed-min = 1\nsync-speed-max = 1\n")).unwrap();
    configured.run(&["assemble", "--uuid", &uuid]).ok();
    let mut client = Client::connect(&configured.world.path("pinstripe/data.nbd"));
    assert_eq!(client.write(0, &pattern(1, 4096)), 0);
    configured.kill_server("data");
    configured.run(&["assemble", "--uuid", &uuid]).ok();
    configured.release(&["data", "--dry-run"]).refused(1, &["its server resyncs it"]);
    configured.release(&["data"]).refused(1, &["its server resyncs it"]);
    assert!(configured.run(&["list"]).ok().out.contains("data"), "its server goes on");
    configured.release(&["data", "--force"]).ok();
}

/// Without that, mdadm calls it `/dev/md/data_0` from the next boot on: it has no host in its name.
#[test]
fn a_released_array_of_ours_is_named_in_mdadms_configuration() {
    let (configured, uuid, _) = world();
    configured.write("mdadm.conf", "MAILADDR root");
    let named = format!("MAILADDR root\nARRAY /dev/md/data UUID={uuid}\n");
    for _ in 0..2 {
        configured.import(&["data", "--no-start"]).ok();
        assert!(configured.mdadm_conf().contains(&format!("ARRAY <ignore> UUID={uuid}\n")));
        configured.release(&["data"]).ok();
        assert_eq!(configured.mdadm_conf(), named);
    }
}

#[test]
fn a_command_to_copy_is_quoted_for_the_shell() {
    let configured = Configured::new(SCAN);
    configured.write("mdadm.conf", "");
    let members = configured.world.members(3);
    let name = "we ird'$(id)";
    configured.world.create(&["--level", "5", "--name", name, "--assume-clean"], &members).ok();
    let uuid =
        configured.run(&["examine", "member0", "--json"]).ok().json()[0]["member"]["array"]["uuid"].clone();
    let would = configured.release(&[uuid.as_str().unwrap(), "--dry-run"]).ok().out;
    let (_, command) = would.split_once("`mdadm --assemble").unwrap();
    let command = command.split_once("`\n").unwrap().0;
    let words =
        std::process::Command::new("sh").args(["-c", &format!("printf '%s|' {command}")]).output().unwrap();
    let words = String::from_utf8(words.stdout).unwrap();
    let folder = configured.world.path("").display().to_string();
    let devices: Vec<String> = members.iter().map(|member| format!("{folder}{member}|")).collect();
    let devices = devices.concat();
    assert_eq!(words, format!("/dev/md/{name}|{devices}"), "{command}");
}

#[test]
fn an_array_whose_server_is_silent_is_not_released() {
    let (configured, uuid, _) = world();
    configured.import(&["data"]).ok();
    let server = configured.pid("data");
    signal(server, "-STOP");
    let refused = configured.release(&["data"]);
    signal(server, "-CONT");
    refused.refused(1, &["it is not known whether data is served", "data.sock"]);
    assert!(configured.entry(&uuid).exists());
}

/// Of two arrays of one name one is called by its UUID as well.
#[test]
fn the_name_of_an_array_that_is_served_is_seen_before_anything_is_changed_and_after() {
    let configured = Configured::new(SCAN);
    configured.write("mdadm.conf", "MAILADDR root\n");
    let mut uuids = two_of_one_name(&configured);
    uuids.sort();
    // The lower one has the name.
    let [one, other] = uuids;
    configured.run(&["assemble", "--uuid", &one]).ok();
    configured.import(&[&other]).refused(1, &["can't be imported", &one, "is served under its name"]);
    assert!(!configured.entry(&other).exists());

    configured.write("pinstripe.toml", &format!("{SCAN}[[array]]\nname = 'data'\nuuid = '{one}'\n"));
    configured.import(&[&other]).ok();
    let called = format!("data_{}", &other[..8]);
    let server = configured.pid(&called);
    signal(server, "-STOP");
    let refused = configured.release(&[&other]);
    signal(server, "-CONT");
    refused.refused(1, &["it is not known whether data is served", &format!("{called}.sock")]);
    assert!(configured.entry(&other).exists());
}

#[test]
fn an_array_that_was_not_stopped_cleanly_is_kept_from_the_kernel() {
    let (configured, uuid, conf) = world();
    configured.import(&["data"]).ok();
    let mut client = Client::connect(&configured.world.path("pinstripe/data.nbd"));
    assert_eq!(client.write(0, &pattern(1, 4096)), 0);
    configured.kill_server("data");
    configured.release(&["data"]).refused(1, &["is not clean"]);
    assert!(configured.entry(&uuid).exists());
    configured.release(&["data", "--force"]).ok();
    assert_eq!(configured.mdadm_conf(), conf);
}

/// A server that answers `detail` with this, and is told to stop without doing anything.
fn fake_server(socket: &std::path::Path, detail: serde_json::Value) {
    use std::io::{BufRead, BufReader, Write};
    fs::remove_file(socket).unwrap();
    let listener = std::os::unix::net::UnixListener::bind(socket).unwrap();
    let answer = move |mut stream: std::os::unix::net::UnixStream| {
        for line in BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok) {
            let call: serde_json::Value = serde_json::from_str(&line).unwrap();
            let mut answer = serde_json::json!({ "jsonrpc": "2.0", "id": call["id"] });
            match call["method"].as_str() {
                Some("detail") => answer["result"] = detail.clone(),
                Some("stop") => answer["result"] = serde_json::Value::Null,
                _ => answer["error"] = serde_json::json!({ "code": -32601, "message": "not here" }),
            }
            if writeln!(stream, "{answer}").is_err() {
                return;
            }
        }
    };
    std::thread::spawn(move || listener.incoming().map_while(Result::ok).for_each(answer));
}

/// A member may fail while its server ends. What the superblocks said before counts no more.
#[test]
fn an_array_that_its_server_has_not_left_clean_stays_here() {
    let (configured, uuid, _) = world();
    configured.import(&["data"]).ok();
    let detail = configured.run(&["detail", "data", "--json"]).ok().json();
    let socket = configured.world.path("pinstripe/data.sock");
    let mut client = Client::connect(&configured.world.path("pinstripe/data.nbd"));
    assert_eq!(client.write(0, &pattern(1, 65536)), 0);
    configured.kill_server("data");
    wait_until("gone", || configured.run(&["list"]).ok().out == "no array is served\n");
    fake_server(&socket, detail);
    let now = configured.mdadm_conf();
    configured.release(&["data"]).refused(1, &["is not clean", "its server was stopped"]);
    assert_eq!(configured.mdadm_conf(), now);
    assert!(configured.entry(&uuid).exists());
}

/// The kernel refuses it, and nothing here would start it any more.
#[test]
fn an_array_that_only_its_double_parity_log_makes_whole_is_not_released_by_force() {
    let configured = Configured::new(SCAN);
    let world = &configured.world;
    let shape =
        ["--level", "6", "--name", "data", "--assume-clean", "--consistency-policy", "double-parity-log"];
    world.create(&shape, &world.members(4)).ok();
    configured.write("mdadm.conf", "");
    configured.import(&["data"]).ok();
    let mut client = Client::connect(&world.path("pinstripe/data.nbd"));
    assert_eq!(client.write(0, &pattern(1, 4096)), 0);
    configured.kill_server("data");
    let (uuid, before) = {
        let examined = configured.run(&["examine", "--scan", "--json"]).ok().json();
        (examined["arrays"][0]["uuid"].as_str().unwrap().to_owned(), configured.mdadm_conf())
    };
    configured.release(&["data", "--force"]).refused(1, &["only its double-parity log"]);
    assert!(configured.entry(&uuid).exists());
    assert_eq!(configured.mdadm_conf(), before);
}

impl Configured {
    /// A command with our program in its path, and what the folder `bin` has.
    fn with_path(&self, mut command: Command) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_pinstripe")).parent().unwrap().to_owned();
        let usual = std::env::var_os("PATH").unwrap();
        let folders = [self.world.path("bin"), program].into_iter().chain(std::env::split_paths(&usual));
        command.env("PATH", std::env::join_paths(folders).unwrap());
        command.env("PINSTRIPE_CONFIG", self.world.path("pinstripe.toml"));
        command.env("PINSTRIPE_STATE_DIR", self.world.path("state"));
        command.env("DPKG_ADMINDIR", self.world.path("dpkg"));
        command
    }

    /// Runs the hook of initramfs-tools, with `ramdisk` as what becomes the initial ramdisk.
    fn hook(&self) -> crate::world::Ran {
        let mut command = Command::new("sh");
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/initramfs/hook"));
        command.env("DESTDIR", self.world.path("ramdisk"));
        crate::world::Ran::of(&self.with_path(command).output().unwrap())
    }

    /// The same for a ramdisk of which mdadm's own hook has made this.
    fn hook_of(&self, copied: &str) -> crate::world::Ran {
        self.write("ramdisk/etc/mdadm/mdadm.conf", copied);
        self.hook()
    }

    fn in_ramdisk(&self, name: &str) -> String {
        fs::read_to_string(self.world.path("ramdisk").join(name)).unwrap()
    }

    fn update_ramdisk(&self) -> Command {
        self.with_path(self.world.command(&["config", "ramdisk", "--update"]))
    }
}

const STORE: &str = "[[target]]\nname = 'store'\nlisten = '127.0.0.1:4420'\n\
    nqn = 'nqn.2026-01.com.example:store'\ndevices = ['/dev/disk/by-id/nvme-A', '@/file']\n";
const IN_RAMDISK: &str = "etc/mdadm/mdadm.conf";

#[test]
fn mdadm_is_told_in_the_initial_ramdisk_which_arrays_are_not_its_own() {
    let configured = Configured::new("[[array]]\nname = 'host:data'\nulbk = true\n");
    configured.hook().ok();
    assert!(!configured.world.path("ramdisk").exists(), "a ramdisk without mdadm stays as it is");
    // What mdadm's own hook makes of members that it finds.
    configured.hook_of("MAILADDR root\nARRAY /dev/md/data name=host:data\n").ok();
    assert_eq!(
        configured.in_ramdisk(IN_RAMDISK),
        "MAILADDR root\n#pinstripe# ARRAY /dev/md/data name=host:data\nARRAY <ignore> name=\"host:data\"\n"
    );
    let names = fs::read_dir(configured.world.path("ramdisk/etc/mdadm")).unwrap();
    assert_eq!(names.count(), 1, "nothing else is left there");
}

#[test]
fn mdadm_is_kept_off_the_devices_of_targets_in_the_initial_ramdisk() {
    let configured = Configured::new(STORE);
    configured.hook_of("MAILADDR root\n").ok();
    let rules = configured.in_ramdisk("lib/udev/rules.d/63-pinstripe.rules");
    assert!(
        rules.contains("\nSYMLINK==\"disk/by-id/nvme-A\", ENV{PINSTRIPE_TARGET}=\"1\"\n"),
        "rules: {rules}"
    );
    assert_eq!(rules, configured.run(&["config", "ramdisk"]).ok().out, "it is noted and compared, too");
    assert_eq!(configured.in_ramdisk(IN_RAMDISK), "MAILADDR root\n");
}

/// An error in a file may be about any array, and what mdadm has once taken at a boot our units don't get.
#[test]
fn a_ramdisk_that_is_made_while_the_configuration_is_wrong_says_what_the_others_say() {
    let array = "[[array]]\nname = 'host:data'\n";
    let configured = Configured::new(&(array.to_owned() + STORE));
    let said = configured.run(&["config", "ramdisk"]).ok().out;
    configured.write("state/ramdisk", &said);
    configured.write("pinstripe.toml", &format!("{array}{STORE}[[array"));
    configured.write("conf.d/a.toml", "[[array]]\nname = 'host:more'\n");
    let ran = configured.hook_of("ARRAY /dev/md/data name=host:data\n").ok();
    assert!(ran.error.contains("pinstripe.toml:"), "{}", ran.error);
    assert_eq!(
        configured.in_ramdisk(IN_RAMDISK),
        "#pinstripe# ARRAY /dev/md/data name=host:data\n\
        ARRAY <ignore> name=\"host:data\"\nARRAY <ignore> name=\"host:more\"\n"
    );
    assert!(configured.in_ramdisk("lib/udev/rules.d/63-pinstripe.rules").contains("disk/by-id/nvme-A"));
    assert!(configured.world.path("state/ramdisk").exists(), "as far as it goes it is said");
    // Nor are all made anew by what is left of the configuration.
    configured.program("bin/update-initramfs", "#!/bin/sh\n: >@/made\n");
    let ran = crate::world::Ran::of(&configured.update_ramdisk().output().unwrap());
    ran.refused(1, &["pinstripe.toml:"]);
    assert!(!configured.world.path("made").exists());
}

#[test]
fn a_ramdisk_that_says_something_else_has_all_of_them_made_anew() {
    let configured = Configured::new("[[array]]\nname = 'host:data'\n");
    let said = configured.run(&["config", "ramdisk"]).ok().out;
    for (noted, stays) in [(said.as_str(), true), ("", false), ("ARRAY <ignore> name=\"host:x\"\n", false)] {
        for note in ["state/ramdisk", "state/ramdisk.new"] {
            configured.write(note, noted);
        }
        configured.hook_of("MAILADDR root\n").ok();
        assert!(configured.world.path("state/ramdisk.made").exists(), "it says that one is made");
        for note in ["state/ramdisk", "state/ramdisk.new"] {
            assert_eq!(configured.world.path(note).exists(), stays, "{note}: {noted}");
        }
    }
}

#[test]
fn the_initial_ramdisk_is_made_anew_when_the_configuration_has_other_arrays() {
    let configured = Configured::new("[[array]]\nname = 'host:data'\n");
    // The first one finds no room. While the second one is made another array is configured. Of the third one
    // the hook says that it is not as it should be.
    configured.program(
        "bin/update-initramfs",
        "#!/bin/sh\necho \"$@\" >>@/made\n[ -e @/again ] || { touch @/again; exit 1; }\n\
         case $(wc -l <@/made) in\n\
         2) echo \"[[array]]\nname = 'host:2'\" >@/pinstripe.toml ;;\n\
         3) rm @/state/ramdisk.new ;;\n\
         esac\n[ -e @/off ] || : >@/state/ramdisk.made\n",
    );
    let update = || crate::world::Ran::of(&configured.update_ramdisk().output().unwrap());
    let made = || fs::read_to_string(configured.world.path("made")).unwrap().lines().count();
    assert_eq!(update().status, 1);
    assert_eq!(made(), 1);
    update().ok();
    assert_eq!(made(), 4);
    let said = fs::read_to_string(configured.world.path("state/ramdisk")).unwrap();
    assert_eq!(said, "ARRAY <ignore> name=\"host:2\"\n");
    update().ok();
    assert_eq!(made(), 4, "nothing has changed");
    // What makes none and says nothing, as it is configured to, leaves the others as they are.
    configured.write("off", "");
    configured.write("pinstripe.toml", "[[array]]\nname = 'host:3'\n");
    for tries in [5, 6] {
        let said = update().ok().error;
        assert!(made() == tries && said.contains("`update_initramfs=no`"), "{said}");
    }
}

/// Two makers of one initial ramdisk write one file.
#[test]
fn the_initial_ramdisk_is_not_made_while_dpkg_may_make_it() {
    let configured = Configured::new("[[array]]\nname = 'host:data'\n");
    configured.program("bin/update-initramfs", "#!/bin/sh\n: >@/made\n: >@/state/ramdisk.made\n");
    configured.write("dpkg/lock-frontend", "");
    let path = configured.world.path("dpkg/lock-frontend");
    let dpkg = fs::File::options().write(true).open(path).unwrap();
    rustix::fs::fcntl_lock(&dpkg, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let mut update = configured.update_ramdisk().spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_secs(2));
    let (is_made, ended) = (configured.world.path("made").exists(), update.try_wait().unwrap());
    drop(dpkg);
    assert!(update.wait().unwrap().success());
    assert!(!is_made && ended.is_none(), "{is_made} {ended:?}");
    assert!(configured.world.path("made").exists());
}
