//! `serve --ublk` on the real driver of the guest's kernel.

use anyhow::{Result, ensure};

use super::machine::Machine;
use super::{Lab, image};
use crate::pattern::{self, Run};

/// Bytes of a member. Four of five hold data, so a stripe is a power of two.
const MEMBER_BYTES: u64 = 64 << 20;
const MEMBERS: usize = 5;

/// What is written before it is read back: whole runs, single blocks.
fn writes() -> Vec<Run> {
    [0..640, 4000..4100, 8191..8192, 40_000..40_003].map(|blocks| Run::new(blocks, 1)).into()
}

fn guest(lab: &Lab, name: &str, script: &'static str) -> Result<Machine> {
    let mut machine = Machine::new(name, script)
        .modules(&["ext4"])
        .program("pinstripe", &lab.pinstripe)
        .program("blkdiscard", &image::which("blkdiscard")?)
        .program("fio", &image::which("fio")?);
    for member in 0..MEMBERS {
        let disk = format!("u-{member}");
        machine.disk(&disk, &lab.sparse_file(&format!("{disk}.img"), MEMBER_BYTES)?, 512);
    }
    machine.file("ublk.sh", include_bytes!("../../vm/ublk.sh").to_vec());
    machine.file("expected/u", pattern::list(&writes()).into_bytes());
    Ok(machine)
}

/// Everything that the block layer asks of a device.
pub fn device(lab: &Lab) -> Result<()> {
    let outcome = lab.boot(guest(lab, "device", include_str!("../../vm/ublk-device.sh"))?)?;
    let proofs = [
        "refused",
        "limits",
        "data",
        "spread",
        "discard",
        "durable",
        "filesystem",
        "degraded",
        "partitions",
        "read-only",
    ];
    for proof in proofs {
        ensure!(outcome.all(proof) == ["yes"], "{proof}: {outcome:?}");
    }
    Ok(())
}

/// The server dies under writes, again and again; the device and all that was acknowledged stay.
pub fn recovery(lab: &Lab) -> Result<()> {
    let outcome = lab.boot(guest(lab, "recovery", include_str!("../../vm/ublk-recovery.sh"))?)?;
    for proof in ["recovered", "mounted", "foreign", "deleted", "interrupted"] {
        ensure!(outcome.all(proof) == ["yes"], "{proof}: {outcome:?}");
    }
    Ok(())
}
