//! What happened, as a rolling hash of every event and, if asked for, the last events in words.
//!
//! Two runs of a seed must give the same hash. So an event holds only what a seed decides: positions, counts,
//! offsets and contents, never an address, and never a shard's or a mailbox's id, which the process hands
//! out.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    fmt,
    hash::{Hash, Hasher},
    rc::Rc,
};

use pinstripe_runtime::DeviceErrorKind;

use crate::rng::mix;

/// What a request asks of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Read a range.
    Read,
    /// Write a range; it may be lost until a flush.
    Write,
    /// Write a range that is durable at completion.
    WriteFua,
    /// Make completed writes durable.
    Flush,
    /// Forget a range.
    Discard,
    /// Zero a range.
    WriteZeroes,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// It transferred this many bytes.
    Done(u64),
    /// It failed; [`DeviceErrorKind`] as a name that can be hashed.
    Failed(&'static str),
}

impl Ending {
    pub(crate) fn of(result: Result<usize, DeviceErrorKind>) -> Self {
        match result {
            Ok(bytes) => Self::Done(bytes as u64),
            Err(kind) => Self::Failed(match kind {
                DeviceErrorKind::Media => "media",
                DeviceErrorKind::Gone => "gone",
                DeviceErrorKind::NoSpace => "no space",
                DeviceErrorKind::Unsupported => "unsupported",
                DeviceErrorKind::Invalid => "invalid",
                DeviceErrorKind::Busy => "busy",
                DeviceErrorKind::Refused => "refused",
                DeviceErrorKind::Fenced => "fenced",
                DeviceErrorKind::Removed => "removed",
                DeviceErrorKind::TimedOut => "timed out",
                DeviceErrorKind::TooManyErrors => "too many errors",
                DeviceErrorKind::Other => "other",
            }),
        }
    }
}

/// One event. Shards, disks and links are numbered from 0 in the order in which the world made them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the fields are what their names say, and are printed, not matched")]
pub enum Event {
    /// A shard polled the task at `position` of its `ready` ready ones.
    Polled { shard: usize, position: usize, ready: usize },
    /// A shard took its wakes and messages.
    Mail { shard: usize },
    /// A shard's due timers fired.
    Timers { shard: usize },
    /// A shard was descheduled.
    Paused { shard: usize, until: u64 },
    /// Time passed.
    Clock { now: u64 },
    /// A request reached a disk. `contents` is a hash of what it writes.
    Submitted {
        disk: usize,
        request: u64,
        shard: usize,
        operation: Operation,
        offset: u64,
        length: u64,
        contents: u64,
    },
    /// A part of a request, in bytes from its offset, reached or left the medium.
    Effect { disk: usize, request: u64, from: u64, to: u64 },
    /// A request was completed. `contents` is a hash of what it read.
    Completed { disk: usize, request: u64, ending: Ending, contents: u64 },
    /// A disk got or lost a fault.
    Fault { disk: usize, name: &'static str },
    /// Bytes went into, through or out of one direction of a link.
    Stream { link: usize, direction: usize, what: &'static str, bytes: u64, contents: u64 },
    /// Every shard died; with `power` the disks lost their caches too.
    Crash { incarnation: u64, power: bool, contents: u64 },
    /// Something that the harness put in.
    Note { what: &'static str, value: u64 },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Polled { shard, position, ready } => {
                write!(f, "shard {shard}: poll {position} of {ready}")
            }
            Self::Mail { shard } => write!(f, "shard {shard}: mail"),
            Self::Timers { shard } => write!(f, "shard {shard}: timers"),
            Self::Paused { shard, until } => write!(f, "shard {shard}: paused until {until}"),
            Self::Clock { now } => write!(f, "clock: {now}"),
            Self::Submitted { disk, request, shard, operation, offset, length, contents } => write!(
                f,
                "disk {disk}: request {request} of shard {shard}: {operation:?} {offset}+{length} [{contents:016x}]"
            ),
            Self::Effect { disk, request, from, to } => {
                write!(f, "disk {disk}: request {request} takes effect in bytes {from}..{to}")
            }
            Self::Completed { disk, request, ending, contents } => {
                write!(f, "disk {disk}: request {request} ends: {ending:?} [{contents:016x}]")
            }
            Self::Fault { disk, name } => write!(f, "disk {disk}: {name}"),
            Self::Stream { link, direction, what, bytes, contents } => {
                write!(f, "link {link}.{direction}: {what} {bytes} bytes [{contents:016x}]")
            }
            Self::Crash { incarnation, power, contents } => {
                let what = if *power { "power loss" } else { "process death" };
                write!(f, "{what} ends incarnation {incarnation}; the disks hold [{contents:016x}]")
            }
            Self::Note { what, value } => write!(f, "{what}: {value}"),
        }
    }
}

/// Sequential 64-bit hash with a fixed key, so that its values are the same in every process.
#[derive(Default)]
pub(crate) struct SeedHasher(u64);

impl Hasher for SeedHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9fb2_1c65_1e98_df25).rotate_left(29);
        self.0 ^= self.0 >> 32;
    }
}

/// Hash of some contents for the trace.
pub(crate) fn hash_of(bytes: &[u8]) -> u64 {
    let mut hasher = SeedHasher(bytes.len() as u64);
    hasher.write(bytes);
    hasher.finish()
}

/// The record of a run.
pub struct Trace {
    clock: Rc<Cell<u64>>,
    hash: Cell<u64>,
    events: Cell<u64>,
    log: RefCell<VecDeque<(u64, Event)>>,
    log_events_max: usize,
}

impl Trace {
    pub(crate) fn new(clock: Rc<Cell<u64>>, log_events_max: usize) -> Self {
        Self { clock, hash: Cell::new(0), events: Cell::new(0), log: RefCell::default(), log_events_max }
    }

    /// Adds an event.
    pub fn record(&self, event: Event) {
        let mut hasher = SeedHasher(self.hash.get());
        hasher.write_u64(self.clock.get());
        event.hash(&mut hasher);
        self.hash.set(mix(hasher.finish()));
        self.events.set(self.events.get() + 1);
        if self.log_events_max > 0 {
            let mut log = self.log.borrow_mut();
            if log.len() == self.log_events_max {
                log.pop_front();
            }
            log.push_back((self.clock.get(), event));
        }
    }

    /// Hash of all events so far, in order.
    pub fn hash(&self) -> u64 {
        self.hash.get()
    }

    /// Number of events so far.
    pub fn events(&self) -> u64 {
        self.events.get()
    }

    /// The last events in words, one a line, as many as the world was told to keep.
    pub fn log(&self) -> String {
        use fmt::Write;
        let mut lines = String::new();
        for (now, event) in self.log.borrow().iter() {
            // Writing to a string does not fail.
            let _ = writeln!(lines, "{now:>12} {event}");
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_depends_on_order_time_and_contents() {
        let clock = Rc::new(Cell::new(0));
        let run = |events: &[(u64, Event)]| {
            let trace = Trace::new(Rc::clone(&clock), 2);
            for (now, event) in events {
                clock.set(*now);
                trace.record(*event);
            }
            trace.hash()
        };
        let (a, b) = (Event::Mail { shard: 0 }, Event::Mail { shard: 1 });
        let base = run(&[(1, a), (2, b)]);
        assert_eq!(base, run(&[(1, a), (2, b)]));
        assert_ne!(base, run(&[(1, b), (2, a)]));
        assert_ne!(base, run(&[(1, a), (3, b)]));
        assert_ne!(base, run(&[(1, a)]));
        assert_ne!(hash_of(&[0; 8]), hash_of(&[0; 16]));
    }

    #[test]
    fn the_log_keeps_the_last_events() {
        let trace = Trace::new(Rc::default(), 2);
        for shard in 0..5 {
            trace.record(Event::Mail { shard });
        }
        assert_eq!(trace.log().lines().count(), 2);
        assert!(trace.log().contains("shard 4: mail"));
        assert_eq!(trace.events(), 5);
    }
}
