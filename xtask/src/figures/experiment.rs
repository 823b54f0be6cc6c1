//! What is run for a paper's figures, in turns, and the table of what came of it.
//!
//! ```text
//!   Experiment = a load x places (threads, depths or loads) x arms
//!   a round goes through places; at each one the arms take turns, one right after the other
//! ```
//!
//! So what else the machine does meets all arms of a round about alike, and ratios are taken within rounds.
//! A real CPU has one run at a time. Virtual devices have as many as there are CPUs: their time is their own.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};

use super::quantity::{ALL, Quantity};
use crate::bench::Spread;
use crate::workers;

/// What takes time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Series {
    /// Members in memory.
    Real,
    /// Models of drives.
    Virtual,
}

impl Series {
    /// As reports and tables call it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Real => "real CPU",
            Self::Virtual => "virtual device",
        }
    }
}

/// What changes from point to point.
#[derive(Clone, Copy)]
pub enum Places {
    /// Threads that serve the array: these, as far as the machine has CPUs, and as many as it has.
    Threads(&'static [usize]),
    /// Requests under way, under virtual time.
    Depths(&'static [usize]),
    /// Loads or arrays, each with what bench is told, with as many threads as the machine has CPUs.
    Named(&'static [(&'static str, &'static str)]),
}

/// A name, and what bench is told.
pub type Arm = (&'static str, &'static str);

/// A comparison.
pub struct Experiment {
    pub name: &'static str,
    /// In words, for pictures.
    pub title: &'static str,
    pub series: Series,
    pub places: Places,
    pub arms: &'static [Arm],
    /// What bench is told at every point.
    pub options: &'static str,
    /// Whether it is among those few by which CI sees that all works.
    pub is_short: bool,
}

/// One run, not yet done.
#[derive(Clone, Debug)]
pub struct Task {
    pub series: Series,
    experiment: &'static str,
    place: String,
    arm: &'static str,
    round: u32,
    pub arguments: Vec<String>,
}

/// One run.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub series: String,
    pub experiment: String,
    pub place: String,
    pub arm: String,
    pub round: u32,
    /// What was measured.
    pub values: Vec<(Quantity, f64)>,
}

impl Row {
    pub fn value(&self, quantity: Quantity) -> Option<f64> {
        self.values.iter().find(|(each, _)| *each == quantity).map(|(_, value)| *value)
    }
}

impl Experiment {
    /// The places on a machine with so many CPUs, with what bench is told there.
    fn places(&self, cpus: usize, is_short: bool) -> Vec<(String, String)> {
        let mut places: Vec<(String, String)> = match self.places {
            Places::Threads(threads) => {
                let mut counts: Vec<usize> = threads.iter().copied().filter(|count| *count <= cpus).collect();
                if threads.iter().any(|count| *count > cpus) && !counts.contains(&cpus) {
                    counts.push(cpus);
                }
                counts.iter().map(|count| (count.to_string(), format!("--shards {count}"))).collect()
            }
            Places::Depths(depths) => {
                depths.iter().map(|depth| (depth.to_string(), format!("--depth {depth}"))).collect()
            }
            Places::Named(named) => {
                let shards =
                    if self.series == Series::Real { format!(" --shards {cpus}") } else { String::new() };
                named.iter().map(|(name, words)| ((*name).to_owned(), format!("{words}{shards}"))).collect()
            }
        };
        if is_short {
            places = places.split_off(places.len().saturating_sub(1));
        }
        places
    }

    /// Whether it replays traces.
    pub fn is_replay(&self) -> bool {
        let has = |words: &str| words.contains("--synthetic") || words.contains("--trace");
        has(self.options)
            || matches!(self.places, Places::Named(named) if named.iter().any(|(_, words)| has(words)))
    }

    /// What the places are.
    pub fn across(&self) -> &'static str {
        match self.places {
            Places::Threads(_) => "threads",
            Places::Depths(_) => "requests under way",
            Places::Named(_) => "load",
        }
    }

    /// A place beside others.
    pub fn label(&self, place: &str) -> String {
        match self.places {
            Places::Threads(_) if place == "1" => "1 thread".to_owned(),
            Places::Threads(_) => format!("{place} threads"),
            Places::Depths(_) => format!("depth {place}"),
            Places::Named(_) => place.to_owned(),
        }
    }

    /// Runs of a round.
    pub fn tasks(&self, round: u32, cpus: usize, is_short: bool) -> Vec<Task> {
        let places = self.places(cpus, is_short);
        let of_place = |(place, words): &(String, String)| {
            let task = |&(arm, told): &Arm| {
                let seed = if self.series == Series::Virtual { round } else { 1 };
                let line = format!("{} {words} {told} --seed {seed}", self.options);
                Task {
                    series: self.series,
                    experiment: self.name,
                    place: place.clone(),
                    arm,
                    round,
                    arguments: line.split_whitespace().map(str::to_owned).collect(),
                }
            };
            // None always comes first.
            let mut arms = self.arms.to_vec();
            arms.rotate_left(round.saturating_sub(1) as usize % self.arms.len().max(1));
            arms.iter().map(task).collect::<Vec<_>>()
        };
        places.iter().flat_map(of_place).collect()
    }
}

#[cfg(test)]
impl Task {
    pub fn place(&self) -> &str {
        &self.place
    }

    pub fn arm(&self) -> &'static str {
        self.arm
    }

    pub fn round(&self) -> u32 {
        self.round
    }
}

/// Runs them all; those of the real CPU in this order.
pub fn run(pinstripe: &Path, tasks: &[Task]) -> Result<Vec<Row>> {
    let done = Mutex::new(vec![None; tasks.len()]);
    let finish = |index: usize| -> Result<()> {
        let row = measure(pinstripe, &tasks[index])?;
        done.lock().unwrap_or_else(std::sync::PoisonError::into_inner)[index] = Some(row);
        Ok(())
    };
    let of = |series| (0..tasks.len()).filter(move |&index| tasks[index].series == series);
    let real: Vec<usize> = of(Series::Real).collect();
    for (count, &index) in real.iter().enumerate() {
        if count.is_multiple_of(50) {
            eprintln!("{count} of {} runs on the real CPU", real.len());
        }
        finish(index)?;
    }
    let others: Vec<usize> = of(Series::Virtual).collect();
    eprintln!("{} runs of virtual devices", others.len());
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        while let Some(&index) = others.get(next.fetch_add(1, Ordering::Relaxed)) {
            finish(index)?;
        }
        Ok(())
    };
    workers::run(super::cpus(), work)?;
    let done = done.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    done.into_iter().map(|row| row.context("a run was left out")).collect()
}

/// One run. Bench scrubs the array and reads back what it has written, and fails if anything is wrong.
fn measure(pinstripe: &Path, task: &Task) -> Result<Row> {
    let report = super::report(pinstripe, &task.arguments)?;
    // A trace's report has no settings.
    let series = report.pointer("/settings/series").or_else(|| report.pointer("/array/series"));
    let wanted = task.series.name();
    ensure!(
        series.and_then(serde_json::Value::as_str) == Some(wanted),
        "{} isn't of a {wanted}",
        task.experiment
    );
    Ok(Row {
        series: wanted.to_owned(),
        experiment: task.experiment.to_owned(),
        place: task.place.clone(),
        arm: task.arm.to_owned(),
        round: task.round,
        values: ALL.iter().filter_map(|&quantity| Some((quantity, quantity.of(&report)?))).collect(),
    })
}

/// All that was run for a paper.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows(pub Vec<Row>);

impl Rows {
    /// The places of an experiment, in order.
    pub fn places(&self, experiment: &str) -> Vec<&str> {
        let mut places: Vec<&str> = Vec::new();
        for row in self.0.iter().filter(|row| row.experiment == experiment) {
            if !places.contains(&row.place.as_str()) {
                places.push(&row.place);
            }
        }
        places
    }

    /// How many rounds there were.
    pub fn rounds(&self, series: Series) -> u32 {
        let of = self.0.iter().filter(|row| row.series == series.name());
        of.map(|row| row.round).max().unwrap_or(0)
    }

    /// How many there were of one experiment.
    pub fn rounds_of(&self, experiment: &str) -> u32 {
        let of = self.0.iter().filter(|row| row.experiment == experiment);
        of.map(|row| row.round).max().unwrap_or(0)
    }

    fn of(&self, at: At, quantity: Quantity) -> impl Iterator<Item = (u32, f64)> {
        let is_it =
            move |row: &&Row| row.experiment == at.experiment && row.place == at.place && row.arm == at.arm;
        let value = move |row: &Row| Some((row.round, row.value(quantity)?));
        self.0.iter().filter(is_it).filter_map(value)
    }

    /// Of the rounds.
    pub fn spread(&self, at: At, quantity: Quantity) -> Option<Spread> {
        Spread::of_median(self.of(at, quantity).map(|(_, value)| value))
    }

    /// Whether this was measured anywhere.
    pub fn has(&self, experiment: &str, quantity: Quantity) -> bool {
        let arms = self.0.iter().filter(|row| row.experiment == experiment);
        arms.map(|row| At { experiment, place: &row.place, arm: &row.arm })
            .any(|at| self.of(at, quantity).next().is_some())
    }

    /// By another arm of the same place, round by round.
    pub fn ratio(&self, at: At, base: &str, quantity: Quantity) -> Option<Spread> {
        self.ratio_to(at, At { arm: base, ..at }, quantity)
    }

    /// By another point, round by round.
    pub fn ratio_to(&self, at: At, base: At, quantity: Quantity) -> Option<Spread> {
        let bases: Vec<(u32, f64)> = self.of(base, quantity).collect();
        let by = |(round, value): (u32, f64)| {
            let (_, base) = bases.iter().find(|(other, _)| *other == round)?;
            Some(value / base).filter(|ratio| ratio.is_finite())
        };
        Spread::of_median(self.of(at, quantity).filter_map(by))
    }

    /// A line a run, with these columns.
    pub fn csv(&self, columns: &[Quantity]) -> String {
        let names: Vec<&str> = columns.iter().map(|quantity| quantity.column()).collect();
        let mut text = format!("{POINT}{}\n", names.join(","));
        for row in &self.0 {
            let Row { series, experiment, place, arm, round, .. } = row;
            let value = |quantity: &Quantity| {
                row.value(*quantity).map_or(String::new(), |value| format!("{value:.4}"))
            };
            let values: Vec<String> = columns.iter().map(value).collect();
            let _ =
                writeln!(text, "{series},{experiment},\"{place}\",\"{arm}\",{round},{}", values.join(","));
        }
        text
    }

    /// What [`Self::csv`] has written.
    pub fn parse(text: &str) -> Result<Self> {
        let mut lines = text.lines();
        let Some(head) = lines.next() else { return Ok(Self::default()) };
        let columns = columns(head).with_context(|| format!("not the columns of a table: {head}"))?;
        let line = |line: &str| row(line, &columns).with_context(|| format!("not a row of a table: {line}"));
        lines.map(line).collect::<Result<_>>().map(Self)
    }
}

/// A point.
#[derive(Clone, Copy, Debug)]
pub struct At<'a> {
    pub experiment: &'a str,
    pub place: &'a str,
    pub arm: &'a str,
}

/// The columns before those of quantities.
const POINT: &str = "series,experiment,place,arm,round,";

fn columns(head: &str) -> Option<Vec<Quantity>> {
    head.strip_prefix(POINT)?.split(',').map(Quantity::called).collect()
}

fn row(line: &str, columns: &[Quantity]) -> Option<Row> {
    // Names of places and arms may have commas.
    let [before, place, _, arm, after] = line.split('"').collect::<Vec<_>>().try_into().ok()?;
    let (series, experiment) = before.strip_suffix(',')?.split_once(',')?;
    let mut after = after.strip_prefix(',')?.split(',');
    let round = after.next()?.parse().ok()?;
    let value = |text: &str| if text.is_empty() { Some(None) } else { text.parse().ok().map(Some) };
    let values: Vec<Option<f64>> = after.map(value).collect::<Option<_>>()?;
    if values.len() != columns.len() {
        return None;
    }
    let measured = columns.iter().zip(values).filter_map(|(column, value)| Some((*column, value?)));
    let [series, experiment, place, arm] = [series, experiment, place, arm].map(str::to_owned);
    Some(Row { series, experiment, place, arm, round, values: measured.collect() })
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// A row with this throughput, and nothing else.
    pub fn throughput(experiment: &str, place: &str, arm: &str, round: u32, value: f64) -> Row {
        let values = vec![(Quantity::Throughput, value)];
        let [series, experiment, place, arm] = ["real CPU", experiment, place, arm].map(str::to_owned);
        Row { series, experiment, place, arm, round, values }
    }

    impl Row {
        /// With this for every quantity.
        pub fn with_all(mut self, value: f64) -> Self {
            self.values = ALL.map(|quantity| (quantity, value)).to_vec();
            self
        }
    }

    fn at(arm: &str) -> At<'_> {
        At { experiment: "e", place: "1", arm }
    }

    #[test]
    fn ratios_are_those_of_rounds() {
        let of = |round, ours, base| {
            [throughput("e", "1", "ours, all", round, ours), throughput("e", "1", "base", round, base)]
        };
        let rows = Rows([of(1, 4.0, 2.0), of(2, 30.0, 10.0), of(3, 5.0, 5.0)].concat());
        let ratio = rows.ratio(at("ours, all"), "base", Quantity::Throughput).unwrap();
        assert_eq!(ratio, Spread { median: 2.0, low: 1.0, high: 3.0 });
        let spread = rows.spread(at("base"), Quantity::Throughput).unwrap();
        assert_eq!(spread, Spread { median: 5.0, low: 2.0, high: 10.0 });
        assert!(rows.spread(at("base"), Quantity::HandOff).is_none());
        assert!(rows.ratio(at("ours, all"), "other", Quantity::Throughput).is_none());
        assert_eq!((rows.rounds(Series::Real), rows.rounds(Series::Virtual)), (3, 0));
    }

    #[test]
    fn what_is_kept_is_read_again() {
        let rows =
            Rows(vec![throughput("e", "1", "ours, all", 1, 4.0), throughput("e", "x, y", "b", 2, 5.5)]);
        assert_eq!(Rows::parse(&rows.csv(&ALL)).unwrap(), rows);
        let parse = |columns: &str, line: &str| Rows::parse(&format!("{POINT}{columns}\n{line}\n"));
        let line = "real CPU,e,\"1\",\"a\",1,,3";
        let rows = parse("p99_us,mb_per_second", line).unwrap();
        assert_eq!(rows, Rows(vec![throughput("e", "1", "a", 1, 3.0)]), "columns are known by their names");
        assert!(parse("p99_us", line).is_err() && parse("p99_us,p99_us,mb_per_second", line).is_err());
        assert!(parse("p99_us,other", line).is_err(), "there is no such column");
        assert!(parse("mb_per_second", "real CPU,e,1,a,1").is_err());
        assert_eq!(Rows::parse("").unwrap(), Rows::default());
    }

    #[test]
    fn threads_go_as_far_as_the_machine_has_cpus() {
        let experiment = Experiment {
            name: "e",
            title: "",
            series: Series::Real,
            places: Places::Threads(&[1, 2, 4, 8]),
            arms: &[("a", "--ablate a"), ("b", "--ablate b")],
            options: "--level 5",
            is_short: true,
        };
        let threads = |cpus, is_short| {
            let all = experiment.tasks(1, cpus, is_short);
            all.iter().filter(|task| task.arm == "a").map(|task| task.place.clone()).collect::<Vec<_>>()
        };
        assert_eq!(threads(2, false), ["1", "2"]);
        assert_eq!(threads(6, false), ["1", "2", "4", "6"], "as many as it has, too");
        assert_eq!(threads(64, false), ["1", "2", "4", "8"]);
        assert_eq!(threads(6, true), ["6"]);
        let tasks = experiment.tasks(1, 2, false);
        assert_eq!(tasks.iter().map(|task| task.arm).collect::<Vec<_>>(), ["a", "b", "a", "b"], "in turns");
        assert_eq!(tasks[3].arguments.join(" "), "--level 5 --shards 2 --ablate b --seed 1");
        let next = experiment.tasks(2, 2, true);
        assert_eq!(next.iter().map(|task| task.arm).collect::<Vec<_>>(), ["b", "a"], "neither always first");
    }
}
