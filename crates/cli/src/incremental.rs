//! `pinstripe incremental`: a device has appeared, as udev tells.
//!
//! If it completes an array that the configuration has, that is started. What isn't configured is left alone,
//! and that is no error: udev calls this for every device.

use std::{
    env,
    path::{Path, PathBuf},
};

use pinstripe_config::{Array, Configuration, Usable};
use pinstripe_control::{place, text::printable};
use pinstripe_md::{identity::Uuid, superblock::Superblock};
use pinstripe_runtime::uring::readable_path;
use serde_json::{Value, json};

use crate::{
    ask_daemon,
    assemble::{Outcome, Report, State, Way, allows, of_one, settle},
    block_users::disk_of,
    command_line::IncrementalArguments,
    configuration,
    failure::Failure,
    joined, output,
    scan::{Served, look_at},
};

pub fn run(arguments: &IncrementalArguments) -> Result<(), Failure> {
    let main = arguments.start.configuration.config.as_deref();
    if arguments.export {
        // What is wrong, be it in another array's entry or for all, must not leave this one to mdadm.
        let (usable, problems) = match configuration::load_usable(main) {
            Ok(usable) => (usable, None),
            Err(problems) => (nothing_right(main), Some(problems)),
        };
        let told = export(&usable, &arguments.device)?;
        return match problems {
            // The rules go by what they were told before, then: the array may stand in what can't be read.
            Some(problems) if told.is_empty() => Err(problems.into()),
            _ => output::print(&told),
        };
    }
    let configuration = configuration::load(main)?;
    let said = take(&configuration, arguments)?;
    if arguments.start.json { output::print_json(&said.value) } else { output::print(&said.words) }
}

/// The configuration with errors that may be about any array: none has a unit.
fn nothing_right(main: Option<&Path>) -> Usable {
    let configuration = Configuration::known(main);
    let wrong = configuration.arrays.iter().map(|entry| entry.place.clone()).collect();
    Usable { configuration, wrong, is_daemon_wrong: true, problems: Vec::new() }
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

/// The array that a device is a member of.
struct Owner<'a> {
    uuid: Uuid,
    name: String,
    /// Its entries in the configuration: one, or all of them are wrong.
    entries: Vec<&'a Array>,
}

/// The array that a device belongs to, or why it is of none.
fn array_of<'a>(configuration: &'a Configuration, path: &Path) -> Result<Result<Owner<'a>, String>, Failure> {
    let left = |why: &str| Ok(Err(why.to_owned()));
    let Some(candidate) = look_at(path)? else {
        return left("it holds no member of an array");
    };
    let superblock = match &candidate.superblock {
        Ok(superblock) => superblock,
        Err(error) => return left(&format!("its superblock can't be read: {error}")),
    };
    // Of one with superblocks of several arrays that of the array which is configured.
    let is_configured = |superblock: &&Superblock| {
        let (uuid, name) = (superblock.array.set_uuid, superblock.array.name.to_string());
        configuration.arrays.iter().any(|entry| entry.is(uuid, &name))
    };
    let mut all = std::iter::once(superblock).chain(&candidate.rivals);
    let superblock = all.find(is_configured).unwrap_or(superblock);
    let (uuid, name) = (superblock.array.set_uuid, superblock.array.name.to_string());
    let entries = configuration.arrays.iter().filter(|entry| entry.is(uuid, &name)).collect();
    Ok(Ok(Owner { uuid, name, entries }))
}

/// What udev's rules want to know of a device; nothing if it is left alone. Where members are searched for
/// doesn't matter: links to a device that appears come after the rules, and a copy elsewhere isn't mdadm's
/// either. The unit looks for members by itself.
///
/// Nor is a member mdadm's if its array is served here without being configured. What appears then is another
/// way to a member that the server has open (a second path, a loop device over a file), or one that was away:
/// the kernel, which knows neither, would assemble and write them. An array with a wrong entry, or with two,
/// isn't mdadm's, and has no unit until that is mended.
///
/// A target's devices are members of arrays elsewhere. The kernel would assemble what it has of them at a
/// boot, before the target can have them, and whenever that is started again.
fn export(usable: &Usable, path: &Path) -> Result<String, Failure> {
    let Usable { configuration, wrong, .. } = usable;
    let (uuid, entries) = match array_of(configuration, path)? {
        Ok(Owner { uuid, entries, .. }) => (Some(uuid.to_string()), entries),
        Err(_) => (None, Vec::new()),
    };
    let is_served = || uuid.as_deref().is_some_and(place::is_served);
    let unit = match entries.as_slice() {
        [entry] => configuration::units::unit(configuration, entry)
            .filter(|_| entry.auto && !wrong.contains(&entry.place)),
        [] if !is_served() && !is_of_a_target(configuration, path) => return Ok(String::new()),
        _ => None,
    };
    let unit = unit.map(|unit| format!("PINSTRIPE_UNIT={unit}\n")).unwrap_or_default();
    Ok(format!("PINSTRIPE_ARRAY={}\n{unit}", uuid.as_deref().unwrap_or("unknown")))
}

/// Whether a target has this device, or the disk that it is a partition of. Links to a device that appears
/// are made after the rules, which have them in the environment.
fn is_of_a_target(configuration: &Configuration, path: &Path) -> bool {
    let links = env::var("DEVLINKS").unwrap_or_default();
    let real = |path: &Path| path.canonicalize().ok().map(|path| readable_path(&path));
    is_one_of(configuration.targets.iter().flat_map(|target| &target.devices), path, &links, real)
}

/// Whether a device is one of these. `real`: where a path leads. A device of /dev isn't looked for in other
/// places: what is mounted there may wait for this very event, or for a server that is away.
fn is_one_of<'a>(
    mut devices: impl Iterator<Item = &'a String>,
    path: &Path,
    links: &str,
    real: impl Fn(&Path) -> Option<PathBuf>,
) -> bool {
    let own: Vec<PathBuf> = real(path).into_iter().chain(disk_of(path)).collect();
    let may_be = |device: &Path| device.starts_with("/dev") || !path.starts_with("/dev");
    devices.any(|device| {
        let place = Path::new(device);
        links.split_whitespace().any(|link| link == device)
            || may_be(place) && real(place).is_some_and(|device| own.contains(&device))
    })
}

fn take(configuration: &Configuration, arguments: &IncrementalArguments) -> Result<Said, Failure> {
    let path = &arguments.device;
    let left = |why: &str| Ok(Said::nothing(path, "left-alone", why));
    let Owner { uuid, name, entries } = match array_of(configuration, path)? {
        Ok(owner) => owner,
        Err(why) => return left(&why),
    };
    if let [one, other, ..] = entries[..] {
        let (path, one, other) = (path.display(), &one.place, &other.place);
        let why = format!("{path}: the entries {one} and {other} are both of its array: keep one of them");
        return Err(Failure::new(why));
    }
    let Some(&entry) = entries.first() else {
        // Of these only the daemon starts one that becomes whole.
        let is_meant = configuration.scan.all && !arguments.start.dry_run;
        return if is_meant && ask_daemon::have_it_look() {
            Ok(handed_over(path))
        } else {
            left(&format!("its array {name} ({uuid}) is not configured"))
        };
    };
    if !allows(configuration, entry, path) && !joined::has(uuid, path) {
        return left(&format!("the configuration has members of {} elsewhere only", entry.label()));
    }
    if !entry.auto {
        return left(&format!("its array {} has auto = false", entry.label()));
    }
    match Served::all().0.into_iter().find(|served| served.is(uuid)) {
        // A member whose server was away comes back by itself. Of another device, a copy or what was
        // taken out on purpose, no program can tell whether it is meant.
        Some(served) => left(&format!(
            "{} is served already: `pinstripe detail` says what it lacks, and `pinstripe add` puts a device in",
            served.detail.name
        )),
        None => start(configuration, entry, arguments),
    }
}

fn handed_over(path: &Path) -> Said {
    Said::nothing(path, "handed-over", "the daemon looks at it")
}

/// Starts the array if this device was the last that it lacked.
fn start(
    configuration: &Configuration,
    entry: &Array,
    arguments: &IncrementalArguments,
) -> Result<Said, Failure> {
    let wanted = of_one(configuration, entry, false);
    if !arguments.start.dry_run && ask_daemon::have_it_look() {
        return Ok(handed_over(&arguments.device));
    }
    let state = wanted.state();
    if let State::Late { why, .. } = &state {
        // Another device may complete it. How long to wait for that is not for this process to say.
        return Ok(Said::nothing(&arguments.device, "waiting", &format!("{} waits: {why}", entry.label())));
    }
    let way = Way::of(&arguments.start);
    way.prepare();
    let report = Report::new(&wanted, settle(&wanted, state, way));
    if let Outcome::NotStarted(why) = &report.outcome {
        return Err(Failure::new(format!("{} was not started: {why}", report.label)));
    }
    Ok(Said { words: report.in_words(), value: report.value() })
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn a_device_is_looked_for_among_devices_alone() {
        let asked: RefCell<Vec<PathBuf>> = RefCell::default();
        let real = |path: &Path| {
            asked.borrow_mut().push(path.to_owned());
            Some(if path.ends_with("link") { "/dev/none".into() } else { path.to_owned() })
        };
        let devices = ["/srv/disk", "/dev/x", "/dev/disk/link"].map(str::to_owned);
        let is_one = |path: &str| is_one_of(devices.iter(), Path::new(path), "", real);
        assert!(is_one("/dev/none") && !is_one("/dev/nothing"));
        assert!(!asked.borrow().iter().any(|path| path.starts_with("/srv")), "{asked:?}");
        assert!(is_one("/srv/disk"));
    }
}
