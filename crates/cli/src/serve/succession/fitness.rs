//! Whether an array can be stopped and started again as it is, by this program or another one.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use pinstripe_control::text::printable;
use pinstripe_engine::{
    array::Array,
    status::detail::{Detail, SlotDetail},
};
use pinstripe_runtime::uring::{inheritance, path_of};

use crate::member;

/// The devices of the array that hold what it needs, by name.
pub fn devices(array: &Array) -> Vec<String> {
    let detail = array.detail();
    let of_slots = detail.slots.into_iter().flat_map(|slot| [slot.device, slot.replacement]).flatten();
    let journal = detail.journal.filter(|journal| !journal.failed).map(|journal| journal.device);
    let unusable = detail.unusable_spares.into_iter().map(|spare| spare.device);
    let all: BTreeSet<String> = of_slots.chain(detail.spares).chain(unusable).chain(journal).collect();
    all.into_iter().collect()
}

/// A device that this process has open although the array doesn't need it: one that is about to join, or that
/// requests keep open which are not over, whether it joined and was removed or never did.
pub fn beside(array: &Array) -> Option<String> {
    let needed = devices(array);
    inheritance::still_open().into_iter().find(|name| !needed.contains(name))
}

/// Why it couldn't be started again. A server goes on with arrays that no start takes.
pub fn refuse(detail: &Detail) -> Result<(), String> {
    if let Some(why) = late(detail).or_else(|| slow(detail)) {
        return Err(why);
    }
    if let Some(why) = detail.slots.iter().find_map(lost_flush) {
        return Err(format!(
            "{why}, and clients that another program went on with would take it for durable: stop the array, look at that device, and start \
             the array again"
        ));
    }
    if detail.state == "failed" || detail.level == 0 && detail.missing > 0 {
        return Err("the array has failed: stop it, and start it when its members are there again".to_owned());
    }
    if detail.journal.as_ref().is_some_and(|journal| journal.failed) {
        return Err("the array has lost its journal: stop it, and start it with --force".to_owned());
    }
    // Also with a log, which isn't in use before all is in sync (C17).
    if detail.missing > 0 && detail.regions_to_resync > 0 && detail.state != "read-only" {
        return Err(
            "a member is missing, and parity isn't in sync everywhere: a start would be refused".to_owned()
        );
    }
    Ok(())
}

/// Why clients aren't handed on although the array has stopped. The next program knows nothing of what was
/// lost, so a flush there would succeed (C5); and while requests don't end, it doesn't come. What ends a
/// connection is seen.
pub fn ends_clients(array: &Array) -> Option<String> {
    let detail = array.detail();
    let failed = || (detail.state == "failed").then(|| "the array has failed".to_owned());
    let beside = || Some(format!("{} does not answer", printable(&beside(array)?)));
    detail.slots.iter().find_map(lost_flush).or_else(failed).or_else(|| late(&detail)).or_else(beside)
}

/// The kernel ends no process with such requests, and changes none into another program.
fn late(detail: &Detail) -> Option<String> {
    let of_slots = detail.slots.iter().filter_map(|slot| Some((slot.device.as_deref()?, slot.late_requests)));
    let of_failed = detail.failed.iter().map(|failed| (&*failed.device, failed.late_requests));
    let (device, requests) = of_slots.chain(of_failed).find(|(_, requests)| *requests > 0)?;
    let device = printable(device);
    Some(format!("{device} does not answer, and its {requests} requests would keep the process waiting"))
}

/// What is slow now may be late before the program has changed.
fn slow(detail: &Detail) -> Option<String> {
    let journal = detail.journal.as_ref().filter(|journal| journal.slow);
    let device = detail.slots.iter().find_map(slow_member).or(journal.map(|journal| &*journal.device))?;
    Some(format!("{} is slow to answer: try again when it has answered, or was dropped", printable(device)))
}

fn slow_member(slot: &SlotDetail) -> Option<&str> {
    slot.device.as_deref().filter(|_| slot.slow)
}

fn lost_flush(slot: &SlotDetail) -> Option<String> {
    let device = slot.device.as_deref().filter(|_| slot.lost_flush)?;
    Some(format!("{} has lost what a flush was to make durable", printable(device)))
}

/// Refuses names under which the next program would find something else. Blocks.
pub fn check_names(devices: &[String]) -> Result<(), String> {
    let other = devices.iter().find(|name| {
        let path = Path::new(name);
        member::address(path).is_none() && !inheritance::holds(path_of(path).0)
    });
    other.map_or(Ok(()), |name| {
        let name = printable(name);
        Err(format!(
            "{name} is not the member that the array has open under this name, but another one or nothing: stop the array, and \
             start it with the names that hold now; nothing was changed"
        ))
    })
}

/// Refuses a program whose pages only this server could read. Blocks.
pub fn check_program(program: &Path, own: &[PathBuf]) -> Result<(), String> {
    if member::is_over(program, own) {
        return Err(format!(
            "{} lies on the array itself, which serves nothing while the program is read; nothing was changed",
            printable(&program.display().to_string())
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_that_has_lost_a_flush_is_named() {
        let slot =
            SlotDetail { device: Some("/dev/x".to_owned()), lost_flush: true, ..SlotDetail::default() };
        assert!(lost_flush(&slot).unwrap().contains("/dev/x"));
        assert_eq!(lost_flush(&SlotDetail { lost_flush: false, ..slot }), None);
    }

    #[test]
    fn a_member_that_is_slow_is_named() {
        let member = SlotDetail { device: Some("/dev/x".to_owned()), slow: true, ..SlotDetail::default() };
        assert_eq!(slow_member(&member), Some("/dev/x"));
        assert_eq!(slow_member(&SlotDetail { slow: false, ..member }), None);
    }
}
