//! A file or block device as one shard sees it.

use std::{rc::Rc, sync::Arc, sync::atomic::Ordering};

use crate::{
    Buffer, Device, DeviceError, DeviceErrorKind, DeviceInfo, Slice, Submission, ZeroedReads,
    completion::Payload,
    shard,
    uring::{
        driver::failed,
        nvme::{Action, RANGE_BYTES},
        open::OpenFile,
        operation::{Descriptor, Kind, Operation, PUNCH_HOLE, ZERO_RANGE},
    },
};

/// See the module.
pub(super) struct FileDevice {
    open: Arc<OpenFile>,
    descriptor: Rc<Descriptor>,
    /// What `info` says once the device was found unable to zero.
    without_zeroes: DeviceInfo,
}

impl FileDevice {
    pub(super) fn new(open: &Arc<OpenFile>) -> Rc<Self> {
        let without_zeroes = DeviceInfo { zeroes: ZeroedReads::Unsupported, ..open.info.clone() };
        Rc::new(Self {
            open: Arc::clone(open),
            descriptor: Descriptor::registered(Arc::clone(&open.file)),
            without_zeroes,
        })
    }

    /// A range that lies inside, in whole blocks.
    fn check(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        let info = &self.open.info;
        let block = u64::from(info.logical_block);
        let inside = offset.checked_add(length).is_some_and(|end| end <= info.size);
        if inside && offset.is_multiple_of(block) && length.is_multiple_of(block) {
            return Ok(());
        }
        Err(DeviceError::of(DeviceErrorKind::Invalid))
    }

    fn check_write(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        if self.open.read_only {
            return Err(DeviceError::from_errno(libc::EROFS));
        }
        self.check(offset, length)
    }

    /// Whether requests are NVMe commands by passthrough.
    fn takes_commands(&self) -> bool {
        self.open.file.namespace().is_some()
    }

    fn start(&self, payload: Payload, operation: Operation) -> Submission {
        self.descriptor.driver().start(payload, operation)
    }

    /// Whether direct I/O reaches memory at `address`.
    fn reaches(&self, address: *const u8) -> bool {
        address.addr().is_multiple_of(self.open.memory_alignment)
    }

    fn operation(&self, kind: Kind, offset: u64) -> Operation {
        Operation::new(kind, &self.descriptor).range(offset, 0, self.open.info.logical_block)
    }

    fn allocate(&self, kind: Kind, offset: u64, length: u64) -> Submission {
        if let Err(error) = self.check_write(offset, length) {
            return Submission::done(Err(error), None);
        }
        if length == 0 {
            return Submission::done(Ok(0), None);
        }
        let block = self.open.info.logical_block;
        let mut operation = Operation::new(kind, &self.descriptor).range(offset, length, block);
        if matches!(operation.kind, Kind::Nvme(Action::Deallocate)) {
            operation = operation.list(shard::buffer(RANGE_BYTES));
        }
        self.start(Payload::None, operation)
    }
}

impl Device for FileDevice {
    fn info(&self) -> &DeviceInfo {
        let refused = self.open.file.zeroes_refused.load(Ordering::Relaxed);
        if refused { &self.without_zeroes } else { &self.open.info }
    }

    fn read(&self, offset: u64, buffer: Buffer) -> Submission {
        if let Err(error) = self.check(offset, buffer.len() as u64) {
            return Submission::done(Err(error), Some(buffer));
        }
        if buffer.is_empty() {
            return Submission::done(Ok(0), Some(buffer));
        }
        let kind = if self.takes_commands() { Kind::Nvme(Action::Read) } else { Kind::Read };
        let mut read = self.operation(kind, offset).memory(buffer.as_ptr(), buffer.len());
        if !self.reaches(buffer.as_ptr()) {
            read = read.bounce(shard::buffer(buffer.len()));
        }
        self.start(Payload::Buffer(buffer), read)
    }

    fn write(&self, offset: u64, mut data: Slice, fua: bool) -> Submission {
        if let Err(error) = self.check_write(offset, data.len() as u64) {
            return Submission::done(Err(error), None);
        }
        if data.is_empty() {
            return Submission::done(Ok(0), None);
        }
        if !self.reaches(data.as_ptr()) {
            let mut aligned = shard::buffer(data.len());
            aligned.copy_from_slice(&data);
            data = aligned.freeze();
        }
        let kind =
            if self.takes_commands() { Kind::Nvme(Action::Write { fua }) } else { Kind::Write { fua } };
        let write = self.operation(kind, offset).memory(data.as_ptr(), data.len());
        self.start(Payload::Slice(data), write)
    }

    fn flush(&self) -> Submission {
        if self.open.read_only {
            return Submission::done(Ok(0), None);
        }
        let kind = match self.takes_commands() {
            true if !self.open.info.volatile_cache => return Submission::done(Ok(0), None),
            true => Kind::Nvme(Action::Flush),
            false => Kind::Flush,
        };
        self.start(Payload::None, Operation::new(kind, &self.descriptor))
    }

    fn discard(&self, offset: u64, length: u64) -> Submission {
        if !self.open.info.discards {
            return failed(DeviceErrorKind::Unsupported);
        }
        let kind = match self.open.is_block {
            true if self.takes_commands() => Kind::Nvme(Action::Deallocate),
            true => self.open.file.discard(),
            false => Kind::Allocate(PUNCH_HOLE),
        };
        self.allocate(kind, offset, length)
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Submission {
        if self.info().zeroes == ZeroedReads::Unsupported {
            return failed(DeviceErrorKind::Unsupported);
        }
        let kind = match self.open.is_block {
            true if self.takes_commands() => Kind::Nvme(Action::Zeroes),
            true => Kind::Allocate(ZERO_RANGE),
            false => Kind::Allocate(PUNCH_HOLE),
        };
        self.allocate(kind, offset, length)
    }
}
