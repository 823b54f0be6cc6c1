//! Servers that compute, and what they keep when they die.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use pinstripe_nvme::controller::{
    DeviceService, EpochRecord, EpochStore, NamespaceConfig, NotStored, OffloadConfig, OffloadStatistics,
    Pipeline, Storing, Subsystem, SubsystemConfig, Target,
};
use pinstripe_nvme::initiator::Options;
use pinstripe_runtime::shard;
use pinstripe_sim::{SimDisk, World};

use super::network::Dialler;

/// Epochs that a crash leaves. Now and then one can't be stored, or it isn't known whether it is.
#[derive(Clone, Default)]
pub struct Epochs {
    records: Arc<Mutex<BTreeMap<[u8; 16], EpochRecord>>>,
    asked: Arc<AtomicU64>,
    /// While a host comes that tries again.
    unreliable: Arc<AtomicBool>,
}

/// Of so many one isn't stored,
const REFUSED_EVERY: u64 = 7;
/// and of so many one is, but that fails.
const UNKNOWN_EVERY: u64 = 11;

impl EpochStore for Epochs {
    fn load(&self, namespace: &[u8; 16]) -> io::Result<Option<EpochRecord>> {
        Ok(self.records.lock().unwrap().get(namespace).copied())
    }

    fn store(&self, namespace: &[u8; 16], record: &EpochRecord) -> Storing {
        let (there, namespace, record) = (self.clone(), *namespace, *record);
        Box::pin(async move {
            shard::sleep(200_000).await;
            let fails = there.unreliable.load(Ordering::Relaxed);
            let asked = there.asked.fetch_add(u64::from(fails), Ordering::Relaxed) + 1;
            if fails && asked.is_multiple_of(REFUSED_EVERY) {
                return Err(io::Error::from(io::ErrorKind::StorageFull).into());
            }
            there.records.lock().unwrap().insert(namespace, record);
            if fails && asked.is_multiple_of(UNKNOWN_EVERY) {
                return Err(NotStored { error: io::Error::other("the folder"), is_unchanged: false });
            }
            Ok(())
        })
    }
}

/// One server; its namespaces are members of the array.
pub struct Server {
    pub number: usize,
    /// Connections come to any of them.
    pub shards: Range<usize>,
    pub disks: Vec<SimDisk>,
    epochs: Epochs,
    pipeline: Pipeline,
    /// So often it was started.
    starts: Cell<u8>,
    running: RefCell<Option<Running>>,
}

struct Running {
    subsystem: Arc<Subsystem>,
    /// By shard.
    targets: Vec<Target<DeviceService>>,
}

pub fn nqn(server: usize) -> String {
    format!("nqn.2026-01.com.example:server{server}")
}

impl Server {
    pub fn new(number: usize, shards: Range<usize>, disks: Vec<SimDisk>, pipeline: Pipeline) -> Rc<Self> {
        let (epochs, starts, running) = (Epochs::default(), Cell::new(0), RefCell::default());
        Rc::new(Self { number, shards, disks, epochs, pipeline, starts, running })
    }

    /// Whether epochs can't be stored now and then.
    pub fn set_unreliable(&self, unreliable: bool) {
        self.epochs.unreliable.store(unreliable, Ordering::Relaxed);
    }

    pub fn is_up(&self) -> bool {
        self.running.borrow().is_some()
    }

    /// The part of it on a shard.
    pub fn target(&self, shard: usize) -> Option<Target<DeviceService>> {
        let index = shard.checked_sub(self.shards.start)?;
        self.running.borrow().as_ref().and_then(|running| running.targets.get(index).cloned())
    }

    /// What was done since it was started.
    pub fn statistics(&self) -> OffloadStatistics {
        let running = self.running.borrow();
        running.as_ref().and_then(|running| running.subsystem.offload_statistics()).unwrap_or_default()
    }

    pub fn start(&self, world: &World) {
        self.starts.set(self.starts.get() + 1);
        let name = nqn(self.number);
        let namespace = |(index, disk): (usize, &SimDisk)| NamespaceConfig {
            uuid: [u8::try_from(self.number * 8 + index).unwrap() + 1; 16],
            size_bytes: disk.info().size,
            block_size: 512,
            preferred_block: 4096,
            read_only: false,
        };
        let config = SubsystemConfig {
            nqn: name.clone(),
            serial: format!("{:020}", self.number),
            namespaces: self.disks.iter().enumerate().map(namespace).collect(),
            queues_max: 16,
            addresses: Vec::new(),
        };
        let queues = u16::try_from(world.shards()).unwrap();
        let offload = OffloadConfig {
            pipeline: self.pipeline,
            incarnation: [self.starts.get(); 16],
            epochs: Some(Arc::new(self.epochs.clone())),
            connector: Arc::new(Dialler),
            peers: Options {
                connect_nanoseconds: 1_000_000_000,
                ..OffloadConfig::peer_options(&name, queues)
            },
        };
        let subsystem = Subsystem::with(config, None, Some(offload)).unwrap();
        let target = |shard| {
            let _entered = world.enter(shard);
            let services = self.disks.iter().map(|disk| DeviceService::new(disk.attach(), false)).collect();
            Target::new(Arc::clone(&subsystem), services)
        };
        let targets = self.shards.clone().map(target).collect();
        *self.running.borrow_mut() = Some(Running { subsystem, targets });
    }

    /// Its process ends: no request is answered any more, and what it knew is gone. The cell says when.
    pub fn stop(&self, world: &mut World) -> Rc<Cell<bool>> {
        let over = Rc::new(Cell::new(false));
        let Some(Running { subsystem, targets }) = self.running.take() else {
            over.set(true);
            return over;
        };
        let left = Rc::new(Cell::new(targets.len()));
        for (shard, target) in self.shards.clone().zip(targets) {
            let (there, left, subsystem) = (Rc::clone(&over), Rc::clone(&left), Arc::clone(&subsystem));
            world.spawn(shard, "stop", async move {
                target.stop().await;
                drop((target, subsystem));
                left.set(left.get() - 1);
                there.set(left.get() == 0);
            });
        }
        let _entered = world.enter(self.shards.start);
        drop(subsystem);
        over
    }

    /// Power is gone with everything in memory.
    pub fn forget(&self, world: &World) {
        let _entered = world.enter(self.shards.start);
        drop(self.running.take());
    }
}
