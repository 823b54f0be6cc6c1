//! The exports that a shard serves, and the connections that it has.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use pinstripe_runtime::{Stream, shard};
use thiserror::Error;

use super::link::{Link, Stoppable, Why};
use super::{ExportInfo, ExportInfoError, Negotiated, Tls, Violation, session};
use crate::tls::Acceptor;
use pinstripe_block::budget::Budget;
use pinstripe_block::roster::Roster;
use pinstripe_block::service::BlockService;
use pinstripe_block::wake::Wake;

/// An array to be served, and what clients call it.
#[derive(Debug, Clone)]
pub struct Export<S> {
    /// The name by which clients ask for it. The first export is also served under the empty name.
    pub name: String,
    /// A sentence for people; may be empty.
    pub description: String,
    /// The array.
    pub service: S,
}

/// Why a [`Server`] can't be made.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ServerError {
    /// An array or its name can't be told to NBD clients.
    #[error("export {name:?}: {source}")]
    Info {
        /// The export's name.
        name: String,
        /// What is wrong with it.
        source: ExportInfoError,
    },
    /// Two exports have the same name.
    #[error("two exports are called {0:?}")]
    Duplicate(String),
}

/// How a connection can be secured.
#[derive(Debug, Clone, Default)]
pub enum Security {
    /// Not at all.
    #[default]
    Plain,
    /// By TLS, if the client wants it.
    Offered(Acceptor),
    /// By TLS, and it is served nothing without it.
    Required(Acceptor),
}

impl Security {
    pub(super) fn tls(&self) -> Tls {
        match self {
            Self::Plain => Tls::Unavailable,
            Self::Offered(_) => Tls::Offered,
            Self::Required(_) => Tls::Required,
        }
    }

    pub(super) fn acceptor(&self) -> Option<&Acceptor> {
        match self {
            Self::Plain => None,
            Self::Offered(acceptor) | Self::Required(acceptor) => Some(acceptor),
        }
    }
}

/// How a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionEnd {
    /// The client said that it leaves.
    Disconnected,
    /// The connection closed without a word: the client died, the network failed, or the server was stopped.
    Closed,
    /// The client broke the protocol and was cut off.
    Violation(Violation),
    /// TLS was begun and didn't come about, for the reason that is given.
    Insecure(String),
    /// The client didn't choose an export in time.
    HandshakeTimeout,
    /// The server has too many connections, or is stopping.
    Refused,
    /// It is left to another process, between two requests and with its stream open.
    Left(Left),
}

/// A connection that another process goes on with: see [`Server::leave`] and [`Server::resume`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// What the client was promised.
    pub negotiated: Negotiated,
    /// The beginning of what is to be received next.
    pub received: Vec<u8>,
}

/// The NBD server of one shard. Clones are handles to the same one.
///
/// Every shard that takes connections has its own, over its own handles of the same arrays.
#[derive(Debug)]
pub struct Server<S>(Rc<Inner<S>>);

impl<S> Clone for Server<S> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

struct Inner<S> {
    infos: Vec<ExportInfo>,
    services: Vec<S>,
    connections: Roster<dyn Stoppable>,
    budget: Arc<Budget>,
    stopping: Cell<bool>,
    /// [`Server::stop`] waits here for the last connection's end.
    stopped: Wake,
}

impl<S> std::fmt::Debug for Inner<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("infos", &self.infos)
            .field("stopping", &self.stopping)
            .finish_non_exhaustive()
    }
}

impl<S: BlockService> Server<S> {
    /// A server of `exports`. Its clients have a budget of memory of their own.
    pub fn new(exports: Vec<Export<S>>) -> Result<Self, ServerError> {
        Self::with_budget(exports, Arc::default())
    }

    /// The same for a shard of several, or beside servers of other protocols, that share one budget.
    pub fn with_budget(exports: Vec<Export<S>>, budget: Arc<Budget>) -> Result<Self, ServerError> {
        let mut infos: Vec<ExportInfo> = Vec::with_capacity(exports.len());
        let mut services = Vec::with_capacity(exports.len());
        for Export { name, description, service } in exports {
            let (size_bytes, block_size) = (service.size_bytes(), service.block_size());
            let preferred = service.preferred_block();
            let info =
                ExportInfo::new(&name, &description, size_bytes, block_size, preferred, service.read_only());
            if infos.iter().any(|other| other.name() == name) {
                return Err(ServerError::Duplicate(name));
            }
            infos.push(info.map_err(|source| ServerError::Info { name, source })?);
            services.push(service);
        }
        Ok(Self(Rc::new(Inner {
            infos,
            services,
            connections: Roster::default(),
            budget,
            stopping: Cell::new(false),
            stopped: Wake::default(),
        })))
    }

    /// What clients are told about the exports.
    pub fn exports(&self) -> &[ExportInfo] {
        &self.0.infos
    }

    /// Connections that are open now.
    pub fn connections(&self) -> usize {
        self.0.connections.len()
    }

    /// Runs a connection from greeting to end, on the current shard. When it returns, no request of the
    /// connection is in flight and its stream is closed.
    pub async fn serve<T: Stream + ?Sized + 'static>(&self, stream: Rc<T>) -> SessionEnd {
        self.serve_securely(stream, Security::Plain, |_| ()).await
    }

    /// The same, secured. Once the client has chosen an export, `told` is called, before the client learns
    /// that it has it, with whether it did so in TLS.
    pub async fn serve_securely<T: Stream + ?Sized + 'static>(
        &self,
        stream: Rc<T>,
        security: Security,
        told: impl FnOnce(bool),
    ) -> SessionEnd {
        let beginning = session::Beginning::Greeting(&security);
        self.converse(stream, beginning, told).await
    }

    /// Goes on with a connection that another process has left, whose exports must be the same ones.
    pub async fn resume<T: Stream + ?Sized + 'static>(
        &self,
        stream: Rc<T>,
        left: &Left,
        told: impl FnOnce(),
    ) -> SessionEnd {
        self.converse(stream, session::Beginning::Left(left), |_| told()).await
    }

    async fn converse<T: Stream + ?Sized + 'static>(
        &self,
        stream: Rc<T>,
        beginning: session::Beginning<'_>,
        told: impl FnOnce(bool),
    ) -> SessionEnd {
        let server = &*self.0;
        let peer = stream.peer();
        let link = Rc::new(Link::new(stream, Arc::clone(&server.budget)));
        let admit = || {
            let link = Rc::clone(&link) as Rc<dyn Stoppable>;
            match beginning {
                session::Beginning::Greeting(_) => server.connections.admit(peer, link, Stoppable::cut),
                // It was let in before.
                session::Beginning::Left(_) => Some(server.connections.put(peer, link)),
            }
        };
        let goes_on = matches!(beginning, session::Beginning::Left(_));
        let Some(number) = (goes_on || !server.stopping.get()).then(admit).flatten() else {
            link.stream.shutdown();
            return SessionEnd::Refused;
        };
        if server.stopping.get() {
            // It is left once more.
            link.leave();
        }
        let sender = Rc::clone(&link);
        shard::spawn(async move { sender.run().await });

        let settled = || {
            server.connections.settle(number);
            told(link.is_secure());
        };
        let end = session::run(&link, beginning, &server.infos, &server.services, settled).await;
        link.end(match end {
            SessionEnd::Disconnected => Why::Disconnected,
            SessionEnd::Left(_) => Why::Left,
            _ => Why::Abandoned,
        })
        .await;
        // What could not be answered can't be left either, and TLS can't at all.
        let end =
            if matches!(end, SessionEnd::Left(_)) && !link.is_left() { SessionEnd::Closed } else { end };

        server.connections.remove(number);
        server.stopped.wake();
        end
    }

    /// Stops: takes no more connections, refuses further requests, finishes those in flight (of a long TRIM
    /// or WRITE_ZEROES the piece under way; it fails) and closes each connection when its replies are sent.
    /// After `grace_nanoseconds` the connections that are left are cut, which drops their replies but not
    /// their requests.
    ///
    /// When it returns, no request is in flight. Call it once.
    pub async fn stop(&self, grace_nanoseconds: u64) {
        self.0.stopping.set(true);
        self.each_connection(|connection| connection.stop());
        if shard::timeout(grace_nanoseconds, self.stopped()).await.is_none() {
            self.each_connection(|connection| connection.cut());
            self.stopped().await;
        }
    }

    /// Stops, but leaves the connections to another process: each ends with [`SessionEnd::Left`] after the
    /// requests that have come whole, and its stream stays open. One in TLS ends there, too, but is closed.
    /// One that waits for its client after `grace_nanoseconds`, for data or to take answers, is cut, unless
    /// much comes or is taken. It has until `limit_nanoseconds`, as one with requests under way has.
    pub async fn leave(&self, grace_nanoseconds: u64, limit_nanoseconds: u64) {
        self.0.stopping.set(true);
        self.each_connection(|connection| {
            connection.idles();
            connection.leave();
        });
        let times = (grace_nanoseconds, limit_nanoseconds);
        let connections = &self.0.connections;
        connections.wind_down(times, async || self.stopped().await, Stoppable::idles, Stoppable::cut).await;
    }

    fn stopped(&self) -> impl Future<Output = ()> {
        self.0.stopped.wait_for(|| self.0.connections.is_empty().then_some(()))
    }

    fn each_connection(&self, act: impl Fn(&dyn Stoppable)) {
        for connection in self.0.connections.all() {
            act(&*connection);
        }
    }
}
