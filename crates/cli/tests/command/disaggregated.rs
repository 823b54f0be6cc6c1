//! Arrays on servers that compute: the demo, and what happens when servers or the client go.

use crate::world::World;

#[test]
fn the_disaggregated_demo_plays_to_its_end_and_leaves_nothing_behind() {
    let world = World::new();
    let folder = world.path("demo");
    std::fs::create_dir(&folder).unwrap();
    let arguments = ["demo", "--disaggregated", "--size", "8M", "--folder", folder.to_str().unwrap()];
    let said = world.run(&arguments).ok().out;
    for words in ["all of which offload", "members are lost", "whole again", "store3 is killed", "to client"]
    {
        assert!(said.contains(words), "'{words}' is missing in: {said}");
    }
    assert_eq!(said.matches("parity matches everywhere").count(), 2, "{said}");
    assert_eq!(said.matches("    slot ").count(), 2, "two spares have taken slots: {said}");
    assert!(said.contains("All well"), "{said}");
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "the demo left files behind");
}
