//! `pinstripe upgrade`: another version of the program takes the place of a server.

use std::time::Duration;

use pinstripe_control::{
    UpgradeParameters, UpgradeResult, Version,
    client::{Client, ClientError},
    text::printable,
};
use serde_json::{Value, json};

use crate::{command_line::UpgradeArguments, failure::Failure, list, output, patience};

/// Longer than the two programs take to find that neither can go on.
const ANSWER_LIMIT: Duration = Duration::from_mins(3);

pub fn run(arguments: &UpgradeArguments) -> Result<(), Failure> {
    let program = match &arguments.program {
        Some(path) => std::path::absolute(path),
        None => std::env::current_exe(),
    };
    let program = program.map_err(|error| Failure::new(format!("can't find the program: {error}")))?;
    let Some(program) = program.to_str() else {
        return Err(Failure::usage(format!("the path {} isn't UTF-8", program.display())));
    };
    let arrays = match &arguments.array {
        Some(array) => vec![array.clone()],
        None => list::servers().into_iter().map(|(path, _)| path.display().to_string()).collect(),
    };
    let (mut told, mut failed, mut printed) = (Vec::new(), false, Ok(()));
    for array in &arrays {
        let outcome = upgrade(array, program);
        failed |= outcome.is_err();
        let line = match outcome {
            Ok(result) if arguments.json => {
                told.push(value(array, &result));
                continue;
            }
            Ok(result) => in_words(array, &result),
            Err(failure) if arguments.all && arguments.json => {
                told.push(json!({ "array": array, "error": failure.sentence() }));
                continue;
            }
            Err(failure) if arguments.all => format!("{}: {}\n", printable(array), failure.sentence()),
            Err(failure) => return Err(failure),
        };
        // Where nothing reads it, the others are upgraded all the same.
        printed = printed.and(output::print(&line));
    }
    printed?;
    match told.as_slice() {
        [one] if arguments.json && !arguments.all => output::print_json(one)?,
        all if arguments.json => output::print_json(&all)?,
        _ if arrays.is_empty() => output::print("no array is served\n")?,
        _ => {}
    }
    if failed { Err(Failure::said()) } else { Ok(()) }
}

fn upgrade(array: &str, program: &str) -> Result<UpgradeResult, Failure> {
    let mut client = Client::connect(array)?;
    let parameters = UpgradeParameters { program: program.to_owned() };
    let doing = "which asks the other program and leaves the array to it";
    match patience::last_work(&mut client, "upgrade", parameters, doing, Some(ANSWER_LIMIT)) {
        Err(ClientError::Ended { .. }) => Err(serving(array).map_or_else(|| lost(array, program), |now| {
            Failure::new(format!(
                "{}: the call ended without an answer, and pinstripe {} serves the array: another `pinstripe upgrade` was first, or \
                 the program crashed and was started again. The server's log says which",
                printable(array),
                printable(&now.pinstripe)
            ))
        })),
        upgraded => Ok(upgraded?),
    }
}

/// What serves an array now.
fn serving(array: &str) -> Option<Version> {
    let mut client = Client::connect(array).ok()?;
    client.set_timeout(Some(patience::ANSWER_LIMIT)).ok()?;
    client.call("version", Value::Null).ok()
}

fn lost(array: &str, program: &str) -> Failure {
    Failure::new(format!(
        "{}: {program} was to take the server's place and did not serve: it crashed, or hung and was ended after 60 s, or a member hangs, \
         which the server's log says. `pinstripe list` shows whether a service manager or the daemon has started the array again; else start it by the program that is installed",
        printable(array)
    ))
}

fn value(array: &str, result: &UpgradeResult) -> Value {
    let UpgradeResult { from, to, pause_ms, connections } = result;
    json!({ "array": array, "from": from, "to": to, "pause_ms": pause_ms, "connections": connections })
}

fn in_words(array: &str, result: &UpgradeResult) -> String {
    let UpgradeResult { from, to, pause_ms, connections } = result;
    let array = printable(array);
    format!(
        "{array}: pinstripe {to} has taken the place of {from}, with {connections} connections; requests waited {pause_ms} ms\n"
    )
}
