//! A shard's further rings, made when a member needs one: for commands by passthrough, whose entries are
//! larger, and for polled requests, which can't be on a ring with others.
//!
//! Nothing sleeps on these rings. A shard sleeps on its main ring: the unpolled ring of large entries is
//! watched by a poll of its descriptor there, and while polled requests are under way the loop looks at their
//! ring each time round ([`super::pause`], decision 30).

use std::{
    cell::Cell,
    io,
    os::fd::{AsRawFd, OwnedFd},
};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use crate::{
    Pool,
    uring::ring::{Ring, check_entered},
};

/// Submissions that a ring holds before it must enter the kernel.
const SUBMISSIONS: u32 = 256;
/// Completions that a ring holds before the kernel keeps them in a list of its own.
const COMPLETIONS: u32 = 1024;

/// Which of a shard's rings carries a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carrier {
    /// The one that the shard sleeps on.
    Main,
    /// Commands by passthrough: large entries.
    Large,
    /// Polled requests, commands by passthrough among them: large entries too.
    Polled,
}

type LargeRing = IoUring<squeue::Entry128, cqueue::Entry32>;

/// See the module.
pub(super) struct Side {
    pub(super) ring: Ring<squeue::Entry128, cqueue::Entry32>,
    is_polled: bool,
    /// Requests that the kernel has not completed, or has not got yet.
    under_way: Cell<usize>,
    /// The main ring waits for this one to have completions.
    pub(super) watched: Cell<bool>,
}

impl Side {
    /// A ring for `pool`'s shard on this thread.
    pub(super) fn new(is_polled: bool, pool: &Pool) -> io::Result<Self> {
        let ring = Ring::new(set_up(is_polled, SUBMISSIONS, COMPLETIONS)?, pool);
        Ok(Self { ring, is_polled, under_way: Cell::new(0), watched: Cell::new(false) })
    }

    pub(super) fn push(&self, entry: squeue::Entry128) {
        self.under_way.set(self.under_way.get() + 1);
        self.ring.push(entry);
    }

    /// Whether it has requests.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way.get() > 0
    }

    /// As if it had so many requests.
    #[cfg(test)]
    pub(super) fn pretend(&self, under_way: usize) {
        self.under_way.set(under_way);
    }

    /// Submits what waits, and has a polled ring look at its devices once.
    pub(super) fn submit(&self) {
        self.ring.submit(self.is_polled && self.is_busy());
    }

    /// Moves the completions that have come to `reaped`.
    pub(super) fn reap(&self, reaped: &mut Vec<cqueue::Entry>) {
        let before = reaped.len();
        self.ring.reap(reaped);
        self.under_way.set(self.under_way.get() - (reaped.len() - before));
    }
}

fn set_up(is_polled: bool, submissions: u32, completions: u32) -> io::Result<LargeRing> {
    let mut builder = IoUring::<squeue::Entry128, cqueue::Entry32>::builder();
    builder.setup_cqsize(completions).setup_clamp().setup_submit_all();
    // No deferred work: what sleeps on the main ring must run this ring's.
    builder.setup_coop_taskrun().setup_taskrun_flag();
    if is_polled {
        builder.setup_iopoll();
    }
    builder.build(submissions)
}

/// Carries out one entry on a ring of its own and waits for its end, to see whether the kernel and the device
/// can do it: its result. Blocks.
///
/// # Safety
/// What the entry points to must be the kernel's to read or write until this returns.
pub(super) unsafe fn attempt(entry: &squeue::Entry128, is_polled: bool) -> io::Result<i32> {
    let mut ring = set_up(is_polled, 2, 2)?;
    // SAFETY: the caller promises it, and the wait below ends with the completion (C16).
    unsafe { ring.submission().push(entry) }.unwrap_or_else(|_| unreachable!("the ring is empty"));
    loop {
        check_entered(ring.submit_and_wait(1));
        if let Some(completion) = ring.completion().next() {
            return Ok(completion.result());
        }
    }
}

/// Reads into `memory` from the beginning of a file by a polled ring.
pub(super) fn attempt_polled_read(fd: &OwnedFd, memory: &mut [u8]) -> io::Result<()> {
    let length = u32::try_from(memory.len()).unwrap_or(u32::MAX);
    let read = opcode::Read::new(types::Fd(fd.as_raw_fd()), memory.as_mut_ptr(), length).build();
    // SAFETY: the memory is borrowed until the call has returned.
    let result = unsafe { attempt(&read.into(), true) }?;
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
}
