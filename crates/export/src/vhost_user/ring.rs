//! A split ring (VIRTIO 2.7) in memory that the machine changes at any moment. No I/O.
//!
//! ```text
//!   descriptors   size times: address 8, length 4, flags 2, next 2
//!   available     flags 2, index 2, size times head 2, used event 2            written by the driver
//!   used          flags 2, index 2, size times (head 4, length 4), available event 2     written by us
//! ```
//!
//! Each word is read once, and what was read is what is checked and used. A chain has at most as many
//! descriptors as each of its tables, and [`CHAIN_MAX`] in all, so it ends.

use std::sync::atomic::{Ordering, fence};

use pinstripe_runtime::uring::guest_memory::GuestFault;
use thiserror::Error;

use super::{CHAIN_MAX, GuestMemory, RING_SIZE_MAX};

/// Bytes of a descriptor.
pub const DESCRIPTOR_BYTES: u64 = 16;
pub(super) const INDEX: u64 = 2;
pub(super) const ENTRIES: u64 = 4;
/// Bytes of an entry of the available ring, and of the used one.
pub(super) const HEAD_BYTES: u64 = 2;
pub(super) const USED_BYTES: u64 = 8;

/// Flags of a descriptor.
pub mod flag {
    /// Another one follows.
    pub const NEXT: u16 = 1;
    /// The device writes to it.
    pub const WRITE: u16 = 2;
    /// Its memory is a table of descriptors.
    pub const INDIRECT: u16 = 4;
}
/// Of the available ring: the driver doesn't want to be told.
const NO_INTERRUPT: u16 = 1;

/// Where a ring is, in the machine's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The descriptors.
    pub descriptors: u64,
    /// The available ring.
    pub available: u64,
    /// The used ring.
    pub used: u64,
    /// How many descriptors: a power of two, at most [`RING_SIZE_MAX`].
    pub size: u16,
}

/// Why a ring can't be gone on with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Broken {
    /// It points to where there is no memory.
    #[error(transparent)]
    Memory(#[from] GuestFault),
    /// More is available than the ring has room for.
    #[error("the available ring says {0} new requests, which is more than it has room for")]
    Available(u16),
    /// There is no such descriptor.
    #[error("a descriptor {0}, which the table doesn't have")]
    Descriptor(u16),
    /// A request is made available twice.
    #[error("request {0} is under way already")]
    Head(u16),
    /// A chain that ends nowhere, or too late.
    #[error("a chain of descriptors that doesn't end, or has more than {CHAIN_MAX}")]
    Endless,
    /// A table where none can be, or of an impossible length.
    #[error("an indirect table that can't be")]
    Table,
    /// What we read stands behind what we write.
    #[error("a descriptor to be read behind one to be written")]
    Order,
    /// There is no room for the request's header or its status.
    #[error("a request without header or status")]
    Request,
}

/// A range of the machine's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    at: u64,
    length: u32,
}

/// The memory of one request.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Chain {
    /// Its first descriptor, which names it.
    pub head: u16,
    readable: Vec<Segment>,
    writable: Vec<Segment>,
}

impl Chain {
    /// Segments for which it has memory.
    pub(super) fn segments_max(&self) -> usize {
        self.readable.capacity() + self.writable.capacity()
    }

    /// Bytes that the machine gives.
    pub fn readable_bytes(&self) -> u64 {
        self.readable.iter().map(|segment| u64::from(segment.length)).sum()
    }

    /// Bytes that the machine takes.
    pub fn writable_bytes(&self) -> u64 {
        self.writable.iter().map(|segment| u64::from(segment.length)).sum()
    }

    /// Copies what the machine gives, from byte `skip` on. False if there isn't so much.
    pub fn read(&self, memory: &impl GuestMemory, skip: u64, into: &mut [u8]) -> Result<(), Broken> {
        let mut done = 0;
        for (at, length) in pieces(&self.readable, skip, into.len()) {
            memory.read(at, &mut into[done..done + length])?;
            done += length;
        }
        if done == into.len() { Ok(()) } else { Err(Broken::Request) }
    }

    /// Copies to what the machine takes, from byte `skip` on.
    pub fn write(&self, memory: &impl GuestMemory, skip: u64, data: &[u8]) -> Result<(), Broken> {
        let mut done = 0;
        for (at, length) in pieces(&self.writable, skip, data.len()) {
            memory.write(at, &data[done..done + length])?;
            done += length;
        }
        if done == data.len() { Ok(()) } else { Err(Broken::Request) }
    }
}

/// Addresses and lengths of `length` bytes from byte `skip` of the segments.
fn pieces(segments: &[Segment], skip: u64, length: usize) -> impl Iterator<Item = (u64, usize)> {
    let (mut skip, mut left) = (skip, length);
    segments.iter().filter_map(move |segment| {
        let inside = u64::from(segment.length).saturating_sub(skip);
        let at = segment.at + (u64::from(segment.length) - inside);
        skip = skip.saturating_sub(segment.length.into());
        let now = usize::try_from(inside).unwrap_or(usize::MAX).min(left);
        left -= now;
        (now > 0).then_some((at, now))
    })
}

/// One ring, as far as it has been worked off.
#[derive(Debug)]
pub struct Ring {
    layout: Layout,
    has_indirect: bool,
    has_events: bool,
    next_available: u16,
    next_used: u16,
    /// The used index when the driver was last asked whether it wants to be told.
    asked_used: u16,
}

impl Ring {
    /// A ring from whose available entry `next_available` on requests are taken.
    pub fn new(
        layout: Layout,
        memory: &impl GuestMemory,
        next_available: u16,
        has_indirect: bool,
        has_events: bool,
    ) -> Result<Self, Broken> {
        let load = |part: u64, offset: u64| memory.load(part.checked_add(offset).ok_or(GuestFault::Outside)?);
        let next_used = load(layout.used, INDEX)?;
        // The end of each part must be there, too; the rest is looked at when it is used.
        let size = u64::from(layout.size);
        load(layout.available, ENTRIES + HEAD_BYTES * size)?;
        load(layout.used, ENTRIES + USED_BYTES * size)?;
        Ok(Self { layout, has_indirect, has_events, next_available, next_used, asked_used: next_used })
    }

    /// The available entry that is taken next.
    pub fn next_available(&self) -> u16 {
        self.next_available
    }

    /// The used index, as the machine sees it.
    pub fn used(&self) -> u16 {
        self.next_used
    }

    fn slot(&self, index: u16) -> u64 {
        u64::from(index & (self.layout.size - 1))
    }

    fn available_count(&self, memory: &impl GuestMemory) -> Result<u16, Broken> {
        let count = memory.load(self.layout.available + INDEX)?.wrapping_sub(self.next_available);
        if count <= self.layout.size { Ok(count) } else { Err(Broken::Available(count)) }
    }

    /// The next request that the driver has made available: its memory goes to `chain`. False if there is
    /// none.
    pub fn next(&mut self, memory: &impl GuestMemory, chain: &mut Chain) -> Result<bool, Broken> {
        if self.available_count(memory)? == 0 {
            return Ok(false);
        }
        let entry = self.layout.available + ENTRIES + HEAD_BYTES * self.slot(self.next_available);
        let head = memory.load(entry)?;
        self.next_available = self.next_available.wrapping_add(1);
        self.walk(memory, head, chain)?;
        Ok(true)
    }

    /// The memory of the request that begins with descriptor `head`.
    pub fn walk(&self, memory: &impl GuestMemory, head: u16, chain: &mut Chain) -> Result<(), Broken> {
        chain.head = head;
        chain.readable.clear();
        chain.writable.clear();
        let (mut table, mut count) = (self.layout.descriptors, self.layout.size);
        let (mut index, mut left, mut is_indirect) = (head, count.min(CHAIN_MAX), false);
        loop {
            if index >= count {
                return Err(Broken::Descriptor(index));
            }
            let place = table.checked_add(DESCRIPTOR_BYTES * u64::from(index)).ok_or(GuestFault::Outside)?;
            let Descriptor { at, length, flags, next } = Descriptor::read(memory, place)?;
            if flags & flag::INDIRECT != 0 {
                let entries = u64::from(length) / DESCRIPTOR_BYTES;
                let can_be = self.has_indirect
                    && !is_indirect
                    // WRITE says nothing here (VIRTIO 2.7.5.3.2).
                    && flags & flag::NEXT == 0
                    && u64::from(length).is_multiple_of(DESCRIPTOR_BYTES)
                    && (1..=u64::from(RING_SIZE_MAX)).contains(&entries);
                if !can_be {
                    return Err(Broken::Table);
                }
                count = u16::try_from(entries).map_err(|_| Broken::Table)?;
                let taken = chain.readable.len() + chain.writable.len();
                let room = usize::from(CHAIN_MAX).saturating_sub(taken);
                left = count.min(u16::try_from(room).unwrap_or(0));
                (table, index, is_indirect) = (at, 0, true);
                continue;
            }
            left = left.checked_sub(1).ok_or(Broken::Endless)?;
            at.checked_add(length.into()).ok_or(GuestFault::Outside)?;
            if flags & flag::WRITE != 0 {
                chain.writable.push(Segment { at, length });
            } else if chain.writable.is_empty() {
                chain.readable.push(Segment { at, length });
            } else {
                return Err(Broken::Order);
            }
            if flags & flag::NEXT == 0 {
                return Ok(());
            }
            index = next;
        }
    }

    /// Gives a request back, of whose writable memory `written` bytes were written.
    pub fn complete(&mut self, memory: &impl GuestMemory, head: u16, written: u32) -> Result<(), Broken> {
        let place = self.layout.used + ENTRIES + USED_BYTES * self.slot(self.next_used);
        let mut entry = [0; 8];
        entry[..4].copy_from_slice(&u32::from(head).to_le_bytes());
        entry[4..].copy_from_slice(&written.to_le_bytes());
        memory.write(place, &entry)?;
        self.next_used = self.next_used.wrapping_add(1);
        Ok(memory.store(self.layout.used + INDEX, self.next_used)?)
    }

    /// Whether the driver wants to be told of what was given back since the last question.
    pub fn wants_call(&mut self, memory: &impl GuestMemory) -> Result<bool, Broken> {
        let before = std::mem::replace(&mut self.asked_used, self.next_used);
        // The driver stores what it wants and then looks at the index; we store the index and then look.
        fence(Ordering::SeqCst);
        let available = self.layout.available;
        if !self.has_events {
            return Ok(memory.load(available)? & NO_INTERRUPT == 0);
        }
        let event = memory.load(available + ENTRIES + HEAD_BYTES * u64::from(self.layout.size))?;
        Ok(is_passed(event, before, self.next_used))
    }

    /// Asks the driver to tell of the next request. True if one has come meanwhile, of which it may not tell.
    pub fn ask_for_kick(&mut self, memory: &impl GuestMemory) -> Result<bool, Broken> {
        if self.has_events {
            let event = self.layout.used + ENTRIES + USED_BYTES * u64::from(self.layout.size);
            memory.store(event, self.next_available)?;
        } else {
            // A back end before this one may have asked the driver to be silent.
            memory.store(self.layout.used, 0)?;
        }
        // As above, the other way round.
        fence(Ordering::SeqCst);
        Ok(self.available_count(memory)? > 0)
    }
}

/// Whether an index that went from `before` to `now` has passed the entry `event` (VIRTIO 2.7.7.1).
pub(super) fn is_passed(event: u16, before: u16, now: u16) -> bool {
    now.wrapping_sub(event).wrapping_sub(1) < now.wrapping_sub(before)
}

/// A range of the machine's memory, and what follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor {
    /// First byte.
    pub at: u64,
    /// Bytes.
    pub length: u32,
    /// See [`flag`].
    pub flags: u16,
    /// The index of the descriptor that follows, if one does.
    pub next: u16,
}

impl Descriptor {
    /// Puts it to `place`, as a driver does.
    pub fn write(&self, memory: &impl GuestMemory, place: u64) -> Result<(), GuestFault> {
        let Self { at, length, flags, next } = *self;
        let word =
            u128::from(at) | u128::from(length) << 64 | u128::from(flags) << 96 | u128::from(next) << 112;
        memory.write(place, &word.to_le_bytes())
    }

    fn read(memory: &impl GuestMemory, place: u64) -> Result<Self, GuestFault> {
        let mut bytes = [0; 16];
        memory.read(place, &mut bytes)?;
        let word = u128::from_le_bytes(bytes);
        let part = |shift: u32, bits: u32| (word >> shift) & ((1 << bits) - 1);
        let narrow = |value: u128| u16::try_from(value).unwrap_or_else(|_| unreachable!("16 bits"));
        Ok(Self {
            at: u64::try_from(part(0, 64)).unwrap_or_else(|_| unreachable!("64 bits")),
            length: u32::try_from(part(64, 32)).unwrap_or_else(|_| unreachable!("32 bits")),
            flags: narrow(part(96, 16)),
            next: narrow(part(112, 16)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use crate::vhost_user::{driver::DriverRing, memory::Bytes};

    fn zeroes(length: usize) -> Bytes {
        Bytes(RefCell::new(vec![0; length]))
    }

    const LAYOUT: Layout = Layout { descriptors: 0, available: 0x400, used: 0x800, size: 8 };
    const TABLE: u64 = 0x1000;

    /// A machine's memory and its driver.
    struct Driver {
        memory: Bytes,
        ring: DriverRing,
    }

    impl Driver {
        fn new() -> Self {
            Self { memory: zeroes(0x2000), ring: DriverRing::new(LAYOUT, 0, true) }
        }

        fn descriptor(&self, table: u64, index: u16, at: u64, length: u32, flags: u16, next: u16) {
            let descriptor = Descriptor { at, length, flags, next };
            descriptor.write(&self.memory, table + 16 * u64::from(index)).unwrap();
        }

        fn offer(&mut self, head: u16) {
            self.ring.offer(&self.memory, head).unwrap();
        }

        fn ring(&self, base: u16) -> Ring {
            Ring::new(LAYOUT, &self.memory, base, true, true).unwrap()
        }

        /// What becomes of the one request that is offered with head 0.
        fn taken(&mut self) -> Result<Chain, Broken> {
            self.offer(0);
            let mut chain = Chain::default();
            let taken = self.ring(0).next(&self.memory, &mut chain);
            taken.map(|taken| {
                assert!(taken);
                chain
            })
        }
    }

    #[test]
    fn a_chain_is_what_the_device_reads_and_then_what_it_writes() {
        let mut driver = Driver::new();
        driver.descriptor(0, 0, 0x1800, 16, flag::NEXT, 3);
        driver.descriptor(0, 3, 0x1900, 100, flag::NEXT | flag::WRITE, 2);
        driver.descriptor(0, 2, 0x1a00, 1, flag::WRITE, 0);
        let chain = driver.taken().unwrap();
        assert_eq!((chain.readable_bytes(), chain.writable_bytes()), (16, 101));
        chain.write(&driver.memory, 98, &[1, 2, 3]).unwrap();
        assert_eq!(driver.memory.0.borrow()[0x1962..0x1964], [1, 2]);
        assert_eq!(driver.memory.0.borrow()[0x1a00], 3);
        assert_eq!(chain.write(&driver.memory, 99, &[0; 3]), Err(Broken::Request));
        assert_eq!(chain.read(&driver.memory, 1, &mut [0; 16]), Err(Broken::Request));
    }

    #[test]
    fn an_indirect_table_is_walked_like_the_ring_itself() {
        let mut driver = Driver::new();
        driver.descriptor(TABLE, 0, 0x1800, 16, flag::NEXT, 1);
        driver.descriptor(TABLE, 1, 0x1900, 9, flag::WRITE, 0);
        for head in [flag::INDIRECT, flag::INDIRECT | flag::WRITE] {
            driver.descriptor(0, 0, TABLE, 32, head, 0);
            let chain = driver.taken().unwrap();
            assert_eq!((chain.readable_bytes(), chain.writable_bytes()), (16, 9));
        }
        let mut plain = Ring::new(LAYOUT, &driver.memory, 0, false, true).unwrap();
        let refused = plain.next(&driver.memory, &mut Chain::default());
        assert_eq!(refused, Err(Broken::Table), "it wasn't negotiated");
    }

    #[test]
    fn a_table_at_a_chains_end_makes_it_no_longer_than_a_chain_may_be() {
        let layout = Layout { descriptors: 0, available: 0x1000, used: 0x1400, size: 256 };
        let walked = |direct: u16, indirect: u16| {
            let driver = Driver { memory: zeroes(0x4000), ring: DriverRing::new(layout, 0, true) };
            for index in 0..direct {
                driver.descriptor(0, index, 0, 1, flag::NEXT, index + 1);
            }
            driver.descriptor(0, direct, 0x2000, 16 * u32::from(indirect), flag::INDIRECT, 0);
            for index in 0..indirect {
                let flags = if index + 1 < indirect { flag::NEXT } else { 0 };
                driver.descriptor(0x2000, index, 0, 1, flags, index + 1);
            }
            let ring = Ring::new(layout, &driver.memory, 0, true, true).unwrap();
            let mut chain = Chain::default();
            ring.walk(&driver.memory, 0, &mut chain).map(|()| chain.readable_bytes())
        };
        assert_eq!(walked(200, 56), Ok(256));
        assert_eq!(walked(200, 57), Err(Broken::Endless));
    }

    #[test]
    fn hostile_chains_end_and_reach_nothing_outside() {
        type Descriptors = &'static [(u64, u16, u64, u32, u16, u16)];
        let cases: &[(Descriptors, Broken)] = &[
            (&[(0, 0, 0, 1, flag::NEXT, 0)], Broken::Endless),
            (&[(0, 0, 0, 1, flag::NEXT, 1), (0, 1, 0, 1, flag::NEXT, 0)], Broken::Endless),
            (&[(0, 0, 0, 1, flag::NEXT, 8)], Broken::Descriptor(8)),
            (&[(0, 0, 0, 1, flag::NEXT | flag::WRITE, 1), (0, 1, 0, 1, 0, 0)], Broken::Order),
            (&[(0, 0, u64::MAX, 2, 0, 0)], Broken::Memory(GuestFault::Outside)),
            (&[(0, 0, TABLE, 0, flag::INDIRECT, 0)], Broken::Table),
            (&[(0, 0, TABLE, 17, flag::INDIRECT, 0)], Broken::Table),
            (&[(0, 0, TABLE, 16 * 1025, flag::INDIRECT, 0)], Broken::Table),
            (&[(0, 0, TABLE, 16, flag::INDIRECT | flag::NEXT, 0)], Broken::Table),
            (
                &[(0, 0, TABLE, 16, flag::INDIRECT, 0), (TABLE, 0, TABLE, 16, flag::INDIRECT, 0)],
                Broken::Table,
            ),
            (&[(0, 0, TABLE, 16, flag::INDIRECT, 0), (TABLE, 0, 0, 1, flag::NEXT, 1)], Broken::Descriptor(1)),
            (&[(0, 0, TABLE, 32, flag::INDIRECT, 0), (TABLE, 0, 0, 1, flag::NEXT, 0)], Broken::Endless),
            (&[(0, 0, u64::MAX - 8, 32, flag::INDIRECT, 0)], Broken::Memory(GuestFault::Outside)),
        ];
        for (descriptors, broken) in cases {
            let mut driver = Driver::new();
            for &(table, index, at, length, flags, next) in *descriptors {
                driver.descriptor(table, index, at, length, flags, next);
            }
            assert_eq!(driver.taken(), Err(*broken), "{descriptors:?}");
        }
    }

    #[test]
    fn an_available_index_that_runs_away_is_refused() {
        let mut driver = Driver::new();
        driver.memory.store(0x402, 9).unwrap();
        assert_eq!(driver.ring(0).next(&driver.memory, &mut Chain::default()), Err(Broken::Available(9)));
        driver.memory.store(0x402, 0).unwrap();
        driver.offer(8);
        assert_eq!(driver.ring(0).next(&driver.memory, &mut Chain::default()), Err(Broken::Descriptor(8)));
    }

    #[test]
    fn a_ring_of_which_a_part_is_not_in_memory_is_refused() {
        let memory = zeroes(0x1000);
        for layout in [
            Layout { available: 0xfec, ..LAYOUT },
            Layout { used: 0xfbc, ..LAYOUT },
            Layout { used: u64::MAX - 1, ..LAYOUT },
            Layout { available: u64::MAX, ..LAYOUT },
        ] {
            assert!(Ring::new(layout, &memory, 0, true, true).is_err(), "{layout:?}");
        }
        assert!(Ring::new(Layout { available: 0xfea, ..LAYOUT }, &memory, 0, true, true).is_ok());
    }

    #[test]
    fn indices_wrap_and_answers_go_to_their_slots() {
        let mut driver = Driver::new();
        driver.ring = DriverRing::new(LAYOUT, u16::MAX, true);
        driver.memory.store(0x402, u16::MAX).unwrap();
        driver.memory.store(0x802, u16::MAX).unwrap();
        let mut ring = driver.ring(u16::MAX);
        let mut chain = Chain::default();
        assert_eq!(ring.next(&driver.memory, &mut chain), Ok(false));
        driver.descriptor(0, 5, 0x1900, 1, flag::WRITE, 0);
        driver.offer(5);
        assert_eq!(ring.next(&driver.memory, &mut chain), Ok(true));
        assert_eq!((chain.head, ring.next_available()), (5, 0));
        ring.complete(&driver.memory, 5, 1).unwrap();
        assert_eq!(driver.memory.load(0x802), Ok(0));
        let mut entry = [0; 8];
        driver.memory.read(0x804 + 8 * 7, &mut entry).unwrap();
        assert_eq!(entry, [5, 0, 0, 0, 1, 0, 0, 0]);
    }

    #[test]
    fn the_driver_is_told_from_the_entry_on_that_it_wants() {
        let mut driver = Driver::new();
        let mut ring = driver.ring(0);
        let event = 0x404 + 2 * 8;
        driver.memory.store(event, 1).unwrap();
        ring.complete(&driver.memory, 0, 0).unwrap();
        assert_eq!(ring.wants_call(&driver.memory), Ok(false));
        ring.complete(&driver.memory, 0, 0).unwrap();
        assert_eq!(ring.wants_call(&driver.memory), Ok(true));
        assert_eq!(ring.wants_call(&driver.memory), Ok(false), "nothing new");
        assert_eq!(ring.ask_for_kick(&driver.memory), Ok(false));
        driver.offer(0);
        assert_eq!(ring.ask_for_kick(&driver.memory), Ok(true));
        assert_eq!(driver.memory.load(0x804 + 8 * 8), Ok(0));
        let mut plain = Ring::new(LAYOUT, &driver.memory, 0, true, false).unwrap();
        assert_eq!(plain.wants_call(&driver.memory), Ok(true));
        driver.memory.store(0x400, NO_INTERRUPT).unwrap();
        assert_eq!(plain.wants_call(&driver.memory), Ok(false));
    }

    #[test]
    fn a_driver_that_another_back_end_has_asked_to_be_silent_is_asked_to_tell() {
        let memory = zeroes(0x2000);
        let mut driver = DriverRing::new(LAYOUT, 0, false);
        memory.store(LAYOUT.used, 1).unwrap();
        driver.offer(&memory, 0).unwrap();
        assert_eq!(driver.wants_kick(&memory), Ok(false));
        let mut ring = Ring::new(LAYOUT, &memory, 1, true, false).unwrap();
        assert_eq!(ring.ask_for_kick(&memory), Ok(false));
        driver.offer(&memory, 1).unwrap();
        assert_eq!(driver.wants_kick(&memory), Ok(true));
    }

    #[test]
    fn an_entry_is_passed_once() {
        assert!(is_passed(0, 0, 1) && !is_passed(1, 0, 1) && is_passed(1, 0, 3) && !is_passed(0, 1, 3));
        assert!(is_passed(u16::MAX, u16::MAX, 0) && !is_passed(0, u16::MAX, 0) && is_passed(0, u16::MAX, 1));
        assert!(!is_passed(5, 7, 7));
    }
}
