//! A line on the terminal that shows how far resync, rebuild, check or repair is.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::{control::detail::Sync, size::ByteSize};

/// How often progress is looked at.
pub const LOOK: Duration = Duration::from_millis(100);

/// A progress bar on standard error; hidden where that is no terminal, or if nobody wants it.
pub fn bar(quiet: bool) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr());
    if quiet {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    if let Ok(style) = ProgressStyle::with_template("{prefix:8} {bar:30} {percent:>3}% {msg}") {
        bar.set_style(style);
    }
    bar
}

pub fn show(bar: &ProgressBar, sync: Option<&Sync>) {
    match sync {
        Some(sync) => {
            bar.set_length(sync.total);
            bar.set_position(sync.done);
            bar.set_prefix(sync.action.clone());
            bar.set_message(words(sync));
        }
        None => bar.set_prefix("waiting"),
    }
}

/// What stands behind the bar.
fn words(sync: &Sync) -> String {
    let words = match (sync.paused, sync.finish_seconds) {
        (true, _) => "paused".to_owned(),
        (false, None) => String::new(),
        (false, Some(left)) => {
            let left = humantime::format_duration(Duration::from_secs(left));
            format!("{}/s per member, {left} left", ByteSize(sync.speed_kib * 1024))
        }
    };
    match sync.mismatched_sectors {
        0 => words,
        sectors => format!("{words} ({sectors} sectors differ)"),
    }
}
