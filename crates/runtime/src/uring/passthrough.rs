//! Opening a namespace by its NVMe generic device, `/dev/ngXnY`, to which commands go by passthrough.
//!
//! The kernel keeps nothing out of such a device: whatever uses the namespace as `/dev/nvmeXnY` (a mount, md,
//! another server) goes on beside it. So the block device is opened and claimed first, as if it were the
//! member, and held as long as the generic device is (C21, C30). What the kernel caches of it is dropped
//! then and at the end, for commands by passthrough change it behind the cache.
//!
//! What the device says of itself (Identify) decides what is asked of it. Before the member is used, one read
//! goes the way that all requests will go, so that what the kernel lacks is found here.

use std::{
    fs, io,
    os::fd::{AsRawFd, OwnedFd},
    path::{Path, PathBuf},
};

use io_uring::{opcode, types};
use rustix::{
    fs::{FileType, Mode, OFlags, Stat},
    io::Errno,
};

use crate::{
    DeviceInfo, ZeroedReads,
    uring::{
        kernel,
        nvme::{self, Action, COMMAND_BYTES, IDENTIFY_BYTES, Identify, Namespace},
        open::{self, Alignment, OpenError, OpenFile, OpenOptions, busy_or, failed},
        operation::{File, forget_cached},
        side::{self, Carrier},
        storage,
    },
};

/// What addresses of memory are a multiple of: the device takes words of 4 bytes.
const MEMORY_ALIGNMENT: usize = 4;
const PAGE_BYTES: u64 = 4096;

/// Memory that direct I/O and devices reach.
#[repr(C, align(4096))]
pub(super) struct Page(pub(super) [u8; IDENTIFY_BYTES]);

impl Page {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self([0; IDENTIFY_BYTES]))
    }
}

/// The block device of the namespace whose generic device this is; `None` if it is another character device,
/// or the kernel has no block device for it.
pub(super) fn block_device(generic: u64) -> Option<(u64, PathBuf)> {
    let (major, minor) = (rustix::fs::major(generic), rustix::fs::minor(generic));
    let folder = fs::canonicalize(format!("/sys/dev/char/{major}:{minor}")).ok()?;
    let class = fs::canonicalize(folder.join("subsystem")).ok()?;
    if class.file_name()? != "nvme-generic" {
        return None;
    }
    // Both stand below the controller or, where a namespace has several, below the subsystem.
    let name = block_name(folder.file_name()?.to_str()?)?;
    let number = storage::device_number(&folder.parent()?.join(&name))?;
    Some((number, Path::new("/dev").join(name)))
}

/// `nvmeXnY` for `ngXnY`.
fn block_name(generic: &str) -> Option<String> {
    let numbers = generic.strip_prefix("ng")?;
    numbers.starts_with(|first: char| first.is_ascii_digit()).then(|| format!("nvme{numbers}"))
}

/// Where what a path names is read and written as a file is: the block device for a generic device of NVMe,
/// else the path itself.
pub fn readable_path(path: &Path) -> PathBuf {
    let block = rustix::fs::stat(path).ok().and_then(|stat| {
        let is_character = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
        if is_character { block_device(stat.st_rdev) } else { None }
    });
    block.map_or_else(|| path.to_owned(), |(_, block)| block)
}

/// Opens the generic device `path`; its block device where the kernel can't do that and polling isn't asked
/// for.
pub(super) fn open(path: &Path, generic: &Stat, options: &OpenOptions) -> Result<OpenFile, OpenError> {
    let Some((number, block)) = block_device(generic.st_rdev) else {
        return Err(OpenError::NotStorage { path: path.to_owned() });
    };
    let held = hold(path, &block, number, options)?;
    match open_generic(path, generic, &held, options) {
        Ok((fd, namespace)) => finish(path, fd, held, namespace, options),
        Err(Refusal::Final(error)) => Err(error),
        Err(Refusal::Passthrough(why)) if options.poll => {
            Err(OpenError::Passthrough { path: path.to_owned(), why })
        }
        Err(Refusal::Passthrough(why)) => {
            drop(held);
            let mut open = OpenFile::open_plain(&block, options)?;
            let (path, block) = (path.display(), block.display());
            open.remark =
                Some(format!("{path} is used as {block}, because passthrough does not work: {why}"));
            Ok(open)
        }
    }
}

/// Why a generic device isn't used.
enum Refusal {
    Final(OpenError),
    /// There is the block device.
    Passthrough(String),
}

/// What is held of the block device.
struct Held {
    folder: PathBuf,
    device: OwnedFd,
    claims: Vec<OwnedFd>,
}

/// Claims the block device as a member is claimed.
fn hold(path: &Path, block: &Path, number: u64, options: &OpenOptions) -> Result<Held, OpenError> {
    let stat = rustix::fs::stat(block).map_err(|error| failed(block, error))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::BlockDevice || stat.st_rdev != number {
        return Err(failed(block, Errno::AGAIN));
    }
    let device = open::open(block, &stat, options).map_err(|error| busy_or(path, &stat, None, error))?.0;
    if rustix::fs::fstat(&device).map_err(|error| failed(block, error))?.st_rdev != number {
        return Err(failed(block, Errno::AGAIN));
    }
    if !options.read_only && open::is_read_only(&device).map_err(|error| failed(path, error))? {
        return Err(OpenError::ReadOnly { path: path.to_owned() });
    }
    let claims = if options.exclusive { storage::claim(path, &stat, options)? } else { Vec::new() };
    Ok(Held { folder: storage::sysfs(number), device, claims })
}

/// Opens the generic device, asks what it is, and reads through it once.
fn open_generic(
    path: &Path,
    generic: &Stat,
    held: &Held,
    options: &OpenOptions,
) -> Result<(OwnedFd, Namespace), Refusal> {
    let access = if options.read_only { OFlags::RDONLY } else { OFlags::RDWR };
    let fd = rustix::fs::open(path, access | OFlags::CLOEXEC, Mode::empty())
        .map_err(|error| Refusal::Final(failed(path, error)))?;
    if rustix::fs::fstat(&fd).is_ok_and(|stat| stat.st_rdev != generic.st_rdev) {
        return Err(Refusal::Final(failed(path, Errno::AGAIN)));
    }
    if options.poll && !is_polled(&held.folder) {
        return Err(Refusal::Final(OpenError::NotPolled { path: path.to_owned(), why: no_poll_queues() }));
    }
    forget_cached(&held.device);
    check_kernel().map_err(Refusal::Passthrough)?;
    check_transports(&transports(&held.folder.join("device"))).map_err(Refusal::Passthrough)?;
    let namespace = ask(&fd, &held.folder).map_err(Refusal::Passthrough)?;
    let is_polled = options.poll;
    try_read(&fd, &namespace, is_polled).map_err(|why| {
        let polled = if is_polled { ", polled," } else { "" };
        Refusal::Passthrough(format!("a first read{polled} failed: {why}"))
    })?;
    Ok((fd, namespace))
}

fn finish(
    path: &Path,
    fd: OwnedFd,
    held: Held,
    namespace: Namespace,
    options: &OpenOptions,
) -> Result<OpenFile, OpenError> {
    let own = Alignment { block: 1 << namespace.block_shift, memory: MEMORY_ALIGNMENT };
    let info = DeviceInfo {
        name: path.display().to_string(),
        size: namespace.size,
        logical_block: own.choose(path, options.logical_block)?,
        volatile_cache: namespace.volatile_cache,
        // The command has a bit for it.
        forces_by_flush: false,
        zeroes: if namespace.zeroes { ZeroedReads::Zero } else { ZeroedReads::Unsupported },
        discards: namespace.deallocates,
        in_memory: false,
        moves_head: Some(false),
    };
    let carrier = if options.poll { Carrier::Polled } else { Carrier::Large };
    let mut claims = held.claims;
    claims.push(held.device);
    let file = File::carried(fd, claims, carrier, Some(namespace));
    OpenFile::new(path, file, info, options, own.memory)
}

/// Refuses kernels that may report a command as done which they have ended themselves, such as when the
/// device goes: a flush would be acknowledged that never came to it.
fn check_kernel() -> Result<(), String> {
    let release = kernel::release();
    if reports_own_errors(&release) {
        return Ok(());
    }
    Err(format!("Linux {release} may report commands as done that it has given up: 6.12 or newer is needed"))
}

/// Since 6.12 (commit 5eed4fb274cd of Linux).
fn reports_own_errors(release: &str) -> bool {
    kernel::is_at_least(release, (6, 12))
}

/// How the kernel reaches a namespace: by its controller, or by each one of its subsystem.
fn transports(device: &Path) -> Vec<String> {
    let of = |controller: &Path| {
        fs::read_to_string(controller.join("transport")).ok().map(|text| text.trim().to_owned())
    };
    if let Some(transport) = of(device) {
        return vec![transport];
    }
    fs::read_dir(device).into_iter().flatten().flatten().filter_map(|entry| of(&entry.path())).collect()
}

/// Refuses fabrics: while a controller connects again, the kernel gives commands by passthrough up, and
/// those of the block device wait.
fn check_transports(transports: &[String]) -> Result<(), String> {
    match transports.iter().find(|transport| *transport != "pcie") {
        None if !transports.is_empty() => Ok(()),
        None => Err("the kernel doesn't say how it is reached".into()),
        Some(fabric) => Err(format!(
            "it is reached by {fabric}, and its commands would fail whenever the connection is lost for a moment"
        )),
    }
}

/// What the device says of itself. It must agree with what the kernel makes of its block device.
fn ask(fd: &OwnedFd, block: &Path) -> Result<Namespace, String> {
    let io = |what: &str, error: io::Error| format!("{what}: {error}");
    // SAFETY: no memory is passed.
    let id = unsafe { libc::ioctl(fd.as_raw_fd(), libc::Ioctl::from(nvme::IOCTL_ID)) };
    let id = u32::try_from(id).map_err(|_| io("its number can't be read", io::Error::last_os_error()))?;
    let namespace = identify(fd, Identify::Namespace, id).map_err(|e| io("Identify Namespace", e))?;
    let controller = identify(fd, Identify::Controller, id).map_err(|e| io("Identify Controller", e))?;
    // Older controllers have no such answer.
    let set = identify(fd, Identify::CommandSet, id).unwrap_or_else(|_| Page::new());
    let kernel_max =
        kernel_limit(number(block, "queue/max_hw_sectors_kb"), number(block, "queue/max_segments"));
    let parsed = Namespace::parse(id, &namespace.0, &controller.0, &set.0, kernel_max);
    let mut parsed = parsed.map_err(|error| error.to_string())?;
    // The kernel knows devices that announce Write Zeroes and do it wrongly.
    parsed.zeroes &= number(block, "queue/write_zeroes_max_bytes").is_some_and(|bytes| bytes > 0);
    let is_zoned = fs::read_to_string(block.join("queue/zoned")).is_ok_and(|kind| kind.trim() != "none");
    if is_zoned {
        return Err("it is zoned".into());
    }
    let sectors = number(block, "size").unwrap_or(0);
    if sectors.checked_mul(512) != Some(parsed.size) {
        return Err(format!("it has {} bytes, and its block device {sectors} sectors", parsed.size));
    }
    Ok(parsed)
}

/// The most bytes that the kernel passes on in one command: it can't split it, and each page of memory may
/// become a segment; memory may begin within one.
fn kernel_limit(kilobytes: Option<u64>, segments: Option<u64>) -> u64 {
    let bytes = kilobytes.map_or(PAGE_BYTES, |kilobytes| kilobytes.saturating_mul(1024));
    let pages = segments.map_or(1, |segments| segments.saturating_sub(1).max(1));
    bytes.min(pages.saturating_mul(PAGE_BYTES))
}

fn number(folder: &Path, name: &str) -> Option<u64> {
    storage::number_in(&folder.join(name))
}

/// Gives the admin command and waits for its answer. Blocks.
fn identify(fd: &OwnedFd, what: Identify, namespace: u32) -> io::Result<Box<Page>> {
    let mut answer = Page::new();
    let address = answer.0.as_mut_ptr().expose_provenance() as u64;
    let mut command: [u8; COMMAND_BYTES] = nvme::identify(what, namespace, address);
    // SAFETY: the kernel reads and writes `command`, and has the device write no more than the answer's 4096
    // bytes, as the command says. It returns when the device is done or can't write any more.
    let status =
        unsafe { libc::ioctl(fd.as_raw_fd(), libc::Ioctl::from(nvme::IOCTL_ADMIN), command.as_mut_ptr()) };
    match status {
        0 => Ok(answer),
        -1 => Err(io::Error::last_os_error()),
        status => Err(io::Error::other(format!("status {status:#x}"))),
    }
}

/// Reads the first block the way that all requests will go.
fn try_read(fd: &OwnedFd, namespace: &Namespace, is_polled: bool) -> Result<(), String> {
    let mut memory = Page::new();
    let length = 1_u32 << namespace.block_shift;
    let data = (memory.0.as_mut_ptr().expose_provenance() as u64, length);
    let mut bytes = [0; 80];
    bytes[..COMMAND_BYTES].copy_from_slice(&namespace.command(Action::Read, 0, length.into(), data));
    let entry = opcode::UringCmd80::new(types::Fd(fd.as_raw_fd()), nvme::URING_IO).cmd(bytes).build();
    // SAFETY: a block is at most as long as the page, which lives until the call has returned.
    let result = unsafe { side::attempt(&entry, is_polled) }.map_err(|error| {
        format!("the kernel refuses an io_uring with large entries (Linux 6.12 or newer is needed): {error}")
    })?;
    match result {
        0 => Ok(()),
        // The medium is no matter of the way.
        status if status > 0 => {
            let error = nvme::error(status);
            if error.kind == crate::DeviceErrorKind::Media { Ok(()) } else { Err(error.to_string()) }
        }
        errno => Err(format!(
            "{}; commands by passthrough need Linux 6.12 or newer and the right to give them (root)",
            io::Error::from_raw_os_error(-errno)
        )),
    }
}

/// Whether a block device, by its folder in `/sys`, has queues that can be polled. A partition has its
/// disk's.
pub(super) fn is_polled(block: &Path) -> bool {
    let said = |folder: &str| number(block, &format!("{folder}/io_poll"));
    said("queue").or_else(|| said("../queue")) == Some(1)
}

/// What to do about a device without queues to poll.
pub(super) fn no_poll_queues() -> String {
    let now = fs::read_to_string("/sys/module/nvme/parameters/poll_queues");
    let now = now.map_or_else(|_| String::new(), |count| format!(" (now {})", count.trim()));
    format!(
        "its driver has no queues for that. NVMe devices have them with the kernel's option nvme.poll_queues=N{now}, \
         best N as many as there are shards: set it and start again, or leave out --poll"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_hides_its_own_errors_is_refused() {
        for release in ["6.12.117+deb12-amd64", "6.12-rc1", "6.18.44-fc-v782", "7.0.0"] {
            assert!(reports_own_errors(release), "{release}");
        }
        for release in ["6.11.9", "6.1.0-28-amd64", "5.19", "", "x"] {
            assert!(!reports_own_errors(release), "{release}");
        }
    }

    #[test]
    fn a_namespace_that_any_controller_reaches_by_a_fabric_is_refused() {
        let folder = std::env::temp_dir().join(format!("pinstripe-transports-{}", std::process::id()));
        let device = folder.as_path();
        fs::create_dir(device).unwrap();
        assert!(check_transports(&transports(device)).is_err(), "nothing is said");
        for (controller, transport) in [("nvme0", "pcie\n"), ("nvme1", "pcie\n")] {
            fs::create_dir(device.join(controller)).unwrap();
            fs::write(device.join(controller).join("transport"), transport).unwrap();
        }
        fs::create_dir(device.join("nvme0n1")).unwrap();
        assert_eq!(check_transports(&transports(device)), Ok(()));
        fs::write(device.join("nvme1/transport"), "tcp\n").unwrap();
        assert!(check_transports(&transports(device)).unwrap_err().contains("by tcp"));
        fs::write(device.join("transport"), "pcie\n").unwrap();
        assert_eq!(check_transports(&transports(device)), Ok(()), "a controller of its own");
        fs::remove_dir_all(device).unwrap();
    }

    #[test]
    fn a_generic_device_has_the_numbers_of_its_block_device() {
        assert_eq!(block_name("ng0n1").as_deref(), Some("nvme0n1"));
        assert_eq!(block_name("ng12n34").as_deref(), Some("nvme12n34"));
        assert_eq!(block_name("nvme0"), None);
        assert_eq!(block_name("ngx"), None);
    }

    #[test]
    fn a_character_device_that_is_no_namespace_is_no_storage() {
        let opened = OpenFile::open("/dev/null", &OpenOptions::default());
        assert!(matches!(opened, Err(OpenError::NotStorage { .. })));
        assert_eq!(readable_path(Path::new("/dev/null")), Path::new("/dev/null"));
    }

    #[test]
    fn a_command_takes_no_more_than_its_segments_however_memory_lies() {
        assert_eq!(kernel_limit(Some(512), Some(127)), 126 * 4096);
        assert_eq!(kernel_limit(Some(128), Some(127)), 128 << 10);
        assert_eq!(kernel_limit(Some(512), Some(1)), 4096);
        assert_eq!(kernel_limit(None, None), 4096);
    }
}
