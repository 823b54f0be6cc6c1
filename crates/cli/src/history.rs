//! The history of events: files of JSON lines, which the daemon writes.

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
