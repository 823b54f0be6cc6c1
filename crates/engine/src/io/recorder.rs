//! A recording of what clients ask an array for, which one reader at a time fetches in pieces.
//!
//! Requests never wait for the reader: where it is behind by [`ROOM`] requests, further ones are counted as
//! lost. A reader that doesn't ask for [`PATIENCE_NANOSECONDS`] is gone, and its recording is over. No task
//! watches for that: the next request, or the next reader, sees it.
//!
//! While there is no recording a request looks at one word.

use std::sync::{
    Mutex, MutexGuard, OnceLock, PoisonError,
    atomic::{
        AtomicU64,
        Ordering::{Relaxed, SeqCst},
    },
};

use crossbeam_queue::ArrayQueue;

use crate::latency::ClientOperation;

/// Requests that are kept for a reader that is behind.
pub const ROOM: usize = 1 << 16;
/// How long a reader may be silent.
pub const PATIENCE_NANOSECONDS: u64 = 10_000_000_000;

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// On the shards' clock; of what was fetched, since the recording began.
    pub at_ns: u64,
    /// What it is.
    pub operation: ClientOperation,
    /// In bytes, 0 of a flush.
    pub offset: u64,
    /// In bytes, 0 of a flush.
    pub length: u64,
    /// Whether it must be durable when it is answered.
    pub fua: bool,
}

/// What was fetched.
#[derive(Debug, PartialEq, Eq)]
pub struct Fetched {
    /// In the order in which they were noted. Of two shards one may be a little behind the other's times.
    pub requests: Vec<Asked>,
    /// How many were lost since the last time.
    pub lost: u64,
    /// There are more.
    pub more: bool,
}

/// See the module. One for all shards.
#[derive(Default)]
pub struct Recorder {
    /// When the recording is over unless its reader asks before; 0: no request is noted.
    until: AtomicU64,
    lost: AtomicU64,
    /// Made by the first recording.
    queue: OnceLock<ArrayQueue<Asked>>,
    readers: Mutex<Readers>,
}

#[derive(Default)]
struct Readers {
    /// The number of the last recording.
    last: u64,
    recording: Option<Recording>,
}

#[derive(Clone, Copy)]
struct Recording {
    number: u64,
    began: u64,
    deadline: u64,
    /// Nothing is noted any more, but not all is fetched.
    is_ended: bool,
}

impl Recorder {
    /// Notes a request, if there is a recording.
    #[inline]
    pub fn note(&self, asked: Asked) {
        let until = self.until.load(Relaxed);
        if until > 0 {
            self.keep(asked, until);
        }
    }

    #[cold]
    fn keep(&self, asked: Asked, until: u64) {
        if asked.at_ns > until {
            // Unless the reader has just asked, or another recording has begun.
            let _ = self.until.compare_exchange(until, 0, SeqCst, SeqCst);
        } else if self.queue.get().is_none_or(|queue| queue.push(asked).is_err()) {
            self.lost.fetch_add(1, Relaxed);
        }
    }

    fn readers(&self) -> MutexGuard<'_, Readers> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a recording, and gives its number. None while there is another one.
    pub fn start(&self, now: u64) -> Option<u64> {
        let mut readers = self.readers();
        if readers.recording.is_some_and(|recording| now <= recording.deadline) {
            return None;
        }
        self.until.store(0, SeqCst);
        let queue = self.queue.get_or_init(|| ArrayQueue::new(ROOM));
        while queue.pop().is_some() {}
        self.lost.store(0, Relaxed);
        let (number, deadline) = (readers.last + 1, now + PATIENCE_NANOSECONDS);
        readers.last = number;
        readers.recording = Some(Recording { number, began: now, deadline, is_ended: false });
        self.until.store(deadline, SeqCst);
        Some(number)
    }

    /// Whether requests are being noted.
    pub fn is_on(&self, now: u64) -> bool {
        (1..=self.until.load(Relaxed)).contains(&now)
    }

    /// Requests that wait to be fetched.
    pub fn waiting(&self) -> usize {
        self.queue.get().map_or(0, ArrayQueue::len)
    }

    /// Fetches at most so many requests; with `ends`, no more are noted. A recording that was ended is over
    /// when all are fetched. None if it is over.
    pub fn fetch(&self, number: u64, now: u64, most: usize, ends: bool) -> Option<Fetched> {
        let mut readers = self.readers();
        let recording = readers.recording.as_mut().filter(|recording| recording.number == number)?;
        if now > recording.deadline {
            return None;
        }
        recording.deadline = now + PATIENCE_NANOSECONDS;
        recording.is_ended |= ends;
        self.until.store(if recording.is_ended { 0 } else { recording.deadline }, SeqCst);
        let Recording { began, is_ended, .. } = *recording;
        let queue = self.queue.get()?;
        let asked = std::iter::from_fn(|| queue.pop()).take(most);
        // A request of before the beginning may have been about to be noted by then.
        let since = |asked: Asked| Some(Asked { at_ns: asked.at_ns.checked_sub(began)?, ..asked });
        let requests = asked.filter_map(since).collect();
        let more = !queue.is_empty();
        if is_ended && !more {
            readers.recording = None;
        }
        Some(Fetched { requests, lost: self.lost.swap(0, Relaxed), more })
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const BEGIN: u64 = 5_000_000_000;

    fn write(at_ns: u64, offset: u64) -> Asked {
        Asked { at_ns, operation: ClientOperation::Write, offset, length: 4096, fua: false }
    }

    fn offsets(fetched: &Fetched) -> Vec<u64> {
        fetched.requests.iter().map(|asked| asked.offset).collect()
    }

    #[test]
    fn what_is_asked_for_between_beginning_and_end_is_fetched_in_order() {
        let recorder = Recorder::default();
        recorder.note(write(BEGIN - 2, 1));
        assert_eq!(recorder.fetch(1, BEGIN, 9, false), None, "there is none");
        let number = recorder.start(BEGIN).unwrap();
        recorder.note(write(BEGIN - 1, 2));
        for place in 3..8 {
            recorder.note(write(BEGIN + place, place));
        }
        let first = recorder.fetch(number, BEGIN + 9, 4, false).unwrap();
        assert_eq!((offsets(&first), first.lost, first.more), (vec![3, 4, 5], 0, true));
        assert_eq!(first.requests[0].at_ns, 3, "since the beginning");
        let second = recorder.fetch(number, BEGIN + 9, 1, true).unwrap();
        assert_eq!((offsets(&second), second.more), (vec![6], true));
        recorder.note(write(BEGIN + 10, 10));
        assert_eq!(recorder.start(BEGIN + 11), None, "not all is fetched");
        let last = recorder.fetch(number, BEGIN + 12, 9, true).unwrap();
        assert_eq!((offsets(&last), last.more), (vec![7], false));
        assert_eq!(recorder.fetch(number, BEGIN + 13, 9, true), None);
        assert_eq!(recorder.start(BEGIN + 14), Some(number + 1));
    }

    #[test]
    fn what_a_slow_reader_has_no_room_for_is_counted_and_the_next_requests_are_kept() {
        let recorder = Recorder::default();
        let number = recorder.start(BEGIN).unwrap();
        for place in 0..ROOM as u64 + 7 {
            recorder.note(write(BEGIN, place));
        }
        assert_eq!(recorder.waiting(), ROOM);
        let fetched = recorder.fetch(number, BEGIN, ROOM, false).unwrap();
        assert_eq!((fetched.requests.len(), fetched.lost, fetched.more), (ROOM, 7, false));
        recorder.note(write(BEGIN, 99));
        let fetched = recorder.fetch(number, BEGIN, ROOM, false).unwrap();
        assert_eq!((offsets(&fetched), fetched.lost), (vec![99], 0));
    }

    #[test]
    fn a_reader_that_is_silent_too_long_is_gone_and_requests_are_not_noted_any_more() {
        let recorder = Recorder::default();
        let number = recorder.start(BEGIN).unwrap();
        let patience = BEGIN + PATIENCE_NANOSECONDS;
        assert_eq!(recorder.start(patience), None, "it may come yet");
        recorder.note(write(patience, 1));
        assert_eq!(recorder.waiting(), 1);
        recorder.note(write(patience + 1, 2));
        assert_eq!((recorder.waiting(), recorder.until.load(SeqCst)), (1, 0), "off again");
        assert_eq!(recorder.fetch(number, patience + 1, 9, false), None, "too late");
        let next = recorder.start(patience + 2).unwrap();
        assert_eq!(recorder.fetch(number, patience + 3, 9, false), None, "another one's");
        assert_eq!(offsets(&recorder.fetch(next, patience + 3, 9, false).unwrap()), [0; 0], "nothing old");
    }

    #[test]
    fn a_reader_that_asks_keeps_its_recording_without_requests() {
        let recorder = Recorder::default();
        let (number, step) = (recorder.start(BEGIN).unwrap(), PATIENCE_NANOSECONDS - 1);
        for turn in 1..10 {
            assert!(recorder.fetch(number, BEGIN + turn * step, 9, false).is_some());
        }
        recorder.note(write(BEGIN + 9 * step + 5, 1));
        assert_eq!(offsets(&recorder.fetch(number, BEGIN + 9 * step + 6, 9, false).unwrap()), [1]);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "what threads of their own do is what is tested")]
    fn requests_of_several_threads_are_fetched_or_counted_each_once() {
        const EACH: u64 = 100_000;
        let recorder = Recorder::default();
        let number = recorder.start(BEGIN).unwrap();
        let (mut places, mut lost) = (Vec::new(), 0);
        let mut fetch = |ends| {
            let fetched = recorder.fetch(number, BEGIN, 1000, ends).unwrap();
            places.extend(offsets(&fetched));
            lost += fetched.lost;
            fetched.more
        };
        let note_all = |writer: u64| {
            for place in 0..EACH {
                recorder.note(write(BEGIN, writer * EACH + place));
            }
        };
        thread::scope(|scope| {
            let writers = [scope.spawn(|| note_all(0)), scope.spawn(|| note_all(1))];
            while writers.iter().any(|writer| !writer.is_finished()) {
                fetch(false);
            }
        });
        while fetch(true) {}
        let of = |writer: u64| places.iter().filter(move |place| **place / EACH == writer);
        assert!((0..2).all(|writer| of(writer).is_sorted()), "in each one's order");
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len() as u64 + lost, 2 * EACH);
    }
}
