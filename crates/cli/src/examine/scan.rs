//! `pinstripe examine --scan`: the arrays that are found, as configuration.

use std::fmt::Write;

use pinstripe_config::Configuration;
use pinstripe_control::{place::stem, text::printable};
use serde_json::{Value, json};

use crate::{
    command_line::ExamineArguments,
    configuration,
    failure::Failure,
    joined, output,
    scan::{FoundArray, FoundMember, LIMIT, Served},
};

pub fn run(arguments: &ExamineArguments) -> Result<(), Failure> {
    let configuration = configuration::load(arguments.configuration.config.as_deref())?;
    let seen = joined::scan_within(configuration.scan.devices.as_deref(), LIMIT, &[]);
    if arguments.json {
        let (served, silent) = Served::all();
        let arrays: Vec<Value> = seen.arrays.iter().map(|array| array.value(&served)).collect();
        let remarks: Vec<&String> = seen.remarks.iter().chain(&silent).collect();
        return output::print_json(&json!({ "arrays": arrays, "remarks": remarks }));
    }
    for remark in &seen.remarks {
        output::remark(&format!("pinstripe: {}", printable(remark)));
    }
    let entries: Vec<String> = seen.arrays.iter().map(|array| entry(array, &configuration)).collect();
    output::print(&if entries.is_empty() { "# no array was found\n".to_owned() } else { entries.join("\n") })
}

/// An `[[array]]`. One that can't be served stands there as a comment: an array that the kernel runs is not
/// ours to start, unless a person says so. So does one that is configured already, so that what is printed
/// can be added to the configuration.
fn entry(array: &FoundArray, configuration: &Configuration) -> String {
    let mut text = format!("# {}\n", printable(&array.in_words()));
    for member in &array.members {
        // A string takes whatever is written to it.
        let _ = writeln!(text, "#   {}", printable(&member_words(member)));
    }
    let obstacle = array.obstacle();
    if let Some(obstacle) = &obstacle {
        let _ = writeln!(text, "# Not to be served: {}", printable(obstacle));
    }
    let known = configuration.arrays.iter().find(|entry| entry.is(array.uuid, &array.name));
    if let Some(known) = known {
        let _ = writeln!(text, "# Configured already: {}", printable(&known.place.to_string()));
    }
    let mark = if obstacle.is_some() || known.is_some() { "# " } else { "" };
    for line in configured(array).lines() {
        let _ = writeln!(text, "{mark}{line}");
    }
    text
}

/// The `[[array]]` of an array.
pub fn configured(array: &FoundArray) -> String {
    let mut text = format!("[[array]]\nuuid = {}\n", quoted(&array.uuid.to_string()));
    if stem(&array.name, "/") == array.name && stem(&array.short_name(), "/") == array.short_name() {
        let _ = writeln!(text, "name = {}", quoted(&array.name));
    } else {
        let _ = writeln!(text, "# Its name can't stand here: {}", printable(&array.name));
    }
    text
}

fn member_words(member: &FoundMember) -> String {
    let role = super::role_words(member.role);
    let mut words = format!("{role}: {}", member.path.display());
    for other in &member.also {
        let _ = write!(words, " = {}", other.display());
    }
    if member.stale {
        words += ", out of date: it missed writes";
    } else if member.unfit {
        words += ", of no use: its bad-block log can't be used";
    } else if !member.whole {
        words += ", not rebuilt yet";
    }
    words
}

/// A text as TOML has it.
fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}
