//! What lies under a name. The same bytes can be reached as a file, as a loop device over it, as a partition
//! or as the whole disk, through device mapper, and as a namespace's generic device (C30). What is one and
//! what isn't is told by device numbers, inodes and what the kernel says of its devices in `/sys`, never by
//! paths.
//!
//! The kernel keeps a partition apart from its disk, and what a mapping uses from everything else, if all
//! claim what they open. A loop device claims nothing. So opening a loop device locks the file below, and
//! opening a file claims the loop devices over it ([`claim`]).
//!
//! The kernel lets one claim a device at a time. Where two of ours have a right to it, because each uses
//! another part of it, or of what is under it, or because both only read that, the second one joins the first
//! ([`Mark`]).

use std::{
    collections::BTreeSet,
    fs, io,
    ops::Range,
    os::{fd::OwnedFd, unix::fs::FileTypeExt, unix::fs::MetadataExt},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{FileType, Mode, OFlags, Stat},
    io::Errno,
};

use super::{
    device_dax::DeviceDax,
    inheritance,
    open::{Holder, OpenError, OpenOptions, busy_or, failed, holder_above, is_locked, lock, path_of},
    passthrough::block_device,
};

/// Devices on top of each other that are followed; more are a mistake.
const EXTENTS_MAX: usize = 64;
/// Where `/sys` has all block devices by their numbers.
const DEVICES: &str = "/sys/dev/block";
/// Bytes of the sectors in which `/sys` counts.
const SECTOR: u64 = 512;

/// A block device by its number, which stands for the generic device of its namespace too, a file, or a
/// device DAX by its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Object {
    Device(u64),
    File { device: u64, inode: u64 },
    Dax(u64),
}

impl Object {
    fn of(metadata: &fs::Metadata) -> Option<Self> {
        if metadata.file_type().is_block_device() {
            return Some(Self::Device(metadata.rdev()));
        }
        if metadata.file_type().is_char_device() {
            let number = metadata.rdev();
            let block = block_device(number).map(|(number, _)| Self::Device(number));
            return block.or_else(|| DeviceDax::numbered(number).map(|_| Self::Dax(number)));
        }
        metadata.is_file().then(|| Self::File { device: metadata.dev(), inode: metadata.ino() })
    }

    fn of_stat(stat: &Stat) -> Self {
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => Self::Device(stat.st_rdev),
            _ => Self::File { device: stat.st_dev, inode: stat.st_ino },
        }
    }

    /// The block device that it is, or lies on.
    fn block_device(self) -> Option<u64> {
        match self {
            Self::Device(number) | Self::File { device: number, .. } => Some(number),
            Self::Dax(_) => None,
        }
    }
}

/// A part of an object, which is a part of what is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Extent {
    object: Object,
    /// In bytes; it ends nowhere if that isn't known.
    range: Range<u64>,
    /// By way of a mapping, which alone knows which parts. The kernel keeps mappings apart from each other.
    mapped: bool,
    /// Where a loop device has it from: it is for us to lock.
    looped: Option<PathBuf>,
    /// What no other disk says of itself, however many devices it is.
    wwid: Option<String>,
}

impl Extent {
    fn whole(object: Object) -> Self {
        let wwid = match object {
            Object::Device(number) => wwid(&sysfs(number)),
            Object::File { .. } | Object::Dax(_) => None,
        };
        Self { object, range: 0..u64::MAX, mapped: false, looped: None, wwid }
    }

    /// Whether one could overwrite the other's bytes without the kernel's noticing.
    fn meets(&self, other: &Self) -> bool {
        self.object == other.object && self.crosses(other) && !(self.mapped && other.mapped)
    }

    /// The same of a disk on two ways through a storage network, which is two devices to the kernel.
    fn meets_elsewhere(&self, other: &Self) -> bool {
        self.wwid.is_some()
            && self.wwid == other.wwid
            && self.crosses(other)
            && !(self.mapped && other.mapped)
    }

    fn crosses(&self, other: &Self) -> bool {
        self.range.start < other.range.end && other.range.start < self.range.end
    }
}

/// Cuts from `range` of a device what its `range` is on the one below, where it begins at `start` and has
/// `size` bytes.
fn shifted(range: &Range<u64>, start: u64, size: u64) -> Range<u64> {
    start.saturating_add(range.start.min(size))..start.saturating_add(range.end.min(size))
}

/// What a device or file consists of, itself first.
fn extents(top: Object) -> Vec<Extent> {
    let mut all = vec![Extent::whole(top)];
    let mut next = 0;
    while next < all.len() && all.len() < EXTENTS_MAX {
        let below = below(&all[next]);
        all.extend(below);
        next += 1;
    }
    all
}

fn below(extent: &Extent) -> Vec<Extent> {
    let Object::Device(number) = extent.object else { return Vec::new() };
    let folder = sysfs(number);
    if folder.join("partition").exists() {
        let Some(disk) = device_number(&folder.join("..")) else { return Vec::new() };
        let bytes = |name: &str| number_in(&folder.join(name)).unwrap_or(0).saturating_mul(SECTOR);
        let range = shifted(&extent.range, bytes("start"), bytes("size"));
        return vec![Extent { range, mapped: extent.mapped, ..Extent::whole(Object::Device(disk)) }];
    }
    if let Some(backing) = Backing::of(&folder) {
        let Some(object) = backing.object() else { return Vec::new() };
        let range = shifted(&extent.range, backing.offset, backing.size);
        let looped = Some(backing.path);
        return vec![Extent { range, mapped: extent.mapped, looped, ..Extent::whole(object) }];
    }
    let slaves = fs::read_dir(folder.join("slaves")).into_iter().flatten().flatten();
    let slaves = slaves.filter_map(|entry| device_number(&entry.path()));
    slaves.map(|number| Extent { mapped: true, ..Extent::whole(Object::Device(number)) }).collect()
}

/// What is below a loop device.
struct Backing {
    path: PathBuf,
    offset: u64,
    size: u64,
}

impl Backing {
    /// Of the device with this folder in `/sys`, if it is a loop device that has one.
    fn of(folder: &Path) -> Option<Self> {
        let folder = folder.join("loop");
        let path = fs::read_to_string(folder.join("backing_file")).ok()?;
        let number = |name: &str| number_in(&folder.join(name)).unwrap_or(0);
        let limit = number("sizelimit");
        Some(Self {
            path: PathBuf::from(path.strip_suffix('\n').unwrap_or(&path)),
            offset: number("offset"),
            size: if limit == 0 { u64::MAX } else { limit },
        })
    }

    /// `None` if it has no name any more: then it can't be opened in another way either.
    fn object(&self) -> Option<Object> {
        Object::of(&fs::metadata(&self.path).ok()?)
    }
}

/// The loop devices that have something below, by number and path.
fn loops() -> Vec<(u64, PathBuf)> {
    let entries = fs::read_dir("/sys/block").into_iter().flatten().flatten();
    let loops = entries.filter(|entry| entry.path().join("loop/backing_file").exists());
    loops
        .filter_map(|entry| Some((device_number(&entry.path())?, Path::new("/dev").join(entry.file_name()))))
        .collect()
}

/// Locks what is below the open device or file at `path`, and claims the loop devices over any of it, for as
/// long as the answer lives.
pub(super) fn claim(path: &Path, stat: &Stat, options: &OpenOptions) -> Result<Vec<OwnedFd>, OpenError> {
    let all = extents(Object::of_stat(stat));
    let mut claims = Vec::new();
    for extent in &all {
        if let Some(under) = &extent.looped {
            claims.extend(claim_below(path, under, extent, options)?);
        }
    }
    for (number, device) in loops() {
        let object = Object::Device(number);
        if all.iter().any(|extent| extent.object == object) {
            if is_used_below(&device) {
                return Err(OpenError::Busy { path: path.to_owned(), holder: Holder::Unknown });
            }
            continue;
        }
        let theirs = extents(object);
        let meets = |theirs: &Extent| all.iter().any(|ours| ours.meets(theirs));
        if theirs.iter().skip(1).any(meets) {
            let busy = || {
                let holder = Holder::Device(device.display().to_string());
                OpenError::Busy { path: path.to_owned(), holder }
            };
            let stat = rustix::fs::stat(&device).map_err(|error| match error {
                // A container sees the host's devices in `/sys`, and can't claim them.
                Errno::NOENT => busy(),
                error => failed(&device, error),
            })?;
            claims.push(claim_device(&device, &stat, Mark::Over).map_err(|error| match error {
                // This user may not see what has it.
                Errno::ACCESS | Errno::PERM => busy(),
                error => busy_or(path, &stat, None, error),
            })?);
        }
    }
    Ok(claims)
}

/// What a loop device has below: a file is locked like one that is opened by its name, a device is claimed
/// like one. `None` where a mapping shares it with others.
fn claim_below(
    path: &Path,
    under: &Path,
    extent: &Extent,
    options: &OpenOptions,
) -> Result<Option<OwnedFd>, OpenError> {
    let cannot = |error: Errno| OpenError::Under {
        path: path.to_owned(),
        under: under.to_owned(),
        source: error.into(),
    };
    let stat = rustix::fs::stat(under).map_err(cannot)?;
    let shared = options.read_only || extent.mapped;
    if Object::of_stat(&stat) != extent.object {
        return Err(cannot(Errno::AGAIN));
    }
    let busy = |error: Errno, fd: Option<&OwnedFd>| match error {
        Errno::BUSY => busy_or(path, &stat, fd, error),
        other => cannot(other),
    };
    if matches!(extent.object, Object::Device(_)) {
        if extent.mapped {
            return Ok(None);
        }
        // Parts of it that have bytes in common are kept apart by the claims on the loop devices.
        return claim_device(under, &stat, Mark::Below).map(Some).map_err(|error| busy(error, None));
    }
    let access = if shared { OFlags::RDONLY } else { OFlags::RDWR };
    let fd = hold_below(under, &stat, access).map_err(cannot)?;
    lock(&fd, shared, &extent.range).map_err(|error| busy(error, Some(&fd)))?;
    Ok(Some(fd))
}

/// Why a device is claimed that isn't used itself. A lock far behind its end says so to others of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    /// A part of it is used, by way of a loop device over that part.
    Below,
    /// It is a loop device, and what is under it is used: it must not be itself.
    Over,
}

impl Mark {
    fn bytes(self) -> Range<u64> {
        let at = (1 << 62) + u64::from(self == Self::Over);
        at..at + 1
    }
}

/// Claims a device, so that the kernel keeps everything else out. Where others of ours have claimed it for
/// the same reason, one more joins them without a claim of the kernel: the locks and claims on what each of
/// them uses keep ours apart. The kernel keeps other programs out as long as the first of them runs, and no
/// longer.
fn claim_device(path: &Path, stat: &Stat, mark: Mark) -> Result<OwnedFd, Errno> {
    let (fd, joins) = match hold_below(path, stat, OFlags::RDONLY | OFlags::EXCL) {
        Err(Errno::BUSY) => (open_below(path, stat, OFlags::RDONLY)?, true),
        claimed => (claimed?, false),
    };
    // A claim that is refused never marks: its mark would let in another one that is to be refused.
    if joins && !is_locked(&fd, &mark.bytes())? {
        return Err(Errno::BUSY);
    }
    lock(&fd, true, &mark.bytes())?;
    // Behind the mark: what comes to be over the device from now on sees that.
    if joins && !is_free_of_others(stat.st_rdev) {
        return Err(Errno::BUSY);
    }
    Ok(fd)
}

/// Whether neither the kernel nor a partition has a part in a device: a process that has a partition isn't
/// seen here.
fn is_free_of_others(device: u64) -> bool {
    let entries = fs::read_dir(sysfs(device)).into_iter().flatten().flatten();
    let has_partitions = entries.into_iter().any(|entry| entry.path().join("partition").exists());
    !has_partitions && holder_above(device).is_none()
}

/// Whether what is under a loop device is used by others of ours, as far as this process may see.
fn is_used_below(device: &Path) -> bool {
    let Ok(stat) = rustix::fs::stat(device) else { return false };
    let found = open_below(device, &stat, OFlags::RDONLY).and_then(|fd| is_locked(&fd, &Mark::Over.bytes()));
    found.unwrap_or(false)
}

/// Opens what `stat` was of, to hold it.
fn hold_below(path: &Path, stat: &Stat, flags: OFlags) -> Result<OwnedFd, Errno> {
    inheritance::take(stat, flags).map_or_else(|| open_below(path, stat, flags), Ok)
}

/// Opens what `stat` was of.
fn open_below(path: &Path, stat: &Stat, flags: OFlags) -> Result<OwnedFd, Errno> {
    let fd = rustix::fs::open(path, flags | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
    let same = Object::of_stat(&rustix::fs::fstat(&fd)?) == Object::of_stat(stat);
    if same { Ok(fd) } else { Err(Errno::AGAIN) }
}

/// What is under a path, to be compared with others.
#[derive(Clone, Debug)]
pub struct Storage {
    extents: Vec<Extent>,
    lasting_name: Option<String>,
    disks: Option<String>,
}

impl Storage {
    /// Looks at a file or block device without opening it. May block.
    pub fn of(name: &Path) -> io::Result<Self> {
        let (path, _) = path_of(name);
        let Some(object) = Object::of(&fs::metadata(path)?) else {
            return Err(io::Error::other("it is neither a file nor a block device nor an NVMe namespace"));
        };
        let disks = disks_of(object);
        Ok(Self { extents: extents(object), lasting_name: lasting_name(object, path), disks })
    }

    /// Whether what is written to one can be read from the other.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.shares_with(other) || self.any(other, Extent::meets_elsewhere)
    }

    /// Whether the kernel knows that they have bytes in common.
    pub fn shares_with(&self, other: &Self) -> bool {
        self.any(other, Extent::meets)
    }

    fn any(&self, other: &Self, meet: fn(&Extent, &Extent) -> bool) -> bool {
        self.extents.iter().any(|one| other.extents.iter().any(|other| meet(one, other)))
    }

    /// By what it can be recognized when it has other numbers and another path: a disk's WWID or serial
    /// number, a partition's PARTUUID, a mapping's identifier, a file's inode and what its file system is on.
    /// `None` if it has nothing of the kind.
    pub fn lasting_name(&self) -> Option<&str> {
        self.lasting_name.as_deref()
    }

    /// The same with all disks that it is on, as these say what they are. A PARTUUID, a mapping's identifier
    /// and what a file system calls itself stand on the disk: a copy of the disk has them too. `None` if a
    /// disk says nothing of itself, or isn't known.
    pub fn proof(&self) -> Option<String> {
        Some(format!("{} on {}", self.lasting_name()?, self.disks.as_deref()?))
    }

    /// The disks that it stays on. `None` also of what a mapping may move to others while it is used.
    pub fn fixed_disks(&self) -> Option<&str> {
        self.disks.as_deref().filter(|_| !self.extents.iter().any(|extent| extent.mapped))
    }
}

/// A block device as the kernel knows it now. One that has gone and comes back is another one, even if it has
/// the same number then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Generation {
    number: u64,
    /// Counts all disks that the kernel was ever given. A partition has its disk's.
    sequence: u64,
}

impl Generation {
    /// Of the device at `path`. `None` if there is none, or the kernel is older than 5.15. May block.
    pub fn at(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        metadata.file_type().is_block_device().then(|| Self::of(metadata.rdev())).flatten()
    }

    /// Of the device with this number.
    pub(super) fn of(number: u64) -> Option<Self> {
        Some(Self { number, sequence: sequence_in(&sysfs(number))? })
    }

    /// Whether the kernel has it no more, however many still have it open. A look that fails, for want of
    /// descriptors or memory, would fail for all disks at once: it says nothing. May block.
    pub fn is_gone(&self) -> bool {
        self.is_gone_from(Path::new(DEVICES))
    }

    fn is_gone_from(&self, devices: &Path) -> bool {
        let folder = link_in(devices, self.number);
        let is_missing = || {
            let found = fs::symlink_metadata(&folder);
            found.is_err_and(|error| error.kind() == io::ErrorKind::NotFound) && devices.exists()
        };
        sequence_in(&folder).map_or_else(is_missing, |sequence| sequence != self.sequence)
    }

    /// Whether this one, which is there, can be the other one, which was gone: a later disk, or the same one,
    /// as a partition is when the kernel reads its disk's table again.
    pub fn can_follow(&self, other: &Self) -> bool {
        self.sequence >= other.sequence
    }
}

/// What a device's folder in `/sys` says of its generation.
fn sequence_in(folder: &Path) -> Option<u64> {
    let is_partition = folder.join("partition").exists();
    number_in(&if is_partition { folder.join("../diskseq") } else { folder.join("diskseq") })
}

fn lasting_name(object: Object, path: &Path) -> Option<String> {
    match object {
        Object::Device(number) => name_of_device(&sysfs(number), number),
        Object::File { device, inode } => {
            Some(format!("file:{}:{inode}", name_of_file_system(device, path)?))
        }
        Object::Dax(_) => None,
    }
}

fn name_of_device(folder: &Path, number: u64) -> Option<String> {
    if folder.join("partition").exists() {
        return partition_uuid(folder, number).map(|uuid| format!("partuuid:{uuid}"));
    }
    if let Some(backing) = Backing::of(folder) {
        let below = lasting_name(backing.object()?, &backing.path)?;
        let whole = backing.offset == 0 && backing.size == u64::MAX;
        return Some(if whole { below } else { format!("{below}@{}+{}", backing.offset, backing.size) });
    }
    let by_vendor = || Some(format!("wwid:{}", wwid(folder)?));
    let known = [
        ("dm:", "dm/uuid"),
        ("md:", "md/uuid"),
        // An SD card's serial number is a part of it, which others have too.
        ("cid:", "device/cid"),
        ("serial:", "serial"),
        ("serial:", "device/serial"),
    ];
    by_vendor()
        .or_else(|| known.iter().find_map(|(kind, name)| Some(format!("{kind}{}", said(folder, name)?))))
        .or_else(|| Some(format!("serial:{}", scsi_serial(&fs::read(folder.join("device/vpd_pg80")).ok()?)?)))
}

/// The names of the disks that all of it is on.
fn disks_of(object: Object) -> Option<String> {
    let mut all = BTreeSet::new();
    add_disks(&sysfs(object.block_device()?), EXTENTS_MAX, &mut all)?;
    Some(Vec::from_iter(all).join(" "))
}

/// Those of the device with this folder in `/sys`, at most so many layers below it.
fn add_disks(folder: &Path, layers: usize, all: &mut BTreeSet<String>) -> Option<()> {
    let layers = layers.checked_sub(1)?;
    if folder.join("partition").exists() {
        return add_disks(&folder.join(".."), layers, all);
    }
    if let Some(backing) = Backing::of(folder) {
        let number = backing.object()?.block_device()?;
        return add_disks(&sysfs(number), layers, all);
    }
    let below: Vec<_> = fs::read_dir(folder.join("slaves")).into_iter().flatten().flatten().collect();
    if below.is_empty() {
        let is_made = folder.join("dm").exists() || folder.join("md").exists();
        all.insert(name_of_device(folder, 0).filter(|_| !is_made)?);
    }
    below.iter().try_for_each(|entry| add_disks(&entry.path(), layers, all))
}

/// The serial number of a SCSI disk, of its vital product data page 80h: 4 bytes, and then the number.
fn scsi_serial(page: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(page.get(4..)?);
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    (!text.is_empty()).then(|| text.to_owned())
}

/// What a disk's vendor promises that no other one says.
fn wwid(folder: &Path) -> Option<String> {
    said(folder, "wwid").or_else(|| said(folder, "device/wwid"))
}

/// What a device says of itself in a file of its folder in `/sys`.
fn said(folder: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(folder.join(name)).ok()?;
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned();
    (!text.is_empty()).then_some(text)
}

/// A partition's identifier: the kernel says it, or udev, or udev's links do.
fn partition_uuid(folder: &Path, number: u64) -> Option<String> {
    let said = |path: &Path, key: &str| {
        let text = fs::read_to_string(path).ok()?;
        text.lines().find_map(|line| Some(line.strip_prefix(key)?.to_lowercase()))
    };
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    said(&folder.join("uevent"), "PARTUUID=")
        .or_else(|| {
            let database = format!("/run/udev/data/b{major}:{minor}");
            said(Path::new(&database), "E:ID_PART_ENTRY_UUID=")
        })
        .or_else(|| link_to("by-partuuid", number))
}

/// How a folder of `/dev/disk` calls a device.
fn link_to(folder: &str, number: u64) -> Option<String> {
    let links = fs::read_dir(Path::new("/dev/disk").join(folder)).into_iter().flatten().flatten();
    let mut ours = links.filter(|link| fs::metadata(link.path()).is_ok_and(|found| found.rdev() == number));
    Some(ours.next()?.file_name().to_string_lossy().to_lowercase())
}

/// What the file system of a file is on, if that is one device that has a name; else what the file system
/// calls itself, or udev calls it.
fn name_of_file_system(device: u64, file: &Path) -> Option<String> {
    let folder = sysfs(device);
    let on_device = folder.exists();
    let of_device = if on_device { name_of_device(&folder, device) } else { None };
    let of_itself = || {
        let (kind, identifier) =
            (rustix::fs::statfs(file).ok()?.f_type, rustix::fs::statvfs(file).ok()?.f_fsid);
        lasts(on_device, kind, identifier).then(|| format!("fsid:{identifier:x}"))
    };
    let by_udev = || Some(format!("fsuuid:{}", link_to("by-uuid", device)?));
    of_device.or_else(of_itself).or_else(by_udev)
}

/// Whether a file system of this kind still calls itself that when its disk has another number. Most that lie
/// on one device, XFS too, make their identifier of that number; ext makes it of its UUID.
fn lasts(on_device: bool, kind: rustix::fs::FsWord, identifier: u64) -> bool {
    const EXT: rustix::fs::FsWord = 0xef53;
    // NFS and FUSE have none.
    identifier != 0 && (!on_device || kind == EXT)
}

/// The number that a file of `/sys` holds.
pub(super) fn number_in(path: &Path) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The number of the device with this folder in `/sys`.
pub(super) fn device_number(folder: &Path) -> Option<u64> {
    let text = fs::read_to_string(folder.join("dev")).ok()?;
    let (major, minor) = text.trim().split_once(':')?;
    Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
}

/// A block device's folder in `/sys`.
pub(super) fn sysfs(device: u64) -> PathBuf {
    // The link is resolved, so that `..` is the disk of a partition.
    let link = link_in(Path::new(DEVICES), device);
    fs::canonicalize(&link).unwrap_or(link)
}

/// The link to it in the folder of all devices.
fn link_in(devices: &Path, device: u64) -> PathBuf {
    devices.join(format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_parts_lie_where_the_outer_part_begins() {
        assert_eq!(shifted(&(0..u64::MAX), 100, 50), 100..150);
        assert_eq!(shifted(&(10..20), 100, 50), 110..120);
        assert_eq!(shifted(&(10..u64::MAX), 100, u64::MAX), 110..u64::MAX);
        assert_eq!(shifted(&(60..70), 100, 50), 150..150, "behind the end there is nothing");
    }

    #[test]
    fn a_disk_that_can_not_be_looked_at_is_not_gone() {
        let sys = tempfile::tempdir().unwrap();
        let devices = sys.path().join("dev");
        let disk = Generation { number: rustix::fs::makedev(8, 1), sequence: 7 };
        assert!(!disk.is_gone_from(&devices), "nothing is mounted there");
        fs::create_dir(&devices).unwrap();
        assert!(disk.is_gone_from(&devices), "there is no such device");
        let folder = devices.join("8:1");
        fs::create_dir(&folder).unwrap();
        assert!(!disk.is_gone_from(&devices), "a file of it isn't there");
        // It can be opened, and not be read: as with too few descriptors.
        fs::create_dir(folder.join("diskseq")).unwrap();
        assert!(!disk.is_gone_from(&devices));
        fs::remove_dir(folder.join("diskseq")).unwrap();
        for (sequence, is_gone) in [("7\n", false), ("8\n", true)] {
            fs::write(folder.join("diskseq"), sequence).unwrap();
            assert_eq!(disk.is_gone_from(&devices), is_gone);
        }
        fs::rename(folder.join("diskseq"), devices.join("diskseq")).unwrap();
        fs::write(folder.join("partition"), "1\n").unwrap();
        assert!(disk.is_gone_from(&devices), "a partition has its disk's");
        assert!(disk.can_follow(&disk), "the same one is there again");
        assert!(!disk.can_follow(&Generation { sequence: 8, ..disk }));
    }

    #[test]
    fn a_copy_has_the_partitions_name_and_not_the_disks() {
        let sys = tempfile::tempdir().unwrap();
        let disk = |name: &str, wwid: Option<&str>| {
            let disk = sys.path().join(name);
            fs::create_dir_all(disk.join("part")).unwrap();
            fs::write(disk.join("part/partition"), "1\n").unwrap();
            fs::write(disk.join("part/uevent"), "PARTN=1\nPARTUUID=6d41\n").unwrap();
            let _ = wwid.map(|wwid| fs::write(disk.join("wwid"), wwid).unwrap());
            disk.join("part")
        };
        let parts = [disk("a", Some("naa.1")), disk("b", Some("naa.2")), disk("c", None)];
        let storage = |folder: &PathBuf| {
            let mut all = BTreeSet::new();
            let disks = add_disks(folder, EXTENTS_MAX, &mut all).map(|()| Vec::from_iter(all).join(" "));
            Storage { extents: Vec::new(), lasting_name: name_of_device(folder, 0), disks }
        };
        let [one, copy, nameless] = parts.each_ref().map(storage);
        assert_eq!(one.lasting_name(), copy.lasting_name());
        assert_eq!(one.proof().as_deref(), Some("partuuid:6d41 on wwid:naa.1"));
        assert_eq!(copy.proof().as_deref(), Some("partuuid:6d41 on wwid:naa.2"));
        assert_eq!((nameless.lasting_name(), nameless.proof()), (one.lasting_name(), None));
        // A mapping over two of them.
        let mapping = sys.path().join("dm-0");
        fs::create_dir_all(mapping.join("dm")).unwrap();
        fs::write(mapping.join("dm/uuid"), "LVM-1\n").unwrap();
        fs::create_dir(mapping.join("slaves")).unwrap();
        assert_eq!((storage(&mapping).lasting_name(), storage(&mapping).proof()), (Some("dm:LVM-1"), None));
        for part in &parts[..2] {
            let link = mapping.join("slaves").join(part.parent().unwrap().file_name().unwrap());
            std::os::unix::fs::symlink(part, link).unwrap();
        }
        assert_eq!(storage(&mapping).proof().as_deref(), Some("dm:LVM-1 on wwid:naa.1 wwid:naa.2"));
    }

    #[test]
    fn a_scsi_disk_has_the_serial_number_of_its_page() {
        assert_eq!(scsi_serial(b"\0\x80\0\x06 disk1").as_deref(), Some("disk1"));
        assert_eq!(scsi_serial(b"\0\x80\0\x04    "), None);
        assert_eq!(scsi_serial(b"\0\x80"), None);
    }

    #[test]
    fn what_a_file_system_makes_of_its_disks_number_is_no_lasting_name() {
        let (ext, xfs, btrfs, nfs) = (0xef53, 0x5846_5342, 0x9123_683e_u32.into(), 0x6969);
        assert!(lasts(true, ext, 0x1234));
        assert!(!lasts(true, xfs, 0x0801));
        assert!(lasts(false, btrfs, 0x1234), "it may be on several devices");
        assert!(!lasts(false, nfs, 0));
    }

    #[test]
    fn parts_of_a_disk_on_two_ways_meet_if_they_have_bytes_in_common() {
        let part = |number, range, wwid: Option<&str>| Storage {
            extents: vec![Extent {
                range,
                wwid: wwid.map(str::to_owned),
                ..Extent::whole(Object::Device(number))
            }],
            lasting_name: None,
            disks: None,
        };
        let (one, other) = (part(7, 0..10, Some("naa.5")), part(8, 9..20, Some("naa.5")));
        assert!(one.overlaps(&other) && !one.shares_with(&other));
        assert!(!one.overlaps(&part(8, 10..20, Some("naa.5"))));
        assert!(!one.overlaps(&part(8, 0..10, Some("naa.6"))));
        assert!(!part(7, 0..10, None).overlaps(&part(8, 0..10, None)));
    }

    #[test]
    fn two_parts_of_a_disk_do_not_meet_and_two_mappings_are_the_kernels_business() {
        let part = |range, mapped| Extent { range, mapped, ..Extent::whole(Object::Device(7)) };
        assert!(part(0..10, false).meets(&part(9..20, false)));
        assert!(!part(0..10, false).meets(&part(10..20, false)));
        assert!(part(0..10, false).meets(&part(0..10, true)));
        assert!(!part(0..10, true).meets(&part(0..10, true)));
        assert!(!Extent::whole(Object::Device(7)).meets(&Extent::whole(Object::Device(8))));
    }
}
