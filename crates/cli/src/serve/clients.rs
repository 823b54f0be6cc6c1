//! What uses the array now: connections of NBD clients, and hosts that use it over NVMe/TCP.
//!
//! A connection is counted when it has chosen an export, before its client knows that it has it, and until
//! its session has ended. One that hasn't said what it wants keeps nothing from being stopped: any user may
//! make one.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use pinstripe_nvme::controller::Subsystem;
use pinstripe_runtime::{
    shard,
    uring::{Connection, Peer},
};

use crate::control::detail::Client;

/// How often is looked whether clients have gone.
const LOOK_NANOSECONDS: u64 = 20_000_000;

/// See the module. Clones are handles to the same list.
#[derive(Clone, Default)]
pub struct Clients {
    open: Arc<Mutex<Open>>,
    subsystem: Option<Arc<Subsystem>>,
}

#[derive(Default)]
struct Open {
    next: u64,
    /// NBD's connections, by the order in which they came.
    connections: BTreeMap<u64, String>,
}

/// A connection of a client, which may count until this goes.
pub struct Connected {
    open: Arc<Mutex<Open>>,
    number: u64,
    name: String,
}

impl Connected {
    /// From now on it counts.
    pub fn counts(&self) {
        lock(&self.open).connections.insert(self.number, self.name.clone());
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        lock(&self.open).connections.remove(&self.number);
    }
}

fn lock(open: &Mutex<Open>) -> MutexGuard<'_, Open> {
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Clients {
    /// Nothing yet; hosts of the subsystem will count too.
    pub fn new(subsystem: Option<Arc<Subsystem>>) -> Self {
        Self { open: Arc::default(), subsystem }
    }

    /// A connection has come. It doesn't count yet.
    pub fn connected(&self, connection: &Connection) -> Connected {
        let name = connection.peer().map_or_else(|| "an unknown client".to_owned(), name);
        let mut open = lock(&self.open);
        let number = open.next;
        open.next += 1;
        Connected { open: Arc::clone(&self.open), number, name }
    }

    /// All of them, each with its connections.
    pub fn list(&self) -> Vec<Client> {
        let mut counted: BTreeMap<String, usize> = BTreeMap::new();
        for name in lock(&self.open).connections.values() {
            *counted.entry(name.clone()).or_default() += 1;
        }
        let client =
            |protocol: &str, (name, connections)| Client { protocol: protocol.to_owned(), name, connections };
        let nbd = counted.into_iter().map(|counted| client("nbd", counted));
        let mut hosts: BTreeMap<String, usize> = BTreeMap::new();
        for host in self.subsystem.iter().flat_map(|subsystem| subsystem.hosts()) {
            *hosts.entry(host).or_default() += 1;
        }
        nbd.chain(hosts.into_iter().map(|counted| client("nvme-tcp", counted))).collect()
    }

    /// The clients that are still there after `limit`, for one that has just ended its connection may be seen
    /// a moment later.
    pub async fn left_after(&self, limit: u64) -> Vec<Client> {
        let begun = shard::now();
        loop {
            let left = self.list();
            if left.is_empty() || shard::now() - begun >= limit {
                return left;
            }
            shard::sleep(LOOK_NANOSECONDS).await;
        }
    }
}

fn name(peer: Peer) -> String {
    match peer {
        Peer::Address(address) => address.to_string(),
        Peer::Process(number) => {
            // It may have handed its socket to the kernel and ended, as nbd-client does.
            let program = std::fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
            match program.trim() {
                "" => format!("process {number}"),
                program => format!("process {number} ({program})"),
            }
        }
    }
}
