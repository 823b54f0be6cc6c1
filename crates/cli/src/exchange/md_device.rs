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

fn folder(name: &str) -> PathBuf {
    Path::new("/sys/class/block").join(name)
}

/// Why it can't be stopped now; none if it can, as far as is seen.
pub fn obstacle(name: &str) -> io::Result<Option<String>> {
    let said = |what: &str| {
        fs::read_to_string(folder(name).join("md").join(what)).map(|text| text.trim().to_owned())
    };
    // The kernel has these only where they mean something.
    let reshape = said("reshape_position").unwrap_or_else(|_| "none".to_owned());
    if reshape != "none" || said("sync_action").is_ok_and(|action| action == "reshape") {
        return Ok(Some(format!("/dev/{name} is being reshaped: let the kernel finish that")));
    }
    let users = block_users::users(name)?.into_iter();
    let users: Vec<String> = users.map(|found| format!("/dev/{} is {}", found.device, found.what)).collect();
    let in_use = || format!("/dev/{name} is in use: {}: end that first", users.join(", "));
    Ok((!users.is_empty()).then(in_use))
}
