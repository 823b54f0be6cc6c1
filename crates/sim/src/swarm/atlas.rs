//! The second half of the fault atlas: members come back, are replaced, hang for too long, vanish at bad
//! moments.
//!
//! Whether a run has it is a matter of its seed's million ([`super::FIRST_SEED_WITH_ATLAS`]). What a level
//! can bear is still the limit, so that whatever goes wrong is a bug; two more things are looked at:
//!
//! - A member that did nothing wrong is not dropped. A disk that is slow, or hangs for less than the limit,
//!   is still a member.
//! - With a spare waiting, an array that was left alone is whole again, without a command.

use pinstripe_engine::{membership::snapshot::Seat, options::ArrayOptions};

use super::{Testbed, Verdict, owner};
use crate::{Fault, Rng, SimDiskConfig, Trigger};

/// The longest that [`Fault::SlowBy`] stretches anything.
const SLOWEST: u64 = 16;
/// Longer than any disk is held up that is not to be dropped, and than the scheduler forgets a request.
const GRACE_NS: u64 = 1_000_000_000;

/// How much of what there is.
#[derive(Clone, Debug)]
pub struct Habits {
    /// Of 8 events that are wanted, how many happen.
    liveliness: u64,
    /// Of 8 clean starts, how many are without some members.
    absences: u64,
    /// How long a member may take.
    timeout_ns: u64,
    /// Of 8 times at rest, at how many a disk writes to a wrong place.
    pub(crate) lies: u64,
}

impl Habits {
    /// Draws them, and sets the limits of the engine by the disks' habits.
    pub fn drawn(rng: &mut Rng, options: &mut ArrayOptions, disk: &SimDiskConfig) -> Self {
        let longest = disk.latency_ns_max * 50 * SLOWEST;
        options.slow_member_ns = rng.pick(&[longest / 8 + 1_000_000, longest + 5_000_000]);
        options.member_timeout_ns = GRACE_NS + 3 * longest;
        Self {
            liveliness: rng.pick(&[1, 2, 4, 8]),
            absences: rng.pick(&[0, 1, 4]),
            timeout_ns: options.member_timeout_ns,
            lies: rng.pick(&[0, 2, 6]),
        }
    }
}

/// One event of the second half, or none.
pub(super) fn event(bed: &mut Testbed) {
    let Some(habits) = bed.setup.atlas.clone() else { return };
    if bed.setup.level.parity_count() == 0 || !bed.rng.chance(habits.liveliness, 8) {
        return;
    }
    match bed.rng.below(16) {
        0 | 1 => owner::replace(bed),
        2..=4 => owner::give_back(bed),
        5 => owner::remove_a_member(bed),
        6 => owner::keep_a_spare(bed),
        7 | 8 => owner::bounce(bed),
        9 if bed.setup.failures => hang(bed, habits.timeout_ns),
        10 if bed.setup.failures => fail_target(bed, habits.timeout_ns),
        11 if bed.setup.failures => fail_soon(bed),
        12 | 13 => crawl(bed),
        _ => {}
    }
}

/// A member hangs for longer than it may; what it was asked for may come late, or never.
fn hang(bed: &mut Testbed, timeout_ns: u64) {
    let Some((_, disk)) = bed.victim() else { return };
    bed.summary.failures += 1;
    hang_disk(bed, disk, timeout_ns);
}

/// Every request to a disk takes longer than any should, though none as long as it may: slow is not dead.
fn crawl(bed: &mut Testbed) {
    let number = bed.some_disk();
    let disk = &bed.hosts.disks[number];
    if disk.is_gone() || disk.is_hung() {
        return;
    }
    bed.summary.slow += 1;
    disk.fault(&Fault::SlowBy(bed.rng.range(SLOWEST..3 * SLOWEST)));
    let until = bed.hosts.world.now() + bed.rng.below(50_000_000);
    disk.plan(Trigger::AtTime(until), Fault::SlowBy(1));
}

fn hang_disk(bed: &mut Testbed, disk: usize, timeout_ns: u64) {
    bed.summary.hangs += 1;
    bed.faults.doom(disk);
    let disk = &bed.hosts.disks[disk];
    if disk.is_gone() {
        return;
    }
    disk.fault(&Fault::Hang);
    if bed.rng.chance(2, 3) {
        let until = bed.hosts.world.now() + timeout_ns + bed.rng.below(2 * timeout_ns);
        disk.plan(Trigger::AtTime(until), Fault::Release);
    }
}

/// A disk that is to take a slot over fails. In the moment in which it takes the slot, the slot may go
/// with it.
fn fail_target(bed: &mut Testbed, timeout_ns: u64) {
    let snapshot = bed.snapshot();
    let is_near = |seat: &Seat| match seat {
        Seat::Replacing { target, .. } => Some(target.name.clone()),
        Seat::Recovering(member) => Some(member.name.clone()),
        _ => None,
    };
    let near: Vec<(bool, String)> =
        snapshot.seats.iter().filter_map(|seat| is_near(seat).map(|name| (seat.is_whole(), name))).collect();
    if near.is_empty() {
        return;
    }
    let (needed, name) = near[bed.rng.index(near.len())].clone();
    if needed && (bed.service.is_torn() || bed.broken() >= bed.setup.redundancy()) {
        return;
    }
    let Some(disk) = bed.hosts.find(&name) else { return };
    if bed.faults.is_joining(disk) {
        return;
    }
    if needed {
        bed.lose_member();
    }
    bed.doom(disk);
    match bed.rng.below(4) {
        0 | 1 => bed.hosts.disks[disk].fault(&Fault::Gone),
        2 => bed.hosts.disks[disk].fault(&Fault::FailFlushes(1)),
        _ => hang_disk(bed, disk, timeout_ns),
    }
}

/// A member goes at some request of the near future: in the middle of whatever is begun now.
fn fail_soon(bed: &mut Testbed) {
    let Some((_, disk)) = bed.doom_victim() else { return };
    let soon = bed.drawn_request(disk, 24);
    bed.hosts.disks[disk].plan(soon, Fault::Gone);
    match bed.rng.below(4) {
        0 => owner::replace(bed),
        1 => owner::scrub(bed),
        2 => owner::keep_a_spare(bed),
        _ if bed.setup.consistency.settles_by_parity() => owner::change_bitmap(bed),
        _ => {}
    }
}

/// Some members are not there when a clean array starts. They are given back later, in whatever order.
pub(super) fn leave_some_out(bed: &mut Testbed) -> Result<(), Verdict> {
    let Some(habits) = bed.setup.atlas.clone() else { return Ok(()) };
    let most = bed.setup.redundancy();
    if bed.setup.rough.is_some() && !bed.faults.doomed().is_empty() {
        return Ok(());
    }
    if most == 0 || !bed.rng.chance(habits.absences, 8) {
        return Ok(());
    }
    let survey = bed.hosts.survey()?;
    if survey.is_dirty() || survey.whole() < survey.seats.len() {
        return Ok(());
    }
    for _ in 0..=bed.rng.index(most) {
        let slot = bed.rng.index(survey.seats.len());
        if let Some((disk, _)) = survey.seats[slot] {
            bed.summary.failures += 1;
            bed.hosts.disks[disk].fault(&Fault::Gone);
        }
    }
    bed.lose_member();
    Ok(())
}
