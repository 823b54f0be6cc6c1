//! An array that is to be served, and how it stands.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use pinstripe_config::duties::Duties;
use pinstripe_control::{
    Detail,
    daemon::{ArrayStatus, DiskHealth},
};

use super::{
    alerts::{AlertedArray, Asked, Server},
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

    /// Whether it is the array that is wanted: by the UUID, or by the server where that isn't known.
    pub fn is(&self, wanted: &Wanted) -> bool {
        match (wanted.uuid(), &self.course.phase) {
            (Some(uuid), _) => self.uuid == Some(uuid.to_string()),
            (None, Phase::Serving { control, .. }) => wanted.served() == Some(control),
            (None, _) => false,
        }
    }

    /// The control socket of its server, if that answers.
    pub fn answering(&self) -> Option<PathBuf> {
        match &self.course.phase {
            Phase::Serving { control, silent: None, .. } => Some(control.clone()),
            _ => None,
        }
    }

    /// As far as is known.
    fn has_parity(&self) -> bool {
        self.detail.as_ref().is_none_or(|detail| detail.level != "raid0")
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
        let control = match &self.course.phase {
            Phase::Serving { control, .. } => Some(control.clone()),
            _ => None,
        };
        let next_try = match &self.course.phase {
            Phase::Failed { until, .. } => Some(until.saturating_sub(now).as_secs()),
            _ => None,
        };
        let record = &self.record;
        ArrayStatus {
            array: self.label.clone(),
            uuid: self.uuid.clone(),
            state: state.to_owned(),
            why: why.cloned(),
            seconds: now.saturating_sub(*since).as_secs(),
            control,
            failures: self.course.failures,
            next_try_seconds: next_try,
            disks: self.disks.clone(),
            events: self.events.clone(),
            checked: record.completed,
            check_due: checks::due(&self.duties, record, begun).filter(|_| self.has_parity()),
            checked_mismatched_sectors: record.completed.map(|_| record.completed_mismatched_sectors),
            checked_unreadable_stripes: record.completed.map(|_| record.completed_unreadable_stripes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
