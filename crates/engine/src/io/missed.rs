//! What becomes of a write that a member has not taken.

use pinstripe_runtime::{DeviceError, Slice};

use crate::{
    error::{IoError, Operation},
    geometry::{MemberSlot, Role, StripeId},
    io::parity::ParityVolume,
    members::missed::Missed,
    membership::snapshot::View,
    mutants::{Mutant, active},
    units::to_usize,
};

/// A medium that refuses so many blocks of one write is as bad in between: each try may take it seconds.
const BLOCKS_TRIED: usize = 16;

impl ParityVolume {
    /// Notes what became of a write of a range (in bytes, relative to the data) to the member of a place: one
    /// that failed has the member reported. Where the medium has refused it, and what it refuses can be
    /// listed as bad, the error comes back, for [`ParityVolume::write_in_parts`].
    #[inline]
    pub(crate) fn note_outcome(
        &self,
        view: &View,
        place: usize,
        (offset, length): (u64, u64),
        result: Result<usize, DeviceError>,
        missed: &mut Missed,
    ) -> Option<DeviceError> {
        match result {
            Ok(_) => {
                self.note_written(view, place, offset, length);
                None
            }
            Err(error) => self.note_failed(view, place, offset, error, missed),
        }
    }

    #[cold]
    fn note_failed(
        &self,
        view: &View,
        place: usize,
        offset: u64,
        error: DeviceError,
        missed: &mut Missed,
    ) -> Option<DeviceError> {
        if self.can_list(view, place, error) {
            return Some(error);
        }
        missed.dropped.extend(self.members.report_data(view, place, Operation::Write, offset, error));
        let (stripe, _) = self.geometry.stripe_of_member_offset(offset);
        missed.is_lost |= place < view.snapshot.seats.len() && self.is_irreplaceable(view, stripe, place);
        None
    }

    /// A member has refused a write as a whole, and may take parts of it: it gets ever smaller ones, down to
    /// its blocks. Only what it still refuses is listed as bad: a row that it has taken is as good as before,
    /// and what is missing elsewhere in it can still be made (C10). To be called while the write's stripe is
    /// claimed and its membership held.
    pub(crate) async fn write_in_parts(
        &self,
        view: &View,
        place: usize,
        offset: u64,
        (data, fua): (&Slice, bool),
        refused: DeviceError,
        missed: &mut Missed,
    ) {
        let Some((member, device)) = view.member(place) else { return };
        let block = to_usize(self.geometry.logical_block());
        let is_small = |length: usize, refused: usize| {
            length <= block || refused >= BLOCKS_TRIED || active(Mutant::ListedByTransfer)
        };
        // Not those of other members in the same batch: each has taken what it could.
        let before = missed.listings.len();
        // What is left to do, the first at the end. The whole was refused already.
        let mut parts = vec![(0, data.len(), Some(refused))];
        while let Some((from, to, refused)) = parts.pop() {
            let at = offset + from as u64;
            let result = if let Some(error) = refused {
                Err(error)
            } else {
                self.counters().member_writes.add(1);
                self.counters().member_write_bytes.add((to - from) as u64);
                let part = data.slice(from, to - from);
                device.write(member.data_offset + at, part, fua).await.result
            };
            let (range, is_written) = ((at, (to - from) as u64), result.is_ok());
            let Some(error) = self.note_outcome(view, place, range, result, missed) else {
                if is_written {
                    continue;
                }
                // It is out.
                return;
            };
            if is_small(to - from, missed.listings.len() - before) {
                missed.listings.push(self.list_bad(member, view.slot_at(place), range, error));
            } else {
                let middle = from + ((to - from) / 2).next_multiple_of(block);
                parts.extend([(middle, to, None), (from, middle, None)]);
            }
        }
    }

    /// Waits until the members that failed are out, and the sectors that were refused are listed. False if a
    /// member is out because its sectors could not be listed. Then the write has to be done again without it:
    /// the bit of its region may have been cleared meanwhile, and the member would come back without it (C8).
    pub(crate) async fn settle_missed(&self, stripe: StripeId, missed: &mut Missed) -> Result<bool, IoError> {
        for member in missed.dropped.drain(..) {
            self.shared.dropped(member).await?;
        }
        if missed.is_lost {
            return Err(IoError::Unreadable { stripe: stripe.0, missing: 1 });
        }
        let mut all_listed = true;
        for listing in missed.listings.drain(..) {
            all_listed &= self.listed(&listing).await?;
        }
        Ok(all_listed)
    }

    /// Whether data that this slot has in a stripe can't be made of the others: where a crash may have torn
    /// rows, parity doesn't stand in for data (C10).
    pub(crate) fn is_irreplaceable(&self, view: &View, stripe: StripeId, slot: usize) -> bool {
        let (geometry, intent) = (&self.geometry, &view.snapshot.intent);
        let regions = intent.regions(geometry.member_offset(stripe), geometry.chunk_bytes().into());
        intent.is_torn(regions)
            && matches!(geometry.slots(stripe).role(MemberSlot::at(slot)), Role::Data(_))
            && !active(Mutant::TornRowsPromised)
    }
}
