//! How fast maintenance goes: the limits, the yielding to users, and how fast it went.
//!
//! Pure: time and counts go in, waits come out. The rule, in bytes of one member per second:
//!
//! ```text
//!   below `min`                    never held up
//!   between, users are idle        as fast as it goes
//!   between, users are at work     one stripe at a time, and after each a rest of [`REST`] times as long as it took
//!   above `max`                    never
//! ```
//!
//! The rest is a share of what a stripe takes and not a rate, so it fits any device: the faster it is, the
//! less is waited.

use std::collections::VecDeque;

use crate::{
    mutants::{Mutant, active},
    options::SyncSpeed,
};

const SECOND: u64 = 1_000_000_000;
/// Users are at work until this long after their last request.
const BUSY_NS: u64 = 50_000_000;
/// Rests after a stripe, in times of what it took: maintenance takes a fifth of what one stripe at a time
/// would.
const REST: u64 = 4;
/// How far ahead of `min` it counts as being: after an idle hour `min` is due again as soon as after this.
const AHEAD_NS: u64 = SECOND;
/// How late it may be and catch up above `max`: what timers are late by must not make it slower.
const LATE_NS: u64 = 10_000_000;
/// Time between two marks, and how many are kept: the speed is that of the last ten seconds.
const MARK_NS: u64 = 500_000_000;
const MARKS_MAX: usize = 20;

/// See the module.
pub(crate) struct Pace {
    speed: SyncSpeed,
    /// When the next stripe is due by `min`.
    due_ns: u64,
    /// Before when the next stripe would exceed `max`.
    held_until_ns: u64,
    rest_until_ns: u64,
    under_way: u32,
    /// The users' requests when they were last counted, and when that last changed.
    requests: u64,
    busy_until_ns: u64,
    changes: u64,
}

impl Pace {
    pub(crate) fn new(speed: SyncSpeed) -> Self {
        Self {
            speed,
            due_ns: 0,
            held_until_ns: 0,
            rest_until_ns: 0,
            under_way: 0,
            requests: 0,
            busy_until_ns: 0,
            changes: 0,
        }
    }

    pub(crate) fn speed(&self) -> SyncSpeed {
        self.speed
    }

    /// Goes up with whatever may have shortened a wait.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Other limits from now on; what the old ones held up is let go.
    pub(crate) fn set_speed(&mut self, speed: SyncSpeed) {
        self.speed = speed;
        self.changes += 1;
        (self.due_ns, self.held_until_ns) = (0, 0);
    }

    /// Whether a stripe of `bytes` per member may begin: `None` if so, and then it counts as begun; else how
    /// long to wait before asking again. `requests` counts the users' requests since ever.
    pub(crate) fn ask(&mut self, now: u64, requests: u64, bytes: u64) -> Option<u64> {
        if requests != self.requests {
            self.requests = requests;
            self.busy_until_ns = now + BUSY_NS;
        }
        if now < self.held_until_ns {
            self.held_until_ns += SECOND * u64::from(active(Mutant::PaceNeverLetsGo));
            return Some(self.held_until_ns - now);
        }
        if now < self.busy_until_ns && now < self.due_ns {
            if self.under_way > 0 {
                return Some(self.due_ns - now);
            }
            if now < self.rest_until_ns {
                return Some(self.due_ns.min(self.rest_until_ns) - now);
            }
        }
        let by_min = nanoseconds(bytes, self.speed.min_kib);
        let by_max = nanoseconds(bytes, self.speed.max_kib);
        self.due_ns = (self.due_ns.max(now) + by_min).min(now + AHEAD_NS.max(by_min));
        self.held_until_ns = self.held_until_ns.max(now.saturating_sub(LATE_NS)) + by_max;
        self.under_way += 1;
        None
    }

    /// A stripe that [`Pace::ask`] let begin has ended.
    pub(crate) fn ended(&mut self, now: u64, took: u64) {
        self.under_way = self.under_way.saturating_sub(1);
        self.changes += 1;
        self.rest_until_ns = now + took.saturating_mul(REST);
    }
}

/// What `bytes` take at a rate of `kib` KiB per second; a rate of 0 counts as 1.
fn nanoseconds(bytes: u64, kib: u64) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(SECOND) / (u128::from(kib.max(1)) * 1024))
        .unwrap_or(u64::MAX)
}

/// Measures how fast something goes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Meter {
    /// When, and what was done then.
    marks: VecDeque<(u64, u64)>,
}

impl Meter {
    /// Notes what is done now, and gives how many units go into a second lately; 0 if that isn't known yet.
    pub(crate) fn note(&mut self, now: u64, done: u64) -> u64 {
        if self.marks.back().is_none_or(|(at, _)| now >= at + MARK_NS) {
            self.marks.push_back((now, done));
            if self.marks.len() > MARKS_MAX {
                self.marks.pop_front();
            }
        }
        let Some((since, before)) = self.marks.front() else { return 0 };
        let (elapsed, moved) = (now.saturating_sub(*since), done.saturating_sub(*before));
        if elapsed == 0 {
            return 0;
        }
        u64::try_from(u128::from(moved) * u128::from(SECOND) / u128::from(elapsed)).unwrap_or(u64::MAX)
    }

    /// Forgets what was: it stood still meanwhile.
    pub(crate) fn restart(&mut self) {
        self.marks.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK: u64 = 64 << 10;
    const MIB: u64 = 1 << 20;

    /// Runs stripes that take `took` each, `depth` at a time, for `length`; gives bytes per second. `busy`
    /// tells whether users are at work at a time.
    fn run(
        pace: &mut Pace,
        from: u64,
        length: u64,
        took: u64,
        depth: usize,
        busy: impl Fn(u64) -> bool,
    ) -> u64 {
        let (mut now, mut bytes, mut requests) = (from, 0, pace.requests);
        let mut ends: Vec<u64> = Vec::new();
        while now < from + length {
            if busy(now) {
                requests += 1;
            }
            let wait = if ends.len() < depth { pace.ask(now, requests, CHUNK) } else { Some(u64::MAX) };
            match wait {
                None => {
                    bytes += CHUNK;
                    ends.push(now + took);
                }
                Some(wait) => {
                    let next = ends.iter().copied().min().unwrap_or(u64::MAX);
                    now = next.min(now.saturating_add(wait)).min(now + BUSY_NS / 2);
                    ends.retain(|end| {
                        let over = *end <= now;
                        if over {
                            pace.ended(now, took);
                        }
                        !over
                    });
                }
            }
        }
        bytes * SECOND / length
    }

    fn pace(min_kib: u64, max_kib: u64) -> Pace {
        Pace::new(SyncSpeed { min_kib, max_kib })
    }

    #[test]
    fn with_idle_users_only_the_members_and_the_upper_limit_hold_it_up() {
        let free = run(&mut pace(1000, 1 << 30), 0, SECOND, 1_000_000, 8, |_| false);
        assert!(free.abs_diff(8000 * CHUNK) < 20 * CHUNK, "{free}");
        let held = run(&mut pace(1000, 100 * 1024), 0, 2 * SECOND, 1_000_000, 8, |_| false);
        assert!((98 * MIB..=101 * MIB).contains(&held), "{held}");
    }

    #[test]
    fn above_the_upper_limit_it_never_goes_whatever_the_lower_one_says() {
        let held = run(&mut pace(1 << 30, 10 * 1024), 0, 2 * SECOND, 1000, 8, |_| true);
        assert!(held <= 10 * MIB + 3 * CHUNK, "{held}");
    }

    #[test]
    fn beside_users_it_takes_a_fifth_of_one_stripe_at_a_time() {
        let beside = run(&mut pace(1000, 1 << 30), 0, SECOND, 1_000_000, 8, |_| true);
        let share = beside / CHUNK;
        assert!((180..=220).contains(&share), "{share} stripes of 1000");
    }

    #[test]
    fn beside_users_the_lower_limit_is_kept_even_on_slow_members() {
        // A stripe takes 100 ms: resting would leave 2 stripes per second, and the limit wants 16.
        let beside = run(&mut pace(1024, 1 << 30), 0, 10 * SECOND, 100_000_000, 8, |_| true);
        assert!((MIB * 9 / 10..=MIB * 12 / 10).contains(&beside), "{beside}");
    }

    #[test]
    fn it_lets_go_when_users_come_and_takes_up_speed_when_they_leave() {
        let mut pace = pace(1000, 1 << 30);
        let before = run(&mut pace, 0, SECOND, 1_000_000, 8, |_| false);
        let during = run(&mut pace, SECOND, SECOND, 1_000_000, 8, |_| true);
        let after = run(&mut pace, 2 * SECOND + 2 * BUSY_NS, SECOND, 1_000_000, 8, |_| false);
        assert!(during * 20 < before, "{during} of {before}");
        assert!(after * 10 > before * 9, "{after} of {before}");
    }

    #[test]
    fn other_limits_hold_at_once() {
        let mut pace = pace(1, 1);
        assert_eq!(pace.ask(SECOND, 0, 1 << 30), None);
        assert!(pace.ask(SECOND + 1, 0, CHUNK).is_some());
        pace.set_speed(SyncSpeed { min_kib: 1000, max_kib: 1 << 30 });
        assert_eq!(pace.ask(SECOND + 1, 0, CHUNK), None);
    }

    #[test]
    fn the_speed_is_that_of_the_last_ten_seconds() {
        let mut meter = Meter::default();
        assert_eq!(meter.note(0, 50), 0);
        let mut done = 50;
        for half in 1..=60 {
            done += if half <= 30 { 10 } else { 100 };
            let speed = meter.note(half * MARK_NS, done);
            let wanted = if half <= 30 {
                20..=20
            } else if half >= 51 {
                200..=200
            } else {
                20..=200
            };
            assert!(wanted.contains(&speed), "{half}: {speed}");
        }
        meter.restart();
        assert_eq!(meter.note(1 << 40, done), 0);
    }
}
