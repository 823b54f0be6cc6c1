//! One io_uring of a shard, whatever the size of its entries: what waits to be submitted, the files and the
//! part of the arena that are registered with it.
//!
//! A registered index belongs to the ring that gave it and means nothing to another one (C15). What an entry
//! points to is kept by the slot, by the operation or by the driver until the completion (C16).

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    io,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    time::Duration,
};

use io_uring::{IoUring, cqueue, squeue, types};

use crate::{Pool, uring::arena::Arena};

/// Files that can be registered; more work too, unregistered.
const FILES: u32 = 1024;
/// `IORING_ENTER_GETEVENTS`.
const ENTER_GETEVENTS: u32 = 1;

/// See the module.
pub(super) struct Ring<S: squeue::EntryMarker, C: cqueue::EntryMarker> {
    ring: RefCell<IoUring<S, C>>,
    /// Entries that did not fit into the ring.
    pub(super) backlog: RefCell<VecDeque<S>>,
    pub(super) arena: Arena,
    /// How often it has entered the kernel.
    pub(super) entries: Cell<u64>,
    /// Free slots of the ring's file table.
    files_free: RefCell<Vec<u32>>,
}

impl<S: squeue::EntryMarker, C: cqueue::EntryMarker> Ring<S, C> {
    /// Registers what can be registered of `pool`.
    pub(super) fn new(ring: IoUring<S, C>, pool: &Pool) -> Self {
        let files = ring.submitter().register_files_sparse(FILES).map_or(0, |()| FILES);
        let arena = Arena::new(&ring.submitter(), pool);
        Self {
            ring: RefCell::new(ring),
            backlog: RefCell::default(),
            arena,
            entries: Cell::default(),
            files_free: RefCell::new((0..files).rev().collect()),
        }
    }

    // --- submitting ---

    /// The registered index that covers `length` bytes at `address`, if they lie in the arena of this ring
    /// (C15). The first use registers it.
    pub(super) fn fixed_index(&self, address: *const u8, length: usize) -> Option<u16> {
        let part = self.arena.part_of(address, length)?;
        let register =
            || self.ring.try_borrow().is_ok_and(|ring| self.arena.register(&ring.submitter(), part));
        if self.arena.has(part) || register() { u16::try_from(part).ok() } else { None }
    }

    pub(super) fn push(&self, entry: S) {
        let mut backlog = self.backlog.borrow_mut();
        if backlog.is_empty() {
            let mut ring = self.ring.borrow_mut();
            if try_push(&mut ring, &entry) {
                return;
            }
            // The ring is full. If this fails, the loop meets the same error and deals with it.
            let _ = ring.submit();
            self.count_entry();
            if try_push(&mut ring, &entry) {
                return;
            }
        }
        backlog.push_back(entry);
    }

    /// Moves the backlog into the ring, as far as it fits.
    fn push_backlog(&self) {
        let mut backlog = self.backlog.borrow_mut();
        if backlog.is_empty() {
            return;
        }
        let mut ring = self.ring.borrow_mut();
        while let Some(entry) = backlog.front() {
            if !try_push(&mut ring, entry) {
                return;
            }
            backlog.pop_front();
        }
    }

    /// Enters the kernel if there is anything to submit or to collect there; `always`, to have it look at
    /// the devices of a polled ring.
    pub(super) fn submit(&self, always: bool) {
        self.push_backlog();
        let (waiting, work) = self.pending();
        if waiting > 0 || work || always {
            self.enter(u32::try_from(waiting).unwrap_or(u32::MAX));
        }
    }

    /// Has the kernel hand over what it has, if it has something.
    pub(super) fn collect(&self) {
        if self.pending().1 {
            self.enter(0);
        }
    }

    /// How many entries wait to be submitted, and whether the kernel has something for us.
    fn pending(&self) -> (usize, bool) {
        let ring = self.ring.borrow();
        // SAFETY: the ring is borrowed, and no other queue handle is alive.
        let queue = unsafe { ring.submission_shared() };
        (queue.len(), queue.taskrun() || queue.cq_overflow())
    }

    /// Whether entries wait that the kernel has not taken.
    pub(super) fn has_untaken(&self) -> bool {
        self.pending().0 > 0 || !self.backlog.borrow().is_empty()
    }

    fn enter(&self, count: u32) {
        let ring = self.ring.borrow();
        // Getting events costs nothing beyond the entry and runs the kernel's deferred work. A polled ring
        // looks at its devices once: it asks for no completion, so it doesn't wait for one.
        // SAFETY: no argument is passed, and the entries keep what they point to alive (C16).
        let entered = unsafe { ring.submitter().enter::<()>(count, 0, ENTER_GETEVENTS, None) };
        self.count_entry();
        check_entered(entered);
    }

    /// Submits and blocks until a completion, or for `timeout` nanoseconds.
    pub(super) fn wait(&self, timeout: Option<u64>) {
        self.push_backlog();
        let ring = self.ring.borrow();
        let entered = match timeout {
            None => ring.submitter().submit_and_wait(1),
            Some(ns) => {
                let timeout = types::Timespec::from(Duration::from_nanos(ns));
                ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&timeout))
            }
        };
        self.count_entry();
        check_entered(entered);
    }

    fn count_entry(&self) {
        self.entries.set(self.entries.get() + 1);
    }

    // --- completing ---

    /// Moves the completions that have come to `reaped`.
    pub(super) fn reap(&self, reaped: &mut Vec<cqueue::Entry>) {
        reaped.extend(self.ring.borrow_mut().completion().map(Into::into));
    }

    /// Whether a look would find something. No system call.
    pub(super) fn has_news(&self) -> bool {
        let mut ring = self.ring.borrow_mut();
        let (_, queue, completions) = ring.split();
        queue.taskrun() || !completions.is_empty()
    }

    // --- files ---

    /// Registers a file and returns its index, unless the table is full or the kernel refuses.
    pub(super) fn register(&self, fd: &OwnedFd) -> Option<u32> {
        let index = self.files_free.borrow_mut().pop()?;
        let updated = self.ring.borrow().submitter().register_files_update(index, &[fd.as_raw_fd()]);
        if matches!(updated, Ok(1)) {
            return Some(index);
        }
        self.files_free.borrow_mut().push(index);
        None
    }

    /// Gives a registered index back. No entry names it any more: requests hold their descriptor until they
    /// end.
    pub(super) fn unregister(&self, index: u32) {
        if self.ring.borrow().submitter().register_files_update(index, &[-1]).is_ok() {
            self.files_free.borrow_mut().push(index);
        }
    }

    /// The ring's own descriptor, to be watched by another ring.
    pub(super) fn as_raw_fd(&self) -> RawFd {
        self.ring.borrow().as_raw_fd()
    }
}

fn try_push<S: squeue::EntryMarker, C: cqueue::EntryMarker>(ring: &mut IoUring<S, C>, entry: &S) -> bool {
    // SAFETY: what the entry points to is kept by the slot, by the operation or by the driver until the
    // completion, for which `Driver::drain` waits (C16).
    unsafe { ring.submission().push(entry) }.is_ok()
}

/// Sorts what became of an entry into the kernel. Interruptions, time-outs and a full completion queue end by
/// themselves; anything else means that this process has broken its own ring, with requests in flight.
pub(super) fn check_entered(entered: io::Result<usize>) {
    let Err(error) = entered else { return };
    if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN)) {
        eprintln!("io_uring_enter failed, which leaves requests in an unknown state: {error}");
        std::process::abort();
    }
}
