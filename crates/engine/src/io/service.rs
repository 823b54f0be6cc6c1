//! An array's volume as front ends want it.
//!
//! What a client waits for here is measured: from the call to the answer, with the wait for a limit and for
//! other writers of the same blocks. A front end's own work and the network come on top of that.

use std::{rc::Rc, sync::Arc};

use pinstripe_block::{
    BlockService, Client, ServiceError,
    budget::{Budget, Share},
    locks::{Held, Locks},
    mutants::{Mutant, active},
    pieces::PIECE_BYTES,
    rate::RateLimit,
};
use pinstripe_runtime::{Buffer, DeviceErrorKind, Slice, shard};

use super::{
    recorder::{Asked, Recorder},
    volume::Volume,
};
use crate::{
    error::IoError,
    geometry::{Geometry, ParityGeometry},
    latency::ClientOperation,
};

/// One shard's handle on an array.
#[derive(Clone)]
pub struct VolumeService {
    volume: Volume,
    /// Told of every request that fails for more than a refusal.
    complain: Rc<dyn Fn(&IoError)>,
    /// Where other writers write parts of blocks.
    locks: Option<Arc<Locks>>,
    /// Of all that is read and written by way of any handle with it.
    limit: Arc<RateLimit>,
    /// Zeroings of the client that wait for the limit.
    zeroings: Rc<Share>,
    /// Of all that is asked for by way of any handle with it.
    recorder: Arc<Recorder>,
}

impl VolumeService {
    /// The array on this shard. A client is told little of why a request failed; `complain` hears all of it.
    pub fn new(volume: Volume, complain: impl Fn(&IoError) + 'static) -> Self {
        let (limit, recorder) = Default::default();
        Self { volume, complain: Rc::new(complain), locks: None, limit, zeroings: zeroings(), recorder }
    }

    /// With writes that wait for writers of parts of the same blocks.
    #[must_use]
    pub fn with_locks(self, locks: Arc<Locks>) -> Self {
        Self { locks: Some(locks), ..self }
    }

    /// With requests that go no faster than this lets all handles go together.
    #[must_use]
    pub fn with_limit(self, limit: Arc<RateLimit>) -> Self {
        Self { limit, ..self }
    }

    /// With requests that this notes while there is a recording.
    #[must_use]
    pub fn with_recorder(self, recorder: Arc<Recorder>) -> Self {
        Self { recorder, ..self }
    }

    async fn hold(&self, offset: u64, length: u64) -> Option<Held<'_>> {
        match &self.locks {
            Some(locks) => Some(locks.shared(offset, length).await),
            None => None,
        }
    }

    fn geometry(&self) -> &Geometry {
        &self.volume.shared().geometry
    }

    /// Begins an operation; gives the time.
    fn begin(&self, operation: ClientOperation, (offset, length): (u64, u64), fua: bool) -> u64 {
        let asked = shard::now();
        self.recorder.note(Asked { at_ns: asked, operation, offset, length, fua });
        asked
    }

    /// Waits until the limit lets a request of so many bytes go.
    async fn pass(&self, bytes: u64) -> Result<(), IoError> {
        if self.limit.pass(bytes, self.volume.client()).await { Ok(()) } else { Err(IoError::Abandoned) }
    }

    /// The same for a zeroing. The requests of a client that hold data ask for no more at a time than its
    /// memory. A zeroing holds none: a client with many long ones in flight would take the time of minutes,
    /// and all others wait for as long. So no more of them are before the limit at a time than one may have.
    async fn pass_zeroing(&self, bytes: u64) -> Result<(), IoError> {
        if !self.limit.is_set() {
            return self.pass(bytes).await;
        }
        let counted = usize::try_from(bytes.min(PIECE_BYTES)).unwrap_or(usize::MAX);
        self.zeroings.acquire(counted).await;
        let passed = self.pass(bytes).await;
        self.zeroings.give_back(counted);
        passed
    }

    /// Makes a change of a range when the limit and other writers of its blocks let it: after `passed`.
    async fn in_turn(
        &self,
        passed: impl Future<Output = Result<(), IoError>>,
        (offset, length): (u64, u64),
        change: impl AsyncFnOnce() -> Result<(), IoError>,
    ) -> Result<(), IoError> {
        passed.await?;
        let _held = self.hold(offset, length).await;
        change().await
    }

    /// Counts an operation that was asked for at `asked` and is over now.
    fn measure(&self, operation: ClientOperation, asked: u64) {
        self.volume.base().latencies().add(operation, shard::now().saturating_sub(asked));
    }

    fn answer(&self, result: Result<(), IoError>) -> Result<(), ServiceError> {
        result.map_err(|error| {
            let answer = match &error {
                IoError::ReadOnly => return ServiceError::ReadOnly,
                IoError::Stopping => return ServiceError::Stopping,
                // No client is left to hear it.
                IoError::Abandoned => return ServiceError::Io,
                IoError::Member(member) if member.error.kind == DeviceErrorKind::NoSpace => {
                    ServiceError::NoSpace
                }
                _ => ServiceError::Io,
            };
            (self.complain)(&error);
            answer
        })
    }
}

/// For the zeroings of one client.
fn zeroings() -> Rc<Share> {
    let most = usize::try_from(PIECE_BYTES).unwrap_or(usize::MAX);
    Rc::new(Share::new(Arc::new(Budget::new(most))))
}

impl BlockService for VolumeService {
    fn for_client(self, client: Client) -> Self {
        Self { volume: self.volume.for_client(client), zeroings: zeroings(), ..self }
    }

    fn size_bytes(&self) -> u64 {
        self.volume.size()
    }

    fn block_size(&self) -> u32 {
        self.geometry().logical_block()
    }

    /// A stripe, where clients can align to one, else a chunk.
    fn preferred_block(&self) -> u32 {
        let stripe = self.geometry().parity().map(ParityGeometry::stripe_bytes);
        stripe.filter(|bytes| bytes.is_power_of_two()).unwrap_or(self.geometry().chunk_bytes())
    }

    /// A stripe: less than one isn't discarded.
    fn discard_granularity(&self) -> u64 {
        let stripe = self.geometry().parity().map(ParityGeometry::stripe_bytes);
        stripe.unwrap_or(self.geometry().chunk_bytes()).into()
    }

    fn chunk_bytes(&self) -> u32 {
        self.geometry().chunk_bytes()
    }

    fn stripe_bytes(&self) -> u64 {
        self.geometry().stripe_bytes()
    }

    fn read_only(&self) -> bool {
        self.volume.shared().options.read_only
    }

    async fn read(&self, offset: u64, buffer: Buffer) -> (Result<(), ServiceError>, Buffer) {
        let length = buffer.len() as u64;
        let asked = self.begin(ClientOperation::Read, (offset, length), false);
        let (result, buffer) = match self.pass(length).await {
            Ok(()) => self.volume.read(offset, buffer).await,
            Err(error) => (Err(error), buffer),
        };
        self.measure(ClientOperation::Read, asked);
        (self.answer(result), buffer)
    }

    async fn write(&self, offset: u64, data: Slice, fua: bool) -> Result<(), ServiceError> {
        let length = data.len() as u64;
        let asked = self.begin(ClientOperation::Write, (offset, length), fua);
        let fua = fua && !active(Mutant::FuaDropped);
        let write = async || self.volume.write(offset, data, fua).await;
        let result = self.in_turn(self.pass(length), (offset, length), write).await;
        self.measure(ClientOperation::Write, asked);
        self.answer(result)
    }

    /// Not limited: what others have written before is made durable by it.
    async fn flush(&self) -> Result<(), ServiceError> {
        let asked = self.begin(ClientOperation::Flush, (0, 0), false);
        let result = self.volume.flush().await;
        self.measure(ClientOperation::Flush, asked);
        self.answer(result)
    }

    /// A request, and no bytes.
    async fn discard(&self, offset: u64, length: u64, fua: bool) -> Result<(), ServiceError> {
        let asked = self.begin(ClientOperation::Discard, (offset, length), fua);
        let discard = async || self.volume.discard(offset, length).await;
        let mut result = self.in_turn(self.pass(0), (offset, length), discard).await;
        if result.is_ok() && fua && !active(Mutant::TrimFuaDropped) {
            result = self.volume.flush().await;
        }
        self.measure(ClientOperation::Discard, asked);
        self.answer(result)
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        fua: bool,
        may_punch: bool,
    ) -> Result<(), ServiceError> {
        let asked = self.begin(ClientOperation::WriteZeroes, (offset, length), fua);
        let fua = fua && !active(Mutant::ZeroesFuaDropped);
        let zero = async || {
            if may_punch {
                self.volume.write_zeroes(offset, length, fua).await
            } else {
                self.volume.write_zero_bytes(offset, length, fua).await
            }
        };
        let result = self.in_turn(self.pass_zeroing(length), (offset, length), zero).await;
        self.measure(ClientOperation::WriteZeroes, asked);
        self.answer(result)
    }
}
