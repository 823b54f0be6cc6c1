//! What becomes of a write that a member has not taken.

use pinstripe_runtime::DeviceError;

use crate::{
    error::{IoError, Operation},
    geometry::StripeId,
    io::parity::ParityVolume,
    members::missed::Missed,
    membership::snapshot::View,
};

impl ParityVolume {
    /// Notes what became of a write of a range (in bytes, relative to the data) to the member of a place. One
    /// that failed has the sectors listed as bad, or the member reported.
    #[inline]
    pub(crate) fn note_outcome(
        &self,
        view: &View,
        place: usize,
        (offset, length): (u64, u64),
        result: Result<usize, DeviceError>,
        missed: &mut Missed,
    ) {
        let Err(error) = result else { return self.note_written(view, place, offset, length) };
        match view.member(place).filter(|(member, _)| self.can_list(member, error)) {
            Some((member, _)) => {
                missed.listings.push(self.list_bad(member, view.slot_at(place), (offset, length), error));
            }
            None => {
                missed.dropped.extend(self.members.report_data(view, place, Operation::Write, offset, error));
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
        let mut all_listed = true;
        for listing in missed.listings.drain(..) {
            all_listed &= self.listed(stripe.0, &listing).await?;
        }
        Ok(all_listed)
    }
}
