//! Members in persistent memory: ext4 with `-o dax` on a part of the guest's memory that its kernel takes for
//! persistent. (QEMU's own NVDIMM has no DAX before `ndctl` has worked on it.)

use anyhow::{Result, ensure};

use super::machine::Machine;
use super::{Lab, image};
use crate::pattern::{self, Run};

/// What is written before it is read back.
fn writes() -> Vec<Run> {
    [0..640, 4000..4100, 8191..8192].map(|blocks| Run::new(blocks, 1)).into()
}

/// See the script.
pub fn members(lab: &Lab) -> Result<()> {
    let mut machine = Machine::new("pmem", include_str!("../../vm/pmem.sh"))
        .modules(&["ext4"])
        .memory("1536M")
        .kernel_option("memmap=384M!1G")
        .program("pinstripe", &lab.pinstripe)
        .program("fio", &image::which("fio")?);
    machine.file("ublk.sh", include_bytes!("../../vm/ublk.sh").to_vec());
    machine.file("expected/u", pattern::list(&writes()).into_bytes());
    let outcome = lab.boot(machine)?;
    for proof in ["refused", "used", "again", "plain"] {
        ensure!(outcome.all(proof) == ["yes"], "{proof}: {outcome:?}");
    }
    Ok(())
}
