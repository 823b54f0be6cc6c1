//! The front end of the protocol, which a virtual machine's monitor is: its messages, for `bench` and for
//! tests of the back end. It waits for answers, so it isn't for shards that have other things to do.

use std::{
    io::{self, ErrorKind},
    os::fd::{BorrowedFd, OwnedFd},
    path::Path,
    time::Duration,
};

use pinstripe_runtime::uring::event::WaitingMessageSocket;
use zerocopy::{FromBytes, IntoBytes};

use super::{
    config::{DESCRIBED_BYTES, Described},
    ring::Layout,
    wire::{
        ConfigPart, HEADER_BYTES, Header, QueueNumber, Region, RingAddress, TableHeader, message,
        protocol_feature,
    },
};

/// The features of the protocol without which we don't go on.
const NEEDED: u64 = protocol_feature::MULTIQUEUE | protocol_feature::REPLY_ACK | protocol_feature::CONFIG;

/// A connection to a back end, whose device ends with it.
pub struct FrontEnd {
    socket: WaitingMessageSocket,
}

/// A queue that is to be started. The layout is in the monitor's addresses.
#[derive(Clone, Copy)]
pub struct QueueStart<'a> {
    /// Its number.
    pub queue: u16,
    /// Where the ring is.
    pub layout: Layout,
    /// The next request.
    pub base: u16,
    /// By which the device is told of requests.
    pub kick: BorrowedFd<'a>,
    /// By which it tells of answers.
    pub call: BorrowedFd<'a>,
}

impl FrontEnd {
    /// Connects, without a word. An answer may take `patience`.
    pub fn connect(path: &Path, patience: Duration) -> io::Result<Self> {
        WaitingMessageSocket::connect(path, patience).map(|socket| Self { socket })
    }

    /// Takes the device, for so many queues at least. Returns those of the `wanted` features that it has.
    pub fn negotiate(&self, wanted: u64, queues: u16) -> io::Result<u64> {
        self.send(message::SET_OWNER, false, &[], &[])?;
        let offered = self.ask_number(message::GET_FEATURES)?;
        let protocol = self.ask_number(message::GET_PROTOCOL_FEATURES)?;
        if protocol & NEEDED != NEEDED {
            return Err(bad(format!("the back end has the features {protocol:#x}; {NEEDED:#x} are needed")));
        }
        let used = (protocol & protocol_feature::ALL).to_ne_bytes();
        self.send(message::SET_PROTOCOL_FEATURES, false, &used, &[])?;
        let there = self.ask_number(message::GET_QUEUE_NUM)?;
        if there < queues.into() {
            return Err(bad(format!("the back end has {there} queues; {queues} are needed")));
        }
        let features = offered & wanted;
        self.tell(message::SET_FEATURES, &features.to_ne_bytes(), &[])?;
        Ok(features)
    }

    /// What the device says of itself.
    pub fn describe(&self) -> io::Result<Described> {
        let part = ConfigPart { offset: 0, size: DESCRIBED_BYTES, flags: 0 };
        let room = vec![0; DESCRIBED_BYTES as usize];
        let answer = self.ask(message::GET_CONFIG, &[part.as_bytes(), &room].concat())?;
        let (_, space) = ConfigPart::read_from_prefix(&answer).map_err(|_| short())?;
        Described::parse(space).ok_or_else(short)
    }

    /// Shares the machine's memory, in place of what it was.
    pub fn use_memory(&self, region: Region, file: BorrowedFd<'_>) -> io::Result<()> {
        let table = TableHeader { regions: 1, padding: 0 };
        self.tell(message::SET_MEM_TABLE, &[table.as_bytes(), region.as_bytes()].concat(), &[file])
    }

    /// Starts a queue.
    pub fn start(&self, start: QueueStart<'_>) -> io::Result<()> {
        let QueueStart { queue, layout: Layout { descriptors, available, used, size }, .. } = start;
        let set = |request: u32, value: u32| {
            self.tell(request, QueueNumber { queue: queue.into(), value }.as_bytes(), &[])
        };
        set(message::SET_VRING_NUM, size.into())?;
        set(message::SET_VRING_BASE, start.base.into())?;
        let place = RingAddress { queue: queue.into(), flags: 0, descriptors, used, available, log: 0 };
        self.tell(message::SET_VRING_ADDR, place.as_bytes(), &[])?;
        let number = u64::from(queue).to_ne_bytes();
        self.tell(message::SET_VRING_KICK, &number, &[start.kick])?;
        self.tell(message::SET_VRING_CALL, &number, &[start.call])?;
        set(message::SET_VRING_ENABLE, 1)
    }

    /// Stops a queue: which request would have been the next one.
    pub fn stop(&self, queue: u16) -> io::Result<u32> {
        let asked = QueueNumber { queue: queue.into(), value: 0 };
        let answer = self.ask(message::GET_VRING_BASE, asked.as_bytes())?;
        QueueNumber::read_from_bytes(&answer).map(|came| came.value).map_err(|_| short())
    }

    /// Whether the back end has closed.
    pub fn is_closed(&self) -> bool {
        self.socket.is_closed()
    }

    /// Sends a message that changes something, and waits for its success.
    pub fn tell(&self, request: u32, payload: &[u8], files: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.send(request, true, payload, files)?;
        match self.receive_number(request)? {
            0 => Ok(()),
            code => Err(bad(format!("the back end refuses message {request} with {code}"))),
        }
    }

    /// Sends a question, and waits for its answer.
    pub fn ask(&self, request: u32, payload: &[u8]) -> io::Result<Vec<u8>> {
        self.send(request, false, payload, &[])?;
        self.receive(request).map(|(answer, _)| answer)
    }

    fn ask_number(&self, request: u32) -> io::Result<u64> {
        self.send(request, false, &[], &[])?;
        self.receive_number(request)
    }

    fn receive_number(&self, request: u32) -> io::Result<u64> {
        u64::read_from_bytes(&self.receive(request)?.0).map_err(|_| short())
    }

    /// Sends a message.
    pub fn send(
        &self,
        request: u32,
        wants_reply: bool,
        payload: &[u8],
        files: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        self.socket.send(&Header::request(request, wants_reply, payload), files)
    }

    /// Receives the answer to `request`, which may have a file.
    pub fn receive(&self, request: u32) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
        let (mut header, mut files) = ([0; HEADER_BYTES], Vec::new());
        self.socket.receive(&mut header, &mut files)?;
        let bytes = Header::answer_bytes(&header, request);
        let mut payload = vec![0; bytes.ok_or_else(|| bad("an answer to another message"))?];
        self.socket.receive(&mut payload, &mut files)?;
        Ok((payload, files.pop()))
    }
}

fn bad(words: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, words.into())
}

fn short() -> io::Error {
    bad("an answer of another length")
}
