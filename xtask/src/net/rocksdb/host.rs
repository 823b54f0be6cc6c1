//! The client's node: an array over the servers, served as a file, with RocksDB on a file system on it.
//!
//! What uses the database is its caller's: [`ycsb`](super::ycsb) or [`db_bench`](super::db_bench).

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::plan::FileSystem;
use super::{MEMBER_BYTES, SERVERS, Wish};
use crate::mounts::{Loop, Mount};
use crate::net::client::{Measurement, Reading, equal_links};
use crate::net::experiments::Arm;
use crate::net::network::{Network, Node, Rates};
use crate::net::server::Server as Target;
use crate::net::start_servers;
use crate::net::ycsb::State;
use crate::vm::server::{Home, Server, said};

/// KiB per second that a rebuild gets of each member while nothing is measured.
const FAST_KIB: u32 = 1_000_000;
/// The array's name.
const NAME: &str = "applications";
/// Which member is lost.
const LOST: u32 = 0;

/// What is needed to run our programs.
pub struct Host<'a> {
    pub wish: &'a Wish<'a>,
    pub network: &'a Network,
    /// For sockets, the file and the place where it is mounted.
    pub folder: &'a Path,
}

/// Where a database is.
pub struct Place<'a> {
    pub host: &'a Host<'a>,
    /// The array's.
    pub server: &'a Server,
    pub targets: &'a [Target],
    /// The database's folder, which isn't there yet.
    pub database: &'a Path,
}

/// The array's counters and the links', at an instant.
pub struct Instant {
    reading: Reading,
    array: Value,
}

/// What was measured.
pub struct Measured {
    /// As for the bench; its report is the client's.
    pub measurement: Measurement,
    /// The array's counters, what came in the measured time.
    before: Value,
    after: Value,
}

impl Measured {
    /// One of the array's counters.
    pub fn counter(&self, name: &str) -> f64 {
        let at = |detail: &Value| detail["statistics"][name].as_f64().unwrap_or(f64::NAN);
        at(&self.after) - at(&self.before)
    }
}

impl Host<'_> {
    /// A file system on new members, and `work` on a database there. Afterwards RocksDB's checksums, the file
    /// system and all parity have been found right.
    pub fn on<T>(
        &self,
        file_system: FileSystem,
        state: State,
        arm: Arm,
        work: impl FnOnce(&Place) -> Result<T>,
    ) -> Result<T> {
        let targets = start_servers(self.network, self.wish.pinstripe, (SERVERS + 1, MEMBER_BYTES), arm)?;
        let server = self.serve(&targets, arm)?;
        let worked = self.use_it(file_system, &server, &targets, work)?;
        if state == State::Degraded {
            server.add(Path::new(&targets[SERVERS].member))?;
        }
        server.sync_speed(FAST_KIB, FAST_KIB)?;
        server.wait_until_in_sync()?;
        server.check()?;
        server.stop()?;
        Ok(worked)
    }

    fn file(&self) -> PathBuf {
        self.folder.join("disk")
    }

    fn serve(&self, targets: &[Target], arm: Arm) -> Result<Server> {
        let members: Vec<PathBuf> =
            targets[..SERVERS].iter().map(|target| PathBuf::from(&target.member)).collect();
        let pinstripe = || self.network.command(Node::Client, self.wish.pinstripe);
        let mut create = pinstripe();
        create.args(["create", "--name", NAME, "--level", "5", "--chunk", "512K", "--bitmap", "none"]);
        said(create.arg("--assume-clean").args(&members))?;
        let home = Home { pinstripe: self.wish.pinstripe, sockets: self.folder, directory: self.folder };
        let file = self.file();
        let mut options = vec!["--shards", "1", "--cache", "0", "--fuse"];
        options.push(file.to_str().context("the file's name")?);
        options.extend(arm.client());
        Server::spawn_by(pinstripe(), home, NAME, &members, &options)?.ready(NAME)
    }

    /// The file system, and RocksDB on it.
    fn use_it<T>(
        &self,
        file_system: FileSystem,
        server: &Server,
        targets: &[Target],
        work: impl FnOnce(&Place) -> Result<T>,
    ) -> Result<T> {
        let (make, judge) = file_system.programs();
        let disk = Loop::over(&self.file())?;
        said(Command::new(make[0]).args(&make[1..]).arg(disk.path()))?;
        let folder = self.folder.join("mounted");
        fs::create_dir_all(&folder)?;
        let mount = Mount::of(&disk, &folder)?;
        let database = &folder.join("database");
        let worked = work(&Place { host: self, server, targets, database })?;
        verify_tables(database)?;
        drop(mount);
        said(Command::new(judge[0]).args(&judge[1..]).arg(disk.path()))?;
        Ok(worked)
    }
}

/// RocksDB's own judgement, of every block of every table.
pub fn verify_tables(database: &Path) -> Result<()> {
    let mut verify = Command::new("sst_dump");
    // Without the last one Debian's 7.8.3 says that a table is ok whatever is in its blocks.
    verify.arg(format!("--file={}", database.display())).args(["--command=verify", "--verify_checksum"]);
    let output = said(&mut verify)?;
    let is_table = |entry: &fs::DirEntry| entry.path().extension().is_some_and(|end| end == "sst");
    let tables = fs::read_dir(database)?.filter_map(Result::ok).filter(is_table).count();
    let words = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(are_whole(&words, tables), "sst_dump, of {tables} tables: {words}{errors}");
    Ok(())
}

/// Whether it found all of so many tables right. It ends well whatever it finds, also where it finds none.
fn are_whole(words: &str, tables: usize) -> bool {
    tables > 0 && words.lines().filter(|line| line.ends_with("file is ok")).count() == tables
}

impl Place<'_> {
    /// Loses a member, unless the array is to be healthy.
    pub fn fail_for(&self, state: State) -> Result<()> {
        if state == State::Healthy { Ok(()) } else { self.server.fail(LOST) }
    }

    /// Does `work` with all links limited.
    pub fn limited<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let Host { network, wish, .. } = self.host;
        let rates = equal_links(SERVERS + 1, wish.mbit);
        network.limit(&rates)?;
        let outcome = work();
        let free: Vec<(Node, Rates)> = rates.iter().map(|(node, _)| (*node, Rates::default())).collect();
        network.limit(&free)?;
        outcome
    }

    /// All counters now.
    pub fn now(&self) -> Result<Instant> {
        let reading = Reading::now(self.host.network, self.server.pid(), self.targets)?;
        Ok(Instant { reading, array: self.server.state()? })
    }
}

impl Instant {
    /// Whether a member is being rebuilt.
    pub fn is_rebuilding(&self) -> bool {
        !self.array["sync"].is_null()
    }

    /// What came since `before`, with the client's report.
    pub fn since(self, before: Self, report: Value) -> Measured {
        let measurement = self.reading.since(&before.reading, report);
        Measured { measurement, before: before.array, after: self.array }
    }
}

impl FileSystem {
    /// The commands that make and judge one.
    fn programs(self) -> (&'static [&'static str], &'static [&'static str]) {
        match self {
            Self::Ext4 => (&["mkfs.ext4", "-q", "-F"], &["fsck.ext4", "-f", "-n"]),
            Self::Xfs => (&["mkfs.xfs", "-q", "-f"], &["xfs_repair", "-n"]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_must_be_found_right_and_there_must_be_one() {
        let words = |tables| "from [] to []\n".to_owned() + &"The file is ok\n".repeat(tables);
        assert!(are_whole(&words(1), 1) && are_whole(&words(2), 2));
        assert!(!are_whole(&words(0), 0), "no table");
        assert!(!are_whole(&words(0), 2) && !are_whole(&words(1), 2), "it tells errors elsewhere");
    }
}
