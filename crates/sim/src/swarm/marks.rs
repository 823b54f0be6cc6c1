//! Flags of the front end, and lists of bad blocks that outlive crashes.
//!
//! Users come over NBD, zero and trim often, and use every flag: FUA, NO_HOLE, and FAST_ZERO, after which a
//! refusal means that nothing has changed.
//!
//! In half of these lives the last stripes of the array are quiet: no user writes them. Now and then a sector
//! of one of them can't be written any more, and is listed as bad when the stripe is written whole. A crash
//! comes when that is over and no bit says that the stripe may be torn: then the device is as good as new,
//! holds what it held before, and its list alone says that this is worth nothing. Each quiet stripe has one
//! member to which this happens, so that its row can always be read.

use std::{ops::Range, rc::Rc, sync::Arc};

use pinstripe_engine::{geometry::StripeId, io::volume::Volume};
use pinstripe_md::{
    bitmap::{BitmapHeader, BitmapImage},
    units::Sector,
};

use super::{
    Consistency, Setup, Swarm, Verdict,
    client::{self, UserState},
    front::{FrontEnd, NbdSetup},
};
use crate::{Fault, Rng, SECTOR, checks::superblock, rng::index};

/// Stripes at the end that no user writes.
const QUIET: u64 = 2;

/// How much of what there is.
#[derive(Clone, Debug)]
pub struct Habits {
    /// Of 16 events, how many are of these.
    liveliness: u64,
    /// Sectors are listed as bad in quiet stripes.
    lists: bool,
}

impl Habits {
    /// Draws them, and changes the run's shape.
    pub(crate) fn drawn(rng: &mut Rng, setup: &mut Setup) -> Self {
        if rng.chance(7, 8) {
            setup.nbd = Some(NbdSetup::drawn(rng));
        }
        let lists = setup.level.parity_count() > 0 && rng.chance(1, 2);
        if lists {
            setup.consistency = Consistency::Bitmap(4096);
            (setup.journals, setup.failures, setup.policy_changes, setup.resync) = (0, false, false, false);
            setup.lives = setup.lives.max(3);
            setup.crashes = setup.crashes.max(4);
        }
        Self { liveliness: rng.pick(&[4, 8, 16]), lists }
    }
}

/// Makes a user one that zeroes and trims with every flag, and leaves the quiet stripes alone.
pub(crate) fn shape(setup: &Setup, habits: &mut client::Habits, rng: &mut Rng, sectors: u64) {
    let Some(marks) = &setup.marks else { return };
    (habits.all_flags, habits.fast_zeroes) = (true, true);
    habits.zeroes = rng.pick(&[1, 3, 6]);
    habits.discards = rng.pick(&[0, 1, 3]);
    if marks.lists {
        let end = sectors - QUIET * habits.stripe;
        habits.range = if habits.range.start < end && habits.range.end > end {
            habits.range.start..end
        } else if habits.range.end > end {
            0..end
        } else {
            habits.range.clone()
        };
        habits.units_max = habits.units_max.min((habits.range.end - habits.range.start) / habits.unit).max(1);
    }
}

impl Swarm {
    fn lists(&self) -> bool {
        self.setup.marks.as_ref().is_some_and(|marks| marks.lists)
    }

    fn quiet(&self) -> Range<u64> {
        self.setup.stripes - QUIET..self.setup.stripes
    }

    /// One event of these lives, or none.
    pub(crate) fn marks_event(&mut self) {
        let Some(marks) = self.setup.marks.clone().filter(|marks| marks.lists) else { return };
        if self.rng.chance(marks.liveliness, 16) {
            self.write_quiet();
        }
    }

    /// A quiet stripe is written whole, and some of it, perhaps, can't be.
    fn write_quiet(&mut self) {
        let Some(geometry) = self.shape() else { return };
        let stripe = self.quiet().start + self.rng.below(QUIET);
        let slot = index(stripe) % self.setup.members;
        let snapshot = self.array().shared().snapshot();
        let (Some(disk), Some(member)) = (self.disk_in(slot), snapshot.seats[slot].member()) else { return };
        if self.rng.chance(2, 3) {
            let block = u64::from(self.setup.block);
            let at = geometry.member_offset(StripeId(stripe))
                + self.rng.below(u64::from(geometry.chunk_bytes()) / block) * block;
            let from = member.data_offset + at;
            self.disks[disk].fault(&Fault::UnwritableRange(from..from + block));
        }
        let from = geometry.array_offset(StripeId(stripe), 0) / SECTOR;
        let sectors = from..from + u64::from(geometry.stripe_bytes()) / SECTOR;
        let (shared, shop) = (Arc::clone(self.array().shared()), Rc::clone(&self.shop));
        begin_quiet_write(&shop);
        self.world.spawn(self.home(), "quiet write", async move {
            let front_end = FrontEnd::Direct(Volume::new(shared));
            client::write(&front_end, &shop, sectors, true).await;
            end_quiet_write(&shop);
        });
    }

    /// Whether a crash now could leave a listed sector in a row that may be torn.
    pub(crate) fn is_marring(&self) -> bool {
        self.afflicted.scratched || self.lists() && (self.is_quiet_marked() || self.is_quiet_marked_durably())
    }

    /// Whether quiet stripes are being written, or were just now.
    fn is_quiet_marked(&self) -> bool {
        let Some(array) = &self.array else { return false };
        let (snapshot, quiet, chunk) = (array.shared().snapshot(), self.quiet(), self.setup.chunk);
        let mut regions = snapshot.intent.regions(quiet.start * chunk, QUIET * chunk);
        self.shop.quiet_writes.get() > 0
            || regions
                .any(|region| snapshot.intent.is_set(region) || snapshot.intent.needs_resync(region..=region))
    }

    /// Whether a member may have a bit of a quiet stripe after a power loss.
    fn is_quiet_marked_durably(&self) -> bool {
        let (from, to) = (self.quiet().start * self.setup.chunk, self.quiet().end * self.setup.chunk);
        self.disks[..self.setup.members].iter().any(|disk| {
            let Some(sector) = superblock(disk).and_then(|superblock| superblock.bitmap_sector()) else {
                return false;
            };
            let at = sector.0 * SECTOR;
            let Ok(header) = BitmapHeader::decode(&disk.peek(at, 512)) else { return false };
            let bytes = disk.peek_durable(at, index(header.sectors().0 * SECTOR));
            let Ok(image) = BitmapImage::decode(&bytes) else { return true };
            let bit = |byte: u64| header.bit_of(Sector(byte / SECTOR));
            (bit(from)..=bit(to - 1)).any(|bit| image.is_set(bit))
        })
    }

    /// A crash is to come: what is listed by then isn't to be torn by it. Bits that were cleared may be back
    /// after a power loss, until the next flush.
    pub(crate) fn settle_marks(&mut self) -> Result<(), Verdict> {
        while self.lists() && self.is_marring() {
            self.wait(|swarm| !swarm.is_quiet_marked())?;
            let (shared, shop) = (Arc::clone(self.array().shared()), Rc::clone(&self.shop));
            begin_quiet_write(&shop);
            self.world.spawn(self.home(), "flush", async move {
                client::flush(&FrontEnd::Direct(Volume::new(shared)), &shop).await;
                end_quiet_write(&shop);
            });
            self.wait(|swarm| swarm.shop.quiet_writes.get() == 0)?;
        }
        Ok(())
    }
}

fn begin_quiet_write(shop: &UserState) {
    shop.quiet_writes.set(shop.quiet_writes.get() + 1);
    shop.open.set(shop.open.get() + 1);
}

fn end_quiet_write(shop: &UserState) {
    shop.quiet_writes.set(shop.quiet_writes.get() - 1);
    shop.open.set(shop.open.get() - 1);
}
