//! Ratios as bars, one under the other, each with its range.

use anyhow::Result;
use plotters::prelude::*;

use super::cells::Cell;
use super::results::Spread;
use crate::axis::{Axis, COLORS, Picture, Side, in_figures};

const WIDTH: u32 = 760;
/// Of a bar with the room around it, and of all else.
const BAR_HEIGHT: u32 = 26;
const REST_HEIGHT: u32 = 90;
/// Half of a bar, by the distance between two.
const HALF: f64 = 0.32;

/// A bar for each cell; reads and writes differ in colour.
pub fn svg(title: &str, bars: &[(Cell, Spread)]) -> Result<String> {
    let count = u32::try_from(bars.len())?;
    // The first one on top.
    let place = |index: usize| f64::from(count) - 1.0 - f64::from(u32::try_from(index).unwrap_or(0));
    let top = bars.iter().map(|(_, ratio)| ratio.high).fold(1.0, f64::max);
    let ends = (-0.6, f64::from(count) - 0.4);
    let down = Axis { range: ends.0..ends.1, places: (0..bars.len()).map(place).collect() };
    let label = |at: f64| {
        let found = (0..bars.len()).find(|&index| (place(index) - at).abs() < 1e-6);
        found.map_or(String::new(), |index| bars[index].0.to_string())
    };
    Picture {
        title,
        size: (WIDTH, REST_HEIGHT + count * BAR_HEIGHT),
        across: Side { axis: Axis::rising(top, 0.0), label: &in_figures, words: "", room: 30 },
        rising: Side { axis: down, label: &label, words: "", room: 210 },
        has_lines_up: true,
        names: None,
    }
    .svg(|area| {
        for (index, (cell, ratio)) in bars.iter().enumerate() {
            let (color, at) = (COLORS[usize::from(!cell.reads)], place(index));
            let bar = Rectangle::new([(0.0, at - HALF), (ratio.median, at + HALF)], color.filled());
            area.draw_series([bar])?;
            let range = PathElement::new(vec![(ratio.low, at), (ratio.high, at)], BLACK.stroke_width(2));
            area.draw_series([range])?;
        }
        area.draw_series([PathElement::new(vec![(1.0, ends.0), (1.0, ends.1)], BLACK.stroke_width(1))])?;
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::results::tests::cell;

    #[test]
    fn every_cell_has_its_name_and_a_bar_on_a_white_ground() {
        let ratio = Spread { median: 1.5, low: 0.5, high: 2.0 };
        let text = svg("RAID5", &[(cell(), ratio), (Cell { reads: true, ..cell() }, ratio)]).unwrap();
        for word in ["RAID5", "4 KiB random writes", "4 KiB random reads", "#FFFFFF", "#0072B2", "#D55E00"] {
            assert!(text.contains(word), "{word} is missing in {text}");
        }
    }
}
