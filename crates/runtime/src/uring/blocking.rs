//! Work that would keep a shard: what blocks, such as opening a device, and what computes for long.
//!
//! Each kind has few threads and a queue. Threads are made when there is more to do than they can take on,
//! and end when there was nothing for a while. Where the system gives no thread, work waits until it does: a
//! peer that can have work made must not be able to end the process by it.

use std::{
    any::Any,
    collections::VecDeque,
    mem::MaybeUninit,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

use crate::{Signal, shard};

/// How long a thread without work stays.
const IDLE: Duration = Duration::from_secs(10);
/// How often what waits looks whether a thread can be had.
const LOOK_NANOSECONDS: u64 = 100_000_000;
/// Threads for work that blocks.
const BLOCKING_THREADS: usize = 16;
/// Threads for files of other programs. Each may keep one for ever, and no other work waits for that.
pub(super) const SENT_FILE_THREADS: usize = 8;
/// Files of other programs that may wait to be closed.
const UNCLOSED_MAX: usize = 64;
/// Threads for work that computes.
const COMPUTING_THREADS: usize = 2;
/// How far threads that compute stand back behind the shards: with 10 they get a tenth of a CPU that a shard
/// wants too.
const COMPUTING_NICENESS: i32 = 10;

static BLOCKING: Workers = Workers::new("blocking", BLOCKING_THREADS, 0);
static SENT_FILES: Workers = Workers::new("sent-files", SENT_FILE_THREADS, 0);
static COMPUTING: Workers = Workers::new("computing", COMPUTING_THREADS, COMPUTING_NICENESS);

/// Runs `work`, which may block, off the shards, and waits for its value. If the wait is dropped, the work is
/// done all the same.
///
/// # Panics
/// With `work`'s panic.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    BLOCKING.run(false, work).await
}

/// Runs `work`, which takes long because it computes, off the shards and after them, and waits for its value.
/// If the wait is dropped before the work has begun, it isn't done.
///
/// # Panics
/// With `work`'s panic.
pub async fn computing<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    COMPUTING.run(true, work).await
}

/// Runs `work` like [`blocking`], on threads for files that other programs have sent: such work may last as
/// long as those programs like, so the caller should wait with a time-out.
///
/// # Panics
/// With `work`'s panic.
pub async fn with_sent_files<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    SENT_FILES.run(false, work).await
}

/// Drops what holds a file of another program, some time.
pub(super) fn drop_elsewhere(what: impl Send + 'static) {
    SENT_FILES.queue(Box::new(move || drop(what)));
    // Where the system gives no thread now, a later one drops it.
    SENT_FILES.staff();
}

/// Whether files that were sent are closed so slowly that there should be no more of them.
pub(super) fn are_sent_files_stuck() -> bool {
    lock(&SENT_FILES.state).queue.len() > UNCLOSED_MAX
}

type Work = Box<dyn FnOnce() + Send>;
type Value<T> = Result<T, Box<dyn Any + Send>>;

/// Threads of one kind, and what they have to do.
struct Workers {
    name: &'static str,
    threads_max: usize,
    niceness: i32,
    state: Mutex<WorkersState>,
    /// Threads without work wait here.
    there_is_work: Condvar,
}

struct WorkersState {
    queue: VecDeque<Work>,
    threads: usize,
    idle: usize,
}

impl Workers {
    const fn new(name: &'static str, threads_max: usize, niceness: i32) -> Self {
        let state = WorkersState { queue: VecDeque::new(), threads: 0, idle: 0 };
        Self { name, threads_max, niceness, state: Mutex::new(state), there_is_work: Condvar::new() }
    }

    /// Does `work` in its turn; `only_if_wanted` leaves it out if nothing waits for it by then.
    async fn run<T: Send + 'static>(
        &'static self,
        only_if_wanted: bool,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let answer: Arc<(Mutex<Option<Value<T>>>, Signal)> = Arc::default();
        let there = Arc::clone(&answer);
        self.queue(Box::new(move || {
            if only_if_wanted && Arc::strong_count(&there) == 1 {
                return;
            }
            let value = catch_unwind(AssertUnwindSafe(work));
            *lock(&there.0) = Some(value);
            there.1.notify();
        }));
        loop {
            self.staff();
            let value = answer.1.wait_for(|| lock(&answer.0).take());
            if let Some(value) = shard::timeout(LOOK_NANOSECONDS, value).await {
                return value.unwrap_or_else(|panic| resume_unwind(panic));
            }
        }
    }

    fn queue(&self, work: Work) {
        lock(&self.state).queue.push_back(work);
    }

    /// Has a thread look at the queue, a new one if need be and if one can be had.
    fn staff(&'static self) {
        let mut state = lock(&self.state);
        if state.idle > 0 {
            self.there_is_work.notify_one();
        }
        // One that was woken counts as idle until it runs, however many pieces of work come until then.
        if state.queue.len() <= state.idle || state.threads >= self.threads_max {
            return;
        }
        // Threads end by themselves; nothing needs to join them. If there is none to be had, the next look
        // tries again.
        let made = thread::Builder::new().name(self.name.into()).spawn(|| self.work());
        state.threads += usize::from(made.is_ok());
    }

    /// The life of a thread.
    fn work(&self) {
        leave_signals_to_others();
        run_wherever_the_process_may();
        stand_back(self.niceness);
        let mut state = lock(&self.state);
        loop {
            if let Some(work) = state.queue.pop_front() {
                drop(state);
                work();
                state = lock(&self.state);
                continue;
            }
            state.idle += 1;
            let waited = self.there_is_work.wait_timeout(state, IDLE);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if timeout.timed_out() && state.queue.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}

/// A thread may outlive the run of the shard that made it. The next run may hold signals back, and this
/// thread must not take them: the process would die.
fn leave_signals_to_others() {
    let mut all = MaybeUninit::uninit();
    // SAFETY: `sigfillset` initialises the set, which is valid then.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, all.as_ptr(), std::ptr::null_mut());
    }
}

/// Lets this thread run wherever the process may, as its main thread shows. A thread begins on the CPUs of
/// the one that made it, and so does the program that a thread becomes: for a shard that is one CPU.
pub fn run_wherever_the_process_may() {
    use rustix::thread::{sched_getaffinity, sched_setaffinity};
    // If it fails, this thread is in the shard's way, but works.
    let _ = sched_getaffinity(Some(rustix::process::getpid())).and_then(|all| sched_setaffinity(None, &all));
}

/// Lets other threads of the system go first.
fn stand_back(niceness: i32) {
    if niceness > 0 {
        // SAFETY: no memory is touched. 0 means the calling thread on Linux. If it fails, this thread is as
        // urgent as others.
        let _ = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, niceness) };
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::uring::{RuntimeConfig, run};

    #[test]
    fn more_work_than_threads_waits_for_its_turn() {
        static THREE: Workers = Workers::new("three", 3, 0);
        static RUNNING: AtomicUsize = AtomicUsize::new(0);
        static RUNNING_MAX: AtomicUsize = AtomicUsize::new(0);
        const COUNT: usize = 50;
        let work = |number: usize| {
            move || {
                RUNNING_MAX.fetch_max(RUNNING.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                thread::sleep(Duration::from_millis(2));
                RUNNING.fetch_sub(1, Ordering::SeqCst);
                number
            }
        };
        let sum = run(&RuntimeConfig::unpinned(1), move |_| async move {
            let tasks: Vec<_> =
                (0..COUNT).map(|number| shard::spawn_joined(THREE.run(false, work(number)))).collect();
            let mut sum = 0;
            for task in tasks {
                sum += task.join().await;
            }
            sum
        });
        assert_eq!(sum.unwrap(), COUNT * (COUNT - 1) / 2);
        assert!((1..=3).contains(&RUNNING_MAX.load(Ordering::SeqCst)), "{RUNNING_MAX:?} at a time");
        assert!(lock(&THREE.state).threads <= 3);
    }

    #[test]
    fn work_is_not_bound_to_the_cpu_of_its_shard() {
        static FREE: Workers = Workers::new("free", 1, 0);
        let cpus = || rustix::thread::sched_getaffinity(None).unwrap();
        let allowed = cpus();
        if allowed.count() == 1 {
            eprintln!("DID NOT RUN: there is one CPU only");
            return;
        }
        let first = (0..1024).find(|cpu| allowed.is_set(*cpu)).unwrap();
        let config = RuntimeConfig { cpus: Some(vec![first]), ..RuntimeConfig::unpinned(1) };
        let found = run(&config, move |_| async move { (cpus().count(), FREE.run(false, cpus).await) });
        assert_eq!(found.unwrap(), (1, allowed));
    }

    #[test]
    fn work_that_comes_at_once_does_not_wait_for_one_idle_thread() {
        static TWO: Workers = Workers::new("two", 2, 0);
        let (done, all) = std::sync::mpsc::channel();
        {
            // A thread that was woken for the first piece of work and doesn't run yet.
            let mut state = lock(&TWO.state);
            (state.threads, state.idle) = (1, 1);
            for _ in 0..2 {
                let done = done.clone();
                state.queue.push_back(Box::new(move || done.send(()).unwrap()));
            }
        }
        TWO.staff();
        assert!((0..2).all(|_| all.recv_timeout(Duration::from_mins(1)).is_ok()));
    }

    #[test]
    fn what_nothing_waits_for_is_computed_only_if_it_must_be() {
        static ONE: Workers = Workers::new("one", 1, 5);
        static DONE: AtomicUsize = AtomicUsize::new(0);
        run(&RuntimeConfig::unpinned(1), |_| async {
            let (begin, begun) = std::sync::mpsc::channel::<()>();
            let first = shard::spawn_joined(ONE.run(false, move || begun.recv().is_ok()));
            shard::yield_now().await;
            let count = || {
                DONE.fetch_add(1, Ordering::SeqCst);
            };
            assert!(shard::timeout(1, ONE.run(true, count)).await.is_none());
            assert!(shard::timeout(1, ONE.run(false, count)).await.is_none());
            begin.send(()).unwrap();
            assert!(first.join().await);
            ONE.run(true, || ()).await;
        })
        .unwrap();
        assert_eq!(DONE.load(Ordering::SeqCst), 1);
    }
}
