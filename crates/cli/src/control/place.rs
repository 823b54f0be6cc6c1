//! Where the sockets of a running array are.

use std::path::{Path, PathBuf};

/// Sockets of the system's user, and of every user without a folder of their own.
const SYSTEM_FOLDER: &str = "/run/pinstripe";

/// The folders in which sockets may be, the one for new sockets first.
pub fn folders() -> Vec<PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| Path::new(folder).is_absolute());
    let own = own.map(|folder| Path::new(&folder).join("pinstripe"));
    own.into_iter().chain([PathBuf::from(SYSTEM_FOLDER)]).collect()
}

/// The file name for sockets of the array `name`. A name comes from a disk: where it is no component of a path, the
/// uuid stands for it.
pub fn stem(name: &str, uuid: &str) -> String {
    let usable = !name.is_empty()
        && !name.starts_with('.')
        && !name.contains(|c: char| c == '/' || c.is_control() || c == '\u{fffd}');
    if usable { name.to_owned() } else { uuid.replace(':', "") }
}

/// Where the control socket of `array` may be: at a path, or in one of the folders by the array's name. What looks like
/// a socket's name may also be one in the current folder.
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
    fn a_name_that_would_leave_the_folder_is_replaced_by_the_uuid() {
        assert_eq!(stem("data", "01:23"), "data");
        for bad in ["", "..", "a/b", "a\nb", "\u{fffd}"] {
            assert_eq!(stem(bad, "01:23"), "0123", "{bad:?}");
        }
    }
}
