//! The commands about maintenance: `check`, `repair`, `sync`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use pinstripe_control::{
    client::{Client, ClientError},
    detail::Sync,
    maintenance::{CheckParameters, CheckResult, RepairParameters, SyncParameters, SyncResult},
    size::ByteSize,
    text::printable,
};
use serde::Serialize;

use crate::{
    command_line::{CheckArguments, RepairArguments, SyncArguments},
    failure::Failure,
    output, patience,
    progress::{LOOK, bar, show},
    steer::fetch,
};

/// Places of corrections that are printed; JSON has them all.
const PLACES_MAX: usize = 20;

pub fn check(arguments: &CheckArguments) -> Result<(), Failure> {
    let parameters = CheckParameters { from: arguments.range.from, to: arguments.range.to };
    let result = scrub(&arguments.array.array, "check", parameters, arguments.json)?;
    print(&result, arguments.json, false)?;
    let matches = result.mismatched_sectors == 0 && result.unreadable_stripes == 0;
    if matches && result.complete { Ok(()) } else { Err(Failure::said()) }
}

pub fn repair(arguments: &RepairArguments) -> Result<(), Failure> {
    let RepairArguments { range, locate, json, .. } = *arguments;
    let parameters = RepairParameters { from: range.from, to: range.to, locate };
    let result = scrub(&arguments.array.array, "repair", parameters, json)?;
    print(&result, json, true)?;
    let is_right = result.unexplained_sectors == 0 && result.unreadable_stripes == 0;
    if is_right && result.complete { Ok(()) } else { Err(Failure::said()) }
}

/// Has the server do it, and shows how far it is.
fn scrub(
    array: &str,
    method: &str,
    parameters: impl Serialize,
    quiet: bool,
) -> Result<CheckResult, ClientError> {
    let mut client = Client::connect(array)?;
    let ended = Arc::new(AtomicBool::new(false));
    let watch = thread::spawn({
        let (array, ended) = (array.to_owned(), Arc::clone(&ended));
        move || watch(&array, &ended, quiet)
    });
    // The bar says how far it is, where there is one.
    let doing = if bar(quiet).is_hidden() {
        "which reads all of the array: `pinstripe detail` shows how far"
    } else {
        ""
    };
    let result = patience::work(&mut client, method, parameters, doing);
    ended.store(true, Ordering::SeqCst);
    // Progress is for the eye: how it ended is known here.
    let _ = watch.join();
    result
}

/// Shows how far it is, over a connection of its own.
fn watch(array: &str, ended: &AtomicBool, quiet: bool) {
    let bar = bar(quiet);
    if bar.is_hidden() {
        return;
    }
    if let Ok(mut client) = Client::connect(array) {
        while !ended.load(Ordering::SeqCst) {
            let Ok(detail) = fetch(&mut client) else { break };
            show(&bar, detail.sync.as_ref());
            thread::sleep(LOOK);
        }
    }
    bar.finish_and_clear();
}

fn print(result: &CheckResult, json: bool, repaired: bool) -> Result<(), Failure> {
    if json { output::print_json(result) } else { output::print(&words(result, repaired)) }
}

fn words(result: &CheckResult, repaired: bool) -> String {
    let located = result.corrected_sectors + result.unexplained_sectors > 0;
    let stopped = match result.next_sector.filter(|_| !result.complete) {
        Some(sector) => format!(
            "stopped before sector {sector} of each member's data, where `--from {sector}` goes on; until there, "
        ),
        None if result.complete => String::new(),
        None => "stopped before its end; ".to_owned(),
    };
    let parity = match result.mismatched_sectors {
        0 => {
            let is_all = result.uncompared_stripes + result.unreadable_stripes == 0;
            let compared = if is_all { "everywhere" } else { "where it could be compared" };
            format!("{stopped}{} stripes: parity matches {compared}\n", result.stripes)
        }
        sectors => {
            let verb = if repaired { "did" } else { "does" };
            let done = if repaired && !located { "; it was made from data there" } else { "" };
            format!(
                "{stopped}{} stripes: parity {verb} not match in {sectors} sectors{done}\n",
                result.stripes
            )
        }
    };
    let mut lines = vec![parity];
    for place in result.corrected.iter().take(PLACES_MAX) {
        let (device, last) = (printable(&place.device), place.sector + place.sectors - 1);
        lines
            .push(format!("corrected: slot {} ({device}), sectors {} to {last}\n", place.slot, place.sector));
    }
    if result.corrected.len() > PLACES_MAX {
        lines.push(format!("and {} places more: see --json\n", result.corrected.len() - PLACES_MAX));
    }
    if result.corrected_sectors > 0 {
        lines.push(format!("{} sectors were corrected\n", result.corrected_sectors));
    }
    if result.unexplained_sectors > 0 {
        lines.push(format!(
            "{} sectors were left as they are: no single member explains them; `repair` without --locate makes parity from data\n",
            result.unexplained_sectors
        ));
    }
    if result.unreadable_stripes > 0 {
        lines.push(format!("{} stripes could not be read whole\n", result.unreadable_stripes));
    }
    if result.uncompared_stripes > 0 {
        lines.push(format!(
            "{} stripes could not be compared: without the members that are missing there is no parity to compare\n",
            result.uncompared_stripes
        ));
    }
    lines.concat()
}

pub fn sync(arguments: &SyncArguments) -> Result<(), Failure> {
    let mut client = Client::connect(&arguments.array.array)?;
    let parameters = SyncParameters {
        action: arguments.action.map(Into::into),
        speed_min_kib: arguments.speed_min,
        speed_max_kib: arguments.speed_max,
    };
    let result: SyncResult = patience::ask(&mut client, "sync", parameters)?;
    if arguments.json {
        return output::print_json(&result);
    }
    let state = if result.paused { "paused" } else { "nothing under way" };
    let under_way = result.sync.as_ref().map_or_else(|| state.to_owned(), Sync::in_words);
    let (min, max) = (ByteSize(result.speed_min_kib * 1024), ByteSize(result.speed_max_kib * 1024));
    output::print(&format!("{under_way}\nspeed per member: at least {min}/s, at most {max}/s\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_compared_does_not_match_everywhere() {
        let whole = CheckResult {
            stripes: 96,
            mismatched_sectors: 0,
            unreadable_stripes: 0,
            uncompared_stripes: 0,
            corrected_sectors: 0,
            unexplained_sectors: 0,
            corrected: Vec::new(),
            complete: true,
            next_sector: None,
        };
        assert_eq!(words(&whole, false), "96 stripes: parity matches everywhere\n");
        let uncompared = CheckResult { uncompared_stripes: 90, ..whole.clone() };
        for (result, count) in [(uncompared, 90), (CheckResult { unreadable_stripes: 3, ..whole }, 3)] {
            let told = words(&result, false);
            let expected = format!("96 stripes: parity matches where it could be compared\n{count} stripes");
            assert!(told.starts_with(&expected), "{told}");
        }
    }
}
