//! What is asked of commands that speak NVMe/TCP.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use clap::{Args, ValueEnum, ValueHint};

use super::CpuList;

/// What every command has that opens members on servers.
#[derive(Clone, Debug, Default, Args)]
pub struct RemoteArguments {
    /// Secrets by which this host and the NVMe/TCP servers of nvme-tcp:// members authenticate: a file of
    /// lines NQN HOST-SECRET [CONTROLLER-SECRET], readable by its owner only
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub dhchap_secrets: Option<PathBuf>,
    /// Connect to NVMe/TCP servers from this address of this host; several take turns, so that each carries a
    /// like share
    #[arg(long, value_name = "ADDRESS")]
    pub client_address: Vec<IpAddr>,
}

#[derive(Clone, Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct TargetArguments {
    /// Where to listen: ADDRESS:PORT, with an IPv6 address in brackets; 4420 is the usual port
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// Where hosts find it, as discovery tells them: behind address translation, or if it listens on all
    /// addresses [default: as --listen]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub announce: Option<SocketAddr>,
    /// The subsystem's name, such as nqn.2026-01.com.example:store
    #[arg(long, value_name = "NQN")]
    pub nqn: String,
    /// Serve only hosts that authenticate: a file of lines HOST-NQN HOST-SECRET [CONTROLLER-SECRET], readable
    /// by its owner only
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub dhchap_hosts: Option<PathBuf>,
    // By which it authenticates to other targets, under its own NQN.
    #[command(flatten)]
    pub remote: RemoteArguments,
    /// Serve hosts that are not authenticated: on other than loopback addresses too, and on these without a
    /// warning that every user of the machine may write
    #[arg(long)]
    pub allow_unauthenticated: bool,
    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Where to keep what must outlive a restart: which host's writes are taken, whatever the devices are
    /// called then. Without it, a host that another one has replaced could write again after a restart
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub state: Option<PathBuf>,
    /// Make the state of devices that are new here, and the directory. Without it state that is missing is an
    /// error, for it may lie on a disk that isn't mounted
    #[arg(long, requires = "state")]
    pub state_create: bool,
    /// Whether to work out parity for hosts and with other targets; `serial` does one thing at a time, for
    /// measurements
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Offload::On)]
    pub offload: Offload,
    /// Threads that serve [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub shards: Option<u16>,
    /// CPUs to run the shards on, such as 0-3,8
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuList>,
    /// Print JSON lines instead of text
    #[arg(long)]
    pub json: bool,
    /// Block devices or files, best by a name of /dev/disk/by-id, which stays; the first one becomes
    /// namespace 1
    #[arg(required = true, value_name = "DEVICE", value_hint = ValueHint::FilePath)]
    pub devices: Vec<PathBuf>,
}

/// See the option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Offload {
    On,
    Serial,
    Off,
}

#[derive(Debug, Args)]
pub struct DiscoverArguments {
    /// The server: HOST:PORT, with an IPv6 address in brackets
    #[arg(value_name = "HOST:PORT")]
    pub server: String,
    /// Connect to each subsystem, and show its namespaces and the hosts that have attached them
    #[arg(long)]
    pub namespaces: bool,
    #[command(flatten)]
    pub remote: RemoteArguments,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
