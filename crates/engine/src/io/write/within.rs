//! A stripe write within the gates of older designs: see [`ablation`](crate::ablation).

use std::pin::Pin;

use super::stripe_write::StripeWrite;
use crate::{
    ablation::{Gates, Held},
    geometry::StripeId,
    io::parity::ParityVolume,
    shared::Answer,
    stripe::{
        image::Piece,
        table::{Claim, Entered},
    },
    units::to_u32,
};

impl ParityVolume {
    /// Claims a stripe for a write.
    #[cold]
    pub(super) fn claim_within<'s>(
        &'s self,
        gates: &'s Gates,
        stripe: StripeId,
        piece: Piece,
    ) -> Pin<Box<dyn Future<Output = Entered<'s, Piece, Answer>> + 's>> {
        let pages = gates.pages(stripe.0, self.geometry.chunk_bytes(), piece.start, to_u32(piece.data.len()));
        let claim = self.shared.stripes.claim(self.shard, stripe.0, Some(piece));
        Box::pin(gates.claim(pages, Box::pin(claim)))
    }

    /// Whether anything has arrived at a claim by which these rows of the chunk are written.
    #[cold]
    pub(super) fn has_arrivals_within(
        &self,
        gates: &Gates,
        claim: &Claim<'_, Piece, Answer>,
        rows: (u32, u32),
    ) -> bool {
        let _held = self.enter_gate(gates, claim.stripe(), rows);
        claim.has_arrivals()
    }

    /// Answers what joined a batch of these rows of the chunk, and releases the stripe.
    #[cold]
    pub(super) fn finish_within(
        &self,
        gates: &Gates,
        claim: Claim<'_, Piece, Answer>,
        answer: &Answer,
        rows: (u32, u32),
    ) {
        let _held = self.enter_gate(gates, claim.stripe(), rows);
        claim.finish(answer);
    }

    /// The gate for a change of the state of a stripe that is claimed.
    fn enter_gate<'g>(&self, gates: &'g Gates, stripe: u64, (from, to): (u32, u32)) -> Held<'g> {
        let chunk = self.geometry.chunk_bytes();
        gates.stripe(gates.pages(stripe, chunk, from, to.saturating_sub(from)))
    }
}

impl StripeWrite<'_> {
    /// Lets what has arrived join the batch.
    #[cold]
    pub(super) fn join_within(&mut self, gates: &Gates, claim: &mut Claim<'_, Piece, Answer>) -> usize {
        let rows = self.context.image.rows(self.geometry.chunk_bytes());
        let _held = self.volume.enter_gate(gates, claim.stripe(), rows);
        self.join(claim)
    }
}
