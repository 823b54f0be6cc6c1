//! Whole stripes in memory: the engine by `pinstripe bench`, beside SPDK's raid5f by SPDK's own load
//! generator. Each makes its array anew for every measurement, on the same CPU.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::cells::{Array, CHUNK_KIB, Cell, MEMBERS, Plan, State};
use super::load::Figures;
use super::page::{OURS, SPDK, part};
use super::results::Row;
use crate::vm::server::said;

/// MiB of a member.
const MEMBER_MIB: usize = 512;
const BLOCK_BYTES: usize = 512;
/// Requests under way: one buffer; as many buffers as the processor's own cache holds; as many stripes as
/// raid5f has under way at most.
const DEPTHS: [u32; 3] = [1, 4, 32];
/// The CPU for all.
const CPU: &str = "0";

/// What is beside ours.
struct Raid5f {
    bdevperf: PathBuf,
    config: PathBuf,
}

/// Measures all cells that the plan has not ruled out, in its pairs; what SPDK says of its version.
pub fn run(
    pinstripe: &Path,
    spdk: &Path,
    folder: &Path,
    plan: &Plan,
    tell: &mut dyn FnMut(Row),
) -> Result<String> {
    let base = part(SPDK).context("the page has this part")?.base;
    let raid5f = Raid5f::new(spdk, folder)?;
    let version = raid5f.verify()?;
    for pair in 0..plan.pairs {
        for (array, cell) in cells().filter(|(array, cell)| plan.names(&format!("{array}: {cell}"))) {
            // Neither always comes first.
            let arms = if pair % 2 == 0 { [base, OURS] } else { [OURS, base] };
            for arm in arms {
                let figures = if arm == base {
                    raid5f.measure(cell, plan.seconds)
                } else {
                    ours(pinstripe, array, cell, plan.seconds)
                };
                let figures = figures.with_context(|| format!("{arm}: {array}: {cell}"))?;
                eprintln!("  {pair} {arm:10} {array}: {cell}: {:.0}/s", figures.iops);
                tell(Row::new(array.to_string(), cell, arm, pair, figures));
            }
        }
    }
    Ok(version)
}

/// raid5f has no bitmap; ours is measured without one, which is alike, and with one.
fn cells() -> impl Iterator<Item = (Array, Cell)> {
    let kib = Array { level: 5, bitmap: false }.stripe_kib();
    let cell = move |sequential, depth| Cell {
        state: State::Healthy,
        sequential,
        reads: false,
        kib,
        depth,
        jobs: 1,
    };
    [false, true].into_iter().flat_map(move |bitmap| {
        let patterns = [true, false].into_iter();
        let cells = patterns.flat_map(move |sequential| DEPTHS.map(|depth| cell(sequential, depth)));
        cells.map(move |cell| (Array { level: 5, bitmap }, cell))
    })
}

/// The run ends with a scrub and with all data read back: what is wrong fails it.
fn ours(pinstripe: &Path, array: Array, cell: Cell, seconds: f64) -> Result<Figures> {
    let mut bench = Command::new("taskset");
    bench.args(["--cpu-list", CPU]).arg(pinstripe).args(["bench", "--json", "--shards=1", "--level=5"]);
    bench.args([format!("--members={MEMBERS}"), format!("--device=mem:{MEMBER_MIB}M")]);
    bench.args([format!("--chunk={CHUNK_KIB}K"), format!("--size={}K", cell.kib)]);
    bench.args(["--pattern", if cell.sequential { "sequential" } else { "random" }]);
    bench.args(["--bitmap", if array.bitmap { "internal" } else { "none" }]);
    bench.args([format!("--depth={}", cell.depth), format!("--seconds={seconds}")]);
    let report: Value = serde_json::from_slice(&said(&mut bench)?.stdout)?;
    let number = |path: &str| report.pointer(path).and_then(Value::as_f64).context("the report has it");
    Ok(Figures { iops: number("/iops")?, p99_us: number("/latency_ns/p99")? / 1e3 })
}

impl Raid5f {
    /// Of a folder in which SPDK was built.
    fn new(spdk: &Path, folder: &Path) -> Result<Self> {
        let raid5f =
            Self { bdevperf: spdk.join("build/examples/bdevperf"), config: folder.join("raid5f.json") };
        fs::write(&raid5f.config, config().to_string())?;
        Ok(raid5f)
    }

    fn bdevperf(&self, work: &str, cell: Cell, seconds: f64) -> Result<String> {
        let mut bdevperf = Command::new(&self.bdevperf);
        bdevperf.arg("--config").arg(&self.config).args(["-m", &format!("[{CPU}]"), "-T", "raid", "-l"]);
        // It counts whole seconds.
        bdevperf.args(["-w", work, "-t", &seconds.ceil().to_string(), "-q", &cell.depth.to_string()]);
        bdevperf.args(["-o", &(cell.kib << 10).to_string()]);
        let output = said(&mut bdevperf).context("SPDK needs root, huge pages and a mounted hugetlbfs")?;
        Ok(String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    }

    fn measure(&self, cell: Cell, seconds: f64) -> Result<Figures> {
        figures(&self.bdevperf(if cell.sequential { "write" } else { "randwrite" }, cell, seconds)?)
    }

    /// Writes data and reads it back; what SPDK says of its version.
    fn verify(&self) -> Result<String> {
        let (_, cell) = cells().next().context("there are cells")?;
        let said = self.bdevperf("verify", cell, 1.0).context("verify")?;
        figures(&said).context("verify")?;
        let version = said.split_once("Starting ").and_then(|(_, rest)| rest.split_once(" initialization"));
        Ok(version.context("bdevperf says its version")?.0.to_owned())
    }
}

/// What SPDK makes its array of.
fn config() -> Value {
    let names: Vec<String> = (0..MEMBERS).map(|slot| format!("memory{slot}")).collect();
    let method = |name: &str, params: Value| json!({ "method": name, "params": params });
    let member = |name: &String| {
        let blocks = (MEMBER_MIB << 20) / BLOCK_BYTES;
        method("bdev_malloc_create", json!({ "name": name, "num_blocks": blocks, "block_size": BLOCK_BYTES }))
    };
    let mut methods: Vec<Value> = names.iter().map(member).collect();
    let raid =
        json!({ "name": "raid", "raid_level": "raid5f", "strip_size_kb": CHUNK_KIB, "base_bdevs": names });
    methods.push(method("bdev_raid_create", raid));
    json!({ "subsystems": [{ "subsystem": "bdev", "config": methods }] })
}

/// Of what bdevperf prints.
fn figures(said: &str) -> Result<Figures> {
    let after = |mark: &str, unit: &str, column: usize| {
        let line = said.lines().find(|line| line.trim_start().starts_with(mark))?;
        let (_, numbers) = line.split_once(':')?;
        numbers.split_whitespace().nth(column)?.trim_end_matches(unit).parse::<f64>().ok()
    };
    let [iops, failed] = [0, 2].map(|column| after("Total ", "", column));
    let failed = failed.context("bdevperf's figures are of another form")?;
    ensure!(failed == 0.0, "{failed} requests a second failed");
    Ok(Figures {
        iops: iops.context("bdevperf's figures have no requests a second")?,
        p99_us: after("99.00000%", "us", 0).context("bdevperf's figures have no latencies")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "Starting SPDK v26.05 git sha1 d519b163cb / DPDK 25.11.0 initialization...
 Device Information          : runtime(s)       IOPS      MiB/s     Fail/s     TO/s    Average        min        max
	 raid                :       2.00   16432.10    5135.03       0.00     0.00     243.29     176.31    8263.23
\r Total                       :              16432.10    5135.03       0.00     0.00     243.29     176.31    8263.23
 98.00000% :   322.337us
 99.00000% :  3105.837us
";

    #[test]
    fn figures_of_bdevperf_are_its_total_and_its_99th_percentile() {
        let figures = figures(SAID).unwrap();
        assert_eq!((figures.iops, figures.p99_us), (16432.10, 3105.837));
    }

    #[test]
    fn requests_that_failed_are_no_measurement() {
        let failed = SAID.replace("       0.00     0.00 ", "       3.00     0.00 ");
        assert_eq!(figures(&failed).unwrap_err().to_string(), "3 requests a second failed");
    }

    #[test]
    fn every_cell_is_of_whole_stripes() {
        let cells: Vec<_> = cells().collect();
        assert_eq!(cells.len(), 2 * 2 * DEPTHS.len());
        assert!(cells.iter().all(|(_, cell)| cell.kib == 320 && !cell.reads), "{cells:?}");
    }
}
