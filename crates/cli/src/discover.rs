//! `pinstripe discover`: what an NVMe/TCP server offers.

use pinstripe_control::text::printable;
use pinstripe_md::identity::Uuid;
use pinstripe_nvme::{
    initiator::Address,
    wire::{
        DISCOVERY_NQN,
        offload::{Announcement, Query, feature},
    },
};
use pinstripe_runtime::uring::{self, RuntimeConfig};
use serde_json::json;

use crate::{command_line::DiscoverArguments, failure::Failure, member, output};

/// A namespace of a subsystem.
struct Found {
    name: String,
    size: u64,
    /// What the server computes, and which array attached it last; absent for a server that computes nothing.
    offload: Option<(Announcement, Query)>,
}

async fn namespaces(server: &str, nqn: &str) -> Result<Vec<Found>, Failure> {
    let address: Address = format!("nvme-tcp://{server}/{nqn}?nsid=1").parse()?;
    let mut found = Vec::new();
    for source in member::initiator()?.open_all(&address).await? {
        let offload = match source.offload() {
            Some(announced) => Some((announced, source.query().await?)),
            None => None,
        };
        found.push(Found { name: source.info().name.clone(), size: source.info().size, offload });
    }
    Ok(found)
}

impl Found {
    fn json(&self) -> serde_json::Value {
        let offload = self.offload.map(|(announced, query)| {
            json!({
                "slots": announced.slots,
                "range_bytes": announced.range_bytes,
                "epochs_durable": announced.features & feature::FENCING != 0,
                "incarnation": Uuid(announced.incarnation).to_string(),
                "array": (query.epoch > 0).then(|| Uuid(query.array).to_string()),
                "epoch": query.epoch,
                "given_up": query.given_up,
                "attached": query.attached,
                "operations": query.held,
            })
        });
        json!({ "name": self.name, "size_bytes": self.size, "offload": offload })
    }

    fn line(&self) -> String {
        let words = match &self.offload {
            None => "plain".to_owned(),
            Some((_, query)) if query.epoch == 0 => "offload, never attached".to_owned(),
            Some((_, query)) => {
                let state = match (query.attached, query.given_up) {
                    (true, _) => "a host is attached",
                    (false, true) => "free",
                    (false, false) => "no host is attached",
                };
                format!("offload, array {}, epoch {}, {state}", Uuid(query.array), query.epoch)
            }
        };
        format!("  {}: {} bytes, {words}\n", printable(&self.name), self.size)
    }
}

pub fn run(arguments: &DiscoverArguments) -> Result<(), Failure> {
    member::know(&arguments.remote)?;
    let address: Address = format!("nvme-tcp://{}/{DISCOVERY_NQN}?nsid=1", arguments.server).parse()?;
    let looks = arguments.namespaces;
    let found = uring::run(&RuntimeConfig::unpinned(1), move |_| async move {
        let mut found = Vec::new();
        for entry in member::initiator()?.discover(&address).await? {
            let inside = if looks {
                Some(namespaces(&entry.address.to_string(), &entry.subsystem).await?)
            } else {
                None
            };
            found.push((entry, inside));
        }
        Ok::<_, Failure>(found)
    })??;
    if arguments.json {
        let subsystems: Vec<_> = found
            .iter()
            .map(|(entry, inside)| {
                let mut value = json!({ "nqn": entry.subsystem, "address": entry.address.to_string() });
                if let Some(inside) = inside {
                    value["namespaces"] = inside.iter().map(Found::json).collect();
                }
                value
            })
            .collect();
        return output::print_json(&json!({ "subsystems": subsystems }));
    }
    let lines: Vec<String> = found
        .iter()
        .map(|(entry, inside)| {
            let name = printable(&entry.subsystem);
            let inside: Vec<String> = inside.iter().flatten().map(Found::line).collect();
            format!("{name} on {0}: nvme-tcp://{0}/{name}?nsid=N\n{1}", entry.address, inside.concat())
        })
        .collect();
    output::print(&lines.concat())
}
