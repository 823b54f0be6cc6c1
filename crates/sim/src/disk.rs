//! A simulated disk: [`SimDisk`] as the harness sees it, [`SimDevice`] as a shard uses it.
//!
//! A request has one or two *effects* (a part of a write reaches the medium, a part of a read leaves it, a
//! flush does its work) and then an end, each at a time of its own. So writes in flight land in any order,
//! overlapping ones mix by sectors, and a read that is completed late may hold what was true early. Once its
//! end has been chosen by the scheduler, the request is completed on the shard that submitted it.
//!
//! At a crash a request in flight may have happened fully, in part, or not at all. The medium says what
//! becomes of writes that were completed and not flushed.

mod counters;
mod crash_point;
mod death;
mod timing;

pub use counters::DiskCounters;
pub use crash_point::{CrashImage, CrashPoint, Doubtful, Outcome, Stage};

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    ops::Range,
    rc::Rc,
    sync::Arc,
};

use pinstripe_runtime::{
    Buffer, Completion, Device, DeviceError, DeviceErrorKind, DeviceInfo, DeviceSource, Shard, Slice,
    Submission, ZeroedReads, completion::Payload, shard,
};

use crate::{
    drive::{self, Drive},
    faults::{Fault, Faults, Misplaced, Trigger},
    medium::{Medium, SECTOR},
    rng::{Rng, index},
    source::EventSource,
    trace::{Ending, Event, Operation, Trace, hash_of},
};

/// What a simulated disk is made of.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is drawn by itself")]
pub struct SimDiskConfig {
    /// Name for messages.
    pub name: String,
    /// Size in bytes, a multiple of the logical block.
    pub size: u64,
    /// Logical block in bytes: 512 or 4096.
    pub logical_block: u32,
    /// Whether completed writes may be lost on power failure until a flush.
    pub volatile_cache: bool,
    /// Whether a forced write is made of a write and a flush, which can fail as any ([`Fault::FailFlushes`]).
    pub forces_by_flush: bool,
    /// What `write_zeroes` does.
    pub zeroes: ZeroedReads,
    /// Whether `discard` does anything.
    pub discards: bool,
    /// Whether what was discarded reads back zero. Otherwise each sector reads back as the seed says.
    pub discard_zeroes: bool,
    /// Unit in bytes that a crash does not tear, at most the logical block.
    pub tear_bytes: u32,
    /// Shortest time from submission to completion, in nanoseconds.
    pub latency_ns_min: u64,
    /// Longest usual time.
    pub latency_ns_max: u64,
    /// Of 1024 requests, how many take up to 50 times as long.
    pub latency_tail: u64,
    /// Of 1024 requests, how many complete before the call returns.
    pub inline: u64,
    /// If there is one, it says when each request ends, at one stroke, and nothing about that is drawn. Such
    /// a disk is for measuring and not for crashes: what was completed is never lost, and what was under way
    /// at a crash still keeps the drive busy.
    pub drive: Option<Drive>,
    /// For so long after a process has died its writes may still take effect, as behind a server that
    /// doesn't know of hosts. None after a power loss.
    pub late_writes_ns: u64,
}

impl SimDiskConfig {
    /// A disk with a volatile cache, 512-byte blocks and the latencies of flash.
    pub fn new(name: &str, size: u64) -> Self {
        Self {
            name: name.to_owned(),
            size,
            logical_block: 512,
            volatile_cache: true,
            forces_by_flush: false,
            zeroes: ZeroedReads::Zero,
            discards: true,
            discard_zeroes: false,
            tear_bytes: 512,
            latency_ns_min: 10_000,
            latency_ns_max: 120_000,
            latency_tail: 20,
            inline: 0,
            drive: None,
            late_writes_ns: 0,
        }
    }

    /// A disk as fast as `drive`, and with its kind of cache.
    pub fn modelled(name: &str, size: u64, drive: Drive) -> Self {
        let volatile_cache = drive.model().flush_ns.is_some();
        Self { volatile_cache, drive: Some(drive), ..Self::new(name, size) }
    }

    /// A disk with habits that `rng` draws; size and logical block are for the caller to decide.
    pub fn drawn(rng: &mut Rng, name: &str, size: u64) -> Self {
        let latency_ns_min = rng.pick(&[0, 1_000, 10_000]);
        Self {
            volatile_cache: rng.chance(3, 4),
            zeroes: rng.pick(&[ZeroedReads::Zero, ZeroedReads::Unsupported]),
            discards: rng.chance(1, 2),
            discard_zeroes: rng.chance(1, 2),
            latency_ns_min,
            latency_ns_max: latency_ns_min + rng.pick(&[1, 5_000, 100_000, 2_000_000]),
            latency_tail: rng.pick(&[0, 20, 300]),
            inline: rng.pick(&[0, 0, 50, 1024]),
            ..Self::new(name, size)
        }
    }
}

/// No end is so late.
const UNKNOWN: u64 = u64::MAX;

/// Bytes `from..to` of a request, which take effect at `due`.
struct Part {
    due: u64,
    from: u64,
    to: u64,
}

struct Request {
    shard: usize,
    operation: Operation,
    offset: u64,
    /// Where a write lands: its offset, unless it is misdirected.
    lands: u64,
    length: u64,
    /// What a write writes; what a read has read.
    data: Rc<[u8]>,
    sample: Vec<u8>,
    /// Writes in flight when a flush came: it does not cover them, nor any that came later.
    uncovered: Vec<u64>,
    parts: Vec<Part>,
    /// [`UNKNOWN`] until its drive says it.
    end_at: u64,
    failure: Option<DeviceErrorKind>,
    /// Absent for a request that completes inline.
    completion: Option<Completion>,
}

struct DiskState {
    config: SimDiskConfig,
    medium: Medium,
    faults: Faults,
    rng: Rng,
    requests: BTreeMap<u64, Request>,
    requests_taken: u64,
    /// No event is due before this.
    due_min: u64,
    counters: DiskCounters,
    misplaced: Vec<Misplaced>,
}

struct Shared {
    number: usize,
    info: DeviceInfo,
    clock: Rc<Cell<u64>>,
    trace: Rc<Trace>,
    state: RefCell<DiskState>,
}

thread_local! {
    /// Disks of this thread's worlds, for sources: a [`DeviceSource`] may cross threads, a world may not.
    static DISKS: RefCell<(u64, BTreeMap<u64, std::rc::Weak<Shared>>)> = const { RefCell::new((0, BTreeMap::new())) };
}

/// A disk of the world. It outlives crashes; shards attach to it through [`SimDisk::source`].
#[derive(Clone)]
pub struct SimDisk {
    shared: Rc<Shared>,
    key: u64,
}

impl SimDisk {
    pub(crate) fn new(
        number: usize,
        config: SimDiskConfig,
        rng: Rng,
        clock: Rc<Cell<u64>>,
        trace: Rc<Trace>,
    ) -> Self {
        assert!(
            config.size.is_multiple_of(u64::from(config.logical_block))
                && config.logical_block.is_multiple_of(config.tear_bytes)
                && u64::from(config.tear_bytes).is_multiple_of(SECTOR),
            "a simulated disk is made of whole blocks, a block of whole tear units, those of sectors"
        );
        let info = DeviceInfo {
            name: config.name.clone(),
            size: config.size,
            logical_block: config.logical_block,
            volatile_cache: config.volatile_cache,
            forces_by_flush: config.volatile_cache && config.forces_by_flush,
            zeroes: config.zeroes,
            discards: config.discards,
            in_memory: false,
            moves_head: config.drive.as_ref().and_then(|drive| drive.model().moves_head()),
        };
        let medium = Medium::new(config.size, config.tear_bytes);
        let state = DiskState {
            config,
            medium,
            faults: Faults::none(),
            rng,
            requests: BTreeMap::new(),
            requests_taken: 0,
            due_min: u64::MAX,
            counters: DiskCounters::default(),
            misplaced: Vec::new(),
        };
        let shared = Rc::new(Shared { number, info, clock, trace, state: RefCell::new(state) });
        let key = DISKS.with_borrow_mut(|(next, disks)| {
            *next += 1;
            disks.retain(|_, disk| disk.strong_count() > 0);
            disks.insert(*next, Rc::downgrade(&shared));
            *next
        });
        Self { shared, key }
    }

    /// What the disk says of itself.
    pub fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    /// Where shards of this thread attach.
    pub fn source(&self) -> Arc<dyn DeviceSource> {
        Arc::new(SimSource { key: self.key, name: self.info().name.clone() })
    }

    /// The disk as the current shard uses it.
    pub fn attach(&self) -> Rc<dyn Device> {
        Rc::new(SimDevice { shared: Rc::clone(&self.shared), shard: shard::index() })
    }

    /// Has a fault happen now.
    pub fn fault(&self, fault: &Fault) {
        self.shared.fault(fault);
    }

    /// Has a fault happen later.
    pub fn plan(&self, trigger: Trigger, fault: Fault) {
        self.shared.state.borrow_mut().faults.plan(trigger, fault);
    }

    /// `length` bytes from `offset` as a read would see them now.
    pub fn peek(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.shared.state.borrow().medium.current().read(offset, &mut bytes);
        bytes
    }

    /// The pages that were ever written, in bytes, ascending: all others are zero.
    pub fn touched(&self) -> Vec<Range<u64>> {
        self.shared.state.borrow().medium.current().pages().collect()
    }

    /// `length` bytes from `offset` that a power loss now would leave, were the cache lost as a whole.
    pub fn peek_durable(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.shared.state.borrow().medium.durable().read(offset, &mut bytes);
        bytes
    }

    /// Puts whole sectors on the disk, durably, past all requests.
    ///
    /// # Panics
    /// If the range is not made of whole sectors.
    pub fn poke(&self, offset: u64, bytes: &[u8]) {
        assert!(
            offset.is_multiple_of(SECTOR) && (bytes.len() as u64).is_multiple_of(SECTOR),
            "whole sectors"
        );
        let state = &mut *self.shared.state.borrow_mut();
        state.medium.poke(offset, bytes);
        state.faults.written(offset, bytes.len() as u64);
    }

    /// Whether the device is gone.
    pub fn is_gone(&self) -> bool {
        self.shared.state.borrow().faults.gone
    }

    /// Whether nothing completes at present.
    pub fn is_hung(&self) -> bool {
        self.shared.state.borrow().faults.hung
    }

    /// Number of sectors that a power loss now could change.
    pub fn unflushed_sectors(&self) -> usize {
        self.shared.state.borrow().medium.cached_sectors()
    }

    /// What was written to wrong places since this was last asked.
    pub fn take_misplaced(&self) -> Vec<Misplaced> {
        std::mem::take(&mut self.shared.state.borrow_mut().misplaced)
    }

    /// What it has been asked.
    pub fn counters(&self) -> DiskCounters {
        self.shared.state.borrow().counters
    }

    pub(crate) fn events(&self) -> Rc<dyn EventSource> {
        Rc::clone(&self.shared) as Rc<dyn EventSource>
    }
}

/// A [`SimDisk`] as a [`DeviceSource`]: valid on the thread of its world.
struct SimSource {
    key: u64,
    name: String,
}

impl DeviceSource for SimSource {
    fn attach(&self) -> Result<Rc<dyn Device>, DeviceError> {
        let shared = DISKS.with_borrow(|(_, disks)| disks.get(&self.key).and_then(std::rc::Weak::upgrade));
        let shared = shared.ok_or(DeviceError::of(DeviceErrorKind::Gone))?;
        Ok(Rc::new(SimDevice { shared, shard: shard::index() }))
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

/// A [`SimDisk`] as one shard uses it.
pub struct SimDevice {
    shared: Rc<Shared>,
    shard: usize,
}

impl Device for SimDevice {
    fn info(&self) -> &DeviceInfo {
        &self.shared.info
    }

    fn read(&self, offset: u64, buffer: Buffer) -> Submission {
        let length = buffer.len() as u64;
        self.submit(Operation::Read, offset, length, Rc::default(), Payload::Buffer(buffer))
    }

    fn write(&self, offset: u64, data: Slice, fua: bool) -> Submission {
        let operation = if fua { Operation::WriteFua } else { Operation::Write };
        let bytes = Rc::from(&data[..]);
        self.submit(operation, offset, data.len() as u64, bytes, Payload::Slice(data))
    }

    fn late_writes_ns(&self) -> u64 {
        self.shared.state.borrow().config.late_writes_ns
    }

    fn flush(&self) -> Submission {
        self.submit(Operation::Flush, 0, 0, Rc::default(), Payload::None)
    }

    fn discard(&self, offset: u64, length: u64) -> Submission {
        self.submit(Operation::Discard, offset, length, Rc::default(), Payload::None)
    }

    fn write_zeroes(&self, offset: u64, length: u64) -> Submission {
        self.submit(Operation::WriteZeroes, offset, length, Rc::default(), Payload::None)
    }
}

impl SimDevice {
    fn submit(
        &self,
        operation: Operation,
        offset: u64,
        length: u64,
        data: Rc<[u8]>,
        payload: Payload,
    ) -> Submission {
        debug_assert_eq!(shard::index(), self.shard, "a device belongs to the shard that attached it");
        let shared = &*self.shared;
        shared.apply_plan();
        let now = shared.clock.get();
        let state = &mut *shared.state.borrow_mut();
        let number = state.requests_taken;
        state.requests_taken += 1;
        state.counters.count(operation, length);
        shared.trace.record(Event::Submitted {
            disk: shared.number,
            request: number,
            shard: self.shard,
            operation,
            offset,
            length,
            contents: hash_of(&data),
        });
        if let Err(kind) = state.refuse(operation, offset, length) {
            shared.trace.record(Event::Completed {
                disk: shared.number,
                request: number,
                ending: Ending::of(Err(kind)),
                contents: 0,
            });
            let buffer = if let Payload::Buffer(buffer) = payload { Some(buffer) } else { None };
            return Submission::done(Err(DeviceError::of(kind)), buffer);
        }
        let mut request = state.request(now, self.shard, operation, offset, length, data);
        // A busy disk says so by a completion. A stray write doesn't end at once, so that a harness that
        // looks after every step sees it before its end.
        let waits = state.faults.hung
            || request.failure == Some(DeviceErrorKind::Busy)
            || request.lands != request.offset;
        if !waits && state.config.drive.is_none() && state.rng.chance(state.config.inline, 1024) {
            return shared.complete_inline(state, number, request, payload);
        }
        let (submission, completion) = Submission::pending(payload);
        request.completion = Some(completion);
        state.due_min = request.next_due().min(state.due_min);
        state.requests.insert(number, request);
        submission
    }
}

impl Request {
    fn next_due(&self) -> u64 {
        self.parts.iter().map(|part| part.due).min().unwrap_or(self.end_at)
    }

    /// Events that may happen at `now`: parts first, the end only when none is left.
    fn due(&self, now: u64) -> usize {
        if self.parts.is_empty() {
            usize::from(self.end_at <= now)
        } else {
            self.parts.iter().filter(|part| part.due <= now).count()
        }
    }

    fn changes_contents(&self) -> bool {
        !matches!(self.operation, Operation::Read | Operation::Flush)
    }
}

impl DiskState {
    /// Errors that need no medium.
    fn refuse(&mut self, operation: Operation, offset: u64, length: u64) -> Result<(), DeviceErrorKind> {
        let block = u64::from(self.config.logical_block);
        let end = offset.checked_add(length).ok_or(DeviceErrorKind::Invalid)?;
        let misfit = end > self.config.size || !offset.is_multiple_of(block) || !length.is_multiple_of(block);
        let unsupported = match operation {
            Operation::WriteZeroes => self.config.zeroes == ZeroedReads::Unsupported,
            Operation::Discard => !self.config.discards,
            _ => false,
        };
        if operation != Operation::Flush && (misfit || length == 0) {
            return Err(DeviceErrorKind::Invalid);
        }
        if unsupported {
            return Err(DeviceErrorKind::Unsupported);
        }
        Ok(())
    }

    fn request(
        &mut self,
        now: u64,
        shard: usize,
        operation: Operation,
        offset: u64,
        length: u64,
        data: Rc<[u8]>,
    ) -> Request {
        let data = match operation {
            Operation::WriteZeroes => vec![0; index(length)].into(),
            Operation::Discard => self.discarded(offset, length),
            _ => data,
        };
        let end = match &mut self.config.drive {
            Some(drive) => {
                let number = self.requests_taken - 1;
                drive.submit(now, drive::Request { number, operation, offset, length })
            }
            None => Some(now.saturating_add(self.draw_latency())),
        };
        let mut end_at = end.map_or(UNKNOWN, |end| self.slowed(now, end));
        let mut failure = self.faults.gone.then_some(DeviceErrorKind::Gone);
        if failure.is_none() && self.faults.refusals > 0 {
            self.faults.refusals -= 1;
            failure = Some(DeviceErrorKind::Busy);
        }
        if failure.is_some() && end_at == UNKNOWN {
            end_at = now;
        }
        let parts = if failure.is_some() { Vec::new() } else { self.parts(now, end_at, length) };
        let in_flight = |(number, request): (&u64, &Request)| request.changes_contents().then_some(*number);
        let uncovered = match operation {
            Operation::Flush => self.requests.iter().filter_map(in_flight).collect(),
            _ => Vec::new(),
        };
        let writes = !matches!(operation, Operation::Read | Operation::Flush);
        let lands = if writes { self.faults.landing(offset, length) } else { offset };
        let sample = if operation == Operation::Read { vec![0; index(length)] } else { Vec::new() };
        Request {
            shard,
            operation,
            offset,
            lands,
            length,
            data,
            sample,
            uncovered,
            parts,
            end_at,
            failure,
            completion: None,
        }
    }

    /// What a discarded range reads back as: each sector its old contents, zero or anything.
    fn discarded(&mut self, offset: u64, length: u64) -> Rc<[u8]> {
        let mut bytes = vec![0; index(length)];
        if !self.config.discard_zeroes {
            self.medium.current().read(offset, &mut bytes);
            let habit = self.rng.below(4);
            for sector in bytes.chunks_mut(index(SECTOR)) {
                match if habit == 3 { self.rng.below(3) } else { habit } {
                    0 => {}
                    1 => sector.fill(0),
                    _ => self.rng.fill(sector),
                }
            }
        }
        bytes.into()
    }

    /// A part of a request takes effect.
    fn take_effect(&mut self, number: u64, request: &mut Request, part: &Part) {
        let (offset, length) = (request.offset + part.from, part.to - part.from);
        match request.operation {
            Operation::Read => {
                if self.faults.unreadable(offset, length) {
                    request.failure = Some(DeviceErrorKind::Media);
                }
                let to = &mut request.sample[index(part.from)..index(part.to)];
                self.medium.current().read(offset, to);
            }
            Operation::Flush => {
                let covered = |write: u64| write < number && !request.uncovered.contains(&write);
                if self.faults.failing_flushes > 0 {
                    self.faults.failing_flushes -= 1;
                    request.failure = Some(DeviceErrorKind::Media);
                    self.medium.flush_failed(covered);
                } else {
                    self.medium.flush(covered);
                }
            }
            _ if self.faults.unwritable(offset, length) => {
                request.failure = Some(DeviceErrorKind::Media);
                if self.rng.chance(1, 2) {
                    self.land(number, request, part);
                }
            }
            _ => self.land(number, request, part),
        }
    }

    fn land(&mut self, number: u64, request: &Request, part: &Part) {
        let (at, bytes) = (request.lands + part.from, &request.data[index(part.from)..index(part.to)]);
        if self.config.volatile_cache && self.config.drive.is_none() {
            self.medium.land(number, request.lands, &request.data, part.from, part.to);
        } else if self.config.drive.is_none() || !self.medium.leaves_untouched(at, bytes) {
            // A load of zeroes over a large modelled drive needs no memory.
            self.medium.land_durable(request.lands, &request.data, part.from, part.to);
        }
        self.faults.written(request.lands + part.from, part.to - part.from);
        if request.lands != request.offset {
            let (wanted, got) = (request.offset + part.from, request.lands + part.from);
            self.misplaced.push(Misplaced { wanted, got, length: part.to - part.from });
        }
    }

    /// The request is over: its result, and the bytes of a read.
    fn end(&mut self, number: u64, request: &mut Request) -> (Result<usize, DeviceErrorKind>, Vec<u8>) {
        let mut sample = std::mem::take(&mut request.sample);
        if let Some(kind) = request.failure {
            // What the buffer holds after an error is unspecified, so it must not look like an answer.
            self.rng.fill(&mut sample);
            return (Err(kind), sample);
        }
        if request.operation == Operation::WriteFua {
            if self.fails_by_flush() {
                // Of other writes under way as well: what of them has arrived is in the same cache.
                self.medium.flush_failed(|_| true);
                return (Err(DeviceErrorKind::Media), sample);
            }
            self.medium.flush_write(number, request.lands, request.length);
        }
        let moved = match request.operation {
            Operation::Read | Operation::Write | Operation::WriteFua => index(request.length),
            _ => 0,
        };
        (Ok(moved), sample)
    }

    /// Whether a forced write fails because its flush does. The same flush is not told to fail again.
    fn fails_by_flush(&mut self) -> bool {
        let fails =
            self.config.forces_by_flush && self.config.volatile_cache && self.faults.failing_flushes > 0;
        self.faults.failing_flushes -= u32::from(fails);
        fails
    }

    fn update_due_min(&mut self) {
        self.due_min = self.requests.values().map(Request::next_due).min().unwrap_or(u64::MAX);
    }
}

impl Shared {
    fn fault(&self, fault: &Fault) {
        let now = self.clock.get();
        let state = &mut *self.state.borrow_mut();
        state.faults.set(fault);
        self.trace.record(Event::Fault { disk: self.number, name: fault.name() });
        if *fault == Fault::Gone {
            for (number, mut request) in std::mem::take(&mut state.requests) {
                for part in std::mem::take(&mut request.parts) {
                    if request.changes_contents() && state.rng.chance(1, 2) {
                        state.land(number, &request, &part);
                    }
                }
                request.failure = Some(DeviceErrorKind::Gone);
                request.end_at = now + state.rng.below(20_000);
                state.requests.insert(number, request);
            }
        }
        state.update_due_min();
    }

    fn apply_plan(&self) {
        let ripe = {
            let state = &mut *self.state.borrow_mut();
            state.faults.ripe(self.clock.get(), state.requests_taken)
        };
        for fault in ripe {
            self.fault(&fault);
        }
    }

    fn complete_inline(
        &self,
        state: &mut DiskState,
        number: u64,
        mut request: Request,
        payload: Payload,
    ) -> Submission {
        for part in std::mem::take(&mut request.parts) {
            state.take_effect(number, &mut request, &part);
        }
        let (result, sample) = state.end(number, &mut request);
        self.trace_end(number, result, &sample);
        let buffer = if let Payload::Buffer(mut buffer) = payload {
            buffer.copy_from_slice(&sample);
            Some(buffer)
        } else {
            None
        };
        Submission::done(result.map_err(DeviceError::of), buffer)
    }

    fn trace_end(&self, number: u64, result: Result<usize, DeviceErrorKind>, sample: &[u8]) {
        self.trace.record(Event::Completed {
            disk: self.number,
            request: number,
            ending: Ending::of(result),
            contents: hash_of(sample),
        });
    }

    /// The `nth` due event: an effect is done here, an end is returned for the caller to complete.
    fn advance(&self, mut nth: usize, now: u64) -> Option<(u64, Request)> {
        let state = &mut *self.state.borrow_mut();
        let number = state.requests.iter().find_map(|(number, request)| {
            let due = request.due(now);
            if nth < due {
                return Some(*number);
            }
            nth -= due;
            None
        })?;
        let mut request = state.requests.remove(&number)?;
        if request.parts.is_empty() {
            return Some((number, request));
        }
        let due = |(at, part): (usize, &Part)| (part.due <= now).then_some(at);
        let at = request.parts.iter().enumerate().filter_map(due).nth(nth)?;
        let part = request.parts.swap_remove(at);
        self.trace.record(Event::Effect { disk: self.number, request: number, from: part.from, to: part.to });
        state.take_effect(number, &mut request, &part);
        state.requests.insert(number, request);
        None
    }
}

impl EventSource for Shared {
    fn next_due(&self) -> Option<u64> {
        let state = self.state.borrow();
        let request = Some(state.due_min).filter(|&due| due != u64::MAX);
        let drive = request.into_iter().chain(state.next_turn()).filter(|_| !state.faults.hung);
        drive.chain(state.faults.next_time()).min()
    }

    fn due(&self, now: u64) -> usize {
        self.apply_plan();
        let state = &mut *self.state.borrow_mut();
        if !state.faults.hung {
            state.take_turns(now);
        }
        if state.due_min > now || state.faults.hung {
            return 0;
        }
        state.requests.values().map(|request| request.due(now)).sum()
    }

    fn happen(&self, nth: usize, now: u64, shards: &[Rc<Shard>]) {
        let ended = self.advance(nth, now);
        if let Some((number, mut request)) = ended {
            let (result, sample) = self.state.borrow_mut().end(number, &mut request);
            self.trace_end(number, result, &sample);
            if let Some(completion) = request.completion {
                let _entered = shards[request.shard].enter();
                completion.with_payload(|payload| {
                    if let Payload::Buffer(buffer) = payload {
                        buffer.copy_from_slice(&sample);
                    }
                });
                completion.finish(result.map_err(DeviceError::of));
            }
        }
        self.state.borrow_mut().update_due_min();
    }

    fn pending(&self) -> usize {
        self.state.borrow().requests.len()
    }

    fn crash(&self, power: bool) {
        let now = self.clock.get();
        let state = &mut *self.state.borrow_mut();
        state.abort_requests(now, power);
        if power {
            state.medium.power_loss(&mut state.rng);
        }
    }

    fn contents(&self) -> u64 {
        self.state.borrow().medium.hash()
    }

    fn describe(&self) -> String {
        use std::fmt::Write;
        let state = self.state.borrow();
        let mut lines = format!(
            "disk {} ({}): {} requests pending{}{}\n",
            self.number,
            self.info.name,
            state.requests.len(),
            if state.faults.hung { ", hung" } else { "" },
            if state.faults.gone { ", gone" } else { "" },
        );
        for (number, request) in &state.requests {
            // Writing to a string does not fail.
            let _ = writeln!(
                lines,
                "  request {number} of shard {}: {:?} {}+{}, {} effects to come, ends at {}",
                request.shard,
                request.operation,
                request.offset,
                request.length,
                request.parts.len(),
                request.end_at
            );
        }
        lines
    }
}
