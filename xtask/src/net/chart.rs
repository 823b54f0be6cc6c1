//! A figure as an SVG: a line for each series and arm.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint};
use plotters::prelude::*;

use super::experiments::{Figure, Quantity};
use super::results::{Line, Measured};

const SIZE: (u32, u32) = (760, 420);
/// Room above the highest point, and beside the first and the last.
const ROOM: f64 = 0.05;
/// Room above that for each line's name.
const NAME_ROOM: f64 = 0.07;
/// Most marks of the axis that goes up.
const MARKS_MAX: f64 = 8.0;
/// Colours that the colour-blind can tell apart, too (Okabe and Ito).
const COLORS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// Whether there is more than one place on the axis: what has only one is a table.
fn is_drawn(measured: &Measured) -> bool {
    places(measured).len() > 1
}

/// The charts' files, and what each shows, if [`is_drawn`].
pub fn files(figure: &Figure, measured: &Measured) -> Vec<(String, Quantity)> {
    let quantities = if is_drawn(measured) { figure.quantities } else { &[] };
    quantities
        .iter()
        .map(|&quantity| (format!("{}{}.svg", figure.name, quantity.suffix()), quantity))
        .collect()
}

/// Draws them into this folder.
pub fn draw(figure: &Figure, measured: &Measured, folder: &Path) -> Result<()> {
    for (name, quantity) in files(figure, measured) {
        // The library's errors borrow from the drawing.
        let text = svg(figure, quantity, measured).map_err(|error| anyhow!("draw {name}: {error}"))?;
        std::fs::write(folder.join(&name), text).with_context(|| format!("write {name}"))?;
    }
    Ok(())
}

/// The places on the axis, from left to right, with their labels.
fn places(measured: &Measured) -> Vec<(f64, String)> {
    let mut places: Vec<(f64, String)> = Vec::new();
    for row in &measured.rows {
        if places.iter().all(|(x, _)| (x - row.x).abs() > 1e-9) {
            // The unit stands at the axis.
            let label = row.label.split(' ').next().unwrap_or_default();
            places.push((row.x, label.to_owned()));
        }
    }
    places.sort_by(|a, b| a.0.total_cmp(&b.0));
    places
}

/// The lines, in the order of the table.
fn lines(measured: &Measured) -> Vec<(String, Vec<&Line>)> {
    let mut lines: Vec<(String, Vec<&Line>)> = Vec::new();
    for row in &measured.rows {
        let name = format!("{}, {}", row.series, row.arm);
        match lines.iter_mut().find(|(other, _)| *other == name) {
            Some((_, rows)) => rows.push(row),
            None => lines.push((name, vec![row])),
        }
    }
    lines
}

/// An axis with marks where we want them, and nowhere else.
struct Axis {
    range: Range<f64>,
    places: Vec<f64>,
}

impl Axis {
    /// From 0 to above `top`, which is not 0.
    fn rising(top: f64, room: f64) -> Self {
        let power = 10_f64.powf((top / MARKS_MAX).log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|times| times * power);
        let step = steps.into_iter().find(|step| top / step <= MARKS_MAX).unwrap_or(top);
        let places = (0..).map(|count| f64::from(count) * step).take_while(|place| *place <= top);
        Self { places: places.collect(), range: 0.0..top * (1.0 + ROOM + room) }
    }

    /// Powers of ten around values from `bottom` to `top`, as logarithms.
    fn powers(bottom: f64, top: f64, room: f64) -> Self {
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

fn value(quantity: Quantity, row: &Line) -> f64 {
    match quantity {
        Quantity::Goodput => row.of_goodput,
        Quantity::LinkBytes => row.sent + row.received,
        Quantity::Latency => row.p99_ms.unwrap_or(0.0),
    }
}

/// Without digits that say nothing.
fn in_figures(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn svg(
    figure: &Figure,
    quantity: Quantity,
    measured: &Measured,
) -> Result<String, Box<dyn std::error::Error>> {
    let place = |x: f64| if figure.logarithmic { x.log2() } else { x };
    let places = places(measured);
    let (first, last) = (place(places[0].0), place(places[places.len() - 1].0));
    let margin = (last - first) * ROOM;
    let lines = lines(measured);
    let values = || measured.rows.iter().map(|row| value(quantity, row));
    let (bottom, top) = (values().fold(f64::INFINITY, f64::min).max(1e-3), values().fold(1e-3, f64::max));
    let room = NAME_ROOM * f64::from(u16::try_from(lines.len())?);
    let is_log = quantity == Quantity::Latency;
    let rising = if is_log { Axis::powers(bottom, top, room) } else { Axis::rising(top, room) };
    let height = |value: f64| if is_log { value.max(bottom).log10() } else { value };
    let label = |at: &f64| {
        let found = places.iter().find(|(x, _)| (place(*x) - at).abs() < 1e-6);
        found.map_or(String::new(), |(_, label)| label.clone())
    };
    let mut text = String::new();
    {
        let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let keys = places.iter().map(|(x, _)| place(*x)).collect();
        let axis = Axis { range: first - margin..last + margin, places: keys };
        let mut chart = ChartBuilder::on(&area)
            .margin(12)
            .caption(figure.title, ("sans-serif", 18))
            .x_label_area_size(42)
            .y_label_area_size(56)
            .build_cartesian_2d(axis, rising)?;
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .x_labels(places.len())
            .x_label_formatter(&label)
            .y_label_formatter(&|at| in_figures(if is_log { 10_f64.powf(*at) } else { *at }))
            .x_desc(figure.axis)
            .y_desc(quantity.in_words())
            .draw()?;
        for (index, (name, rows)) in lines.into_iter().enumerate() {
            let color = COLORS[index % COLORS.len()];
            let mut points: Vec<(f64, f64)> =
                rows.iter().map(|row| (place(row.x), height(value(quantity, row)))).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, color.filled())))?;
            chart
                .draw_series(LineSeries::new(points, color.stroke_width(2)))?
                .label(name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(2)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.8))
            .draw()?;
        area.present()?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::experiments;

    fn measured() -> Measured {
        let row = |arm: &str, x: f64, of_goodput: f64| Line {
            series: "RAID5".to_owned(),
            arm: arm.to_owned(),
            x,
            label: format!("{x} KiB"),
            bytes_per_second: 1e6,
            of_goodput,
            bound: None,
            sent: 1.0,
            received: 1.0,
            p50_ms: Some(1.0),
            p99_ms: Some(2.0),
            client_cpu: 1.0,
            servers_cpu: 1.0,
            busy: 0.5,
        };
        Measured {
            commit: "c".to_owned(),
            date: "d".to_owned(),
            load: "0".to_owned(),
            machine: "m".to_owned(),
            seconds: 1.0,
            mbit: 500.0,
            goodput_write: 1e6,
            goodput_read: 1e6,
            rows: vec![row("a", 64.0, 0.5), row("b", 64.0, 0.9), row("a", 128.0, 0.4), row("b", 128.0, 0.8)],
        }
    }

    #[test]
    fn a_chart_names_its_lines_and_its_places() {
        let figures = experiments::all(1.0);
        let figure = figures.iter().find(|figure| figure.name == "reads-by-size").unwrap();
        let text = svg(figure, Quantity::Goodput, &measured()).unwrap();
        for word in ["<svg", "RAID5, a", "RAID5, b", ">\n64\n<", ">\n128\n<", figure.title] {
            assert!(text.contains(word), "{word} is missing in {text}");
        }
        assert_eq!(text.matches("<circle").count(), 4, "{text}");
    }

    #[test]
    fn marks_are_round_and_reach_as_far_as_the_points() {
        assert_eq!(Axis::rising(0.95, 0.0).places.len(), 5, "0 to 0.8 by 0.2");
        assert_eq!(Axis::rising(7.9, 0.0).places.last(), Some(&7.0));
        assert_eq!(Axis::powers(12.0, 3200.0, 0.0).places, [1.0, 2.0, 3.0, 4.0]);
        assert_eq!([0.2, 10.0, 1.0 / 8.0].map(in_figures), ["0.2", "10", "0.125"]);
    }

    #[test]
    fn one_place_makes_no_chart() {
        let mut measured = measured();
        measured.rows.truncate(2);
        assert!(!is_drawn(&measured));
    }
}
