//! What a device holds, found out by reading it: MD's metadata, and the marks of other things that must not
//! be overwritten by accident.
//!
//! It reads like any program would, with no lock, so a member of a running array can be looked at. A command
//! that acts on the answer holds the device's lock meanwhile.

mod md;
mod signatures;

use std::{
    fmt, fs,
    io::{self, Seek, SeekFrom},
    ops::Range,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, mpsc},
};

pub use md::{BadBlockSummary, BitmapHead, BitmapSummary, MdFinding, Metadata, find as superblocks};
use pinstripe_md::superblock::Superblock;
use pinstripe_runtime::{
    DeviceError, DeviceErrorKind, DeviceInfo, DeviceSource, Memory, Outcome, ShardHandle,
    uring::{OpenFile, map_device_dax, path_of, readable_path},
};
use serde::Serialize;
use thiserror::Error;

/// Why a device can't be looked at.
#[derive(Debug, Error)]
pub enum ProbeError {
    /// It can't be opened.
    #[error("{}", open_sentence(path, source))]
    Open {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// It is no storage.
    #[error("{} is neither a file nor a block device nor an NVMe namespace", path.display())]
    NotStorage {
        /// The path.
        path: PathBuf,
    },
    /// It can't be read.
    #[error("can't read {} at byte {offset}: {source}", path.display())]
    Read {
        /// The path.
        path: PathBuf,
        /// Where.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
}

impl ProbeError {
    /// Whether the medium fails at some place only, and the device is there otherwise.
    fn is_of_medium(&self) -> bool {
        let Self::Read { source, .. } = self else { return false };
        let of_device = source.get_ref().and_then(|error| error.downcast_ref::<DeviceError>());
        let of_system = source.raw_os_error().map(DeviceError::from_errno);
        of_device.copied().or(of_system).is_some_and(|error| error.kind == DeviceErrorKind::Media)
    }
}

fn open_sentence(path: &Path, source: &io::Error) -> String {
    let path = path.display();
    match source.kind() {
        io::ErrorKind::NotFound => format!("{path} does not exist"),
        io::ErrorKind::PermissionDenied => {
            format!("no permission to open {path}: run this as root, or as a user with that permission")
        }
        _ => format!("can't open {path}: {source}"),
    }
}

/// A device that is being looked at.
pub struct Probed {
    path: PathBuf,
    reader: Reader,
    size: u64,
}

/// Where the bytes come from.
enum Reader {
    File(fs::File),
    /// A device DAX.
    Mapped(Arc<Memory>),
    /// A device of a shard that runs meanwhile.
    Device {
        source: Arc<dyn DeviceSource>,
        block: u32,
        shard: ShardHandle,
    },
}

impl Probed {
    /// Opens `path` for reading.
    pub fn open(name: &Path) -> Result<Self, ProbeError> {
        let (path, _) = path_of(name);
        Self::open_at(path, path)
    }

    /// Opens what is open already as `name`, which may be the name of something else by now.
    pub fn again(file: &OpenFile, name: &Path) -> Result<Self, ProbeError> {
        Self::open_at(path_of(name).0, &file.own_path())
    }

    /// Opens what `place` leads to, and calls it `path`.
    fn open_at(path: &Path, place: &Path) -> Result<Self, ProbeError> {
        use std::os::unix::fs::FileTypeExt;
        let failed = |source| ProbeError::Open { path: path.to_owned(), source };
        if let Some(memory) = map_device_dax(place).map_err(failed)? {
            let size = memory.size() as u64;
            return Ok(Self { path: path.to_owned(), reader: Reader::Mapped(memory), size });
        }
        let readable = readable_path(place);
        // Opening a fifo would wait for its other end.
        let kind = fs::metadata(&readable).map_err(failed)?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(ProbeError::NotStorage { path: path.to_owned() });
        }
        let mut file = fs::File::open(&readable).map_err(failed)?;
        if kind.is_block_device() {
            // A server may have written by passthrough, behind the kernel's cache.
            let _ = rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed);
        }
        let size = file.seek(SeekFrom::End(0)).map_err(failed)?;
        Ok(Self { path: path.to_owned(), reader: Reader::File(file), size })
    }

    /// A device that `shard` reads, called `path`. It is not to be looked at on that shard, for a look
    /// blocks.
    pub fn remote(
        path: PathBuf,
        source: Arc<dyn DeviceSource>,
        info: &DeviceInfo,
        shard: ShardHandle,
    ) -> Self {
        let reader = Reader::Device { source, block: info.logical_block, shard };
        Self { path, reader, size: info.size }
    }

    /// Bytes of its logical block.
    fn logical_block(&self) -> u32 {
        match &self.reader {
            // A file has none.
            Reader::File(file) => rustix::fs::ioctl_blksszget(file).unwrap_or(512),
            Reader::Mapped(_) => 512,
            Reader::Device { block, .. } => *block,
        }
    }

    /// Bytes of the device.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The bytes from `offset`, at most `length`; fewer, or none, at the end of the device.
    fn read(&self, offset: u64, length: usize) -> Result<Vec<u8>, ProbeError> {
        let there = usize::try_from(self.size.saturating_sub(offset)).unwrap_or(usize::MAX);
        let length = length.min(there);
        let read = match &self.reader {
            Reader::File(file) => {
                let mut bytes = vec![0; length];
                file.read_exact_at(&mut bytes, offset).map(|()| bytes)
            }
            Reader::Mapped(memory) => {
                let mut bytes = vec![0; length];
                memory.copy_out(offset, &mut bytes).map(|()| bytes).map_err(io::Error::other)
            }
            Reader::Device { source, block, shard } => {
                read_device(source, (*block).into(), shard, offset, length)
            }
        };
        read.map_err(|source| ProbeError::Read { path: self.path.clone(), offset, source })
    }
}

/// Has the shard read whole blocks, and takes what was asked for.
fn read_device(
    source: &Arc<dyn DeviceSource>,
    block: u64,
    shard: &ShardHandle,
    offset: u64,
    length: usize,
) -> io::Result<Vec<u8>> {
    let lost = || io::Error::from(io::ErrorKind::ConnectionAborted);
    if length == 0 {
        return Ok(Vec::new());
    }
    let start = offset / block * block;
    let skipped = usize::try_from(offset - start).map_err(|_| lost())?;
    let whole = (skipped + length).next_multiple_of(usize::try_from(block).map_err(|_| lost())?);
    let (answers, answer) = mpsc::channel();
    let source = Arc::clone(source);
    shard.send(move || {
        pinstripe_runtime::shard::spawn(async move {
            let read = match source.attach() {
                Ok(device) => device.read(start, pinstripe_runtime::shard::buffer(whole)).await,
                Err(error) => Outcome { result: Err(error), buffer: None },
            };
            let bytes = match (read.result, read.buffer) {
                (Ok(_), Some(buffer)) => Ok(buffer[skipped..skipped + length].to_vec()),
                (Err(error), _) => Err(io::Error::other(error)),
                (Ok(_), None) => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
            };
            // No thread waits if the command was ended.
            let _ = answers.send(bytes);
        });
    });
    answer.recv().map_err(|_| lost())?
}

/// Something that a device holds, other than MD's metadata of version 1.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// In words, with its article: `an ext4 file system`.
    pub what: String,
    /// Its label or name, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Its identity, if it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The bytes of the mark by which it was found.
    #[serde(skip)]
    pub mark: Range<u64>,
    /// It is MD's metadata of version 0.90.
    #[serde(skip)]
    pub is_old_md: bool,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match (&self.name, &self.uuid) {
            (Some(name), Some(uuid)) => write!(f, " \"{name}\" (uuid {uuid})"),
            (Some(name), None) => write!(f, " \"{name}\""),
            (None, Some(uuid)) => write!(f, " (uuid {uuid})"),
            (None, None) => Ok(()),
        }
    }
}

/// All that was found on a device.
pub struct Contents {
    /// MD metadata of version 1, in the order in which MD looks for it.
    pub metadata: Vec<MdFinding>,
    /// Everything else.
    pub others: Vec<Finding>,
}

impl Contents {
    /// Looks at a device.
    pub fn of(device: &Probed) -> Result<Self, ProbeError> {
        let metadata = md::find(device)?;
        let is_member = metadata.iter().any(|found| found.superblock.is_ok());
        Ok(Self { metadata, others: signatures::find(device, is_member)? })
    }

    /// The whole superblocks.
    pub fn superblocks(&self) -> impl Iterator<Item = &Superblock> {
        self.metadata.iter().filter_map(|found| Some(&found.superblock.as_ref().ok()?.superblock))
    }

    /// The bytes of the marks of all but MD's metadata.
    pub fn marks(&self) -> impl Iterator<Item = Range<u64>> {
        self.others.iter().map(|found| found.mark.clone())
    }

    /// The bytes of the marks of MD's metadata of version 0.90.
    pub fn old_md(&self) -> impl Iterator<Item = Range<u64>> {
        self.others.iter().filter(|found| found.is_old_md).map(|found| found.mark.clone())
    }

    /// All of it in words; empty if nothing is known.
    pub fn in_words(&self) -> Vec<String> {
        self.metadata
            .iter()
            .map(ToString::to_string)
            .chain(self.others.iter().map(ToString::to_string))
            .collect()
    }
}
