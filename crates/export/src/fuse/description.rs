//! What the kernel is told about the file: no I/O is needed for it.

use pinstripe_block::BlockService;

use super::{
    request::PAYLOAD_BYTES_MAX,
    wire::{
        Attributes, AttributesReply, InitReply, MAJOR, MINOR, MINOR_MIN, OpenReply, ROOT, SpaceReply,
        ability, opened,
    },
};
use crate::errno;

/// `S_IFREG`.
const REGULAR: u32 = 0o100_000;
/// Bytes of a page, and what programs take for the file's block.
const PAGE_BYTES: u32 = 4096;
/// Requests that no process waits for, such as those of io_uring and of loop devices: as many as the kernel
/// may have under way, and from which on it thinks that the file is slow.
const BACKGROUND_MAX: u16 = 256;
const CONGESTION: u16 = 192;
/// Attributes never change while the file is served; but that a server has died shall soon be seen.
const VALID_SECONDS: u64 = 1;

/// The file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Description {
    size_bytes: u64,
    read_only: bool,
    /// Seconds since 1970.
    time: u64,
    /// Numbers of the owner and the group.
    owner: (u32, u32),
}

impl Description {
    /// Of a file that holds `service`, made at `time`, in seconds since 1970, and belongs to the user and the
    /// group `owner`.
    pub fn new(service: &impl BlockService, time: u64, owner: (u32, u32)) -> Self {
        Self { size_bytes: service.size_bytes(), read_only: service.read_only(), time, owner }
    }

    /// Kind and permissions: the owner's only.
    pub fn mode(&self) -> u32 {
        REGULAR | if self.read_only { 0o400 } else { 0o600 }
    }

    /// Whether it takes no writes.
    pub fn read_only(&self) -> bool {
        self.read_only
    }

    pub(super) fn initialise(revision: (u32, u32), abilities: u32) -> Result<InitReply, i32> {
        const WANTED: u32 =
            ability::ASYNC_READ | ability::BIG_WRITES | ability::ASYNC_DIRECT | ability::MAX_PAGES;
        // Of another major revision the kernel asks once more, with the number that it gets here.
        if revision < (MAJOR, MINOR_MIN) {
            return Err(errno::PROTOCOL);
        }
        Ok(InitReply {
            major: MAJOR,
            minor: if revision.0 == MAJOR { revision.1.min(MINOR) } else { MINOR },
            abilities: abilities & WANTED,
            background_max: BACKGROUND_MAX,
            congestion: CONGESTION,
            write_max: PAYLOAD_BYTES_MAX,
            time_granularity: 1_000_000_000,
            pages_max: u16::try_from(PAYLOAD_BYTES_MAX / PAGE_BYTES).unwrap_or(u16::MAX),
            ..InitReply::default()
        })
    }

    pub(super) fn attributes(&self) -> AttributesReply {
        let attributes = Attributes {
            inode: ROOT,
            size: self.size_bytes,
            blocks: self.size_bytes / 512,
            times: [self.time; 3],
            mode: self.mode(),
            links: 1,
            user: self.owner.0,
            group: self.owner.1,
            block_size: PAGE_BYTES,
            ..Attributes::default()
        };
        AttributesReply { valid: VALID_SECONDS, attributes, ..AttributesReply::default() }
    }

    /// The size is the array's, and the permissions are its owner's.
    pub(super) fn set_attributes(&self, ownership: bool, size: Option<u64>) -> Result<AttributesReply, i32> {
        if ownership || size.is_some_and(|size| size != self.size_bytes) {
            return Err(errno::NO_PERMISSION);
        }
        Ok(self.attributes())
    }

    pub(super) fn open(&self, writes: bool) -> Result<OpenReply, i32> {
        if writes && self.read_only {
            return Err(errno::READ_ONLY);
        }
        let flags = opened::DIRECT | opened::NO_FLUSH | opened::PARALLEL_WRITES;
        Ok(OpenReply { flags, ..OpenReply::default() })
    }

    /// All is data, up to the end, which counts as a hole.
    pub(super) fn seek(&self, offset: u64, hole: bool) -> Result<u64, i32> {
        if offset >= self.size_bytes {
            return Err(errno::NO_SUCH_ADDRESS);
        }
        Ok(if hole { self.size_bytes } else { offset })
    }

    pub(super) fn space(&self) -> SpaceReply {
        SpaceReply {
            blocks: [self.size_bytes / u64::from(PAGE_BYTES), 0, 0],
            files: [1, 0],
            block_size: PAGE_BYTES,
            name_max: 255,
            unit: PAGE_BYTES,
            ..SpaceReply::default()
        }
    }
}
