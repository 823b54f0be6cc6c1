//! `pinstripe import`: an array from mdadm to Pinstripe.

use std::{
    path::Path,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use pinstripe_config::{Array, Configuration};
use pinstripe_control::text::printable;
use pinstripe_md::{
    identity::{Uuid, short_name},
    superblock::Support,
};
use serde_json::{Value, json};

use super::{
    files::{self, Edit, Turn},
    find, md_device, of_ramdisk,
    remarks::remarks,
};
use crate::{
    ask_daemon,
    assemble::{Outcome, Report, State, Way, of_one, settle, would_start},
    called::{beside, in_dev},
    command_line::ImportArguments,
    configuration::{self, file_systems},
    failure::Failure,
    output,
    scan::{FoundArray, Served, scan, shown},
    systemd,
};

/// How long the kernel may take to let an array's members go.
const LETS_GO: Duration = Duration::from_secs(5);
/// For so long no program may have the kernel take them again.
const STAYS: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(100);

pub fn run(arguments: &ImportArguments) -> Result<(), Failure> {
    let turn = Turn::wait()?;
    let configuration = configuration::load(arguments.start.configuration.config.as_deref())?;
    let array = find(&configuration, &arguments.array)?;
    let plan = Plan::new(&configuration, array, arguments)?;
    let outcome = if arguments.start.dry_run { None } else { Some(plan.carry_out(arguments, turn)?) };
    if arguments.start.json {
        output::print_json(&plan.value(outcome.as_ref()))?;
    } else {
        output::print(&plan.in_words(outcome.as_ref()))?;
    }
    match outcome {
        Some(report) if report.failed() => {
            let Outcome::NotStarted(why) = &report.outcome else { return Err(Failure::said()) };
            Err(Failure::new(format!(
                "{} is imported and was not started: {why}; `pinstripe assemble --uuid {}` starts it",
                report.label, plan.array.uuid
            )))
        }
        _ => Ok(()),
    }
}

/// All that is to be done.
struct Plan {
    array: FoundArray,
    /// The kernel's device to be stopped.
    kernel: Option<String>,
    /// The entry in our configuration if it has none, and mdadm's files: in this order.
    edits: Vec<Edit>,
    /// What a person should know.
    remarks: Vec<String>,
}

impl Plan {
    /// Looks at everything, and changes nothing.
    fn new(
        configuration: &Configuration,
        array: FoundArray,
        arguments: &ImportArguments,
    ) -> Result<Self, Failure> {
        let label = printable(&array.short_name());
        let refused = |why: String| Err(Failure::new(format!("{label} can't be imported: {why}")));
        if let Some(served) = Served::all().0.iter().find(|served| served.is(array.uuid)) {
            return refused(format!("it is served already, by {}", served.control.display()));
        }
        if let Some(why) = array.fault() {
            return refused(why);
        }
        if let Support::ReadOnly(why) = array.freshest.support() {
            return refused(format!("it could be read only: {why}"));
        }
        if !array.is_enough() {
            return refused(format!("too few of its members are here ({})", array.in_words()));
        }
        if array.lacks_journal() {
            return refused("its journal is missing, and may hold writes that the members lack".to_owned());
        }
        let kernel = match array.kernel().as_slice() {
            [] => None,
            [name] => Some(name.clone()),
            several => {
                return refused(format!("several md devices have its members: {}", several.join(", ")));
            }
        };
        // What else lies on its members, such as a mapping, `serve` refuses.
        if let Some(name) = &kernel
            && let Some(why) = md_device::obstacle(name)?
        {
            return refused(why);
        }
        let mut edits = files::hands_off(arguments.mdadm_conf.as_deref(), &array)?;
        let given = arguments.start.configuration.config.as_deref();
        let is_own = |entry: &Array| entry.is(array.uuid, &array.name);
        let then;
        let to_come = if configuration.arrays.iter().any(is_own) {
            configuration
        } else {
            let entry = files::entry(files::entry_path(given, array.uuid), &array)?;
            then = configuration::load_with(given, &entry.path, entry.text())?;
            // A crash between two of them leaves an array that both have, which udev's rule keeps from mdadm;
            // not one that nothing starts.
            edits.insert(0, entry);
            &then
        };
        if let Some(why) = hindrance(to_come, &array, arguments.no_start) {
            return refused(why);
        }
        let has_unit = !arguments.no_start && systemd::has_units(given);
        let of_ramdisk = of_ramdisk(&edits, has_unit).map(str::to_owned);
        let remarks = of_ramdisk.into_iter().chain(remarks(to_come, &array, kernel.as_deref())).collect();
        Ok(Self { array, kernel, edits, remarks })
    }

    fn carry_out(&self, arguments: &ImportArguments, turn: Turn) -> Result<Report, Failure> {
        files::carry_out(&self.edits)?;
        let given = arguments.start.configuration.config.as_deref();
        let taken = self.take_over(given).map_err(|failure| files::undo(&self.edits, failure));
        let (configuration, entry) = taken?;
        systemd::reload(given);
        // The start of a server may take long.
        drop(turn);
        let wanted = of_one(&configuration, &entry, false);
        let way = Way::of(&arguments.start);
        let outcome = if arguments.no_start {
            would_start(&wanted, false, way)
        } else {
            settle(&wanted, wanted.state(), way)
        };
        let report = Report::new(&wanted, outcome);
        ask_daemon::have_it_reload();
        Ok(report)
    }

    /// The array is ours, and the kernel's no more. Its entry, as it is read.
    fn take_over(&self, given: Option<&Path>) -> Result<(Configuration, Array), Failure> {
        let configuration = configuration::load(given)?;
        let entries = configuration.arrays.iter();
        let entry = entries.clone().find(|entry| entry.is(self.array.uuid, &self.array.name)).cloned();
        let Some(entry) = entry else {
            return Err(Failure::new(
                "the entry that was written is not read: see to the configuration's files",
            ));
        };
        if let Some(name) = &self.kernel {
            // Its mounts are ordered by these names at the next boot. It is imported without them, too.
            let device = noted_as(&configuration, &self.array.short_name(), self.array.uuid);
            let _ = file_systems::note_of_kernel(name, &device);
            stop(name)?;
            let members: Vec<String> = self.array.members.iter().map(|member| shown(&member.path)).collect();
            wait_until_free(self.array.uuid, &members)?;
        }
        Ok((configuration, entry))
    }

    fn value(&self, outcome: Option<&Report>) -> Value {
        let files: Vec<String> = self.edits.iter().map(|edit| shown(&edit.path)).collect();
        json!({
            "array": self.array.short_name(), "uuid": self.array.uuid.to_string(), "stopped": self.kernel,
            "files": files, "dry_run": outcome.is_none(), "server": outcome.map(Report::value),
            "remarks": self.remarks,
        })
    }

    fn in_words(&self, outcome: Option<&Report>) -> String {
        let mut lines = Vec::new();
        let would = if outcome.is_none() { "would be " } else { "" };
        for edit in &self.edits {
            lines.push(format!("{would}changed: {}", printable(&shown(&edit.path))));
        }
        lines.extend(self.kernel.iter().map(|name| format!("{would}stopped: /dev/{name}")));
        lines.extend(self.remarks.iter().map(|remark| format!("note: {}", printable(remark))));
        lines.extend(outcome.map(|report| report.in_words().trim_end().to_owned()));
        lines.retain(|line| !line.is_empty());
        lines.join("\n") + "\n"
    }
}

/// Why the array would not be served by this configuration once the kernel has let it go; none if that isn't
/// seen before.
fn hindrance(configuration: &Configuration, array: &FoundArray, no_start: bool) -> Option<String> {
    let own = configuration.arrays.iter().filter(|entry| entry.is(array.uuid, &array.name));
    let own: Vec<&Array> = own.collect();
    let entry = match own.as_slice() {
        [] => return Some("its entry would not be read: see to the configuration's files".to_owned()),
        [one, other, ..] => {
            let (one, other) = (&one.place, &other.place);
            return Some(format!("the entries {one} and {other} are of one array: keep one of them"));
        }
        [entry] => entry,
    };
    if !entry.auto {
        return Some(format!(
            "{} has auto = false, by itself or by [defaults], so neither mdadm nor Pinstripe would start it at boot: take that away first",
            entry.place
        ));
    }
    let wanted = of_one(configuration, entry, true);
    if let Some(holder) = wanted.holder_of_its_name().filter(|_| !no_start) {
        return Some(format!(
            "the array {} is served under its name, by {}: stop that one first, or give both an [[array]] with name and uuid",
            holder.detail.uuid,
            holder.control.display()
        ));
    }
    match wanted.state() {
        State::Hopeless(why) | State::Late { why, enough: false } => Some(why),
        State::Late { why, .. } if !no_start && wanted.patience().is_none() => {
            Some(format!("{why}, after an `import --no-start`"))
        }
        State::Served(_) | State::Ready | State::Perhaps(_) | State::Late { .. } if no_start => None,
        State::Served(_) | State::Ready | State::Perhaps(_) | State::Late { .. } => {
            configuration::obstacle(entry).map(|why| format!("its server could not begin: {why}"))
        }
    }
}

/// Has the kernel stop an array. mdadm sees to it that nothing has it open.
fn stop(name: &str) -> Result<(), Failure> {
    let device = format!("/dev/{name}");
    let stopped = Command::new("mdadm").args(["--stop", &device]).output();
    let stopped = stopped.map_err(|error| {
        Failure::new(format!(
            "can't run mdadm to stop {device}: {error}: install it, or stop the array by other means"
        ))
    })?;
    if stopped.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&stopped.stderr);
    Err(Failure::new(format!("mdadm could not stop {device}: {}", said.trim().replace('\n', "; "))))
}

/// Waits until the kernel has let the members go, and sees that they stay free.
fn wait_until_free(array: Uuid, members: &[String]) -> Result<(), Failure> {
    let mut freed = Freed { begun: Instant::now(), since: None };
    loop {
        let seen = scan(Some(members));
        let holder =
            seen.arrays.iter().find(|found| found.uuid == array).and_then(|found| found.kernel().pop());
        if let Some(result) = freed.seen(holder, Instant::now()) {
            return result;
        }
        thread::sleep(LOOK);
    }
}

/// How long the kernel has not had an array.
struct Freed {
    begun: Instant,
    since: Option<Instant>,
}

impl Freed {
    /// What a look has to end with, if it is the last one. `holder`: what the kernel has the array as.
    fn seen(&mut self, holder: Option<String>, now: Instant) -> Option<Result<(), Failure>> {
        match (holder, self.since) {
            (None, None) => self.since = Some(now),
            (None, Some(since)) if now - since >= STAYS => return Some(Ok(())),
            (None, Some(_)) => {}
            (Some(name), _) if now - self.begun > LETS_GO => {
                return Some(Err(Failure::new(format!(
                    "the kernel has the array as /dev/{name} again: something on this machine assembles it; see that mdadm's configuration is the one that counts"
                ))));
            }
            (Some(_), _) => self.since = None,
        }
        None
    }
}

/// What an array that is called `name` is called in /dev/pinstripe beside the configured ones.
fn noted_as(configuration: &Configuration, name: &str, uuid: Uuid) -> String {
    let is_other = |entry: &&Array| {
        let own = entry.name.as_deref().map(short_name);
        entry.uuid != Some(uuid) && own.is_some_and(|own| in_dev(own) == in_dev(name))
    };
    let other = configuration.arrays.iter().find(is_other);
    in_dev(&other.map_or_else(|| name.to_owned(), |_| beside(name, uuid)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_note_of_another_array_of_the_name_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pinstripe.toml");
        let uuid: Uuid = "6d41c174:a77e88e8:3d543c04:9a78354b".parse().unwrap();
        let own = format!("[[array]]\nname = 'other:data'\nuuid = '{uuid}'\n");
        for (more, expected) in [("", "data"), ("[[array]]\nname = 'data'\n", "data_6d41c174")] {
            std::fs::write(&path, format!("{own}{more}")).unwrap();
            let configuration = configuration::load(Some(&path)).unwrap();
            assert_eq!(noted_as(&configuration, "data", uuid), expected);
        }
    }

    #[test]
    fn what_the_kernel_takes_again_is_waited_for_and_what_it_keeps_is_an_error() {
        let begun = Instant::now();
        let after = |tenths: u32| begun + Duration::from_millis(100) * tenths;
        let held = || Some("md127".to_owned());
        let mut freed = Freed { begun, since: None };
        for (holder, tenths, is_over) in
            [(None, 0, false), (held(), 5, false), (None, 6, false), (None, 15, false), (None, 16, true)]
        {
            assert_eq!(freed.seen(holder, after(tenths)).is_some(), is_over, "{tenths}");
        }
        let mut freed = Freed { begun, since: None };
        assert!(freed.seen(held(), after(50)).is_none());
        assert!(freed.seen(None, after(51)).is_none());
        let kept = freed.seen(held(), after(52)).unwrap().unwrap_err();
        assert!(kept.sentence().contains("/dev/md127 again"), "{}", kept.sentence());
    }
}
