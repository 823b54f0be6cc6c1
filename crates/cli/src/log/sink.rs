//! Where the log goes: standard error, or the journal. May block; only the log's thread comes here.

use std::{io, os::unix::net::UnixDatagram, path::PathBuf};

use rustix::{
    event::{PollFd, PollFlags, poll},
    io::Errno,
};

use super::{
    format::{Context, journal, json, text},
    record::Record,
};
use crate::command_line::LogFormat;

/// Where journald listens.
const JOURNAL_SOCKET: &str = "/run/systemd/journal/socket";
/// Names another socket: of a journal in a name space, or a test's.
const JOURNAL_VARIABLE: &str = "PINSTRIPE_JOURNAL_SOCKET";
/// Device and inode of the journal's stream, if systemd has given us one.
const STREAM_VARIABLE: &str = "JOURNAL_STREAM";

/// See the module.
pub struct Sink {
    way: Way,
    /// Standard error is a stream of the journal, which takes a priority at the head of each line.
    priorities: bool,
}

enum Way {
    Text,
    Json,
    Journal { socket: UnixDatagram, path: PathBuf },
}

impl Sink {
    /// As it is asked for, or as standard error is; and why it isn't as it is asked for.
    pub fn open(asked: Option<LogFormat>) -> (Self, Option<String>) {
        let priorities = is_stream_of_journal();
        let usual = if priorities { LogFormat::Journald } else { LogFormat::Text };
        let (way, problem) = match asked.unwrap_or(usual) {
            LogFormat::Text => (Way::Text, None),
            LogFormat::Json => (Way::Json, None),
            LogFormat::Journald => match connect() {
                Ok(way) => (way, None),
                Err(why) => (Way::Text, Some(why)),
            },
        };
        (Self { way, priorities }, problem.filter(|_| asked.is_some()))
    }

    /// Errors are of no account: there is nothing else to tell them.
    pub fn write(&self, record: &Record, context: &Context) {
        match &self.way {
            Way::Json => to_standard_error(json(record, context).as_bytes()),
            // To the path each time: the journal may have been restarted.
            Way::Journal { socket, path } if socket.send_to(&journal(record, context), path).is_ok() => {}
            Way::Journal { .. } | Way::Text => {
                to_standard_error(text(record, context, self.priorities).as_bytes());
            }
        }
    }
}

fn connect() -> Result<Way, String> {
    let path =
        std::env::var_os(JOURNAL_VARIABLE).map_or_else(|| PathBuf::from(JOURNAL_SOCKET), PathBuf::from);
    let failed = |error: io::Error| {
        let path = path.display();
        format!("there is no journal on {path} ({error}): the log goes to standard error, as text")
    };
    let try_it = || UnixDatagram::unbound()?.connect(&path);
    try_it().map_err(failed)?;
    let socket = UnixDatagram::unbound().map_err(failed)?;
    Ok(Way::Journal { socket, path })
}

/// sd-daemon(3): whether `$JOURNAL_STREAM` names what standard error is. A child has the variable too, and
/// perhaps another standard error.
fn is_stream_of_journal() -> bool {
    let named = std::env::var(STREAM_VARIABLE).unwrap_or_default();
    let Ok(stat) = rustix::fs::fstat(io::stderr()) else { return false };
    named == format!("{}:{}", stat.st_dev, stat.st_ino)
}

/// Not by the handle of the library: while it waits for a reader it holds a lock, for which every other
/// thread that says something would wait.
fn to_standard_error(mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match rustix::io::write(io::stderr(), bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            // Another process has made it so that it doesn't wait.
            Err(Errno::AGAIN) => {
                let standard_error = io::stderr();
                let _ = poll(&mut [PollFd::new(&standard_error, PollFlags::OUT)], None);
            }
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::LogLevel;

    #[test]
    fn a_journal_that_was_restarted_gets_the_next_entry() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listen = || UnixDatagram::bind(&path).unwrap();
        let received = |journal: &UnixDatagram| {
            let mut bytes = [0; 4096];
            let length = journal.recv(&mut bytes).unwrap();
            String::from_utf8(bytes[..length].to_vec()).unwrap()
        };
        let journal = listen();
        let way = Way::Journal { socket: UnixDatagram::unbound().unwrap(), path: path.clone() };
        let sink = Sink { way, priorities: false };
        let write = |words: &str| sink.write(&Record::new(LogLevel::Error, words), &Context::default());
        write("one");
        assert!(received(&journal).starts_with("MESSAGE=one\nPRIORITY=3\n"));
        drop(journal);
        std::fs::remove_file(&path).unwrap();
        write("this goes to standard error");
        let journal = listen();
        write("two");
        assert!(received(&journal).starts_with("MESSAGE=two\n"));
    }
}
