//! Who belongs to a served array: spares, members that come back, replacements; and its bitmap.

use crate::{
    nbd::{Client, pattern},
    world::{MEMBER_BYTES, World},
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
    world.run(&["grow", "data", "--bitmap=none", "--bitmap-chunk", "1M"]).refused(2, &["--bitmap-chunk"]);
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
