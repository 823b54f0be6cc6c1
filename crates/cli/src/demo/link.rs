//! The demo's network: what goes to a server goes through its link, which counts the bytes and can be cut.
//!
//! A link listens where hosts are told that the server is, and passes on what comes, both ways. NVMe/TCP
//! itself says which node has connected: the Connect command names the host, and servers come to each other
//! by their subsystems' names.

use std::{
    io::{Read, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

use crate::failure::Failure;

/// Where a connection's first two PDUs have the host's name, as they are without digests: after `ICReq` (128
/// bytes), the header of a capsule (8), the Connect command (64), and in its data.
const HOST_NAME: std::ops::Range<usize> = 128 + 8 + 64 + 512..128 + 8 + 64 + 768;
/// Bytes that are passed on at once.
const PIECE_BYTES: usize = 256 << 10;
/// How often a link that is cut looks whether it still is.
const LOOK: Duration = Duration::from_millis(5);

/// The link of a server. Its threads end with their connections, or with the process.
pub struct Link {
    address: SocketAddr,
    shared: Arc<Shared>,
}

/// Bytes that one host and a server sent each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    pub to_server: u64,
    pub to_host: u64,
}

#[derive(Default)]
struct Shared {
    server: OnceLock<SocketAddr>,
    is_cut: AtomicBool,
    connections: Mutex<Vec<Arc<Connection>>>,
}

#[derive(Default)]
struct Connection {
    host: OnceLock<String>,
    to_server: AtomicU64,
    to_host: AtomicU64,
}

impl Link {
    /// A link on a port of its own; of which server is said later.
    pub fn new() -> Result<Self, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::<Shared>::default();
        let there = Arc::clone(&shared);
        thread::spawn(move || {
            for host in listener.incoming().flatten() {
                // Without a server the connection is closed at once.
                let _ = there.connect(host);
            }
        });
        Ok(Self { address, shared })
    }

    /// Where hosts find the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Says where the server really is.
    pub fn lead_to(&self, server: SocketAddr) {
        // Said once: a server that is killed does not come back.
        let _ = self.shared.server.set(server);
    }

    /// From now on nothing arrives at either end, and neither is told; what is on its way arrives when the
    /// link is mended.
    pub fn cut(&self) {
        self.shared.is_cut.store(true, Ordering::SeqCst);
    }

    pub fn mend(&self) {
        self.shared.is_cut.store(false, Ordering::SeqCst);
    }

    /// Bytes until now of the hosts that are `wanted`.
    pub fn traffic(&self, wanted: impl Fn(&str) -> bool) -> Traffic {
        let mut sum = Traffic::default();
        for connection in self.shared.connections().iter() {
            if connection.host.get().is_some_and(|host| wanted(host)) {
                sum.to_server += connection.to_server.load(Ordering::Relaxed);
                sum.to_host += connection.to_host.load(Ordering::Relaxed);
            }
        }
        sum
    }
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn connect(self: &Arc<Self>, host: TcpStream) -> std::io::Result<()> {
        let Some(address) = self.server.get() else { return Ok(()) };
        let server = TcpStream::connect(address)?;
        host.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let connection = Arc::<Connection>::default();
        self.connections().push(Arc::clone(&connection));
        let (from, to) = (host.try_clone()?, server.try_clone()?);
        let (own, counted) = (Arc::clone(self), Arc::clone(&connection));
        thread::spawn(move || {
            let mut head = Vec::new();
            own.pass(from, to, |bytes| {
                counted.to_server.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                counted.look_for_host(&mut head, bytes);
            });
        });
        let own = Arc::clone(self);
        thread::spawn(move || {
            own.pass(server, host, |bytes| {
                connection.to_host.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            });
        });
        Ok(())
    }

    /// Passes on what comes until either end has had enough.
    fn pass(&self, mut from: TcpStream, mut to: TcpStream, mut seen: impl FnMut(&[u8])) {
        let mut piece = vec![0; PIECE_BYTES];
        while let Ok(length @ 1..) = from.read(&mut piece) {
            self.wait();
            if to.write_all(&piece[..length]).is_err() {
                break;
            }
            seen(&piece[..length]);
        }
        // An end that closes is not seen through a link that is cut, either.
        self.wait();
        let _ = to.shutdown(Shutdown::Both);
        let _ = from.shutdown(Shutdown::Both);
    }

    fn wait(&self) {
        while self.is_cut.load(Ordering::SeqCst) {
            thread::sleep(LOOK);
        }
    }
}

impl Connection {
    fn look_for_host(&self, head: &mut Vec<u8>, bytes: &[u8]) {
        if self.host.get().is_some() {
            return;
        }
        head.extend(&bytes[..bytes.len().min(HOST_NAME.end - head.len())]);
        if let Some(name) = head.get(HOST_NAME) {
            let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
            // Once.
            let _ = self.host.set(String::from_utf8_lossy(name).into_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Link, TcpStream, TcpStream) {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let link = Link::new().unwrap();
        link.lead_to(server.local_addr().unwrap());
        let host = TcpStream::connect(link.address()).unwrap();
        let (accepted, _) = server.accept().unwrap();
        (link, host, accepted)
    }

    #[test]
    fn bytes_are_counted_for_the_host_that_the_connect_command_names() {
        let (link, mut host, mut server) = pair();
        let mut sent = vec![0; 2000];
        sent[HOST_NAME.start..HOST_NAME.start + 5].copy_from_slice(b"nqn.a");
        // In pieces that don't end where PDUs do.
        for piece in sent.chunks(333) {
            host.write_all(piece).unwrap();
        }
        let mut received = vec![0; 2000];
        server.read_exact(&mut received).unwrap();
        assert_eq!(received, sent);
        server.write_all(&[7; 300]).unwrap();
        host.read_exact(&mut received[..300]).unwrap();
        // What has arrived is counted right after.
        let expected = Traffic { to_server: 2000, to_host: 300 };
        while link.traffic(|host| host == "nqn.a") != expected {
            thread::sleep(LOOK);
        }
        assert_eq!(link.traffic(|host| host != "nqn.a"), Traffic::default());
    }

    #[test]
    fn what_is_sent_over_a_link_that_is_cut_arrives_when_it_is_mended() {
        let (link, mut host, mut server) = pair();
        link.cut();
        host.write_all(b"late").unwrap();
        server.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut received = [0; 4];
        assert!(server.read(&mut received).is_err(), "the link isn't cut");
        link.mend();
        server.set_read_timeout(None).unwrap();
        server.read_exact(&mut received).unwrap();
        assert_eq!(&received, b"late");
    }
}
