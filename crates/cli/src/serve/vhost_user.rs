//! The array as a disk of a virtual machine: vhost-user-blk on a unix socket.
//!
//! The socket takes one monitor at a time; another one waits until the first has gone. The messages are shard
//! 0's, the queues are divided over all shards. A monitor whose connection ends, or that is cut off because
//! it broke the protocol, may come again: QEMU does with `reconnect=1`, and its machine's requests go on.

use std::{
    cell::{Cell, RefCell},
    net::SocketAddr,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
};

use pinstripe_block::first_of::{First, first_of};
use pinstripe_engine::io::service::VolumeService;
use pinstripe_export::vhost_user::{Backend, Ended, serve};
use pinstripe_runtime::{
    ShardHandle,
    shard::{self, JoinHandle},
    uring::{Connection, Listener},
};

use super::{
    control_socket::absolute,
    front::{Accepting, Binding, Bound, FrontEnd, Identity, Kind, Service, Task},
    journal::ServerLog,
    nbd::peer_name,
    nvme::namespace_uuid,
    stopping::Stopping,
};
use crate::{command_line::ServeArguments, failure::Failure, memory};

/// Its one argument is a path, which is looked at when it is bound.
pub const KIND: Kind = Kind { check: |_| Ok(()), bind };

const PROTOCOL: &str = "vhost-user";

/// How long a connection may take to say that it wants the disk, for which others wait.
const HANDSHAKE_NANOSECONDS: u64 = 30_000_000_000;
/// Pause after a connection that could not be taken or was cut off: its monitor comes again at once.
const PAUSE_NANOSECONDS: u64 = 100_000_000;

struct VhostUser {
    /// Until connections are taken.
    listener: RefCell<Option<Listener>>,
    path: PathBuf,
    name: [u8; 20],
    /// From when the array is there until connections are taken.
    backend: RefCell<Option<Backend<VolumeService>>>,
    /// From when the array is there.
    journal: Option<ServerLog>,
    monitor: Rc<Monitor>,
}

#[derive(Default)]
struct Monitor {
    /// The one that has the device.
    name: RefCell<Option<String>>,
    /// One has had it.
    was_there: Cell<bool>,
}

fn bind<'a>(arguments: &'a ServeArguments, identity: Identity<'a>) -> Binding<'a> {
    Box::pin(async move {
        let Some(path) = &arguments.vhost_user else { return Ok(None) };
        Ok(Some(Box::new(VhostUser {
            listener: RefCell::new(Some(identity.listen_unix(PROTOCOL, path)?)),
            path: path.clone(),
            name: disk_name(namespace_uuid(identity.uuid)),
            backend: RefCell::default(),
            journal: None,
            monitor: Rc::default(),
        }) as Bound))
    })
}

impl FrontEnd for VhostUser {
    fn protocol(&self) -> &'static str {
        PROTOCOL
    }

    fn open<'a>(&'a mut self, service: Service<'a>) -> Task<'a, Result<(), Failure>> {
        Box::pin(async move {
            let Service { array, shards, journal } = service;
            let array = array.clone();
            let backend = Backend {
                shards: shards.to_vec(),
                service: Arc::new(move || array.service()),
                budget: memory::budget(),
                name: self.name,
                patience_nanoseconds: HANDSHAKE_NANOSECONDS,
            };
            self.backend.replace(Some(backend));
            self.journal = Some(journal.clone());
            Ok(())
        })
    }

    fn uris(&self) -> Vec<String> {
        vec![format!("vhost-user:{}", absolute(&self.path))]
    }

    fn loopback_ports(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    fn accept(&self, way: Accepting<'_>) -> Vec<JoinHandle<()>> {
        let (Some(listener), Some(backend), Some(journal)) =
            (self.listener.take(), self.backend.take(), self.journal.clone())
        else {
            return Vec::new();
        };
        way.leavers.note(PROTOCOL, &listener);
        let (stopping, monitor) = (Rc::clone(way.stopping), Rc::clone(&self.monitor));
        let serving = async move {
            loop {
                let connection = match first_of(stopping.wanted(), listener.accept()).await {
                    First::One(()) => return,
                    First::Other(connection) => connection,
                };
                match connection {
                    Ok(connection) => serve_one(connection, &backend, &journal, &stopping, &monitor).await,
                    Err(error) => {
                        journal.warn(&format!("can't take a connection: {error}"));
                        shard::sleep(PAUSE_NANOSECONDS).await;
                    }
                }
            }
        };
        vec![shard::spawn_joined(serving)]
    }

    fn clients(&self) -> Vec<String> {
        self.monitor.name.borrow().iter().cloned().collect()
    }

    /// Its session has ended before, as in each change of the program. So its machine notices nothing, and a
    /// socket that is bound anew would change nothing: its monitor comes again.
    fn disown(&self) -> Task<'_, ()> {
        Box::pin(async {
            if let Some(journal) = self.journal.as_ref().filter(|_| self.monitor.was_there.get()) {
                journal.warn(&disowned(&self.path));
            }
        })
    }

    /// The one session has ended before.
    fn stop<'a>(&'a self, _: &'a [ShardHandle]) -> Task<'a, ()> {
        Box::pin(async {})
    }

    /// The queues had it all, and have ended.
    fn close<'a>(&'a self, _: &'a [ShardHandle]) -> Task<'a, ()> {
        self.backend.take();
        Box::pin(async {})
    }
}

fn disowned(path: &Path) -> String {
    format!(
        "a virtual machine that has its disk by {} goes on with the next program all the same. Its flushes may succeed there over what \
         was lost: start it anew, and check what is on the disk",
        path.display()
    )
}

/// Serves a monitor until it or the server ends.
async fn serve_one(
    connection: Connection,
    backend: &Backend<VolumeService>,
    journal: &ServerLog,
    stopping: &Stopping,
    monitor: &Monitor,
) {
    let name = connection.peer().map_or_else(|| "an unknown monitor".to_owned(), peer_name);
    let settle = || {
        *monitor.name.borrow_mut() = Some(name.clone());
        monitor.was_there.set(true);
    };
    let ended = serve(connection, backend, stopping.wanted(), settle).await;
    monitor.name.take();
    if let Ended::Failed(why) = ended {
        journal.warn(&format!("the vhost-user session of {name} was ended: {why}"));
        first_of(stopping.wanted(), shard::sleep(PAUSE_NANOSECONDS)).await;
    }
}

/// What the machine sees as the disk's serial number: as many digits of the array's uuid as there is room
/// for.
fn disk_name(uuid: [u8; 16]) -> [u8; 20] {
    let digits = format!("{:032x}", u128::from_be_bytes(uuid));
    let mut name = [0; 20];
    name.copy_from_slice(&digits.as_bytes()[..20]);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_that_notices_no_loss_is_named_with_what_to_do() {
        let said = disowned(Path::new("/run/data.vhost"));
        assert!(said.contains("/run/data.vhost") && said.contains("start it anew"), "{said}");
    }

    #[test]
    fn a_disk_is_named_by_the_uuid() {
        let uuid = std::array::from_fn(|index| u8::try_from(index).unwrap() * 0x11);
        assert_eq!(&disk_name(uuid), b"00112233445566778899");
    }
}
