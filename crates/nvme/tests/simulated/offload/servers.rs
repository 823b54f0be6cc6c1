//! Servers that compute, and what they keep when they die.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use pinstripe_nvme::initiator::Options;
use pinstripe_nvme::target::{
    DeviceService, EpochRecord, EpochStore, NamespaceConfig, OffloadConfig, OffloadStatistics, Pipeline,
    Storing, Subsystem, SubsystemConfig, Target,
};
use pinstripe_runtime::shard;
use pinstripe_sim::{SimDisk, World};

use super::network::Dialler;

/// Epochs that a crash leaves.
#[derive(Clone, Default)]
pub struct Epochs(Arc<Mutex<BTreeMap<[u8; 16], EpochRecord>>>);

impl EpochStore for Epochs {
    fn load(&self, namespace: &[u8; 16]) -> io::Result<Option<EpochRecord>> {
        Ok(self.0.lock().unwrap().get(namespace).copied())
    }

    fn store(&self, namespace: &[u8; 16], record: &EpochRecord) -> Storing {
        let (there, namespace, record) = (self.clone(), *namespace, *record);
        Box::pin(async move {
            shard::sleep(200_000).await;
            there.0.lock().unwrap().insert(namespace, record);
            Ok(())
        })
    }
}

/// One server; its namespaces are members of the array.
pub struct Server {
    pub number: usize,
    pub shard: usize,
    pub disks: Vec<SimDisk>,
    epochs: Epochs,
    pipeline: Pipeline,
    /// So often it was started.
    starts: Cell<u8>,
    running: RefCell<Option<(Arc<Subsystem>, Target<DeviceService>)>>,
}

pub fn nqn(server: usize) -> String {
    format!("nqn.2026-01.com.example:server{server}")
}

impl Server {
    pub fn new(number: usize, shard: usize, disks: Vec<SimDisk>, pipeline: Pipeline) -> Rc<Self> {
        let (epochs, starts, running) = (Epochs::default(), Cell::new(0), RefCell::default());
        Rc::new(Self { number, shard, disks, epochs, pipeline, starts, running })
    }

    pub fn target(&self) -> Option<Target<DeviceService>> {
        self.running.borrow().as_ref().map(|(_, target)| target.clone())
    }

    /// What was done since it was started.
    pub fn statistics(&self) -> OffloadStatistics {
        self.running
            .borrow()
            .as_ref()
            .and_then(|(subsystem, _)| subsystem.offload_statistics())
            .unwrap_or_default()
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
        let subsystem = Subsystem::with_offload(config, offload).unwrap();
        let _entered = world.enter(self.shard);
        let services = self.disks.iter().map(|disk| DeviceService::new(disk.attach(), false)).collect();
        let target = Target::new(Arc::clone(&subsystem), services);
        *self.running.borrow_mut() = Some((subsystem, target));
    }

    /// Its process ends: nobody is answered any more, and what it knew is gone. The cell says when.
    pub fn stop(&self, world: &mut World) -> Rc<Cell<bool>> {
        let over = Rc::new(Cell::new(false));
        match self.running.take() {
            Some((subsystem, target)) => {
                let there = Rc::clone(&over);
                world.spawn(self.shard, "stop", async move {
                    target.stop().await;
                    drop((target, subsystem));
                    there.set(true);
                });
            }
            None => over.set(true),
        }
        over
    }

    /// Power is gone with everything in memory.
    pub fn forget(&self, world: &World) {
        let _entered = world.enter(self.shard);
        drop(self.running.take());
    }
}
