//! What the superblock must keep: the traps of the format, each by its name.

use proptest::prelude::*;

use super::*;
use crate::{
    bitmap::BitmapHeader,
    level::ParityLayout,
    placement::{NewDevice, place_spare},
};

/// A superblock of 1.2 on a device of 12 MiB, slot 2 of 4, device number 4.
fn sample() -> Superblock {
    let mut roles = vec![Role::Spare; 128];
    for (number, slot) in [(0, 0), (1, 1), (4, 2), (5, 3)] {
        roles[number] = Role::Slot(MemberSlot(slot));
    }
    let array = ArrayRecord {
        set_uuid: Uuid([1; 16]),
        name: "host:sample".parse().unwrap(),
        created: Timestamp::new(1_800_000_000, 1),
        updated: Timestamp::new(1_800_000_001, 2),
        level: Level::Raid5,
        layout: Layout::Parity(ParityLayout::LeftSymmetric),
        size: SectorCount(22528),
        chunk: SectorCount(32),
        raid_disks: 4,
        events: 18,
        resync_offset: ResyncOffset::Clean,
        roles,
        bitmap_offset: Some(8),
        journal: false,
        clustered: false,
        reshape: None,
        logical_block_size: 0,
        needs_double_parity_log: false,
        unknown_features: 0,
    };
    let member = MemberRecord {
        version: MetadataVersion::V1_2,
        super_offset: Sector(8),
        device_sectors: 24576,
        data_offset: Sector(2048),
        data_size: SectorCount(22528),
        dev_number: DeviceNumber(4),
        device_uuid: Uuid([2; 16]),
        flags: DeviceFlags(0),
        recovery_offset: None,
        recovery_by_bitmap: false,
        replacement: false,
        journal_tail: None,
        ppl: None,
        double_parity_log: None,
        bad_block_log: Some(BadBlockLog { offset: 16, size: 8, shift: 0, in_use: false }),
        new_offset: None,
        corrected_reads: 0,
    };
    Superblock::new(array, member)
}

fn decode(bytes: &[u8]) -> Result<Superblock, SuperblockError> {
    Superblock::decode(bytes, Sector(8), 24576)
}

/// The sample's bytes with some overwritten and the checksum made right again.
fn forged(changes: &[(usize, &[u8])]) -> Vec<u8> {
    let mut bytes = sample().encode(512).unwrap();
    for (at, new) in changes {
        bytes[*at..*at + new.len()].copy_from_slice(new);
    }
    let sum = raw::checksum(&bytes[..512]);
    bytes[216..220].copy_from_slice(&sum.to_le_bytes());
    bytes
}

#[test]
fn a_superblock_reads_back_what_was_written() {
    let sample = sample();
    let bytes = sample.encode(512).unwrap();
    assert_eq!(bytes.len(), 512);
    let back = decode(&bytes).unwrap();
    assert_eq!((&back.array, &back.member), (&sample.array, &sample.member));
    assert_eq!(back.encode(4096).unwrap().len(), 4096);
}

#[test]
fn candidates_are_tried_in_the_kernels_order() {
    assert_eq!(candidate_sectors(24576).collect::<Vec<_>>(), [Sector(8), Sector(0), Sector(24560)]);
    assert_eq!(candidate_sectors(23).count(), 0);
    assert_eq!(MetadataVersion::at(Sector(8), 24), Some(MetadataVersion::V1_2));
    assert_eq!(MetadataVersion::at(Sector(16), 24576), None);
}

#[test]
fn nothing_damaged_and_unknown_are_told_apart() {
    let kind = |bytes: &[u8]| decode(bytes).unwrap_err().kind();
    assert_eq!(kind(&[0; 4096]), ErrorKind::NotMd);
    let good = sample().encode(512).unwrap();
    let elsewhere = Superblock::decode(&good, Sector(0), 24576).unwrap_err();
    assert_eq!(elsewhere, SuperblockError::Misplaced { found: Sector(0), claimed: Sector(8) });
    assert_eq!(elsewhere.kind(), ErrorKind::NotMd);
    assert_eq!(kind(&good[..300]), ErrorKind::Corrupt);
    let mut flipped = good.clone();
    flipped[80] ^= 1;
    assert!(matches!(decode(&flipped), Err(SuperblockError::Checksum { .. })));
    assert_eq!(decode(&forged(&[(12, &[1])])), Err(SuperblockError::ReservedNotZero(12)));
    assert_eq!(decode(&forged(&[(255, &[1])])), Err(SuperblockError::ReservedNotZero(255)));
    assert_eq!(kind(&forged(&[(255, &[1])])), ErrorKind::Unsupported);
    assert_eq!(decode(&forged(&[(72, &[7])])), Err(SuperblockError::UnknownLevel(7)));
    assert_eq!(kind(&forged(&[(76, &[6])])), ErrorKind::Unsupported);
    assert_eq!(kind(&forged(&[(4, &[2])])), ErrorKind::Unsupported);
}

#[test]
fn dev_number_is_not_the_slot() {
    let superblock = decode(&sample().encode(512).unwrap()).unwrap();
    assert_eq!(superblock.member.dev_number, DeviceNumber(4));
    assert_eq!(superblock.own_role(), Role::Slot(MemberSlot(2)));
    assert_eq!(superblock.array.devices_in(MemberSlot(2)).collect::<Vec<_>>(), [DeviceNumber(4)]);
    assert_eq!(superblock.array.role_of(DeviceNumber(2)), Role::Spare);
}

#[test]
fn events_may_step_back_by_one_and_no_further() {
    assert!(event_is_current(19, 19) && event_is_current(19, 18));
    assert!(!event_is_current(19, 17));
    assert!(event_is_current(0, 0) && event_is_current(u64::MAX, u64::MAX));
}

#[test]
fn a_member_one_event_behind_takes_its_role_from_the_freshest_superblock() {
    let mut behind = sample();
    behind.array.roles[4] = Role::Spare;
    behind.array.events = 17;
    let freshest = sample();
    assert!(event_is_current(freshest.array.events, behind.array.events));
    assert_eq!(behind.own_role(), Role::Spare);
    assert_eq!(behind.role_in(&freshest.array), Role::Slot(MemberSlot(2)));
}

#[test]
fn a_slot_outside_the_geometry_is_a_spare() {
    let mut superblock = sample();
    superblock.array.roles[4] = Role::Slot(MemberSlot(4));
    assert_eq!(superblock.own_role(), Role::Spare);
    superblock.member.dev_number = DeviceNumber(500);
    assert_eq!(superblock.own_role(), Role::Spare);
}

#[test]
fn stale_reshape_fields_mean_nothing_and_are_kept() {
    let bytes =
        forged(&[(100, &5u32.to_le_bytes()), (104, &77u64.to_le_bytes()), (112, &[1]), (124, &[0xa0; 4])]);
    let superblock = decode(&bytes).unwrap();
    assert_eq!((superblock.array.reshape, superblock.member.new_offset), (None, None));
    assert_eq!(superblock.support(), Support::Full);
    assert_eq!(superblock.encode(512).unwrap(), bytes);
}

#[test]
fn byte_224_is_accepted_and_kept_but_never_set() {
    assert_eq!(sample().encode(512).unwrap()[224..228], [0; 4]);
    let bytes = forged(&[(224, &4096u32.to_le_bytes())]);
    let mut superblock = decode(&bytes).unwrap();
    assert_eq!(superblock.array.logical_block_size, 4096);
    superblock.array.events += 1;
    assert_eq!(superblock.encode(512).unwrap()[224..228], 4096u32.to_le_bytes());
}

#[test]
fn fields_whose_feature_is_off_keep_their_bytes() {
    let bytes = forged(&[(8, &[0]), (96, &[9, 9, 9, 9]), (152, &[3; 8])]);
    let superblock = decode(&bytes).unwrap();
    assert_eq!((superblock.array.bitmap_offset, superblock.member.recovery_offset), (None, None));
    assert_eq!(superblock.encode(512).unwrap(), bytes);
}

#[test]
fn the_feature_map_follows_the_state() {
    let mut superblock = sample();
    superblock.member.recovery_offset = Some(Sector(8960));
    superblock.member.replacement = true;
    superblock.member.bad_block_log = Some(BadBlockLog { offset: 16, size: 8, shift: 0, in_use: true });
    assert_eq!(superblock.feature_map(), 0x1b);
    let bytes = superblock.encode(512).unwrap();
    assert_eq!(bytes[8..12], 0x1bu32.to_le_bytes());
    let mut back = decode(&bytes).unwrap();
    assert_eq!(back.member, superblock.member);
    back.member.recovery_offset = None;
    back.member.replacement = false;
    assert_eq!(decode(&back.encode(512).unwrap()).unwrap().feature_map(), 0x9);
}

#[test]
fn what_the_kernel_refuses_is_not_written() {
    let refusal = |change: &dyn Fn(&mut Superblock)| {
        let mut superblock = sample();
        change(&mut superblock);
        superblock.encode(512).unwrap_err()
    };
    let ppl = PplArea { offset: 24, size: 1000, multiple: true };
    assert_eq!(refusal(&|s| s.array.unknown_features = 0x2000), Violation::UnknownFeatures(0x2000));
    assert_eq!(refusal(&|s| s.array.roles = vec![Role::Spare; 1921]), Violation::TooManyRoles(1921));
    assert!(matches!(refusal(&|s| s.member.super_offset = Sector(16)), Violation::SuperOffset { .. }));
    assert_eq!(refusal(&|s| s.member.data_size = SectorCount(9)), Violation::DataTooSmall(9));
    assert!(matches!(
        refusal(&|s| s.member.data_size = SectorCount(22529)),
        Violation::DataBeyondDevice { .. }
    ));
    assert!(matches!(
        refusal(&|s| s.member.data_size = SectorCount(u64::MAX)),
        Violation::DataBeyondDevice { .. }
    ));
    assert!(matches!(refusal(&|s| s.member.data_offset = Sector(8)), Violation::Overlap { .. }));
    assert!(matches!(refusal(&|s| s.member.data_offset = Sector(20)), Violation::Overlap { .. }));
    assert!(matches!(refusal(&|s| s.member.new_offset = Some(-2040)), Violation::Overlap { .. }));
    assert_eq!(refusal(&|s| s.member.ppl = Some(ppl)), Violation::PplWithOther("a bitmap"));
    let ppl_and_journal = |s: &mut Superblock| {
        s.array.bitmap_offset = None;
        s.array.journal = true;
        s.member.ppl = Some(ppl);
    };
    assert_eq!(refusal(&ppl_and_journal), Violation::PplWithOther("a journal"));
    assert_eq!(refusal(&|s| s.array.journal = true), Violation::JournalWithBitmap);
    assert_eq!(refusal(&|s| s.array.roles[9] = Role::Journal), Violation::JournalRoleAlone);
    let log = |offset, size, in_use| Some(BadBlockLog { offset, size, shift: 0, in_use });
    assert!(matches!(
        refusal(&|s| s.member.bad_block_log = log(16, 9, false)),
        Violation::BadBlockLog { .. }
    ));
    assert!(matches!(refusal(&|s| s.member.bad_block_log = log(0, 8, true)), Violation::BadBlockLog { .. }));
    assert!(matches!(refusal(&|s| s.member.bad_block_log = log(2040, 8, true)), Violation::Overlap { .. }));
    assert!(matches!(refusal(&|s| s.member.bad_block_log = log(8, 8, true)), Violation::Overlap { .. }));
    assert!(matches!(refusal(&|s| s.array.bitmap_offset = Some(-9)), Violation::OutsideDevice("bitmap")));
    assert!(matches!(refusal(&|s| s.array.bitmap_offset = Some(0)), Violation::BitmapOffset));
    assert!(matches!(refusal(&|s| s.array.size = SectorCount(22560)), Violation::MemberTooSmall { .. }));
    assert_eq!(
        refusal(&|s| s.array.roles[4] = Role::Slot(MemberSlot(0xff00))),
        Violation::RoleOutOfRange(0xff00)
    );
    let dirty_at_the_end =
        |s: &mut Superblock| s.array.resync_offset = ResyncOffset::DirtyFrom(Sector(u64::MAX));
    assert_eq!(refusal(&dirty_at_the_end), Violation::ResyncOffset);
    let chunk = |s: &mut Superblock| s.array.chunk = SectorCount(1 << 32);
    assert!(matches!(refusal(&chunk), Violation::Chunk { .. }));
    assert_eq!(sample().encode(513), Err(Violation::LogicalBlock(513)));
}

/// As `mdadm --add` makes it for an array of which the data begins behind sector 0.
#[test]
fn the_data_of_a_device_that_mdadm_has_added_with_version_1_0_ends_at_what_lies_behind_it() {
    let mut added = sample();
    added.array.size = SectorCount(20480);
    added.array.bitmap_offset = Some(-16);
    added.member.version = MetadataVersion::V1_0;
    added.member.super_offset = Sector(24560);
    added.member.data_size = SectorCount(22496);
    added.member.bad_block_log = Some(BadBlockLog { offset: -8, size: 8, shift: 0, in_use: false });
    let with_data_size = |sectors: u64| {
        let mut bytes = added.encode(512).unwrap();
        bytes[136..144].copy_from_slice(&sectors.to_le_bytes());
        bytes[216..220].fill(0);
        let sum = raw::checksum(&bytes[..512]);
        bytes[216..220].copy_from_slice(&sum.to_le_bytes());
        Superblock::decode(&bytes, Sector(24560), 24576)
    };
    for sectors in [22496, 22497, 24544, 24560] {
        let read = with_data_size(sectors).unwrap();
        assert_eq!((&read.array, &read.member), (&added.array, &added.member), "{sectors}");
    }
    assert_eq!(with_data_size(22000).unwrap().member.data_size, SectorCount(22000));
    // The kernel refuses it.
    assert_eq!(with_data_size(24561).unwrap_err().kind(), ErrorKind::Corrupt);
}

#[test]
fn the_longest_roles_table_is_written_and_read() {
    let mut longest = sample();
    longest.array.roles.resize(1920, Role::Spare);
    longest.array.roles[1919] = Role::Slot(MemberSlot(2));
    longest.member.dev_number = DeviceNumber(1919);
    // A superblock of eight sectors ends where the bitmap begins.
    let bytes = longest.encode(512).unwrap();
    assert_eq!(bytes.len(), SUPERBLOCK_BYTES_MAX);
    let back = decode(&bytes).unwrap();
    assert_eq!((&back.array, &back.member), (&longest.array, &longest.member));
}

#[test]
fn a_reshape_leaves_members_and_comes_from_some() {
    let reshape = |delta: i32| forged(&[(8, &[5]), (112, &delta.to_le_bytes())]);
    for delta in [3, 1, 0, -1, -3] {
        assert_eq!(decode(&reshape(delta)).unwrap().array.reshape.unwrap().delta_disks, delta);
    }
    for delta_disks in [4, 5, i32::MAX, -4, -5, i32::MIN] {
        let refused = Violation::ReshapeMembers { raid_disks: 4, delta_disks };
        assert_eq!(decode(&reshape(delta_disks)), Err(refused.into()));
    }
}

/// A superblock with a log of 1000 sectors, `offset` sectors behind it, and a bad-block log at 16..24.
fn with_log(level: Level, offset: i16) -> Superblock {
    let mut superblock = sample();
    let area = Some(PplArea { offset, size: 1000, multiple: true });
    superblock.array.bitmap_offset = None;
    match level {
        Level::Raid5 => superblock.member.ppl = area,
        _ => superblock.member.double_parity_log = area,
    }
    superblock.array.level = level;
    superblock.array.layout = Layout::Parity(ParityLayout::from_name(level, "left-symmetric").unwrap());
    superblock
}

#[test]
fn a_log_lies_on_nothing_else() {
    let logs = [(Level::Raid5, "partial parity log"), (Level::Raid6, "double-parity log")];
    for (level, log) in logs {
        // From the superblock, at sector 8; the bad-block log is 16 sectors behind it and the data 2040.
        for offset in [24, 1040] {
            let bytes = with_log(level, offset).encode(512).unwrap();
            let member = decode(&bytes).unwrap().member;
            let area = Some(PplArea { offset, size: 1000, multiple: true });
            assert_eq!(member.ppl.or(member.double_parity_log), area);
        }
        let refusal = |offset| with_log(level, offset).encode(512).unwrap_err();
        assert_eq!(refusal(23), Violation::Overlap { first: log, second: "bad-block log" });
        assert_eq!(refusal(1041), Violation::Overlap { first: "data region", second: log });
        assert_eq!(refusal(i16::MAX), Violation::OutsideDevice(log));
    }
    let overlap = Violation::Overlap { first: "superblock", second: "partial parity log" };
    assert_eq!(with_log(Level::Raid5, 0).encode(512), Err(overlap));
    let outside = Violation::OutsideDevice("partial parity log");
    assert_eq!(with_log(Level::Raid5, -9).encode(512), Err(outside));
}

#[test]
fn a_double_parity_log_goes_with_raid6_and_nothing_else_that_logs() {
    let refusal = |change: &dyn Fn(&mut Superblock)| {
        let mut superblock = with_log(Level::Raid6, 24);
        change(&mut superblock);
        superblock.encode(512).err()
    };
    assert_eq!(refusal(&|s| s.array.needs_double_parity_log = true), None);
    let other_level = |s: &mut Superblock| {
        s.array.level = Level::Raid5;
        s.array.layout = Layout::Parity(ParityLayout::LeftSymmetric);
    };
    assert_eq!(refusal(&other_level), Some(Violation::DoubleParityLog));
    assert_eq!(refusal(&|s| s.array.bitmap_offset = Some(8)), Some(Violation::DoubleParityLog));
    assert_eq!(refusal(&|s| s.array.journal = true), Some(Violation::DoubleParityLog));
    let in_the_superblock =
        |s: &mut Superblock| s.member.double_parity_log = with_log(Level::Raid6, 7).member.double_parity_log;
    assert_eq!(refusal(&in_the_superblock), Some(Violation::DoubleParityLog));
    let needed = |s: &mut Superblock| {
        s.array.needs_double_parity_log = true;
        s.member.double_parity_log = None;
    };
    assert_eq!(refusal(&needed), Some(Violation::DoubleParityLog));
}

#[test]
fn a_bad_block_log_of_no_place_or_no_length_hides_no_double_parity_log() {
    for (offset, size) in [(100, 0), (0, 8)] {
        let mut superblock = with_log(Level::Raid6, 24);
        superblock.member.bad_block_log = Some(BadBlockLog { offset, size, shift: 0, in_use: false });
        let member = decode(&superblock.encode(512).unwrap()).unwrap().member;
        assert_eq!(member, superblock.member, "a bad-block log of {size} sectors at {offset}");
    }
}

/// As the kernel has it: what it lists first it lists in sectors.
#[test]
fn the_unit_of_a_bad_block_log_counts_only_while_it_lists_something() {
    let mut log = BadBlockLog { offset: 16, size: 8, shift: 3, in_use: true };
    assert!(!log.counts_in_sectors());
    assert!(!log.set_in_use(true) && !log.set_in_use(false));
    assert_eq!((log.shift, log.counts_in_sectors()), (3, true));
    assert!(log.set_in_use(true));
    assert_eq!((log.shift, log.in_use), (0, true));
}

/// A RAID0 that was grown to RAID4 has such a number, and MD takes no device that has another one.
#[test]
fn a_spare_has_its_arrays_number_of_the_layout_where_the_level_has_none() {
    let template = decode(&forged(&[(72, &4_i32.to_le_bytes()), (76, &5_u32.to_le_bytes())])).unwrap();
    assert_eq!((template.array.level, template.array.layout), (Level::Raid4, Layout::None));
    let device = NewDevice { sectors: 24576, uuid: Uuid([9; 16]) };
    let spare = place_spare(&template, device, &[], 512).unwrap();
    assert_eq!(spare.encode(512).unwrap()[76..80], 5_u32.to_le_bytes());
}

/// MD leaves the bytes of a log's place as they were when an array gets a journal.
#[test]
fn bytes_of_a_log_that_was_hide_no_journal() {
    let superblock = with_log(Level::Raid6, 24);
    let mut bytes = superblock.encode(512).unwrap();
    let features = u32::from_le_bytes(bytes[8..12].try_into().unwrap()) | raw::feature::JOURNAL;
    bytes[8..12].copy_from_slice(&features.to_le_bytes());
    bytes[216..220].fill(0);
    let sum = raw::checksum(&bytes[..512]);
    bytes[216..220].copy_from_slice(&sum.to_le_bytes());
    let decoded = decode(&bytes).unwrap();
    assert!(decoded.array.journal && decoded.member.double_parity_log.is_none());
    // And is none in what we write of it.
    let written = decode(&decoded.encode(512).unwrap()).unwrap();
    assert_eq!((&written.array, &written.member), (&decoded.array, &decoded.member));
}

#[test]
fn events_that_no_counting_comes_to_are_damage() {
    let events = |events: u64| decode(&forged(&[(200, &events.to_le_bytes())]));
    assert_eq!(events(EVENTS_MAX).unwrap().array.events, EVENTS_MAX);
    for absurd in [EVENTS_MAX + 1, u64::MAX] {
        assert_eq!(events(absurd), Err(Violation::Events(absurd).into()));
    }
}

#[test]
fn contradicting_flags_are_damage() {
    assert_eq!(decode(&forged(&[(8, &[0, 0x0c])])), Err(Violation::BothPplFlags.into()));
    assert_eq!(decode(&forged(&[(8, &[1, 0x04])])), Err(Violation::PplWithOther("a bitmap").into()));
    assert_eq!(
        decode(&forged(&[(8, &[0, 0x10])])),
        Err(Violation::Raid0LayoutElsewhere(Level::Raid5).into())
    );
    assert_eq!(decode(&forged(&[(256, &[0xfd, 0xff])])), Err(Violation::JournalRoleAlone.into()));
    let reserved = SuperblockError::ReservedRole { device: DeviceNumber(0), role: 0xff00 };
    assert_eq!(decode(&forged(&[(256, &[0x00, 0xff])])), Err(reserved));
}

#[test]
fn what_is_not_served_says_which_and_why() {
    let reason = |bytes: &[u8]| match decode(bytes).unwrap().support() {
        Support::Refused(reason) => reason.to_string(),
        Support::ReadOnly(reason) => reason.to_string(),
        Support::Full => String::new(),
    };
    assert_eq!(reason(&forged(&[])), "");
    assert!(reason(&forged(&[(9, &[0x20])])).contains("unknown feature bits 0x2000"));
    assert!(reason(&forged(&[(72, &[1]), (76, &[0])])).contains("raid1 is not served yet"));
    assert!(reason(&forged(&[(8, &[5])])).contains("reshape is in progress"));
    assert!(reason(&forged(&[(9, &[1])])).contains("clustered"));
    assert_eq!(reason(&forged(&[(8, &[0, 8]), (96, &[24, 0, 0, 4])])), "");
    assert!(reason(&forged(&[(8, &[0, 8]), (96, &[24, 0, 16, 0])])).contains("shorter than a chunk"));
    assert_eq!(reason(&forged(&[(8, &[0, 2]), (258, &[0xfd, 0xff])])), "", "a journal is replayed");
}

/// Without a reshape nothing says how far the data has moved.
#[test]
fn a_member_with_another_data_offset_to_come_is_not_served() {
    let superblock = decode(&forged(&[(8, &[0x41])])).unwrap();
    assert_eq!((superblock.array.reshape, superblock.member.new_offset), (None, Some(0)));
    assert_eq!(superblock.support(), Support::Refused(RefusedReason::Reshape));
}

#[test]
fn an_unknown_feature_is_read_for_examination_and_never_written() {
    let superblock = decode(&forged(&[(10, &[1])])).unwrap();
    assert_eq!(superblock.array.unknown_features, 0x1_0000);
    assert_eq!(superblock.encode(512), Err(Violation::UnknownFeatures(0x1_0000)));
}

#[test]
fn a_bitmap_is_written_in_whole_blocks_as_far_as_there_is_room() {
    let mut superblock = sample();
    // It begins at sector 16, and the log five sectors behind.
    superblock.member.bad_block_log.as_mut().unwrap().offset = 13;
    let header = BitmapHeader::new(Uuid([1; 16]), SectorCount(22528), 65536).unwrap();
    let written = [512, 1024, 4096].map(|block| superblock.bitmap_bytes(&header, block));
    assert_eq!(written, [Some(2560), Some(2048), None]);
}

#[test]
fn members_of_different_arrays_are_told_apart() {
    let mut other = sample();
    other.member.device_uuid = Uuid([3; 16]);
    assert_eq!(sample().same_array(&other), Ok(()));
    other.array.chunk = SectorCount(64);
    assert!(matches!(sample().same_array(&other), Err(Disagreement::Chunk { .. })));
    other.array.set_uuid = Uuid([4; 16]);
    assert!(matches!(sample().same_array(&other), Err(Disagreement::SetUuid { .. })));
}

#[test]
fn members_with_chunks_in_other_places_are_not_of_one_array() {
    let mut other = sample();
    other.array.layout = Layout::Parity(ParityLayout::LeftAsymmetric);
    assert!(matches!(sample().same_array(&other), Err(Disagreement::Layout { .. })));
    let mut other = sample();
    other.array.level = Level::Raid6;
    assert!(matches!(sample().same_array(&other), Err(Disagreement::Level { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Random damage under a right checksum: no panic, and what is accepted encodes to the same bytes.
    #[test]
    fn no_forged_superblock_panics_and_what_is_accepted_reads_back(
        changes in prop::collection::vec((4usize..268, any::<u8>()), 1..6),
        cut in prop::option::of(0usize..512),
    ) {
        let changes: Vec<_> = changes.iter().map(|(at, byte)| (*at, std::slice::from_ref(byte))).collect();
        let mut bytes = forged(&changes);
        bytes.truncate(cut.unwrap_or(512));
        if let Ok(superblock) = decode(&bytes) {
            superblock.support();
            if let Ok(again) = superblock.encode(512) {
                let covered = 256 + 2 * superblock.array.roles.len();
                prop_assert_eq!(&again[..covered], &bytes[..covered]);
            }
        }
    }
}
