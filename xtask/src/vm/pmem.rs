//! Members in persistent memory: parts of the guest's memory that its kernel takes for persistent. One of
//! them has ext4 with `-o dax`, the others become device DAX. (QEMU's own NVDIMM has no DAX before `ndctl`
//! has worked on it.)

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
        .memory("2G")
        // With gaps between them, or the kernel would make one region of all; and below what it is booted
        // from, which lies at the end of memory.
        .kernel_option("memmap=384M!1G,64M!1424M,64M!1504M,64M!1584M")
        .program("pinstripe", &lab.pinstripe)
        .program("fio", &image::which("fio")?);
    machine.file("ublk.sh", include_bytes!("../../vm/ublk.sh").to_vec());
    machine.file("expected/u", pattern::list(&writes()).into_bytes());
    let outcome = lab.boot(machine)?;
    for proof in ["refused", "used", "again", "plain", "device_dax", "looked_at"] {
        ensure!(outcome.all(proof) == ["yes"], "{proof}: {outcome:?}");
    }
    Ok(())
}
