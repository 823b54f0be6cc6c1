//! One connection: the receiver, the tasks of its commands, and the watcher.
//!
//! The receiver never waits for a command. A write without its data in the capsule becomes a task: it waits
//! for memory, asks for the data (R2T) and goes on when the receiver has put all of it in place. The watcher
//! has the session end when its controller dies, and tells the host events.
//!
//! What a command needs of its connection is the [`Session`].

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use pinstripe_block::BlockService;
use pinstripe_runtime::{Buffer, block_bytes, shard};
use zerocopy::FromZeros;

use super::connect::Queue;
use super::inner::Inner;
use super::leave::LeftQueue;
use super::limits::{CAPSULE_BYTES_MAX, EVENT_REQUESTS_MAX};
use super::session::Session;
use super::subsystem::{Controller, Subsystem};
use super::{admin, attach, authenticate, connect, io, offload};
use crate::framing::{Encoding, Pdu, Role};
use crate::inbound::{Ended, Inbound};
use crate::link::Link;
use crate::mutants::{Mutant, active};
use crate::wire::command::{Command, admin as opcode, fabrics};
use crate::wire::pdu::{FatalError, Termination, kind};
use crate::wire::status::Status;

/// Time from the first byte to a granted Connect.
const CONNECT_NANOSECONDS: u64 = 30_000_000_000;
/// How often a watcher without a keep-alive timer looks whether it got one.
const LOOK_NANOSECONDS: u64 = 1_000_000_000;
/// Most bytes of data in the capsule of an admin command ("In-Capsule Data").
const ADMIN_CAPSULE_BYTES: u32 = 8 << 10;

/// How a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEnd {
    /// The host closed it, the network failed, or its controller has ended.
    Closed,
    /// The host ended it because of an error on our side, as it says: status and information.
    Terminated(u16, u32),
    /// The host broke the protocol and was cut off.
    Violation(FatalError),
    /// No queue was connected in time.
    Timeout,
    /// There are too many connections, or the target is stopping.
    Refused,
    /// It is left to another process, between two commands and with its stream open.
    Left(LeftQueue),
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
    ended.into()
}

/// Goes on with a queue that another process has left.
pub(super) async fn resume<S: BlockService>(
    inner: &Rc<Inner<S>>,
    link: &Rc<Link>,
    number: u64,
    left: &LeftQueue,
) -> SessionEnd {
    let encoding = left.encoding();
    let Some(controller) = rejoin(&inner.subsystem, left) else {
        link.cut();
        link.closed().await;
        return SessionEnd::Closed;
    };
    let queue = Queue {
        controller,
        number: left.number,
        entries: left.entries.max(1),
        flow_control: left.flow_control,
        encoding,
    };
    let digests = (encoding.header_digests, encoding.data_digests);
    let mut inbound = Inbound::resumed(Rc::clone(link), Role::Controller, &left.received, digests);
    Session::resumed(inner, link, number, queue, left).run(&mut inbound).await.into()
}

/// The controller that a queue belongs to which another process has left, if that lives.
fn rejoin(subsystem: &Subsystem, left: &LeftQueue) -> Option<Arc<Controller>> {
    let controller = subsystem.controller(left.controller)?;
    if !controller.add_queue(left.number) {
        return None;
    }
    // It may have ended just before, on another shard, and been forgotten: then a new association doesn't
    // wait for what would be begun here (C16).
    if controller.is_dead() {
        controller.leave(Some(left.number));
        return None;
    }
    Some(controller)
}

enum End {
    Stream(Ended),
    Terminated(u16, u32),
    Left(LeftQueue),
}

impl From<End> for SessionEnd {
    fn from(end: End) -> Self {
        match end {
            End::Stream(Ended::Closed) => Self::Closed,
            End::Stream(Ended::Fatal(error, _)) => Self::Violation(error),
            End::Terminated(status, information) => Self::Terminated(status, information),
            End::Left(queue) => Self::Left(queue),
        }
    }
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
    async fn run(self: &Rc<Self>, inbound: &mut Inbound) -> End {
        let watcher = Rc::clone(self);
        shard::spawn(async move { watcher.watch().await });
        if self.inner.subsystem.authentication().is_some() {
            let session = Rc::clone(self);
            shard::spawn(async move { session.watch_gate().await });
        }
        for command in self.deferred.take() {
            self.begin(command, None, 0);
        }
        let end = loop {
            if self.may_leave() && self.is_done().await {
                return self.leave_off(inbound).await;
            }
            self.room().await;
            if let Err(end) = self.receive(inbound).await {
                break end;
            }
        };
        self.end(inbound, end).await
    }

    /// Waits until there is room for what comes. Data in a capsule is counted when it is there: where memory
    /// is short, commands of a queue are over before its next one is taken, unless they wait for data
    /// themselves.
    async fn room(&self) {
        self.link.room().await;
        if self.queue > 0 && self.link.is_memory_short() {
            self.changed.wait_until(|| self.tasks.get() == 0 || self.due.get() > 0).await;
        }
    }

    /// Whether it is to be left, and the host owes no data that was asked for and no part of a proof.
    fn may_leave(&self) -> bool {
        self.goes_over() && self.gate.is_settled() && self.due.get() == 0
    }

    /// Waits until all commands are over or deferred. Whether it may still be left: one of them may have
    /// begun an authentication.
    async fn is_done(&self) -> bool {
        // Nothing is asked of the host any more.
        self.link.set_busy(self.tasks.get() > 0);
        self.changed.wait_until(|| self.tasks.get() == 0).await;
        self.link.set_busy(false);
        self.may_leave()
    }

    /// Leaves the connection, when all commands are over or deferred.
    async fn leave_off(self: &Rc<Self>, inbound: &mut Inbound) -> End {
        // An event that was told from here on would be lost with the sender.
        let events = self.event_requests.take();
        let left = inbound.begun().map(|received| self.left(events, received));
        let sent = self.link.finish_left().await;
        let Some(left) = left.filter(|_| sent && !self.controller.is_dead()) else {
            return self.end(inbound, Ended::Closed.into()).await;
        };
        self.ended.set(true);
        self.changed.notify();
        self.controller.changed.notify();
        End::Left(left)
    }

    async fn end(self: &Rc<Self>, inbound: &Inbound, end: End) -> End {
        self.ended.set(true);
        self.changed.notify();
        self.break_transfers();
        if self.queue == 0 {
            self.controller.kill();
        }
        self.controller.changed.notify();
        close(&self.link, inbound, &end).await;
        self.changed.wait_until(|| self.tasks.get() == 0).await;
        self.leave();
        end
    }

    /// Takes one PDU, unless the connection is to be left before one comes.
    async fn receive(self: &Rc<Self>, inbound: &mut Inbound) -> Result<(), End> {
        let Some(pdu) = inbound.next_or_leave(Some(&|| self.may_leave())).await? else { return Ok(()) };
        match pdu {
            Pdu::Command(command, length) => self.command(inbound, command, length).await,
            Pdu::Data(transfer, flags) => Ok(self.data(inbound, transfer, flags).await?),
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
        self.take_entry()?;
        if self.queue == 0 {
            self.controller.heard.store(shard::now(), Ordering::Relaxed);
            if command.opcode == opcode::ASYNC_EVENT && self.gate.is_open() {
                self.event_request(&command);
                return Ok(());
            }
        }
        let held = if length == 0 { 0 } else { block_bytes(length as usize) };
        // It has come already, and a queue has only so many commands.
        self.link.force(held);
        self.begin(command, capsule, held);
        Ok(())
    }

    /// Begins to carry out a command, whose capsule holds so many bytes.
    fn begin(self: &Rc<Self>, command: Command, capsule: Option<(Buffer, bool)>, held: usize) {
        self.tasks.set(self.tasks.get() + 1);
        let session = Rc::clone(self);
        shard::spawn(async move {
            session.execute(command, capsule).await;
            session.link.release(held);
            session.tasks.set(session.tasks.get() - 1);
            if session.tasks.get() == 0 {
                session.changed.notify();
            }
        });
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
                Some(News::Dead) => {
                    let outlives = self.queue > 0 && active(Mutant::QueuesOutliveController);
                    (!outlives).then(|| self.link.cut());
                    return;
                }
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
