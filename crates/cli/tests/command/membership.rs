//! The members of a served array: spares, members that come back, replacements; and its bitmap.

use std::os::unix::fs::FileExt;

use crate::{
    nbd::{Client, pattern},
    world::{MEMBER_BYTES, PATIENCE, Ran, World, without_privileges},
};

#[test]
fn a_member_comes_back_a_spare_takes_over_and_a_member_is_replaced() {
    let world = World::new();
    let members = world.raid5(4);
    let (spare, other) = (world.file("spare", MEMBER_BYTES), world.file("other", MEMBER_BYTES));
    let server = world.serve(&["--shards", "2"], &members);
    let data = pattern(1, 2 << 20);
    let mut client = Client::connect(&server.nbd());
    assert_eq!(client.write(0, &data), 0);

    world.run(&["fail", "data", "2"]).ok();
    assert_eq!(client.write(0, &pattern(2, 65536)), 0);
    let added = world.run(&["add", "data", &members[2], "--wait", "--json"]).ok().json();
    assert_eq!((added["slot"].as_u64(), added["recovery"].as_str()), (Some(2), Some("bitmap")));

    let added = world.run(&["add", "data", &spare, "--json"]).ok().json();
    assert!(added["slot"].is_null() && added["recovery"] == "none", "{added}");
    let text = world.run(&["detail", "data"]).ok().out;
    assert!(text.contains("spare") && !text.contains("degraded"), "{text}");
    world.run(&["remove", "data", "1"]).refused(1, &["member1 can't be removed", "pinstripe fail"]);
    world.run(&["fail", "data", "0"]).ok();
    let whole = || {
        let detail = world.run(&["detail", "data", "--json"]).ok().json();
        detail["degraded"] == false && detail["members"][0]["device"].as_str().unwrap().ends_with("spare")
    };
    while !whole() {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    world.run(&["remove", "data", &members[0]]).ok();

    world.run(&["replace", "data", "3"]).refused(1, &["no spare"]);
    world.run(&["replace", "data", "3", "--with", &other, "--wait"]).ok();
    let detail = world.run(&["detail", "data", "--json"]).ok().json();
    assert!(detail["members"][3]["device"].as_str().unwrap().ends_with("other"), "{detail}");
    assert_eq!(detail["failed"][0]["error"], "slot 3 (member3) was replaced");
    world.run(&["remove", "data", "3"]).ok();
    world.run(&["remove", "data", "3"]).refused(1, &["slot 3 can't be removed", "in use"][1..]);

    assert!(client.read(0, 65536) == pattern(2, 65536));
    assert!(client.read(65536, data.len() - 65536) == data[65536..]);
    world.run(&["check", "data"]).ok();
    world.run(&["stop", "data", "--force"]).ok();
    assert_eq!(server.ended(), 0);
    let server = world.serve(&["--read-only"], &[spare, members[1].clone(), members[2].clone(), other]);
    assert_eq!(server.ready["degraded"], false);
}

#[test]
fn a_bitmap_is_removed_and_added_while_the_array_is_served() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&["--shards", "1"], &members);
    let bitmap = || world.run(&["detail", "data", "--json"]).ok().json()["bitmap"].clone();
    assert!(!bitmap().is_null());
    world.run(&["grow", "data", "--bitmap=internal"]).refused(1, &["has a bitmap already"]);
    world.run(&["grow", "data", "--bitmap=none"]).ok();
    assert!(bitmap().is_null());
    world.run(&["grow", "data", "--bitmap=none", "--bitmap-chunk", "1M"]).refused(64, &["--bitmap-chunk"]);
    assert_eq!(Client::connect(&server.nbd()).write(0, &pattern(1, 65536)), 0);
    world.run(&["grow", "data", "--bitmap=internal", "--bitmap-chunk", "1M"]).ok();
    assert_eq!(bitmap()["chunk_bytes"], 1 << 20);
    world.run(&["grow", "data", "--bitmap=none"]).ok();
    world.run(&["grow", "data", "--bitmap=internal"]).ok();
    assert_eq!(bitmap()["chunk_bytes"], 64 << 20);
    world.run(&["check", "data"]).ok();
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
}

#[test]
fn members_are_named_by_slot_or_device_and_one_that_is_in_use_is_refused_at_once() {
    let world = World::new();
    let members = world.raid5(4);
    let spare = world.file("spare", MEMBER_BYTES);
    let _server = world.serve(&["--shards", "1"], &members);
    // A device that is busy is waited for 15 s otherwise.
    let waits = |command: &[&str], words: &str| {
        let begun = std::time::Instant::now();
        world.run(command).refused(1, &[words]);
        begun.elapsed().as_secs() >= 14
    };
    let add = || waits(&["add", "data", "member1"], "member1 is the member in slot 1 already");
    let replace = || waits(&["replace", "data", "0", "--with", "./member1"], "the member in slot 1");
    // A busy machine makes each of several take so long only if it always does.
    assert!(!(0..3).all(|_| add()) && !(0..3).all(|_| replace()), "nothing is waited for");
    world.run(&["fail", "data", "spare"]).refused(1, &["spare is no member"]);
    // By another name of the same file.
    std::os::unix::fs::symlink(world.path("member2"), world.path("by-id")).unwrap();
    let failed = world.run(&["fail", "data", "by-id", "--json"]).ok().json();
    assert_eq!((failed["slot"].as_u64(), failed["device"].as_str()), (Some(2), Some("member2")));
    world.run(&["remove", "data", "by-id"]).ok();
    world.run(&["add", "data", &spare, "--wait"]).ok();
    world.run(&["add", "data", &spare]).refused(1, &["spare is the member in slot 2 already"]);
    let replaced = ["replace", "data", "member0", "--with", "member2", "--wait", "--json"];
    assert_eq!(world.run(&replaced).ok().json()["slot"], 0);
    world.run(&["remove", "data", "member0"]).ok();
    for command in [&["fail", "data", "journal"][..], &["remove", "data", "journal"]] {
        world.run(command).refused(1, &["the array has no journal"]);
    }
    world.run(&["replace", "data", "journal"]).refused(64, &["journal"]);
    world.run(&["check", "data"]).ok();
}

/// A crash between the two would leave a member that no start looks for.
#[test]
fn the_name_of_what_joins_is_kept_before_a_superblock_makes_it_a_member() {
    let world = World::new();
    let members = world.raid5(3);
    let spare = world.file("spare", MEMBER_BYTES);
    let _server = world.serve(&["--shards", "1"], &members);
    let file = std::fs::File::open(world.path(&spare)).unwrap();
    let is_member = || {
        let mut magic = [0; 4];
        file.read_exact_at(&mut magic, 4096).unwrap();
        magic == 0xa92b_4efc_u32.to_le_bytes()
    };
    let is_kept = || {
        let kept = std::fs::read_dir(world.path("state/joined")).into_iter().flatten().flatten();
        let mut texts = kept.filter_map(|entry| std::fs::read_to_string(entry.path()).ok());
        texts.any(|text| text.contains("/spare"))
    };
    let begun = std::time::Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| world.run(&["add", "data", &spare]).ok());
        while !is_member() {
            assert!(begun.elapsed() < PATIENCE, "it never joins");
        }
        assert!(is_kept(), "nothing leads to it");
    });
}

/// The device that is to take its place is held by a process that this user may not look into, and is waited
/// for.
#[test]
fn a_member_that_was_replaced_while_a_device_for_it_was_looked_at_is_not_replaced_again() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root's processes can't be looked into");
        return;
    }
    let (world, elsewhere) = (World::new(), World::new());
    let members = world.raid5(3);
    world.file("spare", MEMBER_BYTES);
    let held = ["held0", "held1"].map(|name| world.file(name, MEMBER_BYTES));
    world.create(&["--level", "5", "--name", "other", "--assume-clean"], &held).ok();
    world.give_away();
    let folder = elsewhere.path("pinstripe").display().to_string();
    let holder = world.serve_with(("PINSTRIPE_RUNTIME_DIR", &folder), &["--shards", "1"], &held);
    let before = world.hashes(&held[..1]);
    let mut server = world.serve_without_privileges(&["--shards", "1"], &members);
    let run = |words: &[&str]| Ran::of(&without_privileges(&mut world.command(words)).output().unwrap());
    std::thread::scope(|scope| {
        let late = scope.spawn(|| run(&["replace", "data", "member1", "--with", "held0", "--force"]));
        server.says("waits for its end", PATIENCE).expect("it waits for the device");
        run(&["replace", "data", "member1", "--with", "spare", "--wait"]).ok();
        holder.kill(&world, &held);
        let late = late.join().unwrap();
        assert_eq!(late.status, 1, "{}{}", late.out, late.error);
        // The device isn't waited for long, and this machine may be slow.
        let why = ["its member is another one by now", "in use by another process"];
        assert!(why.iter().any(|words| late.error.contains(words)), "{}", late.error);
    });
    assert_eq!(world.hashes(&held[..1]), before);
    let detail = run(&["detail", "data", "--json"]).ok().json();
    let member = &detail["members"][1];
    assert!(member["device"].as_str().unwrap().ends_with("spare"), "{member}");
    assert!(member["replacement"].is_null(), "{member}");
}

/// As `dd` makes it: the identity of the device is copied, too.
#[test]
fn a_copy_of_a_member_is_refused_as_such_unwritten_and_joins_when_its_superblock_is_erased() {
    let world = World::new();
    let members = world.raid5(3);
    let spare = world.file("spare", MEMBER_BYTES);
    let server = world.serve(&["--shards", "1"], &members);
    world.run(&["add", "data", &spare]).ok();
    for (of, place) in [(&members[1], "slot 1"), (&spare, "a spare")] {
        std::fs::copy(world.path(of), world.path("copy")).unwrap();
        let bytes = std::fs::read(world.path("copy")).unwrap();
        // What was added has its whole path.
        let said = format!("{of}, which is in this array as {place}: it is a copy of it");
        for force in [&[][..], &["--force"]] {
            let add = [&["add", "data", "copy"], force].concat();
            world.run(&add).refused(
                1,
                &["copy has the superblock of", &said, "Nothing was done", "`pinstripe zero-superblock`"],
            );
            let replace = [&["replace", "data", "0", "--with", "copy"], force].concat();
            world.run(&replace).refused(1, &[&said]);
        }
        assert!(std::fs::read(world.path("copy")).unwrap() == bytes, "it was written");
    }
    let detail = world.run(&["detail", "data", "--json"]).ok().json();
    assert_eq!((&detail["degraded"], detail["spares"].as_array().unwrap().len()), (&false.into(), 1));
    world.run(&["zero-superblock", "--force", "copy"]).ok();
    world.run(&["add", "data", "copy"]).ok();
    world.run(&["check", "data"]).ok();
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
}

#[test]
fn a_journal_is_taken_out_by_its_name_and_the_array_goes_on_without_it_when_that_is_forced() {
    let world = World::new();
    let members = world.members(3);
    let journal = world.file("log", MEMBER_BYTES);
    let create = ["--level", "5", "--name", "data", "--assume-clean", "--write-journal", journal.as_str()];
    world.create(&create, &members).ok();
    let all = [members.clone(), vec![journal]].concat();
    let server = world.serve(&["--shards", "1", "--journal-mode", "write-back"], &all);
    let mut client = Client::connect(&server.nbd());
    assert_eq!(client.write(0, &pattern(1, 1 << 20)), 0);
    world.run(&["add", "data", "log"]).refused(1, &["log is the array's journal already"]);
    world.run(&["remove", "data", "journal"]).refused(1, &["in use as the array's journal"]);
    world.run(&["fail", "data", "1"]).ok();
    world.run(&["fail", "data", "journal"]).refused(1, &["the journal is needed"]);
    world.run(&["add", "data", "member1", "--wait"]).ok();
    assert!(world.run(&["fail", "data", "journal"]).ok().out.contains("read-only"));
    world.run(&["fail", "data", "journal"]).refused(1, &[]);
    assert_eq!(world.run(&["detail", "data", "--test"]).status, 1, "an array without its journal isn't fine");
    assert!(client.read(0, 1 << 20) == pattern(1, 1 << 20), "what only the journal had is on the members");
    drop(client);
    world.run(&["stop", "data"]);
    server.ended();
    world.serve_refused(&[], &members).refused(1, &["journal"]);
    let server = world.serve(&["--shards", "1", "--force"], &members);
    assert!(Client::connect(&server.nbd()).read(0, 1 << 20) == pattern(1, 1 << 20));
}

#[test]
fn the_health_of_an_array_is_an_exit_status_and_all_served_arrays_are_listed() {
    let world = World::new();
    let test = |name: &str| world.run(&["detail", name, "--test"]).status;
    assert_eq!(test("data"), 4);
    assert!(world.run(&["list"]).ok().out.contains("no array is served"));
    let members = world.raid5(3);
    let others: Vec<String> = (0..3).map(|slot| world.file(&format!("other{slot}"), MEMBER_BYTES)).collect();
    world.create(&["--level", "5", "--name", "second", "--assume-clean"], &others).ok();
    let server = world.serve(&["--shards", "1"], &members);
    // Its sockets are somewhere else, and it is found.
    let elsewhere = ["--shards", "1", "--control", "elsewhere.sock", "--nbd", "unix:elsewhere.nbd"];
    let second = world.serve(&elsewhere, &others);
    assert_eq!(test("data"), 0);
    world.run(&["fail", "data", "member1"]).ok();
    assert_eq!(test("data"), 1);
    assert_eq!(world.run(&["detail", "data"]).status, 0, "only with --test");
    let listed = world.run(&["list", "--json"]).ok().json();
    let mut names: Vec<_> =
        listed.as_array().unwrap().iter().map(|array| array["name"].as_str().unwrap()).collect();
    names.sort_unstable();
    assert_eq!(names, ["data", "second"]);
    let text = world.run(&["list"]).ok().out;
    assert!(
        text.contains("data: raid5") && text.contains("degraded") && text.contains("elsewhere.sock"),
        "{text}"
    );
    world.run(&["stop", "elsewhere.sock"]).ok();
    assert_eq!(second.ended(), 0);
    server.signal("KILL");
    server.ended();
    // What a server left behind that was killed is no array.
    assert_eq!(world.run(&["list", "--json"]).ok().json(), serde_json::json!([]));
}
