//! What the daemon does for arrays beside serving them: when each is due, and what is said of it.

use std::time::Duration;

use pinstripe_config::duties::Health;
use pinstripe_control::daemon::DiskHealth;

use super::{
    Daemon, Message,
    checks::{self, Checked, Moment, Records},
    groups, health, threads,
};

/// How often it is looked whether a spare is to move.
const GROUPS: Duration = Duration::from_secs(5);
/// How often disks are asked how they are.
const HEALTH: Duration = Duration::from_hours(1);
/// Pause after a check that could not be, or that a person has stopped.
const CHECK_PAUSE: Duration = Duration::from_hours(1);

/// What is under way, and what is known from before.
pub struct Chores {
    pub records: Records,
    /// The array that is being checked.
    checking: Option<String>,
    groups: Groups,
    visit: Visit,
}

impl Chores {
    pub fn new() -> Self {
        Self { records: Records::new(), checking: None, groups: Groups::default(), visit: Visit::default() }
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

/// Looks at the spares of groups.
#[derive(Default)]
struct Groups {
    /// One is under way.
    looks: bool,
    /// The last one began then.
    last: Duration,
    memory: groups::Memory,
}

impl Daemon {
    /// Begins what is due.
    pub fn do_chores(&mut self) {
        if self.stopping {
            return;
        }
        self.check_if_due();
        self.look_at_spares();
        self.visit_disks();
    }

    /// Begins a check that is due. One array is checked at a time: arrays may share disks.
    fn check_if_due(&mut self) {
        if self.chores.checking.is_some() {
            return;
        }
        let (now, moment) = (self.now(), Moment::now());
        let due = self.arrays.iter().find(|(_, kept)| {
            now >= kept.check_not_before
                && kept.uuid.is_some()
                && kept.answering().is_some()
                && checks::is_due(&kept.duties, &kept.record, moment)
        });
        let Some((key, kept)) = due else { return };
        let (Some(control), Some(uuid)) = (kept.answering(), kept.uuid.clone()) else { return };
        let (key, window) = (key.clone(), kept.duties.check_window);
        let (records, sender, of_thread) = (self.chores.records.clone(), self.sender.clone(), key.clone());
        let spawned = threads::spawn("check", move || {
            let outcome = checks::check(&control, &uuid, window, &records);
            let outcome = outcome.map_err(|failure| failure.sentence().to_owned());
            let _ = sender.send(Message::Checked { key: of_thread, outcome });
        });
        match spawned {
            Ok(()) => self.chores.checking = Some(key),
            Err(error) => self.log.warn(&format!("no check can begin: {error}")),
        }
    }

    pub fn checked(&mut self, key: &str, outcome: Result<Checked, String>) {
        self.chores.checking = None;
        let now = self.now();
        let Some(kept) = self.arrays.get_mut(key) else { return };
        kept.record = kept.uuid.as_deref().map(|uuid| self.chores.records.of(uuid)).unwrap_or_default();
        let log = self.log.of(&kept.label);
        let mut pause = CHECK_PAUSE;
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
            Err(why) => log.warn(&format!("its check failed: {why}")),
        }
        kept.check_not_before = now + pause;
    }

    fn tell(&self, notes: Vec<groups::Note>) {
        for note in notes {
            let log = self.log.of(&note.label);
            if note.alarming { log.warn(&note.sentence) } else { log.note(&note.sentence) }
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
            let is_due = health != Health::Off && (all_due || kept.disks.is_none());
            is_due.then(|| health::Patient { key: key.clone(), label: kept.label.clone(), control, health })
        });
        let patients: Vec<health::Patient> = patients.collect();
        if patients.is_empty() {
            return;
        }
        if all_due || self.chores.visit.last.is_none() {
            self.chores.visit.last = Some(now);
        }
        let sender = self.sender.clone();
        let spawned = threads::spawn("health", move || {
            let _ = sender.send(Message::Visited(health::visit(patients)));
        });
        self.chores.visit.under_way = spawned.is_ok();
    }

    pub fn visited(&mut self, (all, notes): health::Visit) {
        self.chores.visit.under_way = false;
        for (key, disks) in all {
            self.compare_health(&key, disks);
        }
        self.tell(notes);
    }

    /// A disk that has begun to fail is told of, once.
    fn compare_health(&mut self, key: &str, disks: Vec<DiskHealth>) {
        let Some(kept) = self.arrays.get_mut(key) else { return };
        let before = kept.disks.replace(disks).unwrap_or_default();
        for disk in kept.disks.iter().flatten().filter(|disk| !disk.failing.is_empty()) {
            let is_known = before.iter().any(|old| old.device == disk.device && !old.failing.is_empty());
            if !is_known {
                let why = disk.failing.join("; ");
                self.log.of(&kept.label).warn(&format!("{} is failing: {why}: replace it", disk.device));
            }
        }
    }

    pub fn grouped(&mut self, memory: groups::Memory, notes: Vec<groups::Note>) {
        (self.chores.groups.looks, self.chores.groups.memory) = (false, memory);
        self.tell(notes);
    }

    fn look_at_spares(&mut self) {
        let now = self.now();
        if self.chores.groups.looks || now.saturating_sub(self.chores.groups.last) < GROUPS {
            return;
        }
        self.chores.groups.last = now;
        let grouped = self.arrays.iter().filter_map(|(key, kept)| {
            let (group, control) = (kept.duties.spare_group.clone()?, kept.answering()?);
            Some(groups::Grouped { key: key.clone(), label: kept.label.clone(), control, group })
        });
        let grouped: Vec<groups::Grouped> = grouped.collect();
        if grouped.len() < 2 {
            return;
        }
        let (memory, sender) = (self.chores.groups.memory.clone(), self.sender.clone());
        let spawned = threads::spawn("groups", move || {
            let (memory, notes) = groups::look(grouped, memory, now);
            let _ = sender.send(Message::Grouped(memory, notes));
        });
        self.chores.groups.looks = spawned.is_ok();
    }
}
