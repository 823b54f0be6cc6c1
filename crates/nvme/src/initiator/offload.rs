//! The offload extension, host half: a namespace on a server that computes (`docs/offload-protocol.md`).
//!
//! A device has it if its controller has announced partial writes and reconstruction in a version that is
//! ours. Errors: see [`Offload`]. What the server says of the extension itself becomes
//! [`Refused`](pinstripe_runtime::DeviceErrorKind::Refused), but *fenced* becomes
//! [`Fenced`](pinstripe_runtime::DeviceErrorKind::Fenced) where the answer is about a write (plain ones,
//! commits, Attach), and a server that was started anew is *gone*: what it had not flushed may be lost, so
//! the member must come back by a re-add (C24).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use pinstripe_runtime::completion::Payload;
use pinstripe_runtime::{
    Attachment, Buffer, DeviceError, DeviceErrorKind, Offload, OffloadLimits, Reducers, Slice, Submission,
    Ticket, shard,
};

use super::association::{Association, Initiator, Lease};
use super::device::{NvmeDevice, NvmeSource};
use super::request::{Data, Failure, Pending, Purpose, Request};
use super::{Address, InitiatorError, Loss};
use crate::mutants::{Mutant, active};
use crate::wire::command::Command;
use crate::wire::offload::{
    self as wire, Announcement, Attach, Blocks, PeerAddress, QUERY_BYTES, Query, admin, feature,
};
use crate::wire::status::Status;

/// From this minor version on Attach may say which process of the host it is from.
const MINOR_OF_INSTANCES: u16 = 1;

/// From this minor version on Attach may end the other controllers of the host, and Query says whether this
/// one was ended.
const MINOR_OF_ENDS: u16 = 3;

/// What a device's server computes.
#[derive(Clone, Copy)]
pub(crate) struct Extension {
    limits: OffloadLimits,
    incarnation: [u8; 16],
    /// What of the extension it knows.
    minor: u16,
}

impl Extension {
    /// Of a controller that takes at most `transfer_bytes` per command.
    pub(super) fn of(association: &Association, transfer_bytes: u64) -> Option<Self> {
        let needed = feature::PARTIAL_WRITES | feature::RECONSTRUCTION;
        let announced = association.limits().offload.filter(|it| it.features & needed == needed)?;
        let transfer_bytes = u32::try_from(transfer_bytes).unwrap_or(u32::MAX);
        let range_bytes = announced.range_bytes.min(transfer_bytes);
        let limits = OffloadLimits { operations: announced.slots, range_bytes };
        Some(Self { limits, incarnation: announced.incarnation, minor: announced.minor })
    }

    /// Whether to be attached ends what other controllers of this host may do.
    pub(super) fn ends_others(self) -> bool {
        self.minor >= MINOR_OF_ENDS
    }
}

/// Attach, from whatever shard.
async fn attach(association: &Arc<Association>, namespace: u32, attach: &Attach) -> Result<(), Failure> {
    let bytes = attach.encode();
    let told = association.on_admin(move |queue| async move {
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let command = Command::new(admin::ATTACH, namespace).with_dword(10, length);
        let mut buffer = shard::buffer(bytes.len());
        buffer.copy_from_slice(&bytes);
        queue.tell(command, buffer.freeze()).await
    });
    told.await
}

async fn detach(association: &Arc<Association>, namespace: u32, give_up: bool) -> Result<(), Failure> {
    let told = association.on_admin(move |queue| async move {
        let command = Command::new(admin::DETACH, namespace).with_dword(10, u32::from(give_up));
        queue.ask(command, None).await.map(|_| ())
    });
    told.await
}

async fn query(association: &Arc<Association>, namespace: u32) -> Result<Query, Failure> {
    let asked = association.on_admin(move |queue| async move {
        let command = Command::new(admin::QUERY, namespace);
        let (_, buffer) = queue.ask(command, Some(shard::zeroed(QUERY_BYTES))).await?;
        let page = buffer.as_deref().and_then(|bytes| bytes.first_chunk::<QUERY_BYTES>()).map(Query::parse);
        page.ok_or(Failure::Lost)
    });
    asked.await
}

fn peer_address(text: &str) -> Result<PeerAddress, DeviceError> {
    let address: Address = text.parse().map_err(|_| DeviceError::of(DeviceErrorKind::Invalid))?;
    let Address { host, port, nqn, namespace, .. } = address;
    Ok(PeerAddress { namespace, port, host, nqn })
}

impl NvmeSource {
    /// What the server announced, if it has the extension in a version that is ours.
    pub fn offload(&self) -> Option<Announcement> {
        self.lease.association.limits().offload
    }

    /// The array and epoch of the namespace, whether it is attached, and what the server knows of its own
    /// link.
    pub async fn query(&self) -> Result<Query, InitiatorError> {
        let association = &self.lease.association;
        let asked = query(association, self.namespace.number).await;
        asked.map_err(|failure| association.failed("a query about its attachments", failure))
    }
}

impl NvmeDevice {
    fn limits(&self) -> OffloadLimits {
        self.offload.map_or(OffloadLimits { operations: 0, range_bytes: 0 }, |extension| extension.limits)
    }

    /// The blocks of an operation's range.
    fn range(&self, offset: u64, length: usize) -> Result<Blocks, DeviceError> {
        let range = self.blocks(offset, length as u64)?;
        let fits = length as u64 <= u64::from(self.limits().range_bytes);
        let count = u32::try_from(range.count).ok().filter(|_| fits);
        Ok(Blocks { start: range.start, count: count.ok_or(DeviceError::of(DeviceErrorKind::Invalid))? })
    }

    fn operate(
        &self,
        (request, ticket): (wire::Request, Ticket),
        (payload, length): (Payload, usize),
        data: Data,
        purpose: Purpose,
    ) -> Submission {
        let (submission, completion) = Submission::pending(payload);
        let asked = Request::of_operation(completion, length, purpose);
        let command = request.command(self.namespace.number, ticket);
        self.submit(Pending::new(command, data, &asked));
        self.queue.pump();
        submission
    }

    /// A first-phase command without data.
    fn first(&self, request: wire::Request, ticket: Ticket) -> Submission {
        self.operate((request, ticket), (Payload::None, 0), Data::None, Purpose::FirstPhase)
    }

    /// A first-phase command with data for the server.
    fn give(&self, request: wire::Request, ticket: Ticket, data: Slice) -> Submission {
        let payload = (Payload::Slice(data.clone()), data.len());
        self.operate((request, ticket), payload, Data::Write(data), Purpose::FirstPhase)
    }

    /// A first-phase command with data for us.
    fn fetch(&self, request: wire::Request, ticket: Ticket, buffer: Buffer) -> Submission {
        let length = buffer.len();
        let data = Data::Read { start: 0, length };
        self.operate((request, ticket), (Payload::Buffer(buffer), length), data, Purpose::FirstPhase)
    }

    /// An admin command, as a submission.
    fn administer<F>(&self, work: impl FnOnce(Arc<Lease>) -> F) -> Submission
    where
        F: Future<Output = Result<usize, Failure>> + 'static,
    {
        let (submission, completion) = Submission::pending(Payload::None);
        let work = work(Arc::clone(&self.lease));
        shard::spawn(async move { completion.finish(work.await.map_err(DeviceError::from)) });
        submission
    }
}

impl Offload for NvmeDevice {
    fn limits(&self) -> OffloadLimits {
        NvmeDevice::limits(self)
    }

    fn address(&self) -> String {
        let own = self.lease.association.address().clone();
        Address { namespace: self.namespace.number, header_digests: false, data_digests: false, ..own }
            .to_string()
    }

    fn epoch(&self) -> Submission {
        let namespace = self.namespace.number;
        self.administer(|lease| async move {
            let query = query(&lease.association, namespace).await?;
            if query.ended {
                return Err(Failure::Status(Status::FENCED));
            }
            Ok(usize::try_from(query.epoch).unwrap_or(usize::MAX))
        })
    }

    fn free_to_receive(&self) -> Submission {
        let namespace = self.namespace.number;
        self.administer(|lease| async move {
            let query = query(&lease.association, namespace).await?;
            Ok(usize::try_from(query.free_to_receive).unwrap_or(usize::MAX))
        })
    }

    fn attach(&self, attachment: &Attachment) -> Submission {
        let peers = attachment.peers.iter().map(|peer| peer.as_deref().map(peer_address).transpose());
        let peers: Vec<_> = match peers.collect() {
            Ok(peers) => peers,
            Err(error) => return Submission::done(Err(error), None),
        };
        if peers.len() > wire::PLACES_MAX || !(1..=wire::NUMBER_MAX).contains(&attachment.epoch) {
            return Submission::done(Err(DeviceError::of(DeviceErrorKind::Invalid)), None);
        }
        let knows = |minor| self.offload.is_some_and(|extension| extension.minor >= minor);
        let attach = Attach {
            array: attachment.array,
            epoch: attachment.epoch,
            generation: attachment.generation,
            peer: false,
            takeover: attachment.takeover,
            alone: attachment.alone && knows(MINOR_OF_ENDS),
            incarnation: self.offload.map_or([0; 16], |extension| extension.incarnation),
            instance: if knows(MINOR_OF_INSTANCES) {
                self.lease.association.options().instance
            } else {
                [0; 16]
            },
            peers,
        };
        let namespace = self.namespace.number;
        self.administer(|lease| async move {
            self::attach(&lease.association, namespace, &attach).await.map(|()| 0)
        })
    }

    fn detach(&self, give_up: bool) -> Submission {
        let namespace = self.namespace.number;
        self.administer(|lease| async move {
            self::detach(&lease.association, namespace, give_up).await.map(|()| 0)
        })
    }

    fn partial_write(
        &self,
        ticket: Ticket,
        offset: u64,
        data: Slice,
        modify: bool,
        reducers: Reducers,
    ) -> Submission {
        match self.range(offset, data.len()) {
            Ok(blocks) => self.give(wire::Request::PartialWrite { blocks, modify, reducers }, ticket, data),
            Err(error) => Submission::done(Err(error), None),
        }
    }

    fn contribute(&self, ticket: Ticket, offset: u64, length: u32, reducers: Reducers) -> Submission {
        match self.range(offset, length as usize) {
            Ok(blocks) => self.first(wire::Request::Contribute { blocks, reducers }, ticket),
            Err(error) => Submission::done(Err(error), None),
        }
    }

    fn read_contribute(&self, ticket: Ticket, offset: u64, buffer: Buffer, reducers: Reducers) -> Submission {
        match self.range(offset, buffer.len()) {
            Ok(blocks) => self.fetch(wire::Request::ReadContribute { blocks, reducers }, ticket, buffer),
            Err(error) => Submission::done(Err(error), Some(buffer)),
        }
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
        let blocks = match self.range(offset, length as usize) {
            Ok(blocks) if supplied.as_ref().is_none_or(|part| part.len() == length as usize) => blocks,
            Ok(_) => return Submission::done(Err(DeviceError::of(DeviceErrorKind::Invalid)), None),
            Err(error) => return Submission::done(Err(error), None),
        };
        let request = wire::Request::Parity { blocks, modify, supplied: supplied.is_some(), wait };
        match supplied {
            Some(part) => self.give(request, ticket, part),
            None => self.first(request, ticket),
        }
    }

    fn reduce(&self, ticket: Ticket, offset: u64, buffer: Buffer, coefficient: u8, wait: u16) -> Submission {
        match self.range(offset, buffer.len()) {
            Ok(blocks) => self.fetch(wire::Request::Reduce { blocks, coefficient, wait }, ticket, buffer),
            Err(error) => Submission::done(Err(error), Some(buffer)),
        }
    }

    fn commit(&self, ticket: Ticket, fua: bool) -> Submission {
        let request = wire::Request::Commit { fua };
        self.operate((request, ticket), (Payload::None, 0), Data::None, Purpose::Plain)
    }

    fn resolve(&self, ticket: Ticket) -> Submission {
        let request = wire::Request::Resolve;
        self.operate((request, ticket), (Payload::None, 0), Data::None, Purpose::Question)
    }
}

/// Commands of a link that nothing waits for any more, until it is ended.
const ABANDONED_MAX: u32 = 8;

/// A server as another server sees it.
pub(crate) struct ServerLink {
    lease: Arc<Lease>,
    /// Commands that nothing waits for any more. Perhaps they are answered by now.
    abandoned: AtomicU32,
}

impl Initiator {
    /// The server at `address`, whatever its namespaces. Call it on one and the same shard always.
    pub(crate) async fn link(self: &Arc<Self>, address: &Address) -> Result<ServerLink, InitiatorError> {
        Ok(ServerLink { lease: self.lease(address).await?, abandoned: AtomicU32::new(0) })
    }
}

impl ServerLink {
    pub fn is_lost(&self) -> bool {
        self.lease.association.has_ended()
    }

    /// Ends the association: what is under way on it is lost.
    pub fn end(&self) {
        self.lease.association.end(Loss::Dropped);
    }

    pub async fn attach(&self, namespace: u32, attach: &Attach) -> Result<(), Option<Status>> {
        self::attach(&self.lease.association, namespace, attach).await.map_err(status)
    }

    /// A command with data, on this shard's queue. `None` if the server is lost.
    ///
    /// If the future is dropped, the data stays with the queue until the server answers. One that answers no
    /// such command could have memory fill with it, so then the link is ended after a few (C35): what others
    /// have on it, they repeat on the next one.
    pub async fn tell(&self, command: Command, data: Slice) -> Result<(), Option<Status>> {
        let queue = self.lease.association.queue().map_err(|_| None)?;
        let mut waits = Waits { link: self, over: false };
        let told = queue.tell(command, data).await;
        waits.over = true;
        told.map_err(status)
    }
}

struct Waits<'a> {
    link: &'a ServerLink,
    over: bool,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        if self.over || active(Mutant::AbandonedKept) {
            return;
        }
        if self.link.abandoned.fetch_add(1, Ordering::Relaxed) + 1 >= ABANDONED_MAX {
            self.link.end();
        }
    }
}

fn status(failure: Failure) -> Option<Status> {
    match failure {
        Failure::Status(status) => Some(status),
        Failure::Lost => None,
    }
}
