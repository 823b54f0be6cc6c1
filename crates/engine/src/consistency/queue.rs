//! Group commit into a member's log area, by whoever comes: no task of its own, no hop to another shard.
//!
//! Everybody who has something to log puts it into the member's queue. Whoever then finds that no record is being written
//! becomes the leader: takes what has come so far, writes it as one record, and tells the others. A record lives until
//! every batch in it has been released; its space is used again only then. With [`Rules::exclusive`] there is one live
//! record at a time: the next gathers meanwhile.
//!
//! Batches are taken strictly in the order in which they came. A batch that needs two members' logs enters both queues
//! under both locks ([`enter_both`]), so that all queues agree on who came first; the first of all then never waits for
//! space that somebody holds who waits for it.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use pinstripe_runtime::Signal;

use super::LogArea;
use crate::snapshot::{Member, MemberId};

/// How records are cut and placed.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    /// A record may be written only when the one before it is not needed any more.
    pub(super) exclusive: bool,
    /// Most entries of a record.
    pub(super) entries_max: usize,
    /// First byte of the area where a record may lie.
    pub(super) start: u64,
    /// Bytes of a record's header, and how much each entry adds to it; whole records are multiples of `block`.
    pub(super) header_bytes: u64,
    pub(super) entry_bytes: u64,
    pub(super) block: u64,
    /// How much behind the end of the newest record nothing may be that is needed, by the area's length; also the
    /// longest record.
    pub(super) gap: Option<fn(area_bytes: u64, block: u64) -> u64>,
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

/// One member's queue.
pub(super) struct Queue<T> {
    rules: Rules,
    state: Mutex<State<T>>,
    changed: Signal,
}

struct State<T> {
    /// Counts the members that this slot has had.
    epoch: u64,
    member: Option<MemberId>,
    /// The latest membership under which anybody came.
    generation: u64,
    area: Option<LogArea>,
    /// Where the next record goes, if it fits there.
    head: u64,
    /// Oldest first.
    live: VecDeque<Record>,
    waiting: VecDeque<Waiting<T>>,
    /// The number of the next batch; all below `durable` are on the member.
    next: u64,
    durable: u64,
    leading: bool,
    failed: bool,
}

struct Record {
    start: u64,
    /// Batches below this number, from where the record before it ends.
    batches_end: u64,
    unreleased: u64,
}

struct Waiting<T> {
    /// `None` when it was taken back.
    item: Option<T>,
    entries: usize,
    bytes: u64,
}

/// A batch's place in a queue.
#[derive(Clone, Copy)]
pub(super) struct Ticket {
    epoch: u64,
    number: u64,
}

/// What to do next.
pub(super) enum Turn<T> {
    /// The batch is on the member.
    Durable,
    /// The member's log could not be written, or the member has left.
    Failed,
    /// The membership is another meanwhile, or the array has failed, and the batch was not in a record yet: it isn't in
    /// the queue any more.
    Moved,
    /// Write this record and call [`Queue::written`].
    Lead(Lead<T>),
}

/// A record to be written.
pub(super) struct Lead<T> {
    epoch: u64,
    batches_end: u64,
    /// Where it goes, in bytes of the device.
    pub(super) offset: u64,
    /// Its length in bytes.
    pub(super) length: u64,
    /// What goes in, in order.
    pub(super) items: Vec<T>,
}

impl<T> Queue<T> {
    pub(super) fn new(rules: Rules) -> Self {
        let state = State {
            epoch: 0,
            member: None,
            generation: 0,
            area: None,
            head: rules.start,
            live: VecDeque::new(),
            waiting: VecDeque::new(),
            next: 0,
            durable: 0,
            leading: false,
            failed: false,
        };
        Self { rules, state: Mutex::new(state), changed: Signal::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a batch of `entries` with `bytes` of payload into the queue of `member`, who sits there in `generation`.
    pub(super) fn enter(
        &self,
        (member, generation): (&Member, u64),
        item: T,
        entries: usize,
        bytes: u64,
    ) -> Ticket {
        self.lock().enter(&self.rules, (member, generation), Waiting { item: Some(item), entries, bytes })
    }

    /// Waits until there is something to know or to do. A batch that waits for others while the membership changes must
    /// give way: what these others wait for may be that change, and the change for this batch.
    pub(super) async fn next(&self, ticket: Ticket, moved: impl Fn() -> bool) -> Turn<T> {
        let turn = self
            .changed
            .wait_for(|| {
                let moved = moved();
                let mut state = self.lock();
                if moved && state.take_back(ticket) {
                    return Some(Turn::Moved);
                }
                state.turn(&self.rules, ticket)
            })
            .await;
        if matches!(turn, Turn::Moved) {
            self.changed.notify();
        }
        turn
    }

    /// Has everybody who waits look again.
    pub(super) fn wake(&self) {
        self.changed.notify();
    }

    /// The batch will not be written: what waits of it is taken back, what a record has of it is released.
    pub(super) fn abandon(&self, ticket: Ticket) {
        if !self.lock().take_back(ticket) {
            return self.release(ticket);
        }
        self.changed.notify();
    }

    /// The record is durable, or could not be written.
    pub(super) fn written(&self, lead: &Lead<T>, success: bool) {
        {
            let mut state = self.lock();
            if state.epoch == lead.epoch {
                state.leading = false;
                if success {
                    state.durable = lead.batches_end;
                } else {
                    state.failed = true;
                    state.waiting.clear();
                }
            }
        }
        self.changed.notify();
    }

    /// The batch is on the members: its record is not needed for it any more.
    pub(super) fn release(&self, ticket: Ticket) {
        {
            let mut state = self.lock();
            if state.epoch != ticket.epoch {
                return;
            }
            if let Some(record) = state.live.iter_mut().find(|record| ticket.number < record.batches_end) {
                record.unreleased -= 1;
            }
            while state.live.front().is_some_and(|record| record.unreleased == 0) {
                state.live.pop_front();
            }
        }
        self.changed.notify();
    }
}

impl<T> State<T> {
    fn enter(&mut self, rules: &Rules, (member, generation): (&Member, u64), waiting: Waiting<T>) -> Ticket {
        if self.member != Some(member.id) && generation < self.generation {
            // Another has taken the seat meanwhile: a ticket that is good for nothing.
            return Ticket { epoch: u64::MAX, number: 0 };
        }
        self.generation = self.generation.max(generation);
        if self.member != Some(member.id) {
            // Who waited for the member before finds another epoch, and plans anew.
            self.epoch += 1;
            self.member = Some(member.id);
            self.area = member.log_area();
            self.head = rules.start;
            self.live.clear();
            self.waiting.clear();
            self.durable = self.next;
            self.leading = false;
            self.failed = self.area.is_none();
        }
        let ticket = Ticket { epoch: self.epoch, number: self.next };
        self.next += 1;
        if !self.failed {
            self.waiting.push_back(waiting);
        }
        ticket
    }

    /// Takes a batch out that is in no record yet. False if it is, or was, in one.
    fn take_back(&mut self, ticket: Ticket) -> bool {
        let first = self.next - self.waiting.len() as u64;
        if ticket.epoch != self.epoch || ticket.number < first {
            return false;
        }
        let place = usize::try_from(ticket.number - first).unwrap_or(usize::MAX);
        if let Some(waiting) = self.waiting.get_mut(place) {
            *waiting = Waiting { item: None, entries: 0, bytes: 0 };
        }
        true
    }

    fn turn(&mut self, rules: &Rules, ticket: Ticket) -> Option<Turn<T>> {
        if ticket.epoch != self.epoch {
            return Some(Turn::Failed);
        }
        if ticket.number < self.durable {
            return Some(Turn::Durable);
        }
        if self.failed {
            return Some(Turn::Failed);
        }
        if self.leading || self.waiting.is_empty() || rules.exclusive && !self.live.is_empty() {
            return None;
        }
        self.lead(rules).map(Turn::Lead)
    }

    /// Takes what has come, as much as there is place for.
    fn lead(&mut self, rules: &Rules) -> Option<Lead<T>> {
        let area = self.area?;
        while self.waiting.front().is_some_and(|waiting| waiting.item.is_none()) {
            self.waiting.pop_front();
        }
        let (mut entries, mut bytes, mut taken, mut place) = (0, 0, 0, None);
        for waiting in &self.waiting {
            let (more_entries, more_bytes) = (entries + waiting.entries, bytes + waiting.bytes);
            let length = rules.record(more_entries, more_bytes);
            let at = self.place(rules, area, length);
            let too_long = rules.gap.is_some() && length > rules.gap(area);
            if taken > 0 && (more_entries > rules.entries_max || too_long) || at.is_none() {
                break;
            }
            (entries, bytes, taken, place) = (more_entries, more_bytes, taken + 1, at.map(|at| (at, length)));
        }
        let (start, length) = place?;
        let items: Vec<T> = self.waiting.drain(..taken).filter_map(|waiting| waiting.item).collect();
        let batches_end = self.next - self.waiting.len() as u64;
        self.live.push_back(Record { start, batches_end, unreleased: items.len() as u64 });
        self.head = start + length;
        self.leading = true;
        Some(Lead { epoch: self.epoch, batches_end, offset: area.offset + start, length, items })
    }

    /// Where a record of `length` bytes fits that overwrites no live one, and leaves the gap behind it free of live ones too.
    fn place(&self, rules: &Rules, area: LogArea, length: u64) -> Option<u64> {
        let gap = rules.gap(area);
        let wraps = !area.several || self.head + length > area.length;
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

/// Puts entries, each with its bytes of payload, into the queues of two members, so that every pair of queues has the same
/// order. `first` is of the lower slot.
pub(super) fn enter_both<T>(
    first: (&Queue<T>, &Member, Vec<(T, u64)>),
    second: (&Queue<T>, &Member, Vec<(T, u64)>),
    generation: u64,
) -> (Vec<Ticket>, Vec<Ticket>) {
    let (mut a, mut b) = (first.0.lock(), second.0.lock());
    let waiting = |(item, bytes)| Waiting { item: Some(item), entries: 1, bytes };
    (
        first
            .2
            .into_iter()
            .map(|part| a.enter(&first.0.rules, (first.1, generation), waiting(part)))
            .collect(),
        second
            .2
            .into_iter()
            .map(|part| b.enter(&second.0.rules, (second.1, generation), waiting(part)))
            .collect(),
    )
}
