//! The stripe write: one task from claim to release, in two phases, which [`stripe_write`] has.
//!
//! ```text
//!   claim ─> gather ─> plan ─> pre-read ┬─> freeze ─> (plan again if others joined) ─> parity ─> write members ─> release
//!                              intent ──┘     ^ same-stripe writes join until here
//! ```
//!
//! - *Plan* is made under a [`Pass`](crate::membership::admission::Pass): the membership can't change
//!   without this write being waited for. If it has changed by the freeze, everything but the batch is thrown
//!   away and planned anew (C1).
//! - *Freeze* is the last look at the writes that have arrived (C11); the image is final then, and each
//!   sector is written once.
//! - Nothing is written before the intent of every row is durable (C7), and intent is kept until every member
//!   has answered.
//! - A member that fails a write is dropped, durably, before the batch is acknowledged (C2). So is, before
//!   it, every member that the plan had to leave out.

mod back;
pub(crate) mod context;
mod encode;
mod gather;
mod in_place;
mod keep;
mod offload;
mod plan_facts;
mod pre_read;
mod stripe_write;
mod within;
pub(crate) mod workers;

use pinstripe_block::Client;

use self::{
    context::{Company, WriteContext},
    stripe_write::StripeWrite,
};

use crate::{
    error::IoError,
    geometry::StripeId,
    io::parity::ParityVolume,
    mutants::{Mutant, active},
    shared::Answer,
    stripe::{
        image::Piece,
        table::{Claim, Entered},
    },
};

impl ParityVolume {
    /// Writes a piece of one stripe: as the owner of the stripe, or in the owner's batch.
    pub(crate) async fn write_stripe(&self, stripe: StripeId, piece: Piece, client: &Client) -> Answer {
        self.shared.recent.note(stripe.0, piece.data.len() as u64);
        let _taken = match self.room.context_now() {
            Some(taken) => taken,
            // Boxed, so that writes that needn't wait carry no more than a pointer.
            None => Box::pin(self.room.context()).await,
        };
        let again = piece.clone();
        let mut company = Company::None;
        let claimed = match self.gates() {
            None => {
                let is_wanted = || !client.has_hung_up();
                self.shared.stripes.claim_if(self.shard, stripe.0, Some(piece), is_wanted).await
            }
            Some(gates) => Some(self.claim_within(gates, stripe, piece).await),
        };
        let Some(mut entered) = claimed else { return Err(IoError::Abandoned) };
        loop {
            let answer = match entered {
                // The owner vanished only if the array is being torn down.
                Entered::Joined(answer) => {
                    company = Company::Joined;
                    answer.unwrap_or(Err(IoError::Stopping))
                }
                Entered::Owner(claim, piece) => self.write_owned(stripe, claim, piece, &mut company).await,
            };
            if company != Company::Joined || !matches!(answer, Err(IoError::Unreadable { .. })) {
                return answer;
            }
            // A row can't be made that may be another write's in the batch: once more, alone.
            company = Company::Refused;
            let claim = Box::pin(self.claim_for(stripe, client)).await?;
            entered = Entered::Owner(claim, Some(again.clone()));
        }
    }

    /// Writes a piece as the owner of its stripe, and what joins it.
    async fn write_owned(
        &self,
        stripe: StripeId,
        claim: Claim<'_, Piece, Answer>,
        piece: Option<Piece>,
        company: &mut Company,
    ) -> Answer {
        let gathers = *company != Company::Refused && self.gathers(stripe, piece.as_ref());
        if self.members.ask(|view| view.in_place)
            && let Some(piece) = piece.as_ref().filter(|_| !gathers)
            && let Some(generation) = self.write_in_place(&claim, stripe, piece).await
        {
            let answer = self.acknowledge(generation).await;
            self.finish(claim, &answer, || piece.rows(self.geometry.chunk_bytes()));
            return answer;
        }
        let mut context = self.write_contexts.take();
        context.company = *company;
        context.gathers = gathers;
        if let Some(piece) = piece {
            context.image.add(piece);
        }
        let answer = self.stripe_write(stripe, &mut context).run(claim).await;
        *company = context.company;
        context.end();
        self.write_contexts.give(context);
        answer
    }

    fn stripe_write<'a>(&'a self, stripe: StripeId, context: &'a mut WriteContext) -> StripeWrite<'a> {
        StripeWrite { volume: self, stripe, map: self.geometry.slots(stripe), context }
    }

    /// Answers what joined a batch of these rows of the chunk, and releases the stripe.
    fn finish(&self, claim: Claim<'_, Piece, Answer>, answer: &Answer, rows: impl FnOnce() -> (u32, u32)) {
        match self.gates() {
            None => claim.finish(answer),
            Some(gates) => self.finish_within(gates, claim, answer, rows()),
        }
    }

    /// Where the array has failed with a change of a stripe under way, its rows may be half written. Nothing
    /// of that was acknowledged. But a lost member's chunk in them, which no write was to change, can't be
    /// made of the others any more (C10). To be called under the claim.
    pub(crate) fn note_if_torn(&self, stripe: StripeId, is_error: bool) {
        if !is_error || !self.shared.has_failed() || active(Mutant::FailedRowsTrusted) {
            return;
        }
        let geometry = &self.geometry;
        let intent = &self.members.view().snapshot.intent;
        let regions = intent.regions(geometry.member_offset(stripe), geometry.chunk_bytes().into());
        regions.for_each(|region| intent.set_needs_resync(region, true));
    }

    /// The batch is on the members. It may be acknowledged once the superblocks know which members missed it
    /// (C2).
    async fn acknowledge(&self, generation: u64) -> Answer {
        if active(Mutant::AcknowledgeBeforeSuperblocks) {
            Ok(())
        } else {
            self.shared.durable(generation).await
        }
    }
}
