//! The measurements of a virtual machine with RAM disks, by this very program in its guest.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::cells::{MEMBERS, Plan};
use super::results::{Measured, Row};
use crate::origin::Origin;
use crate::vm::machine::Machine;
use crate::vm::{self, Lab, image};

/// KiB of a RAM disk.
const DISK_KIB: u64 = 128 << 10;
/// Disks, the kernel's stripe cache (16384 pages of each member) and the rest.
const MEMORY: &str = "3G";
/// By which the guest's lines for us begin.
pub const MARK: &str = "@out row ";

/// Boots, measures, and gives what was measured.
pub fn run(root: &Path, plan: &Plan) -> Result<Measured> {
    let rows = plan.matrix().iter().map(|(_, cells)| cells.len()).sum::<usize>();
    ensure!(rows > 0, "no cell has all of {:?} in its name", plan.only);
    let mut origin = Origin::now(root)?;
    let lab = Lab::new(&root.join("target/vm"), "bench")?;
    println!(
        "{rows} cells in the virtual machine; its progress: {}",
        lab.directory.join("bench.log").display()
    );
    let machine = Machine::new("bench", include_str!("../../vm/bench.sh"))
        .memory(MEMORY)
        .time_limit(time_limit(plan, rows))
        .program("pinstripe", &lab.pinstripe)
        .program("fio", &image::which("fio")?)
        .variable("DISKS", &MEMBERS.to_string())
        .variable("DISK_KIB", &DISK_KIB.to_string())
        .variable("OPTIONS", &plan.options().join("\n"));
    let outcome = lab.boot(machine)?;
    let row =
        |text: &str| serde_json::from_str::<Row>(text).with_context(|| format!("the guest's row {text:?}"));
    let rows = outcome.all("row").into_iter().map(row).collect::<Result<Vec<_>>>()?;
    origin.machine = format!("{} outside, {} in the guest", origin.machine, outcome.last("kernel")?);
    Ok(Measured { origin, seconds: plan.seconds, rows })
}

/// Far more than it should take.
fn time_limit(plan: &Plan, rows: usize) -> Duration {
    let arms = 3.0;
    let cell = (plan.seconds + 5.0) * arms;
    let turns = f64::from(plan.pairs) * 60.0;
    #[expect(clippy::cast_precision_loss, reason = "some hundred")]
    let seconds = rows as f64 * cell * f64::from(plan.pairs) + turns * 4.0 + 300.0;
    Duration::from_secs_f64(seconds)
}

/// Builds our command, and installs what is missing.
pub fn prepare(root: &Path) -> Result<()> {
    crate::packages::ensure()?;
    vm::build_command(root)
}
