//! What is asked of commands that check, repair and watch an array.

use std::{
    path::PathBuf,
    time::{Duration, UNIX_EPOCH},
};

use clap::{Args, ValueHint};
use pinstripe_control::maintenance::SyncChange;

use super::{ArrayArguments, LogOptions};

/// A part of the members.
#[derive(Clone, Copy, Debug, Args)]
pub struct RangeArguments {
    /// First sector (512 bytes) of each member's data, as MD's sync_min. Whole chunks are processed
    #[arg(long, value_name = "SECTOR", default_value_t = 0)]
    pub from: u64,
    /// The sector (512 bytes) after the last one, as MD's sync_max [default: the end of the data]
    #[arg(long, value_name = "SECTOR")]
    pub to: Option<u64>,
}

#[derive(Debug, Args)]
pub struct CheckArguments {
    #[command(flatten)]
    pub array: ArrayArguments,
    #[command(flatten)]
    pub range: RangeArguments,
    /// Print JSON, and no progress
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct RepairArguments {
    #[command(flatten)]
    pub array: ArrayArguments,
    #[command(flatten)]
    pub range: RangeArguments,
    /// Correct only mismatches that one wrong member explains (level 6)
    #[arg(long)]
    pub locate: bool,
    /// Print JSON, and no progress
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct SyncArguments {
    #[command(flatten)]
    pub array: ArrayArguments,
    /// What to do with the resync, recovery, check or repair under way. Without it, its state is shown
    #[arg(value_enum)]
    pub action: Option<SyncAction>,
    /// KiB per second of each member that it gets at least, under any load
    #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u64).range(1..))]
    pub speed_min: Option<u64>,
    /// KiB per second of each member that it gets at most
    #[arg(long, value_name = "KIB", value_parser = clap::value_parser!(u64).range(1..))]
    pub speed_max: Option<u64>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What `sync` shall do.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum SyncAction {
    /// Let resync, recovery, check and repair stand still, and begin none (MD: frozen)
    Pause,
    /// Go on
    Resume,
    /// End check and repair; a resync or recovery can only be paused (MD: idle)
    Stop,
}

impl From<SyncAction> for SyncChange {
    fn from(action: SyncAction) -> Self {
        match action {
            SyncAction::Pause => Self::Pause,
            SyncAction::Resume => Self::Resume,
            SyncAction::Stop => Self::Stop,
        }
    }
}

#[derive(Debug, Args)]
pub struct EventsArguments {
    /// The array's name; all arrays without
    pub array: Option<String>,
    /// Only what happened within this time, such as 2days or 3h, or since a date (UTC), such as 2026-11-29 or
    /// "2026-11-29 14:05:00"
    ///
    /// Where the clock was wrong or has been set, what may have happened since then is shown, too.
    #[arg(long, value_name = "TIME", value_parser = since)]
    pub since: Option<Since>,
    /// Only what a person should have seen to
    #[arg(long)]
    pub alarming: bool,
    /// Go on with what happens, until it is ended
    #[arg(long, short)]
    pub follow: bool,
    /// Print JSON lines
    #[arg(long)]
    pub json: bool,
}

/// Since when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    Ago(Duration),
    /// In seconds since the epoch.
    Date(u64),
}

fn since(text: &str) -> Result<Since, String> {
    if let Ok(time) = humantime::parse_duration(text) {
        return Ok(Since::Ago(time));
    }
    let date = humantime::parse_rfc3339_weak(text);
    let date = date.or_else(|_| humantime::parse_rfc3339_weak(&format!("{text} 00:00:00")));
    let seconds = date.ok().and_then(|date| date.duration_since(UNIX_EPOCH).ok());
    let wrong = || "neither a time, such as 2days, nor a date, such as 2026-11-29 or 2026-11-29 14:05:00";
    Ok(Since::Date(seconds.ok_or_else(wrong)?.as_secs()))
}

#[derive(Debug, Args)]
pub struct MonitorArguments {
    /// The arrays' names, or the paths of their control sockets. The arrays need not be served yet
    #[arg(required = true, value_name = "ARRAY", value_hint = ValueHint::FilePath)]
    pub arrays: Vec<String>,
    /// Program to run for each event. Its arguments are the event, the array and, if there is one, the device
    #[arg(long, value_name = "PROGRAM", value_hint = ValueHint::CommandName)]
    pub program: Option<PathBuf>,
    /// Print JSON lines instead of text
    #[arg(long)]
    pub json: bool,
    /// Write to the system's log too (/dev/log)
    #[arg(long)]
    pub syslog: bool,
    /// Report arrays that have fewer spares than this
    #[arg(long, value_name = "N")]
    pub spares: Option<usize>,
    /// Report what is wrong now (DegradedArray, SparesMissing, DeviceDisappeared, ServerSilent), and end
    #[arg(long)]
    pub oneshot: bool,
    #[command(flatten)]
    pub log: LogOptions,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_is_a_time_or_a_date() {
        assert_eq!(since("2days"), Ok(Since::Ago(Duration::from_hours(48))));
        assert_eq!(since("1970-01-02"), Ok(Since::Date(86400)));
        assert_eq!(since("1970-01-02 00:01:00"), Ok(Since::Date(86460)));
        assert_eq!(since("1970-01-02T00:01:00Z"), Ok(Since::Date(86460)));
        for wrong in ["", "yesterday", "2", "1970-13-01", "1969-12-31"] {
            assert!(since(wrong).is_err_and(|why| why.contains("2days")), "{wrong}");
        }
    }
}
