//! Two runs of a paper beside each other: at how many points the bars overlap; and a few points beside those
//! of the documents.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Result, ensure};

use super::experiment::{At, Row, Rows, Series};
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

/// One seed of a virtual device: where, its throughput now, and that on record.
pub type Point = (String, f64, f64);

/// How much of it may have changed until the figures are to be measured anew. What the engine draws, and
/// when, changes a seed by a few percent; a policy that has become worse changes it by more.
const CHANGE_MAX: f64 = 0.05;

/// The points of virtual devices that are on record.
pub fn points(ours: &Rows, record: &Rows) -> Vec<Point> {
    let is_virtual = |row: &&Row| row.series == Series::Virtual.name();
    let point = |row: &Row| {
        let is_it = |other: &&Row| {
            (&other.experiment, &other.place, &other.arm, other.round)
                == (&row.experiment, &row.place, &row.arm, row.round)
        };
        let other = record.0.iter().find(is_it)?.value(Quantity::Throughput)?;
        let name = format!("{}, {}, {}, seed {}", row.experiment, row.place, row.arm, row.round);
        Some((name, row.value(Quantity::Throughput)?, other))
    };
    ours.0.iter().filter(is_virtual).filter_map(point).collect()
}

/// Fails if there is no point, or one has changed.
pub fn unchanged(points: &[Point]) -> Result<()> {
    ensure!(!points.is_empty(), "no point of it is on record");
    let changed = |(_, now, record): &&Point| (now / record - 1.0).abs() > CHANGE_MAX;
    let words = |(name, now, record): &Point| format!("{name}: {now:.1} and {record:.1} on record");
    let changed: Vec<String> = points.iter().filter(changed).map(words).collect();
    ensure!(
        changed.is_empty(),
        "the documents' figures are older than the program; if the change is wanted, measure them again:\n{}",
        changed.join("\n")
    );
    Ok(())
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

    #[test]
    fn a_seed_that_has_changed_much_is_named() {
        let rows = |values: [(&str, u32, f64); 2]| {
            let row = |(arm, seed, value)| {
                let mut row = throughput("e", "1", arm, seed, value);
                Series::Virtual.name().clone_into(&mut row.series);
                row
            };
            Rows(values.map(row).to_vec())
        };
        let record = rows([("a", 1, 100.0), ("a", 2, 90.0)]);
        unchanged(&points(&rows([("a", 1, 96.0), ("a", 2, 94.0)]), &record)).unwrap();
        let error = unchanged(&points(&rows([("a", 1, 100.0), ("a", 2, 80.0)]), &record)).unwrap_err();
        assert!(error.to_string().ends_with(":\ne, 1, a, seed 2: 80.0 and 90.0 on record"), "{error}");
        assert!(unchanged(&points(&rows([("b", 1, 100.0), ("a", 3, 90.0)]), &record)).is_err());
        let real = Rows(vec![throughput("e", "1", "a", 1, 5.0)]);
        assert!(points(&real, &real).is_empty(), "another machine has other numbers");
    }
}
