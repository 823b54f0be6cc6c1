//! Where a file of FUSE is mounted: over a regular file, which it hides.
//!
//! Nothing is asked of a mounted file here but whether its server lives; where that could be this process,
//! not even that. So no look waits for an answer of our own.

mod fusermount;

use std::{
    ffi::{CString, OsStr, OsString},
    fs, io,
    os::{
        fd::AsRawFd,
        unix::{ffi::OsStrExt, fs::OpenOptionsExt},
    },
    path::{Path, PathBuf},
};

use pinstripe_control::text::shell_word;
use pinstripe_export::fuse::PAYLOAD_BYTES_MAX;
use pinstripe_runtime::{
    trust::check_place,
    uring::fuse::{Connection, PATH},
};
use rustix::{
    fs::{CWD, FileType, Mode, OFlags},
    io::Errno,
    mount::{MountFlags, UnmountFlags},
    thread::CapabilitySet,
};

use crate::failure::Failure;

/// By which our mounts are known: the kernel ignores what follows the dot.
const KIND: &str = "fuse.pinstripe";
const SUBTYPE: &str = "pinstripe";

/// By what right files are mounted.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Mounter {
    /// This process: all users may try to open the file, and its mode decides.
    Own,
    /// The program of that name, which is here. See [`fusermount`]: the file is for this user only.
    Fusermount(PathBuf),
}

/// A path at which a file can be mounted.
#[derive(Debug, Clone)]
pub struct Place {
    /// Absolute, and without symbolic links.
    path: PathBuf,
    mounter: Mounter,
}

/// What is mounted, and at the end taken away.
#[derive(Debug)]
pub struct Mounted {
    path: PathBuf,
    mounter: Mounter,
    /// The file that it hides wasn't there before.
    made: bool,
    /// Its name in lists of mounts, by which it is told from another one at this place. Servers have
    /// different ones, unless their control sockets have the same name in two folders. Device numbers
    /// are given again at once, so they wouldn't do.
    source: String,
}

impl Place {
    /// Looks whether a file can be mounted at `path`, and changes nothing.
    pub fn look(path: &Path) -> Result<Self, Failure> {
        let name = path.file_name();
        let name = name.ok_or_else(|| Failure::usage(format!("--fuse {}: name a file", path.display())))?;
        let mounter = find_mounter()?;
        let given = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
        let folder = fs::canonicalize(given)
            .map_err(|error| Failure::new(format!("the folder {}: {error}", given.display())))?;
        let path = folder.join(name);
        match mounted_at(&path)? {
            Some(seen) if seen.kind != KIND => return Err(refused(&path, "is a mount point already")),
            Some(Seen { only_for: Some(user), .. }) if user != rustix::process::geteuid().as_raw() => {
                let advice = format!(
                    "`{} -u {}` takes it away, by that user or by root",
                    fusermount::PROGRAM,
                    path.display()
                );
                return Err(refused(&path, &format!("is mounted by the user {user}: {advice}")));
            }
            Some(_) if !is_dead(&path) => {
                return Err(refused(&path, "is served by another process already"));
            }
            Some(_) => {}
            None => check_hidden(&path)?,
        }
        if mounter == Mounter::Own {
            // Another user could lead a mount by this right to any place, such as /etc.
            check_place(given).map_err(|why| refused(&path, &format!("can't be mounted: {why}")))?;
        }
        Ok(Self { path, mounter })
    }

    /// Mounts a file that a connection will serve, called `source` in lists of mounts. What dead servers have
    /// left there goes first.
    pub fn mount(self, source: &str, mode: u32, read_only: bool) -> Result<(Connection, Mounted), Failure> {
        while mounted_at(&self.path)?.is_some_and(|seen| seen.kind == KIND) && is_dead(&self.path) {
            self.mounter
                .unmount(&self.path, true)
                .map_err(|error| refused(&self.path, &format!("was left by a dead server: {error}")))?;
        }
        check_hidden(&self.path)?;
        let made = !self.path.exists();
        if made {
            let new = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&self.path);
            new.map_err(|error| refused(&self.path, &format!("can't be made: {error}")))?;
        }
        let mounted = Mounted { path: self.path, mounter: self.mounter, made, source: source.to_owned() };
        match mounted.attach(mode, read_only) {
            Ok(connection) => Ok((connection, mounted)),
            Err(error) => {
                mounted.remove();
                Err(refused(&mounted.path, &format!("can't be mounted: {error}")))
            }
        }
    }
}

/// The option of a mount that says how long a read may be. Without it the kernel sends as many pages as it
/// may, which where a page has more than 4 KiB is more than the session takes.
fn read_limit() -> String {
    format!("max_read={PAYLOAD_BYTES_MAX}")
}

impl Mounted {
    /// The path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn attach(&self, mode: u32, read_only: bool) -> io::Result<Connection> {
        if let Mounter::Fusermount(program) = &self.mounter {
            return fusermount::mount(program, &self.path, SUBTYPE, &self.source, read_only);
        }
        let connection = Connection::open()?;
        let options = format!(
            "fd={},rootmode={mode:o},user_id=0,group_id=0,allow_other,default_permissions,{}",
            connection.number(),
            read_limit()
        );
        let options = CString::new(options).unwrap_or_default();
        let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        flags.set(MountFlags::RDONLY, read_only);
        // In a folder such as /tmp its owner may have put a link there since.
        let path_only = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let hidden = rustix::fs::open(&self.path, path_only, Mode::empty())?;
        let stat = rustix::fs::fstat(&hidden)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile || stat.st_size > 0 {
            return Err(io::Error::other("the file to hide was exchanged meanwhile"));
        }
        let place = format!("/proc/self/fd/{}", hidden.as_raw_fd());
        rustix::mount::mount(&self.source, place, KIND, flags, options.as_c_str())?;
        Ok(connection)
    }

    /// The command that takes the file away, should this not do it.
    pub fn unmount_command(&self) -> String {
        format!("{} {}", self.mounter.command(), shell_word(&self.path.display().to_string()))
    }

    /// Takes the file away. True if it is still open: then it is out of sight, and goes when it is closed.
    pub fn unmount(&self) -> Result<bool, Failure> {
        // It may have been unmounted by hand, and another one, of this kind or not, may have taken its place.
        if mounted_at(&self.path)?
            .is_none_or(|seen| seen.kind != KIND || seen.source != self.source.as_bytes())
        {
            return Ok(false);
        }
        let done = match self.mounter.unmount(&self.path, false) {
            // Most likely it is open; the second try says if it is something else.
            Err(_) => self.mounter.unmount(&self.path, true).map(|()| true),
            Ok(()) => Ok(false),
        };
        let still_open =
            done.map_err(|error| refused(&self.path, &format!("can't be unmounted: {error}")))?;
        self.remove();
        Ok(still_open)
    }

    /// Removes the file that was made to be hidden, unless it has been given a content.
    fn remove(&self) {
        if self.made && check_hidden(&self.path).is_ok() {
            // If it stays, it is an empty file.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn refused(path: &Path, why: &str) -> Failure {
    Failure::new(format!("{} {why}", path.display()))
}

/// How files can be mounted, if they can.
fn find_mounter() -> Result<Mounter, Failure> {
    Connection::open().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => Failure::new(format!(
            "there is no {PATH}: `modprobe fuse` loads the kernel's driver; a container must be given the device"
        )),
        _ => Failure::new(format!("{PATH} can't be opened: {error}; a container must be given the device")),
    })?;
    let may_mount = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    if may_mount {
        return Ok(Mounter::Own);
    }
    fusermount::find().map(Mounter::Fusermount).ok_or_else(|| {
        Failure::new(
            "--fuse mounts a file, for which this process has no right: install fusermount3 (`apt-get install fuse3`), \
             which NoNewPrivileges= hinders, or run it as root, in a container with the capability CAP_SYS_ADMIN",
        )
    })
}

/// A file is hidden only if nothing can be missed: it must be empty, or not be there.
fn check_hidden(path: &Path) -> Result<(), Failure> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.is_file() => Err(refused(path, "is no regular file: name an empty or a new one")),
        Ok(found) if found.len() > 0 => {
            Err(refused(path, "isn't empty, and would be hidden: name an empty or a new file"))
        }
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(refused(path, &error.to_string())),
        _ => Ok(()),
    }
}

impl Mounter {
    /// Takes a mount away: one that is open only if `lazily`, which takes it out of sight.
    fn unmount(&self, path: &Path, lazily: bool) -> io::Result<()> {
        match self {
            Self::Own => {
                let flags = if lazily { UnmountFlags::DETACH } else { UnmountFlags::empty() };
                Ok(rustix::mount::unmount(path, flags | UnmountFlags::NOFOLLOW)?)
            }
            Self::Fusermount(program) => fusermount::unmount(program, path, lazily),
        }
    }

    /// What does that by hand.
    fn command(&self) -> &'static str {
        match self {
            Self::Own => "umount -l",
            Self::Fusermount(_) => "fusermount3 -uz",
        }
    }
}

/// Whether a mounted file has no server any more. Of a living one this waits for the server; one that is just
/// ending aborts what it is asked.
fn is_dead(path: &Path) -> bool {
    rustix::fs::openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .and_then(rustix::fs::fstatfs)
        .is_err_and(|error| matches!(error, Errno::NOTCONN | Errno::CONNABORTED))
}

/// A mount as the kernel lists it.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    kind: OsString,
    source: Vec<u8>,
    /// The user that alone may ask for anything there, even whether it has a server; none if all may.
    only_for: Option<u32>,
}

/// What is mounted at this very path, if something is.
fn mounted_at(path: &Path) -> Result<Option<Seen>, Failure> {
    let mounts = fs::read("/proc/self/mountinfo")
        .map_err(|error| Failure::new(format!("/proc/self/mountinfo can't be read: {error}")))?;
    Ok(seen_at(&mounts, path))
}

/// The fifth word of a line is the place; behind a lone hyphen are the kind, the source and the options. Of
/// several at one place, the last one is seen.
fn seen_at(mounts: &[u8], path: &Path) -> Option<Seen> {
    let seen = |line: &[u8]| {
        let mut words = line.split(|byte| *byte == b' ');
        let found = unescaped(words.nth(4)?) == path.as_os_str().as_bytes();
        let mut words = words.skip_while(|word| *word != b"-").skip(1);
        let (kind, source, options) = (words.next()?, words.next()?, words.next().unwrap_or_default());
        let options = String::from_utf8_lossy(options);
        let option = |name| options.split(',').find_map(|option| option.strip_prefix(name));
        let user = option("user_id=").filter(|_| option("allow_other").is_none());
        found.then(|| Seen {
            kind: OsStr::from_bytes(kind).to_owned(),
            source: unescaped(source),
            only_for: user.and_then(|user| user.parse().ok()),
        })
    };
    mounts.split(|byte| *byte == b'\n').filter_map(seen).next_back()
}

/// What the kernel has written in its list of mounts: some bytes stand there as a backslash and three octal
/// digits, which ones depends on the kernel.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let (mut text, mut rest) = (Vec::new(), word);
    while let [first, behind @ ..] = rest {
        let code = behind.get(..3).filter(|_| *first == b'\\');
        let byte = code.and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 8).ok());
        text.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &behind[3..] } else { behind };
    }
    text
}

/// The loop devices over a file.
pub fn loop_devices(path: &Path) -> Vec<String> {
    let over = |entry: &fs::DirEntry| {
        let backing = fs::read(entry.path().join("loop/backing_file")).unwrap_or_default();
        backing.strip_suffix(b"\n") == Some(path.as_os_str().as_bytes())
    };
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten().filter(over);
    let mut names: Vec<String> =
        entries.map(|entry| format!("/dev/{}", entry.file_name().to_string_lossy())).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn the_mount_that_is_seen_at_a_path_is_found_by_its_place() {
        let mounts = b"22 1 259:1 / / rw - ext4 /dev/x rw\n\
            31 22 0:40 / /srv/a\\040b rw,nosuid shared:1 - fuse.pinstripe data rw,user_id=0,allow_other\n\
            32 22 0:41 / /srv/twice rw - tmpfs x rw\n\
            33 22 0:42 / /srv/twice rw - fuse.pinstripe a\\043\\ rw,user_id=7,group_id=7\n";
        let seen = |path: &str| seen_at(mounts, Path::new(path));
        let kind = |path: &str| seen(path).map(|seen| seen.kind.into_string().unwrap());
        assert_eq!(seen("/srv/twice").unwrap().source, br"a#\");
        assert_eq!(seen("/srv/twice").unwrap().only_for, Some(7));
        assert_eq!(seen("/srv/a b").unwrap().only_for, None);
        assert_eq!(kind("/srv/a b").as_deref(), Some(KIND));
        assert_eq!(kind("/srv/twice").as_deref(), Some(KIND));
        assert_eq!(kind("/").as_deref(), Some("ext4"));
        assert_eq!(kind("/srv/a"), None);
    }

    #[test]
    fn only_an_empty_regular_file_or_none_is_hidden() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        assert!(check_hidden(&path).is_ok());
        fs::write(&path, "").unwrap();
        assert!(check_hidden(&path).is_ok());
        fs::write(&path, "x").unwrap();
        assert!(check_hidden(&path).unwrap_err().sentence().contains("isn't empty"));
        assert!(check_hidden(folder.path()).unwrap_err().sentence().contains("no regular file"));
        let link = folder.path().join("link");
        symlink(&path, &link).unwrap();
        assert!(check_hidden(&link).is_err());
    }

    #[test]
    fn a_file_that_was_made_to_be_hidden_is_removed_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        for (made, content, stays) in [(true, "", false), (false, "", true), (true, "x", true)] {
            fs::write(&path, content).unwrap();
            Mounted { mounter: Mounter::Own, path: path.clone(), made, source: String::new() }.remove();
            assert_eq!(path.exists(), stays, "{made} {content:?}");
        }
    }

    fn may_mount() -> bool {
        let may = rustix::process::geteuid().is_root() && Path::new(PATH).exists();
        if !may {
            eprintln!("DID NOT RUN: mounting a file needs root and {PATH}");
        }
        may
    }

    #[test]
    fn root_mounts_nothing_where_another_user_says_what_a_path_leads_to() {
        if !may_mount() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let (own, others) = (folder.path().join("own"), folder.path().join("others"));
        fs::create_dir(&own).unwrap();
        fs::create_dir(&others).unwrap();
        symlink(&own, others.join("link")).unwrap();
        std::os::unix::fs::chown(&others, Some(65534), None).unwrap();
        Place::look(&own.join("disk")).unwrap();
        for place in ["disk", "link/disk"] {
            let refused = Place::look(&others.join(place)).unwrap_err();
            assert!(
                refused.sentence().contains("others belongs to the user 65534"),
                "{}",
                refused.sentence()
            );
        }
        // It was an empty file when it was looked at.
        let (link, target) = (own.join("disk"), own.join("target"));
        fs::write(&target, "").unwrap();
        symlink(&target, &link).unwrap();
        let mounted = Mounted { path: link, mounter: Mounter::Own, made: false, source: "x".to_owned() };
        assert!(mounted.attach(0o100_600, false).is_err());
        assert_eq!(mounted_at(&fs::canonicalize(&target).unwrap()).unwrap(), None);
    }

    #[test]
    fn a_mount_that_has_taken_the_place_of_ours_stays() {
        if !may_mount() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = fs::canonicalize(folder.path()).unwrap().join("file");
        let mount = |source| Place::look(&path).unwrap().mount(source, 0o100_600, false).unwrap();
        // Nothing answers on either connection, and nothing is asked.
        let (_one, first) = mount("pinstripe:a b");
        Mounter::Own.unmount(&path, true).unwrap();
        let (_other, second) = mount("pinstripe:c d");
        assert!(!first.unmount().unwrap());
        assert_eq!(mounted_at(&path).unwrap().unwrap().source, b"pinstripe:c d");
        assert!(!second.unmount().unwrap());
        assert_eq!(mounted_at(&path).unwrap(), None);
    }
}
