//! Which server sums up lost bytes.
//!
//! The reducer receives a part from each of the others, which send one part each, and sends the sum to the
//! client. So what the choice moves is what servers *receive*.
//!
//! With a total of `load` bytes per second to be received by reducers, of which member `i` gets the share
//! `p_i`, its free bandwidth shrinks from `free_i` to `free_i - load * p_i`. The shares are those for which
//! the smallest of these is as large as can be, and the second smallest then, and so on: members are filled
//! up to one level, as water would. [`shares`] is that, a pure function. A member with unknown free bandwidth
//! counts as the best of the others.
//!
//! [`Draw`] keeps the load as a moving average, asks for shares anew now and then, and takes turns by them. A
//! rebuild asks for as much as it is given, so shares for the load that there is would keep it as low as it
//! is: they are worked out for more.

use crate::geometry::{MEMBERS_MAX, Set64};

/// How the reducer is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReducerChoice {
    /// All alike.
    Uniform,
    /// By what their links have free, where that is known.
    #[default]
    Bandwidth,
}

/// Time in which an old load fades to a third.
const FADE_NS: f64 = 1e9;
/// How many times the load that there is the shares are for, as long as the members have so much free.
const GROWTH: f64 = 2.0;
/// How many times the load is all that a member needs to have free: what it is said to have beyond that
/// counts for nothing.
const PLENTY: f64 = 8.0;
/// Shares are worked out anew after this.
const RENEW_NS: u64 = 100_000_000;

/// Shares, by member, that maximise the smallest `free[i] - load * share[i]`. They sum to 1, if there is a
/// member.
pub fn shares(free: &[f64], load: f64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..free.len()).collect();
    order.sort_by(|&a, &b| free[b].total_cmp(&free[a]));
    // Less than a byte per second says nothing, and can't be divided by.
    let load = load.max(1.0);
    let (mut sum, mut level, mut filled) = (0.0, f64::NEG_INFINITY, 0);
    for (&member, count) in order.iter().zip(1u32..) {
        if free[member] <= level {
            break;
        }
        sum += free[member];
        level = (sum - load) / f64::from(count);
        filled += 1;
    }
    let mut shares = vec![0.0; free.len()];
    for &member in &order[..filled] {
        shares[member] = ((free[member] - level) / load).max(0.0);
    }
    shares
}

/// Takes turns.
pub struct Draw {
    /// By slot: bytes per second that the member's link is free to receive, where that is known.
    free: [Option<u64>; MEMBERS_MAX],
    /// By slot: how much a member is behind its share.
    credit: [f64; MEMBERS_MAX],
    share: [f64; MEMBERS_MAX],
    of: Set64,
    renewed_at: Option<u64>,
    /// Bytes per second that reducers receive, and when that was so.
    load: f64,
    load_at: u64,
    /// Reducers that were chosen.
    chosen: u64,
}

impl Default for Draw {
    fn default() -> Self {
        Self {
            free: [None; MEMBERS_MAX],
            credit: [0.0; MEMBERS_MAX],
            share: [0.0; MEMBERS_MAX],
            of: Set64::EMPTY,
            renewed_at: None,
            load: 0.0,
            load_at: 0,
            chosen: 0,
        }
    }
}

impl Draw {
    /// What a member's link is free to receive, in bytes per second; `None` if unknown.
    pub fn set_free(&mut self, slot: usize, free: Option<u64>) {
        self.free[slot] = free;
        self.renewed_at = None;
    }

    /// What is known of that.
    pub fn free(&self, slot: usize) -> Option<u64> {
        self.free[slot]
    }

    /// How many reducers were chosen so far.
    pub fn chosen(&self) -> u64 {
        self.chosen
    }

    /// One of `members` for a reduction in which it receives `bytes`. `None` if there are none.
    pub fn choose(&mut self, now: u64, choice: ReducerChoice, members: Set64, bytes: u64) -> Option<usize> {
        self.count(now, bytes);
        let is_old = self.renewed_at.is_none_or(|at| now.saturating_sub(at) >= RENEW_NS);
        if is_old || self.of != members {
            self.renew(choice, members);
            self.renewed_at = Some(now);
        }
        for slot in members {
            self.credit[slot] += self.share[slot];
        }
        let chosen =
            members.iter().max_by(|&a, &b| self.credit[a].total_cmp(&self.credit[b]).then(b.cmp(&a)))?;
        self.credit[chosen] -= 1.0;
        self.chosen += 1;
        Some(chosen)
    }

    #[expect(clippy::cast_precision_loss, reason = "rates are estimates")]
    fn count(&mut self, now: u64, bytes: u64) {
        let passed = now.saturating_sub(self.load_at) as f64;
        self.load = self.load * (-passed / FADE_NS).exp() + bytes as f64 * (1e9 / FADE_NS);
        self.load_at = now;
    }

    #[expect(clippy::cast_precision_loss, reason = "rates are estimates")]
    fn renew(&mut self, choice: ReducerChoice, members: Set64) {
        let shares = match choice {
            ReducerChoice::Uniform => vec![1.0 / members.len() as f64; members.len()],
            ReducerChoice::Bandwidth => {
                let known = |slot: usize| self.free[slot].map(|free| free as f64);
                let best = members.iter().filter_map(known).reduce(f64::max).unwrap_or(f64::MAX);
                let free = |slot: usize| known(slot).unwrap_or(best).min(self.load * PLENTY);
                let free: Vec<f64> = members.iter().map(free).collect();
                shares(&free, (self.load * GROWTH).min(free.iter().sum()))
            }
        };
        self.share = [0.0; MEMBERS_MAX];
        for (slot, share) in members.iter().zip(shares) {
            self.share[slot] = share;
        }
        self.of = members;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn smallest(free: &[f64], load: f64, shares: &[f64]) -> f64 {
        free.iter().zip(shares).map(|(f, p)| f - load * p).fold(f64::INFINITY, f64::min)
    }

    /// The linear program: the largest `v` for which shares exist with `free[i] - load * share[i] >= v`, by
    /// bisection.
    fn best(free: &[f64], load: f64) -> f64 {
        let least = free.iter().copied().fold(f64::INFINITY, f64::min);
        let is_possible = |v: f64| least >= v && free.iter().map(|f| (f - v) / load).sum::<f64>() >= 1.0;
        let (mut low, mut high) = (least - load - 1.0, least);
        if is_possible(high) {
            return high;
        }
        for _ in 0..200 {
            let middle = f64::midpoint(low, high);
            *(if is_possible(middle) { &mut low } else { &mut high }) = middle;
        }
        low
    }

    proptest! {
        #[test]
        fn no_other_shares_leave_more_to_who_has_least(
            free in prop::collection::vec(0.0..2e9f64, 1..20), load in 1.0..1e10f64,
        ) {
            let shares = shares(&free, load);
            prop_assert!((shares.iter().sum::<f64>() - 1.0).abs() < 1e-6 && shares.iter().all(|p| *p >= 0.0));
            let (ours, best) = (smallest(&free, load, &shares), best(&free, load));
            prop_assert!((ours - best).abs() <= 1e-6 * (load + 2e9), "{ours} {best}");
            // Members that get a share end level with each other, and none ends below a member that gets no
            // share.
            let level: Vec<f64> = (0..free.len()).filter(|&i| shares[i] > 1e-9).map(|i| free[i] - load * shares[i]).collect();
            let others = (0..free.len()).filter(|&i| shares[i] <= 1e-9).map(|i| free[i]).fold(f64::NEG_INFINITY, f64::max);
            prop_assert!(level.iter().all(|l| (l - level[0]).abs() < 1e-6 * (load + 2e9) && *l >= others - 1e-6 * (load + 2e9)));
        }
    }

    fn turns(draw: &mut Draw, choice: ReducerChoice, members: Set64, count: usize) -> Vec<usize> {
        let mut turns = vec![0; 8];
        for step in 0..count {
            turns[draw.choose(step as u64 * 1_000_000, choice, members, 100_000).unwrap()] += 1;
        }
        turns
    }

    #[test]
    fn members_take_turns_and_those_with_more_room_take_more() {
        let members = Set64::below(7).without(Set64::only(2));
        let mut draw = Draw::default();
        assert_eq!(
            turns(&mut draw, ReducerChoice::Uniform, members, 600),
            [100, 100, 0, 100, 100, 100, 100, 0]
        );
        // The load goes to 10^8 bytes per second: three members with a quarter of that, three with all of it.
        for slot in members {
            draw.set_free(slot, Some(if slot < 4 { 25_000_000 } else { 100_000_000 }));
        }
        let by_room = turns(&mut draw, ReducerChoice::Bandwidth, members, 3000);
        assert!(by_room[..4].iter().sum::<usize>() < 30, "{by_room:?}");
        assert!(by_room[4..7].iter().all(|turns| (970..1030).contains(turns)), "{by_room:?}");
        assert_eq!(draw.choose(0, ReducerChoice::Uniform, Set64::EMPTY, 1), None);
    }

    #[test]
    fn who_asks_for_all_it_is_given_is_given_what_all_have() {
        let mut draw = Draw::default();
        for slot in 0..4 {
            draw.set_free(slot, Some(if slot < 2 { 10_000_000 } else { 40_000_000 }));
        }
        // Members that differ from turn to turn, as those do that are asked for a stripe of level 6. The load
        // goes to 6 * 10^7.
        let mut turns = [0; 4];
        for step in 0..3000 {
            let members = Set64::below(4).without(Set64::only(step % 4));
            let chosen = draw.choose(step as u64 * 1_000_000, ReducerChoice::Bandwidth, members, 60_000);
            turns[chosen.unwrap()] += 1;
        }
        assert!(turns[..2].iter().all(|turns| (250..350).contains(turns)), "{turns:?}");
        assert!(turns[2..].iter().all(|turns| (1150..1250).contains(turns)), "{turns:?}");
    }

    #[test]
    fn a_member_of_which_nothing_is_known_counts_as_the_best_one_and_more_than_plenty_for_nothing() {
        let mut draw = Draw::default();
        assert_eq!(turns(&mut draw, ReducerChoice::Bandwidth, Set64::below(3), 300)[..3], [100, 100, 100]);
        draw.set_free(0, Some(10_000_000));
        draw.set_free(1, Some(90_000_000));
        let by_room = turns(&mut draw, ReducerChoice::Bandwidth, Set64::below(3), 1900);
        assert!(by_room[0] < 110 && by_room[1].abs_diff(by_room[2]) < 20, "{by_room:?}");
        draw.set_free(0, Some(10_000_000_000));
        draw.set_free(1, Some(u64::MAX));
        assert_eq!(turns(&mut draw, ReducerChoice::Bandwidth, Set64::below(3), 300)[..3], [100, 100, 100]);
    }

    #[test]
    fn the_load_fades() {
        let mut draw = Draw::default();
        for step in 0..1000 {
            draw.choose(step * 10_000_000, ReducerChoice::Uniform, Set64::below(2), 1_000_000);
        }
        assert!((draw.load - 1e8).abs() < 2e6, "{}", draw.load);
        draw.choose(20_000_000_000, ReducerChoice::Uniform, Set64::below(2), 0);
        assert!(draw.load < 1e5);
    }
}
