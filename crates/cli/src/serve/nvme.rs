//! The array as a namespace of an NVMe/TCP subsystem.

use std::{net::SocketAddr, sync::Arc};

use pinstripe_block::BlockService;
use pinstripe_engine::{io::volume::Volume, shared::Shared};
use pinstripe_nvme::{
    auth::Authentication,
    controller::{NamespaceConfig, Subsystem, uuid_of, uuid_text},
};
use pinstripe_runtime::{ShardHandle, uring::Listener};

use super::{journal::Journal, service::array_service};
use crate::{command_line::ServeArguments, failure::Failure, nvme_server, open::listen};

/// A socket that is bound, before the array is there.
pub struct Listening {
    listener: Listener,
    address: SocketAddr,
    nqn: Option<String>,
    hosts: Option<Authentication>,
}

/// An array that can be reached.
pub struct Opened {
    pub listener: Listener,
    pub subsystem: Arc<Subsystem>,
    /// How a member of another array would name it.
    pub uri: String,
}

impl Listening {
    /// Binds what the command line asks for.
    pub async fn new(arguments: &ServeArguments) -> Result<Option<Self>, Failure> {
        let Some(address) = arguments.nvme_tcp else { return Ok(None) };
        let hosts = nvme_server::hosts(arguments.dhchap_hosts.clone()).await?;
        let listener = listen(address).await?;
        let address = listener.tcp_address().unwrap_or(address);
        Ok(Some(Self { listener, address, nqn: arguments.nqn.clone(), hosts }))
    }

    /// Gives every shard its target.
    pub async fn open(
        self,
        shards: &[ShardHandle],
        shared: &Arc<Shared>,
        array_uuid: &str,
        journal: &Journal,
    ) -> Result<Opened, Failure> {
        let Self { listener, address, nqn, hosts } = self;
        let uuid = namespace_uuid(array_uuid);
        let nqn = nqn.unwrap_or_else(|| format!("nqn.2014-08.org.nvmexpress:uuid:{}", uuid_text(&uuid)));
        let service = array_service(Volume::new(Arc::clone(shared)), journal.clone());
        let namespace = NamespaceConfig {
            uuid,
            size_bytes: service.size_bytes(),
            block_size: service.block_size(),
            preferred_block: service.preferred_block(),
            read_only: service.read_only(),
        };
        drop(service);
        let subsystem = nvme_server::subsystem(&nqn, address, vec![namespace], hosts, None)?;
        for handle in shards {
            let (subsystem, shared, journal) = (Arc::clone(&subsystem), Arc::clone(shared), journal.clone());
            let opened = handle.call(move || async move {
                let service = array_service(Volume::new(shared), journal);
                nvme_server::open(subsystem, vec![service]);
            });
            opened.await?;
        }
        Ok(Opened { listener, subsystem, uri: format!("nvme-tcp://{address}/{nqn}?nsid=1") })
    }
}

/// The array's uuid as bytes; MD's uuids have no version, so they can't be told from a custom one.
pub fn namespace_uuid(array_uuid: &str) -> [u8; 16] {
    let digits: String = array_uuid.chars().filter(char::is_ascii_hexdigit).collect();
    match u128::from_str_radix(&digits, 16) {
        Ok(number) if digits.len() == 32 => number.to_be_bytes(),
        _ => uuid_of(&[array_uuid.as_bytes()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_namespace_has_the_uuid_of_the_array() {
        let uuid = namespace_uuid("01234567:89abcdef:01234567:89abcdef");
        assert_eq!(uuid_text(&uuid), "01234567-89ab-cdef-0123-456789abcdef");
    }
}
