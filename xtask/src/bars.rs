//! Bars in groups as an SVG: a group for each place, a bar for each arm with its median and its range.

use anyhow::Result;
use plotters::prelude::*;

use crate::axis::{Area, Axis, COLORS, Drawn, Picture, Side, in_figures};
use crate::bench::Spread;

const SIZE: (u32, u32) = (760, 380);
/// Of the place of a group, so much is bars.
const FULL: f64 = 0.7;
/// Above the highest bar, for the names of the arms.
const NAME_ROOM: f64 = 0.2;

/// A picture.
pub struct Bars<'a> {
    pub title: &'a str,
    /// What goes up.
    pub quantity: &'a str,
    /// Names of the arms.
    pub arms: Vec<String>,
    /// Name of a group, and its bars in the order of the arms.
    pub groups: Vec<(&'a str, Vec<Option<Spread>>)>,
}

impl Bars<'_> {
    /// Draws it.
    pub fn svg(&self) -> Result<String> {
        let spreads = self.groups.iter().flat_map(|(_, bars)| bars).flatten();
        let top = spreads.map(|spread| spread.high).fold(1e-3, f64::max);
        let places: Vec<f64> = (0..self.groups.len()).map(place).collect::<Result<_>>()?;
        let across = Axis { range: -0.5..place(self.groups.len())? - 0.5, places: places.clone() };
        let label = |at: f64| {
            let mut named = places.iter().zip(&self.groups);
            named.find(|(place, _)| (*place - at).abs() < 1e-6).map_or("", |(_, (name, _))| name).to_owned()
        };
        Picture {
            title: self.title,
            size: SIZE,
            across: Side { axis: across, label: &label, words: "", room: 30 },
            rising: Side {
                axis: Axis::rising(top, NAME_ROOM),
                label: &in_figures,
                words: self.quantity,
                room: 56,
            },
            has_lines_up: false,
            names: Some(SeriesLabelPosition::UpperLeft),
        }
        .svg(|area| (0..self.arms.len()).try_for_each(|index| self.arm(area, index, &places)))
    }

    fn arm(&self, area: &mut Area<'_, '_>, index: usize, places: &[f64]) -> Drawn {
        let width = FULL / place(self.arms.len())?;
        let (color, offset) = (COLORS[index % COLORS.len()], place(index)? * width - FULL / 2.0);
        let bars = || {
            let of_arm = places.iter().zip(&self.groups);
            of_arm.filter_map(move |(place, (_, bars))| Some((place + offset, bars.get(index)?.as_ref()?)))
        };
        area.draw_series(bars().map(|(x, spread)| {
            Rectangle::new([(x, 0.0), (x + width * 0.95, spread.median)], color.filled())
        }))?
        .label(&self.arms[index])
        .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], color.filled()));
        area.draw_series(bars().map(|(x, spread)| {
            let middle = x + width / 2.0;
            PathElement::new(vec![(middle, spread.low), (middle, spread.high)], BLACK.stroke_width(1))
        }))?;
        Ok(())
    }
}

fn place(index: usize) -> Result<f64> {
    Ok(f64::from(u16::try_from(index)?))
}
