//! The kernel's FUSE: a file system whose requests a program answers.
//!
//! ```text
//!   /dev/fuse   Connection  an open file of it, which may go to any shard; one is mounted, the others are
//!                           its clones, by which other shards take requests of the same file system
//!               Channel     a connection on the shard that serves it
//! ```
//!
//! See fuse(4) and include/uapi/linux/fuse.h of Linux. The files don't block. A shard waits for a request by
//! a poll of its ring, and takes and answers requests by readv and writev, which copy and wait for no device.
//! So no memory of ours is with the kernel while no request comes, and no thread waits for one. A request
//! must be answered by the connection that took it.

use std::{
    fs::File as StdFile,
    io::{self, IoSlice, IoSliceMut},
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::fs::OpenOptionsExt,
    },
    rc::Rc,
};

use crate::{
    completion::Payload,
    uring::{
        operation::{Descriptor, File, Kind, Operation},
        socket::Pending,
    },
};

/// The driver's file.
pub const PATH: &str = "/dev/fuse";
/// `FUSE_DEV_IOC_CLONE`: `_IOR(229, 0, uint32_t)`.
const CLONE: u32 = 0x8004_e500;

/// An open file of the driver that no shard uses yet.
#[derive(Debug)]
pub struct Connection(OwnedFd);

impl Connection {
    /// Opens one that has no file system yet.
    pub fn open() -> io::Result<Self> {
        let options = StdFile::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(PATH);
        Ok(Self(options?.into()))
    }

    /// One that another process opened and mounted.
    pub fn mounted(file: OwnedFd) -> io::Result<Self> {
        rustix::fs::fcntl_setfl(&file, rustix::fs::fcntl_getfl(&file)? | rustix::fs::OFlags::NONBLOCK)?;
        Ok(Self(file))
    }

    /// Its number, which mount(2) takes.
    pub fn number(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Another one for the same file system, which is mounted.
    pub fn another(&self) -> io::Result<Self> {
        let new = Self::open()?;
        let old = self.number();
        // SAFETY: the driver reads 4 bytes at the address, which are `old`, and keeps no address.
        let done = unsafe { libc::ioctl(new.number(), CLONE.into(), &raw const old) };
        if done == 0 { Ok(new) } else { Err(io::Error::last_os_error()) }
    }

    /// The connection on this shard.
    pub fn attach(self) -> Channel {
        Channel(Descriptor::new(File::new(self.0)))
    }
}

/// A connection on the shard that serves it.
pub struct Channel(Rc<Descriptor>);

impl Channel {
    /// Waits until a request may be there, or the file system is gone. One of all shards that wait is woken
    /// for a request. Dropping the wait ends it.
    pub async fn readable(&self) -> io::Result<()> {
        let poll = Operation::new(Kind::Readable { exclusive: true }, &self.0);
        let outcome = Pending::start(&self.0, Payload::None, poll).await;
        outcome.result.map(|_| ()).map_err(|error| io::Error::from_raw_os_error(error.errno))
    }

    /// Takes a request: its first bytes fill `head`, the others go to `rest`. How many they are; the error
    /// `WouldBlock` if there is none.
    pub fn receive(&self, head: &mut [u8], rest: &mut [u8]) -> io::Result<usize> {
        let mut parts = [IoSliceMut::new(head), IoSliceMut::new(rest)];
        Ok(rustix::io::readv(&self.0.file().fd, &mut parts)?)
    }

    /// Answers a request.
    pub fn reply(&self, head: &[u8], data: &[u8]) -> io::Result<()> {
        let parts = [IoSlice::new(head), IoSlice::new(data)];
        rustix::io::writev(&self.0.file().fd, &parts)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uring::{RuntimeConfig, run};

    /// One end of a pipe as a channel, which shows the waiting.
    #[test]
    fn a_wait_ends_when_there_is_something_and_a_dropped_one_leaves_nothing_behind() {
        let made = run(&RuntimeConfig::unpinned(1), |_| async {
            let (reads, writes) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::NONBLOCK).unwrap();
            let channel = Connection(reads).attach();
            let (mut head, mut rest) = ([0; 2], [0; 8]);
            let none = channel.receive(&mut head, &mut rest).unwrap_err();
            assert_eq!(none.kind(), io::ErrorKind::WouldBlock);
            assert!(crate::shard::timeout(1_000_000, channel.readable()).await.is_none());
            let waiting = async {
                channel.readable().await.unwrap();
                channel.receive(&mut head, &mut rest).unwrap()
            };
            let writing = async { Connection(writes).attach().reply(b"ab", b"cde").unwrap() };
            let writer = crate::shard::spawn_joined(writing);
            let count = waiting.await;
            writer.join().await;
            (count, head, rest)
        });
        assert_eq!(made.unwrap(), (5, *b"ab", *b"cde\0\0\0\0\0"));
    }

    #[test]
    fn a_connection_that_another_process_opened_does_not_block() {
        let Ok(file) = StdFile::options().read(true).write(true).open(PATH) else {
            eprintln!("DID NOT RUN: {PATH} can't be opened");
            return;
        };
        let connection = Connection::mounted(file.into()).unwrap();
        assert!(rustix::fs::fcntl_getfl(&connection.0).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
    }

    #[test]
    fn only_a_mounted_connection_has_clones() {
        // A machine without the driver has none at all.
        if let Ok(connection) = Connection::open() {
            assert!(connection.another().is_err());
        }
    }
}
