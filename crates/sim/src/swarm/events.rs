//! What happens to an array in service in every kind of lives: members fail, sectors rot, the owner changes
//! things.

use pinstripe_engine::array::CommandError;

use super::{Testbed, owner};
use crate::{Fault, SECTOR, Trigger};

/// One event, or none.
pub(super) fn event(bed: &mut Testbed) {
    if bed.setup.level.parity_count() == 0 {
        if bed.rng.chance(1, 8) {
            hold_up(bed);
        }
        return;
    }
    match bed.rng.below(24) {
        0..=2 if bed.setup.failures => fail_member(bed),
        3 if bed.setup.failures => fail_by_hand(bed),
        4 | 5 if bed.setup.failures => rot(bed),
        6 | 7 => owner::add_if_wanted(bed),
        8 => owner::scrub(bed),
        9 if bed.setup.may_change_bitmap() => owner::change_bitmap(bed),
        11 if bed.setup.policy_changes => owner::change_policy(bed),
        10 => hold_up(bed),
        _ => {}
    }
}

fn fail_member(bed: &mut Testbed) {
    let Some((_, disk)) = bed.doom_victim() else { return };
    let size = bed.setup.disk.size;
    let fault = match bed.rng.below(6) {
        0..=2 => Fault::Gone,
        3 => Fault::FailFlushes(1 + u32::from(bed.rng.chance(1, 2))),
        4 => Fault::RefuseRequests(1 + u32::from(bed.rng.chance(1, 2))),
        _ => {
            // Nor can the range be listed as bad: the member must go.
            let superblock = crate::checks::superblock(&bed.hosts.disks[disk]);
            if let Some(log) = superblock.and_then(|superblock| superblock.bad_block_log_sector()) {
                let log = log.0 * SECTOR;
                bed.hosts.disks[disk].fault(&Fault::UnwritableRange(log..log + 4096));
            }
            let from = if bed.setup.is_far() {
                let data = bed.setup.data_byte();
                data + bed.rng.below(bed.setup.chunk * bed.setup.stripes / SECTOR) * SECTOR
            } else {
                bed.rng.below(size / SECTOR) * SECTOR
            };
            Fault::UnwritableRange(from..size.min(from + (1 << bed.rng.range(12..20))))
        }
    };
    bed.hosts.disks[disk].fault(&fault);
}

fn fail_by_hand(bed: &mut Testbed) {
    let Some((slot, _)) = bed.doom_victim() else { return };
    bed.command("fail", move |array| async move {
        match array.fail(slot).await {
            // While others hang, it isn't known whether the array could do without it.
            Ok(()) | Err(CommandError::SlotEmpty(_) | CommandError::SlotNeeded(_)) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    });
}

/// A latent error, where the rest of the row is whole.
fn rot(bed: &mut Testbed) {
    let Some(geometry) = bed.setup.geometry() else { return };
    if bed.service.is_torn() || bed.broken() >= geometry.redundancy() {
        return;
    }
    let snapshot = bed.snapshot();
    let slot = bed.rng.index(snapshot.seats.len());
    let Some(disk) = bed.disk_in(slot) else { return };
    let Some(member) = snapshot.seats[slot].member() else { return };
    if bed.faults.is_joining(disk) {
        return;
    }
    bed.lose_member();
    // A request that met an error may still be at work when the error is cured, so the disk stays on the
    // list.
    bed.faults.doom(disk);
    for _ in 0..=bed.rng.below(4) {
        let from = bed.rng.below(geometry.member_bytes() / SECTOR) * SECTOR;
        let most = bed.rng.pick(&[1, 8, 64]);
        let length = (1 + bed.rng.below(most)) * SECTOR;
        let end = geometry.member_bytes().min(from + length);
        bed.hosts.disks[disk]
            .fault(&Fault::UnreadableRange(member.data_offset + from..member.data_offset + end));
    }
}

/// A disk hangs for a while, or is slow.
fn hold_up(bed: &mut Testbed) {
    let number = bed.some_disk();
    let disk = &bed.hosts.disks[number];
    if disk.is_gone() {
        return;
    }
    if bed.rng.chance(1, 2) {
        disk.fault(&Fault::Hang);
        let until = bed.hosts.world.now() + bed.rng.below(20_000_000);
        disk.plan(Trigger::AtTime(until), Fault::Release);
    } else {
        disk.fault(&Fault::SlowBy(bed.rng.pick(&[1, 4, 16])));
    }
}
