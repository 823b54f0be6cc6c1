//! What block devices this machine has, and what lies on top of each.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

const FOLDER: &str = "/sys/class/block";
/// Devices that aren't searched unless the configuration names them: those by which arrays are served, whose
/// server may be the one that is to be started, and those that answer late or hold no arrays. Nor what lies
/// on them: a look at a volume of an array would wait for that array's server.
const LEFT_OUT: [&str; 5] = ["ublkb", "nbd", "zram", "fd", "sr"];
/// Devices that lie on each other.
const DEPTH_MAX: usize = 16;

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
        !is_left_out(Path::new(FOLDER), name, 0)
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

/// Whether a path is of something that can be a member: a block device, a file, or a device DAX. One that
/// can't be seen may be.
pub fn may_be_member(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let (path, _) = pinstripe_runtime::uring::path_of(path);
    let found = fs::metadata(path);
    found.map_or(true, |found| found.is_file() || found.file_type().is_block_device())
        || pinstripe_runtime::uring::is_device_dax(path)
}

/// Whether a device of this folder isn't searched.
fn is_left_out(folder: &Path, name: &str, depth: usize) -> bool {
    LEFT_OUT.iter().any(|kind| is_of(name, kind))
        || depth < DEPTH_MAX && below(folder, name).iter().any(|name| is_left_out(folder, name, depth + 1))
}

/// The devices on which one lies: a partition on its disk, a loop device on what it shows if that is a
/// device.
fn below(folder: &Path, name: &str) -> Vec<String> {
    let own = folder.join(name);
    let slaves = fs::read_dir(own.join("slaves")).into_iter().flatten().flatten();
    let disk = || own.canonicalize().ok()?.parent()?.file_name()?.to_str().map(str::to_owned);
    let backing = fs::read_to_string(own.join("loop/backing_file")).unwrap_or_default();
    let shown = backing.trim_end().strip_prefix("/dev/").map(|path| path.replace('/', "!"));
    let disk = own.join("partition").exists().then(disk).flatten();
    slaves.filter_map(|entry| entry.file_name().into_string().ok()).chain(disk).chain(shown).collect()
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

    /// As the kernel has it of logical volumes on an array and on its partition, of a loop device over one,
    /// and of others.
    #[test]
    fn what_lies_on_an_array_is_not_searched() {
        let sys = tempfile::tempdir().unwrap();
        let folder = sys.path().join("class/block");
        let devices = sys.path().join("devices");
        let put = |place: &str, below: &[&str]| {
            let own = devices.join(place);
            fs::create_dir_all(own.join("slaves")).unwrap();
            for below in below {
                fs::write(own.join("slaves").join(below), "").unwrap();
            }
            fs::create_dir_all(&folder).unwrap();
            let name = own.file_name().unwrap();
            std::os::unix::fs::symlink(&own, folder.join(name)).unwrap();
            if place.contains('/') {
                fs::write(own.join("partition"), "1").unwrap();
            }
        };
        put("ublkb0", &[]);
        put("ublkb0/ublkb0p1", &[]);
        put("sda", &[]);
        put("sda/sda1", &[]);
        put("dm-0", &["ublkb0"]);
        put("dm-1", &["sda1", "ublkb0p1"]);
        put("dm-2", &["dm-1"]);
        put("dm-3", &["sda1"]);
        put("md0", &["dm-2"]);
        put("md0/md0p1", &[]);
        put("loop0", &[]);
        put("loop1", &[]);
        for (name, shown) in [("loop0", "/dev/dm-0\n"), ("loop1", "/srv/dm-0\n")] {
            fs::create_dir(folder.join(name).join("loop")).unwrap();
            fs::write(folder.join(name).join("loop/backing_file"), shown).unwrap();
        }
        let names = ["sda", "sda1", "dm-0", "dm-1", "dm-2", "dm-3", "md0", "md0p1", "loop0", "loop1"];
        let searched: Vec<&str> = names.into_iter().filter(|name| !is_left_out(&folder, name, 0)).collect();
        assert_eq!(searched, ["sda", "sda1", "dm-3", "loop1"]);
    }

    #[test]
    fn a_file_has_nothing_on_top_that_the_kernel_knows() {
        assert_eq!(holders(Path::new("/proc/self/exe")), Vec::<String>::new());
        assert_eq!(holders(Path::new("/nowhere")), Vec::<String>::new());
    }
}
