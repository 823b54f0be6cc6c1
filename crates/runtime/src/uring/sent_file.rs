//! A file that another program has sent.
//!
//! That program may be what the file is made of: a file of its own FUSE is flushed when it is closed, and
//! the flush waits for an answer that may never come. So no such file is closed on a shard, but by threads
//! that do nothing else for anything else. An eventfd is closed at once: nothing is asked for it.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SendFlags},
};

use super::blocking::drop_elsewhere;

/// Any file. It is closed off the shards.
#[derive(Debug)]
pub struct SentFile(Option<OwnedFd>);

/// A file that is a unix socket. It is closed off the shards, too.
#[derive(Debug)]
pub struct SocketFile(SentFile);

/// A file that is an eventfd.
#[derive(Debug)]
pub struct EventFile(OwnedFd);

impl SentFile {
    /// Takes over what was sent.
    pub fn new(file: OwnedFd) -> Self {
        Self(Some(file))
    }

    /// As an eventfd; any other file is refused.
    pub fn into_event(mut self) -> io::Result<EventFile> {
        let number = self.as_fd().as_raw_fd();
        let name = rustix::fs::readlink(format!("/proc/self/fd/{number}"), Vec::new())?;
        let event = self.0.take_if(|_| name.as_bytes() == b"anon_inode:[eventfd]");
        event
            .map(EventFile)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a file that is no eventfd"))
    }

    /// As a unix socket; any other file is refused.
    pub fn into_socket(self) -> io::Result<SocketFile> {
        match rustix::net::sockopt::socket_domain(&self) {
            Ok(AddressFamily::UNIX) => Ok(SocketFile(self)),
            Ok(_) | Err(Errno::NOTSOCK) => {
                Err(io::Error::new(io::ErrorKind::InvalidInput, "a file that is no unix socket"))
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl SocketFile {
    /// Sends a short message, if there is room for it now. A socket of another kind could keep us waiting all
    /// the same: a send of its other owner, which may wait for that program, holds its lock.
    pub fn send_now(&self, bytes: &[u8]) -> io::Result<()> {
        let sent = rustix::net::send(&self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?;
        if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
}

impl AsFd for SentFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let Some(file) = &self.0 else { unreachable!("it is taken only when this goes") };
        file.as_fd()
    }
}

impl Drop for SentFile {
    fn drop(&mut self) {
        if let Some(file) = self.0.take() {
            drop_elsewhere(file);
        }
    }
}

impl EventFile {
    /// Another descriptor of the same eventfd.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }

    pub(super) fn into_file(self) -> OwnedFd {
        self.0
    }
}
