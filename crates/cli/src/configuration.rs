//! The configuration as commands use it: read, and its options checked as the command line of `serve` checks
//! them.

mod mounts;
#[cfg(test)]
mod page;
pub mod units;

use std::path::{Path, PathBuf};

use clap::{Parser, error::ContextKind};
use pinstripe_config::{Array, Configuration, Place, Problem, Problems, Settings};
use serde_json::json;

use crate::{
    command_line::{Cli, Command, ConfigCheckArguments, LogOptions},
    failure::Failure,
    output,
    scan::shown,
    serve,
};

/// A device that stands for the members, where only options are checked.
const ANY_DEVICE: &str = "/dev/null";

/// Reads all of it, or says all that is wrong.
pub fn load(main: Option<&Path>) -> Result<Configuration, Problems> {
    let configuration = Configuration::load(main)?;
    let mut problems = Vec::new();
    for array in &configuration.arrays {
        check("serve", &array.settings, &array.place, &mut problems);
    }
    for (name, setting) in &configuration.daemon {
        let alone = [(*name, setting.clone())].into();
        check("daemon", &alone, &setting.place, &mut problems);
    }
    // What arrays have from the defaults was checked with them, and an array may complete what the defaults
    // begin.
    if configuration.arrays.is_empty() || configuration.scan.all {
        let place = configuration.defaults.values().next().map(|setting| setting.place.clone());
        check(
            "serve",
            &configuration.defaults,
            &place.unwrap_or(Place { file: PathBuf::new(), line: None }),
            &mut problems,
        );
    }
    // A default is an error once, however many arrays have it.
    problems.sort();
    problems.dedup();
    if problems.is_empty() { Ok(configuration) } else { Err(Problems(problems)) }
}

/// What `[daemon]` says of its log.
pub fn log_options(configuration: &Configuration) -> LogOptions {
    match read("daemon", &configuration.daemon) {
        Ok(Command::Daemon(arguments)) => arguments.log,
        // Was refused by [`load`].
        _ => LogOptions::default(),
    }
}

/// What the command line of a command makes of options.
fn read(command: &str, settings: &Settings) -> Result<Command, clap::Error> {
    let words: Vec<String> = settings.iter().flat_map(|(name, setting)| setting.words(name)).collect();
    let words = ["pinstripe", command].into_iter().chain(words.iter().map(String::as_str));
    Cli::try_parse_from(words.chain((command == "serve").then_some(ANY_DEVICE))).map(|cli| cli.command)
}

/// Has the command line of a command read the options. It stops at an error, so what is wrong is taken out,
/// and the rest is read again.
fn check(command: &str, settings: &Settings, place: &Place, problems: &mut Vec<Problem>) {
    let mut left = settings.clone();
    loop {
        match read(command, &left) {
            Ok(Command::Serve(arguments)) => {
                if let Err(failure) = serve::check(*arguments) {
                    problems.push(Problem { place: place.clone(), what: failure.sentence().to_owned() });
                }
                return;
            }
            Ok(_) => return,
            Err(error) => {
                let option = error.get(ContextKind::InvalidArg).map(ToString::to_string).unwrap_or_default();
                let name = option.trim_start_matches("--").split([' ', '=', '[']).next().unwrap_or_default();
                let removed = left.remove(name);
                let place = removed.as_ref().map_or(place, |setting| &setting.place);
                problems.push(Problem { place: place.clone(), what: sentence(&error, name) });
                if removed.is_none() {
                    return;
                }
            }
        }
    }
}

/// What clap says, without what is only of use on a command line.
fn sentence(error: &clap::Error, name: &str) -> String {
    let text = error.to_string();
    let text = text.split("\n\nUsage").next().unwrap_or_default();
    let text = text.split("\n\nFor more").next().unwrap_or_default();
    let text = text.trim_start_matches("error: ");
    let words: Vec<&str> = text.split_whitespace().collect();
    if name.is_empty() { words.join(" ") } else { format!("\"{name}\": {}", words.join(" ")) }
}

/// `pinstripe config check`.
pub fn run(arguments: &ConfigCheckArguments) -> Result<(), Failure> {
    let loaded = load(arguments.file.as_deref());
    if arguments.json {
        let (files, arrays) = match &loaded {
            Ok(found) => (
                found.files.iter().map(|file| shown(file)).collect(),
                found.arrays.iter().map(Array::label).collect(),
            ),
            Err(_) => (Vec::new(), Vec::new()),
        };
        let problems = loaded.as_ref().err().map_or(&[][..], |problems| &problems.0);
        let errors: Vec<_> = problems
            .iter()
            .map(|problem| json!({ "file": shown(&problem.place.file), "line": problem.place.line, "error": problem.what }))
            .collect();
        let ok = errors.is_empty();
        output::print_json(&json!({ "ok": ok, "files": files, "arrays": arrays, "errors": errors }))?;
        return if ok { Ok(()) } else { Err(Failure::said()) };
    }
    let configuration = loaded?;
    output::print(&match (configuration.files.len(), configuration.arrays.len()) {
        (0, _) => format!("OK: there is no configuration ({} doesn't exist)\n", pinstripe_config::MAIN),
        (files, arrays) => format!("OK: {} of {}\n", count(arrays, "array"), count(files, "file")),
    })
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
