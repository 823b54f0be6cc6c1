//! Arrays that mdadm and the kernel made, read through the real engine: complete and with everything that may
//! be missing.

use crate::arrays::{self, BLOCK, Golden, cases, golden_array, options, read_only};
use pinstripe_engine::{assembly::AssembleError, error::IoError, options::ArrayOptions};
use pinstripe_md::{
    bad_blocks::BadBlocks,
    bitmap::UnsupportedBitmap,
    identity::Uuid,
    level::{Layout, Level, ParityLayout},
    superblock::{BitmapProblem, RefusedReason, ResyncOffset, Role, Superblock},
    units::{MemberSlot, Sector, SectorCount},
};

/// Dirty, or parity is wrong on purpose, or refused: these have tests of their own.
const SPECIAL: [&str; 6] = [
    "r5-reshape-mid",
    "r5-crash-nobm",
    "r5-dirty-degraded",
    "r6-dirty-degraded",
    "torn-bitmap-before",
    "torn-bitmap-after",
];

fn read_in_every_way(level: i32, filter: impl Fn(&str) -> bool, at_least: usize) {
    let mut count = 0;
    for case in cases() {
        if case.level != level || SPECIAL.contains(&case.name.as_str()) || !filter(&case.name) {
            continue;
        }
        println!("{}", case.name);
        let golden = Golden::unpack(case);
        read_complete_and_degraded(&golden);
        golden.assert_untouched();
        count += 1;
    }
    assert!(count >= at_least, "{count} arrays");
}

/// Every set of members that the array can do without is taken out once.
fn read_complete_and_degraded(golden: &Golden) {
    let all = golden.all();
    let served = golden.read_all(&all, read_only());
    let bears = served.array.shared().geometry.redundancy() - served.array.detail().missing;
    let current: Vec<usize> = all.iter().copied().filter(|&m| golden.is_current(m)).collect();
    let without =
        |lost: &[usize]| -> Vec<usize> { all.iter().copied().filter(|m| !lost.contains(m)).collect() };
    for (i, &first) in current.iter().enumerate() {
        if bears >= 1 {
            golden.read_all(&without(&[first]), read_only());
        }
        for &second in &current[i + 1..] {
            if bears >= 2 {
                golden.read_all(&without(&[first, second]), read_only());
            }
        }
    }
    // One more than that is refused.
    let lost = &current[..=bears];
    let refused = golden.serve(&without(lost), read_only()).err().unwrap();
    assert!(matches!(refused, AssembleError::TooFewMembers { .. }), "{refused}");
}

#[test]
fn level_0_reads_as_recorded() {
    read_in_every_way(0, |_| true, 2);
}

#[test]
fn level_4_reads_as_recorded_complete_and_degraded() {
    read_in_every_way(4, |_| true, 1);
}

#[test]
fn level_5_reads_as_recorded_complete_and_degraded() {
    read_in_every_way(5, |_| true, 18);
}

#[test]
fn level_6_reads_as_recorded_complete_and_degraded_by_one_and_two() {
    read_in_every_way(6, |_| true, 15);
}

/// A replacement in progress: made from the finished one by giving both devices the slot again.
#[test]
fn a_replacement_in_progress_goes_on_and_its_slot_is_served_by_the_old_member_until_it_is_whole() {
    let golden = golden_array("r5-replace-done");
    let newest = golden.superblock(0);
    assert_eq!(golden.superblock(4).own_role(), Role::Slot(MemberSlot(1)));
    let replaced = golden.superblock(1).member.dev_number;
    for member in golden.all() {
        golden.change(member, |superblock| {
            let residue = superblock.member.clone();
            superblock.array = newest.array.clone();
            superblock.member = residue;
            superblock.array.roles[usize::from(replaced.0)] = Role::Slot(MemberSlot(1));
        });
    }
    golden.change(4, |superblock| {
        superblock.member.replacement = true;
        superblock.member.recovery_offset = Some(Sector(4096));
    });
    // What the replacement doesn't have yet.
    let half = (golden.superblock(4).member.data_offset.0 + 4096) * 512;
    golden.members[4].copy_in(half, &vec![0xaa; 4 << 20]).unwrap();
    let served = golden.read_all(&golden.all(), read_only());
    assert_eq!(served.array.detail().missing, 0);
    assert_eq!(served.array.detail().slots[1].device.as_deref(), Some("member1"));
    for lost in [0, 2, 3] {
        let left: Vec<usize> = golden.all().into_iter().filter(|&m| m != lost).collect();
        golden.read_all(&left, read_only());
    }
    // Without the member that it was to replace it is rebuilt, from where it had got.
    let left: Vec<usize> = golden.all().into_iter().filter(|&m| m != 1).collect();
    golden.read_all(&left, read_only());
    // What stands below the offset is not copied again.
    let place = golden.superblock(4).member.data_offset.0 * 512;
    let kept = golden.bytes(4, place..half);
    let mut served = golden.serve(&golden.all(), options()).unwrap();
    let array = served.array.clone();
    served.world.run_until(arrays::STEPS, |_| array.detail().slots[1].replacement.is_none()).unwrap();
    assert_eq!(served.array.detail().slots[1].device.as_deref(), Some("member4"));
    assert!(golden.bytes(4, place..half) == kept);
    served.compare(&golden.case);
    assert_eq!(served.check(), 0);
    served.stop();
    let after = golden.superblock(0);
    assert_eq!(golden.superblock(4).role_in(&after.array), Role::Slot(MemberSlot(1)));
    assert_eq!(golden.superblock(1).role_in(&after.array), Role::Faulty);
    assert!(
        !golden.superblock(4).member.replacement && golden.superblock(4).member.recovery_offset.is_none()
    );
    let without: Vec<usize> = golden.all().into_iter().filter(|&m| m != 1).collect();
    golden.read_all(&without, read_only());
}

/// The bad range is never read: its bytes are garbage here, and every read is right all the same.
#[test]
fn a_range_in_the_bad_block_log_is_answered_from_the_others() {
    for name in ["r5-left-symmetric-n4", "r6-left-symmetric-n5"] {
        for member in 0..4 {
            let golden = golden_array(name);
            add_bad_blocks(&golden, member, 24..104);
            let served = golden.read_all(&golden.all(), read_only());
            assert!(served.array.detail().statistics.reconstructed_reads > 0, "slot {member} of {name}");
        }
    }
    // Past redundancy the range is an error, not garbage.
    let golden = golden_array("r5-left-symmetric-n4");
    add_bad_blocks(&golden, 1, 0..64);
    let mut served = golden.serve(&[0, 1, 2], read_only()).unwrap();
    let unreadable = served.read(0, 96 << 10).unwrap_err();
    assert!(matches!(unreadable, IoError::Unreadable { .. }), "{unreadable}");
}

#[test]
fn level_0_does_not_read_what_the_bad_block_log_lists() {
    let name = arrays::cases().into_iter().find(|case| case.level == 0).unwrap().name;
    let golden = golden_array(&name);
    add_bad_blocks(&golden, 0, 0..8);
    let mut served = golden.serve(&golden.all(), read_only()).unwrap();
    let refused = served.read(0, 4096).unwrap_err();
    assert!(matches!(&refused, IoError::Member(error) if error.role.slot() == Some(0)), "{refused}");
    served.read(4096, 4096).unwrap();
}

/// Lists member sectors as bad, and fills them with garbage.
fn add_bad_blocks(golden: &Golden, member: usize, sectors: std::ops::Range<u64>) {
    let superblock = golden.superblock(member);
    let log = superblock.member.bad_block_log.unwrap();
    let start = superblock.member.data_offset.0;
    let mut list = BadBlocks::new(log.shift).unwrap();
    list.insert(start + sectors.start..start + sectors.end).unwrap();
    let bytes = list.encode(SectorCount(log.size.into())).unwrap();
    golden.members[member].copy_in(superblock.bad_block_log_sector().unwrap().0 * 512, &bytes).unwrap();
    let garbage = vec![0xee; usize::try_from(sectors.end - sectors.start).unwrap() * 512];
    golden.members[member].copy_in((start + sectors.start) * 512, &garbage).unwrap();
    golden.change(member, |s| s.member.bad_block_log.as_mut().unwrap().in_use = true);
}

/// Makes nothing of the first entry of a member's bad-block log.
fn spoil_bad_block_log(golden: &Golden, member: usize) {
    let log = golden.superblock(member).bad_block_log_sector().unwrap().0 * 512;
    golden.members[member].copy_in(log, &[0; 8]).unwrap();
    golden.change(member, |s| s.member.bad_block_log.as_mut().unwrap().in_use = true);
}

#[test]
fn a_member_whose_bad_block_log_makes_no_sense_is_done_without_if_that_is_meant() {
    let golden = golden_array("r5-left-symmetric-n4");
    spoil_bad_block_log(&golden, 1);
    let served = golden.read_all(&golden.all(), read_only());
    assert_eq!(served.array.detail().missing, 1);
    let left_out = served.array.left_out();
    assert!(left_out.len() == 1 && left_out[0].starts_with("member1: the bad-block log"), "{left_out:?}");
    let strict = ArrayOptions { newly_degraded: false, ..options() };
    let refused = golden.serve(&golden.all(), strict).err().unwrap().to_string();
    for words in ["member1: the bad-block log", "Without this device: slot 1 of the array", "--run"] {
        assert!(refused.contains(words), "{refused}");
    }
    golden.change(1, |superblock| superblock.array.events += 2);
    let refused = golden.serve(&golden.all(), options()).err().unwrap().to_string();
    assert!(refused.contains("what is left is out of date"), "{refused}");
    golden.change(1, |superblock| superblock.array.events -= 2);
    spoil_bad_block_log(&golden, 2);
    let refused = golden.serve(&golden.all(), options()).err().unwrap().to_string();
    assert!(
        refused.contains("member1: the bad-block log") && refused.contains("2 of 4 members"),
        "{refused}"
    );
}

#[test]
fn one_event_behind_is_current_and_two_are_stale() {
    let golden = golden_array("r6-left-symmetric-n5");
    golden.change(2, |superblock| superblock.array.events -= 1);
    let served = golden.read_all(&golden.all(), read_only());
    assert_eq!(served.array.detail().missing, 0);
    golden.change(2, |superblock| superblock.array.events -= 1);
    let data = golden.superblock(2).member.data_offset.0 * 512;
    golden.members[2].copy_in(data, &vec![0xaa; 1 << 20]).unwrap();
    let served = golden.read_all(&golden.all(), read_only());
    assert_eq!(served.array.detail().missing, 1);
    assert_eq!(served.array.stale_members().len(), 1);
    assert_eq!(served.array.stale_members()[0].name, "member2");
}

/// What a member says that was taken out before a reshape.
const RESHAPES: [fn(&mut Superblock); 6] = [
    |before| before.array.chunk = SectorCount(before.array.chunk.0 * 2),
    |before| before.array.layout = Layout::Parity(ParityLayout::RightAsymmetric),
    |before| (before.array.level, before.array.layout) = (Level::Raid4, Layout::None),
    |before| before.array.raid_disks -= 1,
    |before| before.array.size = SectorCount(before.array.size.0 / 2),
    |before| {
        // It went in the middle of one.
        before.array.raid_disks -= 1;
        before.array.chunk = SectorCount(before.array.chunk.0 * 2);
        before.array.reshape = golden_array("r5-reshape-mid").superblock(0).array.reshape;
    },
];

#[test]
fn a_stale_member_from_before_a_reshape_is_left_out() {
    for (case, reshape) in RESHAPES.iter().enumerate() {
        for stale in [0, 2] {
            let golden = golden_array("r5-grown");
            let (number, role) = {
                let superblock = golden.superblock(stale);
                (usize::from(superblock.member.dev_number.0), superblock.own_role())
            };
            golden.change_all(|member| member.array.roles[number] = Role::Faulty);
            golden.change(stale, |member| {
                member.array.roles[number] = role;
                reshape(member);
                member.array.events -= 2;
            });
            let data = golden.superblock(stale).member.data_offset.0 * 512;
            golden.members[stale].copy_in(data, &vec![0xaa; 1 << 20]).unwrap();
            let before = golden.bytes(stale, 0..data + 4096);
            // In any order.
            let mut all = golden.all();
            for _ in 0..all.len() {
                all.rotate_left(1);
                let served = golden.read_all(&all, read_only());
                assert_eq!(served.array.detail().missing, 1, "{case}");
                assert_eq!(served.array.stale_members()[0].name, format!("member{stale}"));
            }
            let mut served = golden.read_all(&golden.all(), options());
            served.write(8192, &vec![3; 5 * BLOCK]).unwrap();
            served.stop();
            assert_eq!(golden.bytes(stale, 0..data + 4096), before, "{case}: the stale one has changed");
        }
    }
}

#[test]
fn members_of_different_geometry_of_which_none_is_stale_are_refused() {
    for (case, reshape) in RESHAPES[..3].iter().enumerate() {
        for behind in [0, 1] {
            for odd in [0, 3] {
                let golden = golden_array("r5-grown");
                golden.change(odd, |member| {
                    reshape(member);
                    member.array.events -= behind;
                });
                let error = golden.serve(&golden.all(), options()).err().unwrap();
                assert!(matches!(error, AssembleError::MembersDisagree { .. }), "{case}: {error}");
            }
        }
        // One that is ahead by more makes the others stale, and isn't enough by itself.
        let golden = golden_array("r5-grown");
        golden.change(1, |member| {
            reshape(member);
            member.array.events += 2;
        });
        let error = golden.serve(&golden.all(), options()).err().unwrap();
        assert!(matches!(error, AssembleError::TooFewMembers { present: 1, .. }), "{case}: {error}");
    }
    // Of another array no device is stale, however old it is.
    let golden = golden_array("r5-grown");
    golden.change(0, |member| {
        member.array.set_uuid = Uuid([9; 16]);
        member.array.events -= 5;
    });
    let error = golden.serve(&golden.all(), options()).err().unwrap();
    assert!(matches!(error, AssembleError::DifferentArrays { .. }), "{error}");
}

/// An idle kernel steps the events back by one when it marks the array clean: some members may have it, some
/// not yet.
#[test]
fn events_that_stepped_back_on_some_members_leave_none_stale() {
    for ahead in 0..4 {
        let golden = golden_array("r5-left-symmetric-n4");
        golden.change(ahead, |superblock| {
            superblock.array.events += 1;
            superblock.array.resync_offset = ResyncOffset::DirtyFrom(Sector(0));
        });
        let served = golden.read_all(&golden.all(), read_only());
        assert_eq!(served.array.detail().missing, 0);
        assert!(served.array.stale_members().is_empty());
        // The dirty one counts, until a resync.
        let refused = golden.serve(&[0, 1, 2, 3][..3], read_only());
        assert_eq!(refused.is_err(), ahead < 3, "dirty and degraded");
    }
}

#[test]
fn what_is_not_served_is_refused_with_the_reason() {
    let mut count = 0;
    for case in cases() {
        if case.level == 1 || case.level == 10 {
            let golden = Golden::unpack(case);
            let error = golden.serve(&golden.all(), read_only()).err().unwrap();
            assert!(matches!(error, AssembleError::Refused(RefusedReason::Level(_))), "{error}");
            golden.assert_untouched();
            count += 1;
        }
    }
    assert!(count > 8);
    let golden = golden_array("r5-reshape-mid");
    let error = golden.serve(&golden.all(), options()).err().unwrap();
    assert!(matches!(error, AssembleError::Refused(RefusedReason::Reshape)), "{error}");
    golden.assert_untouched();
}

#[test]
fn unknown_features_are_refused() {
    let golden = golden_array("r5-left-symmetric-n4");
    for member in golden.all() {
        golden.forge(member, |bytes| bytes[9] |= 0x80);
    }
    let error = golden.serve(&golden.all(), options()).err().unwrap();
    assert!(matches!(error, AssembleError::Refused(RefusedReason::UnknownFeatures(0x8000))), "{error}");
}

#[test]
fn bitmaps_of_other_kinds_are_refused() {
    for (version, kind) in [(5, UnsupportedBitmap::Clustered), (6, UnsupportedBitmap::Lockless)] {
        let golden = golden_array("r5-left-symmetric-n4");
        for member in golden.all() {
            let place = golden.superblock(member).bitmap_sector().unwrap().0 * 512;
            golden.members[member].copy_in(place + 4, &[version, 0, 0, 0]).unwrap();
        }
        let error = golden.serve(&golden.all(), options()).err().unwrap();
        let AssembleError::Bitmap { problem, .. } = error else { panic!("{error}") };
        assert_eq!(problem, BitmapProblem::Unreadable(kind.into()));
    }
    let golden = golden_array("r5-left-symmetric-n4");
    for member in golden.all() {
        golden.forge(member, |bytes| bytes[9] |= 0x01);
    }
    let error = golden.serve(&golden.all(), options()).err().unwrap();
    assert!(matches!(error, AssembleError::Refused(RefusedReason::Clustered)), "{error}");
}

#[test]
fn a_bitmap_of_another_array_or_size_is_refused() {
    for byte in [16, 41] {
        let golden = golden_array("r5-left-symmetric-n4");
        for member in golden.all() {
            let place = golden.superblock(member).bitmap_sector().unwrap().0 * 512 + byte;
            golden.members[member].copy_in(place, &[0x11]).unwrap();
        }
        let error = golden.serve(&golden.all(), options()).err().unwrap();
        assert!(matches!(error, AssembleError::Bitmap { problem: BitmapProblem::Foreign, .. }), "{error}");
    }
}

#[test]
fn a_raid0_of_different_members_without_a_recorded_layout_is_refused() {
    let forget_layout = |golden: &Golden| {
        for member in golden.all() {
            golden.forge(member, |bytes| {
                bytes[9] &= !0x10;
                bytes[76..80].fill(0);
            });
        }
    };
    // MD's two maps differ once the second zone begins at an odd chunk.
    let golden = golden_array("r0-uneq-original");
    golden.change(0, |superblock| superblock.member.data_size.0 -= golden.case.chunk_sectors);
    forget_layout(&golden);
    let error = golden.serve(&golden.all(), read_only()).err().unwrap();
    assert!(matches!(error, AssembleError::Geometry(_)), "{error}");
    // Where they are the same, there is nothing to guess.
    for name in ["r0-uneq-original", "r0-n4-c64"] {
        let golden = golden_array(name);
        forget_layout(&golden);
        golden.read_all(&golden.all(), read_only());
    }
}

/// Complete and dirty: everything (or what the bitmap says) is resynced in the background, and the content is
/// right meanwhile and after.
#[test]
fn a_dirty_array_is_resynced_in_the_background() {
    for name in ["r5-crash-nobm", "torn-bitmap-before", "r5-resyncing", "r5-recovering"] {
        let golden = golden_array(name);
        let mut served = golden.read_all(&golden.all(), options());
        served.settle();
        served.compare(&golden.case);
        // The kernel found the same: parity that was broken on purpose outside of the dirty bits stays.
        assert_eq!(served.check(), golden.case.kernel_mismatch_cnt.unwrap_or(0), "{name}");
        served.stop();
        drop(served);
        let freshest = golden.superblock(0).array;
        assert_eq!(freshest.resync_offset, ResyncOffset::Clean, "{name}");
        let members: Vec<usize> = golden.all().into_iter().filter(|&m| golden.is_current(m)).collect();
        assert_eq!(members.len(), usize::try_from(golden.case.raid_disks).unwrap(), "{name}");
        for lost in 0..members.len() {
            // Rows outside of the dirty bits can't be reconstructed where parity was broken.
            if name != "torn-bitmap-before" {
                let left: Vec<usize> = members.iter().copied().filter(|&m| m != members[lost]).collect();
                golden.read_all(&left, read_only());
            }
        }
    }
}

#[test]
fn a_dirty_array_is_read_without_a_change_if_it_is_served_read_only() {
    for name in ["r5-crash-nobm", "torn-bitmap-before", "torn-bitmap-after", "r5-resyncing", "r5-recovering"]
    {
        let golden = golden_array(name);
        let mut served = golden.read_all(&golden.all(), read_only());
        assert!(matches!(served.write(0, &[1; 512]), Err(IoError::ReadOnly)));
        served.stop();
        golden.assert_untouched();
    }
}

#[test]
fn dirty_and_degraded_is_refused_without_force_and_served_with_it() {
    for name in ["r5-dirty-degraded", "r6-dirty-degraded"] {
        let golden = golden_array(name);
        let refused = golden.serve(&golden.all(), options()).err().unwrap();
        assert!(matches!(refused, AssembleError::DirtyDegraded { missing: 1 }), "{name}: {refused}");
        golden.assert_untouched();
        let mut served = golden.read_all(&golden.all(), ArrayOptions { force: true, ..options() });
        assert_eq!(served.array.detail().missing, 1);
        served.write(0, &[9; BLOCK]).unwrap();
        assert_eq!(served.read(0, BLOCK).unwrap(), [9; BLOCK]);
        served.stop();
    }
    for name in ["r5-crash-nobm", "torn-bitmap-before"] {
        let golden = golden_array(name);
        let refused = golden.serve(&[0, 1, 3], options()).err().unwrap();
        assert!(matches!(refused, AssembleError::DirtyDegraded { missing: 1 }), "{name}: {refused}");
    }
}
