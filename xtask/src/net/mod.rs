//! `cargo xtask net`: arrays over NVMe/TCP on a network of this machine's own namespaces, with links of any rate.
//!
//! Without options it is a test: bytes on every link against what the client says it moved, limits that limit, data and parity right.
//! With `--figures` it measures what docs/results/disaggregated.md shows.

mod check;
mod client;
mod network;
mod server;
mod usage;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;

use self::network::Network;
use self::server::Server;

/// What to do.
#[derive(Args)]
pub struct Net {
    /// Not being root is no failure.
    #[arg(long, hide = true)]
    unless_unprivileged: bool,
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
    let bench = match &net.pinstripe {
        Some(command) => command.clone(),
        None => {
            crate::vm::build_command(root)?;
            root.join("target/release/pinstripe")
        }
    };
    check::run(&bench)
}

/// Targets on the first `count` servers of the network, each with so many bytes of zeroes.
fn start_servers(network: &Network, pinstripe: &Path, count: usize, bytes: u64) -> Result<Vec<Server>> {
    let mut servers: Vec<Server> =
        (0..count).map(|number| Server::start(network, pinstripe, number, bytes)).collect::<Result<_>>()?;
    servers.iter_mut().try_for_each(Server::wait)?;
    Ok(servers)
}
