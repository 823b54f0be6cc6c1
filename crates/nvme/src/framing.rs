//! A stream of PDUs, cut and checked: bytes in, PDUs out. No I/O; both ends use it.
//!
//! [`Framer::receive`] takes headers piece by piece. The data behind a header isn't stored here: the caller
//! passes it through [`Framer::data_received`], straight from where it put it, and then, if data digests are
//! on, gives the digest to [`Framer::receive`], which says whether it fits.
//!
//! What is checked here: the type against the role, every length against the type and against what was
//! agreed, digests. What a PDU means in the state of its connection is checked by the sessions.

use zerocopy::{FromBytes, IntoBytes};

use crate::mutants::{Mutant, active};
use crate::wire::Crc;
use crate::wire::command::{Command, Completion};
use crate::wire::pdu::{
    CommandCapsule, CommonHeader, FatalError, InitializeConnection, ResponseCapsule, TERMINATION_COPY_MAX,
    Termination, Transfer, flag, kind,
};

/// Which end this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Receives commands.
    Controller,
    /// Sends commands.
    Host,
}

/// A checked PDU, without its data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pdu {
    /// ICReq or ICResp.
    Initialize(InitializeConnection),
    /// A command and the bytes of data in its capsule.
    Command(Command, u32),
    /// A completion.
    Response(Completion),
    /// H2CData or C2HData, and its flags.
    Data(Transfer, u8),
    /// Ready to transfer.
    Ready(Transfer),
    /// The peer ends the connection: status and information.
    Terminated(u16, u32),
}

/// What came out of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A PDU. If it has data, [`Framer::data_left`] says how much of it follows.
    Pdu(Pdu),
    /// The data digest has come; whether it fits.
    DataDigest(bool),
    /// The stream can't be understood any more: why, and which byte of the header.
    Fatal(FatalError, u32),
}

/// Result of [`Framer::receive`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Step {
    /// Bytes of the input that were taken.
    pub consumed: usize,
    /// What came of them; `None` if more bytes are needed.
    pub event: Option<Event>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FramingState {
    /// The first header bytes, up to `wanted`.
    Header,
    /// Data is due, then perhaps its digest.
    Data {
        left: u32,
    },
    Digest,
    Ended,
}

/// Longest header with digest and padding: the data offset is a byte.
const HEADER_MAX: usize = 256;
const COMMON: usize = size_of::<CommonHeader>();

/// Most bytes of data in one PDU that is believed, before commands are looked at.
pub const DATA_MAX: u32 = 32 << 20;

/// See the module.
#[derive(Debug)]
pub struct Framer {
    role: Role,
    state: FramingState,
    header: [u8; HEADER_MAX],
    filled: usize,
    wanted: usize,
    header_digests: bool,
    data_digests: bool,
    crc: Crc,
    digest: [u8; 4],
    digest_filled: usize,
    /// What the current PDU's header says about a data digest.
    digest_due: bool,
}

impl Framer {
    /// Begins with a connection; no digests until [`Framer::set_digests`].
    pub fn new(role: Role) -> Self {
        Self {
            role,
            state: FramingState::Header,
            header: [0; HEADER_MAX],
            filled: 0,
            wanted: COMMON,
            header_digests: false,
            data_digests: false,
            crc: Crc::default(),
            digest: [0; 4],
            digest_filled: 0,
            digest_due: false,
        }
    }

    /// What was agreed, from the next PDU on.
    pub fn set_digests(&mut self, header: bool, data: bool) {
        self.header_digests = header;
        self.data_digests = data;
    }

    /// Bytes of the current PDU's data that haven't come yet.
    pub fn data_left(&self) -> u32 {
        if let FramingState::Data { left } = self.state { left } else { 0 }
    }

    /// The header of the last PDU, for the message that says what was wrong with it.
    pub fn header(&self) -> &[u8] {
        &self.header[..usize::from(self.header[2]).min(TERMINATION_COPY_MAX).min(self.filled)]
    }

    /// What has come of the next PDU's header; `None` within a PDU.
    pub fn begun(&self) -> Option<&[u8]> {
        let filled = if self.filled == self.wanted { 0 } else { self.filled };
        (self.state == FramingState::Header).then(|| &self.header[..filled])
    }

    /// These bytes of data were received. Returns whether a [`Event::DataDigest`] is due before the next PDU
    /// once no data is left; `None`, and the stream is at its end, if so many weren't due: that is an error
    /// of the caller.
    #[must_use]
    pub fn data_received(&mut self, bytes: &[u8]) -> Option<bool> {
        let count = u32::try_from(bytes.len()).ok();
        let Some(left) = count.and_then(|count| self.data_left().checked_sub(count)) else {
            self.state = FramingState::Ended;
            return None;
        };
        if self.digest_due {
            self.crc.update(bytes);
        }
        self.state = match (left, self.digest_due) {
            (0, true) => FramingState::Digest,
            (0, false) => FramingState::Header,
            _ => FramingState::Data { left },
        };
        Some(self.digest_due)
    }

    /// Takes bytes up to the end of the piece that is due; call again with the rest. Takes none while data is
    /// due.
    pub fn receive(&mut self, input: &[u8]) -> Step {
        match self.state {
            FramingState::Header => self.receive_header(input),
            FramingState::Digest => {
                let consumed = input.len().min(4 - self.digest_filled);
                self.digest[self.digest_filled..][..consumed].copy_from_slice(&input[..consumed]);
                self.digest_filled += consumed;
                if self.digest_filled < 4 {
                    return Step { consumed, event: None };
                }
                self.state = FramingState::Header;
                let intact = self.digest == self.crc.bytes() || active(Mutant::DataDigestIgnored);
                Step { consumed, event: Some(Event::DataDigest(intact)) }
            }
            FramingState::Data { .. } | FramingState::Ended => Step { consumed: 0, event: None },
        }
    }

    fn receive_header(&mut self, input: &[u8]) -> Step {
        if self.filled == self.wanted {
            (self.filled, self.wanted) = (0, COMMON);
        }
        let consumed = input.len().min(self.wanted - self.filled);
        self.header[self.filled..self.filled + consumed].copy_from_slice(&input[..consumed]);
        self.filled += consumed;
        if self.filled < self.wanted {
            return Step { consumed, event: None };
        }
        let done = if self.wanted == COMMON { self.common().map(|()| None) } else { self.whole().map(Some) };
        let event = match done {
            Ok(None) => None,
            Ok(Some(pdu)) => Some(Event::Pdu(pdu)),
            Err(Refused(error, at)) => {
                self.state = FramingState::Ended;
                Some(Event::Fatal(error, at))
            }
        };
        Step { consumed, event }
    }

    fn common_header(&self) -> CommonHeader {
        let bytes: [u8; COMMON] = std::array::from_fn(|index| self.header[index]);
        zerocopy::transmute!(bytes)
    }

    /// The common header has come: checks the lengths and finds out how long the rest is.
    fn common(&mut self) -> Result<(), Refused> {
        let common = self.common_header();
        let shape = Shape::of(common.kind, self.role).ok_or(Refused(FatalError::Sequence, 0))?;
        let header = u32::from(common.header_length);
        if u32::from(shape.header) != header {
            return Err(Refused(FatalError::InvalidHeader, 2));
        }
        let digested = shape.digests && self.header_digests;
        if (common.flags & flag::HDGST != 0) != digested {
            return Err(Refused(FatalError::InvalidHeader, 1));
        }
        let front = header + if digested { 4 } else { 0 };
        let length = common.length.get();
        let wanted = if shape.terminates {
            // What follows is a copy of our own header. It is read and thrown away.
            if length < header || length > header + u32::try_from(TERMINATION_COPY_MAX).unwrap_or(0) {
                return Err(Refused(FatalError::InvalidHeader, 4));
            }
            length
        } else if length == front || (shape.data_optional && common.data_offset == 0) {
            if length != front || shape.data_required {
                return Err(Refused(FatalError::InvalidHeader, 4));
            }
            front
        } else {
            self.data_length(shape, common, front)?;
            u32::from(common.data_offset)
        };
        self.wanted = usize::try_from(wanted).unwrap_or(HEADER_MAX).min(HEADER_MAX);
        Ok(())
    }

    /// Bytes of data of a PDU that has some.
    fn data_length(&self, shape: Shape, common: CommonHeader, front: u32) -> Result<u32, Refused> {
        if !shape.data_optional && !shape.data_required {
            return Err(Refused(FatalError::InvalidHeader, 4));
        }
        let offset = u32::from(common.data_offset);
        if offset < front || !offset.is_multiple_of(4) {
            return Err(Refused(FatalError::InvalidHeader, 3));
        }
        let digest = if common.flags & flag::DDGST != 0 { 4 } else { 0 };
        if (digest != 0) != self.data_digests {
            return Err(Refused(FatalError::InvalidHeader, 1));
        }
        match common.length.get().checked_sub(offset + digest) {
            Some(length @ 1..=DATA_MAX) => Ok(length),
            Some(0) | None => Err(Refused(FatalError::InvalidHeader, 4)),
            Some(_) => Err(Refused(FatalError::DataTransferLimit, 4)),
        }
    }

    /// The whole header has come, with digest and padding.
    fn whole(&mut self) -> Result<Pdu, Refused> {
        let common = self.common_header();
        let header_length = usize::from(common.header_length);
        if common.flags & flag::HDGST != 0 && !matches!(common.kind, kind::H2C_TERM_REQ | kind::C2H_TERM_REQ)
        {
            let expected = Crc::of(&self.header[..header_length]);
            let differs = self.header[header_length..header_length + 4] != expected;
            if differs && !active(Mutant::HeaderDigestIgnored) {
                return Err(Refused(FatalError::HeaderDigest, 0));
            }
        }
        let shape = Shape::of(common.kind, self.role).ok_or(Refused(FatalError::Sequence, 0))?;
        let has_data = common.data_offset != 0
            && (shape.data_optional || shape.data_required)
            && common.length.get() as usize > self.wanted;
        let front =
            u32::try_from(header_length).unwrap_or(0) + if common.flags & flag::HDGST != 0 { 4 } else { 0 };
        let data = if has_data { self.data_length(shape, common, front)? } else { 0 };
        let bytes = &self.header[..header_length];
        let pdu = parse(common, bytes, data)?;
        if data > 0 {
            self.state = FramingState::Data { left: data };
            self.digest_due = self.data_digests;
            self.crc = Crc::default();
            self.digest_filled = 0;
        }
        Ok(pdu)
    }
}

struct Refused(FatalError, u32);

/// What a type of PDU looks like.
#[derive(Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is a row of the specification's tables")]
struct Shape {
    header: u8,
    digests: bool,
    data_optional: bool,
    data_required: bool,
    terminates: bool,
}

impl Shape {
    /// The shape of a type that `role` may receive.
    fn of(kind: u8, role: Role) -> Option<Self> {
        let plain =
            Self { header: 24, digests: true, data_optional: false, data_required: false, terminates: false };
        let shape = match (kind, role) {
            (kind::IC_REQ, Role::Controller) | (kind::IC_RESP, Role::Host) => {
                Self { header: 128, digests: false, ..plain }
            }
            (kind::H2C_TERM_REQ, Role::Controller) | (kind::C2H_TERM_REQ, Role::Host) => {
                Self { digests: false, terminates: true, ..plain }
            }
            (kind::CAPSULE_CMD, Role::Controller) => Self { header: 72, data_optional: true, ..plain },
            (kind::H2C_DATA, Role::Controller) | (kind::C2H_DATA, Role::Host) => {
                Self { data_required: true, ..plain }
            }
            (kind::CAPSULE_RESP | kind::R2T, Role::Host) => plain,
            _ => return None,
        };
        Some(shape)
    }
}

fn parse(common: CommonHeader, bytes: &[u8], data: u32) -> Result<Pdu, Refused> {
    let malformed = || Refused(FatalError::InvalidHeader, 2);
    Ok(match common.kind {
        kind::IC_REQ | kind::IC_RESP => {
            Pdu::Initialize(InitializeConnection::read_from_bytes(bytes).map_err(|_| malformed())?)
        }
        kind::CAPSULE_CMD => {
            Pdu::Command(CommandCapsule::read_from_bytes(bytes).map_err(|_| malformed())?.command, data)
        }
        kind::CAPSULE_RESP => {
            Pdu::Response(ResponseCapsule::read_from_bytes(bytes).map_err(|_| malformed())?.completion)
        }
        kind::H2C_DATA | kind::C2H_DATA => {
            let transfer = Transfer::read_from_bytes(bytes).map_err(|_| malformed())?;
            if transfer.length.get() != data {
                return Err(Refused(FatalError::InvalidHeader, 16));
            }
            Pdu::Data(transfer, common.flags)
        }
        kind::R2T => Pdu::Ready(Transfer::read_from_bytes(bytes).map_err(|_| malformed())?),
        _ => {
            let termination = Termination::read_from_bytes(bytes).map_err(|_| malformed())?;
            Pdu::Terminated(termination.status.get(), termination.information.get())
        }
    })
}

/// How this end sends: digests and the alignment that the peer asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Encoding {
    /// Header digests are on.
    pub header_digests: bool,
    /// Data digests are on.
    pub data_digests: bool,
    /// Data begins at a multiple of this many bytes; 0 or 4 to 128.
    pub alignment: u8,
}

/// A header ready to be sent: at most [`HEADER_BYTES_MAX`] bytes.
#[derive(Clone, Copy)]
pub struct Encoded {
    bytes: [u8; HEADER_BYTES_MAX],
    length: usize,
}

/// Most bytes of an encoded header with digest and padding: an ICReq, or a command with its data aligned to
/// 128.
pub const HEADER_BYTES_MAX: usize = 128;

impl Encoded {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl Encoding {
    /// Finishes a header of `kind` in front of `data` bytes of data: lengths, flags, digest, padding. Of
    /// `header` the common part is filled in here.
    pub fn header<T: IntoBytes + zerocopy::Immutable>(
        &self,
        kind: u8,
        flags: u8,
        header: &T,
        data: u32,
    ) -> Encoded {
        let plain = matches!(kind, kind::IC_REQ | kind::IC_RESP | kind::H2C_TERM_REQ | kind::C2H_TERM_REQ);
        let source = header.as_bytes();
        let mut encoded = Encoded { bytes: [0; HEADER_BYTES_MAX], length: source.len() };
        let digest = self.header_digests && !plain;
        let data_digest = self.data_digests && data > 0;
        let mut front = source.len() + if digest { 4 } else { 0 };
        if data > 0 && self.alignment > 0 {
            front = front.next_multiple_of(usize::from(self.alignment));
        }
        let total = front + data as usize + if data_digest { 4 } else { 0 };
        encoded.bytes[..source.len()].copy_from_slice(source);
        let common = CommonHeader {
            kind,
            flags: flags | if digest { flag::HDGST } else { 0 } | if data_digest { flag::DDGST } else { 0 },
            header_length: source.len().to_le_bytes()[0],
            data_offset: if data > 0 { front.to_le_bytes()[0] } else { 0 },
            length: u32::try_from(total).unwrap_or(u32::MAX).into(),
        };
        encoded.bytes[..COMMON].copy_from_slice(common.as_bytes());
        if digest {
            let crc = Crc::of(&encoded.bytes[..source.len()]);
            encoded.bytes[source.len()..source.len() + 4].copy_from_slice(&crc);
        }
        encoded.length = front;
        encoded
    }

    /// The digest behind `data`, if there is to be one.
    pub fn trailer(&self, data: &[u8]) -> Option<[u8; 4]> {
        (self.data_digests && !data.is_empty()).then(|| Crc::of(data))
    }
}

/// A common header of zeroes, for [`Encoding::header`] to fill in.
pub const BLANK: CommonHeader = CommonHeader {
    kind: 0,
    flags: 0,
    header_length: 0,
    data_offset: 0,
    length: zerocopy::byteorder::little_endian::U32::ZERO,
};
