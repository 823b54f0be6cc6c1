//! Commands that talk to a running server: `detail`, `stop`. Those that change its members are in
//! `membership`.

use std::time::Duration;

use pinstripe_control::{
    Detail, StopParameters,
    client::{Client, ClientError},
};
use serde_json::Value;

use crate::{
    command_line::{DetailArguments, StopArguments},
    failure::Failure,
    output,
};

/// The status of `detail --test` for an array that can't be asked.
const NOT_THERE: u8 = 4;
/// Time within which a server answers what it can answer at once.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

pub fn detail(arguments: &DetailArguments) -> Result<(), Failure> {
    let fetched = Client::connect(&arguments.array.array).and_then(|mut client| fetch(&mut client));
    let detail = match fetched {
        Ok(detail) => detail,
        Err(error) if arguments.test => return Err(Failure::from(error).with_status(NOT_THERE)),
        Err(error) => return Err(error.into()),
    };
    if arguments.json {
        output::print_json(&detail)?;
    } else {
        output::print(&detail.in_words())?;
    }
    match health(&detail) {
        status if arguments.test && status > 0 => Err(Failure::said().with_status(status)),
        _ => Ok(()),
    }
}

/// mdadm's statuses of `--detail --test`.
fn health(detail: &Detail) -> u8 {
    let lacks_journal = detail.journal.as_ref().is_some_and(|journal| journal.failed);
    match detail.state.as_str() {
        "failed" => 2,
        _ => u8::from(detail.degraded || lacks_journal),
    }
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
