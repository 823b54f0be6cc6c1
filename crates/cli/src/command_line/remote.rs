//! What is asked of commands that speak NVMe/TCP.

use std::{
    net::{IpAddr, SocketAddr},
    path::PathBuf,
};

use clap::{Args, ValueEnum, ValueHint};

use super::{CpuList, LogOptions};

/// What every command has that opens members on servers.
#[derive(Clone, Debug, Default, Args)]
pub struct RemoteArguments {
    /// File of secrets for the NVMe/TCP servers of nvme-tcp:// members. It has lines NQN HOST-SECRET
    /// [CONTROLLER-SECRET], and must be readable by its owner only
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub dhchap_secrets: Option<PathBuf>,
    /// Speak TLS 1.3 with all NVMe/TCP servers. The file has lines SUBSYSTEM-NQN KEY with keys as `nvme
    /// gen-tls-key` writes them, and must be readable by its owner only. * stands for all other subsystems
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub nvme_tls_secrets: Option<PathBuf>,
    /// Connect to NVMe/TCP servers from this address of this host. Can be given several times: connections
    /// are spread evenly over the addresses
    #[arg(long, value_name = "ADDRESS")]
    pub client_address: Vec<IpAddr>,
}

#[derive(Clone, Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the command line")]
pub struct TargetArguments {
    /// Where to listen: ADDRESS:PORT. An IPv6 address is in brackets. 4420 is the usual port
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: SocketAddr,
    /// Address that discovery gives to hosts. It is needed behind address translation, or if the target
    /// listens on all addresses [default: as --listen]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub announce: Option<SocketAddr>,
    /// The subsystem's name, such as nqn.2026-01.com.example:store
    #[arg(long, value_name = "NQN")]
    pub nqn: String,
    /// Serve only hosts that authenticate. The file has lines HOST-NQN HOST-SECRET [CONTROLLER-SECRET], and
    /// must be readable by its owner only
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub dhchap_hosts: Option<PathBuf>,
    /// Serve only hosts that speak TLS 1.3 with a key of this file. It has lines HOST-NQN KEY with keys as
    /// `nvme gen-tls-key` writes them, and must be readable by its owner only
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub nvme_tls_hosts: Option<PathBuf>,
    // By which it authenticates to other targets, under its own NQN.
    #[command(flatten)]
    pub remote: RemoteArguments,
    /// Serve hosts that are not authenticated, on any address. On loopback addresses, this turns off the
    /// warning that every user of the machine can write
    #[arg(long)]
    pub allow_unauthenticated: bool,
    /// Refuse writes
    #[arg(long)]
    pub read_only: bool,
    /// Serve the others if a device isn't there or can't be opened. Its number stays free until the target is
    /// started again
    #[arg(long)]
    pub allow_missing: bool,
    /// Directory for state that must be kept over a restart: which host may write to which device. Without
    /// it, a host that another host has replaced could write again after a restart
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub state: Option<PathBuf>,
    /// Make the state directory, and the state of devices that are new in it. Without this option, missing
    /// state is an error: it may be on a disk that isn't mounted
    #[arg(long, requires = "state")]
    pub state_create: bool,
    /// Whether to compute parity for hosts, together with other targets. `serial` does one step at a time; it
    /// is for measurements
    #[arg(long, value_name = "HOW", value_enum, default_value_t = Offload::On)]
    pub offload: Offload,
    /// Threads that serve [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub shards: Option<u16>,
    /// CPUs to run the shards on, such as 0-3,8
    #[arg(long, value_name = "LIST")]
    pub cpus: Option<CpuList>,
    #[command(flatten)]
    pub log: LogOptions,
    /// Print JSON lines instead of text
    #[arg(long)]
    pub json: bool,
    /// Block devices or files; the first one becomes namespace 1. Names in /dev/disk/by-id are best: they
    /// don't change
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
    /// The server: HOST:PORT. An IPv6 address is in brackets
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
