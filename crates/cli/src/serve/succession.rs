//! A change of version that clients don't notice: another program takes this one's place in the same process.
//!
//! ```text
//!   upgrade    the other program is asked whether it can go on from here, before anything is disturbed
//!   the old    listening sockets are left, requests are finished, connections left between two of them, the
//!              array is stopped clean; then it becomes the other program by execve
//!   the new    has the sockets, the connections and the locks of the members, assembles the array, goes on,
//!              and answers the call that asked for it
//!   else       if the new one can't serve in time, it becomes the old program again, by the same way
//! ```
//!
//! The process stays the same one, for its service manager too. What goes over is told in a file of memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsString,
    fs::{self, File},
    io::{Read, Seek, Write},
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::{fs::MetadataExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use pinstripe_control::{UpgradeResult, limit::Limit, text::printable};
use pinstripe_engine::{
    array::Array,
    options::{JournalMode, SyncSpeed},
};
use pinstripe_export::nbd::{Left, Negotiated};
use pinstripe_runtime::{
    shard,
    uring::{inheritance, path_of, run_wherever_the_process_may},
};
use rustix::{
    fs::MemfdFlags,
    time::{ClockId, clock_gettime},
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    command_line::{JournalModeChoice, Role},
    failure::Failure,
    log, member,
};

/// Of what goes over: another number is another content, which only programs that know it can take.
const FORMAT: u32 = 1;
/// Time that a program has to say whether it can take over.
const ASK_LIMIT: Duration = Duration::from_secs(10);
/// Time that it then has to serve the array.
pub const START_NANOSECONDS: u64 = 30_000_000_000;
const LOOK: Duration = Duration::from_millis(5);
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
        let mut child = Command::new(program)
            .args(with_role(&words, Role::ASK))
            .env_remove("NOTIFY_SOCKET")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| cannot(&error.to_string()))?;
        let begun = Instant::now();
        while child.try_wait().map_err(|error| cannot(&error.to_string()))?.is_none() {
            if begun.elapsed() > ASK_LIMIT {
                let _ = child.kill();
                let _ = child.wait();
                return Err(cannot(&format!("it said nothing within {} s", ASK_LIMIT.as_secs())));
            }
            thread::sleep(LOOK);
        }
        let output = child.wait_with_output().map_err(|error| cannot(&error.to_string()))?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr).into_owned();
            let last = words.lines().last().unwrap_or("it says nothing").to_owned();
            return Err(cannot(&format!("{last} ({})", output.status)));
        }
        match serde_json::from_slice::<Readiness>(&output.stdout) {
            Ok(ready) if ready.succession == FORMAT => {
                Ok(Self { program: program.to_owned(), version: ready.pinstripe, words })
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

fn with_role(words: &[String], role: &str) -> Vec<String> {
    let mut words = words.to_vec();
    words.insert(1, format!("{OPTION}{role}"));
    words
}

/// The wish to be taken over.
pub struct Wish {
    pub candidate: Candidate,
    /// The connection that asked for it, and the name of its call.
    pub caller: OwnedFd,
    pub call: Option<Value>,
    /// Listening sockets, in the order in which they were bound, by protocol.
    pub listeners: Vec<(&'static str, OwnedFd)>,
    /// What keeps the members locked.
    pub locks: Vec<OwnedFd>,
}

/// A connection that goes over.
pub struct Connected {
    pub socket: OwnedFd,
    /// The peer, as it is called.
    pub name: String,
    /// What was agreed on it; nothing of one that is still to be greeted.
    pub left: Option<Left>,
}

/// What was changed since the start.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct Settings {
    pub limit: Limit,
    pub sync_speed_min_kib: u64,
    pub sync_speed_max_kib: u64,
    pub sync_paused: bool,
    /// Whether the journal works write-back; nothing where that is only so for now.
    write_back: Option<bool>,
}

impl Settings {
    pub fn of(array: &Array, limit: Limit) -> Self {
        let SyncSpeed { min_kib, max_kib } = array.sync_speed();
        let write_back = match array.journal_mode() {
            Some(JournalMode::WriteBack) => Some(true),
            // A degraded array works so whatever is wanted.
            Some(JournalMode::WriteThrough) if array.detail().missing == 0 => Some(false),
            _ => None,
        };
        Self {
            limit,
            sync_speed_min_kib: min_kib,
            sync_speed_max_kib: max_kib,
            sync_paused: array.is_sync_paused(),
            write_back,
        }
    }

    /// If it isn't what the server was started with.
    pub fn journal_mode(&self) -> Option<JournalModeChoice> {
        let choice = |back| if back { JournalModeChoice::WriteBack } else { JournalModeChoice::WriteThrough };
        self.write_back.map(choice)
    }
}

/// The devices of the array that hold what it needs, by name.
pub fn devices(array: &Array) -> Vec<String> {
    let detail = array.detail();
    let of_slots = detail.slots.into_iter().flat_map(|slot| [slot.device, slot.replacement]).flatten();
    let journal = detail.journal.filter(|journal| !journal.failed).map(|journal| journal.device);
    let all: BTreeSet<String> = of_slots.chain(detail.spares).chain(journal).collect();
    all.into_iter().collect()
}

/// Refuses names under which the next program would find something else. Blocks.
pub fn check_names(devices: &[String]) -> Result<(), String> {
    let other = devices.iter().find(|name| {
        let path = Path::new(name);
        member::address(path).is_none() && !inheritance::holds(path_of(path).0)
    });
    other.map_or(Ok(()), |name| {
        let name = printable(name);
        Err(format!(
            "{name} is not the member that the array has open under this name, but another one or nothing: stop the array, and \
             start it with the names that hold now; nothing was changed"
        ))
    })
}

/// What goes over, as it is written down. Descriptors are numbers.
#[derive(Serialize, Deserialize)]
struct Will {
    format: u32,
    /// The program before.
    version: String,
    program: RawFd,
    words: Vec<String>,
    devices: Vec<PathBuf>,
    settings: Settings,
    locks: Vec<RawFd>,
    listeners: Vec<(String, RawFd)>,
    connections: Vec<WrittenConnection>,
    caller: RawFd,
    call: Option<Value>,
    /// When clients began to wait, by the machine's monotonic clock.
    since_ns: u64,
    /// Why the program that was to take over didn't; then this goes back.
    failed: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct WrittenConnection {
    protocol: String,
    socket: RawFd,
    name: String,
    left: Option<WrittenLeft>,
}

#[derive(Serialize, Deserialize)]
struct WrittenLeft {
    export: usize,
    structured: bool,
    allocation: bool,
    received: Vec<u8>,
}

impl From<Left> for WrittenLeft {
    fn from(left: Left) -> Self {
        let Left { negotiated: Negotiated { export, structured, allocation }, received } = left;
        Self { export, structured, allocation, received }
    }
}

impl From<WrittenLeft> for Left {
    fn from(written: WrittenLeft) -> Self {
        let WrittenLeft { export, structured, allocation, received } = written;
        Self { negotiated: Negotiated { export, structured, allocation }, received }
    }
}

fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

/// What is handed over when nothing is under way any more.
pub struct Estate {
    will: Will,
    descriptors: BTreeMap<RawFd, OwnedFd>,
    candidate: Candidate,
}

impl Estate {
    /// From now on clients wait.
    pub fn new(wish: Wish, settings: Settings, devices: Vec<String>) -> std::io::Result<Self> {
        let Wish { candidate, caller, call, listeners, locks } = wish;
        let mut descriptors = BTreeMap::new();
        let program = keep(&mut descriptors, File::open("/proc/self/exe")?.into());
        let will = Will {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            program,
            words: candidate.words.clone(),
            devices: devices.into_iter().map(PathBuf::from).collect(),
            settings,
            locks: locks.into_iter().map(|lock| keep(&mut descriptors, lock)).collect(),
            listeners: listeners
                .into_iter()
                .map(|(protocol, socket)| (protocol.to_owned(), keep(&mut descriptors, socket)))
                .collect(),
            connections: Vec::new(),
            caller: keep(&mut descriptors, caller),
            call,
            since_ns: monotonic(),
            failed: None,
        };
        Ok(Self { will, descriptors, candidate })
    }

    /// A connection that goes over.
    pub fn add(&mut self, protocol: &str, connection: Connected) {
        let Connected { socket, name, left } = connection;
        let (protocol, socket) = (protocol.to_owned(), keep(&mut self.descriptors, socket));
        let left = left.map(WrittenLeft::from);
        self.will.connections.push(WrittenConnection { protocol, socket, name, left });
    }

    /// Becomes the other program; this one again, if that can't be. Returns only if neither can be.
    pub fn hand_over(mut self) -> Failure {
        let Candidate { program, words, .. } = &self.candidate;
        let why = become_program(program, words, &self.will, &self.descriptors);
        let shown = printable(&program.display().to_string());
        log::warn(&format!("{shown} can't be started: {why}; the program before goes on"));
        go_back(&mut self.will, &self.descriptors, &why)
    }
}

/// Puts a descriptor to the others, and gives its number.
fn keep(descriptors: &mut BTreeMap<RawFd, OwnedFd>, descriptor: OwnedFd) -> RawFd {
    let number = descriptor.as_raw_fd();
    descriptors.insert(number, descriptor);
    number
}

/// Becomes the program before again.
fn go_back(will: &mut Will, descriptors: &BTreeMap<RawFd, OwnedFd>, why: &str) -> Failure {
    will.failed = Some(why.to_owned());
    let path = PathBuf::from(format!("/proc/self/fd/{}", will.program));
    // By its name, if that is still its own: the process is called by the name.
    let named = fs::read_link(&path).ok().filter(|named| {
        let identity = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
        identity(named) == identity(&path)
    });
    let error = become_program(&named.unwrap_or(path), &will.words, will, descriptors);
    Failure::new(format!(
        "the array is not served any more: {why}, and the program before can't go on: {error}"
    ))
}

/// Says why not.
fn become_program(
    program: &Path,
    words: &[String],
    will: &Will,
    descriptors: &BTreeMap<RawFd, OwnedFd>,
) -> String {
    let prepare = || -> std::io::Result<OwnedFd> {
        let mut file = File::from(rustix::fs::memfd_create("succession", MemfdFlags::CLOEXEC)?);
        serde_json::to_writer(&mut file, will)?;
        file.flush()?;
        file.rewind()?;
        for descriptor in descriptors.values() {
            inheritance::pass_on(descriptor)?;
        }
        let file = OwnedFd::from(file);
        inheritance::pass_on(&file)?;
        Ok(file)
    };
    match prepare() {
        Ok(file) => {
            log::flush();
            run_wherever_the_process_may();
            Command::new(program).args(with_role(words, &file.as_raw_fd().to_string())).exec().to_string()
        }
        Err(error) => error.to_string(),
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the program before has left to this one. All of it is kept until it is used, so that it can go back.
pub struct Inheritance {
    will: Mutex<Will>,
    descriptors: Mutex<BTreeMap<RawFd, OwnedFd>>,
    /// Listening sockets that were not asked for yet.
    listeners: Mutex<Vec<(String, RawFd)>>,
}

impl Inheritance {
    /// Reads what the file with this number tells of.
    pub fn read(number: RawFd) -> Result<Self, Failure> {
        let cannot = |error: &dyn std::fmt::Display| {
            Failure::usage(format!(
                "--succession is for a server's own use: there is no succession at {number}: {error}"
            ))
        };
        let mut file = File::from(inheritance::adopt(number).map_err(|error| cannot(&error))?);
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(|error| cannot(&error))?;
        let will: Will = serde_json::from_slice(&text).map_err(|error| cannot(&error))?;
        let connections = will.connections.iter().map(|connection| connection.socket);
        let listeners = will.listeners.iter().map(|(_, socket)| *socket);
        let all = [will.program, will.caller].into_iter().chain(will.locks.iter().copied());
        let mut descriptors = BTreeMap::new();
        for number in all.chain(listeners).chain(connections) {
            descriptors.insert(number, inheritance::adopt(number).map_err(|error| cannot(&error))?);
        }
        let listeners = will.listeners.clone().into();
        let own = Self { will: will.into(), descriptors: descriptors.into(), listeners };
        let locks: std::io::Result<_> = lock(&own.will).locks.iter().map(|lock| own.copy(*lock)).collect();
        inheritance::inherit(locks.map_err(|error| cannot(&error))?);
        Ok(own)
    }

    fn copy(&self, number: RawFd) -> std::io::Result<OwnedFd> {
        let descriptors = lock(&self.descriptors);
        descriptors.get(&number).ok_or(std::io::ErrorKind::NotFound)?.try_clone()
    }

    /// The next listening socket of this protocol.
    pub fn listener(&self, protocol: &str) -> Option<OwnedFd> {
        let mut listeners = lock(&self.listeners);
        let place = listeners.iter().position(|(of, _)| of == protocol)?;
        self.copy(listeners.remove(place).1).ok()
    }

    pub fn devices(&self) -> Vec<PathBuf> {
        lock(&self.will).devices.clone()
    }

    pub fn settings(&self) -> Settings {
        lock(&self.will).settings
    }

    /// Becomes the program before again, since this one can't go on: `why`. If this is the one before, there
    /// is no other one.
    pub fn go_back(&self, why: &Failure) -> Failure {
        let mut will = lock(&self.will);
        if let Some(first) = &will.failed {
            return Failure::new(format!(
                "the array is not served any more: {first}, and the program before can't go on: {}",
                why.sentence()
            ));
        }
        log::warn(&format!("can't take over: {}; the program before goes on", why.sentence()));
        go_back(&mut will, &lock(&self.descriptors), why.sentence())
    }

    /// From now on all is ours: the connections, by protocol, and the one that asked for this, with the name
    /// of its call and the answer.
    pub fn take(&self) -> Taken {
        let mut descriptors = lock(&self.descriptors);
        let mut will = lock(&self.will);
        let mut connections = Vec::new();
        for WrittenConnection { protocol, socket, name, left } in will.connections.drain(..) {
            let left = left.map(Left::from);
            if let Some(socket) = descriptors.remove(&socket) {
                connections.push((protocol, Connected { socket, name, left }));
            }
        }
        let caller = descriptors.remove(&will.caller).zip(will.call.take());
        descriptors.clear();
        inheritance::forget_inherited();
        let result = UpgradeResult {
            from: will.version.clone(),
            to: env!("CARGO_PKG_VERSION").to_owned(),
            pause_ms: monotonic().saturating_sub(will.since_ns) / 1_000_000,
            connections: connections.iter().filter(|(_, connection)| connection.left.is_some()).count()
                as u64,
        };
        Taken { connections, caller, result, failed: will.failed.clone() }
    }
}

/// See [`Inheritance::take`].
pub struct Taken {
    pub connections: Vec<(String, Connected)>,
    pub caller: Option<(OwnedFd, Value)>,
    pub result: UpgradeResult,
    pub failed: Option<String>,
}

/// Waits for a start, not for ever.
pub async fn in_time<T>(start: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let late = || Failure::new(format!("it does not serve after {} s", START_NANOSECONDS / 1_000_000_000));
    shard::timeout(START_NANOSECONDS, start).await.unwrap_or_else(|| Err(late()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_agreed_with_a_client_is_read_as_it_was_written() {
        for bits in 0..8_u8 {
            let negotiated = Negotiated {
                export: usize::from(bits & 1),
                structured: bits & 2 > 0,
                allocation: bits & 4 > 0,
            };
            let left = Left { negotiated, received: vec![bits; usize::from(bits) * 4] };
            let written = serde_json::to_string(&WrittenLeft::from(left.clone())).unwrap();
            assert_eq!(Left::from(serde_json::from_str::<WrittenLeft>(&written).unwrap()), left);
        }
    }

    #[test]
    fn a_program_is_told_its_role_behind_the_name_of_the_command() {
        let words = ["serve", "--json", "a"].map(str::to_owned);
        assert_eq!(with_role(&words, "ask"), ["serve", "--succession=ask", "--json", "a"]);
        assert_eq!("ask".parse(), Ok(Role::Asked));
        assert_eq!("12".parse(), Ok(Role::Successor(12)));
        assert!("x".parse::<Role>().is_err());
    }
}
