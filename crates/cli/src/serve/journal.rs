//! What a server says while it runs: what `pinstripe monitor` would tell of its array, and complaints of its
//! own.
//!
//! As sentences on standard error, or as JSON lines on standard output.

use std::{
    io::Write,
    rc::Rc,
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, UNIX_EPOCH},
};

use pinstripe_block::first_of::{First, first_of};
use pinstripe_control::text::printable;
use pinstripe_engine::array::Array;
use pinstripe_runtime::{shard, uring::RunError};
use serde_json::json;

use super::{maintenance, report, stopping::Stopping};
use crate::supervisor;

/// How long the end waits for a reader.
const FLUSH_LIMIT: Duration = Duration::from_millis(500);

/// The last second that can be written as a date.
const LAST_DATE: u64 = 253_402_300_799;
/// Lines that may wait for a reader.
const LINES_MAX: usize = 1024;

/// See the module.
///
/// Lines are written by a thread of their own, for a full pipe would stop the shard that writes to it. Lines
/// that find no room, because a reader does not read, are dropped.
#[derive(Clone)]
pub struct ServerLog {
    json: bool,
    /// The array's name.
    array: Arc<str>,
    lines: SyncSender<Line>,
}

enum Line {
    Output(String),
    Error(String),
    /// All lines before this are written.
    Flush(SyncSender<()>),
}

impl ServerLog {
    /// Of the array of this name.
    pub fn new(json: bool, array: &str) -> Result<Self, RunError> {
        let (lines, written) = sync_channel(LINES_MAX);
        let writer = thread::Builder::new().name("journal".into()).spawn(move || write(&written));
        writer.map_err(|source| RunError::Threads { source })?;
        Ok(Self { json, array: array.into(), lines })
    }

    /// The same, of another array.
    pub fn of(&self, array: &str) -> Self {
        Self { array: array.into(), ..self.clone() }
    }

    /// Whether lines are JSON.
    pub fn json(&self) -> bool {
        self.json
    }

    /// A line on standard output.
    pub fn print(&self, line: String) {
        let _ = self.lines.try_send(Line::Output(line));
    }

    /// Something that the user should know.
    pub fn warn(&self, sentence: &str) {
        self.say("warning", sentence);
    }

    /// Something that was done because it was asked for.
    pub fn note(&self, sentence: &str) {
        self.say("note", sentence);
    }

    /// The one or the other.
    pub fn tell(&self, alarming: bool, sentence: &str) {
        if alarming { self.warn(sentence) } else { self.note(sentence) }
    }

    fn say(&self, event: &str, sentence: &str) {
        let time = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        let line = if self.json {
            let line = json!({ "event": event, "array": *self.array, "time": time, "message": sentence });
            Line::Output(line.to_string())
        } else {
            Line::Error(self.in_words(time, sentence))
        };
        let _ = self.lines.try_send(line);
    }

    /// Waits until all is written that was said, but not for ever. Blocks.
    pub fn flush(&self) {
        let (done, wait) = sync_channel(1);
        if self.lines.try_send(Line::Flush(done)).is_ok() {
            let _ = wait.recv_timeout(FLUSH_LIMIT);
        }
    }

    /// Tells of what happens to `array` after event number `told`, until the end is wanted.
    pub fn watch(&self, array: Array, mut last_reported: u64, stopping: Rc<Stopping>) {
        let journal = self.clone();
        shard::spawn(async move {
            supervisor::tell_status(&report::state(&array));
            while let First::Other(()) = first_of(stopping.wanted(), array.event_after(last_reported)).await {
                last_reported = journal.tell_events(&array, last_reported);
                supervisor::tell_status(&report::state(&array));
            }
            journal.tell_events(&array, last_reported);
        });
    }

    /// Tells of the events after number `after`. The number of the last one.
    pub fn tell_events(&self, array: &Array, after: u64) -> u64 {
        let mut last_reported = after;
        for event in array.events(after) {
            last_reported = event.number;
            let line = if self.json {
                let mut line = json!(maintenance::event(&event));
                line["array"] = json!(*self.array);
                Line::Output(line.to_string())
            } else {
                Line::Error(self.in_words(event.time, &event.kind.to_string()))
            };
            let _ = self.lines.try_send(line);
        }
        last_reported
    }

    /// A line for people: seconds since 1970, the array, a sentence.
    fn in_words(&self, time: u64, sentence: &str) -> String {
        let time = humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(time.min(LAST_DATE)));
        format!("pinstripe: {time} {}: {}", printable(&self.array), printable(sentence))
    }
}

/// The thread: writes lines until all senders are gone. Errors of writing are ignored.
fn write(lines: &Receiver<Line>) {
    for line in lines {
        match line {
            Line::Output(line) => {
                let mut out = std::io::stdout().lock();
                let _ = writeln!(out, "{line}").and_then(|()| out.flush());
            }
            Line::Error(line) => {
                let _ = writeln!(std::io::stderr().lock(), "{line}");
            }
            Line::Flush(done) => {
                let _ = done.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_when_it_was_and_of_which_array_and_cannot_be_forged() {
        let journal = ServerLog::new(false, "da\u{202e}ta").unwrap();
        let line = journal.in_words(1, "all\nis well");
        assert_eq!(line, "pinstripe: 1970-01-01T00:00:01Z da\\u{202e}ta: all\u{fffd}is well");
    }
}
