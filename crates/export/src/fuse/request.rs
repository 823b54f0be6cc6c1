//! From bytes to a checked request.

use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::wire::{
    Allocate, HEAD_BYTES, Init, Open, ROOT, RequestHeader, Seek, SetAttributes, Transfer, attribute, opcode,
};
use crate::errno;

/// Bytes that a read or a write may have. The kernel is told so, and has no larger pages than 1 MiB in one
/// request unless its administrator allows more.
pub const PAYLOAD_BYTES_MAX: u32 = 1 << 20;

/// Flags of open(2): the way of access, and that each write is durable before it is answered (`O_DSYNC`,
/// which is part of `O_SYNC`).
const ACCESS_MODE: u32 = 3;
const DURABLE: u32 = 0x1000;
/// Modes of fallocate(2).
const KEEP_SIZE: u32 = 1;
const PUNCH_HOLE: u32 = 2;
const ZERO_RANGE: u32 = 0x10;
/// `SEEK_DATA` and `SEEK_HOLE` of lseek(2).
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// What becomes of a range that shall read as zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fill {
    /// Its space may be freed.
    pub may_punch: bool,
    /// It may reach beyond the end of the file, which stays where it is.
    pub keeps_size: bool,
}

/// What the kernel wants. Ends of ranges are below 2^63, but may lie beyond the file's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// To agree on what both sides can do.
    Initialise {
        /// The kernel's revision of the protocol: major and minor number.
        revision: (u32, u32),
        /// See [`wire::ability`](super::wire::ability).
        abilities: u32,
    },
    /// Attributes.
    Attributes,
    /// New attributes. Times are not kept.
    SetAttributes {
        /// Of permissions, owner or group.
        ownership: bool,
        /// The new size.
        size: Option<u64>,
    },
    /// To open the file.
    Open {
        /// For writing.
        writes: bool,
    },
    /// The last user of an open file has closed it.
    Release,
    /// Bytes.
    Read {
        /// Where.
        offset: u64,
        /// How many, at most [`PAYLOAD_BYTES_MAX`].
        length: usize,
    },
    /// New bytes, which follow the head.
    Write {
        /// Where.
        offset: u64,
        /// How many, at most [`PAYLOAD_BYTES_MAX`].
        length: usize,
        /// Durable before it is answered.
        fua: bool,
    },
    /// To make every write that was answered before durable.
    Synchronise,
    /// A range that shall read as zero.
    Zero {
        /// Where.
        offset: u64,
        /// Bytes, not 0.
        length: u64,
        /// How.
        fill: Fill,
    },
    /// The next data or the next hole.
    Seek {
        /// From where.
        offset: u64,
        /// A hole.
        hole: bool,
    },
    /// The size of the file system.
    Space,
    /// Nothing that a file without a cache has to do.
    Nothing,
    /// Not even an answer.
    Silence,
}

/// A request of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Message {
    /// Names it in its answer.
    pub unique: u64,
    /// What is wanted, or the error number that is the answer.
    pub request: Result<Request, i32>,
}

impl Message {
    /// Checks the first bytes of a request that has `length` bytes. Nothing if it can't even be answered.
    pub fn parse(head: &[u8; HEAD_BYTES], length: usize) -> Option<Self> {
        let there = &head[..length.min(HEAD_BYTES)];
        let (header, body) = RequestHeader::read_from_prefix(there).ok()?;
        if header.length as usize != length {
            return Some(Self { unique: header.unique, request: Err(errno::INVALID) });
        }
        Some(Self { unique: header.unique, request: request(&header, body, length) })
    }
}

fn request(header: &RequestHeader, body: &[u8], length: usize) -> Result<Request, i32> {
    match header.opcode {
        opcode::INIT => {
            let Init { major, minor, abilities, .. } = front(body)?;
            return Ok(Request::Initialise { revision: (major, minor), abilities });
        }
        opcode::FORGET | opcode::BATCH_FORGET => return Ok(Request::Silence),
        opcode::DESTROY => return Ok(Request::Nothing),
        opcode::STATFS => return Ok(Request::Space),
        _ => {}
    }
    let request = match header.opcode {
        opcode::GETATTR => Request::Attributes,
        opcode::SETATTR => {
            let SetAttributes { which, size, .. } = front(body)?;
            let size = (which & attribute::SIZE != 0).then_some(size);
            Request::SetAttributes { ownership: which & attribute::OWNERSHIP != 0, size }
        }
        opcode::OPEN => {
            let Open { flags, .. } = front(body)?;
            Request::Open { writes: flags & ACCESS_MODE != 0 }
        }
        opcode::RELEASE => Request::Release,
        opcode::FLUSH => Request::Nothing,
        opcode::READ => {
            let (offset, length, _) = transfer(body)?;
            Request::Read { offset, length }
        }
        opcode::WRITE => {
            let (offset, count, flags) = transfer(body)?;
            if count.checked_add(HEAD_BYTES) != Some(length) {
                return Err(errno::INVALID);
            }
            Request::Write { offset, length: count, fua: flags & DURABLE != 0 }
        }
        opcode::FSYNC => Request::Synchronise,
        opcode::FALLOCATE => allocate(front(body)?)?,
        opcode::LSEEK => {
            let Seek { offset, whence, .. } = front(body)?;
            if whence != SEEK_DATA && whence != SEEK_HOLE {
                return Err(errno::INVALID);
            }
            Request::Seek { offset, hole: whence == SEEK_HOLE }
        }
        // The kernel asks for most of these once only.
        _ => return Err(errno::NO_FUNCTION),
    };
    if header.node == ROOT { Ok(request) } else { Err(errno::STALE) }
}

/// The front of a body that is declared.
fn front<T: FromBytes + KnownLayout + Immutable>(body: &[u8]) -> Result<T, i32> {
    T::read_from_prefix(body).map(|(value, _)| value).map_err(|_| errno::INVALID)
}

/// Place, length and flags of a read or a write.
fn transfer(body: &[u8]) -> Result<(u64, usize, u32), i32> {
    let Transfer { offset, length, flags, .. } = front(body)?;
    check_range(offset, length.into())?;
    let fits = length <= PAYLOAD_BYTES_MAX;
    let length = usize::try_from(length).ok().filter(|_| fits).ok_or(errno::INVALID)?;
    Ok((offset, length, flags))
}

fn allocate(wanted: Allocate) -> Result<Request, i32> {
    let Allocate { offset, length, mode, .. } = wanted;
    let keeps_size = mode & KEEP_SIZE != 0;
    let may_punch = match mode & !KEEP_SIZE {
        PUNCH_HOLE if keeps_size => true,
        ZERO_RANGE => false,
        _ => return Err(errno::NOT_SUPPORTED),
    };
    check_range(offset, length)?;
    if length == 0 {
        return Err(errno::INVALID);
    }
    Ok(Request::Zero { offset, length, fill: Fill { may_punch, keeps_size } })
}

/// Offsets of files are signed.
fn check_range(offset: u64, length: u64) -> Result<(), i32> {
    let end = offset.checked_add(length).and_then(|end| i64::try_from(end).ok());
    end.map(|_| ()).ok_or(errno::INVALID)
}

/// One body for the fuzz target and for the property test: whatever the bytes, there is no panic, and what
/// comes of them is within its bounds. The first two bytes are added to the length of what follows.
///
/// # Panics
/// If the core breaks one of its promises.
#[doc(hidden)]
pub fn fuzz_fuse(data: &[u8]) {
    let Some((more, bytes)) = data.split_first_chunk() else { return };
    let length = bytes.len() + usize::from(u16::from_le_bytes(*more));
    let mut head = [0; HEAD_BYTES];
    let count = bytes.len().min(HEAD_BYTES);
    head[..count].copy_from_slice(&bytes[..count]);
    let Some(message) = Message::parse(&head, length) else {
        assert!(length < size_of::<RequestHeader>(), "a request with a header has an answer");
        return;
    };
    let in_file = |end: Option<u64>| end.is_some_and(|end| i64::try_from(end).is_ok());
    match message.request {
        Ok(Request::Read { offset, length }) => {
            assert!(length <= PAYLOAD_BYTES_MAX as usize && in_file(offset.checked_add(length as u64)));
        }
        Ok(Request::Write { offset, length: count, .. }) => {
            assert!(count <= PAYLOAD_BYTES_MAX as usize && in_file(offset.checked_add(count as u64)));
            assert_eq!(count + HEAD_BYTES, length);
        }
        Ok(Request::Zero { offset, length, .. }) => {
            assert!(length > 0 && in_file(offset.checked_add(length)));
        }
        Ok(_) => {}
        Err(errno) => assert!((1..512).contains(&errno), "the kernel takes no error {errno}"),
    }
}
