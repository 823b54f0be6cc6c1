//! Members that have blocks listed as bad and stay: what is made of a listed sector is made of no other one,
//! and what goes wrong in one row is no other row's.

use std::{cell::RefCell, ops::Range, rc::Rc};

use crate::arrays::{
    self, STEPS, options,
    scene::{DATA_SECTOR, Scene, list_as_bad, plain_disks, spawn, superblock_on, wish, write},
    servers::ServerSource,
};
use crate::membership::Life;
use pinstripe_engine::{
    array::{Added, CommandError},
    error::{IoError, Operation},
    events::SyncAction,
    geometry::{MemberSlot, StripeId, StripeMap},
    maintenance::{CheckReport, ScrubAction, ScrubRequest},
    options::ArrayOptions,
};
use pinstripe_md::{
    identity::Uuid,
    level::Level,
    placement::{InitialSync, NewBitmap},
    superblock::Role,
};
use pinstripe_runtime::shard;
use pinstripe_sim::{Fault, SimDisk, SimDiskConfig, Trigger};

const BITMAP: NewBitmap = NewBitmap::Internal { chunk_bytes: Some(65536) };
const CHUNK: u64 = 16 << 10;
/// Of a column.
const SECTORS: u64 = CHUNK / 512;
/// The stripe that everything is done to. Far from the beginning, where a number that is off by a little is
/// off by sectors.
const STRIPE: u64 = 43;
const ROW: u64 = 8;

fn scene(level: Level, members: u8, initial: InitialSync) -> Scene {
    Scene::with_options(1, wish(level, members, CHUNK, BITMAP, initial), 1, options())
}

/// Of five members on level 6, all written.
fn raid6() -> Scene {
    let mut scene = scene(Level::Raid6, 5, InitialSync::AssumeClean);
    fill(&mut scene);
    scene
}

/// Of four members on level 5, all written.
fn raid5() -> Scene {
    let mut scene = scene(Level::Raid5, 4, InitialSync::AssumeClean);
    fill(&mut scene);
    scene
}

fn fill(scene: &mut Scene) {
    for stripe in STRIPE - 3..STRIPE + 5 {
        scene.write(stripe * 3 * SECTORS, 3 * SECTORS, false).unwrap();
    }
    scene.flush().unwrap();
}

fn map(scene: &Scene) -> StripeMap {
    scene.geometry().slots(StripeId(STRIPE))
}

/// The array's sector of a column's sector.
fn sector(column: u64, at: u64) -> u64 {
    (STRIPE * 3 + column) * SECTORS + at
}

/// The bytes of a disk that are sectors of its chunk.
fn bytes(scene: &Scene, sectors: Range<u64>) -> Range<u64> {
    let chunk = DATA_SECTOR * 512 + scene.geometry().member_offset(StripeId(STRIPE));
    chunk + sectors.start * 512..chunk + sectors.end * 512
}

/// A column's member refuses a sector, which is listed, and would take it now.
fn list(scene: &mut Scene, column: u64, at: u64) {
    let slot = map(scene).data_slot(usize::try_from(column).unwrap());
    list_on(scene, slot, column, at);
}

/// The same of any member, while a column is written.
fn list_on(scene: &mut Scene, slot: MemberSlot, column: u64, at: u64) {
    let refused = bytes(scene, at..at + 1);
    let disk = &scene.disks[slot.index()];
    disk.fault(&Fault::UnwritableRange(refused));
    scene.write(sector(column, at), 1, false).unwrap();
    scene.disks[slot.index()].fault(&Fault::Heal);
    assert!(scene.array.detail().slots[slot.index()].bad_sectors > 0);
}

/// The logs count in units of eight sectors. They list nothing, or not any more.
fn list_in_pages(scene: &Scene, in_use: bool) {
    for disk in &scene.disks {
        let mut superblock = superblock_on(disk);
        let log = superblock.member.bad_block_log.as_mut().unwrap();
        (log.shift, log.in_use) = (3, in_use);
        disk.poke(4096, &superblock.encode(512).unwrap());
        if in_use {
            list_as_bad(disk, []);
        }
    }
}

/// Sectors that a member lists.
fn bad_sectors(scene: &Scene, slot: MemberSlot) -> u64 {
    scene.array.detail().slots[slot.index()].bad_sectors
}

fn damage(scene: &Scene, slot: MemberSlot, sectors: Range<u64>) {
    let range = bytes(scene, sectors);
    let mut old =
        scene.disks[slot.index()].peek(range.start, usize::try_from(range.end - range.start).unwrap());
    for byte in &mut old {
        *byte ^= 0x5a;
    }
    scene.disks[slot.index()].poke(range.start, &old);
}

fn fail(scene: &mut Scene, slot: MemberSlot) {
    let array = scene.array.clone();
    scene.run(async move { array.fail(slot.index()).await }).unwrap();
}

/// Reads, and compares with what was written.
fn read(scene: &mut Scene, first: u64, sectors: u64) -> Result<(), IoError> {
    let (volume, ledger) = (scene.volume(), std::rc::Rc::clone(&scene.ledger));
    scene.run(async move {
        let id = ledger.borrow_mut().begin_read(first..first + sectors);
        let buffer = shard::buffer(usize::try_from(sectors).unwrap() * 512);
        let (result, buffer) = volume.read(first * 512, buffer).await;
        result?;
        ledger.borrow_mut().check_read(id, &buffer).unwrap();
        Ok(())
    })
}

fn scrub(scene: &mut Scene, action: ScrubAction) -> CheckReport {
    let array = scene.array.clone();
    scene.run(async move { array.scrub(ScrubRequest { action, from: 0, to: None }).await }).unwrap()
}

#[test]
fn a_listed_sector_is_freed_only_when_no_flush_has_lost_what_was_written_there() {
    (0..40).for_each(arrays::failures::freed_beside_a_flush_that_fails);
}

#[test]
fn parity_that_was_never_made_counts_for_a_listed_sector_and_for_no_other() {
    let mut scene = scene(Level::Raid5, 4, InitialSync::Resync);
    scene.array.pause_sync(true);
    let map = map(&scene);
    damage(&scene, map.p_slot(), 0..SECTORS);
    list(&mut scene, 0, 2);
    // The listed sector alone is made from the others.
    read(&mut scene, sector(0, 0), SECTORS).unwrap();
    read(&mut scene, sector(0, 1), 4).unwrap();
    // Beside it, in its row and in another one; parity of what is written is right.
    for (at, sectors) in [(0, 4), (ROW + 1, 3), (3 * ROW, ROW)] {
        scene.write(sector(2, at), sectors, false).unwrap();
    }
    read(&mut scene, sector(0, 0), SECTORS).unwrap();
    fail(&mut scene, map.data_slot(2));
    for (at, sectors) in [(0, 2), (3, 1), (ROW + 1, 3), (3 * ROW, ROW)] {
        read(&mut scene, sector(2, at), sectors).unwrap();
    }
}

#[test]
fn a_resync_makes_the_parity_of_a_stripe_but_for_what_is_listed() {
    let mut scene = scene(Level::Raid5, 4, InitialSync::Resync);
    scene.array.pause_sync(true);
    let map = map(&scene);
    damage(&scene, map.p_slot(), 0..SECTORS);
    list_on(&mut scene, map.p_slot(), 0, 2);
    list(&mut scene, 1, 20);
    scene.array.pause_sync(false);
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().regions_to_resync == 0).unwrap();
    fail(&mut scene, map.data_slot(2));
    for at in (0..SECTORS).filter(|at| ![2, 20].contains(at)) {
        read(&mut scene, sector(2, at), 1).unwrap();
    }
}

#[test]
fn a_check_sees_parity_beside_what_is_listed() {
    let mut scene = raid5();
    let map = map(&scene);
    list_on(&mut scene, map.p_slot(), 0, 2);
    assert_eq!(scene.check(), 0);
    damage(&scene, map.p_slot(), 3..4);
    damage(&scene, map.p_slot(), 24..25);
    assert!(scene.check() >= 2);
    scrub(&mut scene, ScrubAction::Repair);
    assert_eq!(scene.check(), 0);
    scene.read_all();
}

#[test]
fn a_chunk_that_is_wrong_is_located_beside_one_with_a_listed_sector() {
    let mut scene = raid6();
    let map = map(&scene);
    list(&mut scene, 0, 2);
    damage(&scene, map.data_slot(2), 20..21);
    let report = scrub(&mut scene, ScrubAction::Locate);
    assert_eq!((report.corrected_sectors, report.corrected[0].slot), (1, map.data_slot(2).index()));
    // In the row of the listed one there is one equation too few.
    damage(&scene, map.data_slot(2), 5..6);
    assert_eq!(scrub(&mut scene, ScrubAction::Locate).corrected_sectors, 0);
    damage(&scene, map.data_slot(2), 5..6);
    assert_eq!(scene.check(), 0);
    scene.read_all();
}

#[test]
fn rows_beside_listed_sectors_of_two_members_are_read_and_written() {
    let mut scene = raid5();
    let map = map(&scene);
    list(&mut scene, 0, 2);
    list(&mut scene, 1, 20);
    for (column, at, sectors) in [(0, 20, 4), (1, 0, 5), (2, 0, 3), (2, 10, 4), (2, 18, 8), (0, 24, 8)] {
        scene.write(sector(column, at), sectors, false).unwrap();
    }
    scene.read_all();
    assert_eq!(scene.check(), 0);
    // And where another one is missing.
    fail(&mut scene, map.data_slot(2));
    for (column, at) in [(0, 8), (1, 24), (2, 12)] {
        scene.write(sector(column, at), 4, false).unwrap();
        read(&mut scene, sector(column, at), 4).unwrap();
    }
    let refused = scene.write(sector(2, 2), 1, false);
    assert!(matches!(refused, Err(IoError::Unreadable { .. })), "{refused:?}");
}

/// Beside listed sectors a write goes to the members in parts. The first one fails here, and the others were
/// never tried.
#[test]
fn of_a_write_that_failed_in_parts_nothing_is_left_for_the_next_one() {
    let mut scene = raid5();
    let map = map(&scene);
    list(&mut scene, 0, 2);
    for slot in [map.p_slot(), map.data_slot(1)] {
        let unreadable = bytes(&scene, 0..2);
        scene.disks[slot.index()].fault(&Fault::UnreadableRange(unreadable));
    }
    let refused = scene.write(sector(2, 0), 2 * ROW, false);
    assert!(matches!(refused, Err(IoError::Unreadable { .. })), "{refused:?}");
    // Of this stripe all can be read.
    let before = scene.array.detail().statistics;
    let other = 3 * SECTORS;
    for column in 0..3 {
        scene.write(other + column * SECTORS + 3 * ROW, ROW, false).unwrap();
    }
    let now = scene.array.detail().statistics.since(&before);
    assert_eq!((now.replans, now.batches, now.member_writes), (0, 3, 6), "{now:?}");
    read(&mut scene, other, 3 * SECTORS).unwrap();
}

#[test]
fn a_read_error_costs_its_row_and_no_other() {
    let mut scene = raid5();
    let map = map(&scene);
    let (a, c) = (map.data_slot(0), map.data_slot(2));
    let before =
        scene.disks[a.index()].peek(bytes(&scene, 0..SECTORS).start, usize::try_from(CHUNK).unwrap());
    // Another row is wrong on another member, and nothing has noticed that yet.
    damage(&scene, c, 2 * ROW..3 * ROW);
    let unreadable = bytes(&scene, 3..4);
    scene.disks[a.index()].fault(&Fault::UnreadableRange(unreadable));
    read(&mut scene, sector(0, 0), SECTORS).unwrap();
    let after = scene.disks[a.index()].peek(bytes(&scene, 0..SECTORS).start, usize::try_from(CHUNK).unwrap());
    assert!(before == after, "a row that could be read was made from the others");
    assert_eq!(scene.check(), ROW);
    // Sectors of two members in one small read, each in its row.
    for (slot, at) in [(a, 5), (c, 9)] {
        let unreadable = bytes(&scene, at..at + 1);
        scene.disks[slot.index()].fault(&Fault::UnreadableRange(unreadable));
    }
    let unreadable = bytes(&scene, 10..11);
    scene.disks[a.index()].fault(&Fault::UnreadableRange(unreadable));
    read(&mut scene, sector(0, 4), 4).unwrap();
}

fn chunk_on(scene: &Scene, disk: &SimDisk) -> Vec<u8> {
    disk.peek(bytes(scene, 0..SECTORS).start, usize::try_from(CHUNK).unwrap())
}

/// A write computes parity from a member of which it can't read a sector, and parity is wrong in another row.
fn a_write_makes_only_the_row_that_it_can_not_read(_: u64) {
    let mut scene = raid5();
    let map = map(&scene);
    let disk = scene.disks[map.data_slot(2).index()].clone();
    let before = chunk_on(&scene, &disk);
    damage(&scene, map.p_slot(), 2 * ROW..3 * ROW);
    disk.fault(&Fault::UnreadableRange(bytes(&scene, 3..4)));
    scene.write(sector(0, 0), 2 * SECTORS, false).unwrap();
    assert!(chunk_on(&scene, &disk) == before, "what could be read was made from the others");
    scene.read_all();
    assert_eq!(scene.check(), 0);
}

fn replace(scene: &mut Scene, slot: MemberSlot) -> SimDisk {
    let target = scene.world.add_disk(SimDiskConfig::new("target", scene.disks[slot.index()].info().size));
    let (array, source) = (scene.array.clone(), target.source());
    scene.run(async move { array.replace(slot.index(), Some(source), Uuid([99; 16])).await }).unwrap();
    let array = scene.array.clone();
    let is_over = || array.detail().slots.iter().all(|slot| slot.replacement.is_none());
    scene.world.run_until(STEPS, |_| is_over()).unwrap();
    target
}

/// The member that is replaced has a sector that can't be read, and another member is wrong in another row.
fn a_replacement_makes_only_the_row_that_can_not_be_read(_: u64) {
    let mut scene = raid6();
    let map = map(&scene);
    let replaced = map.data_slot(0);
    let disk = scene.disks[replaced.index()].clone();
    let before = chunk_on(&scene, &disk);
    damage(&scene, map.data_slot(1), 2 * ROW..3 * ROW);
    disk.fault(&Fault::UnreadableRange(bytes(&scene, 3..4)));
    let target = replace(&mut scene, replaced);
    assert!(chunk_on(&scene, &target) == before, "a row that could be copied was made from the others");
    assert!(chunk_on(&scene, &disk) == before, "the replaced member has lost what it had");
    assert_eq!(scrub(&mut scene, ScrubAction::Locate).corrected_sectors, ROW);
    scene.read_all();
}

#[test]
fn only_rows_that_can_not_be_read_are_made_from_the_others() {
    a_write_makes_only_the_row_that_it_can_not_read(0);
    a_replacement_makes_only_the_row_that_can_not_be_read(0);
}

/// In one row two members list a sector each. One of them is replaced, and the target gets all that it had.
#[test]
fn a_replacement_copies_what_is_beside_listed_sectors() {
    let mut scene = raid5();
    let replaced = map(&scene).data_slot(0);
    list(&mut scene, 0, 2);
    list(&mut scene, 1, 5);
    scene.read_all();
    replace(&mut scene, replaced);
    assert_eq!(scene.array.detail().slots[replaced.index()].bad_sectors, 0);
    scene.read_all();
    assert_eq!(scene.check(), 0);
}

/// The same of sectors that can't be read, and that no list has yet.
#[test]
fn a_target_gets_each_sector_that_can_be_read_or_made() {
    let mut scene = raid5();
    let (replaced, other) = (map(&scene).data_slot(0), map(&scene).data_slot(1));
    for (slot, at) in [(replaced, 2), (other, 5)] {
        scene.disks[slot.index()].fault(&Fault::UnreadableRange(bytes(&scene, at..at + 1)));
    }
    replace(&mut scene, replaced);
    assert_eq!(scene.array.detail().slots[replaced.index()].bad_sectors, 0);
    scene.read_all();
    assert_eq!(scene.check(), 0);
}

/// Only the sector is listed that can't be made.
#[test]
fn a_rebuild_makes_what_is_beside_a_sector_that_can_not_be_read() {
    let mut scene = raid5();
    let (lost, other) = (map(&scene).data_slot(0), map(&scene).data_slot(1));
    fail(&mut scene, lost);
    scene.disks[other.index()].fault(&Fault::UnreadableRange(bytes(&scene, 5..6)));
    let spare = scene.disk();
    scene.add(&spare).unwrap();
    scene.settle();
    assert_eq!(scene.array.detail().slots[lost.index()].bad_sectors, 1);
    for at in (0..SECTORS).filter(|at| *at != 5) {
        read(&mut scene, sector(0, at), 1).unwrap();
    }
}

/// Q doesn't match P, as in a row that was half written when the host stopped. All that is made of the row is
/// made of the same parity: what was read doesn't change with the write of another column.
#[test]
fn a_lost_column_is_read_through_p_wherever_q_is() {
    let mut scene = scene(Level::Raid6, 5, InitialSync::Resync);
    scene.array.pause_sync(true);
    for stripe in STRIPE..STRIPE + 5 {
        let map = scene.geometry().slots(StripeId(stripe));
        let first = stripe * 3 * SECTORS;
        scene.write(first, 3 * SECTORS, false).unwrap();
        let q = &scene.disks[map.q_slot().unwrap().index()];
        let at = DATA_SECTOR * 512 + scene.geometry().member_offset(StripeId(stripe));
        q.poke(at, &vec![0x5a; usize::try_from(CHUNK).unwrap()]);
    }
    fail(&mut scene, MemberSlot(2));
    for stripe in STRIPE..STRIPE + 5 {
        let first = stripe * 3 * SECTORS;
        read(&mut scene, first, 3 * SECTORS).unwrap();
        for column in 0..3 {
            scene.write(first + column * SECTORS, ROW, false).unwrap();
            read(&mut scene, first, 3 * SECTORS).unwrap();
        }
    }
}

/// The rewriting finds nothing any more that could list the sector, and must not wait for it.
#[test]
fn a_sector_that_can_be_neither_read_nor_rewritten_is_read_though_the_array_has_stopped() {
    let mut scene = raid5();
    let (member, refused) = (map(&scene).data_slot(0).index(), bytes(&scene, 3..4));
    scene.stop();
    for fault in [Fault::UnreadableRange(refused.clone()), Fault::UnwritableRange(refused)] {
        scene.disks[member].fault(&fault);
    }
    read(&mut scene, sector(0, 0), ROW).unwrap();
}

#[test]
fn a_small_read_is_refused_only_where_its_rows_are_lost() {
    // Over two rows, in each of which another member has a sector that can't be read.
    let mut scene = raid6();
    let map = map(&scene);
    for (column, at) in [(1, 5), (2, 9)] {
        let unreadable = bytes(&scene, at..at + 1);
        scene.disks[map.data_slot(column).index()].fault(&Fault::UnreadableRange(unreadable));
    }
    fail(&mut scene, map.data_slot(0));
    read(&mut scene, sector(0, 4), ROW).unwrap();
    // In one row, of which two members list a sector each.
    let mut scene = raid6();
    list(&mut scene, 1, 2);
    list(&mut scene, 2, 5);
    fail(&mut scene, map.data_slot(0));
    read(&mut scene, sector(0, 0), ROW).unwrap();
}

#[test]
fn a_sector_that_can_not_be_read_is_asked_for_once() {
    let mut scene = raid5();
    let slot = map(&scene).data_slot(0).index();
    let unreadable = bytes(&scene, 3..4);
    scene.disks[slot].fault(&Fault::UnreadableRange(unreadable));
    read(&mut scene, sector(0, 0), ROW).unwrap();
    let statistics = scene.array.detail().slots[slot].statistics;
    assert_eq!(
        (statistics.read_errors, statistics.corrected_reads),
        (1, 1),
        "a drive may take seconds for it"
    );
}

#[test]
fn a_chunk_of_a_member_that_is_being_rebuilt_is_made_by_one_read_of_each_other_whatever_it_lists() {
    let mut scene = raid5();
    let slot = map(&scene).data_slot(1);
    scene.array.pause_sync(true);
    let spare = scene.fail_and_add(slot.index());
    let refused = bytes(&scene, 3..4);
    spare.fault(&Fault::UnwritableRange(refused));
    scene.write(sector(1, 0), ROW, false).unwrap();
    let before = scene.array.detail();
    assert_eq!((before.slots[slot.index()].state, before.missing), ("recovering", 1));
    assert!(before.slots[slot.index()].bad_sectors > 0);
    let reads = |scene: &Scene| scene.disks.iter().map(|disk| disk.counters().reads).sum::<u64>();
    let asked = reads(&scene);
    read(&mut scene, sector(1, 0), SECTORS).unwrap();
    assert_eq!(reads(&scene) - asked, 3);
    let made = scene.array.detail().statistics.reconstructed_reads - before.statistics.reconstructed_reads;
    assert_eq!(made, 1);
}

#[test]
fn a_stripe_that_was_half_zeroed_as_the_array_failed_makes_nothing_of_a_lost_member() {
    let mut scene = raid5();
    let map = map(&scene);
    fail(&mut scene, map.data_slot(2));
    let (refusing, chunk) = (map.data_slot(1).index(), bytes(&scene, 0..SECTORS));
    let log = scene.superblock(refusing).bad_block_log_sector().unwrap().0 * 512;
    for range in [chunk, log..log + 4096] {
        scene.disks[refusing].fault(&Fault::UnwritableRange(range));
    }
    let volume = scene.volume();
    let zeroed = scene.run(async move { volume.write_zeroes(sector(0, 0) * 512, 3 * CHUNK, false).await });
    assert!(zeroed.is_err());
    let volume = scene.volume();
    let lost = scene.run(async move { volume.read(sector(2, 0) * 512, shard::buffer(4096)).await });
    assert!(lost.0.is_err(), "an error, never a wrong byte: {:?}", &lost.1[..8]);
}

/// The array fails in the middle of a write of a stripe that has just been resynced, while that is being
/// flushed: its parity doesn't stand in for data any more.
#[test]
fn a_stripe_that_was_half_written_as_its_resync_ended_makes_nothing_of_a_lost_member() {
    let mut scene = scene(Level::Raid6, 5, InitialSync::Resync);
    scene.array.pause_sync(true);
    fill(&mut scene);
    let map = map(&scene);
    fail(&mut scene, map.data_slot(2));
    scene.array.pause_sync(false);
    // The last one of its region.
    let array = scene.array.clone();
    let done = || array.progress().map_or(0, |progress| progress.done);
    scene.world.run_until(STEPS, |_| done() > STRIPE).unwrap();
    let flushed = scene.disks[map.p_slot().index()].clone();
    let before = flushed.counters().flushes;
    flushed.fault(&Fault::SlowBy(20_000));
    scene.world.run_until(STEPS, |_| flushed.counters().flushes > before).unwrap();
    flushed.fault(&Fault::SlowBy(1));
    for slot in [map.data_slot(0).index(), map.data_slot(1).index()] {
        let log = scene.superblock(slot).bad_block_log_sector().unwrap().0 * 512;
        for range in [bytes(&scene, 0..SECTORS), log..log + 4096] {
            scene.disks[slot].fault(&Fault::UnwritableRange(range));
        }
    }
    assert!(scene.write(sector(0, 0), 3 * SECTORS, false).is_err());
    assert_eq!((array.detail().state, done()), ("failed", STRIPE + 1));
    scene.run(async { shard::sleep(10_000_000_000).await });
    assert!(read(&mut scene, sector(2, 0), 1).is_err());
}

#[test]
fn a_stripe_with_a_sector_that_refuses_zeroes_too_is_zeroed() {
    let mut scene = raid5();
    let map = map(&scene);
    let (refusing, at) = (map.data_slot(1).index(), bytes(&scene, 3..4));
    scene.disks[refusing].fault(&Fault::UnwritableRange(at));
    let volume = scene.volume();
    scene.run(async move { volume.write_zeroes(sector(0, 0) * 512, 3 * CHUNK, false).await }).unwrap();
    assert_eq!(scene.array.detail().missing, 0);
    for sector in (0..3 * SECTORS).step_by(8) {
        let volume = scene.volume();
        let at = (STRIPE * 3 * SECTORS + sector) * 512;
        let (result, read) = scene.run(async move { volume.read(at, shard::buffer(4096)).await });
        result.unwrap();
        assert!(read.iter().all(|&byte| byte == 0), "at {sector}");
    }
}

/// A whole chunk is written, of which a sector is refused; the member takes writes again afterwards.
fn refuse_one_of_a_chunk(scene: &mut Scene, column: u64, at: u64) -> Result<(), IoError> {
    let slot = map(scene).data_slot(usize::try_from(column).unwrap()).index();
    scene.disks[slot].fault(&Fault::UnwritableRange(bytes(scene, at..at + 1)));
    let written = scene.write(sector(column, 0), SECTORS, true);
    scene.disks[slot].fault(&Fault::Heal);
    written
}

/// Each row has one sector that a member refused, and so has what it needs.
fn two_members_refuse_a_sector_of_different_rows(_: u64) {
    let mut scene = raid5();
    for (column, at) in [(1, 20), (0, 2)] {
        refuse_one_of_a_chunk(&mut scene, column, at).unwrap();
        let slot = map(&scene).data_slot(usize::try_from(column).unwrap()).index();
        assert_eq!(scene.array.detail().slots[slot].bad_sectors, 1);
    }
    scene.read_all();
    // Also by a check, and after all was written anew.
    assert_eq!(scene.check(), 0);
    fill(&mut scene);
    scene.is_right_and_stays_so();
}

/// The lost member's chunk is there but for the row that can't be made.
fn a_chunk_is_written_of_which_one_row_is_lost(_: u64) {
    let mut scene = raid5();
    let (lost, at) = (map(&scene).data_slot(2), 20);
    fail(&mut scene, lost);
    assert!(matches!(refuse_one_of_a_chunk(&mut scene, 1, at), Err(IoError::Unreadable { .. })));
    for column in 0..3 {
        for row in (0..SECTORS).filter(|row| *row != at) {
            read(&mut scene, sector(column, row), 1).unwrap();
        }
    }
}

/// Zeroes are refused in a sector; the rest of the chunk is zero on the member.
#[test]
fn a_sector_that_refuses_zeroes_is_listed_alone() {
    let mut scene = raid5();
    let slot = map(&scene).data_slot(1).index();
    scene.disks[slot].fault(&Fault::UnwritableRange(bytes(&scene, 20..21)));
    let volume = scene.volume();
    let (at, length) = (sector(0, 0) * 512, 3 * CHUNK);
    scene.run(async move { volume.write_zeroes(at, length, false).await }).unwrap();
    scene.disks[slot].fault(&Fault::Heal);
    assert_eq!(scene.array.detail().slots[slot].bad_sectors, 1);
    assert_eq!(scene.check(), 0);
}

/// A medium that refuses everything is not asked for each of its blocks.
#[test]
fn a_medium_that_refuses_all_is_asked_a_few_times() {
    let (chunk, sectors) = (64 << 10, 128);
    let wish = wish(Level::Raid5, 4, chunk, BITMAP, InitialSync::AssumeClean);
    let mut scene = Scene::with_options(1, wish, 1, options());
    scene.write(0, 3 * sectors, false).unwrap();
    let slot = scene.geometry().slots(StripeId(0)).data_slot(1).index();
    let from = DATA_SECTOR * 512 + scene.geometry().member_offset(StripeId(0));
    scene.disks[slot].fault(&Fault::UnwritableRange(from..from + chunk));
    let before = scene.disks[slot].counters().writes;
    scene.write(sectors, sectors, false).unwrap();
    assert_eq!(scene.array.detail().slots[slot].bad_sectors, sectors);
    // With those of the log.
    assert!(scene.disks[slot].counters().writes - before < 120);
    scene.read_all();
}

/// What one member refuses of a write does not have another one's whole chunk listed.
#[test]
fn each_member_is_asked_for_the_blocks_that_it_takes() {
    let mut scene = raid5();
    let slots = [0, 1].map(|column| map(&scene).data_slot(column).index());
    for (slot, refused) in slots.into_iter().zip([0..16, 20..21]) {
        scene.disks[slot].fault(&Fault::UnwritableRange(bytes(&scene, refused)));
    }
    scene.write(sector(0, 0), 3 * SECTORS, true).unwrap();
    assert_eq!(slots.map(|slot| scene.array.detail().slots[slot].bad_sectors), [16, 1]);
    scene.read_all();
}

#[test]
fn what_is_refused_of_a_write_is_listed_and_no_row_beside_it() {
    two_members_refuse_a_sector_of_different_rows(0);
    a_chunk_is_written_of_which_one_row_is_lost(0);
}

/// The replacement of a column's member by a new disk has begun, and does not go on.
fn replacing(scene: &mut Scene, slot: usize) -> SimDisk {
    let target = plain_disks(&mut scene.world, [2048]).remove(0);
    scene.array.pause_sync(true);
    let (array, with) = (scene.array.clone(), target.source());
    scene.run(async move { array.replace(slot, Some(with), Uuid([200; 16])).await }).unwrap();
    target
}

/// It goes on, and comes to its end.
fn replace_to_the_end(scene: &mut Scene, slot: usize) {
    scene.array.pause_sync(false);
    let array = scene.array.clone();
    let is_over = |_: &_| array.detail().slots[slot].replacement.is_none();
    scene.world.run_until(STEPS, is_over).unwrap();
}

/// A target that refuses a sector does not take the place of a member that has it.
fn a_target_refuses_what_another_member_may_take_away(copied: bool) {
    let mut scene = raid5();
    let (slot, other) = (map(&scene).data_slot(1), map(&scene).data_slot(0));
    let target = replacing(&mut scene, slot.index());
    target.fault(&Fault::UnwritableRange(bytes(&scene, 3..4)));
    if !copied {
        scene.write(sector(1, 0), SECTORS, true).unwrap();
    }
    fail(&mut scene, other);
    replace_to_the_end(&mut scene, slot.index());
    scene.read_all();
}

#[test]
fn a_target_that_refuses_a_sector_leaves_the_member_that_has_it() {
    a_target_refuses_what_another_member_may_take_away(true);
    a_target_refuses_what_another_member_may_take_away(false);
}

/// Neither the member nor parity has a row, which the target lists; then a client writes it.
#[test]
fn what_is_written_anew_on_the_target_of_a_replacement_is_not_listed_any_more() {
    let mut scene = raid5();
    let (slot, other) = (map(&scene).data_slot(1).index(), map(&scene).data_slot(0).index());
    let target = replacing(&mut scene, slot);
    for disk in [slot, other] {
        scene.disks[disk].fault(&Fault::UnreadableRange(bytes(&scene, 3..4)));
    }
    scene.array.pause_sync(false);
    scene.world.run_until(STEPS, |_| superblock_on(&target).member.bad_block_log.unwrap().in_use).unwrap();
    scene.array.pause_sync(true);
    scene.write(sector(0, 0), 3 * SECTORS, false).unwrap();
    replace_to_the_end(&mut scene, slot);
    // No request waits for that.
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().slots[slot].bad_sectors == 0).unwrap();
    scene.read_all();
    assert_eq!(scene.check(), 0);
}

/// After a crash: rows may be torn, and nothing has been resynced.
fn torn() -> Scene {
    torn_of(raid5())
}

fn torn_of(mut scene: Scene) -> Scene {
    scene.write(sector(0, 0), 4, true).unwrap();
    scene.world.crash();
    scene.ledger.borrow_mut().crash();
    scene.reassemble();
    scene.array.pause_sync(true);
    scene
}

/// What is acknowledged can be read, although parity doesn't stand in for what a member hasn't taken.
fn torn_rows_are_written_without_a_member(_: u64) {
    let mut scene = torn();
    let slot = map(&scene).data_slot(1).index();
    scene.disks[slot].fault(&Fault::UnwritableRange(bytes(&scene, 3..4)));
    let written = scene.write(sector(1, 3), 1, true);
    scene.disks[slot].fault(&Fault::Heal);
    assert!(written.is_err() || read(&mut scene, sector(1, 3), 1).is_ok());

    let mut scene = torn();
    scene.disks[slot].fault(&Fault::Gone);
    for (from, sectors) in [(sector(1, 0), 8), (sector(0, 0), 3 * SECTORS), (sector(1, 0), 8)] {
        let written = scene.write(from, sectors, true);
        assert!(written.is_err() || read(&mut scene, from, sectors).is_ok());
    }
    let volume = scene.volume();
    let (at, length) = (sector(0, 0) * 512, 3 * CHUNK);
    let zeroed = scene.run(async move { volume.write_zeroes(at, length, false).await });
    let volume = scene.volume();
    let read = scene.run(async move { volume.read(sector(1, 0) * 512, shard::buffer(512)).await.0 });
    assert!(zeroed.is_err() || read.is_ok());
}

#[test]
fn no_write_of_torn_rows_is_acknowledged_that_can_not_be_read() {
    torn_rows_are_written_without_a_member(0);
}

/// As long as rows may be torn the array can do without no member, and one that is silent is waited for.
#[test]
fn a_member_that_is_silent_while_rows_may_be_torn_is_the_last_that_the_array_can_lose() {
    let mut scene = torn();
    scene.disks[1].fault(&Fault::Hang);
    scene.disks[1].plan(Trigger::AtTime(scene.world.now() + 40_000_000_000), Fault::Release);
    scene.write(sector(0, 0), 3 * SECTORS, false).unwrap();
    assert_eq!(scene.array.detail().missing, 0);
    scene.array.pause_sync(false);
    scene.read_all();
    scene.is_right_and_stays_so();
}

/// The member of column 1 is out of a torn array, and a spare waits.
fn torn_without_a_member(how: &Fault) -> (Scene, usize) {
    let mut scene = torn();
    let spare = scene.disk();
    assert_eq!(scene.add(&spare).unwrap(), Added::Spare);
    // Acknowledged, and not flushed.
    scene.write(sector(0, 0), 3 * SECTORS, false).unwrap();
    let slot = map(&scene).data_slot(1).index();
    scene.disks[slot].fault(how);
    scene.flush().unwrap();
    let detail = scene.array.detail();
    assert_eq!((detail.slots[slot].state, detail.spares.len()), ("missing", 1));
    (scene, slot)
}

/// It comes back, and everything is there, also after a loss of power.
fn torn_member_comes_back(how: &Fault) {
    let (mut scene, slot) = torn_without_a_member(how);
    let back = scene.disks[slot].clone();
    back.fault(&Fault::Return);
    assert_eq!(scene.add(&back).unwrap(), Added::Bitmap { slot });
    // It has what rows that may be torn need, before anything is rebuilt.
    let detail = scene.array.detail();
    assert_eq!(detail.slots[slot].state, "recovering");
    assert!(!detail.advice.as_ref().is_some_and(|it| it.contains("--force")), "{:?}", detail.advice);
    scene.array.pause_sync(false);
    scene.settle();
    assert_eq!(scene.array.detail().failed.len(), 0);
    scene.flush().unwrap();
    scene.crash();
    scene.reassemble();
    scene.settle();
    scene.proof();
}

/// It has its own bytes of rows that may be torn, which can't be made of the others. No spare takes its place
/// meanwhile: it could not get them.
#[test]
fn a_member_that_is_back_before_torn_rows_are_resynced_keeps_what_it_has_of_them() {
    torn_member_comes_back(&Fault::Gone);
}

/// What was acknowledged in such rows is on the member whatever becomes of its cache.
fn a_member_of_torn_rows_loses_a_flush(_: u64) {
    torn_member_comes_back(&Fault::FailFlushes(1));
}

#[test]
fn what_is_written_to_torn_rows_outlives_a_flush_that_a_member_loses() {
    a_member_of_torn_rows_loses_a_flush(0);
}

/// The same where the stripe was zeroed.
#[test]
fn zeroes_of_torn_rows_outlive_a_flush_that_a_member_loses() {
    let mut scene = torn();
    let volume = scene.volume();
    let (at, length) = (sector(0, 0) * 512, 3 * CHUNK);
    scene.run(async move { volume.write_zeroes(at, length, false).await }).unwrap();
    let slot = map(&scene).data_slot(1).index();
    scene.disks[slot].fault(&Fault::FailFlushes(1));
    scene.flush().unwrap();
    let back = scene.disks[slot].clone();
    assert_eq!(scene.add(&back).unwrap(), Added::Bitmap { slot });
    scene.array.pause_sync(false);
    scene.settle();
    scene.flush().unwrap();
    scene.crash();
    scene.reassemble();
    let volume = scene.volume();
    let read =
        scene.run(async move { volume.read(at, shard::buffer(usize::try_from(length).unwrap())).await });
    assert!(read.0.is_ok() && read.1.iter().all(|byte| *byte == 0), "zeroes were lost");
}

/// The target of a replacement loses them: the member that it was to replace has them.
#[test]
fn zeroes_of_torn_rows_are_there_although_the_target_of_a_replacement_loses_them() {
    let mut scene = torn();
    let slot = map(&scene).data_slot(1).index();
    let target = replacing(&mut scene, slot);
    target.fault(&Fault::FailFlushes(1));
    let volume = scene.volume();
    let (at, length) = (sector(0, 0) * 512, 3 * CHUNK);
    let (zeroed, read) = scene.run(async move {
        let zeroed = volume.write_zeroes(at, length, false).await;
        (zeroed, volume.read(at, shard::buffer(usize::try_from(length).unwrap())).await)
    });
    let detail = scene.array.detail();
    assert_eq!((detail.missing, &detail.slots[slot].replacement), (0, &None), "the target is out");
    assert!(zeroed.is_ok() && read.0.is_ok() && read.1.iter().all(|byte| *byte == 0), "{zeroed:?}");
}

/// The flush that forces them.
#[test]
fn zeroes_of_torn_rows_are_refused_where_the_member_that_has_them_loses_them() {
    for holds_data in [true, false] {
        let mut scene = torn();
        let map = map(&scene);
        let slot = if holds_data { map.data_slot(1) } else { map.p_slot() };
        scene.disks[slot.index()].fault(&Fault::FailFlushes(1));
        let volume = scene.volume();
        let at = sector(0, 0) * 512;
        let zeroed = scene.run(async move { volume.write_zeroes(at, 3 * CHUNK, false).await });
        assert_eq!(scene.array.detail().slots[slot.index()].state, "missing");
        assert_eq!(zeroed.is_err(), holds_data, "{zeroed:?}");
    }
}

#[test]
fn two_members_of_level_6_are_back_before_torn_rows_are_resynced() {
    let mut scene = torn_of(raid6());
    let slots = [map(&scene).data_slot(1).index(), map(&scene).p_slot().index()];
    for slot in slots {
        scene.disks[slot].fault(&Fault::Gone);
    }
    scene.write(0, 3 * SECTORS, false).unwrap();
    assert_eq!(scene.array.detail().missing, 2);
    for slot in slots {
        let back = scene.disks[slot].clone();
        back.fault(&Fault::Return);
        assert_eq!(scene.add(&back).unwrap(), Added::Bitmap { slot });
    }
    scene.array.pause_sync(false);
    scene.settle();
    scene.proof();
}

/// `add` can't help while rows are torn, and the advice says what does.
#[test]
fn what_can_be_done_without_a_member_while_rows_are_torn_is_told() {
    let (scene, _) = torn_without_a_member(&Fault::Gone);
    let advice = scene.array.detail().advice.unwrap();
    assert!(advice.contains("--force") && !advice.contains("its content is rebuilt"), "{advice}");
}

/// A member is lost for the array, and could be used again.
fn goes(scene: &mut Scene, disk: &SimDisk) {
    disk.fault(&Fault::Gone);
    scene.write(0, 3 * SECTORS, false).unwrap();
    disk.fault(&Fault::Return);
}

/// Rows are torn, and of the members of slots 1 and 2, which were away both, the first is back and whole.
fn torn_without_the_second() -> Scene {
    let mut scene = torn_of(raid6());
    let [first, second] = [1, 2].map(|slot| scene.disks[slot].clone());
    goes(&mut scene, &first);
    goes(&mut scene, &second);
    scene.array.pause_sync(false);
    assert_eq!(scene.add(&first).unwrap(), Added::Bitmap { slot: 1 });
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().slots[1].state != "recovering").unwrap();
    scene
}

/// Two members are away from slots 2 and 3. The second one comes back, and then the first.
fn both_come_back(mut scene: Scene) {
    let [second, third] = [2, 3].map(|slot| scene.disks[slot].clone());
    assert_eq!(scene.add(&third).unwrap(), Added::Bitmap { slot: 3 });
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().slots[3].state != "recovering").unwrap();
    assert_eq!(scene.add(&second).unwrap(), Added::Bitmap { slot: 2 });
    scene.settle();
    scene.proof();
}

/// As a spare it would be emptied.
#[test]
fn a_member_that_can_not_come_back_to_torn_rows_yet_does_when_another_one_has() {
    let mut scene = torn_without_the_second();
    let [second, third] = [2, 3].map(|slot| scene.disks[slot].clone());
    goes(&mut scene, &third);
    assert!(matches!(scene.add(&second), Err(CommandError::HoldsTorn(_))));
    both_come_back(scene);
}

/// It could have come back when it was looked at. Then its server is asked, and the other one is lost.
#[test]
fn a_member_that_can_not_come_back_to_torn_rows_any_more_does_not_become_a_spare() {
    let mut scene = torn_without_the_second();
    let [second, third] = [2, 3].map(|slot| scene.disks[slot].clone());
    let world = &mut scene.world;
    let (script, servers) =
        arrays::servers::serve(std::slice::from_ref(&second), (64, 1 << 20), |label| world.rng(label));
    script.delay_ns.set(4_000_000_000);
    let (array, source) = (scene.array.clone(), ServerSource::of(&servers[0]));
    let answer = Rc::new(RefCell::new(None));
    let told = Rc::clone(&answer);
    scene.world.spawn(0, "add", async move {
        let added = array.add(source, Uuid([91; 16])).await;
        told.replace(Some(added));
    });
    scene.world.run_until(STEPS, |_| servers[0].count("epoch") > 0).unwrap();
    goes(&mut scene, &third);
    assert!(answer.borrow().is_none(), "that was too late");
    scene.world.run_until(STEPS, |_| answer.borrow().is_some()).unwrap();
    let added = answer.take().unwrap();
    assert!(matches!(added, Err(CommandError::HoldsTorn(_))), "{added:?}");
    assert_eq!(superblock_on(&second).own_role(), Role::Slot(pinstripe_md::units::MemberSlot(2)));
    both_come_back(scene);
}

/// The device that was to replace it has its slot, and can't be rebuilt without it.
#[test]
fn a_member_that_goes_as_it_is_replaced_is_not_emptied_while_torn_rows_lack_it() {
    let mut scene = torn();
    let slot = map(&scene).data_slot(1).index();
    let (back, target) = (scene.disks[slot].clone(), scene.disk());
    scene.replace(slot, Some(&target)).unwrap();
    back.fault(&Fault::Gone);
    scene.flush().unwrap();
    back.fault(&Fault::Return);
    let detail = scene.array.detail();
    assert_eq!(detail.slots[slot].state, "recovering");
    assert!(detail.advice.as_ref().is_some_and(|advice| advice.contains("--force")), "{:?}", detail.advice);
    let before = back.peek(0, 2048 * 512);
    assert!(matches!(scene.add(&back), Err(CommandError::HoldsTorn(_))));
    let other = map(&scene).data_slot(0).index();
    assert!(matches!(scene.replace(other, Some(&back)), Err(CommandError::HoldsTorn(_))));
    assert!(back.peek(0, 2048 * 512) == before);
    scene.array.pause_sync(false);
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().slots[slot].state == "missing").unwrap();
    assert_eq!(scene.add(&target).unwrap(), Added::Spare, "it has nothing of them");
    assert_eq!(scene.add(&back).unwrap(), Added::Bitmap { slot });
    scene.settle();
    scene.proof();
}

/// Another one has had all of its slot since.
#[test]
fn a_member_that_was_replaced_before_a_crash_tore_rows_has_nothing_that_they_lack() {
    let mut scene = raid5();
    let slot = map(&scene).data_slot(1).index();
    let (former, member) = (scene.disks[slot].clone(), scene.disk());
    scene.replace(slot, Some(&member)).unwrap();
    scene.settle();
    let mut scene = torn_of(scene);
    goes(&mut scene, &member);
    scene.flush().unwrap();
    assert_eq!(scene.array.detail().slots[slot].state, "missing");
    assert_eq!(scene.add(&former).unwrap(), Added::Spare);
    assert_eq!(scene.add(&member).unwrap(), Added::Bitmap { slot });
    scene.array.pause_sync(false);
    scene.settle();
    scene.proof();
}

/// Without a bitmap it can't come back, and as a spare it would be emptied.
#[test]
fn a_member_that_torn_rows_lack_and_that_can_not_come_back_is_left_as_it_is() {
    let wish = wish(Level::Raid5, 4, CHUNK, NewBitmap::None, InitialSync::AssumeClean);
    let mut scene = torn_of(Scene::with_options(1, wish, 1, options()));
    scene.disks[1].fault(&Fault::Gone);
    scene.flush().unwrap();
    let advice = scene.array.detail().advice.unwrap();
    assert!(advice.contains("--force") && !advice.contains("pinstripe add"), "{advice}");
    let back = scene.disks[1].clone();
    back.fault(&Fault::Return);
    let before = back.peek(0, 2048 * 512);
    assert!(matches!(scene.add(&back), Err(CommandError::HoldsTorn(name)) if name == "disk1"));
    assert!(back.peek(0, 2048 * 512) == before);
}

/// Nothing forced them to the medium, and the member's cache was lost.
#[test]
fn writes_of_torn_rows_from_before_there_was_a_bitmap_are_not_believed_of_a_member_that_comes_back() {
    let wish = wish(Level::Raid5, 4, CHUNK, NewBitmap::None, InitialSync::AssumeClean);
    let mut scene = torn_of(Scene::with_options(1, wish, 1, options()));
    scene.write(sector(1, 0), SECTORS, false).unwrap();
    let array = scene.array.clone();
    scene.run(async move { array.add_bitmap(64 << 10).await }).unwrap();
    let slot = map(&scene).data_slot(1).index();
    scene.disks[slot].fault(&Fault::FailFlushes(1));
    scene.flush().unwrap();
    let back = scene.disks[slot].clone();
    assert!(matches!(scene.add(&back), Err(CommandError::HoldsTorn(_))));
}

/// It is made of data that is there.
#[test]
fn a_spare_takes_the_place_of_a_member_that_has_parity_only_though_rows_are_torn() {
    let mut scene = torn_of(scene(Level::Raid4, 4, InitialSync::AssumeClean));
    let spare = scene.disk();
    assert_eq!(scene.add(&spare).unwrap(), Added::Spare);
    scene.disks[3].fault(&Fault::Gone);
    scene.flush().unwrap();
    scene.array.pause_sync(false);
    scene.settle();
    scene.proof();
}

/// The target of a replacement is left alone with torn rows of which it has none: it is not the one that
/// could not be read.
#[test]
fn a_device_that_can_not_be_rebuilt_is_not_called_broken() {
    let mut scene = torn();
    let slot = map(&scene).data_slot(1).index();
    let target = scene.disk();
    scene.replace(slot, Some(&target)).unwrap();
    scene.disks[slot].fault(&Fault::Gone);
    scene.flush().unwrap();
    scene.array.pause_sync(false);
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().failed.len() == 2).unwrap();
    let failed = array.detail().failed;
    let error = &failed.iter().find(|failed| failed.device != format!("disk{slot}")).unwrap().error;
    assert!(error.to_string().contains("could not be rebuilt"), "{error}");
}

/// A resync of torn rows has met a sector of column 0 that can't be read.
fn torn_with_an_unreadable_sector() -> (Scene, usize) {
    with_an_unreadable_sector(torn())
}

fn with_an_unreadable_sector(mut scene: Scene) -> (Scene, usize) {
    let slot = map(&scene).data_slot(0).index();
    let unreadable = bytes(&scene, 3..4);
    scene.disks[slot].fault(&Fault::UnreadableRange(unreadable));
    scene.array.pause_sync(false);
    let array = scene.array.clone();
    let is_vain = || array.detail().regions_to_resync == 1 && array.progress().is_none();
    scene.world.run_until(STEPS, |_| is_vain()).unwrap();
    (scene, slot)
}

#[test]
fn a_member_of_which_a_torn_row_can_not_be_read_is_replaced() {
    let (mut scene, slot) = torn_with_an_unreadable_sector();
    replace(&mut scene, MemberSlot::at(slot));
    assert_eq!(scene.array.detail().slots[slot].device.as_deref(), Some("target"));
    for at in 0..SECTORS {
        assert_eq!(read(&mut scene, sector(0, at), 1).is_ok(), at != 3, "{at}");
    }
}

/// What can't be read of a torn row is lost, and that is put down, for its own sector alone: all else is as
/// safe as before.
#[test]
fn a_resync_gives_up_the_sectors_of_torn_rows_that_stay_unreadable_and_no_others() {
    let (mut scene, slot) = torn_with_an_unreadable_sector();
    scene.settle();
    scene.disks[slot].fault(&Fault::Heal);
    let lost = |scene: &mut Scene, column: u64| {
        (0..SECTORS).filter(|at| read(scene, sector(column, *at), 1).is_err()).collect::<Vec<_>>()
    };
    assert_eq!(lost(&mut scene, 0), [3]);
    scene.stop();
    scene.reassemble();
    assert_eq!(scene.array.detail().regions_to_resync, 0);
    let other = map(&scene).data_slot(2);
    fail(&mut scene, other);
    assert_eq!([0, 1, 2].map(|column| lost(&mut scene, column)), [vec![3], vec![], vec![3]]);

    let (mut scene, slot) = torn_with_an_unreadable_sector();
    scene.settle();
    scene.disks[slot].fault(&Fault::Heal);
    scene.write(sector(0, 3), 1, false).unwrap();
    scene.read_all();
    assert_eq!(scene.check(), 0);
    assert!(scene.array.detail().slots.iter().all(|slot| slot.bad_sectors == 0));
}

/// Without a bitmap a region that stays torn would make all others torn at the next start.
#[test]
fn without_a_bitmap_too_a_resync_of_torn_rows_ends_beside_an_unreadable_sector() {
    let wish = wish(Level::Raid5, 4, CHUNK, NewBitmap::None, InitialSync::AssumeClean);
    let mut filled = Scene::with_options(1, wish, 1, options());
    fill(&mut filled);
    let mut scene = torn_of(filled);
    let slot = map(&scene).data_slot(0).index();
    let unreadable = bytes(&scene, 3..4);
    scene.disks[slot].fault(&Fault::UnreadableRange(unreadable));
    scene.array.pause_sync(false);
    scene.settle();
    scene.stop();
    scene.reassemble();
    assert_eq!(scene.array.detail().regions_to_resync, 0);
}

/// Power failed in the middle of a write of an array of level 6 without a member: Q is older than P. By the
/// time that another one is lost, they agree.
#[test]
fn an_array_of_level_6_is_resynced_without_a_member() {
    let mut scene = raid6();
    let map = map(&scene);
    fail(&mut scene, map.data_slot(0));
    scene.write(sector(1, 0), 4, true).unwrap();
    scene.crash();
    damage(&scene, map.q_slot().unwrap(), 0..ROW);
    scene.options.force = true;
    scene.reassemble();
    scene.options.force = false;
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().regions_to_resync == 0).unwrap();
    scene.stop();
    scene.reassemble();
    fail(&mut scene, map.data_slot(1));
    scene.read_all();
}

/// Two writes of a stripe at once: one of a row that can't be written, and one of another row.
#[test]
fn a_row_that_can_not_be_written_fails_no_write_that_has_joined_its_own() {
    for order in [[0, 1], [1, 0]] {
        let mut scene = raid5();
        let map = map(&scene);
        fail(&mut scene, map.data_slot(2));
        let unreadable = bytes(&scene, 0..1);
        scene.disks[map.data_slot(0).index()].fault(&Fault::UnreadableRange(unreadable));
        let answers = Rc::new(RefCell::new([None, None]));
        let there = Rc::clone(&answers);
        let done = spawn(&mut scene, 2, move |number, volume, ledger, _| {
            let there = Rc::clone(&there);
            async move {
                let which = order[usize::try_from(number).unwrap()];
                let at = [sector(2, 0), sector(1, 3 * ROW)][which];
                let answer = write(&volume, &ledger, at, 1, false).await;
                there.borrow_mut()[which] = Some(answer.is_ok());
            }
        });
        scene.world.run_until(STEPS, |_| *done.borrow() == 2).unwrap();
        assert_eq!(*answers.borrow(), [Some(false), Some(true)], "{order:?}");
        assert!(scene.array.detail().statistics.joins > 0, "they did not meet");
    }
}

/// Parity that made a chunk can't say whether it is right.
#[test]
fn a_check_without_a_member_has_compared_only_what_a_second_parity_tells() {
    let mut scene = raid5();
    let map = map(&scene);
    damage(&scene, map.p_slot(), 0..1);
    fail(&mut scene, map.data_slot(2));
    let report = scrub(&mut scene, ScrubAction::Check);
    assert_eq!((report.mismatched_sectors, report.unreadable_stripes), (0, 0));
    assert_eq!(report.uncompared_stripes, report.stripes);

    // It is known while it is under way, also when the member is back.
    let (array, scrubbing) = (scene.array.clone(), scene.array.clone());
    scene.world.spawn(0, "scrub", async move {
        let check = ScrubRequest { action: ScrubAction::Check, from: 0, to: None };
        scrubbing.scrub(check).await.unwrap();
    });
    let checked = || array.detail().sync.filter(|sync| sync.action == SyncAction::Check);
    let of_done = || checked().map(|sync| (sync.done, sync.uncompared_stripes));
    scene.world.run_until(STEPS, |_| of_done().is_some_and(|(done, _)| done > 0)).unwrap();
    assert!(of_done().is_some_and(|(done, uncompared)| done == uncompared), "{:?}", of_done());
    let (own, source) = (scene.array.clone(), scene.disks[map.data_slot(2).index()].source());
    scene.run(async move { own.add(source, Uuid([98; 16])).await }).unwrap();
    scene.world.run_until(STEPS, |_| array.detail().missing == 0 && of_done().is_some()).unwrap();
    assert!(of_done().is_some_and(|(_, uncompared)| uncompared > 0), "{:?}", of_done());
    drop(array);

    let mut scene = raid6();
    fail(&mut scene, map.data_slot(2));
    assert_eq!(scrub(&mut scene, ScrubAction::Check).uncompared_stripes, 0);
}

/// A row that two members had listed is readable when it is said to be zeroed.
#[test]
fn zeroes_are_acknowledged_when_they_can_be_read() {
    let mut scene = raid5();
    list(&mut scene, 0, 3);
    let slot = map(&scene).data_slot(1);
    let refused = bytes(&scene, 3..4);
    scene.disks[slot.index()].fault(&Fault::UnwritableRange(refused));
    scene.write(sector(1, 3), 1, false).unwrap_err();
    scene.disks[slot.index()].fault(&Fault::Heal);
    let volume = scene.volume();
    let (zeroed, read) = scene.run(async move {
        let zeroed = volume.write_zeroes(sector(0, 0) * 512, 3 * CHUNK, false).await;
        (zeroed, volume.read(sector(0, 3) * 512, shard::buffer(512)).await.0)
    });
    assert!(zeroed.is_ok() && read.is_ok(), "{zeroed:?} {read:?}");
}

/// What can be read beside it would go with it.
#[test]
fn a_resync_gives_nothing_up_where_a_list_can_not_name_it_alone() {
    let mut scene = raid5();
    scene.write(sector(0, 0), 4, true).unwrap();
    scene.world.crash();
    scene.ledger.borrow_mut().crash();
    list_in_pages(&scene, true);
    let slot = map(&scene).data_slot(0).index();
    let unreadable = bytes(&scene, 3..4);
    scene.disks[slot].fault(&Fault::UnreadableRange(unreadable));
    scene.reassemble();
    scene.run(async { shard::sleep(1_000_000_000_000).await });
    let read: Vec<u64> = (0..SECTORS).filter(|at| read(&mut scene, sector(0, *at), 1).is_ok()).collect();
    assert!(read.into_iter().eq((0..SECTORS).filter(|at| *at != 3)));
    assert_eq!(scene.array.detail().regions_to_resync, 1);
}

/// Stripes are resynced side by side. What one of them lists fills the list for the other.
#[test]
fn a_member_stays_whose_list_has_no_room_for_all_that_a_resync_gives_up() {
    let mut scene = raid5();
    scene.write(sector(0, 0), 4, true).unwrap();
    scene.world.crash();
    scene.ledger.borrow_mut().crash();
    let geometry = scene.geometry();
    let stripes = [STRIPE - 1, STRIPE].map(StripeId);
    let has_parity = |slot| stripes.iter().any(|stripe| geometry.slots(*stripe).p_slot().index() == slot);
    let slot = (0..4).find(|slot| !has_parity(*slot)).unwrap();
    list_as_bad(&scene.disks[slot], (0..511).map(|number| DATA_SECTOR + 2 * number));
    for stripe in stripes {
        let at = DATA_SECTOR * 512 + geometry.member_offset(stripe) + 3 * 512;
        scene.disks[slot].fault(&Fault::UnreadableRange(at..at + 512));
    }
    scene.reassemble();
    scene.run(async { shard::sleep(1_000_000_000_000).await });
    let detail = scene.array.detail();
    assert_eq!(detail.slots[slot].bad_sectors, 512, "one of two is given up");
    assert_eq!((detail.missing, detail.regions_to_resync), (0, 1));
}

/// A list that is full can't be cut in two. What stays listed, and can't be made of the others, is not
/// acknowledged.
#[test]
fn a_write_that_a_full_list_keeps_from_being_read_is_not_acknowledged() {
    let mut scene = raid5();
    scene.stop();
    let (full, other) = (map(&scene).data_slot(0), map(&scene).data_slot(1));
    let here = bytes(&scene, 2..5).start / 512;
    let elsewhere = (0..511).map(|number| DATA_SECTOR + 2 * number);
    list_as_bad(&scene.disks[full.index()], elsewhere.chain(here..here + 3));
    scene.reassemble();
    fail(&mut scene, other);
    // All columns of the middle row, together: its entry would become two.
    let answers = Rc::new(RefCell::new(Vec::new()));
    for column in 0..3 {
        let (volume, answers) = (scene.volume(), Rc::clone(&answers));
        scene.world.spawn(0, "write", async move {
            let data = shard::zeroed(512).freeze();
            let answer = volume.write(sector(column, 3) * 512, data, false).await;
            answers.borrow_mut().push((column, answer.is_ok()));
        });
    }
    scene.world.run_until(STEPS, |_| answers.borrow().len() == 3).unwrap();
    assert_eq!(scene.array.detail().statistics.joins, 2, "or the first alone is an error");
    // The last column has a member that takes it, when it is written once more by itself.
    answers.borrow_mut().sort_unstable();
    assert_eq!(*answers.borrow(), [(0, false), (1, false), (2, true)]);
    for (column, is_read) in [(0, false), (1, false), (2, true)] {
        let volume = scene.volume();
        let at = sector(column, 3) * 512;
        let read = scene.run(async move { volume.read(at, shard::buffer(512)).await.0 });
        assert_eq!(read.is_ok(), is_read, "the list is full: {column}: {read:?}");
    }
}

/// A member that loses its cache comes back by bitmap, and no bit tells of what was corrected on it.
#[test]
fn a_correction_is_on_the_medium_whatever_becomes_of_the_member() {
    // Of what a cache has lost, a part may be on the medium.
    for seed in 0..16 {
        let action = [ScrubAction::Repair, ScrubAction::Locate][usize::from(seed % 2 == 1)];
        let wish = wish(Level::Raid6, 5, CHUNK, BITMAP, InitialSync::AssumeClean);
        let mut scene = Scene::with_options(seed, wish, 1, options());
        fill(&mut scene);
        let (array, slot) = (scene.array.clone(), map(&scene).p_slot());
        scene.world.run_until(STEPS, |_| array.detail().bitmap.unwrap().bits_set == 0).unwrap();
        damage(&scene, slot, 3..4);
        let (scrubbing, report) = (scene.array.clone(), Rc::new(RefCell::new(None)));
        let told = Rc::clone(&report);
        scene.world.spawn(0, "scrub", async move {
            let request = ScrubRequest { action, from: 0, to: None };
            *told.borrow_mut() = Some(scrubbing.scrub(request).await);
        });
        let disk = scene.disks[slot.index()].clone();
        let is_corrected = || array.detail().sync.is_some_and(|sync| sync.mismatched_sectors > 0);
        scene.world.run_until(STEPS, |_| is_corrected()).unwrap();
        disk.fault(&Fault::FailFlushes(1));
        scene.flush().unwrap();
        assert_eq!(scene.array.detail().missing, 1, "what its cache had is lost");
        scene.world.run_until(STEPS, |_| report.borrow().is_some()).unwrap();
        let found = report.borrow_mut().take().unwrap().unwrap();
        assert!(found.mismatched_sectors > 0, "{found:?}");
        disk.fault(&Fault::Heal);
        scene.run(async { shard::sleep(1_000_000_000).await });
        let (own, source) = (scene.array.clone(), disk.source());
        let added = scene.run(async move { own.add(source, Uuid([98; 16])).await }).unwrap();
        assert_eq!(added, Added::Bitmap { slot: slot.index() });
        scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();
        drop(array);
        scene.world.crash();
        scene.ledger.borrow_mut().crash();
        scene.reassemble();
        scene.is_right_and_stays_so();
    }
}

/// A source fails as the last flush of a rebuild is due.
#[test]
fn a_member_that_is_whole_counts_before_another_one_is_lost() {
    for seed in 0..8 {
        let wish = wish(Level::Raid5, 4, CHUNK, BITMAP, InitialSync::AssumeClean);
        let mut scene = Scene::with_options(seed, wish, 1, options());
        fill(&mut scene);
        let spare = scene.fail_and_add(1);
        let (array, whole) = (scene.array.clone(), scene.geometry().member_bytes());
        scene.world.run_until(STEPS, |_| spare.counters().bytes_written >= whole).unwrap();
        scene.disks[2].fault(&Fault::FailFlushes(1));
        let is_told = || array.detail().slots.iter().all(|slot| slot.state != "recovering");
        scene.world.run_until(STEPS, |_| is_told()).unwrap();
        let detail = array.detail();
        assert!(detail.missing <= 1 && detail.state != "failed", "{}", detail.state);
        scene.read_all();
    }
}

/// As another tool may leave it. MD doesn't heed that unit either.
#[test]
fn what_is_listed_first_is_listed_alone_whatever_unit_the_superblock_has() {
    let mut scene = raid5();
    scene.stop();
    list_in_pages(&scene, false);
    scene.reassemble();
    list(&mut scene, 1, 3);
    scene.is_right_and_stays_so();
    let slot = map(&scene).data_slot(1);
    assert_eq!(bad_sectors(&scene, slot), 1);
}

/// Nothing stands in for the other sectors of its unit.
#[test]
fn a_refused_sector_is_not_listed_with_others_that_would_be_lost() {
    for (is_torn, at) in [false, true].into_iter().flat_map(|is_torn| [0, 3, 7].map(|at| (is_torn, at))) {
        let mut scene = raid5();
        if is_torn {
            scene.write(sector(0, 0), 4, true).unwrap();
            scene.world.crash();
            scene.ledger.borrow_mut().crash();
        } else {
            scene.stop();
        }
        list_in_pages(&scene, true);
        scene.reassemble();
        scene.array.pause_sync(true);
        let (other, slot) = (map(&scene).data_slot(0), map(&scene).data_slot(1));
        if !is_torn {
            fail(&mut scene, other);
        }
        let disk = scene.disks[slot.index()].clone();
        disk.fault(&Fault::UnwritableRange(bytes(&scene, at..at + 1)));
        let written = scene.write(sector(1, at), 1, false);
        assert!(written.is_err(), "{is_torn} {at}");
        disk.fault(&Fault::Heal);
        assert_eq!(bad_sectors(&scene, slot), 0, "{is_torn} {at}");
        if is_torn {
            assert_eq!(scene.add(&disk).unwrap(), Added::Bitmap { slot: slot.index() });
            scene.array.pause_sync(false);
            scene.settle();
            scene.proof();
        } else {
            // The array can't do without the member, and so it has failed.
            let others = (0..SECTORS).filter(|other| *other != at);
            others.for_each(|other| read(&mut scene, sector(1, other), 1).unwrap());
        }
    }
}

/// Both listed with all of that unit, each would take from the other what stands in for its sectors.
#[test]
fn two_members_that_refuse_sectors_of_one_unit_lose_nothing_beside_them() {
    for counts_in_pages in [false, true] {
        let mut scene = raid5();
        scene.stop();
        list_in_pages(&scene, counts_in_pages);
        scene.reassemble();
        let slots = [map(&scene).data_slot(0), map(&scene).data_slot(1)];
        for (slot, at) in slots.into_iter().zip([3, 5]) {
            let refused = bytes(&scene, at..at + 1);
            scene.disks[slot.index()].fault(&Fault::UnwritableRange(refused));
        }
        let written = scene.write(sector(0, 0), 3 * SECTORS, false);
        // Where neither can list its sector, the array can't do without either.
        assert_eq!(written.is_err(), counts_in_pages, "{written:?}");
        scene.disks.iter().for_each(|disk| disk.fault(&Fault::Heal));
        scene.crash();
        scene.reassemble();
        scene.settle();
        for (column, at) in (0..3).flat_map(|column| (0..SECTORS).map(move |at| (column, at))) {
            let is_read = read(&mut scene, sector(column, at), 1).is_ok();
            // A listed sector of rows that may be torn is an error.
            assert!(is_read || !counts_in_pages && [(0, 3), (1, 5)].contains(&(column, at)), "{column} {at}");
        }
    }
}

/// Another member has listed its sector of the row, and takes it now, in the last of several parts.
#[test]
fn a_row_counts_as_lost_only_when_all_is_off_the_lists_that_the_write_has_made_good() {
    let mut scene = raid5();
    list(&mut scene, 1, 28);
    let slots = [map(&scene).data_slot(0), map(&scene).data_slot(1)];
    for (slot, at) in slots.into_iter().zip([28, 20]) {
        let refused = bytes(&scene, at..at + 1);
        scene.disks[slot.index()].fault(&Fault::UnwritableRange(refused));
    }
    scene.write(sector(0, 0), 3 * SECTORS, false).unwrap();
    scene.disks.iter().for_each(|disk| disk.fault(&Fault::Heal));
    assert_eq!(slots.map(|slot| bad_sectors(&scene, slot)), [1, 1]);
    scene.read_all();
    assert_eq!(scene.check(), 0);
}

/// A forced write of which a sector is refused, and power fails as soon as it is acknowledged: what the
/// member takes in parts is on its medium.
#[test]
fn the_parts_of_a_forced_write_are_forced() {
    // Of what a cache has lost, a part may be on the medium.
    for seed in 0..16 {
        let wish = wish(Level::Raid5, 4, CHUNK, BITMAP, InitialSync::AssumeClean);
        let mut scene = Scene::with_options(seed, wish, 1, options());
        fill(&mut scene);
        refuse_one_of_a_chunk(&mut scene, 1, 20).unwrap();
        scene.crash();
        scene.reassemble();
        scene.array.pause_sync(true);
        (0..SECTORS).filter(|at| *at != 20).for_each(|at| read(&mut scene, sector(1, at), 1).unwrap());
    }
}

/// No power of two, so that the parts are not of one size.
#[test]
fn a_write_of_three_blocks_is_cut_between_blocks() {
    let mut scene = raid5();
    let slot = map(&scene).data_slot(1);
    scene.disks[slot.index()].fault(&Fault::UnwritableRange(bytes(&scene, 2..3)));
    scene.write(sector(1, 0), 3, false).unwrap();
    scene.disks[slot.index()].fault(&Fault::Heal);
    assert_eq!((scene.array.detail().missing, bad_sectors(&scene, slot)), (0, 1));
    scene.read_all();
}

/// The member that is replaced has all of them, and its target goes.
#[test]
fn a_write_of_torn_rows_that_a_target_refuses_is_acknowledged() {
    let mut scene = torn();
    let slot = map(&scene).data_slot(1).index();
    let target = replacing(&mut scene, slot);
    target.fault(&Fault::UnwritableRange(bytes(&scene, 3..4)));
    scene.write(sector(1, 0), SECTORS, true).unwrap();
    let detail = scene.array.detail();
    assert_eq!((detail.missing, &detail.slots[slot].replacement), (0, &None), "the target is out");
    read(&mut scene, sector(1, 0), SECTORS).unwrap();
}

/// As long as rows may be torn the array can do without no member, and is told that one is gone before a
/// request has found that out.
#[test]
fn a_member_that_torn_rows_need_is_not_dropped_because_it_is_told_to_be_gone() {
    let mut scene = torn();
    scene.disks[1].fault(&Fault::Gone);
    let array = scene.array.clone();
    let dropped = scene.run(async move { array.drop_gone("disk1").await });
    assert_eq!((dropped, scene.array.detail().missing), (Ok(false), 0));
    scene.disks[1].fault(&Fault::Return);
    scene.array.pause_sync(false);
    scene.settle();
    scene.proof();
}

/// Each sector of a bad track, for which a drive may take seconds, is asked for a few times.
#[test]
fn a_rebuild_asks_a_few_times_for_a_sector_that_can_not_be_read() {
    let mut scene = raid5();
    let (lost, other) = (map(&scene).data_slot(0), map(&scene).data_slot(1).index());
    fail(&mut scene, lost);
    // Of two stripes, which are rebuilt side by side.
    scene.disks[other].fault(&Fault::UnreadableRange(bytes(&scene, 0..2 * SECTORS)));
    let spare = scene.disk();
    scene.add(&spare).unwrap();
    scene.settle();
    assert_eq!(bad_sectors(&scene, lost), 2 * SECTORS);
    let errors = scene.array.detail().slots[other].statistics.read_errors;
    assert!(errors < 6 * SECTORS, "{errors} errors of {} sectors", 2 * SECTORS);
}

/// And no further spare is tried: it would end in the same way.
#[test]
fn a_target_without_a_list_does_not_become_whole_without_a_sector() {
    let mut scene = without_lists(raid5());
    let (lost, other) = (map(&scene).data_slot(0), map(&scene).data_slot(1).index());
    scene.array.pause_sync(true);
    fail(&mut scene, lost);
    scene.disks[other].fault(&Fault::UnreadableRange(bytes(&scene, 5..6)));
    takes_one_spare_of_three(&mut scene, lost);
    for at in 0..SECTORS {
        assert_eq!(read(&mut scene, sector(0, at), 1).is_ok(), at != 5, "{at}");
    }
}

/// Three spares wait for a slot. The first that takes it is dropped, for nothing that it has done, and the
/// others go on waiting.
fn takes_one_spare_of_three(scene: &mut Scene, slot: MemberSlot) {
    for _ in 0..3 {
        let spare = scene.disk();
        scene.add(&spare).unwrap();
    }
    scene.array.pause_sync(false);
    scene.run(async { shard::sleep(1_000_000_000_000).await });
    let detail = scene.array.detail();
    assert_eq!(
        (detail.slots[slot.index()].state, detail.failed.len(), detail.spares.len()),
        ("missing", 2, 2)
    );
    let former = format!("disk{}", slot.index());
    let dropped = detail.failed.iter().find(|failed| failed.device != former).unwrap();
    assert!(dropped.error.to_string().contains("could not be rebuilt"), "{}", dropped.error);
}

/// No device has a list, in which what can't be made could be told from data.
fn without_lists(mut scene: Scene) -> Scene {
    scene.stop();
    for disk in &scene.disks {
        let mut superblock = superblock_on(disk);
        superblock.member.bad_block_log = None;
        disk.poke(4096, &superblock.encode(512).unwrap());
    }
    scene.reassemble();
    scene
}

/// Its target is to go: what else of a bad track it lacks, and what it could get behind that, need not be
/// known.
#[test]
fn a_rebuild_that_can_not_list_a_sector_asks_for_no_other() {
    let wish = wish(Level::Raid5, 4, CHUNK, BITMAP, InitialSync::AssumeClean);
    let one_at_a_time = ArrayOptions { maintenance_depth: 1, ..options() };
    let mut scene = without_lists(Scene::with_options(1, wish, 1, one_at_a_time));
    let (lost, other) = (map(&scene).data_slot(0), map(&scene).data_slot(1).index());
    scene.array.pause_sync(true);
    fail(&mut scene, lost);
    scene.disks[other].fault(&Fault::UnreadableRange(bytes(&scene, 0..SECTORS)));
    let spare = scene.disk();
    scene.add(&spare).unwrap();
    let before = scene.array.detail().slots[other].statistics;
    scene.array.pause_sync(false);
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().failed.len() == 2).unwrap();
    let now = array.detail().slots[other].statistics;
    // The chunk, a row of it, a block of that.
    assert_eq!(now.read_errors - before.read_errors, 3);
    assert_eq!(now.reads - before.reads, STRIPE + 3, "stripes behind it were read");
}

/// Its last source goes, and the array with it.
#[test]
fn a_target_is_not_called_one_that_can_not_be_rebuilt_where_a_source_has_failed() {
    for seed in 0..8 {
        let wish = wish(Level::Raid5, 4, CHUNK, BITMAP, InitialSync::AssumeClean);
        let mut scene = without_lists(Scene::with_options(seed, wish, 1, options()));
        scene.array.pause_sync(true);
        let lost = map(&scene).data_slot(0);
        fail(&mut scene, lost);
        let spare = scene.disk();
        scene.add(&spare).unwrap();
        let source = map(&scene).data_slot(1).index();
        scene.disks[source].fault(&Fault::Gone);
        scene.array.pause_sync(false);
        let array = scene.array.clone();
        scene.world.run_until(STEPS, |_| array.detail().state == "failed").unwrap();
        scene.run(async { shard::sleep(1_000_000_000).await });
        let detail = array.detail();
        assert_eq!((detail.slots[lost.index()].state, detail.failed.len()), ("recovering", 1), "{seed}");
        let is_called_so = detail.last_errors.iter().any(|error| error.operation == Operation::Rebuild);
        assert!(!is_called_so, "{seed}: {:?}", detail.last_errors);
    }
}

/// A log has room for 512 sectors that don't touch.
#[test]
fn a_target_whose_list_is_full_does_not_become_whole_without_a_sector() {
    let mut scene = raid5();
    let (lost, other) = (map(&scene).data_slot(0), map(&scene).data_slot(1).index());
    scene.array.pause_sync(true);
    fail(&mut scene, lost);
    for number in 0..513 {
        let at = (DATA_SECTOR + 2 * number) * 512;
        scene.disks[other].fault(&Fault::UnreadableRange(at..at + 512));
    }
    takes_one_spare_of_three(&mut scene, lost);
}

/// Of a chunk that has several regions, some of them torn: in the others a member that comes back by bitmap
/// has missed what was written.
#[test]
fn a_member_that_comes_back_gets_the_rows_beside_torn_ones() {
    let bitmap = NewBitmap::Internal { chunk_bytes: Some(4096) };
    let wish = wish(Level::Raid5, 4, CHUNK, bitmap, InitialSync::AssumeClean);
    let mut scene = Scene::with_options(1, wish, 1, options());
    fill(&mut scene);
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().bitmap.unwrap().bits_set == 0).unwrap();
    drop(array);
    let mut scene = torn_of(scene);
    let (own, parity) = (map(&scene).data_slot(0).index(), map(&scene).p_slot().index());
    let back = scene.disks[parity].clone();
    back.fault(&Fault::Gone);
    scene.write(sector(0, ROW), ROW, false).unwrap();
    scene.flush().unwrap();
    assert_eq!(scene.array.detail().slots[parity].state, "missing");
    back.fault(&Fault::Return);
    assert_eq!(scene.add(&back).unwrap(), Added::Bitmap { slot: parity });
    let array = scene.array.clone();
    array.pause_sync(false);
    scene.world.run_until(STEPS, |_| array.detail().slots[parity].state != "recovering").unwrap();
    // Before the resync has come to the stripe.
    array.pause_sync(true);
    drop(array);
    scene.disks[own].fault(&Fault::Gone);
    read(&mut scene, sector(0, ROW), ROW).unwrap();
}

/// The target of a replacement has got torn rows when its member goes. It is the one that has them then.
#[test]
fn a_target_that_was_given_torn_rows_lacks_none_when_its_member_goes() {
    let options = ArrayOptions { checkpoint_ns: 0, checkpoint_stripes: 4, ..options() };
    let wish = wish(Level::Raid5, 4, CHUNK, BITMAP, InitialSync::AssumeClean);
    let mut scene = Scene::with_options(1, wish, 1, options);
    fill(&mut scene);
    let (mut scene, _) = with_an_unreadable_sector(torn_of(scene));
    let slot = map(&scene).data_slot(1).index();
    let (old, target) = (scene.disks[slot].clone(), scene.disk());
    scene.replace(slot, Some(&target)).unwrap();
    // In sectors: the torn region's end.
    let end = (STRIPE * CHUNK / 65536 + 1) * 65536 / 512;
    let is_copied = || superblock_on(&target).member.recovery_offset.is_some_and(|to| to.0 > end);
    scene.world.run_until(STEPS, |_| is_copied()).unwrap();
    scene.array.pause_sync(true);
    old.fault(&Fault::Gone);
    scene.flush().unwrap();
    let detail = scene.array.detail();
    assert_eq!(detail.slots[slot].state, "recovering");
    assert!(!detail.advice.as_ref().is_some_and(|it| it.contains("--force")), "{:?}", detail.advice);
    old.fault(&Fault::Return);
    assert_eq!(scene.add(&old).unwrap(), Added::Spare);
    scene.array.pause_sync(false);
    scene.settle();
    for at in 0..SECTORS {
        assert_eq!(read(&mut scene, sector(0, at), 1).is_ok(), at != 3, "{at}");
        read(&mut scene, sector(1, at), 1).unwrap();
    }
}

#[cfg(feature = "mutants")]
#[test]
fn lists_that_say_too_much_are_found() {
    use pinstripe_engine::mutants::Mutant;
    let scenes: [(Mutant, fn(u64)); 7] = [
        (Mutant::AvoidedByChunk, a_write_makes_only_the_row_that_it_can_not_read),
        (Mutant::ReplacedByChunk, a_replacement_makes_only_the_row_that_can_not_be_read),
        (Mutant::TornRowsPromised, torn_rows_are_written_without_a_member),
        (Mutant::TornRowsUnforced, a_member_of_torn_rows_loses_a_flush),
        (Mutant::ListedByTransfer, two_members_refuse_a_sector_of_different_rows),
        (Mutant::ListedByTransfer, a_chunk_is_written_of_which_one_row_is_lost),
        (Mutant::TargetListed, |_| a_target_refuses_what_another_member_may_take_away(true)),
    ];
    for (mutant, scene) in scenes {
        assert!(arrays::defects::find(mutant, 1, scene).is_some(), "{mutant:?}");
    }
}
