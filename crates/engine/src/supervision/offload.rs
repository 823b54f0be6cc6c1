//! Commands to a member whose server computes, under the same supervision as reads and writes (C16).

use pinstripe_runtime::{
    Attachment, Buffer, DeviceErrorKind, Offload, OffloadLimits, Reducers, RequestInfo, Slice, Submission,
    Ticket, completion::Payload,
};

use super::{COMMAND, COMMIT, FIRST_PHASE, Supervised, is_flush};

impl Supervised {
    fn ask(&self, request: impl FnOnce(&dyn Offload) -> Submission) -> Submission {
        self.command(RequestInfo { kind: COMMAND, ..RequestInfo::default() }, 0, request)
    }

    /// A command of a first phase that brings nothing back, with so many bytes for the server.
    fn prepare(&self, sent: usize, request: impl FnOnce(&dyn Offload) -> Submission) -> Submission {
        self.command(RequestInfo { kind: FIRST_PHASE, ..RequestInfo::default() }, sent, request)
    }

    fn command(
        &self,
        about: RequestInfo,
        sent: usize,
        request: impl FnOnce(&dyn Offload) -> Submission,
    ) -> Submission {
        if let Some(error) = self.refused() {
            return Submission::done(Err(error), None);
        }
        let Some(server) = self.device.offload() else {
            return Submission::done(
                Err(pinstripe_runtime::DeviceError::of(DeviceErrorKind::Unsupported)),
                None,
            );
        };
        self.core.counters.commands.add(1);
        self.core.counters.sent_bytes.add(sent as u64);
        if is_flush(&*self.device, about.fua) {
            return self.flushing(about, Payload::None, || request(server));
        }
        self.watched(request(server), about)
    }

    /// A command of a first phase that brings `buffer` back.
    fn fetch(
        &self,
        offset: u64,
        buffer: Buffer,
        request: impl FnOnce(&dyn Offload, Buffer) -> Submission,
    ) -> Submission {
        let Some(server) = self.device.offload() else {
            let unsupported = pinstripe_runtime::DeviceError::of(DeviceErrorKind::Unsupported);
            return Submission::done(Err(unsupported), Some(buffer));
        };
        if let Some(error) = self.refused() {
            return Submission::done(Err(error), Some(buffer));
        }
        let length = buffer.len();
        self.core.counters.commands.add(1);
        self.core.counters.received_bytes.add(length as u64);
        let about = RequestInfo { kind: FIRST_PHASE, offset, read_bytes: length, fua: false };
        self.watched(request(server, buffer), about)
    }
}

impl Offload for Supervised {
    fn limits(&self) -> OffloadLimits {
        let none = OffloadLimits { operations: 0, range_bytes: 0 };
        self.device.offload().map_or(none, Offload::limits)
    }

    fn address(&self) -> String {
        self.device.offload().map(Offload::address).unwrap_or_default()
    }

    fn epoch(&self) -> Submission {
        self.ask(|server| server.epoch())
    }

    fn free_to_receive(&self) -> Submission {
        self.ask(|server| server.free_to_receive())
    }

    fn attach(&self, attachment: &Attachment) -> Submission {
        self.ask(|server| server.attach(attachment))
    }

    fn detach(&self, give_up: bool) -> Submission {
        self.ask(|server| server.detach(give_up))
    }

    fn partial_write(
        &self,
        ticket: Ticket,
        offset: u64,
        data: Slice,
        modify: bool,
        reducers: Reducers,
    ) -> Submission {
        self.prepare(data.len(), |server| server.partial_write(ticket, offset, data, modify, reducers))
    }

    fn contribute(&self, ticket: Ticket, offset: u64, length: u32, reducers: Reducers) -> Submission {
        self.prepare(0, |server| server.contribute(ticket, offset, length, reducers))
    }

    fn read_contribute(&self, ticket: Ticket, offset: u64, buffer: Buffer, reducers: Reducers) -> Submission {
        self.fetch(offset, buffer, |server, buffer| server.read_contribute(ticket, offset, buffer, reducers))
    }

    fn parity(
        &self,
        ticket: Ticket,
        offset: u64,
        length: u32,
        modify: bool,
        wait: u16,
        supplied: Option<Slice>,
    ) -> Submission {
        let sent = supplied.as_ref().map_or(0, Slice::len);
        self.prepare(sent, |server| server.parity(ticket, offset, length, modify, wait, supplied))
    }

    fn reduce(&self, ticket: Ticket, offset: u64, buffer: Buffer, coefficient: u8, wait: u16) -> Submission {
        self.fetch(offset, buffer, |server, buffer| server.reduce(ticket, offset, buffer, coefficient, wait))
    }

    fn commit(&self, ticket: Ticket, fua: bool) -> Submission {
        let about = RequestInfo { kind: COMMIT, fua, ..RequestInfo::default() };
        self.command(about, 0, |server| server.commit(ticket, fua))
    }

    fn resolve(&self, ticket: Ticket) -> Submission {
        self.ask(|server| server.resolve(ticket))
    }
}
