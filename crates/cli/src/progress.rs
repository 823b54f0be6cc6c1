//! A line on the terminal that shows how far resync, rebuild, check or repair is.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pinstripe_control::{detail::Sync, size::ByteSize};

/// How often progress is looked at.
pub const LOOK: Duration = Duration::from_millis(100);

/// A progress bar on standard error; hidden if that is no terminal, or with `quiet`.
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

/// A line that tells what is done now, and since when; hidden as [`bar`] is.
pub fn spinner(quiet: bool) -> ProgressBar {
    let line = bar(quiet);
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg}, {elapsed}") {
        line.set_style(style);
    }
    line.enable_steady_tick(LOOK);
    line
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

#[cfg(test)]
mod tests {
    use super::*;

    fn sync() -> Sync {
        Sync {
            action: "check".to_owned(),
            done: 3,
            total: 8,
            mismatched_sectors: 0,
            unreadable_stripes: 0,
            uncompared_stripes: 0,
            paused: false,
            speed_kib: 1536,
            finish_seconds: Some(90),
        }
    }

    #[test]
    fn behind_the_bar_stand_the_speed_the_time_left_and_what_differs() {
        assert_eq!(words(&sync()), "1.50 MiB/s per member, 1m 30s left");
        assert_eq!(words(&Sync { finish_seconds: None, ..sync() }), "");
        assert_eq!(words(&Sync { paused: true, ..sync() }), "paused");
        let differs = Sync { paused: true, mismatched_sectors: 16, ..sync() };
        assert_eq!(words(&differs), "paused (16 sectors differ)");
    }

    #[test]
    fn the_bar_is_as_far_as_the_work() {
        let bar = bar(true);
        show(&bar, None);
        assert_eq!(bar.prefix(), "waiting");
        show(&bar, Some(&sync()));
        assert_eq!((bar.length(), bar.position()), (Some(8), 3));
        assert_eq!((bar.prefix(), bar.message()), ("check".to_owned(), words(&sync())));
    }
}
