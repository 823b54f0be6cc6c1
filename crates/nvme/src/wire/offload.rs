//! The offload extension: parity computed by the servers. Section numbers are those of
//! `docs/offload-protocol.md`.
//!
//! What is parsed is whole and makes sense by itself: reserved bytes are zero, ranges have blocks, places
//! exist, coefficients aren't zero. Whether it makes sense to *this* server (size of the namespace, state of
//! the operation) is for the target.

use pinstripe_runtime::{OperationId, Reducer, Reducers, Ticket};
use zerocopy::byteorder::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::command::{Command, FORCE_UNIT_ACCESS};
use super::identify::{self, VENDOR_AREA};
use super::status::Status;
use super::{nqn_is_valid, put_text};

/// Major version that is spoken.
pub const MAJOR: u16 = 1;
/// Minor version.
pub const MINOR: u16 = 3;
/// What a Peer counts its part in, whatever the namespaces' logical blocks.
pub const PEER_UNIT_BYTES: usize = 512;
/// Most places of a table of peers.
pub const PLACES_MAX: usize = 64;
pub use pinstripe_runtime::offload::{EPOCH_STEP_MAX, NUMBER_MAX};
/// Bytes of Query's data.
pub const QUERY_BYTES: usize = 4096;

const MAGIC: &[u8; 8] = b"PINSTRPE";
const ATTACH_BYTES: usize = 4096;
const ENTRY_BYTES: usize = 512;
/// Most bytes of Attach's data.
pub const ATTACH_BYTES_MAX: usize = ATTACH_BYTES + ENTRY_BYTES * PLACES_MAX;
/// No reducer.
const NO_PLACE: u8 = 0xff;

/// Bits of the features.
pub mod feature {
    /// Partial writes.
    pub const PARTIAL_WRITES: u32 = 1 << 0;
    /// Reconstruction.
    pub const RECONSTRUCTION: u32 = 1 << 1;
    /// Epochs are durable.
    pub const FENCING: u32 = 1 << 2;
}

/// Admin opcodes.
pub mod admin {
    /// Detach.
    pub const DETACH: u8 = 0xc0;
    /// Attach.
    pub const ATTACH: u8 = 0xc1;
    /// Query.
    pub const QUERY: u8 = 0xc2;
}

/// Opcodes of I/O queues.
pub mod opcode {
    /// Sends its part of old bytes.
    pub const CONTRIBUTE: u8 = 0x80;
    /// Takes new bytes, sends its part.
    pub const PARTIAL_WRITE: u8 = 0x81;
    /// As Contribute, and gives the bytes to the host.
    pub const READ_CONTRIBUTE: u8 = 0x82;
    /// Sums parts up, to be written.
    pub const PARITY: u8 = 0x85;
    /// Sums parts up, for the host.
    pub const REDUCE: u8 = 0x86;
    /// A part, from another server.
    pub const PEER: u8 = 0x89;
    /// Writes.
    pub const COMMIT: u8 = 0x8c;
    /// Says what became of an operation, and drops it unless it is committed.
    pub const RESOLVE: u8 = 0x90;
    /// All of them.
    pub const ALL: &[u8] =
        &[CONTRIBUTE, PARTIAL_WRITE, READ_CONTRIBUTE, PARITY, REDUCE, PEER, COMMIT, RESOLVE];
}

/// Bit of dword 12: the old bytes are a part.
const MODIFY: u32 = 1 << 16;
/// Bit of dword 12 of Parity: the host supplies a part.
const SUPPLIED: u32 = 1 << 17;
const BLOCKS: u32 = 0xffff;

/// What a controller announces in its vendor area (section 1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Announcement {
    /// Minor version.
    pub minor: u16,
    /// Of [`feature`].
    pub features: u32,
    /// Operations that a host may have outstanding on a namespace.
    pub slots: u32,
    /// Most bytes of a range.
    pub range_bytes: u32,
    /// New whenever the server may have lost state.
    pub incarnation: [u8; 16],
}

impl Announcement {
    /// Puts it into a controller's Identify data.
    pub fn put(&self, identify: &mut [u8; identify::BYTES]) {
        let raw = RawAnnouncement {
            magic: *MAGIC,
            major: MAJOR.into(),
            minor: self.minor.into(),
            features: self.features.into(),
            slots: self.slots.into(),
            range_bytes: self.range_bytes.into(),
            incarnation: self.incarnation,
        };
        identify[VENDOR_AREA..][..size_of::<RawAnnouncement>()].copy_from_slice(raw.as_bytes());
    }

    /// What a controller announces; `None` if that is nothing, or a version that isn't ours.
    pub fn parse(identify: &[u8; identify::BYTES]) -> Option<Self> {
        let (raw, _) = RawAnnouncement::ref_from_prefix(&identify[VENDOR_AREA..]).ok()?;
        let is_ours = raw.magic == *MAGIC && raw.major == MAJOR;
        (is_ours && raw.slots != 0 && raw.range_bytes != 0).then(|| Self {
            minor: raw.minor.get(),
            features: raw.features.get(),
            slots: raw.slots.get(),
            range_bytes: raw.range_bytes.get(),
            incarnation: raw.incarnation,
        })
    }
}

/// Bytes 0 to 39 of the vendor area.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawAnnouncement {
    magic: [u8; 8],
    major: U16,
    minor: U16,
    features: U32,
    slots: U32,
    range_bytes: U32,
    incarnation: [u8; 16],
}

/// A member as other servers reach it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PeerAddress {
    /// The namespace.
    pub namespace: u32,
    /// TCP port.
    pub port: u16,
    /// Name or address.
    pub host: String,
    /// The subsystem.
    pub nqn: String,
}

/// Attach (section 3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attach {
    /// The array.
    pub array: [u8; 16],
    /// From 1.
    pub epoch: u64,
    /// Of the table.
    pub generation: u64,
    /// The connection brings Peers.
    pub peer: bool,
    /// Raises the epoch although another host is attached.
    pub takeover: bool,
    /// Ends the other controllers of this host. From version 1.3.
    pub alone: bool,
    /// Of the server, as the host knows it; zeroes if it doesn't.
    pub incarnation: [u8; 16],
    /// Of the host: which of its processes this is; zeroes if it doesn't say. From version 1.1.
    pub instance: [u8; 16],
    /// By place.
    pub peers: Vec<Option<PeerAddress>>,
}

impl Attach {
    const PEER: u32 = 1 << 0;
    const TAKEOVER: u32 = 1 << 1;
    const ALONE: u32 = 1 << 2;
    /// The command's data. Places beyond [`PLACES_MAX`] are left out.
    pub fn encode(&self) -> Vec<u8> {
        let count = self.peers.len().min(PLACES_MAX);
        let flag = |on, bit| if on { bit } else { 0 };
        let flags =
            flag(self.peer, Self::PEER) | flag(self.takeover, Self::TAKEOVER) | flag(self.alone, Self::ALONE);
        let header = RawAttach {
            array: self.array,
            epoch: self.epoch.into(),
            generation: self.generation.into(),
            flags: flags.into(),
            count: U16::new(u16::try_from(count).unwrap_or(u16::MAX)),
            incarnation: self.incarnation,
            instance: self.instance,
            ..RawAttach::new_zeroed()
        };
        let mut bytes = header.as_bytes().to_vec();
        for peer in &self.peers[..count] {
            let mut entry = RawEntry::new_zeroed();
            if let Some(peer) = peer {
                entry.is_there = 1;
                entry.namespace = peer.namespace.into();
                entry.port = peer.port.into();
                // The last byte of a text stays zero.
                put_text(&mut entry.host[..HOST_BYTES - 1], &peer.host, 0);
                put_text(&mut entry.nqn[..NQN_BYTES - 1], &peer.nqn, 0);
            }
            bytes.extend_from_slice(entry.as_bytes());
        }
        bytes
    }

    /// The data of a command.
    pub fn parse(bytes: &[u8]) -> Result<Self, Status> {
        let (header, entries) = RawAttach::ref_from_prefix(bytes).map_err(|_| Status::DATA_LENGTH_INVALID)?;
        let count = usize::from(header.count.get());
        if count > PLACES_MAX {
            return Err(Status::INVALID_FIELD);
        }
        let entries = <[RawEntry]>::ref_from_bytes_with_elems(entries, count);
        let entries = entries.map_err(|_| Status::DATA_LENGTH_INVALID)?;
        let flags = header.flags.get();
        let attach = Self {
            array: header.array,
            epoch: header.epoch.get(),
            generation: header.generation.get(),
            peer: flags & Self::PEER != 0,
            takeover: flags & Self::TAKEOVER != 0,
            alone: flags & Self::ALONE != 0,
            incarnation: header.incarnation,
            instance: header.instance,
            peers: entries.iter().map(RawEntry::peer).collect::<Result<_, _>>()?,
        };
        let known = Self::PEER | Self::TAKEOVER | Self::ALONE;
        let reserved = flags & !known == 0 && is_zero(&header.reserved_1) && is_zero(&header.reserved_2);
        let plain_peer = attach.peers.is_empty() && flags & !Self::PEER == 0 && is_zero(&attach.instance);
        let sense = (1..=NUMBER_MAX).contains(&attach.epoch)
            && !is_zero(&attach.array)
            && (!attach.peer || plain_peer);
        if reserved && sense { Ok(attach) } else { Err(Status::INVALID_FIELD) }
    }
}

/// Attach's data before the entries.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawAttach {
    array: [u8; 16],
    epoch: U64,
    generation: U64,
    flags: U32,
    count: U16,
    reserved_1: [u8; 26],
    incarnation: [u8; 16],
    instance: [u8; 16],
    reserved_2: [u8; 4000],
}

/// A place of the table; zeroes if there is no member.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    is_there: u8,
    reserved_1: [u8; 3],
    namespace: U32,
    port: U16,
    reserved_2: [u8; 6],
    host: [u8; HOST_BYTES],
    nqn: [u8; NQN_BYTES],
    reserved_3: [u8; 32],
}

const HOST_BYTES: usize = 240;
const NQN_BYTES: usize = 224;
const _: () = assert!(size_of::<RawAttach>() == ATTACH_BYTES && size_of::<RawEntry>() == ENTRY_BYTES);

impl RawEntry {
    fn peer(&self) -> Result<Option<PeerAddress>, Status> {
        if is_zero(self.as_bytes()) {
            return Ok(None);
        }
        let peer = || {
            let reserved = self.is_there == 1
                && is_zero(&self.reserved_1)
                && is_zero(&self.reserved_2)
                && is_zero(&self.reserved_3);
            let peer = PeerAddress {
                namespace: self.namespace.get(),
                port: self.port.get(),
                host: ended_text(&self.host)?,
                nqn: ended_text(&self.nqn)?,
            };
            let host = !peer.host.is_empty()
                && peer.host.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/');
            let number = (1..u32::MAX - 1).contains(&peer.namespace) && peer.port > 0;
            (reserved && host && number && nqn_is_valid(&peer.nqn)).then_some(peer)
        };
        peer().map(Some).ok_or(Status::INVALID_FIELD)
    }
}

/// Text that a zero ends, with nothing but zeroes behind.
fn ended_text(field: &[u8]) -> Option<String> {
    let end = field.iter().position(|byte| *byte == 0)?;
    let text = std::str::from_utf8(&field[..end]).ok()?;
    is_zero(&field[end..]).then(|| text.to_owned())
}

/// Query (section 3).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Query {
    /// Zeroes: never attached.
    pub array: [u8; 16],
    /// The highest one.
    pub epoch: u64,
    /// The epoch was given up: plain writes need no attachment.
    pub given_up: bool,
    /// A host is attached.
    pub attached: bool,
    /// The controller that asks was attached, and another host's epoch or its own host's *alone* has ended
    /// that. From version 1.3.
    pub ended: bool,
    /// Operations that take a slot.
    pub held: u32,
    /// Of the server.
    pub incarnation: [u8; 16],
    /// Bytes per second that its link is free to send; 0 if that isn't known.
    pub free_to_send: u64,
    /// The same, to receive.
    pub free_to_receive: u64,
}

impl Query {
    /// The data.
    pub fn encode(&self) -> Box<[u8; QUERY_BYTES]> {
        let raw = RawQuery {
            array: self.array,
            epoch: self.epoch.into(),
            state: u8::from(self.given_up) | u8::from(self.attached) << 1 | u8::from(self.ended) << 2,
            held: self.held.into(),
            incarnation: self.incarnation,
            free_to_send: self.free_to_send.into(),
            free_to_receive: self.free_to_receive.into(),
            ..RawQuery::new_zeroed()
        };
        Box::new(zerocopy::transmute!(raw))
    }

    /// What a server says. What is reserved isn't looked at: later versions may add.
    pub fn parse(bytes: &[u8; QUERY_BYTES]) -> Self {
        let raw: &RawQuery = zerocopy::transmute_ref!(bytes);
        Self {
            array: raw.array,
            epoch: raw.epoch.get(),
            given_up: raw.state & 1 != 0,
            attached: raw.state & 2 != 0,
            ended: raw.state & 4 != 0,
            held: raw.held.get(),
            incarnation: raw.incarnation,
            free_to_send: raw.free_to_send.get(),
            free_to_receive: raw.free_to_receive.get(),
        }
    }
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawQuery {
    array: [u8; 16],
    epoch: U64,
    state: u8,
    reserved_1: [u8; 3],
    held: U32,
    reserved_2: [u8; 32],
    incarnation: [u8; 16],
    free_to_send: U64,
    free_to_receive: U64,
    reserved_3: [u8; 4000],
}

/// Blocks of the namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocks {
    /// The first one.
    pub start: u64,
    /// From 1 to 65536.
    pub count: u32,
}

/// A command of an operation (sections 4 to 6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Request {
    /// Takes new bytes, sends coefficient * (old + new) if `modify`, else coefficient * new.
    PartialWrite {
        /// Where.
        blocks: Blocks,
        /// See above.
        modify: bool,
        /// Where its parts go.
        reducers: Reducers,
    },
    /// Sends coefficient * old.
    Contribute {
        /// Where.
        blocks: Blocks,
        /// Where its part goes; there is one.
        reducers: Reducers,
    },
    /// The same, and reads.
    ReadContribute {
        /// Where.
        blocks: Blocks,
        /// Where its part goes; there is one.
        reducers: Reducers,
    },
    /// Sums up what is to be written.
    Parity {
        /// Where.
        blocks: Blocks,
        /// The old bytes are a part.
        modify: bool,
        /// The data is a part.
        supplied: bool,
        /// Parts of others.
        wait: u16,
    },
    /// Sums up what is to be read.
    Reduce {
        /// Where.
        blocks: Blocks,
        /// Of its own bytes; 0: they aren't a part.
        coefficient: u8,
        /// Parts of others.
        wait: u16,
    },
    /// A part of another server.
    Peer {
        /// Of [`PEER_UNIT_BYTES`], from 1 to 65536.
        units: u32,
        /// The sender's.
        place: u8,
    },
    /// Writes.
    Commit {
        /// Durable when it is answered.
        fua: bool,
    },
    /// Drops what isn't committed.
    Resolve,
}

impl Request {
    /// The command, but for its data.
    pub fn command(&self, namespace: u32, ticket: Ticket) -> Command {
        let (operation, oldest) = (ticket.operation.0, ticket.oldest.0);
        #[expect(clippy::cast_possible_truncation, reason = "the two halves")]
        let (low, high) = (operation as u32, (operation >> 32) as u32);
        let new = |opcode| {
            let mut command = Command::new(opcode, namespace).with_dword(14, low).with_dword(15, high);
            command.metadata = oldest.into();
            command
        };
        let ranged = |opcode, blocks: Blocks, flags: u32| {
            let command = new(opcode).with_blocks(blocks.start, blocks.count);
            command.with_dword(12, command.dword(12) | flags)
        };
        let flag = |on, bit| if on { bit } else { 0 };
        match *self {
            Self::PartialWrite { blocks, modify, reducers } => {
                ranged(opcode::PARTIAL_WRITE, blocks, flag(modify, MODIFY))
                    .with_dword(13, reducers_dword(reducers))
            }
            Self::Contribute { blocks, reducers } => {
                ranged(opcode::CONTRIBUTE, blocks, 0).with_dword(13, reducers_dword(reducers))
            }
            Self::ReadContribute { blocks, reducers } => {
                ranged(opcode::READ_CONTRIBUTE, blocks, 0).with_dword(13, reducers_dword(reducers))
            }
            Self::Parity { blocks, modify, supplied, wait } => {
                let flags = flag(modify, MODIFY) | flag(supplied, SUPPLIED);
                ranged(opcode::PARITY, blocks, flags).with_dword(13, wait.into())
            }
            Self::Reduce { blocks, coefficient, wait } => {
                let dword = u32::from(wait) | u32::from(coefficient) << 16;
                ranged(opcode::REDUCE, blocks, 0).with_dword(13, dword)
            }
            Self::Peer { units, place } => {
                ranged(opcode::PEER, Blocks { start: 0, count: units }, 0).with_dword(13, place.into())
            }
            Self::Commit { fua } => new(opcode::COMMIT).with_dword(12, flag(fua, FORCE_UNIT_ACCESS)),
            Self::Resolve => new(opcode::RESOLVE),
        }
    }

    /// What a command asks for.
    pub fn parse(command: &Command) -> Result<(Self, Ticket), Status> {
        Self::try_parse(command).ok_or(if opcode::ALL.contains(&command.opcode) {
            Status::INVALID_FIELD
        } else {
            Status::INVALID_OPCODE
        })
    }

    fn try_parse(command: &Command) -> Option<(Self, Ticket)> {
        let operation = u64::from(command.dword(14)) | u64::from(command.dword(15)) << 32;
        let ticket =
            Ticket { operation: OperationId(operation), oldest: OperationId(command.metadata.get()) };
        let (twelve, thirteen) = (command.dword(12), command.dword(13));
        #[expect(clippy::cast_possible_truncation, reason = "the count has 17 bits")]
        let count = command.block_count() as u32;
        let blocks = Blocks { start: command.start_block(), count };
        // Which bits of dword 12 and 13 have a meaning, and whether the range has a beginning.
        let (twelve_known, thirteen_known, begins) = match command.opcode {
            opcode::PARTIAL_WRITE => (BLOCKS | MODIFY, u32::MAX, true),
            opcode::CONTRIBUTE | opcode::READ_CONTRIBUTE => (BLOCKS, u32::MAX, true),
            opcode::PARITY => (BLOCKS | MODIFY | SUPPLIED, 0xffff, true),
            opcode::REDUCE => (BLOCKS, 0x00ff_ffff, true),
            opcode::PEER => (BLOCKS, 0xff, false),
            opcode::COMMIT => (FORCE_UNIT_ACCESS, 0, false),
            opcode::RESOLVE => (0, 0, false),
            _ => return None,
        };
        if twelve & !twelve_known != 0
            || thirteen & !thirteen_known != 0
            || (!begins && blocks.start != 0)
            || !is_zero(&command.reserved)
            || ticket.oldest > ticket.operation
            || operation > NUMBER_MAX
        {
            return None;
        }
        let [place, _, coefficient, _] = thirteen.to_le_bytes();
        #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
        let wait = thirteen as u16;
        let modify = twelve & MODIFY != 0;
        let few = usize::from(wait) < PLACES_MAX;
        let request = match command.opcode {
            opcode::PARTIAL_WRITE => Self::PartialWrite { blocks, modify, reducers: reducers(thirteen)? },
            opcode::CONTRIBUTE => Self::Contribute { blocks, reducers: some_reducers(thirteen)? },
            opcode::READ_CONTRIBUTE => Self::ReadContribute { blocks, reducers: some_reducers(thirteen)? },
            opcode::PARITY => {
                let supplied = twelve & SUPPLIED != 0;
                // A sum has a part at least.
                (few && (modify || supplied || wait > 0)).then_some(Self::Parity {
                    blocks,
                    modify,
                    supplied,
                    wait,
                })?
            }
            opcode::REDUCE => (few && (coefficient > 0 || wait > 0)).then_some(Self::Reduce {
                blocks,
                coefficient,
                wait,
            })?,
            opcode::PEER => {
                (usize::from(place) < PLACES_MAX).then_some(Self::Peer { units: count, place })?
            }
            opcode::COMMIT => Self::Commit { fua: twelve & FORCE_UNIT_ACCESS != 0 },
            _ => Self::Resolve,
        };
        Some((request, ticket))
    }
}

fn reducers_dword(reducers: Reducers) -> u32 {
    let [first, second] = reducers.map(|reducer| match reducer {
        Some(Reducer { place, coefficient }) => [place, coefficient],
        None => [NO_PLACE, 0],
    });
    u32::from_le_bytes([first[0], first[1], second[0], second[1]])
}

fn reducers(dword: u32) -> Option<Reducers> {
    let one = |place: u8, coefficient: u8| match (place, coefficient) {
        (NO_PLACE, 0) => Some(None),
        (_, 0) => None,
        _ => (usize::from(place) < PLACES_MAX).then_some(Some(Reducer { place, coefficient })),
    };
    let [first, by, second, times] = dword.to_le_bytes();
    let both = [one(first, by)?, one(second, times)?];
    let same = both[0].is_some() && first == second;
    (!same).then_some(both)
}

fn some_reducers(dword: u32) -> Option<Reducers> {
    reducers(dword).filter(|reducers| reducers.iter().any(Option::is_some))
}

/// What became of an operation: dword 0 of Resolve's completion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Outcome {
    /// Not applied, and it never will be.
    NotApplied = 0,
    /// Applied.
    Applied = 1,
    /// A write has failed.
    InDoubt = 2,
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// For the fuzzer: whatever the bytes, nothing panics, and what is accepted is encoded to the same again.
///
/// # Panics
/// If that isn't so.
pub(crate) fn fuzz(data: &[u8]) {
    if let Ok((command, _)) = Command::read_from_prefix(data)
        && let Ok((request, ticket)) = Request::parse(&command)
    {
        let again = request.command(command.namespace.get(), ticket);
        assert_eq!(Request::parse(&again), Ok((request, ticket)));
        assert_eq!(again.dwords, command.dwords, "a field was lost");
    }
    if let Ok(attach) = Attach::parse(data) {
        assert_eq!(attach.encode(), data, "an Attach lost something");
    }
    // Long enough to be an Attach, whatever is in its first bytes.
    let mut padded = vec![0; ATTACH_BYTES + ENTRY_BYTES * 2];
    let count = data.len().min(128);
    padded[..count].copy_from_slice(&data[..count]);
    padded[36..38].copy_from_slice(&[2, 0]);
    let entry = data.get(count..).unwrap_or_default();
    let count = entry.len().min(ENTRY_BYTES);
    padded[ATTACH_BYTES..ATTACH_BYTES + count].copy_from_slice(&entry[..count]);
    if let Ok(attach) = Attach::parse(&padded) {
        assert_eq!(attach.encode(), padded, "an Attach lost something");
    }
    let mut page = [0; QUERY_BYTES];
    let count = data.len().min(page.len());
    page[..count].copy_from_slice(&data[..count]);
    let query = Query::parse(&page);
    assert_eq!(Query::parse(&query.encode()), query);
    let mut identify = [0; identify::BYTES];
    let area = &mut identify[VENDOR_AREA..];
    let count = data.len().min(area.len());
    area[..count].copy_from_slice(&data[..count]);
    for identify in [identify, page] {
        if let Some(announced) = Announcement::parse(&identify) {
            let mut again = [0; identify::BYTES];
            announced.put(&mut again);
            assert_eq!(Announcement::parse(&again), Some(announced));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    use proptest::prelude::*;

    fn reducer() -> impl Strategy<Value = Option<Reducer>> {
        prop_oneof![
            Just(None),
            (0..64_u8, 1..=255_u8).prop_map(|(place, coefficient)| Some(Reducer { place, coefficient })),
        ]
    }

    fn request() -> impl Strategy<Value = Request> {
        let blocks = (any::<u64>(), 1..=65536_u32).prop_map(|(start, count)| Blocks { start, count });
        (blocks, reducer(), reducer(), any::<[bool; 2]>(), 1..64_u16, 0..8_u8).prop_map(
            |(blocks, first, second, [modify, supplied], wait, kind)| {
                let second = second.filter(|second| first.is_none_or(|first| first.place != second.place));
                let reducers = [first, second];
                let some = if reducers == [None; 2] {
                    [Some(Reducer { place: 3, coefficient: 1 }), None]
                } else {
                    reducers
                };
                match kind {
                    0 => Request::PartialWrite { blocks, modify, reducers },
                    1 => Request::Contribute { blocks, reducers: some },
                    2 => Request::ReadContribute { blocks, reducers: some },
                    3 => Request::Parity { blocks, modify, supplied, wait },
                    4 => Request::Reduce { blocks, coefficient: 7, wait },
                    5 => Request::Peer { units: blocks.count, place: 63 },
                    6 => Request::Commit { fua: modify },
                    _ => Request::Resolve,
                }
            },
        )
    }

    proptest! {
        #[test]
        fn a_command_is_read_as_it_was_written(request in request(), oldest in 0..=NUMBER_MAX, more in any::<u32>()) {
            let operation = OperationId((oldest + u64::from(more)).min(NUMBER_MAX));
            let ticket = Ticket { operation, oldest: OperationId(oldest) };
            let command = request.command(5, ticket);
            prop_assert_eq!(Request::parse(&command), Ok((request, ticket)));
            // Bits 0 and 1 of an opcode say which way data goes.
            let data = match request {
                Request::PartialWrite { .. } | Request::Parity { .. } | Request::Peer { .. } => 1,
                Request::ReadContribute { .. } | Request::Reduce { .. } => 2,
                _ => 0,
            };
            prop_assert_eq!(command.opcode & 3, data);
        }

        #[test]
        fn an_attach_is_read_as_it_was_written(
            places in proptest::collection::vec(any::<bool>(), 0..65),
            epoch in 1..=NUMBER_MAX,
            takeover in any::<bool>(),
            alone in any::<bool>(),
        ) {
            let peer = |(place, there): (usize, &bool)| there.then(|| PeerAddress {
                namespace: u32::try_from(place).unwrap() + 1,
                port: 4420,
                host: format!("server{place}"),
                nqn: format!("nqn.2026-01.example:{place}"),
            });
            let attach = Attach {
                array: [7; 16],
                epoch,
                generation: epoch ^ 5,
                peer: false,
                takeover,
                alone,
                incarnation: [9; 16],
                instance: [3; 16],
                peers: places.iter().enumerate().map(peer).collect(),
            };
            prop_assert_eq!(Attach::parse(&attach.encode()), Ok(attach));
        }

        #[test]
        fn whatever_bytes_come_are_refused_or_kept_whole(data in proptest::collection::vec(any::<u8>(), 0..700)) {
            fuzz(&data);
        }

        #[test]
        fn of_a_good_command_no_bit_is_ignored(request in request(), bit in 0..512_usize) {
            let ticket = Ticket { operation: OperationId(9), oldest: OperationId(3) };
            let command = request.command(1, ticket);
            let mut bytes: [u8; 64] = zerocopy::transmute!(command);
            bytes[bit / 8] ^= 1 << (bit % 8);
            let changed: Command = zerocopy::transmute!(bytes);
            // What comes before the opcode's own fields is looked at by others: flags, identifier, namespace,
            // descriptor.
            let ours = matches!(bit / 8, 0 | 8..24 | 40..64);
            if ours {
                prop_assert_ne!(Request::parse(&changed), Ok((request, ticket)));
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let attach = Attach {
            array: [7; 16],
            epoch: 1,
            generation: 0,
            peer: false,
            takeover: false,
            alone: false,
            incarnation: [0; 16],
            instance: [0; 16],
            peers: vec![Some(PeerAddress {
                namespace: 1,
                port: 1,
                host: "a".to_owned(),
                nqn: "nqn.a".to_owned(),
            })],
        };
        let good = attach.encode();
        assert_eq!(Attach::parse(&good), Ok(attach.clone()));
        // Reserved bytes, flags, the number of entries, texts without an end, a port of 0.
        for (at, value) in
            [(38, 1), (96, 1), (32, 8), (36, 2), (4096, 2), (4099, 1), (4111, 1), (4607, 1), (4104, 0)]
        {
            let mut bad = good.clone();
            bad[at] = value;
            assert!(Attach::parse(&bad).is_err(), "byte {at}");
        }
        let mut endless = good.clone();
        endless[4096 + 16..4096 + 256].fill(b'a');
        assert_eq!(Attach::parse(&endless), Err(Status::INVALID_FIELD));
        for length in [0, 4095, 4096, good.len() - 1, good.len() + 512] {
            let mut bytes = good.clone();
            bytes.resize(length, 0);
            assert_eq!(Attach::parse(&bytes), Err(Status::DATA_LENGTH_INVALID), "{length}");
        }
        for host in ["", "/", "a/b", "a b", "a\n", "\u{e4}"] {
            let peer = PeerAddress { host: host.to_owned(), ..attach.peers[0].clone().unwrap() };
            let bad = Attach { peers: vec![Some(peer)], ..attach.clone() };
            assert_eq!(Attach::parse(&bad.encode()), Err(Status::INVALID_FIELD), "{host:?}");
        }
        let nothing = Attach { epoch: 0, ..attach };
        assert_eq!(Attach::parse(&nothing.encode()), Err(Status::INVALID_FIELD));
    }

    #[test]
    fn another_major_version_is_none() {
        let announced = Announcement {
            minor: 3,
            features: feature::PARTIAL_WRITES,
            slots: 64,
            range_bytes: 1 << 19,
            incarnation: [4; 16],
        };
        let mut page = [0; identify::BYTES];
        assert_eq!(Announcement::parse(&page), None);
        announced.put(&mut page);
        assert_eq!(Announcement::parse(&page), Some(announced));
        page[VENDOR_AREA + 8] = 2;
        assert_eq!(Announcement::parse(&page), None);
    }

    const NOW: Ticket = Ticket { operation: OperationId(0x102), oldest: OperationId(0x100) };

    fn vector_commands() -> Vec<(&'static str, Request)> {
        let blocks = Blocks { start: 0x1000, count: 16 };
        let p = Some(Reducer { place: 3, coefficient: 1 });
        let q = Some(Reducer { place: 4, coefficient: 2 });
        vec![
            (
                "PartialWrite, blocks 1000 to 100f, modify, P at place 3, Q at place 4 by 2",
                Request::PartialWrite { blocks, modify: true, reducers: [p, q] },
            ),
            (
                "PartialWrite, blocks 1000 to 100f, no reducers",
                Request::PartialWrite { blocks, modify: false, reducers: [None, None] },
            ),
            (
                "Contribute, blocks 1000 to 100f, place 3 by 1",
                Request::Contribute { blocks, reducers: [p, None] },
            ),
            (
                "ReadContribute, blocks 1000 to 100f, place 3 by 1",
                Request::ReadContribute { blocks, reducers: [p, None] },
            ),
            (
                "Parity, blocks 1000 to 100f, modify, a supplied part, 2 Peers",
                Request::Parity { blocks, modify: true, supplied: true, wait: 2 },
            ),
            (
                "Reduce, blocks 1000 to 100f, own bytes by 8e, 3 Peers",
                Request::Reduce { blocks, coefficient: 0x8e, wait: 3 },
            ),
            ("Peer, 10 units, from place 1", Request::Peer { units: 16, place: 1 }),
            ("Commit, FUA", Request::Commit { fua: true }),
            ("Resolve", Request::Resolve),
        ]
    }

    /// What isn't zero of a page, by rows of 16.
    fn rows(page: &[u8]) -> String {
        let row = |(index, row): (usize, &[u8])| format!("at {:x}:{}\n", 16 * index, hex(row));
        let rows: Vec<String> =
            page.chunks(16).enumerate().filter(|(_, row)| !is_zero(row)).map(row).collect();
        rows.concat()
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().fold(String::new(), |text, byte| text + &format!(" {byte:02x}"))
    }

    fn vector_attach() -> Attach {
        let peer = PeerAddress {
            namespace: 2,
            port: 4420,
            host: "192.0.2.7".to_owned(),
            nqn: "nqn.2026-01.com.example:a".to_owned(),
        };
        Attach {
            array: std::array::from_fn(|index| 0xa0 + u8::try_from(index).unwrap()),
            epoch: 7,
            generation: 2,
            peer: false,
            takeover: true,
            alone: true,
            incarnation: [0x11; 16],
            instance: [0x22; 16],
            peers: vec![Some(peer), None],
        }
    }

    /// The vectors as the specification has them.
    fn vectors() -> String {
        let mut text = String::new();
        for (words, request) in vector_commands() {
            let bytes: [u8; 64] = zerocopy::transmute!(request.command(1, NOW));
            let _ = write!(text, "command {words}\n{}", rows(&bytes));
        }
        text += "Attach, takeover and alone, entry 0 there, entry 1 empty\n";
        text += &rows(&vector_attach().encode());
        let query = Query {
            array: vector_attach().array,
            epoch: 8,
            given_up: true,
            attached: false,
            ended: true,
            held: 3,
            incarnation: [0x11; 16],
            free_to_send: 0,
            free_to_receive: 125_000_000,
        };
        text += "Query, given up, the controller was ended, 3 held, 7735940 free to receive\n";
        text += &rows(&*query.encode());
        let announced = Announcement {
            minor: MINOR,
            features: feature::PARTIAL_WRITES | feature::RECONSTRUCTION | feature::FENCING,
            slots: 64,
            range_bytes: 512 << 10,
            incarnation: [0x11; 16],
        };
        let mut identify = [0; identify::BYTES];
        announced.put(&mut identify);
        text += "Identify Controller, 40 slots, ranges of 80000\n";
        text += &rows(&identify);
        // Four bytes of the columns 0, 1, 2 of a row.
        let columns: [[u8; 4]; 3] =
            [[0x01, 0x80, 0xff, 0x00], [0x02, 0x80, 0x5a, 0x10], [0x1d, 0x01, 0xa5, 0x20]];
        let new = [0x37, 0x00, 0x8e, 0xc3];
        let kernel = pinstripe_parity::kernel();
        let part = |sources: &[&[u8]], coefficient: u8| {
            let mut part = [0; 4];
            kernel.scaled_sum(&mut part, sources, coefficient);
            part
        };
        let sum = |parts: [[u8; 4]; 3]| {
            std::array::from_fn::<u8, 4, _>(|at| parts[0][at] ^ parts[1][at] ^ parts[2][at])
        };
        let [d0, d1, d2] = &columns;
        for (name, bytes) in ["D0", "D1", "D2"].iter().zip(&columns) {
            let _ = writeln!(text, "{name}:{}", hex(bytes));
        }
        let (old_p, old_q) = (sum(columns), sum([part(&[d0], 1), part(&[d1], 2), part(&[d2], 4)]));
        let _ = write!(text, "P = D0 + D1 + D2:{}\nQ = D0 + 2 D1 + 4 D2:{}\n", hex(&old_p), hex(&old_q));
        let (to_p, to_q) = (part(&[d2, &new], 1), part(&[d2, &new], 4));
        let _ = writeln!(text, "new D2:{}", hex(&new));
        let _ = writeln!(text, "part for P = old + new:{}", hex(&to_p));
        let _ = writeln!(text, "part for Q = 4 (old + new):{}", hex(&to_q));
        let (new_p, new_q) = (sum([*d0, *d1, new]), sum([part(&[d0], 1), part(&[d1], 2), part(&[&new], 4)]));
        assert_eq!(new_p, std::array::from_fn(|at| old_p[at] ^ to_p[at]));
        assert_eq!(new_q, std::array::from_fn(|at| old_q[at] ^ to_q[at]));
        let _ = write!(text, "new P:{}\nnew Q:{}\n", hex(&new_p), hex(&new_q));
        // 1 / 2 is 8e, and (4 / 2) is 2.
        let lost = sum([part(&[&new_q], 0x8e), part(&[d0], 0x8e), part(&[&new], 2)]);
        assert_eq!(lost, *d1);
        let _ = writeln!(
            text,
            "D1 = 8e Q + 8e D0 + 2 D2:{} +{} +{}",
            hex(&part(&[&new_q], 0x8e)),
            hex(&part(&[d0], 0x8e)),
            hex(&part(&[&new], 2))
        );
        text
    }

    #[test]
    fn the_specifications_vectors_are_what_is_sent_and_understood() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/offload-protocol.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (_, from) = page.split_once("<!-- vectors -->\n```text\n").unwrap();
        let (written, _) = from.split_once("```\n<!-- end of vectors -->").unwrap();
        let ours = vectors();
        assert!(written == ours, "the page should say:\n{ours}");
        // Commands, from the page's bytes.
        let blocks = written.split("command ").skip(1);
        for (block, (words, request)) in blocks.zip(vector_commands()) {
            let mut bytes = [0; 64];
            let (title, rows) = block.split_once('\n').unwrap();
            assert_eq!(title, words);
            for row in rows.lines().take_while(|row| row.starts_with("at ")) {
                let (at, row) = row[3..].split_once(": ").unwrap();
                let at = usize::from_str_radix(at, 16).unwrap();
                for (byte, digits) in bytes[at..].iter_mut().zip(row.split(' ')) {
                    *byte = u8::from_str_radix(digits, 16).unwrap();
                }
            }
            let command: Command = zerocopy::transmute!(bytes);
            assert_eq!(Request::parse(&command), Ok((request, NOW)), "{words}");
        }
    }
}
