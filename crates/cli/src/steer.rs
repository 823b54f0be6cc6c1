//! Commands that talk to a running server: `detail`, `stop`. Those that change its members are in `membership`.

use std::time::Duration;

use serde_json::Value;

use crate::{
    command_line::{ReadArguments, StopArguments},
    control::{
        Detail, StopParameters,
        client::{Client, ClientError},
    },
    failure::Failure,
    output,
};

/// Time within which a server answers what it can answer at once.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

pub fn detail(arguments: &ReadArguments) -> Result<(), Failure> {
    let detail = fetch(&mut Client::connect(&arguments.array.array)?)?;
    if arguments.json { output::print_json(&detail) } else { output::print(&detail.in_words()) }
}

/// The state of the array.
pub fn fetch(client: &mut Client) -> Result<Detail, ClientError> {
    client.set_timeout(Some(ANSWER_LIMIT))?;
    client.call("detail", Value::Null)
}

pub fn stop(arguments: &StopArguments) -> Result<(), Failure> {
    let array = &arguments.array.array;
    let mut client = Client::connect(array)?;
    client.call::<()>("stop", StopParameters { force: arguments.force })?;
    output::print(&format!("stopped {array}\n"))
}
