//! The demo on files; the one on servers is among the tests of those.

use std::time::{Duration, Instant};

use crate::world::World;

#[test]
fn the_demo_plays_to_its_end_within_a_minute_and_leaves_nothing_behind() {
    let world = World::new();
    let folder = world.path("demo");
    std::fs::create_dir(&folder).unwrap();
    let begun = Instant::now();
    let said = world.run(&["demo", "--size", "8M", "--folder", folder.to_str().unwrap()]).ok().out;
    let took = begun.elapsed();
    assert!(took < Duration::from_mins(1), "{took:?}");
    let in_order = [
        "member4 is back in slot 4 and has got what was dirtied while it was away",
        "of the bitmap's",
        "Lose a member while everything is written anew",
        "spare is in slot 2 and is rebuilt",
        "takes over by itself",
        "member2 is a spare",
        "whole again",
        "member3 has taken slot 5",
        "parity matches everywhere",
        "6 members, all of one clean and complete array",
        "All well",
    ];
    let mut rest = said.as_str();
    for words in in_order {
        let (_, after) = rest.split_once(words).unwrap_or_else(|| panic!("'{words}' is missing in: {said}"));
        rest = after;
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "the demo left files behind");
}
