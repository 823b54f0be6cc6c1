//! Crashes of arrays with a log around what else happens to them: the log begins or goes, or a member fails. The log says that
//! parity matches; it must be right.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

mod arrays;

use std::{cell::Cell, rc::Rc};

use arrays::{STEPS, options, scene::wish};
use pinstripe_engine::{
    array::{Array, CommandError},
    consistency::Policy,
    create::create_with,
    options::ArrayOptions,
    volume::Volume,
};
use pinstripe_md::{
    level::Level,
    placement::{InitialSync, NewBitmap, NewLog},
};
use pinstripe_runtime::shard;
use pinstripe_sim::{Fault, Rng, SimDisk, SimDiskConfig, World, WorldConfig};

const CHUNK: u64 = 8 << 10;
const MEMBER_BYTES: u64 = 1 << 20;
const BOTH: [(Level, NewLog); 2] = [(Level::Raid5, NewLog::Ppl), (Level::Raid6, NewLog::DoubleParity)];

struct Story {
    world: World,
    disks: Vec<SimDisk>,
    rng: Rng,
    array: Option<Array>,
}

impl Story {
    /// An array of five disks with volatile caches, in service.
    fn new(seed: u64, level: Level, log: NewLog) -> Self {
        let mut world = World::new(WorldConfig::new(seed, 1));
        let disks: Vec<SimDisk> =
            (0..5).map(|i| world.add_disk(SimDiskConfig::new(&format!("disk{i}"), MEMBER_BYTES))).collect();
        let attached = disks.clone();
        let wish = wish(level, 5, CHUNK, NewBitmap::None, InitialSync::AssumeClean);
        let made = async move {
            let devices: Vec<_> = attached.iter().map(SimDisk::attach).collect();
            create_with(&wish, log, &devices).await
        };
        world.block_on(0, "create", STEPS, made).unwrap().unwrap();
        let mut story = Self { world, disks, rng: Rng::new(seed), array: None };
        story.assemble();
        story
    }

    fn assemble(&mut self) {
        let sources = self.disks.iter().map(SimDisk::source).collect();
        let options = ArrayOptions { safe_mode_delay_ns: 50_000_000, ..options() };
        self.array = Some(arrays::assemble(&mut self.world, sources, options).unwrap());
    }

    fn array(&self) -> Array {
        self.array.clone().unwrap()
    }

    /// Has somebody write here and there in the first stripes for good, without a flush.
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
        self.assemble();
        let array = self.array();
        let settled = |_: &World| array.detail().regions_to_resync == 0;
        self.world.run_until(STEPS, settled).unwrap();
        let array = self.array();
        let report = self.world.block_on(0, "check", STEPS, async move { array.check().await });
        report.unwrap().unwrap().mismatched_sectors
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

/// A member fails under writers, and a crash comes soon after, perhaps before any superblock says so: then it is back, and
/// current. Sectors that don't match then.
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

const REFUSED: Fault = Fault::UnwritableRange((128 << 10)..(512 << 10));

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

    fn is_found(mutant: Mutant, wrong: impl FnMut(u64) -> u64) -> bool {
        activate(Some(mutant));
        let found = (0..300).map(wrong).any(|wrong| wrong > 0);
        activate(None);
        found
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
}
