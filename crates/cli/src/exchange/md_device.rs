//! An array that the kernel's md has: what it does, and what uses it.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use crate::block_users;

/// The name (`md0`) of the kernel's array that a path means, if it means one.
pub fn name_of(path: &Path) -> Option<String> {
    let real = path.canonicalize().ok()?;
    let name = real.strip_prefix("/dev").ok()?.to_str()?;
    folder(name).join("md").is_dir().then(|| name.to_owned())
}

/// The names of the kernel's arrays.
pub fn names() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| folder(name).join("md").is_dir()).collect()
}

/// The devices that the kernel's array is made of.
pub fn members(name: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder(name).join("slaves")).into_iter().flatten().flatten();
    entries.map(|entry| Path::new("/dev").join(entry.file_name())).collect()
}

fn folder(name: &str) -> PathBuf {
    Path::new("/sys/class/block").join(name)
}

/// Why it can't be stopped now; none if it can, as far as is seen.
pub fn obstacle(name: &str) -> io::Result<Option<String>> {
    if is_reshaped(&folder(name).join("md")) {
        return Ok(Some(format!("/dev/{name} is being reshaped: let the kernel finish that")));
    }
    let users = block_users::users(name)?.into_iter();
    let users: Vec<String> = users.map(|found| format!("/dev/{} is {}", found.device, found.what)).collect();
    let in_use = || format!("/dev/{name} is in use: {}: end that first", users.join(", "));
    Ok((!users.is_empty()).then(in_use))
}

/// By what the kernel says in this folder.
fn is_reshaped(md: &Path) -> bool {
    let said = |what: &str| fs::read_to_string(md.join(what)).map(|text| text.trim().to_owned());
    // The kernel has these only where they mean something.
    let position = said("reshape_position").unwrap_or_else(|_| "none".to_owned());
    position != "none" || said("sync_action").is_ok_and(|action| action == "reshape")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// While a reshape is frozen or waits, no action tells of it.
    #[test]
    fn an_array_is_reshaped_as_long_as_a_position_or_the_action_says_so() {
        for (position, action, expected) in [
            (None, None, false),
            (Some("none\n"), Some("idle\n"), false),
            (Some("none\n"), Some("check\n"), false),
            (Some("1024\n"), Some("idle\n"), true),
            (Some("0\n"), None, true),
            (Some("none\n"), Some("reshape\n"), true),
            (None, Some("reshape\n"), true),
        ] {
            let md = tempfile::tempdir().unwrap();
            for (name, text) in [("reshape_position", position), ("sync_action", action)] {
                if let Some(text) = text {
                    fs::write(md.path().join(name), text).unwrap();
                }
            }
            assert_eq!(is_reshaped(md.path()), expected, "{position:?} {action:?}");
        }
    }
}
