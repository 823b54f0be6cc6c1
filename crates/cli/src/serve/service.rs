//! The array as the front ends want it, with its complaints in the server's log.

use std::{cell::Cell, sync::Arc};

use pinstripe_block::{locks::Locks, rate::RateLimit};
use pinstripe_engine::{
    error::IoError,
    io::{recorder::Recorder, service::VolumeService, volume::Volume},
    shared::Shared,
};
use pinstripe_runtime::shard;

use super::journal::ServerLog;

/// A failing array has its errors told so often, per shard.
const COMPLAIN_NANOSECONDS: u64 = 1_000_000_000;

/// The array, from which each shard makes its handle.
#[derive(Clone)]
pub struct ServedArray {
    shared: Arc<Shared>,
    journal: ServerLog,
    /// Between writers of whole blocks and writers of parts; not taken where there are no parts.
    locks: Arc<Locks>,
    is_written_in_parts: bool,
    limit: Arc<RateLimit>,
    recorder: Arc<Recorder>,
}

impl ServedArray {
    /// An array of which a front end writes parts of blocks, or none does.
    pub fn new(
        shared: &Arc<Shared>,
        journal: &ServerLog,
        limit: &Arc<RateLimit>,
        recorder: &Arc<Recorder>,
        is_written_in_parts: bool,
    ) -> Self {
        let (shared, journal) = (Arc::clone(shared), journal.clone());
        let (limit, recorder) = (Arc::clone(limit), Arc::clone(recorder));
        Self { shared, journal, locks: Arc::default(), is_written_in_parts, limit, recorder }
    }

    /// For whole blocks, on this shard.
    pub fn service(&self) -> VolumeService {
        let service = self.without_locks();
        if self.is_written_in_parts { service.with_locks(Arc::clone(&self.locks)) } else { service }
    }

    /// For a front end that writes parts of blocks, on this shard: it takes the locks itself.
    pub fn in_parts(&self) -> (VolumeService, Arc<Locks>) {
        debug_assert!(self.is_written_in_parts);
        (self.without_locks(), Arc::clone(&self.locks))
    }

    /// Failed requests go to the server's log; not every one, for there may be many.
    fn without_locks(&self) -> VolumeService {
        let (next, journal) = (Cell::new(0), self.journal.clone());
        let service = VolumeService::new(Volume::new(Arc::clone(&self.shared)), move |error: &IoError| {
            let now = shard::now();
            if now >= next.get() {
                next.set(now + COMPLAIN_NANOSECONDS);
                journal.warn(&format!("a client's request failed: {error}"));
            }
        });
        service.with_limit(Arc::clone(&self.limit)).with_recorder(Arc::clone(&self.recorder))
    }
}
