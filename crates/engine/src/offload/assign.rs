//! Shares out the work of an offloaded write of a run. Pure.

use pinstripe_runtime::Reducer;

use super::coefficients::in_q;
use crate::{
    geometry::{MemberSlot, Set64, StripeMap},
    mutants::{Mutant, active},
    plan::{Method, Reconstruction, Run, Stripe},
};

/// The side that writes a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Assigned {
    /// The client: it needs no old bytes.
    Client,
    /// The client, with all that its plan reads: the servers can't.
    Plain,
    /// The servers.
    Servers(Assignment),
}

/// What each server does. Data columns, and the slots of the parities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// Parity is changed by old and new bytes; else it is made from all columns.
    pub modify: bool,
    /// Columns that get new bytes.
    pub writes: Set64,
    /// Columns that send what they have.
    pub contributes: Set64,
    /// Columns that are written although their members are missing: the client sends their parts.
    pub supplied: Set64,
    /// P and Q, as far as they are written.
    pub parities: [Option<MemberSlot>; 2],
}

impl Assignment {
    /// How many parts come from others to each parity.
    pub fn parts(&self) -> u16 {
        let parts = self.writes.len() + self.contributes.len();
        u16::try_from(parts).unwrap_or_else(|_| unreachable!("at most 64 members"))
    }

    /// Where a column's part goes.
    pub fn reducers(&self, map: StripeMap, column: usize) -> [Option<Reducer>; 2] {
        let to =
            |slot: Option<MemberSlot>, coefficient| slot.map(|slot| Reducer { place: slot.0, coefficient });
        let [p, q] = self.parities;
        let is_behind = p.zip(q).is_some_and(|(p, q)| q.0 == p.0 + 1);
        let (p, q) = if is_behind && active(Mutant::OffloadPartsCrossed) { (q, p) } else { (p, q) };
        let in_p = if active(Mutant::OffloadQForP) { in_q(map, column) } else { 1 };
        [to(p, in_p), to(q, in_q(map, column))]
    }

    /// The slots that keep something until the commit.
    pub fn keepers(&self, map: StripeMap) -> Set64 {
        let data: Set64 = self.writes.iter().map(|column| map.data_slot(column).index()).collect();
        self.parities.into_iter().flatten().fold(data, |slots, parity| slots.or(Set64::only(parity.index())))
    }

    /// All slots that take part.
    pub fn participants(&self, map: StripeMap) -> Set64 {
        let others = self.contributes.iter().map(|column| map.data_slot(column).index());
        self.keepers(map).or(others.collect())
    }
}

/// Decides which side writes a run, if the servers in the slots `attached` take part. The client's plan has
/// chosen the method of the run.
pub fn assign(facts: &Stripe, attached: Set64, run: &Run) -> Assigned {
    let map = facts.map;
    let is_in = |set: Set64, column: usize| set.contains(map.data_slot(column).index());
    let unreadable = facts.unreadable.or(facts.unwritable);
    let columns = Set64::below(map.columns());
    let lost: Set64 = columns.iter().filter(|&column| is_in(unreadable, column)).collect();
    let absent: Set64 = columns.iter().filter(|&column| is_in(facts.unwritable, column)).collect();
    let stays = columns.without(run.written);
    let parities = [Some(map.p_slot()), map.q_slot()]
        .map(|slot| slot.filter(|slot| !facts.unwritable.contains(slot.index())));
    let modify = match run.method {
        Method::Full | Method::DataOnly => return Assigned::Client,
        Method::Rmw => true,
        Method::Rcw(Reconstruction::None) => false,
        // Old bytes of a lost column are not needed where parity can be changed instead.
        Method::Rcw(_) => {
            let rebuilt = parities.iter().flatten().any(|slot| unreadable.contains(slot.index()));
            if rebuilt || !facts.in_sync || !lost.and(run.written).is_empty() {
                return Assigned::Plain;
            }
            true
        }
    };
    let supplied =
        if active(Mutant::OffloadSuppliedForgotten) { Set64::EMPTY } else { run.written.and(absent) };
    let assignment = Assignment {
        modify,
        writes: run.written.without(absent),
        contributes: if modify { Set64::EMPTY } else { stays },
        supplied,
        parities,
    };
    if assignment.participants(map).without(attached).is_empty() {
        Assigned::Servers(assignment)
    } else {
        Assigned::Plain
    }
}
