//! What a write costs the engine itself: 4 KiB writes over devices that do nothing. Judge it by instructions
//! (`valgrind --tool=callgrind`, with two counts of writes): cold memory hides 100 ns.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "it is a program for developers")]

use std::{rc::Rc, sync::Arc, time::Instant};

use pinstripe_engine::{array::Array, assembly::create::create, options::ArrayOptions};
use pinstripe_md::{
    identity::{SetName, Timestamp, Uuid},
    level::{Layout, Level, ParityLayout},
    placement::{InitialSync, NewArray, NewBitmap, NewDevice},
    superblock::MetadataVersion,
    units::{Sector, SectorCount},
};
use pinstripe_runtime::{
    Buffer, Device, DeviceError, DeviceInfo, DeviceSource, Memory, MemoryDevice, Shard, ShardConfig, Slice,
    Submission, shard,
};

const METADATA: u64 = 1 << 20;
const SIZE: u64 = 1 << 30;

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

fn wish() -> NewArray {
    NewArray {
        set_uuid: Uuid([7; 16]),
        name: SetName::from_bytes([b'x'; 32]),
        created: Timestamp::new(1, 0),
        level: Level::Raid5,
        layout: Layout::Parity(ParityLayout::from_name(Level::Raid5, "default").unwrap()),
        chunk: SectorCount(128),
        version: MetadataVersion::V1_2,
        bitmap: NewBitmap::Internal { chunk_bytes: None },
        initial: InitialSync::AssumeClean,
        size: None,
        data_offset: Some(Sector(METADATA / 512)),
        logical_block_bytes: 512,
        members: (1..=6).map(|i| NewDevice { sectors: SIZE / 512, uuid: Uuid([i; 16]) }).collect(),
        spares: vec![],
    }
}

async fn frame(writes: u64, cache: usize, handle: pinstripe_runtime::ShardHandle) {
    let memory = || Memory::new(usize::try_from(METADATA).unwrap()).unwrap();
    let sources: Vec<Arc<dyn DeviceSource>> =
        (0..6).map(|_| Arc::new(Null(memory())) as Arc<dyn DeviceSource>).collect();
    let devices: Vec<_> = sources.iter().map(|source| source.attach().unwrap()).collect();
    create(&wish(), &devices).await.unwrap();
    let options = ArrayOptions { parity_cache_bytes: cache, ..ArrayOptions::default() };
    let array = Array::assemble(sources, options, vec![handle]).await.unwrap();
    let data = shard::zeroed(4096).freeze();
    let blocks = array.volume().size() / 4096;
    let started = Instant::now();
    for number in 0..writes {
        let at = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % blocks * 4096;
        array.volume().write(at, data.clone(), false).await.unwrap();
    }
    println!("{} ns per write", started.elapsed().as_nanos() / u128::from(writes.max(1)));
}

fn main() {
    let argument = |n| std::env::args().nth(n).and_then(|text| text.parse().ok());
    let (writes, cache) = (argument(1).unwrap_or(1_000_000), argument(2).unwrap_or(0));
    let cache = usize::try_from(cache).unwrap();
    let shard = Shard::new(&ShardConfig { index: 0, arena_bytes: 1 << 20, clock: None });
    let _entered = shard.enter();
    let handle = shard.handle();
    let done = Rc::new(std::cell::Cell::new(false));
    let flag = Rc::clone(&done);
    shard.spawn(async move {
        frame(writes, cache, handle).await;
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
