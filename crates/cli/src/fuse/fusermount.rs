//! Mounts by fusermount3, for users without the right to mount.
//!
//! That program, of Debian's package fuse3, runs as root. It mounts where its user may write, and sends the
//! open /dev/fuse over a socket, whose number `_FUSE_COMMFD` says. The socket is its standard input here: of
//! what this process has opened, it inherits nothing else.

use std::{
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use pinstripe_runtime::uring::fuse::Connection;
use rustix::{
    fs::Access,
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
};

use super::read_limit;

/// Its name.
pub const PROGRAM: &str = "fusermount3";

/// Where it is, if this process can use it.
pub fn find() -> Option<PathBuf> {
    if rustix::thread::no_new_privs().unwrap_or(false) {
        return None;
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
    // A relative folder would be that of whatever file this is started beside.
    let mut files =
        std::env::split_paths(&path).filter(|folder| folder.is_absolute()).map(|folder| folder.join(PROGRAM));
    files.find(|file| file.is_file() && rustix::fs::access(file, Access::EXEC_OK).is_ok())
}

/// Mounts a file system of the kind `fuse.KIND` at `path`, as `source`, for this user only.
pub fn mount(
    program: &Path,
    path: &Path,
    kind: &str,
    source: &str,
    read_only: bool,
) -> io::Result<Connection> {
    let (ours, theirs) = UnixStream::pair()?;
    let access = if read_only { "ro" } else { "rw" };
    let options = format!(
        "fsname={},subtype={kind},default_permissions,noexec,{access},{}",
        source.replace('\\', "\\\\").replace(',', "\\,"),
        read_limit()
    );
    let mut command = Command::new(program);
    command.args(["-o", &options, "--"]).arg(path).env("_FUSE_COMMFD", "0").stdin(OwnedFd::from(theirs));
    run(command)?;
    received(ours.as_fd()).and_then(Connection::mounted).inspect_err(|_| {
        // It is mounted, and nothing will serve it.
        let _ = unmount(program, path, true);
    })
}

/// Takes away what is mounted at `path`; if it is in use and `lazily`, as soon as it isn't.
pub fn unmount(program: &Path, path: &Path, lazily: bool) -> io::Result<()> {
    let mut command = Command::new(program);
    command.args(if lazily { &["-u", "-z", "--"][..] } else { &["-u", "--"] }).arg(path).stdin(Stdio::null());
    run(command)
}

/// Waits for its end, which it reaches by itself, and closes what it was given.
fn run(mut command: Command) -> io::Result<()> {
    let output = command.stdout(Stdio::null()).output();
    let output = output.map_err(|error| io::Error::new(error.kind(), format!("{PROGRAM}: {error}")))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.trim();
    Err(io::Error::other(if said.is_empty() {
        format!("{PROGRAM}: {}", output.status)
    } else {
        said.to_owned()
    }))
}

/// The file that was sent.
fn received(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(
        socket,
        &mut [IoSliceMut::new(&mut byte)],
        &mut ancillary,
        RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT,
    )?;
    let mut files = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    files
        .next()
        .and_then(|mut files| files.next())
        .ok_or_else(|| io::Error::other(format!("{PROGRAM} sent no file")))
}
