//! A `serve` as a process of its own, until it answers: of the array's unit, or in the background, with its
//! log in a file.

use std::{
    fs::{self, File, OpenOptions},
    io::{Read, Seek, SeekFrom, Write},
    os::unix::{fs::OpenOptionsExt, process::ExitStatusExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use pinstripe_control::{
    Detail,
    client::ClientError,
    size::ByteSize,
    text::{printable, printable_lines, shell_word},
};
use rustix::{
    fs::{FlockOperation, OFlags, flock},
    io::Errno,
};
use serde_json::{Value, json};

use super::{Outcome, Wanted};
use crate::{
    failure::Failure,
    list,
    scan::{Served, shown},
    serve::default_folder,
    systemd,
};

/// How often a server is looked for.
const LOOK: Duration = Duration::from_millis(50);
/// What the kernel adds to the path of a program if its file is there no more.
const DELETED: &str = " (deleted)";
/// What is shown of the log of a server that didn't start.
const LOG_LINES: usize = 8;
const LOG_BYTES_MAX: u64 = 16 << 10;
/// Bytes of a log beside the sockets at a start.
const BESIDE_BYTES_MAX: u64 = 1 << 20;

/// A server that answers.
pub struct Started {
    detail: Detail,
    control: PathBuf,
    by: By,
}

/// What has the process.
enum By {
    /// This process, for the time being.
    Child {
        child: Child,
        log: PathBuf,
    },
    Unit(String),
}

impl Started {
    /// Its control socket.
    pub fn control(&self) -> &Path {
        &self.control
    }

    /// Its process, to be waited for, unless systemd does that.
    pub fn into_child(self) -> Option<Child> {
        match self.by {
            By::Child { child, .. } => Some(child),
            By::Unit(_) => None,
        }
    }

    pub fn value(&self) -> Value {
        let Self { detail, control, by } = self;
        let (unit, log, process) = match by {
            By::Child { child, log } => (None, Some(shown(log)), Some(child.id())),
            By::Unit(unit) => (Some(unit), None, systemd::main_process(unit)),
        };
        json!({
            "state": "started", "name": detail.name, "level": detail.level, "size_bytes": detail.size_bytes,
            "degraded": detail.degraded, "addresses": detail.addresses, "control": shown(control), "unit": unit, "log": log, "pid": process,
        })
    }

    pub fn in_words(&self) -> String {
        let Self { detail, control, by } = self;
        let addresses: Vec<String> = detail.addresses.iter().map(|address| printable(&address.uri)).collect();
        format!(
            "{}, {}, {} members{}, on {}; control socket {}; {}",
            printable(&detail.level),
            ByteSize(detail.size_bytes),
            detail.members.len(),
            if detail.degraded { ", degraded" } else { "" },
            addresses.join(" and "),
            printable(&control.display().to_string()),
            match by {
                By::Child { log, .. } => format!("log {}", printable(&log.display().to_string())),
                By::Unit(unit) => format!("unit {unit}"),
            },
        )
    }
}

/// Has the array's unit started. It looks for members anew, and waits for late ones by itself.
pub fn start_unit(wanted: &Wanted, unit: &str, limit: Duration) -> Result<Outcome, Failure> {
    systemd::start(unit, limit.saturating_add(wanted.patience().unwrap_or_default()))?;
    let Some((control, detail)) = its_own(wanted, Served::all().0) else {
        return Err(Failure::new(format!(
            "{unit} is started, and its server does not answer: `journalctl --unit {}` shows why",
            shell_word(unit)
        )));
    };
    Ok(Outcome::Started(Box::new(Started { detail, control, by: By::Unit(unit.to_owned()) })))
}

/// Starts `words`, which is a `serve`, unless another process did so meanwhile.
pub fn start(wanted: &Wanted, words: &[String], limit: Duration) -> Result<Outcome, Failure> {
    // Held until the server answers or has ended. The server doesn't inherit it.
    let turn = match Turn::of(wanted, limit, || {})? {
        Ok(turn) => turn,
        Err(control) => return Ok(Outcome::Served(control)),
    };
    let Turn { folder, stem, .. } = &turn;
    let own = wanted.entry.as_ref().and_then(|entry| entry.log.clone());
    let beside = || put_aside(folder.join(format!("{stem}.log")));
    let mut log = Log::open(own.unwrap_or_else(beside))?;
    for words in wanted.left_out() {
        // A full disk is no reason not to start.
        let _ = writeln!(log.file, "pinstripe: {}", printable(&words));
    }
    let mut serve = Command::new(program()?);
    // After the word `serve`, for what follows `--` is members.
    serve.args(&words[..1]).arg("--own-session").args(&words[1..]);
    serve.current_dir("/").stdin(Stdio::null()).stdout(log.file.try_clone()?).stderr(log.file.try_clone()?);
    let child = serve.spawn().map_err(|error| Failure::new(format!("can't start a server: {error}")))?;
    let socket = folder.join(format!("{stem}.sock"));
    // It waits itself for members on servers, which only it looks at.
    let patience = wanted.patience().filter(|_| !wanted.servers.is_empty()).unwrap_or_default();
    wait(wanted, child, &log, &socket, limit.saturating_add(patience))
}

/// This program, to be a server. Where another version was installed in its place since it began, that one.
pub fn program() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe();
    own.map(installed).map_err(|error| Failure::new(format!("can't find this program: {error}")))
}

/// The program that is at the path `own` now. Of a file that is replaced or removed while it runs, the kernel
/// says so in its path. One without a successor still runs by the kernel's own link to it.
fn installed(own: PathBuf) -> PathBuf {
    if own.exists() {
        return own;
    }
    let successor = own.to_str().and_then(|path| path.strip_suffix(DELETED)).map(PathBuf::from);
    successor.filter(|path| path.exists()).unwrap_or_else(|| PathBuf::from("/proc/self/exe"))
}

/// Waits until the server answers. One that ended was refused, unless another one has the array now.
fn wait(
    wanted: &Wanted,
    mut child: Child,
    log: &Log,
    socket: &Path,
    limit: Duration,
) -> Result<Outcome, Failure> {
    let begun = Instant::now();
    loop {
        // Before the look: a server that answered and ended then has ended.
        let ended = child.try_wait()?;
        if let Some((control, detail)) = answer(wanted, socket) {
            return Ok(match ended {
                None => Outcome::Started(Box::new(Started {
                    detail,
                    control,
                    by: By::Child { child, log: log.path.clone() },
                })),
                Some(_) => Outcome::Served(control),
            });
        }
        let path = log.path.display();
        if let Some(status) = ended {
            return Err(Failure::new(format!(
                "its server {}; its log {path} ends with\n{}",
                how(status),
                log.end()
            )));
        }
        if begun.elapsed() > limit {
            return Err(Failure::new(format!(
                "its server (process {}) has not answered for {} seconds, and goes on starting; its log {path} ends with\n{}",
                child.id(),
                limit.as_secs(),
                log.end()
            )));
        }
        thread::sleep(LOOK);
    }
}

/// How a process has ended.
pub fn how(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

/// What the array's server says of it. It listens on `socket`, unless only it knows the array's name.
fn answer(wanted: &Wanted, socket: &Path) -> Option<(PathBuf, Detail)> {
    let said = match list::ask(socket) {
        Err(ClientError::NotServed { .. }) if wanted.found.is_none() => Served::all().0,
        answer => {
            answer.ok().map(|detail| Served { control: socket.to_owned(), detail }).into_iter().collect()
        }
    };
    its_own(wanted, said)
}

/// What the array's server among these says.
fn its_own(wanted: &Wanted, said: Vec<Served>) -> Option<(PathBuf, Detail)> {
    let control = wanted.server_in(&said)?;
    said.into_iter().find(|served| served.control == control).map(|served| (control, served.detail))
}

/// This process's turn to start an array. Others wait until it is dropped.
pub struct Turn {
    folder: PathBuf,
    /// How the files of this array begin.
    stem: String,
    _lock: File,
}

impl Turn {
    /// Waits for it, for `limit` at most; or the control socket of the server that the array has by then.
    /// `waits` is called as long as it does.
    pub fn of(wanted: &Wanted, limit: Duration, waits: impl Fn()) -> Result<Result<Self, PathBuf>, Failure> {
        let folder = default_folder()?;
        let uuid = wanted.uuid().map(|uuid| uuid.to_string()).unwrap_or_default();
        let stem = wanted.stem();
        // No other lock ends so, whatever the array is called.
        let name = if uuid.is_empty() { format!("{stem}.start") } else { uuid.replace(':', "") };
        let Some(lock) = lock_within(&folder, &name, limit, waits)? else {
            return Err(Failure::new(format!(
                "another start of it is under way, and has not ended for {} seconds",
                limit.as_secs()
            )));
        };
        let served = wanted.server_in(&Served::all().0);
        Ok(served.map_or(Ok(Self { folder, stem, _lock: lock }), Err))
    }
}

/// Waits for the lock of this name.
pub fn lock(folder: &Path, name: &str) -> Result<File, Failure> {
    let (file, failed) = lock_file(folder, name)?;
    flock(&file, FlockOperation::LockExclusive).map_err(|error| failed(error.into()))?;
    Ok(file)
}

/// The same, for `limit` at most, and nothing if that wasn't enough. `waits` is called meanwhile.
fn lock_within(
    folder: &Path,
    name: &str,
    limit: Duration,
    waits: impl Fn(),
) -> Result<Option<File>, Failure> {
    let (file, failed) = lock_file(folder, name)?;
    let begun = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(Some(file)),
            Err(Errno::AGAIN) if begun.elapsed() >= limit => return Ok(None),
            Err(Errno::AGAIN) => {
                waits();
                thread::sleep(LOOK);
            }
            Err(error) => return Err(failed(error.into())),
        }
    }
}

/// The file of a lock, and what is said where it fails.
fn lock_file(folder: &Path, name: &str) -> Result<(File, impl Fn(std::io::Error) -> Failure), Failure> {
    let path = folder.join(format!("{name}.lock"));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600).custom_flags(no_follow());
    let opened = options.open(&path);
    let failed = move |error| Failure::new(format!("can't lock {}: {error}", path.display()));
    opened.map_err(&failed).map(|file| (file, failed))
}

fn no_follow() -> i32 {
    OFlags::NOFOLLOW.bits().cast_signed()
}

/// A log beside the sockets is in memory, as they are, and nothing else sees to it: where it has grown long
/// it begins anew, and the one before goes.
fn put_aside(path: PathBuf) -> PathBuf {
    if path.symlink_metadata().is_ok_and(|metadata| metadata.len() >= BESIDE_BYTES_MAX) {
        let _ = fs::rename(&path, path.with_extension("log.old"));
    }
    path
}

/// The file for the server's log.
struct Log {
    path: PathBuf,
    file: File,
    /// Where this server's part begins.
    begin: u64,
}

impl Log {
    fn open(path: PathBuf) -> Result<Self, Failure> {
        let failed =
            |error: std::io::Error| Failure::new(format!("can't open the log {}: {error}", path.display()));
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true).mode(0o640).custom_flags(no_follow());
        let mut file = options.open(&path).map_err(failed)?;
        let begin = file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok(Self { path, file, begin })
    }

    /// The last lines of this server's part.
    fn end(&self) -> String {
        let read = || -> std::io::Result<Vec<u8>> {
            let mut file = File::open(&self.path)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(self.begin.max(length.saturating_sub(LOG_BYTES_MAX))))?;
            let mut bytes = Vec::new();
            file.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let bytes = read().unwrap_or_default();
        let text = printable_lines(&String::from_utf8_lossy(&bytes));
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(LOG_LINES)..]
            .iter()
            .map(|line| format!("  {line}"))
            .collect::<Vec<_>>()
            .join("\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_log_beside_the_sockets_is_put_aside_in_place_of_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("data.log");
        let names = || {
            let all = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
            let mut all: Vec<_> = all.collect();
            all.sort();
            all
        };
        let write = |length: u64| File::create(&path).unwrap().set_len(length).unwrap();
        write(BESIDE_BYTES_MAX - 1);
        assert_eq!(put_aside(path.clone()), path);
        assert_eq!(names(), ["data.log"]);
        for _ in 0..2 {
            write(BESIDE_BYTES_MAX);
            put_aside(path.clone());
            assert_eq!(names(), ["data.log.old"]);
        }
    }

    #[test]
    fn a_start_waits_for_another_one_as_long_as_its_limit_says() {
        let folder = tempfile::tempdir().unwrap();
        let lock_within = |name: &str, limit| lock_within(folder.path(), name, limit, || {}).unwrap();
        let first = lock(folder.path(), "data").unwrap();
        assert!(lock_within("data", 2 * LOOK).is_none());
        assert!(lock_within("other", Duration::ZERO).is_some());
        drop(first);
        assert!(lock_within("data", Duration::ZERO).is_some());
    }

    #[test]
    fn a_program_that_was_replaced_starts_its_successor_and_one_that_was_removed_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pinstripe");
        let replaced = PathBuf::from(format!("{}{DELETED}", path.display()));
        assert_eq!(installed(replaced.clone()), Path::new("/proc/self/exe"));
        std::fs::write(&path, "").unwrap();
        assert_eq!(installed(path.clone()), path);
        assert_eq!(installed(replaced.clone()), path);
        std::fs::write(&replaced, "").unwrap();
        assert_eq!(installed(replaced.clone()), replaced, "it may be called so");
    }
}
