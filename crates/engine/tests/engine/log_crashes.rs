//! Crashes of arrays with a log around what else happens to them: the log begins or goes, or a member fails.
//! The log says that parity matches; it must be right.

use std::{cell::Cell, ops::Range, rc::Rc, sync::Arc};

use crate::arrays::{
    self, STEPS, options,
    scene::{DATA_SECTOR, lay_out, list_as_bad, plain_disks, superblock_on, wish},
};
use pinstripe_engine::{
    array::{Array, CommandError, Policy},
    assembly::AssembleError,
    geometry::{Geometry, ParityGeometry, StripeId},
    io::volume::Volume,
    options::{ArrayOptions, SyncSpeed},
};
use pinstripe_md::{
    double_parity_log::Identity,
    level::Level,
    placement::{InitialSync, NewArray, NewBitmap, NewLog},
    superblock::ResyncOffset,
    units::Sector,
};
use pinstripe_runtime::{DeviceSource, shard};
use pinstripe_sim::{Fault, Rng, SimDisk, World, WorldConfig};

const CHUNK: u64 = 8 << 10;
const MEMBER_BYTES: u64 = 1 << 20;
/// The sector of a page that can't be read or written.
const LATENT: u64 = 3;
const BOTH: [(Level, NewLog); 2] = [(Level::Raid5, NewLog::Ppl), (Level::Raid6, NewLog::DoubleParity)];

fn low(number: u64) -> usize {
    usize::try_from(number).unwrap()
}

struct Story {
    world: World,
    disks: Vec<SimDisk>,
    rng: Rng,
    array: Option<Array>,
}

impl Story {
    /// An array of five disks with volatile caches, in service.
    fn new(seed: u64, level: Level, log: NewLog) -> Self {
        Self::with_data_at(DATA_SECTOR, seed, level, log)
    }

    /// The same with what is before `data_sector` for superblock and log.
    fn with_data_at(data_sector: u64, seed: u64, level: Level, log: NewLog) -> Self {
        let mut world = World::new(WorldConfig::new(seed, 1));
        let disks = plain_disks(&mut world, [MEMBER_BYTES / 512; 5]);
        let wish = wish(level, 5, CHUNK, NewBitmap::None, InitialSync::AssumeClean);
        let wish = NewArray { data_offset: Some(Sector(data_sector)), ..wish };
        lay_out(&mut world, wish.place_with(log).unwrap(), &disks).unwrap();
        let mut story = Self { world, disks, rng: Rng::new(seed), array: None };
        story.assemble();
        story
    }

    fn assemble(&mut self) {
        self.array = Some(self.try_without(&[]).unwrap());
    }

    fn try_without(&mut self, missing: &[usize]) -> Result<Array, AssembleError> {
        let options = ArrayOptions { safe_mode_delay_ns: 50_000_000, ..options() };
        let sources = self.sources(missing);
        arrays::assemble(&mut self.world, sources, options)
    }

    fn sources(&self, missing: &[usize]) -> Vec<Arc<dyn DeviceSource>> {
        let here = (0..self.disks.len()).filter(|disk| !missing.contains(disk));
        here.map(|disk| self.disks[disk].source()).collect()
    }

    /// The bytes of a disk that are its log.
    fn log(&self, disk: usize) -> Range<u64> {
        let superblock = superblock_on(&self.disks[disk]);
        let area = superblock.member.ppl.or(superblock.member.double_parity_log).unwrap();
        let start = (8 + u64::try_from(area.offset).unwrap()) * 512;
        start..start + u64::from(area.size) * 512
    }

    /// A page of a disk's log, counted from its beginning or end, can't be read.
    fn spoil_log(&self, disk: usize, page: i64) {
        let Range { start, end } = self.log(disk);
        let base = if page < 0 { end } else { start };
        let at = base.checked_add_signed(page * 4096).unwrap();
        self.disks[disk].fault(&Fault::UnreadableRange(at + 512..at + 1024));
    }

    fn geometry(&self) -> ParityGeometry {
        let array = self.array();
        let Geometry::Parity(geometry) = &array.shared().geometry else { panic!("it has parity") };
        *geometry
    }

    fn array(&self) -> Array {
        self.array.clone().unwrap()
    }

    /// Starts tasks that write here and there in the first stripes until they get an error, without a flush.
    fn spawn_writers(&mut self, writers: u64) {
        for number in 0..writers {
            let (volume, mut rng): (Volume, _) = (self.array().volume().clone(), self.rng.fork(number));
            self.world.spawn(0, "writer", async move {
                loop {
                    let mut data = shard::buffer(512 << rng.below(5));
                    rng.fill(&mut data);
                    let offset = rng.below(64) * 4096;
                    if volume.write(offset, data.freeze(), false).await.is_err() {
                        break;
                    }
                }
            });
        }
    }

    fn steps(&mut self, steps: u64) {
        for _ in 0..steps {
            let _ = self.world.step();
        }
    }

    /// Power loss; then the array is started with all its disks, and parity is looked at.
    fn crash_and_check(&mut self) -> u64 {
        self.crash();
        self.assemble();
        self.check()
    }

    fn crash(&mut self) {
        {
            let _entered = self.world.enter(0);
            self.array = None;
        }
        self.world.crash();
        for disk in &self.disks {
            disk.fault(&Fault::Heal);
            if disk.is_gone() {
                disk.fault(&Fault::Return);
            }
        }
    }

    /// Sectors of the members that no P of theirs matches, but for one of each page.
    fn mismatched(&self, geometry: &ParityGeometry, but_for: u64) -> u64 {
        let mut wrong = 0;
        for stripe in (0..geometry.stripes()).map(StripeId) {
            let map = geometry.slots(stripe);
            let at = DATA_SECTOR * 512 + geometry.member_offset(stripe);
            let read = |slot: usize| self.disks[slot].peek(at, usize::try_from(CHUNK).unwrap());
            let mut p = read(map.p_slot().index());
            for column in 0..map.columns() {
                let data = read(map.data_slot(column).index());
                p.iter_mut().zip(data).for_each(|(p, data)| *p ^= data);
            }
            let sectors = p.chunks(512).enumerate().filter(|(sector, _)| *sector as u64 % 8 != but_for);
            wrong += sectors.filter(|(_, sector)| sector.iter().any(|byte| *byte != 0)).count() as u64;
        }
        wrong
    }

    /// Counts sectors with parity that doesn't match after the resync.
    fn check(&mut self) -> u64 {
        let array = self.array();
        let settled = |_: &World| array.detail().regions_to_resync == 0;
        self.world.run_until(STEPS, settled).unwrap();
        let array = self.array();
        let report = self.world.block_on(0, "check", STEPS, async move { array.check().await });
        report.unwrap().unwrap().mismatched_sectors
    }
}

/// Writers, and a crash. Sectors that don't match then. A partial parity log has place for one record or for
/// several.
fn a_crash_comes(seed: u64, level: Level, log: NewLog) -> u64 {
    let data_sector = if seed.is_multiple_of(2) { DATA_SECTOR } else { 4 * DATA_SECTOR };
    let mut story = Story::with_data_at(data_sector, seed, level, log);
    story.spawn_writers(6);
    let steps = 500 + story.rng.below(1500);
    story.steps(steps);
    story.crash_and_check()
}

/// Stripes are zeroed among writers, and a crash comes. Sectors that don't match then.
fn stripes_are_zeroed_and_a_crash_comes(seed: u64, level: Level, log: NewLog) -> u64 {
    let mut story = Story::new(seed, level, log);
    story.spawn_writers(3);
    let stripe_bytes = (5 - u64::from(level.parity_count())) * CHUNK;
    for number in 10..13 {
        let (volume, mut rng): (Volume, _) = (story.array().volume().clone(), story.rng.fork(number));
        story.world.spawn(0, "zeroes", async move {
            while volume.write_zeroes(rng.below(8) * stripe_bytes, stripe_bytes, false).await.is_ok() {}
        });
    }
    let steps = 500 + story.rng.below(1500);
    story.steps(steps);
    story.crash_and_check()
}

/// The members of an array of level 6 have logs of different lengths, so short that the longer writes of one
/// column are logged in pieces. A crash comes in the middle of such writes. Sectors that don't match then.
fn a_crash_comes_where_logs_are_of_different_lengths(seed: u64) -> u64 {
    const COLUMN: u64 = 4 * CHUNK;
    let mut world = World::new(WorldConfig::new(seed, 1));
    let disks = plain_disks(&mut world, [MEMBER_BYTES / 512; 5]);
    let wish = wish(Level::Raid6, 5, COLUMN, NewBitmap::None, InitialSync::AssumeClean);
    let mut placed = wish.place_with(NewLog::DoubleParity).unwrap();
    for superblock in placed.superblocks.iter_mut().step_by(2) {
        let area = superblock.member.double_parity_log.as_mut().unwrap();
        area.size = area.size * 5 / 6 / 8 * 8;
    }
    lay_out(&mut world, placed, &disks).unwrap();
    let mut story = Story { world, disks, rng: Rng::new(seed), array: None };
    story.assemble();
    for number in 0..6 {
        let (volume, mut rng): (Volume, _) = (story.array().volume().clone(), story.rng.fork(number));
        story.world.spawn(0, "writer", async move {
            loop {
                let mut data = shard::buffer(usize::try_from(COLUMN).unwrap());
                rng.fill(&mut data);
                if volume.write(rng.below(24) * COLUMN, data.freeze(), false).await.is_err() {
                    break;
                }
            }
        });
    }
    let steps = 500 + story.rng.below(1500);
    story.steps(steps);
    story.crash_and_check()
}

/// Power fails while an array stops that lacks a member. It starts again, whatever step that was.
#[test]
fn a_crash_in_a_stop_without_a_member_needs_no_force() {
    for (level, log) in BOTH {
        for steps in 0..60 {
            let mut story = Story::new(steps, level, log);
            let array = story.array();
            story.world.block_on(0, "fail", STEPS, async move { array.fail(1).await }).unwrap().unwrap();
            story.spawn_writers(2);
            story.steps(400);
            let array = story.array();
            story.world.spawn(0, "stop", async move {
                let _ = array.stop().await;
            });
            story.steps(steps * 4);
            story.world.crash();
            story.array =
                Some(story.try_without(&[1]).unwrap_or_else(|error| panic!("{level}, {steps}: {error}")));
        }
    }
}

/// A log begins under writers, and a crash comes soon after. Sectors that don't match then.
fn a_log_begins_and_a_crash_comes(seed: u64, level: Level, policy: Policy) -> u64 {
    let mut story = Story::new(seed, level, NewLog::None);
    story.spawn_writers(6);
    story.steps(2000);
    let (array, done) = (story.array(), Rc::new(Cell::new(false)));
    let there = Rc::clone(&done);
    story.world.spawn(0, "policy", async move {
        array.set_policy(policy).await.unwrap();
        there.set(true);
    });
    story.world.run_until(STEPS, |_| done.get()).unwrap();
    let more = story.rng.below(200);
    story.steps(more);
    story.crash_and_check()
}

/// A member fails under writers, and a crash comes soon after, perhaps before any superblock says so: then it
/// is back, and current. Sectors that don't match then.
fn a_member_fails_and_a_crash_comes(seed: u64, level: Level, log: NewLog, fault: &Fault) -> u64 {
    let mut story = Story::new(seed, level, log);
    story.spawn_writers(6);
    let before = 500 + story.rng.below(500);
    story.steps(before);
    let victim = story.rng.below(5);
    story.disks[usize::try_from(victim).unwrap()].fault(fault);
    let after = 1 << story.rng.below(9);
    story.steps(after);
    story.crash_and_check()
}

/// Writers, and power fails. Then a page of a log can't be read.
fn a_log_is_damaged_by_a_crash(seed: u64, level: Level, log: NewLog, page: i64) -> (Story, usize) {
    let mut story = Story::new(seed, level, log);
    story.spawn_writers(6);
    let steps = 500 + story.rng.below(1500);
    story.steps(steps);
    story.crash();
    let victim = usize::try_from(story.rng.below(5)).unwrap();
    story.spoil_log(victim, page);
    (story, victim)
}

/// What is wrong with one sector of each page of a disk after a crash.
#[derive(Clone, Copy, Debug)]
enum Sectors {
    Unreadable,
    Listed,
    ListedAndRefused,
    Refused,
    RefusedWithoutList,
}

/// A crash in the middle of writes, and behind it something is wrong with one sector of each page of a disk.
/// The log is replayed then.
fn replayed_beside(seed: u64, level: Level, log: NewLog, what: Sectors) -> Story {
    let mut story = Story::new(seed, level, log);
    story.spawn_writers(6);
    let steps = 500 + story.rng.below(1500);
    story.steps(steps);
    let geometry = story.geometry();
    story.crash();
    let victim = usize::try_from(story.rng.below(5)).unwrap();
    if matches!(what, Sectors::RefusedWithoutList) {
        let mut superblock = superblock_on(&story.disks[victim]);
        superblock.member.bad_block_log = None;
        story.disks[victim].poke(4096, &superblock.encode(512).unwrap());
    }
    if matches!(what, Sectors::Listed | Sectors::ListedAndRefused) {
        let pages = (0..256).step_by(8);
        list_as_bad(&story.disks[victim], pages.map(|page| DATA_SECTOR + page + LATENT));
    }
    for page in (0..geometry.member_bytes()).step_by(4096) {
        let place = DATA_SECTOR * 512 + page + LATENT * 512;
        let range = place..place + 512;
        match what {
            Sectors::Unreadable => story.disks[victim].fault(&Fault::UnreadableRange(range)),
            Sectors::Listed => {}
            Sectors::ListedAndRefused | Sectors::Refused | Sectors::RefusedWithoutList => {
                story.disks[victim].fault(&Fault::UnwritableRange(range));
            }
        }
    }
    story.assemble();
    story
}

/// Counts the other sectors of P that don't match after the replay.
fn sectors_not_replayed(seed: u64, level: Level, log: NewLog, what: Sectors) -> u64 {
    let story = replayed_beside(seed, level, log, what);
    assert_eq!(story.array().detail().regions_to_resync, 0, "seed {seed}");
    story.mismatched(&story.geometry(), LATENT)
}

/// A double-parity log begins on an array in service, and power fails about then. What it was called, if it
/// had begun, and what the next one is called.
fn incarnations(seed: u64) -> (Option<u64>, u64) {
    let mut story = Story::new(seed, Level::Raid6, NewLog::None);
    story.spawn_writers(3);
    story.steps(500);
    let array = story.array();
    story.world.spawn(0, "policy", async move {
        let _ = array.set_policy(Policy::DoubleParityLog).await;
    });
    let array = story.array();
    story.world.run_until(STEPS, |_| array.detail().consistency_policy == "double-parity-log").unwrap();
    drop(array);
    let steps = story.rng.below(1000);
    story.steps(steps);
    story.crash();
    let names = |story: &Story| -> Vec<u64> {
        let name = |disk: &SimDisk| {
            let superblock = superblock_on(disk);
            let at = superblock.double_parity_log_sector()?.0 * 512;
            let anchor = Identity::of_anchor(&disk.peek(at, 4096), superblock.array.set_uuid)?;
            Some(anchor.incarnation)
        };
        story.disks.iter().filter_map(name).collect()
    };
    let before = names(&story).into_iter().max().filter(|name| *name > 0);
    // Nothing is written: the log begins when the resync is through, or with the first write.
    story.assemble();
    assert_eq!(story.check(), 0, "seed {seed}");
    story.steps(2000);
    story.spawn_writers(1);
    story.steps(2000);
    let now = names(&story);
    assert!(now.iter().all(|name| *name == now[0]), "seed {seed}: {now:?}");
    (before, now[0])
}

const REFUSED: Fault = Fault::UnwritableRange((128 << 10)..(512 << 10));

#[test]
fn what_was_zeroed_before_a_crash_matches_when_the_log_has_forgotten_it() {
    for seed in 0..30 {
        for (level, log) in BOTH {
            let mismatched = stripes_are_zeroed_and_a_crash_comes(seed, level, log);
            assert_eq!(mismatched, 0, "seed {seed}, {level:?}");
        }
    }
}

#[test]
fn what_was_being_written_at_a_crash_matches() {
    for seed in 0..30 {
        for (level, log) in BOTH {
            assert_eq!(a_crash_comes(seed, level, log), 0, "{level}, seed {seed}");
        }
    }
}

#[test]
fn what_was_being_written_at_a_crash_matches_although_the_members_logs_differ_in_length() {
    for seed in 0..24 {
        assert_eq!(a_crash_comes_where_logs_are_of_different_lengths(seed), 0, "seed {seed}");
    }
}

#[test]
fn a_log_that_begins_on_a_live_array_leaves_nothing_in_the_caches_that_it_does_not_cover() {
    for seed in 0..12 {
        for (level, policy) in [(Level::Raid5, Policy::Ppl), (Level::Raid6, Policy::DoubleParityLog)] {
            assert_eq!(a_log_begins_and_a_crash_comes(seed, level, policy), 0, "{level}, seed {seed}");
        }
    }
}

#[test]
fn a_row_written_without_a_member_that_is_not_recorded_as_lost_matches_after_a_crash() {
    for seed in 0..60 {
        for (level, log) in BOTH {
            let wrong = a_member_fails_and_a_crash_comes(seed, level, log, &Fault::Gone);
            assert_eq!(wrong, 0, "{level}, seed {seed}");
        }
    }
}

#[test]
fn the_log_keeps_what_a_member_has_refused_until_that_is_recorded() {
    for seed in 0..60 {
        for (level, log) in BOTH {
            let wrong = a_member_fails_and_a_crash_comes(seed, level, log, &REFUSED);
            assert_eq!(wrong, 0, "{level}, seed {seed}");
        }
    }
}

#[test]
fn a_log_of_which_a_page_can_not_be_read_costs_a_resync_and_nothing_else() {
    for seed in 0..12 {
        for (level, log) in BOTH {
            let (mut story, _) = a_log_is_damaged_by_a_crash(seed, level, log, 0);
            story.assemble();
            let detail = story.array().detail();
            assert!(detail.regions_to_resync > 0, "{level}, seed {seed}");
            assert_eq!(story.check(), 0, "{level}, seed {seed}");
            let policy = if level == Level::Raid5 { "ppl" } else { "double-parity-log" };
            assert_eq!(story.array().detail().consistency_policy, policy, "and it is used again");
            story.spawn_writers(3);
            story.steps(1000);
            story.crash();
            let array = story.try_without(&[1]).unwrap();
            assert_eq!(array.detail().regions_to_resync, 0, "{level}, seed {seed}");
        }
    }
}

#[test]
fn a_log_of_which_a_page_can_not_be_read_does_not_start_an_array_without_a_member() {
    for seed in 0..6 {
        for (level, log) in BOTH {
            let (mut story, victim) = a_log_is_damaged_by_a_crash(seed, level, log, 0);
            let missing = (victim + 1) % 5;
            let refused = story.try_without(&[missing]).err().unwrap();
            let AssembleError::LogUnreadable { name, missing: 1, bears } = &refused else {
                panic!("{level}, seed {seed}: {refused}")
            };
            assert_eq!((name.as_str(), *bears), (format!("disk{victim}").as_str(), level == Level::Raid6));
            if *bears {
                // As the message says.
                assert!(refused.to_string().contains("leave this device out"), "{refused}");
                let array = story.try_without(&[missing, victim]).unwrap();
                assert_eq!(array.detail().regions_to_resync, 0);
            }
        }
    }
}

#[test]
fn a_page_of_a_partial_parity_log_that_no_record_reaches_may_be_unreadable() {
    for seed in 0..6 {
        let (mut story, victim) = a_log_is_damaged_by_a_crash(seed, Level::Raid5, NewLog::Ppl, -1);
        let array = story.try_without(&[(victim + 1) % 5]).unwrap();
        assert_eq!(array.detail().regions_to_resync, 0, "seed {seed}");
    }
}

/// Each seed and level, with sectors of a page that replay leaves out, and no others.
fn replay_leaves_out_no_more_than(sectors: Sectors) {
    for seed in 0..24 {
        for (level, log) in BOTH {
            let wrong = sectors_not_replayed(seed, level, log, sectors);
            assert_eq!(wrong, 0, "{level}, seed {seed}");
        }
    }
}

#[test]
fn a_sector_that_can_not_be_read_keeps_replay_from_itself_and_not_from_its_page() {
    replay_leaves_out_no_more_than(Sectors::Unreadable);
}

#[test]
fn a_sector_that_is_listed_keeps_replay_from_itself_and_not_from_its_page() {
    replay_leaves_out_no_more_than(Sectors::Listed);
}

#[test]
fn a_listed_sector_that_is_still_refused_does_not_keep_a_log_from_its_replay() {
    replay_leaves_out_no_more_than(Sectors::ListedAndRefused);
}

/// What can't be listed must not be taken for parity that matches.
#[test]
fn a_sector_that_is_refused_and_can_not_be_listed_costs_a_resync() {
    for (level, log) in BOTH {
        let resyncs = |seed: &u64| {
            let story = replayed_beside(*seed, level, log, Sectors::RefusedWithoutList);
            story.array().detail().regions_to_resync > 0
        };
        let count = (0..12).filter(resyncs).count();
        assert!(count > 3, "{level}: {count}");
    }
}

/// Two members refuse sectors in a replay, and power fails while these are listed: what isn't listed by then
/// must not pass for parity that matches.
#[test]
fn power_may_fail_while_sectors_are_listed_that_a_replay_could_not_write() {
    for (level, log) in BOTH {
        let mut cut = 0;
        for seed in 0..40 {
            let mut story = Story::new(seed, level, log);
            story.spawn_writers(6);
            let steps = 500 + story.rng.below(1500);
            story.steps(steps);
            story.crash();
            let victims = [low(seed % 5), low((seed + 1 + seed / 5 % 4) % 5)];
            for disk in victims.map(|victim| &story.disks[victim]) {
                let sectors = (0..256).step_by(8).map(|page| DATA_SECTOR + page + LATENT);
                sectors.for_each(|at| disk.fault(&Fault::UnwritableRange(at * 512..(at + 1) * 512)));
            }
            let (sources, shards) = (story.sources(&[]), vec![story.world.shard(0).handle()]);
            story.world.spawn(0, "assemble", async move {
                let _ = Array::assemble(sources, options(), shards).await;
            });
            let disks = story.disks.clone();
            let is_clean = |disk| superblock_on(disk).array.resync_offset == ResyncOffset::Clean;
            let _ = story.world.run_until(4000, |_| disks.iter().any(is_clean));
            cut += u64::from(disks.iter().any(is_clean));
            story.steps(seed % 7);
            assert_eq!(story.crash_and_check(), 0, "{level}, seed {seed}");
        }
        assert!(cut > 10, "{level}: {cut} of the starts wrote clean superblocks");
    }
}

#[test]
fn a_sector_that_is_refused_for_the_first_time_is_listed() {
    replay_leaves_out_no_more_than(Sectors::Refused);
}

/// The log can't be read, and the resync that this costs is cut off by another crash. By then the log can be
/// read, and knows nothing of what was written meanwhile.
#[test]
fn a_log_from_before_a_resync_is_not_believed_after_it_was_cut_off() {
    for seed in 0..8 {
        let (mut story, victim) = a_log_is_damaged_by_a_crash(seed, Level::Raid5, NewLog::Ppl, 0);
        story.assemble();
        story.array().set_sync_speed(SyncSpeed { min_kib: 1, max_kib: 1 }).unwrap();
        story.spawn_writers(3);
        story.steps(1000);
        assert!(story.array().detail().regions_to_resync > 0 && story.array().detail().statistics.writes > 0);
        story.crash();
        let refused = story.try_without(&[victim]).err().unwrap();
        assert!(matches!(refused, AssembleError::DirtyDegraded { .. }), "seed {seed}: {refused}");
        story.assemble();
        assert!(story.array().detail().regions_to_resync > 0, "seed {seed}");
        assert_eq!(story.check(), 0, "seed {seed}");
        assert_eq!(story.array().detail().consistency_policy, "ppl", "and it is used again");
    }
}

/// Each time that the array turns dirty while the log waits for the resync.
#[test]
fn a_log_from_before_a_resync_is_emptied_once() {
    const MARK: [u8; 512] = [0x5a; 512];
    let (mut story, _) = a_log_is_damaged_by_a_crash(1, Level::Raid5, NewLog::Ppl, 0);
    story.assemble();
    let array = story.array();
    array.pause_sync(true);
    let at = story.log(0).end - 512;
    story.disks[0].poke(at, &MARK);
    for is_first in [true, false] {
        let volume = array.volume().clone();
        let write = async move { volume.write(0, shard::zeroed(4096).freeze(), false).await };
        story.world.block_on(0, "write", STEPS, write).unwrap().unwrap();
        assert_eq!(story.disks[0].peek(at, 512) == MARK, !is_first);
        story.disks[0].poke(at, &MARK);
        story.world.run_until(STEPS, |_| array.detail().state == "clean").unwrap();
    }
}

#[test]
fn a_double_parity_log_is_never_called_as_it_was_before() {
    let mut begun = 0;
    for seed in 0..40 {
        let (before, now) = incarnations(seed);
        assert!(before.is_none_or(|before| now > before), "seed {seed}: {before:?}, and then {now}");
        begun += usize::from(before.is_some());
    }
    assert!(begun > 10, "of 40 logs {begun} had begun");
}

#[test]
fn two_changes_of_the_policy_at_once_leave_one_of_them() {
    for seed in 0..8 {
        for (level, log) in [(Level::Raid5, Policy::Ppl), (Level::Raid6, Policy::DoubleParityLog)] {
            let mut story = Story::new(seed, level, NewLog::None);
            story.spawn_writers(2);
            let open = Rc::new(Cell::new(0));
            for policy in [log, Policy::Bitmap, log, Policy::Resync, Policy::Bitmap] {
                open.set(open.get() + 1);
                let (array, open) = (story.array(), Rc::clone(&open));
                story.world.spawn(0, "policy", async move {
                    match array.set_policy(policy).await {
                        Ok(()) | Err(CommandError::Policy(_) | CommandError::Bitmap(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                    open.set(open.get() - 1);
                });
                let between = story.rng.below(60);
                story.steps(between);
            }
            story.world.run_until(STEPS, |_| open.get() == 0).unwrap();
            assert_eq!(story.crash_and_check(), 0, "{level}, seed {seed}");
        }
    }
}

#[cfg(feature = "mutants")]
mod defects {
    use pinstripe_engine::mutants::{Mutant, activate};

    use super::*;

    /// Whether a seed finds the defect, and nothing without it.
    fn is_found(mutant: Mutant, mut wrong: impl FnMut(u64) -> u64) -> bool {
        activate(Some(mutant));
        let found = (0..300).find(|&seed| wrong(seed) > 0);
        activate(None);
        found.is_some_and(|seed| wrong(seed) == 0)
    }

    #[test]
    fn a_record_that_goes_before_its_rows_are_written_is_found() {
        assert!(is_found(Mutant::LogRecordForgotten, |seed| a_crash_comes(seed, Level::Raid5, NewLog::Ppl)));
    }

    #[test]
    fn a_log_that_begins_with_unflushed_rows_is_found() {
        let begins = |seed| a_log_begins_and_a_crash_comes(seed, Level::Raid5, Policy::Ppl);
        assert!(is_found(Mutant::LogBeginsUnflushed, begins));
    }

    #[test]
    fn a_log_that_forgets_what_a_member_refused_is_found() {
        let fails = |seed| a_member_fails_and_a_crash_comes(seed, Level::Raid5, NewLog::Ppl, &REFUSED);
        assert!(is_found(Mutant::LogForgetsFailure, fails));
    }

    #[test]
    fn a_row_written_before_the_loss_of_a_member_is_recorded_is_found() {
        let fails =
            |seed| a_member_fails_and_a_crash_comes(seed, Level::Raid6, NewLog::DoubleParity, &Fault::Gone);
        assert!(is_found(Mutant::LogBeforeRecord, fails));
    }

    #[test]
    fn a_log_that_can_not_be_read_and_passes_for_empty_is_found() {
        for (level, log) in BOTH {
            let wrong = |seed| {
                let (mut story, _) = a_log_is_damaged_by_a_crash(seed, level, log, 0);
                story.assemble();
                story.check()
            };
            assert!(is_found(Mutant::UnreadableLogEmpty, wrong), "{level}");
        }
    }

    #[test]
    fn a_replay_that_leaves_whole_pages_is_found() {
        for (level, log) in BOTH {
            let wrong = |seed| sectors_not_replayed(seed, level, log, Sectors::Unreadable);
            assert!(is_found(Mutant::ReplayByPages, wrong), "{level}");
        }
    }

    #[test]
    fn a_log_that_is_called_as_it_was_before_is_found() {
        let wrong = |seed| {
            let (before, now) = incarnations(seed);
            u64::from(before.is_some_and(|before| now <= before))
        };
        assert!(is_found(Mutant::IncarnationFromEvents, wrong));
    }
}
