//! What happens at the same time: zeroes and a member that comes back (C27), flushes (C33), commands and
//! failures (C31), commands and a stop. Each of two things is right by itself.

use std::{
    cell::{Cell, RefCell},
    pin::Pin,
    rc::Rc,
    sync::Arc,
};

use crate::arrays::{
    self, STEPS, options,
    scene::{DATA_SECTOR, Scene, lay_out, plain_disks, superblock_on, wish, write},
};
use pinstripe_engine::{
    array::{Added, Array, CommandError, Policy, Removed},
    error::{IoError, MemberError, Operation},
    events::{EventKind, SyncAction},
    geometry::StripeId,
    io::volume::Volume,
    maintenance::{ScrubAction, ScrubRequest},
    options::{ArrayOptions, JournalMode},
};
use pinstripe_md::{
    identity::Uuid,
    level::Level,
    placement::{InitialSync, NewArray, NewBitmap, NewDevice, NewLog, journal::add_journal},
    superblock::ResyncOffset,
};
use pinstripe_runtime::{DeviceError, DeviceErrorKind, DeviceSource, shard};
use pinstripe_sim::{Fault, SimDisk, SimDiskConfig, Trigger, World, WorldConfig};

const STRIPE: u64 = 48 << 10;
const MILLISECOND: u64 = 1_000_000;
const SECOND: u64 = 1000 * MILLISECOND;
const BITMAP: NewBitmap = NewBitmap::Internal { chunk_bytes: Some(65536) };

fn shape(level: Level, members: u8) -> NewArray {
    wish(level, members, 16 << 10, BITMAP, InitialSync::AssumeClean)
}

fn array(seed: u64, level: Level, members: u8) -> Scene {
    let mut scene = Scene::with_options(seed, shape(level, members), 2, options());
    scene.write(0, 96, true).unwrap();
    scene
}

/// Every stripe is full of bytes, no bit is set, and the second member has gone.
fn degraded(seed: u64) -> Scene {
    let mut scene = Scene::with_options(seed, shape(Level::Raid5, 4), 2, options());
    let volume = scene.volume();
    scene.run(async move {
        for at in (0..volume.size()).step_by(usize::try_from(STRIPE).unwrap()) {
            let mut data = shard::buffer(usize::try_from(STRIPE).unwrap());
            data.fill(0xaa);
            volume.write(at, data.freeze(), false).await.unwrap();
        }
    });
    let array = scene.array.clone();
    let is_swept = |_: &_| array.detail().bitmap.unwrap().bits_set == 0;
    scene.world.run_until(STEPS, is_swept).unwrap();
    let array = scene.array.clone();
    scene.run(async move { array.fail(1).await }).unwrap();
    scene
}

/// A check that is under way when the membership changes: its task looks at once at what is to be done next.
fn check_slowly(scene: &mut Scene) {
    let array = scene.array.clone();
    scene.run(async move {
        let mut speed = array.sync_speed();
        (speed.min_kib, speed.max_kib) = (16, 16);
        array.set_sync_speed(speed).unwrap();
        let checked = array.clone();
        shard::spawn(async move { drop(checked.check().await) });
        shard::sleep(100 * MILLISECOND).await;
        assert!(array.progress().is_some_and(|progress| progress.action == SyncAction::Check));
    });
}

/// A stripe is zeroed, and its thread is off its CPU for a second as soon as the zeroes have entered.
/// Meanwhile the member that was missing comes back by bitmap.
fn zeroes_are_held_up_while_a_member_comes_back(seed: u64) {
    let mut scene = degraded(seed);
    check_slowly(&mut scene);
    let replans = scene.array.detail().statistics.replans;
    let stripe = 12 * STRIPE;
    scene.world.interrupt_next(1, 1000 * MILLISECOND);
    let shared = Arc::clone(scene.array.shared());
    scene.world.spawn(1, "zeroes", async move {
        Volume::new(shared).write_zeroes(stripe, STRIPE, false).await.unwrap();
    });
    let shared = Arc::clone(scene.array.shared());
    scene.world.run_until(STEPS, |_| shared.admission.writers() == 1).unwrap();

    let (array, source) = (scene.array.clone(), scene.disks[1].source());
    let (recovers, added) = scene.run(async move {
        let owner = array.clone();
        let added = shard::spawn_joined(async move { owner.add(source, Uuid([0x55; 16])).await });
        shard::sleep(500 * MILLISECOND).await;
        let recovers = array.progress().is_some_and(|progress| progress.action == SyncAction::Rebuild);
        let mut speed = array.sync_speed();
        speed.max_kib = 1 << 20;
        array.set_sync_speed(speed).unwrap();
        (recovers, added.join().await)
    });
    assert!(matches!(added, Ok(Added::Bitmap { slot: 1 })), "{added:?}");
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();

    let volume = scene.volume();
    let length = usize::try_from(STRIPE).unwrap();
    let (read, bytes) = scene.run(async move { volume.read(stripe, shard::buffer(length)).await });
    read.unwrap();
    let stale = bytes.iter().filter(|byte| **byte != 0).count();
    drop(bytes);
    assert_eq!(stale, 0, "bytes of the zeroed stripe read as before");
    assert_eq!(scene.check(), 0, "sectors don't match");
    assert!(
        !recovers,
        "the recovery has read its bits while writers of the earlier membership were under way"
    );
    assert!(
        scene.array.detail().statistics.replans > replans,
        "the zeroes were written under the earlier membership"
    );
}

#[test]
fn zeroes_of_an_earlier_membership_do_no_harm_to_a_re_add_by_bitmap() {
    (0..4).for_each(zeroes_are_held_up_while_a_member_comes_back);
}

#[cfg(feature = "mutants")]
#[test]
fn an_earlier_membership_that_is_trusted_is_found() {
    use pinstripe_engine::mutants::Mutant;
    for mutant in [Mutant::LookLeftOut, Mutant::BitsReadUndrained, Mutant::EarlierMembershipTrusted] {
        let found = arrays::defects::find(mutant, 4, zeroes_are_held_up_while_a_member_comes_back);
        assert!(found.is_some(), "{mutant:?}");
    }
}

/// A write on one shard whose member refuses a sector, while the shard that lists the sector is off its CPU
/// between having listed it and saying so.
fn a_sector_is_listed_for_another_shard(seed: u64) {
    let mut scene = array(seed, Level::Raid5, 4);
    let slot = scene.geometry().slots(StripeId(0)).data_slot(0).index();
    let data = scene.geometry().member_offset(StripeId(0)) + DATA_SECTOR * 512;
    scene.disks[slot].fault(&Fault::UnwritableRange(data..data + 512));
    scene.world.interrupt_next(0, SECOND);
    let (shared, written) = (Arc::clone(scene.array.shared()), Rc::new(Cell::new(0)));
    let over = Rc::clone(&written);
    scene.world.spawn(1, "write", async move {
        let began = shard::now();
        Volume::new(shared).write(0, shard::zeroed(4096).freeze(), false).await.unwrap();
        over.set(shard::now() - began);
    });
    scene.world.run_until(STEPS, |_| written.get() > 0).unwrap();
    // The next superblock update would tell it too.
    let waited = written.get();
    assert!((SECOND..SECOND + 50 * MILLISECOND).contains(&waited), "the write took {waited} ns");
    assert!(scene.array.detail().slots[slot].bad_sectors > 0);
}

#[test]
fn a_write_goes_on_when_the_sector_that_it_could_not_write_is_listed() {
    (0..4).for_each(a_sector_is_listed_for_another_shard);
}

#[cfg(feature = "mutants")]
#[test]
fn a_listing_that_no_write_is_told_of_is_found() {
    use pinstripe_engine::mutants::Mutant;
    let found = arrays::defects::find(Mutant::BadSettledSilently, 4, a_sector_is_listed_for_another_shard);
    assert!(found.is_some());
}

/// The array is idle, and the home shard is off its CPU just before it closes the gate. Meanwhile a write on
/// the other shard comes and is over, but for a sector that its member refuses. Power fails as soon as the
/// superblocks say clean.
fn a_sector_is_refused_as_the_array_is_marked_clean(seed: u64) {
    // Its bit is set: the other shard needs nothing of this one.
    const FIRST: u64 = 2 * STRIPE / 512;
    let mut scene = array(seed, Level::Raid5, 4);
    let slot = scene.geometry().slots(StripeId(2)).data_slot(0).index();
    let data = scene.geometry().member_offset(StripeId(2)) + DATA_SECTOR * 512;
    scene.disks[slot].fault(&Fault::UnwritableRange(data..data + 4096));
    scene.world.interrupt_next(0, SECOND);
    let (shared, ledger) = (Arc::clone(scene.array.shared()), Rc::clone(&scene.ledger));
    let (asked, answered) = (Rc::new(Cell::new(false)), Rc::new(Cell::new(false)));
    let (began, ended) = (Rc::clone(&asked), Rc::clone(&answered));
    scene.world.spawn(1, "write", async move {
        shard::sleep(3 * options().safe_mode_delay_ns).await;
        assert!(shared.admission.is_open(), "the home shard has not come so far");
        began.set(true);
        let volume = Volume::new(shared);
        ended.set(write(&volume, &ledger, FIRST, 8, false).await.is_ok());
    });
    let disks = scene.disks.clone();
    let is_clean = |disk: &SimDisk| superblock_on(disk).array.resync_offset == ResyncOffset::Clean;
    scene.world.run_until(STEPS, |_| asked.get() && disks.iter().all(is_clean)).unwrap();
    let is_recorded = answered.get();
    scene.world.crash();
    scene.ledger.borrow_mut().crash();
    scene.disks[slot].fault(&Fault::Heal);
    scene.reassemble();
    assert_eq!(scene.check(), 0, "sectors don't match, and the superblocks have called the array clean");
    assert!(is_recorded, "the superblocks have called the array clean before the sector was listed");
    scene.is_right_and_stays_so();
}

#[test]
fn what_a_writer_that_has_just_left_has_reported_is_recorded_before_the_array_is_marked_clean() {
    (0..8).for_each(a_sector_is_refused_as_the_array_is_marked_clean);
}

#[cfg(feature = "mutants")]
#[test]
fn an_array_that_is_marked_clean_past_reports_is_found() {
    use pinstripe_engine::mutants::Mutant;
    let scene = a_sector_is_refused_as_the_array_is_marked_clean;
    let found = arrays::defects::find(Mutant::CleanPastReports, 4, scene);
    assert!(found.is_some());
}

/// Two writes whose parity is on one member, with a partial parity log, which takes one at a time. The first
/// hangs; the array is stopped; the member on which it hangs is gone.
fn a_stop_meets_a_write_that_waits_in_the_log_for_one_that_fails(seed: u64) {
    let wish = NewArray { bitmap: NewBitmap::None, ..shape(Level::Raid5, 4) };
    let mut scene = Scene::with_log(World::new(WorldConfig::new(seed, 1)), &wish, NewLog::Ppl, options());
    scene.write(0, 96 * 6, true).unwrap();
    let disk = scene.disks[0].clone();
    let taken = disk.counters();
    // The data of the first write; before it come what opens the gate and the pre-read.
    disk.plan(Trigger::AtRequest(taken.reads + taken.writes + taken.flushes + 2), Fault::Hang);
    let ended = Rc::new(Cell::new(0));
    let act = |scene: &mut Scene, name, work: Pin<Box<dyn Future<Output = ()>>>| {
        let ended = Rc::clone(&ended);
        scene.world.spawn(0, name, async move {
            work.await;
            ended.set(ended.get() + 1);
        });
    };
    let shared = Arc::clone(scene.array.shared());
    for at in [0, 4 * STRIPE + (16 << 10)] {
        let volume = scene.volume();
        act(
            &mut scene,
            "write",
            Box::pin(async move {
                drop(volume.write(at, shard::zeroed(4096).freeze(), false).await);
            }),
        );
        let time = scene.world.now() + 50 * MILLISECOND;
        scene.world.run_until(STEPS, |world| world.now() > time).unwrap();
    }
    assert_eq!(shared.admission.writers(), 2, "one hangs and one waits for it");
    let array = scene.array.clone();
    act(&mut scene, "stop", Box::pin(async move { array.stop().await.unwrap() }));
    scene.world.run_until(STEPS, |_| shared.admission.is_halted()).unwrap();
    disk.fault(&Fault::Gone);
    scene.world.run_until(STEPS, |_| ended.get() == 3).unwrap();
}

#[test]
fn a_stop_ends_although_writes_wait_for_each_other_in_the_log() {
    (0..4).for_each(a_stop_meets_a_write_that_waits_in_the_log_for_one_that_fails);
}

#[cfg(feature = "mutants")]
#[test]
fn a_stop_that_settles_late_is_found() {
    use pinstripe_engine::mutants::Mutant;
    let story = a_stop_meets_a_write_that_waits_in_the_log_for_one_that_fails;
    assert!(arrays::defects::find(Mutant::StopSettlesLate, 1, story).is_some());
}

/// Many flushes, of which the first that reaches one disk fails, and a crash as soon as one of them is
/// answered.
fn a_crash_follows_a_flush_beside_one_that_fails(seed: u64) {
    let mut world = World::new(WorldConfig::new(seed, 2));
    let slow = |number| SimDiskConfig {
        latency_tail: 400,
        ..SimDiskConfig::new(&format!("disk{number}"), 2048 * 512)
    };
    let disks: Vec<SimDisk> = (0..4).map(|number| world.add_disk(slow(number))).collect();
    lay_out(&mut world, shape(Level::Raid5, 4).place_with(NewLog::None).unwrap(), &disks).unwrap();
    let mut scene = Scene::over(world, disks, 4, options());
    scene.write(0, 96, true).unwrap();
    scene.write(0, 96, false).unwrap();
    scene.disks[1].fault(&Fault::FailFlushes(1));
    let answered = Rc::new(RefCell::new(0));
    for number in 0..6 {
        let (shared, ledger, answered) =
            (Arc::clone(scene.array.shared()), Rc::clone(&scene.ledger), Rc::clone(&answered));
        let mut rng = scene.world.rng(number);
        scene.world.spawn(usize::from(number % 2 == 1), "flush", async move {
            let volume = Volume::new(shared);
            shard::sleep(rng.below(4 * MILLISECOND)).await;
            let id = ledger.borrow_mut().begin_flush();
            let flushed = volume.flush().await;
            ledger.borrow_mut().complete_flush(id, flushed.is_ok());
            *answered.borrow_mut() += 1;
        });
    }
    scene.world.run_until(STEPS, |_| *answered.borrow() > 0).unwrap();
    scene.world.crash();
    scene.ledger.borrow_mut().crash();
    for disk in &scene.disks {
        disk.fault(&Fault::Heal);
    }
    let sources = scene.disks.iter().map(SimDisk::source).collect();
    // It may be dirty and degraded by then, and is refused.
    if let Ok(array) = arrays::assemble(&mut scene.world, sources, options()) {
        scene.array = array;
        scene.read_all();
    }
}

#[test]
fn no_flush_is_answered_while_one_that_began_before_it_is_under_way() {
    (0..40).for_each(a_crash_follows_a_flush_beside_one_that_fails);
}

#[cfg(feature = "mutants")]
#[test]
fn a_flush_that_is_answered_by_count_is_found() {
    use pinstripe_runtime::mutants::{Mutant, activate};
    let turn = |is_on: bool| activate(is_on.then_some(Mutant::FlushesCounted));
    let found = arrays::defects::find_with(turn, 300, a_crash_follows_a_flush_beside_one_that_fails);
    assert!(found.is_some());
}

/// As many `fail` commands at once as there are slots.
fn every_slot_is_failed_at_once(seed: u64, level: Level, members: u8) {
    let mut scene = array(seed, level, members);
    let owner = scene.array.clone();
    let answers = scene.run(async move {
        let fail = |slot| {
            let array = owner.clone();
            shard::spawn_joined(async move { array.fail(slot).await })
        };
        let under_way: Vec<_> = (0..usize::from(members)).map(fail).collect();
        let mut answers = Vec::new();
        for answer in under_way {
            answers.push(answer.join().await);
        }
        answers
    });
    let redundancy = scene.array.shared().geometry.redundancy();
    let refused = |answer: &Result<(), CommandError>| matches!(answer, Err(CommandError::SlotNeeded(_)));
    assert!(!scene.array.shared().has_failed(), "the commands stopped the array: {answers:?}");
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), redundancy, "{answers:?}");
    assert_eq!(answers.iter().filter(|answer| refused(answer)).count(), usize::from(members) - redundancy);
    assert_eq!(scene.array.detail().missing, redundancy);
    scene.write(0, 96, true).unwrap();
    scene.read_all();
}

fn commands_at_once_stay_within_redundancy(seed: u64) {
    every_slot_is_failed_at_once(seed, Level::Raid5, 4);
    every_slot_is_failed_at_once(seed, Level::Raid6, 5);
}

#[test]
fn commands_at_once_take_no_array_past_redundancy() {
    (0..4).for_each(commands_at_once_stay_within_redundancy);
}

#[cfg(feature = "mutants")]
#[test]
fn a_needed_member_that_is_taken_out_is_found() {
    use pinstripe_engine::mutants::Mutant;
    let found = arrays::defects::find(Mutant::NeededTakenOut, 2, commands_at_once_stay_within_redundancy);
    assert!(found.is_some());
}

/// An array with a journal, the last disk.
fn journaled(seed: u64) -> Scene {
    let mut world = World::new(WorldConfig::new(seed, 2));
    let mut placed = NewArray { bitmap: NewBitmap::None, ..shape(Level::Raid5, 4) }.place().unwrap();
    add_journal(&mut placed, NewDevice { sectors: 2048, uuid: Uuid([0x4a; 16]) }, 512).unwrap();
    let disks = arrays::scene::plain_disks(&mut world, [2048; 5]);
    lay_out(&mut world, placed, &disks).unwrap();
    let mut scene = Scene::over(world, disks, 5, options());
    scene.write(0, 96, true).unwrap();
    scene
}

/// Polls a future once, which must not end it.
async fn begin<F: Future>(future: &mut Pin<&mut F>) {
    let begun = std::future::poll_fn(|cx| std::task::Poll::Ready(future.as_mut().poll(cx).is_pending()));
    assert!(begun.await, "the controller has not come to it");
}

/// A member and the journal are to be taken out at once, in this order.
fn a_member_and_the_journal_are_failed_at_once(seed: u64) {
    let mut scene = journaled(seed);
    let owner = scene.array.clone();
    let (member, journal) = scene.run(async move {
        let mut member = std::pin::pin!(owner.fail(2));
        begin(&mut member).await;
        let journal = owner.fail_journal().await;
        (member.await, journal)
    });
    member.unwrap();
    let refused = journal.map_err(|error| error.to_string()).unwrap_err();
    assert!(refused.contains("the journal is needed"), "{refused}");
    scene.write(0, 96, true).unwrap();
    scene.read_all();
}

/// The journal is to be taken out, and is set to write-back again before the controller comes to that.
fn a_journal_is_failed_and_set_to_write_back_at_once(seed: u64) {
    let mut scene = journaled(seed);
    let owner = scene.array.clone();
    let answer = scene.run(async move {
        let mut failed = std::pin::pin!(owner.fail_journal());
        begin(&mut failed).await;
        owner.set_journal_mode(JournalMode::WriteBack).await.unwrap();
        failed.await
    });
    let refused = answer.map_err(|error| error.to_string()).unwrap_err();
    assert!(refused.contains("set to write-back again"), "{refused}");
    scene.write(0, 96, true).unwrap();
    scene.read_all();
}

#[test]
fn a_journal_that_caches_again_is_not_taken_out() {
    (0..2).for_each(a_journal_is_failed_and_set_to_write_back_at_once);
}

#[test]
fn a_journal_is_not_taken_out_beside_a_member() {
    (0..2).for_each(a_member_and_the_journal_are_failed_at_once);
}

#[cfg(feature = "mutants")]
#[test]
fn a_needed_journal_that_is_taken_out_is_found() {
    use pinstripe_engine::mutants::Mutant;
    let scene = a_member_and_the_journal_are_failed_at_once;
    assert!(arrays::defects::find(Mutant::NeededJournalTakenOut, 1, scene).is_some());
}

#[test]
fn a_command_is_decided_behind_the_failures_that_were_reported_before_it() {
    let mut scene = array(1, Level::Raid5, 4);
    let owner = scene.array.clone();
    let answer = scene.run(async move {
        let snapshot = owner.shared().snapshot();
        let member = snapshot.seats[2].member().unwrap();
        let error = DeviceError::of(DeviceErrorKind::Gone);
        let error = MemberError {
            role: 2.into(),
            name: member.name.clone(),
            operation: Operation::Write,
            offset: 0,
            error,
        };
        owner.shared().report(member.id, error);
        owner.fail(0).await
    });
    assert!(matches!(answer, Err(CommandError::SlotNeeded(0))), "{answer:?}");
    assert!(!scene.array.shared().has_failed());
    assert_eq!(scene.array.detail().missing, 1);
    scene.write(0, 96, true).unwrap();
}

#[test]
fn a_member_that_is_being_replaced_stays_where_it_is_needed() {
    let slow = ArrayOptions { checkpoint_stripes: 1, checkpoint_ns: 0, maintenance_depth: 1, ..options() };
    let mut scene = Scene::with_options(2, shape(Level::Raid5, 4), 1, slow);
    scene.write(0, 96, true).unwrap();
    scene.array.pause_sync(true);
    let disk = scene.world.add_disk(SimDiskConfig::new("target", 2048 * 512));
    let owner = scene.array.clone();
    let answers = scene.run(async move {
        owner.replace(1, Some(disk.source()), Uuid([200; 16])).await.unwrap();
        (owner.fail(3).await, owner.fail(1).await)
    });
    assert!(matches!(answers, (Ok(()), Err(CommandError::SlotNeeded(1)))), "{answers:?}");
    assert!(!scene.array.shared().has_failed());
}

/// A member hangs, members may take for ever, and the controller waits for it.
fn hanging(seed: u64, others: &[usize]) -> Scene {
    let patient = ArrayOptions { member_timeout_ns: 0, ..options() };
    let mut scene = Scene::with_options(seed, shape(Level::Raid5, 4), 2, patient);
    scene.disks[3].fault(&Fault::Hang);
    for &disk in others {
        scene.disks[disk].fault(&Fault::Hang);
    }
    let volume = scene.volume();
    scene.world.spawn(0, "write", async move {
        let _ = volume.write(0, shard::zeroed(4096).freeze(), false).await;
    });
    scene.run(async { shard::sleep(MILLISECOND).await });
    scene
}

#[test]
fn a_command_takes_out_the_member_that_the_controller_waits_for() {
    let mut scene = hanging(3, &[]);
    let owner = scene.array.clone();
    scene.run(async move { owner.fail(3).await }).unwrap();
    assert!(scene.world.now() < 120 * SECOND);
    scene.write(0, 96, true).unwrap();

    // With another one that hangs the array would be lost.
    let mut scene = hanging(4, &[1]);
    let owner = scene.array.clone();
    let answer = scene.run(async move { owner.fail(3).await });
    assert!(matches!(answer, Err(CommandError::SlotNeeded(3))), "{answer:?}");
    for disk in &scene.disks {
        disk.fault(&Fault::Release);
    }
    scene.write(0, 96, true).unwrap();
    assert_eq!(scene.array.detail().missing, 0, "what was refused is not done later");
}

#[test]
fn a_stop_ends_although_the_controller_waits_for_a_member_that_may_take_for_ever() {
    let mut scene = hanging(6, &[]);
    let owner = scene.array.clone();
    scene.run(async move { owner.stop().await }).unwrap();
    assert!(scene.world.now() < 120 * SECOND);
}

/// A process dies, and what it wrote lies in the disks' caches: the next one must not rest on what a power
/// loss takes back.
fn the_next_process_reads_what_lies_in_caches(seed: u64) {
    let mut scene = array(seed, Level::Raid5, 4);
    scene.write(0, 96, false).unwrap();
    let unflushed = |scene: &Scene| scene.disks.iter().map(SimDisk::unflushed_sectors).sum::<usize>();
    assert!(unflushed(&scene) > 0);
    scene.world.kill();
    scene.reassemble();
    assert_eq!(unflushed(&scene), 0);
}

#[test]
fn what_assembly_has_read_is_durable() {
    (0..4).for_each(the_next_process_reads_what_lies_in_caches);
}

#[cfg(feature = "mutants")]
#[test]
fn an_assembly_that_rests_on_caches_is_found() {
    use pinstripe_engine::mutants::Mutant;
    let scene = the_next_process_reads_what_lies_in_caches;
    assert!(arrays::defects::find(Mutant::AssembledUnflushed, 4, scene).is_some());
}

/// Behind servers that know of no hosts, what a process has sent may be done 6 s after its death.
const LATE: u64 = 6 * SECOND;

/// An array of four, of which the last so many are behind such servers; its superblocks say clean.
fn behind_strange_servers(seed: u64, late: usize, log: NewLog) -> Scene {
    let mut world = World::new(WorldConfig::new(seed, 2));
    let disk = |i| SimDiskConfig {
        late_writes_ns: if i + late < 4 { 0 } else { LATE },
        ..SimDiskConfig::new(&format!("disk{i}"), 2048 * 512)
    };
    let disks: Vec<SimDisk> = (0..4).map(|i| world.add_disk(disk(i))).collect();
    let bitmap = if log == NewLog::None { BITMAP } else { NewBitmap::None };
    let wish = wish(Level::Raid5, 4, 16 << 10, bitmap, InitialSync::AssumeClean);
    lay_out(&mut world, wish.place_with(log).unwrap(), &disks).unwrap();
    let mut scene = Scene::over(world, disks, 4, options());
    scene.write(0, 96, true).unwrap();
    scene.stop();
    scene.reassemble();
    scene
}

/// A process dies in a write, after so many steps as the seed says.
fn die_in_a_write(scene: &mut Scene, seed: u64) {
    let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
    scene.world.spawn(0, "write", async move {
        let _ = write(&volume, &ledger, 0, 96, false).await;
    });
    for _ in 0..seed % 120 {
        assert!(scene.world.step());
    }
    scene.world.kill();
    scene.ledger.borrow_mut().kill();
}

fn says_clean(disk: &SimDisk) -> bool {
    superblock_on(disk).array.resync_offset == ResyncOffset::Clean
}

/// Some of the dead process's writes come after the next process has begun, and must not come after its
/// writes (C16).
fn writes_of_a_dead_process_come_late(seed: u64) {
    // With a log the superblocks say clean all the while.
    let log = if seed.is_multiple_of(2) { NewLog::None } else { NewLog::Ppl };
    let mut scene = behind_strange_servers(seed, 4, log);
    die_in_a_write(&mut scene, seed);
    scene.reassemble();
    scene.write(0, 96, true).unwrap();
    scene.run(async move { shard::sleep(LATE).await });
    scene.is_right_and_stays_so();
}

/// The same, of the first superblock that says dirty: the next process has found all of them clean, and has
/// stopped the array by then. That member would be out of date.
fn superblocks_of_a_dead_process_come_late(seed: u64) {
    let mut scene = behind_strange_servers(seed, 4, NewLog::None);
    die_in_a_write(&mut scene, seed);
    if !scene.disks.iter().all(says_clean) {
        return;
    }
    scene.reassemble();
    scene.write(960, 96, true).unwrap();
    scene.stop();
    scene.run(async move { shard::sleep(LATE).await });
    scene.reassemble();
    assert_eq!(scene.array.detail().missing, 0);
    scene.is_right_and_stays_so();
}

/// The same, of a member without which the next process begins, and which it adds at once.
fn writes_to_a_member_that_joins_come_late(seed: u64) {
    let mut scene = behind_strange_servers(seed, 1, NewLog::Ppl);
    die_in_a_write(&mut scene, seed);
    let here = scene.disks[..3].iter().map(SimDisk::source).collect();
    scene.array = arrays::assemble(&mut scene.world, here, options()).unwrap();
    let (array, joins) = (scene.array.clone(), scene.disks[3].source());
    scene.run(async move { array.add(joins, Uuid([77; 16])).await }).unwrap();
    scene.write(0, 96, true).unwrap();
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();
    scene.run(async move { shard::sleep(LATE).await });
    scene.is_right_and_stays_so();
}

#[test]
fn an_array_is_not_started_before_writes_of_a_dead_process_are_over() {
    (0..200).for_each(writes_of_a_dead_process_come_late);
    (0..200).for_each(superblocks_of_a_dead_process_come_late);
    (0..200).for_each(writes_to_a_member_that_joins_come_late);
}

/// Its requests are over, and it says so: clients wait for the next one.
#[test]
fn a_start_behind_a_stop_in_the_same_process_waits_for_nothing() {
    let mut scene = behind_strange_servers(1, 4, NewLog::Ppl);
    let mut start = |follows_stop| {
        scene.stop();
        scene.options.follows_stop = follows_stop;
        let before = scene.world.now();
        scene.reassemble();
        scene.world.now() - before
    };
    assert!(start(false) >= LATE);
    assert!(start(true) < SECOND);
    scene.write(0, 96, true).unwrap();
    scene.is_right_and_stays_so();
}

#[cfg(feature = "mutants")]
#[test]
fn a_start_before_they_are_over_is_found() {
    use pinstripe_engine::mutants::Mutant;
    let scenes: [(&str, fn(u64)); 3] = [
        ("writes", writes_of_a_dead_process_come_late),
        ("superblocks", superblocks_of_a_dead_process_come_late),
        ("a member that joins", writes_to_a_member_that_joins_come_late),
    ];
    for (name, scene) in scenes {
        assert!(arrays::defects::find(Mutant::AssembledTooEarly, 600, scene).is_some(), "{name}");
    }
}

#[test]
fn that_an_array_has_failed_is_told_once() {
    let mut scene = array(5, Level::Raid5, 4);
    for disk in &scene.disks {
        disk.fault(&Fault::Gone);
    }
    for at in 0..4 {
        let _ = scene.write(at * 96, 96, true);
    }
    let _ = scene.flush();
    let told = scene.array.events(0);
    let told = told.iter().filter(|event| matches!(event.kind, EventKind::ArrayFailed(_))).count();
    assert_eq!(told, 1);
}

#[test]
fn a_blanked_member_that_joins_again_is_not_listed_as_failed() {
    let mut scene = array(6, Level::Raid5, 4);
    let owner = scene.array.clone();
    scene.run(async move { owner.fail(1).await }).unwrap();
    assert_eq!(scene.array.detail().failed.len(), 1);
    scene.disks[1].poke(0, &vec![0; 128 << 10]);
    let (owner, source) = (scene.array.clone(), scene.disks[1].source());
    let added = scene.run(async move { owner.add(source, Uuid([77; 16])).await });
    assert!(matches!(added, Ok(Added::Full { slot: 1 })), "{added:?}");
    assert!(scene.array.detail().failed.is_empty(), "{:?}", scene.array.detail().failed);
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();
    scene.is_right_and_stays_so();
}

#[test]
fn members_are_not_called_in_sync_before_the_first_resync_is_over() {
    let wish = wish(Level::Raid5, 4, 16 << 10, BITMAP, InitialSync::Resync);
    let mut scene = Scene::with_options(7, wish, 1, options());
    assert!(scene.array.detail().slots.iter().all(|slot| slot.state == "resyncing"));
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().regions_to_resync == 0).unwrap();
    assert!(scene.array.detail().slots.iter().all(|slot| slot.state == "in-sync"));
    scene.stop();
}

/// The array changes from one policy to the other, and so many steps later it is stopped. Whether the change
/// came first.
fn a_stop_meets_a_change_of_the_policy(level: Level, policies: [Policy; 2], steps: u64) -> bool {
    let mut scene = array(steps, level, 5);
    let [before, after] = policies;
    if before != Policy::Bitmap {
        let array = scene.array.clone();
        scene.run(async move { array.set_policy(before).await }).unwrap();
    }
    scene.write(0, 96, false).unwrap();
    let (array, told) = (scene.array.clone(), Rc::new(RefCell::new(None)));
    let answer = Rc::clone(&told);
    scene.world.spawn(0, "policy", async move {
        *answer.borrow_mut() = Some(array.set_policy(after).await);
    });
    for _ in 0..steps {
        scene.world.step();
    }
    scene.stop();
    scene.world.run_until(STEPS, |_| told.borrow().is_some()).unwrap();
    let told = told.take().unwrap();
    scene.reassemble();
    let found = scene.array.consistency_policy();
    match &told {
        Ok(()) => assert_eq!(found, after.name(), "{level}, {steps} steps"),
        Err(error) => {
            assert!(matches!(error, CommandError::Io(IoError::Stopping)), "{error}");
            assert_eq!(found, before.name(), "{level}, {steps} steps");
        }
    }
    told.is_ok()
}

#[test]
fn a_change_of_the_policy_that_a_stop_meets_is_made_whole_or_not_at_all() {
    for (level, log) in [(Level::Raid5, Policy::Ppl), (Level::Raid6, Policy::DoubleParityLog)] {
        for policies in [[Policy::Bitmap, log], [log, Policy::Bitmap]] {
            let meets = |steps: u64| a_stop_meets_a_change_of_the_policy(level, policies, 4 * steps);
            let changed = (0..60).filter(|steps| meets(*steps)).count();
            assert!(changed > 30, "{level}: of 60 changes {changed} came before the stop");
        }
    }
}

type Asked = Pin<Box<dyn Future<Output = String>>>;

/// Everything that can be asked of an array, by name. What comes of it, in words.
fn requests(array: &Array, spare: &Arc<dyn DeviceSource>) -> Vec<(&'static str, Asked)> {
    macro_rules! ask {
        ($name:literal, $array:ident, $asked:expr) => {{
            let $array = array.clone();
            let asked: Asked = Box::pin(async move {
                match $asked.await {
                    Ok(_) => "done".to_owned(),
                    Err(error) => error.to_string(),
                }
            });
            ($name, asked)
        }};
    }
    let (spare, other) = (Arc::clone(spare), Arc::clone(spare));
    let repair = ScrubRequest { action: ScrubAction::Repair, ..ScrubRequest::default() };
    let volume = array.volume().clone();
    let (reader, writer, zeroer) = (volume.clone(), volume.clone(), volume.clone());
    vec![
        ask!("fail", array, array.fail(0)),
        ask!("remove_bitmap", array, array.remove_bitmap()),
        ask!("add_bitmap", array, array.add_bitmap(65536)),
        ask!("policy", array, array.set_policy(Policy::DoubleParityLog)),
        ask!("add", array, array.add(spare, Uuid([0x51; 16]))),
        ask!("replace", array, array.replace(0, Some(other), Uuid([0x52; 16]))),
        ask!("replace by a spare", array, array.replace(2, None, Uuid([0x53; 16]))),
        ask!("remove", array, array.remove(&Removed::Slot(1))),
        ask!("check", array, array.check()),
        ask!("repair", array, array.scrub(repair)),
        ask!("stop", array, array.stop()),
        ask!("flush", array, async move {
            let _array = array;
            volume.flush().await
        }),
        ask!("read", array, async move {
            let _array = array;
            reader.read(0, shard::buffer(4096)).await.0
        }),
        ask!("write", array, async move {
            let _array = array;
            writer.write(0, shard::zeroed(4096).freeze(), false).await
        }),
        ask!("zero", array, async move {
            let _array = array;
            zeroer.write_zeroes(0, STRIPE, false).await
        }),
    ]
}

/// Everything is asked for at three moments about a stop that has to wait for a member that hangs, and behind
/// it.
fn all_is_asked_about_a_stop(seed: u64) {
    let mut scene = array(seed, Level::Raid6, 5);
    let spare: Arc<dyn DeviceSource> = scene.world.add_disk(SimDiskConfig::new("spare", 2048 * 512)).source();
    scene.disks[1].fault(&Fault::Hang);
    let (array, volume, ledger) = (scene.array.clone(), scene.volume(), Rc::clone(&scene.ledger));
    let answers: Rc<RefCell<Vec<(String, String)>>> = Rc::default();
    let asked = Rc::new(RefCell::new(0));
    let (told, count) = (Rc::clone(&answers), Rc::clone(&asked));
    scene.run(async move {
        let ask_all = |moment: &str| {
            for (name, request) in requests(&array, &spare) {
                let (told, name) = (Rc::clone(&told), format!("{name} {moment}"));
                *count.borrow_mut() += 1;
                shard::spawn(async move {
                    let answer = request.await;
                    told.borrow_mut().push((name, answer));
                });
            }
        };
        shard::spawn(async move {
            let _ = write(&volume, &ledger, 0, 96, false).await;
        });
        shard::sleep(SECOND).await;
        // The one in this list is the first stop.
        ask_all("with it");
        shard::sleep(SECOND).await;
        ask_all("while it waits");
        shard::sleep(600 * SECOND).await;
        ask_all("behind it");
        shard::sleep(600 * SECOND).await;
    });
    let answers = answers.borrow();
    let answered: Vec<&String> = answers.iter().map(|(name, _)| name).collect();
    assert_eq!(answers.len(), *asked.borrow(), "only these were answered: {answered:?}");
    let stopping = IoError::Stopping.to_string();
    for (name, answer) in answers.iter() {
        // A write may join one that the stop waits for.
        let is_late = name == "stop while it waits"
            || ["stop behind it", "check behind it", "write behind it"].contains(&name.as_str());
        assert!(!is_late || *answer == stopping, "{name}: {answer}");
    }
}

#[test]
fn whatever_is_asked_about_a_stop_is_answered() {
    (0..4).for_each(all_is_asked_about_a_stop);
}

#[cfg(feature = "mutants")]
#[test]
fn a_command_that_a_stop_forgets_is_found() {
    use pinstripe_engine::mutants::Mutant;
    let found = arrays::defects::find(Mutant::StopForgetsCommands, 2, all_is_asked_about_a_stop);
    assert!(found.is_some());
}

/// What a member does not take of the first stripe.
#[derive(Clone, Copy, Debug)]
enum Missed {
    Write,
    Zeroes,
}

/// A member misses a change of a stripe while the controller waits for a device that is to replace another
/// one, and sweeps go on. Then it is out, well again, and comes back by bitmap. Where sectors can be listed,
/// it is out because its list can't be written.
fn a_member_misses_a_change_while_the_controller_waits(seed: u64, missed: Missed, lists: bool) {
    const LOST: usize = 1;
    let options = ArrayOptions { sweep_ns: Some(MILLISECOND), ..options() };
    let mut world = World::new(WorldConfig::new(seed, 2));
    let disks = plain_disks(&mut world, [2048; 4]);
    lay_out(&mut world, shape(Level::Raid5, 4).place_with(NewLog::None).unwrap(), &disks).unwrap();
    if !lists {
        for disk in &disks {
            let mut superblock = superblock_on(disk);
            superblock.member.bad_block_log = None;
            disk.poke(4096, &superblock.encode(512).unwrap());
        }
    }
    let mut scene = Scene::over(world, disks, 4, options);
    scene.write(0, 960, false).unwrap();
    let spare = scene.world.add_disk(SimDiskConfig::new("spare", 2048 * 512));
    let (array, source) = (scene.array.clone(), spare.source());
    scene.run(async move { array.add(source, Uuid([90; 16])).await }).unwrap();
    scene.write(0, 96, false).unwrap();
    spare.fault(&Fault::Hang);
    let array = scene.array.clone();
    scene.world.spawn(0, "replace", async move { drop(array.replace(2, None, Uuid([91; 16])).await) });
    let asked = spare.counters().writes;
    scene.world.run_until(STEPS, |_| spare.counters().writes > asked).unwrap();

    let (disk, data) = (scene.disks[LOST].clone(), DATA_SECTOR * 512);
    let list = superblock_on(&disk).bad_block_log_sector();
    disk.fault(&Fault::UnwritableRange(data..data + 4096));
    if let Some(list) = list {
        disk.fault(&Fault::UnwritableRange(list.0 * 512..list.0 * 512 + 4096));
    }
    let (volume, ledger, over) = (scene.volume(), Rc::clone(&scene.ledger), Rc::new(Cell::new(false)));
    let there = Rc::clone(&over);
    scene.world.spawn(0, "change", async move {
        match missed {
            Missed::Write => write(&volume, &ledger, 0, 96, false).await.unwrap(),
            Missed::Zeroes => {
                let id = ledger.borrow_mut().begin_zeroes(0..96, false);
                volume.write_zeroes(0, STRIPE, false).await.unwrap();
                ledger.borrow_mut().complete_write(id, true);
            }
        }
        there.set(true);
    });
    scene.run(async { shard::sleep(20 * MILLISECOND).await });
    assert!(!over.get(), "it was answered before the superblocks say that a member missed it");
    spare.fault(&Fault::Release);
    scene.world.run_until(STEPS, |_| over.get()).unwrap();
    let failed = &scene.array.detail().failed;
    assert!(failed.iter().any(|failed| failed.slot == Some(LOST)), "{failed:?}");
    disk.fault(&Fault::Heal);
    let (array, source) = (scene.array.clone(), disk.source());
    let added = scene.run(async move { array.add(source, Uuid([92; 16])).await });
    let array = scene.array.clone();
    scene.world.run_until(STEPS, |_| array.detail().missing == 0).unwrap();
    scene.read_all();
    assert_eq!(scene.check(), 0, "{added:?}");
}

#[test]
fn what_a_member_missed_while_the_controller_waited_is_made_good() {
    for (missed, lists) in
        [(Missed::Write, false), (Missed::Zeroes, false), (Missed::Write, true), (Missed::Zeroes, true)]
    {
        for seed in 0..4 {
            a_member_misses_a_change_while_the_controller_waits(seed, missed, lists);
        }
    }
}

/// One claim may wait in the table, and waits there. A write of another stripe that comes then waits for that
/// place, and is answered before a later one of the same sectors has its stripe.
fn a_write_waits_for_a_place_and_another_comes_later(seed: u64) {
    let options = ArrayOptions { waiters_per_shard: 1, gather_ns: 0, ..options() };
    let mut world = World::new(WorldConfig::new(seed, 1));
    let disks = (0..4).map(|disk| SimDiskConfig {
        latency_ns_max: 10_001,
        latency_tail: 0,
        ..SimDiskConfig::new(&format!("disk{disk}"), 2048 * 512)
    });
    let disks: Vec<SimDisk> = disks.map(|disk| world.add_disk(disk)).collect();
    lay_out(&mut world, shape(Level::Raid5, 4).place_with(NewLog::None).unwrap(), &disks).unwrap();
    let mut scene = Scene::over(world, disks, 4, options);
    scene.write(0, 960, false).unwrap();
    let ended = Rc::new(Cell::new(0));
    let slow_by = |scene: &Scene, factor| scene.disks.iter().for_each(|d| d.fault(&Fault::SlowBy(factor)));
    let begin = |scene: &mut Scene, sector: u64, sectors: u64| {
        let (volume, ledger, ended) = (scene.volume(), Rc::clone(&scene.ledger), Rc::clone(&ended));
        scene.world.spawn(0, "write", async move {
            write(&volume, &ledger, sector, sectors, false).await.unwrap();
            ended.set(ended.get() + 1);
        });
        scene.run(async { shard::sleep(MILLISECOND / 100).await });
    };
    // A millisecond for the first stripe, and more than ten for the second, for which one waits in the table.
    slow_by(&scene, 100);
    begin(&mut scene, 0, 96);
    slow_by(&scene, 1000);
    for sector in [100, 101] {
        begin(&mut scene, sector, 1);
    }
    slow_by(&scene, 10);

    let earlier = Rc::new(Cell::new(None));
    for after in [0, 1] {
        let (volume, ledger) = (scene.volume(), Rc::clone(&scene.ledger));
        let (earlier, ended) = (Rc::clone(&earlier), Rc::clone(&ended));
        scene.world.spawn(0, "write of a pair", async move {
            // The earlier one finds the stripe claimed, the later one doesn't any more.
            while ended.get() < after {
                shard::sleep(MILLISECOND / 100).await;
            }
            let mut data = shard::buffer(512);
            let id = ledger.borrow_mut().begin_write(5, &mut data, false);
            if let Some(earlier) = earlier.replace(Some(id)) {
                ledger.borrow_mut().order(earlier, id);
            }
            volume.write(5 * 512, data.freeze(), false).await.unwrap();
            ledger.borrow_mut().complete_write(id, true);
            ended.set(ended.get() + 1);
        });
    }
    scene.run(async { shard::sleep(MILLISECOND / 10).await });
    assert_eq!(ended.get(), 0, "a write is answered already");
    scene.world.run_until(STEPS, |_| ended.get() == 3).unwrap();
    scene.world.run_until(STEPS, |_| ended.get() == 5).unwrap();
    scene.is_right_and_stays_so();
}

#[test]
fn a_write_that_waits_for_a_place_goes_before_later_ones_of_its_stripe() {
    (0..4).for_each(a_write_waits_for_a_place_and_another_comes_later);
}

#[cfg(feature = "mutants")]
#[test]
fn a_write_that_is_passed_where_it_waits_for_a_place_is_found() {
    use pinstripe_engine::mutants::Mutant;
    let scene = a_write_waits_for_a_place_and_another_comes_later;
    assert!(arrays::defects::find(Mutant::LinePassed, 4, scene).is_some());
}
