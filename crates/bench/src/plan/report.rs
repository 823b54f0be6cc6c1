//! What a plan says, for people and for programs.

use std::fmt;

use pinstripe_control::size::ByteSize;
use serde::Serialize;

use super::{arguments::PlanArgs, durability::Durability, load::Sample, rebuild::RebuildTime};
use crate::{
    arguments::{BenchArgs, BitmapChoice, Pattern, PolicyChoice},
    report::{by, row},
};

/// Of several repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Interval {
    /// The average.
    pub mean: f64,
    /// The least of a repetition.
    pub min: f64,
    /// The most.
    pub max: f64,
}

impl Interval {
    fn of(samples: &[Sample], value: impl Fn(&Sample) -> f64) -> Self {
        let values = || samples.iter().map(&value);
        Self {
            mean: values().sum::<f64>() / by(samples.len() as u64, 1),
            min: values().fold(f64::INFINITY, f64::min),
            max: values().fold(f64::NEG_INFINITY, f64::max),
        }
    }
}

/// A plan: see the fields. Nothing in it was measured on the machine that made it.
#[derive(Clone, Debug, Serialize)]
pub struct PlanReport {
    /// What it was made for.
    pub settings: PlanSettings,
    /// How fast.
    pub load: LoadForecast,
    /// How long a rebuild takes with no other load; none without parity.
    pub rebuild: Option<RebuildTime>,
    /// How safe.
    pub durability: Durability,
    /// What is left out, and what is assumed, in words.
    pub assumptions: Vec<&'static str>,
}

/// What a plan was made for.
#[derive(Clone, Debug, Serialize)]
pub struct PlanSettings {
    /// MD's level number.
    pub level: i32,
    /// The members, as they were given.
    pub devices: Vec<String>,
    /// How many there are.
    pub members: usize,
    /// Bytes of a member that the array uses.
    pub member_bytes: u64,
    /// Bytes of the array.
    pub array_bytes: u64,
    /// Slots that lack their members under the load.
    pub lost: Vec<usize>,
    /// Chunk in bytes.
    pub chunk_bytes: u64,
    /// How parity updates are chosen.
    pub policy: PolicyChoice,
    /// Bytes of parity cache.
    pub cache_bytes: u64,
    /// The bitmap.
    pub bitmap: BitmapChoice,
    /// The load, in words.
    pub load: String,
    /// Requests at a time.
    pub depth: usize,
    /// Repetitions.
    pub seeds: u64,
    /// Whether flash began with its spare area used up.
    pub used_up: bool,
}

/// How fast the array would be: each value over the repetitions.
#[derive(Clone, Debug, Serialize)]
pub struct LoadForecast {
    /// Requests that were counted, of all repetitions.
    pub requests: u64,
    /// Requests per second.
    pub iops: Interval,
    /// Bytes per second.
    pub bytes_per_second: Interval,
    /// Of a request.
    pub latency_ns_mean: Interval,
    /// Half of the requests take at most this.
    pub latency_ns_p50: Interval,
    /// 99 of 100.
    pub latency_ns_p99: Interval,
    /// 999 of 1000.
    pub latency_ns_p999: Interval,
    /// Bytes that members write for a byte that clients write. `None`: clients write nothing.
    pub write_amplification: Option<Interval>,
    /// Writes of members for a write of clients.
    pub member_writes_per_write: Option<Interval>,
    /// Pages of the bitmap that members write for a write of clients.
    pub bitmap_writes_per_write: Option<Interval>,
    /// Bytes that members read for a byte that clients read or write.
    pub member_read_bytes_per_byte: Interval,
    /// Reads of members for a request of clients.
    pub member_reads_per_request: Interval,
}

impl LoadForecast {
    fn of(samples: &[Sample]) -> Self {
        let of = |value: &dyn Fn(&Sample) -> f64| Interval::of(samples, value);
        let at = |quantile: f64| of(&|sample| by(sample.latency.value_at_quantile(quantile), 1));
        let writes = samples.iter().all(|sample| sample.counts.writes > 0);
        let rate = |amount: u64, sample: &Sample| by(amount, sample.elapsed_ns) * 1e9;
        let if_written = |value: &dyn Fn(&Sample) -> f64| writes.then(|| Interval::of(samples, value));
        Self {
            requests: samples.iter().map(|sample| sample.requests).sum(),
            iops: of(&|sample| rate(sample.requests, sample)),
            bytes_per_second: of(&|sample| rate(sample.bytes, sample)),
            latency_ns_mean: of(&|sample| sample.latency.mean()),
            latency_ns_p50: at(0.5),
            latency_ns_p99: at(0.99),
            latency_ns_p999: at(0.999),
            write_amplification: if_written(&|Sample { counts, .. }| {
                by(counts.member_write_bytes, counts.write_bytes)
            }),
            member_writes_per_write: if_written(&|Sample { counts, .. }| {
                by(counts.member_writes, counts.writes)
            }),
            bitmap_writes_per_write: if_written(&|Sample { counts, .. }| {
                by(counts.bitmap_writes, counts.writes)
            }),
            member_read_bytes_per_byte: of(&|Sample { counts, .. }| {
                by(counts.member_read_bytes, counts.read_bytes + counts.write_bytes)
            }),
            member_reads_per_request: of(&|Sample { counts, .. }| {
                by(counts.member_reads, counts.reads + counts.writes)
            }),
        }
    }
}

impl PlanReport {
    pub(super) fn new(
        arguments: &PlanArgs,
        assumed: Option<&'static str>,
        bench: &BenchArgs,
        samples: &[Sample],
        (rebuild, durability): (Option<RebuildTime>, Durability),
    ) -> Self {
        Self {
            settings: PlanSettings {
                level: bench.level.number(),
                devices: arguments.devices.iter().map(ToString::to_string).collect(),
                members: bench.devices.len(),
                member_bytes: samples.first().map_or(0, |sample| sample.member_bytes),
                array_bytes: samples.first().map_or(0, |sample| sample.array_bytes),
                lost: bench.lost.clone(),
                chunk_bytes: bench.chunk,
                policy: bench.policy,
                cache_bytes: bench.cache,
                bitmap: bench.bitmap,
                load: load_in_words(arguments, bench),
                depth: bench.depth,
                seeds: arguments.seeds,
                used_up: arguments.used_up,
            },
            load: LoadForecast::of(samples),
            rebuild,
            durability,
            assumptions: assumptions(arguments, assumed, rebuild),
        }
    }

    /// As JSON, over several lines.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|_| unreachable!("keys are texts"))
    }
}

fn load_in_words(arguments: &PlanArgs, bench: &BenchArgs) -> String {
    if let Some(path) = &arguments.trace {
        let pace = if arguments.trace_time { "at its times" } else { "at full speed" };
        return format!("trace {}, {pace}", path.display());
    }
    if let Some(made) = arguments.synthetic {
        return format!("synthetic {}, {} requests", made.name(), arguments.requests);
    }
    let pattern = if bench.pattern == Pattern::Sequential { "sequential" } else { "random" };
    let rate = bench.rate.map_or_else(String::new, |rate| format!(", {}/s", ByteSize(rate)));
    format!("{pattern}, {} bytes, {}% reads{rate}", bench.size, bench.reads)
}

fn assumptions(
    arguments: &PlanArgs,
    assumed: Option<&'static str>,
    rebuild: Option<RebuildTime>,
) -> Vec<&'static str> {
    let mut all = vec![
        "nothing but the drives takes time: not the CPU, a bus, a network or an export",
        "drives are as their models say; every drive of a model is as fast as the others",
    ];
    if !arguments.used_up {
        all.push("flash is fresh: --used-up is for drives that are written all the time");
    }
    if !arguments.lost.is_empty() {
        all.push("the probability of loss begins with all members there");
    }
    all.extend(assumed);
    if rebuild.is_some_and(|rebuild| rebuild.scaled) {
        all.push("the rebuild has no other load, and is scaled by size from members of 64 and 192 MiB");
    } else if rebuild.is_some() {
        all.push("the rebuild has no other load");
    }
    all.extend([
        "failures are independent and as likely at any age; one lost sector counts as a loss",
        "one parity: Patterson, Gibson, Katz, SIGMOD 1988; two, and unreadable sectors: Chen et al., ACM CSUR 26(2), 1994",
        "latent errors until the next scrub: Schwarz et al., MASCOTS 2004; Elerath, Pecht, DSN 2007",
    ]);
    all
}

/// A value with the span of its repetitions.
struct Shown {
    interval: Interval,
    unit: f64,
    digits: usize,
}

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Interval { mean, min, max } = self.interval;
        let (digits, unit) = (self.digits, self.unit);
        write!(f, "{:.digits$} ({:.digits$} to {:.digits$})", mean / unit, min / unit, max / unit)
    }
}

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_array(f)?;
        self.fmt_load(f)?;
        self.fmt_safety(f)?;
        for (number, words) in self.assumptions.iter().enumerate() {
            row(f, if number == 0 { "assumed" } else { "" }, format_args!("{words}"))?;
        }
        Ok(())
    }
}

const MIB: f64 = 1_048_576.0;
const MICROSECOND: f64 = 1e3;

impl PlanReport {
    fn fmt_array(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = &self.settings;
        row(
            f,
            "array",
            format_args!(
                "level {}, {} members, chunk {} KiB, {}",
                s.level,
                s.members,
                s.chunk_bytes >> 10,
                ByteSize(s.array_bytes)
            ),
        )?;
        let wear = if s.used_up { ", spare area used up" } else { "" };
        row(f, "devices", format_args!("{}{wear}", s.devices.join(", ")))?;
        if !s.lost.is_empty() {
            row(f, "lost", format_args!("the members of slots {:?}", s.lost))?;
        }
        row(f, "load", format_args!("{}, depth {}", s.load, s.depth))?;
        row(
            f,
            "predicted from",
            format_args!(
                "{} requests, {} repetitions; in brackets their least and most",
                self.load.requests, s.seeds
            ),
        )
    }

    fn fmt_load(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let load = &self.load;
        let mut line = |name: &str, interval: Interval, unit: f64, digits: usize, words: &str| {
            row(f, name, format_args!("{}{words}", Shown { interval, unit, digits }))
        };
        line("throughput", load.iops, 1.0, 0, " requests/s")?;
        line("", load.bytes_per_second, MIB, 1, " MiB/s")?;
        line("latency, mean", load.latency_ns_mean, MICROSECOND, 1, " us")?;
        line("latency, 50%", load.latency_ns_p50, MICROSECOND, 1, " us")?;
        line("latency, 99%", load.latency_ns_p99, MICROSECOND, 1, " us")?;
        line("latency, 99.9%", load.latency_ns_p999, MICROSECOND, 1, " us")?;
        if let (Some(bytes), Some(writes)) = (load.write_amplification, load.member_writes_per_write) {
            line("write amplification", bytes, 1.0, 2, " bytes written to members for each of the clients'")?;
            line("", writes, 1.0, 2, " writes to members for each of the clients'")?;
        }
        if let Some(pages) = load.bitmap_writes_per_write.filter(|pages| pages.max > 0.0) {
            line("", pages, 1.0, 3, " pages of the bitmap for each of the clients' writes")?;
        }
        line(
            "members' reads",
            load.member_read_bytes_per_byte,
            1.0,
            2,
            " bytes for each that clients read or write",
        )?;
        line("", load.member_reads_per_request, 1.0, 2, " for each request of clients")
    }

    fn fmt_safety(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (d, a) = (&self.durability, &self.durability.assumptions);
        if let Some(rebuild) = &self.rebuild {
            row(
                f,
                "rebuild",
                format_args!(
                    "{} in {:.0} s ({:.2} h), {:.1} MiB/s",
                    ByteSize(self.settings.member_bytes),
                    rebuild.seconds,
                    rebuild.seconds / 3600.0,
                    rebuild.bytes_per_second / MIB
                ),
            )?;
        }
        row(
            f,
            "loss in a year",
            format_args!(
                "{:.1e} with a scrub every {} days, {:.1e} without scrubs over {} years",
                d.loss_per_year_with_scrubs, a.scrub_days, d.loss_per_year_without_scrubs, a.service_years
            ),
        )?;
        if let Some(years) = d.mttdl_years_drives {
            row(f, "", format_args!("mean time to loss by whole drives alone {years:.2e} years"))?;
        }
        if self.rebuild.is_some() {
            row(
                f,
                "",
                format_args!(
                    "an unreadable sector where the last rebuild needs it: {:.1e}, {:.1e} without scrubs",
                    d.unreadable_with_scrubs, d.unreadable_without_scrubs
                ),
            )?;
        }
        row(
            f,
            "of drives",
            format_args!(
                "AFR {}%, UBER {:e}, latent errors on {}% a year, replaced after {} h",
                a.afr_percent, a.uber, a.latent_errors_percent, a.replace_hours
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_those_of_the_requests() {
        let mut latency = crate::worker::histogram();
        (1..=10_000).for_each(|value| latency.record(value * 1000).unwrap());
        let sample = Sample {
            requests: 10_000,
            bytes: 1,
            elapsed_ns: 1,
            latency,
            counts: pinstripe_engine::statistics::Statistics::default(),
            member_bytes: 1,
            array_bytes: 1,
        };
        let load = LoadForecast::of(&[sample]);
        let found = [load.latency_ns_p50, load.latency_ns_p99, load.latency_ns_p999].map(|of| of.mean);
        for (found, wanted) in found.into_iter().zip([5e6, 9.9e6, 9.99e6]) {
            assert!((found / wanted - 1.0).abs() < 0.002, "{found} and not {wanted}");
        }
    }
}
