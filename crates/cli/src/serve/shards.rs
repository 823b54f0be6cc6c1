//! What each shard has of the array: a volume, and an NBD server over it.

use std::{cell::RefCell, sync::Arc};

use pinstripe_engine::io::service::VolumeService;
use pinstripe_engine::{io::volume::Volume, shared::Shared};
use pinstripe_export::nbd::{Export, Server};
use pinstripe_runtime::{ShardHandle, shard, uring::Connection};

use super::{clients::Connected, journal::Journal, service::array_service};
use crate::{failure::Failure, memory, on_shards::on_shards};

thread_local! {
    /// This shard's server.
    static SERVER: RefCell<Option<Server<VolumeService>>> = const { RefCell::new(None) };
}

fn current() -> Option<Server<VolumeService>> {
    SERVER.with(|server| server.borrow().clone())
}

/// Opens the array on every shard, as the export `name`.
pub async fn open(
    shards: &[ShardHandle],
    shared: &Arc<Shared>,
    name: &str,
    journal: &Journal,
) -> Result<(), Failure> {
    for handle in shards {
        let (shared, name, journal) = (Arc::clone(shared), name.to_owned(), journal.clone());
        let opened = handle.call(move || async move {
            let service = array_service(Volume::new(shared), journal);
            let export = Export { name, description: String::new(), service };
            let server = Server::with_budget(vec![export], memory::budget())?;
            SERVER.with(|current| current.replace(Some(server)));
            Ok::<_, Failure>(())
        });
        opened.await??;
    }
    Ok(())
}

/// Gives a connection to a shard, where it lives from now on.
pub fn hand_over(target: &ShardHandle, connection: Connection, client: Connected) {
    target.send(move || {
        // Without a server it is closed: the array is stopping.
        let Some(server) = current() else { return };
        shard::spawn(async move {
            match connection.attach() {
                Ok(stream) => {
                    server.serve_and_tell(stream, || client.counts()).await;
                }
                Err(error) => eprintln!("pinstripe: a connection can't be used: {error}"),
            }
        });
    });
}

/// Ends all connections after what is in flight.
pub async fn stop(shards: &[ShardHandle], grace_nanoseconds: u64) {
    let stop = move || async move {
        if let Some(server) = current() {
            server.stop(grace_nanoseconds).await;
        }
    };
    on_shards(shards, stop).await;
}

/// Gives up the volumes, and with them the devices.
pub async fn close(shards: &[ShardHandle]) {
    // Dropped outside of the borrow: a destructor may look for the server.
    on_shards(shards, || async { drop(SERVER.with(RefCell::take)) }).await;
}
