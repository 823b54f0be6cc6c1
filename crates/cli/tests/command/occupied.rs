//! Devices that hold something.

use crate::{
    nbd::Client,
    world::{MEMBER_BYTES, MIB, World},
};

const EXT4: [(u64, &[u8]); 3] =
    [(1024 + 56, &[0x53, 0xef]), (1024 + 0x60, &[0x40]), (1024 + 0x78, b"photos")];

#[test]
fn create_names_what_a_device_holds_and_changes_nothing() {
    let world = World::new();
    let members = world.members(3);
    for (at, bytes) in EXT4 {
        world.poke("member1", at, bytes);
    }
    world.poke("member2", 0, b"XFSB");
    let before = world.hashes(&members);
    world
        .create(&["--level", "5"], &members)
        .refused(1, &["member1 holds an ext4 file system \"photos\"", "member2 holds an xfs", "--force"]);
    assert_eq!(world.hashes(&members), before);
    let text = world.run(&["examine", "member1"]).ok().out;
    assert!(text.contains("an ext4 file system \"photos\""), "{text}");
}

#[test]
fn create_names_the_array_that_a_device_belongs_to() {
    let world = World::new();
    let members = world.raid5(3);
    let uuid = world.run(&["examine", "--json", "member0"]).ok().json()[0]["member"]["array"]["uuid"].clone();
    let before = world.hashes(&members);
    let words = ["an MD superblock of the raid5 array \"data\"", uuid.as_str().unwrap()];
    world.create(&["--level", "5"], &members).refused(1, &words);
    assert_eq!(world.hashes(&members), before);
}

#[test]
fn force_overwrites_what_was_there_and_leaves_no_mark_of_it() {
    let world = World::new();
    let members = world.members(3);
    world.create(&["--level", "5", "--name", "old", "--metadata", "1.1"], &members).ok();
    for (at, bytes) in EXT4 {
        world.poke("member1", at, bytes);
    }
    world
        .create(&["--level", "6", "--force", "--name", "x"], &members)
        .refused(64, &["raid6 needs at least 4"]);
    world.create(&["--level", "5", "--force", "--name", "new"], &members).ok();
    let reports = world.run(&["examine", "--json", "member0", "member1", "member2"]).ok().json();
    for report in reports.as_array().unwrap() {
        assert_eq!(report["member"]["array"]["name"], "new");
        assert_eq!(report["also"], serde_json::json!([]), "{report}");
    }
}

/// That a journal is too small for a stripe is the last thing that is found.
#[test]
fn force_wipes_nothing_of_an_array_that_is_refused() {
    let world = World::new();
    let members = world.members(3);
    world.create(&["--level", "5", "--name", "old", "--metadata", "1.1"], &members).ok();
    for (at, bytes) in EXT4 {
        world.poke("member1", at, bytes);
    }
    let journal = world.file("journal", MIB + MIB / 4);
    world.poke("journal", 0, b"LUKS\xba\xbe");
    let before = world.hashes(&[&members[..], std::slice::from_ref(&journal)].concat());
    world
        .create(&["--level", "5", "--force", "--write-journal", &journal], &members)
        .refused(1, &["the journal device has room for", "use a larger one"]);
    assert_eq!(world.hashes(&[&members[..], &[journal]].concat()), before);
}

#[test]
fn an_old_superblock_never_stands_in_front_of_the_new_one() {
    let world = World::new();
    let members = world.members(3);
    world.create(&["--level", "5", "--name", "old", "--metadata", "1.2"], &members).ok();
    // Its data covers the place of the old superblock, which MD looks at first.
    let new = ["--level", "5", "--name", "new", "--metadata", "1.0", "--force"];
    world.create(&new, &members).ok();
    let server = world.serve(&["--shards", "1"], &members);
    assert_eq!(server.ready["name"], "new");
    world.run(&["check", "new"]).ok();
}

/// It lies in the new array's data, and where `mdadm.conf` names the old array mdadm would start that.
#[test]
fn a_superblock_of_version_0_90_goes_wherever_it_is() {
    let world = World::new();
    let members = world.members(3);
    let magic = 0xa92b_4efc_u32.to_le_bytes();
    let place = MEMBER_BYTES - (64 << 10);
    for member in &members {
        world.poke(member, place, &magic);
    }
    world.run(&["zero-superblock", "member2"]).refused(1, &["member2", "version 0.90", "--force"]);
    let erased = world.run(&["zero-superblock", "--force", "--json", "member2"]).ok().json();
    assert_eq!(erased[0]["sectors"], serde_json::json!([place / 512]));
    world.create(&["--level", "5", "--force"], &members).ok();
    let reports = world.run(&["examine", "--json", "member0", "member1", "member2"]).ok().json();
    for report in reports.as_array().unwrap() {
        assert_eq!(report["also"], serde_json::json!([]), "{report}");
    }
}

#[test]
fn an_array_that_is_made_anew_over_its_data_keeps_all_of_it() {
    let world = World::new();
    let members = world.members(3);
    // With metadata 1.0 the data begins at sector 0, so this mark lies in it.
    let options = ["--level", "5", "--metadata", "1.0", "--assume-clean", "--bitmap", "none"];
    world.create(&options, &members).ok();
    world.poke("member0", 0x10040, b"_BHRfS_M");
    let data = |name: &str| {
        std::fs::read(world.path(name)).unwrap()[..usize::try_from(MEMBER_BYTES / 2).unwrap()].to_vec()
    };
    let before = data("member0");
    let options: Vec<&str> = options.into_iter().chain(["--force"]).collect();
    world.create(&options, &members).ok();
    assert!(data("member0") == before);
}

#[test]
fn add_refuses_a_device_that_holds_something_but_takes_a_former_member() {
    let world = World::new();
    let members = world.raid5(3);
    let spare = world.file("spare", MEMBER_BYTES);
    world.poke(&spare, 0, b"LUKS\xba\xbe");
    let small = world.file("small", MEMBER_BYTES / 2);
    let server = world.serve(&["--shards", "1"], &members);
    world.run(&["fail", "data", "2"]).ok();
    let before = world.hashes(std::slice::from_ref(&spare));
    world.run(&["add", "data", &spare]).refused(1, &["spare holds a LUKS encrypted volume", "--force"]);
    world.run(&["add", "data", &small]).refused(1, &["small", "sectors"]);
    world.run(&["add", "data", "nothing"]).refused(1, &["nothing does not exist"]);
    world.run(&["add", "data", "member0"]).refused(1, &["member0 is the member in slot 0 already"]);
    assert_eq!(world.hashes(&[spare]), before);
    world.run(&["add", "data", "member2", "--wait"]).ok();
    world.run(&["check", "data"]).ok();
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
}

/// A disk of whole MiB is used up to its last sector, and clients have the end of their GPT there.
#[test]
fn what_clients_have_written_keeps_no_former_member_out() {
    let world = World::new();
    let members = world.raid5(3);
    let server = world.serve(&["--shards", "1"], &members);
    let (mut client, end) = (Client::connect(&server.nbd()), server.size_bytes() - 512);
    let backup = [&b"EFI PART"[..], &[0; 504]].concat();
    assert_eq!(client.write(end, &backup), 0);
    let ends_so = |member: &&String| std::fs::read(world.path(member)).unwrap().ends_with(&backup);
    let last = members.iter().position(|member| ends_so(&member)).unwrap().to_string();
    let device = format!("member{last}");
    world.run(&["fail", "data", &last]).ok();
    let added = world.run(&["add", "data", &device, "--wait", "--json"]).ok().json();
    assert_eq!(added["recovery"], "bitmap", "{added}");
    // What was made on it since isn't clients'.
    world.run(&["fail", "data", &last]).ok();
    world.poke(&device, 1024 + 56, &[0x53, 0xef]);
    world.run(&["add", "data", &device]).refused(1, &["holds an ext2 file system;", "--force"]);
}

/// Clients never wrote there.
#[test]
fn what_was_made_on_a_former_spare_keeps_it_out() {
    let world = World::new();
    let members = world.raid5(3);
    let spare = world.file("spare", MEMBER_BYTES);
    let _server = world.serve(&["--shards", "1"], &members);
    world.run(&["add", "data", &spare]).ok();
    world.run(&["remove", "data", &spare]).ok();
    world.poke(&spare, MEMBER_BYTES - 512, b"EFI PART");
    let before = world.hashes(std::slice::from_ref(&spare));
    world.run(&["add", "data", &spare]).refused(1, &["spare holds", "GPT", "--force"]);
    assert_eq!(world.hashes(&[spare]), before);
}

/// By it tools would believe the table's other end, which stays where the array has its data.
#[test]
fn force_leaves_no_mbr_of_a_gpt() {
    let world = World::new();
    let members = world.members(3);
    let protective: &[u8] = &[0, 0, 2, 0, 0xee, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0xff, 7, 0, 0];
    let table =
        [(446, protective), (510, b"\x55\xaa"), (512, b"EFI PART"), (MEMBER_BYTES - 512, b"EFI PART")];
    for (at, bytes) in table {
        world.poke("member1", at, bytes);
    }
    world.create(&["--level", "5", "--force"], &members).ok();
    assert_eq!(std::fs::read(world.path("member1")).unwrap()[446..520], [0; 74]);
}

/// Marks at the end lie behind what the array uses of a larger device.
#[test]
fn no_mark_of_what_a_device_was_is_left_by_any_command_that_takes_it_by_force() {
    let world = World::new();
    let devices: Vec<String> =
        (0..5).map(|slot| world.file(&format!("device{slot}"), MEMBER_BYTES + 8 * MIB)).collect();
    let small = world.file("small", MEMBER_BYTES / 2);
    let label = b"LABELONE\0\0\0\0\0\0\0\0\0\0\0\0\x20\0\0\0LVM2 001";
    for device in devices.iter().chain([&small]) {
        let size = std::fs::metadata(world.path(device)).unwrap().len();
        let ends = [(512, &label[..]), (size - 512, b"EFI PART"), (size - 4096 + 60, b"\x83\x74\x02\x6b")];
        for (at, bytes) in EXT4.into_iter().chain(ends) {
            world.poke(device, at, bytes);
        }
    }
    let before = world.hashes(&[&devices[3..], std::slice::from_ref(&small)].concat());
    let shape = ["--level", "5", "--name", "data", "--size", "4M", "--force"];
    world.create(&shape, &devices[..3]).ok();
    let server = world.serve(&["--shards", "1"], &devices[..3]);
    world
        .run(&["add", "data", &devices[3]])
        .refused(1, &["a GPT partition table", "an ext4", "LVM2", "DRBD"]);
    world.run(&["add", "data", &small, "--force"]).refused(1, &["small", "sectors"]);
    assert_eq!(world.hashes(&[&devices[3..], &[small]].concat()), before, "what is refused changes nothing");
    world.run(&["fail", "data", "0"]).ok();
    world.run(&["add", "data", &devices[3], "--force", "--wait"]).ok();
    world.run(&["replace", "data", "1", "--with", &devices[4], "--force", "--wait"]).ok();
    world.run(&["stop", "data"]).ok();
    assert_eq!(server.ended(), 0);
    for device in &devices {
        let examined = world.run(&["examine", "--json", device]).ok().json();
        assert_eq!(examined[0]["also"], serde_json::json!([]), "{device}: {examined}");
    }
}

/// Superblocks of other versions lie elsewhere than the new one.
#[test]
fn a_device_that_is_added_by_force_is_no_member_of_its_former_array() {
    for (own, former) in [("1.1", "1.2"), ("1.2", "1.0")] {
        let world = World::new();
        let members = world.members(3);
        let other: Vec<String> =
            (0..3).map(|slot| world.file(&format!("other{slot}"), 2 * MEMBER_BYTES)).collect();
        let create = ["--level", "5", "--assume-clean", "--bitmap", "none"];
        world.create(&[&create[..], &["--name", "data", "--metadata", own]].concat(), &members).ok();
        world.create(&[&create[..], &["--name", "former", "--metadata", former]].concat(), &other).ok();
        let server = world.serve(&["--shards", "1"], &members);
        world.run(&["fail", "data", "2"]).ok();
        let before = world.hashes(&other);
        world.run(&["add", "data", "other0"]).refused(1, &["former", "--force"]);
        assert_eq!(world.hashes(&other), before);
        world.run(&["add", "data", "--force", "--wait", "other0"]).ok();
        world.run(&["replace", "data", "1", "--force", "--wait", "--with", "other1"]).ok();
        world.run(&["stop", "data"]).ok();
        assert_eq!(server.ended(), 0);
        for examined in world.run(&["examine", "--json", "other0", "other1"]).ok().json().as_array().unwrap()
        {
            assert_eq!(examined["member"]["array"]["name"], "data", "{own}: {examined}");
            assert_eq!(examined["also"], serde_json::json!([]), "{own}: {examined}");
        }
        let now = [members[0].clone(), other[1].clone(), other[0].clone()];
        assert_eq!(world.serve(&["--shards", "1"], &now).ready["degraded"], false);
    }
}
