//! What the owner does with an array while users go on: gives it disks and takes them away, checks it, and
//! changes how it is kept consistent. A command may be refused for what happens meanwhile, and for nothing
//! else.

use std::{cell::RefCell, rc::Rc, sync::Arc};

use pinstripe_engine::{
    array::{Added, CommandError, Policy, Removed},
    error::IoError,
    maintenance::{ScrubAction, SyncError},
    membership::MemberState,
};
use pinstripe_md::level::Level;
use pinstripe_runtime::shard;

use super::{Consistency, Testbed, Verdict, draw::uuid, net::Reach, vast};
use crate::{Fault, SimDisk};

/// Puts a new disk in if a slot is empty.
pub(super) fn add_if_wanted(bed: &mut Testbed) {
    let snapshot = bed.snapshot();
    // Two at once may want the same slot; more is no other case.
    let pending = bed.service.users.adds.get();
    if snapshot.seats.iter().any(|seat| seat.member().is_none()) && pending < 2 {
        add(bed);
    }
}

/// Puts a new disk in.
pub(super) fn add(bed: &mut Testbed) {
    if bed.setup.is_vast() || bed.setup.net.is_some() && !may_add_new(bed) {
        return give_back(bed);
    }
    let number = bed.new_disk();
    let reach = bed.hosts.reach(number);
    bed.summary.spares += 1;
    let identity = uuid(&mut bed.rng);
    let users = Rc::clone(&bed.service.users);
    users.adds.set(users.adds.get() + 1);
    let joining = bed.faults.joining(number);
    bed.command("add", move |array| async move {
        let added = match reach.source().await {
            Ok(source) => Ok(array.add(source, identity).await),
            Err(error) => Err(error),
        };
        users.adds.set(users.adds.get() - 1);
        drop(joining);
        let added = match added {
            Ok(added) => added,
            Err(error) => return excused(&reach, error),
        };
        match added {
            // Another spare was faster, or this one failed on its way in.
            Ok(_) | Err(CommandError::Io(IoError::MembershipChanged) | CommandError::NotTakenIn(_)) => Ok(()),
            Err(_) if reach.is_troubled() => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    });
}

/// Whether a disk that was never a member is to come, rather than one that was.
fn may_add_new(bed: &mut Testbed) -> bool {
    bed.hosts.has_room() && (!has_idle_disk(bed) || bed.rng.chance(1, 4))
}

/// A device that was out is given back, mended or, now and then, as it is.
pub(super) fn give_back(bed: &mut Testbed) {
    let Some(disk) = some_idle_disk(bed) else { return };
    if bed.rng.chance(7, 8) {
        mend(bed, disk);
    } else {
        bed.faults.give_back_sick(disk);
    }
    bed.summary.returns += 1;
    let removes = bed.rng.chance(1, 4);
    return_disk(bed, disk, None, removes);
}

/// A member is taken out and given back at once.
pub(super) fn bounce(bed: &mut Testbed) {
    let Some((slot, disk)) = bed.victim() else { return };
    if bed.hosts.disks[disk].is_gone() || bed.faults.is_doomed(disk) {
        return;
    }
    bed.doom(disk);
    bed.summary.returns += 1;
    let removes = bed.rng.chance(1, 2);
    return_disk(bed, disk, Some(slot), removes);
}

fn return_disk(bed: &mut Testbed, number: usize, fails: Option<usize>, removes: bool) {
    let (disk, identity) = (bed.hosts.disks[number].clone(), uuid(&mut bed.rng));
    let reach = bed.hosts.reach(number);
    // The client that the array was taken from may get hold of it first, and lets go of it when it notices.
    let is_sick = bed.faults.is_sick(number) || bed.is_contended();
    let joining = bed.faults.joining(number);
    let users = Rc::clone(&bed.service.users);
    let patience = if bed.setup.races.is_some() { 20 } else { 0 };
    bed.command("return", move |array| async move {
        let name = disk.info().name.clone();
        let work = async {
            if let Some(slot) = fails {
                match array.fail(slot).await {
                    Ok(()) | Err(CommandError::SlotEmpty(_)) => {}
                    // While others hang, it isn't known whether the array could do without it.
                    Err(CommandError::SlotNeeded(_)) => return Ok(()),
                    Err(error) => return Err(format!("fail: {error}")),
                }
            }
            if removes {
                match array.remove(&Removed::Device(name)).await {
                    Ok(_)
                    | Err(
                        CommandError::NoSuchDevice(_)
                        | CommandError::InUse { .. }
                        | CommandError::Io(IoError::MembershipChanged),
                    ) => {}
                    Err(error) => return Err(format!("remove: {error}")),
                }
            }
            let source = match reach.source().await {
                Ok(source) => source,
                // It may have been given back as it was: down.
                Err(_) if is_sick => return Ok(()),
                Err(error) => return excused(&reach, error),
            };
            let mut added = array.add(Arc::clone(&source), identity).await;
            for _ in 0..patience {
                // What it was asked for when it was taken out is soon over.
                if matches!(added, Err(CommandError::RequestsUnderWay { .. })) {
                    shard::sleep(500_000).await;
                    added = array.add(Arc::clone(&source), identity).await;
                }
            }
            match added {
                Ok(Added::Bitmap { .. }) => users.readds.set(users.readds.get() + 1),
                Ok(_) => {}
                Err(error) => return joined(&disk, is_sick || reach.is_troubled(), error),
            }
            Ok(())
        };
        let result = work.await;
        drop(joining);
        result
    });
}

/// A device that holds no slot is taken out of the array for good, or is until it is given back.
pub(super) fn remove_a_member(bed: &mut Testbed) {
    let slots = bed.snapshot().seats.len();
    let which = if bed.rng.chance(1, 2) {
        Removed::Slot(bed.rng.index(slots))
    } else {
        let disk = bed.some_disk();
        Removed::Device(bed.hosts.disks[disk].info().name.clone())
    };
    bed.command("remove", move |array| async move {
        match array.remove(&which).await {
            Ok(_)
            | Err(
                CommandError::NoSuchDevice(_)
                | CommandError::InUse { .. }
                | CommandError::Io(IoError::MembershipChanged),
            ) => Ok(()),
            Err(error) => Err(error.to_string()),
        }
    });
}

/// Puts a new disk in, so that a spare waits for a slot.
pub(super) fn keep_a_spare(bed: &mut Testbed) {
    if spares(bed) + bed.service.users.adds.get() < 2 {
        add(bed);
    }
}

/// A whole member is to be replaced: by a new disk, by one that was out, or by a spare.
pub(super) fn replace(bed: &mut Testbed) {
    let snapshot = bed.snapshot();
    if snapshot.replacements.len() > 1 {
        return;
    }
    let slot = bed.rng.index(snapshot.seats.len());
    let idle = some_idle_disk(bed);
    let has_room = bed.hosts.has_room();
    let with = match (bed.rng.below(4), idle) {
        (1, Some(disk)) => {
            mend(bed, disk);
            Some(disk)
        }
        (1.., _) if has_room => Some(bed.new_disk()),
        _ => None,
    };
    bed.summary.replacements += 1;
    let identity = uuid(&mut bed.rng);
    let with =
        with.map(|disk| (bed.hosts.disks[disk].clone(), bed.hosts.reach(disk), bed.faults.joining(disk)));
    // The client that the array was taken from may get hold of it first, and lets go of it when it notices.
    let is_contended = bed.is_contended();
    bed.command("replace", move |array| async move {
        let source = match &with {
            None => None,
            Some((_, reach, _)) => match reach.source().await {
                Ok(source) => Some(source),
                Err(error) => return excused(reach, error),
            },
        };
        match (array.replace(slot, source, identity).await, with) {
            (
                Ok(_)
                | Err(
                    CommandError::NotReplaceable { .. }
                    | CommandError::OtherSlotEmpty { .. }
                    | CommandError::NoSpare
                    | CommandError::NotTakenIn(_)
                    | CommandError::Io(IoError::MembershipChanged),
                ),
                _,
            ) => Ok(()),
            (Err(error), Some((disk, reach, _))) => joined(&disk, is_contended || reach.is_troubled(), error),
            (Err(error), None) => Err(error.to_string()),
        }
    });
}

/// How many spares wait for a slot.
fn spares(bed: &Testbed) -> usize {
    let members = bed.service.array().members();
    members.iter().filter(|(.., state)| *state == MemberState::Spare).count()
}

/// Whether a spare that works will take an empty slot.
pub(super) fn is_spare_coming(bed: &Testbed) -> bool {
    let Some(array) = bed.service.served().filter(|_| bed.setup.atlas.is_some()) else { return false };
    let members = array.members();
    let works = |name: &str| bed.hosts.disks.iter().any(|disk| disk.info().name == name && !disk.is_gone());
    let waits = members.iter().any(|(_, name, _, state)| *state == MemberState::Spare && works(name));
    waits && array.shared().snapshot().seats.iter().any(|seat| seat.member().is_none())
}

/// Disks that hold no slot, wait for none, and are not about to.
fn idle_disks(bed: &Testbed) -> Vec<usize> {
    let is_idle = |disk: &usize| {
        let out = match bed.standing(*disk) {
            None => true,
            Some((_, state)) => matches!(state, MemberState::Failed(_) | MemberState::Removed),
        };
        out && !bed.faults.is_joining(*disk)
    };
    let journal = (bed.setup.disks() > bed.setup.members).then_some(bed.setup.members);
    (0..bed.hosts.disks.len()).filter(|disk| Some(*disk) != journal).filter(is_idle).collect()
}

/// Whether there is a disk to be given back.
fn has_idle_disk(bed: &Testbed) -> bool {
    !idle_disks(bed).is_empty()
}

fn some_idle_disk(bed: &mut Testbed) -> Option<usize> {
    let idle = idle_disks(bed);
    (!idle.is_empty()).then(|| bed.rng.pick(&idle))
}

/// A disk that was out is well again.
fn mend(bed: &mut Testbed, number: usize) {
    bed.faults.mend(number);
    let disk = &bed.hosts.disks[number];
    disk.fault(&Fault::Calm);
    disk.fault(&Fault::Heal);
    disk.fault(&Fault::Return);
    disk.fault(&Fault::Release);
    bed.hosts.start_server(number);
}

/// Has everything checked, or repaired.
pub(super) fn scrub(bed: &mut Testbed) {
    let users = Rc::clone(&bed.service.users);
    let located = bed.setup.level.parity_count() == 2;
    let action = match bed.rng.below(4) {
        0 => ScrubAction::Repair,
        1 if located => ScrubAction::Locate,
        _ => ScrubAction::Check,
    };
    let request = vast::scrub_request(&bed.setup, &mut bed.rng, action);
    bed.command("scrub", move |array| async move {
        let before = array.shared().snapshot();
        let in_sync = before.intent.resync_count() == 0;
        let report = match array.scrub(request).await {
            Err(SyncError::TooMany) => return Ok(()),
            report => report.map_err(|error| error.to_string())?,
        };
        if in_sync && report.mismatched_sectors > 0 {
            users.accuse(Verdict::Scrub(format!("{report:?} although nothing was to be resynced")));
        }
        Ok(())
    });
}

/// Another consistency policy on the live array.
pub(super) fn change_policy(bed: &mut Testbed) {
    if bed.setup.consistency == Consistency::Journal {
        return;
    }
    let (log, consistency) = match bed.setup.level {
        Level::Raid5 => (Policy::Ppl, Consistency::Ppl),
        Level::Raid6 => (Policy::DoubleParityLog, Consistency::DoubleParityLog),
        _ => return,
    };
    let policy = bed.rng.pick(&[Policy::Resync, Policy::Bitmap, log, log]);
    if policy == log {
        // From now on a crash may find a log, whether the change is through or not.
        bed.setup.consistency = consistency;
    }
    bed.command("policy", move |array| async move {
        match array.set_policy(policy).await {
            // No room, or another change came first.
            Err(CommandError::Bitmap(_) | CommandError::BitmapRoom(_) | CommandError::Policy(_)) => Ok(()),
            other => other.map_err(|error| error.to_string()),
        }
    });
}

/// Takes the bitmap away, or gives the array one.
pub(super) fn change_bitmap(bed: &mut Testbed) {
    let region = bed.rng.pick(&[4096, 16384, 65536]);
    let refused: Rc<RefCell<Option<String>>> = Rc::default();
    bed.command("bitmap", move |array| async move {
        let has_one = array.shared().snapshot().intent.is_persistent();
        let done = if has_one { array.remove_bitmap().await } else { array.add_bitmap(region).await };
        match done {
            // No room, or another change came first.
            Err(error @ (CommandError::Bitmap(_) | CommandError::BitmapRoom(_))) => {
                *refused.borrow_mut() = Some(error.to_string());
                Ok(())
            }
            other => other.map_err(|error| error.to_string()),
        }
    });
}

/// Whether a server may have been out of reach.
fn excused(reach: &Reach, error: String) -> Result<(), String> {
    if reach.is_troubled() { Ok(()) } else { Err(error) }
}

/// Whether a device may be refused so: by itself, by a race, or because requests to it are late (C16).
fn joined(disk: &SimDisk, is_sick: bool, error: CommandError) -> Result<(), String> {
    match error {
        CommandError::Io(IoError::MembershipChanged)
        | CommandError::NotTakenIn(_)
        | CommandError::RequestsUnderWay { .. }
        | CommandError::AlreadyMember(_)
        | CommandError::Copy { .. } => Ok(()),
        CommandError::Device { .. } if is_sick || disk.is_gone() || disk.is_hung() => Ok(()),
        error => Err(error.to_string()),
    }
}
