//! The pool's arena, as the kernel knows it.
//!
//! What is registered is pinned: it takes memory whether it is used or not. So the arena is registered in
//! parts, each when the first request uses it. A pool hands out the arena from its beginning, so a server
//! that has little to do pins little.

use std::cell::Cell;

use io_uring::Submitter;

use crate::Pool;

/// The kernel takes at most 1 GiB in one registered buffer.
const PART_MAX: usize = 1 << 30;
const PART_MIN: usize = 4 << 20;
/// As many as a word has bits.
const PARTS: usize = 64;

/// See the module.
pub(super) struct Arena {
    base: *mut u8,
    bytes: usize,
    part: usize,
    /// Bit by part: it is registered.
    registered: Cell<u64>,
    /// The kernel refused a part, because of `RLIMIT_MEMLOCK` most likely: the others aren't tried.
    refused: Cell<bool>,
}

impl Arena {
    /// Of `pool`. Its arena outlives every request of the ring: a block in it keeps it. The arena's first
    /// part is registered at once, to see whether that works. Without (a low `RLIMIT_MEMLOCK`) everything
    /// works too, at a higher price.
    pub(super) fn new(ring: &Submitter<'_>, pool: &Pool) -> Self {
        let (base, bytes) = pool.arena();
        let part = bytes.div_ceil(PARTS).next_power_of_two().max(PART_MIN);
        let arena = Self { base, bytes, part, registered: Cell::new(0), refused: Cell::new(true) };
        let parts = u32::try_from(bytes.div_ceil(part)).unwrap_or(0);
        if parts > 0 && part <= PART_MAX && ring.register_buffers_sparse(parts).is_ok() {
            arena.refused.set(false);
            arena.register(ring, 0);
        }
        arena
    }

    /// Whether parts of it can be registered.
    pub(super) fn is_registered(&self) -> bool {
        !self.refused.get()
    }

    /// Which part has these bytes, if one has all of them (C15).
    pub(super) fn part_of(&self, address: *const u8, length: usize) -> Option<usize> {
        let start = address.addr().checked_sub(self.base.addr())?;
        let end = start.checked_add(length)?;
        let inside = length > 0 && end <= self.bytes && start / self.part == (end - 1) / self.part;
        inside.then_some(start / self.part)
    }

    /// Whether a part is registered.
    pub(super) fn has(&self, part: usize) -> bool {
        self.registered.get() & 1 << part != 0
    }

    /// Registers a part, if no other was refused; whether it is.
    pub(super) fn register(&self, ring: &Submitter<'_>, part: usize) -> bool {
        if self.refused.get() {
            return false;
        }
        let start = part * self.part;
        let length = self.part.min(self.bytes - start);
        let memory = libc::iovec { iov_base: self.base.wrapping_add(start).cast(), iov_len: length };
        let index = u32::try_from(part).unwrap_or(u32::MAX);
        // SAFETY: the part lies in the arena, which outlives every request of this ring.
        let done = unsafe { ring.register_buffers_update(index, &[memory], None) };
        match done {
            Ok(()) => self.registered.set(self.registered.get() | 1 << part),
            Err(_) => self.refused.set(true),
        }
        done.is_ok()
    }
}
