//! Completions and manual pages, generated from the command line's own description; what that doesn't say
//! stands in [`pages`].

mod pages;

use std::{fmt::Write, fs};

use clap::{Command, CommandFactory};
use clap_complete::{Shell, env::Shells};

use self::pages::{Page, page};
use crate::{
    command_line::{Cli, CompletionsArguments, ManArguments},
    completion::VARIABLE,
    failure::Failure,
    output,
};

/// A file that zsh loads at the first use completes at that use, too, and not only from the next one on.
const ZSH_AT_ONCE: &str = "
if [ \"$funcstack[1]\" = _pinstripe ]; then
    _clap_dynamic_completer_pinstripe \"$@\"
fi
";

pub fn completions(arguments: &CompletionsArguments) -> Result<(), Failure> {
    let (shells, shell) = (Shells::builtins(), arguments.shell.to_string());
    let Some(completer) = shells.completer(&shell) else {
        return Err(Failure::usage(format!("there are no completions for {shell}")));
    };
    let mut script = Vec::new();
    completer.write_registration(VARIABLE, "pinstripe", "pinstripe", "pinstripe", &mut script)?;
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if arguments.shell == Shell::Zsh {
        script += ZSH_AT_ONCE;
    }
    output::print(&script)
}

pub fn man(arguments: &ManArguments) -> Result<(), Failure> {
    let commands = commands();
    if let Some(folder) = &arguments.folder {
        let written = fs::create_dir_all(folder).and_then(|()| {
            commands.iter().try_for_each(|command| {
                fs::write(folder.join(format!("{}.1", full_name(command))), rendered(command)?)
            })
        });
        return written.map_err(|error| {
            Failure::new(format!("can't write manual pages to {}: {error}", folder.display()))
        });
    }
    let wanted = arguments
        .command
        .as_deref()
        .map_or_else(|| "pinstripe".to_owned(), |name| format!("pinstripe-{name}"));
    let Some(command) = commands.iter().find(|command| full_name(command) == wanted) else {
        return Err(Failure::usage(format!(
            "{wanted}: there is no such command; `pinstripe help` shows them"
        )));
    };
    output::print(&rendered(command)?)
}

/// The command itself, and what it can be asked to do.
fn commands() -> Vec<Command> {
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let subcommands: Vec<Command> = root.get_subcommands().cloned().collect();
    std::iter::once(root).chain(subcommands).collect()
}

/// The name of its page.
fn full_name(command: &Command) -> String {
    command.get_display_name().unwrap_or(command.get_name()).to_owned()
}

/// The page, as roff.
fn rendered(command: &Command) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    let version = concat!("pinstripe ", env!("CARGO_PKG_VERSION"));
    clap_mangen::Man::new(command.clone()).source(version).manual("Pinstripe").render(&mut bytes)?;
    let mut text = String::from_utf8_lossy(&bytes).into_owned();
    let Page { examples, files, related } = page(command.get_name());
    text += ".SH EXAMPLES\n";
    for (what, line) in examples {
        // A string takes whatever is written to it.
        let _ = write!(text, ".PP\n{}\n.PP\n.RS 4\n.nf\n{}\n.fi\n.RE\n", escaped(what), escaped(line));
    }
    text += ".SH FILES\n";
    for (path, what) in files {
        let _ = write!(text, ".TP\n.I {}\n{}\n", escaped(path), escaped(what));
    }
    let own = full_name(command);
    let pages = related.iter().map(|name| match name.contains('(') {
        true => (*name).to_owned(),
        false if name.is_empty() => "pinstripe(1)".to_owned(),
        false => format!("pinstripe-{name}(1)"),
    });
    let pages: Vec<String> = pages.filter(|page| *page != format!("{own}(1)")).collect();
    let _ = write!(text, ".SH SEE ALSO\n.nh\n{}\n", escaped(&pages.join(", ")));
    Ok(text)
}

/// Text as roff prints it.
fn escaped(text: &str) -> String {
    let plain = text.replace('\\', "\\e").replace('-', "\\-");
    if plain.starts_with(['.', '\'']) { format!("\\&{plain}") } else { plain }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::Parser;

    use super::*;
    use crate::command_line::words;

    #[test]
    fn every_command_has_a_page_with_examples_that_are_understood_files_and_relatives() {
        let commands = commands();
        let is_page = |name: &str| commands.iter().any(|command| command.get_name() == name);
        for command in &commands {
            let name = command.get_name();
            let page = page(name);
            assert!(!page.examples.is_empty() && !page.files.is_empty() && page.related.len() > 1, "{name}");
            for (_, line) in page.examples {
                let line = line.split([';', '&', '>', '|']).next().unwrap().replace('\'', "");
                let parsed = Cli::try_parse_from(words(line.split_whitespace().map(OsString::from)));
                assert!(parsed.is_ok(), "{name}: {line}: {}", parsed.unwrap_err());
            }
            for related in page.related {
                assert!(related.is_empty() || related.contains('(') || is_page(related), "{name}: {related}");
            }
            let text = rendered(command).unwrap();
            for heading in [".SH NAME", ".SH EXAMPLES", ".SH FILES", ".SH \"SEE ALSO\""] {
                let heading = heading.replace('"', "");
                assert!(text.contains(&heading), "{name}: {heading}");
            }
        }
        assert!(commands.len() > 20);
    }
}
