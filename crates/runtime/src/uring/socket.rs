//! Connections over the shard's ring.

use std::{
    cell::{Cell, RefCell},
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, sockopt},
};

use crate::{
    Buffer, Shard, Slice, Stream, Submission,
    completion::{Outcome, Payload},
    shard,
    uring::{
        blocking,
        operation::{Descriptor, File, Kind, Operation},
    },
};

/// How long nothing comes of a TCP peer until the kernel asks whether it is there, how often it does, and the
/// pause between.
const KEEP_ALIVE_IDLE: Duration = Duration::from_mins(1);
const KEEP_ALIVE_PAUSE: Duration = Duration::from_secs(10);
const KEEP_ALIVE_COUNT: u32 = 6;
/// For so long after a request has come, what the ring has told by then is believed of its peer.
const NEWS_NANOSECONDS: u64 = 1_000_000;

/// A connected socket that no shard uses yet: it may go to any.
#[derive(Debug)]
pub struct Connection {
    fd: OwnedFd,
}

/// The other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// A process of this machine, on a unix socket, by its number when it connected.
    Process(i32),
    /// An address.
    Address(SocketAddr),
}

impl Connection {
    /// The other end, if that can be told.
    pub fn peer(&self) -> Option<Peer> {
        let address = rustix::net::getpeername(&self.fd).ok().flatten();
        if let Some(address) = address.and_then(|address| SocketAddr::try_from(address).ok()) {
            return Some(Peer::Address(address));
        }
        process_of(&self.fd).map(Peer::Process)
    }

    /// Takes a connected stream socket over.
    pub fn new(socket: impl Into<OwnedFd>) -> Self {
        Self { fd: socket.into() }
    }

    /// The socket itself.
    pub(super) fn into_file(self) -> OwnedFd {
        self.fd
    }

    /// The connection on this shard.
    pub fn attach(self) -> io::Result<Rc<SocketStream>> {
        // A non-blocking socket would have the ring report that it would block, instead of waiting.
        rustix::io::ioctl_fionbio(&self.fd, false)?;
        // Answers are short and awaited. A unix socket has no such thing.
        let _ = sockopt::set_tcp_nodelay(&self.fd, true);
        let peer = match self.peer() {
            Some(Peer::Address(address)) => Some(address.ip().to_canonical()),
            _ => None,
        };
        if peer.is_some() {
            // One that has ended just now needs nothing.
            let _ = notice_dead_peer(&self.fd);
        }
        let descriptor = Descriptor::new(File::new(self.fd));
        let (is_left, hang_up) = Default::default();
        Ok(Rc::new(SocketStream { descriptor, peer, is_left, hang_up }))
    }
}

impl From<Connection> for OwnedFd {
    fn from(connection: Connection) -> Self {
        connection.fd
    }
}

/// Has the kernel end a TCP connection of which the peer is gone without a word, as a machine that has lost
/// its power is: an idle connection would stay for ever.
fn notice_dead_peer(socket: &OwnedFd) -> io::Result<()> {
    sockopt::set_tcp_keepidle(socket, KEEP_ALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEP_ALIVE_PAUSE)?;
    sockopt::set_tcp_keepcnt(socket, KEEP_ALIVE_COUNT)?;
    Ok(sockopt::set_socket_keepalive(socket, true)?)
}

/// The process at the other end of a unix socket. The kernel says 0, which `rustix` doesn't expect, if there
/// is none, as for a TCP connection that was reset before it was accepted, or if this process can't see it
/// from its namespace.
fn process_of(socket: &OwnedFd) -> Option<i32> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = libc::socklen_t::try_from(size_of::<libc::ucred>()).ok()?;
    // SAFETY: the kernel writes at most `length` bytes, all of which are within `credentials`, and takes any
    // bytes for numbers.
    let result = unsafe {
        let place = (&raw mut credentials).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut length)
    };
    (result == 0 && credentials.pid > 0).then_some(credentials.pid)
}

/// A connection on one shard. It shuts down when it is dropped, unless it was left.
pub struct SocketStream {
    descriptor: Rc<Descriptor>,
    peer: Option<IpAddr>,
    is_left: Cell<bool>,
    /// Completes when the peer hangs up. From the first time on that anything asks.
    hang_up: RefCell<Option<Pending>>,
}

impl SocketStream {
    /// The connection for another shard or process, which this one no longer ends. No request of it may be
    /// under way.
    pub fn leave(&self) -> io::Result<Connection> {
        let fd = self.descriptor.file().fd.try_clone()?;
        self.is_left.set(true);
        self.hang_up.take();
        Ok(Connection { fd })
    }

    /// It isn't left after all.
    pub fn stay(&self) {
        self.is_left.set(false);
    }

    /// Whether the other end is closed: it reads nothing any more. One that has only ended what it sends
    /// still waits for answers.
    pub fn is_abandoned(&self) -> bool {
        self.shows(PollFlags::HUP | PollFlags::ERR)
    }

    /// Whether one of these is so now.
    fn shows(&self, flags: PollFlags) -> bool {
        let mut looked_at = [PollFd::new(&self.descriptor.file().fd, flags & PollFlags::RDHUP)];
        let polled = rustix::event::poll(&mut looked_at, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        polled.is_ok() && looked_at[0].revents().intersects(flags)
    }
}

impl Stream for SocketStream {
    fn receive(&self, buffer: Buffer) -> Submission {
        let operation = Operation::new(Kind::Receive, &self.descriptor).memory(buffer.as_ptr(), buffer.len());
        self.descriptor.driver().start(Payload::Buffer(buffer), operation)
    }

    fn send(&self, data: Slice) -> Submission {
        let operation = Operation::new(Kind::Send, &self.descriptor).memory(data.as_ptr(), data.len());
        self.descriptor.driver().start(Payload::Slice(data), operation)
    }

    fn interrupt(&self, receive: &Submission) {
        if let Some(slot) = receive.slot() {
            self.descriptor.driver().cancel(slot);
        }
    }

    fn shutdown(&self) {
        // It fails only if the connection has ended already.
        let _ = rustix::net::shutdown(self.descriptor.file().fd.as_fd(), rustix::net::Shutdown::Both);
    }

    /// The ring tells it of what goes straight from the peer to where it asks, so that such a look is no
    /// system call. For what has waited, and where the shard stands still in the middle of a turn, the kernel
    /// is asked directly.
    fn has_hung_up(&self) -> bool {
        let mut hang_up = self.hang_up.borrow_mut();
        let mut context = Context::from_waker(Waker::noop());
        let is_quiet = hang_up.as_mut().is_some_and(|told| Pin::new(told).poll(&mut context).is_pending());
        if is_quiet && shard::with_current(Shard::since_arrival) < NEWS_NANOSECONDS {
            return false;
        }
        let has_hung_up = self.shows(PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR);
        if has_hung_up {
            // Nothing is waited for then, so that the kernel is asked every time.
            *hang_up = None;
        } else if !is_quiet {
            let wait = Operation::new(Kind::HangUp, &self.descriptor);
            *hang_up = Some(Pending::start(&self.descriptor, Payload::None, wait));
        }
        has_hung_up
    }

    fn peer(&self) -> Option<IpAddr> {
        self.peer
    }
}

impl Drop for SocketStream {
    fn drop(&mut self) {
        // Ends requests with dropped submissions; they would hold the socket open.
        if !self.is_left.get() {
            self.shutdown();
        }
    }
}

/// Connects to the unix socket at `path`.
pub async fn connect_unix(path: impl AsRef<Path>) -> io::Result<Rc<SocketStream>> {
    let path = path.as_ref().to_owned();
    Connection::new(blocking(move || UnixStream::connect(path)).await?).attach()
}

/// Connects to `address`. No thread waits for the answer; dropping the future gives the attempt up.
pub async fn connect_tcp(address: SocketAddr) -> io::Result<Rc<SocketStream>> {
    connect_tcp_from(None, address).await
}

/// The same from an address of this machine, if one is named.
///
/// What isn't sent when the connection is closed, by this process or by its end, never is: a kernel that went
/// on sending could bring the other end an old request after a new one (C16). So the other end sees a reset.
pub async fn connect_tcp_from(own: Option<IpAddr>, address: SocketAddr) -> io::Result<Rc<SocketStream>> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_linger(&socket, Some(Duration::ZERO))?;
    if let Some(own) = own {
        rustix::net::bind(&socket, &SocketAddr::new(own, 0))?;
    }
    match rustix::net::connect(&socket, &address) {
        Ok(()) => return Connection::new(socket).attach(),
        Err(Errno::INPROGRESS | Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let file = File::new(socket);
    let descriptor = Descriptor::new(Arc::clone(&file));
    let writable = Operation::new(Kind::Writable, &descriptor);
    let outcome = Pending::start(&descriptor, Payload::None, writable).await;
    outcome.result.map_err(|error| io::Error::from_raw_os_error(error.errno))?;
    sockopt::socket_error(&file.fd)??;
    // The operation's own handles go a little later.
    Connection::new(file.fd.try_clone()?).attach()
}

/// A request that is cancelled when no task waits for it any more.
pub(super) struct Pending {
    submission: Submission,
    descriptor: Rc<Descriptor>,
    ended: bool,
}

impl Pending {
    pub(super) fn start(descriptor: &Rc<Descriptor>, payload: Payload, operation: Operation) -> Self {
        let submission = descriptor.driver().start(payload, operation);
        Self { submission, descriptor: Rc::clone(descriptor), ended: false }
    }
}

impl Future for Pending {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        let polled = Pin::new(&mut self.submission).poll(cx);
        self.ended |= polled.is_ready();
        polled
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if !self.ended
            && let Some(slot) = self.submission.slot()
        {
            self.descriptor.driver().cancel(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        net::{TcpListener, TcpStream},
    };

    use super::*;
    use crate::uring::{RuntimeConfig, run};

    #[test]
    fn the_other_end_of_a_connection_that_was_reset_before_it_was_accepted_is_unknown() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        // Without waiting, an end is a reset.
        sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO)).unwrap();
        drop(client);
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(Connection::new(accepted).peer(), None);
    }

    #[test]
    fn what_is_not_sent_when_a_connection_of_ours_ends_never_is() {
        use std::io::Read;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let sent = run(&RuntimeConfig::unpinned(1), move |_| async move {
            let stream = connect_tcp(address).await.unwrap();
            let sending = || stream.send(crate::shard::zeroed(1 << 20).freeze());
            let mut sent = 0;
            // Until the other end's window and our buffer are full.
            while let Some(outcome) = crate::shard::timeout(100_000_000, sending()).await {
                sent += outcome.result.unwrap();
            }
            sent
        });
        let (mut accepted, _) = listener.accept().unwrap();
        let (mut received, mut buffer) = (0, vec![0; 1 << 20]);
        let error = loop {
            match accepted.read(&mut buffer) {
                Ok(count) => received += count,
                Err(error) => break error,
            }
            assert!(received < sent.as_ref().copied().unwrap(), "all of it came");
        };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn the_kernel_asks_after_a_tcp_peer_that_says_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let asks = run(&RuntimeConfig::unpinned(1), |_| async move {
            let stream = Connection::new(accepted).attach().unwrap();
            let socket = &stream.descriptor.file().fd;
            sockopt::socket_keepalive(socket).unwrap()
                && sockopt::tcp_keepidle(socket).unwrap() <= Duration::from_mins(2)
        });
        assert!(asks.unwrap(), "a connection of a machine that died would stay for ever");
    }

    #[test]
    fn a_peer_that_has_hung_up_is_seen_to_although_what_it_sent_was_not_received() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut over_tcp = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let (mut local, other) = UnixStream::pair().unwrap();
        run(&RuntimeConfig::unpinned(1), |_| async move {
            let streams = [Connection::new(accepted), Connection::new(other)].map(|c| c.attach().unwrap());
            over_tcp.write_all(b"unread").unwrap();
            local.write_all(b"unread").unwrap();
            assert!(streams.iter().all(|stream| !stream.has_hung_up()));
            over_tcp.shutdown(std::net::Shutdown::Write).unwrap();
            local.shutdown(std::net::Shutdown::Write).unwrap();
            for stream in &streams {
                assert!(is_told(stream).await && !stream.is_abandoned());
            }
            drop((over_tcp, local));
            assert!(streams.iter().all(|stream| stream.has_hung_up()));
            assert!(streams[1].is_abandoned());
        })
        .unwrap();
    }

    /// Whether the ring tells that the peer has hung up, to a shard that turns.
    async fn is_told(stream: &SocketStream) -> bool {
        let told = async {
            while !has_hung_up_at_arrival(stream) {
                shard::yield_now().await;
            }
        };
        shard::timeout(10_000_000_000, told).await.is_some()
    }

    /// Asked for a request that has just come.
    fn has_hung_up_at_arrival(stream: &SocketStream) -> bool {
        shard::note_arrival();
        stream.has_hung_up()
    }

    /// To a shard that turns, and to one that stands still.
    #[test]
    fn a_peer_that_hangs_up_later_is_seen_to_although_what_it_sent_was_not_received() {
        run(&RuntimeConfig::unpinned(1), |_| async move {
            for turns in [true, false] {
                let (mut local, other) = UnixStream::pair().unwrap();
                let stream = Connection::new(other).attach().unwrap();
                local.write_all(b"unread").unwrap();
                for _ in 0..200 {
                    assert!(!has_hung_up_at_arrival(&stream));
                    shard::yield_now().await;
                }
                local.shutdown(std::net::Shutdown::Write).unwrap();
                if turns {
                    assert!(is_told(&stream).await);
                } else {
                    std::thread::sleep(Duration::from_millis(2));
                }
                assert!(has_hung_up_at_arrival(&stream));
                drop(stream.leave());
                drop(stream);
            }
        })
        .unwrap();
    }

    /// A task that it has started asks as well, as for the stripes of a long write.
    #[test]
    fn a_request_that_has_waited_is_told_at_once_of_a_peer_that_hangs_up() {
        run(&RuntimeConfig::unpinned(1), |_| async move {
            let (local, other) = UnixStream::pair().unwrap();
            let stream = Connection::new(other).attach().unwrap();
            assert!(!has_hung_up_at_arrival(&stream));
            shard::sleep(5 * NEWS_NANOSECONDS).await;
            assert!(!stream.has_hung_up());
            let of_other = Rc::clone(&stream);
            let started = shard::spawn_joined(async move {
                local.shutdown(std::net::Shutdown::Write).unwrap();
                of_other.has_hung_up()
            });
            assert!(started.join().await && stream.has_hung_up());
        })
        .unwrap();
    }

    #[test]
    fn the_process_at_the_other_end_of_a_unix_socket_is_known() {
        let (one, _other) = UnixStream::pair().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(Connection::new(one).peer(), Some(Peer::Process(own)));
    }
}
