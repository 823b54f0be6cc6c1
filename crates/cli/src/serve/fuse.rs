//! The array as one plain file, by the kernel's FUSE.
//!
//! ```text
//!   bind   look: the driver, the right to mount, the place
//!   open   mount ─ a connection for each shard ─ every shard takes and answers requests
//!   end    unmount (out of sight at least) ─ what was taken is answered ─ the connections are closed
//! ```
//!
//! A server that is killed leaves the file mounted and dead: each use of it fails at once, so nothing waits.
//! The next server of the same place unmounts it. Nothing is issued again, unlike with ublk.
//!
//! This process never opens, reads or looks up the mounted file: it could wait for itself.

use std::{
    cell::RefCell,
    net::SocketAddr,
    rc::Rc,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use pinstripe_engine::io::service::VolumeService;
use pinstripe_export::fuse::{Description, Ended, OpenFiles, Session};
use pinstripe_runtime::{
    ShardHandle,
    shard::{self, JoinHandle},
    uring::{
        blocking,
        fuse::{Channel, Connection},
    },
};

use super::{
    front::{Accepting, Binding, Bound, FrontEnd, Identity, Kind, Service, Task},
    journal::ServerLog,
    ublk::never_wait_for_own_device,
};
use crate::{
    command_line::ServeArguments,
    ending::finish_start,
    failure::Failure,
    fuse::{Mounted, Place, loop_devices},
    memory,
    on_shards::on_shards,
};

/// Its one argument is looked at when it is bound.
pub const KIND: Kind = Kind { check: |_| Ok(()), bind };

type Serving = (Rc<Session<Channel, VolumeService>>, JoinHandle<()>);

thread_local! {
    /// What this shard serves the file with.
    static SERVING: RefCell<Option<Serving>> = const { RefCell::new(None) };
}

struct Fuse {
    place: Place,
    /// The name of the mount.
    source: String,
    open: Arc<OpenFiles>,
    /// When it is there, and where to complain.
    served: Option<(Arc<Mounted>, ServerLog)>,
}

fn bind<'a>(arguments: &'a ServeArguments, identity: Identity<'a>) -> Binding<'a> {
    Box::pin(async move {
        let Some(path) = arguments.fuse.clone() else { return Ok(None) };
        let place = blocking(move || Place::look(&path)).await?;
        let source = format!("pinstripe:{}", identity.stem);
        Ok(Some(Box::new(Fuse { place, source, open: Arc::default(), served: None }) as Bound))
    })
}

impl FrontEnd for Fuse {
    fn writes_parts(&self) -> bool {
        true
    }

    fn protocol(&self) -> &'static str {
        "fuse"
    }

    fn open<'a>(&'a mut self, service: Service<'a>) -> Task<'a, Result<(), Failure>> {
        Box::pin(async move {
            // A start that ended now would leave a dead mount.
            finish_start();
            let Service { array, shards, journal } = service;
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            let description = Description::new(&array.service(), now.as_secs(), owner);
            let (place, source, count) = (self.place.clone(), self.source.clone(), shards.len());
            let made = blocking(move || {
                let (mode, read_only) = (description.mode(), description.read_only());
                let (first, mounted) = place.mount(&source, mode, read_only)?;
                let others = (1..count).map(|_| first.another()).collect::<Result<Vec<_>, _>>();
                Ok::<_, Failure>((others.map(|others| (first, others)), mounted))
            });
            let (connections, mounted) = made.await?;
            self.served = Some((Arc::new(mounted), journal.clone()));
            let begun = async {
                let (first, others) =
                    connections.map_err(|error| Failure::new(format!("a connection to FUSE: {error}")))?;
                for (handle, connection) in shards.iter().zip([first].into_iter().chain(others)) {
                    let (array, journal, open) = (array.clone(), journal.clone(), Arc::clone(&self.open));
                    let begun = handle.call(move || async move {
                        let (service, locks) = array.in_parts();
                        let session = |channel| {
                            Session::new(channel, service, description, locks, open, memory::budget())
                        };
                        serve(connection, session, journal);
                    });
                    begun.await?;
                }
                Ok(())
            };
            let begun: Result<(), Failure> = begun.await;
            if begun.is_err() {
                self.end(shards).await;
            }
            begun
        })
    }

    fn uris(&self) -> Vec<String> {
        self.served.iter().map(|(mounted, _)| mounted.path().display().to_string()).collect()
    }

    fn loopback_ports(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    /// The kernel brings requests by itself.
    fn accept(&self, _: Accepting<'_>) -> Vec<JoinHandle<()>> {
        Vec::new()
    }

    /// Each open file is one; those of loop devices are named.
    fn clients(&self) -> Vec<String> {
        let Some((mounted, _)) = &self.served else { return Vec::new() };
        let path = mounted.path().display().to_string();
        let count = self.open.count();
        let mut clients = if count == 0 { Vec::new() } else { loop_devices(mounted.path()) };
        for client in &mut clients {
            *client = format!("{path} as {client}");
        }
        clients.resize(count.max(clients.len()), path);
        clients
    }

    fn refuse_succession(&self) -> Result<(), &'static str> {
        Err("a FUSE mount is not handed over to another program yet: end what uses it, stop and start")
    }

    fn stop<'a>(&'a self, shards: &'a [ShardHandle]) -> Task<'a, ()> {
        Box::pin(self.end(shards))
    }

    /// The sessions had it all, and have ended.
    fn close<'a>(&'a self, _: &'a [ShardHandle]) -> Task<'a, ()> {
        Box::pin(async {})
    }
}

impl Fuse {
    /// Takes the file away.
    async fn end(&self, shards: &[ShardHandle]) {
        let Some((mounted, journal)) = &self.served else { return };
        let path = mounted.path().display();
        let place = Arc::clone(mounted);
        match blocking(move || place.unmount()).await {
            Ok(false) => {}
            Ok(true) => journal.warn(&format!(
                "{path} is still open: requests that come now fail, those under way are finished"
            )),
            Err(failure) => {
                journal.warn(&format!(
                    "{}; `{}` takes it away",
                    failure.sentence(),
                    mounted.unmount_command()
                ));
            }
        }
        on_shards(shards, || async {
            if let Some((session, task)) = SERVING.with(RefCell::take) {
                session.stop();
                drop(session);
                task.join().await;
            }
        })
        .await;
    }
}

/// Serves the file on this shard.
fn serve(
    connection: Connection,
    session: impl FnOnce(Channel) -> Rc<Session<Channel, VolumeService>>,
    journal: ServerLog,
) {
    never_wait_for_own_device(&journal);
    let session = session(connection.attach());
    let serving = Rc::clone(&session);
    let task = shard::spawn_joined(async move {
        if let Ended::Refused(errno) = serving.serve().await {
            journal.warn(&format!("FUSE gives no requests any more to a shard (error {errno})"));
        }
    });
    SERVING.set(Some((session, task)));
}
