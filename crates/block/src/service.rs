//! What a front end asks of an array, whatever protocol it speaks.

use std::rc::Rc;

use pinstripe_runtime::{Buffer, Slice};
use thiserror::Error;

use crate::mutants::{Mutant, active};

/// Why a request failed, as far as a client can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
#[error("{}", self.message())]
pub enum ServiceError {
    /// The data could not be read or written.
    Io,
    /// There is no space behind the array.
    NoSpace,
    /// The array takes no writes (any more).
    ReadOnly,
    /// Memory or another resource was short; nothing was done.
    Resources,
    /// The array is being stopped; nothing was done.
    Stopping,
    /// What stood behind it is gone: nothing will succeed any more.
    Gone,
}

impl ServiceError {
    /// A sentence for the person before the client.
    pub const fn message(self) -> &'static str {
        match self {
            Self::Io => "the array failed to carry out the request; the server's log has the reason",
            Self::NoSpace => "no space is left behind the array",
            Self::ReadOnly => "the array is read-only",
            Self::Resources => "the server is out of resources",
            Self::Stopping => "the array is stopping",
            Self::Gone => "the device is gone",
        }
    }
}

/// A client, as what carries its requests out sees it.
///
/// A client that has given a request up may send it again by another connection, and then others. Begun after
/// that, the first one would put old bytes over newer ones that were acknowledged (C16). So whatever changes
/// blocks asks, at the moment when it takes its place before all later changes of them, whether it is still
/// wanted. It does so at each step that takes such a place, whether or not it has waited: what it was sent by
/// may have stood still.
#[derive(Clone, Default)]
pub struct Client(Option<Rc<dyn Fn() -> bool>>);

impl Client {
    /// One of which `has_hung_up` tells whether it has.
    pub fn new(has_hung_up: impl Fn() -> bool + 'static) -> Self {
        Self(Some(Rc::new(has_hung_up)))
    }

    /// Whether it has given up what it asked for. Cheap.
    #[inline]
    pub fn has_hung_up(&self) -> bool {
        self.0.as_ref().is_some_and(|has_hung_up| has_hung_up() && !active(Mutant::RequestsOfTheGoneBegun))
    }
}

/// One shard's handle on an array: cheap to clone, `Rc` inside.
///
/// Offsets and lengths are bytes within the array, multiples of its block size, and not zero long: front ends
/// check what clients send before they call. Requests run concurrently and may complete in any order. Once a
/// request's future was polled, it must be awaited to its end; front ends never drop one, except when the
/// shard ends.
#[expect(async_fn_in_trait, reason = "all on one shard: the futures need not be Send")]
pub trait BlockService: Clone + 'static {
    /// The handle for the requests of a client that may hang up and send them again: see [`Client`].
    #[must_use]
    fn for_client(self, client: Client) -> Self {
        let _ = client;
        self
    }

    /// Size in bytes, a multiple of the block size. Constant while it is served.
    fn size_bytes(&self) -> u64;

    /// Bytes of the logical block, a power of two.
    fn block_size(&self) -> u32;

    /// Bytes of a range that is handled well when aligned to itself, such as a chunk or a stripe; any number.
    fn preferred_block(&self) -> u32;

    /// Bytes of a range, aligned to itself, that [`BlockService::discard`] and [`BlockService::write_zeroes`]
    /// handle as a whole. A part of one may be left as it is, or cost more, so front ends cut long requests
    /// at multiples of it.
    fn discard_granularity(&self) -> u64 {
        self.preferred_block().into()
    }

    /// Bytes that one device behind it holds in a row, a power of two: less costs as much, as a rule. An
    /// array's chunk.
    fn chunk_bytes(&self) -> u32 {
        self.block_size()
    }

    /// Bytes of a write, aligned to itself, that costs least; any number. An array's stripe.
    fn stripe_bytes(&self) -> u64 {
        self.preferred_block().into()
    }

    /// Whether writes are refused.
    fn read_only(&self) -> bool;

    /// Whether [`BlockService::write_zeroes`] would be quicker here than a write of the same length.
    fn zeroes_fast(&self, _offset: u64, _length: u64, _may_punch: bool) -> bool {
        false
    }

    /// Fills `buffer` from `offset` and gives back the same buffer, whole, also after a failure. After a
    /// success every byte of it is sent to the client.
    async fn read(&self, offset: u64, buffer: Buffer) -> (Result<(), ServiceError>, Buffer);

    /// Writes `data` at `offset`; with `fua` it is durable at completion.
    async fn write(&self, offset: u64, data: Slice, fua: bool) -> Result<(), ServiceError>;

    /// Makes every write that completed before this call durable, whatever connection or shard it came by.
    async fn flush(&self) -> Result<(), ServiceError>;

    /// The range isn't needed any more: it may read as anything, until it is written again.
    async fn discard(&self, offset: u64, length: u64, fua: bool) -> Result<(), ServiceError>;

    /// Makes the range read as zero. Its space may be freed if `may_punch`.
    async fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        fua: bool,
        may_punch: bool,
    ) -> Result<(), ServiceError>;
}
