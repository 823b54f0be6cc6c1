//! Commands that talk to a running server: `detail`, `stop`. Those that change its members are in
//! `membership`.

use std::{
    thread,
    time::{Duration, Instant},
};

use pinstripe_control::{
    Detail, StopParameters,
    client::{Client, ClientError},
    code,
    limit::{Limit, LimitParameters},
};
use pinstripe_md::identity::Uuid;
use serde_json::Value;

use crate::{
    command_line::{DetailArguments, LimitArguments, StopArguments},
    failure::Failure,
    list, output,
};

/// The status of `detail --test` for an array that can't be asked.
const NOT_THERE: u8 = 4;
/// Time within which a server answers what it can answer at once.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);
/// Between two attempts to stop an array that is in use.
const LOOK: Duration = Duration::from_millis(500);

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
    let (begun, patience) = (Instant::now(), Duration::from_secs(arguments.wait.into()));
    let mut client = connect(array)?;
    loop {
        match client.call::<()>("stop", StopParameters { force: arguments.force }) {
            Err(ClientError::Call(error)) if error.code == code::IN_USE && begun.elapsed() < patience => {
                thread::sleep(LOOK);
            }
            done => break done?,
        }
    }
    output::print(&format!("stopped {array}\n"))
}

pub fn limit(arguments: &LimitArguments) -> Result<(), Failure> {
    let mut client = Client::connect(&arguments.array.array)?;
    let parameters = LimitParameters {
        iops: arguments.iops,
        bytes_per_second: arguments.bandwidth.map(|size| size.0),
        burst_seconds: arguments.burst,
    };
    let limit: Limit = client.call("limit", parameters)?;
    if arguments.json {
        output::print_json(&limit)
    } else {
        output::print(&format!("{}\n", limit.in_words()))
    }
}

/// Connects to the server of an array by its name, its socket or its UUID, as a unit's name has it.
fn connect(array: &str) -> Result<Client, ClientError> {
    let connected = Client::connect(array);
    let (Err(ClientError::NotServed { .. }), Ok(uuid)) = (&connected, array.parse::<Uuid>()) else {
        return connected;
    };
    let is_it = |detail: &Detail| detail.uuid.parse() == Ok(uuid);
    let found = list::servers().into_iter().find(|(_, answer)| answer.as_ref().is_ok_and(is_it));
    found.map_or(connected, |(path, _)| Client::connect(&path.to_string_lossy()))
}
