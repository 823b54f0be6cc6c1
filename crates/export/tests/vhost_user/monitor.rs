//! A monitor and its machine's driver. The machine's memory is a file, which both sides map or read.

use std::{
    io::Write,
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    time::Duration,
};

use pinstripe_export::vhost_user::{
    GuestMemory,
    driver::DriverRing,
    front_end::{FrontEnd, QueueStart},
    request,
    ring::{Descriptor, Layout},
    wire::Region,
};
use pinstripe_runtime::uring::guest_memory::GuestFault;
use rustix::{
    event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll},
    fs::MemfdFlags,
};

/// For what comes at last, however much else the machine has to do.
pub const PATIENCE: Duration = Duration::from_mins(1);
/// Descriptors of a ring, unless a test wants others.
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

/// VERSION_1, PROTOCOL_FEATURES, EVENT_IDX, INDIRECT_DESC, WRITE_ZEROES, DISCARD, MQ, FLUSH.
pub const FEATURES: u64 = 1 << 32 | 1 << 30 | 1 << 29 | 1 << 28 | 1 << 14 | 1 << 13 | 1 << 12 | 1 << 9;
/// INFLIGHT_SHMFD, CONFIG, BACKEND_REQ, REPLY_ACK, MQ.
pub const PROTOCOL: u64 = 1 << 12 | 1 << 9 | 1 << 5 | 1 << 3 | 1;

/// Kinds of requests.
pub const IN: u32 = 0;
pub const OUT: u32 = 1;
pub const FLUSH: u32 = 4;
pub const NAME: u32 = 8;
pub const DISCARD: u32 = 11;
pub const ZEROES: u32 = 13;

pub struct Monitor {
    front_end: FrontEnd,
    pub memory: OwnedFd,
    pub queues: Vec<Queue>,
    /// Put the descriptors of requests into tables of their own.
    pub indirect: bool,
    /// Descriptors of the rings that come; at most 256.
    pub ring: u16,
}

pub struct Queue {
    at: u64,
    size: u16,
    pub kick: OwnedFd,
    pub call: OwnedFd,
    pub ring: DriverRing,
}

impl Queue {
    fn layout(&self, memory: u64) -> Layout {
        let at = memory + self.at;
        Layout { descriptors: at, available: at + AVAILABLE, used: at + USED, size: self.size }
    }
}

/// The memory as the machine sees it. The file may be exchanged, and may become shorter.
struct Machine<'a>(&'a OwnedFd);

impl GuestMemory for Machine<'_> {
    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), GuestFault> {
        let read = rustix::io::pread(self.0, &mut *into, at - GUEST).unwrap();
        if read == into.len() { Ok(()) } else { Err(GuestFault::Lost) }
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<(), GuestFault> {
        assert_eq!(rustix::io::pwrite(self.0, data, at - GUEST).unwrap(), data.len());
        Ok(())
    }

    fn load(&self, at: u64) -> Result<u16, GuestFault> {
        let mut word = [0; 2];
        self.read(at, &mut word).map(|()| u16::from_le_bytes(word))
    }

    fn store(&self, at: u64, value: u16) -> Result<(), GuestFault> {
        self.write(at, &value.to_le_bytes())
    }
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
        let front_end = (0..6000).find_map(|_| {
            let front_end = FrontEnd::connect(path, PATIENCE);
            if front_end.is_err() {
                std::thread::sleep(Duration::from_millis(10));
            }
            front_end.ok()
        });
        let front_end = front_end.expect("there is a server");
        Self { front_end, memory, queues: Vec::new(), indirect: false, ring: RING }
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
        assert_eq!(self.front_end.negotiate(features, queues).unwrap(), features, "all are offered");
        let protocol = u64::from_ne_bytes(self.ask(15, &[]).try_into().unwrap());
        assert_eq!(protocol & PROTOCOL, PROTOCOL);
        self.use_memory();
    }

    pub fn use_memory(&self) {
        let region = Region { guest: GUEST, size: MEMORY, monitor: MONITOR, offset: 0 };
        self.front_end.use_memory(region, self.memory.as_fd()).unwrap();
    }

    /// Has a queue in the machine, of which `base` requests were made and answered.
    pub fn plug(&mut self, base: u16) {
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let at = self.queues.len() as u64 * QUEUE_BYTES;
        let size = self.ring;
        let layout = Layout {
            descriptors: GUEST + at,
            available: GUEST + at + AVAILABLE,
            used: GUEST + at + USED,
            size,
        };
        let ring = DriverRing::new(layout, base, true);
        self.queues.push(Queue { at, size, kick: event(), call: event(), ring });
    }

    /// Starts a queue, whose first request is `base`.
    pub fn start(&mut self, queue: u16, base: u16) {
        if self.queues.len() <= usize::from(queue) {
            self.plug(base);
        }
        let Queue { kick, call, .. } = &self.queues[usize::from(queue)];
        let layout = self.queues[usize::from(queue)].layout(MONITOR);
        let start = QueueStart { queue, layout, base, kick: kick.as_fd(), call: call.as_fd() };
        self.front_end.start(start).unwrap();
    }

    /// Stops a queue: how far it came.
    pub fn stop(&self, queue: u16) -> u32 {
        self.front_end.stop(queue).unwrap()
    }

    // --- messages ---

    pub fn say(&self, request: u32, payload: &[u8], files: &[BorrowedFd<'_>]) {
        // It fails if the server has closed, which shows in the answer.
        let _ = self.front_end.send(request, false, payload, files);
    }

    fn ask(&self, request: u32, payload: &[u8]) -> Vec<u8> {
        self.front_end.ask(request, payload).unwrap()
    }

    pub fn receive(&self, request: u32) -> (Vec<u8>, Option<OwnedFd>) {
        self.front_end.receive(request).expect("the server answers")
    }

    /// Has the server make memory for requests under way, for one queue: what describes it, and its file.
    pub fn new_inflight(&self) -> (Vec<u8>, OwnedFd) {
        let wanted = [&[0; 16][..], &1_u16.to_ne_bytes(), &RING.to_ne_bytes(), &[0; 4]].concat();
        self.say(31, &wanted, &[]);
        let (described, file) = self.receive(31);
        (described, file.expect("a file comes with it"))
    }

    pub fn use_inflight(&self, (described, file): &(Vec<u8>, OwnedFd)) {
        self.say(32, described, &[file.as_fd()]);
    }

    /// Gives the server a socket for its own messages: the other end.
    pub fn open_channel(&self) -> UnixStream {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(PATIENCE)).unwrap();
        self.front_end.tell(21, &[], &[theirs.as_fd()]).unwrap();
        ours
    }

    /// The same with no room for any.
    pub fn open_full_channel(&self) -> UnixStream {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        while theirs.write(&[0; 4096]).is_ok() {}
        self.front_end.tell(21, &[], &[theirs.as_fd()]).unwrap();
        ours
    }

    /// How large the disk is.
    pub fn size(&self) -> u64 {
        self.front_end.describe().unwrap().size_bytes
    }

    pub fn is_closed(&self) -> bool {
        self.front_end.is_closed()
    }

    /// Waits until the server has closed the connection.
    pub fn wait_for_end(&self) {
        let is_closed = (0..60_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            self.is_closed()
        });
        assert!(is_closed, "the server has not closed the connection");
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

    pub fn descriptor(&self, at: u64, address: u64, length: u32, flags: u16, next: u16) {
        let descriptor = Descriptor { at: address, length, flags, next };
        descriptor.write(&Machine(&self.memory), GUEST + at).unwrap();
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
        self.put(header, &request::header(kind, sector));
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
        self.queues[usize::from(queue)].ring.offer(&Machine(&self.memory), head).unwrap();
    }

    pub fn kick(&self, queue: u16) {
        rustix::io::write(&self.queues[usize::from(queue)].kick, &1_u64.to_ne_bytes()).unwrap();
    }

    /// Waits for the next answer, as a driver that wants to be told of each: its slot and the bytes that were
    /// written. `None` after `patience`.
    pub fn answer_within(&mut self, queue: u16, patience: Duration) -> Option<(u16, u32)> {
        let Queue { ring, call, .. } = &mut self.queues[usize::from(queue)];
        let machine = Machine(&self.memory);
        let (head, written) = loop {
            ring.ask_for_call(&machine).unwrap();
            if let Some(answer) = ring.answer(&machine).unwrap() {
                break answer;
            }
            let wait = Timespec::try_from(patience).unwrap();
            if poll(&mut [PollFd::new(call, PollFlags::IN)], Some(&wait)).unwrap() == 0 {
                return None;
            }
            let _ = rustix::io::read(&*call, &mut [0; 8]);
        };
        Some((u16::try_from(head / 4).unwrap(), written))
    }

    /// Waits until the machine is told of answers, without a look at the ring.
    pub fn wait_for_call(&self, queue: u16) {
        let call = &self.queues[usize::from(queue)].call;
        let wait = Timespec::try_from(PATIENCE).unwrap();
        assert_eq!(poll(&mut [PollFd::new(call, PollFlags::IN)], Some(&wait)), Ok(1), "no call");
    }

    pub fn answer(&mut self, queue: u16) -> (u16, u32) {
        self.answer_within(queue, PATIENCE).expect("an answer, and a call for it")
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

/// A range of a discard or a zeroing.
pub fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    [&sector.to_le_bytes()[..], &sectors.to_le_bytes(), &flags.to_le_bytes()].concat()
}
