//! What tests of the page show.

use pinstripe_control::{
    Detail,
    daemon::{AlertStatus, ArrayStatus, DiskHealth},
    detail::Sync,
};
use serde_json::json;

use super::{
    last_hour::{Step, Waits},
    view::{ArrayView, View},
};
use crate::history::Told;

/// Names that would be more than text, if they were not escaped.
pub const HOSTILE: [&str; 7] = [
    "<script>alert(1)</script>",
    "\"><img src=x onerror=alert(1)>",
    "' onmouseover='alert(1)",
    "javascript:alert(1)",
    "</title></svg><script>x</script>",
    "a\r\n\r\nevent: page\r\ndata: <b>",
    "da\u{202e}ta\u{200b}&amp;&lt;",
];

/// A RAID5 with three members and a spare.
pub fn detail(name: &str) -> Detail {
    let member = |slot: usize| {
        json!({ "slot": slot, "state": "in-sync", "device": format!("/dev/m{slot}"), "read_latency_ns": 1500,
            "write_latency_ns": 0, "slow": false, "late_requests": 0, "bad_sectors": 0, "statistics": {} })
    };
    let detail = json!({
        "name": name, "uuid": "u:1", "level": "raid5", "layout": "", "chunk_bytes": 65536, "logical_block_bytes": 512,
        "size_bytes": 1 << 30, "state": "active", "degraded": false, "events": 7, "members": [member(0), member(1), member(2)],
        "spares": ["/dev/spare"], "failed": [], "bitmap": { "chunk_bytes": 65536, "bits": 200, "bits_set": 1 },
        "consistency_policy": "bitmap", "regions_to_resync": 0, "sync": null, "sync_paused": false, "sync_speed_min_kib": 0,
        "sync_speed_max_kib": 0, "errors": [], "advice": null, "nbd": [], "addresses": [{ "protocol": "nbd", "uri": "nbd://x" }],
        "shards": 1, "clients": [{ "protocol": "nbd", "name": "10.0.0.7", "connections": 1 }], "statistics": {},
    });
    serde_json::from_value(detail).unwrap()
}

pub fn sync(action: &str, done: u64, total: u64) -> Sync {
    let sync = json!({ "action": action, "done": done, "total": total, "mismatched_sectors": 0, "paused": false, "speed_kib": 2048,
        "finish_seconds": 61 });
    serde_json::from_value(sync).unwrap()
}

/// An array called `name` in the middle of trouble. `name` stands wherever a text of others does.
pub fn view(name: &str) -> View {
    let mut detail = detail(name);
    let text = || name.to_owned();
    detail.degraded = true;
    detail.members[1].state = "missing".into();
    detail.members[1].device = None;
    detail.members[2].bad_sectors = 3;
    detail.members[2].replacement = Some(text());
    detail.sync = Some(sync("rebuild", 25, 100));
    detail.spares.push(text());
    detail.errors.push(text());
    detail.advice = Some(text());
    detail.clients.push(pinstripe_control::detail::Client { protocol: text(), name: text(), connections: 2 });
    detail.addresses.push(pinstripe_control::detail::Address { protocol: text(), uri: text() });
    let failed = json!({ "slot": 1, "device": name, "error": name, "late_requests": 0, "gone": true, "statistics": {} });
    detail.failed.push(serde_json::from_value(failed).unwrap());
    let status = json!({ "array": name, "uuid": name, "state": "serving", "why": name, "seconds": 1, "control": "/c", "failures": 0,
        "next_try_seconds": null, "checked": 9, "checked_mismatched_sectors": 8 });
    let mut status: ArrayStatus = serde_json::from_value(status).unwrap();
    status.disks.push(DiskHealth {
        device: "/dev/m2".into(),
        failing: vec![text()],
        temperature_celsius: Some(41),
        percentage_used: Some(3),
        media_errors: None,
    });
    let reads = Some(Waits { median: 150_000, most: 2_000_000 });
    let hour = vec![None, Some(Step { read: 1 << 20, written: 5, reads, writes: None })];
    View {
        host: text(),
        pinstripe: "0.1.0".into(),
        configuration_error: Some(text()),
        unserved: Some(text()),
        remarks: vec![text()],
        alerts: vec![AlertStatus { array: text(), alert: text(), device: text(), since: 5, message: text() }],
        arrays: vec![ArrayView { status, detail: Some(detail), hour }],
        events: vec![Told {
            time: 7,
            array: text(),
            event: text(),
            device: Some(text()),
            alarming: true,
            message: text(),
        }],
    }
}

/// Panics if a tag or an attribute isn't one of ours.
pub fn is_clean(page: &str) {
    assert_eq!(fault(page), None, "{page}");
}

const TAGS: &str = "html head meta title link script body a header form input button main h1 h2 p ul li strong \
    section div table thead tbody tr th td time article span svg rect path figure figcaption progress dl dt dd label noscript";

/// Reads a page as a browser does, and gives what isn't ours.
pub fn fault(page: &str) -> Option<String> {
    // What isn't shown stands there as it is.
    let seen = page.split('<').filter(|tag| !tag.starts_with("input type=\"hidden\""));
    let is_unseen = |c: char| c.is_control() || matches!(c, '\u{202e}' | '\u{200b}');
    if let Some(tag) = seen.clone().find(|tag| tag.contains(is_unseen)) {
        return Some(format!("{tag:?}"));
    }
    let own = page.matches("<script src=\"/page.js\" defer></script>").count();
    if page.matches("<script").count() != own {
        return Some("a script".to_owned());
    }
    page.split('<').skip(1).find_map(|tag| {
        let name = tag.trim_start_matches('/').split([' ', '>']).next().unwrap();
        if name == "!DOCTYPE" {
            return None;
        }
        if !TAGS.split_whitespace().any(|known| known == name) {
            return Some(format!("<{name}"));
        }
        let mut rest = tag;
        // Attributes, whose values are all in double quotes.
        while let Some(end) = rest.find(['>', '"']).filter(|end| rest.as_bytes()[*end] == b'"') {
            let attribute = rest[..end].trim_end_matches('=').rsplit(' ').next().unwrap();
            let value = rest[end + 1..].split('"').next().unwrap();
            let is_link = matches!(attribute, "href" | "src" | "action");
            let is_here = value.starts_with('/') && !value.starts_with("//") || value.starts_with('#');
            if attribute.starts_with("on") || attribute == "style" || is_link && !is_here {
                return Some(format!("{attribute}={value}"));
            }
            rest = &rest[end + 2 + value.len()..];
        }
        // What is left before the tag's end has no value, so each word of it is one of ours.
        let left = rest.split('>').next().unwrap().split_whitespace();
        let mut words = left.skip(usize::from(rest.len() == tag.len()));
        words.find(|word| !WORDS.contains(word)).map(str::to_owned)
    })
}

/// Attributes without a value.
const WORDS: [&str; 4] = ["defer", "required", "autofocus", "hidden"];
