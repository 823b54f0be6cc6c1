//! `pinstripe status` and `pinstripe reload`: what is asked of the daemon.

use std::{path::PathBuf, time::Duration};

use pinstripe_control::{
    client::{Client, ClientError},
    daemon::{AlertStatus, ArrayStatus, Change, Effect, Looks, Reloaded, Status, sockets},
    text::{printable, printable_lines},
};
use serde_json::Value;

use crate::{
    command_line::{ReloadArguments, StatusArguments},
    failure::Failure,
    output,
};

/// How long the daemon may take to answer. With `reload` it asks servers.
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

/// Tells the daemon that there may be something new. Whether there is one that starts what it finds.
pub fn have_it_look() -> bool {
    let looks = connect().and_then(|mut client| Ok(client.call::<Looks>("look", Value::Null)?));
    looks.is_ok_and(|looks| looks.starts)
}

/// Tells the daemon, if there is one, that the configuration has changed.
pub fn have_it_reload() {
    if let Ok(mut client) = connect() {
        let _ = client.call::<Value>("reload", Value::Null);
    }
}

pub fn status(arguments: &StatusArguments) -> Result<(), Failure> {
    let status: Status = connect()?.call("status", Value::Null)?;
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
        |alert: &AlertStatus| format!("alert: {}: {}\n", printable(&alert.array), printable(&alert.message));
    lines.extend(status.alerts.iter().map(alert));
    lines.extend(status.remarks.iter().map(|remark| printable(remark) + "\n"));
    if let Some(error) = &status.configuration_error {
        let words = "the configuration has changed and can't be taken; the daemon goes by the earlier one";
        lines.push(format!("{words}:\n{}\n", printable_lines(error)));
    }
    output::print(&lines.concat())
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

pub fn reload(arguments: &ReloadArguments) -> Result<(), Failure> {
    let reloaded: Reloaded = connect()?.call("reload", Value::Null)?;
    let failed = reloaded.changes.iter().any(|change| change.effect == Effect::Failed);
    if arguments.json {
        output::print_json(&reloaded)?;
    } else {
        let line = |change: &Change| format!("{}: {}\n", printable(&change.array), printable(&change.what));
        let head = format!("the configuration was read again: {} files\n", reloaded.files.len());
        let changes: String = reloaded.changes.iter().map(line).collect();
        output::print(&(head + &changes))?;
    }
    if failed { Err(Failure::said()) } else { Ok(()) }
}
