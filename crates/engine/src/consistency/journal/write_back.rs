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
//! MD's rules: the mode is switched by hand and not kept on disk; an array that isn't whole, or has lost its
//! journal, falls back to write-through, and stays there.

use std::sync::Arc;

use pinstripe_runtime::{Slice, atomics::Ordering};

use super::{
    Journal, Kind, LogGuard,
    cache::{Key, Promise, Shape},
    ring::{Page, meta_blocks_max},
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

    pub(crate) fn set_mode(&self, mode: JournalMode) {
        let mut state = self.state();
        state.mode = if state.failed.is_some() { JournalMode::WriteThrough } else { mode };
        self.note_cache(&state);
        drop(state);
        self.out.notify();
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

    /// A stripe is on the members. The caller holds its claim.
    pub(crate) fn written_out(&self, key: Key) {
        let mut state = self.state();
        let shape = state.shape;
        state.cache.remove(key, shape);
        self.note_cache(&state);
        drop(state);
        self.changed.notify();
        self.reclaim.notify();
        self.wanted.notify();
    }

    /// A stripe could not be written out.
    pub(crate) fn not_written_out(&self, key: Key) {
        self.state().cache.set_stuck(key);
        self.changed.notify();
    }

    fn reserve(&self, key: Key, starts: &[u32]) -> Option<Reservation<'_>> {
        let mut state = self.state();
        let promise = state.cache.promise(key, starts, state.shape);
        let blocks = starts.len() as u64 + meta_blocks_max(starts.len());
        let log = state.used()
            + state.appending
            + state.promised
            + state.cache.reserved()
            + blocks
            + promise.reserve;
        let fits = log <= self.ring.blocks() / 4 * 3
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
            self.append(logged, Kind::Data, view).await?
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
            || state.cache.pages() * super::BLOCK_BYTES > self.cache_bytes_max / 2
            || state.used() + state.cache.reserved() > self.ring.blocks() / 2;
        pressed && state.cache.pages() > 0
    }

    /// Whether there is something to write out, or the mode of an array that isn't whole to be changed.
    pub(crate) fn has_work(&self, is_whole: bool) -> bool {
        let state = self.state();
        state.cache.pages() > 0 || state.mode == JournalMode::WriteBack && !is_whole
    }

    pub(crate) fn arrivals(&self) -> u64 {
        self.state().cache.arrivals
    }

    pub(crate) fn oldest(&self, whole: usize) -> Vec<Key> {
        let mut state = self.state();
        state.refused = false;
        state.cache.oldest(ROUND, whole)
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
