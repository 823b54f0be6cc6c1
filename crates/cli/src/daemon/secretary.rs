//! Keeps the history of events, and sends alerts: each on a thread of its own, for disks and mail servers can
//! hang, and a mail server that does is no reason to lose events.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    thread,
    time::{Duration, Instant},
};

use pinstripe_config::Alerts;
use pinstripe_control::text::printable;
use serde_json::{Value, json};

use super::{alerts::Tell, threads};
use crate::{
    history::{HISTORY, HISTORY_BEFORE, Told},
    serve::ServerLog,
};

/// The alerts that aren't over.
pub const ALERTS: &str = "alerts.json";
/// Bytes of the history's file before the next one begins.
const HISTORY_BYTES_MAX: u64 = 4 << 20;
/// How long a program may take to send an alert.
const SEND_LIMIT: Duration = Duration::from_mins(1);
const SEND_LOOK: Duration = Duration::from_millis(20);
/// Pauses after a failure; then the alert is given up.
const PAUSES: [Duration; 6] = [
    Duration::from_secs(10),
    Duration::from_mins(1),
    Duration::from_mins(5),
    Duration::from_mins(30),
    Duration::from_hours(2),
    Duration::from_hours(6),
];
/// Alerts that wait to be sent again.
const WAITING_MAX: usize = 1000;
const TICK: Duration = Duration::from_secs(1);

/// What it is asked to do.
pub enum Errand {
    /// Keep an event in the history.
    Keep(Told),
    /// Send an alert.
    Send(Tell, Alerts),
    /// Keep the alerts that aren't over.
    Book(Vec<u8>),
    /// Say when all before this is done.
    Done(Sender<()>),
}

/// The ends of the threads. They are never waited for.
#[derive(Clone)]
pub struct Secretary {
    history: Sender<Errand>,
    mail: Sender<Errand>,
}

impl Secretary {
    /// With the folder for what outlives the daemon.
    pub fn new(folder: &Path, log: &ServerLog) -> io::Result<Self> {
        let begin = |name| -> io::Result<Sender<Errand>> {
            let (sender, errands) = channel();
            let office = Office::new(folder.to_owned(), log.clone());
            threads::spawn(name, move || office.work(&errands))?;
            Ok(sender)
        };
        Ok(Self { history: begin("history")?, mail: begin("mail")? })
    }

    pub fn ask(&self, errand: Errand) {
        let to = if matches!(errand, Errand::Keep(_)) { &self.history } else { &self.mail };
        let _ = to.send(errand);
    }

    /// Waits until what was asked for is done, but not for ever.
    pub fn finish(&self, limit: Duration) {
        let (done, wait) = channel();
        for to in [&self.history, &self.mail] {
            let _ = to.send(Errand::Done(done.clone()));
        }
        drop(done);
        let end = Instant::now() + limit;
        // Until both have said so.
        while wait.recv_timeout(end.saturating_duration_since(Instant::now())).is_ok() {}
    }
}

/// An alert that could not be sent.
struct Delivery {
    way: Way,
    tell: Tell,
    tries: usize,
    not_before: Instant,
}

/// How an alert is sent.
#[derive(Clone, Debug)]
enum Way {
    Program(PathBuf),
    Mail(String),
    Webhook(String),
}

/// What one of the threads has.
struct Office {
    folder: PathBuf,
    log: ServerLog,
    /// It was said that nothing can be kept.
    complained: bool,
    waiting: Vec<Delivery>,
}

impl Office {
    fn new(folder: PathBuf, log: ServerLog) -> Self {
        Self { folder, log, complained: false, waiting: Vec::new() }
    }

    fn work(mut self, errands: &Receiver<Errand>) {
        loop {
            match errands.recv_timeout(TICK) {
                Ok(errand) => self.carry_out(errand),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.send_again();
        }
    }

    fn carry_out(&mut self, errand: Errand) {
        match errand {
            Errand::Keep(told) => {
                let kept = self.keep(&told);
                self.complain(kept);
            }
            Errand::Book(text) => {
                let kept = replace(&self.folder, ALERTS, &text);
                self.complain(kept);
            }
            Errand::Send(tell, alerts) => {
                for way in ways(&alerts) {
                    self.send(Delivery { way, tell: tell.clone(), tries: 0, not_before: Instant::now() });
                }
            }
            Errand::Done(done) => {
                let _ = done.send(());
            }
        }
    }

    /// Says once that something can't be kept.
    fn complain(&mut self, kept: io::Result<()>) {
        match kept {
            Ok(()) => self.complained = false,
            Err(error) if !self.complained => {
                self.complained = true;
                let folder = self.folder.display();
                self.log.warn(&format!("events and alerts can't be kept in {folder}: {error}"));
            }
            Err(_) => {}
        }
    }

    fn keep(&self, told: &Told) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        let path = self.folder.join(HISTORY);
        if path.metadata().is_ok_and(|metadata| metadata.len() >= HISTORY_BYTES_MAX) {
            fs::rename(&path, self.folder.join(HISTORY_BEFORE))?;
        }
        let line = serde_json::to_string(told)?;
        let mut options = fs::File::options();
        let mut file = options.append(true).create(true).mode(0o640).open(path)?;
        // In one piece: what reads meanwhile sees whole lines.
        file.write_all(format!("{line}\n").as_bytes())
    }

    fn send_again(&mut self) {
        let now = Instant::now();
        while let Some(index) = self.waiting.iter().position(|delivery| now >= delivery.not_before) {
            let delivery = self.waiting.remove(index);
            self.send(delivery);
        }
    }

    fn send(&mut self, mut delivery: Delivery) {
        let Err(error) = delivery.way.send(&delivery.tell) else { return };
        let way = delivery.way.in_words();
        let pause = PAUSES.get(delivery.tries).filter(|_| self.waiting.len() < WAITING_MAX);
        let Some(pause) = pause else {
            return self.log.warn(&format!("an alert could not be sent by {way}, and is given up: {error}"));
        };
        if delivery.tries == 0 {
            self.log.warn(&format!("an alert could not be sent by {way}, and is sent again later: {error}"));
        }
        delivery.tries += 1;
        delivery.not_before = Instant::now() + *pause;
        self.waiting.push(delivery);
    }
}

/// A file of the folder, whole or not at all.
fn replace(folder: &Path, name: &str, text: &[u8]) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text)?;
    file.as_file().sync_all()?;
    file.persist(folder.join(name)).map_err(|error| error.error)?;
    Ok(())
}

fn ways(alerts: &Alerts) -> Vec<Way> {
    let program = alerts.program.iter().map(|path| Way::Program(path.clone()));
    let mail = alerts.mail.iter().map(|address| Way::Mail(address.clone()));
    let webhook = alerts.webhook.iter().map(|url| Way::Webhook(url.clone()));
    program.chain(mail).chain(webhook).collect()
}

impl Way {
    fn in_words(&self) -> String {
        match self {
            Self::Program(path) => path.display().to_string(),
            Self::Mail(address) => format!("mail to {address}"),
            // A URL may have a secret in its path.
            Self::Webhook(url) => {
                let host = url.split('/').nth(2).unwrap_or_default();
                format!("the webhook of {}", host.rsplit('@').next().unwrap_or_default())
            }
        }
    }

    fn send(&self, tell: &Tell) -> Result<(), String> {
        let (mut command, input) = match self {
            Self::Program(path) => {
                let mut program = Command::new(path);
                let state = if tell.cleared { "cleared" } else { "raised" };
                program.args([state, &tell.subject.kind, &tell.subject.array, &tell.subject.device]);
                (program, value(tell).to_string())
            }
            Self::Mail(address) => {
                let mut sendmail = Command::new("/usr/sbin/sendmail");
                // The address stands in the text, so that none is taken for an option.
                sendmail.args(["-i", "-t"]);
                (sendmail, mail(address, tell))
            }
            Self::Webhook(url) => {
                let mut curl = Command::new("curl");
                curl.args([
                    "--silent",
                    "--show-error",
                    "--fail",
                    "--max-time",
                    "30",
                    "--proto",
                    "=http,https",
                ]);
                curl.args([
                    "--header",
                    "Content-Type: application/json",
                    "--data-binary",
                    "@-",
                    "--output",
                    "/dev/null",
                ]);
                curl.args(["--url", url]);
                (curl, value(tell).to_string())
            }
        };
        run(&mut command, &input)
    }
}

/// Runs a program with this input, and says why it failed.
fn run(command: &mut Command, input: &str) -> Result<(), String> {
    let words = |error: io::Error| format!("{}: {error}", command.get_program().display());
    // A file: a program that reads nothing keeps none waiting, and what it says may be of any length.
    let mut text = tempfile::tempfile().map_err(words)?;
    let mut said = tempfile::tempfile().map_err(words)?;
    text.write_all(input.as_bytes()).and_then(|()| io::Seek::rewind(&mut text)).map_err(words)?;
    let errors = said.try_clone().map_err(words)?;
    let name = command.get_program().display().to_string();
    command.stdin(text).stdout(Stdio::null()).stderr(errors);
    let mut child = command.spawn().map_err(|error| format!("{name}: {error}"))?;
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => {
                let mut text = String::new();
                let _ = io::Seek::rewind(&mut said)
                    .and_then(|()| io::Read::read_to_string(&mut io::Read::take(&said, 1024), &mut text));
                return Err(format!("{}: {}", crate::assemble::how(status), text.trim()));
            }
            Err(error) => return Err(format!("{name}: {error}")),
            Ok(None) if begun.elapsed() >= SEND_LIMIT => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("{name} has not ended after {} seconds", SEND_LIMIT.as_secs()));
            }
            Ok(None) => thread::sleep(SEND_LOOK),
        }
    }
}

/// This machine's name.
pub fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// For programs.
fn value(tell: &Tell) -> Value {
    let Tell { subject, open, cleared } = tell;
    json!({
        "host": host(), "array": subject.array, "alert": subject.kind, "device": subject.device,
        "state": if *cleared { "cleared" } else { "raised" }, "since": open.since, "message": open.message,
    })
}

fn mail(address: &str, tell: &Tell) -> String {
    let Tell { subject, open, cleared } = tell;
    let over = if *cleared { "over: " } else { "" };
    let line = |text: &str| printable(text);
    format!(
        "To: {}\nSubject: pinstripe on {}: {over}{} of {}\nMIME-Version: 1.0\nContent-Type: text/plain; charset=utf-8\n\
        Content-Transfer-Encoding: 8bit\nAuto-Submitted: auto-generated\n\n{over}{}\n\nThe array {} on {}. `pinstripe status` and \
        `pinstripe detail` show more.\n",
        line(address),
        line(&host()),
        subject.kind,
        line(&subject.array),
        line(&open.message),
        line(&subject.array),
        line(&host()),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::alerts::{Open, Subject};

    fn tell(message: &str, cleared: bool) -> Tell {
        let subject = Subject { array: "da\nta".into(), kind: "Degraded".into(), device: String::new() };
        Tell { subject, open: Open { since: 5, message: message.into() }, cleared }
    }

    fn told(message: &str) -> Told {
        let (array, event, message) = ("data".to_owned(), "Fail".to_owned(), message.to_owned());
        Told { time: 2, array, event, device: None, alarming: true, message }
    }

    /// Makes a program of a script.
    fn put(program: &Path, script: &str) {
        fs::write(program, script).unwrap();
        fs::set_permissions(program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }

    #[test]
    fn a_name_makes_no_header_of_a_mail() {
        let text = mail("root\nBcc: x", &tell("slot 1\n.\n", true));
        let (head, body) = text.split_once("\n\n").unwrap();
        assert!(head.lines().all(|line| !line.starts_with("Bcc")), "{head}");
        assert!(head.contains("over: Degraded of da\u{fffd}ta"), "{head}");
        assert!(body.starts_with("over: slot 1\u{fffd}.\u{fffd}\n"), "{body}");
    }

    #[test]
    fn a_program_gets_the_alert_and_its_failure_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let program = folder.path().join("program");
        put(&program, &format!("#!/bin/sh\necho \"$1 $2 $4.\" >>{0}; cat >>{0}\n", out.display()));
        Way::Program(program.clone()).send(&tell("x", false)).unwrap();
        let text = fs::read_to_string(&out).unwrap();
        assert!(text.starts_with("raised Degraded .\n{") && text.contains("\"since\":5"), "{text}");
        fs::write(&program, "#!/bin/sh\necho no >&2; exit 3\n").unwrap();
        assert_eq!(Way::Program(program).send(&tell("x", false)), Err("ended with status 3: no".to_owned()));
        let secret = Way::Webhook("https://user:key@hooks.example/T0/secret".into()).in_words();
        assert_eq!(secret, "the webhook of hooks.example");
    }

    #[test]
    fn events_are_kept_while_an_alert_is_being_sent() {
        let folder = tempfile::tempdir().unwrap();
        let secretary = Secretary::new(folder.path(), &ServerLog::new(true, "daemon").unwrap()).unwrap();
        let (program, go_on) = (folder.path().join("program"), folder.path().join("go-on"));
        let wait = format!("#!/bin/sh\nwhile [ ! -e {} ]; do sleep 0.1; done\n", go_on.display());
        put(&program, &wait);
        secretary.ask(Errand::Send(tell("x", false), Alerts { program: Some(program), ..Alerts::default() }));
        secretary.ask(Errand::Book(b"[]".to_vec()));
        secretary.ask(Errand::Keep(told("m")));
        secretary.finish(Duration::from_secs(1));
        let kept = fs::read_to_string(folder.path().join(HISTORY)).unwrap();
        assert!(kept.contains("\"Fail\""), "{kept}");
        assert!(!folder.path().join(ALERTS).exists(), "it is in the book before it was sent");
        fs::write(go_on, "").unwrap();
        secretary.finish(Duration::from_mins(1));
        assert!(folder.path().join(ALERTS).exists());
    }

    #[test]
    fn what_cannot_be_sent_is_sent_again_and_given_up_at_last() {
        let folder = tempfile::tempdir().unwrap();
        let log = ServerLog::new(true, "daemon").unwrap();
        let mut office = Office::new(folder.path().into(), log);
        let program = folder.path().join("program");
        put(&program, "#!/bin/sh\nexit 1\n");
        let alerts = Alerts { program: Some(program.clone()), ..Alerts::default() };
        office.carry_out(Errand::Send(tell("x", false), alerts.clone()));
        assert_eq!(office.waiting.len(), 1);
        office.send_again();
        assert_eq!(office.waiting[0].tries, 1, "not yet");
        put(&program, &format!("#!/bin/sh\ntouch {}/told\n", folder.path().display()));
        office.waiting[0].not_before = Instant::now();
        office.send_again();
        assert!(office.waiting.is_empty() && folder.path().join("told").exists());

        put(&program, "#!/bin/sh\nexit 1\n");
        office.carry_out(Errand::Send(tell("x", false), alerts));
        for tries in 1..=PAUSES.len() {
            assert_eq!(office.waiting[0].tries, tries);
            office.waiting[0].not_before = Instant::now();
            office.send_again();
        }
        assert!(office.waiting.is_empty(), "it is given up");
    }

    #[test]
    fn the_history_has_two_files_of_a_bounded_size() {
        let folder = tempfile::tempdir().unwrap();
        let log = ServerLog::new(true, "daemon").unwrap();
        let office = Office::new(folder.path().into(), log);
        let told = told(&"m".repeat(1 << 20));
        for _ in 0..10 {
            office.keep(&told).unwrap();
        }
        let length = |name: &str| folder.path().join(name).metadata().unwrap().len();
        assert!(
            length(HISTORY) <= HISTORY_BYTES_MAX + (2 << 20)
                && length(HISTORY_BEFORE) <= HISTORY_BYTES_MAX + (2 << 20)
        );
    }
}
