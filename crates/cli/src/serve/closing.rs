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
    let mut is_let_go = false;
    loop {
        let open = inheritance::still_open();
        if open.is_empty() || is_let_go {
            return open.iter().map(|path| printable(&path.display().to_string())).collect();
        }
        if shard::now() - start < limit_nanoseconds {
            shard::sleep(LOOK_NANOSECONDS).await;
            continue;
        }
        is_let_go = true;
        if let Err(error) = inheritance::let_go_of_idle(shards).await {
            log::warn(&format!("no device can be let go before all requests are over: {error}"));
        }
    }
}
