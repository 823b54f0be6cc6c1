//! What a server says while it runs: what `pinstripe monitor` would tell of its array, and complaints of its
//! own.
//!
//! All of it goes to the log. With `--json` it is JSON lines on standard output instead, and in the log only
//! if that was asked for.

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
use pinstripe_engine::{
    array::Array,
    error::DeviceRole,
    events::{Event, EventKind},
};
use pinstripe_runtime::{shard, uring::RunError};
use serde_json::json;

use super::{maintenance, report, stopping::Stopping};
use crate::{
    command_line::LogLevel,
    log::{self, Entry},
    supervisor,
};

/// Bytes of a sector.
const SECTOR_BYTES: u64 = 512;
/// How long the end waits for a reader.
const FLUSH_LIMIT: Duration = Duration::from_millis(500);
/// Lines that may wait for a reader.
const LINES_MAX: usize = 1024;

/// See the module.
///
/// Lines of standard output are written by a thread of their own, for a full pipe would stop the shard that
/// writes to it. Lines that find no room, because a reader does not read, are dropped.
#[derive(Clone)]
pub struct ServerLog {
    json: bool,
    /// The array's name, or that of the process.
    name: Arc<str>,
    /// Whether the process has several arrays, so that each entry must say which it is about.
    names_array: bool,
    lines: SyncSender<Line>,
}

enum Line {
    Output(String),
    /// All lines before this are written.
    Flush(SyncSender<()>),
}

impl ServerLog {
    /// Of the only array of a process, or of a process.
    pub fn new(json: bool, name: &str) -> Result<Self, RunError> {
        let (lines, written) = sync_channel(LINES_MAX);
        let writer = thread::Builder::new().name("journal".into()).spawn(move || write(&written));
        writer.map_err(|source| RunError::Threads { source })?;
        Ok(Self { json, name: name.into(), names_array: false, lines })
    }

    /// The same, of one of several arrays.
    pub fn of(&self, array: &str) -> Self {
        Self { name: array.into(), names_array: true, ..self.clone() }
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
    #[track_caller]
    pub fn warn(&self, message: &str) {
        self.say("warning", &Entry { level: LogLevel::Warning, message, ..Entry::default() });
    }

    /// Something that was done because it was asked for.
    #[track_caller]
    pub fn note(&self, message: &str) {
        self.say("note", &Entry { message, ..Entry::default() });
    }

    /// An event, by its name.
    #[track_caller]
    pub fn event(&self, entry: &Entry<'_>) {
        self.say(if entry.level <= LogLevel::Warning { "warning" } else { "note" }, entry);
    }

    #[track_caller]
    fn say(&self, event: &str, entry: &Entry<'_>) {
        if self.json {
            let time = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
            let message = entry.message;
            let line = json!({ "event": event, "array": *self.name, "time": time, "message": message });
            self.print(line.to_string());
        }
        self.log(entry);
    }

    #[track_caller]
    fn log(&self, entry: &Entry<'_>) {
        // A script that reads the one may not want the other.
        if !self.json || log::is_asked_for() {
            log::say(&Entry { array: self.names_array.then_some(&*self.name), ..entry.clone() });
        }
    }

    /// Waits until all is written that was said, but not for ever. Blocks.
    pub fn flush(&self) {
        let (done, wait) = sync_channel(1);
        if self.lines.try_send(Line::Flush(done)).is_ok() {
            let _ = wait.recv_timeout(FLUSH_LIMIT);
        }
        log::flush();
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
            if self.json {
                let mut line = json!(maintenance::event(&event));
                line["array"] = json!(*self.name);
                self.print(line.to_string());
            }
            self.log(&entry(&event, &event.kind.name(), &event.kind.to_string()));
        }
        last_reported
    }
}

/// How severe an event of this name is.
pub fn severity(event: &str, is_alarming: bool) -> LogLevel {
    match event {
        "ArrayFailed" => LogLevel::Error,
        _ if is_alarming => LogLevel::Warning,
        _ => LogLevel::Info,
    }
}

/// An event as an entry of the log.
fn entry<'a>(event: &'a Event, name: &'a str, message: &'a str) -> Entry<'a> {
    let number = |slot: usize| u64::try_from(slot).ok();
    let (slot, sector, action) = match &event.kind {
        EventKind::Fail(error) | EventKind::ArrayFailed(error) => {
            let DeviceRole::Slot(slot) = error.role else { return plain(event, name, message) };
            (number(slot), Some(error.offset / SECTOR_BYTES), None)
        }
        EventKind::SpareActive { slot, .. } => (number(*slot), None, None),
        EventKind::DegradedArray { slots } => {
            let only = if let [slot] = slots[..] { number(slot) } else { None };
            (only, None, None)
        }
        EventKind::RebuildStarted { action }
        | EventKind::RebuildProgress { action, .. }
        | EventKind::RebuildFinished { action, .. }
        | EventKind::MismatchFound { action } => (None, None, Some(action.name())),
        EventKind::MemberBack { .. } | EventKind::MoveSpare { .. } | EventKind::NotTakenBack { .. } => {
            (None, None, None)
        }
    };
    Entry { slot, sector, action, ..plain(event, name, message) }
}

/// What every event has.
fn plain<'a>(event: &'a Event, name: &'a str, message: &'a str) -> Entry<'a> {
    Entry {
        level: severity(name, event.kind.is_alarming()),
        time: Some(event.time),
        event: Some(name),
        number: Some(event.number),
        member: event.kind.device(),
        message,
        ..Entry::default()
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
            Line::Flush(done) => {
                let _ = done.send(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use pinstripe_engine::{
        error::{MemberError, Operation},
        events::SyncAction,
    };
    use pinstripe_runtime::device::{DeviceError, DeviceErrorKind};

    use super::*;

    #[test]
    fn an_event_is_logged_by_its_severity_and_with_what_it_is_about() {
        let fail = |role| MemberError {
            role,
            name: "/dev/x".to_owned(),
            operation: Operation::Write,
            offset: 1 << 20,
            error: DeviceError::of(DeviceErrorKind::Other),
        };
        let logged = |kind: EventKind| {
            let event = Event { number: 7, time: 5, kind };
            let name = event.kind.name();
            let entry = entry(&event, &name, "");
            let member = entry.member.map(ToOwned::to_owned);
            (entry.level, member, entry.slot, entry.sector, entry.action.map(ToOwned::to_owned))
        };
        let device = Some("/dev/x".to_owned());
        let of_slot = || fail(DeviceRole::Slot(2));
        let failed = (LogLevel::Warning, device.clone(), Some(2), Some(2048), None);
        assert_eq!(logged(EventKind::Fail(of_slot())), failed);
        assert_eq!(logged(EventKind::ArrayFailed(of_slot())).0, LogLevel::Error);
        let journal = (LogLevel::Warning, device, None, None, None);
        assert_eq!(logged(EventKind::Fail(fail(DeviceRole::Journal))), journal);
        let action = SyncAction::Rebuild;
        let begun = (LogLevel::Info, None, None, None, Some("recover".to_owned()));
        assert_eq!(logged(EventKind::RebuildStarted { action }), begun);
        assert_eq!(logged(EventKind::DegradedArray { slots: vec![1] }).2, Some(1));
        assert_eq!(logged(EventKind::DegradedArray { slots: vec![1, 3] }).2, None);
    }
}
