//! The volume of an array with parity on one shard.
//!
//! What a request of a client touches is cut into stripes here. The way of a stripe write is in
//! [`write`](mod@super::write), that of a read in [`read`](super::read).

use std::{cell::Cell, ops::Deref, rc::Rc};

use pinstripe_block::Client;
use pinstripe_parity::Kernel;
use pinstripe_runtime::{Buffer, Slice, SubmissionSet, shard};

use crate::{
    ablation::Gates,
    error::IoError,
    geometry::{self, ParityGeometry, StripeId},
    io::{
        base::{Pooled, VolumeBase},
        fan_out::FanOut,
        room::Room,
        row::RowRange,
        write::context::WriteContext,
    },
    mutants::{Mutant, active},
    shared::Answer,
    stripe::{
        image::Piece,
        table::{Claim, Entered},
    },
    units::to_usize,
};

/// Most stripes of longer writes that have tasks of their own at a time. Clients decide how many there are,
/// and a shard holds only so many tasks; beyond this a request writes its stripes one by one.
const BRANCHES_MAX: usize = 4096;

/// See the module. Its contexts are pooled, so that a request allocates nothing once they are warm.
pub(crate) struct ParityVolume {
    base: VolumeBase,
    pub(crate) geometry: ParityGeometry,
    pub(crate) kernel: &'static Kernel,
    pub(crate) write_contexts: Pooled<WriteContext>,
    pub(crate) rows: Pooled<RowRange>,
    /// Reads of several chunks under way.
    pub(crate) reads: Pooled<SubmissionSet<geometry::Piece>>,
    pub(crate) room: Rc<Room>,
    /// Stripes of longer writes that tasks of their own write now.
    branches: Cell<usize>,
}

impl Deref for ParityVolume {
    type Target = VolumeBase;

    fn deref(&self) -> &VolumeBase {
        &self.base
    }
}

impl ParityVolume {
    pub(crate) fn new(base: VolumeBase, geometry: ParityGeometry) -> Rc<Self> {
        let room = Room::of(&base.shared, base.shard);
        Rc::new(Self {
            base,
            room,
            geometry,
            kernel: pinstripe_parity::kernel(),
            write_contexts: Pooled::default(),
            rows: Pooled::default(),
            reads: Pooled::default(),
            branches: Cell::new(0),
        })
    }

    /// Reads from members, and from the journal what it alone has.
    pub(crate) async fn read(&self, offset: u64, buffer: Buffer) -> (Answer, Buffer) {
        match self.cached(offset, buffer.len() as u64) {
            None => self.read_parity(offset, buffer).await,
            Some(cached) => Box::pin(self.read_cached(offset, buffer, &cached)).await,
        }
    }

    /// Reads what a write-back journal has, and the rest from the members. What is cached was looked up
    /// first: a page that goes to its member meanwhile is there before it leaves the cache.
    async fn read_cached(
        &self,
        offset: u64,
        mut buffer: Buffer,
        cached: &[(usize, Slice)],
    ) -> (Result<(), IoError>, Buffer) {
        if overlay(cached, &mut buffer) {
            return (Ok(()), buffer);
        }
        let (result, mut buffer) = self.read_parity(offset, buffer).await;
        let result = match result {
            // Perhaps only what the journal has.
            Err(IoError::Unreadable { .. }) => self.read_beside(offset, &mut buffer, cached).await,
            result => result,
        };
        overlay(cached, &mut buffer);
        (result, buffer)
    }

    /// Reads from the members what isn't cached, piece by piece.
    async fn read_beside(&self, offset: u64, buffer: &mut Buffer, cached: &[(usize, Slice)]) -> Answer {
        let mut parts: Vec<_> = cached.iter().map(|(at, part)| (*at, at + part.len())).collect();
        parts.sort_unstable();
        parts.push((buffer.len(), buffer.len()));
        let mut from = 0;
        for (at, end) in parts {
            if from < at {
                let (result, piece) = self.read_parity(offset + from as u64, shard::buffer(at - from)).await;
                result?;
                buffer[from..at].copy_from_slice(&piece);
            }
            from = end;
        }
        Ok(())
    }

    /// Cuts a write into stripes, which are written side by side.
    pub(crate) async fn write(
        self: &Rc<Self>,
        offset: u64,
        data: Slice,
        fua: bool,
        client: &Client,
    ) -> Answer {
        if self.shared.pool.is_some() {
            return self.write_by_workers(offset, data, fua).await;
        }
        let (stripe, start) = self.geometry.locate(offset);
        let length = data.len() as u64;
        if length <= (self.geometry.stripe_bytes() - start).into() {
            return self.write_stripe(stripe, Piece { start, data, fua }, client).await;
        }
        let all = FanOut::new();
        for part in self.geometry.stripe_pieces(offset, length)? {
            let data = data.slice(to_usize(part.request_offset), part.length as usize);
            let piece = Piece { start: part.start, data, fua };
            let branch = all.branch();
            if self.branches.get() >= BRANCHES_MAX {
                // It holds no claim, so it may wait for one like any branch (C12).
                branch.finish(self.write_stripe(part.stripe, piece, client).await);
                continue;
            }
            let (volume, client) = (Rc::clone(self), client.clone());
            volume.branches.set(volume.branches.get() + 1);
            shard::spawn(async move {
                branch.finish(volume.write_stripe(part.stripe, piece, &client).await);
                volume.branches.set(volume.branches.get() - 1);
            });
        }
        if active(Mutant::StripesNotAwaited) { Ok(()) } else { all.wait().await }
    }

    /// Zeroes the whole stripes of a range where the members can. Returns the range that it zeroed.
    pub(crate) async fn zero_whole_stripes(
        &self,
        offset: u64,
        length: u64,
        client: &Client,
    ) -> Result<(u64, u64), IoError> {
        let stripe_bytes = u64::from(self.geometry.stripe_bytes());
        let (first, last) = if active(Mutant::TrimRoundedOutward) {
            (offset / stripe_bytes, (offset + length).div_ceil(stripe_bytes))
        } else {
            (offset.div_ceil(stripe_bytes), (offset + length) / stripe_bytes)
        };
        if first >= last || !self.can_zero() {
            return Ok((offset, offset));
        }
        for stripe in first..last {
            if !self.zero_stripe(StripeId(stripe), client).await? {
                // A member that can't after all: what was zeroed until now is zero, the rest is left.
                return Ok((first * stripe_bytes, stripe * stripe_bytes));
            }
        }
        Ok((first * stripe_bytes, last * stripe_bytes))
    }

    /// Locks of older designs, in a measurement of those.
    pub(crate) fn gates(&self) -> Option<&Gates> {
        self.shared.gates.as_deref()
    }

    /// Claims a stripe for a change that no write can join, if its client still wants it.
    pub(crate) async fn claim_for(
        &self,
        stripe: StripeId,
        client: &Client,
    ) -> Result<Claim<'_, Piece, Answer>, IoError> {
        let claim = self.shared.stripes.claim_if(self.shard, stripe.0, None, || !client.has_hung_up());
        match claim.await.ok_or(IoError::Abandoned)? {
            Entered::Owner(claim, _) => Ok(claim),
            Entered::Joined(_) => unreachable!("an exclusive claim never joins"),
        }
    }

    /// Claims a stripe for work that no write can join.
    pub(crate) async fn claim_alone(&self, stripe: StripeId) -> Claim<'_, Piece, Answer> {
        let Entered::Owner(claim, _) = self.shared.stripes.claim(self.shard, stripe.0, None).await else {
            unreachable!("an exclusive claim never joins");
        };
        claim
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
