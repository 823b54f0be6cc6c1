//! What goes over to the next program: written down in a file of memory, and read there.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Seek, Write},
    os::{
        fd::{AsRawFd, OwnedFd, RawFd},
        unix::{fs::MetadataExt, process::CommandExt},
    },
    path::{Path, PathBuf},
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
};

use pinstripe_control::{UpgradeResult, text::printable};
use pinstripe_export::nbd::{Left, Negotiated};
use pinstripe_nvme::controller::{LeftQueue, LeftSubsystem};
use pinstripe_runtime::{
    shard,
    uring::{inheritance, last_resort, run_wherever_the_process_may},
};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize, de::Error};
use serde_json::Value;

use super::{
    Agreed, Candidate, Connected, FORMAT, LIFE_SECONDS, LeftListener, Settings, Wish, candidate::with_role,
};
use crate::{failure::Failure, log, state};

/// What goes over, as it is written down: what every format has, so that a program that can't read the rest
/// can go back all the same. Descriptors are numbers.
#[derive(Serialize, Deserialize)]
struct Will<R = Rest> {
    format: u32,
    /// The program before, and what it is called with.
    program: RawFd,
    words: Vec<String>,
    /// Why the program that was to take over didn't; then this goes back.
    failed: Option<String>,
    rest: R,
}

#[derive(Serialize, Deserialize)]
struct Rest {
    /// Of the program before.
    version: String,
    devices: Vec<PathBuf>,
    settings: Settings,
    locks: Vec<RawFd>,
    listeners: Vec<WrittenListener>,
    connections: Vec<WrittenConnection>,
    /// Of NVMe/TCP: what its connections share.
    subsystem: Option<LeftSubsystem>,
    caller: RawFd,
    received: Vec<u8>,
    call: Option<Value>,
    /// When clients began to wait, by the machine's monotonic clock.
    since_ns: u64,
    /// The array was stopped, and nothing that was asked of a member can come late.
    #[serde(default)]
    all_is_over: bool,
}

#[derive(Clone, Serialize, Deserialize)]
struct WrittenListener {
    protocol: String,
    socket: RawFd,
    file: Option<(u64, u64)>,
}

#[derive(Serialize, Deserialize)]
struct WrittenConnection {
    protocol: String,
    socket: RawFd,
    name: String,
    left: Option<WrittenAgreed>,
}

#[derive(Serialize, Deserialize)]
enum WrittenAgreed {
    Nbd { export: usize, structured: bool, allocation: bool, received: Vec<u8> },
    NvmeTcp(LeftQueue),
}

impl From<Agreed> for WrittenAgreed {
    fn from(agreed: Agreed) -> Self {
        match agreed {
            Agreed::Nbd(Left { negotiated: Negotiated { export, structured, allocation }, received }) => {
                Self::Nbd { export, structured, allocation, received }
            }
            Agreed::NvmeTcp(queue) => Self::NvmeTcp(queue),
        }
    }
}

impl From<WrittenAgreed> for Agreed {
    fn from(written: WrittenAgreed) -> Self {
        match written {
            WrittenAgreed::Nbd { export, structured, allocation, received } => {
                Self::Nbd(Left { negotiated: Negotiated { export, structured, allocation }, received })
            }
            WrittenAgreed::NvmeTcp(queue) => Self::NvmeTcp(queue),
        }
    }
}

/// What it takes to become another program. It is there before anything is disturbed.
pub struct Means {
    /// The program that runs now. It need not be readable.
    program: OwnedFd,
    /// What goes over is written into it.
    file: File,
}

impl Means {
    pub fn new() -> io::Result<Self> {
        let program = rustix::fs::open("/proc/self/exe", OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        let file = state::in_memory("succession")?;
        Ok(Self { program, file })
    }
}

/// What is handed over when nothing is under way any more.
pub struct Estate {
    will: Will,
    file: File,
    descriptors: BTreeMap<RawFd, OwnedFd>,
    candidate: Candidate,
}

impl Estate {
    /// From now on clients wait.
    pub fn new(wish: Wish, settings: Settings) -> Self {
        let Wish { candidate, means, caller, received, call, listeners, locks } = wish;
        let mut descriptors = BTreeMap::new();
        let mut keep = |descriptor| keep(&mut descriptors, descriptor);
        let mut written_listeners = Vec::new();
        for LeftListener { protocol, socket, file } in listeners {
            written_listeners.push(WrittenListener { protocol, socket: keep(socket), file });
        }
        let program = keep(means.program);
        let rest = Rest {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            devices: Vec::new(),
            settings,
            locks: locks.into_iter().map(&mut keep).collect(),
            listeners: written_listeners,
            connections: Vec::new(),
            subsystem: None,
            caller: keep(caller),
            received,
            call,
            since_ns: shard::machine_now(),
            all_is_over: false,
        };
        let words = candidate.words().to_vec();
        let will = Will { format: FORMAT, program, words, failed: None, rest };
        Self { will, file: means.file, descriptors, candidate }
    }

    /// A connection that goes over.
    pub fn add(&mut self, protocol: &str, connection: Connected) {
        let Connected { socket, name, left } = connection;
        let (protocol, socket) = (protocol.to_owned(), keep(&mut self.descriptors, socket));
        let left = left.map(WrittenAgreed::from);
        self.will.rest.connections.push(WrittenConnection { protocol, socket, name, left });
    }

    /// What connections of NVMe/TCP share.
    pub fn add_subsystem(&mut self, subsystem: Option<LeftSubsystem>) {
        self.will.rest.subsystem = subsystem;
    }

    /// The array was stopped, and every request to its members has ended.
    pub fn note_that_all_is_over(&mut self) {
        self.will.rest.all_is_over = true;
    }

    /// What holds of the array now that it has stopped; `locks` keeps the devices that it has now.
    pub fn settle(&mut self, settings: Settings, devices: Vec<String>, locks: Vec<OwnedFd>) {
        let rest = &mut self.will.rest;
        rest.settings = settings;
        rest.devices = devices.into_iter().map(PathBuf::from).collect();
        for lock in locks {
            rest.locks.push(keep(&mut self.descriptors, lock));
        }
    }

    /// Becomes the other program; this one again, if that can't be. Returns only if neither can be.
    pub fn hand_over(mut self) -> Failure {
        let program = self.candidate.program();
        let why = if self.candidate.is_as_asked() {
            become_program(program, &self.will, &self.file, &self.descriptors)
        } else {
            "it isn't the file any more that was asked".to_owned()
        };
        let shown = printable(&program.display().to_string());
        log::warn(&format!("{shown} can't be started: {why}; the program before goes on"));
        go_back(&mut self.will, &self.file, &self.descriptors, &why)
    }
}

/// Puts a descriptor to the others, and gives its number.
fn keep(descriptors: &mut BTreeMap<RawFd, OwnedFd>, descriptor: OwnedFd) -> RawFd {
    let number = descriptor.as_raw_fd();
    descriptors.insert(number, descriptor);
    number
}

/// Becomes the program before again.
fn go_back<R: Serialize>(
    will: &mut Will<R>,
    file: &File,
    descriptors: &BTreeMap<RawFd, OwnedFd>,
    why: &str,
) -> Failure {
    will.failed = Some(why.to_owned());
    let path = PathBuf::from(format!("/proc/self/fd/{}", will.program));
    // By its name, if that is still its own: the process is called by the name.
    let named = fs::read_link(&path).ok().filter(|named| {
        let identity = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
        identity(named) == identity(&path)
    });
    let error = become_program(&named.unwrap_or(path), will, file, descriptors);
    Failure::new(format!(
        "the array is not served any more: {why}, and the program before can't go on: {error}"
    ))
}

/// Becomes the program before again, since this one can't go on: `why`. If this is the one before, there is
/// no other one.
fn give_up<R: Serialize>(
    will: &mut Will<R>,
    file: &File,
    descriptors: &BTreeMap<RawFd, OwnedFd>,
    why: &str,
) -> Failure {
    if let Some(first) = &will.failed {
        return Failure::new(format!(
            "the array is not served any more: {first}, and the program before can't go on: {why}"
        ));
    }
    log::warn(&format!("can't take over: {why}; the program before goes on"));
    go_back(will, file, descriptors, why)
}

/// Says why not.
fn become_program<R: Serialize>(
    program: &Path,
    will: &Will<R>,
    mut file: &File,
    descriptors: &BTreeMap<RawFd, OwnedFd>,
) -> String {
    let mut prepare = || -> io::Result<RawFd> {
        file.rewind()?;
        file.set_len(0)?;
        // At once: each number would be a call of the system.
        file.write_all(&serde_json::to_vec(will)?)?;
        file.rewind()?;
        for descriptor in descriptors.values() {
            inheritance::pass_on(descriptor)?;
        }
        inheritance::pass_on(file)
    };
    match prepare() {
        Ok(number) => {
            log::flush();
            run_wherever_the_process_may();
            // What the other program does is up to it: it may hang.
            last_resort::end_after(LIFE_SECONDS);
            let error = Command::new(program).args(with_role(&will.words, &number.to_string())).exec();
            last_resort::cancel();
            error.to_string()
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
    file: File,
    descriptors: Mutex<BTreeMap<RawFd, OwnedFd>>,
    /// Listening sockets that were not asked for yet.
    listeners: Mutex<Vec<WrittenListener>>,
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
        // Its time begins now: what it took to load the program may have been long.
        last_resort::end_after(LIFE_SECONDS);
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(|error| cannot(&error))?;
        let will = serde_json::from_slice(&text).and_then(|will: Will| match will.format {
            FORMAT => Ok(will),
            other => Err(serde_json::Error::custom(format!("format {other}, where {FORMAT} is known"))),
        });
        let will = match will {
            Ok(will) => will,
            Err(error) => {
                let mut will: Will<Value> = serde_json::from_slice(&text).map_err(|_| cannot(&error))?;
                let why = format!("the succession can't be read: {error}");
                // What it says of descriptors isn't known: they are as the program before has passed them on.
                return Err(give_up(&mut will, &file, &BTreeMap::new(), &why));
            }
        };
        let rest = &will.rest;
        let connections = rest.connections.iter().map(|connection| connection.socket);
        let listeners = rest.listeners.iter().map(|listener| listener.socket);
        let all = [will.program, rest.caller].into_iter().chain(rest.locks.iter().copied());
        let mut descriptors = BTreeMap::new();
        for number in all.chain(listeners).chain(connections) {
            descriptors.insert(number, inheritance::adopt(number).map_err(|error| cannot(&error))?);
        }
        let listeners = rest.listeners.clone().into();
        let own = Self { will: will.into(), file, descriptors: descriptors.into(), listeners };
        let locks: io::Result<_> = lock(&own.will).rest.locks.iter().map(|lock| own.copy(*lock)).collect();
        inheritance::inherit(locks.map_err(|error| cannot(&error))?);
        Ok(own)
    }

    fn copy(&self, number: RawFd) -> io::Result<OwnedFd> {
        let descriptors = lock(&self.descriptors);
        descriptors.get(&number).ok_or(io::ErrorKind::NotFound)?.try_clone()
    }

    /// The next listening socket of this protocol.
    pub fn listener(&self, protocol: &str) -> Option<LeftListener> {
        let mut listeners = lock(&self.listeners);
        let place = listeners.iter().position(|listener| listener.protocol == protocol)?;
        let WrittenListener { protocol, socket, file } = listeners.remove(place);
        Some(LeftListener { protocol, socket: self.copy(socket).ok()?, file })
    }

    /// Whether the program that was to take over has failed, and this is the one from before. Then there is
    /// none to go back to.
    pub fn is_return(&self) -> bool {
        lock(&self.will).failed.is_some()
    }

    /// To be called before the first request to a member. Whether all that was asked for before is over: what
    /// is asked for from now on need not be, if the program before goes on.
    pub fn begins(&self) -> bool {
        std::mem::take(&mut lock(&self.will).rest.all_is_over)
    }

    pub fn subsystem(&self) -> Option<LeftSubsystem> {
        lock(&self.will).rest.subsystem.clone()
    }

    pub fn devices(&self) -> Vec<PathBuf> {
        lock(&self.will).rest.devices.clone()
    }

    pub fn settings(&self) -> Settings {
        lock(&self.will).rest.settings
    }

    /// See [`give_up`].
    pub fn go_back(&self, why: &Failure) -> Failure {
        give_up(&mut lock(&self.will), &self.file, &lock(&self.descriptors), why.sentence())
    }

    /// From now on all is ours: the connections, by protocol, and the one that asked for this, with the name
    /// of its call and the answer.
    pub fn take(&self) -> Taken {
        let mut descriptors = lock(&self.descriptors);
        let Will { failed, rest, .. } = &mut *lock(&self.will);
        let mut connections = Vec::new();
        for WrittenConnection { protocol, socket, name, left } in rest.connections.drain(..) {
            let left = left.map(Agreed::from);
            if let Some(socket) = descriptors.remove(&socket) {
                connections.push((protocol, Connected { socket, name, left }));
            }
        }
        let socket = descriptors.remove(&rest.caller);
        let caller = socket.zip(rest.call.take()).map(|(socket, call)| Caller {
            socket,
            call,
            received: std::mem::take(&mut rest.received),
        });
        descriptors.clear();
        inheritance::forget_inherited();
        let result = UpgradeResult {
            from: rest.version.clone(),
            to: env!("CARGO_PKG_VERSION").to_owned(),
            pause_ms: shard::machine_now().saturating_sub(rest.since_ns) / 1_000_000,
            connections: connections.iter().filter(|(_, connection)| connection.left.is_some()).count()
                as u64,
        };
        Taken { connections, caller, result, failed: failed.clone() }
    }
}

/// See [`Inheritance::take`].
pub struct Taken {
    pub connections: Vec<(String, Connected)>,
    pub caller: Option<Caller>,
    pub result: UpgradeResult,
    pub failed: Option<String>,
}

/// The connection that asked for the change.
pub struct Caller {
    pub socket: OwnedFd,
    /// The name of the call.
    pub call: Value,
    /// What has come behind it.
    pub received: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The program before has to wait for what a next one began to write and gave up.
    #[test]
    fn that_all_is_over_is_said_until_the_next_program_begins_and_not_after_that() {
        let settings = serde_json::json!({ "limit": pinstripe_control::limit::Limit::default(), "sync_speed_min_kib": 1, "sync_speed_max_kib": 2,
            "sync_paused": false, "write_back": null });
        let rest = Rest {
            version: String::new(),
            devices: Vec::new(),
            settings: serde_json::from_value(settings).unwrap(),
            locks: Vec::new(),
            listeners: Vec::new(),
            connections: Vec::new(),
            subsystem: None,
            caller: 0,
            received: Vec::new(),
            call: None,
            since_ns: 0,
            all_is_over: true,
        };
        let will = Will { format: FORMAT, program: 0, words: Vec::new(), failed: None, rest };
        let left = Inheritance {
            will: will.into(),
            file: tempfile::tempfile().unwrap(),
            descriptors: Mutex::default(),
            listeners: Mutex::default(),
        };
        assert!(left.begins());
        assert!(!left.begins());
        let text = serde_json::to_string(&*lock(&left.will)).unwrap();
        assert!(text.contains("\"all_is_over\":false"), "it goes back so: {text}");
    }

    #[test]
    fn what_was_agreed_with_a_client_is_read_as_it_was_written() {
        for bits in 0..8_u8 {
            let negotiated = Negotiated {
                export: usize::from(bits & 1),
                structured: bits & 2 > 0,
                allocation: bits & 4 > 0,
            };
            let left = Left { negotiated, received: vec![bits; usize::from(bits) * 4] };
            let written = serde_json::to_string(&WrittenAgreed::from(Agreed::Nbd(left.clone()))).unwrap();
            let Agreed::Nbd(read) = serde_json::from_str::<WrittenAgreed>(&written).unwrap().into() else {
                panic!("{written}");
            };
            assert_eq!(read, left);
        }
    }
}
