//! Sockets.
#![cfg(target_os = "linux")]

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr, ToSocketAddrs},
    rc::Rc,
    sync::{Mutex, PoisonError},
};

use pinstripe_runtime::{
    Stream, shard,
    uring::{SocketStream, blocking, connect_tcp_from},
};

use super::{Address, Connecting, Connector};

/// How long one address of a server is tried from one of ours, before the next pair is.
const ATTEMPT_NANOSECONDS: u64 = 2_000_000_000;

/// Connects over TCP, on shards that io_uring drives.
#[derive(Debug, Default)]
pub struct TcpConnector {
    own: Vec<IpAddr>,
    /// By server: which of our addresses is next.
    turns: Mutex<HashMap<(String, u16), usize>>,
}

impl TcpConnector {
    /// Uses these addresses of this host in turn, so that each carries as many connections as any other; the
    /// system's choice if there are none. If a server can't be reached from one, the next one is tried.
    pub fn from_addresses(own: Vec<IpAddr>) -> Self {
        Self { own, turns: Mutex::default() }
    }

    /// The addresses in the order in which they are to be tried. A server's connections take turns, and
    /// different servers begin with different addresses: each has one connection for commands about itself,
    /// which carries next to nothing.
    fn in_turn(&self, host: &str, port: u16) -> Vec<IpAddr> {
        let mut turns = self.turns.lock().unwrap_or_else(PoisonError::into_inner);
        let first = turns.len();
        let turn = turns.entry((host.to_owned(), port)).or_insert(first);
        let mut own = self.own.clone();
        if !own.is_empty() {
            own.rotate_left(*turn % self.own.len());
            *turn += 1;
        }
        own
    }
}

impl Connector for TcpConnector {
    fn connect(&self, address: &Address) -> Connecting {
        let (host, port) = (address.host.clone(), address.port);
        let own = self.in_turn(&host, port);
        Box::pin(async move {
            let stream: Rc<dyn Stream> = dial(&host, port, &own).await?;
            Ok(stream)
        })
    }
}

/// What a name stands for. Only looking one up needs a thread.
async fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let host = host.to_owned();
    blocking(move || (host, port).to_socket_addrs().map(Iterator::collect)).await
}

/// The first connection that can be made from one of the own addresses.
async fn dial(host: &str, port: u16, own: &[IpAddr]) -> io::Result<Rc<SocketStream>> {
    let mut attempts = Vec::new();
    for server in addresses(host, port).await? {
        if own.is_empty() {
            attempts.push((None, server));
        }
        let of_its_kind = own.iter().filter(|own| own.is_ipv4() == server.is_ipv4());
        attempts.extend(of_its_kind.map(|own| (Some(*own), server)));
    }
    let mut last = io::Error::other("none of the client's addresses is of the server's kind, IPv4 or IPv6");
    for (own, server) in attempts {
        // The kernel's own limit for a server that doesn't answer is two minutes.
        let attempt = shard::timeout(ATTEMPT_NANOSECONDS, connect_tcp_from(own, server)).await;
        match attempt.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into())) {
            Ok(stream) => return Ok(stream),
            Err(error) => {
                last = match own {
                    Some(own) => io::Error::new(error.kind(), format!("from {own}: {error}")),
                    None => error,
                }
            }
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use pinstripe_runtime::uring::{RuntimeConfig, run};
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

    use super::*;

    fn three() -> TcpConnector {
        TcpConnector::from_addresses((2..5).map(|last| IpAddr::from([127, 0, 0, last])).collect())
    }

    #[test]
    fn own_addresses_take_turns_and_servers_begin_with_different_ones() {
        let connector = three();
        let last = |host: &str| match connector.in_turn(host, 4420)[0] {
            IpAddr::V4(address) => address.octets()[3],
            IpAddr::V6(_) => 0,
        };
        // Of each server the first connection, which carries little, and one that carries data.
        let connections: Vec<[u8; 2]> = ["a", "b", "c"].map(|host| [last(host), last(host)]).to_vec();
        assert_eq!(connections, [[2, 3], [3, 4], [4, 2]]);
        // One that was lost comes back.
        assert_eq!([last("a"), last("a")], [4, 2]);
        assert!(TcpConnector::default().in_turn("a", 4420).is_empty());
    }

    #[test]
    fn a_connection_comes_from_the_first_address_from_which_the_server_can_be_reached() {
        run(&RuntimeConfig::unpinned(1), |_| async {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = listener.local_addr().unwrap().port();
            let own = three().own;
            let _connected = dial("127.0.0.1", port, &own).await.unwrap();
            assert_eq!(listener.accept().unwrap().1.ip(), own[0]);
            // This host hasn't the first one, and the second is of another kind.
            let foreign: [IpAddr; 3] = ["192.0.2.7".parse().unwrap(), "::1".parse().unwrap(), own[2]];
            let _connected = dial("127.0.0.1", port, &foreign).await.unwrap();
            assert_eq!(listener.accept().unwrap().1.ip(), own[2]);
            let error = dial("127.0.0.1", port, &foreign[..1]).await.err().unwrap();
            assert!(error.to_string().starts_with("from 192.0.2.7: "), "{error}");
            assert!(dial("127.0.0.1", port, &foreign[1..2]).await.is_err());
            assert!(dial("localhost", port, &[]).await.is_ok());
            drop(listener);
            assert!(dial("127.0.0.1", port, &[]).await.is_err());
        })
        .unwrap();
    }

    #[test]
    fn servers_that_do_not_answer_cost_an_attempt_each_and_no_thread() {
        const COUNT: usize = 100;
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        // One connection waits to be accepted; the kernel answers no other.
        rustix::net::listen(&socket, 0).unwrap();
        let listener = TcpListener::from(socket);
        let port = listener.local_addr().unwrap().port();
        run(&RuntimeConfig::unpinned(1), move |_| async move {
            let _waiting = dial("127.0.0.1", port, &[]).await.unwrap();
            let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
            let (before, start) = (threads(), shard::now());
            let dialling = || shard::spawn_joined(async move { dial("127.0.0.1", port, &[]).await.err() });
            let attempts: Vec<_> = (0..COUNT).map(|_| dialling()).collect();
            shard::sleep(ATTEMPT_NANOSECONDS / 4).await;
            // Other tests of this process have threads too.
            assert!(threads() < before + COUNT / 2, "{} threads", threads() - before);
            for attempt in attempts {
                assert_eq!(attempt.join().await.unwrap().kind(), io::ErrorKind::TimedOut);
            }
            assert!((ATTEMPT_NANOSECONDS..3 * ATTEMPT_NANOSECONDS).contains(&(shard::now() - start)));
        })
        .unwrap();
    }
}
