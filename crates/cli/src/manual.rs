//! Completions and manual pages, generated from the command line's own description.

use clap::CommandFactory;

use crate::{
    command_line::{Cli, CompletionsArguments, ManArguments},
    failure::Failure,
    output,
};

pub fn completions(arguments: &CompletionsArguments) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut Cli::command(), "pinstripe", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

pub fn man(arguments: &ManArguments) -> Result<(), Failure> {
    if let Some(folder) = &arguments.folder {
        let written =
            std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(Cli::command(), folder));
        return written.map_err(|error| {
            Failure::new(format!("can't write manual pages to {}: {error}", folder.display()))
        });
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(Cli::command()).render(&mut page)?;
    output::print(&String::from_utf8_lossy(&page))
}
