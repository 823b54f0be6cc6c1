//! The way to other servers: one association for each, whatever the namespaces and shards that use it.
//!
//! An association is made, and namespaces are attached on it, on one shard (the *home*); parts go out on the
//! queue of the shard that has computed them. A send fails if the attempt that it began fails; the next part
//! tries again. A Peer that came twice is added once, so a server is used again at once after its association
//! was lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use pinstripe_runtime::{Shard, ShardHandle, Signal, Slice, Ticket, shard};

use crate::initiator::offload::ServerLink;
use crate::initiator::{Address, Connector, Initiator, Options};
use crate::lock::lock;
use crate::mutants::{Mutant, active};
use crate::wire::offload::{Attach, PeerAddress, Request};
use crate::wire::status::Status;

/// Servers that are known at a time.
const SERVERS_MAX: usize = 256;

/// A member of an array.
pub(crate) struct PeerMember {
    pub namespace: u32,
    pub at: At,
}

/// On which server a member is.
pub(crate) enum At {
    Here,
    There(Arc<Peer>),
}

/// Which digests a connection has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Digests {
    pub header: bool,
    pub data: bool,
}

/// The array and the epoch under which a part goes.
pub(crate) type Identity = ([u8; 16], u64);

/// A server.
pub(crate) struct Peer {
    address: Address,
    state: Mutex<PeerState>,
    changed: Signal,
}

/// An association, and what was attached on it: another one begins with nothing.
struct Way {
    link: Arc<ServerLink>,
    /// By namespace: under what it was attached, and whether it still is.
    attached: BTreeMap<u32, (Identity, bool)>,
}

#[derive(Default)]
struct PeerState {
    way: Option<Way>,
    /// A task connects or attaches.
    working: bool,
    /// Attempts that have ended.
    attempts: u64,
    /// The target stops.
    closed: bool,
}

impl PeerState {
    /// The association, unless it is lost.
    fn way(&self) -> Option<&Way> {
        self.way.as_ref().filter(|way| !way.link.is_lost())
    }

    fn attached(&mut self, link: Arc<ServerLink>, namespace: u32, identity: Identity) {
        let known = self.way.take().filter(|way| Arc::ptr_eq(&way.link, &link));
        let mut attached = known.map_or_else(BTreeMap::new, |way| way.attached);
        attached.insert(namespace, (identity, true));
        self.way = Some(Way { link, attached });
    }

    fn detached(&mut self, namespace: u32) {
        if let Some((_, is_attached)) = self.way.as_mut().and_then(|way| way.attached.get_mut(&namespace)) {
            *is_attached = false;
        }
    }
}

/// By host, port, NQN and digests.
type Servers = BTreeMap<(String, u16, String, Digests), Arc<Peer>>;

/// See the module.
pub(crate) struct Peers {
    initiator: Arc<Initiator>,
    home: OnceLock<ShardHandle>,
    servers: Mutex<Servers>,
}

impl Peers {
    pub fn new(connector: Arc<dyn Connector>, options: Options) -> Self {
        let options = Options { repeats_harmlessly: true, ..options };
        Self {
            initiator: Initiator::new(options, connector),
            home: OnceLock::new(),
            servers: Mutex::default(),
        }
    }

    /// The current shard is the home, unless there is one.
    pub fn settle(&self) {
        self.home.get_or_init(|| shard::with_current(Shard::handle));
    }

    /// The server of a member, which is asked for these digests; `None` if there are too many.
    pub fn server(&self, address: &PeerAddress, digests: Digests) -> Option<Arc<Peer>> {
        let mut servers = lock(&self.servers);
        let key = (address.host.clone(), address.port, address.nqn.clone(), digests);
        if let Some(peer) = servers.get(&key) {
            return Some(Arc::clone(peer));
        }
        if servers.len() >= SERVERS_MAX {
            // Those that no table names any more.
            servers.retain(|_, peer| Arc::strong_count(peer) > 1);
        }
        if servers.len() >= SERVERS_MAX {
            return None;
        }
        let peer = Arc::new(Peer {
            address: Address {
                host: address.host.clone(),
                port: address.port,
                nqn: address.nqn.clone(),
                namespace: address.namespace,
                header_digests: digests.header,
                data_digests: digests.data,
            },
            state: Mutex::default(),
            changed: Signal::default(),
        });
        servers.insert(key, Arc::clone(&peer));
        Some(peer)
    }

    /// Ends all associations.
    pub fn close(&self) {
        let servers = std::mem::take(&mut *lock(&self.servers));
        for peer in servers.into_values() {
            let link = {
                let mut state = lock(&peer.state);
                state.closed = true;
                state.way.take()
            };
            drop(link);
            peer.changed.notify();
        }
    }

    /// Gives a part to a namespace of another server, and waits until it has it. If the association is lost
    /// meanwhile, the part is sent again on another one. The caller sets the time limit.
    pub async fn send(
        &self,
        peer: &Arc<Peer>,
        namespace: u32,
        identity: Identity,
        (ticket, request): (Ticket, Request),
        part: Slice,
    ) -> Result<(), Status> {
        loop {
            let link = self.reach(peer, namespace, identity).await.ok_or(Status::PEER_UNREACHABLE)?;
            match link.tell(request.command(namespace, ticket), part.clone()).await {
                Ok(()) => return Ok(()),
                Err(Some(status)) => {
                    if matches!(status, Status::NOT_ATTACHED | Status::FENCED) {
                        lock(&peer.state).detached(namespace);
                    }
                    return Err(status);
                }
                // Whether it has come isn't known; a second one does no harm.
                Err(None) => {}
            }
        }
    }

    /// An association on which the namespace is attached under `identity`. `None` if one attempt fails.
    async fn reach(&self, peer: &Arc<Peer>, namespace: u32, identity: Identity) -> Option<Arc<ServerLink>> {
        let mut seen = None;
        loop {
            {
                let mut state = lock(&peer.state);
                if let Some(way) = state.way()
                    && way.attached.get(&namespace) == Some(&(identity, true))
                {
                    return Some(Arc::clone(&way.link));
                }
                if state.closed {
                    return None;
                }
                if !state.working {
                    // One of others, for another namespace perhaps, doesn't count.
                    if seen.is_some_and(|(attempt, own)| own && state.attempts > attempt) {
                        return None;
                    }
                    state.working = true;
                    seen = Some((state.attempts, true));
                    self.work(peer, namespace, identity)?;
                } else if seen.is_none() {
                    seen = Some((state.attempts, false));
                }
            }
            let before = lock(&peer.state).attempts;
            peer.changed
                .wait_until(|| {
                    let state = lock(&peer.state);
                    !state.working || state.attempts != before
                })
                .await;
        }
    }

    /// Has the home shard connect, if need be, and attach.
    fn work(&self, peer: &Arc<Peer>, namespace: u32, identity: Identity) -> Option<()> {
        let home = self.home.get()?.clone();
        let (initiator, peer) = (Arc::clone(&self.initiator), Arc::clone(peer));
        home.send(move || {
            shard::spawn(async move {
                let done = connect(&initiator, &peer, namespace, identity).await;
                let mut state = lock(&peer.state);
                match done.filter(|_| !state.closed) {
                    Some(link) => state.attached(link, namespace, identity),
                    None => state.detached(namespace),
                }
                state.working = false;
                state.attempts += 1;
                drop(state);
                peer.changed.notify();
            });
        });
        Some(())
    }
}

/// A link carries parts for a namespace under one identity only: those of another one may still be on their
/// way.
async fn connect(
    initiator: &Arc<Initiator>,
    peer: &Peer,
    namespace: u32,
    identity: Identity,
) -> Option<Arc<ServerLink>> {
    let (array, epoch) = identity;
    let known = lock(&peer.state).way().map(|way| {
        let is_used = way.attached.get(&namespace).is_some_and(|(other, _)| *other != identity);
        (Arc::clone(&way.link), is_used)
    });
    let attach = Attach {
        array,
        epoch,
        generation: 0,
        peer: true,
        takeover: false,
        alone: false,
        incarnation: [0; 16],
        instance: [0; 16],
        peers: Vec::new(),
    };
    if let Some((link, is_used)) = known {
        let attached = if is_used && !active(Mutant::PeersOutliveEpoch) {
            Err(Some(Status::FENCED))
        } else {
            link.attach(namespace, &attach).await
        };
        match attached {
            Ok(()) => return Some(link),
            Err(Some(Status::FENCED)) => link.end(),
            Err(_) => return None,
        }
    }
    let link = Arc::new(initiator.link(&peer.address).await.ok()?);
    link.attach(namespace, &attach).await.ok()?;
    Some(link)
}
