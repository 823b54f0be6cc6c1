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

use super::{
    Consistency, Swarm, Testbed, Verdict, assembly, client::UserState, doubts::sector_of, hosts::Hosts,
    marks, rest, service::Service,
};
use crate::{
    CrashImage, CrashPoint, Outcome, Rng, SECTOR, SimDisk, Stage,
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

    /// Looks at the crashes that could happen now, if it is time.
    pub(super) fn look_if_due(&mut self, bed: &Testbed) -> Result<(), Verdict> {
        let steps = bed.hosts.world.steps();
        if steps < self.next {
            return Ok(());
        }
        self.next = steps + 1 + self.rng.below(2 * self.depth.gap);
        // Without its journal the array is refused, and after that by force it is what its members say.
        let geometry = bed.setup.geometry().filter(|_| !bed.journal_lost && !marks::is_marring(bed));
        let looked = geometry.map_or(Ok(()), |geometry| self.look(bed, &geometry));
        looked.map_err(|verdict| Verdict::AfterCrash { step: steps, verdict: Box::new(verdict) })
    }

    fn look(&mut self, bed: &Testbed, geometry: &ParityGeometry) -> Result<(), Verdict> {
        let points: Vec<CrashPoint> = bed.hosts.disks.iter().map(SimDisk::crash_point).collect();
        let settled = points.iter().all(CrashPoint::is_settled);
        for _ in 0..if settled { 1 } else { self.depth.losses } {
            let rng = &mut self.rng;
            let images: Vec<CrashImage<'_>> = points.iter().map(|point| point.lose(rng)).collect();
            let comes_back = |number: &usize, rng: &mut Rng| {
                !bed.hosts.disks[*number].is_gone() || bed.faults.is_in_outage(*number) || rng.chance(1, 2)
            };
            let here: Vec<usize> = (0..images.len())
                .filter(|number| comes_back(number, rng))
                .filter(|number| *number < bed.setup.disks() || superblock(&images[*number]).is_some())
                .collect();
            let survey = survey(here.iter().map(|number| (*number, &images[*number])))?;
            let bitmap = survey.bitmap(&images)?;
            self.states.count(bed, geometry, &survey, bitmap.as_ref(), &images);
            judge(bed, geometry, &survey, &points, &images)?;
            self.states.images += 1;
            // A log is worth nothing before it is replayed.
            let logged = !bed.setup.consistency.settles_by_parity();
            let every = self.depth.assemble_every.div_ceil(if logged { 8 } else { 1 });
            if every > 0 && self.states.images.is_multiple_of(every) {
                try_image(bed, &images, &here, &mut self.rng)?;
                self.states.assembled += 1;
            }
        }
        Ok(())
    }
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

impl States {
    /// Enters the state into the books.
    fn count(
        &mut self,
        bed: &Testbed,
        geometry: &ParityGeometry,
        survey: &Survey,
        bitmap: Option<&BitmapImage>,
        images: &[CrashImage<'_>],
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
            let level = bed.setup.level.number();
            let policy = (level, survey.seats.len(), bitmap.is_some(), bed.setup.consistency.number());
            hash(&(
                policy,
                sorted,
                metadata,
                bed.service.phase(),
                doing(bed),
                bed.service.users.adds.get() > 0,
            ))
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
        self.rows.extend(rows.iter().map(|row| hash(&(array, row))));
        self.whole.insert(hash(&(array, rows)));
    }
}

/// What maintenance is at, and how many eighths of it are done.
fn doing(bed: &Testbed) -> Option<(&'static str, u64)> {
    let progress = bed.service.served()?.progress()?;
    Some((SyncAction::name(progress.action), progress.done * 8 / progress.total.max(1)))
}

/// Looks at the images past the engine.
fn judge(
    bed: &Testbed,
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
    if bed.setup.consistency == Consistency::Journal {
        // What was acknowledged may be in the journal alone: only an engine that replays it can tell.
        return Ok(());
    }
    let chunk = u64::from(geometry.chunk_bytes());
    let ledger = bed.service.users.ledger.borrow();
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
            if let (Role::Data(column), None, false) = (role, superblock.member.recovery_offset, is_listed) {
                let found = stamp::decode(&images[*number].peek(sector * SECTOR, index(SECTOR)));
                let sector = sector_of(geometry, stripe, column, row);
                if !ledger.survives(sector, found) {
                    return Err(Damage::Lost { sector, found }.into());
                }
            }
        }
    }
    if !survey.is_logged() {
        survey.check_stripes_covered(images, geometry, stripes.into_iter())?;
    }
    Ok(())
}

/// Has an engine start on the images, mend what is to be mended, and come to rest.
fn try_image(bed: &Testbed, images: &[CrashImage<'_>], here: &[usize], rng: &mut Rng) -> Result<(), Verdict> {
    let hosts = Hosts::after_crash(rng.draw(), &bed.setup, images, here);
    let mut ledger = bed.service.users.ledger.borrow().clone();
    let unsettled = ledger.unsettled(true);
    let mut doubts = bed.doubts.clone();
    doubts.suspect(bed.setup.geometry().as_ref(), &unsettled);
    doubts.cut_off(unsettled);
    ledger.crash();
    let service = Service::new(UserState::with(ledger));
    let mut child = Testbed::new(bed.setup.clone(), rng.fork(1), hosts, service, doubts);
    // It isn't the array's first start.
    child.summary.assemblies = 1;
    child.summary.forced = bed.summary.forced;
    let mut child = Swarm::new(child, None);
    let result = assembly::assemble(&mut child)
        .and_then(|started| if started { rest::rest(&mut child) } else { Ok(()) });
    let result = child.sum_up(result);
    child.bed.bury();
    result
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
