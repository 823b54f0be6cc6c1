//! What the servers multiply their bytes by. Pure.

use pinstripe_parity::{divide, multiply, power_of_two};

use crate::{
    geometry::{MEMBERS_MAX, MemberSlot, Role, Set64, StripeMap},
    mutants::{Mutant, active},
    stripe::decode::exponent,
};

/// The coefficient that a data column has in Q.
pub fn in_q(map: StripeMap, column: usize) -> u8 {
    power_of_two(exponent(map, column))
}

/// What the member `wanted` holds in a stripe as a sum of what others hold: the members, ascending, each with
/// its coefficient. Of those only `readable` ones are used; `None` if they don't suffice.
///
/// Where P can be read and one column is lost, it is recovered through P, as
/// [`decode`](crate::stripe::decode) does.
pub fn combination(map: StripeMap, wanted: MemberSlot, readable: Set64) -> Option<Vec<(MemberSlot, u8)>> {
    let readable = readable.without(Set64::only(wanted.index()));
    let mut sum = Sum { map, readable, coefficients: [0; MEMBERS_MAX] };
    match map.role(wanted) {
        Role::Data(column) => sum.add(column, 1)?,
        Role::P => (0..map.columns()).try_for_each(|column| sum.add(column, 1))?,
        Role::Q => (0..map.columns()).try_for_each(|column| sum.add(column, in_q(map, column)))?,
    }
    let wrong = active(Mutant::OffloadWrongCoefficient);
    let members = (0u8..).zip(sum.coefficients).filter(|(_, coefficient)| *coefficient != 0);
    Some(members.map(|(slot, c)| (MemberSlot(slot), if wrong { multiply(c, 2) } else { c })).collect())
}

struct Sum {
    map: StripeMap,
    readable: Set64,
    /// By slot.
    coefficients: [u8; MEMBERS_MAX],
}

impl Sum {
    fn add_slot(&mut self, slot: MemberSlot, coefficient: u8) {
        self.coefficients[slot.index()] ^= coefficient;
    }

    fn is_lost(&self, column: usize) -> bool {
        !self.readable.contains(self.map.data_slot(column).index())
    }

    /// Adds a data column: as its member has it, or if it is lost, as a sum of the others. `None` if too much
    /// is lost.
    fn add(&mut self, column: usize, coefficient: u8) -> Option<()> {
        if !self.is_lost(column) {
            self.add_slot(self.map.data_slot(column), coefficient);
            return Some(());
        }
        let map = self.map;
        let p = Some(map.p_slot()).filter(|p| self.readable.contains(p.index()));
        let q = map.q_slot().filter(|q| self.readable.contains(q.index()));
        let mut others = (0..map.columns()).filter(|&other| other != column && self.is_lost(other));
        // The lost column is a sum of P, Q and every other column i, each with a coefficient of p, q and p +
        // q * 2^i.
        let (in_p, with_q) = match (others.next(), others.next()) {
            (None, _) if p.is_some() => (1, 0),
            (None, _) => (0, divide(1, in_q(map, column))),
            (Some(other), None) if p.is_some() => {
                let (mine, theirs) = (in_q(map, column), in_q(map, other));
                (divide(theirs, mine ^ theirs), divide(1, mine ^ theirs))
            }
            _ => return None,
        };
        if in_p != 0 {
            self.add_slot(p?, multiply(coefficient, in_p));
        }
        if with_q != 0 {
            self.add_slot(q?, multiply(coefficient, with_q));
        }
        for known in (0..map.columns()).filter(|&known| !self.is_lost(known)).collect::<Set64>() {
            let factor = in_p ^ multiply(with_q, in_q(map, known));
            self.add_slot(map.data_slot(known), multiply(coefficient, factor));
        }
        Some(())
    }
}

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "columns, slots and small numbers")]
mod tests {
    use super::*;
    use crate::{
        geometry::{ParityGeometry, ParityLayout, StripeId},
        stripe::decode::{Sources, encode},
    };

    fn geometries() -> Vec<ParityGeometry> {
        let all: Vec<_> = ParityLayout::all()
            .flat_map(|layout| {
                (3..=6)
                    .filter_map(move |members| ParityGeometry::new(layout, members, 4096, 1 << 20, 512).ok())
            })
            .collect();
        assert!(all.len() > 50, "{} geometries", all.len());
        all
    }

    /// By slot: one byte of each member in a stripe.
    fn stripe(map: StripeMap, seed: u8) -> Vec<u8> {
        let data: Vec<u8> =
            (0..map.columns()).map(|c| (c as u8).wrapping_mul(83).wrapping_add(seed) ^ 0x5a).collect();
        let columns: Vec<&[u8]> = data.chunks(1).collect();
        let (mut p, mut q) = ([0], [0]);
        let has_q = map.q_slot().is_some();
        encode(pinstripe_parity::kernel(), map, &columns, Some(&mut p), has_q.then_some(&mut q[..]));
        (0..map.members())
            .map(|slot| match map.role(MemberSlot(slot as u8)) {
                Role::Data(column) => data[column],
                Role::P => p[0],
                Role::Q => q[0],
            })
            .collect()
    }

    #[test]
    fn every_member_is_the_sum_that_is_said_whichever_one_or_two_are_lost() {
        for geometry in geometries() {
            for number in 0..geometry.members() as u64 {
                let map = geometry.slots(StripeId(number));
                let bytes = stripe(map, number as u8 * 7);
                let all = Set64::below(map.members());
                for first in 0..map.members() {
                    for second in 0..map.members() {
                        let lost = Set64::only(first).or(Set64::only(second));
                        let wanted = MemberSlot(first as u8);
                        let sum = combination(map, wanted, all.without(lost));
                        if lost.len() > geometry.redundancy() {
                            assert_eq!(sum, None);
                            continue;
                        }
                        let sum = sum.unwrap();
                        assert!(sum.iter().all(|(slot, _)| !lost.contains(slot.index())));
                        let value = sum.iter().fold(0, |v, (slot, c)| v ^ multiply(*c, bytes[slot.index()]));
                        assert_eq!(value, bytes[first], "{geometry:?} stripe {number} lost {lost:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn lost_columns_are_what_the_host_would_recover() {
        for geometry in geometries() {
            for number in 0..geometry.members() as u64 {
                let map = geometry.slots(StripeId(number));
                // Not a codeword: every way to recover gives another byte.
                let bytes: Vec<u8> = (0..map.members()).map(|slot| (slot * 41 + 3) as u8).collect();
                let at = |slot: MemberSlot| &bytes[slot.index()..=slot.index()];
                for lost in 1..1u64 << map.members() {
                    let lost = Set64(lost);
                    if lost.len() > geometry.redundancy() {
                        continue;
                    }
                    let data: Vec<Option<&[u8]>> = (0..map.columns())
                        .map(|c| {
                            Some(at(map.data_slot(c))).filter(|_| !lost.contains(map.data_slot(c).index()))
                        })
                        .collect();
                    let columns: Vec<usize> = (0..map.columns()).filter(|&c| data[c].is_none()).collect();
                    if columns.is_empty() {
                        continue;
                    }
                    let here = |slot: &MemberSlot| !lost.contains(slot.index());
                    let p = Some(map.p_slot()).filter(here).map(at);
                    let q = map.q_slot().filter(here).map(at);
                    let (mut a, mut b) = ([0], [0]);
                    let mut out = [&mut a[..], &mut b[..]];
                    let sources = Sources { data: &data, p, q };
                    sources.recover_data(pinstripe_parity::kernel(), map, &mut out[..columns.len()]).unwrap();
                    for (column, by_host) in columns.iter().zip([a[0], b[0]]) {
                        let readable = Set64::below(map.members()).without(lost);
                        let sum = combination(map, map.data_slot(*column), readable).unwrap();
                        let value = sum.iter().fold(0, |v, (slot, c)| v ^ multiply(*c, bytes[slot.index()]));
                        assert_eq!(value, by_host);
                    }
                }
            }
        }
    }
}
