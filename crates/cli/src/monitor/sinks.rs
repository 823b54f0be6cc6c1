//! Where the monitor tells: standard output, a program, the system's log.

use std::{
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use pinstripe_control::{maintenance::Event, text::printable};
use serde_json::json;

use crate::{
    assemble::how,
    command_line::{LogOptions, MonitorArguments},
    failure::Failure,
    log::{self, Entry},
    output,
    serve::severity,
};

/// Where syslogd and journald listen.
const LOG_SOCKET: &str = "/dev/log";
/// RFC 5424, section 6.2.1: the facility "daemon", and the severities "warning" and "informational".
const DAEMON: u8 = 3;
const WARNING: u8 = 4;
const INFORMATIONAL: u8 = 6;
/// How long a program may take for an event. Then it is left alone, and the next event is told.
const PROGRAM_LIMIT: Duration = Duration::from_mins(1);
const PROGRAM_LOOK: Duration = Duration::from_millis(10);

/// See the module.
pub struct Sinks {
    json: bool,
    program: Option<PathBuf>,
    log: Option<SystemLog>,
    /// Whether events are entries of the log, too.
    logs: bool,
    /// One event at a time, from whichever array. What went wrong for good.
    failed: Mutex<Option<Failure>>,
}

impl Sinks {
    /// Opens what is asked for.
    pub fn open(arguments: &MonitorArguments) -> Result<Self, Failure> {
        let log = arguments.syslog.then(|| SystemLog::connect(Path::new(LOG_SOCKET)));
        let log = log.transpose().map_err(|error| {
            Failure::new(format!("can't write to the system's log on {LOG_SOCKET}: {error}"))
        })?;
        let logs = arguments.log != LogOptions::default();
        let (json, program) = (arguments.json, arguments.program.clone());
        Ok(Self { json, program, log, logs, failed: Mutex::new(None) })
    }

    /// Tells of an event of `array`, everywhere.
    pub fn tell(&self, array: &str, event: &Event) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = self.print(array, event) {
            *failed = Some(error);
        }
        if let Some(log) = &self.log
            && let Err(error) = log.write(array, event)
        {
            let why = format!("can't write to the system's log on {}: {error}", log.path.display());
            failed.get_or_insert(Failure::new(why));
        }
        if self.logs {
            log::say(&entry(array, event));
        }
        if let Some(program) = &self.program
            && let Err(error) = run(program, array, event)
        {
            let why = format!("{}: {error}", program.display());
            log::warn(&why);
            failed.get_or_insert(Failure::new(why));
        }
    }

    /// Whether anything could not be told.
    pub fn outcome(&self) -> Result<(), Failure> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take().map_or(Ok(()), Err)
    }

    fn print(&self, array: &str, event: &Event) -> Result<(), Failure> {
        // Without a reader it has nothing to do, if nothing else is told.
        let is_all = self.program.is_none() && self.log.is_none() && !self.logs;
        let print = if is_all { output::print_or_end } else { output::print };
        let time = humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + Duration::from_secs(event.time));
        if self.json {
            let line = json!({
                "time": time.to_string(), "event": event.event, "array": array, "device": event.device,
                "alarming": event.alarming, "message": event.message,
            });
            return print(&format!("{line}\n"));
        }
        let message = printable(&event.message);
        print(&format!("{time} {} {}: {message}\n", event.event, printable(array)))
    }
}

/// An event with its fields.
fn entry<'a>(array: &'a str, event: &'a Event) -> Entry<'a> {
    Entry {
        level: severity(&event.event, event.alarming),
        time: Some(event.time),
        array: Some(array),
        event: Some(&event.event),
        // 0: the monitor itself has found it.
        number: Some(event.number).filter(|number| *number > 0),
        member: event.device.as_deref(),
        message: &event.message,
        ..Entry::default()
    }
}

/// The system's log, which listens at `path`.
struct SystemLog {
    socket: UnixDatagram,
    path: PathBuf,
}

impl SystemLog {
    fn connect(path: &Path) -> std::io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        Ok(Self { socket, path: path.to_owned() })
    }

    /// One datagram, as syslog(3) of the C library sends it. A log that is down for a moment is tried once
    /// more.
    fn write(&self, array: &str, event: &Event) -> std::io::Result<()> {
        let line = log_line(array, event, std::process::id());
        if self.socket.send(line.as_bytes()).is_err() {
            self.socket.connect(&self.path)?;
            self.socket.send(line.as_bytes())?;
        }
        Ok(())
    }
}

fn log_line(array: &str, event: &Event, pid: u32) -> String {
    let priority = DAEMON * 8 + if event.alarming { WARNING } else { INFORMATIONAL };
    let (array, message) = (printable(array), printable(&event.message));
    format!("<{priority}>pinstripe[{pid}]: {} on {array}: {message}", event.event)
}

/// Runs the program as mdadm's monitor does: event, array, and the device if it is about one.
fn run(program: &PathBuf, array: &str, event: &Event) -> std::io::Result<()> {
    let mut command = Command::new(program);
    command.arg(&event.event).arg(array).args(&event.device).stdin(Stdio::null());
    let mut child = command.spawn()?;
    match ended(&mut child)? {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(std::io::Error::other(how(status))),
        None => {
            // Waited for elsewhere, so that it doesn't stay as a zombie when it ends.
            thread::spawn(move || child.wait());
            let seconds = PROGRAM_LIMIT.as_secs();
            Err(std::io::Error::other(format!("it has not ended after {seconds} s and is left alone")))
        }
    }
}

/// How a program has ended; none if it has not in time.
fn ended(child: &mut Child) -> std::io::Result<Option<ExitStatus>> {
    let began = Instant::now();
    while began.elapsed() < PROGRAM_LIMIT {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::sleep(PROGRAM_LOOK);
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fail(message: &str) -> Event {
        Event {
            number: 1,
            time: 0,
            event: "Fail".to_owned(),
            device: Some("/dev/x".to_owned()),
            alarming: true,
            message: message.to_owned(),
        }
    }

    #[test]
    fn a_line_of_the_log_has_its_priority_and_cannot_be_forged_by_a_name() {
        let line = log_line("data\n<0>", &fail("a\nb"), 7);
        assert_eq!(line, "<28>pinstripe[7]: Fail on data\u{fffd}<0>: a\u{fffd}b");
    }

    #[test]
    fn an_event_arrives_in_the_systems_log_even_after_that_was_restarted() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let listen = || {
            let socket = UnixDatagram::bind(&path).unwrap();
            socket.set_read_timeout(Some(Duration::from_mins(1))).unwrap();
            socket
        };
        let received = |socket: &UnixDatagram| {
            let mut bytes = [0; 256];
            let length = socket.recv(&mut bytes).unwrap();
            String::from_utf8(bytes[..length].to_vec()).unwrap()
        };
        let pid = std::process::id();
        let syslogd = listen();
        let log = Some(SystemLog::connect(&path).unwrap());
        let sinks = Sinks { json: false, program: None, log, logs: false, failed: Mutex::new(None) };
        sinks.tell("data", &fail("it is gone"));
        assert_eq!(received(&syslogd), format!("<28>pinstripe[{pid}]: Fail on data: it is gone"));
        drop(syslogd);
        std::fs::remove_file(&path).unwrap();
        sinks.tell("data", &fail("the log is gone"));
        let syslogd = listen();
        sinks.tell("data", &Event { alarming: false, ..fail("again") });
        assert_eq!(received(&syslogd), format!("<30>pinstripe[{pid}]: Fail on data: again"));
    }

    #[test]
    fn a_program_or_a_log_that_could_not_be_told_is_no_success() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let syslogd = UnixDatagram::bind(&path).unwrap();
        let outcome = |program: &str, log| {
            let (json, logs, failed) = (false, false, Mutex::new(None));
            let sinks = Sinks { json, program: Some(program.into()), log, logs, failed };
            sinks.tell("data", &fail("it is gone"));
            sinks.outcome().map_err(|failure| failure.sentence().to_owned())
        };
        let log = || Some(SystemLog::connect(&path).unwrap());
        assert_eq!(outcome("true", log()), Ok(()));
        assert_eq!(outcome("false", log()), Err("false: ended with status 1".to_owned()));
        assert!(outcome("/nowhere/program", log()).is_err());
        let closed = log();
        drop(syslogd);
        assert!(outcome("true", closed).is_err());
    }
}
