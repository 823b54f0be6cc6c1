//! fio on a block device or an NBD export: measurements, and data that is checked.
//!
//! The first [`CHECKED_BYTES`] belong to the check: whatever is written there is read back later by the same
//! seed, also by a peer that has taken the array over since. Measurements go to the rest.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::cells::Cell;
use crate::vm::server::said;

/// Bytes at the front for data that is checked.
const CHECKED_BYTES: u64 = 16 << 20;
/// Of a measurement before it counts.
const RAMP_SECONDS: f64 = 0.2;

/// Where requests go.
#[derive(Clone, Debug)]
pub enum Door {
    /// A block device.
    Device(PathBuf),
    /// The address of an NBD export.
    Nbd(String),
}

impl Door {
    fn fio(&self, name: &str) -> Command {
        let mut fio = Command::new("fio");
        fio.arg(format!("--name={name}"));
        match self {
            Self::Device(path) => {
                fio.args(["--ioengine=io_uring", "--direct=1"]).arg(format!("--filename={}", path.display()))
            }
            Self::Nbd(uri) => fio.arg("--ioengine=nbd").arg(format!("--uri={uri}")),
        };
        fio
    }

    /// Measures a cell.
    pub fn measure(&self, cell: Cell, seconds: f64) -> Result<Figures> {
        let mut fio = self.fio("cell");
        fio.arg(format!("--rw={}{}", if cell.sequential { "" } else { "rand" }, direction(cell.reads)));
        fio.args([format!("--bs={}k", cell.kib), format!("--iodepth={}", cell.depth / cell.jobs)]);
        fio.args([format!("--numjobs={}", cell.jobs), "--group_reporting".to_owned()]);
        fio.args([format!("--offset={}", begin(cell.kib)), "--time_based".to_owned()]);
        fio.args([milliseconds("runtime", seconds), milliseconds("ramp_time", RAMP_SECONDS)]);
        // What is written is no matter for the members, and making it anew would cost CPU.
        fio.args(["--randrepeat=0", "--norandommap", "--refill_buffers=0", "--output-format=json"]);
        let output = said(&mut fio)?;
        Figures::parse(&String::from_utf8_lossy(&output.stdout), cell.reads)
    }

    /// Writes all of it once.
    pub fn fill(&self) -> Result<()> {
        said(self.fio("fill").args(["--rw=write", "--bs=1m", "--iodepth=8"])).map(|_| ())
    }

    /// Writes the data of this seed, in requests of mixed sizes.
    pub fn write_checked(&self, seed: u64) -> Result<()> {
        said(self.checked(seed).arg("--do_verify=0")).context("write data to check").map(|_| ())
    }

    /// Reads it back.
    pub fn verify(&self, seed: u64) -> Result<()> {
        let read = said(self.checked(seed).arg("--verify_only=1"));
        read.context("read back what was written before").map(|_| ())
    }

    fn checked(&self, seed: u64) -> Command {
        let mut fio = self.fio("checked");
        fio.args([
            "--rw=randwrite",
            "--bsrange=4k-128k",
            "--iodepth=16",
            "--verify=crc32c",
            "--verify_fatal=1",
        ]);
        fio.args([format!("--size={CHECKED_BYTES}"), format!("--randseed={seed}")]);
        fio
    }
}

/// Where requests of a measurement begin: behind what is checked, and so that those of whole stripes are just
/// that.
fn begin(kib: u32) -> u64 {
    CHECKED_BYTES.next_multiple_of(u64::from(kib) << 10)
}

fn direction(reads: bool) -> &'static str {
    if reads { "read" } else { "write" }
}

fn milliseconds(option: &str, seconds: f64) -> String {
    format!("--{option}={:.0}ms", seconds * 1e3)
}

/// What fio measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figures {
    /// Requests per second.
    pub iops: f64,
    /// 99 of 100 requests took at most so many microseconds.
    pub p99_us: f64,
}

impl Figures {
    /// Of fio's report, before which remarks may stand.
    fn parse(text: &str, reads: bool) -> Result<Self> {
        let report: Value =
            serde_json::from_str(&text[text.find('{').unwrap_or(0)..]).context("fio's report")?;
        let job = &report["jobs"][0];
        ensure!(job["error"] == 0, "fio's job ended with error {}", job["error"]);
        let done = &job[direction(reads)];
        let number = |value: &Value| value.as_f64().filter(|number| *number > 0.0);
        let p99 = number(&done["clat_ns"]["percentile"]["99.000000"]);
        let iops = number(&done["iops"]).context("fio did nothing while it measured")?;
        Ok(Self { iops, p99_us: p99.context("fio's report has no percentiles")? / 1e3 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"note: nothing
{"jobs": [{"error": 0, "read": {"iops": 0.0, "clat_ns": {}},
 "write": {"iops": 1234.5, "clat_ns": {"percentile": {"99.000000": 2500000}}}}]}"#;

    #[test]
    fn the_figures_are_those_of_the_direction_that_was_asked_for() {
        assert_eq!(Figures::parse(REPORT, false).unwrap(), Figures { iops: 1234.5, p99_us: 2500.0 });
        assert!(Figures::parse(REPORT, true).unwrap_err().to_string().contains("did nothing"));
        let failed = REPORT.replace("\"error\": 0", "\"error\": 5");
        assert!(Figures::parse(&failed, false).unwrap_err().to_string().contains("error 5"));
    }

    #[test]
    fn what_is_measured_and_what_is_checked_lie_apart() {
        let door = Door::Device("/dev/x".into());
        let words = |command: &Command| {
            command.get_args().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>()
        };
        assert!(words(&door.checked(7)).contains(&format!("--size={CHECKED_BYTES}")));
        assert!(words(&door.checked(7)).contains(&"--randseed=7".to_owned()));
        for kib in [4, 64, 256, 320, 1024] {
            let begin = begin(kib);
            assert!(
                begin >= CHECKED_BYTES && begin.is_multiple_of(u64::from(kib) << 10),
                "{kib} KiB at {begin}"
            );
        }
    }
}
