//! The seam to storage: what the engine asks of a member, whatever stands behind it.

use crate::{Buffer, Offload, Slice, Submission, memory::InPlace};

/// What reads back after a range was zeroed or discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroedReads {
    /// `write_zeroes` is done by the device and reads back zero.
    Zero,
    /// The device can't zero by itself: write zero bytes.
    Unsupported,
}

/// What a device says of itself. Constant while it is open.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is asked for by itself")]
pub struct DeviceInfo {
    /// Name for messages: a path or an address.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// Logical block in bytes; every offset and length is a multiple of it.
    pub logical_block: u32,
    /// Whether completed writes may be lost on power failure until a flush.
    pub volatile_cache: bool,
    /// Whether a forced write may be made of a write and a flush: an error may be that of the flush then, and
    /// the cache may have lost what other writes left there ([`DeviceErrorKind::may_be_loss`]).
    pub forces_by_flush: bool,
    /// What `write_zeroes` does.
    pub zeroes: ZeroedReads,
    /// Whether `discard` does anything.
    pub discards: bool,
    /// Whether reads and writes are copies in this machine's memory: over when they are submitted, and no
    /// dearer than a copy anywhere else.
    pub in_memory: bool,
    /// Whether it moves a head to where it reads and writes; `None` where nothing tells. A kernel says yes of
    /// many a virtual machine's disk that has none.
    pub moves_head: Option<bool>,
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceErrorKind {
    /// The medium could not deliver or take these sectors; others may be fine.
    Media,
    /// The device is gone and nothing more will succeed.
    Gone,
    /// There is no space behind the device (thin provisioning, a full file system).
    NoSpace,
    /// The device does not know this operation.
    Unsupported,
    /// The request reaches past the device or is not aligned to its blocks: our own mistake.
    Invalid,
    /// The device is full of requests or memory was short: the request was not tried.
    Busy,
    /// Its server won't or can't do it so: nothing has changed, and there is another way (see [`Offload`]).
    Refused,
    /// Another host has taken the array over with a higher epoch: this one must write nothing more, anywhere.
    /// The member itself is well, so this is no reason to drop it.
    Fenced,
    /// It was taken out of service on purpose.
    Removed,
    /// It did not answer in the time that it is given. The request is not over: it may still take effect
    /// (C16).
    TimedOut,
    /// It had more errors than it is allowed, each of them mended.
    TooManyErrors,
    /// Any other error.
    Other,
}

impl DeviceErrorKind {
    /// Whether a flush, or a forced write that is made of a write and a flush, that fails so may have lost
    /// what it was to make durable: not if it was not even tried.
    pub fn may_be_loss(self) -> bool {
        !matches!(self, Self::Busy | Self::Invalid | Self::NoSpace | Self::Refused | Self::Unsupported)
    }
}

/// A failed request: the kind to decide by, the error number for the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{}", self.words(), Number(*errno))]
pub struct DeviceError {
    /// What to decide by.
    pub kind: DeviceErrorKind,
    /// The operating system's number, 0 where there is none.
    pub errno: i32,
}

/// An error number in brackets, nothing for 0.
struct Number(i32);

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(f, " (error {})", self.0) }
    }
}

impl DeviceError {
    /// An error of `kind` without a number.
    pub fn of(kind: DeviceErrorKind) -> Self {
        Self { kind, errno: 0 }
    }

    /// Sorts an error number of the operating system.
    pub fn from_errno(errno: i32) -> Self {
        let kind = match errno {
            libc::EIO | libc::ENODATA | libc::EILSEQ | libc::EBADMSG | libc::EREMOTEIO => {
                DeviceErrorKind::Media
            }
            libc::ENODEV | libc::ENXIO | libc::ESHUTDOWN | libc::ENOLINK | libc::EPIPE | libc::ECONNRESET => {
                DeviceErrorKind::Gone
            }
            libc::ENOSPC | libc::EDQUOT => DeviceErrorKind::NoSpace,
            libc::EOPNOTSUPP | libc::ENOSYS | libc::ENOTTY => DeviceErrorKind::Unsupported,
            libc::EINVAL => DeviceErrorKind::Invalid,
            libc::EAGAIN | libc::EINTR | libc::ENOMEM | libc::EBUSY => DeviceErrorKind::Busy,
            _ => DeviceErrorKind::Other,
        };
        Self { kind, errno }
    }

    fn words(&self) -> &'static str {
        match self.kind {
            DeviceErrorKind::Media => "the medium failed",
            DeviceErrorKind::Gone => "the device is gone",
            DeviceErrorKind::NoSpace => "no space is left behind the device",
            DeviceErrorKind::Unsupported => "the device does not support this operation",
            DeviceErrorKind::Invalid => "the request does not fit the device",
            DeviceErrorKind::Busy => "the device is out of resources",
            DeviceErrorKind::Refused => "the server refused the operation",
            DeviceErrorKind::Fenced => "another host has taken it over",
            DeviceErrorKind::Removed => "it was taken out by command",
            DeviceErrorKind::TimedOut => "the device did not answer in time",
            DeviceErrorKind::TooManyErrors => "it had more read errors than a member may have",
            DeviceErrorKind::Other => "the device failed",
        }
    }
}

/// One member's storage as one shard sees it.
///
/// A call submits at once and returns a [`Submission`] to await; requests run concurrently and complete in
/// any order. Offsets and lengths are bytes, multiples of the logical block. The memory of a request stays
/// with the device until its completion, even when the submission is dropped. A completion may come inline,
/// before the call returns.
///
/// [`DeviceErrorKind::Busy`] comes by a completion, never inline, so that the memory of a request is there to
/// try it again.
///
/// A read's outcome always brings the buffer back; what it holds after an error is unspecified. Short
/// transfers don't exist: a driver continues them or fails.
pub trait Device {
    /// What the device says of itself.
    fn info(&self) -> &DeviceInfo;
    /// Fills `buffer` from `offset`.
    fn read(&self, offset: u64, buffer: Buffer) -> Submission;
    /// Writes `data` at `offset`; with `fua` it is durable at completion.
    fn write(&self, offset: u64, data: Slice, fua: bool) -> Submission;
    /// As [`Device::write`], with a hint: no byte of the range was read just now, nor will be soon. A device
    /// in memory then leaves it out of the processor's caches.
    fn write_streaming(&self, offset: u64, data: Slice, fua: bool) -> Submission {
        self.write(offset, data, fua)
    }
    /// Makes every write that completed before this call durable.
    fn flush(&self) -> Submission;
    /// Tells the device that a range is not needed; reads may return anything afterwards.
    fn discard(&self, offset: u64, length: u64) -> Submission;
    /// Makes a range read back zero; may free it. Only where [`DeviceInfo::zeroes`] says so.
    fn write_zeroes(&self, offset: u64, length: u64) -> Submission;
    /// A range of its bytes where they lie, to be changed there. Only in memory, and a device may always say
    /// no: what has to be written is written then. A change in place can't be repeated or undone.
    fn in_place(&self, _offset: u64, _length: usize) -> Option<InPlace<'_>> {
        None
    }
    /// What computes behind it, if anything does.
    fn offload(&self) -> Option<&dyn Offload> {
        None
    }
    /// Whether it is reached over a network: all such devices share this host's link, where every byte delays
    /// the others'.
    fn is_remote(&self) -> bool {
        false
    }
    /// For how long, in nanoseconds, a write of a process that has died may still take effect, though this
    /// process has the device.
    fn late_writes_ns(&self) -> u64 {
        0
    }
}

/// Where every shard gets its own [`Device`] of one member.
pub trait DeviceSource: Send + Sync {
    /// The device as the current shard uses it.
    fn attach(&self) -> Result<std::rc::Rc<dyn Device>, DeviceError>;

    /// Name for messages: a path or an address.
    fn name(&self) -> String;
}
