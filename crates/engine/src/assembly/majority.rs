//! Whether so many members are here that no other host can have an array without them (C23).
//!
//! A host that is cut off from some servers drops their members, as many as redundancy allows, and goes on
//! with the rest. The servers that it doesn't reach see it go, and let in the next host that comes. So if
//! that one finds half of a RAID6 of four, each of the two would have an array. It needs more than half of
//! the slots for which the superblocks name a device: for a member that was dropped they name none, on every
//! member that the array has gone on with, and the others are too few to begin. A slot that is being copied
//! to another device counts if both are here, for either may be the one that an array has gone on with.

use pinstripe_md::{
    superblock::event_is_current,
    units::{DeviceNumber, MemberSlot},
};

use super::{Found, disowned, freshest};
use crate::{offload::fence::FenceError, options::ArrayOptions};

/// An error if another host may have an array with what isn't here: over members of this machine no other
/// host has a say. With `force` a person knows that none does.
pub(super) fn check(found: &[Found], options: &ArrayOptions) -> Result<(), FenceError> {
    let has_servers = found.iter().any(|member| member.device.offload().is_some());
    if options.force || !(has_servers || options.takeover) {
        return Ok(());
    }
    let mut found = found.to_vec();
    disowned::set_aside(&mut found);
    // What is wrong with them otherwise is decided later.
    let Ok(freshest) = freshest(&found) else { return Ok(()) };
    let array = freshest.array;
    let is_current = |member: &&Found| event_is_current(array.events, member.superblock.array.events);
    let here: Vec<DeviceNumber> =
        found.iter().filter(is_current).map(|member| member.superblock.member.dev_number).collect();
    let (mut present, mut members) = (0, 0);
    for slot in (0..u16::MAX).take_while(|slot| u32::from(*slot) < array.raid_disks) {
        let mut devices = array.devices_in(MemberSlot(slot)).peekable();
        members += usize::from(devices.peek().is_some());
        present += usize::from(devices.peek().is_some() && devices.all(|device| here.contains(&device)));
    }
    if 2 * present > members { Ok(()) } else { Err(FenceError::TooFew { present, members }) }
}
