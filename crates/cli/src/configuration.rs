//! The configuration as commands use it: read, and its options checked as the command line of `serve` checks
//! them.

pub mod file_systems;
pub mod mounts;
#[cfg(test)]
mod page;
mod sense;
pub mod units;

use std::path::{Path, PathBuf};

use clap::{Parser, error::ContextKind};
use pinstripe_config::{Array, Configuration, Place, Problem, Problems, Settings, Target, Usable};
use serde_json::json;

use crate::{
    command_line::{Cli, Command, ConfigCheckArguments, LogOptions},
    failure::Failure,
    output,
    scan::shown,
    serve, target,
};

/// A command, and the devices on its command line.
type Words<'a, T> = (&'static str, &'a [T]);

/// One device stands for the members, where only options are checked.
const OF_ARRAY: Words<'_, &str> = ("serve", &["/dev/null"]);
const OF_DAEMON: Words<'_, &str> = ("daemon", &[]);

/// Reads all of it, or says all that is wrong.
pub fn load(main: Option<&Path>) -> Result<Configuration, Problems> {
    checked(Configuration::load(main)?)
}

/// As if a further file were there with this text.
pub fn load_with(main: Option<&Path>, path: &Path, text: &str) -> Result<Configuration, Problems> {
    checked(Configuration::load_with(main, path, text)?)
}

/// As far as it is right, for what must not wait until all of it is: at a boot, an error in one entry is no
/// reason to serve none of the others. Two that want one address are left to their servers, of which the
/// second one says so.
pub fn load_usable(main: Option<&Path>) -> Result<Usable, Problems> {
    let mut usable = Configuration::load_usable(main)?;
    let Usable { configuration, wrong, problems, is_daemon_wrong } = &mut usable;
    for (place, own) in wrong_entries(configuration) {
        wrong.push(place);
        problems.extend(own);
    }
    let before = problems.len();
    check_daemon(configuration, problems);
    *is_daemon_wrong |= problems.len() > before;
    if !wrong.is_empty() {
        // What has an entry that is wrong isn't to be started as if it had none.
        configuration.scan.all = false;
    }
    problems.sort();
    problems.dedup();
    Ok(usable)
}

/// The configuration of a daemon that begins.
pub struct Begun {
    /// Without the entries that are wrong.
    pub configuration: Configuration,
    /// The arrays of those, and what is told of each.
    pub left_out: Vec<(String, String)>,
    /// All that is wrong.
    pub problems: Option<Problems>,
}

/// For a daemon that begins. An error in one entry keeps none of the other arrays from being looked after.
/// One in what the daemon itself goes by keeps it from beginning: from where it may be reached is not to be
/// guessed.
pub fn load_to_begin(main: Option<&Path>) -> Result<Begun, Problems> {
    let problems = match load(main) {
        Ok(configuration) => {
            return Ok(Begun { configuration, left_out: Vec::new(), problems: None });
        }
        Err(problems) => problems,
    };
    let Usable { mut configuration, wrong, .. } = match load_usable(main) {
        Ok(usable) if !usable.is_daemon_wrong => usable,
        _ => return Err(problems),
    };
    let is_wrong = |place: &Place| wrong.contains(place);
    let is_target = |place: &&Place| configuration.targets.iter().any(|target| target.place == **place);
    let mut left_out = Vec::new();
    for place in wrong.iter().filter(|place| !is_target(place)) {
        let entry = configuration.arrays.iter().find(|array| array.place == *place);
        if entry.is_none_or(|array| array.auto) {
            let label = entry.map_or_else(|| place.to_string(), Array::label);
            let words = format!("its entry ({place}) is wrong, and the daemon does not see to it");
            left_out.push((label, format!("{words}: `pinstripe config check` says what is wrong")));
        }
    }
    left_out.dedup();
    configuration.arrays.retain(|array| !is_wrong(&array.place));
    configuration.targets.retain(|target| !is_wrong(&target.place));
    Ok(Begun { configuration, left_out, problems: Some(problems) })
}

/// The entries of arrays and targets with options that are wrong, by where they begin.
fn wrong_entries(configuration: &Configuration) -> Vec<(Place, Vec<Problem>)> {
    let mut all = Vec::new();
    for array in &configuration.arrays {
        let mut own = Vec::new();
        check(OF_ARRAY, &array.settings, &array.place, &mut own);
        all.push((array.place.clone(), own));
    }
    for Target { settings, devices, place, .. } in &configuration.targets {
        let mut own = Vec::new();
        check(("target", devices), settings, place, &mut own);
        all.push((place.clone(), own));
    }
    all.retain(|(_, own)| !own.is_empty());
    all
}

fn check_daemon(configuration: &Configuration, problems: &mut Vec<Problem>) {
    for (name, setting) in &configuration.daemon {
        let alone = [(*name, setting.clone())].into();
        check(OF_DAEMON, &alone, &setting.place, problems);
    }
}

fn checked(configuration: Configuration) -> Result<Configuration, Problems> {
    let mut problems: Vec<Problem> =
        wrong_entries(&configuration).into_iter().flat_map(|(_, own)| own).collect();
    check_daemon(&configuration, &mut problems);
    // What arrays have from the defaults was checked with them, and an array may complete what the defaults
    // begin.
    if configuration.arrays.is_empty() || configuration.scan.all {
        let place = configuration.defaults.values().next().map(|setting| setting.place.clone());
        check(
            OF_ARRAY,
            &configuration.defaults,
            &place.unwrap_or(Place { file: PathBuf::new(), line: None }),
            &mut problems,
        );
    }
    problems.extend(sense::clashes(&configuration));
    // A default is an error once, however many arrays have it.
    problems.sort();
    problems.dedup();
    if problems.is_empty() { Ok(configuration) } else { Err(Problems(problems)) }
}

/// What `[daemon]` says of its log.
pub fn log_options(configuration: &Configuration) -> LogOptions {
    match read(OF_DAEMON, &configuration.daemon) {
        Ok(Command::Daemon(arguments)) => arguments.log,
        // Was refused by [`load`].
        _ => LogOptions::default(),
    }
}

/// Why the server of an array could not begin now, though the configuration is right: another program has
/// its port, its certificates can't be used. None if that isn't seen.
pub fn obstacle(array: &Array) -> Option<String> {
    // Was refused by [`load`].
    let Ok(Command::Serve(arguments)) = read(OF_ARRAY, &array.settings) else { return None };
    let tls = || serve::try_certificates(&arguments.tls).err().map(|why| why.sentence().to_owned());
    sense::taken(&array.settings).or_else(tls)
}

/// What the command line of a command makes of options.
fn read<T: AsRef<str>>(
    (command, devices): Words<'_, T>,
    settings: &Settings,
) -> Result<Command, clap::Error> {
    let words: Vec<String> = settings.iter().flat_map(|(name, setting)| setting.words(name)).collect();
    let words = ["pinstripe", command].into_iter().chain(words.iter().map(String::as_str));
    Cli::try_parse_from(words.chain(devices.iter().map(AsRef::as_ref))).map(|cli| cli.command)
}

/// Has the command line of a command read the options. It stops at an error, so what is wrong is taken out,
/// and the rest is read again.
fn check<T: AsRef<str>>(
    command: Words<'_, T>,
    settings: &Settings,
    place: &Place,
    problems: &mut Vec<Problem>,
) {
    let mut left = settings.clone();
    loop {
        match read(command, &left) {
            Ok(read) => {
                let checked = match read {
                    Command::Serve(arguments) => serve::check(*arguments),
                    Command::Target(arguments) => target::check(&arguments),
                    _ => Ok(()),
                };
                let wrong =
                    |failure: Failure| Problem { place: place.clone(), what: failure.sentence().to_owned() };
                problems.extend(checked.err().map(wrong));
                return;
            }
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
        let found = loaded.as_ref().ok();
        let files: Vec<_> = found.iter().flat_map(|found| &found.files).map(|file| shown(file)).collect();
        let arrays: Vec<_> = found.iter().flat_map(|found| &found.arrays).map(Array::label).collect();
        let targets: Vec<_> = found.iter().flat_map(|found| &found.targets).map(|one| &one.name).collect();
        let problems = loaded.as_ref().err().map_or(&[][..], |problems| &problems.0);
        let errors: Vec<_> = problems
            .iter()
            .map(|problem| json!({ "file": shown(&problem.place.file), "line": problem.place.line, "error": problem.what }))
            .collect();
        let ok = errors.is_empty();
        let warnings: Vec<_> = found
            .map(sense::missing)
            .unwrap_or_default()
            .iter()
            .map(|problem| json!({ "file": shown(&problem.place.file), "line": problem.place.line, "warning": problem.what }))
            .collect();
        output::print_json(&json!({
            "ok": ok, "files": files, "arrays": arrays, "targets": targets, "errors": errors, "warnings": warnings,
        }))?;
        return if ok { Ok(()) } else { Err(Failure::said()) };
    }
    let configuration = loaded?;
    for problem in sense::missing(&configuration) {
        output::remark(&format!("pinstripe: warning: {problem}"));
    }
    output::print(&match (configuration.files.len(), configuration.arrays.len()) {
        (0, _) => format!("OK: there is no configuration ({} doesn't exist)\n", pinstripe_config::MAIN),
        (files, arrays) => {
            let targets = match configuration.targets.len() {
                0 => String::new(),
                targets => format!(" and {}", count(targets, "target")),
            };
            format!("OK: {}{targets} of {}\n", count(arrays, "array"), count(files, "file"))
        }
    })
}

/// `1 array`, `2 arrays`.
pub fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
