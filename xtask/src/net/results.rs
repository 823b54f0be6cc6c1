//! What was measured, as it is kept beside the figures: they can be drawn again, and measured again one by
//! one.

use std::path::Path;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::client::Measurement;
use crate::origin::Origin;

/// One arm at one point.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Line {
    /// The line in the chart, without the arm.
    pub series: String,
    /// Which side did the work, and how: the arm's name.
    pub arm: String,
    /// Place on the axis.
    pub x: f64,
    /// The same in words.
    pub label: String,
    /// Users' bytes per second.
    pub bytes_per_second: f64,
    /// The same by the goodput of a link.
    pub of_goodput: f64,
    /// What it could be at most, in the same measure, by what the plan moves over the busiest link;
    /// host-centric only.
    pub bound: Option<f64>,
    /// Bytes that the client sent for each of the user's, by the link's counters.
    pub sent: f64,
    /// And received.
    pub received: f64,
    /// Median of the latency in milliseconds; none of a rebuild.
    pub p50_ms: Option<f64>,
    /// 99th percentile.
    pub p99_ms: Option<f64>,
    /// Seconds of the client's CPU per GiB of users' bytes.
    pub client_cpu: f64,
    /// And of all servers together.
    pub servers_cpu: f64,
    /// Share of the machine that was busy.
    pub busy: f64,
}

/// A figure that was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Of what, when and where.
    #[serde(flatten)]
    pub origin: Origin,
    /// Seconds of each point.
    pub seconds: f64,
    /// The client's link in Mbit/s.
    pub mbit: f64,
    /// Bytes per second of plain sequential writes to one member.
    pub goodput_write: f64,
    /// And reads.
    pub goodput_read: f64,
    /// By point, arm after arm.
    pub rows: Vec<Line>,
}

impl Measured {
    /// Of now, without rows.
    pub fn begin(root: &Path, seconds: f64, mbit: f64, goodput: Goodput) -> Result<Self> {
        Ok(Self {
            origin: Origin::now(root)?,
            seconds,
            mbit,
            goodput_write: goodput.write,
            goodput_read: goodput.read,
            rows: Vec::new(),
        })
    }

    /// The row of this place.
    pub fn row(&self, series: &str, arm: &str, x: f64) -> Option<&Line> {
        self.rows.iter().find(|row| row.series == series && row.arm == arm && (row.x - x).abs() < 1e-9)
    }
}

/// What one link carries of one member's data, in bytes per second.
#[derive(Clone, Copy, Debug)]
pub struct Goodput {
    /// To the member.
    pub write: f64,
    /// From it.
    pub read: f64,
}

impl Goodput {
    /// What a load with this percentage of reads is compared with: a duplex link carries both at once, so
    /// that mixed loads can exceed it.
    pub fn of(self, reads: u8) -> f64 {
        match reads {
            100 => self.read,
            0 => self.write,
            _ => self.read.min(self.write),
        }
    }
}

const GIB: f64 = 1_073_741_824.0;

impl Line {
    /// Of a measurement. `servers_share` is what all servers' links carry by what the client's does.
    pub fn new(
        (series, arm, x, label): (&str, &str, f64, &str),
        measured: &Measurement,
        goodput: f64,
        (is_host_centric, servers_share): (bool, f64),
    ) -> Self {
        let user = measured.user_bytes();
        let (written, read) = measured.moved();
        let is_rebuild = !measured.report["recovery"].is_null();
        let latency = |percentile| (!is_rebuild).then(|| measured.latency(percentile) * 1e3);
        #[expect(clippy::cast_precision_loss, reason = "ratios need no 53 bits")]
        let per_byte = |bytes: u64| bytes as f64 / user;
        Self {
            series: series.to_owned(),
            arm: arm.to_owned(),
            x,
            label: label.to_owned(),
            bytes_per_second: measured.bytes_per_second(),
            of_goodput: measured.bytes_per_second() / goodput,
            bound: is_host_centric.then(|| servers_share.min(1.0) * user / written.max(read)),
            sent: per_byte(measured.client.sent),
            received: per_byte(measured.client.received),
            p50_ms: latency("p50"),
            p99_ms: latency("p99"),
            client_cpu: measured.client_cpu / user * GIB,
            servers_cpu: measured.servers_cpu.iter().sum::<f64>() / user * GIB,
            busy: measured.busy,
        }
    }

    /// How much of its bound it reached.
    pub fn of_bound(&self) -> Option<f64> {
        self.bound.map(|bound| self.of_goodput / bound)
    }
}
