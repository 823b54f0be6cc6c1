//! `pinstripe list`: the arrays that are served on this machine, as far as this user may see them.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use pinstripe_control::{
    Detail, Version,
    client::{Client, ClientError},
    place,
    size::ByteSize,
    text::printable,
};
use serde_json::{Value, json};

use crate::{command_line::ListArguments, failure::Failure, output};

/// Time that a server gets to answer.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(5);

pub fn run(arguments: &ListArguments) -> Result<(), Failure> {
    let found = servers();
    for folder in place::closed() {
        let folder = printable(&folder.display().to_string());
        output::remark(&format!(
            "pinstripe: no permission to look in {folder}: arrays that are served there are not listed"
        ));
    }
    if arguments.json {
        let all: Vec<Value> = found.iter().map(|(path, answer)| value(path, answer)).collect();
        return output::print_json(&all);
    }
    if found.is_empty() {
        return output::print("no array is served\n");
    }
    let lines: Vec<String> = found.iter().map(|(path, answer)| line(path, answer)).collect();
    output::print(&lines.concat())
}

/// All control sockets with a server, and what each answers.
pub fn servers() -> Vec<(PathBuf, Result<Detail, ClientError>)> {
    let mut found = Vec::new();
    for path in place::sockets() {
        let answer = match ask(&path) {
            // It may be another program that answers from now on.
            Err(ClientError::Ended { .. }) => ask(&path),
            answer => answer,
        };
        match answer {
            // A socket that a server left behind when it was killed, or one that ends just now.
            Err(ClientError::NotServed { .. } | ClientError::Ended { .. }) => {}
            answer => found.push((path, answer)),
        }
    }
    without_clients_sockets(found)
}

/// Without sockets by which clients use the arrays: one may be in the folder of the control sockets, and be
/// called as these are.
fn without_clients_sockets(
    mut found: Vec<(PathBuf, Result<Detail, ClientError>)>,
) -> Vec<(PathBuf, Result<Detail, ClientError>)> {
    let answering = found.iter().filter_map(|(_, answer)| answer.as_ref().ok());
    let uris: Vec<String> =
        answering.flat_map(|detail| &detail.addresses).map(|address| address.uri.clone()).collect();
    let is_clients = |path: &Path| {
        let path = path.display().to_string();
        let leads_there = |before: &str| before.is_empty() || before.ends_with(['=', ':']);
        uris.iter().any(|uri| uri.strip_suffix(&path).is_some_and(leads_there))
    };
    found.retain(|(path, answer)| answer.is_ok() || !is_clients(path));
    found
}

/// What the server at a control socket says of its array.
pub fn ask(path: &Path) -> Result<Detail, ClientError> {
    let mut client = Client::connect(&path.to_string_lossy())?;
    client.set_timeout(Some(ANSWER_LIMIT))?;
    client.call("detail", Value::Null)
}

/// The process that listens on a control socket, a server's or the daemon's.
pub fn process(path: &Path) -> Option<u32> {
    let mut client = Client::connect(&path.to_string_lossy()).ok()?;
    client.set_timeout(Some(ANSWER_LIMIT)).ok()?;
    client.call::<Version>("version", Value::Null).ok().map(|version| version.pid)
}

fn value(path: &Path, answer: &Result<Detail, ClientError>) -> Value {
    let control = path.display().to_string();
    match answer {
        Err(error) => json!({ "control": control, "error": error.to_string() }),
        Ok(detail) => json!({
            "control": control, "name": detail.name, "uuid": detail.uuid, "level": detail.level, "size_bytes": detail.size_bytes,
            "members": detail.members.len(), "state": detail.state, "degraded": detail.degraded,
            "clients": detail.clients, "addresses": detail.addresses, "nbd": detail.nbd, "pinstripe": detail.pinstripe,
            "program_replaced": detail.program_replaced,
        }),
    }
}

fn line(path: &Path, answer: &Result<Detail, ClientError>) -> String {
    let control = printable(&path.display().to_string());
    match answer {
        Err(error) => format!("{control}: {}\n", printable(&error.to_string())),
        Ok(detail) => format!(
            "{}: {}, {}, {} members, {}{}{}; uuid {}; control socket {control}\n",
            printable(&detail.name),
            printable(&detail.level),
            ByteSize(detail.size_bytes),
            detail.members.len(),
            printable(&detail.state),
            if detail.degraded { ", degraded" } else { "" },
            if detail.program_replaced { ", by a program that was replaced since" } else { "" },
            printable(&detail.uuid),
        ),
    }
}
