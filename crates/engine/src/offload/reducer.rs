//! Which server sums up lost bytes.
//!
//! The reducer receives a part from each of the others, which send one part each, and sends the sum to the
//! client. So the choice moves what servers *receive*.
//!
//! The reducer is the server that will have received its parts first: the one with the fewest bytes under way
//! to it, by the rate of its link. Bytes under way are exact, and a link that is slower than was thought
//! keeps more of them, so it is chosen less. Rates are estimates of the servers, and they vary: on equal
//! links by half within a second. So a rate counts only where it is far below the best one. Servers that are
//! equal take turns.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::{
    geometry::{MEMBERS_MAX, Set64},
    options::ReducerChoice,
};

/// A link counts as slower if it has less than the best one's rate by this.
const SLOWER: u64 = 2;
/// The slowest link counts as the best one's rate by this. A server that never had a turn would not show that
/// its link has become faster.
const SLOWEST: u64 = 16;

/// The reducers of all shards.
#[derive(Default)]
pub(crate) struct Reducers(Mutex<ReducersState>);

struct ReducersState {
    /// By slot: bytes per second that the member's link is free to receive, where that is known.
    free: [Option<u64>; MEMBERS_MAX],
    /// By slot: bytes that the member is to receive for sums that aren't over.
    under_way: [u64; MEMBERS_MAX],
    /// By slot: the member's last turn.
    last: [u64; MEMBERS_MAX],
    /// Turns so far.
    turns: u64,
}

/// A sum that a member makes. It is over when this is dropped.
pub(crate) struct Turn<'r> {
    reducers: &'r Reducers,
    pub(crate) slot: usize,
    bytes: u64,
}

impl Default for ReducersState {
    fn default() -> Self {
        Self { free: [None; MEMBERS_MAX], under_way: [0; MEMBERS_MAX], last: [0; MEMBERS_MAX], turns: 0 }
    }
}

impl Reducers {
    fn locked(&self) -> MutexGuard<'_, ReducersState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a member's link is free to receive, in bytes per second; `None` if unknown.
    pub(crate) fn set_free(&self, slot: usize, free: Option<u64>) {
        self.locked().free[slot] = free;
    }

    /// What is known of that.
    pub(crate) fn free(&self, slot: usize) -> Option<u64> {
        self.locked().free[slot]
    }

    /// Turns so far.
    pub(crate) fn turns(&self) -> u64 {
        self.locked().turns
    }

    /// One of `members` for a sum for which it receives `bytes`. `None` if there are none.
    pub(crate) fn choose(&self, choice: ReducerChoice, members: Set64, bytes: u64) -> Option<Turn<'_>> {
        let mut state = self.locked();
        let slot = state.first_done(choice, members, bytes)?;
        state.turns += 1;
        state.last[slot] = state.turns;
        state.under_way[slot] += bytes;
        Some(Turn { reducers: self, slot, bytes })
    }
}

impl ReducersState {
    fn first_done(&self, choice: ReducerChoice, members: Set64, bytes: u64) -> Option<usize> {
        let best = members.iter().filter_map(|slot| self.free[slot]).max().unwrap_or(1);
        let rate = |slot: usize| match self.free[slot] {
            Some(free) if free < best / SLOWER => u128::from(free.max(best / SLOWEST)),
            _ => u128::from(best),
        };
        let load = |slot: usize| match choice {
            ReducerChoice::Uniform => 0,
            ReducerChoice::Bandwidth => u128::from(self.under_way[slot] + bytes),
        };
        let order = |a: usize, b: usize| {
            let by_time = (load(a) * rate(b)).cmp(&(load(b) * rate(a)));
            by_time.then(self.last[a].cmp(&self.last[b]))
        };
        members.iter().min_by(|&a, &b| order(a, b))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.reducers.locked().under_way[self.slot] -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const MB: u64 = 1_000_000;

    /// Turns in a run of sums of 384 kB each, of which so many are under way at a time. Each member receives
    /// at its link's rate, in bytes per millisecond, what it was chosen for.
    fn run(
        reducers: &Reducers,
        choice: ReducerChoice,
        (depth, count): (usize, usize),
        rates: &[u64],
        members: impl Fn(usize) -> Set64,
    ) -> Vec<usize> {
        const BYTES: u64 = 384_000;
        let mut queues: Vec<VecDeque<Turn<'_>>> = rates.iter().map(|_| VecDeque::new()).collect();
        let (mut turns, mut done) = (vec![0; rates.len()], vec![0; rates.len()]);
        let mut begun = 0;
        while begun < count {
            while queues.iter().map(VecDeque::len).sum::<usize>() < depth {
                let turn = reducers.choose(choice, members(begun), BYTES).unwrap();
                turns[turn.slot] += 1;
                begun += 1;
                queues[turn.slot].push_back(turn);
            }
            for ((queue, done), rate) in queues.iter_mut().zip(&mut done).zip(rates) {
                *done = if queue.is_empty() { 0 } else { *done + rate };
                if *done >= BYTES {
                    *done -= BYTES;
                    queue.pop_front();
                }
            }
        }
        turns
    }

    fn is_about(turns: usize, expected: usize) -> bool {
        turns * 20 >= expected * 19 && turns * 20 <= expected * 21
    }

    #[test]
    fn uniform_reducers_take_turns_whatever_their_links_have_free() {
        let reducers = Reducers::default();
        reducers.set_free(0, Some(1));
        reducers.set_free(1, Some(MB));
        let members = Set64::below(7).without(Set64::only(2));
        let turns = run(&reducers, ReducerChoice::Uniform, (1, 600), &[60_000; 7], |_| members);
        assert_eq!(turns, [100, 100, 0, 100, 100, 100, 100]);
        assert!(reducers.choose(ReducerChoice::Uniform, Set64::EMPTY, 1).is_none());
    }

    #[test]
    fn rates_that_vary_as_estimates_do_change_nothing() {
        // As they were reported with equal links of 60 MB/s. The members change from stripe to stripe, as on
        // level 6.
        for free in [[70, 63, 36, 65, 58, 66, 64], [54, 62, 66, 61, 45, 36, 61], [79, 41, 67, 48, 65, 47, 68]]
        {
            let reducers = Reducers::default();
            for (slot, free) in free.into_iter().enumerate() {
                reducers.set_free(slot, Some(free * MB));
            }
            for depth in [1, 64] {
                let members = |sum: usize| Set64::below(7).without(Set64::only(sum * 5 % 7));
                let turns = run(&reducers, ReducerChoice::Bandwidth, (depth, 7000), &[60_000; 7], members);
                assert!(turns.iter().all(|&turns| is_about(turns, 1000)), "{turns:?}");
            }
        }
    }

    #[test]
    fn links_of_which_nothing_is_known_show_their_rate_by_what_stays_under_way() {
        let reducers = Reducers::default();
        let rates = [15_000, 15_000, 15_000, 60_000, 60_000, 60_000, 60_000];
        let members = |_| Set64::below(7);
        let turns = run(&reducers, ReducerChoice::Bandwidth, (64, 9500), &rates, members);
        assert!(turns[..3].iter().all(|&turns| is_about(turns, 500)), "{turns:?}");
        assert!(turns[3..].iter().all(|&turns| is_about(turns, 2000)), "{turns:?}");
        assert_eq!(reducers.locked().under_way, [0; MEMBERS_MAX], "all turns are over");
    }

    #[test]
    fn links_that_are_known_to_be_slow_get_no_more_than_they_take_with_few_sums_under_way() {
        let reducers = Reducers::default();
        let rates = [15_000, 15_000, 60_000, 60_000];
        for (slot, rate) in rates.into_iter().enumerate() {
            reducers.set_free(slot, Some(rate * 1000));
        }
        let turns = run(&reducers, ReducerChoice::Bandwidth, (2, 1000), &rates, |_| Set64::below(4));
        assert_eq!(turns, [0, 0, 500, 500], "two at a time: the fast ones are done first");
        let turns = run(&reducers, ReducerChoice::Bandwidth, (16, 5000), &rates, |_| Set64::below(4));
        assert!(turns[..2].iter().all(|&turns| is_about(turns, 500)), "{turns:?}");
        // Where nothing is known of one, it counts as the best of the others.
        reducers.set_free(3, None);
        let turns = run(&reducers, ReducerChoice::Bandwidth, (1, 100), &rates, |_| Set64::below(4));
        assert_eq!(turns, [0, 0, 50, 50]);
    }

    #[test]
    fn a_link_that_is_thought_to_be_a_thousand_times_slower_still_gets_a_turn() {
        let reducers = Reducers::default();
        reducers.set_free(0, Some(MB));
        reducers.set_free(1, Some(u64::MAX));
        let turns = run(&reducers, ReducerChoice::Bandwidth, (34, 3400), &[60_000; 2], |_| Set64::below(2));
        assert!(turns[0] > 100, "{turns:?}");
    }
}
