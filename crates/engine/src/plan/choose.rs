//! Which method a run gets: the legal candidates, what each has to read, and what that is worth to the
//! policy.

use super::{
    Facts, Lean, Method, Parity, PlanError, Reconstruction, Run, Stripe, Transfer, WritePolicy, weigh::Weight,
};
use crate::{
    geometry::{MemberSlot, Role, Set64, StripeMap},
    mutants::{Mutant, active},
    stripe::parity_cache::PAGE_BYTES,
};

/// What all runs of one plan share.
pub(super) struct Chooser<'a> {
    pub(super) map: StripeMap,
    pub(super) held: &'a [Transfer],
    policy: WritePolicy,
    in_sync: bool,
    /// Every data column.
    all: Set64,
    /// Data columns that can't be read.
    lost: Set64,
    p: ParityState,
    q: ParityState,
}

/// What can be done with the old and the new bytes of a parity.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ParityState {
    /// There is none, or its member is missing.
    Absent,
    /// Its member is being rebuilt: only the new bytes count.
    WriteOnly,
    Ready,
}

/// Old parity bytes of one run that are not held.
#[derive(Clone, Debug, Default)]
pub(super) struct OldParity {
    /// To be read.
    pub(super) missing: Vec<(u32, u32)>,
    /// Bytes that the cache has.
    pub(super) cached_bytes: u64,
}

impl OldParity {
    /// Makes room for so many rows.
    pub(super) fn reserve(&mut self, rows: usize) {
        self.missing.reserve(rows);
    }

    pub(super) fn clear(&mut self) {
        self.missing.clear();
        self.cached_bytes = 0;
    }

    /// Adds the rows of `start..end`, sorted by whether the cache has them.
    pub(super) fn add(&mut self, start: u32, end: u32, mut is_cached: impl FnMut(u32) -> bool) {
        let mut at = start;
        while at < end {
            let row = at / PAGE_BYTES;
            let stop = end.min((row + 1) * PAGE_BYTES);
            if is_cached(row) {
                self.cached_bytes += u64::from(stop - at);
            } else {
                match self.missing.last_mut() {
                    Some(last) if last.1 == at => last.1 = stop,
                    _ => self.missing.push((at, stop)),
                }
            }
            at = stop;
        }
    }

    pub(super) fn missing_bytes(&self) -> u64 {
        self.missing.iter().map(|(start, end)| u64::from(end - start)).sum()
    }
}

/// A correct way to do a run, with the old bytes that it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Candidate {
    pub(super) method: Method,
    /// Data columns.
    pub(super) columns: Set64,
    pub(super) p: bool,
    pub(super) q: bool,
}

impl<'a> Chooser<'a> {
    pub(super) fn new(stripe: &Stripe, policy: WritePolicy, held: &'a [Transfer]) -> Result<Self, PlanError> {
        let map = stripe.map;
        let redundancy = map.members() - map.columns();
        if stripe.unwritable.len() > redundancy {
            return Err(PlanError::BeyondRedundancy { missing: stripe.unwritable.len(), redundancy });
        }
        let unreadable = stripe.unreadable.or(stripe.unwritable);
        let state = |slot: MemberSlot| {
            if stripe.unwritable.contains(slot.index()) {
                ParityState::Absent
            } else if unreadable.contains(slot.index()) && !active(Mutant::RebuildingParityTrusted) {
                ParityState::WriteOnly
            } else {
                ParityState::Ready
            }
        };
        let mut lost = Set64::EMPTY;
        for slot in unreadable.and(Set64::below(map.members())) {
            if let Role::Data(column) = map.role(MemberSlot(slot.to_le_bytes()[0])) {
                lost.insert(column);
            }
        }
        Ok(Self {
            map,
            held,
            policy,
            in_sync: stripe.in_sync,
            all: Set64::below(map.columns()),
            lost,
            p: state(map.p_slot()),
            q: map.q_slot().map_or(ParityState::Absent, state),
        })
    }

    /// The member of a parity, if the level has it.
    pub(super) fn parity_slot(&self, parity: Parity) -> Option<MemberSlot> {
        match parity {
            Parity::P => Some(self.map.p_slot()),
            Parity::Q => self.map.q_slot(),
        }
    }

    /// The best method for a run, or what the plan leans to. Leaves in `old` what there is of its old parity.
    pub(super) fn choose(
        &self,
        run: &Run,
        lean: Lean,
        old: &mut [OldParity; 2],
        facts: &mut impl Facts,
    ) -> Result<Candidate, PlanError> {
        let nothing = |method| Candidate { method, columns: Set64::EMPTY, p: false, q: false };
        if self.p == ParityState::Absent && self.q == ParityState::Absent {
            return Ok(nothing(Method::DataOnly));
        }
        if run.written == self.all {
            return Ok(nothing(Method::Full));
        }
        let reconstruct = self.reconstruct_writes(run);
        let modify = self.read_modify_write(run);
        for (parity, state) in [(Parity::P, self.p), (Parity::Q, self.q)] {
            // Asking the cache takes a lock: not for what no candidate would use.
            let mut candidates = reconstruct.iter().flatten().chain(&modify);
            let is_used = candidates.any(|each| if parity == Parity::P { each.p } else { each.q });
            if is_used && state == ParityState::Ready {
                self.find_old_parity(run, parity, &mut old[parity as usize], facts);
            }
        }
        let modify = modify.filter(|_| lean != Lean::Reconstruct || reconstruct == [None, None]);
        let reconstruct = if lean == Lean::Modify && modify.is_some() { [None, None] } else { reconstruct };
        self.decide(run, reconstruct, modify, old, facts)
            .ok_or(PlanError::Unreadable { start: run.start, end: run.end })
    }

    /// What the policy says of the candidates; `None` if there are none.
    fn decide(
        &self,
        run: &Run,
        reconstruct: [Option<Candidate>; 2],
        modify: Option<Candidate>,
        old: &[OldParity; 2],
        facts: &impl Facts,
    ) -> Option<Candidate> {
        if self.policy == WritePolicy::AlwaysRmw && modify.is_some() {
            return modify;
        }
        let weigh = |candidate: Candidate| (self.weight(run, &candidate, old, facts), candidate);
        // The first of equals: through P.
        let lightest = reconstruct.into_iter().flatten().map(weigh).min_by(|(a, _), (b, _)| a.compare(b));
        let (Some((rcw, reconstruct)), Some((rmw, modify))) = (lightest, modify.map(weigh)) else {
            return modify.or(lightest.map(|(_, candidate)| candidate));
        };
        Some(if rmw.beats(&rcw, self.policy, run.length().into()) { modify } else { reconstruct })
    }

    /// Needs old data and old parity of all that changes, and that they belong together.
    fn read_modify_write(&self, run: &Run) -> Option<Candidate> {
        let rebuilding = self.p == ParityState::WriteOnly || self.q == ParityState::WriteOnly;
        if !self.in_sync || rebuilding || !self.lost.and(run.written).is_empty() {
            return None;
        }
        let (p, q) = (self.p == ParityState::Ready, self.q == ParityState::Ready);
        Some(Candidate { method: Method::Rmw, columns: run.written, p, q })
    }

    /// Needs the data that stays; where that is lost, everything it can be recovered from. If there are two
    /// ways, through P comes first.
    fn reconstruct_writes(&self, run: &Run) -> [Option<Candidate>; 2] {
        let stays = self.all.without(run.written);
        let survives = self.all.without(self.lost);
        if self.lost.and(stays).is_empty() {
            let method = Method::Rcw(Reconstruction::None);
            return [Some(Candidate { method, columns: stays, p: false, q: false }), None];
        }
        let (p, q) = (self.p == ParityState::Ready, self.q == ParityState::Ready);
        let mut lost = self.lost.iter();
        match (lost.next(), lost.next(), lost.next()) {
            (Some(column), None, _) => {
                let through = |from: Parity| Candidate {
                    method: Method::Rcw(Reconstruction::One { column, from }),
                    columns: survives,
                    p: from == Parity::P,
                    q: from == Parity::Q,
                };
                // Q instead of P only where both say the same (see the module).
                let q = q && (self.in_sync || !p);
                [p.then(|| through(Parity::P)), q.then(|| through(Parity::Q))]
            }
            (Some(a), Some(b), None) if p && q => {
                let method = Method::Rcw(Reconstruction::Two { columns: [a, b] });
                [Some(Candidate { method, columns: survives, p, q }), None]
            }
            _ => [None, None],
        }
    }

    /// Which old bytes of a parity are neither held nor cached, and which are cached.
    fn find_old_parity(&self, run: &Run, parity: Parity, old: &mut OldParity, facts: &mut impl Facts) {
        old.clear();
        let Some(slot) = self.parity_slot(parity) else { return };
        uncovered(self.held, slot, run.start, run.end, |start, end| {
            // C10: cached parity is no better than the members' where they are not in sync.
            if !self.in_sync {
                old.missing.push((start, end));
                return;
            }
            old.add(start, end, |row| facts.is_cached(parity, row));
        });
    }

    fn weight(&self, run: &Run, candidate: &Candidate, old: &[OldParity; 2], facts: &impl Facts) -> Weight {
        let data = candidate.columns.into_iter().map(|column| {
            let slot = self.map.data_slot(column);
            (slot, run.start, self.bytes_to_read(slot, run))
        });
        let parities = [(Parity::P, candidate.p), (Parity::Q, candidate.q)].into_iter();
        let parities = parities.filter_map(|(parity, needed)| {
            let slot = self.parity_slot(parity).filter(|_| needed)?;
            Some((slot, run.start, old[parity as usize].missing_bytes()))
        });
        let sources = self.kernel_sources(run, candidate) * u64::from(run.length());
        Weight::of(self.policy, self.map.members(), data.chain(parities), sources, facts)
    }

    /// What of a data column is not held.
    fn bytes_to_read(&self, slot: MemberSlot, run: &Run) -> u64 {
        if self.held.is_empty() {
            return run.length().into();
        }
        let mut bytes = 0;
        uncovered(self.held, slot, run.start, run.end, |start, end| bytes += u64::from(end - start));
        bytes
    }

    /// How many ranges of the run's length the kernels read.
    pub(super) fn kernel_sources(&self, run: &Run, candidate: &Candidate) -> u64 {
        let old = candidate.columns.len() + usize::from(candidate.p) + usize::from(candidate.q);
        let sources = match candidate.method {
            Method::Rmw => old + run.written.len(),
            // What is recovered, or else what was read, goes into the parity with what is written: all
            // columns.
            Method::Rcw(Reconstruction::None) => self.all.len(),
            Method::Rcw(_) => old + self.all.len(),
            Method::Full | Method::DataOnly => 0,
        };
        sources as u64
    }
}

/// Calls `each` for the parts of `start..end` of a slot that are not held, ascending.
pub(super) fn uncovered(
    held: &[Transfer],
    slot: MemberSlot,
    start: u32,
    end: u32,
    mut each: impl FnMut(u32, u32),
) {
    let mut at = start;
    while at < end {
        let of_slot = || held.iter().filter(|range| range.slot == slot && range.end > at);
        if let Some(range) = of_slot().find(|range| range.start <= at) {
            at = range.end;
            continue;
        }
        let stop = of_slot().map(|range| range.start).min().map_or(end, |next| next.min(end));
        each(at, stop);
        at = stop;
    }
}
