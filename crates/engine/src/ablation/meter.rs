//! What is counted and timed at gates and in the pool. Each shard writes its own; reading adds them up.

use pinstripe_runtime::shard;

use super::SAMPLE_EVERY;
use crate::statistics::Counter;

/// Of a kind of lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockCost {
    /// Times that it was taken, or that its place was passed where there is none.
    pub entered: u64,
    /// Times that it had to be waited for.
    pub contended: u64,
    /// Time that threads waited for it.
    pub waited_ns: u64,
    /// Time that it was held, or that the work took where there is none: what was timed, times
    /// [`SAMPLE_EVERY`].
    pub inside_ns: u64,
}

/// Of stripe writes that waited for another one of their stripe.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StripeWaits {
    /// How many did.
    pub waits: u64,
    /// How long, until they had the stripe, or had been written with another's batch.
    pub waited_ns: u64,
}

/// Of stripe writes that were handed to a worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandOffCost {
    /// How many were.
    pub handed: u64,
    /// How many of them were timed.
    pub timed: u64,
    /// Of those: from the task that got the request to the worker's.
    pub there_ns: u64,
    /// Of those: back again.
    pub back_ns: u64,
    /// Of those: from the hand-off until the task goes on.
    pub whole_ns: u64,
}

/// What the older designs' ways cost, or ours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Metered {
    /// At the stripe table.
    pub stripe: LockCost,
    /// At the counters of the bitmap.
    pub intent: LockCost,
    /// At the list of what workers are to do.
    pub list: LockCost,
    /// For stripes.
    pub stripe_waits: StripeWaits,
    /// To workers.
    pub hand_off: HandOffCost,
}

impl Metered {
    /// What came after `earlier` was taken.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let (waits, hand_off) = (&earlier.stripe_waits, &earlier.hand_off);
        Self {
            stripe: self.stripe.since(&earlier.stripe),
            intent: self.intent.since(&earlier.intent),
            list: self.list.since(&earlier.list),
            stripe_waits: StripeWaits {
                waits: self.stripe_waits.waits - waits.waits,
                waited_ns: self.stripe_waits.waited_ns - waits.waited_ns,
            },
            hand_off: HandOffCost {
                handed: self.hand_off.handed - hand_off.handed,
                timed: self.hand_off.timed - hand_off.timed,
                there_ns: self.hand_off.there_ns - hand_off.there_ns,
                back_ns: self.hand_off.back_ns - hand_off.back_ns,
                whole_ns: self.hand_off.whole_ns - hand_off.whole_ns,
            },
        }
    }
}

impl LockCost {
    fn since(&self, earlier: &Self) -> Self {
        Self {
            entered: self.entered - earlier.entered,
            contended: self.contended - earlier.contended,
            waited_ns: self.waited_ns - earlier.waited_ns,
            inside_ns: self.inside_ns - earlier.inside_ns,
        }
    }
}

/// One shard's part of a [`LockCost`].
#[derive(Default)]
pub(super) struct LockMeter {
    pub(super) entered: Counter,
    pub(super) contended: Counter,
    pub(super) waited_ns: Counter,
    pub(super) inside_ns: Counter,
}

impl LockMeter {
    pub(super) fn add_to(&self, sum: &mut LockCost) {
        sum.entered += self.entered.value();
        sum.contended += self.contended.value();
        sum.waited_ns += self.waited_ns.value();
        sum.inside_ns += self.inside_ns.value();
    }
}

/// One shard's part of [`StripeWaits`].
#[derive(Default)]
pub(super) struct WaitMeter {
    pub(super) waits: Counter,
    pub(super) waited_ns: Counter,
}

/// One shard's part of a [`HandOffCost`].
#[derive(Default)]
pub(super) struct HandOffMeter {
    pub(super) handed: Counter,
    pub(super) timed: Counter,
    pub(super) there_ns: Counter,
    pub(super) back_ns: Counter,
    pub(super) whole_ns: Counter,
}

/// Whether number `count` is timed. Which ones are looks random, so that no order of locks that comes again
/// and again is seen at one of its places only.
pub(super) fn is_timed(count: u64) -> bool {
    // Multiplied by 2^64 by the golden ratio, as in Fibonacci hashing: the high bits are well mixed.
    count.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32 & (SAMPLE_EVERY - 1) == 0
}

/// What two looks at the clock take, one after the other, at least: it is in every time that is measured.
pub(super) fn clock_ns() -> u64 {
    let look = |_| {
        let before = shard::now();
        shard::now() - before
    };
    (0..256).map(look).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_sixteen_is_timed_whatever_the_step() {
        for step in 1..=40_u64 {
            for start in 0..step {
                let timed = (0..16_000).filter(|n| is_timed(start + n * step)).count();
                assert!((850..1150).contains(&timed), "{timed} of 16000 in steps of {step} from {start}");
            }
        }
    }
}
