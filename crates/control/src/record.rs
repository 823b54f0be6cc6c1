//! Recordings of what the clients of an array ask for.

use serde::{Deserialize, Serialize};

/// Of `record`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordParameters {
    /// What to do.
    pub action: RecordAction,
    /// Of `next` and `stop`: the recording.
    #[serde(default)]
    pub recording: Option<u64>,
    /// Of `next`: how long to wait for many requests; at most 1000.
    #[serde(default)]
    pub wait_ms: u64,
}

/// What `record` shall do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordAction {
    /// Begin a recording.
    Start,
    /// Give what came, and go on.
    Next,
    /// Record no more, and give what came; to be called again while there is more.
    Stop,
}

/// Of `record`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordResult {
    /// The number of the recording.
    pub recording: u64,
    /// What clients asked for, in the order in which it was noted.
    pub requests: Vec<Recorded>,
    /// Requests since the last call for which there was no room.
    pub lost: u64,
    /// There are more.
    pub more: bool,
}

/// A request: nanoseconds since the recording began, what it was, offset and length in bytes (0 of a flush),
/// and whether it had to be durable when it was answered (FUA). As JSON, an array of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded(pub u64, pub Operation, pub u64, pub u64, pub bool);

/// What clients ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush.
    Flush,
    /// A discard.
    Discard,
    /// Zeroes that were written without being sent.
    WriteZeroes,
}
