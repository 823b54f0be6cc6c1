//! Group commit into a member's log area, by the tasks that log: no task of its own, no hop to another shard.
//!
//! A task with something to log puts it into the member's queue. A task that then finds no record being
//! written becomes the leader: it takes what has come so far, writes it as one record, and tells the other
//! tasks. A record lives until every batch in it has been released; its space is used again only then. With
//! [`Rules::exclusive`] there is one live record at a time: the next gathers meanwhile.
//!
//! A queue belongs to a member, not to a slot. The target of a replacement has a log from when it begins to
//! get the slot's writes, and goes on with it as the slot's member. So what is logged for a slot goes to the
//! member and to the target of its replacement, as what is written to the slot does (C1): whichever of the
//! two a crash makes the slot's member, its log knows of every write that may be under way.
//!
//! Where a record's header is long beside what it heads, a leader waits for others ([`Rules::gather_bytes`]),
//! but only while many stripe writes are under way, and no longer than a few member writes take (decision
//! 17).
//!
//! Batches are taken strictly in the order in which they came. A batch that needs several members' logs
//! enters all their queues under all their locks ([`enter`]), so that all queues have the same order of
//! batches. The first batch of all then never waits for the space of a batch that waits for it.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use futures_util::future::join_all;
use pinstripe_runtime::{DeviceError, Signal, Slice, shard};

use super::LogError;
use crate::{
    consistency::{LogDevice, LogView},
    geometry::MemberSlot,
    members::{LogArea, Member, MemberId},
    mutants::{Mutant, active},
    statistics::Counters,
};

/// A leader waits for others as long as so many writes take,
const GATHER_WRITES: u64 = 12;
/// but not longer than this,
const GATHER_NS_MAX: u64 = 1_000_000;
/// and only while so many of the batches under way are a member's share.
const GATHER_SHARE_MIN: u64 = 4;
/// Members that log a batch, but for replacements.
const COPIES: u64 = 2;

/// How records are cut and placed.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// A record may be written only when the one before it is not needed any more.
    pub(super) exclusive: bool,
    /// Most entries of a record.
    pub(super) entries_max: usize,
    /// First byte of the area where a record may lie.
    pub(super) start: u64,
    /// Bytes of a record's header, and how much each entry adds to it; whole records are multiples of
    /// `block`.
    pub(super) header_bytes: u64,
    pub(super) entry_bytes: u64,
    pub(super) block: u64,
    /// How much behind the end of the newest record nothing may be that is needed, by the area's length; also
    /// the longest record.
    pub(super) gap: Option<fn(area_bytes: u64, block: u64) -> u64>,
    /// How much of an area with several records must be left behind one for others to find it.
    pub(super) behind: u64,
    /// A record with less payload than this waits for others that are under way.
    pub(super) gather_bytes: u64,
}

impl Rules {
    /// Bytes of a record's header with so many entries.
    pub(super) fn header(&self, entries: usize) -> u64 {
        (self.header_bytes + self.entry_bytes * entries as u64).next_multiple_of(self.block)
    }

    fn record(&self, entries: usize, payload: u64) -> u64 {
        (self.header(entries) + payload).next_multiple_of(self.block)
    }

    fn gap(&self, area: LogArea) -> u64 {
        self.gap.map_or(0, |gap| gap(area.length, self.block))
    }
}

/// A part of what a batch has to say in one member's log: never divided.
#[derive(Clone)]
pub(super) struct Part<T> {
    pub(super) item: T,
    /// Entries of the record that it needs.
    pub(super) entries: usize,
    /// Bytes of payload.
    pub(super) bytes: u64,
}

/// What a log makes of the parts of a record: its bytes.
pub(super) trait RecordEncoder {
    /// What the log is given.
    type Item: Clone;

    /// The record.
    fn record(&self, lead: &Lead<Self::Item>) -> Result<Slice, DeviceError>;
}

/// The queues of a log, by member.
pub(super) struct Queues<T> {
    rules: Rules,
    by_member: RwLock<Vec<Option<Arc<Queue<T>>>>>,
    /// Batches that have entered and are not over.
    inside: Arc<AtomicU64>,
}

/// Keeps a batch in the logs until it is dropped. What of it is in no record by then will be in none.
pub(crate) struct LogGuard<T> {
    entered: Vec<(Arc<Queue<T>>, Ticket)>,
    inside: Arc<AtomicU64>,
}

impl<T> Drop for LogGuard<T> {
    fn drop(&mut self) {
        self.inside.fetch_sub(1, Ordering::Relaxed);
        for (queue, ticket) in &self.entered {
            queue.release(*ticket);
        }
    }
}

/// One member's queue.
struct Queue<T> {
    rules: Rules,
    area: Option<LogArea>,
    state: Mutex<QueueState<T>>,
    /// Each batch waits by its first part: see [`QueueState::oldest`].
    changed: Signal,
}

struct QueueState<T> {
    /// Where the next record goes, if it fits there.
    head: u64,
    /// Oldest first.
    live: VecDeque<Record>,
    waiting: VecDeque<(Ticket, Part<T>)>,
    /// The number of the next part; all below `durable` that were not taken back are on the member.
    next: u64,
    durable: u64,
    leading: bool,
    failed: bool,
    /// A task waits until then for more to come.
    gathers_until: Option<u64>,
}

struct Record {
    start: u64,
    /// The parts in it that are still needed.
    needed: Vec<Ticket>,
}

/// A part's place in a queue.
type Ticket = u64;

/// The first and the last part of a batch in a queue; its others are between.
type Tickets = (Ticket, Ticket);

/// What to do next.
enum Turn<T> {
    /// The part is on the member.
    Durable,
    /// The member's log could not be written.
    Failed,
    /// The membership is another meanwhile, or the array has failed, and the batch was not in a record yet:
    /// it isn't in the queue any more.
    Moved,
    /// Write this record and call [`Queue::written`].
    Lead(Lead<T>),
    /// Wait so long for others to come, and look again.
    Gather(u64),
}

/// A record to be written.
pub(super) struct Lead<T> {
    parts_end: u64,
    /// Where it goes, in bytes of the device.
    offset: u64,
    /// Its length in bytes.
    pub(super) length: u64,
    /// What goes in, in order.
    pub(super) items: Vec<T>,
}

impl<T: Clone> Queues<T> {
    pub(super) fn new(rules: Rules) -> Self {
        Self { rules, by_member: RwLock::default(), inside: Arc::default() }
    }

    fn of(&self, member: &Member) -> Arc<Queue<T>> {
        let MemberId(number) = member.id;
        let known = self.by_member.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = known.get(number).and_then(Option::as_ref) {
            return Arc::clone(queue);
        }
        drop(known);
        let mut all = self.by_member.write().unwrap_or_else(PoisonError::into_inner);
        if all.len() <= number {
            all.resize_with(number + 1, || None);
        }
        Arc::clone(all[number].get_or_insert_with(|| Arc::new(Queue::new(self.rules, member.log_area()))))
    }

    /// Logs a batch in the logs of some slots, durably: for each slot the parts that go with it. The target
    /// of a slot's replacement logs what the slot's member does.
    pub(super) async fn append(
        &self,
        log: &impl RecordEncoder<Item = T>,
        view: &dyn LogView,
        copies: Vec<(MemberSlot, Vec<Part<T>>)>,
    ) -> Result<LogGuard<T>, LogError> {
        let mut seats: Vec<QueueEntry<'_, T>> = Vec::new();
        for (slot, parts) in copies {
            for device in view.devices(slot).into_iter().flatten() {
                if device.place == slot.index() || !active(Mutant::ReplacementNotLogged) {
                    let (queue, parts) = (self.of(device.member), parts.clone());
                    seats.push(QueueEntry { device, queue, parts, tickets: None });
                }
            }
        }
        // From here on whatever happens releases what was entered.
        let kept = LogGuard { entered: enter(&mut seats), inside: Arc::clone(&self.inside) };
        self.inside.fetch_add(1, Ordering::Relaxed);
        let waits = seats.iter().map(|seat| seat.durable(log, view, &self.inside));
        // Where one of the logs can't have it, the others are not needed to: it counts for nothing without
        // all.
        join_all(waits).await.into_iter().collect::<Result<(), LogError>>()?;
        Ok(kept)
    }

    /// Has every task that waits look again.
    pub(super) fn wake(&self) {
        let all = self.by_member.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().flatten().for_each(|queue| queue.changed.notify());
    }
}

/// One of the logs that a batch goes into.
struct QueueEntry<'v, T> {
    device: LogDevice<'v>,
    queue: Arc<Queue<T>>,
    /// Until they are entered.
    parts: Vec<Part<T>>,
    /// What is to be durable.
    tickets: Option<Tickets>,
}

/// Puts the parts of a batch into all their queues, so that every pair of queues has the same order of
/// batches.
fn enter<T>(seats: &mut [QueueEntry<'_, T>]) -> Vec<(Arc<Queue<T>>, Ticket)> {
    seats.sort_by_key(|seat| seat.device.member.id);
    let queues: Vec<_> = seats.iter().map(|seat| Arc::clone(&seat.queue)).collect();
    let mut locked: Vec<_> = queues.iter().map(|queue| queue.lock()).collect();
    let mut entered = Vec::new();
    for (seat, state) in seats.iter_mut().zip(&mut locked) {
        for part in seat.parts.drain(..) {
            let ticket = state.enter(part);
            entered.push((Arc::clone(&seat.queue), ticket));
            let first = seat.tickets.map_or(ticket, |(first, _)| first);
            seat.tickets = Some((first, ticket));
        }
    }
    entered
}

impl<T: Clone> QueueEntry<'_, T> {
    /// Waits until what was entered is on the member; writes it, if no other task does.
    async fn durable(
        &self,
        log: &impl RecordEncoder<Item = T>,
        view: &dyn LogView,
        inside: &AtomicU64,
    ) -> Result<(), LogError> {
        let Some(tickets) = self.tickets else { return Ok(()) };
        let moved = || view.is_over();
        // How long it is worth waiting for others.
        let gather_ns = || {
            let under_way = u64::from(view.writers());
            let share = under_way * COPIES / view.geometry().members() as u64;
            let is_any_coming = under_way > inside.load(Ordering::Relaxed);
            if share < GATHER_SHARE_MIN || !is_any_coming {
                return 0;
            }
            let write = u64::from(self.device.member.cost.write().latency_ns);
            (write * GATHER_WRITES).min(GATHER_NS_MAX)
        };
        loop {
            match self.queue.next(tickets, moved, gather_ns).await {
                Turn::Durable => return Ok(()),
                Turn::Failed => return Err(LogError::Member(self.device.member.id)),
                Turn::Moved => return Err(LogError::Moved),
                Turn::Lead(lead) => {
                    let written = self.write(log, view.counters(), &lead).await;
                    if let Err(error) = written {
                        view.report(&self.device, lead.offset, error);
                    }
                    self.queue.written(&lead, written.is_ok());
                }
                Turn::Gather(nanoseconds) => {
                    let _ = shard::timeout(nanoseconds, self.queue.passed(tickets)).await;
                }
            }
        }
    }

    async fn write(
        &self,
        log: &impl RecordEncoder<Item = T>,
        counters: &Counters,
        lead: &Lead<T>,
    ) -> Result<(), DeviceError> {
        let record = log.record(lead)?;
        counters.log_writes.add(1);
        counters.log_write_bytes.add(lead.length);
        counters.member_writes.add(1);
        counters.member_write_bytes.add(lead.length);
        self.device.device.write(lead.offset, record, true).await.result.map(|_| ())
    }
}

impl<T> Queue<T> {
    fn new(rules: Rules, area: Option<LogArea>) -> Self {
        let state = QueueState {
            head: rules.start,
            live: VecDeque::new(),
            waiting: VecDeque::new(),
            next: 0,
            durable: 0,
            leading: false,
            failed: area.is_none(),
            gathers_until: None,
        };
        Self { rules, area, state: Mutex::new(state), changed: Signal::default() }
    }

    fn lock(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until there is something to know or to do. A part that waits for others while the membership
    /// changes must give way: what these others wait for may be that change, and the change for this batch.
    async fn next(
        &self,
        (first, last): Tickets,
        moved: impl Fn() -> bool,
        gather_ns: impl Fn() -> u64,
    ) -> Turn<T> {
        let look = || {
            let moved = moved();
            let mut state = self.lock();
            if moved && state.take_back(last) {
                // No task looks here for its other parts any more.
                state.waiting.retain(|(waiting, _)| !(first..=last).contains(waiting));
                return Some(Turn::Moved);
            }
            state.turn(&self.rules, self.area, last, &gather_ns)
        };
        let turn = self.changed.wait_for_number(first, look).await;
        if matches!(turn, Turn::Moved) {
            let oldest = self.lock().oldest();
            self.changed.notify_to(oldest);
        }
        turn
    }

    /// Waits until the batch is in a record that is durable, or the log has failed, or what came so far was
    /// taken by another task and nothing gathers any more.
    async fn passed(&self, (first, last): Tickets) {
        let has_passed = || {
            let state = self.lock();
            (last < state.durable || state.failed || state.gathers_until.is_none()).then_some(())
        };
        self.changed.wait_for_number(first, has_passed).await;
    }

    /// The record is durable, or could not be written.
    fn written(&self, lead: &Lead<T>, success: bool) {
        let mut state = self.lock();
        state.leading = false;
        if success {
            state.durable = lead.parts_end;
        } else {
            state.failed = true;
            state.waiting.clear();
        }
        let oldest = state.oldest();
        drop(state);
        self.changed.notify_to(oldest);
    }

    /// The part is on the members, or will never be: no record is needed for it any more.
    fn release(&self, ticket: Ticket) {
        let mut state = self.lock();
        let live = state.live.len();
        let is_taken_back = state.take_back(ticket);
        if !is_taken_back {
            state.live.iter_mut().for_each(|record| record.needed.retain(|needed| *needed != ticket));
        }
        while state.live.front().is_some_and(|record| record.needed.is_empty()) {
            state.live.pop_front();
        }
        // What is being written is followed by a look in any case.
        let may_lead = !state.leading && !state.waiting.is_empty();
        let is_told = may_lead && (is_taken_back || state.live.len() < live);
        let oldest = state.oldest();
        drop(state);
        if is_told {
            self.changed.notify_to(oldest);
        }
    }
}

impl<T> QueueState<T> {
    fn enter(&mut self, part: Part<T>) -> Ticket {
        let ticket = self.next;
        self.next += 1;
        if !self.failed {
            self.waiting.push_back((ticket, part));
        }
        ticket
    }

    /// The oldest part that waits to be in a record. Its batch's task writes the next one, with parts of the
    /// batches behind it, which so have nothing to look for. Those before it have no part that waits. The
    /// task is there: one that ends, or gives way, takes its parts back.
    fn oldest(&self) -> Ticket {
        self.waiting.front().map_or(Ticket::MAX, |(ticket, _)| *ticket)
    }

    /// Takes a part out that is in no record yet. False if it is, or was, in one.
    fn take_back(&mut self, ticket: Ticket) -> bool {
        let place = self.waiting.iter().position(|(waiting, _)| *waiting == ticket);
        place.and_then(|place| self.waiting.remove(place)).is_some()
    }

    fn turn(
        &mut self,
        rules: &Rules,
        area: Option<LogArea>,
        ticket: Ticket,
        gather_ns: impl Fn() -> u64,
    ) -> Option<Turn<T>> {
        if ticket < self.durable {
            return Some(Turn::Durable);
        }
        if self.failed {
            return Some(Turn::Failed);
        }
        if self.leading || self.waiting.is_empty() || rules.exclusive && !self.live.is_empty() {
            return None;
        }
        if self.is_short(rules) {
            let now = shard::now();
            match self.gathers_until {
                // The task that gathers looks again then.
                Some(until) if now < until => return None,
                Some(_) => {}
                None => {
                    let gather_ns = gather_ns();
                    if gather_ns > 0 {
                        self.gathers_until = Some(now + gather_ns);
                        return Some(Turn::Gather(gather_ns));
                    }
                }
            }
        }
        self.lead(rules, area?).map(Turn::Lead)
    }

    /// Whether what waits is little beside the header that it needs. What has no payload is a whole stripe.
    fn is_short(&self, rules: &Rules) -> bool {
        let bytes: u64 = self.waiting.iter().map(|(_, part)| part.bytes).sum();
        bytes < rules.gather_bytes && self.waiting.iter().all(|(_, part)| part.bytes > 0)
    }

    /// Takes what has come, as much as there is place for.
    fn lead(&mut self, rules: &Rules, area: LogArea) -> Option<Lead<T>> {
        let (mut entries, mut bytes, mut taken, mut place) = (0, 0, 0, None);
        for (_, part) in &self.waiting {
            let (more_entries, more_bytes) = (entries + part.entries, bytes + part.bytes);
            let length = rules.record(more_entries, more_bytes);
            let at = self.place(rules, area, length);
            let too_long = rules.gap.is_some() && length > rules.gap(area)
                || area.several && rules.start + length + rules.behind > area.length;
            if taken > 0 && (more_entries > rules.entries_max || too_long) || at.is_none() {
                break;
            }
            (entries, bytes, taken, place) = (more_entries, more_bytes, taken + 1, at.map(|at| (at, length)));
        }
        let (start, length) = place?;
        let (needed, items): (Vec<Ticket>, Vec<T>) =
            self.waiting.drain(..taken).map(|(ticket, part)| (ticket, part.item)).unzip();
        let parts_end = needed.last()? + 1;
        self.live.push_back(Record { start, needed });
        self.head = start + length;
        (self.leading, self.gathers_until) = (true, None);
        Some(Lead { parts_end, offset: area.offset + start, length, items })
    }

    /// Where a record of `length` bytes fits that overwrites no live one, and leaves the gap behind it free
    /// of live ones too.
    fn place(&self, rules: &Rules, area: LogArea, length: u64) -> Option<u64> {
        let gap = rules.gap(area);
        let wraps = !area.several || self.head + length + rules.behind > area.length;
        let (Some(oldest), Some(newest)) = (self.live.front(), self.live.back()) else {
            let at = if wraps { rules.start } else { self.head };
            return (at + length <= area.length).then_some(at);
        };
        if !area.several {
            return None;
        }
        if newest.start < oldest.start {
            // The live ones go around the end.
            return (!wraps && self.head + length + gap <= oldest.start).then_some(self.head);
        }
        if wraps {
            return (rules.start + length + gap <= oldest.start).then_some(rules.start);
        }
        let gap_wraps = self.head + length + gap > area.length;
        (!gap_wraps || rules.start + gap <= oldest.start).then_some(self.head)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::Pin,
        sync::atomic::AtomicU32,
        task::{Context, Poll, Wake, Waker},
    };

    use super::*;

    const BLOCK: u64 = 512;

    /// Numbers that look drawn.
    fn next(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *state >> 33
    }

    fn rules(gap: fn(u64, u64) -> u64) -> Rules {
        Rules {
            exclusive: false,
            entries_max: 4,
            start: 4096,
            header_bytes: 64,
            entry_bytes: 64,
            block: BLOCK,
            gap: Some(gap),
            behind: 0,
            gather_bytes: 0,
        }
    }

    /// Counts how often a task is woken.
    #[derive(Default)]
    struct Wakes(AtomicU32);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// A task that logs a batch of one part.
    struct Task<'q> {
        next: Pin<Box<dyn Future<Output = Turn<()>> + 'q>>,
        wakes: Arc<Wakes>,
    }

    impl<'q> Task<'q> {
        fn enter(queue: &'q Queue<()>) -> Self {
            let ticket = queue.lock().enter(Part { item: (), entries: 1, bytes: BLOCK });
            let next = Box::pin(queue.next((ticket, ticket), || false, || 0));
            Self { next, wakes: Arc::default() }
        }

        fn poll(&mut self) -> Option<Turn<()>> {
            let waker = Waker::from(Arc::clone(&self.wakes));
            match self.next.as_mut().poll(&mut Context::from_waker(&waker)) {
                Poll::Ready(turn) => Some(turn),
                Poll::Pending => None,
            }
        }

        #[track_caller]
        fn lead(&mut self) -> Lead<()> {
            let Some(Turn::Lead(lead)) = self.poll() else { panic!("it should write a record") };
            lead
        }
    }

    /// Tasks that came while a record was being written, and how often each is woken.
    fn waiting(queue: &Queue<()>, count: usize) -> Vec<Task<'_>> {
        let mut tasks: Vec<_> = (0..count).map(|_| Task::enter(queue)).collect();
        assert!(tasks.iter_mut().all(|task| task.poll().is_none()), "another task writes");
        tasks
    }

    fn wakes(tasks: &[Task<'_>]) -> Vec<u32> {
        tasks.iter().map(|task| task.wakes.0.load(Ordering::SeqCst)).collect()
    }

    const AREA: LogArea = LogArea { offset: 0, length: 64 << 10, several: true };

    #[test]
    fn a_record_wakes_the_tasks_that_are_in_it_and_the_one_that_writes_the_next() {
        let queue: Queue<()> = Queue::new(rules(|_, _| 4 << 10), Some(AREA));
        let mut first = Task::enter(&queue);
        let lead = first.lead();
        // Two records of four.
        let mut tasks = waiting(&queue, 8);
        queue.written(&lead, true);
        assert_eq!(wakes(&tasks), [1, 0, 0, 0, 0, 0, 0, 0]);
        let lead = tasks[0].lead();
        assert_eq!(lead.items.len(), 4);
        queue.written(&lead, true);
        assert_eq!(wakes(&tasks), [1, 1, 1, 1, 1, 0, 0, 0]);
        assert!(tasks[1..4].iter_mut().all(|task| matches!(task.poll(), Some(Turn::Durable))));
        let lead = tasks[4].lead();
        queue.written(&lead, false);
        assert_eq!(wakes(&tasks), [1, 1, 1, 1, 1, 1, 1, 1], "a failure is told to all");
        assert!(tasks[5..].iter_mut().all(|task| matches!(task.poll(), Some(Turn::Failed))));
    }

    #[test]
    fn a_part_that_is_taken_back_leaves_the_next_record_to_the_one_behind_it() {
        let queue: Queue<()> = Queue::new(rules(|_, _| 4 << 10), Some(AREA));
        let lead = Task::enter(&queue).lead();
        let mut tasks = waiting(&queue, 3);
        queue.written(&lead, true);
        assert_eq!(wakes(&tasks), [1, 0, 0]);
        // It was woken, and ends without having looked.
        drop(tasks.remove(0));
        queue.release(1);
        assert_eq!(wakes(&tasks), [1, 0]);
        assert_eq!(tasks[0].lead().items.len(), 2);
    }

    #[test]
    fn a_batch_that_gives_way_leaves_the_next_record_to_the_one_behind_it() {
        let queue: Queue<()> = Queue::new(rules(|_, _| 4 << 10), Some(AREA));
        let lead = Task::enter(&queue).lead();
        let part = || queue.lock().enter(Part { item: (), entries: 1, bytes: BLOCK });
        let tickets = (part(), part());
        let mut tasks = waiting(&queue, 1);
        queue.written(&lead, true);
        assert_eq!(wakes(&tasks), [0], "the next record is the batch's");
        let next = Box::pin(queue.next(tickets, || true, || 0));
        let mut gives_way = Task { next, wakes: Arc::default() };
        assert!(matches!(gives_way.poll(), Some(Turn::Moved)));
        assert_eq!(wakes(&tasks), [1]);
        assert_eq!(tasks[0].lead().items.len(), 1);
    }

    #[test]
    fn what_makes_no_room_for_a_record_wakes_no_task() {
        let rules = Rules { exclusive: true, ..rules(|_, _| 4 << 10) };
        let queue: Queue<()> = Queue::new(rules, Some(AREA));
        let mut first = Task::enter(&queue);
        let _second = Task::enter(&queue);
        let lead = first.lead();
        let mut tasks = waiting(&queue, 2);
        queue.written(&lead, true);
        assert_eq!(wakes(&tasks), [1, 0]);
        assert!(tasks[0].poll().is_none(), "one record at a time");
        queue.release(0);
        assert_eq!(wakes(&tasks), [1, 0], "the record is needed for its second part");
        queue.release(1);
        assert_eq!(wakes(&tasks), [2, 0]);
        let lead = tasks[0].lead();
        queue.release(2);
        queue.written(&lead, true);
        assert_eq!(wakes(&tasks), [2, 1]);
    }

    /// Whether a record that is needed is in any of `length` bytes from `from`, which go around the end of
    /// the area.
    fn is_needed(
        needed: &[(u64, u64, Ticket)],
        rules: &Rules,
        area: LogArea,
        from: u64,
        length: u64,
    ) -> bool {
        let around = area.length - rules.start;
        (from..from + length).step_by(usize::try_from(BLOCK).unwrap()).any(|at| {
            let at = if at < area.length { at } else { at - around };
            needed.iter().any(|(start, end, _)| (*start..*end).contains(&at))
        })
    }

    #[test]
    fn nothing_that_is_needed_lies_where_a_record_or_the_gap_behind_it_comes() {
        let area = LogArea { offset: 0, length: 64 << 10, several: true };
        let (mut placed, mut full, mut around) = (0, 0, 0);
        let gaps: [fn(u64, u64) -> u64; 3] = [|_, _| 2 << 10, |_, _| 7 << 10, |_, _| 15 << 10];
        for gap in gaps {
            let (rules, mut drawn) = (rules(gap), 1);
            let queue: Queue<()> = Queue::new(rules, Some(area));
            // First byte and end of each record of which a part is needed, and the part.
            let mut needed: Vec<(u64, u64, Ticket)> = Vec::new();
            for _ in 0..20_000 {
                if next(&mut drawn) % 5 < 2 && !needed.is_empty() {
                    // Mostly the oldest, now and then another.
                    let place = if next(&mut drawn).is_multiple_of(4) { needed.len() - 1 } else { 0 };
                    let (.., ticket) = needed.remove(place);
                    queue.release(ticket);
                    continue;
                }
                let bytes = BLOCK * (1 + next(&mut drawn) % 4);
                let mut state = queue.lock();
                let ticket = state.enter(Part { item: (), entries: 1, bytes });
                let Some(lead) = state.lead(&rules, area) else {
                    full += 1;
                    assert!(!needed.is_empty(), "an empty log has no room for {bytes} bytes");
                    state.take_back(ticket);
                    continue;
                };
                state.leading = false;
                let (from, end) = (lead.offset, lead.offset + lead.length);
                let gap = rules.gap(area);
                assert!(rules.start <= from && end <= area.length, "{from}..{end} is not in the area");
                assert!(
                    !is_needed(&needed, &rules, area, from, lead.length + gap),
                    "a record at {from}..{end}, with {gap} bytes behind it, meets one of {needed:?}"
                );
                placed += 1;
                around += u64::from(end + gap > area.length);
                needed.push((from, end, ticket));
            }
        }
        assert!(placed > 5000 && full > 1000 && around > 100, "{placed} placed, {full} not, {around} around");
    }
}
