//! Opening a member: files and block devices, locked on the descriptor that carries the I/O (C21).
//!
//! A block device is claimed with `O_EXCL`, which keeps md, device mapper, mounts and other servers out; a
//! file gets a lock of its open file description. What is below a loop device or above a file is locked too,
//! see [`super::storage`]. All of it ends when the last shard's handle has gone, however the process ends.

use std::{
    ffi::OsString,
    fmt, fs, io,
    ops::Range,
    os::fd::{AsFd, AsRawFd, OwnedFd},
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
};

use rustix::{
    fs::{AtFlags, FallocateFlags, FileType, Mode, OFlags, Stat, StatxFlags},
    io::Errno,
};

use crate::{
    Device, DeviceError, DeviceErrorKind, DeviceInfo, DeviceSource, Memory, MemoryDevice, ZeroedReads,
    buffer::ALIGNMENT,
    uring::{
        device::FileDevice,
        device_dax::{self, DeviceDax},
        driver::Driver,
        inheritance,
        operation::File,
        passthrough::{self, Page},
        side::{self, Carrier},
        storage::{self, Generation, Storage, sysfs},
    },
};

/// How to open a member.
#[derive(Clone, Debug)]
pub struct OpenOptions {
    /// Every write fails, and the lock is shared with other readers of a file.
    pub read_only: bool,
    /// Keeps others out. Without, a member of a running array can be looked at.
    pub exclusive: bool,
    /// The logical block in bytes, instead of the device's own: a multiple of that and a power of two up to
    /// 4096.
    pub logical_block: Option<u32>,
    /// The smallest size that makes sense, in bytes.
    pub size_min: u64,
    /// Reads and writes are polled. What can't be polled is refused.
    pub poll: bool,
}

impl Default for OpenOptions {
    /// For reading and writing, alone.
    fn default() -> Self {
        Self { read_only: false, exclusive: true, logical_block: None, size_min: 0, poll: false }
    }
}

/// What keeps us out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A running md array, by its path.
    Array(String),
    /// Another device on top, such as one of device mapper, by its path.
    Device(String),
    /// A file system, by its mount point.
    Mount(String),
    /// Processes that have it open, by name and number.
    Process(String, u32),
    /// A process that has been ended, and that the kernel keeps for as long as it can't give up what a thread
    /// of it waits for, such as a disk that hangs.
    Dying(String, u32),
    /// This process itself.
    Ourselves,
    /// Could not be found out.
    Unknown,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Array(path) => write!(f, "is a member of the running array {path}"),
            Holder::Device(path) => write!(f, "is in use by the device {path}"),
            Holder::Mount(path) => write!(f, "is mounted at {path}"),
            Holder::Process(name, id) => write!(f, "is held by another process: {name} ({id})"),
            Holder::Dying(name, id) => {
                write!(
                    f,
                    "is held by a process that was ended and waits for a device that does not answer: {name} ({id})"
                )
            }
            Holder::Ourselves => write!(f, "is held by this process already"),
            Holder::Unknown => write!(f, "is in use by another process or by the kernel"),
        }
    }
}

/// Why a member can't be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is nothing of this name.
    #[error("{} does not exist", path.display())]
    NotFound {
        /// The path.
        path: PathBuf,
    },
    /// The user may not.
    #[error("no permission to open {}: run this as root, or as a user with that permission", path.display())]
    Permission {
        /// The path.
        path: PathBuf,
    },
    /// It is in use.
    #[error("{} {holder}", path.display())]
    Busy {
        /// The path.
        path: PathBuf,
        /// What uses it.
        holder: Holder,
    },
    /// It can't be written, and was to be.
    #[error("{} is read-only: make it writable, such as by `blockdev --setrw`, or leave it out", path.display())]
    ReadOnly {
        /// The path.
        path: PathBuf,
    },
    /// What a loop device is over can't be kept from others.
    #[error("{} is over {}, which can't be locked: {source}", path.display(), under.display())]
    Under {
        /// The path.
        path: PathBuf,
        /// What is below.
        under: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Too little space.
    #[error("{} is too small: {size} bytes where at least {needed} are needed", path.display())]
    TooSmall {
        /// The path.
        path: PathBuf,
        /// Its bytes.
        size: u64,
        /// The bytes that would do.
        needed: u64,
    },
    /// A folder, a socket, a terminal.
    #[error("{} is neither a file nor a block device nor an NVMe namespace", path.display())]
    NotStorage {
        /// The path.
        path: PathBuf,
    },
    /// The asked-for logical block does not fit.
    #[error(
        "{} can't be used in blocks of {asked} bytes: a power of two from {own} to 4096 is needed", path.display()
    )]
    LogicalBlock {
        /// The path.
        path: PathBuf,
        /// The bytes asked for.
        asked: u32,
        /// The device's own.
        own: u32,
    },
    /// It doesn't lie in persistent memory.
    #[error(
        "{} can't be used as persistent memory: {source}. A file is needed that has all its space (fallocate), on a file system \
         that is mounted with -o dax; without pmem: it is used like any other file",
        path.display()
    )]
    NotPersistentMemory {
        /// The path.
        path: PathBuf,
        /// What went wrong.
        source: DeviceError,
    },
    /// A device DAX under its plain name.
    #[error("{} can only be mapped: name it pmem:{}", path.display(), path.display())]
    OnlyMapped {
        /// The path.
        path: PathBuf,
    },
    /// It was to be polled.
    #[error("{} can't be polled: {why}", path.display())]
    NotPolled {
        /// The path.
        path: PathBuf,
        /// What is missing, and what to do.
        why: String,
    },
    /// A generic device of NVMe that takes no commands from us.
    #[error("{} can't be used by passthrough: {why}; its block device may do", path.display())]
    Passthrough {
        /// The path.
        path: PathBuf,
        /// What is missing.
        why: String,
    },
    /// Any other error.
    #[error("can't open {}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
}

/// An open and locked file or block device, for all shards. It is closed when this and every shard's handle
/// have gone.
pub struct OpenFile {
    pub(super) file: Arc<File>,
    pub(super) info: DeviceInfo,
    pub(super) is_block: bool,
    /// Which device of the kernel's it is, of a block device.
    generation: Option<Generation>,
    pub(super) read_only: bool,
    /// What addresses of memory must be a multiple of.
    pub(super) memory_alignment: usize,
    pub(super) remark: Option<String>,
    /// Its bytes, if they are used where they lie.
    pub(super) memory: Option<Arc<Memory>>,
}

/// How the name of a file or device DAX begins that lies in persistent memory and is to be used as such.
const PERSISTENT: &str = "pmem:";

/// The path in a member's name, and whether the file is to be used as persistent memory (`pmem:PATH`).
pub fn path_of(name: &Path) -> (&Path, bool) {
    match name.to_str().and_then(|text| text.strip_prefix(PERSISTENT)) {
        Some(path) => (Path::new(path), true),
        None => (name, false),
    }
}

/// The name of a file that is to be used as persistent memory.
pub fn persistent_path(path: &Path) -> PathBuf {
    let mut name = OsString::from(PERSISTENT);
    name.push(path);
    name.into()
}

impl OpenFile {
    /// Opens and locks the file or device of a name (see [`path_of`]). This blocks: see [`super::blocking`].
    pub fn open(name: impl AsRef<Path>, options: &OpenOptions) -> Result<Arc<Self>, OpenError> {
        let (path, is_persistent) = path_of(name.as_ref());
        let stat = rustix::fs::stat(path).map_err(|error| failed(path, error))?;
        let is_character = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
        let opened = match DeviceDax::of(&stat) {
            Some(device) if is_persistent => device_dax::open(name.as_ref(), path, &stat, device, options),
            Some(_) => Err(OpenError::OnlyMapped { path: path.to_owned() }),
            None if is_character => passthrough::open(path, &stat, options),
            None => Self::open_plain(path, options),
        }?;
        // To be read, a file is one like any other.
        let used_in_place = is_persistent && !options.read_only && opened.memory.is_none();
        let opened = if used_in_place { opened.in_place(name.as_ref(), path)? } else { opened };
        if options.exclusive {
            inheritance::note(&opened.file, &opened.info.name);
        }
        Ok(Arc::new(opened))
    }

    /// The same, with its bytes used where they lie. They keep the file open, and locked.
    fn in_place(self, name: &Path, path: &Path) -> Result<Self, OpenError> {
        let size = usize::try_from(self.info.size).map_err(|_| DeviceError::of(DeviceErrorKind::Invalid));
        let memory = size.and_then(|size| Memory::persistent(Arc::clone(&self.file), size));
        let memory =
            memory.map_err(|source| OpenError::NotPersistentMemory { path: path.to_owned(), source })?;
        let info = memory.info(&name.display().to_string(), self.info.logical_block);
        Ok(Self { info, memory: Some(memory), ..self })
    }

    /// Opens and locks a file or block device.
    pub(super) fn open_plain(path: &Path, options: &OpenOptions) -> Result<Self, OpenError> {
        let failed = |e| failed(path, e);
        let kind = rustix::fs::stat(path).map_err(failed)?;
        let is_block = match FileType::from_raw_mode(kind.st_mode) {
            FileType::BlockDevice => true,
            FileType::RegularFile => false,
            _ => return Err(OpenError::NotStorage { path: path.to_owned() }),
        };
        let (fd, direct) = open(path, &kind, options).map_err(|e| busy_or(path, &kind, None, e))?;
        let stat = rustix::fs::fstat(&fd).map_err(failed)?;
        if (stat.st_dev, stat.st_ino, stat.st_rdev) != (kind.st_dev, kind.st_ino, kind.st_rdev) {
            // Another thing has been put in its place meanwhile.
            return Err(failed(Errno::AGAIN));
        }
        if is_block && !options.read_only && is_read_only(&fd).map_err(failed)? {
            return Err(OpenError::ReadOnly { path: path.to_owned() });
        }
        if !is_block && options.exclusive {
            let whole = 0..u64::MAX;
            lock(&fd, options.read_only, &whole).map_err(|e| busy_or(path, &stat, Some(&fd), e))?;
        }
        let claims = if options.exclusive { storage::claim(path, &stat, options)? } else { Vec::new() };
        let end = rustix::fs::seek(&fd, rustix::fs::SeekFrom::End(0)).map_err(failed)?;
        let alignment = Alignment::of(&fd, is_block, direct).map_err(failed)?;
        let logical_block = alignment.choose(path, options.logical_block)?;
        let carrier = if options.poll { polled(path, &fd, &stat, logical_block)? } else { Carrier::Main };
        let queue = is_block.then(|| Queue::of(&stat));
        let discards = match &queue {
            Some(queue) => queue.discards,
            None => !options.read_only && punches_holes(&fd, end),
        };
        let info = DeviceInfo {
            name: path.display().to_string(),
            size: end,
            logical_block,
            volatile_cache: queue.as_ref().is_none_or(|queue| queue.volatile_cache),
            forces_by_flush: queue.as_ref().is_none_or(|queue| queue.forces_by_flush),
            // The block layer writes zeroes itself where the device can't.
            zeroes: if is_block || discards { ZeroedReads::Zero } else { ZeroedReads::Unsupported },
            discards,
            in_memory: false,
            moves_head: queue.and_then(|queue| queue.rotational),
        };
        let file = File::carried(fd, claims, carrier, None);
        let generation = if is_block { Generation::of(stat.st_rdev) } else { None };
        let open = Self::new(path, file, info, options, alignment.memory)?;
        Ok(Self { is_block, generation, ..open })
    }

    /// Of what was opened; whole blocks of it, if they are enough.
    pub(super) fn new(
        path: &Path,
        file: Arc<File>,
        info: DeviceInfo,
        options: &OpenOptions,
        memory_alignment: usize,
    ) -> Result<Self, OpenError> {
        let block = u64::from(info.logical_block);
        let size = info.size / block * block;
        if size < options.size_min.max(1) {
            let needed = options.size_min.max(block);
            return Err(OpenError::TooSmall { path: path.to_owned(), size: info.size, needed });
        }
        let info = DeviceInfo { size, ..info };
        Ok(Self {
            file,
            info,
            is_block: true,
            generation: None,
            read_only: options.read_only,
            memory_alignment,
            remark: None,
            memory: None,
        })
    }

    /// What the user should know of how it is used, if it isn't used as its path says.
    pub fn remark(&self) -> Option<&str> {
        self.remark.as_deref()
    }

    /// What the device says of itself.
    pub fn info(&self) -> &DeviceInfo {
        &self.info
    }

    /// What it is, whatever its path is of by now (C30). May block.
    pub fn storage(&self) -> io::Result<Storage> {
        Storage::of(&self.own_path())
    }

    /// By which this process opens it once more while it is open, whatever its path is of by now.
    pub fn own_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}", self.file.fd.as_raw_fd()))
    }

    /// Which device of the kernel's it is: `None` of a file, or a generic device of NVMe.
    pub fn generation(&self) -> Option<Generation> {
        self.generation
    }

    /// This shard's handle. Its going detaches the shard.
    ///
    /// # Panics
    /// On a thread that [`super::run`] did not start.
    pub fn attach(self: &Arc<Self>) -> Rc<dyn Device> {
        match &self.memory {
            Some(memory) => MemoryDevice::described(Arc::clone(memory), self.info.clone()),
            None => FileDevice::new(self),
        }
    }

    /// To attach it shard by shard.
    pub fn source(self: &Arc<Self>) -> Arc<dyn DeviceSource> {
        Arc::new(Source(Arc::clone(self)))
    }
}

struct Source(Arc<OpenFile>);

impl DeviceSource for Source {
    fn attach(&self) -> Result<Rc<dyn Device>, DeviceError> {
        Driver::current().provide(self.0.file.carrier())?;
        Ok(self.0.attach())
    }

    fn name(&self) -> String {
        self.0.info.name.clone()
    }
}

/// Opens what `stat` is of with direct I/O; without, where a file system refuses it. Says which.
pub(super) fn open(path: &Path, stat: &Stat, options: &OpenOptions) -> Result<(OwnedFd, bool), Errno> {
    let is_block = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let mut flags = OFlags::CLOEXEC;
    flags |= if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    if options.exclusive {
        let ways = [(flags | OFlags::DIRECT, true), (flags, false)];
        let inherited = |(flags, direct)| Some((inheritance::take(stat, flags)?, direct));
        if let Some(inherited) = ways.into_iter().find_map(inherited) {
            return Ok(inherited);
        }
    }
    if is_block && options.exclusive {
        flags |= OFlags::EXCL;
    }
    match rustix::fs::open(path, flags | OFlags::DIRECT, Mode::empty()) {
        Err(Errno::INVAL) if !is_block => rustix::fs::open(path, flags, Mode::empty()).map(|fd| (fd, false)),
        other => other.map(|fd| (fd, true)),
    }
}

/// Whether the kernel refuses writes to a block device, although it lets it be opened for them: the first
/// write would fail.
pub(super) fn is_read_only(fd: &OwnedFd) -> Result<bool, Errno> {
    // SAFETY: the kernel writes one int.
    let flag = unsafe { rustix::ioctl::ioctl(fd, rustix::ioctl::Getter::<BLKROGET, libc::c_int>::new()) };
    flag.map(|flag| flag != 0)
}

/// `_IO(0x12, 94)` of linux/fs.h.
const BLKROGET: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0x12, 94);

/// Has the kernel write what it caches for a block device: its own pages, and what the file system that is
/// mounted on it holds (but for btrfs). Without CAP_SYS_ADMIN only the former. May block for as long as the
/// device takes.
///
/// # Errors
/// If there is no such device, or it can't write.
pub fn flush_block_device(path: &Path) -> io::Result<()> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(path, flags, Mode::empty())?;
    // SAFETY: it has no argument.
    let flushed = unsafe { rustix::ioctl::ioctl(&fd, rustix::ioctl::NoArg::<BLKFLSBUF>::new()) };
    Ok(match flushed {
        Err(Errno::ACCESS | Errno::PERM) => rustix::fs::fsync(&fd),
        flushed => flushed,
    }?)
}

/// `_IO(0x12, 97)` of linux/fs.h.
const BLKFLSBUF: rustix::ioctl::Opcode = rustix::ioctl::opcode::none(0x12, 97);

/// Locks a range of the file for this open file description; one without an end, however long the file grows.
pub(super) fn lock(fd: &OwnedFd, shared: bool, bytes: &Range<u64>) -> Result<(), Errno> {
    let mut range = range_lock(if shared { libc::F_RDLCK } else { libc::F_WRLCK }, bytes)?;
    match control(fd, libc::F_OFD_SETLK, &mut range) {
        Err(Errno::AGAIN | Errno::ACCESS) => Err(Errno::BUSY),
        locked => locked,
    }
}

/// Whether another open file description has a lock on any of these bytes.
pub(super) fn is_locked(fd: &OwnedFd, bytes: &Range<u64>) -> Result<bool, Errno> {
    let mut range = range_lock(libc::F_WRLCK, bytes)?;
    control(fd, libc::F_OFD_GETLK, &mut range)?;
    Ok(i32::from(range.l_type) != libc::F_UNLCK)
}

fn range_lock(kind: libc::c_int, bytes: &Range<u64>) -> Result<libc::flock, Errno> {
    // SAFETY: all of it is integers, for which zero is a value; some platforms have padding fields.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = i16::try_from(kind).map_err(|_| Errno::INVAL)?;
    range.l_whence = i16::try_from(libc::SEEK_SET).map_err(|_| Errno::INVAL)?;
    range.l_start = i64::try_from(bytes.start).map_err(|_| Errno::INVAL)?;
    // 0 is no end.
    range.l_len = i64::try_from(bytes.end.saturating_sub(bytes.start).max(1)).unwrap_or(0);
    Ok(range)
}

fn control(fd: &OwnedFd, command: libc::c_int, range: &mut libc::flock) -> Result<(), Errno> {
    // SAFETY: an open descriptor and a valid range, which the kernel may overwrite.
    if unsafe { libc::fcntl(fd.as_raw_fd(), command, &raw mut *range) } == 0 {
        return Ok(());
    }
    Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO))
}

pub(super) fn failed(path: &Path, error: Errno) -> OpenError {
    let path = path.to_owned();
    match error {
        Errno::NOENT | Errno::NOTDIR => OpenError::NotFound { path },
        Errno::ROFS => OpenError::ReadOnly { path },
        Errno::ACCESS | Errno::PERM => OpenError::Permission { path },
        _ => OpenError::Io { path, source: error.into() },
    }
}

/// `asking` is the descriptor, if there is one, that was to get the lock.
pub(super) fn busy_or(path: &Path, stat: &Stat, asking: Option<&OwnedFd>, error: Errno) -> OpenError {
    if error == Errno::BUSY {
        return OpenError::Busy { path: path.to_owned(), holder: holder(stat, asking) };
    }
    failed(path, error)
}

/// What direct I/O asks for, in bytes.
pub(super) struct Alignment {
    pub(super) block: u32,
    pub(super) memory: usize,
}

impl Alignment {
    fn of(fd: &OwnedFd, is_block: bool, direct: bool) -> Result<Self, Errno> {
        let mut block = 512;
        let mut memory = 1;
        if is_block {
            block = rustix::fs::ioctl_blksszget(fd)?;
        }
        if direct {
            memory = block;
            let statx = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
            // Zero says that the file system does not tell.
            if let Ok(x) = statx
                && x.stx_mask & StatxFlags::DIOALIGN.bits() != 0
                && x.stx_dio_offset_align > 0
            {
                block = block.max(x.stx_dio_offset_align);
                memory = x.stx_dio_mem_align;
            }
        }
        Ok(Self { block, memory: usize::try_from(memory).unwrap_or(ALIGNMENT).clamp(1, ALIGNMENT) })
    }

    pub(super) fn choose(&self, path: &Path, asked: Option<u32>) -> Result<u32, OpenError> {
        let block = asked.unwrap_or(self.block);
        if block.is_power_of_two() && block >= self.block && block as usize <= ALIGNMENT {
            return Ok(block);
        }
        Err(OpenError::LogicalBlock { path: path.to_owned(), asked: block, own: self.block })
    }
}

/// What carries the requests to a device that shall be polled. It must be able to, and so must the kernel:
/// its first block is read that way.
fn polled(path: &Path, fd: &OwnedFd, stat: &Stat, block: u32) -> Result<Carrier, OpenError> {
    let refused = |why| OpenError::NotPolled { path: path.to_owned(), why };
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice {
        return Err(refused("it is a file, and only devices can be: leave out --poll".into()));
    }
    if !passthrough::is_polled(&sysfs(stat.st_rdev)) {
        return Err(refused(passthrough::no_poll_queues()));
    }
    match side::attempt_polled_read(fd, &mut Page::new().0[..block as usize]) {
        // Other errors are the device's, and come again where they are dealt with.
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOMEM)) =>
        {
            Err(refused(format!("the kernel refuses a polled io_uring or a read by it: {error}")))
        }
        _ => Ok(Carrier::Polled),
    }
}

/// Whether the file system can free a range. Behind the end of the file there is nothing to lose.
fn punches_holes(fd: &OwnedFd, end: u64) -> bool {
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(fd.as_fd(), hole, end.next_multiple_of(ALIGNMENT as u64), ALIGNMENT as u64).is_ok()
}

/// Where the kernel has block devices that it makes itself, of other ones or of nothing.
const VIRTUAL: &str = "/sys/devices/virtual";

/// What the kernel tells of a block device's queue.
struct Queue {
    volatile_cache: bool,
    forces_by_flush: bool,
    discards: bool,
    rotational: Option<bool>,
}

impl Queue {
    fn of(stat: &Stat) -> Self {
        let device = sysfs(stat.st_rdev);
        // A partition has its disk's queue.
        Self::told(device.starts_with(VIRTUAL), |name| {
            fs::read_to_string(device.join("queue").join(name))
                .or_else(|_| fs::read_to_string(device.join("../queue").join(name)))
                .map(|text| text.trim().to_owned())
                .unwrap_or_default()
        })
    }

    /// By what attributes say; one that isn't there says nothing. The kernel makes forced writes of writes
    /// and flushes if the queue doesn't take them. That of a `virtual` device takes them where only some of
    /// what lies below does.
    fn told(is_virtual: bool, read: impl Fn(&str) -> String) -> Self {
        // If it does not tell, the worse is assumed.
        let volatile_cache = read("write_cache") != "write through";
        Self {
            volatile_cache,
            forces_by_flush: volatile_cache && (is_virtual || read("fua") != "1"),
            discards: read("discard_max_bytes").parse().is_ok_and(|bytes: u64| bytes > 0),
            rotational: read("rotational").parse().ok().map(|rotates: u8| rotates != 0),
        }
    }
}

/// Finds out what keeps us out, for the message only.
fn holder(stat: &Stat, asking: Option<&OwnedFd>) -> Holder {
    let is_block = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let above = if is_block { holder_above(stat.st_rdev) } else { None };
    above.or_else(|| holder_process(stat, is_block, asking)).unwrap_or(Holder::Unknown)
}

/// The array, device or mount on top of a block device or of one of its partitions.
pub(super) fn holder_above(device: u64) -> Option<Holder> {
    let folder = sysfs(device);
    let parts = fs::read_dir(&folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let parts = parts.filter(|path| path.join("partition").exists());
    for part in std::iter::once(folder.clone()).chain(parts) {
        if let Some(entry) = fs::read_dir(part.join("holders")).into_iter().flatten().flatten().next() {
            let name = entry.file_name().to_string_lossy().replace('!', "/");
            let path = format!("/dev/{name}");
            return Some(if name.starts_with("md") { Holder::Array(path) } else { Holder::Device(path) });
        }
        let number = fs::read_to_string(part.join("dev")).unwrap_or_default();
        if let Some(mount) = mount_of(number.trim()) {
            return Some(Holder::Mount(mount));
        }
    }
    None
}

/// Where the block device `major:minor` is mounted.
fn mount_of(number: &str) -> Option<String> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    // Fields: mount, parent, major:minor, root, mount point, ...
    let mut fields = mounts.lines().map(|line| line.split(' '));
    fields.find_map(|mut fields| (fields.nth(2)? == number).then(|| fields.nth(1).map(str::to_owned))?)
}

/// A process that has the file or device open, as far as this user may see.
fn holder_process(stat: &Stat, is_block: bool, asking: Option<&OwnedFd>) -> Option<Holder> {
    let identity = |other: &Stat| {
        if is_block { (0, other.st_rdev) } else { (other.st_dev, other.st_ino) }
    };
    let mut ourselves = None;
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Ok(id) = process.file_name().to_string_lossy().parse::<u32>() else { continue };
        let is_dying = is_dying(&process.path());
        for fd in descriptors(&process.path(), is_dying) {
            let same = rustix::fs::stat(&fd).is_ok_and(|other| {
                FileType::from_raw_mode(other.st_mode) == FileType::from_raw_mode(stat.st_mode)
                    && identity(&other) == identity(stat)
            });
            if !same {
                continue;
            }
            if id == std::process::id() {
                let number = fd.file_name().unwrap_or_default().to_string_lossy().parse();
                if asking.is_none_or(|asking| number != Ok(asking.as_raw_fd())) {
                    ourselves = Some(Holder::Ourselves);
                }
                continue;
            }
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default().trim().to_owned();
            return Some(if is_dying { Holder::Dying(name, id) } else { Holder::Process(name, id) });
        }
    }
    ourselves
}

/// What a process has open. The first thread of one that is dying may have nothing any more, and another one
/// still has it.
fn descriptors(process: &Path, is_dying: bool) -> impl Iterator<Item = PathBuf> {
    let of_threads = is_dying.then(|| fs::read_dir(process.join("task")).into_iter().flatten().flatten());
    let threads = of_threads.into_iter().flatten().map(|thread| thread.path());
    let folders = std::iter::once(process.to_owned()).chain(threads).map(|folder| folder.join("fd"));
    folders.flat_map(|folder| fs::read_dir(folder).into_iter().flatten().flatten()).map(|fd| fd.path())
}

/// Whether a process is on its way out, by its folder in /proc: proc_pid_stat(5).
fn is_dying(process: &Path) -> bool {
    const EXITING: u32 = 4;
    let stat = fs::read_to_string(process.join("stat")).unwrap_or_default();
    // Behind the name, which may have any character: the state, five numbers, the flags.
    let mut fields = stat.rsplit_once(") ").map(|(_, rest)| rest).unwrap_or_default().split(' ');
    let is_zombie = fields.next().is_some_and(|state| matches!(state, "Z" | "X"));
    let flags = fields.nth(5).and_then(|flags| flags.parse::<u32>().ok());
    is_zombie || flags.is_some_and(|flags| flags & EXITING != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_ended_and_is_still_there_is_dying() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let folder = PathBuf::from(format!("/proc/{}", child.id()));
        assert!(!is_dying(&folder) && !is_dying(Path::new("/proc/self")));
        child.kill().unwrap();
        // Until it is waited for it is a zombie.
        let ended = || fs::read_to_string(folder.join("stat")).unwrap().contains(") Z ");
        while !ended() {
            std::thread::yield_now();
        }
        assert!(is_dying(&folder));
        child.wait().unwrap();
        assert!(!is_dying(&folder), "it is gone");
    }

    #[test]
    fn a_queue_is_what_its_attributes_say_and_the_worse_where_they_say_nothing() {
        let disk = Queue::told(false, |name| match name {
            "write_cache" => "write back".to_owned(),
            "rotational" => "1".to_owned(),
            _ => String::new(),
        });
        assert_eq!((disk.volatile_cache, disk.discards, disk.rotational), (true, false, Some(true)));
        let flash = Queue::told(false, |name| match name {
            "write_cache" => "write through".to_owned(),
            "discard_max_bytes" => "4096".to_owned(),
            "rotational" => "0".to_owned(),
            _ => String::new(),
        });
        assert_eq!((flash.volatile_cache, flash.discards, flash.rotational), (false, true, Some(false)));
        let silent = Queue::told(false, |_| String::new());
        assert_eq!((silent.volatile_cache, silent.discards, silent.rotational), (true, false, None));
    }

    #[test]
    fn forced_writes_are_made_of_flushes_where_the_device_itself_does_not_take_them() {
        let forces_by_flush = |cache: &'static str, fua: &'static str, is_virtual| {
            let told = |name: &str| match name {
                "write_cache" => cache.to_owned(),
                "fua" => fua.to_owned(),
                _ => String::new(),
            };
            Queue::told(is_virtual, told).forces_by_flush
        };
        assert!(!forces_by_flush("write back", "1", false));
        for (fua, is_virtual) in [("0", false), ("", false), ("0", true), ("1", true)] {
            assert!(forces_by_flush("write back", fua, is_virtual), "fua {fua:?}");
            assert!(forces_by_flush("", fua, is_virtual), "fua {fua:?}");
            assert!(!forces_by_flush("write through", fua, is_virtual), "there is nothing to flush");
        }
    }
}
