//! The read-modify-write of one column, where all members are this machine's memory: old data and old parity
//! become the new ones where they lie. Nothing is read into a buffer, planned, or submitted.
//!
//! It can't be repeated, and is not: it happens between two awaits, and memory doesn't fail. A process that
//! ends in it leaves a row whose region the intent has, as after any stripe write.

use pinstripe_runtime::memory::change_in_place;

use super::Aborted;
use crate::{
    geometry::{StripeId, StripeMap},
    io::{entry::Inside, parity::ParityVolume, write::context::WriteContext},
    membership::snapshot::View,
    mutants::{Mutant, active},
    shared::Answer,
    stripe::{
        decode::exponent,
        image::{Extent, Piece},
        table::Claim,
    },
};

impl ParityVolume {
    /// Writes a batch so, if it can be, in a membership that lets it. If it can't, nothing has changed, but
    /// that others may have joined.
    pub(super) async fn write_in_place(
        &self,
        inside: &Inside<'_>,
        stripe: StripeId,
        map: StripeMap,
        claim: Option<&mut Claim<'_, Piece, Answer>>,
        context: &mut WriteContext,
    ) -> Result<bool, Aborted> {
        let view = inside.view();
        // What is timed is read and written, so that it is known what that costs.
        if context.timed || context.is_split {
            return Ok(false);
        }
        context.image.build_extents(self.geometry.chunk_bytes());
        let [extent] = context.image.extents() else { return Ok(false) };
        let base = self.geometry.member_offset(stripe);
        let rows = (base + u64::from(extent.start), extent.data.len() as u64);
        let intent = &view.snapshot.intent;
        if intent.needs_resync(intent.regions(rows.0, rows.1)) && !active(Mutant::InPlaceOutOfSync) {
            return Ok(false);
        }
        let intended = inside.mark(stripe, rows).durable(Mutant::DataBeforeIntent).await?;
        if self.join_claim(claim, context) > 0 && !active(Mutant::InPlaceLateJoinerLost) {
            return Ok(false);
        }
        let writing = inside.begin(intended, None).await?;
        let [extent] = context.image.extents() else { unreachable!("it was one before") };
        Ok(self.change_column(writing.view(), stripe, map, extent))
    }

    /// False if a device doesn't want it.
    fn change_column(&self, view: &View, stripe: StripeId, map: StripeMap, extent: &Extent) -> bool {
        let at = self.geometry.member_offset(stripe) + u64::from(extent.start);
        let new = &*extent.data;
        let range = |slot: usize| {
            let (member, device) = view.member(slot)?;
            device.in_place(member.data_offset + at, new.len())
        };
        let Some(data) = range(map.data_slot(extent.column).index()) else { return false };
        let Some(p) = range(map.p_slot().index()) else { return false };
        // Nothing is kept of members in memory, but may be of others that have gone (C13).
        self.shared.cache.remove_rows(stripe.0, extent.start, extent.end());
        let members = if let Some(slot) = map.q_slot() {
            let Some(q) = range(slot.index()) else { return false };
            let exponent = exponent(map, extent.column);
            change_in_place([data, p, q], |[data, p, q]| {
                self.kernel.update_pq(p, q, data, new, exponent);
                data.copy_from_slice(new);
            });
            3
        } else {
            change_in_place([data, p], |[data, p]| {
                self.kernel.update_p(p, data, new);
                data.copy_from_slice(new);
            });
            2
        };
        let counters = self.counters();
        counters.rmw_runs.add(1);
        counters.pre_read_bytes.add(members * new.len() as u64);
        counters.member_writes.add(members);
        counters.member_write_bytes.add(members * new.len() as u64);
        true
    }
}
