//! How a command ends when it does not end well.

use std::process::ExitCode;

use pinstripe_control::text::printable_lines;

use crate::{log, remark::remark};

/// The status for a command line that makes no sense: `EX_USAGE` of sysexits.h. (2 says with mdadm, and with
/// `detail --test`, that an array has failed.)
pub const USAGE: u8 = 64;

/// The status of `assemble --foreground` where another process serves the array: `EX_UNAVAILABLE`.
pub const SERVED: u8 = 69;

/// A sentence for the user and the exit status that goes with it.
///
/// Every error value turns into one by `?`; what the errors say is up to the crates that define them.
#[derive(Debug)]
pub struct Failure {
    status: u8,
    /// Empty when all is said already.
    sentence: String,
}

impl Failure {
    /// Something did not work: status 1.
    pub fn new(sentence: impl Into<String>) -> Self {
        Self { status: 1, sentence: sentence.into() }
    }

    /// What was asked for makes no sense, whatever the devices hold: status [`USAGE`].
    pub fn usage(sentence: impl Into<String>) -> Self {
        Self { status: USAGE, sentence: sentence.into() }
    }

    /// All is said on standard output already: status 1 without a sentence.
    pub fn said() -> Self {
        Self { status: 1, sentence: String::new() }
    }

    /// Another status.
    pub fn with_status(self, status: u8) -> Self {
        Self { status, ..self }
    }

    /// The sentence.
    pub fn sentence(&self) -> &str {
        &self.sentence
    }

    /// Tells the user, and gives the exit status.
    pub fn report(&self) -> ExitCode {
        if !self.sentence.is_empty() && !log::fail(&self.sentence) {
            // It may name what a disk says.
            remark(&format!("pinstripe: {}", printable_lines(&self.sentence)));
        }
        ExitCode::from(self.status)
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(error.to_string())
    }
}
