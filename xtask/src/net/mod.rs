//! `cargo xtask net`: arrays over NVMe/TCP on a network of this machine's own namespaces, with links of any
//! rate.
//!
//! Without options it is a test: bytes on every link against what the client says it moved, limits that
//! limit, data and parity right. With `--figures` it measures what disaggregated.md in docs/results/papers
//! shows, with `--objects` what draid.md there does, and with `--rocksdb` and `--db-bench` applications.md.

mod check;
mod client;
mod experiments;
mod figures;
mod network;
mod objects;
mod paper;
mod report;
mod rocksdb;
mod rounds;
mod server;
mod usage;
mod ycsb;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;

use self::experiments::Arm;
use self::network::Network;
pub use self::rocksdb::{build_client, verify_tables};
use self::server::Server;
pub use self::ycsb::of as page_of;

/// Where pages, tables and pictures lie, from the root.
const PAPERS: &str = "docs/results/papers";

/// What to do.
#[derive(Args)]
pub struct Net {
    /// Not being root is no failure.
    #[arg(long, hide = true)]
    unless_unprivileged: bool,
    #[command(flatten)]
    measured: Measured,
    /// Only the figures with this in their name, or the runs of RocksDB with it in their words; the others
    /// stay as they were measured. Runs of RocksDB are kept together only if they are of one commit.
    #[arg(long, requires = "measured", conflicts_with = "objects")]
    only: Option<String>,
    /// How often each run is made.
    #[arg(long, requires = "measured", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Measure nothing: write dRAID's pages and pictures again from what is kept.
    #[arg(long, requires = "measured", conflicts_with_all = ["rounds", "only", "seconds", "mbit"])]
    page: bool,
    /// Clients of RocksDB at a time.
    #[arg(long, requires = "measured", conflicts_with_all = ["figures", "objects"], default_value_t = 16)]
    threads: u32,
    /// Seconds of each point [default: 15, 5 of the store, and 10 of RocksDB]
    #[arg(long, requires = "measured")]
    seconds: Option<f64>,
    /// Rate of the links in Mbit/s [default: 500, and 300 of the store and of RocksDB]
    #[arg(long, requires = "measured")]
    mbit: Option<f64>,
    /// Write below this folder instead of into the documents.
    #[arg(long, requires = "measured")]
    out: Option<PathBuf>,
    /// The command to try, instead of one built now.
    #[arg(long)]
    pinstripe: Option<PathBuf>,
}

/// What is measured, if something is.
#[derive(Args)]
#[group(id = "measured", multiple = false)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of the command line")]
struct Measured {
    /// Measure, and write docs/results/papers/disaggregated.md: an hour or so for each arm of a round, on a
    /// machine with nothing else to do.
    #[arg(long)]
    figures: bool,
    /// Measure a store of objects, and write docs/results/papers/draid.md: 8 minutes a round.
    #[arg(long)]
    objects: bool,
    /// Measure RocksDB on a file system, and write docs/results/papers/applications.md: 20 minutes a round.
    #[arg(long)]
    rocksdb: bool,
    /// Measure RocksDB by its own db_bench, for the same page: 4 minutes a round.
    #[arg(long)]
    db_bench: bool,
}

/// Runs the test or makes the figures.
pub fn run(root: &Path, net: &Net) -> Result<()> {
    let papers = net.out.as_deref().unwrap_or(root).join(PAPERS);
    if net.page {
        return write_pages(&papers);
    }
    if !crate::packages::is_root() {
        let sentence = "network namespaces, limits of links and loop devices need root";
        if net.unless_unprivileged {
            println!("net: not tried: {sentence}");
            return Ok(());
        }
        bail!("{sentence}: run it with sudo, or in a container with CAP_SYS_ADMIN and CAP_NET_ADMIN");
    }
    crate::packages::ensure()?;
    let bench = if let Some(command) = &net.pinstripe {
        command.clone()
    } else {
        crate::vm::build_command(root)?;
        root.join("target/release/pinstripe")
    };
    measure(root, net, &bench, papers)
}

/// Writes dRAID's pages and pictures in this folder again, as far as something is kept there.
pub fn write_pages(papers: &Path) -> Result<()> {
    figures::write_again(papers)?;
    objects::write_again(papers)?;
    rocksdb::write_again(papers)
}

/// Tries or measures with this command.
fn measure(root: &Path, net: &Net, pinstripe: &Path, papers: PathBuf) -> Result<()> {
    let rounds = net.rounds;
    if net.measured.objects {
        return objects::run(&objects::Wish {
            root,
            pinstripe,
            rounds,
            seconds: net.seconds.unwrap_or(5.0),
            mbit: net.mbit.unwrap_or(300.0),
            papers,
        });
    }
    if net.measured.rocksdb || net.measured.db_bench {
        let run = if net.measured.rocksdb { rocksdb::run } else { rocksdb::run_db_bench };
        return run(&rocksdb::Wish {
            root,
            pinstripe,
            rounds,
            only: net.only.as_deref(),
            seconds: net.seconds.unwrap_or(10.0),
            threads: net.threads,
            mbit: net.mbit.unwrap_or(300.0),
            papers,
        });
    }
    if !net.measured.figures {
        return check::run(pinstripe);
    }
    figures::run(&figures::Wish {
        root,
        pinstripe,
        rounds,
        only: net.only.as_deref(),
        seconds: net.seconds.unwrap_or(15.0),
        mbit: net.mbit.unwrap_or(500.0),
        papers,
    })
}

/// Targets on the first `count` servers of the network, each with so many bytes of zeroes.
fn start_servers(
    network: &Network,
    pinstripe: &Path,
    (count, bytes): (usize, u64),
    arm: Arm,
) -> Result<Vec<Server>> {
    let start = |number| Server::start(network, pinstripe, number, bytes, arm);
    let mut servers: Vec<Server> = (0..count).map(start).collect::<Result<_>>()?;
    servers.iter_mut().try_for_each(Server::wait)?;
    Ok(servers)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::figures::tests::files;

    #[test]
    fn draid_s_pages_and_pictures_are_those_of_their_tables() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let (papers, again) = (["disaggregated", "draid", "applications"], std::env::temp_dir());
        let (kept, again) = (root.join(PAPERS), again.join(format!("net-again-{}", std::process::id())));
        let is_table = |name: &String| [".csv", ".json"].iter().any(|end| name.ends_with(end));
        let kept_files = files(&kept, &papers);
        for paper in papers {
            fs::create_dir_all(again.join(paper)).unwrap();
        }
        for (name, bytes) in kept_files.iter().filter(|(name, _)| is_table(name)) {
            fs::write(again.join(name), bytes).unwrap();
        }
        write_pages(&again).unwrap();
        let again_files = files(&again, &papers);
        fs::remove_dir_all(&again).unwrap();
        let differs = |name: &&String| kept_files.get(*name) != again_files.get(*name);
        let wrong: Vec<&String> = kept_files.keys().chain(again_files.keys()).filter(differs).collect();
        assert!(wrong.is_empty(), "cargo xtask figures --only draid --page would change {wrong:?}");
    }
}
