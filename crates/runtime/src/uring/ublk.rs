//! The kernel's ublk driver: a block device whose requests a program answers.
//!
//! ```text
//!   /dev/ublk-control  Control  makes, starts, stops and deletes devices; each command waits
//!   /dev/ublkcN        Device   a device's queues: Queue fetches requests and commits their results
//!   /dev/ublkbN                 the block device itself
//! ```
//!
//! See Documentation/block/ublk.rst and include/uapi/linux/ublk_cmd.h of Linux. A queue belongs to the thread
//! that fetches for it, so to one shard. The data of a request stays with the kernel; it is copied in and
//! out by [`Data::take`] and [`Data::give`] (`UBLK_F_USER_COPY`), which wait for no device, on any thread. So
//! no memory of ours is ever with the driver while a queue's command is under way.

use std::{
    fs::File as StdFile,
    io,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    rc::Rc,
    sync::Arc,
};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::mm::{MapFlags, ProtFlags};

use crate::{
    Submission,
    completion::Payload,
    uring::operation::{Descriptor, File, Kind, Operation},
};

/// Where commands for all devices go.
pub const CONTROL_PATH: &str = "/dev/ublk-control";
/// Bytes of a request's descriptor (`struct ublksrv_io_desc`).
pub const DESCRIPTOR_BYTES: usize = 24;
/// Requests that a queue may have (`UBLK_MAX_QUEUE_DEPTH`).
pub const DEPTH_MAX: u16 = 4096;
/// Bytes that one request may have (`UBLK_IO_BUF_BITS`).
pub const REQUEST_BYTES_MAX: u32 = 1 << 25;

/// `_IOWR('u', 0x20, struct ublksrv_io_cmd)`: waits for a tag's first request.
const FETCH: u32 = 0xc010_7520;
/// `_IOWR('u', 0x21, struct ublksrv_io_cmd)`: ends a tag's request and waits for the next.
const COMMIT_AND_FETCH: u32 = 0xc010_7521;
/// `UBLKSRV_IO_BUF_OFFSET`: where the data of requests begins in the device's file.
const DATA_OFFSET: u64 = 0x8000_0000;
const TAG_SHIFT: u32 = 25;
const QUEUE_SHIFT: u32 = 41;
const PAGE_BYTES: usize = 4096;
/// Of prctl(2); Linux 5.6.
const PR_SET_IO_FLUSHER: libc::c_int = 57;
/// Bytes of `struct ublksrv_ctrl_cmd`.
const CONTROL_BYTES: u32 = 32;

/// A command for a device as a whole: the number in its `UBLK_U_CMD_` name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Reads `struct ublksrv_ctrl_dev_info`.
    GetInfo,
    /// Makes a device; its information goes in and comes out.
    Add,
    /// Takes it away, and waits until its file is closed everywhere.
    Delete,
    /// Makes the block device, and reads its partition table: the queues must be served meanwhile.
    Start,
    /// Takes the block device away; the queues must be served meanwhile. Fetches end with `ENODEV` then.
    Stop,
    /// Takes `struct ublk_params`.
    SetParameters,
    /// Gives them.
    GetParameters,
    /// Begins to take a device over whose server has died.
    StartRecovery,
    /// Lets its requests go on.
    EndRecovery,
    /// Reads the driver's features: 8 bytes.
    GetFeatures,
}

impl Command {
    /// As ioctl(2) encodes numbers.
    fn code(self) -> u32 {
        const READ: u32 = 2;
        const READ_WRITE: u32 = 3;
        let (direction, number) = match self {
            Self::GetInfo => (READ, 0x02),
            Self::Add => (READ_WRITE, 0x04),
            Self::Delete => (READ_WRITE, 0x05),
            Self::Start => (READ_WRITE, 0x06),
            Self::Stop => (READ_WRITE, 0x07),
            Self::SetParameters => (READ_WRITE, 0x08),
            Self::GetParameters => (READ, 0x09),
            Self::StartRecovery => (READ_WRITE, 0x10),
            Self::EndRecovery => (READ_WRITE, 0x11),
            Self::GetFeatures => (READ, 0x13),
        };
        direction << 30 | CONTROL_BYTES << 16 | u32::from(b'u') << 8 | number
    }
}

/// The driver's control device, with a ring of its own. Its commands block: see [`super::blocking`].
pub struct Control {
    file: OwnedFd,
    ring: IoUring<squeue::Entry128, cqueue::Entry>,
}

impl Control {
    /// Opens it.
    pub fn open() -> io::Result<Self> {
        let file = StdFile::options().read(true).write(true).open(CONTROL_PATH)?.into();
        Ok(Self { file, ring: IoUring::builder().build(2)? })
    }

    /// Carries out a command for `device` and waits for its end. `data` is its inline value; its buffer is
    /// read or filled by the driver.
    pub fn command(&mut self, command: Command, device: u32, data: u64, buffer: &mut [u8]) -> io::Result<()> {
        let Ok(length) = u16::try_from(buffer.len()) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let address = if buffer.is_empty() { 0 } else { buffer.as_mut_ptr().expose_provenance() as u64 };
        let mut bytes = [0; 80];
        bytes[..4].copy_from_slice(&device.to_ne_bytes());
        // No queue.
        bytes[4..6].copy_from_slice(&u16::MAX.to_ne_bytes());
        bytes[6..8].copy_from_slice(&length.to_ne_bytes());
        bytes[8..16].copy_from_slice(&address.to_ne_bytes());
        bytes[16..24].copy_from_slice(&data.to_ne_bytes());
        let entry = opcode::UringCmd80::new(types::Fd(self.file.as_raw_fd()), command.code());
        let entry = entry.cmd(bytes).build();
        // SAFETY: the buffer is borrowed until the completion below, and of every command of `Command` the
        // driver reads or writes no more than `length` bytes at `address`.
        unsafe { self.ring.submission().push(&entry) }
            .unwrap_or_else(|_| unreachable!("one command at a time"));
        let result = self.wait();
        if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
    }

    /// The result of the one command under way. The buffer is the kernel's until then, so an error of the
    /// wait itself can't be passed on (C16).
    fn wait(&mut self) -> i32 {
        loop {
            if let Err(error) = self.ring.submit_and_wait(1)
                && !matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
            {
                eprintln!("io_uring_enter failed, which leaves a command in an unknown state: {error}");
                std::process::abort();
            }
            if let Some(completion) = self.ring.completion().next() {
                return completion.result();
            }
        }
    }
}

/// Has this thread's allocations never wait for a block device, which could be one that it serves
/// (`PR_SET_IO_FLUSHER`). Needs the capability `CAP_SYS_RESOURCE`.
pub fn set_io_flusher() -> io::Result<()> {
    // SAFETY: no memory is passed.
    let done = unsafe { libc::prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A device's file, which any shard may have queues of.
pub struct Device {
    file: Arc<File>,
    depth: u16,
}

impl Device {
    /// Opens the file of a device whose queues have `depth` tags. Only one process can have it open.
    pub fn open(path: &Path, depth: u16) -> io::Result<Self> {
        if depth == 0 || depth > DEPTH_MAX {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let file = StdFile::options().read(true).write(true).open(path)?;
        Ok(Self { file: File::new(file.into()), depth })
    }

    /// Queue `number`, for the current shard, which alone may use it.
    pub fn queue(&self, number: u16) -> io::Result<Queue> {
        let descriptors = Descriptors::map(&self.file.fd, number, self.depth)?;
        let descriptor = Descriptor::new(Arc::clone(&self.file));
        Ok(Queue { descriptor, descriptors, number, depth: self.depth })
    }
}

/// One queue of a device, on the shard that serves it.
pub struct Queue {
    descriptor: Rc<Descriptor>,
    descriptors: Descriptors,
    number: u16,
    depth: u16,
}

impl Queue {
    /// How many requests it may have under way, each with a tag below.
    pub fn depth(&self) -> u16 {
        self.depth
    }

    /// Waits for the first request of a tag. It may wait for ever; [`Command::Stop`] ends it.
    pub fn fetch(&self, tag: u16) -> Submission {
        self.submit(FETCH, tag, 0)
    }

    /// Ends the request of a tag with `result`, bytes or a negative error number, and waits for the next one.
    pub fn commit_and_fetch(&self, tag: u16, result: i32) -> Submission {
        self.submit(COMMIT_AND_FETCH, tag, result)
    }

    fn submit(&self, operation: u32, tag: u16, result: i32) -> Submission {
        let command = Operation::new(
            Kind::Command { operation, bytes: queue_command(self.number, tag, result) },
            &self.descriptor,
        );
        self.descriptor.driver().start(Payload::None, command)
    }

    /// What the driver wants of a tag whose fetch has just succeeded.
    pub fn request(&self, tag: u16) -> [u8; DESCRIPTOR_BYTES] {
        assert!(tag < self.depth, "tag {tag} of a queue of {}", self.depth);
        self.descriptors.read(tag)
    }

    /// The data of the request of a tag, which any shard may copy until the request is ended.
    pub fn data(&self, tag: u16) -> Data {
        Data { file: Arc::clone(self.descriptor.file()), offset: data_offset(self.number, tag) }
    }
}

/// The data of one request. Another thread than the queue's may copy it, too.
#[derive(Clone)]
pub struct Data {
    file: Arc<File>,
    offset: u64,
}

impl Data {
    /// Copies the data of a write out of the kernel.
    pub fn take(&self, data: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < data.len() {
            match rustix::io::pread(&self.file.fd, &mut data[done..], self.offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Copies the data of a read into the kernel.
    pub fn give(&self, data: &[u8]) -> io::Result<()> {
        let mut done = 0;
        while done < data.len() {
            match rustix::io::pwrite(&self.file.fd, &data[done..], self.offset + done as u64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// `struct ublksrv_io_cmd`. Its address is zero: with user copy there is none.
fn queue_command(queue: u16, tag: u16, result: i32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&queue.to_ne_bytes());
    bytes[2..4].copy_from_slice(&tag.to_ne_bytes());
    bytes[4..8].copy_from_slice(&result.to_ne_bytes());
    bytes
}

/// Where the data of a request begins in the device's file.
fn data_offset(queue: u16, tag: u16) -> u64 {
    DATA_OFFSET + (u64::from(queue) << QUEUE_SHIFT | u64::from(tag) << TAG_SHIFT)
}

/// The array of a queue's descriptors, which the driver writes and this process reads.
struct Descriptors {
    base: *const [u8; DESCRIPTOR_BYTES],
    mapped: usize,
}

impl Descriptors {
    fn map(device: &OwnedFd, queue: u16, depth: u16) -> io::Result<Self> {
        let bytes = |depth: u16| (usize::from(depth) * DESCRIPTOR_BYTES).next_multiple_of(PAGE_BYTES);
        let mapped = bytes(depth);
        let offset = u64::from(queue) * bytes(DEPTH_MAX) as u64;
        // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                mapped,
                ProtFlags::READ,
                MapFlags::SHARED | MapFlags::POPULATE,
                device,
                offset,
            )
        }?;
        Ok(Self { base: base.cast_const().cast(), mapped })
    }

    fn read(&self, index: u16) -> [u8; DESCRIPTOR_BYTES] {
        // SAFETY: `Queue::request` checks that the index is below the depth, for which `map` made room; bytes
        // need no alignment. The driver writes a descriptor before the completion of its fetch and not again
        // until the next fetch; the read is volatile, because the compiler knows of no such writer.
        unsafe { self.base.add(usize::from(index)).read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and no reference into it was given out. If it fails, the
        // mapping stays.
        let _ = unsafe { rustix::mm::munmap(self.base.cast_mut().cast(), self.mapped) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the values that a C compiler makes of the kernel's header.
    #[test]
    fn commands_have_the_numbers_of_the_header() {
        let codes = [
            (Command::GetInfo, 0x8020_7502),
            (Command::Add, 0xc020_7504),
            (Command::Delete, 0xc020_7505),
            (Command::Start, 0xc020_7506),
            (Command::Stop, 0xc020_7507),
            (Command::SetParameters, 0xc020_7508),
            (Command::GetParameters, 0x8020_7509),
            (Command::StartRecovery, 0xc020_7510),
            (Command::EndRecovery, 0xc020_7511),
            (Command::GetFeatures, 0x8020_7513),
        ];
        for (command, code) in codes {
            assert_eq!(command.code(), code, "{command:?}");
        }
    }

    #[test]
    fn a_queue_command_names_queue_tag_and_result_and_no_address() {
        let bytes = queue_command(0x0102, 0x0304, -5);
        assert_eq!(bytes[..2], 0x0102_u16.to_ne_bytes());
        assert_eq!(bytes[2..4], 0x0304_u16.to_ne_bytes());
        assert_eq!(bytes[4..8], (-5_i32).to_ne_bytes());
        assert_eq!(bytes[8..], [0; 8]);
    }

    #[test]
    fn the_data_of_no_two_tags_overlaps() {
        assert_eq!(data_offset(0, 0), 0x8000_0000);
        assert_eq!(data_offset(0, 1) - data_offset(0, 0), u64::from(REQUEST_BYTES_MAX));
        assert_eq!(data_offset(1, 0) - data_offset(0, 0), 1 << 41);
        assert!(data_offset(0, DEPTH_MAX - 1) + u64::from(REQUEST_BYTES_MAX) <= data_offset(1, 0));
    }

    #[test]
    fn a_file_that_is_no_ublk_device_gives_no_queue() {
        assert!(Device::open(Path::new("/dev/null"), 0).is_err());
        assert!(Device::open(Path::new("/dev/null"), DEPTH_MAX + 1).is_err());
        let made = crate::uring::run(&crate::uring::RuntimeConfig::unpinned(1), |_| async {
            Device::open(Path::new("/dev/null"), 8).unwrap().queue(0).is_err()
        });
        assert!(made.unwrap());
    }

    #[test]
    fn a_command_on_the_shards_ring_ends_with_what_the_driver_says() {
        let made = crate::uring::run(&crate::uring::RuntimeConfig::unpinned(1), |_| async {
            let file = StdFile::open("/dev/zero").unwrap();
            let descriptor = Descriptor::new(File::new(file.into()));
            let kind = Kind::Command { operation: FETCH, bytes: queue_command(0, 0, 0) };
            let command = Operation::new(kind, &descriptor);
            descriptor.driver().start(Payload::None, command).await.result
        });
        // /dev/zero has no commands.
        assert_eq!(made.unwrap().unwrap_err().errno, libc::EOPNOTSUPP);
    }
}
