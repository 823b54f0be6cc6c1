//! What a run came to, for people and for programs.

use std::fmt;

use hdrhistogram::Histogram;
use pinstripe_engine::statistics::Statistics;
use serde::Serialize;

use crate::{
    ablate::{AblationReport, Span},
    arguments::{BenchArgs, BitmapChoice, Pattern, PolicyChoice, VIRTUAL},
    run::Measured,
};

/// The outcome of a run that was checked and found right.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// What was measured.
    pub settings: Settings,
    /// Requests that were acknowledged.
    pub operations: u64,
    /// How long the engine worked.
    pub seconds: f64,
    /// Requests per second.
    pub iops: f64,
    /// Bytes per second.
    pub bytes_per_second: f64,
    /// Requests that were due by --rate and not sent, because no client was free before the end: about so
    /// many.
    pub not_sent: u64,
    /// From the call to the acknowledgement.
    pub latency_ns: Latency,
    /// CPU time of the shards for each request; the kernel's own threads are not in it. `None` for virtual
    /// devices: under their time the CPU takes none.
    pub cpu_ns_per_operation: Option<f64>,
    /// How often a shard entered the kernel to submit, to collect answers or to sleep, for each request.
    /// `None` for virtual devices.
    pub kernel_entries_per_operation: Option<f64>,
    /// The rebuild, if one was measured. Then the load is the one beside it, and what the members did is of
    /// both.
    pub recovery: Option<Rebuild>,
    /// What a user's write costs the members.
    pub per_write: Amplification,
    /// Bytes read before writing, by bytes that users wrote.
    pub pre_read_ratio: f64,
    /// Parity rows of 4 KiB that the cache had, by those that were asked for.
    pub cache_hit_ratio: f64,
    /// The engine's counters over the run.
    pub counters: serde_json::Map<String, serde_json::Value>,
    /// With --ablate: the arms, and what they cost.
    pub ablation: Option<AblationReport>,
    /// The comparison with the straight-line loop.
    pub limit: Option<Limit>,
    /// `limit.ratio` again, where scripts find it.
    pub limit_ratio: Option<f64>,
    /// What was checked afterwards.
    pub verified: Verified,
}

/// What was measured.
#[derive(Clone, Debug, Serialize)]
pub struct Settings {
    /// What takes time: `real CPU`, and whatever devices there are; or `virtual device`, and nothing else.
    pub series: &'static str,
    /// What places were drawn from.
    pub seed: u64,
    /// MD's level number.
    pub level: i32,
    /// The members' names.
    pub members: Vec<String>,
    /// Chunk in bytes.
    pub chunk_bytes: u64,
    /// Threads.
    pub shards: usize,
    /// Where requests went.
    pub pattern: Pattern,
    /// Bytes of a request.
    pub size_bytes: u64,
    /// Percentage of reads.
    pub reads_percent: u8,
    /// Requests at a time.
    pub depth: usize,
    /// Bytes that were asked for in a second, if not as many as possible.
    pub rate_bytes: Option<u64>,
    /// Slots with members that were missing.
    pub lost: Vec<usize>,
    /// The slot that was rebuilt.
    pub rebuilt: Option<usize>,
    /// How parity updates were chosen.
    pub policy: PolicyChoice,
    /// Bytes of parity cache.
    pub cache_bytes: u64,
    /// The bitmap.
    pub bitmap: BitmapChoice,
    /// The parity kernels.
    pub kernel: &'static str,
}

/// How a member was rebuilt.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Rebuild {
    /// From the command to add the member until it was in sync.
    pub seconds: f64,
    /// Bytes of the member that the array uses.
    pub member_bytes: u64,
    /// Of the member, per second.
    pub bytes_per_second: f64,
}

impl Rebuild {
    pub(crate) fn new(member_bytes: u64, elapsed_ns: u64) -> Self {
        let seconds = by(elapsed_ns.max(1), 1_000_000_000);
        Self { seconds, member_bytes, bytes_per_second: by(member_bytes, 1) / seconds }
    }
}

/// Latency of requests, in nanoseconds. Over memory one request in 16 is timed.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Latency {
    /// Requests that were timed.
    pub samples: u64,
    /// Average.
    pub mean: f64,
    /// Half of the requests took at most this.
    pub p50: u64,
    /// 90 of 100.
    pub p90: u64,
    /// 99 of 100.
    pub p99: u64,
    /// 999 of 1000.
    pub p999: u64,
    /// The longest.
    pub max: u64,
}

impl Latency {
    pub(crate) fn of(latency: &Histogram<u64>) -> Self {
        Self {
            samples: latency.len(),
            mean: latency.mean(),
            p50: latency.value_at_quantile(0.5),
            p90: latency.value_at_quantile(0.9),
            p99: latency.value_at_quantile(0.99),
            p999: latency.value_at_quantile(0.999),
            max: latency.max(),
        }
    }

    /// How fast requests were.
    pub(crate) fn fmt_load(
        &self,
        f: &mut fmt::Formatter<'_>,
        iops: f64,
        bytes_per_second: f64,
    ) -> fmt::Result {
        let mib = bytes_per_second / f64::from(1 << 20);
        row(f, "throughput", format_args!("{iops:.0} requests/s, {mib:.1} MiB/s"))?;
        self.fmt_row(f, "latency (us)")
    }

    pub(crate) fn fmt_row(&self, f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
        row(
            f,
            name,
            format_args!(
                "mean {:.2}, 50% {:.2}, 90% {:.2}, 99% {:.2}, 99.9% {:.2}, max {:.1}",
                self.mean / 1e3,
                by(self.p50, 1000),
                by(self.p90, 1000),
                by(self.p99, 1000),
                by(self.p999, 1000),
                by(self.max, 1000)
            ),
        )
    }
}

/// What one user write costs, on average.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Amplification {
    /// Reads of members (users' reads of a mixed run too).
    pub member_reads: f64,
    /// Bytes read from members.
    pub member_read_bytes: f64,
    /// Writes to members.
    pub member_writes: f64,
    /// Bytes written to members.
    pub member_write_bytes: f64,
}

impl Amplification {
    pub(crate) fn of(counts: &Statistics) -> Self {
        Self {
            member_reads: by(counts.member_reads, counts.writes),
            member_read_bytes: by(counts.member_read_bytes, counts.writes),
            member_writes: by(counts.member_writes, counts.writes),
            member_write_bytes: by(counts.member_write_bytes, counts.writes),
        }
    }

    pub(crate) fn fmt_row(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        row(
            f,
            "members, per write",
            format_args!(
                "{:.2} reads ({:.0} bytes), {:.2} writes ({:.0} bytes)",
                self.member_reads, self.member_read_bytes, self.member_writes, self.member_write_bytes
            ),
        )
    }
}

/// The engine against the straight-line loop.
#[derive(Clone, Debug, Serialize)]
pub struct Limit {
    /// CPU time of the engine for each request.
    pub engine_ns: f64,
    /// CPU time of the loop for each request.
    pub loop_ns: f64,
    /// The engine's rate by the loop's: the median over pairs of slices.
    pub ratio: f64,
    /// The lowest and the highest of a pair.
    pub ratio_span: [f64; 2],
    /// Pairs of slices.
    pub pairs: usize,
}

/// What was checked; all of it was right.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Verified {
    /// Written units that were read back.
    pub units: u64,
    /// Stripes that were scrubbed.
    pub stripes: u64,
    /// Sectors with parity that did not match.
    pub mismatched_sectors: u64,
}

#[expect(clippy::cast_precision_loss, reason = "ratios and rates need no 53 bits")]
pub(crate) fn by(a: u64, b: u64) -> f64 {
    if b == 0 { 0.0 } else { a as f64 / b as f64 }
}

impl Report {
    pub(crate) fn new(
        arguments: &BenchArgs,
        members: Vec<String>,
        measured: &Measured,
        verified: Verified,
    ) -> Self {
        let (engine, counts) = (measured.engine, measured.statistics);
        let (seconds, iops) = engine.rate();
        let limit = Limit::new(measured);
        let span = Span::new(arguments.shards, engine, measured.latency.mean());
        let arms = arguments.ablate.as_ref().zip(measured.metered);
        Self {
            settings: Settings {
                series: arguments.series(),
                seed: arguments.seed,
                level: arguments.level.number(),
                members,
                chunk_bytes: arguments.chunk,
                shards: arguments.shards,
                pattern: arguments.pattern,
                size_bytes: arguments.size,
                reads_percent: arguments.reads,
                depth: arguments.depth,
                rate_bytes: arguments.rate,
                lost: arguments.lost.clone(),
                rebuilt: arguments.rebuild,
                policy: arguments.policy,
                cache_bytes: arguments.cache,
                bitmap: arguments.bitmap,
                kernel: pinstripe_parity::kernel().name(),
            },
            operations: engine.operations,
            seconds,
            iops,
            bytes_per_second: iops * by(arguments.size, 1),
            not_sent: engine.not_sent,
            latency_ns: Latency::of(&measured.latency),
            cpu_ns_per_operation: (!arguments.is_virtual()).then(|| by(engine.cpu_ns, engine.operations)),
            kernel_entries_per_operation: (!arguments.is_virtual())
                .then(|| by(engine.kernel_entries, engine.operations)),
            recovery: measured.recovery,
            per_write: Amplification::of(&counts),
            pre_read_ratio: by(counts.pre_read_bytes, counts.write_bytes),
            cache_hit_ratio: by(counts.cache_hits, counts.cache_hits + counts.cache_misses),
            counters: counters(&counts),
            ablation: arms.map(|(ablate, metered)| AblationReport::new(ablate, &metered, span)),
            limit_ratio: limit.as_ref().map(|limit| limit.ratio),
            limit,
            verified,
        }
    }

    /// As JSON, over several lines.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|_| unreachable!("keys are texts"))
    }
}

pub(crate) fn counters(statistics: &Statistics) -> serde_json::Map<String, serde_json::Value> {
    statistics.fields().map(|(name, value)| (name.to_owned(), value.into())).collect()
}

impl Limit {
    fn new(measured: &Measured) -> Option<Self> {
        let mut ratios = measured.ratios.clone();
        ratios.sort_by(f64::total_cmp);
        Some(Self {
            engine_ns: by(measured.engine.cpu_ns, measured.engine.operations),
            loop_ns: by(measured.straight.cpu_ns, measured.straight.operations),
            ratio: *ratios.get(ratios.len() / 2)?,
            ratio_span: [*ratios.first()?, *ratios.last()?],
            pairs: ratios.len(),
        })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fmt_load(f)?;
        self.fmt_work(f)
    }
}

pub(crate) fn row(f: &mut fmt::Formatter<'_>, name: &str, value: fmt::Arguments<'_>) -> fmt::Result {
    writeln!(f, "{name:<24}{value}")
}

/// That time is virtual, if it is.
pub(crate) fn fmt_series(f: &mut fmt::Formatter<'_>, series: &str) -> fmt::Result {
    if series != VIRTUAL {
        return Ok(());
    }
    row(f, "time", format_args!("{series}: nothing but the drives takes any"))
}

/// That a rate could not be kept, if it couldn't.
pub(crate) fn fmt_not_sent(f: &mut fmt::Formatter<'_>, not_sent: u64) -> fmt::Result {
    if not_sent == 0 {
        return Ok(());
    }
    row(f, "not sent", format_args!("some {not_sent} requests that were due: it is too slow for --rate"))
}

/// What an operation takes of the CPU, if time isn't virtual.
pub(crate) fn fmt_cpu(f: &mut fmt::Formatter<'_>, name: &str, cpu_ns: Option<f64>) -> fmt::Result {
    cpu_ns.map_or(Ok(()), |cpu_ns| row(f, name, format_args!("{:.2} us", cpu_ns / 1e3)))
}

impl Report {
    /// What was run, and how fast it was.
    fn fmt_load(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = &self.settings;
        fmt_series(f, s.series)?;
        row(
            f,
            "array",
            format_args!(
                "level {}, {} members, chunk {} KiB, {} shard(s), kernel {}",
                s.level,
                s.members.len(),
                s.chunk_bytes >> 10,
                s.shards,
                s.kernel
            ),
        )?;
        if !s.lost.is_empty() {
            row(f, "lost", format_args!("the members of slots {:?}", s.lost))?;
        }
        if let Some(recovery) = &self.recovery {
            let mib = f64::from(1 << 20);
            row(
                f,
                "rebuild",
                format_args!(
                    "{:.1} MiB of the member in {:.2} s, {:.1} MiB/s",
                    by(recovery.member_bytes, 1) / mib,
                    recovery.seconds,
                    recovery.bytes_per_second / mib
                ),
            )?;
            if s.rate_bytes.is_none() {
                return Ok(());
            }
        }
        let (pattern, size) = (s.pattern.name(), s.size_bytes);
        row(
            f,
            "load",
            format_args!("{pattern}, {size} bytes, {}% reads, depth {}", s.reads_percent, s.depth),
        )?;
        self.latency_ns.fmt_load(f, self.iops, self.bytes_per_second)?;
        fmt_not_sent(f, self.not_sent)?;
        fmt_cpu(f, "CPU per request", self.cpu_ns_per_operation)?;
        self.kernel_entries_per_operation
            .map_or(Ok(()), |entries| row(f, "kernel entries", format_args!("{entries:.2} per request")))
    }

    /// What the members had to do for it, and whether it was right.
    fn fmt_work(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Beside a rebuild most of it is not for writes.
        if self.recovery.is_none() {
            self.per_write.fmt_row(f)?;
        }
        let mut row = |name: &str, value: fmt::Arguments<'_>| row(f, name, value);
        row("pre-read / written", format_args!("{:.2}%", self.pre_read_ratio * 100.0))?;
        let count = |name: &str| self.counters.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0);
        row(
            "batches",
            format_args!("{}, {} joined ({} late)", count("batches"), count("joins"), count("joined_late")),
        )?;
        row(
            "parity cache",
            format_args!("{} hits, {:.1}%", count("cache_hits"), self.cache_hit_ratio * 100.0),
        )?;
        if let Some(ablation) = &self.ablation {
            ablation.fmt_rows(f)?;
        }
        let mut row = |name: &str, value: fmt::Arguments<'_>| self::row(f, name, value);
        if let Some(limit) = &self.limit {
            row(
                "limit_ratio",
                format_args!(
                    "{:.3} ({:.3} to {:.3} over {} pairs): engine {:.2} us, loop {:.2} us",
                    limit.ratio,
                    limit.ratio_span[0],
                    limit.ratio_span[1],
                    limit.pairs,
                    limit.engine_ns / 1e3,
                    limit.loop_ns / 1e3
                ),
            )?;
        }
        row(
            "checked",
            format_args!(
                "{} units read back, {} stripes scrubbed, {} mismatched sectors",
                self.verified.units, self.verified.stripes, self.verified.mismatched_sectors
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
        let found = Latency::of(&latency);
        let of_all = [found.p50, found.p90, found.p99, found.p999, found.max];
        for (found, wanted) in
            of_all.into_iter().zip([5_000_000, 9_000_000, 9_900_000, 9_990_000, 10_000_000])
        {
            assert!(found.abs_diff(wanted) < wanted / 500, "{found} and not {wanted}");
        }
        assert!((found.mean / 5_000_500.0 - 1.0).abs() < 0.002 && found.samples == 10_000, "{found:?}");
    }
}
