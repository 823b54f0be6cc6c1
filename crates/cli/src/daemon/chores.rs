//! What the daemon does for arrays beside serving them: when each is due, and what is said of it.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::Receiver,
    },
    time::Duration,
};

use pinstripe_config::duties::Health;
use pinstripe_control::Detail;

use super::{
    Daemon, Message, TICK,
    alerts::{self, AlertedArray, Asked, Book, Tell},
    checks::{self, Checked, Moment, Records, Round},
    groups::{self, Grouped, Move, Moved},
    health,
    kept::Kept,
    secretary::{self, Errand},
    threads,
};
use crate::{patience::Pulse, supervisor};

/// How often servers are asked how their arrays are.
const SURVEY: Duration = Duration::from_secs(5);
/// The same where something has happened, and a page shows it.
const SURVEY_SOON: Duration = Duration::from_secs(1);
/// How often disks are asked how they are.
const HEALTH: Duration = Duration::from_hours(1);
/// How long the end waits for a spare that is on its way.
const MOVE_MAX: Duration = Duration::from_secs(30);
/// Pause after a check that could not be, or that a person has stopped.
const CHECK_PAUSE: Duration = Duration::from_hours(1);

/// What is under way, and what is known from before.
pub struct Chores {
    pub records: Records,
    /// The UUID of the array that is being checked.
    pub checking: Option<String>,
    /// A record is being kept of a check that a person has asked for.
    recording: Arc<AtomicBool>,
    pub survey: Survey,
    visit: Visit,
    /// Arrays without a spare.
    lacking: groups::Memory,
    /// A spare is being moved.
    pub moves: bool,
    /// When the last move was over.
    moved: Option<Duration>,
    pub book: Book,
}

impl Chores {
    /// With the alerts that weren't over when the last daemon ended.
    pub fn new(folder: &Path) -> Self {
        Self {
            records: Records(folder.to_owned()),
            checking: None,
            recording: Arc::default(),
            survey: Survey::default(),
            visit: Visit::default(),
            lacking: groups::Memory::default(),
            moves: false,
            moved: None,
            book: secretary::Kept::of(folder).open,
        }
    }

    /// Has the servers asked soon, if what they say is shown.
    pub fn survey_soon(&mut self, is_shown: bool) {
        self.survey.soon |= is_shown;
    }
}

/// Asks disks how they are.
#[derive(Default)]
struct Visit {
    /// They are being asked.
    under_way: bool,
    /// When they were asked the last time.
    last: Option<Duration>,
}

/// Asks servers how their arrays are.
#[derive(Default)]
pub struct Survey {
    /// They are being asked.
    under_way: bool,
    /// Something has happened since they were asked.
    soon: bool,
    /// When they were asked the last time.
    pub last: Option<Duration>,
}

impl Daemon {
    /// Begins what is due.
    pub fn do_chores(&mut self) {
        if self.stopping {
            return;
        }
        self.check_if_due();
        self.survey();
        self.visit_disks();
    }

    /// Begins a check that is due. One array is checked at a time: arrays may share disks.
    pub fn check_if_due(&mut self) {
        if self.chores.checking.is_some() {
            return;
        }
        let (now, moment) = (self.now(), Moment::now());
        let due = self.arrays.values().filter(|kept| {
            now >= kept.check_not_before
                && kept.uuid.is_some()
                && kept.answering().is_some()
                && checks::is_due(&kept.duties, &kept.record, moment, now)
        });
        let Some(kept) = due.min_by_key(|kept| kept.record.waits_since(moment.seconds)) else { return };
        let (Some(control), Some(uuid)) = (kept.answering(), kept.uuid.clone()) else { return };
        let (window, checking) = (kept.duties.check_window, uuid.clone());
        let (records, sender) = (self.chores.records.clone(), self.sender.clone());
        let spawned = threads::spawn("check", move || {
            let outcome = checks::check(&control, &uuid, window, &records, Pulse::of);
            let outcome = outcome.map_err(|failure| failure.sentence().to_owned());
            let _ = sender.send(Message::Checked { uuid, outcome });
        });
        match spawned {
            Ok(()) => self.chores.checking = Some(checking),
            Err(error) => self.log.warn(&format!("no check can begin: {error}")),
        }
    }

    pub fn checked(&mut self, uuid: &str, outcome: Result<Round, String>) {
        self.chores.checking = None;
        let now = self.now();
        // By the UUID: an edit of its entry gives an array another key.
        let its_own = |kept: &&mut Kept| kept.uuid.as_deref() == Some(uuid);
        let Some(kept) = self.arrays.values_mut().find(its_own) else { return };
        let log = self.log.of(&kept.label);
        let mut pause = CHECK_PAUSE;
        let outcome = outcome.map(|Round { record, how, unkept }| {
            kept.record = record;
            if let Some(unkept) = unkept {
                log.warn(&unkept);
            }
            how
        });
        match outcome {
            Ok(Checked::Complete { mismatched_sectors: 0, unreadable_stripes: 0 }) => {
                log.note("its check is complete: parity matches");
                pause = Duration::ZERO;
            }
            Ok(Checked::Complete { mismatched_sectors, unreadable_stripes }) => log.warn(&format!(
                "its check is complete: {mismatched_sectors} sectors of parity don't match, {unreadable_stripes} stripes could not be read; see `pinstripe repair`"
            )),
            Ok(Checked::ToGoOn) => {
                log.note("its check goes on in the next window");
                pause = Duration::ZERO;
            }
            Ok(Checked::Stopped) => log.note("its check was stopped, and goes on in an hour"),
            Ok(Checked::NotNow(why)) => log.note(&format!("is not checked now: {why}")),
            Err(why) => {
                kept.record = self.chores.records.of(uuid);
                log.warn(&format!("its check failed: {why}"));
            }
        }
        kept.check_not_before = now + pause;
    }

    /// What checks and repairs have found that persons asked for counts as much as what the daemon's own have
    /// found.
    fn take_over_checks(&mut self) {
        let now = Moment::now().seconds;
        for kept in self.arrays.values_mut() {
            let (Some(uuid), Some(detail)) = (&kept.uuid, &kept.detail) else { continue };
            // One that is under way keeps the record itself. What isn't taken now the server says again.
            let is_free = self.chores.checking.as_ref() != Some(uuid)
                && !self.chores.recording.load(Ordering::Relaxed)
                && detail.uuid == *uuid;
            let Some(compared) = detail.compared.filter(|_| is_free) else { continue };
            if kept.record.take_over(compared, now) {
                let log = self.log.of(&kept.label);
                log.note(&format!(
                    "all its parity was compared: {} sectors don't match",
                    compared.mismatched_sectors
                ));
                let (records, uuid, record) =
                    (self.chores.records.clone(), uuid.clone(), kept.record.clone());
                let recording = Arc::clone(&self.chores.recording);
                recording.store(true, Ordering::Relaxed);
                // A disk that is slow is waited for there. If it is full, the server tells the next one.
                let spawned = threads::spawn("record", move || {
                    let _ = records.put(&uuid, &record);
                    recording.store(false, Ordering::Relaxed);
                });
                if spawned.is_err() {
                    self.chores.recording.store(false, Ordering::Relaxed);
                }
            }
        }
    }

    fn tell(&mut self, notes: Vec<groups::Note>) {
        for note in notes {
            self.record(&note.label, note.event, &note.sentence, note.alarming);
        }
    }

    /// Asks the disks every hour, and those of an array that is new at once.
    fn visit_disks(&mut self) {
        if self.chores.visit.under_way {
            return;
        }
        let now = self.now();
        let all_due = self.chores.visit.last.is_some_and(|last| now.saturating_sub(last) >= HEALTH);
        let patients = self.arrays.iter().filter_map(|(key, kept)| {
            let (health, control) = (kept.duties.health.unwrap_or_default(), kept.answering()?);
            let is_due = health != Health::Off && (all_due || !kept.visited);
            is_due.then(|| health::Patient { key: key.clone(), label: kept.label.clone(), control, health })
        });
        let patients: Vec<health::Patient> = patients.collect();
        if patients.is_empty() {
            return;
        }
        if all_due || self.chores.visit.last.is_none() {
            self.chores.visit.last = Some(now);
        }
        for patient in &patients {
            if let Some(kept) = self.arrays.get_mut(&patient.key) {
                kept.visited = true;
            }
        }
        let sender = self.sender.clone();
        let spawned = threads::spawn("health", move || {
            let _ = sender.send(Message::Visited(health::visit(patients)));
        });
        self.chores.visit.under_way = spawned.is_ok();
    }

    pub fn visited(&mut self, (all, notes): health::Visit) {
        self.chores.visit.under_way = false;
        for said in all {
            if let Some(kept) = self.arrays.get_mut(&said.key) {
                kept.disks = said.over(std::mem::take(&mut kept.disks));
            }
        }
        self.tell(notes);
    }

    /// Asks all servers how their arrays are.
    fn survey(&mut self) {
        let now = self.now();
        let survey = &mut self.chores.survey;
        let pause = if survey.soon { SURVEY_SOON } else { SURVEY };
        if survey.under_way || survey.last.is_some_and(|last| now.saturating_sub(last) < pause) {
            return;
        }
        (survey.last, survey.soon) = (Some(now), false);
        let asked = self.arrays.iter().filter_map(|(key, kept)| Some((key.clone(), kept.answering()?)));
        let asked: Vec<(String, PathBuf)> = asked.collect();
        let sender = self.sender.clone();
        let spawned = threads::spawn("survey", move || {
            let _ = sender.send(Message::Surveyed(threads::details(asked)));
        });
        self.chores.survey.under_way = spawned.is_ok();
    }

    pub fn surveyed(&mut self, details: Vec<(String, Detail)>) {
        self.chores.survey.under_way = false;
        for kept in self.arrays.values_mut() {
            kept.detail = None;
        }
        for (key, detail) in details {
            if let Some(kept) = self.arrays.get_mut(&key) {
                kept.take(detail);
            }
        }
        self.take_over_checks();
        let now = self.now();
        self.board.sample(now, self.arrays.iter().map(|(key, kept)| (key, kept.detail.as_ref())));
        self.move_spare();
        self.raise_alerts();
    }

    /// Has a spare move to another array of its group, if one is to move.
    fn move_spare(&mut self) {
        let now = self.now();
        let grouped = self.arrays.iter().filter_map(|(key, kept)| {
            let (group, control) = (kept.duties.spare_group.clone()?, kept.answering()?);
            let (detail, key, label) = (kept.detail.clone()?, key.clone(), kept.label.clone());
            Some((Grouped { key, label, uuid: detail.uuid.clone(), control, group }, detail))
        });
        let grouped: Vec<(Grouped, Detail)> = grouped.collect();
        let chosen = groups::choose(&grouped, &mut self.chores.lacking, now);
        // What servers said before a move was over they may not say any more.
        let is_old = self.chores.moved.is_some_and(|moved| self.chores.survey.last <= Some(moved));
        let chosen = chosen.filter(|_| !self.chores.moves && !is_old);
        let Some(Move { from, to, spare }) = chosen else { return };
        let (giving, wanting) = (grouped[from].0.clone(), grouped[to].0.clone());
        let sender = self.sender.clone();
        let spawned = threads::spawn("move", move || {
            let _ = sender.send(Message::Moved(groups::carry_out(&giving, &wanting, &spare)));
        });
        self.chores.moves = spawned.is_ok();
    }

    /// Lets a spare arrive that is on its way: an end in between would leave it in neither array. Not for
    /// ever.
    pub fn finish_move(&mut self, messages: &Receiver<Message>) {
        let end = self.now() + MOVE_MAX;
        while self.chores.moves && self.now() < end {
            supervisor::tell_alive();
            if let Ok(Message::Moved(moved)) = messages.recv_timeout(TICK) {
                self.moved(moved);
            }
        }
        if self.chores.moves {
            self.log.warn(
                "ends while a spare moves between arrays: if neither has it in the end, add it by hand",
            );
        }
    }

    pub fn moved(&mut self, moved: Moved) {
        (self.chores.moves, self.chores.moved) = (false, Some(self.now()));
        if let Some(refused) = moved.refused {
            self.chores.lacking.refuse(refused, self.now());
        }
        self.tell(moved.notes);
    }

    /// Tells of what has begun to be wrong, and of what is right again.
    fn raise_alerts(&mut self) {
        let (now, moment) = (self.now(), Moment::now().seconds);
        let mut told = Vec::new();
        for kept in self.arrays.values() {
            // The clock may have been set since the daemon began.
            let status = kept.status(now, moment.saturating_sub(now.as_secs()));
            let mut current = alerts::of(&status, kept.detail.as_ref());
            current.extend(alerts::overdue(&status, moment));
            let detail = kept.detail.as_ref().filter(|_| !kept.read_only);
            current.extend(detail.and_then(|detail| alerts::read_only(&kept.label, detail)));
            told.extend(self.chores.book.update(kept.alerted(), current, kept.asked(), moment));
        }
        for (label, message) in &self.left_out {
            let current = vec![alerts::left_out(label, message)];
            told.extend(self.chores.book.update(
                AlertedArray { label, uuid: None },
                current,
                Asked::NOTHING,
                moment,
            ));
        }
        self.send_alerts(told);
    }

    /// Tells what the book says since now.
    pub fn send_alerts(&mut self, told: Vec<Tell>) {
        if told.is_empty() {
            return;
        }
        for tell in &told {
            let (message, kind) = (&tell.open.message, &tell.subject.kind);
            let (sentence, event) = if tell.cleared {
                (format!("is over: {message}"), format!("{kind}Cleared"))
            } else {
                (message.clone(), kind.clone())
            };
            self.record(&tell.subject.array, &event, &sentence, !tell.cleared);
        }
        self.secretary.ask(Errand::Tell(told, self.chores.book.clone()));
    }
}
