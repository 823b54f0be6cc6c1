//! Connections of TLS, and the keys of the hosts that speak it.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::{Arc, PoisonError, RwLock};

use pinstripe_block::BlockService;
use pinstripe_runtime::Stream;
use pinstripe_tls::{Key, Keys, Left, TlsError, TlsStream};

use super::connection::SessionEnd;
use super::leave::{LeftQueue, LeftSecured};
use super::{Target, connection};
use crate::auth::{TlsKey, TlsKeyring};
use crate::link::Link;
use crate::wire::DISCOVERY_NQN;

/// The hosts that a target serves by TLS.
#[derive(Debug)]
pub struct TlsHosts {
    subsystem: String,
    known: RwLock<Arc<Known>>,
}

/// Those of a keyring.
#[derive(Debug)]
struct Known {
    keyring: TlsKeyring,
    keys: Keys,
    /// The host of each identity.
    hosts: BTreeMap<Vec<u8>, String>,
}

/// Why a keyring is none of hosts.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadTlsHosts {
    /// An identity has the host's name in it.
    #[error("* can't stand for hosts: give each host a line with its NQN")]
    Any,
    /// What TLS says of a key.
    #[error("the key of {host} can't be used: {why}")]
    Key {
        /// The host.
        host: String,
        /// Why.
        why: String,
    },
    /// What it says of them all.
    #[error("the keys can't be used: {0}")]
    Keys(String),
}

impl TlsHosts {
    /// The hosts of a keyring, for this subsystem and its discovery.
    pub fn new(keyring: &TlsKeyring, subsystem: &str) -> Result<Self, BadTlsHosts> {
        let known = Known::new(keyring, subsystem)?;
        Ok(Self { subsystem: subsystem.to_owned(), known: RwLock::new(Arc::new(known)) })
    }

    /// Has these hosts be served from now on, and no others. Those that have no key any more, or another one:
    /// their connections go on until [`Target::cut_off`] is told of them, on each shard.
    pub fn replace(&self, keyring: &TlsKeyring) -> Result<BTreeSet<String>, BadTlsHosts> {
        let known = Known::new(keyring, &self.subsystem)?;
        let is_out = |(host, key): &(&str, &TlsKey)| known.keyring.find(host) != Some(*key);
        let before = self.known();
        let out = before.keyring.peers().filter(is_out).map(|(host, _)| host.to_owned()).collect();
        *self.known.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(known);
        Ok(out)
    }

    fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Known {
    fn new(keyring: &TlsKeyring, subsystem: &str) -> Result<Self, BadTlsHosts> {
        let (mut keys, mut hosts) = (Vec::new(), BTreeMap::new());
        for (host, key) in keyring.peers() {
            if !host.starts_with("nqn.") {
                return Err(BadTlsHosts::Any);
            }
            for name in [subsystem, DISCOVERY_NQN] {
                let psk = key.derive(host, name);
                let key = Key::new(psk.identity.as_bytes(), &psk.secret, psk.hash.into());
                let wrong =
                    |error: TlsError| BadTlsHosts::Key { host: host.to_owned(), why: error.to_string() };
                keys.push(key.map_err(wrong)?);
                hosts.insert(psk.identity.into_bytes(), host.to_owned());
            }
        }
        let keys = Keys::new(keys).map_err(|error| BadTlsHosts::Keys(error.to_string()))?;
        Ok(Self { keyring: keyring.clone(), keys, hosts })
    }
}

impl<S: BlockService> Target<S> {
    /// The same as [`Target::serve`] for one of these hosts, by TLS. A connection that shakes hands counts as
    /// any that has not said what it is for.
    pub async fn serve_secured(
        &self,
        stream: Rc<dyn Stream>,
        hosts: &TlsHosts,
    ) -> Result<SessionEnd, TlsError> {
        let inner = &self.0;
        let secured = Rc::new(TlsStream::server(stream, &hosts.known().keys)?);
        let link = Link::new(Rc::clone(&secured) as Rc<dyn Stream>, Arc::clone(&inner.budget));
        let Some(number) = self.admit(&link) else { return Ok(SessionEnd::Refused) };
        let mut failure = None;
        let conversation = async {
            let host = match secured.shake_hands().await {
                // The keys may have been replaced meanwhile. From here to `is_of` nothing is waited for, so a
                // host that goes after this look is seen by `cut_off`.
                Ok(identity) => hosts.known().hosts.get(&identity).cloned(),
                Err(error) => {
                    failure = Some(error);
                    None
                }
            };
            let Some(host) = host else {
                link.cut();
                link.closed().await;
                return SessionEnd::Closed;
            };
            link.is_of(host);
            connection::run(inner, &link, number).await
        };
        let end = self.converse(&link, number, conversation).await;
        failure.map_or_else(|| Ok(self.with_state(end, &secured, &link)), Err)
    }

    /// The same as [`Target::resume`] for a connection of TLS.
    pub async fn resume_secured(
        &self,
        stream: Rc<dyn Stream>,
        hosts: &TlsHosts,
        left: &LeftQueue,
    ) -> Result<SessionEnd, TlsError> {
        let known = hosts.known();
        let is_let_in = |left: &&LeftSecured| known.keyring.find(&left.host).is_some();
        let secured = left.secured.as_ref().filter(is_let_in);
        let resumed = secured.map(|LeftSecured { host, state, received }| {
            let left = Left { state: state.clone(), received: received.clone() };
            TlsStream::resumed(Rc::clone(&stream), &known.keys, &left).map(|stream| (host, Rc::new(stream)))
        });
        // One that was in clear is over, and so is one of a host that has no key any more.
        let (host, secured) = match resumed.unwrap_or(Err(TlsError::Closed)) {
            Ok(resumed) => resumed,
            Err(error) => {
                self.abandon(left);
                stream.shutdown();
                return Err(error);
            }
        };
        let link = Link::new(Rc::clone(&secured) as Rc<dyn Stream>, Arc::clone(&self.0.budget));
        link.is_of(host.clone());
        let end = self.resume_on(&link, left).await;
        Ok(self.with_state(end, &secured, &link))
    }

    /// Ends the connections of these hosts.
    pub fn cut_off(&self, hosts: &BTreeSet<String>) {
        for link in self.0.links.all() {
            if link.host().is_some_and(|host| hosts.contains(host)) {
                link.cut();
            }
        }
    }

    /// A queue that is left needs what its ends have agreed on.
    fn with_state(&self, end: SessionEnd, secured: &TlsStream, link: &Link) -> SessionEnd {
        let SessionEnd::Left(mut queue) = end else { return end };
        if let (Ok(Left { state, received }), Some(host)) = (secured.leave(), link.host()) {
            queue.secured = Some(LeftSecured { host: host.to_owned(), state, received });
            return SessionEnd::Left(queue);
        }
        self.abandon(&queue);
        secured.shutdown();
        SessionEnd::Closed
    }
}
