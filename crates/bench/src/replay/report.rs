//! What a replay came to.

use std::fmt;

use hdrhistogram::Histogram;
use pinstripe_engine::{ablation::Metered, statistics::Statistics};
use serde::Serialize;

use super::clients::{Replay, Replayed};
use crate::{
    ablate::{AblationReport, Span},
    arguments::{BenchArgs, PolicyChoice},
    report::{Amplification, Latency, by, counters, fmt_cpu, fmt_series, row},
    trace::{Format, Published, Synthetic, Trace},
};

/// The outcome of a replay, all of whose writes were read back and found right.
#[derive(Clone, Debug, Serialize)]
pub struct TraceReport {
    /// The trace's file, or after which one it was made.
    pub trace: String,
    /// What its lines look like.
    pub format: Format,
    /// How the trace was made, if it is synthetic.
    pub synthetic: Option<Synthetic>,
    /// Whether requests came when they were due, and not as fast as possible.
    pub trace_time: bool,
    /// Requests of the trace that weren't replayed: of other devices, trims, requests of no bytes.
    pub skipped: u64,
    /// Requests that began or ended within a block, and were widened to whole blocks.
    pub widened: u64,
    /// Requests beyond the end of the device, which were folded into it.
    pub folded: u64,
    /// The export, if the array is a server's.
    pub through: Option<String>,
    /// The array, if it was made for this.
    pub array: Option<ReplayedOn>,
    /// Threads that put the load, and served the array that was made for it.
    pub shards: usize,
    /// Requests at a time.
    pub depth: usize,
    /// Reads that were answered.
    pub reads: u64,
    /// Writes that were acknowledged.
    pub writes: u64,
    /// Flushes that were answered.
    pub flushes: u64,
    /// Bytes that were read.
    pub read_bytes: u64,
    /// Bytes that were written.
    pub written_bytes: u64,
    /// How long it took.
    pub seconds: f64,
    /// Requests per second.
    pub iops: f64,
    /// Bytes per second, read and written.
    pub bytes_per_second: f64,
    /// Of reads; in trace time from when they were due.
    pub read_latency_ns: Latency,
    /// Of writes; in trace time from when they were due.
    pub write_latency_ns: Latency,
    /// CPU time of the shards for each request; the kernel's own threads are not in it. Under virtual time
    /// there is none.
    pub cpu_ns_per_operation: Option<f64>,
    /// With --ablate: the arms, and what they cost.
    pub ablation: Option<AblationReport>,
    /// What was checked afterwards.
    pub checked: Checked,
}

/// An array that was made for a replay or a store, and what it had to do.
#[derive(Clone, Debug, Serialize)]
pub struct ReplayedOn {
    /// What takes time: the real CPU and devices, or models of drives.
    pub series: &'static str,
    /// MD's level number.
    pub level: i32,
    /// The members' names.
    pub members: Vec<String>,
    /// Slots with members that were missing.
    pub lost: Vec<usize>,
    /// Chunk in bytes.
    pub chunk_bytes: u64,
    /// How parity updates were chosen.
    pub policy: PolicyChoice,
    /// Bytes of parity cache.
    pub cache_bytes: u64,
    /// The parity kernels.
    pub kernel: &'static str,
    /// What a write costs the members.
    pub per_write: Amplification,
    /// The engine's counters over the replay.
    pub counters: serde_json::Map<String, serde_json::Value>,
}

/// What was checked; all of it was right.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Checked {
    /// Written sectors that were read back.
    pub sectors: u64,
    /// Stripes that were scrubbed.
    pub stripes: u64,
    /// Sectors with parity that did not match.
    pub mismatched_sectors: u64,
}

impl TraceReport {
    pub(super) fn new(arguments: &BenchArgs, trace: &Trace) -> Self {
        let none = Latency::of(&crate::worker::histogram());
        let synthetic = arguments.synthetic();
        let name = match (synthetic, &arguments.trace) {
            (Some(made), _) => format!("after {}", made.workload.name()),
            (None, path) => path.as_ref().map_or_else(String::new, |path| path.display().to_string()),
        };
        Self {
            trace: name,
            format: trace.format,
            synthetic,
            trace_time: arguments.trace_time,
            skipped: trace.skipped,
            widened: 0,
            folded: 0,
            through: None,
            array: None,
            shards: arguments.shards,
            depth: arguments.depth,
            reads: 0,
            writes: 0,
            flushes: 0,
            read_bytes: 0,
            written_bytes: 0,
            seconds: 0.0,
            iops: 0.0,
            bytes_per_second: 0.0,
            read_latency_ns: none,
            write_latency_ns: none,
            cpu_ns_per_operation: None,
            ablation: None,
            checked: Checked::default(),
        }
    }

    /// Puts down what the clients did.
    pub(super) fn replayed(&mut self, arguments: &BenchArgs, replay: &Replay, done: &Replayed) {
        (self.widened, self.folded) = (replay.fitted.widened, replay.fitted.folded);
        (self.reads, self.writes, self.flushes) = (done.reads.len(), done.writes.len(), done.flushes);
        (self.read_bytes, self.written_bytes) = (done.read_bytes, done.written_bytes);
        (self.seconds, self.iops) = done.outcome.rate();
        self.bytes_per_second = by(done.read_bytes + done.written_bytes, 1) / self.seconds.max(1e-9);
        (self.read_latency_ns, self.write_latency_ns) = (Latency::of(&done.reads), Latency::of(&done.writes));
        self.cpu_ns_per_operation =
            (!arguments.is_virtual()).then(|| by(done.outcome.cpu_ns, done.outcome.operations));
    }

    /// Puts down what the array had to do for it.
    pub(super) fn array(&mut self, arguments: &BenchArgs, members: Vec<String>, counts: &Statistics) {
        self.array = Some(ReplayedOn::new(arguments, members, counts));
    }

    /// Puts down what the arms of --ablate cost.
    pub(super) fn metered(&mut self, arguments: &BenchArgs, metered: Option<Metered>, done: &Replayed) {
        let span = Span::new(arguments.shards, done.outcome, done.all().mean());
        let pair = arguments.ablate.as_ref().zip(metered);
        self.ablation = pair.map(|(ablate, metered)| AblationReport::new(ablate, &metered, span));
    }

    /// As JSON, over several lines.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|_| unreachable!("keys are texts"))
    }
}

impl Replayed {
    /// The latencies of reads and writes together.
    pub(super) fn all(&self) -> Histogram<u64> {
        let mut all = self.reads.clone();
        // Made with the same bounds.
        let _ = all.add(&self.writes);
        all
    }
}

impl fmt::Display for TraceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = f64::from(1 << 20);
        ReplayedOn::fmt_place(f, self.array.as_ref(), self.through.as_deref(), self.shards)?;
        let pace = if self.trace_time { "at its times" } else { "at full speed" };
        row(f, "trace", format_args!("{} ({}), {pace}, depth {}", self.trace, self.format, self.depth))?;
        if let Some(synthetic) = &self.synthetic {
            synthetic.fmt_rows(f)?;
        }
        row(
            f,
            "requests",
            format_args!(
                "{} reads ({:.1} MiB), {} writes ({:.1} MiB), {} flushes",
                self.reads,
                by(self.read_bytes, 1) / mib,
                self.writes,
                by(self.written_bytes, 1) / mib,
                self.flushes
            ),
        )?;
        if self.skipped + self.widened + self.folded > 0 {
            row(
                f,
                "not as in the trace",
                format_args!(
                    "{} skipped, {} widened to whole blocks, {} folded into the device",
                    self.skipped, self.widened, self.folded
                ),
            )?;
        }
        row(f, "duration", format_args!("{:.2} s", self.seconds))?;
        row(
            f,
            "throughput",
            format_args!("{:.0} requests/s, {:.1} MiB/s", self.iops, self.bytes_per_second / mib),
        )?;
        self.read_latency_ns.fmt_row(f, "read latency (us)")?;
        self.write_latency_ns.fmt_row(f, "write latency (us)")?;
        fmt_cpu(f, "CPU per request", self.cpu_ns_per_operation)?;
        if let Some(array) = &self.array {
            array.per_write.fmt_row(f)?;
        }
        if let Some(ablation) = &self.ablation {
            ablation.fmt_rows(f)?;
        }
        row(
            f,
            "checked",
            format_args!(
                "{} sectors read back, {} stripes scrubbed, {} mismatched sectors",
                self.checked.sectors, self.checked.stripes, self.checked.mismatched_sectors
            ),
        )
    }
}

impl Synthetic {
    /// Where it is from, and what was chosen.
    fn fmt_rows(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Published { writes_millions, write_kib, reads_millions, read_kib, .. } = self.published;
        row(
            f,
            "synthetic",
            format_args!("{:.2}% of the published count, seed {}", self.percent_of_published, self.seed),
        )?;
        row(
            f,
            "published",
            format_args!(
                "{writes_millions} million writes of {write_kib} KiB, {reads_millions} million reads of {read_kib} KiB: {}",
                self.source
            ),
        )?;
        if let (Some(sequential), Some(large)) =
            (self.published.sequential_writes_millions, self.published.large_writes_millions)
        {
            let words =
                format_args!("{sequential} million writes sequential, {large} million of 40 KiB or more");
            row(f, "published", words)?;
        }
        row(f, "not published", format_args!("{}", self.chosen))
    }
}

impl ReplayedOn {
    pub(crate) fn new(arguments: &BenchArgs, members: Vec<String>, counts: &Statistics) -> Self {
        Self {
            series: arguments.series(),
            level: arguments.level.number(),
            members,
            lost: arguments.lost.clone(),
            chunk_bytes: arguments.chunk,
            policy: arguments.policy,
            cache_bytes: arguments.cache,
            kernel: pinstripe_parity::kernel().name(),
            per_write: Amplification::of(counts),
            counters: counters(counts),
        }
    }

    /// The array, or the export of one.
    pub(crate) fn fmt_place(
        f: &mut fmt::Formatter<'_>,
        array: Option<&Self>,
        through: Option<&str>,
        shards: usize,
    ) -> fmt::Result {
        match (array, through) {
            (Some(array), _) => array.fmt_array(f, shards),
            (None, Some(through)) => row(f, "through", format_args!("{through}, {shards} thread(s)")),
            (None, None) => Ok(()),
        }
    }

    fn fmt_array(&self, f: &mut fmt::Formatter<'_>, shards: usize) -> fmt::Result {
        fmt_series(f, self.series)?;
        row(
            f,
            "array",
            format_args!(
                "level {}, {} members, chunk {} KiB, {shards} shard(s), kernel {}",
                self.level,
                self.members.len(),
                self.chunk_bytes >> 10,
                self.kernel
            ),
        )?;
        if self.lost.is_empty() {
            return Ok(());
        }
        row(f, "lost", format_args!("the members of slots {:?}", self.lost))
    }
}
