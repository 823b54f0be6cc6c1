//! A volume as the front ends want it, with its complaints in the server's log.

use std::cell::Cell;

use pinstripe_engine::io::service::VolumeService;
use pinstripe_engine::{error::IoError, io::volume::Volume};
use pinstripe_runtime::shard;

use super::journal::ServerLog;

/// A failing array has its errors told so often, per shard.
const COMPLAIN_NANOSECONDS: u64 = 1_000_000_000;

/// The array on this shard. Failed requests go to the server's log; not every one, for there may be many.
pub fn array_service(volume: Volume, journal: ServerLog) -> VolumeService {
    let next = Cell::new(0);
    VolumeService::new(volume, move |error: &IoError| {
        let now = shard::now();
        if now >= next.get() {
            next.set(now + COMPLAIN_NANOSECONDS);
            journal.warn(&format!("a client's request failed: {error}"));
        }
    })
}
