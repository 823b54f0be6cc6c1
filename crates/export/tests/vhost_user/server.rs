//! Our back end on shards of its own, and a disk for it.

use std::{
    cell::RefCell,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
};

use pinstripe_block::{
    BlockService, Client, ServiceError,
    budget::Budget,
    first_of::{First, first_of},
};
use pinstripe_export::vhost_user::{Backend, Ended, serve};
use pinstripe_runtime::{
    Buffer, Signal, Slice, shard,
    uring::{Context, Listener, RuntimeConfig, run},
};

pub const DISK_BYTES: usize = 4 << 20;
/// How long monitors may take until they want the disk.
const PATIENCE_NANOSECONDS: u64 = 2_000_000_000;
pub const NAME: &[u8; 20] = b"0123456789abcdef0123";

thread_local! {
    /// That of the queue which was begun last on this shard.
    static CLIENT: RefCell<Client> = RefCell::default();
}

/// A disk in memory, which all shards share, and which can have its writes and discards wait.
#[derive(Clone)]
pub struct Disk(Arc<State>);

struct State {
    size_bytes: AtomicU64,
    bytes: Mutex<Vec<u8>>,
    log: Mutex<Vec<String>>,
    is_held: AtomicBool,
    /// Whether each write waits for 10 seconds, unless its client hangs up.
    is_limited: AtomicBool,
    /// How many of those that are held may go all the same.
    passes: AtomicUsize,
    changed: Signal,
}

impl Disk {
    pub fn new() -> Self {
        Self::that_seems_larger(DISK_BYTES as u64)
    }

    /// Behind [`DISK_BYTES`] it can only be discarded, and keeps nothing that is written.
    pub fn that_seems_larger(size_bytes: u64) -> Self {
        let state = State {
            size_bytes: AtomicU64::new(size_bytes),
            bytes: Mutex::new(vec![0; DISK_BYTES]),
            log: Mutex::default(),
            is_held: AtomicBool::new(false),
            is_limited: AtomicBool::new(false),
            passes: AtomicUsize::new(0),
            changed: Signal::default(),
        };
        Self(Arc::new(state))
    }

    /// Gives it another size, as between two servers.
    pub fn resize(&self, size_bytes: u64) {
        self.0.size_bytes.store(size_bytes, Ordering::SeqCst);
    }

    pub fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        self.0.bytes.lock().unwrap()[at..at + length].to_vec()
    }

    /// What was asked for since the last question.
    pub fn log(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.log.lock().unwrap())
    }

    pub fn hold(&self, is_held: bool) {
        self.0.is_held.store(is_held, Ordering::SeqCst);
        self.0.changed.notify();
    }

    /// Has each write wait for long.
    pub fn limit(&self) {
        self.0.is_limited.store(true, Ordering::SeqCst);
    }

    async fn pass_limit(&self) -> Result<(), ServiceError> {
        for _ in 0..100 {
            if !self.0.is_limited.load(Ordering::SeqCst) {
                return Ok(());
            }
            if CLIENT.with_borrow(Client::has_hung_up) {
                return Err(ServiceError::Io);
            }
            shard::sleep(100_000_000).await;
        }
        self.note("it has waited for long".into());
        Ok(())
    }

    /// Lets one go that is held, if there is one before `is_over`.
    pub fn let_pass(&self, is_over: impl Fn() -> bool) {
        self.0.passes.store(1, Ordering::SeqCst);
        self.0.changed.notify();
        while self.0.passes.load(Ordering::SeqCst) > 0 && !is_over() {
            std::thread::yield_now();
        }
    }

    async fn go(&self) {
        let pass = |passes: usize| passes.checked_sub(1);
        let may_go = || {
            !self.0.is_held.load(Ordering::SeqCst)
                || self.0.passes.fetch_update(Ordering::SeqCst, Ordering::SeqCst, pass).is_ok()
        };
        self.0.changed.wait_until(may_go).await;
    }

    fn note(&self, what: String) {
        self.0.log.lock().unwrap().push(what);
    }
}

impl BlockService for Disk {
    fn for_client(self, client: Client) -> Self {
        CLIENT.set(client);
        self
    }

    fn size_bytes(&self) -> u64 {
        self.0.size_bytes.load(Ordering::SeqCst)
    }

    fn block_size(&self) -> u32 {
        512
    }

    fn preferred_block(&self) -> u32 {
        4096
    }

    fn read_only(&self) -> bool {
        false
    }

    async fn read(&self, offset: u64, mut buffer: Buffer) -> (Result<(), ServiceError>, Buffer) {
        let length = buffer.len();
        buffer.copy_from_slice(&self.bytes(usize::try_from(offset).unwrap(), length));
        (Ok(()), buffer)
    }

    async fn write(&self, offset: u64, data: Slice, fua: bool) -> Result<(), ServiceError> {
        self.note(format!("write {offset} {} {fua}", data.len()));
        self.pass_limit().await?;
        self.go().await;
        let at = usize::try_from(offset).unwrap();
        if let Some(kept) = self.0.bytes.lock().unwrap().get_mut(at..at + data.len()) {
            kept.copy_from_slice(&data);
        }
        Ok(())
    }

    async fn flush(&self) -> Result<(), ServiceError> {
        self.note("flush".into());
        Ok(())
    }

    async fn discard(&self, offset: u64, length: u64, fua: bool) -> Result<(), ServiceError> {
        self.note(format!("discard {offset} {length} {fua}"));
        self.go().await;
        Ok(())
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        fua: bool,
        may_punch: bool,
    ) -> Result<(), ServiceError> {
        self.note(format!("zeroes {offset} {length} {may_punch} {fua}"));
        let (at, length) = (usize::try_from(offset).unwrap(), usize::try_from(length).unwrap());
        self.0.bytes.lock().unwrap()[at..at + length].fill(0);
        Ok(())
    }
}

/// Serves `disk` while `test` runs, which gets the socket's path. How each session ended.
pub fn with_server<T>(shards: usize, disk: &Disk, test: impl FnOnce(&Path) -> T) -> (T, Vec<Ended>) {
    with_server_to_stop(shards, disk, |path, _| test(path))
}

/// The same with a `test` that may have the server stop.
pub fn with_server_to_stop<T>(
    shards: usize,
    disk: &Disk,
    test: impl FnOnce(&Path, &dyn Fn()) -> T,
) -> (T, Vec<Ended>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vhost");
    let stop: Arc<(AtomicBool, Signal)> = Arc::default();
    let (disk, there, stopping) = (disk.clone(), path.clone(), Arc::clone(&stop));
    let server = std::thread::spawn(move || {
        run(&RuntimeConfig::unpinned(shards), move |context| async move {
            let listener = Listener::unix(&there).unwrap();
            serve_all(&context, &listener, move || disk.clone(), &stopping).await
        })
        .unwrap()
    });
    let want_end = || {
        stop.0.store(true, Ordering::SeqCst);
        stop.1.notify();
    };
    let value = test(&path, &want_end);
    want_end();
    (value, server.join().unwrap())
}

/// Serves one monitor after the other until `stop`.
pub async fn serve_all<S: BlockService>(
    context: &Context,
    listener: &Listener,
    service: impl Fn() -> S + Send + Sync + 'static,
    stop: &(AtomicBool, Signal),
) -> Vec<Ended> {
    let budget = Arc::new(Budget::new(64 << 20));
    let backend = Backend {
        shards: context.shards().to_vec(),
        service: Arc::new(service),
        budget: Arc::clone(&budget),
        name: *NAME,
        patience_nanoseconds: PATIENCE_NANOSECONDS,
    };
    let stopped = || stop.1.wait_until(|| stop.0.load(Ordering::SeqCst));
    let mut ended = Vec::new();
    loop {
        let connection = match first_of(stopped(), listener.accept()).await {
            First::One(()) => break,
            First::Other(connection) => connection.unwrap(),
        };
        ended.push(serve(connection, &backend, stopped(), || ()).await);
        assert_eq!(budget.held(), 0, "memory was counted and not given back");
    }
    ended
}
