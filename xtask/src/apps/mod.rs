//! `cargo xtask apps`: databases on ext4 on an array; its server is killed in the middle of their writes.
//!
//! The array is served as a file (FUSE), so nothing outlives its server: for the applications the kill is a
//! power cut. They get errors and end; another server serves the array, the file system replays its journal,
//! the application recovers. What it has acknowledged must be there, and its own checks must pass.

mod figures;
mod postgres;
mod rocksdb;
mod sqlite;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;

pub use self::postgres::PROGRAMS as POSTGRES;
use crate::mounts::{Loop, Mount};
use crate::packages;
use crate::vm::Lab;
use crate::vm::members::Geometry;
use crate::vm::server::{self, Server, said};

/// RAID5 on files: a database and its logs fit.
const GEOMETRY: Geometry = Geometry::new("apps", 5, 4, 64, "left-symmetric").with_members_of(256 << 20);
/// How long an application may go on without its disk.
const PATIENCE: Duration = Duration::from_mins(1);

/// What to do.
#[derive(Args)]
pub struct Apps {
    /// Not being root is no failure.
    #[arg(long, hide = true)]
    unless_unprivileged: bool,
    /// Only the applications with this in their name.
    #[arg(long)]
    only: Option<String>,
    /// How often the server is killed under each, or each run is measured.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Measure pgbench and SQLite beside one disk instead, and write docs/results/applications.md.
    #[arg(long, conflicts_with_all = ["only", "seconds"])]
    figures: bool,
    /// Seconds of writes before each kill.
    #[arg(long, default_value_t = 3.0)]
    seconds: f64,
}

/// A database with its own checks.
trait Application {
    fn name(&self) -> &'static str;

    /// Makes a database in this folder, and has it written until it fails.
    fn load(&self, folder: &Path) -> Result<Load>;

    /// After the failure: recovers the database, and compares it with what was acknowledged. Returns that in
    /// words.
    fn verify(&self, folder: &Path) -> Result<String>;
}

/// Processes of an application, killed when this is dropped.
struct Load {
    /// They end by themselves when their disk fails.
    clients: Vec<Child>,
    /// It may go on.
    server: Option<Child>,
}

impl Load {
    /// Waits until the clients have ended, and ends the rest as a power cut does.
    fn end(mut self) -> Result<()> {
        let start = Instant::now();
        for client in &mut self.clients {
            // How it ends is its own affair: Debian's RocksDB aborts after a failed write.
            while client.try_wait()?.is_none() {
                ensure!(start.elapsed() < PATIENCE, "a client goes on without its disk");
                thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }

    /// Fails if a client has ended already.
    fn goes_on(&mut self) -> Result<()> {
        for client in &mut self.clients {
            if let Some(status) = client.try_wait()? {
                bail!("a client ended with {status} before the kill");
            }
        }
        Ok(())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in self.clients.iter_mut().chain(&mut self.server) {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Tries, or measures.
pub fn run(root: &Path, apps: &Apps) -> Result<()> {
    if !packages::is_root() || !Path::new("/dev/fuse").exists() {
        ensure!(apps.unless_unprivileged, "mounting needs root and /dev/fuse");
        println!("apps: not tried: mounting needs root and /dev/fuse");
        return Ok(());
    }
    packages::ensure()?;
    packages::ensure_postgres()?;
    crate::mounts::be_private()?;
    crate::vm::build_command(root)?;
    let base = root.join("target/vm");
    let scratch = std::env::temp_dir().join(format!("pinstripe-apps-{}", std::process::id()));
    fs::create_dir_all(&scratch).with_context(|| format!("make {}", scratch.display()))?;
    let outcome = if apps.figures {
        figures::run(root, &base, &scratch, apps.rounds)
    } else {
        survive(root, &base, &scratch, apps)
    };
    let _ = fs::remove_dir_all(&scratch);
    outcome
}

/// Kills servers under all of them; ends with `N passed, N failed`.
fn survive(root: &Path, base: &Path, scratch: &Path, apps: &Apps) -> Result<()> {
    let all: [Box<dyn Application>; 3] = [
        Box::new(postgres::Postgres::new(scratch)),
        Box::new(rocksdb::RocksDb::new(root, scratch)?),
        Box::new(sqlite::Sqlite::new(scratch)),
    ];
    let is_meant = |name: &str| apps.only.as_ref().is_none_or(|only| name.contains(only));
    let (mut passed, mut failed) = (0, Vec::new());
    for application in all.iter().filter(|application| is_meant(application.name())) {
        let start = Instant::now();
        let result =
            Lab::new(base, application.name()).and_then(|lab| survives(&lab, application.as_ref(), apps));
        let (name, seconds) = (application.name(), start.elapsed().as_secs_f64());
        match result {
            Ok(words) => {
                println!("{name:12} ok      {seconds:5.1} s  {words}");
                passed += 1;
            }
            Err(error) => {
                println!("{name:12} FAILED  {seconds:5.1} s  {error:#}");
                failed.push(name);
            }
        }
    }
    println!("{passed} passed, {} failed", failed.len());
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}

/// An array, served as a file.
struct Disk<'a> {
    lab: &'a Lab,
    devices: Vec<PathBuf>,
    file: PathBuf,
    folder: PathBuf,
}

impl<'a> Disk<'a> {
    fn new(lab: &'a Lab) -> Result<Self> {
        let devices = GEOMETRY.make_members(lab)?;
        server::create(lab, &GEOMETRY, &devices, &["--assume-clean"])?;
        // Users other than root must get there.
        let folder = std::env::temp_dir().join(format!("pinstripe-apps-{}", std::process::id())).join("disk");
        fs::create_dir_all(&folder)?;
        Ok(Self { lab, devices, file: lab.directory.join("apps.disk"), folder })
    }

    fn serve(&self) -> Result<Server> {
        let file = self.file.to_str().context("the file's name")?;
        Server::start_with(self.lab, GEOMETRY.name, &self.devices, &["--fuse", file])
    }
}

/// Kills the server under the application, and looks afterwards, again and again.
fn survives(lab: &Lab, application: &dyn Application, apps: &Apps) -> Result<String> {
    let disk = Disk::new(lab)?;
    let mut words = Vec::new();
    for round in 1..=apps.rounds {
        let server = disk.serve()?;
        server.wait_until_in_sync()?;
        let device = Loop::over(&disk.file)?;
        said(std::process::Command::new("mkfs.ext4").args(["-q", "-F"]).arg(device.path()))?;
        let mount = Mount::of(&device, &disk.folder)?;
        let mut load = application.load(&disk.folder)?;
        thread::sleep(Duration::from_secs_f64(apps.seconds));
        load.goes_on()?;
        server.kill()?;
        load.end().with_context(|| format!("round {round}"))?;
        drop((mount, device));
        let server = disk.serve()?;
        let device = Loop::over(&disk.file)?;
        let mount = Mount::of(&device, &disk.folder)?;
        words.push(application.verify(&disk.folder).with_context(|| format!("round {round}"))?);
        drop(mount);
        said(Command::new("fsck.ext4").args(["-f", "-n"]).arg(device.path()))?;
        drop(device);
        server.wait_until_in_sync()?;
        server.check()?;
        server.stop()?;
    }
    Ok(words.join("; "))
}

/// A shell's pipeline that the kernel ends with us, with `$0`, `$1`, ... of these words.
fn pipeline(script: &str, words: &[&Path]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", "sh", "-c", script]).args(words);
    command
}

/// How many rows a client has been told of as committed: its lines `row 1`, `row 2` and so on.
fn acknowledged(path: &Path) -> Result<u64> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let rows: Vec<u64> = text.lines().filter_map(|line| line.strip_prefix("row ")?.parse().ok()).collect();
    ensure!(!rows.is_empty(), "no row was committed: {text}");
    ensure!(rows.iter().copied().eq(1..=rows.len() as u64), "rows were committed in another order");
    Ok(rows.len() as u64)
}

/// Whether the rows that are there are those that were acknowledged, and at most the one that was under way.
/// `found` has their number, the first, the last, and how many hold something else.
fn compare(acknowledged: u64, found: &str) -> Result<()> {
    let numbers: Vec<u64> = found.trim().split('|').filter_map(|word| word.parse().ok()).collect();
    let is_right = [acknowledged, acknowledged + 1].iter().any(|rows| numbers == [*rows, 1, *rows, 0]);
    ensure!(
        is_right,
        "rows, first, last and wrong ones are {}; {acknowledged} were acknowledged",
        found.trim()
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_that_was_acknowledged_must_be_there_and_the_next_one_may() {
        for found in ["7|1|7|0\n", "8|1|8|0"] {
            compare(7, found).unwrap();
        }
        for found in ["6|1|6|0", "9|1|9|0", "7|1|8|0", "7|1|7|1", "7|2|7|0", "0|||", ""] {
            assert!(compare(7, found).is_err(), "{found}");
        }
    }
}
