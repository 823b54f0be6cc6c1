//! An executor of plans over plain bytes that knows nothing but the plan, and a stripe to execute them on.

use super::*;

/// A stripe's bytes: `members[slot][block]`, and what a reader of the array would see.
#[derive(Clone)]
pub(super) struct Model {
    map: StripeMap,
    pub(super) members: Vec<[u8; BLOCKS]>,
    pub(super) data: Vec<[u8; BLOCKS]>,
}

pub(super) fn blocks(start: u32, end: u32) -> std::ops::Range<usize> {
    assert!(start < end && start.is_multiple_of(BLOCK) && end.is_multiple_of(BLOCK));
    (start / BLOCK) as usize..(end / BLOCK) as usize
}

fn sum_p(data: impl Iterator<Item = u8>) -> u8 {
    data.fold(0, |sum, byte| sum ^ byte)
}

fn sum_q(map: StripeMap, data: impl Iterator<Item = u8>) -> u8 {
    data.enumerate().fold(0, |sum, (column, byte)| sum ^ multiply(power(map.q_exponent(column)), byte))
}

/// The bytes of one block of one row as far as they are known.
struct Known<'a> {
    map: StripeMap,
    /// By column; the lost ones are ignored.
    data: &'a [Option<u8>],
    p: Option<u8>,
    q: Option<u8>,
}

impl Known<'_> {
    fn others(&self, lost: &[usize]) -> Vec<u8> {
        let value = |column| if lost.contains(&column) { 0 } else { self.data[column].expect("was read") };
        (0..self.data.len()).map(value).collect()
    }

    fn through_p(&self, column: usize) -> u8 {
        self.p.expect("P was read") ^ sum_p(self.others(&[column]).into_iter())
    }

    fn through_q(&self, column: usize) -> u8 {
        let syndrome = self.q.expect("Q was read") ^ sum_q(self.map, self.others(&[column]).into_iter());
        multiply(syndrome, inverse(power(self.map.q_exponent(column))))
    }

    fn both(&self, [a, b]: [usize; 2]) -> [u8; 2] {
        let p = self.p.expect("P was read") ^ sum_p(self.others(&[a, b]).into_iter());
        let q = self.q.expect("Q was read") ^ sum_q(self.map, self.others(&[a, b]).into_iter());
        let (ga, gb) = (power(self.map.q_exponent(a)), power(self.map.q_exponent(b)));
        // ga * A + gb * B = q and A + B = p.
        let value_a = multiply(q ^ multiply(gb, p), inverse(ga ^ gb));
        [value_a, value_a ^ p]
    }
}

impl Model {
    /// Random data with its parity, or with any parity where the stripe is not in sync; then lost columns are
    /// what the rest says, through P where P can be read.
    pub(super) fn new(stripe: &Stripe, random: &mut Random) -> Self {
        let map = stripe.map;
        let k = map.columns();
        let mut data = vec![[0; BLOCKS]; k];
        data.iter_mut().flatten().for_each(|byte| *byte = random.byte());
        let mut model = Self { map, members: vec![[0; BLOCKS]; map.members()], data };
        for column in 0..k {
            model.members[map.data_slot(column).index()] = model.data[column];
        }
        for block in 0..BLOCKS {
            model.set_parity(block);
        }
        if !stripe.in_sync {
            for slot in map.parity_slots() {
                model.members[slot.index()].iter_mut().for_each(|byte| *byte = random.byte());
            }
            model.believe_what_is_there(stripe);
        }
        // What can't be read is not what was there.
        for slot in stripe.unreadable {
            model.members[slot].iter_mut().for_each(|byte| *byte = random.byte());
        }
        model
    }

    fn set_parity(&mut self, block: usize) {
        let row = || self.data.iter().map(|column| column[block]);
        self.members[self.map.p_slot().index()][block] = sum_p(row());
        if let Some(q) = self.map.q_slot() {
            self.members[q.index()][block] = sum_q(self.map, row());
        }
    }

    fn believe_what_is_there(&mut self, stripe: &Stripe) {
        let lost: Vec<usize> = self.lost(stripe);
        let readable = |slot: MemberSlot| !stripe.unreadable.contains(slot.index());
        for block in 0..BLOCKS {
            let data: Vec<Option<u8>> = self.data.iter().map(|column| Some(column[block])).collect();
            let at = |slot: MemberSlot| readable(slot).then(|| self.members[slot.index()][block]);
            let (p, q) = (at(self.map.p_slot()), self.map.q_slot().and_then(at));
            let known = Known { map: self.map, data: &data, p, q };
            match lost[..] {
                [] => {}
                [a] if p.is_some() => self.data[a][block] = known.through_p(a),
                [a] => self.data[a][block] = known.through_q(a),
                [a, b] => [self.data[a][block], self.data[b][block]] = known.both([a, b]),
                _ => panic!("beyond redundancy"),
            }
        }
    }

    fn lost(&self, stripe: &Stripe) -> Vec<usize> {
        (0..self.data.len())
            .filter(|&column| stripe.unreadable.contains(self.map.data_slot(column).index()))
            .collect()
    }

    /// Executes a plan for writing `new` (by column and block) to a stripe. `held` was read before, and the
    /// cache has what is `cached` (see [`World`]). Nothing else of the old bytes is used.
    pub(super) fn execute(
        &mut self,
        plan: &Plan,
        stripe: &Stripe,
        new: &[[Option<u8>; BLOCKS]],
        (held, cached): (&[Transfer], u64),
    ) {
        let n = self.members.len();
        let mut old: Vec<[Option<u8>; BLOCKS]> = vec![[None; BLOCKS]; n];
        for read in held.iter().chain(plan.reads()) {
            for block in blocks(read.start, read.end) {
                let place = &mut old[read.slot.index()][block];
                assert!(place.is_none(), "read twice");
                *place = Some(self.members[read.slot.index()][block]);
            }
        }
        for (slot, bit) in [Some(self.map.p_slot()), self.map.q_slot()].into_iter().zip([0, 1]) {
            let Some(slot) = slot.map(MemberSlot::index) else { continue };
            let rows = (0..BLOCKS).map(|block| block / (BLOCKS / ROWS));
            for (block, row) in rows.enumerate().filter(|(_, row)| cached >> (2 * row + bit) & 1 == 1) {
                assert!(old[slot][block].is_none(), "row {row} read although cached");
                old[slot][block] = Some(self.members[slot][block]);
            }
        }
        let mut output: Vec<[Option<u8>; BLOCKS]> = vec![[None; BLOCKS]; n];
        for run in plan.runs() {
            for block in blocks(run.start, run.end) {
                self.compute(run, block, new, &old, &mut output);
            }
        }
        let writable = (0..n).filter(|slot| !stripe.unwritable.contains(*slot));
        for (slot, block) in writable.flat_map(|slot| (0..BLOCKS).map(move |block| (slot, block))) {
            if let Some(byte) = output[slot][block] {
                self.members[slot][block] = byte;
            }
        }
        for (column, blocks) in new.iter().enumerate() {
            for (block, byte) in blocks.iter().enumerate() {
                if let Some(byte) = byte {
                    self.data[column][block] = *byte;
                }
            }
        }
    }

    /// One row of one run: new bytes of every member that the run could write.
    fn compute(
        &self,
        run: &Run,
        block: usize,
        new: &[[Option<u8>; BLOCKS]],
        old: &[[Option<u8>; BLOCKS]],
        output: &mut [[Option<u8>; BLOCKS]],
    ) {
        let map = self.map;
        let k = map.columns();
        let p_slot = map.p_slot().index();
        let q_slot = map.q_slot().map(MemberSlot::index);
        let old_data: Vec<Option<u8>> =
            (0..k).map(|column| old[map.data_slot(column).index()][block]).collect();
        let (old_p, old_q) = (old[p_slot][block], q_slot.and_then(|slot| old[slot][block]));
        for column in run.written {
            output[map.data_slot(column).index()][block] = Some(new[column][block].expect("is in the image"));
        }
        let image = |column: usize| new[column][block].expect("is in the image");
        if run.method == Method::Rmw {
            let delta = |column: usize| {
                if run.written.contains(column) {
                    old_data[column].expect("was read") ^ image(column)
                } else {
                    0
                }
            };
            output[p_slot][block] = old_p.map(|p| p ^ sum_p((0..k).map(delta)));
            if let Some(slot) = q_slot {
                output[slot][block] = old_q.map(|q| q ^ sum_q(map, (0..k).map(delta)));
            }
            return;
        }
        if run.method == Method::DataOnly {
            return;
        }
        let mut row = old_data.clone();
        let known = Known { map, data: &old_data, p: old_p, q: old_q };
        match run.method {
            Method::Rcw(Reconstruction::One { column, from: Parity::P }) => {
                row[column] = Some(known.through_p(column));
            }
            Method::Rcw(Reconstruction::One { column, from: Parity::Q }) => {
                row[column] = Some(known.through_q(column));
            }
            Method::Rcw(Reconstruction::Two { columns }) => {
                assert!(columns[0] < columns[1]);
                let values = known.both(columns);
                (row[columns[0]], row[columns[1]]) = (Some(values[0]), Some(values[1]));
            }
            _ => {}
        }
        for column in run.written {
            row[column] = Some(image(column));
        }
        let row: Vec<u8> = row.into_iter().map(|byte| byte.expect("known by now")).collect();
        output[p_slot][block] = Some(sum_p(row.iter().copied()));
        if let Some(slot) = q_slot {
            output[slot][block] = Some(sum_q(map, row.into_iter()));
        }
    }

    /// What must be so after a write: data right, parity right in written rows, all else as it was.
    pub(super) fn check(&self, before: &Self, stripe: &Stripe, new: &[[Option<u8>; BLOCKS]]) {
        let map = self.map;
        for block in 0..BLOCKS {
            let is_written = new.iter().any(|column| column[block].is_some());
            let mut expected = self.clone();
            expected.set_parity(block);
            for slot in 0..self.members.len() {
                let now = self.members[slot][block];
                let was = before.members[slot][block];
                let (column, changes) = match map.role(MemberSlot(u8::try_from(slot).unwrap())) {
                    Role::Data(column) => (Some(column), new[column][block].is_some()),
                    Role::P | Role::Q => (None, is_written),
                };
                if stripe.unwritable.contains(slot) || !changes {
                    assert_eq!(now, was, "slot {slot} changed in block {block}, which was not written");
                } else if let Some(column) = column {
                    assert_eq!(now, self.data[column][block], "data of column {column} in block {block}");
                } else {
                    assert_eq!(now, expected.members[slot][block], "parity of slot {slot} in block {block}");
                }
            }
        }
    }
}
