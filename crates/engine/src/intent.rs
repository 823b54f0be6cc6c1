//! Write intent: which regions of the members may be changing, so that a crash costs a resync of those and
//! not of everything.
//!
//! A region is what one bit of MD's bitmap covers. Its counters are several *lanes*, and each shard has one:
//! writers on two shards, which share a region, don't share a cache line. (ScalaRAID's D-Blocks give one to
//! each stripe instead, so that two cores meet by chance.) A region is busy while any lane is not zero; the
//! bits on disk stay MD's linear map.
//!
//! ```text
//!            writer: Clean -> Setting          intent writer: page durable
//!   Clean ──────────────────────────> Setting ──────────────────────────> Set
//!     ^                                                                    │ sweeper, two sweeps after the last write,
//!     └──────────── page durable ──────────── Clearing <──────────────────┘ after a flush of every member (C4)
//! ```
//!
//! A writer increments its lane and then reads the state; the sweeper stores Clearing and then reads the
//! lanes. Both are sequentially consistent, so a writer that goes on because it saw Set is seen by the
//! sweeper (C7).
//!
//! Sticky marks outlive the lanes (C8): *needs resync* (parity of the region may not match its data, because
//! it never did or from an unclean load; in the latter case it is also *torn*: rows that were being written
//! may be half new, so that parity can't stand in for data there) and *missed* (a member was absent from a
//! write). Neither region's bit is cleared until a resync or recovery of the whole region has ended without
//! an error. Without a bitmap the table keeps the marks in memory only.

use std::{
    ops::{Range, RangeInclusive},
    sync::{Arc, OnceLock},
};

use crate::{
    ablation::Gates,
    mutants::{Mutant, active},
    units::{to_u32, to_usize},
};
use crossbeam_utils::CachePadded;
use pinstripe_runtime::{
    Signal,
    atomics::{AtomicBool, AtomicU32, AtomicU64, Mutex, MutexGuard, Ordering},
};

/// Counters per region. More shards than these share them.
pub const LANES: usize = crate::ablation::LANES;
/// Counters in a cache line, or in the two that a processor fetches at a time.
const APART: usize = size_of::<CachePadded<AtomicU32>>() / size_of::<AtomicU32>();

const STATE: u32 = 0b11;
const CLEAN: u32 = 0;
const SETTING: u32 = 1;
const SET: u32 = 2;
const CLEARING: u32 = 3;
/// Written since the last sweep.
const TOUCHED: u32 = 1 << 2;
const NEEDS_RESYNC: u32 = 1 << 3;
const MISSED: u32 = 1 << 4;
const TORN: u32 = 1 << 5;

/// Regions that one stripe's change touches.
pub type Regions = RangeInclusive<usize>;

/// Regions of an array without a bitmap: only marks in memory.
pub(crate) const REGION_BYTES_WITHOUT_BITMAP: u64 = 64 << 20;

/// The intent of one array under one bitmap (or none). Replaced as a whole, with the membership snapshot,
/// when the bitmap is added, removed or resized.
pub struct IntentTable {
    region_bytes: u64,
    region_shift: u32,
    persistent: bool,
    regions: Box<[AtomicU32]>,
    /// Lane by lane, so far apart that no cache line has counters of two.
    lanes: Box<[AtomicU32]>,
    lane_length: usize,
    /// How far the resync of a region has come: the first byte that isn't known to match.
    resynced_to: AtomicU64,
    /// Rows were torn before there was a bitmap, so that what was written to them was not forced.
    unforced: AtomicBool,
    /// Regions that went from Clean to Setting and that the intent writer has not seen.
    requested: Mutex<Vec<usize>>,
    has_requests: AtomicBool,
    /// For the intent writer: requests came.
    pub(crate) wanted: Signal,
    /// For writers: states changed.
    changed: Signal,
    /// Locks of older designs around the counters, for measurement only.
    gates: OnceLock<Arc<Gates>>,
}

/// What is told of some regions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Their bits are set on the members.
    pub(crate) set: usize,
    /// Parity may not match there.
    pub(crate) to_resync: usize,
}

/// Keeps the lanes of a write's regions up; ends when dropped.
pub struct Mark<'t> {
    table: &'t IntentTable,
    regions: Regions,
    lane: u32,
    /// Bytes of each member.
    length: u32,
}

impl Drop for Mark<'_> {
    fn drop(&mut self) {
        let (table, regions, lane) = (self.table, self.regions.clone(), self.lane);
        match table.gates.get() {
            None => table.unmark(regions, lane),
            Some(gates) => table.unmark_within(gates, regions, lane, self.length),
        }
    }
}

impl IntentTable {
    /// All clean. `member_bytes` are covered by regions of `region_bytes` (a power of two); `persistent` with
    /// a bitmap.
    pub fn new(member_bytes: u64, region_bytes: u64, persistent: bool) -> Self {
        assert!(region_bytes.is_power_of_two(), "regions of {region_bytes} bytes");
        let count = to_usize(member_bytes.div_ceil(region_bytes).max(1));
        let zeroes = |n: usize| (0..n).map(|_| AtomicU32::new(0)).collect();
        let lane_length = count + APART;
        Self {
            region_bytes,
            region_shift: region_bytes.trailing_zeros(),
            persistent,
            regions: zeroes(count),
            lanes: if persistent { zeroes(lane_length * LANES) } else { Box::default() },
            lane_length,
            resynced_to: AtomicU64::new(0),
            unforced: AtomicBool::new(false),
            requested: Mutex::default(),
            has_requests: AtomicBool::new(false),
            wanted: Signal::default(),
            changed: Signal::default(),
            gates: OnceLock::new(),
        }
    }

    /// Number of regions.
    pub fn len(&self) -> usize {
        self.regions.len()
    }

    /// Never: an array has at least one region.
    pub fn is_empty(&self) -> bool {
        self.regions.is_empty()
    }

    /// Bytes of each member in a region.
    pub fn region_bytes(&self) -> u64 {
        self.region_bytes
    }

    /// Whether there is a bitmap on the members.
    pub fn is_persistent(&self) -> bool {
        self.persistent
    }

    /// The regions of `length` member bytes from `offset`.
    pub fn regions(&self, offset: u64, length: u64) -> Regions {
        let region = |at: u64| to_usize(at >> self.region_shift).min(self.len() - 1);
        region(offset)..=region(offset + length.max(1) - 1)
    }

    fn lane(&self, region: usize, lane: usize) -> &AtomicU32 {
        &self.lanes[lane * self.lane_length + region]
    }

    /// Counts a write of `shard` into `regions`. Nothing may be changed before [`IntentTable::is_durable`].
    pub fn mark(&self, regions: Regions, shard: usize) -> Mark<'_> {
        self.mark_rows(regions, shard, 0, 1)
    }

    /// The same, of a write of `length` bytes of each member into `stripe`.
    pub(crate) fn mark_rows(&self, regions: Regions, shard: usize, stripe: u64, length: u64) -> Mark<'_> {
        if !self.persistent {
            #[expect(clippy::reversed_empty_ranges, reason = "nothing to count without a bitmap")]
            return Mark { table: self, regions: 1..=0, lane: 0, length: 0 };
        }
        let regions =
            if active(Mutant::MarkCoversFirstRegion) { *regions.start()..=*regions.start() } else { regions };
        #[expect(clippy::cast_possible_truncation, reason = "a chunk is short")]
        let length = length as u32;
        if let Some(gates) = self.gates.get() {
            return self.mark_within(gates, regions, gates.lane(shard, stripe), length);
        }
        let lane = to_u32(shard % LANES);
        self.count(regions.clone(), lane);
        Mark { table: self, regions, lane, length }
    }

    fn count(&self, regions: Regions, lane: u32) {
        for region in regions {
            self.lane(region, to_usize(lane)).fetch_add(1, Ordering::SeqCst);
        }
    }

    fn unmark(&self, regions: Regions, lane: u32) {
        for region in regions {
            let before = self.lane(region, to_usize(lane)).fetch_sub(1, Ordering::SeqCst);
            assert!(before > 0, "C7: region {region} is unmarked more often than it was marked");
        }
    }

    #[cold]
    #[inline(never)]
    fn mark_within(&self, gates: &Gates, regions: Regions, lane: u32, length: u32) -> Mark<'_> {
        let held = gates.intent(*regions.start(), to_usize(lane), length);
        self.count(regions.clone(), lane);
        drop(held);
        Mark { table: self, regions, lane, length }
    }

    #[cold]
    #[inline(never)]
    fn unmark_within(&self, gates: &Gates, regions: Regions, lane: u32, length: u32) {
        let _held = (!regions.is_empty()).then(|| gates.intent(*regions.start(), to_usize(lane), length));
        self.unmark(regions, lane);
    }

    /// Has the counters counted within locks.
    pub(crate) fn put_behind(&self, gates: &Arc<Gates>) {
        // A table goes from one membership to the next.
        let _ = self.gates.set(Arc::clone(gates));
    }

    /// Whether every marked region's bit is durable. Asks for it if it is not.
    pub fn is_durable(&self, mark: &Mark<'_>) -> bool {
        let mut durable = true;
        for region in mark.regions.clone() {
            let word = &self.regions[region];
            loop {
                let now = word.load(Ordering::SeqCst);
                match now & STATE {
                    SET if now & TOUCHED != 0 => break,
                    SET => {
                        // A failed exchange means that the sweeper is at it: look again.
                        if word
                            .compare_exchange(now, now | TOUCHED, Ordering::SeqCst, Ordering::SeqCst)
                            .is_ok()
                        {
                            break;
                        }
                    }
                    CLEAN => {
                        let setting = now & !STATE | SETTING | TOUCHED;
                        if word.compare_exchange(now, setting, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
                            self.request(region);
                        }
                    }
                    state => {
                        durable &= state == CLEARING && active(Mutant::ClearingIgnored);
                        break;
                    }
                }
            }
        }
        durable
    }

    /// Waits until every marked region's bit is durable.
    pub async fn durable(&self, mark: &Mark<'_>) {
        if !self.is_durable(mark) {
            self.changed.wait_until(|| self.is_durable(mark)).await;
        }
    }

    fn requests(&self) -> MutexGuard<'_, Vec<usize>> {
        self.requested.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn request(&self, region: usize) {
        self.requests().push(region);
        self.has_requests.store(true, Ordering::SeqCst);
        self.wanted.notify();
    }

    /// Whether regions wait for the intent writer.
    pub fn has_requests(&self) -> bool {
        self.has_requests.load(Ordering::SeqCst)
    }

    /// The regions that wait, for one group commit; follow with [`IntentTable::set`] for just these.
    pub fn take_requests(&self) -> Vec<usize> {
        let mut requests = self.requests();
        self.has_requests.store(false, Ordering::SeqCst);
        std::mem::take(&mut *requests)
    }

    /// The bits of `regions` are durable.
    pub fn set(&self, regions: &[usize]) {
        for &region in regions {
            self.update(region, |word| word & !STATE | SET);
        }
        self.changed.notify();
    }

    fn update(&self, region: usize, change: impl Fn(u32) -> u32) -> u32 {
        self.regions[region]
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |word| Some(change(word)))
            .unwrap_or_else(|word| word)
    }

    /// One sweep: the regions that were idle since the last one and may be cleared. It forgets what was
    /// touched, so the next sweep sees only what happens from now on.
    pub fn sweep_candidates(&self) -> Vec<usize> {
        let idle = |region: &usize| {
            // Only looked at: a large array has a million of them, few of which are ever dirty.
            if self.regions[*region].load(Ordering::SeqCst) & STATE == CLEAN {
                return false;
            }
            let before = self.update(*region, |word| word & !TOUCHED);
            before & (STATE | TOUCHED | NEEDS_RESYNC | MISSED) == SET && self.is_quiet(*region)
        };
        (0..self.len()).filter(idle).collect()
    }

    fn is_quiet(&self, region: usize) -> bool {
        (0..LANES).all(|lane| self.lane(region, lane).load(Ordering::SeqCst) == 0)
    }

    /// Stops writers from using the bit of `region`, if it has been untouched since it became a candidate.
    /// All members must have been flushed since then.
    pub fn try_clear(&self, region: usize) -> bool {
        let word = &self.regions[region];
        if word.compare_exchange(SET, CLEARING, Ordering::SeqCst, Ordering::SeqCst).is_err() {
            return false;
        }
        if self.is_quiet(region) {
            return true;
        }
        self.update(region, |word| word & !STATE | SET);
        self.changed.notify();
        false
    }

    /// The bits of `regions` are not counted on any more: the next write sets them again.
    pub fn cleared(&self, regions: &[usize]) {
        for &region in regions {
            self.update(region, |word| word & !STATE | CLEAN);
        }
        self.changed.notify();
    }

    /// Marks a region as loaded with its bit set.
    pub fn load_set(&self, region: usize) {
        self.update(region, |word| word & !STATE | SET);
    }

    /// Parity of the region may not match its data; with `torn`, not even in rows that were written since.
    pub fn set_needs_resync(&self, region: usize, torn: bool) {
        self.resynced_to.store(0, Ordering::SeqCst);
        self.update(region, |word| word | NEEDS_RESYNC | if torn { TORN } else { 0 });
    }

    /// Takes over what `old`, with regions of another size perhaps, knows of parity.
    pub fn inherit(&self, old: &Self) {
        for region in (0..old.len()).filter(|&region| old.needs_resync(region..=region)) {
            let torn = old.is_torn(region..=region);
            if torn && !old.keeps_torn() {
                self.unforced.store(true, Ordering::SeqCst);
            }
            for successor in self.regions(region as u64 * old.region_bytes, old.region_bytes) {
                self.set_needs_resync(successor, torn);
            }
        }
    }

    /// Whether parity of any of `regions` can't stand in for data: rows may have been torn by a crash.
    pub fn is_torn(&self, regions: Regions) -> bool {
        !active(Mutant::TornParityTrusted)
            && regions.into_iter().any(|r| self.regions[r].load(Ordering::SeqCst) & TORN != 0)
    }

    /// Whether what is written to `regions` must be durable when it is acknowledged. A member that has lost
    /// what was in its cache comes back by the bitmap with what it has of torn rows.
    pub(crate) fn forces_writes(&self, regions: Regions) -> bool {
        self.persistent && self.is_torn(regions) && !active(Mutant::TornRowsUnforced)
    }

    /// Whether a member that comes back by the bitmap has all that was acknowledged in torn rows.
    pub(crate) fn keeps_torn(&self) -> bool {
        self.persistent && !self.unforced.load(Ordering::SeqCst)
    }

    /// Whether any region is torn.
    pub fn has_torn(&self) -> bool {
        (0..self.len()).any(|region| self.is_torn(region..=region))
    }

    /// Whether any region is torn in which some of a range of member bytes lies.
    pub(crate) fn has_torn_in(&self, range: Range<u64>) -> bool {
        let end = range.end.min(self.len() as u64 * self.region_bytes);
        range.start < end && self.is_torn(self.regions(range.start, end - range.start))
    }

    /// Whether parity of any of `regions` may not match (C10).
    pub fn needs_resync(&self, regions: Regions) -> bool {
        regions.into_iter().any(|r| self.regions[r].load(Ordering::SeqCst) & NEEDS_RESYNC != 0)
    }

    /// The whole region was resynced without an error.
    pub fn resynced(&self, region: usize) {
        self.update(region, |word| word & !(NEEDS_RESYNC | TORN) | TOUCHED);
    }

    /// Of the region that holds byte `to` of the members, what is before it was resynced without an error,
    /// and is flushed.
    pub fn resynced_to(&self, to: u64) {
        self.resynced_to.store(to, Ordering::SeqCst);
    }

    /// The first byte of `region` that its resync has left to do.
    pub fn left_of(&self, region: usize) -> u64 {
        let start = region as u64 * self.region_bytes;
        let to = self.resynced_to.load(Ordering::SeqCst);
        if (start..start + self.region_bytes).contains(&to) { to } else { start }
    }

    /// From which member byte on parity may not match its data.
    pub fn out_of_sync_from(&self) -> Option<u64> {
        let region = (0..self.len()).find(|&region| self.needs_resync(region..=region))?;
        Some(self.left_of(region))
    }

    /// A member misses a write to `regions`.
    pub fn set_missed(&self, regions: Regions) {
        for region in regions {
            if self.regions[region].load(Ordering::SeqCst) & MISSED == 0 {
                self.update(region, |word| word | MISSED);
            }
        }
    }

    /// Every member is whole again.
    pub fn recovered(&self) {
        for region in 0..self.len() {
            self.update(region, |word| word & !MISSED | TOUCHED);
        }
    }

    /// How many regions need a resync.
    pub fn resync_count(&self) -> usize {
        self.regions.iter().filter(|r| r.load(Ordering::SeqCst) & NEEDS_RESYNC != 0).count()
    }

    /// How many bits are set on the members.
    pub fn set_count(&self) -> usize {
        self.regions.iter().filter(|r| r.load(Ordering::SeqCst) & STATE != CLEAN).count()
    }

    /// How many of `regions` have their bits set on the members, and how many need a resync.
    pub(crate) fn tally(&self, regions: Range<usize>) -> Tally {
        self.regions[regions].iter().fold(Tally::default(), |tally, region| {
            let word = region.load(Ordering::SeqCst);
            Tally {
                set: tally.set + usize::from(word & STATE != CLEAN),
                to_resync: tally.to_resync + usize::from(word & NEEDS_RESYNC != 0),
            }
        })
    }

    /// Whether the bit of `region` must be on the members: what a page write has to contain.
    pub fn is_set(&self, region: usize) -> bool {
        matches!(self.regions[region].load(Ordering::SeqCst) & STATE, SET | SETTING)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> IntentTable {
        IntentTable::new(64 << 20, 1 << 20, true)
    }

    /// What the intent writer does, without its I/O.
    fn commit(table: &IntentTable) -> Vec<usize> {
        let requests = table.take_requests();
        table.set(&requests);
        requests
    }

    #[test]
    fn a_mark_covers_every_region_that_its_range_touches() {
        assert_eq!(table().regions((1 << 20) - 512, 1024), 0..=1);
        assert_eq!(table().regions(0, 1 << 20), 0..=0);
        assert_eq!(table().regions(63 << 20, 1 << 20), 63..=63);
    }

    #[test]
    fn data_waits_for_the_bit_and_one_commit_serves_only_its_snapshot() {
        let table = table();
        let first = table.mark(3..=3, 0);
        assert!(!table.is_durable(&first));
        let snapshot = table.take_requests();
        let second = table.mark(4..=4, 1);
        assert!(!table.is_durable(&second));
        table.set(&snapshot);
        assert!(table.is_durable(&first));
        assert!(!table.is_durable(&second), "a bit that was not in the snapshot is not durable");
        assert_eq!(commit(&table), [4]);
        assert!(table.is_durable(&second));
    }

    #[test]
    fn a_bit_is_cleared_only_on_the_second_idle_sweep() {
        let table = table();
        let mark = table.mark(5..=5, 9);
        table.is_durable(&mark);
        commit(&table);
        assert!(table.is_durable(&mark));
        assert_eq!(table.sweep_candidates(), [0; 0], "busy and touched");
        assert_eq!(table.sweep_candidates(), [0; 0], "busy");
        drop(mark);
        assert_eq!(table.sweep_candidates(), [5]);
        assert!(table.try_clear(5));
        let late = table.mark(5..=5, 9);
        assert!(!table.is_durable(&late), "a writer that sees Clearing waits");
        table.cleared(&[5]);
        assert!(!table.is_durable(&late));
        assert_eq!(commit(&table), [5], "and sets the bit again");
    }

    #[test]
    fn a_write_between_the_sweep_and_the_flush_keeps_the_bit() {
        let table = table();
        table.load_set(1);
        assert_eq!(table.sweep_candidates(), [1]);
        let mark = table.mark(1..=1, 0);
        assert!(table.is_durable(&mark));
        drop(mark);
        assert!(!table.try_clear(1), "the write may not be covered by the flush");
    }

    #[test]
    fn every_region_of_a_new_table_knows_what_the_old_one_knew_of_its_bytes() {
        for (old_bytes, new_bytes) in [(4 << 20, 1 << 20), (1 << 20, 4 << 20), (1 << 20, 1 << 20)] {
            for torn in [true, false] {
                let old = IntentTable::new(64 << 20, old_bytes, true);
                let new = IntentTable::new(64 << 20, new_bytes, false);
                for region in [0, 2, old.len() - 1] {
                    old.set_needs_resync(region, torn);
                }
                new.inherit(&old);
                for mib in 0..64 {
                    let [before, after] = [&old, &new].map(|table| {
                        let regions = table.regions(mib << 20, 1 << 20);
                        (table.needs_resync(regions.clone()), table.is_torn(regions))
                    });
                    // A larger region knows what any part of it needs.
                    let is_coarser = new_bytes > old_bytes;
                    assert!(before == after || is_coarser && !before.0, "{mib}: {before:?} and {after:?}");
                }
                let expected =
                    new.regions(0, old_bytes).count() + new.regions(2 * old_bytes, old_bytes).count();
                let last = new.regions((64 << 20) - old_bytes, old_bytes).count();
                let both = usize::from(new_bytes > old_bytes);
                assert_eq!(new.resync_count(), expected + last - both, "{old_bytes} and {new_bytes}");
            }
        }
    }

    #[test]
    fn lanes_at_zero_is_not_in_sync() {
        let table = table();
        table.load_set(2);
        table.set_needs_resync(2, true);
        table.load_set(3);
        table.set_missed(3..=3);
        for _ in 0..3 {
            assert_eq!(table.sweep_candidates(), [0; 0]);
        }
        table.resynced(2);
        table.recovered();
        table.sweep_candidates();
        assert_eq!(table.sweep_candidates(), [2, 3]);
    }
}
