//! The state of a running array, as it travels over the control socket and as people read it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::latency::Latencies;
use crate::limit::Limit;
use crate::size::ByteSize;
use crate::text::{printable, table};

/// Of `detail`: the array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub struct Detail {
    /// The array's name, without the host.
    pub name: String,
    /// The name with its host (`host:name`), if it has one; empty from a server that doesn't say it.
    #[serde(default)]
    pub full_name: String,
    /// Its identity.
    pub uuid: String,
    /// `raid0`, `raid4`, `raid5` or `raid6`.
    pub level: String,
    /// mdadm's name of the layout; empty on levels that have none.
    pub layout: String,
    /// Bytes of a chunk.
    pub chunk_bytes: u64,
    /// Bytes of a block: the least that a client reads or writes.
    pub logical_block_bytes: u64,
    /// Bytes of the array.
    pub size_bytes: u64,
    /// `clean`, `active`, `read-only` or `failed`.
    pub state: String,
    /// Whether a slot lacks a member that has everything.
    pub degraded: bool,
    /// The superblocks' count of changes.
    pub events: u64,
    /// The slots, in their order.
    pub members: Vec<Member>,
    /// Devices that wait for a slot, and can take one.
    #[serde(default)]
    pub spares: Vec<String>,
    /// Devices that wait for a slot in vain.
    #[serde(default)]
    pub unusable_spares: Vec<UnusableSpare>,
    /// Devices that were dropped: MD's `faulty`.
    pub failed: Vec<Failed>,
    /// The write-intent bitmap, if there is one.
    pub bitmap: Option<Bitmap>,
    /// The journal device.
    #[serde(default)]
    pub journal: Option<Journal>,
    /// `resync`, `bitmap`, `ppl`, `journal` or `double-parity-log`; empty on level 0.
    pub consistency_policy: String,
    /// Regions with parity that may not match yet.
    pub regions_to_resync: u64,
    /// How many of them lie in each part of the members' data: at most 64 parts of the same length. Empty
    /// from a server that doesn't say it.
    #[serde(default)]
    pub regions_to_resync_by_part: Vec<u64>,
    /// What resync, recovery, check or repair is under way.
    pub sync: Option<Sync>,
    /// What the latest check or repair left that compared all parity, since the server has begun; none if
    /// there was none, or stripes could not be read.
    #[serde(default)]
    pub compared: Option<Compared>,
    /// Whether it stands still, and none begins (MD: `frozen`).
    pub sync_paused: bool,
    /// What it gets whatever users do, in KiB of each member per second.
    pub sync_speed_min_kib: u64,
    /// What it never exceeds.
    pub sync_speed_max_kib: u64,
    /// The latest errors for which members were dropped, oldest first.
    pub errors: Vec<String>,
    /// What the user can do, if something is wrong.
    pub advice: Option<String>,
    /// What a person should see to beside the members.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Where clients reach it.
    #[serde(default)]
    pub addresses: Vec<Address>,
    /// Those of them that are NBD's.
    pub nbd: Vec<String>,
    /// What uses it now.
    #[serde(default)]
    pub clients: Vec<Client>,
    /// What they may ask for.
    #[serde(default)]
    pub limit: Limit,
    /// Whether what they ask for is being written down (`pinstripe record`).
    #[serde(default)]
    pub recorded: bool,
    /// Threads that serve it.
    pub shards: usize,
    /// The version of its server's program; empty from a server that doesn't say it.
    #[serde(default)]
    pub pinstripe: String,
    /// Whether the file of that program was replaced since: the server lacks what the new one mends, until an
    /// upgrade.
    #[serde(default)]
    pub program_replaced: bool,
    /// Counters since the assembly.
    pub statistics: BTreeMap<String, u64>,
    /// How long clients waited since then.
    #[serde(default)]
    pub latency: Latencies,
}

/// Where clients reach the array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The front end: `nbd`, `nvme-tcp`, `ublk`, `fuse` or `vhost-user`.
    pub protocol: String,
    /// As its clients write it.
    pub uri: String,
}

/// What uses the array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// The front end, as in its address.
    pub protocol: String,
    /// An address, or the process at the other end of a unix socket; with NVMe/TCP the host's NQN; with ublk
    /// and FUSE the device or the file, and what is known of its use.
    pub name: String,
    /// Connections; with NVMe/TCP controllers.
    pub connections: usize,
}

impl Client {
    /// For people.
    pub fn in_words(&self) -> String {
        let Self { protocol, name, connections } = self;
        let more = if *connections > 1 { format!(", {connections} connections") } else { String::new() };
        format!("{} over {protocol}{more}", printable(name))
    }
}

/// A slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// Its place in the array, from 0.
    pub slot: usize,
    /// `in-sync`, `resyncing` (parity is still to be made to match), `recovering` or `missing`.
    pub state: String,
    /// Its device or URI; none if the slot is empty.
    pub device: Option<String>,
    /// The device that is to take its place and is being copied to: MD's `replacement`.
    #[serde(default)]
    pub replacement: Option<String>,
    /// Whether only what the bitmap's bits cover is recovered.
    #[serde(default)]
    pub by_bitmap: bool,
    /// Nanoseconds of a small read; 0 until one was measured.
    pub read_latency_ns: u64,
    /// Nanoseconds of a small write; 0 until one was measured.
    pub write_latency_ns: u64,
    /// Whether a request has been under way for longer than usual.
    pub slow: bool,
    /// Requests that were given up and are not over.
    pub late_requests: u64,
    /// Sectors that its bad-block log lists.
    pub bad_sectors: u64,
    /// How many of them lie in each part of its data, as with the regions. Empty if there are none, too.
    #[serde(default)]
    pub bad_sectors_by_part: Vec<u64>,
    /// What its server does, where servers compute.
    #[serde(default)]
    pub offload: Option<MemberOffload>,
    /// What was asked of it since the assembly, and what failed.
    pub statistics: BTreeMap<String, u64>,
}

/// What a member's server does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberOffload {
    /// Why it is a plain member; none if its server takes part.
    pub plain: Option<String>,
    /// The epoch under which the array's members are attached.
    pub epoch: u64,
    /// Operations that aren't over.
    pub outstanding: u32,
    /// Operations that it may have.
    pub operations_max: u32,
    /// Bytes per second that its link is free to receive, where that is known.
    pub free_bandwidth: Option<u64>,
}

/// A spare that can take no slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusableSpare {
    /// Its device or URI.
    pub device: String,
    /// Why it can't, for people.
    pub reason: String,
}

/// A device that was dropped.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// The slot that it held; none for a spare.
    pub slot: Option<usize>,
    /// Its device or URI.
    pub device: String,
    /// Why it was dropped.
    pub error: String,
    /// Requests that were given up and are not over: until they are, it can't be added again.
    pub late_requests: u64,
    /// Its server was lost, and is being waited for.
    #[serde(default)]
    pub reconnecting: Option<Reconnecting>,
    /// The kernel has its disk no more. It comes back by itself when that disk is there again.
    #[serde(default)]
    pub gone: bool,
    /// What was asked of it since the assembly, and what failed.
    pub statistics: BTreeMap<String, u64>,
}

/// How it stands with a member that lost its server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reconnecting {
    /// How often it was tried.
    pub tries: u64,
    /// What came of the last try.
    pub trouble: String,
    /// Whether there will be no more tries.
    pub given_up: bool,
}

impl Reconnecting {
    fn in_words(&self) -> String {
        let Self { tries, trouble, given_up } = self;
        match (given_up, tries) {
            (true, _) => format!("; not taken back: {trouble}"),
            (false, 0) => "; it is put in again when its server is back".to_owned(),
            (false, _) => {
                format!("; it is put in again when its server is back (tried {tries} times: {trouble})")
            }
        }
    }
}

/// The bitmap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bitmap {
    /// Bytes of the array that one bit covers.
    pub chunk_bytes: u64,
    /// Bits in all.
    pub bits: u64,
    /// Bits of what may need a resync after a crash.
    pub bits_set: u64,
    /// How many of them are in each part of the bitmap, as with the regions.
    #[serde(default)]
    pub bits_set_by_part: Vec<u64>,
    /// Devices of which it was out of date or damaged at the start, so that all bits counted as set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outdated: Vec<String>,
}

/// What a check or repair of all parity left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compared {
    /// When it was over, in seconds since the epoch.
    pub time: u64,
    /// Sectors with parity that does not match. What a repair has made match isn't counted.
    pub mismatched_sectors: u64,
}

/// The journal device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Journal {
    /// Its device.
    pub device: String,
    /// It failed, and the array is read-only since.
    pub failed: bool,
    /// It takes longer for a request than it should.
    pub slow: bool,
    /// `write-through` or `write-back`.
    pub mode: String,
    /// Bytes in all.
    pub size_bytes: u64,
    /// Bytes that would be replayed after a crash.
    pub used_bytes: u64,
    /// Bytes that only the journal has.
    pub cached_bytes: u64,
}

impl Journal {
    fn in_words(&self) -> String {
        let (device, size) = (printable(&self.device), ByteSize(self.size_bytes));
        if self.failed {
            return format!("{device}, failed");
        }
        let slow = if self.slow { ", slow to answer" } else { "" };
        let (mode, used, cached) = (&self.mode, ByteSize(self.used_bytes), ByteSize(self.cached_bytes));
        format!("{device}, {mode}, {used} of {size} in use, {cached} not on the members yet{slow}")
    }
}

/// Work over the whole array.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sync {
    /// `resync`, `rebuild`, `check` or `repair`.
    pub action: String,
    /// Stripes done.
    pub done: u64,
    /// Stripes in all.
    pub total: u64,
    /// Mismatched sectors that a check or repair found until now.
    pub mismatched_sectors: u64,
    /// Stripes that it could not read whole until now.
    #[serde(default)]
    pub unreadable_stripes: u64,
    /// Stripes with rows that could not be compared until now, for members were missing.
    #[serde(default)]
    pub uncompared_stripes: u64,
    /// Whether it stands still.
    pub paused: bool,
    /// KiB of each member per second, lately; 0 if that isn't known yet.
    pub speed_kib: u64,
    /// Seconds that are left at this speed.
    pub finish_seconds: Option<u64>,
}

impl Sync {
    /// For people.
    pub fn in_words(&self) -> String {
        // A total of 0 is none yet.
        let percent = self.done.saturating_mul(100).checked_div(self.total).unwrap_or(0);
        let mut words = vec![format!("{} {percent}% ({} of {} stripes)", self.action, self.done, self.total)];
        if self.paused {
            words.push("paused".to_owned());
        } else if self.speed_kib > 0 {
            let speed = ByteSize(self.speed_kib * 1024);
            words.push(format!("{speed}/s per member"));
            if let Some(left) = self.finish_seconds {
                let left = humantime::format_duration(std::time::Duration::from_secs(left));
                words.push(format!("{left} left"));
            }
        }
        if self.mismatched_sectors > 0 {
            words.push(format!("{} sectors differ", self.mismatched_sectors));
        }
        words.join(", ")
    }
}

impl Member {
    /// Whether it has all of its data.
    pub fn is_whole(&self) -> bool {
        matches!(self.state.as_str(), "in-sync" | "resyncing")
    }

    fn in_words(&self) -> String {
        let device = self.device.as_deref().map(printable).unwrap_or_default();
        let latencies = [("reads", self.read_latency_ns), ("writes", self.write_latency_ns)];
        let latencies = latencies.iter().filter(|(_, ns)| *ns > 0);
        let latencies: Vec<_> =
            latencies.map(|(what, ns)| format!("{what} in {} us", ns.div_ceil(1000))).collect();
        let measured =
            if latencies.is_empty() { String::new() } else { format!("  ({})", latencies.join(", ")) };
        let slow = if self.slow { ", slow" } else { "" };
        let bad =
            if self.bad_sectors > 0 { format!(", {} bad sectors", self.bad_sectors) } else { String::new() };
        let troubles = troubles(&self.statistics, self.late_requests);
        let offload = match &self.offload {
            None => String::new(),
            Some(MemberOffload { plain: None, .. }) => ", offload".to_owned(),
            Some(MemberOffload { plain: Some(why), .. }) => format!(", plain: {}", printable(why)),
        };
        let state = format!("{}{slow}", self.state);
        let by_bitmap = if self.by_bitmap { " (by bitmap)" } else { "" };
        let own = format!(
            "  {:>3}  {state:<10}  {device}{by_bitmap}{measured}{offload}{bad}{troubles}\n",
            self.slot
        );
        match &self.replacement {
            Some(target) => format!("{own}  {:>3}  replacement {}\n", self.slot, printable(target)),
            None => own,
        }
    }
}

/// What has gone wrong with a member, if anything has.
fn troubles(statistics: &BTreeMap<String, u64>, late: u64) -> String {
    let names = ["read_errors", "corrected_reads", "write_errors", "retries", "timed_out"];
    let counted = names.iter().filter_map(|name| statistics.get(*name).map(|value| (*name, *value)));
    let all = counted.chain([("requests still under way", late)]).filter(|(_, value)| *value > 0);
    let words: Vec<String> =
        all.map(|(name, value)| format!(", {value} {}", name.replace('_', " "))).collect();
    words.concat()
}

impl Failed {
    fn in_words(&self) -> String {
        let troubles = troubles(&self.statistics, self.late_requests);
        let slot = self.slot.map_or_else(|| "-".to_owned(), |slot| slot.to_string());
        let gone = if self.gone { "; its disk is gone" } else { "" };
        let awaited = self.reconnecting.as_ref().map_or_else(|| gone.to_owned(), Reconnecting::in_words);
        format!("  {slot:>3}  faulty      {}{troubles}{}\n", printable(&self.error), printable(&awaited))
    }
}

impl Detail {
    /// Whether it is in service and every slot has a member with everything.
    pub fn has_all_members(&self) -> bool {
        !self.degraded && self.state != "failed" && self.members.iter().all(Member::is_whole)
    }

    /// Whether a device waits for a slot.
    pub fn has_spare(&self, device: &str) -> bool {
        let unusable = self.unusable_spares.iter().map(|spare| &spare.device);
        self.spares.iter().chain(unusable).any(|spare| spare == device)
    }

    /// Where clients of a protocol reach it.
    pub fn uris(&self, protocol: &str) -> impl Iterator<Item = &str> {
        let of_protocol = self.addresses.iter().filter(move |address| address.protocol == protocol);
        of_protocol.map(|address| address.uri.as_str())
    }

    fn program_words(&self) -> String {
        let replaced = if self.program_replaced {
            ", which was replaced since: `pinstripe upgrade` has the server take the new one"
        } else {
            ""
        };
        format!("pinstripe {}{replaced}", printable(&self.pinstripe))
    }

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
        rows.extend((!self.pinstripe.is_empty()).then(|| ("program", self.program_words())));
        rows.extend(self.journal.iter().map(|journal| ("journal", journal.in_words())));
        rows.extend(
            self.addresses.iter().map(|address| (address.protocol.as_str(), printable(&address.uri))),
        );
        rows.extend(self.clients.iter().map(|client| ("client", client.in_words())));
        rows.extend(self.recorded.then(|| ("recorded", "what clients ask for is being recorded".to_owned())));
        rows.extend(self.limit.is_on().then(|| ("limit", self.limit.in_words())));
        let latencies = [
            ("read", "read latency"),
            ("write", "write latency"),
            ("flush", "flush latency"),
            ("discard", "discard latency"),
            ("write_zeroes", "zeroing latency"),
        ];
        rows.extend(
            latencies
                .iter()
                .filter_map(|(operation, label)| Some((*label, self.latency.in_words(operation)?))),
        );
        let counters: Vec<(&str, String)> =
            self.statistics.iter().map(|(name, value)| (name.as_str(), value.to_string())).collect();
        let head = format!("{}\n{}members\n", printable(&self.name), table(&rows));
        let members = self.members.iter().map(Member::in_words);
        let spares = self.spares.iter().map(|name| format!("    -  spare       {}\n", printable(name)));
        let unusable = self.unusable_spares.iter().map(|spare| {
            format!(
                "    -  spare       {}, can take no slot: {}\n",
                printable(&spare.device),
                printable(&spare.reason)
            )
        });
        let failed = self.failed.iter().map(Failed::in_words);
        let tail = format!("statistics\n{}", table(&counters));
        let advice = self.advice.iter().map(|advice| format!("{advice}\n"));
        let warnings = self.warnings.iter().map(|warning| format!("warning: {warning}\n"));
        let text: String = [head]
            .into_iter()
            .chain(members)
            .chain(spares)
            .chain(unusable)
            .chain(failed)
            .chain([tail])
            .chain(advice)
            .chain(warnings)
            .collect();
        // Whatever came over the socket, it doesn't steer the terminal.
        text.lines().map(|line| printable(line) + "\n").collect()
    }

    /// The bitmap, for people.
    pub fn bitmap_words(&self) -> String {
        self.bitmap.as_ref().map_or_else(
            || "none".to_owned(),
            |bitmap| {
                let chunk = ByteSize(bitmap.chunk_bytes);
                let outdated = match bitmap.outdated.join(", ") {
                    devices if devices.is_empty() => devices,
                    devices => {
                        format!("; out of date or damaged at the start on {devices}, so all counted as set")
                    }
                };
                format!("{} of {} bits set, a bit covers {chunk}{outdated}", bitmap.bits_set, bitmap.bits)
            },
        )
    }

    fn waiting_words(&self) -> String {
        let paused = if self.sync_paused { "paused" } else { "nothing under way" };
        match self.regions_to_resync {
            0 => paused.to_owned(),
            regions => format!("{paused}; {regions} regions wait for a resync"),
        }
    }
}
