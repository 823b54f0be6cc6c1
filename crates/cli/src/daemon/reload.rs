//! What a new configuration changes for each array.
//!
//! The daemon starts no server anew: that would take the array from its clients. So an option counts for a
//! server that runs only if the server takes it over its control socket.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use pinstripe_config::{Array, Configuration, Setting, Settings, Target, Value};
use pinstripe_control::{
    Detail, JournalModeParameters, Version,
    client::{Client, ClientError},
    daemon::{Change, Effect},
    limit::{BURST_SECONDS, LimitParameters},
    maintenance::SyncParameters,
    size::ByteSize,
};
use pinstripe_engine::options::{JournalMode, SyncSpeed};
use pinstripe_md::level::Level;

use crate::configuration::units;

/// How long a server may take to answer.
const LIMIT: Duration = Duration::from_secs(5);

/// What options of the daemon are said to be of.
const DAEMON: &str = "[daemon]";

/// A change, and how it can count at once.
#[derive(Debug, PartialEq, Eq)]
pub struct Planned {
    /// The array's [`Array::identity`], or what no array has.
    key: String,
    change: Change,
    live: Option<Live>,
}

/// What a running server takes.
#[derive(Debug, PartialEq, Eq)]
enum Live {
    /// The limits of the sync speed, of which each holds the other in bounds.
    Speed {
        min_kib: u64,
        max_kib: u64,
    },
    JournalMode(String),
    /// All limits of the clients together.
    Limit(LimitParameters),
}

impl Live {
    /// Whether an array in this state takes it. What none of its kind has may stand in `[defaults]`, and one
    /// that isn't whole is written through its journal, as at a start.
    fn is_for(&self, detail: &Detail) -> bool {
        match self {
            Self::Speed { .. } => detail.level != Level::Raid0.name(),
            Self::JournalMode(mode) => {
                detail.journal.as_ref().is_some_and(|journal| !journal.failed)
                    && !(detail.degraded && *mode == JournalMode::WriteBack.name())
            }
            Self::Limit(_) => true,
        }
    }
}

/// From one configuration to another. `starts`: whether the daemon starts servers. Pure.
pub fn changes(old: &Configuration, new: &Configuration, starts: bool) -> Vec<Planned> {
    let mut all = changes_of_arrays(old, new, starts);
    all.extend(changes_of_daemon(&old.daemon, &new.daemon));
    all.extend(changes_of_targets(&old.targets, &new.targets));
    all
}

fn changes_of_arrays(old: &Configuration, new: &Configuration, starts: bool) -> Vec<Planned> {
    let unit = |array: &Array| units::unit(new, array);
    let by_key = |configuration: &Configuration| -> BTreeMap<String, Array> {
        let started = configuration.arrays.iter().filter(|array| array.auto);
        started.map(|array| (array.identity(), array.clone())).collect()
    };
    let (old, new) = (by_key(old), by_key(new));
    let mut all = Vec::new();
    for (key, array) in &new {
        let plan = |effect, what: String, live| Planned {
            key: key.clone(),
            change: Change { array: array.label(), effect, what },
            live,
        };
        match old.get(key) {
            None if starts => {
                all.push(plan(Effect::New, "is started when its members are here".to_owned(), None));
            }
            None => {
                let what = left_to_manager(unit(array).as_deref());
                all.push(plan(Effect::New, what, None));
            }
            Some(before) => {
                for name in differing(&before.settings, &array.settings) {
                    let now = array.settings.get(name);
                    let what = format!("`{name}` is now {}", in_words(now));
                    let live = live(name, &array.settings);
                    all.push(plan(if live.is_some() { Effect::Live } else { Effect::Restart }, what, live));
                }
                for (name, differs) in [
                    ("members", before.members != array.members),
                    ("log", before.log != array.log),
                    ("weight", before.weight != array.weight),
                ] {
                    if differs {
                        all.push(plan(Effect::Restart, format!("`{name}` is another one now"), None));
                    }
                }
            }
        }
    }
    for (key, array) in old.iter().filter(|(key, _)| !new.contains_key(*key)) {
        let what = "is not configured to be started any more: its server, if it has one, goes on".to_owned();
        let change = Change { array: array.label(), effect: Effect::Removed, what };
        all.push(Planned { key: key.clone(), change, live: None });
    }
    all
}

/// What the daemon was told when it began.
fn changes_of_daemon(old: &Settings, new: &Settings) -> Vec<Planned> {
    let plan = |name: &str| {
        let what = format!("`{name}` is now {}, from the daemon's next start on", in_words(new.get(name)));
        other(DAEMON, Effect::Restart, what)
    };
    differing(old, new).into_iter().map(plan).collect()
}

/// Only systemd starts targets.
fn changes_of_targets(old: &[Target], new: &[Target]) -> Vec<Planned> {
    let plan = |target: &Target, effect, what| other(&format!("the target {}", target.name), effect, what);
    let among = |all: &[Target], target: &Target| all.iter().position(|other| other.name == target.name);
    let of_new = new.iter().filter_map(|target| {
        let unit = units::unit_of_target(&target.name);
        let Some(before) = among(old, target).map(|place| &old[place]) else {
            return Some(plan(target, Effect::New, left_to_manager(Some(&unit))));
        };
        let is_same =
            before.devices == target.devices && differing(&before.settings, &target.settings).is_empty();
        let then = format!("`systemctl daemon-reload`, then `systemctl restart {unit}`");
        let what = format!("is another one now, from its next start on: {then}");
        (!is_same).then(|| plan(target, Effect::Restart, what))
    });
    let gone = old.iter().filter(|target| among(new, target).is_none());
    let what = "is not configured any more: if it runs, it goes on";
    let of_gone = gone.map(|target| plan(target, Effect::Removed, what.to_owned()));
    of_new.chain(of_gone).collect()
}

/// A change of what is no array.
fn other(what_it_is_of: &str, effect: Effect, what: String) -> Planned {
    let change = Change { array: what_it_is_of.to_owned(), effect, what };
    Planned { key: what_it_is_of.to_owned(), change, live: None }
}

fn left_to_manager(unit: Option<&str>) -> String {
    let by_systemd = |unit| format!(", by `systemctl daemon-reload`, then `systemctl start {unit}`");
    format!("is for the service manager to start{}", unit.map(by_systemd).unwrap_or_default())
}

/// What servers that run take of the entries of these arrays, whatever they have now: only a daemon knows
/// what has changed. Arrays without a server are left out.
pub fn told_anew(arrays: Vec<&Array>) -> Vec<Change> {
    at_a_time(arrays, one_told_anew)
}

fn one_told_anew(array: &Array) -> Vec<Change> {
    let options = [
        ("sync-speed-max", "its sync speeds are as the configuration has them"),
        ("limit-iops", "its clients' limits are as the configuration has them"),
        ("journal-mode", "its journal's mode is as the configuration has it"),
    ];
    // A client finds the server by either.
    let key = array.uuid.map_or_else(|| array.label(), |uuid| uuid.to_string());
    let detail = Client::connect(&key).and_then(|mut client| {
        client.set_timeout(Some(LIMIT))?;
        client.call::<Detail>("detail", serde_json::Value::Null)
    });
    if matches!(detail, Err(ClientError::NotServed { .. })) {
        return Vec::new();
    }
    let planned = options.into_iter().filter_map(|(name, what)| {
        let change = Change { array: array.label(), effect: Effect::Live, what: what.to_owned() };
        let live = live(name, &array.settings)?;
        let is_for_it = detail.as_ref().map_or(true, |detail| live.is_for(detail));
        is_for_it.then(|| Planned { key: key.clone(), change, live: Some(live) })
    });
    let planned = planned.collect();
    let hangs = detail.err().filter(|error| matches!(error, ClientError::Silent { .. }));
    carry_out_one(planned, Some(Path::new(&key)), hangs)
}

/// The keys of the arrays that aren't started any more.
pub fn removed(planned: &[Planned]) -> Vec<String> {
    let gone = planned.iter().filter(|planned| planned.change.effect == Effect::Removed);
    gone.map(|planned| planned.key.clone()).collect()
}

fn differing<'a>(old: &'a Settings, new: &'a Settings) -> Vec<&'a str> {
    let value = |settings: &Settings, name: &str| settings.get(name).map(|setting| setting.value.clone());
    let mut names: Vec<&str> = old.keys().chain(new.keys()).copied().collect();
    names.sort_unstable();
    names.dedup();
    names.retain(|name| value(old, name) != value(new, name));
    names
}

fn live(name: &str, settings: &Settings) -> Option<Live> {
    let number = |name: &str, usual: u64| match settings.get(name).map(|setting| &setting.value) {
        Some(Value::Number(number)) => *number,
        Some(Value::Text(size)) => size.parse().map_or(usual, |size: ByteSize| size.0),
        _ => usual,
    };
    match (name, settings.get(name).map(|setting| &setting.value)) {
        ("sync-speed-min" | "sync-speed-max", _) => {
            let usual = SyncSpeed::default();
            let min_kib = number("sync-speed-min", usual.min_kib);
            Some(Live::Speed { min_kib, max_kib: number("sync-speed-max", usual.max_kib) })
        }
        ("limit-iops" | "limit-bandwidth" | "limit-burst", _) => Some(Live::Limit(LimitParameters {
            iops: Some(number("limit-iops", 0)),
            bytes_per_second: Some(number("limit-bandwidth", 0)),
            burst_seconds: Some(
                u32::try_from(number("limit-burst", BURST_SECONDS.into())).unwrap_or(u32::MAX),
            ),
        })),
        ("journal-mode", Some(Value::Text(mode))) => Some(Live::JournalMode(mode.clone())),
        _ => None,
    }
}

fn in_words(setting: Option<&Setting>) -> String {
    match setting.map(|setting| &setting.value) {
        None => "what it is without being said".to_owned(),
        Some(Value::Flag(flag)) => flag.to_string(),
        Some(Value::Number(number)) => number.to_string(),
        Some(Value::Text(text)) => format!("\"{text}\""),
        Some(Value::List(texts)) => texts.join(", "),
    }
}

/// Tells the servers what counts at once, all at a time: one that hangs keeps none of the others waiting.
/// `control` gives the socket of an array's server.
pub fn carry_out(planned: Vec<Planned>, control: impl Fn(&str) -> Option<PathBuf>) -> Vec<Change> {
    let arrays: Vec<Vec<Planned>> = planned.into_iter().fold(Vec::new(), |mut arrays, one| {
        match arrays.last_mut() {
            Some(array) if array[0].key == one.key => array.push(one),
            _ => arrays.push(vec![one]),
        }
        arrays
    });
    let with_control = |array: Vec<Planned>| {
        let control = control(&array[0].key);
        (array, control)
    };
    let arrays: Vec<(Vec<Planned>, Option<PathBuf>)> = arrays.into_iter().map(with_control).collect();
    at_a_time(arrays, |(array, control)| carry_out_one(array, control.as_deref(), None))
}

/// All at a time.
fn at_a_time<T: Send>(all: Vec<T>, carry_out: impl Fn(T) -> Vec<Change> + Sync) -> Vec<Change> {
    let carry_out = &carry_out;
    thread::scope(|scope| {
        let told: Vec<_> = all.into_iter().map(|one| scope.spawn(move || carry_out(one))).collect();
        // A thread that panics ends the process.
        told.into_iter().filter_map(|thread| thread.join().ok()).flatten().collect()
    })
}

/// What is planned for one array. `hangs`: its server was waited for already.
fn carry_out_one(
    planned: Vec<Planned>,
    control: Option<&Path>,
    mut hangs: Option<ClientError>,
) -> Vec<Change> {
    let mut changes = Vec::new();
    for Planned { mut change, live, .. } in planned {
        match (live, control) {
            (Some(live), Some(control)) => {
                // One that hangs is waited for once.
                let is_asked = hangs.is_none();
                let told = hangs.take().map_or_else(|| tell(control, &live), Err);
                if is_asked
                    && matches!(told, Err(ClientError::Silent { .. }))
                    && matches!(live, Live::JournalMode(_))
                    && answers(control)
                {
                    change.what +=
                        ", as soon as its server has written to the members what only the journal has";
                } else if let Err(error) = told {
                    change.effect = Effect::Failed;
                    change.what = format!("{}, but its server did not take it: {error}", change.what);
                    hangs = Some(error).filter(|error| !matches!(error, ClientError::Call(_)));
                }
            }
            (Some(_), None) => change.what += ", from its next start on",
            (None, Some(_)) if change.effect == Effect::Restart => {
                change.what +=
                    ", from its next start on: `pinstripe stop` it, and `pinstripe assemble` it again";
            }
            (None, _) => {}
        }
        changes.push(change);
    }
    changes
}

/// Whether a server that has not answered a call is there, and thus at it.
fn answers(control: &Path) -> bool {
    let version = Client::connect(&control.to_string_lossy()).and_then(|mut client| {
        client.set_timeout(Some(LIMIT))?;
        client.call::<Version>("version", serde_json::Value::Null)
    });
    version.is_ok()
}

fn tell(control: &Path, live: &Live) -> Result<(), ClientError> {
    let mut client = Client::connect(&control.to_string_lossy())?;
    client.set_timeout(Some(LIMIT))?;
    let _: serde_json::Value = match live {
        Live::Speed { min_kib, max_kib } => {
            let (min, max) = (Some(*min_kib), Some(*max_kib));
            let speed =
                SyncParameters { speed_min_kib: min, speed_max_kib: max, ..SyncParameters::default() };
            client.call("sync", speed)?
        }
        Live::Limit(limit) => client.call("limit", limit)?,
        Live::JournalMode(mode) => {
            client.call("journal_mode", JournalModeParameters { journal_mode: mode.clone() })?
        }
    };
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configuration(text: &str) -> Configuration {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pinstripe.toml");
        std::fs::write(&path, text).unwrap();
        Configuration::load(Some(&path)).unwrap()
    }

    fn said(old: &str, new: &str) -> Vec<(Effect, String)> {
        let planned = changes(&configuration(old), &configuration(new), true);
        carry_out(planned, |_| None).into_iter().map(|change| (change.effect, change.what)).collect()
    }

    const DATA: &str = "[[array]]\nname = 'data'\n";

    #[test]
    fn an_array_takes_no_mode_of_a_journal_that_has_failed() {
        let mut detail = crate::daemon::health::tests::array();
        let mode = Live::JournalMode(JournalMode::WriteBack.name().to_owned());
        assert!(!mode.is_for(&detail), "it has none");
        for failed in [false, true] {
            detail.journal = Some(pinstripe_control::detail::Journal {
                device: "/dev/j".to_owned(),
                failed,
                slow: false,
                mode: JournalMode::WriteThrough.name().to_owned(),
                size_bytes: 0,
                used_bytes: 0,
                cached_bytes: 0,
            });
            assert_eq!(mode.is_for(&detail), !failed);
        }
    }

    #[test]
    fn each_option_that_changes_is_told_with_its_effect() {
        assert_eq!(said(DATA, DATA), []);
        let told =
            said(DATA, &format!("[defaults]\nsync-speed-max = 9000\nshards = 2\n{DATA}members = ['/x']\n"));
        let effects: Vec<Effect> = told.iter().map(|(effect, _)| *effect).collect();
        assert_eq!(effects, [Effect::Restart, Effect::Live, Effect::Restart]);
        assert_eq!(told[0].1, "`shards` is now 2");
        assert_eq!(told[1].1, "`sync-speed-max` is now 9000, from its next start on");
        assert_eq!(told[2].1, "`members` is another one now");
        let limited = format!("{DATA}limit-bandwidth = '64M'\nlimit-iops = 500\n");
        let limit = |iops, bytes| {
            let (iops, bytes_per_second) = (Some(iops), Some(bytes));
            Some(Live::Limit(LimitParameters { iops, bytes_per_second, burst_seconds: Some(1) }))
        };
        let to = changes(&configuration(DATA), &configuration(&limited), true);
        assert_eq!(to.iter().map(|change| &change.live).collect::<Vec<_>>(), [&limit(500, 64 << 20); 2]);
        let back = changes(&configuration(&limited), &configuration(DATA), true);
        assert_eq!(back[0].live, limit(0, 0));
        let back =
            changes(&configuration(&format!("{DATA}sync-speed-min = 1\n")), &configuration(DATA), true);
        let SyncSpeed { min_kib, max_kib } = SyncSpeed::default();
        assert_eq!(back[0].live, Some(Live::Speed { min_kib, max_kib }));
    }

    #[test]
    fn servers_that_hang_are_waited_for_once_and_together() {
        let folder = tempfile::tempdir().unwrap();
        let text = |settings: &str| -> String {
            let arrays = ["0", "1", "2", "3"].map(|name| format!("[[array]]\nname = '{name}'\n{settings}"));
            arrays.concat()
        };
        let (old, new) = (text(""), text("sync-speed-max = 9000\nlimit-iops = 5\nlimit-burst = 2\n"));
        let planned = changes(&configuration(&old), &configuration(&new), true);
        let path = |key: &str| folder.path().join(key.replace('/', "_"));
        // They take connections and say nothing.
        let keys: std::collections::BTreeSet<&String> = planned.iter().map(|planned| &planned.key).collect();
        let _silent: Vec<_> =
            keys.iter().map(|key| std::os::unix::net::UnixListener::bind(path(key)).unwrap()).collect();
        let begun = std::time::Instant::now();
        let changes = carry_out(planned, |key| Some(path(key)));
        assert!(begun.elapsed() < LIMIT * 3, "{:?}", begun.elapsed());
        let arrays: Vec<&str> = changes.iter().map(|change| change.array.as_str()).collect();
        assert_eq!(arrays, ["0", "0", "0", "1", "1", "1", "2", "2", "2", "3", "3", "3"]);
        assert!(changes.iter().all(|change| change.effect == Effect::Failed), "{changes:?}");
    }

    #[test]
    fn arrays_that_come_and_go_are_told() {
        let other = format!("{DATA}[[array]]\nname = 'other'\n");
        assert_eq!(said(DATA, &other)[0].0, Effect::New);
        assert_eq!(said(&other, DATA)[0].0, Effect::Removed);
        assert_eq!(said(DATA, &format!("{DATA}auto = false\n"))[0].0, Effect::Removed);
    }

    #[test]
    fn what_the_daemon_leaves_to_a_restart_is_told_too() {
        let target = |more: &str| {
            format!(
                "[[target]]\nname = 'store'\ndevices = ['/dev/x']\nlisten = '127.0.0.1:4420'\nnqn = 'nqn.2026-01.com.example:store'\n{more}"
            )
        };
        let (one, other) = (target(""), target("shards = 2\n"));
        assert_eq!(said(&one, &one), []);
        for (old, new, effect, words) in [
            (DATA, format!("[daemon]\nlog-level = 'debug'\n{DATA}"), Effect::Restart, "next start on"),
            ("", one.clone(), Effect::New, "systemctl start pinstripe-target@store.service"),
            (&one, other, Effect::Restart, "systemctl restart pinstripe-target@store.service"),
            (&one, one.replace("/dev/x", "/dev/y"), Effect::Restart, "daemon-reload"),
            (&one, String::new(), Effect::Removed, "it goes on"),
        ] {
            let told = said(old, &new);
            assert!(told.len() == 1 && told[0].0 == effect && told[0].1.contains(words), "{told:?}");
        }
    }

    #[test]
    fn a_server_that_is_at_what_takes_long_has_not_refused_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        // It answers what asks for its version, and nothing else yet.
        crate::daemon::fake::server(&path, |call| {
            let version = serde_json::json!({ "protocol": 1, "pinstripe": "", "instance": "", "pid": 1 });
            (call["method"] == "version").then(|| serde_json::json!({ "result": version }))
        });
        let new = format!("{DATA}journal-mode = 'write-through'\n");
        let planned = changes(&configuration(DATA), &configuration(&new), true);
        let changes = carry_out(planned, |_| Some(path.clone()));
        assert_eq!((changes.len(), changes[0].effect), (1, Effect::Live), "{changes:?}");
        assert!(changes[0].what.contains("as soon as"), "{changes:?}");
    }
}
