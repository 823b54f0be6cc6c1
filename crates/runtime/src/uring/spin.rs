//! How long a shard looks around before it sleeps.
//!
//! A sleep has its price: the shard runs up to 20 us after what it waits for has come, and another shard that
//! sends it mail pays a system call to wake it. What comes within about that time is cheaper to look for;
//! looking for what comes later is a waste of CPU. So a shard looks around before a sleep when all of this is
//! so:
//!
//! - No task is ready, and no polled request is under way ([`super::pause`]).
//! - Something may come soon: devices have requests of this shard, or there are other shards, which may send
//!   mail. For clients and timers alone no shard looks around.
//! - What was waited for like this came soon lately ([`Habit`]). Answers of devices and mail are told apart:
//!   a client that takes its time between two requests must not end the looking for the answers to them.
//!
//! Otherwise it sleeps at once, by the one entry into the kernel that submits too. Pure, so that a test can
//! look at each case.

/// Of so many waits in a row that don't look around, the last one does, to see whether things have changed.
const PROBE_EVERY: u32 = 64;

/// See the module.
pub(super) struct Spin {
    ns_max: u64,
    has_neighbours: bool,
    answers: Habit,
    mail: Habit,
}

/// What waits of one kind were like lately.
///
/// When something came while the shard looked, the next wait looks for the whole time. A look in vain halves
/// it, and the third in a row ends it, until a probe finds something. What is found after the time of the
/// look is found in vain too: the thread was off its CPU, which others need.
struct Habit {
    look_ns: u64,
    waits_without: u32,
}

/// A look around before a sleep.
#[derive(Clone, Copy)]
pub(super) struct Look {
    devices_asked: bool,
    /// For how long.
    pub(super) ns: u64,
}

impl Spin {
    /// Of one of so many shards, which looks around for `ns_max` at most.
    pub(super) fn new(ns_max: u64, shards: usize) -> Self {
        let habit = || Habit { look_ns: ns_max, waits_without: 0 };
        Self { ns_max, has_neighbours: shards > 1, answers: habit(), mail: habit() }
    }

    /// The look to take now, while devices have requests or while they have not. Without one, the shard
    /// sleeps at once.
    pub(super) fn look(&mut self, devices_asked: bool) -> Option<Look> {
        if self.ns_max == 0 || !devices_asked && !self.has_neighbours {
            return None;
        }
        let ns_max = self.ns_max;
        let habit = self.habit(devices_asked);
        if habit.look_ns > 0 {
            return Some(Look { devices_asked, ns: habit.look_ns });
        }
        habit.waits_without = (habit.waits_without + 1) % PROBE_EVERY;
        (habit.waits_without == 0).then_some(Look { devices_asked, ns: ns_max })
    }

    /// The look found something, or it didn't, and took `looked_ns`.
    pub(super) fn learn(&mut self, look: Look, found: bool, looked_ns: u64) {
        let ns_max = self.ns_max;
        let habit = self.habit(look.devices_asked);
        habit.look_ns = match habit.look_ns / 2 {
            _ if found && looked_ns <= look.ns => ns_max,
            half if half < ns_max / 4 => 0,
            half => half,
        };
    }

    fn habit(&mut self, devices_asked: bool) -> &mut Habit {
        if devices_asked { &mut self.answers } else { &mut self.mail }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: u64 = 30_000;

    /// A wait for what comes after `comes_ns`, by a clock that only this moves: how long the shard looked
    /// around, and whether it slept.
    fn wait(spin: &mut Spin, devices_asked: bool, comes_ns: u64) -> (u64, bool) {
        let Some(look) = spin.look(devices_asked) else { return (0, true) };
        let (found, looked_ns) = (comes_ns <= look.ns, comes_ns.min(look.ns));
        spin.learn(look, found, looked_ns);
        (looked_ns, !found)
    }

    /// So many waits: for how long they looked in all, and how many slept.
    fn waits(spin: &mut Spin, devices_asked: bool, comes_ns: u64, count: usize) -> (u64, usize) {
        let all: Vec<_> = (0..count).map(|_| wait(spin, devices_asked, comes_ns)).collect();
        (all.iter().map(|(looked, _)| looked).sum(), all.iter().filter(|(_, slept)| *slept).count())
    }

    #[test]
    fn answers_that_come_soon_are_never_slept_for() {
        for comes_ns in [1, 10_000, MAX] {
            let mut spin = Spin::new(MAX, 1);
            assert_eq!(waits(&mut spin, true, comes_ns, 1000), (1000 * comes_ns, 0));
        }
    }

    #[test]
    fn answers_that_come_late_are_looked_for_three_times_and_then_rarely() {
        let mut spin = Spin::new(MAX, 1);
        assert_eq!(waits(&mut spin, true, MAX + 1, 3), (MAX + MAX / 2 + MAX / 4, 3));
        assert_eq!(waits(&mut spin, true, MAX + 1, 63), (0, 63));
        assert_eq!(waits(&mut spin, true, MAX + 1, 1), (MAX, 1));
        assert_eq!(waits(&mut spin, true, MAX + 1, 640), (10 * MAX, 640), "a probe in vain is one look");
    }

    #[test]
    fn a_probe_finds_that_answers_have_become_fast() {
        let mut spin = Spin::new(MAX, 1);
        waits(&mut spin, true, u64::MAX, 1000);
        let (_, slept) = waits(&mut spin, true, 20_000, 1000);
        assert!(slept < 64, "{slept} sleeps");
        assert_eq!(waits(&mut spin, true, 20_000, 100), (100 * 20_000, 0));
    }

    /// As when more threads want CPUs than there are, and each look ends by the thread's being taken off its
    /// own.
    #[test]
    fn what_comes_while_the_thread_is_off_its_cpu_is_no_reason_to_look() {
        let mut spin = Spin::new(MAX, 1);
        let mut looks = 0;
        for _ in 0..3 + 640 {
            if let Some(look) = spin.look(true) {
                spin.learn(look, true, 3_000_000);
                looks += 1;
            }
        }
        assert_eq!(looks, 3 + 10);
    }

    #[test]
    fn one_late_answer_among_fast_ones_changes_nothing_for_these() {
        let mut spin = Spin::new(MAX, 1);
        for _ in 0..100 {
            assert_eq!(waits(&mut spin, true, 12_000, 9), (9 * 12_000, 0));
            assert_eq!(wait(&mut spin, true, 1_000_000), (MAX, true));
        }
    }

    #[test]
    fn a_shard_alone_without_requests_sleeps_at_once() {
        let mut spin = Spin::new(MAX, 1);
        assert_eq!(waits(&mut spin, false, 1, 1000), (0, 1000));
        assert_eq!(wait(&mut spin, true, 1), (1, false));
        assert_eq!(wait(&mut spin, false, 1), (0, true));
    }

    #[test]
    fn a_shard_with_neighbours_looks_for_their_mail_while_it_comes() {
        let mut spin = Spin::new(MAX, 2);
        assert_eq!(waits(&mut spin, false, 5_000, 100), (100 * 5_000, 0));
        let (looked, slept) = waits(&mut spin, false, u64::MAX, 3 + 640);
        assert_eq!((looked, slept), (MAX + MAX / 2 + MAX / 4 + 10 * MAX, 643));
    }

    /// One client: the answer comes soon, the next request does not.
    #[test]
    fn a_client_that_thinks_does_not_end_the_looking_for_answers() {
        let mut spin = Spin::new(MAX, 2);
        let (mut looked, mut slept) = (0, 0);
        for _ in 0..640 {
            assert_eq!(wait(&mut spin, true, 10_000), (10_000, false));
            let (ns, sleeps) = waits(&mut spin, false, 1_000_000, 1);
            (looked, slept) = (looked + ns, slept + sleeps);
        }
        assert_eq!(slept, 640);
        assert!(looked <= 13 * MAX, "{looked} ns for clients");
    }

    #[test]
    fn without_a_time_nothing_is_looked_for() {
        let mut spin = Spin::new(0, 2);
        assert_eq!(waits(&mut spin, true, 0, 1000), (0, 1000));
        assert_eq!(waits(&mut spin, false, 0, 1000), (0, 1000));
    }
}
