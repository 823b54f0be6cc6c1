//! One queue: a connection, the commands in flight on it, and those that wait for a place.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use pinstripe_runtime::{Buffer, Signal, shard};
use zerocopy::FromZeros;

use super::association::Association;
use super::authenticate;
use super::lanes::Lanes;
use super::request::{Data, Failure, Pending, Request};
use super::{InitiatorError, Loss};
use crate::framing::{BLANK, Encoding, Pdu, Role};
use crate::inbound::{Ended, Inbound};
use crate::link::Link;
use crate::mutants::{Mutant, active};
use crate::wire::command::{Command, Completion, Sgl, admin, fabrics, nvm};
use crate::wire::fabrics::{ConnectData, NO_FLOW_CONTROL};
use crate::wire::offload::admin::{ATTACH, DETACH};
use crate::wire::pdu::{CommandCapsule, FatalError, InitializeConnection, Transfer, digest, flag, kind};
use crate::wire::status::Status;

/// Commands in flight on an I/O queue, if the server allows it.
pub(super) const DEPTH: u16 = 128;
/// Commands in flight on the admin queue.
const ADMIN_DEPTH: u16 = 32;
/// Bytes that an admin command's capsule always has room for ("In-Capsule Data").
const ADMIN_CAPSULE_BYTES: usize = 8 << 10;
/// Data up to this is copied into a batch with other messages.
const COPY_BYTES: usize = 8 << 10;
/// Times that a command is sent that the server says it hasn't carried out.
const TRIES_MAX: u8 = 4;
/// Least that a server must take in one H2CData.
const H2C_BYTES_MIN: usize = 4096;

/// What was agreed for a connection.
struct Connected {
    link: Rc<Link>,
    encoding: Encoding,
    /// Most bytes of one H2CData.
    data_max: usize,
}

/// See the module. Lives on one shard.
pub(super) struct Queue {
    pub association: Arc<Association>,
    number: u16,
    depth: Cell<u16>,
    capsule_bytes: Cell<usize>,
    connected: RefCell<Option<Connected>>,
    /// By command identifier.
    in_flight: RefCell<Vec<Option<Pending>>>,
    free: RefCell<Vec<u16>>,
    waiting: RefCell<Lanes<Pending>>,
    /// Commands may be sent: Connect was answered, and the server has had the proof that it may ask for. Some
    /// servers refuse what comes earlier.
    open: Cell<bool>,
    lost: Cell<bool>,
    changed: Signal,
}

impl Queue {
    /// A queue that isn't connected. Commands wait.
    pub fn new(association: &Arc<Association>, number: u16) -> Rc<Self> {
        let depth = if number == 0 { ADMIN_DEPTH } else { DEPTH.min(association.limits().commands_max) };
        Rc::new(Self {
            association: Arc::clone(association),
            number,
            depth: Cell::new(depth),
            capsule_bytes: Cell::new(if number == 0 {
                ADMIN_CAPSULE_BYTES
            } else {
                association.limits().capsule_bytes
            }),
            connected: RefCell::default(),
            in_flight: RefCell::new((0..depth).map(|_| None).collect()),
            free: RefCell::new((0..depth).rev().collect()),
            waiting: RefCell::new(Lanes::new()),
            open: Cell::new(false),
            lost: Cell::new(false),
            changed: Signal::default(),
        })
    }

    /// Connects, and runs the queue in tasks of its own until the association ends. Gives the controller's
    /// number.
    ///
    /// If it fails, so does every command that waits.
    pub async fn connect(self: &Rc<Self>, controller: u16) -> Result<u16, InitiatorError> {
        let connected = self.try_connect(controller).await;
        if let Err(error) = &connected {
            self.association.end(if matches!(error, InitiatorError::Silent { .. }) {
                Loss::Timeout
            } else {
                Loss::Closed
            });
            // Else the receiver does so at its end: it may be filling a read's buffer, which goes back first.
            if self.connected.borrow().is_none() {
                self.fail_all();
            }
        }
        connected
    }

    async fn try_connect(self: &Rc<Self>, controller: u16) -> Result<u16, InitiatorError> {
        let patience = self.association.options().connect_nanoseconds;
        let server = self.association.address().server();
        let silent = || InitiatorError::Silent { server: server.clone() };
        let stream = shard::timeout(patience, self.association.stream()).await;
        let stream = stream
            .ok_or_else(silent)?
            .map_err(|error| InitiatorError::Connect { server: server.clone(), reason: error.to_string() })?;
        // What it sends is bounded by the commands that it was asked for.
        let link = Link::new(stream, Arc::default());
        let sender = Rc::clone(&link);
        shard::spawn(async move { sender.run().await });
        let mut inbound = Inbound::new(Rc::clone(&link), Role::Host);
        let initialized = shard::timeout(patience, self.initialize(&mut inbound, &link)).await;
        let connected = match initialized {
            Some(Ok(connected)) => connected,
            other => {
                link.cut();
                link.closed().await;
                let lost = |ended| self.association.lost(loss(ended));
                return Err(other.map_or_else(silent, |result| lost(result.err().unwrap_or(Ended::Closed))));
            }
        };
        *self.connected.borrow_mut() = Some(connected);
        let (receiver, watcher) = (Rc::clone(self), Rc::clone(self));
        shard::spawn(async move { receiver.run(inbound).await });
        shard::spawn(async move { watcher.watch().await });
        // Before the commands that wait already.
        let request = self.connect_command(controller);
        let answer = shard::timeout(patience, request.wait()).await;
        match answer.ok_or_else(silent)? {
            Ok((result, _)) => {
                let proved = shard::timeout(patience, authenticate::after_connect(self, result)).await;
                proved.ok_or_else(silent)??;
                self.open.set(true);
                self.pump();
                Ok(result.to_le_bytes()[..2]
                    .iter()
                    .rev()
                    .fold(0, |number, byte| number << 8 | u16::from(*byte)))
            }
            Err(failure) => Err(self.association.failed("the connection", failure)),
        }
    }

    /// ICReq and ICResp.
    async fn initialize(&self, inbound: &mut Inbound, link: &Rc<Link>) -> Result<Connected, Ended> {
        let mut request = InitializeConnection::new_zeroed();
        let address = self.association.address();
        request.digests = if address.header_digests { digest::HEADER } else { 0 }
            | if address.data_digests { digest::DATA } else { 0 };
        link.send_copy(&[Encoding::default().header(kind::IC_REQ, 0, &request, 0).bytes()]);
        let Pdu::Initialize(response) = inbound.next().await? else {
            return Err(Ended::Fatal(FatalError::Sequence, 0));
        };
        let data_max = response.limit.get() as usize;
        // A server may leave out digests that were asked for; it can't add any.
        let unasked = response.digests & !request.digests != 0;
        if response.version.get() != 0 || response.data_alignment > 31 || unasked || data_max < H2C_BYTES_MIN
        {
            return Err(Ended::Fatal(FatalError::UnsupportedParameter, 8));
        }
        let encoding = Encoding {
            header_digests: response.digests & digest::HEADER != 0,
            data_digests: response.digests & digest::DATA != 0,
            alignment: (response.data_alignment + 1) * 4,
        };
        inbound.framer.set_digests(encoding.header_digests, encoding.data_digests);
        Ok(Connected { link: Rc::clone(link), encoding, data_max: data_max & !3 })
    }

    fn connect_command(self: &Rc<Self>, controller: u16) -> Rc<Request> {
        let association = &self.association;
        let options = association.options();
        let nqn = &association.address().nqn;
        let data = ConnectData::new(options.host_id, controller, nqn, &options.host_nqn);
        let mut buffer = shard::buffer(size_of::<ConnectData>());
        buffer.copy_from_slice(zerocopy::IntoBytes::as_bytes(&data));
        let keep_alive = if self.number == 0 { options.keep_alive_ms } else { 0 };
        // Commands in flight never exceed the queue. Without flow control a read's data can carry its success
        // (SUCCESS in C2HData), and needs no answer of its own. A server that keeps to flow control answers
        // as ever.
        let command = Command::fabrics(fabrics::CONNECT)
            .with_dword(10, u32::from(self.number) << 16)
            .with_dword(11, u32::from(NO_FLOW_CONTROL) << 16 | u32::from(self.depth.get() - 1))
            .with_dword(12, keep_alive);
        self.send_first(command, Data::Write(buffer.freeze()), Request::own(None))
    }

    /// Sends a command before those that wait.
    fn send_first(&self, command: Command, data: Data, request: Rc<Request>) -> Rc<Request> {
        let pending = Pending { opens: true, ..Pending::new(command, data, &request) };
        let id = self.free.borrow_mut().pop();
        match id {
            Some(id) if !self.lost.get() => {
                self.waiting.borrow_mut().takes_place(self.lane(&pending));
                self.send(id, pending);
            }
            _ => pending.request.command_ended(Err(Failure::Lost)),
        }
        request
    }

    /// A command of ours while the queue isn't open.
    pub async fn ask_first(
        &self,
        command: Command,
        data: Data,
        buffer: Option<Buffer>,
    ) -> Result<Option<Buffer>, Failure> {
        let request = self.send_first(command, data, Request::own(buffer));
        request.wait().await.map(|(_, buffer)| buffer)
    }

    /// A command of our own, and its answer; what it reads goes to `buffer`.
    pub async fn ask(
        self: &Rc<Self>,
        command: Command,
        buffer: Option<Buffer>,
    ) -> Result<(u64, Option<Buffer>), Failure> {
        let data = match &buffer {
            Some(buffer) => Data::Read { start: 0, length: buffer.len() },
            None => Data::None,
        };
        self.carry(command, data, Request::own(buffer)).await
    }

    /// A command of our own with data.
    pub async fn tell(
        self: &Rc<Self>,
        command: Command,
        data: pinstripe_runtime::Slice,
    ) -> Result<(), Failure> {
        self.carry(command, Data::Write(data), Request::own(None)).await.map(|_| ())
    }

    async fn carry(
        self: &Rc<Self>,
        command: Command,
        data: Data,
        request: Rc<Request>,
    ) -> Result<(u64, Option<Buffer>), Failure> {
        self.submit(Pending::new(command, data, &request));
        self.pump();
        request.wait().await
    }

    /// Takes a command; [`Queue::pump`] sends it when there is room.
    pub fn submit(&self, mut pending: Pending) {
        if self.lost.get() {
            return pending.request.command_ended(Err(Failure::Lost));
        }
        pending.since = shard::waited();
        self.waiting.borrow_mut().push_back(self.lane(&pending), pending);
    }

    /// The namespace for which a command has a place. None: it is the controller's.
    fn lane(&self, pending: &Pending) -> u32 {
        if self.number == 0 || pending.opens { 0 } else { pending.command.namespace.get() }
    }

    /// Sends what waits and has a place.
    pub fn pump(&self) {
        if self.connected.borrow().is_none() {
            return;
        }
        while let Some((id, pending)) = self.next() {
            self.send(id, pending);
        }
    }

    fn next(&self) -> Option<(u16, Pending)> {
        let mut free = self.free.borrow_mut();
        let is_due = |next: &Pending| next.opens || self.open.get();
        let is_shared = || self.number > 0 && self.association.uses_several();
        let pending = self.waiting.borrow_mut().next(free.len(), is_due, is_shared)?;
        Some((free.pop()?, pending))
    }

    fn send(&self, id: u16, mut pending: Pending) {
        let connected = self.connected.borrow();
        let Some(Connected { link, encoding, .. }) = connected.as_ref() else { return };
        pending.tries += 1;
        (pending.moved, pending.damaged, pending.since) = (0, false, shard::waited());
        let mut command = pending.command;
        command.id = id.into();
        let in_capsule = match &pending.data {
            Data::None => None,
            Data::Read { length, .. } => {
                command.sgl = Sgl::transport(u32::try_from(*length).unwrap_or(0));
                None
            }
            Data::Write(data) => {
                let length = u32::try_from(data.len()).unwrap_or(0);
                let fits = data.len() <= self.capsule_bytes.get();
                command.sgl = if fits { Sgl::capsule(length) } else { Sgl::transport(length) };
                fits.then(|| data.clone())
            }
        };
        let length = in_capsule.as_ref().map_or(0, |data| u32::try_from(data.len()).unwrap_or(0));
        let header =
            encoding.header(kind::CAPSULE_CMD, 0, &CommandCapsule { common: BLANK, command }, length);
        match in_capsule {
            None => link.send_copy(&[header.bytes()]),
            Some(data) => send_with_data(link, *encoding, header.bytes(), data),
        }
        if let Some(slot) = self.in_flight.borrow_mut().get_mut(usize::from(id)) {
            *slot = Some(pending);
        }
    }

    /// The receiver: until the connection or the association ends, then fails all that is left.
    async fn run(self: Rc<Self>, mut inbound: Inbound) {
        let end = loop {
            if let Err(end) = self.receive(&mut inbound).await {
                break end;
            }
        };
        self.association.end(end);
        let link = self.connected.borrow().as_ref().map(|connected| Rc::clone(&connected.link));
        if let Some(link) = link {
            link.cut();
            link.closed().await;
        }
        // The socket closes with its last user, and what it hasn't sent is gone (C16). A device that is kept
        // although it is lost keeps the queue.
        self.connected.take();
        self.fail_all();
    }

    async fn receive(&self, inbound: &mut Inbound) -> Result<(), Loss> {
        match inbound.next().await.map_err(loss)? {
            Pdu::Response(completion) => self.completed(&completion),
            Pdu::Data(transfer, flags) => self.data(inbound, transfer, flags).await,
            Pdu::Ready(transfer) => self.ready(&transfer),
            Pdu::Terminated(status, _) => Err(Loss::Terminated(status)),
            Pdu::Initialize(_) | Pdu::Command(..) => Err(Loss::Protocol(FatalError::Sequence)),
        }
    }

    fn take(&self, id: u16) -> Option<Pending> {
        let pending = self.in_flight.borrow_mut().get_mut(usize::from(id))?.take()?;
        self.free.borrow_mut().push(id);
        self.waiting.borrow_mut().gives_place_back(self.lane(&pending));
        Some(pending)
    }

    fn completed(&self, completion: &Completion) -> Result<(), Loss> {
        let pending = self.take(completion.command_id.get()).ok_or(Loss::Protocol(FatalError::Sequence))?;
        self.ended(pending, completion.status(), completion.result.get())
    }

    /// A command was answered.
    fn ended(&self, pending: Pending, status: Status, result: u64) -> Result<(), Loss> {
        let short = match pending.data {
            Data::Read { length, .. } if self.number > 0 && !pending.opens => pending.moved != length,
            _ => false,
        };
        let status = match status {
            Status(code) if Status(code).is_success() && pending.damaged => Status::TRANSIENT_TRANSPORT,
            // A read that is said to be done, although not all of its data came.
            Status(code) if Status(code).is_success() && short => {
                pending.request.command_ended(Err(Failure::Lost));
                return Err(Loss::Protocol(FatalError::DataOutOfRange));
            }
            other => other,
        };
        if status.is_success() {
            pending.request.command_ended(Ok(result));
        } else if status.code() == Status::TRANSIENT_TRANSPORT.code()
            && !status.is_final()
            && pending.tries < TRIES_MAX
            && !(self.number > 0 && pending.command.opcode == nvm::FLUSH)
        {
            // The server has not carried it out, or it was a read. A flush brings no data that could be
            // damaged, and isn't asked for again whatever it failed for (C5).
            self.waiting.borrow_mut().push_front(self.lane(&pending), pending);
        } else {
            pending.request.command_ended(Err(Failure::Status(status)));
        }
        self.pump();
        Ok(())
    }

    /// C2HData: puts it in its place.
    async fn data(&self, inbound: &mut Inbound, transfer: Transfer, flags: u8) -> Result<(), Loss> {
        const BROKEN: Loss = Loss::Protocol(FatalError::DataOutOfRange);
        let id = usize::from(transfer.command_id.get());
        let length = transfer.length.get() as usize;
        let (request, start) = {
            let in_flight = self.in_flight.borrow();
            let pending = in_flight.get(id).and_then(Option::as_ref).ok_or(BROKEN)?;
            let Data::Read { start, length: wanted } = pending.data else { return Err(BROKEN) };
            if transfer.offset.get() as usize != pending.moved || pending.moved + length > wanted {
                return Err(BROKEN);
            }
            let moved = if active(Mutant::DataOffsetIgnored) { 0 } else { pending.moved };
            (Rc::clone(&pending.request), start + moved)
        };
        let buffer = request.take_buffer().ok_or(BROKEN)?;
        let (buffer, intact) = inbound.data(buffer, start).await;
        request.put_buffer(buffer);
        let intact = intact.map_err(loss)?;
        {
            let mut in_flight = self.in_flight.borrow_mut();
            let pending = in_flight.get_mut(id).and_then(Option::as_mut).ok_or(BROKEN)?;
            pending.moved += length;
            pending.damaged |= !intact;
        }
        if flags & flag::SUCCESS == 0 {
            return Ok(());
        }
        let pending = self.take(transfer.command_id.get()).ok_or(BROKEN)?;
        self.ended(pending, Status::SUCCESS, 0)
    }

    /// R2T: sends the data that the server asks for.
    fn ready(&self, transfer: &Transfer) -> Result<(), Loss> {
        const BROKEN: Loss = Loss::Protocol(FatalError::DataOutOfRange);
        let connected = self.connected.borrow();
        let Some(Connected { link, encoding, data_max, .. }) = connected.as_ref() else { return Err(BROKEN) };
        let mut in_flight = self.in_flight.borrow_mut();
        let slot = in_flight.get_mut(usize::from(transfer.command_id.get())).and_then(Option::as_mut);
        let pending = slot.ok_or(BROKEN)?;
        let Data::Write(data) = &pending.data else { return Err(BROKEN) };
        let (offset, length) = (transfer.offset.get() as usize, transfer.length.get() as usize);
        if length == 0 || offset != pending.moved || offset + length > data.len() {
            return Err(BROKEN);
        }
        pending.moved += length;
        let mut sent = 0;
        while sent < length {
            let count = (length - sent).min(*data_max);
            let from = if active(Mutant::ReadyOffsetIgnored) { 0 } else { offset };
            let part = data.slice(from + sent, count);
            let header = Transfer {
                common: BLANK,
                command_id: transfer.command_id,
                tag: transfer.tag,
                offset: u32::try_from(offset + sent).unwrap_or(u32::MAX).into(),
                length: u32::try_from(count).unwrap_or(u32::MAX).into(),
                reserved: 0.into(),
            };
            sent += count;
            let last = if sent == length { flag::LAST } else { 0 };
            let header = encoding.header(kind::H2C_DATA, last, &header, u32::try_from(count).unwrap_or(0));
            send_with_data(link, *encoding, header.bytes(), part);
        }
        Ok(())
    }

    /// The association has ended: every command is decided, as far as this side can (C25).
    fn fail_all(&self) {
        self.lost.set(true);
        let in_flight: Vec<Pending> =
            self.in_flight.borrow_mut().iter_mut().filter_map(Option::take).collect();
        let mut waiting = self.waiting.borrow_mut().take();
        if self.number > 0 && !in_flight.is_empty() {
            // Also when no task waits for the answers any more: a device that was dropped with writes under
            // way.
            self.association.hold_back();
        }
        let lost = if active(Mutant::LossCalledSuccess) { Ok(0) } else { Err(Failure::Lost) };
        for pending in in_flight {
            pending.request.command_ended(lost);
        }
        let forgets = active(Mutant::WaitingForgotten);
        std::mem::forget(if forgets { std::mem::take(&mut waiting) } else { Vec::new() });
        for pending in waiting {
            pending.request.command_ended(Err(Failure::Lost));
        }
        self.changed.notify();
        // What the requests' memory is released by may look at the queue: it goes last.
        self.free.borrow_mut().clear();
    }

    /// Ends the connection when the association has ended, and the association when commands take too long.
    async fn watch(&self) {
        let patience = self.association.options().command_nanoseconds;
        let received = || self.connected.borrow().as_ref().map_or(0, |connected| connected.link.received());
        let mut heard = (received(), shard::waited());
        loop {
            let over =
                self.association.changed().wait_until(|| self.association.has_ended() || self.lost.get());
            if shard::timeout(patience / 4 + 1, over).await.is_some() {
                break;
            }
            // A host that stood still has not waited for its server (C29).
            let now = shard::waited();
            if heard.0 != received() {
                heard = (received(), now);
            }
            let is_silent = now.saturating_sub(heard.1) > patience;
            let is_late = |pending: &Pending| {
                // An event may never come.
                let awaits_event = self.number == 0 && pending.command.opcode == admin::ASYNC_EVENT;
                now.saturating_sub(pending.since) > patience && !awaits_event
            };
            if !self.in_flight.borrow().iter().flatten().any(is_late) {
                continue;
            }
            if active(Mutant::IdentifierReused) {
                self.forget_late(is_late);
            } else if !self.is_of_one_disk(is_silent, is_late) {
                self.association.end(Loss::Timeout);
            }
        }
        if let Some(connected) = self.connected.borrow().as_ref() {
            connected.link.cut();
        }
    }

    /// Whether that commands are late may be a matter of single namespaces: a disk hangs, and the others on
    /// the server are well. What is late keeps its identifier; supervision ends the wait for it (C16).
    fn is_of_one_disk(&self, is_silent: bool, is_late: impl Fn(&Pending) -> bool) -> bool {
        if self.association.options().repeats_harmlessly {
            return false;
        }
        let (in_flight, waiting) = (self.in_flight.borrow(), self.waiting.borrow());
        // One that gets no place is late as well.
        let all = in_flight.iter().flatten().chain(waiting.iter());
        let late: Vec<Command> = all.filter(|one| is_late(one)).map(|pending| pending.command).collect();
        // Admin commands are the controller's, but for those that wait until writes of a namespace are over.
        let is_of_namespace = |one: &Command| self.number > 0 || [ATTACH, DETACH].contains(&one.opcode);
        let Some(first) = late.first().map(|command| command.namespace) else { return false };
        self.association.uses_another_than(first.get())
            && late.iter().all(is_of_namespace)
            && (!is_silent || late.iter().all(|command| command.namespace == first))
    }
}

/// What only deliberate defects do.
impl Queue {
    fn forget_late(&self, late: impl Fn(&Pending) -> bool) {
        for id in 0..self.depth.get() {
            let is_late = self.in_flight.borrow()[usize::from(id)].as_ref().is_some_and(&late);
            if is_late && let Some(pending) = self.take(id) {
                pending.request.command_ended(Err(Failure::Lost));
            }
        }
        self.pump();
    }
}

fn loss(ended: Ended) -> Loss {
    match ended {
        Ended::Closed => Loss::Closed,
        Ended::Fatal(error, _) => Loss::Protocol(error),
    }
}

fn send_with_data(link: &Link, encoding: Encoding, header: &[u8], data: pinstripe_runtime::Slice) {
    let trailer = encoding.trailer(&data);
    let trailer = trailer.as_ref().map_or(&[][..], |digest| &digest[..]);
    if data.len() <= COPY_BYTES {
        return link.send_copy(&[header, &data, trailer]);
    }
    link.send_copy(&[header]);
    link.send(data, 0);
    link.send_copy(&[trailer]);
}
