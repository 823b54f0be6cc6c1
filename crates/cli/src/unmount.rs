//! `pinstripe stop --unmount`: what is mounted on an array is unmounted, by systemd, which knows what needs
//! it.
//!
//! It goes by what is mounted, not by `/etc/fstab`: a line may name the file system by `UUID=` or `LABEL=`,
//! or a device that is made of the array, and a person may have mounted it without one.

use std::{collections::BTreeSet, fs, path::Path};

use pinstripe_control::Detail;

use crate::{
    block_users::{mounted, with_all_above},
    configuration::mounts::{decoded, unit_of},
    systemd,
};

/// Has systemd unmount what is mounted on the array's ublk devices, and waits for that.
pub fn all_on(array: &Detail) {
    let addresses = array.addresses.iter().filter(|address| address.protocol == "ublk");
    let disks = addresses.filter_map(|address| address.uri.strip_prefix("/dev/"));
    let devices: Vec<Device> = disks.flat_map(with_all_above).map(Device::of).collect();
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let units = units(&mounts, &devices);
    if !units.is_empty() {
        systemd::stop(&units);
    }
}

/// A block device: its name, and its number (major:minor).
struct Device {
    name: String,
    number: String,
}

impl Device {
    fn of(name: String) -> Self {
        let number = fs::read_to_string(Path::new("/sys/class/block").join(&name).join("dev"));
        Self { name, number: number.unwrap_or_default().trim().to_owned() }
    }
}

/// The units of what is mounted on these devices.
fn units(mounts: &str, devices: &[Device]) -> Vec<String> {
    let places: BTreeSet<&str> = devices
        .iter()
        .flat_map(|device| mounted(mounts, &device.number).chain(mounted_from(mounts, &device.name)))
        .collect();
    places.into_iter().filter_map(|place| unit_of(&decoded(place), "mount")).collect()
}

/// Where a file system is mounted of which the list says that it is from this device. btrfs has a number of
/// its own.
fn mounted_from<'a>(mounts: &'a str, name: &'a str) -> impl Iterator<Item = &'a str> {
    mounts.lines().filter_map(move |line| {
        let (mount, file_system) = line.split_once(" - ")?;
        let source = file_system.split(' ').nth(1)?;
        (source.strip_prefix("/dev/") == Some(name)).then(|| mount.split(' ').nth(4)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_is_mounted_on_an_array_is_found_by_number_and_by_source() {
        let mounts = "22 1 259:1 / / rw - ext4 /dev/x rw\n31 22 259:10 / /srv/a\\040b rw shared:1 - ext4 /dev/ublkb0 rw\n\
            32 22 259:10 /sub /y rw - ext4 /dev/ublkb0 rw\n33 22 0:40 / /btrfs rw shared:3 - btrfs /dev/ublkb0p1 rw\n\
            34 22 253:0 / /lv rw - xfs /dev/mapper/vg-lv rw\n35 22 259:100 / /other rw - ext4 /dev/ublkb1 rw\n\
            36 22 0:41 / /another rw - btrfs /dev/ublkb10 rw\n";
        let device = |name: &str, number: &str| Device { name: name.to_owned(), number: number.to_owned() };
        let devices = [device("dm-0", "253:0"), device("ublkb0p1", "259:11"), device("ublkb0", "259:10")];
        assert_eq!(units(mounts, &devices), ["btrfs.mount", "lv.mount", "srv-a\\x20b.mount", "y.mount"]);
        assert_eq!(units(mounts, &[device("gone", "")]), [""; 0]);
    }
}
