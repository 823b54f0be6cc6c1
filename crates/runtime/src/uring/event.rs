//! Events and messages of another program: an eventfd that it counts up or that is counted up for it, and a
//! unix socket on which files come with bytes.
//!
//! Both may have been made, and may be changed at any moment, by a program that we don't trust: nothing here
//! keeps the shard waiting. What may wait is with the ring, or is tried without waiting.

use std::{
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    rc::Rc,
    time::Duration,
};

use rustix::{
    io::{Errno, ReadWriteFlags},
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags,
    },
};

use super::{
    blocking::are_sent_files_stuck,
    operation::{Descriptor, File, Kind, Operation},
    sent_file::{EventFile, SentFile},
    socket::{Connection, Pending},
};
use crate::{completion::Payload, shard};

/// Files that one message may have.
pub const MESSAGE_FILES_MAX: usize = 8;
/// Bytes of an eventfd's counter.
const COUNTER: usize = 8;

/// An eventfd, on the shard that uses it.
pub struct Event {
    descriptor: Rc<Descriptor>,
}

impl Event {
    /// Takes an eventfd over.
    pub fn attach(file: EventFile) -> Self {
        Self { descriptor: Descriptor::new(File::new(file.into_file())) }
    }

    /// Waits until it has been counted up, and sets it back.
    pub async fn wait(&self) -> io::Result<()> {
        loop {
            let mut counter = [0; COUNTER];
            let mut place = [IoSliceMut::new(&mut counter)];
            let fd = &self.descriptor.file().fd;
            // -1, which an eventfd wants, is the current position.
            match rustix::io::preadv2(fd, &mut place, u64::MAX, ReadWriteFlags::NOWAIT) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => readable(&self.descriptor).await?,
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Counts it up. It ends when that is done; dropped, it gives up.
    pub async fn signal(&self) {
        let mut one = shard::buffer(COUNTER);
        one.copy_from_slice(&1_u64.to_ne_bytes());
        let one = one.freeze();
        let write = Operation::new(Kind::Write { fua: false }, &self.descriptor);
        let write = write.range(0, COUNTER as u64, 1).memory(one.as_ptr(), COUNTER);
        // A counter that is full has been counted up already.
        let _ = Pending::start(&self.descriptor, Payload::Slice(one), write).await;
    }
}

/// Waits until there is something to read, or the other end has gone.
pub(super) async fn readable(descriptor: &Rc<Descriptor>) -> io::Result<()> {
    let wait = Operation::new(Kind::Readable { exclusive: false }, descriptor);
    let outcome = Pending::start(descriptor, Payload::None, wait).await;
    outcome.result.map(|_| ()).map_err(|error| io::Error::from_raw_os_error(error.errno))
}

/// A connection on which messages with files come and go. One receive and one send at a time.
pub struct MessageSocket {
    descriptor: Rc<Descriptor>,
}

impl MessageSocket {
    /// The connection on this shard.
    pub fn attach(connection: Connection) -> Self {
        Self { descriptor: Descriptor::new(File::new(connection.into_file())) }
    }

    /// Fills `bytes`; files that came with them are put to `files`. False if the other end has closed before
    /// the first byte.
    pub async fn receive(&self, bytes: &mut [u8], files: &mut Vec<SentFile>) -> io::Result<bool> {
        let mut done = 0;
        while done < bytes.len() {
            match self.receive_some(&mut bytes[done..], files) {
                Ok(0) if done == 0 => return Ok(false),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => readable(&self.descriptor).await?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn receive_some(&self, bytes: &mut [u8], files: &mut Vec<SentFile>) -> io::Result<usize> {
        if are_sent_files_stuck() {
            return Err(io::Error::other("files that were sent before can't be closed"));
        }
        let fd = &self.descriptor.file().fd;
        let count = receive_once(fd, bytes, RecvFlags::DONTWAIT, |file| files.push(SentFile::new(file)))?;
        if files.len() > MESSAGE_FILES_MAX { Err(too_many_files()) } else { Ok(count) }
    }

    /// Waits until the other end has closed, or sends nothing more, whatever there is still to receive.
    pub async fn hung_up(&self) {
        let wait = Operation::new(Kind::HangUp, &self.descriptor);
        let _ = Pending::start(&self.descriptor, Payload::None, wait).await;
    }

    /// Sends `bytes`, with a file or none.
    pub async fn send(&self, bytes: &[u8], file: Option<&OwnedFd>) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            let file = file.filter(|_| done == 0).map(AsFd::as_fd);
            let fd = &self.descriptor.file().fd;
            match send_once(fd, &bytes[done..], file.as_slice(), SendFlags::DONTWAIT) {
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let wait = Operation::new(Kind::Writable, &self.descriptor);
                    let outcome = Pending::start(&self.descriptor, Payload::None, wait).await;
                    outcome.result.map_err(|error| io::Error::from_raw_os_error(error.errno))?;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Drop for MessageSocket {
    fn drop(&mut self) {
        // Requests that were given up may hold it open a little longer.
        let _ = rustix::net::shutdown(&self.descriptor.file().fd, rustix::net::Shutdown::Both);
    }
}

/// The other end of such a connection, for a caller that may wait: a virtual machine's monitor.
pub struct WaitingMessageSocket(UnixStream);

impl WaitingMessageSocket {
    /// Connects to a socket. A receive waits for `patience` at most.
    pub fn connect(path: &Path, patience: Duration) -> io::Result<Self> {
        let socket = UnixStream::connect(path)?;
        socket.set_read_timeout(Some(patience))?;
        Ok(Self(socket))
    }

    /// Sends a message with files, at most [`MESSAGE_FILES_MAX`]. It must fit into the socket's buffer.
    pub fn send(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        let sent = send_once(&self.0, bytes, files, SendFlags::empty())?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Fills `bytes`; files that came with them are put to `files`.
    pub fn receive(&self, bytes: &mut [u8], files: &mut Vec<OwnedFd>) -> io::Result<()> {
        let mut done = 0;
        while done < bytes.len() {
            match receive_once(&self.0, &mut bytes[done..], RecvFlags::empty(), |file| files.push(file)) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether the other end has closed, and there is nothing left to receive.
    pub fn is_closed(&self) -> bool {
        let seen = rustix::net::recv(&self.0, &mut [0; 1], RecvFlags::PEEK | RecvFlags::DONTWAIT);
        !matches!(seen, Ok((1.., _)) | Err(Errno::AGAIN | Errno::INTR))
    }
}

/// Receives what is there; each file that came goes to `take`.
fn receive_once(
    socket: impl AsFd,
    bytes: &mut [u8],
    flags: RecvFlags,
    mut take: impl FnMut(OwnedFd),
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FILES_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            came.for_each(&mut take);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) { Err(too_many_files()) } else { Ok(received.bytes) }
}

fn too_many_files() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "too many files in a message")
}

/// Sends what there is room for, with `files`.
fn send_once(
    socket: impl AsFd,
    bytes: &[u8],
    files: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MESSAGE_FILES_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() && !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(Errno::INVAL);
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags | SendFlags::NOSIGNAL)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::uring::{RuntimeConfig, run};

    fn attached(file: OwnedFd) -> io::Result<Event> {
        SentFile::new(file).into_event().map(Event::attach)
    }

    #[test]
    fn an_event_wakes_once_for_what_was_counted_and_then_waits() {
        let seen = run(&RuntimeConfig::unpinned(1), |_| async {
            for flags in [EventfdFlags::CLOEXEC, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK] {
                let file = eventfd(0, flags).unwrap();
                let event = attached(file.try_clone().unwrap()).unwrap();
                assert!(shard::timeout(1_000_000, event.wait()).await.is_none());
                rustix::io::write(&file, &3_u64.to_ne_bytes()).unwrap();
                event.wait().await.unwrap();
                assert!(shard::timeout(1_000_000, event.wait()).await.is_none(), "it was set back");
                event.signal().await;
                event.signal().await;
                let mut counter = [0; COUNTER];
                rustix::io::read(&file, &mut counter).unwrap();
                assert_eq!(u64::from_ne_bytes(counter), 2);
            }
        });
        seen.unwrap();
    }

    #[test]
    fn a_full_counter_keeps_no_shard_waiting_and_other_files_are_refused() {
        let seen = run(&RuntimeConfig::unpinned(1), |_| async {
            let file = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            rustix::io::write(&file, &(u64::MAX - 1).to_ne_bytes()).unwrap();
            let event = attached(file).unwrap();
            assert!(
                shard::timeout(20_000_000, event.signal()).await.is_none(),
                "it waits, and the shard doesn't"
            );
            let null = std::fs::File::open("/dev/null").unwrap();
            assert!(attached(null.into()).is_err());
        });
        seen.unwrap();
    }

    #[test]
    fn files_come_with_the_bytes_and_a_closed_end_is_told() {
        let seen = run(&RuntimeConfig::unpinned(1), |_| async {
            let (one, other) = UnixStream::pair().unwrap();
            let (one, other) =
                (MessageSocket::attach(Connection::new(one)), MessageSocket::attach(Connection::new(other)));
            let file = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
            let task = shard::spawn_joined(async move {
                one.send(b"with", Some(&file)).await.unwrap();
                one.send(b"out", None).await.unwrap();
                assert!(shard::timeout(1_000_000, one.hung_up()).await.is_none());
            });
            let (mut bytes, mut files) = ([0; 7], Vec::new());
            assert!(other.receive(&mut bytes, &mut files).await.unwrap());
            assert_eq!((&bytes, files.len()), (b"without", 1));
            assert!(files.remove(0).into_event().is_ok());
            task.join().await;
            other.hung_up().await;
            assert!(!other.receive(&mut bytes, &mut files).await.unwrap());
        });
        seen.unwrap();
    }
}
