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
    time::Duration,
};

use pinstripe_config::Configuration;
use pinstripe_control::{
    Detail, StopParameters,
    client::{Client, ClientError},
    maintenance::{Event, EventsParameters, EventsResult},
};
use serde_json::Value;

use super::{Message, phase::Ending};
use crate::{
    assemble::{Outcome, State, Wanted, Way, how, settle, wanted},
    command_line::Which,
    list,
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
    /// It doesn't, for this reason, and hasn't ended.
    Silent(String),
    /// Something has happened to its array.
    Event(Event),
    /// It has ended.
    Ended(Ending),
}

/// A thread with a name. It ends the process if it panics, as every thread here does.
pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

/// Looks for the members of all arrays.
pub fn look(configuration: Configuration, generation: u64, sender: Sender<Message>) -> io::Result<()> {
    spawn("look", move || {
        let all = Which { scan: true, uuid: None, name: None };
        let found = wanted(&configuration, &all).map_err(|failure| failure.sentence().to_owned());
        let _ = sender.send(Message::Looked { generation, found });
    })
}

/// Starts a server, and waits until it answers or has ended.
pub fn start(key: String, run: u64, wanted: Wanted, state: State, sender: Sender<Message>) -> io::Result<()> {
    spawn("start", move || {
        // A replay can take long. What is under way is shown, and not given up.
        let way = Way { timeout: Duration::MAX, dry_run: false, quiet: true };
        let outcome: Box<Outcome> = Box::new(settle(&wanted, state, way));
        let _ = sender.send(Message::Started { key, run, outcome });
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

/// Follows the server with this control socket. `child`: its process, if it is ours.
pub fn follow(
    key: &str,
    run: u64,
    control: PathBuf,
    child: Option<Child>,
    sender: &Sender<Message>,
) -> io::Result<Follower> {
    let over = Arc::new(AtomicBool::new(false));
    let tell = {
        let (key, sender) = (key.to_owned(), sender.clone());
        move |news| {
            let _ = sender.send(Message::News { key: key.clone(), run, news });
        }
    };
    let is_own = child.is_some();
    if let Some(mut child) = child {
        let (tell, control) = (tell.clone(), control.clone());
        spawn("wait", move || {
            let how = child.wait().map_or_else(|error| format!("can't be waited for: {error}"), how);
            tell(News::Ended(ending(&control, &how)));
        })?;
    }
    let is_over = Arc::clone(&over);
    spawn("follow", move || {
        let gone = loop {
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            match listen(&control, &is_over, &tell) {
                Ok(()) => return,
                // One that ended its connection may have another for us.
                Err(ClientError::Ended { .. }) => {}
                Err(ClientError::NotServed { .. }) => break true,
                Err(error) => tell(News::Silent(error.to_string())),
            }
            thread::sleep(RETRY);
        };
        if gone && !is_own {
            tell(News::Ended(ending(&control, "is gone")));
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

/// Tells of events until the connection breaks, or it is over.
fn listen(control: &Path, over: &AtomicBool, tell: &impl Fn(News)) -> Result<(), ClientError> {
    let mut client = Client::connect(&control.to_string_lossy())?;
    client.set_timeout(Some(WAIT + GRACE))?;
    let mut known: EventsResult = client.call("events", EventsParameters { after: u64::MAX, wait_ms: 0 })?;
    tell(News::Answers(control.to_owned()));
    let wait_ms = u64::try_from(WAIT.as_millis()).unwrap_or(u64::MAX);
    while !over.load(Ordering::Relaxed) {
        known = client.call("events", EventsParameters { after: known.last, wait_ms })?;
        known.events.drain(..).map(News::Event).for_each(tell);
    }
    Ok(())
}
