//! Shards on the real kernel: wakes, timers, files, devices, sockets, and the end of it all.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests")]

use std::{
    cell::RefCell,
    future::Future,
    io::{Read, Write},
    os::unix::{fs::PermissionsExt, net::UnixStream},
    path::{Path, PathBuf},
    process::Command,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use pinstripe_runtime::{
    Device, DeviceErrorKind, Pool, Signal, Stream, SubmissionSet, ZeroedReads, shard,
    uring::{
        self, Connection, Context, Holder, ListenError, Listener, OpenError, OpenFile, OpenOptions,
        RuntimeConfig, Termination,
    },
};

/// For what comes at last, however much else the machine has to do.
const PATIENCE: Duration = Duration::from_mins(1);

fn config(shards: usize) -> RuntimeConfig {
    RuntimeConfig { arena_bytes: 4 << 20, ..RuntimeConfig::unpinned(shards) }
}

fn run<F, T>(shards: usize, main: impl FnOnce(Context) -> F + Send + 'static) -> T
where
    F: Future<Output = T> + 'static,
    T: Send + 'static,
{
    uring::run(&config(shards), main).unwrap()
}

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(parent: &str) -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(parent).join(format!("pinstripe-uring-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn disk() -> Self {
        Self::new(env!("CARGO_TARGET_TMPDIR"))
    }

    fn file(&self, name: &str, size: u64) -> PathBuf {
        let path = self.0.join(name);
        std::fs::File::create(&path).unwrap().set_len(size).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A small generator, so that a failing run can be repeated.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

fn byte_at(offset: u64, salt: u64) -> u8 {
    ((offset / 512).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ offset ^ salt.wrapping_mul(0x51)).to_le_bytes()[3]
}

// --- shards ---

#[test]
fn main_returns_its_value() {
    assert_eq!(run(1, |_| async { 42 }), 42);
}

#[test]
fn each_shard_runs_what_it_is_called_to() {
    let indices = run(3, |context| async move {
        let mut indices = Vec::new();
        for shard in context.shards() {
            indices.push(shard.call(|| async { shard::index() }).await.unwrap());
        }
        indices
    });
    assert_eq!(indices, [0, 1, 2]);
}

/// Two shards pass a number back and forth; a lost wake hangs the test.
fn ping_pong(rounds: u64, spin_ns: u64) -> Duration {
    let config = RuntimeConfig { spin_ns, ..config(2) };
    uring::run(&config, move |context| async move {
        let table = Arc::new((AtomicU64::new(0), Signal::default()));
        let there = Arc::clone(&table);
        let start = Instant::now();
        let other = context.shards()[1].clone();
        let answer = shard::spawn_joined(async move {
            other
                .call(move || async move {
                    for round in 0..rounds {
                        there.1.wait_until(|| there.0.load(Ordering::SeqCst) == 2 * round + 1).await;
                        there.0.store(2 * round + 2, Ordering::SeqCst);
                        there.1.notify();
                    }
                })
                .await
                .unwrap();
        });
        for round in 0..rounds {
            table.0.store(2 * round + 1, Ordering::SeqCst);
            table.1.notify();
            table.1.wait_until(|| table.0.load(Ordering::SeqCst) == 2 * round + 2).await;
        }
        answer.join().await;
        start.elapsed()
    })
    .unwrap()
}

#[test]
fn no_wake_is_lost_between_shards_that_spin() {
    eprintln!("100000 round trips, spinning: {:?}", ping_pong(100_000, 30_000));
}

#[test]
fn no_wake_is_lost_between_shards_that_sleep() {
    eprintln!("20000 round trips, sleeping: {:?}", ping_pong(20_000, 0));
}

#[test]
fn no_wake_is_lost_on_the_edge_of_sleep() {
    eprintln!("20000 round trips, spinning 1 us: {:?}", ping_pong(20_000, 1_000));
}

#[test]
fn timers_fire_in_order_and_not_early() {
    run(1, |_| async {
        let order = Rc::new(RefCell::new(Vec::new()));
        let mut joins = Vec::new();
        for milliseconds in [300_u64, 100, 200] {
            let order = Rc::clone(&order);
            joins.push(shard::spawn_joined(async move {
                // On a busy machine the second one may begin a while after the first one.
                let (start, due) = (Instant::now(), shard::now() + milliseconds * 1_000_000);
                shard::sleep(milliseconds * 1_000_000).await;
                assert!(start.elapsed() >= Duration::from_millis(milliseconds));
                order.borrow_mut().push(due);
            }));
        }
        for join in joins {
            join.join().await;
        }
        assert!(order.borrow().len() == 3 && order.borrow().is_sorted(), "{order:?}");
    });
}

#[test]
fn a_sleeping_shard_needs_no_cpu() {
    let used = run(2, |context| async move {
        let other = &context.shards()[1];
        let cpu = || async {
            let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            time.tv_sec * 1_000_000_000 + time.tv_nsec
        };
        // It has slept and was woken before: that must leave nothing behind.
        for _ in 0..10 {
            shard::sleep(1_000_000).await;
            other.call(|| async {}).await.unwrap();
        }
        let before = (cpu().await, other.call(cpu).await.unwrap());
        shard::sleep(200_000_000).await;
        (cpu().await - before.0) + (other.call(cpu).await.unwrap() - before.1)
    });
    assert!(used < 20_000_000, "{used} ns of CPU in 200 ms of sleep");
}

#[test]
fn work_that_blocks_does_not_stop_the_shard() {
    static TICKS: AtomicU64 = AtomicU64::new(0);
    run(1, |_| async {
        shard::spawn(async {
            loop {
                shard::sleep(1_000_000).await;
                TICKS.fetch_add(1, Ordering::SeqCst);
            }
        });
        // Until the shard has turned, as it never would if it waited for this.
        let value = uring::blocking(|| {
            let begun = Instant::now();
            while TICKS.load(Ordering::SeqCst) < 5 && begun.elapsed() < PATIENCE {
                std::thread::sleep(Duration::from_millis(1));
            }
            TICKS.load(Ordering::SeqCst)
        });
        let ticks = value.await;
        assert!(ticks >= 5, "{ticks} ticks");
    });
}

#[test]
fn a_panic_on_any_shard_stops_all_and_comes_out() {
    for index in 0..2 {
        let result = std::panic::catch_unwind(|| {
            run(2, move |context| async move {
                let _: Result<(), _> = context.shards()[index].call(|| async { panic!("on purpose") }).await;
            });
        });
        assert_eq!(result.unwrap_err().downcast_ref(), Some(&"on purpose"));
    }
}

#[test]
fn a_cpu_that_is_not_there_is_an_error() {
    let config = RuntimeConfig { cpus: Some(vec![0, 1023]), ..config(2) };
    let error = uring::run(&config, |_| async {}).unwrap_err();
    assert!(error.to_string().starts_with("shard 1 can't run on CPU 1023"), "{error}");
    let none = RuntimeConfig { shards: 0, ..config };
    assert!(uring::run(&none, |_| async {}).is_err());
}

#[test]
fn pinned_shards_stay_on_their_cpu() {
    let config = RuntimeConfig { arena_bytes: 0, ..RuntimeConfig::default() };
    let cpus = config.cpus.clone().unwrap();
    let seen = uring::run(&config, |context| async move {
        let mut seen = Vec::new();
        for shard in context.shards() {
            seen.push(shard.call(|| async { rustix::thread::sched_getcpu() }).await.unwrap());
        }
        seen
    });
    assert_eq!(seen.unwrap(), cpus);
}

// --- devices ---

const BLOCK: u64 = 512;

/// Random reads, writes, flushes, discards and zeroes from several tasks on every shard, each in its own
/// area, against a model in memory.
async fn exercise(context: Context, open: Arc<OpenFile>, seed: u64) {
    const TASKS: u64 = 8;
    let mut answers = Vec::new();
    let shards = context.shards().len() as u64;
    let area = open.info().size / (shards * TASKS) / 4096 * 4096;
    for handle in context.shards() {
        let (handle, open) = (handle.clone(), Arc::clone(&open));
        answers.push(shard::spawn_joined(async move {
            handle
                .call(move || async move {
                    let mut joins = Vec::new();
                    for task in 0..TASKS {
                        let device = open.attach();
                        let number = shard::index() as u64 * TASKS + task;
                        let random = Random(seed ^ (number + 1) << 20);
                        joins.push(shard::spawn_joined(one_area(device, number * area, area, random)));
                    }
                    for join in joins {
                        join.join().await;
                    }
                })
                .await
                .unwrap();
        }));
    }
    for answer in answers {
        answer.join().await;
    }
}

async fn one_area(device: Rc<dyn Device>, start: u64, area: u64, mut random: Random) {
    let block = u64::from(device.info().logical_block);
    let mut model = vec![0_u8; usize::try_from(area).unwrap()];
    let mut set = SubmissionSet::default();
    for round in 0..25 {
        // Several at once, in ranges apart.
        // Each is tagged with what it is to read.
        let parts = 1 + random.below(6);
        let part = area / parts / block * block;
        for i in 0..parts {
            let blocks = 1 + random.below((part / block).min(64));
            let offset = i * part + random.below(part / block - blocks + 1) * block;
            let range = usize::try_from(offset).unwrap()..usize::try_from(offset + blocks * block).unwrap();
            let at = start + offset;
            match random.below(10) {
                0..5 => {
                    // Some buffers begin in the middle of a block's memory, and some are at odd addresses.
                    let skip = [0, 0, 512, 4096, 13][usize::try_from(random.below(5)).unwrap()];
                    let mut buffer = shard::buffer(range.len() + skip);
                    drop(buffer.split_to(skip));
                    for (i, byte) in buffer.iter_mut().enumerate() {
                        *byte = byte_at(at + i as u64, round);
                    }
                    model[range].copy_from_slice(&buffer);
                    set.push(None, device.write(at, buffer.freeze(), random.below(8) == 0));
                }
                5..8 => {
                    let skip = [0, 512, 7][usize::try_from(random.below(3)).unwrap()];
                    let mut buffer = shard::buffer(range.len() + skip);
                    drop(buffer.split_to(skip));
                    buffer.fill(0xEE);
                    set.push(Some(range), device.read(at, buffer));
                }
                8 => set.push(None, device.flush()),
                _ if device.info().zeroes == ZeroedReads::Zero => {
                    model[range].fill(0);
                    set.push(None, device.write_zeroes(at, blocks * block));
                }
                _ => {}
            }
        }
        set.wait().await;
        for (read, outcome) in set.drain() {
            assert!(outcome.result.is_ok(), "{:?}", outcome.result);
            if let Some(range) = read {
                assert_eq!(outcome.result, Ok(range.len()));
                assert!(outcome.buffer.unwrap()[..] == model[range], "a read returned wrong bytes");
            }
        }
    }
    let whole = device.read(start, shard::buffer(model.len())).await;
    assert!(whole.buffer.unwrap()[..] == model[..], "the area holds wrong bytes at the end");
}

fn exercise_file(folder: &Folder) {
    let path = folder.file("member", 8 << 20);
    run(2, move |context| async move {
        let open = OpenFile::open(&path, &OpenOptions::default()).unwrap();
        assert_eq!(open.info().size, 8 << 20);
        exercise(context, Arc::clone(&open), 0xA5A5).await;
        // Large and unregistered, through the heap.
        let device = open.attach();
        let mut buffer = shard::buffer(6 << 20);
        for (i, byte) in buffer.iter_mut().enumerate() {
            *byte = byte_at(i as u64, 99);
        }
        let data = buffer.freeze();
        assert_eq!(device.write(4096, data.clone(), true).await.result, Ok(6 << 20));
        let read = device.read(4096, shard::buffer(6 << 20)).await;
        assert!(read.buffer.unwrap()[..] == data[..]);
    });
}

#[test]
fn random_requests_equal_a_model_on_disk() {
    exercise_file(&Folder::disk());
}

#[test]
fn random_requests_equal_a_model_on_tmpfs() {
    exercise_file(&Folder::new("/dev/shm"));
}

#[test]
fn a_discard_of_a_file_frees_its_space() {
    let folder = Folder::disk();
    let path = folder.file("member", 4 << 20);
    run(1, move |_| async move {
        let device = OpenFile::open(&path, &OpenOptions::default()).unwrap().attach();
        let data = shard::zeroed(1 << 20).freeze();
        device.write(0, data, false).await.result.unwrap();
        let blocks = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&path).unwrap());
        let before = blocks();
        device.discard(0, 1 << 20).await.result.unwrap();
        assert!(blocks() < before, "{} of {before} blocks are left", blocks());
    });
}

#[test]
fn requests_that_do_not_fit_the_device_are_refused() {
    let folder = Folder::disk();
    let path = folder.file("member", 1 << 20);
    run(1, move |_| async move {
        let device = OpenFile::open(&path, &OpenOptions::default()).unwrap().attach();
        let block = u64::from(device.info().logical_block);
        assert!(block >= BLOCK);
        let length = usize::try_from(block).unwrap();
        for (offset, length) in
            [(1 << 20, length), (u64::MAX - block + 1, length), (1, length), (0, length - 1)]
        {
            let read = device.read(offset, shard::buffer(length)).await;
            assert_eq!(read.result.unwrap_err().kind, DeviceErrorKind::Invalid);
            assert!(read.buffer.is_some());
            let write = device.write(offset, shard::zeroed(length).freeze(), false).await;
            assert_eq!(write.result.unwrap_err().kind, DeviceErrorKind::Invalid);
            let zeroes = device.write_zeroes(offset, length as u64).await;
            assert_eq!(zeroes.result.unwrap_err().kind, DeviceErrorKind::Invalid);
        }
    });
}

#[test]
fn a_read_of_a_file_that_was_cut_off_fails() {
    let folder = Folder::disk();
    let path = folder.file("member", 1 << 20);
    run(1, move |_| async move {
        let device = OpenFile::open(&path, &OpenOptions::default()).unwrap().attach();
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(512 << 10).unwrap();
        // Half of it is there: a short read must not pass as a whole one.
        let read = device.read(508 << 10, shard::buffer(8 << 10)).await;
        assert_eq!(read.result.unwrap_err().kind, DeviceErrorKind::Media);
    });
}

#[test]
fn memory_of_another_shard_can_be_written_and_read() {
    let folder = Folder::disk();
    let path = folder.file("member", 1 << 20);
    run(2, move |context| async move {
        let open = OpenFile::open(&path, &OpenOptions::default()).unwrap();
        // In both directions, so that one of the arenas lies above the other.
        for user in 0..2 {
            let owner = &context.shards()[1 - user];
            let data = owner
                .call(|| async {
                    let mut buffer = shard::buffer(64 << 10);
                    buffer.fill(0x5A);
                    buffer.freeze()
                })
                .await
                .unwrap();
            let buffer = owner.call(|| async { shard::zeroed(64 << 10) }).await.unwrap();
            let open = Arc::clone(&open);
            let work = move || async move {
                assert!(shard::with_current(|shard| !data.is_from(shard.pool())));
                assert!(shard::with_current(|shard| !buffer.is_from(shard.pool())));
                let device = open.attach();
                device.write(0, data.clone(), false).await.result.unwrap();
                assert!(device.read(0, buffer).await.buffer.unwrap()[..] == data[..]);
            };
            context.shards()[user].call(work).await.unwrap();
        }
    });
}

#[test]
fn more_requests_than_the_ring_holds_all_complete() {
    let folder = Folder::new("/dev/shm");
    let path = folder.file("member", 64 << 20);
    run(1, move |_| async move {
        let device = OpenFile::open(&path, &OpenOptions::default()).unwrap().attach();
        let data = shard::zeroed(4096).freeze();
        let mut set = SubmissionSet::default();
        for i in 0..12_000 {
            set.push((), device.write(i * 4096, data.clone(), false));
        }
        set.wait().await;
        assert_eq!(set.len(), 12_000);
        assert!(set.drain().all(|((), outcome)| outcome.result == Ok(4096)));
    });
}

#[test]
fn a_read_only_device_refuses_every_change() {
    let folder = Folder::disk();
    let path = folder.file("member", 1 << 20);
    run(1, move |_| async move {
        let options = OpenOptions { read_only: true, ..OpenOptions::default() };
        let open = OpenFile::open(&path, &options).unwrap();
        let also = OpenFile::open(&path, &options).unwrap();
        assert_eq!(also.attach().read(0, shard::buffer(4096)).await.result, Ok(4096));
        let device = open.attach();
        assert!(device.write(0, shard::zeroed(4096).freeze(), false).await.result.is_err());
        assert!(device.discard(0, 4096).await.result.is_err());
        assert!(device.write_zeroes(0, 4096).await.result.is_err());
        assert!(device.flush().await.result.is_ok());
    });
}

#[test]
fn the_machines_clock_is_that_of_all_processes() {
    let clock = || {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        u64::try_from(now.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap()
    };
    run(1, move |_| async move {
        let before = clock();
        let now = shard::machine_now();
        assert!((before..=clock()).contains(&now));
    });
}

#[test]
fn a_locked_file_is_held_until_the_last_handle_goes() {
    let folder = Folder::disk();
    let path = folder.file("member", 1 << 20);
    run(2, move |context| async move {
        let open = OpenFile::open(&path, &OpenOptions::default()).unwrap();
        let device = open.attach();
        drop(open);
        // A program that another test starts has the file too, until it becomes that program.
        let begun = Instant::now();
        loop {
            let error = OpenFile::open(&path, &OpenOptions::default()).err().unwrap();
            if matches!(&error, OpenError::Busy { holder: Holder::Ourselves, .. }) {
                break;
            }
            assert!(begun.elapsed() < Duration::from_secs(10), "{error}");
            shard::sleep(1_000_000).await;
        }
        let reader = OpenOptions { read_only: true, ..OpenOptions::default() };
        assert!(OpenFile::open(&path, &reader).is_err());
        let onlooker = OpenOptions { exclusive: false, ..reader };
        assert!(OpenFile::open(&path, &onlooker).is_ok());
        drop(device);
        let again = opened(&path);
        // A handle of another shard counts too.
        let there = Arc::clone(&again);
        let release = Arc::new((AtomicU64::new(0), Signal::default()));
        let released = Arc::clone(&release);
        let attached = Arc::new((AtomicU64::new(0), Signal::default()));
        let report = Arc::clone(&attached);
        let other = context.shards()[1].clone();
        let join = shard::spawn_joined(async move {
            other
                .call(move || async move {
                    let device = there.attach();
                    drop(there);
                    report.0.store(1, Ordering::SeqCst);
                    report.1.notify();
                    released.1.wait_until(|| released.0.load(Ordering::SeqCst) == 1).await;
                    drop(device);
                })
                .await
                .unwrap();
        });
        attached.1.wait_until(|| attached.0.load(Ordering::SeqCst) == 1).await;
        drop(again);
        assert!(OpenFile::open(&path, &OpenOptions::default()).is_err());
        release.0.store(1, Ordering::SeqCst);
        release.1.notify();
        join.join().await;
        opened(&path);
    });
}

#[test]
fn a_file_that_another_process_holds_is_refused_by_its_name() {
    let folder = Folder::disk();
    let path = folder.file("member", 1 << 20);
    // This same program in another process, which runs the test below.
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "holds_a_file_for_another_test", "--nocapture"])
        .env("PINSTRIPE_HOLD", &path)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = child.stdout.take().unwrap();
    let mut seen = String::new();
    while !seen.contains("HELD") {
        let mut byte = [0];
        assert_eq!(output.read(&mut byte).unwrap(), 1, "the holder ended: {seen}");
        seen.push(byte[0].into());
    }
    let error = OpenFile::open(&path, &OpenOptions::default()).err().unwrap();
    let id = child.id();
    drop(child.stdin.take());
    child.wait().unwrap();
    assert!(error.to_string().contains("is held by another process"), "{error}");
    assert!(
        matches!(&error, OpenError::Busy { holder: Holder::Process(_, process), .. } if *process == id),
        "{error}"
    );
    // The lock ended with the process.
    opened(&path);
}

/// Does nothing unless the test above has started it.
#[test]
fn holds_a_file_for_another_test() {
    let Some(path) = std::env::var_os("PINSTRIPE_HOLD") else { return };
    let _open = opened(path.as_ref());
    println!("HELD");
    let _ = std::io::stdin().read(&mut [0]);
}

#[test]
fn what_cannot_be_opened_says_why() {
    let folder = Folder::disk();
    let open = |path: &Path, options: &OpenOptions| OpenFile::open(path, options).err().unwrap();
    let default = OpenOptions::default();
    let missing = folder.0.join("missing");
    assert!(matches!(open(&missing, &default), OpenError::NotFound { .. }));
    assert!(matches!(open(&folder.0, &default), OpenError::NotStorage { .. }));
    assert!(matches!(open(Path::new("/dev/null"), &default), OpenError::NotStorage { .. }));
    let file = folder.file("file", 1 << 20);
    let large = OpenOptions { size_min: 2 << 20, ..OpenOptions::default() };
    assert!(matches!(open(&file, &large), OpenError::TooSmall { size: 1_048_576, .. }));
    assert!(matches!(open(&folder.file("empty", 0), &default), OpenError::TooSmall { .. }));
    for block in [0, 256, 1000, 8192] {
        let odd = OpenOptions { logical_block: Some(block), ..OpenOptions::default() };
        assert!(matches!(open(&file, &odd), OpenError::LogicalBlock { .. }), "{block}");
    }
    let large = OpenOptions { logical_block: Some(4096), ..OpenOptions::default() };
    assert_eq!(OpenFile::open(&file, &large).unwrap().info().logical_block, 4096);
    if !rustix::process::geteuid().is_root() {
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o000)).unwrap();
        assert!(matches!(open(&file, &default), OpenError::Permission { .. }));
    }
}

/// A loop device over a file of ours.
struct Loop(PathBuf);

impl Loop {
    /// None if the user isn't root. Root must get one: without it the test would show nothing.
    fn new(file: &Path, options: &[&str]) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root makes loop devices");
            return None;
        }
        let output = Command::new("losetup").args(["-f", "--show"]).args(options).arg(file).output().unwrap();
        assert!(output.status.success(), "losetup: {}", String::from_utf8_lossy(&output.stderr));
        let path = PathBuf::from(String::from_utf8(output.stdout).unwrap().trim());
        let backing = format!("/sys/block/{}/loop/backing_file", path.file_name().unwrap().display());
        let backing = std::fs::read_to_string(backing).unwrap();
        assert_eq!(Path::new(backing.trim()), file, "the loop device is not ours");
        Some(Self(path))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

#[test]
fn random_requests_equal_a_model_on_a_block_device() {
    let folder = Folder::new("/dev/shm");
    for block in [512, 4096] {
        let file = folder.file("backing", 8 << 20);
        let Some(device) = Loop::new(&file, &["--sector-size", &block.to_string()]) else { return };
        let path = device.0.clone();
        run(2, move |context| async move {
            let open = opened(&path);
            let info = open.info().clone();
            assert_eq!((info.size, info.logical_block), (8 << 20, block));
            assert_eq!(info.zeroes, ZeroedReads::Zero);
            assert!(info.discards);
            let error = OpenFile::open(&path, &OpenOptions::default()).err().unwrap();
            assert!(matches!(&error, OpenError::Busy { holder: Holder::Ourselves, .. }), "{error}");
            exercise(context, Arc::clone(&open), 0x5EED).await;
            let device = open.attach();
            device.write(0, shard::zeroed(1 << 20).freeze(), true).await.result.unwrap();
            let blocks = || std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(&file).unwrap());
            let before = blocks();
            assert_eq!(device.discard(0, 1 << 20).await.result, Ok(0));
            assert!(blocks() < before, "a discard reaches the device");
        });
        // The claim ended with the run.
        opened(&device.0);
    }
}

fn refused(path: &Path, why: &str) {
    let error = OpenFile::open(path, &OpenOptions::default()).err();
    let error = error.unwrap_or_else(|| panic!("{} was opened although {why}", path.display()));
    assert!(matches!(error, OpenError::Busy { .. }), "{error}");
}

/// Opens what was let go of. A process that another test is making has it too, until it becomes its program.
fn opened(path: &Path) -> Arc<OpenFile> {
    opened_as(path, &OpenOptions::default())
}

fn opened_as(path: &Path, options: &OpenOptions) -> Arc<OpenFile> {
    let begun = std::time::Instant::now();
    loop {
        match OpenFile::open(path, options) {
            Err(OpenError::Busy { .. }) if begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(1));
            }
            opened => return opened.unwrap(),
        }
    }
}

/// Claims a device as a program does that knows nothing of our locks and marks, such as a mount.
fn claimed(device: &Path) -> std::fs::File {
    drop(opened(device));
    let mut claiming = std::fs::OpenOptions::new();
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut claiming, libc::O_EXCL);
    let begun = std::time::Instant::now();
    loop {
        match claiming.read(true).open(device) {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy && begun.elapsed() < PATIENCE => {
                std::thread::sleep(Duration::from_millis(1));
            }
            claimed => return claimed.unwrap(),
        }
    }
}

#[test]
fn a_file_and_the_loop_devices_over_it_are_one_member() {
    let folder = Folder::disk();
    let file = folder.file("backing", 8 << 20);
    let Some(one) = Loop::new(&file, &[]) else { return };
    let other = Loop::new(&file, &[]).unwrap();
    let over = Loop::new(&other.0, &[]).unwrap();
    let open = opened(&one.0);
    refused(&file, "a loop device over it is held");
    refused(&other.0, "another loop device over the same file is held");
    refused(&over.0, "another loop device over the same file is held");
    drop(open);
    let open = opened(&file);
    for device in [&one, &other, &over] {
        refused(&device.0, "its file is held");
    }
    drop(open);
    let open = opened(&over.0);
    refused(&other.0, "a loop device over it is held");
    refused(&file, "a loop device over a loop device over it is held");
    drop(open);
    let held = claimed(&one.0);
    refused(&file, "a loop device over it is claimed");
    drop(held);
    opened(&file);
}

#[test]
fn parts_of_a_file_behind_loop_devices_are_apart_from_each_other_but_not_from_the_file() {
    let folder = Folder::disk();
    let file = folder.file("backing", 8 << 20);
    let Some(first) = Loop::new(&file, &["--sizelimit", "4194304"]) else { return };
    let second = Loop::new(&file, &["--offset", "4194304"]).unwrap();
    let storage = |path: &Path| uring::Storage::of(path).unwrap();
    let (all, one, two) = (storage(&file), storage(&first.0), storage(&second.0));
    assert!(!one.overlaps(&two) && one.overlaps(&all) && all.overlaps(&two));
    let held = opened(&first.0);
    opened(&second.0);
    refused(&file, "a part of it is held");
    drop(held);
    let names = [&all, &one, &two].map(|storage| storage.lasting_name().unwrap().to_owned());
    assert_eq!(names.iter().collect::<std::collections::BTreeSet<_>>().len(), 3, "{names:?}");
}

#[test]
fn parts_of_a_device_behind_loop_devices_are_apart_from_each_other_but_not_from_the_device() {
    let folder = Folder::disk();
    let file = folder.file("backing", 8 << 20);
    let Some(disk) = Loop::new(&file, &[]) else { return };
    let first = Loop::new(&disk.0, &["--sizelimit", "4194304"]).unwrap();
    let second = Loop::new(&disk.0, &["--offset", "4194304"]).unwrap();
    let across = Loop::new(&disk.0, &["--offset", "2097152", "--sizelimit", "4194304"]).unwrap();
    let one = opened(&first.0);
    let other = opened(&second.0);
    let refuses = |held: &str| {
        refused(&disk.0, held);
        refused(&file, held);
        refused(&across.0, held);
    };
    refuses("two parts of it are held");
    // The one that is left has joined the one that claimed the device.
    drop(one);
    refuses("the second part of it is held");
    let one = opened(&first.0);
    drop(other);
    refuses("the first part of it is held");
    drop(one);
    // What holds the device for another reason keeps all parts out, and so does what holds a part that
    // crosses.
    let held = opened(&disk.0);
    refused(&first.0, "the device below is held");
    drop(held);
    let held = opened(&across.0);
    refused(&first.0, "a part that crosses it is held");
    refused(&second.0, "a part that crosses it is held");
    drop(held);
    let held = claimed(&disk.0);
    refused(&first.0, "the device below is claimed by a program that knows nothing of our marks");
    drop(held);
    opened(&first.0);
}

#[test]
fn a_file_below_a_loop_device_is_read_by_many_and_written_by_none_of_them() {
    let folder = Folder::disk();
    let file = folder.file("backing", 8 << 20);
    let Some(over) = Loop::new(&file, &[]) else { return };
    let read_only = OpenOptions { read_only: true, ..OpenOptions::default() };
    let reader = || opened_as(&file, &read_only);
    drop(opened(&file));
    let first = reader();
    let second = reader();
    let refuses = |held: &str| {
        refused(&file, held);
        refused(&over.0, held);
    };
    refuses("two read it");
    drop(first);
    refuses("one reads it that found another there");
    let third = reader();
    drop(second);
    refuses("the last one reads it");
    drop(third);
    let writer = opened(&over.0);
    assert!(
        matches!(OpenFile::open(&file, &read_only), Err(OpenError::Busy { .. })),
        "a loop device over it is written"
    );
    drop(writer);
    let held = claimed(&over.0);
    assert!(
        matches!(OpenFile::open(&file, &read_only), Err(OpenError::Busy { .. })),
        "a loop device over it is claimed"
    );
    drop(held);
}

#[test]
fn a_partition_and_its_disk_are_one_and_two_partitions_are_not() {
    let folder = Folder::disk();
    let file = folder.file("backing", 8 << 20);
    let Some(disk) = Loop::new(&file, &[]) else { return };
    let parts = ["1", "2"].map(|number| PathBuf::from(format!("{}p{number}", disk.0.display())));
    for (number, start) in [("1", "2048"), ("2", "6144")] {
        let added = Command::new("addpart").arg(&disk.0).args([number, start, "4096"]).status().unwrap();
        assert!(added.success());
    }
    let storage = |path: &Path| uring::Storage::of(path).unwrap();
    let [one, two] = parts.each_ref().map(|path| storage(path));
    assert!(!one.overlaps(&two) && one.overlaps(&storage(&disk.0)) && one.overlaps(&storage(&file)));
    assert_eq!(one.lasting_name(), None, "nothing says which partition it is");
    let held = opened(&parts[0]);
    drop(opened(&parts[1]));
    refused(&disk.0, "a partition of it is held");
    refused(&file, "a partition of a loop device over it is held");
    drop(held);
    let held = opened(&file);
    refused(&parts[0], "the file below its disk is held");
    drop(held);
    for number in ["1", "2"] {
        assert!(Command::new("delpart").arg(&disk.0).arg(number).status().unwrap().success());
    }
}

#[test]
fn a_file_has_a_lasting_name_that_its_path_has_no_part_in() {
    let folder = Folder::disk();
    let file = folder.file("before", 1 << 20);
    let name = |path: &Path| uring::Storage::of(path).unwrap().lasting_name().unwrap().to_owned();
    let before = name(&file);
    let renamed = folder.0.join("after");
    std::fs::rename(&file, &renamed).unwrap();
    assert_eq!(name(&renamed), before);
    assert_ne!(name(&folder.file("before", 1 << 20)), before);
    let Some(device) = Loop::new(&renamed, &[]) else { return };
    assert_eq!(name(&device.0), before, "a loop device over it is the same");
}

#[test]
fn what_an_open_file_is_does_not_change_with_its_path() {
    let folder = Folder::disk();
    let path = folder.file("file", 1 << 20);
    let before = uring::Storage::of(&path).unwrap();
    let open = opened(&path);
    std::fs::rename(folder.file("other", 1 << 20), &path).unwrap();
    assert!(!uring::Storage::of(&path).unwrap().overlaps(&before));
    let now = open.storage().unwrap();
    assert!(now.overlaps(&before) && now.lasting_name() == before.lasting_name());
}

#[test]
fn a_read_only_device_is_refused_before_it_is_written() {
    let folder = Folder::disk();
    let Some(device) = Loop::new(&folder.file("backing", 1 << 20), &["--read-only"]) else { return };
    let error = OpenFile::open(&device.0, &OpenOptions::default()).err().unwrap();
    assert!(matches!(error, OpenError::ReadOnly { .. }), "{error}");
    OpenFile::open(&device.0, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap();
}

// --- the end, with requests in flight ---

#[test]
fn the_end_waits_for_requests_in_flight() {
    let folder = Folder::disk();
    for round in 0..5 {
        let path = folder.file("member", 16 << 20);
        run(2, move |context| async move {
            let open = OpenFile::open(&path, &OpenOptions::default()).unwrap();
            for handle in context.shards() {
                let open = Arc::clone(&open);
                handle.send(move || {
                    for task in 0..16 {
                        let device = open.attach();
                        shard::spawn(async move {
                            let mut random = Random(round * 16 + task + 1);
                            loop {
                                let offset = random.below(255) * (64 << 10);
                                let read = device.read(offset, shard::buffer(64 << 10));
                                let mut data = shard::buffer(64 << 10);
                                data.fill(7);
                                let write = device.write(offset, data.freeze(), random.below(4) == 0);
                                // Dropped submissions are in flight too.
                                drop(device.read(offset, shard::buffer(4096)));
                                read.await.result.unwrap();
                                write.await.result.unwrap();
                            }
                        });
                    }
                });
            }
            shard::sleep(20_000_000).await;
        });
    }
}

#[test]
fn the_end_cancels_what_would_wait_for_ever() {
    let folder = Folder::disk();
    let path = folder.0.join("socket");
    let start = Instant::now();
    run(2, move |_| async move {
        let listener = Listener::unix(&path).unwrap();
        let client = uring::connect_unix(&path).await.unwrap();
        let server = listener.accept().await.unwrap().attach().unwrap();
        shard::spawn(async move {
            let receive = server.receive(shard::buffer(4096));
            let other = client.receive(shard::buffer(4096));
            shard::spawn(async move {
                let _ = listener.accept().await;
            });
            receive.await.result.unwrap();
            other.await.result.unwrap();
        });
        shard::sleep(5_000_000).await;
    });
    assert!(start.elapsed() < PATIENCE);
}

// --- sockets ---

async fn send_all(stream: &dyn Stream, mut data: pinstripe_runtime::Slice) {
    while !data.is_empty() {
        let sent = stream.send(data.clone()).await.result.unwrap();
        data = data.slice(sent, data.len() - sent);
    }
}

async fn echo(stream: Rc<uring::SocketStream>) {
    loop {
        let outcome = stream.receive(shard::buffer(64 << 10)).await;
        let count = outcome.result.unwrap();
        if count == 0 {
            return;
        }
        let mut buffer = outcome.buffer.unwrap();
        buffer.truncate(count);
        send_all(&*stream, buffer.freeze()).await;
    }
}

/// Sends `total` bytes through an echo and compares what comes back.
async fn converse(stream: Rc<uring::SocketStream>, total: usize) {
    let sender = Rc::clone(&stream);
    let sending = shard::spawn_joined(async move {
        let mut at = 0;
        while at < total {
            let mut buffer = shard::buffer((1 << 20).min(total - at));
            for (i, byte) in buffer.iter_mut().enumerate() {
                *byte = byte_at((at + i) as u64, 3);
            }
            at += buffer.len();
            send_all(&*sender, buffer.freeze()).await;
        }
    });
    let mut at = 0;
    while at < total {
        let outcome = stream.receive(shard::buffer(256 << 10)).await;
        let count = outcome.result.unwrap();
        assert!(count > 0, "the echo ended after {at} bytes");
        for byte in &outcome.buffer.unwrap()[..count] {
            assert_eq!(*byte, byte_at(at as u64, 3), "byte {at}");
            at += 1;
        }
    }
    sending.join().await;
}

async fn serve(context: Context, listener: Listener) {
    for i in 0.. {
        let connection = listener.accept().await.unwrap();
        // Another shard may serve it.
        context.shards()[i % context.shards().len()].send(move || {
            shard::spawn(async move { echo(connection.attach().unwrap()).await });
        });
    }
}

#[test]
fn a_unix_socket_echoes_large_transfers() {
    let folder = Folder::disk();
    let path = folder.0.join("socket");
    run(2, move |context| async move {
        let listener = Listener::unix(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        shard::spawn(serve(context, listener));
        for _ in 0..2 {
            converse(uring::connect_unix(&path).await.unwrap(), 16 << 20).await;
        }
    });
}

#[test]
fn tcp_echoes_large_transfers() {
    run(2, |context| async move {
        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.tcp_address().unwrap();
        let error = Listener::tcp(address).err().unwrap();
        assert!(matches!(&error, ListenError::InUse { .. }), "{error}");
        shard::spawn(serve(context, listener));
        for _ in 0..2 {
            converse(uring::connect_tcp(address).await.unwrap(), 16 << 20).await;
        }
        // A client that waits does not delay the next.
        let _idle = uring::connect_tcp(address).await.unwrap();
        converse(uring::connect_tcp(address).await.unwrap(), 1 << 20).await;
    });
}

#[test]
fn an_address_is_listened_on_before_an_interface_has_it() {
    run(1, |_| async {
        let listen = |address: &str| Listener::tcp(address.parse().unwrap());
        let is_early = |address| listen(address).unwrap().is_ahead_of_network();
        assert!(!is_early("127.0.0.1:0") && !is_early("0.0.0.0:0"));
        // Of documentation: no interface has these.
        assert!(is_early("192.0.2.1:0"));
        // A kernel may do without it.
        if std::net::TcpListener::bind("[::1]:0").is_ok() {
            assert!(is_early("[2001:db8::1]:0") && !is_early("[::1]:0"));
        }
        let first = listen("192.0.2.1:0").unwrap();
        let error = listen(&first.tcp_address().unwrap().to_string()).err().unwrap();
        assert!(matches!(&error, ListenError::InUse { .. }), "{error}");
    });
}

#[test]
fn a_closed_peer_reads_as_zero_bytes_and_a_shutdown_ends_a_receive() {
    run(1, |_| async {
        let (near, far) = UnixStream::pair().unwrap();
        let stream = Connection::new(near).attach().unwrap();
        let waiting = Rc::clone(&stream);
        let join = shard::spawn_joined(async move { waiting.receive(shard::buffer(16)).await.result });
        shard::sleep(2_000_000).await;
        stream.shutdown();
        assert_eq!(join.join().await, Ok(0));
        drop(far);
        assert!(stream.send(shard::zeroed(16).freeze()).await.result.is_err());

        let (near, mut far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        let stream = Connection::new(near).attach().unwrap();
        let receive = stream.receive(shard::buffer(16));
        far.write_all(b"last words").unwrap();
        drop(far);
        let outcome = receive.await;
        assert_eq!((outcome.result, &outcome.buffer.unwrap()[..10]), (Ok(10), &b"last words"[..]));
        assert_eq!(stream.receive(shard::buffer(16)).await.result, Ok(0));
    });
}

#[test]
fn a_dropped_stream_hangs_up_though_a_receive_is_under_way() {
    run(1, |_| async {
        let (near, mut far) = UnixStream::pair().unwrap();
        let stream = Connection::new(near).attach().unwrap();
        drop(stream.receive(shard::buffer(16)));
        shard::sleep(2_000_000).await;
        drop(stream);
        let read = uring::blocking(move || far.read(&mut [0]).unwrap());
        assert_eq!(shard::timeout(2_000_000_000, read).await, Some(0));
    });
}

#[test]
fn a_connection_is_left_while_a_receive_waits_and_no_byte_is_lost() {
    run(1, |_| async {
        let (near, mut far) = UnixStream::pair().unwrap();
        let stream = Connection::new(near).attach().unwrap();
        for byte in 1..50_u8 {
            let receive = stream.receive(shard::buffer(64));
            // The byte comes first, or the interruption does.
            let comes_first = byte % 2 == 0;
            if comes_first {
                far.write_all(&[byte]).unwrap();
            }
            stream.interrupt(&receive);
            let first = shard::timeout(2_000_000_000, receive).await.expect("it was interrupted");
            assert!(comes_first || first.result.is_err());
            let outcome = if first.result.is_ok() {
                first
            } else {
                if !comes_first {
                    far.write_all(&[byte]).unwrap();
                }
                stream.receive(shard::buffer(64)).await
            };
            assert_eq!((outcome.result, outcome.buffer.unwrap()[0]), (Ok(1), byte));
        }
        let next = stream.leave().unwrap();
        drop(stream);
        let next = next.attach().unwrap();
        far.write_all(b"still there").unwrap();
        let outcome = next.receive(shard::buffer(64)).await;
        assert_eq!(&outcome.buffer.unwrap()[..outcome.result.unwrap()], b"still there");
        drop(next);
        assert_eq!(far.read(&mut [0; 16]).unwrap(), 0, "the last one ends it");
    });
}

#[test]
fn a_listening_socket_that_is_left_goes_on_in_another_listener() {
    let folder = Folder::disk();
    let path = folder.0.join("socket");
    run(1, move |_| async move {
        let listener = Listener::unix(&path).unwrap();
        let leaver = listener.leaver();
        // A task has it, and waits.
        let task = shard::spawn_joined(async move {
            let _ = shard::timeout(2_000_000, listener.accept()).await;
        });
        let (left, file) = (leaver.leave().unwrap(), leaver.file().unwrap());
        task.join().await;
        let client = uring::connect_unix(&path).await.unwrap();
        let next = Listener::inherited(left, Some((&path, file))).unwrap();
        drop(next.accept().await.unwrap());
        drop(client);
        drop(next);
        assert!(!path.exists(), "the last one removes it");

        let listener = Listener::tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        let left = listener.leaver().leave().unwrap();
        let address = listener.tcp_address();
        drop(listener);
        let next = Listener::inherited(left, None).unwrap();
        assert_eq!(next.tcp_address(), address);
        let _client = uring::connect_tcp(address.unwrap()).await.unwrap();
        next.accept().await.unwrap();
    });
}

#[test]
fn an_inherited_socket_that_was_never_accepted_on_goes_on_listening() {
    let folder = Folder::disk();
    let path = folder.0.join("socket");
    run(1, move |_| async move {
        let listener = Listener::unix(&path).unwrap();
        let leaver = listener.leaver();
        let (left, file) = (leaver.leave().unwrap(), leaver.file().unwrap());
        drop(listener);
        let again = left.try_clone().unwrap();
        drop(Listener::inherited(left, Some((&path, file))).unwrap());
        assert!(path.exists(), "it goes back to the one before");
        let next = Listener::inherited(again, Some((&path, file))).unwrap();
        let _client = uring::connect_unix(&path).await.unwrap();
        next.accept().await.unwrap();
        // Another program's file is there now.
        std::fs::remove_file(&path).unwrap();
        let other = Listener::unix(&path).unwrap();
        drop(next);
        assert!(path.exists(), "the file of another socket is removed");
        drop(other);
    });
}

#[test]
fn a_socket_that_is_not_left_after_all_ends_with_its_listener() {
    let folder = Folder::disk();
    let path = folder.0.join("socket");
    run(1, move |_| async move {
        let listener = Listener::unix(&path).unwrap();
        let leaver = listener.leaver();
        drop(leaver.leave().unwrap());
        leaver.stay();
        drop(listener);
        assert!(!path.exists());
    });
}

#[test]
fn a_connection_that_comes_while_its_listener_is_left_is_not_lost() {
    for later in [0, 2_000_000] {
        let folder = Folder::disk();
        let path = folder.0.join("socket");
        run(1, move |_| async move {
            let listener = Listener::unix(&path).unwrap();
            let leaver = listener.leaver();
            assert!(shard::timeout(2_000_000, listener.accept()).await.is_none());
            let (left, file) = (leaver.leave().unwrap(), leaver.file().unwrap());
            let mut client = UnixStream::connect(&path).unwrap();
            // The ring may have accepted it by then, or not.
            shard::sleep(later).await;
            drop(listener);
            shard::sleep(20_000_000).await;
            let accepted = leaver.last_accepted();
            assert!(accepted.is_some() || later == 0);
            let connection = match accepted {
                Some(socket) => Connection::new(socket),
                None => Listener::inherited(left, Some((&path, file))).unwrap().accept().await.unwrap(),
            };
            let connection = connection.attach().unwrap();
            client.write_all(b"here").unwrap();
            let outcome = connection.receive(shard::buffer(16)).await;
            assert_eq!(&outcome.buffer.unwrap()[..outcome.result.unwrap()], b"here");
        });
    }
}

#[test]
fn a_dropped_accept_loses_no_connection() {
    let folder = Folder::disk();
    let path = folder.0.join("socket");
    run(1, move |_| async move {
        let listener = Listener::unix(&path).unwrap();
        assert!(shard::timeout(2_000_000, listener.accept()).await.is_none());
        let client = uring::connect_unix(&path).await.unwrap();
        shard::sleep(2_000_000).await;
        let server = listener.accept().await.unwrap().attach().unwrap();
        let mut hello = shard::buffer(5);
        hello.copy_from_slice(b"hello");
        send_all(&*client, hello.freeze()).await;
        assert_eq!(server.receive(shard::buffer(64)).await.result, Ok(5));
    });
}

#[test]
fn only_a_stale_socket_is_replaced() {
    let folder = Folder::disk();
    let path = folder.0.join("socket");
    run(1, move |_| async move {
        // Left over by a server that was killed.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let listener = Listener::unix(&path).unwrap();
        let error = Listener::unix(&path).err().unwrap();
        assert!(matches!(&error, ListenError::InUse { .. }), "{error}");
        assert!(error.to_string().contains("is in use"), "{error}");
        drop(listener);
        assert!(!path.exists(), "a listener takes its file with it");
        std::fs::write(&path, b"precious").unwrap();
        assert!(matches!(Listener::unix(&path).err().unwrap(), ListenError::NotASocket { .. }));
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        assert!(matches!(Listener::unix("/no/such/folder/socket").err().unwrap(), ListenError::Io { .. }));
    });
}

#[test]
fn termination_signals_are_awaited() {
    // In a process of its own: a signal to this one would end every test.
    let run = |signal: &str| {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "waits_for_termination", "--nocapture"])
            .env("PINSTRIPE_SIGNAL", signal)
            .output()
            .unwrap();
        assert!(child.status.success(), "{signal}: {}", String::from_utf8_lossy(&child.stderr));
    };
    run("TERM");
    run("INT");
}

/// Does nothing unless the test above has started it.
#[test]
fn waits_for_termination() {
    let Ok(signal) = std::env::var("PINSTRIPE_SIGNAL") else { return };
    let config = RuntimeConfig { termination_signals: true, ..config(2) };
    let expected = if signal == "INT" { Termination::Interrupt } else { Termination::Terminate };
    // The test harness has threads that don't hold signals back, so this one goes to the shard itself.
    let seen = uring::run(&config, move |_| async move {
        // A wait that is given up must not eat the signal.
        assert!(shard::timeout(5_000_000, uring::termination()).await.is_none());
        let mut given_up = Box::pin(uring::termination());
        assert!(shard::timeout(5_000_000, given_up.as_mut()).await.is_none());
        shard::spawn(async move {
            let number = if signal == "INT" { libc::SIGINT } else { libc::SIGTERM };
            for number in [libc::SIGHUP, libc::SIGUSR1, libc::SIGUSR2, libc::SIGALRM, number] {
                // SAFETY: a valid signal to this thread, which holds it back.
                assert_eq!(unsafe { libc::pthread_kill(libc::pthread_self(), number) }, 0);
            }
        });
        // It has come, and nothing asked.
        shard::sleep(10_000_000).await;
        drop(given_up);
        shard::timeout(2_000_000_000, uring::termination()).await.unwrap().unwrap()
    });
    assert_eq!(seen.unwrap(), expected);
}

#[test]
fn a_pool_is_whole_again_after_a_run() {
    let left = run(1, |_| async {
        let folder = Folder::disk();
        let path = folder.file("member", 1 << 20);
        let device = OpenFile::open(&path, &OpenOptions::default()).unwrap().attach();
        for _ in 0..100 {
            drop(device.read(0, shard::buffer(4096)));
            device.write(0, shard::zeroed(4096).freeze(), false).await.result.unwrap();
        }
        while shard::with_current(pinstripe_runtime::Shard::requests_in_flight) > 0 {
            shard::sleep(1_000_000).await;
        }
        shard::with_current(|shard| Pool::outstanding(shard.pool()))
    });
    assert_eq!(left, 0);
}

#[test]
fn what_has_no_queues_to_poll_is_refused_with_advice() {
    let options = OpenOptions { poll: true, ..OpenOptions::default() };
    let folder = Folder::disk();
    let path = folder.file("member", 1 << 20);
    let refused = OpenFile::open(&path, &options).err().unwrap().to_string();
    assert!(refused.contains("can't be polled: it is a file"), "{refused}");
    let Some(device) = Loop::new(&path, &[]) else { return };
    let refused = OpenFile::open(&device.0, &options).err().unwrap().to_string();
    assert!(refused.contains("nvme.poll_queues=N"), "{refused}");
}
