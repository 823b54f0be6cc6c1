//! A start without members that were there the last time.
//!
//! Such a start is harmless in itself, but what it writes leaves the missing members behind: a device that
//! was forgotten, or that came late, is out of date from then on. So it must be meant.

use pinstripe_md::{
    superblock::ArrayRecord,
    units::{DeviceNumber, MemberSlot},
};

use crate::{
    assembly::{AssembleError, Found, FoundMembers},
    options::ArrayOptions,
};

/// An error if members would be left behind, and the options don't say that this is meant.
pub(crate) fn check(
    array: &ArrayRecord,
    seated: &FoundMembers,
    options: &ArrayOptions,
) -> Result<(), AssembleError> {
    let slots = slots(array, seated);
    if slots.is_empty() || options.newly_degraded || options.force || options.read_only {
        return Ok(());
    }
    Err(AssembleError::NewlyDegraded { slots, stale: seated.stale.clone() })
}

/// The slots without a whole member for which the superblocks name a device that isn't here.
fn slots(array: &ArrayRecord, seated: &FoundMembers) -> Vec<usize> {
    let is_whole = |member: &Found| member.superblock.member.recovery_offset.is_none();
    let members =
        || seated.seats.iter().flatten().chain(seated.replacements.iter().map(|(_, target)| target));
    let is_here =
        |number: DeviceNumber| members().any(|member| member.superblock.member.dev_number == number);
    let is_missed = |slot: usize| {
        let Ok(number) = u16::try_from(slot) else { return false };
        array.devices_in(MemberSlot(number)).any(|device| !is_here(device))
    };
    let vacant = seated.seats.iter().enumerate().filter(|(_, seat)| !seat.as_ref().is_some_and(is_whole));
    vacant.map(|(slot, _)| slot).filter(|slot| is_missed(*slot)).collect()
}

/// The slots, for a sentence.
pub(crate) fn words(slots: &[usize]) -> String {
    let numbers: Vec<String> = slots.iter().map(ToString::to_string).collect();
    format!("{} {}", if slots.len() == 1 { "slot" } else { "slots" }, numbers.join(", "))
}
