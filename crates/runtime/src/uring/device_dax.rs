//! Opening a device DAX, `/dev/daxX.Y`: a namespace of persistent memory without a block device.
//!
//! Such a device can be mapped, and nothing else: it has no `read(2)`, and its size stands in `/sys` alone.
//! So it is mapped also by what only looks at it, then without the right to write.
//!
//! The kernel keeps no program out of it. A lock on its node in `/dev` keeps other servers out (C21). Its
//! number tells it from others (C30). There is nothing else to claim, for no loop device, partition or
//! mapping lies on a device DAX.
//!
//! Memory that is not persistent has devices of that kind, too: high-bandwidth memory, and CXL memory that
//! the firmware sets aside. Those are refused as any other character device is.

use std::{fs, io, os::fd::AsFd, path::Path, sync::Arc};

use rustix::{
    fs::{FileType, Mode, OFlags, Stat},
    io::Errno,
};

use crate::{
    DeviceError, DeviceInfo, Memory,
    uring::{
        open::{self, Alignment, OpenError, OpenFile, OpenOptions, busy_or, failed},
        operation::File,
        storage::number_in,
    },
};

/// The least that a request is a multiple of, as of a file.
const BLOCK_BYTES: u32 = 512;

/// What the kernel says of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeviceDax {
    bytes: usize,
}

impl DeviceDax {
    /// Of what `stat` is of; `None` if that isn't one in persistent memory.
    pub(super) fn of(stat: &Stat) -> Option<Self> {
        let is_character = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
        if is_character { Self::numbered(stat.st_rdev) } else { None }
    }

    /// Of the character device with this number.
    pub(super) fn numbered(number: u64) -> Option<Self> {
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let folder = fs::canonicalize(format!("/sys/dev/char/{major}:{minor}")).ok()?;
        Self::in_folder(&folder)
    }

    /// By its folder in `/sys`. One in persistent memory lies below its namespace, which is on the bus `nd`.
    fn in_folder(folder: &Path) -> Option<Self> {
        let is_persistent = folder.ancestors().skip(1).any(|above| is_of(above, "nd"));
        if !is_of(folder, "dax") || !is_persistent {
            return None;
        }
        // Only whole pages of this size are mapped.
        let page = number_in(&folder.join("align")).filter(|page| page.is_power_of_two())?;
        let bytes =
            number_in(&folder.join("size")).filter(|bytes| *bytes > 0 && bytes.is_multiple_of(page))?;
        Some(Self { bytes: usize::try_from(bytes).ok()? })
    }

    fn map<F>(self, file: Arc<F>, read_only: bool) -> Result<Arc<Memory>, DeviceError>
    where
        F: AsFd + Send + Sync + 'static,
    {
        if read_only { Memory::readable(file, self.bytes) } else { Memory::persistent(file, self.bytes) }
    }
}

/// Whether a device's folder in `/sys` is of a bus or class of this name.
fn is_of(folder: &Path, subsystem: &str) -> bool {
    let found = fs::canonicalize(folder.join("subsystem"));
    found.is_ok_and(|found| found.file_name().is_some_and(|name| name == subsystem))
}

/// Whether a path is of a device DAX in persistent memory.
pub fn is_device_dax(path: &Path) -> bool {
    rustix::fs::stat(path).is_ok_and(|stat| DeviceDax::of(&stat).is_some())
}

/// The bytes of a device DAX, to be looked at. `None` if the path is of anything else.
///
/// # Errors
/// If it can't be opened or mapped.
pub fn map_device_dax(path: &Path) -> io::Result<Option<Arc<Memory>>> {
    let stat = rustix::fs::stat(path)?;
    let Some(device) = DeviceDax::of(&stat) else { return Ok(None) };
    let fd = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    if rustix::fs::fstat(&fd)?.st_rdev != stat.st_rdev {
        return Err(Errno::AGAIN.into());
    }
    device.map(Arc::new(fd), true).map(Some).map_err(io::Error::other)
}

/// Opens, locks and maps the `device` at `path`, which is called `name`.
pub(super) fn open(
    name: &Path,
    path: &Path,
    stat: &Stat,
    device: DeviceDax,
    options: &OpenOptions,
) -> Result<OpenFile, OpenError> {
    if options.poll {
        let why = "its requests are copies, and nothing waits for them: leave out --poll".into();
        return Err(OpenError::NotPolled { path: path.to_owned(), why });
    }
    let (fd, _) = open::open(path, stat, options).map_err(|error| failed(path, error))?;
    let opened = rustix::fs::fstat(&fd).map_err(|error| failed(path, error))?;
    if opened.st_rdev != stat.st_rdev {
        return Err(failed(path, Errno::AGAIN));
    }
    if options.exclusive {
        let whole = 0..u64::MAX;
        open::lock(&fd, options.read_only, &whole)
            .map_err(|error| busy_or(path, &opened, Some(&fd), error))?;
    }
    let own = Alignment { block: BLOCK_BYTES, memory: 1 };
    let logical_block = own.choose(path, options.logical_block)?;
    let file = File::new(fd);
    let memory = device.map(Arc::clone(&file), options.read_only);
    let memory =
        memory.map_err(|error| OpenError::Io { path: path.to_owned(), source: io::Error::other(error) })?;
    // There is nothing to give space back to.
    let info = DeviceInfo { discards: false, ..memory.info(&name.display().to_string(), logical_block) };
    let mut open = OpenFile::new(path, file, info, options, own.memory)?;
    open.memory = Some(memory);
    Ok(open)
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::symlink, path::PathBuf};

    use super::*;

    /// A folder as `/sys` is, with one device of this subsystem below another one.
    struct Sys {
        root: tempfile::TempDir,
    }

    impl Sys {
        fn new(above: &str, subsystem: &str) -> Self {
            let sys = Self { root: tempfile::tempdir().unwrap() };
            fs::create_dir_all(sys.device()).unwrap();
            for bus in [above, subsystem] {
                fs::create_dir_all(sys.root.path().join("bus").join(bus)).unwrap();
            }
            let bus = |name: &str| sys.root.path().join("bus").join(name);
            symlink(bus(above), sys.device().parent().unwrap().join("subsystem")).unwrap();
            symlink(bus(subsystem), sys.device().join("subsystem")).unwrap();
            sys.say("size", "264241152\n");
            sys.say("align", "2097152\n");
            sys
        }

        fn device(&self) -> PathBuf {
            self.root.path().join("devices/ndbus0/region0/dax0.0/dax0.0")
        }

        fn say(&self, name: &str, text: &str) {
            fs::write(self.device().join(name), text).unwrap();
        }

        fn found(&self) -> Option<usize> {
            DeviceDax::in_folder(&self.device()).map(|device| device.bytes)
        }
    }

    #[test]
    fn a_device_dax_has_the_size_that_the_kernel_says() {
        assert_eq!(Sys::new("nd", "dax").found(), Some(126 << 21));
    }

    #[test]
    fn what_is_no_device_dax_or_lies_in_memory_that_forgets_is_none() {
        assert_eq!(Sys::new("nd", "tty").found(), None);
        assert_eq!(Sys::new("platform", "dax").found(), None, "as high-bandwidth memory");
        assert_eq!(DeviceDax::in_folder(Path::new("/nowhere")), None);
        let null = Path::new("/dev/null");
        assert!(!is_device_dax(null) && map_device_dax(null).unwrap().is_none());
        assert!(map_device_dax(Path::new("/dev/not-there")).is_err());
    }

    #[test]
    fn a_size_that_can_not_be_mapped_is_not_believed() {
        let sys = Sys::new("nd", "dax");
        for (name, texts) in [("size", ["0\n", "4096\n", "x\n", ""]), ("align", ["0\n", "3\n", "-1\n", ""])] {
            for text in texts {
                let right = fs::read_to_string(sys.device().join(name)).unwrap();
                sys.say(name, text);
                assert_eq!(sys.found(), None, "{name} {text:?}");
                sys.say(name, &right);
            }
        }
        assert!(sys.found().is_some());
        fs::remove_file(sys.device().join("align")).unwrap();
        assert_eq!(sys.found(), None);
    }
}
