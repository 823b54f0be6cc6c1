//! An entry of the log as a value: a sentence, and fields.
//!
//! All of it is bounded here, whatever names and sentences others made.

use std::{
    fmt,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tracing::{
    Event,
    field::{Field, Visit},
};

use crate::command_line::LogLevel;

/// Bytes of a sentence, and of a field: the rest is cut off.
const MESSAGE_BYTES_MAX: usize = 4096;
const FIELD_BYTES_MAX: usize = 512;
/// Fields of an entry; further ones are left out.
const FIELDS_MAX: usize = 16;
/// The last second that can be written as a date.
const LAST_DATE: u64 = 253_402_300_799;

/// The value of a field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Text(String),
    Number(u64),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => write!(f, "{number}"),
        }
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub time: SystemTime,
    pub level: LogLevel,
    /// The part of the program that wrote it.
    pub target: String,
    pub message: String,
    pub fields: Vec<(&'static str, Value)>,
    /// The sentence may have several lines in the text, too: a panic, or what a command ends with.
    pub lines: bool,
}

impl Record {
    /// Of now, without fields.
    pub fn new(level: LogLevel, message: &str) -> Self {
        Self {
            time: SystemTime::now(),
            level,
            target: "pinstripe::log".to_owned(),
            message: cut(message, MESSAGE_BYTES_MAX),
            fields: Vec::new(),
            lines: false,
        }
    }

    /// What `tracing` hands over.
    pub fn of(event: &Event<'_>) -> Self {
        let mut record = Self::new(level(*event.metadata().level()), "");
        record.target = event.metadata().target().replacen("pinstripe_cli", "pinstripe", 1);
        event.record(&mut record);
        record
    }

    /// A field that is a text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.fields.iter().find(|(own, _)| *own == name).and_then(|(_, value)| match value {
            Value::Text(text) => Some(text.as_str()),
            Value::Number(_) => None,
        })
    }

    /// Bytes that it takes, about.
    pub fn size(&self) -> usize {
        let value = |(_, value): &(_, Value)| match value {
            Value::Text(text) => text.len(),
            Value::Number(_) => 0,
        };
        let fields = self.fields.iter().map(|field| size_of_val(field) + value(field));
        size_of::<Self>() + self.target.len() + self.message.len() + fields.sum::<usize>()
    }

    fn put(&mut self, name: &'static str, value: Value) {
        if self.fields.len() < FIELDS_MAX {
            self.fields.push((name, value));
        }
    }
}

/// `file` stands for the target, and `time` and `lines` for what a [`Record`] calls so. `line` is only for
/// the limit of the rate.
impl Visit for Record {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" => self.message = cut(value, MESSAGE_BYTES_MAX),
            "file" => self.target = target(value),
            name => self.put(name, Value::Text(cut(value, FIELD_BYTES_MAX))),
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "time" => self.time = UNIX_EPOCH + Duration::from_secs(value.min(LAST_DATE)),
            "line" => {}
            name => self.put(name, Value::Number(value)),
        }
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        match field.name() {
            "lines" => self.lines = value,
            name => self.put(name, Value::Text(value.to_string())),
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.record_str(field, &format!("{value:?}"));
    }
}

fn level(level: tracing::Level) -> LogLevel {
    match level {
        tracing::Level::ERROR => LogLevel::Error,
        tracing::Level::WARN => LogLevel::Warning,
        tracing::Level::INFO => LogLevel::Info,
        _ => LogLevel::Debug,
    }
}

/// The target of a source file: `crates/cli/src/serve/nbd.rs` is `pinstripe::serve::nbd`.
fn target(file: &str) -> String {
    let path = file.rsplit_once("src/").map_or(file, |(_, path)| path);
    let path = path.trim_end_matches(".rs").trim_end_matches("/mod");
    format!("pinstripe::{}", path.replace('/', "::"))
}

fn cut(text: &str, max: usize) -> String {
    if text.len() <= max {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(max - 3);
    format!("{}...", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_is_cut_where_it_is_long() {
        let record = Record::new(LogLevel::Info, &"\u{e4}".repeat(MESSAGE_BYTES_MAX));
        assert!(record.message.len() <= MESSAGE_BYTES_MAX && record.message.ends_with("\u{e4}..."));
        let mut record = Record::new(LogLevel::Info, "");
        for _ in 0..2 * FIELDS_MAX {
            record.put("peer", Value::Text(cut(&"x".repeat(1 << 20), FIELD_BYTES_MAX)));
        }
        assert!(record.size() < 2 * FIELDS_MAX * FIELD_BYTES_MAX, "{}", record.size());
    }

    #[test]
    fn the_target_is_the_part_of_the_program() {
        assert_eq!(target("crates/cli/src/serve/nbd.rs"), "pinstripe::serve::nbd");
        assert_eq!(target("/home/x/src/y/crates/cli/src/daemon/mod.rs"), "pinstripe::daemon");
    }
}
