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

use std::{ops::Range, rc::Rc};

use pinstripe_engine::geometry::StripeId;
use pinstripe_md::{
    bitmap::{BitmapHeader, BitmapImage},
    units::Sector,
};

use super::{
    Consistency, Setup, Swarm, Testbed, Verdict,
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

/// Whether sectors of quiet stripes are listed as bad.
fn lists(setup: &Setup) -> bool {
    setup.marks.as_ref().is_some_and(|marks| marks.lists)
}

/// The quiet stripes.
fn quiet(setup: &Setup) -> Range<u64> {
    setup.stripes - QUIET..setup.stripes
}

/// One event of these lives, or none.
pub(super) fn event(bed: &mut Testbed) {
    let Some(marks) = bed.setup.marks.clone().filter(|marks| marks.lists) else { return };
    if bed.rng.chance(marks.liveliness, 16) {
        write_quiet(bed);
    }
}

/// A quiet stripe is written whole, and some of it, perhaps, can't be.
fn write_quiet(bed: &mut Testbed) {
    let Some(geometry) = bed.setup.geometry() else { return };
    let stripe = quiet(&bed.setup).start + bed.rng.below(QUIET);
    let slot = index(stripe) % bed.setup.members;
    let snapshot = bed.snapshot();
    let (Some(disk), Some(member)) = (bed.disk_in(slot), snapshot.seats[slot].member()) else { return };
    if bed.rng.chance(2, 3) {
        let block = u64::from(bed.setup.block);
        let at = geometry.member_offset(StripeId(stripe))
            + bed.rng.below(u64::from(geometry.chunk_bytes()) / block) * block;
        let from = member.data_offset + at;
        bed.hosts.disks[disk].fault(&Fault::UnwritableRange(from..from + block));
    }
    let from = geometry.array_offset(StripeId(stripe), 0) / SECTOR;
    let sectors = from..from + u64::from(geometry.stripe_bytes()) / SECTOR;
    spawn_quietly(bed, "quiet write", move |front_end, users| async move {
        client::write(&front_end, &users, sectors, true).await;
    });
}

/// Whether a crash now could leave a listed sector in a row that may be torn.
pub(super) fn is_marring(bed: &Testbed) -> bool {
    bed.faults.has_scratched() || lists(&bed.setup) && (is_quiet_marked(bed) || is_quiet_marked_durably(bed))
}

/// Whether quiet stripes are being written, or were just now.
fn is_quiet_marked(bed: &Testbed) -> bool {
    let Some(array) = bed.service.served() else { return false };
    let (snapshot, quiet, chunk) = (array.shared().snapshot(), quiet(&bed.setup), bed.setup.chunk);
    let mut regions = snapshot.intent.regions(quiet.start * chunk, QUIET * chunk);
    bed.service.users.quiet_writes.get() > 0
        || regions
            .any(|region| snapshot.intent.is_set(region) || snapshot.intent.needs_resync(region..=region))
}

/// Whether a member may have a bit of a quiet stripe after a power loss.
fn is_quiet_marked_durably(bed: &Testbed) -> bool {
    let (from, to) = (quiet(&bed.setup).start * bed.setup.chunk, quiet(&bed.setup).end * bed.setup.chunk);
    bed.hosts.disks[..bed.setup.members].iter().any(|disk| {
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
pub(super) fn settle(swarm: &mut Swarm) -> Result<(), Verdict> {
    while lists(&swarm.bed.setup) && is_marring(&swarm.bed) {
        swarm.wait(|bed| !is_quiet_marked(bed))?;
        spawn_quietly(&mut swarm.bed, "flush", |front_end, users| async move {
            client::flush(&front_end, &users).await;
        });
        swarm.wait(|bed| bed.service.users.quiet_writes.get() == 0)?;
    }
    Ok(())
}

/// Has a user do something that leaves its mark on quiet stripes until it is done.
fn spawn_quietly<F>(
    bed: &mut Testbed,
    name: &'static str,
    act: impl FnOnce(FrontEnd, Rc<UserState>) -> F + 'static,
) where
    F: Future<Output = ()> + 'static,
{
    let users = &bed.service.users;
    users.quiet_writes.set(users.quiet_writes.get() + 1);
    bed.service.spawn_user(&mut bed.hosts, name, |front_end, users| async move {
        act(front_end, Rc::clone(&users)).await;
        users.quiet_writes.set(users.quiet_writes.get() - 1);
    });
}
