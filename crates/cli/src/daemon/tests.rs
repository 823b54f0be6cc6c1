//! What the daemon makes of what its threads tell, in orders that no server can be brought to.

use std::sync::{Arc, Mutex};

use pinstripe_config::Alerts;
use pinstripe_control::detail::Compared;
use serde_json::json;
use tempfile::TempDir;

use super::{
    checks::{Checked, Record},
    health::tests::{array, disk},
    *,
};

/// A daemon that does nothing by itself, and the folder of its state.
fn daemon() -> (Daemon, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let log = ServerLog::new(false, "daemon").unwrap();
    let daemon = Daemon {
        given: None,
        starts: true,
        stops_arrays: false,
        begun: Instant::now().checked_sub(Duration::from_mins(1)).unwrap(),
        since: 0,
        configuration: Configuration::default(),
        generation: 0,
        left_out: Vec::new(),
        problem: None,
        unserved: None,
        listen_again: Duration::ZERO,
        arrays: BTreeMap::new(),
        heard: BTreeMap::new(),
        stopped: Stopped::of(folder.path()),
        remarks: Vec::new(),
        http: None,
        look: Look::default(),
        chores: Chores::new(folder.path()),
        board: Board::new(None, None, folder.path(), folder.path()),
        secretary: Secretary::new(folder.path(), &Alerts::default(), None, &log).unwrap(),
        next_run: 0,
        stopping: false,
        sender: channel().0,
        log,
    };
    (daemon, folder)
}

/// An array with a server at this socket.
fn served(daemon: &mut Daemon, key: &str, control: PathBuf) {
    let mut kept = Kept::new(key.to_owned(), Duration::ZERO);
    kept.course.answers(control, Duration::ZERO);
    daemon.next_run += 1;
    (kept.uuid, kept.run) = (Some(key.to_owned()), daemon.next_run);
    daemon.arrays.insert(key.to_owned(), kept);
}

/// What the server of this array says.
fn detail(uuid: &str) -> Detail {
    Detail { uuid: uuid.to_owned(), ..array() }
}

#[test]
fn a_server_that_has_answered_and_then_ended_has_ended_whichever_of_the_two_is_told_first() {
    let (mut daemon, folder) = daemon();
    let control = folder.path().join("control");
    served(&mut daemon, "data", control.clone());
    daemon.news(1, News::Ended(Ending::Died("it died".to_owned())));
    daemon.news(1, News::Answers(control));
    assert!(matches!(daemon.arrays["data"].course.phase, Phase::Failed { .. }), "it is to be started again");
}

/// A call comes each minute from what supervises the daemon.
#[test]
fn an_answer_that_can_not_be_said_is_an_error_and_not_the_daemons_end() {
    use std::os::unix::ffi::OsStrExt;
    let (mut daemon, _folder) = daemon();
    daemon.configuration.files = vec![std::ffi::OsStr::from_bytes(b"/etc/\xff.toml").into()];
    let error = daemon.answer(Command::Status).unwrap_err();
    assert!(error.message.contains("UTF-8"), "{error:?}");
    daemon.configuration.files.clear();
    daemon.answer(Command::Status).unwrap();
}

#[test]
fn devices_that_appear_are_looked_at_whatever_is_known_where_all_arrays_are_meant() {
    let (mut daemon, _folder) = daemon();
    (daemon.look.last, daemon.look.devices) = (Some(Instant::now()), block_device_generations());
    daemon.configuration.scan.devices = Some(Vec::new());
    daemon.look.devices.pop();
    daemon.look_if_due();
    assert!(daemon.look.since.is_none(), "no array is meant");
    daemon.configuration.scan.all = true;
    daemon.look_if_due();
    assert!(daemon.look.since.is_some());
}

#[test]
fn what_a_check_has_found_is_known_also_where_its_entry_was_edited_meanwhile() {
    let (mut daemon, folder) = daemon();
    served(&mut daemon, "another key", folder.path().join("control"));
    let kept = daemon.arrays.get_mut("another key").unwrap();
    (kept.uuid, kept.record.open) = (Some("uuid".to_owned()), true);
    let record = Record { completed: Some(7), completed_mismatched_sectors: 8, ..Record::default() };
    let how = Checked::Complete { mismatched_sectors: 8, unreadable_stripes: 0 };
    daemon.checked("uuid", Ok(Round { record: record.clone(), how, unkept: None }));
    assert_eq!(daemon.arrays["another key"].record, record);
}

#[test]
fn of_several_arrays_that_are_to_be_checked_the_one_that_has_waited_longest_is() {
    let (mut daemon, folder) = daemon();
    let now = checks::Moment::now().seconds;
    let day = 86_400;
    let open = |begun| Record { begun, open: true, ..Record::default() };
    let done = |completed| Record { begun: completed, completed: Some(completed), ..Record::default() };
    // The keys are in the order in which the daemon goes through them.
    for (first, second, chosen) in [
        (done(now - 3 * day), open(now - 5 * day), "b"),
        (done(now - 3 * day), Record::default(), "b"),
        (open(now - 3 * day), done(now - 4 * day), "b"),
        (open(now - 4 * day), done(now - 3 * day), "a"),
        (Record { begun: now - 9 * day, ..done(now - 3 * day) }, done(now - 4 * day), "b"),
        (done(now - 4 * day), done(now + 9 * day), "b"),
    ] {
        for (key, record) in [("a", &first), ("b", &second)] {
            served(&mut daemon, key, folder.path().join("control"));
            let kept = daemon.arrays.get_mut(key).unwrap();
            kept.record = record.clone();
            kept.duties.check_every = Some("1day".parse().unwrap());
        }
        daemon.chores.checking = None;
        daemon.check_if_due();
        assert_eq!(daemon.chores.checking.as_deref(), Some(chosen), "{first:?} {second:?}");
    }
}

/// It is none of the array's any more, and its server may be away before it is asked again.
#[test]
fn a_disk_that_was_failing_and_was_replaced_is_never_told_of_again() {
    let (mut daemon, folder) = daemon();
    served(&mut daemon, "data", folder.path().join("control"));
    daemon.arrays.get_mut("data").unwrap().disks = vec![disk("/dev/m1", true)];
    daemon.surveyed(vec![("data".to_owned(), detail("data"))]);
    assert_eq!(daemon.chores.book.status().len(), 1);
    let mut replaced = detail("data");
    replaced.members[1].device = Some("/dev/s".to_owned());
    for said in [vec![("data".to_owned(), replaced)], Vec::new()] {
        daemon.surveyed(said);
        assert_eq!(daemon.chores.book.status(), []);
    }
}

#[test]
fn what_a_check_or_repair_by_hand_has_found_counts_as_the_last_check() {
    let (mut daemon, folder) = daemon();
    served(&mut daemon, "data", folder.path().join("control"));
    let mut survey = |compared, is_checking: bool| {
        daemon.chores.checking = is_checking.then(|| "data".to_owned());
        daemon.surveyed(vec![("data".to_owned(), Detail { compared, ..detail("data") })]);
        daemon.chores.book.status().len()
    };
    let compared = |time, mismatched_sectors| Some(Compared { time, mismatched_sectors });
    assert_eq!(survey(None, false), 0);
    assert_eq!(survey(compared(8, 16), true), 0, "what checks it keeps the record");
    assert_eq!(survey(compared(8, 16), false), 1);
    assert_eq!(survey(compared(7, 0), false), 1, "it is older");
    // One record is kept at a time.
    let begun = Instant::now();
    while survey(compared(8, 0), false) > 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "it was repaired");
    }
    let (kept, record) = (&daemon.arrays["data"], &daemon.arrays["data"].record);
    assert_eq!((record.completed, record.completed_mismatched_sectors), (Some(8), 0));
    let uuid = kept.uuid.as_deref().unwrap();
    let begun = Instant::now();
    while daemon.chores.records.of(uuid) != *record {
        assert!(begun.elapsed() < Duration::from_secs(30), "it outlives the daemon");
    }
}

/// Its details are those of before the move, so the array seems to lack a spare still.
#[test]
fn a_survey_that_was_begun_before_a_spare_was_moved_moves_none() {
    let (mut daemon, folder) = daemon();
    let (sender, messages) = channel();
    daemon.sender = sender;
    let calls = Arc::new(Mutex::new(Vec::new()));
    for key in ["gives", "wants"] {
        let (path, calls) = (folder.path().join(key), Arc::clone(&calls));
        fake::server(&path, move |call| {
            calls.lock().unwrap().push(call["method"].as_str().unwrap().to_owned());
            Some(json!({ "result": { "slot": null, "device": "/dev/s", "recovery": "full" } }))
        });
        served(&mut daemon, key, path);
        daemon.arrays.get_mut(key).unwrap().duties.spare_group = Some("shelf".to_owned());
    }
    let said = || {
        let wants = Detail { spares: Vec::new(), ..degraded("wants") };
        vec![("gives".to_owned(), detail("gives")), ("wants".to_owned(), wants)]
    };
    let later = |daemon: &mut Daemon| daemon.begun -= Duration::from_secs(20);
    daemon.surveyed(said());
    later(&mut daemon);
    daemon.chores.survey.last = Some(daemon.now());
    daemon.surveyed(said());
    // The next survey begins while the spare is on its way.
    daemon.chores.survey.last = Some(daemon.now());
    let Ok(Message::Moved(moved)) = messages.recv_timeout(Duration::from_secs(30)) else {
        panic!("a spare moves")
    };
    daemon.moved(moved);
    let before = calls.lock().unwrap().clone();
    daemon.surveyed(said());
    assert!(!daemon.chores.moves, "{before:?}");
    later(&mut daemon);
    daemon.chores.survey.last = Some(daemon.now());
    daemon.surveyed(said());
    assert!(daemon.chores.moves, "what was asked for since counts");
}

/// The configuration that this text is.
fn configured(text: &str) -> Configuration {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pinstripe.toml");
    std::fs::write(&path, text).unwrap();
    Configuration::load(Some(&path)).unwrap()
}

/// What a degraded array's server says.
fn degraded(uuid: &str) -> Detail {
    let mut degraded = Detail { degraded: true, ..detail(uuid) };
    (degraded.members[1].state, degraded.members[1].device) = ("missing".to_owned(), None);
    degraded
}

fn alerts_of(daemon: &Daemon) -> Vec<String> {
    daemon.chores.book.status().into_iter().map(|alert| alert.alert).collect()
}

/// Of an array with `auto = false` that is degraded, in a configuration of this `[scan]`.
fn served_by_a_person(scan: &str) -> (Daemon, TempDir) {
    let (mut daemon, folder) = daemon();
    daemon.configuration = configured(&format!("{scan}[[array]]\nname = 'data'\nauto = false\n"));
    served(&mut daemon, "data", folder.path().join("control"));
    daemon.arrays.get_mut("data").unwrap().is_started = false;
    daemon.surveyed(vec![("data".to_owned(), degraded("data"))]);
    assert_eq!(alerts_of(&daemon), ["Degraded"]);
    (daemon, folder)
}

#[test]
fn what_is_wrong_with_an_array_that_only_persons_start_is_over_when_a_person_has_stopped_it() {
    for scan in ["", "[scan]\nassemble = 'all'\n"] {
        let (mut daemon, _folder) = served_by_a_person(scan);
        // Of another array, which may only not be found.
        let other = AlertedArray { label: "other", uuid: Some("other") };
        let left = alerts::left_out("other", "");
        daemon.chores.book.update(other, vec![left], alerts::Asked::NOTHING, 1);
        daemon.news(1, News::Ended(Ending::Ordered));
        daemon.looked(Vec::new(), Vec::new());
        let left: &[&str] = if scan.is_empty() { &[] } else { &["Misconfigured"] };
        assert_eq!(alerts_of(&daemon), left, "{scan}");
        assert!(daemon.arrays.is_empty());
    }
}

#[test]
fn an_array_that_only_persons_start_and_that_has_died_is_told_of_until_a_person_sees_to_it() {
    for scan in ["", "[scan]\nassemble = 'all'\n"] {
        let (mut daemon, _folder) = served_by_a_person(scan);
        daemon.news(1, News::Ended(Ending::Died("its server was ended by signal 9".to_owned())));
        daemon.begun -= Duration::from_secs(2);
        for _ in 0..2 {
            daemon.looked(Vec::new(), Vec::new());
            daemon.begun -= Duration::from_mins(1);
            daemon.surveyed(Vec::new());
        }
        assert_eq!(alerts_of(&daemon), ["Degraded", "NotServed"], "{scan}");
        let Phase::Waiting { why, .. } = &daemon.arrays["data"].course.phase else { panic!("it waits") };
        assert!(why.contains("only a person starts it"), "{why}");
        daemon.look.forgets = true;
        daemon.looked(Vec::new(), Vec::new());
        assert!(daemon.arrays.is_empty() && alerts_of(&daemon).is_empty(), "a person has reloaded");
    }
}

/// Disks that sleep would be woken each minute.
#[test]
fn whether_a_person_has_started_an_array_is_asked_of_servers_and_not_of_disks() {
    let (mut daemon, folder) = daemon();
    let (sender, messages) = channel();
    daemon.sender = sender;
    let member = folder.path().join("member");
    std::fs::write(&member, "").unwrap();
    let text =
        format!("[[array]]\nname = 'no-such-array'\nauto = false\nmembers = ['{}']\n", member.display());
    daemon.configuration = configured(&text);
    daemon.look.devices = block_device_generations();
    let before = |minutes| Instant::now().checked_sub(Duration::from_mins(minutes));
    let mut look = |last: Option<Instant>, is_dead: bool| {
        (daemon.look.since, daemon.look.last) = (None, last);
        daemon.arrays.clear();
        if is_dead {
            let mut kept = Kept::new("data".to_owned(), Duration::ZERO);
            kept.is_started = false;
            daemon.arrays.insert("data".to_owned(), kept);
        }
        daemon.look_if_due();
        daemon.look.since?;
        match messages.recv_timeout(Duration::from_secs(30)) {
            Ok(Message::Looked { found, .. }) => Some(found.is_some()),
            _ => panic!("it doesn't look"),
        }
    };
    assert_eq!(look(None, false), Some(true), "at the beginning");
    for is_dead in [false, true] {
        assert_eq!(look(before(0), is_dead), None);
        assert_eq!(look(before(2), is_dead), Some(false), "{is_dead}");
    }
}
