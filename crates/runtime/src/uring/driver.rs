//! One shard's ring: it submits operations, reaps their completions and sleeps when there is nothing to do.
//!
//! Every operation belongs to a slot of the shard (see [`crate::completion`]); the slot's number is the
//! kernel's user data. So the slot, and the memory in it, lives until the kernel's completion; the driver
//! adds what it needs to go on with a short transfer. Nothing here frees memory of a request (C16): at the
//! end, [`Driver::drain`] waits for the kernel, and what a hanging device keeps beyond that is never freed.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    io,
    os::fd::{AsRawFd, OwnedFd},
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use crate::{
    Completion, DeviceError, DeviceErrorKind, Pool, Shard, Submission,
    completion::Payload,
    executor::TURN_NS,
    mutants::{Mutant, active},
    uring::{
        RunError,
        arena::Arena,
        operation::{Operation, Step},
    },
};

/// Submissions that the ring holds before it must enter the kernel.
const SUBMISSIONS: u32 = 512;
/// Completions that the ring holds before the kernel keeps them in a list of its own.
const COMPLETIONS: u32 = 4096;
/// Files that can be registered; more work too, unregistered.
const FILES: u32 = 1024;
/// How long a drain waits before it cancels once more what may have been submitted since.
const DRAIN_NS: u64 = 100_000_000;
/// How long a drain waits in all: a device that hangs must not keep the process.
const DRAIN_NS_MAX: u64 = 5_000_000_000;

/// User data that is no slot.
const KICK: u64 = 1 << 32;
const CANCEL: u64 = 2 << 32;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Driver>>> = const { RefCell::new(None) };
}

/// See the module.
pub(super) struct Driver {
    ring: RefCell<IoUring>,
    /// Entries that did not fit into the ring.
    backlog: RefCell<VecDeque<squeue::Entry>>,
    /// By slot.
    operations: RefCell<Vec<Option<Operation>>>,
    reaped: RefCell<Vec<cqueue::Entry>>,
    arena: Arena,
    /// Free slots of the ring's file table.
    files_free: RefCell<Vec<u32>>,
    kick: Arc<OwnedFd>,
    kick_armed: Cell<bool>,
    stopping: Cell<bool>,
    draining: Cell<bool>,
    spin_ns: u64,
}

impl Driver {
    /// A ring for `pool`'s shard on this thread.
    pub(super) fn new(pool: &Pool, spin_ns: u64) -> Result<Rc<Self>, RunError> {
        let ring = set_up()?;
        let step = |what| move |source| RunError::Setup { what, source };
        let flags = rustix::event::EventfdFlags::CLOEXEC;
        let kick = rustix::event::eventfd(0, flags).map_err(|e| step("making an eventfd")(e.into()))?;
        let files = ring.submitter().register_files_sparse(FILES).map_or(0, |()| FILES);
        let arena = Arena::new(&ring, pool);
        Ok(Rc::new(Self {
            ring: RefCell::new(ring),
            backlog: RefCell::default(),
            operations: RefCell::default(),
            reaped: RefCell::default(),
            arena,
            files_free: RefCell::new((0..files).rev().collect()),
            kick: Arc::new(kick),
            kick_armed: Cell::new(false),
            stopping: Cell::new(false),
            draining: Cell::new(false),
            spin_ns,
        }))
    }

    /// The driver of this thread.
    ///
    /// # Panics
    /// On a thread that [`super::run`] did not start.
    pub(super) fn current() -> Rc<Self> {
        CURRENT.with(|c| c.borrow().clone()).expect("this runs only on a shard that io_uring drives")
    }

    /// Makes it the thread's driver, or none.
    pub(super) fn set_current(driver: Option<Rc<Self>>) {
        let outer = CURRENT.with(|current| std::mem::replace(&mut *current.borrow_mut(), driver));
        drop(outer);
    }

    /// Whether the kernel takes the shard's arena.
    pub(super) fn arena_registered(&self) -> bool {
        self.arena.is_registered()
    }

    /// Has [`Driver::run`] return soon.
    pub(super) fn stop(&self) {
        self.stopping.set(true);
    }

    // --- submitting ---

    /// Starts an operation on memory that `payload` keeps.
    pub(super) fn start(&self, payload: Payload, operation: Operation) -> Submission {
        let (submission, completion) = Submission::pending(payload);
        let slot = completion.into_raw();
        let entry = operation.entry(slot);
        {
            let mut operations = self.operations.borrow_mut();
            if operations.len() <= slot as usize {
                operations.resize_with(slot as usize + 1, || None);
            }
            operations[slot as usize] = Some(operation);
        }
        self.push(entry);
        submission
    }

    /// The registered index that covers `length` bytes at `address`, if they lie in the arena of this ring
    /// (C15). The first use registers it.
    pub(super) fn fixed_index(&self, address: *const u8, length: usize) -> Option<u16> {
        let part = self.arena.part_of(address, length)?;
        let registered =
            self.arena.has(part) || self.ring.try_borrow().is_ok_and(|ring| self.arena.register(&ring, part));
        if registered { u16::try_from(part).ok() } else { None }
    }

    /// Asks the kernel to end what `slot` waits for. The completion still comes.
    pub(super) fn cancel(&self, slot: u32) {
        self.push(opcode::AsyncCancel::new(u64::from(slot)).build().user_data(CANCEL));
    }

    fn push(&self, entry: squeue::Entry) {
        let mut backlog = self.backlog.borrow_mut();
        if backlog.is_empty() {
            let mut ring = self.ring.borrow_mut();
            if try_push(&mut ring, &entry) {
                return;
            }
            // The ring is full. If this fails, the loop meets the same error and deals with it.
            let _ = ring.submit();
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

    /// Enters the kernel if there is anything to submit or to collect there.
    fn submit(&self) {
        self.push_backlog();
        let (waiting, work) = self.pending();
        if waiting > 0 || work {
            self.enter(u32::try_from(waiting).unwrap_or(u32::MAX));
        }
    }

    /// Handles every completion that has come, the ones included that the kernel has still to be asked for.
    fn collect(&self) {
        if self.pending().1 {
            self.enter(0);
        }
        self.reap();
    }

    /// How many entries wait to be submitted, and whether the kernel has something for us.
    fn pending(&self) -> (usize, bool) {
        let ring = self.ring.borrow();
        // SAFETY: the ring is borrowed, and no other queue handle is alive.
        let queue = unsafe { ring.submission_shared() };
        (queue.len(), queue.taskrun() || queue.cq_overflow())
    }

    fn enter(&self, count: u32) {
        let ring = self.ring.borrow();
        // Getting events costs nothing beyond the entry and runs the kernel's deferred work.
        // SAFETY: no argument is passed, and the entries keep what they point to alive (C16).
        let entered = unsafe { ring.submitter().enter::<()>(count, 0, ENTER_GETEVENTS, None) };
        check_entered(entered);
    }

    /// Submits and blocks until a completion, or for `timeout` nanoseconds.
    fn wait(&self, timeout: Option<u64>) {
        self.push_backlog();
        let ring = self.ring.borrow();
        let entered = match timeout {
            None => ring.submitter().submit_and_wait(1),
            Some(ns) => {
                let timeout = types::Timespec::from(Duration::from_nanos(ns));
                ring.submitter().submit_with_args(1, &types::SubmitArgs::new().timespec(&timeout))
            }
        };
        check_entered(entered);
    }

    // --- completing ---

    /// Handles every completion that has come. Returns whether there was any.
    fn reap(&self) -> bool {
        let mut reaped = self.reaped.take();
        reaped.extend(self.ring.borrow_mut().completion());
        let any = !reaped.is_empty();
        for completion in reaped.drain(..) {
            match completion.user_data() {
                KICK => {
                    if !cqueue::more(completion.flags()) {
                        self.kick_armed.set(false);
                    }
                }
                CANCEL => {}
                slot => self.complete(narrow(slot), completion.result()),
            }
        }
        self.reaped.replace(reaped);
        any
    }

    fn complete(&self, slot: u32, result: i32) {
        let Some(mut operation) = self.operations.borrow_mut()[slot as usize].take() else {
            unreachable!("the kernel completes an operation once");
        };
        let result = match operation.advance(result, self.draining.get()) {
            Step::Again => {
                let entry = operation.entry(slot);
                self.operations.borrow_mut()[slot as usize] = Some(operation);
                self.push(entry);
                return;
            }
            Step::Done(count) => Ok(count),
            Step::Failed(error) => Err(error),
        };
        // Dropping it may close a file, which waits for nothing that is ours.
        drop(operation);
        Completion::from_raw(slot).finish(result);
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

    // --- the loop ---

    /// Serves `shard`, which is the current one, until [`Driver::stop`].
    pub(super) fn run(&self, shard: &Shard) {
        self.connect_kick(shard);
        loop {
            self.turn(shard);
            if self.stopping.get() {
                return;
            }
            // Without a task to go on with, the entry that sleeps submits too.
            if shard.ready_count() > 0 || self.spin_ns > 0 {
                self.submit();
                self.reap();
            }
            if shard.ready_count() == 0 && !self.spin(shard) {
                self.sleep(shard);
            }
        }
    }

    /// Has mail for `shard` make the eventfd readable.
    fn connect_kick(&self, shard: &Shard) {
        let kick = Arc::clone(&self.kick);
        // The counter would have to reach 2^64 - 1 for this to fail.
        shard.mailbox().set_kick(move || {
            let _ = rustix::io::write(&kick, &1_u64.to_ne_bytes());
        });
    }

    /// One round: what the kernel has completed, mail, timers, a bounded batch of tasks. What they ask of the
    /// kernel is submitted behind it. Nothing times out that has completed, however long the loop stood still
    /// before (C29).
    fn turn(&self, shard: &Shard) {
        /// Polls between two looks at the kernel: enough to share the system call, few enough to keep it
        /// busy.
        const BATCH: usize = 64;
        if !active(Mutant::TimersBeforeCompletions) {
            self.collect();
        }
        shard.turn();
        shard.deliver_mail();
        shard.fire_timers();
        for _ in 0..BATCH {
            if !shard.poll_ready(0) {
                break;
            }
        }
        self.arm_kick();
    }

    /// Looks for work a while before the costly sleep. Returns whether there is some.
    fn spin(&self, shard: &Shard) -> bool {
        if self.spin_ns == 0 {
            return false;
        }
        let now = shard.now();
        let end = now.saturating_add(self.spin_ns);
        let end = shard.next_timer().map_or(end, |timer| timer.min(end));
        loop {
            for _ in 0..16 {
                if shard.mailbox().has_mail() || self.kernel_has_news() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if shard.now() >= end {
                return shard.next_timer().is_some_and(|timer| timer <= shard.now());
            }
        }
    }

    fn kernel_has_news(&self) -> bool {
        let mut ring = self.ring.borrow_mut();
        let (_, queue, completions) = ring.split();
        queue.taskrun() || !completions.is_empty()
    }

    /// Submits what there is, and sleeps until something happens.
    fn sleep(&self, shard: &Shard) {
        if !shard.mailbox().fall_asleep() {
            self.submit();
            return;
        }
        // The kernel may have ended the poll since the turn armed it: that it did was among what was reaped.
        self.arm_kick();
        // A stall within a long sleep would not be seen.
        let timeout = shard.next_timer().map(|timer| timer.saturating_sub(shard.now()).min(TURN_NS));
        if timeout == Some(0) {
            self.submit();
        } else {
            self.wait(timeout);
        }
        shard.mailbox().wake_up();
        self.reap();
    }

    /// Has a kick complete something in this ring, so that it ends a wait.
    fn arm_kick(&self) {
        if !self.kick_armed.replace(true) {
            let poll = opcode::PollAdd::new(types::Fd(self.kick.as_raw_fd()), POLLIN).multi(true);
            self.push(poll.build().user_data(KICK));
        }
    }

    /// Drops the tasks of `shard`, then cancels what is in flight and waits until the kernel is done with all
    /// of it: afterwards, and only then, may the slots and the pool go (C16). False if a device keeps
    /// requests for too long; then slots, pool and ring must stay for as long as the process.
    pub(super) fn drain(&self, shard: &Shard) -> bool {
        self.draining.set(true);
        let started = shard.now();
        loop {
            shard.drop_tasks();
            if shard.requests_in_flight() == 0 && !self.kick_armed.get() {
                return true;
            }
            if shard.now() - started > DRAIN_NS_MAX {
                return false;
            }
            let all = opcode::AsyncCancel2::new(types::CancelBuilder::any()).build().user_data(CANCEL);
            self.push(all);
            self.submit();
            self.reap();
            if shard.requests_in_flight() > 0 || self.kick_armed.get() {
                self.wait(Some(DRAIN_NS));
                self.reap();
            }
        }
    }
}

/// `IORING_ENTER_GETEVENTS`.
const ENTER_GETEVENTS: u32 = 1;
const POLLIN: u32 = libc::POLLIN.cast_unsigned() as u32;

fn try_push(ring: &mut IoUring, entry: &squeue::Entry) -> bool {
    // SAFETY: what the entry points to is kept by the slot, by the operation or by the driver until the
    // completion, for which `Driver::drain` waits (C16).
    unsafe { ring.submission().push(entry) }.is_ok()
}

fn narrow(slot: u64) -> u32 {
    u32::try_from(slot).unwrap_or_else(|_| unreachable!("user data is a slot or one of ours"))
}

/// Sorts what became of an entry into the kernel. Interruptions, time-outs and a full completion queue end by
/// themselves; anything else means that this process has broken its own ring, with requests in flight.
fn check_entered(entered: io::Result<usize>) {
    let Err(error) = entered else { return };
    if !matches!(error.raw_os_error(), Some(libc::EINTR | libc::ETIME | libc::EBUSY | libc::EAGAIN)) {
        eprintln!("io_uring_enter failed, which leaves requests in an unknown state: {error}");
        std::process::abort();
    }
}

fn set_up() -> Result<IoUring, RunError> {
    let mut builder = IoUring::builder();
    builder.setup_cqsize(COMPLETIONS).setup_clamp().setup_submit_all();
    builder.setup_coop_taskrun().setup_taskrun_flag();
    let plain = builder.clone();
    builder.setup_single_issuer().setup_defer_taskrun();
    let made = builder.build(SUBMISSIONS).or_else(|error| {
        // Linux 5.19 and 6.0 lack the two.
        if error.raw_os_error() == Some(libc::EINVAL) { plain.build(SUBMISSIONS) } else { Err(error) }
    });
    match made {
        Ok(ring) if ring.params().is_feature_ext_arg() && ring.params().is_feature_nodrop() => Ok(ring),
        Ok(_) => Err(RunError::Unsupported),
        Err(error) => Err(match error.raw_os_error() {
            Some(libc::EINVAL | libc::ENOSYS) => RunError::Unsupported,
            Some(libc::EPERM | libc::EACCES) => RunError::Forbidden,
            Some(libc::ENOMEM) => RunError::Locked { source: error },
            _ => RunError::Setup { what: "making an io_uring", source: error },
        }),
    }
}

/// An error that the driver itself finds.
pub(super) fn failed(kind: DeviceErrorKind) -> Submission {
    Submission::done(Err(DeviceError::of(kind)), None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_do_not_fit_wait_in_order_and_reach_the_kernel() {
        let driver = Driver::new(&Pool::new(0), 0).unwrap();
        let count = 3 * u64::from(SUBMISSIONS) + 5;
        // As if the kernel had refused to take any for a while.
        for i in 0..count {
            driver.backlog.borrow_mut().push_back(opcode::Nop::new().build().user_data(i));
        }
        driver.push(opcode::Nop::new().build().user_data(count));
        let mut seen = Vec::new();
        while seen.len() <= usize::try_from(count).unwrap() {
            driver.submit();
            seen.extend(driver.ring.borrow_mut().completion().map(|c| c.user_data()));
        }
        assert_eq!(seen, (0..=count).collect::<Vec<_>>());
        assert!(driver.backlog.borrow().is_empty());
    }

    #[test]
    fn a_shard_whose_poll_has_ended_is_woken_all_the_same() {
        const LIMIT_NS: u64 = 30_000_000_000;
        let shard = Shard::new(&crate::ShardConfig { index: 0, arena_bytes: 0, clock: None });
        let _entered = shard.enter();
        let driver = Driver::new(shard.pool(), 0).unwrap();
        driver.connect_kick(&shard);
        // Ends the sleep if nothing else does.
        shard.spawn(crate::shard::sleep(LIMIT_NS));
        assert!(shard.poll_ready(0));
        assert!(!driver.kick_armed.get(), "as when its last completion was just reaped");
        let handle = shard.handle();
        let sender = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            handle.send(|| ());
        });
        let before = shard.now();
        driver.sleep(&shard);
        assert!(shard.now() - before < LIMIT_NS / 2, "the message did not wake the shard");
        sender.join().unwrap();
        assert!(driver.drain(&shard));
    }

    /// A receive is under way for longer than it may be before the shard looks again, and its message has
    /// come meanwhile.
    fn times_out_although_it_has_completed() -> bool {
        let shard = Shard::new(&crate::ShardConfig { index: 0, arena_bytes: 0, clock: None });
        let _entered = shard.enter();
        let driver = Driver::new(shard.pool(), 0).unwrap();
        Driver::set_current(Some(Rc::clone(&driver)));
        let (near, mut far) = std::os::unix::net::UnixStream::pair().unwrap();
        let stream = crate::uring::Connection::new(near).attach().unwrap();
        let got = Rc::new(Cell::new(None));
        let there = Rc::clone(&got);
        shard.spawn(async move {
            let receive = crate::Stream::receive(&*stream, crate::shard::buffer(1));
            there.set(Some(crate::shard::timeout(20_000_000, receive).await.is_some()));
        });
        driver.turn(&shard);
        driver.submit();
        io::Write::write_all(&mut far, &[1]).unwrap();
        std::thread::sleep(Duration::from_millis(60));
        while got.get().is_none() {
            driver.turn(&shard);
            driver.submit();
        }
        assert!(driver.drain(&shard));
        Driver::set_current(None);
        got.get() == Some(false)
    }

    #[test]
    fn what_has_completed_does_not_time_out() {
        assert!(!times_out_although_it_has_completed());
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn timers_that_fire_before_completions_are_reaped_are_found() {
        crate::mutants::activate(Some(Mutant::TimersBeforeCompletions));
        assert!(times_out_although_it_has_completed());
    }

    /// Registered memory is there for good, whether it is used or not.
    #[test]
    fn memory_is_registered_when_it_is_used_first() {
        let pool = Pool::new(64 << 20);
        let driver = Driver::new(&pool, 0).unwrap();
        if !driver.arena_registered() {
            return;
        }
        let (base, bytes) = pool.arena();
        assert!(driver.arena.has(0) && !(1..16).any(|part| driver.arena.has(part)));
        let last = base.wrapping_add(bytes - 4096);
        assert_eq!(driver.fixed_index(last, 4096), Some(15));
        assert!(driver.arena.has(15) && !driver.arena.has(14));
        let boundary = base.wrapping_add((4 << 20) - 4096);
        assert_eq!(driver.fixed_index(boundary, 8192), None, "in two parts");
    }

    #[test]
    fn only_memory_of_the_own_arena_has_a_registered_index() {
        let (ours, other) = (Pool::new(1 << 20), Pool::new(1 << 20));
        let driver = Driver::new(&ours, 0).unwrap();
        if !driver.arena_registered() {
            return;
        }
        let (base, bytes) = ours.arena();
        assert_eq!(driver.fixed_index(base, bytes), Some(0));
        assert_eq!(driver.fixed_index(base, bytes + 1), None);
        assert_eq!(driver.fixed_index(base.wrapping_sub(1), 1), None);
        assert_eq!(driver.fixed_index(base.wrapping_add(bytes), 1), None);
        assert_eq!(driver.fixed_index(other.arena().0, 4096), None);
    }
}
