//! Whether an array can be stopped and started again as it is, by this program or another one.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use pinstripe_control::text::printable;
use pinstripe_engine::{array::Array, status::detail::Detail};
use pinstripe_runtime::uring::{inheritance, path_of};

use crate::member;

/// The devices of the array that hold what it needs, by name.
pub fn devices(array: &Array) -> Vec<String> {
    let detail = array.detail();
    let of_slots = detail.slots.into_iter().flat_map(|slot| [slot.device, slot.replacement]).flatten();
    let journal = detail.journal.filter(|journal| !journal.failed).map(|journal| journal.device);
    let all: BTreeSet<String> = of_slots.chain(detail.spares).chain(journal).collect();
    all.into_iter().collect()
}

/// Why it couldn't be started again. A server goes on with arrays that no start takes.
pub fn refuse(detail: &Detail) -> Result<(), String> {
    let late = |requests: u64, device: &str| {
        (requests > 0).then(|| {
            format!(
                "{} does not answer, and its {requests} requests would keep the process waiting",
                printable(device)
            )
        })
    };
    let of_slots = detail.slots.iter().filter_map(|slot| late(slot.late_requests, slot.device.as_deref()?));
    let of_failed = detail.failed.iter().filter_map(|failed| late(failed.late_requests, &failed.device));
    if let Some(why) = of_slots.chain(of_failed).next() {
        return Err(why);
    }
    if detail.state == "failed" || detail.level == 0 && detail.missing > 0 {
        return Err("the array has failed: stop it, and start it when its members are there again".to_owned());
    }
    if detail.journal.as_ref().is_some_and(|journal| journal.failed) {
        return Err("the array has lost its journal: stop it, and start it with --force".to_owned());
    }
    let is_logged = matches!(detail.consistency_policy, "ppl" | "double-parity-log");
    if detail.missing > 0 && detail.regions_to_resync > 0 && !is_logged && detail.state != "read-only" {
        return Err(
            "a member is missing, and parity isn't in sync everywhere: a start would be refused".to_owned()
        );
    }
    Ok(())
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
