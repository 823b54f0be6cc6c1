//! After warm-up the I/O path allocates nothing, with members that answer at once and with members that take
//! their time.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    rc::Rc,
    sync::Arc,
};

use pinstripe_engine::{
    array::Array, assembly::create::create, io::volume::Volume, options::ArrayOptions, plan::WritePolicy,
};
use pinstripe_md::{
    identity::{SetName, Timestamp, Uuid},
    level::{Layout as MdLayout, Level, ParityLayout},
    placement::{InitialSync, NewArray, NewBitmap, NewDevice},
    superblock::MetadataVersion,
    units::{Sector, SectorCount},
};
use pinstripe_runtime::{
    Buffer, Completion, Device, DeviceError, DeviceInfo, DeviceSource, Memory, MemoryDevice, Shard,
    ShardConfig, Slice, Submission, completion::Payload, shard,
};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static IS_COUNTED: Cell<bool> = const { Cell::new(false) };
}

struct Counting;

impl Counting {
    /// With `SHOW_ALLOCATIONS` in the environment it says where the first ones come from.
    fn count() {
        if IS_COUNTED.replace(false) {
            ALLOCATIONS.set(ALLOCATIONS.get() + 1);
            if ALLOCATIONS.get() < 5 && std::env::var_os("SHOW_ALLOCATIONS").is_some() {
                eprintln!("{}", std::backtrace::Backtrace::force_capture());
            }
            IS_COUNTED.set(true);
        }
    }
}

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::count();
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MEMBERS: u8 = 6;
const MEMBER_BYTES: usize = 8 << 20;
const CHUNK: u64 = 16 << 10;
const CLIENTS: u64 = 16;
const WARM: u64 = 100_000;
const OPERATIONS: u64 = 1_000_000;
/// Requests that a slow member has under way before it completes the oldest.
const LATE: usize = 24;

/// The ends of requests that slow members have not completed.
type Pending = VecDeque<(Completion, Result<usize, DeviceError>)>;

thread_local! {
    static PENDING: RefCell<Pending> = const { RefCell::new(VecDeque::new()) };
}

struct Source {
    memory: Arc<Memory>,
    slow: bool,
}

impl DeviceSource for Source {
    fn attach(&self) -> Result<Rc<dyn Device>, DeviceError> {
        let memory = MemoryDevice::new("memory", Arc::clone(&self.memory), 512);
        Ok(if self.slow { Rc::new(Slow(memory)) } else { memory })
    }
    fn name(&self) -> String {
        "memory".to_owned()
    }
}

/// Does everything at once and says so later.
struct Slow(Rc<MemoryDevice>);

/// The answer of `done`, which is ready, later.
fn later(mut done: Submission) -> Submission {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(outcome) = std::pin::Pin::new(&mut done).poll(&mut context) else {
        panic!("memory answers at once")
    };
    let payload = outcome.buffer.map_or(Payload::None, Payload::Buffer);
    let (submission, completion) = Submission::pending(payload);
    PENDING.with_borrow_mut(|pending| pending.push_back((completion, outcome.result)));
    submission
}

impl Device for Slow {
    fn info(&self) -> &DeviceInfo {
        self.0.info()
    }
    fn read(&self, offset: u64, buffer: Buffer) -> Submission {
        later(self.0.read(offset, buffer))
    }
    fn write(&self, offset: u64, data: Slice, fua: bool) -> Submission {
        later(self.0.write(offset, data, fua))
    }
    fn flush(&self) -> Submission {
        later(self.0.flush())
    }
    fn discard(&self, offset: u64, length: u64) -> Submission {
        later(self.0.discard(offset, length))
    }
    fn write_zeroes(&self, offset: u64, length: u64) -> Submission {
        later(self.0.write_zeroes(offset, length))
    }
}

fn wish(level: Level) -> NewArray {
    let member = |i| NewDevice { sectors: MEMBER_BYTES as u64 / 512, uuid: Uuid([i; 16]) };
    NewArray {
        set_uuid: Uuid([7; 16]),
        name: SetName::from_bytes([b'x'; 32]),
        created: Timestamp::new(1, 0),
        level,
        layout: MdLayout::Parity(ParityLayout::from_name(level, "default").unwrap()),
        chunk: SectorCount(CHUNK / 512),
        version: MetadataVersion::V1_2,
        bitmap: NewBitmap::Internal { chunk_bytes: Some(1 << 20) },
        initial: InitialSync::AssumeClean,
        size: None,
        data_offset: Some(Sector(256)),
        logical_block_bytes: 512,
        members: (1..=MEMBERS).map(member).collect(),
        spares: vec![],
    }
}

/// Turns the shard until `done`.
fn turn_until(shard: &Rc<Shard>, mut done: impl FnMut() -> bool) {
    while !done() {
        shard.turn();
        shard.deliver_mail();
        shard.fire_timers();
        while shard.poll_ready(0) {}
        let waiting = PENDING.with_borrow(VecDeque::len);
        for _ in 0..waiting.saturating_sub(LATE).max(1) {
            let Some((completion, result)) = PENDING.with_borrow_mut(VecDeque::pop_front) else { break };
            completion.finish(result);
        }
    }
}

fn block_on<T: 'static>(shard: &Rc<Shard>, future: impl Future<Output = T> + 'static) -> T {
    let value = Rc::new(RefCell::new(None));
    let slot = Rc::clone(&value);
    shard.spawn(async move {
        let made = future.await;
        *slot.borrow_mut() = Some(made);
    });
    turn_until(shard, || value.borrow().is_some());
    value.take().unwrap()
}

/// One request of all kinds: small and large, aligned and not, over chunks and stripes, anywhere and in a hot
/// place.
async fn request(volume: &Volume, number: u64, dice: u64) {
    const SIZES: [u64; 8] = [512, 1024, 4096, 4096, 4096, 12_288, CHUNK, 6 * CHUNK];
    let length = SIZES[usize::try_from(dice % 8).unwrap()];
    let room = if (dice >> 8).is_multiple_of(8) { 32 * CHUNK } else { volume.size() };
    let offset = (dice >> 16) % ((room - length) / 512) * 512;
    let bytes = usize::try_from(length).unwrap();
    match number % 32 {
        0 => volume.flush().await.unwrap(),
        1..=9 => volume.read(offset, shard::buffer(bytes)).await.0.unwrap(),
        number => volume.write(offset, shard::buffer(bytes).freeze(), number == 10).await.unwrap(),
    }
}

async fn client(volume: Volume, left: Rc<Cell<u64>>, running: Rc<Cell<u64>>, mut seed: u64) {
    while left.get() > 0 {
        left.set(left.get() - 1);
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        request(&volume, left.get(), seed >> 11).await;
        shard::yield_now().await;
    }
    running.set(running.get() - 1);
}

/// Has clients work. Returns how often they allocated.
fn load(shard: &Rc<Shard>, volume: &Volume, clients: u64, operations: u64) -> u64 {
    let (left, running) = (Rc::new(Cell::new(operations)), Rc::new(Cell::new(clients)));
    ALLOCATIONS.set(0);
    IS_COUNTED.set(true);
    for number in 0..clients {
        shard.spawn(client(volume.clone(), Rc::clone(&left), Rc::clone(&running), operations + number));
    }
    turn_until(shard, || running.get() == 0);
    IS_COUNTED.set(false);
    ALLOCATIONS.get()
}

/// Parity of members as fast as memory is kept only under `min-reads`.
fn allocations(level: Level, slow: bool, policy: WritePolicy, operations: u64) -> u64 {
    let shard = Shard::new(&ShardConfig { index: 0, arena_bytes: 64 << 20, clock: None });
    let _entered = shard.enter();
    let memories = (0..MEMBERS).map(|_| Memory::new(MEMBER_BYTES).unwrap());
    let sources: Vec<Arc<dyn DeviceSource>> =
        memories.map(|memory| Arc::new(Source { memory, slow }) as Arc<dyn DeviceSource>).collect();
    let devices: Vec<_> = sources.iter().map(|source| source.attach().unwrap()).collect();
    block_on(&shard, async move { create(&wish(level), &devices).await.unwrap() });
    let options = ArrayOptions { policy, parity_cache_bytes: 1 << 20, ..ArrayOptions::default() };
    let handles = vec![shard.handle()];
    let array = block_on(&shard, Array::assemble(sources, options, handles)).unwrap();
    // More than will be needed later: what is pooled grows with the most that was ever in use.
    let warm = load(&shard, array.volume(), 3 * CLIENTS, WARM);
    assert!(warm > 0, "the allocator counts");
    let made = load(&shard, array.volume(), CLIENTS, operations);
    let scrub = array.clone();
    let report = block_on(&shard, async move { scrub.check().await.unwrap() });
    assert_eq!((report.mismatched_sectors, report.unreadable_stripes), (0, 0));
    let statistics = array.detail().statistics;
    assert!(policy != WritePolicy::MinReads || statistics.cache_hits > 0, "the cache had nothing to do");
    println!("{level}: {} joins", statistics.joins);
    shard.drop_tasks();
    made
}

#[test]
fn a_million_operations_on_raid5_allocate_nothing() {
    assert_eq!(allocations(Level::Raid5, false, WritePolicy::Cost, OPERATIONS), 0);
}

#[test]
fn operations_on_raid6_allocate_nothing() {
    assert_eq!(allocations(Level::Raid6, false, WritePolicy::MinReads, OPERATIONS / 4), 0);
}

#[test]
fn operations_on_members_that_take_their_time_allocate_nothing() {
    assert_eq!(allocations(Level::Raid5, true, WritePolicy::Cost, OPERATIONS / 4), 0);
    assert_eq!(allocations(Level::Raid6, true, WritePolicy::MinReads, OPERATIONS / 8), 0);
}
