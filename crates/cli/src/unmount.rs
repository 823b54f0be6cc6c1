//! `pinstripe stop --unmount`: what is mounted on an array is unmounted, by systemd, which knows what needs
//! it.
//!
//! It goes by what is mounted, not by `/etc/fstab`: a line may name the file system by `UUID=` or `LABEL=`,
//! or a device that is made of the array, and a person may have mounted it without one.

use std::{
    collections::BTreeSet,
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
};

use pinstripe_control::Detail;

use crate::{
    block_users::{mounted, mounts, names, with_all_above},
    configuration::mounts::{decoded, unit_of},
    output, systemd,
};

/// Has systemd unmount what is mounted on the array's ublk devices, and waits for that.
pub fn all_on(array: &Detail) {
    let disks = array.uris("ublk").filter_map(|uri| uri.strip_prefix("/dev/"));
    let mut devices: BTreeSet<String> = disks.flat_map(with_all_above).collect();
    let others = of_same_btrfs(Path::new("/sys/fs/btrfs"), &devices);
    devices.extend(others);
    let number = |device: &String| fs::read_to_string(Path::new("/sys/class/block").join(device).join("dev"));
    let numbers = devices.iter().filter_map(|device| number(device).ok());
    let numbers: BTreeSet<String> = numbers.map(|number| number.trim().to_owned()).collect();
    let units = match mounts() {
        Ok(mounts) => units(&mounts, &numbers, number_of),
        Err(error) => {
            output::remark(&format!("pinstripe: what is mounted can't be seen, and stays mounted: {error}"));
            Vec::new()
        }
    };
    if !units.is_empty() {
        systemd::stop(&units);
    }
}

/// All devices of the btrfs file systems that lie on one of these. The list of mounts names one of them.
fn of_same_btrfs(folder: &Path, devices: &BTreeSet<String>) -> Vec<String> {
    let file_systems = names(folder).into_iter().map(|one| names(&folder.join(one).join("devices")));
    file_systems.filter(|all| all.iter().any(|device| devices.contains(device))).flatten().collect()
}

/// The number (major:minor) of the block device that a path leads to.
fn number_of(path: &str) -> Option<String> {
    let file = fs::metadata(path).ok().filter(|file| file.file_type().is_block_device())?;
    Some(format!("{}:{}", rustix::fs::major(file.rdev()), rustix::fs::minor(file.rdev())))
}

/// The units of what is mounted on the devices with these numbers. `number_of`: what the path of a device
/// leads to.
fn units(
    mounts: &str,
    numbers: &BTreeSet<String>,
    number_of: impl Fn(&str) -> Option<String>,
) -> Vec<String> {
    let is_ours = |source: &str| number_of(&decoded(source)).is_some_and(|number| numbers.contains(&number));
    let by_number = numbers.iter().flat_map(|number| mounted(mounts, number));
    let places: BTreeSet<&str> = by_number.chain(mounted_from(mounts, is_ours)).collect();
    places.into_iter().filter_map(|place| unit_of(&decoded(place), "mount")).collect()
}

/// Where a file system is mounted of which the list says that it is from such a device. btrfs has a number of
/// its own, and is said to be from the path that it was mounted or found by. With FUSE any user may say so.
fn mounted_from(mounts: &str, is_it: impl Fn(&str) -> bool) -> impl Iterator<Item = &str> {
    mounts.lines().filter_map(move |line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let (kind, rest) = file_system.split_once(' ')?;
        let source = rest.split(' ').next().filter(|source| source.starts_with("/dev/"))?;
        let is_found = !kind.starts_with("fuse") && is_it(source);
        is_found.then(|| mount.split(' ').nth(4)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(words: &[&str]) -> BTreeSet<String> {
        words.iter().map(|&word| word.to_owned()).collect()
    }

    #[test]
    fn all_that_is_mounted_on_an_array_is_found_by_number_and_by_source() {
        let mounts = "22 1 259:1 / / rw - ext4 /dev/x rw\n31 22 259:10 / /srv/a\\040b rw shared:1 - ext4 /dev/ublkb0 rw\n\
            32 22 259:10 /sub /y rw - ext4 /dev/ublkb0 rw\n33 22 0:40 / /btrfs rw shared:3 - btrfs /dev/ublkb0p1 rw\n\
            34 22 253:0 / /lv rw - xfs /dev/mapper/vg-lv rw\n35 22 259:100 / /other rw - ext4 /dev/ublkb1 rw\n\
            36 22 0:41 / /another rw - btrfs /dev/ublkb10 rw\n37 22 0:42 / /crypt rw - btrfs /dev/mapper/c rw\n\
            38 22 0:43 / /alias rw - btrfs /dev/pinstripe/a\\040b rw\n39 22 0:44 / /home/u rw - fuse.x /dev/mapper/c rw\n\
            40 22 0:45 / /none rw - btrfs /dev/mapper/gone rw\n";
        let number_of = |path: &str| {
            let number = match path {
                "/dev/ublkb0p1" => "259:11",
                "/dev/mapper/c" => "253:0",
                "/dev/pinstripe/a b" => "259:10",
                "/dev/ublkb10" => "259:20",
                _ => return None,
            };
            Some(number.to_owned())
        };
        let numbers = set(&["253:0", "259:11", "259:10"]);
        let expected =
            ["alias.mount", "btrfs.mount", "crypt.mount", "lv.mount", "srv-a\\x20b.mount", "y.mount"];
        assert_eq!(units(mounts, &numbers, number_of), expected);
        assert_eq!(units(mounts, &set(&[]), number_of), [""; 0]);
    }

    #[test]
    fn a_btrfs_lies_on_all_of_its_devices() {
        let folder = tempfile::tempdir().unwrap();
        for place in ["1-uuid/devices/dm-0", "1-uuid/devices/sdb", "2-uuid/devices/sdc", "features"] {
            fs::create_dir_all(folder.path().join(place)).unwrap();
        }
        assert_eq!(of_same_btrfs(folder.path(), &set(&["ublkb0", "dm-0"])), ["dm-0", "sdb"]);
        assert_eq!(of_same_btrfs(folder.path(), &set(&["ublkb0"])), [""; 0]);
    }
}
