//! What shells complete: words of the command line, and names of arrays, which this program is asked for.
//!
//! The scripts that shells load only call this program again, with [`VARIABLE`] set. So they fit every
//! version of it, and know the arrays of the moment.

use std::ffi::OsStr;

use clap::{Command, CommandFactory};
use clap_complete::{ArgValueCompleter, CompletionCandidate, env::CompleteEnv};

use pinstripe_control::text::shell_word;

use crate::{command_line::Cli, configuration, list};

/// In the environment it says that a shell wants completions.
pub const VARIABLE: &str = "PINSTRIPE_COMPLETE";

/// Answers a shell, and ends the process, if a shell asks.
pub fn answer_shell() {
    CompleteEnv::with_factory(command).var(VARIABLE).complete();
}

/// The command line, with what completes the names of arrays.
fn command() -> Command {
    Cli::command().mut_subcommands(|command| {
        let of_assemble = command.get_name() == "assemble";
        command.mut_args(|argument| match argument.get_id().as_str() {
            "array" | "arrays" => argument.add(ArgValueCompleter::new(served_arrays)),
            "name" if of_assemble => argument.add(ArgValueCompleter::new(configured_arrays)),
            _ => argument,
        })
    })
}

/// The arrays that are served, as `pinstripe list` has them.
fn served_arrays(current: &OsStr) -> Vec<CompletionCandidate> {
    let answers = list::servers().into_iter().filter_map(|(_, answer)| answer.ok());
    candidates(current, answers.map(|detail| (detail.name, detail.level)))
}

/// The arrays of the configuration.
fn configured_arrays(current: &OsStr) -> Vec<CompletionCandidate> {
    let arrays = configuration::load(None).map(|configuration| configuration.arrays).unwrap_or_default();
    candidates(current, arrays.into_iter().map(|array| (array.label(), "configured".to_owned())))
}

fn candidates(current: &OsStr, names: impl Iterator<Item = (String, String)>) -> Vec<CompletionCandidate> {
    let begun = current.to_string_lossy();
    // A name comes from a disk, and bash takes it into its command line as it is: what it would read as
    // anything but this one word, or as an option, it isn't given.
    let is_usable =
        |name: &str| name.starts_with(&*begun) && shell_word(name) == name && !name.starts_with('-');
    names
        .filter(|(name, _)| is_usable(name))
        .map(|(name, help)| CompletionCandidate::new(name).help(Some(help.into())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_of_an_array_is_more_to_a_shell_than_a_word() {
        let names = ["data", "$(touch x)", "a;reboot", "`id`", "a b", "*", "-x", "host:data", ""];
        let offered =
            candidates(OsStr::new(""), names.iter().map(|name| ((*name).to_owned(), String::new())));
        let offered: Vec<_> = offered.iter().map(|candidate| candidate.get_value().to_owned()).collect();
        assert_eq!(offered, ["data", "host:data"]);
    }
}
