//! The array as one shard uses it: reads, writes, flushes, discards.
//!
//! A [`Volume`] is the shard's handle. Behind it is the volume of a level: one with parity
//! ([`ParityVolume`]), or one without redundancy ([`StripedVolume`]).

use std::{rc::Rc, sync::Arc};

use pinstripe_block::Client;
use pinstripe_runtime::{Buffer, Slice};

use crate::{
    error::IoError,
    geometry::Geometry,
    io::{base::VolumeBase, parity::ParityVolume, striped::StripedVolume},
    shared::Shared,
    units::to_usize,
};

/// An array on one shard. Cheap to clone.
#[derive(Clone)]
pub struct Volume {
    level: Level,
    /// The writes are its.
    client: Client,
}

/// The volume of a level.
#[derive(Clone)]
enum Level {
    Striped(Rc<StripedVolume>),
    Parity(Rc<ParityVolume>),
}

impl Volume {
    /// The array on the current shard, which must be one of `shared.shards`.
    pub fn new(shared: Arc<Shared>) -> Self {
        let geometry = shared.geometry.clone();
        let base = VolumeBase::new(shared);
        let level = match geometry {
            Geometry::Raid0(geometry) => Level::Striped(StripedVolume::new(base, geometry)),
            Geometry::Parity(geometry) => Level::Parity(ParityVolume::new(base, geometry)),
        };
        Self { level, client: Client::default() }
    }

    /// The array for the requests of a client that may hang up and send them again.
    #[must_use]
    pub fn for_client(self, client: Client) -> Self {
        Self { client, ..self }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// What it shares with the other shards.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.base().shared
    }

    pub(crate) fn base(&self) -> &VolumeBase {
        match &self.level {
            Level::Striped(volume) => volume,
            Level::Parity(volume) => volume,
        }
    }

    /// The volume with stripes and parity, if the level has them.
    pub(crate) fn parity(&self) -> Option<&Rc<ParityVolume>> {
        match &self.level {
            Level::Striped(_) => None,
            Level::Parity(volume) => Some(volume),
        }
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.shared().geometry.array_bytes()
    }

    /// Reads `buffer.len()` bytes from `offset`; the buffer comes back, its content unspecified after an
    /// error.
    pub async fn read(&self, offset: u64, buffer: Buffer) -> (Result<(), IoError>, Buffer) {
        let length = buffer.len() as u64;
        if let Err(error) = self.shared().geometry.check_range(offset, length) {
            return (Err(error.into()), buffer);
        }
        if self.shared().is_fenced() {
            return (Err(IoError::TakenOver), buffer);
        }
        let counters = self.base().counters();
        counters.reads.add(1);
        counters.read_bytes.add(length);
        match &self.level {
            Level::Striped(volume) => volume.read(offset, buffer).await,
            Level::Parity(volume) => volume.read(offset, buffer).await,
        }
    }

    /// Writes `data` at `offset`; with `fua` it is durable when this returns.
    pub async fn write(&self, offset: u64, data: Slice, fua: bool) -> Result<(), IoError> {
        let length = data.len() as u64;
        self.check_write(offset, length)?;
        let counters = self.base().counters();
        counters.writes.add(1);
        counters.write_bytes.add(length);
        match &self.level {
            Level::Striped(_) if self.client.has_hung_up() => Err(IoError::Abandoned),
            Level::Striped(volume) => volume.write(offset, data, fua).await,
            Level::Parity(volume) => volume.write(offset, data, fua, &self.client).await,
        }
    }

    /// Makes every write that was acknowledged before this call durable.
    pub async fn flush(&self) -> Result<(), IoError> {
        self.base().counters().flushes.add(1);
        self.shared().check()?;
        match &self.level {
            Level::Striped(volume) => volume.flush().await,
            Level::Parity(volume) => volume.flush().await,
        }
    }

    /// Tells that a range is not needed. Whole stripes read back zero afterwards where every member can zero;
    /// the rest stays as it is (C6).
    pub async fn discard(&self, offset: u64, length: u64) -> Result<(), IoError> {
        self.check_write(offset, length)?;
        self.zero_whole_stripes(offset, length).await.map(|_| ())
    }

    /// Makes a range read back zero.
    pub async fn write_zeroes(&self, offset: u64, length: u64, fua: bool) -> Result<(), IoError> {
        self.check_write(offset, length)?;
        let (from, to) = if fua { (offset, offset) } else { self.zero_whole_stripes(offset, length).await? };
        let end = offset + length;
        for (start, stop) in if from < to { [(offset, from), (to, end)] } else { [(offset, end), (end, end)] }
        {
            self.write_zero_bytes(start, stop - start, fua).await?;
        }
        Ok(())
    }

    /// Writes zeroes as if they were data: what was allocated stays so.
    pub async fn write_zero_bytes(&self, start: u64, length: u64, fua: bool) -> Result<(), IoError> {
        const STEP: u64 = VolumeBase::ZEROES_BYTES as u64;
        if length == 0 {
            return Ok(());
        }
        self.check_write(start, length)?;
        let stop = start + length;
        let zeroes = self.base().zeroes();
        let mut at = start;
        while at < stop {
            let length = STEP.min(stop - at);
            let part = zeroes.slice(0, to_usize(length));
            self.write(at, part, fua).await?;
            at += length;
        }
        Ok(())
    }

    /// Zeroes what of a range the members can, in whole stripes. Returns the range that it zeroed.
    async fn zero_whole_stripes(&self, offset: u64, length: u64) -> Result<(u64, u64), IoError> {
        match &self.level {
            Level::Striped(_) => Ok((offset, offset)),
            Level::Parity(volume) => volume.zero_whole_stripes(offset, length, &self.client).await,
        }
    }

    fn check_write(&self, offset: u64, length: u64) -> Result<(), IoError> {
        self.shared().geometry.check_range(offset, length)?;
        if self.shared().options.read_only { Err(IoError::ReadOnly) } else { Ok(()) }
    }
}
