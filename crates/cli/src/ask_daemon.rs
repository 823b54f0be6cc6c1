//! `pinstripe status` and `pinstripe reload`: what is asked of the daemon, or done without one.

use std::{path::PathBuf, time::Duration};

use pinstripe_config::{Array, Configuration};
use pinstripe_control::{
    client::{Client, ClientError},
    daemon::{AlertStatus, ArrayStatus, Change, Effect, Looks, Reloaded, Status, sockets},
    text::{one_line, printable, printable_lines},
};
use pinstripe_md::identity::short_name;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::{
    command_line::{ReloadArguments, StatusArguments},
    configuration::{self, count},
    daemon::reload,
    failure::Failure,
    output, patience, systemd,
};

/// How long the daemon may take for what it asks servers or devices for.
const LIMIT: Duration = Duration::from_mins(1);

fn connect() -> Result<Client, Failure> {
    let mut last = None;
    for path in sockets() {
        match Client::connect(&path.to_string_lossy()) {
            Ok(client) => {
                client.set_timeout(Some(LIMIT))?;
                return Ok(client);
            }
            Err(ClientError::NotServed { path, .. }) => {
                last.get_or_insert(Failure::new(format!(
                    "no daemon runs: nothing listens on {}: `pinstripe daemon` starts it",
                    path.display()
                )));
            }
            Err(ClientError::Permission { path, .. }) => {
                last = Some(Failure::new(format!(
                    "no permission to ask the daemon on {}: run this as its user, or as root",
                    path.display()
                )));
            }
            Err(error) => last = Some(error.into()),
        }
    }
    Err(last.unwrap_or_else(|| Failure::new("no daemon runs")))
}

/// Asks it. If the answer takes long, that is said.
fn ask<T: DeserializeOwned>(method: &str, limit: Duration) -> Result<T, Failure> {
    let mut client = connect()?;
    patience::ask_within(&mut client, method, Value::Null, limit, "the daemon").map_err(|error| match error {
        ClientError::Silent { .. } => Failure::new(
            "the daemon does not answer: it hangs, was halted, or the machine is very busy; see its log. If it stays so, end its \
             process and start it again: the arrays' servers go on meanwhile",
        ),
        other => other.into(),
    })
}

/// Whether one runs, as far as this user may know.
pub fn is_there() -> bool {
    connect().is_ok()
}

/// Tells the daemon that there may be something new. Whether there is one that starts what it finds.
pub fn have_it_look() -> bool {
    ask::<Looks>("look", LIMIT).is_ok_and(|looks| looks.starts)
}

/// Tells the daemon, if there is one, that the configuration has changed.
pub fn have_it_reload() {
    let _ = ask::<Value>("reload", LIMIT);
}

pub fn status(arguments: &StatusArguments) -> Result<(), Failure> {
    let status: Status = ask("status", patience::ANSWER_LIMIT)?;
    if arguments.json {
        return output::print_json(&status);
    }
    let mut lines: Vec<String> = status.arrays.iter().map(in_words).collect();
    if lines.is_empty() {
        lines.push("no array is configured to be started\n".to_owned());
    }
    if let Some(seconds) = status.looking_seconds.filter(|seconds| *seconds > 5) {
        lines
            .push(format!("members have been looked for since {}: a device does not answer\n", ago(seconds)));
    }
    let alert =
        |alert: &AlertStatus| format!("alert: {}: {}\n", printable(&alert.array), one_line(&alert.message));
    lines.extend(status.alerts.iter().map(alert));
    lines.extend(status.remarks.iter().map(|remark| one_line(remark) + "\n"));
    if let Some(error) = &status.configuration_error {
        let words = "the configuration has errors; the daemon goes by what it could take before";
        lines.push(format!("{words}:\n{}\n", printable_lines(error)));
    }
    lines.extend(status.unserved.iter().map(|why| unserved(why)));
    output::print(&lines.concat())
}

fn unserved(why: &str) -> String {
    format!("not all is served as the configuration says, and it is tried again: {}\n", one_line(why))
}

fn ago(seconds: u64) -> String {
    humantime::format_duration(Duration::from_secs(seconds)).to_string()
}

fn in_words(array: &ArrayStatus) -> String {
    let ArrayStatus { array: label, state, why, seconds, control, failures, next_try_seconds, .. } = array;
    let shown = |control: &PathBuf| format!("; control socket {}", printable(&control.display().to_string()));
    let next = |seconds| format!(" (failed {failures} times; is tried again in {})", ago(seconds));
    [
        format!("{}: {} for {}", printable(label), printable(state), ago(*seconds)),
        control.as_ref().map(shown).unwrap_or_default(),
        next_try_seconds.map(next).unwrap_or_default(),
        why.as_ref().map(|why| format!(": {}", printable_lines(why))).unwrap_or_default(),
        "\n".to_owned(),
    ]
    .concat()
}

/// Without the daemon, servers are told what they take while they run.
fn reload_servers(arguments: &ReloadArguments) -> Result<Reloaded, Failure> {
    let configuration = configuration::load(arguments.configuration.config.as_deref())?;
    let mut asked: Vec<&Array> = Vec::new();
    for name in &arguments.arrays {
        let meant = meant(&configuration, name);
        if meant.is_empty() {
            return Err(Failure::new(format!("the configuration has no array {}", printable(name))));
        }
        asked.extend(meant);
    }
    if arguments.arrays.is_empty() {
        asked = configuration.arrays.iter().collect();
    }
    let changes = reload::told_anew(asked);
    Ok(Reloaded { files: configuration.files, changes, unserved: None })
}

/// The entries with this name or UUID. If none says so, those of which it is the name without the host, by
/// which servers and units are called.
fn meant<'a>(configuration: &'a Configuration, name: &str) -> Vec<&'a Array> {
    let is = |array: &&Array| {
        array.name.as_deref() == Some(name) || array.uuid.is_some() && array.uuid == name.parse().ok()
    };
    let said: Vec<&Array> = configuration.arrays.iter().filter(is).collect();
    if !said.is_empty() {
        return said;
    }
    let is_short = |array: &&Array| array.name.as_deref().map(short_name) == Some(name);
    configuration.arrays.iter().filter(is_short).collect()
}

/// Whether there is none, as far as this user may know.
fn is_absent() -> bool {
    sockets()
        .iter()
        .all(|path| matches!(Client::connect(&path.to_string_lossy()), Err(ClientError::NotServed { .. })))
}

pub fn reload(arguments: &ReloadArguments) -> Result<(), Failure> {
    let is_alone = !arguments.arrays.is_empty() || is_absent();
    if !is_alone && arguments.configuration.config.is_some() {
        return Err(Failure::new(
            "a daemon runs, which goes by its own configuration: --config is for a reload without one, or of arrays that are named",
        ));
    }
    let reloaded: Reloaded = if is_alone { reload_servers(arguments)? } else { ask("reload", LIMIT)? };
    let failed = reloaded.changes.iter().any(|change| change.effect == Effect::Failed);
    if arguments.json {
        output::print_json(&reloaded)?;
    } else {
        let line = |change: &Change| format!("{}: {}\n", printable(&change.array), printable(&change.what));
        let head = format!("the configuration was read again: {}\n", count(reloaded.files.len(), "file"));
        let changes: String = reloaded.changes.iter().map(line).collect();
        output::print(&(head + &changes))?;
        // What a unit may do is made of the configuration, too.
        let is_for_units = |change: &Change| matches!(change.effect, Effect::New | Effect::Restart);
        if systemd::has_units(None) && reloaded.changes.iter().any(is_for_units) {
            output::remark(
                "pinstripe: systemd goes by the new configuration from `systemctl daemon-reload` on",
            );
        }
        if is_alone {
            output::remark("pinstripe: all other options count from a server's next start on");
        }
        if let Some(why) = &reloaded.unserved {
            output::remark(&format!("pinstripe: warning: {}", unserved(why)));
        }
    }
    if failed { Err(Failure::said()) } else { Ok(()) }
}
