//! What Prometheus reads: text of its exposition format, version 0.0.4, of what is known of all arrays. Pure.
//!
//! The names are those of Prometheus' rules: base units, `_total` for what only grows. Labels are the array's
//! name, and for members the slot and the device. Clients are counted by their protocol, so that none of them
//! makes a new series.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt::{Display, Write},
};

use pinstripe_control::{
    Detail,
    daemon::{ArrayStatus, Status},
    detail::{Member, Sync},
    latency::Histogram,
};
use pinstripe_engine::{members::MemberStatistics, statistics::Statistics};

use super::alerts::MISCONFIGURED;

/// The type of what [`render`] gives.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The states of `pinstripe_array_state`.
const STATES: [&str; 6] = ["waiting", "starting", "serving", "silent", "stopped", "failed"];

/// All that is known.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub status: Status,
    /// What the server of each array of the status says, in the same order.
    pub details: Vec<Option<Detail>>,
}

/// Whether every array that is to be served is; with the reasons if not.
pub fn readiness(snapshot: &Snapshot) -> Result<(), String> {
    let is_bad = |array: &&ArrayStatus| !matches!(array.state.as_str(), "serving" | "stopped");
    let bad = snapshot.status.arrays.iter().filter(is_bad);
    let words = |array: &ArrayStatus| format!("{}: {}\n", array.array, array.state);
    let silent: String = bad.map(words).collect();
    let all = snapshot.status.arrays.iter().zip(&snapshot.details);
    let failed = all.filter(|(_, detail)| detail.as_ref().is_some_and(|detail| detail.state == "failed"));
    let failed = failed.map(|(array, _)| format!("{}: failed\n", array.array));
    let left_out = snapshot.status.alerts.iter().filter(|alert| alert.alert == MISCONFIGURED);
    let left_out = left_out.map(|alert| format!("{}: its entry is wrong\n", alert.array));
    let all = silent + &failed.chain(left_out).collect::<String>();
    if all.is_empty() { Ok(()) } else { Err(all) }
}

/// The text.
pub fn render(snapshot: &Snapshot) -> String {
    let mut text = Text(String::new());
    let Snapshot { status, details } = snapshot;
    let version = vec![("version", Cow::from(status.pinstripe.as_str()))];
    text.gauge("pinstripe_build_info", "The daemon's version.", [(version, 1)]);
    text.gauge(
        "pinstripe_daemon_start_time_seconds",
        "When the daemon began, since the epoch.",
        [(vec![], status.since)],
    );
    let wrong = u8::from(status.configuration_error.is_some() || status.unserved.is_some());
    text.gauge(
        "pinstripe_configuration_error",
        "1: the configuration has errors, so not all of it counts, or the page can't be served as it says.",
        [(vec![], wrong)],
    );
    of_statuses(&mut text, &status.arrays);
    let arrays = status.arrays.iter().zip(details);
    let served: Vec<Served<'_>> =
        arrays.filter_map(|(status, detail)| Some((status.array.as_str(), detail.as_ref()?))).collect();
    of_details(&mut text, &served);
    of_counters(&mut text, &served);
    of_latencies(&mut text, &served);
    of_clients(&mut text, &served);
    of_journals(&mut text, &served);
    of_sync(&mut text, &served);
    of_members(&mut text, &served);
    text.0
}

/// An array's name, and what its server says.
type Served<'a> = (&'a str, &'a Detail);
type ArrayValue = fn(&Detail) -> u64;
type MemberValue = fn(&Member) -> f64;
/// Names and values.
type Labels<'a> = Vec<(&'static str, Cow<'a, str>)>;

fn of(array: &str) -> Labels<'_> {
    vec![("array", array.into())]
}

fn and<'a>(array: &'a str, name: &'static str, value: impl Into<Cow<'a, str>>) -> Labels<'a> {
    vec![("array", array.into()), (name, value.into())]
}

fn of_statuses(text: &mut Text, arrays: &[ArrayStatus]) {
    let states = arrays.iter().flat_map(|array| STATES.map(|state| (array, state)));
    let states =
        states.map(|(array, state)| (and(&array.array, "state", state), u8::from(array.state == state)));
    text.gauge("pinstripe_array_state", "1: the daemon has the array in this state.", states);
    let failures = arrays.iter().map(|array| (of(&array.array), array.failures));
    text.gauge(
        "pinstripe_array_server_failures",
        "Servers of the array that failed, one after the other.",
        failures,
    );
    let events = arrays.iter().flat_map(|array| {
        array.events.iter().map(|(event, count)| (and(&array.array, "event", event.as_str()), count))
    });
    let help = "Events of the array since the daemon began, by name, and starts and ends of its servers.";
    text.counter("pinstripe_array_events_total", help, events);
    let times = arrays.iter().filter_map(|array| Some((of(&array.array), array.checked?)));
    let help = "When the latest check that the configuration demands was over, since the epoch.";
    text.gauge("pinstripe_array_last_check_timestamp_seconds", help, times);
    let due = arrays.iter().filter_map(|array| Some((of(&array.array), array.check_due?)));
    let help = "When the next check that the configuration wants is due, or since when. One under way may take so long.";
    text.gauge("pinstripe_array_check_due_timestamp_seconds", help, due);
    let found = arrays.iter().filter_map(|array| Some((of(&array.array), array.checked_mismatched_sectors?)));
    let help = "Sectors of 512 bytes with parity that did not match the data in that check.";
    text.gauge("pinstripe_array_last_check_mismatched_sectors", help, found);
    let unread =
        arrays.iter().filter_map(|array| Some((of(&array.array), array.checked_unreadable_stripes?)));
    let help = "Stripes that could not be read whole in that check, so that nothing has compared them.";
    text.gauge("pinstripe_array_last_check_unreadable_stripes", help, unread);
    let disks: Vec<_> = arrays
        .iter()
        .flat_map(|array| {
            array.disks.iter().map(|disk| (and(&array.array, "device", disk.device.as_str()), disk))
        })
        .collect();
    let failing = disks.iter().map(|(labels, disk)| (labels.clone(), u8::from(!disk.failing.is_empty())));
    text.gauge("pinstripe_disk_failing", "1: the disk says that it is failing.", failing);
    let warmth = disks.iter().filter_map(|(labels, disk)| Some((labels.clone(), disk.temperature_celsius?)));
    text.gauge("pinstripe_disk_temperature_celsius", "The disk's temperature.", warmth);
    let used = disks.iter().filter_map(|(labels, disk)| Some((labels.clone(), disk.percentage_used?)));
    let used = used.map(|(labels, percentage)| (labels, number(percentage) / 100.0));
    text.gauge(
        "pinstripe_disk_life_used_ratio",
        "How much of the disk's life is used, of NVMe: 1 is all.",
        used,
    );
    let errors = disks.iter().filter_map(|(labels, disk)| Some((labels.clone(), disk.media_errors?)));
    text.gauge("pinstripe_disk_media_errors", "Errors that the disk could not correct, of NVMe.", errors);
}

fn of_details(text: &mut Text, served: &[Served<'_>]) {
    let infos = served.iter().map(|(array, detail)| {
        let more = [
            ("uuid", &detail.uuid),
            ("level", &detail.level),
            ("consistency_policy", &detail.consistency_policy),
        ];
        let more = more.into_iter().map(|(name, value)| (name, Cow::from(value.as_str())));
        (of(array).into_iter().chain(more).collect(), 1)
    });
    text.gauge("pinstripe_array_info", "What the array is.", infos);
    let says = |(_, detail): &&Served<'_>| !detail.pinstripe.is_empty();
    let programs = served.iter().filter(says);
    let programs = programs.map(|(array, detail)| (and(array, "version", detail.pinstripe.as_str()), 1));
    text.gauge("pinstripe_array_server_info", "The version of the array's server.", programs);
    let all: [(&str, &str, ArrayValue); 13] = [
        ("size_bytes", "Bytes of the array.", |detail| detail.size_bytes),
        ("degraded", "1: a slot lacks a member that has everything.", |detail| detail.degraded.into()),
        ("failed", "1: more members are lost than it can do without.", |detail| {
            (detail.state == "failed").into()
        }),
        ("read_only", "1: it takes no writes.", |detail| (detail.state == "read-only").into()),
        ("spares", "Spares that wait for a slot.", |detail| detail.spares.len() as u64),
        ("unusable_spares", "Spares that can take no slot.", |detail| detail.unusable_spares.len() as u64),
        ("failed_spares", "Spares that have failed.", |detail| {
            detail.failed.iter().filter(|failed| failed.slot.is_none()).count() as u64
        }),
        ("warnings", "What a person should see to beside the members.", |detail| {
            detail.warnings.len() as u64
        }),
        ("faulty_devices", "Devices that were dropped.", |detail| detail.failed.len() as u64),
        ("regions_to_resync", "Regions with parity that may not match yet.", |detail| {
            detail.regions_to_resync
        }),
        ("superblock_events", "The superblocks' count of changes.", |detail| detail.events),
        ("sync_paused", "1: maintenance stands still.", |detail| detail.sync_paused.into()),
        ("program_replaced", "1: its server runs a program that was replaced since.", |detail| {
            detail.program_replaced.into()
        }),
    ];
    for (name, help, value) in all {
        let samples = served.iter().map(|(array, detail)| (of(array), value(detail)));
        text.gauge(&format!("pinstripe_array_{name}"), help, samples);
    }
    let bits =
        served.iter().filter_map(|(array, detail)| Some((of(array), detail.bitmap.as_ref()?.bits_set)));
    text.gauge("pinstripe_array_marked_regions", "Regions that the write-intent bitmap marks.", bits);
}

fn of_counters(text: &mut Text, served: &[Served<'_>]) {
    for (name, help) in Statistics::HELP {
        let value = |detail: &Detail| detail.statistics.get(*name).copied().unwrap_or(0);
        let samples = served.iter().map(|(array, detail)| (of(array), value(detail)));
        text.counter(&format!("pinstripe_array_{name}_total"), help.trim(), samples);
    }
}

fn of_latencies(text: &mut Text, served: &[Served<'_>]) {
    let mut histograms = Vec::new();
    for (array, detail) in served {
        for (operation, histogram) in &detail.latency.operations {
            let labels = and(array, "operation", operation.as_str());
            histograms.push((labels, detail.latency.bounds_ns.as_slice(), histogram));
        }
    }
    let help = "How long clients' operations took, with the time that they waited because of a limit.";
    text.histogram("pinstripe_array_operation_duration_seconds", help, &histograms);
}

fn of_clients(text: &mut Text, served: &[Served<'_>]) {
    let mut samples = Vec::new();
    for (array, detail) in served {
        let mut connections: BTreeMap<&str, usize> =
            detail.addresses.iter().map(|address| (address.protocol.as_str(), 0)).collect();
        for client in &detail.clients {
            *connections.entry(&client.protocol).or_default() += client.connections;
        }
        samples.extend(
            connections.into_iter().map(|(protocol, count)| (and(array, "protocol", protocol), count)),
        );
    }
    text.gauge("pinstripe_array_client_connections", "Connections of clients, by protocol.", samples);
}

fn of_journals(text: &mut Text, served: &[Served<'_>]) {
    let journals = || served.iter().filter_map(|(array, detail)| Some((of(array), detail.journal.as_ref()?)));
    let failed = journals().map(|(labels, journal)| (labels, u8::from(journal.failed)));
    text.gauge("pinstripe_journal_failed", "1: the journal device has failed.", failed);
    let used = journals().map(|(labels, journal)| (labels, journal.used_bytes));
    text.gauge(
        "pinstripe_journal_used_bytes",
        "Bytes of the journal that a crash would have replayed.",
        used,
    );
    let size = journals().map(|(labels, journal)| (labels, journal.size_bytes));
    text.gauge("pinstripe_journal_size_bytes", "Bytes of the journal.", size);
}

fn of_sync(text: &mut Text, served: &[Served<'_>]) {
    let syncs = || served.iter().filter_map(|(array, detail)| Some((*array, detail.sync.as_ref()?)));
    let done = |sync: &Sync| number(sync.done) / number(sync.total.max(1));
    let progress = syncs().map(|(array, sync)| (and(array, "action", sync.action.as_str()), done(sync)));
    let help = "How far the resync, rebuild, check or repair under way is, from 0 to 1.";
    text.gauge("pinstripe_array_sync_progress_ratio", help, progress);
    let speed = syncs().map(|(array, sync)| (of(array), sync.speed_kib * 1024));
    text.gauge("pinstripe_array_sync_speed_bytes_per_second", "Its speed, of each member.", speed);
}

#[expect(clippy::cast_precision_loss, reason = "Prometheus has no other numbers")]
fn number(value: u64) -> f64 {
    value as f64
}

fn of_members(text: &mut Text, served: &[Served<'_>]) {
    let mut members = Vec::new();
    for (array, detail) in served {
        for member in &detail.members {
            let mut labels = and(array, "slot", member.slot.to_string());
            labels.push(("device", member.device.as_deref().unwrap_or_default().into()));
            members.push((labels, member));
        }
    }
    let all: [(&str, &str, MemberValue); 6] = [
        ("in_sync", "1: the member has all of its data.", |member| member.is_whole().into()),
        ("slow", "1: a request has been under way for longer than usual.", |member| member.slow.into()),
        ("bad_sectors", "Sectors of 512 bytes that its bad-block log lists.", |member| {
            number(member.bad_sectors)
        }),
        ("late_requests", "Requests that were given up and are not over.", |member| {
            number(member.late_requests)
        }),
        ("read_latency_seconds", "Time of a small read; 0 until one was measured.", |member| {
            number(member.read_latency_ns) / 1e9
        }),
        ("write_latency_seconds", "Time of a small write; 0 until one was measured.", |member| {
            number(member.write_latency_ns) / 1e9
        }),
    ];
    for (name, help, value) in all {
        let samples = members.iter().map(|(labels, member)| (labels.clone(), value(member)));
        text.gauge(&format!("pinstripe_member_{name}"), help, samples);
    }
    for (name, help) in MemberStatistics::HELP {
        let value = |member: &Member| member.statistics.get(*name).copied().unwrap_or(0);
        let samples = members.iter().map(|(labels, member)| (labels.clone(), value(member)));
        text.counter(&format!("pinstripe_member_{name}_total"), help.trim(), samples);
    }
}

/// The text as it grows.
struct Text(String);

impl Text {
    fn gauge<'a>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'a>, impl Display)>,
    ) {
        self.family(name, "gauge", help, samples);
    }

    fn counter<'a>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'a>, impl Display)>,
    ) {
        self.family(name, "counter", help, samples);
    }

    /// A metric with its samples. One without samples isn't there.
    fn family<'a>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        samples: impl IntoIterator<Item = (Labels<'a>, impl Display)>,
    ) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_none() {
            return;
        }
        self.head(name, kind, help);
        for (labels, value) in samples {
            self.sample(name, &labels, value);
        }
    }

    /// Histograms of nanoseconds, each with its labels and bounds, in seconds.
    fn histogram(&mut self, name: &str, help: &str, histograms: &[(Labels<'_>, &[u64], &Histogram)]) {
        if histograms.is_empty() {
            return;
        }
        self.head(name, "histogram", help);
        for (labels, bounds_ns, histogram) in histograms {
            let bounds = bounds_ns.iter().map(|bound| (number(*bound) / 1e9).to_string());
            let bounds = bounds.chain(["+Inf".to_owned()]);
            let mut until_here = 0_u64;
            for (bound, count) in bounds.zip(&histogram.buckets) {
                until_here = until_here.saturating_add(*count);
                let labels: Labels<'_> = labels.iter().cloned().chain([("le", bound.into())]).collect();
                self.sample(&format!("{name}_bucket"), &labels, until_here);
            }
            self.sample(&format!("{name}_sum"), labels, number(histogram.sum_ns) / 1e9);
            self.sample(&format!("{name}_count"), labels, until_here);
        }
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // A string takes whatever is written to it.
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn sample(&mut self, name: &str, labels: &Labels<'_>, value: impl Display) {
        let pair = |(label, value): &(&str, Cow<'_, str>)| format!("{label}=\"{}\"", escaped(value));
        let pairs: Vec<String> = labels.iter().map(pair).collect();
        let labels = if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }
}

/// A label's value: a name from a disk can have any characters.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::{Value, json};

    use super::*;

    fn snapshot(name: &str, state: &str) -> Snapshot {
        let member = |slot: usize| {
            json!({ "slot": slot, "state": "in-sync", "device": format!("/dev/d{slot}"), "read_latency_ns": 1500,
                "write_latency_ns": 0, "slow": false, "late_requests": 0, "bad_sectors": 2, "statistics": { "reads": 5 } })
        };
        let detail = json!({
            "name": name, "uuid": "u", "level": "raid5", "layout": "", "chunk_bytes": 65536, "logical_block_bytes": 512,
            "size_bytes": 4096, "state": "active", "degraded": true, "events": 7, "members": [member(0), member(1)],
            "spares": ["/dev/s"], "unusable_spares": [{ "device": "/dev/u", "reason": "small" }], "warnings": ["w", "x"],
            "failed": [{ "slot": null, "device": "/dev/f", "error": "e", "late_requests": 0, "statistics": {} }], "bitmap": { "chunk_bytes": 1, "bits": 2, "bits_set": 1 }, "consistency_policy": "bitmap",
            "regions_to_resync": 0, "sync": { "action": "check", "done": 1, "total": 4, "mismatched_sectors": 0, "paused": false,
            "speed_kib": 3, "finish_seconds": null }, "sync_paused": false, "sync_speed_min_kib": 0, "sync_speed_max_kib": 0,
            "errors": [], "advice": null, "nbd": [], "addresses": [{ "protocol": "nbd", "uri": "x" }], "shards": 1,
            "pinstripe": "0.1.0", "program_replaced": true,
            "journal": { "device": "/dev/j", "failed": false, "slow": false, "mode": "write-through", "size_bytes": 10, "used_bytes": 1, "cached_bytes": 0 },
            "clients": [{ "protocol": "nbd", "name": "a", "connections": 2 }, { "protocol": "nbd", "name": "b", "connections": 1 }],
            "statistics": { "write_bytes": 77 },
            "latency": { "bounds_ns": [1000, 2_097_152_000_u64], "operations": { "read": { "buckets": [3, 2, 1], "sum_ns": 20_500_000_000_u64 } } },
        });
        let array = json!({ "array": name, "uuid": null, "state": state, "why": null, "seconds": 1, "control": null, "failures": 0,
            "next_try_seconds": null, "checked": 9, "check_due": 9, "checked_mismatched_sectors": 0,
            "checked_unreadable_stripes": 4, "disks": [{ "device": "/dev/d0", "failing": [],
            "temperature_celsius": 30, "percentage_used": 3, "media_errors": 5 }], "events": { "Fail": 2 } });
        let status = json!({ "pid": 1, "pinstripe": "0.1.0", "since": 2, "files": [], "configuration_error": null, "looking_seconds": null,
            "remarks": [], "arrays": [array] });
        let detail = Some(serde_json::from_value(detail).unwrap());
        Snapshot { status: serde_json::from_value(status).unwrap(), details: vec![detail] }
    }

    #[test]
    fn values_stand_under_their_names_with_their_labels() {
        let text = render(&snapshot("data", "serving"));
        for line in [
            "pinstripe_array_state{array=\"data\",state=\"serving\"} 1",
            "pinstripe_array_state{array=\"data\",state=\"failed\"} 0",
            "pinstripe_array_last_check_unreadable_stripes{array=\"data\"} 4",
            "pinstripe_disk_life_used_ratio{array=\"data\",device=\"/dev/d0\"} 0.03",
            "pinstripe_disk_media_errors{array=\"data\",device=\"/dev/d0\"} 5",
            "pinstripe_array_unusable_spares{array=\"data\"} 1",
            "pinstripe_array_failed_spares{array=\"data\"} 1",
            "pinstripe_array_warnings{array=\"data\"} 2",
            "pinstripe_array_events_total{array=\"data\",event=\"Fail\"} 2",
            "pinstripe_array_degraded{array=\"data\"} 1",
            "pinstripe_array_server_info{array=\"data\",version=\"0.1.0\"} 1",
            "pinstripe_array_program_replaced{array=\"data\"} 1",
            "pinstripe_array_write_bytes_total{array=\"data\"} 77",
            "pinstripe_array_client_connections{array=\"data\",protocol=\"nbd\"} 3",
            "pinstripe_array_sync_progress_ratio{array=\"data\",action=\"check\"} 0.25",
            "pinstripe_member_reads_total{array=\"data\",slot=\"1\",device=\"/dev/d1\"} 5",
            "pinstripe_member_read_latency_seconds{array=\"data\",slot=\"0\",device=\"/dev/d0\"} 0.0000015",
            "pinstripe_array_operation_duration_seconds_bucket{array=\"data\",operation=\"read\",le=\"0.000001\"} 3",
            "pinstripe_array_operation_duration_seconds_bucket{array=\"data\",operation=\"read\",le=\"2.097152\"} 5",
            "pinstripe_array_operation_duration_seconds_bucket{array=\"data\",operation=\"read\",le=\"+Inf\"} 6",
            "pinstripe_array_operation_duration_seconds_sum{array=\"data\",operation=\"read\"} 20.5",
            "pinstripe_array_operation_duration_seconds_count{array=\"data\",operation=\"read\"} 6",
            "# TYPE pinstripe_array_operation_duration_seconds histogram",
            "# TYPE pinstripe_array_write_bytes_total counter",
            "# HELP pinstripe_array_write_bytes_total Bytes that users wrote.",
        ] {
            assert!(text.lines().any(|own| own == line), "{line} is missing in\n{text}");
        }
    }

    const HEAD: &str = "# Metrics\n\nThis page is made by a test of the code; `PINSTRIPE_WRITE_DOCS=1 cargo test -p pinstripe \
        the_page_of_the_metrics` writes\nit anew. `pinstripe daemon` serves them on the address that \
        [`[metrics]`](configuration.md#metrics) gives, and asks the servers\nevery 5 seconds. Rules for alerts are in \
        [pinstripe.rules.yml](../dist/prometheus/pinstripe.rules.yml), and a\ndashboard for Grafana is in \
        [pinstripe.json](../dist/grafana/pinstripe.json).\nA histogram has three metrics: NAME_bucket, NAME_sum and \
        NAME_count.\nOperations, bytes and latencies are of all clients of an array together: they are counted in the \
        array, behind its front ends, which\nshare its limits too. Of each front end there are the connections. How \
        writes were made is counted, whatever the policy is called.\n\n| metric | type | what it says |\n|---|---|---|\n";

    /// Names, types and helps.
    fn described() -> Vec<(String, String, String)> {
        let text = render(&snapshot("data", "serving"));
        let mut lines = text.lines().filter(|line| line.starts_with("# "));
        let mut all = Vec::new();
        while let (Some(help), Some(kind)) = (lines.next(), lines.next()) {
            let (name, help) = help.strip_prefix("# HELP ").unwrap().split_once(' ').unwrap();
            let kind = kind.rsplit(' ').next().unwrap();
            all.push((name.to_owned(), kind.to_owned(), help.to_owned()));
        }
        all
    }

    #[test]
    fn the_page_of_the_metrics_is_up_to_date() {
        let row = |(name, kind, help): (String, String, String)| format!("| `{name}` | {kind} | {help} |\n");
        let page = HEAD.to_owned() + &described().into_iter().map(row).collect::<Vec<_>>().concat();
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        if std::env::var_os("PINSTRIPE_WRITE_DOCS").is_some() {
            std::fs::write(path, &page).unwrap();
        }
        assert!(std::fs::read_to_string(path).unwrap() == page, "docs/metrics.md is out of date");
    }

    #[test]
    fn the_rules_ask_for_metrics_that_there_are() {
        let rules = include_str!("../../../../dist/prometheus/pinstripe.rules.yml");
        let names: BTreeSet<String> = described().into_iter().map(|(name, ..)| name).collect();
        let words = rules.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let asked: BTreeSet<&str> = words.filter(|word| word.starts_with("pinstripe_")).collect();
        assert!(asked.len() > 10, "{asked:?}");
        let unknown: Vec<&&str> = asked.iter().filter(|name| !names.contains(**name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    #[test]
    fn every_rule_is_tried_and_says_what_to_do() {
        let rules = include_str!("../../../../dist/prometheus/pinstripe.rules.yml");
        let tried = include_str!("../../../../dist/prometheus/pinstripe.test.yml");
        let rules: Vec<&str> = rules.split("- alert: ").skip(1).collect();
        assert!(rules.len() > 10);
        for rule in rules {
            let name = rule.lines().next().unwrap();
            // Once where it must not fire, and once where it must.
            let [silent, fires] = ["exp_alerts: []\n", "exp_alerts:\n"].map(|words| {
                let is_it = |test: &&str| test.starts_with(&format!("{name}\n"));
                tried.split("alertname: ").filter(is_it).any(|test| test.contains(words))
            });
            assert!(silent && fires, "pinstripe.test.yml doesn't try {name}");
            let has = |key: &str| rule.lines().any(|line| line.trim_start().starts_with(key));
            let keys = ["expr: ", "labels: { severity: ", "summary: ", "description: "];
            assert!(keys.into_iter().all(has), "{name} lacks one of {keys:?}");
        }
    }

    const DASHBOARD: &str = include_str!("../../../../dist/grafana/pinstripe.json");

    fn dashboard() -> Value {
        serde_json::from_str(DASHBOARD).unwrap()
    }

    /// Rows and what stands in them.
    fn panels(dashboard: &Value) -> &[Value] {
        dashboard["panels"].as_array().unwrap()
    }

    /// What the dashboard asks Prometheus for.
    fn expressions(dashboard: &Value) -> Vec<&str> {
        let targets = panels(dashboard).iter().filter_map(|panel| panel["targets"].as_array()).flatten();
        targets.map(|target| target["expr"].as_str().unwrap()).collect()
    }

    /// The samples of a metric: a histogram's have names of their own.
    fn samples((name, kind, _): (String, String, String)) -> Vec<String> {
        match kind.as_str() {
            "histogram" => ["bucket", "sum", "count"].map(|part| format!("{name}_{part}")).to_vec(),
            _ => vec![name],
        }
    }

    #[test]
    fn the_dashboard_asks_for_metrics_and_labels_that_there_are() {
        let (dashboard, text) = (dashboard(), render(&snapshot("data", "serving")));
        let known: BTreeSet<String> = described().into_iter().flat_map(samples).collect();
        let labels: BTreeSet<&str> = text
            .split(['{', ',', '}'])
            .filter_map(|pair| pair.split_once("=\"").map(|(label, _)| label))
            .chain(["instance", "job", "alertname", "alertstate", "severity"])
            .collect();
        let mut asked = BTreeSet::new();
        let variables = dashboard["templating"]["list"].as_array().unwrap();
        let variables = variables.iter().filter_map(|variable| variable["definition"].as_str());
        for expression in expressions(&dashboard).into_iter().chain(variables) {
            let words = expression.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            asked.extend(words.filter(|word| word.starts_with("pinstripe_")));
            // Only what stands in braces before an operator, and in the lists after `by`.
            let selectors = expression.split('{').skip(1).filter_map(|part| part.split('}').next());
            let selected = selectors.flat_map(|selector| selector.split(", "));
            let selected = selected.map(|pair| pair.split(['=', '!', '~']).next().unwrap());
            let lists = expression.split("by (").skip(1).filter_map(|part| part.split(')').next());
            for label in selected.chain(lists.flat_map(|list| list.split(", "))) {
                assert!(labels.contains(label), "the label {label} in {expression}");
            }
        }
        let unknown: Vec<&&str> = asked.iter().filter(|name| !known.contains(**name)).collect();
        assert!(unknown.is_empty(), "{unknown:?}");
        for wanted in [
            "pinstripe_array_read_bytes_total",
            "pinstripe_array_operation_duration_seconds_bucket",
            "pinstripe_array_degraded",
            "pinstripe_array_sync_progress_ratio",
            "pinstripe_array_cache_hits_total",
            "pinstripe_array_marked_regions",
            "pinstripe_member_in_sync",
        ] {
            assert!(asked.contains(wanted), "nothing shows {wanted}");
        }
    }

    #[test]
    fn the_dashboard_is_one_that_grafana_takes() {
        let dashboard = dashboard();
        assert!(dashboard["id"].is_null(), "an id is of one Grafana's database");
        assert!(dashboard["schemaVersion"].as_u64().is_some_and(|version| version >= 36));
        assert!(
            dashboard["uid"].as_str().is_some_and(|uid| uid.len() <= 40) && dashboard["title"].is_string()
        );
        let source = &dashboard["templating"]["list"][0];
        assert_eq!(
            (&source["type"], &source["name"], &source["query"]),
            (&json!("datasource"), &json!("datasource"), &json!("prometheus"))
        );
        let own = json!({ "type": "prometheus", "uid": "${datasource}" });
        let mut ids = BTreeSet::new();
        let mut taken = BTreeSet::new();
        for panel in panels(&dashboard) {
            let title = panel["title"].as_str().unwrap();
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{title} has the id of another panel");
            let [x, y, width, height] =
                ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
            assert!(width > 0 && height > 0 && x + width <= 24, "{title} is wider than the page");
            for cell in (x..x + width).flat_map(|x| (y..y + height).map(move |y| (x, y))) {
                assert!(taken.insert(cell), "{title} lies over another panel");
            }
            if panel["type"] == "row" {
                continue;
            }
            assert_eq!(panel["datasource"], own, "{title}");
            assert!(panel["fieldConfig"]["defaults"].is_object() && panel["options"].is_object(), "{title}");
            let targets = panel["targets"].as_array().unwrap();
            let names: BTreeSet<&str> =
                targets.iter().map(|target| target["refId"].as_str().unwrap()).collect();
            assert!(!targets.is_empty() && names.len() == targets.len(), "{title}");
            assert!(targets.iter().all(|target| target["datasource"] == own), "{title}");
        }
        assert!(ids.len() > 20);
    }

    #[test]
    fn a_name_from_a_disk_makes_no_line_of_its_own() {
        let text = render(&snapshot("a\"} 1\nb\\", "serving"));
        assert!(text.contains("{array=\"a\\\"} 1\\nb\\\\\"}"), "{text}");
        assert!(text.lines().all(|line| line.starts_with("pinstripe_") || line.starts_with("# ")), "{text}");
    }

    #[test]
    fn every_name_follows_the_rules_and_stands_once() {
        let text = render(&snapshot("data", "serving"));
        let types: Vec<(&str, &str)> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
        let names: BTreeSet<&str> = types.iter().map(|(name, _)| *name).collect();
        assert_eq!(names.len(), types.len());
        for (name, kind) in types {
            assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "{name}");
            assert_eq!(name.ends_with("_total"), kind == "counter", "{name}");
        }
    }

    #[test]
    fn what_is_not_served_is_not_ready() {
        assert_eq!(readiness(&snapshot("data", "serving")), Ok(()));
        assert_eq!(readiness(&snapshot("data", "stopped")), Ok(()));
        assert_eq!(readiness(&snapshot("data", "waiting")), Err("data: waiting\n".to_owned()));
        let mut failed = snapshot("data", "serving");
        failed.details[0].as_mut().unwrap().state = "failed".to_owned();
        assert_eq!(readiness(&failed), Err("data: failed\n".to_owned()));
        failed.status.arrays[0].array = "data (1)".to_owned();
        assert_eq!(readiness(&failed), Err("data (1): failed\n".to_owned()), "one of two of this name");
        let mut left_out = snapshot("data", "serving");
        let (array, message) = ("other".to_owned(), String::new());
        let alert = MISCONFIGURED.to_owned();
        left_out.status.alerts = vec![pinstripe_control::daemon::AlertStatus {
            array,
            alert,
            device: String::new(),
            since: 1,
            message,
        }];
        assert_eq!(readiness(&left_out), Err("other: its entry is wrong\n".to_owned()));
    }
}
