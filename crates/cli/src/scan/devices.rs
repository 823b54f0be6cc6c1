//! What block devices this machine has, and what lies on top of each.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

const FOLDER: &str = "/sys/class/block";
/// Devices that aren't searched unless the configuration names them, and neither is what lies on them: those
/// by which arrays are served, whose server may be the one that is to be started, and those that answer late
/// or hold no arrays.
const LEFT_OUT: [&str; 5] = ["ublkb", "nbd", "zram", "fd", "sr"];

/// All that have any bytes, and what is wrong.
pub fn block_devices() -> (Vec<PathBuf>, Vec<String>) {
    let entries = match fs::read_dir(FOLDER) {
        Ok(entries) => entries,
        Err(error) => return (Vec::new(), vec![format!("can't read {FOLDER}: {error}")]),
    };
    let mut names: Vec<String> =
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    let is_searched = |name: &String| {
        let folder = Path::new(FOLDER).join(name);
        let said = |what: &str| fs::read_to_string(folder.join(what)).unwrap_or_default();
        !lies_on_left_out(Path::new(FOLDER), name)
            && said("size").trim().parse::<u64>().is_ok_and(|sectors| sectors > 0)
            && said("hidden").trim() != "1"
    };
    let paths = names.iter().filter(|name| is_searched(name)).map(|name| node(name)).collect();
    (paths, Vec::new())
}

/// All, each with the number that the kernel gives anew when what is behind a name changes.
pub fn block_device_generations() -> Vec<String> {
    let entries = fs::read_dir(FOLDER).into_iter().flatten().flatten();
    let generation = |entry: fs::DirEntry| {
        let number = fs::read_to_string(entry.path().join("diskseq")).unwrap_or_default();
        format!("{} {}", entry.file_name().display(), number.trim())
    };
    let mut all: Vec<String> = entries.map(generation).collect();
    all.sort();
    all
}

/// Whether a path is of something that can be a member: a block device or a file. One that can't be seen may
/// be.
pub fn may_be_member(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let (path, _) = pinstripe_runtime::uring::path_of(path);
    fs::metadata(path).map_or(true, |found| found.is_file() || found.file_type().is_block_device())
}

/// Whether a device is one of those that are left out, or lies on one, as mappings and their partitions can.
fn lies_on_left_out(class: &Path, name: &str) -> bool {
    if LEFT_OUT.iter().any(|kind| is_of(name, kind)) {
        return true;
    }
    // A partition is in its disk's folder, which has what both lie on.
    let Ok(folder) = class.join(name).canonicalize() else { return false };
    let disk = if folder.join("partition").exists() { folder.parent().unwrap_or(&folder) } else { &folder };
    let below = fs::read_dir(disk.join("slaves")).into_iter().flatten().flatten();
    let mut below = below.filter_map(|entry| entry.file_name().into_string().ok());
    below.any(|below| lies_on_left_out(class, &below))
}

/// Whether a device's name is `kind` and a number.
fn is_of(name: &str, kind: &str) -> bool {
    name.strip_prefix(kind).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// The path of a device of `/sys`, where '!' stands for '/'.
fn node(name: &str) -> PathBuf {
    Path::new("/dev").join(name.replace('!', "/"))
}

/// The kernel's devices that lie on a block device: md arrays, mappings. None on a file.
pub fn holders(path: &Path) -> Vec<String> {
    use std::os::unix::fs::FileTypeExt;
    let (path, _) = pinstripe_runtime::uring::path_of(path);
    let Ok(metadata) = fs::metadata(path) else { return Vec::new() };
    if !metadata.file_type().is_block_device() {
        return Vec::new();
    }
    let number = metadata.rdev();
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let folder = format!("/sys/dev/block/{major}:{minor}/holders");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().replace('!', "/")).collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_files_can_be_members_and_what_is_neither_can_not() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("file"), "").unwrap();
        let may = |name: &str| may_be_member(&folder.path().join(name));
        assert!(may("file") && may("not-there") && !may("") && !may_be_member(Path::new("/dev/null")));
    }

    #[test]
    fn what_serves_arrays_is_not_searched() {
        let left_out = |name: &str| LEFT_OUT.iter().any(|kind| is_of(name, kind));
        assert!(left_out("ublkb0") && left_out("nbd12") && left_out("sr0") && left_out("nbd0p1"));
        assert!(!left_out("sda") && !left_out("srx") && !left_out("nvme0n1") && !left_out("dm-0"));
        assert_eq!(node("cciss!c0d0"), Path::new("/dev/cciss/c0d0"));
    }

    /// Their reads would wait for the server that is to be started.
    #[test]
    fn what_lies_on_what_serves_arrays_is_not_searched_either() {
        let folder = tempfile::tempdir().unwrap();
        let class = folder.path();
        let device = |name: &str, below: &[&str]| {
            fs::create_dir_all(class.join(name).join("slaves")).unwrap();
            for below in below {
                fs::write(class.join(name).join("slaves").join(below), "").unwrap();
            }
        };
        device("sda", &[]);
        device("ublkb0", &[]);
        device("dm-0", &["ublkb0"]);
        device("dm-1", &["sda", "dm-0"]);
        device("dm-2", &["sda"]);
        fs::create_dir(class.join("dm-1/dm-1p1")).unwrap();
        fs::write(class.join("dm-1/dm-1p1/partition"), "1").unwrap();
        std::os::unix::fs::symlink("dm-1/dm-1p1", class.join("dm-1p1")).unwrap();
        for name in ["ublkb0", "dm-0", "dm-1", "dm-1p1"] {
            assert!(lies_on_left_out(class, name), "{name}");
        }
        for name in ["sda", "dm-2", "not-there"] {
            assert!(!lies_on_left_out(class, name), "{name}");
        }
    }

    #[test]
    fn a_file_has_nothing_on_top_that_the_kernel_knows() {
        assert_eq!(holders(Path::new("/proc/self/exe")), Vec::<String>::new());
        assert_eq!(holders(Path::new("/nowhere")), Vec::<String>::new());
    }
}
