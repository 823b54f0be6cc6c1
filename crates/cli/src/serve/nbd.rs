//! NBD: a server on every shard, with the array as its export.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    net::SocketAddr,
    path::Path,
    rc::Rc,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use pinstripe_block::roster::{LEAVE_LIMIT_NANOSECONDS, LEAVE_NANOSECONDS};
use pinstripe_engine::io::service::VolumeService;
use pinstripe_export::nbd::{Export, Left, Security, Server, SessionEnd};
use pinstripe_runtime::{
    ShardHandle,
    shard::{self, JoinHandle},
    uring::{Connection, Listener, Peer, SocketStream},
};

use super::{
    control_socket::absolute,
    front::{Accepting, Binding, Bound, FrontEnd, Identity, Kind, Service, Task},
    journal::ServerLog,
    succession::{Agreed, Connected},
    tls::{self, Complaints, Tls},
};
use crate::{
    command_line::{LogLevel, NbdAddress, ServeArguments},
    failure::Failure,
    log::{self, Entry},
    memory,
    on_shards::on_shards,
};

pub const KIND: Kind = Kind { check, bind };

const PROTOCOL: &str = "nbd";

/// Time that connections get for their last replies when the server stops.
const GRACE_NANOSECONDS: u64 = 5_000_000_000;
thread_local! {
    /// This shard's server.
    static SERVER: RefCell<Option<Server<VolumeService>>> = const { RefCell::new(None) };
}

fn current() -> Option<Server<VolumeService>> {
    SERVER.with(|server| server.borrow().clone())
}

#[derive(Default)]
struct Nbd {
    /// The export's name.
    name: String,
    /// Until connections are taken. A unix socket's file goes with its listener.
    listeners: RefCell<Vec<Listener>>,
    uris: Vec<String>,
    /// To which every user of this machine can connect and write.
    ports: Vec<SocketAddr>,
    tls: Option<Tls>,
    /// Once the array is there.
    log: Option<ServerLog>,
    clients: Arc<Mutex<Clients>>,
}

fn check(arguments: &ServeArguments) -> Result<(), Failure> {
    tls::clients(&arguments.tls)?;
    for address in &arguments.nbd {
        if let NbdAddress::Tcp(address) = address
            && !address.ip().is_loopback()
            && !arguments.allow_remote
            && !tls::is_authenticated(&arguments.tls)
        {
            return Err(Failure::usage(format!(
                "{address} can be reached from other machines, and every program there could read and write everything: \
                 use a loopback address, or TLS for certified clients (--tls-certificates), or --allow-remote on a network that you trust"
            )));
        }
    }
    Ok(())
}

/// Always: on a socket beside the control socket, unless addresses are given.
fn bind<'a>(arguments: &'a ServeArguments, identity: Identity<'a>) -> Binding<'a> {
    Box::pin(async move {
        let Identity { name, stem, folder, .. } = identity;
        let mut addresses = arguments.nbd.clone();
        if addresses.is_empty() {
            addresses.push(NbdAddress::Unix(folder.join(format!("{stem}.nbd"))));
        }
        let tls = Tls::load(&arguments.tls).await?;
        let secure = tls.as_ref().is_some_and(Tls::required);
        let mut nbd = Nbd { name: name.to_owned(), tls, ..Nbd::default() };
        for address in addresses {
            let (listener, path) = match address {
                NbdAddress::Unix(path) => (identity.listen_unix(PROTOCOL, &path)?, Some(path)),
                NbdAddress::Tcp(address) => (identity.listen_tcp(PROTOCOL, address).await?, None),
            };
            nbd.uris.push(uri(name, &listener, path.as_deref(), secure));
            let open = listener.tcp_address().filter(|address| address.ip().is_loopback());
            nbd.ports.extend(open.filter(|_| !tls::is_authenticated(&arguments.tls)));
            nbd.listeners.get_mut().push(listener);
        }
        Ok(Some(Box::new(nbd) as Bound))
    })
}

impl FrontEnd for Nbd {
    fn protocol(&self) -> &'static str {
        PROTOCOL
    }

    fn open<'a>(&'a mut self, service: Service<'a>) -> Task<'a, Result<(), Failure>> {
        Box::pin(async move {
            let Service { array, shards, journal } = service;
            self.log = Some(journal.clone());
            for handle in shards {
                let (array, name) = (array.clone(), self.name.clone());
                let opened = handle.call(move || async move {
                    let export = Export { name, description: String::new(), service: array.service() };
                    let server = Server::with_budget(vec![export], memory::budget())?;
                    SERVER.with(|current| current.replace(Some(server)));
                    Ok::<_, Failure>(())
                });
                opened.await??;
            }
            Ok(())
        })
    }

    fn uris(&self) -> Vec<String> {
        self.uris.clone()
    }

    fn loopback_ports(&self) -> Vec<SocketAddr> {
        self.ports.clone()
    }

    fn accept(&self, way: Accepting<'_>) -> Vec<JoinHandle<()>> {
        let (Some(log), Some(welcome)) = (&self.log, self.welcome()) else { return Vec::new() };
        let accept = |listener: Listener| {
            let (clients, welcome) = (Arc::clone(&self.clients), welcome.clone());
            let by_tcp = listener.tcp_address().is_some();
            way.hand_out(PROTOCOL, listener, move |shard, connection| {
                let client = Client::new(&clients, peer(&connection));
                hand_over(shard, connection, welcome.greeting(by_tcp), client);
            })
        };
        let accepting = self.listeners.take().into_iter().map(accept);
        let watching = self.tls.iter().map(|tls| tls.watch(log.clone(), Rc::clone(way.stopping)));
        accepting.chain(watching).collect()
    }

    fn clients(&self) -> Vec<String> {
        lock(&self.clients).chosen.values().cloned().collect()
    }

    fn leave<'a>(&'a self, shards: &'a [ShardHandle]) -> Task<'a, Vec<Connected>> {
        let leave = || async {
            if let Some(server) = current() {
                server.leave(LEAVE_NANOSECONDS, LEAVE_LIMIT_NANOSECONDS).await;
            }
        };
        Box::pin(async move {
            on_shards(shards, leave).await;
            // Their tasks end in a moment.
            while lock(&self.clients).tasks > 0 {
                shard::yield_now().await;
            }
            std::mem::take(&mut lock(&self.clients).left)
        })
    }

    fn resume(&self, shard: &ShardHandle, connection: Connected) {
        let Connected { socket, name, left } = connection;
        let connection = Connection::new(socket);
        let (name, start) = match (left, self.welcome()) {
            (Some(Agreed::Nbd(left)), _) => (name, Start::Left(left)),
            // It came at the last moment.
            (None, Some(welcome)) => {
                let by_tcp = matches!(connection.peer(), Some(Peer::Address(_)));
                (peer(&connection), welcome.greeting(by_tcp))
            }
            _ => return,
        };
        hand_over(shard, connection, start, Client::new(&self.clients, name));
    }

    fn stop<'a>(&'a self, shards: &'a [ShardHandle]) -> Task<'a, ()> {
        let stop = || async {
            if let Some(server) = current() {
                server.stop(GRACE_NANOSECONDS).await;
            }
        };
        Box::pin(on_shards(shards, stop))
    }

    fn close<'a>(&'a self, shards: &'a [ShardHandle]) -> Task<'a, ()> {
        // Dropped outside of the borrow: a destructor may look for the server.
        Box::pin(on_shards(shards, || async { drop(SERVER.with(RefCell::take)) }))
    }
}

impl Nbd {
    /// Once the array is there.
    fn welcome(&self) -> Option<Welcome> {
        let complaints = Complaints::new(self.log.clone()?);
        Some(Welcome { tls: self.tls.clone(), complaints })
    }
}

/// How new connections are greeted.
#[derive(Clone)]
struct Welcome {
    tls: Option<Tls>,
    complaints: Complaints,
}

impl Welcome {
    fn greeting(&self, by_tcp: bool) -> Start {
        let security = self.tls.as_ref().map(|tls| tls.security(by_tcp)).unwrap_or_default();
        Start::Greeting(security, self.complaints.clone())
    }
}

/// How a connection begins here.
enum Start {
    Greeting(Security, Complaints),
    /// The program before has left it.
    Left(Left),
}

/// Gives a connection to a shard, where it lives from now on.
fn hand_over(target: &ShardHandle, connection: Connection, start: Start, client: Client) {
    target.send(move || {
        // Without a server it is closed: the array is stopping.
        let Some(server) = current() else { return };
        shard::spawn(async move {
            match connection.attach() {
                Ok(stream) => serve(&server, stream, start, &client).await,
                Err(error) => log::warn(&format!("a connection can't be used: {error}")),
            }
        });
    });
}

/// Serves a connection to its end, or until it is left.
async fn serve(server: &Server<VolumeService>, stream: Rc<SocketStream>, start: Start, client: &Client) {
    let kept = Rc::clone(&stream);
    let (end, complaints) = match start {
        Start::Greeting(security, complaints) => {
            let counts = |secure| client.counts(secure);
            (server.serve_securely(stream, security, counts).await, Some(complaints))
        }
        Start::Left(left) => (server.resume(stream, &left, || client.counts(false)).await, None),
    };
    match (end, complaints) {
        (SessionEnd::Insecure(why), Some(complaints)) => complaints.tell(&client.name, &why),
        (SessionEnd::Left(left), _) => client.leave(&kept, left),
        (end, _) => tell_end(&client.name, &end),
    }
}

/// Says how a connection ended. One that was cut off should be seen; an end is usual.
fn tell_end(client: &str, end: &SessionEnd) {
    let (level, words) = match end {
        SessionEnd::Violation(why) => (LogLevel::Info, format!("was cut off: {why}")),
        SessionEnd::HandshakeTimeout => {
            (LogLevel::Info, "was cut off, for it chose no export in time".to_owned())
        }
        SessionEnd::Refused => {
            let why = "was refused: there are too many, or the server is stopping";
            (LogLevel::Info, why.to_owned())
        }
        _ => (LogLevel::Debug, "has ended".to_owned()),
    };
    let message = &format!("NBD: a connection of {client} {words}");
    log::say(&Entry { level, peer: Some(client), protocol: Some("nbd"), message, ..Entry::default() });
}

/// The connections.
#[derive(Default)]
struct Clients {
    next: u64,
    /// Those that haven't ended.
    tasks: usize,
    /// Those of them that have chosen the export, by the order in which they came.
    chosen: BTreeMap<u64, String>,
    /// Those that the next program goes on with.
    left: Vec<Connected>,
}

/// A connection, which may count as a client's until this goes.
struct Client {
    clients: Arc<Mutex<Clients>>,
    number: u64,
    name: String,
}

impl Client {
    /// It doesn't count yet.
    fn new(clients: &Arc<Mutex<Clients>>, name: String) -> Self {
        let mut counted = lock(clients);
        let number = counted.next;
        counted.next += 1;
        counted.tasks += 1;
        Self { clients: Arc::clone(clients), number, name }
    }

    /// From now on it counts.
    fn counts(&self, secure: bool) {
        let name = if secure { format!("{} by TLS", self.name) } else { self.name.clone() };
        lock(&self.clients).chosen.insert(self.number, name);
    }

    /// Puts it by for the next program.
    fn leave(&self, stream: &SocketStream, left: Left) {
        match stream.leave() {
            Ok(connection) => {
                let (socket, name) = (connection.into(), self.name.clone());
                lock(&self.clients).left.push(Connected { socket, name, left: Some(Agreed::Nbd(left)) });
            }
            Err(error) => {
                log::warn(&format!("NBD: the connection of {} can't be handed on: {error}", self.name));
            }
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut clients = lock(&self.clients);
        clients.chosen.remove(&self.number);
        clients.tasks -= 1;
    }
}

fn lock(clients: &Mutex<Clients>) -> MutexGuard<'_, Clients> {
    clients.lock().unwrap_or_else(PoisonError::into_inner)
}

fn peer(connection: &Connection) -> String {
    connection.peer().map_or_else(|| "an unknown client".to_owned(), peer_name)
}

/// How a client is called.
pub(super) fn peer_name(peer: Peer) -> String {
    match peer {
        Peer::Address(address) => address.to_string(),
        Peer::Process(number) => {
            // It may have handed its socket to the kernel and ended, as nbd-client does.
            let program = std::fs::read_to_string(format!("/proc/{number}/comm")).unwrap_or_default();
            match program.trim() {
                "" => format!("process {number}"),
                program => format!("process {number} ({program})"),
            }
        }
    }
}

/// The URI of the export `name`, as libnbd and QEMU read it.
fn uri(name: &str, listener: &Listener, path: Option<&Path>, secure: bool) -> String {
    let name = escape(name);
    match (path, listener.tcp_address()) {
        (Some(path), _) => format!("nbd+unix:///{name}?socket={}", escape(&absolute(path))),
        (None, Some(address)) if secure => format!("nbds://{address}/{name}"),
        (None, Some(address)) => format!("nbd://{address}/{name}"),
        (None, None) => String::new(),
    }
}

/// Percent-encoding of what a URI can't hold.
fn escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_holds_any_name_and_path() {
        assert_eq!(escape("/tmp/a b?.sock"), "/tmp/a%20b%3F.sock");
        assert_eq!(escape("dätä"), "d%C3%A4t%C3%A4");
    }
}
