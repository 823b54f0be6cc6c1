//! `cargo xtask bench`: ours beside others, on the same devices, in turns.
//!
//! ```text
//!   vm    boots a guest with RAM disks ─> inside: matrix over them ─> rows come out
//!   here  the same matrix over devices of this machine
//!   nbd   NBD exports of members in memory
//!   spdk  whole stripes in memory, beside SPDK's raid5f
//!   parity  the kernels of parity, without any server
//!   page  what is kept of all these ─> docs/results/performance.md
//! ```
//!
//! `cells` says what there is to measure, `matrix` in which order; `peers` are the servers, `load` is fio;
//! `results`, `page` and `chart` are what comes of it.

mod cells;
mod chart;
mod load;
mod matrix;
mod nbd;
mod page;
mod parity;
mod peers;
mod results;
mod spdk;
mod vm;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use clap::{Args, Subcommand};

pub use self::cells::Plan;
use self::peers::{Bed, Md};
use self::results::Measured;
pub use self::results::Spread;
use crate::origin::Origin;

/// What to do.
#[derive(Args)]
pub struct Bench {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    plan: Plan,
    /// Write below this folder instead of into the documents
    #[arg(long, global = true)]
    out: Option<PathBuf>,
}

#[derive(Subcommand)]
enum What {
    /// Beside Linux MD on RAM disks of a virtual machine
    Vm,
    /// NBD beside nbdkit's memory plugin
    Nbd,
    /// Whole stripes in memory, beside SPDK's raid5f
    Spdk {
        /// The folder in which SPDK was built, with raid5f
        #[arg(long, value_name = "DIR")]
        spdk: PathBuf,
    },
    /// Parity kernels beside those of ISA-L, which must be installed
    Parity,
    /// Beside Linux MD on devices of this machine, which are overwritten. The tables are printed; with --out
    /// they are a page, too
    Here(Here),
    /// Write the page again from what is kept
    Page,
    /// What `vm` runs in its guest
    #[command(hide = true)]
    Inside(Here),
}

#[derive(Args)]
struct Here {
    /// Members of the arrays: six
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<PathBuf>,
    /// Overwrite devices that hold something
    #[arg(long)]
    force: bool,
    /// MiB of each device that are used. Every array is filled and synchronised first
    #[arg(long, value_name = "MIB", default_value_t = 4096)]
    member_size: u64,
    /// Our shards, and MD's `group_thread_cnt`
    #[arg(long, value_name = "N", default_value_t = 2)]
    threads: u32,
    /// The command to measure
    #[arg(long, default_value = "target/release/pinstripe")]
    pinstripe: PathBuf,
}

/// Measures what is asked for: without a word all that needs no devices.
pub fn run(root: &Path, bench: &Bench) -> Result<()> {
    let base = bench.out.as_deref().unwrap_or(root);
    match &bench.what {
        None => {
            in_vm(root, base, &bench.plan)?;
            over_nbd(root, base, &bench.plan)
        }
        Some(What::Vm) => in_vm(root, base, &bench.plan),
        Some(What::Nbd) => over_nbd(root, base, &bench.plan),
        Some(What::Spdk { spdk }) => beside_spdk(root, base, spdk, &bench.plan),
        Some(What::Parity) => parity::run(root, base),
        Some(What::Page) => page::write(base),
        Some(What::Here(here)) => on_devices(root, bench.out.as_deref(), here, &bench.plan),
        Some(What::Inside(here)) => inside(here, &bench.plan),
    }
}

/// `cargo xtask vm --bench`.
pub fn in_vm(root: &Path, base: &Path, plan: &Plan) -> Result<()> {
    vm::prepare(root)?;
    let measured = vm::run(root, plan)?;
    page::keep(base, page::VM, &measured)
}

fn over_nbd(root: &Path, base: &Path, plan: &Plan) -> Result<()> {
    vm::prepare(root)?;
    let mut measured = Measured { origin: Origin::now(root)?, seconds: plan.seconds, rows: Vec::new() };
    let folder = Folder::new()?;
    let pinstripe = root.join("target/release/pinstripe");
    nbd::run(&pinstripe, &folder.0, plan, &mut |row| measured.rows.push(row))?;
    page::keep(base, page::NBD, &measured)
}

fn beside_spdk(root: &Path, base: &Path, spdk: &Path, plan: &Plan) -> Result<()> {
    crate::vm::build_command(root)?;
    let mut measured = Measured { origin: Origin::now(root)?, seconds: plan.seconds, rows: Vec::new() };
    let folder = Folder::new()?;
    let pinstripe = root.join("target/release/pinstripe");
    let version = spdk::run(&pinstripe, spdk, &folder.0, plan, &mut |row| measured.rows.push(row))?;
    let _ = write!(measured.origin.machine, ", {version}");
    page::keep(base, page::SPDK, &measured)
}

/// On devices of this machine.
fn on_devices(root: &Path, out: Option<&Path>, here: &Here, plan: &Plan) -> Result<()> {
    vm::prepare(root)?;
    let (has_md, ublk) = (Md::is_there(), has_ublk());
    if !has_md {
        println!("this kernel has no raid456 (`modprobe raid456`): MD is left out");
    }
    if !ublk {
        println!("this kernel has no ublk driver (`modprobe ublk_drv`): ours is measured over NBD");
    }
    println!("{} MiB of each of these devices are overwritten: {:?}", here.member_size, here.devices);
    let mut measured = Measured { origin: Origin::now(root)?, seconds: plan.seconds, rows: Vec::new() };
    let way = if ublk { "ublk" } else { "NBD" };
    let _ = write!(measured.origin.machine, "; ours over {way}, on {:?}", here.devices);
    let folder = Folder::new()?;
    let bed = here.bed(&folder.0, ublk, Some(here.member_size << 20))?;
    matrix::run(&bed, plan, has_md, here.force, &mut |row| measured.rows.push(row))?;
    if let Some(part) = page::part(page::HERE) {
        println!("\n{}", part.section(&measured));
    }
    out.map_or(Ok(()), |base| page::keep(base, page::HERE, &measured))
}

/// In the guest of a virtual machine: rows go to standard output.
fn inside(here: &Here, plan: &Plan) -> Result<()> {
    let folder = Folder::new()?;
    let bed = here.bed(&folder.0, true, None)?;
    ensure!(Md::is_there() && has_ublk(), "the guest's kernel has no raid456, or no ublk_drv");
    matrix::run(&bed, plan, true, true, &mut |row| {
        // It can always be written as JSON.
        let text = serde_json::to_string(&row).unwrap_or_default();
        println!("{}{text}", vm::MARK);
    })
}

impl Here {
    fn bed(&self, folder: &Path, ublk: bool, member_bytes: Option<u64>) -> Result<Bed> {
        let count = self.devices.len();
        ensure!(count == cells::MEMBERS, "{} devices are needed, and {count} were given", cells::MEMBERS);
        Ok(Bed {
            pinstripe: self.pinstripe.clone(),
            devices: self.devices.clone(),
            threads: self.threads,
            member_bytes,
            folder: folder.to_owned(),
            ublk,
        })
    }
}

fn has_ublk() -> bool {
    let has = || Path::new("/dev/ublk-control").exists();
    has() || (std::process::Command::new("modprobe").arg("ublk_drv").output().is_ok() && has())
}

/// Bytes of a file or a block device.
fn device_bytes(path: &Path) -> Result<u64> {
    let mut file = File::open(path).with_context(|| format!("open {}", path.display()))?;
    Ok(file.seek(SeekFrom::End(0))?)
}

/// A folder for sockets and logs with a short path, as long as this lives.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("pinstripe-bench-{}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
