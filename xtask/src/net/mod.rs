//! `cargo xtask net`: arrays over NVMe/TCP on a network of this machine's own namespaces, with links of any
//! rate.
//!
//! Without options it is a test: bytes on every link against what the client says it moved, limits that
//! limit, data and parity right. With `--figures` it measures what docs/results/disaggregated.md shows.

mod chart;
mod check;
mod client;
mod experiments;
mod figures;
mod network;
mod report;
mod results;
mod server;
mod usage;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;

use self::experiments::Arm;
use self::network::Network;
use self::server::Server;

/// What to do.
#[derive(Args)]
pub struct Net {
    /// Not being root is no failure.
    #[arg(long, hide = true)]
    unless_unprivileged: bool,
    /// Measure, and write docs/results/disaggregated.md: an hour or so for each arm, on a machine with
    /// nothing else to do.
    #[arg(long)]
    figures: bool,
    /// Only the figures whose name contains this; the others stay as they were measured.
    #[arg(long, requires = "figures")]
    only: Option<String>,
    /// Seconds of each point.
    #[arg(long, requires = "figures", default_value_t = 15.0)]
    seconds: f64,
    /// Rate of the links in Mbit/s.
    #[arg(long, requires = "figures", default_value_t = 500.0)]
    mbit: f64,
    /// Write below this folder instead of into the documents.
    #[arg(long, requires = "figures")]
    out: Option<PathBuf>,
    /// The command to try, instead of one built now.
    #[arg(long)]
    pinstripe: Option<PathBuf>,
}

/// Runs the test or makes the figures.
pub fn run(root: &Path, net: &Net) -> Result<()> {
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
    if !net.figures {
        return check::run(&bench);
    }
    figures::run(&figures::Wish {
        root,
        pinstripe: &bench,
        only: net.only.as_deref(),
        seconds: net.seconds,
        mbit: net.mbit,
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
