//! Taking connections, on shard 0.

use std::pin::pin;

use pinstripe_runtime::{
    ShardHandle, shard,
    uring::{Connection, Listener},
};

use pinstripe_block::first_of::{First, first_of};

use crate::log;

/// Pause after an accept that failed, for want of descriptors say.
const PAUSE_NANOSECONDS: u64 = 100_000_000;

/// Has `take` take connections until `end`, and gives the value of `end`.
pub async fn accept<T>(
    listener: &Listener,
    end: impl Future<Output = T>,
    mut take: impl FnMut(Connection),
) -> T {
    let mut end = pin!(end);
    loop {
        match first_of(&mut end, listener.accept()).await {
            First::One(value) => return value,
            First::Other(Ok(connection)) => take(connection),
            First::Other(Err(error)) => {
                log::warn(&format!("can't take a connection: {error}"));
                shard::sleep(PAUSE_NANOSECONDS).await;
            }
        }
    }
}

/// Has the shards take connections in turn.
pub fn in_turn(
    shards: &[ShardHandle],
    hand_over: impl Fn(&ShardHandle, Connection),
) -> impl FnMut(Connection) {
    let mut next = shards.iter().cycle();
    move |connection| {
        if let Some(target) = next.next() {
            hand_over(target, connection);
        }
    }
}
