//! What comes of the superblocks that were read: the array, its members by slot, and whether it may be
//! served. Pure.

use pinstripe_md::{
    superblock::{ResyncOffset, Role, Superblock, event_is_current},
    units::{Sector, SectorCount},
};

use super::{
    AssembleError, Assembled, Found, array_words, disown_journal, disowned, freshest, geometry, is_whole,
    seat, stale_member, support, take_journal, too_few_left,
};
use crate::{
    assembly::{OldLog, newly_degraded},
    consistency::{self, Log},
    mutants::{Mutant, active},
    options::ArrayOptions,
};

/// What comes of the superblocks, without the bitmap.
pub(crate) fn decide(mut found: Vec<Found>, options: &ArrayOptions) -> Result<Assembled, AssembleError> {
    let left_behind = disowned::set_aside(&mut found);
    let mut freshest = freshest(&found).map_err(|error| too_few_left(error, &left_behind))?;
    check_expected(&found, options)?;
    let read_only = support(&freshest, &found)?;
    check_distinct(&freshest, &found)?;
    check_room(&freshest, &found)?;
    let devices = found.iter().map(|member| (&member.superblock, member.device.info().logical_block));
    let geometry = geometry(&freshest, devices.collect(), options)?;
    let journal = take_journal(&freshest, &mut found, options.force)?;
    let journal_left_out = freshest.array.journal && journal.is_none();
    if journal_left_out {
        disown_journal(&mut freshest);
    }
    let mut seated = seat(&freshest, found, geometry.members())?;
    let left_out = std::mem::take(&mut seated.given_up);
    seated.stale.extend(left_behind.iter().map(|member| stale_member(member, freshest.array.events)));
    let missing = seated.seats.iter().filter(|seat| !seat.as_ref().is_some_and(is_whole)).count();
    if missing > geometry.redundancy() {
        let stale = seated.stale;
        let (present, needed, redundancy) =
            (geometry.members() - missing, geometry.members(), geometry.redundancy());
        return Err(AssembleError::TooFewMembers { present, needed, redundancy, stale });
    }
    let dirty_from = match freshest.array.resync_offset {
        // What was being written when the journal went may be half on the members.
        _ if journal_left_out => Some(Sector(0)),
        ResyncOffset::DirtyFrom(sector) if geometry.redundancy() > 0 => Some(sector),
        _ => None,
    };
    let refused = dirty_from.is_some() && missing > 0 && !consistency::is_logged(&freshest);
    if refused && !options.force && !active(Mutant::DirtyDegradedStarted) {
        return Err(AssembleError::DirtyDegraded { missing });
    }
    newly_degraded::check(&freshest.array, &seated, options)?;
    // Forced: what parity says is taken for true, as mdadm does. Where a second parity is left that may
    // disagree, it is still to be resynced.
    let forced = dirty_from.is_some() && missing > 0;
    let dirty_from = dirty_from.filter(|_| missing < geometry.redundancy());
    Ok(Assembled {
        geometry,
        seated,
        freshest,
        journal,
        bitmap: None,
        read_only,
        dirty_from,
        journal_left_out,
        left_out,
        forced,
        log: Log::None,
        old_log: OldLog::Silent,
        refused: Vec::new(),
        epoch: 0,
        attached: Vec::new(),
    })
}

/// Devices are called otherwise than before, and an array's options must not serve another one.
fn check_expected(found: &[Found], options: &ArrayOptions) -> Result<(), AssembleError> {
    let Some(wanted) = options.expected else { return Ok(()) };
    match found.iter().find(|member| member.superblock.array.set_uuid != wanted) {
        None => Ok(()),
        Some(member) => Err(AssembleError::NotWanted {
            name: member.device.info().name.clone(),
            array: array_words(&member.superblock),
            wanted,
        }),
    }
}

/// No two devices are one, each as recent as the other: of a journal, as of a spare that has taken a slot
/// since, the one may lack what the other has. A copy that is out of date is left out.
fn check_distinct(freshest: &Superblock, found: &[Found]) -> Result<(), AssembleError> {
    let counts = |member: &&Found| {
        let superblock = &member.superblock;
        event_is_current(freshest.array.events, superblock.array.events)
            && superblock.role_in(&freshest.array) != Role::Faulty
    };
    let mut seen: Vec<&Found> = Vec::new();
    for member in found.iter().filter(counts) {
        let identity = member.superblock.member.device_uuid;
        if let Some(other) = seen.iter().find(|other| other.superblock.member.device_uuid == identity) {
            let name = |member: &Found| member.device.info().name.clone();
            return Err(AssembleError::Duplicate { first: name(other), second: name(member) });
        }
        seen.push(member);
    }
    Ok(())
}

/// Each current member must have what the freshest superblock says that the array uses of it: that is no
/// word of the member's own.
fn check_room(freshest: &Superblock, found: &[Found]) -> Result<(), AssembleError> {
    let array = &freshest.array;
    let used = if array.level.has_parity() { array.component_sectors() } else { SectorCount(0) };
    let is_short = |member: &&Found| {
        let superblock = &member.superblock;
        matches!(superblock.role_in(array), Role::Slot(_))
            && event_is_current(array.events, superblock.array.events)
            && superblock.member.data_size < used
    };
    match found.iter().find(is_short) {
        None => Ok(()),
        Some(member) => Err(AssembleError::MemberTooSmall {
            name: member.device.info().name.clone(),
            sectors: member.superblock.member.data_size,
            used,
        }),
    }
}
