//! A monitor and its machine's driver. The machine's memory is a file, which both sides map or read.

use std::{
    io::{IoSlice, IoSliceMut, Read},
    mem::MaybeUninit,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    time::Duration,
};

use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fs::MemfdFlags,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
        SendFlags,
    },
};

/// Descriptors of a ring.
pub const RING: u16 = 64;
/// Where memory begins in the machine, and in the monitor.
pub const GUEST: u64 = 0x10_0000;
const MONITOR: u64 = 0x7000_0000_0000;
/// Bytes of memory. The rings are at its front, and data behind [`DATA`].
pub const MEMORY: u64 = 8 << 20;
pub const DATA: u64 = 1 << 20;
/// Each queue has its parts in so many bytes of the front.
const QUEUE_BYTES: u64 = 0x8000;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;
const TABLES: u64 = 0x4000;
const HEADERS: u64 = 0x3000;
const STATUS: u64 = 0x3800;

const EVENT_INDEX: u64 = 1 << 29;
/// VERSION_1, PROTOCOL_FEATURES, EVENT_IDX, INDIRECT_DESC, WRITE_ZEROES, DISCARD, MQ, FLUSH.
pub const FEATURES: u64 = 1 << 32 | 1 << 30 | EVENT_INDEX | 1 << 28 | 1 << 14 | 1 << 13 | 1 << 12 | 1 << 9;
/// INFLIGHT_SHMFD, CONFIG, REPLY_ACK, MQ.
pub const PROTOCOL: u64 = 1 << 12 | 1 << 9 | 1 << 3 | 1;

/// Kinds of requests.
pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH: u32 = 4;
pub const NAME: u32 = 8;
pub const DISCARD: u32 = 11;
pub const ZEROES: u32 = 13;

pub struct Monitor {
    socket: UnixStream,
    pub memory: OwnedFd,
    pub queues: Vec<Queue>,
    /// Put the descriptors of requests into tables of their own.
    pub indirect: bool,
}

pub struct Queue {
    at: u64,
    pub kick: OwnedFd,
    pub call: OwnedFd,
    available: u16,
    pub seen: u16,
}

/// Memory of a machine.
pub fn memory() -> OwnedFd {
    let memory = rustix::fs::memfd_create("machine", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&memory, MEMORY).unwrap();
    memory
}

impl Monitor {
    /// Connects, without a word.
    pub fn connect(path: &Path, memory: OwnedFd) -> Self {
        let socket = (0..200).find_map(|_| {
            let socket = UnixStream::connect(path);
            if socket.is_err() {
                std::thread::sleep(Duration::from_millis(10));
            }
            socket.ok()
        });
        let socket = socket.expect("there is a server");
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { socket, memory, queues: Vec::new(), indirect: false }
    }

    /// With memory and so many queues, all running.
    pub fn running(path: &Path, queues: u16) -> Self {
        let mut monitor = Self::connect(path, memory());
        monitor.set_up(FEATURES, queues);
        (0..queues).for_each(|queue| monitor.start(queue, 0));
        monitor
    }

    /// All but the queues.
    pub fn set_up(&mut self, features: u64, queues: u16) {
        self.say(3, &[], &[]);
        let offered = self.ask_number(1);
        assert_eq!(offered & features, features, "{offered:#x}");
        assert_eq!(self.ask_number(15) & PROTOCOL, PROTOCOL);
        self.say(16, &PROTOCOL.to_ne_bytes(), &[]);
        assert!(self.ask_number(17) >= queues.into());
        self.tell(2, &features.to_ne_bytes());
        self.use_memory();
    }

    pub fn use_memory(&self) {
        let table = [&1_u32.to_ne_bytes()[..], &[0; 4], &words(&[GUEST, MEMORY, MONITOR, 0])].concat();
        self.say_and_wait(5, &table, &[self.memory.as_fd()]);
    }

    /// Has a queue in the machine, of which `base` requests were made and answered.
    pub fn plug(&mut self, base: u16) {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let at = self.queues.len() as u64 * QUEUE_BYTES;
        self.queues.push(Queue { at, kick: event(), call: event(), available: base, seen: base });
    }

    /// Starts a queue, whose first request is `base`.
    pub fn start(&mut self, queue: u16, base: u16) {
        if self.queues.len() <= usize::from(queue) {
            self.plug(base);
        }
        let Queue { at, kick, call, .. } = &self.queues[usize::from(queue)];
        let number = u32::from(queue);
        self.tell(8, &[number.to_ne_bytes(), u32::from(RING).to_ne_bytes()].concat());
        self.tell(10, &[number.to_ne_bytes(), u32::from(base).to_ne_bytes()].concat());
        let place = [MONITOR + at, MONITOR + at + USED, MONITOR + at + AVAILABLE, 0];
        self.tell(9, &[&number.to_ne_bytes()[..], &[0; 4], &words(&place)].concat());
        self.say_and_wait(12, &u64::from(queue).to_ne_bytes(), &[kick.as_fd()]);
        self.say_and_wait(13, &u64::from(queue).to_ne_bytes(), &[call.as_fd()]);
        self.tell(18, &[number.to_ne_bytes(), 1_u32.to_ne_bytes()].concat());
    }

    /// Stops a queue: how far it came.
    pub fn stop(&self, queue: u16) -> u32 {
        let answer = self.ask(11, &[u32::from(queue).to_ne_bytes(), [0; 4]].concat());
        u32::from_ne_bytes(answer[4..].try_into().unwrap())
    }

    // --- messages ---

    pub fn say(&self, request: u32, payload: &[u8], files: &[BorrowedFd<'_>]) {
        self.send(request, 1, payload, files);
    }

    /// And waits for the acknowledgement.
    fn say_and_wait(&self, request: u32, payload: &[u8], files: &[BorrowedFd<'_>]) {
        self.send(request, 9, payload, files);
        assert_eq!(self.receive(request).0, [0; 8]);
    }

    pub fn tell(&self, request: u32, payload: &[u8]) {
        self.say_and_wait(request, payload, &[]);
    }

    pub fn ask(&self, request: u32, payload: &[u8]) -> Vec<u8> {
        self.say(request, payload, &[]);
        self.receive(request).0
    }

    fn ask_number(&self, request: u32) -> u64 {
        u64::from_ne_bytes(self.ask(request, &[]).try_into().unwrap())
    }

    fn send(&self, request: u32, flags: u32, payload: &[u8], files: &[BorrowedFd<'_>]) {
        let size = u32::try_from(payload.len()).unwrap();
        let header = [request.to_ne_bytes(), flags.to_ne_bytes(), size.to_ne_bytes()].concat();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !files.is_empty() {
            assert!(control.push(SendAncillaryMessage::ScmRights(files)));
        }
        let bytes = [header, payload.to_vec()].concat();
        // It fails if the server has closed, which shows in the answer.
        let _ =
            rustix::net::sendmsg(&self.socket, &[IoSlice::new(&bytes)], &mut control, SendFlags::NOSIGNAL);
    }

    pub fn receive(&self, request: u32) -> (Vec<u8>, Option<OwnedFd>) {
        let mut header = [0; 12];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received =
            rustix::net::recvmsg(&self.socket, &mut [IoSliceMut::new(&mut header)], &mut control, flags)
                .unwrap();
        assert_eq!(received.bytes, 12, "the server answers");
        let file = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut files) => files.next(),
            _ => None,
        });
        let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().unwrap());
        assert_eq!((word(0), word(4)), (request, 5));
        let mut payload = vec![0; word(8) as usize];
        (&self.socket).read_exact(&mut payload).unwrap();
        (payload, file)
    }

    /// Waits until the server has closed the connection.
    pub fn wait_for_end(&self) {
        let mut left = Vec::new();
        let _ = (&self.socket).read_to_end(&mut left);
    }

    // --- the machine ---

    /// Writes to memory, `at` from its beginning.
    pub fn put(&self, at: u64, bytes: &[u8]) {
        assert_eq!(rustix::io::pwrite(&self.memory, bytes, at).unwrap(), bytes.len());
    }

    pub fn get(&self, at: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        assert_eq!(rustix::io::pread(&self.memory, &mut bytes, at).unwrap(), length);
        bytes
    }

    fn word(&self, at: u64) -> u16 {
        u16::from_le_bytes(self.get(at, 2).try_into().unwrap())
    }

    pub fn descriptor(&self, at: u64, address: u64, length: u32, flags: u16, next: u16) {
        let descriptor =
            [&address.to_le_bytes()[..], &length.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()]
                .concat();
        self.put(at, &descriptor);
    }

    /// Offers request `slot`, of at most 8 that a queue has under way, each with 4 descriptors. Its data lies
    /// at `data`, `given` bytes of it for the device and then `taken` bytes from it. Header, data and status
    /// have a descriptor each.
    pub fn offer(
        &mut self,
        queue: u16,
        slot: u16,
        kind: u32,
        sector: u64,
        data: u64,
        (given, taken): (u32, u32),
    ) {
        let at = self.queues[usize::from(queue)].at;
        let header = at + HEADERS + 16 * u64::from(slot);
        self.put(header, &[&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat());
        let status = at + STATUS + u64::from(slot);
        self.put(status, &[0xff]);
        let mut parts = vec![(header, 16, 0)];
        parts.extend((given > 0).then_some((data, given, 0)));
        parts.extend((taken > 0).then_some((data + u64::from(given), taken, 2)));
        parts.push((status, 1, 2));
        let head = 4 * slot;
        let (table, first) = if self.indirect { (at + TABLES + 64 * u64::from(slot), 0) } else { (at, head) };
        for (index, (address, length, flags)) in (0_u16..).zip(&parts) {
            let next = u16::from(usize::from(index) + 1 < parts.len());
            let place = table + 16 * u64::from(first + index);
            self.descriptor(place, GUEST + address, *length, flags | next, first + index + 1);
        }
        if self.indirect {
            let length = 16 * u32::try_from(parts.len()).unwrap();
            self.descriptor(at + 16 * u64::from(head), GUEST + table, length, 4, 0);
        }
        self.make_available(queue, head);
    }

    /// Offers what begins with descriptor `head`, and doesn't kick.
    pub fn make_available(&mut self, queue: u16, head: u16) {
        let state = &mut self.queues[usize::from(queue)];
        let entry = state.at + AVAILABLE + 4 + 2 * u64::from(state.available % RING);
        state.available = state.available.wrapping_add(1);
        let (at, available) = (state.at, state.available);
        self.put(entry, &head.to_le_bytes());
        self.put(at + AVAILABLE + 2, &available.to_le_bytes());
    }

    pub fn kick(&self, queue: u16) {
        rustix::io::write(&self.queues[usize::from(queue)].kick, &1_u64.to_ne_bytes()).unwrap();
    }

    /// Waits for the next answer, as a driver that wants to be told of each: its slot and the bytes that were
    /// written. `None` after `patience`.
    pub fn answer_within(&mut self, queue: u16, patience: Duration) -> Option<(u16, u32)> {
        let Queue { at, seen, .. } = self.queues[usize::from(queue)];
        self.put(at + AVAILABLE + 4 + 2 * u64::from(RING), &seen.to_le_bytes());
        let call = &self.queues[usize::from(queue)].call;
        loop {
            if self.word(at + USED + 2) != seen {
                break;
            }
            let wait = Timespec::try_from(patience).unwrap();
            if poll(&mut [PollFd::new(call, PollFlags::IN)], Some(&wait)).unwrap() == 0 {
                return None;
            }
            let _ = rustix::io::read(call, &mut [0; 8]);
        }
        let entry = self.get(at + USED + 4 + 8 * u64::from(seen % RING), 8);
        self.queues[usize::from(queue)].seen = seen.wrapping_add(1);
        let word = |at: usize| u32::from_le_bytes(entry[at..at + 4].try_into().unwrap());
        Some((u16::try_from(word(0) / 4).unwrap(), word(4)))
    }

    pub fn answer(&mut self, queue: u16) -> (u16, u32) {
        self.answer_within(queue, Duration::from_secs(20)).expect("an answer, and a call for it")
    }

    pub fn status(&self, queue: u16, slot: u16) -> u8 {
        self.get(self.queues[usize::from(queue)].at + STATUS + u64::from(slot), 1)[0]
    }

    /// A whole request, alone on its queue: its status.
    pub fn carry_out(&mut self, queue: u16, kind: u32, sector: u64, given: &[u8], taken: u32) -> u8 {
        let data = DATA + u64::from(queue) * (2 << 20);
        self.put(data, given);
        self.offer(queue, 1, kind, sector, data, (u32::try_from(given.len()).unwrap(), taken));
        self.kick(queue);
        let (slot, _) = self.answer(queue);
        assert_eq!(slot, 1);
        self.status(queue, 1)
    }

    pub fn write(&mut self, queue: u16, sector: u64, data: &[u8]) -> u8 {
        self.carry_out(queue, OUT, sector, data, 0)
    }

    pub fn read(&mut self, queue: u16, sector: u64, length: u32) -> Vec<u8> {
        assert_eq!(self.carry_out(queue, IN, sector, &[], length), 0);
        self.get(DATA + u64::from(queue) * (2 << 20), length as usize)
    }
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

/// A range of a discard or a zeroing.
pub fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}
