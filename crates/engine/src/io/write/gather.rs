//! What joins a batch before it is frozen: writes that have arrived, and the neighbours of a stream.

use pinstripe_runtime::shard;

use super::{context::Company, stripe_write::StripeWrite};
use crate::{
    geometry::StripeId,
    io::parity::ParityVolume,
    membership::snapshot::Seat,
    mutants::{Mutant, active},
    shared::Answer,
    stripe::{image::Piece, table::Claim},
    units::to_u32,
};

/// A stream's stripe may wait for its neighbours as long as so many writes take,
const GATHER_WRITES: u64 = 4;
/// but not longer than this.
const GATHER_NS_MAX: u64 = 20_000_000;
/// Shortest time between two looks for the neighbours of a stream.
const PAUSE_NS_MIN: u64 = 1_000;

impl ParityVolume {
    /// Whether a piece's stripe seems to be the next of a sequential stream, whose pieces make it whole.
    pub(super) fn gathers(&self, stripe: StripeId, piece: Option<&Piece>) -> bool {
        let (shared, full) = (&*self.shared, self.geometry.stripe_bytes());
        // A wait of 0 means none: without a pause between two looks this task would never let another run.
        shared.options.gather_ns > 0
            && piece.is_none_or(|piece| to_u32(piece.data.len()) < full)
            && shared.recent.is_next(stripe.0, full.into())
    }

    /// How long to wait for the next piece of a stream: the writes that must end before their clients send it
    /// take the time of the slowest member.
    fn gather_limit(&self) -> u64 {
        let chunk = self.geometry.chunk_bytes();
        let view = self.members.view();
        let members = view.snapshot.seats.iter().filter_map(Seat::member);
        let slowest = members.map(|member| {
            let price = member.cost.write();
            u64::from(price.latency_ns) + u64::from(price.ns_per_kib) * u64::from(chunk / 1024)
        });
        (slowest.max().unwrap_or(0) * GATHER_WRITES).min(GATHER_NS_MAX)
    }
}

impl StripeWrite<'_> {
    /// Lets what has arrived join the batch, if it has a claim to join at.
    #[inline]
    pub(super) fn join_claim(&mut self, claim: Option<&mut Claim<'_, Piece, Answer>>) -> usize {
        claim.map_or(0, |claim| match self.volume.gates() {
            None if !claim.has_arrivals() => 0,
            None => self.join(claim),
            Some(gates) => self.join_within(gates, claim),
        })
    }

    /// Lets what has arrived join the batch.
    pub(super) fn join(&mut self, claim: &mut Claim<'_, Piece, Answer>) -> usize {
        if !claim.has_arrivals() || self.context.is_split || self.context.company == Company::Refused {
            return 0;
        }
        let room = self.shared.options.batch_max.saturating_sub(self.context.image.pieces());
        let image = &mut self.context.image;
        let mut reversed = Vec::new();
        let joined = claim.join(room, |piece| {
            if active(Mutant::BatchReversed) {
                reversed.push(piece);
            } else if !active(Mutant::FollowerLost) {
                image.add(piece);
            }
        });
        reversed.into_iter().rev().for_each(|piece| image.add(piece));
        if joined > 0 {
            self.context.company = Company::Joined;
        }
        self.counters().joins.add(joined as u64);
        joined
    }

    /// Waits for the neighbours of a sequential stream, while the clients of other writes under way could
    /// send them, and no longer than a few times as long as members take to write.
    pub(super) async fn gather(&mut self, claim: &mut Claim<'_, Piece, Answer>) {
        let volume = self.volume;
        let (shared, full) = (&*volume.shared, volume.geometry.stripe_bytes());
        shard::yield_now().await;
        self.join(claim);
        let started = shard::now();
        let limit = shared.options.gather_ns.max(volume.gather_limit());
        // The first look comes soon, later ones more seldom: a look costs a timer.
        let mut pause = (shared.options.gather_ns / 16).max(PAUSE_NS_MIN);
        while self.context.image.bytes_covered() < full
            && shared.admission.writers() > 0
            && shard::now() - started < limit
        {
            shard::sleep(pause).await;
            pause = (pause + pause / 2).min(limit / 16).max(PAUSE_NS_MIN);
            self.join(claim);
        }
        shared.recent.learn(self.context.image.bytes_covered() == full);
    }
}
