//! What keeps the bytes beside a write that isn't a whole number of blocks.
//!
//! Such a write reads the blocks at its edges, lays its bytes over them and writes them. Whatever else writes
//! one of these blocks between the two would be lost, be it a write of other bytes of the block, of the whole
//! block, or a zeroing. So each writer of whole blocks holds its range *shared*, and each writer of parts
//! holds its own *alone*, whatever front ends they come by. Reads hold nothing.
//!
//! The array is cut into regions, and the regions fall on a fixed number of slots: writers that are far apart
//! may wait for each other, which costs time and nothing else. Every writer takes its slots in ascending
//! order, so none waits for itself by others. One that wants a slot alone keeps newcomers out of it first, so
//! a stream of others doesn't starve it.

use std::sync::atomic::{AtomicU32, Ordering};

use pinstripe_runtime::Signal;

/// Bytes of a region: as many as the longest write by FUSE, so that it touches two at most.
const REGION_BYTES: u64 = 1 << 20;
const SLOTS: usize = 256;
/// Set in a slot's word as long as a writer wants or has it alone; below it are those that share it.
const ALONE: u32 = 1 << 31;

/// One for all writers of an array, on all shards.
pub struct Locks(Box<[Slot]>);

#[derive(Default)]
struct Slot {
    word: AtomicU32,
    changed: Signal,
}

impl Default for Locks {
    fn default() -> Self {
        Self::new(SLOTS)
    }
}

impl Locks {
    /// With so many slots.
    pub fn new(slots: usize) -> Self {
        Self((0..slots).map(|_| Slot::default()).collect())
    }

    /// Waits until the bytes can be written in whole blocks.
    pub async fn shared(&self, offset: u64, length: u64) -> Held<'_> {
        let mut held = Held { slots: &self.0, range: (offset, length), taken: 0, alone: false };
        for slot in slots(offset, length, self.0.len()) {
            let slot = &self.0[slot];
            if !slot.try_share() {
                slot.changed.wait_until(|| slot.try_share()).await;
            }
            held.taken += 1;
        }
        held
    }

    /// Waits until nothing else writes to the blocks of these bytes.
    pub async fn alone(&self, offset: u64, length: u64) -> Held<'_> {
        let mut held = Held { slots: &self.0, range: (offset, length), taken: 0, alone: true };
        for slot in slots(offset, length, self.0.len()) {
            let slot = &self.0[slot];
            slot.changed.wait_until(|| slot.try_want()).await;
            held.taken += 1;
            slot.changed.wait_until(|| slot.word.load(Ordering::SeqCst) == ALONE).await;
        }
        held
    }
}

/// Of `all` slots, those of a range in ascending order, each once.
fn slots(offset: u64, length: u64, all: usize) -> impl Iterator<Item = usize> {
    let first = offset / REGION_BYTES;
    let last = offset.saturating_add(length.max(1) - 1) / REGION_BYTES;
    let count = usize::try_from(last - first).unwrap_or(all).saturating_add(1).min(all);
    let first = usize::try_from(first % all as u64).unwrap_or(0);
    let beyond = (first + count).saturating_sub(all);
    (0..beyond).chain(first..(first + count).min(all))
}

impl Slot {
    fn try_share(&self) -> bool {
        self.change(|word| (word & ALONE == 0).then_some(word + 1))
    }

    fn try_want(&self) -> bool {
        self.change(|word| (word & ALONE == 0).then_some(word | ALONE))
    }

    fn change(&self, to: impl FnMut(u32) -> Option<u32>) -> bool {
        self.word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, to).is_ok()
    }

    fn release(&self, alone: bool) {
        let left = if alone {
            self.word.fetch_and(!ALONE, Ordering::SeqCst) & !ALONE
        } else {
            self.word.fetch_sub(1, Ordering::SeqCst) - 1
        };
        // As long as others share it, and when none wants it alone, nothing waits for this.
        if alone || left == ALONE {
            self.changed.notify();
        }
    }
}

/// A range that is being written. It is free again when this goes.
pub struct Held<'a> {
    slots: &'a [Slot],
    range: (u64, u64),
    taken: usize,
    alone: bool,
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let (offset, length) = self.range;
        for slot in slots(offset, length, self.slots.len()).take(self.taken) {
            self.slots[slot].release(self.alone);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::{Pin, pin},
        task::{Context, Poll, Waker},
    };

    use super::*;

    const MIB: u64 = 1 << 20;

    fn now<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    #[test]
    fn every_region_of_a_range_has_its_slot_once_and_in_order() {
        let of = |offset, length| slots(offset, length, SLOTS).collect::<Vec<_>>();
        assert_eq!(of(0, 1), [0]);
        assert_eq!(of(0, MIB), [0]);
        assert_eq!(of(MIB - 1, 2), [0, 1]);
        assert_eq!(of(255 * MIB, 2 * MIB), [0, 255], "ascending");
        assert_eq!(of(254 * MIB + 1, 3 * MIB), [0, 1, 254, 255]);
        assert_eq!(of(5 * MIB, 1 << 40), (0..256).collect::<Vec<_>>());
        assert_eq!(of((1 << 62) - 1, 2).len(), 2);
    }

    #[test]
    fn writers_of_whole_blocks_share_and_a_writer_of_a_part_is_alone() {
        let locks = Locks::default();
        let one = now(pin!(locks.shared(0, 4096))).unwrap();
        let other = now(pin!(locks.shared(0, 4096))).unwrap();
        let mut part = Box::pin(locks.alone(100, 7));
        assert!(now(part.as_mut()).is_none());
        let mut late = Box::pin(locks.shared(8192, 4096));
        assert!(now(late.as_mut()).is_none(), "a newcomer passes one that waits");
        assert!(now(pin!(locks.alone(MIB, 1))).is_some(), "another region");
        drop(one);
        assert!(now(part.as_mut()).is_none());
        drop(other);
        let held = now(part.as_mut()).unwrap();
        assert!(now(late.as_mut()).is_none());
        let mut second = Box::pin(locks.alone(512, 1));
        assert!(now(second.as_mut()).is_none());
        drop(held);
        assert!(now(late.as_mut()).is_some());
        assert!(now(second.as_mut()).is_some());
        drop((late, second));
        assert!(locks.0.iter().all(|slot| slot.word.load(Ordering::SeqCst) == 0));
    }

    #[test]
    fn a_writer_of_a_part_of_two_regions_waits_for_the_writers_of_both() {
        let locks = Locks::default();
        for region in [0, MIB] {
            let whole = now(pin!(locks.shared(region, 4096))).unwrap();
            let mut part = Box::pin(locks.alone(MIB - 10, 20));
            assert!(now(part.as_mut()).is_none(), "{region} is being written");
            drop(whole);
            assert!(now(part.as_mut()).is_some());
        }
    }
}
