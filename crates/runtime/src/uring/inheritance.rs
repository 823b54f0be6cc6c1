//! Descriptors that a program leaves to the one that takes its place in the same process (`execve`).
//!
//! Members stay locked through it: the descriptors that lock them are passed on, and an open that would claim
//! what one of them has claimed gets that one. So no other program finds them free in between.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use rustix::{
    fs::{FileType, Mode, OFlags, Stat},
    io::{Errno, FdFlags},
};

use super::{driver::Driver, operation::File};
use crate::ShardHandle;

/// Files and devices that were opened as nothing but ours, with their names.
static HELD: Mutex<Vec<(Weak<File>, String)>> = Mutex::new(Vec::new());
/// What the program before us held, until an open wants it.
static INHERITED: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

fn lock<T>(list: &Mutex<Vec<T>>) -> MutexGuard<'_, Vec<T>> {
    list.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Remembers a file that is locked, for as long as it is open.
pub(super) fn note(file: &Arc<File>, name: &str) {
    let mut held = lock(&HELD);
    held.retain(|(file, _)| file.strong_count() > 0);
    held.push((Arc::downgrade(file), name.to_owned()));
}

fn files() -> Vec<Arc<File>> {
    lock(&HELD).iter().filter_map(|(file, _)| file.upgrade()).collect()
}

/// Descriptors that keep everything locked that this process has locked, whatever it closes.
pub fn held() -> io::Result<Vec<OwnedFd>> {
    files().iter().flat_map(|file| file.descriptors()).map(OwnedFd::try_clone).collect()
}

/// The names of what this process has locked and still has open. A request keeps what it goes to open until
/// the kernel is done with it, whatever else has let go.
pub fn still_open() -> Vec<String> {
    let held = lock(&HELD);
    held.iter().filter(|(file, _)| file.strong_count() > 0).map(|(_, name)| name.clone()).collect()
}

/// Lets go of what this process has locked and no ring has a request to: of all but what `asked` names. What
/// still has such a file open can do nothing to it any more.
///
/// To be called when nothing is served any more. A thread that waits in the kernel for a disk that hangs
/// keeps all descriptors of the process open, also when that is killed: members that have nothing to do with
/// the disk would stay locked, and no other server could be started for them.
fn let_go(asked: &[Arc<File>]) -> io::Result<()> {
    let files = files();
    let idle = files.iter().filter(|file| !asked.iter().any(|other| Arc::ptr_eq(file, other)));
    let nothing = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    for descriptor in idle.flat_map(|file| file.descriptors()) {
        // SAFETY: both are open. The number stays its owner's; what it stands for takes neither reads that
        // give anything nor writes.
        if unsafe { libc::dup3(nothing.as_raw_fd(), descriptor.as_raw_fd(), libc::O_CLOEXEC) } < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// See [`let_go`]; asks all of these shards, which are those of a [`run`](super::run). The names of what is
/// not let go of, because requests to it are not over.
///
/// # Errors
/// If a shard has ended, or the kernel refuses.
pub async fn let_go_of_idle(shards: &[ShardHandle]) -> io::Result<Vec<String>> {
    let mut asked = Vec::new();
    for shard in shards {
        let of_shard = shard.call(|| async { Driver::current().asked() }).await;
        asked.extend(of_shard.map_err(|_| Errno::SRCH)?);
    }
    let_go(&asked)?;
    let is_asked =
        |file: &Weak<File>| asked.iter().any(|other| std::ptr::eq(file.as_ptr(), Arc::as_ptr(other)));
    let held = lock(&HELD);
    Ok(held.iter().filter(|(file, _)| is_asked(file)).map(|(_, name)| name.clone()).collect())
}

/// Whether what is at this path now is locked by this process.
pub fn holds(path: &Path) -> bool {
    let Some(there) = rustix::fs::stat(path).ok().as_ref().and_then(identity) else { return false };
    let is_there = |fd: &OwnedFd| rustix::fs::fstat(fd).is_ok_and(|stat| identity(&stat) == Some(there));
    files().iter().flat_map(|file| file.descriptors()).any(is_there)
}

/// Has the opens that are to come use these, which the program before us held.
pub fn inherit(descriptors: Vec<OwnedFd>) {
    lock(&INHERITED).extend(descriptors);
}

/// Closes what no open has wanted.
pub fn forget_inherited() {
    lock(&INHERITED).clear();
}

/// The descriptor that was inherited of what `stat` is of, opened with these flags.
pub(super) fn take(stat: &Stat, flags: OFlags) -> Option<OwnedFd> {
    let wanted = identity(stat)?;
    let how = OFlags::RWMODE | OFlags::DIRECT;
    let is_it = |fd: &OwnedFd| {
        let opened = rustix::fs::fcntl_getfl(fd).is_ok_and(|own| own & how == flags & how);
        opened && rustix::fs::fstat(fd).is_ok_and(|stat| identity(&stat) == Some(wanted))
    };
    let mut inherited = lock(&INHERITED);
    let place = inherited.iter().position(is_it)?;
    Some(inherited.swap_remove(place))
}

/// What two names of the same thing have in common.
fn identity(stat: &Stat) -> Option<(FileType, u64, u64)> {
    let kind = FileType::from_raw_mode(stat.st_mode);
    match kind {
        FileType::BlockDevice | FileType::CharacterDevice => Some((kind, stat.st_rdev, 0)),
        FileType::RegularFile => Some((kind, stat.st_dev, stat.st_ino)),
        _ => None,
    }
}

/// Has a descriptor outlive `execve`. Its number, for [`adopt`] in the next program.
pub fn pass_on(descriptor: impl AsFd) -> io::Result<RawFd> {
    let descriptor = descriptor.as_fd();
    rustix::io::fcntl_setfd(descriptor, FdFlags::empty())?;
    Ok(descriptor.as_raw_fd())
}

/// The descriptor that the program before us has passed on under this number.
pub fn adopt(number: RawFd) -> io::Result<OwnedFd> {
    if number < 3 {
        return Err(Errno::BADF.into());
    }
    // SAFETY: the number is only asked about, and that is an error if nothing is open under it.
    let flags = rustix::io::fcntl_getfd(unsafe { BorrowedFd::borrow_raw(number) })?;
    // Everything that this program opens is closed by `execve`. So what isn't was open before it began, and
    // has no owner yet.
    if flags.contains(FdFlags::CLOEXEC) {
        return Err(Errno::BUSY.into());
    }
    // SAFETY: it is open, and as said above has no other owner.
    let descriptor = unsafe { OwnedFd::from_raw_fd(number) };
    rustix::io::fcntl_setfd(&descriptor, FdFlags::CLOEXEC)?;
    Ok(descriptor)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use crate::uring::{OpenFile, OpenOptions};

    use super::*;

    #[test]
    fn a_descriptor_is_adopted_once_and_only_if_it_was_passed_on() {
        let file = OwnedFd::from(tempfile::tempfile().unwrap());
        assert!(adopt(file.as_raw_fd()).is_err(), "it is ours");
        assert!(adopt(2).is_err());
        assert!(adopt(1_000_000).is_err());
        let copy = file.try_clone().unwrap();
        let number = pass_on(&copy).unwrap();
        std::mem::forget(copy);
        let adopted = adopt(number).unwrap();
        assert_eq!(adopted.as_raw_fd(), number);
        assert!(adopt(number).is_err());
    }

    #[test]
    fn what_was_locked_is_opened_by_what_was_inherited_and_by_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("member");
        std::fs::write(&path, vec![0; 1 << 16]).unwrap();
        let (options, reader) =
            (OpenOptions::default(), OpenOptions { read_only: true, ..OpenOptions::default() });
        assert!(!holds(&path));
        let open = OpenFile::open(&path, &options).unwrap();
        assert!(holds(&path) && !holds(folder.path()) && !holds(&folder.path().join("other")));
        assert!(still_open().contains(&path.display().to_string()));
        // As a request that is under way.
        let request = Arc::clone(&open.file);
        drop(open);
        assert!(still_open().contains(&path.display().to_string()));
        drop(request);
        assert!(!still_open().contains(&path.display().to_string()));
        let open = open_free(&path, &options);
        let kept: Vec<OwnedFd> = open.file.descriptors().map(|fd| fd.try_clone().unwrap()).collect();
        drop(open);
        assert!(OpenFile::open(&path, &options).is_err(), "it is locked still");
        inherit(kept);
        assert!(OpenFile::open(&path, &reader).is_err(), "that is another way to open it");
        let open = OpenFile::open(&path, &options).unwrap();
        assert!(OpenFile::open(&path, &options).is_err(), "it can be had once");
        drop(open);
        open_free(&path, &options);
    }

    /// A child that another test starts has every lock of this process until its exec.
    fn open_free(path: &Path, options: &OpenOptions) -> Arc<OpenFile> {
        let begun = Instant::now();
        loop {
            match OpenFile::open(path, options) {
                Ok(open) => return open,
                Err(err) => assert!(begun.elapsed() < Duration::from_mins(1), "{err}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
