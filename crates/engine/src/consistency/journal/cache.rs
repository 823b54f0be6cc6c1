//! Pages that are in the log and not yet on the members: what a write-back journal keeps in memory.
//!
//! The members' rows stay consistent with each other without these pages. So reads of members (degraded
//! reads, resync, rebuild, scrub, a stripe write's pre-read) need not know of them. Only the array's users'
//! requests do: a read is laid over with these pages, and a write that goes to the members takes them along
//! first.
//!
//! Only the holder of a stripe's claim changes what is cached of it. Two bounds are kept, both before a page
//! is taken in:
//!
//! - *Memory*: so many pages and no more.
//! - *The log*: for every stripe that is cached, room for the record that writes it out is set aside. So a
//!   stripe can always be written out without waiting for room, and a replay always finds room to log once
//!   more what has no parity. What a replay has kept was never asked for room: of that no more is set aside
//!   than leaves some to other writes.

use std::collections::BTreeMap;

use pinstripe_runtime::Slice;

use super::{BLOCK_BYTES, ring::blocks_max};

/// A stripe, found by the slot of the stripe table that its claim takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    /// Stripes with the same slot share a claim.
    pub(crate) slot: u64,
    pub(crate) stripe: u64,
}

/// A page of a stripe.
struct Cached {
    bytes: Slice,
    /// From where on the log must be kept for it.
    position: u64,
}

#[derive(Default)]
struct Stripe {
    /// By first byte within the stripe's data.
    pages: BTreeMap<u32, Cached>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Cache {
    stripes: BTreeMap<Key, Stripe>,
    /// Those that could not be written out, with the membership under which it was tried; none where it is to
    /// be tried again under any.
    stuck: BTreeMap<Key, Option<u64>>,
    pages: usize,
    /// By position in the log: how many pages need it.
    positions: BTreeMap<u64, usize>,
    /// Blocks of the log that are set aside.
    reserved: u64,
    /// Blocks that are not, though what a replay has kept may need them: there was no room.
    lacking: u64,
    /// Pages that are being logged.
    coming: usize,
    /// Counts what came in, to tell whether it is idle.
    pub(crate) arrivals: u64,
}

/// The shape that decides what a stripe costs in the log.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shape {
    pub(crate) chunk_bytes: u32,
    pub(crate) parities: usize,
}

impl Shape {
    /// Blocks of the records that write out these pages of a stripe. Each row may be one by itself, beside
    /// bad blocks for example; a row needs one meta block. All of it twice: what was logged as a whole and
    /// then refused is logged row by row. And once more the pages alone: what was refused then, too, is
    /// logged again.
    fn record(self, pages: impl Iterator<Item = u32>) -> u64 {
        let mut count = 0;
        let mut rows: Vec<u32> =
            pages.inspect(|_| count += 1).map(|start| start % self.chunk_bytes).collect();
        rows.sort_unstable();
        rows.dedup();
        let again = if count > 0 { blocks_max(count) } else { 0 };
        2 * (count + rows.len() * (self.parities + 1)) as u64 + again
    }
}

/// What is set aside for pages on their way into the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Promise {
    /// Blocks for writing them out.
    pub(crate) reserve: u64,
    /// Pages.
    pub(crate) pages: usize,
}

impl Cache {
    /// Pages.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// Pages, with those on their way.
    pub(crate) fn pages_to_come(&self) -> usize {
        self.pages + self.coming
    }

    /// Stripes.
    pub(crate) fn stripes(&self) -> usize {
        self.stripes.len()
    }

    /// Bytes.
    pub(crate) fn bytes(&self) -> u64 {
        (self.pages * BLOCK_BYTES) as u64
    }

    /// Whether there is nothing, and nothing on its way.
    pub(crate) fn is_empty(&self) -> bool {
        self.pages == 0 && self.coming == 0
    }

    /// Whether what there is can't be written out.
    pub(crate) fn is_stuck(&self) -> bool {
        let is_stuck = |key| self.stuck.get(key).is_some_and(Option::is_some);
        self.coming == 0 && self.stripes.keys().all(is_stuck)
    }

    /// Blocks of the log that are set aside for writing out.
    pub(crate) fn reserved(&self) -> u64 {
        self.reserved
    }

    /// From where on the log is needed for what is cached.
    pub(crate) fn needed_from(&self) -> Option<u64> {
        self.positions.keys().next().copied()
    }

    /// What taking in these pages of a stripe needs.
    pub(crate) fn promise(&self, key: Key, starts: &[u32], shape: Shape) -> Promise {
        let cached = self.stripes.get(&key);
        let known = || cached.into_iter().flat_map(|stripe| stripe.pages.keys().copied());
        let is_new = |start: &u32| cached.is_none_or(|stripe| !stripe.pages.contains_key(start));
        let fresh: Vec<u32> = starts.iter().copied().filter(is_new).collect();
        let after = shape.record(known().chain(fresh.iter().copied()));
        Promise { reserve: after - shape.record(known()), pages: fresh.len() }
    }

    /// Sets aside what was promised.
    pub(crate) fn keep(&mut self, promise: Promise) {
        self.reserved += promise.reserve;
        self.coming += promise.pages + 1;
        self.arrivals += 1;
    }

    /// The same, but no more than `most` blocks in all. To be called before anything else is promised.
    pub(crate) fn keep_within(&mut self, promise: Promise, most: u64) {
        self.keep(promise);
        let beyond = self.reserved.saturating_sub(most);
        self.reserved -= beyond;
        self.lacking += beyond;
    }

    /// The pages didn't get into the log.
    pub(crate) fn give_back(&mut self, promise: Promise) {
        assert!(self.reserved >= promise.reserve, "room in the log is given back once");
        self.reserved -= promise.reserve;
        self.coming -= promise.pages + 1;
    }

    /// Takes pages in that are in the log from `position` on. What was promised is theirs now.
    pub(crate) fn insert(&mut self, key: Key, pages: Vec<(u32, Slice)>, position: u64, promise: Promise) {
        self.coming -= promise.pages + 1;
        let stripe = self.stripes.entry(key).or_default();
        self.stuck.remove(&key);
        for (start, bytes) in pages {
            *self.positions.entry(position).or_default() += 1;
            match stripe.pages.insert(start, Cached { bytes, position }) {
                Some(old) => release(&mut self.positions, old.position),
                None => self.pages += 1,
            }
        }
    }

    /// The pages of a stripe.
    pub(crate) fn stripe(&self, key: Key) -> Vec<(u32, Slice)> {
        let pages = self.stripes.get(&key).into_iter().flat_map(|stripe| &stripe.pages);
        pages.map(|(&start, page)| (start, page.bytes.clone())).collect()
    }

    /// The page of a stripe that begins at `start`.
    pub(crate) fn page(&self, key: Key, start: u32) -> Option<Slice> {
        self.stripes.get(&key)?.pages.get(&start).map(|page| page.bytes.clone())
    }

    /// The pages of a stripe that overlap `from..to` of its data.
    pub(crate) fn range(&self, key: Key, from: u32, to: u32) -> impl Iterator<Item = (u32, Slice)> {
        let first = from - from % super::PAGE_BYTES;
        let pages = self.stripes.get(&key).into_iter().flat_map(move |stripe| stripe.pages.range(first..to));
        pages.map(|(&start, page)| (start, page.bytes.clone()))
    }

    /// These pages of a stripe are on the members.
    pub(crate) fn remove(&mut self, key: Key, starts: &[u32], shape: Shape) {
        let Some(stripe) = self.stripes.get_mut(&key) else { return };
        let before = shape.record(stripe.pages.keys().copied());
        for page in starts.iter().filter_map(|start| stripe.pages.remove(start)) {
            self.pages -= 1;
            release(&mut self.positions, page.position);
        }
        let mut record = before - shape.record(stripe.pages.keys().copied());
        if stripe.pages.is_empty() {
            self.stripes.remove(&key);
            self.stuck.remove(&key);
        }
        let lacked = record.min(self.lacking);
        self.lacking -= lacked;
        record -= lacked;
        assert!(self.reserved >= record, "room in the log is given back once");
        self.reserved -= record;
    }

    /// A stripe could not be written out under this membership.
    pub(crate) fn set_stuck(&mut self, key: Key, generation: u64) {
        if self.stripes.contains_key(&key) {
            self.stuck.insert(key, Some(generation));
        }
    }

    /// Whether a stripe could not be written out under this membership.
    pub(crate) fn is_stuck_under(&self, key: Key, generation: u64) -> bool {
        self.stuck.get(&key) == Some(&Some(generation))
    }

    /// What could not be written out is tried again.
    pub(crate) fn try_again(&mut self) {
        self.stuck.values_mut().for_each(|generation| *generation = None);
    }

    /// All of a stripe is in the log at `position`, too.
    pub(crate) fn relocate(&mut self, key: Key, position: u64) {
        let pages = self.stripes.get_mut(&key).into_iter().flat_map(|stripe| stripe.pages.values_mut());
        for page in pages {
            *self.positions.entry(position).or_default() += 1;
            release(&mut self.positions, std::mem::replace(&mut page.position, position));
        }
    }

    /// The stripes that could not be written out, and for which the log is needed from `position`.
    pub(crate) fn stuck_at(&self, position: u64) -> impl Iterator<Item = Key> {
        let holds = move |key: &Key| {
            let stripe = self.stripes.get(key);
            stripe.is_some_and(|stripe| stripe.pages.values().any(|page| page.position == position))
        };
        self.stuck.keys().copied().filter(holds)
    }

    /// The stripes that share the claim of a slot.
    pub(crate) fn in_slot(&self, slot: u64) -> Vec<Key> {
        let (first, last) = (Key { slot, stripe: 0 }, Key { slot, stripe: u64::MAX });
        self.stripes.range(first..=last).map(|(&key, _)| key).collect()
    }

    /// At most so many stripes to be written out: whole ones, of `whole` pages, first, and then those that
    /// have been in the log for longest. Not those that could not be under this membership.
    pub(crate) fn oldest(&self, count: usize, whole: usize, generation: u64) -> Vec<Key> {
        let rank = |key: &Key, stripe: &Stripe| {
            let oldest = stripe.pages.values().map(|page| page.position).min();
            (self.stuck.contains_key(key), stripe.pages.len() < whole, oldest)
        };
        let stripes = self.stripes.iter().filter(|(key, _)| !self.is_stuck_under(**key, generation));
        let mut ranked: Vec<_> = stripes.map(|(key, stripe)| (rank(key, stripe), *key)).collect();
        ranked.sort_unstable();
        ranked.into_iter().take(count).map(|(_, key)| key).collect()
    }
}

fn release(positions: &mut BTreeMap<u64, usize>, position: u64) {
    if let Some(count) = positions.get_mut(&position) {
        *count -= 1;
        if *count == 0 {
            positions.remove(&position);
        }
    }
}

#[cfg(test)]
mod tests {
    use pinstripe_runtime::{Shard, ShardConfig, shard};

    use super::*;

    const SHAPE: Shape = Shape { chunk_bytes: 16 << 10, parities: 2 };

    fn key(stripe: u64) -> Key {
        Key { slot: stripe % 4, stripe }
    }

    fn take_in(cache: &mut Cache, stripe: u64, starts: &[u32], position: u64) {
        let promise = cache.promise(key(stripe), starts, SHAPE);
        cache.keep(promise);
        let pages = starts.iter().map(|start| (*start, shard::zeroed(BLOCK_BYTES).freeze())).collect();
        cache.insert(key(stripe), pages, position, promise);
    }

    #[test]
    fn what_is_set_aside_is_enough_however_the_rows_are_cut() {
        for (rows, columns, parities) in [(1, 1, 1), (16, 1, 1), (16, 3, 2), (256, 60, 2), (4096, 1, 2)] {
            let shape = Shape { chunk_bytes: rows * 4096, parities };
            let pages =
                (0..columns).flat_map(|column| (0..rows).map(move |row| (column * rows + row) * 4096));
            let set_aside = shape.record(pages);
            for together in [1, 2, 3, rows] {
                let cut = |from: u32| together.min(rows - from) as usize * (columns as usize + parities);
                let needed: u64 =
                    (0..rows).step_by(together as usize).map(|from| blocks_max(cut(from))).sum();
                let again = blocks_max((columns * rows) as usize);
                assert!(
                    2 * needed + again <= set_aside,
                    "{needed} of {set_aside}: {rows} rows, {together} together"
                );
            }
        }
    }

    #[test]
    fn the_log_is_needed_from_the_oldest_copy_that_no_later_one_has_replaced() {
        let world = Shard::new(&ShardConfig { index: 0, arena_bytes: 0, clock: None });
        let _entered = world.enter();
        let mut cache = Cache::default();
        assert!(cache.is_empty() && cache.needed_from().is_none());
        take_in(&mut cache, 1, &[0, 4096], 10);
        take_in(&mut cache, 2, &[0], 20);
        assert_eq!((cache.pages(), cache.needed_from()), (3, Some(10)));
        take_in(&mut cache, 1, &[0], 30);
        assert_eq!((cache.pages(), cache.needed_from()), (3, Some(10)));
        take_in(&mut cache, 1, &[4096], 40);
        assert_eq!((cache.pages(), cache.needed_from()), (3, Some(20)));
        assert_eq!(cache.oldest(9, 2, 1), [key(1), key(2)], "whole ones first");
        cache.set_stuck(key(1), 0);
        assert_eq!(cache.oldest(1, 2, 1), [key(2)]);
        cache.remove(key(2), &[0], SHAPE);
        assert_eq!(cache.needed_from(), Some(30));
        cache.relocate(key(1), 50);
        assert_eq!(cache.needed_from(), Some(50));
        assert_eq!(cache.stuck_at(50).collect::<Vec<_>>(), [key(1)]);
        cache.remove(key(1), &[0], SHAPE);
        assert_eq!((cache.pages(), cache.needed_from()), (1, Some(50)));
        cache.remove(key(1), &[4096], SHAPE);
        assert!(cache.is_empty() && cache.reserved() == 0 && cache.needed_from().is_none());
    }

    #[test]
    fn what_a_replay_has_kept_takes_no_more_room_than_there_is() {
        let world = Shard::new(&ShardConfig { index: 0, arena_bytes: 0, clock: None });
        let _entered = world.enter();
        let mut cache = Cache::default();
        let page = || vec![(0, shard::zeroed(BLOCK_BYTES).freeze())];
        for stripe in 0..3 {
            let promise = cache.promise(key(stripe), &[0], SHAPE);
            cache.keep_within(promise, 15);
            cache.insert(key(stripe), page(), 0, promise);
        }
        assert_eq!(cache.reserved(), 15);
        take_in(&mut cache, 5, &[0], 1);
        assert_eq!(cache.reserved(), 25, "10 for a page of a row");
        cache.remove(key(0), &[0], SHAPE);
        assert_eq!(cache.reserved(), 25);
        cache.remove(key(5), &[0], SHAPE);
        assert_eq!(cache.reserved(), 20);
        cache.remove(key(1), &[0], SHAPE);
        cache.remove(key(2), &[0], SHAPE);
        assert_eq!(cache.reserved(), 0);
    }

    #[test]
    fn room_for_the_rows_parity_is_set_aside_once_for_each_row() {
        let world = Shard::new(&ShardConfig { index: 0, arena_bytes: 0, clock: None });
        let _entered = world.enter();
        let mut cache = Cache::default();
        // Two pages of one row in two columns, and one of another row.
        take_in(&mut cache, 1, &[0, 16 << 10, 4096], 1);
        assert_eq!(cache.reserved(), 2 * (3 + 2 * (2 + 1)) + 4);
        take_in(&mut cache, 1, &[0], 2);
        assert_eq!(cache.reserved(), 2 * (3 + 2 * (2 + 1)) + 4, "a page that is there costs nothing more");
        let promise = cache.promise(key(5), &[0], SHAPE);
        cache.keep(promise);
        assert!(!cache.is_empty());
        cache.give_back(promise);
        assert_eq!(cache.in_slot(1), [key(1)]);
        cache.remove(key(1), &[0, 16 << 10], SHAPE);
        assert_eq!(cache.reserved(), 2 * (1 + (2 + 1)) + 2);
        cache.remove(key(1), &[4096], SHAPE);
        assert_eq!(cache.reserved(), 0);
    }
}
