//! Traces: requests that another machine's disk got, as programs have written them down.
//!
//! A trace is of one device. Requests of other devices in the same file are skipped and counted, as is what
//! isn't replayed (trims, requests of no bytes).

mod formats;
mod synthetic;

use std::{
    fmt,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::{Path, PathBuf},
};

use serde::Serialize;
use thiserror::Error;

use self::formats::Parser;
pub use self::synthetic::{Published, Synthetic, Workload};

/// The longest request that is replayed.
const LENGTH_MAX: u64 = 32 << 20;
/// The longest line.
const LINE_MAX: u64 = 64 << 10;

/// What the lines of a trace look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Format {
    /// MSR Cambridge's: `TIMESTAMP,HOST,DISK,Read|Write,OFFSET,LENGTH,RESPONSE-TIME`, times in 100 ns.
    Msr,
    /// `R|W`, offset and length in bytes, with tabs between. There are no times.
    Plain,
    /// fio's, version 2: only `wait` tells of time.
    Iolog2,
    /// fio's, version 3: each line begins with microseconds.
    Iolog3,
    /// The text of blkparse: what was queued, or if nothing was, what was issued.
    Blkparse,
    /// No file: made after published numbers.
    Synthetic,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Msr => "MSR Cambridge",
            Self::Plain => "R|W, offset, length",
            Self::Iolog2 => "fio iolog version 2",
            Self::Iolog3 => "fio iolog version 3",
            Self::Blkparse => "blkparse",
            Self::Synthetic => "synthetic",
        })
    }
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Read,
    Write,
    Flush,
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// Since the first one.
    pub(crate) at_ns: u64,
    /// In bytes.
    pub(crate) offset: u64,
    /// In bytes, 0 of a flush.
    pub(crate) length: u32,
    pub(crate) action: Action,
}

/// The requests of one device.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    pub(crate) format: Format,
    /// In the order of the file.
    pub(crate) requests: Vec<Request>,
    /// Whether the trace says when they came.
    pub(crate) is_timed: bool,
    /// Requests of other devices, and of kinds that aren't replayed.
    pub(crate) skipped: u64,
}

/// Why a trace can't be replayed.
#[derive(Debug, Error)]
pub enum TraceError {
    /// It can't be read.
    #[error("can't read the trace {path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Its first line is of no format that is known.
    #[error(
        "{0} is no trace that is known: MSR Cambridge's CSV, lines of R or W, offset and length with tabs between, fio's iolog \
         (version 2 or 3) and the text of blkparse are"
    )]
    Unknown(PathBuf),
    /// A line that is wrong.
    #[error("{path}, line {line}: {words}")]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: u64,
        /// What is wrong with it.
        words: &'static str,
    },
    /// There is nothing to replay in it.
    #[error("{0} has no request")]
    Empty(PathBuf),
    /// It doesn't say when requests came.
    #[error("{0} has no times: leave out --trace-time")]
    NoTimes(PathBuf),
    /// More requests than are told apart.
    #[error("{0} has more than 4,294,967,294 requests: cut it")]
    TooMany(PathBuf),
}

impl Trace {
    /// Reads a file, or standard input for `-`.
    pub(crate) fn read(path: &Path) -> Result<Self, TraceError> {
        let failed = |error| TraceError::Read { path: path.to_owned(), error };
        let file: Box<dyn Read> = if path == Path::new("-") {
            Box::new(io::stdin())
        } else {
            Box::new(File::open(path).map_err(failed)?)
        };
        Self::parse(path, &mut BufReader::with_capacity(1 << 20, file))
    }

    pub(crate) fn parse(path: &Path, lines: &mut impl BufRead) -> Result<Self, TraceError> {
        let failed = |error| TraceError::Read { path: path.to_owned(), error };
        let (mut parser, mut bytes, mut number) = (None, Vec::new(), 0_u64);
        loop {
            bytes.clear();
            if lines.by_ref().take(LINE_MAX).read_until(b'\n', &mut bytes).map_err(failed)? == 0 {
                break;
            }
            number += 1;
            // What isn't UTF-8 is the name of a process, or wrong as a number.
            let line = String::from_utf8_lossy(&bytes);
            let line = line.trim_end();
            if line.trim_start().is_empty() {
                continue;
            }
            let known = match &mut parser {
                Some(parser) => parser,
                none => {
                    let found = Parser::by_first_line(line);
                    none.insert(found.ok_or_else(|| TraceError::Unknown(path.to_owned()))?)
                }
            };
            let wrong = |words| TraceError::Line { path: path.to_owned(), line: number, words };
            known.line(line).map_err(wrong)?;
        }
        let trace = parser.map(Parser::end).filter(|trace| !trace.requests.is_empty());
        let trace = trace.ok_or_else(|| TraceError::Empty(path.to_owned()))?;
        if u32::try_from(trace.requests.len()).is_ok_and(|count| count < u32::MAX) {
            Ok(trace)
        } else {
            Err(TraceError::TooMany(path.to_owned()))
        }
    }

    /// Bytes of the longest request.
    pub(crate) fn longest(&self) -> u32 {
        self.requests.iter().map(|request| request.length).max().unwrap_or(0)
    }

    /// Whether it writes.
    pub(crate) fn writes(&self) -> bool {
        self.requests.iter().any(|request| request.action == Action::Write)
    }
}
