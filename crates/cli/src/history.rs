//! The history of events: files of JSON lines, which the daemon writes, in the order in which things
//! happened. Their times are what the clock said, and a clock may have been wrong, or may be set back or on:
//! so what is asked for by a time goes by the order as well ([`Begin`]).

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::Path,
};

use serde::{Deserialize, Serialize};

/// The newest events, and those before them.
pub const HISTORY: &str = "events.jsonl";
pub const HISTORY_BEFORE: &str = "events.1.jsonl";

/// A line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Told {
    /// Seconds since the epoch.
    pub time: u64,
    /// The array's name, or its UUID.
    pub array: String,
    /// What kind it is.
    pub event: String,
    /// The member that it is about.
    #[serde(default)]
    pub device: Option<String>,
    /// Whether a person should do something.
    pub alarming: bool,
    /// A sentence.
    pub message: String,
}

/// A clock that says less, in seconds since the epoch, isn't set yet: this is the year 2025.
pub const CLOCK_MIN: u64 = 1_735_689_600;

/// Where the events begin that came at a time or later. Takes the time of each event, in their order.
///
/// A time is worth nothing if the clock wasn't set, if it is yet to come, or if an earlier event has a later
/// one. Such an event may be left out only if a later one is known to be too old.
pub struct Begin {
    /// What is asked for, and now, in seconds since the epoch.
    from: u64,
    now: u64,
    /// The latest time that is worth something.
    latest: u64,
    is_over: bool,
}

/// What the time of an event says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// It and all before it are older.
    Older,
    /// The event that comes next may tell.
    Unknown,
    /// It isn't older, nor what comes after it.
    Wanted,
}

impl Begin {
    pub fn new(from: u64, now: u64) -> Self {
        Self { from, now, latest: CLOCK_MIN, is_over: false }
    }

    pub fn age(&mut self, time: u64) -> Age {
        if self.is_over {
            return Age::Wanted;
        }
        if !(self.latest..=self.now).contains(&time) {
            return Age::Unknown;
        }
        self.latest = time;
        self.is_over = time >= self.from;
        if self.is_over { Age::Wanted } else { Age::Older }
    }

    /// Whatever comes now is wanted.
    pub fn end(&mut self) {
        self.is_over = true;
    }
}

/// The events in the last `bytes` of the newest file, oldest first. Lines that aren't whole are left out.
pub fn tail(folder: &Path, bytes: u64) -> io::Result<Vec<Told>> {
    let mut file = match File::open(folder.join(HISTORY)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        opened => opened?,
    };
    let begin = file.metadata()?.len().saturating_sub(bytes);
    file.seek(SeekFrom::Start(begin))?;
    let mut text = Vec::new();
    file.take(bytes).read_to_end(&mut text)?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of these times, those that are shown of the events since `from`, at the end or so far.
    fn shown(from: u64, now: u64, times: &[u64]) -> Vec<u64> {
        let mut begin = Begin::new(CLOCK_MIN + from, CLOCK_MIN + now);
        let mut shown = Vec::new();
        for time in times {
            if begin.age(CLOCK_MIN + time) == Age::Older {
                shown.clear();
            } else {
                shown.push(*time);
            }
        }
        shown
    }

    #[test]
    fn what_came_since_a_time_is_shown_whatever_was_done_to_the_clock() {
        assert_eq!(shown(50, 100, &[10, 20, 50, 60]), [50, 60]);
        assert_eq!(shown(50, 100, &[10, 20]), [0; 0]);
        // Set back by an hour (here 40), once before and once after the time that is asked for.
        assert_eq!(shown(50, 70, &[10, 90, 92, 55, 60]), [90, 92, 55, 60]);
        assert_eq!(shown(50, 70, &[10, 80, 82, 42, 55]), [55]);
        assert_eq!(shown(50, 100, &[10, 60, 20, 30]), [60, 20, 30]);
        // It was wrong at first, and is right now; whether that was before the time can't be known.
        assert_eq!(shown(50, 100, &[30, 10, 12, 60]), [10, 12, 60]);
        assert_eq!(shown(50, 100, &[30, 10, 12, 40, 60]), [60]);
        assert_eq!(shown(50, 100, &[30, 10, 12]), [10, 12]);
        // It says 1970, now or then.
        let mut begin = Begin::new(0, 1000);
        assert_eq!(begin.age(CLOCK_MIN + 5), Age::Unknown);
        let mut begin = Begin::new(CLOCK_MIN + 50, CLOCK_MIN + 100);
        assert_eq!(
            [7, CLOCK_MIN + 60, 7].map(|time| begin.age(time)),
            [Age::Unknown, Age::Wanted, Age::Wanted]
        );
    }

    #[test]
    fn the_tail_has_whole_lines_only() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(tail(folder.path(), 100).unwrap(), []);
        let line = |time: u64| {
            let (array, event) = ("data".to_owned(), "Fail".to_owned());
            Told { time, array, event, device: None, alarming: true, message: "x".to_owned() }
        };
        let text: String = (0..9).map(|time| serde_json::to_string(&line(time)).unwrap() + "\n").collect();
        let bytes = text.len() as u64 / 9;
        std::fs::write(folder.path().join(HISTORY), text + "{\"time\":9,").unwrap();
        assert_eq!(tail(folder.path(), 3 * bytes).unwrap(), [line(7), line(8)]);
        assert_eq!(tail(folder.path(), 1 << 20).unwrap().len(), 9);
    }
}
