//! NVMe/TCP against the kernel's nvme-tcp and nvme-cli. Everything runs in the guest, on its loopback
//! address.

use anyhow::{Result, ensure};

use super::machine::Machine;
use super::{Lab, image};
use crate::pattern::{self, Run};

/// Bytes of a device that is exported.
const DEVICE_BYTES: u64 = 64 << 20;

/// What the kernel writes through NVMe before it is read back: whole runs, single blocks, the last block.
fn writes() -> Vec<Run> {
    let last = DEVICE_BYTES / pattern::BLOCK as u64 - 1;
    [0..640, 4000..4100, 8191..8192, last..last + 1].map(|blocks| Run::new(blocks, 1)).into()
}

fn guest(lab: &Lab, name: &str, script: &'static str) -> Result<Machine> {
    let mut machine = Machine::new(name, script)
        .modules(&["ext4"])
        .program("pinstripe", &lab.pinstripe)
        .program("fio", &image::which("fio")?);
    for disk in ["t-0", "t-1"] {
        machine.disk(disk, &lab.sparse_file(&format!("{disk}.img"), DEVICE_BYTES)?, 512);
    }
    machine.file("nvme.sh", include_bytes!("../../vm/nvme.sh").to_vec());
    machine.file("expected/t", pattern::list(&writes()).into_bytes());
    Ok(machine)
}

/// What nvme-cli and the kernel's host ask of a target, and a file system on it.
pub fn target(lab: &Lab) -> Result<()> {
    let outcome = lab.boot(guest(lab, "target", include_str!("../../vm/nvme-target.sh"))?)?;
    for proof in ["discovered", "digests", "commands", "reservations", "filesystem"] {
        ensure!(outcome.all(proof) == ["yes"], "{proof}: {outcome:?}");
    }
    Ok(())
}

/// The target dies under writes and comes back; the kernel goes on where it was.
pub fn reconnect(lab: &Lab) -> Result<()> {
    let machine = guest(lab, "reconnect", include_str!("../../vm/nvme-reconnect.sh"))?;
    let outcome = lab.boot(machine.modules(&["nvme-tcp"]))?;
    ensure!(outcome.all("reconnected") == ["yes"], "{outcome:?}");
    Ok(())
}

/// Linux's own array on namespaces of our target: what it moves for partial writes, which is what a client
/// without our servers' help moves.
pub fn md(lab: &Lab) -> Result<()> {
    let mut machine =
        guest(lab, "md", include_str!("../../vm/nvme-md.sh"))?.modules(super::LEVELS).modules(&["nvme-tcp"]);
    for disk in ["t-2", "t-3"] {
        machine.disk(disk, &lab.sparse_file(&format!("{disk}.img"), DEVICE_BYTES)?, 512);
    }
    let outcome = lab.boot(machine)?;
    for (level, expected) in [("raid5", 4.0), ("raid6", 6.0)] {
        let hundredths: f64 = outcome.last(level)?.parse()?;
        let each = hundredths / 100.0;
        println!("    {level}: {each:.2} bytes on the link for each byte, both directions together");
        ensure!(
            (1.5..expected * 1.2).contains(&each),
            "{level}: {each} bytes on the link for each that was written"
        );
    }
    Ok(())
}

/// An array of ours as a namespace.
pub fn array(lab: &Lab) -> Result<()> {
    let mut machine = guest(lab, "array", include_str!("../../vm/nvme-array.sh"))?.modules(&["nvme-tcp"]);
    machine.disk("t-2", &lab.sparse_file("t-2.img", DEVICE_BYTES)?, 512);
    let outcome = lab.boot(machine)?;
    ensure!(outcome.all("array") == ["yes"], "{outcome:?}");
    Ok(())
}

/// The kernel's host proves its identity to our target.
pub fn auth_target(lab: &Lab) -> Result<()> {
    let outcome = lab.boot(guest(lab, "auth", include_str!("../../vm/nvme-auth.sh"))?)?;
    for proof in ["accepted", "refused"] {
        ensure!(outcome.all(proof) == ["yes"], "{proof}: {outcome:?}");
    }
    Ok(())
}

/// Our initiator proves its identity to the kernel's target.
pub fn auth_member(lab: &Lab) -> Result<()> {
    let mut machine = guest(lab, "auth-member", include_str!("../../vm/nvme-auth-member.sh"))?
        .modules(&["nbd", "nvmet-tcp"]);
    machine.disk("t-2", &lab.sparse_file("t-2.img", DEVICE_BYTES)?, 512);
    let outcome = lab.boot(machine)?;
    for proof in ["refused", "agreed", "member"] {
        ensure!(outcome.all(proof) == ["yes"], "{proof}: {outcome:?}");
    }
    Ok(())
}

/// Our array on namespaces of the kernel's target.
pub fn member(lab: &Lab) -> Result<()> {
    let mut machine = guest(lab, "member", include_str!("../../vm/nvme-member.sh"))?
        .modules(super::LEVELS)
        .modules(&["nbd", "nvmet-tcp"]);
    machine.disk("t-2", &lab.sparse_file("t-2.img", DEVICE_BYTES)?, 512);
    let outcome = lab.boot(machine)?;
    ensure!(outcome.all("member") == ["yes"], "{outcome:?}");
    Ok(())
}
