//! What the logs cost, and what a change of policy does to an array in service.

use std::{cell::Cell, rc::Rc, sync::Arc};

use crate::arrays::{
    self, STEPS, Served, options,
    scene::{lay_out, wish},
    superblock_of,
};
use pinstripe_engine::{
    array::{CommandError, Policy},
    assembly::{AssembleError, create::create_with},
    error::IoError,
    io::volume::Volume,
    options::ArrayOptions,
};
use pinstripe_md::{
    identity::Uuid,
    level::Level,
    placement::{InitialSync, NewArray, NewBitmap, NewDevice, NewLog},
    superblock::{ResyncOffset, Superblock},
    units::{Sector, SectorCount},
};
use pinstripe_runtime::{
    DeviceSource,
    memory::{Memory, MemorySource},
    shard,
};
use pinstripe_sim::{SimDisk, SimDiskConfig, World, WorldConfig};

const CHUNK: u64 = 64 << 10;
const MEMBER_BYTES: usize = 6 << 20;

fn array(level: Level, members: u8, bitmap: NewBitmap) -> NewArray {
    let device = |i| NewDevice { sectors: MEMBER_BYTES as u64 / 512, uuid: Uuid([i; 16]) };
    NewArray {
        members: (1..=members).map(device).collect(),
        data_offset: Some(Sector(4096)),
        chunk: SectorCount(CHUNK / 512),
        ..wish(level, members, CHUNK, bitmap, InitialSync::AssumeClean)
    }
}

fn sources(memories: &[Arc<Memory>], block: u32) -> Vec<Arc<dyn DeviceSource>> {
    let source = |(i, memory): (usize, &Arc<Memory>)| -> Arc<dyn DeviceSource> {
        Arc::new(MemorySource {
            name: format!("member{i}"),
            memory: Arc::clone(memory),
            logical_block: block,
        })
    };
    memories.iter().enumerate().map(source).collect()
}

/// A new array in service, on memory.
fn served(wish: NewArray, log: NewLog, block: u32) -> (Served, Vec<Arc<Memory>>) {
    let wish = NewArray { logical_block_bytes: block.into(), ..wish };
    let memories: Vec<_> = wish
        .members
        .iter()
        .map(|m| Memory::new(usize::try_from(m.sectors * 512).unwrap()).unwrap())
        .collect();
    let mut world = World::new(WorldConfig { arena_bytes: 4 << 20, ..WorldConfig::new(1, 1) });
    let devices = sources(&memories, block);
    world
        .block_on(0, "create", STEPS, async move {
            let devices: Vec<_> = devices.iter().map(|source| source.attach().unwrap()).collect();
            create_with(&wish, log, &devices).await
        })
        .unwrap()
        .unwrap();
    let array = arrays::assemble(&mut world, sources(&memories, block), options()).unwrap();
    (Served { world, array }, memories)
}

/// Bytes that the members were written, by a load of `DEPTH` clients that each write `length` bytes `count`
/// times, in several orders of events.
fn written(level: Level, log: NewLog, block: u32, length: u64, count: u64) -> u64 {
    (1..=4).map(|seed| written_once(seed, level, log, block, length, count)).sum()
}

fn written_once(seed: u64, level: Level, log: NewLog, block: u32, length: u64, count: u64) -> u64 {
    const DEPTH: u64 = 32;
    let mut world = World::new(WorldConfig { arena_bytes: 16 << 20, ..WorldConfig::new(seed, 1) });
    let wish = NewArray { logical_block_bytes: block.into(), ..array(level, 6, NewBitmap::None) };
    let disks: Vec<SimDisk> = (0..wish.members.len())
        .map(|i| {
            world.add_disk(SimDiskConfig {
                logical_block: block,
                ..SimDiskConfig::new(&format!("disk{i}"), MEMBER_BYTES as u64)
            })
        })
        .collect();
    lay_out(&mut world, wish.place_with(log).unwrap(), &disks).unwrap();
    let array = arrays::assemble(&mut world, disks.iter().map(SimDisk::source).collect(), options()).unwrap();
    let mut served = Served { world, array };
    served.write(0, &[1; 4096]).unwrap();
    let before = served.array.detail().statistics;
    let done = Rc::new(Cell::new(0));
    for client in 0..DEPTH {
        let (volume, done): (Volume, _) = (served.array.volume().clone(), Rc::clone(&done));
        served.world.spawn(0, "client", async move {
            let places = volume.size() / length;
            let mut place = client;
            for _ in 0..count {
                place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let mut data = shard::buffer(usize::try_from(length).unwrap());
                data.fill(place.to_le_bytes()[0]);
                volume.write((place >> 20) % places * length, data.freeze(), false).await.unwrap();
            }
            done.set(done.get() + 1);
        });
    }
    served.world.run_until(STEPS * 10, |_| done.get() == DEPTH).unwrap();
    served.array.detail().statistics.since(&before).member_write_bytes
}

#[test]
#[expect(clippy::cast_precision_loss, reason = "a ratio")]
fn the_double_parity_log_costs_what_was_promised() {
    for block in [512, 4096] {
        let small = |log| written(Level::Raid6, log, block, 4096, 100) as f64;
        let small = small(NewLog::DoubleParity) / small(NewLog::None);
        let full = |log| written(Level::Raid6, log, block, 4 * CHUNK, 4) as f64;
        let full = full(NewLog::DoubleParity) / full(NewLog::None);
        println!("blocks of {block}: 4 KiB random x {small:.3}, full stripes x {full:.3}");
        assert!(full <= 1.05 && small <= 1.8, "{small}, {full}");
    }
}

fn clean(superblock: &Superblock) -> bool {
    superblock.array.resync_offset == ResyncOffset::Clean
}

/// Serves the members as a crash left them.
fn after_crash(
    memories: &[Arc<Memory>],
    lost: &[usize],
    options: ArrayOptions,
) -> Result<Served, AssembleError> {
    let copies: Vec<Arc<Memory>> = memories
        .iter()
        .enumerate()
        .filter(|(i, _)| !lost.contains(i))
        .map(|(_, memory)| {
            let copy = Memory::new(memory.size()).unwrap();
            let mut bytes = vec![0; memory.size()];
            memory.copy_out(0, &mut bytes).unwrap();
            copy.copy_in(0, &bytes).unwrap();
            copy
        })
        .collect();
    Served::new(sources(&copies, 512), options)
}

#[test]
fn the_superblocks_keep_md_out_just_while_the_log_is_needed() {
    let (mut served, memories) = served(array(Level::Raid6, 5, NewBitmap::None), NewLog::DoubleParity, 512);
    assert_eq!(served.array.detail().consistency_policy, "double-parity-log");
    assert_eq!(superblock_of(&memories[0]).feature_map(), 0, "a clean array is any RAID6");
    served.write(4096, &[7; 8192]).unwrap();
    let dirty: Vec<Superblock> = memories.iter().map(|memory| superblock_of(memory)).collect();
    assert!(dirty.iter().all(|superblock| !clean(superblock) && superblock.feature_map() == 0x8000_0000));
    let mut again = after_crash(&memories, &[1, 4], options()).unwrap();
    assert_eq!(again.read(4096, 8192).unwrap(), [7; 8192], "dirty, and without two members");
    served.stop();
    assert!(
        memories
            .iter()
            .all(|memory| clean(&superblock_of(memory)) && superblock_of(memory).feature_map() == 0)
    );
    let again = after_crash(&memories, &[], options()).unwrap();
    assert_eq!(again.array.detail().consistency_policy, "double-parity-log");
}

#[test]
fn a_spare_without_room_for_the_log_does_not_let_md_in() {
    let (mut served, mut memories) =
        served(array(Level::Raid6, 5, NewBitmap::None), NewLog::DoubleParity, 512);
    memories.push(Memory::new(MEMBER_BYTES).unwrap());
    let (array, source) = (served.array.clone(), sources(&memories, 512).remove(5));
    served.run("add", async move { array.add(source, Uuid([99; 16])).await }).unwrap();
    served.stop();
    // As mdadm adds it.
    let mut spare = superblock_of(&memories[5]);
    spare.member.double_parity_log = None;
    memories[5].copy_in(4096, &spare.encode(512).unwrap()).unwrap();
    let mut served = Served::new(sources(&memories, 512), options()).unwrap();
    served.write(4096, &[7; 8192]).unwrap();
    let says = |member: usize| superblock_of(&memories[member]).feature_map();
    assert!((0..5).all(|member| says(member) == 0x8000_0000), "what they say keeps MD out");
    assert_eq!(says(5), 0);
    assert_eq!(served.array.detail().unusable_spares.len(), 1, "and the spare is kept");
    let mut again = after_crash(&memories, &[1, 4], options()).unwrap();
    assert_eq!(again.read(4096, 8192).unwrap(), [7; 8192], "dirty, and without two members");
}

/// Logs differ where data begins at different places.
#[test]
fn a_spare_takes_a_slot_although_another_member_has_a_longer_log() {
    let (mut served, mut memories) = served(array(Level::Raid5, 5, NewBitmap::None), NewLog::Ppl, 512);
    served.stop();
    for shorter in [0, 1, 2, 4] {
        let mut superblock = superblock_of(&memories[shorter]);
        superblock.member.ppl.as_mut().unwrap().size -= 8;
        memories[shorter].copy_in(4096, &superblock.encode(512).unwrap()).unwrap();
    }
    let mut served = Served::new(sources(&memories, 512), options()).unwrap();
    memories.push(Memory::new(MEMBER_BYTES).unwrap());
    let (array, spare) = (served.array.clone(), sources(&memories, 512).remove(5));
    let work = async move {
        array.fail(1).await?;
        array.add(spare, Uuid([99; 16])).await
    };
    served.run("replace", work).unwrap();
    let detail = served.array.detail();
    assert!(detail.spares.is_empty(), "it waits for nothing");
    assert_eq!(detail.slots[1].device.as_deref(), Some("member5"));
}

#[test]
fn the_policy_changes_under_writers_and_every_crash_finds_a_safe_one() {
    let cases = [
        (Level::Raid5, [Policy::Ppl, Policy::Resync, Policy::Ppl, Policy::Bitmap, Policy::Ppl]),
        (
            Level::Raid6,
            [
                Policy::DoubleParityLog,
                Policy::Resync,
                Policy::DoubleParityLog,
                Policy::Bitmap,
                Policy::DoubleParityLog,
            ],
        ),
    ];
    for (level, policies) in cases {
        let internal = NewBitmap::Internal { chunk_bytes: Some(1 << 20) };
        let (mut served, memories) = served(array(level, 5, internal), NewLog::None, 512);
        let over = Rc::new(Cell::new(false));
        for client in 0..8u8 {
            let (volume, over): (Volume, _) = (served.array.volume().clone(), Rc::clone(&over));
            served.world.spawn(0, "client", async move {
                let mut number = 0;
                while !over.get() {
                    let mut data = shard::buffer(4096);
                    data.fill(client);
                    volume
                        .write((u64::from(client) * 37 + number) % 300 * 4096, data.freeze(), false)
                        .await
                        .unwrap();
                    number += 1;
                    shard::sleep(20_000).await;
                }
            });
        }
        for policy in policies {
            let array = served.array.clone();
            served.run("grow", async move { array.set_policy(policy).await }).unwrap();
            assert_eq!(served.array.detail().consistency_policy, policy.name());
            let logged = matches!(policy, Policy::Ppl | Policy::DoubleParityLog);
            let found = after_crash(&memories, &[2], options());
            match found {
                Ok(found) => {
                    assert!(logged, "dirty, degraded, and no log: {policy:?}");
                    assert_eq!(found.array.detail().regions_to_resync, 0);
                }
                Err(AssembleError::DirtyDegraded { .. }) => assert!(!logged, "{policy:?}"),
                Err(other) => panic!("{other}"),
            }
            let mut whole = after_crash(&memories, &[], options()).unwrap();
            whole.settle();
            assert_eq!(whole.check(), 0, "{policy:?}");
        }
        over.set(true);
        assert_eq!(served.check(), 0);
    }
}

#[test]
fn a_policy_that_can_not_be_is_refused_and_nothing_is_given_up_for_it() {
    let internal = NewBitmap::Internal { chunk_bytes: Some(1 << 20) };
    let (mut served, _) = served(array(Level::Raid6, 5, internal), NewLog::None, 512);
    let array = served.array.clone();
    let refused = served.run("grow", async move { array.set_policy(Policy::Ppl).await });
    assert!(matches!(refused, Err(CommandError::Policy(_))), "{refused:?}");
    assert_eq!(served.array.detail().consistency_policy, "bitmap");
}

#[test]
fn a_log_is_kept_where_there_is_no_room_for_the_bitmap_that_is_to_come_instead() {
    for (level, log) in [(Level::Raid5, NewLog::Ppl), (Level::Raid6, NewLog::DoubleParity)] {
        let (mut served, memories) = served(array(level, 5, NewBitmap::None), log, 512);
        served.stop();
        // The bad-block log right behind the superblock, where a bitmap would be, and the log behind both.
        for memory in &memories {
            let mut superblock = superblock_of(memory);
            let member = &mut superblock.member;
            let area = member.ppl.as_mut().or(member.double_parity_log.as_mut()).unwrap();
            let mut bytes = vec![0; usize::from(area.size) * 512];
            memory.copy_out(4096 + u64::try_from(area.offset).unwrap() * 512, &mut bytes).unwrap();
            area.offset = 16;
            memory.copy_in(4096 + 16 * 512, &bytes).unwrap();
            member.bad_block_log.as_mut().unwrap().offset = 8;
            memory.copy_in(4096, &superblock.encode(512).unwrap()).unwrap();
        }
        let mut served = Served::new(sources(&memories, 512), options()).unwrap();
        let before = served.array.detail().consistency_policy;
        served.write(4096, &[7; 8192]).unwrap();
        let events = superblock_of(&memories[0]).array.events;
        let array = served.array.clone();
        let refused = served.run("grow", async move { array.set_policy(Policy::Bitmap).await });
        assert!(matches!(refused, Err(CommandError::BitmapRoom(_))), "{refused:?}");
        assert_eq!(served.array.detail().consistency_policy, before);
        assert_eq!(superblock_of(&memories[0]).array.events, events, "nothing was written");
        let mut again = after_crash(&memories, &[1], options()).unwrap();
        assert_eq!(again.read(4096, 8192).unwrap(), [7; 8192], "dirty, and without a member");
    }
}

#[test]
fn a_policy_that_can_not_be_given_up_any_more_is_not_said_to_be() {
    for (level, log) in [(Level::Raid5, NewLog::Ppl), (Level::Raid6, NewLog::DoubleParity)] {
        let (mut served, memories) = served(array(level, 5, NewBitmap::None), log, 512);
        served.stop();
        let array = served.array.clone();
        let changed = served.run("policy", async move { array.set_policy(Policy::Resync).await });
        assert!(matches!(changed, Err(CommandError::Io(IoError::Stopping))), "{changed:?}");
        let member = superblock_of(&memories[0]).member;
        assert!(member.ppl.or(member.double_parity_log).is_some());
    }
}

#[test]
fn a_spare_takes_part_in_the_log_that_was_there_before_it() {
    for (level, log) in [(Level::Raid5, NewLog::Ppl), (Level::Raid6, NewLog::DoubleParity)] {
        let (mut served, mut memories) = served(array(level, 5, NewBitmap::None), log, 512);
        served.write(0, &vec![3; 65536]).unwrap();
        let spare = Memory::new(MEMBER_BYTES).unwrap();
        spare.copy_in(0, &vec![0xa5; MEMBER_BYTES]).unwrap();
        let source = sources(&[Arc::clone(&spare)], 512).remove(0);
        let array = served.array.clone();
        served
            .run("replace", async move {
                array.fail(1).await?;
                array.add(source, Uuid([99; 16])).await
            })
            .unwrap();
        served.settle();
        memories[1] = spare;
        for at in (0..40u64).map(|i| i * 61 * 4096 % (10 << 20)) {
            served.write(at, &[at.to_le_bytes()[1] | 1; 4096]).unwrap();
        }
        let mut again = after_crash(&memories, &[3], options()).unwrap();
        assert_eq!(again.array.detail().regions_to_resync, 0);
        let mut expected = std::collections::BTreeMap::new();
        for at in (0..40u64).map(|i| i * 61 * 4096 % (10 << 20)) {
            expected.insert(at, at.to_le_bytes()[1] | 1);
        }
        for (at, byte) in expected {
            assert_eq!(again.read(at, 4096).unwrap(), [byte; 4096], "{level} at {at}");
        }
    }
}

/// An array of which some members name a partial parity log and some don't, and some are one event ahead: a
/// crash came in the middle of an update.
fn with_torn_log(named: [bool; 4]) -> Served {
    let (mut served, memories) = served(array(Level::Raid5, 4, NewBitmap::None), NewLog::Ppl, 512);
    served.write(0, &[1; 4096]).unwrap();
    served.stop();
    for (member, named) in named.into_iter().enumerate() {
        let mut superblock = superblock_of(&memories[member]);
        superblock.array.events += u64::from(member < 2);
        if !named {
            superblock.member.ppl = None;
        }
        memories[member].copy_in(4096, &superblock.encode(512).unwrap()).unwrap();
    }
    let mut served = Served::new(sources(&memories, 512), options()).unwrap();
    served.write(4096, &[2; 4096]).unwrap();
    served
}

fn takes_a_bitmap(served: &mut Served) -> bool {
    let array = served.array.clone();
    let changed = served.run("grow", async move { array.set_policy(Policy::Bitmap).await });
    changed.is_ok() && served.write(8192, &[3; 4096]).is_ok()
}

#[test]
fn a_partial_parity_log_whose_coming_or_going_was_torn_is_none_and_a_bitmap_can_come() {
    for named in [[true, true, false, false], [false, false, true, true]] {
        let mut served = with_torn_log(named);
        assert_eq!(served.array.detail().consistency_policy, "resync");
        assert!(takes_a_bitmap(&mut served));
        assert_eq!(served.read(0, 12288).unwrap(), [[1; 4096], [2; 4096], [3; 4096]].concat());
        served.stop();
    }
}

#[cfg(feature = "mutants")]
#[test]
fn a_torn_log_that_is_believed_is_found() {
    use pinstripe_engine::mutants::{Mutant, activate};
    activate(Some(Mutant::TornLogBelieved));
    let found = !takes_a_bitmap(&mut with_torn_log([false, false, true, true]));
    activate(None);
    assert!(found);
}
