//! Parity that was written lately, so that the next read-modify-write of the row needs no parity read.
//!
//! Entries are 4 KiB rows of P or Q, shared by all shards, bounded, set-associative with a clock hand per set. They hold
//! reference-counted slices of the very buffers that were written: inserting copies nothing, and a hit is read in place.
//!
//! Only the holder of a stripe's claim touches its entries (C13). It *removes* an entry before it writes that parity,
//! whatever becomes of the write, and inserts after success. The key carries the membership generation, so that
//! whatever happened to a member meanwhile, its old entries are not found any more.

use pinstripe_runtime::{
    Slice,
    atomics::{Mutex, MutexGuard},
};

/// Bytes of an entry.
pub const ROW_BYTES: u32 = 4096;
const WAYS: usize = 8;

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

#[derive(Default)]
struct Set {
    entries: [Option<(Key, Slice, bool)>; WAYS],
    hand: usize,
}

/// See the module.
pub struct ParityCache {
    sets: Box<[Mutex<Set>]>,
}

impl ParityCache {
    /// A cache of about `bytes` of parity; 0 turns it off.
    pub fn new(bytes: usize) -> Self {
        let sets = bytes / (ROW_BYTES as usize * WAYS);
        Self { sets: (0..sets).map(|_| Mutex::default()).collect() }
    }

    /// Whether it keeps anything at all.
    pub fn is_enabled(&self) -> bool {
        !self.sets.is_empty()
    }

    fn set(&self, key: &Key) -> Option<MutexGuard<'_, Set>> {
        if self.sets.is_empty() {
            return None;
        }
        // Fibonacci hashing; P and Q of a row differ by the lowest bit.
        let number = (key.stripe << 9 | u64::from(key.row)) << 1 | u64::from(key.parity == Parity::Q);
        let hash = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let index = (u128::from(hash) * self.sets.len() as u128) >> 64;
        #[expect(clippy::cast_possible_truncation, reason = "below the number of sets")]
        let set = &self.sets[index as usize];
        Some(set.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Whether the row is here.
    pub fn contains(&self, key: &Key) -> bool {
        self.set(key).is_some_and(|set| set.entries.iter().flatten().any(|e| e.0 == *key))
    }

    /// The row, if it is here.
    pub fn lookup(&self, key: &Key) -> Option<Slice> {
        let mut set = self.set(key)?;
        let entry = set.entries.iter_mut().flatten().find(|e| e.0 == *key)?;
        entry.2 = true;
        Some(entry.1.clone())
    }

    /// Forgets the row, of whatever generation.
    pub fn remove(&self, key: &Key) {
        let Some(mut set) = self.set(key) else { return };
        for entry in &mut set.entries {
            if entry
                .as_ref()
                .is_some_and(|e| (e.0.stripe, e.0.row, e.0.parity) == (key.stripe, key.row, key.parity))
            {
                *entry = None;
            }
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

    /// Keeps `row`, 4 KiB that the members hold durably or in their caches.
    pub fn insert(&self, key: Key, row: Slice) {
        debug_assert_eq!(row.len(), ROW_BYTES as usize);
        let Some(mut set) = self.set(&key) else { return };
        let set = &mut *set;
        let way = set.entries.iter().position(Option::is_none).unwrap_or_else(|| {
            loop {
                let way = set.hand;
                set.hand = (way + 1) % WAYS;
                match &mut set.entries[way] {
                    Some((_, _, used)) if *used => *used = false,
                    _ => break way,
                }
            }
        });
        set.entries[way] = Some((key, row, false));
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
        assert!(cache.lookup(&key(7, 1)).is_some());
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
            assert!(cache.lookup(&key(0, 1)).is_some(), "the hot row was evicted at {stripe}");
        }
        assert_eq!(pool.outstanding() as usize, WAYS);
    }

    #[test]
    fn size_zero_turns_it_off() {
        let pool = Pool::new(0);
        let cache = ParityCache::new(0);
        cache.insert(key(1, 1), pool.zeroed(4096).freeze());
        assert!(!cache.is_enabled() && cache.lookup(&key(1, 1)).is_none());
    }
}
