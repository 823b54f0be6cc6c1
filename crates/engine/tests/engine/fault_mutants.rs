//! Each deliberate defect in the handling of failures is caught by a directed scene, which passes without it.
//!
//! `cargo test -p pinstripe-engine --features mutants --test engine fault_mutants::`

use std::{rc::Rc, sync::Arc};

use crate::{
    arrays::{
        self, STEPS, Served, options,
        scene::{DATA_SECTOR, Scene, spawn, wish, write},
    },
    faults::bits_on_no_member,
    forced,
};
use pinstripe_engine::{
    assembly::create::create_with,
    geometry::StripeId,
    mutants::{Mutant, activate},
};
use pinstripe_md::{
    identity::Uuid,
    level::Level,
    placement::{InitialSync, NewBitmap, NewLog},
    units::Sector,
};
use pinstripe_runtime::{DeviceSource, Memory, MemorySource, shard};
use pinstripe_sim::{Fault, SimDiskConfig, World, WorldConfig};

const BITMAP: NewBitmap = NewBitmap::Internal { chunk_bytes: Some(65536) };
const STRIPE_SECTORS: u64 = 96;
const SEEDS: u64 = 12;

fn raid5(seed: u64) -> Scene {
    let wish = wish(Level::Raid5, 4, 16 << 10, BITMAP, InitialSync::AssumeClean);
    let mut scene = Scene::with_options(seed, wish, 1, options());
    scene.write(0, 8 * STRIPE_SECTORS, true).unwrap();
    scene.flush().unwrap();
    scene
}

fn crash(scene: &mut Scene) {
    scene.world.crash();
    scene.ledger.borrow_mut().crash();
    for disk in &scene.disks {
        disk.fault(&Fault::Release);
        disk.fault(&Fault::Heal);
    }
}

fn sleep(scene: &mut Scene, seconds: u64) {
    scene.run(async move { shard::sleep(seconds * 1_000_000_000).await });
}

/// The array starts again after a crash, or is refused, which is no wrong byte.
fn is_right_after_crash(scene: &mut Scene) -> bool {
    crash(scene);
    let sources = scene.disks.iter().map(pinstripe_sim::SimDisk::source).collect();
    match arrays::assemble(&mut scene.world, sources, scene.options.clone()) {
        Ok(array) => {
            scene.array = array;
            scene.is_right()
        }
        Err(_) => true,
    }
}

fn place(scene: &Scene, sector: u64) -> (usize, std::ops::Range<u64>) {
    let geometry = scene.geometry();
    let piece = geometry.pieces(sector * 512, 512).unwrap().next().unwrap();
    let at = DATA_SECTOR * 512 + geometry.member_offset(piece.stripe) + u64::from(piece.chunk_offset);
    (geometry.slots(piece.stripe).data_slot(piece.column).index(), at..at + 512)
}

/// Power fails at the moment of an acknowledgement without the member that hangs.
fn time_out(seed: u64) -> bool {
    let mut scene = raid5(seed);
    scene.disks[1].fault(&Fault::Hang);
    scene.write(0, STRIPE_SECTORS, true).unwrap();
    is_right_after_crash(&mut scene)
}

/// Power fails at the moment in which a flush is answered that a member has failed. It lost what it covers.
fn failed_flush(seed: u64) -> bool {
    let mut scene = raid5(seed);
    scene.write(0, STRIPE_SECTORS, false).unwrap();
    scene.disks[1].fault(&Fault::FailFlushes(1));
    scene.flush().unwrap();
    is_right_after_crash(&mut scene)
}

/// The same of the first of several flushes that is answered: the member has failed one of them, and says of
/// the others that they have succeeded.
fn failed_flush_beside_others(seed: u64) -> bool {
    let mut scene = raid5(seed);
    scene.write(0, STRIPE_SECTORS, false).unwrap();
    scene.disks[1].fault(&Fault::FailFlushes(1));
    let answered = spawn(&mut scene, 4, |_, volume, ledger, mut rng| async move {
        shard::sleep(rng.below(2_000)).await;
        let id = ledger.borrow_mut().begin_flush();
        let result = volume.flush().await;
        ledger.borrow_mut().complete_flush(id, result.is_ok());
    });
    scene.world.run_until(STEPS, |_| *answered.borrow() > 0).unwrap();
    is_right_after_crash(&mut scene)
}

/// A member of level 0 takes a write, the client is told that it failed, and writes again: the first must not
/// come last.
fn late_write(seed: u64) -> bool {
    let mut wish = wish(Level::Raid5, 2, 16 << 10, NewBitmap::None, InitialSync::AssumeClean);
    wish.level = Level::Raid0;
    wish.layout = pinstripe_md::level::Layout::Raid0(pinstripe_md::level::Raid0Layout::Unspecified);
    let mut scene = Scene::new(seed, wish, 1);
    scene.write(0, 64, false).unwrap();
    scene.disks[0].fault(&Fault::Hang);
    assert!(scene.write(0, 8, false).is_err());
    let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
    scene.world.spawn(0, "again", async move {
        let _ = write(&volume, &ledger, 0, 8, false).await;
    });
    sleep(&mut scene, 1);
    scene.disks[0].fault(&Fault::Release);
    sleep(&mut scene, 1);
    scene.is_right()
}

/// A member comes back while what was asked of it before is still under way.
fn late_member(seed: u64) -> bool {
    let mut scene = raid5(seed);
    scene.disks[1].fault(&Fault::Hang);
    scene.write(0, STRIPE_SECTORS, false).unwrap();
    let (array, source) = (scene.array.clone(), scene.disks[1].source());
    scene.world.spawn(0, "add", async move {
        let _ = array.add(source, Uuid([0x55; 16])).await;
    });
    sleep(&mut scene, 1);
    scene.write(0, STRIPE_SECTORS, false).unwrap();
    scene.disks[1].fault(&Fault::Release);
    let array = scene.array.clone();
    let rebuilt = scene.world.run_until(STEPS / 100, |_| array.detail().missing == 0).is_ok();
    // Nothing was added before all was over: then there is nothing to rebuild.
    !rebuilt
}

/// A spare falls silent, and a member is to be taken out.
fn silent_spare(seed: u64) -> bool {
    let mut scene = raid5(seed);
    let disk = scene.world.add_disk(SimDiskConfig::new("spare", 2048 * 512));
    let (array, source) = (scene.array.clone(), disk.source());
    scene.run(async move { array.add(source, Uuid([0x55; 16])).await }).unwrap();
    disk.fault(&Fault::Hang);
    let (array, over) = (scene.array.clone(), Rc::new(std::cell::Cell::new(false)));
    let told = Rc::clone(&over);
    scene.world.spawn(0, "fail", async move { told.set(array.fail(1).await.is_ok()) });
    sleep(&mut scene, 100);
    over.get() && scene.is_right()
}

fn corrected_reads(seed: u64) -> bool {
    let mut scene = raid5(seed);
    for number in 0..40 {
        let at = DATA_SECTOR * 512 + number * (16 << 10);
        scene.disks[1].fault(&Fault::UnreadableRange(at..at + 512));
    }
    scene.read_all();
    let array = scene.array.clone();
    scene.run(async move { array.check().await }).unwrap();
    scene.array.detail().missing == 1
}

/// Power fails when the array is idle, after a sector was refused.
fn bad_block(seed: u64) -> bool {
    let mut scene = raid5(seed);
    let (disk, bytes) = place(&scene, 40);
    scene.disks[disk].fault(&Fault::UnwritableRange(bytes));
    scene.write(40, 1, true).unwrap();
    sleep(&mut scene, 2);
    is_right_after_crash(&mut scene)
}

/// Power fails when a sector has just been taken off the list.
fn freed_block(seed: u64) -> bool {
    let mut scene = raid5(seed);
    let (disk, bytes) = place(&scene, 40);
    scene.disks[disk].fault(&Fault::UnwritableRange(bytes));
    scene.write(40, 1, true).unwrap();
    scene.flush().unwrap();
    scene.disks[disk].fault(&Fault::Heal);
    scene.write(40, 1, false).unwrap();
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().slots[disk].bad_sectors == 0).unwrap();
    is_right_after_crash(&mut scene)
}

/// The machine dies while the parity of a new array is made, with a partial parity log to come.
fn log_before_sync(seed: u64) -> bool {
    const BYTES: usize = 6 << 20;
    let memories: Vec<_> = (1..=4_u8)
        .map(|number| {
            let memory = Memory::new(BYTES).unwrap();
            memory.copy_in(0, &vec![number.wrapping_mul(37) ^ seed.to_le_bytes()[0]; BYTES]).unwrap();
            memory
        })
        .collect();
    let sources = || -> Vec<Arc<dyn DeviceSource>> {
        let source = |(number, memory): (usize, &Arc<Memory>)| {
            let (name, memory) = (format!("member{number}"), Arc::clone(memory));
            Arc::new(MemorySource { name, memory, logical_block: 512 }) as Arc<dyn DeviceSource>
        };
        memories.iter().enumerate().map(source).collect()
    };
    let mut wish = wish(Level::Raid5, 4, 16 << 10, NewBitmap::None, InitialSync::Resync);
    wish.data_offset = Some(Sector(4096));
    wish.members.iter_mut().for_each(|member| member.sectors = BYTES as u64 / 512);
    let devices = sources();
    World::new(WorldConfig::new(seed, 1))
        .block_on(0, "create", STEPS, async move {
            let devices: Vec<_> = devices.iter().map(|source| source.attach().unwrap()).collect();
            create_with(&wish, NewLog::Ppl, &devices).await.unwrap();
        })
        .unwrap();
    let mut served = Served::new(sources(), options()).unwrap();
    served.write(0, &[1; 4096]).unwrap();
    {
        let _entered = served.world.enter(0);
        drop(served.array);
    }
    served.world.crash();
    let mut again = Served::new(sources(), options()).unwrap();
    again.settle();
    again.check() == 0
}

/// A device that can't take the array's blocks wants to join.
fn larger_blocks(seed: u64) -> bool {
    let mut scene = raid5(seed);
    let config = SimDiskConfig { logical_block: 4096, ..SimDiskConfig::new("large", 2048 * 512) };
    let disk = scene.world.add_disk(config);
    let array = scene.array.clone();
    scene.run(async move { array.fail(1).await }).unwrap();
    let array = scene.array.clone();
    scene.run(async move { array.add(disk.source(), Uuid([0x55; 16])).await }).is_err()
}

/// A second member takes no write any more, after parity has taken it.
fn failed_rows(seed: u64) -> bool {
    let mut scene = raid5(seed);
    let ((lost, _), (disk, _)) = (place(&scene, 40), place(&scene, 0));
    let array = scene.array.clone();
    scene.run(async move { array.fail(lost).await }).unwrap();
    let all = 0..scene.disks[disk].info().size;
    scene.disks[disk].fault(&Fault::UnwritableRange(all));
    assert!(scene.write(8, 1, false).is_err());
    scene.disks[disk].fault(&Fault::Heal);
    scene.is_right()
}

/// Parity is wrong beside a sector of it that was refused.
fn listed_parity(seed: u64) -> bool {
    let mut scene = raid5(seed);
    let (disk, at) = {
        let geometry = scene.geometry();
        let (slots, offset) = (geometry.slots(StripeId(0)), geometry.member_offset(StripeId(0)));
        (scene.disks[slots.p_slot().index()].clone(), DATA_SECTOR * 512 + offset)
    };
    disk.fault(&Fault::UnwritableRange(at..at + 512));
    scene.write(0, 1, true).unwrap();
    disk.fault(&Fault::Heal);
    disk.poke(at + 8192, &[0x5a; 512]);
    scene.check() > 0
}

/// All members are silent, for longer than one may be and not for as long as the last one may.
fn short_outage(seed: u64) -> bool {
    let mut scene = raid5(seed);
    arrays::scene::silence(&mut scene, 40);
    scene.write(0, STRIPE_SECTORS, true).is_ok() && scene.is_right()
}

/// A member is lost, and one that the array then can't do without is silent for a while.
fn lost_and_silent(seed: u64) -> bool {
    let mut scene = raid5(seed);
    arrays::scene::write_to_one_lost_and_one_silent(&mut scene) && scene.is_right()
}

/// The process is stopped, and with it what works for it, for far longer than a member may take.
fn stopped_process(seed: u64) -> bool {
    let mut scene = raid5(seed);
    arrays::scene::silence(&mut scene, 300);
    let wrote = arrays::scene::write_in_a_stall(&mut scene, 300);
    wrote && scene.array.detail().missing == 0 && scene.is_right()
}

/// Has requests be slow, begins a write, and has all further requests be fast again.
fn begin_slowly(scene: &mut Scene, sector: u64, sectors: u64) -> Rc<std::cell::Cell<Option<bool>>> {
    scene.disks.iter().for_each(|disk| disk.fault(&Fault::SlowBy(200)));
    let answer = begin(scene, sector, sectors);
    let asked = |world: &World| world.shard(0).requests_in_flight() > 0;
    scene.world.run_until(STEPS, asked).unwrap();
    scene.disks.iter().for_each(|disk| disk.fault(&Fault::SlowBy(1)));
    answer
}

/// Whether the write has succeeded, when it is over.
fn begin(scene: &mut Scene, sector: u64, sectors: u64) -> Rc<std::cell::Cell<Option<bool>>> {
    let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
    let answer = Rc::new(std::cell::Cell::new(None));
    let there = Rc::clone(&answer);
    scene.world.spawn(0, "write", async move {
        there.set(Some(write(&volume, &ledger, sector, sectors, false).await.is_ok()));
    });
    answer
}

/// Of a write over two stripes the first can't be done, and the second one is done later.
fn two_stripes(seed: u64) -> bool {
    let mut scene = raid5(seed);
    let (lost, _) = place(&scene, 88);
    // In the same rows.
    let (disk, range) = place(&scene, 24);
    scene.disks[disk].fault(&Fault::UnreadableRange(range.start..range.start + 4096));
    let array = scene.array.clone();
    scene.run(async move { array.fail(lost).await }).unwrap();
    let first = begin_slowly(&mut scene, STRIPE_SECTORS + 32, 8);
    let both = begin(&mut scene, 88, 16);
    scene.world.run_until(STEPS, |_| both.get().is_some() && first.get().is_some()).unwrap();
    assert_eq!(first.get(), Some(true));
    both.get() == Some(false)
}

/// Two writes are one batch, which fails with the array.
fn joined_in_vain(seed: u64) -> bool {
    let mut scene = raid5(seed);
    let owner = begin_slowly(&mut scene, 0, 8);
    for sector in [0, 40] {
        let (disk, _) = place(&scene, sector);
        let all = 0..scene.disks[disk].info().size;
        scene.disks[disk].fault(&Fault::UnwritableRange(all));
    }
    let joiner = begin(&mut scene, 40, 8);
    scene.world.run_until(STEPS, |_| owner.get().is_some() && joiner.get().is_some()).unwrap();
    assert_eq!(owner.get(), Some(false));
    joiner.get() == Some(false)
}

/// Power fails with parity half written, and of the members' bitmaps the first has lost its bits.
fn lost_bits(seed: u64) -> bool {
    let mut scene = raid5(seed);
    scene.write(0, 8, true).unwrap();
    crash(&mut scene);
    let bitmap = scene.superblock(0).bitmap_sector().unwrap().0 * 512;
    let mut bytes = scene.disks[0].peek(bitmap, 512);
    bytes[256..].fill(0);
    scene.disks[0].poke(bitmap, &bytes);
    let (slots, offset) = {
        let geometry = scene.geometry();
        (geometry.slots(StripeId(0)), geometry.member_offset(StripeId(0)))
    };
    scene.disks[slots.p_slot().index()].poke(DATA_SECTOR * 512 + offset, &[0x5a; 512]);
    scene.reassemble();
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().regions_to_resync == 0).unwrap();
    scene.check() == 0
}

#[test]
fn time_that_is_charged_to_members_although_nothing_ran_is_caught() {
    use pinstripe_runtime::mutants::{Mutant, activate};
    assert!((0..SEEDS).all(stopped_process));
    activate(Some(Mutant::StallCharged));
    assert!(!(0..SEEDS).all(stopped_process));
    activate(None);
}

#[test]
fn defects_beside_something_that_goes_wrong_elsewhere_are_caught() {
    use arrays::failures::{freed_beside_a_flush_that_fails, worn_out_beside_a_silent_one};
    type Scene = fn(u64);
    let scenes: [(Mutant, Scene); 2] = [
        (Mutant::SilentMemberCounted, worn_out_beside_a_silent_one),
        (Mutant::BadBlockFreedPastLoss, freed_beside_a_flush_that_fails),
    ];
    for (mutant, scene) in scenes {
        assert!(arrays::defects::find(mutant, 400, scene).is_some(), "{mutant:?} survives");
    }
}

#[test]
fn bits_that_not_all_members_have_and_that_are_not_written_are_caught() {
    use arrays::failures::crash_in_a_resync_of_outdated_bitmaps as scene;
    assert!(arrays::defects::find(Mutant::BitmapsLeftUnlike, 3, scene).is_some());
}

#[test]
fn a_damaged_bitmap_that_passes_for_an_empty_one_is_caught() {
    use arrays::failures::{Damage, crash_with_a_damaged_bitmap};
    for damage in [Damage::Unread, Damage::Garbled] {
        let scene = |seed| crash_with_a_damaged_bitmap(damage, seed);
        assert!(arrays::defects::find(Mutant::DamagedBitmapEmpty, 3, scene).is_some(), "{damage:?}");
    }
}

#[test]
fn every_defect_in_the_handling_of_failures_is_caught() {
    type Holds = fn(u64) -> bool;
    let scenes: [(Mutant, Holds); 21] = [
        (Mutant::FailedFlushNotAwaited, failed_flush),
        (Mutant::FailedFlushForgotten, failed_flush_beside_others),
        (Mutant::FailedForceForgotten, forced::forced_write_and_flush),
        (Mutant::ForcedPastLoss, forced::forced_writes_at_a_time),
        (Mutant::BitOnNoMember, bits_on_no_member),
        (Mutant::LastStrawDropped, short_outage),
        (Mutant::LossToldLate, lost_and_silent),
        (Mutant::LastStripeAnswers, two_stripes),
        (Mutant::JoinersToldAll, joined_in_vain),
        (Mutant::FirstBitmapBelieved, lost_bits),
        (Mutant::TimeOutAcknowledged, time_out),
        (Mutant::LateMemberAsked, late_write),
        (Mutant::LateMemberAdded, late_member),
        (Mutant::SpareUnsupervised, silent_spare),
        (Mutant::CorrectedReadsUnlimited, corrected_reads),
        (Mutant::BadBlockForgotten, bad_block),
        (Mutant::BadBlockFreedEarly, freed_block),
        (Mutant::LogBeforeSync, log_before_sync),
        (Mutant::LargerBlocksJoin, larger_blocks),
        (Mutant::FailedRowsTrusted, failed_rows),
        (Mutant::ListedTakesChunk, listed_parity),
    ];
    for (mutant, scene) in scenes {
        assert!((0..SEEDS).all(scene), "the scene of {mutant:?} fails without it");
        activate(Some(mutant));
        let caught = (0..SEEDS).any(|seed| !scene(seed));
        activate(None);
        assert!(caught, "{mutant:?} survives");
    }
}
