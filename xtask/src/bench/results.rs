//! What was measured, as it is kept beside the page, and what the page makes of it.

use serde::{Deserialize, Serialize};

use super::cells::Cell;
use super::load::Figures;
use crate::origin::Origin;

/// One measurement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// What was measured, such as an array.
    pub subject: String,
    /// The load.
    pub cell: Cell,
    /// Which server.
    pub arm: String,
    /// The how-many-th turn of that server, from 0.
    pub pair: u32,
    /// Requests per second.
    pub iops: f64,
    /// 99 of 100 requests took at most so many microseconds.
    pub p99_us: f64,
}

impl Row {
    /// Of a measurement.
    pub fn new(subject: String, cell: Cell, arm: &str, pair: u32, figures: Figures) -> Self {
        Self { subject, cell, arm: arm.to_owned(), pair, iops: figures.iops, p99_us: figures.p99_us }
    }
}

/// Measurements of one run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Of what, when and where.
    #[serde(flatten)]
    pub origin: Origin,
    /// How long each one took.
    pub seconds: f64,
    /// All of them.
    pub rows: Vec<Row>,
}

/// The median of several pairs, the lowest and the highest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// Between the two in the middle where they are two.
    pub median: f64,
    /// The lowest.
    pub low: f64,
    /// The highest.
    pub high: f64,
}

impl Spread {
    /// Of these values, if there are any.
    pub fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let (low, high) = (*values.first()?, *values.last()?);
        let middle = [values[(values.len() - 1) / 2], values[values.len() / 2]];
        Some(Self { median: f64::midpoint(middle[0], middle[1]), low, high })
    }

    /// The same, with ends between which the median of all runs that there could be lies with 95 % at least.
    /// Of less than 9 values none is left out, and of less than 6 it is less than 95 %.
    pub fn of_median(values: impl Iterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        let left_out = left_out(values.len());
        let whole = Self::of(values.iter().copied())?;
        let kept = values.get(left_out..values.len() - left_out)?;
        Some(Self { median: whole.median, ..Self::of(kept.iter().copied())? })
    }

    /// Whether [`Self::of_median`] leaves none out of so many.
    pub fn is_whole(count: u32) -> bool {
        left_out(count as usize) == 0
    }
}

/// How many of the lowest, and as many of the highest: a value lies below the median as likely as above it.
fn left_out(count: usize) -> usize {
    const BEYOND: f64 = 0.025;
    let all = u32::try_from(count).unwrap_or(u32::MAX);
    // That exactly `below` values are below the median, and that at most so many are.
    let mut exactly = 0.5_f64.powf(f64::from(all));
    let mut at_most = exactly;
    let mut below = 0;
    while at_most <= BEYOND && below < count / 2 {
        below += 1;
        let number = u32::try_from(below).unwrap_or(u32::MAX);
        exactly *= f64::from(all - number + 1) / f64::from(number);
        at_most += exactly;
    }
    below.saturating_sub(1)
}

impl Measured {
    /// The subjects, in order.
    pub fn subjects(&self) -> Vec<&str> {
        let mut subjects: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !subjects.contains(&row.subject.as_str()) {
                subjects.push(&row.subject);
            }
        }
        subjects
    }

    /// The loads on a subject, in order.
    pub fn cells(&self, subject: &str) -> Vec<Cell> {
        let mut cells: Vec<Cell> = Vec::new();
        for row in self.rows.iter().filter(|row| row.subject == subject) {
            if !cells.contains(&row.cell) {
                cells.push(row.cell);
            }
        }
        cells
    }

    /// How often there were turns.
    pub fn pairs(&self) -> u32 {
        self.rows.iter().map(|row| row.pair + 1).max().unwrap_or(0)
    }

    fn of<'a>(&'a self, subject: &'a str, cell: Cell, arm: &'a str) -> impl Iterator<Item = &'a Row> {
        let is_it = move |row: &&Row| row.subject == subject && row.cell == cell && row.arm == arm;
        self.rows.iter().filter(is_it)
    }

    /// Of one server's rows.
    pub fn spread(&self, subject: &str, cell: Cell, arm: &str, value: fn(&Row) -> f64) -> Option<Spread> {
        Spread::of(self.of(subject, cell, arm).map(value))
    }

    /// Requests of `arm` by those of `base`, pair by pair.
    pub fn ratio(&self, subject: &str, cell: Cell, arm: &str, base: &str) -> Option<Spread> {
        let by = |row: &Row| {
            let other = self.of(subject, cell, base).find(|other| other.pair == row.pair)?;
            Some(row.iops / other.iops)
        };
        Spread::of(self.of(subject, cell, arm).filter_map(by))
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::bench::cells::State;

    #[test]
    fn the_interval_of_a_median_is_that_of_tables_of_the_binomial_distribution() {
        // As in tables of confidence intervals for a median, where the rank of the lower end is one more.
        let wanted = [(1, 0), (3, 0), (6, 0), (8, 0), (9, 1), (11, 1), (12, 2), (15, 3), (20, 5), (30, 9)];
        for (count, wanted) in wanted {
            assert_eq!(left_out(count), wanted, "of {count}");
        }
        let of = |values: &[f64]| Spread::of_median(values.iter().copied());
        let nine = of(&[9.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 100.0]).unwrap();
        assert_eq!(nine, Spread { median: 5.0, low: 2.0, high: 9.0 });
        assert_eq!(of(&[3.0, 1.0, 2.0]), Spread::of([1.0, 2.0, 3.0].into_iter()));
        assert_eq!(of(&[]), None);
    }

    pub fn cell() -> Cell {
        Cell { state: State::Healthy, sequential: false, reads: false, kib: 4, depth: 32, jobs: 1 }
    }

    /// Three pairs, in which we have 1.5, 2 and 0.5 times what MD has.
    pub fn measured() -> Measured {
        let origin = Origin {
            commit: "abc".to_owned(),
            date: "2026-01-02 03:04".to_owned(),
            load: "0.1, 0.2".to_owned(),
            machine: "2 CPUs".to_owned(),
        };
        let row = |arm: &str, pair, iops| {
            Row::new("RAID5 5+1 with bitmap".to_owned(), cell(), arm, pair, Figures { iops, p99_us: 1500.0 })
        };
        let of = |pair, md, ours, null| {
            [row("MD", pair, md), row("Pinstripe", pair, ours), row("null", pair, null)]
        };
        let pairs =
            [of(0, 1000.0, 1500.0, 3000.0), of(1, 2000.0, 4000.0, 5000.0), of(2, 1200.0, 600.0, 6000.0)];
        Measured { origin, seconds: 1.0, rows: pairs.concat() }
    }

    #[test]
    fn ratios_are_those_of_pairs_and_not_of_medians() {
        let measured = measured();
        let ratio = measured.ratio("RAID5 5+1 with bitmap", cell(), "Pinstripe", "MD").unwrap();
        assert_eq!(ratio, Spread { median: 1.5, low: 0.5, high: 2.0 });
        let md = measured.spread("RAID5 5+1 with bitmap", cell(), "MD", |row| row.iops).unwrap();
        assert_eq!(md, Spread { median: 1200.0, low: 1000.0, high: 2000.0 });
        assert_eq!((measured.pairs(), measured.cells("RAID5 5+1 with bitmap")), (3, vec![cell()]));
    }

    #[test]
    fn what_was_not_measured_has_no_ratio() {
        let measured = measured();
        assert!(measured.ratio("RAID5 5+1 with bitmap", cell(), "Pinstripe", "SPDK").is_none());
        assert!(measured.spread("RAID6", cell(), "MD", |row| row.iops).is_none());
    }
}
