//! What is asked of commands that run long and keep a log.

use clap::{Args, ValueEnum};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Args)]
pub struct LogOptions {
    /// How the log is written [default: journald where standard error goes to the journal, else text]
    #[arg(long, value_name = "FORMAT", value_enum)]
    pub log_format: Option<LogFormat>,
    /// What is logged: this and all that is more severe [default: info]
    #[arg(long, value_name = "LEVEL", value_enum)]
    pub log_level: Option<LogLevel>,
}

impl LogOptions {
    /// These, and where they say nothing, the `others`.
    pub fn or(self, others: Self) -> Self {
        Self {
            log_format: self.log_format.or(others.log_format),
            log_level: self.log_level.or(others.log_level),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LogFormat {
    /// Sentences on standard error
    Text,
    /// JSON objects on standard error, one a line
    Json,
    /// Entries with fields in the journal of systemd; text where there is none
    Journald,
}

/// The more severe is the lesser.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, ValueEnum)]
pub enum LogLevel {
    /// What has failed
    Error,
    /// What an administrator should see to
    Warning,
    /// What happens
    #[default]
    Info,
    /// What helps to find out why: the ends of connections
    Debug,
}

impl LogLevel {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warning => "warning",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }
}
