//! A figure as an SVG: a line for each series and arm.

use std::path::Path;

use anyhow::{Context, Result};
use plotters::prelude::*;

use super::experiments::{Figure, Quantity};
use super::results::{Line, Measured};
use crate::axis::{Axis, COLORS, Picture, ROOM, Side, in_figures};

const SIZE: (u32, u32) = (760, 420);
/// What takes time, as in the papers' other pictures.
const SERIES: &str = "real CPU";
/// Room above that for each line's name.
const NAME_ROOM: f64 = 0.07;
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
        let text = svg(figure, quantity, measured)?;
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

fn value(quantity: Quantity, row: &Line) -> f64 {
    match quantity {
        Quantity::Goodput => row.of_goodput,
        Quantity::LinkBytes => row.sent + row.received,
        Quantity::Latency => row.p99_ms.unwrap_or(0.0),
    }
}

fn svg(figure: &Figure, quantity: Quantity, measured: &Measured) -> Result<String> {
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
    let label = |at: f64| {
        let found = places.iter().find(|(x, _)| (place(*x) - at).abs() < 1e-6);
        found.map_or(String::new(), |(_, label)| label.clone())
    };
    let rising_label = |at: f64| in_figures(if is_log { 10_f64.powf(at) } else { at });
    let keys = places.iter().map(|(x, _)| place(*x)).collect();
    let across = Axis { range: first - margin..last + margin, places: keys };
    Picture {
        title: &format!("{} ({SERIES})", figure.title),
        size: SIZE,
        across: Side { axis: across, label: &label, words: figure.axis, room: 42 },
        rising: Side { axis: rising, label: &rising_label, words: quantity.in_words(), room: 56 },
        has_lines_up: false,
        names: Some(SeriesLabelPosition::UpperRight),
    }
    .svg(|area| {
        for ((name, rows), color) in lines.into_iter().zip(COLORS.iter().cycle()) {
            let mut points: Vec<(f64, f64)> =
                rows.iter().map(|row| (place(row.x), height(value(quantity, row)))).collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            area.draw_series(points.iter().map(|&point| Circle::new(point, 3, color.filled())))?;
            area.draw_series(LineSeries::new(points, color.stroke_width(2)))?
                .label(name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], color.stroke_width(2)));
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::experiments;
    use crate::origin::Origin;

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
            origin: Origin {
                commit: "c".to_owned(),
                date: "d".to_owned(),
                load: "0".to_owned(),
                machine: "m".to_owned(),
            },
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
        for word in ["<svg", "RAID5, a", "RAID5, b", ">\n64\n<", ">\n128\n<", figure.title, "(real CPU)"] {
            assert!(text.contains(word), "{word} is missing in {text}");
        }
        assert_eq!(text.matches("<circle").count(), 4, "{text}");
    }

    #[test]
    fn one_place_makes_no_chart() {
        let mut measured = measured();
        measured.rows.truncate(2);
        assert!(!is_drawn(&measured));
    }
}
