//! A queue of a controller, as its commands see it: what they answer with, and how their data comes.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use pinstripe_block::BlockService;
use pinstripe_block::outgoing::Patience;
use pinstripe_runtime::{Buffer, Signal, Slice, block_bytes, shard};

use super::connect::Queue;
use super::gate::Gate;
use super::inner::Inner;
use super::leave::LeftQueue;
use super::limits::TRANSFER_BYTES_MAX;
use super::offload::peers::Digests;
use super::subsystem::Controller;
use crate::framing::{BLANK, Encoding};
use crate::inbound::{Ended, Inbound};
use crate::link::Link;
use crate::mutants::{Mutant, active};
use crate::wire::command::{Command, Completion, DataPlace};
use crate::wire::offload::opcode::PEER;
use crate::wire::pdu::{FatalError, ResponseCapsule, Transfer, flag, kind};
use crate::wire::status::Status;
use zerocopy::IntoBytes;

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
    pub tasks: Cell<usize>,
    incoming: RefCell<Vec<Option<Incoming>>>,
    /// Transfers among them whose data is due.
    pub due: Cell<usize>,
    /// Commands of operations' first phases that are under way.
    pub first_phase: Cell<u16>,
    /// Commands that were not begun because the connection is to be left: another process carries them out.
    pub deferred: RefCell<Vec<Command>>,
    pub event_requests: RefCell<Vec<u16>>,
    pub gate: Gate,
    /// The queue's number is this connection's.
    claimed: Cell<bool>,
    /// Among the connections of its shard.
    number: u64,
    pub ended: Cell<bool>,
    pub changed: Signal,
}

impl<S: BlockService> Session<S> {
    pub fn new(inner: &Rc<Inner<S>>, link: &Rc<Link>, number: u64, queue: Queue) -> Rc<Self> {
        let authenticates = inner.subsystem.authentication().is_some();
        if !authenticates {
            inner.links.settle(number);
        }
        let gate = Gate::new(authenticates, queue.number);
        // Without authentication Connect has taken it.
        let claimed = !authenticates || active(Mutant::NumberHeldUnproven);
        Rc::new(Self::of(inner, link, number, queue, gate, claimed))
    }

    /// A queue that another process has left, where its host has proved its identity. Its number is taken
    /// already.
    pub fn resumed(
        inner: &Rc<Inner<S>>,
        link: &Rc<Link>,
        number: u64,
        queue: Queue,
        left: &LeftQueue,
    ) -> Rc<Self> {
        inner.links.settle(number);
        let deferred = left.commands();
        let outstanding = left.events.len() + deferred.len();
        let head = left.head % queue.entries;
        let gate = Gate::new(false, queue.number);
        Rc::new(Self {
            head: Cell::new(head),
            outstanding: Cell::new(u16::try_from(outstanding).unwrap_or(u16::MAX)),
            deferred: deferred.into(),
            event_requests: left.events.clone().into(),
            ..Self::of(inner, link, number, queue, gate, true)
        })
    }

    /// Where Connect is all that has come. `claimed`: its number is taken.
    fn of(
        inner: &Rc<Inner<S>>,
        link: &Rc<Link>,
        number: u64,
        queue: Queue,
        gate: Gate,
        claimed: bool,
    ) -> Self {
        Self {
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
            due: Cell::new(0),
            first_phase: Cell::new(0),
            deferred: RefCell::default(),
            event_requests: RefCell::default(),
            gate,
            claimed: Cell::new(claimed),
            number,
            ended: Cell::new(false),
            changed: Signal::default(),
        }
    }

    /// Those that its host has asked for.
    pub fn digests(&self) -> Digests {
        Digests { header: self.encoding.header_digests, data: self.encoding.data_digests }
    }

    /// Whether another process is to go on with it.
    pub fn goes_over(&self) -> bool {
        self.link.leaving() && self.link.alive()
    }

    /// What another process has to know of the queue, all commands of which are over or deferred.
    pub fn left(&self, events: Vec<u16>, received: Vec<u8>) -> LeftQueue {
        LeftQueue {
            controller: self.controller.id,
            number: self.queue,
            entries: self.entries,
            flow_control: self.flow_control,
            header_digests: self.encoding.header_digests,
            data_digests: self.encoding.data_digests,
            alignment: self.encoding.alignment,
            head: self.head.get(),
            events,
            deferred: self.deferred.take().iter().flat_map(|command| command.as_bytes().to_vec()).collect(),
            received,
            secured: None,
        }
    }

    /// A command has come. It takes an entry of the queue, until it is answered.
    pub fn take_entry(&self) -> Result<(), Ended> {
        self.head.set((self.head.get() + 1) % self.entries);
        if self.outstanding.get() >= self.entries {
            // The host has more commands outstanding than it said that it would.
            return Err(Ended::Fatal(FatalError::Sequence, 0));
        }
        self.outstanding.set(self.outstanding.get() + 1);
        Ok(())
    }

    /// The queue is over: its controller has one less.
    pub fn leave(&self) {
        self.controller.leave(self.claimed.get().then_some(self.queue));
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

    /// Answers the command of this identifier.
    pub fn respond(&self, id: u16, status: Status, result: u64) {
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

    /// Waits for memory for a command of which nothing has been done. False if none comes: the connection has
    /// ended, or is to be left. Then another process carries the command out.
    async fn acquire(&self, command: &Command, bytes: usize) -> bool {
        let there = self.link.acquire(bytes).await;
        if !there && self.goes_over() {
            self.deferred.borrow_mut().push(*command);
        }
        there
    }

    /// Memory for an answer of `length` bytes that is to be copied; `None` if it isn't to be answered here.
    /// It is acquired before the answer is made: what the host doesn't take must not pile up.
    pub async fn answer_memory(&self, command: &Command, length: usize) -> Option<usize> {
        let held = if active(Mutant::AnswersUncounted) { 0 } else { block_bytes(length) };
        self.acquire(command, held).await.then_some(held)
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

    /// A buffer for a read of `length` bytes, and the memory acquired for it; `None` if it isn't to be
    /// answered here.
    pub async fn read_buffer(&self, command: &Command, length: usize) -> Option<ReadBuffer> {
        let headroom = if length <= COPY_BYTES { 0 } else { HEADROOM };
        let held = block_bytes(headroom + length);
        if !self.acquire(command, held).await {
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

    /// The data of a command: from its capsule, or asked for. `Ok(None)` if it isn't to be carried out here.
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
                // Its data has come and is held. A queue has only so many commands.
                self.link.force(more);
                Ok(Some(HostData { buffer, held: more }))
            }
            (DataPlace::Transport(told), None) if told == length => self.ask(command, length, more).await,
            _ => Err(Status::DATA_LENGTH_INVALID),
        }
    }

    /// Asks the host for data, when there is memory for it.
    async fn ask(&self, command: &Command, length: u32, more: usize) -> Result<Option<HostData>, Status> {
        let held = block_bytes(length as usize) + more;
        if !self.acquire(command, held).await {
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
            self.due.set(self.due.get() + 1);
            self.changed.notify();
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

    /// Waits for the data of a transfer. A host that was asked for data and sends nothing for long, or all of
    /// it too slowly, must not keep its memory.
    async fn await_incoming(&self, tag: usize) -> Incoming {
        let whole = || poll_fn(|cx| self.poll_incoming(tag, cx.waker()));
        // It may come behind what other commands move on this connection.
        let mut patience = Patience::new(self.link.held());
        loop {
            let received = self.link.received();
            match patience.step(whole()).await {
                Some(incoming) => return incoming,
                None if self.link.received() == received || patience.is_over() => break,
                None => {}
            }
        }
        self.link.cut();
        whole().await
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

    /// Data of a command, put into a buffer at an offset, and whether it is intact. Parts of sums show what
    /// the link can take, if they come from a host that has proved its identity.
    pub async fn take_data(
        &self,
        inbound: &mut Inbound,
        opcode: u8,
        length: u32,
        (buffer, offset): (Buffer, usize),
    ) -> Result<(Buffer, bool), Ended> {
        let is_part = self.queue > 0 && opcode == PEER && self.gate.is_open();
        let meter = self.inner.subsystem.offload().map(|server| &server.meter).filter(|_| is_part);
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
    pub async fn data(&self, inbound: &mut Inbound, transfer: Transfer, flags: u8) -> Result<(), Ended> {
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
                return Err(Ended::Fatal(FatalError::DataOutOfRange, 12));
            };
            (incoming.buffer.take(), incoming.received, incoming.opcode)
        };
        if transfer.length.get() > TRANSFER_BYTES_MAX {
            return Err(Ended::Fatal(FatalError::DataTransferLimit, 16));
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
                return Err(Ended::Fatal(FatalError::DataOutOfRange, 0));
            }
            self.settle(incoming, IncomingState::Whole(intact));
        }
        Ok(())
    }

    /// No more data of a transfer is due.
    fn settle(&self, incoming: &mut Incoming, state: IncomingState) {
        incoming.state = state;
        self.due.set(self.due.get() - 1);
        if let Some(waker) = incoming.waker.take() {
            waker.wake();
        }
    }

    /// Nothing more will come.
    pub fn break_transfers(&self) {
        for incoming in self.incoming.borrow_mut().iter_mut().flatten() {
            if incoming.state == IncomingState::Waiting {
                self.settle(incoming, IncomingState::Broken);
            }
        }
    }
}

/// A buffer for a read, with room for a header before it.
pub(super) struct ReadBuffer {
    pub head: Buffer,
    pub data: Buffer,
    pub held: usize,
}
