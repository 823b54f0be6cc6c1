//! Operations under way: their identifiers, which is the oldest, and how many each member has.
//!
//! One account for all shards. A batch gets all its operations at once or none, so that no batch waits while
//! it holds some. An operation is over when no server that counts will do anything more for it; then its
//! place at the members is free again (C26).

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
};

use pinstripe_runtime::{OperationId, Signal, Ticket, offload::NUMBER_MAX, shard};

use crate::{members::MemberId, units::to_usize};

/// See the module.
pub(crate) struct Operations {
    state: Mutex<OperationsState>,
    freed: Signal,
}

struct OperationsState {
    /// The oldest that isn't over, or the next one.
    oldest: u64,
    /// From the oldest on: whether it is over.
    over: VecDeque<bool>,
    /// By [`MemberId`]: operations that name it and aren't over.
    outstanding: Vec<u32>,
}

/// What a batch asks of a member.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    pub(crate) member: MemberId,
    /// Operations that name it.
    pub(crate) operations: u32,
    /// How many it may have in all.
    pub(crate) limit: u32,
}

/// Operations that may be sent. They are over when this is dropped.
pub(crate) struct Reservation<'d> {
    operations: &'d Operations,
    first: u64,
    count: u64,
    oldest: u64,
    demands: Vec<Demand>,
}

impl Default for Operations {
    fn default() -> Self {
        let state = OperationsState { oldest: 1, over: VecDeque::new(), outstanding: Vec::new() };
        Self { state: Mutex::new(state), freed: Signal::default() }
    }
}

impl Operations {
    fn locked(&self) -> MutexGuard<'_, OperationsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So many operations, as soon as every member has room for what is asked of it. `None` if that isn't so
    /// in `wait_ns`, or never can be.
    pub(crate) async fn reserve(
        &self,
        operations: usize,
        demands: Vec<Demand>,
        wait_ns: u64,
    ) -> Option<Reservation<'_>> {
        if demands.iter().any(|demand| demand.operations > demand.limit) {
            return None;
        }
        let mut demands = Some(demands);
        if let Some(at_once) = self.try_reserve(operations, &mut demands) {
            return Some(at_once);
        }
        let room = self.freed.wait_for(|| self.try_reserve(operations, &mut demands));
        shard::timeout(wait_ns, room).await
    }

    fn try_reserve(&self, operations: usize, demands: &mut Option<Vec<Demand>>) -> Option<Reservation<'_>> {
        let mut state = self.locked();
        let asked = demands.as_ref()?;
        let most = asked.iter().map(|demand| demand.member.0 + 1).max().unwrap_or(0);
        if state.outstanding.len() < most {
            state.outstanding.resize(most, 0);
        }
        let fits = |demand: &Demand| {
            let with = state.outstanding[demand.member.0].checked_add(demand.operations);
            with.is_some_and(|with| with <= demand.limit)
        };
        if !asked.iter().all(fits) {
            return None;
        }
        // Beyond the highest number the client does the work itself: no server would take it.
        let first = state.oldest.checked_add(state.over.len() as u64)?;
        first.checked_add(operations as u64).filter(|after| *after <= NUMBER_MAX)?;
        let demands = demands.take()?;
        for demand in &demands {
            state.outstanding[demand.member.0] += demand.operations;
        }
        state.over.extend(std::iter::repeat_n(false, operations));
        Some(Reservation { operations: self, first, count: operations as u64, oldest: state.oldest, demands })
    }

    /// Operations that name a member and aren't over.
    pub(crate) fn outstanding(&self, member: MemberId) -> u32 {
        self.locked().outstanding.get(member.0).copied().unwrap_or(0)
    }
}

impl Reservation<'_> {
    /// What the commands of operation `index` say.
    pub(crate) fn ticket(&self, index: usize) -> Ticket {
        debug_assert!((index as u64) < self.count);
        Ticket {
            operation: OperationId(self.first + index as u64),
            // It may be an older one than by now, which tells the servers less and nothing wrong.
            oldest: OperationId(self.oldest),
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        let mut state = self.operations.locked();
        for demand in &self.demands {
            state.outstanding[demand.member.0] -= demand.operations;
        }
        for id in self.first..self.first + self.count {
            let index = to_usize(id - state.oldest);
            if let Some(over) = state.over.get_mut(index) {
                *over = true;
            }
        }
        while state.over.front() == Some(&true) {
            state.over.pop_front();
            state.oldest += 1;
        }
        drop(state);
        self.operations.freed.notify();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use pinstripe_runtime::{Shard, ShardConfig};

    use super::*;

    fn demand(member: usize, operations: u32) -> Demand {
        Demand { member: MemberId(member), operations, limit: 3 }
    }

    fn at_once(operations: &Operations, count: usize, demands: Vec<Demand>) -> Option<Reservation<'_>> {
        operations.try_reserve(count, &mut Some(demands))
    }

    #[test]
    fn identifiers_ascend_and_the_oldest_is_the_first_that_is_not_over() {
        let operations = Operations::default();
        let first = at_once(&operations, 1, vec![demand(0, 1)]).unwrap();
        let second = at_once(&operations, 2, vec![demand(1, 2)]).unwrap();
        assert_eq!(second.ticket(1), Ticket { operation: OperationId(3), oldest: OperationId(1) });
        drop(second);
        let third = at_once(&operations, 1, vec![demand(0, 1)]).unwrap();
        assert_eq!(third.ticket(0), Ticket { operation: OperationId(4), oldest: OperationId(1) });
        drop(first);
        let fourth = at_once(&operations, 1, vec![]).unwrap();
        assert_eq!(fourth.ticket(0), Ticket { operation: OperationId(5), oldest: OperationId(4) });
    }

    #[test]
    fn the_highest_number_is_given_out_and_none_beyond_it() {
        let operations = Operations::default();
        operations.locked().oldest = NUMBER_MAX - 1;
        assert!(at_once(&operations, 2, vec![]).is_none());
        let last = at_once(&operations, 1, vec![]).unwrap();
        assert_eq!(last.ticket(0).operation, OperationId(NUMBER_MAX - 1));
        assert!(at_once(&operations, 1, vec![]).is_none());
    }

    #[test]
    fn a_member_never_has_more_than_its_limit_and_a_batch_that_does_not_fit_gets_nothing() {
        let operations = Operations::default();
        let held = at_once(&operations, 2, vec![demand(0, 2), demand(2, 1)]).unwrap();
        assert!(at_once(&operations, 2, vec![demand(1, 1), demand(0, 2)]).is_none());
        assert_eq!((0..3).map(|m| operations.outstanding(MemberId(m))).collect::<Vec<_>>(), [2, 0, 1]);
        let other = at_once(&operations, 1, vec![demand(0, 1)]).unwrap();
        drop(held);
        assert!(at_once(&operations, 2, vec![demand(1, 1), demand(0, 2)]).is_some());
        drop(other);
        assert_eq!(operations.outstanding(MemberId(0)), 0);
    }

    #[test]
    fn a_waiter_gets_its_place_when_another_is_over_and_gives_up_in_time() {
        let clock = std::rc::Rc::new(std::cell::Cell::new(0));
        let shard = Shard::new(&ShardConfig { index: 0, arena_bytes: 0, clock: Some(clock.clone()) });
        let _entered = shard.enter();
        let operations = Operations::default();
        let held = at_once(&operations, 1, vec![demand(0, 3)]).unwrap();
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let mut never = pin!(operations.reserve(1, vec![demand(0, 4)], 1000));
        assert!(matches!(never.as_mut().poll(&mut context), std::task::Poll::Ready(None)));
        let mut waits = pin!(operations.reserve(1, vec![demand(0, 1)], 1000));
        assert!(waits.as_mut().poll(&mut context).is_pending());
        let mut late = pin!(operations.reserve(1, vec![demand(0, 3)], 1000));
        assert!(late.as_mut().poll(&mut context).is_pending());
        drop(held);
        let std::task::Poll::Ready(Some(reserved)) = waits.as_mut().poll(&mut context) else {
            panic!("there is room")
        };
        clock.set(1001);
        shard.fire_timers();
        assert!(matches!(late.as_mut().poll(&mut context), std::task::Poll::Ready(None)));
        drop(reserved);
    }
}
