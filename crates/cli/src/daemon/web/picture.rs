//! Drawings as SVG: a member's disk, the map of the stripes, the last hour's throughput and waits. Pure.
//!
//! Colours come from the style sheet by class. Everything that a drawing says stands in words beside it, too.

use std::fmt::Write as _;

use maud::{Markup, html};
use pinstripe_control::{
    Detail,
    detail::{Bitmap, Member, Sync},
    latency::Nanoseconds,
    size::ByteSize,
};

use super::last_hour::{STEPS, Step, Waits};

/// Units of a drawing's width.
const WIDTH: u64 = 480;
/// Of the height of what is drawn of the last hour.
const HEIGHT: u64 = 90;
/// The scale of the throughput ends here at least.
const SCALE_MIN: u64 = 64 << 10;
/// The scale of waits in nanoseconds: from 4 µs to 17 s, 22 doublings.
const WAIT_MIN: u64 = 1 << 12;
const WAIT_MAX: u64 = 1 << 34;
/// Units of the height for each doubling.
const DOUBLING: u64 = 4;
/// So many places are named in words.
const PLACES_MAX: usize = 4;

/// How much of `total` units `part` of `whole` is.
fn share(part: u64, whole: u64, total: u64) -> u64 {
    let share = (u128::from(part.min(whole)) * u128::from(total)).checked_div(u128::from(whole)).unwrap_or(0);
    u64::try_from(share).unwrap_or(total)
}

/// A member: how much of it is synced.
pub fn disk(member: &Member, sync: Option<&Sync>) -> Markup {
    let done = |of: &str| sync.filter(|sync| sync.action == of).map(|sync| share(sync.done, sync.total, 100));
    let (class, filled) = match member.state.as_str() {
        "missing" => ("gone", 0),
        "recovering" => ("fresh", done("rebuild").unwrap_or(0)),
        "resyncing" => ("fresh", done("resync").unwrap_or(0)),
        _ => ("whole", 100),
    };
    html! {
        svg class={ "bar " (class) } viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true" {
            rect class="rest" width="100" height="8" {}
            rect class="done" width=(filled) height="8" {}
            @if member.bad_sectors_by_part.is_empty() {
                // As many marks as there are bad sectors, as far as there is room: where they are isn't told.
                @for mark in 0..member.bad_sectors.min(12) {
                    rect class="bad" x=(mark * 8 + 3) y="2" width="4" height="4" {}
                }
            } @else {
                @for (part, _) in marked(&member.bad_sectors_by_part) {
                    rect class="bad" x=((part.start * 100 / part.of).min(97)) y="1" width="3" height="6" {}
                }
            }
        }
    }
}

/// One of `of` parts of the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    start: u64,
    of: u64,
}

impl Place {
    /// Where it begins and ends of `whole` units.
    fn within(self, whole: u64) -> (u64, u64) {
        (share(self.start, self.of, whole), share(self.start + 1, self.of, whole))
    }
}

/// The parts that hold something, and how much.
fn marked(by_part: &[u64]) -> impl Iterator<Item = (Place, u64)> {
    let of = by_part.len() as u64;
    let parts = (0..).zip(by_part).filter(|(_, count)| **count > 0);
    parts.map(move |(start, count)| (Place { start, of }, *count))
}

/// Where something is, in words: `0–2%, 50–52%`. None if there is nothing, or that isn't told.
pub fn places(by_part: &[u64]) -> Option<String> {
    let marked: Vec<Place> = marked(by_part).map(|(part, _)| part).collect();
    let mut runs = marked.chunk_by(|one, next| one.start + 1 == next.start);
    let words = |run: &[Place]| {
        let (first, last) = (run[0], run[run.len() - 1]);
        format!("{}–{}%", first.start * 100 / first.of, ((last.start + 1) * 100).div_ceil(last.of))
    };
    let named: Vec<String> = runs.by_ref().take(PLACES_MAX).map(words).collect();
    let more = if runs.next().is_some() { " and elsewhere" } else { "" };
    (!named.is_empty()).then(|| named.join(", ") + more)
}

/// A part of the map: its class, and where it ends of [`WIDTH`].
type Part = (&'static str, u64);

/// The stripes from the first to the last one, as far as the server tells.
pub fn map(detail: &Detail) -> Markup {
    let (parts, words) = stripes(detail);
    html! {
        figure {
            figcaption { "Stripes: " (words) }
            svg class="map" viewBox="0 0 480 14" preserveAspectRatio="none" aria-hidden="true" {
                (row(&parts, 0))
                path class="grid" d=(grid()) {}
            }
            @if let Some(bitmap) = &detail.bitmap {
                (dirty(bitmap))
            }
        }
    }
}

/// What is marked in the bitmap: each part as high as the share of it that is.
fn dirty(bitmap: &Bitmap) -> Markup {
    let is_told = !bitmap.bits_set_by_part.is_empty();
    html! {
        svg class="map marks" viewBox="0 0 480 14" preserveAspectRatio="none" aria-hidden="true" {
            @if is_told {
                (row(&[("synced", WIDTH)], 4))
                @for (part, set) in marked(&bitmap.bits_set_by_part) {
                    @let (begin, end) = part.within(WIDTH);
                    @let (first, last) = part.within(bitmap.bits);
                    @let height = 4 + share(set, last - first, 10);
                    rect class="dirty" x=(begin) y=(14 - height) width=(end - begin) height=(height) {}
                }
            } @else {
                @let set = if bitmap.bits_set == 0 { 0 } else { share(bitmap.bits_set, bitmap.bits, WIDTH).max(2) };
                (row(&[("dirty", set), ("synced", WIDTH)], 4))
            }
        }
        p class="small" {
            "Dirty: " (bitmap.bits_set) " of " (bitmap.bits) " regions of " (ByteSize(bitmap.chunk_bytes))
            " are marked in the bitmap"
            @if let Some(places) = places(&bitmap.bits_set_by_part) { ", at " (places) " of the array" }
            @if !is_told { " (how many, not which)" }
            "."
        }
    }
}

fn stripes(detail: &Detail) -> (Vec<Part>, String) {
    let stale = &detail.regions_to_resync_by_part;
    let Some(sync) = &detail.sync else {
        return match (detail.regions_to_resync, detail.degraded) {
            (0, false) => (vec![("synced", WIDTH)], "all are synced".to_owned()),
            (0, true) => (vec![("stale", WIDTH)], "all lack a member".to_owned()),
            (regions, _) => match places(stale) {
                Some(places) => {
                    (synced_and_stale(stale), format!("{regions} regions wait for a resync, at {places}"))
                }
                None => (
                    vec![("stale", WIDTH)],
                    format!("{regions} regions wait for a resync (the server does not tell which)"),
                ),
            },
        };
    };
    let at = share(sync.done, sync.total, WIDTH);
    let (before, after, verb) = match sync.action.as_str() {
        "check" => ("checked", "synced", "are checked"),
        "repair" => ("checked", "synced", "are checked and repaired"),
        "resync" => ("synced", "stale", "are synced"),
        _ => ("synced", "stale", "are rebuilt"),
    };
    // Where the work is.
    let here = (at + 6).min(WIDTH);
    let words = format!("{} of {} {verb}", sync.done, sync.total);
    if sync.action == "resync" && !stale.is_empty() {
        // It does what is stale from the first to the last one, and counts nothing else.
        let mut parts = synced_and_stale(stale);
        if let Some(first) = parts.iter_mut().find(|(class, _)| *class == "stale") {
            first.0 = "here";
        }
        return (parts, words);
    }
    (vec![(before, at), ("here", here), (after, WIDTH)], words)
}

fn synced_and_stale(stale: &[u64]) -> Vec<Part> {
    let of = stale.len() as u64;
    let class = |count: u64| if count > 0 { "stale" } else { "synced" };
    (0..).zip(stale).map(|(start, count)| (class(*count), Place { start, of }.within(WIDTH).1)).collect()
}

fn row(parts: &[Part], y: u64) -> Markup {
    let begins = std::iter::once(0).chain(parts.iter().map(|(_, end)| *end));
    html! {
        @for ((class, end), begin) in parts.iter().zip(begins) {
            @if *end > begin {
                rect class=(class) x=(begin) y=(y) width=(end - begin) height=(14 - 2 * y) {}
            }
        }
    }
}

/// Lines between pieces of the map.
fn grid() -> String {
    (1..48).map(|place| format!("M{} 0v14", place * 10)).collect::<Vec<_>>().concat()
}

/// Reads and writes of the last hour.
pub fn throughput(hour: &[Option<Step>]) -> Markup {
    let known = || hour.iter().flatten();
    let peak = known().map(|step| step.read.max(step.written)).max().unwrap_or(0);
    let scale = peak.max(SCALE_MIN).checked_next_power_of_two().unwrap_or(u64::MAX);
    let now = hour.last().copied().flatten();
    let height = |bytes| share(bytes, scale, HEIGHT - 2);
    html! {
        figure {
            figcaption {
                "Last hour, up to " (ByteSize(scale)) "/s: "
                span class="key read" { "read" @if let Some(now) = now { " " (ByteSize(now.read)) "/s" } }
                " "
                span class="key written" { "written" @if let Some(now) = now { " " (ByteSize(now.written)) "/s" } }
            }
            svg class="chart throughput" viewBox="0 0 480 90" preserveAspectRatio="none" aria-hidden="true" {
                path class="grid" d="M0 0.5H480M0 45H480M0 89.5H480M120 0V90M240 0V90M360 0V90" {}
                path class="line read" d=(line(hour, |step| Some(height(step.read)))) {}
                path class="line written" d=(line(hour, |step| Some(height(step.written)))) {}
            }
            (axis(known().next().is_some()))
        }
    }
}

/// The waits of one kind of operation.
type OfStep = fn(&Step) -> Option<Waits>;

/// How long clients' reads and writes took in the last hour.
pub fn waits(hour: &[Option<Step>]) -> Markup {
    let kinds: [(&str, &str, OfStep); 2] =
        [("reads", "read", |step| step.reads), ("writes", "written", |step| step.writes)];
    let now = hour.last().copied().flatten();
    let longest = |of: OfStep| hour.iter().flatten().filter_map(of).map(|of| of.most).max();
    let across =
        [100_000, 10_000_000, 1_000_000_000].map(|time| format!("M0 {}H480", HEIGHT - 1 - high(time)));
    html! {
        figure {
            figcaption {
                "Waits in the last hour: "
                @for (name, class, of) in kinds {
                    span class={ "key " (class) } {
                        (name)
                        @if let Some(waits) = now.as_ref().and_then(of) {
                            ": half within " (wait(waits.median)) ", 99% within " (wait(waits.most))
                        }
                    }
                    " "
                }
            }
            svg class="chart waits" viewBox="0 0 480 90" preserveAspectRatio="none" aria-hidden="true" {
                path class="grid" d={ (across.concat()) "M120 0V90M240 0V90M360 0V90" } {}
                @for (_, class, of) in kinds {
                    path class={ "line " (class) } d=(line(hour, |step| Some(high(of(step)?.median)))) {}
                    path class={ "line most " (class) } d=(line(hour, |step| Some(high(of(step)?.most)))) {}
                }
            }
            (axis(kinds.iter().any(|(.., of)| longest(*of).is_some())))
            @for (name, _, of) in kinds {
                @if let Some(most) = longest(of) {
                    p class="small" { "99% of " (name) " took at most " (wait(most)) " in each half minute." }
                }
            }
            p class="small" {
                "Thick: half of them took so long at most. Thin: 99% of them. The lines across are 100 µs, 10 ms and 1 s."
            }
        }
    }
}

fn wait(nanoseconds: u64) -> String {
    Nanoseconds(nanoseconds).to_string().replace("us", "µs")
}

/// How high a wait stands, of [`HEIGHT`]: each doubling is as high.
fn high(nanoseconds: u64) -> u64 {
    let wait = nanoseconds.clamp(WAIT_MIN, WAIT_MAX);
    let doublings = wait.ilog2();
    let begun = wait - (1 << doublings);
    u64::from(doublings - WAIT_MIN.ilog2()) * DOUBLING + ((begun * DOUBLING) >> doublings)
}

/// What stands below a drawing of the last hour.
fn axis(is_known: bool) -> Markup {
    html! {
        p class="small axis" { span { "1 hour ago" } span { "now" } }
        @if !is_known { p class="small" { "Nothing is known yet." } }
    }
}

/// Steps, as each value is that of its time; with gaps where nothing is known.
fn line(hour: &[Option<Step>], height: impl Fn(&Step) -> Option<u64>) -> String {
    let width = WIDTH / STEPS;
    let (mut text, mut x, mut is_open) = (String::new(), 0, false);
    for step in hour {
        match step.as_ref().and_then(&height) {
            None => is_open = false,
            Some(height) => {
                let y = HEIGHT - 1 - height;
                let begin = if is_open { format!("V{y}") } else { format!("M{x} {y}") };
                // A string takes whatever is written to it.
                let _ = write!(text, "{begin}H{}", x + width);
                is_open = true;
            }
        }
        x += width;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::web::sample;

    #[test]
    fn a_line_has_steps_and_gaps() {
        let at = |read| Some(Step { read, ..Step::default() });
        let hour = [at(0), at(88), None, at(44), at(3)];
        let height = |step: &Step| Some(step.read).filter(|height| *height != 3);
        assert_eq!(line(&hour, height), "M0 89H4V1H8M12 45H16");
    }

    #[test]
    fn the_scale_holds_the_peak() {
        let text =
            throughput(&[Some(Step { read: 3 << 20, written: u64::MAX, ..Step::default() })]).into_string();
        assert!(text.contains("V89") || text.contains("M0 "), "{text}");
        let text = throughput(&[Some(Step { read: 3 << 20, written: 1, ..Step::default() })]).into_string();
        assert!(text.contains("up to 4 MiB/s") && text.contains("read 3 MiB/s"), "{text}");
    }

    #[test]
    fn each_doubling_of_a_wait_is_as_high() {
        let times = [0, 4096, 6144, 8192, 1 << 33, 1 << 34, u64::MAX];
        assert_eq!(times.map(high), [0, 0, 2, 4, 84, 88, 88]);
    }

    #[test]
    fn waits_are_drawn_and_said() {
        let reads = Some(Waits { median: 1 << 13, most: 1 << 20 });
        let hour = [Some(Step { reads, ..Step::default() }), Some(Step::default())];
        let text = waits(&hour).into_string();
        assert!(text.contains("class=\"line read\" d=\"M0 85H4\""), "{text}");
        assert!(text.contains("class=\"line most read\" d=\"M0 57H4\""), "{text}");
        assert!(text.contains("class=\"line written\" d=\"\""), "no writes, no line: {text}");
        assert!(
            text.contains("99% of reads took at most 1.04 ms") && !text.contains("99% of writes"),
            "{text}"
        );
        assert!(!text.contains("half within"), "none in the last half minute: {text}");
        let text = waits(&hour[..1]).into_string();
        assert!(text.contains("reads: half within 8.19 µs, 99% within 1.04 ms"), "{text}");
        assert!(waits(&[None]).into_string().contains("Nothing is known yet"));
    }

    #[test]
    fn places_are_named_as_far_as_there_is_room() {
        let mut parts = [0; 64];
        assert_eq!((places(&parts), places(&[])), (None, None));
        parts[0] = 1;
        parts[1] = 9;
        parts[63] = 1;
        assert_eq!(places(&parts).unwrap(), "0–4%, 98–100%");
        assert_eq!(places(&[1]).unwrap(), "0–100%");
        for part in (10..30).step_by(2) {
            parts[part] = 1;
        }
        assert_eq!(places(&parts).unwrap(), "0–4%, 15–18%, 18–21%, 21–24% and elsewhere");
    }

    #[test]
    fn the_map_shows_which_regions_are_dirty() {
        let mut bitmap = sample::detail("data").bitmap.unwrap();
        let text = dirty(&bitmap).into_string();
        assert!(text.contains("1 of 200 regions") && text.contains("(how many, not which)."), "{text}");
        assert!(text.contains("class=\"dirty\" x=\"0\""), "{text}");
        bitmap.bits_set = 6;
        bitmap.bits_set_by_part = vec![0, 5, 0, 1];
        let text = dirty(&bitmap).into_string();
        assert!(text.contains(
            "6 of 200 regions of 64 KiB are marked in the bitmap, at 25–50%, 75–100% of the array."
        ));
        assert!(text.contains("class=\"dirty\" x=\"120\" y=\"9\" width=\"120\" height=\"5\""), "{text}");
        assert!(
            text.contains("class=\"dirty\" x=\"360\"") && text.matches("\"dirty\"").count() == 2,
            "{text}"
        );
        bitmap.bits_set_by_part = vec![0; 4];
        assert!(!dirty(&bitmap).into_string().contains("class=\"dirty\""));
    }

    #[test]
    fn the_map_shows_what_waits_for_a_resync() {
        let mut detail = sample::detail("data");
        detail.regions_to_resync = 7;
        assert_eq!(stripes(&detail).0, [("stale", 480)], "a server that does not tell which");
        detail.regions_to_resync_by_part = vec![0, 5, 0, 2];
        let (parts, words) = stripes(&detail);
        assert_eq!(parts, [("synced", 120), ("stale", 240), ("synced", 360), ("stale", 480)]);
        assert_eq!(words, "7 regions wait for a resync, at 25–50%, 75–100%");
        detail.sync = Some(sample::sync("resync", 1, 7));
        assert_eq!(stripes(&detail).0, [("synced", 120), ("here", 240), ("synced", 360), ("stale", 480)]);
        detail.sync = Some(sample::sync("rebuild", 1, 4));
        assert_eq!(stripes(&detail).0[0], ("synced", 120));
    }

    #[test]
    fn the_map_shows_how_far_the_work_is() {
        let mut detail = sample::detail("data");
        assert_eq!(stripes(&detail).0, [("synced", 480)]);
        detail.sync = Some(sample::sync("check", 25, 100));
        assert_eq!(stripes(&detail).0, [("checked", 120), ("here", 126), ("synced", 480)]);
        detail.sync = Some(sample::sync("rebuild", 100, 100));
        assert_eq!(
            stripes(&detail),
            (vec![("synced", 480), ("here", 480), ("stale", 480)], "100 of 100 are rebuilt".into())
        );
        detail.sync = Some(sample::sync("resync", 7, 0));
        assert_eq!(stripes(&detail).0[0], ("synced", 0), "a total of 0 is none yet");
        let text = map(&detail).into_string();
        assert!(text.contains("<rect class=\"here\" x=\"0\" y=\"0\" width=\"6\""), "{text}");
    }

    #[test]
    fn a_disk_is_as_full_as_it_is_synced() {
        let mut member = sample::detail("data").members.remove(0);
        let sync = sample::sync("rebuild", 1, 4);
        let filled = |member: &Member| disk(member, Some(&sync)).into_string();
        assert!(filled(&member).contains("class=\"done\" width=\"100\""));
        member.state = "recovering".into();
        member.bad_sectors = 3;
        let text = filled(&member);
        assert!(
            text.contains("class=\"done\" width=\"25\"") && text.matches("class=\"bad\"").count() == 3,
            "{text}"
        );
        member.bad_sectors_by_part = vec![0, 0, 3, 0];
        let text = filled(&member);
        assert!(
            text.contains("class=\"bad\" x=\"50\"") && text.matches("class=\"bad\"").count() == 1,
            "{text}"
        );
        member.state = "missing".into();
        member.bad_sectors_by_part.clear();
        member.bad_sectors = 1 << 40;
        let text = filled(&member);
        assert!(
            text.contains("class=\"done\" width=\"0\"") && text.matches("class=\"bad\"").count() == 12,
            "{text}"
        );
    }
}
