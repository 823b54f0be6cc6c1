//! The log of a command that runs long: entries with fields, as text, JSON, or in the journal.
//!
//! ```text
//!   collector   takes what `tracing` is told, on any thread: level, and how often
//!   record      an entry as a value
//!   rate        how often the same may be said. Pure
//!   queue       the way to the thread that writes
//!   format      an entry as bytes. Pure
//!   sink        standard error, or the journal
//! ```
//!
//! Nothing that says something waits for what reads it. Commands that end by themselves have no log: what
//! they say by [`warn`] stands on standard error at once, as their errors do.

mod collector;
mod format;
mod queue;
mod rate;
mod record;
mod sink;

use std::{
    fmt::Write,
    panic::{Location, PanicHookInfo},
    sync::{Arc, OnceLock},
    time::Duration,
};

use pinstripe_control::text::printable_lines;

use self::{
    collector::Collector,
    format::Context,
    queue::{Queue, THREAD},
    record::{Record, Value},
    sink::Sink,
};
use crate::{
    command_line::{LogLevel, LogOptions},
    remark::remark,
};

/// Bytes that are told of a panic.
const PANIC_BYTES_MAX: usize = 64 << 10;
/// How long the end waits until all is written.
const FLUSH_LIMIT: Duration = Duration::from_millis(500);

static LOG: OnceLock<Log> = OnceLock::new();
static CONTEXT: OnceLock<Context> = OnceLock::new();

struct Log {
    queue: Arc<Queue>,
    command: &'static str,
    /// Its form was asked for, and isn't the usual one.
    is_asked_for: bool,
}

/// Begins the log of this process, which is this command. In the thread whose signals the log's thread is to
/// hold back as well.
pub fn begin(options: LogOptions, command: &'static str) -> std::io::Result<()> {
    let (mut sink, problem) = Sink::open(options.log_format);
    let before = Context { label: None, fields: vec![("command", Value::Text(command.to_owned()))] };
    let queue = Queue::begin(move |record| sink.write(record, CONTEXT.get().unwrap_or(&before)))?;
    let queue = Arc::new(queue);
    let is_asked_for = options.log_format.is_some();
    let collector = Collector { level: options.log_level.unwrap_or_default(), queue: Arc::clone(&queue) };
    if LOG.set(Log { queue, command, is_asked_for }).is_ok() {
        // Fails only if it has been done before.
        let _ = tracing::subscriber::set_global_default(collector);
    }
    if let Some(problem) = problem {
        warn(&problem);
    }
    Ok(())
}

/// What the entries from now on are about: a word for the text, and fields.
pub fn describe(label: &str, fields: &[(&'static str, &str)]) {
    let Some(log) = LOG.get() else { return };
    let fields = [("command", log.command)].into_iter().chain(fields.iter().copied());
    let fields = fields.map(|(name, value)| (name, Value::Text(value.to_owned()))).collect();
    let _ = CONTEXT.set(Context { label: Some(label.to_owned()), fields });
}

/// Whether there is a log in a form that the user has asked for.
pub fn is_asked_for() -> bool {
    LOG.get().is_some_and(|log| log.is_asked_for)
}

/// Something that is said, with what is known of it.
#[derive(Clone, Debug, Default)]
pub struct Entry<'a> {
    pub level: LogLevel,
    /// Seconds since 1970; now, without.
    pub time: Option<u64>,
    /// The array that it is about, where the process has several.
    pub array: Option<&'a str>,
    /// The event of the array, in mdadm's word or ours.
    pub event: Option<&'a str>,
    /// Its number in the history of the server.
    pub number: Option<u64>,
    /// The device.
    pub member: Option<&'a str>,
    pub slot: Option<u64>,
    /// From the start of the member, in sectors of 512 bytes.
    pub sector: Option<u64>,
    /// What is done to the whole array.
    pub action: Option<&'a str>,
    /// The client.
    pub peer: Option<&'a str>,
    pub protocol: Option<&'a str>,
    /// A sentence.
    pub message: &'a str,
    /// It may have several lines.
    pub lines: bool,
}

/// `tracing` wants the level where it is called.
macro_rules! at {
    ($level:expr, $($said:tt)*) => {
        match $level {
            LogLevel::Error => tracing::error!($($said)*),
            LogLevel::Warning => tracing::warn!($($said)*),
            LogLevel::Info => tracing::info!($($said)*),
            LogLevel::Debug => tracing::debug!($($said)*),
        }
    };
}

/// Says it, if there is a log; else it stands on standard error.
#[track_caller]
pub fn say(entry: &Entry<'_>) {
    let Entry { level, time, array, event, number, member, slot, .. } = entry;
    let Entry { sector, action, peer, protocol, message, lines, .. } = entry;
    if LOG.get().is_none() {
        remark(&format!("pinstripe: {}", printable_lines(message)));
        return;
    }
    let (file, line) = (Location::caller().file(), u64::from(Location::caller().line()));
    at!(
        *level, file, line, time, array, event, number, member, slot, sector, action, peer, protocol, lines,
        message
    );
}

/// Says what a user should know.
#[track_caller]
pub fn warn(message: &str) {
    say(&Entry { level: LogLevel::Warning, message, ..Entry::default() });
}

/// Says why the command ends; false if there is no log.
#[track_caller]
pub fn fail(message: &str) -> bool {
    let is_there = LOG.get().is_some();
    if is_there {
        say(&Entry { level: LogLevel::Error, message, lines: true, ..Entry::default() });
    }
    is_there
}

/// Says that the process is about to be aborted, and waits until that is written, but not for ever. False if
/// there is no log, or the log itself panics.
pub fn panicked(panic: &PanicHookInfo<'_>) -> bool {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    let Some(log) = LOG.get().filter(|_| name != THREAD) else { return false };
    let place = panic.location().map(ToString::to_string).unwrap_or_default();
    let words = panic.payload_as_str().unwrap_or("without a word");
    let mut message = format!("the thread {name} panicked at {place}: {words}");
    let trace = std::backtrace::Backtrace::capture();
    if trace.status() == std::backtrace::BacktraceStatus::Captured {
        let _ = write!(message, "\n{trace}");
    }
    // A datagram of the journal's takes no more.
    message.truncate(message.floor_char_boundary(PANIC_BYTES_MAX));
    let record = Record { lines: true, message, ..Record::new(LogLevel::Error, "") };
    log.queue.flush(Some(record), FLUSH_LIMIT);
    true
}

/// Waits until all is written that was said, but not for ever.
pub fn flush() {
    if let Some(log) = LOG.get() {
        log.queue.flush(None, FLUSH_LIMIT);
    }
}
