//! `pinstripe discover`: what an NVMe/TCP server offers.

use clap::Args;
use pinstripe_nvme::{initiator::Address, wire::DISCOVERY_NQN};
use pinstripe_runtime::uring::{self, RuntimeConfig};
use serde_json::json;

use crate::{
    command_line::SecretsArguments,
    failure::Failure,
    member,
    output::{self, printable},
};

#[derive(Debug, Args)]
pub struct DiscoverArguments {
    /// The server: HOST:PORT, with an IPv6 address in brackets
    #[arg(value_name = "HOST:PORT")]
    pub server: String,
    #[command(flatten)]
    pub secrets: SecretsArguments,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

pub fn run(arguments: &DiscoverArguments) -> Result<(), Failure> {
    member::know(&arguments.secrets)?;
    let address: Address = format!("nvme-tcp://{}/{DISCOVERY_NQN}?nsid=1", arguments.server).parse()?;
    let found = uring::run(&RuntimeConfig::unpinned(1), move |_| async move {
        Ok::<_, Failure>(member::initiator()?.discover(&address).await?)
    })??;
    if arguments.json {
        let subsystems: Vec<_> = found
            .iter()
            .map(|entry| json!({ "nqn": entry.subsystem, "address": entry.address.to_string() }))
            .collect();
        return output::print_json(&json!({ "subsystems": subsystems }));
    }
    let lines: Vec<String> = found
        .iter()
        .map(|entry| {
            format!("{} on {}: nvme-tcp://{1}/{0}?nsid=N\n", printable(&entry.subsystem), entry.address)
        })
        .collect();
    output::print(&lines.concat())
}
