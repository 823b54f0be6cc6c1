//! A shard's timers: a binary heap in which each timer knows its place. So a timer can be taken out when no
//! task waits for it any more.
//!
//! Their clock is [`crate::Shard::waited`].
//!
//! Timers that are due at the same moment fire in the order in which they were set. Nothing is allocated once
//! there is room for as many timers as are set at a time.

/// Names a timer that was set. Once that has fired or was taken out, the name is unknown, even if another
/// timer has its place now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimerId {
    place: u32,
    sequence: u64,
}

#[derive(Clone, Copy)]
struct Timer {
    deadline: u64,
    sequence: u64,
    task: u32,
    /// Index into `positions`.
    place: u32,
}

impl Timer {
    fn order(&self) -> (u64, u64) {
        (self.deadline, self.sequence)
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Timers {
    heap: Vec<Timer>,
    /// By place: where in the heap its timer is.
    positions: Vec<u32>,
    places_free: Vec<u32>,
    sequence: u64,
}

impl Timers {
    /// Has `task` woken at `deadline`.
    pub(crate) fn set(&mut self, deadline: u64, task: u32) -> TimerId {
        let sequence = self.sequence;
        self.sequence += 1;
        let place = self.places_free.pop().unwrap_or_else(|| {
            self.positions.push(0);
            index(self.positions.len() - 1)
        });
        self.heap.push(Timer { deadline, sequence, task, place });
        self.sift_up(self.heap.len() - 1);
        TimerId { place, sequence }
    }

    /// Takes a timer out, if it hasn't fired.
    pub(crate) fn cancel(&mut self, id: TimerId) {
        let Some(&position) = self.positions.get(id.place as usize) else { return };
        let position = position as usize;
        if self.heap.get(position).is_some_and(|t| (t.place, t.sequence) == (id.place, id.sequence)) {
            self.take(position);
        }
    }

    /// When the first timer is due.
    pub(crate) fn next(&self) -> Option<u64> {
        self.heap.first().map(|timer| timer.deadline)
    }

    /// Takes the first timer if it is due at `now`, and gives its task.
    pub(crate) fn fire(&mut self, now: u64) -> Option<u32> {
        let due = self.heap.first().is_some_and(|timer| timer.deadline <= now);
        due.then(|| self.take(0).task)
    }

    /// Forgets all timers.
    pub(crate) fn clear(&mut self) {
        while !self.heap.is_empty() {
            self.take(self.heap.len() - 1);
        }
    }

    fn take(&mut self, position: usize) -> Timer {
        let timer = self.heap.swap_remove(position);
        self.places_free.push(timer.place);
        if position < self.heap.len() {
            self.sift_up(position);
            self.sift_down(position);
        }
        timer
    }

    fn sift_up(&mut self, mut position: usize) {
        while position > 0 {
            let parent = (position - 1) / 2;
            if self.heap[parent].order() <= self.heap[position].order() {
                break;
            }
            self.swap(parent, position);
            position = parent;
        }
        self.note(position);
    }

    fn sift_down(&mut self, mut position: usize) {
        loop {
            let children = (2 * position + 1)..(2 * position + 3).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child].order()) else { break };
            if self.heap[position].order() <= self.heap[least].order() {
                break;
            }
            self.swap(position, least);
            position = least;
        }
        self.note(position);
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.note(a);
        self.note(b);
    }

    fn note(&mut self, position: usize) {
        self.positions[self.heap[position].place as usize] = index(position);
    }
}

fn index(position: usize) -> u32 {
    u32::try_from(position).unwrap_or_else(|_| unreachable!("timers are as few as tasks"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_fire_by_deadline_and_then_in_the_order_in_which_they_were_set() {
        let mut timers = Timers::default();
        for (deadline, task) in [(30, 1), (10, 2), (20, 3), (10, 4), (30, 5)] {
            timers.set(deadline, task);
        }
        assert_eq!((timers.next(), timers.fire(9)), (Some(10), None));
        let fired: Vec<u32> = std::iter::from_fn(|| timers.fire(30)).collect();
        assert_eq!(fired, [2, 4, 3, 1, 5]);
        assert_eq!(timers.next(), None);
    }

    #[test]
    fn a_cancelled_timer_is_gone_and_the_id_of_one_that_fired_cancels_no_other() {
        let mut timers = Timers::default();
        let first = timers.set(10, 1);
        assert_eq!(timers.fire(10), Some(1));
        let second = timers.set(20, 2);
        timers.cancel(first);
        assert_eq!(timers.next(), Some(20));
        timers.cancel(second);
        timers.cancel(second);
        assert_eq!(timers.next(), None);
    }

    /// Against a plain sorted list, with a fixed series of numbers.
    #[test]
    fn what_is_left_after_many_cancellations_fires_in_order() {
        let (mut timers, mut plain, mut number) = (Timers::default(), Vec::new(), 1_u64);
        for step in 0..4000_u32 {
            number = number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            if number >> 62 < 2 || plain.is_empty() {
                let deadline = number >> 50;
                plain.push((deadline, u64::from(step), step, timers.set(deadline, step)));
            } else {
                let victim = usize::try_from(number >> 40).unwrap() % plain.len();
                let (.., id) = plain.swap_remove(victim);
                timers.cancel(id);
            }
            assert_eq!(timers.next(), plain.iter().map(|(deadline, ..)| *deadline).min());
        }
        plain.sort_by_key(|(deadline, sequence, ..)| (*deadline, *sequence));
        let fired: Vec<u32> = std::iter::from_fn(|| timers.fire(u64::MAX)).collect();
        // Every step set at most one timer, so steps and sequences have the same order.
        assert_eq!(fired, plain.iter().map(|(_, _, step, _)| *step).collect::<Vec<_>>());
    }
}
