//! The state of a running array, as it travels over the control socket and as people read it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    output::{self, printable},
    size::ByteSize,
};

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detail {
    /// The array's name, without the host.
    pub name: String,
    /// Its identity.
    pub uuid: String,
    /// `raid0`, `raid4`, `raid5` or `raid6`.
    pub level: String,
    /// mdadm's name of the layout; empty on levels that have none.
    pub layout: String,
    pub chunk_bytes: u64,
    pub logical_block_bytes: u64,
    pub size_bytes: u64,
    /// `clean`, `active`, `read-only` or `failed`.
    pub state: String,
    /// Whether a slot lacks a member that has everything.
    pub degraded: bool,
    pub events: u64,
    pub members: Vec<Member>,
    /// Devices that were dropped.
    pub failed: Vec<Failed>,
    pub bitmap: Option<Bitmap>,
    /// `resync`, `bitmap`, `ppl` or `double-parity-log`; empty on level 0.
    pub consistency_policy: String,
    /// Regions whose parity may not match yet.
    pub regions_to_resync: u64,
    /// What resync, rebuild or check is under way.
    pub sync: Option<Sync>,
    /// The latest errors for which members were dropped, oldest first.
    pub errors: Vec<String>,
    /// What the user can do, if something is wrong.
    pub advice: Option<String>,
    /// Where NBD clients reach it.
    pub nbd: Vec<String>,
    pub shards: usize,
    /// Counters since the assembly.
    pub statistics: BTreeMap<String, u64>,
}

/// A slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    pub slot: usize,
    /// `in-sync`, `recovering` or `missing`.
    pub state: String,
    pub device: Option<String>,
    /// Nanoseconds of a small read, as measured.
    pub read_latency_ns: u64,
    /// Nanoseconds of a small write, as measured.
    pub write_latency_ns: u64,
}

/// A device that was dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    pub slot: usize,
    pub device: String,
    /// Why it was dropped.
    pub error: String,
}

/// The bitmap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bitmap {
    pub chunk_bytes: u64,
    pub bits: u64,
    pub bits_set: u64,
}

/// Work over the whole array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sync {
    /// `resync`, `rebuild` or `check`.
    pub action: String,
    /// Stripes done.
    pub done: u64,
    /// Stripes in all.
    pub total: u64,
    /// Mismatched sectors that a check found until now.
    pub mismatched_sectors: u64,
}

impl Sync {
    fn in_words(&self) -> String {
        // A total of 0 is none yet.
        let percent = self.done.saturating_mul(100).checked_div(self.total).unwrap_or(0);
        format!("{} {percent}% ({} of {} stripes)", self.action, self.done, self.total)
    }
}

impl Member {
    fn in_words(&self) -> String {
        let device = self.device.as_deref().map(printable).unwrap_or_default();
        let (read, write) = (self.read_latency_ns / 1000, self.write_latency_ns / 1000);
        let measured = match (read, write) {
            (0, 0) => String::new(),
            _ => format!("  (reads in {read} us, writes in {write} us)"),
        };
        format!("  {:>3}  {:<10}  {device}{measured}\n", self.slot, self.state)
    }
}

impl Failed {
    fn in_words(&self) -> String {
        format!("  {:>3}  failed      {}\n", self.slot, printable(&self.error))
    }
}

impl Detail {
    /// For people.
    pub fn in_words(&self) -> String {
        let layout = if self.layout.is_empty() { String::new() } else { format!(", {}", self.layout) };
        let degraded = if self.degraded { ", degraded" } else { "" };
        let mut rows = vec![
            ("uuid", self.uuid.clone()),
            ("level", format!("{}{layout}, chunk {}", self.level, ByteSize(self.chunk_bytes))),
            (
                "size",
                format!("{} in blocks of {} bytes", ByteSize(self.size_bytes), self.logical_block_bytes),
            ),
            ("state", format!("{}{degraded}", self.state)),
            ("events", self.events.to_string()),
            ("consistency policy", self.consistency_policy.clone()),
            ("bitmap", self.bitmap_words()),
            ("sync", self.sync.as_ref().map_or_else(|| self.waiting_words(), Sync::in_words)),
            ("shards", self.shards.to_string()),
        ];
        rows.extend(self.nbd.iter().map(|address| ("nbd", printable(address))));
        let counters: Vec<(&str, String)> =
            self.statistics.iter().map(|(name, value)| (name.as_str(), value.to_string())).collect();
        let head = format!("{}\n{}members\n", printable(&self.name), output::table(&rows));
        let members = self.members.iter().map(Member::in_words);
        let failed = self.failed.iter().map(Failed::in_words);
        let tail = format!("statistics\n{}", output::table(&counters));
        let advice = self.advice.iter().map(|advice| format!("{advice}\n"));
        [head].into_iter().chain(members).chain(failed).chain([tail]).chain(advice).collect()
    }

    fn bitmap_words(&self) -> String {
        self.bitmap.as_ref().map_or_else(
            || "none".to_owned(),
            |bitmap| {
                let chunk = ByteSize(bitmap.chunk_bytes);
                format!("{} of {} bits set, a bit covers {chunk}", bitmap.bits_set, bitmap.bits)
            },
        )
    }

    fn waiting_words(&self) -> String {
        match self.regions_to_resync {
            0 => "nothing under way".to_owned(),
            regions => format!("nothing under way; {regions} regions wait for a resync"),
        }
    }
}
