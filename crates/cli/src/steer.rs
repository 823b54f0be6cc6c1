//! Commands that talk to a running server: `detail`, `fail`, `add`, `stop`.

use std::{path::Path, thread, time::Duration};

use serde_json::Value;

use crate::{
    command_line::{AddArguments, FailArguments, ReadArguments, StopArguments},
    control::{
        AddParameters, Detail, FailParameters, SlotResult,
        client::{Client, ClientError},
    },
    failure::Failure,
    output,
    progress::{LOOK, bar, show},
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

pub fn fail(arguments: &FailArguments) -> Result<(), Failure> {
    let mut client = Client::connect(&arguments.array.array)?;
    let result: SlotResult = client.call("fail", FailParameters { slot: arguments.slot })?;
    if arguments.json {
        return output::print_json(&result);
    }
    output::print(&format!("the member in slot {} was taken out\n", result.slot))
}

pub fn add(arguments: &AddArguments) -> Result<(), Failure> {
    let array = &arguments.array.array;
    // The server may have another folder of its own.
    let path = &arguments.device;
    let is_memory = path.to_string_lossy().starts_with("mem:");
    let as_given = is_memory || crate::member::address(path).transpose()?.is_some();
    let device = if as_given { path.clone() } else { std::path::absolute(path)? };
    let device = text(&device)?;
    let mut client = Client::connect(array)?;
    let result: SlotResult = client.call("add", AddParameters { device, force: arguments.force })?;
    if arguments.wait {
        wait_until_whole(&mut client, result.slot, arguments.json)?;
    }
    if arguments.json {
        return output::print_json(&result);
    }
    let rebuilt = if arguments.wait { "and is rebuilt" } else { "and is being rebuilt" };
    output::print(&format!("{} is in slot {} {rebuilt}\n", path.display(), result.slot))
}

fn text(path: &Path) -> Result<String, Failure> {
    path.to_str().map(ToOwned::to_owned).ok_or_else(|| {
        Failure::new(format!("{}: a path that is no UTF-8 can't be sent to the server", path.display()))
    })
}

/// Waits until the member of `slot` has everything.
fn wait_until_whole(client: &mut Client, slot: usize, quiet: bool) -> Result<(), Failure> {
    let bar = bar(quiet);
    loop {
        let detail = fetch(client)?;
        let state = detail.members.get(slot).map_or("missing", |member| member.state.as_str());
        match state {
            "in-sync" => break,
            "recovering" => show(&bar, detail.sync.as_ref()),
            _ => {
                bar.finish_and_clear();
                let why =
                    detail.errors.last().cloned().unwrap_or_else(|| "see `pinstripe detail`".to_owned());
                return Err(Failure::new(format!("the rebuild of slot {slot} failed: {why}")));
            }
        }
        thread::sleep(LOOK);
    }
    bar.finish_and_clear();
    Ok(())
}

pub fn stop(arguments: &StopArguments) -> Result<(), Failure> {
    let array = &arguments.array.array;
    let mut client = Client::connect(array)?;
    client.call::<()>("stop", Value::Null)?;
    output::print(&format!("stopped {array}\n"))
}
