//! `cargo xtask net`: arrays over NVMe/TCP on a network of this machine's own namespaces, with links of any
//! rate.
//!
//! Without options it is a test: bytes on every link against what the client says it moved, limits that
//! limit, data and parity right. With `--figures` it measures what docs/results/disaggregated.md shows, with
//! `--objects` what docs/results/papers/draid.md does, and with `--rocksdb` and `--db-bench` applications.md.

mod chart;
mod check;
mod client;
mod experiments;
mod figures;
mod network;
mod objects;
mod paper;
mod report;
mod results;
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
    /// How often each run of the store or of RocksDB is made [default: 3]
    #[arg(long, requires = "measured", conflicts_with = "figures", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Measure nothing: write page and pictures again from what is kept.
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
    /// Measure, and write docs/results/disaggregated.md: an hour or so for each arm, on a machine with
    /// nothing else to do.
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
    if net.page {
        return measure(root, net, Path::new(""));
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
    measure(root, net, &bench)
}

/// Tries or measures with this command.
fn measure(root: &Path, net: &Net, pinstripe: &Path) -> Result<()> {
    // A page without runs is told by there being no rounds.
    let rounds = if net.page { 0 } else { net.rounds.unwrap_or(3) };
    if net.measured.objects {
        return objects::run(&objects::Wish {
            root,
            pinstripe,
            rounds,
            seconds: net.seconds.unwrap_or(5.0),
            mbit: net.mbit.unwrap_or(300.0),
            out: net.out.as_deref(),
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
            out: net.out.as_deref(),
        });
    }
    if !net.measured.figures {
        return check::run(pinstripe);
    }
    figures::run(&figures::Wish {
        root,
        pinstripe,
        only: net.only.as_deref(),
        page: net.page,
        seconds: net.seconds.unwrap_or(15.0),
        mbit: net.mbit.unwrap_or(500.0),
        out: net.out.as_deref(),
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
