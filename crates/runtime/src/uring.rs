//! Shards on io_uring: one thread and one ring each, as production runs them.
//!
//! ```text
//!   run(config, main)
//!     shard 0 ─ thread, ring, arena, files ─ main(context), then stops all
//!     shard 1 ─ thread, ring, arena, files ─ what others have it do: ShardHandle::call
//! ```
//!
//! A turn of a shard: reap, mail, timers, a bounded batch of tasks, submit. With nothing to do it sleeps in
//! the kernel, and looks around for some microseconds before where that has paid lately (`uring/spin.rs`);
//! [`crate::mailbox`] explains why no wake is lost.
//!
//! The end of `main` stops the shards: each drops its tasks, cancels what it can and waits for the kernel to
//! be done with every request before the memory goes (C16). A panic does the same in builds that unwind, then
//! goes on.

mod arena;
mod blocking;
mod bus_fault;
mod device;
mod device_dax;
mod driver;
pub mod event;
pub mod fuse;
pub mod guest_memory;
pub mod inheritance;
mod kernel;
pub mod last_resort;
mod listener;
mod nvme;
mod open;
mod operation;
mod passthrough;
mod pause;
mod ring;
mod sent_file;
mod side;
mod socket;
mod spin;
mod storage;
mod termination;
pub mod ublk;

use std::{
    any::Any,
    future::Future,
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    rc::Rc,
    sync::{Arc, mpsc},
    thread,
};

pub use blocking::{blocking, computing, run_wherever_the_process_may, with_sent_files};
pub use device_dax::{is_device_dax, map_device_dax};
pub use listener::{Access, Leaver, ListenError, Listener};
pub use open::{Holder, OpenError, OpenFile, OpenOptions, flush_block_device, path_of, persistent_path};
pub use passthrough::readable_path;
pub use sent_file::{EventFile, SentFile, SocketFile};
pub use socket::{Connection, Peer, SocketStream, connect_tcp, connect_tcp_from, connect_unix};
pub use storage::{Generation, Storage};
pub use termination::{Termination, termination};

use crate::{Shard, ShardConfig, ShardHandle};
use driver::Driver;
use spin::Spin;

/// What [`run`] starts.
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// Number of shards, at least 1.
    pub shards: usize,
    /// Shard `i` stays on CPU `cpus[i % cpus.len()]`; without, the kernel moves the threads.
    pub cpus: Option<Vec<usize>>,
    /// Bytes of each shard's buffer arena, which is registered with the kernel, and so takes memory, as it is
    /// used, where `RLIMIT_MEMLOCK` allows.
    pub arena_bytes: usize,
    /// Bytes of memory outside of its arena that each shard keeps for reuse.
    pub spare_bytes: usize,
    /// How long a shard without work looks around at most before it sleeps, in nanoseconds, while devices
    /// have its requests or there are other shards, and only as long as that finds something. 0: never.
    pub spin_ns: u64,
    /// Holds SIGTERM and SIGINT back from all shards, for [`termination`]; SIGHUP, SIGUSR1, SIGUSR2 and
    /// SIGALRM do nothing then, but for [`last_resort`].
    pub termination_signals: bool,
}

/// A modest arena, and as much beside it: 64 MiB per shard.
const ARENA_BYTES: usize = 64 << 20;
/// About the price of a sleep and a wake.
const SPIN_NS: u64 = 30_000;

impl Default for RuntimeConfig {
    /// One pinned shard for each CPU that this thread may use.
    fn default() -> Self {
        let cpus = cpus_allowed();
        Self { cpus: Some(cpus.clone()), ..Self::unpinned(cpus.len()) }
    }
}

impl RuntimeConfig {
    /// `shards` shards that the kernel may move. They may look around before they sleep if each can have a
    /// CPU. One alone does not: see `docs/results/engine.md`.
    pub fn unpinned(shards: usize) -> Self {
        let spin_ns = if shards > 1 && shards <= cpus_allowed().len() { SPIN_NS } else { 0 };
        Self {
            shards,
            cpus: None,
            arena_bytes: ARENA_BYTES,
            spare_bytes: ARENA_BYTES,
            spin_ns,
            termination_signals: false,
        }
    }
}

/// How often this shard has entered the kernel to submit requests, to collect answers or to sleep. `None` if
/// something else drives it.
pub fn kernel_entries() -> Option<u64> {
    Driver::try_current().map(|driver| driver.kernel_entries())
}

/// The CPUs that this thread may use; at least one.
fn cpus_allowed() -> Vec<usize> {
    let cpus: Vec<usize> = rustix::thread::sched_getaffinity(None)
        .map(|set| (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
        .unwrap_or_default();
    if cpus.is_empty() { vec![0] } else { cpus }
}

/// Why the shards did not start. Nothing runs then.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// No shard was asked for.
    #[error("at least one shard is needed")]
    NoShards,
    /// An old kernel, or one without io_uring.
    #[error("this kernel's io_uring is missing or too old: Linux 5.19 or newer is needed")]
    Unsupported,
    /// Forbidden by the administrator.
    #[error(
        "io_uring is not permitted here: look at the sysctl kernel.io_uring_disabled and, in a container, at its \
         seccomp profile"
    )]
    Forbidden,
    /// The CPU does not exist or is not ours.
    #[error("shard {shard} can't run on CPU {cpu}: {source}")]
    Pin {
        /// Which shard.
        shard: usize,
        /// Which CPU.
        cpu: usize,
        /// What the kernel said.
        source: io::Error,
    },
    /// As many threads as there may be.
    #[error(
        "can't start a thread: {source}; raise the limit of threads (`ulimit -u`, TasksMax of a systemd unit, pids.max of \
         a cgroup), or use fewer shards"
    )]
    Threads {
        /// What the kernel said.
        source: io::Error,
    },
    /// Not enough memory may be locked for a ring.
    #[error(
        "can't make an io_uring: {source}; raise the limit of locked memory (`ulimit -l`, LimitMEMLOCK of a systemd unit), or use \
         fewer shards"
    )]
    Locked {
        /// What the kernel said.
        source: io::Error,
    },
    /// Any other step.
    #[error("{what} failed: {source}")]
    Setup {
        /// The step.
        what: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

/// What `main` gets: all shards, this one being number 0.
#[derive(Clone)]
pub struct Context {
    shards: Arc<[ShardHandle]>,
    arenas_registered: bool,
}

impl Context {
    /// Of shards that another driver runs, such as a simulator.
    pub fn of(shards: impl IntoIterator<Item = ShardHandle>) -> Self {
        Self { shards: shards.into_iter().collect(), arenas_registered: false }
    }

    /// All shards by their numbers.
    pub fn shards(&self) -> &[ShardHandle] {
        &self.shards
    }

    /// Whether the kernel registers every shard's arena; if not, each request costs some more CPU.
    pub fn arenas_registered(&self) -> bool {
        self.arenas_registered
    }

    fn stop_all(&self) {
        for shard in &*self.shards {
            shard.send(|| Driver::current().stop());
        }
    }
}

type Panic = Box<dyn Any + Send>;
/// What a shard reports when it is set up: its handle, and whether its arena is registered.
type Report = Result<(ShardHandle, bool), RunError>;

/// Starts the shards, runs `main` on shard 0 and stops all when it ends.
///
/// # Panics
/// With the panic of a task, where builds unwind.
pub fn run<F, T>(
    config: &RuntimeConfig,
    main: impl FnOnce(Context) -> F + Send + 'static,
) -> Result<T, RunError>
where
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    if config.shards == 0 {
        return Err(RunError::NoShards);
    }
    let _masked = if config.termination_signals { Some(termination::Masked::new()?) } else { None };
    let mut workers = Workers { threads: Vec::new(), starts: Vec::new() };
    let (reports, reported) = mpsc::channel();
    let (values, value) = mpsc::channel();
    workers.spawn(config, 0, reports.clone(), move |context: Context| {
        let future = main(context.clone());
        crate::shard::spawn(async move {
            let value = future.await;
            // The receiver waits until this thread has ended.
            let _ = values.send(value);
            context.stop_all();
        });
    })?;
    for index in 1..config.shards {
        workers.spawn(config, index, reports.clone(), |_| ())?;
    }
    drop(reports);
    let mut shards: Vec<Option<ShardHandle>> = vec![None; config.shards];
    let mut arenas_registered = true;
    for report in reported {
        let (handle, registered) = report?;
        arenas_registered &= registered;
        let index = handle.index();
        shards[index] = Some(handle);
    }
    let shards: Option<Arc<[ShardHandle]>> = shards.into_iter().collect();
    workers.finish(shards.map(|shards| Context { shards, arenas_registered }).as_ref());
    Ok(value.recv().unwrap_or_else(|_| unreachable!("main ended, or its panic went on above")))
}

/// The threads. When it goes early, each ends without having run anything.
struct Workers {
    threads: Vec<thread::JoinHandle<Result<(), Panic>>>,
    starts: Vec<mpsc::Sender<Context>>,
}

impl Workers {
    fn spawn(
        &mut self,
        config: &RuntimeConfig,
        index: usize,
        reports: mpsc::Sender<Report>,
        first: impl FnOnce(Context) + Send + 'static,
    ) -> Result<(), RunError> {
        let (start, started) = mpsc::channel();
        let config = config.clone();
        let thread = thread::Builder::new()
            .name(format!("shard {index}"))
            .spawn(move || work(&config, index, reports, &started, first))
            .map_err(|source| RunError::Threads { source })?;
        self.threads.push(thread);
        self.starts.push(start);
        Ok(())
    }

    /// Lets them run and waits for all. Without a context, one of them has panicked and the others must not
    /// start.
    fn finish(mut self, context: Option<&Context>) {
        for start in self.starts.drain(..) {
            if let Some(context) = context {
                // It fails if the thread has ended, which shows below.
                let _ = start.send(context.clone());
            }
        }
        let mut panic = None;
        for thread in self.threads.drain(..) {
            if let Err(other) = thread.join().and_then(|ended| ended) {
                panic.get_or_insert(other);
            }
        }
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        self.starts.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// The life of a shard's thread. Setting up in the thread makes its memory local and the ring its own.
fn work(
    config: &RuntimeConfig,
    index: usize,
    reports: mpsc::Sender<Report>,
    started: &mpsc::Receiver<Context>,
    first: impl FnOnce(Context),
) -> Result<(), Panic> {
    let (shard, driver) = match set_up(config, index) {
        Ok(made) => made,
        Err(error) => {
            let _ = reports.send(Err(error));
            return Ok(());
        }
    };
    let _ = reports.send(Ok((shard.handle(), driver.arena_registered())));
    drop(reports);
    let Ok(context) = started.recv() else {
        return Ok(());
    };
    let _entered = shard.enter();
    Driver::set_current(Some(Rc::clone(&driver)));
    let ended = catch_unwind(AssertUnwindSafe(|| {
        first(context.clone());
        driver.run(&shard);
    }));
    if ended.is_err() {
        context.stop_all();
    }
    // A second panic, in a destructor, must not free memory that the kernel may still write to.
    let Ok(drained) = catch_unwind(AssertUnwindSafe(|| driver.drain(&shard))) else {
        std::process::abort();
    };
    if !drained {
        // A device hangs. The kernel may still read and write the memory of its requests: it is never given
        // back.
        std::mem::forget((Rc::clone(&shard), Rc::clone(&driver)));
    }
    Driver::set_current(None);
    ended
}

fn set_up(config: &RuntimeConfig, index: usize) -> Result<(Rc<Shard>, Rc<Driver>), RunError> {
    if let Some(cpus) = &config.cpus
        && !cpus.is_empty()
    {
        let cpu = cpus[index % cpus.len()];
        let pin = |source| RunError::Pin { shard: index, cpu, source };
        if cpu >= rustix::thread::CpuSet::MAX_CPU {
            return Err(pin(io::Error::from_raw_os_error(libc::EINVAL)));
        }
        let mut set = rustix::thread::CpuSet::new();
        set.set(cpu);
        rustix::thread::sched_setaffinity(None, &set).map_err(|e| pin(e.into()))?;
    }
    let shard = Shard::new(&ShardConfig { index, arena_bytes: config.arena_bytes, clock: None });
    shard.pool().keep_spare(config.spare_bytes);
    let driver = Driver::new(shard.pool(), Spin::new(config.spin_ns, config.shards))?;
    Ok((shard, driver))
}
