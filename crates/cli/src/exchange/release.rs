//! `pinstripe release`: an array from Pinstripe back to mdadm.

use std::{
    iter,
    path::{Path, PathBuf},
    process::Command,
};

use pinstripe_config::Configuration;
use pinstripe_control::{
    StopParameters,
    client::Client,
    place::{self, stem},
    text::{printable, shell_word},
};
use pinstripe_md::superblock::{ResyncOffset, Support};
use serde_json::{Value, json};

use super::{
    files::{self, Edit, Turn},
    find, of_ramdisk,
    remarks::of_release,
};
use crate::{
    ask_daemon,
    assemble::forget,
    called::beside,
    command_line::ReleaseArguments,
    configuration,
    failure::Failure,
    joined, list, output, patience,
    scan::{FoundArray, Served, shown},
    steer, systemd,
};

pub fn run(arguments: &ReleaseArguments) -> Result<(), Failure> {
    let _turn = Turn::wait()?;
    let configuration = configuration::load(arguments.configuration.config.as_deref())?;
    let array = find(&configuration, &arguments.array)?;
    let plan = Plan::new(&configuration, array, arguments)?;
    if !arguments.dry_run {
        plan.carry_out(&configuration, arguments)?;
    }
    if arguments.json {
        output::print_json(&plan.value(arguments.dry_run))
    } else {
        output::print(&plan.in_words(arguments.dry_run))
    }
}

struct Plan {
    array: FoundArray,
    /// The control socket of its server.
    served: Option<PathBuf>,
    edits: Vec<Edit>,
}

impl Plan {
    fn new(
        configuration: &Configuration,
        array: FoundArray,
        arguments: &ReleaseArguments,
    ) -> Result<Self, Failure> {
        let label = printable(&array.short_name());
        let refused = |why: String| Err(Failure::new(format!("{label} can't be released: {why}")));
        if let Some(name) = array.kernel().first() {
            return refused(format!("the kernel has it already, as /dev/{name}"));
        }
        let given = arguments.configuration.config.as_deref();
        let own = files::entry_path(given, array.uuid);
        let other = configuration
            .arrays
            .iter()
            .find(|entry| entry.is(array.uuid, &array.name) && entry.place.file != own);
        if let Some(entry) = other {
            return refused(format!(
                "{} configures it: take that [[array]] away, as udev keeps mdadm off what is configured, also with auto = false",
                entry.place
            ));
        }
        if configuration.scan.all {
            return refused(
                "[scan] has `assemble = \"all\"`, which would start it again: write \"configured\" there, and an [[array]] for each array that is to be started"
                    .to_owned(),
            );
        }
        let served = server_of(&array)?;
        match &served {
            None => is_for_the_kernel(&array, arguments.force)?,
            Some(served) if served.detail.regions_to_resync > 0 && !arguments.force => {
                return refused(
                    "its server resyncs it, which the kernel would have to go on with: wait until `pinstripe detail` shows no sync, or give --force"
                        .to_owned(),
                );
            }
            Some(served) => {
                let kept = if arguments.force { None } else { steer::kept_open(&served.detail) };
                if let Some(why) = kept {
                    return refused(why);
                }
            }
        }
        let served = served.map(|served| served.control);
        // A crash between two of them leaves an array that both have, not one that nothing starts.
        let mut edits = files::hands_on(arguments.mdadm_conf.as_deref(), &array)?;
        edits.extend(files::without_entry(own, &files::written(&array))?);
        Ok(Self { array, served, edits })
    }

    fn carry_out(&self, configuration: &Configuration, arguments: &ReleaseArguments) -> Result<(), Failure> {
        if let Some(control) = &self.served {
            let mut client = Client::connect(&control.to_string_lossy())?;
            let parameters = StopParameters { force: arguments.force };
            patience::last_work::<Value>(&mut client, "stop", parameters, patience::STOPS, None)?;
        }
        let give_back = || {
            if self.served.is_some() {
                // udev looks at members that were closed. While they are configured, its rule keeps mdadm off
                // them; later it would have mdadm take them beside the one that assembles them.
                if self.array.members.iter().any(|member| member.path.starts_with("/dev")) {
                    systemd::settle();
                }
                let now = find(configuration, &self.array.uuid.to_string())?;
                is_for_the_kernel(&now, arguments.force)?;
            }
            files::carry_out(&self.edits)
        };
        give_back().map_err(|failure: Failure| self.say_stopped(&failure))?;
        systemd::reload(arguments.configuration.config.as_deref());
        forget(&self.array.short_name(), self.array.uuid);
        // What can't be removed leads to devices that are looked at in vain.
        let _ = joined::keep(self.array.uuid, &[]);
        ask_daemon::have_it_reload();
        if arguments.assemble {
            self.assemble()?;
        }
        Ok(())
    }

    /// What a failure leaves behind, in its words.
    fn say_stopped(&self, failure: &Failure) -> Failure {
        let words = failure.sentence();
        let uuid = self.array.uuid;
        Failure::new(match self.served {
            Some(_) => {
                format!("{words}; its server was stopped: `pinstripe assemble --uuid {uuid}` starts it again")
            }
            None => words.to_owned(),
        })
    }

    fn assemble(&self) -> Result<(), Failure> {
        let members = self.array.members.iter().map(|member| &member.path);
        let name = format!("/dev/md/{}", self.array.short_name());
        let mut mdadm = Command::new("mdadm");
        mdadm.args(["--assemble", &name]).args(members);
        let done = mdadm
            .output()
            .map_err(|error| Failure::new(format!("it is released; can't run mdadm: {error}")))?;
        if done.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&done.stderr);
        Err(Failure::new(format!(
            "it is released; mdadm could not assemble it: {}",
            said.trim().replace('\n', "; ")
        )))
    }

    fn value(&self, dry_run: bool) -> Value {
        let files: Vec<String> = self.edits.iter().map(|edit| shown(&edit.path)).collect();
        json!({
            "array": self.array.short_name(), "uuid": self.array.uuid.to_string(), "stopped": self.served.is_some(),
            "files": files, "dry_run": dry_run, "remarks": self.remarks(),
        })
    }

    /// What a person should see to.
    fn remarks(&self) -> Vec<String> {
        let of_ramdisk = of_ramdisk(&self.edits, false).map(str::to_owned);
        of_ramdisk.into_iter().chain(of_release(&self.array.short_name())).collect()
    }

    fn in_words(&self, dry_run: bool) -> String {
        let would = if dry_run { "would be " } else { "" };
        let mut lines: Vec<String> =
            self.served.iter().map(|_| format!("{would}stopped: its server")).collect();
        lines.extend(
            self.edits.iter().map(|edit| format!("{would}changed: {}", printable(&shown(&edit.path)))),
        );
        lines.extend(self.remarks().iter().map(|remark| format!("note: {}", printable(remark))));
        let devices = self.array.members.iter().map(|member| shown(&member.path));
        let words = iter::once(format!("/dev/md/{}", self.array.short_name())).chain(devices);
        let words: Vec<String> = words.map(|word| shell_word(&word)).collect();
        lines.push(format!("mdadm can have it: `mdadm --assemble {}`", words.join(" ")));
        lines.join("\n") + "\n"
    }
}

/// The server that has it. Refused if one that may be it doesn't answer.
fn server_of(array: &FoundArray) -> Result<Option<Served>, Failure> {
    let (name, uuid) = (array.short_name(), array.uuid.to_string());
    let linked = place::by_uuid(&uuid);
    // It may be called as one is beside another array of its name.
    let stems = [stem(&name, &uuid), beside(&name, array.uuid)];
    let may_be_its = |control: &Path| {
        linked.as_deref() == Some(control)
            || stems.iter().any(|stem| control.file_stem() == Some(stem.as_ref()))
    };
    let mut silent = None;
    for (control, answer) in list::servers() {
        match answer {
            Ok(detail) => {
                let served = Served { control, detail };
                if served.is(array.uuid) {
                    return Ok(Some(served));
                }
            }
            Err(error) if may_be_its(&control) => {
                silent = Some(format!("{}: {error}", shown(&control)));
            }
            Err(_) => {}
        }
    }
    silent.map_or(Ok(None), |why| {
        Err(Failure::new(format!(
            "it is not known whether {} is served: {why}",
            printable(&array.short_name())
        )))
    })
}

/// Refuses what the kernel would not take, or would have to repair.
fn is_for_the_kernel(array: &FoundArray, force: bool) -> Result<(), Failure> {
    let record = &array.freshest.array;
    let label = printable(&array.short_name());
    if record.needs_double_parity_log {
        return Err(Failure::new(format!(
            "{label} was not stopped cleanly, and only its double-parity log can close its write hole, which the kernel doesn't know and refuses: serve it and stop it"
        )));
    }
    if let Support::Refused(why) = array.freshest.support() {
        return Err(Failure::new(format!("{label} is left alone: {why}")));
    }
    if !force && record.resync_offset != ResyncOffset::Clean {
        return Err(Failure::new(format!(
            "{label} is not clean: the kernel would resync it. Serve it until `pinstripe detail` shows no sync and stop it, or give --force"
        )));
    }
    Ok(())
}
