//! Taking connections, on shard 0.

use std::rc::Rc;

use pinstripe_runtime::{
    ShardHandle,
    shard::{self, JoinHandle},
    uring::{Connection, Listener},
};

use crate::nvme_server;

use super::{
    control::Controller,
    first_of::{First, first_of},
    shards,
    stopping::Stopping,
};

/// Pause after an accept that failed, for want of descriptors say.
const PAUSE_NANOSECONDS: u64 = 100_000_000;

/// Hands NBD connections to the shards in turn, until the end is wanted.
pub fn spawn_nbd(listener: Listener, shards: Vec<ShardHandle>, stopping: Rc<Stopping>) -> JoinHandle<()> {
    shard::spawn_joined(async move {
        let mut next = (0..shards.len()).cycle();
        let hand_over = |connection| {
            if let Some(target) = next.next() {
                shards::hand_over(&shards[target], connection);
            }
        };
        accept(&listener, &stopping, hand_over).await;
    })
}

/// Hands NVMe/TCP connections to the shards in turn, until the end is wanted.
pub fn spawn_nvme(listener: Listener, shards: Vec<ShardHandle>, stopping: Rc<Stopping>) -> JoinHandle<()> {
    shard::spawn_joined(async move {
        let mut next = (0..shards.len()).cycle();
        let hand_over = |connection| {
            if let Some(target) = next.next() {
                nvme_server::hand_over(&shards[target], connection);
            }
        };
        accept(&listener, &stopping, hand_over).await;
    })
}

/// Gives control connections to the controller, until the end is wanted.
pub fn spawn_control(listener: Listener, controller: Controller) -> JoinHandle<()> {
    shard::spawn_joined(async move {
        let stopping = controller.stopping();
        accept(&listener, &stopping, |connection| controller.spawn(connection)).await;
    })
}

async fn accept(listener: &Listener, stopping: &Stopping, mut take: impl FnMut(Connection)) {
    loop {
        match first_of(stopping.wanted(), listener.accept()).await {
            First::One(()) => return,
            First::Other(Ok(connection)) => take(connection),
            First::Other(Err(error)) => {
                eprintln!("pinstripe: can't take a connection: {error}");
                shard::sleep(PAUSE_NANOSECONDS).await;
            }
        }
    }
}
