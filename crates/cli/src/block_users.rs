//! What uses a block device, by the kernel's own lists: nothing is opened, for that could be a request to the
//! device.

use std::{
    ffi::OsString,
    fmt, fs, io,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};

use pinstripe_runtime::uring::readable_path;
use rustix::fs::OFlags;

/// A use of a block device.
#[derive(Debug)]
pub struct Use {
    /// The device, or a partition of it.
    pub device: String,
    /// What the device is, in words.
    pub what: String,
}

/// A process that has a file open.
#[derive(Debug, PartialEq, Eq)]
pub struct Opener {
    /// Its number.
    pub process: u32,
    /// Its program's name.
    pub name: String,
}

impl fmt::Display for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {})", self.name, self.process)
    }
}

/// Where the kernel lists the devices of file systems, and their external journals.
struct Lists {
    mounts: String,
    swaps: String,
    file_systems: PathBuf,
    jbd2: PathBuf,
}

impl Lists {
    fn now() -> io::Result<Self> {
        Ok(Self {
            mounts: mounts()?,
            // A kernel without swap has no such list.
            swaps: list(Path::new("/proc/swaps")).unwrap_or_default(),
            file_systems: "/sys/fs".into(),
            jbd2: "/proc/fs/jbd2".into(),
        })
    }

    /// What uses the device of this name and number (major:minor).
    fn users(&self, name: &str, number: &str) -> Vec<String> {
        let mut found: Vec<String> =
            mounted(&self.mounts, number).map(|place| format!("mounted on {place}")).collect();
        // A container may have a mount that is none of ours, also when ours has ended.
        let is_mounted = |kind: &&str| self.file_systems.join(kind).join(name).exists();
        if found.is_empty()
            && let Some(kind) = ["ext4", "xfs", "f2fs"].into_iter().find(is_mounted)
        {
            found.push(format!("mounted elsewhere, in another name space of mounts ({kind})"));
        }
        // A mount of btrfs has a number of its own, and may lie on several devices.
        let btrfs = self.file_systems.join("btrfs");
        for file_system in names(&btrfs) {
            if btrfs.join(&file_system).join("devices").join(name).exists() {
                found.push(format!("part of the btrfs file system {file_system}, which is mounted"));
            }
        }
        // The journal of a mounted ext4 has its file system's device, and an inode behind it.
        if self.jbd2.join(name).exists() {
            found.push("the journal of a mounted file system".to_owned());
        }
        found.extend(self.swaps.lines().any(|line| is_swap(line, name)).then(|| "used as swap".to_owned()));
        found
    }
}

/// What is mounted, as the kernel lists it.
pub fn mounts() -> io::Result<String> {
    list(Path::new("/proc/self/mountinfo"))
}

/// A list of the kernel's. A name in it may be no UTF-8: any user can mount something at such a place, which
/// must not keep all other lines from being read.
fn list(path: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

/// Mounts, swap, and devices on top of the block device of this name, or of a partition of it. An external
/// log of XFS is not seen: no list has it.
///
/// # Errors
/// If the kernel's lists can't be read: what uses the device isn't known then.
pub fn users(name: &str) -> io::Result<Vec<Use>> {
    let devices: Vec<String> = partitions(name).chain([name.to_owned()]).collect();
    let lists = Lists::now()?;
    let mut found = Vec::new();
    for device in devices {
        let folder = Path::new("/sys/class/block").join(&device);
        let number = fs::read_to_string(folder.join("dev"))?;
        let holders = names(&folder.join("holders")).into_iter().map(|holder| format!("used by {holder}"));
        let all = lists.users(&device, number.trim()).into_iter().chain(holders);
        found.extend(all.map(|what| Use { device: device.clone(), what }));
    }
    Ok(found)
}

/// The processes that have the block device of this name, or a partition of it, open as it is, as far as this
/// user may know. No list of the kernel's has them.
pub fn openers(name: &str) -> Vec<Opener> {
    let devices = partitions(name).chain([name.to_owned()]);
    let number = |device: String| fs::metadata(Path::new("/dev").join(device)).ok().map(|file| file.rdev());
    let numbers: Vec<u64> = devices.filter_map(number).collect();
    having_open(|file| file.file_type().is_block_device() && numbers.contains(&file.rdev()))
}

/// The processes that have such a file of `/dev` open. Other files aren't looked at: they may be on a file
/// system that doesn't answer.
fn having_open(is_it: impl Fn(&fs::Metadata) -> bool) -> Vec<Opener> {
    let has_it = |process: &u32| {
        let process = Path::new("/proc").join(process.to_string());
        let files = process.join("fd");
        names(&files).iter().any(|number| {
            let file = files.join(number);
            fs::read_link(&file).is_ok_and(|path| path.starts_with("/dev"))
                && fs::metadata(&file).is_ok_and(|file| is_it(&file))
                && !is_a_path(&process.join("fdinfo").join(number))
        })
    };
    let processes = names(Path::new("/proc")).into_iter().filter_map(|name| name.parse::<u32>().ok());
    let named = |process: u32| {
        let name = fs::read_to_string(format!("/proc/{process}/comm")).unwrap_or_default();
        Opener { process, name: name.trim_end().to_owned() }
    };
    processes.filter(has_it).map(named).collect()
}

/// Whether a descriptor stands for a path alone (`O_PATH`). That opens no device, and any user may have it.
fn is_a_path(descriptor: &Path) -> bool {
    let text = fs::read_to_string(descriptor).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|flags| u32::from_str_radix(flags.trim(), 8).ok());
    flags.is_some_and(|flags| flags & OFlags::PATH.bits() != 0)
}

/// The block device of this name with its partitions and all devices on top of these, each behind those on
/// top of it.
pub fn with_all_above(name: &str) -> Vec<String> {
    let holders = names(&Path::new("/sys/class/block").join(name).join("holders"));
    let above = partitions(name).chain(holders);
    above.flat_map(|one| with_all_above(&one)).chain([name.to_owned()]).collect()
}

/// The disk under a partition; other devices are their own.
pub fn disk_of(device: &Path) -> Option<PathBuf> {
    found(device, whole)
}

/// The disk that a device lies on: under a partition, under what LUKS or LVM has made of one device, and
/// under a multipath. What is none of these is its own.
pub fn disk_below(device: &Path) -> Option<PathBuf> {
    found(device, lowest)
}

fn found(device: &Path, find: fn(&Path, &Path) -> Option<OsString>) -> Option<PathBuf> {
    // A generic device of NVMe (`/dev/ngXnY`) is no block device, and has one.
    let path = readable_path(&device.canonicalize().ok()?);
    Some(Path::new("/dev").join(find(Path::new("/sys/class/block"), Path::new(path.file_name()?))?))
}

/// The name of the disk under a partition; what is none has its own.
fn whole(class: &Path, name: &Path) -> Option<OsString> {
    let folder = class.join(name).canonicalize().ok()?;
    let disk = if folder.join("partition").exists() { folder.parent()? } else { &folder };
    disk.file_name().map(ToOwned::to_owned)
}

fn lowest(class: &Path, name: &Path) -> Option<OsString> {
    let folder = class.join(name);
    // All of a multipath's are ways to one disk.
    let is_multipath =
        fs::read_to_string(folder.join("dm/uuid")).is_ok_and(|uuid| uuid.starts_with("mpath-"));
    match names(&folder.join("slaves")).as_slice() {
        [below] => lowest(class, Path::new(below)),
        [below, ..] if is_multipath => lowest(class, Path::new(below)),
        _ => whole(class, name),
    }
}

fn partitions(name: &str) -> impl Iterator<Item = String> {
    let folder = Path::new("/sys/class/block").join(name);
    names(&folder).into_iter().filter(move |part| folder.join(part).join("partition").is_file())
}

/// The names in a folder, in order.
pub fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

/// Where the device with this number (major:minor) is mounted. The third word of a line is the number, the
/// fifth the place.
pub fn mounted<'a>(mounts: &'a str, number: &'a str) -> impl Iterator<Item = &'a str> {
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
        let mounts = "22 1 259:1 / / rw - ext4 /dev/x rw\n31 22 259:10 / /srv/a\\040b rw shared:1 - ext4 /dev/ublkb0 rw\n\
            41 35 259:10 /sub /y rw - ext4 /dev/ublkb0 rw\n";
        assert_eq!(mounted(mounts, "259:10").collect::<Vec<_>>(), ["/srv/a\\040b", "/y"]);
        assert_eq!(mounted(mounts, "259:100").count() + mounted(mounts, "").count(), 0);
        assert!(is_swap("/dev/ublkb1 partition 1024 0 -2", "ublkb1"));
        assert!(
            !is_swap("/dev/ublkb12 partition 1024 0 -2", "ublkb1") && !is_swap("Filename Type", "ublkb1")
        );
    }

    #[test]
    fn a_name_that_is_no_text_hides_no_other_line() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let text =
            b"30 22 0:50 / /home/u/\xe9 rw - fuse.x \xff rw\n31 22 259:10 / /srv rw - ext4 /dev/ublkb0 rw\n";
        fs::write(file.path(), text).unwrap();
        assert_eq!(mounted(&list(file.path()).unwrap(), "259:10").collect::<Vec<_>>(), ["/srv"]);
    }

    #[test]
    fn file_systems_with_several_devices_and_journals_elsewhere_are_users() {
        let folder = tempfile::tempdir().unwrap();
        let (file_systems, jbd2) = (folder.path().join("fs"), folder.path().join("jbd2"));
        let btrfs = file_systems.join("btrfs");
        fs::create_dir_all(btrfs.join("features")).unwrap();
        fs::create_dir_all(btrfs.join("1234-uuid/devices/ublkb0p1")).unwrap();
        fs::create_dir_all(jbd2.join("ublkb1")).unwrap();
        fs::create_dir_all(jbd2.join("ublkb2-8")).unwrap();
        fs::create_dir_all(file_systems.join("ext4/features")).unwrap();
        fs::create_dir_all(file_systems.join("xfs/ublkb3")).unwrap();
        let mounts = "31 22 259:7 / /srv rw - xfs /dev/ublkb3 rw\n".to_owned();
        let lists = Lists { mounts, swaps: String::new(), file_systems, jbd2 };
        assert_eq!(lists.users("ublkb3", "259:7"), ["mounted on /srv"]);
        assert_eq!(
            lists.users("ublkb3", "259:70"),
            ["mounted elsewhere, in another name space of mounts (xfs)"]
        );
        assert_eq!(
            lists.users("ublkb0p1", "259:3"),
            ["part of the btrfs file system 1234-uuid, which is mounted"]
        );
        assert_eq!(lists.users("ublkb1", "259:4"), ["the journal of a mounted file system"]);
        assert!(lists.users("ublkb2", "259:5").is_empty() && lists.users("ublkb0", "259:2").is_empty());
    }

    #[test]
    fn a_process_that_has_a_device_open_is_found() {
        use std::process::{Command, Stdio};

        let file = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
        let inode = file.as_file().metadata().unwrap().ino();
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let path = rustix::fs::open(file.path(), flags, rustix::fs::Mode::empty()).unwrap();
        let sleeping = |input: Stdio| Command::new("sleep").arg("600").stdin(input).spawn().unwrap();
        let mut sleep = sleeping(file.into_file().into());
        let mut with_path = sleeping(path.into());
        let found = having_open(|file| file.ino() == inode && file.is_file());
        for child in [&mut sleep, &mut with_path] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let own = Opener { process: sleep.id(), name: "sleep".to_owned() };
        assert!(found.contains(&own), "{found:?}");
        assert!(found.iter().all(|one| one.process != with_path.id()), "{found:?}");
        assert!(having_open(|file| file.ino() == inode && file.is_file()).is_empty());
        assert!(openers("ublkb999999").is_empty());
    }

    #[test]
    fn the_disk_under_a_partition_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let class = folder.path().join("class");
        let partition = folder.path().join("devices/nvme0n1/nvme0n1p2");
        fs::create_dir_all(&class).unwrap();
        fs::create_dir_all(&partition).unwrap();
        fs::write(partition.join("partition"), "2").unwrap();
        for name in ["nvme0n1", "nvme0n1/nvme0n1p2"] {
            let target = folder.path().join("devices").join(name);
            std::os::unix::fs::symlink(&target, class.join(target.file_name().unwrap())).unwrap();
        }
        for find in [whole, lowest] {
            assert_eq!(find(&class, Path::new("nvme0n1p2")), Some("nvme0n1".into()));
            assert_eq!(find(&class, Path::new("nvme0n1")), Some("nvme0n1".into()));
            assert_eq!(find(&class, Path::new("sda")), None);
        }
        // LUKS over the partition, a volume over two devices, and two ways to one disk.
        let mapped = |name: &str, slaves: &[&str], uuid: &str| {
            for slave in slaves {
                fs::create_dir_all(class.join(name).join("slaves").join(slave)).unwrap();
            }
            fs::create_dir_all(class.join(name).join("dm")).unwrap();
            fs::write(class.join(name).join("dm/uuid"), uuid).unwrap();
            lowest(&class, Path::new(name)).unwrap()
        };
        assert_eq!(mapped("dm-0", &["nvme0n1p2"], "CRYPT-LUKS2-a"), "nvme0n1");
        assert_eq!(mapped("dm-1", &["dm-0", "nvme0n1"], "LVM-a"), "dm-1");
        assert_eq!(mapped("dm-2", &["nvme0n1", "nvme0n1p2"], "mpath-a"), "nvme0n1");
    }

    #[test]
    fn the_uses_of_a_device_that_is_not_there_are_not_known() {
        assert!(users("ublkb999999").is_err());
    }
}
