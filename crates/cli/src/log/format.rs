//! Entries of the log as bytes: text for people, JSON for programs, and journald's own protocol. Pure.
//!
//! Names and sentences may be others' (a label on a disk, a client's NQN). None of them can begin an entry or
//! a field of its own: text has one line for an entry, or indents the further ones, JSON escapes, and
//! journald's protocol gives the length of a value that has several lines.

use std::{fmt::Write, time::SystemTime};

use pinstripe_control::text::{printable, printable_lines};
use serde::{Serialize, Serializer, ser::SerializeMap};

use super::record::{Record, Value};
use crate::command_line::LogLevel;

/// What all entries of a process say.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// What a text is about, unless the entry names an array.
    pub label: Option<String>,
    /// Fields of every entry that doesn't have them itself.
    pub fields: Vec<(&'static str, Value)>,
}

impl Context {
    /// The fields of an entry in this context.
    fn fields<'a>(&'a self, record: &'a Record) -> impl Iterator<Item = &'a (&'static str, Value)> {
        let is_own = |name: &str| record.fields.iter().any(|(own, _)| *own == name);
        self.fields.iter().filter(move |(name, _)| !is_own(name)).chain(&record.fields)
    }
}

/// RFC 5424, section 6.2.1, and sd-daemon(3).
pub fn priority(level: LogLevel) -> u8 {
    match level {
        LogLevel::Error => 3,
        LogLevel::Warning => 4,
        LogLevel::Info => 6,
        LogLevel::Debug => 7,
    }
}

/// A line, or several of which all but the first are indented. With `priorities`, each begins with its number
/// as sd-daemon(3) has it.
pub fn text(record: &Record, context: &Context, priorities: bool) -> String {
    let prefix = if priorities { format!("<{}>", priority(record.level)) } else { String::new() };
    let time = humantime::format_rfc3339_seconds(record.time);
    let label = record.text("array").or(context.label.as_deref());
    let label = label.map(|label| format!("{}: ", printable(label))).unwrap_or_default();
    let message = message(record).replace('\n', &format!("\n{prefix}  "));
    format!("{prefix}pinstripe: {time} {label}{message}\n")
}

/// What is said, with lines only where they are meant: a name may have them, too.
fn message(record: &Record) -> String {
    if record.lines { printable_lines(&record.message) } else { printable(&record.message) }
}

/// An object on one line.
pub fn json(record: &Record, context: &Context) -> String {
    // Neither a map with keys that are no texts nor anything else that can't be JSON.
    serde_json::to_string(&Json { record, context }).unwrap_or_default() + "\n"
}

struct Json<'a> {
    record: &'a Record,
    context: &'a Context,
}

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { record, context } = self;
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("time", &rfc3339(record.time))?;
        map.serialize_entry("level", record.level.name())?;
        map.serialize_entry("target", &record.target)?;
        map.serialize_entry("message", &message(record))?;
        for (name, value) in context.fields(record) {
            match value {
                Value::Text(text) => map.serialize_entry(name, &printable(text))?,
                Value::Number(number) => map.serialize_entry(name, number)?,
            }
        }
        map.end()
    }
}

fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_millis(time).to_string()
}

/// A datagram, see <https://systemd.io/JOURNAL_NATIVE_PROTOCOL>.
pub fn journal(record: &Record, context: &Context) -> Vec<u8> {
    let mut entry = Vec::new();
    field(&mut entry, "MESSAGE", &message(record));
    field(&mut entry, "PRIORITY", &priority(record.level).to_string());
    field(&mut entry, "SYSLOG_IDENTIFIER", "pinstripe");
    field(&mut entry, "PINSTRIPE_TARGET", &printable(&record.target));
    let mut name = String::new();
    for (own, value) in context.fields(record) {
        name.clear();
        let _ = write!(name, "PINSTRIPE_{}", own.to_ascii_uppercase().replace('.', "_"));
        field(&mut entry, &name, &printable(&value.to_string()));
    }
    entry
}

/// `NAME=value`, or if that has several lines the name, the length in 8 bytes, and the value.
fn field(entry: &mut Vec<u8>, name: &str, value: &str) {
    entry.extend(name.bytes());
    if value.contains('\n') {
        entry.push(b'\n');
        entry.extend((value.len() as u64).to_le_bytes());
    } else {
        entry.push(b'=');
    }
    entry.extend(value.bytes());
    entry.push(b'\n');
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use super::*;

    fn record(message: &str, fields: &[(&'static str, &str)]) -> Record {
        let mut record = Record::new(LogLevel::Warning, message);
        record.time = UNIX_EPOCH + Duration::from_millis(1500);
        record.fields = fields.iter().map(|(name, text)| (*name, Value::Text((*text).to_owned()))).collect();
        record
    }

    fn context() -> Context {
        let fields = vec![
            ("array", Value::Text("data".into())),
            ("uuid", Value::Text("1:2".into())),
            ("slot", Value::Number(7)),
        ];
        Context { label: Some("data".to_owned()), fields }
    }

    #[test]
    fn a_text_says_when_it_was_and_of_which_array_and_cannot_be_forged() {
        let line = text(&record("all\nis well", &[("array", "da\u{202e}ta")]), &context(), false);
        assert_eq!(line, "pinstripe: 1970-01-01T00:00:01Z da\\u{202e}ta: all\u{fffd}is well\n");
        let line = text(&record("it waits", &[]), &context(), true);
        assert_eq!(line, "<4>pinstripe: 1970-01-01T00:00:01Z data: it waits\n");
        let mut panic = record("panicked:\npinstripe: x", &[]);
        panic.lines = true;
        let lines = text(&panic, &Context::default(), true);
        assert_eq!(lines, "<4>pinstripe: 1970-01-01T00:00:01Z panicked:\n<4>  pinstripe: x\n");
    }

    #[test]
    fn json_is_one_line_whatever_the_names_are() {
        let own = record("a\n\"}\x1b", &[("member", "x\n{\"level\":\"error\"}"), ("slot", "3")]);
        let line = json(&own, &context());
        assert_eq!(line.matches('\n').count(), 1, "{line}");
        assert!(line.starts_with("{\"time\":\"1970-01-01T00:00:01.500Z\",\"level\":\"warning\","), "{line}");
        let value: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(value["message"], "a\u{fffd}\"}\u{fffd}");
        assert_eq!(value["member"], "x\u{fffd}{\"level\":\"error\"}");
        assert_eq!((&value["slot"], &value["array"]), (&"3".into(), &"data".into()), "its own comes first");
    }

    /// The fields of a datagram, as journald reads them.
    fn fields(mut entry: &[u8]) -> Vec<(String, String)> {
        let mut fields = Vec::new();
        while !entry.is_empty() {
            let end = entry.iter().position(|byte| b"=\n".contains(byte)).unwrap();
            let (name, rest) = (String::from_utf8(entry[..end].to_vec()).unwrap(), &entry[end + 1..]);
            let (value, rest) = if entry[end] == b'=' {
                rest.split_at(rest.iter().position(|byte| *byte == b'\n').unwrap())
            } else {
                let (length, rest) = rest.split_first_chunk().unwrap();
                rest.split_at(usize::try_from(u64::from_le_bytes(*length)).unwrap())
            };
            fields.push((name, String::from_utf8(value.to_vec()).unwrap()));
            entry = rest.strip_prefix(b"\n").unwrap();
        }
        fields
    }

    #[test]
    fn the_journals_fields_cannot_be_forged() {
        let own = record("a\nPRIORITY=0\n", &[("member", "x\nPINSTRIPE_ARRAY=y")]);
        let fields = fields(&journal(&Record { lines: true, ..own.clone() }, &context()));
        let said = fields.iter().find(|(own, _)| own == "MESSAGE").map(|(_, said)| said.as_str());
        assert_eq!(said, Some("a\nPRIORITY=0"), "lines that are meant");
        let fields = self::fields(&journal(&own, &context()));
        let named = |name| fields.iter().filter(move |(own, _)| own == name).map(|(_, v)| v.as_str());
        assert_eq!(named("MESSAGE").collect::<Vec<_>>(), ["a\u{fffd}PRIORITY=0\u{fffd}"]);
        assert_eq!(named("PRIORITY").collect::<Vec<_>>(), ["4"]);
        assert_eq!(named("PINSTRIPE_ARRAY").collect::<Vec<_>>(), ["data"]);
        assert_eq!(named("PINSTRIPE_MEMBER").collect::<Vec<_>>(), ["x\u{fffd}PINSTRIPE_ARRAY=y"]);
        assert_eq!(named("PINSTRIPE_SLOT").collect::<Vec<_>>(), ["7"]);
    }
}
