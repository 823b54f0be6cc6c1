//! What waits for a place in a queue that namespaces share. Pure.
//!
//! A disk that hangs keeps the places that its commands have got. So one namespace gets at most three
//! quarters of those that no other one has, and the next such disk three quarters of the rest: the others
//! always find some. They take turns.

use std::collections::VecDeque;

/// What a namespace may have beside each place that is left to the others.
const SHARE: usize = 3;

struct Lane<T> {
    namespace: u32,
    /// Places that it has.
    held: usize,
    waiting: VecDeque<T>,
}

/// See the module.
pub(super) struct Lanes<T> {
    lanes: Vec<Lane<T>>,
    /// The lane that comes next.
    turn: usize,
}

impl<T> Lanes<T> {
    pub fn new() -> Self {
        Self { lanes: Vec::new(), turn: 0 }
    }

    pub fn push_back(&mut self, namespace: u32, one: T) {
        self.lane(namespace).waiting.push_back(one);
    }

    /// Before those of its namespace that wait.
    pub fn push_front(&mut self, namespace: u32, one: T) {
        self.lane(namespace).waiting.push_front(one);
    }

    /// What gets one of the places that are `free`. `is_due`: whether it may be sent at all. `is_shared`:
    /// whether others may want a place.
    pub fn next(
        &mut self,
        free: usize,
        is_due: impl Fn(&T) -> bool,
        is_shared: impl Fn() -> bool,
    ) -> Option<T> {
        let left = free.checked_sub(1)?;
        let count = self.lanes.len();
        for index in (self.turn..count).chain(0..self.turn) {
            let lane = &mut self.lanes[index];
            if !lane.waiting.front().is_some_and(&is_due) {
                continue;
            }
            if lane.held == 0 || lane.held < SHARE * left || !is_shared() {
                lane.held += 1;
                self.turn = (index + 1) % count;
                return lane.waiting.pop_front();
            }
        }
        None
    }

    /// A command of this namespace has a place without having waited.
    pub fn takes_place(&mut self, namespace: u32) {
        self.lane(namespace).held += 1;
    }

    pub fn gives_place_back(&mut self, namespace: u32) {
        self.lane(namespace).held -= 1;
    }

    /// All that waits.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.lanes.iter().flat_map(|lane| &lane.waiting)
    }

    pub fn take(&mut self) -> Vec<T> {
        self.lanes.iter_mut().flat_map(|lane| std::mem::take(&mut lane.waiting)).collect()
    }

    fn lane(&mut self, namespace: u32) -> &mut Lane<T> {
        let known = self.lanes.iter().position(|lane| lane.namespace == namespace);
        let index = known.unwrap_or(self.lanes.len());
        if known.is_none() {
            self.lanes.push(Lane { namespace, held: 0, waiting: VecDeque::new() });
        }
        &mut self.lanes[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many of the `free` places each namespace gets of which so much waits, and none comes back.
    fn shares(mut free: usize, waiting: &[usize], is_shared: bool) -> Vec<usize> {
        let mut lanes = Lanes::new();
        let mut got = vec![0; waiting.len()];
        for (namespace, &count) in (0..).zip(waiting) {
            (0..count).for_each(|_| lanes.push_back(namespace, namespace as usize));
            while let Some(namespace) = lanes.next(free, |_| true, || is_shared) {
                free -= 1;
                got[namespace] += 1;
            }
        }
        got
    }

    #[test]
    fn what_gives_no_place_back_leaves_some_to_the_others() {
        assert_eq!(shares(128, &[1000], false), [128]);
        assert_eq!(shares(128, &[1000], true), [96]);
        assert_eq!(shares(128, &[1000, 1000, 1000, 3], true), [96, 24, 6, 1]);
        for depth in 2..=128 {
            assert!(shares(depth, &[1000, 1], true)[1] == 1, "of {depth}");
        }
    }

    #[test]
    fn namespaces_take_turns_and_what_is_tried_again_is_the_first_of_its_own() {
        let mut lanes = Lanes::new();
        for number in 0..3 {
            lanes.push_back(1, (1, number));
        }
        lanes.push_back(2, (2, 0));
        let next = |lanes: &mut Lanes<_>| lanes.next(100, |_| true, || true).unwrap();
        assert_eq!((next(&mut lanes), next(&mut lanes)), ((1, 0), (2, 0)));
        lanes.push_front(1, (1, 0));
        assert_eq!((next(&mut lanes), next(&mut lanes)), ((1, 0), (1, 1)));
        assert_eq!(lanes.iter().collect::<Vec<_>>(), [&(1, 2)]);
        assert!(lanes.next(100, |_| false, || true).is_none());
        assert_eq!(lanes.take(), [(1, 2)]);
    }
}
