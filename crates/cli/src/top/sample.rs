//! What a server says of its array, and what two readings of it say of the time between them. Pure.

use std::{collections::BTreeMap, time::Duration};

use pinstripe_control::{
    Detail,
    detail::{Client, Member, Sync},
    latency::Histogram,
    limit::Limit,
};
use serde::Serialize;

/// What a server said.
#[derive(Clone, Debug)]
pub struct Reading {
    /// When, since the same moment for all readings.
    pub at: Duration,
    /// Which run of the server. The counters of another run begin anew.
    pub instance: String,
    pub detail: Detail,
}

/// What is shown of an array.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// The control socket.
    pub control: String,
    /// Why nothing newer is known, if the server can't be asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The latest that is known.
    #[serde(flatten)]
    pub array: Option<ArraySample>,
}

/// An array, and what its clients got.
#[derive(Clone, Debug, Serialize)]
pub struct ArraySample {
    pub name: String,
    pub uuid: String,
    pub level: String,
    pub size_bytes: u64,
    pub state: String,
    pub degraded: bool,
    pub members: Vec<MemberSample>,
    pub spares: usize,
    pub faulty: usize,
    pub sync: Option<Sync>,
    pub clients: Vec<Client>,
    /// With the requests that wait for it.
    pub limit: Limit,
    /// None until the same run of the server was read twice.
    pub rates: Option<Rates>,
}

/// A slot.
#[derive(Clone, Debug, Serialize)]
pub struct MemberSample {
    pub slot: usize,
    pub state: String,
    pub device: Option<String>,
    pub slow: bool,
    /// Requests that were given up and are not over.
    pub late_requests: u64,
    /// Of a small read; none until one was measured.
    pub read_latency_ns: Option<u64>,
    /// Of a small write; none until one was measured.
    pub write_latency_ns: Option<u64>,
    /// What was asked of it. None until the same device was there twice in the same run of the server.
    pub rates: Option<MemberRates>,
}

/// What was asked of a member between two readings, of clients and of the array itself.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct MemberRates {
    pub reads_per_second: f64,
    /// Zeroing and discards included.
    pub writes_per_second: f64,
    pub read_bytes_per_second: u64,
    pub write_bytes_per_second: u64,
}

/// Of the time between two readings.
#[derive(Clone, Debug, Serialize)]
pub struct Rates {
    pub seconds: f64,
    pub read_bytes_per_second: u64,
    pub write_bytes_per_second: u64,
    /// By kind of client operation. An older server has none.
    pub operations: BTreeMap<String, OperationRate>,
}

/// Operations of one kind that ended.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct OperationRate {
    pub per_second: f64,
    /// How many were under way at a time, on average: the time that they took, of the time that went by.
    pub under_way: f64,
    /// None if there were no operations.
    pub mean_ns: Option<u64>,
    pub p99_ns: Option<u64>,
}

impl ArraySample {
    /// Of the latest reading and the one before it, if there is one.
    pub fn new(earlier: Option<&Reading>, latest: &Reading) -> Self {
        let detail = &latest.detail;
        let between = earlier.and_then(|earlier| Between::new(earlier, latest));
        let measured = |ns: u64| (ns > 0).then_some(ns);
        let member = |member: &Member| MemberSample {
            slot: member.slot,
            state: member.state.clone(),
            device: member.device.clone(),
            slow: member.slow,
            late_requests: member.late_requests,
            read_latency_ns: measured(member.read_latency_ns),
            write_latency_ns: measured(member.write_latency_ns),
            rates: between.as_ref().and_then(|between| between.of_member(member)),
        };
        Self {
            name: detail.name.clone(),
            uuid: detail.uuid.clone(),
            level: detail.level.clone(),
            size_bytes: detail.size_bytes,
            state: detail.state.clone(),
            degraded: detail.degraded,
            members: detail.members.iter().map(member).collect(),
            spares: detail.spares.len(),
            faulty: detail.failed.len(),
            sync: detail.sync.clone(),
            clients: detail.clients.clone(),
            limit: detail.limit,
            rates: between.as_ref().map(Between::of_clients),
        }
    }

    /// Connections of all clients.
    pub fn connections(&self) -> usize {
        self.clients.iter().map(|client| client.connections).sum()
    }
}

/// Two readings of one run of a server.
struct Between<'a> {
    then: &'a Detail,
    now: &'a Detail,
    time: Duration,
}

impl<'a> Between<'a> {
    /// None if no time has gone by.
    fn new(earlier: &'a Reading, latest: &'a Reading) -> Option<Self> {
        let time = latest.at.checked_sub(earlier.at).filter(|time| !time.is_zero())?;
        let is_same = earlier.instance == latest.instance;
        is_same.then_some(Self { then: &earlier.detail, now: &latest.detail, time })
    }

    /// In a second, of a counter.
    fn rate(&self, [then, now]: [u64; 2]) -> f64 {
        number(now.saturating_sub(then)) / self.time.as_secs_f64()
    }

    /// In a second, of a counter of bytes.
    fn byte_rate(&self, [then, now]: [u64; 2]) -> u64 {
        let in_all = u128::from(now.saturating_sub(then)) * 1_000_000_000 / self.time.as_nanos();
        u64::try_from(in_all).unwrap_or(u64::MAX)
    }

    fn of_clients(&self) -> Rates {
        let Self { then, now, time } = self;
        let bytes = |name: &str| self.byte_rate([then, now].map(|detail| counted(&detail.statistics, name)));
        let operation = |(name, histogram): (&String, &Histogram)| {
            let nothing = Histogram::default();
            let between = histogram.since(then.latency.operations.get(name).unwrap_or(&nothing));
            let rate = OperationRate {
                per_second: self.rate([0, between.count()]),
                under_way: self.rate([0, between.sum_ns]) / 1e9,
                mean_ns: between.mean_ns(),
                p99_ns: between.quantile_ns(&now.latency.bounds_ns, 990),
            };
            (name.clone(), rate)
        };
        Rates {
            seconds: time.as_secs_f64(),
            read_bytes_per_second: bytes("read_bytes"),
            write_bytes_per_second: bytes("write_bytes"),
            operations: now.latency.operations.iter().map(operation).collect(),
        }
    }

    /// Another device in the slot has counters of its own.
    fn of_member(&self, now: &Member) -> Option<MemberRates> {
        let is_it = |then: &&Member| then.slot == now.slot && then.device == now.device;
        let then = self.then.members.iter().filter(|_| now.device.is_some()).find(is_it)?;
        let both = |name: &str| [then, now].map(|member| counted(&member.statistics, name));
        Some(MemberRates {
            reads_per_second: self.rate(both("reads")),
            writes_per_second: self.rate(both("writes")),
            read_bytes_per_second: self.byte_rate(both("read_bytes")),
            write_bytes_per_second: self.byte_rate(both("write_bytes")),
        })
    }
}

/// A counter; 0 if the server doesn't have it.
fn counted(statistics: &BTreeMap<String, u64>, name: &str) -> u64 {
    statistics.get(name).copied().unwrap_or(0)
}

#[expect(clippy::cast_precision_loss, reason = "a rate is shown with a few digits")]
fn number(value: u64) -> f64 {
    value as f64
}

#[cfg(test)]
pub mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A RAID5 with two of its three members, read at `seconds`.
    pub fn reading(name: &str, seconds: u64, reads: u64) -> Reading {
        let member = |slot: usize, state: &str, device: Value| {
            let statistics =
                json!({ "reads": reads, "read_bytes": reads * 4096, "writes": 7, "write_bytes": 512 });
            json!({ "slot": slot, "state": state, "device": device, "read_latency_ns": 90_000, "write_latency_ns": 0,
                "slow": slot == 1, "late_requests": 3 * slot, "bad_sectors": 0, "statistics": statistics })
        };
        let members = [
            member(0, "in-sync", json!("/dev/a")),
            member(1, "in-sync", json!("/dev/b")),
            member(2, "missing", json!(null)),
        ];
        let detail = json!({
            "name": name, "uuid": "u", "level": "raid5", "layout": "", "chunk_bytes": 65536, "logical_block_bytes": 512,
            "size_bytes": 3_u64 << 30, "state": "active", "degraded": true, "events": 7, "members": members, "failed": [],
            "bitmap": null, "consistency_policy": "", "regions_to_resync": 0, "sync_paused": false, "sync_speed_min_kib": 0,
            "sync_speed_max_kib": 0, "errors": [], "advice": null, "nbd": [], "shards": 1,
            "sync": { "action": "rebuild", "done": 1, "total": 4, "mismatched_sectors": 0, "paused": false, "speed_kib": 3,
                "finish_seconds": 200 },
            "clients": [{ "protocol": "nbd", "name": "host", "connections": 2 }],
            "statistics": { "read_bytes": reads * 4096 },
            "latency": { "bounds_ns": [1000, 2000], "operations": {
                "read": { "buckets": [0, reads, 0], "sum_ns": reads * 1500 },
                "write": { "buckets": [0, 0, 0], "sum_ns": 0 } } },
        });
        Reading {
            at: Duration::from_secs(seconds),
            instance: "a".to_owned(),
            detail: serde_json::from_value(detail).unwrap(),
        }
    }

    /// A sample of it with a rate of 50 reads a second.
    pub fn sample(name: &str) -> Sample {
        let array = ArraySample::new(Some(&reading(name, 10, 100)), &reading(name, 12, 200));
        Sample { control: format!("/run/pinstripe/{name}.sock"), error: None, array: Some(array) }
    }

    #[test]
    fn rates_are_of_what_was_counted_between_the_readings() {
        let rates = ArraySample::new(Some(&reading("a", 10, 100)), &reading("a", 12, 200)).rates.unwrap();
        assert_eq!((rates.read_bytes_per_second, rates.write_bytes_per_second), (50 * 4096, 0));
        let read = rates.operations["read"];
        assert!((rates.seconds - 2.0).abs() < 1e-9 && (read.per_second - 50.0).abs() < 1e-9, "{rates:?}");
        assert_eq!((read.mean_ns, read.p99_ns), (Some(1500), Some(1990)));
        assert!((read.under_way - 50.0 * 1500e-9).abs() < 1e-12, "{rates:?}");
        assert_eq!((rates.operations["write"].mean_ns, rates.operations["write"].p99_ns), (None, None));
    }

    #[test]
    fn a_member_has_rates_of_its_own_as_long_as_the_same_device_has_the_slot() {
        let earlier = reading("a", 10, 100);
        let of = |latest: &Reading| ArraySample::new(Some(&earlier), latest).members;
        let mut latest = reading("a", 12, 200);
        let member = of(&latest).swap_remove(0);
        assert_eq!((member.read_latency_ns, member.write_latency_ns), (Some(90_000), None));
        let rates = member.rates.unwrap();
        assert!((rates.reads_per_second - 50.0).abs() < 1e-9 && rates.writes_per_second < 1e-9, "{rates:?}");
        assert_eq!((rates.read_bytes_per_second, rates.write_bytes_per_second), (50 * 4096, 0));
        latest.detail.members[0].device = Some("/dev/new".to_owned());
        let members = of(&latest);
        let known: Vec<bool> = members.iter().map(|member| member.rates.is_some()).collect();
        assert_eq!(known, [false, true, false], "another device, the same one, and none");
    }

    #[test]
    fn a_server_that_was_started_anew_has_no_rates_yet() {
        let earlier = reading("a", 10, 100);
        let again = Reading { instance: "b".to_owned(), ..reading("a", 12, 3) };
        assert!(ArraySample::new(Some(&earlier), &again).rates.is_none());
        assert!(ArraySample::new(Some(&earlier), &earlier).rates.is_none(), "no time has gone by");
        assert!(ArraySample::new(None, &earlier).rates.is_none());
    }

    #[test]
    fn programs_find_an_array_and_its_trouble_side_by_side() {
        let value = serde_json::to_value(sample("data")).unwrap();
        assert_eq!((&value["name"], &value["members"][2]["state"]), (&"data".into(), &"missing".into()));
        assert!(value.get("error").is_none() && value.get("array").is_none(), "{value}");
        let silent = Sample { control: "/x".to_owned(), error: Some("silent".to_owned()), array: None };
        assert_eq!(serde_json::to_value(silent).unwrap(), json!({ "control": "/x", "error": "silent" }));
    }
}
