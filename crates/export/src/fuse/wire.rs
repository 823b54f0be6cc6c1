//! Structures that the kernel and a FUSE server exchange, in the machine's byte order, and their numbers.
//!
//! Of what the kernel sends, only the front is declared that is looked at: the rest is longer in newer
//! kernels.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The protocol (`FUSE_KERNEL_VERSION`).
pub const MAJOR: u32 = 7;
/// The newest revision of it whose structures these are.
pub const MINOR: u32 = 38;
/// The oldest one that is served: that of Linux 5.4.
pub const MINOR_MIN: u32 = 31;
/// The number of the file, which is all that the file system has (`FUSE_ROOT_ID`).
pub const ROOT: u64 = 1;

/// What a request is to do.
pub mod opcode {
    /// The kernel forgets a file. Not answered.
    pub const FORGET: u32 = 2;
    /// Attributes.
    pub const GETATTR: u32 = 3;
    /// New attributes.
    pub const SETATTR: u32 = 4;
    /// Opens the file.
    pub const OPEN: u32 = 14;
    /// Reads.
    pub const READ: u32 = 15;
    /// Writes.
    pub const WRITE: u32 = 16;
    /// The size of the file system.
    pub const STATFS: u32 = 17;
    /// The last user of an open file has closed it.
    pub const RELEASE: u32 = 18;
    /// Makes what was written durable.
    pub const FSYNC: u32 = 20;
    /// One user of an open file has closed it.
    pub const FLUSH: u32 = 25;
    /// The first request: what each side can do.
    pub const INIT: u32 = 26;
    /// The file system goes.
    pub const DESTROY: u32 = 38;
    /// The kernel forgets several files. Not answered.
    pub const BATCH_FORGET: u32 = 42;
    /// Frees or zeroes a range.
    pub const FALLOCATE: u32 = 43;
    /// Looks for data and holes.
    pub const LSEEK: u32 = 46;
}

/// `struct fuse_in_header`: every request begins with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RequestHeader {
    /// Bytes of the request, with this.
    pub length: u32,
    /// See [`opcode`].
    pub opcode: u32,
    /// Names the request in its answer.
    pub unique: u64,
    /// The file.
    pub node: u64,
    /// The user that asks.
    pub user: u32,
    /// Its group.
    pub group: u32,
    /// Its process.
    pub process: u32,
    /// Extensions, which the server has not asked for.
    pub extensions: u32,
}

/// `struct fuse_out_header`: every answer begins with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ReplyHeader {
    /// Bytes of the answer, with this.
    pub length: u32,
    /// 0, or a negative error number.
    pub error: i32,
    /// That of the request.
    pub unique: u64,
}

/// What both sides can do (`FUSE_`).
pub mod ability {
    /// Several reads of a file at a time.
    pub const ASYNC_READ: u32 = 1 << 0;
    /// Writes of more than a page.
    pub const BIG_WRITES: u32 = 1 << 5;
    /// Several direct reads and writes of a process at a time.
    pub const ASYNC_DIRECT: u32 = 1 << 15;
    /// [`InitReply::pages_max`](super::InitReply::pages_max) is there.
    pub const MAX_PAGES: u32 = 1 << 22;
}

/// `struct fuse_init_in`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Init {
    /// See [`MAJOR`].
    pub major: u32,
    /// See [`MINOR`].
    pub minor: u32,
    /// Bytes that the kernel reads ahead.
    pub readahead_max: u32,
    /// See [`ability`].
    pub abilities: u32,
}

/// `struct fuse_init_out`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct InitReply {
    /// See [`MAJOR`].
    pub major: u32,
    /// See [`MINOR`].
    pub minor: u32,
    /// Bytes to read ahead.
    pub readahead_max: u32,
    /// See [`ability`].
    pub abilities: u32,
    /// Requests under way that no process waits for, at most.
    pub background_max: u16,
    /// As many of them make the file system count as congested.
    pub congestion: u16,
    /// Bytes of a write at most.
    pub write_max: u32,
    /// Nanoseconds that times are multiples of.
    pub time_granularity: u32,
    /// Pages of a request at most.
    pub pages_max: u16,
    /// Zero, with all that follows.
    pub map_alignment: u16,
    /// Further abilities.
    pub abilities_2: u32,
    /// Zero.
    pub unused: [u32; 7],
}

/// `struct fuse_attr`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Attributes {
    /// Inode.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes that it takes.
    pub blocks: u64,
    /// Times of access, of modification and of change, in seconds.
    pub times: [u64; 3],
    /// The nanoseconds of each.
    pub nanoseconds: [u32; 3],
    /// Kind and permissions.
    pub mode: u32,
    /// Links.
    pub links: u32,
    /// Owner.
    pub user: u32,
    /// And group.
    pub group: u32,
    /// Of a device.
    pub device: u32,
    /// Bytes of a block.
    pub block_size: u32,
    /// Zero.
    pub flags: u32,
}

/// `struct fuse_attr_out`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AttributesReply {
    /// Seconds for which they hold.
    pub valid: u64,
    /// And nanoseconds.
    pub valid_nanoseconds: u32,
    /// Zero.
    pub unused: u32,
    /// The attributes.
    pub attributes: Attributes,
}

/// Which of [`SetAttributes`] are to be set (`FATTR_`).
pub mod attribute {
    /// Permissions, owner and group.
    pub const OWNERSHIP: u32 = 1 << 0 | 1 << 1 | 1 << 2;
    /// The size.
    pub const SIZE: u32 = 1 << 3;
}

/// `struct fuse_setattr_in`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SetAttributes {
    /// See [`attribute`].
    pub which: u32,
    /// Zero.
    pub unused: u32,
    /// The open file.
    pub handle: u64,
    /// The new size.
    pub size: u64,
}

/// `struct fuse_open_in`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Open {
    /// Those of open(2).
    pub flags: u32,
    /// Those of the protocol.
    pub open_flags: u32,
}

/// How an open file is used (`FOPEN_`).
pub mod opened {
    /// Not through the page cache.
    pub const DIRECT: u32 = 1 << 0;
    /// No [`FLUSH`](super::opcode::FLUSH) when it is closed.
    pub const NO_FLUSH: u32 = 1 << 5;
    /// Several writes at a time.
    pub const PARALLEL_WRITES: u32 = 1 << 6;
}

/// `struct fuse_open_out`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct OpenReply {
    /// Names the open file: 0, which is as good as any.
    pub handle: u64,
    /// See [`opened`].
    pub flags: u32,
    /// Zero.
    pub unused: u32,
}

/// `struct fuse_read_in` and `struct fuse_write_in`, which have the same fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Transfer {
    /// The open file.
    pub handle: u64,
    /// Where.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
    /// Those of the protocol.
    pub transfer_flags: u32,
    /// Owner of locks.
    pub lock_owner: u64,
    /// Those of open(2).
    pub flags: u32,
    /// Zero.
    pub unused: u32,
}

/// `struct fuse_write_out`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct WriteReply {
    /// Bytes that were written.
    pub length: u32,
    /// Zero.
    pub unused: u32,
}

/// `struct fuse_fallocate_in`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Allocate {
    /// The open file.
    pub handle: u64,
    /// Where.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// That of fallocate(2).
    pub mode: u32,
    /// Zero.
    pub unused: u32,
}

/// `struct fuse_lseek_in`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Seek {
    /// The open file.
    pub handle: u64,
    /// From where.
    pub offset: u64,
    /// That of lseek(2).
    pub whence: u32,
    /// Zero.
    pub unused: u32,
}

/// `struct fuse_lseek_out`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SeekReply {
    /// What was found.
    pub offset: u64,
}

/// `struct fuse_statfs_out`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct SpaceReply {
    /// Blocks in all; then those that are free, to root and to others.
    pub blocks: [u64; 3],
    /// Files, and those that can still be made.
    pub files: [u64; 2],
    /// Bytes of a request.
    pub block_size: u32,
    /// Bytes of a name.
    pub name_max: u32,
    /// Bytes of a block.
    pub unit: u32,
    /// Zero.
    pub unused: [u32; 7],
}

/// Bytes before the data of a write; no other request that is looked at has more that matters.
pub const HEAD_BYTES: usize = size_of::<RequestHeader>() + size_of::<Transfer>();

const _: () = {
    assert!(size_of::<RequestHeader>() == 40);
    assert!(size_of::<ReplyHeader>() == 16);
    assert!(size_of::<InitReply>() == 64);
    assert!(std::mem::offset_of!(InitReply, pages_max) == 28);
    assert!(size_of::<Attributes>() == 88);
    assert!(std::mem::offset_of!(Attributes, mode) == 60);
    assert!(size_of::<AttributesReply>() == 104);
    assert!(std::mem::offset_of!(SetAttributes, size) == 16);
    assert!(size_of::<Open>() == 8);
    assert!(size_of::<OpenReply>() == 16);
    assert!(size_of::<Transfer>() == 40);
    assert!(std::mem::offset_of!(Transfer, flags) == 32);
    assert!(size_of::<WriteReply>() == 8);
    assert!(size_of::<Allocate>() == 32);
    assert!(size_of::<Seek>() == 24);
    assert!(size_of::<SpaceReply>() == 80);
    assert!(HEAD_BYTES == 80);
};
