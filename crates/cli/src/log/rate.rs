//! How often the same may be said. Pure.
//!
//! A client that fails its handshake ten thousand times a second must not fill the disk. So what comes from
//! one place in the program and is about the same things is written [`BURST`] times in a window, then it is
//! counted, and the count is told when the window is over. The sentence is no part of the key, for a client
//! has another port each time.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::record::{Record, Value};

/// Entries with one key in a window.
pub const BURST: u32 = 20;
pub const WINDOW: Duration = Duration::from_mins(1);
/// Windows at a time. What finds no room shares one.
const KEYS_MAX: usize = 256;
/// The key of what shares.
const SHARED: u64 = 0;

/// See the module.
pub struct Limiter {
    windows: BTreeMap<u64, Window>,
    window: Duration,
}

impl Default for Limiter {
    fn default() -> Self {
        Self::of(WINDOW)
    }
}

struct Window {
    began: Instant,
    passed: u32,
    left_out: u64,
    /// The first that was left out.
    sample: Option<Record>,
}

/// What becomes of an entry.
#[derive(Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is written, after what tells of those that were left out before.
    Written {
        before: Option<Record>,
        record: Record,
    },
    /// It is the first that is left out in its window.
    BeginsToLeaveOut,
    LeftOut,
}

impl Limiter {
    /// With windows of this length.
    pub fn of(window: Duration) -> Self {
        Self { windows: BTreeMap::new(), window }
    }

    /// Decides about an entry with this key, which is made only if it is needed.
    pub fn admit(&mut self, key: u64, now: Instant, make: impl FnOnce() -> Record) -> Admission {
        let (key, length) = (self.room_for(key, now), self.window);
        let new = || Window { began: now, passed: 0, left_out: 0, sample: None };
        let window = self.windows.entry(key).or_insert_with(new);
        let before =
            if window.is_over(now, length) { std::mem::replace(window, new()).told(length) } else { None };
        if window.passed < BURST {
            window.passed += 1;
            return Admission::Written { before, record: make() };
        }
        window.left_out += 1;
        if window.left_out > 1 {
            return Admission::LeftOut;
        }
        window.sample = Some(make());
        Admission::BeginsToLeaveOut
    }

    /// The key under which there is room.
    fn room_for(&mut self, key: u64, now: Instant) -> u64 {
        if self.windows.len() >= KEYS_MAX && !self.windows.contains_key(&key) {
            self.windows.retain(|_, window| window.left_out > 0 || !window.is_over(now, self.window));
        }
        let is_full = self.windows.len() >= KEYS_MAX && !self.windows.contains_key(&key);
        if is_full { SHARED } else { key }
    }

    /// What tells of entries that were left out in windows that are over, or in `all`, and when to look
    /// again.
    pub fn due(&mut self, now: Instant, all: bool) -> (Vec<Record>, Option<Instant>) {
        let length = self.window;
        let due = self.windows.extract_if(.., |_, window| window.is_over(now, length) || all);
        let told = due.filter_map(|(_, window)| window.told(length)).collect();
        let left = self.windows.values().filter(|window| window.left_out > 0);
        (told, left.map(|window| window.began + length).min())
    }
}

impl Window {
    fn is_over(&self, now: Instant, length: Duration) -> bool {
        now.saturating_duration_since(self.began) >= length
    }

    /// What tells of those that were left out.
    fn told(self, length: Duration) -> Option<Record> {
        let mut record = self.sample?;
        let (count, seconds) = (self.left_out, length.as_secs());
        let words = format!("left out within {seconds} s: {count} more like this: {}", record.message);
        record.message = words;
        record.time = std::time::SystemTime::now();
        record.fields.push(("left_out", Value::Number(count)));
        Some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command_line::LogLevel;

    fn said() -> Record {
        Record::new(LogLevel::Info, "the client broke the protocol")
    }

    #[test]
    fn a_flood_is_counted_and_told_once_in_a_window() {
        let (mut limiter, begun) = (Limiter::default(), Instant::now());
        let (mut written, mut begins) = (0, 0);
        for _ in 0..10_000 {
            match limiter.admit(1, begun, said) {
                Admission::Written { before, .. } => written += 1 + u32::from(before.is_some()),
                Admission::BeginsToLeaveOut => begins += 1,
                Admission::LeftOut => {}
            }
        }
        assert_eq!((written, begins), (BURST, 1));
        assert!(matches!(limiter.admit(2, begun, said), Admission::Written { .. }), "another thing is told");
        assert_eq!(limiter.due(begun, false), (Vec::new(), Some(begun + WINDOW)));
        let (told, next) = limiter.due(begun + WINDOW, false);
        assert_eq!((told.len(), next), (1, None));
        assert_eq!(
            told[0].message,
            "left out within 60 s: 9980 more like this: the client broke the protocol"
        );
        assert_eq!(told[0].fields, [("left_out", Value::Number(9980))]);
        assert!(matches!(limiter.admit(1, begun + WINDOW, said), Admission::Written { before: None, .. }));
    }

    #[test]
    fn what_comes_first_after_a_window_tells_of_it() {
        let (mut limiter, begun) = (Limiter::default(), Instant::now());
        for _ in 0..=BURST {
            limiter.admit(1, begun, said);
        }
        let Admission::Written { before: Some(before), .. } = limiter.admit(1, begun + WINDOW, said) else {
            panic!("nothing was told");
        };
        assert_eq!(before.fields, [("left_out", Value::Number(1))]);
    }

    #[test]
    fn any_number_of_keys_takes_bounded_memory_and_is_limited() {
        let (mut limiter, begun) = (Limiter::default(), Instant::now());
        let mut written = 0;
        for key in 1..100_000 {
            written += usize::from(matches!(limiter.admit(key, begun, said), Admission::Written { .. }));
        }
        // What one of them has left out is told all the same.
        (0..=BURST).for_each(|_| drop(limiter.admit(7, begun, said)));
        assert!(limiter.windows.len() <= KEYS_MAX + 1);
        assert!(written <= KEYS_MAX + BURST as usize, "{written}");
        limiter.admit(100_000, begun + WINDOW, said);
        assert!(limiter.windows.len() <= 3, "those that are over give room");
        let (told, _) = limiter.due(begun + WINDOW, false);
        assert_eq!(told.len(), 2, "{told:?}");
    }
}
