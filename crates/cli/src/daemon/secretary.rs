//! Keeps the history of events and the book of alerts, and sends alerts: each on a thread of its own, for
//! disks and mail servers can hang, and a mail server that does is no reason to lose events, or alerts of
//! other ways.
//!
//! ```text
//!   the daemon -- events --> history
//!              -- alerts --> book -- deliveries --> program, mail, webhook
//!                             | <------ outcomes --
//!                             +-- its text --> file
//! ```
//!
//! The book of alerts counts an alert as told, and has what is still to be sent of it, in one file that is
//! replaced as a whole: a daemon that dies at any moment leaves the next one all deliveries that are not
//! known to be done. One of them can be done twice then, none is lost.

use std::{
    collections::{BTreeMap, VecDeque},
    fs,
    io::{self, Write},
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use pinstripe_config::Alerts;
use serde::{Deserialize, Serialize};

use super::{
    alerts::{Book, Tell},
    sender, threads,
    ways::{Unsent, Way},
};
use crate::{
    history::{HISTORY, HISTORY_BEFORE, Told},
    serve::ServerLog,
    state::replace,
};

/// The alerts that aren't over, and those that are still to be sent.
const ALERTS: &str = "alerts.json";
/// Bytes of the history's file before the next one begins.
const HISTORY_BYTES_MAX: u64 = 4 << 20;
/// Pauses after a failure. After the last one an alert that is over is given up, and one that isn't is sent
/// again after each such pause: a mail server may be away longer than a night.
const PAUSES: [Duration; 6] = [
    Duration::from_secs(10),
    Duration::from_mins(1),
    Duration::from_mins(5),
    Duration::from_mins(30),
    Duration::from_hours(2),
    Duration::from_hours(6),
];
/// Alerts that wait to be sent again, of each way, and events that wait for room.
const WAITING_MAX: usize = 1000;
const TICK: Duration = Duration::from_secs(1);
/// How long the end waits for programs that it ends, and for what became of them.
const ENDING: Duration = Duration::from_secs(1);

/// What it is asked to do.
pub enum Errand {
    /// Keep an event in the history.
    Keep(Told),
    /// Send these alerts by all ways, and keep the book, which has them.
    Tell(Vec<Tell>, Book),
    /// Send alerts so from now on.
    Ways(Alerts),
}

/// The file of alerts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// The alerts that aren't over.
    pub open: Book,
    unsent: Vec<Delivery>,
    /// Those that were configured; an earlier version does not say.
    #[serde(default)]
    ways: Option<Vec<Way>>,
}

impl Kept {
    /// What the last daemon left. A damaged file is none: the worst is that something is told twice.
    pub fn of(folder: &Path) -> Self {
        serde_json::from_slice(&fs::read(folder.join(ALERTS)).unwrap_or_default()).unwrap_or_default()
    }
}

/// An alert that is to be sent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Delivery {
    way: Way,
    tell: Tell,
    /// Failures.
    tries: usize,
    /// Seconds since the epoch: the next try.
    not_before: u64,
}

impl Delivery {
    /// The pause that is left. A clock that was set makes none longer than it was.
    fn pause(&self) -> Duration {
        let pause = Duration::from_secs(self.not_before.saturating_sub(seconds()));
        pause.min(if self.tries == 0 { Duration::ZERO } else { Self::pause_after(self.tries - 1) })
    }

    /// The pause after a failure that came after so many.
    fn pause_after(tries: usize) -> Duration {
        PAUSES[tries.min(PAUSES.len() - 1)]
    }
}

/// Since the epoch.
fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// What the history's thread gets.
enum Entry {
    Event(Told),
    Done(Sender<()>),
}

/// What the book's thread gets.
enum Page {
    Tell(Vec<Tell>, Book),
    Ways(Alerts),
    /// A delivery was done or given up, or is to be tried again.
    Settled(u64),
    Again(u64, Delivery),
    Done(Sender<()>),
}

/// What the thread of the book's file gets.
enum Paper {
    Text(Vec<u8>),
    Done(Sender<()>),
}

/// What the thread of a way gets.
enum Post {
    Send(u64, Delivery),
    Done(Sender<()>),
}

/// The ends of the threads. They are never waited for, but at the daemon's end.
pub struct Secretary {
    history: Sender<Entry>,
    book: Sender<Page>,
    ways: Vec<Sender<Post>>,
    over: Arc<AtomicBool>,
    unkept: Vec<Arc<Mutex<Option<String>>>>,
}

impl Secretary {
    /// With the folder for what outlives the daemon. `alerts_by`: the socket of what starts programs for it.
    pub fn new(
        folder: &Path,
        alerts: &Alerts,
        alerts_by: Option<&Path>,
        log: &ServerLog,
    ) -> io::Result<Self> {
        let (history, entries) = channel();
        let office = History::new(folder, log);
        let mut unkept = vec![Arc::clone(&office.complaints.now)];
        threads::spawn("history", move || office.work(&entries))?;
        let (book, pages) = channel();
        let (over, alerts) = (Arc::default(), Arc::new(Mutex::new(alerts.clone())));
        let mut ways = BTreeMap::new();
        for way in Way::ALL {
            let (sender, posts) = channel();
            let messenger = Messenger {
                way,
                alerts: Arc::clone(&alerts),
                book: book.clone(),
                log: log.clone(),
                over: Arc::clone(&over),
                alerts_by: alerts_by.map(Path::to_owned),
                waiting: Vec::new(),
            };
            threads::spawn(way.name(), move || messenger.work(&posts))?;
            ways.insert(way, sender);
        }
        let all = ways.values().cloned().collect();
        let (file, papers) = channel();
        let complaints = Complaints::new("alerts", folder, log);
        unkept.push(Arc::clone(&complaints.now));
        let scribe = Scribe { folder: folder.to_owned(), text: None, complaints };
        threads::spawn("book", move || scribe.work(&papers))?;
        let keeper = Keeper::new(Kept::of(folder), alerts, ways, file);
        threads::spawn("alerts", move || keeper.work(&pages))?;
        Ok(Self { history, book, ways: all, over, unkept })
    }

    /// What can't be kept now, a sentence each: a next daemon would not know of it.
    pub fn unkept(&self) -> impl Iterator<Item = String> {
        self.unkept.iter().filter_map(|now| now.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    pub fn ask(&self, errand: Errand) {
        // A thread that panics ends the process.
        match errand {
            Errand::Keep(told) => drop(self.history.send(Entry::Event(told))),
            Errand::Tell(tells, book) => drop(self.book.send(Page::Tell(tells, book))),
            Errand::Ways(alerts) => drop(self.book.send(Page::Ways(alerts))),
        }
    }

    /// Waits until what was asked for is done, but not for ever: programs that still run then are ended, and
    /// what they were to send is for the next daemon.
    pub fn finish(&self, limit: Duration) {
        let end = Instant::now() + limit;
        let history = &self.history;
        wait(end, |done| vec![history.send(Entry::Done(done.clone())).is_ok()]);
        // What it was told is with the ways then.
        self.wait_for_book(end);
        self.wait_for_ways(end);
        self.over.store(true, Ordering::Relaxed);
        let end = Instant::now() + ENDING;
        self.wait_for_ways(end);
        // It has their outcomes then.
        self.wait_for_book(end);
    }

    fn wait_for_book(&self, end: Instant) {
        wait(end, |done| vec![self.book.send(Page::Done(done.clone())).is_ok()]);
    }

    fn wait_for_ways(&self, end: Instant) {
        wait(end, |done| self.ways.iter().map(|way| way.send(Post::Done(done.clone())).is_ok()).collect());
    }
}

/// Waits until all that `ask` has asked say that they are done.
fn wait(end: Instant, ask: impl FnOnce(&Sender<()>) -> Vec<bool>) {
    let (done, wait) = channel();
    ask(&done);
    drop(done);
    while wait.recv_timeout(end.saturating_duration_since(Instant::now())).is_ok() {}
}

/// Says once that something can't be kept, and has it shown as long as that is so.
struct Complaints {
    /// What can't be kept.
    what: &'static str,
    folder: PathBuf,
    log: ServerLog,
    now: Arc<Mutex<Option<String>>>,
}

impl Complaints {
    fn new(what: &'static str, folder: &Path, log: &ServerLog) -> Self {
        Self { what, folder: folder.to_owned(), log: log.clone(), now: Arc::default() }
    }

    fn hear(&self, kept: io::Result<()>) {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        let Err(error) = kept else {
            *now = None;
            return;
        };
        if now.is_none() {
            let sentence = format!("{} can't be kept in {}: {error}", self.what, self.folder.display());
            self.log.warn(&sentence);
            *now = Some(sentence);
        }
    }
}

/// Keeps events. Those that find no room wait until there is some.
struct History {
    folder: PathBuf,
    complaints: Complaints,
    waiting: VecDeque<Told>,
    /// Those that waited in vain, for too many came after them.
    lost: u64,
}

impl History {
    fn new(folder: &Path, log: &ServerLog) -> Self {
        let complaints = Complaints::new("events", folder, log);
        Self { folder: folder.to_owned(), complaints, waiting: VecDeque::new(), lost: 0 }
    }

    fn work(mut self, entries: &Receiver<Entry>) {
        loop {
            let mut done = Vec::new();
            match entries.recv_timeout(TICK) {
                Ok(entry) => [entry].into_iter().chain(entries.try_iter()).for_each(|entry| match entry {
                    Entry::Event(told) => self.add(told),
                    Entry::Done(answer) => done.push(answer),
                }),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if !self.waiting.is_empty() {
                let kept = self.keep_all();
                self.complaints.hear(kept);
            }
            for done in done {
                let _ = done.send(());
            }
        }
    }

    fn add(&mut self, told: Told) {
        self.waiting.push_back(told);
        if self.waiting.len() > WAITING_MAX {
            self.waiting.pop_front();
            self.lost += 1;
        }
    }

    fn keep_all(&mut self) -> io::Result<()> {
        let mut kept = Ok(());
        while let Some(told) = self.waiting.front() {
            kept = self.keep(told);
            if kept.is_err() {
                break;
            }
            self.waiting.pop_front();
        }
        // What there was room for is to outlast a crash also where the rest waits.
        let is_on_disk = fs::File::open(self.folder.join(HISTORY)).and_then(|file| file.sync_data());
        kept.and(is_on_disk)?;
        if self.lost > 0 {
            let lost = std::mem::take(&mut self.lost);
            self.complaints.log.warn(&format!("{lost} events were not kept: there was no room for too long"));
        }
        Ok(())
    }

    fn keep(&self, told: &Told) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let path = self.folder.join(HISTORY);
        if path.metadata().is_ok_and(|metadata| metadata.len() >= HISTORY_BYTES_MAX) {
            fs::rename(&path, self.folder.join(HISTORY_BEFORE))?;
        }
        let mut line = serde_json::to_string(told)? + "\n";
        let mut options = fs::File::options();
        let mut file = options.read(true).append(true).create(true).mode(0o640).open(path)?;
        let length = file.metadata()?.len();
        if !ends_with_a_line(&file, length)? {
            // A crash has left a part of a line. It must not take this one with it.
            line.insert(0, '\n');
        }
        // In one piece: what reads meanwhile sees whole lines.
        let written = file.write_all(line.as_bytes());
        if written.is_err() {
            // A full disk may have taken a part. What was there before stays, and nothing else.
            let _ = file.set_len(length);
        }
        written
    }
}

fn ends_with_a_line(file: &fs::File, length: u64) -> io::Result<bool> {
    let Some(last) = length.checked_sub(1) else { return Ok(true) };
    let mut byte = [0];
    file.read_exact_at(&mut byte, last)?;
    Ok(byte == *b"\n")
}

/// Has the book of alerts, and gives the ways what they are to send. It waits for no disk: what a disk's
/// failure is told by may not wait for it.
struct Keeper {
    alerts: Arc<Mutex<Alerts>>,
    ways: BTreeMap<Way, Sender<Post>>,
    file: Sender<Paper>,
    open: Book,
    /// By numbers that count them.
    unsent: BTreeMap<u64, Delivery>,
    next: u64,
    /// What the file has isn't what is to be in it.
    changed: bool,
}

impl Keeper {
    fn new(
        kept: Kept,
        alerts: Arc<Mutex<Alerts>>,
        ways: BTreeMap<Way, Sender<Post>>,
        file: Sender<Paper>,
    ) -> Self {
        let Kept { open, unsent, ways: before } = kept;
        let mut keeper = Self { alerts, ways, file, open, unsent: BTreeMap::new(), next: 0, changed: false };
        for delivery in unsent {
            keeper.add(delivery);
        }
        if let Some(before) = before.filter(|before| *before != keeper.configured()) {
            keeper.tell_new_ways(&before);
            keeper.changed = true;
        }
        keeper
    }

    fn add(&mut self, delivery: Delivery) -> u64 {
        self.next += 1;
        self.unsent.insert(self.next, delivery);
        self.next
    }

    fn work(mut self, pages: &Receiver<Page>) {
        self.send((1..=self.next).collect());
        while let Ok(page) = pages.recv() {
            let (mut new, mut done) = (Vec::new(), Vec::new());
            // All that is there makes one text.
            for page in [page].into_iter().chain(pages.try_iter()) {
                match page {
                    Page::Done(answer) => done.push(answer),
                    page => new.extend(self.take(page)),
                }
            }
            // Those of a daemon that dies now are raised anew: twice is better than not at all.
            self.send(new);
            if std::mem::take(&mut self.changed) {
                let _ = self.file.send(Paper::Text(self.text()));
            }
            for done in done {
                let _ = self.file.send(Paper::Done(done));
            }
        }
    }

    /// The deliveries that are new.
    fn take(&mut self, page: Page) -> Vec<u64> {
        match page {
            Page::Tell(tells, book) => {
                (self.open, self.changed) = (book, true);
                let ways = self.configured();
                let deliveries = tells.into_iter().flat_map(|tell| {
                    let delivery = move |way| Delivery { way, tell: tell.clone(), tries: 0, not_before: 0 };
                    ways.clone().into_iter().map(delivery)
                });
                return deliveries.map(|delivery| self.add(delivery)).collect();
            }
            Page::Ways(alerts) => return self.set_ways(alerts),
            Page::Settled(number) => self.changed |= self.unsent.remove(&number).is_some(),
            Page::Again(number, delivery) => {
                self.unsent.insert(number, delivery);
                self.changed = true;
            }
            Page::Done(_) => {}
        }
        Vec::new()
    }

    /// Has alerts sent so from now on.
    fn set_ways(&mut self, alerts: Alerts) -> Vec<u64> {
        let before = self.configured();
        *self.alerts.lock().unwrap_or_else(PoisonError::into_inner) = alerts;
        self.changed = true;
        self.tell_new_ways(&before)
    }

    /// Has what isn't over told by ways that were not there before: its end comes after its begin.
    fn tell_new_ways(&mut self, before: &[Way]) -> Vec<u64> {
        let new: Vec<Way> = self.configured().into_iter().filter(|way| !before.contains(way)).collect();
        let mut numbers = Vec::new();
        for tell in self.open.raised() {
            for way in &new {
                let tell = tell.clone();
                numbers.push(self.add(Delivery { way: *way, tell, tries: 0, not_before: 0 }));
            }
        }
        numbers
    }

    fn configured(&self) -> Vec<Way> {
        let alerts = now(&self.alerts);
        Way::ALL.into_iter().filter(|way| way.is_configured(&alerts)).collect()
    }

    fn send(&self, numbers: Vec<u64>) {
        for number in numbers {
            let Some(delivery) = self.unsent.get(&number) else { continue };
            if let Some(way) = self.ways.get(&delivery.way) {
                let _ = way.send(Post::Send(number, delivery.clone()));
            }
        }
    }

    fn text(&self) -> Vec<u8> {
        let unsent = self.unsent.values().cloned().collect();
        let kept = Kept { open: self.open.clone(), unsent, ways: Some(self.configured()) };
        serde_json::to_vec(&kept).unwrap_or_default()
    }
}

/// Writes the file of alerts.
struct Scribe {
    folder: PathBuf,
    /// What could not be written.
    text: Option<Vec<u8>>,
    complaints: Complaints,
}

impl Scribe {
    fn work(mut self, papers: &Receiver<Paper>) {
        loop {
            let mut done = Vec::new();
            match papers.recv_timeout(TICK) {
                // The latest is enough.
                Ok(paper) => [paper].into_iter().chain(papers.try_iter()).for_each(|paper| match paper {
                    Paper::Text(text) => self.text = Some(text),
                    Paper::Done(answer) => done.push(answer),
                }),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if let Some(text) = &self.text {
                let kept = replace(&self.folder, ALERTS, text);
                if kept.is_ok() {
                    self.text = None;
                }
                self.complaints.hear(kept);
            }
            for done in done {
                let _ = done.send(());
            }
        }
    }
}

/// The configuration of the moment.
fn now(alerts: &Mutex<Alerts>) -> Alerts {
    alerts.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Sends alerts by one way.
struct Messenger {
    way: Way,
    alerts: Arc<Mutex<Alerts>>,
    book: Sender<Page>,
    log: ServerLog,
    /// The daemon ends.
    over: Arc<AtomicBool>,
    /// The socket of what starts programs for the daemon.
    alerts_by: Option<PathBuf>,
    /// With the time of the next try.
    waiting: Vec<(Instant, u64, Delivery)>,
}

impl Messenger {
    fn work(mut self, posts: &Receiver<Post>) {
        loop {
            match posts.recv_timeout(TICK) {
                Ok(Post::Send(number, delivery)) => {
                    self.waiting.push((Instant::now() + delivery.pause(), number, delivery));
                }
                Ok(Post::Done(done)) => drop(done.send(())),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.send_due();
        }
    }

    fn send_due(&mut self) {
        let now = Instant::now();
        while !self.over.load(Ordering::Relaxed)
            && let Some(index) = self.due(now)
        {
            let (_, number, delivery) = self.waiting.remove(index);
            self.send(number, delivery);
        }
    }

    /// The first that is due. That an alert is over waits until it is told that there is one: whatever comes
    /// last is taken for how it is.
    fn due(&self, now: Instant) -> Option<usize> {
        let is_first = |number: u64, delivery: &Delivery| {
            let mut before = self.waiting.iter().filter(|(_, other, _)| *other < number);
            before.all(|(_, _, other)| other.tell.subject != delivery.tell.subject)
        };
        let mut all = self.waiting.iter();
        all.position(|(not_before, number, delivery)| now >= *not_before && is_first(*number, delivery))
    }

    fn send(&mut self, number: u64, mut delivery: Delivery) {
        let alerts = now(&self.alerts);
        let by = self.alerts_by.as_deref();
        let sent = sender::send(by, self.way, &alerts, &delivery.tell, &self.over);
        let error = match sent {
            Ok(()) => {
                // What could not be sent by this way can be now.
                for (not_before, _, _) in &mut self.waiting {
                    *not_before = (*not_before).min(Instant::now());
                }
                return drop(self.book.send(Page::Settled(number)));
            }
            // It stays in the book as it is.
            Err(Unsent::Over) => return,
            Err(Unsent::Failed(error)) => error,
        };
        let way = self.way.in_words(&alerts);
        let has_room = self.way.is_configured(&alerts) && self.waiting.len() < WAITING_MAX;
        let is_later = |(_, other, later): &(_, u64, Delivery)| {
            *other > number && later.tell.subject == delivery.tell.subject
        };
        let is_over = delivery.tell.cleared || self.waiting.iter().any(is_later);
        if !has_room || (is_over && delivery.tries >= PAUSES.len()) {
            self.log.warn(&format!("an alert could not be sent by {way}, and is given up: {error}"));
            return drop(self.book.send(Page::Settled(number)));
        }
        let pause = Delivery::pause_after(delivery.tries);
        if delivery.tries == 0 {
            self.log.warn(&format!("an alert could not be sent by {way}, and is sent again later: {error}"));
        }
        delivery.tries += 1;
        delivery.not_before = seconds() + pause.as_secs();
        self.waiting.push((Instant::now() + pause, number, delivery.clone()));
        let _ = self.book.send(Page::Again(number, delivery));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::{
        alerts::{Open, Subject},
        ways::tests::write_program,
    };

    const LIMIT: Duration = Duration::from_mins(1);

    fn tell() -> (Vec<Tell>, Book) {
        let subject = Subject { array: "data".into(), kind: "Degraded".into(), device: String::new() };
        let open = Open { since: 5, message: "x".into(), uuid: None };
        let book = Book::from(vec![(subject.clone(), open.clone())]);
        (vec![Tell { subject, open, cleared: false }], book)
    }

    fn told(message: &str) -> Told {
        let (array, event, message) = ("data".to_owned(), "Fail".to_owned(), message.to_owned());
        Told { time: 2, array, event, device: None, alarming: true, message }
    }

    /// Alerts are sent by a program that is this script.
    fn program(folder: &Path, script: &str) -> Alerts {
        let program = folder.join("program");
        write_program(&program, &format!("#!/bin/sh\n{script}\n"));
        Alerts { program: Some(program), ..Alerts::default() }
    }

    fn secretary(folder: &Path, alerts: &Alerts) -> Secretary {
        Secretary::new(folder, alerts, None, &ServerLog::new(true, "daemon").unwrap()).unwrap()
    }

    fn wait_for(what: &str, is_so: impl Fn() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < LIMIT, "never {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    #[test]
    fn a_program_that_hangs_delays_neither_events_nor_the_book_nor_other_ways_and_ends_with_the_daemon() {
        let folder = tempfile::tempdir().unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut alerts = program(
            folder.path(),
            "sleep 300 & echo $! >\"${0%/*}/new\"; mv \"${0%/*}/new\" \"${0%/*}/pid\"; wait",
        );
        alerts.webhook = Some(format!("http://{}/", listener.local_addr().unwrap()));
        let secretary = secretary(folder.path(), &alerts);
        let (tells, book) = tell();
        secretary.ask(Errand::Tell(tells, book.clone()));
        secretary.ask(Errand::Keep(told("m")));
        let pid = || fs::read_to_string(folder.path().join("pid")).unwrap_or_default();
        wait_for("run", || !pid().is_empty());
        listener.set_nonblocking(true).unwrap();
        wait_for("connected", || listener.accept().is_ok());
        wait_for("in the book", || Kept::of(folder.path()).open == book);
        wait_for("in the history", || {
            fs::read_to_string(folder.path().join(HISTORY)).unwrap_or_default().contains("\"Fail\"")
        });
        secretary.finish(Duration::from_millis(100));
        let stat = format!("/proc/{}/stat", pid().trim());
        wait_for("ended", || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z ")));
        let left = Kept::of(folder.path()).unsent;
        assert!(left.iter().any(|delivery| delivery.way == Way::Program && delivery.tries == 0), "{left:?}");
    }

    #[test]
    fn what_cannot_be_sent_is_sent_by_the_next_daemon_where_the_configuration_says_then() {
        let folder = tempfile::tempdir().unwrap();
        let (tells, book) = tell();
        let first = secretary(folder.path(), &program(folder.path(), "exit 1"));
        first.ask(Errand::Tell(tells, book.clone()));
        first.finish(LIMIT);
        let mut kept = Kept::of(folder.path());
        assert_eq!((&kept.open, kept.unsent.len(), kept.unsent[0].tries), (&book, 1, 1));
        let pause = kept.unsent[0].pause();
        assert!(pause > PAUSES[0] / 2 && pause <= PAUSES[0], "{pause:?}");
        kept.unsent[0].not_before = 0;
        replace(folder.path(), ALERTS, &serde_json::to_vec(&kept).unwrap()).unwrap();

        let next = secretary(folder.path(), &program(folder.path(), "echo $* >>\"${0%/*}/told\""));
        let told = || fs::read_to_string(folder.path().join("told")).unwrap_or_default();
        wait_for("told", || !told().is_empty());
        next.finish(LIMIT);
        assert_eq!(
            Kept::of(folder.path()),
            Kept { open: book, unsent: Vec::new(), ways: Some(vec![Way::Program]) }
        );
        secretary(folder.path(), &program(folder.path(), "echo $* >>\"${0%/*}/told\"")).finish(LIMIT);
        assert_eq!(told(), "raised Degraded data\n", "once");
    }

    #[test]
    fn a_way_that_comes_later_tells_what_is_not_over_and_one_that_was_there_tells_it_once() {
        let folder = tempfile::tempdir().unwrap();
        let secretary = secretary(folder.path(), &Alerts::default());
        let (tells, book) = tell();
        secretary.ask(Errand::Tell(tells, book));
        let alerts = program(folder.path(), "echo $* >>\"${0%/*}/told\"");
        for _ in 0..2 {
            secretary.ask(Errand::Ways(alerts.clone()));
        }
        let told = || fs::read_to_string(folder.path().join("told")).unwrap_or_default();
        wait_for("told", || !told().is_empty());
        secretary.finish(LIMIT);
        assert_eq!(told(), "raised Degraded data\n");
        assert_eq!(Kept::of(folder.path()).unsent, []);
    }

    #[test]
    fn a_way_that_is_new_to_the_next_daemon_tells_what_is_not_over_too() {
        let folder = tempfile::tempdir().unwrap();
        let (tells, book) = tell();
        let first = secretary(folder.path(), &Alerts::default());
        first.ask(Errand::Tell(tells, book));
        first.finish(LIMIT);
        let alerts = program(folder.path(), "echo $* >>\"${0%/*}/told\"");
        let told = || fs::read_to_string(folder.path().join("told")).unwrap_or_default();
        for _ in 0..2 {
            let next = secretary(folder.path(), &alerts);
            wait_for("told", || !told().is_empty());
            next.finish(LIMIT);
        }
        assert_eq!(told(), "raised Degraded data\n");
    }

    #[test]
    fn a_clock_that_was_set_back_makes_no_pause_longer() {
        let delivery = Delivery {
            way: Way::Mail,
            tell: tell().0.remove(0),
            tries: 2,
            not_before: seconds() + 1_000_000,
        };
        assert_eq!(delivery.pause(), PAUSES[1]);
        // One that was set forward, from 1970 perhaps, has it sent at once.
        assert_eq!(Delivery { not_before: 5, ..delivery }.pause(), Duration::ZERO);
    }

    #[test]
    fn what_cannot_be_sent_is_sent_again_and_given_up_when_it_is_over() {
        let folder = tempfile::tempdir().unwrap();
        let (book, pages) = channel();
        let mut messenger = Messenger {
            way: Way::Program,
            alerts: Arc::new(Mutex::new(program(folder.path(), "exit 1"))),
            book,
            log: ServerLog::new(true, "daemon").unwrap(),
            over: Arc::default(),
            alerts_by: None,
            waiting: Vec::new(),
        };
        let delivery = Delivery { way: Way::Program, tell: tell().0.remove(0), tries: 0, not_before: 0 };
        messenger.send(7, delivery.clone());
        for tries in 1..=PAUSES.len() + 2 {
            assert!(matches!(pages.recv().unwrap(), Page::Again(7, again) if again.tries == tries));
            messenger.send_due();
            assert_eq!((messenger.waiting.len(), messenger.waiting[0].2.tries), (1, tries), "not yet");
            let pause = PAUSES[tries.min(PAUSES.len()) - 1];
            assert!(
                messenger.waiting[0].2.pause() + Duration::from_mins(1).min(pause / 2) > pause,
                "{tries}"
            );
            messenger.waiting[0].0 = Instant::now();
            messenger.send_due();
        }
        assert_eq!(messenger.waiting.len(), 1, "the array is degraded still");
        pages.try_iter().for_each(drop);
        // Now it isn't, and that is given up, too.
        let cleared = Tell { cleared: true, ..delivery.tell.clone() };
        let over = Delivery { tell: cleared, tries: PAUSES.len(), ..delivery.clone() };
        messenger.waiting.push((Instant::now(), 8, over));
        messenger.waiting[0].0 = Instant::now();
        messenger.send_due();
        assert!(messenger.waiting.is_empty(), "both are given up");
        assert!(pages.try_iter().all(|page| matches!(page, Page::Settled(7 | 8))));

        // A way that is configured no more has nothing to wait for.
        messenger.alerts = Arc::default();
        messenger.send(9, delivery);
        assert!(messenger.waiting.is_empty() && matches!(pages.recv().unwrap(), Page::Settled(9)));
    }

    #[test]
    fn what_waits_is_sent_when_something_else_could_be() {
        let folder = tempfile::tempdir().unwrap();
        let (book, _pages) = channel();
        let mut messenger = Messenger {
            way: Way::Program,
            alerts: Arc::new(Mutex::new(program(folder.path(), "echo $* >>\"${0%/*}/told\""))),
            book,
            log: ServerLog::new(true, "daemon").unwrap(),
            over: Arc::default(),
            alerts_by: None,
            waiting: Vec::new(),
        };
        let tell = tell().0.remove(0);
        let other =
            Tell { subject: Subject { array: "other".into(), ..tell.subject.clone() }, ..tell.clone() };
        let delivery = |tell: Tell, tries| Delivery { way: Way::Program, tell, tries, not_before: 0 };
        messenger.waiting.push((Instant::now() + LIMIT, 1, delivery(tell, 6)));
        messenger.send_due();
        messenger.waiting.push((Instant::now(), 2, delivery(other, 0)));
        (0..2).for_each(|_| messenger.send_due());
        let told = fs::read_to_string(folder.path().join("told")).unwrap();
        assert_eq!(told, "raised Degraded other\nraised Degraded data\n");
    }

    #[test]
    fn what_is_told_of_an_alert_later_waits_for_what_could_not_be_sent_and_other_alerts_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let fails = program(folder.path(), "echo $* >>\"${0%/*}/told\"; test ! -e \"${0%/*}/down\"");
        let told = || fs::read_to_string(folder.path().join("told")).unwrap_or_default();
        fs::write(folder.path().join("down"), "").unwrap();
        let (book, pages) = channel();
        let mut messenger = Messenger {
            way: Way::Program,
            alerts: Arc::new(Mutex::new(fails)),
            book,
            log: ServerLog::new(true, "daemon").unwrap(),
            over: Arc::default(),
            alerts_by: None,
            waiting: Vec::new(),
        };
        let raised = tell().0.remove(0);
        let cleared = Tell { cleared: true, ..raised.clone() };
        let other =
            Tell { subject: Subject { array: "other".into(), ..raised.subject.clone() }, ..raised.clone() };
        let delivery =
            |tell: &Tell| Delivery { way: Way::Program, tell: tell.clone(), tries: 0, not_before: 0 };
        let take = |messenger: &mut Messenger, number, tell: &Tell| {
            messenger.waiting.push((Instant::now(), number, delivery(tell)));
            messenger.send_due();
        };
        take(&mut messenger, 1, &raised);
        fs::remove_file(folder.path().join("down")).unwrap();
        take(&mut messenger, 2, &cleared);
        take(&mut messenger, 3, &raised);
        take(&mut messenger, 4, &other);
        assert_eq!(told(), "raised Degraded data\nraised Degraded other\n", "the first one has failed");
        let first = messenger.waiting.iter_mut().find(|(_, number, _)| *number == 1).unwrap();
        first.0 = Instant::now();
        messenger.send_due();
        let all = "raised Degraded data\nraised Degraded other\nraised Degraded data\ncleared Degraded data\n\
            raised Degraded data\n";
        assert_eq!(told(), all);
        assert!(messenger.waiting.is_empty());
        let settled = pages.try_iter().filter(|page| matches!(page, Page::Settled(_))).count();
        assert_eq!(settled, 4);
    }

    #[test]
    fn what_can_not_be_kept_is_shown_until_it_can() {
        let folder = tempfile::tempdir().unwrap();
        // A file is in the folder's place.
        let state = folder.path().join("state");
        fs::write(&state, "").unwrap();
        let secretary = secretary(&state, &Alerts::default());
        let (tells, book) = tell();
        secretary.ask(Errand::Keep(told("m")));
        secretary.ask(Errand::Tell(tells, book));
        wait_for("shown", || secretary.unkept().count() == 2);
        let unkept: Vec<String> = secretary.unkept().collect();
        assert!(unkept[0].starts_with("events can't be kept in ") && unkept[1].starts_with("alerts can't"));
        fs::remove_file(&state).unwrap();
        wait_for("kept", || secretary.unkept().next().is_none());
        secretary.ask(Errand::Keep(told("n")));
        secretary.finish(LIMIT);
        let kept = crate::history::tail(&state, 1 << 20).unwrap();
        assert_eq!(kept, [told("m"), told("n")], "what found no room has waited");
        assert_eq!(Kept::of(&state).open, tell().1);
    }

    #[test]
    fn a_line_that_a_crash_has_torn_takes_none_of_the_next_with_it_and_too_many_that_wait_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let log = ServerLog::new(true, "daemon").unwrap();
        let mut history = History::new(folder.path(), &log);
        history.keep(&told("a")).unwrap();
        let path = folder.path().join(HISTORY);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, [&whole[..], &whole[..9]].concat()).unwrap();
        history.keep(&told("b")).unwrap();
        let kept = || crate::history::tail(folder.path(), 1 << 20).unwrap();
        assert_eq!(kept(), [told("a"), told("b")]);
        (0..=WAITING_MAX + 1).for_each(|number| history.add(told(&number.to_string())));
        assert_eq!((history.waiting.len(), history.lost), (WAITING_MAX, 2));
        history.keep_all().unwrap();
        assert_eq!((kept().len(), &kept()[2], history.lost), (2 + WAITING_MAX, &told("2"), 0));
    }

    #[test]
    fn the_history_has_two_files_of_a_bounded_size() {
        let folder = tempfile::tempdir().unwrap();
        let log = ServerLog::new(true, "daemon").unwrap();
        let history = History::new(folder.path(), &log);
        let told = told(&"m".repeat(1 << 20));
        for _ in 0..10 {
            history.keep(&told).unwrap();
        }
        let length = |name: &str| folder.path().join(name).metadata().unwrap().len();
        assert!(
            length(HISTORY) <= HISTORY_BYTES_MAX + (2 << 20)
                && length(HISTORY_BEFORE) <= HISTORY_BYTES_MAX + (2 << 20)
        );
    }
}
