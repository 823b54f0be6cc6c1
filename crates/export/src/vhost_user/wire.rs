//! Messages of vhost-user, in the machine's byte order: from bytes to checked values, and back. No I/O.

use thiserror::Error;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{QUEUES_MAX, RING_SIZE_MAX, config::CONFIG_BYTES};

/// Bytes of a message's header.
pub const HEADER_BYTES: usize = size_of::<Header>();
/// Bytes that a message may have behind its header: more than any that is understood.
pub const PAYLOAD_BYTES_MAX: usize = 1024;
/// Regions of memory that a machine may have.
pub const REGIONS_MAX: usize = 8;

const VERSION: u32 = 1;
const VERSION_MASK: u32 = 3;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
/// In a message with a file: the number of the queue, and that there is no file.
const QUEUE_MASK: u64 = 0xff;
const NO_FILE: u64 = 1 << 8;

/// Numbers of messages (`VHOST_USER_`).
pub mod message {
    /// Asks for the features that are offered.
    pub const GET_FEATURES: u32 = 1;
    /// Those that are used.
    pub const SET_FEATURES: u32 = 2;
    /// The monitor takes the device.
    pub const SET_OWNER: u32 = 3;
    /// All of the machine's memory.
    pub const SET_MEM_TABLE: u32 = 5;
    /// The size of a ring.
    pub const SET_VRING_NUM: u32 = 8;
    /// Where a ring is.
    pub const SET_VRING_ADDR: u32 = 9;
    /// The next request of a ring.
    pub const SET_VRING_BASE: u32 = 10;
    /// Stops a queue.
    pub const GET_VRING_BASE: u32 = 11;
    /// By which the machine tells of requests.
    pub const SET_VRING_KICK: u32 = 12;
    /// By which the device tells of answers.
    pub const SET_VRING_CALL: u32 = 13;
    /// By which the device would tell of errors.
    pub const SET_VRING_ERR: u32 = 14;
    /// Asks for the features of the protocol that are offered.
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    /// Those that are used.
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    /// Asks how many queues there can be.
    pub const GET_QUEUE_NUM: u32 = 17;
    /// Whether requests are taken.
    pub const SET_VRING_ENABLE: u32 = 18;
    /// Gives a socket for messages of ours.
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    /// Asks for a part of the configuration.
    pub const GET_CONFIG: u32 = 24;
    /// Changes it.
    pub const SET_CONFIG: u32 = 25;
    /// Asks for memory for the requests under way.
    pub const GET_INFLIGHT_FD: u32 = 31;
    /// Gives such memory.
    pub const SET_INFLIGHT_FD: u32 = 32;
}

/// Numbers of messages of ours (`VHOST_USER_BACKEND_`).
pub mod backend_message {
    /// The configuration has changed: the monitor should ask for it.
    pub const CONFIG_CHANGE: u32 = 2;
}

/// Features of the protocol (`VHOST_USER_PROTOCOL_F_`).
pub mod protocol_feature {
    /// Several queues.
    pub const MULTIQUEUE: u64 = 1 << 0;
    /// Any message can be answered with success or failure.
    pub const REPLY_ACK: u64 = 1 << 3;
    /// There are messages of ours, on a socket of their own.
    pub const BACKEND_REQ: u64 = 1 << 5;
    /// The configuration is read from us.
    pub const CONFIG: u64 = 1 << 9;
    /// Requests under way are noted in shared memory.
    pub const INFLIGHT: u64 = 1 << 12;
    /// All that we have.
    pub const ALL: u64 = MULTIQUEUE | REPLY_ACK | BACKEND_REQ | CONFIG | INFLIGHT;
}

/// What begins each message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    /// What is asked for (`VHOST_USER_`).
    pub request: u32,
    flags: u32,
    /// Bytes behind the header.
    pub size: u32,
}

/// A number for a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct QueueNumber {
    /// The queue.
    pub queue: u32,
    /// The number.
    pub value: u32,
}

/// Where a ring's parts are, in the monitor's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RingAddress {
    /// The queue.
    pub queue: u32,
    /// For a log of changed pages, which we don't have.
    pub flags: u32,
    /// The descriptors.
    pub descriptors: u64,
    /// The used ring.
    pub used: u64,
    /// The available ring.
    pub available: u64,
    /// Of the log.
    pub log: u64,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(super) struct TableHeader {
    pub(super) regions: u32,
    pub(super) padding: u32,
}

/// A region of the machine's memory, whose file comes with the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Region {
    /// Its first address in the machine.
    pub guest: u64,
    /// Bytes.
    pub size: u64,
    /// Its first address in the monitor.
    pub monitor: u64,
    /// Where it begins in the file.
    pub offset: u64,
}

/// A part of the configuration space, whose bytes follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ConfigPart {
    /// First byte.
    pub offset: u32,
    /// Bytes.
    pub size: u32,
    /// Of no meaning to us.
    pub flags: u32,
}

/// The memory in which requests under way are noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Inflight {
    /// Bytes.
    pub size: u64,
    /// Where it begins in the file.
    pub offset: u64,
    /// Number of queues.
    pub queues: u16,
    /// Descriptors of each.
    pub ring_size: u16,
    /// As a C compiler has it.
    pub padding: u32,
}

const _: () = assert!(size_of::<Header>() == 12 && size_of::<QueueNumber>() == 8);
const _: () = assert!(size_of::<RingAddress>() == 40 && size_of::<Region>() == 32);
const _: () = assert!(size_of::<ConfigPart>() == 12 && size_of::<Inflight>() == 24);

/// What a monitor asks for. `F` is an open file.
#[derive(Debug, PartialEq, Eq)]
pub enum Request<F> {
    /// The features that we offer.
    Features,
    /// Those that are used.
    UseFeatures(u64),
    /// The features of the protocol.
    ProtocolFeatures,
    /// Those that are used.
    UseProtocolFeatures(u64),
    /// The monitor is ours from now on.
    Own,
    /// All of the machine's memory.
    Memory(Vec<(Region, F)>),
    /// How many queues there can be.
    QueueCount,
    /// The size of a ring.
    RingSize(u16, u16),
    /// Where it is.
    RingAddress(u16, RingAddress),
    /// The next request to be taken from it.
    RingBase(u16, u16),
    /// Stop a queue, and say how far it came.
    StopQueue(u16),
    /// By which the machine tells of requests.
    Kick(u16, F),
    /// By which we tell of answers, if the machine wants to know.
    Call(u16, Option<F>),
    /// By which errors would be told.
    ErrorEvent(u16),
    /// Whether requests are taken.
    Enable(u16, bool),
    /// A socket on which messages of ours are taken.
    BackendChannel(F),
    /// A part of the configuration.
    Config(ConfigPart),
    /// A change of it.
    SetConfig,
    /// Make memory for the requests under way.
    NewInflight(Inflight),
    /// Use this one.
    UseInflight(Inflight, F),
}

/// What a monitor says and must not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Violation {
    /// No header of a message of ours.
    #[error("a message with the flags {flags:#x}, which aren't those of version 1")]
    Flags {
        /// The flags.
        flags: u32,
    },
    /// A payload that is too short or too long.
    #[error("a message {request} with {size} bytes")]
    Size {
        /// Its number.
        request: u32,
        /// Bytes behind the header.
        size: usize,
    },
    /// Files that don't belong to the message, or that are missing.
    #[error("a message {request} with {files} files")]
    Files {
        /// Its number.
        request: u32,
        /// How many came.
        files: usize,
    },
    /// It isn't part of what was negotiated.
    #[error("a message {request}, which wasn't negotiated")]
    Unknown {
        /// Its number.
        request: u32,
    },
    /// There is no such queue.
    #[error("queue {queue}, of {QUEUES_MAX}")]
    Queue {
        /// Its number.
        queue: u64,
    },
    /// A number that can't be.
    #[error("{value} as {what}")]
    Value {
        /// What it should be.
        what: &'static str,
        /// The number.
        value: u64,
    },
}

impl Header {
    /// Of a message that has come.
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Result<Self, Violation> {
        let header: Self = zerocopy::transmute!(*bytes);
        if header.flags & VERSION_MASK != VERSION || header.flags & REPLY != 0 {
            return Err(Violation::Flags { flags: header.flags });
        }
        let size = usize::try_from(header.size).unwrap_or(usize::MAX);
        if size > PAYLOAD_BYTES_MAX {
            return Err(Violation::Size { request: header.request, size });
        }
        Ok(header)
    }

    /// A message of a monitor's, or one of ours, which may want success or failure to be told.
    pub fn request(request: u32, wants_reply: bool, payload: &[u8]) -> Vec<u8> {
        let flags = if wants_reply { VERSION | NEED_REPLY } else { VERSION };
        Self { request, flags, size: size(payload) }.before(payload)
    }

    /// Bytes of the payload behind this header, which begins an answer to `request`. `None` if it doesn't.
    pub fn answer_bytes(bytes: &[u8; HEADER_BYTES], request: u32) -> Option<usize> {
        let header: Self = zerocopy::transmute!(*bytes);
        let answers = header.request == request && header.flags == VERSION | REPLY;
        usize::try_from(header.size).ok().filter(|size| answers && *size <= PAYLOAD_BYTES_MAX)
    }

    fn before(&self, payload: &[u8]) -> Vec<u8> {
        [self.as_bytes(), payload].concat()
    }

    /// Whether the monitor waits for success or failure, where the message has no answer of its own.
    pub fn wants_reply(&self) -> bool {
        self.flags & NEED_REPLY != 0
    }

    /// An answer to this message.
    pub fn reply(&self, payload: &[u8]) -> Vec<u8> {
        Self { request: self.request, flags: VERSION | REPLY, size: size(payload) }.before(payload)
    }
}

fn size(payload: &[u8]) -> u32 {
    u32::try_from(payload.len()).unwrap_or_else(|_| unreachable!("messages are short"))
}

impl<F> Request<F> {
    /// The request of a message, with the files that came with it.
    pub fn parse(header: &Header, payload: &[u8], files: Vec<F>) -> Result<Self, Violation> {
        let came = Message { request: header.request, payload, files };
        Ok(match header.request {
            message::GET_FEATURES => came.plain(Self::Features)?,
            message::SET_FEATURES => Self::UseFeatures(came.number()?),
            message::SET_OWNER => came.plain(Self::Own)?,
            message::SET_MEM_TABLE => came.memory()?,
            message::SET_VRING_NUM => came.ring_size()?,
            message::SET_VRING_ADDR => came.ring_address()?,
            message::SET_VRING_BASE => {
                let (queue, base) = came.queue_number()?;
                let base = u16::try_from(base);
                Self::RingBase(queue, base.map_err(|_| value("a ring's base", u64::from(u32::MAX)))?)
            }
            message::GET_VRING_BASE => Self::StopQueue(came.queue_number()?.0),
            message::SET_VRING_KICK => match came.event()? {
                (queue, Some(file)) => Self::Kick(queue, file),
                (_, None) => return Err(Violation::Files { request: header.request, files: 0 }),
            },
            message::SET_VRING_CALL => {
                let (queue, file) = came.event()?;
                Self::Call(queue, file)
            }
            message::SET_VRING_ERR => Self::ErrorEvent(came.event()?.0),
            message::GET_PROTOCOL_FEATURES => came.plain(Self::ProtocolFeatures)?,
            message::SET_PROTOCOL_FEATURES => Self::UseProtocolFeatures(came.number()?),
            message::GET_QUEUE_NUM => came.plain(Self::QueueCount)?,
            message::SET_VRING_ENABLE => match came.queue_number()? {
                (queue, is_enabled @ (0 | 1)) => Self::Enable(queue, is_enabled == 1),
                (_, other) => return Err(value("whether a queue is enabled", other.into())),
            },
            message::SET_BACKEND_REQ_FD => came.channel()?,
            message::GET_CONFIG => came.config()?,
            message::SET_CONFIG => came.without_files(Self::SetConfig)?,
            message::GET_INFLIGHT_FD => Self::NewInflight(came.inflight()?.0),
            message::SET_INFLIGHT_FD => match came.inflight()? {
                (inflight, Some(file)) => Self::UseInflight(inflight, file),
                (_, None) => return Err(Violation::Files { request: header.request, files: 0 }),
            },
            request => return Err(Violation::Unknown { request }),
        })
    }
}

fn value(what: &'static str, value: u64) -> Violation {
    Violation::Value { what, value }
}

fn checked_queue(queue: u64) -> Result<u16, Violation> {
    u16::try_from(queue).ok().filter(|queue| *queue < QUEUES_MAX).ok_or(Violation::Queue { queue })
}

struct Message<'a, F> {
    request: u32,
    payload: &'a [u8],
    files: Vec<F>,
}

impl<F> Message<'_, F> {
    fn size_error(&self) -> Violation {
        Violation::Size { request: self.request, size: self.payload.len() }
    }

    fn check_files(&self, expected: usize) -> Result<(), Violation> {
        let files = self.files.len();
        if files == expected { Ok(()) } else { Err(Violation::Files { request: self.request, files }) }
    }

    /// The payload, which is exactly this.
    fn read<T: FromBytes>(&self) -> Result<T, Violation> {
        T::read_from_bytes(self.payload).map_err(|_| self.size_error())
    }

    fn without_files(&self, request: Request<F>) -> Result<Request<F>, Violation> {
        self.check_files(0).map(|()| request)
    }

    fn plain(&self, request: Request<F>) -> Result<Request<F>, Violation> {
        if self.payload.is_empty() { self.without_files(request) } else { Err(self.size_error()) }
    }

    fn number(&self) -> Result<u64, Violation> {
        self.check_files(0)?;
        self.read()
    }

    fn queue_number(&self) -> Result<(u16, u32), Violation> {
        self.check_files(0)?;
        let QueueNumber { queue, value } = self.read()?;
        Ok((checked_queue(queue.into())?, value))
    }

    fn ring_size(&self) -> Result<Request<F>, Violation> {
        let (queue, size) = self.queue_number()?;
        let fits = u16::try_from(size).ok().filter(|size| size.is_power_of_two() && *size <= RING_SIZE_MAX);
        Ok(Request::RingSize(queue, fits.ok_or(value("the size of a ring", size.into()))?))
    }

    fn ring_address(&self) -> Result<Request<F>, Violation> {
        self.check_files(0)?;
        let address: RingAddress = self.read()?;
        Ok(Request::RingAddress(checked_queue(address.queue.into())?, address))
    }

    fn event(mut self) -> Result<(u16, Option<F>), Violation> {
        let named: u64 = self.read()?;
        let queue = checked_queue(named & QUEUE_MASK)?;
        self.check_files(usize::from(named & NO_FILE == 0))?;
        Ok((queue, self.files.pop()))
    }

    fn channel(mut self) -> Result<Request<F>, Violation> {
        if !self.payload.is_empty() {
            return Err(self.size_error());
        }
        self.check_files(1)?;
        let missing = Violation::Files { request: self.request, files: 0 };
        self.files.pop().map(Request::BackendChannel).ok_or(missing)
    }

    fn memory(self) -> Result<Request<F>, Violation> {
        let size_error = self.size_error();
        let (table, rest) = TableHeader::read_from_prefix(self.payload).map_err(|_| size_error)?;
        let count = usize::try_from(table.regions).unwrap_or(usize::MAX);
        if count > REGIONS_MAX {
            return Err(value("the number of memory regions", count as u64));
        }
        self.check_files(count)?;
        // A monitor may send the whole table, of which only the first ones count.
        let regions: Option<Vec<Region>> = rest
            .chunks(size_of::<Region>())
            .take(count)
            .map(|bytes| Region::read_from_bytes(bytes).ok())
            .collect();
        let regions = regions.filter(|regions| regions.len() == count).ok_or(size_error)?;
        Ok(Request::Memory(regions.into_iter().zip(self.files).collect()))
    }

    fn config(&self) -> Result<Request<F>, Violation> {
        self.check_files(0)?;
        let (part, rest) = ConfigPart::read_from_prefix(self.payload).map_err(|_| self.size_error())?;
        let end = u64::from(part.offset) + u64::from(part.size);
        if rest.len() as u64 != u64::from(part.size) || end > CONFIG_BYTES as u64 {
            return Err(value("the end of a part of the configuration", end));
        }
        Ok(Request::Config(part))
    }

    fn inflight(mut self) -> Result<(Inflight, Option<F>), Violation> {
        let inflight: Inflight = self.read()?;
        let fits =
            (1..=QUEUES_MAX).contains(&inflight.queues) && (1..=RING_SIZE_MAX).contains(&inflight.ring_size);
        if !fits || self.files.len() > 1 {
            return Err(value("the size of the memory for requests under way", inflight.size));
        }
        Ok((inflight, self.files.pop()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(request: u32, payload: &[u8], files: usize) -> Result<Request<usize>, Violation> {
        let header = Header { request, flags: VERSION, size: u32::try_from(payload.len()).unwrap() };
        Request::parse(&header, payload, (0..files).collect())
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    #[test]
    fn a_header_is_of_version_1_no_reply_and_not_too_long() {
        let header = |flags: u32, size: u32| {
            Header::parse(words(&[1, flags, size]).as_slice().try_into().unwrap()).is_ok()
        };
        assert!(header(1, 0) && header(9, 8) && header(1, 1024));
        assert!(!header(0, 0) && !header(2, 0) && !header(5, 0) && !header(1, 1025) && !header(1, u32::MAX));
    }

    #[test]
    fn an_answer_repeats_the_request_and_says_that_it_is_one() {
        let header = Header { request: 17, flags: VERSION | NEED_REPLY, size: 0 };
        assert!(header.wants_reply());
        assert_eq!(header.reply(&[1, 2, 3]), [words(&[17, 5, 3]), vec![1, 2, 3]].concat());
    }

    #[test]
    fn a_message_of_ours_has_a_number_and_the_version_and_wants_nothing() {
        let changed = Header::request(backend_message::CONFIG_CHANGE, false, &[]);
        assert_eq!(changed, words(&[2, 1, 0]));
    }

    #[test]
    fn messages_become_requests() {
        assert_eq!(parse(1, &[], 0), Ok(Request::Features));
        assert_eq!(parse(2, &7_u64.to_ne_bytes(), 0), Ok(Request::UseFeatures(7)));
        assert_eq!(parse(8, &words(&[3, 256]), 0), Ok(Request::RingSize(3, 256)));
        assert_eq!(parse(10, &words(&[3, 65535]), 0), Ok(Request::RingBase(3, 65535)));
        assert_eq!(parse(11, &words(&[63, 9]), 0), Ok(Request::StopQueue(63)));
        assert_eq!(parse(12, &5_u64.to_ne_bytes(), 1), Ok(Request::Kick(5, 0)));
        assert_eq!(parse(13, &0x105_u64.to_ne_bytes(), 0), Ok(Request::Call(5, None)));
        assert_eq!(parse(18, &words(&[1, 1]), 0), Ok(Request::Enable(1, true)));
        assert_eq!(parse(21, &[], 1), Ok(Request::BackendChannel(0)));
        let part = ConfigPart { offset: 0, size: 60, flags: 0 };
        assert_eq!(parse(24, &[part.as_bytes(), &[0; 60]].concat(), 0), Ok(Request::Config(part)));
        let region = Region { guest: 1, size: 2, monitor: 3, offset: 4 };
        let table = [words(&[1, 0]).as_slice(), region.as_bytes(), &[0; 32]].concat();
        assert_eq!(parse(5, &table, 1), Ok(Request::Memory(vec![(region, 0)])));
        let inflight = Inflight { size: 0, offset: 0, queues: 2, ring_size: 128, padding: 0 };
        assert_eq!(parse(31, inflight.as_bytes(), 0), Ok(Request::NewInflight(inflight)));
        assert_eq!(parse(32, inflight.as_bytes(), 1), Ok(Request::UseInflight(inflight, 0)));
    }

    #[test]
    fn what_is_out_of_bounds_or_has_other_files_is_refused() {
        for (request, payload, files) in [
            (1, words(&[0]), 0),
            (1, vec![], 1),
            (2, vec![0; 7], 0),
            (4, vec![], 0),
            (5, words(&[9, 0]), 9),
            (5, words(&[1, 0]), 1),
            (5, [words(&[2, 0]), vec![0; 32]].concat(), 2),
            (5, [words(&[1, 0]), vec![0; 32]].concat(), 0),
            (8, words(&[0, 0]), 0),
            (8, words(&[0, 3]), 0),
            (8, words(&[0, 2048]), 0),
            (8, words(&[64, 128]), 0),
            (8, words(&[u32::MAX, 128]), 0),
            (8, words(&[0, 128]), 1),
            (10, words(&[0, 65536]), 0),
            (12, vec![0; 8], 0),
            (12, 0x100_u64.to_ne_bytes().to_vec(), 0),
            (13, vec![0; 8], 2),
            (18, words(&[0, 2]), 0),
            (21, vec![], 0),
            (21, vec![], 2),
            (21, vec![0; 8], 1),
            (24, words(&[0, 60, 0]), 0),
            (24, [words(&[u32::MAX, 4, 0]), vec![0; 4]].concat(), 0),
            (24, [words(&[0, 257, 0]), vec![0; 257]].concat(), 0),
            (31, vec![0; 24], 0),
            (32, vec![0; 20], 1),
            (99, vec![], 0),
        ] {
            assert!(parse(request, &payload, files).is_err(), "{request} {payload:?} {files}");
        }
    }
}
