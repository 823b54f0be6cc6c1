//! The write hole, exhaustively: two writers in one row, a crash at every point with every subset of the
//! writes that were not durable, then every loss within redundancy. The shipped code is assembled on each of
//! the images that come of it.
//!
//! What is exhausted, and within which bounds: chunks of 4 KiB, one row, the pairs of writes in [`PAIRS`],
//! the second of which begins after each number of requests that the first needs; any subset of un-flushed
//! writes reaches the medium, one of which at most is torn, in the middle; crashes in recovery, with all
//! members there; arrays that were whole before, and arrays that had lost each of the members. Equal images
//! with equal histories are tried once.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod disks;

use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
    hash::{DefaultHasher, Hash, Hasher},
    rc::Rc,
    sync::Arc,
};

use disks::{Crash, Images};
use pinstripe_engine::{
    array::Array,
    assembly::{AssembleError, create::create_placed},
    io::volume::Volume,
    options::{ArrayOptions, JournalMode},
};
use pinstripe_md::{
    identity::{SetName, Timestamp, Uuid},
    level::{Layout, Level, ParityLayout},
    placement::{InitialSync, NewArray, NewBitmap, NewDevice, NewLog, PlacedArray, journal::add_journal},
    superblock::MetadataVersion,
    units::{Sector, SectorCount},
};
use pinstripe_runtime::{
    DeviceSource, Shard, ShardConfig, Slice,
    shard::{self, Entered},
};

const CHUNK_SECTORS: u64 = 8;

/// Pairs of writes: first sector and sectors of each, in a row of at least two chunks of eight sectors.
const PAIRS: &[[(u64, u64); 2]] = &[
    // Two chunks; the same chunk; a part of it; parts of two chunks, in the same sectors and in others.
    [(0, 8), (8, 8)],
    [(0, 8), (0, 8)],
    [(0, 8), (2, 3)],
    [(1, 2), (9, 2)],
    [(1, 2), (12, 3)],
    // Over the border of two chunks; two chunks at once; one and the same sector.
    [(5, 6), (8, 8)],
    [(0, 16), (4, 1)],
    [(3, 1), (3, 1)],
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Policy {
    Bitmap,
    Ppl,
    DoubleParity,
    Journal,
    /// A journal that writes back.
    WriteBack,
}

impl Policy {
    fn has_journal(self) -> bool {
        matches!(self, Self::Journal | Self::WriteBack)
    }
}

#[derive(Clone, Copy, Debug)]
struct Setting {
    level: Level,
    members: u8,
    policy: Policy,
    /// A member that had been lost before.
    lost: Option<usize>,
}

impl Setting {
    fn redundancy(&self) -> usize {
        usize::from(self.level.parity_count())
    }

    fn columns(&self) -> usize {
        usize::from(self.members) - self.redundancy()
    }

    fn row_sectors(&self) -> u64 {
        self.columns() as u64 * CHUNK_SECTORS
    }

    fn log(&self) -> NewLog {
        match self.policy {
            Policy::Bitmap | Policy::Journal | Policy::WriteBack => NewLog::None,
            Policy::Ppl => NewLog::Ppl,
            Policy::DoubleParity => NewLog::DoubleParity,
        }
    }

    /// Where data begins: the log lies before it.
    fn data_sector(&self) -> u64 {
        match self.policy {
            Policy::Bitmap | Policy::Ppl | Policy::Journal | Policy::WriteBack => 48,
            Policy::DoubleParity => 72,
        }
    }

    fn device_sectors(&self) -> u64 {
        self.data_sector() + 16
    }

    /// The journal device's: as small as it may be, so that its tail moves in every trial. It is the disk
    /// behind the members, and never lost.
    fn journal_sectors(&self) -> Option<u64> {
        let blocks = 2 * (u64::from(self.members) + 1) + 4;
        // With a little room for the cache: some of the writes find it, others are written through.
        let cache = if self.policy == Policy::WriteBack { 12 } else { 0 };
        self.policy.has_journal().then(|| self.data_sector() + 8 * (blocks + cache))
    }

    fn placed(&self) -> PlacedArray {
        let mut placed = self.wish().place_with(self.log()).unwrap();
        if let Some(sectors) = self.journal_sectors() {
            add_journal(&mut placed, NewDevice { sectors, uuid: Uuid([0x4a; 16]) }, 512).unwrap();
        }
        placed
    }

    fn lost_before(&self) -> Vec<usize> {
        self.lost.into_iter().collect()
    }

    /// Everything that may be lost, within redundancy.
    fn losses(&self) -> Vec<Vec<usize>> {
        let subsets = (0..1usize << self.members)
            .map(|set| (0..usize::from(self.members)).filter(|m| set >> m & 1 == 1).collect());
        let legal = |loss: &Vec<usize>| {
            loss.len() <= self.redundancy()
                && self.lost.is_none_or(|lost| loss.contains(&lost))
                && self.is_first_of_its_kind(loss)
        };
        subsets.filter(legal).collect()
    }

    /// Whether this loss is the first of those that are alike but for which of the unwritten columns they
    /// contain. On level 5 these columns are exchangeable: parity is their sum, whichever is which, and the
    /// log names written columns only. On level 6 each has a coefficient of its own, and all are tried.
    fn is_first_of_its_kind(&self, loss: &[usize]) -> bool {
        let untouched = (2..self.columns() as u64).map(|column| self.member_of(column * CHUNK_SECTORS));
        let lost: Vec<bool> = untouched.map(|slot| loss.contains(&slot)).collect();
        self.level == Level::Raid6 || lost.is_sorted_by(|earlier, later| earlier >= later)
    }

    fn options(&self) -> ArrayOptions {
        ArrayOptions {
            gather_ns: 0,
            parity_cache_bytes: 0,
            wall_clock: || 1,
            // The control: without a log, what is dirty and degraded is started by force only.
            force: self.policy == Policy::Bitmap,
            journal_mode: if self.policy == Policy::WriteBack {
                JournalMode::WriteBack
            } else {
                JournalMode::WriteThrough
            },
            ..ArrayOptions::default()
        }
    }

    fn wish(&self) -> NewArray {
        NewArray {
            set_uuid: Uuid([7; 16]),
            name: SetName::from_bytes([b'x'; 32]),
            created: Timestamp::new(1, 0),
            level: self.level,
            layout: Layout::Parity(ParityLayout::from_name(self.level, "default").unwrap()),
            chunk: SectorCount(CHUNK_SECTORS),
            version: MetadataVersion::V1_2,
            bitmap: match self.policy {
                Policy::Bitmap => NewBitmap::Internal { chunk_bytes: Some(4096) },
                Policy::Ppl | Policy::DoubleParity | Policy::Journal | Policy::WriteBack => NewBitmap::None,
            },
            initial: InitialSync::AssumeClean,
            size: None,
            data_offset: Some(Sector(self.data_sector())),
            logical_block_bytes: 512,
            members: (1..=self.members)
                .map(|i| NewDevice { sectors: self.device_sectors(), uuid: Uuid([i; 16]) })
                .collect(),
            spares: vec![],
        }
    }

    /// The member that holds a sector of the first row: left-symmetric.
    fn member_of(&self, sector: u64) -> usize {
        let members = usize::from(self.members);
        (members - 1 + self.redundancy() + usize::try_from(sector / CHUNK_SECTORS).unwrap()) % members
    }
}

/// What a sector holds that writer `writer` has written; writer 0 filled the array.
fn stamp(writer: u64, sector: u64) -> [u8; 512] {
    let mut bytes = [0; 512];
    let mut state =
        writer.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ sector.wrapping_mul(0xD6E8_FEB8_6659_FD93) ^ 0x1234_5678;
    for byte in &mut bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *byte = state.to_le_bytes()[6];
    }
    bytes
}

/// What is known of the two writes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
struct History {
    begun: [bool; 2],
    acknowledged: [bool; 2],
}

/// One machine: it crashes and starts again.
struct Machine {
    /// Stands still while anything else can go on.
    clock: Rc<Cell<u64>>,
    shard: RefCell<Rc<Shard>>,
    entered: RefCell<Option<Entered>>,
    setting: Setting,
}

impl Machine {
    fn new(setting: Setting) -> Self {
        let clock = Rc::new(Cell::new(0));
        let shard = RefCell::new(Self::shard(&clock));
        let machine = Self { clock, shard, entered: RefCell::default(), setting };
        machine.entered.replace(Some(machine.shard.borrow().enter()));
        machine
    }

    fn shard(clock: &Rc<Cell<u64>>) -> Rc<Shard> {
        Shard::new(&ShardConfig { index: 0, arena_bytes: 0, clock: Some(Rc::clone(clock)) })
    }

    /// Ends the oldest request, or lets time pass until the next timer.
    fn step(&self) {
        if disks::complete_one() {
            return;
        }
        let shard = Rc::clone(&self.shard.borrow());
        let next = shard.next_timer().expect("a task waits for something");
        assert!(next < 3_600_000_000_000, "an hour, and nothing has come of it");
        self.clock.set(self.clock.get().max(next));
        shard.fire_timers();
    }

    fn turn(&self) {
        let shard = Rc::clone(&self.shard.borrow());
        shard.deliver_mail();
        while shard.poll_ready(0) {
            shard.deliver_mail();
        }
    }

    /// Everything that runs is gone, and the disks hold this.
    fn reboot(&self, images: Images, immediate: bool) {
        self.shard.borrow().drop_tasks();
        disks::begin(images, immediate);
        // Timers and memory of what is gone go with the shard.
        self.entered.replace(None);
        self.clock.set(0);
        self.shard.replace(Self::shard(&self.clock));
        self.entered.replace(Some(self.shard.borrow().enter()));
    }

    /// Runs a future to its end.
    fn block_on<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let value = Rc::new(RefCell::new(None));
        let slot = Rc::clone(&value);
        self.shard.borrow().spawn(async move {
            let made = future.await;
            *slot.borrow_mut() = Some(made);
        });
        loop {
            self.turn();
            if let Some(value) = value.take() {
                return value;
            }
            self.step();
        }
    }

    fn assembly(&self, lost: &[usize]) -> impl Future<Output = Result<Array, AssembleError>> + 'static {
        let disks = usize::from(self.setting.members) + usize::from(self.setting.journal_sectors().is_some());
        let sources: Vec<Arc<dyn DeviceSource>> =
            (0..disks).filter(|slot| !lost.contains(slot)).map(disks::source).collect();
        Array::assemble(sources, self.setting.options(), vec![self.shard.borrow().handle()])
    }

    /// A new array with something in it.
    fn prepare(&self) -> Images {
        let setting = self.setting;
        let empty = |sectors: u64| vec![0; usize::try_from(sectors * 512).unwrap()];
        let mut images = vec![empty(setting.device_sectors()); setting.members.into()];
        images.extend(setting.journal_sectors().map(empty));
        let devices = 0..images.len();
        self.reboot(images, true);
        let devices: Vec<_> = devices.map(disks::device).collect();
        self.block_on(async move { create_placed(setting.placed(), &devices).await }).unwrap();
        let array = self.block_on(self.assembly(&[])).unwrap();
        let volume = array.volume().clone();
        self.block_on(async move {
            let data: Vec<u8> = (0..setting.row_sectors()).flat_map(|sector| stamp(0, sector)).collect();
            volume.write(0, slice(&data), true).await.unwrap();
            array.stop().await.unwrap();
        });
        disks::durable()
    }

    /// Both writes, the second after `delay` requests of the first have ended. Gives what the disks may hold
    /// after a crash at any point, and whether the first was over before the second began.
    fn write(&self, images: &Images, pair: [(u64, u64); 2], delay: usize) -> (Vec<(Crash, History)>, bool) {
        self.reboot(images.clone(), true);
        let array = self.block_on(self.assembly(&self.setting.lost_before())).unwrap();
        disks::set_immediate(false);
        let history = Rc::new(Cell::new(History::default()));
        let start = |which: usize| {
            let (at, count) = pair[which];
            let (volume, history): (Volume, _) = (array.volume().clone(), Rc::clone(&history));
            self.shard.borrow().spawn(async move {
                let data: Vec<u8> =
                    (at..at + count).flat_map(|sector| stamp(which as u64 + 1, sector)).collect();
                let mut now = history.get();
                now.begun[which] = true;
                history.set(now);
                volume.write(at * 512, slice(&data), false).await.unwrap();
                let mut now = history.get();
                now.acknowledged[which] = true;
                history.set(now);
            });
        };
        start(0);
        let (mut ended, mut over, mut found) = (0, false, Vec::new());
        // What is in the journal only is to go to the members, too.
        let drained = Rc::new(Cell::new(self.setting.policy != Policy::WriteBack));
        let mut drains = drained.get();
        while history.get().acknowledged != [true; 2] || !drained.get() {
            if !history.get().begun[1] && (ended == delay || history.get().acknowledged[0]) {
                over = history.get().acknowledged[0];
                start(1);
            }
            self.turn();
            found.extend(disks::crashes().into_iter().map(|crash| (crash, history.get())));
            if history.get().acknowledged == [true; 2] && !std::mem::replace(&mut drains, true) {
                let (array, drained) = (array.clone(), Rc::clone(&drained));
                self.shard.borrow().spawn(async move {
                    array.set_journal_mode(JournalMode::WriteThrough).await.unwrap();
                    drained.set(true);
                });
                continue;
            }
            if history.get().acknowledged != [true; 2] || !drained.get() {
                self.step();
            }
            ended += 1;
        }
        (found, over)
    }

    /// Recovery with every member that was there, and a crash at every point of it.
    fn recover(&self, images: Images) -> Vec<Crash> {
        self.reboot(images, false);
        let over = Rc::new(Cell::new(false));
        let (flag, assembly) = (Rc::clone(&over), self.assembly(&self.setting.lost_before()));
        self.shard.borrow().spawn(async move {
            drop(assembly.await);
            flag.set(true);
        });
        let mut found = Vec::new();
        while !over.get() {
            self.turn();
            // Reads and flushes change nothing.
            let crashes = disks::crashes();
            if crashes.len() > 1 {
                found.extend(crashes);
            }
            if !over.get() {
                self.step();
            }
        }
        found
    }

    /// Assembles what is left and looks at every sector of the row.
    fn verify(
        &self,
        images: Images,
        pair: [(u64, u64); 2],
        lost: &[usize],
        history: History,
    ) -> Result<(), String> {
        self.reboot(images, true);
        let array = self.block_on(self.assembly(lost)).map_err(|error| error.to_string())?;
        let volume = array.volume().clone();
        let length = usize::try_from(self.setting.row_sectors() * 512).unwrap();
        let (result, buffer) = self.block_on(async move { volume.read(0, shard::buffer(length)).await });
        result.map_err(|error| error.to_string())?;
        for (sector, bytes) in (0..).zip(buffer.chunks_exact(512)) {
            let covers = |which: usize| (pair[which].0..pair[which].0 + pair[which].1).contains(&sector);
            let begun = |which: &usize| covers(*which) && history.begun[*which];
            let in_flight = |which: usize| begun(&which) && !history.acknowledged[which];
            // C19: what was being written to a lost member may be anything.
            // Not with a journal, which has the bytes themselves.
            let is_lost =
                lost.contains(&self.setting.member_of(sector)) && !self.setting.policy.has_journal();
            // Nor is anything lost that the journal has acknowledged.
            let acknowledged = |which: usize| covers(which) && history.acknowledged[which];
            let may_be_old = !self.setting.policy.has_journal() || !acknowledged(0) && !acknowledged(1);
            let legal = may_be_old && bytes == stamp(0, sector)
                || [0, 1]
                    .iter()
                    .filter(|which| begun(which))
                    .any(|which| bytes == stamp(*which as u64 + 1, sector))
                || is_lost && (in_flight(0) || in_flight(1));
            if !legal {
                return Err(format!("sector {sector} is wrong"));
            }
        }
        if lost.len() < self.setting.redundancy() && self.setting.policy != Policy::Bitmap {
            let report =
                self.block_on(async move { array.check().await }).map_err(|error| error.to_string())?;
            if report.mismatched_sectors > 0 {
                return Err(format!("{} sectors do not match", report.mismatched_sectors));
            }
        }
        Ok(())
    }
}

/// A setting tried in every way.
struct Trial {
    machine: Machine,
    seen: HashSet<u64>,
    violations: Vec<String>,
    assemblies: u64,
    /// Different states after a crash.
    states: usize,
    /// One violation is enough.
    is_enough: bool,
    pairs: &'static [[(u64, u64); 2]],
}

impl Trial {
    fn of(setting: Setting) -> Self {
        Self {
            machine: Machine::new(setting),
            seen: HashSet::new(),
            violations: Vec::new(),
            assemblies: 0,
            states: 0,
            is_enough: false,
            pairs: PAIRS,
        }
    }

    fn run_until_seen(mut self) -> Self {
        self.is_enough = true;
        self.run()
    }

    fn run(mut self) -> Self {
        let images = self.machine.prepare();
        let losses = self.machine.setting.losses();
        for &pair in self.pairs {
            self.seen.clear();
            for delay in 0.. {
                let (crashes, over) = self.machine.write(&images, pair, delay);
                for (crash, history) in crashes {
                    if self.is_enough && !self.violations.is_empty() {
                        self.machine.shard.borrow().drop_tasks();
                        return self;
                    }
                    self.crash(&crash.images(), pair, history, &losses, true);
                }
                if over {
                    break;
                }
            }
        }
        self.machine.shard.borrow().drop_tasks();
        self
    }

    fn crash(
        &mut self,
        images: &Images,
        pair: [(u64, u64); 2],
        history: History,
        losses: &[Vec<usize>],
        recover: bool,
    ) {
        let mut hasher = DefaultHasher::new();
        (images, history).hash(&mut hasher);
        if !self.seen.insert(hasher.finish()) {
            return;
        }
        self.states += 1;
        for lost in losses {
            self.assemblies += 1;
            if let Err(what) = self.machine.verify(images.clone(), pair, lost, history) {
                let setting = self.machine.setting;
                self.violations.push(format!("{setting:?} {pair:?} lost {lost:?} {history:?}: {what}"));
            }
        }
        if recover && self.machine.setting.policy != Policy::Bitmap {
            for crash in self.machine.recover(images.clone()) {
                self.crash(&crash.images(), pair, history, losses, false);
            }
        }
    }
}

fn slice(bytes: &[u8]) -> Slice {
    let mut buffer = shard::buffer(bytes.len());
    buffer.copy_from_slice(bytes);
    buffer.freeze()
}

/// Tries a level with so many members, whole and without each of them.
fn assert_closed(level: Level, members: u8, policy: Policy) {
    for lost in [None].into_iter().chain((0..usize::from(members)).map(Some)) {
        let setting = Setting { level, members, policy, lost };
        if setting.is_first_of_its_kind(&setting.lost_before()) {
            assert_closed_for(setting, PAIRS);
        }
    }
}

fn assert_closed_for(setting: Setting, pairs: &'static [[(u64, u64); 2]]) {
    let Setting { level, members, policy, lost } = setting;
    let Trial { violations, assemblies, states, .. } = Trial { pairs, ..Trial::of(setting) }.run();
    let before = lost.map_or(String::new(), |slot| format!(" without {slot}"));
    println!("{level} of {members}{before}, {policy:?}: {states} states, {assemblies} assemblies");
    assert!(assemblies > 300, "{assemblies} assemblies");
    assert!(
        violations.is_empty(),
        "{} of {assemblies}: {:#?}",
        violations.len(),
        &violations[..violations.len().min(5)]
    );
}

#[test]
fn ppl_closes_the_hole_of_raid5_with_three_members() {
    assert_closed(Level::Raid5, 3, Policy::Ppl);
}

#[test]
fn ppl_closes_the_hole_of_raid5_with_four_members() {
    assert_closed(Level::Raid5, 4, Policy::Ppl);
}

/// An array that was whole, and some of the pairs; the rest is for `the_hole_is_closed_everywhere`, which
/// takes minutes.
#[test]
fn the_double_parity_log_closes_the_hole_of_raid6_with_four_members() {
    let setting = Setting { level: Level::Raid6, members: 4, policy: Policy::DoubleParity, lost: None };
    assert_closed_for(setting, &PAIRS[2..5]);
}

/// With five members two columns are unwritten on level 5, and one on level 6. A share of it: arrays that
/// were whole, and the first pairs; the rest is for `the_hole_is_closed_everywhere`.
#[test]
fn the_hole_is_closed_with_five_members() {
    let ppl = Setting { level: Level::Raid5, members: 5, policy: Policy::Ppl, lost: None };
    assert_closed_for(ppl, &PAIRS[..3]);
    assert_closed_for(Setting { level: Level::Raid6, policy: Policy::DoubleParity, ..ppl }, &PAIRS[..1]);
}

#[test]
fn a_journal_closes_the_hole_of_raid5_with_three_members() {
    assert_closed(Level::Raid5, 3, Policy::Journal);
}

/// An array that was whole, and the first three pairs; the rest is for
/// `a_journal_closes_the_hole_everywhere`.
#[test]
fn a_journal_closes_the_hole_of_raid6_with_four_members() {
    let mut trial =
        Trial::of(Setting { level: Level::Raid6, members: 4, policy: Policy::Journal, lost: None });
    trial.pairs = &PAIRS[..3];
    let trial = trial.run();
    assert!(trial.assemblies > 1000, "{} assemblies", trial.assemblies);
    assert!(trial.violations.is_empty(), "{:#?}", trial.violations);
}

#[test]
fn a_journal_that_writes_back_closes_the_hole_of_raid5_with_three_members() {
    let mut trial =
        Trial::of(Setting { level: Level::Raid5, members: 3, policy: Policy::WriteBack, lost: None });
    trial.pairs = &PAIRS[..5];
    let trial = trial.run();
    assert!(trial.assemblies > 1000, "{} assemblies", trial.assemblies);
    assert!(trial.violations.is_empty(), "{:#?}", trial.violations);
}

/// All of it, in minutes: `CARGO_PROFILE_TEST_OPT_LEVEL=2 cargo test -p pinstripe-engine --features
/// exhaustive --test write_hole -- --nocapture`.
#[cfg(feature = "exhaustive")]
#[test]
fn the_hole_is_closed_everywhere() {
    for members in 3..=5 {
        assert_closed(Level::Raid5, members, Policy::Ppl);
    }
    for members in 4..=5 {
        assert_closed(Level::Raid6, members, Policy::DoubleParity);
    }
}

/// The same with a journal device, which is never lost.
#[cfg(feature = "exhaustive")]
#[test]
fn a_journal_closes_the_hole_everywhere() {
    for members in 3..=5 {
        assert_closed(Level::Raid5, members, Policy::Journal);
    }
    for members in 4..=5 {
        assert_closed(Level::Raid6, members, Policy::Journal);
    }
}

/// The same with a journal that writes back. An array that has lost a member is written through.
#[cfg(feature = "exhaustive")]
#[test]
fn a_journal_that_writes_back_closes_the_hole_everywhere() {
    for (level, members) in
        [(Level::Raid5, 3), (Level::Raid5, 4), (Level::Raid5, 5), (Level::Raid6, 4), (Level::Raid6, 5)]
    {
        let trial = Trial::of(Setting { level, members, policy: Policy::WriteBack, lost: None }).run();
        println!("{level} of {members}, write-back: {} assemblies", trial.assemblies);
        assert!(trial.assemblies > 1000, "{} assemblies", trial.assemblies);
        assert!(trial.violations.is_empty(), "{:#?}", trial.violations);
    }
}

/// The control: without a log the hole is there, and this test sees it.
#[test]
fn a_bitmap_alone_leaves_the_hole_open() {
    for level in [Level::Raid5, Level::Raid6] {
        let setting = Setting { level, members: 4, policy: Policy::Bitmap, lost: None };
        let trial = Trial::of(setting).run_until_seen();
        let is_seen = trial.violations.iter().any(|what| what.ends_with("is wrong"));
        assert!(is_seen, "{level}: {} assemblies", trial.assemblies);
    }
}

/// Each defect of the logs is seen, on a setting that passes without it.
#[cfg(feature = "mutants")]
#[test]
fn every_defect_of_the_logs_leaves_a_hole() {
    use pinstripe_engine::mutants::{Mutant, activate};
    let ppl = Setting { level: Level::Raid5, members: 4, policy: Policy::Ppl, lost: None };
    let double = Setting { level: Level::Raid6, members: 4, policy: Policy::DoubleParity, lost: None };
    let journal = Setting { level: Level::Raid5, members: 3, policy: Policy::Journal, lost: None };
    for (mutant, setting) in [
        (Mutant::LogAfterData, ppl),
        (Mutant::LogAfterData, double),
        (Mutant::LogWithoutForcing, ppl),
        (Mutant::LogWithoutForcing, double),
        (Mutant::LogWrongRange, ppl),
        (Mutant::LogWrongRange, double),
        (Mutant::LogWrongCoefficient, double),
        (Mutant::JournalAfterMembers, journal),
        (Mutant::JournalWithoutParity, journal),
        (Mutant::TailBeforeFlush, journal),
        (Mutant::ReplayStopsEarly, journal),
        (Mutant::JournalChecksumIgnored, journal),
        (Mutant::ReplaySkipsEntry, ppl),
        (Mutant::ReplaySkipsEntry, double),
    ] {
        activate(Some(mutant));
        let trial = Trial::of(setting).run_until_seen();
        activate(None);
        assert!(!trial.violations.is_empty(), "{mutant:?} of {:?} survives", setting.policy);
    }
}
