//! What a person should know and see to: each told once when it begins, and once when it is over.

use std::collections::BTreeMap;

use pinstripe_control::{
    Detail,
    daemon::{AlertStatus, ArrayStatus, DiskHealth},
    detail::Member,
    text::one_line,
};
use serde::{Deserialize, Serialize};

/// Seconds for which an array may be without a server before that is told: members come late at a boot.
const UNSERVED_SECONDS: u64 = 60;

/// Seconds after which a start is told of: a replay takes long, and so does a device that hangs.
const STARTING_SECONDS: u64 = 600;

/// Seconds after which a check that is due is told of, as the rule `PinstripeNotChecked` has it.
const OVERDUE_SECONDS: u64 = 10 * 86_400;

/// The kind of those of an array whose entry in the configuration is wrong.
pub const MISCONFIGURED: &str = "Misconfigured";

/// By what an alert is told from others.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Subject {
    /// What the array was called when it began: it is over under the same words.
    pub array: String,
    /// What kind it is.
    pub kind: String,
    /// The member that it is about; empty if it is about the array.
    pub device: String,
}

/// An alert that isn't over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Open {
    /// Seconds since the epoch.
    pub since: u64,
    /// A sentence.
    pub message: String,
    /// The array's UUID, where it is known.
    #[serde(default)]
    pub uuid: Option<String>,
}

/// An array, as its alerts are known again. It is called otherwise when another one of its name comes, so the
/// UUID counts, where it is known of both.
#[derive(Clone, Copy, Debug)]
pub struct AlertedArray<'a> {
    pub label: &'a str,
    pub uuid: Option<&'a str>,
}

impl AlertedArray<'_> {
    fn is(self, subject: &Subject, open: &Open) -> bool {
        match (self.uuid, &open.uuid) {
            (Some(own), Some(uuid)) => own == uuid,
            _ => self.label == subject.array,
        }
    }
}

/// What is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tell {
    pub subject: Subject,
    pub open: Open,
    /// It is over.
    pub cleared: bool,
}

/// What is wrong with an array now. `detail`: what its server says, if it answers. Pure.
pub fn of(status: &ArrayStatus, detail: Option<&Detail>) -> Vec<(Subject, String)> {
    let mut all = Vec::new();
    let mut add = |kind: &str, device: &str, message: String| {
        let subject =
            Subject { array: status.array.clone(), kind: kind.to_owned(), device: device.to_owned() };
        all.push((subject, message));
    };
    // With the end of a server's log, perhaps.
    let why = one_line(status.why.as_deref().unwrap_or_default());
    match status.state.as_str() {
        "waiting" | "failed" if status.seconds >= UNSERVED_SECONDS || status.failures > 1 => {
            add("NotServed", "", format!("the array is not served: {why}"));
        }
        "starting" if status.seconds >= STARTING_SECONDS => {
            let minutes = status.seconds / 60;
            add(
                "NotServed",
                "",
                format!("its server is being started, and is not ready after {minutes} minutes"),
            );
        }
        "silent" => add("Silent", "", why),
        _ => {}
    }
    // One that was replaced since it was asked is none of the array's any more.
    let is_part = |disk: &&DiskHealth| detail.is_none_or(|detail| is_part(detail, &disk.device));
    for disk in status.disks.iter().filter(|disk| !disk.failing.is_empty()).filter(is_part) {
        add("DiskFailing", &disk.device, format!("{} is failing: {}", disk.device, disk.failing.join("; ")));
    }
    if let Some(sectors) = status.checked_mismatched_sectors.filter(|sectors| *sectors > 0) {
        let words = "see `pinstripe check` and `pinstripe repair`";
        add("Mismatch", "", format!("{sectors} sectors of parity did not match the data: {words}"));
    }
    if let Some(stripes) = status.checked_unreadable_stripes.filter(|stripes| *stripes > 0) {
        let words = "no check has compared these: `pinstripe detail` and the disks tell which member it is";
        add("Unreadable", "", format!("{stripes} stripes could not be read: {words}"));
    }
    let Some(detail) = detail else { return all };
    if detail.state == "failed" {
        add("Failed", "", "the array has failed: more members are lost than it can do without".to_owned());
    } else if detail.degraded {
        let open = detail.members.iter().filter(|member| !member.is_whole());
        let slots: Vec<String> = open.map(|member| format!("{} ({})", member.slot, member.state)).collect();
        add("Degraded", "", format!("the array is degraded: slot {}", slots.join(", ")));
    }
    if detail.journal.as_ref().is_some_and(|journal| journal.failed) {
        add("JournalFailed", "", "the journal has failed, and the array is read-only".to_owned());
    }
    for spare in detail.failed.iter().filter(|failed| failed.slot.is_none()) {
        let words = "the next member that is lost may have no successor";
        add(
            "SpareFailed",
            &spare.device,
            format!("the spare {} has failed: {}; {words}", spare.device, spare.error),
        );
    }
    if !detail.warnings.is_empty() {
        add("Warning", "", detail.warnings.join("; "));
    }
    for member in detail.members.iter().filter(|member| member.bad_sectors > 0) {
        let device = member.device.clone().unwrap_or_default();
        let sectors = member.bad_sectors;
        add(
            "BadSectors",
            &device,
            format!("{device} has {sectors} sectors that can't be read or written: replace it"),
        );
    }
    all
}

/// What is wrong with an array that takes no writes, and is to take some.
pub fn read_only(array: &str, detail: &Detail) -> Option<(Subject, String)> {
    let is_told = detail.journal.as_ref().is_some_and(|journal| journal.failed);
    let subject = Subject { array: array.to_owned(), kind: "ReadOnly".to_owned(), device: String::new() };
    let message = "the array takes no writes: `pinstripe detail` says why".to_owned();
    (detail.state == "read-only" && !is_told).then_some((subject, message))
}

/// What is wrong with an array that isn't checked as often as it should be. `now`: seconds since the epoch.
pub fn overdue(status: &ArrayStatus, now: u64) -> Option<(Subject, String)> {
    let overdue = now.saturating_sub(status.check_due?);
    let subject =
        Subject { array: status.array.clone(), kind: "CheckOverdue".to_owned(), device: String::new() };
    let days = overdue / 86_400;
    let words = "`pinstripe events` says why none begins or ends";
    let message = format!("the check of its parity is due for {days} days: {words}");
    (overdue > OVERDUE_SECONDS).then_some((subject, message))
}

/// What is wrong with an array whose entry is.
pub fn left_out(array: &str, message: &str) -> (Subject, String) {
    let subject = Subject { array: array.to_owned(), kind: MISCONFIGURED.to_owned(), device: String::new() };
    (subject, message.to_owned())
}

/// Whether a device is a member or a spare.
pub fn is_part(detail: &Detail, device: &str) -> bool {
    let is_it = |member: &Member| member.device.as_deref() == Some(device);
    detail.members.iter().any(is_it) || detail.has_spare(device)
}

/// What each array is called, and no other: alerts, events and metrics are told apart by it. One that has its
/// name in common with another one has what only it has beside it. `all`: what each is called, and what only
/// it has. `others`: what further ones are called. Pure.
pub fn labels(all: &[(String, String)], others: &[&String]) -> Vec<String> {
    let is_single =
        |name: &String| all.iter().filter(|(other, _)| other == name).count() == 1 && !others.contains(&name);
    let label = |(name, own): &(String, String)| {
        if is_single(name) { name.clone() } else { format!("{name} ({own})") }
    };
    all.iter().map(label).collect()
}

/// What was asked about an array.
///
/// An alert is over if what tells of it was asked, and doesn't tell it any more: a daemon that has just begun
/// knows nothing yet.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub server: Server,
    /// What its disks have said; those that said nothing are none of these.
    pub disks: &'a [DiskHealth],
    /// What its server has said.
    pub detail: Option<&'a Detail>,
    /// What its last check has found is known.
    pub check: bool,
}

/// What is known of an array's server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    Answers,
    /// A person has ended it.
    Stopped,
    /// It has died, and none answers since.
    Died,
    Unknown,
}

impl Asked<'_> {
    /// Of an array that the daemon doesn't see to.
    pub const NOTHING: Self = Self { server: Server::Unknown, disks: &[], detail: None, check: false };

    fn settles(self, subject: &Subject) -> bool {
        match subject.kind.as_str() {
            "NotServed" => matches!(self.server, Server::Answers | Server::Stopped),
            // One that has ended can't be silent.
            "Silent" => self.server != Server::Unknown,
            "DiskFailing" => {
                self.disks.iter().any(|disk| disk.device == subject.device)
                    || self.detail.is_some_and(|detail| !is_part(detail, &subject.device))
            }
            "Mismatch" | "Unreadable" | "CheckOverdue" => self.check,
            // One that has failed lacks more than before.
            "Degraded" => {
                self.server == Server::Answers && self.detail.is_none_or(|detail| detail.state != "failed")
            }
            MISCONFIGURED => true,
            _ => self.server == Server::Answers,
        }
    }
}

/// The alerts that aren't over.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Vec<(Subject, Open)>", into = "Vec<(Subject, Open)>")]
pub struct Book(BTreeMap<Subject, Open>);

impl Book {
    /// What is new and what is over, of one array.
    pub fn update(
        &mut self,
        array: AlertedArray<'_>,
        current: Vec<(Subject, String)>,
        asked: Asked<'_>,
        now: u64,
    ) -> Vec<Tell> {
        let own = self.0.iter().filter(|(subject, open)| array.is(subject, open));
        let own: Vec<Subject> = own.map(|(subject, _)| subject.clone()).collect();
        let is_same = |one: &Subject, other: &Subject| one.kind == other.kind && one.device == other.device;
        let mut told = Vec::new();
        for subject in &own {
            if asked.settles(subject) && !current.iter().any(|(current, _)| is_same(current, subject)) {
                let over = self.0.remove(subject);
                told.extend(over.map(|open| Tell { subject: subject.clone(), open, cleared: true }));
            }
        }
        for (subject, message) in current {
            // What it is about can change its words without being told anew.
            let known = own.iter().find(|own| is_same(own, &subject));
            let is_new = known.is_none();
            let subject = known.cloned().unwrap_or_else(|| self.untaken(subject, array));
            let begun = Open { since: now, message: String::new(), uuid: None };
            let open = self.0.entry(subject.clone()).or_insert(begun);
            open.message = message;
            open.uuid = array.uuid.map(str::to_owned).or(open.uuid.take());
            if is_new {
                told.push(Tell { subject, open: open.clone(), cleared: false });
            }
        }
        told
    }

    /// The same of an array with an alert that would stand under the words of another one's that isn't over.
    fn untaken(&self, subject: Subject, array: AlertedArray<'_>) -> Subject {
        let is_taken = self.0.get(&subject).is_some_and(|open| !array.is(&subject, open));
        match array.uuid.filter(|_| is_taken) {
            Some(uuid) => Subject { array: format!("{} ({uuid})", subject.array), ..subject },
            None => subject,
        }
    }

    /// What is over because its array is none of those that are kept served, and one of `gone` if these are
    /// given.
    pub fn forget(&mut self, known: &[AlertedArray<'_>], gone: Option<&[AlertedArray<'_>]>) -> Vec<Tell> {
        let is_over = |subject: &Subject, open: &Open| {
            let is_it = |array: &AlertedArray<'_>| array.is(subject, open);
            !known.iter().any(is_it) && gone.is_none_or(|gone| gone.iter().any(is_it))
        };
        let forgotten = self.0.extract_if(.., |subject, open| is_over(subject, open));
        let told = |(subject, open): (Subject, Open)| {
            let last = &open.message;
            let message = format!("the daemon does not see to the array any more; the last was: {last}");
            Tell { subject, open: Open { message, ..open }, cleared: true }
        };
        forgotten.map(told).collect()
    }

    /// What was told when each began.
    pub fn raised(&self) -> Vec<Tell> {
        let raised = |(subject, open): (&Subject, &Open)| Tell {
            subject: subject.clone(),
            open: open.clone(),
            cleared: false,
        };
        self.0.iter().map(raised).collect()
    }

    /// For people and programs.
    pub fn status(&self) -> Vec<AlertStatus> {
        let status = |(subject, open): (&Subject, &Open)| AlertStatus {
            array: subject.array.clone(),
            alert: subject.kind.clone(),
            device: subject.device.clone(),
            since: open.since,
            message: open.message.clone(),
        };
        self.0.iter().map(status).collect()
    }
}

impl From<Vec<(Subject, Open)>> for Book {
    fn from(all: Vec<(Subject, Open)>) -> Self {
        Self(all.into_iter().collect())
    }
}

impl From<Book> for Vec<(Subject, Open)> {
    fn from(book: Book) -> Self {
        book.0.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::daemon::health::tests::{array, disk};

    const NONE: Asked<'_> = Asked::NOTHING;
    const ALL: Asked<'_> = Asked { server: Server::Answers, disks: &[], detail: None, check: true };

    fn alerted(label: &str) -> AlertedArray<'_> {
        AlertedArray { label, uuid: None }
    }

    fn status(state: &str, seconds: u64) -> ArrayStatus {
        ArrayStatus {
            array: "data".into(),
            uuid: None,
            state: state.into(),
            why: Some("slot 1 is missing".into()),
            seconds,
            control: None,
            failures: 0,
            next_try_seconds: None,
            checked: None,
            check_due: None,
            checked_mismatched_sectors: None,
            checked_unreadable_stripes: None,
            disks: Vec::new(),
            events: [].into(),
        }
    }

    fn kinds(tells: &[Tell]) -> Vec<(&str, bool)> {
        tells.iter().map(|tell| (tell.subject.kind.as_str(), tell.cleared)).collect()
    }

    #[test]
    fn what_is_wrong_is_told_once_and_cleared_once() {
        let mut book = Book::default();
        assert!(of(&status("waiting", 59), None).is_empty(), "members come late");
        let waits = of(&status("waiting", 60), None);
        assert_eq!(kinds(&book.update(alerted("data"), waits.clone(), NONE, 7)), [("NotServed", false)]);
        assert!(book.update(alerted("data"), waits, NONE, 8).is_empty());
        assert_eq!(book.status()[0].since, 7);
        let again: Book = serde_json::from_slice(&serde_json::to_vec(&book).unwrap()).unwrap();
        assert_eq!(again, book, "it outlives the daemon");
        let cleared = book.update(alerted("data"), of(&status("serving", 0), None), ALL, 9);
        assert_eq!(kinds(&cleared), [("NotServed", true)]);
        assert!(book.update(alerted("data"), Vec::new(), ALL, 10).is_empty());
    }

    #[test]
    fn a_degraded_array_that_fails_is_not_told_to_be_whole() {
        let mut book = Book::default();
        let degraded = Detail { degraded: true, ..array() };
        let failed = Detail { state: "failed".to_owned(), ..degraded.clone() };
        let mut update = |detail: &Detail, now| {
            let asked = Asked { detail: Some(detail), ..ALL };
            let told = book.update(alerted("data"), of(&status("serving", 9), Some(detail)), asked, now);
            told.iter().map(|tell| (tell.subject.kind.clone(), tell.cleared)).collect::<Vec<_>>()
        };
        let told = |kind: &str, cleared| (kind.to_owned(), cleared);
        assert_eq!(update(&degraded, 1), [told("Degraded", false)]);
        assert_eq!(update(&failed, 2), [told("Failed", false)]);
        assert_eq!(update(&array(), 3), [told("Degraded", true), told("Failed", true)]);
    }

    #[test]
    fn what_only_the_server_knows_is_not_over_while_it_is_silent() {
        let mut book = Book::default();
        let degraded = Subject { array: "data".into(), kind: "Degraded".into(), device: String::new() };
        book.update(alerted("data"), vec![(degraded.clone(), "slot 1".into())], ALL, 1);
        assert_eq!(
            kinds(&book.update(alerted("data"), of(&status("silent", 1), None), NONE, 2)),
            [("Silent", false)]
        );
        let back = book.update(alerted("data"), vec![(degraded, "slot 1".into())], ALL, 3);
        assert_eq!(kinds(&back), [("Silent", true)]);
        assert_eq!(kinds(&book.update(alerted("data"), Vec::new(), ALL, 4)), [("Degraded", true)]);
    }

    /// A daemon that has just begun has asked nothing, and has the book of the one before it.
    #[test]
    fn what_was_not_asked_about_yet_is_not_over() {
        let kinds_of_all = [
            ("NotServed", Asked { server: Server::Answers, ..NONE }),
            ("NotServed", Asked { server: Server::Stopped, ..NONE }),
            ("Silent", Asked { server: Server::Answers, ..NONE }),
            ("Silent", Asked { server: Server::Stopped, ..NONE }),
            ("Silent", Asked { server: Server::Died, ..NONE }),
            ("BadSectors", Asked { server: Server::Answers, ..NONE }),
            ("Mismatch", Asked { check: true, ..NONE }),
        ];
        for (kind, settled) in kinds_of_all {
            let mut book = Book::default();
            let subject = Subject { array: "data".into(), kind: kind.into(), device: String::new() };
            book.update(alerted("data"), vec![(subject, String::new())], ALL, 1);
            let server = if kind == "Mismatch" { Server::Answers } else { Server::Unknown };
            let others = Asked { server, check: !settled.check, ..NONE };
            for asked in [NONE, others] {
                assert!(book.update(alerted("data"), Vec::new(), asked, 2).is_empty(), "{kind}: {asked:?}");
            }
            assert_eq!(kinds(&book.update(alerted("data"), Vec::new(), settled, 3)), [(kind, true)]);
        }
    }

    /// A disk that sleeps says nothing, and one without smartctl neither.
    #[test]
    fn a_disk_fails_until_it_says_that_it_does_not_or_is_none_of_the_array() {
        let disk = |device| disk(device, false);
        let (m0, m1, array) = ([disk("/dev/m0")], [disk("/dev/m1")], array());
        for (device, asked, is_over) in [
            ("/dev/m1", Asked { detail: Some(&array), ..ALL }, false),
            ("/dev/s", Asked { detail: Some(&array), ..ALL }, false),
            ("/dev/m1", Asked { detail: Some(&array), disks: &m0, ..ALL }, false),
            ("/dev/m1", Asked { disks: &m1, ..NONE }, true),
            ("/dev/gone", Asked { detail: Some(&array), ..ALL }, true),
            ("/dev/gone", ALL, false),
        ] {
            let mut book = Book::default();
            let subject = Subject { array: "data".into(), kind: "DiskFailing".into(), device: device.into() };
            book.update(alerted("data"), vec![(subject, String::new())], NONE, 1);
            let told = book.update(alerted("data"), Vec::new(), asked, 2);
            assert_eq!(!told.is_empty(), is_over, "{device}: {:?}", asked.disks);
        }
    }

    #[test]
    fn what_leaves_an_array_without_a_spare_or_without_writes_is_told() {
        let told = |change: &dyn Fn(&mut Detail)| {
            let mut detail = array();
            change(&mut detail);
            let mut all = of(&status("serving", 0), Some(&detail));
            all.extend(read_only("data", &detail));
            all.into_iter().map(|(subject, _)| (subject.kind, subject.device)).collect::<Vec<_>>()
        };
        let one = |kind: &str, device: &str| vec![(kind.to_owned(), device.to_owned())];
        assert_eq!(told(&|_| ()), []);
        let failed = |slot: Option<u64>| {
            let value = serde_json::json!({ "slot": slot, "device": "/dev/s", "error": "gone", "late_requests": 0, "statistics": {} });
            serde_json::from_value(value).unwrap()
        };
        assert_eq!(told(&|detail| detail.failed = vec![failed(None)]), one("SpareFailed", "/dev/s"));
        assert_eq!(told(&|detail| detail.failed = vec![failed(Some(1))]), [], "its slot tells of it");
        assert_eq!(told(&|detail| detail.state = "read-only".to_owned()), one("ReadOnly", ""));
        assert_eq!(told(&|detail| detail.warnings = vec!["a full disk".to_owned()]), one("Warning", ""));
        let unread = ArrayStatus { checked_unreadable_stripes: Some(1), ..status("serving", 0) };
        assert_eq!(of(&unread, None)[0].0.kind, "Unreadable");
        let good = ArrayStatus { checked_unreadable_stripes: Some(0), ..status("serving", 0) };
        assert!(of(&good, None).is_empty());
    }

    #[test]
    fn a_check_that_is_long_overdue_is_told() {
        let due = ArrayStatus { check_due: Some(1000), ..status("serving", 0) };
        assert_eq!(overdue(&due, 0), None, "it is to come");
        assert_eq!(overdue(&due, 1000 + OVERDUE_SECONDS), None);
        let (subject, message) = overdue(&due, 1001 + OVERDUE_SECONDS).unwrap();
        assert!(subject.kind == "CheckOverdue" && message.contains("10 days"), "{message}");
        assert_eq!(overdue(&status("serving", 0), u64::MAX), None, "none is wanted");
    }

    #[test]
    fn a_start_that_does_not_end_is_told() {
        assert!(of(&status("starting", 599), None).is_empty());
        assert_eq!(of(&status("starting", 600), None)[0].0.kind, "NotServed");
    }

    #[test]
    fn an_entry_that_is_wrong_is_told_once_until_it_is_right_and_settles_nothing_else() {
        let mut book = Book::default();
        let degraded = Subject { array: "data".into(), kind: "Degraded".into(), device: String::new() };
        book.update(alerted("data"), vec![(degraded, String::new())], ALL, 1);
        let wrong = || vec![left_out("data", "its entry is wrong")];
        let told = book.update(alerted("data"), wrong(), Asked::NOTHING, 2);
        assert_eq!(kinds(&told), [("Misconfigured", false)]);
        assert!(book.update(alerted("data"), wrong(), Asked::NOTHING, 3).is_empty());
        assert_eq!(kinds(&book.update(alerted("data"), Vec::new(), NONE, 4)), [("Misconfigured", true)]);
    }

    #[test]
    fn alerts_of_one_array_are_no_others() {
        let mut book = Book::default();
        let subject =
            |array: &str| Subject { array: array.into(), kind: "Degraded".into(), device: String::new() };
        book.update(alerted("data"), vec![(subject("data"), String::new())], ALL, 1);
        assert!(book.update(alerted("other"), Vec::new(), ALL, 1).is_empty());
        book.update(alerted("other"), vec![(subject("other"), String::new())], ALL, 1);
        let told = book.forget(&[alerted("other")], None);
        assert_eq!((told.len(), told[0].subject.array.as_str(), told[0].cleared), (1, "data", true));
        assert_eq!(book.status().len(), 1);
    }

    #[test]
    fn alerts_of_arrays_with_one_name_are_told_apart() {
        let names = |name: &str, own: &str| (name.to_owned(), own.to_owned());
        let all = [names("data", "one"), names("data", "two"), names("log", "three"), names("old", "four")];
        let labels = labels(&all, &[&"old".to_owned()]);
        assert_eq!(labels, ["data (one)", "data (two)", "log", "old (four)"]);
        let mut book = Book::default();
        let subject = Subject { array: labels[1].clone(), kind: "NotServed".into(), device: String::new() };
        book.update(alerted(&labels[1]), vec![(subject.clone(), String::new())], NONE, 1);
        assert!(book.update(alerted(&labels[0]), Vec::new(), ALL, 2).is_empty());
        assert!(book.update(alerted(&labels[1]), vec![(subject, String::new())], NONE, 3).is_empty());
    }

    #[test]
    fn an_alert_goes_on_when_its_array_is_called_otherwise_and_is_over_under_its_first_name() {
        let called = |label, uuid| AlertedArray { label, uuid: Some(uuid) };
        let degraded = |array: &str| {
            let subject = Subject { array: array.into(), kind: "Degraded".into(), device: String::new() };
            vec![(subject, "slot 1".to_owned())]
        };
        let mut book = Book::default();
        // The UUID was not known at first.
        book.update(alerted("data"), degraded("data"), ALL, 1);
        assert!(book.update(called("data", "A"), degraded("data"), ALL, 2).is_empty());
        // A copy comes.
        let both = [called("data (A)", "A"), called("data (B)", "B")];
        assert!(book.forget(&both, None).is_empty());
        assert!(book.update(both[0], degraded("data (A)"), ALL, 3).is_empty());
        assert!(book.update(both[1], Vec::new(), ALL, 3).is_empty());
        assert_eq!(kinds(&book.update(both[1], degraded("data (B)"), ALL, 4)), [("Degraded", false)]);
        let over = book.update(both[0], Vec::new(), ALL, 5);
        assert_eq!((over.len(), over[0].subject.array.as_str(), over[0].cleared), (1, "data", true));
        // Both have been called the same, one after the other.
        let mut same = Book::default();
        same.update(called("data", "A"), degraded("data"), ALL, 1);
        assert_eq!(kinds(&same.update(called("data", "B"), degraded("data"), ALL, 2)), [("Degraded", false)]);
        let begun: Vec<(String, u64)> =
            same.status().into_iter().map(|alert| (alert.array, alert.since)).collect();
        assert_eq!(begun, [("data".to_owned(), 1), ("data (B)".to_owned(), 2)]);
        assert!(same.update(called("data", "A"), degraded("data"), ALL, 3).is_empty());
        let over = same.update(called("data", "B"), Vec::new(), ALL, 4);
        assert_eq!((over.len(), over[0].subject.array.as_str()), (1, "data (B)"));
        // The array of this name isn't the one that it was.
        let told = book.forget(&[called("data", "A"), called("data (B)", "C")], None);
        assert_eq!((told.len(), told[0].subject.array.as_str()), (1, "data (B)"));
    }
}
