//! fio as a second witness, on a stretch of its own at the array's end.
//!
//! fio writes every block of its stretch once, in random order, each with a checksum. When the server dies it
//! leaves a state file that says how far it was; the same command verifies just what was acknowledged until
//! then. A block in flight may be torn, which is why there is only one pass. Several jobs with one request
//! each: with more, fio 3.33's NBD engine never notices that its server is gone.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::vm::server::said;

/// Bytes of its stretch.
pub const BYTES: u64 = 48 << 20;
/// How long it may take to notice that the server is gone.
const PATIENCE: Duration = Duration::from_mins(2);
/// Jobs, each on its part of the stretch.
const JOBS: u64 = 4;

/// fio on one array.
pub struct Fio {
    /// Where its state lies.
    folder: PathBuf,
    /// Where its stretch begins.
    offset: u64,
    seed: u64,
}

impl Fio {
    /// On the last [`BYTES`] of an export of this size.
    pub fn new(folder: PathBuf, size: u64) -> Result<Self> {
        fs::create_dir_all(&folder)?;
        let offset = size.checked_sub(BYTES).context("the array is too small for fio")?;
        Ok(Self { folder, offset: offset / 4096 * 4096, seed: 0 })
    }

    /// Where its stretch begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    fn command(&self, uri: &str) -> Command {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "fio", "--name=soak", "--ioengine=nbd"]);
        command.arg(format!("--uri={uri}"));
        command.args(["--rw=randwrite", "--bsrange=4k-64k", "--iodepth=1", "--rate=15m", "--verify=crc32c"]);
        let part = BYTES / JOBS;
        command.arg(format!("--offset={}", self.offset)).arg(format!("--size={part}"));
        command.arg(format!("--numjobs={JOBS}")).arg(format!("--offset_increment={part}"));
        command.arg(format!("--randseed={}", self.seed)).args(["--output-format=json"]);
        command.current_dir(&self.folder).stdin(Stdio::null());
        command
    }

    /// Begins to write, from another seed.
    pub fn start(&mut self, uri: &str, seed: u64) -> Result<Child> {
        self.seed = seed;
        for state in self.states() {
            let _ = fs::remove_file(state);
        }
        let mut command = self.command(uri);
        command.args(["--do_verify=0", "--verify_state_save=1"]);
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().context("start fio")
    }

    /// The files that its jobs leave.
    fn states(&self) -> impl Iterator<Item = PathBuf> {
        (0..JOBS).map(|job| self.folder.join(format!("local-soak-{job}-verify.state")))
    }

    /// Waits until it has ended, as it must soon after the server's death.
    pub fn join(mut child: Child) -> Result<()> {
        let start = Instant::now();
        while start.elapsed() < PATIENCE {
            if child.try_wait()?.is_some() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        child.wait()?;
        bail!("fio does not end, though its server is gone")
    }

    /// Verifies what was acknowledged; gives the number of writes that it read back.
    pub fn verify(&self, uri: &str) -> Result<u64> {
        if !self.states().all(|state| state.exists()) {
            return Ok(0);
        }
        let mut command = self.command(uri);
        command.args(["--verify_only", "--verify_state_load=1", "--verify_state_save=0", "--verify_fatal=1"]);
        let output = said(&mut command).context("fio's verification")?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        // Remarks may stand before it.
        let report: Value =
            serde_json::from_str(&text[text.find('{').unwrap_or(0)..]).context("fio's report")?;
        let jobs = report["jobs"].as_array().context("fio's jobs")?;
        Ok(jobs.iter().filter_map(|job| job["read"]["total_ios"].as_u64()).sum())
    }
}
