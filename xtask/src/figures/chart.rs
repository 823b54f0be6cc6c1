//! Lines with error bars as an SVG, with the ground, axes and colours of the other pages' ([`crate::axis`]).

use std::ops::Range;

use anyhow::Result;
use plotters::prelude::*;

use crate::axis::{Area, Axis, COLORS, Drawn, Picture, ROOM, Side, in_figures};
use crate::bench::Spread;

const SIZE: (u32, u32) = (760, 420);
/// Room above that for each line's name.
const NAME_ROOM: f64 = 0.07;
/// Most marks of an axis of sizes.
const MARKS_MAX: usize = 14;
/// What a value is taken for that is less, where there has to be one.
const LEAST: f64 = 1e-3;

/// A line.
pub struct Series {
    pub name: String,
    /// By size or count, ascending.
    pub points: Vec<(u32, Spread)>,
}

/// A picture.
pub struct Chart<'a> {
    pub title: &'a str,
    /// What goes up.
    pub quantity: &'a str,
    /// What goes across: sizes or counts.
    pub across: &'a str,
    /// Whether that axis is logarithmic.
    pub logarithmic: bool,
    /// Whether the one that goes up is.
    pub rises_by_powers: bool,
    pub series: &'a [Series],
}

impl Chart<'_> {
    fn place(&self, kib: u32) -> f64 {
        if self.logarithmic { f64::from(kib).log2() } else { f64::from(kib) }
    }

    fn height(&self, value: f64) -> f64 {
        if self.rises_by_powers { value.max(LEAST).log10() } else { value }
    }

    /// The sizes that are marked.
    fn marks(&self) -> Vec<u32> {
        let mut sizes: Vec<u32> =
            self.series.iter().flat_map(|series| series.points.iter().map(|(kib, _)| *kib)).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let step = sizes.len().div_ceil(MARKS_MAX).max(1);
        sizes.into_iter().step_by(step).collect()
    }

    fn span(&self) -> Range<f64> {
        let places = || self.series.iter().flat_map(|series| &series.points).map(|(kib, _)| self.place(*kib));
        let (first, last) = (places().fold(f64::INFINITY, f64::min), places().fold(0.0, f64::max));
        let margin = (last - first).max(1.0) * ROOM;
        first - margin..last + margin
    }

    /// Draws it.
    pub fn svg(&self) -> Result<String> {
        let marks = self.marks();
        let label = |at: f64| {
            let found = marks.iter().find(|kib| (self.place(**kib) - at).abs() < 1e-6);
            found.map_or(String::new(), ToString::to_string)
        };
        let values = || self.series.iter().flat_map(|series| &series.points);
        let top = values().map(|(_, spread)| spread.high).fold(LEAST, f64::max);
        let bottom = values().map(|(_, spread)| spread.low).fold(top, f64::min).max(LEAST);
        let room = NAME_ROOM * f64::from(u16::try_from(self.series.len())?);
        let rising =
            if self.rises_by_powers { Axis::powers(bottom, top, room) } else { Axis::rising(top, room) };
        let rising_label = |at: f64| in_figures(if self.rises_by_powers { 10_f64.powf(at) } else { at });
        let across = Axis { range: self.span(), places: marks.iter().map(|kib| self.place(*kib)).collect() };
        Picture {
            title: self.title,
            size: SIZE,
            across: Side { axis: across, label: &label, words: self.across, room: 42 },
            rising: Side { axis: rising, label: &rising_label, words: self.quantity, room: 56 },
            has_lines_up: false,
            names: Some(SeriesLabelPosition::UpperLeft),
        }
        .svg(|area| {
            let mut lines = self.series.iter().zip(COLORS.iter().cycle());
            lines.try_for_each(|(series, color)| self.line(area, series, *color))
        })
    }

    fn line(&self, area: &mut Area<'_, '_>, series: &Series, color: RGBColor) -> Drawn {
        let points = |of: fn(&Spread) -> f64| {
            series.points.iter().map(move |(kib, spread)| (self.place(*kib), self.height(of(spread))))
        };
        let (lows, highs) = (points(|spread| spread.low), points(|spread| spread.high));
        area.draw_series(
            lows.zip(highs).map(|(low, high)| PathElement::new(vec![low, high], color.stroke_width(1))),
        )?;
        let medians = || points(|spread| spread.median);
        area.draw_series(medians().map(|median| Circle::new(median, 2, color.filled())))?;
        area.draw_series(LineSeries::new(medians(), color.stroke_width(2)))?
            .label(series.name.as_str())
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(2)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_names_its_lines_and_shows_the_range_of_each_point() {
        let point = |median: f64| Spread { median, low: median - 1.0, high: median + 1.0 };
        let line =
            |name: &str| Series { name: name.to_owned(), points: vec![(4, point(2.0)), (64, point(3.0))] };
        let series = [line("RAID4S"), line("RAID5")];
        let chart = |rises_by_powers| {
            let (title, across, quantity) = ("writes", "KiB", "MB/s");
            Chart { title, across, quantity, logarithmic: true, rises_by_powers, series: &series }.svg()
        };
        let text = chart(false).unwrap();
        for word in ["<svg", "RAID4S", "RAID5", ">\n4\n<", ">\n64\n<", "writes", "#FFFFFF", "#0072B2"] {
            assert!(text.contains(word), "{word} is missing in {text}");
        }
        assert_eq!(text.matches("<circle").count(), 4);
        let powers = chart(true).unwrap();
        assert!(powers.contains(">\n10\n<") && !text.contains(">\n10\n<"), "{powers}");
    }
}
