//! Checks that are due by the configuration: when one begins, where it goes on, and what came of it.
//!
//! How far a round is, and when it began, is kept in a file for each array, so that it outlives the daemon
//! and a boot. A round begins at the first sector and ends at the last one; it may take several windows.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use pinstripe_config::duties::{Duties, Every, Window};
use pinstripe_control::{
    Detail,
    client::{Client, ClientError},
    detail::{Compared, Sync},
    maintenance::{CheckParameters, CheckResult, SyncChange, SyncParameters, SyncResult},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{failure::Failure, history::CLOCK_MIN, patience::Pulse, state};

/// How often it is looked how far a check is, and whether its window is still open.
const LOOK: Duration = Duration::from_secs(10);
/// Pause of the thread that looks.
const TICK: Duration = Duration::from_millis(200);
/// How long a server may take to answer.
const LIMIT: Duration = Duration::from_secs(30);
/// Stripes that are compared at a time, at most: so many may lie before one that is compared already.
const UNDER_WAY_MAX: u64 = 4096;
/// A record from the future is of a clock that was wrong.
const CLOCK_ERROR_MAX: u64 = 24 * 3600;
/// How long after the daemon's begin such a clock is waited for. Not all machines have one.
const CLOCK_PATIENCE: Duration = Duration::from_hours(24);

/// Of an array. Times are seconds since the epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// When the latest round began; 0 if none has.
    pub begun: u64,
    /// Whether it isn't over.
    pub open: bool,
    /// Where it goes on, in sectors of each member's data.
    pub next_sector: u64,
    /// What it has found until now.
    pub mismatched_sectors: u64,
    /// What of it could not be read until now.
    #[serde(default)]
    pub unreadable_stripes: u64,
    /// When the latest whole round was over.
    pub completed: Option<u64>,
    /// What that one found.
    pub completed_mismatched_sectors: u64,
    /// What that one could not read.
    #[serde(default)]
    pub completed_unreadable_stripes: u64,
}

impl Record {
    /// Takes what a server says of all parity, which a person has had checked or repaired, for what the
    /// latest round found, and for the one that isn't over. False if it says nothing new. A round that was
    /// over in the future was over while the clock was wrong, and says nothing of what came later.
    pub fn take_over(&mut self, compared: Compared, now: u64) -> bool {
        let Compared { time, mismatched_sectors } = compared;
        let is_older =
            self.completed.is_some_and(|completed| completed > time && completed <= now + CLOCK_ERROR_MAX);
        let is_known =
            self.completed == Some(time) && self.completed_mismatched_sectors == mismatched_sectors;
        if is_older || is_known {
            return false;
        }
        (self.open, self.next_sector, self.mismatched_sectors, self.unreadable_stripes) = (false, 0, 0, 0);
        (self.completed, self.completed_mismatched_sectors) = (Some(time), mismatched_sectors);
        // Else the server would say nothing.
        self.completed_unreadable_stripes = 0;
        true
    }

    /// As if it ended now, in the part that began with this record. A daemon that goes on from there reads
    /// nothing again of what lies before.
    fn until(&self, part: &Sync, chunk_bytes: u64) -> Self {
        let done = part.done.saturating_sub(UNDER_WAY_MAX);
        Self {
            next_sector: self.next_sector + done * (chunk_bytes / 512),
            mismatched_sectors: self.mismatched_sectors + part.mismatched_sectors,
            unreadable_stripes: self.unreadable_stripes + part.unreadable_stripes,
            ..self.clone()
        }
    }

    /// A round is over.
    fn complete(&mut self, now: u64) {
        self.open = false;
        if self.begun < CLOCK_MIN || self.begun > now {
            // The clock was wrong then. The next round isn't due for that.
            self.begun = now;
        }
        self.completed = Some(now);
        self.completed_mismatched_sectors = self.mismatched_sectors;
        self.completed_unreadable_stripes = self.unreadable_stripes;
    }

    /// Since when the array waits for its turn: those that have waited longest come first, so that one whose
    /// rounds take longer than from one to the next doesn't keep the others from theirs.
    pub fn waits_since(&self, now: u64) -> u64 {
        let since = if self.open { self.begun } else { self.completed.unwrap_or(self.begun) };
        // From the future: the clock was wrong.
        if since > now { 0 } else { since }
    }

    /// One that begins now.
    fn next_round(self, now: u64) -> Self {
        Self { begun: now, open: true, next_sector: 0, mismatched_sectors: 0, unreadable_stripes: 0, ..self }
    }
}

/// A moment: since the epoch, and on the clock of this place.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    pub seconds: u64,
    /// From Monday, which is 0.
    day: usize,
    minute: u16,
}

impl Moment {
    pub fn now() -> Self {
        let now = jiff::Zoned::now();
        let minute = u16::from(now.hour().unsigned_abs()) * 60 + u16::from(now.minute().unsigned_abs());
        let day = usize::from(now.weekday().to_monday_zero_offset().unsigned_abs());
        Self { seconds: u64::try_from(now.timestamp().as_second()).unwrap_or(0), day, minute }
    }

    /// Whether it says more than that the clock isn't set. `up`: since when the daemon runs.
    fn counts(self, up: Duration) -> bool {
        self.seconds >= CLOCK_MIN || up >= CLOCK_PATIENCE
    }

    fn is_in(&self, window: Option<Window>) -> bool {
        window.is_none_or(|window| window.is_open(self.day, self.minute))
    }
}

/// Whether a check is to be under way now. `up`: since when the daemon runs.
///
/// A machine whose clock begins with 1970 at each boot would otherwise begin a check at each boot, and
/// another one when the clock is set.
pub fn is_due(duties: &Duties, record: &Record, now: Moment, up: Duration) -> bool {
    let Some(Every::Time(every)) = duties.check_every else { return false };
    if !now.counts(up) {
        return false;
    }
    let is_from_future = record.begun > now.seconds + CLOCK_ERROR_MAX;
    let since = now.seconds.saturating_sub(record.begun);
    let is_due = record.begun == 0 || record.open || is_from_future || since >= every.as_secs();
    is_due && now.is_in(duties.check_window)
}

/// When the next check is due, or since when; none if the configuration wants none. One under way may take
/// until then. `first`: when an array that was never checked was due.
pub fn due(duties: &Duties, record: &Record, first: u64) -> Option<u64> {
    let Some(Every::Time(every)) = duties.check_every else { return None };
    Some(match record.begun {
        // The clock was not set then.
        begun if begun < CLOCK_MIN => first,
        begun => begun.saturating_add(every.as_secs()),
    })
}

/// Where the records are.
#[derive(Clone)]
pub struct Records(pub PathBuf);

impl Records {
    fn name(uuid: &str) -> String {
        let digits: String = uuid.chars().filter(char::is_ascii_hexdigit).collect();
        format!("{digits}.check")
    }

    /// The record of an array. One that is damaged is none: the worst is a check more.
    pub fn of(&self, uuid: &str) -> Record {
        let text = fs::read(self.0.join(Self::name(uuid))).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    pub fn put(&self, uuid: &str, record: &Record) -> io::Result<()> {
        let text = serde_json::to_string(record)? + "\n";
        state::replace(&self.0, &Self::name(uuid), text.as_bytes())
    }
}

/// What came of a check.
#[derive(Debug)]
pub struct Round {
    /// How far it is.
    pub record: Record,
    pub how: Checked,
    /// Why the record isn't kept: a next daemon goes on from an earlier one.
    pub unkept: Option<String>,
}

/// How a check has ended, or its part in a window.
#[derive(Debug)]
pub enum Checked {
    /// The round is over.
    Complete { mismatched_sectors: u64, unreadable_stripes: u64 },
    /// The window is closed.
    ToGoOn,
    /// Another client has stopped it.
    Stopped,
    /// It can't be now.
    NotNow(String),
}

/// Checks an array from where its record says, until the end or until its window closes. `pulse` tells
/// whether its server is still there.
pub fn check(
    control: &Path,
    uuid: &str,
    window: Option<Window>,
    records: &Records,
    pulse: impl FnOnce(&Client) -> Pulse,
) -> Result<Round, Failure> {
    let array = control.to_string_lossy();
    let mut client = Client::connect(&array)?;
    client.set_timeout(Some(LIMIT))?;
    let detail: Detail = client.call("detail", Value::Null)?;
    let mut record = records.of(uuid);
    if let Some(why) = obstacle(&detail, uuid) {
        return Ok(Round { record, how: Checked::NotNow(why), unkept: None });
    }
    let unkept = |error: io::Error| format!("how far the check is can't be kept: {error}");
    let kept = |error| Failure::new(unkept(error));
    if !record.open {
        record = record.next_round(Moment::now().seconds);
    }
    records.put(uuid, &record).map_err(kept)?;
    let from = record.next_sector;
    let (over, closed) = (AtomicBool::new(false), AtomicBool::new(false));
    let minder = Minder { control, uuid, window, records, record: &record, detail: &detail };
    let mut pulse = pulse(&client);
    let result: Result<CheckResult, ClientError> = thread::scope(|scope| {
        scope.spawn(|| minder.mind(&over, &closed));
        // A check takes long, and a server that hangs must not keep the other arrays from theirs.
        let parameters = CheckParameters { from, to: None };
        let result = client.call_watched("check", parameters, TICK, |waited| pulse.beats(waited));
        over.store(true, Ordering::Relaxed);
        result
    });
    let result = match result {
        // The members were made smaller, or the record is of another array: it begins anew.
        Err(ClientError::Call(error)) if error.code == pinstripe_control::code::PARAMETERS && from > 0 => {
            let record = record.next_round(Moment::now().seconds);
            records.put(uuid, &record).map_err(kept)?;
            return Ok(Round { record, how: Checked::NotNow(error.message), unkept: None });
        }
        result => result?,
    };
    if result.uncompared_stripes > 0 {
        // Nothing is known of these. What was compared before the loss is kept, and what came after it is
        // compared anew when the array is whole.
        let record = records.of(uuid);
        let why =
            format!("a member was lost meanwhile: {} stripes were not compared", result.uncompared_stripes);
        return Ok(Round { record, how: Checked::NotNow(why), unkept: None });
    }
    record.mismatched_sectors += result.mismatched_sectors;
    record.unreadable_stripes += result.unreadable_stripes;
    record.next_sector = result.next_sector.unwrap_or(from);
    if result.complete {
        record.complete(Moment::now().seconds);
    }
    // What it has found counts, kept or not.
    let unkept = records.put(uuid, &record).err().map(unkept);
    let how = if result.complete {
        let unreadable_stripes = record.unreadable_stripes;
        Checked::Complete { mismatched_sectors: record.mismatched_sectors, unreadable_stripes }
    } else if closed.load(Ordering::Relaxed) {
        Checked::ToGoOn
    } else {
        Checked::Stopped
    };
    Ok(Round { record, how, unkept })
}

/// Whether there is parity to compare, and the array isn't one that is only read for good.
pub fn can_be_checked(detail: &Detail) -> bool {
    detail.level != "raid0" && detail.state != "read-only"
}

/// What has to be over before parity is compared.
fn obstacle(detail: &Detail, uuid: &str) -> Option<String> {
    if detail.uuid != uuid {
        return Some("another array's server has its control socket".to_owned());
    }
    if detail.level == "raid0" {
        return Some("the array has no parity".to_owned());
    }
    if detail.degraded || matches!(detail.state.as_str(), "failed" | "read-only") {
        return Some(format!("the array is {}", if detail.degraded { "degraded" } else { &detail.state }));
    }
    let sync = detail.sync.as_ref().map(|sync| format!("{} is under way", sync.action));
    sync.or_else(|| detail.sync_paused.then(|| "maintenance is paused".to_owned()))
}

/// Looks after a check that is under way.
struct Minder<'a> {
    control: &'a Path,
    uuid: &'a str,
    window: Option<Window>,
    records: &'a Records,
    record: &'a Record,
    detail: &'a Detail,
}

impl Minder<'_> {
    /// Keeps how far it is, and stops it when its window closes.
    fn mind(&self, over: &AtomicBool, closed: &AtomicBool) {
        let mut last = Instant::now();
        while !over.load(Ordering::Relaxed) {
            thread::sleep(TICK);
            if last.elapsed() < LOOK {
                continue;
            }
            last = Instant::now();
            // A server that doesn't answer is asked again.
            let _ = self.look(closed);
        }
    }

    fn look(&self, closed: &AtomicBool) -> Result<(), ClientError> {
        let mut client = Client::connect(&self.control.to_string_lossy())?;
        client.set_timeout(Some(LIMIT))?;
        let stop = SyncParameters { action: Some(SyncChange::Stop), ..SyncParameters::default() };
        if !Moment::now().is_in(self.window) {
            closed.store(true, Ordering::Relaxed);
            return client.call::<SyncResult>("sync", stop).map(drop);
        }
        let now: Detail = client.call("detail", Value::Null)?;
        let Some(sync) = now.sync.filter(|sync| sync.action == "check") else { return Ok(()) };
        if sync.uncompared_stripes > 0 {
            // A member was away, if only for a moment. What comes now would not count.
            return client.call::<SyncResult>("sync", stop).map(drop);
        }
        // Without a member there is no parity to compare, and it seems to come far.
        if !now.degraded {
            // The end keeps it once more, and says so if it can't.
            let _ = self.records.put(self.uuid, &self.record.until(&sync, self.detail.chunk_bytes));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_hours(1);
    const DAY: Duration = Duration::from_hours(24);

    fn at(seconds: u64) -> Moment {
        Moment { seconds, day: 2, minute: 120 }
    }

    fn duties(every: &str, window: &str) -> Duties {
        let window = if window.is_empty() { None } else { Some(window.parse().unwrap()) };
        Duties { check_every: Some(every.parse().unwrap()), check_window: window, ..Duties::default() }
    }

    #[test]
    fn what_a_round_could_not_read_is_known_until_another_one_has_read_it() {
        let first = Record { begun: CLOCK_MIN, open: true, unreadable_stripes: 3, ..Record::default() };
        let mut record = first.clone();
        record.complete(CLOCK_MIN + 5);
        assert_eq!(record.completed_unreadable_stripes, 3);
        let mut next = record.next_round(CLOCK_MIN + 10);
        assert_eq!((next.unreadable_stripes, next.completed_unreadable_stripes), (0, 3));
        next.complete(CLOCK_MIN + 20);
        assert_eq!(next.completed_unreadable_stripes, 0);
        let mut record = first;
        record.complete(CLOCK_MIN + 5);
        // A server says so only of what it has read whole.
        assert!(record.take_over(Compared { time: CLOCK_MIN + 6, mismatched_sectors: 0 }, CLOCK_MIN + 7));
        assert_eq!(record.completed_unreadable_stripes, 0);
    }

    /// A daemon may end in the middle of a window.
    #[test]
    fn what_a_part_could_not_read_is_kept_while_it_is_under_way() {
        let record = Record { next_sector: 100, unreadable_stripes: 2, ..Record::default() };
        let part = Sync {
            action: "check".to_owned(),
            done: UNDER_WAY_MAX + 3,
            total: 9000,
            mismatched_sectors: 8,
            unreadable_stripes: 5,
            uncompared_stripes: 0,
            paused: false,
            speed_kib: 0,
            finish_seconds: None,
        };
        let kept = record.until(&part, 4096);
        assert_eq!((kept.next_sector, kept.mismatched_sectors, kept.unreadable_stripes), (124, 8, 7));
    }

    #[test]
    fn what_was_found_while_the_clock_was_in_the_future_is_not_newer_than_a_repair() {
        let now = CLOCK_MIN + 5;
        let found = |completed| Record {
            completed: Some(completed),
            completed_mismatched_sectors: 8,
            ..Record::default()
        };
        let repaired = Compared { time: now, mismatched_sectors: 0 };
        let mut record = found(now + CLOCK_ERROR_MAX + 1);
        assert!(record.take_over(repaired, now));
        assert_eq!((record.completed, record.completed_mismatched_sectors), (Some(now), 0));
        assert!(!record.take_over(repaired, now), "it is known");
        assert!(!found(now + 60).take_over(repaired, now), "this one came later");
    }

    #[test]
    fn a_check_is_due_when_its_time_is_over_and_its_window_open() {
        let (never, first) = (Record::default(), CLOCK_MIN + 1_000_000_000);
        assert!(!is_due(&Duties::default(), &never, at(first), HOUR));
        assert!(!is_due(&duties("never", ""), &never, at(first), HOUR));
        assert!(is_due(&duties("30d", ""), &never, at(first), HOUR), "none has been yet");
        let done = Record { begun: first, completed: Some(first + 10), ..Record::default() };
        let month = 30 * 86_400;
        assert!(!is_due(&duties("30d", ""), &done, at(first + month - 1), HOUR));
        assert!(is_due(&duties("30d", ""), &done, at(first + month), HOUR));
        assert!(!is_due(&duties("30d", "03:00-04:00"), &done, at(first + month), HOUR));
        let open = Record { begun: first, open: true, next_sector: 77, ..Record::default() };
        assert!(is_due(&duties("30d", "01:00-03:00"), &open, at(first + 1), HOUR), "it goes on");
        assert!(!is_due(&duties("30d", "03:00-04:00"), &open, at(first + 1), HOUR));
        assert!(!is_due(&duties("never", ""), &open, at(first + 1), HOUR));
        assert!(is_due(&duties("30d", ""), &done, at(first - month), HOUR), "the clock was wrong");
        assert!(!is_due(&duties("30d", ""), &done, at(first - 60), HOUR));
    }

    #[test]
    fn a_check_is_due_since_it_should_have_begun_and_may_take_until_the_next_one_is() {
        let (never, month) = (Record::default(), 30 * 86_400);
        assert_eq!(due(&Duties::default(), &never, 7), None);
        assert_eq!(due(&duties("never", ""), &never, 7), None);
        assert_eq!(due(&duties("30d", ""), &never, 7), Some(7));
        let unset = Record { begun: 60, ..Record::default() };
        assert_eq!(due(&duties("30d", ""), &unset, 7), Some(7), "the clock was not set then");
        let mut record = never.next_round(CLOCK_MIN + 9);
        assert_eq!(
            due(&duties("30d", ""), &record, 7),
            Some(CLOCK_MIN + 9 + month),
            "it goes on in its windows"
        );
        record.complete(CLOCK_MIN + 60);
        assert_eq!(due(&duties("30d", ""), &record, 7), Some(CLOCK_MIN + 9 + month));
    }

    #[test]
    fn a_clock_that_is_not_set_begins_no_check_for_a_day_and_one_that_jumps_begins_one_at_most() {
        let (month, right) = (duties("30d", ""), CLOCK_MIN + 1_000_000_000);
        let done = Record { begun: right, completed: Some(right + 10), ..Record::default() };
        for record in [Record::default(), done.clone(), Record { open: true, ..done.clone() }] {
            assert!(!is_due(&month, &record, at(100), HOUR), "it may be set yet: {record:?}");
            assert!(is_due(&month, &record, at(100), DAY), "there may be none: {record:?}");
        }
        // A check that begins in one time and is over in another is over.
        for (begun, over) in
            [(100, right), (right + (40 << 30), right), (right, right + (1 << 30)), (right, 100)]
        {
            let mut record = Record { begun, open: true, mismatched_sectors: 8, ..Record::default() };
            assert!(is_due(&month, &record, at(over), DAY), "it goes on");
            record.complete(over);
            assert_eq!(
                (record.open, record.completed, record.completed_mismatched_sectors),
                (false, Some(over), 8)
            );
            if begun != right || over == 100 {
                assert!(!is_due(&month, &record, at(over + 86_400), DAY), "{begun} {over}");
            }
            assert!(is_due(&month, &record, at(over + 31 * 86_400), DAY), "{begun} {over}");
        }
    }

    #[test]
    fn a_record_comes_back_and_a_damaged_one_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records(folder.path().join("state"));
        let record =
            Record { begun: 5, open: true, next_sector: 8, mismatched_sectors: 1, ..Record::default() };
        records.put("6d41c174:a7", &record).unwrap();
        assert_eq!(records.of("6d41c174:a7"), record);
        fs::write(folder.path().join("state/6d41c174a7.check"), "{").unwrap();
        assert_eq!(records.of("6d41c174:a7"), Record::default());
    }

    #[test]
    fn the_parity_of_another_array_is_not_compared() {
        let array = Detail { uuid: "another".to_owned(), ..super::super::health::tests::array() };
        assert_eq!(obstacle(&array, "another"), None);
        assert!(obstacle(&array, "data").is_some_and(|why| why.contains("another array")));
    }

    /// What a check comes to whose server answers so.
    fn checked(result: serde_json::Value, record: &Record) -> (Record, Checked) {
        checked_while(result, record, |_| {})
    }

    /// The same where this is done before the server answers.
    fn checked_while(
        result: serde_json::Value,
        record: &Record,
        meanwhile: impl Fn(&Records) + Send + std::marker::Sync + 'static,
    ) -> (Record, Checked) {
        let folder = tempfile::tempdir().unwrap();
        let control = folder.path().join("control");
        let records = Records(folder.path().to_owned());
        let own = records.clone();
        crate::daemon::fake::server(&control, move |call| {
            let array = Detail { uuid: "data".to_owned(), ..super::super::health::tests::array() };
            if call["method"] != "check" {
                return Some(serde_json::json!({ "result": array }));
            }
            meanwhile(&own);
            Some(result.clone())
        });
        records.put("data", record).unwrap();
        let round = check(&control, "data", None, &records, Pulse::of).unwrap();
        assert_eq!(records.of("data"), round.record, "it outlives the daemon");
        (round.record, round.how)
    }

    /// A check of an array that has lost its parity has nothing to compare, and finds no mismatch.
    #[test]
    fn a_check_during_which_a_member_was_lost_is_not_complete_and_its_part_is_compared_anew() {
        let result = |uncompared: u64| {
            serde_json::json!({ "result": {
                "stripes": 90, "mismatched_sectors": 0, "unreadable_stripes": 0, "uncompared_stripes": uncompared,
                "corrected_sectors": 0, "unexplained_sectors": 0, "corrected": [], "complete": true,
            } })
        };
        let record =
            Record { begun: 7, open: true, next_sector: 64, mismatched_sectors: 8, ..Record::default() };
        let (after, how) = checked(result(5), &record);
        assert!(matches!(&how, Checked::NotNow(why) if why.contains("5 stripes")), "{how:?}");
        assert_eq!(after, record);
        let (after, how) = checked(result(0), &record);
        assert!(matches!(how, Checked::Complete { mismatched_sectors: 8, .. }), "{how:?}");
        assert!(!after.open && after.completed.is_some());
        // What was compared before the loss, as far as it was kept while it was under way, is known.
        let before = Record { next_sector: 4096, mismatched_sectors: 16, ..record.clone() };
        let kept = before.clone();
        let (after, _) =
            checked_while(result(5), &record, move |records| records.put("data", &kept).unwrap());
        assert_eq!(after, before);
    }

    /// One that was away for a moment is back before it is looked, and its stripes stay uncompared.
    #[test]
    fn a_check_that_has_missed_stripes_is_kept_no_further_and_stopped() {
        let folder = tempfile::tempdir().unwrap();
        let (control, records) = (folder.path().join("control"), Records(folder.path().join("state")));
        let uncompared = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
        let (stop, stops) = std::sync::mpsc::channel();
        let own = std::sync::Arc::clone(&uncompared);
        crate::daemon::fake::server(&control, move |call| {
            if call["method"] == "sync" {
                stop.send(call["params"]["action"].clone()).unwrap();
                return Some(serde_json::json!({ "result": {
                    "sync": null, "paused": false, "speed_min_kib": 1, "speed_max_kib": 2,
                } }));
            }
            let sync = serde_json::json!({ "action": "check", "done": UNDER_WAY_MAX + 9, "total": 9000,
                "mismatched_sectors": 0, "uncompared_stripes": own.load(Ordering::SeqCst), "paused": false,
                "speed_kib": 0, "finish_seconds": null });
            let sync = Some(serde_json::from_value(sync).unwrap());
            Some(serde_json::json!({ "result": Detail { sync, ..super::super::health::tests::array() } }))
        });
        let record = Record { begun: 7, open: true, ..Record::default() };
        let detail = super::super::health::tests::array();
        let minder = Minder {
            control: &control,
            uuid: "data",
            window: None,
            records: &records,
            record: &record,
            detail: &detail,
        };
        let closed = AtomicBool::new(false);
        minder.look(&closed).unwrap();
        let kept = records.of("data");
        assert_eq!((kept.next_sector, stops.try_recv().is_ok()), (9 * 128, false));
        uncompared.store(1, Ordering::SeqCst);
        records.put("data", &record).unwrap();
        let _ = minder.look(&closed);
        assert_eq!(records.of("data"), record, "it is not kept");
        assert_eq!(stops.try_recv().unwrap(), "stop", "it goes on when the array is whole");
        assert!(!closed.load(Ordering::Relaxed));
    }

    #[test]
    fn a_check_whose_server_hangs_ends() {
        let folder = tempfile::tempdir().unwrap();
        let control = folder.path().join("control");
        // It answers one call, and then nothing that anyone asks.
        let is_asked = std::sync::atomic::AtomicBool::new(false);
        crate::daemon::fake::server(&control, move |_| {
            let is_first = !is_asked.swap(true, std::sync::atomic::Ordering::SeqCst);
            let array = Detail { uuid: "data".to_owned(), ..super::super::health::tests::array() };
            is_first.then(|| serde_json::json!({ "result": array }))
        });
        let records = Records(folder.path().to_owned());
        let short = Duration::from_millis(100);
        let pulse = |client: &Client| Pulse::within(client, short, short);
        let why = check(&control, "data", None, &records, pulse).unwrap_err();
        assert!(why.sentence().contains("has not answered") || why.sentence().contains("answer"), "{why:?}");
        assert!(records.of("data").open, "it goes on where it was");
    }

    #[test]
    fn a_record_behind_the_end_of_an_array_that_was_made_smaller_is_begun_anew() {
        let refused = serde_json::json!({ "error": { "code": pinstripe_control::code::PARAMETERS,
            "message": "the array ends before" } });
        let record = Record { begun: 7, open: true, next_sector: 64, ..Record::default() };
        let (after, how) = checked(refused, &record);
        assert!(matches!(how, Checked::NotNow(_)), "{how:?}");
        assert_eq!((after.open, after.next_sector), (true, 0), "it begins at the first sector");
    }
}
