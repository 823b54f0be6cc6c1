//! A stripe write within the gates of older designs: see [`ablation`](crate::ablation).

use std::pin::Pin;

use crate::{
    ablation::{Gates, Held},
    geometry::StripeId,
    io::{parity::ParityVolume, write::context::WriteContext},
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

    /// Lets what has arrived join the batch.
    #[cold]
    pub(super) fn join_within(
        &self,
        gates: &Gates,
        claim: &mut Claim<'_, Piece, Answer>,
        context: &mut WriteContext,
    ) -> usize {
        let _held = self.enter_gate(gates, claim.stripe(), context);
        self.join(claim, context)
    }

    /// Answers what joined, and releases the stripe.
    #[cold]
    pub(super) fn finish_within(
        &self,
        gates: &Gates,
        claim: Claim<'_, Piece, Answer>,
        answer: &Answer,
        context: &WriteContext,
    ) {
        let _held = self.enter_gate(gates, claim.stripe(), context);
        claim.finish(answer);
    }

    /// The gate for a change of the state of a stripe that is claimed.
    fn enter_gate<'g>(&self, gates: &'g Gates, stripe: u64, context: &WriteContext) -> Held<'g> {
        let chunk = self.geometry.chunk_bytes();
        let (from, to) = context.image.rows(chunk);
        gates.stripe(gates.pages(stripe, chunk, from, to.saturating_sub(from)))
    }
}
