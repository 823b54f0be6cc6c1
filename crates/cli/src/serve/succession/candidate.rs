//! The program that is to take over.

use std::{
    ffi::OsString,
    fs,
    io::Read,
    os::unix::{fs::MetadataExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use pinstripe_control::text::printable;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};

use super::FORMAT;
use crate::{command_line::Role, failure::Failure};

/// Time that a program has to say whether it can take over.
const ASK_LIMIT: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(5);
/// Most bytes of an answer that are read.
const ANSWER_BYTES_MAX: u64 = 64 << 10;
/// The option by which a program is started for this; it stands behind the command's name.
const OPTION: &str = "--succession=";

/// The answer of a program that was asked.
#[derive(Serialize, Deserialize)]
struct Readiness {
    succession: u32,
    pinstripe: String,
}

/// Says that these words can be served by.
pub fn answer() -> Result<(), Failure> {
    let ready = Readiness { succession: FORMAT, pinstripe: env!("CARGO_PKG_VERSION").to_owned() };
    crate::output::print_json(&ready)
}

/// A program that can take over.
#[derive(Clone, Debug)]
pub struct Candidate {
    program: PathBuf,
    /// The file that was asked: device, inode, size, and when it was changed last.
    file: Option<(u64, u64, u64, i64, i64)>,
    version: String,
    /// With which it is to be started, after its name.
    words: Vec<String>,
}

impl Candidate {
    /// Asks a program. Blocks.
    pub fn ask(program: &Path) -> Result<Self, String> {
        let words = own_words()?;
        let shown = printable(&program.display().to_string());
        let cannot = |why: &str| format!("{shown} can't take over: {why}; nothing was changed");
        let file = identity(program);
        let mut command = Command::new(program);
        command.args(with_role(&words, Role::ASK)).env_remove("NOTIFY_SOCKET");
        let (status, out, error) = answered(command, ASK_LIMIT).map_err(|why| cannot(&why))?;
        if !status.success() {
            let words = String::from_utf8_lossy(&error).into_owned();
            let last = words.lines().last().unwrap_or("it says nothing").to_owned();
            return Err(cannot(&format!("{last} ({status})")));
        }
        match serde_json::from_slice::<Readiness>(&out) {
            Ok(ready) if ready.succession == FORMAT => {
                Ok(Self { program: program.to_owned(), file, version: ready.pinstripe, words })
            }
            Ok(ready) => Err(cannot(&format!(
                "it takes over by the form {} of the succession, and this program leaves by {FORMAT}; stop and start",
                ready.succession
            ))),
            Err(_) => Err(cannot("it is no version of pinstripe that knows how")),
        }
    }

    /// What it is, for people.
    pub fn in_words(&self) -> String {
        printable(&format!("{} ({})", self.program.display(), self.version))
    }

    pub fn program(&self) -> &Path {
        &self.program
    }

    pub fn words(&self) -> &[String] {
        &self.words
    }

    /// Whether the file is still the one that was asked.
    pub fn is_as_asked(&self) -> bool {
        self.file.is_some() && identity(&self.program) == self.file
    }
}

fn identity(program: &Path) -> Option<(u64, u64, u64, i64, i64)> {
    let file = fs::metadata(program).ok()?;
    Some((file.dev(), file.ino(), file.size(), file.ctime(), file.ctime_nsec()))
}

/// How it ended, and what it said. One that doesn't end, or leaves children that keep its output open, is
/// ended with all of them.
fn answered(mut command: Command, limit: Duration) -> Result<(ExitStatus, Vec<u8>, Vec<u8>), String> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let deadline = Instant::now() + limit;
    let (out, error) = (collected(child.stdout.take()), collected(child.stderr.take()));
    let answer = (|| {
        let status = ended(&mut child, deadline)?;
        let rest = || deadline.saturating_duration_since(Instant::now());
        Some((status, out.recv_timeout(rest()).ok()?, error.recv_timeout(rest()).ok()?))
    })();
    answer.ok_or_else(|| {
        if let Some(group) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, Signal::KILL);
        }
        let _ = child.wait();
        format!("it was not done with its answer after {limit:?}")
    })
}

fn ended(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    while Instant::now() < deadline {
        match child.try_wait() {
            Ok(None) => thread::sleep(LOOK),
            Ok(status) => return status,
            Err(_) => return None,
        }
    }
    None
}

/// What comes until the end, from a thread of its own.
fn collected(pipe: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (told, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            let _ = pipe.take(ANSWER_BYTES_MAX).read_to_end(&mut bytes);
        }
        let _ = told.send(bytes);
    });
    receiver
}

/// The words that this server was started with, after the program's name; none of an earlier succession.
fn own_words() -> Result<Vec<String>, String> {
    let words: Result<Vec<String>, OsString> =
        std::env::args_os().skip(1).map(OsString::into_string).collect();
    let mut words = words.map_err(|word| {
        format!("{} isn't UTF-8, so it can't be handed on: stop and start", word.to_string_lossy())
    })?;
    words.retain(|word| !word.starts_with(OPTION));
    if words.first().is_none_or(|first| first != "serve") {
        return Err("this process isn't a `pinstripe serve`, so it can't be taken over".to_owned());
    }
    Ok(words)
}

pub(super) fn with_role(words: &[String], role: &str) -> Vec<String> {
    let mut words = words.to_vec();
    words.insert(1, format!("{OPTION}{role}"));
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_told_its_role_behind_the_name_of_the_command() {
        let words = ["serve", "--json", "a"].map(str::to_owned);
        assert_eq!(with_role(&words, "ask"), ["serve", "--succession=ask", "--json", "a"]);
        assert_eq!("ask".parse(), Ok(Role::Asked));
        assert_eq!("12".parse(), Ok(Role::Successor(12)));
        assert!("x".parse::<Role>().is_err());
    }

    #[test]
    fn what_is_asked_and_leaves_a_child_behind_is_not_waited_for() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo yes; sleep 300 & exit 3"]);
        let begun = Instant::now();
        let why = answered(command, Duration::from_secs(1)).unwrap_err();
        assert!(why.contains("after 1s") && begun.elapsed() < ASK_LIMIT * 10, "{why}");
        let mut command = Command::new("sh");
        command.args(["-c", "echo yes; echo no >&2; exit 3"]);
        let (status, out, error) = answered(command, ASK_LIMIT * 6).unwrap();
        assert_eq!((status.code(), &out[..], &error[..]), (Some(3), &b"yes\n"[..], &b"no\n"[..]));
    }
}
