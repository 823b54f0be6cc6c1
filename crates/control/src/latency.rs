//! How long clients waited for their operations: histograms, as they travel in `detail`.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Serialize};

/// In `detail`: of all clients together, since the array was assembled.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latencies {
    /// The longest that an operation of each bucket took. One more bucket has what took longer.
    pub bounds_ns: Vec<u64>,
    /// By kind: `read`, `write`, `flush`, `discard`, `write_zeroes`.
    pub operations: BTreeMap<String, Histogram>,
}

/// How long the operations of one kind took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// Operations that are over, by how long they took. Each is in one bucket.
    pub buckets: Vec<u64>,
    /// Nanoseconds that they took together.
    pub sum_ns: u64,
}

impl Histogram {
    /// Operations in all.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, bucket| sum.saturating_add(*bucket))
    }

    /// The mean, if there were any.
    pub fn mean_ns(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.count())
    }

    /// The time within which so many of a thousand operations were over, if there were any. Within a bucket
    /// they count as spread evenly, as Prometheus' `histogram_quantile` has it; those of the last bucket
    /// count as its lower bound.
    pub fn quantile_ns(&self, bounds_ns: &[u64], of_thousand: u64) -> Option<u64> {
        let count = self.count();
        let rank = u128::from(count) * u128::from(of_thousand.min(1000)) / 1000;
        let rank = u64::try_from(rank).unwrap_or(u64::MAX).max(1);
        let (mut before, mut lower) = (0_u64, 0);
        for (bucket, bound) in self.buckets.iter().zip(bounds_ns) {
            if *bucket > 0 && before.saturating_add(*bucket) >= rank {
                let width = u128::from(bound.saturating_sub(lower));
                let part = width * u128::from(rank - before) / u128::from(*bucket);
                return Some(lower.saturating_add(u64::try_from(part).unwrap_or(u64::MAX)));
            }
            (before, lower) = (before.saturating_add(*bucket), *bound);
        }
        (count > 0).then_some(lower)
    }

    /// What was counted after `earlier` was taken, of the same run of a server.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let earlier_buckets = earlier.buckets.iter().copied().chain(std::iter::repeat(0));
        let buckets = self.buckets.iter().zip(earlier_buckets);
        Self {
            buckets: buckets.map(|(now, then)| now.saturating_sub(then)).collect(),
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
        }
    }
}

impl Latencies {
    /// For people, of one kind of operation; nothing if there were none.
    pub(crate) fn in_words(&self, operation: &str) -> Option<String> {
        let histogram = self.operations.get(operation)?;
        let mean = Nanoseconds(histogram.mean_ns()?);
        let most = Nanoseconds(histogram.quantile_ns(&self.bounds_ns, 990)?);
        Some(format!("mean {mean}, 99% within {most}, of {}", histogram.count()))
    }
}

/// A time, shown with three digits in a unit that suits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Nanoseconds(pub u64);

impl fmt::Display for Nanoseconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = match self.0 {
            1_000_000_000.. => (1_000_000_000, "s"),
            1_000_000.. => (1_000_000, "ms"),
            1000.. => (1000, "us"),
            nanoseconds => return write!(f, "{nanoseconds} ns"),
        };
        let (whole, rest) = (self.0 / unit, self.0 % unit);
        match whole {
            100.. => write!(f, "{whole} {name}"),
            10.. => write!(f, "{whole}.{} {name}", rest * 10 / unit),
            _ => write!(f, "{whole}.{:02} {name}", rest * 100 / unit),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: [u64; 3] = [1000, 2000, 4000];

    fn histogram(buckets: [u64; 4]) -> Histogram {
        Histogram { buckets: buckets.to_vec(), sum_ns: 10_000 }
    }

    #[test]
    fn a_quantile_lies_where_its_operation_lies_within_the_bucket() {
        let quantile = |buckets, of_thousand| histogram(buckets).quantile_ns(&BOUNDS, of_thousand);
        assert_eq!(quantile([0; 4], 990), None);
        assert_eq!(quantile([0, 10, 0, 0], 500), Some(1500));
        assert_eq!(quantile([0, 10, 0, 0], 1000), Some(2000));
        assert_eq!(quantile([50, 0, 50, 0], 500), Some(1000));
        assert_eq!(quantile([50, 0, 50, 0], 510), Some(2040));
        assert_eq!(quantile([1, 0, 0, 9], 500), Some(4000), "the last bucket has no upper bound");
        assert_eq!(quantile([1, 0, 0, 0], 1), Some(1000));
        assert_eq!(quantile([u64::MAX; 4], 990), Some(989), "numbers beyond all reason");
    }

    #[test]
    fn the_mean_and_what_came_later_are_those_of_the_sums() {
        let later = Histogram { buckets: vec![3, 0, 2, 0], sum_ns: 25_000 };
        assert_eq!(histogram([0; 4]).mean_ns(), None);
        assert_eq!(later.mean_ns(), Some(5000));
        let since = later.since(&histogram([1, 0, 2, 0]));
        assert_eq!(since, Histogram { buckets: vec![2, 0, 0, 0], sum_ns: 15_000 });
        assert_eq!(later.since(&Histogram::default()), later, "an older server says nothing");
    }

    #[test]
    fn times_are_shown_with_three_digits() {
        let shown = |nanoseconds| Nanoseconds(nanoseconds).to_string();
        let times = [0, 999, 1000, 12_345, 999_999, 1_500_000, 16_777_216_000, 3_600_000_000_000];
        assert_eq!(
            times.map(shown),
            ["0 ns", "999 ns", "1.00 us", "12.3 us", "999 us", "1.50 ms", "16.7 s", "3600 s"]
        );
    }

    #[test]
    fn people_read_of_what_there_was() {
        let read = histogram([0, 10, 0, 0]);
        let operations = [("read", read), ("write", histogram([0; 4]))];
        let operations = operations.map(|(name, histogram)| (name.to_owned(), histogram)).into();
        let latencies = Latencies { bounds_ns: BOUNDS.to_vec(), operations };
        assert_eq!(latencies.in_words("read").unwrap(), "mean 1.00 us, 99% within 1.90 us, of 10");
        assert_eq!((latencies.in_words("write"), latencies.in_words("flush")), (None, None));
    }
}
