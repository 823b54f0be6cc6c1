//! The array as a namespace of an NVMe/TCP subsystem.

use std::{net::SocketAddr, sync::Arc};

use pinstripe_engine::{shared::Shared, volume::Volume};
use pinstripe_export::BlockService;
use pinstripe_nvme::target::{NamespaceConfig, uuid_of};
use pinstripe_runtime::{ShardHandle, uring::Listener};

use super::{journal::Journal, service::ArrayService};
use crate::{command_line::ServeArguments, failure::Failure, nvme_server};

/// A socket that is bound, before the array is there.
pub struct Listening {
    listener: Listener,
    address: SocketAddr,
    nqn: Option<String>,
}

/// An array that can be reached.
pub struct Opened {
    pub listener: Listener,
    /// How a member of another array would name it.
    pub uri: String,
}

impl Listening {
    /// Binds what the command line asks for.
    pub fn new(arguments: &ServeArguments) -> Result<Option<Self>, Failure> {
        let Some(address) = arguments.nvme_tcp else { return Ok(None) };
        let listener = Listener::tcp(address)?;
        let address = listener.tcp_address().unwrap_or(address);
        Ok(Some(Self { listener, address, nqn: arguments.nqn.clone() }))
    }

    /// Gives every shard its target.
    pub async fn open(
        self,
        shards: &[ShardHandle],
        shared: &Arc<Shared>,
        array_uuid: &str,
        journal: &Journal,
    ) -> Result<Opened, Failure> {
        let Self { listener, address, nqn } = self;
        let uuid = namespace_uuid(array_uuid);
        let nqn = nqn.unwrap_or_else(|| format!("nqn.2014-08.org.nvmexpress:uuid:{}", dashed(&uuid)));
        let service = ArrayService::new(Volume::new(Arc::clone(shared)), journal.clone());
        let namespace = NamespaceConfig {
            uuid,
            size_bytes: service.size_bytes(),
            block_size: service.block_size(),
            preferred_block: service.preferred_block(),
            read_only: service.read_only(),
        };
        drop(service);
        let subsystem = nvme_server::subsystem(&nqn, address, vec![namespace])?;
        for handle in shards {
            let (subsystem, shared, journal) = (Arc::clone(&subsystem), Arc::clone(shared), journal.clone());
            handle
                .call(move || async move {
                    let service = ArrayService::new(Volume::new(shared), journal);
                    nvme_server::open(subsystem, vec![service]);
                })
                .await;
        }
        Ok(Opened { listener, uri: format!("nvme-tcp://{address}/{nqn}?nsid=1") })
    }
}

/// The array's uuid as bytes; MD's uuids have no version, so they can't be told from a custom one.
fn namespace_uuid(array_uuid: &str) -> [u8; 16] {
    let digits: String = array_uuid.chars().filter(char::is_ascii_hexdigit).collect();
    match u128::from_str_radix(&digits, 16) {
        Ok(number) if digits.len() == 32 => number.to_be_bytes(),
        _ => uuid_of(&[array_uuid.as_bytes()]),
    }
}

/// A UUID as RFC 9562 writes it.
fn dashed(uuid: &[u8; 16]) -> String {
    let digits: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_has_the_uuid_of_the_array() {
        let uuid = namespace_uuid("01234567:89abcdef:01234567:89abcdef");
        assert_eq!(dashed(&uuid), "01234567-89ab-cdef-0123-456789abcdef");
    }
}
