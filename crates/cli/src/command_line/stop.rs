//! What is asked of `stop`.

use clap::{Args, ValueHint};

#[derive(Debug, Args)]
pub struct StopArguments {
    /// The array's name or UUID, or the path of its control socket
    #[arg(value_name = "ARRAY", required_unless_present = "all", value_hint = ValueHint::FilePath)]
    pub array: Option<String>,
    /// Stop all arrays that are served on this machine, or none if one of them has clients or doesn't answer
    #[arg(long, conflicts_with = "array")]
    pub all: bool,
    /// Stop it although clients are connected. Their requests under way are finished, then their connections
    /// end
    #[arg(long)]
    pub force: bool,
    /// Seconds to wait for clients to leave, before it is refused for them
    #[arg(long, value_name = "SECONDS", default_value_t = 0, conflicts_with = "force", value_parser = clap::value_parser!(u32).range(0..=86_400))]
    pub wait: u32,
    /// First have systemd unmount the file systems on its ublk device, on partitions of it and on what is
    /// made of these, however they came to be mounted. The package's unit does so at its stop
    #[arg(long, requires = "array")]
    pub unmount: bool,
}
