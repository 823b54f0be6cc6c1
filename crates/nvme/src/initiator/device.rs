//! A namespace as a device.

use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use pinstripe_runtime::completion::Payload;
use pinstripe_runtime::{
    Buffer, Device, DeviceError, DeviceErrorKind, DeviceInfo, DeviceSource, Slice, Submission, ZeroedReads,
};
use zerocopy::IntoBytes;

use super::InitiatorError;
use super::association::{Association, Lease};
use super::offload::Extension;
use super::queue::Queue;
use super::request::{Data, Failure, Pending, Purpose, Request};
use crate::mutants::{Mutant, active};
use crate::wire::command::{Command, DATASET_DEALLOCATE, DEALLOCATE, DatasetRange, FORCE_UNIT_ACCESS, nvm};
use crate::wire::identifiers::NamespaceIdentity;
use crate::wire::reservation::{Keys, ReservationKind, action};

/// Most blocks of a read, write or Write Zeroes.
const BLOCKS_MAX: u64 = 1 << 16;
/// Most blocks of a range of Dataset Management.
const RANGE_BLOCKS_MAX: u64 = (1 << 32) - 1;

/// What is known of a namespace.
#[derive(Debug, Clone)]
pub(super) struct Namespace {
    pub number: u32,
    pub block_shift: u8,
    pub identity: NamespaceIdentity,
    pub read_only: bool,
    /// The server has said that it changed: what stands there now is another one.
    pub gone: Arc<AtomicBool>,
    pub info: DeviceInfo,
}

/// A namespace of a server, to be attached by every shard. The association lasts as long as it or one of its
/// devices.
pub struct NvmeSource {
    pub(super) lease: Arc<Lease>,
    pub(super) namespace: Namespace,
}

impl NvmeSource {
    pub(super) fn new(lease: Arc<Lease>, namespace: Namespace) -> Self {
        lease.association.uses(&namespace);
        Self { lease, namespace }
    }

    /// What the namespace says of itself.
    pub fn info(&self) -> &DeviceInfo {
        &self.namespace.info
    }

    /// By what it is recognized, whatever its address is.
    pub fn identity(&self) -> NamespaceIdentity {
        self.namespace.identity
    }

    /// Whether the server refuses all writes.
    pub fn is_read_only(&self) -> bool {
        self.namespace.read_only
    }

    /// Whether its association has ended, or the namespace has changed under it: its devices are gone, and
    /// only a new source can come back.
    pub fn is_lost(&self) -> bool {
        self.presence().is_lost()
    }

    /// Tells later whether it is lost, without keeping the association alive.
    pub fn presence(&self) -> Presence {
        Presence {
            association: Arc::downgrade(&self.lease.association),
            gone: Arc::clone(&self.namespace.gone),
        }
    }

    /// Reserves the namespace, so that of all processes that claim it one succeeds: other hosts can't write
    /// it, and other processes on this host can't claim it with another `key` (not 0). An error if another
    /// claim holds, or if the server knows no reservations; then nothing has changed.
    pub async fn claim(&self, key: u64) -> Result<(), InitiatorError> {
        let keys = Keys { current: 0.into(), other: key.into() };
        self.reserve(nvm::RESERVATION_REGISTER, action::REGISTER, keys).await?;
        let dword = (ReservationKind::WriteExclusive as u32) << 8 | action::ACQUIRE;
        let keys = Keys { current: key.into(), other: 0.into() };
        let taken = self.reserve(nvm::RESERVATION_ACQUIRE, dword, keys).await;
        if taken.is_err() {
            // Another claim holds, and goes on holding even if the server doesn't hear this.
            let _ = self.disclaim(key).await;
        }
        taken
    }

    /// Gives a claim up.
    pub async fn disclaim(&self, key: u64) -> Result<(), InitiatorError> {
        // The reservation goes with the registration of its holder.
        let keys = Keys { current: key.into(), other: 0.into() };
        self.reserve(nvm::RESERVATION_REGISTER, action::UNREGISTER, keys).await
    }

    async fn reserve(&self, opcode: u8, dword: u32, keys: Keys) -> Result<(), InitiatorError> {
        let association = &self.lease.association;
        let queue = association.queue().map_err(|_| association.failed("a reservation", Failure::Lost))?;
        let mut data = pinstripe_runtime::shard::buffer(size_of::<Keys>());
        data.copy_from_slice(keys.as_bytes());
        let command = Command::new(opcode, self.namespace.number).with_dword(10, dword);
        let told = queue.tell(command, data.freeze()).await;
        told.map_err(|failure| association.failed("a reservation", failure))
    }
}

/// See [`NvmeSource::presence`].
#[derive(Clone)]
pub struct Presence {
    association: Weak<Association>,
    gone: Arc<AtomicBool>,
}

impl Presence {
    /// See [`NvmeSource::is_lost`].
    pub fn is_lost(&self) -> bool {
        let has_ended = self.association.upgrade().is_none_or(|association| association.has_ended());
        has_ended || self.gone.load(Ordering::SeqCst)
    }
}

impl DeviceSource for NvmeSource {
    fn attach(&self) -> Result<Rc<dyn Device>, DeviceError> {
        if self.is_lost() {
            return Err(DeviceError::of(DeviceErrorKind::Gone));
        }
        let queue = self.lease.association.queue()?;
        let transfer_bytes = self.lease.association.limits().transfer_bytes as u64;
        let blocks_max = (transfer_bytes >> self.namespace.block_shift).clamp(1, BLOCKS_MAX);
        let offload = Extension::of(&self.lease.association, blocks_max << self.namespace.block_shift);
        Ok(Rc::new(NvmeDevice {
            lease: Arc::clone(&self.lease),
            queue,
            namespace: self.namespace.clone(),
            blocks_max,
            offload,
        }))
    }

    fn name(&self) -> String {
        self.namespace.info.name.clone()
    }
}

/// One shard's handle.
pub(super) struct NvmeDevice {
    pub lease: Arc<Lease>,
    pub queue: Rc<Queue>,
    pub namespace: Namespace,
    /// Blocks of one command with data.
    blocks_max: u64,
    /// What its server computes, if it does.
    pub offload: Option<Extension>,
}

/// Blocks of a request.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    pub start: u64,
    pub count: u64,
}

impl Blocks {
    /// In parts of at most `max`.
    fn parts(self, max: u64) -> impl Iterator<Item = Blocks> {
        (0..self.count)
            .step_by(usize::try_from(max).unwrap_or(usize::MAX))
            .map(move |done| Blocks { start: self.start + done, count: max.min(self.count - done) })
    }

    fn number(self, max: u64) -> u32 {
        u32::try_from(self.count.div_ceil(max)).unwrap_or(u32::MAX)
    }
}

impl NvmeDevice {
    pub(super) fn blocks(&self, offset: u64, length: u64) -> Result<Blocks, DeviceError> {
        let info = &self.namespace.info;
        let aligned = (offset | length).is_multiple_of(u64::from(info.logical_block));
        let inside = offset.checked_add(length).is_some_and(|end| end <= info.size);
        if !aligned || !inside || length == 0 {
            return Err(DeviceError::of(DeviceErrorKind::Invalid));
        }
        let shift = self.namespace.block_shift;
        Ok(Blocks { start: offset >> shift, count: length >> shift })
    }

    fn command(&self, opcode: u8, blocks: Blocks) -> Command {
        let count = u32::try_from(blocks.count).unwrap_or(0);
        Command::new(opcode, self.namespace.number).with_blocks(blocks.start, count)
    }

    fn bytes(&self, blocks: u64) -> usize {
        usize::try_from(blocks << self.namespace.block_shift).unwrap_or(usize::MAX)
    }

    /// A request of commands, each made from its part of the range.
    fn request(
        &self,
        purpose: Purpose,
        payload: Payload,
        length: usize,
        range: (Blocks, u64),
        part: impl Fn(Blocks, usize) -> (Command, Data),
    ) -> Submission {
        let (blocks, max) = range;
        let (submission, completion) = Submission::pending(payload);
        let request = Request::of_device(purpose, completion, length, blocks.number(max));
        for one in blocks.parts(max) {
            let (command, data) = part(one, self.bytes(one.start - blocks.start));
            self.submit(Pending::new(command, data, &request));
        }
        self.queue.pump();
        submission
    }

    pub(super) fn submit(&self, pending: Pending) {
        if self.namespace.gone.load(Ordering::SeqCst) {
            return pending.request.command_ended(Err(Failure::Lost));
        }
        self.queue.submit(pending);
    }
}

impl Device for NvmeDevice {
    fn info(&self) -> &DeviceInfo {
        &self.namespace.info
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn late_writes_ns(&self) -> u64 {
        let ends_others = self.offload.is_some_and(Extension::ends_others);
        if ends_others { 0 } else { self.lease.association.patience_ns() }
    }

    fn read(&self, offset: u64, buffer: Buffer) -> Submission {
        let length = buffer.len();
        match self.blocks(offset, length as u64) {
            Err(error) => Submission::done(Err(error), Some(buffer)),
            Ok(blocks) => {
                let (payload, range) = (Payload::Buffer(buffer), (blocks, self.blocks_max));
                self.request(Purpose::Repeatable, payload, length, range, |part, start| {
                    let data = Data::Read { start, length: self.bytes(part.count) };
                    (self.command(nvm::READ, part), data)
                })
            }
        }
    }

    fn write(&self, offset: u64, data: Slice, fua: bool) -> Submission {
        let length = data.len();
        match self.blocks(offset, length as u64) {
            Err(error) => Submission::done(Err(error), None),
            Ok(blocks) => {
                let (payload, range) = (Payload::Slice(data.clone()), (blocks, self.blocks_max));
                // The server may make a forced write of a write and a flush.
                let purpose = if fua { Purpose::Plain } else { Purpose::Repeatable };
                self.request(purpose, payload, length, range, |part, start| {
                    let command = self.command(nvm::WRITE, part);
                    let flags = if fua && !active(Mutant::FuaDropped) { FORCE_UNIT_ACCESS } else { 0 };
                    let command = command.with_dword(12, command.dword(12) | flags);
                    (command, Data::Write(data.slice(start, self.bytes(part.count))))
                })
            }
        }
    }

    fn offload(&self) -> Option<&dyn pinstripe_runtime::Offload> {
        self.offload.is_some().then_some(self as &dyn pinstripe_runtime::Offload)
    }

    fn flush(&self) -> Submission {
        let whole = Blocks { start: 0, count: 1 };
        self.request(Purpose::Plain, Payload::None, 0, (whole, 1), |_, _| {
            (Command::new(nvm::FLUSH, self.namespace.number), Data::None)
        })
    }

    fn discard(&self, offset: u64, length: u64) -> Submission {
        match self.blocks(offset, length) {
            Err(error) => Submission::done(Err(error), None),
            Ok(_) if !self.namespace.info.discards => {
                Submission::done(Err(DeviceError::of(DeviceErrorKind::Unsupported)), None)
            }
            Ok(blocks) => {
                self.request(Purpose::Plain, Payload::None, 0, (blocks, RANGE_BLOCKS_MAX), |part, _| {
                    let range = DatasetRange {
                        attributes: 0.into(),
                        blocks: u32::try_from(part.count).unwrap_or(0).into(),
                        start: part.start.into(),
                    };
                    let mut bytes = pinstripe_runtime::shard::buffer(size_of::<DatasetRange>());
                    bytes.copy_from_slice(range.as_bytes());
                    let command = Command::new(nvm::DATASET_MANAGEMENT, self.namespace.number)
                        .with_dword(11, DATASET_DEALLOCATE);
                    (command, Data::Write(bytes.freeze()))
                })
            }
        }
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Submission {
        match self.blocks(offset, length) {
            Err(error) => Submission::done(Err(error), None),
            Ok(_) if self.namespace.info.zeroes != ZeroedReads::Zero => {
                Submission::done(Err(DeviceError::of(DeviceErrorKind::Unsupported)), None)
            }
            Ok(blocks) => {
                self.request(Purpose::Repeatable, Payload::None, 0, (blocks, BLOCKS_MAX), |part, _| {
                    let command = self.command(nvm::WRITE_ZEROES, part);
                    (command.with_dword(12, command.dword(12) | DEALLOCATE), Data::None)
                })
            }
        }
    }
}
