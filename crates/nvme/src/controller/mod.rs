//! A target: block services as namespaces of one subsystem, for any NVMe/TCP host.
//!
//! ```text
//!   Stream ──> Inbound ──> connection: ICReq, Connect ──> a task per command ──> admin | io ──> BlockService
//!   Stream <── Link::run <── batches, data buffers <── completions, R2T, data <─────────┘
//!                              │
//!                     Subsystem, Controller (shared by all shards)
//! ```
//!
//! * [`Subsystem`]: what all shards share: namespaces, reservations, controllers and their keep-alive.
//! * [`Target`]: one shard's part: its handles on the namespaces, and its connections. Each connection is one
//!   queue.
//! * [`DeviceService`]: a device as a block service; [`DeviceFlushes`]: what all shards know of its flushes.
//!
//! With an [`OffloadConfig`] servers work out parity together (`docs/offload-protocol.md`).
//!
//! What the host can make the target hold is bounded: connections per shard and peer, controllers, commands
//! per queue (the queue's size), bytes of a command ([`TRANSFER_BYTES_MAX`]), bytes per connection (see the
//! link) and of all together (see [`Budget`]). Data that doesn't fit is asked for (R2T) when there is room.

mod admin;
mod attach;
mod authenticate;
mod carry;
mod connect;
mod connection;
mod flushes;
mod gate;
mod inner;
mod io;
mod leave;
mod limits;
mod offload;
mod reservation;
#[cfg(feature = "tls")]
mod secure;
mod service;
mod session;
mod subsystem;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use pinstripe_block::BlockService;
use pinstripe_block::budget::Budget;
use pinstripe_block::roster::Roster;
use pinstripe_runtime::{Signal, Stream, shard};

pub use connection::SessionEnd;
pub use flushes::DeviceFlushes;
pub use leave::{LeftQueue, LeftSubsystem};
pub use limits::{CAPSULE_BYTES_MAX, COMMANDS_MAX, TRANSFER_BYTES_MAX};
pub use offload::{
    Ended, EpochFiles, EpochRecord, EpochStore, NotStored, OffloadConfig, OffloadStatistics, Pipeline,
    RANGE_BYTES_MAX, Storing,
};
#[cfg(feature = "tls")]
pub use secure::{BadTlsHosts, TlsHosts};
pub use service::DeviceService;
pub use subsystem::{NamespaceConfig, Subsystem, SubsystemConfig, SubsystemError, check_name};

pub use crate::uuid::{uuid_of, uuid_text};

use crate::link::Link;
use inner::Inner;

/// One shard's part of a target. Clones are handles to the same one.
pub struct Target<S>(Rc<Inner<S>>);

impl<S> Clone for Target<S> {
    fn clone(&self) -> Self {
        Self(Rc::clone(&self.0))
    }
}

impl<S: BlockService> Target<S> {
    /// Serves the subsystem on this shard. `services` are this shard's handles on the namespaces, in their
    /// order; one that is missing makes its namespace *not ready* here.
    pub fn new(subsystem: Arc<Subsystem>, services: Vec<S>) -> Self {
        let budget = Arc::clone(&subsystem.budget);
        Self::with_budget(subsystem, services, budget)
    }

    /// The same with a budget of memory that servers of other protocols share.
    pub fn with_budget(subsystem: Arc<Subsystem>, services: Vec<S>, budget: Arc<Budget>) -> Self {
        Self::with_gaps(subsystem, services.into_iter().map(Some).collect(), budget)
    }

    /// The same without the services of namespaces that aren't there.
    pub fn with_gaps(subsystem: Arc<Subsystem>, services: Vec<Option<S>>, budget: Arc<Budget>) -> Self {
        let counters = subsystem.count_in();
        if let Some(server) = subsystem.offload() {
            server.settle();
        }
        Self(Rc::new(Inner {
            subsystem,
            services,
            counters,
            links: Roster::default(),
            budget,
            stopping: Cell::new(false),
            changed: Signal::default(),
        }))
    }

    /// Connections that are open now.
    pub fn connections(&self) -> usize {
        self.0.links.len()
    }

    /// Runs a connection from its first byte to its end, on the current shard. When it returns, no command of
    /// it is being carried out and its stream is closed.
    pub async fn serve(&self, stream: Rc<dyn Stream>) -> SessionEnd {
        self.serve_of(stream, None).await
    }

    /// The same with a stream that may have proved to be of a host: then it connects no queue of another one.
    pub async fn serve_of(&self, stream: Rc<dyn Stream>, host: Option<String>) -> SessionEnd {
        let link = Link::new(stream, Arc::clone(&self.0.budget));
        if let Some(host) = host {
            link.is_of(host);
        }
        let Some(number) = self.admit(&link) else { return SessionEnd::Refused };
        self.converse(&link, number, connection::run(&self.0, &link, number)).await
    }

    /// Lets a connection in, and gives its number among those of the shard; one for which there is no place
    /// is ended.
    fn admit(&self, link: &Rc<Link>) -> Option<u64> {
        let inner = &self.0;
        let admit = || inner.links.admit(link.stream.peer(), Rc::clone(link), Link::cut);
        let number = (!inner.stopping.get()).then(admit).flatten();
        if number.is_none() {
            link.stream.shutdown();
        }
        number
    }

    /// Goes on with a connection that another process has left, when the subsystem was restored.
    pub async fn resume(&self, stream: Rc<dyn Stream>, left: &LeftQueue) -> SessionEnd {
        self.resume_on(&Link::new(stream, Arc::clone(&self.0.budget)), left).await
    }

    async fn resume_on(&self, link: &Rc<Link>, left: &LeftQueue) -> SessionEnd {
        let inner = &self.0;
        // It was let in before.
        let number = inner.links.put(link.stream.peer(), Rc::clone(link));
        if inner.stopping.get() {
            link.leave();
        }
        let end = self.converse(link, number, connection::resume(inner, link, number, left)).await;
        if !matches!(end, SessionEnd::Left(_)) {
            self.abandon(left);
        }
        end
    }

    /// A queue that another process has left doesn't go on. With the admin queue its controller ends.
    pub fn abandon(&self, left: &LeftQueue) {
        if left.is_admin() {
            self.0.subsystem.abandon(left.controller());
        }
    }

    async fn converse(
        &self,
        link: &Rc<Link>,
        number: u64,
        conversation: impl Future<Output = SessionEnd>,
    ) -> SessionEnd {
        let sender = Rc::clone(link);
        shard::spawn(async move { sender.run().await });
        let end = conversation.await;
        self.0.links.remove(number);
        self.0.changed.notify();
        end
    }

    /// Takes no more connections, and leaves those that are there to another process: each ends with
    /// [`SessionEnd::Left`] after the commands that have begun, and its stream stays open. One that waits for
    /// its host after `grace_nanoseconds` is cut, unless data flows and not for long, and all are after
    /// `limit_nanoseconds`. See [`Subsystem::left`]; without the offload extension.
    pub async fn leave(&self, grace_nanoseconds: u64, limit_nanoseconds: u64) {
        self.0.stopping.set(true);
        for link in self.0.links.all() {
            link.idles();
            link.leave();
        }
        let (inner, times) = (&self.0, (grace_nanoseconds, limit_nanoseconds));
        let ended = async || inner.changed.wait_until(|| inner.links.is_empty()).await;
        inner.links.wind_down(times, ended, Link::idles, Link::cut).await;
    }

    /// Takes no more connections, ends those that are there, and waits until no command is being carried out.
    /// Hosts learn of it by the connections' end and decide again what to do with commands that weren't
    /// answered.
    pub async fn stop(&self) {
        self.0.stopping.set(true);
        self.0.subsystem.kill_all();
        for link in self.0.links.all() {
            link.cut();
        }
        if let Some(server) = self.0.subsystem.offload() {
            server.close();
        }
        self.0.changed.wait_until(|| self.0.links.is_empty()).await;
    }
}
