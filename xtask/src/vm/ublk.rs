//! `serve --ublk` on the real driver of the guest's kernel.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::machine::Machine;
use super::{Lab, image};
use crate::pattern::{self, Run};

/// Bytes of a member. Four of five hold data, so a stripe is a power of two.
const MEMBER_BYTES: u64 = 64 << 20;
const MEMBERS: usize = 5;
/// Where XFS shall fit, which wants 300 MiB.
const LARGE_MEMBER_BYTES: u64 = 128 << 20;

/// For the kills, and for all that comes behind them.
const SECONDS_FOR_A_KILL: u64 = 20;
const TIME_LIMIT: Duration = Duration::from_mins(5);

/// What is written before it is read back: whole runs, single blocks.
fn writes() -> Vec<Run> {
    [0..640, 4000..4100, 8191..8192, 40_000..40_003].map(|blocks| Run::new(blocks, 1)).into()
}

fn guest(lab: &Lab, name: &str, script: &'static str) -> Result<Machine> {
    let mut machine = on_disks(lab, name, script, &members(lab, MEMBER_BYTES)?)
        .modules(&["ext4"])
        .program("blkdiscard", &image::which("blkdiscard")?)
        .program("fio", &image::which("fio")?);
    machine.file("expected/u", pattern::list(&writes()).into_bytes());
    Ok(machine)
}

/// Empty members.
fn members(lab: &Lab, bytes: u64) -> Result<Vec<PathBuf>> {
    (0..MEMBERS).map(|member| lab.sparse_file(&format!("u-{member}.img"), bytes)).collect()
}

fn on_disks(lab: &Lab, name: &str, script: &'static str, members: &[PathBuf]) -> Machine {
    let mut machine = Machine::new(name, script).program("pinstripe", &lab.pinstripe);
    for (index, member) in members.iter().enumerate() {
        machine.disk(&format!("u-{index}"), member, 512);
    }
    machine.file("ublk.sh", include_bytes!("../../vm/ublk.sh").to_vec());
    machine
}

/// Everything that the block layer asks of a device.
pub fn device(lab: &Lab) -> Result<()> {
    let outcome = lab.boot(guest(lab, "device", include_str!("../../vm/ublk-device.sh"))?)?;
    let proofs = [
        "refused",
        "limits",
        "flusher",
        "data",
        "spread",
        "discard",
        "durable",
        "opened",
        "filesystem",
        "degraded",
        "partitions",
        "read-only",
        "through",
    ];
    for proof in proofs {
        ensure!(outcome.all(proof) == ["yes"], "{proof}: {outcome:?}");
    }
    Ok(())
}

/// An array of mdadm's is taken over with its file system, and given back.
pub fn exchange(lab: &Lab) -> Result<()> {
    let members: Vec<PathBuf> = members(lab, MEMBER_BYTES)?.into_iter().take(4).collect();
    let machine = on_disks(lab, "exchange", include_str!("../../vm/exchange.sh"), &members);
    let outcome = lab.boot(machine.modules(&["ext4", "raid456"]))?;
    for proof in ["refused", "imported", "released"] {
        ensure!(outcome.all(proof) == ["yes"], "{proof}: {outcome:?}");
    }
    Ok(())
}

/// The server dies under writes, again and again; the device and all that was acknowledged stay.
pub fn recovery(lab: &Lab) -> Result<()> {
    recovery_of(lab, 5).map(drop)
}

/// The same with so many kills: how many requests were under way at them.
pub fn recovery_of(lab: &Lab, kills: u32) -> Result<u64> {
    let machine = guest(lab, "recovery", include_str!("../../vm/ublk-recovery.sh"))?;
    let limit = TIME_LIMIT + Duration::from_secs(SECONDS_FOR_A_KILL * u64::from(kills));
    let outcome = lab.boot(machine.variable("KILLS", &kills.to_string()).time_limit(limit))?;
    for proof in ["upgraded", "recovered", "mounted", "ended", "foreign", "deleted", "interrupted"] {
        ensure!(outcome.all(proof) == ["yes"], "{proof}: {outcome:?}");
    }
    outcome.last("under-way")?.parse().context("requests under way")
}

/// The same under SQLite: every transaction that was committed is there.
pub fn sqlite(lab: &Lab) -> Result<()> {
    let machine =
        on_disks(lab, "sqlite", include_str!("../../vm/ublk-sqlite.sh"), &members(lab, MEMBER_BYTES)?);
    let machine = machine.modules(&["ext4"]).program("sqlite3", &image::which("sqlite3")?);
    let outcome = lab.boot(machine)?;
    let rows = outcome.all("rows");
    ensure!(outcome.all("done") == ["yes"] && rows.len() == 2, "{outcome:?}");
    Ok(())
}

/// The same under PostgreSQL, which needs more than other scenarios.
pub fn postgres(lab: &Lab) -> Result<()> {
    crate::packages::ensure_postgres()?;
    let script = include_str!("../../vm/ublk-postgres.sh");
    let mut machine =
        on_disks(lab, "postgres", script, &members(lab, LARGE_MEMBER_BYTES)?).modules(&["ext4"]);
    let programs = Path::new(crate::apps::POSTGRES);
    // For their libraries; what they are, and what they read, is in the archive.
    for name in ["postgres", "initdb", "psql", "pgbench", "pg_amcheck"] {
        machine = machine.program(name, &programs.join(name));
    }
    machine = machine.program("setpriv", &image::which("setpriv")?);
    let archive = Command::new("tar")
        .args(["--create", "--exclude=bitcode", "--exclude=llvmjit*", "--directory=/"])
        .args(["usr/lib/postgresql/15", "usr/share/postgresql/15"])
        .output()
        .context("run tar")?;
    ensure!(archive.status.success(), "tar: {}", String::from_utf8_lossy(&archive.stderr));
    machine.file("postgres.tar", archive.stdout);
    let outcome = lab.boot(machine)?;
    ensure!(outcome.all("done") == ["yes"] && outcome.all("rows").len() == 1, "{outcome:?}");
    Ok(())
}

/// The same under RocksDB, which needs more than other scenarios.
pub fn rocksdb(lab: &Lab) -> Result<()> {
    let root = lab.pinstripe.ancestors().nth(3).context("the command lies under target/release")?;
    let machine =
        on_disks(lab, "rocksdb", include_str!("../../vm/ublk-rocksdb.sh"), &members(lab, MEMBER_BYTES)?);
    let machine = machine.modules(&["ext4"]).program("ycsb", &crate::net::build_client(root)?);
    let outcome = lab.boot(machine.program("sst_dump", &image::which("sst_dump")?))?;
    ensure!(outcome.all("done") == ["yes"], "{outcome:?}");
    Ok(())
}

/// LVM, LUKS and XFS on it, with little memory, and all of that again after a reboot under load.
pub fn stack(lab: &Lab) -> Result<()> {
    let members = members(lab, LARGE_MEMBER_BYTES)?;
    let boot = |name, script, proofs: &[&str]| -> Result<()> {
        let mut machine =
            on_disks(lab, name, script, &members).modules(&["xfs", "xts", "essiv", "algif_skcipher"]);
        for program in ["lvm", "cryptsetup", "mkfs.xfs", "xfs_repair", "fstrim"] {
            machine = machine.program(program, &image::which(program)?);
        }
        machine.file("stack.sh", include_bytes!("../../vm/stack.sh").to_vec());
        let outcome = lab.boot(machine)?;
        for proof in proofs {
            ensure!(outcome.all(proof) == ["yes"], "{proof}: {outcome:?}");
        }
        Ok(())
    };
    boot("stack", include_str!("../../vm/ublk-stack.sh"), &["stacked", "short", "rebooted"])?;
    boot("reboot", include_str!("../../vm/ublk-reboot.sh"), &["again"])
}
