//! What takes time, each on a thread that tells the daemon what came of it.

use std::{
    io,
    path::{Path, PathBuf},
    process::Child,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    thread,
    time::{Duration, Instant},
};

use pinstripe_config::Configuration;
use pinstripe_control::{
    Detail, StopParameters,
    client::{Client, ClientError},
    code,
    maintenance::{Event, EventsParameters, EventsResult},
};
use serde_json::Value;

use super::{Message, phase::Ending};
use crate::{
    assemble::{Outcome, State, Wanted, Way, how, settle, watched},
    list,
    scan::{LIMIT_AGAIN, Served},
    serve::ServerLog,
};

/// How long a call waits for an event. A server that is silent for longer by [`GRACE`] hangs.
const WAIT: Duration = Duration::from_secs(20);
const GRACE: Duration = Duration::from_secs(10);
/// Pause before a server that doesn't answer is asked again.
const RETRY: Duration = Duration::from_millis(500);

/// What is told of a server.
pub enum News {
    /// It answers.
    Answers(PathBuf),
    /// It has not for [`WAIT`] and [`GRACE`], for this reason, and hasn't ended.
    Silent(String),
    /// What has happened to its array, and how much of that is known with this, by its control socket.
    Events { control: PathBuf, heard: Heard, events: Vec<Event> },
    /// It has ended.
    Ended(Ending),
}

/// A thread with a name. It ends the process if it panics, as every thread here does.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

/// Looks for the members of all arrays. With `followed`, the control sockets of the servers that are followed
/// by now, only if a person has started another one.
pub fn look(
    configuration: Configuration,
    generation: u64,
    followed: Option<Vec<PathBuf>>,
    sender: Sender<Message>,
) -> io::Result<()> {
    spawn("look", move || {
        let is_wanted =
            followed.is_none_or(|followed| is_new_by_person(&configuration, &followed, &Served::all().0));
        let found = is_wanted.then(|| watched(&configuration, LIMIT_AGAIN));
        let _ = sender.send(Message::Looked { generation, found });
    })
}

/// Whether one of these servers, which isn't followed, may have an array that only persons start.
fn is_new_by_person(configuration: &Configuration, followed: &[PathBuf], servers: &[Served]) -> bool {
    let entries = || configuration.arrays.iter().filter(|entry| !entry.auto);
    servers.iter().filter(|served| !followed.contains(&served.control)).any(|served| {
        let is_named = |name: &String| served.may_be(name);
        entries().any(|entry| match entry.uuid {
            Some(uuid) => served.is(uuid),
            None => entry.name.as_ref().is_some_and(is_named),
        })
    })
}

/// Starts a server, and waits until it answers or has ended.
pub fn start(run: u64, wanted: Wanted, state: State, sender: Sender<Message>) -> io::Result<()> {
    spawn("start", move || {
        // A replay can take long. What is under way is shown, and not given up.
        let way = Way { timeout: Duration::MAX, dry_run: false, quiet: true, by_units: false, run: false };
        let outcome: Box<Outcome> = Box::new(settle(&wanted, state, way));
        let _ = sender.send(Message::Started { run, outcome });
    })
}

/// What the servers with these control sockets say, each under its key, where they answer.
pub fn details(asked: Vec<(String, PathBuf)>) -> Vec<(String, Detail)> {
    thread::scope(|scope| {
        let all: Vec<_> = asked
            .into_iter()
            .map(|(key, control)| scope.spawn(move || list::ask(&control).ok().map(|detail| (key, detail))))
            .collect();
        // A thread that panics ends the process.
        all.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
    })
}

/// Tells a server to end, whatever clients it has.
pub fn stop(control: PathBuf, log: ServerLog) -> io::Result<()> {
    spawn("stop", move || {
        let stopped = Client::connect(&control.to_string_lossy())
            .and_then(|mut client| client.call::<Value>("stop", StopParameters { force: true }));
        if let Err(error) = stopped {
            log.warn(&format!("was not stopped: {error}"));
        }
    })
}

/// Waits for a process that is of no concern any more, so that it doesn't stay as a zombie.
pub fn reap(mut child: Child) {
    let _ = spawn("reap", move || drop(child.wait()));
}

/// Threads that follow a server, until this is dropped.
pub struct Follower(Arc<AtomicBool>);

impl Drop for Follower {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The last event that is known of a server. The daemon has it, for it outlives connections, followers and
/// entries of the configuration: a follower that is over by then has told nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Heard {
    /// The server's run.
    instance: String,
    number: u64,
}

/// Follows the server with this control socket, of the array `uuid`, where that is known. `child`: its
/// process, if it is ours. `heard`: what is known of the last server there. Of a server that was there before
/// the daemon it tells what happened `since`, in seconds since the epoch.
pub fn follow(
    run: u64,
    (control, uuid): (PathBuf, Option<String>),
    child: Option<Child>,
    (mut heard, since): (Option<Heard>, u64),
    sender: &Sender<Message>,
) -> io::Result<Follower> {
    let over = Arc::new(AtomicBool::new(false));
    let tell = {
        let sender = sender.clone();
        move |news| {
            let _ = sender.send(Message::News { run, news });
        }
    };
    let is_own = child.is_some();
    let since = if is_own { 0 } else { since };
    if let Some(mut child) = child {
        let (tell, control) = (tell.clone(), control.clone());
        spawn("wait", move || {
            let how = child.wait().map_or_else(|error| format!("can't be waited for: {error}"), how);
            tell(News::Ended(ending(&control, &how)));
        })?;
    }
    let is_over = Arc::clone(&over);
    spawn("follow", move || {
        let mut answered = Instant::now();
        let ending = loop {
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            let followed = (control.as_path(), uuid.as_deref());
            match listen(followed, &is_over, &tell, (&mut heard, since), &mut answered) {
                Ok(Listened::Over) => return,
                // Its own server has let the socket go.
                Ok(Listened::Another) => break Ending::Ordered,
                Err(ClientError::NotServed { .. }) => break ending(&control, "is gone"),
                // It says that it is stopping: that is an answer.
                Err(ClientError::Call(error)) if error.code == code::STOPPING => answered = Instant::now(),
                Err(error) if answered.elapsed() >= WAIT + GRACE => tell(News::Silent(error.to_string())),
                // One that ended its connection may have another for us.
                Err(_) => {}
            }
            thread::sleep(RETRY);
        };
        // Of a child its own thread tells.
        if !is_own {
            tell(News::Ended(ending));
        }
    })?;
    Ok(Follower(over))
}

/// A server that ends because it is told to takes its socket with it.
fn ending(control: &Path, how: &str) -> Ending {
    match control.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ending::Ordered,
        _ => Ending::Died(format!("its server {how}")),
    }
}

/// Why no more is told of a server that answers.
enum Listened {
    /// It is wanted no more.
    Over,
    /// It is another array's.
    Another,
}

/// Tells of events until the connection breaks, or it is over. `answered`: when the server last did.
fn listen(
    (control, uuid): (&Path, Option<&str>),
    over: &AtomicBool,
    tell: &impl Fn(News),
    (heard, since): (&mut Option<Heard>, u64),
    answered: &mut Instant,
) -> Result<Listened, ClientError> {
    let mut client = Client::connect(&control.to_string_lossy())?;
    client.set_timeout(Some(WAIT + GRACE))?;
    if let Some(uuid) = uuid {
        // Another array of the name may have taken the socket.
        let detail: Detail = client.call("detail", Value::Null)?;
        if detail.uuid != uuid {
            return Ok(Listened::Another);
        }
    }
    let now: EventsResult = client.call("events", EventsParameters { after: u64::MAX, wait_ms: 0 })?;
    *answered = Instant::now();
    tell(News::Answers(control.to_owned()));
    // All of a server that has come since another one was followed is new.
    let since = if heard.is_none() { since } else { 0 };
    let mut after =
        heard.as_ref().filter(|heard| heard.instance == now.instance).map_or(0, |heard| heard.number);
    let wait_ms = u64::try_from(WAIT.as_millis()).unwrap_or(u64::MAX);
    while !over.load(Ordering::Relaxed) {
        let mut next: EventsResult = client.call("events", EventsParameters { after, wait_ms })?;
        *answered = Instant::now();
        after = next.last;
        // What comes from now on is new, whatever clock it goes by.
        next.events.retain(|event| event.number > now.last || event.time >= since);
        let known = Heard { instance: next.instance, number: after };
        if heard.as_ref() != Some(&known) {
            *heard = Some(known.clone());
            tell(News::Events { control: control.to_owned(), heard: known, events: next.events });
        }
    }
    Ok(Listened::Over)
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc::channel};

    use serde_json::json;

    use super::*;
    use crate::daemon::fake::server;

    #[test]
    fn a_server_that_is_new_is_looked_at_if_only_persons_start_its_array() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pinstripe.toml");
        let uuid = "01234567:89abcdef:01234567:89abcdef";
        let text = format!(
            "[[array]]\nname = 'data'\nauto = false\n[[array]]\nuuid = '{uuid}'\nauto = false\n[[array]]\nname = 'own'\n"
        );
        std::fs::write(&path, text).unwrap();
        let configuration = Configuration::load(Some(&path)).unwrap();
        let served = |name: &str, uuid: &str| {
            let (name, uuid) = (name.to_owned(), uuid.to_owned());
            let detail =
                Detail { full_name: name.clone(), name, uuid, ..crate::daemon::health::tests::array() };
            Served { control: "/c".into(), detail }
        };
        let is_new = |followed: &[PathBuf], name: &str, uuid: &str| {
            is_new_by_person(&configuration, followed, &[served(name, uuid)])
        };
        assert!(is_new(&[], "data", ""));
        assert!(is_new(&["/d".into()], "other", uuid));
        assert!(!is_new(&["/c".into()], "data", ""), "it is followed");
        assert!(!is_new(&[], "own", ""));
        assert!(!is_new(&[], "other", ""));
        assert!(!is_new_by_person(&configuration, &[], &[]));
    }

    #[test]
    fn a_server_that_says_that_it_is_stopping_is_not_silent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let (asked, asks) = channel();
        server(&path, move |_| {
            let _ = asked.send(());
            Some(json!({ "error": { "code": code::STOPPING, "message": "the server is stopping" } }))
        });
        let (sender, messages) = channel();
        let follower = follow(1, (path, None), None, (None, 0), &sender).unwrap();
        for _ in 0..3 {
            asks.recv_timeout(Duration::from_secs(30)).unwrap();
        }
        drop(follower);
        let told = messages.try_iter().filter(|message| matches!(message, Message::News { .. })).count();
        assert_eq!(told, 0);
    }

    #[test]
    fn the_server_of_another_array_that_has_taken_the_socket_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        server(&path, |call| {
            let result = match call["method"].as_str().unwrap() {
                "detail" => json!(crate::daemon::health::tests::array()),
                _ => json!({ "instance": "", "last": 0, "events": [] }),
            };
            Some(json!({ "result": result }))
        });
        for (uuid, is_it) in [("", true), ("another", false)] {
            let (sender, messages) = channel();
            let known = (path.clone(), Some(uuid.to_owned()));
            let _follower = follow(1, known, None, (None, 0), &sender).unwrap();
            let Ok(Message::News { news, .. }) = messages.recv_timeout(Duration::from_secs(30)) else {
                panic!("nothing is told")
            };
            match news {
                News::Answers(_) => assert!(is_it),
                News::Ended(ending) => assert_eq!((ending, is_it), (Ending::Ordered, false)),
                _ => panic!("{uuid}"),
            }
        }
    }

    /// The numbers of the first events that are told of a server, which has events 1 to 3 of the times 10, 20
    /// and 30.
    fn told(path: &Path, heard: Option<Heard>, since: u64, count: usize) -> Vec<u64> {
        let (sender, messages) = channel();
        let follower = follow(1, (path.to_owned(), None), None, (heard, since), &sender).unwrap();
        let numbers_of = |message| match message {
            Message::News { news: News::Events { heard, events, .. }, .. } => {
                assert_eq!(heard.number, 3);
                events.into_iter().map(|event| event.number).collect()
            }
            _ => Vec::new(),
        };
        let within = Duration::from_secs(30);
        let mut all = std::iter::from_fn(|| messages.recv_timeout(within).ok());
        let mut numbers = Vec::new();
        while numbers.len() < count {
            numbers.extend(numbers_of(all.next().unwrap()));
        }
        thread::sleep(Duration::from_millis(200));
        drop(follower);
        numbers.extend(messages.try_iter().flat_map(numbers_of));
        numbers
    }

    #[test]
    fn no_event_is_lost_between_connections_and_none_is_told_twice() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let instance = Arc::new(Mutex::new("one"));
        let own = Arc::clone(&instance);
        server(&path, move |call| {
            let after = call["params"]["after"].as_u64().unwrap();
            let events = (1..=3).filter(|number| *number > after).map(|number| {
                json!({ "number": number, "time": 10 * number, "event": "Fail", "device": null, "alarming": true,
                    "message": "" })
            });
            let events: Vec<Value> = events.collect();
            if events.is_empty() && call["params"]["wait_ms"] != 0 {
                thread::sleep(Duration::from_millis(20));
            }
            Some(json!({ "result": { "instance": *own.lock().unwrap(), "last": 3, "events": events } }))
        });
        let knows = |number| Some(Heard { instance: "one".to_owned(), number });
        assert_eq!(told(&path, None, 20, 2), [2, 3], "1 happened before the daemon began");
        assert_eq!(told(&path, knows(3), 20, 0), [0; 0], "it is the same server");
        assert_eq!(told(&path, knows(1), 40, 2), [2, 3], "the connection was cut");
        *instance.lock().unwrap() = "two";
        assert_eq!(told(&path, knows(3), 40, 3), [1, 2, 3], "another server");
    }
}
