//! What a run of the store came to.

use std::fmt;

use pinstripe_engine::statistics::Statistics;
use serde::Serialize;

use super::clients::Done;
use crate::{
    arguments::{BenchArgs, Mix, Pattern},
    replay::ReplayedOn,
    report::{Latency, by, fmt_cpu, row},
};

/// The outcome of a run of the store, all of whose objects were read back and found right.
#[derive(Clone, Debug, Serialize)]
pub struct ObjectsReport {
    /// Objects before the measurement.
    pub objects: usize,
    /// Bytes of an object with its header.
    pub size_bytes: u64,
    /// YCSB's workload.
    pub mix: Mix,
    /// How keys were drawn.
    pub pattern: Pattern,
    /// The export, if the array is a server's.
    pub through: Option<String>,
    /// The array, if it was made for this.
    pub array: Option<ReplayedOn>,
    /// Threads of the store, which serve the array too where it was made for this.
    pub shards: usize,
    /// Operations at a time.
    pub depth: usize,
    /// Operations that were done.
    pub operations: u64,
    /// How long it took.
    pub seconds: f64,
    /// Operations per second; a read with its update is one.
    pub operations_per_second: f64,
    /// Of reads.
    pub read_latency_ns: Latency,
    /// Of updates and inserts.
    pub write_latency_ns: Latency,
    /// Of reads with the update that follows.
    pub read_modify_write_latency_ns: Latency,
    /// CPU time of the threads for each operation. Under virtual time there is none.
    pub cpu_ns_per_operation: Option<f64>,
    /// What was checked afterwards.
    pub checked: ObjectsChecked,
}

/// What was checked; all of it was right.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct ObjectsChecked {
    /// Objects that a store found that was opened from the volume, and that it read.
    pub objects: u64,
    /// Stripes that were scrubbed.
    pub stripes: u64,
    /// Sectors with parity that did not match.
    pub mismatched_sectors: u64,
}

impl ObjectsReport {
    pub(super) fn new(arguments: &BenchArgs, done: &Done) -> Self {
        let (seconds, operations_per_second) = done.outcome.rate();
        Self {
            objects: arguments.objects.unwrap_or_default(),
            size_bytes: arguments.size,
            mix: arguments.mix,
            pattern: arguments.pattern,
            through: None,
            array: None,
            shards: arguments.shards,
            depth: arguments.depth,
            operations: done.outcome.operations,
            seconds,
            operations_per_second,
            read_latency_ns: Latency::of(&done.reads),
            write_latency_ns: Latency::of(&done.writes),
            read_modify_write_latency_ns: Latency::of(&done.read_modify_writes),
            cpu_ns_per_operation: (!arguments.is_virtual())
                .then(|| by(done.outcome.cpu_ns, done.outcome.operations)),
            checked: ObjectsChecked::default(),
        }
    }

    /// Puts down what the array had to do for it.
    pub(super) fn array(&mut self, arguments: &BenchArgs, members: Vec<String>, counts: &Statistics) {
        self.array = Some(ReplayedOn::new(arguments, members, counts));
    }

    /// As JSON, over several lines.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_else(|_| unreachable!("keys are texts"))
    }
}

impl fmt::Display for ObjectsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = f64::from(1 << 20);
        ReplayedOn::fmt_place(f, self.array.as_ref(), self.through.as_deref(), self.shards)?;
        row(f, "objects", format_args!("{} of {} bytes", self.objects, self.size_bytes))?;
        row(
            f,
            "load",
            format_args!("{}, keys {}, depth {}", self.mix.in_words(), self.pattern.name(), self.depth),
        )?;
        row(f, "duration", format_args!("{:.2} s", self.seconds))?;
        let bytes = self.operations_per_second * by(self.size_bytes, 1) / mib;
        row(
            f,
            "throughput",
            format_args!("{:.0} operations/s, {bytes:.1} MiB of objects/s", self.operations_per_second),
        )?;
        for (name, latency) in [
            ("read latency (us)", &self.read_latency_ns),
            ("write latency (us)", &self.write_latency_ns),
            ("read-modify-write latency (us)", &self.read_modify_write_latency_ns),
        ] {
            if latency.samples > 0 {
                latency.fmt_row(f, name)?;
            }
        }
        fmt_cpu(f, "CPU per operation", self.cpu_ns_per_operation)?;
        if let Some(array) = &self.array {
            array.per_write.fmt_row(f)?;
        }
        row(
            f,
            "checked",
            format_args!(
                "{} objects found and read, {} stripes scrubbed, {} mismatched sectors",
                self.checked.objects, self.checked.stripes, self.checked.mismatched_sectors
            ),
        )
    }
}
