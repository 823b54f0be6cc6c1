//! What a request costs the engine itself: over devices that do nothing. `cargo xtask cost` runs it under
//! callgrind, each case with two counts of requests, and compares the instructions of one request with those
//! of `cost.json`. (Time says less: cold memory hides 100 ns.)
//!
//! `frame` names the cases; `frame CASE COUNT` runs one.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "it is a program for developers")]

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
    time::Instant,
};

use pinstripe_engine::{array::Array, assembly::create::create, options::ArrayOptions, plan::WritePolicy};
use pinstripe_md::{
    identity::{SetName, Timestamp, Uuid},
    level::{Layout, Level, ParityLayout},
    placement::{InitialSync, NewArray, NewBitmap, NewDevice},
    superblock::MetadataVersion,
    units::{Sector, SectorCount},
};
use pinstripe_runtime::{
    Buffer, Completion, Device, DeviceError, DeviceInfo, DeviceSource, Memory, MemoryDevice, MemorySource,
    Shard, ShardConfig, Slice, Submission, completion::Payload, shard,
};

const METADATA: u64 = 1 << 20;
const SIZE: u64 = 1 << 30;
const IN_MEMORY: u64 = 32 << 20;
/// Places to which hot requests come back.
const HOT: u64 = 1000;

struct Null {
    memory: Arc<Memory>,
    queues: bool,
}

struct NullDevice {
    metadata: Rc<MemoryDevice>,
    info: DeviceInfo,
    queues: bool,
}

thread_local! {
    /// What was asked of devices that queue, and what each request answers.
    static QUEUE: RefCell<Vec<(Completion, usize)>> = const { RefCell::new(Vec::new()) };
}

/// A request that is answered a turn of the loop later.
fn queued(bytes: usize, payload: Payload) -> Submission {
    let (submission, completion) = Submission::pending(payload);
    QUEUE.with_borrow_mut(|queue| queue.push((completion, bytes)));
    submission
}

impl DeviceSource for Null {
    fn attach(&self) -> Result<Rc<dyn Device>, DeviceError> {
        let metadata = MemoryDevice::new("null", Arc::clone(&self.memory), 512);
        let info = DeviceInfo { size: SIZE, in_memory: false, ..metadata.info().clone() };
        Ok(Rc::new(NullDevice { metadata, info, queues: self.queues }))
    }
    fn name(&self) -> String {
        "null".to_owned()
    }
}

impl Device for NullDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn read(&self, offset: u64, buffer: Buffer) -> Submission {
        if offset < METADATA {
            return self.metadata.read(offset, buffer);
        }
        if self.queues {
            return queued(buffer.len(), Payload::Buffer(buffer));
        }
        Submission::done(Ok(buffer.len()), Some(buffer))
    }
    fn write(&self, offset: u64, data: Slice, fua: bool) -> Submission {
        if offset < METADATA {
            return self.metadata.write(offset, data, fua);
        }
        if self.queues {
            return queued(data.len(), Payload::Slice(data));
        }
        Submission::done(Ok(data.len()), None)
    }
    fn flush(&self) -> Submission {
        Submission::done(Ok(0), None)
    }
    fn discard(&self, _: u64, _: u64) -> Submission {
        Submission::done(Ok(0), None)
    }
    fn write_zeroes(&self, _: u64, _: u64) -> Submission {
        Submission::done(Ok(0), None)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Members {
    /// They do nothing, and answer at once.
    Null,
    /// They do nothing, and answer a turn of the loop later, as those behind a ring do.
    Queued,
    /// They are memory, and their bytes can be changed in place.
    Memory,
}

/// Requests of one kind.
#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    level: Level,
    size: usize,
    cache_bytes: usize,
    /// A member is missing.
    is_degraded: bool,
    reads: bool,
    members: Members,
    /// Requests come back to the same few places.
    is_hot: bool,
    policy: WritePolicy,
    bitmap: NewBitmap,
    /// Requests that are enough to tell the cost of one.
    count: u64,
}

impl Case {
    const fn write(name: &'static str, size: usize, count: u64) -> Self {
        Self {
            name,
            level: Level::Raid5,
            size,
            cache_bytes: 0,
            is_degraded: false,
            reads: false,
            members: Members::Null,
            is_hot: false,
            policy: WritePolicy::AlwaysRmw,
            bitmap: NewBitmap::Internal { chunk_bytes: None },
            count,
        }
    }

    /// What is changed in place isn't planned, under this policy alone.
    const fn in_memory(name: &'static str, size: usize, count: u64) -> Self {
        let members = Members::Memory;
        Self { members, policy: WritePolicy::Cost, ..Self::write(name, size, count) }
    }

    const fn without_bitmap(name: &'static str, size: usize, count: u64) -> Self {
        Self { bitmap: NewBitmap::None, ..Self::write(name, size, count) }
    }
}

const CASES: &[Case] = &[
    Case::write("raid5-write-4k", 4 << 10, 20_000),
    Case { members: Members::Queued, ..Case::write("raid5-write-4k-queued", 4 << 10, 20_000) },
    Case { policy: WritePolicy::Cost, ..Case::write("raid5-write-4k-by-cost", 4 << 10, 20_000) },
    Case { cache_bytes: 64 << 20, is_hot: true, ..Case::write("raid5-write-4k-cached", 4 << 10, 20_000) },
    // A cache that is full of others' parity and never of use.
    Case { cache_bytes: 1 << 20, ..Case::write("raid5-write-4k-not-cached", 4 << 10, 20_000) },
    Case { is_degraded: true, ..Case::write("raid5-write-4k-degraded", 4 << 10, 20_000) },
    Case { level: Level::Raid6, ..Case::write("raid6-write-4k", 4 << 10, 20_000) },
    Case::in_memory("raid5-write-4k-memory", 4 << 10, 20_000),
    Case { level: Level::Raid6, ..Case::in_memory("raid6-write-4k-memory", 4 << 10, 20_000) },
    Case::write("raid5-write-64k", 64 << 10, 4_000),
    Case::write("raid5-write-stripe", 320 << 10, 1_000),
    Case::without_bitmap("raid5-write-4k-no-bitmap", 4 << 10, 20_000),
    Case::without_bitmap("raid5-write-64k-no-bitmap", 64 << 10, 4_000),
    Case::without_bitmap("raid5-write-stripe-no-bitmap", 320 << 10, 1_000),
    Case { level: Level::Raid6, ..Case::write("raid6-write-stripe", 256 << 10, 1_000) },
    Case { reads: true, ..Case::write("raid5-read-4k", 4 << 10, 20_000) },
    Case { reads: true, members: Members::Queued, ..Case::write("raid5-read-4k-queued", 4 << 10, 20_000) },
    Case { reads: true, is_degraded: true, ..Case::write("raid5-read-4k-degraded", 4 << 10, 20_000) },
];

fn wish(level: Level, size: u64, bitmap: NewBitmap) -> NewArray {
    NewArray {
        set_uuid: Uuid([7; 16]),
        name: SetName::from_bytes([b'x'; 32]),
        created: Timestamp::new(1, 0),
        level,
        layout: Layout::Parity(ParityLayout::from_name(level, "default").unwrap()),
        chunk: SectorCount(128),
        version: MetadataVersion::V1_2,
        bitmap,
        initial: InitialSync::AssumeClean,
        size: None,
        data_offset: Some(Sector(METADATA / 512)),
        logical_block_bytes: 512,
        members: (1..=6).map(|i| NewDevice { sectors: size / 512, uuid: Uuid([i; 16]) }).collect(),
        spares: vec![],
    }
}

async fn run(case: Case, count: u64, handle: pinstripe_runtime::ShardHandle) {
    let in_memory = case.members == Members::Memory;
    let source = |_| -> Arc<dyn DeviceSource> {
        if in_memory {
            let memory = Memory::populated(usize::try_from(IN_MEMORY).unwrap()).unwrap();
            Arc::new(MemorySource { name: "memory".to_owned(), memory, logical_block: 512 })
        } else {
            let memory = Memory::new(usize::try_from(METADATA).unwrap()).unwrap();
            Arc::new(Null { memory, queues: case.members == Members::Queued })
        }
    };
    let mut sources: Vec<_> = (0..6).map(source).collect();
    let devices: Vec<_> = sources.iter().map(|source| source.attach().unwrap()).collect();
    let bytes = if in_memory { IN_MEMORY } else { SIZE };
    create(&wish(case.level, bytes, case.bitmap), &devices).await.unwrap();
    sources.truncate(6 - usize::from(case.is_degraded));
    let options =
        ArrayOptions { parity_cache_bytes: case.cache_bytes, policy: case.policy, ..ArrayOptions::default() };
    let array = Array::assemble(sources, options, vec![handle]).await.unwrap();
    let (volume, size) = (array.volume(), case.size as u64);
    let data = shard::zeroed(case.size).freeze();
    let mut buffer = shard::buffer(case.size);
    let places = if case.is_hot { HOT } else { volume.size() / size };
    let started = Instant::now();
    for number in 0..count {
        let at = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % places * size;
        if case.reads {
            let (result, back) = volume.read(at, buffer).await;
            result.unwrap();
            buffer = back;
        } else {
            volume.write(at, data.clone(), false).await.unwrap();
        }
    }
    println!("{} ns per request", started.elapsed().as_nanos() / u128::from(count.max(1)));
}

fn main() {
    let Some(name) = std::env::args().nth(1) else {
        for case in CASES {
            println!("{} {}", case.name, case.count);
        }
        return;
    };
    let case = *CASES.iter().find(|case| case.name == name).unwrap();
    let count = std::env::args().nth(2).map_or(case.count, |count| count.parse().unwrap());
    // Members' prices are measured, and would make two runs differ: where they are asked for, time stands
    // still.
    let clock = (case.policy == WritePolicy::Cost).then(|| Rc::new(Cell::new(1)));
    let shard = Shard::new(&ShardConfig { index: 0, arena_bytes: 4 << 20, clock });
    let _entered = shard.enter();
    let handle = shard.handle();
    let done = Rc::new(Cell::new(false));
    let flag = Rc::clone(&done);
    shard.spawn(async move {
        run(case, count, handle).await;
        flag.set(true);
    });
    while !done.get() {
        shard.turn();
        shard.deliver_mail();
        shard.fire_timers();
        while shard.poll_ready(0) {}
        while let Some((completion, bytes)) = QUEUE.with_borrow_mut(Vec::pop) {
            completion.finish(Ok(bytes));
        }
    }
    shard.drop_tasks();
}
