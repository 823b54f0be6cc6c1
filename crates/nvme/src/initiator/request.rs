//! What a queue has been asked for: a request is one or more commands on the same queue.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use pinstripe_runtime::completion::Payload;
use pinstripe_runtime::{Buffer, DeviceError, DeviceErrorKind, Signal, Slice, shard};

use crate::wire::command::Command;
use crate::wire::status::Status;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failure {
    /// The server says so.
    Status(Status),
    /// The association has ended; whether the command was carried out is unknown.
    Lost,
}

/// What waits for a request.
enum Sink {
    /// A device's request: its memory is with the completion.
    Device(Cell<Option<pinstripe_runtime::Completion>>),
    /// A command of our own.
    Own { buffer: RefCell<Option<Buffer>>, done: Cell<bool>, changed: Signal },
}

/// What a request is for, which says what its answer means.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Plain,
    /// A read or a write that need not be durable: the server may be asked for it again.
    Repeatable,
    /// Of the first phase of an operation, or of a reduction: it has changed nothing.
    FirstPhase,
    /// Its result is what is asked for.
    Question,
}

/// See the module.
pub(super) struct Request {
    purpose: Purpose,
    sink: Sink,
    /// Bytes of data in all.
    length: usize,
    commands_left: Cell<u32>,
    failure: Cell<Option<Failure>>,
    /// Result of the last command.
    result: Cell<u64>,
}

impl Request {
    /// Of a device, made of so many commands.
    pub fn of_device(
        purpose: Purpose,
        completion: pinstripe_runtime::Completion,
        length: usize,
        commands: u32,
    ) -> Rc<Self> {
        Self::new(purpose, Sink::Device(Cell::new(Some(completion))), length, commands)
    }

    /// One command of an operation.
    pub fn of_operation(
        completion: pinstripe_runtime::Completion,
        length: usize,
        purpose: Purpose,
    ) -> Rc<Self> {
        Self::new(purpose, Sink::Device(Cell::new(Some(completion))), length, 1)
    }

    /// Of our own; data that is read goes to `buffer`.
    pub fn own(buffer: Option<Buffer>) -> Rc<Self> {
        let length = buffer.as_ref().map_or(0, Buffer::len);
        let buffer = RefCell::new(buffer);
        let sink = Sink::Own { buffer, done: Cell::new(false), changed: Signal::default() };
        Self::new(Purpose::Plain, sink, length, 1)
    }

    fn new(purpose: Purpose, sink: Sink, length: usize, commands: u32) -> Rc<Self> {
        let (commands_left, failure, result) = (Cell::new(commands), Cell::new(None), Cell::new(0));
        Rc::new(Self { purpose, sink, length, commands_left, failure, result })
    }

    /// The buffer of a read, while data is being received into it.
    pub fn take_buffer(&self) -> Option<Buffer> {
        match &self.sink {
            Sink::Device(cell) => {
                let completion = cell.take()?;
                let payload = completion.with_payload(|payload| std::mem::replace(payload, Payload::None));
                cell.set(Some(completion));
                if let Payload::Buffer(buffer) = payload { Some(buffer) } else { None }
            }
            Sink::Own { buffer, .. } => buffer.borrow_mut().take(),
        }
    }

    /// Gives it back.
    pub fn put_buffer(&self, back: Option<Buffer>) {
        // A stream may have kept the memory: then the request gets other memory, and an error.
        let back = back.unwrap_or_else(|| shard::buffer(self.length));
        match &self.sink {
            Sink::Device(cell) => {
                if let Some(completion) = cell.take() {
                    completion.with_payload(|payload| *payload = Payload::Buffer(back));
                    cell.set(Some(completion));
                }
            }
            Sink::Own { buffer, .. } => *buffer.borrow_mut() = Some(back),
        }
    }

    /// One of its commands has ended; the last one ends the request.
    pub fn command_ended(&self, result: Result<u64, Failure>) {
        match result {
            Ok(result) => self.result.set(result),
            // A lost association says less than an answer, so it isn't hidden by one.
            Err(failure) if self.failure.get() != Some(Failure::Lost) => self.failure.set(Some(failure)),
            Err(_) => {}
        }
        self.commands_left.set(self.commands_left.get() - 1);
        if self.commands_left.get() > 0 {
            return;
        }
        match &self.sink {
            Sink::Device(cell) => {
                if let Some(completion) = cell.take() {
                    completion.finish(self.outcome());
                }
            }
            Sink::Own { done, changed, .. } => {
                done.set(true);
                changed.notify();
            }
        }
    }

    fn outcome(&self) -> Result<usize, DeviceError> {
        match (self.failure.get(), self.purpose) {
            (None, Purpose::Question) => Ok((self.result.get() & 0xffff_ffff).try_into().unwrap_or(0)),
            (None, _) => Ok(self.length),
            (Some(failure), Purpose::FirstPhase) => Err(failure.without_effect()),
            (Some(failure), Purpose::Repeatable) if failure.is_for_now() => {
                Err(DeviceError::of(DeviceErrorKind::Busy))
            }
            (Some(failure), _) => Err(failure.into()),
        }
    }

    /// Waits for the end of a request of our own: the result and the buffer.
    pub async fn wait(&self) -> Result<(u64, Option<Buffer>), Failure> {
        let Sink::Own { buffer, done, changed } = &self.sink else { return Err(Failure::Lost) };
        changed.wait_until(|| done.get()).await;
        match self.failure.get() {
            Some(failure) => Err(failure),
            None => Ok((self.result.get(), buffer.borrow_mut().take())),
        }
    }
}

impl Failure {
    /// Whether the server says so of now only: it was short of something, or broke the command off. Of a
    /// flush this would not say that nothing was lost (C5).
    fn is_for_now(self) -> bool {
        let Self::Status(status) = self else { return false };
        let codes = [Status::INTERNAL.code(), Status::INTERRUPTED.code()];
        !status.is_final() && codes.contains(&status.code())
    }

    /// The error of a command that has changed nothing, so that there is another way: unless the medium or
    /// the server itself has failed, it is refused.
    fn without_effect(self) -> DeviceError {
        let error = DeviceError::from(self);
        DeviceError::of(match error.kind {
            kind @ (DeviceErrorKind::Media | DeviceErrorKind::Gone | DeviceErrorKind::Invalid) => kind,
            _ => DeviceErrorKind::Refused,
        })
    }
}

impl From<Failure> for DeviceError {
    fn from(failure: Failure) -> Self {
        let Failure::Status(status) = failure else { return Self::of(DeviceErrorKind::Gone) };
        let code = status.code();
        let is = |other: Status| code == other.code();
        Self::of(if status.is_media() {
            DeviceErrorKind::Media
        } else if is(Status::CAPACITY_EXCEEDED) {
            DeviceErrorKind::NoSpace
        } else if is(Status::FENCED) {
            // The member is well: it is this host that must stop.
            DeviceErrorKind::Fenced
        } else if is(Status::RESTARTED) {
            DeviceErrorKind::Gone
        } else if status.is_offload() {
            DeviceErrorKind::Refused
        } else if is(Status::LBA_OUT_OF_RANGE) {
            DeviceErrorKind::Invalid
        } else if is(Status::INVALID_OPCODE) || is(Status::INVALID_FIELD) {
            DeviceErrorKind::Unsupported
        } else if is(Status::INVALID_NAMESPACE)
            || is(Status::NAMESPACE_NOT_READY)
            || is(Status::RESERVATION_CONFLICT)
        {
            // A host that another host has fenced off must not touch the namespace again.
            DeviceErrorKind::Gone
        } else {
            DeviceErrorKind::Other
        })
    }
}

/// Data of a command.
pub(super) enum Data {
    None,
    /// So many bytes go to the request's buffer, from this offset.
    Read {
        start: usize,
        length: usize,
    },
    Write(Slice),
}

/// A command that waits to be sent, or for its answer.
pub(super) struct Pending {
    /// Without identifier and descriptor, which the queue fills in.
    pub command: Command,
    pub data: Data,
    pub request: Rc<Request>,
    /// Times that it was sent.
    pub tries: u8,
    /// Bytes received or sent so far.
    pub moved: usize,
    /// A digest didn't fit.
    pub damaged: bool,
    /// When it was sent last, or began to wait for that.
    pub since: u64,
    /// It is sent before the queue is open: Connect, and what authenticates.
    pub opens: bool,
}

impl Pending {
    pub fn new(command: Command, data: Data, request: &Rc<Request>) -> Self {
        let request = Rc::clone(request);
        Self { command, data, request, tries: 0, moved: 0, damaged: false, since: 0, opens: false }
    }
}
