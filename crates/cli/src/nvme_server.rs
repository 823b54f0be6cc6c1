//! The shards' NVMe/TCP targets, for `pinstripe target` and `pinstripe serve --nvme-tcp`.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    net::SocketAddr,
    pin::Pin,
    rc::Rc,
    sync::Arc,
};

use pinstripe_block::{
    BlockService,
    roster::{LEAVE_LIMIT_NANOSECONDS, LEAVE_NANOSECONDS},
};
use pinstripe_nvme::{
    auth::Authentication,
    controller::{
        self, LeftQueue, NamespaceConfig, OffloadConfig, SessionEnd, Subsystem, SubsystemConfig,
        SubsystemError, Target, TlsHosts,
    },
};
use pinstripe_runtime::{
    ShardHandle, Stream, shard,
    uring::{Connection, SocketStream},
};
use pinstripe_tls::TlsError;

use crate::{
    command_line::LogLevel,
    failure::Failure,
    log::{self, Entry},
    memory,
    on_shards::on_shards,
};

/// Most I/O queues of a host's controller. Linux asks for one per CPU.
const QUEUES_MAX: u16 = 64;

/// A target of any service.
trait AnyTarget {
    /// Serves a connection, which another process may have left.
    fn spawn(&self, stream: Rc<SocketStream>, left: Option<LeftQueue>);
    /// What another process has left can't be served.
    fn abandon(&self, left: &LeftQueue);
    /// Ends the connections that TLS has proved to be of these hosts.
    fn cut_off(&self, hosts: &BTreeSet<String>);
    fn leave(&self) -> Pin<Box<dyn Future<Output = ()>>>;
    fn stop(&self) -> Pin<Box<dyn Future<Output = ()>>>;
}

/// A target, and the hosts that speak TLS with it, if all have to.
struct Served<S> {
    target: Target<S>,
    tls: Option<Arc<TlsHosts>>,
}

impl<S: BlockService> AnyTarget for Served<S> {
    fn spawn(&self, stream: Rc<SocketStream>, left: Option<LeftQueue>) {
        let (target, tls) = (self.target.clone(), self.tls.clone());
        TASKS.set(TASKS.get() + 1);
        shard::spawn(async move {
            let peer = stream.peer().map(|address| address.to_string());
            let served = Rc::clone(&stream) as Rc<dyn Stream>;
            let end = match (left, tls) {
                (Some(left), None) => Ok(target.resume(served, &left).await),
                (Some(left), Some(hosts)) => target.resume_secured(served, &hosts, &left).await,
                (None, Some(hosts)) => target.serve_secured(served, &hosts).await,
                (None, None) => Ok(target.serve(served).await),
            };
            let end = end.unwrap_or_else(|error| {
                tell_unsecured(peer.as_deref(), &error);
                SessionEnd::Closed
            });
            match end {
                SessionEnd::Left(queue) => match stream.leave() {
                    Ok(connection) => LEFT.with_borrow_mut(|left| left.push((queue, connection))),
                    Err(error) => log::warn(&format!("NVMe/TCP: a connection can't be handed on: {error}")),
                },
                end => tell_end(peer.as_deref(), &end),
            }
            TASKS.set(TASKS.get() - 1);
        });
    }

    fn abandon(&self, left: &LeftQueue) {
        self.target.abandon(left);
    }

    fn cut_off(&self, hosts: &BTreeSet<String>) {
        self.target.cut_off(hosts);
    }

    fn leave(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        let target = self.target.clone();
        Box::pin(async move { target.leave(LEAVE_NANOSECONDS, LEAVE_LIMIT_NANOSECONDS).await })
    }

    fn stop(&self) -> Pin<Box<dyn Future<Output = ()>>> {
        let target = self.target.clone();
        Box::pin(async move { target.stop().await })
    }
}

/// Says why a connection got no TLS.
fn tell_unsecured(peer: Option<&str>, error: &TlsError) {
    let message = format!("NVMe/TCP: no TLS with {}: {error}", peer.unwrap_or("an unknown host"));
    let (protocol, level) = (Some("nvme-tcp"), LogLevel::Info);
    log::say(&Entry { level, peer, protocol, message: &message, ..Entry::default() });
}

/// Says how a connection ended. One that was cut off should be seen; an end is usual.
fn tell_end(peer: Option<&str>, end: &SessionEnd) {
    let host = peer.unwrap_or("an unknown host");
    let (level, message) = match end {
        SessionEnd::Closed => (LogLevel::Debug, format!("NVMe/TCP: a connection of {host} has ended")),
        SessionEnd::Terminated(status, information) => (
            LogLevel::Info,
            format!(
                "NVMe/TCP: {host} ended a connection for an error of ours: status {status:#x}, {information:#x}"
            ),
        ),
        SessionEnd::Violation(error) => (
            LogLevel::Info,
            format!("NVMe/TCP: a connection of {host} was cut off, for it broke the protocol: {error:?}"),
        ),
        SessionEnd::Timeout => (
            LogLevel::Info,
            format!("NVMe/TCP: a connection of {host} was cut off, for it connected no queue in time"),
        ),
        SessionEnd::Left(_) => {
            (LogLevel::Debug, format!("NVMe/TCP: a connection of {host} goes on elsewhere"))
        }
        SessionEnd::Refused => (
            LogLevel::Info,
            format!(
                "NVMe/TCP: a connection of {host} was refused: there are too many, or the server is stopping"
            ),
        ),
    };
    let (protocol, message) = (Some("nvme-tcp"), message.as_str());
    log::say(&Entry { level, peer, protocol, message, ..Entry::default() });
}

thread_local! {
    /// This shard's target.
    static TARGET: RefCell<Option<Rc<dyn AnyTarget>>> = const { RefCell::new(None) };
    /// Connections that are served on this shard.
    static TASKS: Cell<usize> = const { Cell::new(0) };
    /// Those that another program goes on with.
    static LEFT: RefCell<Vec<(LeftQueue, Connection)>> = const { RefCell::new(Vec::new()) };
}

/// Refuses an address that other machines can reach, unless hosts are known or the user has said that this is
/// meant.
pub fn check_address(
    address: SocketAddr,
    hosts_are_known: bool,
    allow_unauthenticated: bool,
) -> Result<(), Failure> {
    if address.ip().is_loopback() || hosts_are_known || allow_unauthenticated {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "{address} can be reached from other machines, and hosts are not authenticated: use --dhchap-hosts, --nvme-tls-hosts, \
         a loopback address, or --allow-unauthenticated on a network that you trust"
    )))
}

/// The warning for a port that only this machine reaches.
pub fn open_to_users(address: SocketAddr, advice: &str) -> String {
    format!("every user of this machine can connect to {address} and write: {advice}")
}

/// Refuses what can't be a subsystem's NQN.
pub fn check_name(nqn: &str) -> Result<(), Failure> {
    controller::check_name(nqn).map_err(|error| Failure::usage(error.to_string()))
}

/// The subsystem `nqn` that is reached at `address`, by hosts that prove their identity if there is an
/// `authentication`; with `offload` it computes.
pub fn subsystem(
    nqn: &str,
    address: SocketAddr,
    namespaces: Vec<NamespaceConfig>,
    authentication: Option<Authentication>,
    offload: Option<OffloadConfig>,
) -> Result<Arc<Subsystem>, SubsystemError> {
    let [a, b, c, d, e, f, g, h, ..] = pinstripe_nvme::controller::uuid_of(&[nqn.as_bytes()]);
    let config = SubsystemConfig {
        nqn: nqn.to_owned(),
        serial: format!("{:016x}", u64::from_be_bytes([a, b, c, d, e, f, g, h])),
        namespaces,
        queues_max: QUEUES_MAX,
        addresses: vec![address],
    };
    Subsystem::with(config, authentication, offload)
}

/// Gives this shard its target, which speaks TLS with these hosts and serves no other, if they are given.
/// Namespaces without a service are those that aren't there.
pub fn open<S: BlockService>(
    subsystem: Arc<Subsystem>,
    services: Vec<Option<S>>,
    tls: Option<Arc<TlsHosts>>,
) {
    let target = Target::with_gaps(subsystem, services, memory::budget());
    TARGET.with(|current| current.replace(Some(Rc::new(Served { target, tls }))));
}

fn current() -> Option<Rc<dyn AnyTarget>> {
    TARGET.with(|target| target.borrow().clone())
}

/// Gives a connection to a shard, where it lives from now on.
pub fn hand_over(target: &ShardHandle, connection: Connection) {
    go_on(target, connection, None);
}

/// The same with one that another program may have left.
pub fn go_on(target: &ShardHandle, connection: Connection, left: Option<LeftQueue>) {
    target.send(move || {
        // Without a target it is closed: the server is stopping.
        let Some(target) = current() else { return };
        match connection.attach() {
            Ok(stream) => target.spawn(stream, left),
            Err(error) => {
                log::warn(&format!("a connection can't be used: {error}"));
                left.inspect(|left| target.abandon(left));
            }
        }
    });
}

/// Ends the connections that TLS has proved to be of these hosts.
pub async fn cut_off(shards: &[ShardHandle], hosts: BTreeSet<String>) {
    let hosts = Arc::new(hosts);
    let cut_off = move || {
        let hosts = Arc::clone(&hosts);
        async move {
            if let Some(target) = current() {
                target.cut_off(&hosts);
            }
        }
    };
    on_shards(shards, cut_off).await;
}

/// Leaves all connections to another program, after what is being carried out.
pub async fn leave(shards: &[ShardHandle]) -> Vec<(LeftQueue, Connection)> {
    let leave = || async {
        if let Some(target) = current() {
            target.leave().await;
        }
        // Their tasks end in a moment.
        while TASKS.get() > 0 {
            shard::yield_now().await;
        }
    };
    on_shards(shards, leave).await;
    let mut all = Vec::new();
    for shard in shards {
        all.extend(shard.call(|| async { LEFT.take() }).await.unwrap_or_default());
    }
    all
}

/// Ends all connections after what is being carried out.
pub async fn stop(shards: &[ShardHandle]) {
    let stop = || async {
        if let Some(target) = current() {
            target.stop().await;
        }
    };
    on_shards(shards, stop).await;
}

/// Gives up the targets, and with them what they serve.
pub async fn close(shards: &[ShardHandle]) {
    // Dropped outside of the borrow: a destructor may look for the target.
    on_shards(shards, || async { drop(TARGET.with(RefCell::take)) }).await;
}
