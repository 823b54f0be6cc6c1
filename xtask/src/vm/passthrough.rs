//! Members by NVMe passthrough, and polled, on QEMU's NVMe disks.

use anyhow::{Result, ensure};

use super::machine::{Machine, NvmeDisk};
use super::{Lab, image};
use crate::pattern::{self, Run};

/// Bytes of a member.
const MEMBER_BYTES: u64 = 12 << 20;
/// A sector of slot 1 that can't be read, also when it has been rewritten. It holds data, no parity.
const BAD_SECTOR: u64 = (10 << 20) / 512;
/// What the slow disk writes in a second.
const SLOW_BYTES: u64 = 512 << 10;

/// What generation `generation` leaves on the array: whole runs, single blocks, the discarded range too.
fn writes(generation: u8) -> Vec<Run> {
    [0..640, 2000..2100, 3000..3400, 5000..5001].map(|blocks| Run::new(blocks, generation)).into()
}

/// See the script. The environment variable `PINSTRIPE_VM_READS` says over how many reads the CPU of each way
/// is to be measured, three times; without it, it isn't.
pub fn members(lab: &Lab) -> Result<()> {
    let reads: u32 = std::env::var("PINSTRIPE_VM_READS").map_or(Ok(0), |text| text.parse())?;
    let mut machine = Machine::new("passthrough", include_str!("../../vm/nvme-passthrough.sh"))
        .modules(&["ext4"])
        .kernel_option("nvme.poll_queues=2")
        .variable("READS", &reads.to_string())
        .program("pinstripe", &lab.pinstripe)
        .program("blkdiscard", &image::which("blkdiscard")?)
        .program("fio", &image::which("fio")?);
    for name in ["p-0", "p-1", "p-2", "p-slow"] {
        let file = lab.sparse_file(&format!("{name}.img"), MEMBER_BYTES)?;
        machine.nvme(NvmeDisk {
            serial: name.to_owned(),
            file,
            bad_sector: (name == "p-1").then_some(BAD_SECTOR),
            writes_per_second: (name == "p-slow").then_some(SLOW_BYTES),
        });
    }
    machine.file("nvme.sh", include_bytes!("../../vm/nvme.sh").to_vec());
    for generation in [1, 2] {
        let runs = pattern::list(&writes(generation)).into_bytes();
        machine.file(&format!("expected/{generation}"), runs);
    }
    let outcome = lab.boot(machine)?;
    for proof in ["refused", "unpolled", "polled", "mounted", "late"] {
        ensure!(outcome.all(proof) == ["yes"], "{proof}: {outcome:?}");
    }
    for count in ["forced", "zeroes", "deallocated"] {
        ensure!(outcome.last(count)?.parse::<u32>()? > 0, "{count}: no such command: {outcome:?}");
    }
    for cost in outcome.all("cost") {
        println!("    CPU of the server for a 4 KiB read, emulated: {cost}");
    }
    Ok(())
}
