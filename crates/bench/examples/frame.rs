//! What a request costs the engine itself: over devices that do nothing. `cargo xtask cost` runs it under
//! callgrind, each case with two counts of requests, and compares the instructions of one request with those
//! of `cost.json`. (Time says less: cold memory hides 100 ns.)
//!
//! `frame` names the cases; `frame CASE COUNT` runs one.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "it is a program for developers")]

use std::{rc::Rc, sync::Arc, time::Instant};

use pinstripe_engine::{array::Array, assembly::create::create, options::ArrayOptions, plan::WritePolicy};
use pinstripe_md::{
    identity::{SetName, Timestamp, Uuid},
    level::{Layout, Level, ParityLayout},
    placement::{InitialSync, NewArray, NewBitmap, NewDevice},
    superblock::MetadataVersion,
    units::{Sector, SectorCount},
};
use pinstripe_runtime::{
    Buffer, Device, DeviceError, DeviceInfo, DeviceSource, Memory, MemoryDevice, MemorySource, Shard,
    ShardConfig, Slice, Submission, shard,
};

const METADATA: u64 = 1 << 20;
const SIZE: u64 = 1 << 30;
const IN_MEMORY: u64 = 32 << 20;

struct Null(Arc<Memory>);

struct NullDevice {
    metadata: Rc<MemoryDevice>,
    info: DeviceInfo,
}

impl DeviceSource for Null {
    fn attach(&self) -> Result<Rc<dyn Device>, DeviceError> {
        let metadata = MemoryDevice::new("null", Arc::clone(&self.0), 512);
        let info = DeviceInfo { size: SIZE, ..metadata.info().clone() };
        Ok(Rc::new(NullDevice { metadata, info }))
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
        Submission::done(Ok(buffer.len()), Some(buffer))
    }
    fn write(&self, offset: u64, data: Slice, fua: bool) -> Submission {
        if offset < METADATA {
            return self.metadata.write(offset, data, fua);
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
    /// The members are memory, and their bytes can be changed in place; else they do nothing.
    in_memory: bool,
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
            in_memory: false,
            count,
        }
    }
}

const CASES: &[Case] = &[
    Case::write("raid5-write-4k", 4 << 10, 20_000),
    Case { cache_bytes: 64 << 20, ..Case::write("raid5-write-4k-cached", 4 << 10, 20_000) },
    Case { is_degraded: true, ..Case::write("raid5-write-4k-degraded", 4 << 10, 20_000) },
    Case { level: Level::Raid6, ..Case::write("raid6-write-4k", 4 << 10, 20_000) },
    Case { in_memory: true, ..Case::write("raid5-write-4k-memory", 4 << 10, 20_000) },
    Case { level: Level::Raid6, in_memory: true, ..Case::write("raid6-write-4k-memory", 4 << 10, 20_000) },
    Case::write("raid5-write-64k", 64 << 10, 4_000),
    Case::write("raid5-write-stripe", 320 << 10, 1_000),
    Case { level: Level::Raid6, ..Case::write("raid6-write-stripe", 256 << 10, 1_000) },
    Case { reads: true, ..Case::write("raid5-read-4k", 4 << 10, 20_000) },
    Case { reads: true, is_degraded: true, ..Case::write("raid5-read-4k-degraded", 4 << 10, 20_000) },
];

fn wish(level: Level, size: u64) -> NewArray {
    NewArray {
        set_uuid: Uuid([7; 16]),
        name: SetName::from_bytes([b'x'; 32]),
        created: Timestamp::new(1, 0),
        level,
        layout: Layout::Parity(ParityLayout::from_name(level, "default").unwrap()),
        chunk: SectorCount(128),
        version: MetadataVersion::V1_2,
        bitmap: NewBitmap::Internal { chunk_bytes: None },
        initial: InitialSync::AssumeClean,
        size: None,
        data_offset: Some(Sector(METADATA / 512)),
        logical_block_bytes: 512,
        members: (1..=6).map(|i| NewDevice { sectors: size / 512, uuid: Uuid([i; 16]) }).collect(),
        spares: vec![],
    }
}

async fn run(case: Case, count: u64, handle: pinstripe_runtime::ShardHandle) {
    let source = |_| -> Arc<dyn DeviceSource> {
        if case.in_memory {
            let memory = Memory::populated(usize::try_from(IN_MEMORY).unwrap()).unwrap();
            Arc::new(MemorySource { name: "memory".to_owned(), memory, logical_block: 512 })
        } else {
            Arc::new(Null(Memory::new(usize::try_from(METADATA).unwrap()).unwrap()))
        }
    };
    let mut sources: Vec<_> = (0..6).map(source).collect();
    let devices: Vec<_> = sources.iter().map(|source| source.attach().unwrap()).collect();
    create(&wish(case.level, if case.in_memory { IN_MEMORY } else { SIZE }), &devices).await.unwrap();
    sources.truncate(6 - usize::from(case.is_degraded));
    // Prices are measured, and would make two runs differ; what is changed in place needs none.
    let policy = if case.in_memory { WritePolicy::Cost } else { WritePolicy::AlwaysRmw };
    let options = ArrayOptions { parity_cache_bytes: case.cache_bytes, policy, ..ArrayOptions::default() };
    let array = Array::assemble(sources, options, vec![handle]).await.unwrap();
    let (volume, size) = (array.volume(), case.size as u64);
    let data = shard::zeroed(case.size).freeze();
    let mut buffer = shard::buffer(case.size);
    let places = volume.size() / size;
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
    let shard = Shard::new(&ShardConfig { index: 0, arena_bytes: 4 << 20, clock: None });
    let _entered = shard.enter();
    let handle = shard.handle();
    let done = Rc::new(std::cell::Cell::new(false));
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
    }
    shard.drop_tasks();
}
