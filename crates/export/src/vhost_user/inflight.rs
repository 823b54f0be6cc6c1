//! Which requests are under way, in memory that the monitor keeps while this server dies and another one
//! comes ("Inflight I/O tracking" of the vhost-user protocol, split virtqueue).
//!
//! ```text
//!   per queue   features 8, version 2, ring size 2, last batch head 2, used index 2
//!               ring size times: in flight 1, padding 5, next 2, counter 8            rounded up to 64
//! ```
//!
//! An entry is set when its request is taken from the available ring, with a counter that keeps their order,
//! and cleared after the request was given back. If the server dies between the used index and the clearing,
//! `used index` here differs from the ring's by the entries that weren't cleared. `last batch head` names the
//! first of them, and each one's `next` the one behind it. We give back one at a time; other back ends, whose
//! memory we may go on with, several.
//!
//! Behind the parts stands which disk the requests are for. A server that serves another one under the same
//! path must not carry them out.
//!
//! ```text
//!   magic 8, name 20, block 4, size 8, read-only 1                                  rounded up to 64
//! ```
//!
//! So a request that was taken and not given back is carried out again by the next server. It is the same
//! request: the driver keeps its memory until it is given back. Twice written is as good as once, because
//! what came in between was under way at the same time, and has no order.

use pinstripe_block::BlockService;

use super::{
    GuestMemory,
    request::NAME_BYTES,
    ring::{Broken, Ring},
    wire::{Inflight, Violation},
};

const VERSION: u64 = 8;
const RING_SIZE: u64 = 10;
const LAST_BATCH: u64 = 12;
const USED: u64 = 14;
const ENTRIES: u64 = 16;
const ENTRY_BYTES: u64 = 16;
const NEXT: u64 = 6;
const COUNTER: u64 = 8;
const ALIGNMENT: u64 = 64;
/// The version that this is.
const VERSION_1: u16 = 1;

/// Bytes of each queue's part.
fn queue_bytes(ring_size: u16) -> u64 {
    (ENTRIES + ENTRY_BYTES * u64::from(ring_size)).next_multiple_of(ALIGNMENT)
}

/// Bytes for so many queues.
pub fn bytes(queues: u16, ring_size: u16) -> u64 {
    queue_bytes(ring_size) * u64::from(queues)
}

/// Checks that a monitor's memory is large enough for what it says.
pub fn check(inflight: &Inflight) -> Result<(), Violation> {
    let needed = bytes(inflight.queues, inflight.ring_size);
    let what = "the size of the memory for requests under way";
    if inflight.size >= needed { Ok(()) } else { Err(Violation::Value { what, value: inflight.size }) }
}

/// Bytes of a [`Disk`].
pub const DISK_BYTES: usize = 64;
const MAGIC: &[u8; 8] = b"pinstrip";

/// The disk that requests are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Disk {
    name: [u8; NAME_BYTES],
    block_size: u32,
    size_bytes: u64,
    read_only: bool,
}

impl Disk {
    /// That of `service`, which machines know by `name`.
    pub fn new(name: [u8; NAME_BYTES], service: &impl BlockService) -> Self {
        Self {
            name,
            block_size: service.block_size(),
            size_bytes: service.size_bytes(),
            read_only: service.read_only(),
        }
    }

    /// As it stands behind the parts.
    pub fn bytes(&self) -> [u8; DISK_BYTES] {
        let mut bytes = [0; DISK_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..28].copy_from_slice(&self.name);
        bytes[28..32].copy_from_slice(&self.block_size.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.size_bytes.to_le_bytes());
        bytes[40] = self.read_only.into();
        bytes
    }

    /// Whether this is the disk for which a server has made the memory of `inflight`. It may have grown. Of
    /// memory that another back end has made nothing is known.
    pub fn is_that_of(&self, memory: &impl GuestMemory, inflight: &Inflight) -> Result<bool, Broken> {
        let at = bytes(inflight.queues, inflight.ring_size);
        let mut noted = [0; DISK_BYTES];
        if inflight.size < at + DISK_BYTES as u64 {
            return Ok(true);
        }
        memory.read(at, &mut noted)?;
        if !noted.starts_with(MAGIC) {
            return Ok(true);
        }
        let (_, behind) = noted.split_at(32);
        let size_bytes = behind.first_chunk().map_or(0, |size| u64::from_le_bytes(*size));
        Ok(size_bytes <= self.size_bytes && noted == Self { size_bytes, ..*self }.bytes())
    }
}

/// One queue's part.
pub struct Tracker {
    /// Where it begins.
    at: u64,
    ring_size: u16,
    counter: u64,
}

impl Tracker {
    /// That of `queue`, and its requests that a dead server has left, in their order. `used` is the ring's
    /// used index.
    pub fn open(
        memory: &impl GuestMemory,
        queue: u16,
        ring_size: u16,
        used: u16,
    ) -> Result<(Self, Vec<u16>), Broken> {
        let at = queue_bytes(ring_size) * u64::from(queue);
        let mut tracker = Self { at, ring_size, counter: 0 };
        if memory.load(at + VERSION)? != VERSION_1 {
            // New memory is all zeroes.
            memory.store(at + RING_SIZE, ring_size)?;
            memory.store(at + USED, used)?;
            memory.store(at + VERSION, VERSION_1)?;
            return Ok((tracker, Vec::new()));
        }
        if memory.load(at + USED)? != used {
            // It died before the last ones that it gave back were cleared.
            let count = used.wrapping_sub(memory.load(at + USED)?).min(ring_size);
            let mut last = memory.load(at + LAST_BATCH)?;
            for _ in 0..count {
                let entry = tracker.entry(last)?;
                memory.store(entry, 0)?;
                last = memory.load(entry + NEXT)?;
            }
            memory.store(at + USED, used)?;
        }
        let mut left = Vec::new();
        for head in 0..ring_size {
            let entry = tracker.entry(head)?;
            if memory.load(entry)? & 0xff != 0 {
                let mut counter = [0; 8];
                memory.read(entry + COUNTER, &mut counter)?;
                left.push((u64::from_ne_bytes(counter), head));
            }
        }
        left.sort_unstable();
        tracker.counter = left.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        Ok((tracker, left.into_iter().map(|(_, head)| head).collect()))
    }

    fn entry(&self, head: u16) -> Result<u64, Broken> {
        if head < self.ring_size {
            Ok(self.at + ENTRIES + ENTRY_BYTES * u64::from(head))
        } else {
            Err(Broken::Descriptor(head))
        }
    }

    /// A request is taken.
    pub fn take(&mut self, memory: &impl GuestMemory, head: u16) -> Result<(), Broken> {
        let entry = self.entry(head)?;
        memory.write(entry + COUNTER, &self.counter.to_ne_bytes())?;
        self.counter = self.counter.wrapping_add(1);
        Ok(memory.store(entry, 1)?)
    }

    /// A request is about to be given back.
    fn give(&self, memory: &impl GuestMemory, head: u16) -> Result<(), Broken> {
        let last = memory.load(self.at + LAST_BATCH)?;
        memory.store(self.entry(head)? + NEXT, last)?;
        Ok(memory.store(self.at + LAST_BATCH, head)?)
    }

    /// It was given back: the ring's used index is `used` now.
    fn clear(&self, memory: &impl GuestMemory, head: u16, used: u16) -> Result<(), Broken> {
        memory.store(self.entry(head)?, 0)?;
        Ok(memory.store(self.at + USED, used)?)
    }
}

/// Gives a request back that has `written` bytes in its writable memory. In this order, so that at
/// whatever store the server dies, the next one can tell whether the machine has the answer.
pub fn give_back(
    ring: &mut Ring,
    memory: &impl GuestMemory,
    noted: Option<(&impl GuestMemory, &Tracker)>,
    head: u16,
    written: u32,
) -> Result<(), Broken> {
    if let Some((noted, tracker)) = noted {
        tracker.give(noted, head)?;
    }
    ring.complete(memory, head, written)?;
    if let Some((noted, tracker)) = noted {
        tracker.clear(noted, head, ring.used())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use pinstripe_runtime::uring::guest_memory::GuestFault;

    use super::*;
    use crate::{
        ublk::tests::Memory,
        vhost_user::{memory::Bytes, ring::Layout},
    };

    fn zeroes(length: usize) -> Bytes {
        Bytes(RefCell::new(vec![0; length]))
    }

    const SIZE: u16 = 8;

    fn open(memory: &Bytes, used: u16) -> (Tracker, Vec<u16>) {
        Tracker::open(memory, 1, SIZE, used).unwrap()
    }

    #[test]
    fn what_was_taken_and_not_given_back_is_found_in_its_order() {
        let memory = zeroes(usize::try_from(bytes(2, SIZE)).unwrap());
        let (mut tracker, left) = open(&memory, 40);
        assert!(left.is_empty());
        for head in [5, 2, 7, 0] {
            tracker.take(&memory, head).unwrap();
        }
        tracker.give(&memory, 2).unwrap();
        tracker.clear(&memory, 2, 41).unwrap();
        let (mut tracker, left) = open(&memory, 41);
        assert_eq!(left, [5, 7, 0]);
        tracker.take(&memory, 2).unwrap();
        assert_eq!(open(&memory, 41).1, [5, 7, 0, 2], "a new one comes after those that were left");
        assert!(memory.0.borrow()[..192].iter().all(|byte| *byte == 0), "another queue's part");
    }

    /// As back ends may that give several requests back at a time: with one step of the used index.
    #[test]
    fn a_whole_batch_that_was_given_back_is_not_carried_out_again() {
        let memory = zeroes(usize::try_from(bytes(2, SIZE)).unwrap());
        let (mut tracker, _) = open(&memory, 40);
        // A batch of its own, and then under way once more.
        tracker.take(&memory, 5).unwrap();
        tracker.give(&memory, 5).unwrap();
        tracker.clear(&memory, 5, 41).unwrap();
        for head in [2, 5, 7] {
            tracker.take(&memory, head).unwrap();
        }
        for head in [2, 7] {
            tracker.give(&memory, head).unwrap();
        }
        assert_eq!(open(&memory, 43).1, [5]);
    }

    /// Memory of a server that dies after so many stores.
    struct Mortal<'a>(&'a Bytes, &'a Cell<usize>);

    impl Mortal<'_> {
        fn live(&self) -> Result<(), GuestFault> {
            let left = self.1.get().checked_sub(1).ok_or(GuestFault::Lost)?;
            self.1.set(left);
            Ok(())
        }
    }

    impl GuestMemory for Mortal<'_> {
        fn read(&self, at: u64, into: &mut [u8]) -> Result<(), GuestFault> {
            self.0.read(at, into)
        }

        fn write(&self, at: u64, data: &[u8]) -> Result<(), GuestFault> {
            self.live()?;
            self.0.write(at, data)
        }

        fn load(&self, at: u64) -> Result<u16, GuestFault> {
            self.0.load(at)
        }

        fn store(&self, at: u64, value: u16) -> Result<(), GuestFault> {
            self.live()?;
            self.0.store(at, value)
        }
    }

    /// Each moment at which a server can die while it gives a request back.
    #[test]
    fn a_request_is_carried_out_again_unless_the_machine_has_seen_its_answer() {
        let layout = Layout { descriptors: 0, available: 0x400, used: 0x800, size: SIZE };
        let mut answers = Vec::new();
        for stores in 0.. {
            let (machine, memory) = (zeroes(0x1000), zeroes(usize::try_from(bytes(2, SIZE)).unwrap()));
            machine.store(0x802, 9).unwrap();
            let (mut tracker, _) = open(&memory, 9);
            for head in [3, 4, 1] {
                tracker.take(&memory, head).unwrap();
            }
            let mut ring = Ring::new(layout, &machine, 12, true, true).unwrap();
            give_back(&mut ring, &machine, Some((&memory, &tracker)), 1, 0).unwrap();
            let left = Cell::new(stores);
            let (dying, noted) = (Mortal(&machine, &left), Mortal(&memory, &left));
            let given = give_back(&mut ring, &dying, Some((&noted, &tracker)), 3, 0);
            let used = machine.load(0x802).unwrap();
            let expected: &[u16] = if used == 10 { &[3, 4] } else { &[4] };
            assert_eq!(open(&memory, used).1, expected, "after {stores} stores");
            assert_eq!(open(&memory, used).1, expected, "the same when that one dies at once");
            answers.push(used - 10);
            if given.is_ok() {
                break;
            }
        }
        assert_eq!(
            answers,
            [0, 0, 0, 0, 1, 1, 1],
            "a store each: two of the note, two of the ring, two more"
        );
    }

    #[test]
    fn requests_are_for_the_disk_that_they_were_begun_for() {
        let service = Memory::new(1 << 30);
        let disk = Disk::new(*b"01234567890123456789", &service);
        let inflight = Inflight {
            size: bytes(2, SIZE) + DISK_BYTES as u64,
            offset: 0,
            queues: 2,
            ring_size: SIZE,
            padding: 0,
        };
        let memory = zeroes(usize::try_from(inflight.size).unwrap());
        assert_eq!(disk.is_that_of(&memory, &inflight), Ok(true), "made by another back end");
        memory.write(bytes(2, SIZE), &disk.bytes()).unwrap();
        assert_eq!(disk.is_that_of(&memory, &inflight), Ok(true));
        let grown = Disk { size_bytes: 2 << 30, ..disk };
        assert_eq!(grown.is_that_of(&memory, &inflight), Ok(true));
        for other in [
            Disk { name: *b"01234567890123456780", ..disk },
            Disk { block_size: 4096, ..disk },
            Disk { size_bytes: 1 << 29, ..disk },
            Disk { read_only: true, ..disk },
        ] {
            assert_eq!(other.is_that_of(&memory, &inflight), Ok(false), "{other:?}");
        }
        let shorter = Inflight { size: bytes(2, SIZE), ..inflight };
        assert_eq!(disk.is_that_of(&memory, &shorter), Ok(true));
    }

    #[test]
    fn hostile_contents_name_no_entry_outside() {
        let memory = zeroes(usize::try_from(bytes(2, SIZE)).unwrap());
        memory.0.borrow_mut().fill(0xff);
        memory.store(queue_bytes(SIZE) + VERSION, 1).unwrap();
        assert!(matches!(Tracker::open(&memory, 1, SIZE, 0), Err(Broken::Descriptor(0xffff))));
        assert!(Tracker::open(&memory, 2, SIZE, 0).is_err(), "a queue that has no part");
    }

    #[test]
    fn parts_are_as_large_as_others_make_them() {
        assert_eq!(bytes(1, 128), 2112);
        assert_eq!(bytes(2, 8), 384);
        let inflight = Inflight { size: 383, offset: 0, queues: 2, ring_size: 8, padding: 0 };
        assert!(check(&inflight).is_err() && check(&Inflight { size: 384, ..inflight }).is_ok());
    }
}
