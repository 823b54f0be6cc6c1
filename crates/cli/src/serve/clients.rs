//! What uses the array now, by whatever front end.
//!
//! A connection is counted when it has chosen an export, before its client knows that it has it, and until
//! its session has ended. One that hasn't said what it wants keeps nothing from being stopped: any user may
//! make one.

use std::collections::BTreeMap;

use pinstripe_control::detail::Client;
use pinstripe_runtime::shard;

use super::front::FrontEnds;

/// How often is looked whether clients have gone.
const LOOK_NANOSECONDS: u64 = 20_000_000;

/// All of them, each with its connections.
pub fn list(front_ends: &FrontEnds) -> Vec<Client> {
    let mut clients: Vec<Client> = Vec::new();
    let mut counted: BTreeMap<(&str, String), usize> = BTreeMap::new();
    for client in front_ends.clients() {
        *counted.entry(client).or_default() += 1;
    }
    for ((protocol, name), connections) in counted {
        clients.push(Client { protocol: protocol.to_owned(), name, connections });
    }
    clients
}

/// The clients that are still there after `limit`, for one that has just ended its connection may be seen a
/// moment later.
pub async fn left_after(front_ends: &FrontEnds, limit: u64) -> Vec<Client> {
    let begun = shard::now();
    loop {
        let left = list(front_ends);
        if left.is_empty() || shard::now() - begun >= limit {
            return left;
        }
        shard::sleep(LOOK_NANOSECONDS).await;
    }
}
