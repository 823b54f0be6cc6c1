//! The end of what a server has open.

use pinstripe_control::text::printable;
use pinstripe_runtime::{ShardHandle, shard, uring::inheritance};

use crate::log;

/// Pause before the next look at what is open.
const LOOK_NANOSECONDS: u64 = 1_000_000;

/// Waits until the devices are closed, so that the next program finds them free: for so long at most, since a
/// request may hang. Then all that no request goes to is let go, and what is left is named.
pub async fn closed(shards: &[ShardHandle], limit_nanoseconds: u64) -> Vec<String> {
    let start = shard::now();
    while !inheritance::still_open().is_empty() && shard::now() - start < limit_nanoseconds {
        shard::sleep(LOOK_NANOSECONDS).await;
    }
    if inheritance::still_open().is_empty() {
        return Vec::new();
    }
    let left = inheritance::let_go_of_idle(shards).await.unwrap_or_else(|error| {
        log::warn(&format!("no device can be let go before all requests are over: {error}"));
        inheritance::still_open()
    });
    left.iter().map(|name| printable(name)).collect()
}
