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
};

use rustix::{
    fs::{AtFlags, CWD, FileType, FlockOperation, Gid, Mode, OFlags, Uid},
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
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(path, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&file)?;
        if (stat.st_dev, stat.st_ino) != ours || FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return Err(Errno::STALE);
        }
        let by_descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
        mode.map_or(Ok(()), |mode| rustix::fs::chmod(by_descriptor, mode.into()))?;
        if owner.is_none() && group.is_none() {
            return Ok(());
        }
        let (owner, group) = (owner.map(Uid::from_raw), group.map(Gid::from_raw));
        rustix::fs::chownat(&file, "", owner, group, AtFlags::EMPTY_PATH)
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
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let folder = rustix::fs::open(folder, flags, Mode::empty()).map_err(failed)?;
    rustix::fs::flock(&folder, FlockOperation::LockExclusive).map_err(failed)?;
    let socket = stream_socket().map_err(failed)?;
    // Linux gives the file the mode of the socket's own inode, so there is no moment in which others may
    // connect.
    rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    match rustix::net::bind(&socket, &address) {
        Err(Errno::ADDRINUSE) => {
            remove_stale(path, &address)?;
            rustix::net::bind(&socket, &address).map_err(failed)?;
        }
        bound => bound.map_err(failed)?,
    }
    rustix::net::listen(&socket, BACKLOG).map_err(failed)?;
    let identity = identity(path).map_err(failed)?;
    Ok((socket, identity))
}

/// Removes the file of a socket on which no process listens.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<(), ListenError> {
    let failed = |e| failed(&path.display(), e);
    let stat = rustix::fs::lstat(path).map_err(failed)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
        return Err(ListenError::NotASocket { path: path.to_owned() });
    }
    let client = stream_socket().map_err(failed)?;
    rustix::io::ioctl_fionbio(&client, true).map_err(failed)?;
    let connected = match rustix::net::connect(&client, address) {
        Err(Errno::ACCESS) => connect_as_owner(path, Uid::from_raw(stat.st_uid), &client, address),
        connected => connected,
    };
    match connected {
        Err(Errno::CONNREFUSED) => rustix::fs::unlink(path).map_err(failed),
        // A full backlog (EAGAIN) is a listener too, and where we can't tell, the file stays.
        Ok(()) | Err(_) => Err(in_use(&path.display())),
    }
}

/// Connects to a socket that was given to another user, if this process may take it back: a service that may
/// give files away may do so, and may not connect otherwise. It stays taken back if no process listens on it.
fn connect_as_owner(
    path: &Path,
    owner: Uid,
    client: &OwnedFd,
    address: &SocketAddrUnix,
) -> Result<(), Errno> {
    let give = |to| rustix::fs::chownat(CWD, path, Some(to), None, AtFlags::SYMLINK_NOFOLLOW);
    give(rustix::process::geteuid())?;
    let connected = rustix::net::connect(client, address);
    if connected != Err(Errno::CONNREFUSED) {
        let _ = give(owner);
    }
    connected
}

fn stream_socket() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    };

    use super::*;

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
