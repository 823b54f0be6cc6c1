//! An array that the kernel's md has: what it does, and what uses it.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

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
    let users = users(name)?;
    if users.is_empty() {
        return Ok(None);
    }
    Ok(Some(format!("/dev/{name} is in use: {}: end that first", users.join(", "))))
}

/// What uses it or a partition of it.
fn users(name: &str) -> io::Result<Vec<String>> {
    let mut users = Vec::new();
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    for device in with_partitions(name)? {
        let numbers = fs::read_to_string(folder(&device).join("dev"))?;
        users.extend(
            mounted_at(&mounts, numbers.trim()).map(|place| format!("/dev/{device} is mounted on {place}")),
        );
        let path = format!("/dev/{device}");
        if swaps.lines().any(|line| line.split_ascii_whitespace().next() == Some(&path)) {
            users.push(format!("{path} is swap space"));
        }
        for holder in fs::read_dir(folder(&device).join("holders"))?.flatten() {
            users.push(format!("{} lies on {path}", holder.file_name().display()));
        }
    }
    Ok(users)
}

/// Mount points of the device with these numbers, of the text of `/proc/self/mountinfo`.
fn mounted_at<'a>(mounts: &'a str, numbers: &'a str) -> impl Iterator<Item = &'a str> {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields.filter(move |fields| fields.get(2) == Some(&numbers)).filter_map(|fields| fields.get(4).copied())
}

fn with_partitions(name: &str) -> io::Result<BTreeSet<String>> {
    let mut all = BTreeSet::from([name.to_owned()]);
    for entry in fs::read_dir(folder(name))?.flatten() {
        if entry.path().join("partition").is_file() {
            all.extend(entry.file_name().into_string().ok());
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_found_by_the_devices_numbers() {
        let mounts = "36 35 9:0 / /srv/a\\040b rw,noatime shared:1 - ext4 /dev/md0 rw\n40 35 9:10 / /x rw - ext4 /dev/md10 rw\n\
            41 35 9:0 /sub /y rw - ext4 /dev/md0 rw\n";
        assert_eq!(mounted_at(mounts, "9:0").collect::<Vec<_>>(), ["/srv/a\\040b", "/y"]);
        assert_eq!(mounted_at(mounts, "9:1").count(), 0);
    }
}
