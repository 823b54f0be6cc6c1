//! A shard: the tasks of one thread, their timers, memory and requests.
//!
//! The executor decides nothing by itself: a driver asks it to deliver mail, to fire timers and to poll a
//! ready task. So the production driver can run it flat out and the simulator can choose every step from a
//! seed.
//!
//! A waker is a number (shard, task), never a pointer: cloning and dropping one is free, and a stale one can
//! at worst poll a task once too often. Task memory is reused by type, so a spawn does not allocate after
//! warm-up.

use std::{
    any::{Any, TypeId},
    cell::{Cell, RefCell},
    collections::{HashMap, VecDeque},
    future::Future,
    hash::{BuildHasherDefault, Hasher},
    pin::Pin,
    rc::Rc,
    sync::{
        Arc, Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, RawWaker, RawWakerVTable, Waker},
};

use crate::{
    Pool,
    completion::PendingRequests,
    mailbox::{Mailbox, Message, TASKS_MAX},
    mutants::{Mutant, active},
    shard,
    timers::{TimerId, Timers},
};

/// How often the loop of a driver comes round at least while something has a time limit.
pub const TURN_NS: u64 = 250_000_000;
/// What of the time between two turns may count as waited: twice that, for a busy machine. All beyond is a
/// gap.
pub const GAP_NS: u64 = 2 * TURN_NS;

/// Shards that may be alive at a time in a process.
const SHARDS_MAX: usize = 1024;

/// Mailboxes by shard id. They are never freed, so a waker may outlive its shard.
static MAILBOXES: [OnceLock<Arc<Mailbox>>; SHARDS_MAX] = [const { OnceLock::new() }; SHARDS_MAX];
static IDS_FREE: Mutex<(Vec<u32>, u32)> = Mutex::new((Vec::new(), 0));

/// Whether any shard of the process has an interrupter. Where none has, no task asks its shard.
static HAS_INTERRUPTERS: AtomicBool = AtomicBool::new(false);

/// Whether the task that is polled is to stop here.
pub(crate) fn is_interrupted() -> bool {
    let is_interrupted = |shard: &Shard| {
        let interrupter = shard.interrupter.borrow();
        interrupter.as_ref().is_some_and(|interrupter| interrupter())
    };
    // An interrupter is set on its shard's own thread.
    HAS_INTERRUPTERS.load(Ordering::Relaxed) && shard::with_current(is_interrupted)
}

/// A waker is a number: from the lowest bit the task, the shard's id, and the generation of its mailbox.
const TASK_BITS: u32 = TASKS_MAX.trailing_zeros();
const ID_BITS: u32 = SHARDS_MAX.trailing_zeros();
const GENERATION_MASK: u64 = u64::MAX >> (TASK_BITS + ID_BITS);
const _: () = assert!(TASKS_MAX.is_power_of_two() && SHARDS_MAX.is_power_of_two() && usize::BITS == 64);

fn take_id() -> u32 {
    let mut ids = IDS_FREE.lock().unwrap_or_else(PoisonError::into_inner);
    ids.0.pop().unwrap_or_else(|| {
        let id = ids.1;
        assert!((id as usize) < SHARDS_MAX, "more than {SHARDS_MAX} shards in one process");
        ids.1 += 1;
        id
    })
}

/// What a shard is made of.
pub struct ShardConfig {
    /// Its number among the shards of the process or world, from 0.
    pub index: usize,
    /// Bytes of the buffer arena.
    pub arena_bytes: usize,
    /// The virtual clock to follow; the machine's monotonic clock without one.
    pub clock: Option<Rc<Cell<u64>>>,
}

/// All shards of the process count from one moment, so that times may travel between them.
static START: OnceLock<u64> = OnceLock::new();

/// Nanoseconds by the machine's monotonic clock. Every request to a device is timed, and `Instant` takes
/// several times the instructions.
fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel, or its code in this process, writes one `timespec`.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    debug_assert_eq!(failed, 0, "every Linux has this clock");
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

enum Clock {
    /// Since when, by the machine's.
    Monotonic(u64),
    Virtual(Rc<Cell<u64>>),
}

/// A task's future in memory that can be used again by the next future of its type.
trait Task {
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()>;
    fn recycle(self: Pin<Box<Self>>, memory: &RefCell<TaskMemory>);
}

struct TaskCell<F> {
    future: Option<F>,
}

impl<F: Future<Output = ()> + 'static> TaskCell<F> {
    fn future(self: Pin<&mut Self>) -> Pin<&mut Option<F>> {
        // SAFETY: structural pinning: `future` is never moved out of a pinned cell, and `TaskCell` has no
        // `Drop`.
        unsafe { self.map_unchecked_mut(|cell| &mut cell.future) }
    }
}

impl<F: Future<Output = ()> + 'static> Task for TaskCell<F> {
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.future().as_pin_mut() {
            Some(future) => future.poll(cx),
            None => Poll::Ready(()),
        }
    }

    fn recycle(mut self: Pin<Box<Self>>, memory: &RefCell<TaskMemory>) {
        // A destructor may spawn: the memory is borrowed only afterwards.
        self.as_mut().future().set(None);
        memory.borrow_mut().cells::<F>().push(self);
    }
}

/// `TypeId`s are hashes already.
#[derive(Default)]
struct IdentityHasher(u64);

impl Hasher for IdentityHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(byte);
        }
    }
    fn write_u64(&mut self, value: u64) {
        self.0 ^= value;
    }
}

/// Free task cells by the type of their future.
#[derive(Default)]
struct TaskMemory {
    by_type: HashMap<TypeId, Box<dyn Any>, BuildHasherDefault<IdentityHasher>>,
}

type Cells<F> = Vec<Pin<Box<TaskCell<F>>>>;

impl TaskMemory {
    fn cells<F: Future<Output = ()> + 'static>(&mut self) -> &mut Cells<F> {
        self.by_type
            .entry(TypeId::of::<F>())
            .or_insert_with(|| Box::new(Cells::<F>::new()))
            .downcast_mut()
            .unwrap_or_else(|| unreachable!("keyed by the type"))
    }
}

#[derive(Default)]
struct Entry {
    /// Absent while it is polled, and when the entry is free.
    task: Option<Pin<Box<dyn Task>>>,
    /// In the ready queue.
    ready: bool,
    alive: bool,
    /// When the loop came round in which what it works on has come. A task has it of the one that starts it.
    arrived_at: u64,
}

/// The tasks of one thread. See the module.
pub struct Shard {
    id: u32,
    /// As in its wakers.
    generation: u64,
    index: usize,
    tasks: RefCell<Vec<Entry>>,
    tasks_free: RefCell<Vec<u32>>,
    tasks_alive: Cell<usize>,
    task_memory: RefCell<TaskMemory>,
    ready: RefCell<VecDeque<u32>>,
    timers: RefCell<Timers>,
    current_task: Cell<u32>,
    clock: Clock,
    /// Decides whether the shard is taken off its CPU at a point where it may be.
    interrupter: RefCell<Option<Rc<dyn Fn() -> bool>>>,
    /// When its driver's loop last came round.
    turned_at: Cell<u64>,
    /// Time in which that loop stood still, and which nothing has waited for.
    lost_ns: Cell<u64>,
    mailbox: Arc<Mailbox>,
    pool: Pool,
    pub(crate) slots: PendingRequests,
}

impl Shard {
    /// A shard without tasks.
    pub fn new(config: &ShardConfig) -> Rc<Self> {
        let id = take_id();
        let mailbox = Arc::clone(MAILBOXES[id as usize].get_or_init(Arc::default));
        mailbox.reset();
        let shard = Self {
            id,
            generation: mailbox.generation() & GENERATION_MASK,
            index: config.index,
            tasks: RefCell::default(),
            tasks_free: RefCell::default(),
            tasks_alive: Cell::default(),
            task_memory: RefCell::default(),
            ready: RefCell::default(),
            timers: RefCell::default(),
            current_task: Cell::new(u32::MAX),
            turned_at: Cell::default(),
            lost_ns: Cell::default(),
            clock: match &config.clock {
                Some(clock) => Clock::Virtual(Rc::clone(clock)),
                None => Clock::Monotonic(*START.get_or_init(monotonic_ns)),
            },
            interrupter: RefCell::default(),
            mailbox,
            pool: Pool::new(config.arena_bytes),
            slots: PendingRequests::new(),
        };
        shard.turned_at.set(shard.now());
        Rc::new(shard)
    }

    /// Has `interrupter` asked at every [`interruption`](shard::interruption) whether the task that is polled
    /// is to stop there. It is ready again at once: when it goes on is for the driver to decide.
    pub fn interrupt_by(&self, interrupter: impl Fn() -> bool + 'static) {
        *self.interrupter.borrow_mut() = Some(Rc::new(interrupter));
        HAS_INTERRUPTERS.store(true, Ordering::Relaxed);
    }

    /// Its number among the shards of the process or world.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The end that other threads may hold.
    pub fn handle(&self) -> ShardHandle {
        ShardHandle {
            index: self.index,
            generation: self.mailbox.generation(),
            mailbox: Arc::clone(&self.mailbox),
        }
    }

    /// Its mailbox, for the driver.
    pub fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// Its memory.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Nanoseconds since some fixed moment.
    pub fn now(&self) -> u64 {
        match &self.clock {
            Clock::Monotonic(start) => monotonic_ns().saturating_sub(*start),
            Clock::Virtual(now) => now.get(),
        }
    }

    /// Nanoseconds by the machine's monotonic clock: for a moment of which another process is to know.
    pub fn machine_now(&self) -> u64 {
        match &self.clock {
            Clock::Monotonic(_) => monotonic_ns(),
            Clock::Virtual(now) => now.get(),
        }
    }

    /// Nanoseconds that this shard was there to wait, since some fixed moment: [`Shard::now`] without the
    /// gaps that [`Shard::turn`] has found, and without the one that it will find. Timers and looks at
    /// requests go by it, so it never steps back. It means nothing on another shard.
    pub fn waited(&self) -> u64 {
        let now = match self.clock {
            // Between two turns, too: a task that is polled after a gap, in the same batch, must not be
            // charged with it.
            Clock::Monotonic(_) if !active(Mutant::StallCharged) => {
                self.now().min(self.turned_at.get().saturating_add(GAP_NS))
            }
            _ => self.now(),
        };
        now.saturating_sub(self.lost_ns.get())
    }

    /// The driver's loop comes round, with everything reaped that has completed. A gap since the last time is
    /// charged to no wait (C29): the process was stopped, its group frozen, its machine suspended, and what
    /// it waits for may have been, too, or has been ready for long. A driver that turns must do so every
    /// [`TURN_NS`] while something has a time limit.
    pub fn turn(&self) {
        let now = self.now();
        let gap = now.saturating_sub(self.turned_at.replace(now));
        if gap > GAP_NS && !active(Mutant::StallCharged) {
            self.lost_ns.set(self.lost_ns.get() + (gap - GAP_NS));
        }
    }

    /// What the task that is polled works on, and those that it starts, has come since the driver's loop last
    /// came round.
    pub fn note_arrival(&self) {
        if let Some(entry) = self.tasks.borrow_mut().get_mut(self.current_task.get() as usize) {
            entry.arrived_at = self.turned_at.get();
        }
    }

    /// Nanoseconds since then: what else has completed by that time is known. As long as it can be if nothing
    /// was noted.
    pub fn since_arrival(&self) -> u64 {
        let tasks = self.tasks.borrow();
        let arrived_at = tasks.get(self.current_task.get() as usize).map_or(0, |entry| entry.arrived_at);
        self.now().saturating_sub(arrived_at)
    }

    /// The driver's loop came round all the time until now: for a driver with a clock of its own, which
    /// jumps.
    pub fn has_turned(&self) {
        self.turned_at.set(self.now());
    }

    /// Starts a task.
    pub fn spawn<F: Future<Output = ()> + 'static>(&self, future: F) {
        let cell: Pin<Box<dyn Task>> = {
            let mut memory = self.task_memory.borrow_mut();
            if let Some(mut cell) = memory.cells::<F>().pop() {
                cell.as_mut().future().set(Some(future));
                cell
            } else {
                Box::pin(TaskCell { future: Some(future) })
            }
        };
        let mut tasks = self.tasks.borrow_mut();
        let index = self.tasks_free.borrow_mut().pop().unwrap_or_else(|| {
            assert!(tasks.len() < TASKS_MAX, "more than {TASKS_MAX} tasks on one shard");
            tasks.push(Entry::default());
            u32::try_from(tasks.len() - 1).unwrap_or_else(|_| unreachable!("below TASKS_MAX"))
        });
        let arrived_at = tasks.get(self.current_task.get() as usize).map_or(0, |entry| entry.arrived_at);
        tasks[index as usize] = Entry { task: Some(cell), ready: true, alive: true, arrived_at };
        self.tasks_alive.set(self.tasks_alive.get() + 1);
        self.ready.borrow_mut().push_back(index);
    }

    fn make_ready(&self, index: u32) {
        if let Some(entry) = self.tasks.borrow_mut().get_mut(index as usize)
            && entry.alive
            && !entry.ready
        {
            entry.ready = true;
            self.ready.borrow_mut().push_back(index);
        }
    }

    /// Tasks that have not ended.
    pub fn tasks_alive(&self) -> usize {
        self.tasks_alive.get()
    }

    /// Requests that their drivers have not completed.
    pub fn requests_in_flight(&self) -> usize {
        self.slots.in_flight()
    }

    /// Tasks that can be polled now.
    pub fn ready_count(&self) -> usize {
        self.ready.borrow().len()
    }

    /// Polls the ready task at `position` of the queue, 0 being the oldest. The shard must be the current
    /// one. Returns false if there is none.
    pub fn poll_ready(&self, position: usize) -> bool {
        let next = {
            let mut ready = self.ready.borrow_mut();
            if position == 0 { ready.pop_front() } else { ready.remove(position) }
        };
        let Some(index) = next else { return false };
        let task = {
            let entry = &mut self.tasks.borrow_mut()[index as usize];
            entry.ready = false;
            entry.task.take()
        };
        let Some(mut task) = task else {
            return true;
        };
        let outer = self.current_task.replace(index);
        let waker = self.waker(index);
        let polled = task.as_mut().poll(&mut Context::from_waker(&waker));
        self.current_task.set(outer);
        if polled.is_ready() {
            task.recycle(&self.task_memory);
            self.tasks.borrow_mut()[index as usize].alive = false;
            self.tasks_free.borrow_mut().push(index);
            self.tasks_alive.set(self.tasks_alive.get() - 1);
        } else {
            self.tasks.borrow_mut()[index as usize].task = Some(task);
        }
        true
    }

    /// Takes wakes and messages from other threads. The shard must be the current one.
    pub fn deliver_mail(&self) {
        self.mailbox.take_wakes(|index| self.make_ready(index));
        while let Some(message) = self.mailbox.take_message() {
            message();
        }
    }

    /// When, by [`Shard::now`], something is to be done although nothing happens: the next timer, or a look
    /// at a request that takes long. Later, if the loop stands still before.
    pub fn next_timer(&self) -> Option<u64> {
        let (timer, look) = (self.timers.borrow().next(), self.slots.next_look());
        let due = timer.into_iter().chain(look).min()?;
        Some(due.saturating_add(self.lost_ns.get()))
    }

    /// Makes tasks ready when their timers are due, and tells observers of requests that take long. The shard
    /// must be the current one.
    pub fn fire_timers(&self) {
        if self.timers.borrow().next().is_none() && self.slots.next_look().is_none() {
            return;
        }
        let waited = self.waited();
        while let Some(task) = self.fire_timer(waited) {
            self.make_ready(task);
        }
        self.slots.look(waited);
    }

    fn fire_timer(&self, waited: u64) -> Option<u32> {
        self.timers.borrow_mut().fire(waited)
    }

    /// Has the task that is being polled woken at `deadline`, by [`Shard::waited`].
    pub(crate) fn set_timer(&self, deadline: u64) -> TimerId {
        self.timers.borrow_mut().set(deadline, self.current_task.get())
    }

    /// No task waits for this timer any more.
    pub(crate) fn cancel_timer(&self, timer: TimerId) {
        self.timers.borrow_mut().cancel(timer);
    }

    /// Makes this the thread's current shard until the guard goes.
    pub fn enter(self: &Rc<Self>) -> shard::Entered {
        shard::enter(Rc::clone(self))
    }

    /// Drops every task, as a crash of the process would. The shard must be the current one.
    pub fn drop_tasks(&self) {
        // A task's destructor may wake or spawn others.
        loop {
            let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
            self.ready.borrow_mut().clear();
            self.tasks_free.borrow_mut().clear();
            if tasks.is_empty() {
                break;
            }
            drop(tasks);
        }
        self.tasks_alive.set(0);
        self.timers.borrow_mut().clear();
    }

    fn waker(&self, task: u32) -> Waker {
        let shard = self.generation << ID_BITS | u64::from(self.id);
        #[expect(clippy::cast_possible_truncation, reason = "usize has 64 bits")]
        let number = (shard << TASK_BITS | u64::from(task)) as usize;
        let data = std::ptr::without_provenance(number);
        // SAFETY: the functions of the table treat the data as a number, so every rule of `RawWaker` holds
        // trivially.
        unsafe { Waker::from_raw(RawWaker::new(data, &WAKER)) }
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        self.mailbox.reset();
        IDS_FREE.lock().unwrap_or_else(PoisonError::into_inner).0.push(self.id);
    }
}

static WAKER: RawWakerVTable = RawWakerVTable::new(|data| RawWaker::new(data, &WAKER), wake, wake, |_| ());

fn wake(data: *const ()) {
    let number = data.addr() as u64;
    let generation = number >> (TASK_BITS + ID_BITS);
    #[expect(clippy::cast_possible_truncation, reason = "fewer bits by the masks")]
    let (id, task) = ((number >> TASK_BITS) as u32 % SHARDS_MAX as u32, number as u32 % TASKS_MAX as u32);
    let local = shard::try_with_current(|shard| {
        if shard.id == id && shard.generation == generation {
            shard.make_ready(task);
        }
        shard.id == id
    });
    if local != Some(true)
        && let Some(mailbox) = MAILBOXES[id as usize].get()
        && mailbox.generation() & GENERATION_MASK == generation
    {
        mailbox.wake(task);
    }
}

/// A shard as other threads see it.
#[derive(Clone)]
pub struct ShardHandle {
    index: usize,
    generation: u64,
    mailbox: Arc<Mailbox>,
}

impl ShardHandle {
    /// Its number among the shards of the process or world.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Its mailbox.
    pub fn mailbox(&self) -> &Mailbox {
        &self.mailbox
    }

    /// Has `message` run there, soon; drops it if that shard is gone.
    pub fn send(&self, message: impl FnOnce() + Send + 'static) {
        let message: Message = Box::new(message);
        self.mailbox.send_to(self.generation, message);
    }

    /// Runs the future that `make` gives over there and waits for its value; an error if that shard is gone,
    /// or goes before the future ends.
    pub async fn call<F, T>(&self, make: impl FnOnce() -> F + Send + 'static) -> Result<T, ShardGone>
    where
        F: Future<Output = T> + 'static,
        T: Send + 'static,
    {
        let answer = Arc::new((Mutex::new(Call::Waits), crate::Signal::default()));
        // Goes with the message, and then with the task: whatever becomes of them, there is an answer.
        let promise = Promise(Arc::clone(&answer));
        self.send(move || {
            let future = make();
            shard::spawn(async move {
                let value = future.await;
                promise.settle(Call::Ended(value));
            });
        });
        let look = || match std::mem::replace(&mut *locked(&answer.0), Call::Waits) {
            Call::Waits => None,
            Call::Ended(value) => Some(Ok(value)),
            Call::Gone => Some(Err(ShardGone)),
        };
        answer.1.wait_for(look).await
    }
}

/// The shard that was called is gone, and nothing will come of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the shard has ended")]
pub struct ShardGone;

/// What became of a call.
enum Call<T> {
    Waits,
    Ended(T),
    Gone,
}

/// The called shard's end of a call.
struct Promise<T>(Arc<(Mutex<Call<T>>, crate::Signal)>);

impl<T> Promise<T> {
    fn settle(&self, outcome: Call<T>) {
        *locked(&self.0.0) = outcome;
        self.0.1.notify();
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        // If the value was taken already, nothing looks at this any more.
        if matches!(*locked(&self.0.0), Call::Waits) {
            self.settle(Call::Gone);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard() -> Rc<Shard> {
        Shard::new(&ShardConfig { index: 0, arena_bytes: 0, clock: None })
    }

    #[test]
    fn a_message_for_an_ended_shard_never_runs_on_its_successor() {
        let ran = Arc::new(Mutex::new(0));
        let mut stale = Vec::new();
        // Other tests take ids too, so give the reuse some chances.
        for _ in 0..64 {
            let shard = shard();
            let _entered = shard.enter();
            for handle in &stale {
                let ran = Arc::clone(&ran);
                ShardHandle::send(handle, move || *ran.lock().unwrap() += 1);
            }
            shard.deliver_mail();
            stale.push(shard.handle());
        }
        assert_eq!(*ran.lock().unwrap(), 0);
    }

    #[test]
    fn a_task_has_the_arrival_of_the_one_that_starts_it() {
        let clock = Rc::new(Cell::new(100));
        let shard = Shard::new(&ShardConfig { index: 0, arena_bytes: 0, clock: Some(Rc::clone(&clock)) });
        let _entered = shard.enter();
        let ages = Rc::<RefCell<Vec<u64>>>::default();
        let told = Rc::clone(&ages);
        shard.spawn(async move {
            let age = move || told.borrow_mut().push(shard::with_current(Shard::since_arrival));
            age();
            shard::note_arrival();
            age();
            shard::yield_now().await;
            let of_other = age.clone();
            shard::spawn(async move {
                of_other();
                shard::note_arrival();
                of_other();
            });
            shard::yield_now().await;
            age();
        });
        for now in [120, 130, 140, 150] {
            clock.set(now);
            shard.poll_ready(0);
            shard.turn();
        }
        // The loop came round at 100, and then after each poll.
        assert_eq!(*ages.borrow(), [120, 20, 40, 10, 50]);
    }

    #[test]
    fn a_waker_of_an_ended_shard_wakes_no_task_of_its_successor() {
        let mut stale = Vec::new();
        for _ in 0..64 {
            let shard = shard();
            let _entered = shard.enter();
            shard.spawn(std::future::pending());
            assert!(shard.poll_ready(0));
            stale.iter().for_each(Waker::wake_by_ref);
            std::thread::scope(|scope| scope.spawn(|| stale.iter().for_each(Waker::wake_by_ref)).join())
                .unwrap();
            shard.deliver_mail();
            assert_eq!(shard.ready_count(), 0);
            let own = shard.waker(0);
            std::thread::scope(|scope| scope.spawn(|| own.wake_by_ref()).join()).unwrap();
            stale.push(own);
            shard.deliver_mail();
            assert_eq!(shard.ready_count(), 1, "its own does");
        }
    }

    #[test]
    fn a_call_of_a_shard_that_is_gone_or_goes_ends_with_an_error() {
        use std::{future::pending, task::ready};
        let called = |call: &mut Pin<Box<dyn Future<Output = Result<u8, ShardGone>>>>| {
            let mut cx = Context::from_waker(Waker::noop());
            Poll::Ready(ready!(call.as_mut().poll(&mut cx)))
        };
        let caller = shard();
        let _entered = caller.enter();
        let other = shard();
        let handle = other.handle();
        let make = |handle: ShardHandle| -> Pin<Box<dyn Future<Output = Result<u8, ShardGone>>>> {
            Box::pin(async move { handle.call(pending).await })
        };
        let (mut begun, mut queued) = (make(handle.clone()), make(handle.clone()));
        assert!(called(&mut begun).is_pending());
        {
            let _entered = other.enter();
            other.deliver_mail();
            other.poll_ready(0);
        }
        assert!(called(&mut queued).is_pending());
        {
            let _entered = other.enter();
            other.drop_tasks();
        }
        assert_eq!(called(&mut begun), Poll::Ready(Err(ShardGone)), "its task was dropped");
        drop(other);
        assert_eq!(called(&mut queued), Poll::Ready(Err(ShardGone)), "its message was dropped");
        assert_eq!(called(&mut make(handle)), Poll::Ready(Err(ShardGone)), "there was no shard to call");
    }

    #[test]
    fn a_wait_that_ends_early_leaves_no_timer() {
        let shard = shard();
        let _entered = shard.enter();
        shard.spawn(async {
            shard::timeout(3_600_000_000_000, shard::yield_now()).await;
        });
        assert!(shard.poll_ready(0));
        assert!(shard.next_timer().is_some());
        while shard.poll_ready(0) {}
        assert_eq!((shard.tasks_alive(), shard.next_timer()), (0, None));
    }

    #[test]
    fn a_destructor_of_an_ended_task_may_spawn() {
        struct Spawns;
        impl Drop for Spawns {
            fn drop(&mut self) {
                shard::spawn(async {});
            }
        }
        struct Ends(#[allow(dead_code, reason = "it is dropped")] Spawns);
        impl Future for Ends {
            type Output = ();
            fn poll(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
                Poll::Ready(())
            }
        }
        let shard = shard();
        let _entered = shard.enter();
        shard.spawn(Ends(Spawns));
        while shard.poll_ready(0) {}
        assert_eq!(shard.tasks_alive(), 0);
    }
}
