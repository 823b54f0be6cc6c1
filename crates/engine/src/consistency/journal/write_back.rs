//! Write-back: a write is acknowledged as soon as its data is in the log, and goes to the members later.
//!
//! A page is logged without parity, durably, and kept in memory ([`cache`](super::cache)). It is *written
//! out* by an ordinary stripe write, which logs it once more with the parity of its row before the members
//! change. So at every moment the log has what a replay needs, ours or the kernel's: data behind which no
//! parity came is newer than the members, and what is on the members is consistent without it.
//!
//! A batch that can't be cached (no room, or the array isn't whole) is written through, after what is cached
//! of its stripe; that is all the back-pressure there is. Such a batch may wait for room in the log with its
//! claim held. Room may have to come from writing out, which needs claims too. So the batch first writes out
//! every cached stripe with the same claim; for what is written out, room is set aside.
//!
//! What can't be written out, since its member is out and too much of its row can't be read, stays cached.
//! Where it alone holds the log's beginning, it is logged anew. That takes its claim, and so a batch that
//! waits for room with that claim gives way for it. A batch of its stripe takes it along.
//!
//! MD's rules: the mode is switched by hand and not kept on disk; an array that isn't whole, or has lost its
//! journal, falls back to write-through, and stays there. And a rule of our own: every member has a bad-block
//! log. What was acknowledged must have a place although the rest of its row can't be read; then the parity
//! that it can't have is listed as bad.

use std::sync::Arc;

use pinstripe_runtime::{Slice, atomics::Ordering};

use super::{
    Journal, Kind, LogGuard,
    cache::{Key, Promise, Shape},
    ring::{Page, blocks_max},
};
use crate::{
    consistency::view::{LogError, LogView},
    geometry::ParityGeometry,
    mutants::{Mutant, active},
    options::JournalMode,
};

/// Stripes that are written out between two looks at whether that is enough.
const ROUND: usize = 256;

/// Room that is set aside for pages on their way into the log and out of it. Given back when dropped.
struct Reservation<'j> {
    journal: &'j Journal,
    promise: Option<Promise>,
    blocks: u64,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut state = self.journal.state();
        assert!(state.promised >= self.blocks, "room in the log is given back once");
        state.promised -= self.blocks;
        if let Some(promise) = self.promise.take() {
            state.cache.give_back(promise);
        }
        self.journal.note_cache(&state);
        drop(state);
        self.journal.changed.notify();
        self.journal.wanted.notify();
    }
}

impl Journal {
    /// The mode.
    pub(crate) fn mode(&self) -> JournalMode {
        self.state().mode
    }

    /// Sets the mode. False if the journal can't be in it any more.
    pub(crate) fn set_mode(&self, mode: JournalMode) -> bool {
        let mut state = self.state();
        let may = state.failed.is_none() && !self.ends.load(Ordering::SeqCst);
        state.mode = if may { mode } else { JournalMode::WriteThrough };
        let is_set = state.mode == mode;
        state.cache.try_again();
        self.note_cache(&state);
        drop(state);
        self.out.notify();
        is_set
    }

    /// The array stops: the mode is write-through from now on, and all is tried to be written out once
    /// more.
    pub(crate) fn end_write_back(&self) {
        self.ends.store(true, Ordering::SeqCst);
        self.set_mode(JournalMode::WriteThrough);
    }

    /// Whether a write has to look at the cache at all.
    pub(crate) fn caches(&self) -> bool {
        self.caches.load(Ordering::SeqCst)
    }

    /// To be called after every change of the mode or the cache.
    pub(super) fn note_cache(&self, state: &super::JournalState) {
        let caches = state.mode == JournalMode::WriteBack || !state.cache.is_empty();
        self.caches.store(caches, Ordering::SeqCst);
    }

    /// The page of a stripe's data that begins at `start`, if it is cached.
    pub(crate) fn cached_page(&self, key: Key, start: u32) -> Option<Slice> {
        self.state().cache.page(key, start)
    }

    /// The cached pages that overlap a range of a stripe's data.
    pub(crate) fn cached_range(&self, key: Key, from: u32, to: u32) -> Vec<(u32, Slice)> {
        self.state().cache.range(key, from, to).collect()
    }

    /// What is cached of a stripe.
    pub(crate) fn cached_stripe(&self, key: Key) -> Vec<(u32, Slice)> {
        self.state().cache.stripe(key)
    }

    /// The stripes in the cache that share the claim of a slot.
    pub(crate) fn cached_in_slot(&self, slot: u64) -> Vec<Key> {
        self.state().cache.in_slot(slot)
    }

    /// These pages of a stripe are on the members. The caller holds its claim.
    pub(crate) fn written_out(&self, key: Key, starts: &[u32]) {
        let mut state = self.state();
        let shape = state.shape;
        state.cache.remove(key, starts, shape);
        if state.failed.is_some() {
            self.unflushed.store(true, Ordering::SeqCst);
            self.out.notify();
        }
        self.note_cache(&state);
        drop(state);
        self.changed.notify();
        self.reclaim.notify();
        self.wanted.notify();
    }

    /// A stripe could not be written out under this membership.
    pub(crate) fn not_written_out(&self, key: Key, generation: u64) {
        self.state().cache.set_stuck(key, generation);
        self.changed.notify();
        self.out.notify();
    }

    /// Whether a stripe could not be written out under this membership.
    pub(crate) fn is_stuck_under(&self, key: Key, generation: u64) -> bool {
        self.state().cache.is_stuck_under(key, generation)
    }

    /// The stripes that can't be written out, and for which alone the log's beginning is kept while room is
    /// short.
    pub(crate) fn pinning(&self) -> Vec<Key> {
        let state = self.state();
        let pinned = state.pinned_at(self.ring.blocks()).filter(|_| state.failed.is_none());
        pinned.into_iter().flat_map(|position| state.cache.stuck_at(position)).collect()
    }

    /// The same of those with the claim of a slot.
    pub(crate) fn pinning_in_slot(&self, slot: u64) -> Vec<Key> {
        self.pinning().into_iter().filter(|key| key.slot == slot).collect()
    }

    /// Logs pages of a stripe once more, which are cached: the log is needed from there for them. Room is
    /// what was set aside for writing them out, which there is again when the log's beginning is given up.
    /// The caller holds the claim.
    pub(crate) async fn log_again(
        self: &Arc<Self>,
        view: &dyn LogView,
        key: Key,
        pages: Vec<Page>,
    ) -> Result<(), LogError> {
        let held = self.append(pages, Kind::Data, None, view).await?;
        let mut state = self.state();
        if let Some(position) = state.held.get(&held.ticket).copied() {
            state.cache.relocate(key, position);
        }
        Ok(())
    }

    fn reserve(&self, key: Key, starts: &[u32]) -> Option<Reservation<'_>> {
        let mut state = self.state();
        let promise = state.cache.promise(key, starts, state.shape);
        let blocks = blocks_max(starts.len());
        let log = state.used()
            + state.appending
            + state.promised
            + state.cache.reserved()
            + blocks
            + promise.reserve;
        // However dense it is when it is logged once more, stripe by stripe, the largest batch fits
        // beside it.
        let beside = state.cache.stripes() as u64 + 1 + self.largest_batch + 2;
        let fits = log <= self.ring.blocks() / 4 * 3
            && log + beside <= self.ring.blocks()
            && (state.cache.pages_to_come() + promise.pages) * super::BLOCK_BYTES <= self.cache_bytes_max;
        if state.mode != JournalMode::WriteBack || state.failed.is_some() || !fits {
            state.refused |= !fits;
            drop(state);
            self.out.notify();
            return None;
        }
        state.cache.keep(promise);
        state.promised += blocks;
        self.note_cache(&state);
        Some(Reservation { journal: self, promise: Some(promise), blocks })
    }

    /// Logs pages of a stripe's data without parity and keeps them in memory. They are durable when this
    /// returns true; false if there is no room for them. The caller holds the claim.
    pub(crate) async fn log_data(
        self: &Arc<Self>,
        view: &dyn LogView,
        key: Key,
        pages: Vec<(u32, Page)>,
    ) -> Result<bool, LogError> {
        let starts: Vec<u32> = pages.iter().map(|(start, _)| *start).collect();
        let Some(mut reservation) = self.reserve(key, &starts) else { return Ok(false) };
        let kept = pages.iter().map(|(start, page)| (*start, page.bytes.clone())).collect();
        let logged = pages.into_iter().map(|(_, page)| page).collect();
        let held = if active(Mutant::AcknowledgedFromMemory) {
            LogGuard { journal: Arc::clone(self), ticket: 0 }
        } else {
            self.append(logged, Kind::Data, None, view).await?
        };
        let mut state = self.state();
        let position = state.held.get(&held.ticket).copied().unwrap_or(state.head);
        if let Some(promise) = reservation.promise.take() {
            state.cache.insert(key, kept, position, promise);
        }
        self.note_cache(&state);
        drop(state);
        self.out.notify();
        Ok(true)
    }

    /// Whether something is to be written out now.
    pub(crate) fn wants_write_out(&self) -> bool {
        let state = self.state();
        let pressed = state.mode == JournalMode::WriteThrough
            || state.refused
            || state.starved
            || state.tail < state.unwanted_to
            || state.cache.pages() * super::BLOCK_BYTES > self.cache_bytes_max / 2
            || state.used() + state.cache.reserved() > self.ring.blocks() / 2;
        pressed && state.cache.pages() > 0 || self.unflushed.load(Ordering::SeqCst)
    }

    /// Whether something was written out that no log keeps and no flush has covered.
    pub(crate) fn take_unflushed(&self) -> bool {
        self.unflushed.swap(false, Ordering::SeqCst)
    }

    /// Whether there is something to write out or to be flushed, or the mode of an array that isn't whole is
    /// to be changed.
    pub(crate) fn has_work(&self, is_whole: bool) -> bool {
        let state = self.state();
        state.cache.pages() > 0
            || state.mode == JournalMode::WriteBack && !is_whole
            || self.unflushed.load(Ordering::SeqCst)
    }

    pub(crate) fn arrivals(&self) -> u64 {
        self.state().cache.arrivals
    }

    /// What to write out next.
    pub(crate) fn oldest(&self, whole: usize, generation: u64) -> Vec<Key> {
        let mut state = self.state();
        state.refused = false;
        state.cache.oldest(ROUND, whole, generation)
    }

    /// Waits until nothing is cached any more. False if something can't be written out, or isn't any more:
    /// the array has stopped.
    pub(crate) async fn drained(&self, is_over: impl Fn() -> bool) -> bool {
        let over = || {
            let state = self.state();
            if state.cache.is_empty() {
                return Some(true);
            }
            (is_over() || state.cache.is_stuck()).then_some(false)
        };
        self.changed.wait_for(over).await
    }
}

/// What decides the cost of a stripe in the log.
pub(super) fn shape_of(geometry: &ParityGeometry) -> Shape {
    Shape { chunk_bytes: geometry.chunk_bytes(), parities: geometry.redundancy() }
}
