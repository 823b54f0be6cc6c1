//! The array as a namespace of an NVMe/TCP subsystem.

use std::{cell::RefCell, net::SocketAddr, rc::Rc, sync::Arc};

use pinstripe_block::{BlockService, first_of::first_of};
use pinstripe_nvme::controller::{
    LeftQueue, LeftSubsystem, NamespaceConfig, Subsystem, TlsHosts, uuid_of, uuid_text,
};
use pinstripe_runtime::{
    ShardHandle,
    shard::{self, JoinHandle},
    uring::{Connection, Listener},
};

use super::{
    front::{Accepting, Binding, Bound, FrontEnd, Identity, Kind, Service, Task},
    succession::{Agreed, Connected, Inheritance},
};
use crate::{
    command_line::ServeArguments,
    failure::Failure,
    nvme_hosts::{Door, Hosts},
    nvme_server,
};

pub const KIND: Kind = Kind { check, bind };

pub(super) const PROTOCOL: &str = "nvme-tcp";

struct NvmeTcp {
    /// Until connections are taken.
    listener: RefCell<Option<Listener>>,
    address: SocketAddr,
    nqn: String,
    uuid: [u8; 16],
    /// The hosts that may connect. Until connections are taken: then a task has them.
    hosts: RefCell<Option<Hosts>>,
    hosts_are_known: bool,
    tls: Option<Arc<TlsHosts>>,
    /// What the program before has left.
    restored: Option<LeftSubsystem>,
    /// What the next one gets.
    left: RefCell<Option<LeftSubsystem>>,
    /// Once the array is there.
    subsystem: Option<Arc<Subsystem>>,
}

fn check(arguments: &ServeArguments) -> Result<(), Failure> {
    if let Some(address) = arguments.nvme_tcp {
        let hosts_are_known = arguments.dhchap_hosts.is_some() || arguments.nvme_tls_hosts.is_some();
        nvme_server::check_address(address, hosts_are_known, arguments.allow_remote)?;
    }
    arguments.nqn.as_deref().map_or(Ok(()), nvme_server::check_name)
}

fn bind<'a>(arguments: &'a ServeArguments, identity: Identity<'a>) -> Binding<'a> {
    Box::pin(async move {
        let Some(address) = arguments.nvme_tcp else { return Ok(None) };
        let hosts = Hosts::read(arguments.dhchap_hosts.clone(), arguments.nvme_tls_hosts.clone()).await?;
        let listener = identity.listen_tcp(PROTOCOL, address).await?;
        let uuid = namespace_uuid(identity.uuid);
        let own = || format!("nqn.2014-08.org.nvmexpress:uuid:{}", uuid_text(&uuid));
        let nqn = arguments.nqn.clone().unwrap_or_else(own);
        let bound = NvmeTcp {
            address: listener.tcp_address().unwrap_or(address),
            listener: Some(listener).into(),
            uuid,
            hosts_are_known: hosts.are_known(),
            tls: hosts.tls(&nqn)?,
            nqn,
            hosts: Some(hosts).into(),
            restored: identity.inherited.and_then(Inheritance::subsystem),
            left: RefCell::default(),
            subsystem: None,
        };
        Ok(Some(Box::new(bound) as Bound))
    })
}

impl NvmeTcp {
    /// The subsystem that all shards serve.
    fn subsystem(&self, service: &impl BlockService) -> Result<Arc<Subsystem>, Failure> {
        let namespace = NamespaceConfig {
            uuid: self.uuid,
            size_bytes: service.size_bytes(),
            block_size: service.block_size(),
            preferred_block: service.preferred_block(),
            read_only: service.read_only(),
        };
        let keys = self.hosts.borrow().as_ref().and_then(Hosts::authentication);
        let subsystem = nvme_server::subsystem(&self.nqn, self.address, vec![namespace], keys, None)?;
        if let Some(left) = &self.restored {
            subsystem.restore(left);
        }
        Ok(subsystem)
    }
}

impl FrontEnd for NvmeTcp {
    fn protocol(&self) -> &'static str {
        PROTOCOL
    }

    fn open<'a>(&'a mut self, service: Service<'a>) -> Task<'a, Result<(), Failure>> {
        Box::pin(async move {
            let Service { array, shards, .. } = service;
            let subsystem = self.subsystem(&array.service())?;
            self.subsystem = Some(Arc::clone(&subsystem));
            for handle in shards {
                let (subsystem, array, tls) = (Arc::clone(&subsystem), array.clone(), self.tls.clone());
                let opened = handle.call(move || async move {
                    nvme_server::open(subsystem, vec![Some(array.service())], tls);
                });
                opened.await?;
            }
            Ok(())
        })
    }

    /// How a member of another array would name it.
    fn uris(&self) -> Vec<String> {
        vec![format!("nvme-tcp://{}/{}?nsid=1", self.address, self.nqn)]
    }

    fn loopback_ports(&self) -> Vec<SocketAddr> {
        let is_open = self.address.ip().is_loopback() && !self.hosts_are_known;
        is_open.then_some(self.address).into_iter().collect()
    }

    fn accept(&self, way: Accepting<'_>) -> Vec<JoinHandle<()>> {
        let accept = |listener| way.hand_out(PROTOCOL, listener, nvme_server::hand_over);
        let accepting = self.listener.take().map(accept);
        let watching = self.hosts.take().zip(self.subsystem.clone()).map(|(hosts, subsystem)| {
            let door = Door { subsystem, tls: self.tls.clone(), shards: way.shards.to_vec() };
            let stopping = Rc::clone(way.stopping);
            shard::spawn_joined(async move {
                first_of(stopping.wanted(), hosts.watch(door)).await;
            })
        });
        accepting.into_iter().chain(watching).collect()
    }

    /// The NQN of each controller's host.
    fn clients(&self) -> Vec<String> {
        self.subsystem.iter().flat_map(|subsystem| subsystem.hosts()).collect()
    }

    fn leave<'a>(&'a self, shards: &'a [ShardHandle]) -> Task<'a, Vec<Connected>> {
        Box::pin(async move {
            let left = nvme_server::leave(shards).await;
            let queues: Vec<LeftQueue> = left.iter().map(|(queue, _)| queue.clone()).collect();
            self.left.replace(self.subsystem.as_ref().map(|subsystem| subsystem.left(&queues)));
            let connected = |(queue, connection): (LeftQueue, Connection)| Connected {
                socket: connection.into(),
                name: String::new(),
                left: Some(Agreed::NvmeTcp(queue)),
            };
            left.into_iter().map(connected).collect()
        })
    }

    fn left_subsystem(&self) -> Option<LeftSubsystem> {
        self.left.take()
    }

    fn resume(&self, shard: &ShardHandle, connection: Connected) {
        let Connected { socket, left, .. } = connection;
        let left = left.and_then(|left| match left {
            Agreed::NvmeTcp(queue) => Some(queue),
            Agreed::Nbd(_) => None,
        });
        nvme_server::go_on(shard, Connection::new(socket), left);
    }

    fn stop<'a>(&'a self, shards: &'a [ShardHandle]) -> Task<'a, ()> {
        Box::pin(nvme_server::stop(shards))
    }

    fn close<'a>(&'a self, shards: &'a [ShardHandle]) -> Task<'a, ()> {
        Box::pin(nvme_server::close(shards))
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
