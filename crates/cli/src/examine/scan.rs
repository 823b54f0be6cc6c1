//! `pinstripe examine --scan`: the arrays that are found, as configuration.

use std::fmt::Write;

use pinstripe_config::{Array, Configuration};
use pinstripe_control::{place::stem, text::printable};
use serde_json::{Value, json};

use crate::{
    command_line::ExamineArguments,
    configuration::{self, units::unit},
    failure::Failure,
    joined, output,
    scan::{FoundArray, FoundMember, LIMIT, Served},
    systemd,
};

/// In the configuration's folder: a file with what is printed, to see what it would do.
const PRINTED: &str = "examined.toml";

pub fn run(arguments: &ExamineArguments) -> Result<(), Failure> {
    let given = arguments.configuration.config.as_deref();
    let configuration = configuration::load(given)?;
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
    if entries.is_empty() {
        return output::print("# no array was found\n");
    }
    let mut text = entries.join("\n");
    let printed = Configuration::folder(given).join(PRINTED);
    if let Ok(then) = configuration::load_with(given, &printed, &text) {
        text += &to_do(&then, |entry: &Array| entry.place.file == printed, systemd::has_units(given));
    }
    output::print(&text)
}

/// What makes entries count that are new, and what a person may miss in them; as a comment. `then`: the
/// configuration with them.
fn to_do(then: &Configuration, is_new: impl Fn(&Array) -> bool, has_units: bool) -> String {
    let new: Vec<&Array> = then.arrays.iter().filter(|entry| is_new(entry)).collect();
    if new.is_empty() {
        return String::new();
    }
    let mut text = "\n# With this in the configuration: pinstripe config check\n".to_owned();
    let units: Vec<String> = new.iter().filter_map(|entry| unit(then, entry)).collect();
    let start = if has_units && !units.is_empty() {
        format!("systemctl daemon-reload && systemctl start {}", units.join(" "))
    } else {
        "pinstripe assemble --scan".to_owned()
    };
    // A string takes whatever is written to it.
    let _ = writeln!(text, "# Then: {start}");
    if new.iter().any(|entry| entry.run_after().is_none()) {
        text += "# `run-after = 30` there, or in [defaults], has a boot wait so long for a member, and then do \
            without it.\n";
    }
    let no = pinstripe_config::Value::Flag(false);
    let has_device = |entry: &Array| entry.settings.get("ublk").is_some_and(|setting| setting.value != no);
    if !new.iter().all(|entry| has_device(entry)) {
        text += "# `ublk = true` makes /dev/pinstripe/NAME. What [defaults] say on another machine is not in the \
            array.\n";
    }
    text
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

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn entries_that_are_new_are_told_with_what_makes_them_count() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pinstripe.toml");
        let told = |text: &str, has_units: bool| {
            fs::write(&path, text).unwrap();
            let then = configuration::load(Some(&path)).unwrap();
            to_do(&then, |entry| entry.name.as_deref() != Some("old"), has_units)
        };
        assert_eq!(told("[[array]]\nname = 'old'\n", true), "");
        let text = "[[array]]\nname = 'old'\n[[array]]\nname = 'host:a'\n[[array]]\nname = 'b'\n";
        let by_units = told(text, true);
        assert!(by_units.contains("systemctl start pinstripe@a.service pinstripe@b.service\n"), "{by_units}");
        assert!(by_units.contains("run-after") && by_units.contains("ublk"), "{by_units}");
        assert!(by_units.lines().all(|line| line.is_empty() || line.starts_with("# ")), "{by_units}");
        assert!(told(text, false).contains("pinstripe assemble --scan"));
        let whole = told(&format!("[defaults]\nublk = true\nrun-after = 30\n{text}"), true);
        assert!(!whole.contains("run-after") && !whole.contains("ublk"), "{whole}");
    }
}
