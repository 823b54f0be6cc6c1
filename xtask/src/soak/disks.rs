//! Media as NBD exports of our own server, for QEMU's disks.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;

use anyhow::{Context, Result, bail};
use pinstripe_block::{BlockService, ServiceError};
use pinstripe_export::nbd::{Export, Server};
use pinstripe_runtime::uring::{self, Listener, RuntimeConfig};
use pinstripe_runtime::{Buffer, Slice, shard};

use super::medium::{Medium, SECTOR};

/// How often the server looks whether it must end.
const LOOK_NS: u64 = 2_000_000;
/// Longest time between a write and its answer, so that answers come in any order.
const ANSWER_NS_MAX: u64 = 400_000;
/// A medium that both the soak and its server hold.
pub type Shared = Arc<Mutex<Medium>>;

/// Locks a medium; one that a panicked thread left behind is as good as any that a power cut leaves.
pub fn locked(medium: &Shared) -> MutexGuard<'_, Medium> {
    medium.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Serves media by their names until it is ended.
pub struct Disks {
    wants_end: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
}

impl Disks {
    /// Serves on a unix socket; when this returns it listens.
    pub fn serve(socket: &Path, media: Vec<(String, Shared)>) -> Result<Self> {
        let wants_end = Arc::new(AtomicBool::new(false));
        let (flag, path) = (Arc::clone(&wants_end), socket.to_owned());
        let (listens, listening) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let config = RuntimeConfig::unpinned(1);
            uring::run(&config, move |_| async move {
                let listener = Listener::unix(&path)?;
                let _ = listens.send(());
                serve(listener, media, &flag).await
            })
            .context("start the disks' server")?
        });
        if listening.recv().is_err() {
            match thread.join() {
                Ok(Err(error)) => return Err(error),
                _ => bail!("the disks' server ended"),
            }
        }
        Ok(Self { wants_end, thread })
    }

    /// Ends it: all requests that it got are done, and no other will come.
    pub fn end(self) -> Result<()> {
        self.wants_end.store(true, Ordering::Release);
        match self.thread.join() {
            Ok(ended) => ended,
            Err(_) => bail!("the disks' server panicked"),
        }
    }
}

async fn serve(listener: Listener, media: Vec<(String, Shared)>, wants_end: &AtomicBool) -> Result<()> {
    let exports = media.into_iter().map(|(name, medium)| Export {
        name,
        description: String::new(),
        service: ForgetfulDisk(medium),
    });
    let server = Server::new(exports.collect())?;
    let accepting = server.clone();
    shard::spawn(async move {
        while let Ok(connection) = listener.accept().await {
            let server = accepting.clone();
            if let Ok(stream) = connection.attach() {
                shard::spawn(async move {
                    server.serve(stream).await;
                });
            }
        }
    });
    while !wants_end.load(Ordering::Acquire) {
        shard::sleep(LOOK_NS).await;
    }
    server.stop(0).await;
    Ok(())
}

/// A [`Medium`] behind NBD.
#[derive(Clone)]
struct ForgetfulDisk(Shared);

impl ForgetfulDisk {
    /// Lets other requests overtake this one: how long depends on where it is.
    async fn dawdle(offset: usize) {
        let nanoseconds = (offset as u64 / 4096).wrapping_mul(0x9e37_79b9) % ANSWER_NS_MAX;
        shard::sleep(nanoseconds).await;
    }
}

fn bytes(offset: u64) -> Result<usize, ServiceError> {
    usize::try_from(offset).map_err(|_| ServiceError::Io)
}

impl BlockService for ForgetfulDisk {
    fn size_bytes(&self) -> u64 {
        locked(&self.0).size() as u64
    }

    fn block_size(&self) -> u32 {
        512
    }

    fn preferred_block(&self) -> u32 {
        4096
    }

    fn read_only(&self) -> bool {
        false
    }

    async fn read(&self, offset: u64, mut buffer: Buffer) -> (Result<(), ServiceError>, Buffer) {
        match bytes(offset) {
            Ok(offset) => locked(&self.0).read(offset, &mut buffer),
            Err(error) => return (Err(error), buffer),
        }
        (Ok(()), buffer)
    }

    async fn write(&self, offset: u64, data: Slice, fua: bool) -> Result<(), ServiceError> {
        let offset = bytes(offset)?;
        let write = locked(&self.0).write(offset, &data);
        Self::dawdle(offset).await;
        locked(&self.0).answer_write(write, offset, data.len(), fua);
        Ok(())
    }

    async fn flush(&self) -> Result<(), ServiceError> {
        let covered: BTreeSet<u64> = locked(&self.0).flush();
        Self::dawdle(covered.len() * SECTOR).await;
        locked(&self.0).answer_flush(&covered);
        Ok(())
    }

    async fn discard(&self, _offset: u64, _length: u64, _fua: bool) -> Result<(), ServiceError> {
        Ok(())
    }

    async fn write_zeroes(
        &self,
        offset: u64,
        length: u64,
        fua: bool,
        _may_punch: bool,
    ) -> Result<(), ServiceError> {
        let (offset, zeroes) = (bytes(offset)?, vec![0; bytes(length)?]);
        let write = locked(&self.0).write(offset, &zeroes);
        locked(&self.0).answer_write(write, offset, zeroes.len(), fua);
        Ok(())
    }
}
