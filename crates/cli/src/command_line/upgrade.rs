//! `pinstripe upgrade`, and what it tells the program that takes a server's place.

use std::{os::fd::RawFd, path::PathBuf, str::FromStr};

use clap::{Args, ValueHint};

#[derive(Debug, Args)]
pub struct UpgradeArguments {
    /// The array's name or UUID, or the path of its control socket
    #[arg(value_name = "ARRAY", required_unless_present = "all", value_hint = ValueHint::FilePath)]
    pub array: Option<String>,
    /// All arrays that are served on this machine
    #[arg(long, conflicts_with = "array")]
    pub all: bool,
    /// The program that takes the server's place [default: this one]
    #[arg(long, value_name = "PATH", value_hint = ValueHint::ExecutablePath)]
    pub program: Option<PathBuf>,
    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

/// What a program is told that is to take a server's place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Role {
    /// Say whether these words can be served by.
    Asked,
    /// Take over what the file with this number tells of.
    Successor(RawFd),
}

impl Role {
    /// What the first one is called.
    pub const ASK: &str = "ask";
}

impl FromStr for Role {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            Self::ASK => Ok(Self::Asked),
            number => {
                number.parse().map(Self::Successor).map_err(|error| format!("no file's number: {error}"))
            }
        }
    }
}
