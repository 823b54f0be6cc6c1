//! The ways by which alerts are sent: a program, mail, a webhook. Each is a process that ends.

use std::{
    io::{self, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use pinstripe_config::Alerts;
use pinstripe_control::text::printable;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::alerts::Tell;
use crate::{called::host, state::in_memory};

/// How long a program may take to send an alert.
pub const SEND_LIMIT: Duration = Duration::from_mins(1);
const SEND_LOOK: Duration = Duration::from_millis(20);
/// Bytes that a program may say of what is wrong. They are in memory.
const SAID_BYTES_MAX: u64 = 1 << 20;
/// Bytes of a line of a mail's text. 998 are allowed.
const LINE_BYTES_MAX: usize = 900;

/// How an alert is sent. Where to is for the configuration to say, at the time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Way {
    Program,
    Mail,
    Webhook,
}

/// Why an alert was not sent.
#[derive(Debug, PartialEq, Eq)]
pub enum Unsent {
    Failed(String),
    /// The daemon ends, and the program was ended with it.
    Over,
}

impl Way {
    pub const ALL: [Self; 3] = [Self::Program, Self::Mail, Self::Webhook];

    /// The name of its thread.
    pub fn name(self) -> &'static str {
        match self {
            Self::Program => "program",
            Self::Mail => "mail",
            Self::Webhook => "webhook",
        }
    }

    pub fn is_configured(self, alerts: &Alerts) -> bool {
        match self {
            Self::Program => alerts.program.is_some(),
            Self::Mail => alerts.mail.is_some(),
            Self::Webhook => alerts.webhook.is_some(),
        }
    }

    pub fn in_words(self, alerts: &Alerts) -> String {
        let given = match self {
            Self::Program => alerts.program.as_ref().map(|path| path.display().to_string()),
            Self::Mail => alerts.mail.as_ref().map(|address| format!("mail to {address}")),
            // A URL may have a secret in its path, and in its query.
            Self::Webhook => alerts.webhook.as_ref().map(|url| {
                let rest = url.split_once("://").map_or("", |(_, rest)| rest);
                let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
                format!("the webhook of {}", host.rsplit('@').next().unwrap_or_default())
            }),
        };
        given.unwrap_or_else(|| format!("the {} of [alerts], which is not configured any more", self.name()))
    }

    /// Sends an alert. `over`: the daemon ends.
    pub fn send(self, alerts: &Alerts, tell: &Tell, over: &AtomicBool) -> Result<(), Unsent> {
        let command = match self {
            Self::Program => alerts.program.as_ref().map(|path| {
                let mut program = Command::new(path);
                let state = if tell.cleared { "cleared" } else { "raised" };
                program.args([state, &tell.subject.kind, &tell.subject.array, &tell.subject.device]);
                (program, value(tell).to_string())
            }),
            Self::Mail => alerts.mail.as_ref().map(|address| {
                let mut sendmail = Command::new(Alerts::SENDMAIL);
                // The address stands in the text, so that none is taken for an option.
                sendmail.args(["-i", "-t"]);
                (sendmail, mail(address, tell))
            }),
            Self::Webhook => alerts.webhook.as_ref().map(|url| (curl(), post(url, &value(tell).to_string()))),
        };
        let (mut command, input) =
            command.ok_or_else(|| Unsent::Failed("nothing says where to".to_owned()))?;
        if self != Self::Webhook {
            return run(&mut command, &input, Stdio::null(), over);
        }
        let unread = |error: io::Error| Unsent::Failed(format!("the answer's status can't be read: {error}"));
        let mut status = in_memory("status").map_err(unread)?;
        run(&mut command, &input, status.try_clone().map_err(unread)?.into(), over)?;
        let mut text = String::new();
        io::Seek::rewind(&mut status)
            .and_then(|()| io::Read::read_to_string(&mut status, &mut text))
            .map_err(unread)?;
        taken(&text)
    }
}

/// The command that posts to a webhook. It prints the status of the answer. What it is to post, and where to,
/// it reads: all users see a process's arguments, and a URL may have a secret in its path.
fn curl() -> Command {
    let mut curl = Command::new(Alerts::CURL);
    curl.args(["--silent", "--show-error", "--fail", "--max-time", "30", "--proto", "=http,https"]);
    curl.args(["--header", "Content-Type: application/json", "--output", "/dev/null"]);
    curl.args(["--write-out", "%{http_code}", "--config", "-"]);
    curl
}

/// The configuration of curl for this. Texts are in quotes, in which a backslash comes before what ends them.
/// Braces and brackets in a URL stand for themselves, and not for several URLs.
fn post(url: &str, body: &str) -> String {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("globoff\nurl = \"{}\"\ndata-binary = \"{}\"\n", quoted(url), quoted(body))
}

/// Whether an answer with this status says that the alert was taken. A redirect is no error to curl, and
/// isn't followed: it would make another request of the POST.
fn taken(status: &str) -> Result<(), Unsent> {
    match status.as_bytes() {
        [b'2', ..] => Ok(()),
        [b'3', ..] => Err(Unsent::Failed(format!(
            "the answer has the status {status}: the URL leads elsewhere. Give the one to which it leads"
        ))),
        _ => Err(Unsent::Failed(format!("the answer has the status {status}, which is no success"))),
    }
}

/// Runs a program with this input, and says why it failed.
fn run(command: &mut Command, input: &str, output: Stdio, over: &AtomicBool) -> Result<(), Unsent> {
    let name = command.get_program().display().to_string();
    let words = |error: io::Error| Unsent::Failed(format!("{name}: {error}"));
    // A file: a program that reads nothing keeps none waiting, and what it says may be of any length.
    let mut text = in_memory("alert").map_err(words)?;
    let mut said = in_memory("said").map_err(words)?;
    text.write_all(input.as_bytes()).and_then(|()| io::Seek::rewind(&mut text)).map_err(words)?;
    let errors = said.try_clone().map_err(words)?;
    // A group of its own: what the program has started ends with it.
    command.stdin(text).stdout(output).stderr(errors).process_group(0);
    let mut child = command.spawn().map_err(words)?;
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => {
                let mut text = String::new();
                let _ = io::Seek::rewind(&mut said)
                    .and_then(|()| io::Read::read_to_string(&mut io::Read::take(&said, 1024), &mut text));
                return Err(Unsent::Failed(format!("{}: {}", crate::assemble::how(status), text.trim())));
            }
            Err(error) => return Err(words(error)),
            Ok(None) if over.load(Ordering::Relaxed) => {
                end(&mut child);
                return Err(Unsent::Over);
            }
            Ok(None) if begun.elapsed() >= SEND_LIMIT => {
                end(&mut child);
                let seconds = SEND_LIMIT.as_secs();
                return Err(Unsent::Failed(format!("{name} has not ended after {seconds} seconds")));
            }
            Ok(None) if said.metadata().is_ok_and(|said| said.len() > SAID_BYTES_MAX) => {
                end(&mut child);
                return Err(Unsent::Failed(format!("{name} has written without end to its standard error")));
            }
            Ok(None) => thread::sleep(SEND_LOOK),
        }
    }
}

/// Ends a program and its group.
fn end(child: &mut Child) {
    let _ = kill_process_group(Pid::from_child(child), Signal::KILL);
    let _ = child.wait();
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
        folded(&line(&open.message)),
        line(&subject.array),
        line(&host()),
    )
}

/// A text in lines that no mail server refuses (RFC 5322, section 2.1.1): the end of a server's log can make
/// a long one.
fn folded(text: &str) -> String {
    let (mut all, mut length) = (String::new(), 0);
    for word in text.split(' ') {
        if length > 0 {
            let fits = length + word.len() < LINE_BYTES_MAX;
            all.push(if fits { ' ' } else { '\n' });
            length = if fits { length + 1 } else { 0 };
        }
        for c in word.chars() {
            if length + c.len_utf8() > LINE_BYTES_MAX {
                all.push('\n');
                length = 0;
            }
            all.push(c);
            length += c.len_utf8();
        }
    }
    all
}

#[cfg(test)]
pub mod tests {
    use std::{
        fs,
        io::{BufRead, BufReader, Read},
        net::TcpListener,
        path::Path,
    };

    use super::*;
    use crate::daemon::alerts::{Open, Subject};

    /// Writes a program. Not this process: a child that another test starts has what is open here until its
    /// exec, and the kernel runs nothing that is open for writing.
    pub fn write_program(path: &Path, text: &str) {
        let mut writer = Command::new("sh");
        writer.args(["-c", "cat >\"$0\" && chmod 755 \"$0\""]).arg(path);
        let mut writer = writer.stdin(Stdio::piped()).spawn().unwrap();
        writer.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        assert!(writer.wait().unwrap().success());
    }

    fn tell(message: &str, cleared: bool) -> Tell {
        let subject = Subject { array: "da\nta".into(), kind: "Degraded".into(), device: String::new() };
        Tell { subject, open: Open { since: 5, message: message.into(), uuid: None }, cleared }
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
    fn no_line_of_a_mail_is_longer_than_mail_servers_take() {
        let long = format!("{} {}", "word ".repeat(2000), "ü".repeat(2000));
        let text = mail("root", &tell(&long, true));
        assert!(text.lines().all(|line| line.len() <= 998), "{text}");
        let (_, body) = text.split_once("\n\n").unwrap();
        let (body, _) = body.split_once("\n\n").unwrap();
        let plain = |text: &str| text.replace(['\n', ' '], "");
        assert_eq!(plain(body), plain(&format!("over: {long}")), "nothing is lost");
    }

    #[test]
    fn a_program_gets_the_alert_and_its_failure_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("out");
        let program = folder.path().join("program");
        let put = |script: &str| write_program(&program, script);
        let alerts = Alerts { program: Some(program.clone()), ..Alerts::default() };
        let send = || Way::Program.send(&alerts, &tell("x", false), &AtomicBool::new(false));
        put(&format!("#!/bin/sh\necho \"$1 $2 $4.\" >>{0}; cat >>{0}\n", out.display()));
        send().unwrap();
        let text = fs::read_to_string(&out).unwrap();
        assert!(text.starts_with("raised Degraded .\n{") && text.contains("\"since\":5"), "{text}");
        put("#!/bin/sh\necho no >&2; exit 3\n");
        assert_eq!(send(), Err(Unsent::Failed("ended with status 3: no".to_owned())));
        // What it says is in memory.
        put("#!/bin/sh\nhead -c 3000000 /dev/zero >&2\nsleep 600\n");
        let Err(Unsent::Failed(why)) = send() else { panic!("it is sent") };
        assert!(why.contains("without end"), "{why}");
        for more in ["/T0/secret", "?key=secret", "#secret", ""] {
            let webhook = Some(format!("https://user:key@hooks.example{more}"));
            assert_eq!(
                Way::Webhook.in_words(&Alerts { webhook, ..Alerts::default() }),
                "the webhook of hooks.example"
            );
        }
    }

    /// What is posted to a webhook that answers with this status, and what becomes of the alert.
    fn posted(status: &str) -> (String, Result<(), Unsent>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        // Of which curl would make several.
        let url = format!("http://{}/secret{{a,b}}[1-3", listener.local_addr().unwrap());
        let answer = format!("HTTP/1.1 {status}\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n");
        let listening = thread::spawn(move || {
            let mut reader = BufReader::new(listener.accept().unwrap().0);
            let (mut line, mut length) = (String::new(), 0);
            while line != "\r\n" {
                line.clear();
                reader.read_line(&mut line).unwrap();
                if let Some((name, value)) = line.split_once(": ")
                    && name.eq_ignore_ascii_case("content-length")
                {
                    length = value.trim().parse().unwrap();
                }
            }
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            reader.get_mut().write_all(answer.as_bytes()).unwrap();
            String::from_utf8(body).unwrap()
        });
        let alerts = Alerts { webhook: Some(url), ..Alerts::default() };
        let outcome = Way::Webhook.send(&alerts, &tell("a \"b\" \\ c", false), &AtomicBool::new(false));
        (listening.join().unwrap(), outcome)
    }

    #[test]
    fn no_argument_of_a_process_has_the_secret_of_a_webhook() {
        let arguments = format!("{:?}", curl());
        assert!(!arguments.contains("http:") && arguments.contains("\"--config\" \"-\""), "{arguments}");
        assert!(post("https://hooks.example/secret", "{}").contains("secret"));
    }

    #[test]
    fn a_webhook_has_taken_what_it_answers_with_success_and_nothing_else() {
        let text = value(&tell("a \"b\" \\ c", false)).to_string();
        for status in ["200 OK", "204 No Content"] {
            assert_eq!(posted(status), (text.clone(), Ok(())), "{status}");
        }
        for status in ["301 Moved", "302 Found", "307 Elsewhere", "308 Moved", "404 Not Found", "500 Error"] {
            let (body, outcome) = posted(status);
            assert_eq!(body, text, "{status}");
            let Err(Unsent::Failed(why)) = outcome else { panic!("{status}: {outcome:?}") };
            assert!(why.contains(&status[..3]), "{status}: {why}");
        }
    }
}
