//! Latencies as a file that programs draw: the text form of HdrHistogram's percentiles (`.hgrm`).

use std::{
    fmt::Write as _,
    fs::{self, File},
};

use hdrhistogram::Histogram;

use crate::{arguments::BenchArgs, run::BenchError};

/// Lines for each halving of the distance to 100 %.
const TICKS: u32 = 5;

/// Writes latencies to the file of `--histogram`, if there is one.
pub(crate) fn keep(arguments: &BenchArgs, latency: &Histogram<u64>) -> Result<(), BenchError> {
    let Some(path) = &arguments.histogram else { return Ok(()) };
    fs::write(path, text(latency)).map_err(|error| BenchError::Histogram { path: path.clone(), error })
}

/// Whether [`keep`] will be able to. What the file holds stays until then.
pub(crate) fn can_be_kept(arguments: &BenchArgs) -> Result<(), BenchError> {
    let Some(path) = &arguments.histogram else { return Ok(()) };
    let is_new = !path.exists();
    if !is_new && !path.is_file() {
        // The reader of a pipe would take this for all.
        return Ok(());
    }
    let opened = File::options().create(true).append(true).open(path);
    if is_new && opened.is_ok() {
        // A run that is refused leaves nothing.
        let _ = fs::remove_file(path);
    }
    opened.map(drop).map_err(|error| BenchError::Histogram { path: path.clone(), error })
}

/// Nanoseconds go in, microseconds come out.
#[expect(clippy::cast_precision_loss, reason = "three digits are exact")]
fn text(latency: &Histogram<u64>) -> String {
    let mut text =
        format!("{:>12} {:>14} {:>10} {:>14}\n\n", "Value", "Percentile", "TotalCount", "1/(1-Percentile)");
    let mut total = 0;
    for point in latency.iter_quantiles(TICKS) {
        total += point.count_since_last_iteration();
        let (value, quantile) = (point.value_iterated_to() as f64 / 1e3, point.quantile_iterated_to());
        let _ = write!(text, "{value:>12.3} {quantile:>2.12} {total:>10}");
        // The last line has none.
        let _ = match 1.0 - quantile {
            rest if rest > 0.0 => writeln!(text, " {:>14.2}", 1.0 / rest),
            _ => writeln!(text),
        };
    }
    let (mean, deviation, max) = (latency.mean() / 1e3, latency.stdev() / 1e3, latency.max() as f64 / 1e3);
    let _ = writeln!(text, "#[Mean    = {mean:>12.3}, StdDeviation   = {deviation:>12.3}]");
    let _ = writeln!(text, "#[Max     = {max:>12.3}, Total count    = {:>12}]", latency.len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_in_microseconds_and_reach_all_requests() {
        let mut latency = crate::worker::histogram();
        for microseconds in 1..=1000 {
            latency.record(microseconds * 1000).unwrap();
        }
        let text = text(&latency);
        let mut lines = text.lines();
        let heads: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
        assert_eq!(heads, ["Value", "Percentile", "TotalCount", "1/(1-Percentile)"]);
        let rows: Vec<Vec<f64>> = lines
            .filter(|line| !line.is_empty() && !line.starts_with('#'))
            .map(|line| line.split_whitespace().map(|word| word.parse().unwrap()).collect())
            .collect();
        let half = rows.iter().find(|row| (row[1] - 0.5).abs() < 1e-9).unwrap();
        assert!(
            (half[0] - 500.0).abs() < 1.0 && (half[2] - 500.0).abs() < 2.0 && (half[3] - 2.0).abs() < 1e-9,
            "{half:?}"
        );
        let last = rows.last().unwrap();
        assert!(
            last.len() == 3 && (last[0] - 1000.0).abs() < 1.0 && (last[2] - 1000.0).abs() < 1e-9,
            "{last:?}"
        );
        assert!(rows.is_sorted_by(|a, b| a[0] <= b[0] && a[2] <= b[2]));
        assert!(text.contains("Total count    =         1000]"), "{text}");
    }
}
