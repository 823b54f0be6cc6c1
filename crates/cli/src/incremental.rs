//! `pinstripe incremental`: a device has appeared, as udev tells.
//!
//! It is taken into the array that it is a member of, if the configuration has that array. What isn't
//! configured is left alone, and that is no error: udev calls this for every device.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use pinstripe_config::{Array, Configuration};
use pinstripe_control::{AddParameters, AddResult, Detail, client::Client, text::printable};
use pinstripe_md::superblock::{Role, Superblock};
use pinstripe_runtime::uring::Storage;
use serde_json::{Value, json};

use crate::{
    assemble::{Outcome, Report, State, Way, allows, of_entry, settle},
    command_line::IncrementalArguments,
    configuration,
    failure::Failure,
    membership::device,
    output,
    scan::{Served, look_at, scan},
};

pub fn run(arguments: &IncrementalArguments) -> Result<(), Failure> {
    let configuration = configuration::load(arguments.configuration.config.as_deref())?;
    let said = take(&configuration, arguments)?;
    if arguments.json { output::print_json(&said.value) } else { output::print(&said.words) }
}

/// What was done, for people and for programs.
struct Said {
    words: String,
    value: Value,
}

impl Said {
    /// Nothing was done with the device, for a reason that is no failure.
    fn nothing(path: &Path, state: &str, why: &str) -> Self {
        let path = printable(&path.display().to_string());
        let why = printable(why);
        Self {
            words: format!("{path}: {why}\n"),
            value: json!({ "device": path, "state": state, "why": why }),
        }
    }
}

fn take(configuration: &Configuration, arguments: &IncrementalArguments) -> Result<Said, Failure> {
    let path = &arguments.device;
    let left = |why: &str| Ok(Said::nothing(path, "left-alone", why));
    let Some(candidate) = look_at(path)? else {
        return left("it holds no member of an array");
    };
    let superblock = match &candidate.superblock {
        Ok(superblock) => superblock,
        Err(error) => return left(&format!("its superblock can't be read: {error}")),
    };
    let (uuid, name) = (superblock.array.set_uuid, superblock.array.name.to_string());
    let mut entries = configuration.arrays.iter().filter(|entry| entry.is(uuid, &name));
    let entry = match (entries.next(), entries.next()) {
        (None, _) => return left(&format!("its array {name} ({uuid}) is not configured")),
        (Some(one), Some(other)) => {
            return Err(Failure::new(format!(
                "{}: the entries {} and {} are both of its array: keep one of them",
                path.display(),
                one.place,
                other.place
            )));
        }
        (Some(entry), None) => entry,
    };
    if !entry.auto {
        return left(&format!("its array {} has auto = false", entry.label()));
    }
    if !allows(configuration, entry, path) {
        return left(&format!("the configuration has members of {} elsewhere only", entry.label()));
    }
    match Served::all().0.into_iter().find(|served| served.is(uuid)) {
        Some(served) => put_back(&served, superblock, arguments),
        None => start(configuration, entry, arguments),
    }
}

/// Starts the array if this device was the last that it lacked.
fn start(
    configuration: &Configuration,
    entry: &Array,
    arguments: &IncrementalArguments,
) -> Result<Said, Failure> {
    let devices = if entry.members.is_empty() {
        configuration.scan.devices.as_deref()
    } else {
        Some(&entry.members[..])
    };
    let wanted = of_entry(entry, &scan(devices).arrays, &Served::all().0);
    let state = wanted.state();
    if let State::Late { why, .. } = &state {
        // Another device may complete it. How long to wait for that is not for this process to say.
        return Ok(Said::nothing(&arguments.device, "waiting", &format!("{} waits: {why}", entry.label())));
    }
    let way = Way {
        timeout: Duration::from_secs(arguments.timeout.into()),
        dry_run: arguments.dry_run,
        quiet: arguments.json,
    };
    let report = Report::new(&wanted, settle(&wanted, state, way));
    if let Outcome::NotStarted(why) = &report.outcome {
        return Err(Failure::new(format!("{} was not started: {why}", report.label)));
    }
    Ok(Said { words: report.in_words(), value: report.value() })
}

/// Adds a member that the array has lost. The server looks at it again, and decides whether the bitmap still
/// tells what it missed. Nothing is forced: what holds something else is refused.
fn put_back(
    served: &Served,
    superblock: &Superblock,
    arguments: &IncrementalArguments,
) -> Result<Said, Failure> {
    let (path, detail) = (&arguments.device, &served.detail);
    if let Some(why) = reason_to_leave(detail, superblock, path) {
        return Ok(Said::nothing(path, "left-alone", &why));
    }
    if arguments.dry_run {
        let why = format!("would be added to {}", detail.name);
        return Ok(Said::nothing(path, "would-add", &why));
    }
    let mut client = Client::connect(&served.control.to_string_lossy())?;
    let result: AddResult = client.call("add", AddParameters { device: device(path)?, force: false })?;
    let how = match (result.slot, result.recovery.as_str()) {
        (None, _) => "is a spare".to_owned(),
        (Some(slot), "bitmap") => {
            format!("is back in slot {slot} and gets what was dirtied while it was away")
        }
        (Some(slot), _) => format!("is in slot {slot} and is being rebuilt"),
    };
    let (shown, array) = (printable(&path.display().to_string()), printable(&detail.name));
    Ok(Said {
        words: format!("{array}: {shown} {how}\n"),
        value: json!({
            "device": shown, "state": "added", "array": array, "slot": result.slot, "recovery": result.recovery,
        }),
    })
}

/// Why a device is not to be added.
fn reason_to_leave(detail: &Detail, superblock: &Superblock, path: &Path) -> Option<String> {
    let name = &detail.name;
    let Ok(storage) = Storage::of(path) else { return Some("it has gone again".to_owned()) };
    let is_it = |device: &String| {
        let known = PathBuf::from(device);
        // A relative path is one from the server's folder, which only the server knows.
        known.is_absolute() && Storage::of(&known).is_ok_and(|other| other.overlaps(&storage))
    };
    let members = detail.members.iter().flat_map(|member| member.device.iter().chain(&member.replacement));
    let journal = detail.journal.iter().filter(|journal| !journal.failed).map(|journal| &journal.device);
    if members.chain(&detail.spares).chain(journal).any(is_it) {
        return Some(format!("{name} has it already"));
    }
    if detail.failed.iter().any(|failed| failed.by_command && is_it(&failed.device)) {
        return Some(format!("it was taken out of {name} by command: `pinstripe add` puts it back"));
    }
    match superblock.own_role() {
        Role::Slot(slot) => {
            let member = detail.members.get(usize::from(slot.0));
            let is_empty =
                member.is_some_and(|member| member.device.is_none() && member.replacement.is_none());
            (!is_empty).then(|| format!("it was in slot {slot} of {name}, which has another member now"))
        }
        Role::Spare | Role::Faulty | Role::Journal => {
            Some(format!("it is no member of {name} that is missing: `pinstripe add` makes it a spare"))
        }
    }
}
