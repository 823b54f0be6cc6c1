//! `cargo xtask net --rocksdb` and `--db-bench`: RocksDB on a file system on an array behind limited links,
//! by the side that computes parity. dRAID's figure 19.
//!
//! The array is served as a file (FUSE), over which lies a loop device with ext4 or XFS. The load is that of
//! `apps/ycsb`, a package outside the workspace, for it links Debian's RocksDB; or Debian's db_bench.

mod db_bench;
mod host;
mod page;
mod plan;
mod table;
mod ycsb;

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use self::host::Host;
pub use self::host::verify_tables;
use self::table::{DB_BENCH, Kept, Run, Setting, YCSB};
use super::network::Network;
use super::rounds::{self, ARMS};
use crate::origin::Origin;

/// Records that are loaded, of 1000 bytes.
const RECORDS: u64 = 50_000;
/// Members.
const SERVERS: usize = 8;
/// Of each, so that XFS, which wants 300 MiB, and the tables before and after a compaction fit.
const MEMBER_BYTES: u64 = 96 << 20;
/// What is beside the page.
const BESIDE: &str = "applications";

/// What to measure.
pub struct Wish<'a> {
    /// The sources' root.
    pub root: &'a Path,
    /// The command.
    pub pinstripe: &'a Path,
    /// How often.
    pub rounds: u32,
    /// Only points with this in their words.
    pub only: Option<&'a str>,
    /// Seconds of each run.
    pub seconds: f64,
    /// Clients of the database.
    pub threads: u32,
    /// All links.
    pub mbit: f64,
    /// Where page, tables and pictures go.
    pub papers: PathBuf,
}

/// Measures YCSB's workloads, and writes table and page after each point.
pub fn run(wish: &Wish) -> Result<()> {
    let papers = &wish.papers;
    let known = table::load(&papers.join(BESIDE), YCSB)?;
    let ycsb = build_client(wish.root)?;
    let mut kept = wish.kept(known)?;
    wish.with_host(|host| {
        for _ in 0..wish.rounds {
            for point in plan::points() {
                if wish.only.is_some_and(|only| !point.to_string().contains(only)) {
                    continue;
                }
                let round = kept.next_round(point);
                for arm in ARMS {
                    let measured = ycsb::measure(host, &ycsb, point, arm)
                        .with_context(|| format!("{point} by {}", arm.name()))?;
                    let run = Run::new(point, arm, round, &measured);
                    println!("{round} {point:48} {:12} {run}", arm.name());
                    kept.runs.push(run);
                }
                write(papers, &kept)?;
            }
        }
        Ok(())
    })
}

/// Measures db_bench's, and writes table and page after each state.
pub fn run_db_bench(wish: &Wish) -> Result<()> {
    let beside = wish.papers.join(BESIDE);
    crate::packages::ensure_rocksdb()?;
    let mut kept = wish.kept(table::load(&beside, DB_BENCH)?)?;
    wish.with_host(|host| {
        for _ in 0..wish.rounds {
            for state in db_bench::STATES {
                if wish.only.is_some_and(|only| !state.name().contains(only)) {
                    continue;
                }
                db_bench::measure(host, state, &mut kept)?;
                table::save(&beside, DB_BENCH, &kept)?;
                // Elsewhere there may be no YCSB that it could stand beside.
                write_again(&wish.papers)?;
            }
        }
        Ok(())
    })
}

/// Writes the page again, if something is kept.
pub fn write_again(papers: &Path) -> Result<()> {
    table::load(&papers.join(BESIDE), YCSB)?.map_or(Ok(()), |kept| write(papers, &kept))
}

impl Wish<'_> {
    /// What is known, if what is measured now joins it.
    fn kept<R: rounds::Run>(&self, known: Option<Kept<R>>) -> Result<Kept<R>> {
        let setting = Setting {
            origin: Origin::now(self.root)?,
            mbit: self.mbit,
            seconds: self.seconds,
            threads: self.threads,
        };
        table::join(known, setting, self.only)
    }

    fn with_host(&self, work: impl FnOnce(&Host) -> Result<()>) -> Result<()> {
        crate::mounts::be_private()?;
        let network = Network::new(SERVERS + 1)?;
        let scratch = Scratch::new()?;
        work(&Host { wish: self, network: &network, folder: &scratch.0 })
    }
}

/// Writes page, table and pictures.
fn write(papers: &Path, kept: &Kept) -> Result<()> {
    let beside = papers.join(BESIDE);
    table::save(&beside, YCSB, kept)?;
    for figure in page::FIGURES {
        let path = beside.join(format!("{}.svg", figure.name));
        fs::write(&path, figure.svg(kept)?).with_context(|| format!("write {}", path.display()))?;
    }
    let path = papers.join("applications.md");
    let page = page::page(kept, table::load(&beside, DB_BENCH)?.as_ref());
    fs::write(&path, page).with_context(|| format!("write {}", path.display()))
}

/// A folder that goes with what is in it.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("pinstripe-rocksdb-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        Ok(Self(folder))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Builds the YCSB client, which is no member of the workspace.
pub fn build_client(root: &Path) -> Result<PathBuf> {
    crate::packages::ensure_rocksdb()?;
    let folder = root.join("apps/ycsb");
    let mut build = crate::cargo::command();
    let status = build.args(["build", "--quiet", "--release"]).current_dir(&folder).status()?;
    ensure!(status.success(), "{} does not build", folder.display());
    Ok(folder.join("target/release/pinstripe-ycsb"))
}
