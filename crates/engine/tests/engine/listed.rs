//! Members that have blocks listed as bad and stay: what is made of a listed sector is made of no other one,
//! and what goes wrong in one row is no other row's.

use std::ops::Range;

use crate::arrays::{
    self, STEPS, options,
    scene::{DATA_SECTOR, Scene, plain_disks, wish},
};
use pinstripe_engine::{
    error::IoError,
    geometry::{MemberSlot, StripeId, StripeMap},
    maintenance::{CheckReport, ScrubAction, ScrubRequest},
};
use pinstripe_md::{
    identity::Uuid,
    level::Level,
    placement::{InitialSync, NewBitmap},
};
use pinstripe_runtime::shard;
use pinstripe_sim::Fault;

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

#[test]
fn what_is_written_anew_on_the_target_of_a_replacement_is_not_listed_any_more() {
    let mut scene = raid5();
    let slot = map(&scene).data_slot(1).index();
    let target = plain_disks(&mut scene.world, [2048]).remove(0);
    scene.array.pause_sync(true);
    let (array, with) = (scene.array.clone(), target.source());
    scene.run(async move { array.replace(slot, Some(with), Uuid([200; 16])).await }).unwrap();
    let refused = bytes(&scene, 3..4);
    target.fault(&Fault::UnwritableRange(refused));
    scene.write(sector(1, 0), ROW, false).unwrap();
    target.fault(&Fault::Heal);
    scene.write(sector(1, 0), ROW, false).unwrap();
    scene.array.pause_sync(false);
    let array = scene.array.clone();
    let is_over = |_: &_| array.detail().slots[slot].replacement.is_none();
    scene.world.run_until(STEPS, is_over).unwrap();
    assert_eq!(scene.array.detail().slots[slot].bad_sectors, 0);
    scene.read_all();
    assert_eq!(scene.check(), 0);
}
