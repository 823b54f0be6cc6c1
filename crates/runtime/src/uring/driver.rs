//! One shard's rings: it submits operations, reaps their completions and sleeps when there is nothing to do.
//!
//! Almost everything is on the main ring, which alone a shard sleeps on. What can't be there is on a ring
//! beside it ([`super::side`]), made at its first use; [`super::pause`] says how the loop waits for both.
//!
//! Every operation belongs to a slot of the shard (see [`crate::completion`]); the slot's number is the
//! kernel's user data. So the slot, and the memory in it, lives until the kernel's completion; the driver
//! adds what it needs to go on with a short transfer. Nothing here frees memory of a request (C16): at the
//! end, [`Driver::drain`] waits for the kernel, and what a hanging device keeps beyond that is never freed.

use std::{
    cell::{Cell, OnceCell, RefCell},
    os::fd::{AsRawFd, OwnedFd},
    rc::Rc,
    sync::Arc,
};

use io_uring::{IoUring, cqueue, opcode, squeue, types};

use crate::{
    Completion, DeviceError, DeviceErrorKind, Pool, Shard, Submission,
    completion::Payload,
    executor::TURN_NS,
    mutants::{Mutant, active},
    shard,
    uring::{
        RunError,
        operation::{File, Operation, POLLIN, Step},
        pause::{DOZE_NS, Pause, pause},
        ring::Ring,
        side::{Carrier, Side},
        spin::Spin,
    },
};

/// Submissions that the ring holds before it must enter the kernel.
const SUBMISSIONS: u32 = 512;
/// Completions that the ring holds before the kernel keeps them in a list of its own.
const COMPLETIONS: u32 = 4096;
/// How long a drain waits before it cancels once more what may have been submitted since.
const DRAIN_NS: u64 = 100_000_000;
/// The same while a ring beside the main one has requests, which can't be cancelled and don't end the wait.
const DRAIN_SIDE_NS: u64 = 1_000_000;
/// How long a drain waits in all: a device that hangs must not keep the process.
const DRAIN_NS_MAX: u64 = 5_000_000_000;

/// User data that is no slot.
const KICK: u64 = 1 << 32;
const CANCEL: u64 = 2 << 32;
const WATCH: u64 = 3 << 32;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Driver>>> = const { RefCell::new(None) };
}

/// See the module.
pub(super) struct Driver {
    main: Ring<squeue::Entry, cqueue::Entry>,
    large: OnceCell<Side>,
    polled: OnceCell<Side>,
    /// When the polled ring last got or completed a request.
    polled_at: Cell<u64>,
    /// By slot.
    operations: RefCell<Vec<Option<Operation>>>,
    reaped: RefCell<Vec<cqueue::Entry>>,
    kick: Arc<OwnedFd>,
    kick_armed: Cell<bool>,
    stopping: Cell<bool>,
    draining: Cell<bool>,
    /// Requests that devices have not answered.
    at_devices: Cell<usize>,
    spin: RefCell<Spin>,
}

impl Driver {
    /// A ring for `pool`'s shard on this thread.
    pub(super) fn new(pool: &Pool, spin: Spin) -> Result<Rc<Self>, RunError> {
        let ring = set_up()?;
        let step = |what| move |source| RunError::Setup { what, source };
        let flags = rustix::event::EventfdFlags::CLOEXEC;
        let kick = rustix::event::eventfd(0, flags).map_err(|e| step("making an eventfd")(e.into()))?;
        Ok(Rc::new(Self {
            main: Ring::new(ring, pool),
            large: OnceCell::new(),
            polled: OnceCell::new(),
            polled_at: Cell::new(0),
            operations: RefCell::default(),
            reaped: RefCell::default(),
            kick: Arc::new(kick),
            kick_armed: Cell::new(false),
            stopping: Cell::new(false),
            draining: Cell::new(false),
            at_devices: Cell::new(0),
            spin: RefCell::new(spin),
        }))
    }

    /// The driver of this thread.
    ///
    /// # Panics
    /// On a thread that [`super::run`] did not start.
    pub(super) fn current() -> Rc<Self> {
        Self::try_current().expect("this runs only on a shard that io_uring drives")
    }

    /// The driver of this thread, if it has one.
    pub(super) fn try_current() -> Option<Rc<Self>> {
        CURRENT.with(|current| current.borrow().clone())
    }

    /// How often it has entered the kernel to submit, to collect or to sleep.
    pub(super) fn kernel_entries(&self) -> u64 {
        self.main.entries.get() + self.sides().map(|side| side.ring.entries.get()).sum::<u64>()
    }

    /// Makes it the thread's driver, or none.
    pub(super) fn set_current(driver: Option<Rc<Self>>) {
        let outer = CURRENT.with(|current| std::mem::replace(&mut *current.borrow_mut(), driver));
        drop(outer);
    }

    /// Whether the kernel takes the shard's arena.
    pub(super) fn arena_registered(&self) -> bool {
        self.main.arena.is_registered()
    }

    /// What the requests under way go to.
    pub(super) fn asked(&self) -> Vec<Arc<File>> {
        let operations = self.operations.borrow();
        operations.iter().flatten().map(|operation| operation.descriptor.shared_file()).collect()
    }

    /// Has [`Driver::run`] return soon.
    pub(super) fn stop(&self) {
        self.stopping.set(true);
    }

    // --- submitting ---

    /// Starts an operation on memory that `payload` keeps.
    pub(super) fn start(&self, payload: Payload, operation: Operation) -> Submission {
        if let Err(error) = self.provide(operation.carrier()) {
            let buffer = if let Payload::Buffer(buffer) = payload { Some(buffer) } else { None };
            return Submission::done(Err(error), buffer);
        }
        let (submission, completion) = Submission::pending(payload);
        self.submit_operation(completion.into_raw(), operation);
        submission
    }

    /// Makes the ring if there is none yet. If the kernel refuses, what it says.
    pub(super) fn provide(&self, carrier: Carrier) -> Result<(), DeviceError> {
        let (side, is_polled) = match carrier {
            Carrier::Main => return Ok(()),
            Carrier::Large => (&self.large, false),
            Carrier::Polled => (&self.polled, true),
        };
        if side.get().is_none() {
            let made = shard::with_current(|shard| Side::new(is_polled, shard.pool()));
            let made = made.map_err(|e| DeviceError::from_errno(e.raw_os_error().unwrap_or(libc::EIO)))?;
            let _ = side.set(made);
        }
        Ok(())
    }

    /// A ring beside the main one, if it is there.
    fn side(&self, carrier: Carrier) -> Option<&Side> {
        match carrier {
            Carrier::Main => None,
            Carrier::Large => self.large.get(),
            Carrier::Polled => self.polled.get(),
        }
    }

    /// The rings beside the main one that are there.
    fn sides(&self) -> impl Iterator<Item = &Side> {
        self.large.get().into_iter().chain(self.polled.get())
    }

    fn submit_operation(&self, slot: u32, operation: Operation) {
        match self.side(operation.carrier()) {
            None => self.main.push(operation.entry(slot)),
            Some(side) => {
                side.push(operation.large_entry(slot));
                if operation.carrier() == Carrier::Polled {
                    self.polled_at.set(shard::with_current(Shard::now));
                }
            }
        }
        if operation.is_for_device() {
            self.at_devices.set(self.at_devices.get() + 1);
        }
        let mut operations = self.operations.borrow_mut();
        if operations.len() <= slot as usize {
            operations.resize_with(slot as usize + 1, || None);
        }
        operations[slot as usize] = Some(operation);
    }

    /// The index in this ring's table of buffers for `length` bytes at `address`, see [`Ring::fixed_index`].
    pub(super) fn fixed_index(&self, carrier: Carrier, address: *const u8, length: usize) -> Option<u16> {
        match self.side(carrier) {
            None => self.main.fixed_index(address, length),
            Some(side) => side.ring.fixed_index(address, length),
        }
    }

    /// Asks the kernel to end what `slot` waits for. The completion still comes.
    pub(super) fn cancel(&self, slot: u32) {
        self.main.push(opcode::AsyncCancel::new(u64::from(slot)).build().user_data(CANCEL));
    }

    /// Enters the kernel if there is anything to submit or to collect there.
    fn submit(&self) {
        self.main.submit(false);
        self.sides().for_each(Side::submit);
    }

    /// Handles every completion that has come, the ones included that the kernel has still to be asked for.
    fn collect(&self) {
        self.main.collect();
        self.sides().for_each(Side::submit);
        self.reap();
    }

    // --- completing ---

    /// Handles every completion that has come.
    fn reap(&self) {
        let mut reaped = self.reaped.take();
        if let Some(polled) = self.polled.get() {
            polled.reap(&mut reaped);
            if !reaped.is_empty() {
                self.polled_at.set(shard::with_current(Shard::now));
            }
        }
        if let Some(large) = self.large.get() {
            large.reap(&mut reaped);
        }
        self.main.reap(&mut reaped);
        for completion in reaped.drain(..) {
            match completion.user_data() {
                KICK => {
                    if !cqueue::more(completion.flags()) {
                        self.kick_armed.set(false);
                    }
                }
                WATCH => {
                    if let Some(large) = self.large.get() {
                        large.watched.set(false);
                    }
                }
                CANCEL => {}
                slot => self.complete(narrow(slot), completion.result()),
            }
        }
        self.reaped.replace(reaped);
    }

    fn complete(&self, slot: u32, result: i32) {
        let Some(mut operation) = self.operations.borrow_mut()[slot as usize].take() else {
            unreachable!("the kernel completes an operation once");
        };
        if operation.is_for_device() {
            self.at_devices.set(self.at_devices.get() - 1);
        }
        let result = match operation.advance(result, self.draining.get()) {
            Step::Again => {
                self.submit_operation(slot, operation);
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

    /// Registers a file with one of the rings, if that is there, and returns its index, unless the table is
    /// full or the kernel refuses.
    pub(super) fn register(&self, carrier: Carrier, fd: &OwnedFd) -> Option<u32> {
        match carrier {
            Carrier::Main => self.main.register(fd),
            _ => self.side(carrier)?.ring.register(fd),
        }
    }

    /// Gives a registered index back, see [`Ring::unregister`].
    pub(super) fn unregister(&self, carrier: Carrier, index: u32) {
        match self.side(carrier) {
            None => self.main.unregister(index),
            Some(side) => side.ring.unregister(index),
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
            // The entry that sleeps submits too, and so does the next turn.
            match self.next_pause(shard) {
                Pause::Work => {
                    self.submit();
                    self.reap();
                }
                Pause::Poll => self.main.submit(false),
                Pause::Doze => self.sleep(shard, Some(DOZE_NS)),
                Pause::Sleep => self.rest(shard),
            }
        }
    }

    fn next_pause(&self, shard: &Shard) -> Pause {
        let polling = self.polled.get().is_some_and(Side::is_busy);
        let quiet_ns = if polling { shard.now().saturating_sub(self.polled_at.get()) } else { 0 };
        pause(shard.ready_count() > 0, polling, quiet_ns)
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

    /// Sleeps until something happens, if nothing does while it looks around before, for as long as [`Spin`]
    /// says.
    fn rest(&self, shard: &Shard) {
        let look = self.spin.borrow_mut().look(self.at_devices.get() > 0);
        if let Some(look) = look {
            self.submit();
            self.reap();
            if shard.ready_count() > 0 {
                return;
            }
            let begun = shard.now();
            let found = self.look_around(shard, begun.saturating_add(look.ns));
            self.spin.borrow_mut().learn(look, found, shard.now() - begun);
            if found {
                return;
            }
        }
        self.sleep(shard, None);
    }

    /// Looks for work until `end`, without a system call, or until a timer is due. Returns whether something
    /// came.
    fn look_around(&self, shard: &Shard, end: u64) -> bool {
        let end = shard.next_timer().map_or(end, |timer| timer.min(end));
        loop {
            for _ in 0..16 {
                if shard.mailbox().has_mail() || self.kernel_has_news() {
                    return true;
                }
                std::hint::spin_loop();
            }
            if shard.now() >= end {
                return false;
            }
        }
    }

    fn kernel_has_news(&self) -> bool {
        self.main.has_news() || self.sides().any(|side| side.ring.has_news())
    }

    /// Submits what there is, and sleeps until something happens, at most for so many nanoseconds. Enters the
    /// kernel once.
    fn sleep(&self, shard: &Shard, at_most: Option<u64>) {
        if !shard.mailbox().fall_asleep() {
            self.submit();
            return;
        }
        self.sides().for_each(Side::submit);
        // The kernel may have ended the poll since the turn armed it: that it did was among what was reaped.
        self.arm_kick();
        self.arm_watch();
        // A stall within a long sleep would not be seen.
        let timer = shard.next_timer().map(|timer| timer.saturating_sub(shard.now()).min(TURN_NS));
        // What a ring beside this one could not submit, nothing there wakes for.
        let untaken = self.sides().any(|side| side.ring.has_untaken()).then_some(DOZE_NS);
        let timeout = timer.into_iter().chain(at_most).chain(untaken).min();
        if timeout == Some(0) {
            self.submit();
        } else {
            self.main.wait(timeout);
        }
        shard.mailbox().wake_up();
        self.reap();
    }

    /// Has a kick complete something in this ring, so that it ends a wait.
    fn arm_kick(&self) {
        if !self.kick_armed.replace(true) {
            let poll = opcode::PollAdd::new(types::Fd(self.kick.as_raw_fd()), POLLIN).multi(true);
            self.main.push(poll.build().user_data(KICK));
        }
    }

    /// Has completions of the unpolled ring beside the main one end a sleep on that. A poll that is armed
    /// when they are there already ends at once.
    fn arm_watch(&self) {
        if let Some(large) = self.large.get()
            && large.is_busy()
            && !large.watched.replace(true)
        {
            let poll = opcode::PollAdd::new(types::Fd(large.ring.as_raw_fd()), POLLIN);
            self.main.push(poll.build().user_data(WATCH));
        }
    }

    /// Drops the tasks of `shard`, then cancels what is in flight and waits until the kernel is done with all
    /// of it: afterwards, and only then, may the slots and the pool go (C16). False if a device keeps
    /// requests for too long; then slots, pool and ring must stay for as long as the process.
    pub(super) fn drain(&self, shard: &Shard) -> bool {
        self.draining.set(true);
        let started = shard.waited();
        loop {
            shard.drop_tasks();
            // What it stands still for meanwhile isn't waited (C29).
            shard.turn();
            if shard.requests_in_flight() == 0 && !self.kick_armed.get() {
                return true;
            }
            if shard.waited() - started > DRAIN_NS_MAX {
                return false;
            }
            let all = opcode::AsyncCancel2::new(types::CancelBuilder::any()).build().user_data(CANCEL);
            self.main.push(all);
            self.submit();
            self.reap();
            if shard.requests_in_flight() > 0 || self.kick_armed.get() {
                let besides = self.sides().any(Side::is_busy);
                self.main.wait(Some(if besides { DRAIN_SIDE_NS } else { DRAIN_NS }));
                self.reap();
            }
        }
    }
}

fn narrow(slot: u64) -> u32 {
    u32::try_from(slot).unwrap_or_else(|_| unreachable!("user data is a slot or one of ours"))
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
    use std::{io, time::Duration};

    use super::*;
    use crate::uring::operation::{Descriptor, Kind};

    #[test]
    fn entries_that_do_not_fit_wait_in_order_and_reach_the_kernel() {
        let driver = Driver::new(&Pool::new(0), Spin::new(0, 1)).unwrap();
        let count = 3 * u64::from(SUBMISSIONS) + 5;
        // As if the kernel had refused to take any for a while.
        for i in 0..count {
            driver.main.backlog.borrow_mut().push_back(opcode::Nop::new().build().user_data(i));
        }
        driver.main.push(opcode::Nop::new().build().user_data(count));
        let mut seen = Vec::new();
        while seen.len() <= usize::try_from(count).unwrap() {
            driver.submit();
            let mut reaped = Vec::new();
            driver.main.reap(&mut reaped);
            seen.extend(reaped.iter().map(cqueue::Entry::user_data));
        }
        assert_eq!(seen, (0..=count).collect::<Vec<_>>());
        assert!(driver.main.backlog.borrow().is_empty());
    }

    #[test]
    fn a_shard_whose_poll_has_ended_is_woken_all_the_same() {
        const LIMIT_NS: u64 = 30_000_000_000;
        let shard = Shard::new(&crate::ShardConfig { index: 0, arena_bytes: 0, clock: None });
        let _entered = shard.enter();
        let driver = Driver::new(shard.pool(), Spin::new(0, 1)).unwrap();
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
        driver.sleep(&shard, None);
        assert!(shard.now() - before < LIMIT_NS / 2, "the message did not wake the shard");
        sender.join().unwrap();
        assert!(driver.drain(&shard));
    }

    /// A shard with a driver, until `test` ends.
    fn with_driver(test: impl FnOnce(&Rc<Shard>, &Rc<Driver>)) {
        with_driver_that_spins(Spin::new(0, 1), test);
    }

    fn with_driver_that_spins(spin: Spin, test: impl FnOnce(&Rc<Shard>, &Rc<Driver>)) {
        let shard = Shard::new(&crate::ShardConfig { index: 0, arena_bytes: 1 << 20, clock: None });
        let _entered = shard.enter();
        let driver = Driver::new(shard.pool(), spin).unwrap();
        Driver::set_current(Some(Rc::clone(&driver)));
        driver.connect_kick(&shard);
        test(&shard, &driver);
        assert!(driver.drain(&shard));
        Driver::set_current(None);
    }

    /// Stands still when it is dropped: its clock goes on.
    struct StandsStill(Rc<Cell<u64>>);

    impl Drop for StandsStill {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 2 * DRAIN_NS_MAX);
        }
    }

    #[test]
    fn a_drain_does_not_give_up_because_the_process_stood_still() {
        let clock = Rc::<Cell<u64>>::default();
        let config = crate::ShardConfig { index: 0, arena_bytes: 0, clock: Some(Rc::clone(&clock)) };
        let shard = Shard::new(&config);
        let _entered = shard.enter();
        let driver = Driver::new(shard.pool(), Spin::new(0, 1)).unwrap();
        Driver::set_current(Some(Rc::clone(&driver)));
        let (near, _far) = std::os::unix::net::UnixStream::pair().unwrap();
        let stream = crate::uring::Connection::new(near).attach().unwrap();
        shard.spawn(async move {
            let _stands_still = StandsStill(clock);
            // A request that only the drain ends.
            let receive = crate::Stream::receive(&*stream, crate::shard::buffer(1));
            receive.await;
        });
        driver.turn(&shard);
        driver.submit();
        assert_eq!(shard.requests_in_flight(), 1);
        assert!(driver.drain(&shard));
        Driver::set_current(None);
    }

    /// Reads 4096 bytes by way of a ring, which come after 100 ms, and stops the shard then. How long its
    /// thread was busy, in nanoseconds.
    fn busy_until_a_read_comes(shard: &Rc<Shard>, driver: &Rc<Driver>, carrier: Carrier) -> u64 {
        let (end, other) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let file = File::carried(end, Vec::new(), carrier, None);
        let there = Rc::clone(driver);
        let got = Rc::new(Cell::new(false));
        let seen = Rc::clone(&got);
        shard.spawn(async move {
            let descriptor = Descriptor::registered(file);
            let buffer = shard::buffer(4096);
            let read = Operation::new(Kind::Read, &descriptor)
                .range(0, 0, 512)
                .memory(buffer.as_ptr(), buffer.len());
            let read = there.start(Payload::Buffer(buffer), read).await;
            seen.set(read.buffer.unwrap().iter().all(|&byte| byte == 7));
            there.stop();
        });
        let writer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            rustix::io::write(&other, &[7; 4096]).unwrap();
        });
        // Ends the test if nothing wakes the shard.
        let (done, watched) = std::sync::mpsc::channel::<()>();
        let handle = shard.handle();
        let watcher = std::thread::spawn(move || {
            let in_time = watched.recv_timeout(Duration::from_mins(1)).is_ok();
            if !in_time {
                handle.send(|| Driver::current().stop());
            }
            in_time
        });
        let before = thread_time();
        driver.run(shard);
        let _ = done.send(());
        writer.join().unwrap();
        assert!(watcher.join().unwrap(), "the read did not wake the shard");
        assert!(got.get(), "other bytes");
        thread_time() - before
    }

    fn thread_time() -> u64 {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap()
    }

    /// Has a shard make `count` requests, one after the other, each of which is answered `after` it was made.
    /// How often the shard entered the kernel, and how long its thread was busy, in nanoseconds.
    fn one_at_a_time(spin: Spin, kind: fn() -> Kind, count: u64, after: Duration) -> (u64, u64) {
        let (end, other) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
        let (ask, asked) = std::sync::mpsc::channel::<()>();
        let device = std::thread::spawn(move || {
            for () in asked {
                std::thread::sleep(after);
                rustix::io::write(&other, &[7; 512]).unwrap();
            }
        });
        let mut came = (0, 0);
        with_driver_that_spins(spin, |shard, driver| {
            let there = Rc::clone(driver);
            shard.spawn(async move {
                let descriptor = Descriptor::registered(File::new(end));
                for _ in 0..count {
                    let buffer = shard::buffer(512);
                    let request = Operation::new(kind(), &descriptor)
                        .range(0, 0, 512)
                        .memory(buffer.as_ptr(), buffer.len());
                    let request = there.start(Payload::Buffer(buffer), request);
                    ask.send(()).unwrap();
                    request.await.result.unwrap();
                }
                there.stop();
            });
            let busy = thread_time();
            driver.run(shard);
            came = (driver.kernel_entries(), thread_time() - busy);
        });
        device.join().unwrap();
        came
    }

    /// The one that sleeps also submits.
    #[test]
    fn a_request_takes_one_entry_into_the_kernel_where_the_shard_does_not_look_around() {
        for after in [Duration::ZERO, Duration::from_millis(1)] {
            let (entries, _) = one_at_a_time(Spin::new(0, 1), || Kind::Read, 100, after);
            assert_eq!(entries, 100, "answers after {after:?}");
        }
    }

    /// One submits, one collects, and none sleeps.
    #[test]
    fn a_request_takes_two_entries_into_the_kernel_where_looking_around_finds_its_answer() {
        const FOR_EVER_NS: u64 = 60_000_000_000;
        let after = Duration::from_millis(5);
        let (entries, _) = one_at_a_time(Spin::new(FOR_EVER_NS, 1), || Kind::Read, 100, after);
        assert!(entries <= 200, "{entries} entries");
        // Fewer only where this thread stood still until the answer had come.
        assert!(entries > 150, "{entries} entries: it did not look around");
    }

    #[test]
    fn a_shard_does_not_go_on_looking_for_answers_that_come_late() {
        let (entries, _) = one_at_a_time(Spin::new(30_000, 1), || Kind::Read, 200, Duration::from_millis(5));
        assert!((200..240).contains(&entries), "{entries} entries");
    }

    #[test]
    fn a_shard_alone_sleeps_at_once_while_only_a_client_may_come() {
        const FOR_EVER_NS: u64 = 60_000_000_000;
        let readable = || Kind::Readable { exclusive: false };
        let (entries, busy) =
            one_at_a_time(Spin::new(FOR_EVER_NS, 1), readable, 1, Duration::from_millis(100));
        assert_eq!(entries, 1);
        assert!(busy < 50_000_000, "{busy} ns");
    }

    #[test]
    fn a_shard_sleeps_until_the_ring_of_large_entries_completes() {
        with_driver(|shard, driver| {
            for _ in 0..3 {
                driver.stopping.set(false);
                let busy = busy_until_a_read_comes(shard, driver, Carrier::Large);
                assert!(busy < 50_000_000, "{busy} ns");
                assert!(!driver.large.get().unwrap().is_busy());
            }
        });
    }

    #[test]
    fn a_shard_with_a_polled_ring_sleeps_while_nothing_polled_is_under_way() {
        with_driver(|shard, driver| {
            driver.provide(Carrier::Polled).unwrap();
            let busy = busy_until_a_read_comes(shard, driver, Carrier::Main);
            assert!(busy < 50_000_000, "{busy} ns");
        });
    }

    /// Of a ring with a request that never ends, as far as the loop can see.
    #[test]
    fn timers_and_mail_go_on_while_polled_requests_are_under_way() {
        with_driver(|shard, driver| {
            driver.provide(Carrier::Polled).unwrap();
            driver.polled.get().unwrap().pretend(1);
            for quiet_ns in [0, u64::MAX / 2] {
                driver.stopping.set(false);
                driver.polled_at.set(shard.now().saturating_sub(quiet_ns));
                let there = Rc::clone(driver);
                let handle = shard.handle();
                shard.spawn(async move {
                    shard::sleep(1_000_000).await;
                    std::thread::spawn(move || handle.send(|| Driver::current().stop()));
                    shard::sleep(20_000_000_000).await;
                    unreachable!("{}", there.stopping.get());
                });
                driver.run(shard);
                shard.drop_tasks();
            }
            driver.polled.get().unwrap().pretend(0);
        });
    }

    #[test]
    fn a_polled_ring_completes_what_it_is_given() {
        with_driver(|_, driver| {
            driver.provide(Carrier::Polled).unwrap();
            let polled = driver.polled.get().unwrap();
            polled.push(opcode::Nop::new().build().user_data(CANCEL).into());
            assert!(polled.is_busy());
            driver.collect();
            assert!(!polled.is_busy());
        });
    }

    /// Whether a file of this name is registered with a ring, as the kernel tells.
    fn has_registered(ring: std::os::fd::RawFd, name: &str) -> bool {
        std::fs::read_to_string(format!("/proc/self/fdinfo/{ring}")).unwrap().contains(name)
    }

    /// C21: a ring keeps them until its last request is over, whatever becomes of the process.
    #[test]
    fn claims_are_kept_by_each_ring_that_carries_requests_to_their_file() {
        with_driver(|_, driver| {
            let folder = tempfile::tempdir().unwrap();
            let file = |name: &str| OwnedFd::from(std::fs::File::create(folder.path().join(name)).unwrap());
            let claims = vec![file("first-claim"), file("other-claim")];
            let opened = crate::uring::operation::File::carried(file("own"), claims, Carrier::Large, None);
            let descriptor = crate::uring::operation::Descriptor::registered(opened);
            let rings = [driver.main.as_raw_fd(), driver.large.get().unwrap().ring.as_raw_fd()];
            let all_have = |name| rings.iter().all(|ring| has_registered(*ring, name));
            assert!(all_have("first-claim") && all_have("other-claim"));
            drop(descriptor);
            assert!(!rings.iter().any(|ring| has_registered(*ring, "claim")));
        });
    }

    /// A receive is under way for longer than it may be before the shard looks again, and its message has
    /// come meanwhile.
    fn times_out_although_it_has_completed() -> bool {
        let shard = Shard::new(&crate::ShardConfig { index: 0, arena_bytes: 0, clock: None });
        let _entered = shard.enter();
        let driver = Driver::new(shard.pool(), Spin::new(0, 1)).unwrap();
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
        let driver = Driver::new(&pool, Spin::new(0, 1)).unwrap();
        if !driver.arena_registered() {
            return;
        }
        let (base, bytes) = pool.arena();
        assert!(driver.main.arena.has(0) && !(1..16).any(|part| driver.main.arena.has(part)));
        let last = base.wrapping_add(bytes - 4096);
        assert_eq!(driver.fixed_index(Carrier::Main, last, 4096), Some(15));
        assert!(driver.main.arena.has(15) && !driver.main.arena.has(14));
        let boundary = base.wrapping_add((4 << 20) - 4096);
        assert_eq!(driver.fixed_index(Carrier::Main, boundary, 8192), None, "in two parts");
    }

    #[test]
    fn only_memory_of_the_own_arena_has_a_registered_index() {
        let (ours, other) = (Pool::new(1 << 20), Pool::new(1 << 20));
        let driver = Driver::new(&ours, Spin::new(0, 1)).unwrap();
        if !driver.arena_registered() {
            return;
        }
        let (base, bytes) = ours.arena();
        assert_eq!(driver.fixed_index(Carrier::Main, base, bytes), Some(0));
        assert_eq!(driver.fixed_index(Carrier::Main, base, bytes + 1), None);
        assert_eq!(driver.fixed_index(Carrier::Main, base.wrapping_sub(1), 1), None);
        assert_eq!(driver.fixed_index(Carrier::Main, base.wrapping_add(bytes), 1), None);
        assert_eq!(driver.fixed_index(Carrier::Main, other.arena().0, 4096), None);
    }
}
