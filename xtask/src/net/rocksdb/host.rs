//! The client's node: an array over the servers, served as a file, with RocksDB on a file system on it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::plan::{FileSystem, Point};
use super::{MEMBER_BYTES, RECORDS, SERVERS, Wish};
use crate::mounts::{Loop, Mount};
use crate::net::client::{Attended, Measurement, Reading, equal_links};
use crate::net::experiments::Arm;
use crate::net::network::{Network, Node, Rates};
use crate::net::server::Server as Target;
use crate::net::start_servers;
use crate::net::ycsb::State;
use crate::vm::server::{Home, Server, said};

/// KiB per second that a rebuild gets of each member while something is measured, in both arms.
const REBUILD_KIB: u32 = 1500;
/// And when nothing is.
const FAST_KIB: u32 = 1_000_000;
/// The array's name.
const NAME: &str = "applications";
/// Which member is lost.
const LOST: u32 = 0;

/// What is needed to run our programs.
pub struct Host<'a> {
    pub wish: &'a Wish<'a>,
    pub network: &'a Network,
    /// The YCSB client.
    pub ycsb: &'a Path,
    /// For sockets, the file and the place where it is mounted.
    pub folder: &'a Path,
}

/// What was measured.
pub struct Measured {
    /// As for the bench; its report is the client's.
    pub measurement: Measurement,
    /// The array's counters, what came in the measured time.
    pub before: Value,
    pub after: Value,
}

impl Measured {
    /// One of the array's counters.
    pub fn counter(&self, name: &str) -> f64 {
        let at = |detail: &Value| detail["statistics"][name].as_f64().unwrap_or(f64::NAN);
        at(&self.after) - at(&self.before)
    }
}

impl Host<'_> {
    /// One run, on new members. All records, the file system and all parity have been found right.
    pub fn measure(&self, point: Point, arm: Arm) -> Result<Measured> {
        let targets = start_servers(self.network, self.wish.pinstripe, (SERVERS + 1, MEMBER_BYTES), arm)?;
        let server = self.serve(&targets, arm)?;
        let measured = self.use_it(point, &server, &targets)?;
        if point.state == State::Degraded {
            server.add(Path::new(&targets[SERVERS].member))?;
        }
        server.sync_speed(FAST_KIB, FAST_KIB)?;
        server.wait_until_in_sync()?;
        server.check()?;
        server.stop()?;
        Ok(measured)
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
    fn use_it(&self, point: Point, server: &Server, targets: &[Target]) -> Result<Measured> {
        let (make, judge) = point.file_system.programs();
        let disk = Loop::over(&self.file())?;
        said(Command::new(make[0]).args(&make[1..]).arg(disk.path()))?;
        let folder = self.folder.join("mounted");
        fs::create_dir_all(&folder)?;
        let mount = Mount::of(&disk, &folder)?;
        let database = folder.join("database");
        let measured = self.ycsb(point, server, targets, &database)?;
        // RocksDB's own judgement, of every block of every table.
        let mut verify = Command::new("sst_dump");
        verify.arg(format!("--file={}", database.display())).arg("--command=verify");
        let output = said(&mut verify)?;
        let words = String::from_utf8_lossy(&output.stdout).into_owned();
        ensure!(!words.contains("corrupt") && words.contains("ok"), "sst_dump: {words}");
        drop(mount);
        said(Command::new(judge[0]).args(&judge[1..]).arg(disk.path()))?;
        Ok(measured)
    }

    fn ycsb(&self, point: Point, server: &Server, targets: &[Target], database: &Path) -> Result<Measured> {
        // Loading needs no limits, and members that are there: it isn't measured.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(self.ycsb).arg("run").arg(database);
        command.args(["--attended", "--json", "--records", &RECORDS.to_string()]);
        command.args(["--workload", point.workload.option(), "--seconds", &self.wish.seconds.to_string()]);
        command.args(["--threads", &self.wish.threads.to_string()]);
        command.args(point.durable.then_some("--sync"));
        let mut client = Attended::start(&mut command)?;
        client.expect("ready")?;
        if point.state != State::Healthy {
            server.fail(LOST)?;
        }
        let rates = equal_links(SERVERS + 1, self.wish.mbit);
        self.network.limit(&rates)?;
        let outcome = self.watch(point, server, targets, &mut client);
        let free: Vec<(Node, Rates)> = rates.iter().map(|(node, _)| (*node, Rates::default())).collect();
        self.network.limit(&free)?;
        let (first, second, before, after) = outcome?;
        client.go_on()?;
        let report = client.report()?;
        let verified = report["verified"].as_u64();
        ensure!(verified.is_some_and(|records| records >= RECORDS), "not all records are there: {report}");
        Ok(Measured { measurement: second.since(&first, report), before, after })
    }

    /// From the moment in which the links are limited to the end of what is measured.
    fn watch(
        &self,
        point: Point,
        server: &Server,
        targets: &[Target],
        client: &mut Attended,
    ) -> Result<(Reading, Reading, Value, Value)> {
        if point.state == State::Rebuilding {
            server.sync_speed(REBUILD_KIB, REBUILD_KIB)?;
            server.add(Path::new(&targets[SERVERS].member))?;
        }
        client.go_on()?;
        client.expect("begins")?;
        let read = || Reading::now(self.network, server.pid(), targets);
        let (before, first) = (server.state()?, read()?);
        client.go_on()?;
        client.expect("ended")?;
        let (second, after) = (read()?, server.state()?);
        let is_rebuilding = !after["sync"].is_null();
        ensure!(is_rebuilding == (point.state == State::Rebuilding), "the rebuild: {}", after["sync"]);
        Ok((first, second, before, after))
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
