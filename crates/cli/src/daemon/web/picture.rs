//! Drawings as SVG: a member's disk, the map of the stripes, the throughput. Pure.
//!
//! Colours come from the style sheet by class. Everything that a drawing says stands in words beside it, too.

use std::fmt::Write as _;

use maud::{Markup, html};
use pinstripe_control::{
    Detail,
    detail::{Member, Sync},
    size::ByteSize,
};

use super::throughput::{Rate, SLOTS};

/// Units of a drawing's width.
const WIDTH: u64 = 480;
/// Of the throughput's height.
const HEIGHT: u64 = 90;
/// The scale of the throughput ends here at least.
const SCALE_MIN: u64 = 64 << 10;

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
            // As many marks as there are bad sectors, as far as there is room: where they are isn't told.
            @for mark in 0..member.bad_sectors.min(12) {
                rect class="bad" x=(mark * 8 + 3) y="2" width="4" height="4" {}
            }
        }
    }
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
                svg class="map marks" viewBox="0 0 480 14" preserveAspectRatio="none" aria-hidden="true" {
                    (row(&[("dirty", marked(bitmap.bits_set, bitmap.bits)), ("synced", WIDTH)], 4))
                }
                p class="small" {
                    "Dirty: " (bitmap.bits_set) " of " (bitmap.bits) " regions of " (ByteSize(bitmap.chunk_bytes))
                    " are marked in the bitmap (how many, not which)."
                }
            }
        }
    }
}

/// At least a little, if any region is marked.
fn marked(set: u64, bits: u64) -> u64 {
    if set == 0 { 0 } else { share(set, bits, WIDTH).max(2) }
}

fn stripes(detail: &Detail) -> (Vec<Part>, String) {
    let Some(sync) = &detail.sync else {
        return match (detail.regions_to_resync, detail.degraded) {
            (0, false) => (vec![("synced", WIDTH)], "all are synced".to_owned()),
            (0, true) => (vec![("stale", WIDTH)], "all lack a member".to_owned()),
            (regions, _) => (
                vec![("stale", WIDTH)],
                format!("{regions} regions wait for a resync (the server does not tell which)"),
            ),
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
    (vec![(before, at), ("here", here), (after, WIDTH)], words)
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
pub fn throughput(rates: &[Option<Rate>]) -> Markup {
    let known = || rates.iter().flatten();
    let peak = known().map(|rate| rate.read.max(rate.written)).max().unwrap_or(0);
    let scale = peak.max(SCALE_MIN).checked_next_power_of_two().unwrap_or(u64::MAX);
    let now = rates.last().copied().flatten();
    html! {
        figure {
            figcaption {
                "Last hour, up to " (ByteSize(scale)) "/s: "
                span class="key read" { "read" @if let Some(now) = now { " " (ByteSize(now.read)) "/s" } }
                " "
                span class="key written" { "written" @if let Some(now) = now { " " (ByteSize(now.written)) "/s" } }
            }
            svg class="chart" viewBox="0 0 480 90" preserveAspectRatio="none" aria-hidden="true" {
                path class="grid" d="M0 0.5H480M0 45H480M0 89.5H480M120 0V90M240 0V90M360 0V90" {}
                path class="line read" d=(line(rates, scale, |rate| rate.read)) {}
                path class="line written" d=(line(rates, scale, |rate| rate.written)) {}
            }
            p class="small axis" { span { "1 hour ago" } span { "now" } }
            @if known().next().is_none() { p class="small" { "Nothing is known yet." } }
        }
    }
}

/// Steps, as each value is the mean of its time; with gaps where nothing is known.
fn line(rates: &[Option<Rate>], scale: u64, value: impl Fn(&Rate) -> u64) -> String {
    let step = WIDTH / SLOTS;
    let (mut text, mut x, mut is_open) = (String::new(), 0, false);
    for rate in rates {
        match rate {
            None => is_open = false,
            Some(rate) => {
                let y = HEIGHT - share(value(rate), scale, HEIGHT - 2) - 1;
                let begin = if is_open { format!("V{y}") } else { format!("M{x} {y}") };
                // A string takes whatever is written to it.
                let _ = write!(text, "{begin}H{}", x + step);
                is_open = true;
            }
        }
        x += step;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::web::sample;

    #[test]
    fn a_line_has_steps_and_gaps() {
        let at = |read| Some(Rate { read, written: 0 });
        let rates = [at(0), at(100), None, at(50)];
        assert_eq!(line(&rates, 100, |rate| rate.read), "M0 89H4V1H8M12 45H16");
    }

    #[test]
    fn the_scale_holds_the_peak() {
        let text = throughput(&[Some(Rate { read: 3 << 20, written: u64::MAX })]).into_string();
        assert!(text.contains("V89") || text.contains("M0 "), "{text}");
        let text = throughput(&[Some(Rate { read: 3 << 20, written: 1 })]).into_string();
        assert!(text.contains("up to 4 MiB/s") && text.contains("read 3 MiB/s"), "{text}");
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
        member.state = "missing".into();
        member.bad_sectors = 1 << 40;
        let text = filled(&member);
        assert!(
            text.contains("class=\"done\" width=\"0\"") && text.matches("class=\"bad\"").count() == 12,
            "{text}"
        );
    }
}
