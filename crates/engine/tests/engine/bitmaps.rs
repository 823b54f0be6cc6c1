//! Bitmaps that members have otherwise than each other, or that are out of date, when an array is started.

use crate::arrays::{
    self, assemble,
    failures::{
        Damage, a_member_back_by_bits_of_one, crash_in_a_resync_of_outdated_bitmaps,
        crash_with_a_damaged_bitmap, set_bits_on, two_pages,
    },
    options, read_only,
};
use pinstripe_engine::assembly::AssembleError;
use pinstripe_sim::{Fault, SimDisk};

#[test]
fn a_bit_that_one_members_bitmap_has_brings_a_member_back_after_that_one_was_lost() {
    (0..3).for_each(a_member_back_by_bits_of_one);
}

#[test]
fn a_crash_in_the_resync_after_outdated_bitmaps_leaves_every_bit_set() {
    (0..3).for_each(crash_in_a_resync_of_outdated_bitmaps);
}

#[test]
fn a_damaged_bitmap_beside_sound_ones_counts_as_all_ones_and_is_written_anew() {
    for (seed, damage) in (0..).zip([Damage::Unread, Damage::Garbled, Damage::Differs]) {
        crash_with_a_damaged_bitmap(damage, seed);
    }
}

#[test]
fn a_page_of_one_bitmap_that_can_not_be_read_counts_as_all_ones() {
    let mut scene = two_pages(6);
    scene.write(0, 8, true).unwrap();
    scene.world.crash();
    scene.ledger.borrow_mut().crash();
    let at = scene.superblock(1).bitmap_sector().unwrap().0 * 512;
    scene.disks[1].fault(&Fault::UnreadableRange(at + 4096..at + 4608));
    scene.reassemble();
    let detail = scene.array.detail();
    let bitmap = detail.bitmap.unwrap();
    assert_eq!((bitmap.outdated, detail.regions_to_resync), (vec!["disk1".to_owned()], bitmap.bits));
    scene.write(0, 8, true).unwrap();
    assert_eq!(scene.array.detail().missing, 0);
    scene.world.crash();
    scene.ledger.borrow_mut().crash();
    scene.reassemble();
    let detail = scene.array.detail();
    assert_eq!((detail.bitmap.unwrap().outdated.len(), detail.regions_to_resync), (0, bitmap.bits));
}

#[test]
fn an_array_whose_bitmaps_are_all_damaged_is_not_started() {
    for damage in [Damage::Unread, Damage::Garbled] {
        let mut scene = two_pages(7);
        scene.stop();
        (0..4).for_each(|disk| damage.bring(&scene, disk));
        let sources = scene.disks.iter().map(SimDisk::source).collect();
        let refused = assemble(&mut scene.world, sources, options()).err().unwrap();
        assert!(matches!(&refused, AssembleError::Bitmap { name, .. } if name == "disk0"), "{refused}");
    }
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
