//! Bitmaps that members have otherwise than each other, or that are out of date, when an array is started.

use crate::arrays::{
    self,
    failures::{a_member_back_by_bits_of_one, crash_in_a_resync_of_outdated_bitmaps, set_bits_on, two_pages},
    read_only,
};

#[test]
fn a_bit_that_one_members_bitmap_has_brings_a_member_back_after_that_one_was_lost() {
    (0..3).for_each(a_member_back_by_bits_of_one);
}

#[test]
fn a_crash_in_the_resync_after_outdated_bitmaps_leaves_every_bit_set() {
    (0..3).for_each(crash_in_a_resync_of_outdated_bitmaps);
}

#[test]
fn a_read_only_start_writes_no_bitmap_whatever_the_members_have() {
    let mut scene = two_pages(5);
    scene.stop();
    set_bits_on(&scene, 0, [3, 30730]);
    let written = |scene: &arrays::scene::Scene| -> Vec<u64> {
        scene.disks.iter().map(|disk| disk.counters().writes).collect()
    };
    let before = written(&scene);
    scene.options = read_only();
    scene.reassemble();
    scene.read_all();
    assert_eq!(written(&scene), before);
}
