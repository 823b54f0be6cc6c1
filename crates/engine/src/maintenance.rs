//! Resync, rebuild and scrub: a walk over stripes, each under its claim, beside the users' I/O.
//!
//! One task on the home shard looks at what is to do and does one thing at a time: a recovering member is rebuilt; a complete array
//! whose regions need it is resynced; then scrubs that were asked for. Whenever the membership changes, the walk ends and the
//! task looks again. Several stripes are under way at a time, so that the members are busy, and the walk yields between stripes.

mod recovery;

use std::{cell::Cell, ops::Range, rc::Rc};

use pinstripe_runtime::{Slice, shard};

use crate::{
    array::{CheckReport, Home},
    control::Command,
    decode::encode,
    error::{IoError, Operation},
    geometry::{Geometry, MEMBERS_MAX, MemberSlot, Role, Set64, StripeId, StripeMap},
    mutants::{Mutant, active},
    parity_cache::ROW_BYTES,
    row::{Row, Want},
    shared::Answer,
    snapshot::{MemberId, View},
    volume::VolumeInner,
};

/// Sectors of a row, which MD counts mismatches in.
const ROW_SECTORS: u64 = ROW_BYTES as u64 / 512;
/// How long to wait before a resync that met errors is tried again.
const RETRY_NS: u64 = 10_000_000_000;

/// What is being done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncAction {
    /// Parity is made to match data after an unclean stop.
    Resync,
    /// A member is rebuilt.
    Recovery,
    /// Parity is compared with data.
    Check,
}

impl SyncAction {
    /// MD's word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Resync => "resync",
            Self::Recovery => "recover",
            Self::Check => "check",
        }
    }
}

/// How far it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SyncProgress {
    /// What is being done.
    pub action: SyncAction,
    /// Stripes done.
    pub done: u64,
    /// Stripes to do.
    pub total: u64,
    /// When it began, by the shard's clock.
    pub started_ns: u64,
    /// Sectors of rows that did not match, so far.
    pub mismatched_sectors: u64,
    /// Stripes that could not be read whole.
    pub errors: u64,
}

/// What one walk shares among its workers.
struct Walk {
    action: SyncAction,
    target: Option<(usize, MemberId)>,
    generation: u64,
    next: Cell<u64>,
    end: u64,
    mismatched: Cell<u64>,
    errors: Cell<u64>,
    aborted: Cell<bool>,
}

enum Job {
    Recover(usize, MemberId),
    Resync,
    Check,
    Stop,
}

impl Home {
    /// The maintenance task's life.
    pub(crate) async fn maintain(self: Rc<Self>) {
        if matches!(self.shared().geometry, Geometry::Raid0(_)) {
            return;
        }
        loop {
            let job = self.work.wait_for(|| self.job()).await;
            let generation = self.shared().snapshot().generation;
            let whole = match job {
                Job::Stop => return,
                Job::Recover(slot, member) => self.recover(slot, member).await,
                Job::Resync => self.resync().await,
                Job::Check => self.scrub().await,
            };
            *self.sync.borrow_mut() = None;
            if !whole && !self.stopped.get() {
                // Something was in the way. If it was the membership, the next look sees it; if sectors, not too soon.
                let changed = || self.stopped.get() || self.shared().snapshot().generation != generation;
                shard::timeout(RETRY_NS, self.work.wait_until(changed)).await;
            }
        }
    }

    fn job(&self) -> Option<Job> {
        if self.stopped.get() {
            return Some(Job::Stop);
        }
        let shared = self.shared();
        if shared.has_failed() {
            return None;
        }
        let snapshot = shared.snapshot();
        if !self.is_static() {
            if let Some(slot) = snapshot.recovering.iter().next()
                && let Some(member) = snapshot.seats[slot].member()
            {
                return Some(Job::Recover(slot, member.id));
            }
            if snapshot.is_complete() && snapshot.intent.resync_count() > 0 {
                return Some(Job::Resync);
            }
        }
        (self.checks_wanted.get() > self.checks_done.get()).then_some(Job::Check)
    }

    fn begin(&self, action: SyncAction, done: u64, total: u64) {
        let progress =
            SyncProgress { action, done, total, started_ns: shard::now(), mismatched_sectors: 0, errors: 0 };
        *self.sync.borrow_mut() = Some(progress);
    }

    /// Walks `stripes` with several workers. True if every one of them was done, errors counted or not.
    async fn walk(
        self: &Rc<Self>,
        action: SyncAction,
        target: Option<(usize, MemberId)>,
        stripes: Range<u64>,
    ) -> Rc<Walk> {
        let walk = Rc::new(Walk {
            action,
            target,
            generation: self.shared().snapshot().generation,
            next: Cell::new(stripes.start),
            end: stripes.end,
            mismatched: Cell::new(0),
            errors: Cell::new(0),
            aborted: Cell::new(false),
        });
        let all = crate::fan_out::FanOut::new();
        for _ in 0..self.shared().options.maintenance_depth.max(1) {
            let (home, walk, branch) = (Rc::clone(self), Rc::clone(&walk), all.branch());
            shard::spawn(async move {
                home.work_along(&walk).await;
                branch.finish(Ok(()));
            });
        }
        // The workers' results are in the walk.
        let _: Answer = all.wait().await;
        if let Some(progress) = &mut *self.sync.borrow_mut() {
            progress.mismatched_sectors += walk.mismatched.get();
            progress.errors += walk.errors.get();
        }
        walk
    }

    async fn work_along(&self, walk: &Walk) {
        let volume = &self.volume.inner;
        let mut row = volume.rows.take();
        loop {
            let stripe = walk.next.get();
            if stripe >= walk.end || walk.aborted.get() {
                break;
            }
            walk.next.set(stripe + 1);
            let result = volume.sync_stripe(walk, StripeId(stripe), &mut row).await;
            match result {
                Ok(mismatched) => walk.mismatched.set(walk.mismatched.get() + mismatched),
                Err(IoError::Unreadable { .. }) => walk.errors.set(walk.errors.get() + 1),
                Err(_) => walk.aborted.set(true),
            }
            if self.stopped.get() {
                walk.aborted.set(true);
            }
            if let Some(progress) = &mut *self.sync.borrow_mut() {
                progress.done += 1;
            }
            shard::yield_now().await;
        }
        row.clear(0);
        volume.rows.give(row);
    }

    /// Resyncs every region that needs it. True if none is left.
    async fn resync(self: &Rc<Self>) -> bool {
        let geometry = self.volume.inner.parity_geometry();
        let chunk = u64::from(geometry.chunk_bytes());
        let snapshot = self.shared().snapshot();
        let intent = &snapshot.intent;
        let regions: Vec<usize> =
            (0..intent.len()).filter(|&region| intent.needs_resync(region..=region)).collect();
        let stripes_of = |region: usize| {
            let start = region as u64 * intent.region_bytes();
            let end = (start + intent.region_bytes()).min(geometry.member_bytes());
            start / chunk..end.div_ceil(chunk).min(geometry.stripes())
        };
        self.begin(
            SyncAction::Resync,
            0,
            regions.iter().map(|&r| stripes_of(r).end - stripes_of(r).start).sum(),
        );
        let mut whole = true;
        for region in regions {
            if active(Mutant::ResyncMarkForgotten) {
                intent.resynced(region);
                continue;
            }
            let walk = self.walk(SyncAction::Resync, None, stripes_of(region)).await;
            if walk.aborted.get() {
                return false;
            }
            // C4: parity must be on the members before anything may say that it matches.
            let view = self.volume.inner.view();
            let flushed =
                active(Mutant::ResyncWithoutFlush) || self.volume.inner.flush_members(&view).await.is_empty();
            if walk.errors.get() > 0 || !flushed {
                whole = false;
                continue;
            }
            intent.resynced(region);
        }
        // What was not dirty for writers is clean now: the superblocks may say so.
        let refreshes = !self.shared().admission.is_open() && !self.dirty.get() || self.awaits_log();
        if whole && refreshes {
            whole = self.command(|reply| Command::Refresh { reply }).await.is_ok();
        }
        whole
    }

    /// Compares every stripe. False if it must be done again.
    async fn scrub(self: &Rc<Self>) -> bool {
        let tickets = self.checks_wanted.get();
        let stripes = self.volume.inner.parity_geometry().stripes();
        self.begin(SyncAction::Check, 0, stripes);
        let walk = self.walk(SyncAction::Check, None, 0..stripes).await;
        let over = self.stopped.get() || self.shared().has_failed();
        if walk.aborted.get() && !over {
            // A member failed under it: the next look begins anew with those that are left.
            return false;
        }
        let result = if walk.aborted.get() {
            Err(if self.stopped.get() { IoError::Stopping } else { IoError::Failed })
        } else {
            Ok(CheckReport {
                stripes,
                mismatched_sectors: walk.mismatched.get(),
                unreadable_stripes: walk.errors.get(),
            })
        };
        *self.check_result.borrow_mut() = Some(result);
        self.checks_done.set(tickets);
        self.work.notify();
        true
    }
}

impl VolumeInner {
    /// Does one stripe of a walk, under its claim. Returns the sectors of rows that did not match.
    async fn sync_stripe(&self, walk: &Walk, stripe: StripeId, row: &mut Row) -> Result<u64, IoError> {
        let _claim = if active(Mutant::SyncWithoutClaim) && walk.action != SyncAction::Check {
            None
        } else {
            Some(self.claim_alone(stripe).await)
        };
        loop {
            let view = self.view();
            if walk.action != SyncAction::Check && view.snapshot.generation != walk.generation {
                return Err(IoError::Stopping);
            }
            let result = self.sync_chunk(&view, walk, stripe, row).await;
            // What one membership can't read, the next may be able to (C1).
            let stale = self.shared.admission.generation() != view.snapshot.generation;
            if !(stale && matches!(result, Err(IoError::Unreadable { .. }))) {
                return result;
            }
        }
    }

    /// Does a stripe whole or, where several members can't read sectors of it, row by row.
    async fn sync_chunk(
        &self,
        view: &View,
        walk: &Walk,
        stripe: StripeId,
        row: &mut Row,
    ) -> Result<u64, IoError> {
        let chunk = self.parity_geometry().chunk_bytes();
        let whole = self.sync_rows(view, walk, stripe, (0, chunk), row).await;
        let Err(IoError::Unreadable { .. }) = whole else { return whole };
        // Sectors that several members can't read are lost only where they are in one row; the other rows are done.
        let (mut mismatched, mut result) = (0, Ok(()));
        for from in (0..chunk).step_by(ROW_BYTES as usize) {
            match self.sync_rows(view, walk, stripe, (from, from + ROW_BYTES), row).await {
                Ok(sectors) => mismatched += sectors,
                Err(error @ IoError::Unreadable { .. }) => result = Err(error),
                Err(error) => return Err(error),
            }
        }
        result.map(|()| mismatched)
    }

    async fn sync_rows(
        &self,
        view: &View,
        walk: &Walk,
        stripe: StripeId,
        rows: (u32, u32),
        row: &mut Row,
    ) -> Result<u64, IoError> {
        match walk.target {
            Some((slot, _)) => self.rebuild_rows(view, stripe, rows, slot, row).await.map(|()| 0),
            None => self.compare_rows(view, stripe, rows, walk.action == SyncAction::Resync, row).await,
        }
    }

    async fn write_sync(&self, view: &View, slot: usize, offset: u64, bytes: Slice) -> Result<(), IoError> {
        let Some((member, device)) = view.member(slot) else { return Err(IoError::Stopping) };
        self.counters().member_writes.add(1);
        self.counters().member_write_bytes.add(bytes.len() as u64);
        if let Err(error) = device.write(member.data_offset + offset, bytes, false).await.result {
            self.report(view, slot, Operation::Write, member.data_offset + offset, error);
            return Err(IoError::Stopping);
        }
        Ok(())
    }

    fn parity_of(
        &self,
        map: StripeMap,
        row: &Row,
        length: u32,
        p: bool,
        q: bool,
    ) -> (Option<Slice>, Option<Slice>) {
        let mut data: [&[u8]; MEMBERS_MAX] = [&[]; MEMBERS_MAX];
        for (bytes, known) in data.iter_mut().zip(&row.data) {
            *bytes = known.as_deref().unwrap_or(&[]);
        }
        let mut p = p.then(|| shard::buffer(length as usize));
        let mut q = q.then(|| shard::buffer(length as usize));
        encode(self.kernel, map, &data[..map.columns()], p.as_deref_mut(), q.as_deref_mut());
        (p.map(pinstripe_runtime::Buffer::freeze), q.map(pinstripe_runtime::Buffer::freeze))
    }

    /// Compares parity with data, and with `correct` makes parity match. Returns the sectors of rows that did not.
    async fn compare_rows(
        &self,
        view: &View,
        stripe: StripeId,
        (from, to): (u32, u32),
        correct: bool,
        row: &mut Row,
    ) -> Result<u64, IoError> {
        let geometry = self.parity_geometry();
        let (map, length) = (geometry.slots(stripe), to - from);
        let offset = geometry.member_offset(stripe) + u64::from(from);
        let want = Want { columns: Set64::below(map.columns()), parity: true, avoid: Set64::EMPTY };
        self.read_row(view, stripe, (from, to), want, row).await?;
        let (p, q) = self.parity_of(
            map,
            row,
            length,
            row.p.is_some(),
            row.q.is_some() && !active(Mutant::ResyncIgnoresQ),
        );
        let mut mismatched = Set64::EMPTY;
        let mut rows = 0;
        let pairs = [(&row.p, &p, Some(map.p_slot())), (&row.q, &q, map.q_slot())];
        let different = |start: usize, end: usize| {
            pairs.iter().any(|(old, new, _)| matches!((old, new), (Some(old), Some(new)) if old[start..end] != new[start..end]))
        };
        for start in (0..length as usize).step_by(ROW_BYTES as usize) {
            rows += u64::from(different(start, start + ROW_BYTES as usize));
        }
        for (old, new, slot) in &pairs {
            if let (Some(old), Some(new), Some(slot)) = (old, new, slot)
                && old[..] != new[..]
            {
                mismatched.insert(slot.index());
            }
        }
        if correct && !mismatched.is_empty() {
            self.shared.cache.remove_rows(stripe.0, from, to);
            for (bytes, slot) in [(&p, Some(map.p_slot())), (&q, map.q_slot())] {
                if let (Some(bytes), Some(slot)) = (bytes, slot)
                    && mismatched.contains(slot.index())
                {
                    self.write_sync(view, slot.index(), offset, bytes.clone()).await?;
                }
            }
        }
        self.heal(view, stripe, (from, to), row).await?;
        Ok(rows * ROW_SECTORS)
    }

    /// Rewrites what can't be read of a stripe, in every row that the other members allow to make. The caller holds the claim.
    pub(crate) async fn heal_stripe(&self, stripe: StripeId) {
        let view = self.view();
        let mut row = self.rows.take();
        for from in (0..self.parity_geometry().chunk_bytes()).step_by(ROW_BYTES as usize) {
            // A row that can't be made stays as it is, and who needs it gets the error.
            let _ = self.compare_rows(&view, stripe, (from, from + ROW_BYTES), false, &mut row).await;
        }
        row.clear(0);
        self.rows.give(row);
    }

    /// Rewrites the rows that could not be read, from the others, in the same claim (C14).
    async fn heal(
        &self,
        view: &View,
        stripe: StripeId,
        (from, to): (u32, u32),
        row: &Row,
    ) -> Result<(), IoError> {
        if row.unreadable.is_empty() {
            return Ok(());
        }
        let geometry = self.parity_geometry();
        if self.shared.options.read_only {
            return Err(IoError::Unreadable { stripe: stripe.0, missing: row.unreadable.len() });
        }
        let map = geometry.slots(stripe);
        self.shared.cache.remove_rows(stripe.0, from, to);
        for slot in row.unreadable {
            let bytes = match map.role(MemberSlot(u8::try_from(slot).unwrap_or(u8::MAX))) {
                Role::Data(column) => row.data[column].clone(),
                Role::P => self.parity_of(map, row, to - from, true, false).0,
                Role::Q => self.parity_of(map, row, to - from, false, true).1,
            };
            let bytes =
                bytes.ok_or(IoError::Unreadable { stripe: stripe.0, missing: row.unreadable.len() })?;
            self.write_sync(view, slot, geometry.member_offset(stripe) + u64::from(from), bytes).await?;
            self.counters().corrected_reads.add(1);
        }
        Ok(())
    }
}
