//! Parameters and results of the calls about maintenance and events.

use serde::{Deserialize, Serialize};

use super::detail::Sync;

/// Of `check`: a range in sectors of 512 bytes of each member's data (MD: `sync_min`, `sync_max`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckParameters {
    /// The first sector.
    #[serde(default)]
    pub from: u64,
    /// The sector behind the last one; without, all to the end.
    #[serde(default)]
    pub to: Option<u64>,
}

/// Of `repair`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RepairParameters {
    /// The first sector.
    #[serde(default)]
    pub from: u64,
    /// The sector behind the last one; without, all to the end.
    #[serde(default)]
    pub to: Option<u64>,
    /// Correct the one chunk that explains both parities, and nothing else.
    #[serde(default)]
    pub locate: bool,
}

/// Of `check` and `repair`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckResult {
    /// Stripes that were done.
    pub stripes: u64,
    /// Sectors of rows (4 KiB each) with parity that did not match, as MD's `mismatch_cnt` counts them;
    /// repaired or not.
    pub mismatched_sectors: u64,
    /// Stripes that could not be read whole.
    pub unreadable_stripes: u64,
    /// Stripes with rows that could not be compared: where members are missing there may be no more parity
    /// than what they have is made of.
    #[serde(default)]
    pub uncompared_stripes: u64,
    /// Sectors of single members that `locate` corrected.
    pub corrected_sectors: u64,
    /// Sectors that no single member explains; `locate` left them.
    pub unexplained_sectors: u64,
    /// Where corrections were made; the first 1024 places.
    pub corrected: Vec<MemberSectors>,
    /// False if it was stopped before its end.
    pub complete: bool,
    /// The first sector of each member's data that was not compared: `from` of a call that goes on there.
    #[serde(default)]
    pub next_sector: Option<u64>,
}

/// Sectors of a member, from the start of its device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberSectors {
    /// Its slot, from 0.
    pub slot: usize,
    /// Its device or URI.
    pub device: String,
    /// The first one.
    pub sector: u64,
    /// How many, of 512 bytes.
    pub sectors: u64,
}

/// What `sync` shall do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SyncChange {
    /// Let resync, recovery, check and repair stand still, and begin none (MD: frozen).
    Pause,
    /// Go on.
    Resume,
    /// End check and repair; a resync or recovery can only be paused (MD: idle).
    Stop,
}

/// Of `sync`; what isn't there stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SyncParameters {
    /// What work under way shall do.
    #[serde(default)]
    pub action: Option<SyncChange>,
    /// KiB of each member per second.
    #[serde(default)]
    pub speed_min_kib: Option<u64>,
    /// KiB of each member per second.
    #[serde(default)]
    pub speed_max_kib: Option<u64>,
}

/// Of `sync`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncResult {
    /// Whether work stands still.
    pub paused: bool,
    /// KiB per second of each member that it gets under any load.
    pub speed_min_kib: u64,
    /// KiB per second of each member that it gets at most.
    pub speed_max_kib: u64,
    /// What is under way.
    pub sync: Option<Sync>,
}

/// Of `events`: those after number `after`, waiting for the first one at most so long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EventsParameters {
    /// The last number that the caller has seen; 0 for all.
    #[serde(default)]
    pub after: u64,
    /// Milliseconds to wait for an event, if there is none.
    #[serde(default)]
    pub wait_ms: u64,
}

/// Of `events`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventsResult {
    /// Names this run of the server. Another run has another one, and its numbers begin anew.
    pub instance: String,
    /// Number of the latest event.
    pub last: u64,
    /// In order. If the first one's number isn't the next one, the events between are lost.
    pub events: Vec<Event>,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Counts from 1, without gaps.
    pub number: u64,
    /// Seconds since 1970.
    pub time: u64,
    /// mdadm's word, or one of ours.
    pub event: String,
    /// The member that it is about.
    pub device: Option<String>,
    /// Whether a user should do something.
    pub alarming: bool,
    /// A sentence.
    pub message: String,
}
