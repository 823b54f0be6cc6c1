//! Where the sockets of a running array are.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with},
};

use crate::text::is_unseen;

/// Sockets of the system's user, and of every user without a folder of their own.
pub const SYSTEM_FOLDER: &str = "/run/pinstripe";
/// Names another folder for all sockets, of every user.
const OWN_VARIABLE: &str = "PINSTRIPE_RUNTIME_DIR";
/// A login session's folder, which goes with the session: nothing for the system's user.
const SESSION_VARIABLE: &str = "XDG_RUNTIME_DIR";

/// The folders in which sockets may be, the one for new sockets first.
pub fn folders() -> Vec<PathBuf> {
    folders_of(rustix::process::geteuid().is_root(), |name| std::env::var_os(name))
}

fn folders_of(is_root: bool, variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let folder = |name| variable(name).map(PathBuf::from).filter(|folder| folder.is_absolute());
    if let Some(folder) = folder(OWN_VARIABLE) {
        return vec![folder];
    }
    let session = folder(SESSION_VARIABLE).filter(|_| !is_root).map(|folder| folder.join("pinstripe"));
    session.into_iter().chain([PathBuf::from(SYSTEM_FOLDER)]).collect()
}

/// How a link to the control socket of an array ends, which is called by the array's UUID.
const LINK: &str = "link";
/// Of an array's UUID.
const UUID_DIGITS: usize = 32;

/// The control sockets of all servers, as far as this user may see them; some may have been left behind.
pub fn sockets() -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in folders().iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten() {
        let path = entry.path();
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("sock") => all.push(path),
            Some(LINK) => all.extend(std::fs::read_link(&path)),
            _ => {}
        }
    }
    all.sort();
    all.dedup();
    all
}

/// The folders in which sockets may be that this user may not look in.
pub fn closed() -> Vec<PathBuf> {
    let is_closed = |folder: &PathBuf| {
        std::fs::read_dir(folder).is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied)
    };
    folders().into_iter().filter(is_closed).collect()
}

/// A link by which an array's control socket is found, wherever it is and whatever it is called. It goes with
/// this, unless a server of a copy of the array has it by then.
pub struct Link {
    link: PathBuf,
    /// The socket that it leads to.
    socket: PathBuf,
}

fn link(folder: &Path, uuid: &str) -> PathBuf {
    folder.join(format!("{}.{LINK}", uuid.replace(':', "")))
}

impl Link {
    /// Has the socket at `path`, of the array `uuid`, found from `folder`; `None` if that can't be: it is a
    /// convenience.
    pub fn new(folder: &Path, uuid: &str, path: &Path) -> Option<Self> {
        let link = link(folder, uuid);
        // In the place of one that is there, of a server that was killed or the program before an upgrade, in
        // one step: in between the array would count as not served.
        let new = link.with_extension(format!("{LINK}-new"));
        let _ = std::fs::remove_file(&new);
        std::os::unix::fs::symlink(path, &new).ok()?;
        std::fs::rename(&new, &link).ok()?;
        // The server has the socket: others that had it were killed.
        for other in std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
            let is_link = other.extension().is_some_and(|extension| extension == LINK) && other != link;
            if is_link && std::fs::read_link(&other).is_ok_and(|socket| socket == path) {
                let _ = std::fs::remove_file(&other);
            }
        }
        Some(Self { link, socket: path.to_owned() })
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if std::fs::read_link(&self.link).is_ok_and(|socket| socket == self.socket) {
            let _ = std::fs::remove_file(&self.link);
        }
    }
}

/// The digits of a UUID, however it is written.
pub fn digits(uuid: &str) -> String {
    uuid.replace([':', '-'], "").to_ascii_lowercase()
}

/// The control socket of the array with this UUID, as `detail`, MD or udev write it; `None` if it is none, or
/// none is linked.
pub fn by_uuid(text: &str) -> Option<PathBuf> {
    let digits = digits(text);
    if digits.len() != UUID_DIGITS || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    folders().into_iter().find_map(|folder| std::fs::read_link(link(&folder, &digits)).ok())
}

/// Whether a server listens for this array. It isn't asked, so one that hangs holds up nothing.
pub fn is_served(uuid: &str) -> bool {
    is_served_in(folders(), uuid)
}

fn is_served_in(folders: Vec<PathBuf>, uuid: &str) -> bool {
    let listens = |folder: PathBuf| {
        let socket = std::fs::read_link(link(&folder, uuid)).ok()?;
        let address = SocketAddrUnix::new(socket).ok()?;
        let end = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).ok()?;
        match connect(&end, &address) {
            // Its queue is full.
            Ok(()) | Err(Errno::AGAIN) => Some(()),
            Err(_) => None,
        }
    };
    folders.into_iter().any(|folder| listens(folder).is_some())
}

/// The file name for sockets of the array `name`. A name comes from a disk: where it is no component of a
/// path, the uuid stands for it.
pub fn stem(name: &str, uuid: &str) -> String {
    let usable = !name.is_empty()
        && !name.starts_with('.')
        && !name.contains(|c: char| c == '/' || c.is_control() || is_unseen(c) || c == '\u{fffd}');
    if usable { name.to_owned() } else { uuid.replace(':', "") }
}

/// Where the control socket of `array` may be: at a path, or in one of the folders by the array's name. Only
/// what ends with `.sock` is asked for in the current folder, and at last: others may put things there.
pub fn candidates(array: &str) -> Vec<PathBuf> {
    if array.contains('/') {
        return vec![PathBuf::from(array)];
    }
    let here = Path::new(array);
    let here = here.extension().is_some_and(|extension| extension == "sock").then(|| here.to_owned());
    folders().iter().map(|folder| folder.join(format!("{array}.sock"))).chain(here).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_systems_user_has_one_folder_whatever_session_it_is_in() {
        let session = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| OsString::from("/run/user/7"));
        let (own, system) = (PathBuf::from("/run/user/7/pinstripe"), PathBuf::from("/run/pinstripe"));
        assert_eq!(folders_of(true, session), std::slice::from_ref(&system));
        assert_eq!(folders_of(false, session), [own, system.clone()]);
        assert_eq!(folders_of(false, |_| None), std::slice::from_ref(&system));
        assert_eq!(folders_of(false, |_| Some("relative".into())), [system]);
        let named =
            |name: &str| Some(OsString::from(if name == "PINSTRIPE_RUNTIME_DIR" { "/x" } else { "/y" }));
        assert_eq!(folders_of(true, named), [PathBuf::from("/x")]);
    }

    /// udev would give what a halted server has to mdadm.
    #[test]
    fn a_server_that_is_halted_and_whose_queue_is_full_serves_its_array() {
        let (folder, uuid) = (tempfile::tempdir().unwrap(), "01:23");
        let socket = folder.path().join("data.sock");
        let is_served = || is_served_in(vec![folder.path().to_owned()], uuid);
        let _link = Link::new(folder.path(), uuid, &socket).unwrap();
        assert!(!is_served());
        let address = SocketAddrUnix::new(&socket).unwrap();
        let stream = |flags| socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let listener = stream(SocketFlags::empty());
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        assert!(is_served());
        let connects = || {
            let end = stream(SocketFlags::NONBLOCK);
            connect(&end, &address).map(|()| end)
        };
        let waiting: Vec<_> = std::iter::from_fn(|| connects().ok()).collect();
        assert_eq!(connects().err(), Some(Errno::AGAIN), "{} wait", waiting.len());
        assert!(is_served());
        drop(listener);
        assert!(!is_served());
    }

    #[test]
    fn a_link_takes_the_place_of_another_one_in_one_step_and_goes_with_its_own_server() {
        let folder = tempfile::tempdir().unwrap();
        let new_of = |uuid: &str, socket: &str| Link::new(folder.path(), uuid, Path::new(socket)).unwrap();
        let new = |socket: &str| new_of("01:23", socket);
        let place = folder.path().join("0123.link");
        let leads_to = || std::fs::read_link(&place).ok();
        let first = new("/a.sock");
        assert_eq!(leads_to(), Some("/a.sock".into()));
        let second = new("/b.sock");
        drop(first);
        assert_eq!(leads_to(), Some("/b.sock".into()), "the other one's");
        drop(second);
        assert_eq!(leads_to(), None);
        // A server that was killed leaves its own, and what has its socket then takes it away.
        let killed = std::mem::ManuallyDrop::new(new("/a.sock"));
        let other = new_of("45:67", "/b.sock");
        assert_eq!(leads_to(), Some(killed.socket.clone()));
        let successor = new_of("89:ab", "/a.sock");
        assert_eq!(leads_to(), None);

        let links = std::thread::scope(|scope| {
            let looker = scope.spawn(|| {
                while leads_to().is_none() {}
                (0..20_000).filter(|_| leads_to().is_none()).count()
            });
            let mut links = vec![new("/a.sock")];
            while !looker.is_finished() {
                links.push(new("/a.sock"));
            }
            assert_eq!(looker.join().unwrap(), 0, "there was no link");
            links
        });
        drop((links, other, successor));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_name_that_would_leave_the_folder_is_replaced_by_the_uuid() {
        assert_eq!(stem("data", "01:23"), "data");
        for bad in ["", "..", "a/b", "a\nb", "\u{fffd}", "da\u{200b}ta"] {
            assert_eq!(stem(bad, "01:23"), "0123", "{bad:?}");
        }
    }
}
