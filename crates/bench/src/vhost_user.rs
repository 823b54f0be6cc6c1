//! An export of vhost-user as a [`Device`], for `bench --through`: what a virtual machine's monitor and the
//! driver in its machine do.
//!
//! The connection and the memory are one for all shards; each shard has a queue of its own. A request is a
//! table of three descriptors: header, data and status. Its data is copied to the shared memory or from it,
//! which a machine's programs, whose own memory that is, don't do.
//!
//! ```text
//!   memory:  the front of each queue [descriptors, available, used, slots], then the data of each queue
//!   slot:    table 48 bytes, header at 64, status at 80           one for each request under way
//! ```

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    io::{self, ErrorKind},
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    rc::Rc,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use pinstripe_export::vhost_user::{
    QUEUES_MAX, RING_SIZE_MAX,
    config::{SECTOR_BYTES, feature},
    driver::DriverRing,
    front_end::{FrontEnd, QueueStart},
    request::{self, kind},
    ring::{DESCRIPTOR_BYTES, Descriptor, Layout, flag},
    wire,
};
use pinstripe_runtime::{
    Buffer, Completion, Device, DeviceError, DeviceErrorKind, DeviceInfo, DeviceSource, Slice, Submission,
    ZeroedReads,
    completion::Payload,
    shard,
    uring::{
        SentFile,
        event::Event,
        guest_memory::{GuestFault, GuestMemory, GuestRegion, shared_file},
    },
};
use rustix::event::{EventfdFlags, eventfd};

/// How long a back end may take for an answer to a message.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a queue that waits looks whether the back end is there.
const LOOK_NANOSECONDS: u64 = 1_000_000_000;
/// Features that are used where they are offered.
const WANTED: u64 = feature::READ_ONLY
    | feature::BLOCK_SIZE
    | feature::FLUSH
    | feature::MULTIQUEUE
    | feature::INDIRECT
    | feature::EVENT_INDEX
    | feature::PROTOCOL
    | feature::VERSION_1;
/// Those without which we don't go on.
const NEEDED: u64 = feature::INDIRECT | feature::PROTOCOL | feature::VERSION_1;
/// The parts of a slot.
const SLOT_BYTES: u64 = 128;
const HEADER: u64 = 64;
const STATUS: u64 = 80;
const PAGE_BYTES: u64 = 4096;
/// Requests that a ring has room for, at least.
const RING_SIZE_MIN: usize = 8;

/// A device that was connected to; every shard has a queue of it.
pub(crate) struct VhostUserSource {
    path: PathBuf,
    front_end: Arc<Mutex<FrontEnd>>,
    memory: Arc<GuestMemory>,
    places: Places,
    features: u64,
    info: DeviceInfo,
    queues: u16,
    next_queue: AtomicU16,
}

/// Where everything is in the memory, which has the same addresses in machine and monitor.
#[derive(Clone, Copy)]
struct Places {
    ring_size: u16,
    front_bytes: u64,
    /// Where the data of the first queue begins.
    data: u64,
    /// Bytes of a request's data at most.
    data_bytes: u64,
}

impl Places {
    fn new(queues: u16, depth: usize, data_bytes: u64) -> Self {
        let ring_size = depth.clamp(RING_SIZE_MIN, RING_SIZE_MAX.into()).next_power_of_two();
        let ring_size = u16::try_from(ring_size).unwrap_or(RING_SIZE_MAX);
        let slots = Self { ring_size, front_bytes: 0, data: 0, data_bytes: 0 }.slot(0, ring_size);
        let front_bytes = slots.next_multiple_of(PAGE_BYTES);
        let data_bytes = data_bytes.next_multiple_of(PAGE_BYTES);
        Self { ring_size, front_bytes, data: front_bytes * u64::from(queues), data_bytes }
    }

    /// Of all.
    fn bytes(&self, queues: u16) -> u64 {
        self.data(queues, 0)
    }

    fn layout(&self, queue: u16) -> Layout {
        let (descriptors, size) = (self.front_bytes * u64::from(queue), u64::from(self.ring_size));
        let available = descriptors + DESCRIPTOR_BYTES * size;
        // Flags, index, an entry for each, the event; the used ring is aligned to 4 bytes.
        let used = (available + 6 + 2 * size).next_multiple_of(4);
        Layout { descriptors, available, used, size: self.ring_size }
    }

    fn slot(&self, queue: u16, slot: u16) -> u64 {
        let used_end = self.layout(queue).used + 6 + 8 * u64::from(self.ring_size);
        used_end.next_multiple_of(SLOT_BYTES) + SLOT_BYTES * u64::from(slot)
    }

    fn data(&self, queue: u16, slot: u16) -> u64 {
        let number = u64::from(queue) * u64::from(self.ring_size) + u64::from(slot);
        self.data + number * self.data_bytes
    }
}

fn new_event() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

impl VhostUserSource {
    /// Connects, for so many queues of requests of at most `data_bytes`, of which `depth` are under way in a
    /// queue, and agrees on all but the queues. Blocks.
    pub(crate) fn connect(path: &Path, queues: usize, depth: usize, data_bytes: u64) -> io::Result<Self> {
        let queues = u16::try_from(queues).ok().filter(|queues| *queues <= QUEUES_MAX);
        let queues = queues.ok_or_else(|| unfit(format!("at most {} threads can use it", QUEUES_MAX - 1)))?;
        let front_end = FrontEnd::connect(path, PATIENCE)?;
        let features = front_end.negotiate(WANTED, queues)?;
        if features & NEEDED != NEEDED {
            return Err(unfit(format!("it has the features {features:#x}; {NEEDED:#x} are needed")));
        }
        let described = front_end.describe()?;
        let places = Places::new(queues, depth, data_bytes);
        let size = places.bytes(queues);
        let file = shared_file("pinstripe-bench", size)?;
        let region = wire::Region { guest: 0, size, monitor: 0, offset: 0 };
        front_end.use_memory(region, file.as_fd())?;
        let file = SentFile::new(file);
        let memory = GuestMemory::map(vec![GuestRegion { guest: 0, monitor: 0, size, offset: 0, file }])?;
        let has_block = features & feature::BLOCK_SIZE != 0;
        let info = DeviceInfo {
            name: format!("vhost-user:{}", path.display()),
            size: described.size_bytes,
            logical_block: if has_block { described.block_bytes } else { SECTOR_BYTES },
            volatile_cache: features & feature::FLUSH != 0,
            forces_by_flush: features & feature::FLUSH != 0,
            zeroes: ZeroedReads::Unsupported,
            discards: false,
            in_memory: false,
            moves_head: None,
        };
        Ok(Self {
            path: path.to_owned(),
            front_end: Arc::new(Mutex::new(front_end)),
            memory: Arc::new(memory),
            places,
            features,
            info,
            queues,
            next_queue: AtomicU16::new(0),
        })
    }

    pub(crate) fn size(&self) -> u64 {
        self.info.size
    }

    pub(crate) fn is_read_only(&self) -> bool {
        self.features & feature::READ_ONLY != 0
    }

    fn start_queue(&self) -> io::Result<Queue> {
        let number = self.next_queue.fetch_add(1, Ordering::Relaxed);
        if number >= self.queues {
            return Err(unfit(format!("all of its {} queues are in use", self.queues)));
        }
        let (kick, call) = (new_event()?, new_event()?);
        let layout = self.places.layout(number);
        let start = QueueStart { queue: number, layout, base: 0, kick: kick.as_fd(), call: call.as_fd() };
        self.front_end.lock().unwrap_or_else(PoisonError::into_inner).start(start)?;
        Ok(Queue {
            front_end: Arc::clone(&self.front_end),
            memory: Arc::clone(&self.memory),
            places: self.places,
            number,
            ring: RefCell::new(DriverRing::new(layout, 0, self.features & feature::EVENT_INDEX != 0)),
            kick,
            call,
            requests: RefCell::new((0..self.places.ring_size).map(|_| None).collect()),
            free: RefCell::new((0..self.places.ring_size).rev().collect()),
            waiting: RefCell::default(),
            ended: Cell::new(false),
        })
    }
}

fn unfit(words: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::Unsupported, words.into())
}

impl DeviceSource for VhostUserSource {
    fn attach(&self) -> Result<Rc<dyn Device>, DeviceError> {
        let failed = |error: io::Error| DeviceError::from_errno(error.raw_os_error().unwrap_or(0));
        let queue = Rc::new(self.start_queue().map_err(failed)?);
        let call =
            queue.call.try_clone().and_then(|call| SentFile::new(call).into_event()).map_err(failed)?;
        shard::spawn(Rc::clone(&queue).answers(Event::attach(call)));
        Ok(Rc::new(VhostUserDevice { queue, info: self.info.clone() }))
    }

    fn name(&self) -> String {
        format!("vhost-user:{}", self.path.display())
    }
}

/// One shard's queue of the device.
struct VhostUserDevice {
    queue: Rc<Queue>,
    info: DeviceInfo,
}

impl Drop for VhostUserDevice {
    fn drop(&mut self) {
        self.queue.end();
    }
}

impl VhostUserDevice {
    fn start(&self, kind: u32, offset: u64, length: usize, payload: Payload) -> Submission {
        let sector_bytes = u64::from(SECTOR_BYTES);
        let fits = length as u64 <= self.queue.places.data_bytes;
        let Some(length) = u32::try_from(length).ok().filter(|_| fits && offset.is_multiple_of(sector_bytes))
        else {
            return Submission::done(Err(DeviceError::of(DeviceErrorKind::Invalid)), None);
        };
        let (submission, completion) = Submission::pending(payload);
        self.queue.start(Request { kind, sector: offset / sector_bytes, length, completion });
        submission
    }
}

impl Device for VhostUserDevice {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }
    fn read(&self, offset: u64, buffer: Buffer) -> Submission {
        self.start(kind::IN, offset, buffer.len(), Payload::Buffer(buffer))
    }
    /// Virtio has no forced writes: a driver flushes.
    fn write(&self, offset: u64, data: Slice, fua: bool) -> Submission {
        if fua {
            return Submission::done(Err(DeviceError::of(DeviceErrorKind::Unsupported)), None);
        }
        self.start(kind::OUT, offset, data.len(), Payload::Slice(data))
    }
    fn flush(&self) -> Submission {
        self.start(kind::FLUSH, 0, 0, Payload::None)
    }
    fn discard(&self, _: u64, _: u64) -> Submission {
        Submission::done(Err(DeviceError::of(DeviceErrorKind::Unsupported)), None)
    }
    fn write_zeroes(&self, _: u64, _: u64) -> Submission {
        Submission::done(Err(DeviceError::of(DeviceErrorKind::Unsupported)), None)
    }
}

struct Request {
    kind: u32,
    sector: u64,
    length: u32,
    completion: Completion,
}

struct Queue {
    front_end: Arc<Mutex<FrontEnd>>,
    memory: Arc<GuestMemory>,
    places: Places,
    number: u16,
    ring: RefCell<DriverRing>,
    kick: OwnedFd,
    call: OwnedFd,
    /// By slot, which is the head of the request's descriptors too.
    requests: RefCell<Vec<Option<Request>>>,
    /// Slots without a request; the last one was used last.
    free: RefCell<Vec<u16>>,
    /// Requests that no slot is free for.
    waiting: RefCell<VecDeque<Request>>,
    ended: Cell<bool>,
}

impl Queue {
    fn start(&self, request: Request) {
        if self.ended.get() {
            return request.completion.finish(Err(DeviceError::of(DeviceErrorKind::Gone)));
        }
        let Some(slot) = self.free.borrow_mut().pop() else {
            return self.waiting.borrow_mut().push_back(request);
        };
        let offered = self.offer(slot, &request);
        self.requests.borrow_mut()[usize::from(slot)] = Some(request);
        if offered.is_err() {
            self.end();
        }
    }

    /// Describes a request, offers it, and tells of it if the device wants that.
    fn offer(&self, slot: u16, request: &Request) -> Result<(), GuestFault> {
        let (memory, place) = (&*self.memory, self.places.slot(self.number, slot));
        let (data, length) = (self.places.data(self.number, slot), request.length);
        request.completion.with_payload(|payload| match payload {
            Payload::Slice(slice) => memory.write(data, slice),
            Payload::Buffer(_) | Payload::None => Ok(()),
        })?;
        memory.write(place + HEADER, &request::header(request.kind, request.sector))?;
        memory.write(place + STATUS, &[u8::MAX])?;
        let is_read = if request.kind == kind::IN { flag::WRITE } else { 0 };
        let parts = [
            (place + HEADER, request::HEADER_BYTES as u64, 0),
            (data, length.into(), is_read),
            (place + STATUS, 1, flag::WRITE),
        ];
        let mut count = 0;
        for (at, length, flags) in parts.into_iter().filter(|(_, length, _)| *length > 0) {
            let follows = if at == place + STATUS { 0 } else { flag::NEXT };
            let length = u32::try_from(length).unwrap_or(u32::MAX);
            let descriptor = Descriptor { at, length, flags: flags | follows, next: count + 1 };
            descriptor.write(memory, place + DESCRIPTOR_BYTES * u64::from(count))?;
            count += 1;
        }
        let table_bytes = u32::from(count) * u32::try_from(DESCRIPTOR_BYTES).unwrap_or(u32::MAX);
        let head = Descriptor { at: place, length: table_bytes, flags: flag::INDIRECT, next: 0 };
        let descriptors = self.places.layout(self.number).descriptors;
        head.write(memory, descriptors + DESCRIPTOR_BYTES * u64::from(slot))?;
        let mut ring = self.ring.borrow_mut();
        ring.offer(memory, slot)?;
        if ring.wants_kick(memory)? {
            count_up(&self.kick);
        }
        Ok(())
    }

    /// Takes answers until the device is dropped or its back end is gone.
    async fn answers(self: Rc<Self>, call: Event) {
        while !self.ended.get() {
            match self.take_answers() {
                Ok(true) => {}
                Ok(false) => match shard::timeout(LOOK_NANOSECONDS, call.wait()).await {
                    Some(Ok(())) => {}
                    None if !self.is_gone() => {}
                    Some(Err(_)) | None => self.end(),
                },
                Err(_) => self.end(),
            }
        }
    }

    fn is_gone(&self) -> bool {
        self.front_end.lock().unwrap_or_else(PoisonError::into_inner).is_closed()
    }

    /// Ends what is answered, and asks to be told of the next answer. True if that is there already.
    fn take_answers(&self) -> Result<bool, GuestFault> {
        loop {
            // Not held while a request ends: the next one may be offered at once.
            let answer = self.ring.borrow_mut().answer(&*self.memory)?;
            let Some((head, _)) = answer else { break };
            let slot = u16::try_from(head).map_err(|_| GuestFault::Outside)?;
            let request = self.requests.borrow_mut().get_mut(usize::from(slot)).and_then(Option::take);
            self.finish(slot, request.ok_or(GuestFault::Outside)?)?;
        }
        self.ring.borrow_mut().ask_for_call(&*self.memory)
    }

    fn finish(&self, slot: u16, request: Request) -> Result<(), GuestFault> {
        let result = self.result(slot, &request);
        self.free.borrow_mut().push(slot);
        let next = self.waiting.borrow_mut().pop_front();
        if let Some(next) = next {
            self.start(next);
        }
        request.completion.finish(result.unwrap_or(Err(DeviceError::of(DeviceErrorKind::Gone))));
        result.map(|_| ())
    }

    /// What became of the request. The bytes of a read go to its buffer.
    fn result(&self, slot: u16, request: &Request) -> Result<Result<usize, DeviceError>, GuestFault> {
        let mut status = [0];
        self.memory.read(self.places.slot(self.number, slot) + STATUS, &mut status)?;
        let failed = match status {
            [0] => None,
            [2] => Some(DeviceErrorKind::Unsupported),
            _ => Some(DeviceErrorKind::Media),
        };
        if let Some(kind) = failed {
            return Ok(Err(DeviceError::of(kind)));
        }
        let data = self.places.data(self.number, slot);
        request.completion.with_payload(|payload| match payload {
            Payload::Buffer(buffer) => self.memory.read(data, buffer),
            Payload::Slice(_) | Payload::None => Ok(()),
        })?;
        Ok(Ok(usize::try_from(request.length).unwrap_or(usize::MAX)))
    }

    /// Fails all requests, and takes no more.
    fn end(&self) {
        if self.ended.replace(true) {
            return;
        }
        let mut failed: Vec<Request> = self.waiting.borrow_mut().drain(..).collect();
        failed.extend(self.requests.borrow_mut().drain(..).flatten());
        for request in failed {
            request.completion.finish(Err(DeviceError::of(DeviceErrorKind::Gone)));
        }
        // Wakes the task that takes answers.
        count_up(&self.call);
    }
}

/// An event that doesn't wait: a counter that is full has been counted up already.
fn count_up(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_the_memory_are_aligned_and_apart() {
        for (queues, depth, data) in [(1, 1, 512), (3, 33, 4096), (64, 5000, 4 << 20)] {
            let places = Places::new(queues, depth, data);
            let size = u64::from(places.ring_size);
            assert!(places.ring_size.is_power_of_two() && places.ring_size <= RING_SIZE_MAX);
            for queue in 0..queues {
                let layout = places.layout(queue);
                assert!(layout.descriptors.is_multiple_of(16) && layout.used.is_multiple_of(4));
                assert!(layout.available >= layout.descriptors + 16 * size);
                assert!(layout.used >= layout.available + 6 + 2 * size);
                assert!(places.slot(queue, 0) >= layout.used + 6 + 8 * size);
                let end = places.slot(queue, places.ring_size - 1) + SLOT_BYTES;
                assert!(end <= places.layout(queue + 1).descriptors && end <= places.data(0, 0));
                assert_eq!(places.data(queue, places.ring_size), places.data(queue + 1, 0));
                assert!(places.data(queue, 0).is_multiple_of(PAGE_BYTES));
            }
            assert!(places.data_bytes >= data);
            let end = places.data(queues - 1, places.ring_size - 1) + places.data_bytes;
            assert_eq!(places.bytes(queues), end);
        }
    }
}
