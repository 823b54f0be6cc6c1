//! What a target leaves of hosts that speak in bytes, and when it doesn't wait for them.

use std::rc::Rc;

use pinstripe_nvme::controller::{LeftQueue, Target};
use pinstripe_runtime::shard;

use crate::LEFT;
use crate::world::{Array, Pipe};

const SECOND: u64 = 1_000_000_000;

/// Has all connections left. How many nanoseconds that took, and which were.
pub async fn leave_all(target: &Target<Array>) -> (u64, Vec<(LeftQueue, Rc<Pipe>)>) {
    let begun = shard::now();
    target.leave(SECOND, 60 * SECOND).await;
    let took = shard::now() - begun;
    // Their tasks end in a moment.
    for _ in 0..20 {
        shard::yield_now().await;
    }
    (took, LEFT.take())
}
