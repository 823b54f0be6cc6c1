//! One connection: the receiver, and the requests it starts.
//!
//! ```text
//!   Stream ──> Inbound ──> Handshake / Transmission ──> reserve ──> a task per request ──> BlockService
//!   Stream <── Link::run <── batches, big buffers <── replies <──────────┘
//! ```
//!
//! The receiver takes headers and small payloads through a staging buffer, many at a time. Of a large payload
//! only what came along with its header is copied; the rest is received straight into the aligned buffer that
//! goes to the service.

use std::rc::Rc;

use pinstripe_runtime::{Buffer, Slice, Stream, block_bytes, shard};

use crate::pieces::piece_end;

use super::link::{Link, REPLY_BYTES};
use super::server::{Left, Security, SessionEnd};
use super::wire::ErrorCode;
use super::{
    ExportInfo, Handshake, HandshakeEnd, Negotiated, Operation, Replies, Reply, Request, Transmission,
    TransmissionEvent, Violation,
};
use pinstripe_block::mutants::{Mutant, active, early};
use pinstripe_block::outgoing::Patience;
use pinstripe_block::service::{BlockService, Client, ServiceError};

/// Bytes of the staging buffer.
const STAGING_BYTES: usize = 64 << 10;
/// Bytes received at a time while writes are large: little more than a header, since what is staged is
/// copied.
const STAGING_SMALL: usize = 4 << 10;
/// A payload from which on writes count as large.
const LARGE_WRITE: usize = 32 << 10;
/// Payload that is still missing and worth a receive of its own, straight to its place.
const DIRECT_BYTES: usize = 16 << 10;
/// A READ's data up to this is copied into a batch with other replies; larger data is sent from where it was
/// read.
const COPY_BYTES: usize = 8 << 10;
/// Room before a large READ's data for its header, so that both go out at once. A page, to keep the data
/// aligned.
const HEADROOM: usize = 4 << 10;
/// Time for the handshake; a client that haggles for longer is cut off.
const HANDSHAKE_NANOSECONDS: u64 = 30_000_000_000;

/// Received bytes that the core hasn't taken yet.
struct Inbound<T: ?Sized> {
    link: Rc<Link<T>>,
    /// Absent only during a receive.
    staging: Option<Buffer>,
    start: usize,
    end: usize,
    /// Bytes to receive at a time.
    window: usize,
}

impl<T: Stream + ?Sized> Inbound<T> {
    fn new(link: Rc<Link<T>>) -> Self {
        Self::with(link, &[])
    }

    /// Begins with all the bytes that were received before. With a header that had begun in an earlier fill
    /// they are more than one fill.
    fn with(link: Rc<Link<T>>, received: &[u8]) -> Self {
        let mut staging = shard::buffer(received.len().max(STAGING_BYTES));
        staging[..received.len()].copy_from_slice(received);
        Self { link, staging: Some(staging), start: 0, end: received.len(), window: STAGING_BYTES }
    }

    fn bytes(&self) -> &[u8] {
        self.staging.as_ref().map_or(&[], |staging| &staging[self.start..self.end])
    }

    fn consume(&mut self, count: usize) {
        self.start += count;
    }

    /// Receives more, when all was consumed. False at the connection's end; `between` two requests at the
    /// end too of a connection that shall be left.
    async fn more(&mut self, between: bool) -> bool {
        let Some(mut staging) = self.staging.take() else { return false };
        let part = staging.split_to(self.window.min(STAGING_BYTES));
        let (received, part) =
            if between { self.link.receive_request(part).await } else { self.link.receive(part).await };
        let Some(mut part) = part else { return false };
        part.unsplit(staging);
        self.staging = Some(part);
        (self.start, self.end) = (0, received);
        received > 0
    }
}

/// How a connection begins.
pub(super) enum Beginning<'a> {
    /// With the greeting, and with this security.
    Greeting(&'a Security),
    /// Where another process has left it.
    Left(&'a Left),
}

/// Runs a connection to its end; `link`'s sender must be running. Once it has chosen an export it has
/// `settled`.
pub(super) async fn run<T: Stream + ?Sized + 'static, S: BlockService>(
    link: &Rc<Link<T>>,
    beginning: Beginning<'_>,
    exports: &[ExportInfo],
    services: &[S],
    settled: impl FnOnce(),
) -> SessionEnd {
    let (inbound, negotiated) = match beginning {
        Beginning::Left(left) => (Inbound::with(Rc::clone(link), &left.received), left.negotiated),
        Beginning::Greeting(security) => {
            let mut inbound = Inbound::new(Rc::clone(link));
            let handshake = handshake(&mut inbound, security, exports);
            match shard::timeout(HANDSHAKE_NANOSECONDS, handshake).await {
                Some(Ok(negotiated)) => (inbound, negotiated),
                Some(Err(end)) => return end,
                None => return SessionEnd::HandshakeTimeout,
            }
        }
    };
    let (Some(export), Some(service)) = (exports.get(negotiated.export), services.get(negotiated.export))
    else {
        return SessionEnd::Closed;
    };
    settled();
    let client = {
        let link = Rc::clone(link);
        Client::new(move || link.has_hung_up())
    };
    let mut receiver = Receiver {
        inbound,
        core: Transmission::new(export, negotiated),
        requests: Requests {
            link: Rc::clone(link),
            service: service.clone().for_client(client),
            replies: Replies::new(negotiated.structured),
        },
    };
    receiver.run().await
}

async fn handshake<T: Stream + ?Sized>(
    inbound: &mut Inbound<T>,
    security: &Security,
    exports: &[ExportInfo],
) -> Result<Negotiated, SessionEnd> {
    let link = Rc::clone(&inbound.link);
    let mut handshake = Handshake::new(security.tls());
    loop {
        let output = handshake.output();
        link.send_copy(&[output], 0);
        output.clear();
        link.room().await;
        if inbound.bytes().is_empty() && !inbound.more(false).await {
            return Err(SessionEnd::Closed);
        }
        if link.stopping() {
            handshake.stop();
        }
        let step = handshake.receive(exports, inbound.bytes());
        inbound.consume(step.consumed);
        let Some(end) = step.end else { continue };
        link.send_copy(&[handshake.output()], 0);
        return match end {
            HandshakeEnd::Transmission(negotiated) => Ok(negotiated),
            HandshakeEnd::StartTls => {
                start_tls(inbound, security).await?;
                handshake = handshake.secured();
                continue;
            }
            HandshakeEnd::Aborted => Err(SessionEnd::Disconnected),
            HandshakeEnd::Violation(violation) => Err(SessionEnd::Violation(violation)),
        };
    }
}

/// Begins TLS, to which the client was told that the server agrees.
async fn start_tls<T: Stream + ?Sized>(inbound: &Inbound<T>, security: &Security) -> Result<(), SessionEnd> {
    // What came before TLS could have been said by anything on the way, so it must not count as said in it.
    let behind = inbound.bytes().len();
    if behind > 0 {
        return Err(SessionEnd::Violation(Violation::BehindStartTls(behind)));
    }
    if inbound.link.leaving() {
        return Err(SessionEnd::Closed);
    }
    let acceptor = security.acceptor().ok_or(SessionEnd::Closed)?;
    inbound.link.secure(acceptor).await.map_err(SessionEnd::Insecure)
}

/// The receiver of the transmission phase.
struct Receiver<T: ?Sized, S> {
    inbound: Inbound<T>,
    core: Transmission,
    requests: Requests<T, S>,
}

impl<T: Stream + ?Sized + 'static, S: BlockService> Receiver<T, S> {
    async fn run(&mut self) -> SessionEnd {
        loop {
            if let Some(left) = self.left() {
                return SessionEnd::Left(left);
            }
            // What belongs to a request that was refused comes whole, too.
            let between = self.core.begun_header().is_some();
            if self.inbound.bytes().is_empty() && !self.inbound.more(between).await {
                return self.left().map_or(SessionEnd::Closed, SessionEnd::Left);
            }
            if self.requests.link.stopping() {
                self.core.stop();
            }
            let step = self.core.receive(self.inbound.bytes());
            self.inbound.consume(step.consumed);
            let going = match step.event {
                None => true,
                Some(TransmissionEvent::Request(request)) => self.request(request).await,
                Some(TransmissionEvent::Reply(reply, _)) => {
                    self.requests.link.send_copy(&[reply.bytes()], 0);
                    self.requests.link.room().await;
                    self.requests.link.alive()
                }
                Some(TransmissionEvent::Disconnect) => return SessionEnd::Disconnected,
                Some(TransmissionEvent::Violation(violation)) => return SessionEnd::Violation(violation),
                // Payload is taken in `payload`, before the core is asked again.
                Some(TransmissionEvent::Payload) => false,
            };
            if !going {
                return SessionEnd::Closed;
            }
        }
    }

    /// What another process has to know of a connection that is to be left, if it can be here.
    fn left(&self) -> Option<Left> {
        let link = &self.inbound.link;
        let begun = self.core.begun_header().filter(|_| link.leaving() && link.alive())?;
        let received = [begun, self.inbound.bytes()].concat();
        Some(Left { negotiated: self.core.negotiated(), received })
    }

    /// Starts a request, unless it waits for room when the connection is to be left. False at the
    /// connection's end.
    async fn request(&mut self, Request { cookie, operation }: Request) -> bool {
        let held_bytes = held_bytes(operation);
        if !self.requests.link.reserve(held_bytes + REPLY_BYTES).await {
            return self.put_back();
        }
        let requests = self.requests.clone();
        match operation {
            Operation::Read { offset, length } => shard::spawn(async move {
                let left = requests.read(cookie, offset, length, held_bytes).await;
                requests.link.release(left);
            }),
            Operation::Write { offset, length, fua } => {
                requests.link.is_coming.set(true);
                let data = self.payload(length as usize).await;
                requests.link.is_coming.set(false);
                let Some(data) = data else {
                    requests.link.release(held_bytes + REPLY_BYTES);
                    return false;
                };
                shard::spawn(async move {
                    let early = active(Mutant::ReplyBeforeWrite);
                    if early {
                        requests.answer(cookie, Ok(()));
                    }
                    let result = requests.service.write(offset, data, fua).await;
                    if !early {
                        requests.answer(cookie, result);
                    }
                    requests.link.release(held_bytes);
                });
            }
            Operation::Flush => shard::spawn(async move {
                let idle =
                    active(Mutant::FlushOfIdleConnectionSkipped) && requests.link.is_idle_but_for_one();
                let result = if idle { Ok(()) } else { requests.service.flush().await };
                requests.answer(cookie, result);
                requests.link.release(held_bytes);
            }),
            Operation::Trim { offset, length, fua } => shard::spawn(async move {
                let trim = async |at, length| requests.service.discard(at, length, fua).await;
                requests.in_pieces(cookie, offset, length.into(), trim).await;
                requests.link.release(held_bytes);
            }),
            Operation::WriteZeroes { offset, length, fua, may_punch, fast_only } => {
                let length = u64::from(length);
                shard::spawn(async move {
                    if fast_only && !requests.service.zeroes_fast(offset, length, may_punch) {
                        let zero = async || {
                            let _ = requests.service.write_zeroes(offset, length, fua, may_punch).await;
                        };
                        early(Mutant::SlowZeroesDone, zero).await;
                        requests.refuse(
                            cookie,
                            ErrorCode::Unsupported,
                            "zeroes are no faster here than data",
                        );
                    } else {
                        let zero = async |at, length| {
                            requests.service.write_zeroes(at, length, fua, may_punch).await
                        };
                        requests.in_pieces(cookie, offset, length, zero).await;
                    }
                    requests.link.release(held_bytes);
                });
            }
        }
        true
    }

    /// A request was not let in. Another process begins it, or the connection has ended: then false.
    fn put_back(&mut self) -> bool {
        let link = &self.requests.link;
        let goes_over = link.leaving() && link.alive();
        if goes_over {
            self.core.put_back();
        }
        goes_over
    }

    /// Receives the payload of a write. `None` at the connection's end.
    async fn payload(&mut self, length: usize) -> Option<Slice> {
        self.inbound.window = if length >= LARGE_WRITE { STAGING_SMALL } else { STAGING_BYTES };
        let mut buffer = shard::buffer(length);
        let mut filled = 0;
        // Memory is held for it: a client that announces data and sends none, or little, must not keep it.
        let mut patience = Patience::new(length);
        while filled < length {
            let staged = self.inbound.bytes();
            let count = if !staged.is_empty() {
                let count = staged.len().min(length - filled);
                let repeated = if active(Mutant::PayloadPiecesOverlap) { filled.min(512) } else { 0 };
                buffer[filled - repeated..][..count].copy_from_slice(&staged[..count]);
                self.inbound.consume(count);
                count
            } else if length - filled < DIRECT_BYTES {
                if !patience.step(self.inbound.more(false)).await? {
                    return None;
                }
                continue;
            } else {
                let head = buffer.split_to(filled);
                let (count, rest) = patience.step(self.inbound.link.receive(buffer)).await?;
                buffer = head;
                buffer.unsplit(rest?);
                count
            };
            if count == 0 || !self.core.payload_received(u32::try_from(count).ok()?) {
                return None;
            }
            filled += count;
        }
        Some(buffer.freeze())
    }
}

/// Memory that a request takes, beside its reply's header: whole blocks of the pool.
fn held_bytes(operation: Operation) -> usize {
    match operation {
        Operation::Read { length, .. } if length as usize > COPY_BYTES => {
            block_bytes(length as usize + HEADROOM)
        }
        Operation::Read { length, .. } | Operation::Write { length, .. } => block_bytes(length as usize),
        Operation::Flush | Operation::Trim { .. } | Operation::WriteZeroes { .. } => 0,
    }
}

/// What a request's task needs.
struct Requests<T: ?Sized, S> {
    link: Rc<Link<T>>,
    service: S,
    replies: Replies,
}

impl<T: ?Sized, S: Clone> Clone for Requests<T, S> {
    fn clone(&self) -> Self {
        Self { link: Rc::clone(&self.link), service: self.service.clone(), replies: self.replies }
    }
}

impl<T: Stream + ?Sized, S: BlockService> Requests<T, S> {
    /// Carries out a READ for which `held` bytes are reserved, and answers it. Gives the bytes that didn't go
    /// with the reply.
    async fn read(&self, cookie: u64, offset: u64, length: u32, held: usize) -> usize {
        let bytes = length as usize;
        let reply = self.replies.read(cookie, offset, length);
        let header = reply.bytes();
        if bytes <= COPY_BYTES {
            let (result, data) = self.service.read(offset, shard::buffer(bytes)).await;
            if result.is_err() {
                self.answer(cookie, result);
                return held;
            }
            self.link.send_copy(&[header, &data], held + REPLY_BYTES);
            return 0;
        }
        let mut data = shard::buffer(HEADROOM + bytes);
        let mut head = data.split_to(HEADROOM);
        let (result, data) = self.service.read(offset, data).await;
        if result.is_err() {
            self.answer(cookie, result);
            return held;
        }
        let start = HEADROOM - header.len();
        head[start..].copy_from_slice(header);
        // In place, unless the read came back with other memory: then both are copied.
        head.unsplit(data);
        self.link.send(head.freeze().slice(start, header.len() + bytes), held + REPLY_BYTES);
        0
    }

    /// Carries out a request on a long range piece by piece, and answers it. It ends early when the
    /// connection is over: what is left of it must not change what others write later, nor keep a server that
    /// stops.
    async fn in_pieces(
        &self,
        cookie: u64,
        offset: u64,
        length: u64,
        act: impl AsyncFn(u64, u64) -> Result<(), ServiceError>,
    ) {
        let (mut at, stop) = (offset, offset + length);
        loop {
            let end = piece_end(at, stop, self.service.discard_granularity());
            let result = act(at, end - at).await;
            if result.is_err() || end == stop {
                return self.answer(cookie, result);
            }
            if let Some(why) = self.link.over() {
                return self.refuse(cookie, ErrorCode::Shutdown, why);
            }
            at = end;
        }
    }

    /// Replies to a request that returns no data, or that failed.
    fn answer(&self, cookie: u64, result: Result<(), ServiceError>) {
        match result {
            Ok(()) => self.reply(&Replies::done(cookie)),
            Err(error) => self.refuse(cookie, code(error), error.message()),
        }
    }

    fn refuse(&self, cookie: u64, error: ErrorCode, message: &str) {
        self.reply(&self.replies.error(cookie, error, message));
    }

    fn reply(&self, reply: &Reply) {
        self.link.send_copy(&[reply.bytes()], REPLY_BYTES);
    }
}

fn code(error: ServiceError) -> ErrorCode {
    match error {
        ServiceError::Io | ServiceError::Gone => ErrorCode::Io,
        ServiceError::NoSpace => ErrorCode::Space,
        ServiceError::ReadOnly => ErrorCode::Permission,
        ServiceError::Resources => ErrorCode::Memory,
        ServiceError::Stopping => ErrorCode::Shutdown,
    }
}
