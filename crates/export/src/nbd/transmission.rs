//! The transmission phase: request headers in, checked requests out.
//!
//! [`Transmission::receive`] takes the stream piece by piece: a header, or a part of a write's payload. A
//! write's payload isn't stored here. The caller either passes it through `receive`
//! ([`TransmissionEvent::Payload`] says which bytes of the input it was) or receives it straight to where it
//! belongs and says so with [`Transmission::payload_received`].
//!
//! What the core can answer alone, it answers: refused requests, empty ones, CACHE (a hint that has no effect
//! here) and BLOCK_STATUS (all of an array is allocated). The payload of a refused write is skipped before
//! the refusal is given out, so that a client that first sends all and then reads sees no reply in the middle
//! of its request.

use super::Violation;
use super::handshake::Negotiated;
use super::info::ExportInfo;
use super::reply::{Replies, Reply};
use super::wire::{self, ErrorCode, PAYLOAD_BYTES_MAX, RequestHeader, command, command_flag};

/// Payload of a write that is skipped with an error reply; beyond it the length itself is not believed.
const SKIP_BYTES_MAX: u32 = 2 * PAYLOAD_BYTES_MAX;

/// What a request wants. Ranges lie within the export, are aligned to its block size and are not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Read `length` bytes, at most [`PAYLOAD_BYTES_MAX`]. Answer by [`Replies::read`].
    Read {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u32,
    },
    /// Write the `length` bytes of payload that come next, at most [`PAYLOAD_BYTES_MAX`].
    Write {
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u32,
        /// Durable before the reply.
        fua: bool,
    },
    /// Make every write that was answered before durable.
    Flush,
    /// The bytes may be forgotten.
    Trim {
        /// First byte.
        offset: u64,
        /// Bytes; may exceed [`PAYLOAD_BYTES_MAX`].
        length: u32,
        /// Durable before the reply.
        fua: bool,
    },
    /// The bytes must read as zero.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Bytes; may exceed [`PAYLOAD_BYTES_MAX`].
        length: u32,
        /// Durable before the reply.
        fua: bool,
        /// The storage may be deallocated, as long as it reads as zero.
        may_punch: bool,
        /// Only if faster than a write of the same length; else to be refused with [`ErrorCode::Unsupported`]
        /// and nothing changed.
        fast_only: bool,
    },
}

/// A checked request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// The client's name for it, to be repeated in the reply.
    pub cookie: u64,
    /// What it wants.
    pub operation: Operation,
}

/// What came out of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TransmissionEvent {
    /// A request for the block service. After a [`Operation::Write`] its payload is due.
    Request(Request),
    /// All bytes consumed by this step are payload of the last write.
    Payload,
    /// To be sent as it is; needs no service. With the error that it tells, for statistics.
    Reply(Reply, Option<ErrorCode>),
    /// The client leaves: answer what is in flight, then close.
    Disconnect,
    /// The client must be cut off.
    Violation(Violation),
}

/// Result of [`Transmission::receive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct TransmissionStep {
    /// Bytes of the input that were taken. 0 only for empty input or after the end.
    pub consumed: usize,
    /// What came of them; `None` if more bytes are needed.
    pub event: Option<TransmissionEvent>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TransmissionState {
    Header,
    Payload { left: u32 },
    Skip { left: u32, cookie: u64, refused: Refused },
    Ended,
}

/// Why a request isn't handed to the service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Refused(ErrorCode, &'static str);

/// Range and flags of a request, before they are believed.
struct Claim {
    flags: u16,
    offset: u64,
    length: u32,
}

/// The transmission phase of one connection, seen from the server.
#[derive(Debug)]
pub struct Transmission {
    state: TransmissionState,
    header: [u8; size_of::<RequestHeader>()],
    filled: usize,
    replies: Replies,
    negotiated: Negotiated,
    stopping: bool,
    size_bytes: u64,
    block_mask: u64,
    read_only: bool,
}

impl Transmission {
    /// Begins after the handshake; `export` is the one that [`Negotiated::export`] chose.
    pub fn new(export: &ExportInfo, negotiated: Negotiated) -> Self {
        Self {
            state: TransmissionState::Header,
            header: [0; size_of::<RequestHeader>()],
            filled: 0,
            replies: Replies::new(negotiated.structured),
            negotiated,
            stopping: false,
            size_bytes: export.size_bytes(),
            block_mask: u64::from(export.block_size()) - 1,
            read_only: export.read_only(),
        }
    }

    /// The encoder for the replies of this connection.
    pub fn replies(&self) -> Replies {
        self.replies
    }

    /// From now on every request is refused with [`ErrorCode::Shutdown`].
    pub fn stop(&mut self) {
        self.stopping = true;
    }

    /// Between two requests: the bytes of the next one's header that have come. `None` in the midst of a
    /// request's payload, and after the end.
    pub fn begun_header(&self) -> Option<&[u8]> {
        (self.state == TransmissionState::Header).then(|| &self.header[..self.filled])
    }

    /// The request that has just come isn't begun here: its header is that of the next one.
    pub fn put_back(&mut self) {
        (self.state, self.filled) = (TransmissionState::Header, self.header.len());
    }

    /// What was agreed on.
    pub fn negotiated(&self) -> Negotiated {
        self.negotiated
    }

    /// Bytes of the current write's payload that haven't come yet; 0 if a header is due.
    pub fn payload_left(&self) -> u32 {
        if let TransmissionState::Payload { left } = self.state { left } else { 0 }
    }

    /// `count` bytes of payload were received elsewhere.
    ///
    /// Returns false, and ends the connection's core, if so many weren't due: that is an error of the caller,
    /// after which the place in the stream is lost.
    #[must_use]
    pub fn payload_received(&mut self, count: u32) -> bool {
        match self.payload_left().checked_sub(count) {
            Some(0) => self.state = TransmissionState::Header,
            Some(left) => self.state = TransmissionState::Payload { left },
            None => self.state = TransmissionState::Ended,
        }
        self.state != TransmissionState::Ended
    }

    /// Takes bytes from the client, up to the end of the piece that is due; call again with the rest.
    pub fn receive(&mut self, input: &[u8]) -> TransmissionStep {
        let available = u32::try_from(input.len()).unwrap_or(u32::MAX);
        if available == 0 {
            return TransmissionStep { consumed: 0, event: None };
        }
        match self.state {
            TransmissionState::Header => self.receive_header(input),
            TransmissionState::Payload { left } => {
                let consumed = left.min(available);
                self.state = after(left, consumed);
                TransmissionStep { consumed: consumed as usize, event: Some(TransmissionEvent::Payload) }
            }
            TransmissionState::Skip { left, cookie, refused } => {
                let consumed = left.min(available);
                self.state = TransmissionState::Skip { left: left - consumed, cookie, refused };
                let event = (left == consumed).then(|| self.refuse(cookie, refused));
                TransmissionStep { consumed: consumed as usize, event }
            }
            TransmissionState::Ended => TransmissionStep { consumed: 0, event: None },
        }
    }

    fn receive_header(&mut self, input: &[u8]) -> TransmissionStep {
        let consumed = input.len().min(self.header.len() - self.filled);
        self.header[self.filled..self.filled + consumed].copy_from_slice(&input[..consumed]);
        self.filled += consumed;
        if self.filled < self.header.len() {
            return TransmissionStep { consumed, event: None };
        }
        self.filled = 0;
        let header = zerocopy::transmute!(self.header);
        let event = self.request(header);
        if matches!(event, Some(TransmissionEvent::Disconnect | TransmissionEvent::Violation(_))) {
            self.state = TransmissionState::Ended;
        }
        TransmissionStep { consumed, event }
    }

    /// A whole header has come.
    fn request(&mut self, header: RequestHeader) -> Option<TransmissionEvent> {
        let (cookie, command) = (header.cookie.get(), header.command.get());
        let claim =
            Claim { flags: header.flags.get(), offset: header.offset.get(), length: header.length.get() };
        if header.magic.get() != wire::REQUEST_MAGIC {
            return Some(TransmissionEvent::Violation(Violation::RequestMagic(header.magic.get())));
        }
        if command == command::DISC {
            return Some(TransmissionEvent::Disconnect);
        }
        let payload = if command == command::WRITE { claim.length } else { 0 };
        if payload > SKIP_BYTES_MAX {
            return Some(TransmissionEvent::Violation(Violation::WriteLength(payload)));
        }
        match self.check(command, &claim) {
            Ok(Some(operation)) => {
                self.state = after(payload, 0);
                Some(TransmissionEvent::Request(Request { cookie, operation }))
            }
            Ok(None) => Some(TransmissionEvent::Reply(self.immediate(command, cookie, &claim), None)),
            Err(refused) if payload == 0 => Some(self.refuse(cookie, refused)),
            Err(refused) => {
                self.state = TransmissionState::Skip { left: payload, cookie, refused };
                None
            }
        }
    }

    /// Checks a request. `None` for one that the core answers itself.
    fn check(&self, command: u16, claim: &Claim) -> Result<Option<Operation>, Refused> {
        if self.stopping {
            return Err(Refused(ErrorCode::Shutdown, "the server is stopping"));
        }
        self.check_flags(command, claim.flags)?;
        self.check_range(command, claim)?;
        let &Claim { flags, offset, length } = claim;
        let fua = flags & command_flag::FUA != 0;
        // FLUSH has no range; for all others an empty range is legal and leaves nothing to do.
        if length == 0 && command != command::FLUSH {
            return Ok(None);
        }
        Ok(match command {
            command::READ => Some(Operation::Read { offset, length }),
            command::WRITE => Some(Operation::Write { offset, length, fua }),
            command::FLUSH => Some(Operation::Flush),
            command::TRIM => Some(Operation::Trim { offset, length, fua }),
            command::WRITE_ZEROES => Some(Operation::WriteZeroes {
                offset,
                length,
                fua,
                may_punch: flags & command_flag::NO_HOLE == 0,
                fast_only: flags & command_flag::FAST_ZERO != 0,
            }),
            _ => None,
        })
    }

    /// Whether the command is known and its flags are legal. FUA is legal everywhere ("Command flags").
    fn check_flags(&self, command: u16, flags: u16) -> Result<(), Refused> {
        let legal = match command {
            command::READ if self.negotiated.structured => command_flag::DF,
            command::READ | command::WRITE | command::FLUSH | command::TRIM | command::CACHE => 0,
            // FAST_ZERO is announced, and so legal, only where writes are; others are refused below anyway.
            command::WRITE_ZEROES => command_flag::NO_HOLE | command_flag::FAST_ZERO,
            command::BLOCK_STATUS if self.negotiated.allocation => command_flag::REQ_ONE,
            command::BLOCK_STATUS => {
                return Err(Refused(ErrorCode::Invalid, "no metadata context was selected for this export"));
            }
            _ => return Err(Refused(ErrorCode::Invalid, "this server does not support the command")),
        };
        if flags & !(legal | command_flag::FUA) != 0 {
            return Err(Refused(ErrorCode::Invalid, "the command has a flag that it does not take"));
        }
        Ok(())
    }

    /// Whether the range may be touched by the command ("Error values", "Block size constraints").
    fn check_range(&self, command: u16, claim: &Claim) -> Result<(), Refused> {
        let &Claim { offset, length, .. } = claim;
        if command == command::FLUSH {
            let reserved = offset != 0 || length != 0;
            return if reserved {
                Err(Refused(ErrorCode::Invalid, "a flush takes no range"))
            } else {
                Ok(())
            };
        }
        let writes = matches!(command, command::WRITE | command::TRIM | command::WRITE_ZEROES);
        if writes && self.read_only {
            return Err(Refused(ErrorCode::Permission, "the export is read-only"));
        }
        // TRIM and WRITE_ZEROES carry no payload. Clients that don't know about limits (Linux) send longer
        // ones.
        let limited = matches!(command, command::READ | command::WRITE | command::CACHE);
        if limited && length > PAYLOAD_BYTES_MAX {
            return Err(Refused(ErrorCode::Invalid, "the request is longer than the maximum block size"));
        }
        if (offset | u64::from(length)) & self.block_mask != 0 {
            return Err(Refused(ErrorCode::Invalid, "the request is not aligned to the block size"));
        }
        if offset.checked_add(u64::from(length)).is_none_or(|end| end > self.size_bytes) {
            let extends = matches!(command, command::WRITE | command::WRITE_ZEROES);
            let error = if extends { ErrorCode::Space } else { ErrorCode::Invalid };
            return Err(Refused(error, "the request reaches past the end of the export"));
        }
        if length == 0 && command == command::BLOCK_STATUS {
            return Err(Refused(ErrorCode::Invalid, "no extent can describe an empty range"));
        }
        Ok(())
    }

    /// The answer to a legal request that needs no service: CACHE, BLOCK_STATUS and what is empty.
    fn immediate(&self, command: u16, cookie: u64, claim: &Claim) -> Reply {
        match command {
            command::READ => self.replies.read(cookie, claim.offset, 0),
            command::BLOCK_STATUS => Replies::allocated(cookie, claim.length),
            _ => Replies::done(cookie),
        }
    }

    fn refuse(&mut self, cookie: u64, refused: Refused) -> TransmissionEvent {
        self.state = TransmissionState::Header;
        let Refused(error, message) = refused;
        TransmissionEvent::Reply(self.replies.error(cookie, error, message), Some(error))
    }
}

/// The state when `taken` of `left` bytes of payload have come.
fn after(left: u32, taken: u32) -> TransmissionState {
    if left == taken { TransmissionState::Header } else { TransmissionState::Payload { left: left - taken } }
}
