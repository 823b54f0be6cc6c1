//! Parity that was written lately, so that the next read-modify-write of the row needs no parity read.
//!
//! Entries are 4 KiB rows of P or Q, shared by all shards, bounded, set-associative with a clock hand per set. They hold
//! reference-counted slices of the very buffers that were written: inserting copies nothing, and a hit is read in place.
//! But a buffer that is kept is one that the next write can't use, so the next write's is cold. Therefore a full set takes
//! a row only on its second write within a short time (each set remembers the last few that it turned away): a load
//! that never comes back to a row leaves the cache alone, and what comes back displaces what does not.
//!
//! Only the holder of a stripe's claim touches its entries (C13). A read-modify-write *takes* an entry out when it plans
//! to use it, any other write *removes* it before it writes that parity, whatever becomes of the write; both insert after
//! success. So an entry that is there has been whole since, and what was taken can be changed in place. The key carries the membership generation, so that
//! whatever happened to a member meanwhile, its old entries are not found any more.

use crossbeam_utils::CachePadded;
use pinstripe_runtime::{
    Slice,
    atomics::{Mutex, MutexGuard},
};

/// Bytes of an entry.
pub const ROW_BYTES: u32 = 4096;
const WAYS: usize = WAYS_COUNT as usize;
const WAYS_COUNT: u8 = 8;
/// Rows that a full set remembers to have turned away.
const SEEN: usize = SEEN_COUNT as usize;
const SEEN_COUNT: u8 = 4;

/// Which parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parity {
    /// The XOR.
    P,
    /// The weighted sum.
    Q,
}

/// Which row of which stripe, of which time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The stripe.
    pub stripe: u64,
    /// The row within the chunk: byte offset / 4096.
    pub row: u32,
    /// P or Q.
    pub parity: Parity,
    /// The membership generation.
    pub generation: u64,
}

/// One set. What every request looks at comes first and fits into one cache line with the lock; entries are touched
/// only where a tag says so.
#[derive(Default)]
#[repr(C)]
struct Set {
    /// By way: a part of the place's hash, 0 where the way is empty.
    tags: [u32; WAYS],
    /// Tags of rows that found the set full, the latest before `seen_next`.
    seen: [u32; SEEN],
    seen_next: u8,
    hand: u8,
    /// Bit by way: hit since the hand came by.
    used: u8,
    /// The latest membership of which a row came.
    generation: u64,
    entries: [Option<(Key, Slice)>; WAYS],
}

impl Set {
    fn way_of(&self, tag: u32, is_it: impl Fn(&Key) -> bool) -> Option<usize> {
        (0..WAYS).find(|&way| {
            self.tags[way] == tag && self.entries[way].as_ref().is_some_and(|(key, _)| is_it(key))
        })
    }

    /// Where a row goes: its old way, an empty one, or, if the row was here before not long ago, the one that was not used
    /// for the longest time.
    fn way_for(&mut self, tag: u32, key: &Key) -> Option<usize> {
        if key.generation != self.generation {
            if key.generation < self.generation {
                return None;
            }
            // What an earlier membership left is never found again.
            self.tags = [0; WAYS];
            self.entries = Default::default();
            self.generation = key.generation;
        }
        if let Some(way) = self.way_of(tag, |k| k == key) {
            return Some(way);
        }
        if let Some(way) = self.tags.iter().position(|&tag| tag == 0) {
            return Some(way);
        }
        if self.seen.contains(&tag) {
            return Some(self.evict());
        }
        self.seen[usize::from(self.seen_next)] = tag;
        self.seen_next = (self.seen_next + 1) % SEEN_COUNT;
        None
    }

    fn evict(&mut self) -> usize {
        loop {
            let way = self.hand;
            self.hand = (way + 1) % WAYS_COUNT;
            if self.used & 1 << way == 0 {
                return usize::from(way);
            }
            self.used &= !(1 << way);
        }
    }
}

/// See the module.
pub struct ParityCache {
    sets: Box<[CachePadded<Mutex<Set>>]>,
}

impl ParityCache {
    /// A cache of about `bytes` of parity; 0 turns it off.
    pub fn new(bytes: usize) -> Self {
        let sets = bytes / (ROW_BYTES as usize * WAYS);
        Self { sets: (0..sets).map(|_| CachePadded::default()).collect() }
    }

    /// Whether it keeps anything at all.
    pub fn is_enabled(&self) -> bool {
        !self.sets.is_empty()
    }

    /// The set of a row and its tag there, which is not 0.
    fn set(&self, key: &Key) -> Option<(MutexGuard<'_, Set>, u32)> {
        if self.sets.is_empty() {
            return None;
        }
        // Fibonacci hashing; P and Q of a row differ by the lowest bit.
        let number = (key.stripe << 9 | u64::from(key.row)) << 1 | u64::from(key.parity == Parity::Q);
        let hash = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let index = (u128::from(hash) * self.sets.len() as u128) >> 64;
        #[expect(clippy::cast_possible_truncation, reason = "below the number of sets")]
        let set = &self.sets[index as usize];
        #[expect(clippy::cast_possible_truncation, reason = "a tag is any part of the hash")]
        let tag = (hash >> 20) as u32 | 1;
        Some((set.lock().unwrap_or_else(std::sync::PoisonError::into_inner), tag))
    }

    /// Whether the row is here.
    pub fn contains(&self, key: &Key) -> bool {
        self.set(key).is_some_and(|(set, tag)| set.way_of(tag, |k| k == key).is_some())
    }

    /// Takes the row out, if it is here: for a stripe write, which is about to change it.
    pub fn take(&self, key: &Key) -> Option<Slice> {
        let (mut set, tag) = self.set(key)?;
        let way = set.way_of(tag, |k| k == key)?;
        set.tags[way] = 0;
        // What comes into this way next is most likely the same row.
        set.used |= 1 << way;
        set.entries[way].take().map(|(_, row)| row)
    }

    /// Forgets the row, of whatever generation.
    pub fn remove(&self, key: &Key) {
        let Some((mut set, tag)) = self.set(key) else { return };
        let same_place = |k: &Key| (k.stripe, k.row, k.parity) == (key.stripe, key.row, key.parity);
        while let Some(way) = set.way_of(tag, same_place) {
            set.tags[way] = 0;
            set.used &= !(1 << way);
            set.entries[way] = None;
        }
    }

    /// Forgets every row that the chunk range `start..end` touches.
    pub fn remove_rows(&self, stripe: u64, start: u32, end: u32) {
        if !self.is_enabled() || start == end {
            return;
        }
        for row in start / ROW_BYTES..=(end - 1) / ROW_BYTES {
            for parity in [Parity::P, Parity::Q] {
                self.remove(&Key { stripe, row, parity, generation: 0 });
            }
        }
    }

    /// Keeps `row`, 4 KiB that the members hold durably or in their caches. Where there is no room, it takes another's
    /// place only when it comes the second time.
    pub fn insert(&self, key: Key, row: Slice) {
        debug_assert_eq!(row.len(), ROW_BYTES as usize);
        let Some((mut set, tag)) = self.set(&key) else { return };
        let Some(way) = set.way_for(tag, &key) else { return };
        set.tags[way] = tag;
        let old = set.entries[way].replace((key, row));
        drop(set);
        drop(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinstripe_runtime::Pool;

    fn key(stripe: u64, generation: u64) -> Key {
        Key { stripe, row: 3, parity: Parity::P, generation }
    }

    #[test]
    fn a_row_is_found_until_it_is_removed_and_only_in_its_generation() {
        let pool = Pool::new(0);
        let cache = ParityCache::new(1 << 20);
        cache.insert(key(7, 1), pool.zeroed(4096).freeze());
        assert!(cache.contains(&key(7, 1)));
        let row = cache.take(&key(7, 1)).unwrap();
        assert!(!cache.contains(&key(7, 1)) && row.len() == 4096, "who takes it has it alone");
        cache.insert(key(7, 1), row);
        assert!(!cache.contains(&key(7, 2)), "another generation must not find it");
        assert!(!cache.contains(&Key { parity: Parity::Q, ..key(7, 1) }));
        cache.remove(&key(7, 9));
        assert!(!cache.contains(&key(7, 1)), "a removal goes by place, not by time");
        assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    fn it_is_bounded_and_keeps_what_is_used() {
        let pool = Pool::new(0);
        let cache = ParityCache::new(WAYS * 4096);
        for stripe in 0..100 {
            cache.insert(key(stripe, 1), pool.zeroed(4096).freeze());
            cache.insert(key(stripe, 1), pool.zeroed(4096).freeze());
            assert!(cache.contains(&key(stripe, 1)), "what comes again is taken");
            let hot = cache.take(&key(0, 1));
            assert!(hot.is_some(), "the hot row was evicted at {stripe}");
            cache.insert(key(0, 1), hot.unwrap());
        }
        assert_eq!(pool.outstanding() as usize, WAYS);
    }

    #[test]
    fn a_full_set_takes_a_row_only_when_it_comes_again() {
        let pool = Pool::new(0);
        let cache = ParityCache::new(WAYS * 4096);
        (0..WAYS as u64).for_each(|stripe| cache.insert(key(stripe, 1), pool.zeroed(4096).freeze()));
        cache.insert(key(50, 1), pool.zeroed(4096).freeze());
        assert!(!cache.contains(&key(50, 1)), "once is not enough");
        assert!((0..WAYS as u64).all(|stripe| cache.contains(&key(stripe, 1))));
        cache.insert(key(50, 1), pool.zeroed(4096).freeze());
        assert!(cache.contains(&key(50, 1)));
    }

    #[test]
    fn rows_of_an_earlier_membership_make_room() {
        let pool = Pool::new(0);
        let cache = ParityCache::new(WAYS * 4096);
        (0..WAYS as u64).for_each(|stripe| cache.insert(key(stripe, 1), pool.zeroed(4096).freeze()));
        cache.insert(key(100, 2), pool.zeroed(4096).freeze());
        assert_eq!(pool.outstanding(), 1);
        cache.insert(key(0, 1), pool.zeroed(4096).freeze());
        assert!(cache.contains(&key(100, 2)) && !cache.contains(&key(0, 1)), "a late one changes nothing");
    }

    #[test]
    fn size_zero_turns_it_off() {
        let pool = Pool::new(0);
        let cache = ParityCache::new(0);
        cache.insert(key(1, 1), pool.zeroed(4096).freeze());
        assert!(!cache.is_enabled() && cache.take(&key(1, 1)).is_none());
    }
}
