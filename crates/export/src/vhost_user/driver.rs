//! The machine's side of a split ring (VIRTIO 2.7.13 and 2.7.14): what a driver does, for front ends of ours.
//! No I/O.
//!
//! [`Ring`](super::ring::Ring) is the other side, and draws the memory of both.

use std::sync::atomic::{Ordering, fence};

use pinstripe_runtime::uring::guest_memory::GuestFault;

use super::{
    GuestMemory,
    ring::{ENTRIES, HEAD_BYTES, INDEX, Layout, USED_BYTES, is_passed},
};

/// Of the used ring: the device doesn't want to be told.
const NO_NOTIFY: u16 = 1;

/// A ring, as far as its driver has offered requests and seen answers.
#[derive(Debug)]
pub struct DriverRing {
    layout: Layout,
    has_events: bool,
    available: u16,
    seen: u16,
    /// The available index when the device was last asked whether it wants to be told.
    asked: u16,
}

impl DriverRing {
    /// A ring of which `base` requests were offered and answered. With `has_events` each side says from which
    /// entry on it wants to be told.
    pub fn new(layout: Layout, base: u16, has_events: bool) -> Self {
        Self { layout, has_events, available: base, seen: base, asked: base }
    }

    /// Offers the request that begins with descriptor `head`.
    pub fn offer(&mut self, memory: &impl GuestMemory, head: u16) -> Result<(), GuestFault> {
        let slot = u64::from(self.available & (self.layout.size - 1));
        memory.write(self.layout.available + ENTRIES + HEAD_BYTES * slot, &head.to_le_bytes())?;
        self.available = self.available.wrapping_add(1);
        memory.store(self.layout.available + INDEX, self.available)
    }

    /// Whether the device wants to be told of what was offered since the last question.
    pub fn wants_kick(&mut self, memory: &impl GuestMemory) -> Result<bool, GuestFault> {
        let before = std::mem::replace(&mut self.asked, self.available);
        // The device stores what it wants and then looks at the index; we store the index and then look.
        fence(Ordering::SeqCst);
        if !self.has_events {
            return Ok(memory.load(self.layout.used)? & NO_NOTIFY == 0);
        }
        let event = memory.load(self.layout.used + ENTRIES + USED_BYTES * u64::from(self.layout.size))?;
        Ok(is_passed(event, before, self.available))
    }

    /// The next answer: the request's head, and how many bytes were written to its memory.
    pub fn answer(&mut self, memory: &impl GuestMemory) -> Result<Option<(u32, u32)>, GuestFault> {
        if memory.load(self.layout.used + INDEX)? == self.seen {
            return Ok(None);
        }
        let slot = u64::from(self.seen & (self.layout.size - 1));
        let mut entry = [0; 8];
        memory.read(self.layout.used + ENTRIES + USED_BYTES * slot, &mut entry)?;
        self.seen = self.seen.wrapping_add(1);
        let word = u64::from_le_bytes(entry);
        let half = |word: u64| u32::try_from(word & u64::from(u32::MAX)).unwrap_or_else(|_| unreachable!());
        Ok(Some((half(word), half(word >> 32))))
    }

    /// Asks the device to tell of the next answer. True if one has come meanwhile, of which it may not tell.
    pub fn ask_for_call(&mut self, memory: &impl GuestMemory) -> Result<bool, GuestFault> {
        if self.has_events {
            let event = self.layout.available + ENTRIES + HEAD_BYTES * u64::from(self.layout.size);
            memory.store(event, self.seen)?;
        }
        // As above, the other way round.
        fence(Ordering::SeqCst);
        Ok(memory.load(self.layout.used + INDEX)? != self.seen)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::RefCell,
        sync::atomic::{AtomicBool, AtomicU16, AtomicU32},
        time::{Duration, Instant},
    };

    use super::*;
    use crate::vhost_user::{
        memory::Bytes,
        ring::{Chain, Descriptor, Ring},
    };

    const LAYOUT: Layout = Layout { descriptors: 0, available: 0x400, used: 0x800, size: 8 };

    /// Both sides of a ring that has gone round almost as far as its indices do.
    fn sides(has_events: bool) -> (Bytes, DriverRing, Ring) {
        let memory = Bytes(RefCell::new(vec![0; 0x1000]));
        let base = u16::MAX - 3;
        memory.store(LAYOUT.available + INDEX, base).unwrap();
        memory.store(LAYOUT.used + INDEX, base).unwrap();
        for index in 0..LAYOUT.size {
            let descriptor = Descriptor { at: 0x900, length: 16, flags: 0, next: 0 };
            descriptor.write(&memory, 16 * u64::from(index)).unwrap();
        }
        let ring = Ring::new(LAYOUT, &memory, base, true, has_events).unwrap();
        (memory, DriverRing::new(LAYOUT, base, has_events), ring)
    }

    #[test]
    fn what_is_offered_is_taken_and_answered_round_the_ring() {
        let (memory, mut driver, mut ring) = sides(true);
        let mut chain = Chain::default();
        for round in 0..20_u32 {
            let head = u16::try_from(round % 8).unwrap();
            assert_eq!(driver.answer(&memory), Ok(None));
            driver.offer(&memory, head).unwrap();
            assert_eq!(ring.next(&memory, &mut chain), Ok(true));
            assert_eq!(chain.head, head);
            ring.complete(&memory, head, round).unwrap();
            assert_eq!(driver.answer(&memory), Ok(Some((head.into(), round))));
        }
    }

    #[test]
    fn a_side_that_sleeps_is_told_and_one_that_looks_is_not() {
        let (memory, mut driver, mut ring) = sides(true);
        let mut chain = Chain::default();
        assert_eq!(ring.ask_for_kick(&memory), Ok(false));
        driver.offer(&memory, 0).unwrap();
        assert_eq!(driver.wants_kick(&memory), Ok(true));
        driver.offer(&memory, 1).unwrap();
        assert_eq!(driver.wants_kick(&memory), Ok(false), "it was told, and looks");
        assert_eq!(driver.ask_for_call(&memory), Ok(false));
        for head in [0, 1] {
            assert_eq!(ring.next(&memory, &mut chain), Ok(true));
            ring.complete(&memory, head, 0).unwrap();
            assert_eq!(ring.wants_call(&memory), Ok(head == 0));
        }
        assert_eq!(driver.ask_for_call(&memory), Ok(true), "there are answers");
        assert_eq!([(); 2].map(|()| driver.answer(&memory)), [Ok(Some((0, 0))), Ok(Some((1, 0)))]);
        assert_eq!(driver.ask_for_call(&memory), Ok(false));
    }

    /// Memory that two threads use, in words.
    struct Shared(Vec<AtomicU16>);

    impl GuestMemory for Shared {
        fn read(&self, at: u64, into: &mut [u8]) -> Result<(), GuestFault> {
            let words = &self.0[usize::try_from(at / 2).unwrap()..];
            for (bytes, word) in into.chunks_exact_mut(2).zip(words) {
                bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
            }
            Ok(())
        }

        fn write(&self, at: u64, data: &[u8]) -> Result<(), GuestFault> {
            let words = &self.0[usize::try_from(at / 2).unwrap()..];
            for (bytes, word) in data.chunks_exact(2).zip(words) {
                word.store(u16::from_le_bytes([bytes[0], bytes[1]]), Ordering::Relaxed);
            }
            Ok(())
        }

        fn load(&self, at: u64) -> Result<u16, GuestFault> {
            Ok(self.0[usize::try_from(at / 2).unwrap()].load(Ordering::Acquire))
        }

        fn store(&self, at: u64, value: u16) -> Result<(), GuestFault> {
            self.0[usize::try_from(at / 2).unwrap()].store(value, Ordering::Release);
            Ok(())
        }
    }

    /// Where two threads wait for each other.
    #[derive(Default)]
    struct Meeting(AtomicU32);

    impl Meeting {
        fn meet(&self) {
            let before = self.0.fetch_add(1, Ordering::AcqRel);
            let mut looks = 0;
            while self.0.load(Ordering::Acquire) < (before / 2 + 1) * 2 {
                looks += 1;
                if looks % 10_000 == 0 {
                    std::thread::yield_now();
                } else {
                    std::hint::spin_loop();
                }
            }
        }
    }

    /// Each side stores and then looks, and a processor would do that in the other order. Needs two CPUs at a
    /// time to find it, and finds it within milliseconds then.
    #[test]
    fn of_two_sides_that_give_and_fall_asleep_at_one_moment_one_knows_of_the_other() {
        const ROUNDS: u32 = 200_000;
        let (bytes, mut driver, mut ring) = sides(true);
        let word = |pair: &[u8]| AtomicU16::new(u16::from_le_bytes([pair[0], pair[1]]));
        let memory = Shared(bytes.0.borrow().chunks_exact(2).map(word).collect());
        let (meeting, is_over) = (Meeting::default(), AtomicBool::new(false));
        let (kicked, has_seen) = (AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                loop {
                    meeting.meet();
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    driver.offer(&memory, 0).unwrap();
                    kicked.store(driver.wants_kick(&memory).unwrap(), Ordering::Relaxed);
                    meeting.meet();
                    meeting.meet();
                    has_seen.store(driver.ask_for_call(&memory).unwrap(), Ordering::Relaxed);
                    meeting.meet();
                    driver.answer(&memory).unwrap();
                }
            });
            let begun = Instant::now();
            let mut lost = None;
            for round in 0..ROUNDS {
                meeting.meet();
                let has_come = ring.ask_for_kick(&memory).unwrap();
                meeting.meet();
                let is_told = has_come || kicked.load(Ordering::Relaxed);
                assert_eq!(ring.next(&memory, &mut Chain::default()), Ok(true));
                meeting.meet();
                ring.complete(&memory, 0, 0).unwrap();
                let wants_call = ring.wants_call(&memory).unwrap();
                meeting.meet();
                if !is_told || !(wants_call || has_seen.load(Ordering::Relaxed)) {
                    lost = Some((round, is_told));
                }
                // On a machine that has no CPU to spare.
                if lost.is_some() || begun.elapsed() > Duration::from_secs(2) {
                    break;
                }
            }
            is_over.store(true, Ordering::Relaxed);
            meeting.meet();
            assert_eq!(lost, None, "neither side knew of the other");
        });
    }

    #[test]
    fn a_device_without_events_says_by_a_flag_whether_it_is_told() {
        let (memory, mut driver, _) = sides(false);
        driver.offer(&memory, 0).unwrap();
        assert_eq!(driver.wants_kick(&memory), Ok(true));
        memory.store(LAYOUT.used, NO_NOTIFY).unwrap();
        driver.offer(&memory, 1).unwrap();
        assert_eq!(driver.wants_kick(&memory), Ok(false));
    }
}
