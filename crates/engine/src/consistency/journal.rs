//! The journal of levels 4, 5 and 6 (docs/formats.md section 9): what is about to be written to the members
//! stands, whole and durable, on a device of its own before. After a crash it is replayed, and so no row is
//! left half written: an array with a journal needs no resync, its superblocks stay clean, and it may be
//! started with members missing.
//!
//! # The way of a batch (write-through)
//!
//! A stripe write, under its claim and with its parity known, cuts itself into pages of 4 KiB, row by row,
//! and queues them ([`Journal::write_ahead`]). One task on the home shard takes what has gathered in the
//! queue, packs it behind a meta block and writes it, forced to the medium ([`commit`]); others gather
//! meanwhile. Then the batch goes to the members, and when they have answered, its guard is dropped: the log
//! doesn't need to hold it any longer than until the members' next flush. Another task does that flush and
//! moves the tail ([`controller::journal`](crate::controller::journal)).
//!
//! # Why no batch waits for ever (C12)
//!
//! A batch waits for room while it holds a claim. Room comes from batches that are logged already: all they
//! still need is their members' answers, never a claim, room, or the gate. A batch is let in only when there
//! is room for all of it, in the order of arrival, and a stripe that would never fit is refused when the
//! array is assembled. A change of the membership waits for the writers under the old one, and the reclaimer
//! may wait for such a change, because what a failed member has missed must be recorded before the log
//! forgets it (C2); so a batch that waits for room gives up when the membership changes, and plans anew.
//!
//! In the mode write-back ([`write_back`]) a batch's data is logged alone and acknowledged; the way above is
//! that of writing it out.
//!
//! # What is in the log
//!
//! Every written page in full: a batch is widened to whole pages (`io/widen.rs`) by reading what it leaves
//! alone. And both parities, even where one of their members is missing: it may be there again after a crash,
//! and if then a data member isn't, parity must be right. So with a parity member missing, level 6
//! reconstructs parity from data rather than updating it. Only where there is no parity left to be written,
//! data is logged without; replay then computes it.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use pinstripe_md::{
    journal::{BLOCK_BYTES, BLOCK_SECTORS},
    superblock::Superblock,
    units::{SECTOR_BYTES, Sector},
};
use pinstripe_runtime::{Device, DeviceError, DeviceErrorKind, Signal, Slice, atomics::AtomicBool, shard};

use self::{
    cache::{Cache, Key, Shape},
    ring::{Page, PageAddress, Ring, blocks_max},
};
use crate::consistency::view::{Batch, LogError, Precedence};
use crate::{
    consistency::view::LogView,
    error::{DeviceRole, IoError, MemberError, Operation},
    geometry::{Geometry, ParityGeometry, StripeId},
    mutants::{Mutant, active},
    options::JournalMode,
    plan::Run,
    stripe::image::Extent,
    units::{to_u32, to_usize},
};

pub(crate) mod cache;
mod commit;
pub(crate) mod ring;
pub(crate) mod write_back;

/// The most pages of several batches that are logged together; of a small ring a quarter.
const GROUP_PAGES_MAX: u64 = 256;

/// Where the log goes on after a replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resume {
    pub(crate) tail: Sector,
    /// Blocks from the tail on: an empty meta block, or what [`kept`](Journal::resume) pages are in.
    pub(crate) blocks: u64,
    /// The last meta block of them, counted from the tail.
    pub(crate) last: u64,
    /// Its number.
    pub(crate) seq: u64,
}

/// The journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalDetail {
    /// Its device.
    pub device: String,
    /// It failed, and the array is read-only since.
    pub failed: bool,
    /// It takes longer for a request than it should.
    pub slow: bool,
    /// Where writes are acknowledged from, in MD's words.
    pub mode: &'static str,
    /// Bytes that only the journal has.
    pub cached_bytes: u64,
    /// Bytes of the log.
    pub size_bytes: u64,
    /// Bytes that would be replayed after a crash.
    pub used_bytes: u64,
}

/// What the shards share of an array's journal.
pub struct Journal {
    ring: Ring,
    /// The device, for messages.
    name: String,
    state: Mutex<JournalState>,
    /// For the task that writes the log: something was queued, or there is room again.
    pub(crate) wanted: Signal,
    /// For the tasks that wait: something is durable, the membership changed, or the journal failed.
    pub(crate) changed: Signal,
    /// For the reclaimer.
    pub(crate) reclaim: Signal,
    /// For the task that writes out what is cached.
    pub(crate) out: Signal,
    /// Something is cached, or may be.
    caches: AtomicBool,
    /// The array stops.
    ends: AtomicBool,
    /// Something was written out since the journal failed, and not flushed.
    unflushed: AtomicBool,
    /// The most that is cached.
    cache_bytes_max: usize,
    /// Blocks of a whole stripe with its parity.
    largest_batch: u64,
}

/// What the superblocks say of a journal that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Loss {
    /// Nothing.
    #[default]
    Unrecorded,
    /// The next ones will say that it is lost.
    Noted,
    /// That it is lost, and parity can't be trusted.
    Durable,
}

/// Positions in the log count blocks from some beginning and never wrap.
#[derive(Default)]
struct JournalState {
    queue: VecDeque<Request>,
    /// These go first: room for them is set aside, and others may wait for the room that they make.
    urgent: VecDeque<Request>,
    tickets: u64,
    /// By ticket: where the log must be kept from, for batches that are logged and not yet on the members.
    held: BTreeMap<u64, u64>,
    /// The same for what is just being logged: its first meta blocks may be durable long before the last.
    logging: Option<u64>,
    /// The tail that the superblock has.
    tail: u64,
    /// Where the next meta block goes.
    head: u64,
    /// The last meta block: the tail never passes it, so that there always is one at the tail.
    last: u64,
    /// Where position 0 is in the ring.
    origin: Sector,
    /// Of the next meta block.
    seq: u64,
    /// The first request in the queue waits for room.
    starved: bool,
    /// Up to here the log is to be given up, whether room is short or not.
    unwanted_to: u64,
    failed: Option<DeviceError>,
    /// What the superblocks say of the failure.
    loss: Loss,
    mode: JournalMode,
    cache: Cache,
    shape: Shape,
    /// Blocks of data that is on its way into the log to be cached.
    promised: u64,
    /// Blocks of what is being written to the log.
    appending: u64,
    /// The urgent ones were served last.
    others_turn: bool,
    /// A write could not be cached, for want of room.
    refused: bool,
    /// Vectors that are used again.
    spare: Vec<Vec<Page>>,
}

/// What is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A batch on its way to the members.
    Batch(Precedence),
    /// Data to be cached. Room is set aside for it.
    Data,
}

/// A batch that waits to be logged.
struct Request {
    ticket: u64,
    pages: Vec<Page>,
}

/// A batch that is in the log. Dropped when the members have answered.
pub(crate) struct LogGuard {
    journal: Arc<Journal>,
    ticket: u64,
}

impl Drop for LogGuard {
    fn drop(&mut self) {
        let mut state = self.journal.state();
        state.held.remove(&self.ticket);
        let (starved, is_short) = (state.starved, state.is_short(self.journal.ring.blocks()));
        drop(state);
        if is_short {
            self.journal.reclaim.notify();
        }
        if starved {
            self.journal.wake_pinned();
        }
    }
}

impl JournalState {
    fn used(&self) -> u64 {
        self.head - self.tail
    }

    /// From where on the log is needed: whatever comes before is on the members, though perhaps not durably.
    fn needed_from(&self) -> u64 {
        let cached = self.cache.needed_from().filter(|_| !active(Mutant::TailPassesCached));
        // A batch with a later ticket may be in the log earlier.
        self.held.values().copied().chain(self.logging).chain(cached).fold(self.last, u64::min)
    }

    /// Whether the log's beginning is to be given up.
    fn is_short(&self, blocks: u64) -> bool {
        self.starved || self.used() > blocks / 2 || self.tail < self.unwanted_to
    }

    /// Where the log must be kept from for what is cached alone, if room is short and nothing can be given
    /// up.
    fn pinned_at(&self, blocks: u64) -> Option<u64> {
        let from = self.needed_from();
        (self.is_short(blocks) && from == self.tail && self.cache.needed_from() == Some(from)).then_some(from)
    }

    /// Takes a request out that isn't being written yet.
    fn withdraw(&mut self, ticket: u64) -> bool {
        [&mut self.urgent, &mut self.queue].into_iter().any(|queue| {
            let place = queue.iter().position(|request| request.ticket == ticket);
            place.map(|place| queue.remove(place)).is_some()
        })
    }
}

/// Whether a journal can take a stripe of chunks of so many bytes on so many members, and what else may be in
/// it then. The error says how many blocks it has, and how many are needed.
pub(crate) fn check_blocks(chunk_bytes: u64, members: u64, journal: &Superblock) -> Result<(), (u64, u64)> {
    let batch = largest_batch(chunk_bytes, members);
    // The last entry always stays: a batch, or a quarter of the ring. The next batch must fit beside it.
    let needed = 2 * batch + 4;
    let blocks = journal.member.data_size.0 / BLOCK_SECTORS;
    if blocks < needed { Err((blocks, needed)) } else { Ok(()) }
}

/// Blocks of a whole stripe with its parity.
fn largest_batch(chunk_bytes: u64, members: u64) -> u64 {
    blocks_max(to_usize(chunk_bytes / BLOCK_BYTES as u64 * members))
}

impl Journal {
    /// The journal on a device; it takes nothing before [`Journal::resume`].
    pub(crate) fn new(
        superblock: &Superblock,
        name: String,
        geometry: &Geometry,
        cache_bytes_max: usize,
    ) -> Self {
        let shape = geometry.parity().map(write_back::shape_of).unwrap_or_default();
        Self {
            ring: Ring::new(superblock),
            name,
            state: Mutex::new(JournalState { shape, ..JournalState::default() }),
            wanted: Signal::default(),
            changed: Signal::default(),
            reclaim: Signal::default(),
            out: Signal::default(),
            caches: AtomicBool::new(false),
            ends: AtomicBool::new(false),
            unflushed: AtomicBool::new(false),
            cache_bytes_max,
            largest_batch: geometry
                .parity()
                .map_or(0, |g| largest_batch(g.chunk_bytes().into(), g.members() as u64)),
        }
    }

    /// Begins where a replay has ended. It has kept these pages, by where they begin in their stripe's data:
    /// they have no place on the members, and so they are cached.
    pub(crate) fn resume(&self, resume: Resume, kept: impl IntoIterator<Item = (Key, Vec<(u32, Slice)>)>) {
        let mut state = self.state();
        state.origin = resume.tail;
        (state.tail, state.last, state.head) = (0, resume.last, resume.blocks);
        state.seq = resume.seq.wrapping_add(1);
        let shape = state.shape;
        let kept: Vec<_> = kept.into_iter().collect();
        // None of it gives up the log's beginning before all of it is logged again, stripe by stripe: so much
        // is set aside at least. And at most what leaves the largest batch room beside that.
        let again: u64 = kept.iter().map(|(_, pages)| blocks_max(pages.len())).sum();
        let others = again.max(resume.blocks) + self.largest_batch + 2;
        let most = self.ring.blocks().saturating_sub(others).max(again);
        for (key, pages) in kept {
            let starts: Vec<u32> = pages.iter().map(|(start, _)| *start).collect();
            let promise = state.cache.promise(key, &starts, shape);
            state.cache.keep_within(promise, most);
            state.cache.insert(key, pages, 0, promise);
        }
        self.note_cache(&state);
    }

    fn state(&self) -> MutexGuard<'_, JournalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From where on the log is needed.
    pub(crate) fn needed_from(&self) -> u64 {
        self.state().needed_from()
    }

    /// Where a block of the log is, in sectors of the journal member's data.
    pub(crate) fn sector_of(&self, position: u64) -> Sector {
        self.place(&self.state(), position)
    }

    /// The log begins at `from` now, durably.
    pub(crate) fn tail_moved(&self, from: u64) {
        let mut state = self.state();
        assert!(from <= state.needed_from(), "C4: block {from} of the log is given up and still needed");
        let was_unwanted = state.tail < state.unwanted_to;
        state.tail = state.tail.max(from);
        let starved = state.starved;
        drop(state);
        self.wanted.notify();
        if starved || was_unwanted {
            self.wake_pinned();
        }
    }

    /// Has all of the log given up that is in it now, but for its last entry, and waits for that, as long as
    /// there is a log and not `is_over`.
    pub(crate) async fn give_up(&self, is_over: impl Fn() -> bool) {
        let to = {
            let mut state = self.state();
            state.unwanted_to = state.last;
            state.last
        };
        self.reclaim.notify();
        self.wake_pinned();
        let ends = || {
            let state = self.state();
            (state.tail >= to || state.failed.is_some() || is_over()).then_some(())
        };
        self.changed.wait_for(ends).await;
    }

    /// Has look again what may wait for the beginning of the log that is kept for a stripe that can't be
    /// written out.
    fn wake_pinned(&self) {
        self.changed.notify();
        self.out.notify();
    }

    /// Room is short, and there is something to give up.
    pub(crate) fn wants_reclaim(&self) -> bool {
        let state = self.state();
        state.is_short(self.ring.blocks()) && state.needed_from() > state.tail
    }

    /// The place of a position in the ring.
    fn place(&self, state: &JournalState, position: u64) -> Sector {
        self.ring.after(state.origin, position % self.ring.blocks())
    }

    /// Name of the device.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// What is told of its device.
    pub(crate) fn lost(&self, error: DeviceError) -> MemberError {
        let (role, name) = (DeviceRole::Journal, self.name.clone());
        MemberError { role, name, operation: Operation::Write, offset: 0, error }
    }

    /// For `detail`.
    pub(crate) fn detail(&self) -> JournalDetail {
        let state = self.state();
        JournalDetail {
            device: self.name.clone(),
            failed: state.failed.is_some(),
            slow: false,
            mode: state.mode.name(),
            cached_bytes: state.cache.bytes(),
            size_bytes: self.ring.blocks() * BLOCK_BYTES as u64,
            used_bytes: state.used() * BLOCK_BYTES as u64,
        }
    }

    /// Why the journal failed, if it did.
    pub(crate) fn failure(&self) -> Option<DeviceError> {
        self.state().failed
    }

    /// The journal failed, and the superblocks don't say so yet.
    pub(crate) fn is_loss_unrecorded(&self) -> bool {
        let state = self.state();
        state.failed.is_some() && state.loss == Loss::Unrecorded
    }

    pub(crate) fn set_loss_recorded(&self) {
        self.state().loss = Loss::Noted;
    }

    /// The superblocks say that the journal is lost: what is cached may be written out without it.
    pub(crate) fn set_loss_durable(&self) {
        self.state().loss = Loss::Durable;
        self.changed.notify();
    }

    /// Nothing more can be logged (C18). Every task that waits looks again.
    pub(crate) fn fail(&self, error: DeviceError) {
        let mut state = self.state();
        state.failed.get_or_insert(error);
        state.mode = JournalMode::WriteThrough;
        state.queue.clear();
        state.urgent.clear();
        self.note_cache(&state);
        drop(state);
        self.wake();
    }

    /// The membership changed, or the array or the journal failed: every task that waits looks again.
    pub(crate) fn wake(&self) {
        self.changed.notify();
        self.wanted.notify();
        self.reclaim.notify();
        self.out.notify();
    }

    /// Logs a batch; it is durable when this returns.
    pub(crate) async fn write_ahead(self: &Arc<Self>, batch: &Batch<'_>) -> Result<LogGuard, LogError> {
        let mut pages = self.state().spare.pop().unwrap_or_default();
        cut(batch, &mut pages);
        self.append(pages, Kind::Batch(batch.precedence), Some(batch.slot), batch.view).await
    }

    /// Logs pages; they are durable when this returns. `slot`: that of the claim under which it waits. What
    /// was cached when the journal failed is let through without it, as soon as the superblocks say that
    /// parity can't be trusted.
    async fn append(
        self: &Arc<Self>,
        pages: Vec<Page>,
        kind: Kind,
        slot: Option<u64>,
        view: &dyn LogView,
    ) -> Result<LogGuard, LogError> {
        let ticket = {
            let mut state = self.state();
            state.tickets += 1;
            let ticket = state.tickets;
            let request = Request { ticket, pages };
            match kind {
                Kind::Batch(Precedence::None) => state.queue.push_back(request),
                // Else others could take the room for ever that its stripe makes.
                Kind::Batch(Precedence::Waited) => state.queue.push_front(request),
                Kind::Batch(Precedence::WrittenOut) | Kind::Data => state.urgent.push_back(request),
            }
            ticket
        };
        self.wanted.notify();
        let answer = || {
            let mut state = self.state();
            let moved = view.has_moved();
            if state.failed.is_some() {
                state.withdraw(ticket);
                let passes =
                    kind == Kind::Batch(Precedence::WrittenOut) || active(Mutant::JournalLossIgnored);
                return match (passes, view.failure()) {
                    // The device is well: there is no reason to do without it.
                    (true, Some(failure)) | (false, Some(failure @ IoError::TakenOver)) => {
                        Some(Err(LogError::Fatal(failure)))
                    }
                    (false, _) => Some(Err(LogError::Fatal(IoError::JournalLost))),
                    (true, None) if moved => Some(Err(LogError::Moved)),
                    (true, None) => {
                        let may = state.loss == Loss::Durable || active(Mutant::JournalLossIgnored);
                        may.then_some(Ok(0))
                    }
                };
            }
            if state.held.contains_key(&ticket) || active(Mutant::JournalAfterMembers) {
                return Some(Ok(ticket));
            }
            if let Some(failure) = view.failure() {
                return state.withdraw(ticket).then_some(Err(LogError::Fatal(failure)));
            }
            // What holds the log's beginning has the claim of this batch, and can't be logged anew without.
            let is_in_its_own_way = matches!(kind, Kind::Batch(Precedence::None | Precedence::Waited))
                && state.starved
                && state
                    .pinned_at(self.ring.blocks())
                    .is_some_and(|position| state.cache.stuck_at(position).any(|key| Some(key.slot) == slot));
            ((moved || is_in_its_own_way) && state.withdraw(ticket)).then_some(Err(LogError::Moved))
        };
        let ticket = self.changed.wait_for(answer).await?;
        Ok(LogGuard { journal: Arc::clone(self), ticket })
    }
}

/// Cuts a batch into pages, row by row.
fn cut(batch: &Batch<'_>, pages: &mut Vec<Page>) {
    let geometry = batch.view.geometry();
    let extents = batch.image.extents();
    for (run, parity) in batch.plan.runs().iter().zip(batch.parity) {
        let mut start = run.start;
        while start < run.end {
            cut_row(geometry, batch.stripe, extents, run, start, parity, pages);
            start += PAGE_BYTES;
        }
    }
}

/// Bytes of a page.
const PAGE_BYTES: u32 = crate::stripe::parity_cache::PAGE_BYTES;
const _: () = assert!(PAGE_BYTES as usize == BLOCK_BYTES);

fn cut_row(
    geometry: &ParityGeometry,
    stripe: StripeId,
    extents: &[Extent],
    run: &Run,
    start: u32,
    parity: &[Option<Slice>; 2],
    pages: &mut Vec<Page>,
) {
    let end = start + PAGE_BYTES;
    for extent in extents.iter().filter(|extent| extent.start <= start && end <= extent.end()) {
        let within = to_u32(extent.column) * geometry.chunk_bytes() + start;
        let place = PageAddress::Data(Sector(geometry.array_offset(stripe, within) / SECTOR_BYTES));
        let bytes = extent.data.slice((start - extent.start) as usize, BLOCK_BYTES);
        pages.push(Page { place, bytes, ends_row: false });
    }
    let row = Sector((geometry.member_offset(stripe) + u64::from(start)) / SECTOR_BYTES);
    if !active(Mutant::JournalWithoutParity) {
        for (bytes, place) in parity.iter().zip([PageAddress::P(row), PageAddress::Q]) {
            if let Some(bytes) = bytes {
                let bytes = bytes.slice((start - run.start) as usize, BLOCK_BYTES);
                pages.push(Page { place, bytes, ends_row: false });
            }
        }
    }
    if let Some(last) = pages.last_mut() {
        last.ends_row = true;
    }
}

/// Writes a journal device's superblock; it is durable when this returns.
pub(crate) async fn write_superblock(
    device: &dyn Device,
    superblock: &Superblock,
) -> Result<(), DeviceError> {
    // Our own output breaks a rule: nothing is written.
    let bytes = superblock
        .encode(device.info().logical_block.into())
        .map_err(|_| DeviceError::of(DeviceErrorKind::Invalid))?;
    let mut buffer = shard::buffer(bytes.len());
    buffer.copy_from_slice(&bytes);
    let place = superblock.member.super_offset.0 * SECTOR_BYTES;
    device.write(place, buffer.freeze(), true).await.result.map(|_| ())
}
