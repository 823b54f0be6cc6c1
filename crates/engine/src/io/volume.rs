//! The array as one shard uses it: reads, writes, flushes, discards.
//!
//! A [`Volume`] is the shard's handle: the shared state, this shard's devices, and its pools of contexts, so
//! that a request allocates nothing once they are warm.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    sync::Arc,
};

use pinstripe_parity::Kernel;
use pinstripe_runtime::{Buffer, Slice, SubmissionSet, shard};

use crate::{
    error::IoError,
    geometry::{Geometry, ParityGeometry, StripeId},
    io::{fan_out::FanOut, row::RowRange, write::context::WriteContext},
    mutants::{Mutant, active},
    shared::{Answer, Shared},
    statistics::Counters,
    stripe::{
        image::Piece,
        table::{Claim, Entered},
    },
    supervision::shard_members::ShardMembers,
    units::to_usize,
};

/// Most stripes of longer writes that have tasks of their own at a time. Clients decide how many there are,
/// and a shard holds only so many tasks; beyond this a request writes its stripes one by one.
const BRANCHES_MAX: usize = 4096;

/// An array on one shard. Cheap to clone.
#[derive(Clone)]
pub struct Volume {
    pub(crate) inner: Rc<ShardVolume>,
}

pub(crate) struct ShardVolume {
    pub(crate) shared: Arc<Shared>,
    pub(crate) shard: usize,
    pub(crate) kernel: &'static Kernel,
    /// The members as this shard sees them.
    pub(crate) members: Rc<ShardMembers>,
    pub(crate) write_contexts: Pooled<WriteContext>,
    pub(crate) rows: Pooled<RowRange>,
    pub(crate) sets: Pooled<SubmissionSet>,
    /// Stripes of longer writes that tasks of their own write now.
    branches: Cell<usize>,
}

/// Values that are used again. A context that is lost with its task (a crash in the simulator) is no loss.
pub(crate) struct Pooled<T>(RefCell<Vec<Box<T>>>);

impl<T: Default> Pooled<T> {
    fn new() -> Self {
        Self(RefCell::default())
    }

    #[expect(clippy::unnecessary_box_returns, reason = "the box is what is used again")]
    pub(crate) fn take(&self) -> Box<T> {
        self.0.borrow_mut().pop().unwrap_or_default()
    }

    pub(crate) fn give(&self, value: Box<T>) {
        self.0.borrow_mut().push(value);
    }
}

impl Volume {
    /// The array on the current shard, which must be one of `shared.shards`.
    pub fn new(shared: Arc<Shared>) -> Self {
        let shard = shard::index();
        let position = shared.shards.iter().position(|s| s.index() == shard);
        let shard = position.expect("a volume is opened on a shard of its array");
        let inner = ShardVolume {
            shard,
            kernel: pinstripe_parity::kernel(),
            members: ShardMembers::new(Arc::clone(&shared), shard),
            write_contexts: Pooled::new(),
            rows: Pooled::new(),
            sets: Pooled::new(),
            branches: Cell::new(0),
            shared,
        };
        Self { inner: Rc::new(inner) }
    }

    /// What it shares with the other shards.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.inner.shared
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.inner.shared.geometry.array_bytes()
    }

    /// Reads `buffer.len()` bytes from `offset`; the buffer comes back, its content unspecified after an
    /// error.
    pub async fn read(&self, offset: u64, buffer: Buffer) -> (Result<(), IoError>, Buffer) {
        let length = buffer.len() as u64;
        if let Err(error) = self.inner.shared.geometry.check_range(offset, length) {
            return (Err(error.into()), buffer);
        }
        if self.inner.shared.is_fenced() {
            return (Err(IoError::TakenOver), buffer);
        }
        self.inner.counters().reads.add(1);
        self.inner.counters().read_bytes.add(length);
        match &self.inner.shared.geometry {
            Geometry::Raid0(geometry) => self.inner.read_striped(geometry, offset, buffer).await,
            Geometry::Parity(geometry) => match self.inner.cached(geometry, offset, length) {
                None => self.inner.read_parity(geometry, offset, buffer).await,
                Some(cached) => Box::pin(self.read_cached(geometry, offset, buffer, &cached)).await,
            },
        }
    }

    /// Reads what a write-back journal has, and the rest from the members. What is cached was looked up
    /// first: a page that goes to its member meanwhile is there before it leaves the cache.
    async fn read_cached(
        &self,
        geometry: &ParityGeometry,
        offset: u64,
        mut buffer: Buffer,
        cached: &[(usize, Slice)],
    ) -> (Result<(), IoError>, Buffer) {
        if overlay(cached, &mut buffer) {
            return (Ok(()), buffer);
        }
        let (result, mut buffer) = self.inner.read_parity(geometry, offset, buffer).await;
        overlay(cached, &mut buffer);
        (result, buffer)
    }

    /// Writes `data` at `offset`; with `fua` it is durable when this returns.
    pub async fn write(&self, offset: u64, data: Slice, fua: bool) -> Result<(), IoError> {
        let length = data.len() as u64;
        self.inner.check_write(offset, length)?;
        self.inner.counters().writes.add(1);
        self.inner.counters().write_bytes.add(length);
        match &self.inner.shared.geometry {
            Geometry::Raid0(geometry) => self.inner.write_striped(geometry, offset, data, fua).await,
            Geometry::Parity(geometry) => self.write_parity(geometry, offset, data, fua).await,
        }
    }

    async fn write_parity(&self, geometry: &ParityGeometry, offset: u64, data: Slice, fua: bool) -> Answer {
        let (stripe, start) = geometry.locate(offset);
        let length = data.len() as u64;
        if length <= (geometry.stripe_bytes() - start).into() {
            return self.inner.write_stripe(stripe, Piece { start, data, fua }).await;
        }
        let all = FanOut::new();
        for part in geometry.stripe_pieces(offset, length)? {
            let data = data.slice(to_usize(part.request_offset), part.length as usize);
            let piece = Piece { start: part.start, data, fua };
            let branch = all.branch();
            if self.inner.branches.get() >= BRANCHES_MAX {
                // It holds no claim, so it may wait for one like any branch (C12).
                branch.finish(self.inner.write_stripe(part.stripe, piece).await);
                continue;
            }
            let volume = self.clone();
            volume.inner.branches.set(volume.inner.branches.get() + 1);
            shard::spawn(async move {
                branch.finish(volume.inner.write_stripe(part.stripe, piece).await);
                volume.inner.branches.set(volume.inner.branches.get() - 1);
            });
        }
        if active(Mutant::StripesNotAwaited) { Ok(()) } else { all.wait().await }
    }

    /// Makes every write that was acknowledged before this call durable.
    pub async fn flush(&self) -> Result<(), IoError> {
        self.inner.counters().flushes.add(1);
        self.inner.flush().await
    }

    /// Tells that a range is not needed. Whole stripes read back zero afterwards where every member can zero;
    /// the rest stays as it is (C6).
    pub async fn discard(&self, offset: u64, length: u64) -> Result<(), IoError> {
        self.inner.check_write(offset, length)?;
        self.zero_whole_stripes(offset, length).await.map(|_| ())
    }

    /// Makes a range read back zero.
    pub async fn write_zeroes(&self, offset: u64, length: u64, fua: bool) -> Result<(), IoError> {
        self.inner.check_write(offset, length)?;
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
        const STEP: u64 = 1 << 20;
        if length == 0 {
            return Ok(());
        }
        self.inner.check_write(start, length)?;
        let stop = start + length;
        let zeroes = shard::zeroed(to_usize(STEP.min(length))).freeze();
        let mut at = start;
        while at < stop {
            let length = STEP.min(stop - at);
            let part = zeroes.slice(0, to_usize(length));
            self.write(at, part, fua).await?;
            at += length;
        }
        Ok(())
    }

    /// Zeroes the whole stripes of a range where the members can. Returns the range that it zeroed.
    async fn zero_whole_stripes(&self, offset: u64, length: u64) -> Result<(u64, u64), IoError> {
        let Some(geometry) = self.inner.shared.geometry.parity() else { return Ok((offset, offset)) };
        let stripe_bytes = u64::from(geometry.stripe_bytes());
        let (first, last) = if active(Mutant::TrimRoundedOutward) {
            (offset / stripe_bytes, (offset + length).div_ceil(stripe_bytes))
        } else {
            (offset.div_ceil(stripe_bytes), (offset + length) / stripe_bytes)
        };
        if first >= last || !self.inner.can_zero() {
            return Ok((offset, offset));
        }
        for stripe in first..last {
            if !self.inner.zero_stripe(StripeId(stripe)).await? {
                // A member that can't after all: what was zeroed until now is zero, the rest is left.
                return Ok((first * stripe_bytes, stripe * stripe_bytes));
            }
        }
        Ok((first * stripe_bytes, last * stripe_bytes))
    }
}

impl ShardVolume {
    pub(crate) fn counters(&self) -> &Counters {
        &self.shared.counters[self.shard]
    }

    fn check_write(&self, offset: u64, length: u64) -> Result<(), IoError> {
        self.shared.geometry.check_range(offset, length)?;
        if self.shared.options.read_only { Err(IoError::ReadOnly) } else { Ok(()) }
    }

    /// Claims a stripe for work that no write can join.
    pub(crate) async fn claim_alone(&self, stripe: StripeId) -> Claim<'_, Piece, Answer> {
        let Entered::Owner(claim, _) = self.shared.stripes.claim(self.shard, stripe.0, None).await else {
            unreachable!("an exclusive claim never joins");
        };
        claim
    }

    pub(crate) fn parity_geometry(&self) -> &ParityGeometry {
        self.shared.geometry.parity().expect("level 0 has no stripes to claim")
    }
}

/// Lays what is cached over what was read. True if that is all of it.
fn overlay(cached: &[(usize, Slice)], buffer: &mut Buffer) -> bool {
    let mut bytes = 0;
    for (at, part) in cached {
        buffer[*at..*at + part.len()].copy_from_slice(part);
        bytes += part.len();
    }
    bytes == buffer.len()
}
