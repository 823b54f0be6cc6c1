//! Where the sockets of a running array are.

use std::{
    ffi::OsString,
    path::{Path, PathBuf},
};

use crate::text::is_unseen;

/// Sockets of the system's user, and of every user without a folder of their own.
const SYSTEM_FOLDER: &str = "/run/pinstripe";
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

/// How a link to a control socket elsewhere ends.
const LINK: &str = "link";

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

/// A link by which a control socket outside of the folders is found. It goes with this.
pub struct Link(PathBuf);

impl Link {
    /// Has the socket at `path`, of the array `uuid`, found from `folder`; `None` if that can't be: it is a
    /// convenience.
    pub fn new(folder: &Path, uuid: &str, path: &Path) -> Option<Self> {
        let link = folder.join(format!("{}.{LINK}", uuid.replace(':', "")));
        // Of a server that was killed.
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(path, &link).ok().map(|()| Self(link))
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
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

    #[test]
    fn a_name_that_would_leave_the_folder_is_replaced_by_the_uuid() {
        assert_eq!(stem("data", "01:23"), "data");
        for bad in ["", "..", "a/b", "a\nb", "\u{fffd}", "da\u{200b}ta"] {
            assert_eq!(stem(bad, "01:23"), "0123", "{bad:?}");
        }
    }
}
