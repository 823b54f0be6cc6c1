//! The traps of MD's format, and whether what we write keeps its rules (docs/formats.md sections 2.2, 4, 5,
//! 7).

use std::sync::Arc;

use crate::arrays::{self, BLOCK, Golden, Served, golden_array, options, read_only, superblock_of};
use pinstripe_engine::assembly::{AssembleError, create::create};
use pinstripe_md::{
    bitmap::BitmapImage,
    identity::{SetName, Timestamp, Uuid},
    level::{Layout, Level, ParityLayout},
    placement::{InitialSync, NewArray, NewBitmap, NewDevice},
    superblock::{MetadataVersion, ResyncOffset, Role, Superblock},
    units::{DeviceNumber, MemberSlot, Sector, SectorCount},
};
use pinstripe_runtime::{
    DeviceSource,
    memory::{Memory, MemoryDevice, MemorySource},
};
use pinstripe_sim::{World, WorldConfig};

/// The members' numbers are shuffled, as replacements leave them; only the roles table says which slot each
/// has.
#[test]
fn dev_number_is_not_the_slot() {
    let golden = golden_array("r5-left-symmetric-n4");
    let numbers = [9, 0, 4, 2];
    golden.change_all(|superblock| {
        let Role::Slot(slot) = superblock.own_role() else { panic!("a member") };
        superblock.member.dev_number = DeviceNumber(numbers[usize::from(slot.0)]);
        superblock.array.roles.fill(Role::Spare);
        for (slot, number) in (0..).zip(numbers) {
            superblock.array.roles[usize::from(number)] = Role::Slot(MemberSlot(slot));
        }
    });
    for lost in 0..4 {
        let left: Vec<usize> = (0..4).filter(|&m| m != lost).collect();
        golden.read_all(&left, read_only());
    }
    let mut served = golden.read_all(&[3, 1, 0, 2], options());
    served.write(0, &[5; 3 * BLOCK]).unwrap();
    assert_eq!(served.check(), 0);
    served.stop();
    for (member, number) in numbers.into_iter().enumerate() {
        let superblock = golden.superblock(member);
        assert_eq!(superblock.member.dev_number, DeviceNumber(number));
        assert_eq!(superblock.own_role(), Role::Slot(MemberSlot(u16::try_from(member).unwrap())));
    }
}

#[test]
fn a_member_one_event_behind_takes_its_role_from_the_freshest() {
    // Its own table swaps it with its neighbour: believed, every block would be wrong.
    let golden = golden_array("r5-left-symmetric-n4");
    golden.change(1, |superblock| {
        superblock.array.events -= 1;
        superblock.array.roles[1] = Role::Slot(MemberSlot(2));
        superblock.array.roles[2] = Role::Slot(MemberSlot(1));
    });
    let served = golden.read_all(&golden.all(), read_only());
    assert_eq!(served.array.detail().missing, 0);
    // The freshest says that it failed: its own superblock, one event behind, does not know yet.
    let golden = golden_array("r5-left-symmetric-n4");
    golden.change(1, |superblock| superblock.array.events -= 1);
    for other in [0, 2, 3] {
        golden.change(other, |superblock| superblock.array.roles[1] = Role::Faulty);
    }
    let place = golden.superblock(1).member.data_offset.0 * 512;
    golden.members[1].copy_in(place, &vec![0xaa; 1 << 20]).unwrap();
    let served = golden.read_all(&golden.all(), read_only());
    assert_eq!(served.array.detail().missing, 1);
}

#[test]
fn lazy_bits_of_a_clean_array_cost_no_resync() {
    let golden = golden_array("r5-left-symmetric-n4");
    for member in golden.all() {
        let place = golden.superblock(member).bitmap_sector().unwrap().0 * 512;
        let mut bytes = golden.bytes(member, place..place + 4096);
        bytes[256..300].fill(0xff);
        golden.members[member].copy_in(place, &bytes).unwrap();
    }
    let mut served = golden.serve(&golden.all(), options()).unwrap();
    let detail = served.array.detail();
    assert!(detail.bitmap.unwrap().bits_set >= 172, "the last bits lie beyond the array");
    assert_eq!(detail.regions_to_resync, 0);
    let _ = served.world.run_until(2000, |_| false);
    let detail = served.array.detail();
    assert_eq!(detail.sync, None);
    assert_eq!(detail.statistics.member_reads, 0);
}

#[test]
fn stale_reshape_fields_are_ignored() {
    let golden = golden_array("r5-grown");
    let stale: Vec<Vec<u8>> = golden.all().into_iter().map(|m| reshape_fields(&golden, m)).collect();
    assert!(stale.iter().all(|fields| fields.iter().any(|byte| *byte != 0)));
    let mut served = golden.read_all(&golden.all(), options());
    served.write(8192, &vec![3; 5 * BLOCK]).unwrap();
    assert_eq!(served.read(8192, 5 * BLOCK).unwrap(), vec![3; 5 * BLOCK]);
    assert_eq!(served.check(), 0);
    served.stop();
    for (member, stale) in stale.iter().enumerate() {
        assert_eq!(&reshape_fields(&golden, member), stale, "what they say is left alone");
        assert_eq!(golden.superblock(member).array.reshape, None);
    }
}

fn reshape_fields(golden: &Golden, member: usize) -> Vec<u8> {
    let place = golden.superblock(member).member.super_offset.0 * 512;
    golden.bytes(member, place + 100..place + 128)
}

#[test]
fn byte_224_is_preserved() {
    let golden = golden_array("r5-left-symmetric-n4");
    golden.change_all(|superblock| superblock.array.logical_block_size = 512);
    let mut served = golden.read_all(&golden.all(), options());
    served.write(0, &[1; BLOCK]).unwrap();
    served.stop();
    for member in golden.all() {
        let superblock = golden.superblock(member);
        let place = superblock.member.super_offset.0 * 512 + 224;
        assert_eq!(golden.bytes(member, place..place + 4), 512_u32.to_le_bytes());
        assert!(superblock.array.events > 37, "it was written");
    }
    // And what was 0 stays 0: kernels before 6.19 refuse anything else.
    let golden = golden_array("r5-left-symmetric-n4");
    let mut served = golden.serve(&golden.all(), options()).unwrap();
    served.write(0, &[1; BLOCK]).unwrap();
    served.stop();
    for member in golden.all() {
        let place = golden.superblock(member).member.super_offset.0 * 512 + 224;
        assert_eq!(golden.bytes(member, place..place + 4), [0; 4]);
    }
}

#[test]
fn events_never_step_back_when_we_write() {
    let golden = golden_array("r5-left-symmetric-n4");
    let mut served = golden.serve(&golden.all(), options()).unwrap();
    let mut last = [0; 4];
    let mut seen = [0; 2];
    for round in 0..6_u8 {
        served.write(u64::from(round) << 16, &[round; BLOCK]).unwrap();
        for dirty in [true, false] {
            if !dirty {
                let array = served.array.clone();
                served.world.run_until(arrays::STEPS, |_| array.detail().state == "clean").unwrap();
            }
            for (member, last) in last.iter_mut().enumerate() {
                let superblock = golden.superblock(member);
                assert!(superblock.array.events > *last, "member {member}: {}", superblock.array.events);
                *last = superblock.array.events;
                assert_eq!(superblock.array.is_dirty(), dirty);
                seen[usize::from(dirty)] += 1;
            }
        }
    }
    assert_eq!(seen, [24, 24]);
}

/// A member that was not given misses the writes of that session. Even if the host stops right after the
/// first update of the superblocks, which with others' servers leaves that member just one event behind, it
/// must not be taken for current.
#[test]
fn a_member_that_was_absent_for_one_event_is_not_current() {
    for lost in 0..4 {
        let golden = golden_array("r5-left-symmetric-n4");
        let left: Vec<usize> = (0..4).filter(|&m| m != lost).collect();
        let mut served = golden.serve(&left, options()).unwrap();
        for stripe in 0..8 {
            served.write(stripe * (48 << 10), &vec![0xc3; 48 << 10]).unwrap();
        }
        // The host stops here: no clean superblocks.
        drop(served);
        let events = golden.superblock(lost).array.events;
        assert_eq!(golden.superblock(left[0]).array.events, events + 2, "our first update counts twice");
        for &member in &left {
            golden.change(member, |superblock| superblock.array.events = events + 1);
        }
        // Dirty and degraded without a word, or, forced, without that member; never with it.
        let refused = golden.serve(&golden.all(), options()).err().unwrap();
        assert!(matches!(refused, AssembleError::DirtyDegraded { missing: 1 }), "{refused}");
        let forced = pinstripe_engine::options::ArrayOptions { force: true, ..options() };
        let mut served = golden.serve(&golden.all(), forced).unwrap();
        assert_eq!(served.array.detail().slots[lost].state, "missing");
        assert_eq!(served.array.stale_members().len(), 1);
        assert_eq!(served.read(0, 48 << 13).unwrap(), vec![0xc3; 48 << 13]);
    }
}

/// The kernel notes a rebuild that has come to its end by the last sector that there is a number for. If
/// power fails before the next superblock, that stays.
#[test]
fn a_member_that_is_rebuilt_up_to_the_last_number_has_everything() {
    let golden = golden_array("r5-left-symmetric-n4");
    golden.change(1, |superblock| superblock.member.recovery_offset = Some(Sector(u64::MAX)));
    golden.read_all(&golden.all(), read_only());
    let mut served = golden.serve(&golden.all(), options()).unwrap();
    let whole = golden.superblock(1).array.component_sectors().0 * 512;
    assert_eq!(served.array.detail().slots[1].recovery_offset, Some(whole));
    served.settle();
    served.compare(&golden.case);
    assert_eq!(served.check(), 0);
    assert_eq!(golden.superblock(1).member.recovery_offset, None);
}

/// Kernels from 6.19 on export an array with the block that its superblocks name, whatever its members' are.
#[test]
fn an_arrays_own_logical_block_is_its_smallest_request() {
    for (name, own) in [("r5-left-symmetric-n4", 4096), ("r0-n4-c64", 2048)] {
        let golden = golden_array(name);
        golden.change_all(|superblock| superblock.array.logical_block_size = own);
        let served = golden.read_all(&golden.all(), read_only());
        assert_eq!(served.array.shared().geometry.logical_block(), own);
        for none in [100, 3000, 8192] {
            golden.change_all(|superblock| superblock.array.logical_block_size = none);
            let refused = golden.serve(&golden.all(), read_only()).err().unwrap();
            assert!(matches!(refused, AssembleError::Geometry(_)), "{refused}");
        }
    }
}

/// A device number that was given anew leaves an old device that goes by it, which isn't a member any more.
#[test]
fn a_device_that_is_out_of_date_says_nothing_of_the_sizes_of_level_0() {
    let mut golden = golden_array("r0-n4-c64");
    golden.change_all(|superblock| superblock.array.events = 10);
    let old = Memory::new(golden.members[1].size()).unwrap();
    old.copy_in(0, &golden.bytes(1, 0..1 << 20)).unwrap();
    golden.members.push(old);
    golden.change(4, |superblock| {
        superblock.array.events = 3;
        superblock.member.data_size.0 -= 4 * superblock.array.chunk.0;
    });
    let served = golden.read_all(&golden.all(), read_only());
    assert_eq!(served.array.stale_members().len(), 1);
}

// ---------------------------------------------------------------------------------------------------------
// What we write ourselves.

const MEMBER_BYTES: usize = 2 << 20;

fn wish(level: Level, layout: &str, members: u8, version: MetadataVersion, bitmap: NewBitmap) -> NewArray {
    let layout = match level {
        Level::Raid0 => Layout::Raid0(pinstripe_md::level::Raid0Layout::Original),
        Level::Raid4 => Layout::None,
        _ => Layout::Parity(ParityLayout::from_name(level, layout).unwrap()),
    };
    NewArray {
        set_uuid: Uuid([7; 16]),
        name: SetName::from_bytes([b'x'; 32]),
        created: Timestamp::new(1, 0),
        level,
        layout,
        chunk: SectorCount(32),
        version,
        bitmap,
        initial: InitialSync::Resync,
        size: None,
        data_offset: None,
        logical_block_bytes: 512,
        members: (0..members)
            .map(|i| NewDevice { sectors: MEMBER_BYTES as u64 / 512, uuid: Uuid([i + 1; 16]) })
            .collect(),
        spares: vec![],
    }
}

fn source(name: &str, memory: &Arc<Memory>) -> Arc<dyn DeviceSource> {
    Arc::new(MemorySource { name: name.to_owned(), memory: Arc::clone(memory), logical_block: 512 })
}

fn made(wish: NewArray) -> (Served, Vec<Arc<Memory>>) {
    let memories: Vec<_> = wish.members.iter().map(|_| Memory::new(MEMBER_BYTES).unwrap()).collect();
    let mut world = World::new(WorldConfig::new(3, 1));
    let devices: Vec<Arc<Memory>> = memories.clone();
    world
        .block_on(0, "create", arrays::STEPS, async move {
            let devices: Vec<std::rc::Rc<dyn pinstripe_runtime::Device>> = devices
                .into_iter()
                .map(|memory| {
                    MemoryDevice::new("new", memory, 512) as std::rc::Rc<dyn pinstripe_runtime::Device>
                })
                .collect();
            create(&wish, &devices).await
        })
        .unwrap()
        .unwrap();
    for memory in &memories {
        keeps_the_rules(memory);
    }
    let sources = (0..).zip(&memories).map(|(i, memory)| source(&format!("disk{i}"), memory)).collect();
    let array = arrays::assemble(&mut world, sources, options()).unwrap();
    (Served { world, array }, memories)
}

/// Section 2.2, as far as one superblock tells: it decodes, breaks no rule, and says no more than the array
/// has.
fn keeps_the_rules(memory: &Memory) -> Superblock {
    let superblock = superblock_of(memory);
    superblock.check(512).unwrap();
    assert_eq!(superblock.encode(512).unwrap().len() % 512, 0);
    let member = &superblock.member;
    assert!(member.data_size.0 >= superblock.array.size.0);
    assert!(member.data_offset.0 + member.data_size.0 <= memory.size() as u64 / 512);
    let features = superblock.feature_map();
    assert_eq!(features & 0x1 != 0, superblock.array.bitmap_offset.is_some());
    assert_eq!(features & 0x2 != 0, member.recovery_offset.is_some());
    assert_eq!(features & !(0x1 | 0x2 | 0x1000), 0, "{features:#x}");
    if let Some(sector) = superblock.bitmap_sector() {
        let mut bytes = vec![0; 4096];
        memory.copy_out(sector.0 * 512, &mut bytes).unwrap();
        let bitmap = BitmapImage::decode(&bytes).unwrap();
        assert_eq!(bitmap.header().set_uuid, superblock.array.set_uuid);
        assert_eq!(bitmap.header().sync_size, superblock.array.size);
        assert!(bitmap.header().events >= superblock.array.events, "C9: the header goes first");
        assert!(bitmap.header().events_cleared <= bitmap.header().events);
    }
    superblock
}

fn roles(superblock: &Superblock, count: usize) -> Vec<Role> {
    superblock.array.roles[..count].to_vec()
}

fn slot(number: u16) -> Role {
    Role::Slot(MemberSlot(number))
}

#[test]
fn our_superblocks_keep_the_kernels_rules_through_create_fail_add_and_stop() {
    let internal = NewBitmap::Internal { chunk_bytes: Some(65536) };
    for (level, layout, version, bitmap) in [
        (Level::Raid5, "left-symmetric", MetadataVersion::V1_2, internal),
        (Level::Raid6, "ddf-N-restart", MetadataVersion::V1_1, NewBitmap::None),
        (Level::Raid6, "right-asymmetric-6", MetadataVersion::V1_0, internal),
        (Level::Raid4, "", MetadataVersion::V1_0, NewBitmap::None),
    ] {
        let (mut served, mut memories) = made(wish(level, layout, 4, version, bitmap));
        served.settle();
        served.write(12 << 10, &vec![1; 100 << 10]).unwrap();
        let array = served.array.clone();
        served.run("fail", async move { array.fail(2).await }).unwrap();
        let left_alone = memories[2].clone();
        let mut own = vec![0; 8192];
        left_alone.copy_out(0, &mut own).unwrap();
        for member in [0, 1, 3] {
            let superblock = keeps_the_rules(&memories[member]);
            assert_eq!(roles(&superblock, 5), [slot(0), slot(1), Role::Faulty, slot(3), Role::Spare]);
            assert!(superblock.array.is_dirty());
        }
        assert_eq!(superblock_of(&left_alone).own_role(), slot(2), "the failed one says what it said");
        served.write(300 << 10, &vec![2; 100 << 10]).unwrap();

        let spare = Memory::new(MEMBER_BYTES + 8192).unwrap();
        let (array, device) = (served.array.clone(), source("spare", &spare));
        served.run("add", async move { array.add(device, Uuid([77; 16])).await }).unwrap();
        let superblock = keeps_the_rules(&spare);
        assert_eq!(superblock.own_role(), slot(2));
        assert_eq!(superblock.member.device_uuid, Uuid([77; 16]));
        served.settle();
        assert_eq!(served.check(), 0);
        served.stop();
        drop(served);

        memories[2] = spare;
        let events = superblock_of(&memories[0]).array.events;
        for (number, memory) in (0..).zip(&memories) {
            let superblock = keeps_the_rules(memory);
            assert_eq!(superblock.own_role(), slot(number));
            assert_eq!(superblock.member.recovery_offset, None);
            assert_eq!(superblock.array.events, events);
            assert_eq!(superblock.array.resync_offset, ResyncOffset::Clean);
            assert_eq!(roles(&superblock, 5), [slot(0), slot(1), Role::Faulty, slot(3), slot(2)]);
        }
        let mut now = vec![0; 8192];
        left_alone.copy_out(0, &mut now).unwrap();
        assert!(now == own, "the failed member's superblock was touched");
        let sources = memories.iter().map(|memory| source("again", memory)).collect();
        let mut served = Served::new(sources, options()).unwrap();
        assert_eq!(served.array.detail().missing, 0);
        assert_eq!(served.read(12 << 10, 100 << 10).unwrap(), vec![1; 100 << 10]);
        assert_eq!(served.read(300 << 10, 100 << 10).unwrap(), vec![2; 100 << 10]);
    }
}

#[test]
fn a_level_0_array_keeps_events_0_for_ever() {
    let (mut served, memories) = made(wish(Level::Raid0, "", 3, MetadataVersion::V1_2, NewBitmap::None));
    served.write(4096, &vec![8; 200 << 10]).unwrap();
    assert_eq!(served.read(4096, 200 << 10).unwrap(), vec![8; 200 << 10]);
    served.stop();
    for memory in &memories {
        assert_eq!(keeps_the_rules(memory).array.events, 0);
    }
}
