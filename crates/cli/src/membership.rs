//! The commands that change the members of a served array: `fail`, `add`, `remove`, `replace`; and its
//! bitmap: `grow`.

use std::{path::Path, thread};

use clap::ValueEnum;
use pinstripe_bench::BitmapChoice;
use pinstripe_config::{Configuration, is_server};
use pinstripe_control::{
    AddParameters, AddResult, BitmapParameters, Detail, DeviceResult, GrowParameters, JournalModeParameters,
    MemberName, ReplaceParameters,
    client::Client,
    detail::{Failed, Member},
    text::printable,
};
use pinstripe_engine::options::JournalMode;
use pinstripe_runtime::uring::{path_of, persistent_path};

use crate::{
    assemble::{allows, searched},
    command_line::{AddArguments, FailArguments, GrowArguments, RemoveArguments, ReplaceArguments},
    failure::Failure,
    joined, member, output, patience,
    progress::{LOOK, bar, show},
    steer::fetch,
};

/// What the server does meanwhile.
const TAKES_OUT: &str = "which writes the superblocks and waits for the member's requests";
/// What `remove` calls all faulty devices.
const FAILED: &str = "failed";
/// The state of a slot without its member.
const MISSING: &str = "missing";
const CHANGES: &str = "which writes the superblocks";

pub fn fail(arguments: &FailArguments) -> Result<(), Failure> {
    let which = member_name(&arguments.what)?;
    let mut client = Client::connect(&arguments.array.array)?;
    let result: DeviceResult = patience::work(&mut client, "fail", which, TAKES_OUT)?;
    if arguments.json {
        return output::print_json(&result);
    }
    let name = printable(&result.device);
    output::print(&match result.slot {
        Some(slot) => format!("the member in slot {slot} ({name}) was taken out\n"),
        None => format!(
            "the journal ({name}) was taken out: the array is read-only until it is stopped and served with --force, which resyncs it\n"
        ),
    })
}

pub fn add(arguments: &AddArguments) -> Result<(), Failure> {
    let device = device(&arguments.device)?;
    let mut client = Client::connect(&arguments.array.array)?;
    let joins = device.clone();
    let parameters = AddParameters { device, force: arguments.force, spare_of: None };
    let result: AddResult = patience::work(
        &mut client,
        "add",
        parameters,
        "which looks at the device and writes its superblock",
    )?;
    if let (true, Some(slot)) = (arguments.wait, result.slot) {
        wait_until_whole(&mut client, slot, arguments.json)?;
    }
    if arguments.json {
        output::print_json(&result)?;
        warn_if_unfound(&mut client, &joins);
        return Ok(());
    }
    let name = arguments.device.display();
    output::print(&match (result.slot, result.recovery.as_str(), arguments.wait) {
        (None, ..) => format!("{name} is a spare\n"),
        (Some(slot), "bitmap", false) => {
            format!("{name} is back in slot {slot} and gets what was dirtied while it was away\n")
        }
        (Some(slot), "bitmap", true) => {
            format!("{name} is back in slot {slot} and has got what was dirtied while it was away\n")
        }
        (Some(slot), _, false) => format!("{name} is in slot {slot} and is being rebuilt\n"),
        (Some(slot), _, true) => format!("{name} is in slot {slot} and is rebuilt\n"),
    })?;
    warn_if_unfound(&mut client, &joins);
    Ok(())
}

pub fn remove(arguments: &RemoveArguments) -> Result<(), Failure> {
    if arguments.what == Path::new(FAILED) {
        return remove_failed(arguments);
    }
    let which = member_name(&arguments.what)?;
    let mut client = Client::connect(&arguments.array.array)?;
    let result: DeviceResult = patience::work(&mut client, "remove", which, TAKES_OUT)?;
    if arguments.json {
        return output::print_json(&result);
    }
    output::print(&format!("{} is out of the array\n", printable(&result.device)))
}

/// Takes all faulty devices out. By their slots: another device may have the name of one that is gone.
fn remove_failed(arguments: &RemoveArguments) -> Result<(), Failure> {
    let mut client = Client::connect(&arguments.array.array)?;
    let detail: Detail = fetch(&mut client)?;
    let mut removed = Vec::new();
    let (awaited, failed): (Vec<_>, Vec<_>) = detail.failed.into_iter().partition(is_awaited);
    for awaited in &awaited {
        let device = printable(&awaited.device);
        output::remark(&format!("{device} waits for its server, and stays: name it to have it removed"));
    }
    for failed in failed {
        let slot = failed.slot.and_then(|slot| u16::try_from(slot).ok());
        let which = slot.map_or(MemberName::Device(failed.device), MemberName::Slot);
        let result: DeviceResult = patience::work(&mut client, "remove", which, TAKES_OUT)?;
        if !arguments.json {
            output::print(&format!("{} is out of the array\n", printable(&result.device)))?;
        }
        removed.push(result);
    }
    if arguments.json {
        return output::print_json(&removed);
    }
    if removed.is_empty() && awaited.is_empty() {
        return output::print("no device of the array is faulty\n");
    }
    Ok(())
}

/// Whether it comes back with its server.
fn is_awaited(failed: &Failed) -> bool {
    failed.reconnecting.as_ref().is_some_and(|reconnecting| !reconnecting.given_up)
}

pub fn replace(arguments: &ReplaceArguments) -> Result<(), Failure> {
    let with = arguments.with.as_deref().map(device).transpose()?;
    let (slot, device) = match member_name(&arguments.what)? {
        MemberName::Slot(slot) => (Some(slot), None),
        MemberName::Device(device) => (None, Some(device)),
        MemberName::Journal(_) => {
            return Err(Failure::usage("a journal is not replaced while its array is served"));
        }
    };
    let mut client = Client::connect(&arguments.array.array)?;
    let parameters = ReplaceParameters { slot, device, with, force: arguments.force };
    let result: DeviceResult = patience::work(
        &mut client,
        "replace",
        parameters,
        "which looks at the device and writes its superblock",
    )?;
    let slot = result.slot.unwrap_or_default();
    if arguments.wait {
        wait_until_replaced(&mut client, slot, &result.device, arguments.json)?;
    }
    if arguments.json {
        output::print_json(&result)?;
        warn_if_unfound(&mut client, &result.device);
        return Ok(());
    }
    let name = printable(&result.device);
    output::print(&if arguments.wait {
        format!("{name} has taken slot {slot}; the member that was there can be removed\n")
    } else {
        format!("slot {slot} is being copied to {name}, and its member stays in use until that is done\n")
    })?;
    warn_if_unfound(&mut client, &result.device);
    Ok(())
}

/// Warns where the configuration has an entry of the array that does not lead to a device which has joined:
/// a start finds that only as long as this machine has what its server keeps.
fn warn_if_unfound(client: &mut Client, device: &str) {
    let (Ok(configuration), Ok(detail)) = (Configuration::load(None), fetch(client)) else { return };
    let Ok(uuid) = detail.uuid.parse() else { return };
    let name = if detail.full_name.is_empty() { &detail.name } else { &detail.full_name };
    let mut entries = configuration.arrays.iter().filter(|entry| entry.is(uuid, name));
    let Some(entry) = entries.next() else { return };
    let is_found = match searched(&configuration, entry) {
        Some(names) if is_server(device) => names.iter().any(|name| name == device),
        None if is_server(device) => false,
        _ => allows(&configuration, entry, Path::new(device)),
    };
    if !is_found {
        let what = if entry.members.is_empty() && !is_server(device) {
            "\"devices\" of [scan]".to_owned()
        } else {
            format!("\"members\" of the [[array]] in {}", entry.place)
        };
        output::remark(&format!(
            "pinstripe: warning: {what} does not lead to {}: add it there. Until then a start finds it by what is kept in {}",
            printable(device),
            joined::place(uuid).display()
        ));
    }
}

pub fn grow(arguments: &GrowArguments) -> Result<(), Failure> {
    if let Some(policy) = arguments.consistency_policy.and_then(|policy| policy.to_possible_value()) {
        let parameters = GrowParameters { consistency_policy: policy.get_name().to_owned() };
        let mut client = Client::connect(&arguments.array.array)?;
        let result: GrowParameters = patience::work(&mut client, "grow", parameters, CHANGES)?;
        if arguments.json {
            return output::print_json(&result);
        }
        return output::print(&format!("the consistency policy is {}\n", result.consistency_policy));
    }
    if let Some(mode) = arguments.journal_mode {
        let parameters = JournalModeParameters { journal_mode: JournalMode::from(mode).name().to_owned() };
        let mut client = Client::connect(&arguments.array.array)?;
        let doing = "which writes what only the journal has to the members";
        let result: JournalModeParameters = patience::work(&mut client, "journal_mode", parameters, doing)?;
        if arguments.json {
            return output::print_json(&result);
        }
        return output::print(&format!("the journal's mode is {}\n", result.journal_mode));
    }
    let internal = arguments.bitmap == Some(BitmapChoice::Internal);
    if !internal && arguments.bitmap_chunk.is_some() {
        return Err(Failure::usage("--bitmap-chunk goes with --bitmap=internal only".to_owned()));
    }
    let chunk_bytes = arguments.bitmap_chunk.map(|size| size.0);
    let mut client = Client::connect(&arguments.array.array)?;
    let parameters = BitmapParameters { internal, chunk_bytes };
    patience::work::<()>(&mut client, "bitmap", parameters, CHANGES)?;
    let detail = fetch(&mut client)?;
    if arguments.json {
        return output::print_json(&detail.bitmap);
    }
    output::print(&format!("bitmap: {}\n", detail.bitmap_words()))
}

/// A member as the user names it. A device with a number or such a word as its name needs a `./` before it.
fn member_name(what: &Path) -> Result<MemberName, Failure> {
    Ok(match what.to_str() {
        Some("journal") => MemberName::Journal(true),
        Some(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
            let slot = text.parse().map_err(|_| Failure::usage(format!("there is no slot {text}")))?;
            MemberName::Slot(slot)
        }
        _ => MemberName::Device(device(what)?),
    })
}

/// A device as the server, which may have another folder of its own, knows it.
fn device(path: &Path) -> Result<String, Failure> {
    let is_memory = path.to_string_lossy().starts_with("mem:");
    let as_given = is_memory || member::address(path).transpose()?.is_some();
    let (plain, is_persistent) = path_of(path);
    let absolute = match (as_given, is_persistent) {
        (true, _) => path.to_owned(),
        (_, true) => persistent_path(&std::path::absolute(plain)?),
        _ => std::path::absolute(path)?,
    };
    absolute.to_str().map(ToOwned::to_owned).ok_or_else(|| {
        Failure::new(format!("{}: a path that is no UTF-8 can't be sent to the server", path.display()))
    })
}

/// Waits until the device that was just put into `slot` has everything. If another one is there later, its
/// rebuild has failed.
fn wait_until_whole(client: &mut Client, slot: usize, quiet: bool) -> Result<(), Failure> {
    let bar = bar(quiet);
    let mut device = None;
    loop {
        let detail = fetch(client)?;
        match state_of(detail.members.get(slot), &mut device) {
            "in-sync" | "resyncing" => break,
            "recovering" => show(&bar, detail.sync.as_ref()),
            _ => {
                bar.finish_and_clear();
                let why =
                    detail.errors.last().cloned().unwrap_or_else(|| "see `pinstripe detail`".to_owned());
                return Err(Failure::new(format!("the rebuild of slot {slot} failed: {why}")));
            }
        }
        thread::sleep(LOOK);
    }
    bar.finish_and_clear();
    Ok(())
}

/// The state of the device that was in a slot at the first look.
fn state_of<'a>(member: Option<&'a Member>, device: &mut Option<String>) -> &'a str {
    let Some(member) = member else { return MISSING };
    let first = device.get_or_insert_with(|| member.device.clone().unwrap_or_default());
    if member.device.as_ref() == Some(first) { &member.state } else { MISSING }
}

/// Waits until `device` holds `slot`.
fn wait_until_replaced(client: &mut Client, slot: usize, device: &str, quiet: bool) -> Result<(), Failure> {
    let bar = bar(quiet);
    loop {
        let detail = fetch(client)?;
        let member = detail.members.get(slot);
        if member.is_some_and(|m| m.device.as_deref() == Some(device) && m.is_whole()) {
            break;
        }
        let holds = |member: &Member| {
            [&member.device, &member.replacement].iter().any(|name| name.as_deref() == Some(device))
        };
        if !member.is_some_and(holds) {
            bar.finish_and_clear();
            let why = detail.errors.last().cloned().unwrap_or_else(|| "see `pinstripe detail`".to_owned());
            return Err(Failure::new(format!("slot {slot} was not replaced: {why}")));
        }
        show(&bar, detail.sync.as_ref());
        thread::sleep(LOOK);
    }
    bar.finish_and_clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_member_that_only_waits_for_its_server_is_not_removed_with_the_faulty_ones() {
        let failed = |reconnecting: serde_json::Value| -> Failed {
            serde_json::from_value(json!({
                "slot": 1, "device": "/dev/x", "error": "gone", "late_requests": 0,
                "reconnecting": reconnecting, "gone": true, "statistics": {},
            }))
            .unwrap()
        };
        let waits = |given_up: bool| json!({ "tries": 1, "trouble": "", "given_up": given_up });
        assert!(is_awaited(&failed(waits(false))));
        assert!(!is_awaited(&failed(waits(true))) && !is_awaited(&failed(json!(null))));
    }

    #[test]
    fn another_device_that_takes_the_slot_is_no_success_of_the_one_that_was_added() {
        let member = |device: Option<&str>, state: &str| -> Member {
            serde_json::from_value(json!({
                "slot": 1, "state": state, "device": device, "read_latency_ns": 0, "write_latency_ns": 0,
                "slow": false, "late_requests": 0, "bad_sectors": 0, "statistics": {},
            }))
            .unwrap()
        };
        let mut device = None;
        let mut state = |now: &Member| state_of(Some(now), &mut device).to_owned();
        assert_eq!(state(&member(Some("/dev/new"), "recovering")), "recovering");
        assert_eq!(state(&member(Some("/dev/new"), "in-sync")), "in-sync");
        assert_eq!(state(&member(Some("/dev/spare"), "in-sync")), "missing");
        assert_eq!(state(&member(None, "missing")), "missing");
        assert_eq!(state_of(None, &mut None), "missing");
    }
}
