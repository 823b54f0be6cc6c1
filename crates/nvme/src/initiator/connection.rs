//! Sockets.
#![cfg(target_os = "linux")]

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs},
    rc::Rc,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use pinstripe_runtime::{
    Stream,
    uring::{Connection, blocking},
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, connect, ipproto, socket_with, sockopt};

use super::{Connecting, Connector};

/// How long a server is tried from one of several own addresses, before the next one is.
const ATTEMPT: Duration = Duration::from_secs(2);

/// Connects over TCP, on shards that io_uring drives.
#[derive(Debug, Default)]
pub struct TcpConnector {
    own: Vec<IpAddr>,
    /// By server: whose turn it is.
    turns: Mutex<HashMap<(String, u16), usize>>,
}

impl TcpConnector {
    /// Uses these addresses of this host in turn, so that each carries as many connections as any other; the system's choice if there
    /// are none. If a server can't be reached from one, the next one is tried.
    pub fn from_addresses(own: Vec<IpAddr>) -> Self {
        Self { own, turns: Mutex::default() }
    }

    /// The addresses in the order in which they are to be tried. A server's connections take turns, and different servers begin with
    /// different addresses: each has one connection for commands about itself, which carries next to nothing.
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
    fn connect(&self, host: &str, port: u16) -> Connecting {
        let (host, own) = (host.to_owned(), self.in_turn(host, port));
        Box::pin(async move {
            let socket = blocking(move || dial(&host, port, &own)).await?;
            let stream: Rc<dyn Stream> = Connection::new(socket).attach()?;
            Ok(stream)
        })
    }
}

/// The first connection that can be made from one of the own addresses.
fn dial(host: &str, port: u16, own: &[IpAddr]) -> io::Result<TcpStream> {
    if own.is_empty() {
        return TcpStream::connect((host, port));
    }
    let mut last = io::Error::other("none of the client's addresses is of the server's kind, IPv4 or IPv6");
    for server in (host, port).to_socket_addrs()? {
        for own in own.iter().filter(|own| own.is_ipv4() == server.is_ipv4()) {
            match dial_from(*own, server) {
                Ok(socket) => return Ok(socket),
                Err(error) => last = io::Error::new(error.kind(), format!("from {own}: {error}")),
            }
        }
    }
    Err(last)
}

fn dial_from(own: IpAddr, server: SocketAddr) -> io::Result<TcpStream> {
    let family = if own.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC, Some(ipproto::TCP))?;
    bind(&socket, &SocketAddr::new(own, 0))?;
    // The kernel's own limit for a server that doesn't answer is two minutes.
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(ATTEMPT))?;
    connect(&socket, &server)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, None)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

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
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let own = three().own;
        let _connected = dial("127.0.0.1", port, &own).unwrap();
        assert_eq!(listener.accept().unwrap().1.ip(), own[0]);
        // Nobody has this one, and the other is of another kind.
        let foreign: [IpAddr; 3] = ["192.0.2.7".parse().unwrap(), "::1".parse().unwrap(), own[2]];
        let _connected = dial("127.0.0.1", port, &foreign).unwrap();
        assert_eq!(listener.accept().unwrap().1.ip(), own[2]);
        let error = dial("127.0.0.1", port, &foreign[..1]).unwrap_err();
        assert!(error.to_string().starts_with("from 192.0.2.7: "), "{error}");
        assert!(dial("127.0.0.1", port, &foreign[1..2]).is_err());
        assert!(dial("127.0.0.1", port, &[]).is_ok());
    }

    #[test]
    fn a_server_that_does_not_answer_costs_an_attempt_and_not_two_minutes() {
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        // One connection waits to be accepted; the kernel answers no other.
        rustix::net::listen(&socket, 0).unwrap();
        let listener = TcpListener::from(socket);
        let (own, server) = (three().own[0], listener.local_addr().unwrap());
        let _waiting = dial_from(own, server).unwrap();
        let start = std::time::Instant::now();
        assert!(dial_from(own, server).is_err());
        assert!((ATTEMPT..3 * ATTEMPT).contains(&start.elapsed()), "{:?}", start.elapsed());
    }
}
