//! One connection: the receiver, the tasks of its commands, and the watcher.
//!
//! The receiver never waits for a command. A write without its data in the capsule becomes a task: it waits
//! for memory, asks for the data (R2T) and goes on when the receiver has put all of it in place. The watcher
//! has the session end when its controller dies, and tells the host events.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};

use pinstripe_export::BlockService;
use pinstripe_export::outgoing::PATIENCE_NANOSECONDS;
use pinstripe_runtime::{Buffer, Signal, Slice, block_bytes, shard};
use zerocopy::FromZeros;

use super::authenticate::Gate;
use super::connect::{self, Queue};
use super::subsystem::Controller;
use super::{
    CAPSULE_BYTES_MAX, Inner, SessionEnd, TRANSFER_BYTES_MAX, admin, attach, authenticate, io, offload,
};
use crate::framing::{BLANK, Encoding, Pdu, Role};
use crate::inbound::{Ended, Inbound};
use crate::link::Link;
use crate::mutants::{Mutant, active};
use crate::wire::command::{Command, Completion, DataPlace, admin as opcode, fabrics};
use crate::wire::offload::opcode::PEER;
use crate::wire::pdu::{FatalError, ResponseCapsule, Termination, Transfer, flag, kind};
use crate::wire::status::Status;

/// Time from the first byte to a granted Connect.
const CONNECT_NANOSECONDS: u64 = 30_000_000_000;
/// How often a watcher without a keep-alive timer looks whether it got one.
const LOOK_NANOSECONDS: u64 = 1_000_000_000;
/// Most bytes of data in the capsule of an admin command ("In-Capsule Data").
const ADMIN_CAPSULE_BYTES: u32 = 8 << 10;
/// Event requests that may be outstanding.
pub(super) const EVENT_REQUESTS_MAX: u8 = 4;
/// Data of a read up to this is copied into a batch with other answers; larger data is sent from where it was
/// read.
const COPY_BYTES: usize = 8 << 10;
/// Room before a larger read's data for its header. A page, to keep the data aligned.
const HEADROOM: usize = 4 << 10;

/// Data that the host was asked for.
struct Incoming {
    command_id: u16,
    length: usize,
    received: usize,
    /// Absent while the receiver fills it.
    buffer: Option<Buffer>,
    state: IncomingState,
    waker: Option<Waker>,
    opcode: u8,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum IncomingState {
    Waiting,
    /// All has come; whether its digests fit.
    Whole(bool),
    /// The connection has ended.
    Broken,
}

/// Data of a command, in one aligned buffer, and the bytes of memory that were acquired for it.
pub(super) struct HostData {
    pub buffer: Buffer,
    pub held: usize,
}

/// A queue of a controller.
pub(super) struct Session<S> {
    pub inner: Rc<Inner<S>>,
    pub link: Rc<Link>,
    pub controller: Arc<Controller>,
    pub queue: u16,
    entries: u16,
    flow_control: bool,
    encoding: Encoding,
    /// Entries that were taken, modulo the queue's size.
    head: Cell<u16>,
    /// Commands that were not answered.
    outstanding: Cell<u16>,
    /// Tasks of commands.
    tasks: Cell<usize>,
    incoming: RefCell<Vec<Option<Incoming>>>,
    event_requests: RefCell<Vec<u16>>,
    pub gate: Gate,
    /// The queue's number is this connection's.
    claimed: Cell<bool>,
    /// Among the connections of its shard.
    number: u64,
    pub ended: Cell<bool>,
    pub changed: Signal,
}

/// Runs a connection to its end; `link`'s sender must be running.
/// `number` names it among the connections of its shard.
pub(super) async fn run<S: BlockService>(inner: &Rc<Inner<S>>, link: &Rc<Link>, number: u64) -> SessionEnd {
    let mut inbound = Inbound::new(Rc::clone(link), Role::Controller);
    let begin = async {
        let encoding = connect::initialize(&mut inbound, link).await?;
        connect::connect(inner, &mut inbound, link, encoding).await
    };
    let ended = match shard::timeout(CONNECT_NANOSECONDS, begin).await {
        Some(Ok(queue)) => Session::new(inner, link, number, queue).run(&mut inbound).await,
        Some(Err(ended)) => {
            let end = End::from(ended);
            close(link, &inbound, &end).await;
            end
        }
        None => {
            link.cut();
            link.closed().await;
            return SessionEnd::Timeout;
        }
    };
    match ended {
        End::Stream(Ended::Closed) => SessionEnd::Closed,
        End::Stream(Ended::Fatal(error, _)) => SessionEnd::Violation(error),
        End::Terminated(status, information) => SessionEnd::Terminated(status, information),
    }
}

enum End {
    Stream(Ended),
    Terminated(u16, u32),
}

impl From<Ended> for End {
    fn from(ended: Ended) -> Self {
        Self::Stream(ended)
    }
}

/// Closes the connection; a host that broke the protocol is told so first.
async fn close(link: &Link, inbound: &Inbound, end: &End) {
    if let End::Stream(Ended::Fatal(error, at)) = end {
        terminate(link, inbound.framer.header(), *error, *at);
        return link.finish().await;
    }
    link.cut();
    link.closed().await;
}

fn terminate(link: &Link, header: &[u8], error: FatalError, at: u32) {
    let mut termination = Termination::new_zeroed();
    termination.status = (error as u16).into();
    termination.information = at.into();
    let mut encoded = Encoding::default().header(kind::C2H_TERM_REQ, 0, &termination, 0).bytes().to_vec();
    encoded.extend_from_slice(header);
    let length = u32::try_from(encoded.len()).unwrap_or(0);
    encoded[4..8].copy_from_slice(&length.to_le_bytes());
    link.send_copy(&[&encoded]);
}

impl<S: BlockService> Session<S> {
    fn new(inner: &Rc<Inner<S>>, link: &Rc<Link>, number: u64, queue: Queue) -> Rc<Self> {
        let authenticates = inner.subsystem.authentication().is_some();
        if !authenticates {
            inner.links.settle(number);
        }
        Rc::new(Self {
            inner: Rc::clone(inner),
            link: Rc::clone(link),
            controller: queue.controller,
            queue: queue.number,
            entries: queue.entries,
            flow_control: queue.flow_control,
            encoding: queue.encoding,
            head: Cell::new(1 % queue.entries),
            outstanding: Cell::new(0),
            tasks: Cell::new(0),
            incoming: RefCell::default(),
            event_requests: RefCell::default(),
            gate: Gate::new(authenticates, queue.number),
            // Without authentication Connect has taken it.
            claimed: Cell::new(!authenticates || active(Mutant::NumberHeldUnproven)),
            number,
            ended: Cell::new(false),
            changed: Signal::default(),
        })
    }

    async fn run(self: &Rc<Self>, inbound: &mut Inbound) -> End {
        let watcher = Rc::clone(self);
        shard::spawn(async move { watcher.watch().await });
        if self.inner.subsystem.authentication().is_some() {
            let session = Rc::clone(self);
            shard::spawn(async move { session.watch_gate().await });
        }
        let end = loop {
            self.link.room().await;
            if let Err(end) = self.receive(inbound).await {
                break end;
            }
        };
        self.ended.set(true);
        self.changed.notify();
        self.break_transfers();
        if self.queue == 0 {
            self.controller.kill();
        }
        self.controller.changed.notify();
        close(&self.link, inbound, &end).await;
        self.changed.wait_until(|| self.tasks.get() == 0).await;
        self.controller.leave(self.claimed.get().then_some(self.queue));
        end
    }

    /// The host has proved its identity. Now, and not before, the queue's number is taken: a connection that
    /// proves nothing must not keep it from one that does. False if another one was first.
    pub fn proved(&self) -> bool {
        if !self.claimed.get() {
            self.claimed.set(self.controller.add_queue(self.queue));
        }
        if !self.claimed.get() {
            self.link.cut();
            return false;
        }
        self.controller.proved();
        self.inner.links.settle(self.number);
        self.gate.open();
        true
    }

    /// Takes one PDU.
    async fn receive(self: &Rc<Self>, inbound: &mut Inbound) -> Result<(), End> {
        match inbound.next().await? {
            Pdu::Command(command, length) => self.command(inbound, command, length).await,
            Pdu::Data(transfer, flags) => self.data(inbound, transfer, flags).await,
            Pdu::Terminated(status, information) => Err(End::Terminated(status, information)),
            Pdu::Initialize(_) | Pdu::Response(_) | Pdu::Ready(_) => {
                Err(Ended::Fatal(FatalError::Sequence, 0).into())
            }
        }
    }

    async fn command(
        self: &Rc<Self>,
        inbound: &mut Inbound,
        command: Command,
        length: u32,
    ) -> Result<(), End> {
        let limit = if self.queue == 0 { ADMIN_CAPSULE_BYTES } else { CAPSULE_BYTES_MAX };
        if length > limit {
            return Err(Ended::Fatal(FatalError::DataTransferLimit, 4).into());
        }
        let capsule = if length == 0 {
            None
        } else {
            Some(self.take_data(inbound, command.opcode, length, (shard::buffer(length as usize), 0)).await?)
        };
        if self.gate.was_open() && self.controller.ends_silent(shard::now()) {
            return Err(Ended::Closed.into());
        }
        self.head.set((self.head.get() + 1) % self.entries);
        if self.outstanding.get() >= self.entries {
            // The host has more commands outstanding than it said that it would.
            return Err(Ended::Fatal(FatalError::Sequence, 0).into());
        }
        self.outstanding.set(self.outstanding.get() + 1);
        if self.queue == 0 {
            self.controller.heard.store(shard::now(), Ordering::Relaxed);
            if command.opcode == opcode::ASYNC_EVENT && self.gate.is_open() {
                self.event_request(&command);
                return Ok(());
            }
        }
        self.tasks.set(self.tasks.get() + 1);
        let held = if length == 0 { 0 } else { block_bytes(length as usize) };
        // It has come already, and a queue has only so many commands.
        self.link.force(held);
        let session = Rc::clone(self);
        shard::spawn(async move {
            session.execute(command, capsule).await;
            session.link.release(held);
            session.tasks.set(session.tasks.get() - 1);
            if session.tasks.get() == 0 {
                session.changed.notify();
            }
        });
        Ok(())
    }

    fn event_request(&self, command: &Command) {
        let mut requests = self.event_requests.borrow_mut();
        if requests.len() >= usize::from(EVENT_REQUESTS_MAX) {
            return self.complete(command, Err(Status::ASYNC_EVENT_LIMIT));
        }
        requests.push(command.id.get());
        drop(requests);
        self.controller.changed.notify();
    }

    async fn execute(&self, command: Command, capsule: Option<(Buffer, bool)>) {
        let capsule = match capsule {
            Some((_, false)) => return self.complete(&command, Err(Status::TRANSIENT_TRANSPORT)),
            Some((buffer, true)) => Some(buffer),
            None => None,
        };
        if !self.gate.lets_through(&command) {
            return self.complete(&command, Err(Status::AUTHENTICATION_REQUIRED));
        }
        if authenticate::is_for(self, &command) {
            return authenticate::execute(self, &command, capsule).await;
        }
        if command.opcode == fabrics::OPCODE {
            let disconnects = command.fabrics_kind() == fabrics::DISCONNECT && self.queue > 0;
            self.complete(&command, self.fabrics(&command));
            if disconnects {
                self.link.finish().await;
            }
        } else if !self.controller.is_ready() {
            self.complete(&command, Err(Status::COMMAND_SEQUENCE));
        } else if self.queue == 0
            && offload::is_admin(command.opcode)
            && let Some(server) = self.inner.subsystem.offload()
        {
            Box::pin(attach::execute(self, server, &command, capsule)).await;
        } else if self.queue == 0 {
            admin::execute(self, &command).await;
        } else {
            io::execute(self, &command, capsule).await;
        }
    }

    fn fabrics(&self, command: &Command) -> Result<u64, Status> {
        match command.fabrics_kind() {
            fabrics::PROPERTY_GET if self.queue == 0 => admin::property_get(self, command),
            fabrics::PROPERTY_SET if self.queue == 0 => admin::property_set(self, command),
            fabrics::DISCONNECT if self.queue > 0 => Ok(0),
            fabrics::DISCONNECT => Err(Status::INVALID_QUEUE_TYPE),
            fabrics::CONNECT => Err(Status::COMMAND_SEQUENCE),
            _ => Err(Status::INVALID_OPCODE),
        }
    }

    /// Answers a command without data.
    pub fn complete(&self, command: &Command, result: Result<u64, Status>) {
        let (status, result) = match result {
            Ok(result) => (Status::SUCCESS, result),
            Err(status) => (status, 0),
        };
        self.respond(command.id.get(), status, result);
    }

    /// Refuses a command with a result.
    pub fn refuse(&self, command: &Command, status: Status, result: u64) {
        self.respond(command.id.get(), status, result);
    }

    fn respond(&self, id: u16, status: Status, result: u64) {
        self.answered();
        let mut completion = Completion::new(id, status, result);
        completion.queue_head = if self.flow_control { self.head.get().into() } else { 0xffff.into() };
        let capsule = ResponseCapsule { common: BLANK, completion };
        self.link.send_copy(&[self.encoding.header(kind::CAPSULE_RESP, 0, &capsule, 0).bytes()]);
    }

    fn answered(&self) {
        self.outstanding.set(self.outstanding.get() - 1);
    }

    fn data_header(&self, id: u16, length: u32, answers: bool) -> crate::framing::Encoded {
        let success = if answers && !self.flow_control { flag::SUCCESS } else { 0 };
        let header = Transfer {
            common: BLANK,
            command_id: id.into(),
            tag: 0.into(),
            offset: 0.into(),
            length: length.into(),
            reserved: 0.into(),
        };
        self.encoding.header(kind::C2H_DATA, flag::LAST | success, &header, length)
    }

    /// Memory for an answer of `length` bytes that is to be copied; `None` at the connection's end. It is
    /// acquired before the answer is made: what the host doesn't take must not pile up.
    pub async fn answer_memory(&self, length: usize) -> Option<usize> {
        if active(Mutant::AnswersUncounted) {
            return Some(0);
        }
        let held = block_bytes(length);
        self.link.acquire(held).await.then_some(held)
    }

    /// Answers a command with `data`, which is copied, if there is any; the memory that was acquired for it
    /// goes back when it is sent.
    pub fn answer(&self, command: &Command, held: usize, data: Result<&[u8], Status>) {
        match data {
            Ok(data) => self.send_held(command, data, held),
            Err(status) => {
                self.link.release(held);
                self.complete(command, Err(status));
            }
        }
    }

    /// Answers a command with a few bytes, for which no memory was acquired.
    pub fn send_data(&self, command: &Command, data: &[u8]) {
        self.send_held(command, data, 0);
    }

    /// Not more than the host has room for.
    fn send_held(&self, command: &Command, data: &[u8], held: usize) {
        let room = match command.data() {
            Ok(DataPlace::Transport(room)) => Ok(room as usize),
            Ok(DataPlace::Capsule(_)) => Err(Status::SGL_TYPE_INVALID),
            Err(status) => Err(status),
        };
        let data = room.map(|room| &data[..data.len().min(room)]);
        let length = data.map(|data| u32::try_from(data.len()).unwrap_or(0));
        match (data, length) {
            (Ok(data), Ok(length @ 1..)) => {
                let id = command.id.get();
                self.copy_data(id, length, data, held);
                self.data_sent(id);
            }
            (_, length) => {
                self.link.release(held);
                self.complete(command, length.map(|_| 0));
            }
        }
    }

    /// Sends the data that answers a command, with other messages if there are any.
    fn copy_data(&self, id: u16, length: u32, data: &[u8], held: usize) {
        let header = self.data_header(id, length, true);
        let trailer = self.encoding.trailer(data);
        let trailer = trailer.as_ref().map_or(&[][..], |digest| &digest[..]);
        if data.len() <= COPY_BYTES {
            return self.link.send_copy_held(&[header.bytes(), data, trailer], held);
        }
        // With the header in one piece it might take twice the memory that was acquired.
        let mut copy = shard::buffer(data.len());
        copy.copy_from_slice(data);
        self.link.send_copy(&[header.bytes()]);
        self.link.send(copy.freeze(), held);
        self.link.send_copy(&[trailer]);
    }

    /// After the data: the completion, unless the data carried it.
    fn data_sent(&self, id: u16) {
        if self.flow_control {
            self.respond(id, Status::SUCCESS, 0);
        } else {
            self.answered();
        }
    }

    /// A buffer for a read of `length` bytes, and the memory acquired for it; `None` at the connection's end.
    pub async fn read_buffer(&self, length: usize) -> Option<ReadBuffer> {
        let headroom = if length <= COPY_BYTES { 0 } else { HEADROOM };
        let held = block_bytes(headroom + length);
        if !self.link.acquire(held).await {
            return None;
        }
        let mut data = shard::buffer(headroom + length);
        let head = data.split_to(headroom);
        Some(ReadBuffer { head, data, held })
    }

    /// Answers a read with the data that was read.
    pub fn send_read(&self, command: &Command, mut head: Buffer, data: Buffer, held: usize) {
        let id = command.id.get();
        let length = data.len();
        if head.is_empty() {
            self.copy_data(id, u32::try_from(length).unwrap_or(0), &data, held);
            return self.data_sent(id);
        }
        let header = self.data_header(id, u32::try_from(length).unwrap_or(0), true);
        let trailer = self.encoding.trailer(&data);
        let start = HEADROOM - header.bytes().len();
        head[start..].copy_from_slice(header.bytes());
        // Panics if the service gave back another buffer: that would be a mistake of our own, and a wrong
        // byte.
        head.unsplit(data);
        self.link.send(head.freeze().slice(start, header.bytes().len() + length), held);
        if let Some(digest) = trailer {
            self.link.send_copy(&[&digest]);
        }
        self.data_sent(id);
    }

    /// Sends a command's data, which doesn't answer it. False at the connection's end.
    pub async fn send_slice(&self, command: &Command, data: Slice) -> bool {
        let held = block_bytes(data.len());
        if !self.link.acquire(held).await {
            return false;
        }
        let header = self.data_header(command.id.get(), u32::try_from(data.len()).unwrap_or(0), false);
        let trailer = self.encoding.trailer(&data);
        self.link.send_copy(&[header.bytes()]);
        self.link.send(data, held);
        if let Some(digest) = trailer {
            self.link.send_copy(&[&digest]);
        }
        true
    }

    /// The data of a command: from its capsule, or asked for. `Ok(None)` at the connection's end.
    pub async fn host_data(
        &self,
        command: &Command,
        capsule: Option<Buffer>,
        length: u32,
    ) -> Result<Option<HostData>, Status> {
        self.host_data_and(command, capsule, length, 0).await
    }

    /// The same with memory for `more` bytes, which is in `held` too. All of it is reserved at once: a
    /// command that held one part and waited for the other could wait for ever.
    pub async fn host_data_and(
        &self,
        command: &Command,
        capsule: Option<Buffer>,
        length: u32,
        more: usize,
    ) -> Result<Option<HostData>, Status> {
        match (command.data()?, capsule) {
            (DataPlace::Capsule(told), Some(buffer)) if told == length && buffer.len() == length as usize => {
                let there = more == 0 || self.link.acquire(more).await;
                Ok(there.then_some(HostData { buffer, held: more }))
            }
            (DataPlace::Transport(told), None) if told == length => self.ask(command, length, more).await,
            _ => Err(Status::DATA_LENGTH_INVALID),
        }
    }

    /// Asks the host for data, when there is memory for it.
    async fn ask(&self, command: &Command, length: u32, more: usize) -> Result<Option<HostData>, Status> {
        let held = block_bytes(length as usize) + more;
        if !self.link.acquire(held).await {
            return Ok(None);
        }
        if self.ended.get() {
            self.link.release(held);
            return Ok(None);
        }
        let buffer = Some(shard::buffer(length as usize));
        let incoming = Incoming {
            command_id: command.id.get(),
            length: length as usize,
            received: 0,
            buffer,
            state: IncomingState::Waiting,
            waker: None,
            opcode: command.opcode,
        };
        let tag = {
            let mut table = self.incoming.borrow_mut();
            let free = table.iter().position(Option::is_none).unwrap_or(table.len());
            if free == table.len() {
                table.push(None);
            }
            table[free] = Some(incoming);
            free
        };
        let header = Transfer {
            common: BLANK,
            command_id: command.id,
            tag: u16::try_from(tag).unwrap_or(u16::MAX).into(),
            offset: 0.into(),
            length: length.into(),
            reserved: 0.into(),
        };
        self.link.send_copy(&[self.encoding.header(kind::R2T, 0, &header, 0).bytes()]);
        let incoming = self.await_incoming(tag).await;
        match (incoming.state, incoming.buffer) {
            (IncomingState::Whole(true), Some(buffer)) => Ok(Some(HostData { buffer, held })),
            (IncomingState::Whole(false), _) => {
                self.link.release(held);
                Err(Status::TRANSIENT_TRANSPORT)
            }
            _ => {
                self.link.release(held);
                Ok(None)
            }
        }
    }

    /// Waits for the data of a transfer. A host that was asked for data and sends nothing for long must not
    /// keep its memory.
    async fn await_incoming(&self, tag: usize) -> Incoming {
        loop {
            let received = self.link.received();
            let whole = poll_fn(|cx| self.poll_incoming(tag, cx.waker()));
            match shard::timeout(PATIENCE_NANOSECONDS, whole).await {
                Some(incoming) => return incoming,
                None if self.link.received() == received => self.link.cut(),
                None => {}
            }
        }
    }

    fn poll_incoming(&self, tag: usize, waker: &Waker) -> Poll<Incoming> {
        let mut table = self.incoming.borrow_mut();
        match &mut table[tag] {
            Some(incoming) if incoming.state == IncomingState::Waiting => {
                incoming.waker = Some(waker.clone());
                Poll::Pending
            }
            slot => slot.take().map_or(Poll::Pending, Poll::Ready),
        }
    }

    /// Data of a command, put into a buffer at an offset, and whether it is intact. Parts of sums tell what
    /// the link can take.
    async fn take_data(
        &self,
        inbound: &mut Inbound,
        opcode: u8,
        length: u32,
        (buffer, offset): (Buffer, usize),
    ) -> Result<(Buffer, bool), Ended> {
        let meter = self.inner.subsystem.offload().map(|server| &server.meter).filter(|_| opcode == PEER);
        if let Some(meter) = meter {
            meter.begin(shard::now());
        }
        let (buffer, intact) = inbound.data(buffer, offset).await;
        if let Some(meter) = meter {
            meter.end(shard::now(), length.into());
        }
        let intact = intact?;
        Ok((buffer.ok_or(Ended::Closed)?, intact))
    }

    /// H2CData: puts it in its place.
    async fn data(&self, inbound: &mut Inbound, transfer: Transfer, flags: u8) -> Result<(), End> {
        let tag = usize::from(transfer.tag.get());
        let (buffer, offset, opcode) = {
            let mut table = self.incoming.borrow_mut();
            let incoming = table.get_mut(tag).and_then(Option::as_mut);
            let due = incoming.filter(|incoming| {
                let end = incoming.received + transfer.length.get() as usize;
                incoming.state == IncomingState::Waiting
                    && incoming.command_id == transfer.command_id.get()
                    && transfer.offset.get() as usize == incoming.received
                    && end <= incoming.length
                    && (flags & flag::LAST != 0) == (end == incoming.length)
            });
            let Some(incoming) = due else {
                return Err(Ended::Fatal(FatalError::DataOutOfRange, 12).into());
            };
            (incoming.buffer.take(), incoming.received, incoming.opcode)
        };
        if transfer.length.get() > TRANSFER_BYTES_MAX {
            return Err(Ended::Fatal(FatalError::DataTransferLimit, 16).into());
        }
        let buffer = buffer.ok_or(Ended::Closed)?;
        let length = transfer.length.get();
        let (buffer, intact) = self.take_data(inbound, opcode, length, (buffer, offset)).await?;
        let mut table = self.incoming.borrow_mut();
        let Some(incoming) = table.get_mut(tag).and_then(Option::as_mut) else { return Ok(()) };
        incoming.buffer = Some(buffer);
        incoming.received += transfer.length.get() as usize;
        if !intact || incoming.received == incoming.length {
            // With a damaged part the rest would have no place: the host sends it all the same.
            if !intact && incoming.received < incoming.length {
                return Err(Ended::Fatal(FatalError::DataOutOfRange, 0).into());
            }
            incoming.state = IncomingState::Whole(intact);
            if let Some(waker) = incoming.waker.take() {
                waker.wake();
            }
        }
        Ok(())
    }

    /// Nothing more will come.
    fn break_transfers(&self) {
        for incoming in self.incoming.borrow_mut().iter_mut().flatten() {
            if incoming.state == IncomingState::Waiting {
                incoming.state = IncomingState::Broken;
                if let Some(waker) = incoming.waker.take() {
                    waker.wake();
                }
            }
        }
    }

    /// Ends the session when its controller has died, and tells events.
    async fn watch(&self) {
        loop {
            let allowed = self.controller.keep_alive_ms.load(Ordering::Relaxed);
            let next = self.controller.changed.wait_for(|| self.news(allowed));
            let news = if self.queue == 0 {
                let mut left = self.silence_left().unwrap_or(LOOK_NANOSECONDS);
                if let Some(server) = self.inner.subsystem.offload() {
                    server.sweep(shard::now());
                    left = left.min(LOOK_NANOSECONDS);
                }
                shard::timeout(left.max(1), next).await
            } else {
                Some(next.await)
            };
            match news {
                Some(News::Ended) => return,
                Some(News::Dead) if self.queue > 0 && active(Mutant::QueuesOutliveController) => return,
                Some(News::Dead) => return self.link.cut(),
                Some(News::Event(id, result)) => self.respond(id, Status::SUCCESS, result),
                // The host may have been heard of meanwhile.
                None if self.silence_left() == Some(0) => self.controller.kill(),
                Some(News::OtherTime) | None => {}
            }
        }
    }

    /// `allowed` is the keep-alive time by which the watcher waits.
    fn news(&self, allowed: u64) -> Option<News> {
        if self.ended.get() {
            return Some(News::Ended);
        }
        if self.controller.is_dead() {
            return Some(News::Dead);
        }
        let mut requests = self.event_requests.borrow_mut();
        if self.queue == 0
            && !requests.is_empty()
            && let Some(result) = self.controller.take_event()
        {
            return Some(News::Event(requests.remove(0), result));
        }
        let same = self.controller.keep_alive_ms.load(Ordering::Relaxed) == allowed;
        (self.queue == 0 && !same).then_some(News::OtherTime)
    }

    /// Nanoseconds until the keep-alive timer runs out; `None` without one, or if this isn't the admin queue.
    fn silence_left(&self) -> Option<u64> {
        let counts = self.queue == 0 && self.gate.was_open();
        counts.then(|| self.controller.silence_left(shard::now())).flatten()
    }
}

/// What the watcher learns.
enum News {
    Ended,
    Dead,
    Event(u16, u64),
    /// The host has set another keep-alive time.
    OtherTime,
}

/// A buffer for a read, with room for a header before it.
pub(super) struct ReadBuffer {
    pub head: Buffer,
    pub data: Buffer,
    pub held: usize,
}
