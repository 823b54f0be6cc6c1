//! The images in `tests/golden`, written by mdadm 4.2 and Linux 6.12, against what `manifest.json` and
//! `manifest-extra.json` say of them.
#![allow(clippy::unwrap_used, reason = "a test may stop at what it doesn't expect")]

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

use pinstripe_md::bad_blocks::BadBlocks;
use pinstripe_md::bitmap::BitmapImage;
use pinstripe_md::identity::Uuid;
use pinstripe_md::journal::{JournalEntry, JournalWalk, Payload, Seed};
use pinstripe_md::level::{Layout, Level, ParityLayout, Raid0Layout};
use pinstripe_md::placement::{InitialSync, NewArray, NewBitmap, NewDevice};
use pinstripe_md::ppl;
use pinstripe_md::superblock::{
    ResyncOffset, Role, SUPERBLOCK_BYTES_MAX, Superblock, Support, candidate_sectors, event_is_current,
};
use pinstripe_md::units::{DeviceNumber, MemberSlot, Sector, SectorCount};
use proptest::prelude::*;
use serde::Deserialize;

#[derive(Deserialize)]
struct Manifest {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    file: String,
    member_bytes: Vec<usize>,
    create: String,
    level: i32,
    layout: u32,
    chunk_sectors: u64,
    raid_disks: u32,
    metadata: String,
    component_sectors: u64,
    uuid: String,
    set_name: String,
    feature_map: u32,
    max_events: u64,
    resync_offset: String,
    reshape: Option<ReshapeInfo>,
    member_info: Vec<MemberInfo>,
}

#[derive(Deserialize)]
struct ReshapeInfo {
    position: u64,
    delta_disks: i32,
    new_level: i32,
    new_layout: u32,
    new_chunk: u64,
    new_offset: i32,
}

#[derive(Deserialize)]
struct MemberInfo {
    dev_number: u16,
    role: String,
    roles: Vec<String>,
    events: u64,
    feature_map: u32,
    data_offset: u64,
    data_size: u64,
    super_offset: u64,
    recovery_offset: u64,
    devflags: u8,
    bitmap_offset: Option<i32>,
    ppl: Option<(i16, u16)>,
    bblog: (i32, u16, u8),
    sb_csum: String,
    badblocks: Option<Vec<(u64, u64)>>,
    bitmap: Option<BitmapInfo>,
}

#[derive(Deserialize)]
struct BitmapInfo {
    events: u64,
    events_cleared: u64,
    sync_size: u64,
    chunksize: u32,
    daemon_sleep: u32,
    write_behind: u32,
    sectors_reserved: u32,
    nbits: u64,
    set: SetBits,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum SetBits {
    Listed(Vec<u64>),
    Counted { count: usize },
}

fn golden() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// Every case with the images of its members, unpacked once for all tests.
static CASES: LazyLock<Vec<(Case, Vec<Vec<u8>>)>> = LazyLock::new(|| {
    let read =
        |name| -> Manifest { serde_json::from_slice(&fs::read(golden().join(name)).unwrap()).unwrap() };
    let mut cases = read("manifest.json").cases;
    cases.extend(read("manifest-extra.json").cases);
    assert!(cases.len() >= 58, "{} cases", cases.len());
    cases.into_iter().map(unpack).collect()
});

fn unpack(case: Case) -> (Case, Vec<Vec<u8>>) {
    let packed = fs::read(golden().join(&case.file)).unwrap();
    let image = zstd::bulk::decompress(&packed, case.member_bytes.iter().sum()).unwrap();
    let mut rest = &image[..];
    let member = |bytes: &usize| rest.split_off(..*bytes).unwrap().to_vec();
    let members = case.member_bytes.iter().map(member).collect();
    (case, members)
}

/// The cases with a name that passes `filter`.
fn cases(filter: impl Fn(&str) -> bool) -> impl Iterator<Item = (&'static Case, &'static [Vec<u8>])> {
    CASES.iter().filter(move |(case, _)| filter(&case.name)).map(|(case, images)| (case, &images[..]))
}

fn case(name: &str) -> (&'static Case, Vec<Superblock>) {
    let (case, images) = cases(|n| n == name).next().unwrap();
    let superblocks = images.iter().map(|image| find(image)).collect();
    (case, superblocks)
}

fn at(image: &[u8], sector: Sector) -> &[u8] {
    &image[usize::try_from(sector.0).unwrap() * 512..]
}

/// The one superblock of a member.
fn find(image: &[u8]) -> Superblock {
    let device_sectors = image.len() as u64 / 512;
    let mut found: Vec<_> = candidate_sectors(device_sectors)
        .filter_map(|sector| {
            let bytes = at(image, sector);
            Superblock::decode(&bytes[..bytes.len().min(SUPERBLOCK_BYTES_MAX)], sector, device_sectors).ok()
        })
        .collect();
    assert_eq!(found.len(), 1);
    found.remove(0)
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text.strip_prefix("0x").unwrap(), 16).unwrap()
}

fn role(text: &str) -> Role {
    match hex(text) {
        0xffff => Role::Spare,
        0xfffe => Role::Faulty,
        0xfffd => Role::Journal,
        slot => Role::Slot(MemberSlot(slot.try_into().unwrap())),
    }
}

fn assert_array_is_as_recorded(case: &Case, superblock: &Superblock) {
    let array = &superblock.array;
    assert_eq!(array.level.number(), case.level);
    let recorded = Layout::from_word(array.level, case.layout, case.feature_map & 0x1000 != 0);
    assert_eq!(Some(array.layout), recorded);
    assert_eq!(array.chunk.0, case.chunk_sectors);
    assert_eq!(array.raid_disks, case.raid_disks);
    assert_eq!(superblock.member.version.name(), case.metadata);
    assert_eq!(array.size.0, case.component_sectors);
    assert_eq!(array.set_uuid, case.uuid.parse::<Uuid>().unwrap());
    assert_eq!(array.name.to_string(), case.set_name);
    if array.events == case.max_events {
        let resync_offset = match array.resync_offset {
            ResyncOffset::Clean => u64::MAX,
            ResyncOffset::DirtyFrom(sector) => sector.0,
        };
        assert_eq!(resync_offset, hex(&case.resync_offset));
        assert_eq!(array.reshape.is_some(), case.reshape.is_some());
    }
    if let (Some(reshape), Some(recorded)) = (array.reshape, &case.reshape) {
        assert_eq!(reshape.position.0, recorded.position);
        assert_eq!(reshape.delta_disks, recorded.delta_disks);
        assert_eq!(reshape.new_level, recorded.new_level);
        assert_eq!(reshape.new_layout, recorded.new_layout);
        assert_eq!(reshape.new_chunk.0, recorded.new_chunk);
        assert_eq!(superblock.member.new_offset, Some(recorded.new_offset));
    }
}

fn assert_member_is_as_recorded(info: &MemberInfo, superblock: &Superblock) {
    let (array, member) = (&superblock.array, &superblock.member);
    assert_eq!(member.dev_number, DeviceNumber(info.dev_number));
    assert_eq!(superblock.own_role(), role(&info.role));
    let roles: Vec<_> = info.roles.iter().map(|r| role(r)).collect();
    assert_eq!(array.roles[..roles.len()], roles);
    assert_eq!(array.events, info.events);
    assert_eq!(superblock.feature_map(), info.feature_map);
    assert_eq!(member.data_offset.0, info.data_offset);
    assert_eq!(member.data_size.0, info.data_size);
    assert_eq!(member.super_offset.0, info.super_offset);
    let below = member.recovery_offset.or(member.journal_tail).map_or(0, |s| s.0);
    assert_eq!(below, info.recovery_offset);
    assert_eq!(member.flags.0, info.devflags);
    assert_eq!(array.bitmap_offset, info.bitmap_offset);
    assert_eq!(member.ppl.map(|p| (p.offset, p.size)), info.ppl);
    let log = member.bad_block_log.unwrap();
    assert_eq!((log.offset, log.size, log.shift), info.bblog);
    assert_eq!(log.in_use, info.badblocks.is_some());
}

#[test]
fn every_superblock_is_read_as_recorded_and_written_back_byte_for_byte() {
    let mut count = 0;
    for (case, images) in cases(|_| true) {
        for (info, image) in case.member_info.iter().zip(images) {
            println!("{} device number {}", case.name, info.dev_number);
            let superblock = find(image);
            assert_array_is_as_recorded(case, &superblock);
            assert_member_is_as_recorded(info, &superblock);
            let bytes = superblock.encode(512).unwrap();
            assert_eq!(bytes.len(), 512);
            assert!(bytes == at(image, superblock.member.super_offset)[..512]);
            let checksum = u32::from_le_bytes(bytes[216..220].try_into().unwrap());
            assert_eq!(u64::from(checksum), hex(&info.sb_csum));
            count += 1;
        }
    }
    assert!(count > 200, "{count} superblocks");
}

#[test]
fn every_bitmap_is_read_as_recorded_and_written_back_byte_for_byte() {
    let mut count = 0;
    for (case, images) in cases(|_| true) {
        for (info, image) in case.member_info.iter().zip(images) {
            let superblock = find(image);
            let Some(recorded) = &info.bitmap else { continue };
            println!("{} device number {}", case.name, info.dev_number);
            let bytes = at(image, superblock.bitmap_sector().unwrap());
            let bitmap = BitmapImage::decode(bytes).unwrap();
            let header = bitmap.header();
            assert_eq!(header.set_uuid, superblock.array.set_uuid);
            assert_eq!(header.events, recorded.events);
            assert_eq!(header.events_cleared, recorded.events_cleared);
            assert_eq!(header.sync_size.0, recorded.sync_size);
            assert_eq!(header.chunk_bytes, recorded.chunksize);
            assert_eq!(header.daemon_sleep_seconds, recorded.daemon_sleep);
            assert_eq!(header.write_behind, recorded.write_behind);
            assert_eq!(header.sectors_reserved, recorded.sectors_reserved);
            assert_eq!(header.bit_count(), recorded.nbits);
            let set: Vec<_> = bitmap.set_bits().collect();
            match &recorded.set {
                SetBits::Listed(bits) => assert_eq!(&set, bits),
                SetBits::Counted { count } => assert_eq!(set.len(), *count),
            }
            assert!(bitmap.as_bytes() == &bytes[..bitmap.as_bytes().len()]);
            assert!(header.encode() == bytes[..256]);
            count += 1;
        }
    }
    assert!(count > 100, "{count} bitmaps");
}

#[test]
fn every_bad_block_log_is_read_and_written_back_byte_for_byte() {
    for (case, images) in cases(|_| true) {
        for image in images {
            let superblock = find(image);
            let log = superblock.member.bad_block_log.unwrap();
            let bytes = &at(image, superblock.bad_block_log_sector().unwrap())[..usize::from(log.size) * 512];
            let size = SectorCount(u64::from(log.size));
            if log.in_use || bytes[..8] == [0xff; 8] {
                let list = BadBlocks::decode(bytes, log.shift).unwrap();
                assert!(list.encode(size).unwrap() == bytes, "{}", case.name);
            }
        }
    }
}

/// A spare is lagging by one here: the kernel skipped it in the last update.
#[test]
fn events_may_step_back_in_the_images_and_members_stay_current() {
    let mut lagging = 0;
    for (case, images) in cases(|_| true) {
        let superblocks: Vec<_> = images.iter().map(|image| find(image)).collect();
        let freshest = superblocks.iter().max_by_key(|s| s.array.events).unwrap();
        for superblock in &superblocks {
            let current = event_is_current(freshest.array.events, superblock.array.events);
            let role = superblock.role_in(&freshest.array);
            let failed = superblock.array.role_of(superblock.member.dev_number) != role;
            lagging += usize::from(superblock.array.events < freshest.array.events);
            assert_eq!(current, !failed, "{} {:?}", case.name, superblock.member.dev_number);
        }
    }
    assert!(lagging > 0);
}

#[test]
fn a_recovering_member_says_below_what_it_is_valid() {
    let (_, superblocks) = case("r5-recovering");
    assert_eq!(superblocks[4].member.recovery_offset, Some(Sector(8960)));
    assert_eq!(superblocks[4].own_role(), Role::Slot(MemberSlot(2)));
    assert_eq!(
        superblocks[2].role_in(&superblocks[0].array),
        Role::Spare,
        "its predecessor has been removed"
    );
}

#[test]
fn lazy_bits_are_set_in_a_clean_array() {
    let clean_with_bits = cases(|name| name.starts_with("r5-degraded-bitmap")).any(|(_, images)| {
        let superblock = find(&images[0]);
        let bitmap = BitmapImage::decode(at(&images[0], superblock.bitmap_sector().unwrap())).unwrap();
        !superblock.array.is_dirty() && bitmap.set_bits().count() > 0
    });
    assert!(clean_with_bits);
}

#[test]
fn stale_reshape_fields_of_a_grown_array_mean_nothing() {
    let (_, superblocks) = case("r5-grown");
    for superblock in &superblocks {
        assert_eq!((superblock.array.reshape, superblock.member.new_offset), (None, None));
        assert_eq!(superblock.member.data_offset, Sector(1952), "it has absorbed the new offset");
        assert_eq!(superblock.support(), Support::Full);
        assert_ne!(superblock.encode(512).unwrap()[100..128], [0; 28], "the old fields are still there");
    }
}

#[test]
fn only_what_is_served_is_called_supported() {
    for (case, images) in cases(|_| true) {
        let superblock = find(&images[0]);
        let support = superblock.support();
        let expected = match case.name.as_str() {
            "r5-reshape-mid" => "refused",
            name if name.starts_with("r10") || name.starts_with("r1-") => "refused",
            _ => "full",
        };
        let got = match support {
            Support::Full => "full",
            Support::ReadOnly(_) => "read-only",
            Support::Refused(_) => "refused",
        };
        assert_eq!(got, expected, "{}", case.name);
    }
}

#[test]
fn a_new_array_is_placed_as_mdadm_placed_it() {
    let mut count = 0;
    // A grown or replaced member has moved since its creation, and journal and PPL arrays aren't made yet.
    let untouched = |name: &str| {
        let levels = ["r0", "r4", "r5", "r6"].iter().any(|l| name.starts_with(l));
        levels && !["reshape", "grown", "journal", "ppl"].iter().any(|w| name.contains(w))
    };
    for (case, images) in cases(untouched) {
        let superblocks: Vec<_> = images.iter().map(|image| find(image)).collect();
        let first = &superblocks[0];
        let raid_disks = usize::try_from(case.raid_disks).unwrap();
        let devices = superblocks
            .iter()
            .map(|s| NewDevice { sectors: s.member.device_sectors, uuid: s.member.device_uuid });
        let wish = NewArray {
            set_uuid: first.array.set_uuid,
            name: first.array.name,
            created: first.array.created,
            level: first.array.level,
            layout: first.array.layout,
            chunk: first.array.chunk,
            version: first.member.version,
            bitmap: case.member_info[0]
                .bitmap
                .as_ref()
                .map_or(NewBitmap::None, |b| NewBitmap::Internal { chunk_bytes: Some(b.chunksize) }),
            initial: InitialSync::AssumeClean,
            size: None,
            data_offset: None,
            logical_block_bytes: 512,
            members: devices.clone().take(raid_disks).collect(),
            spares: devices.skip(raid_disks).collect(),
        };
        let placed = wish.place().unwrap();
        for (ours, theirs) in placed.superblocks.iter().zip(&superblocks) {
            println!("{}: {}", case.name, case.create);
            assert_eq!(ours.array.size, theirs.array.size);
            assert_eq!(ours.array.bitmap_offset, theirs.array.bitmap_offset);
            assert_eq!(ours.array.roles.len(), theirs.array.roles.len());
            let places = |s: &Superblock| {
                let m = &s.member;
                (m.super_offset, m.data_offset, m.data_size, m.bad_block_log)
            };
            assert_eq!(places(ours), places(theirs));
        }
        if let Some(bitmap) = &placed.bitmap {
            let theirs = at(&images[0], first.bitmap_sector().unwrap());
            let mut ours = bitmap.clone();
            let header = BitmapImage::decode(theirs).unwrap();
            ours.set_events(header.header().events, header.header().events_cleared);
            assert!(ours.as_bytes()[..256] == theirs[..256], "{}", case.name);
        }
        count += 1;
    }
    assert!(count > 25, "{count} arrays");
}

#[test]
fn the_set_holds_the_levels_and_layouts_that_its_names_promise() {
    let mut layouts = Vec::new();
    let mut raid0 = Vec::new();
    for (_, images) in cases(|_| true) {
        let array = find(&images[0]).array;
        match array.layout {
            Layout::Parity(layout) if !layouts.contains(&(array.level, layout)) => {
                layouts.push((array.level, layout));
            }
            Layout::Raid0(layout) => raid0.push(layout),
            _ => {}
        }
    }
    assert_eq!(raid0, [Raid0Layout::Unspecified, Raid0Layout::Original]);
    assert_eq!(layouts.iter().filter(|l| l.0 == Level::Raid5).count(), 6);
    assert_eq!(layouts.iter().filter(|l| l.0 == Level::Raid6).count(), 14);
    assert!(layouts.contains(&(Level::Raid6, ParityLayout::DdfNRestart)));
    assert!(cases(|_| true).any(|(_, images)| find(&images[0]).array.level == Level::Raid4));
}

#[test]
fn every_log_of_partial_parity_is_read_with_its_parity_whole() {
    let (case, images) = cases(|name| name == "r5-ppl-clean").next().unwrap();
    // The manifest lists the last three headers of each member's log.
    let newest = [(472, 144), (1360, 159), (1352, 160), (368, 154)];
    for (image, (sector, generation)) in images.iter().zip(newest) {
        let superblock = find(image);
        let ppl = superblock.member.ppl.unwrap();
        let area = &at(image, superblock.ppl_sector().unwrap())[..usize::from(ppl.size) * 512];
        let records = ppl::records(area, superblock.array.set_uuid, ppl.multiple);
        assert!(records.len() > 3, "{}", case.name);
        for record in &records {
            assert!(record.parts(area).all(|(_, parity)| parity.is_some()));
            assert!(record.header.encode().unwrap() == area[record.offset..record.offset + 4096]);
        }
        let last = records.last().unwrap();
        assert_eq!((last.offset, last.header.generation), (sector * 512, generation));
        assert_eq!(ppl::newest_record(area, superblock.array.set_uuid, true).as_ref(), Some(last));
        let parts: Vec<_> = last.parts(area).map(|(entry, parity)| (entry, parity.unwrap())).collect();
        let again = ppl::encode_record(superblock.array.set_uuid, generation, &parts).unwrap();
        assert!(again == area[last.offset..last.offset + again.len()]);
    }
}

/// Every meta block from the start of the ring on, with the checksum of every page.
fn journal_entries(image: &[u8], superblock: &Superblock, from: Sector) -> Vec<JournalEntry> {
    let member = &superblock.member;
    let ring = at(image, member.data_offset);
    let block = |sector| &at(ring, sector)[..4096];
    let mut walk = JournalWalk::new(superblock.array.set_uuid, member.data_size, from).unwrap();
    let mut entries = Vec::new();
    while let Some(entry) = walk.step(block(walk.position())) {
        for (sector, checksum) in &entry.pages {
            assert_eq!(walk.seed().checksum(block(*sector)), *checksum);
        }
        assert!(entry.meta.encode(walk.seed()).unwrap() == block(entry.meta.position));
        entries.push(entry);
    }
    entries
}

#[test]
fn a_journal_is_walked_from_its_tail_with_all_its_pages_whole() {
    for (name, tail) in [("r5-journal-clean", 10128), ("replay-journal-after", 10480)] {
        let (_, images) = cases(|n| n == name).next().unwrap();
        let superblock = find(&images[4]);
        assert_eq!(superblock.own_role(), Role::Journal);
        assert_eq!(superblock.member.journal_tail, Some(Sector(tail)));
        assert_eq!(journal_entries(&images[4], &superblock, Sector(tail)).len(), 1);
        // The ring was never reused: its whole history is still there, but for a jump in the sequence.
        let history = journal_entries(&images[4], &superblock, Sector(8));
        assert!(history.len() > 100, "{} meta blocks", history.len());
    }
}

#[test]
fn a_journal_stopped_cleanly_holds_nothing_that_the_members_do_not() {
    let (_, images) = cases(|n| n == "r5-journal-clean").next().unwrap();
    let superblock = find(&images[4]);
    let entries = journal_entries(&images[4], &superblock, superblock.member.journal_tail.unwrap());
    let seed = Seed::new(superblock.array.set_uuid);
    let Payload::Parity { location, checksums, .. } = &entries[0].meta.payloads[1] else {
        panic!("data and parity")
    };
    let on_a_member = images[..4].iter().any(|image| {
        let page = &at(at(image, find(image).member.data_offset), *location)[..4096];
        seed.checksum(page) == checksums[0]
    });
    assert!(on_a_member);
}

/// Some superblock of the set, with its place and its device's size.
fn any_superblock() -> impl Strategy<Value = (&'static [u8], Sector, u64)> {
    let places: Vec<_> = cases(|_| true)
        .flat_map(|(_, images)| images)
        .map(|image| {
            let member = find(image).member;
            (
                &at(image, member.super_offset)[..SUPERBLOCK_BYTES_MAX],
                member.super_offset,
                member.device_sectors,
            )
        })
        .collect();
    prop::sample::select(places)
}

/// Some bitmap of the set.
fn any_bitmap() -> impl Strategy<Value = &'static [u8]> {
    let bitmaps: Vec<_> = cases(|_| true)
        .flat_map(|(_, images)| images)
        .filter_map(|image| Some(&at(image, find(image).bitmap_sector()?)[..4096]))
        .collect();
    prop::sample::select(bitmaps)
}

fn damaged(bytes: &[u8], changes: &[(prop::sample::Index, u8)], cut: Option<prop::sample::Index>) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for (at, byte) in changes {
        let at = at.index(bytes.len());
        bytes[at] = *byte;
    }
    bytes.truncate(cut.map_or(bytes.len(), |cut| cut.index(bytes.len())));
    bytes
}

/// The checksum made right, as docs/formats.md section 2.1 has it.
fn with_checksum(mut bytes: Vec<u8>) -> Vec<u8> {
    let Some(max_dev) = bytes.get(220..224) else { return bytes };
    let covered = 256 + 2 * usize::from(u16::from_le_bytes([max_dev[0], max_dev[1]]));
    if covered <= bytes.len() {
        bytes[216..220].fill(0);
        let word = |w: &[u8]| w.iter().rev().fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte));
        let sum: u64 = bytes[..covered].chunks(4).map(word).sum();
        let folded = (sum & 0xffff_ffff) + (sum >> 32);
        bytes[216..220].copy_from_slice(&folded.to_le_bytes()[..4]);
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_corrupt_or_truncated_superblock_panics_or_passes_for_whole(
        (bytes, sector, device_sectors) in any_superblock(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        // Half of the damage goes where it matters: into the first 512 bytes.
        let bytes = if changes.len() % 2 == 0 { bytes } else { &bytes[..512] };
        let torn = damaged(bytes, &changes, cut);
        // A sum can't tell two changes that cancel, but it tells every single one.
        if changes.len() <= 1 {
            let torn_in_use = torn.len() < 512 || torn[..512] != bytes[..512];
            prop_assert_eq!(Superblock::decode(&torn, sector, device_sectors).is_err(), torn_in_use);
        }
        let forged = with_checksum(torn);
        if let Ok(superblock) = Superblock::decode(&forged, sector, device_sectors) {
            superblock.support();
            if let Ok(again) = superblock.encode(512) {
                let covered = 256 + 2 * superblock.array.roles.len();
                prop_assert_eq!(&again[..covered], &forged[..covered]);
            }
        }
    }

    #[test]
    fn no_corrupt_or_truncated_bitmap_panics(
        bytes in any_bitmap(),
        changes in prop::collection::vec((0usize..300, any::<u8>()), 0..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = bytes.to_vec();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        let bytes = damaged(&bytes, &[], cut);
        if let Ok(image) = BitmapImage::decode(&bytes) {
            prop_assert_eq!(&image.as_bytes()[..bytes.len().min(4096)], &bytes[..bytes.len().min(4096)]);
            prop_assert!(image.set_bits().all(|bit| bit < image.header().bit_count()));
        }
    }
}
