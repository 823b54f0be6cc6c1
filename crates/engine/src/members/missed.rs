//! Writes that members have not taken.

use super::{MemberId, bad_blocks::Listing};

/// What must be so before anything that rests on those writes is acknowledged.
#[derive(Default)]
pub(crate) struct Missed {
    /// Members that failed a write: they must be out, durably (C2).
    pub(crate) dropped: Vec<MemberId>,
    /// Sectors that a member refused: they must be in its log.
    pub(crate) listings: Vec<Listing>,
    /// A member that is to be out has not taken data of rows that may be torn: nothing stands in for it
    /// (C10).
    pub(crate) is_lost: bool,
}

impl Missed {
    pub(crate) fn is_empty(&self) -> bool {
        self.dropped.is_empty() && self.listings.is_empty()
    }

    /// Whether members are to be dropped.
    pub(crate) fn drops(&self) -> bool {
        !self.dropped.is_empty()
    }

    /// These are to be dropped, too. They are reported.
    pub(crate) fn add_dropped(&mut self, members: impl IntoIterator<Item = MemberId>) {
        self.dropped.extend(members);
    }

    pub(crate) fn clear(&mut self) {
        self.is_lost = false;
        self.dropped.clear();
        self.listings.clear();
    }
}
