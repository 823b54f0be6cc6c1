//! The process that sends an alert for a daemon that must not start mail programs itself.
//!
//! Many mail programs put mail into their spool by a set-group-ID file. That has no effect in what the
//! daemon's unit starts (`NoNewPrivileges=`). So the package has a socket; systemd starts
//! `pinstripe daemon --send-alert` with each connection to it as standard input and output.
//!
//! ```text
//!   the daemon -- {"way", "tell"} --> pinstripe-alert.socket --> pinstripe-alert@N.service -- sendmail
//!              <----------- {"sent"} or {"failed"} ----------------
//! ```
//!
//! What is run and where mail goes is read from the configuration there, not taken from the daemon: one that
//! was broken into can have nothing else run.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant, UNIX_EPOCH},
};

use pinstripe_config::{Alerts, Configuration};
use serde::{Deserialize, Serialize};

use super::{
    alerts::{Open, Subject, Tell},
    ways::{SEND_LIMIT, Unsent, Way},
};
use crate::{command_line::DaemonArguments, failure::Failure, output};

/// Longer than the program may take.
const ANSWER_LIMIT: Duration = SEND_LIMIT.saturating_add(Duration::from_secs(15));
/// How often it is seen whether the daemon ends.
const LOOK: Duration = Duration::from_millis(100);
/// An alert, and what a program says of it, are shorter.
const BYTES_MAX: u64 = 1 << 20;

/// What is asked for.
#[derive(Serialize, Deserialize)]
struct Request {
    way: Way,
    tell: Tell,
}

/// What came of it.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Sent,
    Failed(String),
}

/// What a daemon does that only sends: the alert on standard input, or one of its own.
pub fn run(arguments: &DaemonArguments) -> Result<(), Failure> {
    let given = arguments.configuration.config.as_deref();
    if arguments.send_alert { answer(given) } else { test(given, arguments.alerts_by.as_deref()) }
}

/// Sends an alert; `by`: through what listens on this socket, where a program is to be run. `over`: the
/// daemon ends.
pub fn send(
    by: Option<&Path>,
    way: Way,
    alerts: &Alerts,
    tell: &Tell,
    over: &AtomicBool,
) -> Result<(), Unsent> {
    match by {
        // A webhook needs no right of its own.
        Some(socket) if way != Way::Webhook => ask(socket, way, tell, over),
        _ => way.send(alerts, tell, over),
    }
}

/// `pinstripe daemon --test-alert`: an alert by each way that is configured, as the daemon would send it.
fn test(given: Option<&Path>, by: Option<&Path>) -> Result<(), Failure> {
    let alerts = Configuration::alerts(given);
    let ways: Vec<Way> = Way::ALL.into_iter().filter(|way| way.is_configured(&alerts)).collect();
    if ways.is_empty() {
        return Err(Failure::new(
            "nothing is told: the configuration has no program, mail or webhook in [alerts]",
        ));
    }
    let message =
        "this is a test alert, sent by `pinstripe daemon --test-alert`: nothing is wrong".to_owned();
    let since = UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
    let tell = Tell {
        subject: Subject { array: "test".to_owned(), kind: "Test".to_owned(), device: String::new() },
        open: Open { since, message, uuid: None },
        cleared: false,
    };
    let mut failed = Vec::new();
    for way in ways {
        let words = way.in_words(&alerts);
        match send(by, way, &alerts, &tell, &AtomicBool::new(false)) {
            Ok(()) => output::print(&format!("sent by {words}\n"))?,
            Err(Unsent::Failed(why)) => failed.push(format!("by {words}: {why}")),
            Err(Unsent::Over) => failed.push(format!("by {words}: it was ended")),
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(Failure::new(format!("the test alert could not be sent {}", failed.join("; "))))
}

/// Has what listens on a socket send an alert. `over`: the daemon ends.
fn ask(socket: &Path, way: Way, tell: &Tell, over: &AtomicBool) -> Result<(), Unsent> {
    let failed = |error: io::Error| Unsent::Failed(format!("{}: {error}", socket.display()));
    let mut stream = UnixStream::connect(socket).map_err(failed)?;
    let request = serde_json::to_vec(&Request { way, tell: tell.clone() }).unwrap_or_default();
    stream
        .set_write_timeout(Some(ANSWER_LIMIT))
        .and_then(|()| stream.write_all(&request))
        .and_then(|()| stream.shutdown(Shutdown::Write))
        .and_then(|()| stream.set_read_timeout(Some(LOOK)))
        .map_err(failed)?;
    let begun = Instant::now();
    let mut text = Vec::new();
    let mut answers = stream.take(BYTES_MAX);
    // What was read stays in `text` when it is looked whether to go on.
    while let Err(error) = answers.read_to_end(&mut text) {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut if over.load(Ordering::Relaxed) => {
                return Err(Unsent::Over);
            }
            ErrorKind::WouldBlock | ErrorKind::TimedOut if begun.elapsed() < ANSWER_LIMIT => {}
            _ => return Err(failed(error)),
        }
    }
    match serde_json::from_slice(&text) {
        Ok(Answer::Sent) => Ok(()),
        Ok(Answer::Failed(why)) => Err(Unsent::Failed(why)),
        Err(_) => {
            Err(Unsent::Failed(format!("{} has ended without an answer: see its log", socket.display())))
        }
    }
}

/// `pinstripe daemon --send-alert`: sends the alert on standard input as the configuration says.
fn answer(given: Option<&Path>) -> Result<(), Failure> {
    let mut text = Vec::new();
    io::stdin().lock().take(BYTES_MAX).read_to_end(&mut text)?;
    let request: Request = serde_json::from_slice(&text)
        .map_err(|error| Failure::new(format!("standard input is no alert of a daemon's: {error}")))?;
    output::print_json(&sent(given, &request))
}

fn sent(given: Option<&Path>, request: &Request) -> Answer {
    let alerts = Configuration::alerts(given);
    // It is not ended with the daemon: what is under way is done.
    match request.way.send(&alerts, &request.tell, &AtomicBool::new(false)) {
        Ok(()) => Answer::Sent,
        Err(Unsent::Failed(why)) => Answer::Failed(why),
        Err(Unsent::Over) => Answer::Failed("it was ended".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, thread};

    use super::*;
    use crate::{configuration, daemon::ways::tests::write_program};

    fn tell() -> Tell {
        let subject = Subject { array: "data".into(), kind: "Degraded".into(), device: String::new() };
        Tell { subject, open: Open { since: 5, message: "slot 1".into(), uuid: None }, cleared: false }
    }

    /// What comes of it where the other end answers so, after it has read the alert.
    fn asked(answer: impl FnOnce(Request, &mut UnixStream) + Send + 'static) -> Result<(), Unsent> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("alert.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let other = thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut text = Vec::new();
            stream.read_to_end(&mut text).unwrap();
            answer(serde_json::from_slice(&text).unwrap(), &mut stream);
        });
        let outcome = ask(&path, Way::Mail, &tell(), &AtomicBool::new(false));
        other.join().unwrap();
        outcome
    }

    #[test]
    fn an_alert_arrives_as_it_is_and_what_became_of_it_comes_back() {
        let sent = asked(|request, stream| {
            assert_eq!((request.way, request.tell), (Way::Mail, tell()));
            // Later than it is looked for the first time, and in two parts.
            thread::sleep(LOOK * 3);
            stream.write_all(b"\"se").unwrap();
            thread::sleep(LOOK * 3);
            stream.write_all(b"nt\"\n").unwrap();
        });
        assert_eq!(sent, Ok(()));
        let failed = asked(|_, stream| stream.write_all(b"{\"failed\":\"no such user\"}").unwrap());
        assert_eq!(failed, Err(Unsent::Failed("no such user".to_owned())));
        let Err(Unsent::Failed(why)) = asked(|_, _| {}) else { panic!("nothing was said") };
        assert!(why.ends_with("has ended without an answer: see its log"), "{why}");
    }

    #[test]
    fn a_daemon_that_ends_waits_for_no_answer_and_nothing_that_listens_is_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("alert.sock");
        let Err(Unsent::Failed(why)) = ask(&path, Way::Mail, &tell(), &AtomicBool::new(false)) else {
            panic!("nothing listens")
        };
        assert!(why.contains("alert.sock: "), "{why}");
        let _silent = UnixListener::bind(&path).unwrap();
        assert_eq!(ask(&path, Way::Mail, &tell(), &AtomicBool::new(true)), Err(Unsent::Over));
    }

    #[test]
    fn what_is_run_stands_in_the_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let program = path("program");
        write_program(&program, &format!("#!/bin/sh\necho \"$1 $2 $3\" >{}\n", path("out").display()));
        let main = path("pinstripe.toml");
        std::fs::write(&main, format!("[alerts]\nprogram = '{}'\n", program.display())).unwrap();
        let ask = |way| sent(Some(&main), &Request { way, tell: tell() });
        assert!(matches!(ask(Way::Program), Answer::Sent));
        assert_eq!(std::fs::read_to_string(path("out")).unwrap(), "raised Degraded data\n");
        assert!(matches!(ask(Way::Mail), Answer::Failed(why) if why == "nothing says where to"));
        // What is wrong elsewhere keeps no alert back.
        let wrong =
            format!("[alerts]\nprogram = '{}'\nmails = 'x'\n[[array]]\nshard = 2\n", program.display());
        std::fs::write(&main, wrong).unwrap();
        std::fs::remove_file(path("out")).unwrap();
        assert!(configuration::load(Some(&main)).is_err());
        assert!(matches!(ask(Way::Program), Answer::Sent) && path("out").exists());
    }
}
