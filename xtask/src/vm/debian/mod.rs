//! `cargo xtask vm --debian`: the package in service, on a Debian 12 with systemd, udev, and mdadm beside it.
//!
//! ```text
//!   image      mmdebstrap makes the root file system, once (image.rs)
//!   package    as `cargo xtask deb` makes it, and again with a higher version, to be upgraded to
//!   guest      QEMU boots the image's own kernel and ramdisk as often as the guest reboots, and its monitor
//!              pulls disks when the guest asks for that (guest.rs)
//!   scripts    xtask/vm/debian: a unit runs one for each boot
//! ```
//!
//! The guest reports each step that has passed; the steps that must come are [`STEPS`].

mod guest;
mod image;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

use self::guest::Guest;
use super::image::run as output_of;

/// A step, as the guest's scripts name it, and what has been seen when it is over.
struct Step {
    name: &'static str,
    about: &'static str,
}

/// All steps in their order; the first [`SHORT`] are the short form.
const STEPS: &[Step] = &[
    Step {
        name: "installed",
        about: "install, two RAID5 arrays by ublk, ext4 and XFS on them, /etc/fstab; import of mdadm's, in a login",
    },
    Step {
        name: "rebooted",
        about: "a reboot: mounted, the files are right, also those in memory; release to mdadm",
    },
    Step {
        name: "daemon-killed",
        about: "kill -9 of the daemon under load: no error, systemd starts it again",
    },
    Step {
        name: "server-killed",
        about: "kill -9 of the server under load, three times: no error, all verifies",
    },
    Step {
        name: "pulled",
        about: "a disk pulled by QEMU under load: degraded, told by program, mail and webhook, no error",
    },
    Step { name: "put-back", about: "put back: in sync again without a hand, all verifies, parity right" },
    Step { name: "stopped", about: "a stopped array stays so, and its mount has it started again" },
    Step {
        name: "kinds",
        about: "arrays by FUSE and NBD, for others than root, of files, NVMe and a target: by their units",
    },
    Step {
        name: "hung",
        about: "a disk that hangs for ever: no watchdog, no upgrade; stopped, started and killed without it; then back",
    },
    Step {
        name: "upgraded",
        about: "upgrade under load: the same process is the new program, no error; again after kill -9",
    },
    Step { name: "removed", about: "remove: refused while mounted; then configuration and state are left" },
    Step { name: "purged", about: "purge: nothing is left, and the disks have their superblocks" },
    Step {
        name: "back-with-mdadm",
        about: "a reboot without the package: mdadm has all arrays, the files are right",
    },
];
const SHORT: usize = 2;
/// Member disks of the guest, and their bytes: two arrays, one to be imported, mdadm's own, a target's, and
/// one of NVMe.
const DISKS: &[(&str, u64)] = &[
    ("d0", 256 << 20),
    ("d1", 256 << 20),
    ("d2", 256 << 20),
    ("d3", 256 << 20),
    ("n0", 256 << 20),
    ("n1", 256 << 20),
    ("n2", 256 << 20),
    ("h0", 64 << 20),
    ("h1", 64 << 20),
    ("h2", 64 << 20),
    ("m0", 64 << 20),
    ("m1", 64 << 20),
    ("t0", 64 << 20),
    ("v0", 64 << 20),
];
/// Those that are NVMe; all others are SCSI.
const NVME: &[&str] = &["v0"];
/// The guest's scripts. Those of the long form are not there in the short one, which ends after the first
/// boot then.
const SCRIPTS: &[(&str, &str)] = &[
    ("lib.sh", include_str!("../../../vm/lib.sh")),
    ("job.sh", include_str!("../../../vm/debian/job.sh")),
    ("debian.sh", include_str!("../../../vm/debian/debian.sh")),
    ("install.sh", include_str!("../../../vm/debian/install.sh")),
    ("mounted.sh", include_str!("../../../vm/debian/mounted.sh")),
];
const LONG_SCRIPTS: &[(&str, &str)] = &[
    ("service.sh", include_str!("../../../vm/debian/service.sh")),
    ("kinds.sh", include_str!("../../../vm/debian/kinds.sh")),
    ("hung.sh", include_str!("../../../vm/debian/hung.sh")),
    ("upgrade.sh", include_str!("../../../vm/debian/upgrade.sh")),
    ("gone.sh", include_str!("../../../vm/debian/gone.sh")),
];
/// For a guest that is emulated by a busy machine.
const TIME_LIMIT: Duration = Duration::from_mins(40);

/// What is tried of the package.
#[derive(Args)]
pub struct Debian {
    /// Try the package on a Debian with systemd, instead of any scenario: install, reboot, failures, upgrade,
    /// purge
    #[arg(long, conflicts_with_all = ["only", "sample", "list", "keep", "bench"])]
    debian: bool,
    /// End after the first reboot
    #[arg(long, requires = "debian")]
    short: bool,
    /// Not being root is no failure
    #[arg(long, requires = "debian", hide = true)]
    unless_unprivileged: bool,
    /// Try this package, and make none
    #[arg(long, requires = "debian", value_name = "FILE")]
    package: Option<PathBuf>,
}

impl Debian {
    /// Whether this is what `cargo xtask vm` shall do.
    pub fn is_meant(&self) -> bool {
        self.debian
    }
}

/// Runs the steps; ends with `N passed, N failed`.
pub fn run(root: &Path, debian: &Debian) -> Result<()> {
    if debian.unless_unprivileged && !crate::packages::is_root() {
        println!("debian: not tried: {}", image::NEEDS_ROOT);
        return Ok(());
    }
    crate::packages::ensure()?;
    let base = root.join("target/vm");
    let began = Instant::now();
    let image = image::prepare(&base)?;
    println!("{:16} ready   {:6.1} s", "image", began.elapsed().as_secs_f64());
    let directory = base.join("debian-run");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory)?;
    let began = Instant::now();
    let package = match &debian.package {
        Some(package) => package.clone(),
        None => crate::deb::package(root)?,
    };
    let job = job(&directory, &package, debian.short)?;
    println!("{:16} ready   {:6.1} s", "package", began.elapsed().as_secs_f64());
    let mut guest = Guest::new(&directory, &image, &job)?;
    for (name, bytes) in DISKS {
        let file = directory.join(format!("{name}.img"));
        File::create(&file)?.set_len(*bytes)?;
        guest.disk(name, file);
    }
    let steps = if debian.short { &STEPS[..SHORT] } else { STEPS };
    follow(&mut guest, steps)
}

/// Runs the guest, and prints each step when it has passed.
fn follow(guest: &mut Guest, steps: &[Step]) -> Result<()> {
    let (start, mut began, mut passed) = (Instant::now(), Instant::now(), 0);
    let ended = guest.run(TIME_LIMIT, &mut |name| {
        let step = steps.get(passed).with_context(|| format!("a step {name:?} too many"))?;
        ensure!(step.name == name, "step {name:?} has come, and not {:?}", step.name);
        println!("{name:16} ok      {:6.1} s  {}", began.elapsed().as_secs_f64(), step.about);
        (began, passed) = (Instant::now(), passed + 1);
        Ok(())
    });
    let missing: Vec<&str> = steps[passed..].iter().map(|step| step.name).collect();
    if let (Err(error), Some(name)) = (&ended, missing.first()) {
        println!("{name:16} FAILED  {:6.1} s: {error:#}", began.elapsed().as_secs_f64());
    }
    println!("{:.0} s in the guest", start.elapsed().as_secs_f64());
    println!("{passed} passed, {} failed", missing.len());
    ended?;
    if !missing.is_empty() {
        bail!("not reached: {}", missing.join(", "));
    }
    Ok(())
}

/// The disk with the packages and scripts.
fn job(directory: &Path, package: &Path, is_short: bool) -> Result<PathBuf> {
    let job = directory.join("job");
    fs::create_dir_all(&job)?;
    let more = if is_short { &[] } else { LONG_SCRIPTS };
    for (name, contents) in SCRIPTS.iter().chain(more) {
        fs::write(job.join(name), contents)?;
    }
    fs::copy(package, job.join("first.deb")).with_context(|| format!("copy {}", package.display()))?;
    if !is_short {
        let version = higher(directory, package, &job.join("second.deb"))?;
        fs::write(job.join("second"), version)?;
    }
    let file = directory.join("job.img");
    let mut make = Command::new("mke2fs");
    output_of(make.args(["-q", "-t", "ext4", "-L", "job", "-d"]).args([&job, &file]).arg("128M"))?;
    Ok(file)
}

/// Packs the same files and scripts as a later version: which.
fn higher(directory: &Path, package: &Path, target: &Path) -> Result<String> {
    let tree = directory.join("higher");
    output_of(Command::new("dpkg-deb").arg("--raw-extract").args([package, &tree]))?;
    let control = tree.join("DEBIAN/control");
    let text = fs::read_to_string(&control)?;
    let version =
        text.lines().find_map(|line| line.strip_prefix("Version: ")).context("it has no version")?;
    let later = format!("{version}+later");
    fs::write(&control, text.replace(&format!("Version: {version}\n"), &format!("Version: {later}\n")))?;
    output_of(Command::new("dpkg-deb").args(["--root-owner-group", "--build"]).args([&tree, target]))?;
    fs::remove_dir_all(&tree)?;
    Ok(later)
}
