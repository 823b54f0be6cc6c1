//! What uses a block device, by the kernel's own lists: nothing is opened, for that could be a request to the
//! device.

use std::{fs, path::Path};

/// Mounts, swap, and devices on top, each in words.
pub fn users(device: u32) -> Vec<String> {
    let name = format!("ublkb{device}");
    let folder = Path::new("/sys/block").join(&name);
    let partitions = names(&folder).into_iter().filter(|part| part.starts_with(&name));
    let parts: Vec<String> = partitions.map(|part| format!("{name}/{part}")).chain([name.clone()]).collect();
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let (mounts, swaps) = (read("/proc/self/mountinfo"), read("/proc/swaps"));
    let mut found = Vec::new();
    for part in parts {
        let folder = Path::new("/sys/block").join(&part);
        let number = fs::read_to_string(folder.join("dev")).unwrap_or_default();
        found.extend(mounted(&mounts, number.trim()).map(|place| format!("mounted on {place}")));
        let leaf = part.rsplit('/').next().unwrap_or(&part);
        found.extend(swaps.lines().any(|line| is_swap(line, leaf)).then(|| "used as swap".to_owned()));
        found.extend(names(&folder.join("holders")).into_iter().map(|holder| format!("used by {holder}")));
    }
    found
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Where the device with this number (major:minor) is mounted. The third word of a line is the number, the
/// fifth the place.
fn mounted<'a>(mounts: &'a str, number: &'a str) -> impl Iterator<Item = &'a str> {
    mounts.lines().filter_map(move |line| {
        let mut words = line.split(' ');
        let is_ours = words.nth(2) == Some(number) && !number.is_empty();
        is_ours.then(|| words.nth(1)).flatten()
    })
}

fn is_swap(line: &str, name: &str) -> bool {
    line.split_whitespace().next().is_some_and(|file| file.strip_prefix("/dev/") == Some(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounts_and_swap_of_a_device_are_found_by_its_number_and_name() {
        let mounts =
            "22 1 259:1 / / rw - ext4 /dev/x rw\n31 22 259:10 / /mnt/a rw shared:1 - ext4 /dev/ublkb0 rw\n";
        assert_eq!(mounted(mounts, "259:10").collect::<Vec<_>>(), ["/mnt/a"]);
        assert_eq!(mounted(mounts, "259:100").count() + mounted(mounts, "").count(), 0);
        assert!(is_swap("/dev/ublkb1 partition 1024 0 -2", "ublkb1"));
        assert!(
            !is_swap("/dev/ublkb12 partition 1024 0 -2", "ublkb1") && !is_swap("Filename Type", "ublkb1")
        );
    }

    #[test]
    fn a_device_that_is_not_there_has_no_users() {
        assert!(users(999_999).is_empty());
    }
}
