//! The commonest write by far: one range of one column, every member there, nothing held yet. It has the
//! answer of the general way (a test compares them) for a fifth of its instructions.

use super::{
    Facts, Method, Parity, Plan, Reconstruction, Run, Stripe, Transfer, WritePolicy, Written, weigh::Weight,
};
use crate::geometry::{MemberSlot, Set64, StripeMap};

/// Whether [`plan_single`] may plan this, the only range of an image. A range that isn't a part of the stripe
/// is for the general way, which says so.
pub(super) fn is_single(stripe: &Stripe, held: &[Transfer], range: &Written) -> bool {
    held.is_empty()
        && stripe.in_sync
        && stripe.unreadable.or(stripe.unwritable).is_empty()
        && range.column < stripe.map.columns()
        && range.start < range.end
        && range.end <= stripe.chunk_bytes
        // One column alone would be a full stripe.
        && stripe.map.columns() > 1
}

/// Fills `plan`, which is empty, for a write for which [`is_single`] holds.
pub(super) fn plan_single(
    plan: &mut Plan,
    stripe: &Stripe,
    policy: WritePolicy,
    range: Written,
    facts: &mut impl Facts,
) {
    let (map, length) = (stripe.map, range.end - range.start);
    let slots = [Some(map.p_slot()), map.q_slot()];
    for (parity, old) in [Parity::P, Parity::Q].into_iter().zip(&mut plan.old_parity) {
        old.clear();
        if slots[parity as usize].is_some() {
            old.add(range.start, range.end, |row| facts.is_cached(parity, row));
        }
    }
    let missing = [plan.old_parity[0].missing_bytes(), plan.old_parity[1].missing_bytes()];
    let modifies = prefers_modify(map, policy, range, missing, facts);
    let method = if modifies { Method::Rmw } else { Method::Rcw(Reconstruction::None) };
    let written = Set64::only(range.column);
    plan.runs.push(Run { start: range.start, end: range.end, written, method });
    let whole = |slot: MemberSlot| Transfer { slot, start: range.start, end: range.end };
    let totals = &mut plan.totals;
    if modifies {
        plan.reads.list.push(whole(map.data_slot(range.column)));
        for (parity, old) in [Parity::P, Parity::Q].into_iter().zip(&plan.old_parity) {
            let Some(slot) = slots[parity as usize] else { continue };
            for &(start, end) in &old.missing {
                plan.reads.list.push(Transfer { slot, start, end });
            }
            totals.cached_bytes += old.cached_bytes;
        }
        totals.rmw_runs = 1;
        totals.read_bytes = u64::from(length) + missing[0] + missing[1];
    } else {
        let others = (0..map.columns()).filter(|&column| column != range.column);
        plan.reads.list.extend(others.map(|column| whole(map.data_slot(column))));
        totals.rcw_runs = 1;
        totals.read_bytes = u64::from(length) * (map.columns() as u64 - 1);
        totals.reconstruct_read_bytes = totals.read_bytes;
    }
}

/// Whether read-modify-write of one column is better than reconstruct-write. `missing` are the bytes of old P
/// and Q to be read.
fn prefers_modify(
    map: StripeMap,
    policy: WritePolicy,
    range: Written,
    missing: [u64; 2],
    facts: &impl Facts,
) -> bool {
    if policy == WritePolicy::AlwaysRmw {
        return true;
    }
    let Written { column, start, end } = range;
    let (length, members) = (u64::from(end - start), map.members());
    let parities = [Some(map.p_slot()), map.q_slot()].into_iter().zip(missing);
    let parities = parities.filter_map(|(slot, missing)| Some((slot?, start, missing)));
    let data = std::iter::once((map.data_slot(column), start, length));
    // The old and the new data, and every parity.
    let sources = length * (2 + members as u64 - map.columns() as u64);
    let modify = Weight::of(policy, members, data.chain(parities), sources, facts);
    let others = (0..map.columns()).filter(|&other| other != column);
    let others = others.map(|other| (map.data_slot(other), start, length));
    let reconstruct = Weight::of(policy, members, others, length * map.columns() as u64, facts);
    modify.beats(&reconstruct, policy, length)
}
