//! Front ends: the protocols by which clients reach the array.
//!
//! Each is a file of its own with a [`Kind`], and a line in [`KINDS`]; the rest of the server knows only this
//! trait. In the server's life a front end is *checked* against the command line, *bound* before the array is
//! there, *opened* on every shard when it is, serves, is *stopped* (what is under way is finished), and is
//! *closed* when the array has stopped.

use std::{
    cell::RefCell,
    fs, io,
    net::SocketAddr,
    os::{fd::OwnedFd, unix::fs::MetadataExt},
    path::Path,
    pin::Pin,
    rc::Rc,
    sync::Arc,
};

use pinstripe_block::rate::RateLimit;
use pinstripe_control::detail::Address;
use pinstripe_engine::{io::recorder::Recorder, shared::Shared};
use pinstripe_nvme::controller::LeftSubsystem;
use pinstripe_runtime::{
    ShardHandle,
    shard::{self, JoinHandle},
    uring::{Access, Connection, Leaver, ListenError, Listener},
};
use rustix::net::Shutdown;

use super::{
    fuse,
    journal::ServerLog,
    nbd, nvme,
    service::ServedArray,
    stopping::Stopping,
    succession::{Connected, Inheritance, LeftListener},
    ublk, vhost_user,
};
use crate::{
    accept::{accept, in_turn},
    command_line::ServeArguments,
    failure::Failure,
    log,
    open::listen,
};

/// All that there are. Clients are told of them in this order.
const KINDS: &[Kind] = &[nbd::KIND, nvme::KIND, ublk::KIND, fuse::KIND, vhost_user::KIND];

/// What is awaited of a front end.
pub type Task<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// How a front end comes about.
pub struct Kind {
    /// Refuses arguments that can't be, before anything is done.
    pub check: fn(&ServeArguments) -> Result<(), Failure>,
    /// Takes what others could take meanwhile, such as sockets. Nothing if the front end isn't wanted.
    pub bind: for<'a> fn(&'a ServeArguments, Identity<'a>) -> Binding<'a>,
}

/// A front end that nothing is served by yet.
pub type Bound = Box<dyn FrontEnd>;

/// What is awaited when one is bound.
pub type Binding<'a> = Task<'a, Result<Option<Bound>, Failure>>;

/// The array, as front ends name what is theirs.
#[derive(Clone, Copy)]
pub struct Identity<'a> {
    pub name: &'a str,
    pub uuid: &'a str,
    /// How files that belong to it begin, and in which folder they are.
    pub stem: &'a str,
    pub folder: &'a Path,
    /// What the program before has left, if this one takes its place.
    pub inherited: Option<&'a Inheritance>,
    /// To which users the sockets of clients are open.
    pub access: Access,
}

impl Identity<'_> {
    /// A unix socket of this protocol: a new one, or the one that was left.
    pub fn listen_unix(&self, protocol: &str, path: &Path) -> Result<Listener, ListenError> {
        listen_unix(self.inherited, protocol, path, self.access)
    }

    /// A TCP socket of this protocol: a new one, or the one that was left.
    pub async fn listen_tcp(&self, protocol: &str, address: SocketAddr) -> Result<Listener, ListenError> {
        match self.inherited.and_then(|inherited| inherited.listener(protocol)) {
            Some(left) => Listener::inherited(left.socket, None),
            None => listen(address).await,
        }
    }
}

/// See [`Identity::listen_unix`].
pub fn listen_unix(
    inherited: Option<&Inheritance>,
    protocol: &str,
    path: &Path,
    access: Access,
) -> Result<Listener, ListenError> {
    match inherited.and_then(|inherited| inherited.listener(protocol)) {
        Some(left) => Listener::inherited(left.socket, left.file.map(|file| (path, file))),
        None if access == Access::default() => Listener::unix(path),
        None => {
            warn_if_closed(path);
            Listener::unix_for(path, access)
        }
    }
}

/// A socket for other users may be in a folder that is closed to them, such as the usual one.
fn warn_if_closed(path: &Path) {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if fs::metadata(folder).is_ok_and(|folder| folder.mode() & 0o011 == 0) {
        log::warn(&format!(
            "other users can't reach the socket {}: only its owner may enter {}; name a path elsewhere",
            path.display(),
            folder.display()
        ));
    }
}

/// The array that is to be served.
pub struct Service<'a> {
    pub array: &'a ServedArray,
    pub shards: &'a [ShardHandle],
    pub journal: &'a ServerLog,
}

/// A way in. It lives on shard 0.
pub trait FrontEnd {
    /// Whether it writes parts of blocks.
    fn writes_parts(&self) -> bool {
        false
    }

    /// Its name in `detail` and in what scripts read.
    fn protocol(&self) -> &'static str;

    /// Gives every shard what serves the array there.
    fn open<'a>(&'a mut self, service: Service<'a>) -> Task<'a, Result<(), Failure>>;

    /// Where clients reach it, as URIs.
    fn uris(&self) -> Vec<String>;

    /// The TCP ports to which every user of this machine, and no other machine, can connect and write.
    fn loopback_ports(&self) -> Vec<SocketAddr>;

    /// Takes clients until the end is wanted. Called once.
    fn accept(&self, way: Accepting<'_>) -> Vec<JoinHandle<()>>;

    /// The name of each client's connection. One that hasn't said what it wants isn't a client.
    fn clients(&self) -> Vec<String>;

    /// Why its clients would not outlive a change of the program.
    fn refuse_succession(&self) -> Result<(), &'static str> {
        Ok(())
    }

    /// Instead of [`FrontEnd::stop`]: finishes what is under way, and gives the connections that the next
    /// program can go on with.
    fn leave<'a>(&'a self, shards: &'a [ShardHandle]) -> Task<'a, Vec<Connected>> {
        Box::pin(async {
            self.stop(shards).await;
            Vec::new()
        })
    }

    /// After [`FrontEnd::leave`], where the next program must not go on with its clients: takes away what
    /// they would go on with beside connections.
    fn disown(&self) -> Task<'_, ()> {
        Box::pin(async {})
    }

    /// What the connections that it has left share.
    fn left_subsystem(&self) -> Option<LeftSubsystem> {
        None
    }

    /// Goes on with a connection that the program before has left, on this shard.
    fn resume(&self, _shard: &ShardHandle, _connection: Connected) {}

    /// Ends all connections after what is under way.
    fn stop<'a>(&'a self, shards: &'a [ShardHandle]) -> Task<'a, ()>;

    /// Instead of [`FrontEnd::stop`], where the start fails after [`FrontEnd::open`].
    fn give_up<'a>(&'a self, shards: &'a [ShardHandle]) -> Task<'a, ()> {
        self.stop(shards)
    }

    /// Gives up what the shards have, and with it the array's devices.
    fn close<'a>(&'a self, shards: &'a [ShardHandle]) -> Task<'a, ()>;
}

/// How connections come to the shards.
#[derive(Clone, Copy)]
pub struct Accepting<'a> {
    pub shards: &'a [ShardHandle],
    pub stopping: &'a Rc<Stopping>,
    pub leavers: &'a Leavers,
}

impl Accepting<'_> {
    /// Hands a listener's connections to the shards in turn, until the end is wanted.
    pub fn hand_out(
        self,
        protocol: &'static str,
        listener: Listener,
        hand_over: impl Fn(&ShardHandle, Connection) + 'static,
    ) -> JoinHandle<()> {
        self.leavers.note(protocol, &listener);
        let (shards, stopping) = (self.shards.to_vec(), Rc::clone(self.stopping));
        shard::spawn_joined(async move {
            accept(&listener, stopping.wanted(), in_turn(&shards, hand_over)).await;
        })
    }
}

/// By which listening sockets are left to the next program, in the order in which they were bound.
#[derive(Default)]
pub struct Leavers(RefCell<Vec<(&'static str, Leaver)>>);

impl Leavers {
    /// A listener that a task is going to have.
    pub fn note(&self, protocol: &'static str, listener: &Listener) {
        self.0.borrow_mut().push((protocol, listener.leaver()));
    }

    /// All sockets, which don't end with their listeners any more.
    pub fn leave(&self) -> io::Result<Vec<LeftListener>> {
        let leavers = self.0.borrow();
        let left = |(protocol, leaver): &(&'static str, Leaver)| {
            let (socket, file) = (leaver.leave()?, leaver.file());
            Ok(LeftListener { protocol: (*protocol).to_owned(), socket, file })
        };
        let all = leavers.iter().map(left).collect();
        if io::Result::is_err(&all) {
            leavers.iter().for_each(|(_, leaver)| leaver.stay());
        }
        all
    }

    /// Connections that were being accepted when the listeners went.
    pub fn last_accepted(&self) -> Vec<(&'static str, OwnedFd)> {
        let leavers = self.0.borrow();
        leavers.iter().filter_map(|(protocol, leaver)| Some((*protocol, leaver.last_accepted()?))).collect()
    }
}

/// Refuses arguments of front ends that can't be.
pub fn check(arguments: &ServeArguments) -> Result<(), Failure> {
    KINDS.iter().try_for_each(|kind| (kind.check)(arguments))
}

/// Those that are wanted.
#[derive(Default)]
pub struct FrontEnds(Vec<Bound>);

impl FrontEnds {
    pub async fn bind(arguments: &ServeArguments, identity: Identity<'_>) -> Result<Self, Failure> {
        let mut bound = Vec::new();
        for kind in KINDS {
            bound.extend((kind.bind)(arguments, identity).await?);
        }
        Ok(Self(bound))
    }

    pub async fn open(
        &mut self,
        shared: &Arc<Shared>,
        shards: &[ShardHandle],
        journal: &ServerLog,
        limit: &Arc<RateLimit>,
        recorder: &Arc<Recorder>,
    ) -> Result<(), Failure> {
        let in_parts = self.0.iter().any(|front_end| front_end.writes_parts());
        let array = &ServedArray::new(shared, journal, limit, recorder, in_parts);
        let open = async |front_end: &mut Bound| front_end.open(Service { array, shards, journal }).await;
        self.open_each(shards, open).await
    }

    /// All of them, or none: the kernel would have what one has made wait for a server that never comes.
    async fn open_each(
        &mut self,
        shards: &[ShardHandle],
        open: impl AsyncFn(&mut Bound) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for number in 0..self.0.len() {
            if let Err(failure) = open(&mut self.0[number]).await {
                for opened in self.0[..number].iter().rev() {
                    opened.give_up(shards).await;
                }
                return Err(failure);
            }
        }
        Ok(())
    }

    pub fn addresses(&self) -> Vec<Address> {
        let address = |front_end: &Bound| {
            let protocol = front_end.protocol().to_owned();
            front_end.uris().into_iter().map(move |uri| Address { protocol: protocol.clone(), uri })
        };
        self.0.iter().flat_map(address).collect()
    }

    pub fn loopback_ports(&self) -> Vec<SocketAddr> {
        self.0.iter().flat_map(|front_end| front_end.loopback_ports()).collect()
    }

    pub fn accept(&self, way: Accepting<'_>) -> Vec<JoinHandle<()>> {
        self.0.iter().flat_map(|front_end| front_end.accept(way)).collect()
    }

    /// Protocol and name of each connection.
    pub fn clients(&self) -> Vec<(&'static str, String)> {
        let client = |front_end: &Bound| {
            let protocol = front_end.protocol();
            front_end.clients().into_iter().map(move |name| (protocol, name))
        };
        self.0.iter().flat_map(client).collect()
    }

    /// Why clients would not outlive a change of the program.
    pub fn refuse_succession(&self) -> Result<(), &'static str> {
        self.0.iter().try_for_each(|front_end| front_end.refuse_succession())
    }

    /// Instead of [`FrontEnds::stop`]: the connections that the next program can go on with, by protocol.
    pub async fn leave(&self, shards: &[ShardHandle]) -> Vec<(&'static str, Connected)> {
        let mut left = Vec::new();
        // NVMe/TCP's last: its hosts give up where nothing is heard for long.
        let is_last = |front_end: &&Bound| front_end.protocol() == nvme::PROTOCOL;
        let first = self.0.iter().filter(|front_end| !is_last(front_end));
        for front_end in first.chain(self.0.iter().filter(is_last)) {
            let protocol = front_end.protocol();
            left.extend(front_end.leave(shards).await.into_iter().map(|connection| (protocol, connection)));
        }
        left
    }

    /// Has clients learn that the next program doesn't go on with them: ends the connections that were left.
    pub async fn disown(&self, left: Vec<(&'static str, Connected)>) {
        for (_, connection) in left {
            // What else has it open must not keep it.
            let _ = rustix::net::shutdown(&connection.socket, Shutdown::Both);
        }
        for front_end in &self.0 {
            front_end.disown().await;
        }
    }

    /// Of NVMe/TCP, when it has left its connections.
    pub fn left_subsystem(&self) -> Option<LeftSubsystem> {
        self.0.iter().find_map(|front_end| front_end.left_subsystem())
    }

    /// Goes on with connections that the program before has left.
    pub fn resume(&self, shards: &[ShardHandle], connections: Vec<(String, Connected)>) {
        let mut targets = shards.iter().cycle();
        for (protocol, connection) in connections {
            let front_end = self.0.iter().find(|front_end| front_end.protocol() == protocol);
            if let Some((front_end, target)) = front_end.zip(targets.next()) {
                front_end.resume(target, connection);
            }
        }
    }

    pub async fn stop(&self, shards: &[ShardHandle]) {
        for front_end in self.0.iter().rev() {
            front_end.stop(shards).await;
        }
    }

    /// Instead of [`FrontEnds::stop`], where a start is given up under way.
    pub async fn give_up(&self, shards: &[ShardHandle]) {
        for front_end in self.0.iter().rev() {
            front_end.give_up(shards).await;
        }
    }

    pub async fn close(&self, shards: &[ShardHandle]) {
        for front_end in &self.0 {
            front_end.close(shards).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{pin::pin, task::Context};

    use super::*;

    /// Tells what becomes of it.
    struct Told(&'static str, Rc<RefCell<Vec<String>>>);

    impl FrontEnd for Told {
        fn protocol(&self) -> &'static str {
            self.0
        }

        fn open<'a>(&'a mut self, _: Service<'a>) -> Task<'a, Result<(), Failure>> {
            Box::pin(async { Ok(()) })
        }

        fn uris(&self) -> Vec<String> {
            Vec::new()
        }

        fn loopback_ports(&self) -> Vec<SocketAddr> {
            Vec::new()
        }

        fn accept(&self, _: Accepting<'_>) -> Vec<JoinHandle<()>> {
            Vec::new()
        }

        fn clients(&self) -> Vec<String> {
            Vec::new()
        }

        fn stop<'a>(&'a self, _: &'a [ShardHandle]) -> Task<'a, ()> {
            self.1.borrow_mut().push(format!("{} stopped", self.0));
            Box::pin(async {})
        }

        fn close<'a>(&'a self, _: &'a [ShardHandle]) -> Task<'a, ()> {
            Box::pin(async {})
        }
    }

    #[test]
    fn where_one_does_not_open_those_before_it_are_taken_away() {
        let told = Rc::<RefCell<Vec<String>>>::default();
        let front_end = |name| Box::new(Told(name, Rc::clone(&told))) as Bound;
        let mut all = FrontEnds(["a", "b", "c", "d"].map(front_end).into());
        let open = async |one: &mut Bound| {
            if one.protocol() == "c" { Err(Failure::new("no room")) } else { Ok(()) }
        };
        let mut opened = pin!(all.open_each(&[], open));
        let outcome = opened.as_mut().poll(&mut Context::from_waker(std::task::Waker::noop()));
        assert!(matches!(outcome, std::task::Poll::Ready(Err(_))));
        assert_eq!(*told.borrow(), ["b stopped", "a stopped"]);
    }
}
