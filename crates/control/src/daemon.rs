//! The protocol of the daemon's control socket: as that of a server, with other methods.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Invalid, no_method, nothing, place, request};

/// The name of the daemon's socket in the folder of sockets. It doesn't end as a server's does.
pub const SOCKET: &str = "daemon.socket";

/// All methods.
pub const METHODS: &[&str] = &["version", "status", "look", "reload"];

/// A call, with its parameters checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Say what answers.
    Version,
    /// Show the arrays.
    Status,
    /// Look for members now: a device has appeared.
    Look,
    /// Read the configuration again.
    Reload,
}

/// Of `status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The daemon's process.
    pub pid: u32,
    /// Pinstripe's version.
    pub pinstripe: String,
    /// Seconds since the epoch when it began.
    pub since: u64,
    /// The files of the configuration that counts.
    pub files: Vec<PathBuf>,
    /// Why a later configuration doesn't count, or what was wrong with the first one and is left out.
    pub configuration_error: Option<String>,
    /// Why metrics or the page are not served as the configuration says; it is tried again.
    #[serde(default)]
    pub unserved: Option<String>,
    /// Seconds that the look for members that is under way has taken until now.
    pub looking_seconds: Option<u64>,
    /// What the latest look could not read, and what can't be kept of events and alerts.
    pub remarks: Vec<String>,
    /// The alerts that aren't over.
    #[serde(default)]
    pub alerts: Vec<AlertStatus>,
    /// The configured arrays: those that are to be started, and those with `auto = false` that are served.
    pub arrays: Vec<ArrayStatus>,
}

/// An array, as the daemon sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayStatus {
    /// Its name, or its UUID.
    pub array: String,
    /// Its UUID, where that is known.
    pub uuid: Option<String>,
    /// `waiting`, `starting`, `serving`, `silent` (its server doesn't answer), `stopped` or `failed`.
    pub state: String,
    /// Why, where there is a reason.
    pub why: Option<String>,
    /// Seconds in this state.
    pub seconds: u64,
    /// Its server's control socket.
    pub control: Option<PathBuf>,
    /// How often its server has failed, one after the other.
    pub failures: u32,
    /// Seconds until it is tried again.
    pub next_try_seconds: Option<u64>,
    /// When all of its parity was compared with the data the last time that the configuration had that done,
    /// in seconds since the epoch.
    #[serde(default)]
    pub checked: Option<u64>,
    /// When the configuration wants the next check, or since when, in seconds since the epoch; one under way
    /// may take until then. Nothing without `check-every`, and of an array that can't be checked: one without
    /// parity, one that is read-only, and one of which neither is known yet.
    #[serde(default)]
    pub check_due: Option<u64>,
    /// How many sectors of 512 bytes did not match then.
    #[serde(default)]
    pub checked_mismatched_sectors: Option<u64>,
    /// How many stripes could not be read whole then.
    #[serde(default)]
    pub checked_unreadable_stripes: Option<u64>,
    /// How often each event has happened since the daemon began, but for those that only tell how far a
    /// sync is.
    #[serde(default)]
    pub events: BTreeMap<String, u64>,
    /// What its disks say of their health; empty until they were asked, and without smartctl.
    #[serde(default)]
    pub disks: Vec<DiskHealth>,
}

/// Something that a person should see to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlertStatus {
    /// The array's name, or its UUID.
    pub array: String,
    /// `NotServed`, `Silent`, `Failed`, `Degraded`, `SpareFailed`, `ReadOnly`, `JournalFailed`, `BadSectors`,
    /// `DiskFailing`, `Mismatch`, `Unreadable`, `CheckOverdue`, `Warning` or `Misconfigured`.
    pub alert: String,
    /// The member that it is about; empty if it is about the array.
    pub device: String,
    /// Since when, in seconds since the epoch.
    pub since: u64,
    /// A sentence.
    pub message: String,
}

/// What a member's disk says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskHealth {
    /// The member.
    pub device: String,
    /// Why it is to be replaced; empty if it is well.
    pub failing: Vec<String>,
    /// Degrees Celsius.
    pub temperature_celsius: Option<i64>,
    /// How much of its life is used, of NVMe; can be more than 100.
    pub percentage_used: Option<u64>,
    /// Errors that it could not correct, of NVMe.
    pub media_errors: Option<u64>,
}

/// Of `look`, which is answered before the look is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Looks {
    /// Whether the daemon starts what it finds.
    pub starts: bool,
}

/// Of `reload`: what came of it, a sentence for each array that it changes something for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reloaded {
    /// The files that were read.
    pub files: Vec<PathBuf>,
    /// What has changed.
    pub changes: Vec<Change>,
    /// Why metrics or the page can't be served as it says; it is tried again.
    #[serde(default)]
    pub unserved: Option<String>,
}

/// A change of an array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// The array's name, or its UUID. What is of no array has `[daemon]` here, or `the target` and its name.
    pub array: String,
    /// When it counts.
    pub effect: Effect,
    /// What it is about.
    pub what: String,
}

/// When a change counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// It counts now.
    Live,
    /// It counts when the array's server is started again.
    Restart,
    /// The array is new.
    New,
    /// The array isn't started any more. Its server is left alone.
    Removed,
    /// The server did not take it.
    Failed,
}

/// Reads a request. With the error comes the id to answer with.
pub fn parse(line: &[u8]) -> Result<(Option<Value>, Command), Invalid> {
    let (id, request) = request(line)?;
    let to = id.clone().unwrap_or(Value::Null);
    let command = match request.method.as_str() {
        "version" => Command::Version,
        "status" => Command::Status,
        "look" => Command::Look,
        "reload" => Command::Reload,
        other => return Err((to, no_method(other, METHODS))),
    };
    nothing(&request).map_err(|error| (to, error))?;
    Ok((id, command))
}

/// Where the daemon listens, or would.
pub fn sockets() -> Vec<PathBuf> {
    place::folders().iter().map(|folder| folder.join(SOCKET)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::code;

    #[test]
    fn every_method_is_known_and_has_no_parameters() {
        for method in METHODS {
            for params in ["", r#","params":{}"#] {
                let line = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"{params}}}"#);
                assert!(parse(line.as_bytes()).is_ok(), "{line}");
            }
            let line = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{{"x":1}}}}"#);
            assert_eq!(parse(line.as_bytes()).unwrap_err().1.code, code::PARAMETERS, "{line}");
        }
        let unknown = parse(br#"{"jsonrpc":"2.0","id":1,"method":"stop"}"#).unwrap_err().1;
        assert_eq!(unknown.code, code::NO_METHOD);
        assert!(unknown.message.ends_with("version, status, look, reload"), "{}", unknown.message);
    }

    #[test]
    fn the_document_has_every_method() {
        let document = include_str!("../../../docs/control-protocol.md");
        let (_, own) = document.split_once("## The daemon").unwrap();
        for method in METHODS {
            assert!(own.contains(&format!("| `{method}` |")), "{method} is missing");
        }
    }
}
