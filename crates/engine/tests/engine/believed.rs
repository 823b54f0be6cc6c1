//! What is not believed of a member: lengths that reach into what lies behind. The array is refused, by the
//! member's name, and nothing is written to any.

use crate::arrays::{
    STEPS, assemble, options,
    scene::{lay_out, plain_disks, wish},
};
use pinstripe_engine::{array::Array, assembly::AssembleError, options::ArrayOptions};
use pinstripe_md::{
    identity::Uuid,
    level::Level,
    placement::{InitialSync, NewArray, NewBitmap, NewDevice},
    superblock::{BitmapProblem, MetadataVersion, Superblock, candidate_sectors},
    units::{Sector, SectorCount},
};
use pinstripe_runtime::shard;
use pinstripe_sim::{SimDisk, World, WorldConfig};

const VERSIONS: [MetadataVersion; 3] = [MetadataVersion::V1_0, MetadataVersion::V1_1, MetadataVersion::V1_2];
/// Sectors of a member that need more bits than one page has if each covers 512 bytes.
const SECTORS: u64 = 40_000;

/// A clean RAID5 of three members with a bitmap.
fn array(version: MetadataVersion, sectors: u64) -> (World, Vec<SimDisk>) {
    array_at(version, sectors, None)
}

/// The same, with its data from a sector on.
fn array_at(version: MetadataVersion, sectors: u64, data: Option<u64>) -> (World, Vec<SimDisk>) {
    let bitmap = NewBitmap::Internal { chunk_bytes: None };
    let plain = wish(Level::Raid5, 3, 64 << 10, bitmap, InitialSync::AssumeClean);
    let members = plain.members.iter().map(|member| NewDevice { sectors, ..*member });
    let data_offset = data.map(Sector);
    let wish = NewArray { version, data_offset, members: members.collect(), ..plain };
    let mut world = World::new(WorldConfig::new(1, 1));
    let disks = plain_disks(&mut world, wish.members.iter().map(|member| member.sectors));
    lay_out(&mut world, wish.place().unwrap(), &disks).unwrap();
    (world, disks)
}

fn superblock(disk: &SimDisk) -> Superblock {
    let sectors = disk.info().size / 512;
    let read = |place: Sector| Superblock::decode(&disk.peek(place.0 * 512, 4096), place, sectors).ok();
    candidate_sectors(sectors).find_map(read).unwrap()
}

fn change(disk: &SimDisk, change: impl FnOnce(&mut Superblock)) {
    let mut superblock = superblock(disk);
    change(&mut superblock);
    disk.poke(superblock.member.super_offset.0 * 512, &superblock.encode(512).unwrap());
}

/// What a bit of the bitmap covers, by the header on this disk.
fn set_bitmap_chunk(disk: &SimDisk, bytes: u32) {
    let place = superblock(disk).bitmap_sector().unwrap().0 * 512;
    let mut header = disk.peek(place, 512);
    header[52..56].copy_from_slice(&bytes.to_le_bytes());
    disk.poke(place, &header);
}

/// Everything on the disks, or both ends of large ones.
fn content(disks: &[SimDisk]) -> Vec<Vec<u8>> {
    const END: u64 = 32 << 20;
    let both_ends = |disk: &SimDisk| {
        let size = disk.info().size;
        let mut bytes = disk.peek(0, usize::try_from(size.min(END)).unwrap());
        let rest = size.saturating_sub(END).min(END);
        bytes.extend(disk.peek(size - rest, usize::try_from(rest).unwrap()));
        bytes
    };
    disks.iter().map(both_ends).collect()
}

fn start(world: &mut World, disks: &[SimDisk]) -> Result<Array, AssembleError> {
    assemble(world, disks.iter().map(SimDisk::source).collect(), options())
}

/// Writes something everywhere it matters, and stops.
fn write_and_stop(world: &mut World, array: &Array) {
    let (volume, array) = (array.volume().clone(), array.clone());
    let work = async move {
        for at in [0, volume.size() - (1 << 20)] {
            volume.write(at, shard::zeroed(1 << 20).freeze(), true).await.unwrap();
        }
        array.stop().await.unwrap();
    };
    world.block_on(0, "write", STEPS, work).unwrap();
}

#[test]
fn bitmaps_that_say_they_are_longer_than_their_place_refuse_the_array_untouched() {
    for version in VERSIONS {
        let (mut world, disks) = array(version, SECTORS);
        for disk in &disks {
            set_bitmap_chunk(disk, 512);
        }
        let before = content(&disks);
        match start(&mut world, &disks) {
            Err(AssembleError::Bitmap { name, problem: BitmapProblem::Length { bytes } }) => {
                assert_eq!(name, "disk0");
                assert!(bytes > 4096, "{bytes}");
            }
            Err(other) => panic!("{version}: {other}"),
            Ok(_) => panic!("{version}: it was started"),
        }
        assert!(content(&disks) == before, "{version}: a member has changed");
    }
}

/// Neither is memory for them asked for, which isn't there.
#[test]
fn bitmaps_that_say_they_are_longer_than_memory_refuse_the_array() {
    for version in VERSIONS {
        let (mut world, disks) = array(version, (1 << 40) / 512);
        for disk in &disks {
            set_bitmap_chunk(disk, 512);
        }
        let before = content(&disks);
        let error = start(&mut world, &disks).err().unwrap();
        let AssembleError::Bitmap { name, problem: BitmapProblem::Length { .. } } = &error else {
            panic!("{version}: {error}")
        };
        assert_eq!(name, "disk0");
        assert!(content(&disks) == before, "{version}: a member has changed");
    }
}

/// By its header one bitmap is longer than its place, or its bits cover something else than those of the
/// others.
#[test]
fn a_damaged_header_of_one_bitmap_is_written_anew_and_nothing_behind_it() {
    for version in VERSIONS {
        for (odd, chunk) in [(0, 512), (1, 512), (0, 32 << 20), (1, 32 << 20), (2, 32 << 20)] {
            let (mut world, disks) = array(version, SECTORS);
            set_bitmap_chunk(&disks[odd], chunk);
            let array = start(&mut world, &disks).unwrap();
            assert_eq!(array.detail().bitmap.unwrap().outdated, [format!("disk{odd}")]);
            write_and_stop(&mut world, &array);
            for disk in &disks {
                // It is whole.
                drop(superblock(disk));
            }
            let array = start(&mut world, &disks).unwrap();
            assert_eq!(array.detail().bitmap.unwrap().outdated, [""; 0], "{version}: {chunk}");
        }
    }
}

#[test]
fn two_bitmaps_whose_bits_cover_something_else_refuse_the_array_untouched() {
    for version in VERSIONS {
        for odd in 0..2 {
            let (mut world, mut disks) = array(version, SECTORS);
            disks.truncate(2);
            set_bitmap_chunk(&disks[odd], 32 << 20);
            let before = content(&disks);
            let error = start(&mut world, &disks).err().unwrap();
            let AssembleError::Bitmap { problem: BitmapProblem::Differs { .. }, .. } = &error else {
                panic!("{version}: {error}")
            };
            assert!(content(&disks) == before, "{version}: a member has changed");
        }
    }
}

/// The kernel writes the last page of a bitmap only as far as it is needed, so something may lie closer
/// behind it than a page.
#[test]
fn what_lies_closer_behind_a_short_bitmap_than_a_page_is_left_alone() {
    let (mut world, disks) = array(MetadataVersion::V1_2, SECTORS);
    let place = |disk: &SimDisk| superblock(disk).bad_block_log_sector().unwrap().0 * 512;
    for disk in &disks {
        change(disk, |superblock| superblock.member.bad_block_log.as_mut().unwrap().offset = 10);
        assert_eq!(place(disk), (8 + 10) * 512);
        disk.poke(place(disk), &[0xaa; 4096]);
    }
    let array = start(&mut world, &disks).unwrap();
    write_and_stop(&mut world, &array);
    for disk in &disks {
        assert!(superblock(disk).array.events > 0, "it was written");
        assert_eq!(disk.peek(place(disk), 4096), [0xaa; 4096]);
    }
    start(&mut world, &disks).unwrap();
}

/// A superblock of version 1.2 of another array, for a disk of `SECTORS`.
fn of_another_array() -> Vec<u8> {
    let (_, disks) = array(MetadataVersion::V1_2, SECTORS);
    let mut superblock = superblock(&disks[0]);
    superblock.array.set_uuid = Uuid([0x66; 16]);
    let mut bytes = superblock.encode(512).unwrap();
    bytes.resize(4096, 0);
    bytes
}

fn start_wanted(world: &mut World, disks: &[SimDisk], wanted: Uuid) -> Result<Array, AssembleError> {
    let options = ArrayOptions { wanted: Some(wanted), ..options() };
    assemble(world, disks.iter().map(SimDisk::source).collect(), options)
}

fn stop(world: &mut World, array: &Array) {
    let array = array.clone();
    world.block_on(0, "stop", STEPS, async move { array.stop().await }).unwrap().unwrap();
}

/// With version 1.0 a client reaches the places where other versions have their superblock.
#[test]
fn what_a_client_writes_does_not_make_a_member_another_arrays() {
    let own = Uuid([7; 16]);
    let (mut world, disks) = array_at(MetadataVersion::V1_0, SECTORS, Some(0));
    let array = start(&mut world, &disks).unwrap();
    let (volume, forged) = (array.volume().clone(), of_another_array());
    let write = async move {
        let mut buffer = shard::buffer(forged.len());
        buffer.copy_from_slice(&forged);
        volume.write(4096, buffer.freeze(), true).await.unwrap();
    };
    world.block_on(0, "write", STEPS, write).unwrap();
    stop(&mut world, &array);
    assert_eq!(superblock(&disks[0]).array.set_uuid, Uuid([0x66; 16]), "it stands where MD looks first");
    // The other members tell, as does the identity.
    for wanted in [None, Some(own)] {
        let array = match wanted {
            None => start(&mut world, &disks),
            Some(wanted) => start_wanted(&mut world, &disks, wanted),
        };
        let array = array.unwrap();
        assert_eq!(array.detail().uuid, own.to_string());
        assert_eq!(array.detail().missing, 0);
        stop(&mut world, &array);
    }
    let error = start_wanted(&mut world, &disks, Uuid([8; 16])).err().unwrap();
    assert!(matches!(error, AssembleError::Contested { .. } | AssembleError::NotWanted { .. }), "{error}");
    // If all members are in doubt, only the identity does.
    for disk in &disks {
        disk.poke(4096, &of_another_array());
    }
    let before = content(&disks);
    let error = start(&mut world, &disks).err().unwrap();
    let words = error.to_string();
    assert!(matches!(error, AssembleError::Contested { .. }), "{words}");
    for word in ["disk0", &own.to_string(), &Uuid([0x66; 16]).to_string(), "--uuid"] {
        assert!(words.contains(word), "{words}");
    }
    assert!(content(&disks) == before, "a member has changed");
    let array = start_wanted(&mut world, &disks, own).unwrap();
    assert_eq!(array.detail().uuid, own.to_string());
    stop(&mut world, &array);
}

#[test]
fn a_size_that_a_member_does_not_have_refuses_the_array_untouched() {
    let bitmapless = |version| {
        let plain = wish(Level::Raid5, 3, 64 << 10, NewBitmap::None, InitialSync::AssumeClean);
        let sectors = |number: usize| if number == 2 { 2 * SECTORS } else { SECTORS };
        let members = plain.members.iter().enumerate();
        let members = members.map(|(number, member)| NewDevice { sectors: sectors(number), ..*member });
        let wish = NewArray { version, data_offset: None, members: members.collect(), ..plain };
        let mut world = World::new(WorldConfig::new(1, 1));
        let disks = plain_disks(&mut world, wish.members.iter().map(|member| member.sectors));
        lay_out(&mut world, wish.place().unwrap(), &disks).unwrap();
        (world, disks)
    };
    for version in VERSIONS {
        let (mut world, disks) = bitmapless(version);
        // The last member has room for it.
        change(&disks[2], |superblock| {
            superblock.array.size = SectorCount(superblock.array.size.0 + 8192);
            superblock.array.events += 1;
        });
        let before = content(&disks);
        let error = start(&mut world, &disks).err().unwrap();
        assert!(matches!(&error, AssembleError::MemberTooSmall { name, .. } if name == "disk0"), "{error}");
        assert!(content(&disks) == before, "{version}: a member has changed");
    }
}
