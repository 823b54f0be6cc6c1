//! Sectors of which nothing is promised any more, and why.

use std::collections::{BTreeMap, BTreeSet};

use pinstripe_engine::geometry::{ParityGeometry, StripeId};

use crate::{
    Ledger, SECTOR,
    checks::{Survey, WholeMember},
};

/// What crashes and lost members have left uncertain. The ledger is told when it becomes known what an
/// assembly makes of it.
#[derive(Clone, Default)]
pub(crate) struct Doubts {
    /// Sector rows, as stripe and sector in the chunk, that a crash may have left half written.
    half_written: BTreeSet<(u64, u64)>,
    /// Sectors of writes that crashes have cut off since the array last started.
    cut_off: BTreeSet<u64>,
    /// Slots that had no whole member when a dirty array was started since then, and whether a member was
    /// being rebuilt there.
    lost_at_start: BTreeMap<usize, bool>,
    /// Sectors that could not be read from their members at a start since then, or were listed as bad.
    unread_at_start: BTreeSet<u64>,
    /// Parity of rows without a write is unknown.
    unsynced: bool,
}

impl Doubts {
    /// Of a new array, which has to be resynced if it is `unsynced`.
    pub(crate) fn new(unsynced: bool) -> Self {
        Self { unsynced, ..Self::default() }
    }

    /// The rows of these sectors may be half written after a crash.
    pub(crate) fn suspect(&mut self, geometry: Option<&ParityGeometry>, unsettled: &BTreeSet<u64>) {
        let Some(geometry) = geometry else { return };
        self.half_written.extend(unsettled.iter().map(|&sector| row_of(geometry, sector)));
    }

    /// A crash has cut off the writes of these sectors.
    pub(crate) fn cut_off(&mut self, unsettled: BTreeSet<u64>) {
        self.cut_off.extend(unsettled);
    }

    /// Notes the slots that have no whole member in a dirty array, if a log may let it start all the same.
    /// Such a start may have to make their chunks of others although they were being written. It may be cut
    /// off itself, and the next one finds a clean array, with what this one has made of the rows.
    pub(crate) fn note_lost(&mut self, survey: &Survey) {
        for (slot, seat) in survey.seats.iter().enumerate() {
            let is_recovering = match seat {
                None => false,
                Some((_, superblock)) if superblock.member.recovery_offset.is_some() => true,
                // It was away, and is back with what it had: no start can have rebuilt it meanwhile.
                Some(_) if self.lost_at_start.get(&slot) == Some(&false) => {
                    self.lost_at_start.remove(&slot);
                    continue;
                }
                Some(_) => continue,
            };
            if survey.is_dirty() {
                *self.lost_at_start.entry(slot).or_default() |= is_recovering;
            }
        }
    }

    /// A sector can't be read from its member: a start may have to make it of others, as [`Self::note_lost`]
    /// says.
    pub(crate) fn note_unreadable(&mut self, sector: u64) {
        self.unread_at_start.insert(sector);
    }

    /// Notes the sectors that were cut off and that members list as bad, likewise.
    pub(crate) fn note_listed<P>(
        &mut self,
        geometry: &ParityGeometry,
        members: &[Option<WholeMember<'_, P>>],
    ) {
        let is_listed = |sector: &&u64| {
            let (slot, at) = place_of(geometry, **sector);
            members[slot].as_ref().is_some_and(|held| held.is_listed(at, SECTOR))
        };
        self.unread_at_start.extend(self.cut_off.iter().filter(is_listed));
    }

    /// Rows that a crash may have left half written, as stripe and sector in the chunk.
    pub(crate) fn half_written(&self) -> &BTreeSet<(u64, u64)> {
        &self.half_written
    }

    /// These slots were empty when the array was taken over.
    pub(crate) fn note_lost_in_takeover(&mut self, slots: impl Iterator<Item = usize>) {
        self.lost_at_start.extend(slots.map(|slot| (slot, true)));
    }

    /// The array has started. C19: a sector that was in flight on a lost member may be neither old nor new,
    /// since it is what parity says, and parity of the row may be of any mixture of the row's writes. That is
    /// so only where a crash has cut a write off (it was not acknowledged and flushed), and only where no
    /// member is there that has the sector itself. All others are what they were.
    pub(crate) fn started(&mut self, geometry: Option<&ParityGeometry>, ledger: &mut Ledger) {
        let cut_off = std::mem::take(&mut self.cut_off);
        let lost = std::mem::take(&mut self.lost_at_start);
        let unread = std::mem::take(&mut self.unread_at_start);
        let Some(geometry) = geometry else { return };
        for sector in cut_off {
            let (slot, _) = place_of(geometry, sector);
            if lost.contains_key(&slot) || unread.contains(&sector) {
                ledger.doubt(sector..sector + 1);
            }
        }
    }

    /// Nothing is promised any more of what a forced start takes from parity of half-written rows. `here`
    /// says which slots have a member.
    pub(crate) fn forced(&self, geometry: Option<&ParityGeometry>, here: &[bool], ledger: &mut Ledger) {
        let Some(geometry) = geometry else { return };
        for &(stripe, row) in &self.half_written {
            let map = geometry.slots(StripeId(stripe));
            for column in 0..map.columns() {
                // With two parities that disagree, other columns hang on which of them is believed.
                if geometry.redundancy() == 2 || !here[map.data_slot(column).index()] {
                    let sector = sector_of(geometry, stripe, column, row);
                    ledger.doubt(sector..sector + 1);
                }
            }
        }
        self.lose_member(ledger);
    }

    /// Rows are not half written any more where `is_in_sync` says so of stripe and sector in the chunk.
    pub(crate) fn resynced(&mut self, is_in_sync: impl Fn(u64, u64) -> bool) {
        self.half_written.retain(|&(stripe, row)| !is_in_sync(stripe, row));
    }

    /// Whether parity of rows without a write is still unknown.
    pub(crate) fn is_unsynced(&self) -> bool {
        self.unsynced
    }

    /// A member is lost. Where parity of rows without a write is unknown, so are its sectors there.
    pub(crate) fn lose_member(&self, ledger: &mut Ledger) {
        if self.unsynced {
            ledger.doubt_unwritten();
        }
    }

    /// The array is whole and was stopped in order: every row is in sync.
    pub(crate) fn settle(&mut self) {
        self.half_written.clear();
        self.cut_off.clear();
        self.unsynced = false;
    }
}

/// The sector row of an array sector: stripe, and sector in the chunk.
fn row_of(geometry: &ParityGeometry, sector: u64) -> (u64, u64) {
    let (stripe, within) = geometry.locate(sector * SECTOR);
    let (_, offset) = geometry.column_of(within);
    (stripe.0, u64::from(offset) / SECTOR)
}

/// The slot that holds an array sector, and where in the member's data, in bytes.
fn place_of(geometry: &ParityGeometry, sector: u64) -> (usize, u64) {
    let (stripe, within) = geometry.locate(sector * SECTOR);
    let (column, offset) = geometry.column_of(within);
    (geometry.slots(stripe).data_slot(column).index(), geometry.member_offset(stripe) + u64::from(offset))
}

/// The array sector of a sector row in a data column.
pub(crate) fn sector_of(geometry: &ParityGeometry, stripe: u64, column: usize, row: u64) -> u64 {
    let chunk = u64::from(geometry.chunk_bytes()) / SECTOR;
    geometry.array_offset(StripeId(stripe), 0) / SECTOR + column as u64 * chunk + row
}
