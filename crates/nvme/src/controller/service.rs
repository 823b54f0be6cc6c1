//! A device as a block service: what `pinstripe target` exports.

use std::{cell::OnceCell, rc::Rc};

use pinstripe_block::{BlockService, ServiceError};
use pinstripe_runtime::{Buffer, Device, DeviceError, DeviceErrorKind, Slice, ZeroedReads, shard};

use super::flushes::DeviceFlushes;

/// Zero bytes that are written at a time where the device can't zero by itself.
const ZEROES_BYTES: usize = 256 << 10;

/// See the module.
#[derive(Clone)]
pub struct DeviceService {
    device: Rc<dyn Device>,
    read_only: bool,
    /// Made when it is first needed, for all requests.
    zeroes: Rc<OnceCell<Slice>>,
    flushes: Option<DeviceFlushes>,
}

impl DeviceService {
    /// This shard's handle on a device.
    pub fn new(device: Rc<dyn Device>, read_only: bool) -> Self {
        Self { device, read_only, zeroes: Rc::default(), flushes: None }
    }

    /// The same with what the handles of all shards know of the device's flushes: after one that failed none
    /// succeeds. Without it the service is for a host that believes no flush after a failed one itself.
    #[must_use]
    pub fn sharing(self, flushes: DeviceFlushes) -> Self {
        Self { flushes: Some(flushes), ..self }
    }

    async fn write_zero_bytes(&self, offset: u64, length: u64) -> Result<(), ServiceError> {
        let zeroes = self.zeroes.get_or_init(|| shard::zeroed(ZEROES_BYTES).freeze());
        let mut done = 0;
        while done < length {
            let count = usize::try_from(length - done).unwrap_or(usize::MAX).min(ZEROES_BYTES);
            self.write(offset + done, zeroes.slice(0, count), false).await?;
            done += count as u64;
        }
        Ok(())
    }
}

pub(super) fn told(error: DeviceError) -> ServiceError {
    match error.kind {
        DeviceErrorKind::NoSpace => ServiceError::NoSpace,
        DeviceErrorKind::Busy => ServiceError::Resources,
        DeviceErrorKind::Gone
        | DeviceErrorKind::Fenced
        | DeviceErrorKind::Removed
        | DeviceErrorKind::TimedOut => ServiceError::Gone,
        DeviceErrorKind::Media
        | DeviceErrorKind::Unsupported
        | DeviceErrorKind::Refused
        | DeviceErrorKind::Invalid
        | DeviceErrorKind::TooManyErrors
        | DeviceErrorKind::Other => ServiceError::Io,
    }
}

impl BlockService for DeviceService {
    fn size_bytes(&self) -> u64 {
        self.device.info().size
    }

    fn block_size(&self) -> u32 {
        self.device.info().logical_block
    }

    fn preferred_block(&self) -> u32 {
        self.device.info().logical_block
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    async fn read(&self, offset: u64, buffer: Buffer) -> (Result<(), ServiceError>, Buffer) {
        let length = buffer.len();
        let outcome = self.device.read(offset, buffer).await;
        let buffer = outcome.buffer.unwrap_or_else(|| shard::zeroed(length));
        let whole = outcome.result.map_err(told).and_then(|count| {
            if count == length && buffer.len() == length { Ok(()) } else { Err(ServiceError::Io) }
        });
        (whole, buffer)
    }

    async fn write(&self, offset: u64, data: Slice, fua: bool) -> Result<(), ServiceError> {
        let write = async { self.device.write(offset, data, fua).await.result.map(|_| ()) };
        match &self.flushes {
            Some(flushes) if fua => flushes.force(write, self.device.info().forces_by_flush).await,
            _ => write.await.map_err(told),
        }
    }

    async fn flush(&self) -> Result<(), ServiceError> {
        let flush = async { self.device.flush().await.result.map(|_| ()) };
        match &self.flushes {
            Some(flushes) => flushes.flush(flush).await,
            None => flush.await.map_err(told),
        }
    }

    async fn discard(&self, offset: u64, length: u64, fua: bool) -> Result<(), ServiceError> {
        if self.device.info().discards {
            self.device.discard(offset, length).await.result.map_err(told)?;
        }
        if fua { self.flush().await } else { Ok(()) }
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        fua: bool,
        may_punch: bool,
    ) -> Result<(), ServiceError> {
        if may_punch && self.device.info().zeroes == ZeroedReads::Zero {
            self.device.write_zeroes(offset, length).await.result.map_err(told)?;
        } else {
            self.write_zero_bytes(offset, length).await?;
        }
        if fua { self.flush().await } else { Ok(()) }
    }
}
