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

#[derive(Default)]
struct PeerState {
    link: Option<Arc<ServerLink>>,
    /// By namespace: under what it was attached on the link, and whether it still is.
    attached: BTreeMap<u32, (Identity, bool)>,
    /// A task connects or attaches.
    working: bool,
    /// Attempts that have ended.
    attempts: u64,
    /// The target stops.
    closed: bool,
}

impl PeerState {
    fn detached(&mut self, namespace: u32) {
        if let Some((_, is_attached)) = self.attached.get_mut(&namespace) {
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
                state.link.take()
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
                let link = state.link.clone().filter(|link| !link.is_lost());
                if let Some(link) = link
                    && state.attached.get(&namespace) == Some(&(identity, true))
                {
                    return Some(link);
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
                    Some(link) => {
                        let same = state.link.as_ref().is_some_and(|known| Arc::ptr_eq(known, &link));
                        if !same {
                            state.attached.clear();
                        }
                        state.attached.insert(namespace, (identity, true));
                        state.link = Some(link);
                    }
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
    let (known, is_used) = {
        let state = lock(&peer.state);
        let known = state.link.clone().filter(|link| !link.is_lost());
        (known, state.attached.get(&namespace).is_some_and(|(other, _)| *other != identity))
    };
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
    if let Some(link) = known {
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
