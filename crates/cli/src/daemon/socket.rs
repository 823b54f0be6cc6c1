//! The daemon's lock and control socket. Each connection has a thread, which hands its calls to the daemon.

use std::{
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::{
        fs::PermissionsExt,
        net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{Sender, channel},
    },
    thread,
    time::Duration,
};

use pinstripe_control::{
    CallError, REQUEST_BYTES_MAX, code,
    daemon::{SOCKET, parse},
    response,
};
use rustix::{
    fs::{FlockOperation, Mode, OFlags, flock, open},
    io::Errno,
};
use serde_json::Value;

use super::{Message, threads};
use crate::{failure::Failure, list};

/// The files that are locked, in the folder of sockets and in that of the state.
const LOCK: &str = "daemon.lock";
const LOCK_OF_STATE: &str = "state.lock";
/// Connections at a time; one more is closed.
const CONNECTIONS_MAX: usize = 64;
/// How long a connection may be silent, and its reader not read.
const IDLE: Duration = Duration::from_mins(1);
/// Pause where a connection could not be taken: then that fails again at once.
const PAUSE: Duration = Duration::from_millis(100);

/// The socket. Its file goes with it.
pub struct Socket {
    pub path: PathBuf,
}

impl Socket {
    /// Listens in `folder`, where no other daemon does.
    pub fn listen(folder: &Path, sender: Sender<Message>) -> Result<Self, Failure> {
        let path = folder.join(SOCKET);
        let failed = |error: io::Error| Failure::new(format!("can't listen on {}: {error}", path.display()));
        // It gets its name when only this user can connect to it.
        let new = folder.join(format!("{SOCKET}.new"));
        let _ = fs::remove_file(&new);
        let listener = UnixListener::bind(&new).map_err(failed)?;
        fs::set_permissions(&new, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        fs::rename(&new, &path).map_err(failed)?;
        threads::spawn("accept", move || accept(&listener, &sender)).map_err(failed)?;
        Ok(Self { path })
    }
}

/// Sees to it that there is one daemon: the file is locked while it lives.
pub fn alone(folder: &Path) -> Result<fs::File, Failure> {
    let path = folder.join(LOCK);
    let failed = |error: io::Error| Failure::new(format!("can't lock {}: {error}", path.display()));
    match lock(&path) {
        Ok(file) => Ok(file),
        Err(Errno::WOULDBLOCK) => {
            // One that has just begun doesn't say yet.
            let process = list::process(&folder.join(SOCKET));
            let process = process.map(|process| format!(", as process {process},")).unwrap_or_default();
            Err(Failure::new(format!(
                "a daemon runs already{process} and has {} locked: `pinstripe status` shows it; nothing was done",
                path.display()
            )))
        }
        Err(error) => Err(failed(error.into())),
    }
}

/// Sees to it that no other daemon has this state, whichever folder of sockets it has: two would tell each
/// other's alerts to be over. Without room for the file, or the right to write it, there is no state to
/// share.
pub fn alone_with(state: &Path) -> Result<Option<fs::File>, Failure> {
    let path = state.join(LOCK_OF_STATE);
    match fs::create_dir_all(state).map_err(|_| Errno::ACCESS).and_then(|()| lock(&path)) {
        Ok(file) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Err(Failure::new(format!(
            "a daemon with another folder of sockets has {} locked: name another folder for this one's state by PINSTRIPE_STATE_DIR; \
             nothing was done",
            path.display()
        ))),
        Err(_) => Ok(None),
    }
}

fn lock(path: &Path) -> Result<fs::File, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = fs::File::from(open(path, flags, Mode::RUSR | Mode::WUSR)?);
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    Ok(file)
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn accept(listener: &UnixListener, sender: &Sender<Message>) {
    let connections = Arc::new(());
    for stream in listener.incoming() {
        let Ok(stream) = stream else {
            thread::sleep(PAUSE);
            continue;
        };
        if Arc::strong_count(&connections) > CONNECTIONS_MAX {
            continue;
        }
        let (sender, counted) = (sender.clone(), Arc::clone(&connections));
        let _ = threads::spawn("call", move || {
            // A client that goes away is none of the daemon's concern.
            let _ = serve(&stream, &sender);
            drop(counted);
        });
    }
}

fn serve(stream: &UnixStream, sender: &Sender<Message>) -> io::Result<()> {
    stream.set_read_timeout(Some(IDLE))?;
    stream.set_write_timeout(Some(IDLE))?;
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    loop {
        let mut line = Vec::new();
        reader.by_ref().take(REQUEST_BYTES_MAX as u64).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            let error = CallError::new(code::INVALID, "a request is a line of at most 64 KiB");
            return writer.write_all(response(Value::Null, Err(error)).as_bytes());
        }
        let (id, outcome) = match parse(&line) {
            Err((id, error)) => (Some(id), Err(error)),
            Ok((id, command)) => {
                let (answer, answered) = channel();
                let _ = sender.send(Message::Call(command, answer));
                let ending = |_| Err(CallError::new(code::STOPPING, "the daemon is about to end"));
                (id, answered.recv().unwrap_or_else(ending))
            }
        };
        if let Some(id) = id {
            writer.write_all(response(id, outcome).as_bytes())?;
        }
    }
}
