//! Parity kernels beside ISA-L's: a bench of the bench crate, whose table is kept as it is.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::page;
use crate::origin::Origin;

/// Measures, keeps the table, and writes the page.
pub fn run(root: &Path, base: &Path) -> Result<()> {
    let origin = Origin::now(root)?;
    let mut bench = Command::new("cargo");
    bench.args(["bench", "-p", "pinstripe-bench", "--features", "isal", "--bench", "beside_isal"]);
    let ran = bench.current_dir(root).stderr(Stdio::inherit()).output().context("run cargo")?;
    ensure!(ran.status.success(), "the bench failed; it is linked to ISA-L (`apt-get install libisal-dev`)");
    let table = String::from_utf8_lossy(&ran.stdout);
    let text = format!(
        "Commit {}, {} UTC, {}, load average before {}. Again: `cargo xtask bench parity`.\n\n{}\n",
        origin.commit,
        origin.date,
        origin.machine,
        origin.load,
        table.trim()
    );
    let path = page::parity_file(base);
    fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
    page::write(base)
}
