//! Devices that are no members yet: what is asked of them has an end too.
//!
//! Assembly reads superblocks, bitmaps and logs, and replays the logs, before any device is a member and
//! [supervised](crate::members); a device that is to join is read, attached and given a bitmap before it is
//! one. A device that hangs there must be an error that names it, not a wait without end. A request that was
//! given up stays with its memory (C16), and until it is over the device is asked nothing more.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
};

use pinstripe_runtime::{
    Attachment, Buffer, Completion, Device, DeviceError, DeviceErrorKind, DeviceInfo, DeviceSource, Observer,
    Offload, OffloadLimits, OverdueAction, Reducers, RequestInfo, Slice, Submission, Ticket, Watch,
    completion::Payload,
};

/// See the module.
pub(crate) struct Bounded {
    device: Rc<dyn Device>,
    limit: Rc<RequestLimit>,
    watch: Watch,
}

/// How long the device may take, and whether it took longer.
pub(crate) struct RequestLimit {
    limit_ns: u64,
    /// Requests that were given up and are not over.
    late: Cell<usize>,
}

impl RequestLimit {
    /// Requests that were given up and are not over: the device may still do what they asked for.
    pub(crate) fn late_requests(&self) -> u64 {
        self.late.get() as u64
    }
}

impl Bounded {
    /// `device`, which may take `limit_ns` for a request; 0 for ever.
    pub(crate) fn around(device: Rc<dyn Device>, limit_ns: u64) -> Rc<dyn Device> {
        Self::observed(device, limit_ns).0
    }

    /// The same, and how it does: that can be asked as long as requests are under way, whether or not the
    /// handle is kept.
    pub(crate) fn observed(device: Rc<dyn Device>, limit_ns: u64) -> (Rc<dyn Device>, Rc<RequestLimit>) {
        let limit = Rc::new(RequestLimit { limit_ns, late: Cell::new(0) });
        if limit_ns == 0 {
            return (device, limit);
        }
        let watch = Watch::new(Rc::clone(&limit) as Rc<dyn Observer>, limit_ns);
        (Rc::new(Self { device, limit: Rc::clone(&limit), watch }), limit)
    }

    fn refused(&self) -> Option<DeviceError> {
        (self.limit.late.get() > 0).then(|| DeviceError::of(DeviceErrorKind::TimedOut))
    }

    fn watched(&self, submission: Submission, about: RequestInfo) -> Submission {
        if submission.is_pending() {
            self.watch.add(&submission, about);
        }
        submission
    }

    /// Anything that has no buffer to give back.
    fn ask(&self, request: impl FnOnce(&dyn Device) -> Submission) -> Submission {
        match self.refused() {
            Some(error) => Submission::done(Err(error), None),
            None => self.watched(request(&*self.device), RequestInfo::default()),
        }
    }
}

/// Devices that are joining, or were to: by name, how each does. What one was asked for in vain it may still
/// do (C16).
#[derive(Default)]
pub(crate) struct JoiningDevices(RefCell<Vec<(String, Rc<RequestLimit>)>>);

impl JoiningDevices {
    /// A handle to a device that may take `limit_ns` for a request; 0 for ever.
    pub(crate) fn attach(
        &self,
        source: &dyn DeviceSource,
        limit_ns: u64,
    ) -> Result<Rc<dyn Device>, DeviceError> {
        let (device, limit) = Bounded::observed(source.attach()?, limit_ns);
        let mut known = self.0.borrow_mut();
        known.retain(|(_, limit)| limit.late_requests() > 0 || Rc::strong_count(limit) > 1);
        known.push((source.name(), limit));
        Ok(device)
    }

    /// Requests to a device of this name that were given up and are not over.
    pub(crate) fn late_requests(&self, name: &str) -> u64 {
        let known = self.0.borrow();
        let same = known.iter().filter(|(device, _)| device == name);
        same.map(|(_, limit)| limit.late_requests()).sum()
    }
}

impl Device for Bounded {
    fn info(&self) -> &DeviceInfo {
        self.device.info()
    }

    fn read(&self, offset: u64, buffer: Buffer) -> Submission {
        if let Some(error) = self.refused() {
            return Submission::done(Err(error), Some(buffer));
        }
        let about = RequestInfo { offset, read_bytes: buffer.len(), ..RequestInfo::default() };
        self.watched(self.device.read(offset, buffer), about)
    }

    fn write(&self, offset: u64, data: Slice, fua: bool) -> Submission {
        self.ask(|device| device.write(offset, data, fua))
    }

    fn flush(&self) -> Submission {
        self.ask(|device| device.flush())
    }

    fn discard(&self, offset: u64, length: u64) -> Submission {
        self.ask(|device| device.discard(offset, length))
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Submission {
        self.ask(|device| device.write_zeroes(offset, length))
    }

    fn offload(&self) -> Option<&dyn Offload> {
        self.device.offload().map(|_| self as &dyn Offload)
    }

    fn is_remote(&self) -> bool {
        self.device.is_remote()
    }

    fn late_writes_ns(&self) -> u64 {
        self.device.late_writes_ns()
    }
}

impl Bounded {
    fn command(&self, request: impl FnOnce(&dyn Offload) -> Submission) -> Submission {
        let none = || Submission::done(Err(DeviceError::of(DeviceErrorKind::Unsupported)), None);
        self.ask(|device| device.offload().map_or_else(none, request))
    }
}

/// A spare is attached and detached like a member; operations are for members only.
impl Offload for Bounded {
    fn limits(&self) -> OffloadLimits {
        let none = OffloadLimits { operations: 0, range_bytes: 0 };
        self.device.offload().map_or(none, Offload::limits)
    }

    fn address(&self) -> String {
        self.device.offload().map(Offload::address).unwrap_or_default()
    }

    fn epoch(&self) -> Submission {
        self.command(|server| server.epoch())
    }

    fn free_to_receive(&self) -> Submission {
        self.command(|server| server.free_to_receive())
    }

    fn attach(&self, attachment: &Attachment) -> Submission {
        self.command(|server| server.attach(attachment))
    }

    fn detach(&self, give_up: bool) -> Submission {
        self.command(|server| server.detach(give_up))
    }

    fn partial_write(&self, _: Ticket, _: u64, _: Slice, _: bool, _: Reducers) -> Submission {
        refused(None)
    }

    fn contribute(&self, _: Ticket, _: u64, _: u32, _: Reducers) -> Submission {
        refused(None)
    }

    fn read_contribute(&self, _: Ticket, _: u64, buffer: Buffer, _: Reducers) -> Submission {
        refused(Some(buffer))
    }

    fn parity(&self, _: Ticket, _: u64, _: u32, _: bool, _: u16, _: Option<Slice>) -> Submission {
        refused(None)
    }

    fn reduce(&self, _: Ticket, _: u64, buffer: Buffer, _: u8, _: u16) -> Submission {
        refused(Some(buffer))
    }

    fn commit(&self, _: Ticket, _: bool) -> Submission {
        refused(None)
    }

    fn resolve(&self, ticket: Ticket) -> Submission {
        self.command(|server| server.resolve(ticket))
    }
}

fn refused(buffer: Option<Buffer>) -> Submission {
    Submission::done(Err(DeviceError::of(DeviceErrorKind::Refused)), buffer)
}

impl Observer for RequestLimit {
    fn overdue(&self, _: RequestInfo, age_ns: u64) -> OverdueAction {
        if age_ns < self.limit_ns {
            return OverdueAction::WaitUntil(self.limit_ns);
        }
        OverdueAction::GiveUp(DeviceErrorKind::TimedOut)
    }

    fn given_up(&self, count: usize, _: DeviceErrorKind) {
        self.late.set(self.late.get() + count);
    }

    fn caught_up(&self) {}

    fn failed(&self, _: RequestInfo, _: DeviceError) {}

    fn settled(&self) {
        self.late.set(self.late.get().saturating_sub(1));
    }

    fn retry(&self, completion: Completion, _: RequestInfo, payload: Payload) {
        // Assembly can be repeated as a whole.
        completion.with_payload(|place| *place = payload);
        completion.finish(Err(DeviceError::of(DeviceErrorKind::Busy)));
    }
}
