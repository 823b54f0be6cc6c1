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
use crate::command_line::{LogFormat, LogLevel};

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
    /// Entries that could not be written, and why the last one could not.
    lost: u64,
    why: Option<Errno>,
    /// A part of the last one was.
    is_torn: bool,
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
        (Self::by(way, priorities), problem.filter(|_| asked.is_some()))
    }

    fn by(way: Way, priorities: bool) -> Self {
        Self { way, priorities, lost: 0, why: None, is_torn: false }
    }

    /// There is nothing else to tell errors, such as that the disk is full. So what could not be written is
    /// counted, and the count is told when something can be written again.
    pub fn write(&mut self, record: &Record, context: &Context) {
        if let Some(why) = self.why {
            let words = format!("{} entries of the log could not be written: {why}", self.lost);
            if self.put(&Record::new(LogLevel::Warning, &words), context).is_ok() {
                (self.lost, self.why) = (0, None);
            }
        }
        if let Err(why) = self.put(record, context) {
            self.lost += 1;
            self.why = Some(why);
        }
    }

    fn put(&mut self, record: &Record, context: &Context) -> Result<(), Errno> {
        let text = match &self.way {
            Way::Json => json(record, context),
            // To the path each time: the journal may have been restarted.
            Way::Journal { socket, path } if socket.send_to(&journal(record, context), path).is_ok() => {
                return Ok(());
            }
            Way::Journal { .. } | Way::Text => text(record, context, self.priorities),
        };
        self.put_on_standard_error(text.as_bytes())
    }

    /// A line that was torn is ended first.
    fn put_on_standard_error(&mut self, line: &[u8]) -> Result<(), Errno> {
        if self.is_torn {
            to_standard_error(b"\n").map_err(|(why, _)| why)?;
            self.is_torn = false;
        }
        to_standard_error(line).map_err(|(why, written)| {
            self.is_torn = written > 0;
            why
        })
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
/// With an error comes how much was written before.
fn to_standard_error(bytes: &[u8]) -> Result<(), (Errno, usize)> {
    let mut done = 0;
    while done < bytes.len() {
        match rustix::io::write(io::stderr(), &bytes[done..]) {
            Ok(written) => done += written,
            Err(Errno::INTR) => {}
            // Another process has made it so that it doesn't wait.
            Err(Errno::AGAIN) => {
                let standard_error = io::stderr();
                let _ = poll(&mut [PollFd::new(&standard_error, PollFlags::OUT)], None);
            }
            Err(why) => return Err((why, done)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut sink = Sink::by(way, false);
        let mut write = |words: &str| sink.write(&Record::new(LogLevel::Error, words), &Context::default());
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
