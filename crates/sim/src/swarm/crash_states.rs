//! Counts the distinct states in which a run could have crashed, and looks at what each would leave.
//!
//! At moments of a run that the seed draws, several power losses are drawn that could happen there and then:
//! every write that is under way or lies in a cache survives whole, torn or not at all. Each set of images is
//! judged past the engine ([`Explorer::look`]): enough members are current, what does not match is covered,
//! every sector holds a legal value. Some are given to an engine of their own, in a world of its own, which
//! must come to rest with everything right.
//!
//! **What is counted.** A *row state* is what a crash leaves of one stripe, told without names: numbers of
//! stripes, slots, disks and events, offsets and contents don't count, nor does the order of the data columns
//! among themselves.
//!
//! ```text
//!   policy         level, number of members, consistency policy
//!   array          by seat: whole, recovering or empty, one event behind or not, clean or dirty; superblock and bitmap
//!                  writes under way with their fate; starting, serving or stopping; sync action and how many eighths of it
//!                  are done; a spare on its way in
//!   stripe         by role (data, P, Q): the member's seat, and of each write to it the stage (submitted, arriving, arrived,
//!                  completed) and the fate (lost, torn, whole); whether the stripe's bit is set
//! ```
//!
//! A *crash state* is the array's part with the set of the row states of all stripes that are being written.
//! Hashes of 64 bits stand for both.

use std::{
    collections::{BTreeSet, HashSet},
    hash::{Hash, Hasher},
};

use pinstripe_engine::{
    events::SyncAction,
    geometry::{MemberSlot, ParityGeometry, Role, StripeId},
};
use pinstripe_md::{
    bitmap::BitmapImage,
    superblock::{ResyncOffset, Superblock},
    units::Sector,
};

use super::{Consistency, Summary, Swarm, Verdict, client::UserState, life::sector_of};
use crate::{
    CrashImage, CrashPoint, Outcome, Rng, SECTOR, SimDisk, Stage, World, WorldConfig,
    checks::{Damage, Survey, superblock, survey},
    rng::index,
    stamp,
    trace::SeedHasher,
};

/// How closely a run is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Depth {
    /// Mean number of steps between two moments that are looked at.
    pub gap: u64,
    /// Power losses that are drawn at each.
    pub losses: u64,
    /// Of so many images one is given to an engine; 0 for none.
    pub assemble_every: u64,
}

/// What was seen in many runs.
#[derive(Default)]
pub struct States {
    rows: HashSet<u64>,
    whole: HashSet<u64>,
    /// Sets of images that were judged.
    pub images: u64,
    /// Of those, how many an engine came to rest on.
    pub assembled: u64,
}

impl States {
    /// Distinct row states.
    pub fn rows(&self) -> usize {
        self.rows.len()
    }

    /// Distinct crash states.
    pub fn whole(&self) -> usize {
        self.whole.len()
    }

    /// Adds what another has seen.
    pub fn add(&mut self, other: Self) {
        self.rows.extend(other.rows);
        self.whole.extend(other.whole);
        self.images += other.images;
        self.assembled += other.assembled;
    }
}

/// The looking of one run.
pub(crate) struct Explorer {
    pub(crate) states: States,
    depth: Depth,
    rng: Rng,
    next: u64,
}

impl Explorer {
    pub(crate) fn new(seed: u64, depth: Depth) -> Self {
        Self { states: States::default(), depth, rng: Rng::new(!seed), next: 0 }
    }
}

/// What the array is about, told without names.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Starting,
    Serving,
    Stopping,
}

/// A seat as a crash leaves it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum SeatState {
    Empty,
    /// Whole or not, one event behind or not, clean or not.
    WholeMember {
        whole: bool,
        behind: bool,
        clean: bool,
    },
}

/// A write and its fate.
type Fate = (Stage, Outcome);

/// A member of a stripe: what it holds there, its seat, and its writes.
type Part = (u8, SeatState, Vec<Fate>);

impl Swarm {
    /// Looks at the crashes that could happen now, if it is time.
    pub(crate) fn explore(&mut self) -> Result<(), Verdict> {
        let steps = self.world.steps();
        let Some(explorer) = self.explorer.as_mut().filter(|explorer| steps >= explorer.next) else {
            return Ok(());
        };
        explorer.next = steps + 1 + explorer.rng.below(2 * explorer.depth.gap);
        let Some(mut explorer) = self.explorer.take() else { return Ok(()) };
        // Without its journal the array is refused, and after that by force it is what its members say.
        let looked = self
            .shape()
            .filter(|_| !self.journal_lost && !self.is_marring())
            .map_or(Ok(()), |geometry| self.look(&geometry, &mut explorer));
        self.explorer = Some(explorer);
        looked.map_err(|verdict| Verdict::AfterCrash { step: steps, verdict: Box::new(verdict) })
    }

    fn look(&self, geometry: &ParityGeometry, explorer: &mut Explorer) -> Result<(), Verdict> {
        let points: Vec<CrashPoint> = self.disks.iter().map(SimDisk::crash_point).collect();
        let settled = points.iter().all(CrashPoint::is_settled);
        for _ in 0..if settled { 1 } else { explorer.depth.losses } {
            let rng = &mut explorer.rng;
            let images: Vec<CrashImage<'_>> = points.iter().map(|point| point.lose(rng)).collect();
            let comes_back = |number: &usize, rng: &mut Rng| {
                !self.disks[*number].is_gone() || self.outage.contains(number) || rng.chance(1, 2)
            };
            let here: Vec<usize> = (0..images.len())
                .filter(|number| comes_back(number, rng))
                .filter(|number| self.initiated.contains(number) || superblock(&images[*number]).is_some())
                .collect();
            let survey = survey(here.iter().map(|number| (*number, &images[*number])))?;
            let bitmap = survey.bitmap(&images)?;
            self.count(geometry, &survey, bitmap.as_ref(), &images, &mut explorer.states);
            self.judge(geometry, &survey, &points, &images)?;
            explorer.states.images += 1;
            // A log is worth nothing before it is replayed.
            let logged = !self.setup.consistency.settles_by_parity();
            let every = explorer.depth.assemble_every.div_ceil(if logged { 8 } else { 1 });
            if every > 0 && explorer.states.images.is_multiple_of(every) {
                self.try_image(&images, &here, &mut explorer.rng)?;
                explorer.states.assembled += 1;
            }
        }
        Ok(())
    }

    /// Looks at the images past the engine.
    fn judge(
        &self,
        geometry: &ParityGeometry,
        survey: &Survey,
        points: &[CrashPoint],
        images: &[CrashImage<'_>],
    ) -> Result<(), Verdict> {
        let (whole, members) = (survey.whole(), survey.seats.len());
        if whole + geometry.redundancy() < members {
            let words = format!("{whole} of {members} members are current: that is data loss");
            return Err(Damage::Members(words).into());
        }
        if self.setup.consistency == Consistency::Journal {
            // What was acknowledged may be in the journal alone: only an engine that replays it can tell.
            return Ok(());
        }
        let chunk = u64::from(geometry.chunk_bytes());
        let ledger = self.shop.ledger.borrow();
        let mut stripes = BTreeSet::new();
        let members = survey.members(images)?;
        for (slot, seat) in survey.seats.iter().enumerate() {
            let Some((number, superblock)) = seat else { continue };
            let data = superblock.member.data_offset.0;
            for sector in points[*number].sectors() {
                let Some(at) = sector.checked_sub(data).map(|at| at * SECTOR) else { continue };
                if at >= geometry.member_bytes() {
                    continue;
                }
                let (stripe, row) = (at / chunk, at % chunk / SECTOR);
                stripes.insert(stripe);
                let role = geometry.slots(StripeId(stripe)).role(low(slot));
                let is_listed = members[slot].as_ref().is_some_and(|held| held.is_listed(at, SECTOR));
                if let (Role::Data(column), None, false) =
                    (role, superblock.member.recovery_offset, is_listed)
                {
                    let found = stamp::decode(&images[*number].peek(sector * SECTOR, index(SECTOR)));
                    let sector = sector_of(geometry, stripe, column, row);
                    if !ledger.survives(sector, found) {
                        return Err(Damage::Lost { sector, found }.into());
                    }
                }
            }
        }
        if self.setup.consistency.settles_by_parity() {
            survey.check_stripes_covered(images, geometry, stripes.into_iter())?;
        }
        Ok(())
    }

    /// Has an engine start on the images, mend what is to be mended, and come to rest.
    fn try_image(&self, images: &[CrashImage<'_>], here: &[usize], rng: &mut Rng) -> Result<(), Verdict> {
        let mut world = World::new(WorldConfig::new(rng.draw(), self.setup.shards));
        let disks: Vec<SimDisk> = (0..images.len())
            .map(|number| {
                let disk = world.add_disk(self.setup.disk(number));
                disk.load(&images[number]);
                if !here.contains(&number) {
                    disk.fault(&crate::Fault::Gone);
                }
                disk
            })
            .collect();
        let shop = UserState::new(0);
        let mut ledger = self.shop.ledger.borrow().clone();
        let unsettled = ledger.unsettled(true);
        let suspects = self.suspects_after(&unsettled);
        let cut_off = &self.cut_off | &unsettled;
        ledger.crash();
        *shop.ledger.borrow_mut() = ledger;
        let mut child = Self {
            setup: self.setup.clone(),
            rng: rng.fork(1),
            world,
            disks,
            doomed: BTreeSet::new(),
            outage: BTreeSet::new(),
            initiated: self.initiated.clone(),
            afflicted: super::atlas::InjectedFaults::default(),
            array: None,
            shop,
            suspects,
            cut_off,
            lost_at_start: self.lost_at_start.clone(),
            unsynced: self.unsynced,
            ends_in_peace: false,
            journal_lost: self.journal_lost,
            summary: Summary { assemblies: 1, ..Summary::default() },
            phase: Phase::Starting,
            front: None,
            net: None,
            stale: None,
            explorer: None,
        };
        let result = child.assemble().and_then(|started| if started { child.rest() } else { Ok(()) });
        child.bury();
        result
    }

    /// Enters the state into the books.
    fn count(
        &self,
        geometry: &ParityGeometry,
        survey: &Survey,
        bitmap: Option<&BitmapImage>,
        images: &[CrashImage<'_>],
        states: &mut States,
    ) {
        let seats: Vec<SeatState> =
            survey.seats.iter().map(|seat| seat_state(survey, seat.as_ref())).collect();
        let chunk = u64::from(geometry.chunk_bytes());
        let mut metadata: BTreeSet<(SeatState, bool, Fate)> = BTreeSet::new();
        let mut written: Vec<(u64, usize, Fate)> = Vec::new();
        for (slot, seat) in survey.seats.iter().enumerate() {
            let Some((number, superblock)) = seat else { continue };
            let data = superblock.member.data_offset.0 * SECTOR;
            for (write, outcome) in images[*number].writes() {
                let fate = (write.stage, outcome);
                if write.offset < data || write.offset >= data + geometry.member_bytes() {
                    let is_superblock = write.offset == superblock.member.super_offset.0 * SECTOR;
                    metadata.insert((seats[slot], is_superblock, fate));
                    continue;
                }
                let (first, last) = ((write.offset - data) / chunk, (write.end - 1 - data) / chunk);
                written.extend((first..=last).map(|stripe| (stripe, slot, fate)));
            }
        }
        written.sort_unstable();
        written.dedup();
        let array = {
            let mut sorted = seats.clone();
            sorted.sort_unstable();
            let level = self.setup.level.number();
            let policy = (level, survey.seats.len(), bitmap.is_some(), self.setup.consistency.number());
            hash(&(policy, sorted, metadata, self.phase, self.doing(), self.shop.adds.get() > 0))
        };
        let mut rows = BTreeSet::new();
        for group in written.chunk_by(|a, b| a.0 == b.0) {
            let stripe = group[0].0;
            let mut parts: Vec<Part> = (0..seats.len())
                .map(|slot| {
                    let role = match geometry.slots(StripeId(stripe)).role(low(slot)) {
                        Role::Data(_) => 0,
                        Role::P => 1,
                        Role::Q => 2,
                    };
                    let fates = group.iter().filter(|(_, at, _)| *at == slot).map(|(.., fate)| *fate);
                    (role, seats[slot], fates.collect())
                })
                .collect();
            parts.sort();
            let sector = Sector(geometry.member_offset(StripeId(stripe)) / SECTOR);
            let is_set = bitmap.map(|bitmap| bitmap.is_set(bitmap.header().bit_of(sector)));
            rows.insert(hash(&(parts, is_set)));
        }
        states.rows.extend(rows.iter().map(|row| hash(&(array, row))));
        states.whole.insert(hash(&(array, rows)));
    }

    /// What maintenance is at, and how many eighths of it are done.
    fn doing(&self) -> Option<(&'static str, u64)> {
        let progress = self.array.as_ref()?.progress()?;
        Some((SyncAction::name(progress.action), progress.done * 8 / progress.total.max(1)))
    }

    /// The sector rows that may be half written after a crash now, with those of earlier crashes.
    pub(crate) fn suspects_after(&self, unsettled: &BTreeSet<u64>) -> BTreeSet<(u64, u64)> {
        let mut suspects = self.suspects.clone();
        if let Some(geometry) = self.shape() {
            suspects.extend(unsettled.iter().map(|&sector| super::life::row_of(&geometry, sector)));
        }
        suspects
    }
}

fn low(slot: usize) -> MemberSlot {
    MemberSlot(u8::try_from(slot).unwrap_or(u8::MAX))
}

fn seat_state(survey: &Survey, seat: Option<&(usize, Superblock)>) -> SeatState {
    seat.map_or(SeatState::Empty, |(_, superblock)| SeatState::WholeMember {
        whole: superblock.member.recovery_offset.is_none(),
        behind: superblock.array.events < survey.freshest.array.events,
        clean: superblock.array.resync_offset == ResyncOffset::Clean,
    })
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = SeedHasher::default();
    value.hash(&mut hasher);
    crate::rng::mix(hasher.finish())
}
