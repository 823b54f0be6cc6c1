//! What places an array must keep: mdadm's choices, and room for everything.

use proptest::prelude::*;

use super::*;
use crate::level::ParityLayout;

fn device(sectors: u64) -> NewDevice {
    NewDevice { sectors, uuid: Uuid([9; 16]) }
}

fn wish(version: MetadataVersion, sectors: u64, chunk: u64, bitmap: NewBitmap) -> NewArray {
    NewArray {
        set_uuid: Uuid([5; 16]),
        name: "host:new".parse().unwrap(),
        created: Timestamp::new(1_800_000_000, 5),
        level: Level::Raid5,
        layout: Layout::Parity(ParityLayout::LeftSymmetric),
        chunk: SectorCount(chunk),
        version,
        bitmap,
        initial: InitialSync::Resync,
        size: None,
        data_offset: None,
        logical_block_bytes: 512,
        members: vec![device(sectors); 4],
        spares: vec![],
    }
}

const BITMAP_64K: NewBitmap = NewBitmap::Internal { chunk_bytes: Some(65536) };

#[test]
fn the_data_begins_where_mdadm_puts_it() {
    assert_eq!(default_data_offset(24576, SectorCount(32)), 2048);
    assert_eq!(default_data_offset(40960, SectorCount(1024)), 4096);
    assert_eq!(default_data_offset(4 << 31, SectorCount(1024)), 264_192);
}

#[test]
fn bitmap_room_grows_with_the_device() {
    let gib = 1 << 21;
    for (sectors, room) in [
        (127, 0),
        (128, 8),
        (8 * gib + 8, 8),
        (8 * gib + 9, 128),
        (200 * gib + 127, 128),
        (200 * gib + 128, 256),
    ] {
        assert_eq!(bitmap_reservation(sectors), room, "{sectors}");
    }
}

#[test]
fn a_new_array_is_dirty_with_every_bit_set_and_an_assumed_clean_one_neither() {
    let dirty = wish(MetadataVersion::V1_2, 24576, 32, BITMAP_64K).place().unwrap();
    assert_eq!(dirty.superblocks[0].array.resync_offset, ResyncOffset::DirtyFrom(Sector(0)));
    assert_eq!(dirty.bitmap.as_ref().unwrap().set_bits().count(), 176);
    let clean =
        NewArray { initial: InitialSync::AssumeClean, ..wish(MetadataVersion::V1_2, 24576, 32, BITMAP_64K) };
    let clean = clean.place().unwrap();
    assert_eq!(clean.superblocks[0].array.resync_offset, ResyncOffset::Clean);
    assert_eq!(clean.bitmap.as_ref().unwrap().set_bits().count(), 0);
}

#[test]
fn a_bitmap_chunk_grows_until_the_bits_fit() {
    let chunk = |sectors| {
        let wish = wish(MetadataVersion::V1_2, sectors, 128, NewBitmap::Internal { chunk_bytes: None });
        wish.place().unwrap().bitmap.unwrap().header().chunk_bytes
    };
    assert_eq!(chunk(1 << 31), 64 << 20);
    // 128 KiB of bits at 64 MiB each are 64 TiB less a header.
    assert_eq!(chunk((63 << 40) / 512), 64 << 20);
    assert_eq!(chunk((64 << 40) / 512), 128 << 20);
}

#[test]
fn a_bitmap_that_does_not_fit_is_refused_with_its_size() {
    let huge = wish(MetadataVersion::V1_2, 1 << 34, 128, NewBitmap::Internal { chunk_bytes: Some(4096) });
    assert!(matches!(huge.place(), Err(PlacementError::BitmapRoom { chunk_bytes: 4096, .. })));
    for bad in [0, 512, 65537] {
        let odd = wish(MetadataVersion::V1_2, 24576, 32, NewBitmap::Internal { chunk_bytes: Some(bad) });
        assert_eq!(odd.place(), Err(PlacementError::BitmapChunk(bad)));
    }
}

#[test]
fn bad_wishes_are_refused() {
    let base = wish(MetadataVersion::V1_2, 24576, 32, NewBitmap::None);
    let with = |change: &dyn Fn(&mut NewArray)| {
        let mut wish = base.clone();
        change(&mut wish);
        wish.place()
    };
    assert_eq!(with(&|w| w.members.clear()), Err(PlacementError::NoMembers));
    assert!(matches!(
        with(&|w| w.chunk = SectorCount(24)),
        Err(PlacementError::Rule(Violation::Chunk { .. }))
    ));
    assert!(matches!(
        with(&|w| w.chunk = SectorCount(4)),
        Err(PlacementError::Rule(Violation::Chunk { .. }))
    ));
    let small = with(&|w| w.members[2].sectors = 2050);
    assert!(
        matches!(small, Err(PlacementError::DeviceTooSmall { index: 2, sectors: 2050, .. })),
        "{small:?}"
    );
    assert!(matches!(
        with(&|w| w.size = Some(SectorCount(30000))),
        Err(PlacementError::DeviceTooSmall { .. })
    ));
    assert!(matches!(
        with(&|w| w.members.truncate(1)),
        Err(PlacementError::Rule(Violation::RaidDisks { raid_disks: 1, .. }))
    ));
    let less = |size| Err(PlacementError::SizeBelowChunk { size, chunk: 32 });
    assert_eq!(with(&|w| w.size = Some(SectorCount(0))), less(0));
    assert_eq!(with(&|w| w.size = Some(SectorCount(31))), less(31));
    let one_chunk = with(&|w| w.size = Some(SectorCount(32))).unwrap();
    assert_eq!(one_chunk.superblocks[0].array.size, SectorCount(32));
    let layout = Layout::Parity(ParityLayout::DdfNRestart);
    assert!(matches!(
        with(&|w| w.layout = layout),
        Err(PlacementError::Rule(Violation::LayoutOfOtherLevel { .. }))
    ));
}

#[test]
fn raid0_records_its_layout_only_where_sizes_differ() {
    let mut raid0 = wish(MetadataVersion::V1_2, 24576, 32, NewBitmap::None);
    raid0.level = Level::Raid0;
    raid0.layout = Layout::Raid0(Raid0Layout::Unspecified);
    let equal = raid0.place().unwrap();
    assert_eq!(equal.superblocks[0].feature_map(), 0);
    assert_eq!(equal.superblocks[0].array.size, SectorCount(0));
    assert!(!equal.superblocks[0].array.is_dirty());
    raid0.members[3].sectors += 4096;
    assert_eq!(raid0.place().unwrap().superblocks[0].feature_map(), 0x1000);
    let without = |what| Err(PlacementError::WithoutRedundancy(Level::Raid0, what));
    let with_bitmap = NewArray { bitmap: BITMAP_64K, ..raid0.clone() };
    assert_eq!(with_bitmap.place(), without("a bitmap"));
    let with_spare = NewArray { spares: vec![device(24576)], ..raid0 };
    assert_eq!(with_spare.place(), without("spares"));
}

/// What the error says is needed is enough, and no sector less is.
#[test]
fn a_device_that_is_too_small_is_refused_with_the_least_size() {
    use MetadataVersion::{V1_0, V1_1, V1_2};
    for (version, size, data_offset, needed, too_small) in [
        // In front of a superblock of 1.0 there are 8 sectors for the bad-block log, and from 128 sectors on
        // 8 for a bitmap. The data begins at sector 0.
        (V1_0, None, None, 56, [0, 23, 24, 40]),
        (V1_0, Some(640), None, 672, [128, 400, 600, 670]),
        (V1_0, Some(641), None, 680, [128, 400, 672, 678]),
        (V1_0, Some(641), Some(16), 696, [128, 400, 688, 694]),
        (V1_1, None, None, 2080, [0, 24, 2047, 2048]),
        (V1_2, Some(640), None, 2688, [0, 24, 2080, 2600]),
        (V1_2, Some(32), Some(5000), 5032, [0, 24, 5000, 5020]),
    ] {
        let mut wish = wish(version, 24576, 32, NewBitmap::None);
        (wish.size, wish.data_offset) = (size.map(SectorCount), data_offset.map(Sector));
        for sectors in too_small.into_iter().chain([needed - 1]) {
            wish.members[2].sectors = sectors;
            let told = PlacementError::DeviceTooSmall { index: 2, sectors, needed };
            assert_eq!(wish.place(), Err(told), "{version}, {size:?}");
        }
        wish.members[2].sectors = needed;
        assert!(wish.place().unwrap().superblocks[0].array.size >= SectorCount(32));
    }
}

#[test]
fn a_log_has_all_the_room_that_there_is_before_the_data_and_no_more_than_it_needs() {
    let logs = [(Level::Raid5, NewLog::Ppl), (Level::Raid6, NewLog::DoubleParity)];
    // A superblock of 1.2 ends at sector 16, and the bad-block log has 8.
    let rooms =
        [(None, 2048), (Some(4096), 2048), (Some(2072), 2048), (Some(2048), 2024), (Some(1047), 1016)];
    for (level, log) in logs {
        for (data_offset, room) in rooms {
            let mut wish = wish(MetadataVersion::V1_2, 24576, 128, NewBitmap::None);
            wish.level = level;
            wish.layout = Layout::Parity(ParityLayout::from_name(level, "left-symmetric").unwrap());
            wish.data_offset = data_offset.map(Sector);
            let placed = wish.place_with(log).unwrap().superblocks.remove(0);
            let member = &placed.member;
            let area = member.ppl.or(member.double_parity_log).unwrap();
            assert_eq!((area.offset, area.size), (8, room), "{level}, data at {data_offset:?}");
            let behind = placed.bad_block_log_sector().unwrap().0;
            assert_eq!(behind, 16 + u64::from(room), "{level}, data at {data_offset:?}");
            assert!(behind + 8 <= member.data_offset.0);
        }
    }
}

/// What is found is also what the rules allow.
#[test]
fn a_later_log_lies_in_the_larger_room_beside_the_bad_block_log() {
    // All in sectors from the superblock: data, the bad-block log, the room that is found.
    let cases = [
        (2040, None, Some((8, 2032))),
        (2040, Some((16, 8)), Some((24, 2016))),
        (2040, Some((2032, 8)), Some((8, 2024))),
        (2040, Some((1000, 8)), Some((1008, 1032))),
        (2040, Some((1101, 3)), Some((8, 1088))),
        (2040, Some((1001, 3)), Some((1008, 1032))),
        // In the rest of the superblock's own 4096 bytes, and behind the data.
        (2040, Some((2, 4)), Some((8, 2032))),
        (2040, Some((11000, 8)), Some((8, 2032))),
        // It is no longer than it needs to be, and never shorter than a header and a page.
        (9000, None, Some((8, 2048))),
        (40, Some((16, 8)), Some((24, 16))),
        (39, Some((16, 8)), None),
        (4, None, None),
    ];
    let mut superblock =
        wish(MetadataVersion::V1_2, 24576, 128, NewBitmap::None).place().unwrap().superblocks.remove(0);
    for (data, log, room) in cases {
        superblock.member.ppl = None;
        superblock.member.data_offset = Sector(8 + data);
        superblock.array.size = SectorCount(8192);
        superblock.member.data_size = SectorCount(8192);
        superblock.member.bad_block_log =
            log.map(|(offset, size)| BadBlockLog { offset, size, shift: 0, in_use: false });
        superblock.check(512).unwrap();
        let found = log_place(&superblock, NewLog::Ppl);
        assert_eq!(found.map(|area| (area.offset, area.size)), room, "data at {data}, log {log:?}");
        superblock.member.ppl = found;
        // Less than a partial parity log must have is for the caller to refuse.
        assert!(found.is_none_or(|area| area.size < 24) || superblock.check(512).is_ok(), "{room:?}");
    }
    let old = wish(MetadataVersion::V1_0, 24576, 128, NewBitmap::None).place().unwrap().superblocks.remove(0);
    assert_eq!(log_place(&old, NewLog::Ppl), None);
}

/// What the error says is needed is enough, and no sector less is.
#[test]
fn a_small_device_for_a_journal_is_refused_with_the_least_size() {
    for version in [MetadataVersion::V1_0, MetadataVersion::V1_1, MetadataVersion::V1_2] {
        let mut placed = wish(version, 24576, 32, NewBitmap::None).place().unwrap();
        let data_offset = placed.superblocks[0].member.data_offset;
        // In a ring of two blocks; 1.0 leaves 16 sectors before its superblock and as many from there to the
        // end.
        let needed = data_offset.0 + if version == MetadataVersion::V1_0 { 48 } else { 16 };
        for sectors in [0, 23, 24, 32, needed - 1] {
            let told = PlacementError::DeviceTooSmall { index: 4, sectors, needed };
            assert_eq!(journal::add_journal(&mut placed, device(sectors), 512), Err(told), "{version}");
        }
        assert_eq!(placed.superblocks.len(), 4);
        journal::add_journal(&mut placed, device(needed), 512).unwrap();
        assert_eq!(placed.superblocks.len(), 5);
        for superblock in &placed.superblocks {
            assert_eq!(superblock.array, placed.superblocks[0].array);
            superblock.check(512).unwrap();
        }
        let journal = &placed.superblocks[4];
        assert!(journal.array.journal);
        assert_eq!((journal.own_role(), journal.member.journal_tail), (Role::Journal, Some(Sector(0))));
        assert_eq!((journal.member.data_offset, journal.member.data_size), (data_offset, SectorCount(16)));
        assert!(placed.superblocks[..4].iter().all(|one| one.member.journal_tail.is_none()));
    }
}

#[test]
fn a_spare_gets_a_free_number_and_a_place_like_its_template() {
    for version in [MetadataVersion::V1_0, MetadataVersion::V1_1, MetadataVersion::V1_2] {
        let array = wish(version, 24576, 32, BITMAP_64K).place().unwrap();
        let numbers: Vec<_> = array.superblocks.iter().map(|s| s.member.dev_number).collect();
        let spare = place_spare(&array.superblocks[1], device(30000), &numbers, 512).unwrap();
        assert_eq!(spare.member.dev_number, DeviceNumber(4));
        assert_eq!(spare.own_role(), Role::Spare);
        assert_eq!(spare.member.data_offset, array.superblocks[1].member.data_offset);
        assert!(spare.member.data_size >= spare.array.size);
        let stale = [&numbers[..], &[DeviceNumber(4)]].concat();
        let spare = place_spare(&array.superblocks[1], device(24576), &stale, 512).unwrap();
        assert_eq!(spare.member.dev_number, DeviceNumber(5));
        assert_eq!(spare.member.data_size, array.superblocks[1].member.data_size);
        let small = place_spare(&array.superblocks[1], device(24000), &numbers, 512);
        assert!(matches!(small, Err(PlacementError::DeviceTooSmall { .. })));
    }
}

#[test]
fn a_spare_keeps_byte_224_of_its_array() {
    let mut member =
        wish(MetadataVersion::V1_2, 24576, 32, BITMAP_64K).place().unwrap().superblocks.remove(0);
    member.array.logical_block_size = 4096;
    let spare = place_spare(&member, device(24576), &[], 512).unwrap();
    assert_eq!(spare.encode(512).unwrap()[224..228], 4096u32.to_le_bytes());
}

#[test]
fn a_large_bitmap_of_version_1_0_makes_the_data_end_before_it() {
    let fine = NewBitmap::Internal { chunk_bytes: Some(4096) };
    let placed = wish(MetadataVersion::V1_0, 1 << 20, 32, fine).place().unwrap();
    let (superblock, bitmap) = (&placed.superblocks[0], placed.bitmap.unwrap());
    let sectors = bitmap.as_bytes().len() as u64 / 512;
    assert_eq!(sectors, 40, "five pages, more than the eight sectors set aside");
    let start = superblock.bitmap_sector().unwrap().0;
    assert_eq!(start + sectors, superblock.bad_block_log_sector().unwrap().0);
    assert!(superblock.member.data_size.0 <= start);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever is asked for, either it is refused or every superblock reads back as it was laid out, and no
    /// two things share a sector.
    #[test]
    fn a_placed_array_reads_back_and_nothing_overlaps(
        sectors in prop::collection::vec(prop_oneof![2000u64..60_000, 1u64 << 20..1 << 42], 4..6),
        spare in prop::option::of(2000u64..60_000),
        version in prop::sample::select(vec![MetadataVersion::V1_0, MetadataVersion::V1_1, MetadataVersion::V1_2]),
        chunk_shift in 3u32..12,
        bitmap in prop::sample::select(vec![None, Some(None), Some(Some(4096)), Some(Some(65536)), Some(Some(1 << 26))]),
        logical_block_bytes in prop::sample::select(vec![512u64, 4096]),
    ) {
        let bitmap = bitmap.map_or(NewBitmap::None, |chunk_bytes| NewBitmap::Internal { chunk_bytes });
        let mut wish = wish(version, 0, 1 << chunk_shift, bitmap);
        wish.members = sectors.into_iter().map(device).collect();
        wish.spares = spare.into_iter().map(device).collect();
        wish.logical_block_bytes = logical_block_bytes;
        let Ok(placed) = wish.place() else { return Ok(()) };
        for superblock in &placed.superblocks {
            let member = &superblock.member;
            let bytes = superblock.encode(logical_block_bytes).unwrap();
            let back = Superblock::decode(&bytes, member.super_offset, member.device_sectors).unwrap();
            prop_assert_eq!((&back.array, &back.member), (&superblock.array, &superblock.member));
            prop_assert_eq!(back.encode(logical_block_bytes).unwrap(), bytes.clone());
            let mut regions = vec![
                (member.super_offset.0, bytes.len() as u64 / 512),
                (superblock.bad_block_log_sector().unwrap().0, 8),
                (member.data_offset.0, member.data_size.0),
            ];
            if let Some(bitmap) = &placed.bitmap {
                regions.push((superblock.bitmap_sector().unwrap().0, bitmap.as_bytes().len() as u64 / 512));
            }
            regions.sort_unstable();
            for pair in regions.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{:?}", regions);
            }
            let (last, length) = regions[regions.len() - 1];
            prop_assert!(last + length <= member.device_sectors, "{:?}", regions);
        }
    }
}
