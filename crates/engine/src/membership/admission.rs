//! The gate that every stripe write passes, and the generations by which membership changes.
//!
//! One word holds the generation of the current [`Snapshot`](crate::membership::snapshot::Snapshot) and
//! whether the superblocks on disk say *dirty*. A writer counts itself in (in its own shard's cache line)
//! under the parity of the generation, and then reads the word: it may go on if the generation is still the
//! one it counted under and the gate is open. The controller changes the word and then reads the counts. Both
//! sides are sequentially consistent, so either the writer sees the change or the controller sees the writer.
//! That gives both promises with one count:
//!
//! - *C1*: after publishing a generation the controller waits until no writer is counted under the old one;
//!   then every write in flight was planned under the new membership.
//! - *clean/dirty*: the gate is closed, and the superblocks may be marked clean, only when no writer is
//!   counted at all.
//!
//! A writer never waits for the gate while it is counted, and what else it waits for the controller deals
//! with meanwhile, so the controller's waits end.

use crate::mutants::{Mutant, active};
use crossbeam_utils::CachePadded;
use pinstripe_runtime::{
    Signal,
    atomics::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

const OPEN: u64 = 1;

/// See the module.
pub struct Admission {
    /// generation << 1 | open
    word: AtomicU64,
    counts: Box<[CachePadded<Counts>]>,
    /// A writer left that was counted under an old generation, or while the gate was closed.
    left: Signal,
    /// The gate opened or the array halted.
    opened: Signal,
    wanted: AtomicBool,
    halted: AtomicBool,
}

#[derive(Default)]
struct Counts {
    inside: [AtomicU32; 2],
    /// Writers that have ever entered: shows the controller whether the array was idle. Written by its own
    /// shard only.
    entered: AtomicU64,
}

/// The right to change stripes under a generation; ends when dropped.
pub struct Pass<'a> {
    admission: &'a Admission,
    shard: usize,
    generation: u64,
}

impl Pass<'_> {
    /// The number of the shard that it was given to.
    pub(crate) fn shard(&self) -> usize {
        self.shard
    }

    /// The generation under which it was given.
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        self.admission.leave(self.shard, self.generation);
    }
}

/// The array takes no writes any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Halted;

impl Admission {
    /// Closed, at `generation`.
    pub fn new(shards: usize, generation: u64) -> Self {
        Self {
            word: AtomicU64::new(generation << 1),
            counts: (0..shards).map(|_| CachePadded::default()).collect(),
            left: Signal::default(),
            opened: Signal::default(),
            wanted: AtomicBool::new(false),
            halted: AtomicBool::new(false),
        }
    }

    /// The current generation.
    pub fn generation(&self) -> u64 {
        self.word.load(Ordering::SeqCst) >> 1
    }

    /// Whether the superblocks on disk say dirty.
    pub fn is_open(&self) -> bool {
        self.word.load(Ordering::SeqCst) & OPEN != 0
    }

    /// Counts the caller in if the gate is open.
    pub fn try_enter(&self, shard: usize) -> Option<Pass<'_>> {
        let counts = &self.counts[shard];
        loop {
            let word = self.word.load(Ordering::SeqCst);
            if word & OPEN == 0 || self.halted.load(Ordering::SeqCst) {
                return None;
            }
            let generation = word >> 1;
            counts.inside[parity(generation)].fetch_add(1, Ordering::SeqCst);
            if self.word.load(Ordering::SeqCst) == word {
                counts.entered.store(counts.entered.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                return Some(Pass { admission: self, shard, generation });
            }
            self.leave(shard, generation);
        }
    }

    /// Waits for the gate. `controller_wake` tells the controller that a writer wants it open.
    pub async fn enter(&self, shard: usize, controller_wake: &Signal) -> Result<Pass<'_>, Halted> {
        loop {
            if let Some(pass) = self.try_enter(shard) {
                return Ok(pass);
            }
            if self.halted.load(Ordering::SeqCst) {
                return Err(Halted);
            }
            let is_decided = || {
                if self.is_open() || self.halted.load(Ordering::SeqCst) {
                    return true;
                }
                // Asked anew on every look: the gate may have opened and closed again since the last one.
                self.wanted.store(true, Ordering::SeqCst);
                controller_wake.notify();
                false
            };
            self.opened.wait_until(is_decided).await;
        }
    }

    fn leave(&self, shard: usize, generation: u64) {
        let before = self.counts[shard].inside[parity(generation)].fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "C1: more writers left generation {generation} than had entered");
        let word = self.word.load(Ordering::SeqCst);
        if word >> 1 != generation || word & OPEN == 0 {
            self.left.notify();
        }
    }

    /// Whether a writer waits for the gate; forgets it.
    pub fn take_wanted(&self) -> bool {
        self.wanted.swap(false, Ordering::SeqCst)
    }

    /// Whether a writer waits for the gate.
    pub fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }

    /// Lets writers in: the superblocks say dirty, durably.
    pub fn open(&self) {
        self.word.fetch_or(OPEN, Ordering::SeqCst);
        self.opened.notify();
    }

    /// Closes the gate if no writer is inside. False, and open, otherwise.
    pub fn try_close(&self) -> bool {
        self.word.fetch_and(!OPEN, Ordering::SeqCst);
        let inside = (0..2).any(|p| self.inside(p) != 0) && !active(Mutant::CleanWithWriters);
        if inside {
            self.open();
        }
        !inside
    }

    /// Closes the gate for good, and waits until every writer inside has left.
    pub async fn close_for_good(&self) {
        self.halt();
        self.word.fetch_and(!OPEN, Ordering::SeqCst);
        self.left.wait_until(|| (0..2).all(|p| self.inside(p) == 0)).await;
    }

    /// Lets no more writers in, for good. Writers that are inside go on.
    pub fn halt(&self) {
        self.halted.store(true, Ordering::SeqCst);
        self.opened.notify();
    }

    /// Whether [`Admission::halt`] was called.
    pub fn is_halted(&self) -> bool {
        self.halted.load(Ordering::SeqCst)
    }

    /// Moves to the next generation; the snapshot with that number must be in place. Follow with
    /// [`Admission::drained`].
    pub fn publish(&self, generation: u64) {
        debug_assert_eq!(self.generation() + 1, generation);
        self.word.fetch_add(2, Ordering::SeqCst);
    }

    /// Waits until no writer of the generation before the current one is left. For others than the
    /// controller, too, that generation is the one before the latest: it is published only when the writers
    /// before are gone.
    pub async fn drained(&self) {
        let is_drained = || self.inside(parity(self.generation() + 1)) == 0;
        self.left.wait_until(|| is_drained() || active(Mutant::NotDrained)).await;
    }

    fn inside(&self, parity: usize) -> u32 {
        self.counts.iter().map(|c| c.inside[parity].load(Ordering::SeqCst)).sum()
    }

    /// Writers inside now.
    pub fn writers(&self) -> u32 {
        self.inside(0) + self.inside(1)
    }

    /// Writers that have ever entered.
    pub fn entered(&self) -> u64 {
        self.counts.iter().map(|c| c.entered.load(Ordering::Relaxed)).sum()
    }
}

fn parity(generation: u64) -> usize {
    usize::from(generation & 1 != 0)
}
