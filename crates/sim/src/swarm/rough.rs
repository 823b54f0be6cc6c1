//! Rough lives: faults that meet, which the seeds below [`super::FIRST_SEED_OF_ROUGH`] draw one at a time.
//!
//! - *Bad-block lists behind a log.* Sectors that can't be written are listed in any life of an array with
//!   a log or journal that leaves no row torn, and what is listed outlives crashes.
//! - *Read errors that outlive a crash.* The replay of a log, and the life after it, meet sectors that can't
//!   be read, also in rows that were being written.
//! - *A member goes while rows are torn*, without a log. Then requests may be refused until the next crash,
//!   and no value may be wrong.
//! - *A member fails while the array starts*, and the start goes on without it or is repeated.
//! - *A journal* changes its mode in service, and fails in any way; an outage is not only that disks go.
//! - *Disks differ* in what they can do and where data begins on them.
//!
//! Most of these arrays have a log or a journal, and all have the [`super::atlas`]. As everywhere, no row
//! loses more than the level bears: a disk with sectors that can't be read, or are listed, counts as lost.

use std::ops::Range;

use pinstripe_engine::{
    array::CommandError,
    error::IoError,
    geometry::{MemberSlot, ParityGeometry, Role, StripeId},
    options::{JournalMode, SyncSpeed},
};
use pinstripe_md::{
    level::{Layout, Level},
    superblock::MetadataVersion,
};
use pinstripe_runtime::shard;

use super::{Consistency, Setup, Testbed, Verdict, doubts::sector_of, draw::FRONT_SECTORS, wide};
use crate::{Fault, Rng, SECTOR, Trigger};

/// How much of what there is.
#[derive(Clone, Debug)]
pub struct Habits {
    /// Of 16 events, how many are of these.
    liveliness: u64,
    /// Of 8 crashes, how many leave sectors that can't be read.
    rots: u64,
}

impl Habits {
    /// Draws them, and changes the run's shape.
    pub(crate) fn drawn(rng: &mut Rng, setup: &mut Setup) -> Self {
        if setup.level.parity_count() == 0 {
            (setup.level, setup.layout) = (Level::Raid4, Layout::None);
        }
        setup.consistency = match (rng.below(8), setup.level) {
            (0..=2, Level::Raid5) => Consistency::Ppl,
            (0..=2, Level::Raid6) => Consistency::DoubleParityLog,
            (0..=4, _) => Consistency::Journal,
            _ => Consistency::Bitmap(rng.pick(&[4096, 16384, 65536])),
        };
        setup.journals = usize::from(setup.consistency == Consistency::Journal);
        setup.options.journal_mode = rng.pick(&[JournalMode::WriteBack, JournalMode::WriteThrough]);
        setup.options.journal_cache_bytes = rng.pick(&[32 << 10, 1 << 20]);
        if setup.consistency.bears_degraded_start() && setup.version == MetadataVersion::V1_0 {
            setup.version = MetadataVersion::V1_2;
        }
        if !setup.logs() && setup.consistency == Consistency::DoubleParityLog {
            setup.data_sector *= 8;
            setup.disk.size += (setup.data_sector - FRONT_SECTORS) * SECTOR;
        }
        setup.failures = true;
        setup.resync = rng.chance(1, 8);
        setup.policy_changes &= rng.chance(1, 4);
        setup.lives = setup.lives.max(3);
        setup.crashes = rng.pick(&[4, 6, 8]);
        setup.motley = rng.chance(2, 3).then(|| rng.draw());
        Self { liveliness: rng.pick(&[2, 4, 8]), rots: rng.pick(&[0, 4, 6]) }
    }
}

/// One event of these lives, or none.
pub(super) fn event(bed: &mut Testbed) {
    let Some(habits) = bed.setup.rough.clone() else { return };
    if !bed.rng.chance(habits.liveliness, 16) {
        return;
    }
    lose_though_torn(bed);
    match bed.rng.below(4) {
        0 | 1 if bed.has_log() => scratch(bed),
        0 | 1 => wide::scratch(bed),
        2 if bed.setup.consistency == Consistency::Journal => switch_mode(bed),
        3 => interrupt_sync(bed),
        _ => {}
    }
}

/// The owner has the journal written back, or through.
fn switch_mode(bed: &mut Testbed) {
    let mode = bed.rng.pick(&[JournalMode::WriteBack, JournalMode::WriteThrough]);
    bed.command("journal mode", move |array| async move {
        match array.set_journal_mode(mode).await {
            Ok(())
            | Err(CommandError::Policy(_) | CommandError::Io(IoError::JournalLost | IoError::Stopping)) => {
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    });
}

/// The owner pauses maintenance for a while.
fn pause_sync(bed: &mut Testbed) {
    let pause = bed.rng.below(50_000_000);
    bed.command("pause", move |array| async move {
        array.pause_sync(true);
        shard::sleep(pause).await;
        array.pause_sync(false);
        Ok(())
    });
}

/// The owner pauses maintenance, paces it, or ends checks.
fn interrupt_sync(bed: &mut Testbed) {
    let (ends, max_kib) = (bed.rng.chance(1, 2), bed.rng.pick(&[1_000, 100_000, 2_000_000]));
    if bed.rng.chance(1, 3) {
        return pause_sync(bed);
    }
    bed.command("pace", move |array| async move {
        if ends {
            // None may be under way.
            _ = array.stop_scrubs();
            return Ok(());
        }
        let paced = array.set_sync_speed(SyncSpeed { min_kib: 1, max_kib });
        paced.map_err(|error| error.to_string())
    });
}

/// Some sectors of a member can't be written until the next crash.
fn scratch(bed: &mut Testbed) {
    let Some((slot, disk)) = bed.victim() else { return };
    let snapshot = bed.snapshot();
    let Some(member) = snapshot.seats[slot].member() else { return };
    let data = member.data_offset;
    bed.doom(disk);
    for _ in 0..=bed.rng.below(3) {
        let range = some_block(bed);
        bed.hosts.disks[disk].fault(&Fault::UnwritableRange(data + range.start..data + range.end));
    }
}

/// A block of a member's data, in bytes; most are in rows that may be half written, if there are any.
fn some_block(bed: &mut Testbed) -> Range<u64> {
    const PAGE_SECTORS: u64 = 8;
    let (block, chunk) = (u64::from(bed.setup.block) / SECTOR, bed.setup.chunk / SECTOR);
    let near = bed.doubts.half_written().len();
    let drawn = if near > 0 && bed.rng.chance(2, 3) { bed.rng.index(near) } else { near };
    let (stripe, row) = match bed.doubts.half_written().iter().nth(drawn) {
        Some((stripe, row)) => (*stripe, row / PAGE_SECTORS * PAGE_SECTORS + bed.rng.below(PAGE_SECTORS)),
        None => (bed.rng.below(bed.setup.stripes), bed.rng.below(chunk)),
    };
    let from = (stripe * chunk + row / block * block) * SECTOR;
    from..from + block * SECTOR
}

/// Disks that list sectors bear no loss beside them.
pub(super) fn doom_listing(bed: &mut Testbed) -> Result<(), Verdict> {
    if bed.setup.rough.is_none() {
        return Ok(());
    }
    let survey = bed.hosts.survey()?;
    let members = survey.members(&bed.hosts.disks)?;
    for (held, seat) in members.iter().zip(&survey.seats) {
        if let (Some(held), Some((disk, _))) = (held, seat)
            && !held.listed.is_empty()
        {
            bed.faults.doom(*disk);
        }
    }
    Ok(())
}

/// The machine has died, and of an array with a log some sectors can't be read any more.
pub(super) fn stay_rotten(bed: &mut Testbed) -> Result<(), Verdict> {
    let Some(habits) = bed.setup.rough.clone() else { return Ok(()) };
    let Some(geometry) = bed.setup.geometry() else { return Ok(()) };
    doom_listing(bed)?;
    let survey = bed.hosts.survey()?;
    let disk_in = |slot: usize| {
        let (disk, superblock) = survey.seats[slot].as_ref()?;
        superblock
            .member
            .recovery_offset
            .is_none()
            .then_some((*disk, superblock.member.data_offset.0 * SECTOR))
    };
    let is_here = |slot: &usize| disk_in(*slot).is_some();
    let here: Vec<usize> = (0..survey.seats.len()).filter(is_here).collect();
    let lists = |slot: &usize| disk_in(*slot).is_some_and(|(disk, _)| bed.faults.is_doomed(disk));
    let (mut rotten, mut others): (Vec<usize>, Vec<usize>) = here.iter().partition(|slot| lists(slot));
    if !bed.has_log() || !bed.rng.chance(habits.rots, 8) {
        return Ok(());
    }
    let lost = survey.seats.len() - here.len();
    bed.rng.shuffle(&mut others);
    rotten.extend(others);
    rotten.truncate(geometry.redundancy().saturating_sub(lost));
    if rotten.is_empty() {
        return Ok(());
    }
    for _ in 0..=bed.rng.below(6) {
        let slot = bed.rng.pick(&rotten);
        let Some((disk, data)) = disk_in(slot) else { continue };
        let range = some_block(bed);
        bed.summary.rotten += u64::from(!bed.faults.is_doomed(disk));
        bed.faults.doom(disk);
        bed.hosts.disks[disk].fault(&Fault::UnreadableRange(data + range.start..data + range.end));
        for at in range.step_by(512) {
            // (Behind a journal they must be old or new all the same.)
            if let Some(sector) = sector_at(&geometry, slot, at)
                && bed.setup.consistency.bears_degraded_start()
            {
                bed.doubts.note_unreadable(sector);
            }
        }
    }
    bed.lose_member();
    Ok(())
}

/// The array's sector that a member has at this byte of its data.
fn sector_at(geometry: &ParityGeometry, slot: usize, at: u64) -> Option<u64> {
    let chunk = u64::from(geometry.chunk_bytes());
    let (stripe, row) = (at / chunk, at % chunk / SECTOR);
    let slot = MemberSlot(u8::try_from(slot).unwrap_or(u8::MAX));
    match geometry.slots(StripeId(stripe)).role(slot) {
        Role::Data(column) => Some(sector_of(geometry, stripe, column, row)),
        Role::P | Role::Q => None,
    }
}

/// A life begins. Where rows are torn, they are so for a while.
pub(super) fn begin(bed: &mut Testbed) {
    if bed.setup.rough.is_none() || !bed.service.is_torn() {
        return;
    }
    if bed.rng.chance(1, 2) {
        pause_sync(bed);
    }
    lose_though_torn(bed);
}

/// A member goes although rows are torn, in a life that will not end in peace.
fn lose_though_torn(bed: &mut Testbed) {
    if bed.ends_in_peace || !bed.service.is_torn() || !bed.rng.chance(1, 2) {
        return;
    }
    let snapshot = bed.snapshot();
    let slot = bed.rng.index(snapshot.seats.len());
    let Some(disk) = bed.disk_in(slot).filter(|disk| !bed.faults.is_joining(*disk)) else { return };
    let is_recorded = bed.service.array().shared().is_recorded();
    if !snapshot.seats[slot].is_whole() || !is_recorded || bed.broken() >= bed.setup.redundancy() {
        return;
    }
    bed.service.users.bears_refusals.set(true);
    bed.summary.torn_losses += 1;
    bed.lose_member();
    bed.doom(disk);
    let soon = bed.drawn_request(disk, 64);
    bed.hosts.disks[disk].plan(soon, Fault::Gone);
}

/// A fault of a disk that is to happen in a start.
pub(super) struct Tripped {
    disk: usize,
    at_request: u64,
}

impl Tripped {
    /// A start has failed. Whether it has met the fault. The disk is well now, or gone.
    pub(super) fn has_happened(&self, bed: &mut Testbed) -> bool {
        bed.faults.forget(self.disk);
        let disk = &bed.hosts.disks[self.disk];
        let taken = disk.counters();
        disk.fault(&Fault::Calm);
        disk.fault(&Fault::Heal);
        disk.fault(&Fault::Release);
        taken.reads + taken.writes + taken.flushes >= self.at_request
    }

    /// The array has started. A disk that was left out will be another member when it comes back.
    pub(super) fn settle(&self, bed: &mut Testbed) {
        if bed.standing(self.disk).is_none() {
            bed.faults.forget(self.disk);
        }
    }
}

/// A member fails at some request of the start that is to come.
pub(super) fn trip(bed: &mut Testbed) -> Result<Option<Tripped>, Verdict> {
    if bed.setup.rough.is_none() || !bed.faults.doomed().is_empty() || !bed.rng.chance(1, 4) {
        return Ok(None);
    }
    let survey = bed.hosts.survey()?;
    let is_whole = survey.whole() == survey.seats.len();
    if !is_whole || bed.journal_lost || survey.is_dirty() && !bed.has_log() {
        return Ok(None);
    }
    let slot = bed.rng.index(survey.seats.len());
    let Some((disk, _)) = survey.seats[slot] else { return Ok(None) };
    if bed.setup.consistency.bears_degraded_start() && survey.is_dirty() {
        bed.doubts.note_lost_in_takeover(std::iter::once(slot));
    }
    bed.lose_member();
    bed.doom(disk);
    let taken = bed.hosts.disks[disk].counters();
    let within = 1 << bed.rng.below(9);
    let at_request = taken.reads + taken.writes + taken.flushes + bed.rng.below(within);
    let fault = match bed.rng.below(4) {
        0 => Fault::FailFlushes(1),
        1 => Fault::Hang,
        _ => Fault::Gone,
    };
    bed.hosts.disks[disk].plan(Trigger::AtRequest(at_request), fault);
    Ok(Some(Tripped { disk, at_request }))
}

/// How a disk fails in an outage: in a rough life not only by going.
pub(super) fn outage(bed: &mut Testbed) -> Fault {
    if bed.setup.rough.is_none() {
        return Fault::Gone;
    }
    match bed.rng.below(4) {
        0 => Fault::FailFlushes(8),
        1 => Fault::Hang,
        _ => Fault::Gone,
    }
}

/// The journal fails in another way than by going, in some rough lives. Whether it does.
pub(super) fn lose_journal(bed: &mut Testbed) -> bool {
    if bed.setup.rough.is_none() {
        return false;
    }
    let disk = &bed.hosts.disks[bed.setup.members];
    match bed.rng.below(6) {
        0 => disk.fault(&Fault::Hang),
        1 => disk.fault(&Fault::UnwritableRange(0..bed.setup.disk(bed.setup.members).size)),
        2 | 3 => bed.command("fail journal", |array| async move {
            array.fail_journal().await.map(|_| ()).map_err(|error| error.to_string())
        }),
        _ => return false,
    }
    true
}
