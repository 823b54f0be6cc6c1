//! A small array, and what its host knows of it: which bytes each row must have.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::ops::Range;
use std::rc::Rc;

use pinstripe_nvme::wire::offload::Outcome;
use pinstripe_parity::{divide, kernel, multiply, power_of_two};
use pinstripe_runtime::shard::{self, JoinHandle, spawn_joined};
use pinstripe_runtime::{
    Buffer, Device, DeviceError, DeviceErrorKind, Offload, OperationId, Reducer, Reducers, Slice, Submission,
    Ticket,
};
use pinstripe_sim::Rng;

const SECTOR_BYTES: usize = 512;
/// Rows of the array, one chunk of each member.
pub const ROWS: usize = 5;

/// What is known of a row.
struct Row {
    /// What each data column must hold.
    columns: Vec<Vec<u8>>,
    /// Whether that is what is there: no commit was left undecided.
    certain: bool,
    busy: bool,
}

/// See the module.
pub struct Array {
    pub data: usize,
    pub parities: usize,
    pub chunk: usize,
    /// Members that no host can reach.
    pub lost: Vec<usize>,
    rows: RefCell<Vec<Row>>,
    next: Cell<u64>,
    outstanding: RefCell<BTreeSet<u64>>,
    pub violations: RefCell<Vec<String>>,
    /// No blow falls now: whatever fails is wrong.
    pub calm: Cell<bool>,
    pub committed: Cell<u64>,
    pub reduced: Cell<u64>,
}

/// A member as the host uses it.
pub type Member = Rc<dyn Device>;

enum Ended {
    Fine,
    /// The association is lost.
    Lost,
}

impl Ended {
    fn or(self, other: Self) -> Self {
        if matches!(self, Self::Lost) { self } else { other }
    }
}

/// By number; none for those that are lost.
pub type Members = Rc<Vec<Option<Member>>>;

/// A request that begins after a while.
type Later = JoinHandle<(Result<usize, DeviceError>, Option<Buffer>)>;

/// What a write is to change.
struct Change {
    offset: u64,
    written: Vec<bool>,
    old: Vec<Vec<u8>>,
    new: Vec<Vec<u8>>,
    modify: bool,
}

impl Change {
    /// What a column contributes, before it is multiplied.
    fn part(&self, column: usize) -> Vec<u8> {
        let mut part = self.new[column].clone();
        if self.modify {
            xor(&mut part, &self.old[column]);
        }
        part
    }
}

/// The commands of a first phase, and the members that are to commit.
struct Phase {
    commands: Vec<Later>,
    takers: Vec<usize>,
}

fn xor(into: &mut [u8], from: &[u8]) {
    for (byte, other) in into.iter_mut().zip(from) {
        *byte ^= other;
    }
}

fn scaled(bytes: &[u8], by: u8) -> Vec<u8> {
    bytes.iter().map(|byte| multiply(*byte, by)).collect()
}

pub fn slice(bytes: &[u8]) -> Slice {
    let mut buffer = shard::buffer(bytes.len());
    buffer.copy_from_slice(bytes);
    buffer.freeze()
}

fn later(rng: &mut Rng, begin: impl FnOnce() -> Submission + 'static) -> Later {
    let pause = rng.pick(&[0, 0, 1_000, 100_000, 2_000_000]);
    spawn_joined(async move {
        if pause > 0 {
            shard::sleep(pause).await;
        }
        let outcome = begin().await;
        (outcome.result, outcome.buffer)
    })
}

fn computes(member: &Member) -> &dyn Offload {
    member.offload().expect("the server announces it")
}

impl Array {
    pub fn new(rng: &mut Rng, data: usize, parities: usize, chunk: usize, lost: Vec<usize>) -> Rc<Self> {
        let mut column = || {
            let mut bytes = vec![0; chunk];
            rng.fill(&mut bytes);
            bytes
        };
        let mut row = || Row { columns: (0..data).map(|_| column()).collect(), certain: true, busy: false };
        let rows = RefCell::new((0..ROWS).map(|_| row()).collect());
        Rc::new(Self {
            data,
            parities,
            chunk,
            lost,
            rows,
            next: Cell::new(1),
            outstanding: RefCell::default(),
            violations: RefCell::default(),
            calm: Cell::new(false),
            committed: Cell::new(0),
            reduced: Cell::new(0),
        })
    }

    pub fn members(&self) -> usize {
        self.data + self.parities
    }

    pub fn complain(&self, words: String) {
        self.violations.borrow_mut().push(words);
    }

    /// The member that has part `role` of a row: data columns, then P, then Q.
    pub fn member(&self, row: usize, role: usize) -> usize {
        (role + row) % self.members()
    }

    fn is_there(&self, row: usize, role: usize) -> bool {
        !self.lost.contains(&self.member(row, role))
    }

    /// What a member must hold.
    fn expected(&self, row: usize, role: usize) -> Vec<u8> {
        let rows = self.rows.borrow();
        let columns = &rows[row].columns;
        if role < self.data {
            return columns[role].clone();
        }
        let mut sum = vec![0; self.chunk];
        for (index, column) in columns.iter().enumerate() {
            xor(&mut sum, &scaled(column, self.coefficient(role, index)));
        }
        sum
    }

    /// Of a column in a parity.
    fn coefficient(&self, role: usize, column: usize) -> u8 {
        if role == self.data { 1 } else { power_of_two(u8::try_from(column).unwrap()) }
    }

    /// What every member that can be reached must hold, for rows that are certain.
    pub fn contents(&self) -> Vec<(usize, u64, Vec<u8>, String)> {
        let mut all = Vec::new();
        for row in 0..ROWS {
            if !self.rows.borrow()[row].certain {
                continue;
            }
            for role in (0..self.members()).filter(|role| self.is_there(row, *role)) {
                let words = format!("row {row}, part {role} of {} + {}", self.data, self.parities);
                all.push((self.member(row, role), self.offset(row), self.expected(row, role), words));
            }
        }
        all
    }

    pub fn offset(&self, row: usize) -> u64 {
        (row * self.chunk) as u64
    }

    pub fn all_certain(&self) -> bool {
        self.rows.borrow().iter().all(|row| row.certain)
    }

    /// A number for an operation.
    pub fn ticket(&self) -> Ticket {
        let number = self.next.get();
        self.next.set(number + 1);
        self.outstanding.borrow_mut().insert(number);
        let oldest = self.outstanding.borrow().first().copied().unwrap_or(number);
        Ticket { operation: OperationId(number), oldest: OperationId(oldest) }
    }

    pub fn finished(&self, ticket: Ticket) {
        self.outstanding.borrow_mut().remove(&ticket.operation.0);
    }

    /// No host is at work any more: another host goes on.
    pub fn settle(&self) {
        for row in self.rows.borrow_mut().iter_mut() {
            row.busy = false;
        }
        self.outstanding.borrow_mut().clear();
    }

    fn take_row(&self, rng: &mut Rng) -> Option<usize> {
        let row = rng.index(ROWS);
        let mut rows = self.rows.borrow_mut();
        let free = !rows[row].busy;
        rows[row].busy = true;
        free.then_some(row)
    }

    fn set_certain(&self, row: usize, certain: bool) {
        self.rows.borrow_mut()[row].certain = certain;
    }

    /// Judges a failure: whether the host can go on.
    fn failed(&self, what: &str, error: DeviceError) -> Ended {
        if self.calm.get() {
            self.complain(format!("{what} fails although nothing is the matter: {error}"));
        }
        match error.kind {
            DeviceErrorKind::Refused => Ended::Fine,
            DeviceErrorKind::Gone => Ended::Lost,
            _ => {
                self.complain(format!("{what} fails: {error}"));
                Ended::Lost
            }
        }
    }
}

/// Does some random things, until the association is lost.
pub async fn user(array: Rc<Array>, members: Members, mut rng: Rng, count: usize) {
    for _ in 0..count {
        let Some(row) = array.take_row(&mut rng) else {
            shard::sleep(100_000).await;
            continue;
        };
        let certain = array.rows.borrow()[row].certain;
        let ended = match rng.below(8) {
            _ if !certain => array.rewrite(&members, row, &mut rng).await,
            0 => array.rewrite(&members, row, &mut rng).await,
            1 | 2 => array.reconstruct(&members, row, &mut rng).await,
            _ => array.write(&members, row, &mut rng).await,
        };
        array.rows.borrow_mut()[row].busy = false;
        if matches!(ended, Ended::Lost) {
            return;
        }
    }
}

impl Array {
    fn range(&self, rng: &mut Rng) -> Range<usize> {
        let sectors = self.chunk / SECTOR_BYTES;
        let some = 1 + rng.index(sectors);
        let length = rng.pick(&[1, some, sectors]);
        let start = rng.index(sectors - length + 1);
        start * SECTOR_BYTES..(start + length) * SECTOR_BYTES
    }

    /// Writes the whole row, plainly.
    async fn rewrite(&self, members: &Members, row: usize, rng: &mut Rng) -> Ended {
        self.set_certain(row, false);
        for column in &mut self.rows.borrow_mut()[row].columns {
            rng.fill(column);
        }
        let mut writes = Vec::new();
        for role in 0..self.members() {
            let (data, offset) = (self.expected(row, role), self.offset(row));
            if let Some(member) = members[self.member(row, role)].clone() {
                writes.push(later(rng, move || member.write(offset, slice(&data), false)));
            }
        }
        let mut ended = Ended::Fine;
        let mut good = true;
        for write in writes {
            if let (Err(error), _) = write.join().await {
                good = false;
                ended = self.failed("a plain write", error);
            }
        }
        self.set_certain(row, good);
        ended
    }

    /// Writes a part of a row by the servers.
    async fn write(&self, members: &Members, row: usize, rng: &mut Rng) -> Ended {
        let range = self.range(rng);
        let change = self.change(row, &range, rng);
        let ticket = self.ticket();
        let mut phase = self.first_phase(members, row, &change, ticket, rng);
        rng.shuffle(&mut phase.commands);
        let mut ended = Ended::Fine;
        let mut prepared = true;
        for one in phase.commands {
            if let (Err(error), _) = one.join().await {
                prepared = false;
                ended = ended.or(self.failed("the first phase of a write", error));
            }
        }
        if !prepared || rng.chance(1, 10) {
            ended = ended.or(self.give_up(members, row, ticket).await);
        } else {
            self.set_certain(row, false);
            let (good, end) = self.commit(members, &phase.takers, ticket, rng).await;
            ended = end;
            if good {
                for (column, bytes) in change.new.iter().enumerate() {
                    self.rows.borrow_mut()[row].columns[column][range.clone()].copy_from_slice(bytes);
                }
                self.set_certain(row, true);
                self.committed.update(|count| count + 1);
            }
        }
        self.finished(ticket);
        ended
    }

    /// What a write is to change.
    fn change(&self, row: usize, range: &Range<usize>, rng: &mut Rng) -> Change {
        let mut written: Vec<bool> = (0..self.data).map(|_| rng.chance(1, 2)).collect();
        written[rng.index(self.data)] = true;
        let old: Vec<Vec<u8>> =
            self.rows.borrow()[row].columns.iter().map(|column| column[range.clone()].to_vec()).collect();
        let mut new = old.clone();
        for (bytes, _) in new.iter_mut().zip(&written).filter(|(_, written)| **written) {
            rng.fill(bytes);
        }
        let offset = self.offset(row) + range.start as u64;
        Change { offset, written, old, new, modify: rng.chance(1, 2) }
    }

    /// Begins the first phase of a write.
    fn first_phase(
        &self,
        members: &Members,
        row: usize,
        change: &Change,
        ticket: Ticket,
        rng: &mut Rng,
    ) -> Phase {
        let (offset, modify) = (change.offset, change.modify);
        let length = u32::try_from(change.old[0].len()).unwrap();
        let parities: Vec<usize> =
            (self.data..self.members()).filter(|role| self.is_there(row, *role)).collect();
        // What the host supplies, for columns of lost members.
        let mut supplied: Vec<Option<Vec<u8>>> = vec![None; self.members()];
        let mut phase = Phase { commands: Vec::new(), takers: Vec::new() };
        let mut wait = 0;
        for column in (0..self.data).filter(|column| !modify || change.written[*column]) {
            let Some(member) = members[self.member(row, column)].clone() else {
                for role in &parities {
                    let part = scaled(&change.part(column), self.coefficient(*role, column));
                    xor(supplied[*role].get_or_insert_with(|| vec![0; part.len()]), &part);
                }
                continue;
            };
            let mut reducers: Reducers = [None, None];
            for (slot, role) in reducers.iter_mut().zip(&parities) {
                let place = u8::try_from(self.member(row, *role)).unwrap();
                *slot = Some(Reducer { place, coefficient: self.coefficient(*role, column) });
            }
            if change.written[column] {
                phase.takers.push(self.member(row, column));
                let data = change.new[column].clone();
                phase.commands.push(later(rng, move || {
                    computes(&member).partial_write(ticket, offset, slice(&data), modify, reducers)
                }));
            } else if parities.is_empty() {
                continue;
            } else {
                let contribute = move || computes(&member).contribute(ticket, offset, length, reducers);
                phase.commands.push(later(rng, contribute));
            }
            wait += 1;
        }
        for role in &parities {
            let Some(member) = members[self.member(row, *role)].clone() else { continue };
            phase.takers.push(self.member(row, *role));
            let supplied = supplied[*role].take();
            phase.commands.push(later(rng, move || {
                let supplied = supplied.map(|part| slice(&part));
                computes(&member).parity(ticket, offset, length, modify, wait, supplied)
            }));
        }
        phase
    }

    /// Has all members drop a write that wasn't committed.
    async fn give_up(&self, members: &Members, row: usize, ticket: Ticket) -> Ended {
        let mut ended = Ended::Fine;
        for role in (0..self.members()).filter(|role| self.is_there(row, *role)) {
            let Some(member) = members[self.member(row, role)].clone() else { continue };
            match computes(&member).resolve(ticket).await.result {
                Ok(outcome) if outcome == Outcome::NotApplied as usize => {}
                Ok(outcome) => {
                    self.complain(format!("what was never committed has the outcome {outcome}"));
                }
                Err(error) => ended = ended.or(self.failed("a Resolve", error)),
            }
        }
        ended
    }

    /// Whether all have committed.
    async fn commit(
        &self,
        members: &Members,
        takers: &[usize],
        ticket: Ticket,
        rng: &mut Rng,
    ) -> (bool, Ended) {
        let forced = rng.chance(1, 3);
        let commits: Vec<_> = takers
            .iter()
            .filter_map(|number| members[*number].clone())
            .map(|member| later(rng, move || computes(&member).commit(ticket, forced)))
            .collect();
        let (mut good, mut ended) = (true, Ended::Fine);
        for commit in commits {
            if let (Err(error), _) = commit.join().await {
                good = false;
                ended = ended.or(self.failed("a commit", error));
            }
        }
        (good, ended)
    }

    /// Reads a column as if its member were lost.
    async fn reconstruct(&self, members: &Members, row: usize, rng: &mut Rng) -> Ended {
        let range = self.range(rng);
        let offset = self.offset(row) + range.start as u64;
        let length = u32::try_from(range.len()).unwrap();
        let column = rng.index(self.data);
        let parity = self.data + rng.index(self.parities);
        // D_t = (sum of c_i D_i over the others, and the parity) / c_t.
        let by = self.coefficient(parity, column);
        let mut parts: Vec<(usize, u8)> = (0..self.data)
            .filter(|other| *other != column)
            .map(|other| (other, divide(self.coefficient(parity, other), by)))
            .collect();
        parts.push((parity, divide(1, by)));
        if parts.iter().any(|(role, _)| !self.is_there(row, *role)) || parts.len() < 2 {
            return Ended::Fine;
        }
        let (reducer, own) = parts.swap_remove(rng.index(parts.len()));
        let place = u8::try_from(self.member(row, reducer)).unwrap();
        let ticket = self.ticket();
        let mut others = Vec::new();
        for (role, coefficient) in &parts {
            let Some(member) = members[self.member(row, *role)].clone() else { continue };
            let reducers = [Some(Reducer { place, coefficient: *coefficient }), None];
            let expected = self.expected(row, *role)[range.clone()].to_vec();
            let reads = rng.chance(1, 2);
            let one = later(rng, move || {
                let computes = computes(&member);
                if reads {
                    let buffer = shard::buffer(length as usize);
                    computes.read_contribute(ticket, offset, buffer, reducers)
                } else {
                    computes.contribute(ticket, offset, length, reducers)
                }
            });
            others.push((one, reads.then_some(expected)));
        }
        let Some(member) = members[usize::from(place)].clone() else { return Ended::Fine };
        let wait = u16::try_from(parts.len()).unwrap();
        let reduces = Rc::clone(&member);
        let sum = later(rng, move || {
            computes(&reduces).reduce(ticket, offset, shard::buffer(length as usize), own, wait)
        });
        let mut ended = Ended::Fine;
        for (one, expected) in others {
            match one.join().await {
                (Ok(_), Some(buffer)) => {
                    if expected.is_some_and(|expected| expected[..] != buffer[..]) {
                        self.complain("ReadContribute gives wrong bytes".to_owned());
                    }
                }
                (Ok(_), None) => {}
                (Err(error), _) => ended = self.failed("a part of a reconstruction", error),
            }
        }
        match sum.join().await {
            (Ok(_), Some(buffer)) => {
                let wanted = &self.rows.borrow()[row].columns[column][range];
                if wanted != &buffer[..] {
                    self.complain(format!("row {row}: column {column} is reconstructed wrong"));
                }
                self.reduced.update(|count| count + 1);
            }
            (Ok(_), None) => self.complain("a Reduce kept its buffer".to_owned()),
            (Err(error), _) => {
                ended = self.failed("a reduction", error);
                let _ = computes(&member).resolve(ticket).await;
            }
        }
        self.finished(ticket);
        ended
    }
}

/// Checks the arithmetic of this file against the kernels.
#[test]
fn the_arithmetic_of_the_tests_is_that_of_the_kernels() {
    let columns = [[1_u8, 2, 250], [7, 0, 9]];
    let (mut p, mut q) = ([0; 3], [0; 3]);
    kernel().pq(&mut p, &mut q, &[Some(&columns[0]), Some(&columns[1])]);
    let mut sum = scaled(&columns[0], power_of_two(0));
    xor(&mut sum, &scaled(&columns[1], power_of_two(1)));
    assert_eq!(sum, q);
}
