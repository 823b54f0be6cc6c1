//! Rounds in which two arms do the same, one right after the other: what their runs give together, and the
//! table in which runs are kept.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::experiments::Arm;
use crate::bench::Spread;

/// The arms, in the order in which they are measured: the host's way, and the servers'.
pub const ARMS: [Arm; 2] = [Arm::HostCentric, Arm::Offload];

/// One arm at one point, once.
pub trait Run: Sized {
    /// What is measured with both arms.
    type Point: Copy + Ord;
    /// The table's first line.
    const HEAD: &'static str;

    /// The point, the arm and the round.
    fn place(&self) -> (Self::Point, Arm, u32);
    /// Operations a second.
    fn rate(&self) -> f64;
    /// As a line of the table.
    fn line(&self) -> String;
    fn parse(line: &str) -> Option<Self>;
}

/// What all runs give together.
pub trait Rounds<R: Run> {
    /// A quantity of a point's runs with this arm.
    fn spread(&self, point: R::Point, arm: Arm, quantity: impl Fn(&R) -> f64) -> Option<Spread>;
    /// The servers' way by the host's, round by round.
    fn gain(&self, point: R::Point) -> Option<Spread>;
    /// What was measured, in order.
    fn points(&self) -> Vec<R::Point>;
}

fn of<R: Run>(runs: &[R], point: R::Point, arm: Arm) -> impl Iterator<Item = (u32, &R)> {
    runs.iter().filter_map(move |run| {
        let (at, by, round) = run.place();
        (at == point && by == arm).then_some((round, run))
    })
}

impl<R: Run> Rounds<R> for [R] {
    fn spread(&self, point: R::Point, arm: Arm, quantity: impl Fn(&R) -> f64) -> Option<Spread> {
        Spread::of(of(self, point, arm).map(|(_, run)| quantity(run)))
    }

    fn gain(&self, point: R::Point) -> Option<Spread> {
        let [host, servers] = ARMS;
        let pair = |(round, run): (u32, &R)| {
            let (_, other) = of(self, point, servers).find(|(other, _)| *other == round)?;
            Some(other.rate() / run.rate())
        };
        Spread::of(of(self, point, host).filter_map(pair))
    }

    fn points(&self) -> Vec<R::Point> {
        let mut points: Vec<R::Point> = self.iter().map(|run| run.place().0).collect();
        points.sort_unstable();
        points.dedup();
        points
    }
}

/// Keeps the table.
pub fn save<R: Run>(runs: &[R], file: &Path) -> Result<()> {
    let csv = runs.iter().fold(format!("{}\n", R::HEAD), |text, run| text + &run.line() + "\n");
    fs::write(file, csv).with_context(|| format!("write {}", file.display()))
}

/// What [`save`] has kept.
pub fn load<R: Run>(file: &Path) -> Result<Vec<R>> {
    let name = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("read {name}"))?;
    let mut lines = text.lines();
    ensure!(lines.next() == Some(R::HEAD), "{name} has other columns than this version's");
    lines.map(|line| R::parse(line).with_context(|| format!("{name}: {line}"))).collect()
}

/// Puts numbers at a line's end.
pub fn put(line: &mut String, numbers: &[f64]) {
    for number in numbers {
        let _ =
            if number.fract() == 0.0 { write!(line, ",{number:.0}") } else { write!(line, ",{number:.4}") };
    }
}

/// As many numbers as there must be.
pub fn numbers<const N: usize>(words: &[&str]) -> Option<[f64; N]> {
    let numbers: Option<Vec<f64>> = words.iter().map(|word| word.parse().ok()).collect();
    numbers?.try_into().ok()
}

/// The arm of this name.
pub fn arm(name: &str) -> Option<Arm> {
    ARMS.into_iter().find(|arm| arm.name() == name)
}

#[expect(clippy::cast_precision_loss, reason = "ratios need no 53 bits")]
pub fn whole(bytes: u64) -> f64 {
    bytes as f64
}
