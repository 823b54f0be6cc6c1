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
    assemble::{Outcome, State, Wanted, Way, how, settle, wanted},
    command_line::Which,
    list,
    scan::LIMIT_AGAIN,
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
        let found =
            wanted(&configuration, &all, LIMIT_AGAIN).map_err(|failure| failure.sentence().to_owned());
        let _ = sender.send(Message::Looked { generation, found });
    })
}

/// Starts a server, and waits until it answers or has ended.
pub fn start(key: String, run: u64, wanted: Wanted, state: State, sender: Sender<Message>) -> io::Result<()> {
    spawn("start", move || {
        // A replay can take long. What is under way is shown, and not given up.
        let way = Way { timeout: Duration::MAX, dry_run: false, quiet: true, by_units: false };
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
        let mut answered = Instant::now();
        let gone = loop {
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            match listen(&control, &is_over, &tell, &mut answered) {
                Ok(()) => return,
                Err(ClientError::NotServed { .. }) => break true,
                // It says that it is stopping: that is an answer.
                Err(ClientError::Call(error)) if error.code == code::STOPPING => answered = Instant::now(),
                Err(error) if answered.elapsed() >= WAIT + GRACE => tell(News::Silent(error.to_string())),
                // One that ended its connection may have another for us.
                Err(_) => {}
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

/// Tells of events until the connection breaks, or it is over. `answered`: when the server last did.
fn listen(
    control: &Path,
    over: &AtomicBool,
    tell: &impl Fn(News),
    answered: &mut Instant,
) -> Result<(), ClientError> {
    let mut client = Client::connect(&control.to_string_lossy())?;
    client.set_timeout(Some(WAIT + GRACE))?;
    let mut known: EventsResult = client.call("events", EventsParameters { after: u64::MAX, wait_ms: 0 })?;
    *answered = Instant::now();
    tell(News::Answers(control.to_owned()));
    let wait_ms = u64::try_from(WAIT.as_millis()).unwrap_or(u64::MAX);
    while !over.load(Ordering::Relaxed) {
        known = client.call("events", EventsParameters { after: known.last, wait_ms })?;
        *answered = Instant::now();
        known.events.drain(..).map(News::Event).for_each(tell);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead, BufReader, Write},
        os::unix::net::UnixListener,
        sync::mpsc::channel,
    };

    use serde_json::json;

    use super::*;

    /// A server that answers every call so, under the call's number.
    fn server(path: &Path, answer: impl Fn() -> Value + Send + 'static) {
        let listener = UnixListener::bind(path).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                while let Some(Ok(line)) = lines.next() {
                    let call: Value = serde_json::from_str(&line).unwrap();
                    let mut answer = answer();
                    (answer["jsonrpc"], answer["id"]) = ("2.0".into(), call["id"].clone());
                    if writeln!(stream, "{answer}").is_err() {
                        break;
                    }
                }
            }
        });
    }

    #[test]
    fn a_server_that_says_that_it_is_stopping_is_not_silent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let (asked, asks) = channel();
        server(&path, move || {
            let _ = asked.send(());
            json!({ "error": { "code": code::STOPPING, "message": "the server is stopping" } })
        });
        let (sender, messages) = channel();
        let follower = follow("data", 1, path, None, &sender).unwrap();
        for _ in 0..3 {
            asks.recv_timeout(Duration::from_secs(30)).unwrap();
        }
        drop(follower);
        let told = messages.try_iter().filter(|message| matches!(message, Message::News { .. })).count();
        assert_eq!(told, 0);
    }
}
