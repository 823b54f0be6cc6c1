//! A disk that writes to a wrong place of itself and says that all is well: what is promised then, and no
//! more.
//!
//! One such write makes two chunks wrong, where it should be and where it is, each in a row of its own. Reads
//! don't notice. So while users go on, with all members there ([`lie_under_load`]):
//!
//! - those sectors of that member may read as anything until they are written again, and no other sector
//!   does;
//! - a `repair` makes parity of all rows match again, and changes no data.
//!
//! And on level 6, if nothing was written to these rows since ([`lie_in_peace`]): `repair --locate`
//! makes everything right. (A write by read-modify-write takes the wrong bytes for the old ones and leaves
//! the difference in P and Q. There it looks as if the new bytes were wrong.)

use pinstripe_engine::{
    geometry::{MemberSlot, ParityGeometry, Role, StripeId, StripeMap},
    maintenance::{CheckReport, ScrubAction, ScrubRequest},
};

use super::{
    Swarm, Testbed, Verdict,
    client::{self, UserState},
    doubts::sector_of,
    hosts::STEPS_MAX,
    rest::read_all,
};
use crate::{Fault, SECTOR, checks::check_parity};

/// A member that once writes to a wrong place.
struct Liar {
    slot: usize,
    disk: usize,
    /// Where its data begins, in bytes.
    data: u64,
}

/// Has a disk write to a wrong place, now and then, and looks at what comes of it. The array is whole and
/// at rest, before and after.
pub(super) fn lie(swarm: &mut Swarm, geometry: &ParityGeometry) -> Result<(), Verdict> {
    let Some(habits) = swarm.bed.setup.atlas.clone() else { return Ok(()) };
    if !swarm.bed.setup.consistency.settles_by_parity() || !swarm.bed.rng.chance(habits.lies, 8) {
        return Ok(());
    }
    // Nothing is promised of what a crash would leave now.
    swarm.without_explorer(|swarm| lie_in_turn(swarm, geometry))
}

fn lie_in_turn(swarm: &mut Swarm, geometry: &ParityGeometry) -> Result<(), Verdict> {
    if geometry.redundancy() == 2 {
        lie_in_peace(swarm, geometry)?;
    }
    lie_under_load(swarm, geometry)
}

/// Draws a member, and has its next write of data go astray by at least `apart` bytes.
fn mislead(bed: &mut Testbed, geometry: &ParityGeometry, apart: u64) -> Option<Liar> {
    let snapshot = bed.snapshot();
    let slot = bed.rng.index(snapshot.seats.len());
    let member = snapshot.seats[slot].member()?;
    let disk = bed.hosts.find(&member.name)?;
    let (data, bytes) = (member.data_offset, geometry.member_bytes());
    let block = u64::from(bed.setup.block);
    let by = apart + bed.rng.below((bytes - 2 * apart) / block) * block;
    bed.hosts.disks[disk].fault(&Fault::Misdirect(data..data + bytes, by));
    bed.summary.lies += 1;
    Some(Liar { slot, disk, data })
}

fn lie_in_peace(swarm: &mut Swarm, geometry: &ParityGeometry) -> Result<(), Verdict> {
    let chunk = u64::from(geometry.chunk_bytes());
    let Some(liar) = mislead(&mut swarm.bed, geometry, chunk) else { return Ok(()) };
    let stripe = u64::from(geometry.stripe_bytes()) / SECTOR;
    let block = u64::from(swarm.bed.setup.block) / SECTOR;
    let length = block * (1 + swarm.bed.rng.below(stripe / block));
    let at = swarm.bed.rng.below(geometry.stripes()) * stripe
        + swarm.bed.rng.below((stripe - length) / block + 1) * block;
    swarm.bed.service.spawn_user(&mut swarm.bed.hosts, "write", move |front_end, users| async move {
        client::write(&front_end, &users, at..at + length, false).await;
    });
    swarm.wait_for_users()?;
    swarm.bed.hosts.disks[liar.disk].fault(&Fault::Heal);
    swarm.bed.hosts.disks[liar.disk].take_misplaced();
    let report = scrub_by(&mut swarm.bed, ScrubAction::Locate)?;
    if report.unexplained_sectors > 0 {
        return Err(Verdict::Scrub(format!("{report:?} after a single write that went astray")));
    }
    look_after_lies(swarm, geometry)
}

fn lie_under_load(swarm: &mut Swarm, geometry: &ParityGeometry) -> Result<(), Verdict> {
    let block = u64::from(swarm.bed.setup.block);
    let Some(liar) = mislead(&mut swarm.bed, geometry, block) else {
        return Ok(());
    };
    swarm.bed.spawn_clients();
    let limit = swarm.bed.hosts.world.steps() + STEPS_MAX;
    let shared = swarm.bed.service.shared();
    let is_busy =
        |users: &UserState| !users.is_idle() || shared.admission.writers() > 0 || !shared.stripes.is_idle();
    while is_busy(&swarm.bed.service.users) && !swarm.bed.service.users.is_over() {
        swarm.must_step()?;
        doubt_misplaced(&swarm.bed, geometry, &liar);
        if swarm.bed.hosts.world.steps() > limit {
            return Err(swarm.stuck());
        }
    }
    swarm.bed.hosts.disks[liar.disk].fault(&Fault::Heal);
    scrub_by(&mut swarm.bed, ScrubAction::Repair)?;
    look_after_lies(swarm, geometry)
}

/// Nothing is promised of sectors that a stray write has missed or hit.
fn doubt_misplaced(bed: &Testbed, geometry: &ParityGeometry, liar: &Liar) {
    let chunk = u64::from(geometry.chunk_bytes());
    for astray in bed.hosts.disks[liar.disk].take_misplaced() {
        for from in [astray.wanted, astray.got] {
            for at in (from - liar.data..from - liar.data + astray.length).step_by(512) {
                let (stripe, row) = (at / chunk, at % chunk / SECTOR);
                if let Some(column) = data_column(geometry.slots(StripeId(stripe)), liar.slot) {
                    let sector = sector_of(geometry, stripe, column, row);
                    bed.service.users.ledger.borrow_mut().doubt(sector..sector + 1);
                }
            }
        }
    }
}

fn scrub_by(bed: &mut Testbed, action: ScrubAction) -> Result<CheckReport, Verdict> {
    let array = bed.service.array();
    let request = ScrubRequest { action, ..ScrubRequest::default() };
    let report = bed.hosts.block_on("scrub", async move { array.scrub(request).await })?;
    report.map_err(|error| Verdict::Refused(format!("{action:?}: {error}")))
}

/// Everything that is promised reads as it must, and parity matches.
fn look_after_lies(swarm: &mut Swarm, geometry: &ParityGeometry) -> Result<(), Verdict> {
    read_all(swarm)?;
    let shared = swarm.bed.service.shared();
    swarm.wait(|_| shared.admission.writers() == 0 && shared.stripes.is_idle())?;
    let survey = swarm.bed.hosts.survey()?;
    let members = survey.members(&swarm.bed.hosts.disks)?;
    let why = "it was repaired after a write that went astray";
    Ok(check_parity(geometry, &members, 0..geometry.stripes(), why)?)
}

fn data_column(map: StripeMap, slot: usize) -> Option<usize> {
    match map.role(MemberSlot(u8::try_from(slot).unwrap_or(u8::MAX))) {
        Role::Data(column) => Some(column),
        Role::P | Role::Q => None,
    }
}
