//! Ground, axes and colours of the charts in the documents. The ground is white, so that they can be read on
//! a dark page too.

use std::ops::Range;

use anyhow::{Result, anyhow};
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;

/// Room above the highest point, and beside the first and the last.
pub const ROOM: f64 = 0.05;
/// Most marks of the axis that goes up.
const MARKS_MAX: f64 = 8.0;
/// Colours that the colour-blind can tell apart, too (Okabe and Ito).
pub const COLORS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// What drawing ends with.
pub type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;
/// Where series are drawn.
pub type Area<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;

/// One of the two axes, with what stands at it.
pub struct Side<'a> {
    pub axis: Axis,
    /// What stands at a mark.
    pub label: &'a dyn Fn(f64) -> String,
    /// What the axis is of, or nothing.
    pub words: &'a str,
    /// Room for these, in pixels.
    pub room: u32,
}

/// A picture without its series.
pub struct Picture<'a> {
    pub title: &'a str,
    /// In pixels.
    pub size: (u32, u32),
    pub across: Side<'a>,
    pub rising: Side<'a>,
    /// Whether lines go up from the marks across; else they go across from those that rise.
    pub has_lines_up: bool,
    /// Where the names of series are, if they have any.
    pub names: Option<SeriesLabelPosition>,
}

impl Picture<'_> {
    /// As an SVG, with what `series` draws.
    pub fn svg(self, series: impl FnOnce(&mut Area<'_, '_>) -> Drawn) -> Result<String> {
        let (mut text, title) = (String::new(), self.title);
        // The library's errors borrow from the drawing.
        self.draw(&mut text, series).map_err(|error| anyhow!("draw {title}: {error}"))?;
        Ok(text)
    }

    fn draw(self, text: &mut String, series: impl FnOnce(&mut Area<'_, '_>) -> Drawn) -> Drawn {
        let Self { title, size, across, rising, has_lines_up, names } = self;
        let marks = (across.axis.places.len(), rising.axis.places.len());
        let area = SVGBackend::with_string(text, size).into_drawing_area();
        area.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&area)
            .margin(12)
            .caption(title, ("sans-serif", 18))
            .x_label_area_size(across.room)
            .y_label_area_size(rising.room)
            .build_cartesian_2d(across.axis, rising.axis)?;
        let (across_label, rising_label) = (|at: &f64| (across.label)(*at), |at: &f64| (rising.label)(*at));
        let mut mesh = chart.configure_mesh();
        mesh.light_line_style(TRANSPARENT)
            .x_labels(marks.0)
            .y_labels(marks.1)
            .x_label_formatter(&across_label)
            .y_label_formatter(&rising_label)
            .y_desc(rising.words);
        if !across.words.is_empty() {
            mesh.x_desc(across.words);
        }
        if has_lines_up {
            mesh.disable_y_mesh()
        } else {
            mesh.disable_x_mesh()
        };
        mesh.draw()?;
        series(&mut chart)?;
        if let Some(position) = names {
            chart.configure_series_labels().position(position).background_style(WHITE.mix(0.8)).draw()?;
        }
        area.present()?;
        Ok(())
    }
}

/// An axis with marks where we want them, and nowhere else.
pub struct Axis {
    /// From one end to the other.
    pub range: Range<f64>,
    /// Where marks are.
    pub places: Vec<f64>,
}

impl Axis {
    /// From 0 to above `top`, which is not 0.
    pub fn rising(top: f64, room: f64) -> Self {
        let power = 10_f64.powf((top / MARKS_MAX).log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|times| times * power);
        let step = steps.into_iter().find(|step| top / step <= MARKS_MAX).unwrap_or(top);
        let places = (0..).map(|count| f64::from(count) * step).take_while(|place| *place <= top);
        Self { places: places.collect(), range: 0.0..top * (1.0 + ROOM + room) }
    }

    /// Powers of ten around values from `bottom` to `top`, as logarithms.
    pub fn powers(bottom: f64, top: f64, room: f64) -> Self {
        let (bottom, top) = (bottom.log10().floor(), top.log10().ceil());
        let places = (0..).map(|count| bottom + f64::from(count)).take_while(|place| *place <= top);
        Self { places: places.collect(), range: bottom..top + (top - bottom).max(1.0) * room }
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (from, to): (i32, i32)) -> i32 {
        let share = (value - self.range.start) / (self.range.end - self.range.start);
        #[expect(clippy::cast_possible_truncation, reason = "a pixel of a small picture")]
        let pixels = (f64::from(to - from) * share).round() as i32;
        from + pixels
    }

    fn key_points<H: KeyPointHint>(&self, _: H) -> Vec<f64> {
        self.places.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

/// Without digits that say nothing.
pub fn in_figures(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_and_reach_as_far_as_the_points() {
        assert_eq!(Axis::rising(0.95, 0.0).places.len(), 5, "0 to 0.8 by 0.2");
        assert_eq!(Axis::rising(7.9, 0.0).places.last(), Some(&7.0));
        assert_eq!(Axis::powers(12.0, 3200.0, 0.0).places, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!([0.2, 10.0, 1.0 / 8.0].map(in_figures), ["0.2", "10", "0.125"]);
    }
}
