//! The way from what says something to what writes it, on a thread of its own.
//!
//! A reader that has stopped (a pipe that is full, a journal that hangs) stops that thread, and nothing else:
//! what finds no room in the queue is left out, counted, and told of when there is room again. Half of the
//! queue is for warnings and errors only. See docs/decisions/0038-the-log.md.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    rate::{Admission, Limiter},
    record::{Record, Value},
};
use crate::command_line::LogLevel;

/// Entries, and bytes of them, that wait.
const RECORDS_MAX: usize = 1024;
const BYTES_MAX: usize = 1 << 20;
/// How often is looked for room for what must not be left out, while there is time.
const LOOK: Duration = Duration::from_millis(5);

/// The name of the thread.
pub const THREAD: &str = "log";

enum Item {
    Record(Record),
    /// Entries begin to be left out: when that is over, it is to be told.
    Look,
    /// All before this is written, and all that was left out is told.
    Flush(SyncSender<()>),
}

/// See the module.
pub struct Queue {
    items: SyncSender<Item>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    records: AtomicUsize,
    bytes: AtomicUsize,
    left_out: AtomicU64,
    limiter: Mutex<Limiter>,
}

impl Queue {
    /// Begins a thread, which hands each entry to `write`.
    pub fn begin(write: impl FnMut(&Record) + Send + 'static) -> std::io::Result<Self> {
        Self::with_limiter(Limiter::default(), write)
    }

    fn with_limiter(limiter: Limiter, write: impl FnMut(&Record) + Send + 'static) -> std::io::Result<Self> {
        let (items, waiting) = sync_channel(RECORDS_MAX);
        let shared = Arc::new(Shared { limiter: limiter.into(), ..Shared::default() });
        let writer = Writer { shared: Arc::clone(&shared), write };
        thread::Builder::new().name(THREAD.to_owned()).spawn(move || writer.run(&waiting))?;
        Ok(Self { items, shared })
    }

    /// Takes an entry, unless too many with its key came lately. Waits for nothing.
    pub fn offer(&self, key: u64, make: impl FnOnce() -> Record) {
        let admission = self.shared.limiter().admit(key, Instant::now(), make);
        match admission {
            Admission::Written { before, record } => {
                for record in before.into_iter().chain([record]) {
                    self.push(record);
                }
            }
            // If there is no room, later ones or the end tell of it.
            Admission::BeginsToLeaveOut => drop(self.items.try_send(Item::Look)),
            Admission::LeftOut => {}
        }
    }

    fn push(&self, record: Record) {
        let size = record.size();
        let (records, bytes) = (&self.shared.records, &self.shared.bytes);
        let part = if record.level <= LogLevel::Warning { 1 } else { 2 };
        let is_room = records.load(Ordering::Relaxed) < RECORDS_MAX / part
            && bytes.load(Ordering::Relaxed) + size <= BYTES_MAX / part;
        // Before the thread can take it away.
        records.fetch_add(1, Ordering::Relaxed);
        bytes.fetch_add(size, Ordering::Relaxed);
        if !is_room || self.items.try_send(Item::Record(record)).is_err() {
            records.fetch_sub(1, Ordering::Relaxed);
            bytes.fetch_sub(size, Ordering::Relaxed);
            self.shared.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Waits until all is written, `last` included, which no limit keeps out; but not longer than `limit`.
    pub fn flush(&self, last: Option<Record>, limit: Duration) {
        let end = Instant::now() + limit;
        if let Some(last) = last {
            self.shared.records.fetch_add(1, Ordering::Relaxed);
            self.shared.bytes.fetch_add(last.size(), Ordering::Relaxed);
            self.send_by(end, Item::Record(last));
        }
        let (done, wait) = sync_channel(1);
        self.send_by(end, Item::Flush(done));
        let _ = wait.recv_timeout(end.saturating_duration_since(Instant::now()));
    }

    fn send_by(&self, end: Instant, item: Item) {
        let mut item = Some(item);
        while let Some(wanted) = item.take() {
            match self.items.try_send(wanted) {
                Err(std::sync::mpsc::TrySendError::Full(back)) if Instant::now() < end => {
                    item = Some(back);
                    thread::sleep(LOOK);
                }
                _ => {}
            }
        }
    }
}

impl Shared {
    fn limiter(&self) -> std::sync::MutexGuard<'_, Limiter> {
        self.limiter.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Writer<W> {
    shared: Arc<Shared>,
    write: W,
}

impl<W: FnMut(&Record)> Writer<W> {
    fn run(mut self, items: &Receiver<Item>) {
        let mut next = None;
        loop {
            let item = match next {
                None => items.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(due) => items.recv_timeout(Instant::saturating_duration_since(&due, Instant::now())),
            };
            let mut done = None;
            match item {
                Ok(Item::Record(record)) => self.write(&record),
                Ok(Item::Look) | Err(RecvTimeoutError::Timeout) => next = self.tell(false),
                Ok(Item::Flush(asked)) => {
                    next = self.tell(true);
                    done = Some(asked);
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
            // Those of a moment in which nothing could be written are over now.
            let left_out = self.shared.left_out.swap(0, Ordering::Relaxed);
            if left_out > 0 {
                (self.write)(&not_kept_up(left_out));
            }
            if let Some(done) = done {
                let _ = done.send(());
            }
        }
    }

    fn write(&mut self, record: &Record) {
        (self.write)(record);
        self.shared.records.fetch_sub(1, Ordering::Relaxed);
        self.shared.bytes.fetch_sub(record.size(), Ordering::Relaxed);
    }

    /// Tells of what the limiter left out; when to look again.
    fn tell(&mut self, all: bool) -> Option<Instant> {
        let (told, next) = self.shared.limiter().due(Instant::now(), all);
        for record in &told {
            (self.write)(record);
        }
        next
    }
}

fn not_kept_up(left_out: u64) -> Record {
    let words = format!("{left_out} entries of the log were left out: what reads the log did not keep up");
    let mut record = Record::new(LogLevel::Warning, &words);
    record.fields.push(("left_out", Value::Number(left_out)));
    record
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    const LIMIT: Duration = Duration::from_mins(1);

    fn said(level: LogLevel, message: &str) -> Record {
        Record::new(level, message)
    }

    /// A queue whose reader reads an entry for each word that is sent, and what it has read.
    fn stopped() -> (Queue, Sender<()>, Receiver<String>) {
        let (go_on, may) = channel();
        let (tell, read) = channel();
        let queue = Queue::begin(move |record| {
            let _ = may.recv();
            let _ = tell.send(record.message.clone());
        });
        (queue.unwrap(), go_on, read)
    }

    #[test]
    fn a_reader_that_stops_keeps_nothing_waiting_and_learns_what_it_missed() {
        let (queue, go_on, read) = stopped();
        let begun = Instant::now();
        for _ in 0..5000 {
            queue.push(said(LogLevel::Info, "it happens"));
        }
        queue.push(said(LogLevel::Error, "it has failed"));
        queue.flush(None, Duration::from_millis(50));
        assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
        let waiting = queue.shared.records.load(Ordering::Relaxed);
        assert!(waiting <= RECORDS_MAX / 2 + 2, "{waiting}");
        // It reads on, without end.
        drop(go_on);
        queue.flush(None, LIMIT);
        let read: Vec<String> = read.try_iter().collect();
        let told = |words: &str| read.iter().filter(|message| message.contains(words)).count();
        assert_eq!(told("it has failed"), 1, "half of the queue is for such");
        assert!(told("did not keep up") >= 1 && read.len() < RECORDS_MAX, "{}", read.len());
        assert_eq!(queue.shared.records.load(Ordering::Relaxed), 0);
        assert_eq!(queue.shared.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_a_flood_left_out_is_told_when_its_window_is_over() {
        let (tell, read) = channel();
        let limiter = Limiter::of(Duration::from_millis(200));
        let queue = Queue::with_limiter(limiter, move |record| {
            let _ = tell.send(record.message.clone());
        });
        let queue = queue.unwrap();
        for _ in 0..1000 {
            queue.offer(1, || said(LogLevel::Info, "a flood"));
        }
        let told = std::iter::from_fn(|| read.recv_timeout(LIMIT).ok());
        assert!(told.take(21).any(|message| message.contains("980 more like this: a flood")));
    }

    #[test]
    fn long_notes_leave_room_for_errors() {
        let (queue, go_on, read) = stopped();
        for _ in 0..RECORDS_MAX {
            queue.push(said(LogLevel::Info, &"x".repeat(64 << 10)));
        }
        queue.push(said(LogLevel::Error, "it has failed"));
        drop(go_on);
        queue.flush(None, LIMIT);
        assert!(read.try_iter().any(|message| message == "it has failed"));
    }

    #[test]
    fn long_entries_take_bounded_memory() {
        let (queue, _go_on, _read) = stopped();
        for _ in 0..RECORDS_MAX {
            queue.push(said(LogLevel::Error, &"x".repeat(1 << 20)));
        }
        let bytes = queue.shared.bytes.load(Ordering::Relaxed);
        assert!(bytes <= BYTES_MAX, "{bytes}");
    }

    #[test]
    fn the_end_tells_what_a_flood_left_out_and_the_last_word_is_never_left_out() {
        let (queue, go_on, read) = stopped();
        drop(go_on);
        for _ in 0..1000 {
            queue.offer(1, || said(LogLevel::Info, "a flood"));
        }
        queue.flush(Some(said(LogLevel::Error, "the last word")), LIMIT);
        let read: Vec<String> = read.try_iter().collect();
        let told = read.iter().filter(|message| message.contains("980 more like this: a flood"));
        assert_eq!(told.count(), 1, "{read:?}");
        assert_eq!(read.iter().filter(|message| *message == "a flood").count(), 20);
        assert!(read.iter().any(|message| message == "the last word"));
    }
}
