//! Check and repair: what was asked for, the comparison of parity with data, and what is done about a
//! mismatch.
//!
//! `check` leaves mismatches as they are. `repair` makes parity from data, as MD does: parity tells *that* a
//! row is wrong, and with one parity not *what*. `repair` with `locate`, on level 6, asks both parities
//! ([`locate`](super::locate)): where one chunk alone explains what they say, that chunk is corrected, data
//! or parity; everything else is left as it is and counted.
//!
//! A correction writes rows that were wrong before, so a crash in the middle leaves nothing worse than it
//! was, and no intent is marked for it: a resync would make parity of data that is yet to be corrected.
//! What a log or a journal holds of such rows may be wrong too, so it is told first; behind a journal all
//! data of the rows is written anew. Rows that wait for a resync are not judged: half-written rows look like
//! one wrong chunk (C10).

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    ops::Range,
    rc::Rc,
};

use pinstripe_runtime::{Slice, shard};
use thiserror::Error;

use super::{
    Walk,
    locate::{Culprit, locate},
};
use crate::{
    consistency::{Batches, Logged},
    controller::error::CommandError,
    error::IoError,
    events::SyncAction,
    geometry::{MEMBERS_MAX, MemberSlot, ParityGeometry, Role, Set64, StripeId, StripeMap},
    io::{
        heal::in_single_rows,
        parity::ParityVolume,
        row::{RowRange, Want},
    },
    maintenance::Maintenance,
    membership::snapshot::View,
    mutants::{Mutant, active},
    stripe::{decode::encode, parity_cache::PAGE_BYTES},
    units::to_u32,
};

/// Bytes of a sector, in which corrections are judged and reported.
const SECTOR: usize = 512;
/// Scrubs that may wait at a time.
pub(super) const SCRUBS_MAX: usize = 16;
/// Places of corrections that a report names; all are counted.
const LOCATED_MAX: usize = 1024;

/// What is done about mismatches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ScrubAction {
    /// They are counted.
    #[default]
    Check,
    /// Parity is made from data.
    Repair,
    /// The one chunk that explains them is corrected, where there is one; else they are counted. Level 6
    /// only.
    Locate,
}

/// A scrub that is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScrubRequest {
    /// What is done about mismatches.
    pub action: ScrubAction,
    /// First sector of 512 bytes of each member, from the start of its data (MD: `sync_min`). The whole chunk
    /// that it is in is done.
    pub from: u64,
    /// The sector after the last (MD: `sync_max`); all there are without.
    pub to: Option<u64>,
}

/// A place that was corrected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Located {
    /// The member's slot.
    pub slot: usize,
    /// The first sector of 512 bytes, from the start of the device.
    pub sector: u64,
    /// How many.
    pub sectors: u64,
    /// The member's device.
    pub device: String,
}

/// What a scrub found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// Stripes that were done.
    pub stripes: u64,
    /// Sectors of rows (4 KiB each) with parity that does not match, as MD counts them; corrected or not.
    pub mismatched_sectors: u64,
    /// Of them, those that could not be read whole.
    pub unreadable_stripes: u64,
    /// Of them, those with rows that could not be compared: with a member missing there may be no more parity
    /// than what it has is made of.
    pub uncompared_stripes: u64,
    /// Sectors (512 bytes of one member each) that `locate` corrected.
    pub corrected_sectors: u64,
    /// Sector rows that do not match and that no single chunk explains; `locate` left them as they are.
    pub unexplained_sectors: u64,
    /// Where corrections were made, by slot and sector; the first 1024 places.
    pub corrected: Vec<Located>,
    /// False if it was stopped before its end.
    pub complete: bool,
    /// The first sector of each member's data that was not compared; behind the last one if all were.
    pub next_sector: u64,
}

/// Why maintenance can't be steered so. Nothing has changed.
#[derive(Debug, Error)]
pub enum SyncError {
    /// See there.
    #[error("{0}")]
    Command(#[from] CommandError),
    /// An empty range, or outside.
    #[error("there are no sectors {from} to {to}: a member has {sectors} sectors of data, counted from 0")]
    Range {
        /// As asked for.
        from: u64,
        /// As asked for.
        to: u64,
        /// How many there are.
        sectors: u64,
    },
    /// One parity can't tell which chunk is wrong.
    #[error(
        "only level 6 has two parities that tell which member is wrong; `repair` without --locate makes parity from data"
    )]
    OneParity,
    /// Too many wait already.
    #[error("{SCRUBS_MAX} checks and repairs wait already: let them end, or stop them")]
    TooMany,
    /// There is no scrub.
    #[error("no check and no repair is under way")]
    NothingToStop,
    /// The array needs what is under way.
    #[error("a {} can't be stopped, for the array needs it: it can be paused", .0.name())]
    Needed(SyncAction),
    /// Limits that contradict each other.
    #[error("{}", wrong_speed(*min_kib, *max_kib))]
    Speed {
        /// As asked for.
        min_kib: u64,
        /// As asked for.
        max_kib: u64,
    },
}

fn wrong_speed(min_kib: u64, max_kib: u64) -> String {
    if min_kib == 0 {
        return "the lower limit of the speed must be at least 1 KiB per second".to_owned();
    }
    format!(
        "the upper limit of the speed can't be {max_kib} KiB per second, for the lower one is {min_kib}: lower \
         that, too, or set a higher one"
    )
}

impl From<IoError> for SyncError {
    fn from(error: IoError) -> Self {
        Self::Command(error.into())
    }
}

/// What a walk does about mismatches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Correction {
    Nothing,
    Parity,
    Located,
}

/// What was found in some stripes.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// Sectors of rows.
    pub(super) mismatched: u64,
    corrected: u64,
    unexplained: u64,
    places: Vec<Located>,
    /// Of rows that have no more parity than was needed to make what a missing member has: it matches
    /// whatever it is.
    pub(super) uncompared_stripes: u64,
}

impl Findings {
    pub(super) fn add(&mut self, more: Self) {
        self.mismatched += more.mismatched;
        self.corrected += more.corrected;
        self.unexplained += more.unexplained;
        self.uncompared_stripes += more.uncompared_stripes;
        let room = LOCATED_MAX.saturating_sub(self.places.len());
        self.places.extend(more.places.into_iter().take(room));
    }
}

/// A scrub that was asked for, and how far it is. It goes on where it was after more urgent work.
pub(crate) struct Scrub {
    pub(super) correction: Correction,
    pub(super) stripes: Range<u64>,
    chunk_sectors: u64,
    pub(super) next: Cell<u64>,
    pub(super) undone: RefCell<Vec<u64>>,
    pub(super) found: RefCell<Findings>,
    pub(super) errors: Cell<u64>,
    pub(super) running: Cell<bool>,
    pub(super) cancelled: Cell<bool>,
    pub(super) outcome: RefCell<Option<Result<CheckReport, IoError>>>,
}

impl Scrub {
    pub(super) fn new(request: ScrubRequest, geometry: &ParityGeometry) -> Result<Self, SyncError> {
        if request.action == ScrubAction::Locate && geometry.redundancy() < 2 {
            return Err(SyncError::OneParity);
        }
        let (sectors, chunk) = (geometry.member_bytes() / 512, u64::from(geometry.chunk_bytes()) / 512);
        let (from, to) = (request.from, request.to.unwrap_or(sectors));
        if from >= to || to > sectors {
            return Err(SyncError::Range { from, to, sectors });
        }
        let stripes = from / chunk..to.div_ceil(chunk).min(geometry.stripes());
        let correction = match request.action {
            ScrubAction::Check => Correction::Nothing,
            ScrubAction::Repair => Correction::Parity,
            ScrubAction::Locate => Correction::Located,
        };
        Ok(Self {
            correction,
            next: Cell::new(stripes.start),
            stripes,
            chunk_sectors: chunk,
            undone: RefCell::default(),
            found: RefCell::default(),
            errors: Cell::new(0),
            running: Cell::new(false),
            cancelled: Cell::new(false),
            outcome: RefCell::default(),
        })
    }

    pub(super) fn action(&self) -> SyncAction {
        if self.correction == Correction::Nothing { SyncAction::Check } else { SyncAction::Repair }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.cancelled.get()
    }

    fn done(&self) -> u64 {
        self.next.get() - self.stripes.start - self.undone.borrow().len() as u64
    }

    /// The first stripe that is still to be compared.
    fn first_left(&self) -> u64 {
        let undone = self.undone.borrow().iter().min().copied();
        undone.map_or(self.next.get(), |undone| undone.min(self.next.get()))
    }

    fn is_complete(&self) -> bool {
        self.done() == self.stripes.end - self.stripes.start
    }

    fn next_sector(&self) -> u64 {
        self.first_left() * self.chunk_sectors
    }

    /// The first sector of each member's data that was not compared, unless all were.
    pub(super) fn stopped_at(&self) -> Option<u64> {
        (!self.is_complete()).then(|| self.next_sector())
    }

    pub(super) fn report(&self) -> CheckReport {
        let found = self.found.borrow();
        let mut places = found.places.clone();
        places.sort();
        let mut corrected: Vec<Located> = Vec::with_capacity(places.len());
        for place in places {
            match corrected.last_mut() {
                Some(last) if last.slot == place.slot && last.sector + last.sectors == place.sector => {
                    last.sectors += place.sectors;
                }
                _ => corrected.push(place),
            }
        }
        CheckReport {
            stripes: self.done(),
            mismatched_sectors: found.mismatched,
            unreadable_stripes: self.errors.get(),
            uncompared_stripes: found.uncompared_stripes,
            corrected_sectors: found.corrected,
            unexplained_sectors: found.unexplained,
            corrected,
            complete: self.is_complete(),
            next_sector: self.next_sector(),
        }
    }
}

impl Maintenance {
    /// Does a scrub, or the rest of it. False if something more urgent has come between.
    pub(super) async fn scrub(self: &Rc<Self>, scrub: &Rc<Scrub>) -> bool {
        scrub.running.set(true);
        let total = scrub.stripes.end - scrub.stripes.start;
        self.begin(scrub.action(), scrub.done(), total);
        if let Some(progress) = &mut *self.sync.borrow_mut() {
            let found = scrub.found.borrow();
            progress.mismatched_sectors = found.mismatched;
            progress.uncompared_stripes = found.uncompared_stripes;
            progress.errors = scrub.errors.get();
        }
        let walk = self
            .walk_along(Walk {
                action: scrub.action(),
                target: None,
                keeps_torn: false,
                gives_up: false,
                membership: self.controller.shared().snapshot().membership,
                correction: scrub.correction,
                scrub: Some(Rc::clone(scrub)),
                next: Cell::new(scrub.next.get()),
                end: Cell::new(scrub.stripes.end),
                due_ns: u64::MAX,
                undone: RefCell::new(scrub.undone.take()),
                begun: RefCell::default(),
                findings: RefCell::default(),
                errors: Cell::new(0),
                aborted: Cell::new(false),
            })
            .await;
        scrub.running.set(false);
        scrub.next.set(walk.next.get());
        scrub.undone.replace(walk.undone.take());
        scrub.errors.set(scrub.errors.get() + walk.errors.get());
        scrub.found.borrow_mut().add(walk.findings.take());
        let result = if self.controller.stopped.get() {
            Err(IoError::Stopping)
        } else if self.controller.shared().has_failed() {
            Err(IoError::Failed)
        } else if walk.aborted.get() && !scrub.is_cancelled() {
            return false;
        } else {
            Ok(scrub.report())
        };
        self.finish_scrub(scrub, result);
        true
    }

    pub(super) fn finish_scrub(&self, scrub: &Rc<Scrub>, result: Result<CheckReport, IoError>) {
        self.scrubs.borrow_mut().retain(|other| !Rc::ptr_eq(other, scrub));
        scrub.outcome.replace(Some(result));
        self.controller.work.notify();
    }
}

/// The columns of a row with P and Q as they are and as the data says they should be.
struct Suspects<'r> {
    view: &'r View,
    stripe: StripeId,
    map: StripeMap,
    /// In the chunk.
    from: u32,
    row: &'r RowRange,
    p: &'r [u8],
    q: &'r [u8],
}

impl ParityVolume {
    /// Compares parity with data, and does what `correction` says about what does not match.
    pub(super) async fn compare_rows(
        &self,
        view: &View,
        stripe: StripeId,
        (from, to): (u32, u32),
        correction: Correction,
        row: &mut RowRange,
    ) -> Result<Findings, IoError> {
        let geometry = &self.geometry;
        let (map, length) = (geometry.slots(stripe), to - from);
        let offset = geometry.member_offset(stripe) + u64::from(from);
        let want = Want { columns: Set64::below(map.columns()), parity: true, avoid: Set64::EMPTY };
        self.read_row(view, stripe, (from, to), want, row).await?;
        in_single_rows(stripe, (from, to), row)?;
        let (p, q) = {
            let q = row.q.is_some() && !active(Mutant::ResyncIgnoresQ);
            self.parity_of(map, row, length, row.p.is_some(), q)
        };
        let pairs = [(&row.p, &p, Some(map.p_slot())), (&row.q, &q, map.q_slot())];
        let wrong_in = |range: Range<usize>| {
            pairs.iter().any(|(old, new, _)| matches!((old, new), (Some(old), Some(new)) if old[range.clone()] != new[range.clone()]))
        };
        // A part of a row, where blocks of it are listed as bad.
        let row_bytes = length.min(PAGE_BYTES) as usize;
        let rows = (0..length as usize).step_by(row_bytes);
        let wrong: Vec<usize> = rows.filter(|&at| wrong_in(at..at + row_bytes)).collect();
        let mismatched = (wrong.len() * row_bytes / SECTOR) as u64;
        let missing = &view.snapshot.missing;
        let made = (0..map.columns()).filter(|&column| missing.contains(map.data_slot(column).index()));
        let parities = usize::from(row.p.is_some()) + usize::from(row.q.is_some());
        let uncompared = !missing.is_empty() && parities <= made.count();
        let mut findings =
            Findings { mismatched, uncompared_stripes: uncompared.into(), ..Findings::default() };
        match correction {
            Correction::Parity if !wrong.is_empty() && is_journaled(view, offset, length) => {
                self.write_anew(stripe, from, row.data.iter().take(map.columns()).cloned()).await?;
            }
            Correction::Parity if !wrong.is_empty() => {
                // What a log still holds of the row may have been made of the wrong parity.
                let _logged = self.log_rows_of_walk(view, stripe, &[(from, to)]).await?;
                if !active(Mutant::RepairLeavesCache) {
                    self.shared.cache.remove_rows(stripe.0, from, to);
                }
                for (old, new, slot) in pairs {
                    if let (Some(old), Some(new), Some(slot)) = (old, new, slot)
                        && old[..] != new[..]
                    {
                        self.write_correction(view, slot.index(), offset, new.clone()).await?;
                    }
                }
            }
            Correction::Located => {
                let (p, q) = (p.as_deref().unwrap_or_default(), q.as_deref().unwrap_or_default());
                let suspects = Suspects { view, stripe, map, from, row, p, q };
                for at in wrong {
                    findings.add(self.correct_row(&suspects, at).await?);
                }
            }
            _ => {}
        }
        self.heal(view, stripe, (from, to), row).await?;
        Ok(findings)
    }

    /// Forced to the medium, but for a resync: no bit tells of a correction, so a member that lost it with
    /// its cache would be without when it comes back by bitmap.
    async fn write_correction(
        &self,
        view: &View,
        slot: usize,
        offset: u64,
        bytes: Slice,
    ) -> Result<(), IoError> {
        let intent = &view.snapshot.intent;
        let is_resync = intent.needs_resync(intent.regions(offset, bytes.len() as u64));
        let is_forced = !is_resync && !active(Mutant::RepairNotForced);
        self.write_slot(view, slot, offset, (bytes, is_forced)).await
    }

    /// Corrects the row at `at` (in `suspects`) as far as single chunks explain its sectors.
    async fn correct_row(&self, suspects: &Suspects<'_>, at: usize) -> Result<Findings, IoError> {
        let Suspects { view, stripe, from, .. } = *suspects;
        let offset = self.geometry.member_offset(stripe) + u64::from(from) + at as u64;
        let wrong = suspects.wrong_sectors(at);
        let unexplained = Findings { unexplained: wrong.len() as u64, ..Findings::default() };
        let intent = &view.snapshot.intent;
        let out_of_sync = intent.needs_resync(intent.regions(offset, PAGE_BYTES.into()));
        if !suspects.are_all_there(at, offset) || out_of_sync {
            return Ok(unexplained);
        }
        let fixes: Vec<(usize, MemberSlot)> = wrong
            .iter()
            .filter_map(|&sector| Some((sector, suspects.slot_of(suspects.culprit(sector)?)?)))
            .collect();
        let fixed = suspects.fixed(at, &fixes);
        if !suspects.is_explained(self, at, &fixed, &fixes) && !active(Mutant::LocateGuesses) {
            return Ok(unexplained);
        }
        if is_journaled(view, offset, PAGE_BYTES) {
            // The journal logs whole pages, and a part of this one is unexplained.
            if fixes.len() < wrong.len() {
                return Ok(unexplained);
            }
            self.write_anew(stripe, from + to_u32(at), suspects.columns(at, &fixed)).await?;
        } else {
            self.write_located(suspects, at, fixed, &fixes).await?;
        }
        let mut findings =
            Findings { unexplained: (wrong.len() - fixes.len()) as u64, ..Findings::default() };
        for (sector, slot) in fixes {
            let Some((member, _)) = view.member(slot.index()) else { return Err(IoError::Stopping) };
            findings.corrected += 1;
            findings.places.push(Located {
                slot: slot.index(),
                sector: (member.data_offset + offset + (sector - at) as u64) / SECTOR as u64,
                sectors: 1,
                device: member.name.clone(),
            });
        }
        Ok(findings)
    }

    /// Writes all columns of rows through the journal, parity with them: so what it held of these rows counts
    /// no more.
    async fn write_anew(
        &self,
        stripe: StripeId,
        from: u32,
        columns: impl Iterator<Item = Option<Slice>>,
    ) -> Result<(), IoError> {
        let chunk = self.geometry.chunk_bytes();
        let data = (0..).zip(columns).filter_map(|(column, bytes)| Some((column * chunk + from, bytes?)));
        self.write_claimed(stripe, data, false).await
    }

    /// Writes the sectors that `fixes` names of the row at `at`, data first. `fixed` holds the row's
    /// corrected chunks.
    async fn write_located(
        &self,
        suspects: &Suspects<'_>,
        at: usize,
        fixed: Vec<(MemberSlot, Slice)>,
        fixes: &[(usize, MemberSlot)],
    ) -> Result<(), IoError> {
        let from = suspects.from + to_u32(at);
        let offset = self.geometry.member_offset(suspects.stripe) + u64::from(from);
        self.shared.cache.remove_rows(suspects.stripe.0, from, from + PAGE_BYTES);
        let (parity, data) = fixed.into_iter().partition(|(slot, _)| suspects.is_parity(*slot));
        self.write_fixed(suspects, offset, data).await?;
        let logged = self.log_parity(suspects, fixes).await?;
        self.write_fixed(suspects, offset, parity).await?;
        if matches!(logged, Logged::Nothing) { Ok(()) } else { self.flush_corrected(suspects.view).await }
    }

    async fn write_fixed(
        &self,
        suspects: &Suspects<'_>,
        offset: u64,
        fixed: Vec<(MemberSlot, Slice)>,
    ) -> Result<(), IoError> {
        for (slot, bytes) in fixed {
            self.write_correction(suspects.view, slot.index(), offset, bytes).await?;
        }
        Ok(())
    }

    /// What a log still holds of wrong parity may have been made of it, and a replay would bring it back. So
    /// before parity is put right the log says that it is made of the data: of those blocks alone, for in
    /// others it is the data that is wrong, and durably right by then.
    async fn log_parity(
        &self,
        suspects: &Suspects<'_>,
        fixes: &[(usize, MemberSlot)],
    ) -> Result<Logged, IoError> {
        let block = self.geometry.logical_block();
        let of_parity = fixes.iter().filter(|(_, slot)| suspects.is_parity(*slot));
        let starts: BTreeSet<u32> =
            of_parity.map(|(sector, _)| (suspects.from + to_u32(*sector)) / block * block).collect();
        if starts.is_empty() || suspects.view.snapshot.log.is_none() {
            return Ok(Logged::Nothing);
        }
        self.flush_corrected(suspects.view).await?;
        let rows: Vec<(u32, u32)> = starts.into_iter().map(|start| (start, start + block)).collect();
        self.log_rows_of_walk(suspects.view, suspects.stripe, &rows).await
    }

    async fn flush_corrected(&self, view: &View) -> Result<(), IoError> {
        if self.flush_or_report(view).await.is_empty() { Ok(()) } else { Err(IoError::Stopping) }
    }
}

impl Suspects<'_> {
    /// Whether every chunk was read, and none made from the others: else there is one equation too few.
    fn are_all_there(&self, at: usize, offset: u64) -> bool {
        self.p.len() >= at + PAGE_BYTES as usize
            && (self.row.unreadable.is_empty() || active(Mutant::LocateDegraded))
            && self.row.p.is_some()
            && self.row.q.is_some()
            && (self.view.unreadable(offset, PAGE_BYTES.into()).is_empty() || active(Mutant::LocateDegraded))
    }

    fn old(&self) -> (&[u8], &[u8]) {
        (self.row.p.as_deref().unwrap_or_default(), self.row.q.as_deref().unwrap_or_default())
    }

    /// Where sectors of the row at `at` are that do not match.
    fn wrong_sectors(&self, at: usize) -> Vec<usize> {
        let (p, q) = self.old();
        let differs = |old: &[u8], new: &[u8], sector: usize| {
            old.get(sector..sector + SECTOR) != new.get(sector..sector + SECTOR) && !old.is_empty()
        };
        (at..at + PAGE_BYTES as usize)
            .step_by(SECTOR)
            .filter(|&sector| differs(p, self.p, sector) || differs(q, self.q, sector))
            .collect()
    }

    /// The chunk that alone explains a sector.
    fn culprit(&self, sector: usize) -> Option<Culprit> {
        let range = sector..sector + SECTOR;
        let (p, q) = self.old();
        locate(
            &sum(&p[range.clone()], &self.p[range.clone()]),
            &sum(&q[range.clone()], &self.q[range]),
            self.map.q_exponents(),
        )
    }

    fn is_parity(&self, slot: MemberSlot) -> bool {
        !matches!(self.map.role(slot), Role::Data(_))
    }

    fn slot_of(&self, culprit: Culprit) -> Option<MemberSlot> {
        match culprit {
            Culprit::P => Some(self.map.p_slot()),
            Culprit::Q => self.map.q_slot(),
            Culprit::Exponent(exponent) => {
                self.map.column_of_exponent(usize::from(exponent)).map(|column| self.map.data_slot(column))
            }
        }
    }

    /// The row at `at` of every member to correct, with its sectors corrected.
    fn fixed(&self, at: usize, fixes: &[(usize, MemberSlot)]) -> Vec<(MemberSlot, Slice)> {
        let slots: Set64 = fixes.iter().map(|(_, slot)| slot.index()).collect();
        let (old_p, _) = self.old();
        let mut fixed = Vec::new();
        for slot in slots {
            let slot = MemberSlot::at(slot);
            let mut bytes = shard::buffer(PAGE_BYTES as usize);
            bytes.copy_from_slice(&self.chunk(slot)[at..at + PAGE_BYTES as usize]);
            for &(sector, _) in fixes.iter().filter(|(_, culprit)| *culprit == slot) {
                let (range, place) = (sector..sector + SECTOR, sector - at..sector - at + SECTOR);
                let change = sum(&old_p[range.clone()], &self.p[range.clone()]);
                match self.map.role(slot) {
                    Role::Data(_) => bytes[place].iter_mut().zip(&change).for_each(|(byte, p)| *byte ^= p),
                    Role::P => bytes[place].copy_from_slice(&self.p[range]),
                    Role::Q => bytes[place].copy_from_slice(&self.q[range]),
                }
            }
            fixed.push((slot, bytes.freeze()));
        }
        fixed
    }

    /// The data of the row at `at`, by column, corrected.
    fn columns(&self, at: usize, fixed: &[(MemberSlot, Slice)]) -> impl Iterator<Item = Option<Slice>> {
        (0..self.map.columns()).map(move |column| {
            let corrected = fixed.iter().find(|(culprit, _)| *culprit == self.map.data_slot(column));
            let as_read = || self.row.data[column].as_ref().map(|bytes| bytes.slice(at, PAGE_BYTES as usize));
            corrected.map(|(_, bytes)| bytes.clone()).or_else(as_read)
        })
    }

    /// A member's chunk as it was read.
    fn chunk(&self, slot: MemberSlot) -> &[u8] {
        let (p, q) = self.old();
        match self.map.role(slot) {
            Role::Data(column) => self.row.data[column].as_deref().unwrap_or_default(),
            Role::P => p,
            Role::Q => q,
        }
    }

    /// Computes parity anew, by the kernels rather than by the syndromes: with `fixed` in place every sector
    /// of `fixes` must match. If it does not, nothing may be written.
    fn is_explained(
        &self,
        volume: &ParityVolume,
        at: usize,
        fixed: &[(MemberSlot, Slice)],
        fixes: &[(usize, MemberSlot)],
    ) -> bool {
        let end = at + PAGE_BYTES as usize;
        let row_of = |slot: MemberSlot| {
            let corrected = fixed.iter().find(|(culprit, _)| *culprit == slot);
            corrected.map_or_else(|| &self.chunk(slot)[at..end], |(_, bytes)| &bytes[..])
        };
        let mut data: [&[u8]; MEMBERS_MAX] = [&[]; MEMBERS_MAX];
        for (column, bytes) in data.iter_mut().enumerate().take(self.map.columns()) {
            *bytes = row_of(self.map.data_slot(column));
        }
        let (mut p, mut q) = (shard::buffer(PAGE_BYTES as usize), shard::buffer(PAGE_BYTES as usize));
        encode(volume.kernel, self.map, &data[..self.map.columns()], Some(&mut p), Some(&mut q));
        let Some(q_slot) = self.map.q_slot() else { return false };
        fixes.iter().all(|(sector, _)| {
            let place = sector - at..sector - at + SECTOR;
            p[place.clone()] == row_of(self.map.p_slot())[place.clone()]
                && q[place.clone()] == row_of(q_slot)[place]
        })
    }
}

/// Whether a journal may hold these bytes of each member's chunk, with parity that was made of what the
/// members have: a replay would bring it back. Parity of rows that wait for a resync is made of data alone.
fn is_journaled(view: &View, offset: u64, length: u32) -> bool {
    let intent = &view.snapshot.intent;
    view.snapshot.log.traits().batches == Batches::WholePages
        && !intent.needs_resync(intent.regions(offset, length.into()))
        && !active(Mutant::RepairPastJournal)
}

fn sum(a: &[u8], b: &[u8]) -> [u8; SECTOR] {
    let mut sum = [0; SECTOR];
    sum.iter_mut().zip(a.iter().zip(b)).for_each(|(sum, (a, b))| *sum = a ^ b);
    sum
}
