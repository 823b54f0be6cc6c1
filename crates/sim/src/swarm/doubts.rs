//! Sectors of which nothing is promised any more, and why.

use pinstripe_engine::geometry::StripeId;

use super::{Swarm, Verdict, life::sector_of};
use crate::{SECTOR, checks::survey};

impl Swarm {
    /// Notes the slots that have no whole member in a dirty array, if a log may let it start all the same.
    /// Such a start may have to make their chunks of others although they were being written. It may be cut
    /// off itself, and the next one finds a clean array, with what this one has made of the rows.
    pub(super) fn note_lost(&mut self) -> Result<(), Verdict> {
        if !self.setup.consistency.bears_degraded_start() {
            return Ok(());
        }
        let present = self.present();
        let survey = survey(present.iter().map(|(number, disk)| (*number, disk)))?;
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
        Ok(())
    }

    /// C19: a sector that was in flight on a lost member may be neither old nor new, since it is what parity
    /// says, and parity of the row may be of any mixture of the row's writes. That is so only where a crash
    /// has cut a write off (it was not acknowledged and flushed), and only where no member is there that has
    /// the sector itself. All others are what they were.
    pub(crate) fn doubt_cut_off(&mut self) {
        let cut_off = std::mem::take(&mut self.cut_off);
        let lost = std::mem::take(&mut self.lost_at_start);
        let Some(geometry) = self.shape() else { return };
        let mut ledger = self.shop.ledger.borrow_mut();
        for sector in cut_off {
            let (stripe, within) = geometry.locate(sector * SECTOR);
            let (column, _) = geometry.column_of(within);
            if lost.contains_key(&geometry.slots(stripe).data_slot(column).index()) {
                ledger.doubt(sector..sector + 1);
            }
        }
    }

    /// Nothing is promised any more of what a forced start takes from parity of half-written rows.
    pub(crate) fn doubt_suspects(&mut self, here: &[bool]) {
        let Some(geometry) = self.shape() else { return };
        let mut ledger = self.shop.ledger.borrow_mut();
        for &(stripe, row) in &self.suspects {
            let map = geometry.slots(StripeId(stripe));
            for column in 0..map.columns() {
                // With two parities that disagree, other columns hang on which of them is believed.
                if geometry.redundancy() == 2 || !here[map.data_slot(column).index()] {
                    let sector = sector_of(&geometry, stripe, column, row);
                    ledger.doubt(sector..sector + 1);
                }
            }
        }
        drop(ledger);
        if self.unsynced {
            self.doubt_unwritten();
        }
    }

    /// Parity of rows without a write is unknown, so a lost member's sectors there are, too.
    pub(crate) fn doubt_unwritten(&mut self) {
        self.shop.ledger.borrow_mut().doubt_unwritten();
    }
}
