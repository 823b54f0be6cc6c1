//! How long clients waited for their operations: a histogram for each kind of operation.
//!
//! ```text
//!   bucket      0       1       2      ...      23          24          25
//!   at most     1 us    2 us    4 us            8.4 s       16.8 s      for ever
//! ```
//!
//! The buckets are fixed, so that those of all shards, arrays and moments can be added and subtracted. Each
//! shard counts in its own cache lines, as [`crate::statistics`] does; reading adds them up.

use crate::statistics::Counter;

/// Buckets with a bound; one more has what took longer.
const BOUNDED: usize = 25;
/// All of them.
pub const BUCKETS: usize = BOUNDED + 1;
/// The bound of the first bucket. Each next one has twice the bound.
const FIRST_BOUND_NS: u64 = 1000;

/// What clients ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientOperation {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush that the client asked for. One that a durable discard needs is part of that.
    Flush,
    /// A discard.
    Discard,
    /// Zeroes that are written without being sent.
    WriteZeroes,
}

impl ClientOperation {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Flush, Self::Discard, Self::WriteZeroes];

    /// Its name in the control protocol and in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::WriteZeroes => "write_zeroes",
        }
    }
}

/// The longest that an operation of each bucket but the last took.
pub fn bounds_ns() -> [u64; BOUNDED] {
    std::array::from_fn(|bucket| FIRST_BOUND_NS << bucket)
}

fn bucket(nanoseconds: u64) -> usize {
    let below = (nanoseconds.max(1) - 1) / FIRST_BOUND_NS;
    let bits = u64::BITS - below.leading_zeros();
    BOUNDED.min(bits as usize)
}

/// One shard's counters.
#[derive(Default)]
pub struct LatencyCounters {
    operations: [HistogramCounters; ClientOperation::ALL.len()],
}

#[derive(Default)]
struct HistogramCounters {
    buckets: [Counter; BUCKETS],
    sum_ns: Counter,
}

impl LatencyCounters {
    /// Counts an operation that is over, whatever came of it.
    #[inline]
    pub fn add(&self, operation: ClientOperation, nanoseconds: u64) {
        let histogram = &self.operations[operation as usize];
        histogram.buckets[bucket(nanoseconds)].add(1);
        histogram.sum_ns.add(nanoseconds);
    }
}

/// How long the operations of one kind took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Operations by how long they took; see [`bounds_ns`].
    pub buckets: [u64; BUCKETS],
    /// What they took together.
    pub sum_ns: u64,
}

/// The sum over all shards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    operations: [Histogram; ClientOperation::ALL.len()],
}

impl Latencies {
    /// Adds up the counters of all shards.
    pub fn sum<'a>(shards: impl Iterator<Item = &'a LatencyCounters>) -> Self {
        let mut all = Self::default();
        for shard in shards {
            for (sum, own) in all.operations.iter_mut().zip(&shard.operations) {
                sum.sum_ns = sum.sum_ns.wrapping_add(own.sum_ns.value());
                for (bucket, counter) in sum.buckets.iter_mut().zip(&own.buckets) {
                    *bucket += counter.value();
                }
            }
        }
        all
    }

    /// Of one kind of operation.
    pub fn of(&self, operation: ClientOperation) -> &Histogram {
        &self.operations[operation as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_belongs_to_its_bucket_and_a_nanosecond_more_to_the_next() {
        for (number, bound) in bounds_ns().into_iter().enumerate() {
            assert_eq!((bucket(bound), bucket(bound + 1)), (number, number + 1), "{bound} ns");
        }
        assert_eq!((bucket(0), bucket(1), bucket(u64::MAX)), (0, 0, BOUNDED));
        assert_eq!((bounds_ns()[0], bounds_ns()[BOUNDED - 1]), (1000, 16_777_216_000));
    }

    #[test]
    fn shards_are_added_up_for_each_operation_alone() {
        let shards = [LatencyCounters::default(), LatencyCounters::default()];
        shards[0].add(ClientOperation::Read, 1500);
        shards[1].add(ClientOperation::Read, 2000);
        shards[1].add(ClientOperation::Flush, 3000);
        let all = Latencies::sum(shards.iter());
        for operation in ClientOperation::ALL {
            let Histogram { buckets, sum_ns } = all.of(operation);
            let expected = match operation {
                ClientOperation::Read => (2, 3500),
                ClientOperation::Flush => (1, 3000),
                _ => (0, 0),
            };
            assert_eq!((buckets.iter().sum::<u64>(), *sum_ns), expected, "{operation:?}");
        }
        assert_eq!(
            (all.of(ClientOperation::Read).buckets[1], all.of(ClientOperation::Flush).buckets[2]),
            (2, 1)
        );
    }
}
