//! The operations of a namespace and their states (section 2): no I/O, no clock of its own.
//!
//! Nothing here waits. Tasks hold a [`Key`] and come back with what they have done; if the operation was
//! dropped meanwhile, they are told so, and what they bring is thrown away. A key is good for the *era* in
//! which it was made: when the epoch rises all operations are forgotten, and their numbers may come again.
//!
//! An operation *takes a slot* from its first command or Peer until it is over. Of one that is over a note
//! stays, so that late Peers and repeated commands are recognised, until the host's `oldest` has passed it.
//! Notes are bounded too: beyond that the lowest are forgotten, and what is lower than they were counts as
//! stale. What is stale the host alone decides: of a Peer no number is believed but that of its operation,
//! and notes of operations that no command has named are forgotten without a trace (C35).

use std::collections::BTreeMap;
use std::task::{Poll, Waker};

use pinstripe_runtime::{Buffer, Slice, Ticket};

use super::sum::{Sum, Work};
use crate::mutants::{Mutant, active};
use crate::wire::offload::Outcome;
use crate::wire::status::Status;

/// Time from an operation's first command to its being prepared (section 8).
pub(crate) const PREPARE_NANOSECONDS: u64 = 10_000_000_000;
/// Notes of operations that are over.
const NOTES_MAX: usize = 1024;

/// Names an operation to a task that works for it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    era: u64,
    operation: u64,
}

enum Stage {
    /// Of the first phase, or only Peers have come so far.
    Open,
    /// What is to be written, and where.
    Prepared(u64, Slice),
    Committing,
    Applied,
    InDoubt,
    Dropped,
    /// It had nothing to be committed.
    Over,
}

struct Operation {
    stage: Stage,
    /// The controller that named it first; none yet if only Peers have come.
    controller: Option<u16>,
    length: u32,
    deadline: u64,
    sum: Sum,
    wakers: Vec<Waker>,
}

impl Operation {
    fn takes_a_slot(&self) -> bool {
        matches!(self.stage, Stage::Open | Stage::Prepared(..) | Stage::Committing)
    }

    /// Whether it can still be dropped.
    fn is_uncommitted(&self) -> bool {
        matches!(self.stage, Stage::Open | Stage::Prepared(..))
    }

    fn become_stage(&mut self, stage: Stage) {
        self.stage = stage;
        self.wake();
    }

    fn wake(&mut self) {
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
    }

    fn await_change(&mut self, waker: &Waker) {
        if !self.wakers.iter().any(|known| known.will_wake(waker)) {
            self.wakers.push(waker.clone());
        }
    }
}

/// What a first-phase command brings.
pub(crate) struct Beginning {
    pub ticket: Ticket,
    pub controller: u16,
    /// Bytes of the range.
    pub length: u32,
    /// For a sum: parts of others, parts of our own.
    pub parts: Option<(u16, u8)>,
}

/// What became of a Peer that isn't refused.
pub(crate) enum Taken {
    /// It was added or kept; there may be something to add, at [`Table::added`].
    New(Key, Option<Work>),
    /// It had come before.
    Again,
}

/// What a Commit must do.
pub(crate) enum Commit {
    /// Write this there, and say so: [`Table::written`].
    Write(Key, u64, Slice),
    /// Another command writes: see [`Table::poll_written`].
    Wait(Key),
    /// It is done.
    Done,
}

/// What became of an operation.
pub(crate) enum Resolution {
    Known(Outcome),
    /// It is being committed: see [`Table::poll_written`].
    Wait(Key),
}

/// See the module.
pub(crate) struct Table {
    operations: BTreeMap<u64, Operation>,
    era: u64,
    /// The host has finished with lower ones.
    oldest: u64,
    slots: u32,
    held: u32,
    /// Operations that were dropped, in all.
    pub dropped: u64,
}

impl Table {
    pub fn new(slots: u32) -> Self {
        Self { operations: BTreeMap::new(), era: 0, oldest: 0, slots, held: 0, dropped: 0 }
    }

    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// Operations that take a slot.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// The epoch has risen: nothing of before is known any more. Nothing may be being committed.
    pub fn forget_all(&mut self) {
        self.drop_where(|_| true);
        self.operations.clear();
        (self.oldest, self.held) = (0, 0);
        self.era += 1;
    }

    fn get(&mut self, key: Key) -> Option<&mut Operation> {
        (key.era == self.era).then(|| self.operations.get_mut(&key.operation)).flatten()
    }

    /// Ends an operation. Its memory goes, its note stays.
    fn end(&mut self, number: u64, stage: Stage) {
        let Some(operation) = self.operations.get_mut(&number) else { return };
        if operation.takes_a_slot() {
            self.held -= 1;
            self.dropped += u64::from(matches!(stage, Stage::Dropped));
        }
        operation.sum.end();
        operation.become_stage(stage);
        if number < self.oldest {
            self.operations.remove(&number);
        }
    }

    /// Drops what isn't committed and for which `which` holds.
    fn drop_where(&mut self, which: impl Fn(&Operation) -> bool) {
        let numbers: Vec<u64> = self
            .operations
            .iter()
            .filter(|(_, operation)| operation.is_uncommitted() && which(operation))
            .map(|(number, _)| *number)
            .collect();
        for number in numbers {
            self.end(number, Stage::Dropped);
        }
    }

    /// Drops what isn't committed: of one controller, or all.
    pub fn drop_uncommitted(&mut self, controller: Option<u16>) {
        self.drop_where(|operation| controller.is_none_or(|one| operation.controller == Some(one)));
    }

    /// Drops what wasn't prepared in time.
    pub fn sweep(&mut self, now: u64) {
        self.drop_where(|operation| matches!(operation.stage, Stage::Open) && operation.deadline <= now);
    }

    /// What a command of the host says of its operations; an error if it names one that is over.
    fn admit(&mut self, ticket: Ticket, now: u64) -> Result<(), Status> {
        let oldest = ticket.oldest.0;
        if oldest > self.oldest {
            self.oldest = oldest;
            // The host has finished with them: it won't commit them any more.
            let gone: Vec<u64> = self.operations.range(..oldest).map(|(number, _)| *number).collect();
            for number in gone {
                if let Some(Operation { stage: Stage::Committing, .. }) = self.operations.get(&number) {
                    continue;
                }
                self.end(number, Stage::Dropped);
                self.operations.remove(&number);
            }
        }
        self.make_room(ticket, now)
    }

    /// An error if the host has finished with the operation that is named.
    fn make_room(&mut self, ticket: Ticket, now: u64) -> Result<(), Status> {
        self.forget_notes();
        if self.held >= self.slots {
            self.sweep(now);
        }
        let number = ticket.operation.0;
        // One that is under way is known, also where later ones were forgotten: it is only slow.
        let is_known = self.operations.get(&number).is_some_and(Operation::is_uncommitted);
        let stale = number < self.oldest && !is_known && !active(Mutant::StaleAccepted);
        if stale { Err(Status::STALE) } else { Ok(()) }
    }

    fn forget_notes(&mut self) {
        let notes = self.operations.len().saturating_sub(self.held as usize);
        if notes <= NOTES_MAX {
            return;
        }
        // A part of one that comes later begins it anew, and lacks those that came before: it never becomes
        // whole.
        self.operations.retain(|_, operation| operation.takes_a_slot() || operation.controller.is_some());
        let over = self.operations.iter().filter(|(_, operation)| !operation.takes_a_slot());
        // Half of as many as there may be, at a time.
        let excess = (self.operations.len() - self.held as usize).saturating_sub(NOTES_MAX / 2);
        let lowest: Vec<u64> = over.map(|(number, _)| *number).take(excess).collect();
        for number in lowest {
            self.operations.remove(&number);
            self.oldest = self.oldest.max(number.saturating_add(1));
        }
    }

    fn insert(&mut self, ticket: Ticket, length: u32, now: u64) -> Result<(), Status> {
        if self.held >= self.slots {
            return Err(Status::BUSY);
        }
        self.held += 1;
        let operation = Operation {
            stage: Stage::Open,
            controller: None,
            length,
            deadline: now + PREPARE_NANOSECONDS,
            sum: Sum::default(),
            wakers: Vec::new(),
        };
        self.operations.insert(ticket.operation.0, operation);
        Ok(())
    }

    fn key(&self, ticket: Ticket) -> Key {
        Key { era: self.era, operation: ticket.operation.0 }
    }

    /// The first command of an operation; Peers may have come before.
    pub fn begin(&mut self, beginning: &Beginning, now: u64) -> Result<Key, Status> {
        let Beginning { ticket, controller, length, parts } = *beginning;
        self.admit(ticket, now)?;
        let number = ticket.operation.0;
        match self.operations.get(&number) {
            None => self.insert(ticket, length, now)?,
            Some(Operation { stage: Stage::Dropped, .. }) => return Err(Status::DROPPED),
            Some(Operation { stage: Stage::Open, controller: None, length: told, .. }) => {
                if *told != length || parts.is_none() {
                    self.end(number, Stage::Dropped);
                    return Err(Status::INVALID_FIELD);
                }
            }
            // One command of the first phase for each participant.
            Some(_) => return Err(Status::INVALID_FIELD),
        }
        let key = self.key(ticket);
        let Some(operation) = self.operations.get_mut(&number) else { return Err(Status::INTERNAL) };
        operation.controller = Some(controller);
        if let Some((wait, own)) = parts
            && !operation.sum.expect(wait, own)
        {
            self.end(number, Stage::Dropped);
            return Err(Status::INVALID_FIELD);
        }
        Ok(key)
    }

    /// A part of another server.
    pub fn peer(&mut self, ticket: Ticket, place: u8, part: Buffer, now: u64) -> Result<Taken, Status> {
        self.make_room(ticket, now)?;
        let number = ticket.operation.0;
        let length = u32::try_from(part.len()).map_err(|_| Status::INVALID_FIELD)?;
        let is_dropped = |operation: &Operation| matches!(operation.stage, Stage::Dropped);
        match self.operations.get(&number).map(is_dropped) {
            Some(false) => {}
            Some(true) if !active(Mutant::LatePeerAdded) => return Err(Status::DROPPED),
            Some(true) | None => self.insert(ticket, length, now)?,
        }
        let key = self.key(ticket);
        let Some(operation) = self.operations.get_mut(&number) else { return Err(Status::INTERNAL) };
        let is_open = matches!(operation.stage, Stage::Open);
        // Once all parts have come, what was not one of them is one too many.
        if operation.length != length || (!is_open && !operation.sum.has(place)) {
            if operation.is_uncommitted() {
                self.end(number, Stage::Dropped);
            }
            return Err(Status::INVALID_FIELD);
        }
        if !is_open || (!operation.sum.note(place) && !active(Mutant::PeerNotDeduplicated)) {
            return Ok(Taken::Again);
        }
        // One part too many, or a part for an operation that sums nothing up here.
        if !operation.sum.fits() || (operation.controller.is_some() && !operation.sum.is_expected()) {
            self.end(number, Stage::Dropped);
            return Err(Status::INVALID_FIELD);
        }
        let is_lost = operation.controller.is_none() && active(Mutant::EarlyPeerNotAdded);
        let work =
            operation.sum.take(if is_lost { pinstripe_runtime::shard::zeroed(part.len()) } else { part });
        if work.is_none() {
            // It may be the last one.
            operation.wake();
        }
        Ok(Taken::New(key, work))
    }

    fn end_open(&mut self, number: u64) {
        let open = self.operations.get(&number).is_some_and(|one| matches!(one.stage, Stage::Open));
        if open {
            self.end(number, Stage::Dropped);
        }
    }

    /// A part of our own: none if it turned out that there is none.
    pub fn own(&mut self, key: Key, part: Buffer) -> Option<Work> {
        let operation = self.get(key).filter(|operation| matches!(operation.stage, Stage::Open))?;
        operation.sum.own_has_come();
        let work = operation.sum.take(part);
        if work.is_none() {
            operation.wake();
        }
        work
    }

    /// What was to be added is added; there may be more.
    pub fn added(&mut self, key: Key, sum: Buffer) -> Option<Work> {
        let operation = self.get(key).filter(|operation| matches!(operation.stage, Stage::Open))?;
        let work = operation.sum.put(sum);
        if work.is_none() {
            operation.wake();
        }
        work
    }

    /// The whole sum, or why there won't be one.
    pub fn poll_sum(&mut self, key: Key, waker: &Waker) -> Poll<Result<Buffer, Status>> {
        let Some(operation) = self.get(key).filter(|operation| matches!(operation.stage, Stage::Open)) else {
            return Poll::Ready(Err(Status::DROPPED));
        };
        if let Some(sum) = operation.sum.whole() {
            return Poll::Ready(Ok(sum));
        }
        operation.await_change(waker);
        Poll::Pending
    }

    /// Whether an operation is in its first phase.
    pub fn is_open(&mut self, key: Key) -> bool {
        self.get(key).is_some_and(|operation| matches!(operation.stage, Stage::Open))
    }

    /// Ready when the operation is dropped.
    pub fn poll_dropped(&mut self, key: Key, waker: &Waker) -> Poll<Status> {
        match self.get(key) {
            Some(operation) if matches!(operation.stage, Stage::Open) => {
                operation.await_change(waker);
                Poll::Pending
            }
            _ => Poll::Ready(Status::DROPPED),
        }
    }

    /// When the operation is dropped unless it is prepared.
    pub fn deadline(&mut self, key: Key) -> Option<u64> {
        self.get(key).map(|operation| operation.deadline)
    }

    /// The first phase has succeeded here: `data` is to be written at `offset` of the namespace.
    pub fn prepared(&mut self, key: Key, offset: u64, data: Slice) -> Result<(), Status> {
        match self.get(key) {
            Some(operation) if matches!(operation.stage, Stage::Open) => {
                operation.become_stage(Stage::Prepared(offset, data));
                Ok(())
            }
            _ => Err(Status::DROPPED),
        }
    }

    /// The operation has succeeded, and there is nothing to be written.
    pub fn over(&mut self, key: Key) -> Result<(), Status> {
        let open = self.get(key).is_some_and(|operation| matches!(operation.stage, Stage::Open));
        if !open {
            return Err(Status::DROPPED);
        }
        self.end(key.operation, Stage::Over);
        Ok(())
    }

    /// The first phase has failed here.
    pub fn failed(&mut self, key: Key) {
        if key.era == self.era {
            self.end_open(key.operation);
        }
    }

    /// What a Commit must do. A task that has to write must say what came of it: [`Table::written`].
    pub fn commit(&mut self, ticket: Ticket, now: u64) -> Result<Commit, Status> {
        let unprepared =
            if active(Mutant::UnpreparedCommitted) { Ok(Commit::Done) } else { Err(Status::UNPREPARED) };
        // Looked at before `oldest` is: a repeated one may be late.
        let key = self.key(ticket);
        let Some(operation) = self.operations.get_mut(&ticket.operation.0) else {
            self.admit(ticket, now)?;
            return unprepared;
        };
        match &operation.stage {
            Stage::Prepared(..) => {}
            Stage::Committing => return Ok(Commit::Wait(key)),
            Stage::Applied => return Ok(Commit::Done),
            Stage::InDoubt => return Err(Status::WRITE_FAULT),
            Stage::Dropped => return Err(Status::DROPPED),
            Stage::Open | Stage::Over => return unprepared,
        }
        let before = std::mem::replace(&mut operation.stage, Stage::Committing);
        let Stage::Prepared(offset, data) = before else { return Err(Status::INTERNAL) };
        // It can't be the one that is forgotten.
        let _ = self.admit(ticket, now);
        Ok(Commit::Write(key, offset, data))
    }

    /// A commit has been written, or has failed.
    pub fn written(&mut self, key: Key, done: bool) {
        if self.get(key).is_some_and(|operation| matches!(operation.stage, Stage::Committing)) {
            self.end(key.operation, if done { Stage::Applied } else { Stage::InDoubt });
        }
    }

    /// The end of a commit; an error if the host has finished with it meanwhile.
    pub fn poll_written(&mut self, key: Key, waker: &Waker) -> Poll<Result<Outcome, Status>> {
        let Some(operation) = self.get(key) else { return Poll::Ready(Err(Status::STALE)) };
        match operation.stage {
            Stage::Committing => {
                operation.await_change(waker);
                Poll::Pending
            }
            Stage::Applied => Poll::Ready(Ok(Outcome::Applied)),
            _ => Poll::Ready(Ok(Outcome::InDoubt)),
        }
    }

    /// Drops an operation, unless it is committed.
    pub fn resolve(&mut self, ticket: Ticket, controller: u16, now: u64) -> Result<Resolution, Status> {
        let (key, number) = (self.key(ticket), ticket.operation.0);
        if let Some(operation) = self.operations.get_mut(&number) {
            operation.controller.get_or_insert(controller);
            return Ok(match operation.stage {
                Stage::Open | Stage::Prepared(..) => {
                    self.end(number, Stage::Dropped);
                    Resolution::Known(Outcome::NotApplied)
                }
                Stage::Committing => Resolution::Wait(key),
                Stage::Applied => Resolution::Known(Outcome::Applied),
                Stage::InDoubt => Resolution::Known(Outcome::InDoubt),
                Stage::Dropped | Stage::Over => Resolution::Known(Outcome::NotApplied),
            });
        }
        self.admit(ticket, now)?;
        // A note, so that it never will be: its commands and Peers may still be on their way.
        let operation = Operation {
            stage: Stage::Dropped,
            controller: Some(controller),
            length: 0,
            deadline: now,
            sum: Sum::default(),
            wakers: Vec::new(),
        };
        self.operations.insert(number, operation);
        Ok(Resolution::Known(Outcome::NotApplied))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pinstripe_runtime::{OperationId, Shard, ShardConfig, shard};

    /// Something to take memory from.
    fn on_a_shard(test: impl FnOnce()) {
        let shard = Shard::new(&ShardConfig { index: 0, arena_bytes: 0, clock: None });
        let _entered = shard.enter();
        test();
        assert_eq!(shard.pool().outstanding(), 0, "memory was kept");
    }

    fn ticket(operation: u64, oldest: u64) -> Ticket {
        Ticket { operation: OperationId(operation), oldest: OperationId(oldest) }
    }

    fn part(byte: u8, length: usize) -> Buffer {
        let mut buffer = shard::buffer(length);
        buffer.fill(byte);
        buffer
    }

    fn beginning(operation: u64, parts: Option<(u16, u8)>) -> Beginning {
        Beginning { ticket: ticket(operation, 1), controller: 1, length: 512, parts }
    }

    fn bring(table: &mut Table, operation: u64, place: u8, byte: u8) -> Result<bool, Status> {
        match table.peer(ticket(operation, 1), place, part(byte, 512), 0)? {
            Taken::New(key, mut work) => {
                while let Some(sum) = work.take().and_then(Work::add) {
                    work = table.added(key, sum);
                }
                Ok(true)
            }
            Taken::Again => Ok(false),
        }
    }

    fn sum(table: &mut Table, key: Key) -> Poll<Result<Buffer, Status>> {
        table.poll_sum(key, Waker::noop())
    }

    #[test]
    fn parts_may_come_before_the_command_and_twice() {
        on_a_shard(|| {
            let mut table = Table::new(4);
            assert_eq!(bring(&mut table, 7, 3, 0x0f), Ok(true));
            assert_eq!(bring(&mut table, 7, 3, 0x0f), Ok(false));
            let Ok(key) = table.begin(&beginning(7, Some((2, 0))), 0) else { panic!("it begins") };
            assert!(sum(&mut table, key).is_pending());
            assert_eq!(bring(&mut table, 7, 5, 0xf0), Ok(true));
            let Poll::Ready(Ok(whole)) = sum(&mut table, key) else { panic!("all parts are there") };
            assert!(whole.iter().all(|byte| *byte == 0xff));
            assert_eq!(table.prepared(key, 0, whole.freeze()), Ok(()));
            assert_eq!(bring(&mut table, 7, 5, 0xf0), Ok(false), "late, but the same");
            assert!(matches!(table.commit(ticket(7, 1), 0), Ok(Commit::Write(..))));
            assert!(matches!(table.commit(ticket(7, 1), 0), Ok(Commit::Wait(_))));
            table.written(key, true);
            assert!(matches!(table.commit(ticket(7, 1), 0), Ok(Commit::Done)));
            assert_eq!(bring(&mut table, 7, 3, 0x0f), Ok(false), "also when it is applied");
            assert_eq!(table.held(), 0);
        });
    }

    #[test]
    fn a_part_too_many_after_all_have_come_drops_what_is_not_committed() {
        on_a_shard(|| {
            let mut table = Table::new(4);
            let prepared = |table: &mut Table, number: u64, parts: Option<(u16, u8)>| {
                let Ok(key) = table.begin(&beginning(number, parts), 0) else { panic!("it begins") };
                if parts.is_some() {
                    assert_eq!(bring(table, number, 3, 1), Ok(true));
                    assert!(sum(table, key).is_ready());
                }
                assert_eq!(table.prepared(key, 0, part(1, 512).freeze()), Ok(()));
                key
            };
            // The second one sums nothing up.
            for (number, parts) in [(7, Some((1, 0))), (8, None)] {
                prepared(&mut table, number, parts);
                assert_eq!(bring(&mut table, number, 4, 1), Err(Status::INVALID_FIELD));
                assert_eq!(table.commit(ticket(number, 1), 0).map(|_| ()), Err(Status::DROPPED));
            }
            prepared(&mut table, 9, Some((1, 0)));
            let longer = table.peer(ticket(9, 1), 3, part(1, 1024), 0).map(|_| ());
            assert_eq!(longer, Err(Status::INVALID_FIELD));
            assert_eq!(table.commit(ticket(9, 1), 0).map(|_| ()), Err(Status::DROPPED));
            let key = prepared(&mut table, 10, Some((1, 0)));
            assert!(matches!(table.commit(ticket(10, 1), 0), Ok(Commit::Write(..))));
            for _ in 0..2 {
                assert_eq!(bring(&mut table, 10, 4, 1), Err(Status::INVALID_FIELD));
            }
            table.written(key, true);
            assert_eq!(bring(&mut table, 10, 4, 1), Err(Status::INVALID_FIELD));
            assert!(matches!(table.commit(ticket(10, 1), 0), Ok(Commit::Done)), "it is written all the same");
            assert_eq!(table.held(), 0);
        });
    }

    #[test]
    fn a_sum_under_way_takes_in_the_parts_that_came_meanwhile() {
        on_a_shard(|| {
            let mut table = Table::new(4);
            let Ok(key) = table.begin(&beginning(7, Some((3, 0))), 0) else { panic!("it begins") };
            assert_eq!(bring(&mut table, 7, 0, 1), Ok(true));
            let Ok(Taken::New(_, Some(work))) = table.peer(ticket(7, 1), 1, part(2, 512), 0) else {
                panic!("there are two to add")
            };
            let Ok(Taken::New(_, None)) = table.peer(ticket(7, 1), 2, part(4, 512), 0) else {
                panic!("a sum is under way already")
            };
            assert!(sum(&mut table, key).is_pending());
            let work = table.added(key, work.add().unwrap()).expect("the third one");
            assert!(table.added(key, work.add().unwrap()).is_none());
            let Poll::Ready(Ok(whole)) = sum(&mut table, key) else { panic!("all are added") };
            assert!(whole.iter().all(|byte| *byte == 7));
        });
    }

    #[test]
    fn a_part_that_does_not_fit_drops_the_operation() {
        on_a_shard(|| {
            let mut table = Table::new(4);
            assert_eq!(bring(&mut table, 7, 0, 1), Ok(true));
            let longer = table.peer(ticket(7, 1), 1, part(1, 1024), 0).map(|_| ());
            assert_eq!(longer, Err(Status::INVALID_FIELD));
            assert_eq!(bring(&mut table, 7, 2, 1), Err(Status::DROPPED));
            // One part too many, and a part for an operation that sums nothing up.
            let key = table.begin(&beginning(8, Some((1, 1))), 0);
            assert!(key.is_ok());
            assert_eq!(bring(&mut table, 8, 0, 1), Ok(true));
            assert_eq!(bring(&mut table, 8, 1, 1), Err(Status::INVALID_FIELD));
            assert!(table.begin(&beginning(9, None), 0).is_ok());
            assert_eq!(bring(&mut table, 9, 1, 1), Err(Status::INVALID_FIELD));
            assert_eq!(table.held(), 0);
        });
    }

    #[test]
    fn slots_are_few_and_come_back() {
        on_a_shard(|| {
            let mut table = Table::new(2);
            assert_eq!(bring(&mut table, 7, 0, 1), Ok(true));
            let Ok(key) = table.begin(&beginning(8, None), 0) else { panic!("there is a slot") };
            assert_eq!(bring(&mut table, 9, 0, 1), Err(Status::BUSY));
            assert_eq!(table.over(key), Ok(()));
            assert_eq!(bring(&mut table, 9, 0, 1), Ok(true));
            // No host command has named operations 7 and 9: after their time they go.
            let begun = table.begin(&beginning(10, None), PREPARE_NANOSECONDS);
            assert!(begun.is_ok());
            assert_eq!((table.held(), table.dropped), (1, 2));
        });
    }

    #[test]
    fn what_the_host_has_finished_with_is_stale_and_gone() {
        on_a_shard(|| {
            let mut table = Table::new(4);
            let Ok(key) = table.begin(&beginning(5, None), 0) else { panic!("it begins") };
            assert_eq!(table.prepared(key, 0, part(1, 512).freeze()), Ok(()));
            assert!(table.begin(&Beginning { ticket: ticket(9, 9), ..beginning(9, None) }, 0).is_ok());
            assert_eq!(table.held(), 1);
            assert_eq!(bring(&mut table, 5, 0, 1), Err(Status::STALE));
            assert_eq!(table.commit(ticket(5, 5), 0).map(|_| ()), Err(Status::STALE));
        });
    }

    /// An operation with something to write.
    fn prepared(table: &mut Table, number: u64) -> Key {
        let Ok(key) = table.begin(&beginning(number, None), 0) else { panic!("it begins") };
        assert_eq!(table.prepared(key, 0, part(1, 512).freeze()), Ok(()));
        key
    }

    #[test]
    fn a_commit_too_says_what_the_host_has_finished_with() {
        on_a_shard(|| {
            let mut table = Table::new(4);
            prepared(&mut table, 5);
            prepared(&mut table, 9);
            assert!(matches!(table.commit(ticket(9, 9), 0), Ok(Commit::Write(..))));
            assert_eq!(table.held(), 1);
            assert_eq!(bring(&mut table, 5, 0, 1), Err(Status::STALE));
        });
    }

    #[test]
    fn what_is_being_written_is_known_although_the_host_says_that_it_has_finished_with_it() {
        on_a_shard(|| {
            let mut table = Table::new(4);
            let key = prepared(&mut table, 7);
            assert!(matches!(table.commit(ticket(7, 1), 0), Ok(Commit::Write(..))));
            assert!(table.begin(&Beginning { ticket: ticket(9, 9), ..beginning(9, None) }, 0).is_ok());
            assert!(matches!(table.commit(ticket(7, 1), 0), Ok(Commit::Wait(_))));
            assert!(matches!(table.resolve(ticket(7, 1), 1, 0), Ok(Resolution::Wait(_))));
            assert_eq!(table.held(), 2);
            table.written(key, true);
            assert_eq!(table.held(), 1);
        });
    }

    #[test]
    fn what_was_resolved_when_only_a_part_had_come_never_begins_whatever_parts_come_of_others() {
        on_a_shard(|| {
            let mut table = Table::new(4);
            assert_eq!(bring(&mut table, 7, 0, 1), Ok(true));
            assert!(matches!(table.resolve(ticket(7, 1), 1, 0), Ok(Resolution::Known(Outcome::NotApplied))));
            for number in 1..=2 * NOTES_MAX as u64 {
                let now = number * PREPARE_NANOSECONDS;
                table.sweep(now);
                let taken = table.peer(ticket(100 + number, 1), 1, part(1, 512), now);
                assert!(matches!(taken, Ok(Taken::New(..))), "{number}");
            }
            assert_eq!(table.begin(&beginning(7, None), 0).map(|_| ()), Err(Status::DROPPED));
            table.drop_uncommitted(None);
        });
    }

    /// The part's sender was told that it has come.
    #[test]
    fn a_command_that_sums_nothing_up_drops_an_operation_of_which_a_part_has_come() {
        on_a_shard(|| {
            let mut table = Table::new(4);
            assert_eq!(bring(&mut table, 7, 0, 1), Ok(true));
            assert_eq!(table.begin(&beginning(7, None), 0).map(|_| ()), Err(Status::INVALID_FIELD));
            assert_eq!(table.commit(ticket(7, 1), 0).map(|_| ()), Err(Status::DROPPED));
            assert_eq!(table.held(), 0);
        });
    }

    #[test]
    fn a_resolve_that_comes_first_forbids_what_follows() {
        on_a_shard(|| {
            let mut table = Table::new(4);
            assert!(matches!(table.resolve(ticket(7, 1), 1, 0), Ok(Resolution::Known(Outcome::NotApplied))));
            assert_eq!(bring(&mut table, 7, 0, 1), Err(Status::DROPPED));
            assert_eq!(table.begin(&beginning(7, None), 0).map(|_| ()), Err(Status::DROPPED));
            assert_eq!(table.commit(ticket(7, 1), 0).map(|_| ()), Err(Status::DROPPED));
            assert_eq!(table.held(), 0);
        });
    }

    #[test]
    fn notes_are_bounded_and_what_was_forgotten_is_stale() {
        on_a_shard(|| {
            let mut table = Table::new(2);
            for number in 1..5_000 {
                let Ok(key) = table.begin(&beginning(number, None), 0) else { panic!("{number}") };
                assert_eq!(table.over(key), Ok(()));
            }
            assert!(table.operations.len() <= NOTES_MAX + 1);
            assert_eq!(bring(&mut table, 3, 0, 1), Err(Status::STALE));
            assert!(matches!(
                table.resolve(ticket(4_999, 1), 1, 0),
                Ok(Resolution::Known(Outcome::NotApplied))
            ));
        });
    }

    #[test]
    fn an_operation_that_is_slow_goes_on_although_those_after_it_are_forgotten() {
        on_a_shard(|| {
            let mut table = Table::new(4);
            let Ok(slow) = table.begin(&beginning(5, Some((2, 0))), 0) else { panic!("it begins") };
            assert_eq!(bring(&mut table, 6, 0, 1), Ok(true), "of this one only a part has come");
            for number in 7..2_000 {
                let Ok(key) = table.begin(&beginning(number, None), 0) else { panic!("{number}") };
                assert_eq!(table.over(key), Ok(()));
            }
            assert!(table.oldest > 6, "some were forgotten");
            for place in 0..2 {
                assert_eq!(bring(&mut table, 5, place, 1), Ok(true));
            }
            let Poll::Ready(Ok(whole)) = sum(&mut table, slow) else { panic!("all parts are there") };
            assert_eq!(table.prepared(slow, 0, whole.freeze()), Ok(()));
            assert!(matches!(table.commit(ticket(5, 1), 0), Ok(Commit::Write(..))));
            let Ok(late) = table.begin(&beginning(6, Some((1, 0))), 0) else { panic!("it begins late") };
            assert!(sum(&mut table, late).is_ready());
            table.written(slow, true);
            assert_eq!(table.over(late), Ok(()));
            // When it is over, nothing is known of it but that it is old.
            assert_eq!(bring(&mut table, 5, 0, 1), Err(Status::STALE));
            assert_eq!(table.held(), 0);
        });
    }

    #[test]
    fn whatever_numbers_peers_bring_the_hosts_operations_go_on() {
        on_a_shard(|| {
            let mut table = Table::new(4);
            let highest = crate::wire::offload::NUMBER_MAX;
            let taken = table.peer(ticket(highest, highest), 1, part(1, 512), 0);
            assert!(matches!(taken, Ok(Taken::New(..))));
            assert!(table.begin(&beginning(5, None), 0).is_ok(), "nothing is stale for that");
            // More of them than there are notes, each until its time is over.
            for number in 1..3 * NOTES_MAX as u64 {
                let now = (number + 1) * PREPARE_NANOSECONDS;
                table.sweep(now);
                let taken = table.peer(ticket(highest - number, 1), 1, part(1, 512), now);
                assert!(matches!(taken, Ok(Taken::New(..))), "{number}");
            }
            assert!(table.operations.len() <= NOTES_MAX + 4);
            assert!(table.begin(&beginning(6, None), u64::MAX / 2).is_ok());
            table.drop_uncommitted(None);
        });
    }

    #[test]
    fn a_key_of_an_earlier_epoch_opens_nothing() {
        on_a_shard(|| {
            let mut table = Table::new(2);
            let Ok(old) = table.begin(&beginning(7, Some((1, 0))), 0) else { panic!("it begins") };
            table.drop_uncommitted(None);
            table.forget_all();
            let Ok(new) = table.begin(&beginning(7, Some((1, 0))), 0) else {
                panic!("its number comes again")
            };
            assert!(table.own(old, part(9, 512)).is_none());
            assert_eq!(table.prepared(old, 0, part(9, 512).freeze()), Err(Status::DROPPED));
            table.failed(old);
            assert!(sum(&mut table, new).is_pending());
            assert_eq!(bring(&mut table, 7, 0, 1), Ok(true));
            assert!(sum(&mut table, new).is_ready());
        });
    }
}
