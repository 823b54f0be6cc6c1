//! The read-modify-write of one column, where all members are this machine's memory: old data and old parity
//! become the new ones where they lie. Nothing is read into a buffer, planned, or submitted. Members may be
//! missing, but for the column's own: parity without a member is left out, and what other missing members
//! held is in the parity as before.
//!
//! It can't be repeated, and is not: it happens between two awaits, and memory doesn't fail. A process that
//! ends in it leaves a row whose region the intent has, as after any stripe write.

use pinstripe_runtime::memory::change_in_place;

use crate::{
    geometry::{MemberSlot, StripeId},
    io::parity::ParityVolume,
    membership::snapshot::View,
    mutants::{Mutant, active},
    plan::Written,
    shared::Answer,
    stripe::{decode::exponent, image::Piece, table::Claim},
};

impl ParityVolume {
    /// Writes a piece so, if it can be, in a membership that seems to let it. Returns that membership's
    /// generation. `None`: nothing has changed.
    pub(super) async fn write_in_place(
        &self,
        claim: &Claim<'_, Piece, Answer>,
        stripe: StripeId,
        piece: &Piece,
    ) -> Option<u64> {
        let chunk = self.geometry.chunk_bytes();
        let (column, (start, end)) = ((piece.start / chunk) as usize, piece.rows(chunk));
        // What has arrived joins, in a batch. Now and then one is read and written, so that it is known what
        // that costs.
        if end > chunk || self.has_arrivals(claim, (start, end)) || !self.members.is_untimed() {
            return None;
        }
        let inside = self.enter().await.ok()?;
        let view = inside.view();
        let rows = (self.geometry.member_offset(stripe) + u64::from(start), piece.data.len() as u64);
        let intent = &view.snapshot.intent;
        let is_out_of_sync = intent.needs_resync(intent.regions(rows.0, rows.1));
        if !view.in_place
            || is_out_of_sync && !active(Mutant::InPlaceOutOfSync)
            || !view.snapshot.is_complete() && !self.goes_without(view, stripe, column, rows)
        {
            return None;
        }
        let intended = inside.mark(stripe, rows).durable(Mutant::DataBeforeIntent).await.ok()?;
        let writing = inside.begin(intended, None).await.ok()?;
        self.change_column(writing.view(), stripe, Written { column, start, end }, &piece.data)
            .then(|| inside.generation())
    }

    /// Whether a column's own member is there where others are missing. They will have missed what is written
    /// to these rows (C8). If nothing is after all, no harm is done: bits stay set meanwhile anyway.
    #[cold]
    fn goes_without(&self, view: &View, stripe: StripeId, column: usize, rows: (u64, u64)) -> bool {
        let slot = self.geometry.slots(stripe).data_slot(column).index();
        let is_there = !view.snapshot.missing.contains(slot);
        if is_there {
            let intent = &view.snapshot.intent;
            intent.set_missed(intent.regions(rows.0, rows.1));
        }
        is_there
    }

    fn has_arrivals(&self, claim: &Claim<'_, Piece, Answer>, rows: (u32, u32)) -> bool {
        match self.gates() {
            None => claim.has_arrivals(),
            Some(gates) => self.has_arrivals_within(gates, claim, rows),
        }
    }

    /// False if a device doesn't want it.
    fn change_column(&self, view: &View, stripe: StripeId, written: Written, new: &[u8]) -> bool {
        let Written { column, start, end } = written;
        let map = self.geometry.slots(stripe);
        let at = self.geometry.member_offset(stripe) + u64::from(start);
        let range = |slot: MemberSlot| {
            let (member, device) = view.member(slot.index())?;
            device.in_place(member.data_offset + at, new.len())
        };
        let is_there = |slot: &MemberSlot| !view.snapshot.missing.contains(slot.index());
        let (p, q) = (Some(map.p_slot()).filter(is_there), map.q_slot().filter(is_there));
        let Some(data) = range(map.data_slot(column)) else { return false };
        // Nothing is kept of members in memory, but may be of others that have gone (C13).
        self.shared.cache.remove_rows(stripe.0, start, end);
        let parities = match (p, q) {
            (Some(p), Some(q)) => {
                let (Some(p), Some(q)) = (range(p), range(q)) else { return false };
                let exponent = exponent(map, column);
                change_in_place([data, p, q], |[data, p, q]| {
                    self.kernel.update_pq(p, q, data, new, exponent);
                    data.copy_from_slice(new);
                });
                2
            }
            (Some(p), None) => {
                let Some(p) = range(p) else { return false };
                change_in_place([data, p], |[data, p]| {
                    self.kernel.update_p(p, data, new);
                    data.copy_from_slice(new);
                });
                1
            }
            (None, Some(q)) => {
                let Some(q) = range(q) else { return false };
                let exponent = exponent(map, column);
                change_in_place([data, q], |[data, q]| {
                    self.kernel.update_q(q, data, new, exponent);
                    data.copy_from_slice(new);
                });
                1
            }
            (None, None) => {
                change_in_place([data], |[data]| data.copy_from_slice(new));
                0
            }
        };
        let counters = self.counters();
        counters.batches.add(1);
        if parities > 0 {
            counters.rmw_runs.add(1);
            counters.pre_read_bytes.add((1 + parities) * new.len() as u64);
        }
        counters.member_writes.add(1 + parities);
        counters.member_write_bytes.add((1 + parities) * new.len() as u64);
        true
    }
}
