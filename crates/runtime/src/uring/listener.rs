//! Sockets that wait for connections.

use std::{
    cell::{Cell, RefCell},
    future::poll_fn,
    io,
    net::SocketAddr,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    pin::Pin,
    rc::Rc,
    time::Duration,
};

use rustix::{
    fs::{AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, Uid},
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt},
};

use crate::{
    completion::Payload,
    uring::{
        operation::{Descriptor, File, Kind, Operation},
        socket::{Connection, Pending},
    },
};

/// Connections that the kernel holds until they are accepted.
const BACKLOG: i32 = 128;
/// How often, and after what time, a lock that another process holds is asked for again.
const LOCK_LOOKS: u32 = 100;
const LOCK_LOOK: Duration = Duration::from_millis(10);

/// To which users a unix socket is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Access {
    /// The mode of its file; 0600 without.
    pub mode: Option<u32>,
    /// Its owner, if not this user.
    pub owner: Option<u32>,
    /// Its group, if not this user's.
    pub group: Option<u32>,
}

impl Access {
    /// Gives the socket's file its mode, owner and group, and asks the kernel for no more than was asked for:
    /// a service may be forbidden to give files away. The mode comes first, while the file is still this
    /// user's. The owner of the folder may be another user, and can put a link or a file of this user's in
    /// its place: what isn't `ours` gets nothing.
    fn give(self, path: &Path, ours: (u64, u64)) -> Result<(), Errno> {
        let Self { mode, owner, group } = self;
        let socket = SocketFile::at(path)?.filter(|socket| socket.identity == ours).ok_or(Errno::STALE)?;
        mode.map_or(Ok(()), |mode| rustix::fs::chmod(socket.by_descriptor(), mode.into()))?;
        if owner.is_none() && group.is_none() {
            return Ok(());
        }
        socket.give(owner.map(Uid::from_raw), group.map(Gid::from_raw))
    }
}

/// Why an address can't be listened on. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// Another server listens there.
    #[error("the socket {address} is in use by another server")]
    InUse {
        /// Path, or address and port.
        address: String,
    },
    /// There is a file that we must not remove.
    #[error("{} exists and is not a socket: choose another path", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The socket can't get the owner, group or mode that was asked for.
    #[error("can't give the socket {} its owner, group and mode: {source}", path.display())]
    Access {
        /// The path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Any other error.
    #[error("can't listen on {address}: {source}")]
    Io {
        /// Path, or address and port.
        address: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// A listening socket on one shard. A unix socket's file goes with it.
pub struct Listener {
    /// The accept under way, which outlives a caller that stops waiting: a connection it got goes to the
    /// next.
    accepting: RefCell<Option<Pending>>,
    accepted: Rc<RefCell<Option<OwnedFd>>>,
    descriptor: Rc<Descriptor>,
    /// With the file's device and inode.
    path: Option<(PathBuf, (u64, u64))>,
    address: Option<SocketAddr>,
    is_left: Rc<Cell<bool>>,
    /// It was inherited, and isn't used yet: it may go back.
    is_untouched: Cell<bool>,
}

/// By which a listening socket, which a task may have, is left to another process.
pub struct Leaver {
    descriptor: Rc<Descriptor>,
    accepted: Rc<RefCell<Option<OwnedFd>>>,
    is_left: Rc<Cell<bool>>,
    file: Option<(u64, u64)>,
}

impl Leaver {
    /// The socket for another process, for [`Listener::inherited`] there. It goes on listening, and its file
    /// stays, when the listener here goes.
    pub fn leave(&self) -> io::Result<OwnedFd> {
        let socket = self.descriptor.file().fd.try_clone()?;
        self.is_left.set(true);
        Ok(socket)
    }

    /// It isn't left after all.
    pub fn stay(&self) {
        self.is_left.set(false);
    }

    /// Device and inode of a unix socket's file, by which [`Listener::inherited`] knows it.
    pub fn file(&self) -> Option<(u64, u64)> {
        self.file
    }

    /// The connection that was being accepted when the listener went, if one was. The ring must have had time
    /// to give that accept up.
    pub fn last_accepted(&self) -> Option<OwnedFd> {
        self.accepted.take()
    }
}

impl Listener {
    /// Listens on a unix socket that only this user may connect to (mode 0600). A socket file that no process
    /// listens on is replaced.
    pub fn unix(path: impl AsRef<Path>) -> Result<Self, ListenError> {
        let path = path.as_ref();
        let (socket, identity) = listen_unix(path)?;
        Ok(Self::new(socket, Some((path.to_owned(), identity)), None))
    }

    /// The same, for users that may connect to it.
    pub fn unix_for(path: impl AsRef<Path>, access: Access) -> Result<Self, ListenError> {
        let path = path.as_ref();
        let (socket, identity) = listen_unix(path)?;
        let listener = Self::new(socket, Some((path.to_owned(), identity)), None);
        match access.give(path, identity) {
            Ok(()) => Ok(listener),
            Err(error) => Err(ListenError::Access { path: path.to_owned(), source: error.into() }),
        }
    }

    /// Listens on a TCP address; port 0 for any. One that no interface has is listened on until one gets it:
    /// at a boot the network may take its time.
    pub fn tcp(address: SocketAddr) -> Result<Self, ListenError> {
        let failed = |e| if e == Errno::ADDRINUSE { in_use(&address) } else { failed(&address, e) };
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let socket = rustix::net::socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let socket = socket.map_err(failed)?;
        sockopt::set_socket_reuseaddr(&socket, true).map_err(failed)?;
        let mut bound = rustix::net::bind(&socket, &address);
        if bound == Err(Errno::ADDRNOTAVAIL) {
            bound =
                sockopt::set_ip_freebind(&socket, true).and_then(|()| rustix::net::bind(&socket, &address));
        }
        bound.map_err(failed)?;
        rustix::net::listen(&socket, BACKLOG).map_err(failed)?;
        let address = rustix::net::getsockname(&socket).map_err(failed)?.try_into().map_err(failed)?;
        Ok(Self::new(socket, None, Some(address)))
    }

    fn new(socket: OwnedFd, path: Option<(PathBuf, (u64, u64))>, address: Option<SocketAddr>) -> Self {
        Self {
            accepting: RefCell::default(),
            accepted: Rc::default(),
            descriptor: Descriptor::new(File::new(socket)),
            path,
            address,
            is_left: Rc::default(),
            is_untouched: Cell::new(false),
        }
    }

    /// A socket that another process has left; of a unix socket with the path of its file, and which file
    /// that is: another one that is there now is none of ours. It is ours from the first
    /// [`Listener::accept`] on: if this goes before, the socket goes on listening.
    pub fn inherited(socket: OwnedFd, file: Option<(&Path, (u64, u64))>) -> Result<Self, ListenError> {
        let listener = if let Some((path, identity)) = file {
            Self::new(socket, Some((path.to_owned(), identity)), None)
        } else {
            let failed = |e| failed(&"an inherited socket", e);
            let address = rustix::net::getsockname(&socket).map_err(failed)?.try_into().map_err(failed)?;
            Self::new(socket, None, Some(address))
        };
        listener.is_untouched.set(true);
        Ok(listener)
    }

    /// By which it can be left, whatever becomes of this.
    pub fn leaver(&self) -> Leaver {
        Leaver {
            descriptor: Rc::clone(&self.descriptor),
            accepted: Rc::clone(&self.accepted),
            is_left: Rc::clone(&self.is_left),
            file: self.path.as_ref().map(|(_, identity)| *identity),
        }
    }

    /// The TCP address, with the port that the kernel chose.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Whether no interface had the TCP address when it was bound.
    pub fn is_ahead_of_network(&self) -> bool {
        sockopt::ip_freebind(&self.descriptor.file().fd).unwrap_or(false)
    }

    /// Waits for the next connection. One task at a time may wait; a dropped wait loses no connection.
    pub async fn accept(&self) -> io::Result<Connection> {
        self.is_untouched.set(false);
        let outcome = poll_fn(|cx| {
            let mut accepting = self.accepting.borrow_mut();
            let pending = accepting.get_or_insert_with(|| {
                let accept = Operation::new(Kind::Accept(Rc::clone(&self.accepted)), &self.descriptor);
                Pending::start(&self.descriptor, Payload::None, accept)
            });
            let polled = Future::poll(Pin::new(pending), cx);
            if polled.is_ready() {
                *accepting = None;
            }
            polled
        })
        .await;
        outcome.result.map_err(|e| io::Error::from_raw_os_error(e.errno))?;
        let socket = self.accepted.borrow_mut().take().ok_or(io::ErrorKind::ConnectionAborted)?;
        Ok(Connection::new(socket))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.is_left.get() || self.is_untouched.get() {
            return;
        }
        // Connections that wait in the backlog are refused now, whatever still holds the descriptor.
        let _ = rustix::net::shutdown(self.descriptor.file().fd.as_fd(), rustix::net::Shutdown::Both);
        if let Some((path, ours)) = &self.path
            && identity(path).is_ok_and(|now| now == *ours)
        {
            let _ = rustix::fs::unlink(path);
        }
    }
}

fn in_use(address: &impl ToString) -> ListenError {
    ListenError::InUse { address: address.to_string() }
}

fn failed(address: &impl ToString, error: Errno) -> ListenError {
    ListenError::Io { address: address.to_string(), source: error.into() }
}

fn identity(path: &Path) -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::lstat(path)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// The socket and its file's identity.
fn listen_unix(path: &Path) -> Result<(OwnedFd, (u64, u64)), ListenError> {
    let failed = |e| failed(&path.display(), e);
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    // Two servers that find a stale socket at the same time must not remove each other's new one. Until it
    // listens, it looks stale, so the lock is held for all of it.
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let _locked = lock(folder).map_err(failed)?;
    let socket = stream_socket().map_err(failed)?;
    // Linux gives the file the mode of the socket's own inode, so there is no moment in which others may
    // connect.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    match rustix::net::bind(&socket, &address) {
        Err(Errno::ADDRINUSE) => {
            remove_stale(path)?;
            rustix::net::bind(&socket, &address).map_err(failed)?;
        }
        bound => bound.map_err(failed)?,
    }
    rustix::net::listen(&socket, BACKLOG).map_err(failed)?;
    let identity = identity(path).map_err(failed)?;
    Ok((socket, identity))
}

/// Locks a folder, if that is possible within a second. Servers hold this lock for microseconds; but any user
/// that may read the folder can hold it for ever, and must not keep a server from its start.
fn lock(folder: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty())?;
    for _ in 0..LOCK_LOOKS {
        match rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::AGAIN) => std::thread::sleep(LOCK_LOOK),
            locked => return locked.map(|()| folder),
        }
    }
    Ok(folder)
}

/// Removes the file of a socket on which no process listens.
fn remove_stale(path: &Path) -> Result<(), ListenError> {
    match SocketFile::at(path).map_err(|e| failed(&path.display(), e))? {
        Some(socket) => socket.remove_stale(),
        None => Err(ListenError::NotASocket { path: path.to_owned() }),
    }
}

/// The file of a socket, whatever is at its path by now: the owner of its folder may be another user, and can
/// put another file there at any moment.
struct SocketFile<'a> {
    path: &'a Path,
    file: OwnedFd,
    /// Device and inode.
    identity: (u64, u64),
    owner: Uid,
}

impl<'a> SocketFile<'a> {
    /// What is at a path, if that is a socket.
    fn at(path: &'a Path) -> Result<Option<Self>, Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        let is_socket = FileType::from_raw_mode(stat.st_mode) == FileType::Socket;
        let (identity, owner) = ((stat.st_dev, stat.st_ino), Uid::from_raw(stat.st_uid));
        Ok(is_socket.then_some(Self { path, file, identity, owner }))
    }

    fn by_descriptor(&self) -> String {
        format!("/proc/self/fd/{}", self.file.as_raw_fd())
    }

    fn give(&self, owner: Option<Uid>, group: Option<Gid>) -> Result<(), Errno> {
        rustix::fs::chownat(&self.file, "", owner, group, AtFlags::EMPTY_PATH)
    }

    fn connect(&self) -> Result<(), Errno> {
        let client = stream_socket()?;
        rustix::io::ioctl_fionbio(&client, true)?;
        rustix::net::connect(&client, &SocketAddrUnix::new(self.by_descriptor())?)
    }

    /// Removes it, if no process listens on it. A socket that was given to another user is taken back
    /// meanwhile, if this process may do that: a service that may give files away may do so, and may neither
    /// connect nor, in a folder such as `/tmp`, remove it otherwise.
    fn remove_stale(&self) -> Result<(), ListenError> {
        let connected = self.connect();
        let us = rustix::process::geteuid();
        let taken = connected == Err(Errno::ACCESS) && self.give(Some(us), None).is_ok();
        let connected = if taken { self.connect() } else { connected };
        let removed = match connected {
            Err(Errno::CONNREFUSED) if self.is_there() => {
                rustix::fs::unlink(self.path).map_err(|e| failed(&self.path.display(), e))
            }
            // A full backlog (EAGAIN) is a listener too, and where we can't tell, the file stays.
            Ok(()) | Err(_) => Err(in_use(&self.path.display())),
        };
        if taken {
            // Also what was removed: its owner may have another name for it.
            let _ = self.give(Some(self.owner), None);
        }
        removed
    }

    fn is_there(&self) -> bool {
        identity(self.path) == Ok(self.identity)
    }
}

fn stream_socket() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::{
            fs::{MetadataExt, PermissionsExt, chown, symlink},
            net::UnixListener,
        },
        sync::mpsc,
        thread,
    };

    use super::*;

    #[test]
    fn a_lock_that_another_process_keeps_on_the_folder_keeps_no_server_from_its_start() {
        let folder = tempfile::tempdir().unwrap();
        let locked = fs::File::open(folder.path()).unwrap();
        rustix::fs::flock(&locked, FlockOperation::LockExclusive).unwrap();
        let path = folder.path().join("socket");
        let (tell, told) = mpsc::channel();
        let starting = thread::spawn(move || tell.send(listen_unix(&path).map(|_| ())).unwrap());
        let listens = told.recv_timeout(Duration::from_secs(30));
        drop(locked);
        starting.join().unwrap();
        listens.expect("it waits for the lock").unwrap();
    }

    #[test]
    fn what_has_taken_the_place_of_a_stale_socket_is_neither_removed_nor_given_away() {
        let folder = tempfile::tempdir().unwrap();
        let (path, away) = (folder.path().join("socket"), folder.path().join("away"));
        // Left over by a server that was killed.
        drop(UnixListener::bind(&path).unwrap());
        let own = fs::symlink_metadata(&path).unwrap().uid();
        // Only root gives files away.
        let user = if own == 0 { 65534 } else { own };
        chown(&path, Some(user), None).unwrap();
        let socket = SocketFile::at(&path).unwrap().unwrap();
        fs::rename(&path, &away).unwrap();
        fs::write(&path, "").unwrap();
        chown(&path, Some(user), None).unwrap();
        socket.give(Some(Uid::from_raw(own)), None).unwrap();
        let owner = |path: &PathBuf| fs::symlink_metadata(path).unwrap().uid();
        assert_eq!((owner(&path), owner(&away)), (user, own));
        assert!(matches!(socket.remove_stale(), Err(ListenError::InUse { .. })));
        assert!(path.exists() && away.exists());
        fs::rename(&away, &path).unwrap();
        socket.remove_stale().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn access_is_given_to_the_socket_that_was_made_and_to_nothing_that_has_taken_its_place() {
        let folder = tempfile::tempdir().unwrap();
        let (path, away) = (folder.path().join("socket"), folder.path().join("away"));
        let other = folder.path().join("other");
        fs::write(&other, "").unwrap();
        fs::set_permissions(&other, fs::Permissions::from_mode(0o600)).unwrap();
        let (_socket, ours) = listen_unix(&path).unwrap();
        let own = fs::symlink_metadata(&path).unwrap().uid();
        // Only root gives files away.
        let owner = if own == 0 { 65534 } else { own };
        let access = Access { mode: Some(0o666), owner: Some(owner), group: None };
        let stays = || {
            let found = fs::metadata(&other).unwrap();
            (found.mode() & 0o777, found.uid()) == (0o600, own)
        };
        fs::rename(&path, &away).unwrap();
        symlink(&other, &path).unwrap();
        assert_eq!(access.give(&path, ours), Err(Errno::STALE));
        assert!(stays());
        fs::rename(&other, &path).unwrap();
        assert_eq!(access.give(&path, ours), Err(Errno::STALE));
        fs::rename(&path, &other).unwrap();
        assert!(stays());
        fs::rename(&away, &path).unwrap();
        access.give(&path, ours).unwrap();
        let given = fs::symlink_metadata(&path).unwrap();
        assert_eq!((given.mode() & 0o777, given.uid()), (0o666, owner));
    }
}
