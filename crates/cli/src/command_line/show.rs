//! What is asked of commands that show arrays that are served.

use std::time::Duration;

use clap::Args;

use super::ArrayArguments;

#[derive(Debug, Args)]
pub struct ListArguments {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct DetailArguments {
    #[command(flatten)]
    pub array: ArrayArguments,
    /// Give the array's state as the exit status, as mdadm does: 0 fine, 1 degraded, 2 failed, 4 not there
    #[arg(long)]
    pub test: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TopArguments {
    /// Time between two readings: seconds, or such as 500ms
    #[arg(long, short, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
    /// Print one sample as text, of two readings, and end
    #[arg(long)]
    pub once: bool,
    /// Print one sample as JSON, of two readings, and end
    #[arg(long)]
    pub json: bool,
}

/// Not shorter than a server should be asked, nor longer than a person waits.
fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let time =
        seconds.map_or_else(|| humantime::parse_duration(text).map_err(|error| error.to_string()), Ok)?;
    let allowed = Duration::from_millis(100)..=Duration::from_hours(1);
    if allowed.contains(&time) { Ok(time) } else { Err("from 100ms to 1h".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_seconds_or_has_a_unit() {
        assert_eq!(interval("2"), Ok(Duration::from_secs(2)));
        assert_eq!(interval("0.5"), Ok(Duration::from_millis(500)));
        assert_eq!(interval("3min"), Ok(Duration::from_mins(3)));
        for bad in ["", "0", "-1", "0.01", "2h", "1e300", "nan", "soon"] {
            assert!(interval(bad).is_err(), "{bad}");
        }
    }
}
