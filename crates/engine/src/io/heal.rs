//! What could not be read is made from the others and written anew, under the claim of the request that met
//! it (C14).
//!
//! Users' requests mend what they meet. A walk over the array ([`maintenance`](crate::maintenance)) writes by
//! the same way what it makes.

use pinstripe_runtime::{DeviceError, DeviceErrorKind, Slice, shard};

use crate::{
    error::{IoError, Operation},
    geometry::{MEMBERS_MAX, MemberSlot, Piece, Role, Set64, StripeId, StripeMap},
    io::{
        base::Bytes,
        parity::ParityVolume,
        row::{RowRange, Want},
    },
    members::missed::Missed,
    membership::snapshot::View,
    mutants::{Mutant, active},
    stripe::{decode::encode, parity_cache::PAGE_BYTES},
};

impl ParityVolume {
    /// Rewrites what can't be read of a stripe, in every row that the other members allow to make. The caller
    /// holds the claim.
    pub(crate) async fn heal_stripe(&self, stripe: StripeId) {
        let view = self.members.view();
        let mut row = self.rows.take();
        let columns = Set64::below(self.geometry.slots(stripe).columns());
        let want = Want { columns, parity: true, avoid: Set64::EMPTY };
        let (base, block) = (self.geometry.member_offset(stripe), self.geometry.logical_block());
        let mut from = 0;
        while from < self.geometry.chunk_bytes() {
            let to = view.uniform(base, (from, (from / PAGE_BYTES + 1) * PAGE_BYTES), block);
            // A row that can't be made stays as it is, and requests that need it get the error.
            if self.read_row(&view, stripe, (from, to), want, &mut row).await.is_ok() {
                let _ = self.heal(&view, stripe, (from, to), &row).await;
            }
            from = to;
        }
        row.clear(0);
        self.rows.give(row);
    }

    /// Rewrites the rows that could not be read, from the others, in the same claim (C14).
    pub(crate) async fn heal(
        &self,
        view: &View,
        stripe: StripeId,
        (from, to): (u32, u32),
        row: &RowRange,
    ) -> Result<(), IoError> {
        if row.unreadable.is_empty() {
            return Ok(());
        }
        let geometry = &self.geometry;
        if self.shared.options.read_only {
            return Err(IoError::Unreadable { stripe: stripe.0, missing: row.unreadable.len() });
        }
        let map = geometry.slots(stripe);
        self.shared.cache.remove_rows(stripe.0, from, to);
        for slot in row.unreadable {
            let bytes = match map.role(MemberSlot::at(slot)) {
                Role::Data(column) => row.data[column].clone(),
                Role::P => self.parity_of(map, row, to - from, true, false).0,
                Role::Q => self.parity_of(map, row, to - from, false, true).1,
            };
            let bytes =
                bytes.ok_or(IoError::Unreadable { stripe: stripe.0, missing: row.unreadable.len() })?;
            let at = geometry.member_offset(stripe) + u64::from(from);
            self.write_slot(view, slot, at, (bytes, false)).await?;
            // What the member refused is in its log by now, and not corrected.
            if !self.members.view().snapshot.is_bad(slot, at, (to - from).into()) {
                self.corrected(view, slot, at);
            }
        }
        Ok(())
    }

    /// Rewrites sectors that could not be read. A member that can't take them fails.
    pub(crate) async fn rewrite(&self, view: &View, slot: usize, piece: &Piece, bytes: Slice) {
        if self.shared.options.read_only || !self.still_holds(view, slot) {
            return;
        }
        let offset = self.geometry.member_offset(piece.stripe) + u64::from(piece.chunk_offset);
        if view.readable(slot, offset, piece.length.into()).is_none() {
            return;
        }
        let length = bytes.len() as u64;
        let is_written = self.write_slot(view, slot, offset, (bytes, false)).await.is_ok();
        // What the member refused is in its log by now, and not corrected.
        if is_written && !self.members.view().snapshot.is_bad(slot, offset, length) {
            self.corrected(view, slot, offset);
        }
    }

    /// Sectors of a member (at an offset in bytes, relative to its data) could not be read, and are written
    /// anew. A member that has too many of these is dropped, if the array can do without it.
    pub(crate) fn corrected(&self, view: &View, slot: usize, offset: u64) {
        self.counters().corrected_reads.add(1);
        let Some((member, _)) = view.member(slot) else { return };
        self.members.device(member).note_corrected();
        let count = member.health.count_corrected(shard::now());
        if count <= self.shared.options.max_read_errors || active(Mutant::CorrectedReadsUnlimited) {
            return;
        }
        // Whether the array can do without it, the controller decides, behind all that was reported before:
        // see [`Shared::spare_the_needed`](crate::shared::Shared::spare_the_needed).
        let error = DeviceError::of(DeviceErrorKind::TooManyErrors);
        self.members.report_data(view, slot, Operation::Read, offset, error);
    }

    pub(crate) fn parity_of(
        &self,
        map: StripeMap,
        row: &RowRange,
        length: u32,
        p: bool,
        q: bool,
    ) -> (Option<Slice>, Option<Slice>) {
        let mut data: [&[u8]; MEMBERS_MAX] = [&[]; MEMBERS_MAX];
        for (bytes, known) in data.iter_mut().zip(&row.data) {
            *bytes = known.as_deref().unwrap_or(&[]);
        }
        let mut p = p.then(|| shard::buffer(length as usize));
        let mut q = q.then(|| shard::buffer(length as usize));
        encode(self.kernel, map, &data[..map.columns()], p.as_deref_mut(), q.as_deref_mut());
        (p.map(pinstripe_runtime::Buffer::freeze), q.map(pinstripe_runtime::Buffer::freeze))
    }

    /// Whether a row that could not be read is really lost: the membership under which it was tried is still
    /// the current one, and the row is not only one that parity can't vouch for (C10).
    pub(crate) fn is_row_lost(&self, view: &View, stripe: StripeId, from: u32) -> bool {
        let offset = self.geometry.member_offset(stripe) + u64::from(from);
        let intent = &view.snapshot.intent;
        self.is_latest(view) && !intent.is_torn(intent.regions(offset, PAGE_BYTES.into()))
    }

    /// Whether no membership has followed.
    pub(crate) fn is_latest(&self, view: &View) -> bool {
        self.shared.admission.generation() == view.snapshot.generation
    }

    /// Writes to a slot: its member, and the target of its replacement.
    pub(crate) async fn write_slot(
        &self,
        view: &View,
        slot: usize,
        offset: u64,
        (bytes, fua): (Slice, bool),
    ) -> Result<(), IoError> {
        for place in view.places(slot) {
            self.write_place(view, place, offset, (bytes.clone(), fua)).await?;
        }
        Ok(())
    }

    /// Writes to the member of a place, and notes what it has not taken.
    pub(crate) async fn write_noted(
        &self,
        view: &View,
        place: usize,
        offset: u64,
        (bytes, fua): (&Slice, bool),
        missed: &mut Missed,
    ) -> Result<(), IoError> {
        let write = self.submit_write(view, place, offset, Bytes::new(bytes.clone(), fua));
        let result = write.ok_or(IoError::Stopping)?.await.result;
        let range = (offset, bytes.len() as u64);
        if let Some(error) = self.note_outcome(view, place, range, result, missed) {
            self.write_in_parts(view, place, offset, (bytes, fua), error, missed).await;
        }
        Ok(())
    }

    pub(crate) async fn write_place(
        &self,
        view: &View,
        place: usize,
        offset: u64,
        (bytes, fua): (Slice, bool),
    ) -> Result<(), IoError> {
        let mut missed = Missed::default();
        self.write_noted(view, place, offset, (&bytes, fua), &mut missed).await?;
        let written =
            missed.is_empty() || !missed.drops() && self.recorded(view, place, &missed.listings).await;
        if written { Ok(()) } else { Err(IoError::Stopping) }
    }
}

/// An error if something of `row` could not be read and it is more than one row of 4 KiB. Then they are done
/// one by one, so that only rows that need it are made from others: what is right as it is must not be
/// replaced by what damage elsewhere in the stripe makes of it.
pub(crate) fn in_single_rows(
    stripe: StripeId,
    (from, to): (u32, u32),
    row: &RowRange,
) -> Result<(), IoError> {
    if row.unreadable.is_empty() || to - from <= PAGE_BYTES || active(Mutant::HealsWholeChunk) {
        return Ok(());
    }
    Err(IoError::Unreadable { stripe: stripe.0, missing: row.unreadable.len() })
}
