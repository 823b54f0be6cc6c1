//! Which of several things that may happen the world lets happen.

use crate::rng::Rng;

/// How the world chooses its steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Weight of polling a task, against the three below. All must be above 0, or that kind starves.
    pub weight_tasks: u64,
    /// Weight of taking mail.
    pub weight_mail: u64,
    /// Weight of firing timers.
    pub weight_timers: u64,
    /// Weight of effects and ends of requests.
    pub weight_requests: u64,
    /// Of 1024 polls, how many take another task than the oldest ready one.
    pub out_of_order: u64,
    /// Of 1024 steps, how many let time pass although something may happen now.
    pub ticks: u64,
    /// Longest tick in nanoseconds.
    pub tick_ns_max: u64,
    /// Of 65536 steps, how many deschedule a shard.
    pub pauses: u64,
    /// Longest pause in nanoseconds.
    pub pause_ns_max: u64,
}

impl Schedule {
    /// No time passes while anything may happen, no task overtakes another and no shard is taken off its CPU.
    /// Only what happens at one moment is in an order that is drawn.
    pub fn orderly() -> Self {
        Self {
            weight_tasks: 1,
            weight_mail: 1,
            weight_timers: 1,
            weight_requests: 1,
            out_of_order: 0,
            ticks: 0,
            tick_ns_max: 1,
            pauses: 0,
            pause_ns_max: 1,
        }
    }

    /// A schedule with habits of its own: some runs are nearly orderly, some are wild.
    pub fn drawn(rng: &mut Rng) -> Self {
        let weights = [1, 1, 4, 16];
        Self {
            weight_tasks: rng.pick(&weights),
            weight_mail: rng.pick(&weights),
            weight_timers: rng.pick(&weights),
            weight_requests: rng.pick(&weights),
            out_of_order: rng.pick(&[0, 32, 256, 768]),
            ticks: rng.pick(&[0, 16, 128, 512]),
            tick_ns_max: rng.pick(&[100, 2_000, 100_000]),
            pauses: rng.pick(&[0, 0, 30, 300]),
            pause_ns_max: rng.pick(&[50_000, 5_000_000, 300_000_000]),
        }
    }
}
