//! `pinstripe upgrade`: another version of the program takes the place of a server.

use std::time::Duration;

use pinstripe_control::{UpgradeParameters, UpgradeResult, client::Client, text::printable};
use serde_json::{Value, json};

use crate::{command_line::UpgradeArguments, failure::Failure, list, output};

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
    client.set_timeout(Some(ANSWER_LIMIT))?;
    Ok(client.call("upgrade", UpgradeParameters { program: program.to_owned() })?)
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
