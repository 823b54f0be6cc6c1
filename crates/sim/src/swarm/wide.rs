//! Wider lives: what the seeds below [`super::FIRST_SEED_OF_WIDE`] don't draw.
//!
//! - The process, or one shard of it, stands still for far longer than a member may take; with it, or not,
//!   what its disks have under way. No member may be dropped for that (C29).
//! - All disks are silent for longer than one may be, and not for as long as the last may: the array lives
//!   on.
//! - A member fails in any way at some request of the near future, whatever phase of whatever request that
//!   is.
//! - A member keeps sectors that can't be written: they are listed, and it stays.
//! - A member has lost bits of its bitmap, which the others have (C8).
//! - Requests over many stripes, regions from one page to several chunks, every flag of the front ends.
//!
//! Half of these lives have the [`atlas`] too.

use pinstripe_md::bitmap::HEADER_BYTES;

use super::{Consistency, Setup, Testbed, Verdict, atlas, client};
use crate::{Fault, Rng, SECTOR, Trigger};

/// How much of what there is.
#[derive(Clone, Debug)]
pub struct Habits {
    /// Of 16 events, how many are of these.
    liveliness: u64,
    /// How long a member may take.
    timeout_ns: u64,
    /// A member is still to lose its bits.
    loses_bits: bool,
}

impl Habits {
    /// Draws them, and changes the run's shape.
    pub(crate) fn drawn(rng: &mut Rng, setup: &mut Setup) -> Self {
        let with_atlas = atlas::Habits::drawn(rng, &mut setup.options, &setup.disk);
        setup.atlas = rng.chance(1, 2).then_some(with_atlas);
        // Of every stall half a second counts as waited, and a request may meet several.
        setup.options.member_timeout_ns += 10_000_000_000;
        if let Consistency::Bitmap(region) = &mut setup.consistency {
            let chunk = u32::try_from(setup.chunk).unwrap_or(*region);
            *region = rng.pick(&[4096, chunk, 2 * chunk, 8 * chunk]);
        }
        Self {
            liveliness: rng.pick(&[2, 4, 8]),
            timeout_ns: setup.options.member_timeout_ns,
            loses_bits: rng.chance(1, 2),
        }
    }
}

/// Clients of these lives work over many stripes, and use every flag.
pub(crate) fn widen(habits: &mut client::Habits, rng: &mut Rng, sectors: u64) {
    habits.all_flags = true;
    if rng.chance(1, 2) {
        let stripes = rng.pick(&[2, 5, 9]);
        habits.range = 0..sectors;
        let most = (habits.stripe * stripes).min(4096).min(sectors / 2) / habits.unit;
        habits.units_max = habits.units_max.max(most);
        habits.discards = habits.discards.max(1);
    }
}

/// One event of these lives, or none.
pub(super) fn event(bed: &mut Testbed) {
    let Some(habits) = bed.setup.wide.clone() else { return };
    if !bed.rng.chance(habits.liveliness, 16) {
        return;
    }
    let parity = bed.setup.level.parity_count() > 0;
    match bed.rng.below(8) {
        0..=2 => stand_still(bed, habits.timeout_ns),
        3 if parity => fall_silent(bed, habits.timeout_ns),
        4 | 5 if parity && bed.setup.failures => trip(bed),
        6 if parity && bed.setup.failures => scratch(bed),
        _ => {}
    }
}

fn silence(bed: &Testbed, until: u64) {
    for disk in bed.hosts.disks.iter().filter(|disk| !disk.is_gone() && !disk.is_hung()) {
        disk.fault(&Fault::Hang);
        disk.plan(Trigger::AtTime(until), Fault::Release);
    }
}

/// Nothing of the process runs for a while, or only one of its shards doesn't.
fn stand_still(bed: &mut Testbed, timeout_ns: u64) {
    bed.summary.stalls += 1;
    let nanoseconds = timeout_ns / 4 + bed.rng.below(4 * timeout_ns);
    let shards = bed.hosts.home_shards();
    if bed.rng.chance(1, 3) {
        let one = shards.start + bed.rng.index(bed.setup.shards);
        return bed.hosts.world.stall(one..one + 1, nanoseconds);
    }
    if bed.rng.chance(1, 2) {
        // What the kernel does for files is done by workers of the process; and a machine may be
        // suspended.
        silence(bed, bed.hosts.world.now() + nanoseconds);
    }
    bed.hosts.world.stall(shards, nanoseconds);
}

/// All disks are out of reach for a while. As many as the level bears may be dropped for it.
fn fall_silent(bed: &mut Testbed, timeout_ns: u64) {
    let array = bed.service.array();
    let is_steady = bed.broken() == 0 && bed.faults.doomed().is_empty() && array.shared().is_recorded();
    if bed.setup.failures || bed.setup.atlas.is_some() || !is_steady || bed.service.is_torn() {
        return;
    }
    bed.lose_member();
    bed.summary.outages += 1;
    bed.faults.excuse(0..bed.hosts.disks.len());
    let longer = timeout_ns / 10 + bed.rng.below(timeout_ns / 3);
    silence(bed, bed.hosts.world.now() + timeout_ns + longer);
}

/// A member fails in some way at some request of the near future.
fn trip(bed: &mut Testbed) {
    let Some((_, disk)) = bed.doom_victim() else { return };
    let soon = bed.drawn_request(disk, 16);
    let whole = 0..bed.setup.disk.size;
    let fault = match bed.rng.below(4) {
        0 => Fault::Gone,
        1 => Fault::FailFlushes(1),
        2 => Fault::RefuseRequests(64),
        // The list of bad sectors can't be written either: the member must go.
        _ => Fault::UnwritableRange(whole),
    };
    bed.hosts.disks[disk].plan(soon, fault);
}

/// Some sectors of a member can't be written any more. It lists them, and stays until the end of the
/// life.
pub(crate) fn scratch(bed: &mut Testbed) {
    let Some(geometry) = bed.setup.geometry() else { return };
    if !bed.ends_in_peace || !bed.setup.consistency.settles_by_parity() {
        return;
    }
    let Some((slot, disk)) = bed.victim() else { return };
    let snapshot = bed.snapshot();
    let Some(member) = snapshot.seats[slot].member() else { return };
    bed.faults.doom(disk);
    bed.faults.scratch();
    for _ in 0..=bed.rng.below(3) {
        let block = u64::from(bed.setup.block);
        let from = member.data_offset + bed.rng.below(geometry.member_bytes() / block) * block;
        bed.hosts.disks[disk].fault(&Fault::UnwritableRange(from..from + block));
    }
}

/// A slot with a member that lists bad sectors: no check of bytes on disks knows of them.
pub(crate) fn listed_slot(bed: &Testbed) -> Option<usize> {
    if bed.setup.wide.is_none() && bed.setup.rough.is_none() && !bed.setup.is_far() {
        return None;
    }
    bed.service.array().detail().slots.iter().position(|slot| slot.bad_sectors > 0)
}

/// Once in a run, between two lives, a whole member's copy of the bitmap has no bit set. The others'
/// have.
pub(crate) fn lose_bits(bed: &mut Testbed) -> Result<(), Verdict> {
    let survey = bed.hosts.survey()?;
    let Some(habits) = bed.setup.wide.as_mut().filter(|habits| habits.loses_bits) else { return Ok(()) };
    if !survey.is_dirty() || survey.whole() < 2 {
        return Ok(());
    }
    habits.loses_bits = false;
    let holders: Vec<_> = survey.seats.iter().flatten().collect();
    let (number, superblock) = holders[bed.rng.index(holders.len())];
    if let Some(sector) = superblock.bitmap_sector()
        && superblock.member.recovery_offset.is_none()
    {
        // These arrays have fewer regions than a sector has bits.
        let at = sector.0 * SECTOR;
        let mut bytes = bed.hosts.disks[*number].peek(at, 512);
        bytes[HEADER_BYTES..].fill(0);
        bed.hosts.disks[*number].poke(at, &bytes);
    }
    Ok(())
}
