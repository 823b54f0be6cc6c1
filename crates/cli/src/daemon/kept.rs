//! An array that is to be served, and how it stands.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use pinstripe_config::duties::Duties;
use pinstripe_control::{
    Detail,
    daemon::{ArrayStatus, DiskHealth},
};

use super::{
    alerts::{self, AlertedArray, Asked, Server},
    checks::{self, Record},
    phase::{Course, Phase},
    threads::Follower,
};
use crate::assemble::Wanted;

/// Names of events that are counted of an array.
const EVENTS_MAX: usize = 64;

/// An array that is to be served.
pub struct Kept {
    /// What it is called.
    pub label: String,
    pub uuid: Option<String>,
    pub course: Course,
    /// Counts its servers, so that what threads say of an old one isn't taken for the new one's.
    pub run: u64,
    pub follower: Option<Follower>,
    pub duties: Duties,
    /// False with `auto = false`: it is seen to while a person has it served.
    pub is_started: bool,
    /// The configuration wants no writes.
    pub read_only: bool,
    /// How its checks stand.
    pub record: Record,
    /// No check begins before.
    pub check_not_before: Duration,
    /// Its disks were asked how they are, or were to be.
    pub visited: bool,
    /// What those that said anything said the last time.
    pub disks: Vec<DiskHealth>,
    /// Whether a check can be, by what its server said when it last did.
    is_checkable: Option<bool>,
    /// What its server said the last time, if it did.
    pub detail: Option<Detail>,
    /// How often each event has happened.
    pub events: BTreeMap<String, u64>,
}

impl Kept {
    /// One that was not looked for yet.
    pub fn new(label: String, now: Duration) -> Self {
        Self {
            label,
            uuid: None,
            course: Course::new(now),
            run: 0,
            follower: None,
            duties: Duties::default(),
            is_started: true,
            read_only: false,
            record: Record::default(),
            check_not_before: now,
            visited: false,
            disks: Vec::new(),
            is_checkable: None,
            detail: None,
            events: BTreeMap::new(),
        }
    }

    /// Progress is shown by what tells of a sync. Names are those of this program: a server of another
    /// version can't raise their number without end.
    pub fn count(&mut self, event: &str) {
        let is_progress = event.strip_prefix("Rebuild").is_some_and(|rest| rest.parse::<u64>().is_ok());
        if !is_progress && (self.events.contains_key(event) || self.events.len() < EVENTS_MAX) {
            *self.events.entry(event.to_owned()).or_default() += 1;
        }
    }

    /// Whether it has a server, or is about to.
    pub fn is_busy(&self) -> bool {
        matches!(self.course.phase, Phase::Serving { .. } | Phase::Starting { .. })
    }

    /// How long ago it was stopped, if it is.
    pub fn stopped_for(&self, now: Duration) -> Option<Duration> {
        match self.course.phase {
            Phase::Stopped { since } => Some(now.saturating_sub(since)),
            _ => None,
        }
    }

    /// Whether it is the array that is wanted: by the UUID, or by the server where that isn't known.
    pub fn is(&self, wanted: &Wanted) -> bool {
        match (wanted.uuid(), &self.course.phase) {
            (Some(uuid), _) => self.uuid == Some(uuid.to_string()),
            (None, Phase::Serving { control, .. }) => wanted.served() == Some(control),
            (None, _) => false,
        }
    }

    /// The control socket of its server.
    pub fn control(&self) -> Option<PathBuf> {
        match &self.course.phase {
            Phase::Serving { control, .. } => Some(control.clone()),
            _ => None,
        }
    }

    /// The control socket of its server, if that answers.
    pub fn answering(&self) -> Option<PathBuf> {
        self.control().filter(|_| !matches!(self.course.phase, Phase::Serving { silent: Some(_), .. }))
    }

    /// Takes what its server says.
    pub fn take(&mut self, detail: Detail) {
        // What was replaced is none of the array's any more, also while its server says nothing.
        self.disks.retain(|disk| alerts::is_part(&detail, &disk.device));
        self.is_checkable = Some(checks::can_be_checked(&detail));
        self.detail = Some(detail);
    }

    pub fn alerted(&self) -> AlertedArray<'_> {
        AlertedArray { label: &self.label, uuid: self.uuid.as_deref() }
    }

    pub fn asked(&self) -> Asked<'_> {
        let server = match self.course.phase {
            Phase::Stopped { .. } => Server::Stopped,
            _ if self.detail.is_some() => Server::Answers,
            Phase::Failed { .. } | Phase::Waiting { .. } if self.course.failures > 0 => Server::Died,
            _ => Server::Unknown,
        };
        Asked { server, disks: &self.disks, detail: self.detail.as_ref(), check: self.uuid.is_some() }
    }

    /// `begun`: when the daemon was.
    pub fn status(&self, now: Duration, begun: u64) -> ArrayStatus {
        let (state, since, why) = match &self.course.phase {
            Phase::Waiting { why, since } => ("waiting", since, Some(why)),
            Phase::Starting { since } => ("starting", since, None),
            Phase::Serving { since, silent: None, .. } => ("serving", since, None),
            Phase::Serving { since, silent: Some(why), .. } => ("silent", since, Some(why)),
            Phase::Stopped { since } => ("stopped", since, None),
            Phase::Failed { why, since, .. } => ("failed", since, Some(why)),
        };
        let next_try = match &self.course.phase {
            Phase::Failed { until, .. } => Some(until.saturating_sub(now).as_secs()),
            _ => None,
        };
        let record = &self.record;
        // One that has been checked has parity.
        let is_checkable = self.is_checkable.unwrap_or(record.begun > 0) && !self.read_only;
        ArrayStatus {
            array: self.label.clone(),
            uuid: self.uuid.clone(),
            state: state.to_owned(),
            why: why.cloned(),
            seconds: now.saturating_sub(*since).as_secs(),
            control: self.control(),
            failures: self.course.failures,
            next_try_seconds: next_try,
            disks: self.disks.clone(),
            events: self.events.clone(),
            checked: record.completed,
            check_due: checks::due(&self.duties, record, begun).filter(|_| is_checkable),
            checked_mismatched_sectors: record.completed.map(|_| record.completed_mismatched_sectors),
            checked_unreadable_stripes: record.completed.map(|_| record.completed_unreadable_stripes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::CLOCK_MIN;

    #[test]
    fn names_of_events_that_no_server_of_this_version_tells_make_no_labels_without_end() {
        let mut kept = Kept::new("data".to_owned(), Duration::ZERO);
        for number in 0..2 * EVENTS_MAX {
            kept.count(&format!("Event{number}"));
        }
        kept.count("Rebuild20");
        kept.count("Event0");
        assert_eq!((kept.events.len(), kept.events["Event0"]), (EVENTS_MAX, 2));
    }

    /// Whatever it is about comes and goes with its server.
    #[test]
    fn no_check_is_due_of_an_array_that_none_can_be_of() {
        let due = |level: &str, state: &str, read_only: bool, record: Record| {
            let mut kept = Kept::new("data".to_owned(), Duration::ZERO);
            kept.duties.check_every = Some("30d".parse().unwrap());
            (kept.read_only, kept.record) = (read_only, record);
            let before = kept.status(Duration::ZERO, 7).check_due;
            let (level, state) = (level.to_owned(), state.to_owned());
            kept.take(Detail { level, state, ..super::super::health::tests::array() });
            let known = kept.status(Duration::ZERO, 7).check_due;
            kept.detail = None;
            assert_eq!(kept.status(Duration::ZERO, 7).check_due, known, "its server is away");
            (before, known)
        };
        let checked = || Record { begun: CLOCK_MIN, ..Record::default() };
        let later = Some(CLOCK_MIN + 30 * 86_400);
        assert_eq!(due("raid5", "active", false, Record::default()), (None, Some(7)));
        assert_eq!(due("raid5", "active", false, checked()), (later, later));
        assert_eq!(due("raid0", "active", false, Record::default()), (None, None));
        assert_eq!(due("raid5", "read-only", false, checked()), (later, None));
        assert_eq!(due("raid5", "active", true, checked()), (None, None));
    }
}
