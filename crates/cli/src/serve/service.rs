//! A volume as the front ends want it.

use std::{cell::Cell, rc::Rc};

use pinstripe_engine::{error::IoError, geometry::Geometry, volume::Volume};
use pinstripe_export::{BlockService, ServiceError};
use pinstripe_runtime::{Buffer, DeviceErrorKind, Slice, shard};

use super::journal::Journal;

/// One shard's handle on the array.
#[derive(Clone)]
pub struct ArrayService {
    volume: Volume,
    complaints: Rc<Complaints>,
}

/// Failed requests, for the server's log; not every one, for there may be many.
struct Complaints {
    journal: Journal,
    next: Cell<u64>,
}

/// A failing array has its errors told so often, per shard.
const COMPLAIN_NANOSECONDS: u64 = 1_000_000_000;

impl ArrayService {
    /// The array on this shard.
    pub fn new(volume: Volume, journal: Journal) -> Self {
        Self { volume, complaints: Rc::new(Complaints { journal, next: Cell::new(0) }) }
    }

    fn geometry(&self) -> &Geometry {
        &self.volume.shared().geometry
    }

    /// What a client can be told; the rest of it goes to the server's own log.
    fn answer(&self, result: Result<(), IoError>) -> Result<(), ServiceError> {
        result.map_err(|error| {
            let told = match &error {
                IoError::ReadOnly => return ServiceError::ReadOnly,
                IoError::Stopping => return ServiceError::Stopping,
                IoError::Member(member) if member.error.kind == DeviceErrorKind::NoSpace => {
                    ServiceError::NoSpace
                }
                _ => ServiceError::Io,
            };
            self.complaints.tell(&error);
            told
        })
    }
}

impl BlockService for ArrayService {
    fn size_bytes(&self) -> u64 {
        self.volume.size()
    }

    fn block_size(&self) -> u32 {
        self.geometry().logical_block()
    }

    /// A stripe, where clients can align to one, else a chunk.
    fn preferred_block(&self) -> u32 {
        match self.geometry() {
            Geometry::Parity(geometry) if geometry.stripe_bytes().is_power_of_two() => {
                geometry.stripe_bytes()
            }
            other => other.chunk_bytes(),
        }
    }

    fn read_only(&self) -> bool {
        self.volume.shared().options.read_only
    }

    async fn read(&self, offset: u64, buffer: Buffer) -> (Result<(), ServiceError>, Buffer) {
        let (result, buffer) = self.volume.read(offset, buffer).await;
        (self.answer(result), buffer)
    }

    async fn write(&self, offset: u64, data: Slice, fua: bool) -> Result<(), ServiceError> {
        self.answer(self.volume.write(offset, data, fua).await)
    }

    async fn flush(&self) -> Result<(), ServiceError> {
        self.answer(self.volume.flush().await)
    }

    async fn discard(&self, offset: u64, length: u64, fua: bool) -> Result<(), ServiceError> {
        self.answer(self.volume.discard(offset, length).await)?;
        if fua { self.flush().await } else { Ok(()) }
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        fua: bool,
        may_punch: bool,
    ) -> Result<(), ServiceError> {
        self.answer(if may_punch {
            self.volume.write_zeroes(offset, length, fua).await
        } else {
            self.volume.write_zero_bytes(offset, length, fua).await
        })
    }
}

impl Complaints {
    fn tell(&self, error: &IoError) {
        let now = shard::now();
        if now >= self.next.get() {
            self.next.set(now + COMPLAIN_NANOSECONDS);
            self.journal.warn(&format!("a client's request failed: {error}"));
        }
    }
}
