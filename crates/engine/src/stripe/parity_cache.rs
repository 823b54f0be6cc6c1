//! Parity that was written lately, so that the next read-modify-write of the row needs no parity read.
//!
//! Entries are 4 KiB rows of P or Q, shared by all shards, bounded, set-associative with a clock hand per
//! set. They hold reference-counted slices of the very buffers that were written: inserting copies nothing,
//! and a hit is read in place. But a buffer that is kept is one that the next write can't use, so the next
//! write's is cold. Therefore a full set takes a row only on its second write within a short time (each set
//! remembers the last few that it turned away): a load that never comes back to a row leaves the cache alone,
//! and what comes back displaces what does not.
//!
//! Only the holder of a stripe's claim touches its entries (C13). A read-modify-write *takes* an entry out
//! when it plans to use it, any other write *removes* it before it writes that parity, whatever becomes of
//! the write; both insert after success. So an entry that is there has been whole since, and what was taken
//! can be changed in place. The key carries the membership generation, so that whatever happened to a member
//! meanwhile, its old entries are not found any more.

use crossbeam_utils::CachePadded;
use pinstripe_runtime::{
    Slice,
    atomics::{AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering},
};

/// Bytes of an entry.
pub const PAGE_BYTES: u32 = 4096;
const WAYS: usize = WAYS_COUNT as usize;
const WAYS_COUNT: u8 = 8;

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

/// What most requests look at, and nothing else: 32 bytes for each set, so that a cache of 64 MiB has a
/// directory of 64 KiB. Four tags to a word; 0 is no tag.
///
/// It is read without a lock. Only the holder of the stripe's claim puts a row's tag in, and only the holder
/// looks for it: if it finds no tag, the row isn't here. (Eviction by others takes a tag away together with
/// the row, under the lock.)
#[derive(Default)]
#[repr(align(32))]
struct Directory {
    /// By way. Changed under the lock of the set.
    ways: [AtomicU64; WAYS / 4],
    /// Rows that found the set full, the latest lowest. A lost update costs nothing but a hit.
    seen: AtomicU64,
}

/// Whether one of the four tags of `word` is `tag`.
fn has_tag(word: u64, tag: u16) -> bool {
    const ONES: u64 = 0x0001_0001_0001_0001;
    let difference = word ^ (ONES * u64::from(tag));
    difference.wrapping_sub(ONES) & !difference & ONES << 15 != 0
}

impl Directory {
    fn has(&self, tag: u16) -> bool {
        self.ways.iter().any(|word| has_tag(word.load(Ordering::Relaxed), tag))
    }

    fn put(&self, way: usize, tag: u16) {
        let (word, shift) = (&self.ways[way / 4], way % 4 * 16);
        let others = word.load(Ordering::Relaxed) & !(0xFFFF << shift);
        word.store(others | u64::from(tag) << shift, Ordering::Relaxed);
    }

    /// Whether a row came before not long ago. If not, now it has.
    fn comes_again(&self, tag: u16) -> bool {
        let seen = self.seen.load(Ordering::Relaxed);
        let again = has_tag(seen, tag);
        if !again {
            self.seen.store(seen << 16 | u64::from(tag), Ordering::Relaxed);
        }
        again
    }
}

#[derive(Default)]
struct Set {
    entries: [Option<(Key, Slice)>; WAYS],
    hand: u8,
    /// Bit by way: hit since the hand came by.
    used: u8,
}

impl Set {
    fn way_of(&self, is_it: impl Fn(&Key) -> bool) -> Option<usize> {
        self.entries.iter().position(|entry| entry.as_ref().is_some_and(|(key, _)| is_it(key)))
    }

    /// The way that was not used for the longest time.
    fn oldest(&mut self) -> usize {
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
    directory: Box<[Directory]>,
    sets: Box<[CachePadded<Mutex<Set>>]>,
    /// The latest membership of which a row came.
    generation: AtomicU64,
    /// Whether there ever was a row. If not, nothing is looked for: the directory is large, and cold.
    is_used: AtomicBool,
}

/// Where a row is or would be.
struct Lookup<'c> {
    directory: &'c Directory,
    set: &'c Mutex<Set>,
    tag: u16,
}

impl Lookup<'_> {
    fn lock(&self) -> MutexGuard<'_, Set> {
        self.set.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

impl ParityCache {
    /// A cache of about `bytes` of parity; 0 turns it off.
    pub fn new(bytes: usize) -> Self {
        let sets = bytes / (PAGE_BYTES as usize * WAYS);
        Self {
            directory: (0..sets).map(|_| Directory::default()).collect(),
            sets: (0..sets).map(|_| CachePadded::default()).collect(),
            generation: AtomicU64::new(0),
            is_used: AtomicBool::new(false),
        }
    }

    /// Whether it keeps anything at all.
    pub fn is_enabled(&self) -> bool {
        !self.sets.is_empty()
    }

    /// Where a row may be; `None` if there is none at all.
    fn place(&self, key: &Key) -> Option<Lookup<'_>> {
        // Relaxed: a task that looks for a row has the claim of its stripe, as the one that put it in had.
        self.is_used.load(Ordering::Relaxed).then(|| self.place_of(key))
    }

    /// Where a row is or would be. The cache is enabled.
    fn place_of(&self, key: &Key) -> Lookup<'_> {
        // Fibonacci hashing; P and Q of a row differ by the lowest bit.
        let number = (key.stripe << 9 | u64::from(key.row)) << 1 | u64::from(key.parity == Parity::Q);
        let hash = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let index = (u128::from(hash) * self.sets.len() as u128) >> 64;
        #[expect(
            clippy::cast_possible_truncation,
            reason = "below the number of sets; a tag is any part of the hash"
        )]
        let (index, tag) = (index as usize, (hash >> 16) as u16 | 1);
        Lookup { directory: &self.directory[index], set: &self.sets[index], tag }
    }

    /// Whether the row is here.
    pub fn contains(&self, key: &Key) -> bool {
        self.place(key).is_some_and(|place| place.lock().way_of(|k| k == key).is_some())
    }

    /// Takes the row out, if it is here: for a stripe write, which is about to change it.
    pub fn take(&self, key: &Key) -> Option<Slice> {
        let place = self.place(key)?;
        if !place.directory.has(place.tag) {
            return None;
        }
        let mut set = place.lock();
        let way = set.way_of(|k| k == key)?;
        place.directory.put(way, 0);
        // What comes into this way next is most likely the same row.
        set.used |= 1 << way;
        set.entries[way].take().map(|(_, row)| row)
    }

    /// Forgets the row, of whatever generation.
    pub fn remove(&self, key: &Key) {
        let Some(place) = self.place(key) else { return };
        if !place.directory.has(place.tag) {
            return;
        }
        let mut set = place.lock();
        let same_place = |k: &Key| (k.stripe, k.row, k.parity) == (key.stripe, key.row, key.parity);
        while let Some(way) = set.way_of(same_place) {
            place.directory.put(way, 0);
            set.used &= !(1 << way);
            set.entries[way] = None;
        }
    }

    /// Forgets every row that the chunk range `start..end` touches.
    pub fn remove_rows(&self, stripe: u64, start: u32, end: u32) {
        if !self.is_enabled() || start == end {
            return;
        }
        for row in start / PAGE_BYTES..=(end - 1) / PAGE_BYTES {
            for parity in [Parity::P, Parity::Q] {
                self.remove(&Key { stripe, row, parity, generation: 0 });
            }
        }
    }

    /// Keeps `row`, 4 KiB that the members hold durably or in their caches. Where there is no room, it takes
    /// another's place only when it comes the second time.
    pub fn insert(&self, key: Key, row: Slice) {
        debug_assert_eq!(row.len(), PAGE_BYTES as usize);
        if !self.is_enabled() {
            return;
        }
        if !self.is_used.load(Ordering::Relaxed) {
            self.is_used.store(true, Ordering::Relaxed);
        }
        let place = self.place_of(&key);
        let Lookup { directory, tag, .. } = place;
        let generation = self.generation.load(Ordering::Relaxed);
        if key.generation != generation && !self.advance(key.generation) {
            return;
        }
        if !(directory.has(0) || directory.has(tag) || directory.comes_again(tag)) {
            return;
        }
        let mut set = place.lock();
        let way = set.way_of(|k| *k == key).or_else(|| set.entries.iter().position(Option::is_none));
        let way = way.unwrap_or_else(|| set.oldest());
        directory.put(way, tag);
        let old = set.entries[way].replace((key, row));
        drop(set);
        drop(old);
    }

    /// Makes room when the membership has changed: what an earlier one left is never found again. False if
    /// `generation` is an earlier one itself.
    fn advance(&self, generation: u64) -> bool {
        let before = self.generation.fetch_max(generation, Ordering::Relaxed);
        if before < generation {
            for (directory, set) in self.directory.iter().zip(&self.sets) {
                let mut set = set.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                (0..WAYS).for_each(|way| directory.put(way, 0));
                *set = Set::default();
            }
        }
        before <= generation
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
        assert!(
            !cache.contains(&key(7, 1)) && row.len() == 4096,
            "a buffer that is taken is shared with nothing"
        );
        cache.insert(key(7, 1), row);
        assert!(!cache.contains(&key(7, 2)), "another generation must not find it");
        assert!(!cache.contains(&Key { parity: Parity::Q, ..key(7, 1) }));
        cache.remove(&key(7, 9));
        assert!(!cache.contains(&key(7, 1)), "a removal goes by place, not by time");
        assert_eq!(pool.outstanding(), 0);
    }

    #[test]
    fn a_row_that_only_looks_like_the_wanted_one_is_not_taken() {
        let pool = Pool::new(0);
        let cache = ParityCache::new(WAYS * 4096);
        cache.insert(key(7, 1), pool.zeroed(4096).freeze());
        let tag = |stripe| cache.place_of(&key(stripe, 1)).tag;
        let alike = (8..1 << 20).find(|stripe| tag(*stripe) == tag(7)).unwrap();
        assert!(cache.take(&key(alike, 1)).is_none(), "stripe {alike} got what is stripe 7's");
        assert!(cache.take(&key(7, 2)).is_none(), "another generation got it");
        assert!(cache.take(&key(7, 1)).is_some());
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
    fn an_empty_range_touches_no_row() {
        let pool = Pool::new(0);
        let cache = ParityCache::new(1 << 20);
        cache.insert(key(7, 1), pool.zeroed(4096).freeze());
        let inside = 3 * PAGE_BYTES + 512;
        for at in [0, inside] {
            cache.remove_rows(7, at, at);
            assert!(cache.contains(&key(7, 1)));
        }
        cache.remove_rows(7, inside, inside + 1);
        assert!(!cache.contains(&key(7, 1)));
    }

    #[test]
    fn size_zero_turns_it_off() {
        let pool = Pool::new(0);
        let cache = ParityCache::new(0);
        cache.insert(key(1, 1), pool.zeroed(4096).freeze());
        assert!(!cache.is_enabled() && cache.take(&key(1, 1)).is_none());
    }
}
