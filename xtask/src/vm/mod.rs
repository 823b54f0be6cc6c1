//! `cargo xtask vm`: our arrays against Debian's kernel and the real mdadm, in QEMU without KVM.
//!
//! A scenario is a function that uses [`Lab`]: it makes member files on the host, lets our command work on
//! them there, boots a [`machine::Machine`] on the same files, and compares. Guest halves are the scripts in
//! `xtask/vm/`.

mod clients;
pub mod cpio;
mod crash;
pub mod debian;
mod faults;
mod filesystem;
mod fio;
mod fuse;
pub mod image;
mod interop;
mod journal;
mod life;
mod logs;
pub mod machine;
mod mdadm;
pub mod members;
mod nvme;
mod passthrough;
mod pmem;
mod readme;
mod repair;
pub mod server;
mod torn;
pub mod ublk;
mod upgrade;
mod vhost_user;

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use self::image::Image;
use self::machine::{Machine, Outcome};
use self::members::Geometry;
use crate::pattern::{self, Run};

/// Something that is tried with the kernel.
struct Scenario {
    name: &'static str,
    about: &'static str,
    run: fn(&Lab) -> Result<()>,
}

const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "mdadm-alone",
        about: "the harness: mdadm's arrays, degraded ones too, hold the pattern in a second boot and scrub clean",
        run: mdadm::alone,
    },
    Scenario {
        name: "mdadm-cut",
        about: "the harness: power fails under the kernel's writes, blocks are old or new after the next boot",
        run: mdadm::cut,
    },
    Scenario {
        name: "ours-in-kernel",
        about: "created by us, written over NBD, equal and clean in the kernel, written and grown there, equal with us",
        run: interop::ours,
    },
    Scenario {
        name: "mdadm-with-us",
        about: "created by mdadm, degraded ones too; read, written and rebuilt by us, equal and clean in the kernel",
        run: interop::theirs,
    },
    Scenario {
        name: "our-server-dies",
        about: "kill -9 of our server under writes: the kernel resyncs from our bitmap and finds nothing wrong",
        run: crash::our_server_dies,
    },
    Scenario {
        name: "degraded-server-dies",
        about: "kill -9 of our server with a member missing: neither we nor the kernel start it unforced",
        run: crash::degraded_server_dies,
    },
    Scenario {
        name: "kernel-dies",
        about: "power fails under the kernel's writes: we resync from its bitmap, and both find nothing wrong",
        run: crash::kernel_dies,
    },
    Scenario {
        name: "journal-ours",
        about: "our server killed under writes, its members set back to any mixture: the kernel replays our journal",
        run: journal::ours_in_kernel,
    },
    Scenario {
        name: "journal-kernel",
        about: "power fails under the kernel's writes, write-through and write-back: we replay its journal",
        run: journal::kernels_with_us,
    },
    Scenario {
        name: "life-ours",
        about: "re-add, replace and rebuild that we were stopped or killed in, and a spare of ours: the kernel goes on from there",
        run: life::ours_in_kernel,
    },
    Scenario {
        name: "life-kernel",
        about: "the same that the kernel was stopped or cut in, and blocks that it lists as bad: we go on from there",
        run: life::kernels_with_us,
    },
    Scenario {
        name: "power",
        about: "sudden resets of our server's machine, whose disks forget what was not flushed; a short soak",
        run: |lab| crate::soak::power(lab, 2),
    },
    Scenario {
        name: "our-ppl-in-kernel",
        about: "kill -9 of our server under writes, rows torn, a member lost too: the kernel replays our partial parity log",
        run: logs::ours_in_kernel,
    },
    Scenario {
        name: "kernel-ppl-with-us",
        about: "power fails under the kernel's writes, rows torn, a member lost too: we replay its partial parity log",
        run: logs::kernels_with_us,
    },
    Scenario {
        name: "double-parity-log",
        about: "RAID6 with our log: clean, the kernel assembles it; dirty, it refuses, and we replay",
        run: logs::double_parity,
    },
    Scenario {
        name: "ext4",
        about: "ext4 over nbd-client: mkfs, copy, fsck; again with a member lost",
        run: filesystem::ext4,
    },
    Scenario {
        name: "read-error",
        about: "dm-flakey under a member of our server in the guest: the chunk is rewritten; what md runs is refused",
        run: faults::read_error,
    },
    Scenario {
        name: "write-error",
        about: "dm-error under a member of our server in the guest: the sectors are listed as bad, which the kernel heeds",
        run: faults::write_error,
    },
    Scenario {
        name: "repair",
        about: "silent damage: our repair and the kernel's make the same bytes, and count the same",
        run: repair::beside_the_kernel,
    },
    Scenario {
        name: "locate",
        about: "repair --locate puts right what one member of a RAID6 row got wrong; the kernel finds it clean and equal",
        run: repair::locate,
    },
    Scenario {
        name: "hang",
        about: "a suspended dm device under a member: the array goes on, takes it back when it answers, stops when it doesn't",
        run: faults::hang,
    },
    Scenario {
        name: "replug",
        about: "disks pulled and put back, idle and under writes, under other names: taken back by bitmap; copies are not",
        run: faults::replug,
    },
    Scenario {
        name: "nvme-target",
        about: "the kernel's nvme-tcp and nvme-cli on our target: discovery, digests, every command, reservations, ext4",
        run: nvme::target,
    },
    Scenario {
        name: "nvme-reconnect",
        about: "kill -9 of our target under the kernel's fio: it reconnects, and every block verifies",
        run: nvme::reconnect,
    },
    Scenario {
        name: "nvme-md",
        about: "md over the kernel's nvme-tcp and our target: parity right, and how often each byte crosses the link",
        run: nvme::md,
    },
    Scenario {
        name: "nvme-array",
        about: "serve --nvme-tcp: the kernel writes our array as an NVMe namespace, and reads it back after a restart",
        run: nvme::array,
    },
    Scenario {
        name: "nvme-member",
        about: "our initiator on the kernel's nvmet-tcp: an array of three namespaces loses one and gets it back",
        run: nvme::member,
    },
    Scenario {
        name: "nvme-auth-target",
        about: "the kernel's host authenticates to our target, both ways, with every hash; without the key it is refused",
        run: nvme::auth_target,
    },
    Scenario {
        name: "nvme-auth-member",
        about: "our initiator authenticates to the kernel's nvmet with every hash and group, and an array stands on it",
        run: nvme::auth_member,
    },
    Scenario {
        name: "nvme-passthrough",
        about: "members by passthrough and as block devices, polled and not, on QEMU's NVMe: each reads what others wrote",
        run: passthrough::members,
    },
    Scenario {
        name: "ublk",
        about: "serve --ublk on the kernel's driver: limits, fio, ext4, discard, flush, FUA, partitions, a lost member",
        run: ublk::device,
    },
    Scenario {
        name: "ublk-recovery",
        about: "kill -9 and upgrades of our server under fio on /dev/ublkb0: the next one takes it over, and every block verifies",
        run: ublk::recovery,
    },
    Scenario {
        name: "ublk-sqlite",
        about: "kill -9 of our server under SQLite's transactions on ext4: all that were committed are there, integrity_check passes",
        run: ublk::sqlite,
    },
    Scenario {
        name: "ublk-postgres",
        about: "kill -9 of our server under PostgreSQL's transactions: all are there, balances add up, pg_amcheck and checksums pass",
        run: ublk::postgres,
    },
    Scenario {
        name: "ublk-rocksdb",
        about: "kill -9 of our server under RocksDB's durable writes: every record has its last acknowledged version",
        run: ublk::rocksdb,
    },
    Scenario {
        name: "exchange",
        about: "import of an array that mdadm made, with a file system on it, and release: the same files on both sides",
        run: ublk::exchange,
    },
    Scenario {
        name: "ublk-stack",
        about: "LVM, LUKS and XFS on /dev/ublkb0, no memory left, a reboot under load: all is there again",
        run: ublk::stack,
    },
    Scenario {
        name: "vhost-user",
        about: "serve --vhost-user: a guest's fio outlives kill -9 and SIGTERM of our server; its next boot has its root there",
        run: vhost_user::guest,
    },
    Scenario {
        name: "pmem",
        about: "members in files on a DAX file system, and in device DAX: mapped, written, killed, looked at",
        run: pmem::members,
    },
    Scenario {
        name: "clients",
        about: "nbdinfo, nbdcopy, qemu-img and qemu-io, each judging what another one wrote (no boot)",
        run: clients::all,
    },
    Scenario {
        name: "tls",
        about: "NBD over TLS: nbdinfo, nbdcopy and qemu-img with certificates as docs/admin.md makes them, and without (no boot)",
        run: clients::tls,
    },
    Scenario {
        name: "fio-verify",
        about: "fio with verification over NBD on every level, complete and degraded (no boot)",
        run: fio::verify,
    },
    Scenario {
        name: "upgrade",
        about: "fio with verification over NBD under six changes of the program, each of which is short (no boot)",
        run: upgrade::under_load,
    },
    Scenario {
        name: "readme",
        about: "the life of an array, command by command as README.md has it (no boot)",
        run: readme::life,
    },
    Scenario {
        name: "fuse",
        about: "serve --fuse: fio at any byte, ext4 and xfs on a loop device over it, a lost member, kill -9 (no boot)",
        run: fuse::file,
    },
];

/// Why a scenario can't run on this machine. It is counted by its name, and is no failure.
#[derive(Debug)]
pub struct NotHere(pub &'static str);

impl fmt::Display for NotHere {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.0)
    }
}

impl std::error::Error for NotHere {}

/// Modules of the levels that we serve.
const LEVELS: &[&str] = &["raid0", "raid456"];

/// What a scenario works with.
pub struct Lab {
    image: Image,
    /// The scenario's own folder: member files, logs.
    pub directory: PathBuf,
    /// Our command.
    pub pinstripe: PathBuf,
    /// A folder with a short path, for sockets.
    pub sockets: PathBuf,
}

impl Lab {
    /// A fresh folder `name` in `base`, and the image from the cache there.
    pub fn new(base: &Path, name: &str) -> Result<Self> {
        let directory = base.join(name);
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory)?;
        let sockets = std::env::temp_dir().join(format!("pinstripe-vm-{}-{name}", std::process::id()));
        fs::create_dir_all(&sockets)?;
        Ok(Self {
            image: image::prepare(base)?,
            directory,
            pinstripe: base.with_file_name("release").join("pinstripe"),
            sockets,
        })
    }

    /// Boots the kernel on these arrays: each must hold what is expected of it and scrub clean; missing
    /// members are put in again and rebuilt; then `writes` go to it.
    pub fn kernel_verifies(
        &self,
        name: &str,
        geometries: &[Geometry],
        expected: impl Fn(&Geometry) -> Vec<Run>,
        writes: &[Run],
    ) -> Result<Outcome> {
        let mut machine = Machine::new(name, include_str!("../../vm/kernel-verify.sh"))
            .modules(LEVELS)
            .variable("ARRAYS", &members::lines(geometries))
            .variable("RESTORE", "yes")
            .variable("WRITES", &pattern::list(writes));
        for geometry in geometries {
            geometry.attach(self, &mut machine, &expected(geometry));
        }
        let outcome = self.boot(machine)?;
        for geometry in geometries {
            let is_verified = outcome.all("verified").contains(&geometry.name);
            ensure!(is_verified, "{} was not verified", geometry.name);
        }
        Ok(outcome)
    }

    /// A sparse file of this many bytes in the scenario's folder.
    pub fn sparse_file(&self, name: &str, bytes: u64) -> Result<PathBuf> {
        let path = self.directory.join(name);
        File::create(&path)?.set_len(bytes)?;
        Ok(path)
    }

    /// Boots the machine on the cached image, with this program, by which the guest writes and verifies the
    /// pattern; logs go to the scenario's folder.
    pub fn boot(&self, machine: Machine) -> Result<Outcome> {
        machine.program("xtask", &std::env::current_exe()?).run(&self.image, &self.directory)
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.sockets);
    }
}

/// What the sample leaves out: checks of the harness itself, and scenarios next to which others try the same
/// code: of `ext4` the kernel's NBD client is in `read-error`, `hang` and `replug`, and the file system, with
/// a lost member too, in `ublk` and `fuse`.
const LEFT_OUT: &[&str] = &[
    "ext4",
    "mdadm-alone",
    "mdadm-cut",
    "nvme-auth-member",
    "nvme-md",
    "nvme-reconnect",
    "nvme-target",
    "ublk-postgres",
    "ublk-rocksdb",
    "ublk-sqlite",
];

/// Prints the scenarios.
pub fn list() {
    for scenario in SCENARIOS {
        println!("{:24} {}", scenario.name, scenario.about);
    }
}

/// What the longest scenario takes on a slow machine, beside another one.
const LONGEST: Duration = Duration::from_mins(4);

/// Runs the scenarios with `only` in their names, or a sample, `jobs` at a time, and begins none that might
/// not be done by `end`; ends with `N passed, N failed`, and with those that can't run here.
pub fn run(
    root: &Path,
    only: Option<&str>,
    sample: bool,
    end: Option<Instant>,
    keep: bool,
    jobs: usize,
) -> Result<()> {
    let is_meant = |scenario: &&Scenario| {
        only.is_none_or(|part| scenario.name.contains(part)) && !(sample && LEFT_OUT.contains(&scenario.name))
    };
    let chosen: Vec<&Scenario> = SCENARIOS.iter().filter(is_meant).collect();
    if chosen.is_empty() {
        bail!("no scenario has {:?} in its name; `cargo xtask vm --list` shows them", only.unwrap_or(""));
    }
    crate::packages::ensure()?;
    build_command(root)?;
    let base = root.join("target/vm");
    // Once, and before the scenarios: each of them would find it missing and build it.
    image::prepare(&base)?;
    let is_time = || end.is_none_or(|end| Instant::now() + LONGEST < end);
    let (next, ended) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs.clamp(1, chosen.len()) {
            scope.spawn(|| {
                while is_time()
                    && let Some(scenario) = chosen.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let how = ended_how(&base, scenario, keep);
                    ended.lock().unwrap_or_else(PoisonError::into_inner).push((scenario.name, how));
                }
            });
        }
    });
    let ended = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
    let has_ended = |name| ended.iter().any(|(ended, _)| *ended == name);
    let left_out: Vec<&str> =
        chosen.iter().map(|scenario| scenario.name).filter(|&name| !has_ended(name)).collect();
    if !left_out.is_empty() {
        println!("left out, no time: {}", left_out.join(", "));
    }
    println!("{}", summary(&ended));
    let failed = names(&ended, End::Failed);
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}

/// How a scenario ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Passed,
    Failed,
    /// It can't run here.
    NotRun,
}

impl End {
    fn of(result: &Result<()>) -> Self {
        match result {
            Ok(()) => Self::Passed,
            Err(error) if error.is::<NotHere>() => Self::NotRun,
            Err(_) => Self::Failed,
        }
    }
}

/// Those that ended so.
fn names(ended: &[(&'static str, End)], how: End) -> Vec<&'static str> {
    ended.iter().filter(|(_, end)| *end == how).map(|(name, _)| *name).collect()
}

fn summary(ended: &[(&'static str, End)]) -> String {
    let [passed, failed, not_run] = [End::Passed, End::Failed, End::NotRun].map(|how| names(ended, how));
    let not_run = match not_run.as_slice() {
        [] => String::new(),
        names => format!(", {} not run: {}", names.len(), names.join(", ")),
    };
    format!("{} passed, {} failed{not_run}", passed.len(), failed.len())
}

/// Builds our command as users get it.
pub fn build_command(root: &Path) -> Result<()> {
    let status = crate::cargo::command()
        .args(["build", "--quiet", "--release", "--package", "pinstripe"])
        .current_dir(root)
        .status()?;
    ensure!(status.success(), "pinstripe does not build");
    Ok(())
}

/// Runs a scenario and prints how it ended.
fn ended_how(base: &Path, scenario: &Scenario, keep: bool) -> End {
    let start = Instant::now();
    let result = run_one(base, scenario, keep);
    let seconds = start.elapsed().as_secs_f64();
    let (name, end) = (scenario.name, End::of(&result));
    match (&result, end) {
        (Ok(()), _) => println!("{name:24} ok      {seconds:6.1} s"),
        (Err(error), End::NotRun) => println!("{name:24} NOT RUN {seconds:6.1} s: {error:#}"),
        (Err(error), _) => println!("{name:24} FAILED  {seconds:6.1} s: {error:#}"),
    }
    end
}

fn run_one(base: &Path, scenario: &Scenario, keep: bool) -> Result<()> {
    let lab = Lab::new(base, scenario.name)?;
    (scenario.run)(&lab)?;
    if !keep {
        for entry in fs::read_dir(&lab.directory).context("clean up")?.flatten() {
            if entry.path().extension().is_some_and(|extension| extension == "img") {
                fs::remove_file(entry.path())?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sample_leaves_out_scenarios_that_there_are() {
        let is_there = |name: &str| SCENARIOS.iter().any(|scenario| scenario.name == name);
        assert!(LEFT_OUT.iter().all(|name| is_there(name)), "{LEFT_OUT:?}");
        assert!(LEFT_OUT.len() * 4 < SCENARIOS.len());
    }

    #[test]
    fn what_cannot_run_here_is_no_pass_and_no_failure() {
        let results = [Ok(()), Err(NotHere("it needs root").into()), Err(anyhow::anyhow!("a wrong byte"))];
        let ends = results.map(|result| End::of(&result));
        assert_eq!(ends, [End::Passed, End::NotRun, End::Failed]);
        let ended: Vec<_> = ["ext4", "fuse", "hang"].into_iter().zip(ends).collect();
        assert_eq!(summary(&ended), "1 passed, 1 failed, 1 not run: fuse");
        assert_eq!(summary(&ended[..1]), "1 passed, 0 failed");
    }
}
