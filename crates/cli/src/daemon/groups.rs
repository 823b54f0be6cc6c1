//! Spares that arrays of one group lend each other.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    time::Duration,
};

use pinstripe_control::{
    AddParameters, AddResult, Detail, DeviceResult, MemberName,
    client::{Client, ClientError},
};

/// How long a slot has been empty before a spare of another array is moved to it: its member may come back.
const EMPTY: Duration = Duration::from_secs(10);
/// The same where the member's server was lost, and is being waited for.
const EMPTY_RECONNECTING: Duration = Duration::from_mins(1);
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
    /// Spares that an array has refused, by its key.
    pub refused: BTreeSet<(String, String)>,
}

/// The spare that is to move now, if one is. Pure.
pub fn choose(arrays: &[(Grouped, Detail)], memory: &mut Memory, now: Duration) -> Option<Move> {
    let lacking: Vec<usize> = (0..arrays.len()).filter(|index| lacks_spare(&arrays[*index].1)).collect();
    memory.lacking.retain(|key, _| lacking.iter().any(|index| arrays[*index].0.key == *key));
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
            let is_free =
                |spare: &&String| !memory.refused.contains(&(wanting.key.clone(), (*spare).clone()));
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
    /// The array that could not have it, by its key, and the spare.
    pub refused: Option<(String, String)>,
}

/// Moves a spare.
pub fn carry_out(giving: &Grouped, wanting: &Grouped, spare: &str) -> Moved {
    let note = |label: &str, alarming, sentence| Note {
        label: label.to_owned(),
        event: "MoveSpare",
        alarming,
        sentence,
    };
    match move_spare(giving, wanting, spare) {
        Ok(()) => Moved {
            notes: vec![
                note(&wanting.label, false, format!("has got {spare}, a spare of {}", giving.label)),
                note(&giving.label, true, format!("has given its spare {spare} to {}", wanting.label)),
            ],
            refused: None,
        },
        Err(why) => {
            let sentence = format!("could not get {spare}, a spare of {}: {why}", giving.label);
            let refused = Some((wanting.key.clone(), spare.to_owned()));
            Moved { notes: vec![note(&wanting.label, true, sentence)], refused }
        }
    }
}

fn connect(control: &Path) -> Result<Client, ClientError> {
    let client = Client::connect(&control.to_string_lossy())?;
    client.set_timeout(Some(LIMIT))?;
    Ok(client)
}

/// Takes a spare out of one array and puts it into another. If that can't have it, it goes back.
fn move_spare(giving: &Grouped, wanting: &Grouped, spare: &str) -> Result<(), String> {
    let words = |error: ClientError| error.to_string();
    // Before the spare is taken: a server that can't be reached would leave it nowhere.
    let mut wants = connect(&wanting.control).map_err(words)?;
    let mut gives = connect(&giving.control).map_err(words)?;
    let _: DeviceResult = gives.call("remove", MemberName::Device(spare.to_owned())).map_err(words)?;
    // It holds the superblock of the array that gave it; a disk that has come under its name does not.
    let spare_of = Some(giving.uuid.clone());
    let add = AddParameters { device: spare.to_owned(), force: false, spare_of };
    let refused = match wants.call::<AddResult>("add", &add) {
        Ok(_) => return Ok(()),
        Err(ClientError::Call(refused)) => refused,
        // It may still be at it, and must not meet the other array there.
        Err(unknown) => {
            return Err(format!("{unknown}; if neither array has it in the end, add it by hand"));
        }
    };
    match gives.call::<AddResult>("add", &add) {
        Ok(_) => Err(format!("{refused}; it is {}'s spare again", giving.label)),
        Err(error) => {
            Err(format!("{refused}; and {} did not take it back: {error}: add it by hand", giving.label))
        }
    }
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
        memory.refused.insert(("a".into(), "/c1".into()));
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
}
