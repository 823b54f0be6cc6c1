//! A server of the run: the shipped target with the offload extension, over one simulated disk.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    io,
    rc::Rc,
    sync::{Arc, Mutex, PoisonError},
};

use pinstripe_nvme::{
    controller::{
        DeviceService, EpochRecord, EpochStore, NamespaceConfig, OffloadConfig, OffloadStatistics, Pipeline,
        Storing, Subsystem, SubsystemConfig, Target,
    },
    initiator::{Address, Options},
};
use pinstripe_runtime::shard;

use super::network::{Dialler, Network, Port};
use crate::{SimDisk, World};

/// How long an epoch takes to be durable.
const STORE_NS: u64 = 200_000;
/// How long a server tries to reach another.
const CONNECT_NS: u64 = 1_000_000_000;

/// Epochs that a crash leaves.
#[derive(Clone, Default)]
struct Epochs(Arc<Mutex<BTreeMap<[u8; 16], EpochRecord>>>);

impl Epochs {
    fn get(&self, namespace: &[u8; 16]) -> Option<EpochRecord> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(namespace).copied()
    }
}

impl EpochStore for Epochs {
    fn load(&self, namespace: &[u8; 16]) -> io::Result<Option<EpochRecord>> {
        Ok(self.get(namespace))
    }

    fn store(&self, namespace: &[u8; 16], record: &EpochRecord) -> Storing {
        let (there, namespace, record) = (self.clone(), *namespace, *record);
        Box::pin(async move {
            shard::sleep(STORE_NS).await;
            there.0.lock().unwrap_or_else(PoisonError::into_inner).insert(namespace, record);
            Ok(())
        })
    }
}

struct Running {
    subsystem: Arc<Subsystem>,
    target: Target<DeviceService>,
}

/// See the module. Its number is its disk's.
pub(crate) struct Server {
    number: usize,
    pub(crate) port: Rc<Port>,
    epochs: Epochs,
    pipeline: Pipeline,
    starts: Cell<u64>,
    running: RefCell<Option<Running>>,
}

fn host(number: usize) -> String {
    format!("server{number}")
}

fn nqn(number: usize) -> String {
    format!("nqn.2026-01.com.example:server{number}")
}

/// Where the disk of a number is reached.
pub(crate) fn address(number: usize) -> Address {
    Address {
        host: host(number),
        port: 4420,
        nqn: nqn(number),
        namespace: 1,
        header_digests: false,
        data_digests: false,
    }
}

impl Server {
    pub(crate) fn new(number: usize, port: Rc<Port>, pipeline: Pipeline, network: &Network) -> Self {
        network.publish(host(number), &port);
        let (epochs, starts, running) = (Epochs::default(), Cell::new(0), RefCell::default());
        Self { number, port, epochs, pipeline, starts, running }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.running.borrow().is_some()
    }

    fn uuid(&self) -> [u8; 16] {
        [u8::try_from(self.number + 1).unwrap_or(u8::MAX); 16]
    }

    /// Whether the last host has given it up, or there was none.
    pub(crate) fn is_free(&self) -> bool {
        self.epochs.get(&self.uuid()).is_none_or(|record| record.given_up)
    }

    /// Whether this is the owner of its epoch.
    pub(crate) fn is_owned_by(&self, owner: &[u8; 16]) -> bool {
        self.epochs.get(&self.uuid()).is_some_and(|record| record.owner == *owner)
    }

    /// What it did since it was started.
    pub(crate) fn statistics(&self) -> OffloadStatistics {
        let running = self.running.borrow();
        running.as_ref().and_then(|running| running.subsystem.offload_statistics()).unwrap_or_default()
    }

    /// Starts it, as another incarnation each time.
    pub(crate) fn start(&self, world: &mut World, disk: &SimDisk) {
        self.starts.set(self.starts.get() + 1);
        let mut incarnation = [0; 16];
        incarnation[..8].copy_from_slice(&self.starts.get().to_le_bytes());
        let queues = u16::try_from(world.shards()).unwrap_or(u16::MAX);
        let config = SubsystemConfig {
            nqn: nqn(self.number),
            serial: format!("{:020}", self.number),
            namespaces: vec![NamespaceConfig {
                uuid: self.uuid(),
                size_bytes: disk.info().size,
                block_size: disk.info().logical_block,
                preferred_block: 4096,
                read_only: false,
            }],
            queues_max: queues,
            addresses: Vec::new(),
        };
        let offload = OffloadConfig {
            pipeline: self.pipeline,
            incarnation,
            epochs: Some(Arc::new(self.epochs.clone())),
            connector: Arc::new(Dialler),
            peers: Options {
                connect_nanoseconds: CONNECT_NS,
                ..OffloadConfig::peer_options(&nqn(self.number), queues)
            },
        };
        let subsystem = Subsystem::with(config, None, Some(offload));
        let subsystem = subsystem.unwrap_or_else(|error| unreachable!("it can be served: {error}"));
        let shard = self.port.shard;
        let target = {
            let _entered = world.enter(shard);
            Target::new(Arc::clone(&subsystem), vec![DeviceService::new(disk.attach(), false)])
        };
        self.port.set_open(true);
        let (port, there) = (Rc::clone(&self.port), target.clone());
        world.spawn(shard, "server", async move {
            while let Some((stream, wire)) = port.accept().await {
                let target = there.clone();
                shard::spawn(async move {
                    target.serve(stream).await;
                    wire.end();
                });
            }
        });
        *self.running.borrow_mut() = Some(Running { subsystem, target });
    }

    /// Its process is ended in order. The cell says when it is over.
    pub(crate) fn stop(&self, world: &mut World) -> Rc<Cell<bool>> {
        let over = Rc::new(Cell::new(false));
        self.port.set_open(false);
        let Some(Running { subsystem, target }) = self.running.take() else {
            over.set(true);
            return over;
        };
        let there = Rc::clone(&over);
        world.spawn(self.port.shard, "stop", async move {
            target.stop().await;
            drop((target, subsystem));
            there.set(true);
        });
        over
    }

    /// Power is gone, with everything in memory.
    pub(crate) fn forget(&self, world: &World) {
        let _entered = world.enter(self.port.shard);
        self.port.set_open(false);
        drop(self.running.take());
    }
}
