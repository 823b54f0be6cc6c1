//! An array as the overview shows it. Pure.

use maud::{Markup, html};
use pinstripe_control::{
    Detail,
    daemon::{ArrayStatus, DiskHealth},
    detail::{Failed, Member, Sync},
    size::ByteSize,
};

use super::{
    action::can_stop,
    page::{shown, time},
    picture,
    view::ArrayView,
};

/// Its state in a word or two, and the class of that: `good`, `busy` or `bad`.
pub fn health(array: &ArrayView) -> (String, &'static str) {
    let ArrayView { status, detail, .. } = array;
    match (status.state.as_str(), detail) {
        ("serving", Some(detail)) if detail.state == "failed" => ("failed".to_owned(), "bad"),
        ("serving", Some(detail)) if detail.degraded => ("degraded".to_owned(), "bad"),
        ("serving", Some(detail)) if detail.state == "read-only" => ("read-only".to_owned(), "bad"),
        ("serving", Some(Detail { sync: Some(sync), .. })) => (shown(&sync.action), "good"),
        ("serving", Some(detail)) => (shown(&detail.state), "good"),
        ("serving", None) => ("served".to_owned(), "good"),
        ("starting", _) => ("starting".to_owned(), "busy"),
        ("stopped", _) => ("stopped".to_owned(), "busy"),
        (other, _) => (shown(other), "bad"),
    }
}

/// The array.
pub fn card(array: &ArrayView) -> Markup {
    let ArrayView { status, detail, hour } = array;
    let (word, class) = health(array);
    html! {
        article data-key=(shown(status.uuid.as_deref().unwrap_or(&status.array))) {
            header {
                h2 { (shown(&status.array)) }
                span class={ "badge " (class) } { (word) }
                @if let Some(detail) = detail {
                    span class="sub" {
                        (shown(&detail.level)) " of " (detail.members.len()) " members, " (ByteSize(detail.size_bytes))
                        @if !detail.consistency_policy.is_empty() { ", " (shown(&detail.consistency_policy)) }
                    }
                }
            }
            @if let Some(why) = &status.why { p class="problem" data-key="why" { (shown(why)) } }
            @if let Some(detail) = detail {
                (members(status, detail))
                @if let Some(sync) = &detail.sync { (progress(sync)) }
                @else if detail.sync_paused { p data-key="paused" { "Maintenance is paused." } }
                div class="figures" data-key="figures" {
                    (picture::map(detail))
                    (picture::throughput(hour))
                    (picture::waits(hour))
                }
                (facts(status, detail))
                p class="acts" data-key="acts" {
                    @if can_stop(detail) {
                        a class="button" href={ "/confirm?" (query(&detail.uuid, "stop", None)) } { "Stop the check…" }
                    } @else {
                        a class="button" href={ "/confirm?" (query(&detail.uuid, "check", None)) } { "Check…" }
                    }
                    " "
                    a class="button" href={ "/confirm?" (query(&detail.uuid, "add", None)) } { "Add a device…" }
                }
            }
        }
    }
}

/// Of a link to a confirmation.
pub fn query(uuid: &str, action: &str, member: Option<(usize, &str)>) -> String {
    let mut query = form_urlencoded::Serializer::new(String::new());
    query.append_pair("array", uuid).append_pair("action", action);
    if let Some((slot, device)) = member {
        query.append_pair("slot", &slot.to_string()).append_pair("device", device);
    }
    query.finish()
}

/// Of a link to the confirmation that a device is forgotten.
fn removal(uuid: &str, device: &str) -> String {
    let mut query = form_urlencoded::Serializer::new(query(uuid, "remove", None));
    query.append_pair("device", device).finish()
}

fn members(status: &ArrayStatus, detail: &Detail) -> Markup {
    html! {
        ul class="disks" data-key="disks" {
            @for one in &detail.members {
                li class={ "disk " (member_class(one)) } data-key={ "slot" (one.slot) } {
                    (member(status, detail, one))
                }
            }
            @for spare in &detail.spares {
                li class="disk spare" data-key={ "spare " (shown(spare)) } {
                    p class="slot" { "spare" }
                    p class="device" { (shown(spare)) }
                }
            }
            @for spare in &detail.unusable_spares {
                li class="disk spare" data-key={ "spare " (shown(&spare.device)) } {
                    p class="slot" { "spare" }
                    p class="device" { (shown(&spare.device)) }
                    ul class="notes" { li { "can take no slot: " (shown(&spare.reason)) } }
                }
            }
            @for one in &detail.failed {
                li class="disk faulty" data-key={ "faulty " (shown(&one.device)) } {
                    (failed(one))
                    p class="acts" { a href={ "/confirm?" (removal(&detail.uuid, &one.device)) } { "Remove…" } }
                }
            }
        }
    }
}

fn member_class(member: &Member) -> &'static str {
    match member.state.as_str() {
        "missing" => "missing",
        "in-sync" if member.bad_sectors == 0 && !member.slow => "good",
        "in-sync" => "poor",
        _ => "busy",
    }
}

fn member(status: &ArrayStatus, detail: &Detail, member: &Member) -> Markup {
    let health = status.disks.iter().find(|disk| Some(&disk.device) == member.device.as_ref());
    html! {
        p class="slot" { "slot " (member.slot) ": " strong { (shown(&member.state)) } }
        (picture::disk(member, detail.sync.as_ref()))
        p class="device" { (member.device.as_deref().map_or_else(|| "empty".to_owned(), shown)) }
        @if let Some(target) = &member.replacement {
            p class="device" { "is being copied to " (shown(target)) }
        }
        ul class="notes" {
            @for note in notes(member, health) { li { (note) } }
        }
        @if let (Some(device), true) = (&member.device, detail.state != "failed") {
            @let which = Some((member.slot, device.as_str()));
            p class="acts" {
                a href={ "/confirm?" (query(&detail.uuid, "fail", which)) } { "Fail…" }
                " "
                a href={ "/confirm?" (query(&detail.uuid, "replace", which)) } { "Replace…" }
            }
        }
    }
}

/// What is to be known of a member.
fn notes(member: &Member, health: Option<&DiskHealth>) -> Vec<String> {
    let count = |name: &str| member.statistics.get(name).copied().unwrap_or(0);
    let mut notes = Vec::new();
    if member.bad_sectors > 0 {
        let places = picture::places(&member.bad_sectors_by_part);
        let places = places.map(|places| format!(", at {places} of its data")).unwrap_or_default();
        notes.push(format!("{} bad sectors{places}", member.bad_sectors));
    }
    let troubles = [
        (count("read_errors"), "read errors"),
        (count("write_errors"), "write errors"),
        (member.late_requests, "requests that are not over"),
    ];
    notes.extend(
        troubles.iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}")),
    );
    if member.slow {
        notes.push("slow to answer".to_owned());
    }
    let latencies = [("reads", member.read_latency_ns), ("writes", member.write_latency_ns)];
    let measured = latencies.iter().filter(|(_, ns)| *ns > 0);
    notes.extend(measured.map(|(what, ns)| format!("{what} in {} µs", ns.div_ceil(1000))));
    if let Some(health) = health {
        notes.extend(health.failing.iter().map(|why| format!("failing: {}", shown(why))));
        notes.extend(health.temperature_celsius.map(|celsius| format!("{celsius} °C")));
        notes.extend(health.percentage_used.map(|used| format!("{used}% of its life used")));
    }
    notes
}

fn failed(failed: &Failed) -> Markup {
    html! {
        p class="slot" {
            strong { "faulty" }
            @if let Some(slot) = failed.slot { ", was in slot " (slot) }
        }
        p class="device" { (shown(&failed.device)) }
        ul class="notes" {
            li { (shown(&failed.error)) }
            @if failed.gone { li { "its disk is gone" } }
            @if let Some(reconnecting) = &failed.reconnecting {
                li { @if reconnecting.given_up { "its server is not waited for any more" } @else { "its server is waited for" } }
            }
        }
    }
}

fn progress(sync: &Sync) -> Markup {
    let percent = sync.done.min(sync.total).saturating_mul(100).checked_div(sync.total).unwrap_or(0);
    html! {
        div class="sync" data-key="sync" {
            p { (shown(&sync.in_words())) }
            progress max="100" value=(percent) aria-label={ (shown(&sync.action)) } { (percent) "%" }
        }
    }
}

fn facts(status: &ArrayStatus, detail: &Detail) -> Markup {
    html! {
        dl data-key="facts" {
            dt { "Clients" }
            dd {
                @if detail.clients.is_empty() { "none" }
                @else { ul { @for client in &detail.clients { li { (shown(&client.in_words())) } } } }
            }
            @if !detail.addresses.is_empty() {
                dt { "Served as" }
                dd { ul { @for address in &detail.addresses { li { (shown(&address.uri)) } } } }
            }
            @if let Some(checked) = status.checked {
                dt { "Last check" }
                dd {
                    (time(checked)) ", "
                    @match status.checked_mismatched_sectors {
                        Some(0) | None => "parity matched",
                        Some(sectors) => { (sectors) " sectors did not match" },
                    }
                }
            }
            @if let Some(journal) = &detail.journal {
                dt { "Journal" }
                dd {
                    (shown(&journal.device)) ", " (shown(&journal.mode)) ", " (ByteSize(journal.used_bytes)) " of "
                    (ByteSize(journal.size_bytes)) " in use"
                    @if journal.failed { ", failed" }
                }
            }
            @if !detail.errors.is_empty() {
                dt { "Errors" }
                dd { ul { @for error in &detail.errors { li { (shown(error)) } } } }
            }
            @if let Some(advice) = &detail.advice { dt { "To do" } dd { (shown(advice)) } }
            @for warning in &detail.warnings { dt { "Warning" } dd { (shown(warning)) } }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::web::sample;

    #[test]
    fn the_card_says_what_detail_says() {
        let view = sample::view("data");
        let text = card(&view.arrays[0]).into_string();
        for words in [
            "degraded",
            "slot 1: <strong>missing",
            "rebuild 25% (25 of 100 stripes)",
            "value=\"25\"",
            "3 bad sectors",
            "41 °C",
            "/dev/spare",
            "faulty",
            "10.0.0.7 over nbd",
            "reads in 2 µs",
        ] {
            assert!(text.contains(words), "{words} is missing in {text}");
        }
    }

    #[test]
    fn the_card_says_where_bad_sectors_are() {
        let mut array = sample::view("data").arrays.remove(0);
        array.detail.as_mut().unwrap().members[2].bad_sectors_by_part = vec![0, 3, 0, 0];
        let text = card(&array).into_string();
        assert!(text.contains("3 bad sectors, at 25–50% of its data"), "{text}");
    }

    #[test]
    fn only_members_that_are_there_can_be_failed() {
        let view = sample::view("data");
        let text = card(&view.arrays[0]).into_string();
        assert_eq!(text.matches("action=fail").count(), 2, "{text}");
        assert!(text.contains("action=fail&amp;slot=0&amp;device=%2Fdev%2Fm0"), "{text}");
        assert!(!text.contains("slot=1&amp;"), "{text}");
    }

    #[test]
    fn a_faulty_device_can_be_removed_and_a_check_be_stopped() {
        let mut array = sample::view("/dev/a b&c").arrays.remove(0);
        let text = card(&array).into_string();
        assert_eq!(text.matches("action=remove").count(), 1, "{text}");
        assert!(text.contains("action=remove&amp;device=%2Fdev%2Fa+b%26c"), "{text}");
        assert!(text.contains("action=check") && !text.contains("action=stop"), "{text}");
        array.detail.as_mut().unwrap().sync = Some(sample::sync("check", 1, 4));
        let text = card(&array).into_string();
        assert!(text.contains("action=stop") && !text.contains("action=check"), "{text}");
    }

    #[test]
    fn each_state_has_a_word_and_a_class() {
        let mut array = sample::view("data").arrays.remove(0);
        assert_eq!(health(&array), ("degraded".into(), "bad"));
        array.detail = Some(sample::detail("data"));
        assert_eq!(health(&array), ("active".into(), "good"));
        array.detail.as_mut().unwrap().state = "read-only".into();
        assert_eq!(health(&array), ("read-only".into(), "bad"));
        array.detail.as_mut().unwrap().state = "failed".into();
        assert_eq!(health(&array), ("failed".into(), "bad"));
        array.detail = None;
        assert_eq!(health(&array), ("served".into(), "good"));
        for (state, class) in [("silent", "bad"), ("failed", "bad"), ("waiting", "bad"), ("stopped", "busy")]
        {
            array.status.state = state.into();
            assert_eq!(health(&array), (state.into(), class));
        }
    }
}
