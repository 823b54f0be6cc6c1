//! Spares that arrays of one group lend each other.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use pinstripe_control::{
    AddParameters, AddResult, CallError, Detail, DeviceResult, MemberName,
    client::{Client, ClientError},
    code,
};

/// How long a slot has been empty before a spare of another array is moved to it: its member may come back.
const EMPTY: Duration = Duration::from_secs(10);
/// The same where the member's server was lost, and is being waited for.
const EMPTY_RECONNECTING: Duration = Duration::from_mins(1);
/// How long an array isn't offered a spare again that it has refused. Any spare, where it isn't known what
/// became of one: each would be taken out of its array, and wait for the one before.
const REFUSED: Duration = Duration::from_hours(1);
/// The same of one that could not move for a reason that may be over soon, such as a server that restarts.
const NOT_NOW: Duration = Duration::from_mins(1);
/// How long a server may take to answer.
const LIMIT: Duration = Duration::from_secs(30);

/// An array of a group.
#[derive(Clone, Debug)]
pub struct Grouped {
    pub key: String,
    pub label: String,
    /// Its UUID.
    pub uuid: String,
    pub control: PathBuf,
    pub group: String,
}

/// A spare that is to move.
#[derive(Debug, PartialEq, Eq)]
pub struct Move {
    pub from: usize,
    pub to: usize,
    pub spare: String,
}

/// What is known of earlier looks.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    /// Since when each array has lacked a spare, by its key.
    lacking: BTreeMap<String, Duration>,
    /// Spares that an array could not have, by its key, and when it may be offered them again. Without a
    /// spare it is all of them.
    refused: BTreeMap<(String, Option<String>), Duration>,
}

impl Memory {
    /// Remembers what an array could not have.
    pub fn refuse(&mut self, refused: Refused, now: Duration) {
        let Refused { key, spare, end } = refused;
        let (spare, pause) = match end {
            End::Refused => (Some(spare), REFUSED),
            End::NotNow => (Some(spare), NOT_NOW),
            End::Unknown => (None, REFUSED),
        };
        self.refused.insert((key, spare), now + pause);
    }
}

/// The spare that is to move now, if one is. Pure.
pub fn choose(arrays: &[(Grouped, Detail)], memory: &mut Memory, now: Duration) -> Option<Move> {
    let lacking: Vec<usize> = (0..arrays.len()).filter(|index| lacks_spare(&arrays[*index].1)).collect();
    let is_lacking = |key: &str| lacking.iter().any(|index| arrays[*index].0.key == key);
    memory.lacking.retain(|key, _| is_lacking(key));
    memory.refused.retain(|(key, _), until| is_lacking(key) && now < *until);
    for to in lacking {
        let (wanting, detail) = &arrays[to];
        let since = *memory.lacking.entry(wanting.key.clone()).or_insert(now);
        let comes_back = |failed: &pinstripe_control::detail::Failed| {
            failed.reconnecting.as_ref().is_some_and(|reconnecting| !reconnecting.given_up)
        };
        let patience = if detail.failed.iter().any(comes_back) { EMPTY_RECONNECTING } else { EMPTY };
        if now.saturating_sub(since) < patience {
            continue;
        }
        for (from, (giving, other)) in arrays.iter().enumerate() {
            if from == to || giving.group != wanting.group || other.degraded {
                continue;
            }
            let is_refused =
                |spare: Option<String>| memory.refused.contains_key(&(wanting.key.clone(), spare));
            let is_free = |spare: &&String| !is_refused(None) && !is_refused(Some((*spare).clone()));
            if let Some(spare) = other.spares.iter().find(is_free) {
                return Some(Move { from, to, spare: spare.clone() });
            }
        }
    }
    None
}

/// Whether a slot has no member, and nothing is there that could take it.
fn lacks_spare(detail: &Detail) -> bool {
    let is_open = |member: &pinstripe_control::detail::Member| member.state == "missing";
    detail.state != "failed"
        && detail.state != "read-only"
        && detail.spares.is_empty()
        && detail.members.iter().any(is_open)
}

/// What was done, of an array.
#[derive(Debug)]
pub struct Note {
    pub label: String,
    /// What kind of event it is.
    pub event: &'static str,
    pub alarming: bool,
    pub sentence: String,
}

/// What came of a move.
#[derive(Debug)]
pub struct Moved {
    pub notes: Vec<Note>,
    /// What an array could not have.
    pub refused: Option<Refused>,
}

/// A spare that an array could not have.
#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    /// The array's key.
    key: String,
    spare: String,
    end: End,
}

/// How a move has ended that came to nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// A server has refused it.
    Refused,
    /// For a reason that may be over soon.
    NotNow,
    /// A server was asked, and hasn't said what became of it.
    Unknown,
}

/// What a person is to do if a server hasn't said what became of a spare.
const BY_HAND: &str = "if neither array has it in the end, add it by hand";

/// Moves a spare.
pub fn carry_out(giving: &Grouped, wanting: &Grouped, spare: &str) -> Moved {
    carry_out_within(giving, wanting, spare, LIMIT)
}

/// The same, with servers that answer within `limit`.
fn carry_out_within(giving: &Grouped, wanting: &Grouped, spare: &str, limit: Duration) -> Moved {
    let note = |label: &str, alarming, sentence| Note {
        label: label.to_owned(),
        event: "MoveSpare",
        alarming,
        sentence,
    };
    match move_spare(giving, wanting, spare, limit) {
        Ok(()) => Moved {
            notes: vec![
                note(&wanting.label, false, format!("has got {spare}, a spare of {}", giving.label)),
                note(&giving.label, true, format!("has given its spare {spare} to {}", wanting.label)),
            ],
            refused: None,
        },
        Err(Unmoved { why, end }) => {
            let sentence = format!("could not get {spare}, a spare of {}: {why}", giving.label);
            let refused = Some(Refused { key: wanting.key.clone(), spare: spare.to_owned(), end });
            Moved { notes: vec![note(&wanting.label, true, sentence)], refused }
        }
    }
}

/// Why a spare didn't move.
struct Unmoved {
    why: String,
    end: End,
}

fn connect(control: &Path, limit: Duration) -> Result<Client, ClientError> {
    let client = Client::connect(&control.to_string_lossy())?;
    client.set_timeout(Some(limit))?;
    Ok(client)
}

/// Takes a spare out of one array and puts it into another. If that can't have it, it goes back.
fn move_spare(giving: &Grouped, wanting: &Grouped, spare: &str, limit: Duration) -> Result<(), Unmoved> {
    let not_now = |error: ClientError| Unmoved { why: error.to_string(), end: End::NotNow };
    let refused_by =
        |refused: &CallError| if refused.code == code::STOPPING { End::NotNow } else { End::Refused };
    let unknown = |error: ClientError| Unmoved { why: format!("{error}; {BY_HAND}"), end: End::Unknown };
    // Before the spare is taken: a server that can't be reached would leave it nowhere.
    let mut wants = connect(&wanting.control, limit).map_err(not_now)?;
    let mut gives = connect(&giving.control, limit).map_err(not_now)?;
    match gives.call::<DeviceResult>("remove", MemberName::Device(spare.to_owned())) {
        Ok(_) => {}
        Err(ClientError::Call(refused)) => {
            return Err(Unmoved { why: refused.to_string(), end: refused_by(&refused) });
        }
        // It may still do so.
        Err(error) => return Err(unknown(error)),
    }
    // It holds the superblock of the array that gave it; a disk that has come under its name does not.
    let spare_of = Some(giving.uuid.clone());
    let add = AddParameters { device: spare.to_owned(), force: false, spare_of };
    let refused = match wants.call::<AddResult>("add", &add) {
        Ok(_) => return Ok(()),
        Err(ClientError::Call(refused)) => refused,
        // It may still be at it, and must not meet the other array there.
        Err(error) => return Err(unknown(error)),
    };
    let why = match gives.call::<AddResult>("add", &add) {
        Ok(_) => format!("{refused}; it is {}'s spare again", giving.label),
        Err(error) => {
            format!("{refused}; and {} did not take it back: {error}: add it by hand", giving.label)
        }
    };
    Err(Unmoved { why, end: refused_by(&refused) })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// An array of the group `g`: its missing slots and its spares.
    fn array(key: &str, missing: usize, spares: &[&str], failed: &Value) -> (Grouped, Detail) {
        let member = |slot: usize| {
            let state = if slot < missing { "missing" } else { "in-sync" };
            json!({ "slot": slot, "state": state, "device": null, "read_latency_ns": 0, "write_latency_ns": 0,
                "slow": false, "late_requests": 0, "bad_sectors": 0, "statistics": {} })
        };
        let detail = json!({
            "name": key, "uuid": "", "level": "raid5", "layout": "", "chunk_bytes": 65536, "logical_block_bytes": 512,
            "size_bytes": 0, "state": "active", "degraded": missing > 0, "events": 0, "members": [member(0), member(1), member(2)],
            "spares": spares, "failed": failed, "bitmap": null, "consistency_policy": "bitmap", "regions_to_resync": 0, "sync": null,
            "sync_paused": false, "sync_speed_min_kib": 0, "sync_speed_max_kib": 0, "errors": [], "advice": null, "nbd": [],
            "shards": 1, "statistics": {},
        });
        let grouped = Grouped {
            key: key.into(),
            label: key.into(),
            uuid: String::new(),
            control: "/c".into(),
            group: "g".into(),
        };
        (grouped, serde_json::from_value(detail).unwrap())
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_slot_that_stays_empty_gets_a_spare_of_a_whole_array_of_the_group() {
        let none = json!([]);
        let mut arrays = vec![
            array("a", 1, &[], &none),
            array("b", 1, &["/b"], &none),
            array("c", 0, &["/c1", "/c2"], &none),
        ];
        let mut memory = Memory::default();
        assert_eq!(choose(&arrays, &mut memory, at(100)), None);
        assert_eq!(choose(&arrays, &mut memory, at(109)), None);
        let expected = Move { from: 2, to: 0, spare: "/c1".into() };
        assert_eq!(choose(&arrays, &mut memory, at(110)), Some(expected));
        memory.refuse(Refused { key: "a".into(), spare: "/c1".into(), end: End::Refused }, at(110));
        assert_eq!(choose(&arrays, &mut memory, at(111)).unwrap().spare, "/c2");
        arrays[2].0.group = "other".into();
        assert_eq!(choose(&arrays, &mut memory, at(111)), None);
    }

    #[test]
    fn a_member_that_comes_back_begins_the_wait_anew() {
        let none = json!([]);
        let (empty, whole) = (array("a", 1, &[], &none), array("a", 0, &[], &none));
        let giving = array("c", 0, &["/c"], &none);
        let mut memory = Memory::default();
        for (now, array, moves) in [
            (0, &empty, false),
            (9, &whole, false),
            (10, &empty, false),
            (19, &empty, false),
            (20, &empty, true),
        ] {
            let chosen = choose(&[array.clone(), giving.clone()], &mut memory, at(now));
            assert_eq!(chosen.is_some(), moves, "{now}");
        }
    }

    #[test]
    fn a_lost_server_is_waited_for_longer() {
        let lost = json!([{ "slot": 0, "device": "nvme-tcp://x", "error": "", "late_requests": 0, "statistics": {},
            "reconnecting": { "tries": 1, "trouble": "", "given_up": false } }]);
        let arrays = [array("a", 1, &[], &lost), array("c", 0, &["/c"], &json!([]))];
        let mut memory = Memory::default();
        assert_eq!(choose(&arrays, &mut memory, at(0)), None);
        assert_eq!(choose(&arrays, &mut memory, at(59)), None);
        assert!(choose(&arrays, &mut memory, at(60)).is_some());
    }

    #[test]
    fn a_spare_that_could_not_move_is_tried_again_the_later_if_it_was_refused() {
        let arrays = [array("a", 1, &[], &json!([])), array("c", 0, &["/c"], &json!([]))];
        for (end, pause) in [(End::NotNow, 60), (End::Refused, 3600), (End::Unknown, 3600)] {
            let mut memory = Memory::default();
            choose(&arrays, &mut memory, at(0));
            assert!(choose(&arrays, &mut memory, at(10)).is_some());
            memory.refuse(Refused { key: "a".into(), spare: "/c".into(), end }, at(10));
            assert_eq!(choose(&arrays, &mut memory, at(9 + pause)), None);
            assert!(choose(&arrays, &mut memory, at(10 + pause)).is_some());
            // Of an array that had a spare meanwhile nothing is remembered.
            memory.refuse(Refused { key: "a".into(), spare: "/c".into(), end }, at(10 + pause));
            choose(&[array("a", 0, &[], &json!([])), arrays[1].clone()], &mut memory, at(11 + pause));
            choose(&arrays, &mut memory, at(12 + pause));
            assert!(choose(&arrays, &mut memory, at(22 + pause)).is_some());
        }
    }

    #[test]
    fn a_server_that_is_not_there_just_now_has_refused_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let control = |name: &str| folder.path().join(name);
        let (giving, wanting) = (array("c", 0, &["/c"], &json!([])).0, array("a", 1, &[], &json!([])).0);
        let giving = Grouped { control: control("c"), ..giving };
        let wanting = Grouped { control: control("a"), ..wanting };
        let moved = carry_out(&giving, &wanting, "/c");
        let refused = Refused { key: "a".into(), spare: "/c".into(), end: End::NotNow };
        assert_eq!(moved.refused, Some(refused), "{:?}", moved.notes);
    }

    #[test]
    fn a_server_that_does_not_say_what_became_of_a_spare_gets_no_other_one() {
        let folder = tempfile::tempdir().unwrap();
        let control = |name: &str| folder.path().join(name);
        for silent in ["add", "remove"] {
            let answers = move |call: &Value| {
                (call["method"] != silent).then(|| json!({ "result": { "slot": null, "device": "/c1" } }))
            };
            let names = [format!("{silent}-c"), format!("{silent}-a")];
            for name in &names {
                super::super::fake::server(&control(name), answers);
            }
            let mut arrays = [array("c", 0, &["/c1", "/c2"], &json!([])), array("a", 1, &[], &json!([]))];
            for (array, name) in arrays.iter_mut().zip(&names) {
                array.0.control = control(name);
            }
            let mut memory = Memory::default();
            choose(&arrays, &mut memory, at(0));
            let Some(Move { from, to, spare }) = choose(&arrays, &mut memory, at(10)) else { panic!() };
            let moved = carry_out_within(&arrays[from].0, &arrays[to].0, &spare, Duration::from_millis(200));
            assert!(moved.notes[0].sentence.contains(BY_HAND), "{:?}", moved.notes);
            memory.refuse(moved.refused.unwrap(), at(40));
            assert_eq!(choose(&arrays, &mut memory, at(45)), None, "{silent}");
            assert_eq!(choose(&arrays, &mut memory, at(3639)), None, "{silent}");
        }
    }
}
