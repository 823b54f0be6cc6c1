//! A machine that changes the bytes of its writes while they are written: parity is right all the same,
//! because parity and data are made of one copy. With the copy taken away the same test finds wrong parity.

use std::{
    os::fd::OwnedFd,
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
};

use pinstripe_engine::{
    array::Array,
    assembly::create::create,
    io::{service::VolumeService, volume::Volume},
    options::ArrayOptions,
};
use pinstripe_md::{
    identity::{SetName, Timestamp, Uuid},
    level::{Layout, Level, ParityLayout},
    placement::{InitialSync, NewArray, NewBitmap, NewDevice},
    superblock::MetadataVersion,
    units::{SECTOR_BYTES, SectorCount},
};
use pinstripe_runtime::{
    Device, DeviceError, DeviceInfo, DeviceSource, Memory, MemoryDevice, Signal, Slice, Submission, shard,
    uring::{Context, Listener, RuntimeConfig, run},
};

use super::{
    monitor::{DATA, Monitor},
    server::serve_all,
};

/// Changes of the machine's buffer that a run sees at least, while its writes are under way.
const FLIPS: u64 = 100_000;
const MEMBERS: usize = 4;
const MEMBER_BYTES: usize = 4 << 20;
const BLOCK: usize = 4096;
/// Writes go to the first stripe, whose parity is the last member's.
const CHUNK_BYTES: u64 = 64 << 10;

/// A member. Unprotected ones write, behind their superblocks, what the machine's buffer holds at that
/// moment, as hardware would that were given the machine's memory itself.
struct Member {
    inner: Rc<MemoryDevice>,
    info: DeviceInfo,
    unprotected: Option<Arc<Mutex<Option<OwnedFd>>>>,
}

struct Source {
    memory: Arc<Memory>,
    unprotected: Option<Arc<Mutex<Option<OwnedFd>>>>,
}

impl DeviceSource for Source {
    fn attach(&self) -> Result<Rc<dyn Device>, DeviceError> {
        let inner = MemoryDevice::new("member", Arc::clone(&self.memory), 512);
        // Members in memory are changed in place, by a way of their own.
        let info = DeviceInfo { in_memory: false, ..inner.info().clone() };
        Ok(Rc::new(Member { inner, info, unprotected: self.unprotected.clone() }))
    }

    fn name(&self) -> String {
        "member".into()
    }
}

impl Device for Member {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn read(&self, offset: u64, buffer: pinstripe_runtime::Buffer) -> Submission {
        self.inner.read(offset, buffer)
    }

    fn write(&self, offset: u64, data: Slice, fua: bool) -> Submission {
        let machine = self.unprotected.as_ref().map(|machine| machine.lock().unwrap());
        if let Some(machine) = machine.as_ref().and_then(|machine| machine.as_ref())
            && data.len() == BLOCK
            && offset > CHUNK_BYTES
        {
            let mut bytes = shard::buffer(BLOCK);
            // Hardware takes its time, in which this machine changes something.
            for _ in 0..10_000 {
                rustix::io::pread(machine, &mut bytes[..], DATA).unwrap();
                if bytes[..] != data[..] {
                    break;
                }
                std::thread::yield_now();
            }
            return self.inner.write(offset, bytes.freeze(), fua);
        }
        self.inner.write(offset, data, fua)
    }

    fn flush(&self) -> Submission {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> Submission {
        self.inner.discard(offset, length)
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Submission {
        self.inner.write_zeroes(offset, length)
    }
}

/// A RAID5 of four members, the first three of which may be unprotected.
async fn assemble(context: &Context, machine: Option<&Arc<Mutex<Option<OwnedFd>>>>) -> Array {
    let source = |member: usize| {
        let memory = Memory::new(MEMBER_BYTES).unwrap();
        let unprotected = machine.filter(|_| member + 1 < MEMBERS).cloned();
        Arc::new(Source { memory, unprotected }) as Arc<dyn DeviceSource>
    };
    let sources: Vec<_> = (0..MEMBERS).map(source).collect();
    let devices: Vec<_> = sources.iter().map(|source| source.attach().unwrap()).collect();
    let member =
        |number: u8| NewDevice { sectors: MEMBER_BYTES as u64 / SECTOR_BYTES, uuid: Uuid([number; 16]) };
    let wish = NewArray {
        set_uuid: Uuid([9; 16]),
        name: SetName::from_bytes([0; 32]),
        created: Timestamp::new(0, 0),
        level: Level::Raid5,
        layout: Layout::Parity(ParityLayout::LeftSymmetric),
        chunk: SectorCount::from_bytes_floor(CHUNK_BYTES),
        version: MetadataVersion::V1_2,
        bitmap: NewBitmap::None,
        initial: InitialSync::AssumeClean,
        size: None,
        data_offset: None,
        logical_block_bytes: 512,
        members: (0..4).map(member).collect(),
        spares: Vec::new(),
    };
    create(&wish, &devices).await.unwrap();
    Array::assemble(sources, ArrayOptions::default(), context.shards().to_vec()).await.unwrap()
}

/// Writes from a buffer that another thread changes all the time, until that was done often enough or
/// `writes` are over. How many sectors of parity are wrong afterwards, and how often the buffer was changed.
fn mismatched(is_protected: bool, writes: u64) -> (u64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("vhost");
    let machine: Arc<Mutex<Option<OwnedFd>>> = Arc::default();
    let stop: Arc<(AtomicBool, Signal)> = Arc::default();
    let (result, results) = mpsc::channel();
    let (there, stopping, shared) = (path.clone(), Arc::clone(&stop), Arc::clone(&machine));
    let server = std::thread::spawn(move || {
        run(&RuntimeConfig::unpinned(1), move |context| async move {
            let array = assemble(&context, (!is_protected).then_some(&shared)).await;
            let listener = Listener::unix(&there).unwrap();
            let volume = Arc::clone(array.shared());
            let service = move || VolumeService::new(Volume::new(Arc::clone(&volume)), |_| ());
            serve_all(&context, &listener, service, &stopping).await;
            let report = array.check().await.unwrap();
            array.stop().await.unwrap();
            result.send(report.mismatched_sectors).unwrap();
        })
        .unwrap();
    });
    let mut monitor = Monitor::running(&path, 1);
    *machine.lock().unwrap() = Some(monitor.memory.try_clone().unwrap());
    let (done, flips) = (AtomicBool::new(false), AtomicU64::new(0));
    let buffer = monitor.memory.try_clone().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let value = flips.fetch_add(1, Ordering::Relaxed).to_le_bytes();
                let at = u64::from(value[0]) * 8 % BLOCK as u64;
                rustix::io::pwrite(&buffer, &value, DATA + at).unwrap();
            }
        });
        let mut number = 0;
        while number < writes || (is_protected && flips.load(Ordering::Relaxed) < FLIPS) {
            let sector = number * 8 % (3 * CHUNK_BYTES / 512);
            monitor.offer(0, 1, super::monitor::OUT, sector, DATA, (u32::try_from(BLOCK).unwrap(), 0));
            monitor.kick(0);
            assert_eq!(monitor.answer(0).0, 1);
            assert_eq!(monitor.status(0, 1), 0);
            number += 1;
        }
        done.store(true, Ordering::Relaxed);
    });
    stop.0.store(true, Ordering::SeqCst);
    stop.1.notify();
    let mismatched = results.recv().unwrap();
    server.join().unwrap();
    (mismatched, flips.into_inner())
}

#[test]
fn a_machine_that_changes_what_it_writes_leaves_parity_right() {
    let (mismatched, flips) = mismatched(true, 500);
    assert!(flips >= FLIPS, "{flips} changes");
    assert_eq!(mismatched, 0, "after {flips} changes");
}

#[test]
fn without_a_copy_the_same_machine_makes_parity_wrong() {
    let (mismatched, flips) = mismatched(false, 500);
    assert!(mismatched > 0, "{flips} changes and no trace of them");
}
