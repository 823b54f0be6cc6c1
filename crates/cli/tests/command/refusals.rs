//! Bad input: a clear error, and nothing changed.

use std::{
    os::unix::{fs::PermissionsExt, net::UnixListener},
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{
    nbd::{Client, pattern},
    world::{MEMBER_BYTES, MIB, World, wait_until, without_privileges},
};

#[test]
fn options_that_make_no_sense_are_wrong_usage() {
    let world = World::new();
    let members = world.members(4);
    let before = world.hashes(&members);
    let wrong: [(&[&str], &[&str]); 13] = [
        (&["--level", "5", "--size", "0"], &["--size 0", "smallest member"]),
        (&["--level", "5", "--chunk", "48K"], &["48 KiB", "power of two"]),
        (&["--level", "5", "--chunk", "2M"], &["2 MiB", "from 4K to 1M"]),
        (&["--level", "1"], &["0, 4, 5 and 6"]),
        (&["--level", "5", "--layout", "left-symmetric-6"], &["raid5 has no layout", "left-asymmetric"]),
        (&["--level", "4", "--layout", "left-symmetric"], &["raid4 has no layouts"]),
        (&["--level", "5", "--parity", "member0"], &["--parity is for level 4"]),
        (&["--level", "5", "--name", "a/b"], &["'/'"]),
        (&["--level", "5", "--bitmap", "none", "--bitmap-chunk", "1M"], &["--bitmap-chunk"]),
        (&["--level", "5", "--size", "many"], &["'many' is no size"]),
        (&["--level", "0", "--assume-clean"], &["--assume-clean"]),
        (&["--level", "5", "member0"], &["member0", "one device"]),
        (&["--level", "5", "--metadata", "0.90"], &["1.0, 1.1 and 1.2"]),
    ];
    for (options, words) in wrong {
        world.create(options, &members).refused(64, words);
    }
    world.create(&["--level", "6"], &members[..3]).refused(64, &["at least 4 members"]);
    world.create(&["--level", "5"], &members[..1]).refused(64, &["at least 2 members"]);
    assert_eq!(world.hashes(&members), before);
}

/// Where the driver is there, the scenario `ublk` of the VM tries more.
#[test]
fn without_the_kernels_ublk_driver_nothing_is_served_nor_changed() {
    if std::path::Path::new("/dev/ublk-control").exists() {
        return;
    }
    let world = World::new();
    let members = world.raid5(3);
    let before = world.hashes(&members);
    for option in ["--ublk", "--ublk=3"] {
        world.serve_refused(&[option], &members).refused(1, &["/dev/ublk-control", "modprobe ublk_drv"]);
    }
    world.serve_refused(&["--ublk=x"], &members).refused(64, &["'x' is no number of a ublk device"]);
    world.run(&["ublk", "list"]).refused(1, &["modprobe ublk_drv"]);
    world.run(&["ublk", "delete", "0"]).refused(1, &["modprobe ublk_drv"]);
    assert_eq!(world.hashes(&members), before);
}

/// Where a file lies in persistent memory, the scenario `pmem` of the VM goes on.
#[test]
fn a_file_that_is_not_in_persistent_memory_is_not_used_as_such() {
    let world = World::new();
    let members = world.raid5(3);
    let before = world.hashes(&members);
    let mut named = members.clone();
    named[1] = format!("pmem:{}", named[1]);
    world.serve_refused(&[], &named).refused(1, &["persistent memory", "-o dax", "fallocate"]);
    named[2] = members[1].clone();
    world.serve_refused(&[], &named).refused(64, &["one device"]);
    world.create(&["--level", "5"], &named[..2]).refused(1, &["persistent memory"]);
    world.run(&["examine", &format!("pmem:{}", members[0])]).ok();
    assert_eq!(world.hashes(&members), before);
}

#[test]
fn wishes_that_the_devices_cannot_fulfil_name_the_device() {
    let world = World::new();
    let mut members = world.members(3);
    members.push(world.file("tiny", 256 << 10));
    let before = world.hashes(&members);
    world.create(&["--level", "5"], &members).refused(1, &["tiny is too small", "256 KiB"]);
    world.create(&["--level", "5", "--size", "1G"], &members[..3]).refused(1, &["member0 is too small"]);
    world.create(&["--level", "0", "--bitmap", "internal"], &members[..3]).refused(1, &["raid0", "bitmap"]);
    members[3] = "gone".to_owned();
    world.create(&["--level", "5"], &members).refused(1, &["gone does not exist"]);
    members[3] = ".".to_owned();
    world.create(&["--level", "5"], &members).refused(1, &["neither a file nor a block device"]);
    assert_eq!(world.hashes(&members[..3]), before[..3]);
}

#[test]
fn bitmaps_whose_headers_make_them_too_long_are_named_by_examine_too() {
    for metadata in ["1.0", "1.2"] {
        let world = World::new();
        let members: Vec<String> =
            (0..3).map(|slot| world.file(&format!("member{slot}"), 60 * MIB)).collect();
        let options = ["--level", "5", "--name", "data", "--metadata", metadata, "--assume-clean"];
        world.create(&options, &members).ok();
        let examined = world.run(&["examine", "--json", "member0"]).ok().json();
        let sector = examined[0]["member"]["bitmap"]["sector"].as_u64().unwrap();
        for member in &members {
            world.poke(member, sector * 512 + 52, &512_u32.to_le_bytes());
        }
        let before = world.hashes(&members);
        world.serve_refused(&[], &members).refused(1, &["member0: by its header the bitmap has", "--run"]);
        let examined = world.run(&["examine", "member0"]).ok();
        assert!(examined.out.contains("can't be used: by its header the bitmap has"), "{}", examined.out);
        assert_eq!(world.hashes(&members), before);
    }
}

#[test]
fn devices_of_different_arrays_are_refused() {
    let world = World::new();
    let members = world.raid5(3);
    let others: Vec<String> = (0..3).map(|slot| world.file(&format!("other{slot}"), MEMBER_BYTES)).collect();
    world.create(&["--level", "5", "--name", "second"], &others).ok();
    let mixed = vec![members[0].clone(), members[1].clone(), others[2].clone()];
    let before = world.hashes(&mixed);
    world.serve_refused(&[], &mixed).refused(1, &["other2 belongs to array second", "member0 to data"]);
    assert_eq!(world.hashes(&mixed), before);
}

#[test]
fn too_few_members_are_refused() {
    let world = World::new();
    let members = world.raid5(4);
    let before = world.hashes(&members);
    world.serve_refused(&[], &members[..2]).refused(1, &["2 of 4 members"]);
    world.serve_refused(&[], &[world.file("empty", MEMBER_BYTES)]).refused(1, &["no superblock", "empty"]);
    let with_empty = [members.clone(), vec!["empty".to_owned()]].concat();
    world.serve_refused(&[], &with_empty).refused(1, &["empty", "no MD superblock"]);
    assert_eq!(world.hashes(&members), before);
}

#[test]
fn a_stale_member_is_left_out_and_named() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&["--shards", "1"], &members);
    world.run(&["fail", "data", "0"]).ok();
    let data = pattern(4, 65536);
    assert_eq!(Client::connect(&server.nbd()).write(0, &data), 0);
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);

    let before = world.hashes(&members);
    world.serve_refused(&[], &members[..2]).refused(1, &["1 of 3 members", "member0 is stale"]);
    assert_eq!(world.hashes(&members), before);

    let server = world.serve(&["--shards", "1"], &members);
    let warned = server
        .said
        .iter()
        .any(|line| line["message"].as_str().unwrap_or("").contains("member0 was left out"));
    assert!(warned, "{:?}", server.said);
    assert_eq!(server.ready["degraded"], true);
    assert!(Client::connect(&server.nbd()).read(0, data.len()) == data, "what the stale member missed");
    // Left out, so it is free to come back.
    world.run(&["add", "data", "member0", "--wait"]).ok();
}

#[test]
fn a_vanished_device_is_named() {
    let world = World::new();
    let members = world.raid5(3);
    std::fs::remove_file(world.path("member1")).unwrap();
    let left = [members[0].clone(), members[2].clone()];
    let before = world.hashes(&left);
    world.serve_refused(&[], &members).refused(1, &["member1 does not exist", "leave it out"]);
    assert_eq!(world.hashes(&left), before);
    world.serve_refused(&[], &left).refused(1, &["slot 1 of the array is missing", "--run"]);
    assert_eq!(world.hashes(&left), before);
    let server = world.serve(&["--run"], &left);
    assert_eq!(server.ready["degraded"], true);
    assert_eq!(Client::connect(&server.nbd()).write(0, &pattern(1, 65536)), 0);
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
    // It is missing by the record now.
    assert_eq!(world.serve(&[], &left).ready["degraded"], true);
}

#[test]
fn a_socket_in_use_is_named_before_anything_changes() {
    let world = World::new();
    let members = world.raid5(3);
    let before = world.hashes(&members);
    let held = world.path("held.sock");
    let _listener = UnixListener::bind(&held).unwrap();
    let held = held.display().to_string();
    world.serve_refused(&["--nbd", &format!("unix:{held}")], &members).refused(1, &[&held, "in use"]);
    world.serve_refused(&["--control", &held], &members).refused(1, &[&held, "in use"]);
    let file = world.path(&world.file("plain", 1)).display().to_string();
    world.serve_refused(&["--control", &file], &members).refused(1, &[&file, "not a socket"]);
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp:{}", port.local_addr().unwrap());
    world.serve_refused(&["--nbd", &address], &members).refused(1, &["in use"]);
    assert_eq!(world.hashes(&members), before);
    assert!(world.path("plain").exists());
}

#[test]
fn other_machines_are_let_in_only_when_that_is_asked_for() {
    let world = World::new();
    let members = world.raid5(3);
    world
        .serve_refused(&["--nbd", "tcp:0.0.0.0:0"], &members)
        .refused(64, &["--tls-certificates", "--allow-remote"]);
    world.serve(&["--nbd", "tcp:0.0.0.0:0", "--allow-remote"], &members);
}

#[test]
fn an_address_that_no_interface_has_yet_is_no_reason_not_to_serve() {
    let world = World::new();
    let members = world.raid5(3);
    for (address, is_there) in [("192.0.2.1:0", false), ("127.0.0.1:0", true)] {
        let server = world.serve(&["--nbd", &format!("tcp:{address}"), "--allow-remote"], &members);
        let (status, said) = server.end();
        let warned = said.contains(&format!("no interface of this machine has the address {address} yet"));
        assert!(status == 0 && warned != is_there, "{said}");
    }
}

#[test]
fn a_shape_goes_with_create_only_and_memory_too() {
    let world = World::new();
    let members = world.raid5(3);
    world.serve_refused(&["--chunk", "64K"], &members).refused(64, &["--chunk", "--create"]);
    world.serve_refused(&[], &["mem:1M".to_owned()]).refused(64, &["mem:1M", "--create"]);
    world.serve_refused(&["--create", "--level", "5"], &members).refused(64, &["pinstripe create"]);
}

#[test]
fn a_held_member_is_refused_with_its_holder() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&["--shards", "1"], &members);
    let before = world.hashes(&members);
    let elsewhere = ["--control", "other.sock", "--nbd", "unix:other.nbd"];
    world.serve_refused(&elsewhere, &members).refused(1, &["member0", "held by another process: pinstripe"]);
    world.create(&["--level", "5", "--force"], &members).refused(1, &["member0", "held by another process"]);
    assert_eq!(world.hashes(&members), before);
    world.run(&["examine", "member0"]).ok();
    drop(server);
}

#[test]
fn a_user_without_permission_for_a_member_gets_an_error_that_names_it() {
    let world = World::new();
    let members = world.raid5(3);
    let before = world.hashes(&members);
    std::fs::set_permissions(world.path("."), PermissionsExt::from_mode(0o755)).unwrap();
    for member in &members {
        std::fs::set_permissions(world.path(member), PermissionsExt::from_mode(0o600)).unwrap();
    }
    std::fs::set_permissions(world.path("member0"), PermissionsExt::from_mode(0o000)).unwrap();
    // As the tests' own user, where that is not root, the mode above is what refuses.
    for command in [&["serve", "member0", "member1", "member2"][..], &["examine", "member0"]] {
        let mut command = world.command(command);
        let output = without_privileges(&mut command).output();
        // A build folder that other users may not enter can't be tested from.
        let Ok(output) = output else { continue };
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{error}");
        assert!(error.contains("no permission to open member0"), "{error}");
    }
    std::fs::set_permissions(world.path("member0"), PermissionsExt::from_mode(0o600)).unwrap();
    assert_eq!(world.hashes(&members), before);
}

#[test]
fn a_command_for_an_array_that_is_not_served_is_refused() {
    let world = World::new();
    for command in [
        &["detail", "data"][..],
        &["stop", "data"],
        &["check", "./x.sock"],
        &["detail", "x.sock"],
        &["fail", "data", "1"],
    ] {
        world.run(command).refused(1, &["is not being served"]);
    }
}

#[test]
fn a_damaged_superblock_is_reported_and_not_served() {
    let world = World::new();
    let members = world.raid5(3);
    world.poke("member1", 4096 + 100, &[0xff]);
    let ran = world.run(&["examine", "member1", "member0"]).refused(1, &["member1", "checksum"]);
    assert!(ran.out.contains("member0: member of the array data"), "{}", ran.out);
    let before = world.hashes(&members);
    world.serve_refused(&[], &members).refused(1, &["member1", "checksum"]);
    assert_eq!(world.hashes(&members), before);
}

#[test]
fn a_member_that_is_late_is_waited_for_and_at_last_left_out() {
    let world = World::new();
    let members = world.raid5(3);
    std::fs::rename(world.path("member1"), world.path("away")).unwrap();
    let back = || {
        std::thread::sleep(std::time::Duration::from_millis(300));
        std::fs::rename(world.path("away"), world.path("member1")).unwrap();
    };
    std::thread::scope(|scope| {
        scope.spawn(back);
        let server = world.serve(&["--run-after", "60"], &members);
        assert_eq!(server.ready["degraded"], false);
        world.run(&["stop", "data"]).ok();
        assert_eq!(server.ended(), 0);
    });
    // The time is for what is named: a member that was forgotten isn't waited for, and not left behind.
    let left = [members[0].clone(), members[2].clone()];
    world.serve_refused(&["--run-after", "1"], &left).refused(1, &["slot 1 of the array is missing"]);
    std::fs::remove_file(world.path("member1")).unwrap();
    assert_eq!(world.serve(&["--run-after", "1"], &members).ready["degraded"], true);
    let nothing = ["gone".to_owned()];
    world.serve_refused(&["--run-after", "1"], &nothing).refused(1, &["none of the members"]);
}

#[test]
fn a_superblock_is_erased_but_not_of_what_is_in_use_or_may_be_needed() {
    let world = World::new();
    let members = world.raid5(3);
    let plain = world.file("plain", MEMBER_BYTES);
    let before = world.hashes(&members);
    let erase = |options: &[&str]| world.run(&[&["zero-superblock"], options].concat());
    erase(&["member0", "plain"]).refused(1, &["plain holds no MD superblock", "nothing was changed"]);
    erase(&["member0", "gone"]).refused(1, &["gone does not exist"]);
    assert_eq!(world.hashes(&members), before);
    let server = world.serve(&["--shards", "1"], &members);
    erase(&["--force", "member0"]).refused(1, &["member0", "held by another process: pinstripe"]);
    assert_eq!(Client::connect(&server.nbd()).write(0, &pattern(9, 4096)), 0);
    server.kill(&world, &members);
    let before = world.hashes(&members);
    erase(&["member1", "member0"]).refused(1, &["was not stopped cleanly", "--force"]);
    assert_eq!(world.hashes(&members), before);
    let erased = erase(&["--force", "member1", "--json"]).ok().json();
    assert_eq!((&erased[0]["device"], &erased[0]["sectors"][0]), (&"member1".into(), &8.into()));
    let examined = world.run(&["examine", "member1", "--json"]).ok().json();
    assert!(
        examined[0]["member"].is_null() && examined[0]["also"].as_array().unwrap().is_empty(),
        "{examined}"
    );
    world.poke("member2", 4096 + 100, &[0xff]);
    erase(&["member2"]).refused(1, &["can't be understood", "checksum", "--force"]);
    erase(&["--force", "member2"]).ok();
    erase(&["member2"]).refused(1, &["holds no MD superblock"]);
    world.create(&["--level", "5", "--write-journal", &plain], &members).refused(1, &["member0 holds"]);
    world.create(&["--level", "5", "--force", "--write-journal", &plain], &members).ok();
    erase(&["plain"]).refused(1, &["it is the journal of the array"]);
}

/// Its superblock says for ever that clients were writing when it went.
#[test]
fn the_superblock_of_a_replaced_member_is_erased_without_force_when_the_array_is_whole_without_it() {
    let world = World::new();
    let members = world.raid5(3);
    let other = world.file("other", MEMBER_BYTES);
    let server = world.serve(&["--shards", "1"], &members);
    let (nbd, over) = (server.nbd(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = Client::connect(&nbd);
            while !over.load(Ordering::Relaxed) {
                assert_eq!(client.write(0, &pattern(9, 4096)), 0);
            }
        });
        world.run(&["replace", "data", "0", "--with", &other, "--wait"]).ok();
        world.run(&["fail", "data", "1"]).ok();
        over.store(true, Ordering::Relaxed);
    });
    let state = world.run(&["examine", "member0"]).ok().out;
    assert!(state.contains("dirty from"), "{state}");
    world.run(&["remove", "data", "0"]).ok();
    let erase = |member: &str| world.run(&["zero-superblock", member]);
    erase("member0").refused(1, &["was not stopped cleanly"]);
    world.run(&["add", "data", "member1", "--wait"]).ok();
    erase("member0").ok();
    erase("member1").refused(1, &["held by another process"]);
}

#[test]
fn a_member_that_its_stopped_array_can_not_do_without_is_erased_by_force_only() {
    let world = World::new();
    let members = world.raid5(3);
    let erase = |options: &[&str]| world.run(&[&["zero-superblock"], options].concat());
    let before = world.hashes(&members);
    erase(&["member0", "member1"]).refused(1, &["can't do without it", "needs, 1 would be left", "--force"]);
    let server = world.serve(&["--shards", "1"], &members);
    world.run(&["fail", "data", "2"]).ok();
    world.run(&["remove", "data", "member2"]).ok();
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
    let degraded = world.hashes(&members);
    assert_ne!(degraded, before);
    for which in [&["member1"][..], &["member2", "member0"]] {
        erase(which).refused(1, &["its array data can't do without it", "nothing was changed"]);
    }
    assert_eq!(world.hashes(&members), degraded);
    erase(&["member2"]).ok();
    let server = world.serve(&["--shards", "1"], &members[..2]);
    assert_eq!(server.ready["degraded"], true);
    server.kill(&world, &members[..2]);
    erase(&["--force", "member1"]).ok();
    let striped = ["striped0", "striped1"].map(|name| world.file(name, MEMBER_BYTES));
    world.create(&["--level", "0"], &striped).ok();
    erase(&["striped0"]).refused(1, &["can't do without it", "of 2 members", "1 would be left"]);
}

/// All superblocks say that it has its slot, and only its own that it has next to nothing of it.
#[test]
fn a_member_that_is_being_rebuilt_does_not_stand_for_another_that_is_erased() {
    let world = World::new();
    let members = world.raid5(3);
    let spare = world.file("spare", MEMBER_BYTES);
    let slowly = ["--shards", "1", "--sync-speed-min", "1", "--sync-speed-max", "1"];
    let server = world.serve(&slowly, &members);
    world.run(&["fail", "data", "2"]).ok();
    world.run(&["remove", "data", &members[2]]).ok();
    world.run(&["add", "data", &spare]).ok();
    let state = || world.run(&["detail", "data", "--json"]).ok().json()["members"][2]["state"].clone();
    wait_until("rebuilt", || state() == "recovering");
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
    let examined = world.run(&["examine", &spare, "--json"]).ok().json();
    let device = &examined[0]["member"]["device"];
    assert!(device["slot"] == 2 && device["rebuilt_up_to_sector"].is_u64(), "{examined}");
    let before = world.hashes(&members);
    world.run(&["zero-superblock", "member1"]).refused(1, &["of 2 members that it needs, 1 would be left"]);
    assert_eq!(world.hashes(&members), before);
    world.run(&["zero-superblock", &spare]).ok();
}

/// Of another array it says nothing.
#[test]
fn only_the_server_of_its_own_array_tells_that_a_device_is_not_needed() {
    let world = World::new();
    let members = world.raid5(3);
    let others = ["other0", "other1", "other2"].map(|name| world.file(name, MEMBER_BYTES));
    world.create(&["--level", "5", "--name", "other", "--assume-clean"], &others).ok();
    let serve_and_kill = |members: &[String]| {
        let server = world.serve(&["--shards", "1"], members);
        assert_eq!(Client::connect(&server.nbd()).write(0, &pattern(9, 4096)), 0);
        server.kill(&world, members);
    };
    let refused = |members: &[String]| {
        let before = world.hashes(members);
        world.run(&["zero-superblock", &members[0]]).refused(1, &["was not stopped cleanly", "--force"]);
        assert_eq!(world.hashes(members), before);
    };
    serve_and_kill(&members);
    let whole = world.serve(&["--shards", "1"], &others);
    refused(&members);
    whole.kill(&world, &others);
    serve_and_kill(&others);
    let _whole = world.serve(&["--shards", "1"], &members);
    refused(&others);
}

#[test]
fn all_superblocks_of_a_device_are_erased() {
    let world = World::new();
    let (members, at) = (world.members(3), 4096);
    world.create(&["--level", "5", "--name", "old"], &members).ok();
    let old = std::fs::read(world.path("member0")).unwrap()[at..2 * at].to_vec();
    world.create(&["--level", "5", "--name", "new", "--metadata", "1.0", "--force"], &members).ok();
    world.poke("member0", at as u64, &old);
    let erased = world.run(&["zero-superblock", "--force", "--json", "member0"]).ok().json();
    assert_eq!(erased[0]["sectors"], serde_json::json!([8, MEMBER_BYTES / 512 - 16]));
    let examined = world.run(&["examine", "member0", "--json"]).ok().json();
    assert!(
        examined[0]["member"].is_null() && examined[0]["also"].as_array().unwrap().is_empty(),
        "{examined}"
    );
}

const SECRETS: &str = "* DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:\n";

fn mode(world: &World, name: &str, mode: u32) {
    std::fs::set_permissions(world.path(name), PermissionsExt::from_mode(mode)).unwrap();
}

#[test]
fn secrets_and_sockets_that_others_could_exchange_are_refused() {
    let world = World::new();
    let members = world.raid5(3);
    std::fs::create_dir_all(world.path("open/inner")).unwrap();
    let keys = "open/inner/keys";
    std::fs::write(world.path(keys), SECRETS).unwrap();
    mode(&world, keys, 0o600);
    mode(&world, "open", 0o777);
    mode(&world, "open/inner", 0o700);
    let hosts = ["--nvme-tcp", "127.0.0.1:0", "--dhchap-hosts", keys];
    let words = ["can't be trusted", "can be written by other users (mode 0777)", "chmod go-w"];
    world.serve_refused(&hosts, &members).refused(1, &words);
    world.serve_refused(&["--dhchap-secrets", keys], &members).refused(1, &words);
    mode(&world, "open", 0o755);
    drop(world.serve(&hosts, &members));
    std::fs::create_dir_all(world.path("pinstripe")).unwrap();
    mode(&world, "pinstripe", 0o777);
    world
        .serve_refused(&[], &members)
        .refused(1, &["sockets in", "can be written by other users", "--control"]);
    mode(&world, "pinstripe", 0o700);
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(world.path(keys), Some(65534), None).unwrap();
        world.serve_refused(&hosts, &members).refused(1, &["belongs to the user 65534", "chown"]);
    }
    drop(world.serve(&[], &members));
}

#[test]
fn ports_that_every_user_of_the_machine_can_write_to_are_warned_of() {
    let world = World::new();
    let members = world.raid5(3);
    let warned = |options: &[&str]| {
        let server = world.serve(options, &members);
        let said = server.said.iter().filter(|line| {
            line["event"] == "warning"
                && line["message"].as_str().unwrap().contains("every user of this machine")
        });
        said.count()
    };
    let both = ["--nbd", "tcp:127.0.0.1:0", "--nvme-tcp", "127.0.0.1:0"];
    assert_eq!(warned(&both), 2);
    assert_eq!(warned(&[&both[..], &["--read-only"]].concat()), 0);
    assert_eq!(warned(&[&both[..], &["--allow-remote"]].concat()), 0);
    assert_eq!(warned(&[]), 0);
}

#[test]
fn the_addresses_of_every_front_end_are_told() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&["--nbd", "tcp:127.0.0.1:0", "--nvme-tcp", "127.0.0.1:0"], &members);
    let addresses = &server.ready["addresses"];
    for (number, protocol, uri) in
        [(0, "nbd", &server.ready["nbd"][0]), (1, "nvme-tcp", &server.ready["nvme"])]
    {
        assert_eq!((&addresses[number]["protocol"], &addresses[number]["uri"]), (&protocol.into(), uri));
        assert!(world.run(&["detail", "data"]).ok().out.contains(uri.as_str().unwrap()), "{protocol}");
    }
    assert_eq!(&world.run(&["detail", "data", "--json"]).ok().json()["addresses"], addresses);
    assert_eq!(&world.run(&["list", "--json"]).ok().json()[0]["addresses"], addresses);
}

#[test]
fn limits_say_what_to_raise() {
    let world = World::new();
    let memory = ["mem:8M", "mem:8M", "mem:8M"].map(str::to_owned);
    let create = ["--create", "--level", "5"];
    world
        .serve_refused(&[&create[..], &["--cache", "9999T"]].concat(), &memory)
        .refused(64, &["--cache", "9999T", "this machine has"]);
    mode(&world, ".", 0o755);
    let mut command = world.command(&["serve", "--shards", "2", "--create", "--level", "5"]);
    let mut limited = std::process::Command::new("prlimit");
    limited.args(["--nproc=1:1", "--"]).arg(command.get_program()).args(command.get_args()).args(&memory);
    limited.current_dir(world.path("."));
    // A build folder that other users may not enter can't be tested from.
    if without_privileges(command.arg("mem:1")).output().is_err() {
        return;
    }
    let output = without_privileges(&mut limited).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("can't start a thread") && error.contains("ulimit -u"), "{error}");
}

/// What is registered with the kernel stays in memory, so only what is used may be.
#[test]
fn an_idle_server_needs_little_memory() {
    let world = World::new();
    let server = world.serve(&["--shards", "2", "--cache", "0"], &world.raid5(3));
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.ready["pid"])).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: u64 = resident.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    assert!(kib < 64 << 10, "{resident}");
}
