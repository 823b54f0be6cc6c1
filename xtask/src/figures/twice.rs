//! Two runs of a paper beside each other: at how many points the bars overlap.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Result, ensure};

use super::experiment::{At, Rows};
use super::quantity::{ALL, Quantity};
use crate::bench::Spread;

/// Of the points that both runs have, those with bars that overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    overlap: usize,
    points: usize,
}

impl Count {
    /// Takes a point into account, and tells whether its bars overlap.
    pub fn add(&mut self, ours: Spread, other: Spread) -> bool {
        let overlap = ours.low <= other.high && other.low <= ours.high;
        self.points += 1;
        self.overlap += usize::from(overlap);
        overlap
    }
}

/// Of a hundred points, as many must have bars that overlap: intervals of 95 % lie apart now and then.
const OVERLAP_PERCENT: usize = 90;

/// Fails where two runs don't agree, or have no point in common.
pub fn agree((counts, _): &Compared) -> Result<()> {
    ensure!(counts.values().any(|count| count.points > 0), "the two runs have no point in common");
    for ((series, quantity), count) in counts {
        let agrees = count.overlap * 100 >= count.points * OVERLAP_PERCENT;
        ensure!(agrees, "{series}, {quantity}: bars overlap at {count} points only");
    }
    Ok(())
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.overlap, self.points)
    }
}

/// By series and quantity, with the points with bars that lie apart.
pub type Compared = (BTreeMap<(String, &'static str), Count>, Vec<String>);

/// Of the points that both have.
pub fn compare(ours: &Rows, other: &Rows) -> Compared {
    let (mut counts, mut apart) = (BTreeMap::<_, Count>::new(), Vec::new());
    let mut points: Vec<[&str; 4]> =
        ours.0.iter().map(|row| [&*row.series, &*row.experiment, &*row.place, &*row.arm]).collect();
    points.sort_unstable();
    points.dedup();
    for [series, experiment, place, arm] in points {
        for quantity in ALL {
            let spread =
                |rows: &Rows, quantity: Quantity| rows.spread(At { experiment, place, arm }, quantity);
            let (Some(ours), Some(other)) = (spread(ours, quantity), spread(other, quantity)) else {
                continue;
            };
            let count = counts.entry((series.to_owned(), quantity.column())).or_default();
            if !count.add(ours, other) {
                apart.push(format!(
                    "{experiment}, {place}, {arm}, {}: {:.4} to {:.4} and {:.4} to {:.4}",
                    quantity.column(),
                    ours.low,
                    ours.high,
                    other.low,
                    other.high
                ));
            }
        }
    }
    (counts, apart)
}

#[cfg(test)]
mod tests {
    use super::super::experiment::tests::throughput;
    use super::*;

    #[test]
    fn bars_that_touch_overlap_and_points_of_one_run_alone_dont_count() {
        let run = |values: [(&str, u32, f64); 5]| {
            Rows(values.map(|(arm, round, value)| throughput("e", "1", arm, round, value)).to_vec())
        };
        let ours = run([("a", 1, 1.0), ("a", 2, 3.0), ("b", 1, 1.0), ("b", 2, 2.0), ("c", 1, 1.0)]);
        let other = run([("a", 1, 3.0), ("a", 2, 4.0), ("b", 1, 2.5), ("b", 2, 3.0), ("d", 1, 1.0)]);
        let (counts, apart) = compare(&ours, &other);
        assert_eq!(counts.into_values().collect::<Vec<_>>(), [Count { overlap: 1, points: 2 }]);
        assert_eq!(apart.len(), 1);
        assert!(apart[0].starts_with("e, 1, b, "), "{apart:?}");
        assert!(compare(&ours, &ours).1.is_empty());
        agree(&compare(&ours, &ours)).unwrap();
        let error = agree(&compare(&ours, &other)).unwrap_err().to_string();
        assert_eq!(error, "real CPU, mb_per_second: bars overlap at 1 of 2 points only");
        assert!(agree(&compare(&ours, &Rows::default())).is_err(), "nothing was compared");
    }
}
